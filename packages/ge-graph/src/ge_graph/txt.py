"""The text form of the message that GE is handed: what ``graph_dump.type = "txt"`` writes.

The top level is the ``GraphDef`` (``name``, then repeated ``op``); a graph with subgraphs needs a ``ModelDef``, whose
top level is repeated ``graph``. Reading takes both.
"""

from __future__ import annotations

from ge_graph import serde, wire
from ge_graph.errors import ArchiveError
from ge_graph.ir import Graph
from ge_graph.serde_read import read_graphs


def to_txt(graph: Graph) -> str:
    """A graph as protobuf text.

    Raises:
        ArchiveError: GE5011 if something in the graph has no form on the wire.
    """
    model = wire.parse("ModelDef", serde.to_bytes(graph))
    return wire.to_text(model.graph[0] if len(model.graph) == 1 else model)


def from_txt(text: str) -> Graph:
    """Read protobuf text of a ``GraphDef`` or a ``ModelDef``.

    Raises:
        ArchiveError: GE5013 with line and column if it is neither, 5xxx as ``serde.from_bytes`` for what it says.
    """
    try:
        message = wire.from_text("GraphDef", text)
    except ValueError as graph_error:
        try:
            model = wire.from_text("ModelDef", text)
        except ValueError:
            raise ArchiveError(
                "GE5013",
                f"not the text of a ge.proto.GraphDef or ModelDef: {graph_error}",
                where=f"a text of {len(text)} characters",
                next="give the content of a txt graph dump",
            ) from None
        if not model.graph:
            raise ArchiveError("GE5002", "no graph in the text of a ModelDef", where="ModelDef.graph") from None
        return read_graphs(list(model.graph))
    if not message.op:
        raise ArchiveError("GE5002", "no operator in the text of a GraphDef", where="GraphDef.op")
    return read_graphs([message])
