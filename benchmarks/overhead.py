"""What a call costs beside its operators: one addition behind 1, 30 and 300 inputs.

Dynamo's share alone, its backend "eager", is more than the target over eager; a row of its own shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import rows
from benchmarks.rows import Measurement, at_most, beside, medians

GROUP = "overhead"
FIXED_US = 15.0
INPUT_US = 0.060


class Joined(torch.nn.Module):  # type: ignore[misc]
    """One operator that reads every input."""

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        return parts[0] + 1 if len(parts) == 1 else torch.cat(parts)


def _many(call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call(*inputs)

    return run


def measure() -> Iterator[Measurement]:
    times = 50 if rows.small else 500
    for count in (1, 30, 300):
        model, inputs = Joined().eval(), tuple(torch.ones(2) for _ in range(count))
        made = {}
        for backend in ("npu", "eager", "aot_eager"):  # "eager" is dynamo alone: its guards and its bytecode
            torch._dynamo.reset()
            made[backend] = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
            with torch.no_grad():
                made[backend](*inputs)
        with torch.no_grad():
            calls = [_many(c, inputs, times) for c in (*made.values(), model)]
            seconds = medians(*calls, repeats=9, warm=1, clock=time.process_time)
        ours, dynamo, aot, plain = (1e6 * s / times for s in seconds)
        limit = FIXED_US + INPUT_US * count
        yield at_most(GROUP, f"{count} inputs: a call over eager's", ours - plain, limit, unit="us")
        # the part of that which no backend can change: dynamo's guards, frames and bytecode
        yield Measurement(GROUP, f"{count} inputs: dynamo's own over eager's", dynamo - plain, "us")
        yield at_most(GROUP, f"{count} inputs: a call over dynamo's own", ours - dynamo, limit, unit="us")
        yield beside(GROUP, f"{count} inputs: a call", ours, unit="us", peer=aot, name="aot_eager")
