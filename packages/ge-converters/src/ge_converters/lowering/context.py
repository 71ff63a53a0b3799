"""What a graph under construction knows: FX values, their specs, symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.dtypes import to_ge
from ge_converters.base.errors import Refusal
from ge_converters.lowering import symbols
from ge_graph import DataType, Graph, Tensor, TensorSpec, builder
from ge_graph.builder import ONLY_INT

FxNode: TypeAlias = torch.fx.Node
_DIRECT: Final = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


class Unproduced:
    """An output that its converter left out; using it is refused."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Symbolic:
    """The value of an FX node that is a symbolic number; it becomes GE nodes when somebody needs it."""

    __slots__ = ("expr",)

    def __init__(self, expr: Any) -> None:
        self.expr = expr


class Context:
    """State of one lowering.

    Attributes:
        graph: The GE graph.
        symbols: Its symbolic values.
        env: FX node to what it became: Tensor, tuple, ``Symbolic``, ``Unproduced``, effects.Mark or a plain value.
        outer: For a graph in a node: called with a symbol that nothing in it tells, gives where it comes from.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.symbols = symbols.Symbols(graph, self._search)
        self.env: dict[FxNode, Any] = {}
        self._specs: dict[Any, TensorSpec] = {}
        self._static = True  # until a size is a symbol, which has no hash
        self._tensors: set[type] = set()  # kinds of tensors met so far; torch answers isinstance in Python
        self.outer: Callable[[Any], Callable[[], Tensor] | None] | None = None

    def argument(self, value: Any) -> Any:
        """An FX argument as a converter gets it."""
        kind = type(value)
        if kind is FxNode:
            known = self.env[value]
            return known if type(known) is Tensor else self.usable(known, value)
        if kind in _DIRECT:
            return value
        if isinstance(value, (list, tuple)):
            if set(map(type, value)) == ONLY_INT:
                return list(value)
            return [self.argument(v) for v in value]
        if symbols.is_symbolic(value):
            return self.symbols.value(value.node.expr)
        return value

    def usable(self, value: Any, node: FxNode) -> Any:
        """What a converter gets for the value of an FX node."""
        kind = type(value)
        if kind is Tensor:
            return value
        if kind is Symbolic:
            return self.symbols.value(value.expr)
        if kind is Unproduced:
            raise Refusal(value.reason)
        if kind is tuple:
            return [self.usable(f, node) for f in value]
        return value

    def spec(self, value: torch.Tensor) -> TensorSpec:
        """Type and sizes of a meta value."""
        dtype, shape = value.dtype, value.shape
        if self._static:
            try:
                known = self._specs.get((dtype, shape))
            except TypeError:
                self._static = False
            else:
                if known is None:
                    known = self._specs[dtype, shape] = TensorSpec(to_ge(dtype), tuple(shape))
                return known
        dim = self.symbols.dim
        return TensorSpec(to_ge(dtype), tuple([d if type(d) is int else dim(d) for d in shape]))

    def full_spec(self, value: torch.Tensor) -> TensorSpec:
        """Like ``spec``, with strides."""
        dim = self.symbols.dim
        stride = tuple(dim(s) for s in value.stride()) if value.layout is torch.strided else None
        return TensorSpec(to_ge(value.dtype), tuple(dim(s) for s in value.shape), stride)

    def meta_outputs(self, value: Any) -> Any:
        """The ``meta_outputs`` of a node: a spec, or a list of specs with None for what is not a tensor."""
        if type(value) in self._tensors:
            return self.spec(value)
        if isinstance(value, torch.Tensor):
            self._tensors.add(type(value))
            return self.spec(value)
        if isinstance(value, (list, tuple)):
            return [self.meta_outputs(v) for v in value]
        return _scalar_spec(value)

    def _search(self, symbol: Any) -> Callable[[], Tensor] | None:
        """A result lowered so far one of whose dimensions is ``symbol``."""
        for node, lowered in self.env.items():
            for value, tensor in _pairs(node.meta.get("val"), lowered):
                for i, size in enumerate(value.shape):
                    if symbols.is_symbolic(size) and size.node.expr == symbol:
                        return lambda t=tensor, i=i: self.symbols.size_of(t, i)  # type: ignore[misc]
        return None if self.outer is None else self.outer(symbol)


def _pairs(value: Any, lowered: Any) -> list[tuple[torch.Tensor, Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(value, lowered)] if isinstance(lowered, Tensor) else []
    if isinstance(value, (list, tuple)) and isinstance(lowered, tuple):
        return [pair for v, f in zip(value, lowered) for pair in _pairs(v, f)]
    return []


def _scalar_spec(value: Any) -> TensorSpec | None:
    for kind, dtype in _SCALARS:
        if isinstance(value, kind):
            return TensorSpec(dtype, ())
    return None


_SCALARS: Final = (
    ((bool, torch.SymBool), DataType.DT_BOOL),
    ((int, torch.SymInt), DataType.DT_INT64),
    ((float, torch.SymFloat), DataType.DT_DOUBLE),
)


def constant(graph: Graph, value: torch.Tensor, name: str | None = None) -> Tensor:
    """A torch tensor as a Const node; its memory is shared where numpy can type it."""
    from ge_graph import Literal

    data = value.detach()
    if data.device.type != "cpu":
        data = data.cpu()
    if not data.is_contiguous():
        data = data.contiguous()
    dtype = to_ge(data.dtype)
    if dtype.numpy_name is not None:
        return builder.constant(graph, data.resolve_conj().resolve_neg().numpy(), name)
    raw = data.reshape(-1).view(torch.uint8).numpy()
    return builder.constant(graph, Literal(dtype, tuple(data.shape), raw), name)
