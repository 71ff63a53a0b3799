"""Control flow: branches, loops and nested regions become GE operators with graphs in them.

    cond            -> If                        while_loop             -> While
    invoke_subgraph -> PartitionedCall           scan, map, associative_scan -> While

A region that is called several times is walked once: all its calls hold one GE graph.

A traced function gets every value that it closes over as an operand, sizes included, so an inner graph is walked like
an outer one; a symbol that it needs all the same is handed in after the operands. An operand that no graph reads is
left out, and a result that is an operand in every branch (or in every round) is that operand.

The loops over a leading axis become one While and not n copies of their body: the length may be dynamic, the program's
size stays that of the body, and each round overwrites one row of its results in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.dtypes import cast, to_ge
from ge_converters.base.errors import Refusal
from ge_converters.base.torch_compat import makes_quant_options
from ge_converters.emit.compute_types import carried, carrier, carry
from ge_converters.lowering.context import Context, Symbolic
from ge_converters.lowering.symbols import is_symbolic
from ge_graph import DataType, Graph, Tensor, TensorSpec, attrs, builder, building
from ge_graph import ops as ge

Key: TypeAlias = Any  # position of an operand, or the symbol that is handed in
_SCALARS: Final = (
    ((bool, torch.SymBool), DataType.DT_BOOL),
    ((int, torch.SymInt), DataType.DT_INT64),
    ((float, torch.SymFloat), DataType.DT_DOUBLE),
)
_I64: Final = DataType.DT_INT64


@dataclass(slots=True)
class InnerGraph:
    """A graph under construction inside a node.

    Attributes:
        graph: The graph.
        data: What it reads: position of the operand or symbol to Data.
        results: FX results of the traced function as they became: tensors, numbers or None.
        returned: The FX values after them.
        position: FX placeholder to position of the operand.
        finished: Whether its Data nodes and outputs are in their places; later calls take it as it is.
    """

    graph: Graph
    data: dict[Key, Tensor] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    position: dict[torch.fx.Node, int] = field(default_factory=dict)

    finished: bool = False

    def forwarded(self, k: int) -> int | None:
        """The operand that result ``k`` is, None if it is computed."""
        return self.position.get(self.returned[k])


@dataclass(frozen=True, slots=True)
class LoweredBody:
    """What a function of a control-flow node became.

    Attributes:
        node: The node, of the FX graph around.
        slot: Which of its functions.
        gm: The function as it was traced.
        graph: The GE graph in the GE node.
        values: What each FX node of ``gm`` became.
        bodies: What the functions of control-flow nodes in it became.
    """

    node: torch.fx.Node
    slot: str
    gm: torch.fx.GraphModule
    graph: Graph
    values: Mapping[torch.fx.Node, Any]
    bodies: Sequence[LoweredBody]


class Lowering:
    """Lowers one control-flow node.

    Args:
        walk: The walk that meets the node.
        node: The node.
    """

    def __init__(self, walk: Any, node: torch.fx.Node) -> None:
        self.walk = walk
        self.node = node
        self.context: Context = walk.context
        self.symbols: dict[Any, Tensor] = {}

    # -- inner graphs -------------------------------------------------------------------------------------------------

    def region(self, function: Any, name: str) -> InnerGraph:
        """As ``trace``; a function that another call has walked in the same scopes is not walked again."""
        known = self.walk.regions
        gm = self.walk.env[function] if isinstance(function, torch.fx.Node) else function
        key = (gm, tuple(self.walk.graph.scope_attrs.items()))
        inner = None if known is None else known.get(key)
        if inner is None:
            inner = self.trace(gm, name)
            if known is not None and not self.walk.problems:
                known[key] = inner
        for symbol in inner.data:
            if not isinstance(symbol, int):
                self._symbol(inner, symbol)
        return inner

    def trace(
        self,
        function: Any,
        name: str,
        keep: Callable[[int], bool] = lambda k: False,
        row: Callable[[InnerGraph, int], Tensor | None] = lambda inner, k: None,
    ) -> InnerGraph:
        """Walk a traced function.

        Args:
            function: FX node or graph module.
            name: What the graph is called.
            keep: Positions of operands that get a Data even if nobody reads them.
            row: Gives the operand of a position that is not simply handed in.

        Raises:
            Refusal: If it writes its operands.
        """
        gm = self.walk.env[function] if isinstance(function, torch.fx.Node) else function
        walk = type(self.walk)(
            gm, f"{self.walk.graph.name}_{self.node.name}_{name}", self.walk.registry, self.walk.specialise
        )
        inner = InnerGraph(walk.graph)
        walk.graph.scope_attrs, walk.regions = dict(self.walk.graph.scope_attrs), self.walk.regions
        walk.context.outer = lambda symbol: self._symbol(inner, symbol)
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        with building(walk.graph):
            for k, placeholder in enumerate(placeholders):
                inner.position[placeholder] = k
                used = bool(placeholder.users) or keep(k)
                operand = row(inner, k) if used else None
                if used and operand is None:
                    walk.env[placeholder] = self._operand(walk, inner, k, placeholder)
                else:
                    walk.env[placeholder] = operand
                    _sizes_of(walk.context, operand, placeholder.meta.get("val"))
            returned = walk.nodes(gm.graph.nodes)
            self.walk.bodies.append(LoweredBody(self.node, name, gm, walk.graph, walk.env, walk.bodies))
            self.walk.inner_calls += walk.inner_calls + sum(n.op == "call_function" for n in gm.graph.nodes)
            self.walk.problems += [replace(p, holder=self.node) for p in walk.problems]
            if walk.updates:
                written = ", ".join(str(n.name) for n in walk.updates)
                raise Refusal(
                    f"the function '{name}' writes its operands ({written}); GE's graphs in nodes hand on values only, "
                    "return the new value instead"
                )
            inner.returned = list(returned) if isinstance(returned, (list, tuple)) else [returned]
            if not walk.problems:
                inner.results = [walk.context.argument(v) for v in inner.returned]
        return inner

    def _operand(self, walk: Any, inner: InnerGraph, k: int, placeholder: torch.fx.Node) -> Any:
        value = placeholder.meta.get("val")
        spec = _spec(self.context, value)
        if spec is None:
            return value
        if not isinstance(value, torch.Tensor) and not is_symbolic(value):
            return value  # a number that is the same in every run
        walk.graph.provenance = self.walk.graph.provenance
        tensor = builder.data(walk.graph, index=0, dtype=spec.dtype, shape=spec.size, name=placeholder.name)
        inner.data[k] = tensor
        if isinstance(value, torch.Tensor):
            _sizes_of(walk.context, tensor, value)
            return tensor
        walk.context.symbols.know(value.node.expr, tensor)
        return Symbolic(value.node.expr)

    def _symbol(self, inner: InnerGraph, symbol: Any) -> Callable[[], Tensor] | None:
        """A symbol that the function uses though it is not an operand."""
        with building(self.walk.graph):
            scalar = self.context.symbols.value(symbol)
        if not isinstance(scalar, Tensor):
            return None
        self.symbols[symbol] = scalar

        def make() -> Tensor:
            if symbol not in inner.data:
                inner.data[symbol] = builder.data(inner.graph, index=0, dtype=scalar.dtype, shape=())
            return inner.data[symbol]

        return make

    # -- operands -----------------------------------------------------------------------------------------------------

    def value(self, argument: Any, dtype: DataType | None = None) -> Tensor:
        """An FX argument as an operand: a tensor; numbers become constants."""
        operand = self.context.argument(argument)
        if isinstance(operand, Tensor):
            return operand if dtype is None or operand.dtype is dtype else cast(operand, dtype)
        if not isinstance(operand, (bool, int, float)):
            raise Refusal(
                f"{self.node.target} has an operand of type {type(operand).__name__}; GE's operands are tensors"
            )
        made: Tensor = ge.Const(operand, dtype=_number_type(operand) if dtype is None else dtype)
        return made

    def align(self, inner: Sequence[InnerGraph], keys: Sequence[Key], given: dict[Key, Tensor]) -> None:
        """Give all graphs the same Data nodes, in the order of ``keys``."""
        for each in inner:
            for index, key in enumerate(keys):
                tensor = each.data.get(key)
                if tensor is None:
                    like = next((o.data[key] for o in inner if key in o.data), given[key])
                    sizes = like.known_shape
                    assert sizes is not None  # a Data node has them
                    tensor = each.data[key] = builder.data(each.graph, index=index, dtype=like.dtype, shape=sizes)
                tensor.node.attrs["index"] = attrs.Int(index)
            datas = [each.data[k].node for k in keys]
            chosen = set(map(id, datas))
            each.graph.nodes[:] = datas + [n for n in each.graph.nodes if id(n) not in chosen]

    def results(self, inner: InnerGraph, wanted: Sequence[tuple[int, TensorSpec]]) -> None:
        """Let a graph return these of its results."""
        with building(inner.graph):
            for k, spec in wanted:
                inner.graph.outputs.append(self.one(inner.results[k], spec))

    def one(self, value: Any, spec: TensorSpec) -> Tensor:
        """A result of an inner graph as a tensor of the type that the node declares."""
        if isinstance(value, Tensor):
            return value if value.dtype is spec.dtype else cast(value, spec.dtype)
        if isinstance(value, (bool, int, float)):
            made: Tensor = ge.Const(value, dtype=spec.dtype)
            return made
        raise Refusal(f"{self.node.target} gives {type(value).__name__} where another branch gives a tensor")

    def named(self, tensors: Any, metas: Sequence[Any]) -> list[Any]:
        """Record what the node declares of its results; numbers among them are where their symbols come from."""
        symbols = self.context.symbols
        for tensor, meta in zip(tensors, metas, strict=True):
            if isinstance(meta, torch.Tensor):
                tensor.record_shape(self.context.spec(meta).size)
            else:
                tensor.record_shape(())
                if is_symbolic(meta) and meta.node.expr.is_Symbol:
                    symbols.define(meta.node.expr, lambda t=tensor: t)  # type: ignore[misc]
        return list(tensors)

    # -- branches and calls -------------------------------------------------------------------------------------------

    def branches(self, functions: Sequence[tuple[str, Any]], operands: Sequence[Any], make: Any) -> tuple[Any, ...]:
        """A node that runs one of several functions of the same operands.

        Args:
            functions: Slot and function.
            operands: FX arguments.
            make: Called with operands, graphs by slot and number of results; gives the node's results.
        """
        metas = list(self.node.meta["val"])
        walk = self.trace if len(functions) > 1 else self.region
        inner = [walk(function, slot) for slot, function in functions]
        if self.walk.problems:
            return tuple(map(self.walk.stand_in, metas))
        if any(len(i.results) != len(metas) for i in inner):
            raise Refusal(f"its functions give {[len(i.results) for i in inner]} results, {len(metas)} are expected")
        final: list[Any] = [None] * len(metas)
        wanted: list[tuple[int, TensorSpec]] = []
        for k, meta in enumerate(metas):
            same = {i.forwarded(k) for i in inner}
            (operand,) = same if len(same) == 1 else (None,)
            spec = _spec(self.context, meta)
            if operand is not None:
                final[k] = self.context.argument(operands[operand])
            elif spec is not None and any(i.results[k] is not None for i in inner):
                wanted.append((k, spec))
        if not wanted:
            return tuple(final)
        new = [each for each in inner if not each.finished]
        for each in new:
            self.results(each, wanted)
        keys = list(dict.fromkeys(key for each in inner for key in each.data))
        given = {k: self.symbols[k] if k in self.symbols else self.value(operands[k]) for k in keys}
        self.align(new, keys, given)
        for each in new:
            each.finished = True
        graphs = {slot: i.graph for (slot, _), i in zip(functions, inner)}
        made = make([given[k] for k in keys], graphs, len(wanted))
        for (k, _), tensor in zip(wanted, self.named(made, [metas[k] for k, _ in wanted])):
            final[k] = tensor
        return tuple(final)


def _sizes_of(context: Context, tensor: Tensor | None, value: Any) -> None:
    """The sizes of an operand are where symbols come from."""
    if tensor is None or not isinstance(value, torch.Tensor):
        return
    for i, size in enumerate(value.shape):
        if is_symbolic(size) and size.node.expr.is_Symbol:
            context.symbols.define(size.node.expr, lambda i=i: context.symbols.size_of(tensor, i))  # type: ignore[misc]


def _number_type(value: Any) -> DataType:
    return next(dtype for kinds, dtype in _SCALARS if isinstance(value, kinds))


def _spec(context: Context, value: Any) -> TensorSpec | None:
    if isinstance(value, torch.Tensor):
        return context.spec(value)
    return next((TensorSpec(dtype, ()) for kinds, dtype in _SCALARS if isinstance(value, kinds)), None)


def _cond(low: Lowering) -> Any:
    chosen, then, otherwise, *more = low.node.args
    (operands,) = more or ((),)
    predicate = low.value(chosen)

    def make(values: list[Tensor], graphs: dict[str, Any], count: int) -> Any:
        return ge.If(predicate, values, **graphs, size_of_output=count)

    return low.branches([("then_branch", then), ("else_branch", otherwise)], operands, make)


def _call(low: Lowering) -> Any:
    function, operands = low.node.args[0], low.node.args[1:]
    if str(low.node.target) == "invoke_subgraph":
        operands = operands[1:]  # the identifier

    def make(values: list[Tensor], graphs: dict[str, Any], count: int) -> Any:
        return ge.PartitionedCall(values, **graphs, size_of_output=count)

    return low.branches([("f", function)], operands, make)


def _while(low: Lowering) -> Any:
    cond, body, carried_args, more = low.node.args
    operands = [*carried_args, *more]
    count = len(carried_args)
    inner_cond = low.trace(cond, "cond")
    inner = low.trace(body, "body", keep=lambda k: k < count)
    metas = list(low.node.meta["val"])
    if low.walk.problems:
        return tuple(map(low.walk.stand_in, metas))
    stacked = str(low.node.target) == "while_loop_stack_output"
    same = [not stacked and inner.forwarded(k) == k for k in range(count)]
    specs = [TensorSpec(inner.data[k].dtype, ()) for k in range(count)]
    return _Loop(low, operands, inner_cond, inner, specs, same, stacked).lower(metas)


class _Loop:
    """A While from a traced condition and body."""

    def __init__(
        self,
        low: Lowering,
        operands: Sequence[Any],
        cond: InnerGraph,
        body: InnerGraph,
        specs: Sequence[TensorSpec],
        same: Sequence[bool],
        stacked: bool,
    ) -> None:
        self.low, self.operands, self.cond, self.body = low, operands, cond, body
        self.specs, self.same, self.stacked = specs, same, stacked

    def lower(self, metas: Sequence[Any]) -> tuple[Any, ...]:
        low, cond, body = self.low, self.cond, self.body
        count = len(self.specs)
        keys = list(dict.fromkeys([*range(count), *body.data, *cond.data]))
        given = {k: low.symbols[k] if k in low.symbols else low.value(self.operands[k]) for k in keys}
        low.align([cond, body], keys, given)
        with building(cond.graph):
            cond.graph.outputs = [low.one(cond.results[0], TensorSpec(DataType.DT_BOOL, ()))]
        with building(body.graph):
            changed = [low.one(body.results[k], self.specs[k]) for k in range(count)]
        body.graph.outputs = [*changed, *(body.data[k] for k in keys[count:])]
        values = [given[k] for k in keys]
        if self.stacked:
            values += self._stack(metas)
        made = ge.While(values, cond=cond.graph, body=body.graph, size_of_output=len(values))
        if self.stacked:
            return tuple(low.named(made[len(keys) :], metas))
        final = low.named(made[:count], metas)
        return tuple(values[k] if self.same[k] else final[k] for k in range(count))

    def _stack(self, metas: Sequence[Any]) -> list[Tensor]:
        """Results that grow by a row each round; how many there will be, only the data knows."""
        low, body, starts = self.low, self.body, []
        for k, meta in enumerate(metas):
            dtype = self.specs[k].dtype
            sizes = [0, *(low.context.symbols.value(_expr(s)) for s in meta.shape[1:])]
            kept = carrier("ConcatV2", dtype, "x", moves=True)
            starts.append(ge.Fill(_sizes(sizes), ge.Const(0, dtype=dtype)))
            shape = low.context.spec(meta).size
            for graph in (body.graph, self.cond.graph):
                index = len(graph.inputs)
                data = builder.data(graph, index=index, dtype=dtype, shape=("rows", *shape[1:]))
            with building(body.graph):
                data = body.graph.inputs[-1].outputs[0]
                row = ge.Unsqueeze(body.graph.outputs[k], axes=[0])
                grown = ge.ConcatV2([carry(data, kept), carry(row, kept)], 0, N=2)
                body.graph.outputs.append(carry(grown, dtype))
        for graph in (body.graph, self.cond.graph):
            graph.nodes.sort(key=lambda n: n.op != "Data")
        return starts


def _expr(size: Any) -> Any:
    return size.node.expr if is_symbolic(size) else size


def _sizes(sizes: Sequence[Any]) -> Tensor:
    if not any(isinstance(s, Tensor) for s in sizes):
        return ge.Const(list(sizes), dtype=_I64)
    return ge.Pack([s if isinstance(s, Tensor) else ge.Const(s, dtype=_I64) for s in sizes], N=len(sizes), axis=0)


_NUMBER: Final = "number"
_LENGTH: Final = "length"


class _Rows:
    """A While over rows. Its values: the number of the row, how many there are, the carries, the results, then what the
    function reads: whole ``xs``, further operands, symbols."""

    def __init__(self, low: Lowering, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any]) -> None:
        self.low, self.operands, self.xs = low, [*init, *xs, *more], list(xs)
        self.carries = len(init)

    def lower(self, function: Any) -> tuple[Any, ...]:
        low, carries = self.low, self.carries
        body = low.trace(function, "body", keep=lambda k: k < carries, row=self._row)
        metas = list(low.node.meta["val"])
        if low.walk.problems:
            return tuple(map(low.walk.stand_in, metas))
        used = {u.args[1] for u in low.node.users if u.target is operator.getitem}
        wanted = [k for k in range(carries, len(metas)) if k in used]
        length = low.context.symbols.value(_expr(self.xs[0].meta["val"].shape[0]))
        given: dict[Key, Tensor] = {_NUMBER: ge.Const(0, dtype=_I64), _LENGTH: low.value(length)}
        given |= {k: low.value(self.operands[k]) for k in range(carries)}
        given |= {("row", k): self._buffer(metas[k]) for k in wanted}
        given |= {
            k: low.symbols[k] if k in low.symbols else low.value(self.operands[k]) for k in body.data if k not in given
        }
        cond = InnerGraph(Graph(f"{body.graph.name}_cond"))
        low.align([cond, body], list(given), given)
        with building(cond.graph):
            cond.graph.outputs = [ge.Less(cond.data[_NUMBER], cond.data[_LENGTH])]
        self._finish(body, list(given), wanted, metas)
        made = ge.While(list(given.values()), cond=cond.graph, body=body.graph, size_of_output=len(given))
        final: list[Any] = [None] * len(metas)
        final[:carries] = low.named(made[2 : 2 + carries], metas[:carries])
        for k, value in zip(wanted, made[2 + carries :]):
            (final[k],) = low.named([carry(value, to_ge(metas[k].dtype))], [metas[k]])
        return tuple(final)

    def _row(self, inner: InnerGraph, k: int) -> Tensor | None:
        """In the body: one row of an operand that is looped over."""
        if not 0 <= k - self.carries < len(self.xs):
            return None
        if _NUMBER not in inner.data:
            inner.data[_NUMBER] = builder.data(inner.graph, index=0, dtype=_I64, shape=())
        whole = self.low.context.spec(self.operands[k].meta["val"])
        inner.data[k] = data = builder.data(inner.graph, index=0, dtype=whole.dtype, shape=whole.size)
        (moved,), back = carried("GatherV2", data, moves=True)
        row = ge.GatherV2(moved, inner.data[_NUMBER], 0)
        row.record_shape(whole.size[1:])
        return back(row)

    def _buffer(self, meta: torch.Tensor) -> Tensor:
        """Memory of all rows of a result, in a type that the operator that writes them takes."""
        dtype = carrier("ScatterNdUpdate", to_ge(meta.dtype), "var", moves=True)
        sizes = [self.low.context.symbols.value(_expr(s)) for s in meta.shape]
        made: Tensor = ge.Fill(_sizes(sizes), ge.Const(0, dtype=dtype))
        made.record_shape(self.low.context.spec(meta).size)
        return made

    def _finish(self, body: InnerGraph, keys: Sequence[Key], wanted: Sequence[int], metas: Sequence[Any]) -> None:
        """Let the body return the next round's values."""
        data = body.data
        with building(body.graph):
            place = ge.Reshape(data[_NUMBER], [1, 1])
            results = [self.low.one(body.results[k], TensorSpec(data[k].dtype, ())) for k in range(self.carries)]
            for k in wanted:
                buffer = data["row", k]
                value = carry(self.low.one(body.results[k], self.low.context.spec(metas[k])), buffer.dtype)
                results.append(ge.ScatterNdUpdate(buffer, place, ge.Unsqueeze(value, axes=[0])))
            number = ge.Add(data[_NUMBER], 1)
        body.graph.outputs = [number, data[_LENGTH], *results, *(data[k] for k in keys[2 + len(results) :])]


def _scan(low: Lowering) -> Any:
    function, init, xs, *more = low.node.args
    return _Rows(low, init, xs, more[0] if more else ()).lower(function)


def _map(low: Lowering) -> Any:
    function, xs, *more = low.node.args
    return _Rows(low, (), xs, more[0] if more else ()).lower(function)


_RULES: Final[dict[str, Callable[[Lowering], Any]]] = {
    "cond": _cond,
    "invoke_subgraph": _call,
    "invoke_quant": _call,  # its options let Inductor compute less exactly, eager ignores them
    "invoke_quant_packed": _call,
    "while_loop": _while,
    "while_loop_stack_output": _while,
    "scan": _scan,
    "map_impl": _map,
}


def known(target: Any) -> bool:
    """Whether a higher-order operator, or the call that makes the options of one, is lowered here."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in _RULES
    return makes_quant_options(target)


def lower(walk: Any, node: torch.fx.Node) -> Any:
    """What a control-flow node becomes: one entry per result.

    Raises:
        Refusal: If one of its functions writes its operands, or gives something that is not a tensor and no number.
    """
    if makes_quant_options(node.target):
        return None
    return _RULES[node.target.name()](Lowering(walk, node))
