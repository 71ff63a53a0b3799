"""Reading ``REG_OP`` operator headers without a compiler.

A header is read as ``REG_OP(Name)`` followed by a chain of ``.INPUT(...)``, ``.ATTR(...)`` and so on up to
``.OP_END_FACTORY_REG(Name)``. Other C++ around it is skipped. Whatever stands inside a chain and cannot be read is an
error with file, line and what was expected; all errors of all headers are reported at once.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ge_graph import schema
from ge_graph.attrs import Kind
from ge_graph.codegen.lexer import Source, Token, read
from ge_graph.dtypes import DataType
from ge_graph.errors import GraphError

_PORTS: Final = {
    "INPUT": ("in", ""),
    "OPTIONAL_INPUT": ("in", "?"),
    "DYNAMIC_INPUT": ("in", "*"),
    "OUTPUT": ("out", ""),
    "DYNAMIC_OUTPUT": ("out", "*"),
}
_ENDS: Final = ("OP_END_FACTORY_REG", "OP_END")
# Registration of shape inference and the like says nothing about the signature.
_IGNORED: Final = frozenset(("INFER_SHAPE_AND_TYPE", "COMMENT", "INFER_FUNC", "VERIFY_FUNC"))
_METHODS: Final = (*_PORTS, "ATTR", "REQUIRED_ATTR", "GRAPH", "DYNAMIC_GRAPH", "DATATYPE", *_ENDS)
# Spellings that CANN headers use beside the enum names.
_SPELLINGS: Final = {
    "DT_FLOAT32": "DT_FLOAT",
    "DT_FLOAT64": "DT_DOUBLE",
    "DT_BFLOAT16": "DT_BF16",
    "DT_FP32": "DT_FLOAT",
    "DT_FP16": "DT_FLOAT16",
    "DT_HALF": "DT_FLOAT16",
    "DT_COMPLEXT64": "DT_COMPLEX64",
    "DI_UINT16": "DT_UINT16",
    "DA_INT4": "DT_INT4",
    "DT_RESOURSE": "DT_RESOURCE",
    "DT_FLOAT8_E4M3": "DT_FLOAT8_E4M3FN",
    "BOOL": "DT_BOOL",
    "DT_FLOAT_E8M0": "DT_FLOAT8_E8M0",
    "DT_B16": "DT_BF16",
    "int8": "DT_INT8",
    "int32": "DT_INT32",
    "float16": "DT_FLOAT16",
    "float32": "DT_FLOAT",
    "Int": "DT_INT64",
}
_SET_SPELLINGS: Final = {"REALNUMBERTYPE": "RealNumberType"}
_TYPE_WORDS: Final = frozenset(("TensorType", "TesnorType", "ListTensorType", "ge"))
_KINDS: Final = {**{k.value: k for k in Kind}, "int": Kind.INT, "float": Kind.FLOAT, "bool": Kind.BOOL}
_INTEGER_NAMES: Final = {
    "INT64_MAX": 2**63 - 1,
    "INT64_MIN": -(2**63),
    "INT32_MAX": 2**31 - 1,
    "INT32_MIN": -(2**31),
    "UINT32_MAX": 2**32 - 1,
    "INT_MAX": 2**31 - 1,
    "INT_MIN": -(2**31),
    "UINT_MAX": 2**32 - 1,
    "LLONG_MAX": 2**63 - 1,
    "LLONG_MIN": -(2**63),
    "INT16_MAX": 2**15 - 1,
    "INT16_MIN": -(2**15),
    "INT8_MAX": 127,
    "INT8_MIN": -128,
    "UINT8_MAX": 255,
    "UINT16_MAX": 2**16 - 1,
}
_FLOAT_NAMES: Final = {
    "FLT_MAX": (2 - 2.0**-23) * 2.0**127,
    "FLT_MIN": 2.0**-126,
    "FLT_EPSILON": 2.0**-23,
    "DBL_MAX": sys.float_info.max,
    "DBL_MIN": sys.float_info.min,
    "DBL_EPSILON": sys.float_info.epsilon,
}


@dataclass(frozen=True, slots=True)
class HeaderOperator:
    """A registration.

    Attributes:
        row: Schema row in the form of ``data/ops.jsonl``.
        doc: The comment in front of it, cleaned.
        file: Header that holds it.
        line: Line of ``REG_OP``.
    """

    row: schema.Row
    doc: str
    file: Path
    line: int


@dataclass(slots=True)
class ParsedHeaders:
    """What headers hold: operators sorted by name, and notes on registrations that were left out."""

    operators: list[HeaderOperator] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Unreadable(Exception):
    """Inside a call of the chain; caught by the reader of the header."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line
        self.what = what


