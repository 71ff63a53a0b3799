"""What the log says of compilers' inputs and of runs; every text is made only if its level is on."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import profiling
from torchair.config.log import EVENT_LEVEL, logger
from torchair.runtime.executable import Call, Telling

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered

_native: Final = logging.getLogger("ge_runtime.session")


def compiler_inputs(label: str, example_inputs: Sequence[Any]) -> None:
    """DEBUG: what the compiler was given, one input a line."""
    if logger.isEnabledFor(logging.DEBUG):
        listed = "".join(f"\n  input {i}: {value}" for i, value in enumerate(example_inputs))
        logger.debug("%s: compiler inputs:%s", label, listed or " none")


def with_runs(call: Call, label: str) -> Call:
    """A call that tells at DEBUG what each run is given; one look at the level when that is off."""

    def told(args: list[Any]) -> Any:
        if logger.isEnabledFor(logging.DEBUG):
            listed = "".join(f"\n  input {i}: {_tensor(value)}" for i, value in enumerate(args))
            logger.debug("%s: runtime inputs:%s", label, listed or " none")
        return call(args)

    return told


def _tensor(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    return (
        f"{type(value).__name__} shape={list(value.shape)} dtype={value.dtype} device={value.device} "
        f"contiguous={value.is_contiguous()}"
    )


# -- the native layer -------------------------------------------------------------------------------------------------


def graph_added(lowered: Lowered, graph_id: int, options: dict[str, str], idle: Sequence[str], engine: str) -> None:
    """INFO: the options that the engine gets; WARNING: those of them that it has no use for."""
    if _native.isEnabledFor(logging.INFO):
        listed = "".join(f"\n  {name}: {value}" for name, value in sorted(options.items()))
        _native.info("Compiling concrete graph %d with options:%s", graph_id, listed)
    if _native.isEnabledFor(logging.DEBUG):
        listed = "".join(
            f"\n  {n.name}: {n.outputs[0].dtype.name} {n.outputs[0].known_shape}" for n in lowered.graph.inputs
        )
        _native.debug("Add graph %d, inputs:%s", graph_id, listed or " none")
    if idle:
        _native.warning("Engine '%s' does nothing with: %s", engine, ", ".join(idle))


def graph_compiled(lowered: Lowered, graph_id: int, engine: str, seconds: float) -> None:
    """INFO: whether the graph is static; EVENT: how long the engine took."""
    if _native.isEnabledFor(logging.INFO):
        _native.info(
            "%s FX graph compiled to %s Ascend GE graph by engine '%s', graph id: %d",
            "Dynamic" if any(b.kind == "scalar" or _open(b.spec.size) for b in lowered.inputs) else "Static",
            "dynamic" if any(_open(b.spec.size) for b in lowered.inputs) else "static",
            engine,
            graph_id,
        )
    _native.log(EVENT_LEVEL, "Graph %d compiled by engine '%s' in %.1f ms", graph_id, engine, seconds * 1e3)


def _open(size: Sequence[Any]) -> bool:
    return not all(isinstance(d, int) and d >= 0 for d in size)


def with_graph_runs(run: Call, graph_id: int, name: str) -> Call:
    """A run that tells of itself: INFO that it ran, DEBUG the tensors of the engine, with their addresses.

    ``torch.profiler`` sees it as ``GE graph`` and the name: what a device does later and elsewhere is no part of it.

    Args:
        run: A function of a list of inputs, which it empties.
        name: Of the graph, as GE has it.
    """
    shown = f"GE graph {name}"

    def told(inputs: list[Any]) -> Any:
        if profiling():
            with torch.profiler.record_function(shown):
                return logged(inputs)
        return logged(inputs) if _native.isEnabledFor(logging.INFO) else run(inputs)

    def logged(inputs: list[Any]) -> Any:
        if not _native.isEnabledFor(logging.INFO):
            return run(inputs)
        detailed = _native.isEnabledFor(logging.DEBUG)
        if detailed:
            _native.debug("Run graph %d, ge inputs:%s", graph_id, _listed(inputs))
        outputs = run(inputs)
        if detailed:
            _native.debug("Graph %d, ge outputs:%s", graph_id, _listed(outputs))
        _native.info("Graph %d ran successfully", graph_id)
        return outputs

    return told


def telling(graph_id: int, name: str, label: str) -> Telling:
    """Who is told of a graph's runs: the two logs, and ``torch.profiler``."""
    return Telling(
        questions=((profiling, ()), (logger.isEnabledFor, (logging.DEBUG,)), (_native.isEnabledFor, (logging.INFO,))),
        graph=functools.partial(with_graph_runs, graph_id=graph_id, name=name),
        call=functools.partial(with_runs, label=label),
    )


def _listed(values: Sequence[Any]) -> str:
    return "".join(f"\n  {i}: {_address(v)}" for i, v in enumerate(values)) or " none"


def _address(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}"
    return (
        f"shape={list(value.shape)} strides={list(value.stride())} dtype={value.dtype} device={value.device} "
        f"address={value.data_ptr():#x}"
    )
