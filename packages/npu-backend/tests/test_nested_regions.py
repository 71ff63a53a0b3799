"""Equal regions (``torch.compiler.nested_compile_region``) become one GE graph that all their calls hold.

Values, gradients and writes are eager's; what is counted are calls of converters.
"""

from __future__ import annotations

import pytest
import torch

import torchair
from ge_converters.lowering.calls import Caller
from ge_graph import serde
from ge_graph.passes.base import walk
from ge_graph.verify import verify
from torchair.compiler.pipeline import Pipeline

if not hasattr(torch.compiler, "nested_compile_region"):
    pytest.skip("this torch has no regions", allow_module_level=True)

LAYERS = 24


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Region(Layer):
    @torch.compiler.nested_compile_region
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Counts(Layer):
    @torch.compiler.nested_compile_region
    def forward(self, x):
        self.seen.add_(x.mean())
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * self.seen


class Stack(torch.nn.Module):
    def __init__(self, kind, count=LAYERS):
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.ModuleList([kind() for _ in range(count)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def made(monkeypatch):
    """Calls of converters, and the graphs that were made."""
    found = {"calls": 0, "graphs": []}
    convert, to_ge = Caller.convert, Pipeline._to_ge

    def counted(self, *args, **kwargs):
        found["calls"] += 1
        return convert(self, *args, **kwargs)

    def kept(self, gm, **kwargs):
        lowered = to_ge(self, gm, **kwargs)
        found["graphs"].append(lowered.graph)
        return lowered

    monkeypatch.setattr(Caller, "convert", counted)
    monkeypatch.setattr(Pipeline, "_to_ge", kept)
    torch._dynamo.reset()
    return found


def regions(graph):
    return [n for n in graph.nodes if n.op == "PartitionedCall"]


def bodies(graph):
    return {id(inner) for node in regions(graph) for inner in node.subgraphs.values()}


def run(model, rows, *, dynamic=False, grad=False):
    """Results of the compiled model, and eager's; the model's buffers as well."""
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True)
    results = []
    for call in (compiled, model):
        found = []
        model.load_state_dict({k: v.clone() for k, v in model.start.items()})
        for count in rows:
            torch.manual_seed(count)
            x = torch.randn(count, 8, requires_grad=grad)
            if dynamic:  # dynamo itself cannot trace a region all of whose sizes are symbols
                torch._dynamo.mark_dynamic(x, 0)
            with torch.set_grad_enabled(grad):
                y = call(x)
            found += [y.detach()]
            if grad:
                model.zero_grad()
                y.square().sum().backward()
                found += [x.grad, *(p.grad.clone() for p in model.parameters())]
            found += [b.clone() for b in model.buffers()]
        results.append(found)
    return results


def stack(kind, count=LAYERS):
    model = Stack(kind, count)
    model.start = {k: v.clone() for k, v in model.state_dict().items()}
    return model


def equal(results):
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_twenty_four_layers_have_one_body(made):
    """A third of the calls of converters or less; in fact one layer's."""
    equal(run(stack(Layer), [5]))
    plain = made["calls"]
    torch._dynamo.reset()
    made.update(calls=0, graphs=[])
    equal(run(stack(Region), [5]))
    (graph,) = made["graphs"]
    assert len(regions(graph)) == LAYERS
    assert len(bodies(graph)) == 1
    assert made["calls"] * 3 <= plain
    assert made["calls"] <= plain / LAYERS + 1
    assert len(list(walk(graph))) == 2
    verify(graph)


def test_symbolic_sizes(made):
    equal(run(stack(Region, 4), [5, 3, 7], dynamic=True))
    (graph,) = made["graphs"]
    assert len(bodies(graph)) == 1


def test_gradients(made):
    equal(run(stack(Region, 4), [5], grad=True))
    assert len(made["graphs"]) == 2
    assert all(len(bodies(graph)) <= len(regions(graph)) / 4 for graph in made["graphs"])


def test_writes(made):
    equal(run(stack(Counts, 4), [5, 5]))


def test_other_sizes_and_scopes_are_other_bodies(made):
    @torch.compiler.nested_compile_region
    def region(x):
        return (x * 2).sin()

    def fn(x, y):
        with torchair.scope.npu_stream_switch("side"):
            a = region(x)
        return a + region(x), region(y), region(y)

    call = torch.compile(fn, backend=torchair.get_npu_backend(), dynamic=False, fullgraph=True)
    x, y = torch.randn(2, 3), torch.randn(4)
    for got, want in zip(call(x, y), ((x * 2).sin() * 2, (y * 2).sin(), (y * 2).sin()), strict=True):
        torch.testing.assert_close(got, want)
    (graph,) = made["graphs"]
    inside = [dict(node.attrs) for node in regions(graph)]
    assert len(inside) == 4
    assert len(bodies(graph)) == 3
    for node in regions(graph):
        label = node.attr("_user_stream_label")
        assert all(
            n.attr("_user_stream_label") == label
            for g in node.subgraphs.values()
            for n in g.nodes
            if n.op not in ("Data", "Const")
        )


def test_a_file_has_a_graph_for_each_call(made):
    """GE lets a graph have one node around it, so on the wire each call has a copy."""
    run(stack(Region, 3), [5])
    (graph,) = made["graphs"]
    again = serde.from_bytes(serde.to_bytes(graph))
    assert len(bodies(again)) == len(regions(again)) == 3
    verify(again)
