"""Attention, rotary embeddings and gated activations against references written from the operators' definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ge_graph import Graph, building, ops
from ge_graph.dtypes import BY_TORCH_NAME
from ge_graph.errors import EngineError
from ge_runtime.cpu import CpuEngine

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LIMITS = {F32: 2e-5, F16: 4e-3, BF16: 3e-2}


def rand(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def f64(t: torch.Tensor) -> np.ndarray:
    return t.double().numpy()


def close(got: torch.Tensor, want: np.ndarray, tol: float | None = None) -> None:
    assert tuple(got.shape) == tuple(want.shape)
    limit = LIMITS[got.dtype] if tol is None else tol
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(f64(got), want, rtol=limit, atol=limit * scale)


def attention(q, k, v, scale, hidden=None, bias=None, drop=None):
    """(out, maximum, sum, scores' probabilities) of (B, N, S, D) arrays; True in ``hidden`` is not looked at."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bnqd,bnkd->bnqk", q, k) * scale
    s = s if bias is None else s + bias
    if hidden is not None:
        s = np.where(hidden, -np.inf, s)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    p = e / total
    return np.einsum("bnqk,bnkd->bnqd", p if drop is None else p * drop, v), top, total, p


def to_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """(B, N, S, D) as ``layout``, written out."""
    return {
        "BNSD": lambda: x,
        "BSND": lambda: x.transpose(1, 2),
        "BSH": lambda: x.transpose(1, 2).flatten(2),
        "SBH": lambda: x.permute(2, 0, 1, 3).flatten(2),
    }[layout]().contiguous()


def qkv(heads=4, kv=2, sq=5, skv=7, d=8, dtype=F32, batch=2):
    return (
        rand(batch, heads, sq, d, dtype=dtype),
        rand(batch, kv, skv, d, dtype=dtype, seed=1),
        rand(batch, kv, skv, d, dtype=dtype, seed=2),
    )


def positions(sq, skv):
    return np.arange(skv)[None] - np.arange(sq)[:, None]


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_flash_attention_layouts(run, layout, dtype):
    q, k, v = qkv(kv=2 if layout in ("BSH", "SBH") else 4, dtype=dtype)
    want, top, total, _ = attention(f64(q), f64(k), f64(v), 0.3)
    mx, sm, _, out = run(
        "FlashAttentionScore",
        *(to_layout(t, layout) for t in (q, k, v)),
        scale_value=0.3,
        head_num=4,
        input_layout=layout,
    )
    assert out.dtype == dtype
    close(out, f64(to_layout(torch.from_numpy(want), layout)))
    close(mx, np.repeat(top, 8, -1), 1e-5)
    close(sm, np.repeat(total, 8, -1), 1e-5)


MODES = [
    (0, {"pre_tockens": 2, "next_tockens": 1}, lambda d, shift: (d > 1) | (d < -2)),
    (2, {}, lambda d, shift: d > 0),
    (3, {}, lambda d, shift: d - shift > 0),
    (4, {"pre_tockens": 3, "next_tockens": 1}, lambda d, shift: (d - shift > 1) | (d - shift < -3)),
]


@pytest.mark.parametrize("only_output", [False, True])
@pytest.mark.parametrize(("mode", "limits", "rule"), MODES)
def test_flash_attention_sparse_modes(run_first, run, mode, limits, rule, only_output):
    q, k, v = qkv(kv=4)
    # The compressed template of modes 2 to 4 says nothing about the sizes of this case.
    mask = torch.zeros(5, 7, dtype=torch.bool) if mode == 0 else torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    want = attention(f64(q), f64(k), f64(v), 0.3, rule(positions(5, 7), 2))[0]
    form = {"scale_value": 0.3, "head_num": 4, "input_layout": "BNSD", "sparse_mode": mode, **limits}
    operands = (q, k, v, None, None, None, mask)
    got = (
        run_first("FlashAttentionScore", 3, *operands, **form)
        if only_output
        else run("FlashAttentionScore", *operands, **form)[3]
    )
    close(got, want)


@pytest.fixture
def run_first():
    """Run an operator whose other outputs nobody reads: the engine may then take the fused form."""
    from ge_graph import Graph, building, ops
    from ge_graph.dtypes import BY_TORCH_NAME
    from ge_runtime.cpu import CpuEngine

    def run(op, index, *operands, **attrs):
        graph, feeds = Graph("case"), []
        with building(graph):
            placed = []
            for x in operands:
                if isinstance(x, torch.Tensor):
                    feeds.append(x)
                    dtype = BY_TORCH_NAME[str(x.dtype).removeprefix("torch.")]
                    x = ops.Data(index=len(feeds) - 1, dtype=dtype, shape=tuple(x.shape))
                placed.append(x)
            graph.outputs = [getattr(ops, op)(*placed, **attrs)[index]]
        return CpuEngine().compile(graph, {}).run(feeds)[0]

    return run


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 4, 5, 7)])
def test_flash_attention_mask_says_what_is_hidden(run_first, shape):
    q, k, v = qkv(kv=4)
    mask = torch.rand(*shape) > 0.6
    mask[..., 0] = False
    want = attention(f64(q), f64(k), f64(v), 1.0, mask.numpy())[0]
    for m in (mask, mask.to(torch.uint8)):
        got = run_first("FlashAttentionScore", 3, q, k, v, None, None, None, m, head_num=4, input_layout="BNSD")
        close(got, want)


