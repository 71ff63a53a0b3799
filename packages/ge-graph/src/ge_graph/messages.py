"""What errors and commands say in the reader's language: rows of a table by error code and English text.

English stands in the source, where it is written; ``data/messages.<language>.tsv`` has a row for each text: the error
code, the English with names in place of the values, and the translation. A text without a row, such as one that another
library wrote, stays as it is, behind what its code means. ``TAIR_LANG`` decides, else ``LC_ALL``, ``LC_MESSAGES`` and
``LANG`` in this order, as the C library has it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

VARIABLE: Final = "TAIR_LANG"
LANGUAGES: Final = ("en", "zh")
ANY: Final = "*"  # in place of a code: texts of several codes
FIELD: Final = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_PLACES: Final = (VARIABLE, "LC_ALL", "LC_MESSAGES", "LANG")
_DEPTH: Final = 3  # a value may be a text of ours too


def language() -> str:
    """``"zh"`` or ``"en"``; a language without a table is English."""
    wanted = next((text for name in _PLACES if (text := os.environ.get(name))), "en")
    short = re.split(r"[_.@-]", wanted, maxsplit=1)[0].lower()
    return short if short in LANGUAGES else "en"


def line(text: str) -> str:
    """A text as a cell of the table."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


@functools.cache
def rows(wanted: str) -> Mapping[tuple[str, str], str]:
    """Code and English to the translation; the English ``""`` stands for what the code itself means."""
    made: dict[tuple[str, str], str] = {}
    text = (Path(__file__).parent / "data" / f"messages.{wanted}.tsv").read_text(encoding="utf-8")
    for row in text.splitlines():
        if row and not row.startswith("#"):
            code, english, translated = (_cell(part) for part in row.split("\t"))
            made[code, english] = translated
    return MappingProxyType(made)


def _cell(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), text)


@functools.cache
def _by_code(wanted: str) -> Mapping[str, tuple[tuple[list[str], str], ...]]:
    """Code to its texts, those with the most words of their own first."""
    made: dict[str, list[tuple[list[str], str]]] = {}
    for (code, english), translated in rows(wanted).items():
        if english:
            made.setdefault(code, []).append((FIELD.split(english), translated))
    return {code: tuple(sorted(texts, key=lambda t: -sum(map(len, t[0][::2])))) for code, texts in made.items()}


def said(code: str, text: str, wanted: str | None = None, *, head: bool = False) -> str:
    """A text in the reader's language.

    Args:
        code: The error code that it belongs to.
        text: The English, values filled in.
        wanted: The language; by default that of the environment.
        head: Whether what the code means stands in front of a text that has no row.
    """
    wanted = wanted or language()
    if wanted == "en" or not text:
        return text
    lines = text.split("\n")
    if len(lines) > 1:  # a list, whose lines have texts of their own
        listed = [_translated(code, each, wanted, _DEPTH) for each in lines]
        if listed[0] is not None:
            return "\n".join(each if known is None else known for each, known in zip(lines, listed))
    found = _translated(code, text, wanted, _DEPTH)
    if found is not None:
        return found
    meaning = rows(wanted).get((code, "")) if head else None
    return text if meaning is None else f"{meaning}：{text}"


def word(code: str, text: str) -> str:
    """A text without values in the reader's language; anything else as it is."""
    wanted = language()
    return text if wanted == "en" else rows(wanted).get((code, text), text)


def _translated(code: str, text: str, wanted: str, depth: int) -> str | None:
    clauses = text.split("; ")  # a sentence that was put together of several
    if len(clauses) > 1:
        known = [_translated(code, each, wanted, depth) for each in clauses]
        if None not in known:
            return "；".join(known)  # type: ignore[arg-type]
    subject, colon, rest = text.partition(": ")  # "this file: is missing"
    early = " " not in subject  # a name, which a text that begins with one would take for more than that
    for named in (False, True):
        for group in dict.fromkeys((code, ANY)):
            for pieces, translated in _by_code(wanted).get(group, ()):
                values = _values(pieces, text) if named is (not pieces[0]) else None
                if values is not None:
                    if depth:
                        values = {k: _translated(code, v, wanted, depth - 1) or v for k, v in values.items()}
                    return FIELD.sub(lambda m, known=values: known.get(m[1], m[0]), translated)  # type: ignore[misc]
        said = _translated(code, rest, wanted, depth) if colon and named is not early else None
        if said is not None:
            return f"{subject}：{said}"
    return None


def _values(pieces: list[str], text: str) -> dict[str, str] | None:
    """The values of a text between words of ours and names in turn; None if the words are others. Takes linear time."""
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return {} if text == first else None
    if not (text.startswith(first) and text.endswith(last)) or len(text) < len(first) + len(last):
        return None
    at, end, values = len(first), len(text) - len(last), {}
    for name, word in zip(pieces[1:-2:2], pieces[2:-1:2]):
        found = text.find(word, at, end)
        if found < 0:
            return None
        values[name] = text[at:found]
        at = found + len(word)
    values[pieces[-2]] = text[at:end]
    return values
