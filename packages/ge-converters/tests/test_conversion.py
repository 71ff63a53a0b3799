"""The whole way from an ATen graph to bytes: what it costs, counted."""

import sys
from collections import Counter

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.base import provenance
from ge_converters.conversion import convert_graph
from ge_graph import serde


class Layer(torch.nn.Module):
    """Attention and a gated projection, as decoders have them."""

    def __init__(self, width=16):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = torch.nn.Linear(width, 2 * width, bias=False)
        self.down = torch.nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part(x).view(batch, length, 2, width // 2).transpose(1, 2) for part in self.parts[:3])
        weights = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1)
        x = x + self.parts[3]((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.silu(self.up(x)))


def layers(count):
    model = torch.nn.Sequential(*(Layer() for _ in range(count)))

    def call(parameters, x):
        return (torch.func.functional_call(model, parameters, (x,)),)

    return make_fx(call, tracing_mode="fake")(dict(model.named_parameters()), torch.ones(2, 8, 16))


def calls_of(gm):
    """Python calls of a conversion, warm, generators counted once an element."""
    counts = Counter()
    for _ in range(2):
        serde.to_bytes(convert_graph(gm).graph)
    sys.setprofile(lambda frame, event, arg: counts.update([event]))
    try:
        serde.to_bytes(convert_graph(gm).graph)
    finally:
        sys.setprofile(None)
    return counts["call"]


def nodes(gm):
    return sum(n.op == "call_function" for n in gm.graph.nodes)


@pytest.mark.slow
def test_python_calls_a_node_are_few_and_do_not_grow_with_the_graph():
    small, large = layers(4), layers(12)
    a_node = calls_of(small) / nodes(small)
    assert a_node <= 110  # 160 before what nodes share was made once and passes looked at their own operators only
    assert calls_of(large) / nodes(large) <= a_node  # what is made once a graph weighs less


def test_the_text_of_a_value_is_made_once(monkeypatch):
    gm = layers(2)
    made = Counter()
    kept = provenance.Texts._type

    def counting(texts, value):
        made[id(value)] += 1
        return kept(texts, value)

    monkeypatch.setattr(provenance.Texts, "_type", counting)
    serde.to_bytes(convert_graph(gm).graph)
    assert made
    assert max(made.values()) == 1


def test_an_origin_is_the_same_alone_and_in_its_graph():
    graph = convert_graph(layers(1)).graph
    origins = [n.provenance for n in graph.nodes if n.provenance is not None]
    for origin in origins:
        assert origin.texts() == (
            origin.fx_name,
            origin.fx_target,
            provenance.fx_code(origin._node),
            origin.module,
            origin.source,
            origin.code,
        )
