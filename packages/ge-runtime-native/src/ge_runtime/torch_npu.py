"""Running GE graphs through torch_npu: its wheel ships an extension module that hands graphs to GE.

That module comes from the same maker and release as the user's torch_npu, which is matched to the user's CANN. It is
loaded from its file, under the name that torch_npu's own torchair gives it: Python code that wants it later gets the
same module, because its classes can be registered only once a process.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import importlib.util
import logging
import operator
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch

from ge_graph import serde
from ge_graph.dtypes import BY_TORCH_NAME, DataType, Format
from ge_graph.errors import EngineError
from ge_graph.ir import Graph, Literal
from ge_graph.option_levels import split
from ge_graph.verify import verify
from ge_runtime import errors
from ge_runtime.api import Capability
from ge_runtime.cann import torch_tensors
from ge_runtime.cann.probe import missing_libraries
from ge_runtime.cann.reading import SeenInputs
from ge_runtime.cann.session import named_device
from ge_runtime.device_graphs import (
    ALWAYS,
    MAX_MODEL_BYTES,
    DataRule,
    SameInputs,
    WholeGraph,
    check_cores,
    collectives,
    external_data,
    frozen_flags,
    handing_over,
    late_options,
    renamed_groups,
    reuse_pairs,
)

logger: Final = logging.getLogger(__name__)

# In the order in which they must be loaded: the second adds running on a device to the first.
_MODULES: Final = ("_torchair", "_npu_graph_executor")
_FOLDER: Final = ("dynamo", "torchair", "core")
_NAME: Final = "torchair.core"
_HOST, _DEVICE, _ON_NPU = 0, 1, 1
_WAITS_FOR_RANKS: Final = ("TORCH_HCCL_BLOCKING_WAIT", "HCCL_BLOCKING_WAIT")


def _package() -> Path | None:
    """The folder of torch_npu, which is not imported for it."""
    loaded = sys.modules.get("torch_npu")
    where = getattr(loaded, "__file__", None)
    if where is None:
        spec = importlib.util.find_spec("torch_npu") if loaded is None else None
        where = None if spec is None else spec.origin
    return None if where is None else Path(where).parent


def _missing() -> list[str]:
    package = _package()
    if package is None:
        return ["torch_npu is not installed"]
    folder = package.joinpath(*_FOLDER)
    lost = [f"{folder / name}.so is missing" for name in _MODULES if not (folder / f"{name}.so").is_file()]
    if lost:
        return [*lost, "this torch_npu has no extension module for graphs, or keeps it elsewhere: use engine cann"]
    return [] if "torch_npu" in sys.modules else missing_libraries()


@functools.lru_cache(maxsize=1)
def _extension() -> ModuleType:
    """The extension module, loaded once.

    Errors: EngineError GE4010 if it, or torch_npu, cannot be loaded.
    """
    lacking = _missing()
    if lacking:
        raise errors.engine_missing("torch_npu", lacking)
    try:
        importlib.import_module("torch_npu")
        return [_load(name) for name in _MODULES][0]
    except (ImportError, OSError, RuntimeError) as error:
        raise errors.engine_missing("torch_npu", [f"{type(error).__name__}: {error}"]) from error


def _load(name: str) -> ModuleType:
    full = f"{_NAME}.{name}"
    if full not in sys.modules:
        folder = _package()
        spec = importlib.util.spec_from_file_location(full, (folder or Path()).joinpath(*_FOLDER, f"{name}.so"))
        if spec is None or spec.loader is None:
            raise ImportError(f"{full} has no loader")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[full] = module
    return sys.modules[full]


class _Process:
    """GE in this process, started once through the extension module."""

    def __init__(self, levels: Mapping[Any, Mapping[str, str]]) -> None:
        self.extension = _extension()
        self.options = {**levels["global"], **levels["session"]}
        self.id = os.getpid()
        self.graphs: weakref.WeakSet[TorchNpuExecutable] = weakref.WeakSet()
        if not torch.npu.is_initialized() and (named := named_device()) is not None:
            torch.npu.set_device(named)  # nobody has chosen another one
        device = str(torch.npu.current_device())
        own = {"ge.exec.deviceId": device, "ge_run_with_torch_npu": "1"}
        with _translated(None):
            self.extension.InitializeGraphEngine({**own, **self.options})
        # torch_npu has registered its own end before; what is registered last runs first
        atexit.register(self.end)

    def end(self) -> None:
        """Drop the graphs while the device is still there."""
        if os.getpid() == self.id:
            for executable in list(self.graphs):
                executable.drop()
            self.extension.FinalizeGraphEngine()


_start: Final = threading.Lock()
_process: _Process | None = None


def _started(levels: Mapping[Any, Mapping[str, str]]) -> _Process:
    global _process
    with _start:
        if _process is None:
            _process = _Process(levels)
        elif _process.id != os.getpid():
            raise errors.no_session("the device belongs to the process that this one was forked from")
        else:
            late = late_options(_process.options, {**levels["global"], **levels["session"]})
            if late:
                logger.warning("without effect, because GE has started already: %s", ", ".join(late))
        return _process


@contextlib.contextmanager
def _translated(graph: Graph | None, *, runs: bool = False) -> Any:
    """What the extension module raises, as an error of ours with GE's words; of a run, with those of other ranks."""
    try:
        with handing_over(graph):
            yield
    except RuntimeError as error:
        text = str(error).strip()
        if "out of memory" in text.lower():
            raise errors.no_memory(text) from error
        raise errors.device_refused(text, graph, _others(text, graph) if runs and graph else "") from error


