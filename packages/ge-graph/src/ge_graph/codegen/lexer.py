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
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE: Final = re.compile(r"^[ \t]*#[ \t]*(\w*)(.*)$")
_OPENS: Final = frozenset(("if", "ifdef", "ifndef"))


class Token(NamedTuple):
    """A piece of C++: ``kind`` is string, char, number, name, scope or mark."""

    kind: str
    text: str
    line: int


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
            tokens.extend(_expand(Token(kind, piece, line), macros, ()))
        line += piece.count("\n")
    return Source(tuple(tokens), comments, tuple(problems))


def _directives(text: str) -> tuple[str, dict[str, str]]:
    """Blank out preprocessor lines and ``#if 0`` blocks; object-like macros of the file are kept."""
    macros: dict[str, str] = {}
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
            parts = rest.split(None, 1)
            if len(parts) == 2 and "(" not in parts[0]:
                macros[parts[0]] = parts[1]
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


def _expand(token: Token, macros: dict[str, str], seen: tuple[str, ...]) -> list[Token]:
    if token.kind != "name" or token.text not in macros or token.text in seen:
        return [token]
    found: list[Token] = []
    for match in _TOKEN.finditer(macros[token.text]):
        if match.lastgroup not in ("space", "comment"):
            inner = Token(match.lastgroup or "mark", match.group(), token.line)
            found.extend(_expand(inner, macros, (*seen, token.text)))
    return found
