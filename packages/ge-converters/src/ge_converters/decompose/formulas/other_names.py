"""torch_npu's operators that ATen has under another name, or that are a few of its operators: gradients above all.

torch_npu is never imported: its operators are known by name once the user's program has imported it. Each formula is
that of the operator's documentation, or of the ATen operator whose gradient it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.errors import Declined
from ge_converters.base.operators import aten
from ge_converters.decompose.formulas import training_steps
from ge_converters.decompose.formulas.accepted import GIVEN, OFF, accepted
from ge_converters.registry import define_formula

Formula = Callable[..., Any]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# -- convolutions ---------------------------------------------------------------------------------------------------


def _gradient(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    output_padding: Any,
    groups: Any,
    mask: Sequence[bool],
    transposed: bool,
) -> Any:
    sizes = [grad.shape[1]] if mask[2] else None
    return aten.convolution_backward.default(
        grad, input, weight, sizes, stride, padding, dilation, transposed, output_padding, groups, mask
    )


def convolution_backward(
    input: Tensor, grad: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int, mask: Any
) -> Any:
    """Shapes: gradients of input, weight and bias, each of the shape of what it belongs to."""
    nothing = [0] * (input.dim() - 2)
    return _gradient(grad, input, weight, stride, padding, dilation, nothing, groups, mask, transposed=False)


def convolution_transpose_backward(
    input: Tensor,
    grad: Tensor,
    weight: Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    mask: Any,
) -> Any:
    """Shapes: as ``convolution_backward``."""
    return _gradient(grad, input, weight, stride, padding, dilation, output_padding, groups, mask, transposed=True)


def slow_conv_dilated2d_backward(
    grad: Tensor, input: Tensor, weight: Tensor, _size: Any, stride: Any, padding: Any, dilation: Any, mask: Any
) -> Any:
    """Shapes: as ``convolution_backward``."""
    return convolution_backward(input, grad, weight, stride, padding, dilation, 1, mask)


def slow_conv_transpose2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    _size: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    mask: Any,
) -> Any:
    """Shapes: as ``convolution_backward``."""
    return convolution_transpose_backward(input, grad, weight, padding, output_padding, stride, dilation, 1, mask)


def conv_depthwise2d_backward(
    grad: Tensor, input: Tensor, weight: Tensor, _size: Any, stride: Any, padding: Any, dilation: Any, mask: Any
) -> Any:
    """Shapes: gradients of input and weight."""
    return convolution_backward(input, grad, weight, stride, padding, dilation, input.shape[1], [*mask, False])[:2]


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """Shapes: input [n, c, d, h, w], weight [o, c / groups, ..]."""
    return aten.convolution.default(input, weight, bias, stride, padding, dilation, False, [0, 0, 0], groups)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    """Shapes: input [n, c, h, w], weight [c, o / groups, ..]."""
    return aten.convolution.default(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


# -- norms, products ------------------------------------------------------------------------------------------------


def group_norm_swish_grad(
    grad: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    rstd: Tensor,
    mask: Sequence[bool],
    swish_scale: float | None = 1.0,
) -> Any:
    """Gradients of ``y * sigmoid(swish_scale * y)``, y the group norm, from its statistics.

    Shapes: input [n, c, ..], mean and rstd [n, groups]; gradients of input, weight and bias.
    """
    x, dy, scale = _wide(input), _wide(grad), 1.0 if swish_scale is None else swish_scale
    n, c = x.shape[:2]
    channels = [1, c] + [1] * (x.dim() - 2)
    statistics = [_wide(t).reshape(n, num_groups, 1) for t in (mean, rstd)]
    normed = ((x.reshape(n, num_groups, -1) - statistics[0]) * statistics[1]).reshape(x.shape)
    z = normed * _wide(weight).view(channels) + _wide(bias).view(channels)
    gate = torch.sigmoid(z * scale)
    dz = dy * (gate + z * scale * gate * (1 - gate))
    dx, dw, db = aten.native_group_norm_backward.default(
        dz.contiguous(),
        x.contiguous(),
        statistics[0].reshape(n, num_groups),
        statistics[1].reshape(n, num_groups),
        _wide(weight),
        n,
        c,
        x.numel() // (n * c),
        num_groups,
        [True, True, True],
    )
    return dx.to(input.dtype), dw.to(weight.dtype), db.to(bias.dtype)


def bmm_mat1_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: Any) -> Tensor:
    """``grad @ mat2^T``, summed where mat1 was repeated."""
    return torch.matmul(grad, mat2.transpose(-2, -1)).sum_to_size(mat1.shape)


def bmm_mat2_backward(grad: Tensor, mat1: Tensor, mat2: Tensor, size: Any) -> Tensor:
    """``mat1^T @ grad``, summed where mat2 was repeated."""
    return torch.matmul(mat1.transpose(-2, -1), grad).sum_to_size(mat2.shape)


# -- order, places, sizes -------------------------------------------------------------------------------------------


def confusion_transpose(x: Tensor, perm: Sequence[int], shape: Any, transpose_first: bool) -> Tensor:
    """A permutation and a new shape, in either order."""
    return x.permute(perm).reshape(shape) if transpose_first else x.reshape(shape).permute(perm).contiguous()


def confusion_transpose_backward(grad: Tensor, perm: Sequence[int], shape: Any, transpose_first: bool) -> Tensor:
    """The way back; ``shape`` is that of the input."""
    back = sorted(range(len(perm)), key=lambda axis: perm[axis])
    if transpose_first:
        return grad.reshape([shape[axis] for axis in perm]).permute(back).contiguous()
    return grad.permute(back).reshape(shape)


def extremum_backward(grad: Tensor, dim: int, indices: Tensor, sizes: Any, keepdim: bool) -> Tensor:
    """Zeros with the gradient where the extremum was."""
    if not keepdim and sizes:
        grad, indices = grad.unsqueeze(dim), indices.unsqueeze(dim)
    return grad.new_zeros(sizes).scatter(dim, indices.long(), grad)


def sliced(x: Tensor, offsets: Sequence[int], size: Sequence[int]) -> Tensor:
    """``size`` elements from ``offsets`` on; -1: all that follow."""
    for axis, (start, length) in enumerate(zip(offsets, size)):
        x = x.narrow(axis, start, x.shape[axis] - start if length == -1 else length)
    return x.contiguous()


def padded(x: Tensor, paddings: Sequence[int]) -> Tensor:
    """Zeros before and after each axis, from the first axis on."""
    pairs = [paddings[i : i + 2] for i in range(0, len(paddings), 2)]
    return aten.constant_pad_nd.default(x, [width for pair in reversed(pairs) for width in pair], 0)


def stride_copy(x: Tensor, shape: Any, stride: Any, storage_offset: Any) -> Tensor:
    """What ``as_strided`` shows, as a tensor of its own."""
    return x.as_strided(shape, stride, int(storage_offset)).clone(memory_format=torch.contiguous_format)


def repeat_interleave_backward_int(grad: Tensor, input: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    """The sum over the copies of each element."""
    if dim is None:
        return grad.reshape(-1, repeats).sum(1).reshape(input.shape)
    axis = dim % input.dim()
    return grad.unflatten(axis, (input.shape[axis], repeats)).sum(axis + 1)


def repeat_interleave_backward_tensor(grad: Tensor, input: Tensor, repeats: Tensor, dim: int | None = None) -> Tensor:
    """The same, each element with a number of copies of its own."""
    axis = 0 if dim is None else dim % input.dim()
    flat = input.reshape(-1) if dim is None else input
    size = flat.shape[axis]
    ends = repeats.long().expand(size).cumsum(0)
    places = torch.arange(grad.shape[axis], device=grad.device)
    from_where = torch.searchsorted(ends, places, right=True)
    return torch.zeros_like(flat).index_add(axis, from_where, grad).reshape(input.shape)


def gather_sparse_index(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x. Shapes: x [n, ..], index of any shape -> [*index, ..]."""
    return x[index.long()]


