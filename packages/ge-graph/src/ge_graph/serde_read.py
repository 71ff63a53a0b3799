"""Bytes to graph: the reader behind ``ge_graph.serde``.

A file is foreign until it proves to be ours: everything is checked before it is believed, and every refusal is an
``ArchiveError`` that names the operator. Nothing here asks whether operators exist; ``ge_graph.verify`` does.
"""

from __future__ import annotations

import heapq
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ge_graph import ports, schema, wire
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import BY_LAYOUT, BY_WIRE, DataType, Format
from ge_graph.errors import ArchiveError, GraphError
from ge_graph.ir import Graph, Literal, Node, Operand, Provenance, Shape, Tensor
from ge_graph.serde_write import (
    EXACT,
    GRAPH_CANN,
    GRAPH_NAME,
    NAME_KEYS,
    NAME_VALUES,
    OUTPUT_COUNTS,
    PLACEMENT,
    PORT_SIZES,
    PROVENANCE,
    SUBGRAPH_SLOTS,
    SYMBOLIC_SHAPE,
    checksum_entry,
    literal_bytes,
    shortest_float,
)

_CANN: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_EDGE: Final = re.compile(r"(.+):(-1|0|[1-9][0-9]{0,8})", re.DOTALL)
_LAYOUTS: Final[dict[str, Format]] = {k.upper(): f for k, f in BY_LAYOUT.items()}
_LIST_KINDS: Final = {
    "VT_LIST_STRING": ("s", Kind.LIST_STRING),
    "VT_LIST_INT": ("i", Kind.LIST_INT),
    "VT_LIST_FLOAT": ("f", Kind.LIST_FLOAT),
    "VT_LIST_BOOL": ("b", Kind.LIST_BOOL),
    "VT_LIST_DATA_TYPE": ("dt", Kind.LIST_TYPE),
}
_LIST_MEMBERS: Final = ("s", "i", "f", "b", "dt", "bt", "td", "t", "g", "na")
# Graphs in nodes of graphs; as ``verify`` has it, and far below what a call a level can bear.
MAX_NESTING: Final = 64
MAX_RANK: Final = 64
# No device addresses more; a recorded shape beyond it is damage, or meant to exhaust whoever believes it.
MAX_ELEMENTS: Final = 1 << 48

_OTHERS: Final = "the file is damaged, or written by a version that this one does not know"


def damaged(code: str, what: str, where: str, next: str = _OTHERS) -> ArchiveError:
    """An error about the file read."""
    return ArchiveError(code, what, where=where, next=next)


def read_model(data: bytes | bytearray | memoryview) -> Graph:
    """The graph of a ``ModelDef``."""
    view = memoryview(data).cast("B")
    check_sum(view)
    model = _parse("ModelDef", view)
    if not model.graph:
        raise damaged("GE5002", f"no graph in a ModelDef of {len(view)} bytes", "ModelDef.graph")
    return read_graphs(list(model.graph))


def read_graph(data: bytes | bytearray | memoryview) -> Graph:
    """The graph of a single ``GraphDef``."""
    return read_graphs([_parse("GraphDef", memoryview(data).cast("B"))])


def _parse(message: str, view: memoryview) -> Any:
    try:
        return wire.parse(message, view)
    except ValueError as error:
        raise damaged("GE5001", f"not a ge.proto.{message}: {error}", f"a file of {len(view)} bytes") from None


def check_sum(view: memoryview) -> None:
    """Compare the checksum at the end of files that carry one; files of others have none."""
    length = len(checksum_entry(0))
    if len(view) < length:
        return
    tail, body = bytes(view[-length:]), view[:-length]
    if tail[:-8] != checksum_entry(0)[:-8]:
        return
    if tail != checksum_entry(zlib.crc32(body)):
        raise damaged(
            "GE5003",
            f"checksum {tail[-8:]!r} does not fit the {len(body)} bytes before it",
            f"byte {len(body)}",
            "the file is damaged: copy or write it again",
        )


def read_graphs(messages: Sequence[Any]) -> Graph:
    """The first graph, the others hung into its nodes."""
    by_name: dict[str, Any] = {}
    for message in messages:
        if message.name in by_name:
            raise damaged("GE5004", f"two graphs are called '{message.name}'", "ModelDef.graph")
        by_name[message.name] = message
    reader = _ModelReader(by_name)
    result = reader.graph(messages[0].name)
    if left := sorted(by_name.keys() - reader.used):
        raise damaged("GE5012", f"no node uses graph {', '.join(repr(n) for n in left)}", "ModelDef.graph")
    return result


