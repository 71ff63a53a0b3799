"""Products of dequantised values become products of int8 values, with eager's numbers; others stay."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.decompose.table import decomposition_table
from tair_testing.compiling import compiled
from torchair.passes.quantised_products import FuseQuantisedProducts

pytest.importorskip("torch.ao.quantization.fx._decomposed")  # registers the operators
ops = torch.ops.quantized_decomposed
aten = torch.ops.aten
INT8 = (-128, 127, torch.int8)


def weights(w, scales, zeros):
    return ops.dequantize_per_channel(w, scales, zeros, 0, *INT8)


def fixed(x, w, scales, zeros, bias):
    q = ops.quantize_per_tensor(x, 0.05, 3, *INT8)
    return F.linear(ops.dequantize_per_tensor(q, 0.05, 3, *INT8), weights(w, scales, zeros), bias)


def around_zero(x, w, scales, zeros, bias):
    q = ops.quantize_per_tensor(x, 0.05, 0, *INT8)
    w = ops.dequantize_per_tensor(w, 0.02, 0, *INT8)
    return F.linear(ops.dequantize_per_tensor(q, 0.05, 0, *INT8), w)


def chosen(x, w, scales, zeros, bias):
    scale, zero = ops.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    q = ops.quantize_per_tensor.tensor(x, scale, zero, *INT8)
    return F.linear(ops.dequantize_per_tensor.tensor(q, scale, zero, *INT8), weights(w, scales, zeros), bias)


def by_token(x, w, scales, zeros, bias):
    s = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
    z = torch.arange(-2, s.numel() - 2).reshape(s.shape)
    q = ops.quantize_per_token(x, s, z, *INT8)
    return F.linear(ops.dequantize_per_token(q, s, z, *INT8, torch.float32), weights(w, scales, zeros), bias)


LAYERS = (fixed, around_zero, chosen, by_token)


def arguments(*lead, k=40):
    g = torch.Generator().manual_seed(1)
    w = torch.randint(-128, 128, (6, k), generator=g, dtype=torch.int8)
    x = torch.randn(*lead, k, generator=g) * 3
    return x, w, torch.linspace(0.01, 0.1, 6), torch.arange(-3, 3), torch.randn(6, generator=g)


def after(fn, *args):
    gm = make_fx(fn, decomposition_table=decomposition_table(), tracing_mode="fake")(*args)
    edits = FuseQuantisedProducts().run(gm)
    gm.graph.lint()
    gm.recompile()
    return gm, edits, [n.target for n in gm.graph.nodes]


@pytest.mark.parametrize("lead", [(4,), (2, 3)], ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_one_product_of_int8_values(layer, lead):
    args = arguments(*lead)
    gm, edits, targets = after(layer, *args)
    assert edits == 1
    assert targets.count(aten._int_mm.default) == 1
    assert aten.mm.default not in targets
    assert aten.addmm.default not in targets
    torch.testing.assert_close(gm(*args), layer(*args), rtol=1e-5, atol=1e-4)


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_compiled(layer, dynamic):
    call = compiled(layer, dynamic=dynamic)
    for rows in (2, 5):
        args = arguments(rows, 3)
        torch.testing.assert_close(call(*args), layer(*args), rtol=1e-5, atol=1e-4)


def test_extremes_do_not_overflow():
    """The largest differences of bytes, as often as a sum may have them."""
    k = 33025
    x, w = torch.full((1, k), 1e3), torch.full((6, k), -128, dtype=torch.int8)
    scales, zeros = torch.full((6,), 1e-3), torch.full((6,), 127)

    def layer(x, w, scales, zeros):
        q = ops.quantize_per_tensor(x, 1.0, -128, *INT8)
        return F.linear(ops.dequantize_per_tensor(q, 1.0, -128, *INT8), weights(w, scales, zeros))

    gm, edits, _ = after(layer, x, w, scales, zeros)
    assert edits == 1
    exact = (127 + 128) * (-128 - 127) * float(k) * 1e-3
    torch.testing.assert_close(gm(x, w, scales, zeros), torch.full((1, 6), exact))
    longer = (torch.full((1, k + 1), 1e3), torch.full((6, k + 1), -128, dtype=torch.int8), scales, zeros)
    assert after(layer, *longer)[1] == 0


def bytes_of_other_kind(x, w, scales, zeros, bias):
    q = ops.quantize_per_tensor(x, 0.05, 3, 0, 255, torch.uint8)
    return F.linear(ops.dequantize_per_tensor(q, 0.05, 3, 0, 255, torch.uint8), weights(w, scales, zeros), bias)


def one_side(x, w, scales, zeros, bias):
    return F.linear(x, weights(w, scales, zeros), bias)


def zero_points_with_fractions(x, w, scales, zeros, bias):
    s = torch.full_like(x[:, :1], 0.05)
    q = ops.quantize_per_token(x, s, s * 10, *INT8)
    return F.linear(ops.dequantize_per_token(q, s, s * 10, *INT8, torch.float32), weights(w, scales, zeros), bias)


def scales_of_columns(x, w, scales, zeros, bias):
    """Of the summed dimension: no factor of the sum."""
    q = ops.quantize_per_tensor(x, 0.05, 0, *INT8)
    columns = torch.linspace(0.01, 0.1, w.shape[1])
    w = ops.dequantize_per_channel(w, columns, torch.zeros(w.shape[1], dtype=torch.int64), 1, *INT8)
    return F.linear(ops.dequantize_per_tensor(q, 0.05, 0, *INT8), w)


def square_weight_not_turned(x, w, scales, zeros, bias):
    q = ops.quantize_per_tensor(x, 0.05, 0, *INT8)
    return ops.dequantize_per_tensor(q, 0.05, 0, *INT8) @ weights(w, scales, zeros)


@pytest.mark.parametrize(
    "layer", [bytes_of_other_kind, one_side, zero_points_with_fractions, scales_of_columns, square_weight_not_turned]
)
def test_others_stay(layer):
    args = arguments(4, k=6)
    gm, edits, _ = after(layer, *args)
    assert edits == 0
    torch.testing.assert_close(gm(*args), layer(*args))
