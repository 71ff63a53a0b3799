"""Graph to bytes: the encoder behind ``ge_graph.serde``.

Written for speed: protobuf's wire format is concatenative, so descriptors and attribute maps that repeat are encoded
once and joined as bytes; no message object is made. The result is what protobuf itself writes deterministically
(fields by number, maps by key), which a test checks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ge_graph import ports, schema
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType, Format, from_numpy
from ge_graph.errors import ArchiveError, GraphError
from ge_graph.ir import Graph, Literal, Node, Provenance, Shape, Tensor
from ge_graph.wire import SHORT, enum_value, field_tag, varint

Chunk: TypeAlias = "bytes | memoryview"

# Attributes of our own; ``_exact_<name>`` holds the float64 text of a Float that float32 cannot tell back.
PORT_SIZES: Final = "_port_sizes"
OUTPUT_COUNTS: Final = "_output_counts"
SUBGRAPH_SLOTS: Final = "_subgraph_slots"
PROVENANCE: Final = "_provenance"
EXACT: Final = "_exact_"
SYMBOLIC_SHAPE: Final = "_symbolic_shape"
GRAPH_NAME: Final = "_graph_name"
GRAPH_CANN: Final = "_graph_cann"
UNFED_MARK: Final = "_is_unfed_optional"
PLACEMENT: Final = "_placement"
CHECKSUM: Final = "_crc32"
RESERVED: Final = frozenset({PORT_SIZES, OUTPUT_COUNTS, SUBGRAPH_SLOTS, PROVENANCE, GRAPH_NAME, GRAPH_CANN})
# GE's own; kept in ``Node.attrs`` only where they differ from what the schema says.
NAME_KEYS: Final = ("_input_name_key", "_output_name_key")
NAME_VALUES: Final = ("_input_name_value", "_output_name_value")

_UNKNOWN_RANK: Final = -2
_INLINE_BYTES: Final = 1 << 16


class ExternalData(NamedTuple):
    """Where the data of a constant lies outside the graph.

    Attributes:
        path: File, as it shall stand in the graph.
    """

    path: str
    offset: int
    length: int


# Called with a Const node, its dtype, shape and data (flat uint8); ``None`` keeps the constant in the graph.
Externalise: TypeAlias = "Callable[[Node, DataType, tuple[int, ...], np.ndarray[Any, Any]], ExternalData | None]"


def refuse(what: str, where: str, next: str = "") -> ArchiveError:
    """GE5011: this graph has no form on the wire."""
    return ArchiveError("GE5011", what, where=where, next=next)


def delimited(message: str, field: str, payload: bytes) -> bytes:
    """A field with a length."""
    size = len(payload)
    return field_tag(message, field) + (SHORT[size] if size < 0x1000 else varint(size)) + payload


# --- attributes ------------------------------------------------------------------------------------------------------


def _packed(field: str, payload: bytes) -> bytes:
    return delimited("AttrDef.ListValue", field, payload) if payload else b""


def _varints(values: Iterable[Any]) -> bytes:
    return b"".join([varint(int(v)) for v in values])


def _floats(values: Iterable[float]) -> bytes:
    return b"".join([float32_bytes(v) for v in values])


_NAN: Final = struct.pack("<I", 0x7FC00000)


def float32_bytes(value: float) -> bytes:
    """Little-endian float32; what is too large becomes infinite, NaN is one bit pattern."""
    if value != value:
        return _NAN
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def text_bytes(value: str | bytes) -> bytes:
    """UTF-8 of a text; bytes as they are."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _texts(values: Iterable[str | bytes]) -> bytes:
    return b"".join([delimited("AttrDef.ListValue", "s", text_bytes(v)) for v in values])


def _nested(outer: str, outer_field: str, inner: str, inner_field: str, encode: Any, value: Iterable[Any]) -> bytes:
    rows = [encode(row) for row in value]
    return b"".join(delimited(outer, outer_field, delimited(inner, inner_field, row) if row else b"") for row in rows)


