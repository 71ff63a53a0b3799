"""Cases of operators that combine elements by index, pick by further rules, and read or write diagonals."""

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


# Operator: what becomes of an element and an update, types.
_COMBINED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "ScatterSub": (np.subtract, ("float32", "float16", "int32", "uint8")),
    "ScatterMul": (np.multiply, ("float32", "float16", "int32")),
    "ScatterDiv": (
        lambda a, b: np.trunc(a / b).astype(a.dtype) if a.dtype.kind == "i" else a / b,
        ("float32", "int32"),
    ),
    "ScatterMax": (np.maximum, ("float32", "float16", "int32", "uint8")),
    "ScatterMin": (np.minimum, ("float32", "float16", "int32", "uint8")),
}


def _combined(data: Array, rows: Any, values: Any, fn: Any) -> Array:
    out: Array = data.copy()
    for row, value in zip(rows, values, strict=True):
        out[row] = fn(out[row], value)
    return out


def _scatters() -> Iterator[Case]:
    for op, (fn, dtypes) in _COMBINED.items():
        for dtype in dtypes:
            data, updates = sample((4, 3), 9, 40, dtype), sample((3, 3, 2), 1, 9, dtype)[..., 1].copy()
            if np.dtype(dtype).kind == "i":
                data[1] = -data[1]
            rows = _i([2, 0, 2], "int32")
            yield Case(op, (data, rows, updates), lambda d, r, u, fn=fn: _combined(d, r, u, fn), name=dtype)
        two = _i([[0, 3], [1, 1]])
        block = sample((2, 2, 3), 1, 9)
        want = _combined(sample((4, 3), 9, 40), two.reshape(-1), block.reshape(4, 3), fn)
        yield Case(op, (sample((4, 3), 9, 40), two, block), want, name="indices of rank 2, int64")
        yield Case(op, (floats(8, 6, 4), _i(1), floats(2)[0]), _combined(floats(8, 6, 4), [1], [2], fn), name="scalars")
    for dtype in ("float32", "float16", "int32", "uint8"):
        data, places = sample((3, 4), 9, 40, dtype), _i([[1], [2], [1]], "int32")
        updates = sample((3, 4, 2), 1, 4, dtype)[..., 1].copy()
        yield Case(
            "ScatterNdSub", (data, places, updates), lambda d, p, u: _combined(d, p[:, 0], u, np.subtract), name=dtype
        )
        for axis in (0, 1, -1):
            rows = _i([1, 0, 1][: data.shape[axis]] if axis == 0 else [3, 0, 3, 1], "int32")

            def added(d: Array, r: Array, u: Array, axis: int = axis) -> Array:
                out = np.moveaxis(d, axis, 0)
                return np.ascontiguousarray(np.moveaxis(_combined(out, r, np.moveaxis(u, axis, 0), np.add), 0, axis))

            yield Case("IndexAdd", (data, rows, updates), added, {"axis": axis}, name=f"{dtype} axis {axis}")
        cells = _i([[0, 1, 2, 0], [2, 1, 0, 0], [0, 0, 0, 1]], "int64")
        want = data.copy()
        np.add.at(want, (cells, np.arange(4)[None]), updates)
        yield Case("ScatterAddWithAxis", (data, cells, updates), want, {"axis": 0}, name=dtype)
    segments = sample((5, 2), -2, 2)
    for dtype in ("float32", "float16", "int32"):
        data = segments.astype(dtype)
        want = np.stack([data[:2].astype(float).sum(0), np.zeros(2), data[2:].astype(float).sum(0)]).astype(dtype)
        yield Case("SegmentSum", (data, _i([0, 0, 2, 2, 2], "int32")), want, name=dtype)
    yield Case(
        "SegmentSum", (np.zeros((0, 2), np.float32), _i([], "int32")), np.zeros((0, 2), np.float32), name="empty"
    )


