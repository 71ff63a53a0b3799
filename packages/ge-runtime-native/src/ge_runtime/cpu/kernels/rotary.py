"""Rotary position embeddings and gated activations (a half of an axis times an activation of the other half)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu.kernels.numerics import rounded, sum_to, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.errors import refused

_ROPE = "ops-transformer: posembedding, documentation; derivatives of RotaryMul"


def _half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def _interleave(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)


def _quarter(x: Tensor) -> Tensor:
    a, b, c, d = x.chunk(4, -1)
    return torch.cat((-b, a, -d, c), -1)


# Each rotation R is a signed permutation with R^T = -R, so the gradient of R(x) * sin is -R(dy * sin).
_ROTATIONS: Final[dict[object, Callable[[Tensor], Tensor]]] = {
    0: _half,
    1: _interleave,
    2: _quarter,
    "half": _half,
    "interleave": _interleave,
    "quarter": _quarter,
}
_INTERLEAVE_HALF: Final = 3


def _split_pairs(x: Tensor) -> Tensor:
    """Even positions, then odd ones."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)


def rope_of_pairs(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Even positions and odd ones become halves, which turn; in the arithmetic type."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even, odd), -1) * wide(cos) + torch.cat((-odd, even), -1) * wide(sin)


def _join_pairs(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.stack((a, b), -1).flatten(-2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, mode: object) -> Tensor:
    """``x * cos + R(x) * sin`` in float32, rounded once."""
    x32 = wide(x)
    if mode == _INTERLEAVE_HALF:
        x32, mode = _split_pairs(x32), 0
    if mode not in _ROTATIONS:
        raise refused("rotary embedding", f"mode is {mode!r}, accepted: 0 to 3, half, interleave, quarter")
    return torch.addcmul(x32 * wide(cos), _ROTATIONS[mode](x32), wide(sin)).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
    """``x * cos + turn(x) * sin`` of one type that needs no widening."""
    return (x * cos).addcmul_(turn(x), sin)


@plan("RotaryPositionEmbedding", "RotaryMul")
def _plan_rotation(ctx: PlanContext) -> Call | None:
    """float32 by a signed permutation: nothing to widen, and the sum goes where the product is."""
    ports, mode = ("x", "r1", "r2"), 0
    if ctx.node.op == "RotaryPositionEmbedding":
        ports, mode = ("x", "cos", "sin"), ctx.attr("mode", 0)
        if ctx.fed("rotate"):
            return None
    if mode not in _ROTATIONS or any(ctx.dtype(p) is not DataType.DT_FLOAT for p in ports):
        return None
    return Call(_turned, (*map(ctx.tensor, ports), _ROTATIONS[mode]))


@kernel("RotaryPositionEmbedding", source=_ROPE)
def rotary_position_embedding(
    x: Tensor, cos: Tensor, sin: Tensor, rotate: Tensor | None = None, *, mode: int = 0
) -> Tensor:
    """Rotation by ``mode`` (0 half, 1 interleave, 2 quarter, 3 interleave-half), or by the matrix ``rotate``."""
    if rotate is not None:
        turned = torch.matmul(wide(x), wide(rotate))
        return (wide(x) * wide(cos) + turned * wide(sin)).to(x.dtype)
    return _rotate(x, cos, sin, mode)


def _rotate_grad(dy: Tensor, x: Tensor | None, cos: Tensor, sin: Tensor, mode: int) -> tuple[Tensor, Tensor, Tensor]:
    turn = _ROTATIONS[0 if mode == _INTERLEAVE_HALF else mode]
    g = wide(dy)
    dx = g * wide(cos) - turn(g * wide(sin))
    if mode == _INTERLEAVE_HALF:
        dx = _join_pairs(dx)
    if x is None:
        return dx.to(dy.dtype), torch.zeros_like(cos), torch.zeros_like(sin)
    x32 = _split_pairs(wide(x)) if mode == _INTERLEAVE_HALF else wide(x)
    dcos, dsin = sum_to(g * x32, cos.shape), sum_to(g * turn(x32), sin.shape)
    return dx.to(dy.dtype), dcos.to(cos.dtype), dsin.to(sin.dtype)


rows(
    {
        "RotaryMul": lambda x, r1, r2: _rotate(x, r1, r2, 0),
        "InterleaveRope": lambda x, cos, sin: _rotate(x, cos, sin, _INTERLEAVE_HALF),  # in the order of halves
        # (dx, dcos, dsin); without x the last two are zero
        "RotaryPositionEmbeddingGrad": lambda dy, cos, sin, x=None, *, mode=0: _rotate_grad(dy, x, cos, sin, mode),
    },
    source=_ROPE,
)
rows({"RotaryMulGrad": lambda x, r1, r2, dy: _rotate_grad(dy, x, r1, r2, 0)}, ignores=("need_backward",), source=_ROPE)


rows(
    {  # the head axis of cos and sin is 1, so the layout needs no look
        "ApplyRotaryPosEmb": lambda query, key, cos, sin, *, rotary_mode="half": (
            _rotate(query, cos, sin, rotary_mode),
            _rotate(key, cos, sin, rotary_mode),
        ),
    },
    ignores=("layout",),
    source=_ROPE,
)


@kernel(
    "RopeWithSinCosCache",
    ignores=("qStride", "kStride"),
    source="ops-transformer: posembedding/rope_with_sin_cos_cache, documentation",
)
def rope_with_sin_cos_cache(
    positions: Tensor,
    queryIn: Tensor,
    keyIn: Tensor,
    cosSinCache: Tensor,
    *,
    numQHeads: int,
    numKHeads: int,
    headSize: int,
    mropeSection: Sequence[int] = (0, 0, 0),
    isNeoxStyle: bool = True,
) -> tuple[Tensor, Tensor]:
    """Rotate the first ``cosSinCache.shape[1]`` places of each head by what the cache has for a token's position.

    Shapes: positions (T), or (sections, T), each section giving its part of the angles; query (T, heads * headSize).
    """
    cos, sin = wide(cosSinCache)[positions.long()].chunk(2, -1)
    if positions.dim() == 2:
        sizes = list(mropeSection)
        if len(sizes) != positions.shape[0] or sum(sizes) != cos.shape[-1]:
            raise refused("RopeWithSinCosCache", f"mropeSection {sizes} of {len(positions)} x {cos.shape[-1]} angles")
        cos, sin = (torch.cat([part[i] for i, part in enumerate(t.split(sizes, -1))], -1) for t in (cos, sin))
    elif any(mropeSection):
        raise refused("RopeWithSinCosCache", f"mropeSection {list(mropeSection)} with positions of one axis")

    def turn(x: Tensor, heads: int) -> Tensor:
        data = wide(x).reshape(-1, heads, headSize)
        width = 2 * cos.shape[-1]
        a, b = data[..., :width].chunk(2, -1) if isNeoxStyle else (data[..., 0:width:2], data[..., 1:width:2])
        c, s = cos.unsqueeze(1), sin.unsqueeze(1)
        first, second = a * c - b * s, b * c + a * s
        turned = torch.cat((first, second), -1) if isNeoxStyle else torch.stack((first, second), -1).flatten(-2)
        return torch.cat((turned, data[..., width:]), -1).reshape(x.shape).to(x.dtype)

    return turn(queryIn, numQHeads), turn(keyIn, numKHeads)


def _halves(op: str, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    if x.shape[dim] % 2:
        raise refused(op, f"axis {dim} has the odd size {x.shape[dim]}", "give an even size")
    a, b = x.chunk(2, dim)
    return a, b


def _swiglu(x: Tensor, *, dim: int = -1) -> Tensor:
    """``silu(a) * b`` of the halves a, b along ``dim``."""
    a, b = _halves("SwiGlu", x, dim)
    return torch.nn.functional.silu(a) * b


def _glu(x: Tensor, *, dim: int = -1) -> Tensor:
    """``a * sigmoid(b)`` of the halves along ``dim``."""
    _halves("GLU", x, dim)
    return torch.nn.functional.glu(x, dim)


# Gradients are joined along ``dim``.
def _swiglu_grad(y_grad: Tensor, x: Tensor, *, dim: int = -1) -> Tensor:
    a, b = _halves("SwiGluGrad", x, dim)
    s = torch.sigmoid(a)
    return torch.cat((y_grad * b * (s + s * (1 - s) * a), y_grad * s * a), dim)


def _glu_grad(y_grad: Tensor, x: Tensor, *, dim: int = -1) -> Tensor:
    a, b = _halves("GLUGrad", x, dim)
    s = torch.sigmoid(b)
    return torch.cat((y_grad * s, y_grad * a * s * (1 - s)), dim)


rows(
    {
        "SwiGlu": rounded(_swiglu),
        "SwiGluGrad": rounded(_swiglu_grad),
        "GLU": rounded(_glu),
        "GLUGrad": rounded(_glu_grad),
    },
    source="ops-nn: activation, documentation",
)


@kernel("GeGluV2", source="ops-nn: activation/ge_glu_v2, documentation")
def geglu_v2(x: Tensor, *, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """(other half * gelu(half), gelu(half)); ``activate_left`` takes the first half through gelu."""
    a, b = _halves("GeGluV2", wide(x), dim)
    gate, other = (a, b) if activate_left else (b, a)
    g = torch.nn.functional.gelu(gate, approximate="tanh" if approximate else "none")
    return (other * g).to(x.dtype), g.to(x.dtype)


@kernel("GeGluGradV2", source="ops-nn: activation/ge_glu_grad_v2, documentation")
@rounded
def geglu_grad_v2(
    dy: Tensor, x: Tensor, gelu: Tensor, *, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> Tensor:
    """Gradient of GeGluV2 for x; ``gelu`` is the second output of the forward operator."""
    a, b = _halves("GeGluGradV2", x, dim)
    gate, other = (a, b) if activate_left else (b, a)
    d_other, form = dy * gelu, "tanh" if approximate else "none"
    d_gate = torch.ops.aten.gelu_backward.default(dy * other, gate, approximate=form)
    return torch.cat((d_gate, d_other) if activate_left else (d_other, d_gate), dim)


@kernel("ClippedSwiglu", source="ops-nn: activation/clipped_swiglu, documentation and kernel")
def clipped_swiglu(
    x: Tensor,
    group_index: Tensor | None = None,
    *,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> Tensor:
    """``a * sigmoid(alpha * a) * (b + bias)`` of clipped parts; x is first flattened to two axes at ``dim``.

    Rows after the sum of ``group_index`` are zero.
    """
    axis = dim % x.dim()
    rows = x.shape[:axis].numel()
    flat = x.reshape(rows, -1)
    a, b = (flat[:, 0::2], flat[:, 1::2]) if interleaved else _halves("ClippedSwiglu", flat, 1)
    a, b = wide(a).clamp(max=limit), wide(b).clamp(-limit, limit)
    y = (a * torch.sigmoid(alpha * a) * (b + bias)).to(x.dtype)
    if group_index is not None:
        y[int(group_index.sum()) :] = 0
    shape = list(x.shape)
    shape[axis] //= 2
    return y.reshape(shape)
