"""Numbers that never become tensors give what tensors of their type give: wrapped, bounded, the same in every run."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import DataType, EngineError, Graph, building
from ge_graph import ops as ge
from ge_graph.ir import Tensor
from ge_runtime.cpu import CpuEngine

I32, I64, BOOL = DataType.DT_INT32, DataType.DT_INT64, DataType.DT_BOOL
_NUMPY = {I32: np.int32, I64: np.int64, BOOL: np.bool_}
_EDGES = {
    dtype: [int(np.iinfo(_NUMPY[dtype]).min), int(np.iinfo(_NUMPY[dtype]).max), -7, -1, 0, 1, 2, 5, 2**30]
    for dtype in (I32, I64)
}


def _trunc(a: Any, b: Any) -> Any:
    return np.where((a % b != 0) & ((a < 0) != (b < 0)), a // b + 1, a // b).astype(a.dtype)


# Operator to numpy function: wraps like the machine, and rounds as the operator says.
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Div": np.floor_divide,
    "Mod": np.fmod,
    "TruncateDiv": _trunc,
    "RealDiv": _trunc,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}
_UNARY: dict[str, Callable[..., Any]] = {"Neg": np.negative, "Abs": np.abs}


def _compiled(build: Callable[[], Any]) -> Any:
    graph = Graph("g")
    with building(graph):
        found = build()
    graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    return CpuEngine().compile(graph, {})


def _data(index: int, *shape: int, dtype: DataType = I64) -> Tensor:
    return ge.Data(index=index, dtype=dtype, shape=shape)


def _agree(
    build: Callable[..., Any], want: Callable[..., Any], operands: Sequence[Sequence[int]], dtype: DataType
) -> None:
    """Operands fed as scalars (host numbers), as vectors (kernels) and as constants (folded) against numpy."""
    count = len(operands[0])
    fed = _compiled(lambda: build(*(_data(k, dtype=dtype) for k in range(count))))
    vector = _compiled(lambda: build(*(_data(k, 1, dtype=dtype) for k in range(count))))
    with np.errstate(all="ignore"):
        for values in operands:
            arrays = [np.array(v, _NUMPY[dtype]) for v in values]
            expected = np.asarray(want(*arrays))
            tensors = [torch.from_numpy(a) for a in arrays]
            folded = _compiled(lambda arrays=arrays: build(*(ge.Const(a) for a in arrays)))  # type: ignore[misc]
            for got in (fed.run(tensors), fed.run(tensors), folded.run([]), folded.run([])):
                assert (got[0].item(), str(got[0].numpy().dtype)) == (expected.item(), str(expected.dtype)), values
            assert vector.run([t.reshape(1) for t in tensors])[0].item() == expected.item(), values


@pytest.mark.parametrize("dtype", [I32, I64], ids=lambda d: d.name)
@pytest.mark.parametrize("op", sorted(_BINARY))
def test_two_operands(op: str, dtype: DataType) -> None:
    pairs = [p for p in itertools.product(_EDGES[dtype], repeat=2) if p[1] != 0 or op not in _DIVISIONS]
    _agree(lambda a, b: getattr(ge, op)(a, b), _BINARY[op], pairs, dtype)


_DIVISIONS = ("FloorDiv", "FloorMod", "Div", "Mod", "TruncateDiv", "RealDiv")


@pytest.mark.parametrize("dtype", [I32, I64], ids=lambda d: d.name)
@pytest.mark.parametrize("op", sorted(_UNARY))
def test_one_operand(op: str, dtype: DataType) -> None:
    _agree(lambda a: getattr(ge, op)(a), _UNARY[op], [(v,) for v in _EDGES[dtype]], dtype)


@pytest.mark.parametrize("op", _DIVISIONS)
def test_division_by_zero_is_the_engines_error(op: str) -> None:
    executable = _compiled(lambda: getattr(ge, op)(_data(0), _data(1)))
    for _ in range(3):
        with pytest.raises(EngineError, match="GE4005"):
            executable.run([torch.tensor(1), torch.tensor(0)])
    assert executable.run([torch.tensor(4), torch.tensor(2)])[0].item() in (2, 0)


def test_products_wrap_in_every_run() -> None:
    executable = _compiled(lambda: ge.Equal(ge.Mul(_data(0), 4), 0))
    assert [executable.run([torch.tensor(2**62)])[0].item() for _ in range(3)] == [True] * 3
    assert [executable.run([torch.tensor(3)])[0].item() for _ in range(3)] == [False] * 3


def test_repeated_squaring_stays_small() -> None:
    def build(x: Tensor) -> Tensor:
        for _ in range(60):
            x = ge.Mul(x, x)
        return x

    with np.errstate(all="ignore"):
        want = np.array(3, np.int64)
        for _ in range(60):
            want = want * want
    for executable, fed in (
        (_compiled(lambda: build(_data(0))), [torch.tensor(3)]),
        (_compiled(lambda: build(ge.Const(3))), []),
    ):
        assert [executable.run(fed)[0].item() for _ in range(3)] == [int(want)] * 3


@pytest.mark.parametrize("op", ["ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", [I32, I64], ids=lambda d: d.name)
def test_reductions_of_short_lists_wrap(op: str, dtype: DataType) -> None:
    want = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}[op]
    executable = _compiled(lambda: getattr(ge, op)(ge.Pack([_data(k, dtype=dtype) for k in range(3)], N=3), [0]))
    with np.errstate(all="ignore"):
        for values in itertools.product(_EDGES[dtype][:5], repeat=3):
            array = np.array(values, _NUMPY[dtype])
            got = executable.run(list(map(torch.tensor, array)))
            assert got[0].item() == int(
                want(array, dtype=_NUMPY[dtype]) if op in ("ReduceProd", "ReduceSum") else want(array)
            )


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations((I32, I64, BOOL), 2)), ids=str)
def test_casts(source: DataType, target: DataType) -> None:
    executable = _compiled(lambda: ge.Cast(_data(0, dtype=source), dst_type=target))
    for value in [0, 1] if source is BOOL else _EDGES[source]:
        array = np.array(value, _NUMPY[source])
        for _ in range(2):
            assert executable.run([torch.from_numpy(array)])[0].item() == array.astype(_NUMPY[target]).item()


def test_sizes_wrap_in_int32() -> None:
    executable = _compiled(lambda: ge.Size(ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=("a", "b", "c"))))
    x = torch.empty(0).as_strided((0,), (1,)).reshape(0, 1, 1)
    huge = torch.zeros(1).expand(2**16, 2**15, 2)
    assert [executable.run([v])[0].item() for v in (x, huge, huge)] == [0, 0, 0]


def test_selection_and_logic_of_numbers() -> None:
    def build() -> list[Tensor]:
        a, b = _data(0), _data(1)
        less, even = ge.Less(a, b), ge.Equal(ge.FloorMod(a, 2), 0)
        return [ge.SelectV2(less, a, b), ge.LogicalAnd(less, even), ge.LogicalOr(less, even), ge.LogicalNot(less)]

    executable = _compiled(build)
    for a, b in itertools.product((-3, 0, 4), repeat=2):
        less, even = a < b, a % 2 == 0
        for _ in range(2):
            got = [r.item() for r in executable.run([torch.tensor(a), torch.tensor(b)])]
            assert got == [min(a, b) if less else b, less and even, less or even, operator.not_(less)]
