"""The Ascend GE graph as a Python library: IR, operator schemas, verifier, passes, bytes and text forms."""

from ge_graph.dtypes import DataType, Format
from ge_graph.errors import ArchiveError, ConfigError, EngineError, GeError, GraphError, LoweringError
from ge_graph.ir import Graph, Literal, Node, Provenance, Tensor, TensorSpec, building, current_graph

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "ConfigError",
    "DataType",
    "EngineError",
    "Format",
    "GeError",
    "Graph",
    "GraphError",
    "Literal",
    "LoweringError",
    "Node",
    "Provenance",
    "Tensor",
    "TensorSpec",
    "building",
    "current_graph",
]
