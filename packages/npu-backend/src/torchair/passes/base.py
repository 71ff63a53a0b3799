"""What an FX pass is, and what passes ask of nodes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig


class FxPass:
    """A rewrite of an ATen graph that keeps its results; the docstring says what it is good for and why there.

    Attributes:
        option: Option of captured graphs that switches it on; without one it always runs.
    """

    option: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """``VerbObject``, as the log and the debug record show it."""
        return type(self).__name__

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """Whether to run under this configuration; ``phase`` is ``forward`` or ``backward``."""
        return not self.option or switched_on(config, self.option)

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Edit ``gm.graph`` in place; returns the number of edits."""
        raise NotImplementedError


def switched_on(config: NpuBaseConfig, name: str) -> bool:
    """Whether an option of captured graphs is on: under ``aclgraph_config`` and, where it is known, in mode
    reduce-overhead also under ``experimental_config``."""
    places = [config.experimental_config] if name in config.experimental_config else []
    if config.mode.value == "reduce-overhead":
        places.append(config.aclgraph_config)
    return bool(places) and all(bool(getattr(place, name, True)) for place in places)


def value_of(node: Any) -> Any:
    """The fake tensor or symbolic number that a node stands for; plain values stand for themselves."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def same_dim(a: Any, b: Any) -> bool:
    """Whether two sizes are equal for every input; asks the expressions, so no guard comes into being."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        if not (isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt)):
            return False
        return bool(a.node.expr == b.node.expr)
    return bool(a == b)


def same_sizes(a: Any, b: Any) -> bool:
    """``same_dim`` for whole shapes or stride tuples."""
    return len(a) == len(b) and all(map(same_dim, a, b))


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one size are laid out alike; no element cares for the stride of a dimension of size 1."""
    return all(same_dim(size, 1) or same_dim(s, t) for size, s, t in zip(a.shape, a.stride(), b.stride()))


def row_major(value: torch.Tensor) -> bool:
    """``is_contiguous`` by the expressions of the sizes, so that no guard comes into being."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride())):
        if not same_dim(stride, expected) and not same_dim(size, 1):
            return False
        expected = expected * size
    return True


def viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node in whose memory this one's result lies: the first argument of a view, the list behind a getitem."""
    source = node.args[0] if node.op == "call_function" and node.args else None
    if not isinstance(source, torch.fx.Node):
        return None
    maker = source if node.target is operator.getitem else node
    schema = getattr(maker.target, "_schema", None)
    if schema is None:
        return None
    aliases = (r.alias_info for r in schema.returns)
    return source if any(a is not None and not a.is_write for a in aliases) else None


_LAZY: Final = frozenset({torch.ops.aten._conj.default, torch.ops.aten._neg_view.default})


def is_lazy(node: torch.fx.Node | None) -> bool:
    """Whether torch may leave the conjugate or the negative in a result to its readers.

    A copy of it is what makes it plain, and what is written into it stays lazy: ``view_as_real`` takes no such tensor.
    """
    while node is not None:
        if node.target in _LAZY:
            return True
        node = viewed(node)
    return False


def output_node(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(iter(reversed(graph.nodes)))


def output_values(graph: torch.fx.Graph) -> list[Any]:
    """What the graph returns, one entry per output."""
    returned = output_node(graph).args[0]
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def place_of(fn: Any) -> str:
    """File and line of a function, for errors; empty for what has none."""
    code = getattr(fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