class _ModelReader:
    def __init__(self, by_name: Mapping[str, Any]) -> None:
        self._by_name = by_name
        self._depth = 0
        self.used: set[str] = set()

    def graph(self, name: str) -> Graph:
        """Read a graph and all it contains; each may be used once, so nesting ends."""
        self._depth += 1
        if self._depth > MAX_NESTING + 1:
            raise damaged("GE5012", f"graphs lie more than {MAX_NESTING} levels deep", "OpDef.subgraph_name")
        if name in self.used:
            raise damaged("GE5012", f"graph '{name}' is used twice, or contains itself", "OpDef.subgraph_name")
        self.used.add(name)
        graph = _GraphReader(self, self._by_name[name]).read()
        self._depth -= 1
        return graph

    def has(self, name: str) -> bool:
        return name in self._by_name


class _GraphReader:
    def __init__(self, model: _ModelReader, message: Any) -> None:
        self._model = model
        self._message = message
        self._place = f"graph '{message.name}'"
        self._ops: dict[str, Any] = {}
        self._edges: dict[str, tuple[list[tuple[str, int] | None], list[str]]] = {}
        self._specs: dict[bytes, tuple[DataType, Shape | None, Format]] = {}

    def read(self) -> Graph:
        attrs = read_attrs(self._message.attr, self._place)
        said = attrs.pop(GRAPH_CANN, None)
        if said is None:
            return self._read(attrs)
        if said.kind is not Kind.STRING or not isinstance(said.value, str) or not _CANN.fullmatch(said.value):
            raise damaged("GE5008", f"{GRAPH_CANN} is no release of CANN: {str(said.value)[:80]!r}", self._place)
        try:
            chosen = schema.use_cann(said.value)
        except GraphError as error:
            raise damaged("GE5008", error.what, self._place) from error
        with chosen:
            return self._read(attrs)

    def _read(self, attrs: dict[str, Attr]) -> Graph:
        sink = self._index()
        graph = Graph(self._message.name)
        original = attrs.pop(GRAPH_NAME, None)
        if original is not None:
            graph.name = str(original.value)
        graph.attrs = attrs
        for op in self._order():
            if op.name != sink:
                self._node(graph, op)
        if sink is not None:
            data, control = self._edges[sink]
            for edge in data:
                if edge is None:
                    raise damaged("GE5005", "an output of the graph is not fed", f"NetOutput '{sink}'")
            graph.outputs = [self._tensor(graph, edge, f"NetOutput '{sink}'") for edge in data if edge is not None]
            graph.output_control = [graph.node(n) for n in control]
        else:
            graph.outputs = [
                self._tensor(graph, self._edge(t, "GraphDef.output"), self._place) for t in self._message.output
            ]
        return graph

    def _index(self) -> str | None:
        """Check names and edges of all operators; the name of the NetOutput."""
        sink = None
        for at, op in enumerate(self._message.op):
            if not op.name or not op.type:
                raise damaged("GE5004", "an operator without name or type", f"{self._place}, op {at}")
            if op.name in self._ops:
                raise damaged("GE5004", f"two operators are called '{op.name}'", f"{self._place}, op {at}")
            self._ops[op.name] = op
            if op.type == "NetOutput":
                if sink is not None:
                    raise damaged("GE5004", f"two NetOutput, '{sink}' and '{op.name}'", self._place)
                sink = op.name
        for op in self._message.op:
            self._edges[op.name] = self._inputs(op)
        for op in self._message.op:
            if any(e is not None and e[0] == sink for e in self._edges[op.name][0]):
                raise damaged("GE5005", f"'{op.name}' reads the NetOutput", f"{self._place}, {op.type} '{op.name}'")
        return sink

    def _edge(self, text: str, where: str) -> tuple[str, int]:
        match = _EDGE.fullmatch(text)
        if match is None:
            raise damaged("GE5005", f"edge {text!r} is not of the form NODE:INDEX", where)
        name, index = match[1], int(match[2])
        producer = self._ops.get(name)
        if producer is None:
            raise damaged("GE5005", f"edge {text!r}: the graph has no operator '{name}'", where)
        if index >= len(producer.output_desc):
            raise damaged(
                "GE5005", f"edge {text!r}: {producer.type} '{name}' has {len(producer.output_desc)} outputs", where
            )
        return name, index

    def _inputs(self, op: Any) -> tuple[list[tuple[str, int] | None], list[str]]:
        where = f"{self._place}, {op.type} '{op.name}'"
        data: list[tuple[str, int] | None] = []
        control: list[str] = []
        for text in op.input:
            if not text:
                data.append(None)
                continue
            name, index = self._edge(text, where)
            if index < 0:
                control.append(name)
            elif control:
                raise damaged("GE5005", f"data edge {text!r} stands after a control edge", where)
            else:
                data.append((name, index))
        return data, control

    def _order(self) -> list[Any]:
        """Operators in topological order, as near to the order of the file as that allows."""
        position = {op.name: at for at, op in enumerate(self._message.op)}
        readers: list[list[int]] = [[] for _ in position]
        missing = [0] * len(position)
        for at, op in enumerate(self._message.op):
            data, control = self._edges[op.name]
            for name in {*(e[0] for e in data if e is not None), *control}:
                readers[position[name]].append(at)
                missing[at] += 1
        ready = [at for at, count in enumerate(missing) if count == 0]
        order = []
        while ready:
            at = heapq.heappop(ready)
            order.append(self._message.op[at])
            for reader in readers[at]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    heapq.heappush(ready, reader)
        if len(order) < len(position):
            stuck = [op.name for at, op in enumerate(self._message.op) if missing[at]]
            raise damaged("GE5016", f"operators wait for each other: {', '.join(stuck[:5])}", self._place)
        return order

    def _tensor(self, graph: Graph, edge: tuple[str, int], where: str) -> Tensor:
        name, index = edge
        if index < 0:
            raise damaged("GE5005", f"'{name}:-1' is a control edge, not a tensor", where)
        return graph.node(name).outputs[index]

    def _node(self, graph: Graph, op: Any) -> None:
        where = f"{self._place}, {op.type} '{op.name}'"
        attrs = read_attrs(op.attr, where)
        _check_known(op, attrs, where)
        flat = [None if e is None else self._tensor(graph, e, where) for e in self._edges[op.name][0]]
        in_names = self._names(op, attrs, 0, len(flat), where)
        out_names = self._names(op, attrs, 1, len(op.output_desc), where)
        structure = _structure(op.type, attrs, in_names, flat, where)
        if op.type in ports.PLACEHOLDERS and not any(flat):
            flat = [None] * len(structure)
            if PLACEMENT not in attrs and op.output_desc and op.output_desc[0].device_type == "CPU":
                attrs[PLACEMENT] = Attr(Kind.STRING, "CPU")
        specs = [self._spec(d, op.type in ports.PLACEHOLDERS, where) for d in op.output_desc]
        counts = _output_counts(op.type, attrs, out_names, where)
        slots = _texts(attrs.pop(SUBGRAPH_SLOTS, None), SUBGRAPH_SLOTS, where)
        origin = _texts(attrs.pop(PROVENANCE, None), PROVENANCE, where)
        node = graph.add(op.type, _regroup(structure, flat, where), attrs, [s[:2] for s in specs], name=op.name)
        for tensor, spec in zip(node.outputs, specs):
            tensor.format = spec[2]
        node.output_counts = counts
        node.control = [graph.node(n) for n in self._edges[op.name][1]]
        if origin is not None:
            if len(origin) != len(Provenance.__slots__):
                raise damaged("GE5008", f"{PROVENANCE} has {len(origin)} texts", where)
            node.provenance = Provenance(*origin)
        self._subgraphs(node, op, slots, where)
        _keep_foreign_names(node, in_names, out_names)

    def _names(self, op: Any, attrs: dict[str, Attr], side: int, count: int, where: str) -> list[str]:
        """Port names of the flat inputs (0) or outputs (1): as given, else from the descriptors, else by position."""
        given = attrs.pop(NAME_KEYS[side], None)
        order = attrs.pop(NAME_VALUES[side], None)
        if given is not None:
            names = list(_texts(given, NAME_KEYS[side], where) or ())
            if order is not None and order.kind is Kind.LIST_INT and sorted(order.value) == list(range(len(names))):
                names = [name for _, name in sorted(zip(order.value, names))]
            if len(names) >= count and (side or op.type in ports.PLACEHOLDERS or len(names) == count):
                return names[:count]
        names = [d.name for d in (op.output_desc if side else op.input_desc)][:count]
        if len(names) == count and all(names) and len(set(names)) == count:
            return names
        return ports.output_names(op.type, count, {}) if side else ports.positional_names(op.type, count)

    def _spec(self, desc: Any, placeholder: bool, where: str) -> tuple[DataType, Shape | None, Format]:
        dtype = wire_dtype(desc.dtype, f"{where}, output '{desc.name}'")
        layout = _LAYOUTS.get(desc.layout.upper() or "ND")
        if layout is None:
            raise damaged("GE5009", f"layout {desc.layout!r} is not known", where)
        shape: Shape | None
        if not desc.HasField("shape"):
            # the bundled torchair leaves shapes of inner results out; a graph input without dimensions is a scalar
            shape = () if placeholder else None
        else:
            message_dims = tuple(desc.shape.dim)
            shape = message_dims
            if shape == (-2,):
                shape = None
            elif min(message_dims, default=0) < -1 or not _possible(message_dims):
                raise damaged("GE5007", f"shape {list(shape)} of output '{desc.name}'", where)
        if SYMBOLIC_SHAPE in desc.attr:
            shape = _with_symbols(shape, desc.attr[SYMBOLIC_SHAPE], where)
        return dtype, shape, layout

    def _subgraphs(self, node: Node, op: Any, slots: tuple[str, ...] | None, where: str) -> None:
        names = list(op.subgraph_name)
        if slots is None:
            slots = tuple(f"subgraph{i}" for i in range(len(names)))
        if len(slots) != len(names) or len(set(slots)) != len(slots):
            raise damaged("GE5012", f"{len(names)} subgraphs for the slots {list(slots)}", where)
        for slot, name in zip(slots, names):
            if not self._model.has(name):
                raise damaged("GE5012", f"the file has no graph '{name}'", where)
            node.subgraphs[slot] = self._model.graph(name)


