"""Attention as torch_npu's documentation has it, by ``scaled_dot_product_attention``; and calls to prove it with."""

from __future__ import annotations

import math
from typing import Any

import torch
from npu_formulas import F32, HALVES, Case, call, fake, gradients, rand, up
from torch import Tensor
from torch.nn import functional

# -- attention --------------------------------------------------------------------------------------------------------


DENSE = ("BNSD_BSND", "BSND_BNSD", "BSH_BNSD", "BNSD_NBSD", "BSND_NBSD", "BSH_NBSD")
PACKED = ("TND", "TND_NTD", "NTD_TND")
LAYOUTS = (*DENSE, *PACKED)


def heads_first(x: Tensor, layout: str, heads: int) -> Tensor:
    """(B, N, S, D) of a layout."""
    if layout == "BSH":
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)
    if layout == "SBH":
        return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
    return x.transpose(1, 2) if layout == "BSND" else x


def heads_back(y: Tensor, layout: str) -> Tensor:
    if layout == "BSH":
        return y.transpose(1, 2).flatten(2)
    if layout == "SBH":
        return y.permute(2, 0, 1, 3).flatten(2)
    return y.transpose(1, 2) if layout == "BSND" else y


def seen_by(mode: int, rows: int, columns: int, pre: int, following: int, mask: Tensor | None) -> Tensor | None:
    """What a query sees, as ``scaled_dot_product_attention`` takes it, from the documentation of sparse_mode."""
    i, j = torch.arange(rows).unsqueeze(1), torch.arange(columns)
    if mode == 2:
        return j <= i
    if mode == 3:
        return j - columns <= i - rows
    if mode == 4:
        i = i + columns - rows
        return (j >= i - pre) & (j <= i + following)
    return None if mask is None else ~mask.bool()


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, seen: Tensor | None) -> Any:
    """(out, largest score, sum of exponentials) on (B, N, S, D) in float32; key heads serve groups of query heads."""
    q, k, v = up(q), up(k), up(v)
    if fake(q):
        sums = q.new_empty(*q.shape[:-1], 1)
        return q.new_empty(*q.shape[:-1], v.shape[-1]), sums, sums.clone()
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    mask = None if bias is None else up(bias) * scale
    if seen is not None:
        hidden = torch.zeros(seen.shape).masked_fill(~seen, -math.inf)
        mask = hidden if mask is None else mask + hidden
    out = functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    scores = q @ k.transpose(-1, -2) * scale + (0 if mask is None else mask)
    top = scores.amax(-1, keepdim=True)
    return out, top, (scores - top).exp().sum(-1, keepdim=True)


def fusion_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    pse: Tensor | None = None,
    padding_mask: Any = None,
    atten_mask: Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    *_: Any,
    **__: Any,
) -> Any:
    kv_heads = head_num * key.shape[-1] // query.shape[-1] if input_layout in ("BSH", "SBH") else 0
    if input_layout == "TND":
        return _packed_attention(query, key, value, scale, actual_seq_qlen, actual_seq_kvlen)
    q = heads_first(query, input_layout, head_num)
    k, v = (heads_first(t, input_layout, kv_heads) for t in (key, value))
    seen = seen_by(sparse_mode, q.shape[2], k.shape[2], pre_tockens, next_tockens, atten_mask)
    out, top, total = attention(q, k, v, scale, pse, seen)
    out = heads_back(out, input_layout).to(query.dtype).contiguous()
    eight = [t.expand(*t.shape[:-1], 8).contiguous() for t in (top, total)]
    return (out, *eight, query.new_empty(0), 0, 0, 0)


def _packed_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, q_ends: Any, k_ends: Any) -> Any:
    outs, tops, totals, a, c = [], [], [], 0, 0
    for b, d in zip(q_ends, k_ends):
        parts = (query[a:b], key[c:d], value[c:d])
        out, top, total = attention(*(t.transpose(0, 1).unsqueeze(0) for t in parts), scale, None, None)
        outs.append(out[0].transpose(0, 1))
        tops.append(top[0].transpose(0, 1))
        totals.append(total[0].transpose(0, 1))
        a, c = b, d
    out = torch.cat(outs).to(query.dtype).contiguous()
    eight = [torch.cat(t).expand(-1, -1, 8).contiguous() for t in (tops, totals)]
    return (out, *eight, query.new_empty(0), 0, 0, 0)


