"""The ``ge.proto`` messages, built at run time from ``data/wire.tsv``; the only module that knows protobuf.

No generated module: protobuf ties generated code to a range of its own versions, a table serves 3.20 to the newest. The
messages live in a descriptor pool of their own, so that another ``ge.proto`` in the process (the vendor's, the
emulator's) does not clash. protobuf is imported when the first message is asked for; writing bytes needs only
``field_tag`` and ``varint`` and never imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ge_graph import escape
from ge_graph.files import package_data

PACKAGE: Final = "ge.proto"

# Scalar type to (protobuf type number, wire type). Everything else is a message (11) or an enum (14).
_SCALARS: Final = {
    "float": (2, 5),
    "int64": (3, 0),
    "uint64": (4, 0),
    "int32": (5, 0),
    "bool": (8, 0),
    "string": (9, 2),
    "bytes": (12, 2),
    "uint32": (13, 0),
}
_MESSAGE, _ENUM = 11, 14


@dataclass(frozen=True, slots=True)
class Field:
    """A row of the table: one field of one message."""

    message: str
    name: str
    number: int
    type: str
    label: str  # one, many, map, or "|" and the name of the oneof


@cache
def table() -> tuple[dict[str, dict[str, Field]], dict[str, dict[str, int]]]:
    """Fields by message and name, and enum values by enum and name."""
    fields: dict[str, dict[str, Field]] = {}
    enums: dict[str, dict[str, int]] = {}
    for line in package_data("wire.tsv").decode().splitlines():
        if line.startswith("#"):
            continue
        kind, owner, name, number, *rest = line.split("\t")
        if kind == "v":
            enums.setdefault(owner, {})[name] = int(number)
        else:
            fields.setdefault(owner, {})[name] = Field(owner, name, int(number), rest[0], rest[1])
    return fields, enums


def varint(number: int) -> bytes:
    """Base-128 form; negative numbers take ten bytes as int64 does."""
    if 0 <= number < 0x1000:
        return SHORT[number]
    number &= 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


# Lengths below 4 KiB, the great majority: a table costs less than the loop.
SHORT: Final = [bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(0x1000)]


def wire_type(field: Field) -> int:
    """0 varint, 2 with a length, 5 four bytes; repeated numbers are packed, so they have a length."""
    if field.label in ("many", "map"):
        return 2
    if field.type in _SCALARS:
        return _SCALARS[field.type][1]
    return 0 if field.type in table()[1] else 2


@cache
def field_tag(message: str, field: str) -> bytes:
    """The bytes that precede the value of a field."""
    row = table()[0][message][field]
    return varint(row.number << 3 | wire_type(row))


def enum_value(enum: str, name: str) -> int:
    return table()[1][enum][name]


# --- protobuf from here on -------------------------------------------------------------------------------------------


def _set_type(proto: Any, type_name: str) -> None:
    if type_name in _SCALARS:
        proto.type = _SCALARS[type_name][0]
        return
    proto.type = _ENUM if type_name in table()[1] else _MESSAGE
    proto.type_name = f".{PACKAGE}.{type_name}"


def _add_map_entry(proto: Any, field: Field) -> str:
    key, value = field.type.split(",")
    entry = proto.nested_type.add(name="".join(w.capitalize() for w in field.name.split("_")) + "Entry")
    entry.options.map_entry = True
    for number, (name, type_name) in enumerate((("key", key), ("value", value)), 1):
        _set_type(entry.field.add(name=name, number=number, label=1), type_name)
    return f"{field.message}.{entry.name}"


def _add_field(proto: Any, field: Field) -> None:
    type_name = _add_map_entry(proto, field) if field.label == "map" else field.type
    added = proto.field.add(name=field.name, number=field.number, label=3 if field.label in ("many", "map") else 1)
    _set_type(added, type_name)
    if field.label.startswith("|"):
        oneof = field.label[1:]
        names = [o.name for o in proto.oneof_decl]
        if oneof not in names:
            proto.oneof_decl.add(name=oneof)
            names.append(oneof)
        added.oneof_index = names.index(oneof)


def file_descriptor() -> Any:
    """The table as a ``FileDescriptorProto``."""
    from google.protobuf import descriptor_pb2

    fields, enums = table()
    result = descriptor_pb2.FileDescriptorProto(name="ge_graph/ge_ir.proto", package=PACKAGE, syntax="proto3")
    messages: dict[str, Any] = {}

    def message_of(name: str) -> Any:
        if name not in messages:
            outer, _, last = name.rpartition(".")
            messages[name] = (
                message_of(outer).nested_type.add(name=last) if outer else result.message_type.add(name=last)
            )
        return messages[name]

    for name, members in fields.items():
        proto = message_of(name)
        for field in members.values():
            _add_field(proto, field)
    for name, values in enums.items():
        outer, _, last = name.rpartition(".")
        enum = message_of(outer).enum_type.add(name=last) if outer else result.enum_type.add(name=last)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    return result


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pool

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file_descriptor().SerializeToString())
    return pool


@cache
def message_class(name: str) -> Any:
    """The protobuf class of a message, ``message_class("GraphDef")``."""
    from google.protobuf import message_factory

    descriptor = _pool().FindMessageTypeByName(f"{PACKAGE}.{name}")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_pool()).GetPrototype(descriptor)


def parse(message: str, data: bytes | bytearray | memoryview) -> Any:
    """Parse bytes.

    Raises:
        ValueError: With the place of the damage if they are not such a message.
    """
    from google.protobuf.message import DecodeError

    result = message_class(message)()
    try:
        result.ParseFromString(bytes(data))
    except (DecodeError, UnicodeDecodeError, RuntimeError, ValueError, RecursionError) as error:
        raise ValueError(locate_damage(data, message) or f"the parser says: {error}") from None
    return result


def to_text(message: Any) -> str:
    from google.protobuf import text_format

    # the printer escapes quotes and line feeds only; what else does not print is inside a quoted text, so it may be
    # written as the octal bytes that the form has for it
    text = str(text_format.MessageToString(message, as_utf8=True))
    return "\n".join(escape.octal(line) for line in text.split("\n"))


def from_text(message: str, text: str) -> Any:
    """Parse the text form.

    Raises:
        ValueError: With line and column if the text does not fit.
    """
    from google.protobuf import text_format

    result = message_class(message)()
    try:
        text_format.Parse(text, result)
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    except SystemError as error:  # the library's C code looks up a name that is no UTF-8
        raise ValueError("a name in the text is not UTF-8") from error
    return result


def to_bytes(message: Any) -> bytes:
    """Bytes of a message, maps sorted."""
    return bytes(message.SerializeToString(deterministic=True))


# --- where a damaged file breaks -------------------------------------------------------------------------------------

_MAX_DEPTH: Final = 100


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int] | None:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return None


def _entry_fields(field: Field) -> dict[int, Field]:
    key, value = field.type.split(",")
    return {1: Field("", "key", 1, key, "one"), 2: Field("", "value", 2, value, "one")}


def locate_damage(data: bytes | bytearray | memoryview, message: str) -> str | None:
    """The first place where ``data`` breaks the wire format, as text; ``None`` if it does not.

    Slow, made for the error after a parser said no: protobuf itself tells no place.
    """
    view = memoryview(data).cast("B")
    by_number = {f.number: f for f in table()[0][message].values()}
    return _scan(view, 0, len(view), by_number, message, 0)


def _scan(view: memoryview, at: int, end: int, fields: dict[int, Field], path: str, depth: int) -> str | None:
    if depth > _MAX_DEPTH:
        return f"byte {at}: messages nested deeper than {_MAX_DEPTH} in {path}"
    while at < end:
        start = at
        head = _read_varint(view, at, end)
        if head is None or head[0] >> 3 == 0:
            return f"byte {start}: no field starts here in {path}"
        number, kind = head[0] >> 3, head[0] & 7
        field = fields.get(number)
        place = f"{path}.{field.name if field else number}"
        body = _skip(view, head[1], end, kind, place)
        if isinstance(body, str):
            return body
        low, at = body
        if field is not None and kind == 2:
            inner = _scan_value(view, low, at, field, place, depth)
            if inner is not None:
                return inner
    return None


def _skip(view: memoryview, at: int, end: int, kind: int, place: str) -> tuple[int, int] | str:
    """The span of a value, or what is wrong with it."""
    if kind in (0, 2):
        value = _read_varint(view, at, end)
        if value is None:
            return f"byte {at}: number cut off in {place}"
        low, high = value[1], value[1] + (value[0] if kind == 2 else 0)
    elif kind in (1, 5):
        low, high = at, at + (8 if kind == 1 else 4)
    else:
        return f"byte {at}: wire type {kind} does not occur in such files, in {place}"
    if high > end:
        return f"byte {low}: {place} wants {high - low} bytes, {end - low} are left"
    return low, high


def _scan_value(view: memoryview, low: int, high: int, field: Field, place: str, depth: int) -> str | None:
    if field.label == "map":
        return _scan(view, low, high, _entry_fields(field), place, depth + 1)
    if field.type == "string":
        try:
            str(view[low:high], "utf-8")
        except UnicodeDecodeError as error:
            return f"byte {low + error.start}: {place} is not UTF-8 text"
        return None
    inner = table()[0].get(field.type)
    if inner is None:
        return None
    return _scan(view, low, high, {f.number: f for f in inner.values()}, place, depth + 1)
