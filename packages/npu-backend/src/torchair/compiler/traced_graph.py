"""A graph as dynamo hands it over: run without AOTAutograd's wrapper where that does nothing, and kept on disk.

AOTAutograd wraps every compiled graph into Python that looks at each input and output. For a graph without gradients
whose inputs and results pass unchanged it does nothing, and from the second call on the graph is called directly.

The same graphs have a disk cache before AOTAutograd: the key is dynamo's graph, the entry the finished GE graph. A hit
runs neither AOTAutograd nor any stage of ours; what is left of a start is dynamo's own tracing. All other graphs keep
the cache behind AOTAutograd. What AOTAutograd and the lowering found out about symbolic sizes is stored as a tree of
numbers and names and put under guards again; sizes for which it does not hold are compiled anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import (
    aliasing_guards,
    aot_metadata,
    around_the_graph,
    is_composite,
    real_values,
)
from tair_export.ranks import current
from torchair.artifact import cache
from torchair.artifact.dependencies import GraphToKeep
from torchair.artifact.plain import Unstorable
from torchair.artifact.size_conditions import SizeWatch, become_guards, shape_env_of
from torchair.artifact.stored_graph import Contract, Stored
from torchair.artifact.traced_call import order_of
from torchair.config.compiler_config import find
from torchair.config.log import logger

if TYPE_CHECKING:
    from torchair.compiler.pipeline import Pipeline
    from torchair.config.compiler_config import CompilerConfig

_OWN_NAMESPACES: Final = frozenset(("aten", "prims", "prim", "quantized", "_c10d_functional"))
_NEED_STAGES: Final = (
    "fallback",
    "check_soc",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    "debug.fx_summary.type",
    "debug.graph_dump.type",
    "debug.data_dump.type",
    "debug.run_eagerly",
    "export.export_mode",
    "experimental_config.enable_ref_data",
)
"""Options that want to see, change or report a stage that a hit leaves out."""
_TRUSTED: Final = frozenset(("torch", "_operator", "operator", "builtins", "math"))


class TracedGraph:
    """One graph of dynamo's.

    Args:
        entry: Its place in the cache; None if it has none.
        say: Told why nothing is kept before AOTAutograd.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, label: str, entry: cache.CacheEntry | None, say: Callable[..., None]
    ) -> None:
        self._gm, self._label, self.entry = gm, label, entry
        self._open = True
        self._call: Callable[[list[Any]], Any] | None = None
        self._inner: list[Any] = []
        self._stored: Stored | None = None
        self._later: Callable[[], object] | None = None
        self._device, self._count = "cpu", 0
        self._watch = SizeWatch(shape_env_of(gm))
        self._aliasing = aliasing_guards()
        self._say = say

    # -- reading

    def load(self, pipeline: Pipeline) -> Callable[..., Any] | None:
        """The compiled graph as AOTAutograd would hand it to dynamo; None if there is no entry of use."""

        def use(stored: Stored) -> Callable[..., Any] | None:
            contract = stored.contract
            inputs = sum(n.op == "placeholder" for n in self._gm.graph.nodes)
            if contract.order is None or contract.inputs != inputs:
                raise ValueError("the inputs are not those of the graph")
            if not become_guards(contract.found(), self._gm):
                return None
            with real_values():
                call = pipeline.load_stored(stored, contract.device)
            return _outer(call, contract.order, contract.outputs)

        return None if self.entry is None else self.entry.load(use)

    # -- writing

    def compiler(self, pipeline: Pipeline) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Any]:
        """The compiler of graphs without gradients, which is watched."""
        from ge_converters.base.torch_compat import boxed
        from torchair.compiler.pipeline import device_of

        def compile_inference(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            metadata = aot_metadata()
            self._device = device_of(gm)
            self._count = len(metadata.output_info) if metadata is not None else 0
            why = "AOTAutograd says nothing of it" if metadata is None else around_the_graph(metadata)
            self._open = not why
            if why and self.entry is not None:
                self._not_stored(why)
            watcher = self if self._open and self.entry is not None else None
            call = self._call = pipeline.compile(gm, example_inputs, watcher)

            def run(args: list[Any]) -> Any:
                if self._open:
                    self._inner = list(args)
                return call(args)

            return boxed(run)

        return compile_inference

    def graph_ready(self, stored: Stored, save: Callable[[], object] | None, fleeting: bool = False) -> None:
        """The pipeline has made a graph; ``save`` writes it to the cache behind AOTAutograd."""
        if not fleeting:
            self._stored, self._later = stored, save

    def watched(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What AOTAutograd made, until it has first run; then the graph itself if nothing is around it."""
        if self._call is None or not self._open:
            return compiled
        if aliasing_guards() != self._aliasing:
            self._behind("inputs that share memory")
            return compiled
        direct: Callable[..., Any] | None = None
        whole: Callable[[list[Any]], Any] | None = None
        count = 0
        conditions: list[Any] = []
        try:
            conditions = self._watch.conditions() if self._stored is not None else []
        except Unstorable as error:
            self._not_stored(str(error))

        def run(*flat: Any) -> Any:
            nonlocal direct, whole, count
            if whole is not None:
                return whole(list(flat))[:count]
            if direct is not None:
                return direct(*flat)
            result = compiled(*flat)
            order = self._first(flat, conditions)
            if order is None or self._call is None:
                direct = compiled
            elif order == list(range(len(order))):
                whole, count = self._call, self._count  # the usual case, without a function between
            else:
                direct = _outer(self._call, order, self._count)
            return result

        return run

    def _first(self, flat: Sequence[Any], conditions: list[Any]) -> list[int] | None:
        """After the first run: write the entry, and say which argument is which input of the graph; None if that has no
        answer."""
        inner, self._inner, self._open = self._inner, [], False
        order = order_of(inner, flat) if inner or not flat else None
        if order is None:
            self._behind("inputs that are made anew in each call")
            return None
        stored, self._stored = self._stored, None
        if stored is not None and self.entry is not None:
            stored.contract = Contract(conditions, self._device, order, len(flat), self._count)
            self.entry.save(stored, say=self._say)
            self._later = None
        return order

    def _behind(self, why: str) -> None:
        """AOTAutograd's wrapper stays."""
        self._open = False
        self._not_stored(why)

    def _not_stored(self, why: str) -> None:
        self._stored, later, self._later = None, self._later, None
        if self.entry is not None:
            self._say("%s: not cached before AOTAutograd: %s", self._label, why)
        if later is not None:
            later()


def _outer(call: Callable[[list[Any]], Any], order: list[int], count: int) -> Callable[..., Any]:
    if order == list(range(len(order))):

        def straight(*flat: Any) -> Any:
            return call(list(flat))[:count]

        return straight

    def ordered(*flat: Any) -> Any:
        return call([flat[i] for i in order])[:count]

    return ordered


def traced_graph(
    config: CompilerConfig,
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Mapping[Any, Callable[..., Any]],
    gears: Any,
    label: str,
) -> TracedGraph | None:
    """How a graph is run and kept; None if gradients are wanted.

    Args:
        gears: Sizes that are known beforehand.
    """
    if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in example_inputs):
        return None
    entry = None
    # a captured graph has no second place in the cache, behind AOTAutograd
    say = logger.tell if config.mode.value == "reduce-overhead" else logger.info
    if config.cache_dir.value:
        try:
            _check(config, gm, example_inputs)
            subject = GraphToKeep(
                config, gm, example_inputs, decompositions, gears="" if gears is None else gears.text(), rank=current()
            )
            entry = cache.entry_of(subject, "traced", label)
        except Unstorable as error:
            say("%s: not cached before AOTAutograd: %s", label, error)
    return TracedGraph(gm, label, entry, say)


def _check(config: CompilerConfig, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Refuse what the key would not tell apart.

    Raises:
        Unstorable: With the reason.
    """
    for path in _NEED_STAGES:
        option = find(config, path)
        if not option.is_default:
            raise Unstorable(f"{path} = {str(option.value)[:80]}")
    for value in example_inputs:
        if isinstance(value, torch.SymFloat) or not isinstance(value, (torch.Tensor, torch.SymInt, int)):
            raise Unstorable(f"an input of type {type(value).__name__}")
    for graph in (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):
        for node in graph.graph.nodes:
            _check_node(node)


def _check_node(node: torch.fx.Node) -> None:
    if node.op == "call_module":
        raise Unstorable(f"a module is called, {node.target}")
    if node.op != "call_function":
        return
    target = node.target
    overloads = [target] if isinstance(target, torch._ops.OpOverload) else []
    if isinstance(target, torch._ops.OpOverloadPacket):
        overloads = [getattr(target, name) for name in target.overloads()]
    for op in overloads:
        if op.namespace not in _OWN_NAMESPACES and is_composite(op):
            raise Unstorable(f"operator {op} is made of others by code that may change")
    if overloads or isinstance(target, torch._ops.HigherOrderOperator):
        return
    module = getattr(target, "__module__", None) or type(target).__module__
    home = sys.modules.get(module)
    known = getattr(target, "__objclass__", None) is not None or home is not None
    if module.partition(".")[0] not in _TRUSTED or not known:
        raise Unstorable(f"a function of {module} is called")
