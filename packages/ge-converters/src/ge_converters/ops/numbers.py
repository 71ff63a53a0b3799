"""Composite ops that reach us undecomposed: torch writes them when it turns symbolic numbers into 0-d tensors."""

from __future__ import annotations

from typing import Any

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, I64, Support
from ge_converters.registry import REGISTRY, declare_supported, register_fx_node_ge_converter
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge


@declare_supported(
    [
        Support(F64(), F64(low=1.0, high=2.0)),
        Support(F32(2, 3), F32(3, low=1.0, high=2.0)),
        Support(I64(2), I64(2, low=1)),
    ]
)
@register_fx_node_ge_converter(
    aten.true_divide.Tensor, source="native_functions.yaml: true_divide.Tensor, an alias of div.Tensor"
)
def true_divide(self: Tensor, other: Tensor, *, meta_outputs: TensorSpec) -> Any:
    """As aten.div.Tensor."""
    divide = REGISTRY.find(aten.div.Tensor)
    if divide is None:
        raise Refusal("aten.div.Tensor, which this is an alias of, has no converter")
    return divide.fn(self, other, meta_outputs=meta_outputs)


@declare_supported([Support(F64()), Support(F32(2, 3)), Support(F16(2)), Support(BF16(2)), Support(I64(3))])
@register_fx_node_ge_converter(aten.square.default, source="native_functions.yaml: square; GE Square")
def square(self: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """self * self.

    Dtypes: floats and integers; bool gives int64, as pow does.
    """
    result: Tensor = ge.Square(cast(self, meta_outputs.dtype))
    return result
