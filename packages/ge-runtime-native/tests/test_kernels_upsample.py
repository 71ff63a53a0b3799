"""Resizing with PyTorch's coordinate rules, adaptive pooling of volumes, spread, and what came with them.

References are `torch.nn.functional` in float64 and elementary formulas.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ge_graph import Graph, building, ops
from ge_graph.dtypes import DataType, Format
from ge_graph.errors import EngineError
from ge_runtime.cpu import CpuEngine

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LIMITS = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def close(got, want, dtype=torch.float32):
    assert got.dtype == dtype
    np.testing.assert_allclose(got.double(), want.detach().double(), rtol=LIMITS[dtype], atol=LIMITS[dtype])


def adjoint(formula, shape, g):
    """Gradient of a linear map at any place, in float64."""
    leaf = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    formula(leaf).backward(g.double())
    return leaf.grad


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(7, 9), (3, 4)])
def test_planes(run, dtype, corners, size):
    x = rand(1, 2, 5, 6, dtype=dtype)
    forms = {"align_corners": corners}
    for op, mode, wide in (
        ("UpsampleBicubic2d", "bicubic", False),
        ("UpsampleBilinear2dAA", "bilinear", True),
        ("UpsampleBicubic2dAA", "bicubic", True),
    ):
        want = F.interpolate(x.double(), size, mode=mode, align_corners=corners, antialias=wide)
        close(run(op, x, output_size=list(size), **forms), want, dtype)
    want = F.interpolate(x.double(), size, mode="bilinear", align_corners=corners)
    close(run("UpsampleBilinear2d", x, list(size), **forms), want, dtype)


@pytest.mark.parametrize("factor", [1.5, 0.6])
def test_scales_override_the_ratio_of_sizes(run, factor):
    x = rand(1, 2, 5, 7)
    size = [int(5 * factor), int(7 * factor)]
    two = {"scales_h": factor, "scales_w": factor}
    want = F.interpolate(x, scale_factor=factor, mode="bilinear")
    close(run("UpsampleBilinear2d", x, size, scales=[factor, factor]), want)
    close(run("UpsampleBicubic2d", x, output_size=size, **two), F.interpolate(x, scale_factor=factor, mode="bicubic"))
    close(run("UpsampleNearest", x, output_size=size, **two), F.interpolate(x, scale_factor=factor, mode="nearest"))
    exact = F.interpolate(x, scale_factor=factor, mode="nearest-exact")
    close(run("UpsampleNearest", x, output_size=size, exact_mode=True, **two), exact)
    line = x[0]
    want = F.interpolate(line, scale_factor=factor, mode="linear")
    close(run("UpsampleLinear1d", line, size[1:], scale=factor), want)


def test_volumes(run):
    x, size = rand(1, 2, 3, 4, 5), (4, 6, 7)
    for corners in (False, True):
        want = F.interpolate(x.double(), size, mode="trilinear", align_corners=corners)
        close(run("ResizeUpsampleTrilinear", x, output_size=list(size), align_corners=corners), want)
    want = F.interpolate(x, size, mode="nearest-exact")
    close(run("UpsampleNearestExact3d", x, output_size=list(size)), want)


@pytest.mark.parametrize(
    ("op", "form"),
    [
        ("UpsampleNearest2dGrad", {"mode": "nearest"}),
        ("UpsampleNearestExact2dGrad", {"mode": "nearest-exact"}),
        ("UpsampleBilinear2dGrad", {"mode": "bilinear"}),
        ("UpsampleBilinear2dAABackward", {"mode": "bilinear", "antialias": True}),
        ("UpsampleBicubic2dAAGrad", {"mode": "bicubic", "antialias": True}),
    ],
)
def test_gradients_of_planes(run, op, form):
    shape, g = (1, 2, 5, 6), rand(1, 2, 7, 4)
    want = adjoint(lambda x: F.interpolate(x, (7, 4), **form), shape, g)
    close(run(op, g, input_size=list(shape), output_size=[7, 4]), want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["NCDHW", "NDHWC"])
def test_adaptive_means_of_volumes(run, dtype, layout):
    x = rand(2, 3, 4, 6, 5, dtype=dtype)
    move = (lambda t: t) if layout == "NCDHW" else (lambda t: t.movedim(1, -1).contiguous())
    want = F.adaptive_avg_pool3d(x.double(), (2, 4, 5))
    close(run("AdaptiveAvgPool3d", move(x), output_size=[2, 4, 5], data_format=layout), move(want), dtype)
    g = rand(2, 3, 2, 4, 5, dtype=dtype)
    want = adjoint(lambda t: F.adaptive_avg_pool3d(t, (2, 4, 5)), x.shape, g)
    close(run("AdaptiveAvgPool3dGrad", move(g), move(x), data_format=layout), move(want), dtype)


def test_adaptive_maxima_of_volumes_and_their_gradient(run):
    x, g = rand(1, 2, 4, 5, 6), rand(1, 2, 2, 3, 4, seed=1)
    want, places = F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True)
    y, found = run("AdaptiveMaxPool3d", x, output_size=[2, 3, 4], indices_dtype=9)
    close(y, want)
    assert found.dtype == torch.int64
    assert torch.equal(found, places)
    leaf = x.double().requires_grad_()
    F.adaptive_max_pool3d(leaf, (2, 3, 4)).backward(g.double())
    close(run("AdaptiveMaxPool3DGrad", x, g, places.int()), leaf.grad)
    form = {"ksize": [2, 2, 2], "strides": [2, 2, 2], "pads": [0, 0, 0]}
    pooled, places = F.max_pool3d(x, 2, return_indices=True)
    leaf = x.double().requires_grad_()
    F.max_pool3d(leaf, 2).sum().backward()
    close(run("MaxPool3DGradWithArgmax", x, torch.ones_like(pooled), places, **form), leaf.grad)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("correction", [0, 1, 3, 5])
def test_variance_divides_by_what_the_correction_leaves(run, dtype, correction):
    x = rand(4, 3, dtype=dtype)
    var, mean = run("ReduceVar", x, dim=[0], correction=correction, keepdim=True)
    squares = ((x.double() - x.double().mean(0, keepdim=True)) ** 2).sum(0, keepdim=True)
    close(var, squares / max(0, 4 - correction), dtype)
    close(mean, x.double().mean(0, keepdim=True), dtype)


def test_log_sum_exp_takes_no_maximum_out(run):
    x = rand(3, 4)
    close(run("ReduceLogSumExp", x, [1]), x.double().exp().sum(1).log())
    assert run("ReduceLogSumExp", torch.full((2,), 100.0), [0]).isinf()


def test_small_ones(run):
    x, y = rand(4, 3), rand(4, 3, seed=1)
    close(run("CrossV2", x, y, dim=1), torch.linalg.cross(x.double(), y.double()))
    close(run("Cross", x.T.contiguous(), y.T.contiguous()), torch.linalg.cross(x.double(), y.double()).T)
    pairs = [(x[i].double() - x[j].double()).norm(p=3) for i in range(4) for j in range(i + 1, 4)]
    close(run("Pdist", x, p=3.0), torch.stack(pairs))
    close(run("Trace", x), x.double()[range(3), range(3)].sum())
    assert run("Trace", torch.ones(2, 2, dtype=torch.int32)).dtype == torch.int64
    p = torch.tensor([0.1, 0.5, 1.0])
    close(run("Logit", p, eps=0.2), torch.tensor([0.2, 0.5, 0.8]).double().log() - torch.tensor([0.8, 0.5, 0.2]).log())
    assert run("Logit", p)[2].isinf()
    step = run("Heaviside", torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([5.0, 6.0, 7.0]))
    assert step.tolist() == [0.0, 6.0, 1.0]
    assert run("Softshrink", torch.tensor([-1.0, 0.2, 2.0]), lambd=0.5).tolist() == [-0.5, 0.0, 1.5]


@pytest.mark.parametrize("size", [(9, 11), (7, 12), (14, 10)])
def test_cubic_at_pixel_centres_is_tensorflows(run, size):
    """Coefficient -1/2 and no weight outside: when it enlarges, torch's antialiased cubic has these weights too."""
    x = rand(2, 3, 7, 10)
    want = torch.nn.functional.interpolate(x.double(), size, mode="bicubic", antialias=True)
    close(run("ResizeBicubic", x, list(size), half_pixel_centers=True), want)


