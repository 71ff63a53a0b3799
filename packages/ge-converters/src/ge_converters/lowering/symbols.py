"""Sizes as graph values: symbolic expressions become Shape, Gather and integer arithmetic, never frozen numbers.

A symbol has one source in a graph: a dimension of an input, a scalar input, or (for data-dependent sizes) a dimension
of the result that brought it into being. An expression is emitted once per graph, however often it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.errors import LoweringError
from ge_graph import DataType, Graph, Tensor
from ge_graph import ops as ge

Scalar: TypeAlias = "int | float | bool | Tensor"
Source: TypeAlias = "Callable[[], Tensor]"

_INT: Final = DataType.DT_INT64
_FLOAT: Final = DataType.DT_DOUBLE


def is_symbolic(value: Any) -> bool:
    """Whether a value is a ``SymInt``, ``SymFloat`` or ``SymBool``."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def expression(value: Any) -> Any:
    """The sympy expression behind a symbolic value; plain numbers come back as they are."""
    return value.node.expr if is_symbolic(value) else value


def plain(expr: Any) -> int | float | bool | None:
    """The number that an expression without symbols stands for, else None."""
    if isinstance(expr, (int, float)):
        return expr
    if expr.is_Integer:
        return int(expr)
    if expr.is_Boolean and not expr.free_symbols:
        return bool(expr)
    if expr.is_Float or expr.is_Rational or (expr.is_infinite and not expr.free_symbols):
        return float(expr)
    return None


class Symbols:
    """The symbolic values of one graph.

    Args:
        graph: The graph under construction; it must be the current one when ``value`` is called.
        search: Called with a symbol that has no source; finds one among the results lowered so far, or returns None.
    """

    def __init__(self, graph: Graph, search: Callable[[Any], Source | None]) -> None:
        self._graph = graph
        self._search = search
        self._sources: dict[Any, Source] = {}
        self._values: dict[Any, Tensor] = {}
        self._shapes: dict[Tensor, Tensor] = {}
        self._texts: dict[Any, int | str] = {}
        self._fixed: dict[Any, int | float | bool] = {}

    @contextlib.contextmanager
    def fixed(self, numbers: dict[Any, int | float | bool]) -> Iterator[None]:
        """Inside, these expressions stand for numbers."""
        before, self._fixed = self._fixed, {**self._fixed, **numbers}
        try:
            yield
        finally:
            self._fixed = before

    def fix(self, numbers: dict[Any, int | float | bool]) -> None:
        """From now on these expressions stand for numbers."""
        self._fixed = {**self._fixed, **numbers}

    def define(self, symbol: Any, source: Source) -> None:
        """Say where the value of a symbol, or of an expression, comes from; the first source stays."""
        self._sources.setdefault(symbol, source)

    def know(self, expr: Any, tensor: Tensor) -> None:
        """An expression whose value is an input of the graph."""
        self._values[expr] = tensor

    def dim(self, size: Any) -> int | str:
        """A dimension as ``TensorSpec`` and dumps write it: an int, or the text of the expression."""
        if type(size) is int:
            return size
        expr = size.node.expr
        if self._fixed and expr in self._fixed:
            return int(self._fixed[expr])
        text = self._texts.get(expr)
        if text is None:
            text = self._texts[expr] = int(expr) if expr.is_Integer else str(expr)
        return text

    def size_of(self, tensor: Tensor, dim: int) -> Tensor:
        """Dimension ``dim`` of a GE tensor as a 0-d INT64 tensor."""
        with _outside_scopes(self._graph):
            shape = self._shapes.get(tensor)
            if shape is None:
                shape = self._shapes[tensor] = ge.Shape(tensor, dtype=int(_INT))
                if tensor.known_shape is not None:
                    shape.record_shape((len(tensor.known_shape),))
            return _scalar(ge.Gather(shape, dim))

    def value(self, expr: Any) -> Scalar:
        """The value of an expression: a number if it has no symbols, else a 0-d tensor, emitted once.

        Dtypes: integer -> INT64, real -> DOUBLE, relation -> BOOL.

        Errors: LoweringError GE2009 if a symbol has no source or a function has no GE counterpart.
        """
        number = plain(expr)
        if number is not None:
            return number
        if self._fixed and expr in self._fixed:
            return self._fixed[expr]
        known = self._values.get(expr)
        if known is not None:
            return known
        with _outside_scopes(self._graph):
            source = None if expr.is_Symbol else self._given(expr)
            scalar = source() if source else self._symbol(expr) if expr.is_Symbol else self._emit(expr)
        if isinstance(scalar, Tensor):
            self._values[expr] = scalar
        return scalar

    def _given(self, expr: Any) -> Source | None:
        """The source of an expression that an input of the graph is, if not all of its symbols have one."""
        source = self._sources.get(expr)
        if source is None or all(s in self._sources or self._search(s) for s in expr.free_symbols):
            return None
        return source

    def _symbol(self, symbol: Any) -> Tensor:
        source = self._sources.get(symbol) or self._search(symbol)
        if source is None:
            raise LoweringError(
                "GE2009",
                f"the size {symbol} is not a dimension of any input or earlier result",
                next="pass the size to the compiled function as an argument, or mark the dimension static",
            )
        return source()

    def _emit(self, expr: Any) -> Scalar:
        rule = _RULES.get(type(expr).__name__)
        if rule is None:
            raise LoweringError(
                "GE2009",
                f"the size expression {expr} uses {type(expr).__name__}, which has no GE counterpart",
                next="compute the size with + - * // % min max, or mark the dimension static",
            )
        return rule([self.value(a) for a in _arguments(expr)])


