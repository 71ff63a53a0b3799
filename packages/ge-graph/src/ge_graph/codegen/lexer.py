"""C++ header text to tokens: comments kept aside as documentation, directives and macros resolved, lines remembered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>(?:u8|L)?"(?:\\.|[^"\\\n])*")
  | (?P<char>'(?:\\.|[^'\\\n])+')
  | (?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)[fFlLuU]*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<scope>::)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_DIRECTIVE: Final = re.compile(r"^[ \t]*#[ \t]*(\w*)(.*)$")
_OPENS: Final = frozenset(("if", "ifdef", "ifndef"))
_DEFINITION: Final = re.compile(r"\s*(\w+)(\([^)]*\))?(.*)", re.DOTALL)
# What the header with the prototypes' own definitions must not turn them into.
_NEVER_EXPANDED: Final = frozenset(("REG_OP", "OP_END_FACTORY_REG", "OP_END"))
_DEEPEST: Final = 16
# Macros that double a few dozen times would fill any memory; real headers expand to some ten thousand tokens.
MOST_TOKENS: Final = 2_000_000


class Token(NamedTuple):
    """A piece of C++: ``kind`` is string, char, number, name, scope or mark."""

    kind: str
    text: str
    line: int


class Macro(NamedTuple):
    """A ``#define``: its parameters, None for an object-like one, and its body."""

    parameters: tuple[str, ...] | None
    body: str


@dataclass(frozen=True, slots=True)
class Source:
    """A header as tokens.

    Attributes:
        tokens: Without comments and directives; macros of the file itself are replaced.
        comments: Line on which a block comment ends, to its text.
        problems: Line to what could not be read.
    """

    tokens: tuple[Token, ...]
    comments: dict[int, str]
    problems: tuple[tuple[int, str], ...]


def read(text: str) -> Source:
    """Split a header."""
    plain, macros = _directives(text)
    comments: dict[int, str] = {}
    problems: list[tuple[int, str]] = []
    tokens: list[Token] = []
    line = 1
    for match in _TOKEN.finditer(plain):
        kind, piece = match.lastgroup or "mark", match.group()
        if kind == "comment":
            if piece.startswith("/*"):
                comments[line + piece.count("\n")] = piece
        elif kind == "mark" and piece in "\"'":
            what = "string" if piece == '"' else "character"
            problems.append((line, f"unfinished {what}, expected a closing {piece}"))
        elif kind == "mark" and piece == "/" and plain.startswith("/*", match.start()):
            problems.append((line, "unfinished comment, expected */"))
            break
        elif kind != "space":
            tokens.append(Token(kind, piece, line))
        line += piece.count("\n")
    budget = [MOST_TOKENS]
    expanded = _expand(tokens, macros, 0, budget)
    if budget[0] < 0:
        problems.append((1, f"macros expand to more than {MOST_TOKENS} tokens"))
        expanded = []
    return Source(tuple(expanded), comments, tuple(problems))


def _directives(text: str) -> tuple[str, dict[str, Macro]]:
    """Blank out preprocessor lines and ``#if 0`` blocks; macros of the file are kept."""
    macros: dict[str, Macro] = {}
    kept: list[str] = []
    lines = text.replace("\r\n", "\n").split("\n")
    dead = 0  # depth inside an `#if 0` block
    i = 0
    in_comment = False
    while i < len(lines):
        match = None if in_comment else _DIRECTIVE.match(lines[i])
        if match is None:
            in_comment = _comment_state(lines[i], in_comment)
            kept.append("" if dead else lines[i])
            i += 1
            continue
        directive, rest = match.group(1), match.group(2)
        kept.append("")
        while rest.endswith("\\") and i + 1 < len(lines):
            i += 1
            rest = f"{rest[:-1]} {lines[i]}"
            kept.append("")
        i += 1
        if dead:
            dead += (directive in _OPENS) - (directive == "endif")
            dead = 0 if dead == 1 and directive in ("else", "elif") else dead
        elif directive == "if" and rest.strip() == "0":
            dead = 1
        elif directive == "define":
            _define(rest, macros)
    return "\n".join(kept), macros


def _comment_state(line: str, inside: bool) -> bool:
    """Whether the line after this one starts inside a block comment."""
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|//|/\*|\*/', line):
        mark = match.group()
        if not inside and mark == "//":
            return False
        if not inside and mark == "/*":
            inside = True
        elif inside and mark == "*/":
            inside = False
    return inside


def _define(text: str, macros: dict[str, Macro]) -> None:
    match = _DEFINITION.fullmatch(text)
    if match is None or match[1] in _NEVER_EXPANDED or not match[3].strip():
        return
    parameters = None if match[2] is None else tuple(p.strip() for p in match[2][1:-1].split(",") if p.strip())
    macros[match[1]] = Macro(parameters, match[3])


def _expand(tokens: list[Token], macros: dict[str, Macro], depth: int, budget: list[int]) -> list[Token]:
    """Tokens with macros replaced; a replaced token has the line of the use. Stops when the budget is used up."""
    budget[0] -= len(tokens)
    if not macros or depth > _DEEPEST:  # a macro that uses itself
        return tokens
    expanded: list[Token] = []
    i = 0
    while i < len(tokens) and budget[0] >= 0:
        token = tokens[i]
        i += 1
        macro = macros.get(token.text) if token.kind == "name" else None
        if macro is None or (expanded and expanded[-1].text == "."):  # .INPUT(...) is a call, whatever is defined
            expanded.append(token)
            continue
        arguments: dict[str, list[Token]] = {}
        if macro.parameters is not None:
            if i >= len(tokens) or tokens[i].text != "(":
                expanded.append(token)
                continue
            given, i = _arguments(tokens, i + 1)
            arguments = dict(zip(macro.parameters, given))
        expanded += _expand(_body(macro.body, arguments, token.line), macros, depth + 1, budget)
    return expanded


def _arguments(tokens: list[Token], i: int) -> tuple[list[list[Token]], int]:
    """The arguments of a macro from after its parenthesis, and the position after the closing one."""
    given: list[list[Token]] = [[]]
    depth = 1
    while i < len(tokens):
        token = tokens[i]
        i += 1
        depth += (token.text in ("(", "{")) - (token.text in (")", "}"))
        if depth == 0:
            break
        if depth == 1 and token.text == ",":
            given.append([])
        else:
            given[-1].append(token)
    return given, i


def _body(text: str, arguments: dict[str, list[Token]], line: int) -> list[Token]:
    """A macro's body with its arguments put in; ``#a`` is the argument's text, ``a##b`` joins two names."""
    replacement: list[Token] = []
    stringify = paste = False
    for match in _TOKEN.finditer(text):
        kind, piece = match.lastgroup or "mark", match.group()
        if kind in ("space", "comment"):
            continue
        if piece == "#":
            stringify, paste = not stringify, stringify
            continue
        part = [t._replace(line=line) for t in arguments[piece]] if piece in arguments else [Token(kind, piece, line)]
        if stringify and piece in arguments:
            part = [Token("string", f'"{"".join(t.text for t in part)}"', line)]
        if paste and replacement and part:
            part[0] = Token("name", replacement.pop().text + part[0].text, line)
        stringify = paste = False
        replacement += part
    return replacement