def _possible(shape: tuple[int, ...]) -> bool:
    """Whether a tensor can have such sizes; unknown ones count as one."""
    return len(shape) <= MAX_RANK and math.prod(max(d, 1) for d in shape) <= MAX_ELEMENTS


def wire_dtype(number: int, where: str) -> DataType:
    """The element type of a wire number."""
    dtype = BY_WIRE.get(number)
    if dtype is None:
        raise damaged("GE5006", f"element type number {number} is not known", where)
    return dtype


def _texts(attr: Attr | None, name: str, where: str) -> tuple[str, ...] | None:
    if attr is None:
        return None
    if attr.kind is not Kind.LIST_STRING or not all(isinstance(v, str) for v in attr.value):
        raise damaged("GE5008", f"attribute '{name}' must be a list of texts", where)
    return tuple(attr.value)


def _with_symbols(shape: Shape | None, message: Any, where: str) -> Shape:
    texts = _texts(read_attr(message, SYMBOLIC_SHAPE, where), SYMBOLIC_SHAPE, where) or ()
    if shape is None or len(texts) != len(shape) or any(t and d != -1 for t, d in zip(texts, shape)):
        raise damaged("GE5007", f"symbolic sizes {list(texts)} do not fit the shape {shape}", where)
    return tuple(t or d for t, d in zip(texts, shape))