def fusion_attention_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    **rest: Any,
) -> Any:
    return fusion_attention(
        query, key, value, head_num, input_layout, pre_tockens=pre_tokens, next_tockens=next_tokens, **rest
    )


def fusion_attention_v3(*args: Any, **keywords: Any) -> Any:
    """Seed and offset of the dropout are tensors here."""
    made = fusion_attention(*args, **keywords)
    return (*made[:4], torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


def fusion_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    scale_value: float = 1.0,
    pse: Tensor | None = None,
    atten_mask: Tensor | None = None,
    sparse_mode: int = 0,
    **_: Any,
) -> Any:
    dpse = query.new_empty(0) if pse is None else torch.empty_like(pse)
    if isinstance(query, torch._subclasses.FakeTensor):
        return (
            torch.empty_like(query),
            torch.empty_like(key),
            torch.empty_like(value),
            dpse,
            query.new_empty(0, dtype=F32),
        )

    def run(*tensors: Tensor) -> Tensor:
        q, k, v, *bias = tensors
        return fusion_attention(
            q, k, v, head_num, input_layout, *bias, atten_mask=atten_mask, scale=scale_value, sparse_mode=sparse_mode
        )[0]

    leaves = [query, key, value] if pse is None else [query, key, value, pse]
    made = [g.to(query.dtype) for g in gradients(run, dy, *leaves)]
    return (*made[:3], made[3] if pse is not None else dpse, query.new_empty(0, dtype=F32))


def fusion_attention_grad_v2(query: Tensor, *args: Any, **keywords: Any) -> Any:
    """As the first version; gradients of rotary parts, which the cases do not have, and of the sink stand behind."""
    return (*fusion_attention_grad(query, *args, **keywords), query.new_empty(0), query.new_empty(0))


def infer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    atten_mask: Tensor | None = None,
    pse_shift: Tensor | None = None,
    sparse_mode: int = 0,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    **_: Any,
) -> Any:
    kv = num_key_value_heads or num_heads
    q = heads_first(query, input_layout, num_heads)
    k, v = (heads_first(t, input_layout, kv) for t in (key, value))
    seen = seen_by(sparse_mode, q.shape[2], k.shape[2], 0, 0, atten_mask)
    if actual_seq_lengths_kv is not None:
        valid = torch.arange(k.shape[2]) < torch.tensor(actual_seq_lengths_kv)[:, None]
        seen = valid[:, None, None, :]
    bias = None if pse_shift is None else up(pse_shift) / scale_value  # added to the scaled scores
    out, top, total = attention(q, k, v, scale_value, bias, seen)
    return heads_back(out, input_layout).to(query.dtype).contiguous(), top + total.log()


def prompt_attention(*args: Any, **keywords: Any) -> Any:
    return infer_attention(*args, **keywords)[0]


def incre_attention(*args: Any, actual_seq_lengths: Any = None, **keywords: Any) -> Any:
    return infer_attention(*args, actual_seq_lengths_kv=actual_seq_lengths, **keywords)[0]


def fused_infer(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float = 1.0, softmax_lse_flag: bool = False, **rest: Any
) -> Any:
    if rest["input_layout"] in LAYOUTS or rest.get("block_table") is not None:
        return laid_out(query, key, value, scale=scale, **rest)
    out, lse = infer_attention(query, key, value, scale_value=scale, **rest)
    return out, lse if softmax_lse_flag else query.new_empty(0, dtype=F32)


def fused_infer_v2(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    num_query_heads: int = 1,
    softmax_scale: float = 1.0,
    return_softmax_lse: bool = False,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    **rest: Any,
) -> Any:
    return fused_infer(
        query,
        key,
        value,
        scale=softmax_scale,
        num_heads=num_query_heads,
        softmax_lse_flag=return_softmax_lse,
        actual_seq_lengths_kv=actual_seq_kvlen,
        **rest,
    )


