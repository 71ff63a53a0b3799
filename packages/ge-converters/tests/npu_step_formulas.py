"""torch_npu's operators of detection, of experts and of a server's steps: boxes by formula, gradients by autograd.

As ``npu_formulas``: each formula is its operator's kernel and Meta function too, and calls to prove it with follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from npu_formulas import FLOATS, HALVES, Case, call, fake, gradients, rand, up
from npu_training_formulas import draw, ints
from torch import Tensor
from torch.nn import functional

F32, F16, BF16 = FLOATS
ONLY = (F32,)


# -- boxes ----------------------------------------------------------------------------------------------------------


def corners(boxes: Tensor, centred: bool) -> list[list[float]]:
    made = boxes.float().t().tolist()
    return [[x - w / 2, y - h / 2, x + w / 2, y + h / 2] for x, y, w, h in made] if centred else made


def overlap(a: Any, b: Any) -> tuple[Any, Any, Any]:
    """Of two boxes: common area, union, width and height of the box around both."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0.0) * max(height, 0.0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common, union, (max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1]))


def general(a: Any, b: Any) -> float:
    common, union, (width, height) = overlap(a, b)
    return common / union - (width * height - union) / (width * height)


def distant(a: Any, b: Any) -> float:
    common, union, (width, height) = overlap(a, b)
    apart = ((a[0] + a[2]) / 2 - (b[0] + b[2]) / 2) ** 2 + ((a[1] + a[3]) / 2 - (b[1] + b[3]) / 2) ** 2
    return common / union - apart / (width**2 + height**2)


def complete(a: Any, b: Any) -> float:
    common, union, _ = overlap(a, b)
    angle = math.atan((b[2] - b[0]) / (b[3] - b[1])) - math.atan((a[2] - a[0]) / (a[3] - a[1]))
    v = 4 / math.pi**2 * angle**2
    return distant(a, b) - v * v / (1 - common / union + v)


