"""The stages of a compilation in their order: FX passes, lowering, GE passes, verification, engine.

Each stage takes the last one's result and logs one line with counts and milliseconds. A stage that fails raises; only
where ``config.fallback`` asks for it does what is refused run eagerly, and it is said.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import torch

from ge_converters.base.provenance import not_the_user
from ge_converters.base.torch_compat import boxed, real_values, static_input_positions, trace_artifact
from ge_graph import kernels, schema
from ge_graph import passes as ge_passes
from ge_graph.collection import no_collection
from ge_graph.errors import ConfigError, GraphError, LoweringError
from ge_graph.printer import to_text
from ge_graph.rules.options import check_options
from tair_debug.observer import GraphId
from tair_debug.report import CompileReport
from torchair.artifact import cache
from torchair.artifact.ge_body import GeBody
from torchair.artifact.program_body import ProgramBody
from torchair.artifact.size_conditions import SizeWatch, become_guards, shape_env_of
from torchair.artifact.stored_graph import Contract, Stored
from torchair.compiler import observers, records
from torchair.compiler.gears import gear_options
from torchair.config import explain
from torchair.config.log import logger
from torchair.passes import FxProgress, run_all, run_captured
from torchair.passes.base import output_values, value_of
from torchair.runtime.views import ViewPlan, take_views, view_the_inputs

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from ge_graph import Graph
    from ge_runtime.api import Engine
    from torchair.compiler.gears import Gears
    from torchair.config.compiler_config import CompilerConfig
    from torchair.runtime.reduce_overhead import CapturePlan

Phase = Literal["forward", "backward"]
Call = Callable[[list[Any]], Any]

not_the_user(os.path.dirname(os.path.dirname(__file__)))  # all of torchair
_model_ids: Final = itertools.count()
_graph_ids: Final = itertools.count(1)
_recorders: Final[list[list[CompileReport]]] = []
_TASKLESS: Final = frozenset(("Const", "Constant", "ConstPlaceHolder", "Data", "RefData"))


@contextmanager
def record_compilation() -> Iterator[list[CompileReport]]:
    """Collect a report of every graph that is compiled inside the block.

    Example:
        >>> import torch, torchair
        >>> with torchair.record_compilation() as reports:  # doctest: +SKIP
        ...     model(x)
        >>> reports[0].ge_ops  # doctest: +SKIP
    """
    reports: list[CompileReport] = []
    _recorders.append(reports)
    try:
        yield reports
    finally:
        _recorders[:] = [r for r in _recorders if r is not reports]


def new_model(gm: torch.fx.GraphModule, config: CompilerConfig | None = None) -> int:
    """Number a graph that dynamo captured and show it to the observers."""
    model_id = next(_model_ids)
    for observer in observers.dynamo_observers(config):
        observer.dynamo_graph(model_id, gm)
    return model_id


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be compiled, and what is known of its calls.

    Attributes:
        phase: Half of a training graph, or ``forward`` for inference.
        model_id: Number of the dynamo graph, the next one if it is not given: dynamo has then no graph of it to show.
        training: Whether the graph is half of a training step.
        gears: Sizes that are known beforehand.
        guarded: Whether only dynamo calls what is compiled, after its guards: the engine need not look at inputs again.
        before: Seconds that our backend spent on the model before it had this graph; the first of its graphs counts
            them, and empties the list.
        told: Operator types of which an engine has said that the user's own code computes them.
    """

    config: CompilerConfig
    phase: Phase = "forward"
    model_id: int = field(default_factory=lambda: next(_model_ids))
    training: bool = False
    gears: Gears | None = None
    guarded: bool = False
    before: list[float] = field(default_factory=list)
    told: set[str] = field(default_factory=set)


class Watcher(Protocol):
    """Whoever keeps compiled graphs. A graph that is watched stays one: nothing of it runs eagerly."""

    def graph_ready(self, stored: Stored, save: Callable[[], object] | None, fleeting: bool = False) -> None:
        """A graph is finished, and not loaded yet.

        Args:
            save: Writes it to the cache; whoever is called decides whether and when. None if there is nothing to write.
            fleeting: Whether a part of it is computed by an operator of this process, which no file of a cache holds.
        """


class KeptGraph:
    """A watcher that keeps the graph in memory, and lets the cache have it.

    Attributes:
        stored: The graph; None as long as there is none, or if it runs as it stands.
    """

    def __init__(self) -> None:
        self.stored: Stored | None = None

    def graph_ready(self, stored: Stored, save: Callable[[], object] | None, fleeting: bool = False) -> None:
        """Keep it."""
        self.stored = stored
        if save is not None:
            save()


