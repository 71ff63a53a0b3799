"""The one session of this process: opened with the first graph, closed when the interpreter ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ge_graph.errors import EngineError
from ge_graph.ir import Graph
from ge_runtime import errors
from ge_runtime.cann import library
from ge_runtime.device_graphs import late_options

logger: Final = logging.getLogger(__name__)
_H2D, _D2H, _D2D = 1, 2, 3


@dataclass(frozen=True)
class DeviceFacts:
    """What the device says of itself.

    Attributes:
        chip: Name of the chip, ``Ascend910B1``; empty if it does not say.
        version: Version of CANN; empty likewise.
        cube_cores: Number of cube cores, -1 if unknown.
        vector_cores: Number of vector cores, -1 if unknown.
    """

    chip: str
    version: str
    cube_cores: int
    vector_cores: int


@dataclass(frozen=True)
class OpenGroup:
    """An open process group.

    Attributes:
        ranks: Its processes, in order.
        communicator: HCCL's name of it.
        handle: HcclComm.
    """

    ranks: tuple[int, ...]
    communicator: str
    handle: int


@dataclass
class Session:
    """An open session.

    Attributes:
        device: Number of the device.
        options: What it was opened with, by level.
        facts: What the device says.
        ended: Whether it was closed.
        somewhere: Device memory for the address of tensors without elements; 0 until it is needed.
        groups: Process groups that were opened for graphs, by the name that graphs have for them.
    """

    device: int
    options: Mapping[str, Mapping[str, str]]
    facts: DeviceFacts
    ended: bool = False
    somewhere: int = 0
    groups: dict[str, OpenGroup] = field(default_factory=dict)
    _stream: int = 0
    _held: dict[int, list[Any]] = field(default_factory=dict)

    @property
    def stream(self) -> int:
        """The stream to run on: that of ``use_stream``, else one of the session's own."""
        given: int | None = getattr(_caller, "stream", None)
        if given is not None:
            return given
        if not self._stream:
            made = ctypes.c_void_p()
            check(library.native().gec_stream_new(ctypes.byref(made)))
            self._stream = made.value or 0
        return self._stream

    def wait(self, stream: int, graph: Graph | None = None) -> None:
        """Wait until everything on the stream is done; an error has the lines of nodes of the graph that it names."""
        check(library.native().gec_stream_wait(stream), graph)
        self._held.pop(stream, None)

    def hold(self, stream: int, values: Any) -> None:
        """Keep values until the stream is seen idle: a run that was only launched still reads its inputs."""
        held = self._held.setdefault(stream, [])
        if held:
            idle = ctypes.c_int()
            check(library.native().gec_stream_idle(stream, ctypes.byref(idle)))
            if idle.value:
                held.clear()
        held.append(values)

    def allocate(self, size: int, stream: int) -> int:
        """Device memory from the runner's pool.

        Errors: EngineError GE4022 if there is none left.
        """
        made = ctypes.c_void_p()
        check(library.native().gec_memory_new(stream, size, ctypes.byref(made)))
        return made.value or 0

    def release(self, address: int) -> None:
        """Give memory of ``allocate`` back; nothing happens after the session's end, which has released it."""
        if not self.ended:
            library.native().gec_memory_free(address)

    def copy(self, to: int, source: int, size: int, kind: str, stream: int) -> None:
        """Queue a copy; kind is ``to_device``, ``to_host`` or ``on_device``."""
        number = {"to_device": _H2D, "to_host": _D2H, "on_device": _D2D}[kind]
        check(library.native().gec_copy(to, source, size, number, stream))


_caller: Final = threading.local()
_lock: Final = threading.Lock()
_current: Session | None = None


@contextlib.contextmanager
def use_stream(handle: int) -> Iterator[None]:
    """Run graphs of this thread on a stream of the caller's, given as the number that ``aclrtStream`` is.

    Inputs and results belong to that stream; graphs on it run in the order of the calls. Arrays on the host make a run
    wait for the stream, tensors on the device do not.
    """
    before = getattr(_caller, "stream", None)
    _caller.stream = handle
    try:
        yield
    finally:
        _caller.stream = before


def current() -> Session | None:
    """The open session, if there is one."""
    return _current


