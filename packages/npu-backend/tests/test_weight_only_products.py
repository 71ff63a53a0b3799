"""Products of 16 bits with weights of int8, as libraries and people write them: one operator, exact to its rounding."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchair

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators
ops = torch.ops.quantized_decomposed
HALVES = (torch.bfloat16, torch.float16)
N, K, GROUP = 48, 96, 32
INT8, INT4 = (-128, 127, torch.int8), (-8, 7, torch.int8)


class Layer(nn.Module):
    """Weights of every kind, and one way to use them.

    Attributes:
        way: ``f(layer, x)``.
    """

    def __init__(self, way, dtype):
        super().__init__()
        g = torch.Generator().manual_seed(2)
        self.way = way
        self.register_buffer("w", torch.randint(-128, 128, (N, K), generator=g, dtype=torch.int8))
        self.register_buffer("w4", torch.randint(-8, 8, (N, K), generator=g, dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(N, generator=g) / 64 + 0.01).to(dtype))
        self.register_buffer("scales", (torch.rand(N, K // GROUP, generator=g) / 8 + 0.01).to(dtype))
        self.register_buffer("zero", torch.randint(-9, 9, (N,), generator=g))
        self.register_buffer("zeros", torch.randint(-3, 3, (N, K // GROUP), generator=g))
        self.register_buffer("bias", torch.randn(N, generator=g).to(dtype))

    def forward(self, x):
        return self.way(self, x)


def wide(x):
    """The type to dequantise into: that of x; so that float64 shows the function itself."""
    return x.dtype


def groups(m, x, bias=None):
    w = m.w4.to(wide(x)).view(N, -1, GROUP) * m.scales.to(wide(x))[..., None]
    return F.linear(x, w.view(N, K), bias)


def shifted_groups(m, x):
    w = (m.w4.view(N, -1, GROUP) - m.zeros[..., None]).to(wide(x)) * m.scales.to(wide(x))[..., None]
    return F.linear(x, w.view(N, K))


def by_channel(m, x, zero=True):
    zeros = m.zero if zero else torch.zeros_like(m.zero)
    w = ops.dequantize_per_channel(m.w, m.scale.to(wide(x)), zeros, 0, *INT8, out_dtype=wide(x))
    return F.linear(x, w, m.bias.to(wide(x)))


def of_float32_scales(m, x):
    w = ops.dequantize_per_channel(m.w, m.scale.float(), m.zero, 0, *INT8, out_dtype=wide(x))
    return F.linear(x, w)


def tiny_scales(m, x):
    """Of float32: float16 has no place for them."""
    w = ops.dequantize_per_channel(m.w, m.scale.float() * 1e-6, m.zero, 0, *INT8, out_dtype=wide(x))
    return F.linear(x, w)


def by_group(m, x):
    return F.linear(x, ops.dequantize_per_channel_group(m.w4, m.scales.to(wide(x)), m.zeros, *INT4, GROUP, wide(x)))


WAYS = {
    "by hand": lambda m, x: F.linear(x, m.w.to(wide(x)) * m.scale.to(wide(x))[:, None], m.bias.to(wide(x))),
    "without bias": lambda m, x: x @ (m.w.to(wide(x)) * m.scale.to(wide(x))[:, None]).t(),
    "one scale": lambda m, x: F.linear(x, m.w.to(wide(x)) * m.scale.to(wide(x))[0]),
    "turned before": lambda m, x: x @ (m.w.t().contiguous().to(wide(x)) * m.scale.to(wide(x))),
    "scaled after": lambda m, x: F.linear(x, m.w.to(wide(x))) * m.scale.to(wide(x)),
    "scaled after, with a bias": lambda m, x: F.linear(x, m.w.to(wide(x))) * m.scale.to(wide(x)) + m.bias.to(wide(x)),
    "one number after": lambda m, x: F.linear(x, m.w.to(wide(x))) * m.scale.to(wide(x))[:1],
    "groups": groups,
    "groups and a bias": lambda m, x: groups(m, x, m.bias.to(wide(x))),
    "shifted groups": shifted_groups,
    "shifted in 16 bits": lambda m, x: F.linear(
        x, (m.w.to(wide(x)) - m.zero[:, None].to(wide(x))) * m.scale.to(wide(x))[:, None]
    ),
    "dequantize_per_channel": by_channel,
    "dequantize_per_channel around zero": lambda m, x: by_channel(m, x, zero=False),
    "dequantize_per_channel_group": by_group,
    "one scale, zeros of channels": lambda m, x: F.linear(
        x, (m.w - m.zero[:, None]).to(wide(x)) * m.scale.to(wide(x))[0]
    ),
}
ROWS = [(name, dtype) for name in WAYS for dtype in HALVES]


def compiled(way, dtype, recording, *lead, dynamic=False):
    layer = Layer(way, dtype)
    torch._dynamo.reset()
    call = torch.compile(layer, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)
    with recording() as seen, torch.no_grad():
        got = call(rows(dtype, *lead))
    return layer, call, got, [n.op for n in seen.last_graph().nodes]


def rows(dtype, *lead):
    return torch.randn(*lead, K, generator=torch.Generator().manual_seed(len(lead))).to(dtype)


def check(layer, got, x):
    """No further from the exact result than a rounding of weights and one of the result."""
    exact, dtype = layer(x.double()), x.dtype
    size = x.double().abs() @ torch.ones(K, N, dtype=torch.float64) * 128 * 0.03
    assert got.dtype == dtype
    assert got.shape == exact.shape
    within = torch.finfo(dtype).eps * (exact.abs() + 0.1 * size)
    assert ((got.double() - exact).abs() <= within).all()
    torch.testing.assert_close(got, layer(x), rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps * 20)


@pytest.mark.night(rows=6)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("name", "dtype"), ROWS, ids=[f"{n}-{str(d)[6:]}" for n, d in ROWS])
def test_one_operator(name, dtype, dynamic, recording):
    layer, call, got, made = compiled(WAYS[name], dtype, recording, 2, 3, dynamic=dynamic)
    assert made.count("WeightQuantBatchMatmulV2") == 1
    assert "MatMulV2" not in made
    assert "Mul" not in made or dynamic  # sizes are multiplied, too
    check(layer, got, rows(dtype, 2, 3))
    with torch.no_grad():
        check(layer, call(rows(dtype, 4, 5)), rows(dtype, 4, 5))


def groups_of_float32_scales(m, x):
    """Shifted in 16 bits and scaled in float32, as torchao does it."""
    shifted = m.w4.view(N, -1, GROUP).to(wide(x)) - m.zeros[..., None].to(wide(x))
    return F.linear(x, (shifted * m.scales.float()[..., None]).view(N, K).to(wide(x)))


@pytest.mark.parametrize("way", [of_float32_scales, groups_of_float32_scales], ids=lambda f: f.__name__)
def test_scales_of_float32_fit_into_bfloat16(way, recording):
    layer, _, got, made = compiled(way, torch.bfloat16, recording, 4)
    assert made.count("WeightQuantBatchMatmulV2") == 1
    check(layer, got, rows(torch.bfloat16, 4))


def test_scales_of_float32_may_not_fit_into_float16(recording):
    layer, _, got, made = compiled(tiny_scales, torch.float16, recording, 4)
    assert "WeightQuantBatchMatmulV2" not in made
    torch.testing.assert_close(got, layer(rows(torch.float16, 4)))


def test_the_operator_of_packed_products(recording):
    """torch's own, which int8 quantisers for CPUs call."""
    way = lambda m, x: torch.ops.aten._weight_int8pack_mm(x, m.w, m.scale)  # noqa: E731
    for dtype in HALVES:
        layer, _, got, made = compiled(way, dtype, recording, 5)
        assert made.count("WeightQuantBatchMatmulV2") == 1
        exact = rows(dtype, 5).double() @ (layer.w.double() * layer.scale.double()[:, None]).t()
        assert ((got.double() - exact).abs() <= torch.finfo(dtype).eps * exact.abs() + 1e-4).all()


