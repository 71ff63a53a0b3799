"""Quantisation by numbers, as ``convert_pt2e`` leaves it, where it is one GE operator."""

from __future__ import annotations

from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.registry import register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D: Final = DataType


@register_fx_node_ge_converter(
    "quantized_decomposed.quantize_per_tensor.default",
    source="torch.ao.quantization.fx._decomposed: quantize_per_tensor; GE AscendQuantV2",
)
def quantize_per_tensor(
    input: Tensor,
    scale: float,
    zero_point: int,
    quant_min: int,
    quant_max: int,
    dtype: Any,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """input / scale, rounded to even and cut off at the ends of int8.

    Shapes: any of rank 1 to 8 -> the same.
    Dtypes: float32, float16, bfloat16 -> int8.
    Emits:  AscendQuantV2 in float32, in which eager multiplies.
    Errors: refused for other ends and for a zero point, which AscendQuantV2 adds before it rounds and eager after; the
        decompositions take these calls before.
    """
    if zero_point or (quant_min, quant_max, meta_outputs.dtype) != (-128, 127, _D.DT_INT8):
        raise Refusal(
            f"zero_point {zero_point} and the ends {quant_min} and {quant_max} are not those of AscendQuantV2"
        )
    factor = ge.Const([1.0 / scale], dtype=_D.DT_FLOAT)
    made: Tensor = ge.AscendQuantV2(
        cast(input, _D.DT_FLOAT), factor, None, round_mode="round", dst_type=_D.DT_INT8, axis=-1
    )
    return made
