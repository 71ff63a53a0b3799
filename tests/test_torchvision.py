"""torchvision's operators and detection models equal eager; runs where torchvision for the installed torch is there."""

import pytest
import torch
import torch.nn.functional as F

import torchair

torchvision = pytest.importorskip("torchvision")
ops = torchvision.ops


@pytest.fixture
def boxes():
    corners = torch.rand(7, 4) * 20
    return torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] * 1.3], 1)


@pytest.fixture
def regions(boxes):
    return torch.cat([torch.randint(0, 2, (7, 1)).float(), boxes], 1)


def outcome(fn, args, grad):
    given = [a.clone().requires_grad_(i < grad) for i, a in enumerate(args)]
    result = fn(*given)
    if grad:
        result.square().sum().backward()
    return result, [g.grad for g in given[:grad]]


def assert_eager(fn, *args, dynamic, grad=0):
    """Results as in eager; gradients of the first ``grad`` arguments as near to those in float64 as eager's are."""
    compiled = torch.compile(fn, backend=torchair.get_npu_backend(), dynamic=dynamic, fullgraph=True)
    (want, eager), (got, ours) = outcome(fn, args, grad), outcome(compiled, args, grad)
    torch.testing.assert_close(got, want)
    truth = outcome(fn, [a.double() for a in args], grad)[1] if grad else []
    for exact, e, o in zip(truth, eager, ours, strict=True):
        assert o.dtype == e.dtype
        allowed = 2 * (e - exact).abs().max() + 1e-6 * exact.abs().max()
        assert (o - exact).abs().max() <= allowed


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [-1, 2])
def test_roi_align(regions, samples, aligned, dynamic):
    x = torch.randn(2, 8, 12, 14)

    def call(x, r):
        return ops.roi_align(x, r, (3, 4), 0.5, samples, aligned)

    assert_eager(call, x, regions, dynamic=dynamic, grad=1)
    assert_eager(call, x, regions[:0], dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("scale", [0.37, 0.5, 1.0])
def test_pooled_regions(regions, scale, dynamic):
    x = torch.randn(2, 8, 12, 14)
    assert_eager(lambda x, r: ops.roi_pool(x, r, (3, 4), scale), x, regions, dynamic=dynamic)
    first = regions * torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    assert_eager(lambda x, r: ops.ps_roi_pool(x, r, 2, scale), x[:1], first, dynamic=dynamic)
    assert_eager(lambda x, r: ops.ps_roi_pool(x, r, 2, scale), x[:1], first[:0], dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("scale", [0.37, 1.0])
def test_gradients_of_pooled_regions(regions, scale, dynamic):
    x = torch.randn(2, 8, 12, 14)
    assert_eager(lambda x, r: ops.roi_pool(x, r, (3, 4), scale), x, regions, dynamic=dynamic, grad=1)
    first = regions * torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])
    assert_eager(lambda x, r: ops.ps_roi_pool(x, r, 2, scale), x[:1], first, dynamic=dynamic, grad=1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("samples", [-1, 2])
@pytest.mark.parametrize("cells", [(2, 2), (1, 4)])
def test_ps_roi_align(regions, samples, cells, dynamic):
    x = torch.randn(2, 12, 12, 14)

    def call(x, r):
        return ops.ps_roi_align(x, r, cells, 0.4, samples)

    assert_eager(call, x, regions, dynamic=dynamic, grad=1)
    assert_eager(call, x, regions[:0], dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("threshold", [0.1, 0.5])
def test_nms(threshold, dynamic):
    scores, found = torch.rand(50), torch.rand(50, 4) * 10
    found[:, 2:] += found[:, :2]
    found[:10] = found[:1]
    found[20:25, 2:] = found[20:25, :2]  # without area
    found[22] = found[21]
    assert_eager(lambda b, s: ops.nms(b, s, threshold), found, scores, dynamic=dynamic)
    assert_eager(lambda b, s: b[ops.nms(b, s, threshold)[:5]].sum(0), found, scores, dynamic=dynamic)
    kinds = torch.randint(0, 3, (50,))
    assert_eager(lambda b, s, i: ops.batched_nms(b, s, i, threshold), found, scores, kinds, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("shared", "groups", "masked", "window"),
    [(1, 1, True, (1, 1, 1)), (2, 2, False, ((2, 1), (0, 1), (1, 2))), (4, 1, True, (1, (2, 1), 2))],
)
def test_deform_conv2d(shared, groups, masked, window, dynamic):
    x, weight = torch.randn(2, 8, 12, 14), torch.randn(6, 8 // groups, 3, 2)
    out = F.conv2d(x, torch.zeros(1, 8, 3, 2), None, *window).shape[2:]
    offset, mask = torch.randn(2, 12 * shared, *out), torch.rand(2, 6 * shared, *out)

    class Deformed(torch.nn.Module):  # dynamo keeps numbers of modules, and torchvision asks for numbers
        def __init__(self):
            super().__init__()
            self.window = window

        def forward(self, x, weight, offset, mask):
            return ops.deform_conv2d(
                x, offset, weight, torch.ones(6, dtype=x.dtype), *self.window, mask if masked else None
            )

    assert_eager(Deformed(), x, weight, offset, mask, dynamic=dynamic)
    assert_eager(Deformed(), x, weight, offset, mask, dynamic=dynamic, grad=4 if masked else 3)


def ssdlite():
    return torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5, score_thresh=0.05, detections_per_img=20, topk_candidates=20
    )


def faster_rcnn():
    return torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        box_score_thresh=0.05,
        min_size=96,
        max_size=128,
        box_detections_per_img=20,
        rpn_post_nms_top_n_test=30,
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [ssdlite, faster_rcnn])
def test_detection_models(make):
    model = make().eval()
    images = [torch.rand(3, 96, 128), torch.rand(3, 96, 128)]
    with torch.no_grad():
        want = model(images)
        got = torch.compile(model, backend=torchair.get_npu_backend())(images)
    assert all(len(w["boxes"]) for w in want)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
