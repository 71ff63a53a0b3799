"""The walk over an FX graph: every node becomes GE nodes through its converter, all refusals are raised together.

The graph must be functional (as AOTAutograd leaves it) and carry ``meta["val"]``; nothing is traced again, nothing is
copied.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.base.provenance import FxProvenance, Texts, fx_target, user_frame
from ge_converters.lowering import (
    aliasing,
    asserts,
    control_flow,
    conversion_log,
    higher_order,
    memory_ops,
    own_calls,
    problems,
    specialise,
    symbols,
)
from ge_converters.lowering.calls import Caller, NoConverter
from ge_converters.lowering.context import Context, Symbolic, Unproduced, constant
from ge_converters.lowering.effects import Mark, OpenScopes, effect_of
from ge_converters.registry import REGISTRY, Entry, Registry
from ge_graph import DataType, Graph, Tensor, TensorSpec, builder, building
from ge_graph import ops as ge
from ge_graph.collection import no_collection

logger = logging.getLogger(__name__)

FxNode: TypeAlias = torch.fx.Node
_SCALAR_DTYPES: Final = {
    torch.SymInt: DataType.DT_INT64,
    torch.SymFloat: DataType.DT_DOUBLE,
    torch.SymBool: DataType.DT_BOOL,
}
_PYTYPES: Final = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


@dataclass(slots=True)
class Lowered:
    """A GE graph and how the FX graph's inputs and outputs meet it.

    Attributes:
        graph: The GE graph.
        inputs: One entry a GE Data, in the order of its ``index``.
        outputs: One entry an FX output.
        mutations: What to write back into inputs after a run, in order.
        placeholders: Number of FX inputs.
        nested: How the FX graph returns its outputs: None for one bare value, else ``tuple`` or ``list``.
        values: What each FX node became, if that was asked for.
        bodies: What the functions of control-flow nodes became, likewise.
    """

    graph: Graph
    inputs: tuple[aliasing.InputBinding, ...]
    outputs: tuple[aliasing.OutputBinding, ...]
    mutations: tuple[aliasing.Mutation, ...]
    placeholders: int = 0
    nested: type | None = field(default=tuple)
    values: Mapping[FxNode, Any] = field(default_factory=dict)
    bodies: Sequence[control_flow.LoweredBody] = ()


def lower(
    gm: torch.fx.GraphModule,
    *,
    name: str = "graph_1",
    registry: Registry | None = None,
    specialise: bool = False,
    keep_values: bool = False,
) -> Lowered:
    """Convert an FX graph to a GE graph.

    Args:
        gm: Functional ATen graph whose nodes carry ``meta["val"]``.
        name: Name of the GE graph.
        registry: Converters to use; the common registry if None.
        specialise: Whether symbolic numbers of a node that is refused otherwise, such as a stride that a GE attribute
            holds, may be fixed to their present values; see ``ge_converters.lowering.specialise``.
        keep_values: Whether ``Lowered.values`` and ``Lowered.bodies`` are wanted.

    Errors: LoweringError GE2001 with every node that cannot be lowered; GE2006 if a converter fails, GE2007 if it
        returns something wrong; GE2008 for unbalanced scopes; GE2009 for a size without a source; GE2012 for a graph
        without metas.
    """
    start = time.perf_counter()
    walk = GraphLowering(gm, name, REGISTRY if registry is None else registry, specialise)
    if keep_values:
        walk.regions = None  # what a region's values become is wanted for each call of it
    with building(walk.graph), no_collection():
        lowered = walk.run()
    if keep_values:
        lowered.values, lowered.bodies = walk.env, walk.bodies
    logger.info(
        "%s: %d FX nodes to %d GE nodes in %.1f ms",
        name,
        len(gm.graph.nodes),
        len(lowered.graph.nodes),
        (time.perf_counter() - start) * 1e3,
    )
    return lowered


class _Missing:
    """What stands for a refused node of which not even the type is known."""


class GraphLowering:
    """One lowering.

    Args:
        gm: The module whose graph is walked.
        name: Name of the GE graph.
        registry: Converters.
        specialise: Whether symbolic numbers may be fixed where a converter refuses them.
    """

    def __init__(self, gm: torch.nn.Module, name: str, registry: Registry, specialise: bool = False) -> None:
        self.gm = gm
        self.registry = registry
        self.specialise = specialise
        self.graph = Graph(name)
        self.context = Context(self.graph)
        self.caller = Caller(self.context, registry)
        self.env = self.context.env
        self.effects = OpenScopes(self.graph)
        self.problems: list[problems.Problem] = []
        self.inputs: list[aliasing.InputBinding] = []
        self.fx_index: dict[FxNode, int] = {}
        self.updates: dict[FxNode, Any] = {}
        self.bodies: list[control_flow.LoweredBody] = []
        self.regions: dict[Any, control_flow.InnerGraph] | None = {}  # what was walked; None: walk each call anew
        self.inner_calls = 0  # call_function nodes in graphs of nodes
        self.items: set[Any] = set()  # symbols that stand for an element of a tensor
        self.texts = Texts()
        self._plain: dict[int, Entry] = {}  # by id, for torch hashes in Python: calls of a converter and nothing else
        self._logs = logger.isEnabledFor(logging.DEBUG)
        self._missing = False  # whether something in ``env`` is a ``_Missing``

    def run(self) -> Lowered:
        """Walk the graph of ``gm``."""
        nodes = list(self.gm.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        self._place_inputs(placeholders)
        returned = self.nodes(nodes)
        if self.problems:
            problems.raise_all(self.problems, sum(n.op == "call_function" for n in nodes) + self.inner_calls)
        return self._finish(returned, placeholders)

    def nodes(self, nodes: Iterable[FxNode]) -> Any:
        """Lower everything but the placeholders; gives what the output node returns. Refusals stand in ``problems``."""
        returned: Any = ()
        for node in nodes:
            if node.op == "call_function":
                self.step(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                returned = node.args[0]
            elif node.op != "placeholder":
                self._refuse(node, f"{node.op} nodes do not occur in ATen graphs; trace with AOTAutograd or make_fx")
        self.graph.provenance = None
        self.effects.finish()
        return returned

    # -- inputs ----------------------------------------------------------------------------------------------

    def _place_inputs(self, placeholders: list[FxNode]) -> None:
        on_device = any(_device(n) not in (None, "cpu", "meta") for n in placeholders)
        later: list[tuple[int, FxNode, Any]] = []
        for index, node in enumerate(placeholders):
            self.fx_index[node] = index
            if "val" not in node.meta and node.users:
                raise LoweringError(
                    "GE2012",
                    f"placeholder {node.name} has no meta['val']",
                    where=user_frame(node)[0],
                    next="trace with AOTAutograd or make_fx(tracing_mode='fake'), which record metas",
                )
            value = node.meta.get("val")
            if higher_order.is_token(node):
                self.env[node] = None
            elif isinstance(value, torch.Tensor):
                if node.users:
                    self._tensor_input(node, index, value, "CPU" if on_device and _device(node) == "cpu" else "NPU")
            elif symbols.is_symbolic(value):
                self.env[node] = Symbolic(value.node.expr)
                later.append((index, node, value))
            else:
                self.env[node] = value
        for index, node, value in later:
            self.context.symbols.define(
                value.node.expr,
                lambda i=index, n=node, v=value: self._scalar_input(n, i, v),  # type: ignore[misc]
            )

    def _tensor_input(self, node: FxNode, index: int, value: torch.Tensor, placement: str) -> None:
        if value.layout is not torch.strided:
            self._refuse(node, f"input of layout {value.layout}; GE knows dense tensors only, call to_dense() first")
            return
        self.graph.provenance = FxProvenance(node, self.texts)
        spec = self.context.full_spec(value)
        tensor = builder.data(
            self.graph, index=len(self.inputs), dtype=spec.dtype, shape=spec.size, placement=placement, name=node.name
        )
        self.inputs.append(aliasing.InputBinding(index, "tensor", spec))
        self.env[node] = tensor
        for i, size in enumerate(value.shape):
            if type(size) is not int:
                self.context.symbols.define(size.node.expr, lambda i=i: self.context.symbols.size_of(tensor, i))  # type: ignore[misc]

    def _scalar_input(self, node: FxNode, index: int, value: Any) -> Tensor:
        spec = TensorSpec(_SCALAR_DTYPES[type(value)], ())
        tensor = builder.data(
            self.graph, index=len(self.inputs), dtype=spec.dtype, shape=(), placement="CPU", name=node.name
        )
        self.inputs.append(aliasing.InputBinding(index, "scalar", spec))
        return tensor

    def held(self, node: FxNode) -> Any:
        """What the module holds under the name that a get_attr node asks for."""
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return value

    def _attribute(self, node: FxNode) -> Any:
        value = self.held(node)
        if not isinstance(value, torch.Tensor):
            return value
        self.graph.provenance = FxProvenance(node, self.texts)
        return constant(self.graph, value)

    # -- nodes -----------------------------------------------------------------------------------------------

    def step(self, node: FxNode) -> None:
        """Lower one call_function node; what it becomes stands in ``env``."""
        self.graph.provenance = FxProvenance(node, self.texts)
        if self._missing and any(type(self.env.get(n)) is _Missing for n in node.all_input_nodes):
            self.env[node] = self.stand_in(node.meta.get("val"))  # its argument's refusal is the reason, said once
            return
        first = len(self.graph.nodes)
        try:
            self.env[node] = self._lower_call(node) if self.specialise else self.lower_call(node)
            if own_calls.is_own(node.target):
                own_calls.note(self.graph, first, node.target, node.args, node.kwargs, self.context.argument)
            if self._logs:
                conversion_log.converted(node, self.env, self.graph, first)
        except Refusal as refusal:
            self._refuse(node, f"refused: {refusal.reason}")
        except NoConverter as missing:
            self._refuse(node, missing.reason, absent=True)

    def _lower_call(self, node: FxNode) -> Any:
        """``lower_call``; what is refused with symbolic numbers once more with their values."""
        try:
            return specialise.all_used_made(node, self.lower_call(node))
        except (Refusal, LoweringError) as refusal:
            specialised = specialise.attempt(self.context, node, self.lower_call)
            if specialised is None:
                raise
            if specialised.fixed:
                logger.info("%s: sizes fixed to %s, because: %s", node.name, specialised.fixed, refusal)
            return specialised.result

    def lower_call(self, node: FxNode) -> Any:
        """What a call_function node becomes.

        Raises:
            Refusal: The converter says no.
            NoConverter: There is none.
        """
        target, value = node.target, node.meta.get("val")
        plain = self._plain.get(id(target))
        if plain is not None and (type(value) not in _SCALAR_DTYPES or plain.layer == "user"):
            return self.caller.convert(node, plain, node.args, node.kwargs, value)
        if target is operator.getitem:
            return self._getitem(node)
        if symbols.is_symbolic(value) and not self._has_own_converter(target, value):
            if _is_users(target):
                self.caller.entry(target, node)  # its number is no expression of known symbols
            return Symbolic(value.node.expr)
        if type(value) in (bool, int, float) and _counts(target) and not self._has_own_converter(target, value):
            return value  # torch 2.8 leaves such nodes of sizes that it has fixed
        if target in _OWN and not self._user_entry(target):
            return _OWN[target](self, node)
        if target in memory_ops.MEMORY_OPS and not self._user_entry(target):
            return memory_ops.MEMORY_OPS[target](self.caller, node)
        effect = effect_of(target)
        if effect is not None:
            self.effects.order()
            return self.effects.apply(effect, node, [self._effect_argument(a) for a in node.args])
        if control_flow.known(target):
            return control_flow.lower(self, node)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return higher_order.lower(self.caller, self.effects, node)
        entry = self._plain[id(target)] = self.caller.entry(target, node)
        return self.caller.convert(node, entry, node.args, node.kwargs, value)

    # -- results ---------------------------------------------------------------------------------------------

    def _refuse(self, node: FxNode, reason: str, *, absent: bool = False) -> None:
        self.problems.append(problems.Problem(node, reason, absent))
        self.env[node] = self.stand_in(node.meta.get("val"))

    def stand_in(self, value: Any) -> Any:
        """Something of the right type for a node that could not be lowered, so that the walk can go on."""
        if isinstance(value, torch.Tensor):
            try:
                spec = self.context.spec(value)
            except LoweringError:
                spec = TensorSpec(DataType.DT_FLOAT, tuple(self.context.symbols.dim(s) for s in value.shape))
            return builder.data(self.graph, index=0, dtype=spec.dtype, shape=spec.size)
        if isinstance(value, (list, tuple)):
            return tuple(self.stand_in(v) for v in value)
        if value is None:
            self._missing = True
            return _Missing()
        if symbols.is_symbolic(value):
            scalar = builder.data(self.graph, index=0, dtype=_SCALAR_DTYPES[type(value)], shape=())
            self.context.symbols.define(value.node.expr, lambda: scalar)
            return scalar
        return value

    # -- ops that are the walk's own -------------------------------------------------------------------------

    def _user_entry(self, target: Any) -> bool:
        entry = self.registry.find(target)
        return entry is not None and entry.layer == "user"

    def _has_own_converter(self, target: Any, value: Any) -> bool:
        """Whether a node with a symbolic number as value is more than an expression of known symbols."""
        return target in _OWN or target in memory_ops.MEMORY_OPS or self._user_entry(target)

    def _getitem(self, node: FxNode) -> Any:
        source, index = node.args
        value = self.env[source]
        if isinstance(value, (tuple, list)):
            return value[index]
        if value is None:
            return None
        raise Refusal(f"getitem on {source}, which has one output")

    def _effect_argument(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._effect_argument(v) for v in value]
        return self.env[value] if isinstance(value, torch.fx.Node) else value

    def _item(self, node: FxNode) -> Any:
        """aten._local_scalar_dense: the one element as a 0-d tensor, which is where its symbol comes from."""
        tensor = self.context.argument(node.args[0])
        value = node.meta.get("val")
        scalar = tensor
        if tensor.rank:
            scalar = ge.Reshape(tensor, builder.constant(self.graph, [], dtype=DataType.DT_INT64))
            scalar.record_shape(())
        if symbols.is_symbolic(value):
            scalar = cast(scalar, _SCALAR_DTYPES[type(value)])
            self.context.symbols.define(value.node.expr, lambda: scalar)
            self.items.add(value.node.expr)
        return scalar

    def _copy(self, node: FxNode) -> Any:
        """aten.copy_ on an input: remembered, to be written back after the run; later reads see the new value."""
        target, source = node.args[0], node.args[1]
        holder = self._holder(target)
        if holder is None:
            raise Refusal(
                "argument 'self' is an intermediate result; only graph inputs can be written in place, "
                "functionalize the graph first (AOTAutograd does)"
            )
        meta = target.meta["val"]
        entry = self.registry.find(torch.ops.aten.copy.default)
        source_meta = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        same = isinstance(source_meta, torch.Tensor) and (source_meta.dtype, source_meta.shape) == (
            meta.dtype,
            meta.shape,
        )
        if same:
            value = self.context.argument(source)
        elif entry is None:
            raise Refusal("copy_ with another dtype or shape needs a converter for aten.copy.default")
        else:
            value = self.caller.convert(node, entry, (target, source), {}, meta)
        self.updates[holder] = value
        self.env[holder] = value
        return value

    def _holder(self, node: Any) -> FxNode | None:
        """The placeholder that a node is, through copy_ chains."""
        while isinstance(node, torch.fx.Node):
            if node.op == "placeholder":
                return node
            if node.target is not torch.ops.aten.copy_.default:
                return None
            node = node.args[0]
        return None

    # -- outputs ---------------------------------------------------------------------------------------------

    def _finish(self, returned: Any, placeholders: list[FxNode]) -> Lowered:
        nested = type(returned) if isinstance(returned, (list, tuple)) else None
        flat = list(returned) if nested else [returned]
        table = aliasing.OutputTable(self.graph)
        refused: list[problems.Problem] = []
        bindings: list[aliasing.OutputBinding] = []
        for value in flat:
            try:
                bindings.append(self._output(value, table))
            except Refusal as refusal:
                refused.append(problems.Problem(value, f"refused: {refusal.reason}"))
        problems.raise_all(refused, len(flat))
        mutations = tuple(
            aliasing.Mutation(self.fx_index[holder], table.index(tensor)) for holder, tensor in self.updates.items()
        )
        self._inputs_first()
        nested_type = None if nested is None else (tuple if issubclass(nested, tuple) else list)
        return Lowered(self.graph, tuple(self.inputs), tuple(bindings), mutations, len(placeholders), nested_type)

    def _output(self, value: Any, table: aliasing.OutputTable) -> aliasing.OutputBinding:
        if value is None:
            return aliasing.Nothing()
        if not isinstance(value, torch.fx.Node):
            return aliasing.Constant(value)
        holder = self._holder(value)
        if holder is not None:
            return aliasing.InputAlias(self.fx_index[holder])
        lowered = self.env[value]
        meta = value.meta.get("val")
        if isinstance(lowered, Symbolic) or symbols.is_symbolic(meta):
            number = self.context.symbols.value(lowered.expr) if isinstance(lowered, Symbolic) else lowered
            if not isinstance(number, Tensor):
                return aliasing.Constant(number)
            return aliasing.ScalarResult(table.index(number), _PYTYPES[type(meta)])
        if isinstance(lowered, Tensor):
            spec = self.context.full_spec(meta)
            return aliasing.Result(table.index(lowered), spec, aliasing.memory_order(meta))
        if isinstance(lowered, Unproduced):
            raise Refusal(lowered.reason)
        if lowered is None:
            return aliasing.Nothing()
        if isinstance(lowered, (Mark, tuple)):
            raise Refusal(f"{fx_target(value)} is not a tensor and cannot be returned")
        return aliasing.Constant(lowered)

    def _inputs_first(self) -> None:
        """Scalar inputs are made when first needed; in the finished graph all inputs stand at the front."""
        nodes = self.graph.nodes
        late = [n for n in nodes[len(self.inputs) :] if n.op == "Data"]
        if late:
            inputs = [n for n in nodes if n.op == "Data"]
            self.graph.nodes = inputs + [n for n in nodes if n.op != "Data"]


def _device(node: FxNode) -> str | None:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else None


def _drop(walk: GraphLowering, node: FxNode) -> None:
    """Checks that bind the caller, not the graph: of sizes, which torch has checked when it traced, and of LAPACK's
    info, in whose place GE's operators stop with an error.
    """


_OWN: Final[dict[Any, Callable[[GraphLowering, FxNode], Any]]] = {
    torch.ops.aten._local_scalar_dense.default: GraphLowering._item,
    torch.ops.aten.copy_.default: GraphLowering._copy,
    torch.ops.aten.sym_constrain_range.default: _drop,
    torch.ops.aten.sym_constrain_range_for_size.default: _drop,
    torch.ops.aten._assert_scalar.default: asserts.of_number,
    torch.ops.aten._functional_assert_scalar.default: asserts.of_number,
    torch.ops.aten._functional_sym_constrain_range.default: _drop,
    torch.ops.aten._functional_sym_constrain_range_for_size.default: _drop,
    torch.ops.aten._make_dep_token.default: _drop,
    torch.ops.aten._assert_async.default: asserts.of_tensor,
    torch.ops.aten._assert_async.msg: asserts.of_tensor,
    torch.ops.aten._functional_assert_async.msg: asserts.of_tensor,
    torch.ops.aten._assert_tensor_metadata.default: _drop,
    torch.ops.aten._linalg_check_errors.default: _drop,
}


_SIZES: Final = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous")
    if hasattr(torch.ops.aten, name)
)


def _counts(target: Any) -> bool:
    """Whether a target computes with Python numbers only, if its result is one."""
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else None
    return packet in _SIZES or getattr(target, "__module__", "") in ("_operator", "math")


def _is_users(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims")


def handled_by_walk(target: Any) -> bool:
    """Whether an op needs no converter because the walk itself takes it: sizes, item, copy_, size guards."""
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else None
    own = target in _OWN or target in memory_ops.MEMORY_OPS
    return own or packet in _SIZES or effect_of(target) is not None