@pytest.mark.parametrize("pse_type", [0, 1])
def test_flash_attention_position_term(run, pse_type):
    q, k, v = qkv(kv=4)
    pse = rand(1, 4, 5, 7, seed=6)
    bias = f64(pse) * (0.3 if pse_type == 1 else 1)
    want = attention(f64(q), f64(k), f64(v), 0.3, None, bias)[0]
    got = run("FlashAttentionScore", q, k, v, pse, scale_value=0.3, head_num=4, input_layout="BNSD", pse_type=pse_type)
    close(got[3], want)


def bits(keep: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.packbits(keep.reshape(-1), bitorder="little").copy())


def test_flash_attention_dropout_and_gradient(run):
    q, k, v = qkv(kv=2, skv=8)
    rng = np.random.default_rng(0)
    keep = rng.random((2, 4, 5, 8)) < 0.7
    drop = keep / 0.7
    mask = torch.zeros(5, 8, dtype=torch.bool)
    mask[:, 6:] = True
    pse = rand(1, 4, 5, 8, seed=6)
    form = {
        "scale_value": 0.3,
        "keep_prob": 0.7,
        "head_num": 4,
        "input_layout": "BNSD",
        "sparse_mode": 1,
        "pse_type": 1,
    }
    # The layout BNSD does not say how many key heads there are: the tensors do.
    mx, sm, _, out = run("FlashAttentionScore", q, k, v, pse, bits(keep), None, mask, **form)
    want = attention(f64(q), f64(k), f64(v), 0.3, mask.numpy(), 0.3 * f64(pse), drop)[0]
    close(out, want)
    dy = rand(*q.shape, seed=9)
    leaves = [t.double().requires_grad_() for t in (q, k, v, pse)]
    qq, kk, vv, pp = leaves
    s = (torch.einsum("bnqd,bnkd->bnqk", qq, kk.repeat_interleave(2, 1)) + pp) * 0.3
    p = torch.softmax(s.masked_fill(mask, float("-inf")), -1) * torch.from_numpy(drop)
    torch.einsum("bnqk,bnkd->bnqd", p, vv.repeat_interleave(2, 1)).backward(dy.double())
    grads = run("FlashAttentionScoreGrad", q, k, v, dy, pse, bits(keep), None, mask, mx, sm, None, out, **form)
    for got, leaf in zip(grads, leaves):
        close(got, leaf.grad.numpy())