class Pipeline(FxProgress):
    """One compilation of one ATen graph."""

    def __init__(self, job: Job) -> None:
        config = self.config = job.config
        self.job = job
        self.id = GraphId(job.model_id, job.phase, next(_graph_ids))
        self.observers = observers.compile_observers(config)
        self.report = CompileReport(job.model_id, job.phase, self.id.graph_id)
        self._label = f"model {job.model_id} {job.phase}"
        self._watcher: Watcher | None = None
        self._rewrites = observers.rewrite_watch(config)
        self._choices: list[ge_passes.Choice] = []

    def compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], watcher: Watcher | None = None) -> Call:
        """All stages.

        Args:
            gm: ATen graph from AOTAutograd; the passes edit it.
            watcher: Gets the finished graph.

        Returns:
            A function of one list of arguments, which it empties.

        Errors: ConfigError for options, PassError for custom passes, LoweringError for what cannot be lowered,
        GraphError if verification fails, EngineError if the engine refuses.
        """
        start = time.perf_counter() - self._before_s()
        self._watcher = watcher
        self.report.fx_nodes = sum(n.op == "call_function" for n in gm.graph.nodes)
        records.compiler_inputs(self._label, example_inputs)
        try:
            call = self._compile(gm, example_inputs)
        finally:
            self.report.total_s = time.perf_counter() - start
        if self._rewrites is not None:
            self.report.rewrites = self._rewrites.described()
            logger.info("%s: verify_rewrites: %s", self._label, "\n  ".join(self.report.rewrites))
        self._tell_report()
        return call

    def _tell_report(self) -> None:
        for reports in _recorders:
            reports.append(self.report)
        trace_artifact(f"{self._traced}_report", "json", lambda: json.dumps(asdict(self.report), indent=1))

    @property
    def _traced(self) -> str:
        """What torch's structured trace calls the graph."""
        return f"torchair_graph_{self.id.graph_id}"

    def _before_s(self) -> float:
        took = sum(self.job.before)
        self.job.before.clear()
        if took:
            self.report.stages["prepare"] = took
        return took

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Call:
        config = self.config
        config.check()
        if config.export.export_mode.value:
            raise ConfigError(
                "GE1008",
                "config.export.export_mode = True when compiling: an export has no result to run",
                next="call torchair.dynamo_export(*inputs, model=model, ...)",
            )
        self.fx_graph("", gm)
        dump = observers.tensor_dump(config, gm, "original")
        may_cut = config.mode.value == "reduce-overhead" and config.fallback.value == "split"
        run_all(gm, example_inputs, config, self.id.phase, self, in_place=not may_cut)
        observers.warn_of_clashes(config, gm, self._label)
        if may_cut and (call := self._around_the_host(gm, dump is not None)) is not None:
            return call
        if self.id.phase == "forward":
            view_the_inputs(gm)
        observers.write_summary(config, gm)
        eager = observers.eager_run(config, self.id, gm)
        if eager is not None:
            return self._as_it_stands(gm, *eager)
        if config.mode.value == "reduce-overhead":
            dump = dump or observers.tensor_dump(config, gm, "optimized")
            return self._captured(gm) if dump is None else self._as_it_stands(gm, "dump_tensor_data", dump)
        device = device_of(gm)
        if config.fallback.value == "split":
            return self._with_fallback(gm, choose_engine(device))
        return self._on_ge(gm, choose_engine(device))

    def _on_ge(self, gm: torch.fx.GraphModule, engine: Engine) -> Call:
        """The whole graph as one GE graph, from the cache if it has it; observers are shown every stage and so get no
        cache."""
        plan = take_views(gm)
        gears = "" if self.job.gears is None else self.job.gears.text()
        with real_values(), no_collection():
            entry = cache.entry_for(self.config, gm, self._label, gears) if not self.observers else None
            kept = None if entry is None else self._from_cache(gm, engine, entry)
            if kept is not None:
                return kept
            stored = self._stored(gm, plan, entry)
            assert isinstance(stored.body, GeBody)
            return self._load(stored, stored.body, engine)

    def _from_cache(self, gm: torch.fx.GraphModule, engine: Engine, entry: cache.CacheEntry) -> Call | None:
        with self.timed("compile cache") as note:
            kept = entry.load(lambda kept: kept if become_guards(kept.contract.found(), gm) else None)
            note("miss" if kept is None else "hit")
        if kept is None or not isinstance(kept.body, GeBody):
            return None
        found, body = kept, kept.body
        call = entry.attempt(lambda: self._load(found, body, engine))
        if call is None:
            return None
        self.report.ge_ops += _tasks(body.lowered.graph)
        if self._watcher is not None:
            self._watcher.graph_ready(kept, None)
        return call

    def _static_inputs(self) -> frozenset[int]:
        """Inputs that keep their memory from call to call. torch counts them in the forward graph; of those of a
        backward graph, activations among them, it says nothing."""
        return static_input_positions() if self.id.phase == "forward" else frozenset()

    def _with_fallback(self, gm: torch.fx.GraphModule, engine: Engine) -> Call:
        """As ``_on_ge``; what is refused runs eagerly between several GE graphs."""
        from torchair.compiler import split

        refused: dict[str, str] = {}
        whole = self.id
        while True:
            copied = split.copy_of(gm)
            try:
                if not refused:
                    return self._on_ge(copied, engine)
                parts = split.cut(copied, refused)
                self.report.ge_ops = 0
                for part in parts:
                    self.id = replace(whole, graph_id=next(_graph_ids))
                    part.run = self._on_ge(part.gm, engine)
            except LoweringError as error:
                names = split.refused_nodes(gm, error)
                watched = self._watcher is not None or self.job.gears is not None
                if not names - refused.keys() or watched or split.must_stay_whole(gm):
                    raise
                refused |= {name: error.refused.get(name, "reads what GE does not know") for name in names}
            else:
                break
            finally:
                self.id = whole
        return self._between(gm, copied, refused, len(parts))

    def _between(
        self,
        gm: torch.fx.GraphModule,
        cut: torch.fx.GraphModule,
        refused: Mapping[str, str],
        parts: int,
        what: str = "GE graph",
    ) -> Call:
        """The program that runs graphs and eager nodes in turn; says which and at what cost."""
        from torchair.compiler import split
        from torchair.runtime.fx_program import write_program

        lines = split.described(gm, refused, dict(refused))
        logger.tell(
            '%s: fallback = "split": %d %ss in the place of one, and eagerly between them:\n  %s',
            self._label,
            parts,
            what,
            "\n  ".join(lines),
        )
        self.report.parts = split.parts_of(cut)
        call, source = write_program(cut, f"{self._label}, split into {parts} {what}s")
        for observer in self.observers:
            observer.output_code(self.id, source)
        return boxed(call)

    def _stored(self, gm: torch.fx.GraphModule, plan: ViewPlan, entry: cache.CacheEntry | None) -> Stored:
        """The finished GE graph; the cache gets it."""
        watch = SizeWatch(shape_env_of(gm))
        lowered = self._to_ge(gm, specialise=True)
        stored = Stored(GeBody(lowered, plan, self._static_inputs()), Contract(watch.conditions))
        if self.job.gears is not None:
            values = [value_of(n) for n in gm.graph.nodes if n.op == "placeholder"]
            stored.more["gears"] = self.job.gears.options(lowered, values)
        fleeting = entry is not None and device_of(gm) == "cpu" and self._calls_back(lowered)
        if fleeting:
            logger.info("%s: not cached: a user's operator computes a part of it, which no file holds", self._label)
        save = None if entry is None or fleeting else functools.partial(entry.save, stored)
        if self._watcher is not None:
            self._watcher.graph_ready(stored, save, fleeting)
        elif save is not None:
            save()
        return stored

    @staticmethod
    def _calls_back(lowered: Lowered) -> bool:
        """Whether a user's operator of this process computes a part of the graph on the embedded engine."""
        from ge_runtime.cpu.own_calls import stands_in

        return any(map(stands_in, lowered.graph.nodes))

    def to_graph(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], prepare: Callable[[Lowered], Lowered]
    ) -> Lowered:
        """The stages up to the finished GE graph, for exporting; the graph writes its inputs itself.

        Args:
            gm: ATen graph; the passes edit it.
            prepare: Called with the bindings before the GE passes.

        Errors: as ``compile``, but for EngineError.
        """
        records.compiler_inputs(self._label, example_inputs)
        explain.warn_of_idle(explain.explain(self.config, "export", on_device=explain.has_device()))
        self.fx_graph("", gm)
        self._fx_passes(gm, example_inputs)
        observers.write_summary(self.config, gm)
        with real_values():
            return self._to_ge(gm, prepare=prepare, ref_data=True)

    # -- FX -----------------------------------------------------------------------------------------------------------

    def _fx_passes(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        run_all(gm, example_inputs, self.config, self.id.phase, self)

    def fx_graph(self, label: str, gm: torch.fx.GraphModule, *, changed: bool = True) -> None:
        """Show the FX graph to the observers and the log; an empty label is the graph as traced."""
        for observer in self.observers if changed else ():
            observer.fx_graph(self.id, label, gm)
        if not changed:
            observers.tell_unchanged(self.observers, self.id, label, "fx")
        if logger.isEnabledFor(logging.DEBUG):
            name = f"after {label}" if label else "after AOT"
            if changed:
                logger.debug("%s: FX graph %s\n%s", self._label, name, gm.graph)
            else:
                logger.debug("%s: FX graph %s: unchanged", self._label, name)

    def fx_rewrite(self, name: str, gm: torch.fx.GraphModule, where: str = "") -> AbstractContextManager[None]:
        """Compare the FX graph before and after a pass, under ``debug.verify_rewrites``."""
        return nullcontext() if self._rewrites is None else self._rewrites.fx_pass(name, gm, where)

    def ge_rewrite(self, name: str, graph: Graph) -> AbstractContextManager[None]:
        """Compare the GE graph before and after a pass, under ``debug.verify_rewrites``."""
        return nullcontext() if self._rewrites is None else self._rewrites.ge_pass(name, graph)

    def _as_it_stands(self, gm: torch.fx.GraphModule, why: str, forward: Callable[..., Any]) -> Call:
        """The ATen graph's own program, for the options that ask for it."""
        logger.info("%s: %s, the ATen program runs as it stands", self._label, why)
        explain.warn_of_idle(explain.explain(self.config, "eager", on_device=device_of(gm) != "cpu"))
        for observer in self.observers:
            observer.output_code(self.id, gm.code)

        def call(args: list[Any]) -> Any:
            given = tuple(args)
            args.clear()
            return forward(*given)

        return boxed(records.with_runs(call, self._label))

    def _around_the_host(self, gm: torch.fx.GraphModule, eager: bool) -> Call | None:
        """A program that captures what stands before and after operators that need the host, and runs these eagerly.

        None, after the passes that are left, if the graph has no such operators, or none of it is captured anyway.
        """
        from torchair.compiler import split
        from torchair.runtime.host_work import host_work
        from torchair.runtime.reduce_overhead import Switches

        device = device_of(gm)
        captured = not self.job.training and not eager and not Switches.of(self.config.aclgraph_config).force_eager
        found = {n.name: why for n, why in host_work(gm, device)} if captured and device != "cpu" else {}
        if not found or split.must_stay_whole(gm) or self._watcher is not None:
            run_captured(gm, self.config, self.id.phase, self)
            return None
        whole, copied, static = self.id, split.copy_of(gm), self._static_inputs()
        try:
            parts = split.cut(copied, found)
            fixed = {n for i, n in enumerate(copied.graph.find_nodes(op="placeholder")) if i in static}
            for part in parts:
                (node,) = copied.graph.find_nodes(op="call_function", target=part)
                self.id = replace(whole, graph_id=next(_graph_ids))
                run_captured(part.gm, self.config, whole.phase, self)
                part.run = self._captured(part.gm, frozenset(i for i, a in enumerate(node.args) if a in fixed))
        finally:
            self.id = whole
        return self._between(gm, copied, found, len(parts), "captured graph")

    def _captured(self, gm: torch.fx.GraphModule, static: frozenset[int] | None = None) -> Call:
        """Mode reduce-overhead: a program of the ATen graph, captured and replayed.

        Args:
            static: Positions of parameters and buffers; None asks torch.
        """
        from torchair.runtime.reduce_overhead import plan_capture

        device, capture = device_of(gm), not self.job.training and self.id.phase == "forward"
        with self.timed("reduce-overhead") as note, real_values():
            planned = plan_capture(
                gm,
                device,
                self.config.aclgraph_config,
                title=self._capture_title,
                static=self._static_inputs() if static is None else static,
                capture=capture,
            )
            note(f"program of {len(gm.graph.nodes)} FX nodes")
            stored = None if self._watcher is None else Stored(ProgramBody.of(planned))
        if stored is not None and self._watcher is not None:
            self._watcher.graph_ready(stored, None)
        elif not capture and self.config.cache_dir.value:
            cache.cannot_keep("mode reduce-overhead keeps no graphs with gradients")
        return self._ready(planned.plan, device)

    @property
    def _capture_title(self) -> str:
        return f"{self._label}, graph {self.id.graph_id}, mode reduce-overhead"

    def _ready(self, plan: CapturePlan, device: str) -> Call:
        """A planned program, ready to run."""
        from torchair.runtime.reduce_overhead import run_captured

        with real_values():
            call = run_captured(
                plan,
                device,
                self.config.aclgraph_config,
                title=self._capture_title,
                on_captured=observers.who_sees_captures(self.observers, self.id),
            )
        trace_artifact(f"{self._traced}_program", "string", lambda: plan.source)
        for observer in self.observers:
            observer.output_code(self.id, plan.source)
        explain.warn_of_idle(explain.explain(self.config, "reduce-overhead", on_device=device != "cpu"))
        return boxed(records.with_runs(call, self._label))

    # -- GE -----------------------------------------------------------------------------------------------------------

    def _to_ge(
        self,
        gm: torch.fx.GraphModule,
        *,
        specialise: bool = False,
        prepare: Callable[[Lowered], Lowered] = lambda lowered: lowered,
        ref_data: bool = False,
    ) -> Lowered:
        from ge_converters.conversion import convert_graph
        from ge_converters.lowering.own_calls import share_notices
        from ge_converters.registry import REGISTRY
        from torchair.oplib import converters

        with self.timed("load converters") as note:
            converters.register()
            for target in dict.fromkeys(n.target for n in gm.graph.nodes if n.op == "call_function"):
                REGISTRY.find(target)
            note("known")
        with schema.use_cann(self.config.cann_version.value):
            lowered = convert_graph(
                gm,
                name=f"graph_{self.id.graph_id}",
                specialise=specialise,
                prepare=lambda made: self._prepared(gm, prepare(self._checked(made)), ref_data),
                progress=self,
            )
            self._check_soc(lowered.graph)
        share_notices(lowered.graph, self.job.told)
        self.report.ge_ops += _tasks(lowered.graph)
        return lowered

    def _checked(self, lowered: Lowered) -> Lowered:
        """What options ask of a graph that is known now."""
        self.config.check_graph(
            streams=any("_user_stream_label" in n.attrs for n in lowered.graph.nodes),
            dynamic=any(b.kind == "scalar" or not all(isinstance(d, int) for d in b.spec.size) for b in lowered.inputs),
        )
        return lowered

    def _prepared(
        self, gm: torch.fx.GraphModule, lowered: Lowered, ref_data: bool
    ) -> tuple[Lowered, Sequence[ge_passes.Pass]]:
        """The bindings to go on with, and the GE passes that the options ask for."""
        if self._rewrites is not None:
            self._rewrites.graph_lowered(gm, lowered)
        experimental = self.config.experimental_config
        fuse = experimental.pattern_fusion_pass.value
        passes = [p for p in ge_passes.DEFAULT if fuse or not isinstance(p, ge_passes.FuseOperators)]
        if ref_data or experimental.enable_ref_data.value:
            lowered, pairs = without_write_backs(lowered)
            passes = [ge_passes.WriteInputsInPlace(pairs), ge_passes.ReplaceDataWithRefData(), *passes]
        if not experimental.topology_sorting_strategy.is_default:
            passes.append(ge_passes.SortNodes(experimental.topology_sorting_strategy.value))
        soc = self.config.check_soc.value
        if soc is None:
            return lowered, passes
        from ge_graph.cost import forms
        from tair_debug.tracing import size_hints

        oracle = kernels.oracle(soc)
        price = forms.price(soc, size_hints(gm))
        return lowered, ge_passes.for_chip(oracle, passes, price=price, say=self._choices.append)

    def _check_soc(self, graph: Graph) -> None:
        """The verdict of the chip that ``config.check_soc`` names, as a warning or, on request, an error."""
        soc = self.config.check_soc.value
        if soc is None:
            return
        from tair_debug import check

        with self.timed("check_soc") as note:
            report = check.examine([graph], kernels.oracle(soc), self._choices)
            note(report.headline())
        for text in report.forms():
            logger.info("%s: form: %s", self._label, text)
        trace_artifact(f"{self._traced}_{report.soc}", "json", lambda: json.dumps(report.as_dict(), indent=1))
        if not report.ok and self.config.check_soc_error.value:
            bad = check.text([r for r in report.troubles() if r.verdict.state == "none"])
            raise GraphError(
                "GE3069",
                f"{report.headline()}; without a kernel ({report.origin}):\n{bad}",
                next="follow the advice of each line, or set config.check_soc_error = False to be warned only",
            )
        if report.troubles():
            logger.tell("%s: %s (%s)\n%s", self._label, report.headline(), report.origin, check.text(report.troubles()))

    def ge_graph(self, label: str, graph: Graph) -> None:
        """Show the GE graph to the observers and the log."""
        for observer in self.observers:
            observer.ge_graph(self.id, label, graph)
        if logger.isEnabledFor(logging.DEBUG):
            name = label if label in ("original", "optimized") else f"after {label}"
            logger.debug("%s: GE graph %s: %d nodes", self._label, name, len(graph.nodes))

    def ge_unchanged(self, label: str) -> None:
        """Note a GE pass that changed nothing."""
        observers.tell_unchanged(self.observers, self.id, label, "ge")
        logger.debug("%s: GE graph after %s: unchanged", self._label, label)

    def load_stored(self, stored: Stored, device: str) -> Call:
        """A graph that was compiled before, ready to run.

        Args:
            device: Device type of its tensors.

        Errors: EngineError if the engine or the device refuses.
        """
        start = time.perf_counter() - self._before_s()
        if isinstance(stored.body, ProgramBody):
            call = self._ready(stored.body.plan, device)
        else:
            call = self._load(stored, stored.body, choose_engine(device))
            self.report.ge_ops += _tasks(stored.body.lowered.graph)
        self.report.total_s = time.perf_counter() - start
        self._tell_report()
        return call

    def _load(self, stored: Stored, body: GeBody, engine: Engine) -> Call:
        from ge_runtime import discovery
        from ge_runtime.api import boxed as boxed_run
        from torchair.runtime.executable import bind

        if not body.lowered.graph.nodes:
            engine = discovery.load("cpu")  # GE takes no graph without a node (E19999); nothing is computed anyway
        on_device = "npu" in engine.probe().devices
        explain.warn_of_idle(explain.explain(self.config, "max-autotune", on_device=on_device))
        lowered = body.lowered
        options = self._engine_options(stored, body)
        check_options(lowered.graph, options)
        number = self.id.graph_id
        idle = [] if on_device else self.config.only_on_a_device()
        records.graph_added(lowered, number, dict(options), idle, engine.name)
        trace_artifact(self._traced, "string", lambda: to_text(lowered.graph))
        with self.timed("engine") as note:
            start = time.perf_counter()
            own = {**_written(lowered, engine), **self._numerics(engine)}
            executable = engine.compile(lowered.graph, {**options, **own})
            records.graph_compiled(lowered, number, engine.name, time.perf_counter() - start)
            executable = observers.with_data_dump(executable, lowered.graph, options, self.id, engine)
            run = boxed_run(executable, guarded=self.job.guarded)
            telling = records.telling(number, lowered.graph.name, self._label)
            call, source = bind(lowered, run, engine.name, body.plan, telling)
            note(f"'{engine.name}' took {len(lowered.graph.nodes)} GE nodes")
        if self.observers:
            text = "\n".join(part for part in (executable.source, source) if part)
            for observer in self.observers:
                observer.output_code(self.id, text)
        return boxed(call)

    def _numerics(self, engine: Any) -> Mapping[str, str]:
        """Whose rounding the embedded engine shows; a device has its own."""
        chip = self.config.numerics.value
        return {"engine.numerics": chip} if chip is not None and engine.name == "cpu" else {}

    def _engine_options(self, stored: Stored, body: GeBody) -> Mapping[str, str]:
        lowered, graph = body.lowered, body.lowered.graph
        options = {**self.config.ge_options(), **gear_options(stored.more)}
        if self.config.experimental_config.frozen_parameter.value:
            fixed = body.static
            options["frozen_parameter"] = "1"
            options["frozenInput"] = ",".join("1" if b.fx_index in fixed else "0" for b in lowered.inputs)
        options["ge.deterministic"] = "1" if torch.are_deterministic_algorithms_enabled() else "0"
        if "ge.exec.enableDump" in options:
            marked = [n.name for n in graph.nodes if "_data_dump" in n.attrs]
            named = options.get("ge.exec.dumpLayer", "").split()
            if marked:
                options["ge.exec.dumpLayer"] = " ".join(dict.fromkeys([*named, *marked]))
        return options

    # -- log ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def timed(self, stage: str) -> Iterator[Callable[[str], None]]:
        """Time a stage for the report and the log."""
        notes: list[str] = []
        start = time.perf_counter()
        yield notes.append
        took = time.perf_counter() - start
        self.report.stages[stage] = self.report.stages.get(stage, 0.0) + took
        took_ms = took * 1e3
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s: %s: %s, %.1f ms", self._label, stage, "; ".join(notes), took_ms)
        else:
            logger.event("%s: %s took %.1f ms", self._label, stage, took_ms)


def prepare_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], phase: Phase, config: CompilerConfig | None = None
) -> None:
    """What a compilation does to an ATen graph before it is lowered, for tools that lower it themselves.

    Args:
        phase: Half of a training graph, or ``forward``.
        config: The options; None means all defaults.

    Errors: PassError for custom passes.
    """
    from torchair.config.compiler_config import CompilerConfig
    from torchair.oplib import converters

    converters.register()
    run_all(gm, example_inputs, CompilerConfig() if config is None else config, phase)


