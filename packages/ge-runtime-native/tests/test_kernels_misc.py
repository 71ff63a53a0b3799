"""Losses, gradients of activations, resizing, sampling, embeddings, optimisers, quantisation and expert routing.

References are the operators' formulas in float64; gradients come from differentiating such a formula.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ge_graph import EngineError, Graph
from ge_graph.attrs import Float, ListInt
from ge_graph.builder import add_node
from ge_graph.dtypes import DataType
from ge_runtime.cpu import CpuEngine

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LIMITS = {F32: 2e-5, F16: 3e-3, BF16: 2e-2}


def rand(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def f64(t: torch.Tensor) -> np.ndarray:
    return t.double().numpy()


def close(got: torch.Tensor, want: np.ndarray | torch.Tensor, tol: float | None = None) -> None:
    want = f64(want.detach()) if isinstance(want, torch.Tensor) else np.asarray(want, dtype=np.float64)
    assert tuple(got.shape) == tuple(want.shape)
    limit = LIMITS.get(got.dtype, 0) if tol is None else tol
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(f64(got), want, rtol=limit, atol=limit * scale)


def slope(formula, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Gradient of a formula written with elementary torch functions, in float64."""
    leaf = x.double().requires_grad_()
    formula(leaf).backward(dy.double())
    return leaf.grad


# ---------------------------------------------------------------- activations

FROM_INPUT = {  # operator: (formula, operands from (dy, x), attributes)
    "ReluGrad": (lambda x: x * (x > 0), lambda d, x: (d, x), {}),
    "GeluGradV2": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), lambda d, x: (d, x), {}),
    "GeluGrad": (
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        lambda d, x: (d, x, x),
        {},
    ),
    "FastGeluGrad": (lambda x: x / (1 + torch.exp(-1.702 * x)), lambda d, x: (d, x), {}),
    "SwishGrad": (lambda x: x / (1 + torch.exp(-1.5 * x)), lambda d, x: (d, x, x), {"scale": 1.5}),
    "SiluGrad": (lambda x: x / (1 + torch.exp(-x)), lambda d, x: (d, x), {}),
    "EluGradV2": (
        lambda x: torch.where(x > 0, 1.1 * x, 1.1 * 0.7 * (torch.exp(1.3 * x) - 1)),
        lambda d, x: (d, x),
        {"alpha": 0.7, "scale": 1.1, "input_scale": 1.3},
    ),
    "HardSwishGrad": (lambda x: x * torch.clamp(x + 3, 0, 6) / 6, lambda d, x: (d, x), {}),
    "HardSigmoidGrad": (lambda x: torch.clamp(0.3 * x + 0.4, 0, 1), lambda d, x: (d, x), {"alpha": 0.3, "beta": 0.4}),
    "HardtanhGrad": (lambda x: torch.clamp(x, -0.5, 0.8), lambda d, x: (x, d), {"min_val": -0.5, "max_val": 0.8}),
    "LeakyReluGrad": (lambda x: torch.where(x > 0, x, 0.2 * x), lambda d, x: (d, x), {"negative_slope": 0.2}),
    "SoftplusV2Grad": (lambda x: torch.log1p(torch.exp(2 * x)) / 2, lambda d, x: (d, x), {"beta": 2.0}),
    "MishGrad": (lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), lambda d, x: (d, x), {}),
    "LogSigmoidGrad": (lambda x: -torch.log1p(torch.exp(-x)), lambda d, x: (d, x), {}),
    "HardShrinkGrad": (lambda x: x * (x.abs() > 0.5), lambda d, x: (d, x), {}),
    "SoftShrinkGrad": (
        lambda x: torch.sign(x) * torch.clamp(x.abs() - 0.4, min=0),
        lambda d, x: (d, x),
        {"lambd": 0.4},
    ),
    "SoftsignGrad": (lambda x: x / (1 + x.abs()), lambda d, x: (d, x), {}),
    "AbsGrad": (lambda x: x.abs(), lambda d, x: (x, d), {}),
    "AtanGrad": (torch.atan, lambda d, x: (x, d), {}),
}


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("op", FROM_INPUT)
def test_gradients_from_the_input(run, op, dtype):
    formula, operands, attrs = FROM_INPUT[op]
    x, dy = 2 * rand(4, 33, dtype=dtype), rand(4, 33, dtype=dtype, seed=1)
    got = run(op, *operands(dy, x), **attrs)
    assert got.dtype == dtype
    close(got, slope(formula, x, dy))


