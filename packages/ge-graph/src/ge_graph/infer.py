"""Element types of results: one rule per port, found once per operator.

Rules, in the order in which they are tried:

1. a row of ``_SPECIAL`` (the operator's definition says something that no signature shows),
2. the type variable of the port, or the promoted type of variables,
3. a port that knows one type only,
4. an input of the same name (updated in place),
5. an attribute that names a type (``dst_type``, ``dtype``, …), unless it says "undefined",
6. the first input with the same set of types, required inputs first,
7. the first input whose type the port knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import BY_SHORT, DataType, as_dtype, from_numpy
from ge_graph.errors import GraphError
from ge_graph.ir import Literal
from ge_graph.schema import OpSchema, PortSchema

Fed: TypeAlias = "DataType | None | tuple[DataType, ...]"
Attrs: TypeAlias = "Mapping[str, Attr]"
Result: TypeAlias = "DataType | tuple[DataType, ...] | None"
Rule: TypeAlias = "Callable[[Sequence[Fed], Attrs], Result]"

# Attributes that name the type of a result, most specific first.
_TYPE_ATTRS: Final = (
    "dst_type",
    "dst_dtype",
    "dtype",
    "out_type",
    "out_dtype",
    "output_type",
    "output_dtype",
    "y_dtype",
    "element_dtype",
    "elem_type",
    "shape_type",
    "value_dtype",
    "key_dtype",
    "T",
    "Tout",
    "Tvalues",
    "type",
)
_TYPE_LIST_ATTRS: Final = ("output_types", "component_types", "OUT_TYPE", "dtypes")

# op port rule. Rules: `=x` type of input x; `acc x` int32 if x is an integer of at most 8 bits, else type of x;
# `real x` / `complex x` the real or complex partner; `attr a` type that attribute a names; `attr a x` the same, type of
# input x (or the type x) if a is absent or says undefined; `i8? s x` int8 if input s is fed, else type of x;
# a short type name; `fn name`.
_SPECIAL_ROWS: Final = """
MatMul y =x1
MatMulV2 y acc x1
BatchMatMulV2 y acc x1
FullyConnection y acc x
Conv2D y acc x
Conv3D y acc x
DepthwiseConv2D y acc x
Deconvolution y acc x
Correlation y acc x
Conv2DTranspose y acc x
Conv2DTransposeD y acc x
Conv3DTranspose y acc x
Conv3DTransposeD y acc x
Conv2DBackpropInput y acc out_backprop
Conv2DBackpropInputD y acc out_backprop
Conv3DBackpropInput y =out_backprop
Conv2DBackpropFilter y f32
LayerNormV4 mean f32
LayerNormV4 rstd f32
BatchNormGradV3 dweight =weight
BatchNormGradV3 dbias =weight
LayerNormGradV3 pd_gamma =gamma
LayerNormGradV3 pd_beta =gamma
Conv3DBackpropFilter y f32
Conv3DBackpropInputD y =out_backprop
DepthwiseConv2DBackpropInput input_grad =out_backprop
DepthwiseConv2DBackpropInputD input_grad =out_backprop
Real output real input
Imag output real input
Angle output real input
AngleV2 y fn angle
ComplexAbs y real x
Complex out complex real
Log y fn log
HardSigmoid output_y fn float_or_f32
Trace y fn trace
Abs y fn absolute
GeluQuant y attr dst_type i8
DequantSwigluQuant y attr dst_type i8
DynamicQuantV2 y attr dst_type i8
DynamicQuantV2 offset f32
GroupNormSilu mean =x
SoftmaxV2 y fn softmax
MaxPool3DWithArgmaxV2 y =x
MaxPool3DWithArgmaxV2 argmax attr dtype
MaxPool3DWithArgmax argmax i32
MaxPoolWithArgmax argmax attr Targmax
MaxPoolWithArgmaxV1 y =x
MaxPoolWithArgmaxV1 argmax attr dtype
MaxPoolGradWithArgmaxV1 y =x
AdaptiveMaxPool2d argmax i32
AdaptiveMaxPool3d indices attr indices_dtype
MultilabelMarginLoss is_target i32
NonZeroWithValue value =x
ReadVariableOp y =x
ListDiff out =x
ListDiff idx attr out_idx
Unique y =x
Unique idx attr out_idx
UniqueExt2 y =x
UniqueExt2 idx attr out_idx
UniqueWithCounts y =x
UniqueWithCounts idx attr out_idx
UniqueWithCounts count attr out_idx
UniqueWithCountsExt2 y =x
UniqueWithCountsExt2 idx attr out_idx
UniqueWithCountsExt2 count attr out_idx
UniqueWithCountsAndSorting indices i64
UniqueWithCountsAndSorting counts i64
UniqueConsecutive idx attr out_idx i64
UniqueConsecutive count attr out_idx i64
TopKV2 indices attr indices_dtype i32
Histogram y fn histogram
Sort y2 attr y2_dtype i32
Cummax y =x
Cummax indices i64
Cummin y =x
Cummin indices i64
Lu lu =input
Lu p attr output_idx_type
LookupTableExport keys attr Tkeys
RaggedGather output_nested_splits attr Tsplits
RaggedGather output_dense_values =params_dense_values
RaggedRange rt_nested_splits attr Tsplits
RaggedRange rt_dense_values =starts
RaggedTensorFromVariant output_nested_splits attr Tsplits
RaggedTensorFromVariant output_dense_values attr Tvalues
ReluV2 mask u8
GatherD y =x
ForeachDivScalar y =x
ForeachDivScalarList y =x
WeightQuantBatchMatmulV2 y i8? quant_scale x
TransposeBatchMatMul y i8? scale x1
FusedInferAttentionScore attention_out fn fused_attention
IncreFlashAttention attention_out fn attention
PromptFlashAttention attention_out fn attention
FlashAttentionScore softmax_out fn flash_attention
FlashAttentionScore attention_out fn flash_attention
FlashAttentionScoreGrad dq fn flash_attention
FlashAttentionScoreGrad dk fn flash_attention
FlashAttentionScoreGrad dv fn flash_attention
MatmulAllReduce y fn all_reduce
GroupedMatmul y fn grouped_matmul
AlltoAllMatmul y attr y_dtype x1
AlltoAllMatmul all2all_out =x1
MatmulAlltoAll y attr y_dtype x1
FFN y fn ffn
Quantize y attr dtype
ConfusionMatrix y attr dtype labels
StatelessBernoulliV2 y attr dtype x
ReduceMeanWithCast y attr dtype x
FlatQuant out fn flat_quant
FlatQuant quant_scale fn flat_quant_scale
MoeInitRoutingV3 expanded_x fn init_routing
MoeInitRoutingV3 expanded_scale f32
GroupedMatmulSwigluQuantV2 y fn swiglu_y
GroupedMatmulSwigluQuantV2 y_scale fn swiglu_scale
DequantRopeQuantKvcache q =cos
DequantRopeQuantKvcache k =cos
DequantRopeQuantKvcache v =cos
EmbeddingBag y =weight
EmbeddingBag offset2bag =indices
EmbeddingBag bag_size =indices
EmbeddingBag max_indices =indices
AddRmsNormDynamicMxQuant y attr dst_type
AllGatherMatmulV2 y fn float_or_y_dtype
AllGatherMatmulV2 gather_out =x1
AlltoAllvQuantGroupedMatMul gmm_y attr y_dtype
AlltoAllvQuantGroupedMatMul mm_y attr mm_dtype
AlltoAllvQuantGroupedMatMul permute_out =gmm_x
AttentionWorkerCombine y fn token
ChunkGatedDeltaRule final_state =initial_state
BatchNormGradV3 dx =dy
LayerNormGrad pd_x =x
LayerNormGrad pd_gamma =gamma
LayerNormGrad pd_beta =gamma
LayerNormGradV3 pd_x =x
GroupNormGrad dgamma =dy
GroupNormGrad dbeta =dy
PReluGrad dx =features
PReluGrad da =weights
QkvRmsNormRopeCache q_out_before_quant =qkv
QkvRmsNormRopeCache k_out_before_quant =qkv
QkvRmsNormRopeCache v_out_before_quant =qkv
KvRmsNormRopeCache k_rope =kv
KvRmsNormRopeCache c_kv =kv
MlaProlog query =weight_uk
MlaProlog query_rope =weight_uk
MlaPrologV2 query fn mla_query
MlaPrologV2 query_rope =weight_uk
MlaPrologV3 query fn mla_query
MlaPrologV3 query_rope =weight_uk
FusedInferAttentionScore softmax_lse f32
MoeDistributeCombine x =expand_x
MoeDistributeCombineV2 x =expand_x
MoeDistributeDispatchV2 dynamic_scales f32
MoeDistributeDispatch expand_x fn dispatch
MoeDistributeDispatchV2 expand_x fn dispatch
MatmulReduceScatterV2 y fn float_or_y_dtype
QuantMax y attr dst_type
RotateQuant y attr y_dtype
RotateQuant scale fn rotate_scale
FfnWorkerBatching y fn token
FfnWorkerBatching dynamic_scale f32
MoeReRouting permute_per_token_scales fn scales_or_f32
MoeReRouting expert_token_num =expert_token_num_per_rank
SearchSorted out attr dtype
Const y fn value
Constant y fn value
"""


def _special() -> dict[tuple[str, str], str]:
    rows = (line.split(" ", 2) for line in _SPECIAL_ROWS.strip().splitlines())
    return {(op, port): rule for op, port, rule in rows}


_SPECIAL: Final = _special()
_COMPLEX_OF: Final = {
    DataType.DT_FLOAT16: DataType.DT_COMPLEX32,
    DataType.DT_FLOAT: DataType.DT_COMPLEX64,
    DataType.DT_DOUBLE: DataType.DT_COMPLEX128,
}
_REAL_OF: Final = {c: r for r, c in _COMPLEX_OF.items()}
_INDEX: Final = frozenset((DataType.DT_INT32, DataType.DT_INT64))
_NARROW: Final = frozenset((DataType.DT_INT8, DataType.DT_UINT8, DataType.DT_INT4))


def first(fed: Result) -> DataType | None:
    """The type fed to a port; of a dynamic port, that of its first part."""
    if isinstance(fed, tuple):
        return fed[0] if fed else None
    return fed


def promote(dtypes: Sequence[DataType]) -> DataType:
    """The promoted type: complex over floating over integer over bool, then the wider; half and bfloat16: float32."""
    best = dtypes[0]
    for other in dtypes[1:]:
        best = _promote_pair(best, other)
    return best


def _promote_pair(a: DataType, b: DataType) -> DataType:
    if a == b:
        return a
    rank_a, rank_b = _rank(a), _rank(b)
    if rank_a != rank_b:
        high, low = (a, b) if rank_a > rank_b else (b, a)
        if high.is_complex and low.is_float:
            return max((high, _COMPLEX_OF.get(low, DataType.DT_COMPLEX64)), key=lambda d: d.bits)
        return high
    if a.bits != b.bits:
        wide, narrow = (a, b) if a.bits > b.bits else (b, a)
        return wide if not wide.is_integer or _signed(wide) or not _signed(narrow) else _SIGNED_ABOVE[wide.bits]
    if a.is_float:
        return DataType.DT_FLOAT
    return _SIGNED_ABOVE.get(a.bits, DataType.DT_INT64) if a.is_integer else a


def _rank(d: DataType) -> int:
    return 3 if d.is_complex else 2 if d.is_float else 1 if d.is_integer else 0


def _signed(d: DataType) -> bool:
    return not d.name.startswith("DT_U")


_SIGNED_ABOVE: Final = {
    8: DataType.DT_INT16,
    16: DataType.DT_INT32,
    32: DataType.DT_INT64,
    64: DataType.DT_INT64,
}


def _attr_dtype(attrs: Attrs, name: str) -> DataType | None:
    """The type that an attribute names, ``None`` if it says undefined."""
    attr = attrs.get(name)
    if attr is None:
        return None
    value = attr.value
    if attr.kind is Kind.STRING:
        text = value.decode() if isinstance(value, bytes) else value
        return BY_TEXT.get(text.removeprefix("torch."))
    if value in (-1, int(DataType.DT_UNDEFINED)):
        return None
    return as_dtype(value)


BY_TEXT: Final = {
    **{d.torch_name: d for d in DataType if d.torch_name},
    "qint8": DataType.DT_INT8,
    "quint8": DataType.DT_UINT8,
    "qint32": DataType.DT_INT32,
}


class PortRule(NamedTuple):
    """How the type of one output is found.

    Attributes:
        rule: From types fed and attributes to the result.
        reads: Attributes that the rule reads.
        definite: Whether any other result would be wrong, not only unexpected.
    """

    rule: Rule
    reads: tuple[str, ...] = ()
    definite: bool = True


def rules(schema: OpSchema) -> tuple[PortRule, ...]:
    """One rule per output port."""
    return tuple(_rule(schema, port) for port in schema.outputs)


def _rule(schema: OpSchema, port: PortSchema) -> PortRule:
    special = _SPECIAL.get((schema.name, port.name))
    if special is not None:
        return _parse_rule(schema, special)
    if port.typevar in schema.promotions:
        return PortRule(_promotion(schema, schema.promotions[port.typevar]))
    if port.typevar:
        sources = [i for i, p in enumerate(schema.inputs) if p.typevar == port.typevar]
        if sources:
            return PortRule(_list_like(schema, port, sources[0]) or _first_fed(sources))
    if len(port.domain) == 1:
        return PortRule(_fixed(port.dtypes[0]))
    same_name = [i for i, p in enumerate(schema.inputs) if p.name == port.name]
    if same_name:
        return PortRule(_like(same_name[0]))
    named = next((n for n in (*_TYPE_ATTRS, *_TYPE_LIST_ATTRS) if schema.attr(n)), None)
    if named is not None and named in _TYPE_LIST_ATTRS:
        return PortRule(_from_type_list(named), (named,))
    by_domain = _from_inputs(schema, port)
    if named is not None:
        return PortRule(_from_attr(named, by_domain), (named,))
    return PortRule(by_domain, definite=False)


def _parse_rule(schema: OpSchema, text: str) -> PortRule:
    index = {p.name: i for i, p in enumerate(schema.inputs)}
    head, *rest = text.split(" ")
    if head.startswith("="):
        return PortRule(_like(index[head[1:]]))
    if head == "acc":
        return PortRule(_accumulated(index[rest[0]]))
    if head in ("real", "complex"):
        return PortRule(_mapped(index[rest[0]], _REAL_OF if head == "real" else _COMPLEX_OF))
    if head == "attr":
        fallback = _fixed(None)
        if len(rest) > 1:
            fallback = _like(index[rest[1]]) if rest[1] in index else _fixed(BY_SHORT[rest[1]])
        return PortRule(_from_attr(rest[0], fallback), (rest[0],))
    if head == "i8?":
        return PortRule(_int8_if_fed(index[rest[0]], index[rest[1]]))
    if head == "fn":
        return _FUNCTIONS[rest[0]](index)
    return PortRule(_fixed(BY_SHORT[head]))


def _fixed(dtype: DataType | None) -> Rule:
    return lambda fed, attrs: dtype


def _like(index: int) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return fed[index]

    return rule


def _first_fed(indices: Sequence[int]) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return next((d for d in (first(fed[i]) for i in indices) if d is not None), None)

    return rule


def _accumulated(index: int) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtype = first(fed[index])
        return DataType.DT_INT32 if dtype in _NARROW else dtype

    return rule


def _mapped(index: int, table: Mapping[DataType, DataType]) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtype = first(fed[index])
        return None if dtype is None else table.get(dtype, dtype)

    return rule


def _int8_if_fed(switch: int, index: int) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return first(fed[index]) if fed[switch] is None else DataType.DT_INT8

    return rule


def _from_attr(name: str, fallback: Rule) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtype = _attr_dtype(attrs, name)
        return fallback(fed, attrs) if dtype is None else dtype

    return rule


def _from_type_list(name: str) -> Rule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return tuple(attrs[name].value) if name in attrs else None

    return rule


def _promotion(schema: OpSchema, variables: Sequence[str]) -> Rule:
    indices = [i for i, p in enumerate(schema.inputs) if p.typevar in variables]

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtypes = [d for d in (first(fed[i]) for i in indices) if d is not None]
        return promote(dtypes) if dtypes else None

    return rule


def _list_like(schema: OpSchema, port: PortSchema, index: int) -> Rule | None:
    """A list in, a list of the same length and types out."""
    both = port.kind == "dynamic" and schema.inputs[index].kind == "dynamic"
    return _like(index) if both else None


def _from_inputs(schema: OpSchema, port: PortSchema) -> Rule:
    order = sorted(range(len(schema.inputs)), key=lambda i: schema.inputs[i].kind == "optional")
    same = [i for i in order if schema.inputs[i].domain == port.domain]
    if same:
        return _list_like(schema, port, same[0]) or _first_fed(same)
    if not port.domain <= _INDEX:  # an axis or a shape says nothing about data
        order = [i for i in order if not schema.inputs[i].domain <= _INDEX]

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return next((d for d in (first(fed[i]) for i in order) if d in port.domain), None)

    return rule


_Special: TypeAlias = "Callable[[Mapping[str, int]], PortRule]"


def _switch(port: str, table: Mapping[DataType, DataType], otherwise: DataType | None = None) -> _Special:
    """Type of ``port`` looked up in ``table``; types that are not listed stay, or become ``otherwise``."""

    def build(index: Mapping[str, int]) -> PortRule:
        def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
            dtype = first(fed[index[port]])
            return None if dtype is None else table.get(dtype, dtype if otherwise is None else otherwise)

        return PortRule(rule)

    return build


_INTEGERS: Final = [d for d in DataType if d.is_integer]
_INT_TO_F32: Final = {d: DataType.DT_FLOAT for d in (*_INTEGERS, DataType.DT_BOOL)}
_ANGLE: Final = {**_INT_TO_F32, DataType.DT_COMPLEX64: DataType.DT_FLOAT}
_TRACE: Final = {d: DataType.DT_INT64 if _signed(d) else DataType.DT_UINT64 for d in _INTEGERS}


def _softmax(index: Mapping[str, int]) -> PortRule:
    """Only float16 becomes float32; bfloat16 stays whatever the attribute says."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        half_to_float, dtype = attrs.get("half_to_float"), first(fed[0])
        wide = half_to_float is not None and half_to_float.value and dtype is DataType.DT_FLOAT16
        return DataType.DT_FLOAT if wide else dtype

    return PortRule(rule, ("half_to_float",))


