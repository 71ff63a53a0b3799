"""Calls: binding, constants, dynamic ports, refusals; custom_op and Clone."""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

from ge_graph import DataType, Graph, GraphError, Literal, Provenance, attrs, builder, building, schema
from ge_graph import ops as ge
from ge_graph.codegen import stubs

D = DataType


@pytest.fixture
def graph():
    made = Graph()
    with building(made):
        yield made


@pytest.fixture
def x(graph):
    return ge.Data(index=0, dtype=D.DT_FLOAT, shape=(2, "s0"))


@pytest.fixture
def y(graph, x):
    return ge.Data(index=1, dtype=D.DT_FLOAT, shape=(2, "s0"))


def test_inputs_by_position_and_by_name(x, y):
    node = ge.MatMulV2(x, x2=y, transpose_x2=True, node_name="mm").node
    assert node.inputs == [x, y, None, None]
    assert node.name == "mm"
    assert {n: a.value for n, a in node.attrs.items()} == {"transpose_x1": False, "transpose_x2": True, "offset_x": 0}
    node = ge.MatMulV2(x, y, offset_w=ge.Const([0], D.DT_INT8)).node
    assert node.inputs[2] is None
    assert node.inputs[3].dtype is D.DT_INT8


def test_names_that_python_forbids(x, graph):
    node = ge.SelectV2(ge.Less(x, 1.0), x, else_=0.0).node
    assert node.inputs[2].node.op == "Const"
    index = ge.Const([[0]], D.DT_INT64)
    gathered = ge.GatherD(x, dim=1, index=index, attr_dim=1).node
    assert gathered.attr("dim") == 1
    assert gathered.inputs[1].node.op == "Const"


def test_dynamic_inputs_count_themselves(x, y):
    node = ge.ConcatV2([x, y, x], 1).node
    assert node.inputs[0] == (x, y, x)
    assert node.attr("N") == 3
    assert ge.Pack([x, y], axis=0).node.attr("N") == 2
    assert ge.ConcatV2([x, y], 1, N=7).node.attr("N") == 7


def test_dynamic_outputs(x):
    parts = ge.SplitV(x, [1, 1], 0, num_split=2)
    assert [p.index for p in parts] == [0, 1]
    assert parts[0].node.output_counts == {"y": 2}
    assert len(ge.Unpack(x, num=2, size_of_y=2)) == 2
    assert len(ge.DynamicPartition(x, ge.Const([0, 1], D.DT_INT32), num_partitions=3)) == 3
    with pytest.raises(GraphError, match="size_of_y=N"):
        ge.PhonySplit(x, split_dim=[0], num_split=[2])


def test_scope_attributes_provenance_and_dependencies(graph, x, y):
    graph.scope_attrs = {"_user_stream_label": attrs.Str("s1")}
    graph.provenance = Provenance(fx_name="add", source="model.py:3 in forward")
    z = ge.Add(x, 1.5, dependencies=[y])
    assert z.node.attr("_user_stream_label") == "s1"
    assert z.node.provenance.source == "model.py:3 in forward"
    assert z.node.control == [y.node]
    constant = z.node.inputs[1].node
    assert "_user_stream_label" not in constant.attrs  # shared with other scopes


# -- constants ---------------------------------------------------------------------------------------------------------


def test_numbers_take_the_type_of_the_sibling(graph, x):
    assert ge.Add(x, 2).node.inputs[1].dtype is D.DT_FLOAT
    half = ge.Cast(x, dst_type=D.DT_BF16)
    two = ge.Mul(half, 2).node.inputs[1].node.attr("value")
    assert isinstance(two, Literal)
    assert two.data.tolist() == [0, 64]  # 2.0 in bfloat16 is 0x4000
    whole = ge.Cast(x, dst_type=D.DT_INT64)
    assert ge.Add(whole, 3).node.inputs[1].dtype is D.DT_INT64
    with pytest.raises(GraphError, match="GE3015.*2.5.*DT_INT64"):
        ge.Add(whole, 2.5)


