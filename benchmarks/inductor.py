"""The embedded engine's program through torch's Inductor, `TAIR_CPU_PROGRAM=inductor`, against torch's own backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch

from benchmarks import rows
from benchmarks.rows import Measurement, at_most, medians, size
from benchmarks.steady import TOKENS, decode_loop, training_step
from tools import models

GROUP = "inductor"
_LIMIT = 1.05


def _compiled(model: Callable[..., Any], dynamic: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Ours and torch's; the two share no code that dynamo would keep, because their backends differ."""
    torch._dynamo.reset()
    ours = torch.compile(model, backend="npu", fullgraph=True, dynamic=dynamic)
    return ours, torch.compile(model, backend="inductor", fullgraph=True, dynamic=dynamic)


def _difference(got: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest number."""
    pairs = [(g.double(), e.double()) for g, e in zip(got, expected, strict=True) if e.is_floating_point()]
    return max(float((g - e).abs().max() / e.abs().max()) for g, e in pairs)


def _forward() -> Iterator[Measurement]:
    worst = 0.0
    for name in ("llama",) if rows.small else ("llama", "bert", "resnet50", "t5"):
        case = models.ZOO[name](size())
        ours, torchs = _compiled(case.model, False)
        with torch.no_grad():
            ours(*case.inputs)  # by the kernels, with checks
            worst = max(worst, _difference(ours(*case.inputs), case.model(*case.inputs)))
            a, b = medians(partial(ours, *case.inputs), partial(torchs, *case.inputs), repeats=15)
        yield at_most(GROUP, name, 1e3 * a, _LIMIT, unit="ms", peer=1e3 * b, name="inductor")
    yield at_most(GROUP, "largest difference from eager, of the largest number", worst, 1e-4, unit="")


def _decode() -> Measurement:
    decoder, prompt = models.llama_decoder(size())
    with torch.no_grad():
        a, b = (1e3 * s / TOKENS for s in medians(*(decode_loop(c, prompt) for c in _compiled(decoder, True)), warm=3))
    what = "Llama decode loop, a token, dynamic=True"
    return at_most(GROUP, what, a, _LIMIT, unit="ms", peer=b, name="inductor")


def _training() -> Measurement:
    case = models.ZOO["resnet50"](size())
    model = case.model.train()
    steps = [training_step(call, model, case.inputs) for call in _compiled(model, False)]
    ours, torchs = medians(*steps, repeats=15, warm=3)
    return at_most(GROUP, "ResNet-50 training step", 1e3 * ours, _LIMIT, unit="ms", peer=1e3 * torchs, name="inductor")


def measure() -> Iterator[Measurement]:
    with mock.patch.dict(os.environ, {"TAIR_CPU_PROGRAM": "inductor"}):
        yield from _forward()
        yield _decode()
        yield _training()
