"""What GE checks, ignores and overwrites, where that differs from ``ge_graph.verify``: GE is laxer in most places.

``check_options`` and ``check_graph`` refuse with GE's error code in front of the text. ``rewrite`` does what GE does
without a word: fills defaults, drops values of a wrong kind, renumbers inputs, removes what nothing needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ge_emulator import chips
from ge_emulator.refusal import INVALID, CannRefusal
from ge_graph import infer, schema
from ge_graph.attrs import Attr, Kind
from ge_graph.calling import input_problems, plan_of
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor

_DATA: Final = ("Data", "RefData", "AnnData", "QueueData", "AippData")
_CONSTS: Final = ("Const", "Constant", "FileConstant")
_NO_SCHEMA: Final = (*_DATA, *_CONSTS, "NetOutput", "NoOp", "ControlTrigger", "ConstPlaceHolder")
_BRANCHING: Final = ("If", "_If", "StatelessIf", "Case", "StatelessCase")
_WITH_SUBGRAPHS: Final = (
    *_BRANCHING,
    "For",
    "While",
    "_While",
    "StatelessWhile",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "FlowNode",
)
_HALF: Final = (DataType.DT_FLOAT16, DataType.DT_BF16)

# Option values that GE checks; anything else passes, also names that GE does not know.
_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "ge.featureBaseRefreshable": ("0", "1"),
    "ge.constLifecycle": ("graph", "session"),
    "ge.oo.level": ("O1", "O3"),
    "ge.tiling_schedule_optimize": ("", "0", "1"),
    "ge.topoSortingMode": ("", "0", "1", "2", "3"),
    "ge.exportCompileStat": ("0", "1", "2"),
    "ge.autoTuneMode": ("",),
}


def check_options(options: dict[str, str], level: str) -> None:
    """Refuse option values that GE refuses when it gets them."""
    for name, value in options.items():
        allowed = _VALUES.get(name, ("true", "false") if name.startswith("ge.oo.") else None)
        if allowed is not None and value not in allowed:
            listed = ", ".join(sorted(allowed)) or "nothing"
            raise CannRefusal(INVALID, f"E10001: value '{value}' of option {name} is invalid; taken are: {listed}")
        if name in ("ge.exec.outputReuseMemIndexes", "ge.exec.inputReuseMemIndexes") and value:
            parts = value.split(",")
            if not all(p.isdigit() for p in parts) or len(set(parts)) != len(parts):
                raise CannRefusal(INVALID, f"E19999: option {name} is '{value}': indices from 0, without repeats")
        if name == "ge.graph_key" and not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", value):
            raise CannRefusal(INVALID, f"E13026: option {name} is '{value}': 1 to 128 letters, digits, _ or -")


def reused_inputs(options: dict[str, str], inputs: int, outputs: int) -> list[tuple[int, int]]:
    """Pairs of an input and the output that has its memory; malformed pairs are skipped, as GE does."""
    pairs = []
    for pair in options.get("ge.exec.outputReuseInputMemIndexes", "").split("|"):
        a, comma, b = pair.partition(",")
        if not comma or not a.strip().isdigit() or not b.strip().isdigit():
            continue
        if int(a) >= inputs or int(b) >= outputs:
            what = f"outputReuseInputMemIndexes {pair}: the graph has {inputs} inputs, {outputs} outputs"
            raise CannRefusal(INVALID, f"E19999: {what}")
        pairs.append((int(a), int(b)))
    return pairs


Rule = Callable[[Graph, dict[str, str]], Iterable[str]]


def _whole(graph: Graph, options: dict[str, str]) -> Iterator[str]:
    if not graph.nodes:
        yield "E19999: the graph has no node (GE_GRAPH_INIT_FAILED)"
    for node in graph.nodes:
        for edge in node.outputs:
            shape = edge.known_shape
            if shape is not None and any(isinstance(d, int) and d < -1 for d in shape):
                yield f"E18888: node {node.name}: a dimension of {shape} is below -1"


def _inputs(graph: Graph, options: dict[str, str]) -> Iterator[str]:
    for node in (n for n in graph.nodes if n.op in _DATA):
        index = node.attrs.get("index")
        if index is None or index.kind is not Kind.INT or index.value < 0:
            yield f"E13025: {node.op} node {node.name} carries no index"
        if node.op == "RefData" and options.get("ge.exec.graphIOMemAllocMode") == "ByGE":
            yield f"E13025: RefData node {node.name} together with ge.exec.graphIOMemAllocMode=ByGE"
        if node.outputs and node.outputs[0].dtype in (DataType.DT_STRING, DataType.DT_RESOURCE):
            yield f"E13025: input {node.name} is {node.outputs[0].dtype.name}, which has no byte length"
    count = sum(n.op in _DATA for n in graph.nodes)
    for entry in filter(None, options.get("ge.inputHintShape", "").split(";")):
        index_text = entry.partition(":")[0].strip()
        if not index_text.isdigit() or int(index_text) >= count:
            yield f"E19999: ge.inputHintShape names input {index_text}; the graph has {count}"


def _operators(graph: Graph, options: dict[str, str]) -> Iterator[str]:
    for node in graph.nodes:
        if node.op in _CONSTS and node.op != "FileConstant" and node.attr("value") is None:
            yield f"E19999: {node.op} node {node.name} has no value"
        if node.op in _NO_SCHEMA:
            continue
        op_schema = schema.get(node.op)
        if op_schema is None:
            yield f"EZ3003: node {node.name}: no operator information library supports {node.op}"
            continue
        if node.subgraphs and node.op not in _WITH_SUBGRAPHS:
            yield f"E19999: node {node.name} of type {node.op} has a subgraph"
        if len(node.inputs) != len(op_schema.inputs):
            yield f"E19999: node {node.name}: {len(node.inputs)} input ports, {node.op} has {len(op_schema.inputs)}"
            continue
        yield from _ports(node, op_schema)


def _ports(node: Node, op_schema: schema.OpSchema) -> Iterator[str]:
    outputs = {p.name for p in op_schema.outputs}
    fed: list[Any] = []
    for port, entry in zip(op_schema.inputs, node.inputs):
        edges = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        if port.kind == "required" and entry is None:
            yield f"E11019: node {node.name} of type {node.op}: input {port.name} is not linked"
        for edge in edges:
            wide = edge.dtype in _HALF and DataType.DT_FLOAT in port.domain  # GE inserts casts
            if edge.dtype not in port.domain and not wide:
                yield f"EZ3002: node {node.name} of type {node.op}: input {port.name} is {edge.dtype.name}"
        if port.name in outputs and any(e.node.op in _CONSTS for e in edges):
            yield f"E19999: node {node.name} ({node.op}) writes {port.name}, which a constant feeds (PARAM_INVALID)"
        types = tuple(DataType.DT_FLOAT if e.dtype in _HALF and e.dtype not in port.domain else e.dtype for e in edges)
        fed.append(types if port.kind == "dynamic" else types[0] if types else None)
    if not any(p.kind == "required" and e is None for p, e in zip(op_schema.inputs, node.inputs)):
        yield from (f"EZ9999: node {node.name} of type {node.op}: {text}" for text in input_problems(op_schema, fed))


def _branches(graph: Graph, options: dict[str, str]) -> Iterator[str]:
    for node in graph.nodes:
        if node.op in _BRANCHING:
            for slot, inner in node.subgraphs.items():
                if len(inner.outputs) != len(node.outputs):
                    counts = f"{len(inner.outputs)} of {len(node.outputs)}"
                    yield f"E19999: node {node.name}: branch {slot} gives {counts} outputs"
            for i, types in enumerate(zip(*([t.dtype for t in g.outputs] for g in node.subgraphs.values()))):
                if len(set(types)) > 1:
                    listed = " and ".join(t.name for t in types)
                    yield f"E19999: node {node.name}: output {i} is {listed} in its branches"
        for inner in node.subgraphs.values():
            yield from _operators(inner, options)
            yield from _branches(inner, options)


def _scopes(graph: Graph, options: dict[str, str]) -> Iterator[str]:
    limits = dict(zip(("_op_aicore_num", "_op_vectorcore_num"), chips.cores() or (math.inf, math.inf)))
    for node in graph.nodes:
        for name, cores in limits.items():
            attr = node.attrs.get(name)
            if attr is not None and not (str(attr.value).isdigit() and int(attr.value) <= cores):
                yield f"E10001: node {node.name}: {name} is '{attr.value}'; the chip has {cores}"
        if "_user_stream_label" in node.attrs and options.get("ge.enableSingleStream") == "true":
            yield f"E10055: node {node.name} has a stream label, and ge.enableSingleStream is true"


_RULES: Final[tuple[Rule, ...]] = (_whole, _inputs, _operators, _branches, _scopes)


def check_graph(graph: Graph, options: dict[str, str]) -> None:
    """Refuse what GE refuses when it compiles, all of it at once."""
    problems = [text for rule in _RULES for text in rule(graph, options)]
    problems += _gears(graph, options)
    if problems:
        raise CannRefusal(INVALID, "\n".join(problems))


def _gears(graph: Graph, options: dict[str, str]) -> list[str]:
    """Gears: at least two, all as long as there are unknown sizes in ge.inputShape."""
    text = options.get("ge.dynamicDims", "")
    if not text:
        return []
    gears = [g.split(",") for g in text.split(";")]
    unknown = sum(
        d.strip() == "-1" for s in options.get("ge.inputShape", "").split(";") for d in s.rpartition(":")[2].split(",")
    )
    fine = len(gears) >= 2 and all(len(g) == unknown and all(d.strip().isdigit() for d in g) for g in gears)
    return [] if fine else [f"E10001: ge.dynamicDims '{text}': at least two gears of {unknown} sizes each"]


def rewrite(graph: Graph) -> None:
    """Do to a graph what GE does without a word."""
    _renumber(graph)
    _prune(graph)
    for node in graph.nodes:
        _defaults(node)
        _infer_types(node)
        for inner in node.subgraphs.values():
            rewrite(inner)


def _renumber(graph: Graph) -> None:
    """Input indices that are not 0 to n-1 are replaced by the order of the nodes."""
    nodes = [n for n in graph.nodes if n.op in ("Data", "RefData")]
    if sorted(n.attr("index", -1) for n in nodes) != list(range(len(nodes))):
        for i, node in enumerate(nodes):
            node.attrs["index"] = Attr(Kind.INT, i)


def _prune(graph: Graph) -> None:
    """A node that neither an output nor a control edge of the outputs needs is removed, whatever it would do."""
    needed: set[int] = set()
    stack = [t.node for t in graph.outputs] + list(graph.output_control) + [n for n in graph.nodes if n.op in _DATA]
    while stack:
        node = stack.pop()
        if id(node) not in needed:
            needed.add(id(node))
            stack += [t.node for t in node.operands()] + list(node.control)
    graph.remove([n for n in graph.nodes if id(n) not in needed])


def _defaults(node: Node) -> None:
    """Absent optional attributes get their default; one of another kind is not read, so it has the default too."""
    op_schema = schema.get(node.op)
    for spec in op_schema.attrs if op_schema is not None else ():
        given = node.attrs.get(spec.name)
        if given is None or given.kind is not spec.kind:
            node.attrs.pop(spec.name, None)
            if spec.default is not None:
                node.attrs[spec.name] = spec.default


def _infer_types(node: Node) -> None:
    """The type that inputs and attributes make a result replaces the one that the graph recorded."""
    op_schema = schema.get(node.op)
    if op_schema is None or node.subgraphs or node.op in _NO_SCHEMA or len(node.outputs) != len(op_schema.outputs):
        return
    fed: list[Any] = [
        tuple(t.dtype for t in e) if isinstance(e, tuple) else e.dtype if isinstance(e, Tensor) else None
        for e in node.inputs
    ]
    plan = plan_of(node.op)
    for port, edge, rule, definite in zip(op_schema.outputs, node.outputs, plan.rules, plan.definite):
        if not definite or port.kind == "dynamic":
            continue
        try:
            expected = infer.first(rule(fed, node.attrs))
        except (KeyError, AttributeError, TypeError, ValueError):
            continue
        if expected is not None:
            edge.dtype = expected
