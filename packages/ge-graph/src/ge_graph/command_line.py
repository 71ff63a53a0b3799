"""The parser of commands that need nothing but Python's own library; their help is in the reader's language."""

from __future__ import annotations

import argparse
import re
import sys
import unicodedata
from typing import Any, Final, NoReturn

from ge_graph import messages

_TEXTS: Final = "tair"  # of the commands, in the table of translations
_HEADINGS: Final = {"options": "选项", "positional arguments": "参数"}  # what argparse itself says
_USAGE: Final = "用法："
_FAULT: Final = "{prog}: 错误：{said}\n"
_WRONG: Final = (  # as argparse says it
    (r"unrecognized arguments: (.*)", "不认识的参数：{}"),
    (r"the following arguments are required: (.*)", "缺少必需的参数：{}"),
    (r"argument (.*?): expected one argument", "参数 {} 需要一个值"),
    (r"argument (.*?): invalid \w+ value: (.*)", "参数 {} 的值 {} 无效"),
    (r"argument (.*?): ignored explicit argument (.*)", "参数 {} 不接受值 {}"),
    (r"ambiguous option: (.*) could match (.*)", "选项 {} 不唯一，可能是 {}"),
)


def told(text: str) -> str:
    """A text of the commands in the reader's language; one that is not ours, such as a name, as it is."""
    return messages.said(_TEXTS, text)


class CommandParser(argparse.ArgumentParser):
    """``argparse``'s parser, with descriptions and help as ``messages`` has them.

    Args:
        prog: Name of the command.
        description: What it does.
        **more: As ``argparse.ArgumentParser`` has them; ``epilog`` is translated too.
    """

    def __init__(self, prog: str, *, description: str, epilog: str | None = None, **more: Any) -> None:
        super().__init__(
            prog,
            description=told(description),
            epilog=epilog and told(epilog),
            add_help=False,
            formatter_class=argparse.HelpFormatter if messages.language() == "en" else _Formatter,
            **more,
        )
        self.add_argument("-h", "--help", action="help", help="show this help and end")

    def add_argument(self, *names: Any, **how: Any) -> argparse.Action:
        """As ``argparse`` has it."""
        if isinstance(how.get("help"), str):
            how["help"] = told(how["help"])
        return super().add_argument(*names, **how)

    def error(self, message: str) -> NoReturn:
        """As ``argparse`` has it: usage and fault on standard error, and exit code 2."""
        if messages.language() == "en":
            super().error(message)
        self.print_usage(sys.stderr)
        found = ((re.fullmatch(said, message, re.DOTALL), chinese) for said, chinese in _WRONG)
        text = next((chinese.format(*match.groups()) for match, chinese in found if match), message)
        self.exit(2, _FAULT.format(prog=self.prog, said=text))


class _Formatter(argparse.HelpFormatter):
    """Words of argparse translated; cells counted as a terminal shows them, where a Chinese character takes two."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, _USAGE if prefix is None else prefix)

    def start_section(self, heading: str | None) -> None:
        super().start_section(_HEADINGS.get(heading or "", heading))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _lines(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in _lines(text, width - len(indent)))


def _lines(text: str, width: int) -> list[str]:
    """A text in lines of so many cells, broken at blanks and between Chinese characters."""
    lines, line, used = [""], "", 0
    pieces: list[str] = []
    for letter in " ".join(text.split()):
        wide = unicodedata.east_asian_width(letter) in "WF"
        if not pieces or wide or letter == " " or pieces[-1] == " " or _cells(pieces[-1][-1:]) == 2:
            pieces.append(letter)
        else:
            pieces[-1] += letter
    for piece in pieces:
        if used + _cells(piece) > width and line:
            lines[-1], line, used = line.rstrip(), "", 0
            lines.append("")
            piece = piece.lstrip()
        line, used = line + piece, used + _cells(piece)
    lines[-1] = line
    return lines


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
