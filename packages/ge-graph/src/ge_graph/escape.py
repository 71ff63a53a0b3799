"""The one place where text of a graph, a file or a user becomes part of a program, a page, a table, a line or a path.

Each function makes a text harmless for one place where it will stand and keeps it readable. All take any ``str``, lone
surrogates and control characters included, and none fails.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from typing import Any, Final

_LIMIT: Final = 10_000
_FILE_NAME_BYTES: Final = 120

# What ends a line somewhere (Python, a terminal, a spreadsheet, a log reader) or changes how the rest is shown:
# controls, Unicode's line and paragraph separators, marks that turn the reading direction, surrogates, the byte mark.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_NOT_IN_FILE_NAME: Final = re.compile(r"[^\w.+-]", re.ASCII)
_FORMULA: Final = tuple("=+-@\t\r\n")
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def _code(match: re.Match[str]) -> str:
    point = ord(match[0])
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def literal(text: str) -> str:
    """A Python string literal of ASCII characters that evaluates to ``text``."""
    return ascii(str(text))


def line(text: str, limit: int = _LIMIT) -> str:
    """One printable line: for a comment in a program, a log record, a message, a cell of a terminal's table.

    Args:
        text: Any text; what does not print is shown as an escape.
        limit: Characters kept; more are counted at the end.
    """
    shown = _UNPRINTABLE.sub(_code, text[:limit])
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit} more characters)"


def octal(text: str) -> str:
    """What does not print as the octal bytes of its UTF-8, for a quoted text in protobuf's text form."""
    return _UNPRINTABLE.sub(lambda m: "".join(f"\\{b:03o}" for b in m[0].encode("utf-8", "surrogatepass")), text)


def block(text: str) -> str:
    """Several lines for a terminal or a text file: line feeds and tabs stay, everything else as in ``line``."""
    return "\n".join("\t".join(line(part, len(part)) for part in row.split("\t")) for row in text.split("\n"))


def markup(text: str) -> str:
    """Text that may stand in HTML or XML, between elements or in a quoted attribute."""
    return html.escape(block(text), quote=True)


def script(data: Any) -> str:
    """JSON of ASCII characters that may stand inside a script element, whatever its texts say."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def cell(text: str) -> str:
    """A CSV cell that no spreadsheet takes for a formula; numbers stay as they are, line feeds too."""
    shown = block(text)
    if shown.startswith(_FORMULA) and not _is_number(shown):
        return f"'{shown}"
    return shown


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is not None


def file_name(text: str, limit: int = _FILE_NAME_BYTES) -> str:
    """One name of a file or folder: no separator, no leading dot, ASCII, short; other texts give other names.

    A text that needs no change is kept. One that does gets a short digest of itself, so that two texts never meet in
    one file.

    Args:
        text: Any text.
        limit: Most characters of the name, at least 16.
    """
    base = _NOT_IN_FILE_NAME.sub("_", text)
    if base == text and len(text) <= limit and text[:1] not in ("", ".") and not _RESERVED.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{base.lstrip('.')[: limit - 9] or 'unnamed'}-{digest}"
