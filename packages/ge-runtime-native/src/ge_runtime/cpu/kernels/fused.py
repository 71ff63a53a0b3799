"""Blocks of models as one operator: feed-forward, latent caches, masked softmax, gradients of fused norms."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ge_runtime.cpu.kernels.kv_cache import tiles
from ge_runtime.cpu.kernels.matmul import ACTIVATIONS, spans
from ge_runtime.cpu.kernels.numerics import rounded, saturate, wide
from ge_runtime.cpu.kernels.rotary import rope_of_pairs
from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

# -- feed-forward -----------------------------------------------------------------------------------------------------

_ACTIVATIONS: Final = ("relu", "silu", "gelu", "fastgelu")


@kernel("FFN", host=("expert_tokens",), ignores=("inner_precise",), source="ops-transformer: ffn/ffn, documentation")
def ffn(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    expert_tokens: Any = None,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    scale: Tensor | None = None,
    offset: Tensor | None = None,
    deq_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None,
    antiquant_scale1: Tensor | None = None,
    antiquant_scale2: Tensor | None = None,
    antiquant_offset1: Tensor | None = None,
    antiquant_offset2: Tensor | None = None,
    *,
    activation: str,
    output_dtype: int = -1,
    tokens_index_flag: bool = False,
) -> Tensor:
    """``act(x @ w1 + b1) @ w2 + b2``; with experts each range of rows has its own weights."""
    fed = (scale, offset, deq_scale1, deq_scale2, antiquant_scale1, antiquant_scale2, antiquant_offset1)
    if any(t is not None for t in (*fed, antiquant_offset2)) or not x.is_floating_point():
        raise refused("FFN", "a quantised form", "feed float operands")
    if activation not in _ACTIVATIONS:
        raise refused("FFN", f"activation is {activation!r}, accepted: {', '.join(_ACTIVATIONS)}")
    act, rows = ACTIVATIONS[activation], x.reshape(-1, x.shape[-1])

    def block(part: Tensor, w1: Tensor, w2: Tensor, b1: Tensor | None, b2: Tensor | None) -> Tensor:
        inner = wide(part) @ wide(w1) + (0 if b1 is None else wide(b1))
        return (act(inner) @ wide(w2) + (0 if b2 is None else wide(b2))).to(x.dtype)

    if weight1.dim() == 2:
        return block(rows, weight1, weight2, bias1, bias2).reshape(*x.shape[:-1], weight2.shape[-1])
    if expert_tokens is None:
        raise refused("FFN", "weights of several experts need expert_tokens", "feed expert_tokens")
    tokens = listed(expert_tokens)
    y = x.new_zeros(rows.shape[0], weight2.shape[-1])
    for e, start, end in spans(enumerate(tokens if tokens_index_flag else itertools.accumulate(tokens))):
        biases = (None if b is None else b[e] for b in (bias1, bias2))
        y[start:end] = block(rows[start:end], weight1[e], weight2[e], *biases)
    return y.reshape(*x.shape[:-1], weight2.shape[-1])


# -- latent key and value caches --------------------------------------------------------------------------------------


_MODES: Final = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")


def _write(cache: Tensor, value: Tensor, index: Tensor, mode: str) -> None:
    """``value`` (B, 1, S, D) into ``cache`` at ``index``; negative indices skip what they stand for.

    Norm: cache (B, 1, Scache, D), index (B, S) is a row. Otherwise cache (pages, page, 1, D), a slot counts its rows:
    one for each token, in BLK modes for each ceil(S / page) tokens of a sequence. NZ modes keep pages in tiles.
    """
    b, _, s, d = value.shape
    rows = value.reshape(b * s, d)
    if mode == "Norm":
        at = index.reshape(-1).long()
        keep = at >= 0
        batch = torch.arange(b).repeat_interleave(s)
        cache[batch[keep], 0, at[keep]] = rows[keep]
        return
    size = cache.shape[1]
    if mode.startswith("PA_BLK"):
        token = torch.arange(s)
        first = index.reshape(b, -1).long()[:, token // size]
        at = torch.where(first < 0, -1, first // size * size + token % size).reshape(-1)
    else:
        at = index.reshape(-1).long()
    rows, at = rows[at >= 0], at[at >= 0]
    if mode.endswith("NZ"):
        tiled = tiles(cache)
        tiled[at // size, :, at % size] = rows.unflatten(1, (-1, tiled.shape[-1]))
    else:
        cache[at // size, at % size, 0] = rows


def _stored(x: Tensor, cache: Tensor, scale: Tensor | None, offset: Tensor | None) -> Tensor:
    if scale is None:
        return x.to(cache.dtype)
    y = x * scale.float()
    return saturate(y if offset is None else y + offset.float(), cache.dtype)


@kernel(
    "KvRmsNormRopeCache",
    updates=("k_cache", "ckv_cache"),
    source="ops-transformer: posembedding/kv_rms_norm_rope_cache",
)
def kv_rms_norm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    k_rope_scale: Tensor | None = None,
    c_kv_scale: Tensor | None = None,
    k_rope_offset: Tensor | None = None,
    c_kv_offset: Tensor | None = None,
    v: Tensor | None = None,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(k_cache, ckv_cache, k_rope, c_kv): the first part of kv normalised, the last one rotated, both into caches."""
    if v is not None or cache_mode not in _MODES:
        raise refused("KvRmsNormRopeCache", f"cache_mode is {cache_mode!r}; accepted: {', '.join(_MODES)}, without v")
    latent, rope = wide(kv).split([gamma.shape[-1], kv.shape[-1] - gamma.shape[-1]], -1)
    normed = functional.rms_norm(latent, gamma.shape, wide(gamma), epsilon)
    turned = rope_of_pairs(rope, sin, cos)
    _write(k_cache, _stored(turned, k_cache, k_rope_scale, k_rope_offset), index, cache_mode)
    _write(ckv_cache, _stored(normed, ckv_cache, c_kv_scale, c_kv_offset), index, cache_mode)
    return k_cache, ckv_cache, turned.to(kv.dtype), normed.to(kv.dtype)