def _tasks(graph: Graph) -> int:
    """Operators that an engine has to run."""
    return sum(n.op not in _TASKLESS for n in graph.nodes)


def without_write_backs(lowered: Lowered) -> tuple[Lowered, list[tuple[int, int]]]:
    """Bindings for a graph that writes its inputs itself, and the (input, output) pairs that it has to write.

    A result that is returned as well, and an input that is written but never read, keep the copy after the run.
    """
    data = {binding.fx_index: i for i, binding in enumerate(lowered.inputs)}
    returned = {o.ge_index for o in lowered.outputs if hasattr(o, "ge_index")}
    inside = [m for m in lowered.mutations if m.fx_index in data and m.ge_index not in returned]
    counts = Counter(m.ge_index for m in lowered.mutations)
    inside = [m for m in inside if counts[m.ge_index] == 1]
    gone = {m.ge_index for m in inside}

    def moved(binding: Any) -> Any:
        if not hasattr(binding, "ge_index"):
            return binding
        return replace(binding, ge_index=binding.ge_index - sum(g < binding.ge_index for g in gone))

    left = replace(
        lowered,
        outputs=tuple(map(moved, lowered.outputs)),
        mutations=tuple(moved(m) for m in lowered.mutations if m not in inside),
    )
    return left, [(data[m.fx_index], m.ge_index) for m in inside]


