"""The rules of a GE graph, as rows: what a device would refuse with a cryptic code is refused here, with a source line.

``verify(graph)`` collects every violation of every rule, subgraphs included, and raises one error. A rule of scope
``signature`` depends only on an operator's type, element types and attribute kinds; its answer is remembered, so that a
large graph costs a few microseconds a node. Rules that GE itself checks stand in ``ge_graph.rules``.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ge_graph import escape, infer, names, rules, schema
from ge_graph.attrs import Attr, Kind
from ge_graph.calling import COUNT_ATTRS, input_problems, plan_of
from ge_graph.dtypes import DataType
from ge_graph.errors import GraphError
from ge_graph.ir import Graph, Literal, Node, Tensor
from ge_graph.rules.base import Check, GraphCheck, Scope
from ge_graph.schema import OpSchema

# Attributes that GE puts or ATC reads on any node; those with a leading underscore need no entry.
_ANYWHERE: Final = frozenset(("N", "nn_module_stack"))


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        code: Code of the rule.
        what: What is wrong, with the node's name.
        where: The user's source line, empty if not known.
    """

    code: str
    what: str
    where: str

    def __str__(self) -> str:
        return f"[{self.code}] {self.what}" + (f" (from {self.where})" if self.where else "")


class VerifyError(GraphError):
    """A graph breaks rules.

    Attributes:
        violations: All of them, in graph order.
    """

    def __init__(self, graph: Graph, violations: tuple[Violation, ...]) -> None:
        self.violations = violations
        listing = "\n".join(f"  {v}" for v in violations)
        rules = "rule" if len(violations) == 1 else "rules"
        super().__init__(
            "GE3010",
            f"graph '{names.shown(graph.name)}' breaks {len(violations)} {rules} of GE:\n{listing}",
            next="each line names the node and, where known, the source line that it comes from",
        )


# -- scope "signature": type of operator, element types, kinds of attributes -----------------------------------------


def _ports(node: Node, op: OpSchema) -> Iterator[str]:
    if len(node.inputs) != len(op.inputs):
        wanted = ", ".join(p.name for p in op.inputs) or "none"
        yield f"has {len(node.inputs)} input ports, the operator has {len(op.inputs)} ({wanted})"
        return
    for port, entry in zip(op.inputs, node.inputs):
        if port.kind == "dynamic":
            if not isinstance(entry, tuple):
                yield f"dynamic input '{port.name}' holds {type(entry).__name__}, not a tuple of tensors"
        elif isinstance(entry, tuple):
            yield f"input '{port.name}' holds {len(entry)} tensors, it takes one"
        elif entry is None and port.kind == "required":
            yield f"required input '{port.name}' is not fed"


def _fed(node: Node) -> list[Any]:
    return [tuple(t.dtype for t in e) if isinstance(e, tuple) else None if e is None else e.dtype for e in node.inputs]


def _input_types(node: Node, op: OpSchema) -> Iterable[str]:
    return input_problems(op, _fed(node)) if len(node.inputs) == len(op.inputs) else ()


def _outputs(node: Node, op: OpSchema) -> Iterator[str]:
    dynamic = [p.name for p in op.outputs if p.kind == "dynamic"]
    unknown = set(node.output_counts) - set(dynamic)
    if unknown:
        yield f"gives a size for {', '.join(sorted(unknown))}, which is not a dynamic output"
    missing = [name for name in dynamic if name not in node.output_counts]
    if missing:
        yield f"gives no size for dynamic output {', '.join(missing)}"
        return
    expected = sum(node.output_counts[p.name] if p.kind == "dynamic" else 1 for p in op.outputs)
    if len(node.outputs) != expected:
        yield f"has {len(node.outputs)} outputs, the operator has {expected}"
        return
    start = 0
    for port in op.outputs:
        count = node.output_counts[port.name] if port.kind == "dynamic" else 1
        for tensor in node.outputs[start : start + count]:
            if tensor.dtype not in port.domain:
                known = ", ".join(d.name for d in port.dtypes)
                yield f"output '{port.name}' is {tensor.dtype.name}; the operator knows {known}"
                break
        start += count


