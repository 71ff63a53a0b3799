"""``fallback = "split"`` with captured graphs: cut at what needs the host, both halves captured.

A CPU captures everything, so here the question what needs the host is asked as for a device.
"""

from __future__ import annotations

import warnings

import pytest
import torch

import torchair
from torchair.runtime import host_work, reduce_overhead


@pytest.fixture
def cut(monkeypatch):
    """The captured graphs, as lists of operators."""
    plans = []
    of_device, plan = host_work.host_work, reduce_overhead.plan_capture

    def kept(gm, *args, **kwargs):
        made = plan(gm, *args, **kwargs)
        plans.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        return made

    monkeypatch.setattr(host_work, "host_work", lambda gm, device: of_device(gm, "npu"))
    monkeypatch.setattr("torchair.compiler.pipeline.device_of", lambda gm: _Device("cpu"))
    monkeypatch.setattr(reduce_overhead, "plan_capture", kept)
    torch._dynamo.reset()
    return plans


class _Device(str):
    """Is the CPU's to everybody but the question whether the graph is a device's."""

    def __ne__(self, other):
        return True if other == "cpu" else super().__ne__(other)

    __hash__ = str.__hash__


def compiled(fn, fallback="split", **options):
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.fallback = fallback
    for name, value in options.items():
        setattr(config.aclgraph_config, name, value)
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)


def masked(x, y):
    a = torch.relu(x) * 2
    a[y > 0] = 7.0
    return a + 1, a.sum()


def test_both_halves_are_captured(cut):
    call = compiled(masked)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(3):
            torch.manual_seed(seed)
            x, y = torch.randn(3, 4), torch.randn(3, 4)
            for got, want in zip(call(x, y), masked(x, y), strict=True):
                torch.testing.assert_close(got, want)
    before, after = cut
    assert "aten.relu.default" in before
    assert {"aten.sum.default"} <= set(after) | set(before)
    assert not any("index_put" in name for part in cut for name in part)
    said = [str(w.message) for w in caught if "captured graphs in the place of one" in str(w.message)]
    assert len(said) == 1
    assert "aten.index_put" in said[0]
    assert "test_capture_cut.py" in said[0]
    assert "torch.where" in said[0]


def test_a_cache_that_is_written_around_the_cut(cut):
    def step(cache, x, mask):
        cache.add_(x)
        picked = cache.masked_fill(mask, 0.0)
        picked[mask] = 3.0
        cache.mul_(2)
        return picked.sum() + cache.sum()

    call = compiled(step)
    ours, theirs = torch.zeros(4), torch.zeros(4)
    for seed in range(3):
        torch.manual_seed(seed)
        x, mask = torch.randn(4), torch.rand(4) > 0.5
        torch.testing.assert_close(call(ours, x, mask), step(theirs, x, mask))
        torch.testing.assert_close(ours, theirs)
    assert len(cut) == 2


def test_parameters_are_used_where_they_lie(cut):
    model = torch.nn.Linear(4, 4)

    def fn(x):
        y = model(x)
        y[y > 0] = 1.0
        return model(y)

    call = compiled(fn)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 4)
            torch.testing.assert_close(call(x), fn(x))
            model.weight.mul_(2)
    assert len(cut) == 2


def test_results_that_are_held_keep_their_numbers(cut):
    call, held = compiled(masked), []
    for turn in range(4):
        x, y = torch.full((2, 2), float(turn)), torch.full((2, 2), -1.0)
        held.append((call(x, y)[0], masked(x, y)[0]))
    for got, want in held:
        torch.testing.assert_close(got, want)


def test_a_graph_without_host_work_is_one_capture(cut):
    def fn(x):
        return torch.relu(x) + 1

    call = compiled(fn)
    torch.testing.assert_close(call(torch.ones(3)), torch.full((3,), 2.0))
    assert len(cut) == 1


def test_nothing_is_cut_where_nothing_is_captured(cut):
    call = compiled(masked, force_eager=True)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    for got, want in zip(call(x, y), masked(x, y), strict=True):
        torch.testing.assert_close(got, want)
    assert len(cut) == 1