FROM_OUTPUT = {
    "SigmoidGrad": torch.sigmoid,
    "TanhGrad": torch.tanh,
    "SqrtGrad": torch.sqrt,
    "RsqrtGrad": torch.rsqrt,
    "ReciprocalGrad": torch.reciprocal,
}


@pytest.mark.parametrize("op", FROM_OUTPUT)
def test_gradients_from_the_output(run, op):
    x, dy = rand(4, 9).abs() + 0.3, rand(4, 9, seed=1)
    close(run(op, FROM_OUTPUT[op](x), dy), slope(FROM_OUTPUT[op], x, dy))


def test_gradient_gates_select_instead_of_multiplying(run):
    dy, x = torch.tensor([math.inf, 1.0, 2.0]), torch.tensor([-1.0, 0.0, 3.0])
    assert run("ReluGrad", dy, x).tolist() == [0.0, 0.0, 2.0]
    assert run("LeakyReluGrad", dy, torch.tensor([1.0, 0.0, -1.0]), negative_slope=0.5).tolist() == [math.inf, 0.5, 1.0]


def test_elu_grad_from_the_output(run):
    x, dy = rand(30), rand(30, seed=1)
    y = torch.where(x > 0, x, 0.7 * torch.expm1(x))
    want = slope(lambda v: torch.where(v > 0, v, 0.7 * torch.expm1(v)), x, dy)
    close(run("EluGradV2", dy, y, alpha=0.7, is_result=True), want)


def test_threshold_grad_and_prelu_grad(run):
    dy, x, w = rand(2, 3, 4, dtype=F16), rand(2, 3, 4, dtype=F16, seed=1), rand(3, dtype=F16)
    close(run("ThresholdGradV2D", dy, x, threshold=0.3), np.where(f64(x) > 0.3, f64(dy), 0))
    dx, da = run("PReluGrad", dy, x, w)
    close(dx, np.where(f64(x) > 0, f64(dy), f64(dy) * f64(w).reshape(1, 3, 1)))
    close(da, np.where(f64(x) > 0, 0, f64(dy) * f64(x)).sum((0, 2)))


# ---------------------------------------------------------------- losses


def reduce(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    return {"none": lambda v: v, "mean": torch.mean, "sum": torch.sum}[reduction](loss)


PAIRS = {
    "Mse": ("MseLoss", "MseLossGrad", lambda p, t: (p - t) ** 2, {}),
    "SmoothL1": (
        "SmoothL1LossV2",
        "SmoothL1LossGradV2",
        lambda p, t: torch.where((p - t).abs() < 0.5, (p - t) ** 2, (p - t).abs() - 0.25),
        {"sigma": 0.5},
    ),
    "SoftMargin": ("SoftMarginLoss", "SoftMarginLossGrad", lambda p, t: torch.log1p(torch.exp(-p * t)), {}),
    "BceLogits": (
        "SigmoidCrossEntropyWithLogitsV2",
        "SigmoidCrossEntropyWithLogitsGradV2",
        lambda p, t: -t * torch.log(torch.sigmoid(p)) - (1 - t) * torch.log(1 - torch.sigmoid(p)),
        {},
    ),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("name", PAIRS)
def test_pair_losses_and_gradients(run, name, dtype, reduction):
    op, grad_op, formula, attrs = PAIRS[name]
    p, t = rand(5, 7, dtype=dtype), torch.rand(5, 7).to(dtype)
    leaf = p.double().requires_grad_()
    want = reduce(formula(leaf, t.double()), reduction)
    close(run(op, p, t, reduction=reduction, **attrs), want)
    dout = rand(5, 7, dtype=dtype, seed=3) if reduction == "none" else torch.tensor(1.5, dtype=dtype)
    want.backward(dout.double())
    close(run(grad_op, p, t, dout, reduction=reduction, **attrs), leaf.grad)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_binary_cross_entropy(run, reduction):
    p, t, w = torch.rand(5, 7), torch.rand(5, 7), torch.rand(5, 7)
    leaf = p.double().requires_grad_()
    loss = -(t.double() * leaf.log() + (1 - t.double()) * (1 - leaf).log()) * w.double()
    want = reduce(loss, reduction)
    close(run("BinaryCrossEntropy", p, t, w, reduction=reduction), want)
    dout = rand(5, 7) if reduction == "none" else torch.tensor(0.5)
    want.backward(dout.double())
    close(run("BinaryCrossEntropyGrad", p, t, dout, w, reduction=reduction), leaf.grad, 1e-4)
    ends = run("BinaryCrossEntropy", torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), reduction="none")
    assert ends.tolist() == [100.0, 100.0]


@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "batchmean"])
def test_kl_div(run, reduction, log_target):
    x, t = torch.log_softmax(rand(4, 6), -1), torch.softmax(rand(4, 6, seed=1), -1)
    loss = t.double() * (t.double().log() - x.double())
    want = loss.sum() / 4 if reduction == "batchmean" else reduce(loss, reduction)
    close(run("KLDivV2", x, t.log() if log_target else t, reduction=reduction, log_target=log_target), want)