def pairs(of: Callable[[Any, Any], float]) -> Callable[..., Tensor]:
    def run(input: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
        if fake(input):
            return input.new_empty(1, input.shape[1])
        boxes, others = corners(input, trans), corners(gtboxes, trans)
        return torch.tensor([[of(a, b) for a, b in zip(boxes, others)]]).to(input.dtype)

    return run


def pairs_backward(form: str) -> Callable[..., Any]:
    """By autograd of the same in tensors."""

    def of(a: Tensor, b: Tensor) -> Tensor:
        low, high = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
        common = (high - low).clamp(min=0).prod(0)
        union = (a[2:] - a[:2]).prod(0) + (b[2:] - b[:2]).prod(0) - common
        around = torch.maximum(a[2:], b[2:]) - torch.minimum(a[:2], b[:2])
        if form == "giou":
            return common / union - 1 + union / around.prod(0)
        apart = (a[:2] + a[2:] - b[:2] - b[2:]).square().sum(0) / 4
        return common / union - apart / around.square().sum(0)

    def run(
        grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool = False, cross: bool = False, mode: int = 0
    ) -> Any:
        return gradients(lambda a, b: of(a, b).reshape(grad.shape), grad, bboxes, gtboxes)

    return run


def crossed(eps: float) -> Callable[..., Tensor]:
    def run(bboxes: Tensor, gtboxes: Tensor, mode: int = 0) -> Tensor:
        if fake(bboxes):
            return bboxes.new_empty(gtboxes.shape[0], bboxes.shape[0])
        longer = [t.tolist() for t in (bboxes, gtboxes)]

        def one(a: Any, b: Any) -> float:
            common, union, _ = overlap(a, b)
            return common / ((union if mode == 0 else (b[2] - b[0]) * (b[3] - b[1])) + eps)

        return torch.tensor([[one(a, b) for a in longer[0]] for b in longer[1]]).to(bboxes.dtype)

    return run


def encoded(anchor: Tensor, truth: Tensor, *numbers: float) -> Tensor:
    if fake(anchor):
        return torch.empty_like(anchor)
    made = []
    for a, b in zip(anchor.tolist(), truth.tolist()):
        (aw, ah), (bw, bh) = ((t[2] - t[0] + 1, t[3] - t[1] + 1) for t in (a, b))
        across, down = (b[0] + b[2] - a[0] - a[2]) / 2 / aw, (b[1] + b[3] - a[1] - a[3]) / 2 / ah
        made.append([across, down, math.log(bw / aw), math.log(bh / ah)])
    return ((torch.tensor(made) - torch.tensor(numbers[:4])) / torch.tensor(numbers[4:])).to(anchor.dtype)


def decoded(rois: Tensor, deltas: Tensor, *numbers: Any) -> Tensor:
    if fake(rois):
        return torch.empty_like(rois)
    *edges, (height, width), clip = numbers
    moved, made = deltas.float() * torch.tensor(edges[4:]) + torch.tensor(edges[:4]), []
    most = abs(math.log(clip))
    for box, (dx, dy, dw, dh) in zip(rois.tolist(), moved.tolist()):
        w, h = box[2] - box[0] + 1, box[3] - box[1] + 1
        x, y = (box[0] + box[2]) / 2 + w * dx, (box[1] + box[3]) / 2 + h * dy
        w, h = w * math.exp(min(max(dw, -most), most)), h * math.exp(min(max(dh, -most), most))
        ends = x - w / 2 + 0.5, y - h / 2 + 0.5, x + w / 2 - 0.5, y + h / 2 - 0.5
        made.append([min(max(v, 0), limit - 1) for v, limit in zip(ends, (width, height) * 2)])
    return torch.tensor(made).to(rois.dtype)


def boxes(count: int, *, columns: bool = True) -> Tensor:
    low = (rand(count, 2) + 1) * 4
    made = torch.cat((low, low + (rand(count, 2) + 1.2) * 4), 1)
    return made.t().contiguous() if columns else made


def centred(count: int) -> Tensor:
    return torch.cat(((rand(2, count) + 1) * 4, (rand(2, count) + 1.2) * 4))


def aligned(x: Tensor, rois: Tensor, scale: float, height: int, width: int, samples: int, end: int) -> Tensor:
    """Means of samples of each cell, in cells of regions that are at least 1 wide; by torch's grid_sample."""
    if fake(x):
        return x.new_empty(rois.shape[0], x.shape[1], height, width)
    found = []
    for image, x1, y1, x2, y2 in rois.tolist():
        x1, y1, x2, y2 = x1 * scale, y1 * scale, (x2 + end) * scale, (y2 + end) * scale
        rows = y1 + (torch.arange(height * samples) + 0.5) * max(y2 - y1, 1.0) / (height * samples)
        columns = x1 + (torch.arange(width * samples) + 0.5) * max(x2 - x1, 1.0) / (width * samples)
        grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1) / (x.shape[-1] - 1) * 2 - 1
        taken = functional.grid_sample(x[int(image)][None], grid[None], align_corners=True, padding_mode="border")
        found.append(functional.avg_pool2d(taken, samples)[0])
    return torch.stack(found)


def aligned_backward(
    grad: Tensor, rois: Tensor, shape: Any, width: int, height: int, scale: float, samples: int, end: int
) -> Tensor:
    if fake(grad):
        return grad.new_empty(shape)
    return gradients(lambda x: aligned(x, rois, scale, height, width, samples, end), grad, torch.zeros(shape))[0]


def pooled_by_place(x: Tensor, rois: Tensor, scale: float, group: int, channels: int) -> Tensor:
    """Mean of each cell of each region, each cell in channels of its own."""
    regions = rois.transpose(1, 2).reshape(-1, 5)
    y = x.new_zeros(regions.shape[0], channels, group, group)
    if fake(x):
        return y
    for r, (image, *corners_of) in enumerate(regions.tolist()):
        x1, y1 = (round(v) * scale for v in corners_of[:2])
        x2, y2 = ((round(v) + 1) * scale for v in corners_of[2:])
        across, down = (x2 - x1) / group, (y2 - y1) / group
        for c in range(channels):
            for i in range(group):
                for j in range(group):
                    rows = slice(math.floor(y1 + i * down), math.ceil(y1 + (i + 1) * down))
                    columns = slice(math.floor(x1 + j * across), math.ceil(x1 + (j + 1) * across))
                    y[r, c, i, j] = x[int(image), (c * group + i) * group + j, rows, columns].mean()
    return y


