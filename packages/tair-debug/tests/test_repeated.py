"""Models of equal layers: the graph made of three of them is the one that a trace of all gives, or all are traced."""

import logging
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ge_converters.base.provenance import module_path
from ge_converters.base.torch_compat import symbols_of_fake_inputs
from tair_debug import ask, compare, repeated, tracing
from tair_debug.models import given, load

pytestmark = pytest.mark.skipif(
    not symbols_of_fake_inputs(), reason="before torch 2.11 dynamo makes other fake inputs, and all layers are traced"
)
LAYERS = 7
FULL = {"backward": False, "dynamic": False, "device_kernels": False}


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Deep(nn.Module):
    block = Block

    def __init__(self, layers=LAYERS):
        super().__init__()
        self.words = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(self.block(i) for i in range(layers))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _NormBehind(Block):
    """Its first operator makes a view of what the layer before returns."""

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


class _Constant(Block):
    def forward(self, x):
        return super().forward(x) + torch.tensor([1.0, 2.0]).sum()


class _InPlace(Block):
    def forward(self, x):
        y = x.clone()
        y[:, 1:].mul_(2)
        return y.add_(self.up(x)[:, :8])


class Kept(Deep):
    """Returns what each layer makes, as caches of attention are returned."""

    def forward(self, x):
        x, kept = self.words(x), []
        for block in self.blocks:
            x = block(x)
            kept.append((block.up(x), x.sum()))
        return self.head(x), kept


class _Cached(Block):
    def forward(self, x, cache):
        cache.append(self.up(x))
        return super().forward(x)


class Cached(Deep):
    block = _Cached

    def forward(self, x):
        x, cache = self.words(x), []
        for block in self.blocks:
            x = block(x, cache)
        return self.head(x), cache


class _Attending(Block):
    def forward(self, x, mask):
        heads = self.up(x).reshape(1, -1, 3, 4).transpose(1, 2)
        return x + nn.functional.scaled_dot_product_attention(heads, heads, heads, mask).mean(1)[0].repeat(1, 2)


