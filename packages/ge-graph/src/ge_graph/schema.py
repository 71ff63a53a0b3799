"""What GE knows of an operator: ports, attributes, element types; read from ``data/`` on first use.

``data/ops.jsonl`` holds one operator per line. ``data/amendments.jsonl`` holds what the headers lack, each line with
its ``source``: whole operators, element types that kernels accept, ports that must share one type.
``data/revisions.jsonl`` holds, in the same form, what later CANN releases changed or added, each line with the release
that has it (``since``). ``use_cann`` chooses the release for the length of a block, the newest by default; a ``Graph``
keeps the release in which it was begun. The form of a line::

    {"op": "MatMulV2", "in": ["x1 f32,f16", "bias? f32", "parts* ALL"], "out": ["y f32,f16"],
     "attr": [["transpose_x1", "Bool", false], ["strides", "ListInt"]], "var": {"T": "f32,f16"}, "source": "…"}

``?`` marks an optional port, ``*`` a dynamic one. The text after the port name is a list of short type names, a named
set of ``data/dtype_sets.json`` or a type variable of the line; ``^T1,T2`` is the promoted type of other variables. An
attribute without a third entry is required; a third entry ``null`` means that the attribute is absent unless given.
"""

from __future__ import annotations

import difflib
import json
import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from ge_graph.attrs import Attr, Kind, make
from ge_graph.dtypes import BY_SHORT, DataType
from ge_graph.errors import GraphError
from ge_graph.files import package_data

Row = dict[str, Any]

_KIND_OF_MARK: Final = {"?": "optional", "*": "dynamic"}


@dataclass(frozen=True, slots=True)
class PortSchema:
    """An input or output of an operator.

    Attributes:
        kind: ``required``, ``optional`` (inputs only) or ``dynamic``.
        dtypes: Element types that the port takes, in header order.
        typevar: Name of the type variable that the port shares with others, empty if none.
    """

    name: str
    kind: str
    dtypes: tuple[DataType, ...]
    typevar: str = ""
    domain: frozenset[DataType] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", frozenset(self.dtypes))


@dataclass(frozen=True, slots=True)
class AttrSchema:
    """An attribute of an operator.

    Attributes:
        required: Whether a call must give it.
        default: Typed value used when a call leaves it out, ``None`` for "absent".
        symbol: GE type name under which the header writes an Int default, empty otherwise.
    """

    name: str
    kind: Kind
    required: bool
    default: Attr | None = None
    symbol: str = ""


