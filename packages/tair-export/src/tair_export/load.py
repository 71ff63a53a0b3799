"""Loading: an archive, or a graph file of others, becomes something to call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ge_graph import escape, serde
from ge_graph.cost import MemoryAnalysis, cost_analysis, memory_analysis
from ge_graph.dtypes import DataType
from ge_graph.errors import ArchiveError
from ge_graph.ir import Graph, Literal
from ge_runtime.api import Engine, Executable
from ge_runtime.discovery import choose
from ge_runtime.errors import no_group
from tair_export import errors, manifest, signature, tensors
from tair_export.archive import Archive, Authenticate, Verify, open_archive
from tair_export.export import path_of, save_graph
from tair_export.ranks import Rank, current
from tair_export.signature import NUMBERS, Input, Output, Signature
from tair_export.weights import Mapped


class CompiledModel:
    """A saved graph, ready to run.

    Call it as the model was called when it was saved, with torch tensors or numpy arrays. It returns the model's
    structure: tuples, lists and dicts as they are, other classes as ``Record``. If arrays and no tensors go in, arrays
    come out (bfloat16 results as float32, which holds every such value).

    Attributes:
        signature: What it takes and returns.
        graph: The graph.
        states: Buffers that the model writes, by name. They begin with the values saved and live as long as this
            object; a process that loads the archive has its own.
        rank: Which of the processes that saved the model this graph is for.
        groups: Communication groups that the graph names, with the ranks of each, in order.
    """

    rank = Rank(0, 1)
    groups: Mapping[str, Sequence[int]] = MappingProxyType({})
    _engine: Engine | None = None

    def __init__(
        self, graph: Graph, contract: Signature, executable: Executable, states: Mapping[str, Any], name: str = ""
    ) -> None:
        self.graph = graph
        self.signature = contract
        self.states = dict(states)
        self.name = name or graph.name
        self.executable = executable
        self._written = [n.op == "RefData" for n in graph.inputs]

    @staticmethod
    def save_graph(
        model: Any,
        args: tuple[Any, ...] | list[Any] = (),
        dynamic: bool = False,
        config: Any = None,
        save_path: str | os.PathLike[str] = "save_path",
        **kwargs: Any,
    ) -> None:
        """Trace a model and save its graph and weights for ``load_graph``.

        Args:
            model: The module.
            args: Tuple of sample inputs; their values decide which branches are taken.
            dynamic: Whether sizes may change; sizes 0 and 1 of the samples stay fixed.
            config: A ``torchair.CompilerConfig``.
            save_path: Folder, made if missing. It will hold ``compiled_graph.air``, or
                ``rank_<r>/compiled_graph<r>.air`` where several processes save.
            kwargs: Sample inputs by keyword.

        Errors: ArchiveError GE5030 if inputs, results or parameters have no form in an archive, GE5031 where no package
        can trace; LoweringError and ConfigError as for ``torch.compile``.
        """
        save_graph(model, args, dynamic, config, save_path, **kwargs)

    def cost_analysis(self, sizes: Mapping[str, int] | None = None, soc: str | None = None) -> dict[str, float]:
        """``flops``, ``bytes accessed`` and, for a chip, ``optimal_seconds``; nothing runs.

        Args:
            sizes: Values of the graph's symbols, if it has some.
            soc: A chip such as ``Ascend910B3``.

        Errors: GraphError GE3072 if a symbol has no value, GE3073 for a chip without figures.
        """
        return cost_analysis(self.graph, sizes, soc)

    def memory_analysis(self, sizes: Mapping[str, int] | None = None) -> MemoryAnalysis:
        """Sizes of inputs, results and intermediate results, and the peak.

        Errors: GraphError GE3072 if a symbol has no value.
        """
        return memory_analysis(self.graph, sizes)

    @staticmethod
    def load_graph(
        load_path: str | os.PathLike[str],
        *,
        verify: Verify = True,
        device: str | None = None,
        options: Mapping[str, str] | None = None,
        allow_outside: bool = False,
        rank: Rank | None = None,
        copy: bool = False,
        authenticate: Authenticate | None = None,
    ) -> CompiledModel:
        """Load what ``save_graph`` or ``dynamo_export`` wrote.

        Weight files are mapped: processes share their pages. Should another process cut such a file short later, the
        next run ends this one (SIGBUS); ``copy`` guards against that.

        Args:
            load_path: The folder given as ``save_path``, or a graph file in it.
            verify: True or ``full`` compares every byte with its checksum, ``fast`` the graph and both ends of each
                weight file, ``auto`` is full up to 256 MiB, False or ``sizes`` compares sizes.
            device: Device type to run on; None is that of the saved model.
            options: Options for the engine.
            allow_outside: Follow names that lead out of the folder.
            rank: Which process this is; None finds out.
            copy: Read the weight files into memory instead of mapping them.
            authenticate: Called with the manifest's bytes and path; raises or returns False if they come from nobody
                known (``tair_export.signing.signed_by``). Files are then copied: what was checked is what runs.

        Errors: ArchiveError 502x for anything wrong with the files; EngineError if no engine can run the graph.
        """
        check_options(options)
        archive = open_archive(
            path_of(load_path),
            current() if rank is None else rank,
            verify=verify,
            allow_outside=allow_outside,
            copy=copy,
            authenticate=authenticate,
        )
        graph, contract = read_graph(archive)
        states = _states(archive)
        groups = manifest.groups(archive.manifest, archive.path)
        wanted = str(archive.manifest.get("device", "cpu")) if device is None else device
        engine = choose(wanted)
        executable = engine.compile(graph, dict(options or {}))
        live = {name: engine.place(value) for name, value in states.items()}
        model = CompiledModel(graph, contract, executable, live, archive.path.name)
        model.groups, model._engine = groups, engine
        model.rank = Rank(*archive.manifest["rank"]) if groups else Rank(0, 1)
        return model

    @contextlib.contextmanager
    def opened_groups(self, seconds: float = 300.0) -> Iterator[None]:
        """Inside, the process groups that the graph names exist, made with the other processes that torchrun started.

        Nothing happens for a graph without groups. On the CPU they are torch.distributed's, with gloo; on a device
        HCCL's, without torch. Groups that the process has already are taken; what was made here goes with the block.

        Args:
            seconds: How long this process waits for another, for the groups and in each collective.

        Errors: EngineError GE4011 if the processes do not find each other, if this process has another rank than the
        graph, or if there are more or fewer processes than saved the model.
        """
        opened = getattr(self._engine, "opened_groups", None)
        if not self.groups or opened is None:
            yield
            return
        now = current()
        if now != self.rank:
            raise no_group(
                next(iter(self.groups)),
                f"the graph is for rank {self.rank.index} of {self.rank.count}, this process is rank {now.index} of "
                f"{now.count}",
            )
        with opened(self.groups, seconds):
            yield

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run.

        Errors: ArchiveError GE5040 if the arguments are not those of the signature; EngineError if the run fails.
        """
        contract = self.signature
        leaves = contract.flatten(args, kwargs)
        for at, (entry, value) in enumerate(zip(contract.inputs, leaves)):
            leaves[at] = _checked(entry, value)
        numbers = {at: leaves[at] for at, entry in enumerate(contract.inputs) if entry.kind == "number"}
        contract.check_sizes([tensors.shape_of(v) for v in leaves], numbers)
        values = [self.states[f] if isinstance(f, str) else leaves[f] for f in contract.feeds]
        for value, feed, written in zip(values, contract.feeds, self._written):
            if written and isinstance(value, np.ndarray) and not value.flags.writeable:
                name = contract.inputs[feed].name if isinstance(feed, int) else feed
                raise errors.bad_call(f"input '{name}' is a read-only array", "one that the graph may write to")
        results = self.executable.run(values)
        arrays = tensors.only_arrays(leaves)
        return contract.unflatten([_result(o, results, leaves, arrays) for o in contract.outputs])

    def __repr__(self) -> str:
        return f"<CompiledModel {self.name} {self.signature.text()}>"