def _exact_gradients(q, k, v, dy, scale, hide):
    """Gradients by autograd in float64."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    s = torch.einsum("bnqd,bnkd->bnqk", *leaves[:2]) * scale
    p = torch.softmax(s if hide is None else s.masked_fill(hide, float("-inf")), -1)
    torch.einsum("bnqk,bnkd->bnqd", p.nan_to_num(), leaves[2]).backward(dy.double())
    return [leaf.grad for leaf in leaves]


def without_statistics(q, k, v, mask=None):
    """Attention whose statistics nobody reads, in a graph of its own."""
    graph, given = Graph("case"), [q, k, v] + [mask] * (mask is not None)
    with building(graph):
        fed = [ops.Data(index=i, dtype=BY_TORCH_NAME[str(t.dtype)[6:]], shape=t.shape) for i, t in enumerate(given)]
        operands = (*fed[:3], None, None, None, *fed[3:])
        graph.outputs = [ops.FlashAttentionScore(*operands, scale_value=0.3, head_num=4, input_layout="BNSD")[3]]
    return CpuEngine().compile(graph, {}).run(given)[0]


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("port", ["query", "key", "value"])
@pytest.mark.parametrize("width", [4, 64])
def test_attention_without_statistics_keeps_what_is_not_a_number(port, odd, dtype, width):
    """ATen's fused attention gives 0 for a query of NaN, and in 16 bits NaN for a weight of 0."""
    q, k, v = (torch.randn(2, 4, n, width, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (5, 7, 7))
    {"query": q, "key": k, "value": v}[port][0, 1, 2, 1] = odd
    got = without_statistics(q, k, v)
    want = (q.double() @ k.double().mT * 0.3).softmax(-1) @ v.double()
    assert torch.equal(got.isnan(), want.isnan())
    finite = want.isfinite()
    torch.testing.assert_close(got.double()[finite], want[finite], atol=2e-2, rtol=2e-2)


def test_a_row_that_sees_nothing_is_zero_beside_one_of_nan():
    q, k, v = qkv(kv=4)
    q[0, 0, 1] = math.nan
    hide = torch.zeros(5, 7, dtype=torch.bool)
    hide[3] = True
    out = without_statistics(q, k, v, hide)
    assert out[0, 0, 1].isnan().all()
    assert not out[:, :, 3].any()
    assert out.isnan().sum() == out.shape[-1]


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize(("mode", "limits", "rule"), [(0, {}, None), *MODES])
def test_flash_attention_gradient_of_every_layout_and_mode(run, layout, mode, limits, rule):
    q, k, v = qkv(kv=4)
    dy = rand(*q.shape, seed=9)
    mask = hide = None
    if rule is not None:
        mask = torch.zeros(5, 7, dtype=torch.bool) if mode == 0 else torch.ones(2048, 2048, dtype=torch.bool).triu(1)
        hide = torch.from_numpy(rule(positions(5, 7), 2))
    form = {"scale_value": 0.3, "head_num": 4, "input_layout": layout, "sparse_mode": mode, **limits}
    ops = [to_layout(t, layout) for t in (q, k, v)]
    top, total, _, out = run("FlashAttentionScore", *ops, None, None, None, mask, **form)
    ops.append(to_layout(dy, layout))
    grads = run("FlashAttentionScoreGrad", *ops, None, None, None, mask, top, total, None, out, **form)
    for got, want in zip(grads, _exact_gradients(q, k, v, dy, 0.3, hide)):
        close(got, f64(to_layout(want, layout)))


@pytest.mark.parametrize("how", ["dense", "strided", "a row sees nothing"])
def test_flash_attention_gradient_is_bit_equal_to_eagers(run, how):
    q, k, v = qkv(kv=4)
    dy = rand(*q.shape, seed=9)
    hide = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
    hide[1, :, :, 5:] = True
    if how == "a row sees nothing":
        hide[0, :, 2] = True
    if how == "strided":  # every second element of a row: ATen's fused gradient reads rows that are dense
        q, k, v, dy = (t.repeat_interleave(2, -1)[..., ::2] for t in (q, k, v, dy))
        assert q.stride(-1) == 2
    form = {"scale_value": 0.3, "head_num": 4, "input_layout": "BNSD"}
    mask = hide.expand(2, 4, 5, 7).contiguous()
    top, total, _, out = run("FlashAttentionScore", q, k, v, None, None, None, mask, **form)
    grads = run("FlashAttentionScoreGrad", q, k, v, dy, None, None, None, mask, top, total, None, out, **form)[:3]
    for got, want in zip(grads, _exact_gradients(q, k, v, dy, 0.3, hide)):
        close(got, f64(want))
    if how == "dense":
        lse = (top + total.log())[..., 0]
        shown = torch.zeros(hide.shape).masked_fill(hide, float("-inf"))
        eager = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dy, q, k, v, out, lse, 0.0, False, attn_mask=shown, scale=0.3
        )
        assert all(map(torch.equal, grads, eager))


