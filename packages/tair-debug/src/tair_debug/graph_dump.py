"""GE graphs as files: ``config.debug.graph_dump``, and the forms that the debug record and ``tair dump`` share."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ge_converters.base.progress import Progress
from ge_graph import Graph, escape
from ge_graph.errors import ConfigError
from tair_debug import artefacts
from tair_debug.observer import GraphId, Silent
from tair_debug.terminal import Answer, Detail, sentence

if TYPE_CHECKING:
    from tair_debug.models import Subject
    from tair_debug.refused import RefusedCall
    from tair_debug.terminal import Part

OPTION: Final = "config.debug.graph_dump.path"
COMMAND: Final = "tair dump --output"
EXPLORER: Final = "model-explorer"

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

    def __init__(self, kind: str, path: str | os.PathLike[str] = "./", option: str = OPTION) -> None:
        if kind not in TYPES:
            raise unknown_type("config.debug.graph_dump.type", kind, TYPES)
        self.kind = kind
        self.path = Path(path)
        self.option = option
        self.written: list[Path] = []

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        """Write ``original`` and ``optimized``; single passes are for the debug record."""
        if label not in ("original", "optimized"):
            return
        name = (
            f"dynamo_{label}_graph_{stage.graph_id}_rank_{artefacts.rank()}_pid_{os.getpid()}"
            f"_ts_{artefacts.stamp()}.{self.kind}"
        )
        write_graph(graph, self.path / name, self.kind, self.option)
        self.written.append(self.path / name)


class _InNewFolder(GraphDump):
    """Makes the folder with the first graph, so that nothing stays of a dump that fails before."""

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        artefacts.folder(self.path, self.option)
        super().ge_graph(stage, label, graph)


class Stages(Progress):
    """Writes the stages of one conversion."""

    def __init__(self, writer: GraphDump, stage: GraphId) -> None:
        self._writer, self._stage = writer, stage

    def ge_graph(self, label: str, graph: Graph) -> None:
        self._writer.ge_graph(self._stage, label, graph)


@dataclass(repr=False)
class Dump(Answer):
    """Files of the graphs of a model.

    Attributes:
        written: The files.
        refused: Calls that cannot be converted; the graphs are without them.
    """

    written: list[Path]
    refused: list[RefusedCall] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all calls could be converted."""
        return not self.refused

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        from tair_debug.refused import told_of

        yield from told_of(self.refused)
        yield from (sentence(str(path)) for path in self.written)

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "written": [str(p) for p in self.written],
            "refused": [r.as_dict() for r in self.refused],
        }


def dump_of(
    subject: Subject,
    kind: str,
    folder: Path,
    *,
    backward: bool = False,
    dynamic: bool = False,
    fake: bool = True,
) -> Dump:
    """Write the GE graphs of a model, as converted and after the GE passes, or one file of them for Model Explorer.

    Calls that cannot be converted are left out: their results are inputs, what they read are outputs. The folder is
    made when there is something to write.

    Errors: ConfigError GE1040 for an unknown kind, GE1041 if a file cannot be written, GE1047 if the model cannot be
        traced.
    """
    from tair_debug import tracing
    from tair_debug.cut import as_far_as_it_goes

    whole = kind == EXPLORER  # one file of all graphs
    if not whole and kind not in TYPES:
        raise unknown_type("--type", kind, (*TYPES, EXPLORER))
    captured = tracing.capture(subject, backward=backward, dynamic=dynamic, fake=fake)
    writer = _InNewFolder("txt" if whole else kind, folder, COMMAND)
    finished = []
    refused: list[RefusedCall] = []
    for number, each in enumerate(captured, 1):
        stage = GraphId(number - 1, each.phase, number)  # type: ignore[arg-type]
        follow = Progress() if whole else Stages(writer, stage)
        convert = functools.partial(tracing.converted, name=f"graph_{number}", progress=follow)
        part, lowered = as_far_as_it_goes(each.gm, convert)
        finished.append(lowered.graph)
        refused += part.refused
    if whole:
        from tair_debug.explorer import to_explorer

        path = (
            artefacts.folder(folder, COMMAND) / f"{escape.file_name(subject.name)}_{EXPLORER}_{artefacts.stamp()}.json"
        )
        artefacts.write_text(path, to_explorer(subject.name, finished), COMMAND)
        writer.written.append(path)
    return Dump(writer.written, refused)
