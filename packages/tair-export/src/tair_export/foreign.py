"""Graph files of others: an ``.air`` or text graph without a manifest."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ge_graph import escape, names, schema, serde, txt
from ge_graph.dtypes import DataType
from ge_graph.errors import ArchiveError, GeError
from ge_graph.files import opened, plain
from ge_graph.ir import Graph, Literal, Node, WeightLiteral
from ge_graph.serde_write import literal_bytes
from ge_runtime.discovery import choose
from tair_export import errors, weights
from tair_export.export import path_of
from tair_export.load import CompiledModel, check_options
from tair_export.manifest import GRAPH_BYTES
from tair_export.mapping import map_file
from tair_export.signature import LEAF, Input, Output, Signature, Tree

logger = logging.getLogger(__name__)
_SHOWN: Final = 10
_AGAIN: Final = "have the file written again"
_OM_MAGIC: Final = (0x444F4D49).to_bytes(4, "little")


def read_air(path: str | os.PathLike[str], *, allow_outside: bool = False) -> Graph:
    """Read a graph file: a ``ModelDef`` or ``GraphDef`` in protobuf's binary or text form.

    What the writer left out because it is the default is filled in from the schemas; attributes that no schema knows
    are dropped, and weight files are mapped. Names that GE does not take are repaired, and the log tells which.

    Args:
        path: The file.
        allow_outside: Follow paths of weights that lead out of the file's folder.

    Raises:
        ArchiveError: 5xxx if it is no such file, or weights are missing; GE5043 for an ``.om``.
    """
    where = path_of(path)
    graph = _parse(_content(where), where)
    if changed := names.repair(graph):
        shown = "; ".join(changed[:_SHOWN]) + (f"; and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else "")
        logger.warning(
            "%s: %d names that GE does not take were repaired: %s", escape.line(str(where)), len(changed), shown
        )
    for part in _all(graph):
        for node in part.nodes:
            if node.op == "FileConstant" or _is_split(node):
                weights.attach(node, _file_value(node, where, allow_outside), where)
            _complete(node)
    return graph


def _content(where: Path) -> bytes:
    """The bytes of a plain file of a possible size; pipes and devices are never read."""
    try:
        with plain(where) as file:
            size = os.fstat(file.fileno()).st_size
            if size > GRAPH_BYTES:
                raise errors.too_large(f"{size} bytes, a graph file has at most {GRAPH_BYTES}", where)
            data = file.read(GRAPH_BYTES)
    except GeError:
        raise
    except (OSError, ValueError, MemoryError) as error:
        why = f"cannot be read: {errors.system_says(error)}"
        raise errors.missing(why, where, "give the path of a graph file") from error
    if data[:4] in (_OM_MAGIC, _OM_MAGIC[::-1]):
        raise errors.om(where)
    return data


def _is_split(node: Node) -> bool:
    """A constant of a model that was too large for one message: GE leaves the data out and names a file for it."""
    return node.op in ("Const", "Constant") and "location" in node.attrs and len(node.outputs) == 1


def _parse(data: bytes, where: Path) -> Graph:
    """A model, a bare graph, or the text of either; what is a model, but a damaged one, is not tried as the others."""
    try:
        return serde.from_bytes(data)
    except ArchiveError as error:
        first = ArchiveError(error.code, error.what, where=f"{where}, {error.where}", next=error.next)
        if error.code not in ("GE5001", "GE5002"):
            raise first from None
    with contextlib.suppress(ArchiveError):
        graph = serde.from_graph_bytes(data)
        if graph.nodes:  # any message without known fields parses as an empty one
            return graph
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise first from None
    if "\0" in text or "{" not in text:
        raise first
    return txt.from_txt(text)


def _all(graph: Graph) -> list[Graph]:
    graphs = [graph]
    for part in graphs:
        graphs += [inner for node in part.nodes for inner in node.subgraphs.values()]
    return graphs


def _complete(node: Node) -> None:
    known = schema.get(node.op)
    if known is None:
        return
    listed = {a.name: a for a in known.attrs}
    node.attrs = {k: a for k, a in node.attrs.items() if k in listed or k.startswith("_") or k == "N"}
    for name, attr in listed.items():
        if name not in node.attrs and not attr.required and attr.default is not None:
            node.attrs[name] = attr.default
    missing = len(known.inputs) - len(node.inputs)
    if missing > 0 and all(p.kind == "optional" for p in known.inputs[-missing:]):
        node.inputs += [None] * missing


def _file_value(node: Node, where: Path, allow_outside: bool) -> Literal:
    path = _text(node, "location", where) or _text(node, "file_path", where)
    if len(node.outputs) != 1:
        raise errors.weight(node.name, f"{len(node.outputs)} outputs, a constant has one", where)
    output = node.outputs[0]
    listed = node.attr("shape")
    shape = tuple(output.known_shape or () if listed is None or not isinstance(listed, tuple) else listed)
    if any(type(d) is not int or d < 0 for d in shape):
        raise errors.weight(node.name, f"shape {list(shape)}", where)
    offset = node.attr("offset", 0)
    size = literal_bytes(output.dtype, shape)
    try:
        with opened(weights.outside(path, where.parent, allow_outside, where)) as handle:
            total = os.fstat(handle).st_size
            if size is None or type(offset) is not int or offset < 0 or offset + size > total:
                raise errors.weight(node.name, f"{output.dtype.name}{list(shape)} at {offset} of {total} bytes", where)
            view = map_file(handle, path, total, where)
    except GeError:
        raise
    except (OSError, ValueError) as error:
        raise errors.weight(node.name, f"'{path}' cannot be read: {error}", where) from error
    return WeightLiteral(output.dtype, shape, np.frombuffer(view, np.uint8, size, offset))


def _text(node: Node, name: str, where: Path) -> str:
    value = node.attr(name, "")
    if not isinstance(value, str):
        raise errors.weight(node.name, f"attribute '{name}' is {type(value).__name__}, not a text", where)
    return value


def load_air(
    path: str | os.PathLike[str],
    *,
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    allow_outside: bool = False,
) -> CompiledModel:
    """Load a graph file of others and make it callable.

    The file tells names, types and sizes, but no structure: the result takes the inputs in index order, or by name, and
    returns a tensor, or a tuple of tensors.

    Args:
        path: The ``.air`` or text file.
        device: Device type to run on.
        options: Options for the engine.
        allow_outside: See ``read_air``.

    Errors: ArchiveError as ``read_air``; GraphError and EngineError for operators that are not known or have no kernel.
    """
    check_options(options)
    graph = read_air(path, allow_outside=allow_outside)
    contract = contract_of(graph, path_of(path))
    return CompiledModel(graph, contract, choose(device).compile(graph, dict(options or {})), {}, path_of(path).name)


def contract_of(graph: Graph, where: Path) -> Signature:
    """The signature that a bare graph tells.

    Raises:
        ArchiveError: GE5041 if inputs are not numbered 0, 1, 2 …
    """
    nodes = graph.inputs
    if [n.attr("index", 0) for n in nodes] != list(range(len(nodes))):
        indices = [(n.name, n.attr("index", 0)) for n in nodes]
        raise errors.foreign(f"inputs {indices[:5]} are not numbered 0, 1, 2 …", where, _AGAIN)
    inputs = []
    for node in nodes:
        if len(node.outputs) != 1:
            raise errors.foreign(f"input '{node.name}' has {len(node.outputs)} outputs", where, _AGAIN)
        output = node.outputs[0]
        if output.dtype is DataType.DT_UNDEFINED or output.known_shape is None:
            raise errors.foreign(f"input '{node.name}' has no type or rank", where, _AGAIN)
        sizes = tuple(
            d if isinstance(d, str) or d >= 0 else f"{node.name}.{i}" for i, d in enumerate(output.known_shape)
        )
        inputs.append(Input(node.name, "tensor", output.dtype, sizes))
    outputs = tuple(Output("tensor", i, t.dtype, tuple(t.known_shape or ())) for i, t in enumerate(graph.outputs))
    result: Tree = LEAF if len(outputs) == 1 else {"tuple": [LEAF] * len(outputs)}
    names = tuple(i.name for i in inputs)
    feeds = tuple(range(len(inputs)))
    return Signature({"tuple": [LEAF] * len(inputs)}, {"dict": []}, names, result, tuple(inputs), outputs, feeds)
