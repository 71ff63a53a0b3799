"""Functions that torch takes apart before autograd stay whole: one GE operator, eager's values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import torchair
from tair_testing.compiling import compiled

CASES = {  # what is called: (function of x, shape of x, GE operator)
    "nearest line": (lambda x: F.interpolate(x, 9), (2, 3, 4), "UpsampleNearest1d"),
    "nearest plane": (lambda x: F.interpolate(x, scale_factor=1.5), (2, 3, 4, 6), "UpsampleNearest"),
    "nearest volume": (lambda x: F.interpolate(x, (4, 5, 6)), (1, 2, 3, 4, 5), "UpsampleNearest3d"),
    "exact volume": (
        lambda x: F.interpolate(x, (4, 5, 6), mode="nearest-exact"),
        (1, 2, 3, 4, 5),
        "UpsampleNearestExact3d",
    ),
    "linear": (lambda x: F.interpolate(x, 7, mode="linear"), (2, 3, 4), "UpsampleLinear1d"),
    "bilinear": (lambda x: F.interpolate(x, (7, 9), mode="bilinear"), (2, 3, 4, 5), "ResizeBilinearV2"),
    "bilinear by a factor": (
        lambda x: F.interpolate(x, scale_factor=(1.5, 0.6), mode="bilinear"),
        (2, 3, 4, 5),
        "UpsampleBilinear2d",
    ),
    "bilinear corners": (lambda x: F.upsample_bilinear(x, (7, 9)), (2, 3, 4, 5), "ResizeBilinearV2"),
    "bicubic": (lambda x: F.interpolate(x, (7, 9), mode="bicubic"), (2, 3, 4, 5), "UpsampleBicubic2d"),
    "bicubic recomputed": (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic", recompute_scale_factor=True),
        (1, 2, 5, 6),
        "UpsampleBicubic2d",
    ),
    "trilinear": (
        lambda x: F.interpolate(x, (4, 5, 6), mode="trilinear", align_corners=True),
        (1, 2, 3, 4, 5),
        "ResizeUpsampleTrilinear",
    ),
    "wide bilinear": (
        lambda x: F.interpolate(x, (3, 3), mode="bilinear", antialias=True),
        (1, 2, 7, 8),
        "UpsampleBilinear2dAA",
    ),
    "wide bicubic": (
        lambda x: F.interpolate(x, (3, 3), mode="bicubic", antialias=True),
        (1, 2, 7, 8),
        "UpsampleBicubic2dAA",
    ),
    "softshrink": (lambda x: F.softshrink(x, 0.3), (4, 7), "Softshrink"),
    "hardshrink": (F.hardshrink, (4, 7), "HardShrink"),
}


@pytest.mark.parametrize("case", CASES)
def test_forward_is_one_operator(case, recording):
    fn, shape, operator = CASES[case]
    x = torch.randn(shape)
    with recording() as seen, torch.no_grad():
        got = torch.compile(fn, backend="npu", dynamic=False)(x)
    torch.testing.assert_close(got, fn(x))
    assert [n.op for n in seen.last_graph().nodes if n.op not in ("Data", "Const")] == [operator]


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_eager(case):
    fn, shape, _ = CASES[case]
    x = torch.randn(shape, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    got, want = torch.compile(fn, backend="npu")(x), fn(y)
    g = torch.randn(want.shape)
    got.backward(g)
    want.backward(g)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("case", CASES)
def test_one_graph_serves_other_sizes(case):
    fn, shape, _ = CASES[case]
    with torchair.record_compilation() as reports, torch.no_grad():
        compiled = torch.compile(fn, backend="npu", dynamic=True)
        for more in (0, 1, 3):
            x = torch.randn(shape[0] + 1, *shape[1:-1], shape[-1] + more)
            torch.testing.assert_close(compiled(x), fn(x))
    assert len(reports) == 1


def test_what_torch_refuses_is_refused_by_torch():
    with pytest.raises(Exception, match="align_corners"):
        torch.compile(lambda x: F.interpolate(x, 5, align_corners=True), backend="npu")(torch.randn(1, 2, 3))
    with pytest.raises(Exception, match="only one of size or scale_factor"):
        torch.compile(lambda x: F.interpolate(x, 5, scale_factor=2), backend="npu")(torch.randn(1, 2, 3))


TABLES = {
    "Embedding": lambda: torch.nn.Embedding(9, 4, sparse=True),
    "EmbeddingBag": lambda: torch.nn.EmbeddingBag(9, 4, sparse=True, mode="sum"),
}
PLACES = torch.tensor([[1, 2, 2], [3, 4, 1]])


@pytest.mark.parametrize("kind", TABLES)
def test_a_sparse_gradient_is_refused_in_the_forward(kind):
    table = TABLES[kind]()
    call = compiled(table)
    with torch.no_grad():
        torch.testing.assert_close(call(PLACES), table(PLACES))
    with pytest.raises(Exception, match=rf"GE2015.*9 rows[\s\S]*nn\.{kind}\(\.\.\., sparse=False\)"):
        call(PLACES)


@pytest.mark.parametrize("gather", [torch.gather, torch.Tensor.gather], ids=["function", "method"])
def test_a_sparse_gradient_of_gather_is_refused_in_the_forward(gather):
    """Without gradients it is any gather."""
    x, at = torch.randn(3, 4, requires_grad=True), torch.tensor([[0, 2], [2, 0]])
    call = compiled(lambda x, at: gather(x, 1, at, sparse_grad=True) * 2)
    torch.testing.assert_close(call(x.detach(), at), x.detach().gather(1, at) * 2)
    with pytest.raises(Exception, match=r"GE2015.*sizes \(3, 4\)[\s\S]*gather\(\.\.\., sparse_grad=False\)"):
        call(x, at)


@pytest.mark.parametrize("kind", TABLES)
def test_a_sparse_gradient_is_made_between_graphs(kind):
    table = TABLES[kind]()
    config = torchair.CompilerConfig()
    config.fallback = "split"
    compiled(table, config)(PLACES).sin().sum().backward()
    got, table.weight.grad = table.weight.grad, None
    table(PLACES).sin().sum().backward()
    assert got.layout is torch.sparse_coo
    torch.testing.assert_close(got.to_dense(), table.weight.grad.to_dense())
