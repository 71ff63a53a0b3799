"""Operations of the transformer library (ATB) that torch_npu calls, eager, against torch and their formulas."""

import pytest
import torch
import torch.nn.functional as F
import torch_npu

HALF = {"rtol": 2e-3, "atol": 2e-3}
SIZE, HEADS, GROUPS, BLOCK = 16, 4, 2, 4
LENGTHS = (3, 2)
int32 = torch.int32


def turned(x, cos, sin, *, halves):
    """The formula of rotary embeddings; ``x`` is ``(tokens, heads, size)``, the angles ``(tokens, size / 2)``."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if halves:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def attention(query, key, value, scale, *, first=0):
    """torch's attention of one sequence, ``(tokens, heads, size)``; row i sees the keys up to ``first + i``."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in (key, value))
    seen = torch.ones(query.shape[0], key.shape[0], dtype=torch.bool).tril(first)
    operands = (t.float().transpose(0, 1).unsqueeze(0) for t in (query, key, value))
    return F.scaled_dot_product_attention(*operands, attn_mask=seen, scale=scale)[0].transpose(0, 1)


@pytest.fixture
def packed():
    torch.manual_seed(0)
    return [torch.randn(sum(LENGTHS), heads, SIZE).half() for heads in (HEADS, GROUPS, GROUPS)]


@pytest.fixture
def caches(packed):
    """The two sequences in pages 1 and 3, written by the operator itself, with a row of padding between."""
    _, key, value = packed
    made = [torch.zeros(5, BLOCK, GROUPS, SIZE).half().npu() for _ in range(2)]
    slots = torch.tensor([4, 5, 6, -1, 12, 13], dtype=int32)
    padded = [torch.cat((t[:3], torch.full_like(t[:1], 9), t[3:])) for t in (key, value)]
    torch_npu._npu_reshape_and_cache(
        key=padded[0].npu(), value=padded[1].npu(), key_cache=made[0], value_cache=made[1], slot_indices=slots.npu()
    )
    return made


TABLE = torch.tensor([[1], [3]], dtype=int32)
KNOWN = torch.tensor(LENGTHS, dtype=int32)
WHOLE = {"scale_value": 0.25, "num_heads": HEADS, "num_kv_heads": GROUPS}


@pytest.mark.parametrize("halves", [True, False])
def test_rotary_embedding(halves):
    positions = torch.tensor([0, 1, 7, 0, 1])
    angles = torch.outer(torch.arange(20.0), 1e4 ** -(torch.arange(0, SIZE, 2) / SIZE))
    table = torch.cat((angles.cos(), angles.sin()), -1).half()
    query, key = torch.randn(5, HEADS * SIZE).half(), torch.randn(5, GROUPS * SIZE).half()
    cos, sin = table[positions].float().chunk(2, -1)
    want = [turned(t.view(5, -1, SIZE).float(), cos, sin, halves=halves).flatten(1) for t in (query, key)]
    query, key = query.npu(), key.npu()
    torch_npu._npu_rotary_embedding(positions.npu(), query, key, SIZE, table.npu(), halves)
    for got, expected in zip((query, key), want):
        torch.testing.assert_close(got.cpu().float(), expected, **HALF)


def test_cache_takes_tokens_and_leaves_padding_out(packed, caches):
    for cache, tokens in zip(caches, packed[1:]):
        got = cache.cpu().view(-1, GROUPS, SIZE)
        want = torch.zeros_like(got)
        want[[4, 5, 6, 12, 13]] = tokens
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def expected(query, key, value):
    parts = zip(*(t.split(LENGTHS) for t in (query, key, value)))
    return torch.cat([attention(*each, 0.25) for each in parts])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_of_packed_sequences(packed, dtype):
    query, key, value = (t.to(dtype) for t in packed)
    out = torch.empty_like(query).npu()
    ones = torch.ones(8, 8).triu(1)  # a mask of the client: float16 adds it, bfloat16 marks with ones
    mask = ones.masked_fill(ones > 0, -torch.inf).half() if dtype == torch.float16 else ones.to(dtype)
    torch_npu._npu_flash_attention(query.npu(), key.npu(), value.npu(), mask.npu(), KNOWN, out=out, **WHOLE)
    torch.testing.assert_close(out.cpu().float(), expected(query, key, value), rtol=2e-2, atol=2e-2)
    torch_npu._npu_flash_attention_unpad(query.npu(), key.npu(), value.npu(), KNOWN, out=out, **WHOLE)
    parts = zip(*(t.split(LENGTHS) for t in (query, key, value)))
    free = torch.cat([attention(*each, 0.25, first=9) for each in parts])
    torch.testing.assert_close(out.cpu().float(), free, rtol=2e-2, atol=2e-2)


