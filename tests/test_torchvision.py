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


def assert_eager(fn, *args, dynamic, grad=False):
    found = []
    for called in (fn, torch.compile(fn, backend=torchair.get_npu_backend(), dynamic=dynamic, fullgraph=True)):
        given = [a.clone().requires_grad_(grad and i == 0) for i, a in enumerate(args)]
        result = called(*given)
        if grad:
            result.square().sum().backward()
        found.append((result, given[0].grad))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [-1, 2])
def test_roi_align(regions, samples, aligned, dynamic):
    x = torch.randn(2, 8, 12, 14)

    def call(x, r):
        return ops.roi_align(x, r, (3, 4), 0.5, samples, aligned)

    assert_eager(call, x, regions, dynamic=dynamic, grad=True)
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
            return ops.deform_conv2d(x, offset, weight, torch.ones(6), *self.window, mask if masked else None)

    assert_eager(Deformed(), x, weight, offset, mask, dynamic=dynamic)


def ssdlite():
    return torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5, score_thresh=0.05, detections_per_img=20, topk_candidates=20
    )


def faster_rcnn():
    return torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=5, box_score_thresh=0.05, min_size=96, max_size=128,
        box_detections_per_img=20, rpn_post_nms_top_n_test=30,
    )  # fmt: skip


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
