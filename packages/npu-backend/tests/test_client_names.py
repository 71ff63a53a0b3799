"""Names that clients use, used as they use them: what a name promises is what is asked."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx.experimental.proxy_tensor import make_fx

import npugraph_ex
import torchair
from ge_converters import lower
from ge_graph.attrs import Kind
from ge_graph.verify import verify
from npugraph_ex.configs import compiler_config as captured_config
from npugraph_ex.configs import npugraphex_config
from torchair import ge as public
from torchair._ge_concrete_graph import ge_apis, ge_ir_pb2
from torchair._ge_concrete_graph import supported_declaration as declared
from torchair._ge_concrete_graph.fx2ge_converter import declare_supported, register_fx_node_ge_converter
from torchair.configs.npugraphex_config import _process_kwargs_options
from torchair.ge import DataType, attr
from torchair.ge._ge_graph import Tensor
from torchair.ge_concrete_graph import ge_apis as older_apis
from torchair.ge_concrete_graph import ge_graph as older_graph
from torchair.npu_fx_compiler import _optimize_fx, _unpack_meta, _unpack_meta_list

# of GE's public header; programs keep them as numbers in files
NUMBERS = {
    "DT_FLOAT": 0,
    "DT_FLOAT16": 1,
    "DT_INT8": 2,
    "DT_INT32": 3,
    "DT_UINT8": 4,
    "DT_INT16": 6,
    "DT_UINT16": 7,
    "DT_UINT32": 8,
    "DT_INT64": 9,
    "DT_UINT64": 10,
    "DT_DOUBLE": 11,
    "DT_BOOL": 12,
    "DT_STRING": 13,
    "DT_DUAL_SUB_INT8": 14,
    "DT_DUAL_SUB_UINT8": 15,
    "DT_COMPLEX64": 16,
    "DT_COMPLEX128": 17,
    "DT_QINT8": 18,
    "DT_QINT16": 19,
    "DT_QINT32": 20,
    "DT_QUINT8": 21,
    "DT_QUINT16": 22,
    "DT_RESOURCE": 23,
    "DT_STRING_REF": 24,
    "DT_DUAL": 25,
    "DT_VARIANT": 26,
    "DT_BF16": 27,
    "DT_UNDEFINED": 28,
    "DT_INT4": 29,
    "DT_UINT1": 30,
    "DT_INT2": 31,
    "DT_UINT2": 32,
    "DT_COMPLEX32": 33,
    "DT_HIFLOAT8": 34,
    "DT_FLOAT8_E5M2": 35,
    "DT_FLOAT8_E4M3FN": 36,
    "DT_FLOAT8_E8M0": 37,
    "DT_FLOAT4_E2M1": 40,
    "DT_FLOAT4_E1M2": 41,
}
DOORS = ("torchair.ge", "torchair.ge._ge_graph", "torchair.ge_concrete_graph.ge_graph")
LIBRARY = torch.library.Library("client_names", "DEF")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("door", DOORS)
def test_numbers_of_types(door):
    types = importlib.import_module(door).DataType
    assert {name: int(getattr(types, name)) for name in NUMBERS} == NUMBERS
    assert int(types.DT_MAX) > max(NUMBERS.values())


def operator(text, kernel):
    name = text.partition("(")[0]
    LIBRARY.define(text)
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"client_names::{name}", kernel, lib=LIBRARY)
    return getattr(torch.ops.client_names, name).default


def bits(x):
    return x.view(torch.int32).clone()


CONVERTERS = {
    "bitcast": (bits, lambda x: ge_apis.Bitcast(x, type=DataType.DT_INT32)),
    "div": (lambda x: x / (x * x + 1), lambda x: ge_apis.Div(x, ge_apis.Add(ge_apis.Mul(x, x), 1.0))),
    "sizes": (lambda x: torch.tensor(x.shape, dtype=torch.int32), lambda x: ge_apis.Shape(x)),
    "filled": (
        lambda x: torch.full(x.shape, 2.5),
        lambda x: ge_apis.Fill(ge_apis.Shape(x), ge_apis.Const(2.5, DataType.DT_FLOAT)),
    ),
    "filled_by_the_older_door": (
        lambda x: torch.full((2, 3), 4, dtype=torch.int32),
        lambda x: older_apis.Fill(older_apis.Const([2, 3]), older_apis.Cast(older_apis.Const(4.0), dst_type=3)),
    ),
    "moved": (torch.clone, lambda x: ge_apis.TensorMove(x)),
    "cloned": (torch.clone, lambda x: public.Clone(x)),
    "flat_twice": (
        lambda x: torch.cat((x.flatten(), x.flatten())),
        lambda x: ge_apis.ConcatV2([ge_apis.Reshape(x, [-1]), ge_apis.Reshape(x, [-1])], 0, N=2),
    ),
    "public_cast": (lambda x: x.half(), lambda x: public.Cast(x, dst_type=DataType.DT_FLOAT16)),
    "public_const": (lambda x: x + 3, lambda x: ge_apis.Add(x, public.Const(3.0, DataType.DT_FLOAT))),
}


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("name", CONVERTERS)
def test_operators_of_a_client_compute(name):
    kernel, convert = CONVERTERS[name]
    op = operator(f"{name}(Tensor x) -> Tensor", kernel)

    @register_fx_node_ge_converter(op)
    def converter(x, meta_outputs=None):
        return convert(x)

    x = torch.rand(2, 3)
    f = torch.compile(lambda x: op(x * 2), backend=torchair.get_npu_backend(), fullgraph=True)
    torch.testing.assert_close(f(x), op(x * 2))


def test_a_cache_operator_of_a_client():
    """It has no kernel here: its node is what GE's schema asks for."""
    op = operator(
        "caches(Tensor k, Tensor v, Tensor kc, Tensor vc, Tensor at, Tensor s, Tensor sc) -> Tensor",
        lambda k, v, kc, *_: kc.clone(),
    )

    @register_fx_node_ge_converter(op)
    def converter(k, v, kc, vc, at, s, sc, meta_outputs=None):
        return ge_apis.ScatterPaKvCacheWithKScale(k, v, kc, vc, at, s, sc)[0]

    rows, pages = (torch.zeros(size).to(torch.float8_e4m3fn) for size in ((4, 2, 32), (3, 2, 16, 32)))
    sizes = (rows, rows, pages, pages, torch.zeros(4, dtype=torch.int32), torch.zeros(4, 2), torch.zeros(3, 2, 16))
    graph = lower(make_fx(op, tracing_mode="fake")(*sizes)).graph
    verify(graph)
    (node,) = [n for n in graph.nodes if n.op == "ScatterPaKvCacheWithKScale"]
    assert len(node.inputs) == 7