def _arguments(expr: Any) -> tuple[Any, ...]:
    if type(expr).__name__ == "Piecewise":
        return tuple(part for pair in expr.args for part in (pair[1], pair[0]))
    return tuple(expr.args)


class _outside_scopes:
    """Nodes that serve the whole graph must not carry the attributes of the scope that happens to be open."""

    __slots__ = ("_graph", "_attrs")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        self._attrs = self._graph.scope_attrs
        self._graph.scope_attrs = {}

    def __exit__(self, *_: object) -> None:
        self._graph.scope_attrs = self._attrs


# -- expressions ------------------------------------------------------------------------------------------------------


def _scalar(tensor: Tensor) -> Tensor:
    tensor.record_shape(())
    return tensor


def _is_float(v: Scalar) -> bool:
    return v.dtype.is_float if isinstance(v, Tensor) else isinstance(v, float)


def _aligned(values: Sequence[Scalar], dtype: DataType | None = None) -> list[Tensor]:
    """All as 0-d tensors of one type: ``dtype``, or DOUBLE as soon as one is real."""
    target = dtype or (_FLOAT if any(_is_float(v) for v in values) else _INT)
    return [_as(v, target) for v in values]


def _as(value: Scalar, dtype: DataType) -> Tensor:
    if isinstance(value, Tensor):
        return value if value.dtype == dtype else _scalar(ge.Cast(value, dst_type=dtype))
    if dtype == _INT:
        value = int(value)
    return ge.Const(value, dtype=dtype)


def _fold(op: str) -> Callable[[list[Scalar]], Scalar]:
    def rule(values: list[Scalar]) -> Scalar:
        # numbers last: sympy puts them first, and x + 1 reads better than 1 + x
        tensors = _aligned(sorted(values, key=lambda v: not isinstance(v, Tensor)))
        result = tensors[0]
        for t in tensors[1:]:
            result = _scalar(getattr(ge, op)(result, t))
        return result

    return rule


def _binary(op: str, dtype: DataType | None = None) -> Callable[[list[Scalar]], Scalar]:
    def rule(values: list[Scalar]) -> Scalar:
        return _scalar(getattr(ge, op)(*_aligned(values, dtype)))

    return rule


def _unary(op: str, dtype: DataType = _FLOAT, then: DataType | None = None) -> Callable[[list[Scalar]], Scalar]:
    def rule(values: list[Scalar]) -> Scalar:
        result = _scalar(getattr(ge, op)(_as(values[0], dtype)))
        return result if then is None else _as(result, then)

    return rule


def _multiply(values: list[Scalar]) -> Scalar:
    halves = [v for v in values if isinstance(v, float) and v and (1 / v).is_integer()]
    if halves and all(not _is_float(v) for v in values if v is not halves[0]):
        # s0/2 with integer s0: sympy keeps the rational factor only where the division leaves no rest
        rest = _multiply([v for v in values if v is not halves[0]])
        return _binary("FloorDiv", _INT)([rest, int(1 / halves[0])])
    return _fold("Mul")(values)


