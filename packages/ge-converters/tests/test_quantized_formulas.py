"""Formulas of quantised programs: the same bits as torch's own operators, types included."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers the operators
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.decompose.formulas import quantized
from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering import lower

aten = torch.ops.aten
ops = torch.ops.quantized_decomposed
SEED = torch.Generator().manual_seed(4)
X = torch.randn(4, 8, generator=SEED) * 3
TIES = (torch.arange(-12, 12) / 2).reshape(4, 6)  # what is rounded to even
SCALES = torch.rand(8, generator=SEED) * 0.1 + 0.01
ZEROS = torch.randint(-3, 3, (8,), generator=SEED)
ROWS = torch.rand(4, 1, generator=SEED) * 0.1 + 0.01
GROUPS = torch.rand(4, 2, generator=SEED) * 0.1 + 0.01
I8, U8 = torch.int8, torch.uint8
INTS = torch.randint(-128, 127, (4, 8), dtype=I8, generator=SEED)
BYTES = torch.randint(0, 255, (4, 8), dtype=U8, generator=SEED)


def one(value, dtype=None):
    return torch.tensor(value, dtype=dtype)


CASES = [
    *(("quantize_per_tensor.default", (x, 0.05, 3, -128, 127, I8)) for x in (X, X.half(), X.bfloat16(), X[:0])),
    ("quantize_per_tensor.default", (X, 0.05, 3, 0, 255, U8)),
    ("quantize_per_tensor.default", (X, 1e-3, 0, -32768, 32767, torch.int16)),
    ("quantize_per_tensor.default", (TIES, 1.0, 1, -128, 127, I8)),
    ("quantize_per_tensor.default", (X * 100, 0.05, 0, -127, 127, I8)),
    ("quantize_per_tensor.tensor", (X, one(0.05), one(3), -128, 127, I8)),
    ("quantize_per_tensor.tensor", (X, one([0.05], torch.float64), one([3]), 0, 255, U8)),
    ("quantize_per_tensor.tensor2", (X, one(0.05), one(3), one(0), one(255), U8)),
    ("dequantize_per_tensor.default", (INTS, 0.05, 3, -128, 127, I8)),
    ("dequantize_per_tensor.default", (BYTES, 0.05, 3, 0, 255, U8)),
    ("dequantize_per_tensor.tensor", (INTS, one(0.05), one(3), -128, 127, I8)),
    ("dequantize_per_tensor.tensor", (BYTES, one([0.05], torch.float64), one([3]), 0, 255, U8)),
    ("dequantize_per_tensor.tensor2", (BYTES, one(0.05), one(3), one(0), one(255), U8)),
    ("quantize_per_channel.default", (X, SCALES, ZEROS, 1, -128, 127, I8)),
    ("quantize_per_channel.default", (X, SCALES[:4].double(), ZEROS[:4], 0, 0, 255, U8)),
    ("dequantize_per_channel.default", (INTS, SCALES, ZEROS, 1, -128, 127, I8)),
    ("dequantize_per_channel.default", (INTS, SCALES[:4].double(), None, 0, -128, 127, I8)),
    ("quantize_per_token.default", (X, ROWS, torch.zeros(4, 1), -128, 127, I8)),
    ("quantize_per_token.default", (X, ROWS.double(), ZEROS[:4, None], -128, 127, I8)),
    ("dequantize_per_token.default", (INTS, ROWS, torch.zeros(4, 1), -128, 127, I8, torch.float32)),
    ("dequantize_per_token.default", (INTS, ROWS.double(), ZEROS[:4, None], -128, 127, I8, torch.float16)),
    ("quantize_per_channel_group.default", (X, GROUPS, torch.zeros(4, 2), -8, 7, I8, 4)),
    ("dequantize_per_channel_group.default", (INTS, GROUPS, torch.zeros(4, 2), -8, 7, I8, 4, torch.float32)),
    ("dequantize_per_channel_group.default", (INTS, GROUPS, None, -8, 7, I8, 4, torch.bfloat16)),
    *(("choose_qparams.tensor", (x, 0, 255, 1e-5, U8)) for x in (X, X.abs() + 1, -X.abs() - 1, X * 0)),
    ("choose_qparams.tensor", (X, -128, 127, 1e-5, I8)),
    *(("choose_qparams_symmetric.tensor", (X, *rest)) for rest in ((-127, 127, 1e-5, I8), (0, 255, 1e-5, U8))),
    *(("choose_qparams_per_token.default", (x, I8)) for x in (X, X.half(), X * 0)),
    *(("choose_qparams_per_token_asymmetric.default", (x, I8)) for x in (X, X + 9, X * 0)),
    ("convert_element_type.no_fuse", (X, torch.float16)),
]


def op_of(namespace, name):
    packet, overload = name.split(".")
    return getattr(getattr(namespace, packet), overload)


def equal(got, want):
    many = isinstance(want, tuple)
    for g, w in zip(got if many else (got,), want if many else (want,), strict=True):
        torch.testing.assert_close(g, w, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "args"), CASES)
def test_same_bits_as_the_operator(name, args):
    equal(quantized.QUANTIZED[name](*args), op_of(ops, name)(*args))


def test_every_formula_has_a_case():
    unseen = set(quantized.QUANTIZED) - {name for name, _ in CASES}
    assert unseen == {"fake_quant_per_channel.default", "_choose_qparams_per_token_asymmetric_impl.default"}
    for name in quantized.QUANTIZED:  # an operator that torch does not know has no case that could fail
        assert op_of(ops, name) in quantized.decompositions()


def test_a_channel_s_fake_quantisation():
    got = quantized.QUANTIZED["fake_quant_per_channel.default"](X, SCALES, ZEROS, 1, -128, 127)
    equal(got, ops.fake_quant_per_channel(X, SCALES, ZEROS, 1, -128, 127))


FAKED = [
    *(("fake_quantize_per_tensor_affine_cachemask.default", (x, 0.05, 3, -128, 127)) for x in (X, X.half(), X * 9)),
    ("fake_quantize_per_tensor_affine_cachemask.default", (TIES, 1.0, 1, -3, 4)),
    *(
        ("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default", (X * 9, at, shift, one([on]), -128, 127))
        for at, shift in ((one(0.05), one(3, torch.int32)), (one([0.07]), one([-4], torch.int32)))
        for on in (0, 1)
    ),
    ("fake_quantize_per_channel_affine_cachemask.default", (X * 3, SCALES, ZEROS.int(), 1, -128, 127)),
    ("fake_quantize_per_channel_affine_cachemask.default", (X * 3, SCALES[:4], ZEROS[:4].float() / 2, 0, 0, 255)),
]


@pytest.mark.parametrize(("name", "args"), FAKED)
def test_fake_quantisation(name, args):
    equal(quantized.FORMULAS[name](*args), op_of(aten, name)(*args))


def test_a_graph_of_them_runs(engine):
    def fn(x, scale, shift):
        held = ops.quantize_per_tensor.tensor(x, scale, shift, -128, 127, I8)
        back = ops.dequantize_per_tensor.tensor(held, scale, shift, -128, 127, I8)
        return ops.quantize_per_channel(back, SCALES, ZEROS, 1, 0, 255, U8)

    args = (X, one(0.05), one(3))
    lowered = lower(make_fx(fn, decomposition_table(), tracing_mode="fake", _allow_non_fake_inputs=True)(*args))
    made = engine.compile(lowered.graph, {}).run(list(args))
    equal(made[lowered.outputs[0].ge_index], fn(*args))
