"""What converters emit: one graph for all sizes, no redundant nodes, refusals that say why, types, differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.base.support import BF16, F16, I64, Support
from ge_converters.emit.arithmetic import as_number, common_type, is_exact
from ge_converters.emit.compute_types import carrier
from ge_converters.lowering import lower
from ge_converters.registry import REGISTRY
from ge_converters.report import smoke
from ge_graph import DataType, Graph, building, passes
from ge_graph import ops as ge

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- one graph serves every size -------------------------------------------------------------------------------------


def _check_other_sizes(fn: Any, first: list[torch.Tensor], others: list[list[torch.Tensor]], engine: Any) -> Any:
    """Trace with the first sizes, run with the others."""
    lowered = lower(make_fx(fn, tracing_mode="symbolic")(*first))
    for tensors in [first, *others]:
        expected = fn(*tensors)
        expected = expected if isinstance(expected, (tuple, list)) else [expected]
        got = _run(lowered, tensors, engine)
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g, e)
    return lowered


def _run(lowered: Any, tensors: list[torch.Tensor], engine: Any) -> list[Any]:
    executable = engine.compile(lowered.graph, {})
    values = []
    for binding in lowered.inputs:
        assert binding.kind == "tensor"
        values.append(tensors[binding.fx_index])
    results = executable.run(values)
    return [results[b.ge_index] for b in lowered.outputs]


def _ones() -> torch.Tensor:
    return aten.ones([1, 2, 3], dtype=torch.int64)


SIZES = {
    "view": lambda x: aten.view(x, [x.shape[0] * x.shape[1], -1]),
    "view_two_open": lambda x: aten.view(x, [x.shape[1], x.shape[0], x.shape[2]]),
    "expand": lambda x: aten.expand(aten.unsqueeze(x, 0), [3, -1, x.shape[1], -1]),
    "slice": lambda x: aten.slice(x, 1, 1, x.shape[1] - 1),
    "zeros": lambda x: aten.zeros([x.shape[0], 2]) + aten.sum(x),
    "zeros_like": lambda x: aten.zeros_like(x),
    "full_like": lambda x: aten.full_like(x, 2.5),
    "arange": lambda x: aten.arange.start_step(0, x.shape[0], 1),
    "repeat": lambda x: aten.repeat(x, [1, 2, x.shape[0]]),
    "split": lambda x: aten.split(x, 3, 1)[0],
    "var": lambda x: aten.var.correction(x, [0, 2], correction=1),
    "mean": lambda x: aten.mean.dim(x, [-1], True),
    "select": lambda x: aten.select(x, 0, -1),
    "select_symbolic": lambda x: aten.select(x, 0, x.shape[0] - 2),
    "slice_scatter": lambda x: aten.slice_scatter(x, aten.slice(x, 1, 0, 2) * 2, 1, 1, 3),
    "index_put": lambda x: aten.index_put(x, [torch.tensor([0, -1])], aten.select(x, 0, 0)),
    "unfold": lambda x: aten.unfold(x, 1, 2, 1),
    "pad": lambda x: aten.constant_pad_nd(x, [0, x.shape[0]], 1.0),
    "eye": lambda x: aten.eye(x.shape[0]),
    "diagonal": lambda x: aten.diagonal(x, 0, 1, 2),
    "squeeze_dims": lambda x: aten.squeeze.dims(aten.unsqueeze(x, 1), [0, 1]),
    "copy": lambda x: aten.copy(x, aten.sum.dim_IntList(x, [0])),
    "argmax": lambda x: aten.argmax(x, None, True),
    "topk": lambda x: aten.topk(x, x.shape[0], 2)[0],
    # numbers that are symbolic, of overloads that share a function with one of tensors
    "scatter a size": lambda x: aten.scatter.value(x, 0, _ones(), x.shape[0]),
    "multiply by a size": lambda x: aten.scatter.value_reduce(x, 0, _ones(), x.shape[0], reduce="multiply"),
    "fill with a size": lambda x: aten.fill.Scalar(x, x.shape[0]),
    "mask with a size": lambda x: aten.masked_fill.Scalar(x, x > 0, x.shape[0]),
    "lerp by a size": lambda x: aten.lerp.Scalar(x, x + 1, x.shape[0]),
    "clamp to a size": lambda x: aten.clamp_max(aten.clamp_min(x * 9, x.shape[0] - 8), x.shape[0]),
    "add a size": lambda x: aten.sub.Tensor(aten.add.Scalar(x, x.shape[0]), x.shape[1], alpha=2),
    "divide by a size": lambda x: aten.floor_divide(aten.div.Scalar_mode(x * 99, x.shape[0], rounding_mode="trunc"), 3),
    "arange from a size": lambda x: aten.arange.start(x.shape[0], x.shape[0] + x.shape[1]),
}


@pytest.mark.parametrize("name", SIZES)
def test_one_graph_serves_every_size(name: str, engine: Any) -> None:
    torch.manual_seed(3)
    shapes = [(4, 5, 6), (7, 6, 9), (5, 8, 8)]
    first, *others = [[torch.randn(s)] for s in shapes]
    _check_other_sizes(SIZES[name], first, others, engine)


def test_data_dependent_results(engine: Any) -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    mask = x > 0
    for fn in (
        lambda t: aten.nonzero(t),
        lambda t: aten.masked_select(t, t > 0),
        lambda t: aten.index.Tensor(t, [aten.sum.dim_IntList(t, [1]) > 1]),
        lambda t: aten._unique2(t, True, True, True)[0],
    ):
        lowered = lower(make_fx(fn, tracing_mode="symbolic")(x))
        for value in (x, -x, torch.zeros_like(x), mask.float()):
            torch.testing.assert_close(_run(lowered, [value], engine)[0], fn(value))


# -- the graph itself ------------------------------------------------------------------------------------------------


def _ops(fn: Any, *tensors: torch.Tensor, dynamic: bool = False) -> list[str]:
    lowered = lower(make_fx(fn, tracing_mode="symbolic" if dynamic else "fake")(*tensors))
    passes.run(lowered.graph)  # sizes that a converter did not need go with the dead nodes
    return [n.op for n in lowered.graph.nodes if n.op not in ("Data", "Const")]


X = torch.ones(4, 6)
HALF = torch.ones(4, 6, dtype=torch.float16)
GRAPHS = [
    ("clone", lambda x: aten.clone(x) + 1, (X,), ["Add"]),
    ("alias", lambda x: aten.alias(x) + 1, (X,), ["Add"]),
    ("same type", lambda x: aten._to_copy(x, dtype=torch.float32) + 1, (X,), ["Add"]),
    ("identity permute", lambda x: aten.permute(x, [0, 1]) + 1, (X,), ["Add"]),
    ("whole slice", lambda x: aten.slice(x, 0, 0, 2**63 - 1) + 1, (X,), ["Add"]),
    ("square", lambda x: aten.pow.Tensor_Scalar(x, 2), (X,), ["Square"]),
    ("alpha", lambda x: aten.add.Tensor(x, x, alpha=2), (X,), ["AxpyV2"]),
    ("exact half number", lambda x: aten.mul.Tensor(x, 0.5), (HALF,), ["Mul"]),
    ("inexact half number", lambda x: aten.mul.Tensor(x, 0.1), (HALF,), ["Muls"]),
    ("clamp", lambda x: aten.clamp(x, 0, 1), (X,), ["ClipByValueV2"]),
    ("silu", lambda x: aten.silu(x), (X,), ["Swish"]),
    ("gelu", lambda x: aten.gelu(x), (X,), ["GeluV2"]),
    ("full", lambda x: x + aten.full([4, 1], 2.0), (X,), ["Fill", "Add"]),
    ("scalar", lambda x: x + aten.scalar_tensor(2.0), (X,), ["Add"]),
    ("one tensor", lambda x: aten.cat([x]) + 1, (X,), ["Add"]),
]


@pytest.mark.parametrize(("name", "fn", "tensors", "expected"), GRAPHS, ids=[g[0] for g in GRAPHS])
def test_no_redundant_nodes(name: str, fn: Any, tensors: Any, expected: list[str]) -> None:
    assert _ops(fn, *tensors) == expected


def test_one_open_dim_needs_no_size_arithmetic() -> None:
    assert _ops(lambda x: aten.view(x, [x.shape[0] * 2, 3]), X, dynamic=True).count("Pack") == 0
    assert _ops(lambda x: aten.view(x, [x.shape[0] * x.shape[1]]), X, dynamic=True) == ["Reshape"]


# -- refusals and carriers -------------------------------------------------------------------------------------------


REFUSED = [
    ("stable sort of float64", lambda x: aten.sort.stable(x.double(), stable=True)[0], "DT_DOUBLE"),
    ("view as float8", lambda x: aten.view.dtype(x.half(), torch.float8_e5m2), "Bitcast"),
    ("complex of float16", lambda x: aten.complex(x.half(), x.half()), "Complex"),
    (
        "float64 embedding gradient",
        lambda x: aten.embedding_dense_backward(x.double(), torch.zeros(4, dtype=torch.int64), 5, -1, False),
        "EmbeddingDenseGrad",
    ),
]


@pytest.mark.parametrize(("name", "fn", "word"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refusals_say_why(name: str, fn: Any, word: str) -> None:
    gm = make_fx(fn, tracing_mode="fake", _allow_non_fake_inputs=True)(X)
    with pytest.raises(LoweringError, match=word):
        lower(gm)


def test_carrier_prefers_the_type_itself_then_the_narrowest_exact_one() -> None:
    assert carrier("Add", DataType.DT_FLOAT) is DataType.DT_FLOAT
    assert carrier("Expm1", DataType.DT_BF16) is DataType.DT_BF16
    assert carrier("Atan2", DataType.DT_DOUBLE) is DataType.DT_DOUBLE
    assert carrier("Sort", DataType.DT_BOOL) is DataType.DT_INT8
    assert carrier("GatherElements", DataType.DT_COMPLEX64, moves=True) is DataType.DT_INT64
    with pytest.raises(Refusal, match="Sort does not take DT_DOUBLE"):
        carrier("Sort", DataType.DT_DOUBLE)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(0.5, "DT_FLOAT16", True), (0.1, "DT_FLOAT16", False), (0.1, "DT_FLOAT", True), (256.0, "DT_BF16", True)]
    + [
        (257.0, "DT_BF16", False),
        (1e6, "DT_FLOAT16", False),
        (float("nan"), "DT_BF16", True),
        (1e300, "DT_BF16", False),
    ],
)
def test_exact_in_half(value: float, dtype: str, expected: bool) -> None:
    assert is_exact(value, DataType[dtype]) is expected


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [(2.7, "DT_INT64", 2), (-2.7, "DT_INT32", -2), (-2, "DT_UINT8", 254), (0.5, "DT_BOOL", True), (3, "DT_FLOAT", 3)],
)
def test_numbers_convert_as_in_eager(value: Any, dtype: str, expected: Any) -> None:
    assert as_number(value, DataType[dtype]) == expected


def test_common_type_follows_eager_promotion() -> None:
    graph = Graph("types")
    with building(graph):
        half, long = (
            ge.Data(index=i, dtype=d, shape=(2,)) for i, d in enumerate((DataType.DT_FLOAT16, DataType.DT_INT64))
        )
        scalar = ge.Data(index=2, dtype=DataType.DT_FLOAT, shape=())
    assert common_type(half, scalar) is DataType.DT_FLOAT16
    assert common_type(long, scalar) is DataType.DT_FLOAT
    assert common_type(long, 1.5) is DataType.DT_FLOAT
    assert common_type(half, long) is DataType.DT_FLOAT16
    assert common_type(long, True) is DataType.DT_INT64


# -- known differences from eager ------------------------------------------------------------------------------------

KNOWN = [
    (
        "aten.add.Tensor",
        Support(BF16(2, 3), BF16(2, 3), alpha=3),
        "eager adds the last elements of a half tensor (fewer than one vector) with two roundings, AxpyV2 with one",
    ),
    (
        "aten.rsub.Tensor",
        Support(F16(2, 3), F16(2, 3), alpha=0.1),
        "as aten.add.Tensor: two roundings in eager's last elements, one in AxpyV2",
    ),
    (
        "aten.sort.default",
        Support(F16(8000, low=-9, high=9)),
        "positions of equal elements: neither eager nor GE Sort defines them when the sort is not stable",
    ),
    (
        "aten.topk.default",
        Support(I64(50, low=0, high=3), 10),
        "positions of equal elements: eager does not define them, the engine takes the first",
    ),
]


@pytest.mark.parametrize(
    ("name", "support"),
    [
        pytest.param(n, s, id=f"{n}{i}", marks=pytest.mark.xfail(strict=True, reason=r))
        for i, (n, s, r) in enumerate(KNOWN)
    ],
)
def test_known_differences(name: str, support: Support, engine: Any) -> None:
    (entry,) = [e for e in REGISTRY.entries() if e.name == name]
    outcome = smoke.run(smoke.DeclaredForm(entry, support, 0), engine)
    assert outcome.status == "ok", outcome.detail
