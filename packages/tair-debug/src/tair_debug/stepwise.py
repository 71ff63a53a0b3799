"""An ATen graph that runs as far as somebody asks, the functions of its branches and loops too.

A control-flow node whose inside is asked for runs as a ``Region``: one function after the other, each as far as it is
asked for. What torch's operator does between its functions is written down once for each operator in ``_FORMS``.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

Call: TypeAlias = "tuple[tuple[Any, ...], dict[str, Any]]"
# Yields a function's slot, the function and its arguments; is sent its results; returns the node's results.
Runs: TypeAlias = "Generator[tuple[str, torch.fx.GraphModule, Sequence[Any]], Any, Any]"


@dataclass(slots=True)
class Wanted:
    """What will be asked for in one run of a graph.

    Attributes:
        values: Nodes to how often their values will be asked for.
        inside: Control-flow nodes to their functions' slots, to what will be asked for there.
    """

    values: Counter[torch.fx.Node] = field(default_factory=Counter)
    inside: dict[torch.fx.Node, dict[str, Wanted]] = field(default_factory=dict)


@dataclass(slots=True)
class Unasked:
    """The value of a node that nobody asks for, with how it came about.

    Attributes:
        target: What was called.
        args: Its arguments, values of this kind among them.
        kwargs: Those by keyword.
        value: The result.
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any = None


class Stepwise(torch.fx.Interpreter):  # type: ignore[misc]
    """A graph under way; it forgets what nobody needs.

    Args:
        gm: The graph.
        args: Its inputs.
        wanted: What will be asked for.
        stand_in: Gets a node and its value, and returns what stands for it.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        args: Sequence[Any],
        wanted: Wanted,
        stand_in: Callable[[torch.fx.Node, Any], Any] | None = None,
    ) -> None:
        super().__init__(gm)
        self._stand_in = stand_in
        self._calls: dict[torch.fx.Node, Call] = {}
        self._unasked: dict[torch.fx.Node, Unasked] = {}
        self.extra_traceback = False
        self.args_iter = iter(args)
        self._todo = {node: i for i, node in enumerate(gm.graph.nodes)}
        self._order = list(self._todo)
        self._done = 0
        self._wanted = Counter(wanted.values)
        self._inside = wanted.inside
        self._open: dict[torch.fx.Node, Region] = {}
        self._passed: dict[torch.fx.Node, Sequence[Any]] = {}
        self._kept: dict[torch.fx.Node, Any] = {}
        self._result: Any = None

    def take(self, node: torch.fx.Node) -> Any:
        """The value of a node, computed with everything before it; forgotten when it is asked for the last time."""
        while node not in self._kept:
            self._step()
        self._wanted[node] -= 1
        if self._wanted[node]:
            return self._kept[node]
        self._calls.pop(node, None)
        return self._kept.pop(node)

    def call_of(self, node: torch.fx.Node) -> Call:
        """The arguments of a node that will be asked for once more at least; those nobody asks for as ``Unasked``."""
        while node not in self._kept:
            self._step()
        return self._calls[node]

    def region(self, node: torch.fx.Node) -> Region:
        """The inside of a control-flow node, with everything before the node computed.

        One that was passed, because something after it was asked for first, runs once more.
        """
        region = self._open.get(node)
        if region is None:
            while self._done < self._todo[node]:
                self._step()
            args = self._passed.pop(node, None)
            if args is None:
                args, _ = self.fetch_args_kwargs_from_env(node)
            region = self._open[node] = Region(node.target, args, self._inside[node])
        return region

    def close(self, node: torch.fx.Node) -> None:
        """Nothing inside of the node will be asked for any more."""
        self._passed.pop(node, None)
        if self._todo[node] < self._done:
            self._open.pop(node, None)

    def finish(self) -> Any:
        """Compute the rest; returns the graph's results."""
        while self._done < len(self._order):
            self._step()
        return self._result

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node; one whose inside is under way goes on from there."""
        region = self._open.pop(n, None)
        if region is not None:
            return region.finish()
        if n in self._inside:
            self._passed[n], _ = self.fetch_args_kwargs_from_env(n)
        return super().run_node(n)

    def _step(self) -> None:
        node = self._order[self._done]
        if self._wanted[node]:
            self._calls[node] = self._call(node)
        elif node.op == "call_function" and (node.target is not operator.getitem or node.args[0] in self._unasked):
            self._unasked[node] = Unasked(node.target, *self._call(node))
        value = self.run_node(node)
        if self._stand_in is not None:
            value = self._stand_in(node, value)
        if node in self._unasked:
            self._unasked[node].value = value
        self.env[node] = value
        self._done += 1
        if self._wanted[node]:
            self._kept[node] = value
        if node.op == "output":
            self._result = value
        for done in self.user_to_last_uses.get(node, ()):
            self.env.pop(done, None)
            self._unasked.pop(done, None)

    def _call(self, node: torch.fx.Node) -> Call:
        def given(arg: torch.fx.Node) -> Any:
            return self._unasked[arg] if arg in self._unasked else self.env[arg]

        return torch.fx.node.map_arg(node.args, given), torch.fx.node.map_arg(node.kwargs, given)


class Region:
    """A control-flow node under way.

    Args:
        target: The higher-order operator.
        args: Its arguments.
        wanted: Slot of a function to what will be asked for in each of its runs.
    """

    def __init__(self, target: Any, args: Sequence[Any], wanted: Mapping[str, Wanted]) -> None:
        self._wanted = wanted
        self._runs = _FORMS[target.name()](target, *args)
        self._counts: Counter[str] = Counter()
        self._run: Stepwise | None = None
        self._slot = ""
        self._result: Any = None
        self._go_on(None)

    def at(self, slot: str, number: int) -> Stepwise | None:
        """A run of a function; None if the operator does not come by there (any more).

        Args:
            slot: Which function.
            number: Which of its runs, from 0; never less than in an earlier call.
        """
        while self._run is not None and (self._slot, self._counts[slot] - 1) != (slot, number):
            if self._counts[slot] > number:
                return None
            self._go_on(self._run.finish())
        return self._run

    def finish(self) -> Any:
        """Run the rest; returns the node's results."""
        while self._run is not None:
            self._go_on(self._run.finish())
        return self._result

    def _go_on(self, results: Any) -> None:
        try:
            self._slot, gm, args = self._runs.send(results)
        except StopIteration as end:
            self._run, self._result = None, end.value
            return
        self._counts[self._slot] += 1
        self._run = Stepwise(gm, args, self._wanted.get(self._slot, Wanted()))


