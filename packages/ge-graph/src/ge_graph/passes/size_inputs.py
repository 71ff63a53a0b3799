"""Sizes as graph inputs: unused ones, and those that a tensor input tells as well."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass


class DropSymbolicInputs(Pass):
    """Remove scalar size inputs that nobody reads; compute those that a dimension of a tensor input tells.

    A size is a host input (placement CPU) of type INT64 and rank 0. Whoever runs the graph feeds fewer inputs then:
    ``kept`` tells which, and the indexes of the rest are made dense again.

    Args:
        symbols: Name of a size input to its symbol (``s0``), as it stands in the shapes of tensor inputs. Without it
            only unused inputs are dropped.

    Attributes:
        kept: After a run, the old indexes of the inputs that are left, in their new order.
    """

    name = "drop_symbolic_inputs"
    reason = "an input less to convert, copy and check at each call"
    place = "before merge_shape_arithmetic, which merges the Shape nodes added here"

    def __init__(self, symbols: Mapping[str, str] | None = None) -> None:
        self._symbols = dict(symbols or {})
        self.kept: tuple[int, ...] = ()

    def rewrite(self, graph: Graph) -> list[str]:
        inputs = graph.inputs
        sizes = [n for n in inputs if _is_size(n)]
        derived = self._derive(graph, sizes, [n for n in inputs if not _is_size(n)])
        read = {t for n in graph.nodes for t in n.operands()} | set(graph.outputs)
        waited = {c for n in graph.nodes for c in n.control} | set(graph.output_control)
        unused = [n for n in sizes if n.outputs[0] not in read and n not in waited]
        graph.remove(unused)
        left = [n for n in inputs if n not in set(unused)]
        self.kept = tuple(n.attr("index", 0) for n in left)
        if not unused:
            return []
        for position, node in enumerate(left):
            node.attrs["index"] = Attr(Kind.INT, position)
        notes = [f"{len(unused)} size inputs dropped"]
        return [*notes, f"{derived} of them derived from tensor inputs"] if derived else notes

    def _derive(self, graph: Graph, sizes: list[Node], tensors: list[Node]) -> int:
        """Replace sizes by Shape and Gather right after the tensor input that tells them."""
        places: dict[str, tuple[Tensor, int]] = {}
        for node in tensors:
            for dim, size in enumerate(node.outputs[0].known_shape or ()):
                if isinstance(size, str):
                    places.setdefault(size, (node.outputs[0], dim))
        mapping: dict[Tensor, Tensor] = {}
        read = {t for n in graph.nodes for t in n.operands()} | set(graph.outputs)
        for node in sizes:
            place = places.get(self._symbols.get(node.name, ""))
            if place is not None and node.outputs[0] in read:
                mapping[node.outputs[0]] = _size_of(graph, *place)
        if mapping:
            graph.replace_all_uses(mapping)
        return len(mapping)


def _is_size(node: Node) -> bool:
    output = node.outputs[0]
    return (
        node.op == "Data" and node.attr("_placement") == "CPU"
        and output.dtype is DataType.DT_INT64 and output.known_shape == ()
    )  # fmt: skip


def _size_of(graph: Graph, tensor: Tensor, dim: int) -> Tensor:
    """Shape and Gather of one dimension, moved right after the input so that the order stays topological."""
    rank = len(tensor.known_shape or ())
    count = len(graph.nodes)
    int64 = DataType.DT_INT64
    shape = graph.add("Shape", [tensor], {"dtype": Attr(Kind.INT, int(int64))}, [(int64, (rank,))])
    index = graph.add("Const", (), {"value": Attr(Kind.TENSOR, np.array(dim, np.int64))}, [(int64, ())])
    attrs = {
        "validate_indices": Attr(Kind.BOOL, True), "batch_dims": Attr(Kind.INT, 0),
        "is_preprocessed": Attr(Kind.BOOL, False), "negative_index_support": Attr(Kind.BOOL, False),
    }  # fmt: skip
    gather = graph.add("Gather", [shape.outputs[0], index.outputs[0]], attrs, [(int64, ())])
    added = graph.nodes[count:]
    for node in added:
        node.provenance = tensor.node.provenance
    at = graph.nodes.index(tensor.node) + 1
    graph.nodes[:] = [*graph.nodes[:at], *added, *graph.nodes[at:count]]
    return gather.outputs[0]