def _attention(index: Mapping[str, int]) -> PortRule:
    """int8 where the result is quantised again; a quantised query alone gives float16."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        if fed[index["quant_scale2"]] is not None:
            return DataType.DT_INT8
        query = first(fed[index["query"]])
        return DataType.DT_FLOAT16 if query is DataType.DT_INT8 else query

    return PortRule(rule)


# Numbers of torch's own enumeration, which this operator's out_dtype counts in.
_TORCH_NUMBERS: Final = {
    1: DataType.DT_INT8,
    5: DataType.DT_FLOAT16,
    6: DataType.DT_FLOAT,
    15: DataType.DT_BF16,
    23: DataType.DT_FLOAT8_E5M2,
    24: DataType.DT_FLOAT8_E4M3FN,
}
_QUANTISED: Final = frozenset(
    (DataType.DT_INT8, DataType.DT_FLOAT8_E5M2, DataType.DT_FLOAT8_E4M3FN, DataType.DT_HIFLOAT8)
)


def _fused_attention(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        if fed[index["quant_scale2"]] is not None:
            named = attrs.get("out_dtype")
            return DataType.DT_INT8 if named is None else _TORCH_NUMBERS.get(named.value, DataType.DT_INT8)
        query = first(fed[index["query"]])
        if query not in _QUANTISED:
            return query
        rope = first(fed[index["query_rope"]]) if "query_rope" in index else None
        return DataType.DT_FLOAT16 if rope is None else rope

    return PortRule(rule, ("out_dtype",))


def _flash_attention(index: Mapping[str, int]) -> PortRule:
    """Of 8-bit floats the attribute says which half type comes out; there is no other."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        query = first(fed[index["query"]])
        if query not in _QUANTISED:
            return query
        named = attrs.get("out_dtype")
        return {0: DataType.DT_FLOAT16, 1: DataType.DT_BF16}.get(0 if named is None else named.value)

    return PortRule(rule, ("out_dtype",))


