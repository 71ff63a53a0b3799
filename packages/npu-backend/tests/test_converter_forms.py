"""Converter files in the forms in which they exist; each is written anew here, after the pattern."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from ge_converters.base.errors import LoweringError
from ge_converters.lowering import lower
from ge_graph import schema
from ge_graph.attrs import Kind
from ge_graph.errors import GraphError
from ge_graph.verify import verify
from torchair import ge as public
from torchair._ge_concrete_graph import ge_apis as ge
from torchair._ge_concrete_graph import ge_ir_pb2
from torchair._ge_concrete_graph.compat_ir import IrDef, ge_op
from torchair._ge_concrete_graph.fx2ge_converter import declare_supported, register_fx_node_ge_converter
from torchair._ge_concrete_graph.supported_declaration import F16, F32, I32, Support, _TypedTensor
from torchair._ge_concrete_graph.utils import dtype_promote
from torchair.ge import attr
from torchair.ge._ge_graph import (
    DataType,
    GeGraph,
    Tensor,
    TensorSpec,
    TensorType,
    _ge_dtype_to_ge_proto_dtype,
    auto_convert_to_tensor,
    compat_as_bytes,
    compat_as_bytes_list,
    get_default_ge_graph,
    get_invalid_desc,
    next_unique_name,
    torch_dtype_value_to_ge_proto_type,
    torch_dtype_value_to_ge_type,
    trans_to_list_list_float,
    trans_to_list_list_int,
)

LIBRARY = torch.library.Library("converter_forms", "DEF")


def define(text, fn):
    name = text.split("(")[0]
    LIBRARY.define(text)
    LIBRARY.impl(name, fn, "CompositeExplicitAutograd")
    torch.library.register_fake(f"converter_forms::{name}", fn, lib=LIBRARY)
    return getattr(torch.ops.converter_forms, name).default


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    monkeypatch.setattr(torchair.logger, "warning", lambda text, *args: seen.append(text % args))
    return seen


def compiled(op, *args, **kwargs):
    tensors = [a for a in args if isinstance(a, torch.Tensor)]

    def call(*given):
        left = iter(given)
        return op(*(next(left) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)

    return torch.compile(call, backend="npu", fullgraph=True)(*tensors)


def graph_of(op, *args):
    gm = make_fx(lambda *given: op(*given), tracing_mode="fake")(*args)
    graph = lower(gm).graph
    verify(graph)
    return graph


# -- operators made field by field -------------------------------------------------------------------------------------


@auto_convert_to_tensor([False], [False])
def Swish(x: Tensor, *, scale: float = 1.0, dependencies=[], node_name=None):
    op = get_default_ge_graph().op.add()
    op.type = "Swish"
    op.name = next_unique_name(node_name, "Swish")
    for dependency in dependencies:
        op.input.append(dependency.controller)
    op.input.append(x.tensor)
    op.input_desc.add().CopyFrom(x.desc)
    op.input_desc[-1].name = "x"
    op.attr["scale"].f = scale
    output_index = 0
    op.output_desc.add().name = "y"
    y = Tensor(op, output_index)
    output_index += 1
    return y


def ConcatD(x, concat_dim, n):
    op = get_default_ge_graph().op.add()
    op.type = "ConcatD"
    op.name = next_unique_name(None, "ConcatD")
    for i, v in enumerate(x):
        op.input.append(v.tensor)
        op.input_desc.add().CopyFrom(v.desc)
        op.input_desc[-1].name = "x" + str(i)
    op.attr["concat_dim"].i = concat_dim
    op.attr["N"].i = n
    op.output_desc.add().name = "y"
    return Tensor(op, 0)


def SplitD(x, split_dim, num_split):
    op = get_default_ge_graph().op.add()
    op.type = "SplitD"
    op.input.append(x.tensor)
    op.input_desc.add().name = "x"
    op.attr["split_dim"].i = split_dim
    op.attr["num_split"].i = num_split
    for i in range(num_split):
        op.output_desc.add().name = "y" + str(i)
    return [Tensor(op, i) for i in range(num_split)]


def Clip(x, low):
    op = get_default_ge_graph().op.add()
    op.type = "LayerNormV4"
    for name, tensor in (("x", x), ("normalized_shape", low), ("gamma", None), ("beta", None)):
        if tensor is not None:
            op.input.append(tensor.tensor)
            op.input_desc.add().CopyFrom(tensor.desc)
        else:
            op.input.append("")
            op.input_desc.add().CopyFrom(get_invalid_desc())
        op.input_desc[-1].name = name
    op.attr["epsilon"].f = 1e-5
    for name in ("y", "mean", "rstd"):
        op.output_desc.add().name = name
    return Tensor(op, 0)


def test_operator_made_field_by_field():
    op = define("swish(Tensor x, float scale=1.0) -> Tensor", lambda x, scale=1.0: x * torch.sigmoid(x * scale))

    @declare_supported([Support(F32(2, 2), 2.0), Support(F16(4))])
    @register_fx_node_ge_converter(op)
    def conveter_swish(x: Tensor, scale: float = 1.0, meta_outputs: TensorSpec = None):
        return Swish(x, scale=scale)

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(op, x, 2.0), op(x, 2.0))


def test_dynamic_inputs_and_outputs_and_controllers():
    op = define("halves(Tensor x) -> Tensor", lambda x: torch.cat([x[2:], x[:2]]))

    @register_fx_node_ge_converter(aten_op=op)
    def converter(x, meta_outputs=None):
        first, second = SplitD(x, 0, 2)
        waits = Swish(x, dependencies=[first])
        assert first.node in waits.node.control
        return ConcatD([second, first], 0, 2)

    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(op, x), op(x))


def test_optional_inputs_that_are_not_fed():
    op = define("norm(Tensor x) -> Tensor", lambda x: torch.nn.functional.layer_norm(x, (4,)))

    @register_fx_node_ge_converter(op)
    def converter(x, meta_outputs=None):
        return Clip(x, ge.Const([4], dtype=DataType.DT_INT32))

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(op, x), op(x), rtol=1e-4, atol=1e-4)


def test_an_operator_that_is_wrong_is_refused():
    graph = GeGraph(name="g")
    with graph:
        op = graph.op.add()
        op.type = "Swish"
        op.output_desc.add().name = "y"
        with pytest.raises(GraphError):
            Tensor(op, 0)
        with pytest.raises(GraphError, match="GE3013"):
            op.attr["scale"].float = 1.0
        with pytest.raises(GraphError, match="GE3013"):
            Tensor(3, 0)


def test_attributes_of_every_kind():
    op = ge_ir_pb2.OpDef()
    op.attr["s"].s = compat_as_bytes("text")
    op.attr["i"].i = 3
    op.attr["f"].f = 0.5
    op.attr["b"].b = True
    op.attr["t"].dt = _ge_dtype_to_ge_proto_dtype(DataType.DT_BOOL)
    op.attr["ls"].list.s.extend(compat_as_bytes_list(["a", "b"]))
    op.attr["li"].list.i.extend([1, 2])
    op.attr["lf"].list.f.append(0.5)
    op.attr["lb"].list.b.extend([True])
    op.attr["ll"].list_list_int.list_list_i.add().list_i.extend([1, 2])
    op.attr["lg"].list_list_float.list_list_f.add().list_f.extend([1.5])
    op.attr["none"].list.val_type = 3
    values = {name: (a.value().kind, a.value().value) for name, a in op.attr.items()}
    assert values == {
        "s": (Kind.STRING, "text"),
        "i": (Kind.INT, 3),
        "f": (Kind.FLOAT, 0.5),
        "b": (Kind.BOOL, True),
        "t": (Kind.TYPE, DataType.DT_BOOL),
        "ls": (Kind.LIST_STRING, ("a", "b")),
        "li": (Kind.LIST_INT, (1, 2)),
        "lf": (Kind.LIST_FLOAT, (0.5,)),
        "lb": (Kind.LIST_BOOL, (True,)),
        "ll": (Kind.LIST_LIST_INT, ((1, 2),)),
        "lg": (Kind.LIST_LIST_FLOAT, ((1.5,),)),
        "none": (Kind.LIST_FLOAT, ()),
    }


# -- parameters ------------------------------------------------------------------------------------------------------


PARAMETERS = {
    "other names": (lambda input, factor=1.0, meta_outputs=None: ge.Mul(input, factor), {}, "by position"),
    "keyword-only left out": (lambda x, k=1.0, meta_outputs=None: ge.Mul(x, k), {}, "no parameter for 'mode'"),
    "keyword by position": (lambda x, k=1.0, mode=0, meta_outputs=None: ge.Mul(x, k), {}, "'mode' by name"),
    "extra with a default": (
        lambda x, k=1.0, *, mode=0, out=None, flag=3, meta_outputs=None: ge.Mul(x, k),
        {},
        "further parameters 'flag'",
    ),
    "positional as keyword": (lambda x, *, k=1.0, mode=0, meta_outputs=None: ge.Mul(x, k), {}, "'k' by name"),
    "anything": (lambda *args, **kwargs: ge.Mul(args[0], args[1]), {}, ""),
    "no meta_outputs": (lambda x, k=1.0, *, mode=0: ge.Mul(x, k), {}, ""),
    "as the schema": (lambda x, k=1.0, *, mode=0, meta_outputs=None: ge.Mul(x, k), {}, ""),
}
COUNT = iter(range(1000))


def scaled(x, k=1.0, *, mode=0):
    return x * k


def new_scaled():
    return define(f"scaled_{next(COUNT)}(Tensor x, float k=1.0, *, int mode=0) -> Tensor", scaled)


@pytest.mark.parametrize("what", PARAMETERS)
def test_parameters(what, warnings):
    fn, _, warning = PARAMETERS[what]
    op = new_scaled()
    assert register_fx_node_ge_converter(op)(fn) is fn
    x = torch.randn(3)
    torch.testing.assert_close(compiled(op, x, 2.5), x * 2.5)
    torch.testing.assert_close(compiled(op, x), x)
    assert bool(warnings) == bool(warning)
    assert all(warning in text for text in warnings)


def test_what_has_no_parameter_is_refused_when_it_is_used(warnings):
    op = new_scaled()
    register_fx_node_ge_converter(op)(lambda x, meta_outputs=None: ge.Identity(x))
    x = torch.randn(3)
    torch.testing.assert_close(compiled(op, x, 1.0), x)
    with pytest.raises(Exception, match="argument 'k'"):
        compiled(op, x, 2.0)
    with pytest.raises(Exception, match="argument 'mode'"):
        compiled(op, x, mode=1)


@pytest.mark.parametrize(
    "fn", [lambda x, k, mode, further, meta_outputs=None: x, lambda x, k=1.0, *, mode=0, need, meta_outputs=None: x]
)
def test_what_can_never_be_called_is_refused(fn):
    with pytest.raises(LoweringError, match="GE2002"):
        register_fx_node_ge_converter(new_scaled())(fn)


def test_no_operator_is_refused_where_the_decorator_stands():
    for wrong in (torch.ops.aten.add, 3, None):
        with pytest.raises(LoweringError, match="GE2003"):
            register_fx_node_ge_converter(wrong)
    with pytest.raises(LoweringError, match="GE2003"):
        register_fx_node_ge_converter(op=torch.ops.aten.add.Tensor)


# -- calls and types -------------------------------------------------------------------------------------------------


def test_several_operators_of_one_function_are_registered_strictly(caplog):
    from ge_converters.registry import REGISTRY

    larger, smaller = torch.ops.aten.fmax.default, torch.ops.aten.fmin.default
    forms = [Support(I32(4), I32(4))]

    @torchair.register_fx_node_ge_converter({larger: forms}, fixed={"op": public.Maximum}, names={"other": "second"})
    @torchair.register_fx_node_ge_converter({smaller: forms}, fixed={"op": public.Minimum}, names={"other": "second"})
    def extreme(self, second, *, op, meta_outputs):
        return op(self, second)

    try:
        for target in (larger, smaller):
            assert REGISTRY.find(target).layer == "user"
            assert REGISTRY.find(target).supports == tuple(forms)
        gm = make_fx(lambda x, y: (larger(x, y), smaller(x, y)))(torch.ones(4), torch.ones(4))
        assert [n.op for n in lower(gm).graph.nodes if n.op.endswith("imum")] == ["Maximum", "Minimum"]
        with pytest.raises(LoweringError, match="'second' is missing|'other' is missing"):
            torchair.register_fx_node_ge_converter({larger: forms}, fixed={"op": 1})(extreme)
    finally:
        for target in (larger, smaller):
            REGISTRY.unregister(target)
    assert not caplog.records


def test_calls_in_the_bundled_words():
    op = define("rows(Tensor x) -> Tensor", lambda x: x.reshape(2, 2) * 2)

    @register_fx_node_ge_converter(op)
    def converter(x, meta_outputs=None):
        two = ge.Cast(public.Const(v=2), dst_type=x.dtype)
        shape = ge.ConcatV2([ge.Const([2], dtype=DataType.DT_INT32), ge.Const([2], DataType.DT_INT32)], 0, N=2)
        assert x.rank == 1
        x, two = dtype_promote(x, two, target_dtype=meta_outputs.dtype)
        return ge.Reshape(ge.Mul(x, two), shape)

    x = torch.randn(4)
    torch.testing.assert_close(compiled(op, x), op(x))


def test_described_operator():
    op = define("described(Tensor x, float k) -> Tensor", lambda x, k: x.clone())

    @register_fx_node_ge_converter(op)
    def converter(x, k, meta_outputs=None):
        return ge_op(
            op_type="FormsDescribed",
            inputs={"x": x},
            attrs={"k": attr.Float(k), "mode": attr.String("rint")},
            outputs=["y"],
            ir=IrDef("FormsDescribed")
            .input("x", "DT_FLOAT, DT_FLOAT16")
            .attr("k", attr.Float(1.0))
            .attr("mode", attr.Str("rint"))
            .output("y", "DT_FLOAT, DT_FLOAT16"),
        )

    graph = graph_of(op, torch.randn(3), 2.0)
    assert [n.op for n in graph.nodes if n.op != "Data"] == ["FormsDescribed"]


def two_results(a, b=None, k=1):
    return a.half(), a + 1


def test_operator_without_schema(monkeypatch):
    said = []
    monkeypatch.setattr(torchair.logger, "warning_once", lambda text, *args: said.append(text % args))
    op = define("unknown(Tensor a, Tensor? b=None, int k=1) -> (Tensor, Tensor)", two_results)

    @register_fx_node_ge_converter(op)
    def converter(a, b=None, k=1, meta_outputs=None):
        return torchair.ge.custom_op(
            "FormsUnknown",
            inputs={"a": a, "b": b},
            outputs=["y", "z"],
            attrs={"k": attr.Int(k), "dst": attr.DataType(torch_dtype_value_to_ge_proto_type(torch.bool))},
        )

    x = torch.randn(3)
    for b in (None, torch.ones(2, dtype=torch.int64)):
        graph = graph_of(op, x, b, 4)
        node = next(n for n in graph.nodes if n.op == "FormsUnknown")
        assert [t.dtype for t in node.outputs] == [DataType.DT_FLOAT16, DataType.DT_FLOAT]
        assert node.attr("k") == 4
        assert node.attr("dst") is DataType.DT_BOOL
        assert (node.inputs[1] is None) == (b is None)
    assert "unverified" in schema.require("FormsUnknown").source
    assert sum("FormsUnknown" in text for text in said) == 1
    with pytest.warns(UserWarning, match="FormsUnknown has no kernel on the embedded engine"):
        got = compiled(op, x)
    torch.testing.assert_close(got, op(x))


def test_operator_without_schema_needs_the_types_of_its_results():
    op = define("unknown_3(Tensor a) -> Tensor", lambda a: a + 1)

    @register_fx_node_ge_converter(op)
    def converter(a, meta_outputs=None):
        return torchair.ge.custom_op("FormsThree", inputs={"a": a}, outputs=["x", "y", "z"])[0]

    with pytest.raises(LoweringError, match="types are not known"):
        graph_of(op, torch.randn(3))


def test_types_under_their_older_names():
    assert DataType.DT_FLOAT32 is public.DataType.DT_FLOAT
    assert DataType.DT_BFLOAT16 is public.DataType.DT_BF16
    assert DataType.DT_MAX == 42
    assert TensorType.TT_ALL
    assert torch_dtype_value_to_ge_type(15) is public.DataType.DT_BF16
    assert torch_dtype_value_to_ge_type(torch.int8) is public.DataType.DT_INT8
    assert torch_dtype_value_to_ge_proto_type(5) == 2
    assert torch_dtype_value_to_ge_type(290) is public.DataType.DT_HIFLOAT8
    assert torch_dtype_value_to_ge_type(296) is public.DataType.DT_FLOAT4_E2M1
    assert torch_dtype_value_to_ge_proto_type(297) == 40
    assert trans_to_list_list_int([(1, 2)]) == [[1, 2]]
    assert trans_to_list_list_float([(1, 2)]) == [[1.0, 2.0]]
    assert isinstance(I32(2), _TypedTensor)
    with pytest.raises(GraphError, match="GE3001"):
        torch_dtype_value_to_ge_type(999)
    with pytest.raises(AttributeError, match="GE1066"):
        _ = DataType.DT_NOTHING
