"""``flex_attention``: eager's numbers for every kind of function, and one operator where the functions are a mask."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import and_masks, create_block_mask, flex_attention, or_masks

import torchair
from tair_testing.compiling import compiled, same

HEADS, QUERIES, KEYS, WIDTH = 4, 16, 24, 8
DOCUMENT = torch.arange(KEYS) // 5
LENGTHS = torch.tensor([7, 24])
SLOPES = torch.tensor([0.5, 0.25, -0.125, 1.0])


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return q - k <= 5


def document(b, h, q, k):
    return DOCUMENT[q] == DOCUMENT[k]


def padding(b, h, q, k):
    return k < LENGTHS[b]


def alibi(s, b, h, q, k):
    return s + SLOPES[h] * (q - k)


def softcap(s, b, h, q, k):
    return 20 * torch.tanh(s / 20)


def blocks(mask, batch=None, heads=None, size=128):
    return create_block_mask(mask, batch, heads, QUERIES, KEYS, device="cpu", BLOCK_SIZE=size)


def score(function, mask=None):
    def call(q, k, v):
        return flex_attention(q, k, v, function, None if mask is None else blocks(mask))

    return call


FUSED = {  # attention is one operator
    "nothing": lambda q, k, v: flex_attention(q, k, v),
    "causal": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(causal)),
    "causal scores": score(lambda s, b, h, q, k: torch.where(q >= k, s, -math.inf)),
    "later first": score(lambda s, b, h, q, k: torch.where(k > q, -math.inf, s)),
    "filled": score(lambda s, b, h, q, k: s.masked_fill(k > q + 2, -math.inf)),
    "window": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(and_masks(causal, window))),
    "document": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(and_masks(document, causal))),
    "prefix": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(or_masks(causal, padding), 2)),
    "padding": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(padding, 2)),
    "by head": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(lambda b, h, q, k: q > h + k, None, HEADS)),
    "small blocks": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(causal, size=8)),
    "alibi": score(alibi),
    "alibi causal": score(alibi, causal),
    "two kinds": score(lambda s, b, h, q, k: torch.where(b == 0, s + h, torch.where(q >= k, s - k, -math.inf))),
    "grouped": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True, block_mask=blocks(causal)),
    "scale": lambda q, k, v: flex_attention(q, k, v, scale=0.7, kernel_options={"BLOCK_M": 16}),
    "logarithms": lambda q, k, v: flex_attention(q, k, v, block_mask=blocks(causal), return_lse=True),
    "rows without keys": lambda q, k, v: flex_attention(
        q, k, v, block_mask=blocks(lambda b, h, q, k: (k < LENGTHS[b]) & (k > q + 3), 2), return_lse=True
    ),
    "one batch of keys": lambda q, k, v: flex_attention(q, k[:1], v[:1], block_mask=blocks(causal, 2)),
    "transposed": lambda q, k, v: flex_attention(q.mT.contiguous().mT, k, v).transpose(1, 2).flatten(2),
}
COMPOSED = {
    "softcap": score(softcap, causal),
    "product": score(lambda s, b, h, q, k: s * (k + 1)),
    "replaced": score(lambda s, b, h, q, k: torch.where(q >= k, s, -5.0)),
    "twice the score": score(lambda s, b, h, q, k: s + s * 0.5),
    "narrow value": lambda q, k, v: flex_attention(q, k, v[..., :5].contiguous(), block_mask=blocks(causal)),
    "grouped softcap": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], softcap, enable_gqa=True),
}


def operands(dtype=torch.float32, batch=2, queries=QUERIES, keys=KEYS):
    torch.manual_seed(0)
    return tuple(torch.randn(batch, HEADS, n, WIDTH).to(dtype) for n in (queries, keys, keys))


@pytest.mark.night(rows=5)
@pytest.mark.parametrize("case", FUSED)
def test_a_mask_and_a_bias_are_operands_of_one_operator(case, recording):
    x = operands()
    want = FUSED[case](*x)
    with recording() as seen, torch.no_grad():
        got = compiled(FUSED[case])(*x)
    same(got, want)
    names = [n.op for n in seen.last_graph().nodes]
    assert names.count("FlashAttentionScore") == 1
    assert "BatchMatMulV2" not in names


@pytest.mark.parametrize("case", COMPOSED)
def test_other_functions_stand_between_the_products(case, recording):
    x = operands()
    want = COMPOSED[case](*x)
    with recording() as seen, torch.no_grad():
        got = compiled(COMPOSED[case])(*x)
    same(got, want)
    assert "FlashAttentionScore" not in [n.op for n in seen.last_graph().nodes]


@pytest.mark.night(rows=7)
@pytest.mark.parametrize("case", ["causal", "alibi", "rows without keys", "grouped", "softcap"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(case, dtype):
    fn = {**FUSED, **COMPOSED}[case]
    x = operands(dtype)
    bound = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-7}[dtype]
    torch.testing.assert_close(compiled(fn)(*x), fn(*x), rtol=bound, atol=bound)


@pytest.mark.parametrize(
    ("case", "dtype"), [("causal", torch.float64), ("alibi", torch.float16), ("alibi", torch.bfloat16)], ids=str
)
def test_what_has_no_place_in_the_operator_stands_between_the_products(case, dtype, recording):
    with recording() as seen, torch.no_grad():
        compiled(FUSED[case])(*operands(dtype))
    assert "FlashAttentionScore" not in [n.op for n in seen.last_graph().nodes]


@pytest.mark.parametrize("function", [lambda s, b, h, q, k: s, softcap])
def test_every_result_of_the_operator_itself(function):
    """The public function gives no maxima of CPU tensors."""

    def fn(q, k, v):
        mask = blocks(causal).as_tuple()
        return torch.ops.higher_order.flex_attention(q, k, v, function, mask, 0.3, {})

    x = operands()
    want = fn(*x)
    assert len(want) in (2, 3)
    same(compiled(fn)(*x), want)


def test_a_causal_mask_is_a_mode_and_no_tensor(recording):
    with recording() as seen, torch.no_grad():
        compiled(FUSED["causal"])(*operands())
    (node,) = [n for n in seen.last_graph().nodes if n.op == "FlashAttentionScore"]
    assert node.attr("sparse_mode") == 2


@pytest.mark.slow
@pytest.mark.parametrize("function", [alibi, softcap])
def test_open_sizes(function):
    def fn(q, k, v):
        mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, function, mask)

    with torchair.record_compilation() as reports:
        call = compiled(fn, dynamic=True)
        for batch, queries, keys in ((2, 5, 7), (3, 60, 31)):
            x = operands(batch=batch, queries=queries, keys=keys)
            torch.testing.assert_close(call(*x), fn(*x))
    assert len(reports) == 1


def test_one_query_at_a_time():
    def step(q, k, v, at):
        mask = create_block_mask(lambda b, h, i, j: j <= at, None, None, 1, KEYS, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    q, k, v = operands()
    call = compiled(step)
    with torchair.record_compilation() as reports:
        for i in range(3):
            at = torch.tensor(i + 4)
            torch.testing.assert_close(call(q[:, :, i : i + 1], k, v, at), step(q[:, :, i : i + 1], k, v, at))
    assert len(reports) == 1


LEARNED = torch.randn(HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(3))
TRAINED = {
    "causal": lambda q, k, v, t: flex_attention(q, k, v, block_mask=blocks(causal)),
    "grouped": lambda q, k, v, t: flex_attention(q, k[:, :2], v[:, :2], enable_gqa=True, block_mask=blocks(window)),
    "table": lambda q, k, v, t: flex_attention(q, k, v, lambda s, b, h, q, k: s + t[h, q, k], blocks(causal)),
    "softcap": lambda q, k, v, t: flex_attention(q, k, v, softcap, blocks(document)),
    "logarithms": lambda q, k, v, t: flex_attention(q, k, v, block_mask=blocks(causal), return_lse=True),
    "rows without keys": lambda q, k, v, t: flex_attention(
        q, k, v, block_mask=blocks(lambda b, h, q, k: k > q + 14), return_lse=True
    ),
    "one batch of keys": lambda q, k, v, t: flex_attention(q, k[:1], v[:1], block_mask=blocks(causal, 2)),
}


@pytest.mark.night(rows=7)
@pytest.mark.parametrize("case", TRAINED)
def test_gradients(case, monkeypatch, recording):
    # eager refuses gradients of CPU tensors before it looks at anything; the operator under it has them
    monkeypatch.setattr(module, "_validate_device", lambda *args: None)
    found = []
    for backend in ("eager", "npu"):
        torch._dynamo.reset()
        x = [t.clone().requires_grad_() for t in (*operands(), LEARNED)]
        with recording() as seen:
            out = torch.compile(TRAINED[case], backend=backend, fullgraph=True)(*x)
            parts = out if isinstance(out, tuple) else (out,)
            sum(
                (torch.where(p.isinf(), 0, p) * torch.arange(p.numel()).view(p.shape).sin()).sum() for p in parts
            ).backward()
        found.append([*parts, *(t.grad for t in x)])
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want)
    if case == "causal":
        assert "FlashAttentionScoreGrad" in [n.op for n in seen.last_graph().nodes]


def test_torch_refuses_gradients_of_cpu_tensors():
    with pytest.raises(NotImplementedError, match="(?i)cpu"):
        flex_attention(*(t.requires_grad_() for t in operands()))


def test_under_autocast():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, softcap, blocks(causal))

    x = operands()
    torch.testing.assert_close(compiled(fn)(*x), fn(*x), rtol=1.6e-2, atol=1e-2)


@pytest.mark.slow
def test_functions_are_part_of_what_the_cache_knows(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path))
    x = operands()
    fns = [score(softcap), score(lambda s, b, h, q, k: 10 * torch.tanh(s / 10))]
    for _ in range(2):
        for fn in fns:
            torch.testing.assert_close(compiled(fn)(*x), fn(*x))
