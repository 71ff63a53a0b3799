"""`tair plan`: answers, forms, comparisons, refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from ge_graph import DataType, Graph, building, ops, serde
from ge_graph.attrs import Attr, Kind
from ge_graph.cost import chips
from ge_graph.cost.memory import aligned
from ge_graph.errors import ConfigError, GraphError
from tair_debug import ask, models, plan, plan_request, tracing
from tair_debug.cli import app

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x):
        y = torch.relu(self.up(x))
        return self.down(y)

def make():
    return Model().to(torch.bfloat16), torch.zeros(8, 64, dtype=torch.bfloat16)
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("plan") / "planned.py"
    file.write_text(MODEL)
    return f"{file}:make"


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *args])
    return result.exit_code, result.output


def asked(*args: str) -> dict[str, Any]:
    code, out = run(*args, "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == (0 if found.get("ok") else 2 if "error" in found else 1)
    return found


def test_json_has_operations_memory_and_time_with_their_sources(target: str) -> None:
    made = asked(target)["plans"][0]
    graph = made["graphs"][0]
    assert made["chip"] == "ascend910b2"
    assert graph["flops"] == 2 * 2 * 8 * 64 * 256
    assert graph["memory"]["weights"] == 2 * 64 * 256 * 2 + 2 * 512
    assert graph["memory"]["inputs"] == 1024
    assert graph["memory"]["peak_bound"] == 2 * 8 * 256 * 2
    assert 0 < made["time"]["bound"] < made["time"]["estimate"] < 1e-3
    assert made["memory"]["fits"] is True
    assert made["time"]["operators_without"] == 0
    assert all(f["source"] for f in made["figures"].values())
    assert {g["name"]: g["operators"] for g in graph["groups"]} == {"MatMulV2": 2, "Relu": 1, "Cast": 2}


def test_weights_of_each_graph_are_told_from_what_was_saved_for_the_backward_pass(target: str) -> None:
    forward, backward = (g["memory"] for g in asked(target, "--backward")["plans"][0]["graphs"])
    assert forward["weights"] == 2 * 64 * 256 * 2 + 2 * 512
    assert backward["weights"] == 64 * 256 * 2  # the gradient of the first layer's input is not asked for
    assert backward["inputs"] > 0


def test_the_table_adds_up_by_module_and_line(target: str) -> None:
    by = {
        how: {g["name"]: g["flops"] for g in asked(target, "--by", how)["plans"][0]["graphs"][0]["groups"]}
        for how in ("module", "line", "node")
    }
    each = 2 * 8 * 64 * 256
    assert (by["module"]["up"], by["module"]["down"]) == (each, each)
    lines = {name.rsplit(":", 1)[1].split()[0]: flops for name, flops in by["line"].items()}
    assert lines["12"] == each
    assert lines["13"] == each
    assert sum(by["node"].values()) == 2 * each


def test_the_terminal_says_which_figures_are_bounds(target: str) -> None:
    code, out = run(target)
    assert code == 0
    assert "fits" in out
    assert "(bound)" in out
    assert "(estimate; 0 of 5 operators measured)" in out
    assert "MatMulV2" in out


def test_sizes_make_gears_and_the_largest_one_counts_for_memory(target: str) -> None:
    (name,) = asked(target, "--dynamic", "--real")["plans"][0]["graphs"][0]["sizes"]
    more = ("--compare", f"{name}=1,2048", "--compare", f"{name}=2048")
    made = asked(target, "--dynamic", "--real", "--size", f"{name}=1", *more)
    small, gears, large = (p["graphs"][0] for p in made["plans"])
    assert gears["memory"]["peak_packed"] == large["memory"]["peak_packed"] > small["memory"]["peak_packed"]
    assert (small["flops"], gears["flops"], large["flops"]) == tuple(2 * 2 * n * 64 * 256 for n in (1, 1, 2048))


def test_plans_stand_side_by_side(target: str) -> None:
    made = asked(target, "--compare", "soc=ascend950", "--compare", "aicore_num=6|12", "--compare", "reuse=no")["plans"]
    assert [p["title"] for p in made] == ["ascend910b2", "soc=ascend950", "aicore_num=6|12", "reuse=no"]
    assert made[1]["chip"] == "ascend950pr"
    assert made[3]["graphs"][0]["memory"]["peak_packed"] > made[0]["graphs"][0]["memory"]["peak_packed"]
    code, out = run(target, "--compare", "soc=ascend950")
    assert code == 0
    assert "soc=ascend950" in out
    assert "time, bound" in out


def test_a_config_gives_passes_and_cores(target: str, tmp_path: Path) -> None:
    file = tmp_path / "configs.py"
    file.write_text(
        "import torchair\n\n\ndef few():\n    config = torchair.CompilerConfig()\n"
        "    config.ge_config.aicore_num = '6|12'\n    return config\n"
    )
    made = asked(target, "--compare", f"config={file}:few", "--compare", "aicore_num=6|12")["plans"]
    whole, few, asked_for = (p["time"]["bound"] for p in made)
    assert few == asked_for > whole


def test_too_little_memory_is_exit_code_1(target: str) -> None:
    assert run(target, "--memory-limit", "1GiB")[0] == 0
    assert run(target, "--memory-limit", "10KiB")[0] == 1
    assert asked(target, "--memory-limit", "10KiB")["ok"] is False


def test_measured_times_come_first(target: str, tmp_path: Path) -> None:
    file = tmp_path / "op_summary_1.csv"
    file.write_text(
        "OP Type,Task Duration(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types\n"
        'Relu,77.5,"""8,256""",DT_BF16,"""8,256""",DT_BF16\n'
    )
    made = asked(target, "--calibrate", str(file), "--by", "operator")["plans"][0]
    assert made["time"]["operators_measured"] == 1
    assert any("measured" in o for o in made["origins"])
    relu = next(g for g in made["graphs"][0]["groups"] if g["name"] == "Relu")
    assert relu["time_estimate"] == pytest.approx(77.5e-6)


def test_graphs_in_files_and_archives_are_planned_as_they_are(target: str, tmp_path: Path) -> None:
    captured = tracing.capture(models.load(target))
    graph = tracing.to_ge(captured[0].gm, "graph")
    (tmp_path / "compiled_graph.air").write_bytes(serde.to_bytes(graph))
    file, folder = (asked(str(p))["plans"][0] for p in (tmp_path / "compiled_graph.air", tmp_path))
    assert file["graphs"][0]["flops"] == folder["graphs"][0]["flops"] == 2 * 2 * 8 * 64 * 256


def test_a_graph_with_open_sizes_asks_for_them(tmp_path: Path) -> None:
    graph = Graph("open")
    with building(graph):
        x = graph.add("Data", (None,), {"index": Attr(Kind.INT, 0)}, [(DataType.DT_FLOAT, ("s0", 64))]).outputs[0]
        y = ops.Relu(x)
    y.record_shape(("s0", 64))
    graph.outputs = [y]
    (tmp_path / "open.air").write_bytes(serde.to_bytes(graph))
    error = asked(str(tmp_path / "open.air"))["error"]
    assert error["code"] == "GE3072"
    assert "s0" in error["what"]
    made = asked(str(tmp_path / "open.air"), "--size", "s0=32")["plans"][0]["graphs"][0]
    assert made["bytes"] == 2 * 32 * 64 * 4


def test_the_page_knows_time_bytes_and_unit_of_each_node(target: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert asked(target, "--page", str(page))["written"] == [str(page)]
    text = page.read_text()
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    units = {n["o"]: n["v"]["unit"] for n in data["nodes"]}
    assert units["MatMulV2"] == "cube"
    assert units["Relu"] == "vector"
    assert units["Data"] == "none"
    assert all(n["v"]["time"] > 0 for n in data["nodes"] if n["v"]["unit"] != "none")
    assert any(row[0] == "limited by" for n in data["nodes"] for row in n["a"])


_COLOURS = """
const fs = require("fs");
const text = fs.readFileSync("page.html", "utf8");
const script = text.match(/<script id="page">([\\s\\S]*?)<\\/script>/)[1];
const data = JSON.parse(text.match(/<script type="application\\/json" id="data">([\\s\\S]*?)<\\/script>/)[1]);
const painted = [], elements = {};
const set = (t, k, v) => { if (k === "fillStyle") painted.push(v); t[k] = v; return true; };
const pen = new Proxy({}, { get: (t, k) => t[k] ?? (() => ({ width: 1 })), set });
const element = () => ({ children: [], dataset: {}, style: {}, clientWidth: 900, clientHeight: 700, value: "",
  appendChild(c) { this.children.push(c); }, addEventListener() {}, setAttribute() {}, getContext: () => pen,
  replaceChildren() {}, getBoundingClientRect: () => ({ left: 0, top: 0 }), focus() {} });
