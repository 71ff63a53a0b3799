"""From the arguments of an ATen graph to the inputs of a GE graph and back, as one small generated function.

Everything that can be decided once is decided when the function is written: which argument feeds which Data node, which
output is a result, a number, an argument handed back or nothing, which results are written into arguments, and which
memory order a result must have. A call runs straight through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ge_converters.lowering.aliasing import Constant, InputAlias, Nothing, Result, ScalarResult
from ge_graph.errors import EngineError, GeError
from torchair.views import View, ViewPlan

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from ge_runtime.api import Executable

_CONVERSIONS = {int: "int", float: "float", bool: "bool"}


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


class _Writer:
    """Writes the function; constants travel in ``names``."""

    def __init__(self, lowered: Lowered, plan: ViewPlan) -> None:
        self.lowered = lowered
        self.plan = plan
        self.names: dict[str, Any] = {"dense": dense, "in_order": in_order}
        self.taken: dict[int, tuple[int, Any]] = {}
        self.local: dict[Any, str] = {}

    def source(self) -> str:
        """The text of ``call(args)``."""
        lowered = self.lowered
        needed = {m.fx_index for m in lowered.mutations}
        needed |= {o.fx_index for o in lowered.outputs if isinstance(o, InputAlias)}
        used = sorted(needed | {b.fx_index for b in lowered.inputs})
        lines = ["def call(args):", *(f"    a{i} = args[{i}]" for i in used)]
        # the caller's list and these names must not keep an argument alive that the engine has done with
        lines.append("    args.clear()")
        lines.append(f"    inputs = [{', '.join(f'a{b.fx_index}' for b in lowered.inputs)}]")
        gone = [f"a{i}" for i in used if i not in needed]
        if gone:
            lines.append(f"    del {', '.join(gone)}")
        lines.append("    results = run(inputs)")
        lines += [f"    a{m.fx_index}.copy_(results[{m.ge_index}])" for m in lowered.mutations]
        lines += self._results()
        lines += [f"    {self._view(i, view)}" for i, view in enumerate(self.plan.views)]
        lines.append(f"    return {self._returned()}")
        return "\n".join(lines) + "\n"

    def _results(self) -> list[str]:
        lines = []
        for i, (binding, value) in enumerate(zip(self.lowered.outputs, self.plan.returned, strict=True)):
            lines.append(f"    o{i} = {self._output(binding, value, i)}")
            if isinstance(value, torch.fx.Node):
                self.local[value] = f"o{i}"
        return lines

    def _view(self, position: int, view: View) -> str:
        self.names[f"view_{position}"] = view.target
        args = [self._argument(a) for a in view.args]
        args += [f"{name}={self._argument(a)}" for name, a in view.kwargs.items()]
        self.local[view.node] = f"v{position}"
        return f"v{position} = view_{position}({', '.join(args)})"

    def _argument(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self.local[value]
        if isinstance(value, (list, tuple)):
            inner = ", ".join(map(self._argument, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if value else ''})"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"constant_{len(self.names)}"
        self.names[name] = value
        return name

    def _returned(self) -> str:
        parts = [self.local[v] if isinstance(v, torch.fx.Node) else self._argument(v) for v in self.plan.wanted]
        if self.lowered.nested is None:
            return parts[0]
        return f"({', '.join(parts)}{',' if parts else ''})"

    def _output(self, binding: Any, node: Any, position: int) -> str:
        if isinstance(binding, Result):
            return self._result(binding, node, position)
        if isinstance(binding, ScalarResult):
            return f"{_CONVERSIONS[binding.pytype]}(results[{binding.ge_index}])"
        if isinstance(binding, InputAlias):
            return f"a{binding.fx_index}"
        if isinstance(binding, Constant):
            return self._constant(binding.value)
        if isinstance(binding, Nothing):
            return "None"
        raise TypeError(f"unknown output binding {binding!r}")

    def _result(self, binding: Result, node: Any, position: int) -> str:
        first, first_node = self.taken.setdefault(binding.ge_index, (position, node))
        if first != position:
            # one ATen value returned twice is one tensor, as in eager; two values that the lowering found equal are two
            return f"o{first}" if first_node is node else f"o{first}.clone()"
        value = f"results[{binding.ge_index}]"
        if len(binding.spec.size) < 2:
            return value
        return f"in_order({value}, {binding.order!r})" if binding.order else f"dense({value})"


def bind(
    lowered: Lowered, executable: Executable, engine: str, plan: ViewPlan
) -> tuple[Callable[[list[Any]], Any], str]:
    """The function that runs a compiled graph, and its text.

    Args:
        lowered: Graph and bindings.
        executable: What the engine made of the graph.
        engine: Name of the engine, for errors.
        plan: What the caller expects of the graph's results.

    Returns:
        A function of one list of arguments, which it empties, and its source.
    """
    writer = _Writer(lowered, plan)
    source = writer.source()
    names = {**writer.names, "run": _with_context(executable.run, lowered.graph.name, engine)}
    exec(compile(source, f"<torchair {lowered.graph.name}>", "exec"), names)
    call: Callable[[list[Any]], Any] = names["call"]
    return call, source


def _with_context(
    run: Callable[[Sequence[Any]], list[Any]], graph: str, engine: str
) -> Callable[[Sequence[Any]], list[Any]]:
    def contextual(inputs: Sequence[Any]) -> list[Any]:
        try:
            return run(inputs)
        except GeError as error:
            if error.where:
                raise
            where = f"graph '{graph}' on engine '{engine}'"
            raise EngineError(error.code, error.what, where=where, next=error.next) from error

    return contextual
