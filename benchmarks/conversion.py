"""FX graph in, verified GE bytes out: milliseconds per FX node, growth with size, and what the graphs carry."""

from __future__ import annotations

import collections
import functools
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

import torchair
from benchmarks import rows
from benchmarks.capture import aot_graph, fx_nodes
from benchmarks.rows import Measurement, at_most, medians, size
from ge_converters.conversion import convert_graph
from ge_graph import Graph, serde
from ge_graph.collection import no_collection
from tools import models

GROUP = "conversion"


def convert(gm: object) -> tuple[Graph, bytes]:
    """The whole of our work on one graph."""
    with no_collection():  # as the pipeline does
        graph = convert_graph(gm).graph
        return graph, serde.to_bytes(graph)


def _ms_per_node(layers: int, *, dynamic: bool = False, repeats: int = 5) -> float:
    gm = aot_graph(models.llama(size(), layers), dynamic=dynamic)
    (seconds,) = medians(lambda: convert(gm), clock=time.process_time, repeats=repeats, warm=2)
    return 1e3 * seconds / fx_nodes(gm)


def _training(layers: int) -> float:
    """Milliseconds a node of the stages of both halves of a training step, FX passes and engine aside."""
    case = models.llama("tiny", layers)
    model = case.model.train()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    with torchair.record_compilation() as reports:
        compiled(*case.inputs)[0].square().mean().backward()
    stages = ("lower", "GE passes", "verify")
    return float(1e3 * sum(r.stages[s] for r in reports for s in stages) / sum(r.fx_nodes for r in reports))


def chain(nodes: int) -> torch.fx.GraphModule:
    """An ATen graph of so many additions and functions of one number, each of the last."""
    graph = torch.fx.Graph()
    value: Any = torch.empty(4)
    node = graph.placeholder("x")
    node.meta["val"] = value
    aten = torch.ops.aten
    for i in range(nodes):
        if i % 3:
            node = graph.call_function(aten.sin.default, (node,))
        else:
            node = graph.call_function(aten.add.Tensor, (node, float(i % 7)))
        node.meta["val"] = value
    graph.output((node,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _slope(counts: tuple[int, ...]) -> tuple[float, float]:
    """Exponent of the time over the number of nodes, and milliseconds a node of the largest graph."""
    seconds = []
    for count in counts:
        gm = chain(count)
        (taken,) = medians(
            functools.partial(convert, gm), clock=time.process_time, repeats=3 if count <= 10_000 else 1, warm=1
        )
        seconds.append(taken)
    x, y = [math.log(c) for c in counts], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    return slope, 1e3 * seconds[-1] / counts[-1]


def measure() -> Iterator[Measurement]:
    layers = 2 if rows.small else 24
    static = _ms_per_node(layers)
    yield at_most(GROUP, "Llama, 24 layers, a node", static, 0.06, unit="ms")
    yield at_most(GROUP, "Llama, 24 layers, dynamic=True, a node", _ms_per_node(layers, dynamic=True), 0.08, unit="ms")
    yield at_most(GROUP, "Llama, 24 layers, training, both halves, a node", _training(layers), 0.08, unit="ms")
    if not rows.small:
        long = _ms_per_node(96, repeats=3)
        yield at_most(GROUP, "Llama, 96 layers to 24, a node", long, 1.1, unit="ms", peer=static, name="24 layers")
    counts = (300, 1_000) if rows.small else (1_000, 10_000, 100_000)
    slope, largest = _slope(counts)
    yield at_most(GROUP, "chain of 1,000 to 100,000 nodes: exponent of the time", slope, 1.1, unit="")
    yield at_most(GROUP, "chain of 100,000 nodes, a node", largest, 0.06, unit="ms")
    for name in ("bert",) if rows.small else ("bert", "resnet50", "gpt2", "t5"):
        gm = aot_graph(models.ZOO[name](size()))
        (seconds,) = medians(functools.partial(convert, gm), clock=time.process_time, repeats=5)
        yield at_most(GROUP, f"{name}, a node", 1e3 * seconds / fx_nodes(gm), 0.06, unit="ms")
    graph, _ = convert(aot_graph(models.llama(size(), layers)))
    used = {t.node for n in graph.nodes for t in n.operands()} | {t.node for t in graph.outputs}
    dead = [n for n in graph.nodes if n not in used and n.op not in ("Data", "RefData") and n.outputs]
    constants = collections.Counter(
        (n.outputs[0].dtype, getattr(n.attr("value"), "shape", None), bytes(getattr(n.attr("value"), "data", b"")))
        for n in graph.nodes
        if n.op == "Const"
    )
    yield at_most(GROUP, "dead operators in the 24-layer Llama", len(dead), 0, unit="ops")
    yield at_most(GROUP, "constants there twice", sum(c - 1 for c in constants.values()), 0, unit="consts")
