"""The pass that gives operators the form of a chip: what it may conclude of values, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge_graph import DataType, Graph, building, kernels, passes
from ge_graph import ops as ge
from ge_graph.cost.forms import price
from ge_graph.passes import Choice, FitChip
from ge_graph.passes.chips.bounds import bounds, fits
from ge_graph.verify import verify

D = DataType
LONG = (-(2**63), 2**63 - 1)


def _data(shape: tuple[Any, ...], dtype: DataType = D.DT_INT64) -> Any:
    return ge.Data(index=0, dtype=dtype, shape=shape)


def _cast(x: Any, dtype: DataType = D.DT_INT64) -> Any:
    made = ge.Cast(x, dst_type=int(dtype))
    made.record_shape(x.known_shape)
    return made


# name: what makes the tensor, its bounds
BOUNDS = {
    "unknown": (lambda: _data((3,)), LONG),
    "constant": (lambda: ge.Const(np.array([5, -2])), (-2, 5)),
    "empty constant": (lambda: ge.Const(np.zeros(0, np.int64)), (0, 0)),
    "bool": (lambda: _cast(_data((3,), D.DT_BOOL)), (0, 1)),
    "uint8": (lambda: _cast(_data((3,), D.DT_UINT8)), (0, 255)),
    "float": (lambda: _cast(_data((3,), D.DT_FLOAT)), LONG),
    "sum": (lambda: ge.Add(_cast(_data((3,), D.DT_INT8)), ge.Const(3, dtype=D.DT_INT64)), (-125, 130)),
    "product": (lambda: ge.Mul(_cast(_data((3,), D.DT_INT8)), ge.Const(-2, dtype=D.DT_INT64)), (-254, 256)),
    "sum that may wrap around": (lambda: ge.Add(_data((3,)), ge.Const(1, dtype=D.DT_INT64)), LONG),
    "sum that may wrap around in its type": (
        lambda: ge.Add(_data((3,), D.DT_INT8), ge.Const(1, dtype=D.DT_INT8)),
        (-128, 127),
    ),
    "clipped": (
        lambda: ge.ClipByValueV2(_data((3,)), ge.Const(-4, dtype=D.DT_INT64), ge.Const(9, dtype=D.DT_INT64)),
        (-4, 9),
    ),
    "narrowed with loss": (lambda: _cast(_data((3,)), D.DT_INT32), (-(2**31), 2**31 - 1)),
    "sums of a mask": (lambda: ge.Cumsum(_cast(_data((7,), D.DT_BOOL)), 0), (0, 7)),
    "sums of a mask of any length": (lambda: ge.Cumsum(_cast(_data(("s0",), D.DT_BOOL)), 0), LONG),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name: str) -> None:
    make, wanted = BOUNDS[name]
    with building(Graph()):
        assert bounds(make()) == wanted


def test_bounds_of_deep_sums_take_no_time() -> None:
    with building(Graph()):
        x = _cast(_data((3,), D.DT_BOOL))
        for _ in range(200):
            x = ge.Add(x, x)
        assert bounds(x) == LONG
        assert not fits(x, D.DT_INT32)


def _graph(make: Any) -> Graph:
    graph = Graph()
    with building(graph):
        graph.outputs = [make()]
    return graph


def _sorted(shape: tuple[Any, ...], dtype: DataType) -> Any:
    return ge.Sort(_data(shape, dtype))[0]


@pytest.mark.parametrize(
    ("make", "soc", "left"),
    [
        (lambda: _sorted((9,), D.DT_UINT8), "ascend910b", ["Cast", "Sort", "Cast"]),
        (lambda: _sorted((9,), D.DT_INT64), "ascend910b", ["Sort"]),
        (lambda: _sorted((9,), D.DT_UINT8), "ascend950", ["Sort"]),
        (lambda: ge.Sign(_data((9,))), "ascend950", ["Sign"]),
        (lambda: ge.RealDiv(_data((9,)), ge.Const(2, dtype=D.DT_INT64)), "ascend950", ["TruncateDiv"]),
        (lambda: ge.Relu(_data((9,), D.DT_FLOAT)), "ascend910b", ["Relu"]),
    ],
)
def test_forms(make: Any, soc: str, left: list[str]) -> None:
    graph = _graph(make)
    step = FitChip(kernels.oracle(soc))
    changed = step.concerns(graph) and left != ["Sort"]
    result = step.run(graph, check=True)
    passes.DropDeadNodes().run(graph)
    verify(graph)
    assert result.changed == changed
    assert [n.op for n in graph.nodes if n.op not in ("Data", "Const")] == left


def test_what_is_waited_for_stays() -> None:
    graph = _graph(lambda: _sorted((9,), D.DT_UINT8))
    graph.output_control.append(graph.outputs[0].node)
    assert not FitChip(kernels.oracle("ascend910b")).run(graph, check=True).changed


def test_the_place_among_the_passes() -> None:
    names = [p.name for p in passes.for_chip(kernels.oracle("ascend910b"))]
    assert names.index("fuse_operators") < names.index("fit_chip") < names.index("drop_dead_nodes")


def _small_quotient(size: Any = 4096) -> Any:
    small = ge.ClipByValueV2(_data((size,)), ge.Const(-4, dtype=D.DT_INT64), ge.Const(9, dtype=D.DT_INT64))
    small.record_shape((size,))
    quotient = ge.RealDiv(small, ge.Const(2, dtype=D.DT_INT64))
    quotient.record_shape((size,))
    return quotient


def test_of_several_forms_the_least_expensive_is_taken_and_said() -> None:
    graph = _graph(_small_quotient)
    said: list[Choice] = []
    result = FitChip(kernels.oracle("ascend910b"), price("Ascend910B3"), said.append).run(graph, check=True)
    assert [n.op for n in graph.nodes if n.op not in ("Data", "Const")] == ["ClipByValueV2", "TruncateDiv"]
    (choice,) = said
    ((other, dearer),) = choice.others
    assert (choice.op, choice.taken, other) == ("RealDiv", ("TruncateDiv",), ("Cast", "Cast", "RealDiv", "Cast"))
    assert choice.seconds is not None
    assert dearer is not None
    assert choice.seconds < dearer
    # one launch each: a chip's figures say 2 us
    assert dearer - choice.seconds >= 3 * 2e-6
    assert "as TruncateDiv (about" in result.notes[0]
    assert "rather than as Cast, RealDiv (about" in result.notes[0]


@pytest.mark.parametrize("soc", [None, "ascend310p"])
def test_without_figures_the_first_form_is_taken(soc: str | None) -> None:
    graph = _graph(_small_quotient)
    args = () if soc is None else (price(soc),)
    FitChip(kernels.oracle("ascend910b"), *args).run(graph, check=True)
    assert "RealDiv" in [n.op for n in graph.nodes]


def test_open_sizes_are_those_that_are_given() -> None:
    for sizes, taken in (({"s0": 4096}, "TruncateDiv"), ({}, "RealDiv")):
        graph = _graph(lambda: _small_quotient("s0"))
        FitChip(kernels.oracle("ascend910b"), price("ascend910b", sizes)).run(graph, check=True)
        assert taken in [n.op for n in graph.nodes]


def test_a_float_bias_is_not_added_after_the_product() -> None:
    def make() -> Any:
        x, w, bias = (ge.Data(index=i, dtype=D.DT_BF16, shape=s) for i, s in enumerate(((8, 64), (64, 4), (4,))))
        return ge.MatMulV2(x, w, bias)

    graph = _graph(make)
    FitChip(kernels.oracle("ascend910b"), price("ascend910b")).run(graph, check=True)
    assert [n.op for n in graph.nodes if n.op not in ("Data", "Const")] == ["Cast", "MatMulV2"]


def test_the_constants_of_a_form_have_a_price() -> None:
    def make() -> Any:
        x, i, j = (
            ge.Data(index=n, dtype=d, shape=s)
            for n, (d, s) in enumerate(((D.DT_FLOAT, (4, 5)), (D.DT_INT64, (3, 1)), (D.DT_INT64, (2,))))
        )
        return ge.IndexByTensor(x, [i, j], indices_mask=[1, 1])

    graph = _graph(make)
    graph.outputs[0].record_shape((3, 2))
    said: list[Choice] = []
    FitChip(kernels.oracle("ascend910b"), price("ascend910b"), said.append).run(graph, check=True)
    (choice,) = said
    assert choice.taken == ("BroadcastTo", "BroadcastTo", "IndexByTensor")
    assert choice.seconds == pytest.approx(3 * 2e-6, rel=0.01)  # three launches of next to no bytes
