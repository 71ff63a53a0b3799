"""One operator call with its result, as data, and the comparison of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ge_graph import DataType, Graph, building, schema
from ge_graph import ops as ge
from ge_graph.dtypes import from_numpy
from ge_graph.ir import Tensor
from ge_graph.schema import PortSchema

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One operator call with its result.

    Attributes:
        op: GE operator type.
        inputs: One entry per port: an array is fed as graph input, a Python number or list becomes a constant, None
            leaves an optional port out, a tuple of arrays feeds a dynamic port.
        expect: The results, or a function of the inputs that gives them.
        attrs: Attributes.
        name: Tells the cases of one operator apart.
        keywords: Arguments of the wrapper that are neither port nor attribute (``size_of_y``).
        tolerance: Relative and absolute, for floats; None asks for equality.
        typed: Whether ``expect`` follows the element types of the inputs that it is given.
    """

    op: str
    inputs: tuple[Any, ...]
    expect: Any
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float | None = 1e-5
    typed: bool = False

    def __str__(self) -> str:
        return f"{self.op}[{self.name}]" if self.name else self.op

    def graph(self, *, feed_numbers: bool, fixed: bool = True) -> tuple[Graph, list[Array]]:
        """The graph of this one call and the arrays to feed.

        Args:
            feed_numbers: Feed numbers and lists as graph inputs too, so that nothing is known when planning.
            fixed: Declare the sizes of the inputs; otherwise only their rank.
        """
        graph = Graph(self.op)
        fed: list[Array] = []

        def operand(value: Any, port: PortSchema) -> Any:
            if isinstance(value, tuple):
                return [operand(v, port) for v in value]
            if value is None or not isinstance(value, np.ndarray) and not feed_numbers:
                return value
            array = value if isinstance(value, np.ndarray) else _number_array(value, port)
            sizes = tuple(array.shape) if fixed else tuple(f"s{len(fed)}_{d}" for d in range(array.ndim))
            fed.append(array)
            return ge.Data(index=len(fed) - 1, dtype=from_numpy(array.dtype), shape=sizes)

        with building(graph):
            args = [operand(v, p) for v, p in zip(self.inputs, schema.require(self.op).inputs)]
            results = getattr(ge, self.op)(*args, **self.attrs, **self.keywords)
        graph.outputs = _flat(results)
        return graph, fed

    def expected(self) -> list[Array]:
        """The results as arrays."""
        results = self.expect(*self.inputs) if callable(self.expect) else self.expect
        return [np.asarray(v) for v in (results if isinstance(results, (tuple, list)) else (results,))]


def by_formula(op: str, inputs: tuple[Any, ...], formula: Callable[..., Any], *, like: int = 0, **fields: Any) -> Case:
    """A case whose results are a formula of the inputs in float64.

    Args:
        formula: Gets the inputs with every float array as float64. Results in float64 are rounded once, to the type of
            the first float input; results of another type are taken as they are.
        like: The input from which on the first float one is looked for.
        fields: Further fields of the case.
    """

    def expect(*operands: Any) -> list[Array]:
        kinds = [a.dtype for a in _arrays(operands[like:]) if a.dtype.kind == "f"]
        results = formula(*(_wide(v) for v in operands))
        listed = results if isinstance(results, (tuple, list)) else (results,)
        rounded = kinds[0] if kinds else np.dtype(np.float32)
        return [a.astype(rounded) if a.dtype == np.float64 else a for a in map(np.asarray, listed)]

    return Case(op, inputs, expect, typed=True, **fields)


def _arrays(operands: Iterable[Any]) -> Iterator[Array]:
    for value in operands:
        if isinstance(value, tuple):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


def _wide(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_wide(v) for v in value)
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value


def _number_array(value: Any, port: PortSchema) -> Array:
    """Numbers as an input of the port's type: INT64 unless it only knows INT32, FLOAT for fractions."""
    array = np.array(value)
    if array.size and array.dtype.kind == "f":
        return array.astype(np.float32)
    return array.astype(np.int64 if DataType.DT_INT64 in port.domain else np.int32)


def _flat(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    return [t for r in results for t in _flat(r)]


def as_array(value: Any) -> Array:
    """A result as an array; tensors on a device are brought to the host."""
    host = getattr(value, "cpu", None)
    return np.asarray(value if host is None else host())


def mismatch(actual: Sequence[Any], expected: Sequence[Array], tolerance: float | None) -> str:
    """What differs between results and expectation; empty if nothing does."""
    if len(actual) != len(expected):
        return f"{len(actual)} results, expected {len(expected)}"
    for index, (got, want) in enumerate(zip(actual, expected, strict=True)):
        array = as_array(got)
        if array.dtype != want.dtype or array.shape != want.shape:
            return f"result {index} is {array.dtype}{list(array.shape)}, expected {want.dtype}{list(want.shape)}"
        exact = tolerance is None or want.dtype.kind not in "fc"
        slack = 0.0 if exact else max(tolerance or 0.0, 2e-3 if want.dtype == np.float16 else 0.0)
        if not np.allclose(array, want, rtol=slack, atol=slack, equal_nan=want.dtype.kind in "fc"):
            return f"result {index} is {array.tolist()}, expected {want.tolist()}"
    return ""
