"""What torch_npu's operators compute, in plain PyTorch, from their public documentation; and calls to prove them with.

A half tensor is computed in float32 and rounded once, which the documentation leaves open and the tolerances allow for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
FLOATS = (F32, F16, BF16)
HALVES = (F16, BF16)


def fake(x: Tensor) -> bool:
    """Whether only shapes are asked for: a formula that is long answers them without the values."""
    return isinstance(x, torch._subclasses.FakeTensor)


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        op: Name without ``npu_``'s namespace.
        formula: What it computes; also the operator's kernel and Meta function in these tests.
        make: Arguments and keywords for an element type.
        dtypes: Element types it is proven in.
        outputs: Results that are compared, all if None.
        tag: Tells calls of one operator apart.
        dynamic: Whether sizes may be symbolic.
        tolerance: For halves, if they need another one than ``torch.testing`` gives.
    """

    op: str
    formula: Callable[..., Any]
    make: Callable[[torch.dtype], tuple[tuple[Any, ...], dict[str, Any]]]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    outputs: tuple[int, ...] | None = None
    tag: str = ""
    dynamic: bool = True
    tolerance: float | None = None


def up(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x


def call(*args: Any, **keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, keywords


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, generator=RANDOM) * 2 - 1


RANDOM = torch.Generator().manual_seed(3)

# -- norms ------------------------------------------------------------------------------------------------------------


def rstd_of(x: Tensor, gamma: Tensor, eps: float) -> Tensor:
    axes = list(range(-gamma.dim(), 0))
    return torch.rsqrt(up(x).pow(2).mean(axes, keepdim=True) + eps)


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
    y = functional.rms_norm(up(input), gamma.shape, up(gamma), epsilon)
    return y.to(input.dtype), rstd_of(input, gamma, epsilon)


def gemma_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
    y = functional.rms_norm(up(input), gamma.shape, 1 + up(gamma), epsilon)
    return y.to(input.dtype), rstd_of(input, gamma, epsilon)


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
    x = (up(x1) + up(x2)).to(x1.dtype)
    y = functional.rms_norm(up(x), gamma.shape, up(gamma), epsilon)
    return y.to(x1.dtype), rstd_of(x, gamma, epsilon), x


def add_rms_norm_cast(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, x


def add_rms_norm_v2(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon)
    return rstd, y, x


def gradients(fn: Callable[..., Any], grad: Any, *inputs: Tensor) -> list[Tensor]:
    """Autograd of a formula, computed in float32 (float64 inputs stay)."""
    if fake(grad):
        return [torch.empty_like(t, dtype=up(t).dtype) for t in inputs]
    leaves = [up(t).detach().clone().requires_grad_() for t in inputs]
    with torch.enable_grad():
        y = fn(*leaves)
    return list(torch.autograd.grad(y, leaves, up(grad).to(y.dtype)))


def rms_norm_backward(dy: Tensor, input: Tensor, gamma: Tensor, rstd: Tensor) -> Any:
    if fake(dy):
        return torch.empty_like(input), torch.empty_like(gamma, dtype=F32)
    dx, dgamma = gradients(lambda x, g: functional.rms_norm(x, g.shape, g, 1e-6), dy, input, gamma)
    return dx.to(input.dtype), dgamma


def layer_norm_eval(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    w, b = (None if t is None else up(t) for t in (weight, bias))
    return functional.layer_norm(up(input), normalized_shape, w, b, eps).to(input.dtype)


def statistics(x: Tensor, eps: float, axes: list[int]) -> tuple[Tensor, Tensor]:
    return x.mean(axes, keepdim=True), torch.rsqrt(x.var(axes, unbiased=False, keepdim=True) + eps)


def add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5, additional_output: bool = False
) -> Any:
    x = up(x1) + up(x2)
    y = functional.layer_norm(x, gamma.shape, up(gamma), up(beta), epsilon)
    mean, rstd = statistics(x, epsilon, [-1])
    return y.to(x1.dtype), mean, rstd, x.to(x1.dtype)


def deep_norm(x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6) -> Any:
    s = alpha * up(x) + up(gx)
    y = functional.layer_norm(s, gamma.shape, up(gamma), up(beta), epsilon)
    return (*statistics(s, epsilon, [-1]), y.to(x.dtype))


def deep_norm_backward(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3
) -> Any:
    if fake(dy):
        return torch.empty_like(x), torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)

    def norm(x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor) -> Tensor:
        return functional.layer_norm(alpha * x + gx, gamma.shape, gamma, beta, 1e-6)

    return [g.to(x.dtype) for g in gradients(norm, dy, x, gx, torch.zeros_like(gamma), gamma)]


def group_norm_silu(input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5) -> Any:
    w, b = (None if t is None else up(t) for t in (weight, bias))
    y = functional.silu(functional.group_norm(up(input), group, w, b, eps))
    parts = up(input).reshape(input.shape[0], group, -1)
    mean, rstd = (t.squeeze(-1) for t in statistics(parts, eps, [-1]))
    return y.to(input.dtype), mean.to(input.dtype), rstd.to(input.dtype)


def group_norm_swish(
    input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: Any = 1e-5, swish_scale: Any = 1.0
) -> Any:
    return group_norm_silu(input, weight, bias, num_groups, eps)


def _hidden(dtype: torch.dtype, *shape: int) -> Tensor:
    return rand(*shape).to(dtype)


def _norm_cases() -> list[Case]:
    def tensors(*shapes: tuple[int, ...]) -> Any:
        return lambda d: call(*[rand(*s).to(d) for s in shapes])

    x, g = (2, 5, 32), (32,)

    def backward(d: torch.dtype) -> Any:
        dy, inp, gamma = rand(*x).to(d), rand(*x).to(d), rand(*g).to(d)
        return call(dy, inp, gamma, rstd_of(inp, gamma, 1e-6))

    def deep_backward(d: torch.dtype) -> Any:
        dy, a, b, gamma = rand(*x).to(d), rand(*x).to(d), rand(*x).to(d), rand(*g).to(d)
        return call(dy, a, b, gamma, *statistics(0.3 * up(a) + up(b), 1e-6, [-1]))

    return [
        Case("npu_rms_norm", rms_norm, tensors(x, g)),
        Case("npu_rms_norm", rms_norm, lambda d: call(rand(2, 3, 4, 8).to(d), rand(4, 8).to(d), 1e-3), tag="two axes"),
        Case("npu_rms_norm_backward", rms_norm_backward, backward),
        Case("npu_gemma_rms_norm", gemma_rms_norm, tensors(x, g)),
        Case("npu_add_rms_norm", add_rms_norm, tensors(x, x, g)),
        Case("npu_add_rms_norm_cast", add_rms_norm_cast, tensors(x, x, g), HALVES),
        Case("npu_add_rms_norm_v2_functional", add_rms_norm_v2, tensors(x, x, g)),
        Case(
            "npu_layer_norm_eval",
            layer_norm_eval,
            lambda d: call(rand(4, 16).to(d), [16], rand(16).to(d), rand(16).to(d)),
        ),
        Case("npu_add_layer_norm", add_layer_norm, lambda d: call(*[rand(*s).to(d) for s in (x, x, g, g)], 1e-5, True)),
        Case("npu_deep_norm", deep_norm, tensors(x, x, g, g)),
        Case("npu_deep_norm_backward", deep_norm_backward, deep_backward, tolerance=2e-2),
        Case(
            "npu_group_norm_silu",
            group_norm_silu,
            lambda d: call(rand(2, 8, 3, 4).to(d), rand(8).to(d), rand(8).to(d), 2, 1e-5),
        ),
        Case(
            "npu_group_norm_swish",
            group_norm_swish,
            lambda d: call(rand(2, 8, 3, 4).to(d), 2, rand(8).to(d), rand(8).to(d)),
        ),
    ]


# -- activations ------------------------------------------------------------------------------------------------------


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    a, b = up(input).chunk(2, dim)
    return (functional.silu(a) * b).to(input.dtype)


def clipped_swiglu(
    x: Tensor,
    *,
    group_index: Any = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    a, b = (up(x)[..., ::2], up(x)[..., 1::2]) if interleaved else up(x).chunk(2, dim)
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    return (a * torch.sigmoid(alpha * a) * (b + bias)).to(x.dtype)


def fast_gelu(input: Tensor) -> Tensor:
    return (up(input) * torch.sigmoid(1.702 * up(input))).to(input.dtype)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(up(input), approximate=approximate).to(input.dtype)


def gelu_mul(input: Tensor, *, approximate: str = "none") -> Tensor:
    a, b = up(input).chunk(2, -1)
    return (functional.gelu(a, approximate=approximate) * b).to(input.dtype)


def geglu(input: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> Any:
    a, b = up(input).chunk(2, dim)
    a, b = (b, a) if activate_left else (a, b)
    g = functional.gelu(b, approximate="tanh" if approximate == 1 else "none")
    return (a * g).to(input.dtype), g.to(input.dtype)


def silu(input: Tensor) -> Tensor:
    return functional.silu(up(input)).to(input.dtype)


def of(fn: Callable[..., Any], first: int = 0) -> Callable[..., Any]:
    """The backward operator (grad, input, settings) of an activation."""

    def backward(grad: Tensor, input: Tensor, *rest: Any, **settings: Any) -> Tensor:
        if isinstance(grad, torch._subclasses.FakeTensor):
            return torch.empty_like(input)
        rest = rest[first:]

        def one(x: Tensor) -> Tensor:
            y = fn(x, *rest, **settings)
            return y[0] if isinstance(y, tuple) else y

        return gradients(one, grad, input)[0].to(input.dtype)

    return backward


def _activation_cases() -> list[Case]:
    def on(*shapes: tuple[int, ...], **keywords: Any) -> Any:
        return lambda d: call(*[(rand(*s) * 3).to(d) for s in shapes], **keywords)

    x, half = (3, 4, 16), (3, 4, 8)
    return [
        Case("npu_swiglu", swiglu, on(x)),
        Case("npu_swiglu", swiglu, on(x, dim=1), tag="dim 1"),
        Case("npu_swiglu_backward", of(swiglu), on(half, x)),
        Case("npu_clipped_swiglu", clipped_swiglu, on(x), HALVES),
        Case("npu_fast_gelu", fast_gelu, on(x)),
        Case("fast_gelu", fast_gelu, on(x)),
        Case("npu_fast_gelu_backward", of(fast_gelu), on(x, x)),
        Case("npu_gelu", gelu, on(x)),
        Case("npu_gelu", gelu, on(x, approximate="tanh"), tag="tanh"),
        Case("npu_gelu_backward", of(gelu), on(x, x)),
        Case("npu_gelu_backward", of(gelu), on(x, x, approximate="tanh"), tag="tanh"),
        Case("npu_gelu_mul", gelu_mul, on(x)),
        Case("npu_geglu", geglu, on(x)),
        Case("npu_geglu", geglu, on(x, dim=-1, approximate=0, activate_left=True), tag="erf, left"),
        Case(
            "npu_geglu_grad",
            of(geglu, 1),
            lambda d: (lambda a: call(rand(*half).to(d), a, geglu(a, -1, 0)[1], -1, 0))((rand(*x) * 3).to(d)),
            tolerance=2e-2,
        ),
        Case("npu_silu", silu, on(x)),
        Case(
            "npu_silu_backward",
            of(silu, 1),
            lambda d: (lambda a: call(rand(*x).to(d), a, silu(a)))(rand(*x).to(d)),
            tolerance=2e-2,
        ),
    ]


# -- rotary embeddings ------------------------------------------------------------------------------------------------


def turned(x: Tensor, mode: str) -> Tensor:
    if mode == "half":
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    x = up(input)
    moved = turned(x, rotary_mode) if rotate is None else x @ up(rotate)
    return (x * up(r1) + moved * up(r2)).to(input.dtype)


def rotary_mul_backward(grad: Tensor, input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half") -> Any:
    if isinstance(grad, torch._subclasses.FakeTensor):
        return torch.empty_like(input), torch.empty_like(r1), torch.empty_like(r2)
    made = gradients(lambda x, a, b: rotary_mul(x, a, b, rotary_mode), grad, input, r1, r2)
    return [g.to(input.dtype) for g in made]


def apply_rotary(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> Any:
    return rotary_mul(query, cos, sin, rotary_mode), rotary_mul(key, cos, sin, rotary_mode)


def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = torch.cat((up(x)[..., ::2], up(x)[..., 1::2]), -1)
    return (pairs * up(cos) + turned(pairs, "half") * up(sin)).to(x.dtype)


def kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
    **_: Any,
) -> Any:
    latent, rope = kv.split([gamma.shape[-1], kv.shape[-1] - gamma.shape[-1]], -1)
    normed, _rstd = rms_norm(latent, gamma, epsilon)
    rope = interleave_rope(rope, cos, sin)
    if isinstance(kv, torch._subclasses.FakeTensor):
        return torch.empty_like(k_cache), torch.empty_like(ckv_cache), rope, normed
    caches = []
    for cache, value in ((k_cache, rope), (ckv_cache, normed)):
        cache, steps, width = cache.clone(), kv.shape[2], value.shape[-1]
        for b in range(kv.shape[0]):
            for s in range(steps):
                if cache_mode == "Norm":
                    cache[b, 0, int(index[b, s])] = value[b, 0, s]
                    continue
                page = cache.shape[1]
                if "BLK" in cache_mode:  # where each page of a sequence begins
                    at = int(index[b * -(-steps // page) + s // page]) + s % page
                else:
                    at = int(index[b * steps + s])
                if not cache_mode.endswith("NZ"):
                    cache[at // page, at % page, 0] = value[b, 0, s]
                    continue
                for d in range(width):  # sixteen columns of all rows of a page stand together
                    cache[at // page].view(-1)[(d // 16 * page + at % page) * 16 + d % 16] = value[b, 0, s, d]
        caches.append(cache)
    return (*caches, rope, normed)


def kv_rmsnorm_rope_cache_v2(*args: Any, **keywords: Any) -> Any:
    k_cache, ckv_cache, rope, normed = kv_rmsnorm_rope_cache(*args, **keywords)
    return rope, normed, k_cache, ckv_cache


def _rotary_cases() -> list[Case]:
    x, r = (2, 3, 4, 16), (1, 3, 1, 16)

    def on(*shapes: tuple[int, ...], **keywords: Any) -> Any:
        return lambda d: call(*[rand(*s).to(d) for s in shapes], **keywords)

    def latent(mode: str) -> Any:
        def make(d: torch.dtype) -> Any:
            index = torch.tensor([[1, 2, 5], [0, 4, 3]])
            caches = (rand(2, 1, 6, 8).to(d), rand(2, 1, 6, 16).to(d))
            rope = 16 if mode.endswith("NZ") else 8
            if mode != "Norm":
                index = index.new_tensor([3, 4, 9, 0, 1, 11])
                caches = (rand(3, 4, 1, rope).to(d), rand(3, 4, 1, 16).to(d))
            if "BLK" in mode:  # three tokens are two pages of two rows
                index = index.new_tensor([4, 0, 10, 6])
                caches = (rand(6, 2, 1, rope).to(d), rand(6, 2, 1, 16).to(d))
            angles = (rand(2, 1, 3, rope).to(d), rand(2, 1, 3, rope).to(d))
            kv = rand(2, 1, 3, 16 + rope).to(d)
            return call(kv, rand(16).to(d), *angles, index, *caches, cache_mode=mode, is_output_kv=True)

        return make

    return [
        Case("npu_rotary_mul", rotary_mul, on(x, r, r)),
        Case("npu_rotary_mul", rotary_mul, on(x, r, r, rotary_mode="interleave"), tag="interleave"),
        Case(
            "npu_rotary_mul",
            rotary_mul,
            lambda d: call(rand(*x).to(d), rand(*r).to(d), rand(*r).to(d), "half", rand(16, 16).to(d)),
            tag="matrix",
        ),
        Case("npu_rotary_mul_backward", rotary_mul_backward, on(x, x, r, r)),
        Case(
            "npu_rotary_mul_backward", rotary_mul_backward, on(x, x, r, r, rotary_mode="interleave"), tag="interleave"
        ),
        Case("npu_apply_rotary_pos_emb", apply_rotary, on(x, (2, 3, 2, 16), (2, 3, 1, 16), (2, 3, 1, 16))),
        Case(
            "npu_apply_rotary_pos_emb",
            apply_rotary,
            on((2, 4, 3, 16), (2, 2, 3, 16), (2, 1, 3, 16), (2, 1, 3, 16), layout="BNSD", rotary_mode="interleave"),
            tag="BNSD",
        ),
        Case("npu_interleave_rope", interleave_rope, on((2, 4, 3, 16), (2, 1, 3, 16), (2, 1, 3, 16)), HALVES),
        Case("npu_kv_rmsnorm_rope_cache", kv_rmsnorm_rope_cache, latent("Norm")),
        Case("npu_kv_rmsnorm_rope_cache", kv_rmsnorm_rope_cache, latent("PA"), tag="PA"),
        *(
            Case(
                "npu_kv_rmsnorm_rope_cache",
                kv_rmsnorm_rope_cache,
                latent(mode),
                HALVES[:1],
                None,
                mode,
                mode == "PA_NZ",
            )
            for mode in ("PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")
        ),
        Case("npu_kv_rmsnorm_rope_cache_v2_functional", kv_rmsnorm_rope_cache_v2, latent("Norm")),
    ]


# -- losses, softmax --------------------------------------------------------------------------------------------------


def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: Any = 1, fixed_triu_mask: bool = False) -> Tensor:
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax((up(x) * scale).masked_fill(mask, -10000.0), -1).to(x.dtype)


def soft_cross_entropy(input: Tensor, labels: Tensor) -> Tensor:
    return -(up(labels) * torch.log_softmax(up(input), -1)).sum(-1)


def soft_cross_entropy_backward(grad: Tensor, input: Tensor, labels: Tensor) -> Tensor:
    slope = torch.softmax(up(input), -1) - up(labels)
    return (up(grad).unsqueeze(-1) * slope).to(input.dtype)


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    lse: float = 0.0,
    return_zloss: bool = False,
) -> Any:
    if isinstance(input, torch._subclasses.FakeTensor):
        loss = input.new_empty(input.shape[0] if reduction == "none" else 1)
        return loss, torch.empty_like(input), torch.empty_like(loss), input.new_empty(input.shape[0])
    loss = functional.cross_entropy(up(input), target, weight, ignore_index=ignore_index, reduction=reduction)
    logs = torch.log_softmax(up(input), -1)
    loss = loss.reshape(-1).to(input.dtype)
    return loss, logs.to(input.dtype), torch.zeros_like(loss), torch.zeros_like(input[:, 0])


_REDUCTIONS = ("none", "mean", "sum")


def l1_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int) -> Tensor:
    count = input.numel() if reduction == 1 else 1
    return grad_output * torch.sign(input - target) / count


def kl_div_backward(
    grad_output: Tensor, input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    if isinstance(input, torch._subclasses.FakeTensor):
        return torch.empty_like(input)

    def loss(x: Tensor) -> Tensor:
        return functional.kl_div(x, target, reduction=_REDUCTIONS[reduction], log_target=log_target)

    return gradients(loss, grad_output, input)[0]


def _loss_cases() -> list[Case]:
    def soft(d: torch.dtype) -> Any:
        return call(rand(5, 7).to(d), torch.softmax(rand(5, 7), -1).to(d))

    only = (F32,)
    return [
        Case(
            "npu_scaled_masked_softmax",
            scaled_masked_softmax,
            lambda d: call(rand(2, 3, 32, 32).to(d), rand(2, 1, 32, 32) > 0.2, 0.5),
        ),
        Case(
            "npu_scaled_masked_softmax",
            scaled_masked_softmax,
            lambda d: call(rand(2, 3, 32, 32).to(d), rand(2, 1, 32, 32) > 2, 1.0, True),
            tag="triangle",
        ),
        Case("npu_softmax_cross_entropy_with_logits", soft_cross_entropy, soft, (F32, F16)),
        Case(
            "npu_softmax_cross_entropy_with_logits_backward",
            soft_cross_entropy_backward,
            lambda d: call(rand(5).to(d), *soft(d)[0]),
            (F32, F16),
        ),
        *(
            Case(
                "npu_cross_entropy_loss",
                cross_entropy_loss,
                lambda d, r=r: call(rand(5, 7).to(d), torch.tensor([0, 6, 3, 3, 1]), None, r),
                outputs=(0, 1),
                tag=r,
            )
            for r in _REDUCTIONS
        ),
        Case(
            "npu_cross_entropy_loss",
            cross_entropy_loss,
            lambda d: call(rand(5, 7).to(d), torch.tensor([0, 6, 3, 3, 1]), rand(7).abs() + 0.1),
            outputs=(0, 1),
            tag="weight",
        ),
        *(
            Case(
                "l1_loss_backward",
                l1_loss_backward,
                lambda d, i=i: call(rand(*((4, 6) if i == 0 else ())), rand(4, 6), rand(4, 6), i),
                only,
                tag=r,
            )
            for i, r in enumerate(_REDUCTIONS)
        ),
        *(
            Case(
                "kl_div_backward",
                kl_div_backward,
                lambda d, i=i: call(rand(*((4, 6) if i == 0 else ())), rand(4, 6), rand(4, 6).abs() + 0.1, i),
                only,
                tag=r,
            )
            for i, r in enumerate(_REDUCTIONS)
        ),
    ]


CASES = [*_norm_cases(), *_activation_cases(), *_rotary_cases(), *_loss_cases()]
