"""Cases of convolution, pooling and resizing, by their sums over windows; gradients are the transposed sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case, by_formula
from ge_runtime.conformance.elementwise_cases import sample

Ints = Sequence[int]


def _transposed(linear: Callable[[Array], Array], shape: Ints, grad: Any) -> Any:
    """What a linear function of an array of ``shape`` makes of a gradient of its result: its matrix, transposed."""
    size = int(np.prod(shape))
    rows = np.stack([linear(unit.reshape(shape)).reshape(-1) for unit in np.eye(size)])
    return (rows @ np.asarray(grad, float).reshape(-1)).reshape(shape)


def _first(x: Any, layout: str) -> Any:
    return np.moveaxis(x, -1, 1) if layout.endswith("C") else x


def _as(x: Any, layout: str) -> Any:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1) if layout.endswith("C") else x)


def _places(out: Ints) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, out))


def _steps(at: Ints, size: Ints, stride: Ints, dilation: Ints) -> tuple[slice, ...]:
    return tuple(slice(a * s, a * s + d * (k - 1) + 1, d) for a, k, s, d in zip(at, size, stride, dilation))


def _pairs(pads: Ints) -> list[tuple[int, int]]:
    return list(zip(pads[::2], pads[1::2]))


# -- convolution ------------------------------------------------------------------------------------------------------


def convolution(x: Any, w: Any, stride: Ints, pads: Ints, dilation: Ints, groups: int) -> Any:
    """Channels first: x (N, C, ..), w (O, C / groups, ..)."""
    x = np.pad(x.astype(float), [(0, 0), (0, 0), *_pairs(pads)])
    size = w.shape[2:]
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], size, stride, dilation)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    for group in range(groups):
        taken = np.arange(w.shape[1]) + group * w.shape[1]
        given = np.arange(w.shape[0] // groups) + group * (w.shape[0] // groups)
        for at in _places(out):
            where = (slice(None), slice(None), *_steps(at, size, stride, dilation))
            place = (slice(None), given, *at)
            window = x[where][:, taken]
            y[place] = np.tensordot(window, w[given], (range(1, x.ndim), range(1, x.ndim)))
    return y


# Name, spatial sizes, filter, stride, pads, dilation, groups.
_CONVOLUTIONS = (
    ("plain", (4, 5), (2, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ("stride, pads", (5, 4), (3, 2), (2, 1), (1, 1, 0, 1), (1, 1), 1),
    ("dilation, groups", (5, 5), (2, 2), (1, 2), (1, 1, 1, 1), (2, 1), 2),
    ("volumes", (3, 3, 4), (2, 2, 2), (1, 1, 2), (0, 1, 1, 0, 0, 0), (1, 1, 1), 1),
)


def _list(values: Ints, layout: str) -> list[int]:
    return [1, *values, 1] if layout.endswith("C") else [1, 1, *values]


def _filter(w: Any, layout: str) -> Any:
    return np.ascontiguousarray(np.moveaxis(w, (0, 1), (-1, -2)) if layout.endswith("C") else w)


def _convolutions() -> Iterator[Case]:
    for (name, extent, size, stride, pads, dilation, groups), last in itertools.product(_CONVOLUTIONS, (False, True)):
        rank = len(extent)
        layout = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[rank][last]
        form = (stride, pads, dilation, groups)
        attrs: dict[str, Any] = {
            "strides": _list(stride, layout),
            "pads": list(pads),
            "dilations": _list(dilation, layout),
            "groups": groups,
            "data_format": layout,
        }
        shape, filters = (2, 2 * groups, *extent), (2 * groups, 2, *size)
        w = sample(filters, -1, 1, "float16")
        out = convolution(np.zeros(shape), w, *form).shape
        grad = _as(sample(out, -1, 1, "float16"), layout)
        outer = [shape[0], *extent, shape[1]] if last else list(shape)

        def to_input(_: Any, w: Any, dy: Any, s: Any = shape, f: Any = form, la: str = layout) -> Any:
            first = np.moveaxis(w, (-1, -2), (0, 1)) if la.endswith("C") else w
            return _as(_transposed(lambda v: convolution(v, first, *f), s, _first(dy, la)), la)

        fields: dict[str, Any] = {"attrs": attrs, "name": f"{name} {layout}", "tolerance": 1e-3}
        yield by_formula(f"Conv{rank}DBackpropInput", (outer, _filter(w, layout), grad), to_input, **fields)
        yield by_formula(
            f"Conv{rank}DTranspose",
            (outer, grad, _filter(w, layout)),
            lambda s, dy, w, f=to_input: f(s, w, dy),
            **fields,
        )
        x = _as(sample(shape, -1, 1, "float16"), layout)

        def to_filter(x: Any, _: Any, dy: Any, s: Any = filters, f: Any = form, la: str = layout) -> Any:
            first, grad = _first(x, la), _first(dy, la)
            dw = _transposed(lambda v: convolution(first, v, *f), s, grad)
            return _filter(dw, la).astype(np.float32)

        wanted = [*size, filters[1], filters[0]] if last else list(filters)
        yield by_formula(f"Conv{rank}DBackpropFilter", (x, wanted, grad), to_filter, **fields)
    yield from _depthwise()
    yield from _quantised()


def _depthwise() -> Iterator[Case]:
    """NHWC filters are (Kh, Kw, C, multiplier), NCHW ones (C * multiplier, 1, Kh, Kw)."""
    x, w = sample((1, 2, 4, 5), -1, 1, "float16"), sample((4, 1, 2, 3), -1, 1, "float16")
    for layout in ("NCHW", "NHWC"):
        form = ((2, 1), (1, 0, 1, 1), (1, 2), 2)
        attrs: dict[str, Any] = {
            "strides": _list(form[0], layout),
            "pads": list(form[1]),
            "dilations": _list(form[2], layout),
        }
        filters = w if layout == "NCHW" else np.ascontiguousarray(w.reshape(2, 2, 2, 3).transpose(2, 3, 0, 1))
        want = convolution(x, w.astype(float), *form)
        bias = sample((4,), -1, 1, "float16")
        for added in (None, bias):
            y = want if added is None else want + added.astype(float).reshape(1, -1, 1, 1)
            operands = (_as(x, layout), filters) if added is None else (_as(x, layout), filters, added)
            yield Case(
                "DepthwiseConv2D",
                operands,
                _as(y, layout).astype(np.float16),
                {**attrs, "data_format": layout},
                name=f"{layout} {len(operands)} operands",
            )


def _quantised() -> Iterator[Case]:
    x, w = sample((2, 2, 4, 4), -9, 9, "int8"), sample((3, 2, 2, 2), -9, 9, "int8")
    scale = np.array([0.5, 0.25, 2], np.float32)
    bits, bias = scale.view(np.uint32).astype(np.uint64), np.array([3, -4, 5], np.int32)
    form = ((1, 2), (1, 0, 0, 1), (1, 1), 1)
    for layout, kind in (("NCHW", np.int64), ("NHWC", np.uint64)):
        for added in (None, bias):
            y = convolution(x, w.astype(float), *form) + (0 if added is None else added.reshape(1, -1, 1, 1))
            operands = (_as(x, layout), _filter(w, layout), bits.astype(kind))
            attrs: dict[str, Any] = {
                "dtype": 1,
                "strides": _list(form[0], layout),
                "pads": list(form[1]),
                "data_format": layout,
            }
            yield Case(
                "QuantConv2D",
                operands if added is None else (*operands, added),
                _as(y * scale.reshape(1, -1, 1, 1), layout).astype(np.float16),
                attrs,
                name=f"{layout} {'no ' if added is None else ''}bias",
            )


# -- pooling ----------------------------------------------------------------------------------------------------------


def _same(extent: Ints, size: Ints, stride: Ints) -> list[int]:
    """Padding of SAME: ceil(n / stride) windows, the odd element of padding at the end."""
    pads = []
    for n, k, s in zip(extent, size, stride):
        total = max((-(-n // s) - 1) * s + k - n, 0)
        pads += [total // 2, total - total // 2]
    return pads


def pooled(x: Any, size: Ints, stride: Ints, pads: Ints, kind: str, ceil: bool = False, dilation: Ints = ()) -> Any:
    """Channels first; ``kind`` max, mean (of the data in a window) or padded (of data and padding).

    With ``ceil`` a last window that starts in the padding at the end is left out.
    """
    dilation = dilation or [1] * len(size)
    extent, border = x.shape[2:], _pairs(pads)
    out = []
    for n, k, s, d, (b, e) in zip(extent, size, stride, dilation, border):
        free = n + b + e - d * (k - 1) - 1
        count = (-(-free // s) if ceil else free // s) + 1
        out.append(count - 1 if ceil and (count - 1) * s >= n + b else count)
    reach = [
        (b, max(e, (o - 1) * s + d * (k - 1) + 1 - n - b))
        for n, k, s, d, (b, e), o in zip(extent, size, stride, dilation, border, out)
    ]
    data = np.pad(x.astype(float), [(0, 0), (0, 0), *reach], constant_values=np.nan)
    counted = np.pad(np.ones(extent), border, constant_values=float(kind == "padded"))
    counted = np.pad(counted, [(0, r[1] - e) for r, (_, e) in zip(reach, border)])
    y = np.zeros((*x.shape[:2], *out))
    for at in _places(out):
        where = _steps(at, size, stride, dilation)
        each: Any = (slice(None), slice(None), *where)
        place: Any = (slice(None), slice(None), *at)
        window = data[each].reshape(*x.shape[:2], -1)
        if kind == "max":
            y[place] = np.nanmax(window, -1)
        else:
            y[place] = np.nansum(window, -1) / counted[where].sum()
    return y


def _max_grad(x: Any, dy: Any, size: Ints, stride: Ints, pads: Ints, ceil: bool = False) -> Any:
    """The gradient of a window goes to its first largest element."""
    order = np.arange(x.size, dtype=float).reshape(x.shape)
    tie = x.astype(float) - order * 1e-9  # equal elements: the first one
    y, place = pooled(tie, size, stride, pads, "max", ceil), np.zeros(x.shape)
    for index in np.ndindex(*y.shape):
        place[tuple(np.argwhere(tie == y[index])[0])] += float(dy[index])
    return place


# Name, spatial sizes, window, stride, padding.
_PADDED = (
    ("even", (4, 4), (2, 2), (2, 2), "VALID"),
    ("odd", (5, 4), (3, 2), (2, 2), "SAME"),
    ("overlapping", (4, 5), (3, 2), (1, 2), "VALID"),
)


def _pools_2d() -> Iterator[Case]:
    for (name, extent, size, stride, padding), layout in itertools.product(_PADDED, ("NHWC", "NCHW")):
        for dtype in ("float32", "float16"):
            x = _as(sample((2, 3, *extent), -2, 2, dtype), layout)
            pads = _same(extent, size, stride) if padding == "SAME" else [0] * 4
            attrs: dict[str, Any] = {"padding": padding, "data_format": layout}
            sizes = {"ksize": _list(size, layout), "strides": _list(stride, layout)}
            label = f"{name} {layout} {dtype}"

            def largest(x: Any, *_: Any, f: Any = (size, stride, pads), la: str = layout) -> Any:
                return _as(pooled(_first(x, la), f[0], f[1], f[2], "max"), la)

            def mean(x: Any, f: Any = (size, stride, pads), la: str = layout) -> Any:
                return _as(pooled(_first(x, la), f[0], f[1], f[2], "mean"), la)

            yield by_formula("MaxPool", (x,), largest, attrs={**attrs, **sizes}, name=label)
            yield by_formula("AvgPool", (x,), mean, attrs={**attrs, **sizes}, name=label)
            if dtype == "float16":
                lists = (np.array(sizes["ksize"], np.int32), np.array(sizes["strides"], np.int32))
                yield by_formula("MaxPoolV2", (x, *lists), largest, attrs=attrs, name=label)
            y = largest(x).astype(dtype)
            dy = sample(y.shape, -1, 1, dtype)

            def to_largest(x: Any, y: Any, dy: Any, f: Any = (size, stride, pads), la: str = layout) -> Any:
                return _as(_max_grad(_first(x, la), _first(dy, la), *f), la)

            yield by_formula("MaxPoolGrad", (x, y, dy), to_largest, attrs={**attrs, **sizes}, name=label)

            def to_mean(
                _: Any, dy: Any, s: Any = (2, 3, *extent), f: Any = (size, stride, pads), la: str = layout
            ) -> Any:
                return _as(_transposed(lambda v: pooled(v, f[0], f[1], f[2], "mean"), s, _first(dy, la)), la)

            full = np.array(x.shape, np.int32)
            yield by_formula("AvgPoolGrad", (full, dy), to_mean, attrs={**attrs, **sizes}, name=label)
    yield from _calculated()


def _calculated() -> Iterator[Case]:
    for ceil, layout in itertools.product((False, True), ("NCHW", "NHWC")):
        size, stride, pads = (3, 2), (2, 2), (1, 0, 0, 1)
        x = sample((1, 2, 6, 5), -2, 2)
        y = pooled(x, size, stride, pads, "max", ceil).astype(np.float32)
        dy = sample(y.shape, -1, 1)
        attrs: dict[str, Any] = {"ksize": _list(size, layout), "strides": _list(stride, layout), "pads": list(pads)}
        want = _max_grad(x, dy, size, stride, pads, ceil).astype(np.float32)
        yield Case(
            "MaxPoolV3Grad",
            (_as(x, layout), _as(y, layout), _as(dy, layout)),
            _as(want, layout),
            {**attrs, "ceil_mode": ceil, "data_format": layout},
            name=f"{layout} ceil={ceil}",
        )
    x = sample((1, 2, 3, 3), -2, 2)
    y, dy = x.max((2, 3), keepdims=True), sample((1, 2, 1, 1), -1, 1)
    want = np.where(x == y, dy, 0).astype(np.float32)
    attrs = {"ksize": [1, 1, 1, 1], "strides": [1, 1, 1, 1], "global_pooling": True}
    yield Case("MaxPoolV3Grad", (x, y, dy), want, attrs, name="global")


def _pools_1d() -> Iterator[Case]:
    for (size, stride, pads), ceil, counted in itertools.product(
        ((2, 1, (0, 0)), (3, 2, (1, 1)), (3, 2, (0, 1))), (False, True), (False, True)
    ):
        for dtype in ("float32", "float16"):
            x = sample((2, 3, 1, 6), -2, 2, dtype)
            attrs: dict[str, Any] = {
                "ksize": size,
                "strides": stride,
                "pads": list(pads),
                "ceil_mode": ceil,
                "count_include_pad": counted,
            }
            kind = "padded" if counted else "mean"
            yield by_formula(
                "AvgPool1D",
                (x,),
                lambda x, f=((1, size), (1, stride), (0, 0, *pads), kind, ceil): pooled(x, *f),
                attrs=attrs,
                name=f"{size} {stride} {pads} ceil={ceil} {kind} {dtype}",
            )
    yield from _pools_3d()


def _pools_3d() -> Iterator[Case]:
    size, stride = (2, 2, 3), (1, 2, 2)
    for layout, dtype in itertools.product(("NDHWC", "NCDHW"), ("float32", "float16")):
        x = sample((1, 2, 3, 4, 5), -2, 2, dtype)
        sizes = {"ksize": _list(size, layout), "strides": _list(stride, layout), "data_format": layout}
        same = _same((3, 4, 5), size, stride)
        for padding, pads in (("VALID", [0] * 6), ("SAME", same), ("CALCULATED", [1, 1, 0, 1, 1, 1])):
            more = {"pads": pads} if padding == "CALCULATED" else {}
            name = f"{padding} {layout} {dtype}"
            yield by_formula(
                "MaxPool3D",
                (_as(x, layout),),
                lambda x, f=(size, stride, pads), la=layout: _as(pooled(_first(x, la), f[0], f[1], f[2], "max"), la),
                attrs={**sizes, "padding": padding, **more},
                name=name,
            )
            y = pooled(x, size, stride, pads, "max").astype(dtype)
            dy = sample(y.shape, -1, 1, dtype)
            yield Case(
                "MaxPool3DGrad",
                tuple(_as(v, layout) for v in (x, y, dy)),
                _as(_max_grad(x, dy, size, stride, pads), layout).astype(dtype),
                {**sizes, "padding": padding, "pads": pads},
                name=name,
            )
    x = sample((1, 2, 5, 4, 5), -2, 2)
    attrs: dict[str, Any] = {
        "ksize": [1, 1, *size],
        "strides": [1, 1, *stride],
        "padding": "CALCULATED",
        "pads": [0, 0, 0, 0, 1, 0],
    }
    spread = {**attrs, "dilation": [1, 1, 2, 1, 1], "ceil_mode": 1, "data_format": "NCDHW"}
    want = pooled(x, size, stride, (0, 0, 0, 0, 1, 0), "max", True, (2, 1, 1)).astype(np.float32)
    yield Case("MaxPool3D", (x,), want, spread, name="dilation, ceil")


def _adaptive() -> Iterator[Case]:
    def parts(n: int, out: int) -> list[slice]:
        return [slice(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]

    def means(x: Any, out: Any) -> Any:
        rows, columns = (parts(n, o) for n, o in zip(x.shape[-2:], out))
        return np.stack([np.stack([x[..., r, c].mean((-2, -1)) for c in columns], -1) for r in rows], -2)

    for dtype in ("float32", "float16"):
        x = sample((2, 3, 5, 4), -2, 2, dtype)
        for out in ([2, 3], [1, 1], [5, 4], [7, 2]):
            yield by_formula("AdaptiveAvgPool", (x, out), means, name=f"{dtype} {out}")
        yield by_formula("GlobalAveragePool", (x,), lambda x: x.mean((2, 3), keepdims=True), name=dtype)
    x = sample((1, 2, 2, 3, 2), -2, 2)
    yield by_formula("GlobalAveragePool", (x,), lambda x: x.mean((2, 3, 4), keepdims=True), name="volumes")


# -- resizing ---------------------------------------------------------------------------------------------------------


def _source(n: int, out: int, rule: str) -> Any:
    """Where each of ``out`` places lies on an axis of ``n``."""
    at = np.arange(out, dtype=float)
    if rule == "corners":
        return at * ((n - 1) / (out - 1) if out > 1 else 0)
    return (at + 0.5) * n / out - 0.5 if rule == "centres" else at * n / out


def _cubic(d: Any, a: float) -> Any:
    d = np.abs(d)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _weights(n: int, out: int, rule: str, kind: str) -> Any:
    """(out, n): linear clamps its place, cubic its neighbours.

    keys is TensorFlow's cubic at pixel centres: coefficient -1/2, neighbours outside left out of the weights' sum.
    """
    m, source = np.zeros((out, n)), _source(n, out, rule)
    source = np.clip(source, 0, n - 1) if kind == "linear" else source
    for row, at in enumerate(source):
        low = int(np.floor(at))
        for near in range(low - 1, low + 3):
            weight = (
                max(0.0, 1 - abs(at - near))
                if kind == "linear"
                else _cubic(at - near, -0.5 if kind == "keys" else -0.75)
            )
            if kind != "keys" or 0 <= near < n:
                m[row, min(max(near, 0), n - 1)] += weight
    return m / m.sum(1, keepdims=True)


def _resized(x: Any, size: Ints, rule: str, kind: str) -> Any:
    for axis, out in enumerate(size, x.ndim - len(size)):
        m = _weights(x.shape[axis], out, rule, kind)
        x = np.moveaxis(np.tensordot(m, x, (1, axis)), 0, axis)
    return np.asarray(x)


_RULES: dict[str, dict[str, bool]] = {
    "corners": {"align_corners": True},
    "centres": {"half_pixel_centers": True},
    "plain": {},
}


def _resizes() -> Iterator[Case]:
    for rule, attrs in _RULES.items():
        for size in ((3, 5), (7, 8), (4, 5)):
            x = sample((1, 2, 4, 5), -2, 2)
            kind = "keys" if rule == "centres" else "cubic"
            fields: dict[str, Any] = {"attrs": attrs, "name": f"{rule} {list(size)}", "tolerance": 1e-4}
            yield by_formula(
                "ResizeBicubic", (x, list(size)), lambda x, s, r=rule, k=kind: _resized(x, s, r, k), **fields
            )
            grads = sample((1, 2, *size), -1, 1)
            yield by_formula(
                "ResizeBicubicGrad",
                (grads, x),
                lambda g, x, s=size, r=rule, k=kind: _transposed(lambda v: _resized(v, s, r, k), x.shape, g),
                **fields,
            )
        for dtype in ("float32", "float16"):
            x = sample((1, 2, 2, 3, 3), -2, 2, dtype)
            yield by_formula(
                "ResizeTrilinear",
                (x, [3, 2, 5]),
                lambda x, s, r=rule: _resized(x, s, r, "linear"),
                attrs=attrs,
                name=f"{rule} {dtype}",
            )
    image = sample((1, 1, 2, 3), 0, 255, "uint8")
    yield Case("ResizeBicubic", (image, [2, 3]), image.astype(np.float32), name="uint8 to float32")
    yield Case("ResizeBicubic", (image, [2, 3]), image, {"dtype": 4}, name="uint8 to uint8")
    for align, out in itertools.product((False, True), (3, 7)):
        x, rule = sample((2, 3, 4), -2, 2), "corners" if align else "centres"
        attrs = {"align_corners": align}
        yield by_formula(
            "ResizeLinear",
            (x, [out]),
            lambda x, s, r=rule: _resized(x, s, r, "linear"),
            attrs=attrs,
            name=f"{rule} {out}",
        )
        yield by_formula(
            "ResizeLinearGrad",
            (sample((2, 3, out), -1, 1), x),
            lambda g, x, o=out, r=rule: _transposed(lambda v: _resized(v, (o,), r, "linear"), x.shape, g),
            attrs=attrs,
            name=f"{rule} {out}",
        )


_ONNX = {"half_pixel": "centres", "align_corners": "corners", "asymmetric": "plain"}


def _onnx_resizes() -> Iterator[Case]:
    for (rule, meaning), kind in itertools.product(_ONNX.items(), ("linear", "cubic")):
        attrs: dict[str, Any] = {"coordinate_transformation_mode": rule, "mode": kind}
        for dtype in ("float32", "float16"):
            x = sample((1, 2, 4, 5), -2, 2, dtype)
            fields: dict[str, Any] = {"name": f"{rule} {kind} {dtype}", "tolerance": 1e-4}
            yield by_formula(
                "ResizeD",
                (x,),
                lambda x, r=meaning, k=kind: _resized(x, (6, 3), r, k),
                attrs={**attrs, "sizes": [1, 2, 6, 3]},
                **fields,
            )
            yield by_formula(
                "ResizeGradD",
                (sample((1, 2, 6, 3), -1, 1, dtype),),
                lambda g, r=meaning, k=kind: _transposed(lambda v: _resized(v, (6, 3), r, k), (1, 2, 4, 5), g),
                attrs={**attrs, "original_size": [1, 2, 4, 5]},
                **fields,
            )
    x = sample((1, 2, 4, 5), -2, 2)
    rows, columns = [0, 0, 1, 2, 2, 3], [0, 1, 3]
    picked = x[:, :, rows][..., columns]
    attrs = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    yield Case("ResizeD", (x,), picked, {**attrs, "sizes": [1, 2, 6, 3]}, name="nearest")


def _grids() -> Iterator[Case]:
    for dtype, align in itertools.product(("float32", "float16"), (False, True)):

        def grid(theta: Any, size: Any, align: bool = align) -> Any:
            ends = [1 if align else 1 - 1 / n for n in size[2:]]
            lines = [np.linspace(-e, e, n) for e, n in zip(ends, size[2:])]
            mesh = np.meshgrid(*lines, indexing="ij")
            base = np.stack([*mesh[::-1], np.ones_like(mesh[0])], -1).reshape(-1, len(lines) + 1)
            return np.asarray(base @ theta.transpose(0, 2, 1))

        for size in ([2, 3, 3, 4], [2, 2, 2, 3, 2]):
            theta = sample((2, len(size) - 2, len(size) - 1), -1, 1, dtype)
            yield by_formula(
                "AffineGrid", (theta, size), grid, attrs={"align_corners": align}, name=f"{dtype} {size} {align}"
            )


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _convolutions()
    yield from _pools_2d()
    yield from _pools_1d()
    yield from _adaptive()
    yield from _resizes()
    yield from _onnx_resizes()
    yield from _grids()