@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3, 4)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_nll_loss(run, reduction, shape):
    x, w = torch.log_softmax(rand(*shape), 1), torch.rand(5)
    t = torch.randint(0, 5, (shape[0], *shape[2:]))
    t.view(-1)[1] = 2
    leaf, keep = x.double().requires_grad_(), (t != 2).double()
    wt = w.double()[t] * keep
    loss = -wt * leaf.gather(1, t.unsqueeze(1)).squeeze(1)
    want = {"none": lambda: loss, "sum": loss.sum, "mean": lambda: loss.sum() / wt.sum()}[reduction]()
    y, total = run("NLLLoss", x, t, w, reduction=reduction, ignore_index=2)
    close(y, want)
    if reduction != "none":
        close(total, wt.sum())
    g = rand(*t.shape) if reduction == "none" else torch.tensor(2.0)
    want.backward(g.double())
    got = run("NLLLossGrad", x, g, t, w, wt.sum().float(), reduction=reduction, ignore_index=2)
    close(got, leaf.grad)


def test_softmax_cross_entropy(run):
    x, t = rand(4, 6), torch.softmax(rand(4, 6, seed=1), -1)
    logp = torch.log_softmax(x.double(), 1)
    loss, back = run("SoftmaxCrossEntropyWithLogits", x, t)
    close(loss, -(t.double() * logp).sum(1))
    close(back, logp.exp() - t.double())


def test_embeddings(run):
    idx, g = torch.tensor([[1, 3], [1, 0]]), rand(2, 2, 4)
    want = np.zeros((5, 4))
    for i, row in zip(idx.flatten().tolist(), f64(g).reshape(-1, 4)):
        want[i] += row if i != 3 else 0
    close(run("EmbeddingDenseGrad", g, idx, num_weights=5, padding_idx=3), want)
    w, flat, offsets = rand(6, 3), torch.tensor([0, 2, 5, 5, 1]), torch.tensor([0, 2, 2])
    parts = [f64(w)[[0, 2]], np.zeros((0, 3)), f64(w)[[5, 5, 1]]]
    for mode, fn in (("sum", lambda p: p.sum(0)), ("mean", lambda p: p.mean(0) if len(p) else np.zeros(3))):
        y, bag_of, *_ = run("EmbeddingBag", w, flat, offsets, mode=mode)
        close(y, np.stack([fn(p) for p in parts]))
        assert bag_of.tolist() == [0, 0, 2, 2, 2]


# ---------------------------------------------------------------- resizing and sampling


