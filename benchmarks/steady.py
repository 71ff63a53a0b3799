"""Steady state: compiled against eager wall time, on the demo's models and on tiny shapes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import torchair
from benchmarks.rows import Row, at_most, medians
from tools import models

GROUP = "steady"


def _ratio(what: str, model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], limit: float, **options: object) -> Row:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, **options)
    with torch.no_grad():
        ours, eager = medians(lambda: compiled(*inputs), lambda: model(*inputs), repeats=15, warm=3)
    return at_most(GROUP, what, 1e3 * ours, limit, unit="ms", peer=1e3 * eager)


def _decode() -> Row:
    decoder, prompt = models.llama_decoder()
    torch._dynamo.reset()
    compiled = torch.compile(decoder, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=True)
    with torch.no_grad():
        logits, *cache = decoder(prompt)
        token = logits.argmax(-1, keepdim=True)
        ours, eager = medians(lambda: compiled(token, *cache), lambda: decoder(token, *cache), repeats=15, warm=3)
    return at_most(GROUP, "Llama decode step, dynamic=True", 1e3 * ours, 1.0, unit="ms", peer=1e3 * eager)


def _training() -> Row:
    case = models.resnet50()
    model = case.model.train()
    inputs = case.resize(2)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)

    def step(call: object) -> None:
        model.zero_grad()
        call(*inputs)[0].square().mean().backward()

    ours, eager = medians(lambda: step(compiled), lambda: step(model), repeats=5, warm=1)
    return at_most(GROUP, "ResNet-50 forward and backward", 1e3 * ours, 1.0, unit="ms", peer=1e3 * eager)


class TinyMlp(torch.nn.Module):
    """Overhead only: five operators on a few numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.softmax(self.second(torch.relu(self.first(x))), -1),)


def measure() -> Iterator[Row]:
    sentences, (pitch, _) = models.sentence_encoder(), models.pitch_network()
    yield _ratio("MiniLM, real weights", sentences.model, sentences.inputs, 1.0, dynamic=True)
    yield _ratio("CREPE pitch CNN, real weights", pitch.model, pitch.inputs, 1.0, dynamic=False)
    for name in ("llama", "bert", "resnet50", "gpt2", "vit"):
        case = models.ZOO[name]()
        yield _ratio(f"{name}", case.model, case.inputs, 1.0, dynamic=False)
    yield _decode()
    yield _training()
    yield _ratio("MLP, batch 1, 8 features", TinyMlp().eval(), (torch.randn(1, 8),), 1.1, dynamic=False)
    for name in ("llama", "bert", "gpt2"):
        case = models.ZOO[name]("tiny")
        yield _ratio(f"{name}, tiny shapes", case.model, case.inputs, 1.1, dynamic=False)