def gather_sparse_index_backward(grad: Tensor, self_sizes: Any, index: Tensor) -> Tensor:
    """Each row of the gradient added where it was taken."""
    flat = grad.reshape(index.numel(), *self_sizes[1:])
    return grad.new_zeros(self_sizes).index_add(0, index.reshape(-1).long(), flat)


# -- spectra --------------------------------------------------------------------------------------------------------


def fft_c2r_backward(grad: Tensor, dim: Sequence[int], normalization: int) -> Tensor:
    """Gradient of a transform to real numbers: what the half of the spectrum stands for twice counts twice."""
    result = aten._fft_r2c.default(grad, dim, normalization, True)
    doubled = grad.shape[dim[-1]] - result.shape[dim[-1]]
    axis = dim[-1] % grad.dim()
    length = result.shape[axis]
    place = torch.arange(length, device=grad.device)
    factor = 1.0 + ((place >= 1) & (place < 1 + doubled)).to(grad.dtype)
    return result * factor.view([length] + [1] * (grad.dim() - axis - 1))


def fft_r2c_backward(grad: Tensor, dim: Sequence[int], normalization: int, onesided: bool, last_size: int) -> Tensor:
    """Gradient of a transform of real numbers: the real part of the transform back, of the spectrum with zeros."""
    axis = dim[-1] % grad.dim()
    if onesided and last_size > grad.shape[axis]:
        widths = [0, 0] * (grad.dim() - axis - 1) + [0, last_size - grad.shape[axis]]
        parts = aten.constant_pad_nd.default(torch.view_as_real(grad).movedim(-1, 0), widths, 0.0)
        grad = torch.view_as_complex(parts.movedim(0, -1).contiguous())
    return torch.view_as_real(aten._fft_c2c.default(grad, dim, normalization, False))[..., 0]


