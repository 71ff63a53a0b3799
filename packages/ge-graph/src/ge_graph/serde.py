"""Graphs as bytes: the ``ge.proto`` wire format that GE, ATC and the vendor's TorchAir read.

An ``.air`` file, and what an engine on a device is handed, is one ``ge.proto.ModelDef``. Its first ``GraphDef`` is the
main graph, the others are subgraphs, found by the names in ``OpDef.subgraph_name``. Facts of the form:

* ``OpDef.input`` holds ``NODE:INDEX`` for data, ``NODE:-1`` for a control edge, and an empty text for an optional input
  that nothing feeds; its descriptor then has dtype 0 and the attribute ``_is_unfed_optional``.
* ``_input_name_key``/``_input_name_value`` and their output twins list the port names; a dynamic port ``x`` is ``x0``,
  ``x1`` …
* Descriptors carry the wire number of the element type, attributes of kind Type the header number. An unknown dimension
  is -1, an unknown rank the one dimension -2.
* The last operator is ``NetOutput``: its inputs are ``graph.outputs``, its control edges ``graph.output_control``.
* Optional lists without ``val_type`` are skipped by GE, so a list of texts is written with it. Floats are float32.

What GE has no place for rides along under names with an underscore, which GE keeps and ignores: ``_provenance``,
``_port_sizes`` (inputs a port), ``_output_counts``, ``_subgraph_slots``, ``_exact_<name>`` (float64 digits), and on
output descriptors ``_symbolic_shape``. So ``from_bytes(to_bytes(graph))`` equals ``graph``. ``Graph.scope_attrs``,
``Graph.provenance`` and the naming counters belong to building, not to the graph: what they did to nodes is kept.
Equal means: a text attribute given as UTF-8 bytes reads back as ``str``, a ``Literal`` of a type that numpy knows as an
array of the same bytes, and attributes come back sorted by name.

The bytes depend on the graph alone, not on the process; the last field, ``_crc32`` of the model, is a checksum that
``from_bytes`` compares where it is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from ge_graph.ir import Graph
from ge_graph.serde_read import read_graph, read_model
from ge_graph.serde_write import Chunk, ExternalData, Externalise, GraphWriter, refuse

__all__ = ["ExternalData", "Externalise", "from_bytes", "from_graph_bytes", "to_bytes", "to_chunks", "to_graph_bytes"]


def to_bytes(graph: Graph, *, externalise: Externalise | None = None, provenance: bool = True) -> bytes:
    """A graph as ``ge.proto.ModelDef``, the content of an ``.air`` file.

    Args:
        graph: The graph.
        externalise: Called with each Const node, its dtype, shape and data (flat uint8, not copied). What it returns,
            an ``ExternalData``, makes the node a ``FileConstant`` that names the place; ``None`` keeps the constant.
        provenance: Leave the origin of nodes out if false, for keys that shall not depend on source positions.

    Raises:
        ArchiveError: GE5011 if something in the graph has no form on the wire.
    """
    return b"".join(GraphWriter(externalise, provenance).model(graph))


def to_chunks(graph: Graph, *, externalise: Externalise | None = None, provenance: bool = True) -> Iterator[Chunk]:
    """The bytes of ``to_bytes`` in pieces; large constants are views of their own memory, so nothing is copied."""
    yield from GraphWriter(externalise, provenance).model(graph)


def from_bytes(data: bytes | bytearray | memoryview) -> Graph:
    """Read a ``ModelDef``, written by us or by others.

    Operators are taken as they stand, known or not; ``ge_graph.verify.verify`` judges them.

    Raises:
        ArchiveError: 5xxx with the place in the file, for anything damaged or contradictory.
    """
    return read_model(data)


def to_graph_bytes(graph: Graph, *, provenance: bool = True) -> bytes:
    """A single ``GraphDef`` without checksum.

    Raises:
        ArchiveError: GE5011 if the graph has subgraphs, which only a ``ModelDef`` can hold.
    """
    writer = GraphWriter(None, provenance)
    if any(node.subgraphs for node in graph.nodes):
        raise refuse("a GraphDef cannot hold subgraphs", f"graph '{graph.name}'", "use to_bytes")
    return b"".join(writer.graph(graph, graph.name).parts)


def from_graph_bytes(data: bytes | bytearray | memoryview) -> Graph:
    """Read a single ``GraphDef``.

    Raises:
        ArchiveError: 5xxx as ``from_bytes``.
    """
    return read_graph(data)
