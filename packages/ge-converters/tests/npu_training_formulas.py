"""torch_npu's operators of training and detection: gradients against autograd of what they belong to, boxes by formula.

As ``npu_formulas``: each formula is its operator's kernel and Meta function too, and calls to prove it with follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from npu_formulas import FLOATS, HALVES, Case, call, fake, gradients, rand, up
from torch import Tensor
from torch.nn import functional

F32, F16, BF16 = FLOATS
ONLY = (F32,)
BOX = (F32, F16)


def draw(*shapes: tuple[int, ...], **keywords: Any) -> Callable[[torch.dtype], Any]:
    return lambda d: call(*[rand(*s).to(d) for s in shapes], **keywords)


def ints(high: int, *shape: int) -> Tensor:
    return ((rand(*shape) + 1) / 2 * high).long().clamp(0, high - 1)


# -- convolutions: gradients by autograd of the forward -------------------------------------------------------------


def convolved(x: Tensor, w: Tensor, b: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    plain = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[x.dim()]
    return plain(x, w, b, stride, padding, dilation, groups)


def turned(
    x: Tensor, w: Tensor, b: Tensor | None, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int
) -> Tensor:
    plain = {4: functional.conv_transpose2d, 5: functional.conv_transpose3d}[x.dim()]
    return plain(x, w, b, stride, padding, output_padding, groups, dilation)


def conv_forward(x: Tensor, w: Tensor, b: Tensor | None, *settings: Any) -> Tensor:
    return convolved(up(x), up(w), None if b is None else up(b), *settings).to(x.dtype)


def turned_forward(x: Tensor, w: Tensor, b: Tensor | None, *settings: Any) -> Tensor:
    return turned(up(x), up(w), None if b is None else up(b), *settings).to(x.dtype)


def _of_forward(
    forward: Callable[..., Tensor], grad: Tensor, x: Tensor, w: Tensor, settings: Any, channels: int
) -> Any:
    made = gradients(lambda *leaves: forward(*leaves, *settings), grad, x, w, x.new_zeros(channels))
    return [made[0].to(x.dtype), made[1].to(w.dtype), made[2].to(x.dtype)]


def conv_backward(input: Tensor, grad: Tensor, weight: Tensor, *settings: Any) -> Any:
    return _of_forward(convolved, grad, input, weight, settings[:-1], weight.shape[0])


def turned_backward(input: Tensor, grad: Tensor, weight: Tensor, *settings: Any) -> Any:
    return _of_forward(turned, grad, input, weight, settings[:-1], weight.shape[1] * settings[-2])


def dilated_backward(
    grad: Tensor, x: Tensor, w: Tensor, _: Any, stride: Any, padding: Any, dilation: Any, m: Any
) -> Any:
    return conv_backward(x, grad, w, stride, padding, dilation, 1, m)


def slow_turned_backward(
    grad: Tensor, x: Tensor, w: Tensor, _: Any, stride: Any, padding: Any, beyond: Any, dilation: Any, m: Any
) -> Any:
    return turned_backward(x, grad, w, padding, beyond, stride, dilation, 1, m)


def depthwise_backward(
    grad: Tensor, x: Tensor, w: Tensor, _: Any, stride: Any, padding: Any, dilation: Any, m: Any
) -> Any:
    return conv_backward(x, grad, w, stride, padding, dilation, x.shape[1], m)[:2]


ALL = [True, True, True]
X2, W2, Y2 = (2, 4, 8, 7), (6, 2, 3, 3), (2, 6, 4, 4)
S2 = ([2, 2], [1, 1], [1, 1])
X3, W3, Y3 = (1, 2, 5, 6, 4), (3, 2, 3, 3, 3), (1, 3, 5, 6, 4)
S3 = ([1, 1, 1], [1, 1, 1], [1, 1, 1])
# of a transposed convolution: input, weight, result
T2 = (2, 4, 5, 4), (4, 3, 3, 3), (2, 6, 11, 9)
P2 = ([0, 0], [0, 0], [2, 2], [1, 1])
T3 = (1, 2, 3, 4, 3), (2, 3, 3, 3, 3), (1, 3, 7, 9, 7)
P3 = ([0, 0, 0], [0, 0, 0], [2, 2, 2], [1, 1, 1])


def _convolutions() -> list[Case]:
    two = lambda d: call(rand(*X2).to(d), rand(*Y2).to(d), rand(*W2).to(d), *S2, 2, ALL)  # noqa: E731
    three = lambda d: call(rand(*X3).to(d), rand(*Y3).to(d), rand(*W3).to(d), *S3, 1, ALL)  # noqa: E731
    back2 = lambda d: call(rand(*T2[0]).to(d), rand(*T2[2]).to(d), rand(*T2[1]).to(d), *P2, 2, ALL)  # noqa: E731
    back3 = lambda d: call(rand(*T3[0]).to(d), rand(*T3[2]).to(d), rand(*T3[1]).to(d), *P3, 1, ALL)  # noqa: E731
    kinds = {"dtypes": (F32, F16), "tolerance": 3e-2}
    return [
        Case("npu_conv2d_backward", conv_backward, two, **kinds),
        Case("npu_convolution_backward", conv_backward, two, **kinds),
        Case("npu_conv3d_backward", conv_backward, three, **kinds),
        Case("npu_conv_transpose2d_backward", turned_backward, back2, **kinds),
        Case("npu_convolution_transpose_backward", turned_backward, back2, **kinds),
        Case("npu_conv_transpose3d_backward", turned_backward, back3, **kinds),
        Case(
            "slow_conv_dilated2d_backward",
            dilated_backward,
            lambda d: call(
                *[rand(*s).to(d) for s in ((2, 3, 8, 8), (2, 4, 8, 8), (3, 4, 3, 3))],
                [3, 3],
                [1, 1],
                [2, 2],
                [2, 2],
                ALL,
            ),
            **kinds,
        ),
        Case(
            "slow_conv_transpose2d_backward",
            slow_turned_backward,
            lambda d: call(
                *[rand(*s).to(d) for s in ((2, 3, 11, 9), *T2[:2])], [3, 3], [2, 2], [0, 0], [0, 0], [1, 1], ALL
            ),
            **kinds,
        ),
        Case(
            "_conv_depthwise2d_backward",
            depthwise_backward,
            lambda d: call(
                *[rand(*s).to(d) for s in ((2, 4, 6, 6), (2, 4, 6, 6), (4, 1, 3, 3))],
                [3, 3],
                [1, 1],
                [1, 1],
                [1, 1],
                ALL[:2],
            ),
            dynamic=False,
            **kinds,
        ),
        Case(
            "npu_conv3d",
            conv_forward,
            lambda d: call(rand(*X3).to(d), rand(*W3).to(d), rand(3).to(d), *S3, 1),
            (F32, F16),
            tolerance=3e-2,
        ),
        Case(
            "npu_conv_transpose2d",
            turned_forward,
            lambda d: call(rand(*T2[0]).to(d), rand(*T2[1]).to(d), rand(6).to(d), *P2, 2),
            (F32, F16),
            tolerance=3e-2,
        ),
    ]


# -- norms, products, extrema ---------------------------------------------------------------------------------------


def add_layer_norm_grad(
    dy: Tensor, x1: Tensor, x2: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, dsum: Tensor | None
) -> Any:
    if fake(dy):
        return torch.empty_like(x1), torch.empty_like(x1), torch.empty_like(gamma, dtype=F32), gamma.float()
    norm = lambda x, g, b: functional.layer_norm(x, g.shape, g, b, 1e-5)  # noqa: E731
    dx, dg, db = gradients(norm, dy, up(x1) + up(x2), gamma, torch.zeros_like(gamma))
    dx = (dx if dsum is None else dx + up(dsum)).to(x1.dtype)
    return dx, dx.clone(), dg, db


def swish_grad(
    grad: Tensor, x: Tensor, groups: int, w: Tensor, b: Tensor, mean: Tensor, rstd: Tensor, mask: Any, scale: Any = 1.0
) -> Any:
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = functional.group_norm(x, groups, w, b, 1e-5)
        return y * torch.sigmoid(scale * y)

    return [g.to(t.dtype) for g, t in zip(gradients(forward, grad, x, w, b), (x, w, b))]


def mat1_backward(grad: Tensor, a: Tensor, b: Tensor, _: Any) -> Tensor:
    return gradients(lambda a: a @ up(b), grad, a)[0].to(a.dtype)


def mat2_backward(grad: Tensor, a: Tensor, b: Tensor, _: Any) -> Tensor:
    return gradients(lambda b: up(a) @ b, grad, b)[0].to(b.dtype)


def extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
    def run(input: Tensor, dim: int, keepdim: bool = False) -> Any:
        values, indices = pick(input, dim, keepdim)
        return values, indices.int()

    return run


def extreme_backward(grad: Tensor, dim: int, indices: Tensor, sizes: Any, keepdim: bool) -> Tensor:
    if fake(grad):
        return grad.new_empty(sizes)
    whole = torch.zeros(sizes, dtype=grad.dtype)
    at = indices if keepdim else indices.unsqueeze(dim)
    for place in torch.cartesian_prod(*[torch.arange(n) for n in at.shape]).tolist():
        spot = list(place)
        spot[dim] = int(at[tuple(place)])
        whole[tuple(spot)] = (grad if keepdim else grad.unsqueeze(dim))[tuple(place)]
    return whole


def statistics(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    parts = up(x).reshape(x.shape[0], groups, -1)
    return parts.mean(-1), (parts.var(-1, correction=0) + 1e-5).rsqrt()


def _norms() -> list[Case]:
    def added(d: torch.dtype) -> Any:
        x1, x2 = rand(3, 4, 8).to(d), rand(3, 4, 8).to(d)
        x = up(x1) + up(x2)
        mean, rstd = x.mean(-1, keepdim=True), (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        return call(rand(3, 4, 8).to(d), x1, x2, rstd, mean, rand(8).to(d), rand(3, 4, 8).to(d))

    def swish(d: torch.dtype) -> Any:
        x = rand(2, 4, 5).to(d)
        mean, rstd = (t.to(d) for t in statistics(x, 2))
        return call(rand(2, 4, 5).to(d), x, 2, rand(4).to(d), rand(4).to(d), mean, rstd, ALL, 1.0)

    mats = (2, 3, 6), (2, 3, 4), (2, 4, 6)
    back = lambda d: call(rand(3, 5), 1, ints(4, 3, 5), [3, 4, 5], False)  # noqa: E731
    return [
        Case("npu_add_layer_norm_backward", add_layer_norm_grad, added, FLOATS, tolerance=2e-2),
        Case("npu_group_norm_swish_grad", swish_grad, swish, ONLY),
        Case("npu_bmm_v2_mat1_backward", mat1_backward, lambda d: call(*draw(*mats)(d)[0], [2, 3, 4]), (F32, F16)),
        Case("npu_bmm_v2_mat2_backward", mat2_backward, lambda d: call(*draw(*mats)(d)[0], [2, 4, 6]), (F32, F16)),
        Case("npu_max.dim", extreme(torch.max), lambda d: call(rand(3, 4, 5).to(d), 1), (F32, F16)),
        Case("npu_min.dim", extreme(torch.min), lambda d: call(rand(3, 4, 5).to(d), -1, True), (F32, F16)),
        Case("npu_max_backward", extreme_backward, back, ONLY, dynamic=False),
        Case(
            "npu_min_backward",
            extreme_backward,
            lambda d: call(rand(3, 1, 5), 1, ints(4, 3, 1, 5), [3, 4, 5], True),
            ONLY,
            dynamic=False,
        ),
    ]


# -- sizes, places, order -------------------------------------------------------------------------------------------


def confused(input: Tensor, perm: Any, shape: Any, transpose_first: bool) -> Tensor:
    return input.permute(perm).reshape(shape) if transpose_first else input.reshape(shape).permute(perm).contiguous()


def confused_backward(grad: Tensor, perm: Any, shape: Any, transpose_first: bool) -> Tensor:
    new = grad.shape if transpose_first else [grad.shape[perm.index(axis)] for axis in range(len(perm))]
    if fake(grad):
        return grad.new_empty(shape)
    return gradients(lambda x: confused(x, perm, new, transpose_first), grad, grad.new_zeros(shape))[0].to(grad.dtype)


def sliced(input: Tensor, offsets: Any, size: Any) -> Tensor:
    return input[tuple(slice(a, a + n) for a, n in zip(offsets, size))].clone()


def padded(input: Tensor, paddings: Any) -> Tensor:
    whole = input.new_zeros([n + paddings[2 * i] + paddings[2 * i + 1] for i, n in enumerate(input.shape)])
    whole[tuple(slice(paddings[2 * i], paddings[2 * i] + n) for i, n in enumerate(input.shape))] = input
    return whole


def one_hot(input: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0) -> Tensor:
    hot = input.unsqueeze(-1) == torch.arange(depth)
    return torch.where(hot, torch.tensor(float(on_value)), torch.tensor(float(off_value)))


def repeated_backward(grad: Tensor, input: Tensor, repeats: Any, dim: Any = None) -> Tensor:
    if fake(grad):
        return torch.empty_like(input)
    return gradients(lambda x: torch.repeat_interleave(x, repeats, dim), grad, input)[0].to(input.dtype)


def taken_backward(grad: Tensor, sizes: Any, index: Tensor) -> Tensor:
    if fake(grad):
        return grad.new_empty(sizes)
    return gradients(lambda x: x[index], grad, torch.zeros(sizes))[0]


def indexed(
    input: Tensor, begin: Any, end: Any, strides: Any, begin_mask: int = 0, end_mask: int = 0, *masks: int
) -> Tensor:
    parts = []
    for i, (a, b, s) in enumerate(zip(begin, end, strides)):
        parts.append(slice(None if begin_mask >> i & 1 else a, None if end_mask >> i & 1 else b, s))
    return input[tuple(parts)].clone()


def packed(input: Tensor, size: int) -> Tensor:
    if fake(input):
        return input.new_empty((size, -(-input.shape[0] // 8) // size), dtype=torch.uint8)
    signs = [int(v >= 0) for v in input.tolist()]
    signs += [0] * (-len(signs) % 8)
    made = [sum(bit << i for i, bit in enumerate(signs[k : k + 8])) for k in range(0, len(signs), 8)]
    return torch.tensor(made, dtype=torch.uint8).reshape(size, -1)


def _places() -> list[Case]:
    return [
        Case(
            "npu_confusion_transpose",
            confused,
            lambda d: call(rand(2, 3, 4, 6).to(d), [0, 2, 1, 3], [2, 4, 18], True),
            (F32, F16),
            dynamic=False,
        ),
        Case(
            "npu_confusion_transpose",
            confused,
            lambda d: call(rand(2, 12, 6).to(d), [0, 2, 1, 3], [2, 4, 3, 6], False),
            ONLY,
            tag="shape first",
            dynamic=False,
        ),
        Case(
            "npu_confusion_transpose_backward",
            confused_backward,
            lambda d: call(rand(2, 4, 18), [0, 2, 1, 3], [2, 3, 4, 6], True),
            ONLY,
            dynamic=False,
        ),
        Case(
            "npu_confusion_transpose_backward",
            confused_backward,
            lambda d: call(rand(2, 3, 4, 6), [0, 2, 1, 3], [2, 12, 6], False),
            ONLY,
            tag="shape first",
            dynamic=False,
        ),
        Case(
            "npu_broadcast",
            lambda x, size: x.expand(size).clone(),
            lambda d: call(rand(3, 1).to(d), [2, 3, 4]),
            (F32, F16),
            dynamic=False,
        ),
        Case("npu_slice", sliced, lambda d: call(rand(4, 6).to(d), [1, 2], [2, 3]), (F32, F16), dynamic=False),
        Case("npu_pad", padded, lambda d: call(rand(2, 4).to(d), [1, 0, 2, 1]), (F32, F16), dynamic=False),
        Case(
            "npu_stride_copy",
            lambda x, shape, stride, offset: x.as_strided(shape, stride, offset).clone(),
            lambda d: call(rand(3, 4).to(d), [2, 3], [1, 4], 1),
            (F32, F16),
            dynamic=False,
        ),
        Case(
            "npu_sort_v2",
            lambda x, dim=-1, descending=False: x.sort(dim, descending)[0],
            lambda d: call(rand(3, 8).to(d), 1, True),
            (F32, F16),
        ),
        Case(
            "_npu_index_add",
            lambda x, i, y, *, alpha=1: x.index_add(0, i, y, alpha=alpha),
            lambda d: call(rand(4, 3), torch.tensor([0, 2, 2]), rand(3, 3), alpha=1),
            ONLY,
        ),
        Case(
            "npu_one_hot",
            one_hot,
            lambda d: call(torch.tensor([5, 3, 2, 1], dtype=torch.int32), depth=5, on_value=2, off_value=-1),
            ONLY,
        ),
        Case("repeat_interleave_backward_int", repeated_backward, lambda d: call(rand(3, 8), rand(3, 4), 2, 1), ONLY),
        Case(
            "repeat_interleave_backward_tensor",
            repeated_backward,
            lambda d: call(rand(6, 3), rand(4, 3), torch.tensor([1, 0, 3, 2]), 0),
            ONLY,
        ),
        Case("npu_gather_sparse_index", lambda x, i: x[i], lambda d: call(rand(5, 3).to(d), ints(5, 4, 2)), (F32, F16)),
        Case(
            "npu_gather_sparse_index_backward",
            taken_backward,
            lambda d: call(rand(4, 2, 3), [5, 3], ints(5, 4, 2)),
            ONLY,
            dynamic=False,
        ),
        Case(
            "npu_indexing", indexed, lambda d: call(rand(4, 6).to(d), [1, 0], [4, 6], [2, 2]), (F32, F16), dynamic=False
        ),
        Case(
            "npu_indexing",
            indexed,
            lambda d: call(rand(4, 6), [1, 3], [2, 5], [1, 1], 2, 1),
            ONLY,
            tag="masks",
            dynamic=False,
        ),
        Case(
            "npu_sign_bits_pack",
            packed,
            lambda d: call(torch.tensor([5, 4, 3, 2, 0, -1, -2, 4, 3, 2, 1, 0, -1, -2], dtype=d), 2),
            (F32, F16),
            dynamic=False,
        ),
    ]


# -- spectra, losses, masks -----------------------------------------------------------------------------------------


def to_real_backward(grad: Tensor, dim: Any, normalization: int) -> Tensor:
    sizes = list(grad.shape)
    sizes[dim[-1]] = sizes[dim[-1]] // 2 + 1
    if fake(grad):
        return grad.new_empty(sizes, dtype=torch.complex64)
    leaf = torch.zeros(sizes, dtype=torch.complex64, requires_grad=True)
    with torch.enable_grad():
        y = torch.ops.aten._fft_c2r(leaf, dim, normalization, grad.shape[dim[-1]])
    return torch.autograd.grad(y, leaf, grad)[0]


def of_real_backward(grad: Tensor, dim: Any, normalization: int, onesided: bool, last: int) -> Tensor:
    sizes = list(grad.shape)
    sizes[dim[-1]] = last
    if fake(grad):
        return grad.new_empty(sizes, dtype=F32)
    leaf = torch.zeros(sizes, requires_grad=True)
    with torch.enable_grad():
        y = torch.ops.aten._fft_r2c(leaf, dim, normalization, onesided)
    return torch.autograd.grad(y, leaf, grad)[0]


def kl_target_backward(
    grad: Tensor, input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    if fake(grad):
        return torch.empty_like(target)
    name = ("none", "mean", "sum")[reduction]
    loss = lambda t: functional.kl_div(input, t, reduction=name, log_target=log_target)  # noqa: E731
    return gradients(loss, grad, target)[0]


def bce_backward(
    grad: Tensor, input: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    if fake(grad):
        return torch.empty_like(input)
    name = ("none", "mean", "sum")[reduction]

    def loss(x: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(x, target, weight, reduction=name, pos_weight=pos_weight)

    return gradients(loss, grad, input)[0]


def masked_softmax_backward(dy: Tensor, y: Tensor, mask: Tensor, scale: Any, fixed_triu_mask: bool) -> Tensor:
    p, d = up(y), up(dy)
    dx = torch.diagonal_scatter(p.new_zeros(*p.shape, p.shape[-1]), p, dim1=-2, dim2=-1) - p.unsqueeze(
        -1
    ) * p.unsqueeze(-2)
    return ((dx @ d.unsqueeze(-1)).squeeze(-1) * scale).masked_fill(mask, 0).to(y.dtype)


def kept_bits(x: Tensor, mask: Tensor, p: float) -> Tensor:
    if fake(x):
        return torch.empty_like(x)
    bits = torch.tensor([b >> i & 1 for b in mask.tolist() for i in range(8)])[: x.numel()].view(x.shape)
    return (up(x) * bits / (1 - p)).to(x.dtype)


def _losses() -> list[Case]:
    spectrum = lambda d: call(torch.complex(rand(3, 5), rand(3, 5)), [0, 1], 1, True, 8)  # noqa: E731
    bits = lambda: ints(256, 16).to(torch.uint8)  # noqa: E731

    def kl(i: int, log: bool) -> Any:
        def make(_: torch.dtype) -> Any:
            target = rand(4, 6) if log else rand(4, 6).abs()
            return call(rand(*((4, 6) if i == 0 else ())), rand(4, 6), target, i, log_target=log)

        return make

    def cross(i: int) -> Any:
        def make(_: torch.dtype) -> Any:
            tensors = rand(4, 6), rand(4, 6).abs(), rand(4, 6).abs(), rand(6).abs() + 1
            return call(rand(*((4, 6) if i == 0 else ())), *tensors, i)

        return make

    return [
        Case("fft_r2c_backward", of_real_backward, spectrum, ONLY, dynamic=False),
        Case(
            "fft_r2c_backward",
            of_real_backward,
            lambda d: call(torch.complex(rand(3, 6), rand(3, 6)), [1], 2, False, 6),
            ONLY,
            tag="both sides",
            dynamic=False,
        ),
        Case("fft_c2r_backward", to_real_backward, lambda d: call(rand(3, 8), [0, 1], 2), ONLY, dynamic=False),
        Case("fft_c2r_backward", to_real_backward, lambda d: call(rand(3, 7), [1], 1), ONLY, tag="odd", dynamic=False),
        *(
            Case("kl_div_target_backward", kl_target_backward, kl(i, log), ONLY, tag=f"{name}{' log' if log else ''}")
            for i, name in enumerate(("none", "mean", "sum"))
            for log in (False, True)
        ),
        *(
            Case("npu_binary_cross_entropy_with_logits_backward", bce_backward, cross(i), ONLY, tag=name)
            for i, name in enumerate(("none", "mean", "sum"))
        ),
        Case(
            "npu_scaled_masked_softmax_backward",
            masked_softmax_backward,
            lambda d: (
                lambda m: call(
                    rand(2, 2, 32, 32).to(d), rand(2, 2, 32, 32).masked_fill(m, -1e4).softmax(-1).to(d), m, 0.5, False
                )
            )(rand(2, 2, 32, 32) > 0.4),
            HALVES,
        ),
        Case(
            "_dropout_with_byte_mask_backward",
            lambda g, m, p: up(g).mul(m).div(1 - p).to(g.dtype),
            lambda d: call(rand(4, 8).to(d), (rand(4, 8) > 0).to(torch.uint8), 0.25),
            (F32, F16),
        ),
        Case(
            "npu_dropout_backward", kept_bits, lambda d: call(rand(4, 8).to(d), bits(), 0.25), (F32, F16), dynamic=False
        ),
        Case(
            "npu_dropout_do_mask",
            lambda x, m, p: (kept_bits(x, m, p), m.clone()),
            lambda d: call(rand(4, 8).to(d), bits(), 0.5),
            (F32, F16),
            dynamic=False,
        ),
    ]


CASES = [*_convolutions(), *_norms(), *_places(), *_losses()]
