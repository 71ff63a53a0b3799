"""What the options and the environment switch on beside compiling: dumps, reports, and running eagerly.

Everything here looks at a compilation, or runs the ATen graph where an option says so; `tair_debug` does the work.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tair_debug import artefacts, debug_tree
from tair_debug.observer import CompileObserver, active
from torchair.config.log import logger, record_no_longer_to, record_to

if TYPE_CHECKING:
    import torch

    from ge_graph import Graph
    from ge_runtime.api import Engine, Executable
    from tair_debug.observer import GraphId
    from torchair.config.compiler_config import CompilerConfig
    from torchair.passes.proofs import RewriteWatch


def dynamo_observers(config: CompilerConfig | None = None) -> tuple[CompileObserver, ...]:
    """Who sees the graph from dynamo."""
    name = _record_name(config)
    return (*active(), debug_tree.DebugTree(name=name)) if _debug_record(name) else active()


def compile_observers(config: CompilerConfig) -> tuple[CompileObserver, ...]:
    """Who sees the stages of one compilation."""
    observers = [*active()]
    dump = config.debug.graph_dump
    name = _record_name(config)
    if _debug_record(name):
        code = config.mode.value == "reduce-overhead"
        observers.append(debug_tree.DebugTree(dump.type.value or "txt", code=code, name=name))
    if dump.type.value is not None:
        from tair_debug.graph_dump import GraphDump

        observers.append(GraphDump(dump.type.value, dump.path.value))
    return tuple(observers)


def rewrite_watch(config: CompilerConfig) -> RewriteWatch | None:
    """Who compares graphs before and after each rewrite, if ``debug.verify_rewrites`` asks for it."""
    if not config.debug.verify_rewrites.value:
        return None
    from torchair.passes.proofs import RewriteWatch

    return RewriteWatch()


def tell_unchanged(seeing: Iterable[CompileObserver], stage: GraphId, label: str, kind: str) -> None:
    """Tell those who want to know that a pass ran and changed nothing."""
    for observer in seeing:
        tell = getattr(observer, "unchanged", None)
        if tell is not None:
            tell(stage, label, kind)


def who_sees_captures(
    seeing: Iterable[CompileObserver], stage: GraphId
) -> Callable[[int, Callable[[str], Any]], None] | None:
    """What to call for each graph that a device captures; None if nobody wants to know."""
    tells = [tell for observer in seeing if (tell := getattr(observer, "captured", None)) is not None]
    if not tells:
        return None

    def told(identity: int, dump: Callable[[str], Any]) -> None:
        for tell in tells:
            tell(stage, identity, dump)

    return told


def _record_name(config: CompilerConfig | None) -> str:
    """The backend npugraph_ex has a folder of its own."""
    return "torchair" if config is None or config.graph_ex is None else "npugraph_ex"


def _debug_record(name: str) -> bool:
    """Whether there is a debug record; the first look at it starts its log."""
    if not debug_tree.wanted():
        return False
    _start_debug_log(os.fspath(debug_tree.root(name) / "debug.log"))
    return True


@functools.cache
def _start_debug_log(path: str) -> None:
    try:
        artefacts.claim(path)
        record_to(_DebugLog(path, encoding="utf-8", errors="backslashreplace"))
    except OSError as error:
        raise artefacts.no_file(debug_tree.VARIABLE, path, error) from error


class _DebugLog(logging.FileHandler):
    """The log file of the debug record; when it cannot be written any more, it says so once and ends."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Give up: a full disk must not stop the run, nor bring a traceback for every record."""
        reason = sys.exc_info()[1]
        record_no_longer_to(self)
        logger.error("%s: %s ends here: %s", debug_tree.VARIABLE, self.baseFilename, reason)


def write_summary(config: CompilerConfig, gm: torch.fx.GraphModule) -> None:
    """Write the csv of ``debug.fx_summary`` if it is asked for.

    Errors: ConfigError GE1041 if the file cannot be written.
    """
    if config.debug.fx_summary.type.value is None:
        return
    from tair_debug.fx_summary import summarize, write_csv

    path = write_csv(summarize(gm))
    logger.info("fx_summary: %s", path)


def eager_run(
    config: CompilerConfig, stage: GraphId, gm: torch.fx.GraphModule
) -> tuple[str, Callable[..., Any]] | None:
    """The option that asks for the ATen graph to run as it stands, and what to call; None if no option does.

    Errors: ConfigError GE1042 if the filter of ``debug.data_dump`` fails.
    """
    debug = config.debug
    if debug.data_dump.type.value is not None:
        from tair_debug.data_dump import DataDump

        return "debug.data_dump", DataDump(gm, stage.graph_id, debug.data_dump.path.value, debug.data_dump.filter.value)
    if debug.run_eagerly.value:
        return "debug.run_eagerly", _program(gm)
    if debug.fx_summary.type.value is not None and debug.fx_summary.skip_compile.value:
        logger.tell(
            "debug.fx_summary.skip_compile: the model runs eagerly, nothing is compiled; set it to False to compile"
        )
        return "debug.fx_summary.skip_compile", _program(gm)
    return None


def tensor_dump(config: CompilerConfig, gm: torch.fx.GraphModule, stage: str) -> Callable[..., Any] | None:
    """What to call instead of a captured graph if ``dump_tensor_data`` asks for this stage; passes do not change it."""
    options = config.aclgraph_config
    captured = config.mode.value == "reduce-overhead" and options.dump_tensor_data.value
    if not captured or options.data_dump_stage.value != stage:
        return None
    import copy

    import torch

    from tair_debug.tensor_dump import TensorDump

    # node metas stay behind: their fake tensors cannot be copied, and running needs none
    fresh = torch.fx.Graph()
    fresh.output(fresh.graph_copy(gm.graph, {}))
    return TensorDump(torch.fx.GraphModule(copy.copy(gm), fresh), options.data_dump_dir.value)


def warn_of_clashes(config: CompilerConfig, gm: torch.fx.GraphModule, label: str) -> None:
    """Under ``deadlock_check`` warn of communication tasks that may keep each other waiting for cores."""
    captured = config.mode.value == "reduce-overhead"
    if not (config.debug.deadlock_check.value or (captured and config.aclgraph_config.deadlock_check.value)):
        return
    from ge_graph.cost import chips
    from torchair.passes.core_clashes import clashes, report

    figures = chips.figures(config.check_soc.value or "ascend910b")
    cores = figures.get("vector_cores")
    found = [] if cores is None else clashes(gm.graph, int(cores))
    if found:
        logger.tell("%s: deadlock_check for %s:\n%s", label, figures.chip, report(found))


def _program(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    gm.recompile()  # the passes have edited the graph
    return gm.forward  # type: ignore[no-any-return]


def with_data_dump(
    executable: Executable, graph: Graph, options: Mapping[str, str], stage: GraphId, engine: Engine
) -> Any:
    """The executable, or one that dumps as ``dump_config`` says; a device's engine dumps by itself."""
    if options.get("ge.exec.enableDump") != "1" or "npu" in engine.probe().devices:
        return executable
    from tair_debug.ge_dump import DumpingExecutable

    return DumpingExecutable(executable, graph, options, stage.graph_id)
