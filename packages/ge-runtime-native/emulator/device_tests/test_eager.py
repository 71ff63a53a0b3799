"""Eager operators of the torch_npu wheel on the emulator against the CPU's numbers. Run under ``tair emulate``."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401

torch.manual_seed(0)
X, Y = torch.randn(4, 6), torch.randn(4, 6)
P = X.abs() + 0.1
K, J = torch.randint(0, 5, (4, 6)), torch.randint(1, 5, (4, 6))
B = X > 0
IMAGE = torch.randn(2, 3, 8, 8)
ROWS = torch.tensor([0, 2])

UNARY = [
    "abs",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "frac",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "relu",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
    "isnan",
    "isfinite",
    "logical_not",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "atan2",
    "pow",
    "fmod",
    "remainder",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "floor_divide",
]
ACTIVATIONS = [
    "gelu",
    "silu",
    "mish",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "elu",
    "leaky_relu",
    "logsigmoid",
    "softmax",
    "log_softmax",
    "hardtanh",
    "glu",
]

REDUCTIONS = [
    "sum",
    "mean",
    "amax",
    "amin",
    "prod",
    "var",
    "std",
    "cumsum",
    "logsumexp",
    "argmax",
    "argmin",
    "max",
    "min",
    "median",
]


def _written(a, c):
    a.add_(c)
    a.mul_(2)
    a[1:3].sub_(1)
    a[:, 0] = 5
    a.t()[2].clamp_(-1, 1)
    return a


def _index_put(a, k, v):
    a[k] = v
    a.index_add_(0, k, v)
    return a


def _batch_norm(a, m, v):
    return F.batch_norm(a, m, v, training=True), m, v


CASES = {
    **{f"{u}": (getattr(torch, u), P / 10 if u in ("asin", "atanh") else P + (u == "acosh")) for u in UNARY},
    **{f"{b}": (getattr(torch, b), P, Y.abs() + 0.2) for b in BINARY},
    **{f"{b} of integers": (getattr(torch, b), K, J) for b in BINARY if b != "pow"},
    **{
        f"{b} with a number": (lambda a, f=getattr(torch, b): f(a, 2), P)
        for b in BINARY
        if b not in ("maximum", "minimum", "atan2", "logical_and", "logical_or")
    },
    **{a: (getattr(F, a) if "softmax" not in a else lambda x, f=getattr(F, a): f(x, -1), X) for a in ACTIVATIONS},
    **{f"{r} over a dimension": (lambda a, f=getattr(torch, r): f(a, 1), X) for r in REDUCTIONS},
    "promotion int float": (lambda a, c: a + c, K, X),
    "promotion bool int": (lambda a, c: a * c, B, K),
    "number minus": (lambda a: 1 - a, X),
    "half": (lambda a: a * 1.5, X.half()),
    "matmul half": (torch.mm, X.half(), Y.t().half()),
    "matmul bfloat16": (torch.mm, X.bfloat16(), Y.t().bfloat16()),
    "mm": (torch.mm, X, Y.t()),
    "bmm": (torch.bmm, torch.randn(2, 3, 4), torch.randn(2, 4, 5)),
    "matmul": (torch.matmul, torch.randn(2, 3, 4), torch.randn(4, 5)),
    "addmm": (torch.addmm, torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)),
    "linear": (F.linear, X, torch.randn(3, 6), torch.randn(3)),
    "sum of all": (torch.sum, X),
    "norm": (torch.norm, X),
    "all": (torch.all, B),
    "any": (lambda a: a.any(1), B),
    "topk": (lambda a: a.topk(3), X),
    "sort": (lambda a: a.sort(1), X),
    "layer norm": (lambda a, w, c: F.layer_norm(a, (6,), w, c), X, torch.randn(6), torch.randn(6)),
    "group norm": (lambda a: F.group_norm(a, 2), torch.randn(2, 4, 3, 3)),
    "batch norm": (_batch_norm, IMAGE, torch.zeros(3), torch.ones(3)),
    "conv": (lambda a, w, c: F.conv2d(a, w, c, padding=1), IMAGE, torch.randn(4, 3, 3, 3), torch.randn(4)),
    "conv transposed": (lambda a, w: F.conv_transpose2d(a, w, stride=2), IMAGE, torch.randn(3, 4, 2, 2)),
    "conv 1d": (F.conv1d, torch.randn(2, 3, 8), torch.randn(4, 3, 3)),
    "max pool": (lambda a: F.max_pool2d(a, 2), IMAGE),
    "max pool ceil": (lambda a: F.max_pool2d(a, 3, 2, 1, ceil_mode=True), IMAGE),
    "average pool": (lambda a: F.avg_pool2d(a, 2), IMAGE),
    "adaptive pool": (lambda a: F.adaptive_avg_pool2d(a, 1), IMAGE),
    "nearest": (lambda a: F.interpolate(a, scale_factor=2), IMAGE),
    "bilinear": (lambda a: F.interpolate(a, size=(7, 7), mode="bilinear"), IMAGE),
    "cat": (lambda a, c: torch.cat([a, c], 1), X, Y),
    "stack": (lambda a, c: torch.stack([a, c]), X, Y),
    "transpose": (lambda a: a.t().contiguous(), X),
    "permute": (lambda a: a.permute(2, 0, 1).contiguous(), torch.randn(2, 3, 4)),
    "slice": (lambda a: a[1:, ::2] + 1, X),
    "expand": (lambda a: a[:1].expand(4, 6) + 1, X),
    "flip": (lambda a: a.flip(1), X),
    "roll": (lambda a: a.roll(1, 0), X),
    "repeat": (lambda a: a.repeat(2, 1), X),
    "pad": (lambda a: F.pad(a, (1, 2)), X),
    "tril": (torch.tril, X),
    "triu": (torch.triu, X),
    "split": (lambda a: torch.split(a + 0, 2, 1), X),
    "empty": (lambda a: a[:0] + 1, X),
    "gather": (lambda a, k: a.gather(1, k), X, K),
    "index select": (lambda a, k: a.index_select(0, k), X, ROWS),
    "index": (lambda a, k: a[k], X, ROWS),
    "index of columns": (lambda a, k: a[:, k], X, ROWS),
    "index by mask": (lambda a, m: a[m], X, B),
    "where": (torch.where, B, X, Y),
    "masked fill": (lambda a, m: a.masked_fill(m, 3.0), X, B),
    "scatter": (lambda a, k, s: a.scatter(1, k, s), X, K, Y),
    "scatter add": (lambda a, k, s: a.scatter_add(1, k, s), X, K, Y),
    "embedding": (F.embedding, K, torch.randn(5, 3)),
    "nonzero": (torch.nonzero, B),
    "one hot": (lambda k: F.one_hot(k, 5), K),
    "unique": (torch.unique, K),
    "in place on views": (_written, X, Y),
    "index put": (_index_put, X, ROWS, torch.randn(2, 6)),
    "fill": (lambda a: a.fill_(3), X),
    "zero": (lambda a: a.zero_(), X),
    "masked fill in place": (lambda a, m: a.masked_fill_(m, 0.0), X, B),
    "cast to half": (lambda a: a.half(), X),
    "cast to int": (lambda a: (a * 3).int(), X),
    "cast to bool": (lambda a: a.bool(), X),
    "cast of int": (lambda a: a.float(), K),
    "mse": (F.mse_loss, X, Y),
    "l1": (F.l1_loss, X, Y),
    "cross entropy": (F.cross_entropy, X, torch.randint(0, 6, (4,))),
    "bce": (F.binary_cross_entropy_with_logits, X, B.float()),
    "smooth l1": (F.smooth_l1_loss, X, Y),
    "addcmul": (lambda a, c: torch.addcmul(a, a, c, value=0.5), X, Y),
    "lerp": (lambda a, c: torch.lerp(a, c, 0.3), X, Y),
    "foreach": (lambda a, c: torch._foreach_mul([a, c], [2.0, 3.0]), X, Y),
    "attention": (F.scaled_dot_product_attention, *(torch.randn(1, 2, 4, 16) for _ in range(3))),
    "attention causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *(torch.randn(1, 2, 4, 16).half() for _ in range(3)),
    ),
    "einsum": (lambda a, c: torch.einsum("ij,kj->ik", a, c), X, Y),
    "bitwise": (lambda a, c: (a & c) | (a ^ 1), K, J),
    "number of a tensor": (lambda a: torch.tensor(a.sum().item()), K),
}


def _same(expected, got, name):
    if isinstance(expected, (tuple, list)):
        assert len(expected) == len(got)
        for a, b in zip(expected, got):
            _same(a, b, name)
        return
    assert expected.shape == got.shape
    assert expected.dtype == got.dtype
    loose = expected.dtype in (torch.half, torch.bfloat16) or "half" in name
    tolerance = 2e-2 if loose else 1e-4
    torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_operator(name):
    fn, *args = CASES[name]
    expected = fn(*[a.clone() for a in args])
    _same(expected, fn(*[a.npu() for a in args]), name)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(5, device=d),
        lambda d: torch.arange(0, 1, 0.25, device=d),
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(2, dtype=torch.int64, device=d),
        lambda d: torch.full((2,), 3.5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
    ],
)
def test_making(make):
    torch.testing.assert_close(make("npu").cpu(), make("cpu"))


@pytest.mark.parametrize(
    ("make", "mean", "within"),
    [
        (lambda: torch.randn(4000, device="npu"), 0.0, 0.1),
        (lambda: torch.rand(4000, device="npu"), 0.5, 0.05),
        (lambda: torch.randint(0, 9, (4000,), device="npu"), 4.0, 0.2),
        (lambda: torch.randperm(100, device="npu"), 49.5, 0.0),
        (lambda: torch.bernoulli(torch.full((4000,), 0.3, device="npu")), 0.3, 0.05),
        (lambda: F.dropout(torch.ones(4000, device="npu")), 1.0, 0.1),
    ],
)
def test_random_numbers(make, mean, within):
    torch.npu.manual_seed(1)
    first, second = make().cpu(), make().cpu()
    torch.npu.manual_seed(1)
    assert torch.equal(first, make().cpu())
    assert not torch.equal(first, second)
    assert abs(first.double().mean().item() - mean) <= within


def test_training_steps():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6))
    twin = copy.deepcopy(model).npu()
    for net, device in ((model, "cpu"), (twin, "npu")):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(net(X.to(device)), torch.tensor([0, 1, 2, 3]).to(device)).backward()
            optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-3, atol=1e-3)


def test_attention_gradient():
    inputs = [torch.randn(2, 2, 5, 16, requires_grad=True) for _ in range(3)]
    twins = [t.detach().half().npu().requires_grad_() for t in inputs]
    F.scaled_dot_product_attention(*inputs, is_causal=True).sum().backward()
    F.scaled_dot_product_attention(*twins, is_causal=True).sum().backward()
    for a, b in zip(inputs, twins):
        torch.testing.assert_close(b.grad.cpu().float(), a.grad, rtol=1e-2, atol=1e-2)