def open_session(options: Mapping[Any, Mapping[str, str]], device: int | None = None) -> Session:
    """The session, opened if there is none.

    Args:
        options: GE options of the levels ``global`` and ``session``.
        device: Number of the device; None takes ``ASCEND_DEVICE_ID``, torch's current device, ``LOCAL_RANK``, or 0.

    Errors: EngineError GE4010 if CANN is not whole, GE4020 if GE or the device refuses, GE4021 if a session on another
    device is open or the process was forked from one that has a session.
    """
    global _current
    with _lock:
        if _current is not None and not _current.ended:
            late = [
                text
                for level in ("global", "session")
                for text in late_options(_current.options[level], options.get(level, {}))
            ]
            if late:  # GE takes these once
                logger.warning("without effect, because the session is open already: %s", ", ".join(late))
            if device is not None and device != _current.device:
                raise errors.no_session(
                    f"the session of this process is open on device {_current.device}, device {device} was asked for"
                )
            if not library.native().gec_session_is_open():
                raise errors.no_session("the device belongs to the process that this one was forked from")
            return _current
        _current = _open(options, _default_device() if device is None else device)
        return _current


def _open(options: Mapping[Any, Mapping[str, str]], device: int) -> Session:
    from ge_runtime.cann.probe import missing
    from ge_runtime.cann.torch_tensors import memory_functions

    lacking = missing()
    if lacking:
        raise errors.engine_missing("cann", lacking)
    native = library.native()
    levels = {level: dict(options.get(level, {})) for level in ("global", "session")}
    # a session that has nothing of torch may use the runner's own pool
    native.gec_use_allocator(library.MALLOC(), library.FREE(), None)
    memory = memory_functions()
    if memory is not None:
        native.gec_use_allocator(memory[0], memory[1], None)
    check(native.gec_session_open(device, *library.pairs(levels["global"]), *library.pairs(levels["session"])))
    session = Session(device, levels, _facts())
    logger.info("session on device %d, %s, CANN %s", device, session.facts.chip, session.facts.version or "unknown")
    return session


def _default_device() -> int:
    npu = getattr(sys.modules.get("torch"), "npu", None) if "torch_npu" in sys.modules else None
    if npu is None or "ASCEND_DEVICE_ID" in os.environ:
        return named_device() or 0
    return int(npu.current_device())


def named_device() -> int | None:
    """The device that ``ASCEND_DEVICE_ID`` names, else ``LOCAL_RANK``; None without both.

    Errors: EngineError GE4007 if it is no number.
    """
    for variable in ("ASCEND_DEVICE_ID", "LOCAL_RANK"):
        named = os.environ.get(variable)
        if named is not None and not named.isdecimal():
            raise errors.bad_option(variable, named, "the number of a device")
        if named is not None:
            return int(named)
    return None


def _facts() -> DeviceFacts:
    chip, version = ctypes.create_string_buffer(128), ctypes.create_string_buffer(128)
    cube, vector = ctypes.c_int64(-1), ctypes.c_int64(-1)
    check(library.native().gec_device_facts(chip, 128, version, 128, ctypes.byref(cube), ctypes.byref(vector)))
    chip_name, cann = (text.value.decode(errors="replace") for text in (chip, version))
    return DeviceFacts(chip_name, cann, cube.value, vector.value)


def close() -> None:
    """End the session: its graphs and device arrays cannot be used any more, a later graph opens another one.

    GE and the device runtime are shut down too, unless torch_npu uses them in this process.
    """
    global _current
    with _lock:
        session, _current = _current, None
        if session is None or session.ended:
            return
        session._held.clear()
        session.ended = True
        native = library.native()
        if not native.gec_session_is_open():
            return  # a forked process: nothing here is its own
        if session._stream:
            native.gec_stream_free(session._stream)
        check(native.gec_session_close(0 if "torch_npu" in sys.modules else 1))


def _at_exit() -> None:
    try:
        close()
    except EngineError as error:
        logger.warning("the session did not end cleanly: %s", error)


atexit.register(_at_exit)


def check(code: int, graph: Graph | None = None) -> None:
    """Raise what a failed call of the runner means.

    Errors: EngineError GE4004, GE4010, GE4020, GE4021 or GE4022.
    """
    if code == library.OK:
        return
    text = library.last_error()
    if code == library.MISSING:
        raise errors.engine_missing("cann", [f"not found: {text}"])
    kinds = {library.ARGUMENT: errors.bad_input, library.STATE: errors.no_session, library.MEMORY: errors.no_memory}
    raise kinds[code](text) if code in kinds else errors.device_refused(text, graph)
