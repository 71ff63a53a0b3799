"""Arguments of a forward operator that its gradient has to honour: every combination gives eager's gradients."""

import itertools

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch.nn import functional as F

import torchair


def choices(**options):
    """Every combination of these arguments."""
    return [dict(zip(options, values)) for values in itertools.product(*options.values())]


def numbers(*size, seed=0, low=None):
    made = torch.randn(*size, generator=torch.Generator().manual_seed(seed))
    return made.abs() + low if low is not None else made


def whole(high, *size, seed=0, low=0):
    return torch.randint(low, high, size, generator=torch.Generator().manual_seed(seed))


LOGITS, CLASSES = numbers(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
IMAGE = numbers(2, 4, 7, 9)
REDUCED = {"reduction": ["none", "mean", "sum"]}
PIXELS, SHARES, WEIGHTS, POSITIVE = (
    whole(4, 2, 7, 9),
    LOGITS.sigmoid(),
    numbers(5, low=0.1),
    numbers(5, seed=2, low=0.1),
)
GRID = numbers(2, 3, 5, 2, seed=3)


def ctc(x, *, blank, reduction, zero_infinity):
    targets = torch.tensor([[1, 2, 2], [3, 1, 4], [1, 1, 2]])
    targets = (targets + blank + 1) % 5 if blank else targets
    given = (x.log_softmax(2), targets, (8, 5, 2), (3, 2, 3))  # the third fits into no path: its loss is infinite
    return F.ctc_loss(*given, blank=blank, reduction=reduction, zero_infinity=zero_infinity)


def batch_norm(x, w, b, *, momentum, track_running_stats, training, eps):
    mean, var = (torch.full((4,), 0.3), torch.full((4,), 1.7)) if track_running_stats else (None, None)
    return F.batch_norm(x, mean, var, w, b, training or not track_running_stats, momentum, eps)


def loss(fn):
    return lambda x, y, **kwargs: fn(x, y, **kwargs)


# Operator -> the function, its inputs (those of floating point get gradients), the combinations of its arguments.
CASES = {
    "embedding": (
        lambda w, **kwargs: F.embedding(torch.tensor([[1, 2, 2], [0, 1, 5]]), w, **kwargs),
        [numbers(6, 3)],
        choices(padding_idx=[None, 0, 2, -1], scale_grad_by_freq=[False, True]),
    ),
    "embedding_bag": (
        lambda w, **kwargs: F.embedding_bag(torch.tensor([[1, 2, 2], [0, 1, 5], [4, 3, 3]]), w, **kwargs),
        [numbers(6, 3)],
        choices(padding_idx=[None, 2, -1], mode=["sum", "mean", "max"]),
    ),
    "embedding_bag with offsets": (
        lambda w, **kwargs: F.embedding_bag(
            torch.tensor([1, 2, 2, 0, 1, 5]),
            w,
            torch.tensor([0, 2, 2, 6 if kwargs["include_last_offset"] else 5]),
            **kwargs,
        ),
        [numbers(6, 3)],
        choices(padding_idx=[None, 2], mode=["sum", "mean"], include_last_offset=[False, True]),
    ),
    "embedding_bag with weights": (
        lambda w, s, **kwargs: F.embedding_bag(
            torch.tensor([1, 2, 2, 0, 1, 5]), w, torch.tensor([0, 2, 4]), mode="sum", per_sample_weights=s, **kwargs
        ),
        [numbers(6, 3), numbers(6)],
        choices(padding_idx=[None, 2]),
    ),
    "cross_entropy": (
        lambda x, w, **kwargs: F.cross_entropy(x, CLASSES, w.detach(), **kwargs),
        [LOGITS, numbers(5, low=0.1)],
        choices(**REDUCED, ignore_index=[-100, 2], label_smoothing=[0.0, 0.3]),
    ),
    "cross_entropy of probabilities": (
        lambda x, y, **kwargs: F.cross_entropy(x, y.softmax(1), **kwargs),
        [LOGITS, numbers(6, 5, seed=1)],
        choices(**REDUCED, label_smoothing=[0.0, 0.3]),
    ),
    "nll_loss": (
        lambda x, w, **kwargs: F.nll_loss(x.log_softmax(1), CLASSES, w.detach(), **kwargs),
        [LOGITS, numbers(5, low=0.1)],
        choices(**REDUCED, ignore_index=[-100, 2]),
    ),
    "nll_loss of images": (
        lambda x, **kwargs: F.nll_loss(x.log_softmax(1), PIXELS, **kwargs),
        [IMAGE],
        choices(**REDUCED, ignore_index=[-100, 1]),
    ),
    "multi_margin_loss": (
        lambda x, **kwargs: F.multi_margin_loss(x, CLASSES, **kwargs),
        [LOGITS],
        choices(**REDUCED, p=[1, 2], margin=[1.0, 0.4]),
    ),
    "ctc_loss": (
        ctc,
        [numbers(8, 3, 5)],
        choices(blank=[0, 2], reduction=["none", "mean", "sum"], zero_infinity=[False, True]),
    ),
    "huber_loss": (loss(F.huber_loss), [LOGITS, numbers(6, 5, seed=1)], choices(**REDUCED, delta=[1.0, 0.3])),
    "smooth_l1_loss": (
        loss(F.smooth_l1_loss),
        [LOGITS, numbers(6, 5, seed=1)],
        choices(**REDUCED, beta=[1.0, 0.3, 0.0]),
    ),
    "kl_div": (
        lambda x, y, **kwargs: F.kl_div(x, y if kwargs["log_target"] else y.exp(), **kwargs),
        [LOGITS, numbers(6, 5, seed=1)],
        choices(reduction=["none", "mean", "sum", "batchmean"], log_target=[False, True]),
    ),
    "poisson_nll_loss": (
        lambda x, **kwargs: F.poisson_nll_loss(x.abs() + 0.2, LOGITS.abs(), **kwargs),
        [LOGITS],
        choices(**REDUCED, log_input=[False, True], full=[False, True]),
    ),
    "binary_cross_entropy_with_logits": (
        lambda x, **kwargs: F.binary_cross_entropy_with_logits(x, SHARES, WEIGHTS, pos_weight=POSITIVE, **kwargs),
        [LOGITS],
        choices(**REDUCED),
    ),
    "triplet_margin_loss": (
        lambda x, y, **kwargs: F.triplet_margin_loss(x, y, LOGITS, **kwargs),
        [numbers(6, 5, seed=4), numbers(6, 5, seed=5)],
        choices(**REDUCED, swap=[False, True], p=[2.0, 1.0], margin=[1.0, 3.0]),
    ),
    "avg_pool2d": (
        lambda x, **kwargs: F.avg_pool2d(x, 3, **kwargs),
        [IMAGE],
        choices(
            stride=[2, 3],
            padding=[0, 1],
            ceil_mode=[False, True],
            count_include_pad=[False, True],
            divisor_override=[None, 5],
        ),
    ),
    "avg_pool1d": (
        lambda x, **kwargs: F.avg_pool1d(x.flatten(0, 1), 3, **kwargs),
        [IMAGE],
        choices(stride=[2, 3], padding=[0, 1], ceil_mode=[False, True], count_include_pad=[False, True]),
    ),
    "avg_pool3d": (
        lambda x, **kwargs: F.avg_pool3d(x, 3, **kwargs),
        [numbers(1, 2, 5, 6, 7)],
        choices(padding=[0, 1], ceil_mode=[False, True], count_include_pad=[False, True], divisor_override=[None, 5]),
    ),
    "max_pool2d": (
        lambda x, **kwargs: F.max_pool2d(x, 3, **kwargs),
        [IMAGE],
        choices(stride=[2, 3], padding=[0, 1], dilation=[1, 2], ceil_mode=[False, True]),
    ),
    "lp_pool2d": (
        lambda x, **kwargs: F.lp_pool2d(x.abs() + 0.1, kernel_size=2, **kwargs),
        [IMAGE],
        choices(norm_type=[1, 2, 3], ceil_mode=[False, True]),
    ),
    "interpolate in lines": (
        lambda x, **kwargs: F.interpolate(x, **kwargs),
        [IMAGE],
        choices(mode=["bilinear", "bicubic"], size=[(4, 5), (10, 13)], align_corners=[False, True])
        + choices(
            mode=["bilinear"], scale_factor=[1.7], align_corners=[False, True], recompute_scale_factor=[False, True]
        ),
    ),
    "interpolate by nearest": (
        lambda x, **kwargs: F.interpolate(x, **kwargs),
        [IMAGE],
        choices(mode=["nearest", "nearest-exact", "area"], size=[(4, 5), (10, 13)]),
    ),
    "grid_sample": (
        F.grid_sample,
        [IMAGE, GRID],
        choices(
            mode=["bilinear", "nearest"], padding_mode=["zeros", "border", "reflection"], align_corners=[False, True]
        ),
    ),
    "affine_grid": (
        lambda t, **kwargs: F.affine_grid(t, (2, 3, 4, 5), **kwargs),
        [numbers(2, 2, 3)],
        choices(align_corners=[False, True]),
    ),
    "batch_norm": (
        batch_norm,
        [IMAGE, numbers(4), numbers(4, seed=1)],
        choices(momentum=[0.0, 0.3], track_running_stats=[False, True], training=[False, True], eps=[1e-5, 0.5]),
    ),
    "layer_norm": (
        lambda x, w, **kwargs: F.layer_norm(x, (9,), w, **kwargs),
        [IMAGE, numbers(9)],
        choices(eps=[1e-5, 0.5]),
    ),
    "group_norm": (
        lambda x, w, **kwargs: F.group_norm(x, weight=w, **kwargs),
        [IMAGE, numbers(4)],
        choices(num_groups=[1, 2, 4], eps=[1e-5, 0.5]),
    ),
    "gelu": (F.gelu, [LOGITS], choices(approximate=["none", "tanh"])),
    "softplus": (F.softplus, [LOGITS * 8], choices(beta=[1, 2.5], threshold=[20, 3])),
    "elu": (F.elu, [LOGITS], choices(alpha=[1.0, 0.3])),
    "celu": (F.celu, [LOGITS], choices(alpha=[1.0, 0.3])),
    "hardtanh": (F.hardtanh, [LOGITS], choices(min_val=[-1.0, -0.2], max_val=[1.0, 0.3])),
    "threshold": (F.threshold, [LOGITS], choices(threshold=[0.0, 0.4], value=[0.0, -2.0])),
    "leaky_relu": (F.leaky_relu, [LOGITS], choices(negative_slope=[0.01, 1.5])),
    "std": (torch.std, [LOGITS], choices(dim=[0, (0, 1)], correction=[0, 1, 2], keepdim=[False, True])),
    "cdist": (torch.cdist, [LOGITS, numbers(4, 5, seed=2)], choices(p=[1.0, 2.0, 3.0, float("inf")])),
    "norm": (torch.linalg.vector_norm, [LOGITS], choices(ord=[1, 2, 3, 0.5, float("inf")], dim=[0, None])),
    "cumulative": (lambda x, dim: x.cumprod(dim) + x.logcumsumexp(dim), [LOGITS], choices(dim=[0, 1, -1])),
    "renorm": (torch.renorm, [LOGITS], choices(p=[1, 2], dim=[0, 1], maxnorm=[0.5, 2.0])),
    "fold": (
        lambda x, **kwargs: F.fold(F.unfold(x, (2, 3), **kwargs).cos(), (7, 9), (2, 3), **kwargs),
        [IMAGE],
        choices(dilation=[1, 2], padding=[0, 1], stride=[1, 2]),
    ),
    "conv_transpose2d": (
        F.conv_transpose2d,
        [IMAGE, numbers(4, 2, 3, 3)],
        choices(stride=[2], padding=[0, 1], output_padding=[0, 1], groups=[1, 2], dilation=[1, 2]),
    ),
}


def gradients(call, inputs, count):
    leaves = [[t.clone().requires_grad_() for t in inputs] for _ in range(count)]
    results = call(leaves)
    total = sum((r * torch.linspace(0.5, 1.5, r.numel()).view(r.shape)).sum() for r in results)
    flat = [t for each in leaves for t in each]
    found = torch.autograd.grad(total, flat, allow_unused=True)
    width = len(inputs)
    return results, [found[i * width : (i + 1) * width] for i in range(count)]


# Operator -> why torch hands no backend a graph of it.
NOT_TRACED = {"ctc_loss": "torch has no meta function for _ctc_loss"}


def rows():
    for name in CASES:
        why = NOT_TRACED.get(name)
        marks = [] if why is None else [pytest.mark.xfail(strict=True, raises=Unsupported, reason=why)]
        yield pytest.param(name, marks=marks)


@pytest.mark.night(rows=7)
@pytest.mark.parametrize("name", [*rows()])
def test_gradients_are_those_of_eager(name):
    fn, inputs, combinations = CASES[name]

    def every(leaves):  # one graph for all: each combination has inputs of its own
        return [fn(*mine, **kwargs) for mine, kwargs in zip(leaves, combinations)]

    torch._dynamo.reset()
    run = torch.compile(every, backend=torchair.get_npu_backend(), fullgraph=True)
    got, got_grads = gradients(run, inputs, len(combinations))
    want, want_grads = gradients(every, inputs, len(combinations))
    differ = []
    for kwargs, *values in zip(combinations, got, want, got_grads, want_grads):
        pairs = [(values[0], values[1]), *zip(values[2], values[3])]
        for at, (g, w) in enumerate(pairs):
            g, w = (torch.zeros(()) if v is None else v for v in (g, w))
            if not torch.allclose(g, w, rtol=1e-4, atol=1e-5, equal_nan=True):
                differ.append(f"{kwargs} {'result' if not at else f'gradient {at - 1}'}: {(g - w).abs().max():.3g}")
    assert not differ


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_scale_gradients_by_how_often_an_index_occurs(mode, padding_idx):
    """By the documented rule. The CPU kernel of torch 2.13 divides by the count of another index (pytorch #190063)."""
    indices, offsets = torch.tensor([1, 2, 2, 0, 1, 5, 5, 5]), torch.tensor([0, 2, 2, 5])
    weight = numbers(6, 3)
    scale = 1.0 / torch.bincount(indices, minlength=6)

    def loss(table, **kwargs):
        bags = F.embedding_bag(indices, table, offsets, mode=mode, padding_idx=padding_idx, **kwargs)
        return (bags * torch.arange(12.0).view(4, 3)).sum()

    plain, scaled = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    loss(plain).backward()
    run = torch.compile(loss, backend=torchair.get_npu_backend(), fullgraph=True)
    run(scaled, scale_grad_by_freq=True).backward()
    torch.testing.assert_close(scaled.grad, plain.grad * scale.nan_to_num(posinf=0).unsqueeze(1))


CONVOLUTIONS = {
    "conv": (F.conv1d, F.conv2d, F.conv3d),
    "transposed": (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
}


@pytest.mark.night(rows=4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "batch", "channels", "groups"),
    [("conv", 2, 0, 1), ("conv", 0, 0, 1), ("conv", 0, 4, 1), ("conv", 0, 4, 2), ("transposed", 0, 4, 2)],
)
def test_convolutions_of_nothing(kind, batch, channels, groups, axes, dynamic):
    """No batch, or no input channels: gradients are zeros, of the shapes that eager gives them."""
    window = (3, 2, 2)[:axes]
    size = (channels, 6 // groups) if kind == "transposed" else (6, channels // groups)
    inputs = [numbers(batch, channels, *(5, 6, 4)[:axes]), numbers(*size, *window), numbers(6)]

    def layers(leaves):
        return [CONVOLUTIONS[kind][axes - 1](*mine, padding=1, groups=groups) for mine in leaves]

    torch._dynamo.reset()
    run = torch.compile(layers, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)
    for got, want in zip(gradients(run, inputs, 1), gradients(layers, inputs, 1)):
        torch.testing.assert_close(got, want)


# Function, its floating-point input.
OF_NOTHING = {
    "grid_sample": (lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 2, 2, 2), align_corners=False), (0, 4, 3, 2)),
    "grid_sample without channels": (
        lambda x: F.grid_sample(x, torch.zeros(x.shape[0], 2, 2, 2), align_corners=False),
        (2, 0, 3, 2),
    ),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 2), (0, 4, 3)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), (0, 4, 3, 3)),
    "embedding without columns": (lambda w: F.embedding(torch.tensor([[1, 0], [2, 2]]), w), (3, 0)),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, torch.zeros(2, 0, dtype=torch.int64), x[:2], "amax"), (3, 0)),
    "embedding of no indices": (lambda w: F.embedding(torch.zeros(0, 3, dtype=torch.int64), w), (3, 0)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OF_NOTHING)