@pytest.mark.parametrize(("align", "centre"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [(5, 9), (3, 4), (1, 7)])
def test_resize_nearest_and_gradient(run, size, align, centre):
    x, g = rand(1, 2, 4, 6), rand(1, 2, *size, seed=1)

    def source(n, out):
        for i in range(out):
            if align:
                yield math.floor(i * (n - 1) / (out - 1) + 0.5) if out > 1 else 0
            else:
                yield min(math.floor((i + (0.5 if centre else 0)) * n / out), n - 1)

    rows, columns = list(source(4, size[0])), list(source(6, size[1]))
    form = {"align_corners": align, "half_pixel_centers": centre}
    close(run("ResizeNearestNeighborV2", x, list(size), **form), f64(x)[:, :, rows][:, :, :, columns])
    want = np.zeros((1, 2, 4, 6))
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            want[:, :, r, c] += f64(g)[:, :, i, j]
    close(run("ResizeNearestNeighborV2Grad", g, [4, 6], **form), want)


def linear_weights(n, out, align, centre):
    m = np.zeros((out, n))
    for i in range(out):
        if align:
            p = i * (n - 1) / (out - 1) if out > 1 else 0.0
        else:
            p = max((i + 0.5) * n / out - 0.5, 0) if centre else i * n / out
        low = min(int(p), n - 1)
        m[i, low] += 1 - (p - low)
        m[i, min(low + 1, n - 1)] += p - low
    return m


@pytest.mark.parametrize(("align", "centre"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("size", [(5, 9), (3, 4)])
def test_resize_bilinear_and_gradient(run, size, align, centre):
    x, g = rand(1, 2, 4, 6), rand(1, 2, *size, seed=1)
    a, b = linear_weights(4, size[0], align, centre), linear_weights(6, size[1], align, centre)
    form = {"align_corners": align, "half_pixel_centers": centre}
    close(run("ResizeBilinearV2", x, list(size), **form), np.einsum("ih,nchw,jw->ncij", a, f64(x), b))
    close(run("ResizeBilinearV2Grad", g, x, **form), np.einsum("ih,ncij,jw->nchw", a, f64(g), b))


def test_upsample_volumes(run):
    x = rand(1, 1, 2, 3, 4)
    m = [linear_weights(n, 2 * n, False, True) for n in (2, 3, 4)]
    want = np.einsum("ad,bh,cw,ncdhw->ncabc".replace("ncabc", "nxabc").replace("ncdhw", "nxdhw"), *m, f64(x))
    close(run("UpsampleTrilinear3d", x, output_size=[4, 6, 8]), want)
    want = f64(x).repeat(2, 2).repeat(2, 3).repeat(2, 4)
    close(run("UpsampleNearest3d", x, output_size=[4, 6, 8]), want)


@pytest.mark.parametrize("mode", ["reflect", "edge"])
def test_pad_gradient_is_the_adjoint(run, mode):
    x, pads = rand(2, 4, 5), [(0, 0), (2, 1), (1, 3)]
    padded = np.pad(f64(x), pads, mode=mode)
    g = rand(*padded.shape, seed=2)
    dx = run("PadV3Grad", g, [0, 0, 2, 1, 1, 3], mode=mode)
    assert math.isclose(float((f64(dx) * f64(x)).sum()), float((padded * f64(g)).sum()), rel_tol=1e-4)
    wanted = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        unit = np.zeros(x.shape)
        unit[i] = 1
        wanted[i] = (np.pad(unit, pads, mode=mode) * f64(g)).sum()
    close(dx, wanted)


def test_grid_sampler_identity_and_shift(run):
    x = rand(1, 2, 3, 4)
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, 3), torch.linspace(-1, 1, 4), indexing="ij")
    grid = torch.stack((xs, ys), -1).unsqueeze(0)
    close(run("GridSampler2D", x, grid, align_corners=True), f64(x), 1e-5)
    moved = grid + torch.tensor([1 / 3, 0.0])  # half a pixel to the right
    want = np.pad(f64(x), [(0, 0)] * 3 + [(0, 1)])
    close(run("GridSampler2D", x, moved, align_corners=True), (want[..., :-1] + want[..., 1:]) / 2, 1e-5)


def test_space_and_depth(run):
    x = torch.arange(1 * 8 * 2 * 3, dtype=F32).reshape(1, 8, 2, 3)
    up = run("DepthToSpace", x, block_size=2, mode="CRD", data_format="NCHW")
    assert torch.equal(up, torch.nn.functional.pixel_shuffle(x, 2))
    last = run("DepthToSpace", x.permute(0, 2, 3, 1), block_size=2)
    assert last[0, 1, 0].tolist() == x[0, 4:6, 0, 0].tolist()
    assert torch.equal(run("SpaceToDepth", last, block_size=2), x.permute(0, 2, 3, 1))


def test_im2col_and_cdist(run):
    x = rand(1, 2, 4, 5)
    y = run("Im2col", x, ksizes=[2, 3], strides=[1, 2], pads=[1, 0, 1, 1])
    padded = np.pad(f64(x), [(0, 0), (0, 0), (1, 0), (1, 1)])
    assert tuple(y.shape) == (1, 12, 4, 3)
    close(y[0, :, 2, 1], padded[0, :, 2:4, 2:5].reshape(-1))
    a, b = rand(2, 3, 4), rand(2, 5, 4, seed=1)
    for p in (1.0, 2.0, 3.0):
        want = (np.abs(f64(a)[:, :, None] - f64(b)[:, None]) ** p).sum(-1) ** (1 / p)
        close(run("Cdist", a, b, p=p), want)


# ---------------------------------------------------------------- optimisers


def test_apply_adam_and_momentum(run):
    var, m, v, g = (rand(4, seed=s) for s in range(4))
    v = v.abs()
    one = [torch.tensor(t) for t in (0.9, 0.99, 0.01, 0.9, 0.99, 1e-6)]
    kept = var.clone()
    nv, nm, nvv = run("ApplyAdamD", var, m, v, *one, g)
    assert torch.equal(var, kept)
    m2 = 0.9 * f64(m) + 0.1 * f64(g)
    v2 = 0.99 * f64(v) + 0.01 * f64(g) ** 2
    close(nm, m2)
    close(nvv, v2)
    close(nv, f64(var) - 0.01 * math.sqrt(1 - 0.99) / (1 - 0.9) * m2 / (np.sqrt(v2) + 1e-6))
    out, acc = run("ApplyMomentumD", var, m, torch.tensor(0.1), g, torch.tensor(0.9))
    close(acc, 0.9 * f64(m) + f64(g))
    close(out, f64(var) - 0.1 * (0.9 * f64(m) + f64(g)))


# ---------------------------------------------------------------- quantisation and routing


def rint8(x):
    return np.clip(np.round(x), -128, 127)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_quantise_and_back(run, dtype):
    x, s, o = rand(4, 6, dtype=dtype) * 20, torch.rand(6).to(dtype), rand(6, dtype=dtype)
    q = run("AscendQuantV2", x, s, o)
    close(q, rint8((x.float() * s.float() + o.float()).numpy()), 0)
    y, scale = run("DynamicQuant", x)
    want = np.abs(f64(x)).max(-1) / 127
    close(scale, want, 1e-6)
    assert np.abs(f64(y) - f64(x) / want[:, None]).max() <= 0.5001
    back = run("AscendAntiQuantV2", q, s.float(), o.float(), dst_type=1)
    close(back, (f64(q) + f64(o)) * f64(s), 2e-3)


def test_quant_matmul_with_packed_scale(run):
    # sums stay below half of what float16 holds, whatever is drawn: 16 products of at most 32 * 32, times 2
    a = torch.randint(-32, 32, (3, 16), dtype=torch.int8)
    b = torch.randint(-32, 32, (16, 4), dtype=torch.int8)
    scale = torch.tensor([0.5, 0.25, 2.0, 1.0])
    packed = run("TransQuantParamV2", scale)
    assert [p & 0xFFFFFFFF for p in packed.tolist()] == [int(v) & 0xFFFFFFFF for v in scale.view(torch.int32)]
    bias = torch.arange(4, dtype=torch.int32)
    want = (f64(a) @ f64(b) + f64(bias)) * f64(scale)
    close(run("QuantBatchMatmulV3", a, b, packed, None, bias, dtype=1), want, 1e-3)
    token = torch.rand(3)
    got = run("QuantBatchMatmulV3", a, b, scale, None, bias, token, dtype=27)
    close(got, want * f64(token)[:, None], 1e-2)


def test_weight_quant_matmul_groups(run):
    x, w = rand(3, 64, dtype=F16), torch.randint(-128, 128, (64, 4), dtype=torch.int8)
    s, o = (torch.rand(2, 4) / 50).half(), rand(2, 4, dtype=F16)
    full = (f64(w) + np.repeat(f64(o), 32, 0)) * np.repeat(f64(s), 32, 0)
    close(run("WeightQuantBatchMatmulV2", x, w, s, o, antiquant_group_size=32), f64(x) @ full)


def test_expert_routing_there_and_back(run):
    x, logits = rand(5, 8), rand(5, 4)
    y, expert, rows = run("MoeGatingTopKSoftmax", logits, k=2)
    p = torch.softmax(logits.double(), -1)
    best = p.sort(-1, descending=True)
    close(y, best.values[:, :2])
    assert expert.tolist() == best.indices[:, :2].tolist()
    assert rows.tolist() == [[j * 5 + i for j in range(2)] for i in range(5)]
    out, place, sorted_expert = run("MoeInitRouting", x, rows, expert, active_num=5)
    assert sorted_expert.tolist() == sorted(expert.flatten().tolist())
    assert run("MoeComputeExpertTokens", sorted_expert, num_experts=4).tolist() == [
        sum(e <= n for e in sorted_expert.tolist()) for n in range(4)
    ]
    skip, bias = rand(5, 8, seed=2), rand(4, 8, seed=3)
    got = run("MoeFinalizeRouting", out * 3, skip, None, bias, y, place, expert)
    want = f64(skip)
    for i in range(5):
        for j in range(2):
            want[i] += float(y[i, j]) * (3 * f64(x)[i] + f64(bias)[expert[i, j]])
    close(got, want)


def test_init_routing_v3(run):
    x, expert = rand(3, 4), torch.tensor([[1, 0], [2, 1], [0, 2]], dtype=torch.int32)
    out, place, counts, _ = run(
        "MoeInitRoutingV3", x, expert, expert_num=3, active_expert_range=[0, 3], expert_tokens_num_type=1
    )
    order = [1, 4, 0, 3, 2, 5]
    close(out, f64(x)[[i // 2 for i in order]])
    assert place.tolist() == [order.index(i) for i in range(6)]
    assert counts.tolist() == [2, 2, 2]


# ---------------------------------------------------------------- lists of tensors


@pytest.mark.parametrize("dtype", [F32, F16])
def test_foreach(run, dtype):
    x, y = (
        [rand(3, dtype=dtype), rand(2, 2, dtype=dtype)],
        [rand(3, dtype=dtype, seed=1), rand(2, 2, dtype=dtype, seed=1)],
    )
    two = torch.tensor([2.0], dtype=dtype)

    def each(got, fn):
        for g, a, b in zip(got, x, y):
            close(g, fn(f64(a), f64(b)))

    each(run("ForeachAbs", x, size_of_y=2), lambda a, b: np.abs(a))
    each(run("ForeachAddList", x, y, two, size_of_y=2), lambda a, b: a + 2 * b)
    each(run("ForeachSubScalar", x, two, size_of_y=2), lambda a, b: a - 2)
    each(run("ForeachMulList", x, y, size_of_y=2), lambda a, b: a * b)
    each(run("ForeachAddcdivScalar", x, y, y, two, size_of_y=2), lambda a, b: a + 2 * (b / b))
    each(
        run("ForeachLerpScalar", x, y, torch.tensor([0.25], dtype=dtype), size_of_y=2), lambda a, b: a + 0.25 * (b - a)
    )
    each(run("ForeachNorm", x, two, size_of_y=2), lambda a, b: np.sqrt((a**2).sum()).reshape(1))
    scalars = torch.tensor([1.0, 3.0], dtype=dtype)
    for got, a, s in zip(run("ForeachMulScalarList", x, scalars, size_of_y=2), x, (1, 3)):
        close(got, f64(a) * s)


@pytest.mark.parametrize(
    ("code", "want"),
    [(1, [-2, 2, 2]), (2, [-3, 1, 2]), (3, [-2, 2, 3]), (4, [-3, 2, 3]), (5, [-2, 1, 2]), (6, [-3, 1, 3])],
)
def test_foreach_rounding_codes(run, code, want):
    x = torch.tensor([-2.5, 1.5, 2.5])
    got = run("ForeachRoundOffNumber", [x], torch.tensor([code], dtype=torch.int8), size_of_y=1)
    assert (got[0] if isinstance(got, list) else got).tolist() == want


def test_gradients_of_relu_equal_a_selection(run):
    """Bit by bit, with features that are NaN or infinite among them or not, of every element type and layout."""
    torch.manual_seed(3)
    odd = torch.tensor([math.inf, -math.inf, -0.0, 0.0, 1e-40, -1e-40])
    for extra in ([], [math.nan]):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            x = torch.cat([odd, torch.randn(93), torch.tensor([*extra, 1.0][:1])]).to(dtype).reshape(10, 10)
            dy = torch.cat([odd, torch.randn(94)]).flip(0).to(dtype).reshape(10, 10).t()
            expected = torch.where(x > 0, dy, torch.zeros((), dtype=dtype))
            assert run("ReluGrad", dy, x).view(torch.uint8).equal(expected.view(torch.uint8))
            scaled = torch.where(x > 0, dy, (dy.float() * 0.3).to(dtype) if dtype.itemsize == 2 else dy * 0.3)
            assert run("LeakyReluGrad", dy, x, negative_slope=0.3).equal(scaled)


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
@pytest.mark.parametrize("axes", [[0], [-1], [0, 1], [1, 0], [0, -1], [-2, -1], [0, 1, 2]])
def test_unsqueeze_places_axes_of_the_result(run, shape, axes):
    x = rand(*shape) if shape else torch.tensor(2.5)
    want = np.expand_dims(f64(x), tuple(axes))
    got = run("Unsqueeze", x, axes=axes)
    assert tuple(got.shape) == want.shape
    assert np.array_equal(f64(got), want)


@pytest.mark.parametrize("dtype", [DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_INT32, DataType.DT_DOUBLE])
@pytest.mark.parametrize("sizes", [(2, 3), (0,), ()])
def test_filled_tensors_have_the_type_of_their_edge(dtype, sizes):
    graph = Graph("filled")
    attrs = {"value": Float(2.5), "dims": ListInt(sizes)}
    graph.outputs = list(add_node(graph, "FillV2D", [], attrs, [dtype]).outputs)
    [got] = CpuEngine().compile(graph, {}).run([])
    kind = getattr(torch, dtype.torch_name)
    assert got.dtype is kind
    assert torch.equal(got, torch.full(sizes, 2.5).to(kind))


def test_a_sinkhorn_normalises_as_often_as_the_documentation_allows(run):
    """Rows by softmax, then columns and rows in turn; a number of steps beyond the limit would hold the host."""
    h = rand(2, 4, 4)
    y = np.exp(f64(h)) / np.exp(f64(h)).sum(-1, keepdims=True) + 0.01
    y = y / (y.sum(-2, keepdims=True) + 0.01)
    for _ in range(2):
        y = y / (y.sum(-1, keepdims=True) + 0.01)
        y = y / (y.sum(-2, keepdims=True) + 0.01)
    close(run("MhcSinkhorn", h, eps=0.01, num_iters=3)[0], y)
    for steps in (0, 101, 2**33):
        with pytest.raises(EngineError, match="accepted: 1 to 100"):
            run("MhcSinkhorn", h, num_iters=steps)


@pytest.mark.parametrize(
    ("op", "operands", "given"),
    [
        ("Conv2DTranspose", ([2, 3, 10, 11], rand(2, 4, 5, 6), rand(4, 3, 3, 3)), {"dilations": [1, 1, 1]}),
        ("Conv2DTranspose", ([10], rand(2, 4, 5, 6), rand(4, 3, 3, 3)), {}),
        ("Conv2DTranspose", ([0] * 4, rand(2, 4, 5, 6), rand(4, 3, 3, 3)), {"output_padding": [1]}),
        ("Conv2D", (rand(2, 4, 5, 6), rand(3, 4, 3, 3)), {"strides": [1, 1, 2]}),
        ("Conv2D", (rand(2, 4, 5, 6), rand(3, 4, 3, 3)), {"pads": [1, 1]}),
        ("Conv2DBackpropInput", ([2, 4, 5, 6], rand(3, 4, 3, 3), rand(2, 3, 5, 6)), {"dilations": [1, 1, 1]}),
        ("Conv2DBackpropFilter", (rand(2, 4, 5, 6), [3, 4, 3, 3], rand(2, 3, 5, 6)), {"dilations": [1, 1, 1]}),
    ],
)
def test_a_number_an_axis_is_given_for_each_axis(run, op, operands, given):
    """torch spreads a single number over all axes; what our check had left out then wrote beyond its memory."""
    sound = {"strides": [1, 1, 1, 1], "pads": [1, 1, 1, 1], "data_format": "NCHW"}
    with pytest.raises(EngineError, match="GE4009"):
        run(op, *operands, **{**sound, **given})


@pytest.mark.parametrize(("offsets", "last"), [([], False), ([0], True)])
@pytest.mark.parametrize("mode", ["sum", "max"])
def test_indices_in_no_bag_are_refused(run, mode, offsets, last):
    """torch's own operator ends the process for the greatest of a bag that it has not made."""
    with pytest.raises(EngineError, match="in no bag"):
        run(
            "EmbeddingBag",
            rand(6, 4),
            [2, 5],
            torch.tensor(offsets, dtype=torch.int64),
            mode=mode,
            include_last_offset=last,
        )


@pytest.mark.parametrize("offsets", [[0, -(1 << 31)], [1, 2], [0, 3, 2], [0, 6]])
def test_bags_that_do_not_follow_each_other_are_refused(run, offsets):
    """torch's own operator reads where such a bag would begin."""
    with pytest.raises(EngineError, match=r"GE4009.*offsets"):
        run("EmbeddingBag", rand(6, 4), [2, 5, 1, 5, 3], torch.tensor(offsets), rand(5), mode="sum")


def test_patches_are_summed_at_their_places(run):
    x, form = rand(2, 3, 4, 20), {"kernel_size": [2], "dilation": [1], "padding": [0], "stride": [1]}
    want = torch.nn.functional.fold(x.reshape(2, 12, 20), (5, 6), 2)
    close(run("Col2im", x, [5, 6], **form), f64(want))
    for wrong in (
        {"padding": [1 << 33, 0]},
        {"padding": [-1]},
        {"stride": [0]},
        {"kernel_size": [2, 1]},
        {"dilation": []},
    ):
        with pytest.raises(EngineError, match=r"GE4009.*(kernel_size|patches)"):
            run("Col2im", x, [5, 6], **{**form, **wrong})


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_values_in_order(run, axis, descending):
    x = rand(4, 5)
    x[1, 2] = x[3, 4]
    close(run("SortV2", x, axis=axis, descending=descending), x.double().sort(axis, descending)[0])


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradients_of_extremes_lie_at_their_places(run, axis, kept):
    x = rand(3, 4, 5)
    top = x.max(axis, keepdim=kept)
    slope = rand(*top.values.shape)
    leaf = x.double().requires_grad_()
    (want,) = torch.autograd.grad(leaf.max(axis, keepdim=kept).values, leaf, slope.double())
    got = run("ArgMaxGrad", torch.zeros_like(x), top.indices.to(torch.int32), slope, dimension=axis)
    close(got, want)


def test_axes_are_moved_before_or_after_the_shape(run):
    x = rand(2, 3, 4, 6)
    first = run("ConfusionTransposeD", x, perm=[0, 2, 1, 3], shape=[2, 4, 18], transpose_first=True)
    close(first, x.double().permute(0, 2, 1, 3).reshape(2, 4, 18))
    y = rand(2, 12, 6)
    last = run("ConfusionTransposeD", y, perm=[0, 2, 1, 3], shape=[2, 4, 3, 6], transpose_first=False)
    close(last, y.double().reshape(2, 4, 3, 6).permute(0, 2, 1, 3))