def test_attention_of_one_new_token_with_pages(packed, caches):
    query, key, value = packed
    last = [2, 4]
    out = torch.empty(2, HEADS, SIZE).half().npu()
    torch_npu._npu_paged_attention(
        query=query[last].npu(),
        key_cache=caches[0],
        value_cache=caches[1],
        block_table=TABLE.npu(),
        context_lens=KNOWN,
        out=out,
        **WHOLE,
    )
    torch.testing.assert_close(out.cpu().float(), expected(query, key, value)[last], **HALF)


def test_attention_of_several_new_tokens_with_pages(packed, caches):
    """The last two tokens of the first sequence and the last one of the second."""
    query, key, value = packed
    rows, new = [1, 2, 4], torch.tensor([2, 1], dtype=int32)
    want = expected(query, key, value)[rows]
    pages = {"query": query[rows].npu(), "key_cache": caches[0], "value_cache": caches[1], "block_table": TABLE.npu()}
    row_masks = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1.0]]) * -10000
    out = torch.empty(3, HEADS, SIZE).half().npu()
    torch_npu._npu_paged_attention_splitfuse(
        **pages, mask=row_masks.half().npu(), seq_len=new, context_lens=KNOWN, out=out, **WHOLE
    )
    torch.testing.assert_close(out.cpu().float(), want, **HALF)
    out = torch.empty(3, HEADS, SIZE).half().npu()
    triangle = torch.ones(128, 128).triu(1).half().npu()
    torch_npu._npu_flash_attention_qlens(**pages, mask=triangle, seq_len=new, context_lens=KNOWN, out=out, **WHOLE)
    torch.testing.assert_close(out.cpu().float(), want, **HALF)


def test_attention_whose_values_are_a_part_of_the_keys():
    """MLA: one head of keys, whose first 16 of 24 numbers are the values."""
    torch.manual_seed(0)
    query, latent = torch.randn(1, HEADS, 24).half(), torch.randn(2, BLOCK, 1, 24).half()
    out = torch.empty(1, HEADS, 16).half().npu()
    torch_npu._npu_paged_attention_mla(
        query=query.npu(),
        key_cache=latent.npu(),
        num_kv_heads=1,
        num_heads=HEADS,
        scale_value=0.3,
        block_table=torch.tensor([[1, 0]], dtype=int32).npu(),
        context_lens=torch.tensor([6], dtype=int32),
        mla_vheadsize=16,
        out=out,
    )
    key = torch.cat((latent[1], latent[0, :2]))
    torch.testing.assert_close(out.cpu().float(), attention(query, key, key[..., :16], 0.3, first=9), **HALF)


def test_groups_of_experts():
    weights = torch.tensor([[0.1, 0.9, 0.6, 0.5, 0.3, 0.2, 0.8, 0.1]]).half()
    given = weights.npu()
    torch_npu._npu_group_topk(self=given, k=1, group_num=2, n=2)  # sums of the best two: 1.5 and 1.1
    torch.testing.assert_close(given.cpu(), weights * torch.tensor([1, 1, 1, 1, 0, 0, 0, 0]), rtol=0, atol=0)


def test_rounding_to_int8():
    x, gamma, beta = torch.randn(3, 32).half(), torch.rand(32).half(), torch.rand(32).half()
    scale, offset = torch.tensor([0.03]).half(), torch.tensor([5], dtype=torch.int8)
    out = torch.zeros(3, 32, dtype=torch.int8).npu()
    torch_npu._npu_quantize_per_tensor(x.npu(), scale.npu(), offset.npu(), out)
    want = (x.float() / scale.float() + 5).round().clamp(-128, 127)
    torch.testing.assert_close(out.cpu().float(), want, rtol=0, atol=0)
    torch_npu._npu_quant_rms_norm(x.npu(), gamma.npu(), beta.npu(), scale.npu(), offset.npu(), out, 1e-3)
    normed = F.rms_norm(x.float(), (32,), gamma.float(), 1e-3) + beta.float()
    torch.testing.assert_close(out.cpu().float(), (normed / scale.float() + 5).round().clamp(-128, 127), rtol=0, atol=1)


def test_product_added_to_its_result():
    x, weight, held = torch.randn(3, 32).half(), torch.randn(3, 16).half(), torch.randn(32, 16)
    given = held.npu()
    torch_npu._npu_matmul_add_fp32(x.npu(), weight.npu(), given)
    torch.testing.assert_close(given.cpu(), held + x.float().T @ weight.float(), rtol=1e-5, atol=1e-5)


def test_what_is_not_computed_is_refused(packed):
    query, key, value = (t.npu() for t in packed)
    mask = torch.zeros(128, 128).half().npu()  # no triangle
    pages = torch.zeros(5, BLOCK, GROUPS, SIZE).half().npu()
    with pytest.raises(RuntimeError, match="a compressed mask is a triangle"):  # noqa: PT012 - seen at either line
        torch_npu._npu_flash_attention_qlens(
            query=query,
            key_cache=pages,
            value_cache=pages,
            block_table=TABLE.npu(),
            mask=mask,
            seq_len=KNOWN,
            context_lens=KNOWN,
            out=torch.empty_like(query),
            **WHOLE,
        )
        torch.npu.synchronize()