@pytest.mark.parametrize("empty", [(0, 5, 7), (2, 0, 7)])
def test_flash_attention_gradient_of_nothing(run, empty):
    batch, rows, columns = empty
    q, k, v = qkv(kv=4, batch=batch, sq=rows, skv=columns)
    form = {"scale_value": 0.3, "head_num": 4, "input_layout": "BNSD"}
    top, total, _, out = run("FlashAttentionScore", q, k, v, **form)
    grads = run("FlashAttentionScoreGrad", q, k, v, q, None, None, None, None, top, total, None, out, **form)[:3]
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert not any(g.any() for g in grads)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("shape", [(1, 2, 4, 5, 8), (2, 4, 4, 8), (2, 1, 5, 8), (1, 4, 5, 8), (2, 4, 5, 0), (4, 5, 8)])
def test_statistics_of_other_rows_are_refused(run, which, shape):
    q, k, v = qkv(kv=4)
    form = {"scale_value": 0.3, "head_num": 4, "input_layout": "BNSD"}
    top, total, _, out = run("FlashAttentionScore", q, k, v, **form)
    both = [top, total]
    both[which] = rand(*shape)
    with pytest.raises(EngineError, match=r"GE4009.*beside a query of"):
        run("FlashAttentionScoreGrad", q, k, v, q, None, None, None, None, *both, None, out, **form)


def test_training_attention_writes_the_scores_once():
    """The scores are the only memory of their size that attention asks for, and its gradient asks for none."""
    from ge_runtime.cpu.kernels.attention import flash_attention_score, flash_attention_score_grad

    q, k, v = qkv(kv=4, sq=64, skv=64, batch=1)

    form = {"scale_value": 0.3, "head_num": 4, "input_layout": "BNSD"}
    hide = torch.ones(64, 64, dtype=torch.bool).triu(1)

    def large(call):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
            result = call()
        events = seen.profiler.kineto_results.events()
        return result, sum(e.nbytes() >= 4 * 64 * 64 * 4 for e in events if e.name() == "[memory]")

    (top, total, _, out), count = large(lambda: flash_attention_score(q, k, v, None, None, None, hide, **form))
    assert count == 1
    grads = (q, k, v, q, None, None, None, hide, top, total, None, out)
    assert large(lambda: flash_attention_score_grad(*grads, **form))[1] == 0


def test_flash_attention_packed_sequences(run):
    q, k, v = rand(9, 4, 8), rand(12, 2, 8, seed=1), rand(12, 2, 8, seed=2)
    ends, kv_ends = torch.tensor([4, 9]), torch.tensor([5, 12])
    mx, sm, _, out = run(
        "FlashAttentionScore", q, k, v, None, None, None, None, None, ends, kv_ends, head_num=4, input_layout="TND"
    )
    dy = rand(9, 4, 8, seed=3)
    grads = run(
        "FlashAttentionScoreGrad",
        q,
        k,
        v,
        dy,
        None,
        None,
        None,
        None,
        mx,
        sm,
        None,
        out,
        None,
        ends,
        kv_ends,
        head_num=4,
        input_layout="TND",
    )
    assert tuple(mx.shape) == (9, 4, 8)
    for a, b, c, d in ((0, 4, 0, 5), (4, 9, 5, 12)):
        parts = [f64(t).transpose(1, 0, 2)[None] for t in (q[a:b], k[c:d], v[c:d])]
        want, _, _, p = attention(*parts, 1.0)
        close(out[a:b], want[0].transpose(1, 0, 2))
        g = f64(dy[a:b]).transpose(1, 0, 2)[None]
        dv = np.einsum("bnqk,bnqd->bnkd", p, g).reshape(1, 2, 2, d - c, 8).sum(2)
        close(grads[2][c:d], dv[0].transpose(1, 0, 2))


