"""Operations of ATB, the transformer library beside CANN: what each computes, after its public documentation.

Each takes lists ``inputs`` and ``outputs`` and the fields of the operation's parameters by name; it returns what to
write into the outputs, ``None`` for one that it wrote itself. Attention is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import pad

from ge_emulator.refusal import INVALID, CannRefusal

Arguments = dict[str, Any]
Outputs = list[Any]

_PREFILL, _PREFILL_OF_CACHES = 3, 4  # calcType of SelfAttention: packed tokens; new tokens on top of paged caches
_DECODE, _SEVERAL_TOKENS = 0, 1  # calcType of PagedAttention
_NO_MASK, _ADDED, _TRIANGLE = 0, 1, 3  # maskType of SelfAttention; 3 of PagedAttention is a row for each new token
_QUANT_PER_CHANNEL = 17  # elewiseType
_HALF_ROUNDED_MASK = -10000.0  # what a bfloat16 mask of ones stands for


def _only(a: Arguments, what: str, **allowed: Any) -> None:
    """Refuse fields with other values than those that are computed here."""
    for name, values in allowed.items():
        if a[name] not in (values if isinstance(values, tuple) else (values,)):
            raise CannRefusal(INVALID, f"EZ9999: {what}: the emulator computes no {name}={a[name]}")


def rope(a: Arguments, _: Outputs) -> Any:
    """Rotary embedding of query and key, ``(tokens, heads * size)``, by cosines and sines ``(tokens, size)``.

    A head is cut into ``rotaryCoeff`` slices and neighbours turn together: 2 turns halves, the head's size turns pairs.
    """
    _only(a, "Rope", cosFormat=0)
    query, key, cos, sin = a["inputs"][:4]
    size, slices = cos.shape[-1], a["rotaryCoeff"]
    if slices < 2 or slices % 2 or size % slices:
        raise CannRefusal(INVALID, f"EZ9999: Rope: rotaryCoeff {slices} does not cut a head of {size}")

    def turned(x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(cos.shape[0], -1, size).float()
        first, second = heads.reshape(*heads.shape[:2], slices // 2, 2, size // slices).unbind(-2)
        across = torch.stack((-second, first), -2).reshape(heads.shape)
        return (heads * cos.float().unsqueeze(1) + across * sin.float().unsqueeze(1)).to(x.dtype)

    return turned(query), turned(key)


def reshape_and_cache(a: Arguments, outputs: Outputs) -> Any:
    """New keys (and values) go to their slots of paged caches; a negative slot is padding."""
    _only(a, "ReshapeAndCache", compressType=0, kvCacheCfg=(0, 1))
    *new, slots = a["inputs"][:1] + a["inputs"][-1:] if a["kvCacheCfg"] else a["inputs"][:2] + a["inputs"][-1:]
    taken = slots >= 0
    for tokens, cache in zip(new, outputs, strict=True):
        rows = cache.view(cache.shape[0] * cache.shape[1], *cache.shape[2:])
        if taken.any() and int(slots.max()) >= rows.shape[0]:
            raise CannRefusal(INVALID, f"EZ9999: ReshapeAndCache: slot {int(slots.max())} of {rows.shape[0]}")
        rows[slots[taken].long()] = tokens[taken].reshape(-1, *cache.shape[2:])
    return [None] * len(outputs)


def self_attention(a: Arguments, _: Outputs) -> Any:
    """Attention of packed sequences, ``(tokens, heads, size)``: with themselves, or with paged caches before them."""
    what = "SelfAttention"
    _only(a, what, quantType=0, batchRunStatusEnable=False, calcType=(_PREFILL, _PREFILL_OF_CACHES), kernelType=(0, 1))
    _only(a, what, clampType=0, maskType=(_NO_MASK, _ADDED, _TRIANGLE), kvcacheCfg=0, scaleType=0, inputLayout=0)
    _only(a, what, mlaVHeadSize=0)
    query, key, value, *rest = a["inputs"]
    table = rest.pop(0) if a["calcType"] == _PREFILL_OF_CACHES else None
    mask = rest.pop(0) if a["maskType"] else None
    lengths = rest[0].tolist()
    known = lengths if table is None else rest[1].tolist()
    if a["maskType"] == _TRIANGLE:
        _require_triangle(what, mask)
    scale = a["qScale"] * a["qkScale"]
    return _attention(
        a,
        query,
        lengths,
        known,
        scale,
        lambda b: _sequence(key, value, table, lengths, known, b),
        lambda b, rows, columns: _added(mask, b, rows, columns, triangle=a["maskType"] == _TRIANGLE),
    )


def paged_attention(a: Arguments, _: Outputs) -> Any:
    """Attention of new tokens, ``(tokens, heads, size)``, with paged caches that hold their keys already."""
    what = "PagedAttention"
    _only(a, what, maskType=(_NO_MASK, _TRIANGLE), batchRunStatusEnable=False, quantType=0, hasQuantOffset=False)
    _only(a, what, compressType=0, calcType=(_DECODE, _SEVERAL_TOKENS), scaleType=0, inputLayout=0)
    query, key, *rest = a["inputs"]
    size = a["mlaVHeadSize"]
    value = key[..., :size] if size else rest.pop(0)
    table, known = rest[0], rest[1].tolist()
    rest = rest[2:]
    mask = rest.pop(0) if a["maskType"] else None
    lengths = rest[0].tolist() if a["calcType"] == _SEVERAL_TOKENS else [1] * len(known)
    starts = [sum(lengths[:b]) for b in range(len(lengths))]

    def rows_of(b: int, rows: int, columns: int) -> torch.Tensor | None:
        return None if mask is None else _weighed(mask)[starts[b] : starts[b] + rows, :columns]

    return _attention(
        a, query, lengths, known, a["qkScale"], lambda b: _sequence(key, value, table, lengths, known, b), rows_of
    )


def _sequence(
    key: torch.Tensor, value: torch.Tensor, table: torch.Tensor | None, lengths: list[int], known: list[int], b: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of a sequence: its packed tokens, or its pages."""
    if table is None:
        start = sum(lengths[:b])
        return key[start : start + lengths[b]], value[start : start + lengths[b]]
    pages = table[b][: math.ceil(known[b] / key.shape[1])].long()
    return key[pages].flatten(0, 1)[: known[b]], value[pages].flatten(0, 1)[: known[b]]


