"""Bytes that a rank sends, or receives if that is more, in a collective: by its definition, whatever the algorithm.

The factors are those by which nccl-tests turns times into rates of links (its page PERFORMANCE.md): of n ranks each
sends (n - 1) / n of the whole for an all-gather, a reduce-scatter and an all-to-all, twice that for an all-reduce, and
all of it for a broadcast and a reduce.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ge_graph.cost.sizes import Shapes, port
from ge_graph.ir import Node, Tensor


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a rank has to do with the others.

    Attributes:
        least: Bytes that no algorithm can leave out.
        usual: Bytes of an algorithm that spreads them evenly; None if a size is not known, or no formula is.
        ranks: How many ranks take part, 0 if the graph does not say it.
    """

    least: int
    usual: int | None
    ranks: int


NONE: Final = Traffic(0, 0, 0)
UNKNOWN: Final = Traffic(0, None, 0)
_Rule: TypeAlias = "Callable[[int, int, int], tuple[int, int]]"
"""Bytes of the operand and of the result, number of ranks (0: not known), to the least and the usual bytes."""


def of(shapes: Shapes, node: Node) -> Traffic:
    """The traffic of one node."""
    if node.op not in _RULES:
        return UNKNOWN if is_network(node.op) or _FUSED.search(node.op) else NONE
    operand, rule = _RULES[node.op]
    sides = _bytes(shapes, port(node, operand) if operand else ()), _bytes(shapes, tuple(node.outputs[:1]))
    if node.op == "HcomBroadcast":  # any number of tensors
        sides = _bytes(shapes, port(node, operand)), 0
    if sides[0] is None or sides[1] is None:
        return UNKNOWN
    ranks = int(node.attr("rank_size", 0) or 0) or shapes.ranks.get(_group(node), 0)
    least, usual = rule(sides[0], sides[1], ranks)
    return Traffic(least, usual, ranks)


def is_network(op: str) -> bool:
    """Whether an operator does nothing but exchange data with other ranks."""
    return op.startswith(("Hcom", "MoeDistribute"))


def _group(node: Node) -> str:
    return str(node.attr("group", "") or "")


def _bytes(shapes: Shapes, operand: object) -> int | None:
    total = 0
    for tensor in operand if isinstance(operand, tuple) else (operand,):
        size = shapes.bytes(tensor) if isinstance(tensor, Tensor) else None
        if size is None:
            return None
        total += size
    return total


def _reduced(size: int, ranks: int) -> tuple[int, int]:
    # every rank's elements are in everybody's result, so that each leaves its rank; many ranks if nobody says how many
    return size, 2 * size * (ranks - 1) // ranks if ranks else 2 * size


def _scattered(x: int, ranks: int) -> tuple[int, int]:
    return (x * (ranks - 1) // ranks,) * 2 if ranks else (x // 2, x)


_RULES: Final[Mapping[str, tuple[str, _Rule]]] = {
    "HcomAllGather": ("x", lambda x, y, n: (y - x, y - x)),
    "HcomAllGatherV": ("x", lambda x, y, n: (y - x, y - x)),
    "HcomAllReduce": ("x", lambda x, y, n: _reduced(x, n)),
    "HcomAllToAll": ("x", lambda x, y, n: _scattered(x, n)),
    "HcomAllToAllV": ("send_data", lambda x, y, n: (0, x)),  # only the run knows how much goes to oneself
    "HcomAllToAllVC": ("send_data", lambda x, y, n: (0, x)),
    "HcomBroadcast": ("x", lambda x, y, n: (x, x)),
    "HcomReceive": ("", lambda x, y, n: (y, y)),
    "HcomReduce": ("x", lambda x, y, n: (x, x)),
    "HcomReduceScatter": ("x", lambda x, y, n: (x - y, x - y)),
    "HcomReduceScatterV": ("x", lambda x, y, n: (x - y, x - y)),
    "HcomSend": ("x", lambda x, y, n: (x, x)),
    # products that exchange their operand or their result
    "AllGatherMatmul": ("x1", lambda x, y, n: (x * (n - 1),) * 2 if n else (x, x)),
    "AllGatherMatmulV2": ("x1", lambda x, y, n: (x * (n - 1),) * 2 if n else (x, x)),
    "MatmulAllReduce": ("x1", lambda x, y, n: _reduced(y, n)),
    "MatmulReduceScatter": ("x1", lambda x, y, n: (y * (n - 1),) * 2 if n else (y, y)),
    "MatmulReduceScatterV2": ("x1", lambda x, y, n: (y * (n - 1),) * 2 if n else (y, y)),
}
# Parts of names of operators that exchange data beside what they compute, and have no formula here.
_FUSED: Final = re.compile(r"All[Rr]educe|AllGather|All[Tt]o[Aa]ll|ReduceScatter")
