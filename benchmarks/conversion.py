"""FX graph in, verified GE bytes out: milliseconds per FX node, growth with size, and what the graphs carry."""

from __future__ import annotations

import collections
from collections.abc import Iterator

from benchmarks.capture import aot_graph, fx_nodes
from benchmarks.rows import Row, at_most, medians
from ge_converters.lowering import lower, no_collection
from ge_graph import Graph, passes, serde
from ge_graph.verify import verify
from tools import models

GROUP = "conversion"


def convert(gm: object) -> tuple[Graph, bytes]:
    """The whole of our work on one graph."""
    with no_collection():  # as the pipeline does
        graph = lower(gm).graph
        passes.run(graph)
        verify(graph)
        return graph, serde.to_bytes(graph)


def _ms_per_node(layers: int, *, dynamic: bool = False, repeats: int = 5) -> tuple[float, int]:
    gm = aot_graph(models.llama("full" if layers <= 24 else "tiny", layers), dynamic=dynamic)
    (seconds,) = medians(lambda: convert(gm), repeats=repeats, warm=2)
    return 1e3 * seconds / fx_nodes(gm), fx_nodes(gm)


def measure() -> Iterator[Row]:
    static, nodes = _ms_per_node(24)
    yield at_most(GROUP, f"Llama, 24 layers, {nodes} FX nodes, a node", static, 0.10, unit="ms")
    dynamic, nodes = _ms_per_node(24, dynamic=True)
    yield at_most(GROUP, f"the same with dynamic=True, {nodes} FX nodes, a node", dynamic, 0.20, unit="ms")
    long, nodes = _ms_per_node(200, repeats=3)
    yield at_most(
        GROUP, f"growth: Llama, 200 layers ({nodes} nodes), to 24, a node", long, 1.25, unit="ms", peer=static
    )
    for name in ("bert", "resnet50", "gpt2", "t5"):
        gm = aot_graph(models.ZOO[name]())
        (seconds,) = medians(lambda gm=gm: convert(gm), repeats=5)
        yield at_most(GROUP, f"{name}, a node", 1e3 * seconds / fx_nodes(gm), 0.10, unit="ms")
    graph, _ = convert(aot_graph(models.llama("full", 24)))
    used = {t.node for n in graph.nodes for t in n.operands()} | {t.node for t in graph.outputs}
    dead = [n for n in graph.nodes if n not in used and n.op not in ("Data", "RefData") and n.outputs]
    constants = collections.Counter(
        (n.outputs[0].dtype, getattr(n.attr("value"), "shape", None), bytes(getattr(n.attr("value"), "data", b"")))
        for n in graph.nodes
        if n.op == "Const"
    )
    yield at_most(GROUP, "dead operators in the 24-layer Llama", len(dead), 0, unit="ops")
    twice = sum(c - 1 for c in constants.values())
    yield at_most(GROUP, f"constants there twice (distinct: {len(constants)})", twice, 0, unit="consts")
