"""The embedded engine: checks a graph, plans it once, runs it any number of times."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import numpy as np
import torch

from ge_graph import escape
from ge_graph.collection import no_collection
from ge_graph.errors import EngineError
from ge_graph.ir import Graph, Literal, Node, Tensor
from ge_graph.verify import verify
from ge_runtime import errors
from ge_runtime.api import Capability
from ge_runtime.cpu.chip_numbers import ACCEPTED, ChipNumbers, Rounding, numbers_of
from ge_runtime.cpu.known_inputs import KnownInputs
from ge_runtime.cpu.own_calls import kernel_of
from ge_runtime.cpu.plan_context import own_results
from ge_runtime.cpu.planner import Planner, check_kernels, schedule
from ge_runtime.cpu.program import EngineProgram
from ge_runtime.cpu.subgraphs import Reporter, every, inside
from ge_runtime.cpu.torch_compat import profiling
from ge_runtime.cpu.values import TORCH_OF, constant, describe, from_numpy, torch_dtype

if TYPE_CHECKING:
    from ge_runtime.cpu.inductor import InductorProgram

_PROGRAM: Final = "TAIR_CPU_PROGRAM"
_OPTIONS = {
    "engine.shuffle_seed": "an integer: run the nodes in a random order that data and control edges permit",
    "engine.written": "pairs '3:0,5:2' of an input and the result that the caller writes into it after each run: the "
    "result may be computed there, and is that very tensor then",
    "engine.program": "'aten' (the engine's kernels, one after the other) or 'inductor' (the same calculation, "
    "fused and compiled by torch's Inductor, not with engine.numerics); the variable TAIR_CPU_PROGRAM says it for all "
    "graphs that do not round as a chip does",
    "engine.check": "'first' (check every result's type and size in the first run), 'never', or 'always' if "
    "engine.program is 'aten'",
    "engine.numerics": f"round where a chip rounds, by GE's options of precision: {', '.join(ACCEPTED)}",
    "engine.numerics_of": "with engine.numerics: a JSON list of the operators that round, by name; NODE/SLOT/NODE for "
    "those in branches and loops",
}


class CpuEngine:
    """Runs GE graphs on the CPU with ATen kernels written from the operators' definitions."""

    name = "cpu"

    def probe(self) -> Capability:
        """Always available: this module could not be imported without torch."""
        return Capability(True, f"embedded engine on torch {torch.__version__}", ("cpu",))

    def place(self, value: Literal) -> torch.Tensor:
        """A constant as a tensor of its own."""
        return constant(value).clone()

    def opened_groups(
        self, groups: Mapping[str, Sequence[int]], seconds: float
    ) -> contextlib.AbstractContextManager[None]:
        """Inside, the process groups that a graph names exist, by torch.distributed with gloo.

        Errors: EngineError GE4011 if the processes do not find each other.
        """
        from ge_runtime.cpu.groups import opened_groups

        return opened_groups(groups, seconds)

    def compile(self, graph: Graph, options: Mapping[str, str]) -> CpuExecutable:
        """Verify and plan the graph.

        Errors:
            GraphError if the graph breaks its schemas; EngineError GE4003 naming every operator without kernel,
            GE4007 for an engine option that is not known, GE4009 for a form of an operator that is refused.
        """
        with no_collection():
            verify(graph)
            chosen = _read_options(graph, options)
            order = schedule(graph, chosen.seed)
            check_kernels(self.name, order)
            numbers = numbers_of(graph, options, chosen.rounding)
            if numbers.left:
                said = "; ".join(numbers.left)
                warnings.warn(f"torchair: engine.numerics leaves something to a device: {said}", stacklevel=2)
            return CpuExecutable(graph, order, chosen, numbers)


class Options(NamedTuple):
    """The engine's options, as ``_OPTIONS`` explains them."""

    seed: int | None = None
    check: str = "first"
    written: Mapping[int, int] = MappingProxyType({})
    inductor: bool = False
    rounding: frozenset[str] | None = None


