"""What nodes, graphs and attributes may be called."""

import pytest

from ge_graph import DataType, Graph, building, names, printer, serde
from ge_graph import attrs as attr_kinds
from ge_graph import ops as ge
from ge_graph.pbtxt import to_pbtxt
from ge_graph.verify import VerifyError, verify

HOSTILE = [
    "n\n    pass\nimport os; os.system('x')\ndef program(i0, *a):\n    #",
    "a\rb",
    "a\x0cb",
    "a\u2028b",
    "a\x00b",
    "../../x",
    "a/../b",
    "..",
    "x" * 10_000,
    "\u202egnp.exe",
    "\x1b[2J",
    "a\ud800",
]


def named(name):
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2,), node_name="x")
        graph.outputs = [ge.Relu(x, node_name=name)]
    return graph


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_refused_and_shown_escaped(name):
    with pytest.raises(VerifyError, match="GE3039") as caught:
        verify(named(name))
    text = str(caught.value)
    assert len(text) < 2000
    assert all(c == "\n" or c.isprintable() for c in text)
    assert "import os" not in "".join(line for line in text.splitlines() if line.startswith("import"))


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_repaired_names_are_good_and_different(name):
    graph = named(name)
    graph.name = name
    graph.add("Relu", [graph.outputs[0]], {}, [(DataType.DT_FLOAT, None)], name=names.escape.file_name(name))
    graph.nodes[-1].attrs["_a\nb"] = attr_kinds.Int(1)
    assert len(names.repair(graph)) == 3
    verify(graph)
    assert names.repair(graph) == []
    assert len({n.name for n in graph.nodes}) == 3
    assert graph.node(graph.outputs[0].node.name) is graph.outputs[0].node


@pytest.mark.parametrize(
    "name",
    ["layers.0.weight", "arg0_1", "größe.weight", "model/层/Add", "a b", "x" * 1024, "L['x'][0]", 'say "a"'],
    ids=range(8),
)
def test_names_of_models_are_good(name):
    graph = named(name)
    verify(graph)
    assert names.repair(graph) == []


def test_attributes_and_graphs_have_names_too():
    graph = named("n")
    graph.nodes[-1].attrs["_a\nb"] = attr_kinds.Int(1)
    graph.name = "g\nh"
    graph.attrs["'; x"] = attr_kinds.Int(1)
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    assert [v.code for v in caught.value.violations] == ["GE3039"] * 3


@pytest.mark.parametrize("name", HOSTILE[:-1], ids=range(len(HOSTILE) - 1))
def test_text_forms_keep_a_line_a_node(name):
    plain, hostile = named("n"), named(name)
    for render in (printer.to_text, to_pbtxt):
        assert len(render(hostile).splitlines()) == len(render(plain).splitlines())


def test_subgraphs_nest_only_so_deep():
    outer = graph = Graph("g0")
    for depth in range(1, 300):
        inner = Graph(f"g{depth}")
        node = graph.add("Case", [], {}, [], name="c")
        node.subgraphs["branches0"] = inner
        graph = inner
    with pytest.raises(serde.read_model.__globals__["ArchiveError"], match="GE5012.*levels deep"):
        serde.from_bytes(serde.to_bytes(outer))
    with pytest.raises(VerifyError, match="levels deep"):
        verify(outer)
