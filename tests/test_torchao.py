"""What torchao makes of models, with weights of int8 and int4, and what ``convert_pt2e`` leaves: eager's numbers.

``make torchao-test`` fetches torchao and runs this; it is no dependency.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchair
from tair_debug.observer import Silent, observing

pytest.importorskip("torchao", reason="torchao is not installed; `make torchao-test` fetches it")
from torchao import quantization as ao
from torchao.quantization import qat
from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack


class Block(nn.Module):
    """A feed-forward part and attention, as language models have them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64, bias=False)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Image(nn.Module):
    """Convolutions with normalisation, pooling and a sum, as models of images have them."""

    def __init__(self):
        super().__init__()
        self.first, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.bn(self.first(x)))
        x = F.max_pool2d(F.relu(x + self.second(x)), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Table(nn.Module):
    """A look-up before a linear layer."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(32, 64), nn.Linear(64, 64)

    def forward(self, at):
        return self.head(self.table(at)).relu()


def block(dtype=torch.float32):
    torch.manual_seed(0)
    return Block().eval().to(dtype)


def tokens(rows=5, dtype=torch.float32):
    return torch.randn(2, rows, 64, generator=torch.Generator().manual_seed(rows)).to(dtype)


def image(count=2):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count))


def check(model, batches, *, dynamic, tolerance=1e-4):
    torch._dynamo.reset()
    call = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)
    with torch.no_grad(), torchair.record_compilation() as reports:
        for given in batches:
            torch.testing.assert_close(call(given), model(given), rtol=tolerance, atol=tolerance)
    assert reports


# --- weights ---------------------------------------------------------------------------------------------------------

WEIGHTS = {
    "int8": lambda: ao.Int8WeightOnlyConfig(),
    "int8, one scale": lambda: ao.Int8WeightOnlyConfig(granularity=PerTensor()),
    "int8 by groups": lambda: ao.Int8WeightOnlyConfig(granularity=PerGroup(32)),
    "int8 both": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
    "int8 both, by tensor": lambda: ao.Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()),
    "int8 both, with zero points": lambda: ao.Int8DynamicActivationInt8WeightConfig(
        act_mapping_type=ao.MappingType.ASYMMETRIC
    ),
    "int4 by groups": lambda: ao.IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
    "int4 by rows": lambda: ao.IntxWeightOnlyConfig(torch.int4, PerAxis(0)),
    "int2 by groups": lambda: ao.IntxWeightOnlyConfig(torch.int2, PerGroup(32)),
    "int8 and int4": lambda: ao.Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)),
    "int8 and int8 by rows": lambda: ao.Int8DynamicActivationIntxWeightConfig(torch.int8, PerAxis(0)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name, dtype, dynamic):
    model = block(dtype)
    ao.quantize_(model, WEIGHTS[name]())
    tolerance = 1e-4 if dtype == torch.float32 else 4e-2
    check(model, [tokens(n, dtype) for n in (5, 7)], dynamic=dynamic, tolerance=tolerance)


class Graphs(Silent):
    """Keeps the names of GE operators."""

    def __init__(self):
        self.names: set[str] = set()

    def ge_graph(self, stage, label, graph):
        self.names |= {n.op for n in graph.nodes}


def test_products_of_int8_weights_and_activations_are_products_of_int8():
    model, seen = block(), Graphs()
    ao.quantize_(model, WEIGHTS["int8 both"]())
    with observing(seen):
        check(model, [tokens()], dynamic=False)
    assert "QuantBatchMatmulV3" in seen.names
    assert "MatMulV2" not in seen.names


# --- convert_pt2e ----------------------------------------------------------------------------------------------------

QUANTIZERS = {
    "x86": lambda: x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config()),
    "x86 dynamic": lambda: x86.X86InductorQuantizer().set_global(
        x86.get_default_x86_inductor_quantization_config(is_dynamic=True)
    ),
    "xnnpack": lambda: xnnpack.XNNPACKQuantizer().set_global(xnnpack.get_symmetric_quantization_config()),
    "xnnpack by channel": lambda: xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    ),
    "xnnpack dynamic": lambda: xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True)
    ),
}
MODELS: dict[str, tuple[Any, Any]] = {
    "tokens": (Block, lambda: [tokens(), tokens() * 0.7]),
    "images": (Image, lambda: [image(), image() * 0.7]),
    "a look-up": (Table, lambda: [torch.arange(12).view(3, 4), torch.arange(20, 32).view(3, 4)]),
}


@pytest.mark.parametrize("fold", [True, False], ids=["folded", "with weights as they were"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_converted(quantizer, model, fold):
    make, inputs = MODELS[model]
    torch.manual_seed(0)
    check(converted(quantizer, make(), inputs(), fold), inputs(), dynamic=False)


def converted(quantizer, model, batches, fold=True):
    torch.manual_seed(0)
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model.eval(), (batches[0],)).module(), QUANTIZERS[quantizer]())
        for given in batches:
            prepared(given)
        return convert_pt2e(prepared, fold_quantize=fold)


def test_pairs_become_quantised_operators():
    """Of a quantiser to int8; what it has to bytes, as the one for x86 does, stays a product of floats."""
    found = {}
    for quantizer in ("xnnpack by channel", "x86"):
        seen = Graphs()
        with observing(seen):
            check(converted(quantizer, Block(), [tokens()]), [tokens()], dynamic=False)
        found[quantizer] = "QuantBatchMatmulV3" in seen.names
    assert found == {"xnnpack by channel": True, "x86": False}


@pytest.mark.parametrize("quantizer", ["x86", "xnnpack by channel"])
def test_converted_with_open_sizes(quantizer):
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(Table().eval(), (torch.arange(12).view(3, 4),), dynamic_shapes=({0: rows},))
        prepared = prepare_pt2e(program.module(), QUANTIZERS[quantizer]())
        prepared(torch.arange(12).view(3, 4))
    check(convert_pt2e(prepared), [torch.arange(4 * n).view(n, 4) for n in (3, 5, 8)], dynamic=True)


def test_training_with_fake_quantisation():
    """Steps of ``prepare_qat_pt2e``: gradients and the observers' ranges; then what ``convert_pt2e`` makes of it.

    The first step, which gives the ranges of channels their sizes, is eager's: ``aot_eager`` cannot compile it either.
    """
    torch.manual_seed(0)
    quantizer = xnnpack.XNNPACKQuantizer().set_global(
        xnnpack.get_symmetric_quantization_config(is_per_channel=True, is_qat=True)
    )
    prepared = prepare_qat_pt2e(torch.export.export(Image(), (image(),)).module(), quantizer)
    prepared(image())
    found, trained = [], []
    for compiled in (False, True):
        model = copy.deepcopy(prepared)
        torch._dynamo.reset()
        call = torch.compile(model, backend=torchair.get_npu_backend()) if compiled else model
        for factor in (1.0, 1.5):
            model.zero_grad()
            call(image() * factor).square().sum().backward()
        found.append([*(p.grad for p in model.parameters()), *model.buffers()])
        trained.append(model)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    check(convert_pt2e(trained[1]), [image()], dynamic=False)


@pytest.mark.parametrize("name", ["int4 weights", "int8 and int4"])
def test_training_by_torchaos_modules(name):
    weight = qat.IntxFakeQuantizeConfig(torch.int4, group_size=32, is_symmetric=True)
    tokenwise = qat.IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    model = block()
    ao.quantize_(
        model,
        qat.QATConfig(
            activation_config=tokenwise if name == "int8 and int4" else None, weight_config=weight, step="prepare"
        ),
    )
    found = []
    torch._dynamo.reset()
    for call in (model, torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True)):
        model.zero_grad()
        out = call(tokens())
        out.square().mean().backward()
        found.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