@dataclass(frozen=True, slots=True)
class OpSchema:
    """An operator as GE registers it.

    Attributes:
        subgraphs: Slot name to kind, ``required`` or ``dynamic``.
        typevars: Type variable to the types it ranges over; promoted variables are left out.
        promotions: Promoted variable to the variables whose promoted type it is.
        source: Where the facts come from.
        in_place: Positions of inputs and of the outputs named after them: GE takes both for one variable.
    """

    name: str
    inputs: tuple[PortSchema, ...]
    outputs: tuple[PortSchema, ...]
    attrs: tuple[AttrSchema, ...]
    subgraphs: Mapping[str, str]
    typevars: Mapping[str, tuple[DataType, ...]]
    promotions: Mapping[str, tuple[str, ...]]
    source: str
    in_place: tuple[tuple[int, int], ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        outputs = {p.name: i for i, p in enumerate(self.outputs)}
        pairs = tuple((i, outputs[p.name]) for i, p in enumerate(self.inputs) if p.name in outputs)
        object.__setattr__(self, "in_place", pairs)

    def input(self, name: str) -> PortSchema | None:
        """The input port of that name."""
        return next((p for p in self.inputs if p.name == name), None)

    def output(self, name: str) -> PortSchema | None:
        """The output port of that name."""
        return next((p for p in self.outputs if p.name == name), None)

    def attr(self, name: str) -> AttrSchema | None:
        """The attribute of that name."""
        return next((a for a in self.attrs if a.name == name), None)


@lru_cache(maxsize=1)
def dtype_sets() -> dict[str, tuple[DataType, ...]]:
    """The named sets of element types of GE headers, such as ``BasicType``."""
    return {name: _short_list(text) for name, text in json.loads(package_data("dtype_sets.json")).items()}


def _short_list(text: str) -> tuple[DataType, ...]:
    return tuple(BY_SHORT[s] for s in text.split(","))


@lru_cache(maxsize=1)
def _lines() -> dict[str, bytes]:
    """Operator to its line, not parsed: every line starts with ``{"op":"Name"``, so finding the names takes 0.5 ms."""
    skip = len(b'{"op":"')
    lines = package_data("ops.jsonl").splitlines()
    return {line[skip : line.index(b'"', skip)].decode(): line for line in lines}


@lru_cache(maxsize=1)
def _all_amendments() -> dict[str, list[Row]]:
    amendments: dict[str, list[Row]] = {}
    for file in ("amendments.jsonl", "revisions.jsonl"):
        for line in package_data(file).splitlines():
            row = json.loads(line)
            for op in row["op"].split():
                amendments.setdefault(op, []).append(row)
    return amendments


OLDEST_CANN = (8, 2)
"""The first release whose operator definitions the data holds; until 9.1 they are the ones without ``since``."""
NEWEST_CANN = (9, 1)
Release: TypeAlias = "tuple[int, ...] | None"
"""The first two numbers of a CANN release; None: the newest known."""
_cann: ContextVar[Release] = ContextVar("ge_graph.schema.cann", default=None)


def release_text(release: tuple[int, ...]) -> str:
    """A release as ``use_cann`` takes it."""
    return ".".join(str(part) for part in release)


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def release() -> Release:
    """The CANN release whose operator definitions hold here."""
    return _cann.get()


def use_cann(version: str | None) -> AbstractContextManager[None]:
    """Choose the CANN release whose operator definitions hold in a ``with`` block, for this thread and task only.

    Args:
        version: ``"8.5.0"`` and the like, of which the first two numbers count; None: the newest known.

    Raises:
        GraphError: GE3071 if the text holds no such numbers, or a release whose definitions are not known; at the call,
            not in the block.

    Example:
        >>> with use_cann("8.5.0"):
        ...     get("AdaLayerNorm") is None
        True
    """
    chosen = None if version is None else _release(version)
    if chosen is not None and len(chosen) < 2:
        raise GraphError("GE3071", f"{version!r} is not a version of CANN", next="write it like '8.5.0'")
    if chosen is not None and not OLDEST_CANN <= chosen <= NEWEST_CANN:
        known = f"{release_text(OLDEST_CANN)} to {release_text(NEWEST_CANN)}"
        raise GraphError(
            "GE3071",
            f"the operators of CANN {version} are not known, those of {known} are",
            next="name the nearest of these, or leave cann_version unset for the newest",
        )
    return at_release(chosen)


@contextmanager
def at_release(release: Release) -> Iterator[None]:
    """``use_cann`` for a release that is known to be one, such as that of a graph."""
    token = _cann.set(release)
    try:
        yield
    finally:
        _cann.reset(token)


def _holds(row: Row, release: Release) -> bool:
    """Whether a release has what the row says."""
    return "since" not in row or release is None or release >= _release(row["since"])


def _amendments_of(op: str) -> list[Row]:
    chosen = _cann.get()
    return [row for row in _all_amendments().get(op, ()) if _holds(row, chosen)]


def definition_of(op: str) -> Release:
    """The release whose definition of an operator holds here: None unless an older one says something else."""
    chosen = _cann.get()
    if chosen is None or op in _user_rows:
        return None
    return None if all(_holds(row, chosen) for row in _all_amendments().get(op, ())) else chosen


def is_revised(op: str) -> bool:
    """Whether releases define an operator differently."""
    return op not in _user_rows and any("since" in row for row in _all_amendments().get(op, ()))


def other_names(op: str) -> dict[str, str]:
    """Names of ports and attributes that another release has, to the names that hold now."""
    renamed = {}
    for row in _all_amendments().get(op, ()):
        for old, new in row.get("rename", {}).items():
            renamed.update({old: new} if _holds(row, _cann.get()) else {new: old})
    return renamed


_parsed: dict[Release, dict[str, OpSchema | None]] = {}
_user_rows: dict[str, Row] = {}
_listeners: list[Callable[[str], None]] = []


def get(op: str) -> OpSchema | None:
    """The schema of an operator, ``None`` if GE has no such operator."""
    try:
        return _parsed[_cann.get()][op]
    except KeyError:
        pass
    defining = _parsed.setdefault(definition_of(op), {})
    if op not in defining:
        row = row_of(op)
        defining[op] = None if row is None else parse(row)
    # a schema is one object for all releases that say the same
    op_schema = _parsed.setdefault(_cann.get(), {})[op] = defining[op]
    return op_schema


def require(op: str) -> OpSchema:
    """The schema of an operator.

    Raises:
        GraphError: GE3019 if GE has no such operator; the message names close ones.
    """
    op_schema = get(op)
    if op_schema is None:
        close = suggest(op)
        chosen = _cann.get()
        later = [row["since"] for row in _all_amendments().get(op, ()) if not _holds(row, chosen)]
        raise GraphError(
            "GE3019",
            f"CANN {release_text(chosen)} has no operator '{op}'; it is there since {later[0]}"
            if chosen is not None and later
            else f"GE has no operator '{op}'",
            next=f"did you mean {', '.join(close)}?" if close else "register it with ge_graph.schema.register_schema",
        )
    return op_schema


def names() -> list[str]:
    """All operators known, sorted."""
    return sorted({*builtin_names(), *_user_rows})


def builtin_names() -> list[str]:
    """The operators of the package's own data, sorted."""
    added = (op for op in _all_amendments() if any("in" in r for r in _amendments_of(op)))
    return sorted({*_lines(), *added})


def builtin(op: str) -> OpSchema:
    """The schema of the package's own data, whatever was registered at run time.

    Raises:
        GraphError: GE3019 if the data has no such operator.
    """
    row = _builtin_row(op)
    if row is None:
        raise GraphError("GE3019", f"GE has no operator '{op}'")
    return parse(row)


def suggest(op: str, count: int = 3) -> list[str]:
    """Operators with names close to ``op``, best first."""
    known = names()
    folded = {n.lower(): n for n in known}
    if op.lower() in folded:
        return [folded[op.lower()]]
    return [folded[n] for n in difflib.get_close_matches(op.lower(), folded, count, 0.7)]


def row_of(op: str) -> Row | None:
    """The row of an operator with all amendments applied, in the form of ``data/ops.jsonl``."""
    return _user_rows.get(op) or _builtin_row(op)


def _builtin_row(op: str) -> Row | None:
    line = _lines().get(op)
    row: Row | None = None if line is None else json.loads(line)
    for amendment in _amendments_of(op):
        row = _amend(op, row, amendment)
    return row


def _amend(op: str, row: Row | None, amendment: Row) -> Row:
    if "in" in amendment:
        return {**amendment, "op": op}
    if row is None:
        raise GraphError("GE3011", f"amendment of '{op}' changes an operator that no row defines")
    row = {**row, "source": f"{row['source']}; {amendment['source']}"}
    for old, new in amendment.get("rename", {}).items():
        row = _rename(row, old, new)
    if "append" in amendment:
        row["in"] = [*row["in"], *amendment["append"]]
    if "attr" in amendment:
        changed = {a[0]: a for a in amendment["attr"]}
        kept = [changed.pop(a[0], a) for a in row.get("attr", ())]
        row["attr"] = kept + list(changed.values())
    for ports, extra in amendment.get("allow", {}).items():
        row = _widen(row, set(ports.split()), _short_list(extra))
    for ports in amendment.get("same", ()):
        row = _tie(row, ports.split())
    return row


def _rename(row: Row, old: str, new: str) -> Row:
    def port(text: str) -> str:
        name, domain = text.split(" ")
        plain = name.rstrip("?*")
        return f"{new}{name[len(plain) :]} {domain}" if plain == old else text

    attributes = [[new, *a[1:]] if a[0] == old else a for a in row.get("attr", ())]
    changed = {side: [port(text) for text in row[side]] for side in ("in", "out")}
    return {**row, **changed, **({"attr": attributes} if attributes else {})}


def _domain(row: Row, text: str) -> tuple[DataType, ...]:
    text = row.get("var", {}).get(text, text)
    if text.startswith("^"):
        members = [_domain(row, name) for name in text[1:].split(",")]
        return tuple(dict.fromkeys(d for m in members for d in m))
    named = dtype_sets().get(text)
    return _short_list(text) if named is None else named


def _text(dtypes: Iterable[DataType]) -> str:
    return ",".join(d.short for d in dtypes)


def _widen(row: Row, ports: set[str], extra: tuple[DataType, ...]) -> Row:
    """Add element types to ports; a type variable is widened as a whole."""
    variables = dict(row.get("var", {}))
    changed: dict[str, list[str]] = {}
    for side in ("in", "out"):
        changed[side] = []
        for port in row[side]:
            name, text = port.split(" ")
            if name.rstrip("?*") in ports:
                wider = _text(dict.fromkeys((*_domain(row, text), *extra)))
                if text in variables:
                    if not variables[text].startswith("^"):
                        variables[text] = wider
                else:
                    port = f"{name} {wider}"
            changed[side].append(port)
    return {**row, **changed, **({"var": variables} if variables else {})}


def _tie(row: Row, ports: list[str]) -> Row:
    """Make ports share one type: a new type variable over the types that all of them know."""
    texts = {p.split(" ")[0].rstrip("?*"): p.split(" ")[1] for side in ("out", "in") for p in row[side]}
    common = [d for d in _domain(row, texts[ports[0]]) if all(d in _domain(row, texts[p]) for p in ports)]
    variables = dict(row.get("var", {}))
    name = f"T{len(variables)}"
    variables[name] = _text(common)
    changed = {
        side: [f"{p.split(' ')[0]} {name}" if p.split(" ")[0].rstrip("?*") in ports else p for p in row[side]]
        for side in ("in", "out")
    }
    return {**row, **changed, "var": variables}


def parse(row: Row) -> OpSchema:
    """A schema from a row.

    Raises:
        GraphError: GE3011 if the row is malformed.
    """
    try:
        return OpSchema(
            name=_identifier(row["op"]),
            inputs=tuple(_port(row, text) for text in row["in"]),
            outputs=tuple(_port(row, text) for text in row["out"]),
            attrs=tuple(_attribute(entry) for entry in row.get("attr", ())),
            subgraphs={s.rstrip("*"): "dynamic" if s.endswith("*") else "required" for s in row.get("sub", ())},
            typevars={n: _domain(row, n) for n, t in row.get("var", {}).items() if not t.startswith("^")},
            promotions={n: tuple(t[1:].split(",")) for n, t in row.get("var", {}).items() if t.startswith("^")},
            source=row.get("source", ""),
        )
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise GraphError(
            "GE3011",
            f"schema row of '{row.get('op', '?')}' is malformed: {type(error).__name__} {error}",
            next="see the docstring of ge_graph.schema for the form of a row",
        ) from error


def _identifier(name: str) -> str:
    """The name itself; it becomes a name in programs, so it must be one."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not a name")
    return name


def _port(row: Row, text: str) -> PortSchema:
    name, domain = text.split(" ")
    _identifier(f"_{name.rstrip('?*')}")
    kind = _KIND_OF_MARK.get(name[-1], "required")
    return PortSchema(name.rstrip("?*"), kind, _domain(row, domain), domain if domain in row.get("var", {}) else "")


def _attribute(entry: list[Any]) -> AttrSchema:
    name, kind = entry[0], Kind(entry[1])
    _identifier(f"_{name}")
    if len(entry) == 2:
        return AttrSchema(name, kind, required=True)
    value = entry[2]
    if value is None:
        return AttrSchema(name, kind, required=False)
    return AttrSchema(name, kind, False, make(kind, _from_json(kind, value), name), entry[3] if len(entry) > 3 else "")


def _from_json(kind: Kind, value: Any) -> Any:
    if kind is Kind.TYPE:
        return DataType[value]
    if kind is Kind.LIST_TYPE:
        return [DataType[v] for v in value]
    return value


def register_schema(row: Row, *, replace: bool = False) -> OpSchema:
    """Make an operator known in this process, as ``REG_OP`` in a custom operator package does for GE.

    An operator that is known already with the same ports and attributes gets the element types of both.

    Args:
        row: Row in the form of ``data/ops.jsonl``; ``source`` may be left out.
        replace: Take the row as it is even if another definition is known.

    Raises:
        GraphError: GE3011 if the row is malformed, GE3012 if another definition of the operator is known.
    """
    row = {"source": "register_schema", **row}
    new = parse(row)
    known = None if replace else get(new.name)
    if known is not None:
        if _shape(known) != _shape(new):
            raise GraphError(
                "GE3012",
                f"operator '{new.name}' is known with other ports or attributes: {_difference(known, new)}",
                next="choose another name, or pass replace=True if the new definition is the one on the device",
            )
        base = row_of(new.name)
        if base is None:
            raise GraphError("GE3011", f"schema row of '{new.name}' vanished while it was registered")
        row = base
        for ports, known_ports in ((new.inputs, known.inputs), (new.outputs, known.outputs)):
            for port, known_port in zip(ports, known_ports):
                if not port.domain <= known_port.domain:
                    row = _widen(row, {port.name}, port.dtypes)
    registered = parse(row)
    _user_rows[new.name] = row
    for known_schemas in list(_parsed.values()):
        known_schemas.pop(new.name, None)
    for listener in _listeners:
        listener(new.name)
    return registered


def conflict(row: Row) -> str:
    """How the ports and attributes of a row differ from the known operator of that name; empty if they do not."""
    new = parse(row)
    known = get(new.name)
    return "" if known is None or _shape(known) == _shape(new) else _difference(known, new)


def registered() -> dict[str, Row]:
    """The rows that this process has registered, by operator."""
    return dict(_user_rows)


def on_register(listener: Callable[[str], None]) -> None:
    """Call ``listener(op)`` whenever the schema of an operator changes."""
    _listeners.append(listener)


def _shape(schema: OpSchema) -> tuple[Any, ...]:
    return (
        [(p.name, p.kind) for p in schema.inputs],
        [(p.name, p.kind) for p in schema.outputs],
        [(a.name, a.kind, a.required) for a in schema.attrs],
        dict(schema.subgraphs),
    )


def _difference(known: OpSchema, new: OpSchema) -> str:
    labels = ("inputs", "outputs", "attributes", "subgraphs")
    return "; ".join(f"{label} {a} against {b}" for label, a, b in zip(labels, _shape(known), _shape(new)) if a != b)
