"""Patterns of distributed models on two, four and eight processes, with gloo on the host and hccl on the emulator.

python -m labs.rank_patterns                        all of them; takes half an hour on two cores
python -m labs.rank_patterns --meets gloo --ranks 2 pipeline pipeline_interleaved
python -m labs.rank_patterns --pages                write the table of docs/collectives.md from the rows; run nothing
python -m labs.rank_patterns --check                fail if rows or pages are out of date; run nothing

The cases are those of `tair_testing.rank_patterns`, which says what passes. What was run is written into
labs/rank_patterns.tsv. With hccl the emulator runs the torch_npu wheel that TAIR_TORCH_NPU names.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "labs" / "rank_patterns.tsv"
TITLES = ROOT / "labs" / "rank_patterns_titles.tsv"
PAGES = {"en": ROOT / "docs" / "collectives.md", "zh": ROOT / "docs" / "collectives.zh.md"}
FENCE = ("<!-- made by labs.rank_patterns -->\n", "<!-- end -->\n")
MODULE = "tair_testing.rank_patterns"
MEETS, RANKS = ("gloo", "hccl"), (2, 4, 8)
VARIANTS = ("dynamic", "bfloat16")
VARIED = {"gloo": 4, "hccl": 2}  # ranks up to which the variants run
TEXTS = {
    "en": (
        ("pattern", "gloo 2", "4", "8", "hccl 2", "4", "8", "graphs", "collectives in them"),
        {"dynamic": "symbolic sizes", "bfloat16": "bfloat16"},
        "refused",
        "failed",
        "What is refused, in the words of torch or torch_npu. What `aot_eager` takes is a gap here:",
    ),
    "zh": (
        ("方式", "gloo 2", "4", "8", "hccl 2", "4", "8", "图", "其中的集合通信"),
        {"dynamic": "尺寸是符号", "bfloat16": "bfloat16"},
        "拒绝",
        "失败",
        "被拒绝的，用 torch 或 torch_npu 自己的话。`aot_eager` 接受的是这里的缺口：",
    ),
}


@dataclass(frozen=True)
class Row:
    """What a case was on some processes.

    Attributes:
        case: Its name.
        meets: ``gloo`` or ``hccl``.
        ranks: Number of processes.
        result: ``equal`` to the unsharded model, ``refused``, or ``failed``.
        graphs: Compiled by the rank that compiled most.
        collectives: In them.
        said: Words of the refusal or of the failure.
    """

    case: str
    meets: str
    ranks: int
    result: str
    graphs: int
    collectives: int
    said: str

    @property
    def place(self) -> tuple[str, str, int]:
        """What there is one row of."""
        return self.case, self.meets, self.ranks


def rows() -> list[Row]:
    """The table."""
    found = []
    for line in ROWS.read_text(encoding="utf-8").splitlines()[1:]:
        case, meets, ranks, result, graphs, collectives, said = line.split("\t")
        found.append(Row(case, meets, int(ranks), result, int(graphs), int(collectives), said))
    return found


def titles() -> dict[str, dict[str, str]]:
    """What pages call a pattern: by language, by case without its variant."""
    lines = [line.split("\t") for line in TITLES.read_text(encoding="utf-8").splitlines()[1:]]
    return {"en": {case: en for case, en, _ in lines}, "zh": {case: zh for case, _, zh in lines}}


def base(case: str) -> tuple[str, str]:
    """Pattern and variant of a case; no variant is float32 with fixed sizes."""
    stem, _, last = case.rpartition("_")
    return (stem, last) if last in VARIANTS else (case, "")


def order() -> dict[tuple[str, str, int], int]:
    """Every row that there is to be, in the order of titles."""
    from tair_testing.rank_patterns import CASES, FEWEST, MOST

    patterns = list(titles()["en"])
    cases = sorted(CASES, key=lambda c: (patterns.index(base(c)[0]), base(c)[1] != "", base(c)[1] == "bfloat16"))
    places = [(c, m, n) for c in cases for m in MEETS for n in RANKS if FEWEST.get(c, 2) <= n <= MOST.get(c, 8)]
    # how types and sizes convert does not depend on the number of ranks, and many take their time
    due = [(c, m, n) for c, m, n in places if not base(c)[1] or n <= max(FEWEST.get(c, 2), VARIED[m])]
    return {place: at for at, place in enumerate(due)}


def write(table: Iterable[Row]) -> None:
    """The table and the part of the pages that is made from it."""
    places = order()
    kept = sorted((row for row in table if row.place in places), key=lambda row: places[row.place])
    names = [f.name for f in fields(Row)]
    lines = ["\t".join(names), *("\t".join(str(v) for v in asdict(row).values()) for row in kept)]
    ROWS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for language, page in PAGES.items():
        page.write_text(placed(page.read_text(encoding="utf-8"), text(kept, language)), encoding="utf-8")


def placed(page: str, made: str) -> str:
    """A page with another table.

    Raises:
        ValueError: If it has no place for it.
    """
    before, opens, rest = page.partition(FENCE[0])
    _, closes, after = rest.partition(FENCE[1])
    if not opens or not closes:
        raise ValueError("the page has no place for the table")
    return before + FENCE[0] + made + FENCE[1] + after


def text(table: Sequence[Row], language: str) -> str:
    """The part of the page."""
    heads, variants, refused, failed, lead = TEXTS[language]
    named, by_place = titles()[language], {row.place: row for row in table}
    words = list(dict.fromkeys(row.said for row in table if row.result != "equal"))
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    cases = list(dict.fromkeys(row.case for row in table))
    for case in cases:
        pattern, variant = base(case)
        first = "…" if pattern in cases else f"{named[pattern]}:"
        cells = [f"{first} {variants[variant]}" if variant else named[pattern]]
        for meets in MEETS:
            for ranks in RANKS:
                row = by_place.get((case, meets, ranks))
                note = "" if row is None or row.result == "equal" else f" ({words.index(row.said) + 1})"
                shown = {"equal": "=", "refused": refused, "failed": failed}
                cells.append("–" if row is None else shown[row.result] + note)
        equal = [row for row in table if row.case == case and row.result == "equal"]
        for numbers in ({row.graphs for row in equal}, {row.collectives for row in equal}):
            few, most = min(numbers, default=0), max(numbers, default=0)
            cells.append("–" if not equal else str(few) if few == most else f"{few}–{most}")
        lines.append(f"| {' | '.join(cells)} |")
    if words:
        lines += ["", lead, "", *(f"{at}. `{said.replace('`', '')}`" for at, said in enumerate(words, 1))]
    return "\n".join(["", *lines, "", ""])


def problems(table: Sequence[Row]) -> list[str]:
    """What is wrong with the table and its pages."""
    from tair_testing.rank_patterns import CASES, REFUSED

    bad = [f"{case} has no title in {TITLES.name}" for case in CASES if base(case)[0] not in titles()["en"]]
    if bad:
        return bad
    there, due = {row.place for row in table}, order()
    lacking = [place for place in due if place not in there]
    bad += [f"{'/'.join(map(str, place))} was not run" for place in lacking]
    bad += [f"{'/'.join(map(str, place))} is no case" for place in there if place not in due]
    for row in table:
        expected = "refused" if (row.meets, row.case) in REFUSED else "equal"
        if row.result != expected:
            bad.append(f"{'/'.join(map(str, row.place))} is {row.result}, not {expected}: {row.said}")
    for language, page in PAGES.items():
        said = page.read_text(encoding="utf-8")
        if placed(said, text(table, language)) != said:
            bad.append(f"{page.name} is out of date")
    return bad


def run(meets: str, ranks: int, cases: Sequence[str]) -> list[Row]:
    """Carry out cases on processes of this machine."""
    from tair_testing.ranks import processes

    found, due = [], order()
    with processes(MODULE, ranks, meets) as made:
        for case in cases:
            if (case, meets, ranks) not in due:
                continue
            answers, errors = made.run(case)
            if any(errors):
                said = next(filter(None, errors)).strip().splitlines()[-1]
                print("\n".join(f"rank {r}: {e}" for r, e in enumerate(errors) if e), file=sys.stderr)
                row = Row(case, meets, ranks, "failed", 0, 0, re.sub(r"[\t|]", " ", said)[:300])
            else:
                said = answers[0]["said"]
                most = max(answers, key=lambda a: (a["graphs"], a["collectives"]))
                result = "refused" if said else "equal"
                row = Row(case, meets, ranks, result, most["graphs"], most["collectives"], said)
            print(*asdict(row).values(), flush=True)
            found.append(row)
            with ROWS.open() as held:  # another run may write other rows
                fcntl.flock(held, fcntl.LOCK_EX)
                write([*(r for r in rows() if r.place != row.place), row])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of cases; all if none is given")
    parser.add_argument("--meets", choices=MEETS, action="append", help="by what; both if not given")
    parser.add_argument("--ranks", type=int, choices=RANKS, action="append", help="how many; 2, 4 and 8 if not given")
    parser.add_argument("--check", action="store_true", help="fail if rows or pages are out of date; run nothing")
    parser.add_argument("--pages", action="store_true", help="write the pages from the rows; run nothing")
    options = parser.parse_args()
    if options.pages:
        write(rows())
        return
    if options.check:
        bad = problems(rows())
        sys.exit("\n".join(bad) if bad else 0)
    places = order()
    cases = options.cases or list(dict.fromkeys(case for case, _, _ in places))
    unknown = sorted(set(cases) - {case for case, _, _ in places})
    if unknown:
        sys.exit(f"rank_patterns: no case {', '.join(unknown)}")
    failed = []
    for meets in options.meets or MEETS:
        if meets == "hccl" and "ASCEND_HOME_PATH" not in os.environ:
            chosen = [word for n in options.ranks or RANKS for word in ("--ranks", str(n))]
            line = ["-m", "ge_emulator", "-m", "labs.rank_patterns", "--meets", "hccl", *chosen, *options.cases]
            if subprocess.run([sys.executable, *line], cwd=ROOT).returncode:
                failed.append("hccl")
            continue
        for ranks in options.ranks or RANKS:
            failed += [f"{'/'.join(map(str, r.place))}" for r in run(meets, ranks, cases) if r.result == "failed"]
    if failed:
        sys.exit(f"rank_patterns: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
