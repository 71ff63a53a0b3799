"""Graph dumps: names, rights, contents, and pages whose script runs."""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from types import SimpleNamespace

import pytest
import torch

import torchair
from ge_graph import Graph, building, serde, txt
from ge_graph import ops as ge
from ge_graph.errors import ConfigError
from ge_graph.testing import assert_graphs_equal
from tair_debug import models, summary_forms, tracing
from tair_debug.fx_summary import TargetRow
from tair_debug.graph_dump import TYPES, GraphDump, write_graph
from tair_debug.graph_page import page_data, to_html
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
    config.debug.graph_dump.path = str(tmp_path / "missing" / "deep")  # is made
    torch._dynamo.reset()
    compiled(config)(*inputs)
    assert {p.suffix for p in (tmp_path / "missing" / "deep").iterdir()} == {".txt"}


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


def test_a_page_of_nothing():
    assert page_data(Graph())["groups"] == [["graph", -1]]
    assert "<canvas" in to_html(Graph())


@pytest.mark.slow
def test_the_work_for_a_page_grows_as_its_graph():
    def work(size):
        graph, calls = chain(size, width=9), 0

        def count(frame, event, what):
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            page = to_html(graph)
        finally:
            sys.setprofile(None)
        return calls, len(page)

    (few, short), (many, long) = work(500), work(5000)
    assert many < 11 * few
    assert long < 11 * short
    assert long < 4_000_000


def test_a_page_is_self_contained_and_safe():
    graph = Graph("a</script><b>")
    with building(graph):
        graph.outputs = [ge.Data(index=0, dtype=0, shape=(1,), node_name="x</script><img src=x>")]
    page = to_html(graph)
    page = page.replace('xmlns="http://www.w3.org/2000/svg"', "")  # the name of a language, of a drawing that is saved
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


def test_inputs_stand_in_the_module_that_reads_them(compiled, config):
    seen = []

    class Look(Silent):
        def ge_graph(self, stage, label, graph):
            seen.append(page_data(graph))

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x)

    with observing(Look()), torch.no_grad():
        torch.compile(Block(), backend=torchair.get_npu_backend(compiler_config=config))(torch.ones(4, 8))
    page = seen[-1]
    assert [name for name, _ in page["groups"][1:]] == ["layers", "layers.0", "layers.1", "layers.2", "head"]
    assert [parent for _, parent in page["groups"]] == [-1, 0, 1, 1, 1, 0]
    inside = [page["groups"][n["g"]][0] for n in page["nodes"] if n["o"] == "Data"]
    assert sorted(inside)[:2] == ["head", "head"]  # its weight and its bias
    assert sum(name.startswith("layers.") for name in inside) >= 6


def test_a_backward_pass_stands_in_the_modules_of_its_forward():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

        def forward(self, x):
            return self.norm(self.proj(x).relu()) + x

    subject = models.given(torch.nn.Sequential(Block(), Block()), (torch.ones(4, 8, requires_grad=True),))
    _, backward = tracing.capture(subject, backward=True)
    page = page_data(tracing.to_ge(backward.gm, "backward"))
    names = [page["groups"][n["g"]][0] for n in page["nodes"] if n["o"] not in ("Data", "Const")]
    assert {"0.proj", "0.norm", "1.proj", "1.norm"} >= {n for n in names if "." in n}
    assert names.count("backward") <= 2  # sums of gradients between the blocks


