"""The RMSNorm of graphs where torch has none: numbers of torch's own, and one GE operator."""

from __future__ import annotations

import pytest
import torch

from ge_runtime.cpu import torch_compat
from torchair.oplib.norm_ops import FUSED_RMS_NORM, own_rms_norm
from torchair.passes import rms_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.skipif(torch_compat.fused_rms_norm is None, reason="torch before 2.9 has nothing to compare with")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize("sizes", [(7,), (5, 7)])
@pytest.mark.parametrize("weighted", [True, False])
def test_numbers_are_those_of_torch(dtype, eps, sizes, weighted):
    x = torch.randn(3, 5, 7).to(dtype) * 3
    weight = torch.randn(sizes).to(dtype) if weighted else None
    own, torchs = (op(x, list(sizes), weight, eps) for op in (own_rms_norm(), FUSED_RMS_NORM))
    for got, want in zip(own, torchs):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_it_becomes_one_operator_of_ge(dtype, dynamic, recording, monkeypatch):
    monkeypatch.setattr(rms_norm, "FUSED_RMS_NORM", own_rms_norm())
    monkeypatch.setattr(torch_compat, "fused_rms_norm", None)

    def fn(x, w):
        h = x.float()
        return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    w = torch.randn(6).to(dtype)
    with recording() as seen:
        compiled = torch.compile(fn, backend="npu")
        for rows in (3, 4):
            x = torch.randn(rows, 6).to(dtype) * 3
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            assert torch.equal(compiled(x, w), fn(x, w))
    ops = [n.op for n in seen.last_graph().nodes]
    assert ops.count("RmsNorm") == 1
    assert {"Rsqrt", "Cast"}.isdisjoint(ops)


@pytest.mark.parametrize("train", [False, True])
def test_captured_programs_have_it_too(train, monkeypatch):
    monkeypatch.setattr(rms_norm, "FUSED_RMS_NORM", own_rms_norm())
    norm = torch.nn.RMSNorm(6, eps=1e-5)
    x = torch.randn(3, 6, requires_grad=train)
    got = torch.compile(norm, backend="npugraph_ex")(x)
    torch.testing.assert_close(got, norm(x))
    if train:
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (got, norm(x))))
