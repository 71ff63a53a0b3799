"""Matrix products: plain, batched, grouped, fused with bias or activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.kernels.numerics import HALVES, number, saturate, unpack_quant_parameter, wide
from ge_runtime.cpu.registry import Call, PlanContext, kernel, plan
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

_HEADER = "operator header: matrix_calculation_ops"


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a @ b + bias`` with float32 (int32 for 8-bit integers) accumulation and one rounding."""
    if a.dtype == torch.int8:
        acc = torch._int_mm(a, b) if a.dim() == 2 and b.dim() == 2 and a.shape[1] else _wide_integer(a, b)
        return acc if bias is None else acc + bias
    if bias is None:
        return torch.mm(a, b) if a.dim() == 2 and b.dim() == 2 else torch.matmul(a, b)
    if a.dim() == 2 and b.dim() == 2 and bias.dtype == a.dtype and bias.dim() <= 2:
        return torch.addmm(bias, a, b)
    if a.dtype in HALVES:
        return (torch.matmul(a.float(), b.float()) + bias.float()).to(a.dtype)
    return torch.matmul(a, b) + bias


def _wide_integer(a: Tensor, b: Tensor) -> Tensor:
    # int32 matmul has no vectorised path; a float64 product of 8-bit factors is exact below 2**39 terms.
    return torch.matmul(a.double(), b.double()).to(torch.int32)


def _no_offset(op: str, offset_w: Tensor | None, offset_x: int) -> None:
    if offset_w is not None or offset_x:
        raise refused(op, "offset_w and offset_x are reserved in the operator's definition", "leave both out")


def _matrices(op: str, *operands: Tensor) -> None:
    ranks = [t.dim() for t in operands]
    if ranks != [2, 2]:
        raise refused(op, f"operands of rank {ranks[0]} and {ranks[1]}", "it takes matrices; BatchMatMulV2 takes more")


@kernel("MatMul", source=_HEADER)
def matmul(
    x1: Tensor, x2: Tensor, bias: Tensor | None = None, *, transpose_x1: bool = False, transpose_x2: bool = False
) -> Tensor:
    """(M, K) by (K, N); a flag says that the operand is stored transposed."""
    _matrices("MatMul", x1, x2)
    return product(x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2, bias)


@kernel("MatMulV2", source=_HEADER)
def matmul_v2(
    x1: Tensor, x2: Tensor, bias: Tensor | None = None, offset_w: Tensor | None = None, *,
    transpose_x1: bool = False, transpose_x2: bool = False, offset_x: int = 0,
) -> Tensor:  # fmt: skip
    """MatMul; 8-bit integers give int32."""
    _matrices("MatMulV2", x1, x2)
    if offset_w is not None or offset_x:
        _no_offset("MatMulV2", offset_w, offset_x)
    return product(x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2, bias)


@kernel("BatchMatMul", source=_HEADER)
def batch_matmul(x1: Tensor, x2: Tensor, *, adj_x1: bool = False, adj_x2: bool = False) -> Tensor:
    """(.., M, K) by (.., K, N), batch axes broadcast; real types only, so adj is a plain transposition."""
    return torch.matmul(x1.mT if adj_x1 else x1, x2.mT if adj_x2 else x2)


@kernel("BatchMatMulV2", source=_HEADER)
def batch_matmul_v2(
    x1: Tensor, x2: Tensor, bias: Tensor | None = None, offset_w: Tensor | None = None, *,
    adj_x1: bool = False, adj_x2: bool = False, offset_x: int = 0,
) -> Tensor:  # fmt: skip
    """BatchMatMul with bias; 8-bit integers give int32."""
    if offset_w is not None or offset_x:
        _no_offset("BatchMatMulV2", offset_w, offset_x)
    return product(x1.mT if adj_x1 else x1, x2.mT if adj_x2 else x2, bias)


