"""The conditions of a ``torch.export`` program as data for the manifest: sympy expressions become nested lists."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sympy
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tair_export import errors
from tair_export.guards import Expr, function, holds, symbols
from tair_export.signature import Input
from torchair.artifact.size_conditions import to_data


@dataclass(frozen=True)
class Condition:
    """A guard.

    Attributes:
        own: Whether the model's own code asked, rather than torch on its way through an operator.
    """

    expr: Expr
    own: bool


def of_program(
    program: Any, inputs: Sequence[Input], value_of: Callable[[int], Any]
) -> tuple[dict[str, Expr], tuple[Condition, ...]]:
    """Sizes of inputs that are no plain symbols, and the guards, of a program.

    Errors: ArchiveError GE5030 for a condition that has no form as data; without it the graph would answer wrongly for
    sizes that it was not traced for.
    """
    env, sizes = None, {}
    for at in range(len(program.graph_signature.input_specs)):
        value = value_of(at)
        dims = value.shape if isinstance(value, torch.Tensor) else (value,)
        for dim in dims:
            if isinstance(dim, torch.SymInt):
                env = dim.node.shape_env
                if not dim.node.expr.is_Symbol and not dim.node.expr.is_number:
                    sizes[str(dim.node.expr)] = _data(dim.node.expr)
    if env is None:
        return {}, ()
    known = {d for i in inputs for d in (*i.shape, i.value) if isinstance(d, str)}
    known |= {str(s) for text in sizes.values() for s in symbols(text)}
    conditions: dict[str, Condition] = {}
    for guard in env.guards:
        expr = guard.expr.xreplace(env.replacements) if env.replacements else guard.expr
        if expr is sympy.true or expr == True:  # noqa: E712  sympy's own truth
            continue
        if {str(s) for s in expr.free_symbols} <= known:
            own = _is_own(guard) or (str(expr) in conditions and conditions[str(expr)].own)
            conditions[str(expr)] = Condition(_data(expr), own)
    return sizes, tuple(conditions.values())


_TORCH: Final = os.path.dirname(torch.__file__) + os.sep


def _is_own(guard: Any) -> bool:
    place = getattr(guard, "sloc", None)
    frame = getattr(place, "user_loc", None) or getattr(place, "framework_loc", None)
    name = getattr(frame, "filename", None)
    return name is None or not name.startswith(_TORCH)


def may_be_one(conditions: Sequence[Condition], symbol: str) -> bool:
    """Whether no guard of the model's own code on this symbol alone speaks against its being 1."""
    return all(holds(function(c.expr), {symbol: 1}) for c in conditions if c.own and symbols(c.expr) == {symbol})


def but_for_one(expr: Expr, limits: Mapping[str, tuple[int | None, int | None]], own: bool) -> Expr:
    """A guard that torch has set for itself, loosened for sizes 1 that were found to be served.

    Inside operators torch takes size 1 as another case and says so; the model's own conditions stand as they are.
    """
    served = [name for name in sorted(symbols(expr)) if limits.get(name, (None,))[0] == 1]
    return expr if own or not served else ["or", expr, *(["==", name, 1] for name in served)]


# Operators that only arrange what others compute; torch picks among them by strides, which size 1 changes.
_ARRANGE: Final = frozenset(
    (
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "clone",
        "contiguous",
        "alias",
        "detach",
        "permute",
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "as_strided",
        "slice",
        "select",
        "_reshape_alias",
        "lift_fresh_copy",
        "detach_",
    )
)


class OperatorRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Keeps the operators that run, and their numbers and texts.

    Attributes:
        ran: Name and arguments of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if name.split(".")[0] not in _ARRANGE:
            plain = [v for v in pytree.tree_leaves((args, kwargs)) if not isinstance(v, torch.Tensor)]
            self.ran.append((name, plain))
        return func(*args, **(kwargs or {}))


def same_operators(ones: Sequence[tuple[str, list[Any]]], usual: Sequence[tuple[str, list[Any]]]) -> bool:
    """Whether two runs are one program: the same operators, with arguments that differ only where they are sizes."""
    return [name for name, _ in ones] == [name for name, _ in usual] and all(
        len(a) == len(b) and all(_same(x, y) or (type(x) is type(y) is int and name in _SIZED) for x, y in zip(a, b))
        for (name, a), (_, b) in zip(ones, usual)
    )


def _same(x: Any, y: Any) -> bool:
    try:
        return bool(x == y)
    except NotImplementedError:  # an object of C++, such as a process group, that defines no comparison
        return x is y


# Operators that take sizes as arguments.
_SIZED: Final = frozenset(
    (
        "empty.memory_format",
        "full.default",
        "zeros.default",
        "ones.default",
        "arange.default",
        "arange.start",
        "arange.start_step",
        "new_empty.default",
        "new_full.default",
        "new_zeros.default",
        "new_ones.default",
        "rand.default",
        "randn.default",
        "eye.default",
        "repeat.default",
        "constant_pad_nd.default",
        "narrow.default",
        "split.Tensor",
        "split_with_sizes.default",
        "roll.default",
        "tril.default",
        "triu.default",
        "scalar_tensor.default",
        "_scaled_dot_product_flash_attention_for_cpu.default",
        "upsample_nearest2d.vec",
        "unfold.default",
        "linspace.default",
        "randint.default",
        "randperm.default",
        "upsample_bilinear2d.vec",
        "diagonal.default",
        "_adaptive_avg_pool2d.default",
        "native_group_norm.default",
    )
)


def _data(expr: Any) -> Expr:
    try:
        return to_data(expr)
    except ValueError as error:
        raise errors.unwritable(
            f"the condition '{expr}', under which the model was traced, has no form in an archive ({error})",
            "save with dynamic=False, or make the model not branch on it",
        ) from None