def read_headers(paths: Iterable[Path]) -> ParsedHeaders:
    """Read header files and whole directories of ``*.h``.

    Raises:
        GraphError: GE3040 listing every line that cannot be read, GE3041 if a path is missing or holds no operator.
    """
    parsed, problems = ParsedHeaders(), []
    best: dict[str, HeaderOperator] = {}
    for path in paths:
        files, named = _files(path)
        count = 0
        for file in files:
            operators, wrong = _read_file(file)
            problems += wrong
            count += len(operators) + len(wrong)
            for operator in operators:
                _keep(best, operator, parsed.notes)
        if not count:
            kind = "header" if named else "directory"
            raise GraphError("GE3041", f"{kind} {path} holds no REG_OP", next="give a header with REG_OP(Name)… in it")
    if problems:
        listing = "\n".join(f"  {p}" for p in problems)
        raise GraphError(
            "GE3040",
            f"{len(problems)} place{'s' if len(problems) > 1 else ''} cannot be read:\n{listing}",
            next="correct the header; nothing was written",
        )
    parsed.operators = [best[name] for name in sorted(best)]
    return parsed


def _files(path: Path) -> tuple[list[Path], bool]:
    if path.is_dir():
        return sorted(path.rglob("*.h")), False
    if path.is_file():
        return [path], True
    raise GraphError("GE3041", f"there is no file or directory {path}")


def _keep(best: dict[str, HeaderOperator], new: HeaderOperator, notes: list[str]) -> None:
    """Of two registrations of one name, the one with more ports and attributes stays."""
    name = new.row["op"]
    old = best.get(name)
    if old is None:
        best[name] = new
        return
    if old.row == new.row:
        return
    winner, loser = (new, old) if _size(new.row) > _size(old.row) else (old, new)
    best[name] = winner
    notes.append(f"{name} is registered twice; kept {winner.file}:{winner.line}, left out {loser.file}:{loser.line}")


def _size(row: schema.Row) -> int:
    return len(row["in"]) + len(row["out"]) + len(row.get("attr", ()))


def _read_file(file: Path) -> tuple[list[HeaderOperator], list[str]]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise GraphError("GE3041", f"cannot read {file}: {error.strerror}") from error
    return parse_header(text, file)


def parse_header(text: str, file: Path) -> tuple[list[HeaderOperator], list[str]]:
    """The operators of one header, and one text a place that cannot be read."""
    source = read(text)
    reader = _Reader(source, file)
    reader.run()
    problems = sorted([*source.problems, *reader.problems])
    return reader.operators, [f"{file}:{line}: {what}" for line, what in problems]


