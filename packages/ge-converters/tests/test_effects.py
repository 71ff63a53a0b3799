"""Scopes and stream order: attributes and control edges, checked on the graph."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import Library

from ge_converters import LoweringError
from ge_converters.lowering import lower
from ge_converters.lowering.effects import STREAM
from ge_converters.registry import Registry
from ge_graph import ops as ge
from ge_graph.verify import verify

aten = torch.ops.aten


@pytest.fixture(scope="module")
def air():
    """The four ops; torchair defines them, here they are defined if it is not loaded."""
    library = Library("air", "FRAGMENT")
    for schema in (
        "scope_enter(str[] keys, str[] values) -> ()",
        "scope_exit() -> ()",
        "record() -> Tensor",
        "wait(Tensor[] tensors) -> ()",
    ):
        if not hasattr(torch.ops.air, schema.split("(")[0]):
            library.define(schema)
    yield torch.ops.air
    library._destroy()


@pytest.fixture
def registry():
    made = Registry()
    made.register(aten.abs.default)(lambda self, meta_outputs=None: ge.Abs(self))
    made.register(aten.neg.default)(lambda self, meta_outputs=None: ge.Neg(self))
    made.register(aten.relu.default)(lambda self, meta_outputs=None: ge.Relu(self))
    return made


@pytest.fixture
def chain():
    """``relu(neg(abs(x)))`` and its nodes by name."""
    gm = make_fx(lambda x: torch.relu(torch.neg(torch.abs(x))), tracing_mode="fake")(torch.ones(3))
    return gm, {n.name: n for n in gm.graph.nodes}


def before(gm, node, op, *args):
    with gm.graph.inserting_before(node):
        return gm.graph.call_function(op.default, args)


def after(gm, node, op, *args):
    with gm.graph.inserting_after(node):
        return gm.graph.call_function(op.default, args)


def by_op(low):
    return {n.op: n for n in low.graph.nodes}


def test_nodes_inside_carry_the_attributes_and_the_inner_scope_wins(air, registry, chain):
    gm, nodes = chain
    before(gm, nodes["abs_1"], air.scope_enter, [STREAM, "_op_exec_never_timeout"], ["s1", "True"])
    before(gm, nodes["neg"], air.scope_enter, ["_op_exec_never_timeout"], ["False"])
    after(gm, nodes["neg"], air.scope_exit)
    before(gm, nodes["relu"], air.scope_exit)
    made = by_op(lower(gm, registry=registry))
    assert (made["Abs"].attr(STREAM), made["Abs"].attr("_op_exec_never_timeout")) == ("s1", True)
    assert (made["Neg"].attr(STREAM), made["Neg"].attr("_op_exec_never_timeout")) == ("s1", False)
    assert made["Relu"].attr(STREAM) is None
    assert made["Data"].attr(STREAM) is None


def test_a_wait_orders_the_next_node_after_the_record(air, registry, chain):
    gm, nodes = chain
    before(gm, nodes["abs_1"], air.scope_enter, [STREAM], ["s1"])
    record = after(gm, nodes["abs_1"], air.record)
    after(gm, record, air.scope_exit)
    before(gm, nodes["relu"], air.wait, [record])
    low = lower(gm, registry=registry)
    made = by_op(low)
    assert made["NoOp"].control == [made["Abs"]]
    assert made["NoOp"].attr(STREAM) == "s1"
    assert made["Relu"].control == [made["NoOp"]]
    assert made["Neg"].control == []
    verify(low.graph)


def test_a_wait_may_name_a_tensor_and_binds_all_later_roots_of_the_stream(air, registry):
    gm = make_fx(lambda x, y: (torch.abs(x), torch.neg(y), torch.relu(y)), tracing_mode="fake")(
        torch.ones(3), torch.ones(3)
    )
    nodes = {n.name: n for n in gm.graph.nodes}
    before(gm, nodes["neg"], air.wait, [nodes["abs_1"]])
    made = by_op(lower(gm, registry=registry))
    assert made["Neg"].control == [made["Abs"]]
    assert made["Relu"].control == [made["Abs"]]


def test_a_node_that_reads_a_waiting_node_needs_no_edge_of_its_own(air, registry, chain):
    gm, nodes = chain
    before(gm, nodes["neg"], air.wait, [nodes["abs_1"]])
    made = by_op(lower(gm, registry=registry))
    assert made["Relu"].control == []


def test_a_wait_at_the_end_binds_the_graph_s_return(air, registry, chain):
    gm, nodes = chain
    record = after(gm, nodes["abs_1"], air.record)
    before(gm, nodes["output"], air.wait, [record])
    low = lower(gm, registry=registry)
    assert [n.op for n in low.graph.output_control] == ["NoOp"]


def test_unbalanced_scopes_are_named(air, registry, chain):
    gm, nodes = chain
    before(gm, nodes["abs_1"], air.scope_enter, [STREAM], ["s1"])
    with pytest.raises(LoweringError, match="scope_enter_default .* is never closed") as error:
        lower(gm, registry=registry)
    assert error.value.code == "GE2008"


def test_an_exit_without_a_scope_is_named(air, registry, chain):
    gm, nodes = chain
    before(gm, nodes["neg"], air.scope_exit)
    with pytest.raises(LoweringError, match="closes a scope but none is open"):
        lower(gm, registry=registry)


def test_keys_and_values_must_pair(air, registry, chain):
    gm, nodes = chain
    before(gm, nodes["neg"], air.scope_enter, ["a", "b"], ["1"])
    with pytest.raises(LoweringError, match="2 keys and 1 values"):
        lower(gm, registry=registry)
