"""What GE itself checks, or silently does, with a graph that it is handed; the tables that ``ge_graph.verify`` runs.

The code in round brackets of a message is the one that GE answers with; "silent" where it answers with nothing and does
something else than the graph says.
"""

from __future__ import annotations

from typing import Final

from ge_graph.rules.attributes import graph_attributes, node_attributes
from ge_graph.rules.base import Check, GraphCheck
from ge_graph.rules.in_place import constants_written, unordered_writes
from ge_graph.rules.limits import file_constants, graph_inputs, sizes, whole
from ge_graph.rules.subgraphs import below_parent

__all__ = ["GRAPH_RULES", "NODE_RULES", "Check", "GraphCheck", "file_constants"]

NODE_RULES: Final[tuple[tuple[str, Check], ...]] = (
    ("GE3061", sizes),
    ("GE3062", file_constants),
    ("GE3064", node_attributes),
)
GRAPH_RULES: Final[tuple[tuple[str, GraphCheck], ...]] = (
    ("GE3060", constants_written),
    ("GE3062", graph_inputs),
    ("GE3063", below_parent),
    ("GE3064", graph_attributes),
    ("GE3065", unordered_writes),
    ("GE3066", whole),
)
