"""Element types of results, against what the operators' definitions say."""

from __future__ import annotations

import pytest

from ge_graph import DataType, Graph, GraphError, attrs, building, infer, schema
from ge_graph import ops as ge

D = DataType


@pytest.fixture
def feed():
    """Inputs of any type in a graph that is being built."""
    graph = Graph()
    count = iter(range(1000))
    with building(graph):
        yield lambda dtype: ge.Data(index=next(count), dtype=dtype, shape=(4, 4))


def dtypes(found):
    """Types of whatever a call returned."""
    if isinstance(found, (tuple, list)):
        return [dtypes(f) for f in found]
    return found.dtype


UNARY_KEEP = [
    "Abs",
    "Neg",
    "Exp",
    "Sqrt",
    "Rsqrt",
    "Sin",
    "Cos",
    "Tanh",
    "Sigmoid",
    "Floor",
    "Ceil",
    "Relu",
    "Erf",
    "Reciprocal",
    "Square",
    "Identity",
    "TensorMove",
]


@pytest.mark.parametrize("op", UNARY_KEEP)
@pytest.mark.parametrize("dtype", [D.DT_FLOAT, D.DT_FLOAT16, D.DT_BF16])
def test_unary_keeps_the_type(feed, op, dtype):
    assert getattr(ge, op)(feed(dtype)).dtype is dtype


@pytest.mark.parametrize("op", ["Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"])
def test_comparisons_give_bool(feed, op):
    assert getattr(ge, op)(feed(D.DT_INT64), feed(D.DT_INT64)).dtype is D.DT_BOOL


def test_selection_takes_the_type_of_the_data(feed):
    condition, a, b = feed(D.DT_BOOL), feed(D.DT_BF16), feed(D.DT_BF16)
    assert ge.SelectV2(condition, a, b).dtype is D.DT_BF16
    assert ge.Select(condition, a, b).dtype is D.DT_BF16
    assert ge.MaskedFill(a, condition, 0.0).dtype is D.DT_BF16
    assert ge.GatherV2(a, feed(D.DT_INT32), 0).dtype is D.DT_BF16


def test_types_named_by_attributes(feed):
    x = feed(D.DT_FLOAT)
    assert ge.Cast(x, dst_type=D.DT_INT8).dtype is D.DT_INT8
    assert ge.Bitcast(x, type=D.DT_INT32).dtype is D.DT_INT32
    assert ge.Shape(x).dtype is D.DT_INT32
    assert ge.Shape(x, dtype=D.DT_INT64).dtype is D.DT_INT64
    assert ge.ArgMaxV2(x, 0).dtype is D.DT_INT64
    assert ge.ArgMaxV2(x, 0, dtype=D.DT_INT32).dtype is D.DT_INT32
    assert ge.StatelessRandomUniformV2([2, 2], 1, [0, 0], 1, dtype=D.DT_BF16).dtype is D.DT_BF16
    assert ge.AscendQuantV2(x, x, dst_type=D.DT_INT4).dtype is D.DT_INT4
    assert ge.ReduceMeanWithCast(x, [0]).dtype is D.DT_FLOAT
    assert ge.ReduceMeanWithCast(x, [0], dtype=D.DT_FLOAT16).dtype is D.DT_FLOAT16
    assert ge.NonZero(x).dtype is D.DT_INT64


def test_results_of_several_types(feed):
    x = feed(D.DT_BF16)
    assert dtypes(ge.TopKV2(x, 3)) == [D.DT_BF16, D.DT_INT32]
    assert dtypes(ge.TopKV2(x, 3, indices_dtype=9)) == [D.DT_BF16, D.DT_INT64]
    assert dtypes(ge.Sort(x)) == [D.DT_BF16, D.DT_INT32]
    assert dtypes(ge.ArgMaxWithValue(x, dimension=0)) == [D.DT_INT32, D.DT_BF16]
    assert dtypes(ge.RmsNorm(x, x)) == [D.DT_BF16, D.DT_FLOAT]
    assert dtypes(ge.AddRmsNorm(x, x, x)) == [D.DT_BF16, D.DT_FLOAT, D.DT_BF16]
    assert dtypes(ge.LayerNormV4(x, [4], x, x)) == [D.DT_BF16, D.DT_FLOAT, D.DT_FLOAT]
    assert dtypes(ge.DynamicQuant(x)) == [D.DT_INT8, D.DT_FLOAT]


def test_matrix_products(feed):
    half, single, narrow = feed(D.DT_FLOAT16), feed(D.DT_FLOAT), feed(D.DT_INT8)
    assert ge.MatMulV2(half, half).dtype is D.DT_FLOAT16
    assert ge.MatMulV2(narrow, narrow).dtype is D.DT_INT32
    assert ge.BatchMatMulV2(single, single, single).dtype is D.DT_FLOAT
    size = ge.Const([1, 1, 4, 4], D.DT_INT32)
    conv = {"strides": [1] * 4, "pads": [0] * 4}
    assert ge.Conv2D(half, half, **conv).dtype is D.DT_FLOAT16
    assert ge.Conv2DBackpropFilter(half, size, half, **conv).dtype is D.DT_FLOAT
    assert ge.Conv2DTranspose(size, half, half, **conv).dtype is D.DT_FLOAT16
    assert ge.TransposeBatchMatMul(half, half).dtype is D.DT_FLOAT16
    assert ge.QuantBatchMatmulV3(narrow, narrow, single, dtype=D.DT_BF16).dtype is D.DT_BF16