def short_groups(m, x):
    w = m.w4.to(wide(x)).view(N, -1, 16) * m.scales.to(wide(x)).repeat_interleave(2, 1)[..., None]
    return F.linear(x, w.view(N, K))


def kept_weight(m, x):
    w = m.w.to(wide(x)) * m.scale.to(wide(x))[:, None]
    return F.linear(x, w) + w.sum()


def unsigned(m, x):
    return F.linear(x, m.w.to(torch.uint8).to(wide(x)) * m.scale.to(wide(x))[:, None])


def scales_of_summed(m, x):
    return F.linear(x, m.w.to(wide(x)) * m.scale.to(wide(x)).repeat(2))


def shifted_by_fractions(m, x):
    return F.linear(x, (m.w.to(wide(x)) - m.scale.to(wide(x))[:, None]) * m.scale.to(wide(x))[:, None])


def chosen_rows(m, x):
    return F.linear(x[x[:, 0] > 9], m.w.to(wide(x)) * m.scale.to(wide(x))[:, None])


OTHERS = [short_groups, kept_weight, unsigned, scales_of_summed, shifted_by_fractions, chosen_rows]


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)  # newer torch does so by itself
@pytest.mark.parametrize("way", OTHERS, ids=lambda f: f.__name__)
def test_others_stay(way, recording):
    """Groups that GE does not take, a weight that somebody else reads, other functions; rows that may be none."""
    layer, _, got, made = compiled(way, torch.bfloat16, recording, 4)
    assert "WeightQuantBatchMatmulV2" not in made
    torch.testing.assert_close(got, layer(rows(torch.bfloat16, 4)), rtol=2e-2, atol=1.0)


def test_float32_stays(recording):
    layer, _, got, made = compiled(WAYS["by hand"], torch.float32, recording, 4)
    assert "WeightQuantBatchMatmulV2" not in made
    torch.testing.assert_close(got, layer(rows(torch.float32, 4)))