def _picks() -> Iterator[Case]:
    index = _i([[0, -1], [2, 0]])
    yield Case("GatherD", (_X, _i([0]), index), np.take_along_axis(_X[:, :2], index % 3, 0), name="negative")
    columns = _i([[3], [0], [1]], "int32")
    for kind in ("float32", "float16", "int32"):
        data = (4 * _X).astype(kind)
        yield Case("GatherD", (data, _i([1], "int32"), columns), np.take_along_axis(data, columns, 1), name=kind)
    for kind in ("float32", "float16"):
        data = _X.astype(kind)
        yield Case("MaskedSelectV2", (data, data > 0), data[data > 0], name=kind)
    row = np.array([True, False, True, False])
    yield Case("MaskedSelectV2", (_X, row), _X[np.broadcast_to(row, _X.shape)], name="a mask that broadcasts")
    yield Case("MaskedSelectV2", (_X, _X > 9), np.zeros(0, np.float32), name="nothing")
    for kind, out, dtype in (("float32", _INT64, "int64"), ("int32", _INT32, "int32")):
        data = np.array([3, 1, 3, 2, 1, 3], kind)
        want = np.array([3, 1, 2], kind), _i([0, 1, 0, 2, 1, 0], dtype), _i([3, 2, 1], dtype)
        yield Case("UniqueWithCounts", (data,), want, {"out_idx": out}, name=kind)


# Bands of diagonals of a matrix, as TensorFlow documents matrix_diag_part: the second version pads at the end, the
# third by ``align``.
_MATRIX = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
_AT_END = np.array([[3, 8, 0], [2, 7, 12], [1, 6, 11], [5, 10, 0]], np.float32)
_BANDS = {
    "RIGHT_LEFT": np.array([[0, 3, 8], [2, 7, 12], [1, 6, 11], [5, 10, 0]], np.float32),
    "LEFT_RIGHT": np.array([[3, 8, 0], [2, 7, 12], [1, 6, 11], [0, 5, 10]], np.float32),
    "LEFT_LEFT": _AT_END,
    "RIGHT_RIGHT": np.array([[0, 3, 8], [2, 7, 12], [1, 6, 11], [0, 5, 10]], np.float32),
}


def _diagonals() -> Iterator[Case]:
    band, zero = _i([-1, 2], "int32"), np.array(0, np.float32)
    stack = np.stack([_MATRIX, -_MATRIX])
    yield Case("MatrixDiagPartV2", (_MATRIX, band, zero), _AT_END, name="a band is padded at its end")
    yield Case("MatrixDiagPartV2", (stack, band, zero), np.stack([_AT_END, -_AT_END]), name="of a batch")
    one = _i([1], "int32")
    yield Case("MatrixDiagPartV2", (_MATRIX, one, zero), floats(2, 7, 12), name="one diagonal")
    nine = np.array(9, np.float32)
    want = np.where(_AT_END == 0, nine, _AT_END)
    yield Case("MatrixDiagPartV2", (_MATRIX, band, nine), want, name="another padding")
    clear = np.tril(np.triu(_MATRIX, -1), 2)
    marked = _MATRIX - clear
    yield Case("MatrixSetDiagV2", (marked, _AT_END, band), _MATRIX, name="a band that is padded at its end")
    yield Case(
        "MatrixSetDiagV2", (np.stack([marked, -marked]), np.stack([_AT_END, -_AT_END]), band), stack, name="batch"
    )
    changed = _MATRIX.copy()
    changed[[0, 1, 2], [1, 2, 3]] = -1
    yield Case("MatrixSetDiagV2", (_MATRIX, floats(-1, -1, -1), one), changed, name="one diagonal")
    for align, want in _BANDS.items():
        yield Case("MatrixDiagPartV3", (_MATRIX, band, zero), want, {"align": align}, name=align)
        yield Case("MatrixSetDiagV3", (marked, want, band), _MATRIX, {"align": align}, name=align)


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _picks()
    yield from _scatters()
    yield from _diagonals()
