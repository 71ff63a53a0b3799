"""Tensors on memory that somebody else has allocated: key-value caches of split prefill and decode deployments."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from ge_graph.errors import ConfigError, EngineError
from torchair.names import door

__all__ = ["create_npu_tensors"]

__getattr__ = door(__name__)


def create_npu_tensors(shape: Sequence[int], dtype: torch.dtype, addresses: Sequence[int]) -> list[torch.Tensor]:
    """Device tensors at given addresses, one an address, all of one shape and dtype.

    Args:
        shape: Sizes.
        dtype: Element type.
        addresses: Addresses in device memory; whoever allocated them keeps them alive and frees them.

    Errors: ConfigError GE1011 for other types; EngineError GE4031 where there is no device, or a torch_npu that cannot
    make such tensors.
    """
    if not all(type(s) is int and s >= 0 for s in shape):
        raise _refuse(f"shape must be a list of sizes, got {shape!r}")
    if not isinstance(dtype, torch.dtype):
        raise _refuse(f"dtype must be a torch.dtype, got {type(dtype).__name__}")
    if not isinstance(addresses, (list, tuple)) or not all(type(a) is int and a > 0 for a in addresses):
        raise _refuse(f"addresses must be a list of addresses, got {addresses!r}")
    npu: Any = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        raise EngineError(
            "GE4031",
            "create_npu_tensors wraps device memory, and there is no device here",
            next="on a host without an NPU allocate the cache with torch.empty",
        )
    size = math.prod(shape) * dtype.itemsize
    device = torch.device("npu", npu.current_device())
    extension = importlib.import_module("torch_npu")._C
    make = getattr(extension, "_construct_NPU_Tensor_From_Storage_And_Metadata", None)
    storage = getattr(extension, "_construct_storage_from_data_pointer", None)
    if make is None or storage is None:
        raise EngineError(
            "GE4031", "this torch_npu has no function that wraps device memory", next="install torch_npu 2.6 or newer"
        )
    meta = {
        "size": torch.Size(shape),
        "stride": torch.empty(tuple(shape), device="meta").stride(),
        "dtype": dtype,
        "storage_offset": 0,
        "device": device,
        "nbytes": size,
    }
    return [make(meta, storage(address, device, size)) for address in addresses]


def _refuse(what: str) -> ConfigError:
    return ConfigError(
        "GE1011", f"create_npu_tensors: {what}", next="create_npu_tensors([2, 16], torch.float16, [ptr])"
    )