def _read_options(graph: Graph, options: Mapping[str, str]) -> Options:
    """Options of other engines pass; a name under ``engine.`` must be ours."""
    own = {name: value for name, value in options.items() if name.startswith("engine.")}
    rounds = "engine.numerics" in own  # Inductor leaves out casts there and back
    if "engine.program" not in own and os.environ.get(_PROGRAM) and not rounds:
        own["engine.program"] = os.environ[_PROGRAM]
    inductor = own.get("engine.program") == "inductor"
    seed, check = own.get("engine.shuffle_seed", ""), own.get("engine.check", "first")
    pairs = [pair.split(":") for pair in own.get("engine.written", "").split(",") if pair]
    written = {int(p[0]): int(p[1]) for p in pairs if len(p) == 2 and all(n.isdecimal() for n in p)}
    rounding = _names(own.get("engine.numerics_of"))
    within = all(i < len(graph.inputs) and o < len(graph.outputs) for i, o in written.items())
    fits = {
        "engine.shuffle_seed": seed.lstrip("-").isdigit(),
        "engine.program": own.get("engine.program") in ("aten", "inductor")[: 1 if rounds else 2],
        "engine.check": check in ("first", "never") or (check == "always" and not inductor),
        "engine.numerics": own.get("engine.numerics") in ACCEPTED,
        "engine.numerics_of": rounding is not None and rounds,
        "engine.written": bool(pairs) and len(written) == len(pairs) and within,
    }
    for name, value in own.items():
        if not fits.get(name, False):
            raise errors.bad_option(name, value, _OPTIONS.get(name) or ", ".join(sorted(_OPTIONS)))
    return Options(int(seed) if seed else None, check, written, inductor, rounding)


def _names(text: str | None) -> frozenset[str] | None:
    """The names of a JSON list; None if it is none."""
    try:
        names = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    good = isinstance(names, list) and all(isinstance(n, str) for n in names)
    return frozenset(names) if good else None


