"""Tables for the terminal; nothing in a text steers it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ge_graph import escape

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def shown(text: str, style: str = "") -> Text:
    """A text that is printed as it stands."""
    from rich.text import Text

    return Text(escape.block(text), style)


def table(columns: Iterable[str], rows: Iterable[Sequence[str | Text]], *, title: str = "", caption: str = "") -> Table:
    """A table whose cells fold; the column ``calls`` holds numbers."""
    from rich.table import Table

    made = Table(title=shown(title) if title else None, caption=caption or None)
    for name in columns:
        made.add_column(name, overflow="fold", justify="right" if name == "calls" else "left")
    for row in rows:
        made.add_row(*(shown(cell) if isinstance(cell, str) else cell for cell in row))
    return made