class _Reader:
    """Walks over the tokens of a header."""

    def __init__(self, source: Source, file: Path) -> None:
        self.tokens = source.tokens
        self.comments = source.comments
        self.file = file
        self.operators: list[HeaderOperator] = []
        self.problems: list[tuple[int, str]] = []

    def run(self) -> None:
        i = 0
        while i < len(self.tokens):
            if self._is_name(i, "REG_OP"):
                i = self._operator(i)
            elif self._call_at(i) and self.tokens[i + 1].text in _METHODS:
                line, method = self.tokens[i].line, self.tokens[i + 1].text
                self.problems.append((line, f".{method} outside a registration, expected REG_OP(Name) before it"))
                i = self._skip_chain(i)
            else:
                i += 1

    def _is_name(self, i: int, text: str) -> bool:
        return i < len(self.tokens) and self.tokens[i].kind == "name" and self.tokens[i].text == text

    def _mark(self, i: int, text: str) -> bool:
        return i < len(self.tokens) and self.tokens[i].text == text and self.tokens[i].kind == "mark"

    def _call_at(self, i: int) -> bool:
        """Does ``.NAME(`` stand here?"""
        return (
            self._mark(i, ".")
            and i + 2 < len(self.tokens)
            and self.tokens[i + 1].kind == "name"
            and self.tokens[i + 1].text.isupper()
            and self._mark(i + 2, "(")
        )

    def _skip_chain(self, i: int) -> int:
        i += 1
        while i < len(self.tokens) and not self._is_name(i, "REG_OP"):
            ended = self.tokens[i].text in _ENDS
            i += 1
            if ended:
                break
        return i

    def _operator(self, i: int) -> int:
        """Read one registration from ``REG_OP``; the position after it."""
        line = self.tokens[i].line
        if not (self._mark(i + 1, "(") and i + 2 < len(self.tokens) and self.tokens[i + 2].kind == "name"):
            self.problems.append((line, "REG_OP, expected REG_OP(Name)"))
            return i + 1
        name = self.tokens[i + 2].text
        if not self._mark(i + 3, ")"):
            self.problems.append((line, f"REG_OP({name}, expected a closing parenthesis after the name"))
        row: schema.Row = {"op": name, "in": [], "out": []}
        before = len(self.problems)
        i += 4
        while self._call_at(i):
            method = self.tokens[i + 1]
            end = self._end_of_call(i + 3)
            arguments = self.tokens[i + 3 : end]
            try:
                self._call(row, method, arguments)
            except _Unreadable as wrong:
                self.problems.append((wrong.line, f"REG_OP({name}): {wrong.what}"))
            i = end + 1 if self._mark(end, ")") else end
            if method.text in _ENDS:
                self._finish(row, line, before)
                return i
        at = self.tokens[i].line if i < len(self.tokens) else self.tokens[-1].line
        got = f"'{self.tokens[i].text}'" if i < len(self.tokens) else "the end of the file"
        self.problems.append((at, f"REG_OP({name}): got {got}, expected .OP_END_FACTORY_REG({name}) or another call"))
        return i

    def _end_of_call(self, i: int) -> int:
        """Index of the parenthesis that closes a call. Headers have unbalanced ones, so the next call decides."""
        depth, start = 1, i
        while i < len(self.tokens):
            token = self.tokens[i]
            if self._is_name(i, "REG_OP") or self._call_at(i):
                closing = i - 1
                return closing if closing >= start and self._mark(closing, ")") else i
            if token.text == "(" and token.kind == "mark":
                depth += 1
            elif token.text == ")" and token.kind == "mark":
                depth -= 1
                if depth == 0 and not self._mark(i + 1, ")"):
                    return i
            i += 1
        return i

    def _finish(self, row: schema.Row, line: int, before: int) -> None:
        if len(self.problems) > before:
            return
        try:
            schema.parse(row)
        except GraphError as error:
            self.problems.append((line, error.what))
            return
        row["source"] = self.file.name
        self.operators.append(HeaderOperator(row, self._doc(line), self.file, line))

    def _doc(self, line: int) -> str:
        for distance in range(1, 4):
            if line - distance in self.comments:
                return clean_comment(self.comments[line - distance])
        return ""

    # -- calls of the chain ------------------------------------------------------------------------------------------

    def _call(self, row: schema.Row, method: Token, arguments: Sequence[Token]) -> None:
        name = method.text
        if name in _ENDS:
            if name == "OP_END_FACTORY_REG" and [t.text for t in arguments] != [row["op"]]:
                got = "".join(t.text for t in arguments)
                raise _Unreadable(method.line, f".{name}({got}), expected .{name}({row['op']})")
        elif name in _PORTS:
            self._port(row, method, arguments)
        elif name in ("ATTR", "REQUIRED_ATTR"):
            self._attribute(row, method, arguments)
        elif name in ("GRAPH", "DYNAMIC_GRAPH"):
            if len(arguments) != 1 or arguments[0].kind != "name":
                raise _Unreadable(method.line, f".{name}, expected .{name}(name)")
            row.setdefault("sub", []).append(arguments[0].text + ("*" if name == "DYNAMIC_GRAPH" else ""))
        elif name == "DATATYPE":
            self._variable(row, method, arguments)
        elif name not in _IGNORED:
            close = difflib.get_close_matches(name, _METHODS, 1)
            hint = f"; did you mean .{close[0]}?" if close else ""
            known = ", ".join(_METHODS)
            raise _Unreadable(method.line, f".{name} is not a call of a registration, expected one of {known}{hint}")

    def _named(self, method: Token, arguments: Sequence[Token], form: str) -> tuple[str, Sequence[Token]]:
        """Split ``name, rest``."""
        if len(arguments) < 3 or arguments[0].kind != "name" or arguments[1].text != ",":
            got = "".join(t.text for t in arguments[:4])
            raise _Unreadable(method.line, f".{method.text}({got}…), expected .{method.text}({form})")
        return arguments[0].text, arguments[2:]

    def _port(self, row: schema.Row, method: Token, arguments: Sequence[Token]) -> None:
        name, types = self._named(method, arguments, "name, TensorType({DT_FLOAT, …})")
        side, mark = _PORTS[method.text]
        if any(p.split(" ")[0].rstrip("?*") == name for p in row[side]):
            raise _Unreadable(method.line, f"{'input' if side == 'in' else 'output'} '{name}' is given twice")
        row[side].append(f"{name}{mark} {_types(types, method.line)}")

    def _variable(self, row: schema.Row, method: Token, arguments: Sequence[Token]) -> None:
        name, types = self._named(method, arguments, "T, TensorType({DT_FLOAT, …})")
        variables = row.setdefault("var", {})
        if types[0].text == "Promote":
            members = [t.text.strip('"') for t in types[1:] if t.kind in ("string", "name")]
            variables[name] = "^" + ",".join(members)
        else:
            variables[name] = _types(types, method.line)

    def _attribute(self, row: schema.Row, method: Token, arguments: Sequence[Token]) -> None:
        required = method.text == "REQUIRED_ATTR"
        form = "name, Int" if required else "name, Int, 0"
        name, rest = self._named(method, arguments, form)
        kind = _KINDS.get(rest[0].text)
        if kind is None:
            known = ", ".join(k.value for k in Kind)
            raise _Unreadable(rest[0].line, f"attribute '{name}' is {rest[0].text}, expected one of {known}")
        entry: list[Any] = [name, kind.value]
        if any(a[0] == name for a in row.get("attr", ())):
            raise _Unreadable(method.line, f"attribute '{name}' is given twice")
        if required:
            if len(rest) > 1:
                raise _Unreadable(method.line, f"attribute '{name}' is required, expected no default")
        elif len(rest) == 1:
            entry.append(None)  # optional without a default: absent unless given
        elif rest[1].text != ",":
            raise _Unreadable(rest[1].line, f"attribute '{name}': got '{rest[1].text}', expected a comma and a default")
        else:
            entry += _default(name, kind, rest[2:], method.line)
        row.setdefault("attr", []).append(entry)


