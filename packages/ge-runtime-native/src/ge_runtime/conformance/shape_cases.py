"""Cases of operators that reduce, move, repeat or create."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case, by_formula
from ge_runtime.conformance.elementwise_cases import floats, sample

_X = sample((2, 3, 4), -2, 2)
_INT64, _INT32 = 9, 3


def _i(*values: Any, dtype: str = "int64") -> Array:
    return np.array(values, dtype)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
}


def _reductions() -> Iterator[Case]:
    for op, fn in REDUCTIONS.items():
        for axes in ([1], [0, -1], [0, 1, 2], 2):
            for keep in (False, True):
                where = tuple(axes) if isinstance(axes, list) else axes
                yield Case(
                    op,
                    (_X, axes),
                    np.asarray(fn(_X, axis=where, keepdims=keep)),
                    {"keep_dims": keep},
                    name=f"{axes} keep={keep}",
                )
        yield Case(op, (_X, []), _X, name="empty axes reduce nothing")
        yield Case(op, (np.array(3.0, np.float32), [-1]), np.array(3.0, np.float32), name="rank 0")
    yield Case("ReduceSum", (_i(1, 2, 3, dtype="int32"), [0]), np.array(6, np.int32), name="keeps int32")
    yield Case("ReduceSum", (np.zeros((0, 2), np.float32), [0]), np.zeros(2, np.float32), name="empty dim")
    yield Case("ReduceMean", (_X, []), np.asarray(_X.mean(), np.float32), {"noop_with_empty_axes": False}, name="all")
    signs = _X > 0
    for op, fn in (("ReduceAll", np.all), ("ReduceAny", np.any)):
        yield Case(op, (signs, [1]), fn(signs, axis=1))
        yield Case(op, (signs, []), np.asarray(fn(signs)), name="empty axes reduce everything")
    yield Case("ReduceLogSumExp", (_X, [2]), np.log(np.exp(_X).sum(2)))
    mean = np.broadcast_to(_X.mean(1, keepdims=True), _X.shape).copy()
    yield Case("ReduceStdV2Update", (_X, mean), _X.var(1, ddof=1), {"dim": [1]})
    yield Case("ReduceStdWithMean", (_X, mean), _X.std(1, ddof=1), {"dim": [1]}, name="a root")
    yield Case(
        "ReduceStdWithMean",
        (_X, mean),
        1 / np.sqrt(_X.var(1) + 1e-3),
        {"dim": [1], "unbiased": False, "invert": True, "epsilon": 1e-3},
        name="inverted",
    )
    yield Case("ArgMaxV2", (_X, 1), _X.argmax(1), name="position")
    yield Case("ArgMin", (_X, -1), _X.argmin(-1).astype(np.int32), {"dtype": _INT32}, name="int32")
    yield Case("ArgMaxWithValue", (_X,), (_X.argmax(1).astype(np.int32), _X.max(1)), {"dimension": 1})
    for exclusive, reverse, want in (
        (False, False, floats(1, 3, 6)),
        (True, False, floats(0, 1, 3)),
        (False, True, floats(6, 5, 3)),
        (True, True, floats(5, 3, 0)),
    ):
        flags = {"exclusive": exclusive, "reverse": reverse}
        yield Case("Cumsum", (floats(1, 2, 3), 0), want, flags, name=f"{exclusive} {reverse}")
    yield Case("Cumsum", (_i(100, 100, dtype="int8"), 0), _i(100, -56, dtype="int8"), name="wraps")


def _moves() -> Iterator[Case]:
    yield Case("Reshape", (_X, [4, 6]), _X.reshape(4, 6))
    yield Case("Reshape", (_X, [-1, 4]), _X.reshape(6, 4), name="-1")
    yield Case("Reshape", (_X, [0, -1]), _X.reshape(2, 12), name="0 copies")
    yield Case("Reshape", (_X, [12]), _X.reshape(2, 12), {"axis": 1}, name="axis")
    yield Case("Reshape", (_X, [6]), _X.reshape(6, 4), {"axis": 0, "num_axes": 2}, name="num_axes")
    yield Case("Reshape", (floats(5), []), np.array(5, np.float32), name="to rank 0")
    yield Case("Reshape", (np.zeros((0, 3), np.float32), [3, 0]), np.zeros((3, 0), np.float32), name="0 of an empty")
    yield Case("FlattenV2", (_X,), _X.reshape(2, 12))
    yield Case("FlattenV2", (_X,), _X.reshape(6, 4), {"axis": 0, "end_axis": 1}, name="range")
    yield Case("Squeeze", (_X[:, :1],), _X[:, 0], {"axis": [1]})
    yield Case("Squeeze", (_X[:1, :1],), _X[0, 0], name="all")
    yield Case("Unsqueeze", (_X,), _X[:, None, :, :, None], {"axes": [1, -1]}, name="places of the result")
    yield Case("ExpandDims", (_X, -1), _X[..., None])
    yield Case("Transpose", (_X, [2, 0, 1]), _X.transpose(2, 0, 1))
    yield Case("Transpose", (_X, [0, 2, 1]), _X.transpose(0, 2, 1), name="swap")
    yield Case("Transpose", (_X, [0, 1, 2]), _X, name="identity")
    yield Case("Transpose", (_X, [0, -1, 1]), _X.transpose(0, 2, 1), name="negative")
    yield Case("Permute", (_X,), _X.transpose(1, 2, 0), {"order": [1, 2, 0]})
    yield Case("BroadcastTo", (floats(1, 2), [3, 2]), np.broadcast_to(floats(1, 2), (3, 2)))
    yield Case("BroadcastTo", (floats(1, 2), [3, -1]), np.broadcast_to(floats(1, 2), (3, 2)), name="-1 keeps")
    yield Case("Expand", (_X, [1, 3, 1]), _X, name="1 against n keeps n")
    yield Case("Tile", (_X, [1, 2, 1]), np.tile(_X, (1, 2, 1)))
    yield Case("Tile", (_X, [2]), np.tile(_X, (1, 1, 2)), name="fewer multiples")
    yield Case("Tile", (floats(1, 2), [2, 0]), np.zeros((2, 0), np.float32), name="0 empties")
    yield Case("ConcatV2", ((_X, _X[:, :1]), 1), np.concatenate([_X, _X[:, :1]], 1), {"N": 2})
    yield Case("ConcatV2", ((floats(1), floats(2, 3)), -1), floats(1, 2, 3), {"N": 2}, name="negative axis")
    yield Case("ConcatV2", ((floats(1),), 0), floats(1), {"N": 1}, name="one part")
    yield Case("Pack", ((_X, _X + 1),), np.stack([_X, _X + 1], -1), {"axis": -1, "N": 2}, name="counts on the result")
    yield Case(
        "Pack", ((np.array(1.0, np.float32), np.array(2.0, np.float32)),), floats(1, 2), {"N": 2}, name="scalars"
    )
    yield Case("Unpack", (_X,), tuple(_X[:, k] for k in range(3)), {"num": 3, "axis": 1}, keywords={"size_of_y": 3})
    yield Case("SplitV", (_X, [1, -1], 2), (_X[..., :1], _X[..., 1:]), {"num_split": 2}, keywords={"size_of_y": 2})
    yield Case(
        "SplitV", (_X, [0, 3], 1), (_X[:, :0], _X), {"num_split": 2}, keywords={"size_of_y": 2}, name="empty part"
    )
    yield Case("Split", (2, _X), (_X[..., :2], _X[..., 2:]), {"num_split": 2}, keywords={"size_of_y": 2})


def _slices() -> Iterator[Case]:
    yield Case("Slice", (_X, [0, 1, 2], [2, 2, -1]), _X[:, 1:3, 2:])
    yield Case("StridedSliceV2", (_X, [1], [3], [1], [1]), _X[:, 1:3])
    yield Case("StridedSliceV2", (_X, [-2], [2147483647], [-1], [1]), _X[..., -2:], name="clamped")
    yield Case("StridedSliceV2", (_X, [0], [-1], [2], [2]), _X[:, :, 0:-1:2], name="step")
    yield Case("StridedSliceV2", (_X, [-1], [-100], [0], [-1]), _X[::-1], name="reversed")
    yield Case("StridedSliceV2", (_X, [3], [1], [2], [1]), _X[..., 3:1], name="nothing")
    yield Case("StridedSliceV2", (_X, [0, 1], [1, 3]), _X[0:1, 1:3], name="no axes, no strides")
    yield Case(
        "StridedSliceV2",
        (_X, [1, 1], [2, 3], [0, 2], [1, 1]),
        _X[1:, :, :3],
        {"end_mask": 1, "begin_mask": 4},
        name="masks count dims of x",
    )
    yield Case("StridedSliceV2", (_X, [1], [2], [1], [1]), _X[:, 1], {"shrink_axis_mask": 2}, name="shrink")
    full = ([0, 1], [2, 3], [1, 1])
    yield Case("StridedSlice", (_X, *full), _X[0:2, 1:3])
    yield Case("StridedSlice", (_X, *full), _X[:, 1:], {"begin_mask": 1, "end_mask": 3}, name="masks")
    yield Case("StridedSlice", (_X, [0, 1], [0, 2], [1, 1]), _X[..., 1:2], {"ellipsis_mask": 1}, name="ellipsis")
    yield Case(
        "StridedSlice",
        (_X, [0, 0, 1], [0, 0, 2], [1, 1, 1]),
        _X[:, None, 1:2],
        {"begin_mask": 1, "end_mask": 1, "new_axis_mask": 2},
        name="new axis",
    )
    yield Case("StridedSlice", (_X, [1, 0], [2, 2], [1, 1]), _X[1, 0:2], {"shrink_axis_mask": 1}, name="shrink")
    yield Case(
        "StridedSlice",
        (_X, [1, 0, 1], [2, 0, 2], [1, 1, 1]),
        _X[1, ..., 1],
        {"ellipsis_mask": 2, "shrink_axis_mask": 5},
        name="shrink around an ellipsis",
    )


def _pads() -> Iterator[Case]:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    yield Case("PadV3", (x, [1, 0, 0, 2], 7.0), np.pad(x, ((1, 0), (0, 2)), constant_values=7), name="constant")
    yield Case("PadV3", (x, [1, 0, 0, 2]), np.pad(x, ((1, 0), (0, 2))), name="value defaults to 0")
    yield Case(
        "PadV3", (x, [0, 1, 0, 2]), np.pad(x, ((0, 0), (1, 2))), {"paddings_contiguous": False}, name="begins first"
    )
    yield Case("PadV3", (x, [0, 0, -1, 1]), np.pad(x[:, 1:], ((0, 0), (0, 1))), name="negative crops")
    for mode in ("reflect", "edge"):
        yield Case("PadV3", (x, [1, 1, 2, 2]), np.pad(x, ((1, 1), (2, 2)), mode), {"mode": mode}, name=mode)
    yield Case("MirrorPad", (x, [[1, 1], [2, 3]]), np.pad(x, ((1, 1), (2, 3)), "symmetric"), {"mode": "SYMMETRIC"})
    yield Case(
        "MirrorPad", (x, [[1, 1], [2, 2]]), np.pad(x, ((1, 1), (2, 2)), "reflect"), {"mode": "REFLECT"}, name="r"
    )
    yield Case("ReverseV2", (x, [1]), x[:, ::-1])
    yield Case("ReverseV2", (x, []), x, name="no axis")
    yield Case("Roll", (x,), np.roll(x, (1, -1), (0, 1)), {"shifts": [1, -1], "dims": [0, 1]})
    yield Case("Roll", (x,), np.roll(x, 4), {"shifts": [4]}, name="flattened")
    yield Case("RollV2", (x, [1, -1], [0, 1]), np.roll(x, (1, -1), (0, 1)))
    yield Case("RollV2", (x, [1, 1], [1, 1]), np.roll(x, 2, 1), name="one axis twice")
    square = sample((2, 4, 4), -1, 1)
    for diagonal in (0, 1, -2, 9):
        yield Case("Tril", (square,), np.tril(square, diagonal), {"diagonal": diagonal}, name=str(diagonal))
        yield Case("Triu", (square,), np.triu(square, diagonal), {"diagonal": diagonal}, name=str(diagonal))
    yield Case("Diag", (floats(1, 2),), np.diag(floats(1, 2)))
    yield Case("DiagPart", (_X[0, :3, :3].copy(),), np.diag(_X[0, :3, :3]))
    yield Case("AsStrided", (np.arange(6, dtype=np.float32), [2, 2], [1, 2], 1), np.array([[1, 3], [2, 4]], np.float32))
    yield Case("Bitcast", (floats(1.0),), np.array([0x3F800000], np.int32), {"type": _INT32})
    yield Case("Bitcast", (floats(1.0),), np.array([[0, 0, 0x80, 0x3F]], np.uint8), {"type": 4}, name="smaller")
    yield Case("Bitcast", (np.array([[0, 0, 0x80, 0x3F]], np.uint8),), floats(1.0), {"type": 0}, name="larger")


def _running(x: Any, fn: Any, neutral: float, exclusive: bool, reverse: bool) -> Any:
    """``fn.accumulate`` along axis 1 of (2, 3, 4)."""
    x = x[:, ::-1] if reverse else x
    y = fn.accumulate(x, 1)
    y = np.concatenate([np.full_like(y[:, :1], neutral), y[:, :-1]], 1) if exclusive else y
    return y[:, ::-1] if reverse else y


def _more_reductions() -> Iterator[Case]:
    for op, fn, neutral in (
        ("Cumprod", np.multiply, 1.0),
        ("CumulativeLogsumexp", np.logaddexp, float("-inf")),
        ("Cumsum", np.add, 0.0),
    ):
        for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
            yield by_formula(
                op,
                (_X, -2),
                lambda x, _, *form, fn=fn, neutral=neutral, e=exclusive, r=reverse: _running(x, fn, neutral, e, r),
                attrs={"exclusive": exclusive, "reverse": reverse},
                name=f"axis 1 {exclusive} {reverse}",
            )
    yield Case("Cumprod", (_i(2, 3, 4, dtype="int32"), 0), _i(2, 6, 24, dtype="int32"), name="int32")
    for dtype in ("float32", "float16"):
        x = (_X if dtype == "float32" else _X / 2).astype(dtype)
        for axes in ([1], [0, -1], [2]):
            over = tuple(axes)
            for keep in (False, True):
                fields: dict[str, Any] = {"attrs": {"keep_dims": keep}, "name": f"{dtype} {axes} keep={keep}"}
                yield by_formula(
                    "EuclideanNorm",
                    (x, axes),
                    lambda x, _, o=over, k=keep: np.sqrt((x * x).sum(o, keepdims=k)),
                    **fields,
                )
                yield by_formula(
                    "ReduceLogSum",
                    (np.abs(x), axes),
                    lambda x, _, o=over, k=keep: np.log(x.sum(o, keepdims=k)),
                    **fields,
                )
        for unbiased in (True, False):
            yield by_formula(
                "ReduceStd",
                (x,),
                lambda x, u=unbiased: (x.std((0, 2), ddof=int(u), keepdims=True), x.mean((0, 2), keepdims=True)),
                attrs={"dim": [0, -1], "unbiased": unbiased, "keepdim": True},
                name=f"{dtype} unbiased={unbiased}",
            )
        yield by_formula("ReduceStd", (x,), lambda x: (x.std(ddof=1), x.mean()), name=f"{dtype} all axes")
        yield by_formula("ReduceMeanWithCast", (x, [1]), lambda x, _: x.mean(1), name=dtype)
    yield Case("ReduceMeanD", (_X,), np.asarray(_X.mean()), {"axes": []}, name="empty axes: all")
    for op, place in (("ArgMaxD", np.argmax), ("ArgMinD", np.argmin)):
        for axis in (1, -1):
            for kind in ("float32", "float16"):
                x = _X.astype(kind)
                yield Case(op, (x,), place(x, axis).astype(np.int32), {"dimension": axis}, name=f"{kind} axis {axis}")
    yield by_formula("ReduceLogSum", (np.abs(_X), []), lambda x, _: np.log(x.sum()), name="empty axes: all")
    yield Case("EuclideanNorm", (_i(3, 4, dtype="int32"), [0]), np.array(5, np.int32), name="int32")
    whole = _i(1, 2, 4, dtype="int32")
    yield Case("ReduceMeanWithCast", (whole, [0]), np.array(7 / 3, np.float32), {"dtype": 0}, name="cast comes first")
    yield Case("ReduceMeanWithCast", (_X, []), _X.astype(np.float64), {"dtype": 11}, name="empty axes reduce nothing")
    everything = {"dtype": 0, "noop_with_empty_axes": False, "keep_dims": True}
    yield by_formula(
        "ReduceMeanWithCast", (_X, []), lambda x, _: x.mean(keepdims=True), attrs=everything, name="all axes"
    )


def _more_shapes() -> Iterator[Case]:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for kind in ("float32", "float16", "int32"):
        data = x.astype(kind)
        yield Case("Pad", (data, [[1, 0], [0, 2]]), np.pad(data, ((1, 0), (0, 2))), name=kind)
        value = np.array(7, kind)
        want = np.pad(data, ((1, 0), (0, 2)), constant_values=7)
        yield Case("PadV2", (data, [[1, 0], [0, 2]], value), want, name=kind)
    for diagonal in (0, 1, -2):
        yield Case(
            "DiagV2", (floats(1, 2),), np.diag(floats(1, 2), diagonal), {"diagonal": diagonal}, name=f"to {diagonal}"
        )
        yield Case("DiagV2", (x,), np.diag(x, diagonal), {"diagonal": diagonal}, name=f"from {diagonal}")
    yield Case("Expand", (x, [2, 2, 3]), np.broadcast_to(x, (2, 2, 3)), name="a new dim")
    yield Case("GetShape", ((_X, x),), _i(2, 3, 4, 2, 3, dtype="int32"))
    yield Case("ShapeN", ((_X, x),), (_i(2, 3, 4, dtype="int32"), _i(2, 3, dtype="int32")), keywords={"size_of_y": 2})
    yield Case(
        "ShapeN", ((np.array(1.0, np.float32), x),), (_i(), _i(2, 3)), {"dtype": _INT64}, "int64", {"size_of_y": 2}
    )
    for mode in ("REFLECT", "SYMMETRIC"):
        pads = ((1, 1), (1, 2))
        how: Any = mode.lower()
        source = np.pad(np.arange(6).reshape(2, 3), pads, how)
        grad = sample(source.shape, -1, 1)
        want = np.bincount(source.reshape(-1), grad.reshape(-1), 6).reshape(2, 3).astype(np.float32)
        yield Case("MirrorPadGrad", (grad, [list(p) for p in pads]), want, {"mode": mode}, name=mode)
    channels = np.arange(12, dtype=np.float32).reshape(1, 6, 2)
    order = [0, 3, 1, 4, 2, 5]
    for dtype in ("float32", "int32"):
        shuffled = channels.astype(dtype)
        yield Case("ShuffleChannel", (shuffled,), shuffled[:, order], {"group": 2}, name=dtype)
    yield Case("ShuffleChannel", (channels,), channels, name="one group")


def _creations() -> Iterator[Case]:
    yield Case("Shape", (_X,), _i(2, 3, 4, dtype="int32"), name="int32 by default")
    yield Case("Shape", (_X,), _i(2, 3, 4), {"dtype": _INT64})
    yield Case("Shape", (np.array(1.0, np.float32),), np.zeros(0, np.int32), name="rank 0")
    yield Case("Size", (_X,), np.array(24, np.int32))
    yield Case("Rank", (_X,), np.array(3, np.int32))
    yield Case("Fill", ([2, 3], np.array(2.5, np.float32)), np.full((2, 3), 2.5, np.float32))
    yield Case("Fill", ([], np.array(2.5, np.float32)), np.array(2.5, np.float32), name="rank 0")
    yield Case("ZerosLike", (floats(float("nan"), 1),), floats(0, 0))
    yield Case("OnesLike", (_X,), np.ones_like(_X))
    yield Case(
        "Eye",
        (),
        np.broadcast_to(np.eye(2, 3, dtype=np.float32), (2, 2, 3)),
        {"num_rows": 2, "num_columns": 3, "batch_shape": [2]},
    )
    for start, limit, delta in ((0, 5, 1), (2, 9, 3), (5, 0, -2), (3, 3, 1)):
        ends = tuple(np.array(v, np.int64) for v in (start, limit, delta))
        yield Case("Range", ends, np.arange(start, limit, delta, dtype=np.int64), name=f"{start} {limit} {delta}")
    yield Case(
        "Range", tuple(np.array(v, np.float32) for v in (0.0, 1.0, 0.25)), floats(0, 0.25, 0.5, 0.75), name="floats"
    )
    yield Case("LinSpace", (floats(0.0), floats(1.0), np.array([5], np.int32)), np.linspace(0, 1, 5, dtype=np.float32))
    yield Case("LinSpace", (floats(3.0), floats(1.0), np.array([1], np.int32)), floats(3.0), name="one")
    one_hot = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 1]], np.float32)
    args = (np.array([1, -1, 2], np.int32), 3, np.array(1, np.float32), np.array(0, np.float32))
    yield Case("OneHot", (args[0], np.array(3, np.int32), *args[2:]), one_hot)
    yield Case("OneHot", (args[0], np.array(3, np.int32), *args[2:]), one_hot.T, {"axis": 0}, name="axis 0")
    yield Case("TensorMove", (_X,), _X)
    yield Case("Identity", (_X,), _X)


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _reductions()
    yield from _moves()
    yield from _slices()
    yield from _pads()
    yield from _more_reductions()
    yield from _more_shapes()
    yield from _creations()