# op: attributes that say an operand is stored transposed
_TRANSPOSED = {
    "MatMul": ("transpose_x1", "transpose_x2"), "MatMulV2": ("transpose_x1", "transpose_x2"),
    "BatchMatMul": ("adj_x1", "adj_x2"), "BatchMatMulV2": ("adj_x1", "adj_x2"),
}  # fmt: skip


@plan(*_TRANSPOSED)
def _plan_matmul(ctx: PlanContext) -> Call | None:
    """A product of floats of one type whose ranks are known is one ATen call on views."""
    kind, shapes = ctx.dtype("x1"), [ctx.shape("x1"), ctx.shape("x2")]
    if kind is None or not kind.is_float or ctx.dtype("x2") != kind or ctx.dtype("bias") not in (None, kind):
        return None
    ranks = [len(s) for s in shapes if s is not None]
    if len(ranks) != 2 or min(ranks) < 2 or (max(ranks) > 2 and ctx.node.op in ("MatMul", "MatMulV2")):
        return None
    if ctx.fed("offset_w") or ctx.attr("offset_x", 0):
        return None
    a, b = (
        Call(torch.transpose, (ctx.tensor(port), -2, -1)) if ctx.attr(flag, False) else ctx.tensor(port)
        for port, flag in zip(("x1", "x2"), _TRANSPOSED[ctx.node.op])
    )
    if ctx.fed("bias"):
        return _plan_biased(ctx, a, b) if ranks == [2, 2] else None
    if ranks == [2, 2]:
        return Call(torch.mm, (a, b))
    same_batch = ranks == [3, 3] and shapes[0] is not None and shapes[1] is not None and shapes[0][0] == shapes[1][0]
    return Call(torch.bmm if same_batch else torch.matmul, (a, b))


def _plan_biased(ctx: PlanContext, a: Any, b: Any) -> Call:
    bias = ctx.shape("bias")
    if ctx.attr("transpose_x2", False) and bias is not None and len(bias) == 1:
        return Call(torch.nn.functional.linear, (a, ctx.tensor("x2"), ctx.tensor("bias")))
    return Call(torch.addmm, (ctx.tensor("bias"), a, b))


@kernel("GEMM", source=_HEADER)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Tensor:
    """``alpha * a @ b + beta * c`` with one-element alpha and beta."""
    a, b = a.mT if transpose_a else a, b.mT if transpose_b else b
    if a.dtype.is_floating_point and c.dtype == a.dtype and a.dim() == 2:
        return torch.addmm(c, a, b, beta=number(beta), alpha=number(alpha))
    acc = wide(product(wide(a), wide(b)))
    return (acc * alpha.to(acc.dtype) + c.to(acc.dtype) * beta.to(acc.dtype)).to(c.dtype)


_FUSED_ACTIVATION = {
    "relu": torch.relu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
}


@kernel("FusedMatMul", source="ops-nn: matmul/fused_mat_mul, documentation")
def fused_matmul(
    x1: Tensor, x2: Tensor, bias: Tensor | None = None, x3: Tensor | None = None, *,
    transpose_x1: bool = False, transpose_x2: bool = False, enable_hf32: bool = False, fused_op_type: str = "",
) -> Tensor:  # fmt: skip
    """Product, then ``fused_op_type``; add and mul take the rounded product, activations the unrounded one."""
    a, b = x1.mT if transpose_x1 else x1, x2.mT if transpose_x2 else x2
    if fused_op_type in ("add", "mul"):
        if x3 is None:
            raise refused("FusedMatMul", f"fused_op_type is {fused_op_type!r} and x3 is not fed", "feed x3")
        t = wide(product(a, b, bias))
        return (t + wide(x3) if fused_op_type == "add" else t * wide(x3)).to(x1.dtype)
    if not fused_op_type:
        return product(a, b, bias)
    if fused_op_type not in _FUSED_ACTIVATION:
        raise refused(
            "FusedMatMul", f"fused_op_type is {fused_op_type!r}, accepted: add, mul, {', '.join(_FUSED_ACTIVATION)}"
        )
    t = product(wide(a), wide(b), None if bias is None else wide(bias))
    return _FUSED_ACTIVATION[fused_op_type](t).to(x1.dtype)


