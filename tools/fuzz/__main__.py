"""``make fuzz``: random programs for a while; what differs is shrunk and written to a folder."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from tools.fuzz.compare import check, compiled, handed_over, shrink
from tools.fuzz.program import draw


def main(argv: list[str] | None = None) -> int:
    """Run; returns 1 if something differed."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--seed", type=int, default=1, help="the first program; each next one has the next number (1)")
    parser.add_argument("--steps", type=int, default=None, help="operators a program (5 to 40)")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for making one finding small (60)")
    parser.add_argument(
        "--fast", action="store_true",
        help="static sizes only, handed to the backend without dynamo: several times as many programs",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=Path("artefacts/fuzz"), help="where findings go")
    given = parser.parse_args(argv)
    end, seed, found = time.monotonic() + given.seconds, given.seed, Counter[str]()
    refused = Counter[str]()
    judge = partial(check, way=handed_over if given.fast else compiled)
    while time.monotonic() < end:
        program = draw(seed, given.steps)
        if given.fast:
            program = replace(program, dynamic=False)
        finding = judge(program)
        seed += 1
        if finding is None:
            continue
        if finding.expected:
            refused[finding.expected] += 1
            continue
        found[finding.kind] += 1
        if found[finding.kind] > 1:
            continue
        small = replace(shrink(program, finding.kind, given.shrink, judge), note=finding.kind)
        again = judge(small) or finding
        given.folder.mkdir(parents=True, exist_ok=True)
        text = small.text()
        path = given.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
        path.write_text(text)
        print(f"--- program {program.seed}: {finding.kind}\n{again.text}\n{small.module().code}{path}", flush=True)
        for one in (*small.inputs, *small.steps, small.returned, small.dynamic, small.mode):
            print("   ", one, flush=True)
    differ, expected = sum(found.values()), sum(refused.values())
    rate = (seed - given.seed) / max(given.seconds, 1e-9)
    print(
        f"{seed - given.seed} programs, {rate:.2f} a second, {differ} differ in {len(found)} kinds, "
        f"{expected} are refused as expected"
    )
    for kind, count in found.most_common():
        print(f"{count:6} {kind}")
    for kind, count in refused.most_common():
        print(f"{count:6} refused: {kind}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