const document = { getElementById: id => elements[id] ??= element(), querySelectorAll: () => [], body: {},
  documentElement: {}, createElement: element, addEventListener() {} };
const window = { addEventListener() {} }, history = { replaceState() {} }, location = { hash: "" };
const frames = [], requestAnimationFrame = f => frames.push(f);
const getComputedStyle = () => ({ getPropertyValue: () => "x" });
const names = ["document", "window", "history", "location", "requestAnimationFrame", "getComputedStyle"];
const inside = new Function(...names,
  script.replace(/if \\(typeof document[^]*$/, "") + "\\nreturn { attach, makePage, shade };");
const given = [document, window, history, location, requestAnimationFrame, getComputedStyle];
const { attach, makePage, shade } = inside(...given);
const made = makePage(data);
made.openAll();
attach(made);
while (frames.length) frames.shift()();
const by = Object.fromEntries(data.nodes.map(n => [n.o, n]));
console.log(JSON.stringify({
  choices: elements.by.children.map(o => o.value), chosen: elements.by.value, hidden: elements.by.hidden,
  painted: painted.includes(shade(by.Relu, "time", Math.max(...data.nodes.map(n => n.v.time)))),
  units: [shade(by.MatMulV2, "unit"), shade(by.Relu, "unit")], full: shade({ v: { time: 2 } }, "time", 2),
  none: shade({}, "time", 2),
}));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="runs the page's script in node")
def test_the_page_colours_its_nodes(target: str, tmp_path: Path) -> None:
    asked(target, "--page", str(tmp_path / "page.html"))
    (tmp_path / "check.js").write_text(_COLOURS)
    done = subprocess.run(["node", "check.js"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["choices"] == ["op", "time", "bytes", "unit"]
    assert (found["chosen"], found["hidden"], found["painted"]) == ("time", False, True)
    assert len(set(found["units"])) == 2
    assert found["full"] == "hsl(0 90% 60%)"
    assert found["none"] == "#e5e7eb"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--soc", "gpu"], "GE3073"),
        (["--by", "colour"], "GE1049"),
        (["--size", "s0"], "GE1049"),
        (["--size", "s0=-1"], "GE1049"),
        (["--size", "s9=4"], "GE1049"),
        (["--memory-limit", "lots"], "GE1049"),
        (["--compare", "soc"], "GE1049"),
        (["--aicore-num", "x|2"], "GE1049"),
        (["--aicore-num", "99|2"], "GE3073"),
        (["--calibrate", "/nowhere.csv"], "GE3074"),
        (["--compare", "reuse=perhaps"], "GE1049"),
    ],
)
def test_what_is_not_understood_is_refused(target: str, args: list[str], code: str) -> None:
    assert asked(target, *args)["error"]["code"] == code


