"""Matrix products: plain, batched, grouped, fused with bias or activation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from ge_runtime.cpu import torch_compat
from ge_runtime.cpu.kernels.conv import no_offset
from ge_runtime.cpu.kernels.numerics import HALVES, number, rounded, saturate, unpack_quant_parameter, wide
from ge_runtime.cpu.plan_context import PlanContext
from ge_runtime.cpu.registry import Call, kernel, plan, rows
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused

_HEADER = "operator header: matrix_calculation_ops"


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a @ b + bias`` with float32 (int32 for 8-bit integers) accumulation and one rounding."""
    if a.dtype == torch.int8:
        if a.dim() == 2 and b.dim() == 2 and a.shape[1]:
            acc = torch_compat.product_of_int8(a, b)
        else:  # int32 has no vectorised product; one of 8-bit factors in float64 is exact below 2**39 terms
            acc = torch.matmul(a.double(), b.double()).to(torch.int32)
        return acc if bias is None else acc + bias
    if bias is None:
        return torch.mm(a, b) if a.dim() == 2 and b.dim() == 2 else torch.matmul(a, b)
    if a.dim() == 2 and b.dim() == 2 and bias.dtype == a.dtype and bias.dim() <= 2:
        return torch.addmm(bias, a, b)
    if a.dtype in HALVES:
        return (torch.matmul(a.float(), b.float()) + bias.float()).to(a.dtype)
    return torch.matmul(a, b) + bias


def turned(x: Tensor, flag: bool) -> Tensor:
    """A matrix that is stored transposed if the flag says so."""
    return x.mT if flag else x


def _matrices(op: str, x1: Tensor, x2: Tensor, bias: Tensor | None, turn1: bool, turn2: bool) -> Tensor:
    if (x1.dim(), x2.dim()) != (2, 2):
        ranks = f"operands of rank {x1.dim()} and {x2.dim()}"
        raise refused(op, ranks, "it takes matrices; BatchMatMulV2 takes more")
    return product(turned(x1, turn1), turned(x2, turn2), bias)


@kernel("MatMulV2", source=_HEADER)
def matmul_v2(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    offset_x: int = 0,
) -> Tensor:
    """(M, K) by (K, N); 8-bit integers give int32."""
    no_offset("MatMulV2", offset_w, offset_x)
    return _matrices("MatMulV2", x1, x2, bias, transpose_x1, transpose_x2)


@kernel("BatchMatMulV2", source=_HEADER)
def batch_matmul_v2(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    offset_w: Tensor | None = None,
    *,
    adj_x1: bool = False,
    adj_x2: bool = False,
    offset_x: int = 0,
) -> Tensor:
    """(.., M, K) by (.., K, N), batch axes broadcast; 8-bit integers give int32."""
    no_offset("BatchMatMulV2", offset_w, offset_x)
    return product(turned(x1, adj_x1), turned(x2, adj_x2), bias)


rows(
    {
        "MatMul": lambda x1, x2, bias=None, *, transpose_x1=False, transpose_x2=False: _matrices(
            "MatMul", x1, x2, bias, transpose_x1, transpose_x2
        ),
        # real types only, so adj is a plain transposition
        "BatchMatMul": lambda x1, x2, *, adj_x1=False, adj_x2=False: torch.matmul(
            turned(x1, adj_x1), turned(x2, adj_x2)
        ),
        "Einsum": lambda x, *, equation, N=0: torch.einsum(equation, *x),
        "Dot": rounded(lambda x, y: torch.dot(x, y)),
        "Ger": lambda x1, x2: torch.outer(x1, x2),
    },
    source=_HEADER,
)


# op: attributes that say an operand is stored transposed
_TRANSPOSED = {
    "MatMul": ("transpose_x1", "transpose_x2"),
    "MatMulV2": ("transpose_x1", "transpose_x2"),
    "BatchMatMul": ("adj_x1", "adj_x2"),
    "BatchMatMulV2": ("adj_x1", "adj_x2"),
}


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
        return Call(functional.linear, (a, ctx.tensor("x2"), ctx.tensor("bias")))
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
    a, b = turned(a, transpose_a), turned(b, transpose_b)
    if a.dtype.is_floating_point and c.dtype == a.dtype and a.dim() == 2:
        return torch.addmm(c, a, b, beta=number(beta), alpha=number(alpha))
    acc = wide(product(wide(a), wide(b)))
    return (acc * alpha.to(acc.dtype) + c.to(acc.dtype) * beta.to(acc.dtype)).to(c.dtype)


