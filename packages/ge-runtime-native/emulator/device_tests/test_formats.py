"""Weights in FRACTAL_NZ: what computes with them, eagerly and in graphs, gives what plain ones give."""

from __future__ import annotations

import pytest
import torch
import torch_npu

import torchair

NZ = 29
SIZES = [(40, 20), (16, 16), (64, 33), (2, 40, 24)]


@pytest.fixture(autouse=True)
def internal_formats():
    torch_npu.npu.config.allow_internal_format = True
    yield
    torch_npu.npu.config.allow_internal_format = False


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_there_and_back(size, dtype):
    x = torch.arange(torch.Size(size).numel()).reshape(size).remainder(100).to(dtype)
    cast = torch_npu.npu_format_cast(x.npu(), NZ)
    assert int(torch_npu.get_npu_format(cast)) == NZ
    assert torch.equal(cast.cpu(), x)
    assert torch.equal(torch_npu.npu_format_cast(cast, 2).cpu(), x)


@pytest.mark.parametrize("mode", ["max-autotune", "eager"])
def test_a_product_with_such_a_weight(mode):
    def fn(x, w):
        return torch.mm(x, w) + 1

    x, w = torch.rand(3, 40).half(), torch.rand(40, 20).half()
    run = fn if mode == "eager" else torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True)
    cast = torch_npu.npu_format_cast(w.npu(), NZ)
    for weight in (cast, w.npu(), cast):  # a graph follows when the layout changes
        torch.testing.assert_close(run(x.npu(), weight).cpu(), fn(x, w), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_whose_weights_were_cast(frozen):
    model = torch.nn.Sequential(torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 20)).half()
    x = torch.rand(3, 40).half()
    with torch.no_grad():
        want = model(x)
        model = model.npu()
        torchair.use_internal_format_weight(model)
        torch.testing.assert_close(model(x.npu()).cpu(), want, rtol=2e-3, atol=1e-3)
        config = torchair.CompilerConfig()
        config.experimental_config.frozen_parameter = frozen
        compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(compiled(x.npu()).cpu(), want, rtol=2e-3, atol=1e-3)
