"""What a captured graph needs of a device: streams, events, tasks and memory, counted on the program before a device.

How many tasks an operator becomes is what torch_npu launches for it, measured with its wheel on the emulator
(``data/captured_tasks.tsv``). A program that was traced on a CPU differs from one of a device where torch takes the
operator apart that torch_npu keeps: those places are counted as the device has them.
"""

from __future__ import annotations

import operator
import pkgutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

import torch

from ge_graph.errors import EngineError
from torchair.oplib.torch_ops import name_of
from torchair.passes.base import value_of
from torchair.passes.memory import shares, writes
from torchair.runtime.device_pool import Pool
from torchair.runtime.fx_program import last_reads, line_of
from torchair.runtime.host_tasks import HostTask

FxNode: TypeAlias = torch.fx.Node
Piece: TypeAlias = tuple[FxNode, int]
aten = torch.ops.aten

_OF_A_GROUP: Final = 3  # the wait for its update, the reset, and the group


@dataclass(slots=True)
class Budget:
    """What one captured graph needs.

    Attributes:
        streams: Streams under capture.
        events: Events that the captured tasks wait for or record.
        tasks: Captured tasks.
        pool: Bytes that the memory pool has after it, those of earlier graphs of the pool included.
        unmeasured: Operators whose number of tasks nobody measured, counted as one each, with the user's lines.
    """

    streams: int = 1
    events: int = 0
    tasks: int = 0
    pool: int = 0
    unmeasured: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Row:
    tasks: int
    pieces: int


@lru_cache(maxsize=1)
def _rows() -> Mapping[str, _Row]:
    content = pkgutil.get_data("torchair", "data/captured_tasks.tsv")
    if content is None:
        raise EngineError(
            "GE4001", "package data torchair/data/captured_tasks.tsv cannot be read", next="reinstall torchair"
        )
    rows = [line.split("\t") for line in content.decode().splitlines()[1:]]
    return {name: _Row(int(tasks), int(pieces)) for name, tasks, pieces in rows}


def _row_of(target: Any) -> _Row | None:
    """The row of an operator; one that works in place launches what its other form does."""
    rows, name = _rows(), str(target)
    found = rows.get(name)
    if found is None and (parts := name.split("."))[1:] and parts[1].endswith("_"):
        parts[1] = parts[1].removesuffix("_")
        found = rows.get(".".join(parts))
    return found


def count(graph: torch.fx.Graph, pool: Pool) -> Budget:
    """What the program of a graph needs when it is captured.

    Args:
        graph: After ``plan_capture``; sizes are numbers.
        pool: The pool that it is captured into; holds its results afterwards.
    """
    made = Budget()
    left_out, copied = _left_out(graph), _copied(graph)
    lives = _Lives(graph, pool, left_out, copied)
    for node in graph.nodes:
        if node in copied:
            made.tasks += 1
        elif node.op == "call_function" and node not in left_out:
            _count_tasks(node, made)
        lives.step(node)
    made.pool = pool.bytes
    return made


def _count_tasks(node: FxNode, made: Budget) -> None:
    if isinstance(node.target, HostTask):
        made.tasks += _OF_A_GROUP
        made.events += 1
    elif not _free(node):
        row = _row_of(node.target)
        made.tasks += 1 if row is None else row.tasks
        if row is None:
            places = made.unmeasured.setdefault(str(node.target), [])
            if (place := line_of(node)) and place not in places:
                places.append(place)


def _free(node: FxNode) -> bool:
    """Whether a node launches nothing: a view, a number, a mark."""
    if not isinstance(node.target, torch._ops.OpOverload) or name_of(node.target):
        return True
    if not any(isinstance(v, torch.Tensor) for v in _values(node)):
        return not writes(node)
    return bool(shares(node)) and not writes(node)


def _values(node: FxNode) -> Sequence[Any]:
    value = value_of(node)
    return value if isinstance(value, (tuple, list)) else (value,)


# -- where a program of the CPU is not one of the device


def _left_out(graph: torch.fx.Graph) -> set[FxNode]:
    """Nodes that a program of the device does not have.

    ``matmul`` stays whole there; on a CPU its operands are expanded and copied for ``bmm``. Its mask that attention on
    a CPU takes as numbers is inverted there.
    """
    gone: set[FxNode] = set()
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        for operand in node.args[:2]:
            if copy := _copy_of_expanded(operand):
                gone.add(copy)
    for node in graph.find_nodes(op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu.default):
        mask = node.kwargs.get("attn_mask")
        if isinstance(mask, torch.fx.Node) and mask.target is aten.where.self:
            gone.update(n for n in mask.args[1:] if n.target in (aten.scalar_tensor.default, aten.full.default))
    return gone


