"""Operators of torch_npu that come without sizes and types for tracing compile all the same."""

import pytest
import torch
import torch_npu

import torchair

W = (torch.arange(64, dtype=torch.int32).reshape(4, 16) * 7) % 16 - 8


def packs(weight):
    parts = weight.reshape(*weight.shape[:-1], -1, 8).long() & 15
    return (parts << torch.arange(0, 32, 4)).sum(-1).to(torch.int64).bitwise_and(2**32 - 1)


def signs(data, size, dtype):
    bits = (data.reshape(-1, 1).int() >> torch.arange(8)) & 1
    return (bits * 2 - 1).reshape(size, -1).to(dtype)


@pytest.mark.parametrize("dynamic", [False, True])
def test_packs_of_int4(dynamic):
    run = torch.compile(
        lambda w: torch_npu.npu_convert_weight_to_int4pack(w),
        backend=torchair.get_npu_backend(),
        dynamic=dynamic,
        fullgraph=True,
    )
    for rows in (4, 2):
        got = run(W[:rows].npu()).cpu()
        assert got.dtype == torch.int32
        assert torch.equal(got.long().bitwise_and(2**32 - 1), packs(W[:rows]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_signs_of_bits(dtype):
    data = torch.tensor([0, 255, 0b10110, 7], dtype=torch.uint8)
    run = torch.compile(
        lambda x: torch_npu.npu_sign_bits_unpack(x, 2, dtype), backend=torchair.get_npu_backend(), fullgraph=True
    )
    assert torch.equal(run(data.npu()).cpu(), signs(data, 2, dtype))


@pytest.mark.parametrize("dynamic", [False, True])
def test_casts_of_format(dynamic):
    run = torch.compile(
        lambda x: torch_npu.npu_format_cast(x, 29) @ x,
        backend=torchair.get_npu_backend(),
        dynamic=dynamic,
        fullgraph=True,
    )
    for size in (16, 32):
        x = torch.randn(size, size)
        torch.testing.assert_close(run(x.npu()).cpu(), x @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("given", ["p", "k", "both"])
def test_scores_limited_by_one_of_two(given, mode):
    """torch_npu's own function for tracing wants both."""
    logits = torch.randn(3, 20)
    p = torch.tensor([0.3, 0.9, 1.0]).npu() if given != "k" else None
    k = torch.tensor([2, 5, 20], dtype=torch.int32).npu() if given != "p" else None
    run = torch.compile(
        lambda x: torch_npu.npu_top_k_top_p(x, p, k), backend="npu", options={"mode": mode}, fullgraph=True
    )
    got = run(logits.npu()).cpu()
    kept = got > float("-inf")
    torch.testing.assert_close(got[kept], logits[kept])
    order = logits.sort(-1, descending=True)
    first = torch.ones_like(kept)
    if k is not None:
        first &= torch.arange(20) < k.cpu().unsqueeze(1)
    if p is not None:
        shares = order.values.masked_fill(~first, float("-inf")).softmax(-1)
        first &= shares.cumsum(-1) - shares < p.cpu().unsqueeze(1)
    assert torch.equal(kept, torch.zeros_like(kept).scatter(1, order.indices, first))
