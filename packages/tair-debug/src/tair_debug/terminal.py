"""What people read: lines and tables for the terminal and for a notebook; nothing in a text steers either."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
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
_INSTALLED: Final = re.compile(r"^[^:]*\b(?:site|dist)-packages/")
_PLAIN: Final = '<pre style="white-space: pre; overflow-x: auto; line-height: 1.3">{code}</pre>'


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of an answer is shown.

    Attributes:
        quiet: Only the verdict.
        every: Also the rows that need no attention.
        sources: Who says so.
        commands: Whether options of the command line are named; an object in a program has none.
    """

    quiet: bool = False
    every: bool = False
    sources: bool = False
    commands: bool = True


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

    # force_jupyter: in a kernel a console shows by itself what is printed to it, and the answer would be there twice
    out = Console(record=True, file=io.StringIO(), width=_WIDTH, highlight=False, emoji=False, force_jupyter=False)
    put(answer.parts(Detail(commands=False)), out)
    return out


def console(*, errors: bool = False) -> Console:
    """Where people read."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise

    made = Ours(stderr=errors, highlight=False, emoji=False, force_jupyter=False)
    if not made.is_terminal and not os.environ.get("COLUMNS"):
        made.width = _WIDTH
    return made


def put(parts: Iterable[Part], out: Console) -> None:
    """Print the parts of an answer: lines as long as they are, tables as wide as the terminal.

    A table whose words would be broken loses the space around its cells; if that is not enough, it is printed as blocks
    of lines, one for each row.
    """
    from rich.text import Text

    for part in parts:
        if isinstance(part, Text):
            out.print(part, soft_wrap=True)
            continue
        for padding in (part.padding, 0):
            part.padding = padding
            if _fitted(part, out):
                out.print(part)
                break
        else:
            put(_blocks(part), out)


def _fitted(made: Table, out: Console) -> bool:
    """Give each column of a table at least the width of its longest word; false where the terminal is too narrow."""
    from rich.cells import cell_len

    if out.width >= _WIDTH:
        return True
    widths = []
    for column in made.columns:
        texts = [str(cell) for cell in (column.header, *column.cells)]
        least, most = (max(map(cell_len, [p for t in texts for p in t.split(by)]), default=1) for by in (None, "\n"))
        widths.append((most - least, least, column))
    spare = out.width - len(widths) * (1 + sum(made.padding[1::2])) - 1 - sum(least for _, least, _ in widths)
    if spare < 0:
        return False
    for at, (more, least, column) in enumerate(sorted(widths, key=lambda w: w[0])):  # who wants little is served first
        column.width = least + min(more, spare // (len(widths) - at))
        spare -= column.width - least
    return True


def _blocks(whole: Table) -> Iterator[Text]:
    """The rows of a table below each other, a line for each cell that is not empty."""
    from rich.text import Text

    for title in (whole.title, whole.caption):
        if title:
            yield Text.assemble(title)
    columns = [(str(column.header), list(column.cells)) for column in whole.columns]
    for row in zip(*(cells for _, cells in columns)):
        for (name, _), cell in zip(columns, row):
            for text in (line for line in cell.split() if line):
                yield Text.assemble((f"{name}: ", "bold"), text)
        yield Text()


def reason(text: str) -> str:
    """Why a call is refused, in the reader's language."""
    return messages.said(REFUSED, text)


def place(source: str) -> str:
    """A line of a program, ``/home/me/net/model.py:12 in forward``, as people see it: ``net/model.py:12 in forward``.

    Files in the working folder are named from there, those of installed packages as they are imported.
    """
    with contextlib.suppress(OSError):  # somebody may have removed the working folder
        here = os.path.join(os.getcwd(), "")
        source = source.removeprefix(here) if len(here) > 1 else source
    return _INSTALLED.sub("", source)


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
