"""torch_npu's operators that write what they are given, add to it or quantise it: from their documentation.

As ``npu_formulas``: each formula is its operator's kernel and Meta function too, and calls to prove it with follow. A
formula that writes returns what it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from npu_formulas import FLOATS, HALVES, Case, call, fake, gradients, rand, up
from npu_training_formulas import draw, ints
from torch import Tensor
from torch.nn import functional

F32, F16, BF16 = FLOATS
E4, E5, POWER = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
ONLY = (F32,)


def small(*shape: int) -> Tensor:
    return (rand(*shape) * 4).to(E5)


# -- products added ---------------------------------------------------------------------------------------------------


def in_place(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(input: Tensor, *args: Any, **keywords: Any) -> Tensor:
        return input if fake(input) else input.copy_(formula(input, *args, **keywords))

    return run


def added(y: Tensor, x: Tensor, w: Tensor, ends: Tensor, *, group_list_type: int = 0, **_: Any) -> Tensor:
    if fake(y):
        return torch.empty_like(y)
    stops = (ends.cumsum(0) if group_list_type else ends).tolist()
    starts = [0, *stops[:-1]]
    return y + torch.stack([up(x[a:b]).mT @ up(w[a:b]) for a, b in zip(starts, stops)])


def eight_bits_added(y: Tensor, a: Tensor, b: Tensor, right: Tensor, *, x1_scale: Tensor) -> Tensor:
    return torch.empty_like(y) if fake(y) else y + (a.float() @ b.float()) * x1_scale * right


def eight_bit_groups_added(y: Tensor, a: Tensor, b: Tensor, right: Tensor, ends: Tensor, *, x1_scale: Tensor) -> Tensor:
    if fake(y):
        return torch.empty_like(y)
    starts = [0, *ends.tolist()[:-1]]
    parts = [
        a[i:j].float().mT @ b[i:j].float() * x1_scale[g] * right[g]
        for g, (i, j) in enumerate(zip(starts, ends.tolist()))
    ]
    return y + torch.stack(parts)


def _products() -> list[Case]:
    made = []
    ends = torch.tensor([2, 6])
    groups = lambda d, **k: call(rand(2, 4, 8), rand(6, 4).to(d), rand(6, 8).to(d), ends.clone(), **k)  # noqa: E731
    of_eight = lambda d: call(rand(4, 8), small(4, 6), small(6, 8), rand(1), x1_scale=rand(1))  # noqa: E731
    by_group = lambda d: call(rand(2, 4, 8), small(6, 4), small(6, 8), rand(2), ends.clone(), x1_scale=rand(2))  # noqa: E731
    for name, formula, make, dtypes in (
        ("npu_grouped_matmul_add", added, groups, HALVES),
        ("npu_add_quant_matmul", eight_bits_added, of_eight, (F16,)),
        ("npu_add_quant_gmm", eight_bit_groups_added, by_group, (F16,)),
    ):
        made.append(Case(name, formula, make, dtypes, dynamic=False))
        made.append(Case(f"{name}_", in_place(formula), make, dtypes, dynamic=False))
    counts = lambda d: call(  # noqa: E731
        rand(2, 4, 8), rand(6, 4).to(d), rand(6, 8).to(d), torch.tensor([2, 4]), group_list_type=1
    )
    return [*made, Case("npu_grouped_matmul_add", added, counts, (F16,), tag="counts", dynamic=False)]


# -- quantisation -----------------------------------------------------------------------------------------------------


def with_maximum(x: Tensor, scale: Tensor, *, dst_dtype: int = 291, **_: Any) -> tuple[Tensor, Tensor]:
    dtype = E5 if dst_dtype == 291 else E4
    return (up(x) * scale).to(dtype), x.abs().max().reshape(1)


def unscaled(x: Tensor, powers: Tensor, *, dst_type: int = 15, **_: Any) -> Tensor:
    dtype = {5: F16, 6: F32, 15: BF16}[dst_type]
    if fake(x):
        return torch.empty_like(x, dtype=dtype)
    each = powers.float().reshape(*x.shape[:-1], -1).repeat_interleave(32, -1)
    return (x.float() * each).to(dtype)


def by_groups_of_rows(x: Tensor, ends: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    rows = x.shape[0] + ends.shape[0]
    if fake(x):
        return torch.empty_like(x, dtype=E5), x.new_empty(rows, x.shape[1] // 128, dtype=F32)
    scale, start = torch.ones(rows, x.shape[1] // 128), 0
    y = torch.zeros(x.shape, dtype=E5)
    for group, end in enumerate(ends.tolist()):
        tiles = up(x[start:end]).unflatten(1, (-1, 128))
        found = tiles.abs().amax(-1) / torch.finfo(E5).max
        scale[start + group : end + group] = found
        y[start:end] = (tiles / found[..., None]).flatten(1).to(E5)
        start = end
    return y, scale


def powers_of_runs(x: Tensor, dtype: torch.dtype, top: int) -> tuple[Tensor, Tensor]:
    """Of runs of 32 at the end: values by the power of two of each, and these powers in pairs."""
    runs = up(x).unflatten(-1, (-1, 32))
    power = torch.floor(torch.log2(runs.abs().amax(-1))) - top
    y = (runs * 2.0 ** -power[..., None]).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
    return y.flatten(-2), (2.0**power).to(POWER).unflatten(-1, (-1, 2))


def along_both(y: Tensor) -> Any:
    if fake(y):
        rows, columns = y.shape
        sizes = (rows, columns // 64, 2), (rows // 64, columns, 2)
        scales = [y.new_empty(s, dtype=POWER) for s in sizes]
        return torch.empty_like(y, dtype=E4), scales[0], torch.empty_like(y, dtype=E4), scales[1]
    first, second = powers_of_runs(y, E4, 8), powers_of_runs(y.mT, E4, 8)
    return *first, second[0].mT.contiguous(), second[1].movedim(0, 1).contiguous()


def gated(x: Tensor) -> Tensor:
    a, b = up(x).chunk(2, -1)
    return functional.silu(a) * b


def gated_along_both(x: Tensor, **_: Any) -> Any:
    return along_both(gated(x).to(x.dtype))


def gate_slope_along_both(x: Tensor, grad: Tensor, **_: Any) -> Any:
    return along_both(torch.empty_like(x) if fake(x) else gradients(gated, grad, x)[0].to(x.dtype))


def scattered_bytes(
    cache: Tensor, at: Tensor, new: Tensor, scale: Tensor, points: Tensor | None = None, axis: int = -2, **_: Any
) -> Tensor:
    if fake(cache):
        return torch.empty_like(cache)
    made = cache.clone()
    rounded = (up(new) / scale + (0 if points is None else points)).round().clamp(-128, 127).to(torch.int8)
    for b, start in enumerate(at.tolist()):
        made[b, start : start + new.shape[axis]] = rounded[b]
    return made


def _quantised() -> list[Case]:
    scales = lambda *s: torch.tensor(2.0).pow(ints(5, *s) - 2).to(POWER)  # noqa: E731
    cache = lambda *s: ints(200, *s).to(torch.int8)  # noqa: E731
    write = lambda d: call(  # noqa: E731
        cache(2, 6, 32), torch.tensor([1, 4], dtype=torch.int32), rand(2, 2, 32).to(d) * 9, rand(32).abs() + 0.1
    )
    return [
        Case("npu_quant_max", with_maximum, lambda d: call(rand(4, 8).to(d) * 7, rand(1)), FLOATS),
        Case("npu_quant_max", with_maximum, lambda d: call(rand(4, 8).to(d), rand(1), dst_dtype=292), ONLY, tag="e4m3"),
        Case(
            "npu_anti_mx_quant",
            unscaled,
            lambda d: call((rand(4, 128) * 9).to(E4), scales(4, 2, 2), dst_type={F16: 5, F32: 6, BF16: 15}[d]),
            FLOATS,
            dynamic=False,
        ),
        Case(
            "npu_grouped_dynamic_block_quant",
            by_groups_of_rows,
            lambda d: call(rand(8, 256).to(d), torch.tensor([3, 8], dtype=torch.int32)),
            HALVES,
            dynamic=False,
        ),
        Case(
            "npu_swiglu_mx_quant_with_dual_axis",
            gated_along_both,
            lambda d: call(rand(64, 256).to(d), scale_alg=0),
            (BF16,),
            dynamic=False,
        ),
        Case(
            "_npu_swiglu_backward_mx_quant_with_dual_axis",
            gate_slope_along_both,
            lambda d: call(rand(64, 128).to(d), rand(64, 64).to(d), scale_alg=0),
            (BF16,),
            dynamic=False,
        ),
        Case("npu_quant_scatter", scattered_bytes, write, HALVES, dynamic=False),
        Case("npu_quant_scatter_", in_place(scattered_bytes), write, HALVES, dynamic=False),
    ]


# -- steps of a server ------------------------------------------------------------------------------------------------


def stepped(
    tokens: Tensor,
    new: Tensor,
    places: Tensor,
    lengths: Tensor,
    slots: Tensor,
    pages: Tensor,
    _: int,
    n: int,
    size: int,
) -> None:
    for i in range(0 if fake(tokens) else n):
        place = int(lengths[i])
        tokens[i], places[i], lengths[i] = new[i, 0], place, place + 1
        slots[i] = pages[i, place // size] * size + place % size


def into_tiles(
    qkv: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    q_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    _: Any,
    counts: Any,
    **words: Any,
) -> Any:
    rows, size = qkv.shape[0], q_gamma.shape[0]
    if fake(qkv):
        asked = words.get("is_output_qkv")
        return tuple(qkv.new_empty((rows, n * size) if asked else ()) for n in counts)
    q, k, v = up(qkv).view(rows, -1, size).split(list(counts), 1)

    def turned(x: Tensor, gamma: Tensor) -> Tensor:
        x = functional.rms_norm(x, (size,), up(gamma), 1e-6)
        a, b = x.chunk(2, -1)
        return x * up(cos)[:, None] + torch.cat((-b, a), -1) * up(sin)[:, None]

    q, k = turned(q, q_gamma), turned(k, k_gamma)
    for value, cache, scale in ((k, k_cache, words.get("k_scale")), (v, v_cache, words.get("v_scale"))):
        stored = value if scale is None else (value / scale).round().clamp(-128, 127)
        for row, slot in zip(stored.flatten(1), slots.tolist()):
            if slot >= 0:
                cache[slot // cache.shape[2], :, slot % cache.shape[2]] = row.view(-1, cache.shape[3]).to(cache.dtype)
    q_out.copy_(q.flatten(1).to(qkv.dtype))
    return tuple(x.flatten(1).to(qkv.dtype) for x in (q, k, v))


def into_copied_tiles(*args: Any, **words: Any) -> Any:
    args = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
    return *into_tiles(*args, **words), *args[6:9]


def doubly_stochastic(x: Tensor, *, eps: float = 1e-6, num_iters: int = 20, out_flag: int = 0) -> Any:
    y = x.softmax(-1) + eps
    y = y / (y.sum(-2, keepdim=True) + eps)
    for _ in range(num_iters - 1):
        y = y / (y.sum(-1, keepdim=True) + eps)
        y = y / (y.sum(-2, keepdim=True) + eps)
    return y, y.new_empty(0), y.new_empty(0)


def _layer(d: torch.dtype, bytes_: bool = False, heads: bool = True) -> Any:
    kind, width = (torch.int8, 32) if bytes_ else (d, 16)
    size, rows = 32, 4
    caches = [torch.zeros(2, size // width, 8, width, dtype=kind) for _ in range(2)]
    scales = {"k_scale": rand(1, size).abs() / 40 + 0.02, "v_scale": rand(1, size).abs() / 40 + 0.02} if bytes_ else {}
    gammas = (rand(size).to(d) + 1, rand(size).to(d) + 1)
    angles = (rand(rows, size).to(d), rand(rows, size).to(d))
    slots = torch.tensor([3, -1, 9, 0])
    q_out = torch.zeros(rows, 4 * size, dtype=d)
    qkv = rand(rows, 6 * size).to(d)
    return call(qkv, *gammas, *angles, slots, q_out, *caches, [4, 1, 6, 32], [4, 1, 1], is_output_qkv=heads, **scales)


def _serving() -> list[Case]:
    step = lambda _: call(  # noqa: E731
        torch.zeros(4, dtype=torch.int64),
        torch.tensor([[7], [8], [9]]),
        torch.zeros(4, dtype=torch.int64),
        torch.tensor([1, 8, 15, 5]),
        torch.zeros(4, dtype=torch.int64),
        torch.arange(12).view(4, 3),
        4,
        3,
        8,
    )
    layer = "npu_qkv_rms_norm_rope_cache"
    return [
        Case("npu_advance_step_flashattn", stepped, step, ONLY, dynamic=False),
        Case(layer, into_tiles, _layer, HALVES, dynamic=False),
        Case(f"{layer}_functional", into_copied_tiles, _layer, HALVES, dynamic=False),
        Case(f"{layer}_functional", into_copied_tiles, lambda d: _layer(d, True), (F16,), tag="bytes", dynamic=False),
        *(
            Case(name, formula, lambda d: _layer(d, heads=False), (F16,), tag="no heads", outputs=kept, dynamic=False)
            for name, formula, kept in (
                (layer, into_tiles, ()),
                (f"{layer}_functional", into_copied_tiles, (3, 4, 5)),
            )
        ),
        Case(
            "npu_mhc_sinkhorn",
            doubly_stochastic,
            lambda _: call(rand(3, 4, 4), num_iters=3),
            ONLY,
            outputs=(0,),
            dynamic=False,
        ),
    ]


# -- experts, boxes, values -------------------------------------------------------------------------------------------


def permuted_back(
    grad: Tensor, of_weights: Tensor | None, places: Tensor, chosen: Tensor, experts: int, tokens: int, padded: bool
) -> Any:
    """By autograd of the forward pass: copies of tokens, expert by expert."""
    if fake(grad):
        return grad.new_empty(tokens, grad.shape[1]), grad.new_empty(tokens, experts)
    order = torch.nonzero(chosen.T)[:, 1]  # the token of each copy
    made = gradients(lambda x: x[order], grad, torch.zeros(tokens, grad.shape[1]))[0]
    weights = gradients(lambda p: p.T[chosen.T], of_weights, torch.zeros(tokens, experts))[0]
    return made.to(grad.dtype), weights.to(grad.dtype)


def filled_ranges(x: Tensor, start: Tensor, end: Tensor, value: Tensor, axis: int = -1) -> Tensor:
    y = x.clone()
    if not fake(x):
        for j in range(start.shape[0]):
            for i in range(start.shape[1]):
                y[i, int(start[j, i]) : int(end[j, i])] = value[j]
    return y


def placed(x: Tensor, at: Tensor, new: Tensor, dim: int) -> Tensor:
    """The documentation's example: one place of each line along ``dim``."""
    y = x.clone()
    if not fake(x):
        for line, (place, value) in enumerate(zip(at.tolist(), new)):
            y[(place, line) if dim == 0 else (line, place)] = value
    return y


