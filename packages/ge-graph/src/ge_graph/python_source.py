"""The graph as a Python program that builds it again: what ``graph_dump.type = "py"`` writes.

One ``ge`` call a node, in order, under the lines of source and FX code that it comes from. What a call does not say
(recorded shapes, origin, attributes that no schema lists) stands in ``restore`` lines before the last one, so that the
graph built has the same bytes. A node that no ``ge`` call makes (no schema, other result types) is built by ``node``.
Constants up to 1,024 elements stand in the program; ``write_py`` puts larger ones into a sibling file
``<name>.weights``, ``to_py`` writes them in base64.

``python_reader.run_py`` builds the graph of such a program again and executes nothing. Running the file with Python is
possible too where torchair is installed; do that with your own files only.
"""

from __future__ import annotations

import base64
import builtins
import json
import keyword
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from ge_graph import builder, escape, ops, schema
from ge_graph.attrs import Attr, Kind, make
from ge_graph.calling import plan_of
from ge_graph.dtypes import DataType, Format, from_numpy
from ge_graph.errors import ArchiveError, GraphError
from ge_graph.files import whole
from ge_graph.ir import Graph, Literal, Node, Operand, Provenance, Shape, Tensor, _current, building, current_graph
from ge_graph.serde_write import literal_bytes, tensor_data

INLINE_ITEMS: Final = 1024
_VARIABLE_LENGTH: Final = 100
_HEAD: Final = """\
# -*- coding: utf-8 -*-
from torch import tensor
from torchair._ge_concrete_graph import ge_apis as ge
from torchair.ge._ge_graph import get_default_ge_graph
from ge_graph.python_source import describe, new_graph, node, raw, restore, start, stored

graph = start(get_default_ge_graph)
"""
_RESERVED: Final = (
    "tensor",
    "ge",
    "get_default_ge_graph",
    "describe",
    "new_graph",
    "node",
    "raw",
    "restore",
    "start",
    "stored",
    "graph",
    "_",
)
_SOURCE: Final = re.compile(r"(.*):(\d+)(?: in (.*))?", re.DOTALL)

# --- what the programs call ------------------------------------------------------------------------------------------


def start(get_default_ge_graph: Callable[[], Graph]) -> Graph:
    """The graph that a program fills: the one being built, or a new one if the program is run by itself."""
    try:
        return get_default_ge_graph()
    except GraphError as error:
        if error.code != "GE3006":
            raise
    graph = Graph()
    _current.set(graph)
    return graph


def net_output(inputs: Sequence[Tensor], dependencies: Sequence[Tensor | Node] = ()) -> Graph:
    """``ge.NetOutput``: what the graph returns, and what must have run when it does."""
    graph = current_graph()
    graph.outputs = list(inputs)
    graph.output_control = [d.node if isinstance(d, Tensor) else d for d in dependencies]
    return graph


class _Apis:
    """``ge`` as a program sees it: all operators, and ``NetOutput``, which no header lists."""

    NetOutput = staticmethod(net_output)

    def __getattr__(self, name: str) -> Any:
        return getattr(ops, name)


ge_apis: Final = _Apis()


def describe(graph: Graph, name: str, attrs: Mapping[str, tuple[str, Any]]) -> None:
    """Set name and attributes of a graph."""
    graph.name = name
    graph.attrs = _typed(attrs)


def restore(
    name: str,
    *,
    shapes: Sequence[Shape | None] | None = None,
    formats: Sequence[int] | None = None,
    origin: tuple[str, ...] = (),
    attrs: Mapping[str, tuple[str, Any]] | None = None,
    without: Sequence[str] = (),
    control: Sequence[str] | None = None,
) -> None:
    """Add what the call that made a node does not say."""
    graph = current_graph()
    made = graph.node(name)
    for tensor, shape in zip(made.outputs, shapes or ()):
        if shape is not None and not all(isinstance(d, str) or (type(d) is int and d >= -1) for d in shape):
            raise ArchiveError("GE5014", f"shape {list(shape)} of '{escape.line(name)}'", where="restore()")
        tensor.record_shape(None if shape is None else tuple(shape))
    for tensor, number in zip(made.outputs, formats or ()):
        tensor.format = Format(number)
    if not all(isinstance(text, str) for text in origin):
        raise ArchiveError("GE5014", f"origin of '{escape.line(name)}' is not a list of texts", where="restore()")
    made.provenance = Provenance(*origin) if origin else None
    made.attrs.update(_typed(attrs or {}))
    for attr in without:
        made.attrs.pop(attr, None)
    if control is not None:
        made.control = [graph.node(n) for n in control]