# Kind to list member, encoder of the payload, value type.
_LISTS: Final[dict[Kind, tuple[str, Callable[[Any], bytes], str]]] = {
    Kind.LIST_INT: ("i", _varints, "VT_LIST_INT"),
    Kind.LIST_FLOAT: ("f", _floats, "VT_LIST_FLOAT"),
    Kind.LIST_BOOL: ("b", _varints, "VT_LIST_BOOL"),
    Kind.LIST_TYPE: ("dt", _varints, "VT_LIST_DATA_TYPE"),
}


def _list_value(kind: Kind, value: Any) -> bytes:
    if kind is Kind.LIST_STRING:
        return _text_list(_texts(value))
    field, encode, val_type = _LISTS[kind]
    body = _packed(field, encode(value))
    number = enum_value("AttrDef.ListValue.ListValueType", val_type)
    return delimited("AttrDef", "list", body + field_tag("AttrDef.ListValue", "val_type") + varint(number))


def _text_list(body: bytes) -> bytes:
    """An attribute that is a list of texts, from the encoded texts."""
    number = enum_value("AttrDef.ListValue.ListValueType", "VT_LIST_STRING")
    return delimited("AttrDef", "list", body + field_tag("AttrDef.ListValue", "val_type") + varint(number))


_SCALARS: Final[dict[Kind, Callable[[Any], bytes]]] = {
    Kind.INT: lambda v: field_tag("AttrDef", "i") + varint(_int64(v)),
    Kind.FLOAT: lambda v: field_tag("AttrDef", "f") + float32_bytes(v),
    Kind.BOOL: lambda v: field_tag("AttrDef", "b") + varint(int(v)),
    Kind.STRING: lambda v: delimited("AttrDef", "s", text_bytes(v)),
    Kind.TYPE: lambda v: field_tag("AttrDef", "dt") + varint(int(v)),
    Kind.LIST_LIST_INT: lambda v: delimited(
        "AttrDef",
        "list_list_int",
        _nested("AttrDef.ListListInt", "list_list_i", "AttrDef.ListListInt.ListInt", "list_i", _varints, v),
    ),
    Kind.LIST_LIST_FLOAT: lambda v: delimited(
        "AttrDef",
        "list_list_float",
        _nested("AttrDef.ListListFloat", "list_list_f", "AttrDef.ListListFloat.ListFloat", "list_f", _floats, v),
    ),
}


