"""What stands before latent attention: projections of a token to its query, and to the two parts of its cache row."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.kv_cache import tiles
from ge_runtime.cpu.kernels.norm import rms_norm_of_rows
from ge_runtime.cpu.kernels.numerics import wide
from ge_runtime.cpu.kernels.rotary import rope_of_pairs
from ge_runtime.cpu.registry import kernel
from ge_runtime.errors import refused

_SOURCE: Final = "ops-transformer: attention/mla_prolog_v3, documentation"


def _write(op: str, cache: Tensor, rows: Tensor, index: Tensor | None, mode: str) -> None:
    """Put each token's row (T, D) into the cache: by its slot into pages, or one after the other."""
    if mode in ("BSND", "TND"):
        cache.copy_(rows.to(cache.dtype).reshape(cache.shape))
        return
    if index is None or mode not in ("PA_BSND", "PA_NZ"):
        raise refused(op, f"cache_mode {mode!r}, or no index", "accepted: PA_BSND, PA_NZ with cache_index; BSND, TND")
    slots = index.reshape(-1).long()
    size = cache.shape[1]
    keep = (slots >= 0) & (slots < cache.shape[0] * size)
    slots, rows = slots[keep], rows[keep].to(cache.dtype)
    if mode == "PA_BSND":
        cache[slots // size, slots % size, 0] = rows
        return
    stored = tiles(cache)
    stored[slots // size, :, slots % size] = rows.unflatten(1, (-1, stored.shape[-1]))


@kernel("MlaPrologV3", updates=("kv_cache", "kr_cache"), source=_SOURCE)
def mla_prolog_v3(
    token_x: Tensor,
    weight_dq: Tensor,
    weight_uq_qr: Tensor,
    weight_uk: Tensor,
    weight_dkv_kr: Tensor,
    rmsnorm_gamma_cq: Tensor,
    rmsnorm_gamma_ckv: Tensor,
    rope_sin: Tensor,
    rope_cos: Tensor,
    kv_cache: Tensor,
    kr_cache: Tensor,
    cache_index: Tensor | None = None,
    dequant_scale_x: Tensor | None = None,
    dequant_scale_w_dq: Tensor | None = None,
    dequant_scale_w_uq_qr: Tensor | None = None,
    dequant_scale_w_dkv_kr: Tensor | None = None,
    quant_scale_ckv: Tensor | None = None,
    quant_scale_ckr: Tensor | None = None,
    smooth_scales_cq: Tensor | None = None,
    actual_seq_len: Tensor | None = None,
    k_nope_clip_alpha: Tensor | None = None,
    *,
    rmsnorm_epsilon_cq: float = 1e-5,
    rmsnorm_epsilon_ckv: float = 1e-5,
    cache_mode: str = "PA_BSND",
    query_norm_flag: bool = False,
    qc_qr_scale: float = 1.0,
    kc_scale: float = 1.0,
) -> tuple[Tensor, ...]:
    """(query, query_rope, kv_cache, kr_cache, dequant_scale_q_nope, query_norm, dequant_scale_q_norm)."""
    op = "MlaProlog"
    fed = {
        "dequant_scale_x": dequant_scale_x,
        "dequant_scale_w_dq": dequant_scale_w_dq,
        "dequant_scale_w_uq_qr": dequant_scale_w_uq_qr,
        "dequant_scale_w_dkv_kr": dequant_scale_w_dkv_kr,
        "quant_scale_ckv": quant_scale_ckv,
        "quant_scale_ckr": quant_scale_ckr,
        "smooth_scales_cq": smooth_scales_cq,
        "actual_seq_len": actual_seq_len,
        "k_nope_clip_alpha": k_nope_clip_alpha,
    }
    given = [name for name, value in fed.items() if value is not None]
    operands = (token_x, weight_dq, weight_uq_qr, weight_uk, weight_dkv_kr, rope_sin, rope_cos, kv_cache, kr_cache)
    if given or not all(t.is_floating_point() for t in (*operands, rmsnorm_gamma_cq, rmsnorm_gamma_ckv)):
        raise refused(op, f"a quantised form ({', '.join(given) or 'int8 operands'})", "feed float operands, no scales")
    dtype, data, width, rope = token_x.dtype, wide(token_x), weight_uk.shape[1], kr_cache.shape[-1]
    latent = rms_norm_of_rows(data @ wide(weight_dq), rmsnorm_gamma_cq, rmsnorm_epsilon_cq)[0] * qc_qr_scale
    both = (latent @ wide(weight_uq_qr)).unflatten(-1, (weight_uk.shape[0], width + rope))
    query = torch.einsum("...nd,ndh->...nh", both[..., :width], wide(weight_uk))
    query_rope = rope_of_pairs(both[..., width:], rope_sin.unsqueeze(-2), rope_cos.unsqueeze(-2))
    row = data @ wide(weight_dkv_kr)
    c_kv, k_rope = row[..., : weight_uk.shape[2]], row[..., weight_uk.shape[2] :]
    c_kv = rms_norm_of_rows(c_kv, rmsnorm_gamma_ckv, rmsnorm_epsilon_ckv)[0] * kc_scale
    k_rope = rope_of_pairs(k_rope, rope_sin, rope_cos)
    _write(op, kv_cache, c_kv.reshape(-1, c_kv.shape[-1]), cache_index, cache_mode)
    _write(op, kr_cache, k_rope.reshape(-1, rope), cache_index, cache_mode)
    none, query_norm = torch.zeros(0), latent.to(dtype)
    query_norm = query_norm if query_norm_flag else query_norm.new_empty(0)
    return query.to(dtype), query_rope.to(dtype), kv_cache, kr_cache, none, query_norm, none


@kernel("MlaPrologV2", updates=("kv_cache", "kr_cache"), source=_SOURCE)
def mla_prolog_v2(
    *operands: Any, rmsnorm_epsilon_cq: float = 1e-5, rmsnorm_epsilon_ckv: float = 1e-5, cache_mode: str = "PA_BSND"
) -> tuple[Tensor, ...]:
    """MlaPrologV3 whose caches come after their index; the last result, dequant_scale_q_nope, is one zero."""
    *inputs, index, kv_cache, kr_cache = operands[:12]
    results = mla_prolog_v3(
        *inputs,
        kv_cache,
        kr_cache,
        index,
        *operands[12:],
        rmsnorm_epsilon_cq=rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv,
        cache_mode=cache_mode,
    )
    return *results[:4], torch.zeros(1)


@kernel("MlaProlog", updates=("kv_cache", "kr_cache"), source=_SOURCE)
def mla_prolog(
    *operands: Any, rmsnorm_epsilon_cq: float = 1e-5, rmsnorm_epsilon_ckv: float = 1e-5, cache_mode: str = "PA_BSND"
) -> tuple[Tensor, ...]:
    """MlaPrologV2 without its last result."""
    epsilons = {"rmsnorm_epsilon_cq": rmsnorm_epsilon_cq, "rmsnorm_epsilon_ckv": rmsnorm_epsilon_ckv}
    return mla_prolog_v2(*operands, cache_mode=cache_mode, **epsilons)[:4]