def _others(text: str, graph: Graph) -> str:
    """What other ranks say of the collective that a text names, or else of the graph's first one."""
    calls = collectives(graph)
    if not calls:
        return ""
    from ge_runtime.cpu.groups import others_say

    named = [node for node in errors.nodes_in(text, graph) if node in calls]
    call = (named or calls)[0]
    return others_say(str(call.attr("group")), f"{call.op} at {errors.origin(call)}")


def _waits() -> bool:
    """Whether torch_npu was told to wait for what it gives to the device, or for collectives."""
    return any(os.environ.get(name) == "1" for name in ("ASCEND_LAUNCH_BLOCKING", *_WAITS_FOR_RANKS))


def _communicator(name: str) -> str:
    """HCCL's name of a process group of torch's.

    Errors: EngineError GE4011 if there is no such group, or it has no HCCL.
    """
    from ge_runtime.cpu.groups import group_of

    group = group_of(name)
    try:
        backend = group._get_backend(torch.device("npu"))
        called: str = backend.get_hccl_comm_name(torch.distributed.get_rank())
    except (AttributeError, RuntimeError) as error:
        raise errors.no_group(name, f"it has no HCCL communicator: {error}") from error
    return called


class TorchNpuEngine:
    """GE through the extension module of torch_npu; takes torch tensors, and arrays, which it copies to the device.

    Tensors on the device give tensors on the device, ready when torch's current stream is. Without any, results are
    tensors on the host.
    """

    name = "torch_npu"

    def probe(self) -> Capability:
        """Available if torch_npu and its extension module are here, and CANN's libraries or torch_npu loaded."""
        lacking = _missing()
        return Capability(not lacking, "; ".join(lacking) or "extension module of torch_npu", ("npu",))

    def place(self, value: Literal) -> torch.Tensor:
        """A constant as a tensor on the device."""
        from ge_runtime.cpu.values import constant

        _extension()
        return constant(value).clone().to("npu")

    def opened_groups(
        self, groups: Mapping[str, Sequence[int]], seconds: float
    ) -> contextlib.AbstractContextManager[None]:
        """Inside, the process groups that a graph names exist: those that torch.distributed lacks are made, with hccl.

        Errors: EngineError GE4011 if the processes do not find each other.
        """
        from ge_runtime.cpu.groups import opened_groups

        return opened_groups(groups, seconds, "hccl")

    def compile(self, graph: Graph, options: Mapping[str, str]) -> TorchNpuExecutable:
        """Hand the graph to GE.

        Options go to the level that takes them; those of the process and the session count with the first graph only.
        A graph whose process groups do not exist yet is compiled by its first run.

        Errors: GraphError if the graph breaks its schemas; EngineError GE4010 if torch_npu is not whole, GE4020 with
        GE's words if it refuses, GE4021 in a forked process, GE4007 for an engine option, GE4023 if more cores are
        asked for than the chip has, GE4024 for a graph above two GiB.
        """
        for name, value in options.items():
            if name.startswith("engine."):
                raise errors.bad_option(name, value, "no option of this engine")
        verify(graph)
        levels = split(options)
        process = _started(levels)
        check_cores(graph, options, *_cores(), process.extension.GetSocName())
        return TorchNpuExecutable(graph, levels, process)


