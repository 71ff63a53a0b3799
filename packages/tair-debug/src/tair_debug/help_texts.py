"""The help of commands in the reader's language, with the words that typer adds, in lines as wide as the terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import typer

from ge_graph import escape
from ge_graph.command_line import told

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
_WRONG_USAGE: Final[Any] = typer.BadParameter.__mro__[1]  # of any kind; typer has no name for it
_FAULTS: Final = (  # of the command line, as typer says them
    (r"No such option: (\S+)(?: Did you mean (.*)\?)?", "没有选项 {0}"),
    (r"No such option: (\S+) \(Possible options: (.*)\)", "没有选项 {0}；可能是 {1}"),
    (r"No such command '(.*?)'\.(?: Did you mean (.*)\?)?", "没有命令 {0}"),
    (r"Missing (?:argument|option) '(.*)'\.(?: .*)?", "缺少 {0}"),
    (r"Missing parameter: (.*)", "缺少 {0}"),
    (r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", "多余的参数：{0}"),
    (r"Option '(.*)' does not take a value\.", "选项 {0} 不接受值"),
    (r"Option '(.*)' requires (?:an argument|\d+ arguments)\.", "选项 {0} 需要一个值"),
    (r"Invalid value for '(.*?)': '(.*)' is not a valid .*", "{0} 的值 {1} 无效"),
    (r"Invalid value for '(.*?)': (.*) is not in the range (.*)\.", "{0} 的值 {1} 不在范围 {2} 内"),
    (r"Invalid value for (.*?): Input should be greater than or equal to (\S+)", "{0} 不能小于 {1}"),
    (r"Invalid value for (.*?): Input should be a valid .*", "{0} 的值无效"),
    (r"Invalid value for (.*?): (.*)", "{0}：{1}"),
    (r"Invalid value: (.*)", "{0}"),
)


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


def translated(command: Any) -> Any:
    """A command of typer, its options and its commands with their help in the reader's language."""
    command.context_class = _Context
    command.help = _paragraphs(command.help)
    command.short_help, command.epilog = _one(command.short_help), _one(command.epilog)
    for option in command.params:
        if getattr(option, "help", None):
            option.help = _one(option.help)
    for inner in getattr(command, "commands", {}).values():
        translated(inner)
    return command


def carry_out(command: Any, prog_name: str) -> None:
    """Run a command that was translated; wrong usage is told in the reader's language. Ends the process."""
    try:
        code = command(prog_name=prog_name, standalone_mode=False)
    except typer.Abort:
        raise SystemExit(1) from None
    except _WRONG_USAGE as error:
        context = error.ctx
        lines = [] if context is None else [context.get_usage(), f"{context.command_path} -h 显示帮助", ""]
        sys.stderr.write("\n".join([*lines, f"错误：{escape.block(_fault(error.format_message()))}", ""]))
        raise SystemExit(error.exit_code) from None
    raise SystemExit(code or 0)


def _fault(text: str) -> str:
    found = ((re.fullmatch(said, text, re.DOTALL), chinese) for said, chinese in _FAULTS)
    return next((chinese.format(*match.groups()) for match, chinese in found if match), text)


def _one(text: str | None) -> str | None:
    return text and _OF_TYPER.get(text, told(text))


def _paragraphs(text: str | None) -> str | None:
    return text and "\n\n".join(told(" ".join(part.split())) for part in text.split("\n\n"))