def test_gradients_of_nothing(name, dynamic):
    fn, size = OF_NOTHING[name]

    def every(leaves):
        return [fn(*mine) for mine in leaves]

    torch._dynamo.reset()
    run = torch.compile(every, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)
    for got, want in zip(gradients(run, [numbers(*size)], 1), gradients(every, [numbers(*size)], 1)):
        torch.testing.assert_close(got, want)


DOUBLES = {
    "linear": ((2, 3, 5), {"scale_factor": 1.7, "mode": "linear"}),
    "nearest": ((2, 3, 5, 6), {"scale_factor": (0.6, 1.3), "mode": "nearest"}),
    "nearest-exact": ((2, 3, 5, 6), {"scale_factor": 2, "mode": "nearest-exact"}),
    "bilinear": ((2, 3, 5, 6), {"scale_factor": 1.7, "mode": "bilinear"}),
    "bilinear of sizes": ((2, 3, 5, 6), {"size": (7, 3), "mode": "bilinear", "align_corners": True}),
    "smooth": ((2, 3, 5, 6), {"scale_factor": 0.4, "mode": "bilinear", "antialias": True}),
    "bicubic": ((2, 3, 5, 6), {"scale_factor": 1.7, "mode": "bicubic"}),
    "trilinear": ((1, 2, 3, 4, 5), {"scale_factor": 1.5, "mode": "trilinear"}),
}


@pytest.mark.parametrize("name", DOUBLES)
def test_interpolation_of_float64(name):
    """GE's operators have no float64; formulas have, with gradients, to its precision."""
    size, kwargs = DOUBLES[name]
    x = numbers(*size).double()

    def every(leaves):
        return [F.interpolate(*mine, **kwargs) for mine in leaves]

    torch._dynamo.reset()
    run = torch.compile(every, backend=torchair.get_npu_backend(), fullgraph=True)
    for got, want in zip(gradients(run, [x], 1), gradients(every, [x], 1)):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