# -- losses, masks --------------------------------------------------------------------------------------------------


def kl_div_target_backward(
    grad: Tensor, input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    """Gradient of the divergence with respect to the target; 0 where a target that is no logarithm is not positive."""
    if log_target:
        slope = target.exp() * (target - input + 1)
    else:
        positive = target > 0
        slope = torch.where(positive, torch.where(positive, target, 1.0).log() + 1 - input, 0.0)
    return grad * slope / input.numel() if reduction == 1 else grad * slope


def byte_mask_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """What the mask kept, scaled."""
    return grad * mask.to(grad.dtype) * (1 / (1 - p) if p < 1 else 0.0)


# -- sequences, streams ---------------------------------------------------------------------------------------------


def masked_causal_conv1d(x: Tensor, weight: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Each channel by itself, each row from itself and those before it.

    Shapes: x [s, b, h], weight [k, h], mask of bool [b, s] -> as x.
    """
    rows = aten.constant_pad_nd.default(x.permute(1, 2, 0), [weight.shape[0] - 1, 0], 0)
    y = aten.convolution.default(
        rows, weight.t().unsqueeze(1).contiguous(), None, [1], [0], [1], False, [0], x.shape[2]
    ).permute(2, 0, 1)
    return y.contiguous() if mask is None else y * mask.t().unsqueeze(-1).to(y.dtype)


def masked_causal_conv1d_backward(grad: Tensor, x: Tensor, weight: Tensor, *, mask: Tensor | None = None) -> Any:
    """Gradients of x and weight."""
    dy = grad if mask is None else grad * mask.t().unsqueeze(-1).to(grad.dtype)
    before = weight.shape[0] - 1
    rows = aten.constant_pad_nd.default(x.permute(1, 2, 0), [before, 0], 0)
    kernel = weight.t().unsqueeze(1).contiguous()
    dx, dw, _ = aten.convolution_backward.default(
        dy.permute(1, 2, 0).contiguous(), rows, kernel, None, [1], [0], [1], False, [0], x.shape[2], [True, True, False]
    )
    return dx[..., before:].permute(2, 0, 1).contiguous(), dw.squeeze(1).t().contiguous()


def mhc_post(x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Tensor:
    """Streams mixed among each other, and a share of the layer's result for each.

    Shapes: x [.., n, d], h_res [.., n, n], h_out [.., d], h_post [.., n] -> as x.
    """
    mixed = _wide(x) if h_res is None else torch.matmul(h_res.transpose(-2, -1).float(), x.float())
    return (mixed + h_post.unsqueeze(-1) * h_out.float().unsqueeze(-2)).to(x.dtype)


def mhc_post_backward(dy: Tensor, x: Tensor, h_res: Tensor | None, h_out: Tensor, h_post: Tensor) -> Any:
    """Gradients of x, h_res, h_out and h_post."""
    d, wide = dy.float(), x.float()
    dx = d if h_res is None else torch.matmul(h_res.float(), d)
    dres = torch.matmul(wide, d.transpose(-2, -1))
    dout = (d * h_post.unsqueeze(-1)).sum(-2)
    dpost = (d * h_out.float().unsqueeze(-2)).sum(-1)
    return dx.to(x.dtype), dres, dout.to(h_out.dtype), dpost


@accepted(label_smoothing=OFF, lse_square_scale_for_zloss=OFF, grad_zloss=(None,))
def cross_entropy_backward(
    grad_loss: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Any:
    """Gradient of the cross entropy by its logarithms; z-loss and smoothing, which the forward refuses, stay whole.

    Shapes: log_prob [n, c], target [n] -> [n, c].
    """
    logs = log_prob.float()
    kinds = {"none": 0, "mean": 1, "sum": 2}
    scale = torch.ones_like(logs[0]) if weight is None else weight.float()
    kept = target != ignore_index
    total = (scale[torch.where(kept, target, 0)] * kept).sum()
    grad = grad_loss.float() if reduction == "none" else grad_loss.float().reshape(())
    slope = aten.nll_loss_backward.default(grad, logs, target, scale, kinds[reduction], ignore_index, total)
    return aten._log_softmax_backward_data.default(slope, logs, -1, torch.float32).to(log_prob.dtype)


@accepted(label_smoothing=OFF, vocab_parallel_logits=GIVEN)
def cross_entropy_of_sums(
    logits_max: Tensor,
    sum_exp_logits: Tensor,
    predicted_logits: Tensor,
    *,
    label_smoothing: float | None = 0.0,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    vocab_parallel_logits: Any = None,
) -> Any:
    """The loss of a part of a vocabulary from its largest logits and sums; and the probabilities.

    Shapes: three of [n], logits [n, c] -> [n], [n, c].
    """
    loss = sum_exp_logits.log() - predicted_logits
    shifted = vocab_parallel_logits.float() - logits_max.unsqueeze(-1)
    return loss, shifted.exp() / sum_exp_logits.unsqueeze(-1)


# -- quantisation ---------------------------------------------------------------------------------------------------


@accepted(dst_dtype=(None, 1))
def rms_norm_quant(
    x: Tensor,
    gamma: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_dtype: int | None = None,
) -> Any:
    """RMS norm, then int8 by a scale; ``div_mode`` divides by it.

    Shapes: x [.., n], the others [n] or [1] -> as x, and [.., 1].
    """
    wide = x.float()
    rstd = (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    y = wide * rstd * gamma.float()
    y = y if beta is None else y + beta.float()
    y = y / scale.float() if div_mode else y * scale.float()
    y = y if offset is None else y + offset.float()
    return y.round().clamp(-128, 127).to(torch.int8), rstd


# -- experts --------------------------------------------------------------------------------------------------------


def _copies(tokens: Tensor, places: Tensor) -> Tensor:
    """Row of each place; those behind the end were dropped and count as zeros."""
    missing = places.numel() - tokens.shape[0]
    whole = aten.constant_pad_nd.default(tokens, [0, 0, 0, missing], 0) if missing > 0 else tokens
    return whole[places.reshape(-1).long()]


@accepted(padded_mode=OFF)
def permute_grad(
    grad: Tensor,
    sorted_indices: Tensor,
    tokens_size_0: Any,
    tokens_dtype: Any,
    num_topk: Any,
    padded_mode: bool = False,
) -> Any:
    """Each token gets the sum of its copies' gradients. Shapes: grad [copies, h] -> [tokens_size_0, h]."""
    rows = _copies(grad, sorted_indices).float()
    return rows.reshape(tokens_size_0, num_topk, grad.shape[-1]).sum(1).to(tokens_dtype)


@accepted(padded_mode=OFF, probs=GIVEN, permuted_tokens=GIVEN)
def unpermute_grad(
    grad: Tensor,
    sorted_indices: Tensor,
    permuted_tokens_size_0: Any,
    permuted_tokens_dtype: Any,
    probs: Any = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
    permuted_tokens: Any = None,
) -> Any:
    """Gradients of the sorted tokens and of their weights.

    Shapes: grad [n, h], sorted_indices [n * k], probs [n, k] -> [permuted_tokens_size_0, h], [n, k].
    """
    places = sorted_indices.reshape(-1).long()
    spread = grad.float().unsqueeze(1).expand(-1, probs.shape[1], -1).reshape(-1, grad.shape[1])
    weighted = spread * probs.float().reshape(-1, 1)
    tokens = torch.zeros_like(weighted).index_add(0, places, weighted)[:permuted_tokens_size_0]
    slopes = (_copies(permuted_tokens, sorted_indices).float() * spread).sum(-1).reshape(probs.shape)
    return tokens.to(permuted_tokens_dtype), slopes.to(probs.dtype)


def unpermute(
    permuted_tokens: Tensor,
    sorted_indices: Tensor,
    probs: Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
) -> Any:
    """``npu_moe_token_unpermute``, and what its gradient takes."""
    whole = torch.ops.npu.npu_moe_token_unpermute.default
    result = whole(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
    return result, permuted_tokens.clone()


@accepted(drop_and_pad=OFF, num_out_tokens=GIVEN, probs=GIVEN)
def permute_by_map(
    tokens: Tensor,
    routing_map: Tensor,
    *,
    probs: Any = None,
    num_out_tokens: Any = None,
    drop_and_pad: bool = False,
) -> Any:
    """A copy of each token for each of its experts, sorted by expert; its weight; where each copy went.

    Shapes: tokens [n, h], routing_map and probs [n, e] -> [m, h], [m], [m]; m is num_out_tokens.
    """
    count, experts = routing_map.shape
    chosen = routing_map.t().reshape(-1).int()
    order = torch.sort(chosen, stable=True, descending=True)[1][:num_out_tokens]
    rows = order % count
    places = torch.sort(rows * experts + order // count)[1].int()
    return tokens[rows], probs.t().reshape(-1)[order], places


# -- caches ---------------------------------------------------------------------------------------------------------


@accepted(seq_offset=(None,))
def gather_pa_kv_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    seq_offset: Tensor | None = None,
    is_seq_lens_cumsum: bool = False,
) -> Any:
    """The rows of all sequences one behind another, out of their pages; rows behind the last one stay as they are.

    Shapes: caches [pages, rows of a page, heads, d], block_tables [batch, pages], key and value [rows, heads, d].
    """
    if key_cache.dim() != 4:
        raise Declined("key_cache", list(key_cache.shape), "4 dimensions")
    size = key_cache.shape[1]
    ends = seq_lens[1:].long() if is_seq_lens_cumsum else seq_lens.long().cumsum(0)
    place = torch.arange(key.shape[0], device=key.device)
    which = torch.searchsorted(ends, place, right=True)
    inside = which < ends.shape[0]
    which = which.clamp(max=ends.shape[0] - 1)
    starts = aten.constant_pad_nd.default(ends, [1, -1], 0)
    row = torch.where(inside, place - starts[which], 0)
    page = block_tables.long()[which, row // size]
    found = [cache.flatten(0, 1)[page * size + row % size] for cache in (key_cache, value_cache)]
    return tuple(torch.where(inside.view(-1, 1, 1), new, old) for new, old in zip(found, (key, value)))


def scatter(input: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """Elements written along ``dim``; one place of each line if ``indices`` has a dimension less.

    Shapes: indices and updates alike -> as input.
    """
    if indices.dim() == input.dim() - 1:
        indices, updates = indices.unsqueeze(dim), updates.unsqueeze(dim)
    return aten.scatter.src(input, dim, indices.long(), updates)


FORMULAS: Final[dict[str, Formula]] = {
    **training_steps.FORMULAS,
    "_conv_depthwise2d_backward": conv_depthwise2d_backward,
    "_dropout_with_byte_mask_backward": byte_mask_backward,
    "_npu_index_add": lambda x, index, source, *, alpha=1: torch.index_add(x, 0, index, source, alpha=alpha),
    "_npu_moe_token_unpermute": unpermute,
    "fft_c2r_backward": fft_c2r_backward,
    "fft_r2c_backward": fft_r2c_backward,
    "kl_div_target_backward": kl_div_target_backward,
    "npu_bmm_v2_mat1_backward": bmm_mat1_backward,
    "npu_bmm_v2_mat2_backward": bmm_mat2_backward,
    "npu_broadcast": lambda x, size: x.expand(size).clone(memory_format=torch.contiguous_format),
    "npu_confusion_transpose": confusion_transpose,
    "npu_confusion_transpose_backward": confusion_transpose_backward,
    "npu_conv2d_backward": convolution_backward,
    "npu_conv3d": conv3d,
    "npu_conv3d_backward": convolution_backward,
    "npu_conv_transpose2d": conv_transpose2d,
    "npu_conv_transpose2d_backward": convolution_transpose_backward,
    "npu_conv_transpose3d_backward": convolution_transpose_backward,
    "npu_convolution_backward": convolution_backward,
    "npu_convolution_transpose_backward": convolution_transpose_backward,
    "npu_cross_entropy_loss_backward": cross_entropy_backward,
    "npu_fused_cross_entropy_loss_with_max_sum": cross_entropy_of_sums,
    "npu_gather_pa_kv_cache_functional": gather_pa_kv_cache,
    "npu_gather_sparse_index": gather_sparse_index,
    "npu_gather_sparse_index_backward": gather_sparse_index_backward,
    "npu_group_norm_swish_grad": group_norm_swish_grad,
    "npu_masked_causal_conv1d": masked_causal_conv1d,
    "npu_masked_causal_conv1d_backward": masked_causal_conv1d_backward,
    "npu_max_backward": extremum_backward,
    "npu_mhc_post": mhc_post,
    "npu_mhc_post_backward": mhc_post_backward,
    "npu_min_backward": extremum_backward,
    "npu_moe_token_permute_grad_v2": permute_grad,
    "npu_moe_token_permute_with_routing_map": permute_by_map,
    "npu_moe_token_unpermute_grad_v2": unpermute_grad,
    "npu_pad": padded,
    "npu_rms_norm_quant_v2": rms_norm_quant,
    "npu_scatter": scatter,
    "npu_slice": sliced,
    "npu_sort_v2": lambda x, dim=-1, descending=False: torch.sort(x, dim, descending)[0],
    "npu_stride_copy": stride_copy,
    "repeat_interleave_backward_int": repeat_interleave_backward_int,
    "repeat_interleave_backward_tensor": repeat_interleave_backward_tensor,
    "slow_conv_dilated2d_backward": slow_conv_dilated2d_backward,
    "slow_conv_transpose2d_backward": slow_conv_transpose2d_backward,
}


def _quiet(formula: Formula) -> Formula:
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return formula(*args, **kwargs)
        except Declined:
            return NotImplemented

    return run


def decompositions() -> dict[Any, Formula]:
    """The formulas by overload, as far as torch_npu has been imported; a declined call leaves its op whole."""
    packets = {name: getattr(torch.ops.npu, name, None) for name in FORMULAS}
    return {packet.default: _quiet(FORMULAS[name]) for name, packet in packets.items() if packet is not None}


for _name, _formula in FORMULAS.items():
    define_formula(f"npu.{_name}.default", _formula)
