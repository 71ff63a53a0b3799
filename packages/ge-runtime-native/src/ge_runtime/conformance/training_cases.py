"""Cases of operators that keep or hand on values, of optimiser steps, and of quantisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ge_runtime.conformance.case import Array, Case, by_formula
from ge_runtime.conformance.elementwise_cases import floats, sample

_KINDS = ("float32", "float16", "int32", "int8")


def _n(value: float) -> Array:
    return np.array(value, np.float32)


def _state() -> Iterator[Case]:
    for kind in _KINDS:
        a, b = sample((3, 2), 1, 9, kind), sample((3, 2, 2), 1, 9, kind)[..., 1].copy()
        yield Case("AssignAdd", (a, b), a + b, name=kind)
        yield Case("AssignSub", (a, b), a - b, name=kind)
        yield Case("IdentityN", ((a, b),), (a, b), keywords={"size_of_y": 2}, name=kind)
        rows, part = np.array([2, 0], np.int32), b[:2]
        for op, fn in (("InplaceUpdate", lambda old, new: new), ("InplaceAdd", np.add), ("InplaceSub", np.subtract)):
            want = a.copy()
            want[rows] = fn(a[rows], part)
            yield Case(op, (a, rows, part), want, name=kind)
        for op in ("PreventGradient", "StopGradient", "TensorRedirect"):
            yield Case(op, (a,), a, name=kind)
    twice = np.array([1, 1], np.int32)
    yield Case("InplaceAdd", (floats(0, 1), twice, floats(2, 3)), floats(0, 6), name="equal rows accumulate")
    yield Case("StopGradient", (np.array(True),), np.array(True), name="rank 0")


def _optimisers() -> Iterator[Case]:
    var, m, v, g = (sample((2, 3, 4), 0.1, 2)[..., k].copy() for k in range(4))
    b1, b2, lr, eps = 0.9, 0.99, 0.1, 1e-3
    powers = (_n(b1**3), _n(b2**3), _n(lr), _n(b1), _n(b2), _n(eps))
    for nesterov in (False, True):

        def adam(var: Any, m: Any, v: Any, p1: Any, p2: Any, *rest: Any, nesterov: bool = nesterov) -> Any:
            lr, b1, b2, eps, g = rest
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            step = b1 * m + (1 - b1) * g if nesterov else m
            return var - lr * np.sqrt(1 - p2) / (1 - p1) * step / (np.sqrt(v) + eps)

        yield by_formula(
            "ApplyAdam", (var, m, v, *powers, g), adam, attrs={"use_nesterov": nesterov}, name=str(nesterov)
        )

        def momentum(var: Any, a: Any, lr: Any, g: Any, mu: Any, nesterov: bool = nesterov) -> Any:
            a = a * mu + g
            return var - lr * (g + a * mu if nesterov else a)

        operands = (var, m, _n(lr), g, _n(0.8))
        yield by_formula("ApplyMomentum", operands, momentum, attrs={"use_nesterov": nesterov}, name=str(nesterov))
    for maximize in (False, True):
        for top in (None, v + 0.5):

            def adam_w(
                var: Any, m: Any, v: Any, p1: Any, p2: Any, *rest: Any, maximize: bool = maximize, amsgrad: bool = False
            ) -> Any:
                lr, decay, b1, b2, eps, g, *top = rest
                g = -g if maximize else g
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                high = np.maximum(top[0], v) if top else v
                var = var * (1 - lr * decay)
                return var - lr / (1 - p1 * b1) * m / (np.sqrt(high / (1 - p2 * b2)) + eps), m, v

            numbers = (_n(b1**3), _n(b2**3), _n(lr), _n(0.05), _n(b1), _n(b2), _n(eps))
            given: tuple[Any, ...] = (var, m, v, *numbers, g) if top is None else (var, m, v, *numbers, g, top)
            attrs: dict[str, Any] = {"maximize": maximize, "amsgrad": top is not None}
            yield by_formula("ApplyAdamW", given, adam_w, attrs=attrs, name=f"maximize={maximize} {len(given)}")
    for kind in ("float32", "float16"):
        three = (var.astype(kind), np.array(0.25, kind), g.astype(kind))
        yield by_formula("ApplyGradientDescent", three, lambda var, alpha, delta: var - alpha * delta, name=kind)


def _quantisation() -> Iterator[Case]:
    codes = np.array([[-128, -3, 0], [5, 100, 127]], np.int8)
    for root in (False, True):
        scale = 0.5
        factor = scale * scale if root else scale
        attrs: dict[str, Any] = {"scale": scale, "offset": 3.0, "sqrt_mode": root}
        for kind, dtype in (("float32", 0), ("float16", 1)):
            want = ((codes.astype(float) + 3) * factor).astype(kind)
            yield Case("AscendAntiQuant", (codes,), want, {**attrs, "dtype": dtype}, name=f"{kind} sqrt={root}")
            x = np.array([-300, -2.6, -2.4, 0, 0.6, 3, 5, 300], kind)
            for mode, fn in (("Round", np.rint), ("Floor", np.floor), ("Ceil", np.ceil), ("Trunc", np.trunc)):
                want = np.clip(fn(x.astype(float) * factor + 3), -128, 127).astype(np.int8)
                yield Case("AscendQuant", (x,), want, {**attrs, "round_mode": mode}, name=f"{kind} {mode} sqrt={root}")
        sums = np.array([[-7, 100], [3, -9]], np.int32)
        steps = np.array([0.5, 0.25], np.float32)
        bits = steps.view(np.uint32).astype(np.uint64)
        for relu in (False, True):
            y = sums * steps.astype(float) ** (2 if root else 1)
            want = (np.maximum(y, 0) if relu else y).astype(np.float32)
            attrs = {"sqrt_mode": root, "relu_flag": relu}
            yield Case("AscendDequant", (sums, bits), want, attrs, name=f"bits of float32, sqrt={root} relu={relu}")
            half = {**attrs, "dtype": 1}
            yield Case(
                "AscendDequant",
                (sums, steps.astype(np.float16)),
                want.astype(np.float16),
                half,
                name=f"float16 {root} {relu}",
            )


def _caches() -> Iterator[Case]:
    for kind in ("float32", "float16", "int8"):
        key, cache = sample((3, 2, 4), 1, 9, kind), np.zeros((2, 2, 2, 4), kind)
        want = cache.copy()
        want[1, 1], want[0, 0], want[1, 0] = key
        for slots in ("int32", "int64"):
            yield Case("ScatterPaCache", (key, cache, np.array([3, 0, 2], slots)), want, name=f"{kind} {slots}")
    x, keep = sample((2, 4), -2, 2), np.array([[1, 0, 1, 1], [0, 1, 0, 1]])
    for kind in ("float32", "float16"):
        for mask in (np.uint8, np.bool_):
            yield by_formula(
                "DropOutDoMaskV3",
                (x.astype(kind), keep.astype(mask), np.array(0.5, kind)),
                lambda x, mask, p: np.where(mask, x / p, 0),
                name=f"{kind} {mask.__name__}",
            )
    var = np.zeros((2, 5, 3), np.int8)
    updates, scales = sample((2, 2, 3), -40, 40), floats(0.5, 1, 4)
    for zeros in (None, np.array([1, -2, 3], np.int32)):

        def placed(var: Any, at: Any, u: Any, s: Any, z: Any = None) -> Array:
            codes = np.clip(np.rint(u / s + (0 if z is None else z)), -128, 127)
            out: Array = var.copy()
            for batch, start in enumerate(at):
                out[batch, start : start + u.shape[1]] = codes[batch]
            return out

        operands = (var, np.array([1, 3], np.int32), updates, scales, *([] if zeros is None else [zeros]))
        attrs: dict[str, Any] = {"reduce": "update", "axis": -2, "quant_axis": -1}
        yield Case("QuantUpdateScatter", operands, placed, attrs, name="scales" if zeros is None else "zero points")


# Published answers of Philox 4x32 with ten rounds (Random123): counter, key, the four words.
_PHILOX = (
    ((0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**64 - 1, 2**64 - 1), 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x85A308D3243F6A88, 0x0370734413198A2E),
        0x299F31D0A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def _random() -> Iterator[Case]:
    """Integers: a word of the stream modulo the span, from the lowest on; two words, the lower one first, for int64."""
    for counter, key, words in _PHILOX:
        pairs = [low | high << 32 for low, high in zip(words[::2], words[1::2])]
        for kind, drawn in (("int32", words), ("int64", pairs)):
            want = np.array([w % 11 - 5 for w in drawn], kind)
            operands = (
                [len(drawn)],
                np.array([key], np.uint64),
                np.array(counter, np.uint64),
                np.array(1, np.int32),
                np.array(-5, kind),
                np.array(6, kind),
            )
            yield Case("StatelessRandomUniformIntV2", operands, want, name=f"{kind} {key:x}")


def cases() -> Iterator[Case]:
    """All cases of this file."""
    yield from _state()
    yield from _optimisers()
    yield from _quantisation()
    yield from _caches()
    yield from _random()
