"""Cases of normalisation: batch, layer, group and instance, norms of vectors, and the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case, by_formula
from ge_runtime.conformance.elementwise_cases import floats, sample

_DTYPES = ("float32", "float16")
_EPS = 1e-3


def _f32(*arrays: Any) -> tuple[Array, ...]:
    """Statistics, which are float32 whatever the data is."""
    return tuple(np.asarray(a, np.float32) for a in arrays)


def _others(x: Any, channel: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != channel)


def _view(v: Any, x: Any, channel: int) -> Any:
    return v.reshape([-1 if d == channel else 1 for d in range(x.ndim)])


def _batch_norm(x: Any, scale: Any, offset: Any, mean: Any, var: Any, channel: int = 1) -> Any:
    m, v, s, o = (_view(t, x, channel) for t in (mean, var, scale, offset))
    return (x - m) / np.sqrt(v + _EPS) * s + o


def _vectors(count: int) -> tuple[Array, ...]:
    """scale, offset, mean, variance."""
    return tuple(sample((count, 4), 0.5, 2)[:, k].copy() for k in range(4))


# Prefix of the operator, shape of its data.
_BATCHES = (("BN", (2, 3, 4, 2)), ("BN3D", (2, 3, 2, 2, 2)))


def _batch_parts() -> Iterator[Case]:
    """The halves of batch normalisation: sums, updates, gradients."""
    for prefix, shape in _BATCHES:
        for dtype in _DTYPES:
            x, dy = (sample((*shape, 2), -2, 2, dtype)[..., k] for k in range(2))
            scale, offset, mean, var = _vectors(3)
            axes, n = _others(x, 1), x.size // 3
            sums, squares = (np.float32((x.astype(float) ** p).sum(axes)) for p in (1, 2))
            batch, biased = sums / n, squares / n - (sums / n) ** 2
            unbiased = biased * n / (n - 1)
            yield by_formula(
                f"{prefix}TrainingReduce", (x,), lambda x, axes=axes: _f32(x.sum(axes), (x * x).sum(axes)), name=dtype
            )
            kept = _f32(0.8 * mean + 0.2 * batch, 0.8 * var + 0.2 * unbiased, batch, biased)

            def normalised(x: Any, *_: Any, s: Any = scale, o: Any = offset, m: Any = batch, v: Any = biased) -> Any:
                return _batch_norm(x, s, o, m, v)

            yield by_formula(
                f"{prefix}TrainingUpdate",
                (x, sums, squares, scale, offset, mean, var),
                lambda *v, y=normalised, kept=kept: (y(*v), *kept),
                attrs={"factor": 0.2, "epsilon": _EPS},
                name=dtype,
                tolerance=1e-4,
            )
            if prefix == "BN":
                summed = (x, sums, squares, scale, offset)
                for op, more in (
                    ("BNTrainingUpdateV2", _f32(batch, biased)),
                    ("BNTrainingUpdateV3", _f32(batch, unbiased, batch, biased)),
                ):
                    yield by_formula(
                        op,
                        summed,
                        lambda *v, y=normalised, more=more: (y(*v), *more),
                        attrs={"epsilon": _EPS},
                        name=dtype,
                        tolerance=1e-4,
                    )
                yield by_formula(
                    "BNInferGrad",
                    (dy, scale, var),
                    lambda g, s, v: g * _view(s / np.sqrt(v + _EPS), g, 1),
                    attrs={"epsilon": _EPS},
                    name=dtype,
                )

            def gradients(dy: Any, x: Any, mean: Any, var: Any, axes: Any = axes) -> Any:
                xhat = (x - _view(mean, x, 1)) / np.sqrt(_view(var, x, 1) + _EPS)
                return (dy * xhat).sum(axes), dy.sum(axes)

            attrs: dict[str, Any] = {"epsilon": _EPS}
            yield by_formula(
                f"{prefix}TrainingUpdateGrad",
                (dy, x, batch, biased),
                lambda *v, g=gradients: _f32(*g(*v)),
                attrs=attrs,
                name=dtype,
                tolerance=1e-4,
            )
            whole = tuple(v.astype(float) for v in (dy, x, batch, biased))
            dscale, doffset = _f32(*gradients(*whole))

            def back(dy: Any, x: Any, ds: Any, do: Any, s: Any, m: Any, v: Any, n: int = n) -> Any:
                root = np.sqrt(_view(v, x, 1) + _EPS)
                xhat = (x - _view(m, x, 1)) / root
                return _view(s, x, 1) / root * (dy - _view(do, x, 1) / n - xhat * _view(ds, x, 1) / n)

            yield by_formula(
                f"{prefix}TrainingReduceGrad",
                (dy, x, dscale, doffset, scale, batch, biased),
                back,
                attrs=attrs,
                name=dtype,
                tolerance=1e-4,
            )


def _batch_whole() -> Iterator[Case]:
    for layout, shape, channel in (("NCDHW", (2, 3, 2, 2, 2), 1), ("NDHWC", (2, 2, 2, 2, 3), 4)):
        for dtype in _DTYPES:
            x = sample(shape, -2, 2, dtype)
            scale, offset, mean, var = _vectors(3)
            axes, n = _others(x, channel), x.size // 3
            attrs: dict[str, Any] = {"epsilon": _EPS}
            attrs = attrs if layout == "NCDHW" else {**attrs, "data_format": layout}

            def training(x: Any, s: Any, o: Any, axes: Any = axes, n: int = n, c: int = channel) -> Any:
                m, v = x.mean(axes), x.var(axes)
                return _batch_norm(x, s, o, m, v, c), *_f32(m, v * n / (n - 1), m, v)

            def inference(x: Any, s: Any, o: Any, m: Any, v: Any, c: int = channel) -> Any:
                return _batch_norm(x, s, o, m, v, c), *_f32(m, v, m, v)

            name = f"{dtype} {layout}"
            yield by_formula("BatchNorm3D", (x, scale, offset), training, attrs=attrs, name=name)
            yield by_formula(
                "BatchNorm3D",
                (x, scale, offset, mean, var),
                inference,
                attrs={**attrs, "is_training": False},
                name=f"{name} inference",
            )
    yield from _batch_gradients()


def _batch_gradients() -> Iterator[Case]:
    for layout, shape, channel in (("NHWC", (2, 2, 4, 3), 3), ("NCHW", (2, 3, 2, 4), 1)):
        for dtype in _DTYPES:
            x, dy = (sample((*shape, 2), -2, 2, dtype)[..., k] for k in range(2))
            scale, axes, n = _vectors(3)[0], _others(x, channel), x.size // 3
            mean, var = (np.float32(v) for v in (x.astype(float).mean(axes), x.astype(float).var(axes)))

            def back(
                dy: Any, x: Any, s: Any, m: Any, v: Any, train: bool = True, a: Any = axes, n: int = n, c: int = channel
            ) -> Any:
                root = np.sqrt(_view(v, x, c) + _EPS)
                xhat = (x - _view(m, x, c)) / root
                ds, do = (dy * xhat).sum(a), dy.sum(a)
                centred = dy - _view(do, x, c) / n - xhat * _view(ds, x, c) / n if train else dy
                return _view(s, x, c) / root * centred, *_f32(ds, do, 0 * s, 0 * s)

            for train in (True, False):
                yield by_formula(
                    "BatchNormGrad",
                    (dy, x, scale, mean, var),
                    lambda *v, f=back, t=train: f(*v, t),
                    attrs={"epsilon": _EPS, "data_format": layout, "is_training": train},
                    name=f"{dtype} {layout} training={train}",
                    tolerance=1e-4,
                )


def _across_devices() -> Iterator[Case]:
    for dtype in _DTYPES:
        a, b, c, d = (sample((3, 4), 0.5, 2, dtype)[:, k].copy() for k in range(4))
        yield by_formula(
            "SyncBNTrainingUpdate", (a, b), lambda m, r: 0.3 * m + 0.7 * r, attrs={"momentum": 0.3}, name=dtype
        )
        yield by_formula(
            "SyncBatchNormBackwardReduce",
            (a, b, c, d),
            lambda dy, dyx, m, r: (dyx - dy * m, (dyx - dy * m) * r),
            name=dtype,
        )
        sums, counts = sample((2, 3), 2, 8, dtype), np.array([5, 3], np.int32)
        squares = (sums.astype(float) ** 2 + 8).astype(dtype)

        def gathered(s: Any, q: Any, n: Any, mean: Any, var: Any) -> Any:
            total = n.sum()
            m = s.sum(0) / total
            v = q.sum(0) / total - m * m
            kept = 0.8 * mean + 0.2 * m, 0.8 * var + 0.2 * v * total / (total - 1)
            return m, 1 / np.sqrt(v + _EPS), *kept

        yield by_formula(
            "SyncBatchNormGatherStats",
            (sums, squares, counts, a, b),
            gathered,
            attrs={"momentum": 0.2, "eps": _EPS},
            name=dtype,
        )
    seven = tuple(sample((2, 3, 7), 0.5, 2)[..., k] for k in range(7))
    yield by_formula(
        "SyncBatchNormBackwardElemt",
        seven,
        lambda dy, x, m, r, w, mdy, mdx: ((dy - mdy) - (x - m) * r * r * mdx) * r * w,
    )


def _layers() -> Iterator[Case]:
    x, dy = (sample((2, 3, 4, 2), -2, 2)[..., k] for k in range(2))
    for axis in (1, -1, 0):
        begin = axis % 3
        gamma, beta = (sample((*x.shape[begin:], 2), 0.5, 2)[..., k] for k in range(2))
        over = tuple(range(begin, 3))

        def forward(x: Any, g: Any, b: Any, over: Any = over) -> Any:
            mean, var = x.mean(over, keepdims=True), x.var(over, keepdims=True)
            return (x - mean) / np.sqrt(var + _EPS) * g + b, mean, 1 / np.sqrt(var + _EPS)

        attrs: dict[str, Any] = {"begin_norm_axis": axis, "begin_params_axis": axis, "epsilon": _EPS}
        yield by_formula("LayerNormV3", (x, gamma, beta), forward, attrs=attrs, name=f"from axis {axis}")
    gamma = sample((4,), 0.5, 2)
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)

    def back(dy: Any, x: Any, var: Any, mean: Any, gamma: Any) -> Any:
        root = np.sqrt(var)
        xhat, g = (x - mean) / root, dy * gamma
        dx = (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)) / root
        return dx, (dy * xhat).sum((0, 1)), dy.sum((0, 1)), xhat

    fields: dict[str, Any] = {"tolerance": 1e-4}
    yield by_formula("LayerNormGrad", (dy, x, var, mean, gamma), lambda *v: back(*v)[:3], **fields)
    yield by_formula("LayerNormXBackpropV2", (dy, x, var, mean, gamma), lambda *v: back(*v)[::3], **fields)
    for dtype in _DTYPES:
        part = tuple(np.asarray(v, dtype) for v in (dy, x, var, mean))
        yield by_formula(
            "LayerNormXBackprop", (*part, gamma.astype(dtype)), lambda *v: back(*v)[0], name=dtype, **fields
        )
        yield by_formula(
            "LayerNormBetaGammaBackprop",
            part,
            lambda *v: back(v[0], v[1], v[2], v[3], 1.0)[1:3],
            attrs={"shape_gamma": [4]},
            name=dtype,
            tolerance=1e-4 if dtype == "float32" else 1e-2,
        )
    gamma, beta = (sample((4, 2), 0.5, 2)[:, k].copy() for k in range(2))
    for bias in (None, beta + 1):

        def added(a: Any, b: Any, g: Any, o: Any, bias: Any = None) -> Any:
            x = a + b + (0 if bias is None else bias)
            mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            return (x - mean) / np.sqrt(var + _EPS) * g + o, mean, 1 / np.sqrt(var + _EPS), x

        operands = (x, dy, gamma, beta) if bias is None else (x, dy, gamma, beta, bias)
        attrs = {"epsilon": _EPS, "additional_output": True}
        yield by_formula("InplaceAddLayerNorm", operands, added, attrs=attrs, name=f"{len(operands)} operands")


def _groups_and_instances() -> Iterator[Case]:
    for dtype in _DTYPES:
        x = sample((2, 4, 3, 2), -2, 2, dtype)
        gamma, beta = (sample((4, 2), 0.5, 2, dtype)[:, k].copy() for k in range(2))

        def grouped(x: Any, g: Any, b: Any) -> Any:
            parts = x.reshape(2, 2, -1)
            hat = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + _EPS)
            return np.maximum(hat.reshape(x.shape) * _view(g, x, 1) + _view(b, x, 1), 0)

        attrs: dict[str, Any] = {"num_groups": 2, "eps": _EPS}
        yield by_formula("GroupNormRelu", (x, gamma, beta), grouped, attrs=attrs, name=dtype)
        for layout, shape, channel in (("NCHW", (2, 4, 3, 2), 1), ("NDHWC", (2, 2, 3, 1, 4), 4)):
            data = sample(shape, -2, 2, dtype)
            over = tuple(d for d in range(1, data.ndim) if d != channel)

            def each(x: Any, g: Any, b: Any, over: Any = over, c: int = channel) -> Any:
                mean, var = x.mean(over, keepdims=True), x.var(over, keepdims=True)
                return (x - mean) / np.sqrt(var + _EPS) * _view(g, x, c) + _view(b, x, c), mean, var

            attrs = {"data_format": layout, "epsilon": _EPS}
            yield by_formula("InstanceNorm", (data, gamma, beta), each, attrs=attrs, name=f"{dtype} {layout}")
        weights = tuple(v.astype(np.float32) for v in (gamma, beta))

        def trained(x: Any, g: Any = None, b: Any = None) -> Any:
            mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
            y = (x - mean) / np.sqrt(var + _EPS)
            y = y if g is None else y * _view(g, x, 1) + _view(b, x, 1)
            return y, *_f32(mean, var)

        yield by_formula("InstanceNormV2", (x, *weights), trained, attrs={"epsilon": _EPS}, name=f"{dtype} training")
        yield by_formula("InstanceNormV2", (x,), trained, attrs={"epsilon": _EPS}, name=f"{dtype} no weights")
        kept = tuple(sample((2, 4, 1, 1, 2), 0.5, 2)[..., k] for k in range(2))

        def inferred(x: Any, g: Any, b: Any, mean: Any, var: Any) -> Any:
            y = (x - mean) / np.sqrt(var + _EPS) * _view(g, x, 1) + _view(b, x, 1)
            return y, *_f32(x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True))

        attrs = {"epsilon": _EPS, "is_training": False}
        yield by_formula("InstanceNormV2", (x, *weights, *kept), inferred, attrs=attrs, name=f"{dtype} inference")


def _vector_norms() -> Iterator[Case]:
    x = sample((2, 3, 4), -2, 2)
    x[0, 0] = 1e-4
    for axes in ([], [1], [-1, 0]):
        over = tuple(axes) or None
        for p in (1, 2, 3, 0):

            def norm(x: Any, p: int = p, over: Any = over) -> Any:
                if p == 0:
                    return np.maximum((x != 0).sum(over, keepdims=True).astype(float), 1e-2)
                return np.maximum((np.abs(x) ** p).sum(over, keepdims=True) ** (1 / p), 1e-2)

            attrs: dict[str, Any] = {"p": p, "axes": axes, "keepdim": True, "epsilon": 1e-2}
            if p == 2 or axes == [1]:
                yield by_formula("LpNorm", (x,), norm, attrs=attrs, name=f"p={p} over {axes}")
        for dtype in _DTYPES:
            yield by_formula(
                "L2Normalize",
                (x.astype(dtype),),
                lambda x, over=over: x / np.maximum(np.sqrt((x * x).sum(over, keepdims=True)), 1e-2),
                attrs={"axis": axes, "eps": 1e-2},
                name=f"{dtype} over {axes}",
            )
    yield by_formula("LpNorm", (floats(3, 4),), lambda x: np.array(5.0), name="defaults")


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _batch_parts()
    yield from _batch_whole()
    yield from _across_devices()
    yield from _layers()
    yield from _groups_and_instances()
    yield from _vector_norms()
