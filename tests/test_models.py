"""Real models through torch.compile on the embedded engine equal eager: forward, backward, static and dynamic."""

import contextlib
import copy

import pytest
import torch

import torchair
from tools import models

# float32 on the same kernels; what differs is the order of sums inside fused operators.
ATOL = RTOL = 1e-4


def compile_model(model, *, dynamic=False):
    return torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)


def no_recompilation():
    """Inside, a call that needs a new graph is an error."""
    return torch._dynamo.config.patch(error_on_recompile=True)


def assert_same(got, want):
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        torch.testing.assert_close(g, w, atol=ATOL, rtol=RTOL)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.ZOO)
def test_static(name):
    case = models.ZOO[name]("tiny")
    compiled = compile_model(case.model)
    with torch.no_grad(), no_recompilation():
        want = case.model(*case.inputs)
        assert_same(compiled(*case.inputs), want)
        assert_same(compiled(*case.inputs), want)


@pytest.mark.night(rows=9)
@pytest.mark.slow
@pytest.mark.parametrize("name", list(models.ZOO))
def test_dynamic_compiles_once_for_all_sizes(name):
    case = models.ZOO[name]("tiny")
    for index, dims in case.free.items():
        for dim in dims:
            torch._dynamo.mark_dynamic(case.inputs[index], dim)
    compiled = compile_model(case.model, dynamic=True)
    with torch.no_grad(), no_recompilation():
        assert_same(compiled(*case.inputs), case.model(*case.inputs))
        for size in (5, 9, 14):
            inputs = case.resize(size)
            assert_same(compiled(*inputs), case.model(*inputs))


@pytest.mark.slow
def test_llama_decodes_with_growing_cache_in_one_compile():
    decoder, prompt = models.llama_decoder("tiny", layers=2)
    compiled = compile_model(decoder, dynamic=True)
    with torch.no_grad():
        want, *want_cache = decoder(prompt)
        got, *got_cache = compiled(prompt)
        assert_same((got, *got_cache), (want, *want_cache))
        for step in range(16):
            token = want.argmax(-1, keepdim=True)
            want, *want_cache = decoder(token, *want_cache)
            with no_recompilation() if step else contextlib.nullcontext():
                got, *got_cache = compiled(token, *got_cache)
            assert_same((got, *got_cache), (want, *want_cache))


def train_step(model, inputs, labels, compiled):
    """Forward, cross entropy, backward, SGD: loss, gradients, weights and buffers afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    (logits,) = compiled(*inputs)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.step()
    return loss.detach(), gradients, copy.deepcopy(model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_resnet_training_step(dynamic):
    case = models.resnet50("tiny")
    eager, ours = case.model.train(), copy.deepcopy(case.model).train()
    inputs = case.resize(3)
    labels = torch.tensor([1, 0, 7])
    want = train_step(eager, inputs, labels, eager)
    compiled = compile_model(ours, dynamic=dynamic)
    with no_recompilation():
        got = train_step(ours, inputs, labels, compiled)
    torch.testing.assert_close(got, want, atol=ATOL, rtol=RTOL)


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "vit", "gpt2", "t5", "clip"])
def test_gradients(name):
    case = models.ZOO[name]("tiny")
    ours = copy.deepcopy(case.model)
    compiled = compile_model(ours)
    for model, call in ((case.model, case.model), (ours, compiled)):
        sum(o.square().mean() for o in call(*case.inputs)).backward()
        del model
    for (name_, want), (_, got) in zip(case.model.named_parameters(), ours.named_parameters(), strict=True):
        assert (want.grad is None) == (got.grad is None), name_
        if want.grad is not None:
            torch.testing.assert_close(got.grad, want.grad, atol=ATOL, rtol=1e-3, msg=lambda m: f"{name_}: {m}")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_half_precision(name, dtype):
    case = models.ZOO[name]("tiny")
    model = case.model.to(dtype)
    with torch.no_grad():
        want = model(*case.inputs)
        got = compile_model(model)(*case.inputs)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype == dtype
        scale = w.float().abs().max()
        eps = torch.finfo(dtype).eps
        assert (g.float() - w.float()).abs().max() <= 8 * eps * scale


@pytest.mark.slow
def test_sentence_encoder_with_real_weights():
    case = models.sentence_encoder()
    with torch.no_grad():
        want = case.model(*case.inputs)
        got = compile_model(case.model, dynamic=True)(*case.inputs)
    assert_same(got, want)
    similarity = got[0] @ got[0].T
    assert similarity[0, 1] > 0.4
    assert similarity[2, 3] > 0.4
    assert similarity[0, 2] < 0.2


@pytest.mark.slow
def test_pitch_network_with_real_weights():
    case, truth = models.pitch_network("tiny")
    with torch.no_grad():
        want = case.model(*case.inputs)
        got = compile_model(case.model)(*case.inputs)
    torch.testing.assert_close(got, want, atol=ATOL, rtol=RTOL)
    inner = slice(5, -5)  # the first and last frames hold padding
    cents = 1200 * torch.log2(models.pitch_in_hz(got)[inner] / truth[inner])
    assert cents.abs().median() < 20
