"""Many random programs, in several processes."""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Final

import torch

from labs.fuzz.compare import Difference, check, doubtful, faithful, handed_over, recorded
from labs.fuzz.program import Program, draw
from labs.fuzz.record import UNRECORDED, NotRecorded

WHOLE_WAY: Final = 500
"""Of so many fast programs one goes through AOTAutograd, with every operator and with inputs that share memory."""

TOGETHER: Final = 20
"""Fast programs of one mode that are compiled as one graph. Of more, more would be compiled again for a refused one."""

CHUNK: Final = 160
"""Fast programs that a process judges at once: so many that those of each mode fill a graph."""


@dataclass(slots=True)
class Judged:
    """What became of programs.

    Attributes:
        programs: How many were judged.
        steps: How many operators they had.
        left: How many more were not judged: they cannot be recorded, and the whole way is for a part only.
        found: Kind and number of programs that differ.
        refused: Row of ``REFUSED`` and number of programs.
        seeds: First programs of each kind.
        seconds: Processor time.
    """

    programs: int = 0
    steps: int = 0
    left: int = 0
    found: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    seeds: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, other: Judged) -> None:
        """The other's programs are these, too."""
        self.programs += other.programs
        self.steps += other.steps
        self.left += other.left
        self.found += other.found
        self.refused += other.refused
        self.seconds += other.seconds
        for kind, seeds in other.seeds.items():
            self.seeds[kind] = [*self.seeds.get(kind, []), *seeds][:5]


def drawn(seed: int, fast: bool, steps: int | None) -> Program:
    """The program of a seed.

    Args:
        fast: Whether its sizes are static, and its operators but of one in ``WHOLE_WAY`` those that can be recorded.
        steps: See ``draw``.
    """
    if not fast:
        return draw(seed, steps)
    if seed % WHOLE_WAY == 0:
        return replace(draw(seed, steps), dynamic=False)
    return replace(draw(seed, steps, without=UNRECORDED, shared=False), dynamic=False)


def judge(program: Program, fast: bool) -> Difference | None:
    """See ``check``; a fast program is recorded where it can be."""
    if not fast:
        return check(program)
    if program.seed % WHOLE_WAY == 0:
        return check(program, way=handed_over)
    try:
        finding = check(program, 2, recorded)
        if finding is None or (finding.got is not None and faithful(program)):
            return finding
    except NotRecorded:
        pass
    return check(program, way=handed_over)


def prepare() -> None:
    """Make this process one for programs: without warnings, those of eager too, and with one thread."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # graphs are garbage soon, and looking for it took a tenth of the time


def _chunk(seeds: range, fast: bool, steps: int | None) -> Judged:
    """Judge programs in this process."""
    judged, start = Judged(), time.process_time()
    programs = [drawn(seed, fast, steps) for seed in seeds]
    judged.programs, judged.steps = len(programs), sum(len(p.steps) for p in programs)
    if fast:
        alone = [p for p in programs if p.seed % WHOLE_WAY == 0]
        others = sorted((p for p in programs if p.seed % WHOLE_WAY), key=lambda p: p.mode)
        for first in range(0, len(others), TOGETHER):
            doubts, unrecorded = doubtful(others[first : first + TOGETHER])
            alone += doubts
            judged.left += len(unrecorded)
        programs = sorted(alone, key=lambda p: p.seed)
        judged.programs -= judged.left
    for program in programs:
        finding = judge(program, fast)
        if finding is not None and finding.expected:
            judged.refused[finding.expected] += 1
        elif finding is not None:
            judged.found[finding.kind] += 1
            judged.seeds.setdefault(finding.kind, []).append(program.seed)
    judged.seconds = time.process_time() - start
    return judged


def chunks(seeds: Iterator[range], seconds: float, jobs: int, fast: bool, steps: int | None) -> Iterator[Judged]:
    """Programs judged in several processes, until the time is over.

    Args:
        seeds: Of the programs that one process judges at once.
        seconds: After so many none are begun.
        jobs: Processes; one is this one.
        fast: See ``drawn``.
        steps: See ``draw``.

    Errors: SystemExit if a process dies; it names the programs that it may have died of.
    """
    end = time.monotonic() + seconds
    if jobs == 1:
        for some in seeds:
            if time.monotonic() > end:
                return
            yield _chunk(some, fast, steps)
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), prepare)
    running: dict[Future[Judged], range] = {}
    with pool:
        while True:
            while len(running) < jobs and time.monotonic() < end and (more := next(seeds, None)) is not None:
                running[pool.submit(_chunk, more, fast, steps)] = more
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            try:
                for future in done:
                    yield future.result()
                    del running[future]
            except BrokenProcessPool:
                raise SystemExit(f"a process died of a program among {[str(r) for r in running.values()]}") from None