def _result_types(node: Node, op: OpSchema) -> Iterator[str]:
    """Results whose type a type variable, an attribute or the operator's definition fixes."""
    if len(node.inputs) != len(op.inputs) or len(node.outputs) != len(op.outputs) or node.subgraphs:
        return
    plan = plan_of(op.name)
    fed = _fed(node)
    for port, tensor, rule, definite in zip(op.outputs, node.outputs, plan.rules, plan.definite):
        if not definite or port.kind == "dynamic":
            continue
        try:
            expected = infer.first(rule(fed, node.attrs))
        except (KeyError, AttributeError, TypeError, ValueError):
            continue  # an attribute is missing or of another kind: its own rule speaks
        if expected is not None and expected != tensor.dtype:
            yield f"output '{port.name}' is {tensor.dtype.name}; inputs and attributes make it {expected.name}"


def _attributes(node: Node, op: OpSchema) -> Iterator[str]:
    known = {a.name: a for a in op.attrs}
    for name, attr in node.attrs.items():
        entry = known.get(name)
        if entry is None:
            if not name.startswith("_") and name not in _ANYWHERE:
                yield f"has attribute '{name}', which the operator does not know ({', '.join(known) or 'none'})"
        elif not isinstance(attr, Attr) or attr.kind is not entry.kind:
            got = attr.kind.value if isinstance(attr, Attr) else type(attr).__name__
            yield f"attribute '{name}' is {got}, the operator wants {entry.kind.value}"
    missing = [a.name for a in op.attrs if a.required and a.name not in node.attrs]
    if missing:
        yield f"lacks required attribute {', '.join(missing)}"


def _subgraphs(node: Node, op: OpSchema) -> Iterator[str]:
    for slot, kind in op.subgraphs.items():
        if kind == "required" and slot not in node.subgraphs:
            yield f"lacks subgraph '{slot}'"
    for slot in node.subgraphs:
        base = slot.rstrip("0123456789")
        if slot not in op.subgraphs and op.subgraphs.get(base) != "dynamic":
            yield f"has subgraph '{slot}', which the operator does not know"


# -- scope "node": values ---------------------------------------------------------------------------------------------

_VALUE_TYPES: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.INT: (int,),
    Kind.FLOAT: (float,),
    Kind.BOOL: (bool,),
    Kind.STRING: (str, bytes),
    Kind.TYPE: (DataType,),
    Kind.TENSOR: (np.ndarray, Literal),
    Kind.LIST_INT: (int,),
    Kind.LIST_FLOAT: (float,),
    Kind.LIST_BOOL: (bool,),
    Kind.LIST_STRING: (str, bytes),
    Kind.LIST_TYPE: (DataType,),
    Kind.LIST_LIST_INT: (tuple,),
    Kind.LIST_LIST_FLOAT: (tuple,),
}
_LIST_KINDS: Final = frozenset(k for k in Kind if k.value.startswith("List"))
# Kinds whose values need no look inside; a bool is no Int.
_PLAIN: Final[dict[Kind, tuple[type, ...]]] = {
    k: types for k, types in _VALUE_TYPES.items() if k not in _LIST_KINDS and k is not Kind.TENSOR
}


def _well_typed(attr: Attr) -> bool:
    wanted = _VALUE_TYPES[attr.kind]
    if attr.kind in _LIST_KINDS:
        return type(attr.value) is tuple and all(type(v) in wanted for v in attr.value)
    if attr.kind is Kind.TENSOR:
        return isinstance(attr.value, wanted)
    return type(attr.value) in wanted  # a bool is not an Int


def _shown(value: object) -> str:
    return escape.line(reprlib.repr(value), 200)


def _attribute_values(node: Node, op: OpSchema) -> Iterator[str]:
    for name, attr in node.attrs.items():
        if attr.__class__ is Attr and attr.value.__class__ in _PLAIN.get(attr.kind, ()):
            continue
        if isinstance(attr, Attr) and not _well_typed(attr):
            yield f"attribute '{name}' of kind {attr.kind.value} holds {type(attr.value).__name__} {_shown(attr.value)}"


def _counts(node: Node, op: OpSchema) -> Iterator[str]:
    """Attributes that say how many tensors a dynamic port has."""
    name = COUNT_ATTRS.get(node.op)
    at = -1 if name else plan_of(node.op).counted
    if name is None and at < 0:
        return
    told = node.attr(name or "N")
    if name:
        sizes = [(f"output '{port}'", count) for port, count in node.output_counts.items()]
    else:
        entry = node.inputs[at] if at < len(node.inputs) else None
        sizes = [(f"input '{op.inputs[at].name}'", len(entry))] if isinstance(entry, tuple) else []
    for port, count in sizes:
        if told is not None and count != told:
            yield f"attribute '{name or 'N'}' says {told}, {port} has {count} tensors"


