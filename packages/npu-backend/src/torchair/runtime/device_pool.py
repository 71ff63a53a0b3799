"""The memory pool of captured graphs: what torch's caching allocator asks of the device for a row of requests.

Facts, as torch documents its allocator, with torch_npu's padding (measured on its wheel): a request grows by 32 bytes
and to a multiple of 512; up to 1 MiB it is cut from a segment of 2 MiB, below 10 MiB from one of 20 MiB, and from there
it has a segment of its own, a multiple of 2 MiB; the smallest free block that is large enough is taken; what is left of
it stays a block, of a large segment only if it is more than 1 MiB; neighbours that are free become one. A capture gives
nothing back to the device.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Final

_MIB: Final = 1 << 20
_PADDING: Final = 32
_UNIT: Final = 512
_SMALL: Final = _MIB
_SMALL_SEGMENT, _LARGE_SEGMENT, _STEP = 2 * _MIB, 20 * _MIB, 2 * _MIB
_OWN_SEGMENT: Final = 10 * _MIB


@dataclass(order=True, slots=True)
class _Block:
    size: int
    number: int
    before: _Block | None = field(default=None, compare=False, repr=False)
    after: _Block | None = field(default=None, compare=False, repr=False)
    free: bool = field(default=True, compare=False)
    small: bool = field(default=True, compare=False)


class Pool:
    """A pool and what lies in it.

    Attributes:
        bytes: What the device was asked for.
        requests: How many pieces were asked for.
    """

    def __init__(self) -> None:
        self.bytes = self.requests = 0
        self._free: dict[bool, list[_Block]] = {True: [], False: []}
        self._number = 0

    def take(self, size: int) -> _Block | None:
        """A piece of memory of so many bytes; nothing for none."""
        if not size:
            return None
        self.requests += 1
        wanted = -(-(size + _PADDING) // _UNIT) * _UNIT
        small = wanted <= _SMALL
        fit = next((block for block in self._free[small] if block.size >= wanted), None)
        if fit is None:
            fit = self._segment(wanted, small)
        else:
            self._free[small].remove(fit)
        fit.free = False
        left = fit.size - wanted
        if left >= _UNIT if small else left > _SMALL:
            rest = _Block(left, self._next(), fit, fit.after, True, small)
            if fit.after is not None:
                fit.after.before = rest
            fit.after, fit.size = rest, wanted
            insort(self._free[small], rest)
        return fit

    def give(self, block: _Block) -> None:
        """A piece of memory that nobody needs any more."""
        block.free = True
        for neighbour in (block.before, block.after):
            if neighbour is None or not neighbour.free:
                continue
            self._free[block.small].remove(neighbour)
            if neighbour is block.before:
                block.before, block.number = neighbour.before, neighbour.number
                if block.before is not None:
                    block.before.after = block
            else:
                block.after = neighbour.after
                if block.after is not None:
                    block.after.before = block
            block.size += neighbour.size
        insort(self._free[block.small], block)

    def _segment(self, wanted: int, small: bool) -> _Block:
        size = _SMALL_SEGMENT if small else _LARGE_SEGMENT if wanted < _OWN_SEGMENT else -(-wanted // _STEP) * _STEP
        self.bytes += size
        return _Block(size, self._next(), small=small)

    def _next(self) -> int:
        self._number += 1
        return self._number