# Attributes that the graph itself relies on, so their kind must be right: operator, attribute, kind.
_KNOWN_KINDS: Final = {
    **{op: (("index", Kind.INT), (PLACEMENT, Kind.STRING)) for op in ports.PLACEHOLDERS},
    "Const": (("value", Kind.TENSOR),),
}


def _check_known(op: Any, attrs: Mapping[str, Attr], where: str) -> None:
    for name, kind in _KNOWN_KINDS.get(op.type, ()):
        attr = attrs.get(name)
        if attr is not None and (attr.kind is not kind or (name == "index" and attr.value < 0)):
            raise damaged("GE5008", f"attribute '{name}' is {attr.kind.value} {attr.value!r}, not {kind.value}", where)
    if op.type in _KNOWN_KINDS and len(op.output_desc) != 1:
        raise damaged("GE5008", f"{op.type} has one output, here it has {len(op.output_desc)}", where)


def _structure(
    op: str, attrs: dict[str, Attr], names: Sequence[str], flat: Sequence[Tensor | None], where: str
) -> ports.Structure:
    stored = attrs.pop(PORT_SIZES, None)
    if stored is None:
        return ports.group_inputs(op, names, [t is None for t in flat])
    if stored.kind is not Kind.LIST_INT:
        raise damaged("GE5008", f"attribute '{PORT_SIZES}' must be a list of numbers", where)
    count = sum(1 if s < 0 else s for s in stored.value)
    outside = op in ports.PLACEHOLDERS and not any(flat) and count <= 1
    if any(s < ports.UNFED for s in stored.value) or (count != len(flat) and not outside):
        raise damaged("GE5008", f"{PORT_SIZES} {list(stored.value)} do not fit {len(flat)} inputs", where)
    return tuple(stored.value)


