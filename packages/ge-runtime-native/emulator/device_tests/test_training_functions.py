"""Operator functions of training and of a server's steps: called eagerly with the real wheel, against formulas."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401
from torch import Tensor
from torch.utils import _pytree as pytree

npu = torch.ops.npu


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def on_npu(value: Any) -> Any:
    return pytree.tree_map(lambda v: v.npu() if isinstance(v, Tensor) else v, value)


def same(got: Any, want: Any, **tolerance: float) -> None:
    got, want = ([v for v in pytree.tree_leaves(x) if isinstance(v, Tensor)] for x in (got, want))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        torch.testing.assert_close(g.cpu(), w, check_dtype=False, **tolerance)


def slopes(call: Callable[..., Tensor], grad: Tensor, *operands: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in operands]
    return list(torch.autograd.grad(call(*leaves), leaves, grad))


# -- a server's steps -----------------------------------------------------------------------------------------------


def test_the_next_step_of_sequences_in_pages():
    lengths, sampled = torch.tensor([3, 15, 7, 1]), torch.tensor([[5], [6], [7], [0]])
    tokens, places, slots = (torch.zeros(4, dtype=torch.int64) for _ in range(3))
    tables = torch.tensor([[2, 9], [4, 8], [1, 3], [5, 6]])
    state = on_npu([tokens, places, lengths, slots])
    npu.npu_advance_step_flashattn(state[0], sampled.npu(), *state[1:], tables.npu(), 4, 3, 8)
    # pages of 8 rows: row 15 of the second sequence is the last one of its second page
    want = [[5, 6, 7, 0], [3, 15, 7, 0], [4, 16, 8, 1], [2 * 8 + 3, 8 * 8 + 7, 1 * 8 + 7, 0]]
    assert [t.cpu().tolist() for t in state] == want


@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_two_parts_of_an_attention_put_together(layout: str):
    rows, heads, size = 6, 2, 8
    q, k, v = torch.randn(heads, rows, size), torch.randn(heads, 10, size), torch.randn(heads, 10, size)
    parts = []
    for a, b in ((0, 4), (4, 10)):
        scores = q @ k[:, a:b].mT
        top = scores.amax(-1, keepdim=True)
        weights = (scores - top).exp()
        total = weights.sum(-1, keepdim=True)
        out = (weights / total) @ v[:, a:b]
        if layout == "SBH":
            stats = [t[None].expand(1, heads, rows, 8) for t in (top, total)]
            parts.append((out.transpose(0, 1).reshape(rows, 1, heads * size), *stats))
        else:
            stats = [t.transpose(0, 1).expand(rows, heads, 8) for t in (top, total)]
            parts.append((out.transpose(0, 1), *stats))
    words: dict[str, Any] = {}
    if layout == "TND":
        words = {"input_softmax_layout": "TND", "actual_seq_qlen": torch.tensor([0, rows]).npu()}
    operands = on_npu([t.contiguous() for part in parts for t in part])
    got = npu.npu_ring_attention_update(*operands, input_layout=layout, **words)[0]
    want = ((q @ k.mT).softmax(-1) @ v).transpose(0, 1)
    same(got, want.reshape(got.shape), rtol=1e-4, atol=1e-5)


# -- experts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 1], ids=["softmax", "sigmoid"])
def test_gradient_of_chosen_weights(kind: int):
    logits = torch.randn(4, 8)
    index = logits.topk(2).indices

    def weights(x: Tensor) -> Tensor:
        normed = x.softmax(-1) if kind == 0 else x.sigmoid()
        chosen = normed.gather(1, index)
        return 2.5 * (chosen if kind == 0 else chosen / (chosen.sum(-1, keepdim=True) + 1e-20))

    grad = torch.randn(4, 2)
    normed = logits.softmax(-1) if kind == 0 else logits.sigmoid()
    got = npu.npu_moe_gating_top_k_backward(
        *on_npu((normed, grad, index.int())), norm_type=kind, routed_scaling_factor=2.5
    )
    same([got], slopes(weights, grad, logits), rtol=1e-4, atol=1e-5)


def test_results_of_experts_put_together():
    rows, skip, bias = torch.randn(8, 16), torch.randn(4, 16), torch.randn(8, 16)
    scales, where = torch.rand(4, 2), torch.randperm(8).int()
    expert = torch.randint(0, 8, (4, 2), dtype=torch.int32)
    want = skip.clone()
    for t in range(4):
        for j in range(2):
            want[t] += scales[t, j] * (rows[where[j * 4 + t]] + bias[expert[t, j]])
    got = npu.npu_moe_finalize_routing(*on_npu((rows, skip, None, bias, scales, where, expert)))
    same(got, want, rtol=1e-4, atol=1e-5)


def test_tokens_back_by_a_map_and_their_gradients():
    probs = torch.rand(6, 4)
    chosen = torch.zeros(6, 4, dtype=torch.bool).scatter_(1, probs.topk(2).indices, True)
    pairs = [(e, t) for e in range(4) for t in range(6) if chosen[t, e]]
    places = torch.tensor([pairs.index(p) for p in sorted(pairs, key=lambda p: (p[1], p[0]))], dtype=torch.int32)
    tokens, grad = torch.randn(12, 8), torch.randn(6, 8)

    def back(tokens: Tensor, probs: Tensor) -> Tensor:
        result = torch.zeros(6, 8)
        for row, (expert, token) in enumerate(pairs):
            result = result.index_add(0, torch.tensor([token]), (tokens[row] * probs[token, expert])[None])
        return result

    mine = [t.npu().requires_grad_() for t in (tokens, probs)]
    got = npu.npu_moe_token_unpermute_with_routing_map(
        mine[0], places.npu(), [6, 8], probs=mine[1], routing_map=chosen.npu()
    )
    same(got.detach(), back(tokens, probs), rtol=1e-4, atol=1e-5)
    got.backward(grad.npu())
    same([t.grad for t in mine], slopes(back, grad, tokens, probs), rtol=1e-4, atol=1e-5)


# -- losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_and_its_gradient(reduction: str, weighted: bool):
    logits, target = torch.randn(5, 7), torch.tensor([0, 6, 3, -100, 1])
    weight = torch.rand(7) + 0.1 if weighted else None
    loss = lambda x: F.cross_entropy(x, target, weight, reduction=reduction)  # noqa: E731
    want = loss(logits)
    grad = torch.randn_like(want)
    leaf = logits.npu().requires_grad_()
    got = npu.npu_cross_entropy_loss(leaf, *on_npu((target, weight)), reduction)[0]
    same(got.detach().reshape(want.shape), want)
    got.backward(grad.npu().reshape(got.shape))
    same([leaf.grad], slopes(loss, grad, logits), rtol=1e-4, atol=1e-5)


def test_a_loss_in_parts_and_its_gradient():
    x, weight, target = torch.randn(4, 16).half(), torch.randn(32, 16).half(), torch.tensor([3, 31, 0, 8])
    made = npu.npu_fused_linear_online_max_sum(*on_npu((x, weight, target)), 0, 31, True)
    top, total, predicted, mask, place, logits = made
    loss, probs = npu.npu_fused_cross_entropy_loss_with_max_sum(top, total, predicted, vocab_parallel_logits=logits)
    leaves = [t.float().requires_grad_() for t in (x, weight)]
    want = F.cross_entropy(leaves[0] @ leaves[1].t(), target, reduction="none")
    same(loss, want.detach(), rtol=1e-2, atol=1e-2)
    same(probs, (x.float() @ weight.float().t()).softmax(-1), rtol=1e-2, atol=1e-3)
    grad = torch.randn(4)
    slope = torch.autograd.grad(want, leaves, grad)
    call = npu.npu_fused_linear_cross_entropy_loss_with_max_sum_backward
    operands = on_npu((grad, x, weight))
    same(call(*operands, mask, place, softmax=probs), slope, rtol=1e-2, atol=1e-2)
    same(call(*operands, mask, place, logits_max=top, sum_exp_logits=total), slope, rtol=1e-2, atol=1e-2)


# -- products, attention --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gelu_erf", "gelu_tanh"])
def test_an_int8_product_then_gelu(kind: str):
    x, w = (torch.randint(-8, 8, s, dtype=torch.int8) for s in ((4, 32), (32, 64)))
    rows, columns = torch.rand(4) / 50, torch.rand(64) / 50
    product = (x.float() @ w.float()) * rows[:, None] * columns
    got = npu.npu_quant_matmul_gelu(*on_npu((x, w, rows, columns)), approximate=kind)
    same(got, F.gelu(product, approximate="tanh" if kind == "gelu_tanh" else "none"), rtol=2e-3, atol=2e-3)


def test_products_of_eight_bit_floats_added():
    small = lambda *s: torch.randn(*s).to(torch.float8_e5m2)  # noqa: E731
    y, x, w = torch.randn(8, 16), small(8, 32), small(32, 16)
    rows, columns = torch.tensor([0.5]), torch.tensor([0.25])
    target = y.npu()
    npu.npu_add_quant_matmul_(target, *on_npu((x, w, columns)), x1_scale=rows.npu())
    same(target, y + x.float() @ w.float() * 0.125, rtol=1e-4, atol=1e-4)
    y, x, w = torch.randn(2, 8, 16), small(12, 8), small(12, 16)
    rows, columns = torch.rand(2), torch.rand(2, 1)
    target = y.npu()
    npu.npu_add_quant_gmm_(target, *on_npu((x, w, columns, torch.tensor([4, 12]))), x1_scale=rows.npu())
    parts = [x[a:b].float().t() @ w[a:b].float() for a, b in ((0, 4), (4, 12))]
    same(target, y + torch.stack(parts) * (rows * columns[:, 0])[:, None, None], rtol=1e-4, atol=1e-4)


def test_attention_in_blocks():
    q, k, v = (torch.randn(256, h, 64).half() for h in (4, 2, 2))
    picked = torch.tensor([[[[1, 0], [1, 1]]] * 2 + [[[0, 1], [1, 0]]] * 2])[0].view(1, 4, 2, 2).to(torch.int8)
    got = npu.npu_block_sparse_attention(
        *on_npu((q, k, v, picked)),
        [128, 128],
        num_key_value_heads=2,
        scale_value=0.125,
        actual_seq_lengths=[256],
        actual_seq_lengths_kv=[256],
        softmax_lse_flag=1,
    )
    seen = picked[0].bool().repeat_interleave(128, 1).repeat_interleave(128, 2)
    heads = [t.float().transpose(0, 1) for t in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))]
    want = F.scaled_dot_product_attention(*heads, attn_mask=seen, scale=0.125)
    same(got[0], want.transpose(0, 1), rtol=2e-3, atol=2e-3)
    scores = (heads[0] @ heads[1].mT * 0.125).masked_fill(~seen, -torch.inf)
    same(got[1], scores.logsumexp(-1, keepdim=True).transpose(0, 1), rtol=1e-3, atol=1e-3)


# -- random numbers, order, routing, gradients ----------------------------------------------------------------------


def test_fused_steps_of_adam():
    params, grads = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
    state = [params, grads, [torch.rand(3), torch.rand(2, 2)], [torch.rand(3), torch.rand(2, 2)]]
    words = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": False}
    mine = on_npu(state)
    for step in (1.0, 2.0):
        torch._fused_adamw_(*state, [], [torch.tensor(step) for _ in params], maximize=False, **words)
        torch._fused_adamw_(*mine, [], [torch.tensor(step).npu() for _ in params], maximize=False, **words)
        same(mine, state, rtol=1e-4, atol=1e-5)


def test_exponential_numbers():
    x = torch.empty(64, 64).npu()
    torch.npu.manual_seed(3)
    first = npu.npu_sim_exponential_(x, 2.0).cpu()
    torch.npu.manual_seed(3)
    again = npu.npu_sim_exponential_(torch.empty(64, 64).npu(), 2.0).cpu()
    assert torch.equal(first, again)
    assert (first > 0).all()
    assert abs(first.mean().item() - 0.5) < 0.05
    assert abs(first.var().item() - 0.25) < 0.05


@pytest.mark.parametrize("largest", [True, False])
def test_the_largest_and_the_least(largest: bool):
    x = torch.randn(4, 9)
    same(x.npu().topk(3, 1, largest), x.topk(3, 1, largest))


def test_instances_of_experts():
    table = torch.tensor([[1, 7, 0, 0], [2, 3, 5, 0], [3, 2, 4, 6]], dtype=torch.int32)
    chosen = torch.tensor([[0, 1], [2, 1]], dtype=torch.int32)
    for rank, want in ((0, [[7, 3], [2, 3]]), (5, [[7, 5], [4, 5]])):
        got = npu.npu_moe_update_expert(*on_npu((chosen, table)), local_rank_id=rank, world_size=8)[0]
        assert got.cpu().tolist() == want


def test_gradient_of_a_gate():
    x, dy = torch.randn(4, 256).bfloat16(), torch.randn(4, 128).bfloat16()

    def gate(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return F.silu(left) * right

    got = npu.npu_swiglu_group_quant_backward(*on_npu((dy, x)))[0]
    same([got], slopes(gate, dy.float(), x.float()), rtol=2e-2, atol=2e-2)


# -- what torch_npu calls on another chip ---------------------------------------------------------------------------

CHIP_950 = """
import math, torch, torch_npu
import torch.nn.functional as F
torch.manual_seed(5)
npu = torch.ops.npu
close = torch.testing.assert_close