_CHECK = """
const fs = require("fs");
const text = fs.readFileSync(process.argv[2], "utf8");
const script = text.match(/<script id="page">([\\s\\S]*?)<\\/script>/)[1];
const data = JSON.parse(text.match(/<script type="application\\/json" id="data">([\\s\\S]*?)<\\/script>/)[1]);
const start = process.hrtime.bigint();
const page = new Function(script + "\\nreturn makePage;")()(data);
const arranged = Number(process.hrtime.bigint() - start) / 1e6;
const first = page.visible(...page.bounds()).length;
page.openAll();
const spots = page.nodes.map((n, i) => page.place.get(i));
let apart = true, down = 0;
const rows = new Map();
spots.forEach(p => (rows.get(p.y) ?? rows.set(p.y, []).get(p.y)).push(p.x));
const close = (x, k, xs) => k > 0 && x - xs[k - 1] < page.w;
for (const xs of rows.values()) if (xs.sort((a, b) => a - b).some(close)) apart = false;
for (const [a, b] of data.edges) if (spots[a].y + page.h < spots[b].y) down++;
const add = page.nodes.findIndex(n => n.n === "Add_7"), box = page.bounds();
const inside = spots.every(p => p.x - p.w / 2 >= 0 && p.x + p.w / 2 <= box[2] && p.y + p.h / 2 <= box[3]);
const hit = page.hit(spots[add].x + 10, spots[add].y - 5) === add;
page.fold();
page.reveal(add);
console.log(JSON.stringify({
  arranged, first, apart, inside, hit, down, edges: data.edges.length, all: spots.length,
  revealed: page.place.has(add), miss: page.hit(-500, -500), search: page.search("add_7").map(i => page.nodes[i].n),
  words: page.search("ADD f32").length, none: page.search("nothing like this").length,
  readers: page.readers[page.nodes.findIndex(n => n.n === "x")].length > 0,
}));
"""