def _regroup(structure: ports.Structure, flat: Sequence[Tensor | None], where: str) -> list[Operand]:
    inputs: list[Operand] = []
    at = 0
    for size in structure:
        if size < 0:
            # an optional port at the end may be missing in files of others
            inputs.append(flat[at] if at < len(flat) and not (size == ports.UNFED and flat[at] is not None) else None)
            at += 1 if at < len(flat) and (size == ports.FED or flat[at] is None) else 0
            continue
        group = [t for t in flat[at : at + size] if t is not None]
        if len(group) != size:
            raise damaged("GE5005", "a part of a dynamic port is not fed", where)
        inputs.append(tuple(group))
        at += size
    if at != len(flat):
        raise damaged("GE5008", f"{len(flat)} inputs do not fit the ports {list(structure)}", where)
    return inputs


def _output_counts(op: str, attrs: dict[str, Attr], names: Sequence[str], where: str) -> dict[str, int]:
    stored = _texts(attrs.pop(OUTPUT_COUNTS, None), OUTPUT_COUNTS, where)
    if stored is None:
        return ports.group_outputs(op, names)
    counts: dict[str, int] = {}
    for text in stored:
        port, _, number = text.rpartition("=")
        if not number.isdecimal() or len(number) > 9 or port in counts:
            raise damaged("GE5008", f"{OUTPUT_COUNTS} {text!r}", where)
        counts[port] = int(number)
    if sum(counts.values()) > len(names):
        raise damaged("GE5008", f"{OUTPUT_COUNTS} {list(stored)} for {len(names)} outputs", where)
    return counts


def _keep_foreign_names(node: Node, in_names: Sequence[str], out_names: Sequence[str]) -> None:
    """Keep port names that the schema does not tell, so that they are written again."""
    structure, _ = ports.structure_of(node)
    if not ports.is_fed_from_outside(node) and list(in_names) != ports.input_names(node.op, structure):
        node.attrs[NAME_KEYS[0]] = Attr(Kind.LIST_STRING, tuple(in_names))
    if list(out_names) != ports.output_names(node.op, len(node.outputs), node.output_counts):
        node.attrs[NAME_KEYS[1]] = Attr(Kind.LIST_STRING, tuple(out_names))


# --- attributes ------------------------------------------------------------------------------------------------------


def read_attrs(messages: Any, where: str) -> dict[str, Attr]:
    """A map of attributes, sorted by name."""
    result: dict[str, Attr] = {}
    split = "value" in messages and "location" in messages  # GE keeps the data of such a constant in a file
    for name in sorted(messages):
        attr = read_attr(messages[name], name, where, split=split)
        if attr is not None:
            result[name] = attr
    for name in [n for n in result if n.startswith(EXACT)]:
        text = result.pop(name)
        target = name[len(EXACT) :]
        result[target] = _exact(result.get(target), text, target, where)
    return result


def _exact(rounded: Attr | None, text: Attr, name: str, where: str) -> Attr:
    """Put the float64 digits back; they must round to what the device reads."""
    from ge_graph.serde_write import attr_bytes, exact_text

    try:
        if rounded is None or text.kind is not Kind.STRING:
            raise ValueError("no such Float")
        value = _parse_exact(rounded.kind, str(text.value))
        result = Attr(rounded.kind, value)
        if attr_bytes(result) != attr_bytes(rounded) or exact_text(rounded.kind, value) != text.value:
            raise ValueError("another value")
    except ValueError as error:
        raise damaged("GE5008", f"exact value {text.value!r} of '{name}': {error}", where) from None
    return result


