"""Weights: written from the model's own memory, mapped when read.

A tensor that many parameters share is one constant and one file; equal weights of several ranks are one file too. What
is not row-major in memory is copied when its turn comes, one tensor at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_graph import escape, names
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import FileLiteral, Graph, Literal, Node, Tensor, WeightLiteral
from ge_graph.serde_write import literal_bytes
from tair_export import errors, manifest
from tair_export.archive import Archive

# Below these totals weights are part of the graph file: what ``dynamo_export`` documents, and what ``save_graph`` can
# parse in a fraction of a second (a larger graph is better mapped than copied).
EXPORT_INLINE_BYTES: Final = (2 << 30) - (200 << 20)
GRAPH_INLINE_BYTES: Final = 64 << 20
# What a graph file holds is no file that ranks could share, so little of it is.
RANKS_INLINE_BYTES: Final = 1 << 20

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Weight:
    """A tensor of the model.

    Attributes:
        name: Parameter name, ``layers.0.weight``.
        data: Gives its bytes, flat, row-major, little-endian; a view of the model's memory where that is so laid out.
        identity: Equal for parameters that are one tensor.
    """

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    data: Callable[[], Bytes]
    identity: Any = None

    @property
    def bytes(self) -> int:
        size = literal_bytes(self.dtype, self.shape)
        if size is None:
            raise errors.unwritable(f"'{self.name}' has elements of type {self.dtype.name}", "convert it first")
        return size


def distinct(weights: Mapping[str, Weight]) -> dict[str, Weight]:
    """The first weight of each identity."""
    first: dict[Any, Weight] = {}
    for weight in weights.values():
        first.setdefault(weight.name if weight.identity is None else weight.identity, weight)
    return {w.name: w for w in first.values()}


def content_names(weights: Iterable[Weight], folder: str) -> dict[str, str]:
    """Weight name to a file named after the content, which is one file for equal contents."""
    return {w.name: manifest.under(folder, hashlib.sha256(w.data().data).hexdigest()) for w in weights}


def place(
    graph: Graph, weights: Mapping[str, Weight], files: Mapping[str, str], path_of: Callable[[str], str]
) -> dict[str, str]:
    """Turn the Data nodes of weights into constants; afterwards the graph has the other inputs only.

    Args:
        weights: Name of the Data node to its weight.
        files: Weight name to file, for those that lie outside the graph.
        path_of: File to the path that the graph shall name.

    Returns:
        Name of each outside weight that the graph reads, and of its constant: the same unless it is taken, or no name.
    """
    made: dict[Any, Tensor] = {}
    mapping: dict[Tensor, Tensor] = {}
    outside: dict[str, str] = {}
    old = [n for n in graph.inputs if n.name in weights]
    count = len(graph.nodes)
    for node in old:
        weight = weights[node.name]
        key = weight.name if weight.identity is None else weight.identity
        if key not in made:
            file = files.get(weight.name) if weight.bytes else None
            made[key] = _constant(graph, node, weight, None if file is None else path_of(file))
            if file is not None:
                outside[weight.name] = made[key].node.name
        mapping[node.outputs[0]] = made[key]
    constants = graph.nodes[count:]
    graph.nodes = [*constants, *graph.nodes[:count]]
    graph.replace_all_uses(mapping)
    for node in graph.nodes:
        node.control = [c for c in node.control if c not in old]
    graph.remove(old)
    return outside


def _constant(graph: Graph, node: Node, weight: Weight, path: str | None) -> Tensor:
    name = escape.file_name(weight.name) if names.problem(weight.name) else weight.name
    name = name if name not in graph else graph.unique_name(name)
    outputs = [(weight.dtype, weight.shape)]
    if path is None:
        value = Literal(weight.dtype, weight.shape, weight.data())
        made = graph.add("Const", (), {"value": Attr(Kind.TENSOR, value)}, outputs, name=name)
    else:
        made = graph.add("FileConstant", (), file_attrs(weight, path), outputs, name=name)
    made.provenance = node.provenance
    made.outputs[0].format = node.outputs[0].format
    return made.outputs[0]


def file_attrs(weight: Weight, path: str) -> dict[str, Attr]:
    """Attributes of the FileConstant of a weight that fills a file."""
    return {
        "dtype": Attr(Kind.TYPE, weight.dtype),
        "file_id": Attr(Kind.STRING, ""),
        "file_path": Attr(Kind.STRING, path),
        "length": Attr(Kind.INT, weight.bytes),
        "location": Attr(Kind.STRING, path),
        "offset": Attr(Kind.INT, 0),
        "shape": Attr(Kind.LIST_INT, tuple(weight.shape)),
    }


def listing(weights: Sequence[Weight], files: Mapping[str, str], constants: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the manifest says of outside weights; those that the graph reads stand under the name of their constant."""
    return [
        {"dtype": w.dtype.name, "file": files[w.name], "name": constants.get(w.name, w.name), "shape": list(w.shape)}
        for w in sorted(weights, key=lambda w: w.name)
    ]


class Mapped:
    """The outside weights of an archive as constants on mapped memory."""

    def __init__(self, archive: Archive) -> None:
        self._where = archive.path
        self._found = dict(_literals(archive))

    def __getitem__(self, name: str) -> Literal:
        if name not in self._found:
            raise errors.weight(name, "the graph reads it, the manifest does not list it", self._where)
        return self._found[name]

    def attach(self, graph: Graph) -> None:
        """Give every FileConstant its data.

        Raises:
            ArchiveError: GE5026 if type or shape is another one than the graph says.
        """
        for node in graph.nodes:
            if node.op == "FileConstant":
                attach(node, self[node.name], self._where)


def attach(node: Node, value: Literal, where: Path) -> None:
    """Make a FileConstant the Const of its data."""
    output = node.outputs[0]
    if output.dtype is not value.dtype or (output.known_shape is not None and output.known_shape != value.shape):
        raise errors.weight(
            node.name, f"the file is {value.dtype.name}{list(value.shape)}, the graph has {output}", where
        )
    node.op = "Const"
    node.attrs = {"value": Attr(Kind.TENSOR, value)}


def _literals(archive: Archive) -> Iterator[tuple[str, Literal]]:
    for name, dtype, shape, file in manifest.weights(archive.manifest, archive.path):
        content = archive.data(file)
        data = np.frombuffer(content, np.uint8) if len(content) else np.empty(0, np.uint8)
        place = archive.mapped_file(file)
        yield name, WeightLiteral(dtype, shape, data) if place is None else FileLiteral(dtype, shape, data, place)


def outside(path: str, folder: Path, allow_outside: bool, where: Path) -> Path:
    """The file that a FileConstant of others names.

    Its path counts from the folder in which the tool ran; the file itself lies beside the graph.

    Raises:
        ArchiveError: GE5024 if it lies elsewhere and that is not allowed, GE5041 if there is none.
    """
    base = folder.resolve()
    parts = Path(path).parts
    for at in range(len(parts)):
        inside = folder.joinpath(*[p for p in parts[at:] if p != "/"])
        if inside.is_file():
            if not allow_outside and not inside.resolve().is_relative_to(base):
                raise errors.unsafe_name(path, "leads out of the folder of the graph", where)
            return inside
    if Path(path).is_file():
        if not allow_outside:
            raise errors.unsafe_name(path, "leads out of the folder of the graph", where)
        return Path(path)
    raise errors.foreign(f"weight file '{path}' is missing", where, "keep the weight files beside the graph file")
