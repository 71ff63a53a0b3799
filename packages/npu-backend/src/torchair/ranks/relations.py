"""How the values of many ranks stand to that of the whole model: equal, parts of it, summands, or none of these."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import torch

_MOST: Final = 4000  # placements that are tried


@dataclass(frozen=True, slots=True)
class Relation:
    """Values of ranks beside the whole one.

    Attributes:
        kind: ``same``, ``shards`` (both are well), ``partial`` (summands: a reduction is missing), ``scaled`` (a sum
            too many), ``order`` (the right parts on the wrong ranks), ``differs``.
        detail: In words, such as the dimensions of the mesh.
        ranks: Ranks whose value is not the expected one; empty if all is well.
        worst: Largest difference from the nearest expectation.
    """

    kind: str
    detail: str = ""
    ranks: tuple[int, ...] = ()
    worst: float = 0.0

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind in ("same", "shards")


class Mesh:
    """Ranks in a grid.

    Args:
        sizes: Name of a dimension to its length, outermost first.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)
        self.count = reduce(lambda a, b: a * b, self.sizes.values(), 1)

    def place(self, rank: int) -> tuple[int, ...]:
        """Coordinates of a rank."""
        found = []
        for size in reversed(self.sizes.values()):
            found.append(rank % size)
            rank //= size
        return tuple(reversed(found))

    def groups(self, names: Sequence[str]) -> list[list[int]]:
        """Ranks that differ only in these dimensions, in order."""
        chosen = [name in names for name in self.sizes]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.count):
            key = tuple(c for c, inside in zip(self.place(rank), chosen) if not inside)
            found.setdefault(key, []).append(rank)
        return [*found.values()]


def close(x: torch.Tensor, y: torch.Tensor, tolerance: float) -> bool:
    """Equal but for rounding, measured by the largest element."""
    return x.shape == y.shape and difference(x, y) <= tolerance


def difference(x: torch.Tensor, y: torch.Tensor) -> float:
    """Largest difference, relative to the largest element of ``y``."""
    if x.numel() == 0:
        return 0.0
    a, b = x.detach().to(torch.float64), y.detach().to(torch.float64)
    both = (a == b) | (a.isnan() & b.isnan())  # infinities are equal to themselves
    gap = torch.where(both, torch.zeros_like(a), (a - b).abs())
    gap = torch.where(gap.isnan(), torch.full_like(gap, float("inf")), gap)
    finite = b[b.isfinite()]
    scale = max(float(finite.abs().max()) if finite.numel() else 0.0, 1e-30)
    return float(gap.max()) / scale


def relation(values: Sequence[torch.Tensor], whole: torch.Tensor, mesh: Mesh, tolerance: float) -> Relation:
    """How the ranks' values stand to the whole one.

    Args:
        values: By rank.
        whole: Of the unsharded model.
        mesh: How the ranks lie.
        tolerance: Largest difference that is rounding, relative to the largest element.
    """
    wrong = [r for r, v in enumerate(values) if not close(v, whole, tolerance)]
    if not wrong:
        return Relation("same", worst=max((difference(v, whole) for v in values), default=0.0))
    for split in _splits(values[0].shape, whole.shape, mesh):
        parts = [_part(whole, split, mesh, r) for r in range(len(values))]
        if all(close(v, p, tolerance) for v, p in zip(values, parts)):
            return Relation("shards", _words(split), worst=max(difference(v, p) for v, p in zip(values, parts)))
    return _fault(values, whole, mesh, tolerance, wrong)


def relation_of_some(values: Mapping[int, torch.Tensor], whole: torch.Tensor, mesh: Mesh, tolerance: float) -> Relation:
    """How the values of the ranks that have one stand to the whole one, such as those of one stage of a pipeline.

    Args:
        values: By rank, at least one.
        whole: Of the unsharded model.
        mesh: How all ranks lie.
        tolerance: See ``relation``.
    """
    ranks = sorted(values)
    places = [mesh.place(r) for r in ranks]
    names = [n for i, n in enumerate(mesh.sizes) if len({p[i] for p in places}) > 1]
    inside = Mesh({n: mesh.sizes[n] for n in names})
    if ranks not in map(sorted, mesh.groups(names)):
        inside = Mesh({"": len(ranks)})  # no part of the grid
    found = relation([values[r] for r in ranks], whole, inside, tolerance)
    return replace(found, ranks=tuple(ranks[i] for i in found.ranks))


