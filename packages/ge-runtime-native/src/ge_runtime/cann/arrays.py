"""Arrays on the device for hosts without torch: made from numpy or DLPack, read back the same way."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

import numpy as np

from ge_graph.dtypes import DataType
from ge_runtime import errors
from ge_runtime.cann import dlpack, library
from ge_runtime.cann.session import Session, current

Array = np.ndarray[Any, Any]
_WIDEN: Final = {DataType.DT_BF16: 16}  # numpy lacks it; float32 holds every such value in its upper half


def size_of(dtype: DataType, shape: tuple[int, ...]) -> int:
    """Bytes of a dense array; types below one byte are packed."""
    return (math.prod(shape) * dtype.bits + 7) // 8


class DeviceArray:
    """A dense array in device memory.

    It belongs to the session and stream in which it was made; using it after the session's end is an error. Reading it
    with ``numpy()`` or ``np.asarray`` waits for its stream.

    Attributes:
        address: Of its first element on the device.
        dtype: GE element type.
        shape: Sizes.
        stream: The stream whose order its content follows.
    """

    __slots__ = ("address", "dtype", "shape", "stream", "_session", "_owner", "__weakref__")

    def __init__(
        self, session: Session, address: int, dtype: DataType, shape: tuple[int, ...], stream: int, owner: int | None
    ) -> None:
        """``owner`` is a result's ``gec_result``; None: the memory is the pool's."""
        self.address, self.dtype, self.shape, self.stream = address, dtype, shape, stream
        self._session, self._owner = session, owner

    @staticmethod
    def empty(session: Session, dtype: DataType, shape: tuple[int, ...], stream: int) -> DeviceArray:
        """An array whose content is not defined."""
        return DeviceArray(session, session.allocate(size_of(dtype, shape), stream), dtype, shape, stream, None)

    @staticmethod
    def from_bytes(
        session: Session, data: Array, dtype: DataType, shape: tuple[int, ...], stream: int, *, wait: bool = True
    ) -> DeviceArray:
        """An array with the bytes of ``data``; without ``wait`` the bytes must live until the stream is through."""
        made = DeviceArray.empty(session, dtype, shape, stream)
        dense = np.ascontiguousarray(data)
        session.copy(made.address, dense.ctypes.data, dense.nbytes, "to_device", stream)
        if wait:
            session.wait(stream)
        return made

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return size_of(self.dtype, self.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def check(self) -> None:
        """Whether it can still be used.

        Errors: EngineError GE4021 after its session's end.
        """
        if self._session.ended or self._session is not current():
            raise errors.no_session("a device array was used after the end of its session")

    def numpy(self) -> Array:
        """A copy on the host; bfloat16 becomes float32.

        Errors: EngineError GE4021 after the session's end, GE4009 for a type that numpy lacks.
        """
        self.check()
        if self.dtype.numpy_name is None and self.dtype not in _WIDEN:
            raise errors.refused("numpy", f"{self.dtype.name} has no numpy type")
        raw = np.empty(self.nbytes, np.uint8)
        self.copy_to(raw)
        self._session.wait(self.stream)
        if self.dtype in _WIDEN:
            wide = raw.view(np.uint16).astype(np.uint32) << _WIDEN[self.dtype]
            return wide.view(np.float32).reshape(self.shape)
        return raw.view(self.dtype.numpy).reshape(self.shape)

    def copy_to(self, target: Array) -> None:
        """Queue a copy into a dense array of the same number of bytes."""
        self._session.copy(target.ctypes.data, self.address, self.nbytes, "to_host", self.stream)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("memory on the device cannot be seen by numpy without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.check()
        self._session.wait(self.stream)
        return dlpack.export(self, self.address, self.dtype, self.shape, self._session.device)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.EXTENSION, self._session.device

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype.short}{list(self.shape)} on device {self._session.device})"

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is None or session.ended:
            return
        if self._owner is None:
            session.release(self.address)
        else:
            library.native().gec_result_free(ctypes.c_void_p(self._owner))
