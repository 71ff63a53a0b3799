"""Whether inputs look as those of an earlier run did, at little cost for each: by one native call over all of them.

torch gives its tensors' types, sizes and addresses through the C functions of DLPack; where it has none (before 2.10),
or the native library is not at hand, ``ge_runtime.device_graphs.SameInputs`` asks in Python.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final

from ge_graph.errors import EngineError
from ge_runtime.cann import library, torch_tensors

_TABLE: Final = "__dlpack_c_exchange_api__"
_DESCRIBE: Final = 5  # position of dltensor_from_py_object_no_sync among the table's words, in DLPack 1
_EXTENSION: Final = 12  # kDLExtDev: what torch gives for NPU tensors


def _functions() -> Any:
    """The functions to read tensors with; None if there are none, which a runner built later changes."""
    return _found() if library.at_hand() else None


@functools.lru_cache(maxsize=1)
def _found() -> Any:
    torch = torch_tensors.torch()
    capsule = getattr(getattr(torch, "Tensor", None), _TABLE, None)
    if capsule is None:
        return None
    api = ctypes.pythonapi
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    try:
        table = pointer(capsule, b"dlpack_exchange_api")
        library.reads_tensors()
    except (ValueError, EngineError):
        return None
    if not table or ctypes.c_uint32.from_address(table).value != 1:
        return None
    describe = ctypes.c_void_p.from_address(table + 8 * _DESCRIBE).value
    used = (api.PyList_GetItem, api.PyObject_Type, api.PyType_IsSubtype, api.Py_DecRef)
    address = [ctypes.cast(f, ctypes.c_void_p).value for f in used]
    return library.TensorFunctions(*address, id(torch.Tensor), describe, _EXTENSION)


class SeenInputs:
    """The looks of one run's inputs.

    Attributes:
        addresses: Where the inputs of the last ``match`` lie; an array of C.
    """

    def __init__(self, count: int, addresses: Any) -> None:
        self._looks, self.addresses, self._count = (ctypes.c_int64 * (library.LOOK * count))(), addresses, count

    @classmethod
    def of(cls, inputs: Sequence[Any], addresses: Any) -> SeenInputs | None:
        """Look at inputs; None unless all are dense torch tensors on a device and can be read that way.

        Args:
            inputs: At least one.
            addresses: An array of 64-bit numbers, one an input, for the addresses of later runs.
        """
        if _functions() is None:
            return None
        made = cls(len(inputs), addresses)
        return made if made._read(inputs, learn=True) else None

    def match(self, inputs: Sequence[Any]) -> bool:
        """Whether all look as they did; ``addresses`` has their places then."""
        return self._read(inputs, learn=False)

    def _read(self, inputs: Sequence[Any], *, learn: bool) -> bool:
        given = inputs if type(inputs) is list else list(inputs)
        if len(given) != self._count:
            return False
        try:
            return bool(library.reads_tensors()(given, self._count, _found(), learn, self._looks, self.addresses))
        except Exception:  # noqa: BLE001 - a tensor without memory of its own; the long way says what is wrong
            return False