class Attending(Deep):
    block = _Attending

    def forward(self, x):
        mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        x = self.words(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def of(layer):
    return type("Deep_" + layer.__name__, (Deep,), {"block": layer})


def shown(graph):
    """Everything that is said of a graph and its nodes."""
    rows = [sorted(graph.weights), str(graph.gm.graph)]
    for node in graph.gm.graph.nodes:
        values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
        forms = [(v.dtype, v.shape, v.stride(), v.storage_offset()) for v in values if isinstance(v, torch.Tensor)]
        stack = [(key, path) for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items()]
        rows.append((node.format_node(), module_path(node), node.meta.get("stack_trace"), forms, stack))
    return rows


def views(graph):
    """Which nodes show the memory of which argument, as the lowering asks."""
    found = []
    for node in graph.gm.graph.nodes:
        value = node.meta.get("val")
        for read in node.all_input_nodes:
            other = read.meta.get("val")
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
                same = value.untyped_storage()._cdata == other.untyped_storage()._cdata
                found.append((node.name, read.name, same))
    return found


def both(model, *inputs):
    subject = given(model.eval(), inputs)
    few = tracing._captured_by_layers(subject)
    with tracing._mode_of(subject):
        full = tracing._captured(subject, **FULL)
    return few, full


@pytest.mark.parametrize("model", [Deep, of(_NormBehind), of(_Constant), of(_InPlace), Cached, Attending])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_graph_is_that_of_a_trace_of_all_layers(model, dtype):
    few, full = both(model().to(dtype), torch.randn(3, 4, dtype=dtype))
    assert len(full) == 1
    assert few is not None
    assert shown(few[0]) == shown(full[0])
    assert views(few[0]) == views(full[0])


def test_the_graph_computes_what_the_model_does():
    model, x = Deep().eval(), torch.randn(3, 4)
    few, _ = both(model, x)
    blocks = [p for block in model.blocks for p in block.parameters()]
    order = [*model.words.parameters(), x, *blocks, *model.head.parameters()]  # that of their first use
    with torch.no_grad():
        torch.testing.assert_close(few[0].gm(*order)[0], model(x))


class _OneScales(Block):
    def forward(self, x):
        return super().forward(x * (2 if self.number == 5 else 3))


class _OneSkips(Block):
    def forward(self, x):
        return x if self.number == 4 else super().forward(x)


class _OnePrints(Block):
    def forward(self, x):
        if self.number == 5:
            print("here")
        return super().forward(x)


class _OneOnALine(Block):
    def forward(self, x):
        len("") if self.number == 5 else sys.getrefcount(x)
        return super().forward(x)


class _OneTakesTheOther(Block):
    """The same byte code takes one half of a tensor or the other, which look alike."""

    def forward(self, x):
        return super().forward(x) + self.up(x).chunk(2, -1)[self.number // 5].sum()


class _CountsItsCalls(Block):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class _ByNumber(Block):
    def __init__(self, number):
        super().__init__(number)
        self.scale = 1.0 / (number + 1)


class Residual(Deep):
    """Each layer sees the first one's result."""

    def forward(self, x):
        x = first = self.words(x)
        for i, block in enumerate(self.blocks):
            x = block(x) + first
            first = x if i == 0 else first
        return self.head(x)


class Twice(Deep):
    def forward(self, x):
        return super().forward(super().forward(x))


class All(Deep):
    """What follows the layers reads all of them."""

    def forward(self, x):
        x, kept = self.words(x), []
        for block in self.blocks:
            x = block(x)
            kept.append(x)
        return torch.stack(kept).sum(0)


class OfNumber(Deep):
    """How many layers there are is in the numbers."""

    def forward(self, x):
        return super().forward(x) / len(self.blocks)


def _hooked():
    model = Deep()
    model.blocks[4].register_forward_hook(lambda module, args, result: result * 2)
    return model


def _shared():
    model = Deep()
    model.blocks[4].up.weight = model.blocks[3].up.weight
    return model


def _other_type():
    model = Deep()
    model.blocks[4].double()
    return model


def _frozen():
    model = Deep()
    model.blocks[4].up.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make",
    [
        of(layer)
        for layer in (_OneScales, _OneSkips, _OnePrints, _OneOnALine, _OneTakesTheOther, _CountsItsCalls, _ByNumber)
    ]
    + [Residual, Twice, All, OfNumber, Kept, _hooked, _shared, _frozen],
)
def test_layers_that_can_be_told_apart_are_traced_each(make, capsys):
    model = make()
    few, full = both(model, torch.randn(3, 4))
    assert few is None
    assert len(model.blocks) == LAYERS
    assert full


def test_a_model_is_as_it_was():
    model = of(_CountsItsCalls)().eval()
    subject = given(model, (torch.randn(3, 4),))
    tracing._captured_by_layers(subject)
    assert len(subject.model.blocks) == LAYERS
    assert not any(block._forward_pre_hooks or "calls" in vars(block) for block in subject.model.blocks)


class Breaking(Deep):
    def forward(self, x):
        x = super().forward(x)
        torch._dynamo.graph_break()
        return x * 2


def test_breaks_are_told_once():
    summary = ask.summary(Breaking().eval(), torch.randn(3, 4))
    assert summary.graphs == 2
    assert len(summary.stops.breaks) == 1


def test_a_trace_says_why_it_takes_each_layer(caplog):
    with caplog.at_level(logging.DEBUG, "tair_debug.tracing"):
        tracing.capture(given(Residual().eval(), (torch.randn(3, 4),)))
    assert "Residual is traced layer by layer: layers do not do the same" in caplog.text


def _calls(act):
    """Calls of Python functions."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_more_layers_cost_little():
    """A graph of 48 layers takes less than two and a half times the calls of one of 6, not eight times."""
    tracing.capture(given(Deep(6).eval(), (torch.randn(3, 4),)))  # what is loaded and remembered once
    calls = []
    for layers in (6, 48):
        torch._dynamo.reset()
        subject = given(Deep(layers).eval(), (torch.randn(3, 4),))
        calls.append(_calls(lambda: tracing.capture(subject)))
    assert calls[1] < 2.5 * calls[0], calls


def test_later_layers_ask_torch_for_nothing(monkeypatch):
    """The results of a layer that is proven equal look like those of the second one."""
    asked = []
    dispatch = FakeTensorMode.dispatch
    monkeypatch.setattr(
        FakeTensorMode, "dispatch", lambda *args, **how: asked.append(args[1]) or dispatch(*args, **how)
    )
    counts = []
    for layers in (6, 48):
        subject = given(of(_NormBehind)(layers).eval(), (torch.randn(3, 4),))
        stack = repeated.stack_of(subject.model)
        asked.clear()
        with tracing._mode_of(subject), torch.no_grad():
            repeated.prove(stack, subject.model, subject.args, subject.kwargs)
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


# --- comparing, with data --------------------------------------------------------------------------------------------


def compared(model, *inputs, by_layers=True, monkeypatch):
    """What compare says of a model, and whether it was traced by its layers."""
    taken = []
    layers_of = compare.layers_of

    def see(subject):
        taken.append(layers_of(subject) if by_layers else None)
        return taken[-1]

    with monkeypatch.context() as patch:
        patch.setattr(compare, "layers_of", see)
        torch._dynamo.reset()
        found = ask.compare(model, *inputs)
    return found, taken[0] is not None


def said(found):
    rows = [(r.graph, r.node, r.op, r.output, r.fx, r.target, r.source, r.code, r.wrong) for r in found.rows]
    return rows, found.unmatched, found.why, found.settled, len(found.totals), found.graphs


@pytest.mark.parametrize("model", [Deep, of(_NormBehind), of(_Constant), of(_InPlace), Cached, Attending])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_comparison_is_that_of_a_trace_of_all_layers(model, dtype, monkeypatch):
    made, x = model().to(dtype).eval(), torch.randn(3, 4, dtype=dtype)
    few, by_layers = compared(made, x, monkeypatch=monkeypatch)
    whole, _ = compared(made, x, by_layers=False, monkeypatch=monkeypatch)
    assert by_layers
    assert few.ok
    assert said(few) == said(whole)
    assert [r.graph for r in few.totals] == [r.graph for r in whole.totals]


class _Wrong:
    """The embedded engine with a Relu of the sixth layer that adds one."""

    def __init__(self):
        self.engine = sound_engine()

    def compile(self, graph, options):
        self.inner = self.engine.compile(graph, options)
        return self

    def run_traced(self, inputs, on_node):
        def changed(node, ins, outs):
            if node.name == "Relu_5":
                outs[0].data = outs[0] + 1
            on_node(node, ins, outs)

        return self.inner.run_traced(inputs, changed)

    def run(self, inputs):
        return self.run_traced(inputs, lambda *event: None)


sound_engine = compare.engine


def test_a_fault_in_a_layer_that_was_not_traced_is_found(monkeypatch):
    """It is one row, with the user's line, and the results of the graph differ."""
    monkeypatch.setattr(compare, "engine", lambda name: _Wrong())
    found, by_layers = compared(Deep().eval(), torch.randn(3, 4), monkeypatch=monkeypatch)
    assert by_layers
    assert [r.node for r in found.rows if r.wrong] == ["Relu_5"]
    assert "torch.relu" in found.first.code
    assert [(r.graph, r.wrong) for r in found.totals] == [("forward 1", True), ("whole model", False)]


class _Counting(Block):
    def __init__(self, number):
        super().__init__(number)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x)


