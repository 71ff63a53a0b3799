"""Backward halves of norms and gated activations are one operator of GE: eager's gradients, any size."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

ALL = (torch.float32, torch.float16, torch.bfloat16)


def language_model_norm(x, w):
    wide = x.to(torch.float32)
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * normal.to(x.dtype)


def weighted_first(x, w):
    normal = x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * normal.to(w.dtype)


def library_norm(x, w):
    return F.rms_norm(x, (16,), w, 1e-6)


def without_weight(x, w):
    return library_norm(x, None) + w


def with_residual(x, w):
    return x + language_model_norm(x, w)


def norm_of_sum(x, w):
    total = x + w
    return total * 2 + language_model_norm(total, w)


def swiglu(x, w):
    a, b = (x * w).chunk(2, -1)
    return F.silu(a) * b


def geglu(x, w):
    a, b = (x * w).chunk(2, -1)
    return a * F.gelu(b)


def geglu_left(x, w):
    a, b = (x * w).chunk(2, -1)
    return F.gelu(a, approximate="tanh") * b


# function, the fused operator of the backward graph, types
CASES = {
    "RMS norm of language models": (language_model_norm, "RmsNormGrad", ALL),
    "RMS norm that is rounded late": (weighted_first, "RmsNormGrad", (torch.float32,)),
    "RMS norm of torch": (library_norm, "RmsNormGrad", ALL),
    "RMS norm without weight": (without_weight, "RmsNormGrad", ALL),
    "RMS norm beside a residual": (with_residual, "RmsNormGrad", ALL),
    "RMS norm of a sum": (norm_of_sum, "RmsNormGrad", ALL),
    "SwiGLU": (swiglu, "SwiGluGrad", ALL),
    "GEGLU": (geglu, "GeGluGradV2", ALL),
    "GEGLU of the left half": (geglu_left, "GeGluGradV2", ALL),
}
TYPED = [(case, dtype) for case, (*_, dtypes) in CASES.items() for dtype in dtypes]


def _inputs(dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(s, generator=generator).to(dtype) for s in ((3, 5, 16), (16,))]


def _gradients(fn, given):
    inputs = [x.clone().requires_grad_() for x in given]
    result = fn(*inputs)
    result.backward(torch.ones_like(result) * 0.7 + result.detach())
    return [x.grad for x in inputs]


@pytest.mark.night(rows=9)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("case", "dtype"), TYPED, ids=[f"{c}-{str(d)[6:]}" for c, d in TYPED])
def test_one_operator_with_the_gradients_of_eager(case, dtype, dynamic, recording):
    fn, operator, _ = CASES[case]
    given = _inputs(dtype)
    if dynamic:
        torch._dynamo.mark_dynamic(given[0], 1)
    with recording() as seen:
        got = _gradients(torch.compile(fn, backend="npu", fullgraph=True), given)
    ops = [n.op for n in seen.last_graph().nodes]
    assert ops.count(operator) == 1, ops
    assert {"Pow", "SiluGrad", "GeluGradV2"}.isdisjoint(ops), ops
    truth = _gradients(fn, [x.double() for x in given])
    for g, w, t in zip(got, _gradients(fn, given), truth):
        assert g.dtype == w.dtype
        if dtype == torch.float32:
            torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)
        else:  # the parts round each, and so does the result that gave the gradient which comes in
            bound = (w.double() - t).abs() + 8 * torch.finfo(dtype).eps * (1 + t.abs())
            assert ((g.double() - t).abs() <= bound).all()


def third_root(x, w):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-1 / 3) * w


def of_another(x, w):
    return x * torch.rsqrt((x * w).pow(2).mean(-1, keepdim=True) + 1e-6)


def of_the_first_axis(x, w):
    return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6) * w


def gate_of_another(x, w):
    return F.silu((x * w).chunk(2, -1)[0]) * (x + w).chunk(2, -1)[1]


@pytest.mark.parametrize("fn", [third_root, of_another, of_the_first_axis, gate_of_another])
def test_what_is_another_function_is_not_fused(fn, recording):
    given = _inputs(torch.float32)
    with recording() as seen:
        got = _gradients(torch.compile(fn, backend="npu", fullgraph=True), given)
    torch.testing.assert_close(got, _gradients(fn, given), atol=1e-5, rtol=1e-5)
    assert {"RmsNormGrad", "SwiGluGrad", "GeGluGradV2"}.isdisjoint(n.op for n in seen.last_graph().nodes)
