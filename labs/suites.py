"""What of torch's own suites passes with ``aot_eager`` and not with our backend: a line for each reason.

    python -m labs.suites           the page, from the strict tables that the suites' tests hold against what runs
    python -m labs.suites --rows    with every row

The databases of operators are checked by ``python -m labs.opinfo``, modules and optimizers by their tests;
``make torch-suites`` runs the suites and prints the page.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODULES: Final = Path(__file__).resolve().parent.parent / "tests" / "module_db.tsv"
_TOO: Final = "backend aot_eager fails too"  # rows that are no gap of ours
_NAMES: Final = 9  # of a line


@dataclass(frozen=True, slots=True)
class Gap:
    """A row of a strict table.

    Attributes:
        suite: The database.
        entry: Its entry.
        form: Type, or what else tells rows of one entry apart.
        reason: Why ours differs.
        says: Part of what the difference says, for rows of modules.
    """

    suite: str
    entry: str
    form: str
    reason: str
    says: str = ""


def module_gaps() -> list[Gap]:
    """Rows of the modules' table, those that torch hands no backend among them."""
    rows = [line.split("\t") for line in MODULES.read_text().splitlines()[1:]]
    return [Gap("module_db", entry, form, reason, says) for entry, form, says, reason in rows]


def operator_gaps() -> Iterator[Gap]:
    """Rows of the tables of operators."""
    from labs import opinfo

    suite_of = {opinfo.full_name(op): database for database in opinfo.DATABASES for op in opinfo.entries(database)}
    for (entry, form), reason in opinfo.read_expected().items():
        yield Gap(suite_of[entry], entry, form, reason)


def counts() -> dict[str, tuple[int, str]]:
    """How many rows each suite has, and what a row is."""
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    from labs import opinfo

    found = {d: (len(opinfo.all_checks(databases=(d,))), "entries by type") for d in opinfo.DATABASES}
    found["module_db"] = (sum(1 + i.train_and_eval_differ for i in module_db), "modules, training or not")
    found["optim_db"] = (len(optim_db), "optimizers")
    return found


def kind_of(reason: str) -> str:
    """What rows have in common that differ in operator, type and sizes."""
    text = re.sub(r"^\[GE\d+\] \S+: ", "", reason).removeprefix("refused: ")
    if match := re.match(r"GE operator \w+ (?:does not take|takes .* got) (\w+)", text):
        return f"a GE operator does not take {match[1]}, and no type that it takes holds every value of it"
    text = re.sub(r"\d+ by \d+", "n by m", re.sub(r"\[[^]]*'s\d+'[^]]*\] ?", "", text))
    return re.split(r"; (?:near|no GE op|compute|register|cast|use|it takes)", text)[0]


def page(gaps: list[Gap], *, rows: bool = False) -> str:
    """The text."""
    lines: list[str] = []
    for suite, (count, what) in counts().items():
        mine = [g for g in gaps if g.suite == suite]
        ours = [g for g in mine if not g.reason.startswith(_TOO)]
        lines.append(
            f"{suite}: {count} {what}, {len(ours)} pass with aot_eager and not with us, "
            f"{len(mine) - len(ours)} with neither"
        )
        kinds = defaultdict(list)
        for gap in ours:
            kinds[kind_of(gap.reason)].append(gap)
        for kind, found in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
            names = list(dict.fromkeys(g.entry for g in found))
            more = "" if len(names) <= _NAMES else f", and {len(names) - _NAMES} more"
            lines.append(f"  {len(found):3} {kind}: {', '.join(names[:_NAMES])}{more}")
            lines += [f"        {g.entry} {g.form}: {g.reason}" for g in found if rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="every row under its reason")
    given = parser.parse_args()
    print(page([*operator_gaps(), *module_gaps()], rows=given.rows))


if __name__ == "__main__":
    main()
