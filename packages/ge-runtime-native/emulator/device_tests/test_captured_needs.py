"""`tair check --capture` against what torch_npu captured: graphs, streams, events, tasks and bytes of the pool.

Run under ``tair emulate``. Eight models, six sizes each; what differs for a known reason is in ``APART``.
"""

from __future__ import annotations

import json

import pytest
import torch
import torch_npu  # noqa: F401

import torchair
from tair_debug import models
from tair_debug.captures import captures_of

SIZES = (1, 2, 3, 8, 16, 48)
APART: dict[tuple[str, int], str] = {}
"""(model, size) to the reason why the numbers differ."""


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(*n) for n in ((256, 1024), (256, 1024), (1024, 256)))
        self.norm = torch.nn.LayerNorm(256)

    def forward(self, x):
        for _ in range(2):
            x = x + self.down(torch.nn.functional.silu(self.gate(self.norm(x))) * self.up(x))
        return x


class Decode(torch.nn.Module):
    """A step with a cache that is written in place."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(32, 32) for _ in range(3))

    def forward(self, x, cache, place):
        cache.index_copy_(1, place, self.k(x))
        share = torch.softmax(self.q(x) @ cache.transpose(1, 2) / 5.6, -1)
        return torch.relu(share @ cache) + self.v(x)


def _mlp(n):
    layers = [torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16)]
    return torch.nn.Sequential(*layers), (torch.randn(n, 16),)


def _convolutions(n):
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 14 * 14, 10),
        nn.LogSoftmax(-1),
    )
    return model, (torch.randn(n, 3, 32, 32),)


def _of_transformers(kind, head, inputs, **more):
    def make(n):
        import transformers

        config = getattr(transformers, f"{kind}Config")(**more)
        return getattr(transformers, f"{kind}{head}")(config), (inputs(n),)

    return make


def _tokens(n):
    return torch.randint(0, 100, (n, 8))


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
MODELS = {
    "mlp": _mlp,
    "gated": lambda n: (Gated(), (torch.randn(n, 128, 256),)),
    "decode": lambda n: (Decode(), (torch.randn(n, 1, 32), torch.zeros(n, 64, 32), torch.tensor([3]))),
    "convolutions": _convolutions,
    "bert": _of_transformers("Bert", "Model", _tokens, vocab_size=128, **_SMALL),
    "gpt2": _of_transformers(
        "GPT2",
        "LMHeadModel",
        _tokens,
        vocab_size=128,
        n_embd=64,
        n_layer=2,
        n_head=4,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": _of_transformers(
        "Llama", "ForCausalLM", _tokens, vocab_size=128, num_key_value_heads=2, use_cache=False, **_SMALL
    ),
    "resnet": _of_transformers(
        "ResNet",
        "Model",
        lambda n: torch.randn(n, 3, 64, 64),
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
    ),
}


def made(name, size):
    torch.manual_seed(0)
    model, args = MODELS[name](size)
    return model.eval(), args


@pytest.fixture
def captured(monkeypatch):
    """Every graph that torch_npu captures."""
    found, real = [], torch.npu.graph

    class Seen(real):
        def __init__(self, graph, pool=None, stream=None, capture_error_mode="global", **more):
            found.append(graph)
            super().__init__(graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode, **more)

    monkeypatch.setattr(torch.npu, "graph", Seen)
    torch._dynamo.reset()
    return found


def measured(graphs, tmp_path):
    """What the captured graphs have, as the emulated device and torch_npu's allocator say it."""
    streams = events = tasks = 0
    for number, graph in enumerate(graphs):
        path = tmp_path / f"{number}.json"
        super(torch.npu.NPUGraph, graph).debug_dump(str(path))
        listed = json.loads(path.read_text())
        streams += len({task["tid"] for task in listed})
        events += sum(task["name"] == "event wait" for task in listed)
        tasks += len(listed)
    pools = {tuple(graph.pool()) for graph in graphs}
    segments = torch.npu.memory_snapshot()
    bytes_ = sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) in pools)
    return {"graphs": len(graphs), "streams": streams, "events": events, "tasks": tasks, "pool_bytes": bytes_}


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("name", MODELS)
def test_exact(captured, tmp_path, name):
    wrong, known = {}, {}
    for size in SIZES:
        torch._dynamo.reset()
        captured.clear()
        model, args = made(name, size)
        config = torchair.CompilerConfig()
        config.mode = "npugraph_ex"
        backend = torchair.get_npu_backend(compiler_config=config)
        call = torch.compile(model.npu(), backend=backend, dynamic=False, fullgraph=True)
        with torch.no_grad():
            result = call(*(a.npu() for a in args))
        got = measured(captured, tmp_path)
        del result, call
        torch._dynamo.reset()
        subject = lambda n: models.given(*made(name, n))  # noqa: E731
        (need,) = captures_of(subject, [size], "ascend910b").needs
        said = {key: getattr(need, key) for key in got}
        if said != got or need.unmeasured:
            place = known if (name, size) in APART else wrong
            differ = {key: (said[key], got[key]) for key in got if said[key] != got[key]}
            place[size] = {**differ, **need.unmeasured}
    assert not wrong, json.dumps(wrong)
    assert set(known) == {size for model, size in APART if model == name}


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["mlp", "gated", "decode", "convolutions"])
def test_one_graph_of_all_sizes_has_one_pool(captured, tmp_path, name, shared):
    """Symbolic sizes: the captures of a graph share a pool, unless an option says no; what a size adds is counted."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.aclgraph_config.reuse_graph_pool_in_same_fx = shared
    torch.manual_seed(0)
    model = made(name, 2)[0].npu()
    call = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True, fullgraph=True)
    said = captures_of(lambda n: models.given(*made(name, n), config=config), SIZES[1:], "ascend910b", dynamic=True)
    pools, grown = [], 0
    with torch.no_grad():
        for size in SIZES[1:]:
            call(*(a.npu() for a in made(name, size)[1]))
            got = measured(captured, tmp_path)
            pools.append(got["pool_bytes"] - grown)
            grown = got["pool_bytes"]
    assert len({tuple(graph.pool()) for graph in captured}) == (1 if shared else len(SIZES) - 1)
    assert [need.pool_bytes for need in said.needs] == pools
    assert said.total == got


@pytest.fixture
def fused_attention():
    """Kernels on the device for the overloads that a captured task needs; what they compute does not matter here."""
    name = "npu_fused_infer_attention_score"

    def into(query, key, value, *, workspace=None, out, **more):
        out[0].copy_(query * more["scale"])
        return tuple(out)

    library = torch.library.Library("npu", "IMPL")
    given = {
        name: lambda q, k, v, **more: (q * more["scale"], q.new_empty(0)),
        f"{name}.out": into,
        f"_{name}_get_max_workspace": lambda q, *_, **__: q.new_empty(1),
    }
    for each, function in given.items():
        library.impl(each, function, "PrivateUse1", allow_override=True)
    yield getattr(torch.ops.npu, name)
    library._destroy()


def test_tasks_that_are_replaced(captured, tmp_path, fused_attention):
    """Lengths that change in every step: the task is a group that waits for an event, and resets it.

    The event of this torch_npu is a word of memory, so that no task of the graph has the name of an event.
    """

    def attend(q, key, value, lengths):
        made, _ = fused_attention(
            q, key, value, num_heads=1, scale=0.5, input_layout="BNSD", actual_seq_lengths_kv=lengths
        )
        return made * 2

    args = (torch.randn(2, 1, 1, 8), torch.randn(2, 1, 80, 8), torch.randn(2, 1, 80, 8), [5, 7])
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    backend = torchair.get_npu_backend(compiler_config=config)
    call = torch.compile(attend, backend=backend, dynamic=True, fullgraph=True)
    call(*(a.npu() if isinstance(a, torch.Tensor) else a for a in args))
    got = measured(captured, tmp_path)
    torch._dynamo.reset()
    (need,) = captures_of(lambda n: models.given(attend, args), [2], "ascend910b", dynamic=True).needs
    assert {key: getattr(need, key) for key in got} == {**got, "events": got["events"] + 1}
    assert (got["events"], got["tasks"]) == (0, 4)  # the wait, the reset, the group and one more
