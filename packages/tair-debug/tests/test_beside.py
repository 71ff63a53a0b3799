"""Two graphs beside each other: which node is which, what differs, and the page in a browser."""

import json
import sys

import pytest
from typer.testing import CliRunner

from ge_graph import Graph, building, txt
from ge_graph import ops as ge
from tair_debug.beside import CHANGED, ONLY, SAME, beside, match
from tair_debug.cli import app


def tower(layers, *, change=None, more=None, names="{}"):
    """Layers of a product, a sum with what is carried and a Relu; ``change`` sums otherwise, ``more`` has one more."""
    graph = Graph("tower")
    with building(graph):
        x = ge.Data(index=0, dtype=0, shape=(4, 4), node_name="x")
        for i in range(layers):
            w = ge.Data(index=1 + i, dtype=0, shape=(4, 4), node_name=f"w{i}")
            y = ge.MatMulV2(x, w, transpose_x1=False, transpose_x2=i == change)
            y = ge.Neg(y) if i == more else y
            x = ge.Relu(ge.Add(y, x), node_name=names.format(f"out{i}"))
        graph.outputs = [x]
    return graph


def states(found):
    return [found.state(n) for n in found.one.nodes], [found.state(n) for n in found.other.nodes]


def test_a_graph_is_itself_whatever_its_nodes_are_called():
    one = tower(4)
    for other in (tower(4), tower(4, names="renamed_{}")):
        found = match(one, other)
        assert found.counts() == {"same": len(one.nodes), "changed": 0, "only_first": 0, "only_second": 0}
        assert found.differences() == []
        assert [(a.op, a.attr("index")) for a in found.pairs] == [(b.op, b.attr("index")) for b in found.pairs.values()]


def test_an_attribute_is_the_only_difference():
    """What stands before is equal by its history, what stands behind by its future."""
    found = match(tower(5), tower(5, change=2))
    ((a, b),) = found.differences()
    assert (a.op, a is not b, found.pairs[a] is b) == ("MatMulV2", True, True)
    assert found.rows[a] == [("transpose_x2", "False", "True")]


@pytest.mark.parametrize("changes", [(1,), (1, 4), (0, 1, 2, 3, 4, 5)])
def test_several_changes_are_each_found(changes):
    """Between two changes neither history nor future helps: neighbours do."""
    one, other = tower(6), tower(6)
    for node in other.nodes:
        if node.op == "MatMulV2" and node.operands()[1].node.name in {f"w{i}" for i in changes}:
            node.attrs.update(tower(1, change=0).node("MatMulV2").attrs)
    found = match(one, other)
    assert found.counts()["only_first"] == found.counts()["only_second"] == 0
    assert [a.operands()[1].node.name for a, _ in found.differences()] == [f"w{i}" for i in changes]


def test_a_node_more_is_on_one_side_only_and_its_reader_says_so():
    found = match(tower(5), tower(5, more=2))
    assert found.counts() == {"same": len(found.one.nodes) - 1, "changed": 1, "only_first": 0, "only_second": 1}
    (nothing, more), (changed, reader) = found.differences()
    assert (nothing, more.op, reader.op) == (None, "Neg", "Add")
    assert [row[0] for row in found.rows[changed]] == ["x1"]


def test_graphs_with_nothing_in_common():
    other = Graph("other")
    with building(other):
        other.outputs = [ge.Sigmoid(ge.Data(index=0, dtype=1, shape=(2,)))]
    found = match(tower(1), other)
    assert set(states(found)[0]) | set(states(found)[1]) <= {CHANGED, ONLY}
    assert match(Graph(), Graph()).counts()["same"] == 0
    assert match(tower(2), Graph()).counts()["only_first"] == len(tower(2).nodes)


def test_constants_are_compared_by_their_data():
    def with_constant(value):
        graph = Graph("g")
        with building(graph):
            graph.outputs = [ge.Add(ge.Data(index=0, dtype=0, shape=(2,)), ge.Const(value=value))]
        return graph

    import numpy as np

    one, same, other = (with_constant(np.array([1, x], np.float32)) for x in (2, 2, 3))
    assert match(one, same).differences() == []
    assert [a.op for a, _ in match(one, other).differences()] == ["Const"]


def test_graphs_inside_a_node_are_compared():
    def with_branch(op):
        inner = Graph("then")
        with building(inner):
            inner.outputs = [op(ge.Data(index=0, dtype=0, shape=(2,)))]
        graph = tower(1)
        graph.node("out0").subgraphs["then"] = inner
        return graph

    assert match(with_branch(ge.Relu), with_branch(ge.Relu)).differences() == []
    ((a, _),) = match(with_branch(ge.Relu), with_branch(ge.Neg)).differences()
    assert a.name == "out0"


def test_the_work_grows_as_the_graphs():
    def calls(layers):
        one, other, count = tower(layers, change=1), tower(layers, more=3), 0

        def see(frame, event, what):
            nonlocal count
            count += event == "call"

        sys.setprofile(see)
        try:
            match(one, other)
        finally:
            sys.setprofile(None)
        return count

    assert calls(200) < 5 * calls(50)


# --- the command -----------------------------------------------------------------------------------------------------

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.up, self.down, self.act = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), act

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))

