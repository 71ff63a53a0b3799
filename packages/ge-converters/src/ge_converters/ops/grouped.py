"""Products of mixtures of experts, one a group of rows, and the histogram that counts the groups."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, I32, Support
from ge_converters.emit.compute_types import carrier
from ge_converters.emit.products import product
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

# torch 2.6 lacks it; a name waits for the operator.
Number: TypeAlias = "int | float"
_ROWS, _INNER, _ONE_OUTPUT = 0, 2, 3
_FLOATS: Final = frozenset({DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_BF16})


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor, group_type: int) -> Tensor:
    """One product a group; ``ends`` are the running ends of the groups along rows or along the inner axis."""
    if x.dtype not in _FLOATS or x.dtype != weight.dtype:
        raise Refusal(
            f"GE operator GroupedMatmul takes float32, float16 or bfloat16 on both sides, got {x.dtype.name} and "
            f"{weight.dtype.name}; cast them to one of these"
        )
    (result,) = ge.GroupedMatmul(
        [x],
        [weight],
        [],
        [],
        [],
        [],
        [],
        cast(ends, DataType.DT_INT64),
        split_item=_ONE_OUTPUT,
        group_type=group_type,
        size_of_y=1,
    )
    return result


@register_fx_node_ge_converter(
    "transformers.grouped_mm_fallback.default", source="transformers 5: grouped_mm_fallback; GE GroupedMatmul"
)
def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: input [rows, k], sorted by group; weight [groups, k, n]; offs [groups], running ends -> [rows, n].
    Dtypes: float32, float16, bfloat16.
    Emits:  GroupedMatmul.
    """
    return grouped_product(input, weight, offs, _ROWS)


@register_fx_node_ge_converter(
    "transformers.grouped_mm_fallback_backward.default",
    source="transformers 5: grouped_mm_fallback_backward; GE GroupedMatmul",
)
def grouped_mm_fallback_backward(
    input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor, *, meta_outputs: list[TensorSpec]
) -> tuple[Tensor, Tensor]:
    """Shapes: gradients of input [rows, k] and weight [groups, k, n].
    Dtypes: float32, float16, bfloat16.
    Emits:  Transpose and GroupedMatmul for each, grouped by rows and by the inner axis.
    """
    along_input = grouped_product(grad_output, ge.Transpose(weight, [0, 2, 1]), offs, _ROWS)
    along_weight = grouped_product(ge.Transpose(input, [1, 0]), grad_output, offs, _INNER)
    return along_input, along_weight


@declare_supported(
    [
        Support(BF16(8, 16), BF16(3, 16, 8), I32(value=[2, 2, 8])).within(1.6e-2, 1e-2),
        Support(BF16(16, 8), BF16(8, 16), I32(value=[2, 5, 8])).within(1.6e-2, 1e-2),
        Support(BF16(3, 8, 16), BF16(3, 16, 8)),
    ]
)
@register_fx_node_ge_converter(aten._grouped_mm.default, source="native_functions.yaml: _grouped_mm; GE GroupedMatmul")
def _grouped_mm(
    self: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: Any = None,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Shapes: self [rows, k] by mat2 [groups, k, n] -> [rows, n]; self [m, k] by mat2 [k, n] -> [groups, m, n];
            without offs [groups, m, k] by [groups, k, n].
    Dtypes: float32, float16, bfloat16.
    Emits:  GroupedMatmul, or BatchMatMulV2 without offs.
    Errors: refused with bias, which torch does not serve either, and for groups of columns of mat2.
    """
    if bias is not None:
        raise Refusal("bias is not None: torch defines no grouped product with bias yet; add it afterwards")
    if offs is None:
        return cast(product(self, mat2, rank=3), meta_outputs.dtype)
    if self.rank == 3:
        raise Refusal("self has rank 3 and mat2 rank 2: GroupedMatmul does not group columns; transpose both operands")
    kind = _ROWS if mat2.rank == 3 else _INNER
    return cast(grouped_product(self, mat2, offs, kind), meta_outputs.dtype)


@declare_supported(
    [
        Support(F32(4, 5), 4, 0, 3),
        Support(F32(20)),
        Support(F32(20), 7, -1.5, 1),
        *(Support(m(value=[0.5, 1.5, 1.5, 2.5]), 3, 0, 3) for m in (F16, BF16)),
        Support(F32(value=[0.0, 1.0, 1.0, 2.0, 3.0, 3.0]), 4, 0, 3),
    ]
)
@register_fx_node_ge_converter(aten.histc.default, source="native_functions.yaml: histc; GE Histogram")
def histc(self: Tensor, bins: int = 100, min: Number = 0, max: Number = 0, *, meta_outputs: TensorSpec) -> Tensor:
    """Shapes: any -> [bins].
    Dtypes: float32, float16; bfloat16 through float32.
    Emits:  Histogram; equal bounds mean the range of the data.
    """
    x = cast(self, carrier("Histogram", self.dtype))
    return cast(ge.Histogram(x, bins=bins, min=float(min), max=float(max)), meta_outputs.dtype)