def node(
    op: str,
    inputs: Sequence[Any],
    *,
    attrs: Mapping[str, tuple[str, Any]],
    dtypes: Sequence[int],
    counts: Mapping[str, int] | None = None,
    subgraphs: Mapping[str, Graph] | None = None,
    node_name: str,
) -> Any:
    """Append a node as it is; returns its outputs, or the node if it has none."""
    operands = [tuple(e) if isinstance(e, list) else e for e in inputs]
    made = current_graph().add(op, operands, _typed(attrs), [(DataType(d), None) for d in dtypes], name=node_name)
    made.output_counts = dict(counts or {})
    made.subgraphs = dict(subgraphs or {})
    return tuple(made.outputs) if made.outputs else made


@contextmanager
def new_graph(name: str) -> Iterator[Graph]:
    """A graph that belongs into a node."""
    with building(Graph(name)) as graph:
        yield graph


def raw(dtype: int, shape: Sequence[int], text: str) -> np.ndarray[Any, Any] | Literal:
    """A constant from base64."""
    return _as_constant(dtype, shape, np.frombuffer(base64.b64decode(text, validate=True), np.uint8), "base64 text")


def stored(program: str, file: str, offset: int, dtype: int, shape: Sequence[int]) -> np.ndarray[Any, Any] | Literal:
    """A constant from the file beside the program.

    Raises:
        ArchiveError: GE5015 if the file is missing or too short.
    """
    path = Path(program).parent / Path(file).name
    size = literal_bytes(DataType(dtype), _dims(shape)) or 0
    if offset < 0 or not path.is_file() or path.stat().st_size < offset + size:
        raise ArchiveError(
            "GE5015",
            f"weights of the program: {size} bytes from byte {offset} are not there",
            where=str(path),
            next="keep the .weights file beside the .py file",
        )
    return _as_constant(dtype, shape, np.fromfile(path, np.uint8, size, offset=offset), str(path))


def _as_constant(
    dtype: int, shape: Sequence[int], data: np.ndarray[Any, Any], where: str
) -> np.ndarray[Any, Any] | Literal:
    kind, dims = DataType(dtype), _dims(shape)
    expected = literal_bytes(kind, dims)
    if expected is not None and expected != data.size:
        raise ArchiveError("GE5015", f"{kind.name}{list(dims)} takes {expected} bytes, got {data.size}", where=where)
    if kind.numpy_name is None:
        return Literal(kind, dims, data)
    return data.view(kind.numpy).reshape(dims) if data.size else np.empty(dims, kind.numpy)


def _dims(shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) > 64 or not all(type(d) is int and d >= 0 for d in shape):
        raise ArchiveError("GE5015", f"a constant of shape {list(shape)[:65]}", where="raw()")
    return tuple(shape)


def _typed(attrs: Mapping[str, tuple[str, Any]]) -> dict[str, Attr]:
    return {name: make(Kind(kind), value, name) for name, (kind, value) in attrs.items()}


# --- writing ---------------------------------------------------------------------------------------------------------


def to_py(graph: Graph) -> str:
    """The program, complete in itself."""
    return _Program(None).text(graph)