def _attention(
    a: Arguments, query: torch.Tensor, lengths: list[int], known: list[int], scale: float, kept: Any, mask_of: Any
) -> torch.Tensor:
    heads, groups = a["headNum"], a["kvHeadNum"] or a["headNum"]
    tokens = query.reshape(query.shape[0], heads, -1).float()
    if sum(lengths) > tokens.shape[0]:
        raise CannRefusal(INVALID, f"EZ9999: attention: lengths {lengths} of {tokens.shape[0]} tokens")
    results, start = [], 0
    for b, (rows, columns) in enumerate(zip(lengths, known, strict=True)):
        key, value = (t.reshape(columns, groups, -1).float().repeat_interleave(heads // groups, 1) for t in kept(b))
        scores = torch.einsum("qhd,khd->hqk", tokens[start : start + rows], key) * scale
        mask = mask_of(b, rows, columns)
        if mask is not None:
            scores = scores + mask
        results.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
        start += rows
    done = torch.cat(results)
    left = tokens.shape[0] - start  # rows of padding
    if left:
        done = torch.cat((done, done.new_zeros(left, *done.shape[1:])))
    return done.to(query.dtype)


def _weighed(mask: torch.Tensor) -> torch.Tensor:
    """What a mask adds to scores: a float16 one itself, a bfloat16 one marks with ones."""
    return mask.float() * _HALF_ROUNDED_MASK if mask.dtype == torch.bfloat16 else mask.float()


def _added(mask: Any, b: int, rows: int, columns: int, *, triangle: bool) -> torch.Tensor | None:
    if mask is None:
        return None
    if triangle:  # row i sees the columns up to its own, counted from the last
        return torch.full((rows, columns), -math.inf).triu(columns - rows + 1)
    if mask.dim() == 3:
        mask = mask[b if mask.shape[0] > 1 else 0]
    return (
        _weighed(mask)[columns - rows : columns, :columns]
        if mask.shape[0] >= columns
        else _weighed(mask)[:rows, :columns]
    )


def _require_triangle(what: str, mask: torch.Tensor) -> None:
    square = mask.reshape(-1, mask.shape[-1])
    wanted = torch.ones(square.shape, dtype=torch.bool).triu(1)
    if square.shape[0] != square.shape[1] or not torch.equal(square != 0, wanted):
        raise CannRefusal(
            INVALID, f"EZ9999: {what}: a compressed mask is a triangle, this one of {list(mask.shape)} not"
        )


def group_topk(a: Arguments, _: Outputs) -> Any:
    """Experts' weights ``(tokens, experts)`` with those of all but the ``k`` best groups at zero."""
    _only(a, "GroupTopk", groupMultiFlag=(0, 1))
    weights = a["inputs"][0]
    grouped = weights.reshape(weights.shape[0], a["groupNum"], -1)
    best = a["n"] if a["groupMultiFlag"] else 1
    chosen = grouped.float().topk(best, -1).values.sum(-1).topk(a["k"], -1).indices
    kept = torch.zeros(grouped.shape[:2], dtype=torch.bool).scatter_(1, chosen, True)
    return grouped.masked_fill(~kept.unsqueeze(-1), 0).reshape(weights.shape)


def rms_norm(a: Arguments, _: Outputs) -> Any:
    """RMS norm with scale and shift, rounded to int8 by a scale and an offset for the whole tensor."""
    _only(a, "RmsNorm", layerType=1, quantType=2)
    x, gamma, beta, scale, offset = a["inputs"]
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + a["epsilon"]) * gamma.float() + beta.float()
    return _rounded(normed, scale, offset)


def elementwise(a: Arguments, _: Outputs) -> Any:
    """Rounding to int8 by scales and offsets."""
    _only(a, "Elewise", elewiseType=_QUANT_PER_CHANNEL)
    return _rounded(a["inputs"][0].float(), *a["inputs"][1:])


def _rounded(x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    return (x / scale.float() + offset.float()).round().clamp(-128, 127).to(torch.int8)


def linear(a: Arguments, outputs: Outputs) -> Any:
    """A product of matrices added to what the result holds."""
    _only(a, "Linear", hasBias=False, outDataType=-1, enAccum=True)
    x, weight = (t.mT if turned else t for t, turned in zip(a["inputs"], (a["transposeA"], a["transposeB"])))
    return outputs[0] + (x.float() @ weight.float()).to(outputs[0].dtype)


def ring_mla(a: Arguments, _: Outputs) -> Any:
    """Attention of packed sequences with keys of two parts, and the logarithm of each row's sum, ``(heads, tokens)``.

    ``calcType`` 0 joins the result with an earlier one over other keys, given by its output and logarithms; 1 begins.
    ``seqLen`` holds the lengths of the queries and, in a second row, those of the keys.
    """
    _only(a, "AtbRingMLA", kernelType=(0, 1), maskType=(0, 1), inputLayout=0, calcType=(0, 1))
    lengths = a["seqLen"].reshape(-1, a["seqLen"].shape[-1]).tolist()
    queries, keys = lengths[0], lengths[-1]
    query = torch.cat((a["qNope"], a["qRope"]), -1).float()
    repeated = a["headNum"] // a["kvHeadNum"]
    key, value = torch.cat((a["kNope"], a["kRope"]), -1).float(), a["value"].float()
    if a["maskType"] == 1:
        _require_triangle("AtbRingMLA", a["mask"])
    results, sums, row, column = [], [], 0, 0
    for rows, columns in zip(queries, keys, strict=True):
        k, v = (t[column : column + columns].repeat_interleave(repeated, 1) for t in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[row : row + rows], k) * a["qkScale"]
        if a["maskType"] == 1:
            scores = scores + torch.full((rows, columns), -math.inf).triu(columns - rows + 1)
        sums.append(scores.logsumexp(-1))
        results.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v))
        row, column = row + rows, column + columns
    done, logarithms = torch.cat(results), torch.cat(sums, -1)
    left = query.shape[0] - row  # rows of padding
    done, logarithms = (
        pad(done, (0, 0, 0, 0, 0, left)),
        pad(logarithms, (0, left)),
    )
    if a["calcType"] == 0:
        earlier = a["prevLse"].float().reshape(logarithms.shape)
        whole = torch.logaddexp(earlier, logarithms)
        old, new = ((part - whole).exp().t().unsqueeze(-1) for part in (earlier, logarithms))
        done, logarithms = a["prevOut"].float() * old + done * new, whole
    return done.to(a["value"].dtype), logarithms