def _types(tokens: Sequence[Token], line: int) -> str:
    """A type expression as our text: short names, the name of a set, or a type variable."""
    if len(tokens) == 1 and tokens[0].kind == "string":
        return tokens[0].text.strip('"')
    if len(tokens) == 1 and tokens[0].kind == "name" and len(tokens[0].text) <= 3 and tokens[0].text.startswith("T"):
        return tokens[0].text
    sets: list[str] = []
    dtypes: list[DataType] = []
    for token in tokens:
        if token.kind in ("mark", "scope"):
            if token.text not in "(){},::":
                raise _Unreadable(token.line, f"got '{token.text}' among element types, expected one such as DT_FLOAT")
            continue
        if token.text in _TYPE_WORDS:
            continue
        dtype_or_set = _type(token)
        if isinstance(dtype_or_set, str):
            sets.append(dtype_or_set)
        dtypes.extend(schema.dtype_sets()[dtype_or_set] if isinstance(dtype_or_set, str) else (dtype_or_set,))
    if not dtypes:
        raise _Unreadable(line, "no element types, expected TensorType({DT_FLOAT, …}) or TensorType::ALL()")
    if len(sets) == 1 and set(dtypes) == set(schema.dtype_sets()[sets[0]]):
        return sets[0]
    return ",".join(d.short for d in dict.fromkeys(dtypes))


