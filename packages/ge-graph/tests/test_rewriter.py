"""What a rewriter says of a graph agrees with a fresh look at it, whatever was changed and whenever it was asked."""

from __future__ import annotations

import numpy as np
import pytest

from ge_graph import Graph, Node, building
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType, Format
from ge_graph.passes.rewriter import Rewriter, readers_of
from ge_graph.verify import verify

F32, I64 = DataType.DT_FLOAT, DataType.DT_INT64


def chain() -> tuple[Graph, dict[str, Node]]:
    """relu(abs(x)) + neg(abs(x)), and a Sqrt that nobody reads."""
    graph = Graph()
    with building(graph):
        x = ge.Data(index=0, dtype=F32, shape=(2,), node_name="x")
        a = ge.Abs(x, node_name="a")
        ge.Sqrt(a, node_name="dead")
        r = ge.Relu(a, node_name="r")
        n = ge.Neg(a, node_name="n")
        s = ge.Add(r, n, node_name="s")
        graph.outputs = [s]
    return graph, {n.name: n for n in graph.nodes}


def names(graph: Graph) -> list[str]:
    return [n.name for n in graph.nodes]


@pytest.mark.parametrize("asked", [False, True])
def test_a_replaced_node_goes_and_its_readers_read_the_other(asked: bool) -> None:
    graph, at = chain()
    rewriter = Rewriter(graph)
    if asked:
        assert rewriter.readers(at["r"].outputs[0]) == [at["s"]]
    rewriter.substitute(at["r"], at["a"].outputs[0])
    rewriter.finish()
    assert at["s"].inputs == [at["a"].outputs[0], at["n"].outputs[0]]
    assert "r" not in names(graph)
    assert "r" not in graph
    assert ("dead" in names(graph)) is not asked  # who asks for readers gives up what nothing needs
    verify(graph)


def test_a_walk_shows_operands_that_are_replaced_already() -> None:
    graph, at = chain()
    rewriter = Rewriter(graph)
    seen = []
    for node in rewriter.walk({"Relu", "Neg", "Add"}):
        seen.append(node.name)
        if node.op != "Add":
            rewriter.substitute(node, at["a"].outputs[0])
        else:
            assert node.operands() == [at["a"].outputs[0]] * 2
    assert seen == ["r", "n", "s"]


def test_a_returned_tensor_is_replaced_among_the_outputs() -> None:
    for ask in (False, True):
        graph, at = chain()
        rewriter = Rewriter(graph)
        if ask:
            assert rewriter.alive(at["s"])
        rewriter.substitute(at["s"], at["r"].outputs[0])
        assert rewriter.returned(at["r"].outputs[0])
        assert not rewriter.returned(at["s"].outputs[0])
        rewriter.finish()
        assert graph.outputs == at["r"].outputs


def test_new_nodes_stand_where_they_were_put_with_origin_and_scope() -> None:
    graph, at = chain()
    at["n"].attrs["_user_stream_label"] = Attr(Kind.STRING, "s1")
    at["n"].outputs[0].format = Format.FORMAT_NCHW
    rewriter = Rewriter(graph)
    first = rewriter.like(at["n"].outputs[0], "Exp", [at["a"].outputs[0]], {}, (2,))
    (second,) = rewriter.before(first.node, "Log", [at["a"].outputs[0]], {}, [(F32, (2,))])
    (third,) = rewriter.behind(at["n"], "Sin", [at["n"].outputs[0]], {}, [(F32, (2,))])
    (value,) = rewriter.before(at["n"], "Const", (), {"value": Attr(Kind.TENSOR, np.zeros(1))}, [(F32, (1,))])
    rewriter.feed(first.node, {0: second})
    rewriter.feed(at["n"], {0: first})
    rewriter.feed(at["s"], {1: third})
    rewriter.finish()
    assert names(graph) == ["x", "a", "dead", "r", "Log", "Exp", "Const", "n", "Sin", "s"]
    assert first.format is Format.FORMAT_NCHW
    assert first.node.attr("_user_stream_label") == "s1"
    assert "_user_stream_label" not in value.node.attrs  # a constant runs on no stream
    assert first.node.provenance is at["n"].provenance


