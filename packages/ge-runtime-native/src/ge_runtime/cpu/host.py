"""Numbers that never become tensors: Shape results, INT32/INT64 scalars and short lists run as plain Python ints.

A rule gets the node as the planner sees it and returns one host value per output, or None if it does not apply. A host
value is an int, a bool, a ``Ref`` to a Python number of the program, or a list of these (a rank-1 tensor).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ge_graph.dtypes import DataType
from ge_runtime.cpu.registry import Ref
from ge_runtime.cpu.values import whole

HOST_DTYPES = frozenset({DataType.DT_INT32, DataType.DT_INT64, DataType.DT_BOOL})
MAX_LIST = 64

Number: TypeAlias = "int | bool | Ref"
Host: TypeAlias = "Number | list[Number]"
Rule: TypeAlias = "Callable[[Any], list[Host] | None]"

RULES: dict[str, Rule] = {}


def trunc_div(a: int, b: int) -> int:
    """Integer division that rounds towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def trunc_mod(a: int, b: int) -> int:
    """Remainder with the sign of the dividend."""
    return a - trunc_div(a, b) * b


def _both(a: Any, b: Any) -> bool:
    return bool(a and b)


def _either(a: Any, b: Any) -> bool:
    return bool(a or b)


def _choose(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


def _wrapping(fn: Callable[..., int], bits: int) -> Callable[..., int]:
    """``fn`` of one or two integers with the result that two's complement integers of so many bits give."""
    low, high, span = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 2**bits
    open_ = torch.SymInt if bits == 64 else None  # in a trace; compiled code computes in 64 bits

    def unary(a: int) -> int:
        value = fn(a)
        return value if type(value) is open_ or low <= value <= high else (value - low) % span + low

    def binary(a: int, b: int) -> int:
        value = fn(a, b)
        return value if type(value) is open_ or low <= value <= high else (value - low) % span + low

    wrapped = unary if fn in _ONE_OPERAND else binary
    wrapped.__name__ = f"{fn.__name__}{bits}"
    return wrapped


# Operator type to function, order of operands as in the schema. Arithmetic may leave the range of its type and wraps.
_ARITHMETIC: dict[str, Callable[..., int]] = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "Div": operator.floordiv,  # GE rounds integer quotients towards minus infinity
    "Neg": operator.neg,
    "Abs": operator.abs,
    "Cast": whole,
}
_ONE_OPERAND = (operator.neg, operator.abs, whole)
_WITHIN: dict[str, Callable[..., int]] = {
    "FloorMod": operator.mod,
    "Mod": trunc_mod,
    "Maximum": max,
    "Minimum": min,
}
_PREDICATES: dict[str, Callable[..., bool]] = {
    "Less": operator.lt,
    "LessEqual": operator.le,
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
    "LogicalAnd": _both,
    "LogicalOr": _either,
    "LogicalNot": operator.not_,
}
_DIVISIONS = ("FloorDiv", "Div", "FloorMod", "Mod")
_WRAPPED = {
    (op, dtype): _wrapping(fn, bits)
    for op, fn in _ARITHMETIC.items()
    for dtype, bits in ((DataType.DT_INT32, 32), (DataType.DT_INT64, 64))
}
_PASS = ("Identity", "TensorMove", "Snapshot", "StopGradient", "Clone")


def _function(op: str, dtype: DataType) -> Callable[..., Any] | None:
    """What computes one element of a result of this type; None if that is a kernel's work."""
    if dtype is DataType.DT_BOOL:
        return _PREDICATES.get(op)
    return _WITHIN.get(op) or _WRAPPED.get((op, dtype))


def _apply(ctx: Any, fn: Callable[..., Any], args: Sequence[Number]) -> Number:
    if any(isinstance(a, Ref) for a in args):
        number: Ref = ctx.number(fn, *args)
        return number
    value: Number = fn(*args)
    return value


def _binary(ctx: Any) -> list[Host] | None:
    fn = _function(ctx.node.op, ctx.out_dtype())
    names = ctx.ports
    a, b = ctx.host(names[0]), ctx.host(names[1])
    if fn is None or a is None or b is None:
        return None
    if ctx.node.op in _DIVISIONS and any(
        not isinstance(d, Ref) and d == 0 for d in (b if isinstance(b, list) else [b])
    ):
        return None
    if not isinstance(a, list) and not isinstance(b, list):
        return [_apply(ctx, fn, (a, b))]
    left = a if isinstance(a, list) else [a]
    right = b if isinstance(b, list) else [b]
    n = len(left) if len(right) == 1 else len(right)
    if {len(left), len(right)} - {1, n}:
        return None
    left, right = (left * n if len(left) == 1 else left), (right * n if len(right) == 1 else right)
    return [[_apply(ctx, fn, pair) for pair in zip(left, right, strict=True)]]


def _unary(ctx: Any) -> list[Host] | None:
    fn = _function(ctx.node.op, ctx.out_dtype())
    x = ctx.host(ctx.ports[0])
    return None if fn is None or x is None else _map(ctx, x, fn)


for _op in (*_ARITHMETIC, *_WITHIN, *_PREDICATES):
    RULES[_op] = _unary if _op in ("Neg", "Abs", "LogicalNot") else _binary
for _op in _PASS:
    RULES[_op] = lambda ctx: _known(ctx.host(ctx.ports[0]))


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def enter(fn: Rule) -> Rule:
        for op in ops:
            RULES[op] = fn
        return fn

    return enter


def _known(value: Any) -> list[Host] | None:
    return None if value is None else [value]