class Turned(Deep):
    """Returns what its graph computes in another order."""

    def forward(self, x):
        x = super().forward(x)
        y, z = x + 1, x * 2
        return {"z": z, "y": y, "again": y}


class Drawing(Deep):
    def forward(self, x):
        return super().forward(x) + torch.rand(4)


@pytest.mark.parametrize("model", [of(_Counting), Turned, Drawing, Residual, Breaking])
def test_what_is_more_than_a_function_of_its_inputs_is_compared_as_before(model, monkeypatch):
    made, x = model().eval(), torch.randn(3, 4)
    state = {name: value.clone() for name, value in made.state_dict().items() if "seen" not in name}
    few, _ = compared(made, x, monkeypatch=monkeypatch)
    whole, _ = compared(made, x, by_layers=False, monkeypatch=monkeypatch)
    assert few.ok
    assert said(few) == said(whole)
    assert all(torch.equal(made.state_dict()[name], value) for name, value in state.items())


def test_more_layers_cost_little_more_to_compare(monkeypatch):
    """What a layer more costs is its run, operator by operator, not its trace."""
    x = torch.randn(3, 4)
    compared(Deep(6).eval(), x, monkeypatch=monkeypatch)
    few, many = (_calls(lambda n=n: compared(Deep(n).eval(), x, monkeypatch=monkeypatch)) for n in (6, 24))
    whole = _calls(lambda: compared(Deep(24).eval(), x, by_layers=False, monkeypatch=monkeypatch))
    assert many < 2.5 * few, (few, many)
    assert many < 0.5 * whole, (many, whole)


TRANSFORMERS = """
import torch, transformers as t

SIZES = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, vocab_size=100, num_hidden_layers=7)
WORDS = torch.ones(1, 16, dtype=torch.int64)

def llama(): return t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=2, **SIZES)), WORDS
def bert(): return t.BertModel(t.BertConfig(**SIZES)), WORDS
def mixtral(): return t.MixtralForCausalLM(t.MixtralConfig(num_key_value_heads=2, **SIZES)).bfloat16(), WORDS
def gpt2(): return t.GPT2LMHeadModel(t.GPT2Config(n_layer=7, n_embd=64, n_head=4, vocab_size=100)), WORDS
def scaled():
    sizes = dict(n_layer=7, n_embd=64, n_head=4, vocab_size=100, scale_attn_by_inverse_layer_idx=True)
    return t.GPT2LMHeadModel(t.GPT2Config(**sizes)), WORDS
def gemma(): return t.Gemma2ForCausalLM(t.Gemma2Config(num_key_value_heads=2, head_dim=16, **SIZES)), WORDS
"""


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "equal"),
    [("llama", True), ("bert", True), ("mixtral", True), ("gpt2", True), ("scaled", False), ("gemma", False)],
)
def test_reports_of_real_models(name, equal, tmp_path, monkeypatch):
    """Exactly the report of a trace of all layers, also where the layers differ: scales, windows of attention."""
    (tmp_path / "made.py").write_text(TRANSFORMERS)
    taken = []
    by_layers = tracing._captured_by_layers

    def see(subject):
        taken.append(by_layers(subject))
        return taken[-1]

    monkeypatch.setattr(tracing, "_captured_by_layers", see)
    few = ask.summary_of(load(f"made.py:{name}"))
    torch._dynamo.reset()
    monkeypatch.setattr(tracing, "_captured_by_layers", lambda subject: None)
    full = ask.summary_of(load(f"made.py:{name}"))
    assert few.as_dict() == full.as_dict()
    assert (taken[0] is not None) == equal
