"""A user's operators on NPU tensors, those that write their arguments above all: what eager gives, in both modes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401

import torchair
from ge_converters.registry import REGISTRY
from ge_graph import schema
from ge_graph.custom import custom_op

MODES = ["max-autotune", "reduce-overhead"]


@pytest.fixture(scope="module")
def ops() -> Iterator[Any]:
    types = "f32,f16,bf16"
    ports = {"in": [f"total {types}", f"x {types}"], "out": [f"total {types}", f"y {types}"], "attr": []}
    schema.register_schema({"op": "MineUpdate", **ports})

    @torch.library.custom_op("mine::update", mutates_args=("total",))
    def update(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total += x
        return x * 2

    @torch.library.custom_op("mine::both", mutates_args=("a", "b"))
    def both(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> None:
        a += x
        b -= x

    update.register_fake(lambda total, x: torch.empty_like(x))

    @torchair.register_fx_node_ge_converter(torch.ops.mine.update.default)
    def update_converter(total: Any, x: Any, meta_outputs: Any = None) -> Any:
        new, y = custom_op("MineUpdate", inputs={"total": total, "x": x}, outputs=["total", "y"])
        return y, new

    @torchair.register_fx_node_ge_converter(torch.ops.mine.both.default)
    def both_converter(a: Any, b: Any, x: Any, meta_outputs: Any = None) -> Any:
        return torchair.ge.Add(a, x), torchair.ge.Sub(b, x)

    yield torch.ops.mine
    for name in ("update", "both"):
        REGISTRY.unregister(getattr(torch.ops.mine, name).default)


def _compiled(call: Any, mode: str) -> Any:
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.mode = mode
    return torch.compile(call, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)


def _same(call: Any, mode: str, *operands: torch.Tensor) -> None:
    """Three runs on the same tensors, results and operands as eager leaves them; numbers of graphs: one."""
    mine, theirs = [t.clone() for t in operands], [t.npu() for t in operands]
    compiled = _compiled(call, mode)
    with torchair.record_compilation() as reports:
        for _ in range(3):
            want, got = call(*mine), compiled(*theirs)
            for g, w in zip([*got, *theirs], [*want, *mine], strict=True):
                torch.testing.assert_close(g.cpu(), w)
    assert len(reports) == 1


@pytest.mark.parametrize("mode", MODES)
def test_an_operator_that_writes_and_returns(mode: str, ops: Any) -> None:
    """The GE operator has no kernel: the user's own CPU implementation runs."""

    def call(total: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = ops.update(total, x + 1)
        return y, total * 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(call, mode, torch.zeros(2, 3), torch.randn(2, 3))


@pytest.mark.parametrize("mode", MODES)
def test_an_operator_that_writes_two(mode: str, ops: Any) -> None:
    def call(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        ops.both(a, b, x)
        return (a + b,)

    _same(call, mode, torch.zeros(2, 3), torch.ones(2, 3), torch.randn(2, 3))


@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_may_be_a_view(mode: str, ops: Any) -> None:
    def call(total: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = ops.update(total[1], x)
        return y, total.sum(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(call, mode, torch.zeros(3, 4), torch.randn(4))


def test_one_notice_of_a_backend_for_an_operator_without_kernel(ops: Any) -> None:
    def call(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ops.update(total, x)

    backend = torchair.get_npu_backend()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (3, 4):  # a graph of its own each
            compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=False)
            for _ in range(3):
                compiled(torch.zeros(2, size).npu(), torch.ones(2, size).npu())
    notices = [str(w.message) for w in caught if "mine" in str(w.message)]
    assert len(notices) == 1, notices


def test_tensors_on_memory_of_others() -> None:
    """They share the memory: what is written through one is seen through the other, eagerly and by a graph."""
    owner = torch.arange(12, dtype=torch.float32).npu()
    places = [owner.data_ptr(), owner.data_ptr() + 24]
    first, second = torchair.llm_datadist.create_npu_tensors([2, 3], torch.float32, places)
    assert first.device.type == "npu"
    assert (first.shape, first.stride(), first.dtype) == ((2, 3), (3, 1), torch.float32)
    torch.testing.assert_close(torch.cat((first, second)).cpu(), torch.arange(12.0).view(4, 3))
    first.fill_(7)
    assert owner[:6].cpu().tolist() == [7.0] * 6

    def call(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1] = x
        return cache * 2

    result = _compiled(call, "max-autotune")(second, torch.ones(3).npu())
    assert owner[9:].cpu().tolist() == [1.0] * 3
    torch.testing.assert_close(result.cpu(), second.cpu() * 2)


def test_a_line_of_a_graph_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """``npu_print``: torch_npu opens the device's channel for output, and the graph runs as often as it is called."""

    def f(x: torch.Tensor) -> torch.Tensor:
        torchair.ops.npu_print("x is", x)
        return x * 2

    compiled = torch.compile(f, backend=torchair.get_npu_backend(), dynamic=False)
    for first in (1, 2):
        x = torch.arange(3) + first
        assert torch.equal(compiled(x.npu()).cpu(), x * 2)
    assert [line for line in capfd.readouterr().out.splitlines() if line] == ["x is [1 2 3]", "x is [2 3 4]"]
