"""What models write out in single operators becomes the fused operator of GE: eager's values, gradients, any size."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import torchair


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotary(q, k, angle):
    cos, sin = angle.cos().to(q.dtype).unsqueeze(1), angle.sin().to(q.dtype).unsqueeze(1)
    return q * cos + rotate_half(q) * sin, rotate_half(k) * sin + k * cos


def chunked_rotary(q, angle):
    a, b = q.chunk(2, -1)
    return q * angle.cos().to(q.dtype) + torch.cat((-b, a), -1) * angle.sin().to(q.dtype)


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def attention(q, k, v):
    scores = heads(q, 4) @ heads(k, 4).transpose(2, 3) * 0.25
    return (scores.softmax(-1) @ heads(v, 4)).transpose(1, 2).flatten(2)


def divided_attention(q, k, v):
    scores = heads(q, 4) @ heads(k, 4).mT / math.sqrt(3.0)
    return scores.softmax(-1, torch.float32).to(q.dtype) @ heads(v, 4)


def masked_attention(q, k, v):
    n, m = q.shape[1], k.shape[1]
    seen = torch.arange(m) <= torch.arange(n).unsqueeze(1)
    least = torch.finfo(q.dtype).min
    bias = torch.where(seen, 0.0, torch.tensor(least, dtype=q.dtype))[None, None].to(q.dtype)
    scores = heads(q, 4) @ heads(k, 4).transpose(2, 3) * 0.25 + bias
    return (scores.softmax(-1, torch.float32).to(q.dtype) @ heads(v, 4)).transpose(1, 2).flatten(2)


def grouped_attention(q, k, v):
    def repeated(x):
        b, n, s, d = x.shape
        return x[:, :, None].expand(b, n, 2, s, d).reshape(b, n * 2, s, d)

    k, v = repeated(heads(k, 2)), repeated(heads(v, 2))
    return (torch.matmul(heads(q, 4), k.transpose(2, 3)) * 0.3).softmax(-1) @ v


def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def swiglu(x):
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


def geglu(x):
    a, b = x.chunk(2, 0)
    return a * F.gelu(b)


def geglu_left(x):
    a, b = x.chunk(2, -1)
    return F.gelu(a, approximate="tanh") * b


def add_rms_norm(a, b, w):
    x = a + b
    return F.rms_norm(x, (16,), w, 1e-5), x * 2


def add_layer_norm(a, b, w):
    x = a + b
    return F.layer_norm(x, (16,), w, w, 1e-5), x * 2


def routing(x):
    share, expert = torch.topk(x.softmax(-1), 2, dim=-1)
    return share, expert


def renormalised_routing(x):
    share, expert = torch.topk(x.softmax(-1), 3, dim=-1)
    return share / share.sum(-1, keepdim=True), expert


_ROWS = [(2, 5, 16)] * 3
# function, shapes of its arguments, fused operators, types
ALL = (torch.float32, torch.float16, torch.bfloat16)
CASES = {
    "rotary": (rotary, [(2, 4, 5, 8), (2, 2, 5, 8), (2, 5, 8)], ["RotaryPositionEmbedding"] * 2, ALL),
    "rotary in chunks": (chunked_rotary, [(2, 4, 5, 8), (1, 1, 5, 8)], ["RotaryPositionEmbedding"], ALL),
    "attention": (attention, _ROWS, ["FlashAttentionScore"], ALL),
    "attention by a quotient": (divided_attention, [(2, 5, 16), (2, 7, 16), (2, 7, 16)], ["FlashAttentionScore"], ALL),
    "masked attention": (masked_attention, _ROWS, ["FlashAttentionScore"], (torch.float32, torch.bfloat16)),
    "grouped attention": (
        grouped_attention,
        [(2, 5, 16), (2, 5, 8), (2, 5, 8)],
        ["FlashAttentionScore"],
        ALL,
    ),
    "gelu by tanh": (new_gelu, [(3, 5)], ["Gelu"], ALL),
    "SwiGLU": (swiglu, [(3, 8)], ["SwiGlu"], ALL),
    "GEGLU": (geglu, [(8, 3, 2)], ["GeGluV2"], ALL),
    "GEGLU of the left half": (geglu_left, [(3, 8)], ["GeGluV2"], ALL),
    "RMS norm of a sum": (add_rms_norm, [(2, 5, 16), (2, 5, 16), (16,)], ["AddRmsNorm"], ALL),
    "layer norm of a sum": (add_layer_norm, [(2, 5, 16), (2, 5, 16), (16,)], ["AddLayerNorm"], (torch.float32,)),
    "routing": (routing, [(6, 8)], ["MoeGatingTopKSoftmax"], (torch.float32,)),
    "renormalised routing": (renormalised_routing, [(6, 8)], ["MoeGatingTopKSoftmaxV2"], (torch.float32,)),
}
TYPED = [(case, dtype) for case, (*_, dtypes) in CASES.items() for dtype in dtypes]
FUSED = {op for _, _, ops, _ in CASES.values() for op in ops}


def _inputs(shapes, dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def _each(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.night(rows=9)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("case", "dtype"), TYPED, ids=[f"{c}-{str(d)[6:]}" for c, d in TYPED])
def test_one_operator_with_the_values_of_eager(case, dtype, dynamic, recording):
    fn, shapes, operators, _ = CASES[case]
    inputs = _inputs(shapes, dtype)
    if dynamic:
        for x in inputs:
            if x.dim() > 1:
                torch._dynamo.mark_dynamic(x, x.dim() - 2)
    with recording() as seen, torch.no_grad():
        got = _each(torch.compile(fn, backend="npu", dynamic=None)(*inputs))
    ops = [n.op for n in seen.last_graph().nodes]
    assert sorted(op for op in ops if op in FUSED) == sorted(operators), ops
    truth = _each(fn(*[x.double() for x in inputs]))
    for g, w, t in zip(got, _each(fn(*inputs)), truth):
        assert g.dtype == w.dtype
        if dtype == torch.float32 or not w.is_floating_point():
            torch.testing.assert_close(g, w, atol=2e-6, rtol=2e-6)
        else:  # one rounding where eager has several: never further from the exact result than its rounding and eager
            bound = (w.double() - t).abs() + torch.finfo(dtype).eps * (1 + t.abs())
            assert ((g.double() - t).abs() <= bound).all()


@pytest.mark.parametrize("case", [c for c in CASES if "routing" not in c])
def test_gradients_are_those_of_eager(case):
    fn, shapes, *_ = CASES[case]
    left, right = ([x.requires_grad_() for x in _inputs(shapes, torch.float32)] for _ in range(2))
    got, want = _each(torch.compile(fn, backend="npu")(*left)), _each(fn(*right))
    grads = [torch.randn(w.shape) for w in want]
    torch.autograd.backward(got, grads)
    torch.autograd.backward(want, grads)
    for a, b in zip(left, right):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize(("fn", "shapes"), [(case[0], case[1]) for n, case in CASES.items() if "rotary" in n])
def test_the_gradient_of_a_rotation_is_one_operator(fn, shapes, dtype, dynamic, recording):
    def gradients(called, given):
        inputs = [x.clone().requires_grad_(i < len(given) - 1) for i, x in enumerate(given)]  # angles are no parameters
        results = _each(called(*inputs))
        torch.autograd.backward(results, [torch.ones_like(r) * 0.7 + r.detach() for r in results])
        return [x.grad for x in inputs[:-1]]

    given = _inputs(shapes, dtype)
    if dynamic:
        for x in given:
            torch._dynamo.mark_dynamic(x, x.dim() - 2)
    with recording() as seen:
        got = gradients(torch.compile(fn, backend="npu"), given)
    ops = [n.op for n in seen.last_graph().nodes]
    assert ops.count("RotaryPositionEmbeddingGrad") == len(got), ops
    truth = gradients(fn, [x.double() for x in given])
    for g, w, t in zip(got, gradients(fn, given), truth):
        if dtype == torch.float32:
            torch.testing.assert_close(g, w, atol=2e-6, rtol=2e-6)
        else:  # as above, with what the rounded result gave to the gradient that comes in
            bound = (w.double() - t).abs() + 4 * torch.finfo(dtype).eps * (1 + t.abs())
            assert ((g.double() - t).abs() <= bound).all()


def read_twice(q, k, v):
    weights = (heads(q, 4) @ heads(k, 4).transpose(2, 3)).softmax(-1)
    return weights @ heads(v, 4), weights


def other_rotation(q, k, v):
    x = heads(q, 4)
    return x * heads(k, 4) + torch.cat((x[..., 2:], -x[..., :2]), -1) * heads(v, 4)


def wrong_half(q, k, v):
    x = heads(q, 4)
    return x * heads(k, 4) + torch.cat((-x[..., 1:], x[..., :1]), -1) * heads(v, 4)


def other_constant(q, k, v):
    return 0.5 * q * (1.0 + torch.tanh(0.8 * (q + 0.05 * torch.pow(q, 3.0))))


def gate_of_another(q, k, v):
    return F.silu(q.chunk(2, -1)[0]) * k.chunk(2, -1)[1]


def least_shares(q, k, v):
    return torch.topk(q.softmax(-1), 2, dim=-1, largest=False)


def shares_of_another_axis(q, k, v):
    return torch.topk(q.softmax(1), 2, dim=-1)


def wider_sum(q, k, v):
    return F.layer_norm(q + k[:1, :1], (16,), q[0, 0], k[0, 0])


@pytest.mark.parametrize(
    "fn",
    [
        read_twice,
        other_rotation,
        wrong_half,
        other_constant,
        gate_of_another,
        least_shares,
        shares_of_another_axis,
        wider_sum,
    ],
)
def test_what_is_another_function_is_not_fused(fn, recording):
    inputs = _inputs(_ROWS, torch.float32)
    with recording() as seen, torch.no_grad():
        got = torch.compile(fn, backend="npu", dynamic=False)(*inputs)
    torch.testing.assert_close(got, fn(*inputs), equal_nan=True)
    assert FUSED.isdisjoint(n.op for n in seen.last_graph().nodes)


def hidden_by_infinity(q, k, v):
    seen = torch.arange(k.shape[1]) <= torch.arange(q.shape[1]).unsqueeze(1) - 1
    scores = heads(q, 4) @ heads(k, 4).transpose(2, 3) + torch.where(seen, 0.0, -math.inf)
    return scores.softmax(-1) @ heads(v, 4)


def two_least_masks(q, k, v):
    least = torch.full((1, 1, q.shape[1], k.shape[1]), torch.finfo(torch.float32).min)
    scores = heads(q, 4) @ heads(k, 4).transpose(2, 3) + torch.where(q[0, 0, 0] < 9, least, 0.0) + least
    return scores.softmax(-1) @ heads(v, 4)


def table_of_positions(q, k, v, table):
    far = (torch.arange(k.shape[1]) - torch.arange(q.shape[1]).unsqueeze(1)).clamp(-2, 2) + 2
    bias = F.embedding(far, table).permute(2, 0, 1).unsqueeze(0)
    scores = heads(q, 4) @ heads(k, 4).transpose(2, 3) + bias
    return scores.softmax(-1) @ heads(v, 4)


def slopes(q, k, v, slope):
    far = (torch.arange(k.shape[1]) - torch.arange(q.shape[1]).unsqueeze(1)).to(q.dtype)
    return (heads(q, 4) @ heads(k, 4).transpose(2, 3) + far * slope).softmax(-1) @ heads(v, 4)


INF = math.inf
TABLES = {
    "numbers": [0.5, -1.0, 2.0, 0.0, 3.0],
    "some hidden": [-INF, -1.0, 2.0, -INF, 3.0],
    "all hidden": [-INF] * 5,
    "rows hidden": [0.5, 1.0, -INF, -INF, -INF],
    "largest": [torch.finfo(torch.float32).max, 0.0, 0.0, 0.0, 1.0],
    "least": [torch.finfo(torch.float32).min] * 5,
    "inf": [INF, 0.0, 1.0, 2.0, 3.0],
    "nan": [math.nan, 0.0, 1.0, 2.0, 3.0],
}
_TABLE = {name: torch.tensor(column).unsqueeze(1).expand(5, 4).contiguous() for name, column in TABLES.items()}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("fn", "given"),
    [
        (hidden_by_infinity, {"": ()}),
        (two_least_masks, {"": ()}),
        (slopes, {"slopes": (torch.tensor(-0.5),), "slopes without end": (torch.tensor(INF),)}),
        (table_of_positions, {name: (table,) for name, table in _TABLE.items()}),
    ],
)
def test_attention_with_a_bias_that_nobody_knows_has_the_nans_of_eager(fn, given, dynamic, recording):
    """One graph, for nobody knows the bias while it is made."""
    inputs = _inputs(_ROWS, torch.float32)
    if dynamic:
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 1)
    with recording() as seen, torch.no_grad():
        call = torch.compile(fn, backend="npu", dynamic=None, fullgraph=True)
        got = {name: call(*inputs, *more) for name, more in given.items()}
    want = {name: fn(*inputs, *more) for name, more in given.items()}
    torch.testing.assert_close(got, want, equal_nan=True)
    assert len(seen.models) == 1
    assert "FlashAttentionScore" in [n.op for n in seen.last_graph().nodes]


def test_the_switch_of_fusions_holds_for_ge_operators_too(recording):
    config = torchair.CompilerConfig()
    config.experimental_config.pattern_fusion_pass = False
    inputs = _inputs([(3, 8)], torch.float32)
    with recording() as seen, torch.no_grad():
        got = torch.compile(swiglu, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)(*inputs)
    torch.testing.assert_close(got, swiglu(*inputs))
    assert FUSED.isdisjoint(n.op for n in seen.last_graph().nodes)


def library_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def library_attention_with_mask(q, k, v):
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def grouped_library_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], scale=0.3, enable_gqa=True)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("fn", [library_attention, library_attention_with_mask, grouped_library_attention])
def test_attention_of_16_bits_without_gradients_makes_no_statistics(fn, dtype, trained, recording):
    inputs = [x.requires_grad_(trained) for x in _inputs([(2, 4, 5, 16), (2, 4, 7, 16), (2, 4, 7, 16)], dtype)]
    with recording() as seen:
        got = torch.compile(fn, backend="npu", dynamic=False)(*inputs)
    ops = [n.op for n in seen.last_graph().nodes]
    # In bfloat16 the mask is a bias, whose sizes the other operator restricts.
    biased = dtype == torch.bfloat16 and fn is library_attention_with_mask
    wanted = "FlashAttentionScore" if trained or biased or dtype == torch.float32 else "FusedInferAttentionScore"
    assert [op for op in ops if op in ("FlashAttentionScore", "FusedInferAttentionScore")] == [wanted], ops
    torch.testing.assert_close(got, fn(*inputs), atol=2e-2 if dtype == torch.bfloat16 else 2e-3, rtol=2e-2)


@pytest.mark.parametrize("width", [8, 528])
def test_widths_of_heads_that_inference_attention_does_not_take(width, recording):
    inputs = _inputs([(1, 2, 3, width)] * 3, torch.float16)
    with recording() as seen, torch.no_grad():
        got = torch.compile(library_attention, backend="npu", dynamic=False)(*inputs)
    assert "FusedInferAttentionScore" not in [n.op for n in seen.last_graph().nodes]
    torch.testing.assert_close(got, library_attention(*inputs), atol=2e-3, rtol=2e-2)