def cells_with_boxes(boxes: Tensor, size: Any, stride: Any, anchors: int) -> Tensor:
    height, width = size
    if fake(boxes):
        return boxes.new_empty(height * width * anchors, dtype=torch.uint8)
    flags = torch.zeros(height, width, anchors, dtype=torch.uint8)
    for x1, y1, x2, y2 in boxes.tolist():
        flags[int((y1 + y2) / 2 // stride[1]), int((x1 + x2) / 2 // stride[0])] = 1
    return flags.flatten()


def pooled_back(grad: Tensor, rois: Tensor, scale: float, group: int, out: int, size: Any) -> Tensor:
    """One region that covers whole cells: each element gets its share of the mean of its cell."""
    images, height, width = rois.shape[0], *size
    if fake(grad):
        return grad.new_empty(images, out * group**2, height, width)

    def pooled(maps: Tensor) -> Tensor:
        cells = maps.view(images, out, group, group, group, height // group, group, width // group).mean((5, 7))
        return torch.stack([cells[:, :, i, j, i, j] for i in range(group) for j in range(group)], -1).view(grad.shape)

    return gradients(pooled, grad, torch.zeros(images, out * group**2, height, width))[0].to(grad.dtype)


def sums(x: Tensor, eps: float) -> Any:
    return up(x).sum((0, 2, 3)), up(x).square().sum((0, 2, 3))


def ones(x: Tensor) -> Tensor:
    return x if fake(x) else x.fill_(1)


def as_the_other(x: Tensor, other: Tensor, *_: Any) -> Tensor:
    return x if fake(x) else x.copy_(other)


def as_it_is(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _others() -> list[Case]:
    def by_map(d: torch.dtype) -> Any:
        chosen = torch.zeros(6, 4, dtype=torch.bool).scatter_(1, rand(6, 4).topk(2).indices, True)
        copies = torch.nonzero(chosen.T).tolist()
        token_by_token = sorted(copies, key=lambda p: (p[1], p[0]))
        places = torch.tensor([copies.index(p) for p in token_by_token], dtype=torch.int32)
        return call(rand(12, 8).to(d), rand(12).to(d), places, chosen, 4, 6, False)

    boxes = torch.tensor([[0.0, 0, 3, 3], [4, 2, 6, 4], [1, 8, 2, 11]])
    ranges = [torch.tensor(v, dtype=torch.int32) for v in ([[0, 1, 2], [3, 3, 3]], [[1, 2, 3], [4, 3, 4]])]
    places = lambda n: ints(3, n).to(torch.int32)  # noqa: E731
    region = torch.tensor([[[0.0], [0], [0], [7], [7]]])
    return [
        Case("npu_moe_token_permute_with_routing_map_grad", permuted_back, by_map, (F32, BF16), dynamic=False),
        Case(
            "npu_masked_fill_range",
            filled_ranges,
            lambda d: call(rand(4, 4).to(d), *ranges, rand(2).to(d), 1),
            (F32, F16),
        ),
        Case(
            "npu_anchor_response_flags",
            cells_with_boxes,
            lambda _: call(boxes.clone(), [6, 5], [2, 2], 3),
            ONLY,
            dynamic=False,
        ),
        Case(
            "npu_ps_roi_pooling_backward",
            pooled_back,
            lambda d: call(rand(1, 3, 2, 2).to(d), region.to(d), 1.0, 2, 3, [8, 8]),
            (F32, F16),
            dynamic=False,
        ),
        Case("npu_scatter", placed, lambda d: call(rand(3, 4).to(d), places(4), rand(4).to(d), 0), (F32, F16)),
        Case("npu_scatter", placed, lambda d: call(rand(4, 3), places(4), rand(4), 1), ONLY, tag="columns"),
        Case("batch_norm_reduce", sums, lambda d: call(rand(2, 3, 4, 5).to(d), 1e-5), FLOATS),
        Case("one_", ones, draw((3, 4)), FLOATS),
        Case("npu_dtype_cast_", as_the_other, lambda d: call(rand(3, 4), rand(3, 4).to(d)), FLOATS),
        Case("copy_memory_", as_the_other, lambda d: call(rand(3, 4).to(d), rand(3, 4).to(d)), FLOATS),
        Case("npu_format_cast_.acl_format", as_it_is, lambda d: call(rand(3, 4).to(d), 2), FLOATS),
        Case("npu_format_cast_", as_it_is, lambda d: call(rand(3, 4).to(d), rand(3, 4).to(d)), ONLY),
    ]


CASES = [*_products(), *_quantised(), *_serving(), *_others()]
