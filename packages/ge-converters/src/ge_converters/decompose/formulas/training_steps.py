"""torch_npu's steps of training and of quantisation in a few operators of ATen: routing, gates, windows, scales.

As in ``other_names``; a call with arguments that a formula does not serve stays whole and is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.errors import Declined
from ge_converters.base.operators import aten
from ge_converters.decompose.formulas.accepted import GIVEN, INT8, OFF, accepted

Formula = Callable[..., Any]


# -- gates, scales --------------------------------------------------------------------------------------------------


def _rounded(y: Tensor) -> tuple[Tensor, Tensor]:
    """int8 with a scale for each row, zeros for a row of zeros, as DynamicQuant has it: [.., n] -> [.., n], [..]."""
    scale = y.abs().amax(-1, keepdim=True) / 127
    quotient = torch.where(scale > 0, y / scale, 0.0)  # what 0 / 0 is as int8, each device says for itself
    return quotient.round().clamp(-128, 127).to(torch.int8), scale.squeeze(-1)


@accepted(quant_mode=(1,), offsets=(None,), group_index=(None,), dst_type=INT8)
def swiglu_quant(
    x: Tensor,
    *,
    smooth_scales: Tensor | None = None,
    offsets: Tensor | None = None,
    group_index: Tensor | None = None,
    activate_left: bool = False,
    quant_mode: int = 0,
    group_list_type: int = 0,
    dst_type: Any = None,
) -> Any:
    """``silu(a) * b`` of halves, smoothed, then int8 with a scale for each row.

    Shapes: x [.., 2 n], smooth_scales [n] or [1, n] -> [.., n], [..].
    """
    left, right = x.float().chunk(2, -1)
    y = torch.nn.functional.silu(left) * right if activate_left else torch.nn.functional.silu(right) * left
    return _rounded(y if smooth_scales is None else y * smooth_scales.float().reshape(-1))


@accepted(weight=(None,), y_origin=(None,), group_index=(None,), clamp_limit=OFF)
def swiglu_backward(
    grad_y: Tensor,
    x: Tensor,
    *,
    weight: Tensor | None = None,
    y_origin: Tensor | None = None,
    group_index: Tensor | None = None,
    clamp_limit: float = 0.0,
) -> Any:
    """Gradient of ``silu(a) * b``. Shapes: grad_y [.., n], x [.., 2 n] -> as x, and nothing."""
    left, right = x.float().chunk(2, -1)
    dy, gate = grad_y.float(), left.sigmoid()
    parts = dy * right * gate * (1 + left * (1 - gate)), dy * left * gate
    return torch.cat(parts, -1).to(x.dtype), x.new_zeros(0)


@accepted(
    alpha=(None,), dst_dtype=INT8, axis=(-1, 1), round_mode=("rint",), scale_alg=OFF, dst_type_max=OFF, transpose_y=OFF
)
def rotate_quant(
    x: Tensor,
    rotation: Tensor,
    *,
    alpha: Tensor | None = None,
    dst_dtype: int | None = None,
    axis: int | None = -1,
    round_mode: str | None = "rint",
    scale_alg: int | None = 0,
    dst_type_max: float | None = 0.0,
    transpose_y: bool | None = False,
) -> Any:
    """Rows times a rotation, rounded to the type of x; then int8 with a scale for each row.

    Shapes: x [m, n], rotation [n, n] -> [m, n], [m].
    """
    if x.shape[-1] != rotation.shape[0]:
        raise Declined("rotation", list(rotation.shape), "as many rows as x has columns")
    return _rounded(torch.matmul(x, rotation).float())


@accepted(bias=(None,), approximate=("gelu_erf", "gelu_tanh"))
def quant_matmul_gelu(
    x1: Tensor,
    x2: Tensor,
    x1_scale: Tensor,
    x2_scale: Tensor,
    *,
    bias: Tensor | None = None,
    approximate: str | None = "gelu_erf",
) -> Any:
    """An int8 product with scales for rows and columns, then GELU.

    Shapes: x1 [m, k], x2 [k, n], scales [m] and [n] -> [m, n] of float16.
    """
    if x1.dtype is not torch.int8:
        raise Declined("x1", x1, "int8")
    product = torch.matmul(x1.float(), x2.float()) * x1_scale.float().unsqueeze(-1) * x2_scale.float()
    kind = "tanh" if approximate == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(product, approximate=kind).to(torch.float16)


# -- windows, streams -----------------------------------------------------------------------------------------------


def _starts(rows: Any, size: int, step: int, ends: Sequence[int] | None) -> list[int]:
    """Where each window starts; none crosses sequences."""
    starts: list[int] = []
    begin = 0
    for end in ends or [rows]:
        starts += range(begin, end - size + 1, step)
        begin = end
    return starts


def nsa_compress(
    x: Tensor, weight: Tensor, size: int, stride: int, *, actual_seq_len: Sequence[int] | None = None
) -> Any:
    """Weighted sums of windows of rows.

    Shapes: x [t, n, d], weight [size, n] -> [windows, n, d].
    """
    if actual_seq_len is None and not isinstance(x.shape[0], int):
        raise Declined("actual_seq_len", actual_seq_len, "lengths, if the number of rows is symbolic")
    w = weight.float().unsqueeze(-1)
    sums = [(x[at : at + size].float() * w).sum(0) for at in _starts(x.shape[0], size, stride, actual_seq_len)]
    return torch.stack(sums).to(x.dtype)


def nsa_compress_grad(
    grad: Tensor, x: Tensor, weight: Tensor, size: int, stride: int, *, actual_seq_len: Sequence[int] | None = None
) -> Any:
    """Gradients of x and of the weight."""
    if not isinstance(x.shape[0], int):
        raise Declined("input", list(x.shape), "a number of rows that is not symbolic")
    w, dy = weight.float().unsqueeze(-1), grad.float()
    dx, dw = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(weight, dtype=torch.float32)
    for i, at in enumerate(_starts(x.shape[0], size, stride, actual_seq_len)):
        part = w * dy[i].unsqueeze(0)
        widths = [0, 0, 0, 0, at, x.shape[0] - at - size]
        dx = dx + aten.constant_pad_nd.default(part, widths, 0.0)
        dw = dw + (x[at : at + size].float() * dy[i].unsqueeze(0)).sum(-1)
    return dx.to(x.dtype), dw.to(weight.dtype)


# -- gradients of norms and gates -----------------------------------------------------------------------------------


@accepted(p=(2,))
def renorm_backward(grad: Tensor, input: Tensor, p: Any, dim: int, maxnorm: Any) -> Any:
    """Gradient of ``renorm`` by the Euclidean norm: that of the scale of each slice whose norm is too large."""
    axes = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    norm = torch.linalg.vector_norm(input, 2, axes, keepdim=True)
    turned = input * ((grad * input).sum(axes, keepdim=True) / torch.where(norm > 0, norm, 1.0))
    inverse = 1 / (norm + 1e-7)
    return torch.where(norm > maxnorm, maxnorm * inverse * (grad - inverse * turned), grad)


@accepted(renorm=OFF, norm_type=(0, 1))
def gating_backward(
    x_norm: Tensor,
    grad_y: Tensor,
    index: Tensor,
    *,
    renorm: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Any:
    """Gradient of logits from that of the chosen weights: of a softmax (0), or of sigmoids over their sum (1).

    Shapes: x_norm [n, e], grad_y and index [n, k] -> [n, e].
    """
    normed, at = x_norm.float(), index.long()
    slope = grad_y.float() * routed_scaling_factor
    if norm_type == 1:
        chosen = normed.gather(-1, at)
        total = chosen.sum(-1, keepdim=True) + eps
        slope = slope / total - (slope * chosen).sum(-1, keepdim=True) / (total * total)
    grad = torch.zeros_like(normed).scatter_add(-1, at, slope)
    result = grad * normed * (1 - normed) if norm_type == 1 else (grad - (grad * normed).sum(-1, keepdim=True)) * normed
    return result.to(x_norm.dtype)


# -- experts by a map -----------------------------------------------------------------------------------------------


def _pairs(routing_map: Tensor, count: Any) -> tuple[Tensor, Tensor]:
    """Of each pair of a token and one of its experts, token by token: the token and the expert."""
    experts = routing_map.shape[1]
    order = torch.sort(routing_map.reshape(-1).int(), stable=True, descending=True)[1][:count]
    return order // experts, order % experts


@accepted(drop_and_pad=OFF, probs=GIVEN, routing_map=GIVEN)
def unpermute_by_map(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    restore_shape: Sequence[Any],
    *,
    probs: Any = None,
    routing_map: Any = None,
    drop_and_pad: bool = False,
) -> Any:
    """Back in the order of tokens, weighted and added; of each row its pair, its token and its weight.

    Shapes: permuted_tokens [m, h], sorted_indices [m], probs and routing_map [n, e] -> [n, h], [m], [m], [m].
    """
    came_from = torch.sort(sorted_indices.int())[1]
    tokens, experts = (t[came_from] for t in _pairs(routing_map, permuted_tokens.shape[0]))
    weights = probs.reshape(-1)[tokens * routing_map.shape[1] + experts]
    weighted = permuted_tokens.float() * weights.float().unsqueeze(1)
    result = weighted.new_zeros(restore_shape).index_add(0, tokens, weighted)
    return result.to(permuted_tokens.dtype), came_from.int(), tokens.int(), weights


@accepted(drop_and_pad=OFF, probs=GIVEN, routing_map=GIVEN, permuted_tokens=GIVEN)
def unpermute_by_map_grad(
    grad: Tensor,
    out_index: Tensor,
    permuted_token_id: Tensor,
    routing_map: Any,
    permuted_tokens: Any,
    probs: Any,
    drop_and_pad: bool,
    restore_shape: Sequence[Any],
) -> Any:
    """Gradients of the rows and of the weights; ``out_index`` are the places of the pairs, as the forward gets them."""
    came_from = torch.sort(out_index.int())[1]
    tokens, experts = (t[came_from] for t in _pairs(routing_map, permuted_tokens.shape[0]))
    place = tokens * routing_map.shape[1] + experts
    spread = grad.float()[tokens]
    slopes = (spread * permuted_tokens.float()).sum(-1)
    weights = probs.reshape(-1)[place].float()
    of_probs = torch.zeros_like(probs, dtype=torch.float32).reshape(-1).index_add(0, place, slopes)
    return (
        (spread * weights.unsqueeze(1)).to(permuted_tokens.dtype),
        of_probs.reshape(probs.shape).to(probs.dtype),
    )


@accepted(balance_mode=OFF)
def update_expert(
    expert_ids: Tensor,
    eplb_table: Tensor,
    *,
    expert_scales: Tensor | None = None,
    pruning_threshold: Tensor | None = None,
    active_mask: Tensor | None = None,
    local_rank_id: int = -1,
    world_size: int = -1,
    balance_mode: int = 0,
) -> Any:
    """Of each expert the instance for this process: the table has for each how many there are, then which.

    Shapes: expert_ids [n, k], eplb_table [e, most + 1] -> [n, k], and a mask of bool.
    """
    given = {"expert_scales": expert_scales, "pruning_threshold": pruning_threshold, "active_mask": active_mask}
    for name, value in given.items():
        if value is not None:
            raise Declined(name, value, "None")
    rows = eplb_table[expert_ids.long()].long()
    share = (world_size + rows[..., 0] - 1) // rows[..., 0]
    place = torch.where(rows[..., 0] == 1, 1, local_rank_id // share + 1)
    chosen = rows.gather(-1, place.unsqueeze(-1)).squeeze(-1).to(expert_ids.dtype)
    return chosen, torch.ones_like(chosen, dtype=torch.bool)


FORMULAS: Final[dict[str, Formula]] = {
    "_npu_moe_token_unpermute_with_routing_map": unpermute_by_map,
    "npu_moe_gating_top_k_backward": gating_backward,
    "npu_moe_token_unpermute_with_routing_map_grad": unpermute_by_map_grad,
    "npu_moe_update_expert": update_expert,
    "npu_nsa_compress": nsa_compress,
    "npu_nsa_compress_grad": nsa_compress_grad,
    "npu_quant_matmul_gelu": quant_matmul_gelu,
    "npu_renorm_backward": renorm_backward,
    "npu_rotate_quant": rotate_quant,
    "npu_swiglu_group_quant_backward": swiglu_backward,
    "npu_swiglu_quant": swiglu_quant,
}
