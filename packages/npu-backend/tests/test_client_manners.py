"""Small things that clients do, as they do them: other names, sizes of 1, folders that are not there."""

from __future__ import annotations

import importlib

import pytest
import torch

import torchair
from ge_converters import conversion
from torchair import ge as public
from torchair.ge_concrete_graph import ge_apis, ge_graph
from torchair.ge_concrete_graph.fx2ge_converter import register_fx_node_ge_converter
from torchair.ge_concrete_graph.utils import dtype_promote


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(f, config=None, **more):
    return torch.compile(
        f, backend=torchair.get_npu_backend(compiler_config=config or torchair.CompilerConfig()), **more
    )


def test_the_name_of_a_backend_is_a_mode():
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x + 1, config)(x), x + 1)


def test_a_super_kernel_without_options_and_without_a_name():
    def f(x):
        with torchair.scope.super_kernel("part", None):
            x = x * 2
        with torchair.scope.super_kernel(None, None):
            return x + 1

    x = torch.randn(3)
    torch.testing.assert_close(compiled(f)(x), x * 2 + 1)


def test_a_gear_of_one():
    f = compiled(lambda x: x.sum(1) * 2, dynamic=True)
    for rows in (1, 4):
        x = torch.randn(rows, 3)
        torchair.inference.set_dim_gears(x, {0: [1, 2, 4]})
        torch.testing.assert_close(f(x), x.sum(1) * 2)


def test_folders_of_dumps_are_made(tmp_path):
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "pbtxt"
    config.debug.graph_dump.path = str(tmp_path / "a" / "b")
    compiled(lambda x: x + 1, config)(torch.ones(2))
    assert list((tmp_path / "a" / "b").iterdir())


def test_options_of_captured_graphs_below_debug():
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    config.debug.aclgraph.static_capture_size_limit = 2
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = True
    f = compiled(lambda x: x * 3, config, dynamic=True)
    for rows in (2, 3, 4):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(f(x), x * 3)


def defined(schema, kernel):
    name = schema.partition("(")[0]
    torch.library.define(f"manners::{name}", schema[len(name) :])
    torch.library.impl(f"manners::{name}", "CompositeExplicitAutograd")(kernel)
    torch.library.register_fake(f"manners::{name}")(kernel)
    return getattr(torch.ops.manners, name).default


def test_forms_of_custom_op():
    """By position, by name, with ``attrs=`` alone; an older name of a type."""
    kernels = {"older_type": lambda x: x.float().clone(), "eye": lambda x: torch.eye(3)}
    calls = {
        "by_position": lambda x: torchair.ge.custom_op("Abs", x),
        "eye": lambda x: torchair.ge.custom_op(
            "Eye",
            attrs={"num_rows": torchair.ge.attr.Int(3), "dtype": torchair.ge.attr.Int(0)},
            inputs=None,
            outputs=None,
        ),
        "by_name": lambda x: torchair.ge.custom_op("Abs", inputs={"x": x}, outputs=["y"]),
        "older_type": lambda x: ge_apis.Cast(x, dst_type=ge_graph.DataType.DT_FLOAT32),
    }
    x = torch.randn(3)
    for name in ("by_position", "eye", "by_name", "older_type"):
        op = defined(f"{name}(Tensor x) -> Tensor", kernels.get(name, torch.abs))

        @register_fx_node_ge_converter(op)
        def converter(x, meta_outputs=None, _call=calls[name]):
            return _call(x)

        torch.testing.assert_close(compiled(lambda x, op=op: op(x) + 0)(x), kernels.get(name, torch.abs)(x))
        torch._dynamo.reset()


def test_numbers_of_types():
    number = importlib.import_module("torchair.ge_concrete_graph.ge_graph").torch_dtype_value_to_ge_type
    assert number(290) is public.DataType.DT_HIFLOAT8
    assert number(296) is public.DataType.DT_FLOAT4_E2M1
    assert number(297) is public.DataType.DT_FLOAT4_E1M2


@pytest.mark.parametrize("name", ["record_tagged_stream", "record_tagged_stream_"])
@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_a_stream_noted_for_memory(name, mode):
    config = torchair.CompilerConfig()
    config.mode = mode

    def f(x):
        y = x * 2
        getattr(torch.ops.air, name)(y, "side")
        return y + 1

    x = torch.randn(3)
    torch.testing.assert_close(compiled(f, config, fullgraph=True)(x), x * 2 + 1)


@pytest.mark.parametrize("priority", [(), (2,)])
def test_streams_of_the_older_torchair(priority, monkeypatch):
    """``stream_in`` and ``stream_out`` are a scope of a stream; operators outside have none."""
    labels = []
    convert = conversion.convert_graph

    def watched(*args, **kwargs):
        lowered = convert(*args, **kwargs)
        names = ("_user_stream_label", "_user_stream_priority")
        labels.extend((n.op, *map(n.attr, names)) for n in lowered.graph.nodes if n.op in ("Add", "Mul", "Relu"))
        return lowered

    monkeypatch.setattr(conversion, "convert_graph", watched)

    def f(x):
        y = x + 1
        torch.ops.air.stream_in("side", *priority)
        z = y * 2
        torch.ops.air.stream_out()
        return z.relu()

    x = torch.randn(3)
    torch.testing.assert_close(compiled(f, fullgraph=True)(x), f(x))
    assert labels == [("Add", None, None), ("Mul", "side", str(priority[0] if priority else 0)), ("Relu", None, None)]


@pytest.mark.parametrize("part", ["fx2ge_converter", "ge_apis", "ge_graph", "utils"])
def test_modules_under_their_older_path(part):
    assert importlib.import_module(f"torchair.ge_concrete_graph.{part}")
    assert dtype_promote


def test_artifacts_of_a_captured_graph():
    from torch._functorch.aot_autograd import aot_module_simplified

    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    kept = []

    def backend(gm, inputs):
        def forward(graph, arguments):
            kept.append(torchair.get_compiler(config)(graph, arguments))
            return kept[-1]

        return aot_module_simplified(gm, inputs, fw_compiler=forward)

    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(lambda x: x * 2 + 1, backend=backend)(x), x * 2 + 1)
    again = type(kept[0]).load_artifacts(kept[0].dump_artifacts())
    torch.testing.assert_close(again(x)[0], x * 2 + 1)


def test_inputs_of_a_graph_without_sizes():
    with ge_graph.GeGraph(name="manners"):
        x = ge_apis.Data(index=0, dtype=ge_graph.DataType.DT_FLOAT)
        made = ge_apis.Abs(x)
    assert made.dtype is ge_graph.DataType.DT_FLOAT
    assert x.node.op == "Data"


def test_core_numbers_inside_a_compiled_function():
    import npugraph_ex

    def f(x):
        with npugraph_ex.scope.limit_core_num(4, 5):
            return x * 2

    x = torch.randn(3)
    torch.testing.assert_close(compiled(f)(x), x * 2)
