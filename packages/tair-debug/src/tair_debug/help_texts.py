"""The help of commands in the reader's language, with the words that typer adds, in lines as wide as the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final

import typer

from tair_debug.terminal import told

# What typer itself says, by its own English.
_OF_TYPER: Final = {
    "Usage: ": "用法：",
    "Options": "选项",
    "Commands": "命令",
    "Arguments": "参数",
    "Show this message and exit.": "显示帮助并退出。",
    "Install completion for the current shell.": "为当前 shell 安装命令补全。",
    "Show completion for the current shell, to copy it or customize "
    "the installation.": "显示当前 shell 的命令补全脚本，用于复制或自行安装。",
}
_MARKS: Final = {"[required]": "[必需]", "[default: ": "[默认：", "required]": "必需]"}


class _Formatter(typer.Context.formatter_class):  # type: ignore[misc, valid-type]
    """Words of typer translated; cells counted as a terminal shows them, where a Chinese character takes two."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, _OF_TYPER["Usage: "] if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{_OF_TYPER.get(heading, heading)}：\n")

    def write_text(self, text: str) -> None:
        self._print([("", text)], 0)

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        rows = list(rows)
        widest = max((len(first) for first, _ in rows if len(first) <= col_max), default=col_max)
        self._print(rows, widest + col_spacing)

    def _print(self, rows: Sequence[tuple[str, str]], first: int) -> None:
        from rich.console import Console
        from rich.text import Text

        indent = " " * self.current_indent
        out = Console(file=io.StringIO(), width=max(self.width - self.current_indent - first, 20), color_system=None)
        for name, text in rows:
            text = _OF_TYPER.get(text, text)
            for english, chinese in _MARKS.items():
                text = text.replace(english, chinese)
            lines = [line.plain for line in Text(text).wrap(out, out.width)] or [""]
            if len(name) > first - 2 and name:
                self.write(f"{indent}{name}\n")
            else:
                self.write(f"{indent}{name:<{first}}{lines.pop(0)}".rstrip() + "\n")
            for line in lines:
                self.write(f"{indent}{'':<{first}}{line}".rstrip() + "\n")


class _Context(typer.Context):
    formatter_class = _Formatter


def translated(command: Any) -> Callable[..., Any]:
    """A command of typer, its options and its commands with their help in the reader's language."""
    command.context_class = _Context
    command.help = _paragraphs(command.help)
    command.short_help, command.epilog = _one(command.short_help), _one(command.epilog)
    for option in command.params:
        if getattr(option, "help", None):
            option.help = _one(option.help)
    for inner in getattr(command, "commands", {}).values():
        translated(inner)
    return command  # type: ignore[no-any-return]


def _one(text: str | None) -> str | None:
    return text and _OF_TYPER.get(text, told(text))


def _paragraphs(text: str | None) -> str | None:
    return text and "\n\n".join(told(" ".join(part.split())) for part in text.split("\n\n"))