def _type(token: Token) -> DataType | str:
    text = _SPELLINGS.get(token.text, token.text)
    if text in DataType.__members__:
        return DataType[text]
    text = _SET_SPELLINGS.get(text, text)
    if text in schema.dtype_sets():
        return text
    known = [*DataType.__members__, *schema.dtype_sets()]
    close = difflib.get_close_matches(token.text, known, 1, 0.6)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise _Unreadable(
        token.line, f"'{token.text}' is not an element type, expected DT_… or a set such as BasicType{hint}"
    )


def _default(name: str, kind: Kind, tokens: Sequence[Token], line: int) -> list[Any]:
    """Default value, and the symbol it was written as if that is a type name."""
    if not tokens:
        raise _Unreadable(line, f"attribute '{name}' has no default after the comma")
    if kind is Kind.TENSOR:
        return [None]
    values = _Values(tokens, name, kind)
    if kind.value.startswith("List"):
        return [values.brace(2 if kind.value.startswith("ListList") else 1)]
    value = values.item()
    values.done()
    symbol = tokens[0].text if kind is Kind.INT and len(tokens) == 1 and tokens[0].kind == "name" else ""
    is_type = _SPELLINGS.get(symbol, symbol) in DataType.__members__
    return [value, _SPELLINGS.get(symbol, symbol)] if is_type else [value]


