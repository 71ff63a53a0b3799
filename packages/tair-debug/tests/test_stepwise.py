"""Functions of control-flow nodes: looked into while eager runs, found by name where they differ."""

import pytest
import torch
from torch._higher_order_ops.map import map as rows_of
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.registry import REGISTRY, register_fx_node_ge_converter
from ge_graph import ops as ge
from tair_debug import compare as work
from tair_debug.compare import compare_model
from tair_debug.models import Subject
from tair_debug.stepwise import Region, Stepwise, Wanted


def branch(x):
    return torch.cond(x.sum() > 0, lambda a: a.cos().sigmoid() * 2, lambda a: a - 1, (x,))


def rounds(x):
    def grow(i, y):
        return i + 1, torch.where(y > 40, y.sigmoid(), y * 1.5)

    return while_loop(lambda i, y: i < 4, grow, (torch.tensor(0), x))[1]


def running(x):
    return scan(lambda c, r: ((c + r).sin(), (c * r.sigmoid()).clone()), x[0].clone(), x)


def branch_of_rows(x):
    return rows_of(lambda r: torch.cond(r.sum() > 0, lambda a: a.sigmoid() + 1, lambda a: a.cos(), (r,)), x)


@torch.compiler.nested_compile_region
def region(x):
    return x.sigmoid() * 2


def region_twice(x):
    return region(region(x) - 0.5)


MODELS = (branch, rounds, running, branch_of_rows, region_twice)
X = torch.tensor([[-1.0, -2.0], [1.0, 2.0], [0.5, 3.0]])


@pytest.fixture
def broken():
    """A converter that makes something else of sigmoid."""
    target = torch.ops.aten.sigmoid.default
    register_fx_node_ge_converter(target)(sigmoid_as_tanh)
    yield
    REGISTRY.unregister(target)


def sigmoid_as_tanh(self, *, meta_outputs):
    return ge.Tanh(self)


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backward", [False, True])
def test_equal_inside_and_eager_results_returned(model, backward):
    if backward and model is rounds:
        pytest.skip("torch differentiates a loop only if it keeps all rounds")
    x = X.clone().requires_grad_(backward)
    subject = Subject(model, (x,))
    found = compare_model(subject, engine=work.engine(), backward=backward)
    assert found.ok, found.first
    assert not found.notes
    assert any(r.inside and r.target == "aten.sigmoid.default" for r in found.rows)
    if backward:
        again = X.clone().requires_grad_()
        sum(t.sum() for t in torch.utils._pytree.tree_leaves(model(again))).backward()
        torch.testing.assert_close(x.grad, again.grad)


@pytest.mark.parametrize(
    ("model", "node", "inside"),
    [
        (branch, "If/then_branch/Tanh", "cond then_branch"),
        (running, "While/body/Tanh", "scan body round 1"),
        (branch_of_rows, "While/body/If/then_branch/Tanh", "map_impl body round 2, cond then_branch"),
        (region_twice, "PartitionedCall/f/Tanh", "invoke_subgraph f"),
    ],
)
def test_a_fault_inside_is_named(model, node, inside, broken, tmp_path):
    found = compare_model(Subject(model, (X,)), engine=work.engine(), output=tmp_path)
    row = found.first
    assert (row.node, row.inside, row.op, row.target) == (node, inside, "Tanh", "aten.sigmoid.default")
    assert "sigmoid" in row.code
    assert len(found.saved) == 2
    assert found.as_dict()["first"]["inside"] == inside


def test_the_first_round_that_differs():
    """A kernel that is wrong for large numbers only, which a loop reaches in its third round."""
    from ge_runtime.cpu import kernel
    from ge_runtime.cpu.registry import unregister

    kernel("Mul")(lambda x1, x2: torch.where(x1 > 6, x1 * x2 + 1, x1 * x2))
    try:
        found = compare_model(Subject(rounds, (X,)), engine=work.engine())
    finally:
        unregister("Mul")
    row = found.first
    assert (row.node, row.inside) == ("While/body/Mul", "while_loop body round 3")
    assert row.measure.max_abs == pytest.approx(1.0)
    assert {r.inside for r in found.rows if r.target == "aten.mul.Tensor" and not r.wrong} == {
        "while_loop body round 1",
        "while_loop body round 2",
    }


def test_other_rounds_and_other_branches_than_in_eager_are_said_by_name():
    target = torch.ops.aten.gt.Scalar
    register_fx_node_ge_converter(target)(
        lambda self, other, *, meta_outputs: ge.Less(self, ge.Cast(other, dst_type=0))
    )
    try:
        found = compare_model(Subject(branch, (X,)), engine=work.engine(), isolate=False)
    finally:
        REGISTRY.unregister(target)
    assert found.first.target == "aten.gt.Scalar"
    (note,) = found.notes
    assert note.startswith("forward 1, cond else_branch: runs in the GE graph, but not in eager (")
    assert "test_stepwise.py" in note

    from ge_runtime.cpu import kernel
    from ge_runtime.cpu.registry import unregister

    kernel("Less")(lambda x1, x2: x1 < x2 + 2)
    try:
        found = compare_model(Subject(rounds, (X,)), engine=work.engine(), isolate=False)
    finally:
        unregister("Less")
    assert found.first.inside == "while_loop cond round 5"
    (note,) = found.notes
    assert note.startswith("forward 1, while_loop body round 5: runs in the GE graph, but not in eager (")


# --- what torch's operators do between their functions ---------------------------------------------------------------


def traced(model, *args):
    """The graph of a model, its only control-flow node, and the node's arguments when it is run on ``args``."""
    gm = make_fx(model, tracing_mode="fake")(*args)
    (node,) = [n for n in gm.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)]
    return gm, node


@pytest.mark.parametrize("model", [branch, rounds, running, branch_of_rows])
@pytest.mark.parametrize("x", [X, -X, X[:1]])
def test_regions_give_what_the_operator_gives(model, x):
    gm, node = traced(model, x)
    run = Stepwise(gm, (x,), Wanted(inside={node: {}}))
    run.region(node)
    torch.testing.assert_close(run.finish(), model(x))


def counted(start, x):
    return while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * 2), (start, x))


def test_a_loop_without_rounds_and_one_that_keeps_them_all():
    for start in (0, 2, 9):
        start = torch.tensor(start)
        gm, node = traced(counted, start, X)
        seen = []
        run = Stepwise(gm, (start, X), Wanted(inside={node: {}}))
        region = run.region(node)
        while (inner := region.at("body", len(seen))) is not None:
            seen.append(inner)
        assert len(seen) == max(0, 4 - int(start))
        torch.testing.assert_close(run.finish(), counted(start, X))
        args = (*node.args[:2], (start, X), ())
        cond, body = (getattr(gm, n.target) for n in args[:2])
        stacks = torch.ops.higher_order.while_loop_stack_output
        torch.testing.assert_close(Region(stacks, (cond, body, *args[2:]), {}).finish(), stacks(cond, body, *args[2:]))


def test_a_region_that_was_passed_runs_again():
    gm, node = traced(branch, X)
    run = Stepwise(gm, (X,), Wanted(inside={node: {}}))
    last = run.finish()
    assert run.region(node).at("else_branch", 0) is None
    (again,) = run.region(node).finish()
    torch.testing.assert_close(again, last)
    run.close(node)
    assert not run._open
    assert not run._passed