def _parse_exact(kind: Kind, text: str) -> Any:
    if kind is Kind.FLOAT:
        return float(text)
    if kind is Kind.LIST_FLOAT:
        return tuple(float(t) for t in text.split())
    if kind is Kind.LIST_LIST_FLOAT:
        return tuple(tuple(float(t) for t in row.split()) for row in text.split(";"))
    raise ValueError("not a Float")


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw


def _float(value: float) -> float:
    return shortest_float(value)


def read_attr(message: Any, name: str, where: str, *, split: bool = False) -> Attr | None:
    """A typed value; ``None`` for an entry without value, which GE skips as well."""
    member = message.WhichOneof("value")
    where = f"{where}, attribute '{name}'"
    if member is None:
        return None
    value = getattr(message, member)
    if member == "s":
        return Attr(Kind.STRING, _text(value))
    if member == "i":
        return Attr(Kind.INT, value)
    if member == "f":
        return Attr(Kind.FLOAT, _float(value))
    if member == "b":
        return Attr(Kind.BOOL, value)
    if member == "dt":
        return Attr(Kind.TYPE, _header_dtype(value, where))
    if member == "t":
        return Attr(Kind.TENSOR, read_tensor(value, where, split=split))
    if member == "list":
        return _read_list(value, where)
    if member == "list_list_int":
        return Attr(Kind.LIST_LIST_INT, tuple(tuple(row.list_i) for row in value.list_list_i))
    if member == "list_list_float":
        return Attr(Kind.LIST_LIST_FLOAT, tuple(tuple(map(_float, row.list_f)) for row in value.list_list_f))
    raise damaged("GE5008", f"attributes of kind '{member}' are not supported", where)


def _header_dtype(number: int, where: str) -> DataType:
    try:
        return DataType(number)
    except ValueError:
        raise damaged("GE5006", f"element type number {number} is not known", where) from None


_VAL_TYPES: Final[dict[int, str]] = {}


def _read_list(message: Any, where: str) -> Attr | None:
    if not _VAL_TYPES:
        _VAL_TYPES.update({n: name for name, n in wire.table()[1]["AttrDef.ListValue.ListValueType"].items()})
    filled = [m for m in _LIST_MEMBERS if len(getattr(message, m))]
    kind = _VAL_TYPES.get(message.val_type)
    if kind == "VT_LIST_NONE":
        # the bundled one writes no type for lists of texts; of a list of several kinds without one GE reads nothing
        if len(filled) != 1:
            return None
        kind = next((k for k, (member, _) in _LIST_KINDS.items() if [member] == filled), None)
    if kind not in _LIST_KINDS:
        raise damaged("GE5008", f"a list of type {message.val_type} holding {filled or 'nothing'}", where)
    member, attr_kind = _LIST_KINDS[kind]
    if filled and filled != [member]:
        raise damaged("GE5008", f"a list of type {kind} holds {filled}", where)
    values: Any = getattr(message, member)
    if member == "s":
        values = map(_text, values)
    elif member == "f":
        values = map(_float, values)
    elif member == "dt":
        values = [_header_dtype(n, where) for n in values]
    return Attr(attr_kind, tuple(values))


def read_tensor(message: Any, where: str, *, split: bool = False) -> np.ndarray[Any, Any] | Literal | None:
    """A read-only array, a Literal where numpy lacks the type, ``None`` for an empty message.

    ``split`` lets the data be missing whatever the shape says.
    """
    if not message.HasField("desc") and not message.data:
        return None
    if split and not message.data:
        return None
    dtype = wire_dtype(message.desc.dtype, where)
    shape = tuple(message.desc.shape.dim)
    if any(d < 0 for d in shape) or not _possible(shape):
        raise damaged("GE5007", f"a constant of shape {list(shape)}", where)
    expected = literal_bytes(dtype, shape)
    if expected is not None and expected != len(message.data):
        raise damaged(
            "GE5007", f"{dtype.name}{list(shape)} takes {expected} bytes, the file has {len(message.data)}", where
        )
    raw = np.frombuffer(message.data, np.uint8)
    if dtype.numpy_name is None:
        return Literal(dtype, shape, raw)
    if dtype is DataType.DT_BOOL and raw.size and int(raw.max()) > 1:
        raise damaged("GE5007", "a boolean that is neither 0 nor 1", where)
    if math.prod(shape) == 0:
        return _frozen(np.empty(shape, dtype.numpy))
    return _frozen(raw.view(dtype.numpy.newbyteorder("<")).reshape(shape))


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array
