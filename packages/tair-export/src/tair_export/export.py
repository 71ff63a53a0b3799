"""Saving: a captured model becomes an archive.

Tracing needs torch and the converters, which this package must do without. Whoever has them registers a function in the
entry point group ``tair_export.capture``; ``torchair`` does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, Final

from ge_graph import names, passes
from ge_graph.attrs import Attr, Kind
from ge_graph.errors import ArchiveError
from ge_graph.ir import Graph
from ge_graph.pbtxt import to_pbtxt
from ge_graph.serde import to_chunks
from ge_graph.verify import verify
from tair_export import archive, atc, errors, manifest
from tair_export import weights as weight_files
from tair_export.archive import Writer
from tair_export.manifest import Layout
from tair_export.ranks import Rank, current
from tair_export.signature import Signature, to_json
from tair_export.weights import Weight

GROUP: Final = "tair_export.capture"
_OURS: Final = ("tair-export", "ge-graph")


@dataclass
class CapturedModel:
    """A model as a graph, before its weights have a place.

    Attributes:
        graph: Every tensor of the model that it reads is a Data node, or a RefData node if it is a state.
        signature: The contract.
        weights: Name of a Data node to the tensor of the model that it stands for.
        states: Name of a state to its initial value; states are buffers that the model writes.
        device: Device type of the model.
        groups: Communication group in the graph to its ranks.
        versions: Further packages that had a part, for the manifest.
        written: Whether an archive was made of it, which takes the weights out of the graph.
    """

    graph: Graph
    signature: Signature
    weights: Mapping[str, Weight]
    states: Mapping[str, Weight] = field(default_factory=dict)
    device: str = "cpu"
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    written: bool = False


def capture(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, dynamic: bool = False, config: Any = None
) -> CapturedModel:
    """Trace a model with the package that is installed for it.

    Raises:
        ArchiveError: GE5031 if there is none.
    """
    tracers = sorted(entry_points(group=GROUP), key=lambda e: e.name)
    if not tracers:
        raise errors.no_capture(f"no entry point in group '{GROUP}'")
    try:
        trace: Callable[..., CapturedModel] = tracers[0].load()
    except ImportError as error:
        raise errors.no_capture(f"{tracers[0].value}: {error}") from error
    with _TRACING:
        return trace(model, args, dict(kwargs), dynamic=dynamic, config=config)


# Tracers patch the model while they work, so one traces at a time.
_TRACING: Final = threading.Lock()


def save_graph(
    model: Any,
    args: tuple[Any, ...] | list[Any] = (),
    dynamic: bool = False,
    config: Any = None,
    save_path: str | os.PathLike[str] = "save_path",
    **kwargs: Any,
) -> None:
    """See ``CompiledModel.save_graph``."""
    if not isinstance(args, (tuple, list)):
        raise errors.unwritable(
            f"args is a {type(args).__name__}; it must be the tuple of the sample inputs", "save_graph(model, (x,), …)"
        )
    write_graph(capture(model, tuple(args), kwargs, dynamic=dynamic, config=config), save_path)


def write_graph(captured: CapturedModel, path: str | os.PathLike[str], rank: Rank | None = None) -> Path:
    """Write the tree of ``save_graph``.

    Weights up to 64 MiB in all are part of the graph file, above that each has a file. Of several ranks it is 1 MiB,
    and files are named after their content: weights that are equal on many ranks are one file.

    Args:
        captured: The model; its graph is changed, so it is written once.
        path: Folder.
        rank: Which process this is; None finds out.

    Returns:
        The manifest.
    """
    rank = current() if rank is None else rank
    layout = manifest.graph_layout(rank)
    inline_bytes = weight_files.GRAPH_INLINE_BYTES if rank.alone else weight_files.RANKS_INLINE_BYTES
    return _write(captured, path_of(path), layout, rank, inline_bytes, lambda file: file, {}, "graph")


def write_export(
    captured: CapturedModel,
    export_path: str | os.PathLike[str],
    export_name: str,
    *,
    atc_config: bool = False,
    rank: Rank | None = None,
    inline_bytes: int = weight_files.EXPORT_INLINE_BYTES,
) -> Path:
    """Write the tree of ``dynamo_export``.

    Weights up to 2 GB - 200 MB in all are part of the graph file, above that each has a file, which the graph names by
    ``export_path`` as it is given: a relative one counts from the folder in which ATC is started.

    Args:
        captured: The model; its graph is changed, so it is written once.
        export_path: Folder.
        export_name: Name of the graph file.
        atc_config: Write the templates that ATC wants for several devices.
        rank: Which process this is; None finds out.
        inline_bytes: The limit.

    Returns:
        The manifest.
    """
    rank = current() if rank is None else rank
    if not isinstance(export_name, str) or not export_name or names.problem(export_name) or export_name[0] == ".":
        raise errors.unwritable(f"export_name is {export_name!r}", "give a file name that prints on one line")
    if "/" in export_name or "\\" in export_name:
        raise errors.unwritable(f"export_name is {export_name!r}", "give a file name without folders")
    root = path_of(export_path)
    layout = manifest.export_layout(export_name, rank)
    texts = {}
    if atc_config and rank.index == 0:
        texts["model_relation_config.json"] = atc.model_relation(export_name, rank.count, captured.groups)
        texts["numa_config.json"] = atc.numa(rank.count)
    prefix = os.fspath(root)
    return _write(captured, root, layout, rank, inline_bytes, lambda f: os.path.join(prefix, f), texts, "export")


def path_of(path: Any) -> Path:
    """A path given by the user.

    Raises:
        ArchiveError: GE5042 if it is none.
    """
    try:
        return Path(os.fsdecode(path))
    except TypeError:
        raise errors.bad_argument("the path", path, "a str or a pathlib.Path") from None


def _write(
    captured: CapturedModel,
    root: Path,
    layout: Layout,
    rank: Rank,
    inline_bytes: int,
    path_of: Callable[[str], str],
    texts: Mapping[str, bytes],
    kind: str,
) -> Path:
    graph = captured.graph
    if captured.written:
        raise errors.unwritable(
            "this captured model was written before, which moved its weights", "capture the model once more"
        )
    captured.written = True
    used = {n.name for n in graph.inputs}
    read = weight_files.distinct({name: w for name, w in captured.weights.items() if name in used})
    inline = sum(w.bytes for w in read.values()) <= inline_bytes
    states = {w.name: w for w in captured.states.values()}
    named = ([] if inline else list(read)) + [n for n in states if n not in read or inline]
    if layout.shared:
        files = weight_files.content_names([read[n] if n in read else states[n] for n in sorted(named)], layout.weights)
    else:
        files = manifest.file_names(sorted(named), layout.weights)
    outside = {} if inline else {name: files[name] for name in read}
    constants = weight_files.place(graph, captured.weights, outside, path_of)
    _number_inputs(graph, captured.signature)
    # What was an input when the passes ran is a constant now, and no constant may stand where an operator writes.
    passes.run(graph, [passes.ProtectWrittenTensors()])
    verify(graph)
    written = {name: read[name] if name in outside else states[name] for name in files}
    written = {name: w for name, w in written.items() if w.bytes or name in states}
    own = {name: list(ranks) for name, ranks in captured.groups.items() if rank.index in ranks}
    with archive.reported("the archive cannot be written", root), Writer(root, layout) as writer:
        for file, weight in {files[name]: weight for name, weight in written.items()}.items():
            writer.add(file, [weight.data().data])
        writer.add(layout.graph, _limited(to_chunks(graph), graph.name))
        if kind == "export":
            writer.add(manifest.under(layout.others, "dynamo.pbtxt"), [to_pbtxt(graph).encode()])
        for name, text in texts.items():
            writer.add(name, [text])
        return writer.commit(
            {
                "device": captured.device,
                **({"groups": own} if own else {}),
                "kind": kind,
                "rank": [rank.index, rank.count],
                "signature": to_json(captured.signature),
                "states": {name: weight.name for name, weight in sorted(captured.states.items())},
                "weights": weight_files.listing(list(written.values()), files, constants),
                "writer": {**{name: version(name) for name in _OURS}, **captured.versions},
            }
        )


def _limited(chunks: Iterator[bytes | memoryview], name: str) -> Iterator[bytes | memoryview]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > manifest.GRAPH_BYTES:
            raise ArchiveError(
                "GE5032",
                f"graph '{name}' takes more than the {manifest.GRAPH_BYTES} bytes that a graph file can hold",
                next="make its large constants parameters or buffers of the model",
            )
        yield chunk


def _number_inputs(graph: Graph, signature: Signature) -> None:
    """Dense indexes again, after the weights are gone."""
    inputs = graph.inputs
    if len(inputs) != len(signature.feeds):
        raise errors.unwritable(
            f"the graph has {len(inputs)} inputs, the signature feeds {len(signature.feeds)}", "report this as a bug"
        )
    for position, node in enumerate(inputs):
        node.attrs["index"] = Attr(Kind.INT, position)