def look(tmp_path, graph):
    """What the script of a graph's page finds, run in node."""
    (tmp_path / "page.html").write_text(to_html(graph))
    (tmp_path / "check.js").write_text(_CHECK)
    run = subprocess.run(
        ["node", "check.js", "page.html"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(run.stdout)


_DRAWN = """
const fs = require("fs"), text = fs.readFileSync("page.html", "utf8");
const script = text.match(/<script id="page">([\\s\\S]*?)<\\/script>/)[1].replace(/if \\(typeof document[^]*$/, "");
const data = JSON.parse(text.match(/<script type="application\\/json" id="data">([\\s\\S]*?)<\\/script>/)[1]);
const names = "{ makePage, drawing, legend, figure, colour }";
const { makePage, drawing, legend, figure, colour } = new Function(`${script}\\nreturn ${names};`)();
const page = makePage(data);
page.openAll();
const style = { open: "#fff", shut: "#eee", edge: "#00f", line: "#ccc", text: "#000", dim: "#888", back: "#fff" };
console.log(JSON.stringify({
  svg: drawing(page, n => colour(n.o), style), types: legend(page.nodes, "op", 0).map(row => row[1]),
  errors: legend([], "error", 0.5).map(row => row[1]),
  sizes: [figure(3e-6, "time"), figure(2 ** 21, "bytes"), figure(0, "bytes")],
  units: legend([{ v: { unit: "cube" } }, {}], "unit", 0).map(row => row[1]),
}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script in node")
def test_a_page_is_saved_as_one_drawing_with_a_legend(tmp_path):
    """Every node, group and edge that is shown, with names as text: a name that looks like markup stays a name."""
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=0, shape=(1,), node_name="<script>&x")
        graph.outputs = [ge.Relu(ge.Relu(x))]
    (tmp_path / "page.html").write_text(to_html(graph))
    (tmp_path / "check.js").write_text(_DRAWN)
    done = subprocess.run(["node", "check.js"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    drawing = xml.etree.ElementTree.fromstring(found["svg"])
    texts = [e.text for e in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert [t for t in texts if t.startswith("<")] == ["<script>&x"]
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) == 2
    assert found["types"] == ["Relu 2", "Data 1"]
    assert found["errors"] == ["0", "1.3e-1", "5.0e-1"]
    assert found["sizes"] == ["3 µs", "2 MiB", "0"]
    assert found["units"] == ["cube"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script in node")
@pytest.mark.parametrize("size", [400, 5000])
def test_the_script_of_a_page(tmp_path, size):
    graph = chain(size)
    found = look(tmp_path, graph)
    assert found.pop("arranged") >= 0  # milliseconds until a page stands; how many is the machine's affair
    edges = sum(len([*n.operands()]) for n in graph.nodes)
    assert found == {
        "first": len(graph.nodes),
        "apart": True,
        "inside": True,
        "hit": True,
        "down": edges,
        "edges": edges,
        "all": len(graph.nodes),
        "revealed": True,
        "miss": -1,
        "search": [n.name for n in graph.nodes if "Add_7" in n.name],
        "words": size,
        "none": 0,
        "readers": True,
    }


@pytest.mark.slow
def test_hits_are_visited_in_turn_in_a_browser(driven):
    """Next and previous go round; the legend names the types."""
    script = """
const out = [], box = document.getElementById("search");
out.push(document.getElementById("next").disabled);
box.value = "add_1"; box.oninput();
for (const id of ["next", "next", "previous", "previous"]) {
  document.getElementById(id).click(); out.push(document.getElementById("count").textContent);
}
out.push(document.getElementById("legend").textContent);
"""
    hits = driven(to_html(chain(12)), script, "en")
    assert hits == [True, "1 of 3", "2 of 3", "1 of 3", "3 of 3", "Add 12Data 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "says"), [("en", ("Open all", "2 operators")), ("zh-CN", ("全部展开", "2 个算子"))]
)
def test_a_page_in_a_browser(driven, language, says):
    """The page opens without an error, in the browser's language, and a click on a folded module opens it."""
    graph = chain(3)
    for node, module in zip([n for n in graph.nodes if n.op == "Add"], ("a.x", "a.x", "b")):
        hostile = "<img src=x onerror=document.title=1>"
        node.provenance = SimpleNamespace(
            module=module, fx_name="</script>", fx_target="", fx_text=hostile, source="", code=""
        )
    drive = """
      const out = [], canvas = document.getElementById("view");
      const names = () => [...document.querySelectorAll("aside h2")].map(e => e.textContent).join();
      document.querySelector("aside a").click(); out.push(names(), document.querySelector("aside").textContent);
      document.querySelector("aside button").click();
      out.push([...document.querySelectorAll("aside button")].map(e => e.textContent).join());
      document.getElementById("search").value = "Add"; document.getElementById("search").oninput();
      document.querySelector("aside a").click(); out.push(names());
      out.push([...document.querySelectorAll("header button")].map(e => e.textContent).join("|"));
      out.push(document.images.length, document.title);
    """
    seen = driven(to_html(graph, "t"), drive, language)
    module, told, buttons, node, header, images, title = seen
    assert module == "a"
    assert buttons
    assert node.startswith("Add")
    assert says[0] in header
    assert says[1] in told
    assert (images, title) == (0, "t")


@pytest.mark.slow
@pytest.mark.parametrize(("language", "says"), [("en", "missing"), ("zh-CN", "未实现")])
def test_the_summary_in_a_browser(driven, language, says):
    """The rows that are missing alone, then one by its name; in the browser's language; nothing of a name is markup."""
    rows = [TargetRow(f"aten.op{i}<b>", "aten") for i in range(3)]
    for number, row in enumerate(rows):
        row.calls, row.good = 2, number
        row.inputs["(f32[2])"], row.outputs["f32[2]"] = 2, 2
    drive = """
      const visible = () => rows.filter(r => !r.hidden).map(r => r.cells[0].textContent), out = [visible()];
      document.querySelector("button[data-mark=none]").click(); out.push(visible());
      document.querySelector("button[data-mark=none]").click();
      filter.value = "op2"; filter.dispatchEvent(new Event("input")); out.push(visible());
      out.push(document.querySelector("button[data-mark=none] span").textContent);
      out.push(document.querySelectorAll("td b").length);
    """
    seen = driven(summary_forms.to_html(rows, "t"), drive, language)
    every, missing, filtered, word, markup = seen
    assert (every, missing, filtered) == ([r.target for r in rows], [rows[0].target], [rows[2].target])
    assert (word, markup) == (says, 0)