def test_numbers_without_sibling(x):
    assert ge.Reshape(x, [2, 3]).node.inputs[1].dtype is D.DT_INT64
    assert ge.Empty([2, 3]).node.inputs[0].dtype is D.DT_INT32  # the port knows INT32 only
    assert ge.Fill([2], 1.0).dtype is D.DT_FLOAT
    assert ge.Fill([2], True).dtype is D.DT_BOOL
    assert ge.Fill([2], 1).dtype is D.DT_INT64
    assert ge.Transpose(x, []).node.inputs[1].dtype is D.DT_INT64


def test_constants_are_shared_by_value(graph, x):
    a, b = ge.Add(x, 2.0), ge.Mul(x, 2)
    assert a.node.inputs[1] is b.node.inputs[1]
    assert ge.Const(0.0) is not ge.Const(-0.0)
    assert ge.Const(1) is not ge.Const(1.0)
    assert ge.Const(1) is not ge.Const(True)
    assert ge.Const([1, 2]) is ge.Const(np.array([1, 2]))
    assert ge.Const(float("nan")) is ge.Const(float("nan"))
    assert ge.Const(5, node_name="five") is not ge.Const(5)
    graph.remove([a.node, b.node, a.node.inputs[1].node])
    assert ge.Const(2.0).node in graph.nodes  # a dropped constant is not handed out again


def test_large_constants_are_neither_hashed_nor_copied(graph):
    weights = np.zeros(100_000, np.float32)
    first = builder.constant(graph, weights)
    assert first.node.attr("value") is weights
    assert builder.constant(graph, weights) is first
    assert builder.constant(graph, weights.copy()) is not first
    small = np.zeros(4, np.float32)
    kept = builder.constant(graph, small).node.attr("value")
    small[0] = 7
    assert kept[0] == 0


def test_bfloat16_rounds_to_nearest_even(graph):
    values = [1.0, 1.00390625, 1.01171875, 3.4e38, float("inf"), float("-inf"), -0.0]
    bits = builder.as_value(values, D.DT_BF16).data.view("<u2")
    assert [hex(b) for b in bits] == ["0x3f80", "0x3f80", "0x3f82", "0x7f80", "0x7f80", "0xff80", "0x8000"]
    nan = builder.as_value(float("nan"), D.DT_BF16).data.view("<u2")[0]
    assert nan & 0x7F80 == 0x7F80
    assert nan & 0x7F


def test_readable_constants(graph):
    assert ge.Const([1, 2]).node.attr("_readable_value") == "[1, 2]"
    assert ge.Const([3, 4], readable=False).node.attr("_readable_value") is None
    assert ge.Const([3, 4]).node.attr("_readable_value") == "[3, 4]"  # the shared node gets it when somebody asks
    assert builder.constant(graph, 2.5).node.attr("_readable_value") is None
    assert ge.Const(2.5).node.attr("_readable_value") == "2.5"


