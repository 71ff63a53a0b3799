"""The complete debug record below ``torch_compile_debug/run_<time>-pid_<pid>``, for TORCH_COMPILE_DEBUG=1.

    torchair/            or npugraph_ex/ for the backend of that name
    torchair/debug.log                               log of this library, Python and native layer
    torchair/model__<id>/dynamo_out_graph.txt        graph before AOT
    torchair/model__<id>/<phase>/NNN_aot_<phase>_graph.txt                     after AOT
                                 NNN_aot_<phase>_graph_after_<pass>.txt        FX graph after a pass
                                 NNN_aot_<phase>_original_ge_graph.<ext>       GE graph before all passes
                                 NNN_aot_<phase>_graph_after_<pass>.<ext>      after a GE pass
                                 NNN_aot_<phase>_optimized_ge_graph.<ext>      after all passes
                                 output_code.py                                program, reduce-overhead mode
    torchair/model__<id>/graph_<n>_id_<k>_rank_<r>_pid_<p>_ts_<time>.json      operators that a device captured
    torchdynamo/debug.log                            torch's own log

A pass that changed nothing leaves its file too, with one line that says so and names the file with the graph.

In a distributed run the folder's name ends in ``-rank_<rank>``; torch's log lies in the folder without the ending, and
a link beside ours leads to it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import torch

from ge_converters.base.torch_compat import debug_folder
from ge_graph import Graph, escape
from tair_debug import artefacts
from tair_debug.graph_dump import write_graph
from tair_debug.observer import GraphId, Silent

VARIABLE: Final = "TORCH_COMPILE_DEBUG"
_NUMBERED: Final = re.compile(r"\d{3,}_aot_", re.ASCII)


def wanted() -> bool:
    """Whether the environment asks for the record."""
    return os.environ.get(VARIABLE, "0") == "1"


def root(name: str = "torchair") -> Path:
    """Our part of the record, made if need be; the same path for the whole process.

    Args:
        name: ``torchair``, or ``npugraph_ex`` for that backend.

    Errors: ConfigError GE1041 if it cannot be made.
    """
    run = Path(debug_folder())
    if not artefacts.is_distributed():
        return artefacts.folder(run / name, VARIABLE)
    ours = run.with_name(f"{run.name}-rank_{artefacts.rank()}")
    made = artefacts.folder(ours / name, VARIABLE)
    link = ours / "torchdynamo"
    if not link.is_symlink():
        try:
            link.symlink_to(Path("..") / run.name / "torchdynamo", target_is_directory=True)
        except OSError:
            pass  # a file system without links; torch's log is where torch put it
    return made


class DebugTree(Silent):
    """Writes one compilation's stages.

    Args:
        kind: Form of GE graphs: ``txt``, ``pbtxt``, ``py`` or ``html``.
        code: Whether to write ``output_code.py``.
        name: Name of our folder, see ``root``.
    """

    def __init__(self, kind: str = "txt", *, code: bool = False, name: str = "torchair") -> None:
        self.kind = kind
        self.code = code
        self.root = root(name)
        self._latest: dict[str, str] = {}
        self._next_number: dict[Path, int] = {}

    def dynamo_graph(self, model_id: int, gm: torch.fx.GraphModule) -> None:
        place = artefacts.folder(self.root / f"model__{model_id}", VARIABLE)
        artefacts.write_text(place / "dynamo_out_graph.txt", readable(gm), VARIABLE)

    def fx_graph(self, stage: GraphId, label: str, gm: torch.fx.GraphModule) -> None:
        name = f"graph_after_{escape.file_name(label)}" if label else "graph"
        artefacts.write_text(self._next(stage, f"{name}.txt", "fx"), readable(gm), VARIABLE)

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        whole = label in ("original", "optimized")
        name = f"{label}_ge_graph" if whole else f"graph_after_{escape.file_name(label)}"
        write_graph(graph, self._next(stage, f"{name}.{self.kind}", "ge"), self.kind, VARIABLE)

    def unchanged(self, stage: GraphId, label: str, kind: Literal["fx", "ge"]) -> None:
        """Write a note in place of the graph, as a comment of the form that the graph has."""
        form = "txt" if kind == "fx" else self.kind
        before = self._latest.get(kind, "the file before")
        note = f"{escape.line(label)} changed nothing: the graph is that of {before}"
        text = f"<p>{escape.markup(note)}</p>\n" if form == "html" else f"# {note}\n"
        place = self._next(stage, f"graph_after_{escape.file_name(label)}.{form}")
        artefacts.write_text(place, text, VARIABLE)

    def output_code(self, stage: GraphId, code: str) -> None:
        if self.code:
            artefacts.write_text(self._phase(stage) / "output_code.py", code, VARIABLE)

    def captured(self, stage: GraphId, identity: int, dump: Callable[[str], Any]) -> None:
        """Write ``graph_….json``; a CANN that cannot write it leaves the file out."""
        place = artefacts.folder(self.root / f"model__{stage.model_id}", VARIABLE)
        which = f"graph_{stage.graph_id}_id_{identity}_rank_{artefacts.rank()}_pid_{os.getpid()}"
        dump(os.fspath(place / f"{which}_ts_{artefacts.stamp()}.json"))

    def _phase(self, stage: GraphId) -> Path:
        return artefacts.folder(self.root / f"model__{stage.model_id}" / stage.phase, VARIABLE)

    def _next(self, stage: GraphId, name: str, holds: str = "") -> Path:
        """The next numbered file; FX and GE files share the counter, which starts anew in every folder."""
        place = self._phase(stage)
        if place not in self._next_number:
            self._next_number[place] = sum(_NUMBERED.match(name) is not None for name in os.listdir(place))
        number = self._next_number[place]
        self._next_number[place] += 1
        made = place / f"{number:03d}_aot_{stage.phase}_{name}"
        if holds:
            self._latest[holds] = made.name
        return made


def readable(gm: torch.fx.GraphModule) -> str:
    """A GraphModule as text, with types and source lines."""
    return escape.block(str(gm.print_readable(print_output=False))) + "\n"
