"""Graph dumps: names, rights, contents, and pages whose script runs."""

import json
import os
import re
import shutil
import subprocess

import pytest
import torch

from ge_graph import Graph, building, serde, txt
from ge_graph import ops as ge
from ge_graph.errors import ConfigError
from ge_graph.testing import assert_graphs_equal
from tair_debug.graph_dump import TYPES, GraphDump, write_graph
from tair_debug.graph_page import page_data, to_html
from tair_debug.layout import HEIGHT, WIDTH, layout
from tair_debug.observer import Silent, observing


class Keep(Silent):
    """The bytes of every GE graph."""

    def __init__(self):
        self.graphs = {}

    def ge_graph(self, stage, label, graph):
        self.graphs[label] = serde.to_bytes(graph)


@pytest.mark.parametrize("kind", TYPES)
def test_names_rights_and_numbers(tmp_path, compiled, config, model, inputs, kind):
    config.debug.graph_dump.type = kind
    config.debug.graph_dump.path = str(tmp_path)
    with torch.no_grad():
        assert all(map(torch.equal, compiled(config)(*inputs), model(*inputs)))
    found = sorted(p for p in tmp_path.iterdir() if p.suffix == f".{kind}")
    form = rf"dynamo_(optimized|original)_graph_(\d+)_rank_0_pid_{os.getpid()}_ts_\d{{20}}\.{kind}"
    matches = [re.fullmatch(form, p.name) for p in found]
    assert [m[1] for m in matches] == ["optimized", "original"]
    assert matches[0][2] == matches[1][2]
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in found)


def test_txt_and_py_are_the_graph(tmp_path, compiled, config, inputs):
    from ge_graph.python_reader import run_py

    keep = Keep()
    for kind in ("txt", "py"):
        config.debug.graph_dump.type = kind
        torch._dynamo.reset()
        with observing(keep):
            compiled(config)(*inputs)
        for label, data in keep.graphs.items():
            if label not in ("original", "optimized"):
                continue
            (path,) = tmp_path.glob(f"dynamo_{label}_graph_*.{kind}")
            read = txt.from_txt(path.read_text()) if kind == "txt" else run_py(path.read_text(), file=str(path))
            assert_graphs_equal(read, serde.from_bytes(data))
    source = next(tmp_path.glob("dynamo_original*.py")).read_text()
    assert re.search(r'# File ".*conftest\.py", line \d+, in forward', source)
    assert "## FX Code: native_layer_norm" in source
    assert source.rstrip().splitlines()[-1].startswith("_ = ge.NetOutput([")


def test_the_last_set_type_wins_and_bad_ones_are_refused(tmp_path, config, compiled, inputs):
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.type = "txt"
    compiled(config)(*inputs)
    assert {p.suffix for p in tmp_path.iterdir()} == {".txt"}
    with pytest.raises(ConfigError, match=r"config\.debug\.graph_dump\.type: got 'svg'.*'txt', 'pbtxt', 'py', 'html'"):
        config.debug.graph_dump.type = "svg"
    with pytest.raises(ConfigError, match="GE1040.*'svg'"):
        GraphDump("svg")
    with pytest.raises(ConfigError, match=r"GE1005.*graph_dump\.path.*does not exist"):
        config.debug.graph_dump.path = str(tmp_path / "missing")


@pytest.mark.parametrize("kind", TYPES)
def test_unwritable(tmp_path, kind):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"GE1041.*config\.debug\.graph_dump\.path: cannot write"):
        write_graph(chain(3), tmp_path / "file" / f"x.{kind}", kind)


# --- pages -----------------------------------------------------------------------------------------------------------


def chain(length, width=3):
    """A graph that forks and joins."""
    graph = Graph("chain")
    with building(graph):
        values = [ge.Data(index=0, dtype=0, shape=(2, "s0"), node_name="x")]
        for i in range(length):
            first = values[-1 - i % min(width, len(values))]
            values.append(ge.Add(first, values[-1]))
        graph.outputs = [values[-1]]
    return graph