@kernel("TransposeBatchMatMul", source="ops-nn: matmul/transpose_batch_mat_mul, shape inference and documentation")
def transpose_batch_matmul(
    x1: Tensor, x2: Tensor, bias: Tensor | None = None, scale: Tensor | None = None, *,
    perm_x1: Sequence[int] = (), perm_x2: Sequence[int] = (), perm_y: Sequence[int] = (),
    enable_hf32: bool = False, batch_split_factor: int = 1,
) -> Tensor:  # fmt: skip
    """Batched product between permutations; with ``scale`` the rows of all batches are joined and become int8."""
    a = x1.permute(tuple(perm_x1)) if perm_x1 else x1
    b = x2.permute(tuple(perm_x2)) if perm_x2 else x2
    if scale is None:
        y = product(a, b, bias)
    else:
        y = product(wide(a), wide(b), None if bias is None else wide(bias))
    y = y.permute(tuple(perm_y)) if perm_y else y
    if scale is not None:
        factor, offset = unpack_quant_parameter(scale)
        flat = y.reshape(y.shape[0], 1, -1)
        y = saturate(torch.round(flat * factor) + offset, torch.int8)
    if batch_split_factor > 1:
        y = torch.stack(y.reshape(y.shape[0], -1).chunk(batch_split_factor, -1))
    return y


@kernel("Einsum", source=_HEADER)
def einsum(x: Sequence[Tensor], *, equation: str, N: int = 0) -> Tensor:
    """Sum of products after the equation's labels."""
    return torch.einsum(equation, *x)


@kernel("Dot", source=_HEADER)
def dot(input_x: Tensor, input_y: Tensor) -> Tensor:
    """Inner product of two vectors, one element of shape ()."""
    return torch.dot(wide(input_x), wide(input_y)).to(input_x.dtype)


@kernel("Ger", source=_HEADER)
def ger(x1: Tensor, x2: Tensor) -> Tensor:
    """Outer product."""
    return torch.outer(x1, x2)


@kernel("AddLora", source="ops-transformer and torch_npu documentation of add_lora")
def add_lora(
    y: Tensor, x: Tensor, weightB: Tensor, indices: Tensor, weightA: Tensor | None = None, *,
    layer_idx: int = 0, scale: float = 0.001, y_offset: int = 0, y_slice_size: int = -1,
) -> Tensor:  # fmt: skip
    """Add each row's low-rank update to a slice of ``y``."""
    rows = indices.long()
    z = x.float()
    if weightA is not None:
        z = torch.einsum("bh,brh->br", z, weightA[rows, layer_idx].float())
    z = torch.einsum("br,bhr->bh", z, weightB[rows, layer_idx].float()) * scale
    size = z.shape[1] if y_slice_size < 0 else y_slice_size
    out = y.clone()
    out[:, y_offset : y_offset + size] = (y[:, y_offset : y_offset + size].float() + z[:, :size]).to(y.dtype)
    return out


def group_ends(group_list: Tensor, kind: int) -> list[tuple[int, int]]:
    """(group, end row) pairs of a ``group_list``: kind 0 running ends, 1 counts, 2 rows of (group, count)."""
    if kind == 0:
        return list(enumerate(listed(group_list)))
    pairs = enumerate(listed(group_list)) if kind == 1 else [(int(g), int(n)) for g, n in group_list.tolist()]
    ends, end = [], 0
    for group, count in pairs:
        end += count
        ends.append((group, end))
    return ends


def _pick(parts: Sequence[Tensor] | None, group: int) -> Tensor | None:
    """The operand of one group: part of a list, or row of the single stacked tensor."""
    if not parts:
        return None
    if len(parts) > 1:
        return parts[group]
    return parts[0][group] if parts[0].dim() > 1 else parts[0]