def test_gradients_of_norms_follow_their_parameters(feed):
    x, weight, stat = feed(D.DT_BF16), feed(D.DT_FLOAT), feed(D.DT_FLOAT)
    found = ge.BatchNormGradV3(x, x, weight, stat, stat, stat, stat)
    assert dtypes(found) == [D.DT_BF16, D.DT_FLOAT, D.DT_FLOAT]
    assert dtypes(ge.LayerNormGradV3(x, x, stat, stat, weight)) == [D.DT_BF16, D.DT_FLOAT, D.DT_FLOAT]
    assert dtypes(ge.RmsNormGrad(x, x, stat, x)) == [D.DT_BF16, D.DT_FLOAT]


def test_complex_partners(feed):
    c = feed(D.DT_COMPLEX128)
    assert ge.Real(c).dtype is D.DT_DOUBLE
    assert ge.Imag(feed(D.DT_COMPLEX64)).dtype is D.DT_FLOAT
    assert ge.Complex(feed(D.DT_DOUBLE), feed(D.DT_DOUBLE)).dtype is D.DT_COMPLEX128


def test_integers_become_float_where_the_definition_says_so(feed):
    assert ge.Log(feed(D.DT_INT32)).dtype is D.DT_FLOAT
    assert ge.SoftmaxV2(feed(D.DT_FLOAT16), half_to_float=True).dtype is D.DT_FLOAT
    assert ge.SoftmaxV2(feed(D.DT_FLOAT16)).dtype is D.DT_FLOAT16


def test_in_place_and_lists(feed):
    x, y = feed(D.DT_BF16), feed(D.DT_INT64)
    assert ge.Assign(x, x).dtype is D.DT_BF16
    assert ge.ScatterNdUpdate(x, y, x).dtype is D.DT_BF16
    assert dtypes(ge.ForeachErf([x, x])) == [D.DT_BF16, D.DT_BF16]
    assert dtypes(ge.SplitV(x, [1, 3], 0, num_split=2)) == [D.DT_BF16, D.DT_BF16]
    assert dtypes(ge.Unpack(y, num=3)) == [D.DT_INT64] * 3


def test_branches_give_their_types(feed):
    inner = Graph("then")
    with building(inner):
        a = ge.Data(index=0, dtype=D.DT_INT64, shape=())
        inner.outputs = [a, ge.Cast(a, dst_type=D.DT_BF16)]
    found = ge.If(feed(D.DT_BOOL), [feed(D.DT_INT64)], then_branch=inner, else_branch=inner)
    assert dtypes(found) == [D.DT_INT64, D.DT_BF16]


def test_a_result_outside_the_domain_is_refused(feed):
    with pytest.raises(GraphError, match="GE3014"):
        ge.Cast(feed(D.DT_FLOAT), dst_type=D.DT_STRING)
    with pytest.raises(GraphError, match="GE3014.*does not follow"):
        ge.SequenceAt(feed(D.DT_RESOURCE), 0)


def test_special_rows_name_ports_that_exist_once():
    lines = infer._SPECIAL_ROWS.strip().splitlines()
    assert len(lines) == len({tuple(line.split(" ")[:2]) for line in lines})
    for op, port in (line.split(" ")[:2] for line in lines):
        assert schema.get(op) is not None, op
        assert schema.get(op).output(port) is not None, (op, port)
        infer.rules(schema.get(op))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((D.DT_FLOAT16, D.DT_BF16), D.DT_FLOAT),
        ((D.DT_INT64, D.DT_FLOAT16), D.DT_FLOAT16),
        ((D.DT_UINT8, D.DT_INT8), D.DT_INT16),
        ((D.DT_BOOL, D.DT_UINT8), D.DT_UINT8),
        ((D.DT_FLOAT, D.DT_COMPLEX32), D.DT_COMPLEX64),
        ((D.DT_DOUBLE, D.DT_COMPLEX64), D.DT_COMPLEX128),
        ((D.DT_INT32, D.DT_INT64, D.DT_FLOAT), D.DT_FLOAT),
        ((D.DT_BF16,), D.DT_BF16),
    ],
)
def test_promotion(given, wanted):
    assert infer.promote(given) is wanted
    assert infer.promote(given[::-1]) is wanted


# -- where the published operators differ from what their signatures suggest -----------------------------------------

