"""Ops that in torch reinterpret memory; on values they are reads in row-major order."""

from __future__ import annotations

from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, BOOL, F16, F32, I32, I64, Support
from ge_converters.emit.shapes import shape_operand
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge


@declare_supported(
    [
        Support(F32(3, 4), [2, 3]),
        Support(F16(3, 4), [12]),
        Support(BF16(3, 4), [4, 3]),
        Support(I64(3, 4), []),
        Support(I32(3, 4), [1, 1, 2]),
        Support(BOOL(3, 4), [3]),
        Support(F32(2, 2), [3, 4]).shape_only(),
        Support(F32(3, 4), [2, 3], memory_format=torch.contiguous_format),
    ]
)
@register_fx_node_ge_converter(
    aten.resize.default, source="native_functions.yaml: resize, functional form of resize_; GE ConcatV2, Slice"
)
def resize(self: Tensor, size: list[Any], *, memory_format: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """The first elements in row-major order in a new shape; elements that ``self`` does not have are zero.

    Shapes: any -> ``size``. ``self`` is given in the order of its memory.
    Dtypes: all.
    Errors: a channels-last ``memory_format`` is refused.
    """
    if memory_format not in (None, torch.contiguous_format, torch.preserve_format):
        raise Refusal(f"memory_format={memory_format} orders memory, values have none; leave it out")
    x = cast(self, torch.uint8) if self.dtype is DataType.DT_BOOL else self  # Slice knows no bool
    total: Any = 1
    for s in size:
        both = isinstance(s, int) and isinstance(total, int)
        total = s * total if both else ge.Mul(*dtype_promote(s, total, target_dtype=DataType.DT_INT64))
    more = ge.Fill(shape_operand([total]), ge.Const(0, dtype=x.dtype))
    padded = ge.ConcatV2([ge.Reshape(x, [-1]), more], 0)
    taken = ge.Reshape(ge.Slice(padded, [0], shape_operand([total])), shape_operand(size))
    return cast(taken, self.dtype)
