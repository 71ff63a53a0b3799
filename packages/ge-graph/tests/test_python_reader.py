"""py dumps are data: nothing of a file runs, whatever stands in it."""

import pytest

from ge_graph import ArchiveError, DataType, GeError, Graph, Provenance, building, python_source, serde
from ge_graph import attrs as attr_kinds
from ge_graph import ops as ge
from ge_graph.python_reader import run_py

HOSTILE = [
    "n\n    pass\nimport os; os.abort()\n#",
    "\r",
    "\x0c",
    "\u2028import os",
    "\x00",
    '"""',
    "'''",
    "\\",
    '\\"',
    "</script>",
    "=cmd",
    "../",
    "\u202e",
    "x" * 10_000,
    "{x}",
    "\N{SNOWMAN}",
    "\x85",
    "\x1b[2J",
]


def program(text):
    """A graph with a text in every place that has one."""
    graph = Graph(text)
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(text, 4), node_name="x")
        graph.provenance = Provenance(text, text, text, text, f"/a.py:3 in {text}", text)
        y = ge.Relu(x, node_name=text)
        y.node.attrs["_note"] = attr_kinds.Str(text)
        y.node.attrs["_notes"] = attr_kinds.ListStr([text])
        graph.attrs["_" + text] = attr_kinds.Str(text)
        graph.outputs = [y]
    return graph


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_every_text_is_a_literal(text):
    graph = program(text)
    source = python_source.to_py(graph)
    plain = python_source.to_py(program("abc"))
    assert source.count("\n") == plain.count("\n") == len(source.splitlines())
    assert serde.to_bytes(run_py(source)) == serde.to_bytes(graph)


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "__import__('os').abort()",
        "x = open('/etc/passwd')",
        "ge.__class__",
        "ge.Relu.call",
        "x = 1 + 1",
        "def f(): pass",
        "x = [i for i in (1,)]",
        "x = lambda: 0",
        "x = f'{1}'",
        "while 1: pass",
        "x = ge.Relu(**{'a': 1})",
        "x = ge.Relu(*[1])",
        "exec('1')",
        "with open('f') as f: pass",
        "x = graph.nodes",
        "x = float('1e3')",
        "x = node('A', [], attrs={}, dtypes=[0], counts={'y': 10000000000}, node_name='n')",
        "restore('none', shapes=[])",
        "x = node('A', [1], attrs={}, dtypes=[0], node_name='n')",
        "raw(0, [4611686018427387904], '')",
        "x = (((",
        "\0",
        "raw(0, [-1], '')",
        "stored(__file__, '/etc/passwd', -5, 0, [1])",
        "x = " + "[" * 999 + "]" * 999,
        "x = 1j",
        "[a, b] = ge.Const(1.0, node_name='c')",
        "graph.x = 1",
        "describe(graph, 1, {'a': 1})",
        "x = ge.NoSuchOperator()",
        "[a] = ge.SplitD(graph, split_dim=0, num_split=100000000000)",
        "x = " + "-" * 5000 + "1",
        "describe(graph, 'n', {'a': ('NoKind', 1)})",
        "x = ge.Data(index=-1, dtype=0, shape=[], node_name='d')",
    ],
)
def test_other_programs_are_refused(line, monkeypatch):
    monkeypatch.setattr("os.abort", lambda: pytest.fail("it ran"))
    with pytest.raises(GeError, match="GE5014|GE5015|GE3"):
        run_py(f"{python_source._HEAD}{line}\n")


def test_deep_graphs_are_refused():
    text = "".join(" " * i + f"with new_graph('g') as g{i}:\n" for i in range(90)) + " " * 90 + "x = 1\n"
    with pytest.raises(ArchiveError, match="GE5014"):
        run_py(text)
