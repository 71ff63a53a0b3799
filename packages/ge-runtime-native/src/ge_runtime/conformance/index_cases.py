"""Cases of operators that pick, place, sort and search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case
from ge_runtime.conformance.elementwise_cases import floats, sample

_X = sample((3, 4), -2, 2)
_INT64, _INT32 = 9, 3


def _i(values: Any, dtype: str = "int64") -> Array:
    return np.array(values, dtype)


def _gathers() -> Iterator[Case]:
    yield Case("Gather", (_X, _i([2, 0])), _X[[2, 0]])
    yield Case("Gather", (_X, _i([[2, 0], [1, 1]])), _X[[[2, 0], [1, 1]]], name="rank 2")
    yield Case("Gather", (_X, _i(1)), _X[1], name="rank 0 drops the axis")
    yield Case("Gather", (_X, _i([2, 0], "int32")), _X[[2, 0]], name="int32")
    yield Case(
        "Gather",
        (np.stack([_X, _X + 9]), _i([[0, 2], [1, 1]])),
        np.stack([_X[[0, 2]], _X[[1, 1]] + 9]),
        {"batch_dims": 1},
        name="batch",
    )
    yield Case("GatherV2", (_X, _i([3, 0]), 1), _X[:, [3, 0]])
    yield Case("GatherV2", (_X, _i([[3, 0]]), -1), _X[:, [[3, 0]]], name="rank 2")
    yield Case("GatherV2", (_X, _i(2), 1), _X[:, 2], name="rank 0")
    yield Case("GatherV2", (_X, _i([-1]), 0), _X[[-1]], {"negative_index_support": True}, name="negative")
    yield Case("GatherElements", (_X, _i([[0, 1], [2, 0]])), np.take_along_axis(_X[:, :2], _i([[0, 1], [2, 0]]), 0))
    yield Case("GatherElements", (_X, _i([[3], [0], [1]])), np.take_along_axis(_X, _i([[3], [0], [1]]), 1), {"dim": 1})
    yield Case("GatherNd", (_X, _i([[2, 1], [0, 3]])), _X[[2, 0], [1, 3]])
    yield Case("GatherNd", (_X, _i([[2], [0]])), _X[[2, 0]], name="rows")
    yield Case("IndexByTensor", (_X, (_i([2, 0]),)), _X[:, [2, 0]], {"indices_mask": [0, 1]})
    cube = sample((2, 3, 4), -1, 1)
    yield Case(
        "IndexByTensor",
        (cube, (_i([1, 0]), _i([3, 2]))),
        cube[[1, 0], :, [3, 2]],
        {"indices_mask": [1, 0, 1]},
        name="apart: first",
    )
    mask = _X > 0
    yield Case("MaskedSelect", (_X, mask), _X[mask])
    yield Case("NonZero", (mask,), np.argwhere(mask))
    yield Case("Where", (mask,), np.argwhere(mask))
    yield Case("RepeatInterleave", (_X, _i([1, 0, 2])), np.repeat(_X, [1, 0, 2], 0), {"axis": 0})
    yield Case("RepeatInterleave", (_X, _i([2])), np.repeat(_X, 2, 1), {"axis": 1}, name="one count")


def _scattered(data: Array, rows: Any, values: Any, add: bool = False) -> Array:
    out: Array = data.copy()
    for row, value in zip(rows, values):
        out[row] = out[row] + value if add else value
    return out


def _scatters() -> Iterator[Case]:
    index, updates = _i([[0, 1], [2, 0]]), np.array([[10, 20], [30, 40]], np.float32)
    want = _X.copy()
    want[0, 0], want[1, 1], want[2, 0], want[0, 1] = 10, 20, 30, 40
    yield Case("ScatterElements", (_X, index, updates), want)
    wide = np.pad(updates, ((0, 1), (0, 2)))
    yield Case("ScatterElements", (_X, index, wide), want, name="iterates over indices")
    twice = floats(1, 2, 3)
    yield Case(
        "ScatterElements",
        (np.zeros(2, np.float32), _i([1, 1, 0]), twice),
        floats(3, 3),
        {"reduction": "add"},
        name="add",
    )
    yield Case(
        "ScatterElements",
        (np.full(2, 2, np.float32), _i([1, 1, 0]), twice),
        floats(6, 4),
        {"reduction": "mul"},
        name="mul",
    )
    rows = _i([[2], [0]])
    values = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    yield Case("ScatterNdUpdate", (_X, rows, values), _scattered(_X, [2, 0], values))
    yield Case("ScatterNdAdd", (_X, _i([[1], [1]]), values), _scattered(_X, [1, 1], values, True), name="accumulates")
    yield Case("TensorScatterUpdate", (_X, rows, values), _scattered(_X, [2, 0], values))
    yield Case("ScatterNd", (rows, values, [3, 4]), _scattered(np.zeros_like(_X), [2, 0], values))
    yield Case("ScatterUpdate", (_X, _i([2, 0]), values), _scattered(_X, [2, 0], values))
    yield Case("ScatterAdd", (_X, _i([1, 1]), values), _scattered(_X, [1, 1], values, True))
    yield Case(
        "InplaceIndexAdd", (_X, _i([1, 1]), values, floats(2.0)), _scattered(_X, [1, 1], 2 * values, True), {"axis": 0}
    )
    cache, new = np.zeros((2, 5, 3), np.float32), sample((2, 2, 3), 1, 2)
    filled = cache.copy()
    filled[0, 1:3], filled[1, 3:5] = new[0], new[1]
    yield Case("Scatter", (cache, _i([1, 3]), new), filled, {"reduce": "update", "axis": -2}, name="offsets")
    swapped = cache.copy()
    swapped[1, 1:3], swapped[0, 3:5] = new[0], new[1]
    yield Case("Scatter", (cache, _i([[1, 1], [0, 3]]), new), swapped, {"reduce": "update", "axis": -2}, name="rows")
    yield Case("Assign", (_X, _X + 1), _X + 1)
    flat = np.zeros(6, np.float32)
    yield Case("ViewCopy", (flat, [2], [2], [1], floats(8, 9), [2], [1], [0]), floats(0, 8, 0, 9, 0, 0))


def _sorts() -> Iterator[Case]:
    x = np.array([[3, 1, 2, 1], [0, 5, 5, 4]], np.float32)
    order = np.argsort(x, -1, kind="stable")
    yield Case("Sort", (x,), (np.sort(x, -1), order.astype(np.int32)))
    down = np.argsort(-x, 0, kind="stable")
    yield Case(
        "Sort",
        (x,),
        (np.take_along_axis(x, down, 0), down.astype(np.int32)),
        {"axis": 0, "descending": True},
        name="descending",
    )
    top = np.argsort(-x, -1, kind="stable")[:, :2]
    yield Case("TopKV2", (x, np.array(2, np.int32)), (np.take_along_axis(x, top, -1), top.astype(np.int32)))
    low = np.argsort(x, -1, kind="stable")[:, :3]
    yield Case(
        "TopKV2",
        (x, np.array(3, np.int32)),
        (np.take_along_axis(x, low, -1), low.astype(np.int32)),
        {"largest": False},
        name="smallest, equal ones in order",
    )
    rising = np.array([[1, 2, 2, 5]], np.float32)
    for right in (False, True):
        want = np.searchsorted(rising[0], [2, 0, 9], "right" if right else "left").astype(np.int64)[None]
        yield Case("SearchSorted", (rising, np.array([[2, 0, 9]], np.float32)), want, {"right": right}, name=str(right))
    yield Case(
        "UniqueWithCountsAndSorting",
        (floats(3, 1, 3),),
        (floats(1, 3), _i([1, 0, 1]), _i([1, 2])),
        {"return_inverse": True, "return_counts": True},
    )
    yield Case("Unique", (floats(3, 1, 3),), (floats(3, 1), _i([0, 1, 0], "int32")), name="order of appearance")
    keep = np.array([0b00000101] + [0] * 15, np.uint8)
    yield Case(
        "DropOutDoMask", (floats(1, 2, 3, 4), keep, np.array(0.5, np.float32)), floats(2, 0, 6, 0), name="low bit first"
    )


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _gathers()
    yield from _scatters()
    yield from _sorts()
