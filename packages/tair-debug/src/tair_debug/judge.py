"""Whether a result is as near to the truth as eager's.

The truth is the same operator in float64. Eager is some way off it, since its type rounds; ours may be as far, and no
further. What a sum loses goes with the sizes of its terms, not of the sum: that is added for operators that accumulate.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from ge_converters.base.torch_compat import plain_eager
from tair_debug.measure import Measure, Tolerance, measure
from tair_debug.stepwise import Call, Unasked

_UNITS: Final = 2  # in the last place, whatever eager does: a rounding more, or the other way
_SHARE: Final = 4  # times eager's largest error: the largest of other roundings of as many elements is within that
_ORDER: Final = 0.5  # times the size of the terms, in units of float32
_DEPTH: Final = 3  # times the size of the result, likewise, for what accumulates otherwise
_WIDE: Final = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
_SUMS: Final = frozenset(
    (
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "linear",
        "convolution",
        "convolution_backward",
        "sum",
        "mean",
        "cumsum",
        "index_add",
        "scatter_add",
        "index_put",
        "embedding_dense_backward",
        "avg_pool2d",
        "_adaptive_avg_pool2d",
        "avg_pool2d_backward",
        "_adaptive_avg_pool2d_backward",
        "upsample_bilinear2d",
    )
)
"""Operators that are sums of products of their operands, so that absolute operands give the size of the terms."""
_BY_VALUE: Final = frozenset(
    ("sort", "topk", "argsort", "argmax", "argmin", "max", "min", "kthvalue", "median", "nanmedian", "mode")
)
_ALL_DIFFERENT: Final = frozenset(("sort", "topk", "argsort"))
_CHANCE: Final = ("dropout_p", "p")


def arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name of a parameter to what is given for it, or its default."""
    return {
        a.name: kwargs.get(a.name, args[i] if i < len(args) else a.default_value)
        for i, a in enumerate(target._schema.arguments)
    }


def name_of(target: Any) -> str:
    """``sum`` for all overloads of ``aten.sum``; empty for what is no operator of ATen."""
    return str(target.name()).removeprefix("aten::").partition(".")[0] if _aten(target) else ""