def _all_reduce(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        named = _attr_dtype(attrs, "y_dtype")
        if named is not None:
            return named
        left = first(fed[index["x1"]])
        if left is not DataType.DT_INT8:
            return left
        scale = first(fed[index["dequant_scale"]])
        return DataType.DT_BF16 if scale is DataType.DT_BF16 else DataType.DT_FLOAT16

    return PortRule(rule, ("y_dtype",))


def _numbered(port: str, attr: str, table: Mapping[int, DataType]) -> _Special:
    """Floating input: its type; quantised input: ``table[attr]``, for attributes with a numbering of their own."""

    def build(index: Mapping[str, int]) -> PortRule:
        def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
            dtype = first(fed[index[port]])
            if dtype is None or (dtype.is_float and dtype.bits > 8):
                return dtype
            number = attrs.get(attr)
            return None if number is None else table.get(number.value)

        return PortRule(rule, (attr,))

    return build


def _grouped_matmul(index: Mapping[str, int]) -> PortRule:
    """int8 times int8 or int4: what ``dtype`` says in its own numbering; every other pair: type of x."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        x, weight = first(fed[index["x"]]), first(fed[index["weight"]])
        if x is not DataType.DT_INT8 or weight not in (DataType.DT_INT8, DataType.DT_INT4):
            return x
        number = attrs.get("dtype")
        return None if number is None else _GROUPED.get(number.value)

    return PortRule(rule, ("dtype",))


def _flat_quant(index: Mapping[str, int]) -> PortRule:
    """The default, INT32, stands for eight packed INT4."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtype = _attr_dtype(attrs, "dst_dtype")
        return dtype if dtype is DataType.DT_FLOAT4_E2M1 else DataType.DT_INT4

    return PortRule(rule, ("dst_dtype",))


def _swiglu_y(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtype = _attr_dtype(attrs, "quant_dtype")
        return dtype if dtype is not None and dtype.bits == 8 else first(fed[index["x"]])

    return PortRule(rule, ("quant_dtype",))


def _mla_query(index: Mapping[str, int]) -> PortRule:
    """The query is quantised only if tokens and cache are."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        full = fed[index["token_x"]] is DataType.DT_INT8 and fed[index["quant_scale_ckv"]] is not None
        return DataType.DT_INT8 if full else fed[index["weight_uk"]]

    return PortRule(rule, definite=False)


def _scale_of(attr: str, e8m0_for: Sequence[DataType]) -> _Special:
    def build(index: Mapping[str, int]) -> PortRule:
        def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
            dtype = _attr_dtype(attrs, attr)
            return DataType.DT_FLOAT8_E8M0 if dtype in e8m0_for else DataType.DT_FLOAT

        return PortRule(rule, (attr,))

    return build


def _like_first_scale(index: Mapping[str, int]) -> PortRule:
    return PortRule(_like(index["x_scale"]))


def _init_routing(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        mode = attrs["quant_mode"].value if "quant_mode" in attrs else -1
        return _QUANT_MODES.get(mode, first(fed[0]))

    return PortRule(rule, ("quant_mode",))


def _float_or_y_dtype(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        dtype = first(fed[index["x1"]])
        return dtype if dtype is not None and dtype.is_float and dtype.bits > 8 else _attr_dtype(attrs, "y_dtype")

    return PortRule(rule, ("y_dtype",))


def _dispatch(index: Mapping[str, int]) -> PortRule:
    """Tokens are int8 if a mode asks for it or scales are fed; the attribute y_dtype of some releases comes first."""

    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        named = _attr_dtype(attrs, "y_dtype")
        if named is not None:
            return named
        mode = attrs["quant_mode"].value if "quant_mode" in attrs else 0
        return DataType.DT_INT8 if mode or fed[index["scales"]] is not None else first(fed[0])

    return PortRule(rule, ("quant_mode", "y_dtype"))


_QUANT_MODES: Final = {
    0: DataType.DT_INT8,
    1: DataType.DT_INT8,
    2: DataType.DT_FLOAT8_E5M2,
    3: DataType.DT_FLOAT8_E4M3FN,
}


_TOKEN_TYPES: Final = {0: DataType.DT_FLOAT16, 1: DataType.DT_BF16, 2: DataType.DT_INT8}


def _token(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return _TOKEN_TYPES.get(attrs["token_dtype"].value if "token_dtype" in attrs else 0)

    return PortRule(rule, ("token_dtype",))


def _scales_or_f32(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return first(fed[index["per_token_scales"]]) or DataType.DT_FLOAT

    return PortRule(rule)


def value_dtype(value: Any) -> DataType:
    """The element type of a constant: a numpy array or a ``Literal``."""
    return value.dtype if isinstance(value, Literal) else from_numpy(value.dtype)


def _value(index: Mapping[str, int]) -> PortRule:
    def rule(fed: Sequence[Fed], attrs: Attrs) -> Result:
        return value_dtype(attrs["value"].value) if "value" in attrs else None

    return PortRule(rule)


_GROUPED: Final = {-1: DataType.DT_INT8, 0: DataType.DT_FLOAT16, 1: DataType.DT_BF16, 2: DataType.DT_INT32}
_FFN: Final = {-1: DataType.DT_FLOAT16, 0: DataType.DT_FLOAT16, 1: DataType.DT_BF16}

_FUNCTIONS: Final[Mapping[str, _Special]] = {
    "angle": _switch("x", _ANGLE),
    "log": _switch("x", _INT_TO_F32),
    "float_or_f32": _switch("input_x", _INT_TO_F32),
    "trace": _switch("x", _TRACE),
    "histogram": _switch("x", {DataType.DT_FLOAT16: DataType.DT_FLOAT}),
    "softmax": _softmax,
    "absolute": _switch("x", {DataType.DT_COMPLEX64: DataType.DT_FLOAT, DataType.DT_COMPLEX32: DataType.DT_FLOAT16}),
    "attention": _attention,
    "fused_attention": _fused_attention,
    "flash_attention": _flash_attention,
    "all_reduce": _all_reduce,
    "grouped_matmul": _grouped_matmul,
    "ffn": _numbered("x", "output_dtype", _FFN),
    "flat_quant": _flat_quant,
    "swiglu_y": _swiglu_y,
    "mla_query": _mla_query,
    "flat_quant_scale": _scale_of("dst_dtype", (DataType.DT_FLOAT4_E2M1,)),
    "swiglu_scale": _like_first_scale,
    "init_routing": _init_routing,
    "token": _token,
    "dispatch": _dispatch,
    "float_or_y_dtype": _float_or_y_dtype,
    "rotate_scale": _scale_of("y_dtype", (DataType.DT_FLOAT4_E2M1, DataType.DT_FLOAT8_E4M3FN, DataType.DT_FLOAT8_E5M2)),
    "scales_or_f32": _scales_or_f32,
    "value": _value,
}


def check(schema: OpSchema, port: PortSchema, dtype: DataType | None) -> DataType:
    """The inferred type if the port knows it.

    Raises:
        GraphError: GE3014 if it cannot be told, or lies outside the port's types.
    """
    if dtype is not None and dtype in port.domain:
        return dtype
    known = ", ".join(d.name for d in port.dtypes)
    if dtype is None:
        raise GraphError(
            "GE3014",
            f"the type of output '{port.name}' of {schema.name} does not follow from inputs and attributes",
            next=f"build it with ge_graph.builder.add_node(..., output_dtypes=...); the port knows {known}",
        )
    raise GraphError(
        "GE3014",
        f"output '{port.name}' of {schema.name} would be {dtype.name}; the operator knows {known}",
        next="cast the inputs, or choose another result type",
    )