def test_attributes_of_every_type():
    made = {
        "Bool": attr.Bool(True),
        "Int": attr.Int(3),
        "Float": attr.Float(0.5),
        "Str": attr.Str("a"),
        "DataType": attr.DataType(DataType.DT_BF16),
        "ListBool": attr.ListBool([True, False]),
        "ListInt": attr.ListInt([1, 2]),
        "ListFloat": attr.ListFloat([0.5]),
        "ListStr": attr.ListStr(["a", "b"]),
        "ListDataType": attr.ListDataType([DataType.DT_INT8]),
        "ListListInt": attr.ListListInt([[1], [2, 3]]),
        "ListListFloat": attr.ListListFloat([[0.5]]),
    }
    op = operator("attributes(Tensor x) -> Tensor", torch.clone)

    @register_fx_node_ge_converter(op)
    def converter(x, meta_outputs=None):
        y = torchair.ge.custom_op("ClientAttributes", inputs={"x": x}, outputs=["y"], attrs=made)
        y.desc.dtype = x.desc.dtype
        return y

    graph = lower(make_fx(op, tracing_mode="fake")(torch.rand(2))).graph
    (node,) = [n for n in graph.nodes if n.op == "ClientAttributes"]
    kinds = [Kind.BOOL, Kind.INT, Kind.FLOAT, Kind.STRING, Kind.TYPE, Kind.LIST_BOOL, Kind.LIST_INT, Kind.LIST_FLOAT]
    kinds += [Kind.LIST_STRING, Kind.LIST_TYPE, Kind.LIST_LIST_INT, Kind.LIST_LIST_FLOAT]
    assert [node.attrs[name].kind for name in made] == kinds
    assert node.attr("ListListInt") == ((1,), (2, 3))
    assert node.attr("ListDataType") == (DataType.DT_INT8,)
    through_the_older_door = older_apis.attr
    assert through_the_older_door.Bool(True) == made["Bool"]
    assert through_the_older_door.Int(3) == made["Int"]
    assert through_the_older_door.Float(0.5) == made["Float"]
    assert through_the_older_door.Str("a") == made["Str"]