def _power(values: list[Scalar]) -> Scalar:
    base, exponent = values
    if isinstance(exponent, int) and not isinstance(exponent, bool) and 0 < exponent <= 8:
        (result,) = _aligned([base])
        factor = result
        for _ in range(exponent - 1):
            result = _scalar(ge.Mul(result, factor))
        return result
    if isinstance(exponent, int) and exponent == -1:
        return _scalar(ge.RealDiv(_as(1.0, _FLOAT), _as(base, _FLOAT)))
    return _binary("Pow")(values)


def _ceil_div(values: list[Scalar]) -> Scalar:
    a, b = _aligned(values, _INT)
    raised = _scalar(ge.Add(a, _scalar(ge.Sub(b, _as(1, _INT)))))
    return _scalar(ge.FloorDiv(raised, b))


def _modular_indexing(values: list[Scalar]) -> Scalar:
    base, divisor, modulus = _aligned(values, _INT)
    return _scalar(ge.FloorMod(_scalar(ge.FloorDiv(base, divisor)), modulus))


def _where(values: list[Scalar]) -> Scalar:
    condition, *branches = values
    a, b = _aligned(branches)
    return _scalar(ge.Select(_as(condition, DataType.DT_BOOL), a, b))


def _piecewise(values: list[Scalar]) -> Scalar:
    if len(values) == 2:
        return values[1]
    return _where([values[0], values[1], _piecewise(values[2:])])


_BOOL: Final = DataType.DT_BOOL
_RULES: Final[dict[str, Callable[[list[Scalar]], Scalar]]] = {
    "Add": _fold("Add"),
    "Mul": _multiply,
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _binary("Pow", _FLOAT),
    "FloorDiv": _binary("FloorDiv", _INT),
    "CleanDiv": _binary("FloorDiv", _INT),
    "CeilDiv": _ceil_div,
    "Mod": _binary("FloorMod", _INT),
    "PythonMod": _binary("FloorMod", _INT),
    "ModularIndexing": _modular_indexing,
    "IntTrueDiv": _binary("RealDiv", _FLOAT),
    "FloatTrueDiv": _binary("RealDiv", _FLOAT),
    "ToFloat": lambda v: _as(v[0], _FLOAT),
    "TruncToInt": lambda v: _as(_as(v[0], _FLOAT), _INT),
    "FloorToInt": _unary("Floor", then=_INT),
    "CeilToInt": _unary("Ceil", then=_INT),
    "RoundToInt": _unary("Round", then=_INT),
    "floor": _unary("Floor", then=_INT),
    "ceiling": _unary("Ceil", then=_INT),
    "TruncToFloat": lambda v: _as(_as(_as(v[0], _FLOAT), _INT), _FLOAT),
    "Identity": lambda v: v[0],
    "Abs": lambda v: _scalar(ge.Abs(_aligned(v)[0])),
    "Max": _fold("Maximum"),
    "Min": _fold("Minimum"),
    "Where": _where,
    "Piecewise": _piecewise,
    "LShift": lambda v: _binary("Mul", _INT)([v[0], _binary("Pow", _INT)([2, v[1]])]),
    "RShift": lambda v: _binary("FloorDiv", _INT)([v[0], _binary("Pow", _INT)([2, v[1]])]),
    "BitwiseFn_bitwise_and": _binary("BitwiseAnd", _INT),
    "BitwiseFn_bitwise_or": _binary("BitwiseOr", _INT),
    "BitwiseFn_bitwise_xor": _binary("BitwiseXor", _INT),
    "Equality": _binary("Equal"),
    "Unequality": _binary("NotEqual"),
    "StrictLessThan": _binary("Less"),
    "LessThan": _binary("LessEqual"),
    "StrictGreaterThan": _binary("Greater"),
    "GreaterThan": _binary("GreaterEqual"),
    "And": lambda v: _chain("LogicalAnd", v),
    "Or": lambda v: _chain("LogicalOr", v),
    "Not": _unary("LogicalNot", _BOOL),
    **{
        f"OpaqueUnaryFn_{name}": _unary(op)
        for name, op in {
            "sqrt": "Sqrt",
            "cos": "Cos",
            "cosh": "Cosh",
            "sin": "Sin",
            "sinh": "Sinh",
            "tan": "Tan",
            "tanh": "Tanh",
            "asin": "Asin",
            "acos": "Acos",
            "atan": "Atan",
            "exp": "Exp",
            "log": "Log",
            "asinh": "Asinh",
        }.items()
    },
}


def _chain(op: str, values: list[Scalar]) -> Scalar:
    first, *rest = (_as(v, _BOOL) for v in values)
    for v in rest:
        first = _scalar(getattr(ge, op)(first, v))
    return first
