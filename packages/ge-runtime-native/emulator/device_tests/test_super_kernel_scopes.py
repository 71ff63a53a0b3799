"""Scopes of super kernels on emulated NPUs: in both modes they reach the end of the way, in their places.

Run under ``tair emulate``. What a runtime makes of them only a device shows.
"""

from __future__ import annotations

import pytest
import torch

import torchair
from torchair.compiler.pipeline import Pipeline
from torchair.runtime import reduce_overhead


def scoped(x):
    y = x + 1
    torch.npu.super_kernel_scope_begin("fused")
    y = torch.relu(y) * 2
    torch.npu.super_kernel_scope_end("fused")
    return y - 1


def unbalanced(x):
    torch.npu.super_kernel_scope_begin("fused")
    y = torch.relu(x)
    torch.npu.super_kernel_scope_end("other")
    return y


def compiled(fn, mode):
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False, fullgraph=True)


def test_ge_nodes_have_the_scope(monkeypatch):
    graphs, to_ge = [], Pipeline._to_ge

    def kept(self, gm, **kwargs):
        lowered = to_ge(self, gm, **kwargs)
        graphs.append(lowered.graph)
        return lowered

    monkeypatch.setattr(Pipeline, "_to_ge", kept)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(scoped, "max-autotune")(x.npu()).cpu(), torch.relu(x + 1) * 2 - 1)
    (graph,) = graphs
    inside = {n.op: n.attr("_super_kernel_scope") for n in graph.nodes if n.op not in ("Data", "Const", "NetOutput")}
    assert inside.pop("Relu") == "fused"
    assert [v for k, v in inside.items() if k.startswith("Mul")] == ["fused"]
    assert all(v is None for k, v in inside.items() if not k.startswith("Mul"))


def test_captured_programs_keep_the_scope_in_its_place(monkeypatch):
    programs, plan = [], reduce_overhead.plan_capture

    def kept(gm, *args, **kwargs):
        made = plan(gm, *args, **kwargs)
        programs.append([str(n.target) for n in gm.graph.nodes if n.op == "call_function"])
        return made

    monkeypatch.setattr(reduce_overhead, "plan_capture", kept)
    call = compiled(scoped, "npugraph_ex")
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(call(x.npu()).cpu(), torch.relu(x + 1) * 2 - 1)
    (names,) = programs
    begin, end = (names.index(f"npu.super_kernel_scope_{kind}.default") for kind in ("begin", "end"))
    assert names[begin + 1 : end] == ["aten.relu_.default", "aten.mul_.Tensor"]


def test_the_runtime_is_told_of_every_scope_in_its_turn():
    torch.npu.super_kernel_scope_begin("outer")
    with pytest.raises(RuntimeError):
        torch.npu.super_kernel_scope_end("inner")
    torch.npu.super_kernel_scope_end("outer")
    with pytest.raises(RuntimeError):
        torch.npu.super_kernel_scope_end("outer")


@pytest.mark.parametrize("mode", ["max-autotune"])
def test_an_end_of_another_name_is_refused(mode):
    with pytest.raises(Exception, match=r"GE1055(.|\n)*'other', 'fused' is open"):
        compiled(unbalanced, mode)(torch.ones(2).npu())