def write_py(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the program, readable by its owner only, and ``<name>.weights`` beside it if large constants ask for it."""
    target = Path(path)
    weights = target.with_suffix(".weights")
    opened: list[IO[bytes]] = []
    with ExitStack() as complete:

        def store(data: np.ndarray[Any, Any]) -> tuple[str, int]:
            if not opened:  # made with the first constant
                opened.append(complete.enter_context(whole(weights, 0o600)))
            offset = opened[0].tell()
            opened[0].write(data.data)
            return weights.name, offset

        text = _Program(store).text(graph)
    with whole(target, 0o600) as file:
        file.write(text.encode())


Store = Callable[[np.ndarray[Any, Any]], tuple[str, int]]


class _Program:
    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._names: dict[Tensor | Node, str] = {}
        self._used = {*_RESERVED, *keyword.kwlist, *vars(builtins)}
        self._inner: dict[int, str] = {}

    def text(self, graph: Graph) -> str:
        with schema.at_release(graph.release):
            return _HEAD + "".join(line + "\n" for line in self._graph(graph, "graph"))

    def _graph(self, graph: Graph, variable: str) -> list[str]:
        """The lines of one graph; each call is tried out on a scratch graph to see what it leaves open."""
        scratch = Graph(graph.name)
        twins: dict[Tensor, Tensor] = {}
        lines: list[str] = []
        notes: list[str] = []
        for run in _runs(graph.nodes):
            lines += _comments(run)
            for each in run:
                lines += self._subgraphs(each)
                lines.append(self._call(each, scratch, twins, notes))
        attrs = ", ".join(f"{_value(k)}: {self._attr(a)}" for k, a in sorted(graph.attrs.items()))
        lines.append(f"describe({variable}, {_value(graph.name)}, {{{attrs}}})")
        lines += notes
        outputs = ", ".join(self._names[t] for t in graph.outputs)
        control = ", ".join(self._handle(n) for n in graph.output_control)
        return [*lines, f"_ = ge.NetOutput([{outputs}], dependencies=[{control}])"]

    def _subgraphs(self, owner: Node) -> list[str]:
        lines = []
        for inner in owner.subgraphs.values():
            variable = self._inner[id(inner)] = self._unused(f"{owner.name}_graph")
            lines.append(f"with new_graph({_value(inner.name)}) as {variable}:")
            lines += [f"    {line}" for line in self._graph(inner, variable)]
        return lines

    def _call(self, made: Node, scratch: Graph, twins: dict[Tensor, Tensor], notes: list[str]) -> str:
        arguments = self._arguments(made)
        twin = None if arguments is None else _try(made, scratch, twins)
        plain = twin is None
        if twin is None or arguments is None:
            call = self._plain_call(made)
            twin = scratch.add(
                made.op,
                (),
                {} if made.op == "Const" else dict(made.attrs),
                [(t.dtype, None) for t in made.outputs],
                name=made.name,
            )
            twin.attrs = dict(made.attrs)
        else:
            call = f"ge.{made.op}({', '.join(arguments)})"
        twins.update(zip(made.outputs, twin.outputs))
        note = self._note(made, twin)
        if note:
            notes.append(note)
        return f"{self._targets(made, plain=plain)} = {call}"

    def _targets(self, made: Node, plain: bool) -> str:
        names = [self._name(t, f"{made.name}_{t.index}") for t in made.outputs]
        if not names:
            return self._name(made, made.name)
        if plain:
            return f"{', '.join(names)}{',' if len(names) == 1 else ''}"
        row = schema.get(made.op)
        if row is None or (len(row.outputs) < 2 and not made.output_counts):
            return ", ".join(names)
        parts, at = [], 0
        for port in row.outputs:
            size = made.output_counts.get(port.name) if port.kind == "dynamic" else None
            if size is None:
                parts.append(names[at])
                at += 1
            else:
                parts.append(f"[{', '.join(names[at : at + size])}]")
                at += size
        return ", ".join(parts)

    def _name(self, key: Tensor | Node, wanted: str) -> str:
        name = self._names[key] = self._unused(wanted)
        return name

    def _unused(self, wanted: str) -> str:
        name = re.sub(r"\W", "_", wanted[:_VARIABLE_LENGTH], flags=re.ASCII)
        name = f"v_{name}" if not name or name[0].isdigit() else name
        while name in self._used:
            name += "_"
        self._used.add(name)
        return name

    def _handle(self, made: Node) -> str:
        return self._names[made.outputs[0] if made.outputs else made]

    def _operand(self, entry: Operand) -> str:
        if entry is None:
            return "None"
        if isinstance(entry, tuple):
            return f"[{', '.join(self._names[t] for t in entry)}]"
        return self._names[entry]

    def _arguments(self, made: Node) -> list[str] | None:
        """Arguments of the ``ge`` call, ``None`` if there is no such call."""
        named = f"node_name={_value(made.name)}"
        if made.op == "Data":
            if not made.outputs or made.outputs[0].known_shape is None:
                return None
            return [*(f"{name}={_value(value)}" for name, value in _of_data(made).items()), named]
        if made.op == "Const":
            value = made.attr("value")
            if value is None:
                return None
            readable = "" if "_readable_value" in made.attrs else "readable=False"
            return [a for a in (*self._constant(value), named, readable) if a]
        if schema.get(made.op) is None or made.subgraphs:
            return None
        return [*self._operation(made), named]

    def _operation(self, made: Node) -> list[str]:
        result = [self._operand(e) for e in made.inputs]
        result += [f"{parameter}={_value(value)}" for parameter, value in _options(made).items()]
        if made.control and all(n.outputs for n in made.control):
            result.append(f"dependencies=[{', '.join(self._handle(n) for n in made.control)}]")
        return result

    def _plain_call(self, made: Node) -> str:
        attrs = ", ".join(f"{_value(k)}: {self._attr(a)}" for k, a in made.attrs.items())
        parts = [_value(made.op), f"[{', '.join(self._operand(e) for e in made.inputs)}]", f"attrs={{{attrs}}}"]
        parts.append(f"dtypes={[int(t.dtype) for t in made.outputs]}")
        if made.output_counts:
            parts.append(f"counts={_dict(made.output_counts)}")
        if made.subgraphs:
            inner = ", ".join(f"{_value(slot)}: {self._inner[id(g)]}" for slot, g in made.subgraphs.items())
            parts.append(f"subgraphs={{{inner}}}")
        return f"node({', '.join(parts)}, node_name={_value(made.name)})"

    def _note(self, made: Node, twin: Node) -> str:
        parts = []
        shapes = [t.known_shape for t in made.outputs]
        if shapes != [t.known_shape for t in twin.outputs]:
            parts.append(f"shapes={_value(shapes)}")
        formats = [int(t.format) for t in made.outputs]
        if any(f != Format.FORMAT_ND for f in formats):
            parts.append(f"formats={formats}")
        if made.provenance is not None:
            parts.append(f"origin=({', '.join(map(_value, made.provenance.texts()))})")
        extra = {k: a for k, a in made.attrs.items() if k not in twin.attrs or not _same(a, twin.attrs[k])}
        if extra:
            parts.append(f"attrs={{{', '.join(f'{_value(k)}: {self._attr(a)}' for k, a in extra.items())}}}")
        missing = [k for k in twin.attrs if k not in made.attrs]
        if missing:
            parts.append(f"without={_value(missing)}")
        if [n.name for n in made.control] != [n.name for n in twin.control]:
            parts.append(f"control={_value([n.name for n in made.control])}")
        return f"restore({_value(made.name)}, {', '.join(parts)})" if parts else ""

    def _attr(self, attr: Attr) -> str:
        tensor = attr.kind is Kind.TENSOR and attr.value is not None
        return f"({_value(attr.kind.value)}, {self._raw(attr.value) if tensor else _value(attr.value)})"

    def _constant(self, value: Any) -> list[str]:
        if isinstance(value, np.ndarray) and value.size <= INLINE_ITEMS and _reads_back(value):
            dtype, _, _ = tensor_data(value, "Const")
            return [_value(value.tolist()), f"dtype={int(dtype)}"]
        return [self._raw(value)]

    def _raw(self, value: Any) -> str:
        dtype, shape, data = tensor_data(value, "Const")
        if self._store is not None and math.prod(shape) > INLINE_ITEMS:
            file, offset = self._store(data)
            return f"stored(__file__, {_value(file)}, {offset}, {int(dtype)}, {list(shape)})"
        return f"raw({int(dtype)}, {list(shape)}, {base64.b64encode(data.tobytes()).decode()!r})"


def _reads_back(value: np.ndarray[Any, Any]) -> bool:
    """Whether nested lists of numbers tell the array exactly."""
    if value.size == 0 or value.dtype.kind not in "biuf":
        return False
    again = builder.as_value(value.tolist(), from_numpy(value.dtype))
    return isinstance(again, np.ndarray) and again.shape == value.shape and again.tobytes() == value.tobytes()


def _try(made: Node, scratch: Graph, twins: dict[Tensor, Tensor]) -> Node | None:
    """Make the node on the scratch graph by its call; ``None`` if the call makes another one."""
    count = len(scratch.nodes)
    try:
        with building(scratch):
            twin = _made_by_call(made, twins)
    except GraphError:
        twin = None
    if twin is not None and len(scratch.nodes) == count + 1 and _same_form(made, twin, twins):
        return twin
    scratch.remove(scratch.nodes[count:])
    return None


def _made_by_call(made: Node, twins: dict[Tensor, Tensor]) -> Node | None:
    graph = current_graph()
    if made.op == "Data":
        builder.data(graph, **_of_data(made), name=made.name)
    elif made.op == "Const":
        builder.constant(graph, made.attr("value"), made.name, readable="_readable_value" in made.attrs)
    else:
        plan = plan_of(made.op)
        if len(made.inputs) != plan.arity:
            return None
        options = {"node_name": made.name, **_options(made)}
        if made.control and all(n.outputs for n in made.control):
            options["dependencies"] = [twins[n.outputs[0]] for n in made.control]
        plan.call(tuple(_twin_inputs(made, twins)), options)
    return graph.nodes[-1] if graph.nodes else None


def _of_data(made: Node) -> dict[str, Any]:
    """What the call that makes an input says."""
    (tensor,) = made.outputs[:1]
    dims = tuple(-1 if isinstance(d, str) else d for d in tensor.known_shape or ())
    return {
        "index": made.attr("index", 0),
        "dtype": tensor.dtype,
        "shape": dims,
        "placement": made.attr("_placement", "NPU"),
    }


def _options(made: Node) -> dict[str, Any]:
    """What the call that makes a node says of attributes and of dynamic outputs."""
    said = {}
    for parameter, row in plan_of(made.op).attributes.items():
        attr = made.attrs.get(row.name)
        if attr is not None and row.kind is attr.kind and attr.kind is not Kind.TENSOR and attr != row.default:
            said[parameter] = attr.value
    return said | {f"size_of_{port}": count for port, count in made.output_counts.items()}


def _twin_inputs(made: Node, twins: dict[Tensor, Tensor]) -> list[Operand]:
    return [
        tuple(twins[t] for t in e) if isinstance(e, tuple) else None if e is None else twins[e] for e in made.inputs
    ]


def _same_form(made: Node, twin: Node, twins: dict[Tensor, Tensor]) -> bool:
    return (
        twin.name == made.name
        and twin.op == made.op
        and twin.inputs == _twin_inputs(made, twins)
        and twin.output_counts == made.output_counts
        and [t.dtype for t in twin.outputs] == [t.dtype for t in made.outputs]
    )


def _same(a: Attr, b: Attr) -> bool:
    if a.kind is not b.kind:
        return False
    if a.kind is not Kind.TENSOR or a.value is None or b.value is None:
        return repr(a) == repr(b)
    mine, theirs = tensor_data(a.value, ""), tensor_data(b.value, "")
    return mine[:2] == theirs[:2] and (mine[2] is theirs[2] or bool(np.array_equal(mine[2], theirs[2])))


def _dict(value: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{_value(k)}: {_value(v)}' for k, v in value.items())}}}"


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, DataType):
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str):
        # JSON's form is easier on the eye; what does not print, and what has no UTF-8, is written in ASCII
        return (
            json.dumps(value, ensure_ascii=False) if escape.line(value, len(value)) == value else escape.literal(value)
        )
    return repr(value)


def _runs(nodes: Sequence[Node]) -> list[list[Node]]:
    """Neighbours that come from one source line."""
    runs: list[list[Node]] = []
    last: Any = object()
    for each in nodes:
        source = (each.provenance.source, each.provenance.code) if each.provenance else None
        if source != last:
            runs.append([])
            last = source
        runs[-1].append(each)
    return runs


def _comments(run: list[Node]) -> list[str]:
    """The source line, then the FX nodes that it became."""
    first = run[0].provenance
    if first is None:
        return []
    lines = []
    match = _SOURCE.fullmatch(first.source)
    if match:
        where = f'# File "{match[1]}", line {match[2]}' + (f", in {match[3]}" if match[3] else "")
        lines.append(_one_line(f"{where}    {first.code}".rstrip()))
    seen = dict.fromkeys(
        p.fx_text or f"{p.fx_name} = torch.ops.{p.fx_target}"
        for n in run
        if (p := n.provenance) and (p.fx_text or p.fx_name)
    )
    return lines + [_one_line(f"## FX Code: {text}") for text in seen]


def _one_line(text: str) -> str:
    return escape.line(" ".join(text.splitlines()))