def _grouped_dtype(x: Tensor, code: int) -> torch.dtype:
    if x.dtype.is_floating_point:
        return x.dtype
    return {-1: torch.float16, 0: torch.float16, 1: torch.bfloat16, 2: torch.int8, 3: torch.int32}.get(
        code, torch.float16
    )


_GROUPED_ACTIVATION = {
    0: lambda t: t,
    1: torch.relu,
    2: lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
    4: lambda t: t * torch.sigmoid(1.702 * t),
    5: torch.nn.functional.silu,
}


def _grouped_part(x: Tensor, w: Tensor, get: Any, row_scale: Tensor | None, dtype: torch.dtype, act: int) -> Tensor:
    """One group: weight-only dequantisation, product, dequantisation, bias, activation."""
    bias, scale, a_scale, a_offset = get("bias"), get("scale"), get("antiquant_scale"), get("antiquant_offset")
    if a_scale is not None and not w.dtype.is_floating_point:
        w = w.float() if a_offset is None else w.float() + a_offset.float()
        w = w * a_scale.float()
    if x.dtype == torch.int8 and w.dtype == torch.int8:
        acc = product(x, w)
        if bias is not None and bias.dtype == torch.int32:
            acc, bias = acc + bias, None
        if dtype == torch.int32 and scale is None:
            return acc
        acc = acc.float()
    else:
        acc = torch.matmul(wide(x), wide(w))
    if scale is not None:
        acc = acc * unpack_quant_parameter(scale)[0]
    if row_scale is not None:
        acc = acc * row_scale.unsqueeze(-1)
    if bias is not None:
        acc = acc + bias.float()
    acc = _GROUPED_ACTIVATION[act](acc)
    offset = get("offset")
    if dtype == torch.int8:
        return saturate(acc if offset is None else acc + offset.float(), dtype)
    return acc.to(dtype)


@kernel("GroupedMatmul", source="ops-transformer: gmm/grouped_matmul, documentation")
def grouped_matmul(
    x: Sequence[Tensor], weight: Sequence[Tensor], bias: Sequence[Tensor] = (), scale: Sequence[Tensor] = (),
    offset: Sequence[Tensor] = (), antiquant_scale: Sequence[Tensor] = (), antiquant_offset: Sequence[Tensor] = (),
    group_list: Tensor | None = None, per_token_scale: Tensor | None = None, *, split_item: int = 0, dtype: int = 0,
    transpose_weight: bool = False, transpose_x: bool = False, group_type: int = -1, group_list_type: int = 0,
    act_type: int = 0, tuning_config: Sequence[int] = (),
) -> list[Tensor]:  # fmt: skip
    """One product a group; groups are lists (-1), row ranges of ``x`` (0) or ranges of K (2).

    Rows after the last group are zero: the definition leaves them unwritten.
    """
    if act_type not in _GROUPED_ACTIVATION:
        raise refused("GroupedMatmul", f"act_type is {act_type}, accepted: {sorted(_GROUPED_ACTIVATION)}")
    out_dtype = _grouped_dtype(x[0], dtype)
    extras = {
        "bias": bias, "scale": scale, "offset": offset,
        "antiquant_scale": antiquant_scale, "antiquant_offset": antiquant_offset,
    }  # fmt: skip

    def weight_of(g: int) -> Tensor:
        w = weight[g] if len(weight) > 1 else (weight[0][g] if weight[0].dim() == 3 else weight[0])
        return w.mT if transpose_weight else w

    def part(rows: Tensor, g: int, tokens: Tensor | None) -> Tensor:
        return _grouped_part(rows, weight_of(g), lambda n: _pick(extras[n], g), tokens, out_dtype, act_type)

    if group_type == -1 and group_list is None:
        outs = [part(xi.mT if transpose_x else xi, i, per_token_scale) for i, xi in enumerate(x)]
        return outs if split_item in (0, 1) else [torch.cat(outs)]
    if group_type == 2:
        return [_grouped_k(x[0].mT if transpose_x else x[0], weight, group_list, group_list_type, out_dtype)]
    return _grouped_rows(x, group_list, group_list_type, per_token_scale, part, split_item, weight_of)


