"""What people read: lines and tables for the terminal and for a notebook; nothing in a text steers either."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ge_graph import escape, messages
from ge_graph.command_line import told

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    Part: TypeAlias = Text | Table

_WIDTH: Final = 160  # of a file, a pipe or a notebook, which have none of their own
_SILENCE: Final = 2.0  # seconds of work before a person is told what goes on
_TEXTS: Final = "tair"  # of the commands, in the table of translations
REFUSED: Final = "GE2001"
_PLAIN: Final = '<pre style="white-space: pre; overflow-x: auto; line-height: 1.3">{code}</pre>'


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of an answer is shown.

    Attributes:
        quiet: Only the verdict.
        every: Also the rows that need no attention.
        sources: Who says so.
    """

    quiet: bool = False
    every: bool = False
    sources: bool = False


class Answer:
    """What a command found: a verdict, and for people its parts in the order in which they matter."""

    @property
    def ok(self) -> bool:
        """The verdict."""
        raise NotImplementedError

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        """The verdict first, then what needs attention, then the rest."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """For programs; ``ok`` is the verdict."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """The rows, one dict each with the same keys."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``; pandas must be installed."""
        import pandas  # type: ignore[import-untyped]

        return pandas.DataFrame.from_records(self.records())

    def __str__(self) -> str:
        return _recorded(self).export_text().rstrip()

    def __repr__(self) -> str:  # what an interactive session shows
        return str(self)

    def _repr_html_(self) -> str:
        return _recorded(self).export_html(inline_styles=True, code_format=_PLAIN)


def _recorded(answer: Answer) -> Console:
    from rich.console import Console

    out = Console(record=True, file=io.StringIO(), width=_WIDTH, highlight=False, emoji=False)
    put(answer.parts(), out)
    return out


def console(*, errors: bool = False) -> Console:
    """Where people read."""
    from rich.console import Console

    made = Console(stderr=errors, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _WIDTH
    return made


def put(parts: Iterable[Part], out: Console) -> None:
    """Print the parts of an answer: lines as long as they are, tables as wide as the terminal."""
    from rich.text import Text

    for part in parts:
        out.print(part, soft_wrap=isinstance(part, Text))


def reason(text: str) -> str:
    """Why a call is refused, in the reader's language."""
    return messages.said(REFUSED, text)


def sentence(text: str, lead: str = "", style: str = "") -> Text:
    """A text for people, after a few words of ours in a colour."""
    from rich.text import Text

    return Text.assemble((escape.block(told(lead)), style), escape.block(told(text)))


def say(text: str, lead: str = "", style: str = "") -> None:
    """Print such a text."""
    put([sentence(text, lead, style)], console())


def answer(data: dict[str, Any]) -> None:
    """Where programs read."""
    sys.stdout.write(json.dumps(data, indent=1) + "\n")


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal what takes long, until it is done; a file or a pipe gets nothing."""
    out = console(errors=True)
    if not out.is_terminal:
        yield
        return
    status = out.status(f"{what} …")
    timer = threading.Timer(_SILENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def shown(text: str, style: str = "") -> Text:
    """A text that is printed as it stands, unless it is one of our words."""
    from rich.text import Text

    return Text(escape.block(messages.word(_TEXTS, text)), style)


def table(columns: Iterable[str], rows: Iterable[Sequence[str | Text]], *, title: str = "", caption: str = "") -> Table:
    """A table whose cells fold; the column ``calls`` holds numbers."""
    from rich.table import Table

    made = Table(title=shown(title) if title else None, caption=told(caption) or None)
    for name in columns:
        made.add_column(messages.word(_TEXTS, name), overflow="fold", justify="right" if name == "calls" else "left")
    for row in rows:
        made.add_row(*(shown(cell) if isinstance(cell, str) else cell for cell in row))
    return made