def _cond(target: Any, chosen: Any, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> Runs:
    return (yield ("then_branch", then, operands) if bool(chosen) else ("else_branch", otherwise, operands))


def _call(target: Any, function: Any, *operands: Any) -> Runs:
    return (yield "f", function, operands)


def _named_call(target: Any, function: Any, name: Any, *operands: Any) -> Runs:
    return (yield "f", function, operands)


def _while(target: Any, cond: Any, body: Any, carried: Sequence[Any], more: Sequence[Any]) -> Runs:
    rounds: list[Sequence[Any]] = []
    stacks = "stack_output" in target.name()
    values = carried
    while True:
        holds = yield "cond", cond, (*values, *more)
        if not bool(holds[0] if isinstance(holds, (tuple, list)) else holds):
            break
        values = yield "body", body, (*values, *more)
        if stacks:
            rounds.append(values)
    if not stacks:
        return tuple(v.clone() if v is c and isinstance(v, torch.Tensor) else v for v, c in zip(values, carried))
    return _stacked(rounds or [carried])


def _scan(target: Any, function: Any, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any] = ()) -> Runs:
    carried, rows = list(init), list[Sequence[Any]]()
    if not xs[0].shape[0]:
        return target(function, init, xs, more)
    for i in range(xs[0].shape[0]):
        results = yield "body", function, (*carried, *(x[i] for x in xs), *more)
        carried, row = list(results[: len(init)]), results[len(init) :]
        rows.append(row)
    return (*carried, *_stacked(rows))


def _map(target: Any, function: Any, xs: Sequence[Any], more: Sequence[Any] = ()) -> Runs:
    rows = []
    if not xs[0].shape[0]:
        return target(function, xs, more)
    for i in range(xs[0].shape[0]):
        rows.append((yield "body", function, (*(x[i] for x in xs), *more)))
    return _stacked(rows)


def _stacked(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(torch.stack(values) if isinstance(values[0], torch.Tensor) else None for values in zip(*rows))


_FORMS: Final[dict[str, Callable[..., Runs]]] = {
    "cond": _cond,
    "invoke_subgraph": _named_call,
    "invoke_quant": _call,
    "invoke_quant_packed": _call,
    "while_loop": _while,
    "while_loop_stack_output": _while,
    "scan": _scan,
    "map_impl": _map,
}
