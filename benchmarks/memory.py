"""Peak of live tensor memory during one call, compiled against eager, from torch's own allocation events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import torchair
from benchmarks.rows import Row, at_most
from tools import models

GROUP = "memory"


def peak_bytes(call: Callable[[], Any]) -> int:
    """Highest sum of allocations minus releases inside the call."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    live = peak = 0
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def measure() -> Iterator[Row]:
    for name in ("llama", "bert", "resnet50", "gpt2", "vit"):
        case = models.ZOO[name]()
        torch._dynamo.reset()
        compiled = torch.compile(case.model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
        with torch.no_grad():
            ours = peak_bytes(lambda c=compiled, i=case.inputs: c(*i))
            eager = peak_bytes(lambda m=case.model, i=case.inputs: m(*i))
        yield at_most(
            GROUP, f"{name}: peak of live tensors in a call", ours / 2**20, 1.1, unit="MB", peer=eager / 2**20
        )