def _grouped_rows(
    x: Sequence[Tensor], group_list: Tensor | None, kind: int, token_scale: Tensor | None, part: Any, split_item: int,
    weight_of: Any,
) -> list[Tensor]:  # fmt: skip
    if group_list is None:
        bounds = [(i, sum(t.shape[0] for t in x[: i + 1])) for i in range(len(x))]
    else:
        bounds = group_ends(group_list, kind)
    rows = x[0] if len(x) == 1 else torch.cat(list(x))
    outs, start = [], 0
    for group, end in bounds:
        tokens = None if token_scale is None else token_scale[start:end]
        outs.append(part(rows[start:end], group, tokens))
        start = max(start, end)
    if split_item in (0, 1):
        return outs
    y = torch.cat(outs) if outs else rows.new_zeros(0, weight_of(0).shape[-1])
    return [torch.cat([y, y.new_zeros(rows.shape[0] - y.shape[0], y.shape[1])]) if y.shape[0] < rows.shape[0] else y]


def _grouped_k(x: Tensor, weight: Sequence[Tensor], group_list: Tensor | None, kind: int, dtype: torch.dtype) -> Tensor:
    """K axis cut into groups: (G, M, N), one product of the columns of ``x`` and rows of the weight a group."""
    if group_list is None:
        raise refused("GroupedMatmul", "group_type 2 needs group_list", "feed group_list")
    whole = weight[0] if len(weight) == 1 else torch.cat(list(weight))
    outs, start = [], 0
    for _, end in group_ends(group_list, kind):
        outs.append(torch.matmul(wide(x[:, start:end]), wide(whole[start:end])).to(dtype))
        start = max(start, end)
    return torch.stack(outs)


@kernel("GroupedMatmulFinalizeRouting", source="ops-transformer: gmm/grouped_matmul_finalize_routing, documentation")
def grouped_matmul_finalize_routing(
    x: Tensor, w: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, pertoken_scale: Tensor | None = None,
    group_list: Tensor | None = None, shared_input: Tensor | None = None, logit: Tensor | None = None,
    row_index: Tensor | None = None, offset: Tensor | None = None, *, dtype: int = 0, shared_input_weight: float = 1.0,
    shared_input_offset: int = 0, transpose_x: bool = False, transpose_w: bool = False, output_bs: int = 0,
    group_list_type: int = 1, tuning_config: Sequence[int] = (),
) -> Tensor:  # fmt: skip
    """Grouped product whose rows are weighted by ``logit`` and added into the rows named by ``row_index``."""
    if group_list is None or row_index is None or offset is not None or dtype:
        raise refused("GroupedMatmulFinalizeRouting", "needs group_list and row_index, no offset, dtype 0 (float32)")
    y = torch.zeros(output_bs or x.shape[0], (w.shape[-2] if transpose_w else w.shape[-1]), dtype=torch.float32)
    rows, start = (x.mT if transpose_x else x), 0
    if shared_input is not None:
        y[shared_input_offset : shared_input_offset + shared_input.shape[0]] += (
            shared_input.float() * shared_input_weight
        )
    for g, end in group_ends(group_list, group_list_type):
        z = product(rows[start:end], w[g].mT if transpose_w else w[g]).float()
        if scale is not None:
            z = z * unpack_quant_parameter(scale[g].reshape(-1))[0]
        if pertoken_scale is not None:
            z = z * pertoken_scale[start:end].float().unsqueeze(-1)
        if bias is not None:
            z = z + bias[g].float()
        if logit is not None:
            z = z * logit[start:end].float().unsqueeze(-1)
        y.index_add_(0, row_index[start:end].long(), z)
        start = max(start, end)
    return y
