"""Options of GE against the graph that they are sent with."""

from __future__ import annotations

import pytest

from ge_graph import DataType, Graph, GraphError, attrs, building
from ge_graph import ops as ge
from ge_graph.rules.options import check_options


def graph(*, shape=("s0", 4), op: str = "Data") -> Graph:
    made = Graph("g")
    with building(made):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=shape, node_name="x")
        y = ge.Data(index=1, dtype=DataType.DT_FLOAT, shape=(4,), node_name="y")
        made.outputs = [ge.Add(x, y)]
    x.node.op = op
    return made


GEARS = {"ge.inputShape": "x:-1,4;y:4", "ge.dynamicDims": "2;8", "ge.dynamicNodeType": "1"}
REUSE, IN, OUT = ("ge.exec.outputReuseInputMemIndexes", "ge.exec.inputReuseMemIndexes", "ge.exec.outputReuseMemIndexes")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ge.oo.level": "O1"},
        {REUSE: "1,0"},
        {REUSE: "0,0|1,0"},
        {IN: "0,1"},
        {OUT: "0"},
        {"ge.inputHintShape": "0:[4,4];1:[4]"},
        {"ge.exec.graphIOMemAllocMode": "ByGE"},
        GEARS,
    ],
)
def test_what_fits(options):
    check_options(graph(), options)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"": "1"}, "E10059"),
        ({REUSE: "2,0"}, "E19999"),
        ({REUSE: "0,1"}, "E19999"),
        ({REUSE: "0"}, "skipped"),
        ({REUSE: "0,x"}, "skipped"),
        ({IN: "0,0"}, "twice"),
        ({IN: "-1"}, "decimal"),
        ({OUT: "3"}, "ignored"),
        ({OUT: "99999999999"}, "E19999"),
        ({"ge.inputHintShape": "2:[4]"}, "E19999"),
        ({"ge.inputHintValue": "x:[4]"}, "E19999"),
        ({"ge.enableSingleStream": "true", "ge.autoMultistreamParallelMode": "cv"}, "E10056"),
        ({**GEARS, "ge.dynamicDims": "2"}, "E10001"),
        ({**GEARS, "ge.dynamicDims": "2,3;4,5"}, "E10001"),
        ({**GEARS, "ge.inputShape": "x:-1,4"}, "E10001"),
        ({**GEARS, "ge.inputShape": "x:-1,5;y:4"}, "E10001"),
        ({**GEARS, "ge.inputShape": "x:-1;y:4"}, "E10001"),
        ({**GEARS, "ge.inputShape": "x:-1,4;z:4"}, "E10001"),
    ],
)
def test_what_does_not_fit(options, code):
    with pytest.raises(GraphError, match="GE3070") as caught:
        check_options(graph(), options)
    assert code in str(caught.value)


def test_exclusions_by_what_the_graph_holds():
    with pytest.raises(GraphError, match="E13025"):
        check_options(graph(op="RefData"), {"ge.exec.graphIOMemAllocMode": "ByGE"})
    switched = graph(shape=(4, 4))
    switched.nodes[-1].attrs["_user_stream_label"] = attrs.Str("s")
    with pytest.raises(GraphError, match="E10055"):
        check_options(switched, {"ge.enableSingleStream": "true"})


def test_all_refusals_at_once():
    with pytest.raises(GraphError) as caught:
        check_options(graph(), {REUSE: "9,9", IN: "0,0", OUT: "x"})
    assert "3 options" in str(caught.value)