def suppressed(
    boxes: Tensor, scores: Tensor, most: Any, overlap_limit: Tensor, least: Tensor, pad_to_max_output_size: bool = False
) -> Any:
    if fake(boxes):
        return boxes.new_empty(most, dtype=torch.int32), boxes.new_empty((), dtype=torch.int32)
    kept: list[int] = []
    listed = boxes.tolist()
    for i in scores.argsort(descending=True).tolist():
        shares = [overlap(listed[i], listed[k]) for k in kept]
        if scores[i] > least and all(common / union <= overlap_limit for common, union, _ in shares):
            kept.append(i)
    kept = kept[:most]
    padded_out = torch.tensor(kept + [0] * (most - len(kept)), dtype=torch.int32)
    return padded_out, torch.tensor(len(kept), dtype=torch.int32)


NUMBERS = 0.1, -0.2, 0.0, 0.3, 0.5, 1.0, 2.0, 0.8


def _boxes() -> list[Case]:
    pair = lambda d: call(boxes(6).to(d), boxes(6).to(d), False, False, 0)  # noqa: E731
    mid = lambda d: call(centred(6).to(d), centred(6).to(d), True, False, 0)  # noqa: E731
    back = lambda d: call(rand(1, 6), boxes(6), boxes(6), False, False, 0)  # noqa: E731
    many = lambda d: call(boxes(6, columns=False).to(d), boxes(4, columns=False).to(d), 0)  # noqa: E731
    plain = {"dtypes": ONLY, "dynamic": False}
    return [
        Case("npu_giou", lambda *a: pairs(general)(*a).reshape(-1, 1), pair, **plain),
        Case("npu_giou", lambda *a: pairs(general)(*a).reshape(-1, 1), mid, **plain, tag="centred"),
        Case("npu_diou", pairs(distant), pair, **plain),
        Case("npu_giou_backward", pairs_backward("giou"), back, **plain),
        Case("npu_diou_backward", pairs_backward("diou"), back, **plain),
        Case(
            "_npu_ciou",
            lambda a, b, t=False, c=True, m=0, flag=False: (pairs(complete)(a, b, t, c, m), a.new_zeros(1, a.shape[1])),
            mid,
            **plain,
            outputs=(0,),
        ),
        Case("npu_iou", crossed(0.01), many, **plain),
        Case(
            "npu_iou",
            crossed(0.01),
            lambda d: call(boxes(6, columns=False), boxes(4, columns=False), 1),
            **plain,
            tag="of the second",
        ),
        Case("npu_ptiou", crossed(0.01), many, **plain),
        *(
            Case(
                "npu_roi_align",
                aligned,
                lambda d, e=e: call(
                    rand(2, 3, 8, 8), torch.tensor([[0, 1.0, 1, 6, 6], [1, 0, 2, 7, 5]]), 0.5, 3, 4, 2, e
                ),
                **plain,
                tag=f"end {e}",
            )
            for e in (0, 1)
        ),
        Case(
            "npu_roi_alignbk",
            aligned_backward,
            lambda d: call(
                rand(2, 3, 3, 4), torch.tensor([[0, 1.0, 1, 6, 6], [1, 0, 2, 7, 5]]), [2, 3, 8, 8], 4, 3, 0.5, 2, 1
            ),
            **plain,
        ),
        Case(
            "npu_ps_roi_pooling",
            pooled_by_place,
            lambda d: call(
                rand(2, 8, 8, 8),
                torch.tensor([[[0.0, 1, 1, 6, 5]], [[1, 0, 2, 7, 7]]]).transpose(1, 2).contiguous(),
                0.5,
                2,
                2,
            ),
            **plain,
        ),
        Case(
            "npu_nms_v4",
            suppressed,
            lambda d: call(
                boxes(8, columns=False), rand(8), 6, torch.tensor(0.3), torch.tensor(-0.8), pad_to_max_output_size=True
            ),
            **plain,
        ),
        Case(
            "npu_bounding_box_encode",
            encoded,
            lambda d: call(boxes(5, columns=False), boxes(5, columns=False), *NUMBERS),
            **plain,
        ),
        Case(
            "npu_bounding_box_encode",
            encoded,
            # the example of the documentation: -1, 0.25, 0, log(1.5)
            lambda d: call(torch.tensor([[2.0, 2, 2, 3]]), torch.tensor([[1.0, 2, 1, 4]]), *[0.0] * 4, *[1.0] * 4),
            **plain,
            tag="example",
        ),
        Case(
            "npu_bounding_box_decode",
            decoded,
            lambda d: call(boxes(5, columns=False), rand(5, 4), *NUMBERS, [9, 12], 0.016),
            **plain,
        ),
        Case(
            "npu_bounding_box_decode",
            decoded,
            lambda d: call(
                torch.tensor([[4.0, 1, 2, 1], [2, 2, 2, 3]]),
                torch.tensor([[3.0, 1, 2, 2], [1, 2, 1, 4]]),
                *[0.0] * 4,
                *[1.0] * 4,
                [1024, 1024],
                0.1,
            ),
            **plain,
            tag="clipped",
        ),
    ]


