"""Steady state: compiled against eager wall time, on the demo's models, in training, and on tiny shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd

import torchair
from benchmarks import rows
from benchmarks.rows import Measurement, at_most, beside, medians, size
from ge_converters.base.torch_compat import boxed
from tools import models

GROUP = "steady"


def _ratio(
    what: str, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], limit: float, **options: object
) -> Measurement:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, **options)
    with torch.no_grad():
        ours, eager = medians(lambda: compiled(*inputs), lambda: model(*inputs), repeats=15, warm=3)
    return at_most(GROUP, what, 1e3 * ours, limit, unit="ms", peer=1e3 * eager)


def _decode(which: str, kind: str) -> Iterator[Measurement]:
    decoder, prompt = models.llama_decoder(kind)
    calls = [decode_loop(decoder, prompt)]
    for backend in ("npu", "aot_eager"):
        torch._dynamo.reset()
        calls.append(decode_loop(torch.compile(decoder, backend=backend, fullgraph=True, dynamic=True), prompt))
    with torch.no_grad():
        eager, ours, aot = (1e3 * s / TOKENS for s in medians(*calls, repeats=7, warm=2))
    yield at_most(GROUP, f"{which} decode loop, a token, dynamic=True", ours, 0.8, unit="ms", peer=eager)
    yield beside(GROUP, f"{which} decode loop, a token", ours, unit="ms", peer=aot, name="aot_eager")


TOKENS = 8


def decode_loop(decoder: Callable[..., Any], prompt: torch.Tensor) -> Callable[[], None]:
    """Some tokens, each from the last one and a cache that grows."""

    def run() -> None:
        token, cache = prompt, ()
        for _ in range(TOKENS):
            logits, *cache = decoder(token, *cache)
            token = logits.argmax(-1, keepdim=True)

    return run


def training_step(
    call: Callable[..., Any], model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad()
        call(*inputs)[0].square().mean().backward()

    return step


def _training(what: str, name: str) -> Measurement:
    case = models.ZOO[name](size())
    model = case.model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # the peer would draw other numbers, and drawing them is not what is compared
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    ours, eager = medians(
        training_step(compiled, model, case.inputs), training_step(model, model, case.inputs), repeats=5, warm=1
    )
    return at_most(GROUP, what, 1e3 * ours, 1.0, unit="ms", peer=1e3 * eager)


def _optimizer() -> Measurement:
    """AdamW's step over the parameters of a BERT."""

    def made(compiled: bool) -> Callable[[], Any]:
        parameters = [p.detach().clone().requires_grad_() for p in models.bert(size()).model.parameters()]
        for p in parameters:
            p.grad = torch.full_like(p, 1e-3)
        step = torch.optim.AdamW(parameters, lr=torch.tensor(1e-3), capturable=False).step
        torch._dynamo.reset()
        chosen: Callable[[], Any] = torch.compile(step, backend=torchair.get_npu_backend()) if compiled else step
        return chosen

    ours, eager = medians(made(True), made(False), repeats=5, warm=2)
    return at_most(GROUP, "AdamW step over BERT", 1e3 * ours, 1.0, unit="ms", peer=1e3 * eager)


class TinyMlp(torch.nn.Module):  # type: ignore[misc]
    """Overhead only: five operators on a few numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.softmax(self.second(torch.relu(self.first(x))), -1),)


def _by_hand(args: list[torch.Tensor]) -> list[torch.Tensor]:
    """``TinyMlp`` as somebody would write it who knows what the engine knows: the same calls of ATen, nothing else."""
    first, first_bias, x, second, second_bias = args
    args.clear()
    with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
        x = torch.nn.functional.linear(x, first, first_bias).relu_()
        return [torch._softmax(torch.nn.functional.linear(x, second, second_bias), -1, False)]


def _parts_of_a_call() -> Iterator[Measurement]:
    """Where the time of a call on a few numbers goes: dynamo and AOTAutograd around a function that computes nothing,
    around ``_by_hand``, and ours. All of one thread's processor time."""
    model, x, nothing = TinyMlp().eval(), torch.randn(1, 8), [torch.empty(1, 4)]

    def idle(args: list[torch.Tensor]) -> list[torch.Tensor]:
        args.clear()
        return nothing

    backends: list[Any] = [
        aot_autograd(fw_compiler=lambda gm, inputs, call=call: boxed(call)) for call in (idle, _by_hand)
    ]
    calls = []
    for backend in (*backends, "npu"):
        torch._dynamo.reset()
        calls.append(torch.compile(model, backend=backend, fullgraph=True, dynamic=False))
        with torch.no_grad():
            calls[-1](x)
    times = 20 if rows.small else 200

    def repeated(call: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(times):
                call(x)

        return run

    with torch.no_grad():
        seconds = medians(*map(repeated, (*calls, model)), repeats=25, warm=1, clock=time.process_time)
    empty, by_hand, ours, eager = (1e6 * s / times for s in seconds)
    what = "MLP, batch 1, 8 features"
    yield beside(GROUP, f"{what}: torch's wrappers around nothing", empty, unit="us", peer=eager, name="eager")
    yield beside(GROUP, f"{what}: a call", ours, unit="us", peer=by_hand, name="the same calls by hand")


def measure() -> Iterator[Measurement]:
    if not rows.small:
        sentences, (pitch, _) = models.sentence_encoder(), models.pitch_network()
        yield _ratio("MiniLM, real weights", sentences.model, sentences.inputs, 0.97, dynamic=True)
        yield _ratio("CREPE pitch CNN, real weights", pitch.model, pitch.inputs, 0.97, dynamic=False)
    for name in ("llama",) if rows.small else ("llama", "bert", "resnet50", "gpt2", "vit", "t5"):
        case = models.ZOO[name](size())
        yield _ratio(f"{name}", case.model, case.inputs, 0.97, dynamic=False)
    yield from _decode("Llama", size())  # reads 115 MB of weights a token, which takes eager as long
    if not rows.small:
        yield from _decode("small Llama", "tiny")
    yield _training("ResNet-50 training step", "resnet50")
    if not rows.small:
        yield _training("BERT training step", "bert")
    yield _optimizer()
    yield _ratio("MLP, batch 1, 8 features", TinyMlp().eval(), (torch.randn(1, 8),), 1.1, dynamic=False)
    yield from _parts_of_a_call()
    for name in () if rows.small else ("llama", "bert", "gpt2"):
        case = models.ZOO[name]("tiny")
        yield _ratio(f"{name}, tiny shapes", case.model, case.inputs, 1.1, dynamic=False)