def check_options(options: Any) -> None:
    """GE5042 if options for an engine are not texts by name."""
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(t, str) for pair in options.items() for t in pair):
        raise errors.bad_argument("options", options, "a dict from text to text, or None")


def _checked(entry: Input, value: Any) -> Any:
    if entry.kind == "tensor":
        if tensors.shape_of(value) is None:
            raise errors.bad_call(f"input '{entry.name}' is {type(value).__name__}", signature.describe(entry))
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
            raise errors.bad_call(f"input '{entry.name}' is an array of {value.dtype}", signature.describe(entry))
        return value
    if entry.kind == "number":
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise errors.bad_call(f"input '{entry.name}' is {type(value).__name__} {value!r}", "an int")
        try:
            number = int(value.__index__())
        except (TypeError, ValueError, RuntimeError):  # a tensor of several elements, or of floats
            raise errors.bad_call(f"input '{entry.name}' is {type(value).__name__}", "an int") from None
        if not -(1 << 63) <= number < 1 << 63:
            raise errors.bad_call(f"input '{entry.name}' is {escape.line(repr(number), 40)}", "an int of 64 bits")
        return number
    if entry.kind == "constant" and not (type(value) is type(entry.value) and same(value, entry.value)):
        raise errors.bad_call(f"input '{entry.name}' is {value!r}", f"{entry.value!r}, the value when it was saved")
    return value


