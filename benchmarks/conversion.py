"""FX graph in, verified GE bytes out: milliseconds per FX node, growth with size, and what the graphs carry."""

from __future__ import annotations

import collections
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import rows
from benchmarks.capture import aot_graph, fx_nodes, repeated, training_graphs
from benchmarks.rows import Measurement, at_most
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


def _cost(*graphs: torch.fx.GraphModule, repeats: int = 5, warm: int = 1) -> tuple[float, float]:
    """Milliseconds a node that converting graphs takes, and that torch takes to copy them; of the processor, best of
    some rounds.

    What converting leaves behind is collected between the rounds, outside the time: the graph itself is garbage in
    cycles once nobody holds it, and in a program it stays.
    """
    nodes = sum(map(fx_nodes, graphs))

    def copied(gm: torch.fx.GraphModule) -> None:
        torch.fx.Graph().graph_copy(gm.graph, {})

    def best(call: Callable[[Any], Any]) -> float:
        found = []
        for _ in range(warm + (min(repeats, 3) if rows.small else repeats)):
            gc.collect()
            with no_collection():
                start = time.process_time()
                kept = [call(gm) for gm in graphs]
                found.append(time.process_time() - start)
            del kept
        return 1e3 * min(found) / nodes

    return best(convert), best(copied)


def _a_node(what: str, cost: tuple[float, float], limit: float) -> Measurement:
    ours, copy = cost
    name = "torch copies the FX graph"
    return at_most(GROUP, f"{what}, a node", ours, limit, unit="ms", peer=copy, name=name, absolute=True)


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


def _slope(counts: tuple[int, ...]) -> tuple[float, tuple[float, float]]:
    """Exponent of the time over the number of nodes, and ``_cost`` of the largest graph."""
    seconds, cost = [], (0.0, 0.0)
    for count in counts:
        large = count > 10_000
        cost = _cost(chain(count), repeats=1 if large else 3, warm=0 if large else 1)
        seconds.append(cost[0] * count)
    x, y = [math.log(c) for c in counts], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    return slope, cost


def measure() -> Iterator[Measurement]:
    layers = 2 if rows.small else 24
    llama = aot_graph(models.llama("tiny", layers))
    static = _cost(llama, repeats=9)
    yield _a_node("Llama, 24 layers", static, 0.06)
    dynamic = _cost(aot_graph(models.llama("tiny", layers // 2), dynamic=True))
    yield _a_node("Llama, 12 layers, dynamic=True", dynamic, 0.08)
    training = _cost(*training_graphs(models.llama("tiny", layers // 4 or 1)))
    yield _a_node("Llama, 6 layers, training, both halves", training, 0.08)
    long, _ = _cost(repeated(llama, 4), repeats=3)
    yield at_most(GROUP, "Llama, 96 layers to 24, a node", long, 1.1, unit="ms", peer=static[0], name="24 layers")
    counts = (300, 1_000) if rows.small else (1_000, 10_000, 100_000)
    slope, largest = _slope(counts)
    yield at_most(GROUP, "chain of 1,000 to 100,000 nodes: exponent of the time", slope, 1.1, unit="")
    yield _a_node("chain of 100,000 nodes", largest, 0.06)
    for name in ("bert",) if rows.small else ("bert", "resnet50", "gpt2", "t5"):
        yield _a_node(name, _cost(aot_graph(models.ZOO[name]("tiny"))), 0.06)
    graph, _ = convert(llama)
    used = {t.node for n in graph.nodes for t in n.operands()} | {t.node for t in graph.outputs}
    dead = [n for n in graph.nodes if n not in used and n.op not in ("Data", "RefData") and n.outputs]
    constants = collections.Counter(
        (n.outputs[0].dtype, getattr(n.attr("value"), "shape", None), bytes(getattr(n.attr("value"), "data", b"")))
        for n in graph.nodes
        if n.op == "Const"
    )
    yield at_most(GROUP, "dead operators in the 24-layer Llama", len(dead), 0, unit="ops")
    yield at_most(GROUP, "constants there twice", sum(c - 1 for c in constants.values()), 0, unit="consts")
