"""GE-mode data dump on the embedded engine: ``config.dump_config``.

Tree: ``<path>/worldsize<W>_global_rank<R>/<time>/<device>/<model name>/<model id>/<iteration>/``. A device leaves
binary files there that CANN's tool turns into npy; the embedded engine leaves the npy files themselves, under the names
that the tool gives them: ``<op type>.<op name>.<task>.<stream>.<time>.<input or output>.<i>.npy``. ``provenance.json``
beside the iterations says which FX node and which line of the user each operator comes from.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_graph import Graph, Node, escape
from tair_debug import artefacts
from tair_debug.data_dump import as_numpy, write_npy

OPTION: Final = "config.dump_config.dump_path"
PROVENANCE: Final = "provenance.json"
DEVICE: Final = 0
STATISTICS: Final = (
    "Input/Output",
    "Index",
    "Data Size",
    "Data Type",
    "Format",
    "Shape",
    "Max Value",
    "Min Value",
    "Avg Value",
    "Count Nan",
    "Count Negative Inf",
    "Count Positive Inf",
)


def wanted_step(steps: str | None) -> Callable[[int], bool]:
    """Whether an iteration is dumped, from ``0|3-5|10``; None means all."""
    if not steps:
        return lambda step: True
    spans = [part.partition("-") for part in steps.split("|")]
    ranges = [(int(low), int(high or low)) for low, _, high in spans]
    return lambda step: any(low <= step <= high for low, high in ranges)


def clean(name: str) -> str:
    """A name as it stands in names of files: dots, slashes and blanks as underlines, short, nothing else unusual."""
    return escape.file_name(re.sub(r"[./\\ ]", "_", name))


class DumpingExecutable:
    """An executable that saves what its operators read and write.

    Args:
        inner: The executable; ``run_traced`` gives its values.
        options: GE options; those that begin with ``ge.exec.dump`` count.

    Errors: ConfigError GE1041 if a file cannot be written.
    """

    def __init__(self, inner: Any, graph: Graph, options: Mapping[str, str], model_id: int) -> None:
        self.inner = inner
        self.graph = graph
        self._mode = options.get("ge.exec.dumpMode", "all")
        self._stats = options.get("ge.exec.dumpData", "tensor") == "stats"
        self._layers = frozenset(options.get("ge.exec.dumpLayer", "").split())
        self._step = 0
        self._wanted = wanted_step(options.get("ge.exec.dumpStep"))
        self._base = Path(options.get("ge.exec.dumpPath", "./"))
        self._tail = Path(str(DEVICE)) / clean(graph.name) / str(model_id)
        self._clock = time.time()
        self._home: Path | None = None
        self._tasks = {id(node): (number, name) for number, (node, name) in enumerate(_named(graph))}
        # An operator that is named brings the graph inputs that it reads along.
        read = {t.node for node, name in _named(graph) if name in self._layers for t in node.operands()}
        self._read = [(i, node) for i, node in enumerate(graph.inputs) if node in read]
        self._layers |= {self._tasks[id(node)][1] for _, node in self._read}

    @property
    def source(self) -> str:
        return str(self.inner.source)

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run, and dump if this iteration is wanted."""
        step, self._step = self._step, self._step + 1
        if not self._wanted(step):
            return list(self.inner.run(inputs))
        place = artefacts.folder(self._folder() / str(step), OPTION)
        for position, node in self._read:
            self._save(place, node, (), [inputs[position]])
        return list(self.inner.run_traced(inputs, lambda *event: self._save(place, *event)))

    def _folder(self) -> Path:
        """The folder of this executable; where another process took it in the same second, that of a later second."""
        while self._home is None:
            clock = time.strftime("%Y%m%d%H%M%S", time.localtime(self._clock))
            home = self._base / artefacts.rank_folder() / clock / self._tail
            if artefacts.fresh_folder(home, OPTION):
                artefacts.write_text(home / PROVENANCE, provenance_text(self.graph), OPTION)
                self._home = home
            self._clock += 1
        return self._home

    def run_traced(self, inputs: Sequence[Any], on_node: Any) -> list[Any]:
        """As the executable within, without a dump."""
        return list(self.inner.run_traced(inputs, on_node))

    def _save(self, place: Path, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        task, name = self._tasks[id(node)]
        if self._layers and name not in self._layers:
            return
        stem = f"{escape.file_name(node.op, 60)}.{clean(name)}.{task}.0.{artefacts.stamp()}"
        groups = [("input", inputs)] if self._mode != "output" else []
        groups += [("output", outputs)] if self._mode != "input" else []
        arrays = [(what, i, as_numpy(v)) for what, values in groups for i, v in enumerate(values)]
        if self._stats:
            text = statistics([(what, i, a) for what, i, a in arrays if a is not None])
            artefacts.write_text(place / f"{stem}.csv", text, OPTION)
            return
        for what, index, array in arrays:
            if array is not None:
                write_npy(os.fspath(place / f"{stem}.{what}.{index}.npy"), array, OPTION)


def _named(graph: Graph, path: str = "") -> Iterator[tuple[Node, str]]:
    """Nodes with their names; those in graphs of nodes are called ``NODE/SLOT/NAME``."""
    for node in graph.nodes:
        yield node, f"{path}{node.name}"
    for node in graph.nodes:
        for slot, inner in node.subgraphs.items():
            yield from _named(inner, f"{path}{node.name}/{slot}/")


def provenance_text(graph: Graph) -> str:
    """JSON: operator name to FX node, target, source line, and for one in a graph of a node ``NODE/SLOT`` of it."""
    origins = {
        clean(name): {
            "fx": p.fx_name,
            "target": p.fx_target,
            "module": p.module,
            "source": p.source,
            "code": p.code,
            "inside": name.rpartition("/")[0] if n.graph is not graph else "",
        }
        for n, name in _named(graph)
        if (p := n.provenance) is not None
    }
    return json.dumps(origins, indent=1) + "\n"


def statistics(arrays: Sequence[tuple[str, int, np.ndarray[Any, Any]]]) -> str:
    """A csv with one line per tensor: size, type, shape, extremes, mean, what is not finite."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(STATISTICS)
    for what, index, array in arrays:
        shape = "x".join(map(str, array.shape))
        writer.writerow([what, index, array.nbytes, array.dtype.name, "ND", shape, *_numbers(array)])
    return out.getvalue()


def _numbers(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.dtype.kind == "c" or not array.size:
        return ["", "", "", 0, 0, 0]
    wide = array.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    extremes = [finite.max(), finite.min(), finite.mean()] if finite.size else ["", "", ""]
    return [*extremes, int(np.isnan(wide).sum()), int(np.isneginf(wide).sum()), int(np.isposinf(wide).sum())]
