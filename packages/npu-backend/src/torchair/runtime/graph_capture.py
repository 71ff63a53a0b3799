"""Recording a program once and running the recording: on a device by its graph capture, on the CPU by the program.

``torch.npu`` is looked up when a program for a device is captured; this module needs no torch_npu.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ge_graph.errors import EngineError, on_purpose
from torchair.config.log import logger
from torchair.runtime.host_tasks import NpuTasks, StepNumbers

Program = Callable[[list[Any]], Any]
Told = Callable[[int, Callable[[str], Any]], None]
_NOT_CAPTURED = ("error code is 107030", "during NPU graph capture")
"""What torch_npu says of a call that waits while a stream is captured, and of an older kind of launch."""


class Recording(Protocol):
    """A program bound to the memory of its inputs and results."""

    def replay(self, inputs: Sequence[Any], lists: Sequence[Any] = ()) -> Sequence[Any]:
        """Run on ``inputs``, which lie where those of the capture lay; the results lie where they always lie.

        Args:
            lists: For each task that can be replaced its lists on the host, see ``StepNumbers``.
        """


class GraphCapture(Protocol):
    """How a device type captures.

    Attributes:
        name: For logs.
    """

    name: str

    def capture(self, program: Program, inputs: Sequence[Any], numbers: StepNumbers) -> Recording:
        """Record the program on inputs that keep their place."""

    def describe(self, program: Program, inputs: list[Any], folder: str | None) -> None:
        """Run the program once, and write what it launches where CANN's compiler of kernels reads it.

        Args:
            inputs: It may write them.
            folder: Where the folders are made; None is the current folder.
        """

    def settle(self) -> None:
        """Wait until no recording runs, so that one of them can go."""


class ProgramReplay:
    """The CPU has no launches to record: a replay runs the program and puts its results into the same memory."""

    name = "program replay"

    def capture(self, program: Program, inputs: Sequence[Any], numbers: StepNumbers) -> Recording:
        """Bind the program; nothing runs yet."""
        return _ProgramRecording(program)

    def describe(self, program: Program, inputs: list[Any], folder: str | None) -> None:
        """Nothing: a CPU has no kernels that CANN compiles."""

    def settle(self) -> None:
        """A replay has run when it returns."""


class _ProgramRecording:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._results: list[Any] = []

    def replay(self, inputs: Sequence[Any], lists: Sequence[Any] = ()) -> Sequence[Any]:
        new = self._program(list(inputs))
        if not self._results:
            self._results = [_own(v) for v in new]
            return self._results
        for position, (kept, value) in enumerate(zip(self._results, new)):
            if isinstance(value, torch.Tensor) and value.shape == kept.shape and value.stride() == kept.stride():
                kept.copy_(value)
            else:  # numbers, None, and results whose size depends on data
                self._results[position] = _own(value)
        return self._results


def _own(value: Any) -> Any:
    """A result in memory that nobody else has: neither an input nor a constant of the program."""
    return value.clone() if isinstance(value, torch.Tensor) else value


class NpuGraph:
    """``torch.npu.NPUGraph``, through the names that torch_npu has under ``torch.npu``.

    Args:
        npu: The module ``torch.npu``.
        pool: Handle of the memory pool, None for one of its own.
        error_mode: ``capture_error_mode``.
        on_captured: Told of each captured graph: a number that tells it from others alive, and a function that writes
            it to a path.
        super_kernels: What ``NPUGraph.super_kernel_optimize`` gets, None if it is not called.
    """

    name = "torch.npu.NPUGraph"

    def __init__(
        self,
        npu: Any,
        pool: Any,
        error_mode: str,
        on_captured: Told | None = None,
        super_kernels: tuple[Any, Any] | None = None,
    ) -> None:
        self._npu, self._pool, self._error_mode, self._on_captured = npu, pool, error_mode, on_captured
        self._super_kernels = super_kernels

    def capture(self, program: Program, inputs: Sequence[Any], numbers: StepNumbers) -> Recording:
        """Record what the program launches; on a device that does not run it.

        Errors: EngineError GE1058 with operator and line, if one waits for the device; GE4005, if one fails.
        """
        tasks = self._tasks() if numbers.tasks else None
        graph = self._npu.NPUGraph()
        known = inspect.signature(self._npu.graph).parameters
        keywords = {"pool": self._pool, "capture_error_mode": self._error_mode}
        keywords = {k: v for k, v in keywords.items() if k in known and v is not None}
        self._npu.synchronize()
        numbers.captor.recorder = tasks
        try:
            with self._npu.graph(graph, **keywords):
                results = program(list(inputs))
        except Exception as error:
            # the end of a capture that has failed fails too, in the place of what says why
            if (cause := on_purpose(error)) is not None:
                if any(text in str(cause) for text in _NOT_CAPTURED):
                    raise EngineError(
                        "GE1058",
                        "this needs the host while the graph is captured:\n  " + cause.what,
                        where=cause.where,
                        next="change this line, or use options={'force_eager': True} or mode max-autotune",
                    ) from cause
                raise cause from cause.__cause__
            raise EngineError(
                "GE4005",
                f"the graph cannot be captured: {str(error)[:2000]}",
                next="run with options={'force_eager': True}, which captures nothing",
            ) from error
        finally:
            numbers.captor.recorder = None
        if self._super_kernels is not None:
            self._fuse(graph, *self._super_kernels)
        if self._on_captured is not None and hasattr(graph, "debug_dump"):
            self._on_captured(id(graph), graph.debug_dump)
        return _NpuRecording(graph, results, tasks)

    @staticmethod
    def _fuse(graph: Any, options: Any, debug: Any) -> None:
        optimize = getattr(graph, "super_kernel_optimize", None)
        if optimize is None:
            raise EngineError(
                "GE1056",
                "super_kernel_optimize: torch.npu.NPUGraph has no super_kernel_optimize",
                next="import a torch_npu of 2.13 or newer, or leave the option at its default",
            )
        try:
            optimize(options, debug)
        except RuntimeError as error:
            raise EngineError(
                "GE1056",
                f"super_kernel_optimize: {str(error)[:500]}",
                next="correct super_kernel_optimize_options and super_kernel_debug_options, or leave them out",
            ) from error

    def describe(self, program: Program, inputs: list[Any], folder: str | None) -> None:
        """Run eagerly, with torch_npu's dump of what is launched; random numbers stay as they were."""
        extension = getattr(sys.modules.get("torch_npu"), "_C", None)
        start, stop = (getattr(extension, f"_aclop_{verb}_dump", None) for verb in ("start", "stop"))
        if start is None or stop is None:
            raise EngineError(
                "GE1056",
                "static_kernel_compile: torch_npu has no dump of launched operators",
                next="import a torch_npu that has it, or leave the option at its default",
            )
        process = os.getpid()
        outputs = Path(folder or ".").resolve() / "static_kernel_compile_outputs"
        made = outputs / f"ts{time.time_ns()}_pid{process}_outputs" / str(process)
        made.mkdir(parents=True)
        self._npu.synchronize()
        with torch.random.fork_rng(devices=[self._npu.current_device()], device_type="npu"):
            start(str(made))
            try:
                program(inputs)
                self._npu.synchronize()
            finally:
                stop()
        logger.tell(
            "static_kernel_compile: operators are described in %s; a device takes their static kernels when CANN's "
            "op_compiler has compiled them and its package is installed",
            outputs,
        )

    def settle(self) -> None:
        """Wait for the device."""
        self._npu.synchronize()

    def _tasks(self) -> NpuTasks:
        missing = [n for n in NpuTasks.NEEDED if not hasattr(self._npu, n)]
        if missing:
            raise EngineError(
                "GE1056",
                f"tasks of captured graphs cannot be replaced: torch.npu has no {', '.join(missing)}",
                next="import a torch_npu of 2.13 or newer, or pass lengths of attention that stay the same",
            )
        return NpuTasks(self._npu)


