"""``torch.compile(...).aot_compile``: saved by torch, loaded and equal to eager; what is refused and checked."""

import copy
import functools
import json

import pytest
import torch
from torch import nn

import torchair
from ge_graph.errors import ArchiveError, ConfigError
from torchair.compiler.ahead import unpacked
from torchair.config.compiler_config import captured_config

pytestmark = pytest.mark.skipif(
    not hasattr(torch.compiler, "load_compiled_function"), reason="this torch has no aot_compile"
)


class Of(nn.Module):
    """A module of one function and parts of it."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def attention(m, x):
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return m.out(mixed.transpose(1, 2).flatten(2))


def cached(m, x):
    m.cache.add_(x.sum((0, 1)))
    return x + m.cache


def decide(m, x):
    return x.relu() if x.shape[1] > 3 else x.sigmoid()


def routed(m, x):
    weights, chosen = m.gate(x).softmax(-1).topk(2)
    spread = torch.zeros_like(x[..., :4]).scatter(-1, chosen, weights)
    return torch.stack([e(x) for e in m.experts], -1).mul(spread.unsqueeze(-2)).sum(-1)


def turned(m, x):
    place = torch.arange(x.shape[1], device=x.device).unsqueeze(-1) * m.rates
    a, b = x.chunk(2, -1)
    return torch.cat([a * place.cos() - b * place.sin(), b * place.cos() + a * place.sin()], -1)


MODELS = {
    "linear": Of(lambda m, x: m.fc(x).relu(), fc=nn.Linear(8, 3)),
    "norm": Of(lambda m, x: m.norm(x) * 2, norm=nn.LayerNorm(8)),
    "attention": Of(attention, out=nn.Linear(8, 8)),
    "convolution": Of(lambda m, x: m.conv(x.transpose(1, 2)).relu().mean(-1), conv=nn.Conv1d(8, 4, 3, padding=1)),
    "cache": Of(cached, cache=torch.zeros(8)),
    "tree": Of(lambda m, x: {"a": (x + 1, [x.sum()]), "b": x.max(-1)}),
    "half": Of(lambda m, x: (x.half() * 2, x.to(torch.bfloat16) + 1)),
    "whole numbers": Of(lambda m, x: (x * 8).to(torch.int64) // 3),
    "masks": Of(
        lambda m, x: torch.where(x > 0, x, 0),
    ),
    "sizes": Of(lambda m, x: x.new_zeros(x.shape[1], 2) + x.shape[0]),
    "a view": Of(lambda m, x: (x.transpose(0, 1), x[:, ::2], x)),
    "embedding": Of(lambda m, x: m.table((x[..., 0] * 3).long().abs() % 5), table=nn.Embedding(5, 6)),
    "batch norm": Of(lambda m, x: m.norm(x.transpose(1, 2)).sum(1), norm=nn.BatchNorm1d(8)),
    "experts": Of(routed, gate=nn.Linear(8, 4), experts=nn.ModuleList([nn.Linear(8, 3) for _ in range(4)])),
    "rotary": Of(turned, rates=torch.linspace(0.1, 1, 4)),
    "sorted": Of(lambda m, x: (x.sort(1), x.argmax(1), x.cumsum(1).flip(1))),
    "padded": Of(lambda m, x: nn.functional.pad(x, (0, 0, 1, 2), value=2.0).roll(1, 1)),
    "einsum": Of(lambda m, x: torch.einsum("bsd,btd->bst", x, x).softmax(-1)),
    "encoder": Of(lambda m, x: m.layer(x), layer=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)),
    "loop": Of(
        lambda m, x: functools.reduce(lambda h, w: (h @ w).tanh(), m.steps, x),
        steps=nn.ParameterList([torch.randn(8, 8, generator=torch.Generator().manual_seed(k)) for k in range(3)]),
    ),
}
MODES = {"GE": torchair.CompilerConfig, "captured": lambda: captured_config({})}


def compiled(model, config=None):
    backend = torchair.get_npu_backend(compiler_config=config)
    torch._dynamo.reset()
    return torch.compile(model, backend=backend, fullgraph=True)


def saved(model, inputs, path, *, config=None, dynamic=False):
    """Write what aot_compile makes. With ``dynamic=True`` of torch.compile torch itself fails for modules that hold
    numbers with a fraction, whatever the backend; sizes that are marked have no such fault."""
    if dynamic:
        torch._dynamo.mark_dynamic(inputs[0], 1)
    compiled(model, config).forward.aot_compile((inputs, {})).save_compiled_function(str(path))


def loaded(path):
    torch._dynamo.reset()
    with open(path, "rb") as file:
        return torch.compiler.load_compiled_function(file)


def inputs_of(rows):
    return (torch.randn(2, rows, 8, generator=torch.Generator().manual_seed(rows)),)


def equal(got, want):
    got, want = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want)
    assert len(got) == len(want)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.night(rows=11)
@pytest.mark.parametrize("dynamic", [False, True], ids=("static", "dynamic"))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_function_equals_eager(name, mode, dynamic, tmp_path):
    model = copy.deepcopy(MODELS[name]).eval()
    reference = copy.deepcopy(model)
    with torch.no_grad(), torchair.record_compilation() as reports:
        saved(model, inputs_of(5), tmp_path / "f", config=MODES[mode](), dynamic=dynamic)
        call = loaded(tmp_path / "f")
        assert [r.fx_nodes > 0 for r in reports] == [True, False], "a loaded graph is not compiled, and read once"
        for rows in (5, 9, 5) if dynamic else (5, 5):
            equal(call(model, *inputs_of(rows)), reference(*inputs_of(rows)))
    equal(list(model.buffers()), list(reference.buffers()))


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode, tmp_path):
    model = Of(lambda m, x: m.b(m.a(x).relu()), a=nn.Linear(8, 4), b=nn.Linear(4, 2))
    reference = copy.deepcopy(model)
    saved(model, inputs_of(5), tmp_path / "f", config=MODES[mode]())
    call = loaded(tmp_path / "f")
    for _ in range(2):
        call(model, *inputs_of(5)).sum().backward()
        reference(*inputs_of(5)).sum().backward()
    equal([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


def test_what_was_decided_about_sizes_is_guarded(tmp_path):
    model = Of(decide)
    with torch.no_grad():
        saved(model, inputs_of(5), tmp_path / "f", dynamic=True)
        call = loaded(tmp_path / "f")
        equal(call(model, *inputs_of(7)), model(*inputs_of(7)))
        with pytest.raises(RuntimeError, match="GuardManager check failed"):
            call(model, *inputs_of(2))


def test_options_go_along_and_those_without_a_form_are_refused(tmp_path):
    model = MODELS["linear"]
    config = torchair.CompilerConfig()
    config.experimental_config.frozen_parameter = True
    with torch.no_grad():
        made = compiled(model, config).forward.aot_compile((inputs_of(5), {}))
        assert b"frozen_parameter" in type(made).serialize(made).serialized_data
        config = torchair.CompilerConfig()
        config.post_grad_custom_pre_pass = lambda gm, inputs, config: None
        with pytest.raises(ConfigError, match="GE1061"):
            saved(model, inputs_of(5), tmp_path / "f", config=config)
    assert not (tmp_path / "f").exists()


def test_the_part_of_the_file_that_is_ours_is_checked():
    with torch.no_grad():
        made = compiled(MODELS["linear"]).forward.aot_compile((inputs_of(5), {}))
    code = made._artifacts.compiled_fn.compiled_fn
    while hasattr(code, "__wrapped__"):
        code = code.__wrapped__
    function, (content, options) = code.__reduce__()
    assert function is unpacked
    x, weights = inputs_of(5)[0], list(MODELS["linear"].parameters())
    assert unpacked(content, options)([*weights, x])[0].shape == (2, 5, 3)
    for bad in (content[:-60], content[: len(content) // 2], b"", content.replace(b"compiled", b"another_")):
        with pytest.raises(ArchiveError, match="GE50"):
            unpacked(bad, options)
    for bad in ("", "[]", '{"no.such": 1}', json.dumps({"mode": {"torch": "load"}})):
        with pytest.raises((ArchiveError, ConfigError)):
            unpacked(content, bad)


class Served:
    """A model as servers hold it: what the file has if there is one, else compiled without guards, and saved.

    A start with the file never traces; sizes of a batch are marked, and nobody guards them.
    """

    def __init__(self, model, path, config):
        self.model, self.path, self.config, self.call, self.traced = model, path, config, None, 0

    def __call__(self, *inputs):
        if self.call is None:
            self.call = self._found() or self._made(inputs)
        return self.call(self.model, *inputs)

    def _found(self):
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            return torch.compiler.load_compiled_function(file, f_globals=Of.forward.__globals__)

    def _made(self, inputs):
        self.traced += 1
        for value in inputs:
            torch._dynamo.mark_dynamic(value, 1)
        backend = torchair.get_npu_backend(compiler_config=self.config)
        options = {"guard_filter_fn": lambda guards: [False for _ in guards]}
        compiled = torch.compile(self.model, backend=backend, fullgraph=True, options=options)
        call = compiled.forward.aot_compile((inputs, {}))
        call.save_compiled_function(str(self.path))
        return call


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["cache", "experts", "attention"])
def test_a_server_without_guards(name, mode, tmp_path):
    """Two starts, steps of three sizes in each; the second start traces nothing and its cache goes on."""
    reference = copy.deepcopy(MODELS[name]).eval()
    for start in range(2):
        torch._dynamo.reset()
        served = Served(copy.deepcopy(reference), tmp_path / "model", MODES[mode]())
        with torch.no_grad(), torchair.record_compilation() as reports:
            for rows in (5, 9, 3, 9):
                equal(served(*inputs_of(rows)), reference(*inputs_of(rows)))
        assert served.traced == 1 - start
        assert any(r.fx_nodes for r in reports) is (start == 0)
        equal(list(served.model.buffers()), list(reference.buffers()))
