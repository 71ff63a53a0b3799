"""``make fuzz``: random programs for a while; what differs is shrunk and written to a folder."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from labs.fuzz.compare import shrink
from labs.fuzz.many import CHUNK, WHOLE_WAY, Judged, chunks, drawn, judge, prepare
from labs.fuzz.program import Program

_TELL: Final = 60.0  # seconds between two lines on the way


def _show(program: Program, kind: str, given: argparse.Namespace) -> None:
    """Make it small, write it and print it."""
    still = partial(judge, fast=given.fast)
    small = replace(shrink(program, kind, given.shrink, still), note=kind)
    again = still(small) or still(program)
    given.folder.mkdir(parents=True, exist_ok=True)
    text = small.text()
    path = given.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    path.write_text(text)
    says = again.text if again is not None else "it differs no more when it is judged alone"
    print(f"--- program {program.seed}: {kind}\n{says}\n{small.module().code}{path}", flush=True)
    for one in (*small.inputs, *small.steps, small.returned, small.dynamic, small.mode):
        print("   ", one, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run; returns 1 if something differed."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--count", type=int, default=None, help="how many programs at most")
    parser.add_argument("--seed", type=int, default=1, help="the first program; each next one has the next number (1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--steps", type=int, default=None, help="operators a program (5 to 40)")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for making one finding small (60)")
    parser.add_argument(
        "--fast",
        action="store_true",
        help="static sizes only, handed to our compiler as ATen graphs that are recorded from eager, several at once; "
        f"one of {WHOLE_WAY} goes through AOTAutograd",
    )
    parser.add_argument("--folder", type=Path, default=Path("artefacts/fuzz"), help="where findings go")
    given = parser.parse_args(argv)
    prepare()
    size, stop = (CHUNK if given.fast else 4), None if given.count is None else given.seed + given.count
    firsts = itertools.count(given.seed, size) if stop is None else range(given.seed, stop, size)
    seeds = (range(first, first + size if stop is None else min(first + size, stop)) for first in firsts)
    start, every = time.monotonic(), Judged()
    told = start
    for judged in chunks(iter(seeds), given.seconds, given.jobs, given.fast, given.steps):
        new = judged.found.keys() - every.found.keys()
        every.add(judged)
        for kind in sorted(new):
            print(f"program {judged.seeds[kind][0]}: {kind}", flush=True)
        if time.monotonic() - told > _TELL:
            told = time.monotonic()
            print(f"{every.programs} programs up to {told - start:.0f} s", flush=True)
    took = time.monotonic() - start
    differ, expected = sum(every.found.values()), sum(every.refused.values())
    print(
        f"{every.programs} programs of {every.steps} operators in {took:.0f} s, {every.programs / took:.1f} a second "
        f"and {every.programs / max(every.seconds, 1e-9):.1f} a second of processor time; "
        f"{differ} differ in {len(every.found)} kinds, {expected} are refused as expected, "
        f"{every.left} more were left to a run without --fast"
    )
    for kind, count in every.found.most_common():
        print(f"{count:6} {kind}: {', '.join(map(str, every.seeds[kind]))}")
    for kind, count in every.refused.most_common():
        print(f"{count:6} refused: {kind}")
    sys.stdout.flush()
    for kind, found in every.seeds.items():
        _show(drawn(found[0], given.fast, given.steps), kind, given)
    return 1 if every.found else 0


if __name__ == "__main__":
    sys.exit(main())