def _copied(graph: torch.fx.Graph) -> set[FxNode]:
    """Views that a device copies: its attention gives results in the order of memory that a CPU's does not have."""
    found: set[FxNode] = set()
    for node in graph.find_nodes(op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu.default):
        for result in (n for n in node.users if n.target is operator.getitem and n.args[1] == 0):
            turned = [n for n in result.users if n.target is aten.transpose.int]
            found.update(n for n in turned if any(u.target in _RESHAPES for u in n.users))
    return found


_RESHAPES: Final = (aten.view.default, aten._unsafe_view.default)


def _copy_of_expanded(node: Any) -> FxNode | None:
    while isinstance(node, torch.fx.Node) and node.target in _RESHAPES:
        node = node.args[0]
    if not isinstance(node, torch.fx.Node) or node.target is not aten.clone.default or len(node.users) > 1:
        return None
    source = node.args[0]
    return node if isinstance(source, torch.fx.Node) and source.target is aten.expand.default else None


# -- memory


class _Lives:
    """Takes and gives pieces of memory as a program makes and drops its values."""

    def __init__(self, graph: torch.fx.Graph, pool: Pool, left_out: set[FxNode], copied: set[FxNode]) -> None:
        self._pool, self._left_out, self._copied = pool, left_out, copied
        self._dead = last_reads(list(graph.nodes))
        self._of: dict[FxNode, list[frozenset[Piece]]] = {}  # value to pieces, one set a result
        self._holders: Counter[Piece] = Counter()
        self._blocks: dict[Piece, Any] = {}

    def step(self, node: FxNode) -> None:
        """Run a statement of the program."""
        if node.op == "output":
            return
        self._of[node] = sets = list(self._results(node))
        for piece in frozenset().union(*sets):
            self._holders[piece] += 1
        self._passing(node)
        for value in [*self._dead.get(node, ()), *(() if node.users else (node,))]:
            self._drop(value)

    def _results(self, node: FxNode) -> Iterator[frozenset[Piece]]:
        if node.op != "call_function":
            yield frozenset()
        elif node.target is operator.getitem:
            source, k = node.args
            sets = self._of[source]
            yield sets[k] if isinstance(k, int) and len(sets) > 1 else frozenset().union(*sets)
        elif node in self._left_out:
            yield frozenset().union(*(p for n in node.all_input_nodes for p in self._of[n]))
        elif node not in self._copied and not isinstance(node.target, HostTask) and (sources := shares(node)):
            yield frozenset().union(*(p for n in sources for p in self._of[n]))
        else:
            for k, value in enumerate(_values(node)):
                yield self._new((node, k), value)

    def _new(self, piece: Piece, value: Any) -> frozenset[Piece]:
        if not isinstance(value, torch.Tensor):
            return frozenset()
        block = self._pool.take(_bytes(value))
        if block is None:
            return frozenset()
        self._blocks[piece] = block
        return frozenset((piece,))

    def _passing(self, node: FxNode) -> None:
        """Memory that is needed only while an operator runs."""
        row = _row_of(node.target)
        if row is None or not row.pieces or node in self._left_out:
            return
        like = next((v for v in _values(node) if isinstance(v, torch.Tensor)), None)
        blocks = [self._pool.take(0 if like is None else _bytes(like)) for _ in range(row.pieces)]
        for block in blocks:
            if block is not None:
                self._pool.give(block)

    def _drop(self, value: FxNode) -> None:
        for piece in frozenset().union(*self._of.get(value, ())):
            self._holders[piece] -= 1
            if not self._holders[piece]:
                self._pool.give(self._blocks.pop(piece))


def _bytes(value: torch.Tensor) -> int:
    """Of its own memory, which may be larger than its elements; of symbolic sizes with those of the trace."""
    sizes = [int(size) for size in value.shape]
    if not all(sizes):
        return 0
    extent = sum((size - 1) * int(stride) for size, stride in zip(sizes, value.stride()))
    return int((extent + 1) * value.element_size())