# -- sequences, streams, parts of attention -------------------------------------------------------------------------


def causal(x: Tensor, w: Tensor, *, mask: Tensor | None = None) -> Tensor:
    rows = functional.pad(up(x), (0, 0, 0, 0, w.shape[0] - 1, 0))
    y = sum(rows[k : k + x.shape[0]] * up(w)[k] for k in range(w.shape[0]))
    return (y if mask is None else y * mask.t().unsqueeze(-1)).to(x.dtype)


def causal_backward(grad: Tensor, x: Tensor, w: Tensor, *, mask: Tensor | None = None) -> Any:
    made = gradients(lambda x, w: causal(x, w, mask=mask), grad, x, w)
    return [made[0].to(x.dtype), made[1].to(w.dtype)]


def streams(x: Tensor, mix: Tensor, out: Tensor, share: Tensor) -> Tensor:
    mixed = torch.einsum("bsij,bsid->bsjd", mix, up(x)) + share[..., None] * up(out)[..., None, :]
    return mixed.to(x.dtype)


def streams_backward(dy: Tensor, x: Tensor, mix: Tensor, out: Tensor, share: Tensor) -> Any:
    made = gradients(streams, dy, up(x), mix, up(out), share)
    return [g.to(t.dtype) for g, t in zip(made, (x, mix, out, share))]


def updated(a: Tensor, amax: Tensor, asum: Tensor, b: Tensor, bmax: Tensor, bsum: Tensor, **_: Any) -> Any:
    top = torch.maximum(amax, bmax)
    first, second = asum * (amax - top).exp(), bsum * (bmax - top).exp()
    total = first + second
    heads = amax.shape[1]

    def share(x: Tensor, part: Tensor) -> Tensor:
        return up(x).unflatten(-1, (heads, -1)) * (part / total)[..., 0].permute(2, 0, 1).unsqueeze(-1)

    return (share(a, first) + share(b, second)).flatten(2).to(a.dtype), top, total


def _parts() -> list[Case]:
    x, w = (6, 2, 64), (3, 64)
    seen = lambda: rand(2, 6) > -0.3  # noqa: E731
    four = (2, 3, 4, 8), (2, 3, 4, 4), (2, 3, 8), (2, 3, 4)

    def part(d: torch.dtype) -> Any:
        def one() -> Any:
            return (
                rand(8, 2, 32).to(d),
                rand(2, 4, 8, 1).expand(2, 4, 8, 8) * 2,
                rand(2, 4, 8, 1).expand(2, 4, 8, 8) + 2,
            )

        return call(*[t.contiguous() for t in (*one(), *one())])

    def of_streams(d: torch.dtype) -> list[Tensor]:
        return [rand(*s).to(t) for s, t in zip(four, (d, F32, d, F32))]

    return [
        Case(
            "npu_masked_causal_conv1d",
            causal,
            lambda d: call(rand(*x).to(d), rand(*w).to(d), mask=seen()),
            HALVES,
            dynamic=False,
            tolerance=2e-2,
        ),
        Case(
            "npu_masked_causal_conv1d_backward",
            causal_backward,
            lambda d: call(rand(*x).to(d), rand(*x).to(d), rand(*w).to(d), mask=seen()),
            HALVES,
            dynamic=False,
            tolerance=3e-2,
        ),
        Case("npu_mhc_post", streams, lambda d: call(*of_streams(d)), HALVES, tolerance=2e-2),
        Case(
            "npu_mhc_post_backward",
            streams_backward,
            lambda d: call(rand(*four[0]).to(d), *of_streams(d)),
            HALVES,
            tolerance=3e-2,
        ),
        Case("npu_ring_attention_update", updated, part, FLOATS),
        Case(
            "_npu_moe_token_unpermute",
            lambda t, i, p, padded_mode=False, restore_shape=None: (
                (up(t)[i.long()].view(*p.shape, -1) * up(p)[..., None]).sum(1).to(t.dtype),
                t.clone(),
            ),
            lambda d: call(
                rand(8, 16).to(d), torch.tensor([3, 0, 5, 1, 7, 2, 4, 6], dtype=torch.int32), rand(4, 2).to(d)
            ),
            HALVES,
            dynamic=False,
        ),
        Case("npu_mish", lambda x: functional.mish(up(x)).to(x.dtype), draw((3, 4)), (F32, F16)),
        Case(
            "npu_mish_backward",
            lambda g, x: gradients(functional.mish, g, x)[0].to(x.dtype),
            draw((3, 4), (3, 4)),
            (F32, F16),
        ),
    ]


