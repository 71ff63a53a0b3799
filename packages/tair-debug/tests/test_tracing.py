"""Factories as people write them, without data: half types, the meta device, tied and loaded weights."""

import resource

import pytest
import torch

from tair_debug import ask, fx_summary
from tair_debug.models import load
from tair_debug.tracing import capture, to_ge

FACTORIES = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return self.head(self.words(x) * self.scale)

X = torch.tensor([[1, 2]])

def bfloat16():
    return Tied().bfloat16(), X

def half():
    return Tied().half(), X

def twice():
    return Tied().double().to(dtype=torch.float16), X

def on_meta():
    with torch.device("meta"):
        model, x = Tied(), torch.zeros(1, 2, dtype=torch.int64)
    return model.to(torch.bfloat16), x

def inner():
    model = Tied()
    model.words.half(), model.head.half()
    model.scale = model.scale.half()
    return model, X

def loaded():
    model = Tied()
    model.load_state_dict(Tied().state_dict())
    return model.bfloat16(), X

def from_file():
    model = Tied()
    model.load_state_dict(torch.load("weights.pt"))
    return model.bfloat16(), X

def assigned():
    with torch.device("meta"):
        model = Tied()
    model.load_state_dict({k: torch.zeros(v.shape) for k, v in model.state_dict().items()}, assign=True)
    model.head.weight = model.words.weight
    return model.bfloat16(), X

def frozen():
    return Tied().requires_grad_(False).bfloat16(), X

def seventy_billion():
    return nn.Sequential(*(nn.Linear(32768, 32768, bias=False) for _ in range(66))).bfloat16(), \\
        torch.empty(1, 32768, dtype=torch.bfloat16)

class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 127, (8, 4), dtype=torch.int8))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale[:, None])

def quantised():
    return Quantised().half(), torch.ones(2, 4, dtype=torch.float16)
"""
CUT = """
import torch
from torch import nn

def cut():
    model = nn.Linear(3, 4)
    nn.init.trunc_normal_(model.weight)
    nn.init.trunc_normal_(model.bias, std=0.02, a=-1, b=0.01)
    return model, torch.ones(2, 3)
"""
NAMES = ("bfloat16", "half", "twice", "on_meta", "inner", "loaded", "from_file", "assigned", "frozen")


@pytest.fixture
def made(tmp_path):
    """``made(name)``: the subject of a factory."""
    (tmp_path / "factories_of_test.py").write_text(FACTORIES)
    torch.save(
        {"words.weight": torch.ones(10, 4), "head.weight": torch.ones(10, 4), "scale": torch.ones(4)},
        tmp_path / "weights.pt",
    )
    return lambda name: load(f"factories_of_test.py:{name}")


@pytest.mark.parametrize("name", NAMES)
def test_a_factory_that_changes_types(made, name):
    """The types of the graph are those of eager; tied weights stay one."""
    subject = made(name)
    model = subject.model
    dtype = (
        torch.bfloat16 if name in ("bfloat16", "on_meta", "loaded", "from_file", "assigned", "frozen") else torch.half
    )
    assert {t.dtype for t in (*model.parameters(), *model.buffers())} == {dtype}
    assert model.head.weight is model.words.weight
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"cpu"}
    (graph,) = capture(subject)
    result = next(iter(reversed(graph.gm.graph.nodes))).args[0][0].meta["val"]
    assert (result.dtype, tuple(result.shape)) == (dtype, (1, 2, 10))
    assert all(r.good == r.calls for r in fx_summary.summarize(graph.gm))


def test_a_quantised_module(made):
    subject = made("quantised")
    assert {t.dtype for t in subject.model.buffers()} == {torch.int8}
    (graph,) = capture(subject)
    assert to_ge(graph.gm, "graph").nodes


def test_half_types_with_a_backward_pass(made):
    assert [g.phase for g in capture(made("bfloat16"), backward=True)] == ["forward", "backward"]


def test_seventy_billion_parameters(made):
    """Summarised, converted and checked in the memory of a small machine."""
    subject = made("seventy_billion")
    assert sum(p.numel() for p in subject.model.parameters()) > 70e9
    (graph,) = capture(subject)
    assert sum(r.calls for r in fx_summary.summarize(graph.gm)) >= 66
    assert to_ge(graph.gm, "graph").nodes
    (report,) = ask.check_of(subject, soc=["ascend910b"]).reports
    assert report.ok
    assert sum(report.counts().values()) >= 66
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8e6  # kilobytes


def test_parameters_of_a_cut_distribution(tmp_path):
    """Which draws until all values fit, and fake ones have none; afterwards torch draws as before."""
    (tmp_path / "cut_of_test.py").write_text(CUT)
    subject = load("cut_of_test.py:cut")
    (graph,) = capture(subject)
    assert [tuple(p.shape) for p in subject.model.parameters()] == [(4, 3), (4,)]
    assert graph.gm.graph.nodes
    drawn = torch.nn.init.trunc_normal_(torch.empty(1000))
    assert 0.5 < drawn.std() < 1