@pytest.mark.parametrize("op", ["ResizeBilinearV2", "ResizeNearestNeighborV2", "ResizeBicubic", "ResizeTrilinear"])
def test_a_picture_that_its_descriptor_says_lies_elsewhere_is_refused(op):
    """GE takes the layout from the format of the edge; other axes resized would be wrong numbers without a word."""
    volume = op == "ResizeTrilinear"
    shape, size = ((1, 2, 4, 4, 3), [4, 8, 8]) if volume else ((1, 4, 4, 3), [8, 8])
    graph = Graph("layout")
    with building(graph):
        x = ops.Data(index=0, dtype=DataType.DT_FLOAT, shape=shape)
        x.format = Format.FORMAT_NDHWC if volume else Format.FORMAT_NHWC
        graph.outputs = [getattr(ops, op)(x, size)]
    with pytest.raises(EngineError, match=r"GE4009.*N.?HWC"):
        CpuEngine().compile(graph, {}).run([torch.ones(shape)])


GRADIENTS = {
    "UpsampleNearest1dGrad": ("nearest", 1),
    "UpsampleNearest2dGrad": ("nearest", 2),
    "UpsampleNearest3dGrad": ("nearest", 3),
    "UpsampleNearestExact2dGrad": ("nearest-exact", 2),
    "UpsampleNearestExact3dGrad": ("nearest-exact", 3),
    "UpsampleBilinear2dGrad": ("bilinear", 2),
    "UpsampleTrilinear3dGrad": ("trilinear", 3),
}


@pytest.mark.parametrize("op", sorted(GRADIENTS))
def test_sizes_of_a_gradient_that_contradict_it_are_refused(run, op):
    mode, rank = GRADIENTS[op]
    before, after = [1, 2, 5, 4, 6][: 2 + rank], [7, 3, 8][:rank]
    g = rand(1, 2, *after)
    sizes = {"input_size": before, "output_size": after}
    close(run(op, g, **sizes), adjoint(lambda x: F.interpolate(x, after, mode=mode), before, g))
    for wrong in (
        {"output_size": [*after[:-1], 1 << 20]},
        {"input_size": [2, *before[1:]]},
        {"input_size": before[1:]},
    ):
        with pytest.raises(EngineError, match=r"GE4009.*beside a gradient of shape"):
            run(op, g, **(sizes | wrong))