# -- losses of parts, experts, caches -------------------------------------------------------------------------------


def cross_entropy_slope(
    grad: Tensor,
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    zloss: Any = None,
    lse: Any = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    smoothing: float = 0.0,
    scale: float = 0.0,
) -> Tensor:
    if fake(grad):
        return torch.empty_like(log_prob)

    def loss(x: Tensor) -> Tensor:
        made = functional.cross_entropy(x, target, weight, ignore_index=ignore_index, reduction=reduction)
        return made.reshape(grad.shape)

    return gradients(loss, grad, log_prob)[0]  # logarithms are logits of the same probabilities


def loss_of_sums(
    top: Tensor,
    total: Tensor,
    predicted: Tensor,
    *,
    label_smoothing: float = 0.0,
    input: Any = None,
    weight: Any = None,
    vocab_parallel_logits: Tensor | None = None,
) -> Any:
    assert vocab_parallel_logits is not None
    return total.log() - predicted, (up(vocab_parallel_logits) - top[:, None]).exp() / total[:, None]


def normed_to_bytes(
    x: Tensor,
    gamma: Tensor,
    scale: Tensor,
    *,
    offset: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_dtype: Any = None,
) -> Any:
    y = functional.rms_norm(x.float(), gamma.shape, gamma.float(), epsilon)
    y = y if beta is None else y + beta.float()
    y = y / scale.float() + (0 if offset is None else offset.float())
    rstd = (x.float().square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return y.round().clamp(-128, 127).to(torch.int8), rstd


def sorted_grad(
    grad: Tensor, places: Tensor, count: int, dtype: torch.dtype, k: int, padded_mode: bool = False
) -> Tensor:
    if fake(grad):
        return grad.new_empty(count, grad.shape[1], dtype=dtype)
    whole = torch.zeros(count, grad.shape[1])
    for pair, place in enumerate(places.tolist()):
        if place < grad.shape[0]:
            whole[pair // k] += up(grad)[place]
    return whole.to(dtype)


def unsorted_grad(
    grad: Tensor,
    places: Tensor,
    size: int,
    dtype: torch.dtype,
    probs: Tensor,
    padded_mode: bool = False,
    restore_shape: Any = None,
    permuted_tokens: Tensor | None = None,
) -> Any:
    assert permuted_tokens is not None

    def back(tokens: Tensor, probs: Tensor) -> Tensor:
        return (tokens[places.long()].view(*probs.shape, -1) * probs[..., None]).sum(1)

    made = gradients(back, grad, permuted_tokens, probs)
    return made[0].to(dtype), made[1].to(probs.dtype)


def mapped(
    tokens: Tensor, routing_map: Tensor, *, probs: Tensor, num_out_tokens: int, drop_and_pad: bool = False
) -> Any:
    if fake(tokens):
        m = num_out_tokens
        return tokens.new_empty(m, tokens.shape[1]), probs.new_empty(m), probs.new_empty(m, dtype=torch.int32)
    by_expert = [(e, t) for e in range(routing_map.shape[1]) for t in range(len(tokens)) if routing_map[t, e]]
    by_token = sorted(by_expert, key=lambda pair: (pair[1], pair[0]))
    rows = torch.tensor([t for _, t in by_expert])
    weights = torch.stack([probs[t, e] for e, t in by_expert])
    return tokens[rows], weights, torch.tensor([by_expert.index(p) for p in by_token], dtype=torch.int32)


def gathered(
    key_cache: Tensor, value_cache: Tensor, tables: Tensor, lengths: Tensor, key: Tensor, value: Tensor, **_: Any
) -> Any:
    if fake(key):
        return torch.empty_like(key), torch.empty_like(value)
    results = []
    for cache, old in ((key_cache, key), (value_cache, value)):
        new, row = old.clone(), 0
        for table, length in zip(tables.tolist(), lengths.tolist()):
            for i in range(length):
                new[row] = cache[table[i // cache.shape[1]], i % cache.shape[1]]
                row += 1
        results.append(new)
    return tuple(results)


def _serving() -> list[Case]:
    def slope(reduction: str, weighted: bool) -> Any:
        def make(d: torch.dtype) -> Any:
            logs = rand(5, 7).log_softmax(-1)
            w = rand(7).abs() + 0.1 if weighted else None
            grad = rand(5) if reduction == "none" else rand(1)
            return call(grad, logs, torch.tensor([0, 6, 3, -100, 1]), w, None, None, reduction)

        return make

    def chosen() -> Tensor:
        return torch.zeros(6, 4, dtype=torch.bool).scatter_(1, rand(6, 4).topk(2).indices, True)

    order = torch.tensor([3, 0, 5, 1, 7, 2, 4, 6], dtype=torch.int32)
    return [
        *(
            Case(
                "npu_cross_entropy_loss_backward",
                cross_entropy_slope,
                slope(r, weighted),
                ONLY,
                tag=f"{r}{' weight' if weighted else ''}",
            )
            for r in ("none", "mean", "sum")
            for weighted in (False, True)
        ),
        Case(
            "npu_fused_cross_entropy_loss_with_max_sum",
            loss_of_sums,
            lambda d: call(rand(4), rand(4) + 3, rand(4), vocab_parallel_logits=rand(4, 9)),
            ONLY,
        ),
        Case(
            "npu_rms_norm_quant_v2",
            normed_to_bytes,
            lambda d: call(rand(4, 64).to(d), rand(64).to(d), rand(64).abs() + 0.5, epsilon=1e-4),
            HALVES,
            outputs=(0,),
        ),
        Case(
            "npu_moe_token_permute_grad_v2",
            sorted_grad,
            lambda d: call(rand(8, 6).to(d), order, 4, d, 2),
            HALVES,
            dynamic=False,
        ),
        Case(
            "npu_moe_token_unpermute_grad_v2",
            unsorted_grad,
            lambda d: call(rand(4, 6).to(d), order, 8, d, rand(4, 2).to(d), permuted_tokens=rand(8, 6).to(d)),
            HALVES,
            dynamic=False,
            tolerance=2e-2,
        ),
        Case(
            "npu_moe_token_permute_with_routing_map",
            mapped,
            lambda d: call(rand(6, 8).to(d), chosen(), probs=rand(6, 4).to(d), num_out_tokens=12),
            (F32, BF16),
            dynamic=False,
        ),
        Case(
            "npu_gather_pa_kv_cache_functional",
            gathered,
            lambda d: call(
                rand(5, 4, 2, 16).to(d),
                rand(5, 4, 2, 16).to(d),
                torch.tensor([[3, 1], [0, 4]], dtype=torch.int32),
                torch.tensor([6, 3], dtype=torch.int32),
                rand(10, 2, 16).to(d),
                rand(10, 2, 16).to(d),
            ),
            HALVES,
            dynamic=False,
        ),
    ]


# -- routing, gates, windows, scales -----------------------------------------------------------------------------------


def gated(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return functional.silu(left) * right


def gate_slope(dy: Tensor, x: Tensor, **_: Any) -> Any:
    return gradients(gated, dy, x)[0].to(x.dtype), x.new_empty(0)


def to_bytes(y: Tensor) -> Any:
    step = y.abs().amax(-1) / 127
    return (y / step[..., None]).round().to(torch.int8), step


def gated_to_bytes(
    x: Tensor, *, smooth_scales: Tensor | None = None, activate_left: bool = False, quant_mode: int = 0, **_: Any
) -> Any:
    left, right = x.float().chunk(2, -1)
    y = functional.silu(left) * right if activate_left else functional.silu(right) * left
    return to_bytes(y if smooth_scales is None else y * smooth_scales)


def product_then_gelu(
    x: Tensor, w: Tensor, rows: Tensor, columns: Tensor, *, bias: Any = None, approximate: str = "gelu_erf"
) -> Tensor:
    y = (x.double() @ w.double()).float() * rows[:, None] * columns
    return functional.gelu(y, approximate="tanh" if approximate == "gelu_tanh" else "none").half()


def windows(x: Tensor, w: Tensor, size: int, stride: int, *, actual_seq_len: Any = None) -> Tensor:
    sums, start = [], 0
    for end in actual_seq_len or [x.shape[0]]:
        sums += [(up(x)[at : at + size] * up(w)[..., None]).sum(0) for at in range(start, end - size + 1, stride)]
        start = end
    return torch.stack(sums).to(x.dtype)


def windows_backward(grad: Tensor, x: Tensor, w: Tensor, size: int, stride: int, *, actual_seq_len: Any = None) -> Any:
    made = gradients(lambda x, w: windows(x, w, size, stride, actual_seq_len=actual_seq_len), grad, x, w)
    return made[0].to(x.dtype), made[1].to(w.dtype)


def renorm_slope(grad: Tensor, x: Tensor, p: Any, dim: int, most: Any) -> Tensor:
    return gradients(lambda x: x.renorm(p, dim, most), grad, x)[0]


def gating_slope(
    normed: Tensor,
    grad: Tensor,
    index: Tensor,
    *,
    renorm: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> Tensor:
    """By autograd of the gate, at logits that have these probabilities."""
    if fake(grad):
        return torch.empty_like(normed)

    def gate(x: Tensor) -> Tensor:
        chosen = (x.softmax(-1) if norm_type == 0 else x.sigmoid()).gather(1, index.long())
        return routed_scaling_factor * (chosen if norm_type == 0 else chosen / (chosen.sum(-1, keepdim=True) + eps))

    return gradients(gate, grad, normed.log() if norm_type == 0 else normed.logit())[0]


def back_by_map(
    rows: Tensor, places: Tensor, shape: Any, *, probs: Tensor, routing_map: Tensor, drop_and_pad: bool = False
) -> Any:
    if fake(rows):
        m = rows.shape[0]
        small = probs.new_empty(m, dtype=torch.int32)
        return rows.new_empty(shape), small, small.clone(), probs.new_empty(m)
    pairs = torch.nonzero(routing_map).tolist()  # token by token
    came_from = [places.tolist().index(row) for row in range(len(pairs))]
    result = torch.zeros(shape)
    for row, pair in enumerate(came_from):
        token, expert = pairs[pair]
        result[token] += up(rows)[row] * up(probs)[token, expert]
    tokens = torch.tensor([pairs[p][0] for p in came_from], dtype=torch.int32)
    weights = torch.stack([probs[tuple(pairs[p])] for p in came_from])
    return result.to(rows.dtype), torch.tensor(came_from, dtype=torch.int32), tokens, weights


def back_by_map_slope(
    grad: Tensor, places: Tensor, _: Tensor, chosen: Tensor, rows: Tensor, probs: Tensor, pad: bool, shape: Any
) -> Any:
    if fake(grad):
        return torch.empty_like(rows), torch.empty_like(probs)
    pairs = torch.nonzero(chosen)[places.argsort()]

    def back(rows: Tensor, probs: Tensor) -> Tensor:
        return torch.zeros(shape).index_add(0, pairs[:, 0], rows * probs[pairs[:, 0], pairs[:, 1]][:, None])

    made = gradients(back, grad, rows, probs)
    return made[0].to(rows.dtype), made[1].to(probs.dtype)


def instances(ids: Tensor, table: Tensor, *, local_rank_id: int, world_size: int, **_: Any) -> Any:
    if fake(ids):
        return torch.empty_like(ids), torch.empty_like(ids, dtype=torch.bool)

    def one(expert: int) -> int:
        count, *where = table[expert].tolist()
        return where[0] if count == 1 else where[local_rank_id // math.ceil(world_size / count)]

    made = torch.tensor([[one(e) for e in row] for row in ids.tolist()], dtype=ids.dtype)
    return made, torch.ones_like(made, dtype=torch.bool)


def _steps() -> list[Case]:
    small = lambda *s: ints(16, *s).to(torch.int8) - 8  # noqa: E731
    chosen = lambda: torch.zeros(6, 4, dtype=torch.bool).scatter_(1, rand(6, 4).topk(2).indices, True)  # noqa: E731
    table = torch.tensor([[1, 7, 0, 0], [2, 3, 5, 0], [3, 2, 4, 6]], dtype=torch.int32)

    def gate(kind: int) -> Any:
        def make(_: torch.dtype) -> Any:
            x = rand(4, 8) * 2
            normed = x.softmax(-1) if kind == 0 else x.sigmoid()
            index = x.topk(2).indices.int()
            return call(normed, rand(4, 2), index, norm_type=kind, routed_scaling_factor=2.5)

        return make

    def unsorted() -> tuple[Tensor, Tensor]:
        mapping = chosen()
        pairs = [(e, t) for e in range(4) for t in range(6) if mapping[t, e]]
        by_token = sorted(pairs, key=lambda p: (p[1], p[0]))
        return mapping, torch.tensor([pairs.index(p) for p in by_token], dtype=torch.int32)

    def by_map(d: torch.dtype) -> Any:
        mapping, places = unsorted()
        return call(rand(12, 8).to(d), places, [6, 8], probs=rand(6, 4).to(d), routing_map=mapping)

    def by_map_slope(d: torch.dtype) -> Any:
        (rows, places, shape), words = by_map(d)
        chosen, probs = words["routing_map"], words["probs"]
        return call(rand(6, 8).to(d), places, places, chosen, rows, probs, False, shape)

    seq = {"actual_seq_len": [40, 64]}
    return [
        Case("npu_swiglu_group_quant_backward", gate_slope, draw((4, 128), (4, 256)), HALVES, outputs=(0,)),
        Case(
            "npu_swiglu_quant",
            gated_to_bytes,
            lambda d: call(rand(4, 64).to(d), smooth_scales=rand(1, 32).abs() + 0.5, quant_mode=1),
            HALVES,
        ),
        Case(
            "npu_rotate_quant",
            lambda x, r, **_: to_bytes((up(x) @ up(r)).to(x.dtype).float()),
            lambda d: call(rand(4, 64).to(d), torch.eye(64)[torch.arange(63, -1, -1)].to(d)),
            HALVES,
        ),
        *(
            Case(
                "npu_quant_matmul_gelu",
                product_then_gelu,
                lambda d, k=k: call(
                    small(4, 32), small(32, 64), rand(4).abs() / 50, rand(64).abs() / 50, approximate=k
                ),
                (F16,),
                tag=k[5:],
            )
            for k in ("gelu_erf", "gelu_tanh")
        ),
        Case(
            "npu_nsa_compress",
            windows,
            lambda d: call(rand(64, 2, 128).to(d), rand(32, 2).to(d), 32, 16, **seq),
            HALVES,
            dynamic=False,
            tolerance=2e-2,
        ),
        Case(
            "npu_nsa_compress_grad",
            windows_backward,
            lambda d: call(rand(1, 2, 128).to(d), rand(64, 2, 128).to(d), rand(32, 2).to(d), 32, 16, **seq),
            HALVES,
            dynamic=False,
            tolerance=5e-2,
        ),
        Case("npu_renorm_backward", renorm_slope, lambda d: call(rand(4, 5), rand(4, 5), 2, 0, 1.2), ONLY),
        Case("npu_moe_gating_top_k_backward", gating_slope, gate(0), ONLY, tag="softmax"),
        Case("npu_moe_gating_top_k_backward", gating_slope, gate(1), ONLY, tag="sigmoid"),
        Case("_npu_moe_token_unpermute_with_routing_map", back_by_map, by_map, (F32, BF16), dynamic=False),
        Case(
            "npu_moe_token_unpermute_with_routing_map_grad",
            back_by_map_slope,
            by_map_slope,
            (F32, BF16),
            dynamic=False,
            tolerance=2e-2,
        ),
        *(
            Case(
                "npu_moe_update_expert",
                instances,
                lambda d, r=r: call(
                    torch.tensor([[0, 1], [2, 1]], dtype=torch.int32), table, local_rank_id=r, world_size=8
                ),
                ONLY,
                tag=f"rank {r}",
                dynamic=False,
            )
            for r in (0, 5)
        ),
    ]


CASES = [*_boxes(), *_parts(), *_serving(), *_steps()]