I8, F16, BF16, F32, I64 = D.DT_INT8, D.DT_FLOAT16, D.DT_BF16, D.DT_FLOAT, D.DT_INT64
PUBLISHED = [
    # operator, types fed by port, attributes, output, its type
    ("PromptFlashAttention", {"query": I8}, {}, "attention_out", F16),
    ("PromptFlashAttention", {"query": I8, "quant_scale2": F32}, {}, "attention_out", I8),
    ("PromptFlashAttention", {"query": BF16}, {}, "attention_out", BF16),
    ("IncreFlashAttention", {"query": I8}, {}, "attention_out", F16),
    ("FusedInferAttentionScore", {"query": I8}, {}, "attention_out", F16),
    ("FusedInferAttentionScore", {"query": I8, "query_rope": BF16}, {}, "attention_out", BF16),
    ("FusedInferAttentionScore", {"query": BF16, "quant_scale2": F32}, {}, "attention_out", I8),
    (
        "FusedInferAttentionScore",
        {"query": BF16, "quant_scale2": F32},
        {"out_dtype": 24},
        "attention_out",
        D.DT_FLOAT8_E4M3FN,
    ),
    ("SoftmaxV2", {"x": F16}, {"half_to_float": True}, "y", F32),
    ("SoftmaxV2", {"x": BF16}, {"half_to_float": True}, "y", BF16),
    ("Abs", {"x": D.DT_COMPLEX64}, {}, "y", F32),
    ("Abs", {"x": D.DT_COMPLEX32}, {}, "y", F16),
    ("BatchNormGradV3", {"dy": BF16, "x": F32, "weight": F32}, {}, "dx", BF16),
    ("GroupNormGrad", {"dy": BF16, "gamma": F32}, {}, "dgamma", BF16),
    ("GroupNormGrad", {"dy": BF16, "gamma": F32}, {}, "dbeta", BF16),
    ("MoeDistributeDispatch", {"x": BF16, "scales": F32}, {"quant_mode": 0}, "expand_x", I8),
    ("MoeDistributeDispatch", {"x": BF16}, {"quant_mode": 0}, "expand_x", BF16),
    ("MoeDistributeDispatchV2", {"x": BF16}, {"quant_mode": 2}, "expand_x", I8),
    ("MoeDistributeDispatchV2", {"x": BF16}, {"quant_mode": 4}, "dynamic_scales", F32),
    ("MatmulAllReduce", {"x1": I8, "dequant_scale": I64}, {"y_dtype": 27}, "y", BF16),
    ("MatmulAllReduce", {"x1": I8, "dequant_scale": I64}, {"y_dtype": 28}, "y", F16),
    ("GroupedMatmul", {"x": I8, "weight": D.DT_INT4}, {"dtype": 1}, "y", BF16),
    ("GroupedMatmul", {"x": D.DT_FLOAT8_E5M2, "weight": D.DT_FLOAT8_E5M2}, {"dtype": 1}, "y", D.DT_FLOAT8_E5M2),
    ("MlaProlog", {"weight_uk": BF16, "rope_sin": F16}, {}, "query", BF16),
    ("MlaPrologV2", {"weight_uk": BF16, "rope_sin": F16}, {}, "query_rope", BF16),
    ("GeluQuant", {"x": F16}, {}, "y", I8),
    ("GeluQuant", {"x": F16}, {"dst_type": int(D.DT_FLOAT8_E5M2)}, "y", D.DT_FLOAT8_E5M2),
    ("DequantSwigluQuant", {"x": D.DT_INT32}, {"dst_type": int(D.DT_HIFLOAT8)}, "y", D.DT_HIFLOAT8),
    ("DynamicQuantV2", {"x": F16}, {}, "offset", F32),
    ("GroupNormSilu", {"x": BF16, "gamma": F32}, {}, "mean", BF16),
    ("GroupNormSilu", {"x": BF16, "gamma": F32}, {}, "rstd", BF16),
    ("FlashAttentionScore", {"query": D.DT_FLOAT8_E5M2}, {"out_dtype": 1}, "attention_out", BF16),
    ("FlashAttentionScore", {"query": D.DT_FLOAT8_E5M2}, {}, "softmax_out", F16),
    ("FlashAttentionScore", {"query": D.DT_FLOAT8_E5M2}, {"out_dtype": 2}, "attention_out", None),
    ("FlashAttentionScoreGrad", {"query": D.DT_HIFLOAT8}, {"out_dtype": 1}, "dv", BF16),
    ("Quantize", {"x": F32}, {"dtype": "torch.qint8"}, "y", I8),
    ("Quantize", {"x": F32}, {"dtype": "nonsense"}, "y", None),
]


@pytest.mark.parametrize(("op", "fed", "given", "port", "wanted"), PUBLISHED)
def test_types_as_the_published_operators_set_them(op, fed, given, port, wanted):
    row = schema.get(op)
    assert {p.name for p in row.inputs} >= set(fed)
    known = {a.name: a for a in row.attrs}
    values = {n: attrs.make(known[n].kind, v, n) for n, v in given.items() if n in known}
    assert values.keys() == given.keys(), known
    rule = infer.rules(row)[[p.name for p in row.outputs].index(port)].rule
    assert infer.first(rule([fed.get(p.name) for p in row.inputs], values)) is wanted