def relu(): return Net(torch.relu).eval(), (torch.ones(2, 4),)
def tanh(): return Net(torch.tanh).eval(), (torch.ones(2, 4),)
"""


@pytest.fixture
def tair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_two_models(tair, tmp_path):
    told = json.loads(tair("view", "net.py:relu", "net.py:tanh", "--json").stdout)
    ops = [row["op"] for row in told["differences"]]
    assert {"Relu", "Tanh"} <= set(ops)
    assert told["graphs"][0]["only_first"] == told["graphs"][0]["only_second"] == 1
    text = (tmp_path / told["written"][0]).read_text()
    assert told["written"] == ["relu_tanh.html"]
    assert text.count("<iframe") == 2


def test_two_dumps_and_a_model_beside_a_dump(tair, tmp_path):
    for name, graph in (("a", tower(3)), ("b", tower(3, change=1))):
        (tmp_path / f"{name}.txt").write_text(txt.to_txt(graph))
    told = json.loads(tair("view", "a.txt", "b.txt", "-o", "deep/page.html", "--json").stdout)
    assert [row["differs"] for row in told["differences"]] == [[["transpose_x2", "False", "True"]]]
    assert told["written"] == ["deep/page.html"]
    told = json.loads(tair("view", "net.py:relu", "b.txt", "--json").stdout)
    assert told["graphs"][0]["only_second"]
    assert tair("view", "a.txt", "b.txt", "--dynamic").exit_code == 2


def test_before_and_after_the_passes(tair):
    told = json.loads(tair("view", "net.py:relu", "--passes", "--json").stdout)
    assert told["written"] == ["relu_passes.html"]
    assert told["graphs"][0]["same"]
    for more in (["net.py:tanh"], ["--soc", "Ascend910B3"]):
        assert tair("view", "net.py:relu", "--passes", *more).exit_code == 2


def test_nodes_have_their_errors_units_and_costs(tair, tmp_path):
    """All of what compare writes is read; the figures of the page are those of compare and of the chip."""
    assert tair("compare", "net.py:tanh", "--node-data", "error.json", "-o", "report").exit_code == 0
    (tmp_path / "told.json").write_text(tair("compare", "net.py:tanh", "--json").stdout)
    (report,) = (tmp_path / "report").glob("*.json")
    wanted = json.loads((tmp_path / "error.json").read_text())["graph_1"]["results"]
    for path in ("error.json", "told.json", str(report)):
        found = tair("view", "net.py:tanh", "--errors", path, "--soc", "Ascend910B3")
        assert found.exit_code == 0, found.output
        text = (tmp_path / "tanh.html").read_text().split('id="data">')[1].split("</script>")[0]
        nodes = {n["n"]: n.get("v", {}) for n in json.loads(text)["nodes"]}
        assert {name: v["error"] for name, v in nodes.items() if "error" in v} == {
            name: row["value"] for name, row in wanted.items()
        }
        assert {"unit", "time", "bytes"} <= nodes["Tanh"].keys()


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "{}", '{"graph_1": {"Tanh": "far"}}', '{"errors": 3}', '{"graph_1": {"nobody": 1.0}}', "[" * 100_000],
)
def test_errors_that_are_none_are_refused(tair, tmp_path, text):
    (tmp_path / "e.json").write_text(text)
    found = tair("view", "net.py:tanh", "--errors", "e.json")
    assert found.exit_code == 2
    assert "GE1046" in found.output


def test_what_json_does_not_have_is_coloured_as_the_largest(tair, tmp_path):
    (tmp_path / "e.json").write_text('{"graph_1": {"Tanh": Infinity, "Add": 0.5, "gone": NaN}}')
    found = tair("view", "net.py:tanh", "--errors", "e.json")
    assert "1 nodes with an error are not in the graphs" in found.output
    text = (tmp_path / "tanh.html").read_text().split('id="data">')[1].split("</script>")[0]
    nodes = {n["n"]: n for n in json.loads(text, parse_constant=pytest.fail)["nodes"]}
    assert nodes["Tanh"]["v"] == {"error": 0.5}
    assert ["relative error", "inf"] in nodes["Tanh"]["a"]


def test_names_are_no_markup():
    graph = tower(1)
    graph.rename(graph.node("out0"), "</script><img src=x>")
    page = beside(("<b>", "b"), [graph], [tower(1, change=0)])
    text = page.html(page.matches[0])
    assert "<img" not in text
    assert "<b>" not in text
    assert text.count("</script>") == 2
    assert SAME in text


@pytest.mark.slow
@pytest.mark.parametrize(("language", "says"), [("en", "8 nodes are equal"), ("zh-CN", "8 个节点相同")])
def test_the_list_of_differences_follows_what_a_side_says_in_a_browser(driven, language, says):
    """It goes round; what is chosen on a side, or the key n pressed there, moves it; others than the sides do not."""
    page = beside(("one", "other"), [tower(2)], [tower(2, change=0)])
    found = page.matches[0]
    (changed,) = (i for i, node in enumerate(found.one.nodes) if found.state(node) == CHANGED)
    script = """
const out = [counts.textContent], seen = () => out.push([which.value, counts.textContent]);
for (const id of ["next", "next", "previous"]) { document.getElementById(id).click(); seen(); }
const say = (source, data) => { window.dispatchEvent(new MessageEvent("message", { source, data })); seen(); };
show(-1); seen();
say(window, { tair: "turn", by: 1 });
say(frames[1].contentWindow, { tair: "turn", by: 1 });
show(-1);
say(frames[0].contentWindow, { tair: "chosen", node: CHANGED });
out.push([...which.options].map(o => o.textContent));
""".replace("CHANGED", str(changed))
    first, *turns, options = driven(page.html(found), script, language)
    assert says in first
    assert [value for value, _ in turns] == ["0", "0", "0", "-1", "-1", "0", "0"]
    assert turns[3][1] == turns[4][1] == first
    assert options[1:] == [f"≠ {a.name} ({a.op})" for a, _ in found.differences()]
