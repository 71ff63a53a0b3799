"""Numbers beyond which GE refuses a graph, or cuts it short without a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ge_graph.dtypes import Format
from ge_graph.ir import Graph, Literal, Node, WeightLiteral
from ge_graph.rules.base import Scope
from ge_graph.schema import OpSchema

MAX_MODEL_BYTES: Final = 2**31 - 1
MAX_RANK: Final = 25
UNKNOWN_RANK: Final = -2
_CONSTANTS: Final = ("Const", "Constant")

INPUTS: Final = frozenset(("Data", "RefData", "AnnData", "QueueData", "AippData"))
# Layouts that frameworks and users may name; all others are the chip's own.
PUBLIC_FORMATS: Final = frozenset(
    Format[f"FORMAT_{name}"]
    for name in ("ND", "NCHW", "NHWC", "HWCN", "CHWN", "NCDHW", "NDHWC", "DHWCN", "DHWNC", "NC", "CN", "NCL", "MD")
)


def sizes(node: Node, op: OpSchema) -> Iterator[str]:
    """Dimensions and ranks of results."""
    for k, tensor in enumerate(node.outputs):
        shape = tensor._shape
        if not shape:
            continue
        if len(shape) > MAX_RANK:
            yield f"output {k} has {len(shape)} dimensions; GE keeps {MAX_RANK} and drops the rest (silent)"
        for dim in shape:
            if dim.__class__ is int and dim < -1:
                if dim == UNKNOWN_RANK and len(shape) == 1:
                    continue
                why = "stands alone, for an unknown rank" if dim == UNKNOWN_RANK else "is below -2"
                yield f"output {k} is recorded as {list(shape)}: {dim} {why} (E18888)"
                break


def file_constants(node: Node, op: OpSchema) -> Iterator[str]:
    """Constants in files name the file."""
    if node.op == "FileConstant" and not any(node.attr(name) for name in ("location", "file_path", "file_id")):
        yield "names no file: 'location', 'file_path' and 'file_id' are empty (E13001)"


def graph_inputs(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    """Inputs of the graph that is handed over: fixed element size, public layout."""
    if not scope.root:
        return
    for node in scope.graph.nodes:
        if node.op not in INPUTS:
            continue
        for tensor in node.outputs:
            if not tensor.dtype.bits:
                yield node, f"is {tensor.dtype.name}, whose elements have no fixed size (E13025)"
            if tensor.format not in PUBLIC_FORMATS:
                what = (
                    f"has the layout {tensor.format.layout}, the chip's own; GE takes ND, NCHW and the like at "
                    "graph inputs (E13025)"
                )
                yield node, what


def whole(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    """A graph that is handed over fits into one message.

    That it has a node is not asked here: a program that only returns views of its inputs has none, and is never handed
    to GE.
    """
    if not scope.root:
        return
    size = constant_bytes(scope.graph, set())
    if size > MAX_MODEL_BYTES:
        what = (
            f"the constants of the graph take {size} bytes, a model may take {MAX_MODEL_BYTES} (E18888); "
            "make the large ones inputs or FileConstant"
        )
        yield None, what


def constant_bytes(graph: Graph, seen: set[int]) -> int:
    """Bytes of all constant values of a graph and the graphs in its nodes; those beside the graph do not count."""
    seen.add(id(graph))
    total = 0
    for node in [n for n in graph.nodes if n.subgraphs or n.op in _CONSTANTS]:
        if node.op in _CONSTANTS:
            value = node.attr("value")
            if isinstance(value, np.ndarray):
                total += value.nbytes
            elif isinstance(value, Literal) and not isinstance(value, WeightLiteral):
                total += value.data.nbytes
        for inner in node.subgraphs.values():
            if id(inner) not in seen:
                total += constant_bytes(inner, seen)
    return total
