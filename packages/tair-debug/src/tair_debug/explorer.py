"""GE graphs and figures of their nodes as files of Model Explorer (``pip install ai-edge-model-explorer``).

A graph file is a collection of graphs, by the field names of ``model_explorer.graph_builder``; modules are the
namespaces. A file of node data has for each graph the value of each node, by those of ``node_data_builder``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ge_graph import Graph, escape
from ge_graph.errors import ConfigError
from ge_graph.files import read_plain
from tair_debug import graph_page

_PALE_TO_RED: Final = [{"stop": 0, "bgColor": "#fef9c3"}, {"stop": 1, "bgColor": "#ef4444"}]
_MOST_BYTES: Final = 256 << 20


def to_explorer(name: str, graphs: Sequence[Graph]) -> str:
    """The file of some graphs, which are found by their names."""
    return json.dumps({"label": escape.line(name), "graphs": [_graph(g) for g in graphs]}, indent=1) + "\n"


def _graph(graph: Graph) -> dict[str, Any]:
    page = graph_page.page_data(graph)
    spaces = _namespaces(page["groups"])
    return {"id": page["name"], "nodes": [_node(page, spaces, i) for i in range(len(page["nodes"]))]}


def _namespaces(groups: Sequence[Sequence[Any]]) -> list[str]:
    """Of each module the way to it: ``layers/layers.0/mlp``; a name with a stroke in it is no further module."""
    made: list[str] = []
    for name, parent in groups:
        own = "" if parent < 0 else str(name).replace("/", "∕")
        made.append("/".join(filter(None, (made[parent] if parent > 0 else "", own))))
    return made


def _node(page: dict[str, Any], spaces: list[str], number: int) -> dict[str, Any]:
    node = page["nodes"][number]
    rows = [*node["p"], *(row for row in node["a"] if row[0] != "outputs")]
    feeding = [
        {"sourceNodeId": page["nodes"][source]["n"], "sourceNodeOutputId": _output(text), "targetNodeInputId": str(at)}
        for at, (_, source, text) in enumerate(node["i"])
    ]
    order = [
        {"sourceNodeId": page["nodes"][a]["n"], "sourceNodeOutputId": "control", "targetNodeInputId": "control"}
        for a, b, kind in page["edges"]
        if b == number and kind == graph_page.CONTROL
    ]
    types = next((text for name, text in node["a"] if name == "outputs"), "").splitlines()
    return {
        "id": node["n"],
        "label": node["o"],
        "namespace": spaces[node["g"]],
        "attrs": [{"key": key, "value": value} for key, value in rows],
        "incomingEdges": [*feeding, *order],
        "inputsMetadata": [
            {"id": str(at), "attrs": [{"key": "__tensor_tag", "value": port}]}
            for at, (port, _, _) in enumerate(node["i"])
        ],
        "outputsMetadata": [
            {"id": str(at), "attrs": [{"key": "tensor_shape", "value": text.split("  ", 1)[-1]}]}
            for at, text in enumerate(types)
        ],
    }


def _output(text: str) -> str:
    """The output's number of ``name:1  f32[8]``."""
    return text.split("  ", 1)[0].rpartition(":")[2]


def node_data(values: Mapping[str, Mapping[str, float | str]], name: str) -> str:
    """The file of the figures of nodes.

    Args:
        values: Graph to node to its value: numbers, coloured from pale to red, or words.
        name: What the values are. Infinite values and NaN, which JSON does not have, are left out.
    """
    graphs = {}
    for graph, nodes in values.items():
        known = {n: v for n, v in nodes.items() if isinstance(v, str) or math.isfinite(v)}
        numbers = any(not isinstance(v, str) for v in known.values())
        colours = {"gradient": _PALE_TO_RED} if numbers else {}
        graphs[graph] = {"name": name, "results": {n: {"value": v} for n, v in known.items()}, **colours}
    return json.dumps(graphs, indent=1) + "\n"


def read_errors(path: Path) -> dict[str, dict[str, float]]:
    """Graph to the error of each node: from node data, or from what ``tair compare`` wrote with --json or --output.

    Errors: ConfigError GE1046 for a file that cannot be read or has no figures.
    """
    shown = escape.line(os.fspath(path))
    try:
        data = json.loads(read_plain(path, _MOST_BYTES))
        graphs = data.get("errors", data) if isinstance(data, dict) else None
        if not isinstance(graphs, dict):
            raise ValueError("no JSON object")
        made = {str(name): dict(_figures(graph)) for name, graph in graphs.items()}
        if not any(made.values()):
            raise ValueError("no figures of nodes in it")
    except (OSError, ValueError, RecursionError) as error:  # ValueError: a NUL in the name, text that is no JSON
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ConfigError(
            "GE1046",
            f"cannot read {shown}: {escape.line(reason, 500)}",
            next="give what tair compare MODEL wrote with --node-data, --json or --output",
        ) from error
    return made


def _figures(graph: Any) -> Iterator[tuple[str, float]]:
    """Node and number, of a plain object or of node data; whatever else stands there is no figure."""
    nodes = graph.get("results", graph) if isinstance(graph, dict) else {}
    for name, value in nodes.items() if isinstance(nodes, dict) else ():
        number = value.get("value") if isinstance(value, dict) else value
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            yield name, float(number)