def same(a: Any, b: Any) -> bool:
    """Equal, NaN included."""
    return bool(a == b or (a != a and b != b))


def _result(entry: Output, results: Sequence[Any], leaves: Sequence[Any], arrays: bool) -> Any:
    if entry.kind == "tensor":
        value = tensors.in_order(results[entry.index], entry.order)
        return tensors.to_numpy(value) if arrays else value
    if entry.kind == "number":
        return NUMBERS[entry.value](results[entry.index])
    return leaves[entry.index] if entry.kind == "input" else entry.value


def read_graph(archive: Archive) -> tuple[Graph, Signature]:
    """Graph and signature of an archive; the weights are attached.

    Raises:
        ArchiveError: 5xxx if they are damaged or contradict each other.
    """
    try:
        contract = signature.from_json(archive.manifest.get("signature"))
    except (ValueError, TypeError, RecursionError) as error:
        raise errors.bad_manifest(f"signature: {error}", archive.path) from None
    name = archive.manifest["graph"]
    try:
        graph = serde.from_bytes(archive.data(name))
    except ArchiveError as error:
        raise ArchiveError(
            error.code, error.what, where=f"{archive.root / name}, {error.where}", next=error.next
        ) from None
    for node in graph.nodes:
        node.attrs.pop("nn_module_stack", None)  # for ATC; no schema lists it
    Mapped(archive).attach(graph)
    _fit(graph, contract, archive.path)
    return graph, contract


def _fit(graph: Graph, contract: Signature, where: Path) -> None:
    inputs = graph.inputs
    if [n.attr("index") for n in inputs] != list(range(len(contract.feeds))):
        raise errors.bad_manifest(f"{len(inputs)} inputs in the graph, {len(contract.feeds)} in the signature", where)
    for node, feed in zip(inputs, contract.feeds):
        entry = contract.inputs[feed] if isinstance(feed, int) else None
        dtype = None if entry is None else DataType.DT_INT64 if entry.kind == "number" else entry.dtype
        if entry is not None and (dtype is not node.outputs[0].dtype or entry.kind not in ("tensor", "number")):
            raise errors.bad_manifest(f"input '{entry.name}' is {entry.dtype}, the graph has {node.outputs[0]}", where)
    for out in contract.outputs:
        if out.kind in ("tensor", "number") and out.index >= len(graph.outputs):
            raise errors.bad_manifest(f"output {out.index} of {len(graph.outputs)}", where)
        if out.kind == "tensor" and graph.outputs[out.index].dtype is not out.dtype:
            raise errors.bad_manifest(
                f"output {out.index} is {out.dtype}, the graph has {graph.outputs[out.index]}", where
            )


def _states(archive: Archive) -> dict[str, Literal]:
    listed = archive.manifest.get("states")
    if not isinstance(listed, dict):
        raise errors.bad_manifest("states is not an object", archive.path)
    mapped = Mapped(archive)
    feeds = archive.manifest["signature"]["feeds"]
    if missing := [f for f in feeds if isinstance(f, str) and f not in listed]:
        raise errors.bad_manifest(f"states {missing[:5]} are fed, but not listed", archive.path)
    return {str(name): mapped[str(weight)] for name, weight in listed.items()}