boxes, others = torch.rand(4, 5) + 0.5, torch.rand(4, 5) + 0.5
got = npu._npu_ciou(boxes.npu(), others.npu(), True, False, 0, True)[0].cpu().flatten().tolist()
for value, (ax, ay, aw, ah), (bx, by, bw, bh) in zip(got, boxes.t().tolist(), others.t().tolist()):
    a, b = ((x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in ((ax, ay, aw, ah), (bx, by, bw, bh)))
    common = max(min(a[2], b[2]) - max(a[0], b[0]), 0) * max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    share = common / (aw * ah + bw * bh - common)
    around = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2
    v = 4 / math.pi**2 * (math.atan(bw / bh) - math.atan(aw / ah)) ** 2
    want = share - ((ax - bx) ** 2 + (ay - by) ** 2) / around - v * v / (1 - share + v)
    assert abs(value - want) < 1e-4, (value, want)

params, grads = [torch.randn(3), torch.randn(2, 2)], [torch.randn(3), torch.randn(2, 2)]
firsts, seconds = [torch.rand(3), torch.rand(2, 2)], [torch.rand(3), torch.rand(2, 2)]
words = dict(lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
state = [[t.clone() for t in ts] for ts in (params, grads, firsts, seconds)]
mine = [[t.npu() for t in ts] for ts in state]
torch._fused_adam_(*state, [], [torch.tensor(3.0) for _ in params], **words)
torch._fused_adam_(*mine, [], [torch.tensor(3.0).npu() for _ in params], **words)
for got, want in zip(mine, state):
    for g, w in zip(got, want):
        close(g.cpu(), w, rtol=1e-4, atol=1e-5)

x, w = torch.randn(1, 4, 8, 8), torch.randn(6, 4, 3, 3)
moves, masks = torch.rand(1, 18, 8, 8) - 0.5, torch.rand(1, 9, 8, 8)

def deformed(x, w, moved):
    moves, masks = moved[:, :18], moved[:, 18:]
    padded, taps = F.pad(x, (2, 2, 2, 2)), []
    for tap in range(9):
        row = torch.arange(8.0).view(8, 1) + tap // 3 - 1 + moves[0, 9 + tap]
        column = torch.arange(8.0) + tap % 3 - 1 + moves[0, tap]
        grid = torch.stack((column + 2, row + 2), -1) / 11 * 2 - 1
        taps.append(F.grid_sample(padded, grid[None], align_corners=True) * masks[:, tap])
    return torch.einsum("nctij,oct->noij", torch.stack(taps, 2), w.flatten(2))

moved = torch.cat((moves, masks), 1)
shape = [3, 3], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], 1, 1, True
y, samples = npu.npu_deformable_conv2d(x.npu(), w.npu(), moved.npu(), None, *shape)
close(y.cpu(), deformed(x, w, moved), rtol=1e-4, atol=1e-4)
leaves = [t.clone().requires_grad_() for t in (x, w, moved)]
dy = torch.randn(1, 6, 8, 8)
want = torch.autograd.grad(deformed(*leaves), leaves, dy)
got = npu.npu_deformable_conv2dbk(x.npu(), dy.npu(), samples, w.npu(), moved.npu(), *shape)
for g, v in zip(got, (*want, dy.sum((0, 2, 3)))):
    close(g.cpu(), v, rtol=1e-3, atol=1e-3)
"""


@pytest.mark.slow
def test_on_ascend950():
    done = subprocess.run(
        [sys.executable, "-c", CHIP_950],
        env={**os.environ, "TAIR_EMULATOR_CANN": "9.1.0", "TAIR_EMULATOR_CHIP": "Ascend950PR_9589"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