def _cores() -> tuple[int, int]:
    """Cube and vector cores of the current device, -1 where torch_npu does not say."""
    properties = torch.npu.get_device_properties(torch.npu.current_device())
    return getattr(properties, "cube_core_num", -1), getattr(properties, "vector_core_num", -1)


class TorchNpuExecutable(WholeGraph):
    """A graph that GE has compiled."""

    engine = "torch_npu"

    def __init__(self, graph: Graph, levels: Mapping[Any, Mapping[str, str]], process: _Process) -> None:
        self._graph, self._process = graph, process
        self._rules = [DataRule(i, node) for i, node in enumerate(graph.inputs)]
        self._types = [getattr(torch, r.dtype.torch_name or "", None) for r in self._rules]
        self._sizes = [_fixed(r.shape) for r in self._rules]
        self._written = [i for i, node in enumerate(graph.inputs) if node.op == "RefData"]
        engine = levels["engine"]
        frozen = frozen_flags(engine.get("frozenInput", ""), len(self._rules))
        self._frozen = [i for i, f in enumerate(frozen) if f]
        self._copies = torch_tensors.FrozenCopies(self._frozen)
        self._frozen_at: dict[tuple[int, ...], list[int]] = {}  # what GE was given, by where inputs lie
        self._options = {**ALWAYS, **levels["graph"], **levels["load"], **engine}
        reuse = reuse_pairs(self._options.get("ge.exec.outputReuseInputMemIndexes", ""))
        self._reuse = [reuse.get(i) for i in range(len(graph.outputs))]
        self._reuses = any(r is not None for r in self._reuse)
        self._no_targets: list[Any] = [None] * len(graph.outputs)
        self._waits = bool(collectives(graph)) and _waits()
        self._data = b""
        self._layouts = [node.outputs[0].format for node in graph.inputs]
        self._groups: dict[str, str] = {}
        self._compiled: dict[tuple[int, ...], Any] = {}
        self._lock = threading.Lock()
        self._same: SeenInputs | SameInputs | None = None
        self._seen: tuple[int, ...] = ()
        self._stream: tuple[int, Any] | None = None  # the last one, because making the object takes long
        process.graphs.add(self)
        try:
            self._find_groups()
        except EngineError as error:
            if error.code != "GE4011":
                raise
            self._opens_late = True  # from now on each run asks, because what `opened_groups` makes goes away
            return
        self._opens_late = False
        # numbers of the host are what scalars usually are; another pattern is compiled when it comes
        self._on(tuple(_HOST if r.shape == () and r.dtype is DataType.DT_INT64 else _DEVICE for r in self._rules))

    def _find_groups(self) -> None:
        """Groups that were opened anew are other communicators, for which the graph is made anew.

        Errors: EngineError GE4011 if there is no such group, or it has no HCCL.
        """
        wanted = {str(n.attr("group")) for n in collectives(self._graph)}
        names = {name: _communicator(name) for name in sorted(wanted)}
        if names != self._groups or not self._data:
            self._groups = names
            self._data = self._bytes()
            self._compiled.clear()

    def _bytes(self) -> bytes:
        """What GE is given. The graph itself says nothing of layouts: who loads it has inputs that lie otherwise."""
        with renamed_groups(collectives(self._graph), self._groups), _laid_out(self._graph, self._layouts):
            data = serde.to_bytes(self._graph, externalise=external_data, provenance=False)
        if len(data) > MAX_MODEL_BYTES:
            raise errors.graph_too_large(self._graph.name, len(data))
        return data

    def _lay_out(self, given: Sequence[torch.Tensor]) -> None:
        """Say in the Data nodes which inputs lie in tiles; if that has changed, GE compiles the graph anew."""
        layouts = [_layout(value) for value in given]
        if layouts != self._layouts:
            self._layouts = layouts
            self._data = self._bytes()
            self._compiled.clear()

    def _laid_out_otherwise(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether an input lies in tiles that did not; asked only while torch_npu lets anything lie so."""
        if not _tiles_allowed():
            return False
        return any(_layout(t) is Format.FORMAT_FRACTAL_NZ for t in inputs)

    def drop(self) -> None:
        """Let GE release the graph; it cannot run afterwards."""
        self._compiled.clear()

    def _on(self, placements: tuple[int, ...]) -> Any:
        """The graph compiled for inputs that lie there: GE wants to know which ones are on the host."""
        graph = self._compiled.get(placements)
        if graph is None:
            with self._lock, _translated(self._graph):
                graph = self._process.extension.TorchNpuGraphBase(self._graph.name)
                results = [int(t.dtype) for t in self._graph.outputs]
                graph.load(self._data, self._options, list(placements), results, _ON_NPU)
                # where all sizes are known, GE's are compared with them
                shapes = [_fixed(t.known_shape) for t in self._graph.outputs]
                if None not in shapes and None not in self._sizes:
                    graph.set_hint_shape([list(s or ()) for s in self._sizes], [list(s or ()) for s in shapes])
                graph.compile()
            self._compiled[placements] = graph
        return graph

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the graph; see ``ge_runtime.api.Executable.run``.

        Errors: EngineError GE4004 for inputs that are not the graph's, GE4020 with GE's words, GE4021 in a forked
        process, GE4022 if the device has no memory left, GE4011 for collectives without process groups.
        """
        if len(inputs) != len(self._rules):
            raise errors.bad_input(f"graph '{self._graph.name}' takes {len(self._rules)} inputs, got {len(inputs)}")
        if os.getpid() != self._process.id:
            raise errors.no_session("the device belongs to the process that this one was forked from")
        if self._opens_late:
            self._find_groups()
        if self._same is not None and self._same.match(inputs) and not self._laid_out_otherwise(inputs):
            if self._frozen:
                self._keep_promise(self._seen, self._addresses(inputs))
            results = self._launch(self._seen, inputs)
            for i in self._written:
                torch.autograd.graph.increment_version(inputs[i])
            return results
        on_host = True
        given: list[torch.Tensor] = []
        placements: list[int] = []
        for value, rule, dtype, size in zip(inputs, self._rules, self._types, self._sizes):
            if isinstance(value, torch.Tensor):
                if value.dtype is not dtype or value.shape != size:
                    rule.check(BY_TORCH_NAME.get(str(value.dtype)[6:]), tuple(value.shape))
                on_host &= value.is_cpu
                if (value.is_cpu and rule.shape != ()) or not value.is_contiguous():
                    value = self._dense(rule, value)
            else:
                value = self._adopt(rule, value)
            placements.append(_HOST if value.is_cpu else _DEVICE)
            given.append(value)
        self._lay_out(given)
        if self._frozen:
            self._keep_promise(tuple(placements), [given[i].data_ptr() for i in self._frozen])
        results = self._launch(tuple(placements), given)
        if inputs and _HOST not in placements and not on_host:
            # dense tensors on the device: GE reads and writes their own memory, nothing is copied there or back
            # sizes and strides do not tell a tensor in tiles from another, so then each run looks
            tiled = Format.FORMAT_FRACTAL_NZ in self._layouts
            plain = not tiled and all(map(operator.is_, inputs, given))
            places = (ctypes.c_uint64 * len(inputs))()
            self._same = (SeenInputs.of(inputs, places) or SameInputs(inputs)) if plain else None
            self._seen = tuple(placements)
        self._write_back(inputs, given)
        if on_host and inputs:  # without inputs there is only the device to go by
            with _translated(self._graph, runs=True):
                return [r.cpu() for r in results]
        return results

    def _addresses(self, inputs: Sequence[Any]) -> list[int]:
        """Where the frozen inputs of a run that looks like the last one lie."""
        if isinstance(self._same, SeenInputs):
            places = self._same.addresses
            return [places[i] for i in self._frozen]
        return [inputs[i].data_ptr() for i in self._frozen]

    def _keep_promise(self, placements: tuple[int, ...], addresses: list[int]) -> None:
        """GE reads frozen inputs where they lay in its first run; if one has moved, the graph is made anew."""
        if self._frozen_at.setdefault(placements, addresses) != addresses:
            logger.info("graph '%s': a frozen input has moved, so GE compiles it again", self._graph.name)
            torch.npu.synchronize()  # the graph that goes may still run
            self._compiled.pop(placements, None)
            self._frozen_at[placements] = addresses

    def _launch(self, placements: tuple[int, ...], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        compiled = self._on(placements)
        targets = self._no_targets
        if self._reuses:
            # a result that lies in an input's memory has no part in the caller's autograd graph
            targets = [None if r is None else given[r].detach() for r in self._reuse]
        handle = torch_tensors.current_stream()
        if self._stream is None or self._stream[0] != handle:
            self._stream = handle, torch.npu.current_stream()
        try:
            with _translated(self._graph, runs=True):
                results = compiled.run((given, targets, self._stream[1]))
                if self._waits:
                    self._stream[1].synchronize()
        except EngineError:
            self._compiled.pop(placements, None)  # it is in no state to run again
            raise
        return list(results)

    def _dense(self, rule: DataRule, value: torch.Tensor) -> torch.Tensor:
        """A copy that GE can read."""
        if rule.index in self._copies:
            return self._copies.of(rule, value)
        return value.detach().to("npu" if rule.shape != () else value.device).contiguous()

    def _adopt(self, rule: DataRule, value: Any) -> torch.Tensor:
        if isinstance(value, (bool, int, float)) and rule.shape == ():
            number = torch.tensor([value], dtype=self._types[rule.index])
            return self._copies.of(rule, number) if rule.index in self._copies else number
        if not isinstance(value, np.ndarray):
            raise errors.bad_input(f"input {rule.index} ({rule.name}) is a {type(value).__name__}, not a tensor")
        rule.check_array(value)
        native = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
        host = torch.from_numpy(native.copy())
        return self._copies.of(rule, host) if rule.index in self._copies else host.npu()

    def _write_back(self, inputs: Sequence[Any], given: Sequence[torch.Tensor]) -> None:
        """Bring what the graph wrote to the caller's memory where it ran on a copy."""
        for i in self._written:
            value = inputs[i]
            if isinstance(value, np.ndarray):
                value[...] = given[i].cpu().numpy()
            elif value.data_ptr() != given[i].data_ptr():
                value.copy_(given[i])
            else:
                torch.autograd.graph.increment_version(value)


def _tiles_allowed() -> bool:
    option = getattr(sys.modules["torch_npu"]._C, "_npu_getOption", None)
    return option is None or option("ALLOW_INTERNAL_FORMAT") == b"enable"


def _layout(value: torch.Tensor) -> Format:
    """How torch_npu has laid out a tensor; the layouts of images count as ND, sizes and strides say what they are."""
    if value.is_cpu or value.dim() < 2:
        return Format.FORMAT_ND
    nz = int(sys.modules["torch_npu"].get_npu_format(value)) == Format.FORMAT_FRACTAL_NZ
    return Format.FORMAT_FRACTAL_NZ if nz else Format.FORMAT_ND


@contextlib.contextmanager
def _laid_out(graph: Graph, layouts: Sequence[Format]) -> Iterator[None]:
    """Inside, the inputs of the graph have these layouts."""
    edges = [node.outputs[0] for node in graph.inputs]
    before = [edge.format for edge in edges]
    try:
        for edge, layout in zip(edges, layouts):
            edge.format = layout
        yield
    finally:
        for edge, layout in zip(edges, before):
            edge.format = layout


def _fixed(shape: Any) -> tuple[int, ...] | None:
    fixed = shape is not None and all(isinstance(d, int) and d >= 0 for d in shape)
    return tuple(shape) if fixed else None
