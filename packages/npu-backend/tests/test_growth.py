"""A process that compiles for ever keeps nothing of ours; torch's own bookkeeping is not counted."""

import collections
import gc

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair

OURS = ("ge_graph", "ge_converters", "ge_runtime", "tair_debug", "torchair", "torch.fx.graph", "torch._subclasses")
COMPILATIONS = 60


def kept():
    """Objects of our types, graphs and fake tensors that are alive."""
    gc.collect()
    types = [type(o) for o in gc.get_objects()]
    return collections.Counter(f"{t.__module__}.{t.__qualname__}" for t in types if str(t.__module__).startswith(OURS))


def block(x, weight, bias):
    y = torch.nn.functional.linear(x, weight, bias).relu()
    return torch.nn.functional.layer_norm(y * 2 + 1, (4,)), y.sum(0)


def compile_once(config):
    """One compilation and run of an ATen graph; dynamo and AOTAutograd, which keep things of their own, stand aside."""
    args = (torch.randn(3, 4), torch.randn(4, 4), torch.randn(4))
    gm = make_fx(block, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
    example = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    torchair.get_compiler(config)(gm, example)([*args])


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["max-autotune", "reduce-overhead", "dumps", "record"])
def test_nothing_grows(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = torchair.CompilerConfig()
    if kind == "reduce-overhead":
        config.mode = kind
    if kind == "dumps":
        config.debug.graph_dump.type = "txt"
        config.debug.fx_summary.type = "csv"
        config.debug.fx_summary.skip_compile = False
        config.dump_config.enable_dump = True
    if kind == "record":
        from tair_debug import debug_tree

        monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
        monkeypatch.setattr(debug_tree, "debug_folder", lambda: str(tmp_path))
        monkeypatch.setattr("torchair.compiler.observers._start_debug_log", lambda path: None)
    for _ in range(5):
        compile_once(config)
    before = kept()
    for _ in range(COMPILATIONS):
        compile_once(config)
    grown = {name: count for name, count in (kept() - before).items() if count > COMPILATIONS // 10}
    assert not grown
