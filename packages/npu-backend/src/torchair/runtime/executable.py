"""From the arguments of an ATen graph to the inputs of a GE graph and back, as one small generated function.

Everything that can be decided once is decided when the function is written: which argument feeds which Data node, which
output is a result, a number, an argument handed back or nothing, which results are written into arguments, and which
memory order a result must have. A call runs straight through.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ge_converters.lowering.aliasing import Constant, InputAlias, Nothing, Result, ScalarResult
from ge_graph import program as build
from ge_graph.errors import EngineError, GeError
from torchair.runtime.views import View, ViewPlan

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered

Call = Callable[[list[Any]], Any]
_CONVERSIONS: dict[type, Callable[..., Any]] = {int: int, float: float, bool: bool}


def in_order(value: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """``value`` with its dimensions laid out in memory in ``order``, copied only if they are not."""
    moved = value.permute(order)
    if moved.is_contiguous():
        return value
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return moved.contiguous().permute(inverse)


def dense(value: torch.Tensor) -> torch.Tensor:
    """``value`` in row-major order, copied only if it is not."""
    return value if value.is_contiguous() else value.contiguous()


def laid_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """``value`` with exactly these strides, copied only if an element would lie elsewhere."""
    if value.stride() == strides:
        return value
    size = value.shape
    if not value.numel() or all(n == 1 or s == t for n, s, t in zip(size, value.stride(), strides)):
        return value.as_strided(size, strides)
    if any(n > 1 and s == 0 for n, s in zip(size, strides)):
        return dense(value)  # no view, so nothing to expand: GE computed each element
    return torch.empty_strided(size, strides, dtype=value.dtype, device=value.device).copy_(value)


class _Writer:
    """Builds the function; what is neither a number nor a value of the call stands behind a name."""

    def __init__(self, lowered: Lowered, plan: ViewPlan, run: Call, placed: Callable[[], None]) -> None:
        self.lowered = lowered
        self.plan = plan
        self.run = run
        self.placed = placed
        self.names = build.Names()
        self.lines: list[tuple[ast.stmt, str]] = []
        self.taken: dict[int, tuple[int, Any]] = {}
        self.local: dict[Any, str] = {}

    def program(
        self, questions: Sequence[tuple[Callable[..., bool], tuple[int, ...]]], told: Call | None
    ) -> build.Program:
        """The function; one that asks the questions first, and lets ``told`` make the call if an answer is yes."""
        lowered = self.lowered
        needed = {m.fx_index for m in lowered.mutations}
        needed |= {o.fx_index for o in lowered.outputs if isinstance(o, InputAlias)}
        args = build.name("args")
        if questions and told is not None:
            asked = [self._call(ask, *map(build.constant, given)) for ask, given in questions]
            self.lines.append((build.guard(asked, build.give(self._call(told, args, shown="told"))), ""))
        for i in sorted(needed):
            self._assign(f"a{i}", build.item(args, build.constant(i)))
        # neither list may keep an argument alive that the engine has done with: the engine empties the one it is given
        order = [b.fx_index for b in lowered.inputs]
        if order == list(range(lowered.placeholders)):
            self._run(args)
        else:
            self._assign("inputs", build.sequence([build.item(args, build.constant(i)) for i in order], as_list=True))
            self._do(build.call(build.attribute(args, "clear"), ()))
            self._run(build.name("inputs"))
        for m in lowered.mutations:
            self._do(build.call(build.attribute(build.name(f"a{m.fx_index}"), "copy_"), [_entry(m.ge_index)]))
        for i, (binding, value) in enumerate(zip(lowered.outputs, self.plan.returned, strict=True)):
            self._assign(f"o{i}", self._output(binding, value, i))
            if isinstance(value, torch.fx.Node):
                self.local[value] = f"o{i}"
        for i, view in enumerate(self.plan.views):
            self._assign(f"v{i}", self._view(view))
            self.local[view.node] = f"v{i}"
        self.lines.append((build.give(self._returned()), ""))
        return build.Program("call", ["args"], self.lines, self.names)

    def _run(self, inputs: ast.expr) -> None:
        results = build.assign("results", self._call(self.run, inputs, shown="run"))
        error = self.names.bind(GeError, "GeError", "k")
        self.lines.append((build.otherwise(results, error, build.do(self._call(self.placed))), ""))

    def _assign(self, name: str, value: ast.expr) -> None:
        self.lines.append((build.assign(name, value), ""))

    def _do(self, value: ast.expr) -> None:
        self.lines.append((build.do(value), ""))

    def _call(self, fn: Callable[..., Any], *args: ast.expr, shown: str = "", **keywords: ast.expr) -> ast.expr:
        name = self.names.bind(fn, shown or getattr(fn, "__name__", "function"))
        return build.call(build.name(name), args, keywords)

    def _view(self, view: View) -> ast.expr:
        keywords = {name: self._argument(a) for name, a in view.kwargs.items()}
        return self._call(view.target, *map(self._argument, view.args), **keywords)  # type: ignore[arg-type]

    def _argument(self, value: Any) -> ast.expr:
        if isinstance(value, torch.fx.Node):
            return build.name(self.local[value])
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return build.sequence([self._argument(v) for v in value], as_list=isinstance(value, list))
        if value is None or type(value) in (bool, int):
            return build.constant(value)
        return self._constant(value)

    def _constant(self, value: Any) -> ast.expr:
        shown = repr(value) if isinstance(value, (str, float)) else f"constant_{len(self.names.objects)}"
        return build.name(self.names.bind(value, shown, "k"))

    def _returned(self) -> ast.expr:
        parts = [self._argument(v) for v in self.plan.wanted]
        return parts[0] if self.lowered.nested is None else build.sequence(parts, as_list=False)

    def _output(self, binding: Any, node: Any, position: int) -> ast.expr:
        if isinstance(binding, Result):
            return self._result(binding, node, position)
        if isinstance(binding, ScalarResult):
            return self._call(_CONVERSIONS[binding.pytype], _entry(binding.ge_index))
        if isinstance(binding, InputAlias):
            return build.name(f"a{binding.fx_index}")
        if isinstance(binding, Constant):
            return self._constant(binding.value)
        if isinstance(binding, Nothing):
            return build.constant(None)
        raise TypeError(f"unknown output binding {binding!r}")

    def _result(self, binding: Result, node: Any, position: int) -> ast.expr:
        first, first_node = self.taken.setdefault(binding.ge_index, (position, node))
        if first != position:
            # one ATen value returned twice is one tensor, as in eager; two values that the lowering found equal are two
            same = build.name(f"o{first}")
            return same if first_node is node else self._call(torch.clone, same)
        value = _entry(binding.ge_index)
        if not binding.spec.size:
            return value
        strides = binding.spec.stride
        if strides is not None and all(type(n) is int for n in (*binding.spec.size, *strides)):
            return self._call(laid_out, value, self._argument(tuple(strides)))
        if binding.order:
            return self._call(in_order, value, self._argument(tuple(binding.order)))
        return self._call(dense, value)


def _entry(index: int) -> ast.expr:
    return build.item(build.name("results"), build.constant(index))


@dataclass(frozen=True, slots=True)
class Telling:
    """Who is told of each run, if anybody listens.

    Attributes:
        questions: Whether somebody does: a function and its arguments each, asked in every call.
        graph: Makes a run of the graph that tells of itself.
        call: Makes a call that tells of its arguments.
    """

    questions: Sequence[tuple[Callable[..., bool], tuple[int, ...]]]
    graph: Callable[[Call], Call]
    call: Callable[[Call], Call]


def bind(lowered: Lowered, run: Call, engine: str, plan: ViewPlan, telling: Telling | None = None) -> tuple[Call, str]:
    """The function that runs a compiled graph, and its text.

    Args:
        run: Runs the graph on a list of its inputs, which it empties.
        engine: Name of the engine, for errors.
        plan: What the caller expects of the graph's results.
        telling: Who wants to know of the runs. As long as nobody does, a call costs the questions.

    Returns:
        A function of one list of arguments, which it empties, and its text for people.
    """
    where = f"graph '{lowered.graph.name}' on engine '{engine}'"

    def placed() -> None:
        """Say of an error of the engine that is being handled where it happened."""
        error = sys.exc_info()[1]
        if not isinstance(error, GeError) or error.where:
            raise
        raise EngineError(error.code, error.what, where=where, next=error.next) from error

    def written(run: Call, told: Call | None) -> build.Program:
        asked = () if telling is None or told is None else telling.questions
        return _Writer(lowered, plan, run, placed).program(asked, told)

    if telling is None:
        quiet = written(run, None)
        return quiet.function, quiet.source

    @functools.cache
    def loud() -> Call:
        return telling.call(written(telling.graph(run), None).function)

    quiet = written(run, lambda args: loud()(args))
    return quiet.function, quiet.source