def _splits(shape: Any, whole: Any, mesh: Mesh) -> Iterator[dict[str, int]]:
    """Ways to cut ``whole`` into pieces of about that shape: mesh dimension to tensor dimension."""
    if len(shape) != len(whole):
        return
    choices = itertools.product(range(-1, len(whole)), repeat=len(mesh.sizes))
    for choice in itertools.islice(choices, _MOST):
        split = {name: d for name, d in zip(mesh.sizes, choice) if d >= 0}
        if not split or any(mesh.sizes[name] == 1 for name in split):
            continue
        pieces = [1] * len(whole)
        for name, d in split.items():
            pieces[d] *= mesh.sizes[name]
        if all(abs(s * n - w) < n for s, n, w in zip(shape, pieces, whole)):
            yield split


def _part(whole: torch.Tensor, split: Mapping[str, int], mesh: Mesh, rank: int) -> torch.Tensor:
    place = dict(zip(mesh.sizes, mesh.place(rank)))
    for name, d in split.items():
        parts = whole.chunk(mesh.sizes[name], d)
        whole = parts[place[name]] if place[name] < len(parts) else whole.narrow(d, 0, 0)
    return whole


def _words(split: Mapping[str, int]) -> str:
    return ", ".join(f"dim {d} over '{name}'" for name, d in split.items())


def _fault(
    values: Sequence[torch.Tensor], whole: torch.Tensor, mesh: Mesh, tolerance: float, wrong: Sequence[int]
) -> Relation:
    """What is wrong, if it is one of the usual things."""
    names = [name for name, size in mesh.sizes.items() if size > 1]
    sets = [list(c) for n in range(1, len(names) + 1) for c in itertools.combinations(names, n)]
    floats = whole.is_floating_point() and all(v.is_floating_point() for v in values)
    if floats and all(v.shape == whole.shape for v in values):
        for chosen in sets:
            groups = mesh.groups(chosen)
            if all(close(_sum(values, g), whole, tolerance * 4) for g in groups):
                return Relation("partial", " x ".join(f"'{n}'" for n in chosen), tuple(wrong))
            size = len(groups[0])
            if all(close(_sum(values, g) / size, whole.double(), tolerance * 4) for g in groups):
                return Relation("partial", f"{' x '.join(map(repr, chosen))} (a mean)", tuple(wrong))
            if all(close(v.double() / size, whole.double(), tolerance * 4) for v in values):
                return Relation("scaled", f"{size} times, the size of {' x '.join(map(repr, chosen))}", tuple(wrong))
    for split in _splits(values[0].shape, whole.shape, mesh):
        parts = [_part(whole, split, mesh, r) for r in range(len(values))]
        places = {r: next((i for i, p in enumerate(parts) if close(v, p, tolerance)), -1) for r, v in enumerate(values)}
        if all(i >= 0 for i in places.values()):
            moved = tuple(r for r, v in enumerate(values) if not close(v, parts[r], tolerance))
            return Relation("order", _words(split), moved)
        good = [r for r in range(len(values)) if close(values[r], parts[r], tolerance)]
        if good:
            bad = tuple(r for r in range(len(values)) if r not in good)
            return Relation("differs", _words(split), bad, max(_gap(values[r], parts[r]) for r in bad))
    for d in range(whole.dim()):
        for n in sorted({mesh.sizes[name] for name in names}):
            if (
                all(v.shape == whole.shape for v in values)
                and whole.shape[d] % n == 0
                and _permuted(values[wrong[0]], whole, d, n, tolerance)
            ):
                return Relation("order", f"{n} blocks of dim {d} in another order", tuple(wrong))
    return Relation("differs", "", tuple(wrong), max(_gap(values[r], whole) for r in wrong))


def _permuted(value: torch.Tensor, whole: torch.Tensor, d: int, n: int, tolerance: float) -> bool:
    """Whether all blocks are there, in another order."""
    theirs = whole.chunk(n, d)
    found = [next((i for i, p in enumerate(theirs) if close(v, p, tolerance)), -1) for v in value.chunk(n, d)]
    return sorted(found) == [*range(n)]


def _sum(values: Sequence[torch.Tensor], ranks: Sequence[int]) -> torch.Tensor:
    return reduce(torch.add, [values[r].double() for r in ranks])


def _gap(x: torch.Tensor, y: torch.Tensor) -> float:
    return difference(x, y) if x.shape == y.shape else float("inf")