@pytest.mark.parametrize("value", ["text", object(), [[1], [1, 2]], {"a": 1}, None])
def test_what_is_no_constant(graph, value):
    with pytest.raises(GraphError, match="GE3015"):
        ge.Const(value)


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        (lambda x, y: ge.Addd(x, y), "GE3019", "Add"),
        (lambda x, y: ge.Add(x), "GE3013", "needs input 'x2'"),
        (lambda x, y: ge.Add(x, y, x), "GE3013", "at most 2 inputs"),
        (lambda x, y: ge.Add(x, y, x1=x), "GE3013", "twice"),
        (lambda x, y: ge.MatMulV2(x, y, tranpose_x1=True), "GE3013", "did you mean transpose_x1"),
        (lambda x, y: ge.MatMulV2(x, y, transpose_x1=1), "GE3002", "must be Bool"),
        (lambda x, y: ge.Cast(x), "GE3013", "needs attribute dst_type"),
        (lambda x, y: ge.Gather(x, y), "GE3018", "DT_FLOAT; the operator knows DT_INT32, DT_INT64"),
        (lambda x, y: ge.Add(x, ge.Const(1)), "GE3018", "one type, got DT_FLOAT and DT_INT64"),
        (lambda x, y: ge.ConcatV2(x, 0), "GE3013", "takes a list of tensors"),
        (lambda x, y: ge.ConcatV2([x, None], 0), "GE3013", "part 1"),
        (lambda x, y: ge.Reshape(x, [ge.Const(1), 2]), "GE3013", "ge.Pack"),
        (lambda x, y: ge.Add(x, "y"), "GE3013", "got str"),
        (lambda x, y: ge.If(ge.Const(True), [x]), "GE3013", "then_branch"),
        (lambda x, y: ge.Add(x, y, dependencies=[1]), "GE3017", "dependencies"),
        (lambda x, y: ge.Data(index=0, dtype=D.DT_FLOAT, shape=(), placement="GPU"), "GE3016", "placement"),
    ],
)
def test_wrong_calls_fail_where_they_are_made(graph, x, y, call, code, says):
    before = len(graph.nodes)
    with pytest.raises(GraphError) as caught:
        call(x, y)
    assert caught.value.code == code
    assert says in str(caught.value)
    assert all(n.op in ("Const", "Data") for n in graph.nodes[before:])  # nothing half-built stays


def test_tensors_of_another_graph(x):
    with building(Graph("other")), pytest.raises(GraphError, match="GE3017"):
        ge.Relu(x)


def test_no_graph_is_being_built():
    with pytest.raises(GraphError, match="GE3006"):
        ge.Const(1)


def test_unknown_operators_behave_like_missing_attributes():
    assert not hasattr(ge, "NoSuchOperator")
    assert "MatMulV2" in dir(ge)


# -- custom_op and Clone -----------------------------------------------------------------------------------------------


def test_clone_is_a_tensor_move(x, y):
    z = ge.Clone(x, dependencies=[y], node_name="copy")
    assert (z.node.op, z.node.name, z.node.control) == ("TensorMove", "copy", [y.node])


def test_custom_op_positional(x, y):
    z = ge.custom_op("MatMulV2", x, y, None, None, True, False, 0)
    assert z.node.attr("transpose_x1") is True
    with pytest.warns(UserWarning, match="'MatMulV2'.*: attrs are not used"):
        z = ge.custom_op("MatMulV2", x, y, attrs={"transpose_x1": True})
    assert z.node.attr("transpose_x1") is not True
    found = ge.custom_op("TopKV2", x, 3)
    assert isinstance(found, list)
    assert len(found) == 2
    with pytest.raises(GraphError, match="dynamic outputs"):
        ge.custom_op("Unpack", x, 2)
    with pytest.raises(GraphError, match="GE3013"):
        ge.custom_op("Relu", x, 1, 2)


def test_custom_op_by_keyword(x, y):
    z = ge.custom_op(
        "MatMulV2",
        inputs={"x1": x, "x2": y, "bias": None},
        outputs=["y"],
        attrs={"transpose_x1": attrs.Bool(True), "_mine": attrs.Int(3)},
    )
    assert z.node.attr("transpose_x1") is True
    assert z.node.attr("_mine") == 3
    parts = ge.custom_op("Unpack", inputs={"x": x}, outputs=[("y", 2)], attrs={"num": attrs.Int(2)})
    assert len(parts) == 2


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"inputs": {"x2": 1, "x1": 1}}, "order x1, x2"),
        ({"inputs": {"z": 1}}, "no input z"),
        ({"attrs": {"transpose_x1": True}}, "needs a type"),
        ({"attrs": {"transpose_x1": attrs.Int(1)}}, "must be Bool"),
        ({"attrs": {"mine": attrs.Int(1)}}, "no attribute mine"),
        ({"outputs": ["z"]}, "outputs of MatMulV2 are y"),
    ],
)
def test_custom_op_refusals(x, y, keywords, says):
    with pytest.raises(GraphError, match=says):
        ge.custom_op("MatMulV2", **{"inputs": {"x1": x, "x2": y}, **keywords})


