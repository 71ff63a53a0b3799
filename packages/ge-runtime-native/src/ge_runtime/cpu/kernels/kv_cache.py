"""Keys and values of attention for inference: dense, a list, or pages; quantised or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.attention import split_heads
from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.errors import refused

_PER_CHANNEL, _PER_TOKEN, _PER_HEAD, _PER_TOKEN_HEAD, _PAGED_TOKEN, _PAGED_TOKEN_HEAD = range(6)
_PAGED: Final = (_PAGED_TOKEN, _PAGED_TOKEN_HEAD)
_TILE: Final = 32  # bytes of a row that stand together in a tiled page


def tiles(cache: Tensor) -> Tensor:
    """Pages (pages, page, 1, D) whose memory is tiled, as it is: (pages, D / x, page, x), x elements in 32 bytes."""
    pages, size, _, width = cache.shape
    step = _TILE // cache.element_size()
    return cache.view(pages, width // step, size, step)


@dataclass(frozen=True, slots=True)
class Quantised:
    """How a cache is widened: ``(x + offset) * scale``.

    Attributes:
        scale: Mode 0: one element, or N D; 1: (B, S); 2: (N); 3: (B, N, S); 4: (pages, page); 5: (pages, N, page).
        offset: The same shape, None for zero.
        mode: What the scale belongs to.
    """

    scale: Tensor
    offset: Tensor | None
    mode: int

    def of(self, op: str, x: Tensor, like: Tensor | None, heads: int) -> Tensor:
        """A scale or offset as (B or 1, N or 1, S or 1, D or 1), or (pages, N or 1, page, 1)."""
        if self.mode == _PER_CHANNEL:
            if x.numel() == 1:
                return wide(x).reshape(1, 1, 1, 1)
            if like is not None and x.numel() != heads * like.shape[-1]:
                raise refused(op, f"a scale {list(x.shape)} of channels for {heads} heads of {like.shape[-1]}")
            return wide(x).reshape(1, heads, 1, -1)
        if self.mode == _PER_HEAD:
            return wide(x).reshape(1, heads, 1, 1)
        if self.mode in (_PER_TOKEN, _PAGED_TOKEN):
            return wide(x).reshape(-1, 1, x.shape[-1], 1)
        if self.mode in (_PER_TOKEN_HEAD, _PAGED_TOKEN_HEAD):
            return wide(x).reshape(-1, heads, x.shape[-1], 1)
        raise refused(op, f"antiquant mode {self.mode}, accepted: 0 to 5")


@dataclass(frozen=True, slots=True)
class Cache:
    """One side of attention, keys or values.

    Attributes:
        op: Whom a refusal names.
        parts: One tensor in the layout of the query, or one a sequence, or the pages.
        heads: Heads of keys and values.
        table: (sequences, pages): which page holds which tokens; None without pages.
        block: Tokens of a page as the attribute has it; 0 takes it from the tensor.
        how: How int8 is widened, None for floats.
        to: Element type of what was widened.
    """

    op: str
    parts: list[Tensor]
    heads: int
    table: Tensor | None = None
    block: int = 0
    how: Quantised | None = None
    to: torch.dtype | None = None

    def __post_init__(self) -> None:
        packed = self.parts[0].dtype
        if not packed.is_floating_point and (self.how is None or packed != torch.int8):
            raise refused(self.op, f"a {packed} cache with{'out' if self.how is None else ''} scales is not computed")
        if self.how is not None and self.how.mode in _PAGED and self.table is None:
            raise refused(self.op, f"antiquant mode {self.how.mode} without block_table")
        if self.table is not None and len(self.parts) != 1:
            raise refused(self.op, "block_table with a list of caches", "feed one cache")

    @property
    def dtype(self) -> torch.dtype:
        """Element type after widening."""
        return self.parts[0].dtype if self.how is None or self.to is None else self.to

    def _pages(self) -> Tensor:
        """The cache as (pages, N, page, D)."""
        cache = self.parts[0]
        if cache.dim() == 3:  # (pages, page, N D)
            if cache.shape[2] % self.heads:
                raise refused(self.op, f"pages of width {cache.shape[2]} for {self.heads} heads")
            plain = cache.unflatten(2, (self.heads, -1)).transpose(1, 2)
        elif cache.dim() in (4, 5):
            plain = cache.permute(0, 1, 3, 2, 4).flatten(3) if cache.dim() == 5 else cache
        else:
            raise refused(self.op, f"a paged cache of rank {cache.dim()}, accepted: 3 to 5")
        if plain.shape[1] != self.heads or (self.block and plain.shape[2] != self.block):
            raise refused(
                self.op,
                f"a paged cache {list(cache.shape)} for {self.heads} heads and block_size {self.block}",
                "accepted: (pages, page, N D), (pages, N, page, D), (pages, N, D / x, page, x)",
            )
        return plain

    def _split(self, layout: str) -> list[Tensor]:
        """The parts as (B, N, S, D); packed ones as (1, N, T, D)."""
        if layout in ("TND", "NTD"):
            parts = [(p.transpose(0, 1) if layout == "TND" else p).unsqueeze(0) for p in self.parts]
        else:
            parts = [split_heads(p, layout, self.heads) for p in self.parts]
        if parts[0].shape[1] != self.heads:
            raise refused(self.op, f"{parts[0].shape[1]} heads of keys or values, num_key_value_heads is {self.heads}")
        return parts

    def width(self, layout: str) -> int:
        """Size of a head."""
        return self._pages().shape[3] if self.table is not None else self._split(layout)[0].shape[3]

    def longest(self, layout: str) -> int:
        """How many tokens a sequence can have."""
        if self.table is not None:
            return self.table.shape[1] * self._pages().shape[2]
        return max(p.shape[2] for p in self._split(layout))

    def length(self, layout: str, b: int) -> int:
        """Tokens of a sequence whose length is not said."""
        split = self._split(layout)
        return split[b if len(split) > 1 else 0].shape[2]

    def _widened(self, x: Tensor, b: int | None, start: int, end: int, pages: Tensor | None = None) -> Tensor:
        if self.how is None:
            return x

        def cut(value: Tensor) -> Tensor:
            part = self.how.of(self.op, value, x, self.heads)  # type: ignore[union-attr]
            if self.how.mode in _PAGED and pages is not None:  # type: ignore[union-attr]
                part = part[pages].transpose(1, 2).flatten(0, 1).transpose(0, 1).unsqueeze(0)
            elif b is not None and part.shape[0] > 1:
                part = part[b : b + 1]
            return part[:, :, start:end] if part.shape[2] > 1 else part

        data = x.float() if self.how.offset is None else x.float() + cut(self.how.offset)
        return (data * cut(self.how.scale)).to(self.dtype)

    def whole(self, layout: str) -> Tensor:
        """All of a dense cache as (B, N, S, D)."""
        dense = self._split(layout)[0]
        return self._widened(dense, None, 0, dense.shape[2])

    def entry(self, layout: str, b: int, length: int, pad: int = 0) -> Tensor:
        """The ``length`` tokens of sequence ``b`` as (1, N, S, D); with ``pad`` they end that far before the end."""
        if self.table is not None:
            if pad:
                raise refused(self.op, "kv_padding_size with block_table", "leave one of them out")
            return self._paged(b, length)
        split = self._split(layout)
        sequence = split[0][b : b + 1] if len(split) == 1 else split[b]
        end = sequence.shape[2] - pad if pad else length
        start = end - length
        if start < 0:
            start = end = 0
        return self._widened(sequence[:, :, start:end], b, start, end)

    def tokens(self, layout: str, b: int, start: int, end: int) -> Tensor:
        """Tokens ``start`` to ``end`` of packed sequences, or those of sequence ``b`` in pages."""
        if self.table is not None:
            return self._paged(b, end - start)
        if self.how is not None and self.how.mode not in (_PER_CHANNEL, _PER_HEAD):
            raise refused(self.op, f"antiquant mode {self.how.mode} of packed sequences")
        return self._widened(self._split(layout)[0][:, :, start:end], None, start, end)

    def _paged(self, b: int, length: int) -> Tensor:
        pages, table = self._pages(), self.table
        if table is None or b >= table.shape[0]:
            raise refused(self.op, f"block_table has no row for sequence {b}")
        used = table[b, : -(-length // pages.shape[2])].long()
        wrong = used[(used < 0) | (used >= pages.shape[0])]
        if wrong.numel():
            raise refused(self.op, f"block_table names page {int(wrong[0])} of {pages.shape[0]} for sequence {b}")
        sequence = pages[used].transpose(1, 2).flatten(0, 1)[:length].transpose(0, 1).unsqueeze(0)
        return self._widened(sequence, b, 0, length, used)