@kernel("ScatterList", updates=("var",), source="ops-nn: index/scatter_list, documentation")
def scatter_list(
    var: Sequence[Tensor],
    indice: Tensor,
    updates: Tensor,
    mask: Tensor | None = None,
    *,
    reduce: str = "update",
    axis: int = -2,
) -> list[Tensor]:
    """``updates[i]`` into ``var[i]`` from ``indice[i]`` on along ``axis`` of updates; entries masked with 0 stay."""
    if reduce != "update":
        raise refused("ScatterList", f"reduce is {reduce!r}, accepted: update")
    dim = axis % updates.dim() - 1
    for i, target in enumerate(var):
        if mask is not None and not mask[i]:
            continue
        place = listed(indice[i])
        length = place[1] if len(place) > 1 else updates.shape[dim + 1]
        target.narrow(dim, place[0], length).copy_(updates[i].narrow(dim, 0, length))
    return list(var)


# -- softmax, norms ---------------------------------------------------------------------------------------------------


@kernel("ScaledMaskedSoftmax", source="operator header: nn_norm_ops; ops-nn: norm/scaled_masked_softmax_v2")
@rounded
def scaled_masked_softmax(
    x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Tensor:
    """Softmax over the last axis of ``scale * x``, -10000 where the mask, or the upper triangle, is true."""
    scores = x * scale
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores if mask is None else scores.masked_fill(mask.bool(), -10000.0), -1)


@kernel("ScaledMaskedSoftmaxGrad", source="derivative of ScaledMaskedSoftmax")
def scaled_masked_softmax_grad(
    y_grad: Tensor, y: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, fixed_triu_mask: bool = False
) -> Tensor:
    """Gradient of ScaledMaskedSoftmax by its result: nothing where the mask, or the upper triangle, is true."""
    dy, p = wide(y_grad), wide(y)
    dx = (dy - (dy * p).sum(-1, keepdim=True)) * p * scale
    if fixed_triu_mask:
        mask = torch.ones(y.shape[-2:], dtype=torch.bool).triu(1)
    return (dx if mask is None else dx.masked_fill(mask.bool(), 0.0)).to(y.dtype)


@kernel("DeepNormGrad", source="derivative of DeepNorm")
def deep_norm_grad(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, *, alpha: float = 0.3
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dx, dgx, dbeta, dgamma); the sums over rows are float32."""
    inner = [*range(x.dim() - gamma.dim(), x.dim())]
    outer = [*range(x.dim() - gamma.dim())]
    normed = (wide(x) * alpha + wide(gx) - mean) * rstd
    slope = wide(dy) * wide(gamma)
    centred = slope - slope.mean(inner, True) - normed * (slope * normed).mean(inner, True)
    dgx = centred * rstd
    dbeta, dgamma = (t.sum(outer) if outer else t for t in (wide(dy), wide(dy) * normed))
    return (dgx * alpha).to(x.dtype), dgx.to(x.dtype), dbeta, dgamma