def laid_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    num_heads: int,
    input_layout: str,
    scale: float,
    num_key_value_heads: int = 0,
    query_rope: Tensor | None = None,
    key_rope: Tensor | None = None,
    block_table: Tensor | None = None,
    actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None,
    **_: Any,
) -> Any:
    """Attention of one sequence after the other, from the layout that stands before "_" into the one behind it."""
    read, _sep, write = input_layout.partition("_")
    write, packed = write or read, read in ("TND", "NTD")
    kv, none = num_key_value_heads or num_heads, query.new_empty(0, dtype=F32)

    def each(x: Tensor, heads: int, lengths: Any) -> list[Tensor]:
        """(N, S, D) of each sequence."""
        if not packed:
            return list(heads_first(x, read, heads))
        ends = list(lengths)
        return [(x.transpose(0, 1) if read == "TND" else x)[:, a:b] for a, b in zip([0, *ends], ends)]

    def keys(x: Tensor) -> list[Tensor]:
        if block_table is None:
            return each(x, kv, actual_seq_lengths_kv)
        pages = x.permute(0, 1, 3, 2, 4).flatten(3) if x.dim() == 5 else x  # (pages, N, page, D)
        return [torch.cat([pages[int(p)] for p in row], 1)[:, :n] for row, n in zip(block_table, actual_seq_lengths_kv)]

    def shown(parts: list[Tensor]) -> Tensor:
        if packed:
            y = torch.cat(parts, 1)
            return y if write == "NTD" else y.transpose(0, 1)
        y = torch.stack(parts)
        return y.permute(1, 0, 2, 3) if write == "NBSD" else heads_back(y, write)

    queries = each(query, num_heads, actual_seq_lengths)
    if fake(query):
        return shown([q.new_empty(*q.shape[:-1], 16) for q in queries]).contiguous(), none
    k, v = keys(key), keys(value)
    if query_rope is not None and key_rope is not None:
        ropes = zip(each(query_rope, num_heads, actual_seq_lengths), keys(key_rope))
        joined = [(torch.cat((a, r), -1), torch.cat((b, s), -1)) for a, b, (r, s) in zip(queries, k, ropes)]
        queries, k = ([pair[i] for pair in joined] for i in (0, 1))
    parts = [attention(*(t.unsqueeze(0) for t in one), scale, None, None)[0][0] for one in zip(queries, k, v)]
    return shown(parts).to(query.dtype).contiguous(), none


def attention_update(lse: list[Tensor], local_out: list[Tensor], update_type: int) -> Any:
    total = torch.logsumexp(torch.stack(lse), 0)
    parts = [torch.exp(s - total).unsqueeze(-1) * up(o) for s, o in zip(lse, local_out)]
    return torch.stack(parts).sum(0).to(local_out[0].dtype), total