TYPES = {
    "BF16": torch.bfloat16,
    "BOOL": torch.bool,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "I8": torch.int8,
    "U8": torch.uint8,
}


def test_declared_types():
    """Each names its type: a case of it has tensors of that type, and a converter may declare it."""
    tensors = {name: getattr(declared, name)(2, 3) for name in TYPES}
    assert all(isinstance(t, declared._TypedTensor) for t in tensors.values())
    assert {name: t.dtype for name, t in tensors.items()} == TYPES
    op = operator("declared(Tensor x) -> Tensor", torch.clone)

    @declare_supported([declared.Support(t) for t in tensors.values()])
    @register_fx_node_ge_converter(op)
    def converter(x, meta_outputs=None):
        return ge_apis.Identity(x)

    for name, dtype in TYPES.items():
        x = torch.ones(2, 3).to(dtype)
        assert torch.equal(torch.compile(op, backend=torchair.get_npu_backend())(x), x), name


def test_a_graph_as_a_place_for_operators():
    """Files name these classes in annotations, and add nodes field by field."""
    op = operator("placed(Tensor x) -> Tensor", torch.neg)

    @register_fx_node_ge_converter(op)
    def converter(x, meta_outputs=None):
        assert type(ge_ir_pb2.TensorDef().desc) is ge_ir_pb2.TensorDescriptor
        added: ge_ir_pb2.OpDef = ge_ir_pb2.GraphDef().op.add()
        assert isinstance(added, ge_ir_pb2.OpDef)
        added.type, added.name = "Neg", "placed"
        added.input.append(x.tensor)
        added.input_desc.add().CopyFrom(x.desc)
        added.input_desc[-1].name = "x"
        result: ge_ir_pb2.TensorDescriptor = added.output_desc.add()
        assert isinstance(result, ge_ir_pb2.TensorDescriptor)
        result.name = "y"
        return Tensor(added, 0)

    x = torch.rand(3)
    torch.testing.assert_close(torch.compile(op, backend=torchair.get_npu_backend())(x), -x)


@pytest.mark.parametrize("door", DOORS[1:])
def test_nodes_made_by_either_door(door):
    """Optional operands that are not fed, attributes in bytes, names that nobody else has."""
    given = importlib.import_module(door)
    op = operator(
        f"normed_{DOORS.index(door)}(Tensor x) -> Tensor", lambda x: F.gelu(F.layer_norm(x, (4,)), approximate="tanh")
    )

    def node(kind, operands, results):
        made = given.get_default_ge_graph().op.add()
        made.type, made.name = kind, given.next_unique_name(None, kind)
        for name, operand in operands.items():
            made.input.append("" if operand is None else operand.tensor)
            made.input_desc.add().CopyFrom(given.get_invalid_desc() if operand is None else operand.desc)
            made.input_desc[-1].name = name
        for name in results:
            made.output_desc.add().name = name
        return made

    @register_fx_node_ge_converter(op)
    def converter(x: given.Tensor, meta_outputs: given.TensorSpec = None):
        assert isinstance(x, public.Tensor)
        assert isinstance(meta_outputs, public.TensorSpec)
        assert x.desc.layout == public.Format.FORMAT_ND.layout
        sizes = ge_apis.Const([4], DataType.DT_INT32)
        norm = node("LayerNormV4", {"x": x, "normalized_shape": sizes, "gamma": None, "beta": None}, ["y", "mean", "r"])
        norm.output_desc[-1].name = "rstd"
        gelu = node("GeluV2", {"x": given.Tensor(norm, 0)}, ["y"])
        gelu.attr["approximate"].s = given.compat_as_bytes("tanh")
        return given.Tensor(gelu, 0)

    x = torch.rand(3, 4)
    f = torch.compile(lambda x: op(x) + op(x + 1), backend=torchair.get_npu_backend(), fullgraph=True)
    torch.testing.assert_close(f(x), op(x) + op(x + 1))