class CpuExecutable:
    """A planned graph. Runs are independent of each other and may overlap in threads."""

    def __init__(
        self, graph: Graph, order: Sequence[Node], options: Options = Options(), numbers: ChipNumbers | None = None
    ) -> None:
        self._graph, self._order, self._options = graph, order, options
        self._numbers = numbers or ChipNumbers()
        self._check = options.check
        self._constants: dict[Tensor, torch.Tensor] = {}
        self._planner: Planner | None = self._plan(trace=False)
        self._traced: EngineProgram | None = None
        self._inputs = [_InputRule(i, node) for i, node in enumerate(graph.inputs)]
        self._rules = [(r.dtype, r.size, r.rank, r.pinned) for r in self._inputs]
        self._equal = _equal_sizes(self._inputs)
        self._known = KnownInputs([r.shape for r in self._inputs])
        self._references = [i for i, node in enumerate(graph.inputs) if node.op == "RefData"]

    def _plan(self, trace: bool, recorded: bool = False) -> Planner:
        with no_collection():
            return Planner(
                self._graph,
                self._order,
                trace=trace,
                constants=self._constants,
                seed=self._options.seed,
                written=self._options.written,
                compiled=self._options.inductor,
                numbers=self._numbers.rules,
                recorded=recorded,
            ).walk()

    @cached_property
    def _program(self) -> EngineProgram | InductorProgram:
        """Made when a run needs it: the first one is checked, with the traced program."""
        planner = self._planner or self._plan(trace=False)
        self._planner = None
        if self._options.inductor:
            from ge_runtime.cpu.inductor import InductorProgram  # loads torch's tracing, which nobody else needs

            return InductorProgram(self._graph, self._order, planner.plain())
        return planner.program()

    @cached_property
    def _recorded(self) -> EngineProgram | InductorProgram:
        """The program whose nodes ``torch.profiler`` sees; Inductor's has none any more."""
        return self._program if self._options.inductor else self._plan(trace=False, recorded=True).program()

    def _run_program(self, inputs: list[Any]) -> list[torch.Tensor]:
        return (self._recorded if profiling() else self._program).run(inputs)

    @property
    def rounded(self) -> list[Rounding]:
        """The operators that round as a chip does (``engine.numerics``), in the order of the graph."""
        return list(self._numbers.rules.values())

    @property
    def source(self) -> str:
        """The program that ``run`` executes, as Python text."""
        return self._program.source

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run the graph; see ``ge_runtime.api.Executable.run``."""
        if self._check != "never":
            return self._run_checked(inputs)
        return self._run(self._taken(inputs))

    def boxed(self, *, guarded: bool) -> Callable[[list[Any]], list[torch.Tensor]]:
        """``run`` on a list that is emptied; see ``ge_runtime.api.boxed``."""
        numbers = [rule for rule in self._inputs if rule.shape == ()]
        direct = guarded and not numbers and not self._references
        at_once: Callable[[list[Any]], list[torch.Tensor]] | None = None

        def run_boxed(inputs: list[Any]) -> list[torch.Tensor]:
            nonlocal at_once
            if self._check != "never":
                results = self._run_checked(inputs)
                inputs.clear()
                return results
            if at_once is not None:
                return self._recorded.run(inputs) if profiling() else at_once(inputs)
            if direct:
                at_once = self._program.run
                return self._run_program(inputs)
            if not guarded:
                inputs[:] = self._taken(inputs)
            for rule in numbers:
                if not isinstance(inputs[rule.index], torch.Tensor) and not self._kept(rule, inputs[rule.index]):
                    inputs[rule.index] = rule.adopt(inputs[rule.index])
            return self._run(inputs)

        return run_boxed

    def _run_checked(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A run that compares every result with what the graph declares."""
        if self._check == "first":
            self._check = "never"
        if self._options.inductor:  # what cannot be compiled is refused before anything runs
            cast("InductorProgram", self._program).prepare(self._taken(inputs))
        checker = _Checker(self._order, self._graph)
        return self.run_traced(inputs, checker.on_node)

    def run_traced(
        self, inputs: Sequence[Any], on_node: Callable[[Node, Sequence[Any], Sequence[Any]], None]
    ) -> list[torch.Tensor]:
        """Run and report every node but Data and Const, those of inner graphs as often as they run; values are freed
        as in ``run``."""
        if self._traced is None:
            known = self._planner
            planner = known if known is not None and known.traces else self._plan(trace=True)
            self._traced = planner.traced()
        args = self._adopt(inputs)
        results = self._traced.run(*args, Reporter(on_node, self._order))
        self._written(args)
        return results

    def _taken(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs as the program takes them."""
        adopted = list(self._adopt(inputs))
        for rule, value in zip(self._inputs, inputs) if self._options.inductor else ():
            if self._kept(rule, value):
                adopted[rule.index] = value
        return adopted

    def _kept(self, rule: _InputRule, value: Any) -> bool:
        """Whether a number goes into the program as such: for Inductor it may be a size, which stays open."""
        return self._options.inductor and type(value) is int and rule.dtype in (torch.int32, torch.int64)

    def _run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program on a list of its own, which is emptied."""
        if not self._references:
            return self._run_program(inputs)
        references = {i: inputs[i] for i in self._references}
        results = self._run_program(inputs)
        self._written(references)
        return results

    def _written(self, inputs: Any) -> None:
        """Tell autograd that the references were written."""
        for index in self._references:
            torch.autograd.graph.increment_version(inputs[index])

    def _adopt(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs as tensors of the declared types and sizes."""
        if type(inputs) is list and self._known.fits(inputs):
            if self._equal:
                self._compare(inputs)
            return inputs
        if not isinstance(inputs, Sequence) or isinstance(inputs, (str, bytes)):
            raise errors.bad_input(f"run takes a list of inputs, got {type(inputs).__name__}")
        if len(inputs) != len(self._rules):
            name = escape.line(self._graph.name, 200)
            raise errors.bad_input(f"graph '{name}' takes {len(self._rules)} inputs, got {len(inputs)}")
        for value, (dtype, size, rank, pinned) in zip(inputs, self._rules):
            if not isinstance(value, torch.Tensor) or value.dtype is not dtype:
                break
            if not value.is_cpu or value.layout is not torch.strided:
                break
            if value.shape != size if size is not None else value.dim() != rank:
                break
            if pinned and any(value.shape[axis] != length for axis, length in pinned):
                break
        else:
            if self._equal:
                self._compare(inputs)
            self._known.learn(inputs)
            return inputs
        adopted = [rule.adopt(value) for rule, value in zip(self._inputs, inputs, strict=True)]
        self._compare(adopted)
        return adopted

    def _compare(self, values: Sequence[torch.Tensor]) -> None:
        """Sizes of one name are one number."""
        for first, axis, other, place, name in self._equal:
            if (got := values[other].shape[place]) != (wanted := values[first].shape[axis]):
                raise errors.bad_input(
                    f"size {place} of input {other} is {got}, size {axis} of input {first} is {wanted}; the graph "
                    f"calls both {escape.line(name, 200)}"
                )


def _equal_sizes(inputs: Sequence[_InputRule]) -> list[tuple[int, int, int, int, str]]:
    """Input and axis where a named size stands first, with input and axis of each place where it stands again."""
    first: dict[str, tuple[int, int]] = {}
    again = []
    for rule in inputs:
        for axis, length in enumerate(rule.shape or ()):
            if isinstance(length, str):
                place = first.setdefault(length, (rule.index, axis))
                if place != (rule.index, axis):
                    again.append((*place, rule.index, axis, length))
    return again


class _InputRule:
    """What a Data node accepts."""

    def __init__(self, index: int, node: Node) -> None:
        edge = node.outputs[0]
        self.index = index
        self.name = node.name
        self.dtype = torch_dtype(edge.dtype)
        self.ge_dtype = edge.dtype
        self.shape = edge.known_shape
        fixed = self.shape is not None and all(isinstance(d, int) and d >= 0 for d in self.shape)
        self.size = self.shape if fixed else None
        self.rank = None if self.shape is None else len(self.shape)
        known = () if fixed or self.shape is None else enumerate(self.shape)
        self.pinned = tuple((axis, d) for axis, d in known if isinstance(d, int) and d >= 0)

    def adopt(self, value: Any) -> torch.Tensor:
        """The value as a tensor.

        Errors:
            EngineError GE4004 if type or size is not the declared one.
        """
        if isinstance(value, (np.ndarray, np.generic)):
            value = self._from_numpy(np.asarray(value))
        elif isinstance(value, (bool, int, float)) and self.shape == ():
            value = self._number(value)
        if not isinstance(value, torch.Tensor):
            raise self._refused(f"is a {type(value).__name__}, not a tensor")
        if value.dtype is not self.dtype:
            raise self._refused(f"is {describe(value)}, the graph declares {self.ge_dtype.name}")
        if not value.is_cpu or value.layout is not torch.strided:
            raise self._refused(f"is a {value.layout} tensor on '{value.device.type}', not a dense one on 'cpu'")
        declared = self.shape
        if declared is not None and (
            len(declared) != value.dim()
            or any(isinstance(d, int) and d >= 0 and d != s for d, s in zip(declared, value.shape))
        ):
            dims = ", ".join(map(str, declared))
            raise self._refused(f"is {describe(value)}, the graph declares [{dims}]")
        return value

    def _refused(self, what: str) -> EngineError:
        return errors.bad_input(f"input {self.index} ({escape.line(self.name, 200)}) {escape.line(what)}")

    def _from_numpy(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        try:
            return from_numpy(array)
        except TypeError:
            raise self._refused(f"is an array of {array.dtype}, the graph declares {self.ge_dtype.name}") from None

    def _number(self, value: bool | int | float) -> torch.Tensor:
        """A Python number as a scalar of the declared type, if that type holds it."""
        fits = self.ge_dtype.is_float or self.ge_dtype.is_complex or isinstance(value, int)
        try:
            scalar = torch.tensor(value, dtype=self.dtype) if fits else None
        except (ValueError, RuntimeError, OverflowError):
            scalar = None
        if scalar is None or (isinstance(value, int) and not self.ge_dtype.is_float and scalar.item() != value):
            raise self._refused(f"is {value!r:.60}, which {self.ge_dtype.name} does not hold")
        return scalar


class _Checker:
    """Compares every result with what the graph declares: element type, size, and whose memory it is."""

    def __init__(self, order: Sequence[Node], graph: Graph) -> None:
        inner = [g for n in order for g in inside(n)]
        self._used = {t for n in every(order) for t in n.operands()} | {t for g in (graph, *inner) for t in g.outputs}

    def on_node(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Check one node."""
        kernel = kernel_of(node)
        may_alias = kernel is None or kernel.views or bool(kernel.updates)
        own = own_results(node, kernel) if kernel is not None and kernel.updates else ()
        for index, (edge, value) in enumerate(zip(node.outputs, outputs)):
            if value is None and edge not in self._used:
                continue
            self._check(node, edge, value)
            if (
                (not may_alias or index in own)
                and value.numel()
                and not (kernel is not None and kernel.plan is not None)
            ):
                memory = value.untyped_storage().data_ptr()
                if any(isinstance(i, torch.Tensor) and i.untyped_storage().data_ptr() == memory for i in inputs):
                    raise errors.broken_result(
                        node, "the kernel returned memory of an operand but is not registered with views=True"
                    )

    @staticmethod
    def _check(node: Node, edge: Tensor, value: Any) -> None:
        expected = TORCH_OF.get(edge.dtype)
        if not isinstance(value, torch.Tensor):
            raise errors.broken_result(node, f"output {edge.index} is {type(value).__name__}, not a tensor")
        if expected is not None and value.dtype is not expected:
            raise errors.broken_result(
                node, f"output {edge.index} is {describe(value)}, the graph declares {edge.dtype.name}"
            )
        shape = edge.known_shape
        if shape is None:
            return
        fits = len(shape) == value.dim() and all(
            not isinstance(d, int) or d < 0 or d == s for d, s in zip(shape, value.shape)
        )
        if not fits:
            dims = ", ".join(map(str, shape))
            raise errors.broken_result(node, f"output {edge.index} is {describe(value)}, the graph declares [{dims}]")