def _attention_cases() -> list[Case]:
    triangle = torch.ones(5, 5, dtype=torch.bool).triu(1)
    template = torch.ones(2048, 2048, dtype=torch.bool).triu(1)

    def qkv(d: torch.dtype, heads: int = 4, kv: int = 4, rows: int = 5, columns: int = 5) -> list[Tensor]:
        return [rand(2, h, n, 16).to(d) for h, n in ((heads, rows), (kv, columns), (kv, columns))]

    def flat(d: torch.dtype, sbh: bool = False) -> list[Tensor]:
        return [rand(*((5, 2) if sbh else (2, 5)), n).to(d) for n in (64, 32, 32)]

    def saved(d: torch.dtype, layout: str, tensors: list[Tensor], **keywords: Any) -> Any:
        y, top, total, *_ = fusion_attention(*tensors, 4, layout, scale=0.25, **keywords)
        dy = rand(*y.shape).to(d)
        return call(
            *tensors, dy, 4, layout, softmax_max=top, softmax_sum=total, attention_in=y, scale_value=0.25, **keywords
        )

    first = (0, 1, 2)
    flash, grad = "npu_fusion_attention", "npu_fusion_attention_grad"
    cases = [
        Case(flash, fusion_attention, lambda d: call(*qkv(d), 4, "BNSD", scale=0.25), outputs=first),
        Case(
            flash,
            fusion_attention,
            lambda d: call(*qkv(d), 4, "BNSD", scale=0.25, atten_mask=triangle),
            outputs=first,
            tag="mask",
        ),
        Case(
            flash,
            fusion_attention,
            lambda d: call(*qkv(d, 4, 2, 5, 7), 4, "BNSD", scale=0.25, atten_mask=template, sparse_mode=3),
            outputs=(0,),
            tag="grouped, right-down causal",
        ),
        Case(
            flash,
            fusion_attention,
            lambda d: call(*qkv(d), 4, "BNSD", scale=0.25, atten_mask=template, sparse_mode=2),
            outputs=(0,),
            tag="left-up causal",
        ),
        Case(
            flash,
            fusion_attention,
            lambda d: call(
                *qkv(d), 4, "BNSD", scale=0.25, atten_mask=template, pre_tockens=2, next_tockens=1, sparse_mode=4
            ),
            outputs=(0,),
            tag="band",
        ),
        Case(
            flash,
            fusion_attention,
            lambda d: call(*qkv(d), 4, "BNSD", rand(2, 4, 5, 5).to(d), scale=0.25),
            outputs=first,
            tag="bias",
        ),
        Case(
            "npu_fusion_attention_grad_v2",
            fusion_attention_grad_v2,
            lambda d: saved(d, "BNSD", qkv(d)),
            outputs=first,
            tolerance=2e-2,
        ),
        Case(flash, fusion_attention, lambda d: call(*flat(d), 4, "BSH", scale=0.25), outputs=first, tag="BSH"),
        Case(flash, fusion_attention, lambda d: call(*flat(d, True), 4, "SBH", scale=0.25), outputs=first, tag="SBH"),
        Case(
            flash,
            fusion_attention,
            lambda d: call(*[t.transpose(1, 2).contiguous() for t in qkv(d)], 4, "BSND", scale=0.25),
            outputs=first,
            tag="BSND",
        ),
        Case(
            flash,
            fusion_attention,
            lambda d: call(
                *[rand(9, 4, 16).to(d) for _ in range(3)],
                4,
                "TND",
                scale=0.25,
                actual_seq_qlen=[3, 9],
                actual_seq_kvlen=[3, 9],
            ),
            outputs=first,
            tag="TND",
            dynamic=False,
        ),
        Case(
            flash + "_v2",
            fusion_attention_v2,
            lambda d: call(*qkv(d), 4, "BNSD", scale=0.25, atten_mask=triangle),
            outputs=first,
        ),
        Case(
            flash + "_v3",
            fusion_attention_v3,
            lambda d: call(*qkv(d), 4, "BNSD", scale=0.25, atten_mask=triangle),
            outputs=first,
        ),
        Case(
            grad + "_v3",
            fusion_attention_grad,
            lambda d: saved(d, "BNSD", qkv(d, 4, 2), atten_mask=triangle),
            outputs=first,
            tolerance=2e-2,
        ),
        Case(grad, fusion_attention_grad, lambda d: saved(d, "BNSD", qkv(d)), outputs=first, tolerance=2e-2),
        Case(
            grad,
            fusion_attention_grad,
            lambda d: saved(d, "BNSD", qkv(d, 4, 2), atten_mask=triangle),
            outputs=first,
            tag="grouped, mask",
            tolerance=2e-2,
        ),
        Case(
            grad,
            fusion_attention_grad,
            lambda d: saved(d, "BNSD", qkv(d), pse=rand(2, 4, 5, 5).to(d)),
            outputs=(0, 1, 2, 3),
            tag="bias",
            tolerance=2e-2,
        ),
        Case(grad, fusion_attention_grad, lambda d: saved(d, "BSH", flat(d)), outputs=first, tag="BSH", tolerance=2e-2),
        Case(
            "npu_attention_update",
            attention_update,
            lambda d: call([rand(6), rand(6)], [rand(6, 64).to(d), rand(6, 64).to(d)], 1),
        ),
    ]
    return cases + _infer_cases(qkv, flat, triangle, template)


