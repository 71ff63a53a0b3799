"""GE graphs as files: ``config.debug.graph_dump``, and the forms that the debug record and ``tair dump`` share."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Final

from ge_converters.base.progress import Progress
from ge_graph import Graph
from ge_graph.errors import ConfigError
from tair_debug import artefacts
from tair_debug.observer import GraphId, Silent

OPTION: Final = "config.debug.graph_dump.path"


_FORMS: Final = {  # form to module and function, which load on first use
    "txt": ("ge_graph.txt", "to_txt"),
    "pbtxt": ("ge_graph.pbtxt", "to_pbtxt"),
    "html": ("tair_debug.graph_page", "to_html"),
}
TYPES: Final = ("txt", "pbtxt", "py", "html")


def write_graph(graph: Graph, path: str | os.PathLike[str], kind: str, option: str = OPTION) -> None:
    """Write one graph, readable by its owner only.

    Args:
        option: Who asked for it, for errors.

    Errors: ConfigError GE1041 naming option and path, GE1040 for an unknown kind.
    """
    if kind == "py":
        from ge_graph.python_source import write_py

        try:
            write_py(graph, path)
        except OSError as error:
            raise artefacts.no_file(option, path, error) from error
        return
    if kind not in _FORMS:
        raise unknown_type("config.debug.graph_dump.type", kind, TYPES)
    module, function = _FORMS[kind]
    artefacts.write_text(path, getattr(importlib.import_module(module), function)(graph), option)


def unknown_type(option: str, got: object, known: tuple[str, ...]) -> ConfigError:
    """The error for a form that nobody writes."""
    return ConfigError("GE1040", f"{option}: got {got!r}, known are {', '.join(known)}", next="set one of these")


class GraphDump(Silent):
    """Writes the GE graph as converted and as optimized.

    Files: ``dynamo_original_graph_<k>_rank_<r>_pid_<p>_ts_<20 digits>.<kind>`` and ``dynamo_optimized_graph_…``.

    Errors: ConfigError GE1040 for an unknown kind; GE1041 if a file cannot be written.
    """

    def __init__(self, kind: str, path: str | os.PathLike[str] = "./") -> None:
        if kind not in TYPES:
            raise unknown_type("config.debug.graph_dump.type", kind, TYPES)
        self.kind = kind
        self.path = Path(path)
        self.written: list[Path] = []

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        """Write ``original`` and ``optimized``; single passes are for the debug record."""
        if label not in ("original", "optimized"):
            return
        name = (
            f"dynamo_{label}_graph_{stage.graph_id}_rank_{artefacts.rank()}_pid_{os.getpid()}"
            f"_ts_{artefacts.stamp()}.{self.kind}"
        )
        write_graph(graph, self.path / name, self.kind)
        self.written.append(self.path / name)


class Stages(Progress):
    """Writes the stages of one conversion."""

    def __init__(self, writer: GraphDump, stage: GraphId) -> None:
        self._writer, self._stage = writer, stage

    def ge_graph(self, label: str, graph: Graph) -> None:
        self._writer.ge_graph(self._stage, label, graph)
