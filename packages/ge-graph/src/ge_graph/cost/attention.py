"""The sizes of an attention, read out of its operands by their layout."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

_Shape: TypeAlias = "tuple[int, ...]"


class Heads(NamedTuple):
    """Sizes of an attention.

    Attributes:
        batch: Number of sequences; 1 if they stand one after the other.
        heads: Heads of the query.
        queries: Rows of the query in a sequence, or in all of them if packed.
        keys: The same of the key.
        depth: Elements of a head of query and key.
        width: Elements of a head of the value.
        packed: Sequences of several lengths stand one after the other (layout TND).
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    packed: bool

    @property
    def tokens(self) -> int:
        """Rows of the query in all sequences."""
        return self.batch * self.queries

    @property
    def scores(self) -> int:
        """Elements of the matrix of scores."""
        return self.batch * self.heads * self.queries * self.keys


def _parts(shape: _Shape, layout: str, heads: int) -> tuple[int, int, int, int] | None:
    """Batch, heads, rows and elements of a head."""
    if len(shape) != len(layout):
        return None
    size = dict(zip(layout, shape))
    if "H" in size:
        if not heads or size["H"] % heads:
            return None
        return size["B"], heads, size["S"], size["H"] // heads
    if "T" in size:
        return 1, size["N"], size["T"], size["D"]
    return size["B"], size["N"], size["S"], size["D"]


def read(layout: str, heads: int, query: _Shape, key: _Shape, value: _Shape, kv_heads: int = 0) -> Heads | None:
    """The sizes of an attention.

    Args:
        layout: ``BNSD``, ``BSND``, ``BSH``, ``SBH``, ``TND``; what follows ``_`` is the layout of the result.
        heads: Heads of the query.
        query: Sizes of the query; ``key`` and ``value`` likewise.
        kv_heads: Heads of the key, 0 for those of the query or, with layout ``BSH``, as the sizes of the query say.

    Returns:
        None for a layout that is not known or sizes that do not fit it.
    """
    layout = layout.partition("_")[0]
    if set(layout) not in ({*"BNSD"}, {*"BSH"}, {*"TND"}):
        return None
    q = _parts(query, layout, heads)
    if q is None:
        return None
    batch, count, queries, depth = q
    if "H" in layout and not kv_heads:
        kv_heads = dict(zip(layout, key)).get("H", 0) // depth if len(key) == 3 and depth else 0
    k, v = _parts(key, layout, kv_heads or heads), _parts(value, layout, kv_heads or heads)
    if k is None or v is None:
        return None
    return Heads(batch, count, queries, k[2], depth, v[3], "T" in layout)