def _constant(node: Node, op: OpSchema) -> Iterator[str]:
    if node.op not in ("Const", "Constant") or not node.outputs:
        return
    value = node.attr("value")
    if not isinstance(value, (np.ndarray, Literal)):
        yield "has no value (E19999)"
        return
    dtype, declared = infer.value_dtype(value), node.outputs[0]
    if dtype != declared.dtype:
        yield f"holds a {dtype.name} value, its output is {declared.dtype.name}"
    if declared.known_shape is not None and tuple(value.shape) != tuple(declared.known_shape):
        yield f"holds a value of shape {list(value.shape)}, its output is recorded as {list(declared.known_shape)}"
    if isinstance(value, Literal):
        count = int(np.prod(value.shape, dtype=np.int64))
        if value.dtype.bits and value.data.nbytes != (count * value.dtype.bits + 7) // 8:
            yield f"holds {value.data.nbytes} bytes for {count} elements of {value.dtype.name}"


# -- scope "graph" ----------------------------------------------------------------------------------------------------


def _names(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    counts = Counter([n.name for n in scope.graph.nodes])
    for name, count in counts.items():
        if count > 1:
            yield None, f"{count} nodes are called '{name}'"
        elif not name:
            yield None, "a node has an empty name, and edges go by names (silent)"


def _edges(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    position = scope.position
    for i, node in enumerate(scope.graph.nodes):
        for tensor in node.operands():
            at = position.get(id(tensor.node))
            if at is None:
                yield node, f"reads {tensor}, whose node is not in the graph"
            elif at >= i:
                yield node, f"reads {tensor}, whose node does not stand before it"
            elif tensor.index >= len(tensor.node.outputs) or tensor.node.outputs[tensor.index] is not tensor:
                yield node, f"reads {tensor}, which its node does not hand out"


def _control(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    position = scope.position
    for i, node in enumerate(scope.graph.nodes):
        for before in node.control:
            at = position.get(id(before))
            if at is None:
                yield node, f"waits for {before}, which is not in the graph"
            elif at >= i:
                yield node, f"waits for {before}, which does not stand before it"
    for before in scope.graph.output_control:
        if id(before) not in position:
            yield None, f"the graph's end waits for {before}, which is not in the graph"


def _graph_outputs(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    for k, tensor in enumerate(scope.graph.outputs):
        if not isinstance(tensor, Tensor):
            yield None, f"graph output {k} is {type(tensor).__name__}, not a Tensor"
        elif id(tensor.node) not in scope.position:
            yield None, f"graph output {k} is {tensor}, whose node is not in the graph"
        elif tensor.index >= len(tensor.node.outputs) or tensor.node.outputs[tensor.index] is not tensor:
            yield None, f"graph output {k} is {tensor}, which its node does not hand out"


def _ownership(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    for node in scope.graph.nodes:
        if node.graph is not scope.graph:
            yield node, f"belongs to graph '{node.graph.name}'"
        for k, tensor in enumerate(node.outputs):
            if tensor.node is not node or tensor.index != k:
                yield node, f"output {k} says that it is {tensor.name}"


def _data_index(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    indices = [n.attr("index", 0) for n in scope.graph.nodes if n.op in ("Data", "RefData")]
    if sorted(indices) != list(range(len(indices))):
        yield None, f"Data nodes have the indices {sorted(indices)}; they must be 0 to {len(indices) - 1}, each once"


SIGNATURE_RULES: Final[tuple[tuple[str, Check], ...]] = (
    ("GE3021", _ports),
    ("GE3022", _input_types),
    ("GE3023", _outputs),
    ("GE3024", _result_types),
    ("GE3025", _attributes),
    ("GE3026", _subgraphs),
)
NODE_RULES: Final[tuple[tuple[str, Check], ...]] = (
    ("GE3027", _attribute_values),
    ("GE3023", _counts),
    ("GE3028", _constant),
    *rules.NODE_RULES,
)
GRAPH_RULES: Final[tuple[tuple[str, GraphCheck], ...]] = (
    ("GE3029", _names),
    ("GE3030", _edges),
    ("GE3031", _control),
    ("GE3032", _graph_outputs),
    ("GE3033", _ownership),
    ("GE3034", _data_index),
    ("GE3039", lambda scope: names.broken(scope.graph)),
    *rules.GRAPH_RULES,
)

# Deeper graphs in nodes are refused everywhere: readers and printers go down one call per level.
MAX_NESTING: Final = 64

_legal: set[Any] = set()


def _forget(op: str) -> None:
    _legal.clear()


schema.on_register(_forget)


# Rules that have something to say of these operators only.
_OF_OPERATORS: Final[dict[Check, tuple[str, ...]]] = {
    _constant: ("Const", "Constant"),
    rules.file_constants: ("FileConstant",),
}


@lru_cache(maxsize=4096)
def _node_rules(op: str) -> tuple[tuple[str, Check], ...]:
    return tuple((code, check) for code, check in NODE_RULES if op in _OF_OPERATORS.get(check, (op,)))


def _signature(node: Node) -> Any:
    plan = plan_of(node.op)
    # Lists first: a generator is entered again for each element.
    return (
        plan,  # one for each definition of the operator
        *[
            e.dtype if isinstance(e, Tensor) else None if e is None else tuple([t.dtype for t in e])
            for e in node.inputs
        ],
        tuple([t.dtype for t in node.outputs]),
        tuple([(name, a.kind) for name, a in node.attrs.items()]),
        tuple(node.attrs.get(name) for name in plan.reads)
        if plan.reads and node.op not in ("Const", "Constant")
        else None,
        tuple(node.output_counts.items()),
        tuple(node.subgraphs),
    )


def verify(graph: Graph) -> None:
    """Check a graph against every rule.

    Raises:
        VerifyError: GE3010 listing all violations, each with its code, node and source line.
    """
    problems = tuple(violations(graph))
    if problems:
        raise VerifyError(graph, problems)


def violations(graph: Graph) -> Iterator[Violation]:
    """All broken rules of a graph and its subgraphs, by the definitions of the graph's release."""
    with schema.at_release(graph.release):
        yield from list(_violations(graph, "", set(), set()))


def _violations(graph: Graph, path: str, above: set[int], sound: set[tuple[int, int]]) -> Iterator[Violation]:
    """Of a graph inside those ``above``; ``sound`` are inner graphs without any, with their depth: several nodes may
    share one."""
    scope = Scope(graph, root=not above)
    for code, check in GRAPH_RULES:
        for node, what in check(scope):
            yield _violation(code, path, node, what)
    for node in graph.nodes:
        yield from _node_violations(node, path)
        for slot, inner in node.subgraphs.items():
            if id(inner) in above or inner is graph:
                yield _violation("GE3026", path, node, f"subgraph '{slot}' contains itself")
            elif len(above) >= MAX_NESTING:
                yield _violation("GE3026", path, node, f"subgraphs lie more than {MAX_NESTING} levels deep")
            elif (place := (id(inner), len(above))) not in sound:
                found = list(_violations(inner, f"{path}{node.name}/{slot}/", above | {id(graph)}, sound))
                if not found:
                    sound.add(place)
                yield from found


def _node_violations(node: Node, path: str) -> Iterator[Violation]:
    op = schema.get(node.op)
    if op is None:
        close = schema.suggest(node.op)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        yield _violation("GE3020", path, node, f"GE has no operator '{node.op}'{hint}")
        return
    try:
        signature = _signature(node)
        known = signature in _legal
    except (AttributeError, TypeError):  # something in the node is not what it should be; the rules say what
        signature, known = None, False
    clean = True
    if not known:
        for code, check in SIGNATURE_RULES:
            for what in check(node, op):
                clean = False
                yield _violation(code, path, node, what)
        if clean and signature is not None:
            _legal.add(signature)
    for code, check in _node_rules(node.op):
        for what in check(node, op):
            yield _violation(code, path, node, what)


def _violation(code: str, path: str, node: Node | None, what: str) -> Violation:
    if node is None:
        return Violation(code, escape.line(f"{path}{what}"), "")
    origin, name = node.provenance, names.shown(f"{path}{node.name}")
    where = "" if origin is None else escape.line(origin.source)
    return Violation(code, escape.line(f"{node.op} '{name}': {what}"), where)