def _infer_cases(qkv: Any, flat: Any, triangle: Tensor, template: Tensor) -> list[Case]:
    bnsd = {"num_heads": 4, "input_layout": "BNSD"}
    v2 = {"num_query_heads": 4, "input_layout": "BNSD", "softmax_scale": 0.25}
    prompt, incre, fused = "npu_prompt_flash_attention", "npu_incre_flash_attention", "npu_fused_infer_attention_score"
    far = 2147483647
    return [
        Case(prompt, prompt_attention, lambda d: call(*qkv(d), scale_value=0.25, next_tokens=far, **bnsd)),
        Case(
            prompt,
            prompt_attention,
            lambda d: call(*flat(d), scale_value=0.25, num_heads=4, num_key_value_heads=2, next_tokens=far),
            tag="BSH, grouped",
        ),
        Case(
            prompt,
            prompt_attention,
            lambda d: call(*qkv(d), scale_value=0.25, atten_mask=triangle, next_tokens=far, **bnsd),
            tag="mask",
        ),
        Case(
            prompt,
            prompt_attention,
            lambda d: call(*qkv(d), scale_value=0.25, atten_mask=template, sparse_mode=2, **bnsd),
            tag="causal",
        ),
        Case(incre, incre_attention, lambda d: call(*qkv(d, rows=1, columns=7), scale_value=0.25, **bnsd)),
        Case(
            incre,
            incre_attention,
            lambda d: call(
                *qkv(d, 4, 2, 1, 7), scale_value=0.25, num_key_value_heads=2, actual_seq_lengths=[3, 7], **bnsd
            ),
            tag="lengths",
        ),
        Case(fused, fused_infer, lambda d: call(*qkv(d), scale=0.25, **bnsd), HALVES),
        Case(
            fused,
            fused_infer,
            lambda d: call(*qkv(d, 4, 2), scale=0.25, num_key_value_heads=2, softmax_lse_flag=True, **bnsd),
            HALVES,
            tag="sums",
        ),
        Case(
            fused,
            fused_infer,
            lambda d: call(*qkv(d, rows=1, columns=7), scale=0.25, actual_seq_lengths_kv=[3, 7], **bnsd),
            HALVES,
            tag="lengths",
        ),
        Case(fused + "_v2", fused_infer_v2, lambda d: call(*qkv(d), atten_mask=triangle, **v2), HALVES),
        Case(
            fused + "_v2",
            fused_infer_v2,
            lambda d: call(*qkv(d, rows=1, columns=7), actual_seq_kvlen=[3, 7], **v2),
            HALVES,
            tag="lengths",
        ),
        *_layout_cases(),
    ]


def _layout_cases() -> list[Case]:
    """Results in another layout than the queries, and caches whose pages are kept in tiles (PA_NZ)."""
    fused = "npu_fused_infer_attention_score"

    def given(x: Tensor, layout: str) -> Tensor:
        """(B, N, S, D) in the layout that is read."""
        return heads_back(x, layout.partition("_")[0]).contiguous()

    def dense(layout: str) -> Any:
        def make(d: torch.dtype) -> Any:
            q, k, v = (given(rand(2, n, 5, 16).to(d), layout) for n in (4, 2, 2))
            return call(q, k, v, num_heads=4, num_key_value_heads=2, input_layout=layout, scale=0.25)

        return make

    def packed(layout: str) -> Any:
        def make(d: torch.dtype) -> Any:
            q, k, v = (rand(rows, n, 16).to(d) for rows, n in ((5, 4), (7, 2), (7, 2)))
            q, k, v = (t if layout[0] == "T" else t.transpose(0, 1).contiguous() for t in (q, k, v))
            ends = {"actual_seq_lengths": [2, 5], "actual_seq_lengths_kv": [3, 7]}
            return call(q, k, v, num_heads=4, num_key_value_heads=2, input_layout=layout, scale=0.25, **ends)

        return make

    def tiled(layout: str) -> Any:
        def make(d: torch.dtype) -> Any:
            q, rope = (given(rand(2, 4, 1, 16).to(d), layout) for _ in range(2))
            latent, keys = (rand(5, 1, 1, 32, 16).to(d) for _ in range(2))
            table = torch.tensor([[4, 1], [2, 3]], dtype=torch.int32)
            return call(
                q,
                latent,
                latent,
                query_rope=rope,
                key_rope=keys,
                num_heads=4,
                num_key_value_heads=1,
                input_layout=layout,
                scale=0.25,
                block_table=table,
                block_size=32,
                actual_seq_lengths_kv=[40, 9],
            )

        return make

    only = HALVES[:1]
    return [
        *(Case(fused, fused_infer, dense(layout), only, (0,), layout, layout == "BSND_NBSD") for layout in DENSE),
        *(Case(fused, fused_infer, packed(layout), only, (0,), layout, layout == "TND_NTD") for layout in PACKED),
        *(
            Case(fused, fused_infer, tiled(layout), only, (0,), f"{layout} PA_NZ", layout == "BNSD_NBSD")
            for layout in ("BNSD_NBSD", "BSND_NBSD", "BSH_NBSD", "BSND", "BNSD")
        ),
    ]


CASES = _attention_cases()
