"""torch_npu's ops of serving code that need more than one GE operator, or look at their operands first."""

from __future__ import annotations

from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_converters.ops.npu.limits import group_size_fits
from ge_converters.ops.npu.mapping import as_declared, emit, given, npu_op, refuse_others
from ge_graph import DataType, Tensor, TensorSpec, current_graph
from ge_graph import ops as ge

_D = DataType
_SHIFTS: Final = list(range(0, 32, 4))
_PREFETCH: Final = 6
_WEIGHT_ONLY: Final = "npu.npu_weight_quant_batchmatmul.default"


@npu_op("npu_convert_weight_to_int4pack.default", "BitwiseAnd, LeftShift, ReduceSum")
def npu_convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0, *, meta_outputs: TensorSpec) -> Any:
    """Eight numbers of -8 to 7 in one int32, the first in its lowest bits.

    Shapes: [k, 8 n] -> [k, n].
    Dtypes: int32. ``inner_k_tiles`` is reserved.
    Emits:  Reshape, BitwiseAnd, LeftShift, ReduceSum: GE has int4 as a type and no operator that makes packs of it.
    """
    if weight.dtype is not _D.DT_INT32:
        raise Refusal(f"argument 'weight' is {weight.dtype.name}; eight int4 are packed out of int32")
    if inner_k_tiles:
        raise Refusal(f"argument 'inner_k_tiles' is {inner_k_tiles}; it is reserved, leave it 0")
    parts = ge.Reshape(weight, [*([0] * (weight.rank - 1)), -1, 8])
    low = ge.BitwiseAnd(parts, ge.Const(15, dtype=_D.DT_INT32))
    shifted = ge.LeftShift(low, ge.Const(_SHIFTS, dtype=_D.DT_INT32))
    return cast(ge.ReduceSum(shifted, [-1], keep_dims=False), meta_outputs.dtype)


@npu_op("npu_weight_quant_batchmatmul.default", "WeightQuantBatchMatmulV2")
def npu_weight_quant_batchmatmul(*args: Any, meta_outputs: TensorSpec, **keywords: Any) -> Any:
    """``x @ ((weight + antiquant_offset) * antiquant_scale) + bias``.

    Shapes: x [m, k], weight [k, n], or [k, n / 8] of packs of eight int4.
    Dtypes: x float16, bfloat16; weight int8, or int32 for packs.
    Emits:  WeightQuantBatchMatmulV2; Bitcast to int4 before it for packs.
    """
    values = given(_WEIGHT_ONLY, args, keywords)
    ports = "x weight antiquant_scale antiquant_offset quant_scale quant_offset bias antiquant_group_size"
    refuse_others(_WEIGHT_ONLY, values, {*ports.split(), "inner_precise"}, "WeightQuantBatchMatmulV2")
    group_size_fits(values)
    operands = {port: values.get(port) for port in ports.split()}
    weight = values["weight"]
    if weight.dtype is _D.DT_INT32:
        operands["weight"] = ge.Bitcast(weight, type=_D.DT_INT4, keep_dim=True)
    return as_declared(emit("WeightQuantBatchMatmulV2", operands), meta_outputs)


@npu_op("npu_kronecker_quant.default", "FlatQuant")
def npu_kronecker_quant(
    x: Tensor,
    kronecker_p1: Tensor,
    kronecker_p2: Tensor,
    clip_ratio: float | None = None,
    dst_dtype: int | None = None,
    dst_type_max: float | None = None,
    *,
    meta_outputs: Any,
) -> Any:
    """``p1 @ x @ p2``, each slice in int4 by its own scale, eight in an int32.

    Shapes: x [k, m, n], p1 [m, m], p2 [n, n] -> [k, m, n / 8], [k].
    Dtypes: float16, bfloat16 -> int32, float32; other ``dst_dtype`` are refused.
    Emits:  FlatQuant, Bitcast.
    """
    if dst_dtype is not None or dst_type_max:
        raise Refusal(f"dst_dtype is {dst_dtype}, dst_type_max {dst_type_max}; leave both out for packs of int4")
    operands = {"x": x, "kronecker_p1": kronecker_p1, "kronecker_p2": kronecker_p2, "clip_ratio": clip_ratio}
    values, scale = emit("FlatQuant", operands)
    return [ge.Bitcast(values, type=meta_outputs[0].dtype, keep_dim=True), cast(scale, meta_outputs[1].dtype)]


@npu_op("npu_mrope.default", "RopeWithSinCosCache")
def npu_mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Any = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
    meta_outputs: Any,
) -> Any:
    """Shapes: positions [t] or [sections, t], query and key [t, heads head_size] with known width.
    Dtypes: float32, float16, bfloat16.
    Emits:  RopeWithSinCosCache.
    """
    if rotary_mode not in ("half", "interleave") or cache_mode not in (None, "default"):
        raise Refusal(
            f"rotary_mode is {rotary_mode!r}, cache_mode {cache_mode!r}; GE operator RopeWithSinCosCache knows half "
            "and interleave, and the default cache"
        )
    heads = []
    for name, x in (("query", query), ("key", key)):
        width = (x.known_shape or (None,))[-1]
        if not isinstance(width, int):
            raise Refusal(f"the last size of '{name}' is symbolic and GE wants a number of heads; mark it static")
        heads.append(width // head_size)
    operands = {
        "positions": positions,
        "queryIn": query,
        "keyIn": key,
        "cosSinCache": cos_sin_cache,
        "numQHeads": heads[0],
        "numKHeads": heads[1],
        "headSize": head_size,
        "mropeSection": mrope_section,
        "isNeoxStyle": rotary_mode == "half",
    }
    return as_declared(emit("RopeWithSinCosCache", operands), meta_outputs)


@npu_op("npu_top_k_top_p.default", "Sort, ApplyTopKTopPWithSorted")
def npu_top_k_top_p(
    logits: Tensor, p: Tensor | None = None, k: Tensor | None = None, *, meta_outputs: TensorSpec
) -> Any:
    """-inf for scores outside the k largest, then for those outside the most probable ones that make up p.

    Shapes: logits [b, v], p and k [b] -> as logits.
    Dtypes: float32, float16, bfloat16; k int32.
    Emits:  Sort, ApplyTopKTopPWithSorted.
    """
    values, places = ge.Sort(logits, axis=-1, descending=False, stable=True)
    operands = {"sorted_value": values, "sorted_indices": places, "p": p, "k": k}
    return as_declared(emit("ApplyTopKTopPWithSorted", operands), meta_outputs)


@npu_op("npu_prefetch.default", "Cmo")
def npu_prefetch(input: Tensor, dependency: Tensor | None, max_size: int, offset: int = 0, *, meta_outputs: Any) -> Any:
    """Brings memory near; values stay. It runs after ``dependency``.

    Dtypes: those of GE's Cmo.
    Emits:  Cmo.
    """
    node = ge.Cmo(input, max_size=max_size, type=_PREFETCH, offset=offset)
    if dependency is not None:
        node.control.append(dependency.node)
    current_graph().output_control.append(node)