def _only(value: Any) -> Any:
    """The number of a list of one; anything else is itself."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


RULES["Shape"] = lambda ctx: _known(ctx.dims(ctx.ports[0]))
RULES["Rank"] = lambda ctx: _known(None if (shape := ctx.shape(ctx.ports[0])) is None else len(shape))


@_rule("Size")
def _size(ctx: Any) -> list[Host] | None:
    dims = ctx.dims(ctx.ports[0])
    if dims is None:
        return None
    total: Number = 1
    for d in dims:
        total = _apply(ctx, _WRAPPED["Mul", ctx.out_dtype()], (total, d))
    return [total]


@_rule("Cast")
def _cast(ctx: Any) -> list[Host] | None:
    x, source, target = ctx.host("x"), ctx.dtype("x"), ctx.out_dtype()
    if x is None:
        return None
    if target is DataType.DT_BOOL:
        return _map(ctx, x, bool)
    if source is DataType.DT_BOOL:
        return _map(ctx, x, int)
    return [x] if target is DataType.DT_INT64 or source is target else _map(ctx, x, _WRAPPED["Cast", target])


def _map(ctx: Any, x: Host, fn: Callable[[Any], Any]) -> list[Host]:
    return [[_apply(ctx, fn, (v,)) for v in x] if isinstance(x, list) else _apply(ctx, fn, (x,))]


@_rule("Gather", "GatherV2")
def _gather(ctx: Any) -> list[Host] | None:
    x, index = ctx.host("x"), ctx.const("indices")
    axis = _only(ctx.const("axis")) if ctx.node.op == "GatherV2" else 0
    if not isinstance(x, list) or index is None or axis not in (0, -1) or ctx.attr("batch_dims", 0) != 0:
        return None
    picked = index if isinstance(index, list) else [index]
    lowest = -len(x) if ctx.attr("negative_index_support", False) else 0
    if not all(isinstance(i, int) and lowest <= i < len(x) for i in picked):
        return None
    return [[x[i] for i in index] if isinstance(index, list) else x[index]]


@_rule("Pack")
def _pack(ctx: Any) -> list[Host] | None:
    parts = ctx.hosts("x")
    if parts is None or any(isinstance(p, list) for p in parts) or ctx.attr("axis", 0) not in (0, -1):
        return None
    return [parts]


@_rule("Concat", "ConcatD", "ConcatV2", "ConcatV2D")
def _concat(ctx: Any) -> list[Host] | None:
    parts = ctx.hosts("x")
    if parts is None or not all(isinstance(p, list) for p in parts):
        return None
    return [[v for p in parts for v in p]]


RULES["Unpack"] = lambda ctx: (
    list(x) if isinstance(x := ctx.host("x"), list) and len(x) == len(ctx.node.outputs) else None
)


@_rule("Squeeze", "SqueezeV2", "SqueezeV3")
def _squeeze(ctx: Any) -> list[Host] | None:
    x = ctx.host("x")
    axes = ctx.attr("axis", ())
    if not isinstance(x, list) or len(x) != 1 or tuple(axes) not in ((), (0,), (-1,)):
        return None
    return [x[0]]


@_rule("Unsqueeze", "ExpandDims")
def _unsqueeze(ctx: Any) -> list[Host] | None:
    x = ctx.host("x")
    axis = _only(ctx.const("axis") if ctx.node.op == "ExpandDims" else list(ctx.attr("axes", (0,))))
    return None if x is None or isinstance(x, list) or axis not in (0, -1) else [[x]]


@_rule("Reshape")
def _reshape(ctx: Any) -> list[Host] | None:
    x, shape = ctx.host("x"), ctx.const("shape")
    if x is None or not isinstance(shape, list) or ctx.attr("axis", 0) != 0 or ctx.attr("num_axes", -1) != -1:
        return None
    if shape == []:
        return None if isinstance(x, list) and len(x) != 1 else [x[0] if isinstance(x, list) else x]
    values = x if isinstance(x, list) else [x]
    return [values] if shape in ([-1], [len(values)]) else None


@_rule("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
def _reduce(ctx: Any) -> list[Host] | None:
    x, axis = ctx.host("x"), _only(ctx.const("axes"))
    if not isinstance(x, list) or axis not in (0, -1) or ctx.attr("keep_dims", False) or not x:
        return None
    step = {"ReduceProd": "Mul", "ReduceSum": "Add", "ReduceMax": "Maximum", "ReduceMin": "Minimum"}[ctx.node.op]
    fn = _function(step, ctx.out_dtype())
    if fn is None:
        return None
    total = x[0]
    for v in x[1:]:
        total = _apply(ctx, fn, (total, v))
    return [total]


@_rule("Slice")
def _slice(ctx: Any) -> list[Host] | None:
    x, start, size = ctx.host("x"), ctx.const("offsets"), ctx.const("size")
    if not isinstance(x, list) or not isinstance(start, list) or not isinstance(size, list) or len(start) != 1:
        return None
    return [x[start[0] :] if size[0] == -1 else x[start[0] : start[0] + size[0]]]


@_rule("Select", "SelectV2")
def _select(ctx: Any) -> list[Host] | None:
    condition, a, b = (ctx.host(p) for p in ctx.ports[:3])
    if condition is None or a is None or b is None or any(isinstance(v, list) for v in (condition, a, b)):
        return None
    if isinstance(condition, Ref):
        return [ctx.number(_choose, condition, a, b)]
    return [a if condition else b]


def hostable(node: Any) -> bool:
    """Whether a rule may apply: the operator has one and every result is of an integer type."""
    return node.op in RULES and all(t.dtype in HOST_DTYPES for t in node.outputs)