class _Values:
    """Reads literals of one attribute kind."""

    def __init__(self, tokens: Sequence[Token], name: str, kind: Kind) -> None:
        self.tokens = list(tokens)
        self.name = name
        self.item_kind = Kind(kind.value.removeprefix("ListList").removeprefix("List"))
        self.kind = kind

    def fail(self, expected: str) -> _Unreadable:
        got = f"'{self.tokens[0].text}'" if self.tokens else "nothing"
        line = self.tokens[0].line if self.tokens else 0
        return _Unreadable(line, f"attribute '{self.name}' of type {self.kind.value}: got {got}, expected {expected}")

    def done(self) -> None:
        if self.tokens:
            raise self.fail("the end of the default")

    def brace(self, depth: int) -> list[Any]:
        items = self._braced(depth)
        self.done()
        return items

    def _braced(self, depth: int) -> list[Any]:
        if self.tokens and self.tokens[0].text in _KINDS:
            self.tokens.pop(0)  # ListInt{1, 2}
        if not self.tokens or self.tokens[0].text != "{":
            raise self.fail("{…}")
        self.tokens.pop(0)
        items: list[Any] = []
        while self.tokens and self.tokens[0].text != "}":
            items.append(self._braced(depth - 1) if depth > 1 else self.item())
            if self.tokens and self.tokens[0].text == ",":
                self.tokens.pop(0)
            elif not self.tokens or self.tokens[0].text != "}":
                raise self.fail("a comma or }")
        if not self.tokens:
            raise self.fail("}")
        self.tokens.pop(0)
        return items

    def item(self) -> Any:
        if not self.tokens:
            raise self.fail(f"a value of type {self.item_kind.value}")
        if self.item_kind is Kind.STRING:
            return self._string()
        if self.item_kind is Kind.BOOL:
            return self._word({"true": True, "false": False})
        if self.item_kind is Kind.TYPE:
            return self._dtype().name
        return self._number()

    def _word(self, words: dict[str, bool]) -> bool:
        if self.tokens[0].text not in words:
            raise self.fail(" or ".join(words))
        return words[self.tokens.pop(0).text]

    def _string(self) -> str:
        if self.tokens[0].kind != "string":
            raise self.fail('a string such as "NCHW"')
        parts = []
        while self.tokens and self.tokens[0].kind == "string":  # C++ joins neighbours
            text = self.tokens[0].text.removeprefix("u8").removeprefix("L")
            try:
                parts.append(str(ast.literal_eval(text)))
            except (ValueError, SyntaxError):  # C++ has other escapes than Python, and a NUL may stand in the text
                raise self.fail("a string whose escapes can be read") from None
            self.tokens.pop(0)
        return "".join(parts)

    def _dtype(self, expected: str = "an element type such as DT_FLOAT") -> DataType:
        while len(self.tokens) > 1 and (self.tokens[0].text == "ge" or self.tokens[0].kind == "scope"):
            self.tokens.pop(0)
        text = _SPELLINGS.get(self.tokens[0].text, self.tokens[0].text)
        if text not in DataType.__members__:
            raise self.fail(expected)
        self.tokens.pop(0)
        return DataType[text]

    def _number(self) -> int | float:
        sign = 1
        while self.tokens and self.tokens[0].text in ("-", "+"):
            sign *= -1 if self.tokens.pop(0).text == "-" else 1
        wanted = "a number" if self.item_kind is Kind.FLOAT else "a whole number"
        if not self.tokens:
            raise self.fail(wanted)
        token = self.tokens[0]
        if token.kind == "name" and self.item_kind is Kind.INT:
            if token.text in _INTEGER_NAMES:
                self.tokens.pop(0)
                return sign * _INTEGER_NAMES[token.text]
            return int(self._dtype("a whole number, or an element type such as DT_FLOAT"))
        if token.kind == "name" and self.item_kind is Kind.FLOAT and token.text in _FLOAT_NAMES:
            self.tokens.pop(0)
            return sign * _FLOAT_NAMES[token.text]
        if token.kind != "number":
            raise self.fail(wanted)
        hexadecimal = token.text.lower().startswith("0x")
        text = token.text.rstrip("lLuU") if hexadecimal else token.text.rstrip("fFlLuU")
        if self.item_kind is Kind.FLOAT:
            try:
                number = sign * float(int(text, 16) if hexadecimal else text)
            except (ValueError, OverflowError):
                raise self.fail(wanted) from None
            self.tokens.pop(0)
            return number
        try:
            value = int(text, 16) if hexadecimal else int(text)
        except ValueError:
            raise self.fail(wanted) from None
        self.tokens.pop(0)
        return sign * value


_DOXYGEN: Final = (
    ("@brief", ""),
    ("@par ", ""),
    ("@li ", "- "),
    ("@attention ", ""),
    ("@see ", "See "),
    ("\\n", ""),
)


def clean_comment(comment: str) -> str:
    """A doxygen comment as plain text."""
    lines = []
    for line in comment.removeprefix("/*").removesuffix("*/").split("\n"):
        text = line.strip().lstrip("*!").strip()
        for mark, plain in _DOXYGEN:
            text = text.replace(mark, plain)
        lines.append(text.strip())
    joined = "\n".join(lines).strip()
    while "\n\n\n" in joined:
        joined = joined.replace("\n\n\n", "\n\n")
    return joined