def test_constants_stand_in_front_of_their_readers_and_are_shared_if_they_do() -> None:
    graph, at = chain()
    rewriter = Rewriter(graph)
    late = rewriter.constant([3], I64, at["s"])
    assert rewriter.constant([3], I64, at["s"]) is late
    early = rewriter.constant([5], I64)
    assert rewriter.constant([5], I64) is early
    assert rewriter.constant([5], I64, at["a"]) is early
    assert rewriter.constant([3], I64, at["a"]) is not late
    rewriter.finish()
    order = names(graph)
    assert order.index(early.node.name) == 0
    assert order.index("n") < order.index(late.node.name) < order.index("s")


def test_what_is_given_up_takes_along_what_it_alone_needed() -> None:
    graph, at = chain()
    rewriter = Rewriter(graph)
    rewriter.replace(at["s"].outputs[0], at["r"].outputs[0])
    rewriter.retire(at["s"])
    assert not rewriter.alive(at["n"])
    assert rewriter.alive(at["a"])
    assert rewriter.readers(at["a"].outputs[0]) == [at["r"]]
    rewriter.retire(at["r"])  # the graph returns it
    assert rewriter.alive(at["r"])
    rewriter.finish()
    assert names(graph) == ["x", "a", "r"]


def test_a_constant_that_was_given_up_serves_nobody_again() -> None:
    graph, at = chain()
    rewriter = Rewriter(graph)
    value = rewriter.constant([7], I64)
    (made,) = rewriter.before(at["s"], "Cast", [value], {"dst_type": Attr(Kind.INT, 0)}, [(F32, (1,))])
    rewriter.retire(made.node)
    assert not rewriter.alive(value.node)
    again = rewriter.constant([7], I64)
    assert rewriter.alive(again.node)
    rewriter.feed(at["s"], {1: again})
    rewriter.finish()
    assert again.node.name in names(graph)
    assert value.node.name not in names(graph)


def test_what_is_withdrawn_leaves_no_name_and_no_reader() -> None:
    graph, at = chain()
    before = names(graph)
    rewriter = Rewriter(graph)
    count = len(rewriter.readers(at["a"].outputs[0]))
    (made,) = rewriter.before(at["s"], "Exp", [at["a"].outputs[0]], {}, [(F32, (2,))])
    assert len(rewriter.readers(at["a"].outputs[0])) == count + 1
    (kept,) = rewriter.before(at["s"], "Log", [at["a"].outputs[0]], {}, [(F32, (2,))])
    rewriter.withdraw(at["s"], [made.node])
    rewriter.feed(at["s"], {1: kept})
    assert len(rewriter.readers(at["a"].outputs[0])) == count + 1
    rewriter.finish()
    assert made.node.name not in graph
    assert names(graph) == [*(n for n in before if n not in ("dead", "s")), "Log", "s"]


def test_who_only_asks_changes_nothing() -> None:
    graph, at = chain()
    before = names(graph)
    rewriter = Rewriter(graph)
    assert rewriter.readers(at["dead"].outputs[0]) == []
    rewriter.finish()
    assert names(graph) == before


def test_answers_are_those_of_a_fresh_look() -> None:
    graph, at = chain()
    rewriter = Rewriter(graph)
    assert rewriter.readers(at["a"].outputs[0])
    (made,) = rewriter.before(at["s"], "Exp", [at["n"].outputs[0]], {}, [(F32, (2,))])
    rewriter.feed(at["s"], {1: made})
    rewriter.replace(at["r"].outputs[0], at["a"].outputs[0])
    rewriter.retire(at["r"])
    tensors = [t for n in (*at.values(), made.node) if rewriter.alive(n) for t in n.outputs]
    told = {t: set(rewriter.readers(t)) for t in tensors}
    assert rewriter.earlier(made, at["s"]) is False  # it stands at its place
    assert rewriter.earlier(at["n"].outputs[0], at["s"])
    assert rewriter.all_later(at["a"].outputs[0], at["n"])
    rewriter.finish()
    fresh = readers_of(graph.nodes)
    assert told == {t: set(fresh.get(t, [])) for t in tensors}
    verify(graph)