def _int64(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError(f"{value} does not fit 64 bits")
    return value


def attr_bytes(attr: Attr) -> bytes:
    """The ``AttrDef`` of an attribute that is not a Tensor."""
    encode = _SCALARS.get(attr.kind)
    return _list_value(attr.kind, attr.value) if encode is None else encode(attr.value)


def shortest_float(value: float) -> float:
    """The shortest decimal that has the same float32; reading gives this one back."""
    if math.isinf(value) or math.isnan(value):
        return value
    return float(str(np.float32(value))) if abs(value) <= 3.4028234663852886e38 else math.copysign(math.inf, value)


def _same_floats(kind: Kind, value: Any) -> bool:
    if kind is Kind.FLOAT:
        return bool(value != value or shortest_float(value) == value)
    return all(_same_floats(Kind.FLOAT if kind is Kind.LIST_FLOAT else Kind.LIST_FLOAT, v) for v in value)


_FLOAT_KINDS: Final = (Kind.FLOAT, Kind.LIST_FLOAT, Kind.LIST_LIST_FLOAT)


def exact_text(kind: Kind, value: Any) -> str:
    """Floats with all their digits, ``;`` between the rows of a nested list."""
    if kind is Kind.FLOAT:
        return repr(float(value))
    if kind is Kind.LIST_FLOAT:
        return " ".join(repr(float(v)) for v in value)
    return ";".join(exact_text(Kind.LIST_FLOAT, row) for row in value)


def map_entry(message: str, key: str, payload: bytes) -> bytes:
    """An entry of an attribute map; key and value are fields 1 and 2 of every map entry."""
    name = key.encode("utf-8", "surrogatepass")
    size = len(payload)
    body = b"\x0a" + varint(len(name)) + name + b"\x12" + (SHORT[size] if size < 0x1000 else varint(size)) + payload
    return delimited(message, "attr", body)


def attr_map(message: str, attrs: dict[str, Attr], where: str) -> bytes:
    """A whole map of attributes without Tensors."""
    return b"".join(map_entry(message, k, _checked(k, attrs[k], where)) for k in sorted(attrs))


def _checked(name: str, attr: Attr, where: str) -> bytes:
    try:
        return attr_bytes(attr)
    except (OverflowError, TypeError, ValueError, KeyError, AttributeError, struct.error) as error:
        kind = getattr(getattr(attr, "kind", None), "value", type(attr).__name__)
        raise refuse(f"attribute '{name}' ({kind}) has no form on the wire: {error}", where) from None


def with_exact_floats(attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Add the companions of Floats that float32 cannot tell back."""
    companions = {
        EXACT + name: Attr(Kind.STRING, exact_text(*attr))
        for name, attr in attrs.items()
        if attr.kind in _FLOAT_KINDS and not _same_floats(*attr)
    }
    return {**attrs, **companions} if companions else attrs


# --- tensors ---------------------------------------------------------------------------------------------------------


def descriptor(
    name: str,
    dtype: DataType,
    shape: Shape | None,
    format: Format,
    *,
    symbols: bool = False,
    unfed: bool = False,
    device: str = "NPU",
) -> bytes:
    """A ``TensorDescriptor``.

    Args:
        symbols: Write the text of symbolic dimensions too, which GE sees as -1.
        unfed: Mark an optional input that nothing feeds.
    """
    return _named(name, _nameless(dtype, shape, format, symbols, unfed, device))


def _named(name: str, body: bytes) -> bytes:
    return delimited("TensorDescriptor", "name", text_bytes(name)) + body if name else body


def _nameless(
    dtype: DataType,
    shape: Shape | None,
    format: Format,
    symbols: bool = False,
    unfed: bool = False,
    device: str = "NPU",
) -> bytes:
    """What follows the name in a ``TensorDescriptor``."""
    parts = []
    if dtype.wire:
        parts.append(field_tag("TensorDescriptor", "dtype") + varint(dtype.wire))
    if not unfed:
        dims = (_UNKNOWN_RANK,) if shape is None else shape
        numbers = b"".join([varint(-1 if isinstance(d, str) else d) for d in dims])
        body = delimited("ShapeDef", "dim", numbers) if numbers else b""
        parts.append(delimited("TensorDescriptor", "shape", body))
        parts.append(delimited("TensorDescriptor", "layout", format.layout.encode()))
    else:
        parts.append(map_entry("TensorDescriptor", UNFED_MARK, attr_bytes(Attr(Kind.INT, 1))))
    if symbols and shape is not None and any(isinstance(d, str) for d in shape):
        texts = Attr(Kind.LIST_STRING, tuple(d if isinstance(d, str) else "" for d in shape))
        parts.append(map_entry("TensorDescriptor", SYMBOLIC_SHAPE, attr_bytes(texts)))
    if not unfed:
        parts.append(delimited("TensorDescriptor", "device_type", text_bytes(device)))
    return b"".join(parts)


def tensor_data(value: Any, where: str) -> tuple[DataType, tuple[int, ...], np.ndarray[Any, Any]]:
    """Type, shape and data (flat uint8, little-endian C order) of a Tensor attribute; copies only what is not so."""
    if isinstance(value, Literal):
        data = value.data
        if data.dtype != np.uint8 or data.ndim != 1:
            raise refuse(f"data of a Literal must be flat uint8, got {data.dtype}{list(data.shape)}", where)
        expected = literal_bytes(value.dtype, value.shape)
        if expected is not None and expected != data.size:
            raise refuse(f"{value.dtype.name}{list(value.shape)} has {expected} bytes, got {data.size}", where)
        return value.dtype, tuple(value.shape), np.ascontiguousarray(data)
    if not isinstance(value, np.ndarray):
        raise refuse(f"a Tensor attribute holds a numpy array or a Literal, got {type(value).__name__}", where)
    try:
        dtype = from_numpy(value.dtype)
    except GraphError as error:
        raise refuse(error.what, where) from None
    array = value.astype(value.dtype.newbyteorder("<"), copy=False)
    return dtype, value.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def literal_bytes(dtype: DataType, shape: tuple[int, ...]) -> int | None:
    """Bytes that such a tensor takes, ``None`` if the type has no fixed size."""
    return None if dtype.bits == 0 else (math.prod(shape) * dtype.bits + 7) // 8


def _tensor_def(value: Any, where: str) -> tuple[bytes, np.ndarray[Any, Any] | None]:
    """What precedes the data in an ``AttrDef`` with a Tensor, and the data."""
    if value is None:
        return delimited("AttrDef", "t", b""), None
    dtype, shape, data = tensor_data(value, where)
    head = delimited("TensorDef", "desc", descriptor("", dtype, shape, Format.FORMAT_ND))
    if data.size == 0:
        return delimited("AttrDef", "t", head), None
    head += field_tag("TensorDef", "data") + varint(data.size)
    return field_tag("AttrDef", "t") + varint(len(head) + data.size) + head, data


class _Chunks:
    """Bytes in pieces, so that large constants are joined once or never."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Chunk] = []
        self.size = 0

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self.size += len(part)

    def extend(self, other: _Chunks) -> None:
        self.parts.extend(other.parts)
        self.size += other.size

    def framed(self, head: bytes) -> _Chunks:
        """The pieces as a field of an outer message."""
        result = _Chunks()
        result.add(head + varint(self.size))
        result.extend(self)
        return result


# --- nodes -----------------------------------------------------------------------------------------------------------


# Encoded forms of nodes, see ``GraphWriter._form``: the next graph of a program has most of them again.
_forms: Final[dict[Any, tuple[bytes, bytes]]] = {}
_MOST_FORMS: Final = 4096


def _forget(op: str) -> None:
    _forms.clear()


schema.on_register(_forget)


class GraphWriter:
    """Encodes the graphs of one model; what hangs on its names is cached as long as the call."""

    def __init__(self, externalise: Externalise | None, provenance: bool) -> None:
        self._externalise = externalise
        self._with_provenance = provenance
        self._edges: dict[Tensor, bytes] = {}
        self._controls: dict[Node, bytes] = {}
        self._bodies: dict[Any, bytes] = {}
        self._ports: dict[Any, dict[str, bytes]] = {}
        self._origins: dict[int, tuple[Provenance, bytes]] = {}
        self._shared: dict[tuple[str, ...], bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._heads: dict[str, bytes] = {}
        self._names: set[str] = set()
        self._subgraphs: list[tuple[Graph, str]] = []
        self._tag_name = field_tag("OpDef", "name")
        self._tag_input = field_tag("OpDef", "input")
        self._tag_op = field_tag("GraphDef", "op")
        self._unfed = self._tag_input + b"\0"
        # the parts of an origin's map entry that are the same for all: see ``_origin``
        self._tag_text = field_tag("AttrDef.ListValue", "s")
        self._tag_list = field_tag("AttrDef", "list")
        self._tag_attr = field_tag("OpDef", "attr")
        self._list_end = field_tag("AttrDef.ListValue", "val_type") + varint(
            enum_value("AttrDef.ListValue.ListValueType", "VT_LIST_STRING")
        )
        self._origin_key = b"\x0a" + varint(len(PROVENANCE)) + PROVENANCE.encode() + b"\x12"

    def model(self, graph: Graph) -> list[Chunk]:
        """A ``ModelDef`` in pieces: the graph, then its subgraphs, then the checksum."""
        import zlib

        out = _Chunks()
        if graph.name:
            out.add(delimited("ModelDef", "name", text_bytes(graph.name)))
        out.add(field_tag("ModelDef", "version") + varint(1))
        head = field_tag("ModelDef", "graph")
        out.extend(self.graph(graph, self._wire_name(graph.name)).framed(head))
        for inner, name in self._subgraphs:  # grows while it is walked
            out.extend(self.graph(inner, name).framed(head))
        crc = 0
        for part in out.parts:
            crc = zlib.crc32(part, crc)
        out.add(checksum_entry(crc))
        return out.parts

    def _wire_name(self, name: str) -> str:
        """Graphs of a model are found by name, so no two may share one."""
        wire, count = name, 0
        while wire in self._names:
            count += 1
            wire = f"{name}_{count}"
        self._names.add(wire)
        return wire

    def graph(self, graph: Graph, wire_name: str) -> _Chunks:
        """A ``GraphDef``; graphs of its nodes are queued."""
        with schema.at_release(graph.release):
            return self._graph(graph, wire_name)

    def _graph(self, graph: Graph, wire_name: str) -> _Chunks:
        out = _Chunks()
        where = f"graph '{graph.name}'"
        if wire_name:
            out.add(delimited("GraphDef", "name", text_bytes(wire_name)))
        for node in graph.inputs:
            out.add(delimited("GraphDef", "input", text_bytes(f"{node.name}:0")))
        for tensor in dict.fromkeys(graph.outputs):  # GE keeps each once; NetOutput says which come twice
            out.add(delimited("GraphDef", "output", text_bytes(tensor.name)))
        for node in graph.nodes:
            if node.op == "NetOutput":
                raise refuse(
                    f"a NetOutput node, '{node.name}', beside Graph.outputs", where, "set graph.outputs instead"
                )
            self._node(node, out)
        self._net_output(graph, out)
        attrs = dict(graph.attrs)
        if wire_name != graph.name:
            attrs[GRAPH_NAME] = Attr(Kind.STRING, graph.name)
        if graph.release is not None:
            attrs[GRAPH_CANN] = Attr(Kind.STRING, schema.release_text(graph.release))
        out.add(attr_map("GraphDef", with_exact_floats(attrs), where))
        return out

    def _node(self, node: Node, out: _Chunks) -> None:
        structure, flat = ports.structure_of(node)
        name, op = node.name.encode(), node.op
        size = len(name)
        parts = [
            self._tag_name,
            SHORT[size] if size < 0x1000 else varint(size),
            name,
            self._heads.get(op) or self._head(op),
        ]
        edges = self._edges
        for tensor in () if op in ports.PLACEHOLDERS and ports.is_fed_from_outside(node) else flat:
            parts.append(self._unfed if tensor is None else edges.get(tensor) or self._edge(tensor))
        for before in node.control:
            parts.append(self._controls.get(before) or self._control(before))
        form = self._form(node, structure, flat)
        if form is None:
            self._tensor_node(node, structure, flat, parts, out)
            return
        if node.provenance is not None and self._with_provenance:
            parts += (form[0], self._origin(node.provenance), form[1])
        else:
            parts += form
        if node.subgraphs:
            parts.append(self._queue_subgraphs(node))
        body = b"".join(parts)
        size = len(body)
        out.add(self._tag_op + (SHORT[size] if size < 0x1000 else varint(size)) + body)

    def _form(self, node: Node, structure: ports.Structure, flat: list[Tensor | None]) -> tuple[bytes, bytes] | None:
        """Attributes and descriptors before and after the place of the origin, which nodes of all layers have alike;
        ``None`` for a node with Tensor attributes.
        """
        key: Any = (
            node.op,
            node.graph.release,
            structure,
            *node.attrs.items(),
            *[None if t is None else (t.dtype, t._shape, t.format) for t in flat],
            *[(t.dtype, t._shape, t.format) for t in node.outputs],
            tuple(node.subgraphs) if node.subgraphs else (),
            tuple(node.output_counts.items()) if node.output_counts else (),
        )
        try:
            form = _forms.get(key)
        except TypeError:  # a list where a tuple should be
            key = form = None
        if form is None:
            kinds = [a.kind for a in node.attrs.values()]
            if node.op == "Const" and kinds or Kind.TENSOR in kinds:
                return None
            before, after = _split(self._entries(node, structure))
            form = before, after + self._descriptors(node, structure, flat)
            # 0.0 == -0.0 and both hash alike, though their bytes differ
            floats = [a for a in node.attrs.values() if a.kind in _FLOAT_KINDS]
            if key is not None and not (floats and any(_has_zero(a.value) for a in floats)):
                if len(_forms) >= _MOST_FORMS:
                    _forms.clear()
                _forms[key] = form
        return form

    def _head(self, op: str) -> bytes:
        encoded = self._heads.get(op)
        if encoded is None:
            encoded = self._heads[op] = delimited("OpDef", "type", op.encode())
        return encoded

    def _edge(self, tensor: Tensor) -> bytes:
        name = f"{tensor.node.name}:{tensor.index}".encode()
        size = len(name)
        encoded = self._edges[tensor] = self._tag_input + (SHORT[size] if size < 0x1000 else varint(size)) + name
        return encoded

    def _control(self, node: Node) -> bytes:
        encoded = self._controls[node] = delimited("OpDef", "input", f"{node.name}:-1".encode())
        return encoded

    def _queue_subgraphs(self, node: Node) -> bytes:
        names = []
        for inner in node.subgraphs.values():
            names.append(self._wire_name(inner.name))
            self._subgraphs.append((inner, names[-1]))
        return b"".join(delimited("OpDef", "subgraph_name", text_bytes(n)) for n in names)

    def _origin(self, provenance: Provenance) -> bytes:
        """The map entry of an origin: the list of its six texts, most of which other nodes have as well."""
        encoded = self._origins.get(id(provenance))
        if encoded is None:
            # map_entry("OpDef", PROVENANCE, _text_list(texts)), the constant parts made once: it is half of the bytes
            texts = provenance.texts()
            target, place = self._shared.get(texts[1:2]), self._shared.get(texts[3:])
            parts = (
                self._text(texts[0]),
                target or self._share(texts[1:2]),
                self._text(texts[2]),
                place or self._share(texts[3:]),
                self._list_end,
            )
            body = b"".join(parts)
            size = varint(len(body))
            entry = b"".join(
                (self._origin_key, varint(len(self._tag_list) + len(size) + len(body)), self._tag_list, size, body)
            )
            encoded = self._origins[id(provenance)] = (provenance, self._tag_attr + varint(len(entry)) + entry)
        return encoded[1]

    def _text(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogatepass")
        size = len(data)
        return self._tag_text + (SHORT[size] if size < 0x1000 else varint(size)) + data

    def _share(self, texts: tuple[str, ...]) -> bytes:
        known = self._texts
        for text in texts:
            if text not in known:
                known[text] = self._text(text)
        encoded = self._shared[texts] = b"".join([known[text] for text in texts])
        return encoded

    def _entries(self, node: Node, structure: ports.Structure) -> dict[str, bytes]:
        """Encoded map entries of all attributes that are no Tensors, with those that describe the ports."""
        where = f"{node.op} '{node.name}'"
        attrs = {k: a for k, a in node.attrs.items() if a.kind is not Kind.TENSOR}
        if taken := sorted(k for k in attrs if k in RESERVED or k.startswith(EXACT)):
            raise refuse(f"attribute names {', '.join(taken)} are ours", where, "rename them")
        entries = {k: map_entry("OpDef", k, _checked(k, a, where)) for k, a in with_exact_floats(attrs).items()}
        entries.update(self._port_entries(node, structure))
        return {k: entries[k] for k in sorted(entries)}

    def _port_entries(self, node: Node, structure: ports.Structure) -> dict[str, bytes]:
        """Encoded map entries that describe the ports."""
        key = (node.op, structure, len(node.outputs), tuple(node.subgraphs), tuple(node.output_counts.items()))
        named = NAME_KEYS[0] in node.attrs or NAME_KEYS[1] in node.attrs
        entries = None if named else self._ports.get(key)
        if entries is None:
            where = f"{node.op} '{node.name}'"
            described = _port_attrs(node, structure)
            entries = {k: map_entry("OpDef", k, _checked(k, a, where)) for k, a in described.items()}
            if not named:
                self._ports[key] = entries
        return entries

    def _tensor_node(
        self, node: Node, structure: ports.Structure, flat: list[Tensor | None], parts: list[bytes], out: _Chunks
    ) -> None:
        """A node with Tensor attributes; the data of large ones stays where it is."""
        where = f"{node.op} '{node.name}'"
        moved = self._moved(node, where)
        if moved is not None:
            node = moved
            parts[3] = self._head(node.op)
        body = _Chunks()
        body.add(b"".join(parts))
        entries: dict[str, bytes | tuple[bytes, np.ndarray[Any, Any] | None]] = dict(self._entries(node, structure))
        for name, attr in node.attrs.items():
            if attr.kind is Kind.TENSOR:
                entries[name] = _tensor_def(attr.value, where)
        if node.provenance is not None and self._with_provenance:
            entries[PROVENANCE] = self._origin(node.provenance)
        for name in sorted(entries):
            entry = entries[name]
            if isinstance(entry, bytes):
                body.add(entry)
            else:
                _add_tensor_entry(body, name, *entry)
        body.add(self._descriptors(node, structure, flat))
        if node.subgraphs:
            body.add(self._queue_subgraphs(node))
        framed = body.framed(self._tag_op)
        if framed.size <= _INLINE_BYTES:
            out.add(b"".join(framed.parts))
        else:
            out.extend(framed)

    def _moved(self, node: Node, where: str) -> Node | None:
        """The FileConstant that stands for a Const whose data lies outside."""
        if self._externalise is None or node.op != "Const" or node.attr("value") is None:
            return None
        dtype, shape, data = tensor_data(node.attr("value"), where)
        place = self._externalise(node, dtype, shape, data)
        if place is None:
            return None
        attrs = {k: a for k, a in node.attrs.items() if k != "value"}
        attrs.update(
            # what the headers list, then what GE reads for a constant within a larger file
            file_path=Attr(Kind.STRING, place.path),
            file_id=Attr(Kind.STRING, ""),
            shape=Attr(Kind.LIST_INT, shape),
            dtype=Attr(Kind.TYPE, dtype),
            location=Attr(Kind.STRING, place.path),
            offset=Attr(Kind.INT, place.offset),
            length=Attr(Kind.INT, place.length),
        )
        twin = Node(node.graph, node.name, "FileConstant", [], attrs)
        twin.outputs, twin.control, twin.provenance = node.outputs, node.control, node.provenance
        return twin

    def _descriptors(self, node: Node, structure: ports.Structure, flat: list[Tensor | None]) -> bytes:
        inputs, outputs = _names_of(node, structure)
        device = _device(node)
        outside = ports.is_fed_from_outside(node)
        if outside and node.outputs:
            # GE copies what it knows of a graph input from this descriptor, though no edge leads there
            encoded = [self._described("input_desc", "x", node.outputs[0], False, device)]
        else:
            encoded = [self._described("input_desc", n, t) for n, t in zip(inputs, () if outside else flat)]
        encoded += [self._described("output_desc", n, t, True, device) for n, t in zip(outputs, node.outputs)]
        return b"".join(encoded)

    def _described(
        self, field: str, name: str, tensor: Tensor | None, symbols: bool = False, device: str = "NPU"
    ) -> bytes:
        """The field with the descriptor of a tensor, or of an input that nothing feeds."""
        key = (None if tensor is None else (tensor.dtype, tensor._shape, tensor.format), symbols, device)
        body = self._bodies.get(key)
        if body is None:
            if tensor is None:
                body = _nameless(DataType.DT_UNDEFINED, None, Format.FORMAT_ND, unfed=True)
            else:
                body = _nameless(tensor.dtype, tensor._shape, tensor.format, symbols, device=device)
            self._bodies[key] = body
        return delimited("OpDef", field, _named(name, body))

    def _net_output(self, graph: Graph, out: _Chunks) -> None:
        name = "NetOutput"
        count = 0
        while name in graph:
            count += 1
            name = f"NetOutput_{count}"
        sink = Node(graph, name, "NetOutput", [tuple(graph.outputs)], {})
        sink.control = list(graph.output_control)
        names = tuple(f"input{i}" for i in range(len(graph.outputs)))
        parts = [delimited("OpDef", "name", name.encode()), self._head("NetOutput")]
        parts += [self._edges.get(t) or self._edge(t) for t in graph.outputs]
        parts += [self._controls.get(n) or self._control(n) for n in sink.control]
        attrs = _name_attrs("_input_name", names)
        parts.append(attr_map("OpDef", attrs, name))
        for port, t in zip(names, graph.outputs):
            parts.append(delimited("OpDef", "input_desc", descriptor(port, t.dtype, t.known_shape, t.format)))
        out.add(delimited("GraphDef", "op", b"".join(parts)))


def checksum_entry(crc: int) -> bytes:
    """The last field of our files: CRC-32 of everything before it."""
    return map_entry("ModelDef", CHECKSUM, attr_bytes(Attr(Kind.STRING, f"{crc:08x}")))


def _device(node: Node) -> str:
    placement = node.attrs.get(PLACEMENT) if node.op in ports.PLACEHOLDERS else None
    return "NPU" if placement is None else str(placement.value)


def _has_zero(value: Any) -> bool:
    return any(_has_zero(v) for v in value) if isinstance(value, tuple) else value == 0


def _split(entries: dict[str, bytes]) -> tuple[bytes, bytes]:
    before = b"".join(entry for name, entry in entries.items() if name < PROVENANCE)
    return before, b"".join(entry for name, entry in entries.items() if name > PROVENANCE)


def _name_attrs(prefix: str, names: tuple[str, ...]) -> dict[str, Attr]:
    if not names:
        return {}
    return {
        f"{prefix}_key": Attr(Kind.LIST_STRING, names),
        f"{prefix}_value": Attr(Kind.LIST_INT, tuple(range(len(names)))),
    }


def _names_of(node: Node, structure: ports.Structure) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the flat inputs and outputs: those the node brings along, else those of the schema."""
    inputs = node.attr(NAME_KEYS[0])
    outputs = node.attr(NAME_KEYS[1])
    if inputs is None:
        outside = ports.is_fed_from_outside(node)
        inputs = ("x",) if outside else tuple(ports.input_names(node.op, structure))
    if outputs is None:
        outputs = tuple(ports.output_names(node.op, len(node.outputs), node.output_counts))
    return inputs, outputs


def _port_attrs(node: Node, structure: ports.Structure) -> dict[str, Attr]:
    inputs, outputs = _names_of(node, structure)
    result = {**_name_attrs("_input_name", inputs), **_name_attrs("_output_name", outputs)}
    outside = ports.is_fed_from_outside(node)
    grouped = (ports.UNFED,) if outside else ports.group_inputs(node.op, inputs, _flat_unfed(structure))
    # Dynamic ports are always told, so that a process that lacks the schema of a custom op reads the same graph.
    if structure != grouped or any(size >= 0 for size in structure):
        result[PORT_SIZES] = Attr(Kind.LIST_INT, structure)
    if node.output_counts or ports.group_outputs(node.op, outputs):
        texts = tuple(f"{port}={count}" for port, count in node.output_counts.items())
        result[OUTPUT_COUNTS] = Attr(Kind.LIST_STRING, texts)
    if node.subgraphs:
        result[SUBGRAPH_SLOTS] = Attr(Kind.LIST_STRING, tuple(node.subgraphs))
    return result


def _flat_unfed(structure: ports.Structure) -> list[bool]:
    flat: list[bool] = []
    for size in structure:
        flat.extend([False] * size if size >= 0 else [size == ports.UNFED])
    return flat


def _add_tensor_entry(body: _Chunks, name: str, head: bytes, data: np.ndarray[Any, Any] | None) -> None:
    size = 0 if data is None else data.size
    key = name.encode()
    inner = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(head) + size) + head
    body.add(field_tag("OpDef", "attr") + varint(len(inner) + size) + inner)
    if data is not None:
        body.parts.append(data.data)
        body.size += size