def _written(lowered: Lowered, engine: Engine) -> Mapping[str, str]:
    """Tells the embedded engine which results are copied into arguments, so that it computes them there."""
    if engine.name != "cpu":
        return {}
    data = {binding.fx_index: i for i, binding in enumerate(lowered.inputs)}
    returned = {o.ge_index for o in lowered.outputs if hasattr(o, "ge_index")}
    times = Counter(m.fx_index for m in lowered.mutations)
    pairs = [
        f"{data[m.fx_index]}:{m.ge_index}"
        for m in lowered.mutations
        if m.fx_index in data and times[m.fx_index] == 1 and m.ge_index not in returned
    ]
    return {"engine.written": ",".join(pairs)} if pairs else {}


def device_of(gm: torch.fx.GraphModule) -> str:
    """Device type of a graph's tensors: that of its inputs, else of its results; a device wins over the CPU."""
    inputs = [value_of(n) for n in gm.graph.nodes if n.op == "placeholder"]
    for values in (inputs, [value_of(v) for v in output_values(gm.graph)]):
        devices = {v.device.type for v in values if isinstance(v, torch.Tensor)}
        if devices:
            return str(min(devices, key=lambda device: (device == "cpu", device)))
    return "cpu"


engine_here: Final[ContextVar[Engine | None]] = ContextVar("engine_here", default=None)
"""The engine of this thread's compilations in the place of those that are installed, None for these."""


def choose_engine(device: str) -> Engine:
    """The engine for a device type: that of ``engine_here``; else ``TAIR_ENGINE`` forces one.

    Errors: EngineError with the reason of each engine that is passed over.
    """
    from ge_runtime.discovery import choose

    if (engine := engine_here.get()) is not None:
        return engine

    return choose(device, os.environ.get("TAIR_ENGINE") or None)