# Activations that operators name.
ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": lambda t: functional.gelu(t, approximate="tanh"),
    "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh"),
    "gelu_erf": functional.gelu,
    "fastgelu": lambda t: t * torch.sigmoid(1.702 * t),
}
_AFTER_PRODUCT: Final = ("relu", "gelu_erf", "gelu_tanh")


@kernel("FusedMatMul", source="ops-nn: matmul/fused_mat_mul, documentation")
def fused_matmul(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    x3: Tensor | None = None,
    *,
    transpose_x1: bool = False,
    transpose_x2: bool = False,
    enable_hf32: bool = False,
    fused_op_type: str = "",
) -> Tensor:
    """Product, then ``fused_op_type``; add and mul take the rounded product, activations the unrounded one."""
    a, b = turned(x1, transpose_x1), turned(x2, transpose_x2)
    if fused_op_type in ("add", "mul"):
        if x3 is None:
            raise refused("FusedMatMul", f"fused_op_type is {fused_op_type!r} and x3 is not fed", "feed x3")
        t = wide(product(a, b, bias))
        return (t + wide(x3) if fused_op_type == "add" else t * wide(x3)).to(x1.dtype)
    if not fused_op_type:
        return product(a, b, bias)
    if fused_op_type not in _AFTER_PRODUCT:
        accepted = f"accepted: add, mul, {', '.join(_AFTER_PRODUCT)}"
        raise refused("FusedMatMul", f"fused_op_type is {fused_op_type!r}, {accepted}")
    t = product(wide(a), wide(b), None if bias is None else wide(bias))
    return ACTIVATIONS[fused_op_type](t).to(x1.dtype)


@kernel("TransposeBatchMatMul", source="ops-nn: matmul/transpose_batch_mat_mul, shape inference and documentation")
def transpose_batch_matmul(
    x1: Tensor,
    x2: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    perm_x1: Sequence[int] = (),
    perm_x2: Sequence[int] = (),
    perm_y: Sequence[int] = (),
    enable_hf32: bool = False,
    batch_split_factor: int = 1,
) -> Tensor:
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


@kernel("AddLora", source="ops-transformer and torch_npu documentation of add_lora")
def add_lora(
    y: Tensor,
    x: Tensor,
    weightB: Tensor,
    indices: Tensor,
    weightA: Tensor | None = None,
    *,
    layer_idx: int = 0,
    scale: float = 0.001,
    y_offset: int = 0,
    y_slice_size: int = -1,
) -> Tensor:
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


