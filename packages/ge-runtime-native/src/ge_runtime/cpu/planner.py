"""From a GE graph to a straight-line program: what runs as numbers, what may be overwritten, what must be copied.

The planner walks the nodes once. Every edge becomes a ``PlannedValue``: a tensor variable, a constant, or host numbers.
For each value it tracks *roots*, the pieces of memory it may share, so that copies are made exactly where a graph
output would alias an input, a constant or another output, and dead memory is overwritten where nobody can see it.
"""

from __future__ import annotations

import ast
import inspect
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from keyword import iskeyword
from typing import Any, Final, NamedTuple

import torch

from ge_graph import program as build
from ge_graph import schema
from ge_graph.errors import EngineError, GeError
from ge_graph.ir import Graph, Node, Tensor
from ge_runtime import errors
from ge_runtime.cpu import host as host_rules
from ge_runtime.cpu import limits, registry, subgraphs
from ge_runtime.cpu.chip_numbers import Rounding
from ge_runtime.cpu.own_calls import kernel_of, say
from ge_runtime.cpu.plan_context import PlanContext, input_ports, own_results, said
from ge_runtime.cpu.program import EngineProgram, Line
from ge_runtime.cpu.registry import Call, Kernel, Ref
from ge_runtime.cpu.values import constant, numbers_of, of_numbers, too_large, torch_dtype

logger: Final = logging.getLogger(__name__)

# The root of everything that must never be overwritten or handed out: inputs, constants, expanded memory. Inputs of a
# graph in a node have roots below it: not to be overwritten either, but handed on as they are.
FIXED = 0
_INPUTS = ("Data", "RefData")
_CONSTS = ("Const", "Constant", "ConstPlaceHolder")
_SKIPPED = ("NetOutput", "NoOp", "ControlTrigger")
_COMMUTATIVE = (torch.add, torch.mul)


@dataclass(slots=True)
class PlannedValue:
    """What the program knows of one edge.

    Attributes:
        var: Tensor variable or name of a constant, empty as long as no tensor was needed.
        host: Python numbers, if the edge is known as such.
        const: The tensor of a constant.
        roots: Memory it may share; FIXED among them if that is not the program's own.
        sizes: Numbers and Refs of its shape once somebody asked.
    """

    var: str = ""
    host: Any = None
    const: torch.Tensor | None = None
    roots: frozenset[int] = frozenset()
    sizes: list[Any] | None = None


def _has_refs(arg: Any) -> bool:
    if isinstance(arg, slice):
        return any(isinstance(v, Ref) for v in (arg.start, arg.stop, arg.step))
    return isinstance(arg, (Ref, Call)) or (isinstance(arg, (list, tuple)) and any(map(_has_refs, arg)))


def _same(x: Any) -> Any:
    """Stands for "no call"; rendered as its argument."""
    return x


