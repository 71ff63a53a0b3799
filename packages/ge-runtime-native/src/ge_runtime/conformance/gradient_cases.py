"""Cases of gradients of elementwise operators, and of losses with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case, by_formula
from ge_runtime.conformance.elementwise_cases import floats, sample

_SCALE, _SCALE_ALPHA = 1.0507009873554805, 1.0507009873554805 * 1.6732632423543772


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# Operator: gradient as a function of the operands in port order, range of the operand beside the incoming gradient,
# place of the incoming gradient.
UNARY: dict[str, tuple[Callable[[Any, Any], Any], float, float, int]] = {
    # the forward input first
    "AsinGrad": (lambda x, dy: dy / np.sqrt(1 - x * x), -0.9, 0.9, 1),
    "AcosGrad": (lambda x, dy: -dy / np.sqrt(1 - x * x), -0.9, 0.9, 1),
    # the forward output first
    "AsinhGrad": (lambda y, dy: dy / np.cosh(y), -2, 2, 1),
    "AcoshGrad": (lambda y, dy: dy / np.sinh(y), 0.3, 2, 1),
    "InvGrad": (lambda y, dy: -dy * y * y, -2, 2, 1),
    # the gradient first
    "EluGrad": (lambda dy, y: np.where(y < 0, dy * (y + 1), dy), -0.9, 2, 0),
    "SeluGrad": (lambda dy, y: np.where(y < 0, dy * (y + _SCALE_ALPHA), dy * _SCALE), -1.5, 2, 0),
    "Relu6Grad": (lambda dy, x: np.where((x > 0) & (x < 6), dy, 0), -4, 9, 0),
    "SoftplusGrad": (lambda dy, x: dy * _sigmoid(x), -5, 5, 0),
}


def _unary() -> Iterator[Case]:
    for op, (fn, low, high, place) in UNARY.items():
        for shape, dtype in (((2, 3), "float32"), ((2, 3), "float16"), ((), "float32"), ((0, 2), "float32")):
            operands = [sample((*shape, 2), low, high, dtype)[..., 0], sample((*shape, 2), -2, 2, dtype)[..., 1]]
            pair = tuple(np.asarray(v) for v in (operands if place else operands[::-1]))
            yield by_formula(op, pair, fn, name=f"{dtype}{list(shape)}")
    yield by_formula(
        "Relu6Grad", (floats(1, 2, 3, 4), floats(0, 6, -1, 3)), lambda g, x: floats(0, 0, 0, 4), name="borders"
    )
    rows = (np.array([3, -2], np.int32), np.array([2, 5], np.int32))
    yield Case("InvGrad", rows, np.array([-18, -20], np.int32), name="int32")
    gradients, mask = floats(1, 2, float("inf"), 4), np.array([1, 0, 0, 1], np.uint8)
    yield Case("ReluGradV2", (gradients, mask), floats(1, 0, 0, 4), name="a gradient that is not let through")
    half = np.array([[1, 2], [3, 4]], np.float16)
    yield Case("ReluGradV2", (half, np.array([[0, 1], [1, 0]], np.uint8)), np.array([[0, 2], [3, 0]], np.float16))


def _extrema() -> Iterator[Case]:
    for op, takes in (("MaximumGrad", np.greater_equal), ("MinimumGrad", np.less_equal)):
        for dtype in ("float32", "float16", "int32"):
            x1, x2 = sample((2, 3), -4, 4, dtype), sample((2, 3, 2), -4, 4, dtype)[..., 1]
            x1[0] = x2[0]  # equal elements: the first operand takes the gradient
            dy = sample((2, 3, 3), -4, 4, dtype)[..., 2]

            def formula(g: Any, a: Any, b: Any, takes: Any = takes) -> Any:
                return np.where(takes(a, b), g, 0).astype(g.dtype), np.where(takes(a, b), 0, g).astype(g.dtype)

            yield by_formula(op, (dy, x1, x2), formula, name=dtype)
        row = sample((3,), -4, 4)

        def reduced(g: Any, a: Any, b: Any, takes: Any = takes) -> Any:
            return np.where(takes(a, b), g, 0), np.where(takes(a, b), 0, g).sum(0)

        wide = sample((2, 3), -4, 4)
        yield by_formula(op, (wide + 1, wide, row), reduced, name="broadcast operand: summed")


def _reduced(loss: Any, reduction: str) -> Any:
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()


def _smooth(p: Any, t: Any, sigma: float) -> Any:
    d = np.abs(p - t)
    return np.where(d < sigma, 0.5 * d * d / sigma, d - 0.5 * sigma)


def _poisson(x: Any, t: Any, log_input: bool, full: bool, reduction: str) -> Any:
    loss = np.exp(x) - t * x if log_input else x - t * np.log(x + 1e-3)
    if full:
        above = np.maximum(t, 1)
        loss = loss + np.where(t > 1, above * np.log(above) - above + 0.5 * np.log(2 * math.pi * above), 0)
    return _reduced(loss, reduction)


def _cosine(a: Any, b: Any, target: Any, margin: float, reduction: str) -> Array:
    a, b = np.broadcast_arrays(a.astype(float), b.astype(float))
    cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) + 1e-12) / np.sqrt((b * b).sum(1) + 1e-12)
    loss = np.where(target == 1, 1 - cosine, np.where(target == -1, np.maximum(cosine - margin, 0), 0))
    return np.asarray(loss if reduction == "none" else _reduced(loss, reduction).reshape(1)).astype(np.float32)


def _losses() -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        p, t, dy = (sample((2, 5, 3), -2, 2, dtype)[..., k] for k in range(3))
        likely = np.abs(t)
        for reduction in ("none", "mean", "sum"):
            fields: dict[str, Any] = {"attrs": {"reduction": reduction}, "name": f"{dtype} {reduction}"}
            how = {"attrs": {**fields["attrs"], "p": 1}, "name": fields["name"]}
            yield by_formula("LpLoss", (p, t), lambda p, t, r=reduction: _reduced(np.abs(p - t), r), **how)
            yield by_formula("KLDiv", (p, likely), lambda x, t, r=reduction: _reduced(t * (np.log(t) - x), r), **fields)
            for log_input, full in ((True, False), (False, True)):
                attrs: dict[str, Any] = {"log_input": log_input, "full": full, "eps": 1e-3, "reduction": reduction}
                yield by_formula(
                    "PoissonNllLoss",
                    (p if log_input else np.abs(p), 2 * likely),
                    lambda x, t, form=(log_input, full, reduction): _poisson(x, t, *form),
                    attrs=attrs,
                    name=f"{dtype} {reduction} {log_input} {full}",
                )
        yield by_formula(
            "KLDiv",
            (p, likely),
            lambda x, t: (t * (np.log(t) - x)).sum() / len(x),
            attrs={"reduction": "batchmean"},
            name=f"{dtype} batchmean",
        )
        labels = (t > 0).astype(dtype)
        yield by_formula(
            "SigmoidCrossEntropyWithLogits",
            (3 * p, labels),
            lambda p, t: np.maximum(p, 0) - p * t + np.log1p(np.exp(-np.abs(p))),
            name=dtype,
        )
        yield by_formula(
            "SigmoidCrossEntropyWithLogitsGrad", (p, labels, dy), lambda p, t, g: (_sigmoid(p) - t) * g, name=dtype
        )
        for sigma in (1.0, 0.5):
            fields = {"attrs": {"sigma": sigma}, "name": f"{dtype} {sigma}"}
            yield by_formula("SmoothL1Loss", (p, t), lambda p, t, s=sigma: _smooth(p, t, s), **fields)
            yield by_formula(
                "SmoothL1LossGrad", (p, t, dy), lambda p, t, g, s=sigma: np.clip((p - t) / s, -1, 1) * g, **fields
            )
    yield by_formula(
        "KLDiv", (floats(1, 2), floats(0, 1)), lambda x, t: floats(0, -2), attrs={"reduction": "none"}, name="target 0"
    )


def _classes() -> Iterator[Case]:
    features = sample((3, 4), -3, 3)
    for kind in ("int32", "int64"):
        labels = np.array([2, 0, 3], kind)

        def formula(x: Any, y: Any) -> Any:
            share = np.exp(x) / np.exp(x).sum(1, keepdims=True)
            picked = np.arange(len(y))
            loss = -np.log(share[picked, y])
            share[picked, y] -= 1
            return loss, share

        for dtype in ("float32", "float16"):
            operands = (features.astype(dtype), labels)
            yield by_formula("SparseSoftmaxCrossEntropyWithLogits", operands, formula, name=f"{dtype} {kind}")
    a, b = sample((3, 4), -1, 1), sample((3, 4, 2), -1, 1)[..., 1]
    target = np.array([1, -1, 0], np.int32)
    for reduction in ("none", "mean", "sum"):
        fields: dict[str, Any] = {
            "attrs": {"margin": 0.1, "reduction": reduction},
            "name": f"{reduction}, a target of neither",
        }
        yield Case(
            "CosineEmbeddingLoss", (a, b, target), lambda a, b, t, r=reduction: _cosine(a, b, t, 0.1, r), **fields
        )
    grid, row = sample((2, 3, 4), -1, 1), sample((1, 3, 1), -1, 1)
    side = np.array([[1, -1, -1, 1]], np.float32)
    yield Case(
        "CosineEmbeddingLoss",
        (grid, row, side),
        lambda a, b, t: _cosine(a, b, t, 0.0, "none"),
        {"reduction": "none"},
        name="broadcast",
    )
    whole = (np.array([[1, 2], [3, -1]], np.int32), np.array([[2, 2], [1, 1]], np.int32), np.array([1, -1], np.int32))
    yield Case("CosineEmbeddingLoss", whole, lambda a, b, t: _cosine(a, b, t, 0.0, "mean"), name="int32")


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _unary()
    yield from _extrema()
    yield from _losses()
    yield from _classes()