# ---------------------------------------------------------------- inference


@pytest.mark.parametrize("layout", ["BSH", "BNSD", "BSND"])
def test_prompt_attention(run, layout):
    q, k, v = qkv()
    mask = torch.ones(5, 7, dtype=torch.bool).triu(1)
    want = attention(f64(q), f64(k), f64(v), 0.3, mask.numpy())[0]
    form = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.3, "input_layout": layout, "sparse_mode": 1}
    got = run("PromptFlashAttention", *(to_layout(t, layout).half() for t in (q, k, v)), None, mask.half(), **form)
    close(got, f64(to_layout(torch.from_numpy(want), layout)), 5e-3)


def test_incre_attention_lengths_and_paged_cache(run):
    q, k, v = qkv(sq=1, skv=8, dtype=F16)
    lengths = [3, 8]
    want = np.concatenate(
        [
            attention(f64(q[b : b + 1]), f64(k[b : b + 1, :, :n]), f64(v[b : b + 1, :, :n]), 0.3)[0]
            for b, n in enumerate(lengths)
        ]
    )
    form = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.3, "input_layout": "BNSD"}
    n = torch.tensor(lengths)
    close(run("IncreFlashAttention", q, [k], [v], None, None, n, **form), want)
    table = torch.tensor([[2, 5], [0, 3]], dtype=torch.int32)
    pages = [torch.zeros(6, 2, 4, 8, dtype=F16) for _ in range(2)]
    for cache, full in zip(pages, (k, v)):
        for b in range(2):
            for j in range(2):
                cache[table[b, j]] = full[b, :, 4 * j : 4 * j + 4]
    got = run("IncreFlashAttention", q, [pages[0]], [pages[1]], None, None, n, *[None] * 7, table, **form, block_size=4)
    close(got, want)


def test_fused_infer_attention(run):
    q, k, v = qkv(dtype=F16)
    template = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    want, top, total, _ = attention(f64(q), f64(k), f64(v), 0.3, positions(5, 7) - 2 > 0)
    form = {"num_heads": 4, "num_key_value_heads": 2, "scale": 0.3, "sparse_mode": 3, "softmax_lse_flag": True}
    out, lse = run(
        "FusedInferAttentionScore", to_layout(q, "BNSD"), [k], [v], None, template, **form, input_layout="BNSD_BSND"
    )
    close(out, want.transpose(0, 2, 1, 3))
    close(lse, top + np.log(total), 5e-3)


# ---------------------------------------------------------------- rotary and gates


def half(x):
    a, b = np.split(x, 2, -1)
    return np.concatenate((-b, a), -1)


def interleave(x):
    y = np.empty_like(x)
    y[..., 0::2], y[..., 1::2] = -x[..., 1::2], x[..., 0::2]
    return y


def quarter(x):
    a, b, c, d = np.split(x, 4, -1)
    return np.concatenate((-b, a, -d, c), -1)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("mode", "turn"), list(enumerate([half, interleave, quarter, None])))
