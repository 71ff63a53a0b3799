"""FX graph in, verified GE graph out, and its bytes: time per FX node, growth with size, and what the graphs carry.

The engine of this machine runs the graph; a device is given bytes, without the origin of its nodes.
"""

from __future__ import annotations

import collections
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
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


def _with_bytes(gm: object) -> tuple[Graph, bytes]:
    """What a device engine does with one graph."""
    graph = convert_graph(gm).graph
    return graph, serde.to_bytes(graph, provenance=False)


def _copied(gm: torch.fx.GraphModule) -> None:
    torch.fx.Graph().graph_copy(gm.graph, {})


def _costs(
    *graphs: torch.fx.GraphModule, calls: Sequence[Callable[[Any], Any]], repeats: int = 5, warm: int = 1
) -> list[float]:
    """Milliseconds a node that each of ``calls`` takes for the graphs; of the processor, best of some rounds.

    What converting leaves behind is collected between the rounds, outside the time: the graph itself is garbage in
    cycles once nobody holds it, and in a program it stays.
    """
    nodes = sum(map(fx_nodes, graphs))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(warm + (min(repeats, 3) if rows.small else repeats)):
        for call, seconds in zip(calls, found):  # in turn: what slows the machine down slows all of them
            gc.collect()
            with no_collection():  # as the pipeline does
                start = time.process_time()
                kept = [call(gm) for gm in graphs]
                seconds.append(time.process_time() - start)
            del kept
    return [1e3 * min(seconds) / nodes for seconds in found]


def _rows(what: str, *graphs: torch.fx.GraphModule, repeats: int = 5) -> Iterator[Measurement]:
    """The graph, and the graph with its bytes, beside torch's own copy of the FX graph in the same rounds."""
    graph, both, copy = _costs(*graphs, calls=(convert_graph, _with_bytes, _copied), repeats=repeats)
    name = "torch copies the FX graph"
    yield at_most(GROUP, f"{what}: graph, a node", graph, 3.5, unit="ms", peer=copy, name=name)
    yield at_most(GROUP, f"{what}: graph and a device's bytes, a node", both, 3.5, unit="ms", peer=copy, name=name)


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


def _slope(counts: tuple[int, ...]) -> float:
    """Exponent of the time over the number of nodes."""
    seconds = []
    for count in counts:
        large = count > 10_000
        (cost,) = _costs(chain(count), calls=[_with_bytes], repeats=1 if large else 3, warm=0 if large else 1)
        seconds.append(cost * count)
    x, y = [math.log(c) for c in counts], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def measure() -> Iterator[Measurement]:
    layers = 2 if rows.small else 24
    llama = aot_graph(models.llama("tiny", layers))
    yield from _rows("Llama, 24 layers", llama, repeats=9)
    yield from _rows("Llama, 12 layers, dynamic=True", aot_graph(models.llama("tiny", layers // 2), dynamic=True))
    yield from _rows("Llama, 6 layers, training, both halves", *training_graphs(models.llama("tiny", layers // 4 or 1)))
    (short,), (long,) = (_costs(gm, calls=[_with_bytes], repeats=3) for gm in (llama, repeated(llama, 4)))
    yield at_most(GROUP, "Llama, 96 layers to 24, a node", long, 1.1, unit="ms", peer=short, name="24 layers")
    counts = (300, 1_000) if rows.small else (1_000, 10_000, 100_000)
    yield at_most(GROUP, "chain of 1,000 to 100,000 nodes: exponent of the time", _slope(counts), 1.1, unit="")
    yield from _rows("chain of 100,000 nodes", chain(counts[-1]), repeats=1)
    for name in ("bert",) if rows.small else ("bert", "resnet50", "gpt2", "t5"):
        yield from _rows(name, aot_graph(models.ZOO[name]("tiny")), repeats=9)
    graph = convert_graph(llama).graph
    used = {t.node for n in graph.nodes for t in n.operands()} | {t.node for t in graph.outputs}
    dead = [n for n in graph.nodes if n not in used and n.op not in ("Data", "RefData") and n.outputs]
    constants = collections.Counter(
        (n.outputs[0].dtype, getattr(n.attr("value"), "shape", None), bytes(getattr(n.attr("value"), "data", b"")))
        for n in graph.nodes
        if n.op == "Const"
    )
    yield at_most(GROUP, "dead operators in the 24-layer Llama", len(dead), 0, unit="ops")
    yield at_most(GROUP, "constants there twice", sum(c - 1 for c in constants.values()), 0, unit="consts")