def _aten(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"


def draws(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers: it may, and its probability is not zero, and it is told to train."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = arguments(target, node.args, node.kwargs)
    if given.get("train", given.get("training")) is False:
        return False
    chance = next((given[name] for name in _CHANCE if name in given), None)
    return not (isinstance(chance, (int, float)) and chance == 0)


def undefined(node: torch.fx.Node) -> bool:
    """Whether a node's elements are whatever lay in memory."""
    return name_of(node.target) in (
        "empty",
        "new_empty",
        "empty_like",
        "empty_strided",
        "new_empty_strided",
        "empty_permuted",
    )


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(_WIDE.get(value.dtype, value.dtype))
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def widened(values: Any) -> Any:
    """Arguments with all floating point tensors, and types asked for, as float64."""
    return torch.utils._pytree.tree_map(_wide, values)


def plain(call: Call) -> Call:
    """Arguments as eager had them."""
    return torch.utils._pytree.tree_map_only(Unasked, lambda v: v.value, call)  # type: ignore[no-any-return]


def true(call: Call) -> Call:
    """Arguments of which those that the GE graph does not have are computed in float64, from what it has."""
    return torch.utils._pytree.tree_map_only(Unasked, _true, call)  # type: ignore[no-any-return]


def _true(value: Unasked) -> Any:
    args, kwargs = true((value.args, value.kwargs))
    if value.target is operator.getitem:
        return args[0][args[1]]
    found = truth(value.target, args, kwargs)
    return value.value if found is None else found


def truth(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, terms: bool = False) -> Any:
    """What an operator gives in float64; None if it has no kernel for that, or draws.

    Args:
        target: The operator.
        args: Its arguments.
        kwargs: Those by keyword.
        terms: Of absolute operands, for operators that accumulate; None for others.
    """
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if terms and name_of(target) not in _SUMS:
        return None
    args, kwargs = widened((tuple(args), dict(kwargs)))
    if terms:
        args = torch.utils._pytree.tree_map_only(torch.Tensor, _absolute, args)
    try:
        with plain_eager():
            return target(*args, **kwargs)
    except Exception:  # noqa: BLE001 - kernels say in many ways that they have no such type
        return None


def _absolute(value: torch.Tensor) -> torch.Tensor:
    return value.abs() if value.is_floating_point() else value


class Truth(torch.fx.Interpreter):  # type: ignore[misc]
    """A whole graph in float64."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.extra_traceback = False

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call with types widened."""
        args, kwargs = widened((args, kwargs))
        return super().call_function(target, args, kwargs)


def truth_of_graph(gm: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
    """The results of a graph in float64; None if it draws, branches or has an operator without such a kernel."""
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    if any(draws(n) or isinstance(n.target, torch._ops.HigherOrderOperator) for n in nodes):
        return None
    try:
        with plain_eager():
            return Truth(gm).run(*widened(tuple(args)))
    except Exception:  # noqa: BLE001 - likewise
        return None


def judge(
    got: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    true: Any,
    *,
    pointwise: bool = False,
    terms: Any = None,
) -> Measure:
    """Compare with eager, and both with the truth.

    Args:
        got: Ours.
        expected: Eager's.
        tolerance: Numbers of the user, which then decide alone.
        true: The same in float64; None leaves the tolerance of the type.
        pointwise: Whether each element is made of one element of each operand.
        terms: The sum of the absolute terms of each element, for operators that accumulate.
    """
    measured = measure(got, expected, tolerance)
    wide = _WIDE.get(expected.dtype)
    given = tolerance.rtol is not None or tolerance.atol is not None
    if given or wide is None or measured.why or not measured.max_abs:
        return measured
    if not isinstance(true, torch.Tensor) or true.dtype is not wide or true.shape != expected.shape:
        return measured
    info = torch.finfo(expected.dtype)
    a, b = got.detach().to(wide), expected.detach().to(wide)
    sure = b.isfinite() & true.isfinite()
    size = torch.where(sure, true.abs(), 0.0)
    eagers = torch.where(sure, (b - true).abs(), 0.0)
    allowed = _UNITS * info.eps * size + _SHARE * eagers.max() + 2 * info.tiny * info.eps
    unit = torch.finfo(torch.float32).eps  # what is summed up or normalised is so in float32, in another order
    if isinstance(terms, torch.Tensor) and terms.shape == expected.shape and not terms.is_complex():
        allowed += _ORDER * unit * torch.where(terms.isfinite(), terms, 0.0)
    elif not pointwise:
        allowed += _DEPTH * unit * size.max()
    near = (a - true).abs() <= allowed
    same = (got == expected) | (a.isnan() & b.isnan())
    rtol, atol = tolerance.of(expected.dtype)
    unsure = ~sure & ((a - b).abs() <= atol + rtol * b.abs()) & b.isfinite()
    bad = int((~same & ~(sure & near) & ~unsure).sum())
    return replace(measured, ok=bad == 0, bad=bad)


def same_by_value(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], got: torch.Tensor, expected: torch.Tensor
) -> bool:
    """Whether indices name equal elements, as indices of equal keys may be in any order."""
    name = name_of(target)
    if name not in _BY_VALUE or expected.dtype is not torch.int64 or got.shape != expected.shape:
        return False
    given = arguments(target, args, kwargs)
    x, dim = given.get("self"), given.get("dim")
    if given.get("stable") is True or not isinstance(x, torch.Tensor) or got.dtype is not expected.dtype:
        return False
    if dim is None:
        x, dim, got, expected = x.reshape(-1), 0, got.reshape(-1), expected.reshape(-1)
    elif got.dim() < x.dim():
        got, expected = got.unsqueeze(dim), expected.unsqueeze(dim)
    if not x.dim():
        x, got, expected = x.reshape(1), got.reshape(1), expected.reshape(1)
    if bool(((got < 0) | (got >= x.shape[dim])).any()):
        return False
    ours, eagers = x.gather(dim, got), x.gather(dim, expected)
    if not bool(((ours == eagers) | ((ours != ours) & (eagers != eagers))).all()):
        return False
    order = got.sort(dim).values
    return name not in _ALL_DIFFERENT or not bool((order.diff(dim=dim) == 0).any())