class _NpuRecording:
    def __init__(self, graph: Any, results: Sequence[Any], tasks: NpuTasks | None) -> None:
        self._graph, self._results, self._tasks = graph, results, tasks

    def replay(self, inputs: Sequence[Any], lists: Sequence[Any] = ()) -> Sequence[Any]:
        if self._tasks is not None:
            self._tasks.update(lists)
        try:
            self._graph.replay()
        except RuntimeError as error:
            raise EngineError(
                "GE4005",
                f"a captured graph cannot be replayed: {str(error)[:2000]}",
                next="run with options={'force_eager': True} and ASCEND_LAUNCH_BLOCKING=1, which names what fails",
            ) from error
        return self._results


def find_capture(
    device: str,
    *,
    pool: Any,
    error_mode: str,
    on_captured: Told | None = None,
    super_kernels: tuple[Any, Any] | None = None,
) -> GraphCapture:
    """The capture of a device type.

    Args:
        device: ``cpu`` or ``npu``.
        pool: Handle of a memory pool, None for one of its own.
        error_mode: What unsafe calls do while capturing.
        on_captured, super_kernels: See ``NpuGraph``; the CPU captures nothing that could be written or fused.

    Errors: EngineError GE1056 if the device type has none.
    """
    if device == "cpu":
        return ProgramReplay()
    module = getattr(torch, device, None)
    missing = [n for n in ("NPUGraph", "graph", "synchronize") if not hasattr(module, n)]
    if module is None or missing:
        lacks = f"torch.{device} has no {', '.join(missing)}" if module is not None else f"there is no torch.{device}"
        raise EngineError(
            "GE1056",
            f"mode reduce-overhead on device '{device}': {lacks}",
            next="import a torch_npu that captures graphs, or use mode max-autotune",
        )
    return NpuGraph(module, pool, error_mode, on_captured, super_kernels)
