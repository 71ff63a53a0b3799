"""Each rule of GE about a graph that it is handed: a graph that keeps it passes, one that breaks it is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ge_graph import DataType, Graph, Literal, attrs, building, passes, verify
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import Format
from ge_graph.ir import Node, Tensor
from ge_graph.rules import limits

D = DataType


def data(graph: Graph, index: int = 0, dtype: D = D.DT_FLOAT, shape=(4,)) -> Tensor:
    with building(graph):
        return ge.Data(index=index, dtype=dtype, shape=shape)


def plain() -> Graph:
    graph = Graph("g")
    x = data(graph)
    with building(graph):
        graph.outputs = [ge.Add(ge.Relu(x), 2.0)]
    return graph


def assigning(value: str) -> Graph:
    """``Assign`` into a tensor of the kind asked for."""
    graph = Graph("g")
    x = data(graph)
    with building(graph):
        made = {"const": lambda: ge.Const(np.zeros(4, np.float32)), "op": lambda: ge.Neg(x), "data": lambda: x}
        target = made[value]()
        graph.outputs = [ge.Assign(target, x if value != "data" else ge.Neg(x))]
    return graph


def branching(*, then=None, otherwise=None, op: str = "If") -> Graph:
    """A condition with two branches of one input and one output each."""
    graph = Graph("outer")
    x = data(graph, shape=())
    with building(graph):
        cond = ge.Greater(x, 0.0)
        result = getattr(ge, op)(cond, [x], then_branch=then or branch(), else_branch=otherwise or branch())
    graph.outputs = list(result)
    return graph


def branch(dtype: D = D.DT_FLOAT) -> Graph:
    inner = Graph("inner")
    x = data(inner, shape=())
    with building(inner):
        inner.outputs = [ge.Cast(ge.Relu(x), dst_type=dtype)]
    return inner


def looping() -> Graph:
    cond, body, graph = Graph("cond"), Graph("body"), Graph("outer")
    with building(cond):
        cond.outputs = [ge.Less(data(cond, shape=()), 3.0)]
    with building(body):
        body.outputs = [ge.Add(data(body, shape=()), 1.0)]
    x = data(graph, shape=())
    with building(graph):
        graph.outputs = list(ge.While([x], cond=cond, body=body))
    return graph


def codes(graph: Graph) -> set[str]:
    return {v.code for v in verify.violations(graph)}


def said(graph: Graph) -> str:
    return "\n".join(map(str, verify.violations(graph)))


def node(graph: Graph, op: str) -> Node:
    return next(n for n in graph.nodes if n.op == op)


@pytest.mark.parametrize("make", [plain, lambda: assigning("op"), lambda: assigning("data"), branching, looping])
def test_what_keeps_the_rules_passes(make):
    verify.verify(make())


def both_write() -> Graph:
    graph = assigning("op")
    with building(graph):
        graph.outputs.append(ge.Assign(node(graph, "Neg").outputs[0], data(graph, 1)))
    return graph


def write_and_read() -> Graph:
    graph = assigning("op")
    with building(graph):
        graph.outputs.append(ge.Exp(node(graph, "Neg").outputs[0]))
    return graph


def changed(make: Callable[[], Graph], change: Callable[[Graph], object]) -> Callable[[], Graph]:
    def made() -> Graph:
        graph = make()
        change(graph)
        return graph

    return made


def sized(shape) -> Callable[[], Graph]:
    return changed(plain, lambda g: node(g, "Relu").outputs[0].record_shape(shape))


def marked(name: str, attr: Attr) -> Callable[[], Graph]:
    return changed(plain, lambda g: node(g, "Relu").attrs.update({name: attr}))


def _large() -> Graph:
    graph = plain()
    with building(graph):
        const = ge.Const(Literal(D.DT_INT8, (0,), np.zeros(0, np.uint8)))
    big = np.broadcast_to(np.zeros(1, np.uint8), (limits.MAX_MODEL_BYTES + 1,))
    const.node.attrs["value"] = Attr(Kind.TENSOR, Literal(D.DT_INT8, big.shape, big))
    const.record_shape(big.shape)
    return graph


def _file_constant() -> Graph:
    graph = plain()
    graph.add(
        "FileConstant",
        (),
        {"dtype": Attr(Kind.TYPE, D.DT_FLOAT), "shape": Attr(Kind.LIST_INT, (2,))},
        [(D.DT_FLOAT, (2,))],
    )
    return graph


def _foreign_holder() -> Graph:
    graph = plain()
    node(graph, "Relu").subgraphs["body"] = branch()
    return graph


def _set_index(inner: Graph, index: int) -> Graph:
    node(inner, "Data").attrs["index"] = attrs.Int(index)
    return inner


def _parent_index(value: int) -> Callable[[], Graph]:
    inner = branch()
    node(inner, "Data").attrs["_parent_node_index"] = attrs.Int(value)
    return lambda: branching(then=inner)


def _half_marked() -> Graph:
    graph = branching(then=branch())
    inner = node(graph, "If").subgraphs["then_branch"]
    data(inner, 1, shape=())
    inner.nodes[0].attrs["_parent_node_index"] = attrs.Int(0)
    return graph


def _extra_output(slot: str) -> Callable[[Graph], object]:
    def change(graph: Graph) -> None:
        inner = next(n for n in graph.nodes if n.subgraphs).subgraphs[slot]
        inner.outputs.append(inner.outputs[0])

    return change


def _other_type(graph: Graph) -> None:
    body = node(graph, "While").subgraphs["body"]
    with building(body):
        body.outputs = [ge.Cast(body.outputs[0], dst_type=D.DT_INT32)]


# rule of GE, a graph that breaks it, our code, what the text says of GE
BROKEN = [
    ("Const at an in-place port", lambda: assigning("const"), "GE3060", "E19999"),
    ("two writers without order", both_write, "GE3065", "W18888"),
    ("writer and reader without order", write_and_read, "GE3065", "W18888"),
    ("dim below -2", sized((4, -3)), "GE3061", "E18888"),
    ("-2 beside others", sized((-2, 4)), "GE3061", "E18888"),
    ("rank above 25", sized((1,) * 26), "GE3061", "silent"),
    (
        "input without byte length",
        changed(plain, lambda g: setattr(node(g, "Data").outputs[0], "dtype", D.DT_STRING)),
        "GE3062",
        "E13025",
    ),
    (
        "input in a layout of the chip",
        changed(plain, lambda g: setattr(node(g, "Data").outputs[0], "format", Format.FORMAT_FRACTAL_NZ)),
        "GE3062",
        "E13025",
    ),
    ("FileConstant without a file", _file_constant, "GE3062", "E13001"),
    ("graph inside another operator", _foreign_holder, "GE3063", "E19999"),
    ("branch returns more than the node", changed(branching, _extra_output("then_branch")), "GE3063", "E19999"),
    ("branches of different types", lambda: branching(otherwise=branch(D.DT_FLOAT16)), "GE3063", "E19999"),
    ("inner input beyond the node's", lambda: branching(then=_set_index(branch(), 3)), "GE3063", "E19999"),
    ("parent index beyond the node's", _parent_index(7), "GE3063", "E19999"),
    ("parent index on some inputs only", _half_marked, "GE3063", "E19999"),
    ("loop condition with two results", changed(looping, _extra_output("cond")), "GE3063", "E19999"),
    ("loop body returns more than it takes", changed(looping, _extra_output("body")), "GE3063", "E19999"),
    ("loop body changes a type", changed(looping, _other_type), "GE3063", "E19999"),
    (
        "condition with several elements",
        changed(branching, lambda g: node(g, "Greater").outputs[0].record_shape((2,))),
        "GE3063",
        "E19999",
    ),
    ("inner parallel as text", marked("_enable_inner_parallel", attrs.Str("True")), "GE3064", "silent"),
    ("cores as a number", marked("_op_aicore_num", attrs.Int(4)), "GE3064", "silent"),
    ("cores that are no decimal number", marked("_op_vectorcore_num", attrs.Str("08")), "GE3064", "E10001"),
    ("strict-scope-check", marked("_super_kernel_options", attrs.Str("strict-scope-check=yes")), "GE3064", "E19999"),
    ("attribute that GE makes", marked("_inference_rule_binary", attrs.Str("x")), "GE3064", "_inference_rule"),
    (
        "graph attribute that GE keeps",
        changed(plain, lambda g: g.attrs.update(_graph_has_been_added=attrs.Bool(True))),
        "GE3064",
        "E19999",
    ),
    ("node without a name", changed(plain, lambda g: setattr(node(g, "Relu"), "name", "")), "GE3029", "silent"),
    ("Const without a value", changed(plain, lambda g: node(g, "Const").attrs.pop("value")), "GE3028", "E19999"),
    ("constants above 2^31-1 bytes", _large, "GE3066", "E18888"),
]


@pytest.mark.parametrize(("make", "code", "ge_code"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_each_rule_is_broken_once(make, code, ge_code):
    graph = make()
    assert code in codes(graph), said(graph)
    assert ge_code in said(graph)


@pytest.mark.parametrize("shape", [(-2,), (-1, 4), ("s0", 4), (), (1,) * 25, (0,)])
def test_sizes_that_ge_takes(shape):
    assert "GE3061" not in codes(sized(shape)())


def test_order_by_control_edges_is_order():
    for make in (both_write, write_and_read):
        graph = make()
        first, last = (n for n in graph.nodes if any(t.node.op == "Neg" for t in n.operands()))
        last.control.append(first)
        assert "GE3065" not in codes(graph)


def test_a_text_that_names_the_users_line():
    graph = assigning("const")
    from ge_graph import Provenance

    node(graph, "Assign").provenance = Provenance(source="model.py:3 in forward")
    assert "model.py:3 in forward" in said(graph)


@pytest.mark.parametrize("make", [lambda: assigning("const"), both_write, write_and_read])
def test_the_pass_that_protects_repairs(make):
    graph = make()
    passes.run(graph, [passes.ProtectWrittenTensors()], check=True)
    verify.verify(graph)


def test_a_later_reader_makes_the_writer_take_a_copy():
    graph = write_and_read()
    passes.run(graph, [passes.ProtectWrittenTensors()])
    assign = node(graph, "Assign")
    assert assign.inputs[0].node.op == "TensorMove"
    assert node(graph, "Exp").inputs[0].node.op == "Neg"
    assert graph.nodes.index(assign.inputs[0].node) < graph.nodes.index(assign)


def test_an_earlier_reader_only_runs_first():
    graph = Graph("g")
    x = data(graph)
    with building(graph):
        y = ge.Neg(x)
        read = ge.Exp(y)
        graph.outputs = [ge.Assign(y, x), read]
    passes.run(graph, [passes.ProtectWrittenTensors()], check=True)
    assert read.node in node(graph, "Assign").control
    assert not any(n.op == "TensorMove" for n in graph.nodes)
    verify.verify(graph)