def test_an_import_that_patches(monkeypatch):
    door = importlib.import_module("torchair.ge_concrete_graph.ge_converter.experimental.patch_for_hcom_allreduce")
    called = []
    monkeypatch.setattr("torchair.oplib.collectives.patch_for_hcom", lambda: called.append("patch_for_hcom"))
    importlib.reload(door)
    assert called


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


def test_a_cache_of_captured_graphs(tmp_path):
    model, x = Scaled(), torch.rand(3)
    for _ in range(2):
        call = npugraph_ex.inference.cache_compile(model.forward, cache_dir=str(tmp_path))
        torch.testing.assert_close(call(x), model(x))
        torch._dynamo.reset()
    (kept,) = tmp_path.rglob("compiled_module")
    npugraph_ex.inference.readable_cache(str(kept), print_output=False, file=str(tmp_path / "text"))
    assert "aten.mul" in (tmp_path / "text").read_text()


def test_static_sizes_by_the_older_door():
    graphs = []

    def backend(gm, inputs):
        graphs.append([tuple(i.shape) for i in inputs if isinstance(i, torch.Tensor)])
        return gm.forward

    f = torch.compile(lambda x: x * 2, backend=backend, dynamic=True)
    for rows in (2, 3):
        x = torch.rand(rows, 4)
        older_graph.mark_static(x)
        f(x)
    assert graphs == [[(2, 4)], [(3, 4)]]


def test_flat_options_of_a_call():
    for process, make in (
        (captured_config._process_kwargs_options, npugraph_ex.CompilerConfig),
        (npugraphex_config._process_kwargs_options, npugraph_ex.CompilerConfig),
        (_process_kwargs_options, torchair.CompilerConfig),
    ):
        config = make()
        options = {"clone_input": False} if make is npugraph_ex.CompilerConfig else {"mode": "reduce-overhead"}
        made = process(config, {"options": options})
        ((name, value),) = options.items()
        assert getattr(getattr(made, name), "value", getattr(made, name)) == value


def test_a_compiler_of_ones_own_looks_at_arguments():
    """As wrappers of the compiler do: the built-in passes on an ATen graph, and the fake value of each argument."""
    seen = []

    def compiler(gm, inputs):
        before = len(gm.graph.nodes)
        assert _optimize_fx(gm) is gm
        seen.append((before, len(gm.graph.nodes)))
        for node in gm.graph.nodes:
            if node.op == "call_function":
                metas = _unpack_meta_list(node.args)
                assert [m.shape for m in metas if isinstance(m, torch.Tensor)]
                assert type(metas) is list
                for m, arg in zip(metas, node.args):
                    assert _unpack_meta(arg) is m or _unpack_meta(arg) == m
        return torchair.get_compiler()(gm, inputs)

    def backend(gm, inputs):
        return aot_module_simplified(gm, inputs, fw_compiler=compiler)

    x = torch.rand(3, 4)
    f = torch.compile(lambda x: F.relu(x.view(4, 3).view(3, 4) + 0 * x), backend=backend)
    torch.testing.assert_close(f(x), F.relu(x))
    assert seen
    same = importlib.import_module("npugraph_ex.npu_fx_compiler")
    assert same._optimize_fx is _optimize_fx
    assert same._unpack_meta_list is _unpack_meta_list


def test_symbolic_lists_are_told_apart():
    """``_is_symlist`` is asked of arguments of a traced graph; a ``ValuePack`` carries the fake value of one."""
    from npugraph_ex.core import _concrete_graph as captured
    from torchair.core._concrete_graph import ValuePack, _is_symlist

    asked = []

    def compiler(gm, inputs):
        asked.extend(_is_symlist([i]) for i in inputs)
        return gm.forward

    def backend(gm, inputs):
        return aot_module_simplified(gm, inputs, fw_compiler=compiler)

    torch.compile(lambda x: x * x.shape[0], backend=backend, dynamic=True)(torch.rand(3, 4))
    assert True in asked
    assert False in asked
    assert captured._is_symlist is _is_symlist
    assert ValuePack(torch.ones(2)).meta.shape == (2,)


def test_a_table_of_decompositions_for_a_compiler_of_ones_own():
    table = torchair._utils.get_npu_default_decompositions()
    traced = make_fx(torch.ops.aten.aminmax.default, decomposition_table=table)(torch.rand(3))
    assert all(n.target is not torch.ops.aten.aminmax.default for n in traced.graph.nodes)
