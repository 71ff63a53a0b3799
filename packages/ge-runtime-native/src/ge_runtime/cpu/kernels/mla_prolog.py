"""What stands before latent attention: projections of a token to its query, and to the two parts of its cache row."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.registry import kernel
from ge_runtime.errors import refused

_SOURCE: Final = "ops-transformer: attention/mla_prolog_v3, documentation"


def _norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * wide(gamma)


def _rope(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Even positions and odd ones become halves, which turn."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even, odd), -1) * wide(cos) + torch.cat((-odd, even), -1) * wide(sin)


def _write(op: str, cache: Tensor, rows: Tensor, index: Tensor | None, mode: str) -> None:
    """Put each token's row (T, D) into the cache: by its slot into pages, or one after the other."""
    if mode in ("BSND", "TND"):
        cache.copy_(rows.to(cache.dtype).reshape(cache.shape))
        return
    if index is None or mode not in ("PA_BSND", "PA_NZ"):
        raise refused(
            op, f"cache_mode {mode!r}, or no cache_index", "accepted: PA_BSND, PA_NZ with cache_index; BSND, TND"
        )
    slots = index.reshape(-1).long()
    size = cache.shape[1]
    keep = (slots >= 0) & (slots < cache.shape[0] * size)
    slots, rows = slots[keep], rows[keep].to(cache.dtype)
    if mode == "PA_BSND":
        cache[slots // size, slots % size, 0] = rows
        return
    step = 32 // cache.element_size()  # memory of a page: (D / step, size, step)
    stored = cache.view(cache.shape[0], rows.shape[1] // step, size, step)
    stored[slots // size, :, slots % size] = rows.unflatten(1, (-1, step))


def _prolog(
    op: str, tensors: tuple[Tensor, ...], kv_cache: Tensor, kr_cache: Tensor, index: Tensor | None, fed: dict[str, Any],
    epsilons: tuple[float, float], mode: str, factors: tuple[float, float] = (1.0, 1.0),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(query, query_rope, normed latent query); the caches are written."""
    x, w_dq, w_uq_qr, w_uk, w_dkv_kr, gamma_cq, gamma_ckv, sin, cos = tensors
    given = [name for name, value in fed.items() if value is not None]
    if given or not all(t.is_floating_point() for t in (*tensors, kv_cache, kr_cache)):
        raise refused(
            op, f"a quantised form ({', '.join(given) or 'int8 operands'})", "feed float operands without scales"
        )
    dtype, heads, width = x.dtype, w_uk.shape[0], w_uk.shape[1]
    rope = kr_cache.shape[-1]
    data = wide(x)
    latent = _norm(data @ wide(w_dq), gamma_cq, epsilons[0]) * factors[0]
    both = (latent @ wide(w_uq_qr)).unflatten(-1, (heads, width + rope))
    query = torch.einsum("...nd,ndh->...nh", both[..., :width], wide(w_uk))
    query_rope = _rope(both[..., width:], sin.unsqueeze(-2), cos.unsqueeze(-2))
    row = data @ wide(w_dkv_kr)
    c_kv = _norm(row[..., : w_uk.shape[2]], gamma_ckv, epsilons[1]) * factors[1]
    k_rope = _rope(row[..., w_uk.shape[2] :], sin, cos)
    _write(op, kv_cache, c_kv.reshape(-1, c_kv.shape[-1]), index, mode)
    _write(op, kr_cache, k_rope.reshape(-1, rope), index, mode)
    return query.to(dtype), query_rope.to(dtype), latent.to(dtype)


@kernel("MlaProlog", "MlaPrologV2", updates=("kv_cache", "kr_cache"), source=_SOURCE)
def mla_prolog(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, cache_index: Tensor,
    kv_cache: Tensor, kr_cache: Tensor, dequant_scale_x: Tensor | None = None,
    dequant_scale_w_dq: Tensor | None = None, dequant_scale_w_uq_qr: Tensor | None = None,
    dequant_scale_w_dkv_kr: Tensor | None = None, quant_scale_ckv: Tensor | None = None,
    quant_scale_ckr: Tensor | None = None, smooth_scales_cq: Tensor | None = None, *,
    rmsnorm_epsilon_cq: float = 1e-5, rmsnorm_epsilon_ckv: float = 1e-5, cache_mode: str = "PA_BSND",
) -> tuple[Tensor, ...]:  # fmt: skip
    """(query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope) of float operands; the last is one zero."""
    tensors = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos,
    )  # fmt: skip
    fed = {
        "dequant_scale_x": dequant_scale_x, "dequant_scale_w_dq": dequant_scale_w_dq,
        "dequant_scale_w_uq_qr": dequant_scale_w_uq_qr, "dequant_scale_w_dkv_kr": dequant_scale_w_dkv_kr,
        "quant_scale_ckv": quant_scale_ckv, "quant_scale_ckr": quant_scale_ckr, "smooth_scales_cq": smooth_scales_cq,
    }  # fmt: skip
    epsilons = (rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv)
    q, q_rope, _ = _prolog("MlaPrologV2", tensors, kv_cache, kr_cache, cache_index, fed, epsilons, cache_mode)
    return q, q_rope, kv_cache, kr_cache, torch.zeros(1)


@kernel("MlaPrologV3", updates=("kv_cache", "kr_cache"), source=_SOURCE)
def mla_prolog_v3(
    token_x: Tensor, weight_dq: Tensor, weight_uq_qr: Tensor, weight_uk: Tensor, weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor, rmsnorm_gamma_ckv: Tensor, rope_sin: Tensor, rope_cos: Tensor, kv_cache: Tensor,
    kr_cache: Tensor, cache_index: Tensor | None = None, dequant_scale_x: Tensor | None = None,
    dequant_scale_w_dq: Tensor | None = None, dequant_scale_w_uq_qr: Tensor | None = None,
    dequant_scale_w_dkv_kr: Tensor | None = None, quant_scale_ckv: Tensor | None = None,
    quant_scale_ckr: Tensor | None = None, smooth_scales_cq: Tensor | None = None,
    actual_seq_len: Tensor | None = None, k_nope_clip_alpha: Tensor | None = None, *,
    rmsnorm_epsilon_cq: float = 1e-5, rmsnorm_epsilon_ckv: float = 1e-5, cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False, qc_qr_scale: float = 1.0, kc_scale: float = 1.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope, query_norm, dequant_scale_q_norm)."""
    tensors = (
        token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rmsnorm_gamma_cq, rmsnorm_gamma_ckv, rope_sin,
        rope_cos,
    )  # fmt: skip
    fed = {
        "dequant_scale_x": dequant_scale_x, "dequant_scale_w_dq": dequant_scale_w_dq,
        "dequant_scale_w_uq_qr": dequant_scale_w_uq_qr, "dequant_scale_w_dkv_kr": dequant_scale_w_dkv_kr,
        "quant_scale_ckv": quant_scale_ckv, "quant_scale_ckr": quant_scale_ckr, "smooth_scales_cq": smooth_scales_cq,
        "actual_seq_len": actual_seq_len, "k_nope_clip_alpha": k_nope_clip_alpha,
    }  # fmt: skip
    epsilons, factors = (rmsnorm_epsilon_cq, rmsnorm_epsilon_ckv), (qc_qr_scale, kc_scale)
    q, q_rope, latent = _prolog(
        "MlaPrologV3", tensors, kv_cache, kr_cache, cache_index, fed, epsilons, cache_mode, factors
    )
    none = torch.zeros(0)
    return q, q_rope, kv_cache, kr_cache, none, latent if query_norm_flag else q.new_empty(0), none