def test_custom_op_of_an_unregistered_operator(x):
    with pytest.raises(GraphError, match=r"GE3019[\s\S]*register_schema"):
        ge.custom_op("QqqZzz", x)


# -- stub and speed ----------------------------------------------------------------------------------------------------


def test_stub_is_up_to_date():
    assert stubs.main(["--check"]) == 0, "run `python -m ge_graph.codegen.stubs`"


def test_stub_has_every_operator_once():
    text = stubs.STUB.read_text(encoding="utf-8")
    names = [line[4 : line.index("(")] for line in text.splitlines() if line.startswith("def ")]
    assert len(names) == len(set(names))
    assert set(names) | {"Clone", "custom_op", "NetOutput"} >= set(schema.builtin_names())
    compile(text, "ops.pyi", "exec")


def test_a_call_costs_few_calls_however_large_the_graph(graph, x, y):
    def calls() -> int:
        found: list[str] = []
        sys.setprofile(lambda frame, event, arg: found.append(event))
        try:
            ge.Add(x, y)
        finally:
            sys.setprofile(None)
        return len([e for e in found if e in ("call", "c_call")])

    ge.Add(x, y)
    first = calls()
    for _ in range(2000):
        ge.Add(x, y)
    assert calls() == first < 60


def test_torch_types_are_refused_with_their_spelling(x):
    torch_type = type("dtype", (), {"__repr__": lambda _: "torch.float16"})()
    for call in (lambda: ge.Const(1, torch_type), lambda: ge.Cast(x, dst_type=torch_type)):
        with pytest.raises(GraphError, match="DT_FLOAT16") as caught:
            call()
        assert caught.value.next == "write ge.DataType.DT_FLOAT16"
    with pytest.raises(GraphError, match="99 is not a GE element type"):
        ge.Const(1, 99)


def test_attribute_of_kind_type_has_a_constructor():
    assert attrs.DataType(9) == attrs.Attr(attrs.Kind.TYPE, D.DT_INT64)
    with pytest.raises(GraphError, match="GE3002"):
        attrs.DataType(5)


def test_imaginary_parts_are_not_dropped(graph):
    with pytest.raises(GraphError, match="does not fit DT_FLOAT"):
        ge.Const(1 + 2j, D.DT_FLOAT)
    assert ge.Const(3 + 0j, D.DT_FLOAT).node.attr("value") == 3.0
    assert np.isnan(ge.Const(float("nan"), D.DT_FLOAT16).node.attr("value"))


def test_foreign_arrays_that_numpy_cannot_read(graph):
    class Foreign:
        def __array__(self, *_, **__):
            raise TypeError("Got unsupported ScalarType BFloat16")

    with pytest.raises(GraphError, match="is not a constant: Got unsupported ScalarType"):
        ge.Const(Foreign())


def test_a_tensor_has_no_truth_value(x):
    with pytest.raises(GraphError, match="GE3003"):
        ge.Add(x, 1.0) if x else x


@pytest.mark.parametrize("keywords", [{"inputs": [1]}, {"inputs": {}, "attrs": ["axes"]}, {"outputs": "y"}])
def test_custom_op_takes_dicts_and_lists(graph, keywords):
    with pytest.raises(GraphError, match="GE3013"):
        ge.custom_op("Add", **keywords)


def test_wrappers_show_their_signature():
    text = str(inspect.signature(ge.MatMulV2))
    assert text.startswith("(x1, x2, bias=None, offset_w=None, *, transpose_x1=False"), text
    assert str(inspect.signature(ge.Cast)) == "(x, *, dst_type, dependencies=(), node_name=None)"
    assert str(inspect.signature(ge.AddN)) == "(x=(), *, N=None, dependencies=(), node_name=None)"
    for name in schema.names():
        inspect.signature(getattr(ge, name))


def test_an_attribute_that_names_no_type_is_refused(x):
    with pytest.raises(GraphError, match="99 is not a GE element type"):
        ge.Cast(x, dst_type=99)