def _copies(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [v.clone() for v in values]


def schedule(graph: Graph, seed: int | None = None) -> list[Node]:
    """The nodes that must run, in an order that data and control edges permit; a random one if a seed is given."""
    needed: set[int] = set()
    stack = [t.node for t in graph.outputs] + list(graph.output_control) + graph.inputs
    stack += [n for n in graph.nodes if _acts(n)]
    while stack:
        node = stack.pop()
        if id(node) not in needed:
            needed.add(id(node))
            stack.extend(t.node for t in node.operands())
            stack.extend(node.control)
    nodes = [n for n in graph.nodes if id(n) in needed]
    if seed is None:
        return nodes
    rng = random.Random(seed)
    waiting = {id(n): {id(t.node) for t in n.operands()} | {id(c) for c in n.control} for n in nodes}
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for before in waiting[id(node)]:
            readers.setdefault(before, []).append(node)
    ready, order = [n for n in nodes if not waiting[id(n)]], []
    while ready:
        node = ready.pop(rng.randrange(len(ready)))
        order.append(node)
        for reader in readers.get(id(node), ()):
            waiting[id(reader)].discard(id(node))
            if not waiting[id(reader)]:
                ready.append(reader)
    return order


def _acts(node: Node) -> bool:
    """Whether a node runs although nobody reads its results."""
    kernel = kernel_of(node)
    own = kernel is not None and bool(kernel.updates or kernel.acts)
    return own or any(map(_acts, (n for inner in node.subgraphs.values() for n in inner.nodes)))


def _stops(node: Node) -> bool:
    """Whether a node may end the run on purpose, or others see what it does: no input may be overwritten by then."""
    kernel = kernel_of(node)
    return bool(node.subgraphs) or (kernel is not None and (kernel.acts or not node.outputs))


def check_kernels(engine: str, nodes: Sequence[Node]) -> None:
    """Raise GE4003 with every node whose operator has no kernel; nodes of inner graphs included."""
    known = (*_INPUTS, *_CONSTS, *_SKIPPED, *subgraphs.OFFSETS)
    missing = [n for n in subgraphs.every(nodes) if n.op not in known and kernel_of(n) is None]
    if missing:
        raise errors.missing_kernels(engine, missing)
    for node in subgraphs.every(nodes):
        if node.op not in known:
            say(node)


class DroppedShortcut(NamedTuple):
    """A node whose short cut was given up.

    Attributes:
        node: The node.
        unasked: Fed ports and attributes that the short cut did not look at.
    """

    node: Node
    unasked: tuple[str, ...]


class Planner:
    """Plans one graph: ``walk`` once, then ``program``, and ``traced`` for the same steps with reports between them.

    Args:
        graph: A verified graph.
        order: Its nodes in the order to run them.
        trace: Report every node to a callback, those of graphs in nodes too.
        constants: Tensors of Const nodes already made, shared between the programs of one graph.
        seed: As for ``schedule``, for the graphs in nodes.
        lent: For a graph in a node: the inputs that it may overwrite. None for an outermost graph, whose inputs belong
            to the caller and whose results share memory with nothing.
        written: For an outermost graph: inputs that the caller overwrites after the run, with the result it takes for
            each. Their old values are dead after the last read, so that the result may be computed in their place.
        compiled: The program is for Inductor, whose code looks at less than ATen does.
        numbers: What operators round as a chip does, by ``id`` of the node.
        recorded: Whether ``torch.profiler`` sees each node.
    """

    def __init__(
        self,
        graph: Graph,
        order: Sequence[Node],
        *,
        trace: bool,
        constants: dict[Tensor, torch.Tensor],
        seed: int | None = None,
        lent: frozenset[int] | None = None,
        written: Mapping[int, int] = {},
        compiled: bool = False,
        numbers: Mapping[int, Rounding] = {},
        recorded: bool = False,
    ) -> None:
        self.numbers, self.recorded = numbers, recorded
        self.graph, self.order, self.trace, self.constants = graph, order, trace, constants
        self.seed, self.lent, self.compiled = seed, lent, compiled
        self.inner: list[tuple[str, EngineProgram]] = []
        self.dropped: list[DroppedShortcut] = []
        self._inside: dict[tuple[int, frozenset[int]], subgraphs.InnerPlan] = {}
        self.values: dict[Tensor, PlannedValue] = {}
        self.lines: list[Line] = []
        self._kept: dict[int, ast.stmt] = {}  # line that overwrites an operand to the one that does not
        self._seen: list[tuple[int, Node, int, tuple[Any, ...], tuple[Any, ...]]] = []  # what is known after a node
        self.names = build.Names()
        self._node: Node | None = None
        self._uses: Counter[Tensor] = Counter(t for n in order for t in n.operands())
        self._uses.update(graph.outputs)
        self._live: Counter[int] = Counter()
        self._root_of_input: dict[int, int] = {}
        self._written: Mapping[int, int] = {} if any(map(_stops, order)) else written
        self._home: dict[str, int] = {}  # variable that is the very tensor of a written input, to the input's root
        self._next_root = 1

    # Names, numbers, tensors

    def emit(self, statement: ast.stmt, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> None:
        """Append a line."""
        self.lines.append(Line(statement, tuple(reads), tuple(writes), self._node))

    def number(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """Append the computation of a Python number: ``fn`` of numbers and Refs."""
        reads: list[str] = []
        name = self.names.fresh("h")
        self.emit(build.assign(name, self.render(Call(fn, args), reads)), reads)
        return Ref(name)

    def new_root(self) -> int:
        """A piece of memory that nothing else shares."""
        self._next_root += 1
        return self._next_root

    def tensor(self, edge: Tensor) -> Ref:
        """The edge as a tensor variable, made from host numbers if need be."""
        value = self.values[edge]
        if not value.var:
            parts = value.host if isinstance(value.host, list) else [value.host]
            dtype = torch_dtype(edge.dtype)
            if any(isinstance(p, Ref) for p in parts):
                value.var = self.names.fresh("t")
                value.roots = frozenset({self.new_root()})
                self._live.update(value.roots)
                made = self.render(Call(of_numbers, (value.host, dtype)), [])
                self.emit(build.assign(value.var, made), (), (value.var,))
            else:
                value.const = torch.tensor(value.host, dtype=dtype)
                value.var, value.roots = self.names.bind(value.const, "", "c"), frozenset({FIXED})
        return Ref(value.var)

    def dims(self, edge: Tensor) -> list[Any] | None:
        """Sizes of an edge. Recorded shapes are believed for inputs only, where every run checks them."""
        value = self.values[edge]
        if value.sizes is None:
            shape = edge.known_shape
            if value.host is not None:
                value.sizes = [len(value.host)] if isinstance(value.host, list) else []
            elif value.const is not None:
                value.sizes = list(value.const.shape)
            elif shape is None:
                return None
            elif self._checked(edge) and all(isinstance(d, int) for d in shape):
                value.sizes = list(shape)
            else:
                name = self.names.fresh("h")
                self.emit(build.assign(name, build.attribute(build.name(value.var), "shape")), (value.var,))
                fixed = self._checked(edge)
                value.sizes = [d if fixed and isinstance(d, int) else Ref(name, i) for i, d in enumerate(shape)]
        return value.sizes

    def _checked(self, edge: Tensor) -> bool:
        """Whether every run compares the edge with its recorded shape."""
        return self.lent is None and edge.node.op in _INPUTS

    # Rendering

    def render(self, arg: Any, reads: list[str]) -> ast.expr:
        """An argument as an expression; variables read are added to ``reads``."""
        if isinstance(arg, Ref):
            reads.append(arg.name)
            variable = build.name(arg.name)
            return variable if arg.index is None else build.item(variable, build.constant(arg.index))
        if isinstance(arg, Call):
            return self.render_call(arg, reads)
        if isinstance(arg, (list, tuple)):
            if any(isinstance(a, slice) for a in arg) and not _has_refs(arg):
                return self._bound_name(arg)
            return build.sequence([self.render(a, reads) for a in arg], as_list=isinstance(arg, list))
        if arg is None or type(arg) in (bool, int):
            return build.constant(arg)
        if isinstance(arg, slice):
            return self.render(Call(slice, (arg.start, arg.stop, arg.step)), reads)
        return self._bound_name(arg)

    def _bound_name(self, value: Any) -> ast.expr:
        """Everything that is neither number nor value of the program: an object that a name stands for."""
        shown = getattr(value, "__name__", "")
        if isinstance(value, (str, float, slice, tuple, torch.dtype, torch.layout, torch.memory_format)):
            shown = repr(value).removeprefix("torch.")
        return build.name(self.names.bind(value, str(shown) or type(value).__name__))

    def render_call(self, call: Call, reads: list[str]) -> ast.expr:
        """A call as an expression."""
        args = [self.render(a, reads) for a in call.args]
        if call.fn is _same:
            return args[0]
        keywords = {k: self.render(v, reads) for k, v in call.kwargs.items()}
        return build.call(self._bound_name(call.fn), args, keywords)

    # Liveness and memory

    def _dying(self, edge: Tensor) -> bool:
        """Whether this node is the last to see the edge's memory and the memory is the program's own."""
        value = self.values[edge]
        own = bool(value.roots) and all(r > FIXED for r in value.roots)
        return own and self._uses[edge] == 1 and all(self._live[r] == 1 for r in value.roots)

    def _define(self, edge: Tensor, value: PlannedValue) -> None:
        self._check_size(edge, edge.known_shape or ())
        self.values[edge] = value
        if self._uses[edge] > 0:
            self._live.update(value.roots)

    @staticmethod
    def _check_size(edge: Tensor, sizes: Sequence[Any]) -> None:
        reason = too_large(sizes, edge.dtype)
        if reason:
            raise errors.too_large(edge.node, reason)

    def _release(self, node: Node) -> None:
        for edge in node.operands():
            self._uses[edge] -= 1
            if self._uses[edge] == 0:
                self._live.subtract(self.values[edge].roots)

    # Nodes

    def _input(self, node: Node, index: int) -> None:
        root = FIXED
        if self.lent is not None:
            root = self.new_root() if index in self.lent else -1 - index
            self._root_of_input[index] = root
        elif index in self._written and node.op == "Data":
            root = self._home[f"i{index}"] = self._root_of_input[index] = self.new_root()
        self._define(node.outputs[0], PlannedValue(f"i{index}", roots=frozenset({root})))

    def _const(self, node: Node) -> None:
        edge = node.outputs[0]
        if edge not in self.constants:
            if node.attr("value") is None:
                raise errors.refused(node.op, f"constant '{node.name}' carries no value")
            self.constants[edge] = constant(node.attr("value"))
        tensor = self.constants[edge]
        self._define(edge, PlannedValue(self.names.bind(tensor, "", "c"), const=tensor, roots=frozenset({FIXED})))

    def _bound(self, node: Node, kernel: Kernel) -> Callable[..., Any]:
        """The kernel with the node's attributes filled in."""
        positional, keywords = registry.parameters(kernel.run)
        op_schema, attrs = schema.get(node.op), {}
        ports = {p.name for p in op_schema.inputs} if op_schema is not None else set(positional)
        for name, attr in node.attrs.items():
            spec = op_schema.attr(name) if op_schema is not None else None
            if name.startswith("_") or (op_schema is not None and spec is None) or name in kernel.ignores:
                continue
            key = f"attr_{name}" if name in ports else f"{name}_" if iskeyword(name) else name
            if keywords is None or key in keywords or key in positional:  # D forms: an attribute in a port's place
                attrs[key] = attr.value
            elif spec is None or spec.default is None or spec.default.value != attr.value:
                raise errors.unfit_kernel(
                    node, kernel.run, f"the kernel does not take attribute {name}={attr.value!r}", f"add '{key}' to it"
                )
        if op_schema is not None and not registry.is_builtin(node.op):
            _check_ports(node, kernel.run, [p.name for p in op_schema.inputs], attrs)
        if registry.is_builtin(node.op):
            _check_read(node, kernel)
        if not attrs:
            return kernel.run
        bound = partial(kernel.run, **attrs)
        bound.__name__ = node.op  # type: ignore[attr-defined]
        return bound

    def _host_argument(self, edge: Tensor, ctx: PlanContext, port: str) -> Any:
        for known in (ctx.host(port), ctx.const(port)):
            if known is not None:
                return known
        return Call(numbers_of, (self.tensor(edge),))

    def _general_call(self, ctx: PlanContext, kernel: Kernel) -> Call:
        args: list[Any] = []
        for port, entry in zip(ctx.ports, ctx.node.inputs):
            if port in kernel.host and isinstance(entry, Tensor):
                args.append(self._host_argument(entry, ctx, port))
            else:
                args.append(ctx.tensor(port))
        fn = self._bound(ctx.node, kernel)
        if isinstance(fn, partial) and not {*registry.parameters(kernel.run)[0][: len(args)]}.isdisjoint(fn.keywords):
            return Call(fn, (), dict(zip(ctx.ports, args)))  # a D form: the attribute stands before a port
        if fn is kernel.run and not registry.parameters(fn)[0]:
            while args and args[-1] is None:  # ATen functions know their own optional arguments
                args.pop()
        return Call(fn, tuple(args))

    def _own_updated(self, ctx: PlanContext, kernel: Kernel) -> dict[Tensor, PlannedValue]:
        """Let an updating kernel write only to RefData, or to memory that dies here; anything else is copied first.

        Returns the values to put back after the node.
        """
        replaced: dict[Tensor, PlannedValue] = {}
        for port in kernel.updates:
            edge = ctx.edge(port)
            if edge is None or self._is_reference(edge) or (not self.trace and self._dying(edge)):
                continue
            source, name = self.tensor(edge), self.names.fresh("t")
            self.emit(build.assign(name, self.render(Call(torch.clone, (source,)), [])), (source.name,), (name,))
            replaced[edge] = self.values[edge]
            self.values[edge] = PlannedValue(name, roots=frozenset({self.new_root()}))
        return replaced

    def _is_reference(self, edge: Tensor) -> bool:
        """Whether an edge is a RefData input, possibly handed on by an updating node."""
        while edge.node.op != "RefData":
            kernel = kernel_of(edge.node)
            if kernel is None or not kernel.updates:
                return False
            ctx = PlanContext(self, edge.node, kernel)
            before = ctx.edge(kernel.updates[0])
            if before is None:
                return False
            edge = before
        return True

    # Graphs in nodes

    def plan_inside(self, graph: Graph, owned: frozenset[int] = frozenset()) -> subgraphs.InnerPlan:
        """Plan a graph in a node; ``owned`` are the inputs that it may overwrite. What several nodes share is planned
        once."""
        if (known := self._inside.get((id(graph), owned))) is not None:
            return replace(known)
        order = schedule(graph, self.seed)
        made = Planner(
            graph,
            order,
            trace=self.trace,
            constants=self.constants,
            seed=self.seed,
            lent=owned,
            compiled=self.compiled,
            numbers=self.numbers,
            recorded=self.recorded,
        )
        program = made.walk().program()
        self.dropped += made.dropped
        input_of = {root: index for index, root in made._root_of_input.items()}
        aliases, shared = [], []
        for edge in graph.outputs:
            roots = made.values[edge].roots
            aliases.append(frozenset(-1 if r == FIXED else input_of[r] for r in roots if r == FIXED or r in input_of))
            shared.append(frozenset(r for r in roots if r != FIXED and r not in input_of))
        plan = self._inside[id(graph), owned] = subgraphs.InnerPlan(program, order, [], aliases, shared)
        return replace(plan)

    def define_result(self, edge: Tensor, roots: frozenset[int]) -> str:
        """A new variable for a node's result that may lie in these pieces of memory."""
        value = PlannedValue(self.names.fresh("t"), roots=roots)
        self._define(edge, value)
        return value.var

    def _keep_values(self, node: Node) -> None:
        """Copy results that may be the memory of a RefData, which later nodes may write: GE hands on values."""
        references = {r for e in node.operands() if self._is_reference(e) for r in self.values[e].roots}
        for edge in node.outputs:
            value = self.values[edge]
            if value.roots & references:
                source, name = Ref(value.var), self.names.fresh("t")
                self.emit(build.assign(name, self.render(Call(torch.clone, (source,)), [])), (source.name,), (name,))
                value.var = name

    def _compute(self, node: Node) -> None:
        if node.op in subgraphs.OFFSETS and node.subgraphs:
            subgraphs.plan(self, node)
            self._keep_values(node)
            return
        kernel = kernel_of(node)
        ctx = PlanContext(self, node, kernel)
        if host_rules.hostable(node) and registry.is_builtin(node.op):
            values = host_rules.RULES[node.op](ctx)
            ctx.out_dtype()  # numbers become what the output declares
            if values is not None and self._asked_all(ctx, () if kernel is None else kernel.ignores):
                for edge, numbers in zip(node.outputs, values, strict=True):
                    self._define(edge, PlannedValue(host=numbers))
                return
        if kernel is None:
            raise errors.missing_kernels("cpu", [node])
        replaced = self._own_updated(ctx, kernel) if kernel.updates else {}
        self._call(node, ctx, kernel)
        self.values.update(replaced)

    def _asked_all(self, ctx: PlanContext, ignores: Sequence[str]) -> bool:
        """Whether a short cut looked at all that the node says; one that did not is dropped, and that is written down.

        The general kernel takes its place: the same numbers, but slower.
        """
        unasked = ctx.unasked(ignores)
        if unasked:
            self.dropped.append(DroppedShortcut(ctx.node, tuple(unasked)))
            logger.debug(
                "%s '%s' runs its general kernel: the short cut does not ask for %s (%s)",
                ctx.node.op,
                ctx.node.name,
                ", ".join(unasked),
                ctx.node.provenance or "no origin",
            )
        return not unasked

    def _call(self, node: Node, ctx: PlanContext, kernel: Kernel) -> None:
        if registry.is_builtin(node.op):
            for check in limits.checks(PlanContext(self, node, kernel), self.compiled):
                looked_at: list[str] = []
                self.emit(build.do(self.render_call(check, looked_at)), looked_at)
        rounding = self.numbers.get(id(node))
        planned = kernel.plan(ctx) if kernel.plan is not None and rounding is None else None
        if planned is not None and not self._asked_all(ctx, kernel.ignores):
            planned = None
        if isinstance(planned, Ref):  # the result is the operand, or numbers only: nothing to call
            planned = Call(_same, (planned,), views=True)
        call = self._general_call(ctx, kernel) if planned is None else planned
        if rounding is not None:
            call = replace(call, fn=rounding.around(call.fn, ctx.ports))
        if call.fn in (torch.full, torch.Tensor.expand):
            self._check_size(node.outputs[0], next(a for a in call.args if isinstance(a, tuple)))
        if self._overwrite(node, kernel, call):
            return
        reads: list[str] = []
        roots: frozenset[int] = frozenset()
        self.render_call(call, reads)
        if kernel.updates:
            updated = [e for e in map(ctx.edge, kernel.updates) if e is not None]
            roots = roots.union(*(self.values[e].roots for e in updated))
        elif kernel.views if call.views is None else call.views:
            if any(map(self._is_reference, node.operands())):  # a later update would be seen: GE hands on values
                call = Call(_copies if self._several(node) else torch.clone, (call,))
            else:
                read = (self.values[e] for e in node.operands())
                roots = roots.union(*(v.roots for v in read if v.var in reads))
                if call.fn is torch.Tensor.expand or not registry.is_builtin(node.op):
                    roots |= {FIXED}  # one element may stand for several: never to be written or handed out
        self._assign(node, call, roots)

    def _overwrite(self, node: Node, kernel: Kernel, call: Call) -> bool:
        """Compute into the first operand if it dies here and the in-place method is the very function of the call.

        Recorded sizes prove nothing: where another operand may be larger, the method is tried. ATen refuses it before
        it writes anything, and then the call itself is made.
        """
        if self.trace or not kernel.inplace or call.kwargs or not node.inputs:
            return False
        if kernel.views if call.views is None else call.views:
            return False
        if call.fn is not getattr(torch, kernel.inplace.removesuffix("_"), None):
            return False
        if not self._writable(node, 0, call):
            if call.fn not in _COMMUTATIVE or len(call.args) != 2 or not self._writable(node, 1, call):
                return False
            call = replace(call, args=call.args[::-1])
        reads: list[str] = []
        first, *rest = [self.render(a, reads) for a in call.args]
        written = build.call(build.attribute(first, build.member(kernel.inplace)), rest)
        grows = not all(isinstance(a, (bool, int, float)) or self._is_scalar(a) for a in call.args[1:])
        taken = next(v for e in node.operands() if (v := self.values[e]).var == reads[0])
        self._assign(node, call, taken.roots & set(self._home.values()), written, or_else=grows)
        if taken.var in self._home:
            self._home[self.values[node.outputs[0]].var] = self._home[taken.var]
        return True

    def _writable(self, node: Node, place: int, call: Call) -> bool:
        """Whether an operand may take the result: it dies here, has the result's type and is the call's argument.

        The first one is tried whatever its size. Of two that commute the first gives way if it is no input that the
        result goes into, and the second is, or is as large as the result.
        """
        edge = node.inputs[place] if place < len(node.inputs) else None
        if not isinstance(edge, Tensor) or place >= len(call.args) or call.args[place] != Ref(self.values[edge].var):
            return False
        out = node.outputs[0]
        if edge.dtype is not out.dtype or not self._dying(edge):
            return False
        at_home = self.values[edge].var in self._home
        if place:
            return at_home or (edge.known_shape is not None and edge.known_shape == out.known_shape)
        other = node.inputs[1] if call.fn in _COMMUTATIVE and len(node.inputs) == 2 else None
        if not isinstance(other, Tensor) or self.values[other].var not in self._home or call.args[0] == call.args[1]:
            return True
        return at_home or not self._writable(node, 1, call)

    def _is_scalar(self, arg: Any) -> bool:
        """Whether an argument is a constant of rank 0."""
        value = self.names.objects.get(arg.name) if isinstance(arg, Ref) else None
        return isinstance(value, torch.Tensor) and value.dim() == 0

    @staticmethod
    def _several(node: Node) -> bool:
        return len(node.outputs) != 1 or bool(node.output_counts)

    def _assign(
        self, node: Node, call: Call, roots: frozenset[int], written: ast.expr | None = None, *, or_else: bool = False
    ) -> None:
        """Append the call, or ``written`` in its place; with ``or_else`` the call where that fails."""
        reads: list[str] = []
        plain = self.render_call(call, reads)
        names = []
        kernel = kernel_of(node) if roots else None
        apart = own_results(node, kernel) if kernel is not None and kernel.updates else ()
        for index, edge in enumerate(node.outputs):
            own = roots if roots and index not in apart else frozenset({self.new_root()})
            value = PlannedValue(self.names.fresh("t"), roots=own)
            names.append(value.var)
            self._define(edge, value)
        value_ = plain if written is None else written
        target: str | list[str] = names if self._several(node) else names[0]
        statement = build.assign(target, value_) if names else build.do(value_)
        if or_else:
            error = self.names.bind(RuntimeError, "RuntimeError")
            statement = build.otherwise(statement, error, build.assign(target, plain))
        if written is not None:
            self._kept[len(self.lines)] = build.assign(target, plain)
        self.emit(statement, reads, names)

    def _reported(self, node: Node, index: int, ins: tuple[Any, ...], outs: tuple[Any, ...]) -> Line:
        """The line of a traced program that hands a node's operands and results to the callback."""
        reads: list[str] = []
        shown = [self.render(a, reads) for a in (index, ins, outs)]
        return Line(build.do(build.call(build.name("report"), shown)), tuple(reads), (), node)

    def _shown(self, edge: Tensor) -> Any:
        value = self.values[edge]
        if value.var:
            return Ref(value.var)
        return Call(torch.tensor, (value.host,), {"dtype": torch_dtype(edge.dtype)})

    def _results(self) -> None:
        """The return line; clones where a result would share memory with an input, a constant or another result."""
        reads: list[str] = []
        parts: list[Any] = []
        taken: set[int] = set()
        for position, edge in enumerate(self.graph.outputs):
            result = self.tensor(edge)
            roots = self.values[edge].roots
            copied = self.lent is None and (FIXED in roots or roots & taken or not self._at_home(position, edge))
            parts.append(Call(torch.clone, (result,)) if copied else result)
            taken |= roots
        self.emit(build.give(self.render(parts, reads)), reads)

    def _at_home(self, position: int, edge: Tensor) -> bool:
        """Whether a result lies in no written input, or is the very tensor of the one that it goes into."""
        value = self.values[edge]
        inputs = [i for i in self._written if self._root_of_input.get(i) in value.roots]
        return not inputs or (value.var in self._home and len(inputs) == 1 and self._written[inputs[0]] == position)

    def walk(self) -> Planner:
        """Decide for every node what runs; the planner itself."""
        for index, node in enumerate(self.graph.inputs):
            self._input(node, index)
        for index, node in enumerate(self.order):
            if node.op in _INPUTS or node.op in _SKIPPED:
                continue
            self._node = node
            try:
                self._const(node) if node.op in _CONSTS else self._compute(node)
            except EngineError as error:
                raise errors.located(error, node) from None
            except GeError:
                raise
            except Exception as error:
                raise errors.plan_failed(node, error) from error
            if node.op not in _CONSTS:
                ins, outs = (tuple(map(self._shown, edges)) for edges in (node.operands(), node.outputs))
                self._seen.append((len(self.lines), node, index, ins, outs))
            self._release(node)
        self._node = None
        self._results()
        return self

    def program(self) -> EngineProgram:
        """The program of a graph that was walked."""
        if self.trace:
            return self.traced()
        takes, boxed = len(self.graph.inputs), self.lent is None
        return EngineProgram(
            self.graph.name, takes, self.lines, self.names, boxed=boxed, inner=self.inner, recorded=self.recorded
        )

    @property
    def traces(self) -> bool:
        """Whether ``traced`` can be asked for: the programs of graphs in nodes report only if planned for it."""
        return self.trace or not self.inner

    def _plain(self) -> list[Line]:
        lines = list(self.lines)
        for place, kept in self._kept.items():
            lines[place] = replace(lines[place], statement=kept)
        return lines

    def plain(self) -> EngineProgram:
        """The program that overwrites nothing but what operators update, for inputs one by one."""
        takes = len(self.graph.inputs)
        return EngineProgram(self.graph.name, takes, self._plain(), self.names, inner=self.inner)

    def traced(self) -> EngineProgram:
        """The program that reports every node: nothing is overwritten, so that operands stay as they were."""
        lines: list[Line] = []
        at, plain = 0, self._plain()
        for end, node, index, ins, outs in self._seen:
            lines += [*plain[at:end], self._reported(node, index, ins, outs)]
            at = end
        lines += plain[at:]
        return EngineProgram(self.graph.name, len(self.graph.inputs), lines, self.names, traced=True, inner=self.inner)


def _check_read(node: Node, kernel: Kernel) -> None:
    """Refuse what the node says and the kernel never reads: a wrong number otherwise."""
    ports = input_ports(node, kernel)
    never = registry.never_read(kernel, ports)
    for name in said(node, ports) if never else ():
        if name in never and name not in kernel.ignores:
            raise errors.refused(node.op, f"'{name}' is given and not computed here; leave it out or at its default")


def _check_ports(node: Node, run: Callable[..., Any], ports: list[str], attrs: dict[str, Any]) -> None:
    """Whether a user's kernel can be called with the operator's ports and attributes at all."""
    try:
        signature = inspect.signature(run)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*ports, **attrs)
    except TypeError as e:
        advice = f"its inputs are {', '.join(ports) or 'none'}"
        raise errors.unfit_kernel(node, run, f"the kernel cannot be called: {e}", advice) from None
