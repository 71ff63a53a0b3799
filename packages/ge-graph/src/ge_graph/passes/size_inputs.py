"""Sizes as graph inputs: unused ones, and those that a tensor input tells as well."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.rewriter import Rewriter


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
        self.kept = tuple(n.attr("index", 0) for n in inputs)
        if not sizes:
            return []
        rewriter = Rewriter(graph)
        derived = self._derive(rewriter, sizes, [n for n in inputs if not _is_size(n)])
        ordered = rewriter.effects.ordered
        unused = {n for n in sizes if rewriter.unread(n.outputs[0]) and n not in ordered}
        if not derived and not unused:
            return []
        rewriter.finish()
        graph.remove(unused)
        left = [n for n in inputs if n not in unused]
        self.kept = tuple(n.attr("index", 0) for n in left)
        for position, node in enumerate(left):
            node.attrs["index"] = Attr(Kind.INT, position)
        notes = [f"{len(unused)} size inputs dropped"] if unused else []
        return [*notes, f"{derived} of them derived from tensor inputs"] if derived else notes

    def _derive(self, rewriter: Rewriter, sizes: list[Node], tensors: list[Node]) -> int:
        """Replace sizes by Shape and Gather right behind the tensor input that tells them."""
        places: dict[str, tuple[Tensor, int]] = {}
        for node in tensors:
            for dim, size in enumerate(node.outputs[0].known_shape or ()):
                if isinstance(size, str):
                    places.setdefault(size, (node.outputs[0], dim))
        derived = 0
        for node in sizes:
            place = places.get(self._symbols.get(node.name, ""))
            if place is not None and not rewriter.unread(node.outputs[0]):
                rewriter.replace(node.outputs[0], _size_of(rewriter, *place))
                derived += 1
        return derived


def _is_size(node: Node) -> bool:
    output = node.outputs[0]
    return (
        node.op == "Data"
        and node.attr("_placement") == "CPU"
        and output.dtype is DataType.DT_INT64
        and output.known_shape == ()
    )


def _size_of(rewriter: Rewriter, tensor: Tensor, dim: int) -> Tensor:
    """Shape and Gather of one dimension."""
    int64 = DataType.DT_INT64
    rank = len(tensor.known_shape or ())
    (shape,) = rewriter.behind(
        tensor.node, "Shape", [tensor], {"dtype": Attr(Kind.INT, int(int64))}, [(int64, (rank,))]
    )
    number = {"value": Attr(Kind.TENSOR, np.array(dim, np.int64))}
    (index,) = rewriter.behind(shape.node, "Const", (), number, [(int64, ())])
    attrs = {
        "validate_indices": Attr(Kind.BOOL, True),
        "batch_dims": Attr(Kind.INT, 0),
        "is_preprocessed": Attr(Kind.BOOL, False),
        "negative_index_support": Attr(Kind.BOOL, False),
    }
    return rewriter.behind(index.node, "Gather", [shape, index], attrs, [(int64, ())])[0]