def test_layout_places_every_node_once_and_edges_lead_down():
    graph = chain(400, width=7)
    places = layout(graph)
    assert set(places) == set(graph.nodes)
    rows = {}
    for place in places.values():
        rows.setdefault(place.y, []).append(place.x)
    for xs in rows.values():
        assert all(b - a >= WIDTH for a, b in zip(sorted(xs), sorted(xs)[1:]))
    for node in graph.nodes:
        for tensor in node.operands():
            assert places[tensor.node].y + HEIGHT < places[node].y


def test_layout_of_nothing():
    assert layout(Graph()) == {}
    assert "<canvas" in to_html(Graph())


def test_five_thousand_nodes_are_quick():
    import time

    graph = chain(5000, width=9)
    start = time.perf_counter()
    page = to_html(graph)
    assert time.perf_counter() - start < 3
    assert len(page) < 4_000_000


def test_a_page_is_self_contained_and_safe():
    graph = Graph("a</script><b>")
    with building(graph):
        graph.outputs = [ge.Data(index=0, dtype=0, shape=(1,), node_name="x</script><img src=x>")]
    page = to_html(graph)
    assert not re.findall(r"""<[^>]+\b(?:src|href)=|url\(|@import|https?://""", page)
    assert page.count("</script>") == 2
    assert "<b>" not in page
    assert "<img" not in page


def test_details_say_where_a_node_comes_from(compiled, config, inputs):
    seen = []

    class Look(Silent):
        def ge_graph(self, stage, label, graph):
            if label == "optimized":
                seen.append(page_data(graph))

    with observing(Look()):
        compiled(config)(*inputs)
    node = next(n for n in seen[0]["nodes"] if n["o"] == "Sub")
    about = dict(node["p"])
    assert about["FX node"] == "sub"
    assert about["target"] == "aten.sub.Tensor"
    assert about["code"] == "d = c - x"
    assert [port for port, _, _ in node["i"]] == ["x1", "x2"]


_CHECK = """
const fs = require("fs");
const text = fs.readFileSync(process.argv[2], "utf8");
const script = text.match(/<script id="page">([\\s\\S]*?)<\\/script>/)[1];
const data = JSON.parse(text.match(/<script type="application\\/json" id="data">([\\s\\S]*?)<\\/script>/)[1]);
const page = new Function(script + "\\nreturn makePage;")()(data);
const add = page.nodes.findIndex(n => n.n === "Add_7");
const [left, top, right, bottom] = page.bounds();
const start = process.hrtime.bigint();
for (let i = 0; i < 20; i++) {
  page.visible(left, top, right, top + 900);
  page.visibleEdges(left, top, right, top + 900);
}
console.log(JSON.stringify({
  hit: page.hit(page.nodes[add].x + 10, page.nodes[add].y - 5) === add,
  miss: page.hit(left - 500, top - 500),
  search: page.search("add_7").map(i => page.nodes[i].n),
  words: page.search("ADD f32").length,
  none: page.search("nothing like this").length,
  all: page.visible(left, top, right, bottom).length,
  some: page.visible(left, top, right, top + 200).length,
  edges: page.visibleEdges(left, top, right, bottom).length,
  readers: page.readers[page.nodes.findIndex(n => n.n === "x")].length > 0,
  frame: Number(process.hrtime.bigint() - start) / 20e6,
}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script in node")
def test_the_script_of_a_page(tmp_path):
    graph = chain(5000)
    (tmp_path / "page.html").write_text(to_html(graph))
    (tmp_path / "check.js").write_text(_CHECK)
    run = subprocess.run(
        ["node", "check.js", "page.html"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(run.stdout)
    assert found.pop("frame") < 16  # milliseconds to find what is in view
    some = found.pop("some")
    assert 0 < some < 100
    assert found == {
        "hit": True, "miss": -1, "search": [n.name for n in graph.nodes if "Add_7" in n.name], "words": 5000,
        "none": 0, "all": len(graph.nodes), "edges": sum(len([*n.operands()]) for n in graph.nodes), "readers": True,
    }  # fmt: skip
