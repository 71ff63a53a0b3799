"""The walk over an FX graph: every node becomes GE nodes through its converter, all refusals are raised together.

The graph must be functional (as AOTAutograd leaves it) and carry ``meta["val"]``; nothing is traced again, nothing is
copied.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import torch

from ge_converters import aliasing, hops, refusals, specialise, storage_reads, symbols
from ge_converters.binding import plan_for
from ge_converters.context import Context, Symbolic, Unproduced, constant
from ge_converters.effects import Effects, Mark, effect_of
from ge_converters.errors import LoweringError, Refusal
from ge_converters.provenance import FxProvenance, fx_target, user_frame
from ge_converters.registry import REGISTRY, Absent, Answer, Entry, Found, Refused, Registry, raised_at
from ge_graph import DataType, Graph, GraphError, Tensor, TensorSpec, builder, building

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
    """

    graph: Graph
    inputs: tuple[aliasing.InputBinding, ...]
    outputs: tuple[aliasing.OutputBinding, ...]
    mutations: tuple[aliasing.Mutation, ...]
    placeholders: int = 0
    nested: type | None = field(default=tuple)


def lower(
    gm: torch.fx.GraphModule, *, name: str = "graph_1", registry: Registry | None = None, specialise: bool = False
) -> Lowered:
    """Convert an FX graph to a GE graph.

    Args:
        gm: Functional ATen graph whose nodes carry ``meta["val"]``.
        name: Name of the GE graph.
        registry: Converters to use; the common registry if None.
        specialise: Whether symbolic numbers of a node that is refused otherwise, such as a stride that a GE attribute
            holds, may be fixed to their present values; see ``ge_converters.specialise``.

    Errors: LoweringError GE2001 with every node that cannot be lowered; GE2006 if a converter fails, GE2007 if it
        returns something wrong; GE2008 for unbalanced scopes; GE2009 for a size without a source; GE2012 for a graph
        without metas.
    """
    start = time.perf_counter()
    walk = Walk(gm, name, REGISTRY if registry is None else registry, specialise)
    with building(walk.graph), no_collection():
        lowered = walk.run()
    logger.info(
        "%s: %d FX nodes to %d GE nodes in %.1f ms",
        name, len(gm.graph.nodes), len(lowered.graph.nodes), (time.perf_counter() - start) * 1e3,
    )  # fmt: skip
    return lowered


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Everything that is made here stays; letting the cycle collector look at it again and again costs a quarter."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Walk:
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
        self.env = self.context.env
        self.effects = Effects(self.graph)
        self.problems: list[refusals.Problem] = []
        self.inputs: list[aliasing.InputBinding] = []
        self.fx_index: dict[FxNode, int] = {}
        self.updates: dict[FxNode, Any] = {}
        self._entries: dict[Any, Entry | None] = {}

    def run(self) -> Lowered:
        """Walk the graph of ``gm``."""
        nodes = list(self.gm.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        self._place_inputs(placeholders)
        output = None
        for node in nodes:
            if node.op == "call_function":
                self.step(node)
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                output = node
            elif node.op != "placeholder":
                self._refuse(node, f"{node.op} nodes do not occur in ATen graphs; trace with AOTAutograd or make_fx")
        refusals.raise_all(self.problems, sum(n.op == "call_function" for n in nodes))
        self.graph.provenance = None
        self.effects.finish()
        return self._finish(output, placeholders)

    # -- inputs ----------------------------------------------------------------------------------------------

    def _place_inputs(self, placeholders: list[FxNode]) -> None:
        on_device = any(_device(n) not in (None, "cpu", "meta") for n in placeholders)
        later: list[tuple[int, FxNode, Any]] = []
        for index, node in enumerate(placeholders):
            self.fx_index[node] = index
            if "val" not in node.meta and node.users:
                raise LoweringError(
                    "GE2012", f"placeholder {node.name} has no meta['val']", where=user_frame(node)[0],
                    next="trace with AOTAutograd or make_fx(tracing_mode='fake'), which record metas",
                )  # fmt: skip
            value = node.meta.get("val")
            if hops.is_token(node):
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
            if value.node.expr.is_Symbol:
                self.context.symbols.define(
                    value.node.expr, lambda i=index, n=node, v=value: self._scalar_input(n, i, v)  # type: ignore[misc]
                )  # fmt: skip

    def _tensor_input(self, node: FxNode, index: int, value: torch.Tensor, placement: str) -> None:
        if value.layout is not torch.strided:
            self._refuse(node, f"input of layout {value.layout}; GE knows dense tensors only, call to_dense() first")
            return
        self.graph.provenance = FxProvenance(node)
        spec = self.context.full_spec(value)
        tensor = builder.data(
            self.graph, index=len(self.inputs), dtype=spec.dtype, shape=spec.size, placement=placement, name=node.name
        )
        self.inputs.append(aliasing.InputBinding(index, "tensor", spec))
        self.env[node] = tensor
        for i, size in enumerate(value.shape):
            if type(size) is not int and size.node.expr.is_Symbol:
                self.context.symbols.define(size.node.expr, lambda i=i: self.context.symbols.size_of(tensor, i))  # type: ignore[misc]

    def _scalar_input(self, node: FxNode, index: int, value: Any) -> Tensor:
        spec = TensorSpec(_SCALAR_DTYPES[type(value)], ())
        tensor = builder.data(
            self.graph, index=len(self.inputs), dtype=spec.dtype, shape=(), placement="CPU", name=node.name
        )
        self.inputs.append(aliasing.InputBinding(index, "scalar", spec))
        return tensor

    def _attribute(self, node: FxNode) -> Any:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        self.graph.provenance = FxProvenance(node)
        return constant(self.graph, value)

    # -- nodes -----------------------------------------------------------------------------------------------

    def step(self, node: FxNode) -> None:
        """Lower one call_function node; what it becomes stands in ``env``."""
        self.graph.provenance = FxProvenance(node)
        try:
            self.env[node] = self._lower_call(node)
        except Refusal as refusal:
            self._refuse(node, f"refused: {refusal.reason}")
        except _NoConverter as missing:
            self._refuse(node, missing.reason, absent=True)

    def _lower_call(self, node: FxNode) -> Any:
        """``lower_call``; what is refused with symbolic numbers once more with their values, if that is allowed."""
        if not self.specialise:
            return self.lower_call(node)
        try:
            return specialise.all_used_made(node, self.lower_call(node))
        except (Refusal, LoweringError) as refusal:
            found = specialise.attempt(self.context, node, self.lower_call)
            if found is None:
                raise
            logger.info("%s: sizes fixed to %s, because: %s", node.name, found.fixed, refusal)
            return found.result

    def lower_call(self, node: FxNode) -> Any:
        """What a call_function node becomes.

        Raises:
            Refusal: The converter says no.
            _NoConverter: There is none.
        """
        target = node.target
        if target is operator.getitem:
            return self._getitem(node)
        value = node.meta.get("val")
        if symbols.is_symbolic(value) and not self._has_own_converter(target, value):
            return Symbolic(value.node.expr)
        special = _SPECIAL.get(target)
        if special is not None and not self._user_entry(target):
            return special(self, node)
        effect = effect_of(target)
        if effect is not None:
            self.effects.order()
            return self.effects.apply(effect, node, [self._effect_argument(a) for a in node.args])
        if isinstance(target, torch._ops.HigherOrderOperator):
            return hops.lower(self, node)
        return self.convert(node, self.entry(target, node), node.args, node.kwargs, value)

    def entry(self, target: Any, node: FxNode) -> Entry:
        """The converter of a target.

        Raises:
            _NoConverter: There is none, with the reason and the nearest names.
        """
        try:
            found = self._entries[target]
        except KeyError:
            found = self._entries[target] = self.registry.find(target)
        if found is None:
            near = self.registry.near(target)
            text = "no converter, no decomposition"
            derived = self.registry.why_not_derived(target)
            text += f"; {derived}" if derived else ""
            text += f"; near: {', '.join(near)}" if near else ""
            raise _NoConverter(text, near)
        return found

    def convert(self, node: FxNode, entry: Entry, args: Any, kwargs: Any, value: Any) -> Any:
        """Call a converter and check what it returns.

        Args:
            node: The FX node, for messages.
            entry: Its converter.
            args: FX arguments.
            kwargs: FX keyword arguments.
            value: ``meta["val"]`` of the results.

        Raises:
            Refusal: The converter says no.
        """
        plan = plan_for(entry)
        argument = self.context.argument
        if plan is not None:
            positional, keywords = plan.bind(args, kwargs, argument)
        else:
            positional, keywords = [argument(a) for a in args], {k: argument(v) for k, v in kwargs.items()}
        meta = self.context.meta_outputs(value)
        if entry.wants_meta:
            keywords["meta_outputs"] = meta
        result = self._call(node, entry, positional, keywords)
        if type(result) is Tensor and type(meta) is TensorSpec:
            return self._checked(node, entry, result, meta)
        return self._checked_many(node, entry, result, meta)

    def _call(self, node: FxNode, entry: Entry, positional: list[Any], keywords: dict[str, Any]) -> Any:
        try:
            return entry.fn(*positional, **keywords)
        except Refusal:
            raise
        except NotImplementedError as e:
            raise Refusal(str(e) or f"converter at {entry.where} does not implement this form") from e
        except GraphError as e:
            advice = f"; {e.next}" if e.next else ""
            place = raised_at(entry.fn, entry.where, e)
            raise Refusal(f"{e.what} [{e.code}, converter at {place}]{advice}") from e
        except LoweringError:
            raise
        except Exception as e:
            raise LoweringError(
                "GE2006",
                f"the converter of {entry.name} failed on %{node.name}: {type(e).__name__}: {e}\n"
                f"  converter: {raised_at(entry.fn, entry.where, e)}\n  node: {node.format_node()}",
                where=user_frame(node)[0],
                next="repair the converter; for a form it cannot serve let it raise ge_converters.Refusal(reason)",
            ) from e

    # -- results ---------------------------------------------------------------------------------------------

    def _checked(self, node: FxNode, entry: Entry, result: Tensor, spec: TensorSpec) -> Tensor:
        if result.node.graph is not self.graph:
            raise self._wrong(node, entry, f"returned {result}, a tensor of another graph")
        if result.dtype is not spec.dtype:
            raise self._wrong(node, entry, f"returned {result.dtype.name}, meta_outputs says {spec.dtype.name}")
        if result.known_shape is None:
            result.record_shape(spec.size)
        return result

    def _checked_many(self, node: FxNode, entry: Entry, result: Any, meta: Any) -> Any:
        if meta is None:
            return None
        if type(meta) is TensorSpec:
            if isinstance(result, (list, tuple)) and len(result) == 1 and isinstance(result[0], Tensor):
                return self._checked(node, entry, result[0], meta)
            got = f"{len(result)} values" if isinstance(result, (list, tuple)) else type(result).__name__
            raise self._wrong(node, entry, f"returned {got}, expected one tensor")
        results = [result] if isinstance(result, Tensor) else result
        if not isinstance(results, (list, tuple)):
            raise self._wrong(node, entry, f"returned {type(result).__name__}, expected {len(meta)} tensors")
        if len(results) != len(meta):
            raise self._wrong(node, entry, f"returned {len(results)} outputs, the node has {len(meta)}")
        return tuple(self._checked_part(node, entry, i, r, m) for i, (r, m) in enumerate(zip(results, meta)))

    def _checked_part(self, node: FxNode, entry: Entry, i: int, result: Any, meta: Any) -> Any:
        if meta is None:
            return None  # torch has nothing there either
        if result is None:
            return Unproduced(f"output {i} of {entry.name} (%{node.name}) is used, but GE cannot produce it")
        if isinstance(meta, list):
            return self._checked_many(node, entry, result, meta)
        if not isinstance(result, Tensor):
            raise self._wrong(node, entry, f"returned {type(result).__name__} as output {i}, expected a tensor")
        return self._checked(node, entry, result, meta)

    def _wrong(self, node: FxNode, entry: Entry, what: str) -> LoweringError:
        return LoweringError(
            "GE2007",
            f"the converter of {entry.name} {what} (node %{node.name})\n  converter: {entry.where}",
            where=user_frame(node)[0],
            next="return one GE tensor per output of the op, with the dtype of meta_outputs",
        )

    def _refuse(self, node: FxNode, reason: str, *, absent: bool = False) -> None:
        self.problems.append(refusals.Problem(node, reason, absent))
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
        if symbols.is_symbolic(value):
            scalar = builder.data(self.graph, index=0, dtype=_SCALAR_DTYPES[type(value)], shape=())
            self.context.symbols.define(value.node.expr, lambda: scalar)
            return scalar
        return value

    # -- ops that are the walk's own -------------------------------------------------------------------------

    def _user_entry(self, target: Any) -> bool:
        found = self.registry.find(target)
        return found is not None and found.layer == "user"

    def _has_own_converter(self, target: Any, value: Any) -> bool:
        """Whether a node with a symbolic number as value is more than an expression of known symbols."""
        return target in _SPECIAL or self._user_entry(target)

    def _getitem(self, node: FxNode) -> Any:
        source, index = node.args
        found = self.env[source]
        if isinstance(found, (tuple, list)):
            return found[index]
        if found is None:
            return None
        raise Refusal(f"getitem on {source}, which has one output")

    def _effect_argument(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._effect_argument(v) for v in value]
        return self.env[value] if isinstance(value, torch.fx.Node) else value

    def _item(self, node: FxNode) -> Any:
        """aten._local_scalar_dense: the one element as a 0-d tensor, which is where its symbol comes from."""
        from ge_converters.dtypes import cast
        from ge_graph import ops as ge

        tensor = self.context.argument(node.args[0])
        value = node.meta.get("val")
        scalar = tensor
        if tensor.rank:
            scalar = ge.Reshape(tensor, builder.constant(self.graph, [], dtype=DataType.DT_INT64))
            scalar.record_shape(())
        if symbols.is_symbolic(value):
            scalar = cast(scalar, _SCALAR_DTYPES[type(value)])
            self.context.symbols.define(value.node.expr, lambda: scalar)
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
            value = self.convert(node, entry, (target, source), {}, meta)
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

    def _finish(self, output: FxNode | None, placeholders: list[FxNode]) -> Lowered:
        returned: Any = output.args[0] if output is not None else ()
        nested = type(returned) if isinstance(returned, (list, tuple)) else None
        flat = list(returned) if nested else [returned]
        table = aliasing.OutputTable(self.graph)
        problems: list[refusals.Problem] = []
        bindings: list[aliasing.OutputBinding] = []
        for value in flat:
            try:
                bindings.append(self._output(value, table))
            except Refusal as refusal:
                problems.append(refusals.Problem(value, f"refused: {refusal.reason}"))
        refusals.raise_all(problems, len(flat))
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
        found = self.env[value]
        meta = value.meta.get("val")
        if isinstance(found, Symbolic) or symbols.is_symbolic(meta):
            number = self.context.symbols.value(found.expr) if isinstance(found, Symbolic) else found
            if not isinstance(number, Tensor):
                return aliasing.Constant(number)
            return aliasing.ScalarResult(table.index(number), _PYTYPES[type(meta)])
        if isinstance(found, Tensor):
            spec = self.context.full_spec(meta)
            return aliasing.Result(table.index(found), spec, aliasing.memory_order(meta))
        if isinstance(found, Unproduced):
            raise Refusal(found.reason)
        if found is None:
            return aliasing.Nothing()
        if isinstance(found, (Mark, tuple)):
            raise Refusal(f"{fx_target(value)} is no tensor and cannot be returned")
        return aliasing.Constant(found)

    def _inputs_first(self) -> None:
        """Scalar inputs are made when first needed; in the finished graph all inputs stand at the front."""
        nodes = self.graph.nodes
        late = [n for n in nodes[len(self.inputs) :] if n.op == "Data"]
        if late:
            inputs = [n for n in nodes if n.op == "Data"]
            self.graph.nodes = inputs + [n for n in nodes if n.op != "Data"]


class _NoConverter(Exception):
    """Nobody converts this op."""

    def __init__(self, reason: str, near: tuple[str, ...]) -> None:
        self.reason = reason
        self.near = near
        super().__init__(reason)


def _device(node: FxNode) -> str | None:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else None


def _drop(walk: Walk, node: FxNode) -> None:
    """Checks that bind the caller, not the graph: of sizes, which torch has checked when it traced, and of LAPACK's
    info, in whose place GE's operators stop with an error.
    """


_SPECIAL: Final[dict[Any, Callable[[Walk, FxNode], Any]]] = {
    torch.ops.aten._local_scalar_dense.default: Walk._item,
    torch.ops.aten.copy_.default: Walk._copy,
    torch.ops.aten.as_strided.default: storage_reads.lower_read,
    torch.ops.aten.as_strided_copy.default: storage_reads.lower_read,
    torch.ops.aten.as_strided_scatter.default: storage_reads.lower_write,
    torch.ops.aten.resize.default: storage_reads.lower_resize,
    torch.ops.aten._linalg_det.default: storage_reads.lower_determinant,
    torch.ops.aten._linalg_slogdet.default: storage_reads.lower_determinant,
    torch.ops.aten.sym_constrain_range.default: _drop,
    torch.ops.aten.sym_constrain_range_for_size.default: _drop,
    torch.ops.aten._assert_scalar.default: _drop,
    torch.ops.aten._assert_tensor_metadata.default: _drop,
    torch.ops.aten._linalg_check_errors.default: _drop,
}


_SIZES: Final = frozenset(
    getattr(torch.ops.aten, name)
    for name in ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous")
    if hasattr(torch.ops.aten, name)
)


def handled_by_walk(target: Any) -> bool:
    """Whether an op needs no converter because the walk itself takes it: sizes, item, copy_, size guards."""
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else None
    return target in _SPECIAL or packet in _SIZES or effect_of(target) is not None


def explain(node: FxNode, registry: Registry) -> Answer:
    """Found, Refused or Absent for one node, found by lowering it on a scratch graph."""
    walk = Walk(torch.nn.Module(), "scratch", registry)
    with building(walk.graph):
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                walk.env[argument] = argument.meta.get("val")
            walk.env[argument] = walk.stand_in(argument.meta.get("val"))
        try:
            walk.lower_call(node)
            entry = registry.find(node.target)
            return Found(entry) if entry is not None else Found(_own(node.target))
        except Refusal as refusal:
            return Refused(refusal.reason)
        except _NoConverter as missing:
            return Absent(missing.near)
        except LoweringError as e:
            return Refused(str(e))


def _own(target: Any) -> Entry:
    return Entry(target, Walk.lower_call, "the walk itself", f"{__file__}", "built-in", False)
