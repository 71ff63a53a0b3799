"""Running GE graphs on an Ascend device through the native runner."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge_graph import serde
from ge_graph.dtypes import DataType
from ge_graph.errors import EngineError
from ge_graph.ir import Graph, Literal
from ge_graph.option_levels import split
from ge_graph.verify import verify
from ge_runtime import errors
from ge_runtime.api import Capability
from ge_runtime.cann import dlpack, library, torch_tensors
from ge_runtime.cann.arrays import DeviceArray, size_of
from ge_runtime.cann.groups import communicators, opened_groups
from ge_runtime.cann.reading import SeenInputs
from ge_runtime.cann.session import Session, check, open_session
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
    renamed_groups,
    reuse_pairs,
)


class CannEngine:
    """Ascend graph engine through our own runner; takes numpy arrays, DLPack tensors, DeviceArrays, torch tensors.

    Results live where the inputs live: arrays on the host give arrays, a tensor or DeviceArray on the device gives its
    like, which is ready when the stream is (``use_stream``, torch's current stream).
    """

    name = "cann"

    def probe(self) -> Capability:
        """Available if CANN's libraries, the functions that the runner needs, and a device are here.

        Opens CANN's libraries, and builds the native runner if that is not done yet.
        """
        from ge_runtime.cann.probe import missing

        try:
            lacking = missing()
        except EngineError as error:
            lacking = [error.what]
        return Capability(not lacking, "; ".join(lacking) or "native runner on CANN", ("npu",))

    def place(self, value: Literal) -> DeviceArray:
        """A constant as an array on the device."""
        session = open_session({})
        return DeviceArray.from_bytes(session, value.data, value.dtype, value.shape, session.stream)

    def opened_groups(
        self, groups: Mapping[str, Sequence[int]], seconds: float
    ) -> contextlib.AbstractContextManager[None]:
        """Inside, the process groups that a graph names exist, as communicators of HCCL.

        Errors: EngineError GE4011 if the processes do not find each other, GE4010 and GE4020 if HCCL is not there or
        refuses.
        """
        return opened_groups(groups, seconds)

    def compile(self, graph: Graph, options: Mapping[str, str]) -> CannExecutable:
        """Hand the graph to GE.

        Options go to the level that takes them; those of the process and the session count with the first graph only.
        ``engine.device`` is the number of the device.

        Errors: GraphError if the graph breaks its schemas; EngineError GE4010 if CANN is not whole, GE4020 with GE's
        words if it refuses the graph, GE4021 if the process cannot have a session, GE4007 for an engine option that is
        not known, GE4023 if more cores are asked for than the chip has, GE4024 for a graph above two GiB. A graph with
        collectives is compiled by its first run, because GE asks HCCL for their groups then.
        """
        device = _device(options)
        verify(graph)
        levels = split(options)
        session = open_session(levels, device)
        check_cores(graph, options, session.facts.cube_cores, session.facts.vector_cores, session.facts.chip)
        return CannExecutable(graph, levels, session)


def _device(options: Mapping[str, str]) -> int | None:
    given = options.get("engine.device")
    for name, value in options.items():
        if name.startswith("engine.") and (name != "engine.device" or not value.isdigit()):
            raise errors.bad_option(name, value, "engine.device, the number of a device")
    return None if given is None else int(given)


@dataclass(slots=True)
class _Placed:
    """An input where the device finds it."""

    address: int
    placement: int
    shape: tuple[int, ...]
    keep: Any
    back: Callable[[], None] | None = None


class CannExecutable(WholeGraph):
    """A graph that GE has compiled. Runs from several threads take turns, as GE runs a graph once at a time."""

    engine = "cann"

    def __init__(self, graph: Graph, levels: Mapping[Any, Mapping[str, str]], session: Session) -> None:
        self._graph = graph
        self._session = session
        self._lock = threading.Lock()
        self._rules = [DataRule(i, node) for i, node in enumerate(graph.inputs)]
        self._written = [node.op == "RefData" for node in graph.inputs]
        self._options = {**ALWAYS, **levels["graph"]}
        self._load_options = dict(levels["load"])
        self._frozen = frozen_flags(levels["engine"].get("frozenInput", ""), len(self._rules))
        self._copies = torch_tensors.FrozenCopies(i for i, f in enumerate(self._frozen) if f)
        self._reuse = reuse_pairs(self._options.get("ge.exec.outputReuseInputMemIndexes", ""))
        self._handle: Any = None
        self._same: SeenInputs | SameInputs | None = None
        self._collectives = collectives(graph)
        self._groups: dict[str, str] = {}
        if not self._collectives:
            self._compile()

    # -- compiling ----------------------------------------------------------------------------------------------------

    def _compile(self) -> None:
        native = library.native()
        graph = self._graph
        with renamed_groups(self._collectives, self._groups):
            data = serde.to_bytes(graph, externalise=external_data, provenance=False)
        if len(data) > MAX_MODEL_BYTES:
            raise errors.graph_too_large(graph.name, len(data))
        handle = ctypes.c_void_p()
        n_inputs, n_outputs = len(self._rules), len(graph.outputs)
        added = native.gec_graph_add(
            graph.name.encode(), data, len(data), *library.pairs(self._options), n_inputs, n_outputs, handle
        )
        check(added, graph)
        self._free()
        self._handle = handle
        with handing_over(graph):
            check(native.gec_graph_compile(handle), graph)
        static, count = ctypes.c_int(), ctypes.c_size_t()
        constants, work = ctypes.c_uint64(), ctypes.c_uint64()
        check(native.gec_graph_info(handle, static, count, constants, work), graph)
        self.is_static = bool(static.value)
        self.const_bytes, self.feature_bytes = constants.value, work.value
        self._outputs = [self._known(i) if self.is_static else (t.dtype, ()) for i, t in enumerate(graph.outputs)]
        self._values = (library.Value * max(n_outputs, 1))()
        self._ins = (ctypes.c_uint64 * max(n_inputs, 1))()
        self._outs = (ctypes.c_uint64 * max(n_outputs, 1))()
        self._described: list[Any] = [None] * n_inputs
        self._loaded = False
        self._frozen_at: dict[int, int] = {}
        self._same = None

    def _known(self, index: int) -> tuple[DataType, tuple[int, ...]]:
        value = library.Value()
        check(library.native().gec_graph_output(self._handle, index, value), self._graph)
        dtype, declared = DataType(value.dtype), self._graph.outputs[index].dtype
        if dtype is not declared:
            what = f"GE found result {index} to be {dtype.name}, the graph says {declared.name}"
            raise errors.device_refused(what, self._graph)
        return dtype, tuple(value.dims[: value.rank])

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the graph; see ``ge_runtime.api.Executable.run``.

        Tensors on the device are only launched on the caller's stream; arrays on the host are there on return.

        Errors: EngineError GE4004 for inputs that are not the graph's, GE4011 for collectives without open groups,
        GE4020 with GE's words, GE4021 after the session's end or in a forked process, GE4022 if the device has no
        memory left.
        """
        if len(inputs) != len(self._rules):
            raise errors.bad_input(f"graph '{self._graph.name}' takes {len(self._rules)} inputs, got {len(inputs)}")
        with self._lock:
            return self._run(inputs)

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        session = self._session
        if self._collectives:
            self._find_groups()
        if self._same is not None and self._matches(inputs):
            return self._repeat(inputs)
        kind = self._kind(inputs)
        stream = torch_tensors.current_stream() if kind == "npu" else session.stream
        placed = [self._place(r, v, stream, w) for r, v, w in zip(self._rules, inputs, self._written)]
        if kind == "npu":
            stream = torch_tensors.launch_stream()  # after the copies that placing may have asked torch for
        if self._frozen:
            self._check_frozen(placed)
        for i, p in enumerate(placed):
            self._ins[i] = p.address
            if self._described[i] != (p.placement, p.shape):
                self._describe(i, p)
        results = self._targets(inputs, kind, stream)
        self._launch(stream, placed)
        values = [r if r is not None else self._result(i, kind, stream) for i, r in enumerate(results)]
        plain = all(p.placement == library.ON_DEVICE and p.back is None for p in placed)
        if kind == "npu" and inputs and plain:
            hosted = any(not torch_tensors.is_tensor(v) or v.is_cpu for v in inputs)
            self._same = None if hosted else SeenInputs.of(inputs, self._ins) or SameInputs(inputs)
        self._count_writes(inputs)
        return self._finish(values, placed, kind, stream)

    def _find_groups(self) -> None:
        """Groups that were opened anew are other communicators, for which the graph is made anew."""
        names = communicators(self._session, self._collectives)
        if names != self._groups or self._handle is None:
            self._groups = names
            try:
                self._compile()
            except EngineError:
                self._free()  # what the next run finds is not of other groups
                raise

    def _matches(self, inputs: Sequence[Any]) -> bool:
        """Whether inputs look as the last run's did, and frozen ones lie where they did; addresses are set then."""
        if self._same is None or not self._same.match(inputs):
            return False
        if isinstance(self._same, SameInputs):
            self._ins[:] = [value.data_ptr() for value in inputs]
        return all(self._ins[i] == address for i, address in self._frozen_at.items())

    def _count_writes(self, inputs: Sequence[Any]) -> None:
        """Tell autograd which tensors the graph wrote in their own memory."""
        for i, written in enumerate(self._written):
            if written and torch_tensors.is_tensor(inputs[i]):
                torch_tensors.torch().autograd.graph.increment_version(inputs[i])

    def _repeat(self, inputs: Sequence[Any]) -> list[Any]:
        """A run whose inputs differ from those of the last one in their addresses alone."""
        stream = torch_tensors.launch_stream()
        results = self._targets(inputs, "npu", stream)
        values = None if self.is_static else self._values
        check(library.native().gec_graph_run(self._handle, stream, self._ins, self._outs, values), self._graph)
        self._count_writes(inputs)
        if self.is_static:
            return results
        return self._finish([self._result(i, "npu", stream) for i in range(len(results))], (), "npu", stream)

    def _launch(self, stream: int, placed: Sequence[_Placed]) -> None:
        native = library.native()
        if not self._loaded:
            options = dict(self._load_options)
            if self._frozen:
                self._frozen_at = {i: placed[i].address for i, f in enumerate(self._frozen) if f}
                rows = [f"{i},{a},{size_of(self._rules[i].dtype, placed[i].shape)}" for i, a in self._frozen_at.items()]
                options["ge.exec.frozenInputIndexes"] = ";".join(rows)
            check(native.gec_graph_load(self._handle, stream, *library.pairs(options)), self._graph)
            self._loaded = True
        results = None if self.is_static else self._values
        check(native.gec_graph_run(self._handle, stream, self._ins, self._outs, results), self._graph)

    def _check_frozen(self, placed: Sequence[_Placed]) -> None:
        """GE keeps the addresses that it was given as fixed; if one has moved, the graph is made anew."""
        if any(placed[i].address != address for i, address in self._frozen_at.items()):
            self._compile()

    def _kind(self, inputs: Sequence[Any]) -> str:
        """Where results go: ``npu`` (torch), ``cpu`` (torch), ``device`` or ``host``."""
        kind = "host" if inputs or "npu" not in dir(torch_tensors.torch()) else "npu"
        for value in inputs:
            if torch_tensors.is_tensor(value):
                if torch_tensors.on_device(value):
                    return "npu"
                kind = "cpu" if kind == "host" else kind
            elif isinstance(value, DeviceArray) or _lives_on_device(value):
                kind = "device"
        return kind

    def _place(self, rule: DataRule, value: Any, stream: int, written: bool) -> _Placed:
        if isinstance(value, DeviceArray):
            value.check()
            rule.check(value.dtype, value.shape)
            return _Placed(value.address, library.ON_DEVICE, value.shape, value)
        if torch_tensors.is_tensor(value):
            return self._place_tensor(rule, value, stream, written)
        if isinstance(value, (bool, int, float)) and rule.shape == ():
            number = np.asarray(value).astype(rule.dtype.numpy)
            return _Placed(number.ctypes.data, library.ON_HOST, (), number)
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack_device__"):
            if _lives_on_device(value):
                address, dtype, shape, keep = dlpack.import_device(value)
                rule.check(dtype, shape)
                return _Placed(address, library.ON_DEVICE, shape, keep)
            value = np.from_dlpack(value)
        if not isinstance(value, np.ndarray):
            raise errors.bad_input(f"input {rule.index} ({rule.name}) is a {type(value).__name__}, not a tensor")
        return self._place_array(rule, value, stream, written)

    def _place_array(self, rule: DataRule, value: np.ndarray[Any, Any], stream: int, written: bool) -> _Placed:
        rule.check_array(value)
        dense = np.ascontiguousarray(value, value.dtype.newbyteorder("=")).reshape(value.shape)
        flat = dense.reshape(-1).view(np.uint8)
        on_device = DeviceArray.from_bytes(self._session, flat, rule.dtype, value.shape, stream, wait=False)

        def back() -> None:
            raw = np.empty(flat.nbytes, np.uint8)
            on_device.copy_to(raw)
            self._session.wait(stream, self._graph)
            value[...] = raw.view(dense.dtype).reshape(value.shape)

        keep = (on_device, dense)
        return _Placed(on_device.address, library.ON_DEVICE, tuple(value.shape), keep, back if written else None)

    def _place_tensor(self, rule: DataRule, value: Any, stream: int, written: bool) -> _Placed:
        shape = tuple(value.shape)
        rule.check(torch_tensors.ge_type(value), shape)
        held = rule.index in self._copies and "npu" in dir(torch_tensors.torch())
        if held and not (torch_tensors.on_device(value) and value.is_contiguous()):
            dense = self._copies.of(rule, value)
            back = (lambda: value.copy_(dense)) if written else None
            return _Placed(dense.data_ptr(), library.ON_DEVICE, shape, dense, back)
        dense = value.detach().contiguous()
        if torch_tensors.on_device(value):
            back = (lambda: value.copy_(dense)) if written and dense.data_ptr() != value.data_ptr() else None
            return _Placed(dense.data_ptr(), library.ON_DEVICE, shape, dense, back)
        flat = torch_tensors.host_bytes(dense)
        if rule.shape == () and not written:
            return _Placed(flat.ctypes.data, library.ON_HOST, shape, dense)
        on_device = DeviceArray.from_bytes(self._session, flat, rule.dtype, shape, stream, wait=False)

        def copy_back() -> None:
            fresh = dense.clone()
            on_device.copy_to(torch_tensors.host_bytes(fresh))
            self._session.wait(stream, self._graph)
            value.copy_(fresh)

        return _Placed(on_device.address, library.ON_DEVICE, shape, (on_device, dense), copy_back if written else None)

    def _describe(self, index: int, placed: _Placed) -> None:
        rank = len(placed.shape)
        sizes = (ctypes.c_int64 * library.MAX_RANK)(*placed.shape[: library.MAX_RANK])
        description = placed.placement, self._rules[index].dtype, rank, sizes
        check(library.native().gec_graph_describe(self._handle, index, *description), self._graph)
        self._described[index] = (placed.placement, placed.shape)

    def _targets(self, inputs: Sequence[Any], kind: str, stream: int) -> list[Any]:
        """Memory for the results whose size is known; None where the graph engine allocates."""
        targets: list[Any] = []
        for i, (dtype, shape) in enumerate(self._outputs):
            made: Any = None
            reused = self._reuse.get(i)
            if reused is not None and _updates_in_place(inputs[reused]):
                made = inputs[reused]
            elif self.is_static and kind == "npu":
                made = torch_tensors.torch().empty(shape, dtype=torch_tensors.torch_type(dtype), device="npu")
            elif self.is_static:
                made = DeviceArray.empty(self._session, dtype, shape, stream)
            targets.append(made)
            self._outs[i] = 0 if made is None else _address(made) or _somewhere(self._session, stream)
        return targets

    def _result(self, index: int, kind: str, stream: int) -> Any:
        """What the graph engine allocated, as a tensor of the caller's kind."""
        value = self._values[index]
        dtype, shape = DataType(value.dtype), tuple(value.dims[: value.rank])
        owner, address, size = value.owner, value.address or 0, value.bytes
        rule = self._graph.outputs[index]
        if dtype is not rule.dtype:
            raise errors.device_refused(f"result {index} came as {dtype.name}, the graph says {rule.dtype.name}", None)
        if kind == "npu" and value.placement == library.ON_DEVICE:
            claimed = torch_tensors.claim(address, size, dtype, shape)
            if claimed is not None:
                library.native().gec_result_free(owner)
                return claimed
        if value.placement == library.ON_HOST:
            made = DeviceArray.empty(self._session, dtype, shape, stream)
            self._session.copy(made.address, address, size, "to_device", stream)
            self._session.wait(stream, self._graph)
            library.native().gec_result_free(owner)
            return made
        return DeviceArray(self._session, address, dtype, shape, stream, owner)

    def _finish(self, values: list[Any], placed: Sequence[_Placed], kind: str, stream: int) -> list[Any]:
        for p in placed:
            if p.back is not None:
                p.back()
        if kind == "npu":
            self._session.hold(stream, [p.keep for p in placed if p.placement == library.ON_HOST])
            return [self._as_tensor(v, stream) if isinstance(v, DeviceArray) else v for v in values]
        if kind == "device":
            self._session.hold(stream, [p.keep for p in placed])
            return values
        self._session.wait(stream, self._graph)
        if kind == "cpu":
            return [self._as_host_tensor(v) for v in values]
        return [v.numpy() if v.dtype.numpy_name is not None else v for v in values]

    def _as_tensor(self, value: DeviceArray, stream: int) -> Any:
        """A copy in torch's memory of what lies in the graph engine's."""
        module = torch_tensors.torch()
        made = module.empty(value.shape, dtype=torch_tensors.torch_type(value.dtype), device="npu")
        self._session.copy(made.data_ptr(), value.address, value.nbytes, "on_device", stream)
        self._session.hold(stream, value)
        return made

    def _as_host_tensor(self, value: DeviceArray) -> Any:
        module = torch_tensors.torch()
        made = module.empty(value.shape, dtype=torch_tensors.torch_type(value.dtype))
        if value.nbytes:
            value.copy_to(torch_tensors.host_bytes(made))
            self._session.wait(value.stream, self._graph)
        return made

    def _free(self) -> None:
        if self._handle is not None:
            library.native().gec_graph_free(self._handle)
            self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and not sys.is_finalizing():  # the session has ended by then
            self._free()


def _lives_on_device(value: Any) -> bool:
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and not isinstance(value, np.ndarray) and int(where()[0]) == dlpack.EXTENSION


def _updates_in_place(value: Any) -> bool:
    if isinstance(value, DeviceArray):
        return True
    return torch_tensors.is_tensor(value) and torch_tensors.on_device(value) and value.is_contiguous()


def _address(value: Any) -> int:
    return value.address if isinstance(value, DeviceArray) else int(value.data_ptr())


def _somewhere(session: Session, stream: int) -> int:
    """A valid address for a result without elements."""
    if session.somewhere == 0:
        session.somewhere = session.allocate(512, stream)
    return session.somewhere