def spans(ends: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(group, start, end) of the rows of groups of which the ends are known."""
    start = 0
    for group, end in ends:
        yield group, start, end
        start = max(start, end)


def group_spans(group_list: Tensor, kind: int) -> Iterator[tuple[int, int, int]]:
    """Those of a ``group_list``: kind 0 running ends, 1 counts, 2 rows of (group, count)."""
    numbers = list(enumerate(listed(group_list))) if kind < 2 else [(int(g), int(n)) for g, n in group_list.tolist()]
    sums = itertools.accumulate(n for _, n in numbers)
    return spans(numbers if kind == 0 else [(group, end) for (group, _), end in zip(numbers, sums)])


def _pick(parts: Sequence[Tensor] | None, group: int) -> Tensor | None:
    """The operand of one group: part of a list, or row of the single stacked tensor."""
    if not parts:
        return None
    if len(parts) > 1:
        return parts[group]
    return parts[0][group] if parts[0].dim() > 1 else parts[0]


# GroupedMatmul's attribute dtype for integer operands, and its act_type.
_GROUPED_DTYPE: Final = {1: torch.bfloat16, 2: torch.int8, 3: torch.int32}
_GROUPED_ACTIVATION: Final = {0: "", 1: "relu", 2: "gelu", 4: "fastgelu", 5: "silu"}


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
    acc = ACTIVATIONS[_GROUPED_ACTIVATION[act]](acc) if act else acc
    offset = get("offset")
    if dtype == torch.int8:
        return saturate(acc if offset is None else acc + offset.float(), dtype)
    return acc.to(dtype)


@kernel("GroupedMatmul", source="ops-transformer: gmm/grouped_matmul, documentation")
def grouped_matmul(
    x: Sequence[Tensor],
    weight: Sequence[Tensor],
    bias: Sequence[Tensor] = (),
    scale: Sequence[Tensor] = (),
    offset: Sequence[Tensor] = (),
    antiquant_scale: Sequence[Tensor] = (),
    antiquant_offset: Sequence[Tensor] = (),
    group_list: Tensor | None = None,
    per_token_scale: Tensor | None = None,
    *,
    split_item: int = 0,
    dtype: int = 0,
    transpose_weight: bool = False,
    transpose_x: bool = False,
    group_type: int = -1,
    group_list_type: int = 0,
    act_type: int = 0,
    tuning_config: Sequence[int] = (),
) -> list[Tensor]:
    """One product a group; groups are lists (-1), row ranges of ``x`` (0) or ranges of K (2).

    Rows after the last group are zero: the definition leaves them unwritten.
    """
    if act_type not in _GROUPED_ACTIVATION:
        raise refused("GroupedMatmul", f"act_type is {act_type}, accepted: {sorted(_GROUPED_ACTIVATION)}")
    out_dtype = x[0].dtype if x[0].dtype.is_floating_point else _GROUPED_DTYPE.get(dtype, torch.float16)
    extras = {
        "bias": bias,
        "scale": scale,
        "offset": offset,
        "antiquant_scale": antiquant_scale,
        "antiquant_offset": antiquant_offset,
    }

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
    x: Sequence[Tensor],
    group_list: Tensor | None,
    kind: int,
    token_scale: Tensor | None,
    part: Any,
    split_item: int,
    weight_of: Any,
) -> list[Tensor]:
    if group_list is None:
        groups = spans(enumerate(itertools.accumulate(t.shape[0] for t in x)))
    else:
        groups = group_spans(group_list, kind)
    rows = x[0] if len(x) == 1 else torch.cat(list(x))
    outs = [
        part(rows[start:end], group, None if token_scale is None else token_scale[start:end])
        for group, start, end in groups
    ]
    if split_item in (0, 1):
        return outs
    y = torch.cat(outs) if outs else rows.new_zeros(0, weight_of(0).shape[-1])
    return [torch.cat([y, y.new_zeros(rows.shape[0] - y.shape[0], y.shape[1])]) if y.shape[0] < rows.shape[0] else y]


def _grouped_k(x: Tensor, weight: Sequence[Tensor], group_list: Tensor | None, kind: int, dtype: torch.dtype) -> Tensor:
    """K axis cut into groups: (G, M, N), one product of the columns of ``x`` and rows of the weight a group."""
    if group_list is None:
        raise refused("GroupedMatmul", "group_type 2 needs group_list", "feed group_list")
    whole = weight[0] if len(weight) == 1 else torch.cat(list(weight))
    return torch.stack(
        [
            torch.matmul(wide(x[:, start:end]), wide(whole[start:end])).to(dtype)
            for _, start, end in group_spans(group_list, kind)
        ]
    )


@kernel("GroupedMatmulFinalizeRouting", source="ops-transformer: gmm/grouped_matmul_finalize_routing, documentation")
def grouped_matmul_finalize_routing(
    x: Tensor,
    w: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    pertoken_scale: Tensor | None = None,
    group_list: Tensor | None = None,
    shared_input: Tensor | None = None,
    logit: Tensor | None = None,
    row_index: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    dtype: int = 0,
    shared_input_weight: float = 1.0,
    shared_input_offset: int = 0,
    transpose_x: bool = False,
    transpose_w: bool = False,
    output_bs: int = 0,
    group_list_type: int = 1,
    tuning_config: Sequence[int] = (),
) -> Tensor:
    """Grouped product whose rows are weighted by ``logit`` and added into the rows named by ``row_index``."""
    if group_list is None or row_index is None or offset is not None or dtype:
        raise refused("GroupedMatmulFinalizeRouting", "needs group_list and row_index, no offset, dtype 0 (float32)")
    y = torch.zeros(output_bs or x.shape[0], w.shape[-2] if transpose_w else w.shape[-1])
    tokens = turned(x, transpose_x)
    if shared_input is not None:
        y.narrow(0, shared_input_offset, len(shared_input)).add_(shared_input.float() * shared_input_weight)
    for g, start, end in group_spans(group_list, group_list_type):
        z = product(tokens[start:end], turned(w[g], transpose_w)).float()
        if scale is not None:
            z = z * unpack_quant_parameter(scale[g].reshape(-1))[0]
        if pertoken_scale is not None:
            z = z * pertoken_scale[start:end].float().unsqueeze(-1)
        if bias is not None:
            z = z + bias[g].float()
        if logit is not None:
            z = z * logit[start:end].float().unsqueeze(-1)
        y.index_add_(0, row_index[start:end].long(), z)
    return y