def test_a_chip_without_a_figure_says_unknown_and_not_a_guess(target: str) -> None:
    made = asked(target, "--soc", "ascend310p")["plans"][0]
    assert made["time"]["estimate"] is None
    assert made["time"]["operators_without"] == 3
    assert any("no estimate" in note for note in made["notes"])
    assert made["time"]["bound"] > 0


def test_texts_of_sizes_are_read() -> None:
    assert plan_request.size_of("1.5 GiB") == 3 * 2**29
    assert plan_request.size_of("64GB") == 64 * 10**9
    assert plan_request.cores_of("12|24") == (12, 24)
    assert plan_request.cores_of("12|") == (12, 0)
    assert plan_request.sizes_of(["s0=1,8", "s1=4"]) == {"s0": (1, 8), "s1": (4,)}
    with pytest.raises(ConfigError, match="GE1049"):
        plan_request.size_of("1e3")
    with pytest.raises(GraphError, match="GE3073"):
        chips.figures("tpu")
    assert plan.time_text(None) == "unknown"
    assert plan.size_text(None) == "unknown"


def test_what_torch_compile_gives_has_plan_costs_and_memory(target: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).bfloat16()
    x = torch.zeros(8, 64, dtype=torch.bfloat16)
    compiled = torch.compile(model, backend="aot_eager")
    costs, memory, plans = (f(compiled, x) for f in (ask.cost_analysis, ask.memory_analysis, ask.plan))
    with FlopCounterMode(display=False) as counter:
        model(x)
    assert costs["flops"] == counter.get_total_flops() == 2 * 2 * 8 * 64 * 256
    assert costs["unknown operators"] == 0
    assert "optimal_seconds" not in costs
    weights = sum(aligned(p.nbytes) for p in model.parameters())
    assert memory.argument_size_in_bytes == weights + aligned(x.nbytes)
    assert memory.output_size_in_bytes == aligned(model(x).nbytes)
    assert plans.plans[0].graphs[0].whole().flops == costs["flops"]
    assert str(plans).startswith("ascend910b2: fits")
    assert plans.as_dict()["plans"][0]["chip"] == "ascend910b2"
    with_chip = ask.cost_analysis(torch.compile(lambda x: torch.relu(x), backend="aot_eager"), x, soc="ascend910b")
    assert 0 < with_chip["optimal_seconds"] < 1e-3


def test_sizes_limits_and_comparisons_of_a_plan_in_python() -> None:
    x = torch.zeros(8, 64)
    plans = ask.plan(torch.nn.Linear(64, 4), x, dynamic=True, memory_limit="1KiB", compare=["soc=ascend950"])
    assert not plans.ok
    assert [p.figures.chip for p in plans.plans] == ["ascend910b2", "ascend950pr"]
    (symbol,) = plans.plans[0].graphs[0].sizes
    ten = ask.cost_analysis(torch.nn.Linear(64, 4), x, dynamic=True, sizes={symbol: 10})
    assert ten["flops"] == 2 * 10 * 64 * 4
    assert ask.cost_analysis(torch.nn.Linear(64, 4), x, dynamic=True)["flops"] == 2 * 8 * 64 * 4
    with pytest.raises(ConfigError, match="GE1049"):
        ask.plan(torch.nn.Linear(64, 4), x, sizes={"s99": 3})


def test_the_form_that_was_chosen_is_said(target: str) -> None:
    made = asked(target)["plans"][0]
    assert "form: 2 x MatMulV2 as Cast, MatMulV2" in made["notes"][0]
    assert not any("form:" in note for note in asked(target, "--soc", "ascend950")["plans"][0]["notes"])