def test_rotary_position_embedding_and_gradient(run, mode, turn, dtype):
    x, cos, sin = rand(2, 3, 4, 8, dtype=dtype), rand(1, 3, 1, 8, dtype=dtype), rand(1, 3, 1, 8, dtype=dtype, seed=1)
    a = f64(x)
    if turn is None:
        a, turn = np.concatenate((a[..., 0::2], a[..., 1::2]), -1), half
    close(run("RotaryPositionEmbedding", x, cos, sin, mode=mode), a * f64(cos) + turn(a) * f64(sin))
    if mode == 0:
        close(run("RotaryMul", x, cos, sin), a * f64(cos) + turn(a) * f64(sin))
    if mode == 3:
        return
    dy = rand(2, 3, 4, 8, dtype=dtype, seed=5)
    dx, dcos, dsin = run("RotaryPositionEmbeddingGrad", dy, cos, sin, x, mode=mode)
    limit = 1e-5 if dtype == F32 else 2e-2
    matrix = turn(np.eye(8))  # row i is R(e_i), so R(x) = x @ matrix
    close(dx, f64(dy) * f64(cos) + (f64(dy) * f64(sin)) @ matrix.T, limit)
    close(dcos, (f64(dy) * a).sum((0, 2), keepdims=True), limit)
    close(dsin, (f64(dy) * turn(a)).sum((0, 2), keepdims=True), limit)


def test_apply_rotary(run):
    q, k, cos, sin = rand(2, 3, 4, 8), rand(2, 3, 1, 8), rand(2, 3, 1, 8, seed=3), rand(2, 3, 1, 8, seed=4)
    for got, x in zip(run("ApplyRotaryPosEmb", q, k, cos, sin), (q, k)):
        close(got, f64(x) * f64(cos) + half(f64(x)) * f64(sin))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("dim", [-1, 1])
def test_gates(run, dim, dtype):
    x, dy = rand(3, 4, 6, dtype=dtype), rand(3, 4, 3, dtype=dtype) if dim == -1 else rand(3, 2, 6, dtype=dtype)
    a, b = np.split(f64(x), 2, dim)
    s, sb, g = sigmoid(a), sigmoid(b), f64(dy)
    close(run("SwiGlu", x, dim=dim), a * s * b)
    close(run("SwiGluGrad", dy, x, dim=dim), np.concatenate((g * b * (s + a * s * (1 - s)), g * a * s), dim))
    if dtype != BF16:
        close(run("GLU", x, dim=dim), a * sb)
        close(run("GLUGrad", dy, x, dim=dim), np.concatenate((g * sb, g * a * sb * (1 - sb)), dim))
    erf = np.vectorize(math.erf)
    for left in (False, True):
        gate, other = (a, b) if left else (b, a)
        gelu = 0.5 * gate * (1 + erf(gate / math.sqrt(2)))
        y, second = run("GeGluV2", x, dim=dim, approximate=0, activate_left=left)
        close(y, gelu * other)
        close(second, gelu)


def test_attention_update(run):
    lse, parts = [rand(6), rand(6, seed=1)], [rand(6, 4), rand(6, 4, seed=1)]
    weights = np.stack([f64(t) for t in lse])
    total = np.log(np.exp(weights).sum(0))
    want = sum(f64(p) * np.exp(w - total)[:, None] for p, w in zip(parts, weights))
    out, merged = run("AttentionUpdate", lse, parts, update_type=1, sp=2)
    close(out, want)
    close(merged, total)


@pytest.mark.parametrize("pse_type", [0, 1])
def test_without_a_position_term_and_statistics_attention_is_one_call(pse_type):
    """What converters write about a term that is not there must not throw the short cut away."""
    from ge_graph import DataType, Graph, building
    from ge_graph import ops as ge
    from ge_runtime.cpu import CpuEngine

    graph = Graph("g")
    with building(graph):
        q, k, v = (ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(1, 2, n, 4)) for i, n in enumerate((1, 5, 5)))
        made = ge.FlashAttentionScore(
            q, k, v, head_num=2, input_layout="BNSD", scale_value=0.5, pse_type=pse_type, keep_prob=1.0
        )
        graph.outputs = [made[3]]
    executable = CpuEngine().compile(graph, {})
    assert "_fused_heads(" in executable.source
    tensors = [rand(1, 2, n, 4, seed=n) for n in (1, 5, 5)]
    close(executable.run(tensors)[0], attention(*map(f64, tensors), 0.5)[0])
