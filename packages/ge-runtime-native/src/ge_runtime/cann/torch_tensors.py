"""torch tensors as inputs and results, for processes that have torch; this module imports none."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from ge_graph.dtypes import BY_TORCH_NAME, DataType
from ge_runtime.cann import library

logger: Final = logging.getLogger(__name__)


def torch() -> Any:
    """The module, None before anybody has imported it."""
    return sys.modules.get("torch")


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor."""
    module = torch()
    return module is not None and isinstance(value, module.Tensor)


def on_device(value: Any) -> bool:
    """Whether a torch tensor lives on an NPU."""
    return bool(value.device.type == "npu")


def ge_type(value: Any) -> DataType | None:
    """The GE type of a tensor's elements."""
    return BY_TORCH_NAME.get(str(value.dtype).removeprefix("torch."))


@functools.cache
def torch_type(dtype: DataType) -> Any:
    """The torch type of a GE type, None if this torch has none."""
    return getattr(torch(), dtype.torch_name, None) if dtype.torch_name else None


def current_stream() -> int:
    """The handle of torch's current stream."""
    handle = _raw_stream()
    if handle is not None:
        return int(handle(-1))
    return int(torch().npu.current_stream().npu_stream)


def launch_stream() -> int:
    """The handle of torch's current stream, once what torch_npu has in its own queue is on that stream.

    torch_npu launches its operators from a thread of its own. Whoever launches past it, as the runner does, would
    overtake them; the handle alone does not wait for that thread, the one that a Stream object gives does.
    """
    return int(_stream(current_stream()).npu_stream)


@functools.lru_cache(maxsize=64)
def _stream(_: int) -> Any:
    """The Stream object of the current stream, by its handle: making one takes long."""
    return torch().npu.current_stream()


@functools.lru_cache(maxsize=1)
def _raw_stream() -> Any:
    """torch_npu's function from a device's number, -1 the current one, to its current stream's handle.

    The way through a Stream object takes a third of the time that a whole run may. None where torch_npu lacks it.
    """
    return getattr(getattr(sys.modules.get("torch_npu"), "_C", None), "_npu_getCurrentRawStream", None)


def host_bytes(value: Any) -> np.ndarray[Any, Any]:
    """The bytes of a dense tensor on the host, on its memory."""
    array: np.ndarray[Any, Any] = value.detach().reshape(-1).view(torch().uint8).numpy()
    return array


class FrozenCopies:
    """Copies of frozen inputs that GE cannot read where they lie: strided ones, and those on the host.

    GE is promised that a frozen input stays at its address, so a copy is made once and filled again before every run:
    nothing else tells whether a value has changed, because ``parameter.data`` is written without trace.

    Args:
        frozen: Positions of the frozen inputs.
    """

    def __init__(self, frozen: Iterable[int]) -> None:
        self._frozen = frozenset(frozen)
        self._copies: dict[int, Any] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._frozen

    def of(self, rule: Any, value: Any) -> Any:
        """A dense tensor on the device with the value of a tensor, for this input always the same one.

        Args:
            rule: The input's rule, with its position and name.
            value: A torch tensor; one of another size than before gets memory of its own.
        """
        module, copy = torch(), self._copies.get(rule.index)
        with module.inference_mode(False), module.no_grad():
            if copy is None or copy.shape != value.shape:
                self._copies[rule.index] = copy = module.empty(value.shape, dtype=value.dtype, device="npu")
                logger.info(
                    "frozen input %s (%s) is copied before each run: it is strided or on the host; "
                    "make it contiguous on the device to save that",
                    rule.index,
                    rule.name,
                )
            copy.copy_(value)
        return copy


# -- memory for the graph engine, from torch's allocator --------------------------------------------------------------

_blocks: Final[dict[int, Any]] = {}


def _take(_: int | None, stream: int | None, size: int) -> int | None:
    module = torch()
    try:
        if stream and stream != current_stream():
            with module.npu.stream(module.npu.ExternalStream(stream)):
                made = module.empty(max(size, 1), dtype=module.uint8, device="npu")
        else:
            made = module.empty(max(size, 1), dtype=module.uint8, device="npu")
    except RuntimeError:  # out of memory: the graph engine, which asked, reports it
        return None
    address = int(made.data_ptr())
    _blocks[address] = made
    return address


def _give(_: int | None, __: int | None, address: int | None) -> None:
    _blocks.pop(address or 0, None)


@functools.cache
def _functions() -> tuple[Any, Any]:
    return library.MALLOC(_take), library.FREE(_give)


def memory_functions() -> tuple[Any, Any] | None:
    """Functions that give the graph engine memory of torch's, None where there is no torch_npu."""
    return _functions() if "torch_npu" in sys.modules and torch() is not None else None


def claim(address: int, size: int, dtype: DataType, shape: tuple[int, ...]) -> Any:
    """The tensor at an address that the graph engine got from torch; None if it did not."""
    block = _blocks.get(address)
    if block is None:
        return None
    return block[:size].view(torch_type(dtype)).view(shape)
