"""Chinese twins of pages that are generated in English: line by line and cell by cell, from the rows of ``chinese.tsv``.

A text without a row is an error, so no page is half translated. ``{}`` in a row stands for any text, which is
translated in turn where a row fits it. ``--check`` fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
DOCS: Final = HERE.parent.parent / "docs"
# page -> columns that are the same in both languages: names, numbers, and reasons, which are the texts of errors
PAGES: Final = {
    "options.md": (0, 2, 5),
    "coverage.md": (0, 1, 2, 3, 4),
    "graphs.md": (0, 2, 3, 4, 5, 6, 7),
    "chips.md": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13),
}
_CELLS: Final = re.compile(r"(?<!\\) \| ")
_NO_WORDS: Final = re.compile(r"`[^`]*`|'[^']*'|None|True|False")


@functools.cache
def rows() -> tuple[tuple[re.Pattern[str], str], ...]:
    """What matches an English text, and the Chinese one; rows without a placeholder come first."""
    lines = [line.split("\t") for line in (HERE / "chinese.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    lines.sort(key=lambda row: row[0].count("{}"))
    return tuple((re.compile("(.+?)".join(map(re.escape, english.split("{}")))), zh) for english, zh in lines)


def translate(text: str) -> str | None:
    """The Chinese text, the text itself where it holds no word, None where no row fits."""
    for pattern, chinese in rows():
        match = pattern.fullmatch(text)
        if match is not None:
            parts = chinese.split("{}")
            inner = [translate(group) or group for group in match.groups()]
            return "".join(p + g for p, g in zip(parts, [*inner, ""]))
    return None if re.search(r"[A-Za-z]{2}", _NO_WORDS.sub("", text)) else text


def page(name: str, english: str) -> str:
    """The twin of a page.

    Raises:
        ValueError: Texts have no row; all are named.
    """
    done, missing, keep = [], [], PAGES[name]

    def of(text: str) -> str:
        chinese = translate(text)
        if chinese is None:
            missing.append(text)
        return chinese or ""

    for part in english.rstrip("\n").split("\n\n"):
        lines = part.split("\n")
        if part.startswith("|"):
            head, rule, *body = lines
            cells = [_CELLS.split(f" {line.strip('|')} ") for line in body]
            made = [[c if i in keep else of(c.strip()) for i, c in enumerate(row)] for row in cells]
            names = [of(c.strip()) for c in head.strip("|").split("|")]
            done.append("\n".join([f"| {' | '.join(names)} |", rule, *(_row(r) for r in made)]))
        elif part.startswith("#"):
            done.append(f"{part.split()[0]} {of(part.split(maxsplit=1)[1])}")
        elif part.startswith("* "):
            done.append("\n".join(f"* {of(line[2:])}" for line in lines))
        else:
            done.append(of(" ".join(lines)))
    if missing:
        raise ValueError(f"{name}: no row in chinese.tsv for\n" + "\n".join(dict.fromkeys(missing)))
    return "\n\n".join(done) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(c.strip() for c in cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    check = parser.parse_args().check
    stale = False
    for name in PAGES:
        target = DOCS / name.replace(".md", ".zh.md")
        try:
            text = page(name, (DOCS / name).read_text(encoding="utf-8"))
        except ValueError as error:
            sys.exit(str(error))
        if not check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"{target.name} is out of date; run `make regen`", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
