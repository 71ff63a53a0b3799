"""The tair command: answers, JSON, exit codes, and errors that name what is wrong."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from ge_converters.base import torch_compat
from ge_converters.lowering.graph_lowering import GraphLowering
from ge_converters.registry import REGISTRY
from ge_graph import txt
from tair_debug.cli import app

MODELS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)

    def forward(self, x):
        return torch.sigmoid(self.first(x)).sum(1)

def make():
    return Net(), torch.randn(3, 4)

def bare():
    return Net()

def triple():
    return Net(), (), {"x": torch.randn(3, 4)}

def missing():
    return lambda x: torch.ops.tair_tests.odd(x * 2), torch.eye(3)

def huge():
    return torch.nn.Linear(200_000, 200_000), torch.randn(1, 200_000)

def wrong():
    from ge_converters.registry import register_fx_node_ge_converter
    from ge_graph import ops as ge
    @register_fx_node_ge_converter(torch.ops.aten.sigmoid.default)
    def sigmoid(self, *, meta_outputs):
        return ge.Tanh(self)
    return make()

def raises():
    raise ValueError("no such checkpoint")

def nothing():
    return 3
"""


@pytest.fixture
def tair(tmp_path):
    """``tair("summary", ...)``: exit code and output."""
    (tmp_path / "models.py").write_text(MODELS)
    before = [*sys.path], {*sys.modules}

    def run(*args):
        torch._dynamo.reset()
        result = CliRunner().invoke(app, [str(a) for a in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    yield run
    sys.path[:] = before[0]
    for name in {*sys.modules} - before[1]:
        if name == "models":
            del sys.modules[name]


def answer(result):
    return result[0], json.loads(result[1])


def test_summary(tair):
    code, found = answer(tair("summary", "models.py:make", "--json"))
    assert code == 0
    assert found["ok"]
    rows = {r["target"]: r for r in found["rows"]}
    assert rows["aten.sigmoid.default"]["status"] == "supported"
    assert rows["aten.sigmoid.default"]["inputs"] == {"(float32(3, 8),)": 1}
    assert any("models.py:10 in forward" in s for s in rows["aten.sigmoid.default"]["sources"])


def test_summary_of_what_is_missing(tair, tmp_path):
    code, text = tair("summary", "models.py:missing", "--csv", "--html", "page.html")
    assert code == 1
    assert "missing" in text
    assert "next: change these calls as their reasons say, register a converter" in text
    assert "tair_tests.odd.default" in text.replace("\n", "")
    (csv,) = tmp_path.glob("summary_*.csv")
    assert "未实现" in csv.read_text(encoding="utf-8-sig")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "no converter, no decomposition" in page
    assert "models.py:" in page
    assert not re.findall(r"<[^>]+\b(?:src|href)=|url\(|@import|https?://", page)
    assert page.count("<th>") == page.count("<td", 0, page.index("</tr>", page.index("<td"))) == 6


def test_nothing_is_computed_or_allocated(tair):
    assert tair("summary", "models.py:huge")[0] == 0  # 160 GB, were it real


@pytest.mark.parametrize(
    ("command", "written"),
    [(["view", "-o", "out/page.html"], ["page.html"]), (["dump", "-o", "out"], None), (["plan"], []), (["check"], [])],
)
def test_a_refused_call_does_not_hide_the_rest(tair, tmp_path, command, written):
    code, text = tair(*command[:1], "models.py:missing", *command[1:])
    assert code == 1
    assert "1 call cannot be converted" in text
    assert "tair_tests.odd.default" in text.replace("\n", "")
    there = [p.name for p in tmp_path.glob("out/*")]
    assert len(there) == 2 if written is None else there == written


@pytest.mark.parametrize("command", ["dump", "view"])
def test_what_fails_leaves_no_folder(tair, tmp_path, command):
    assert tair(command, "models.py:raises", "-o", "out/page.html")[0] == 2
    assert not (tmp_path / "out").exists()


def test_an_input_beyond_the_machine(tair):
    code, text = tair("compare", "models.py:bare", "-i", "float32(99999999, 99999999)")
    assert code == 2
    assert "factory" not in text
    assert "give smaller sizes" in text
    assert tair("summary", "models.py:bare", "-i", "float32(99999999, 4)")[0] == 0
    for wrong in ("flo(3)", "float32(99999999999999999999)", "3"):
        code, text = tair("summary", "models.py:bare", "-i", wrong)
        assert code == 2
        assert f"-i {wrong}" in text
        assert "factory" not in text


def test_inputs_on_the_command_line(tair):
    code, found = answer(tair("summary", "models.py:bare", "-i", "float32(5, 4)", "--json"))
    assert code == 0
    assert {r["target"]: r for r in found["rows"]}["aten.sum.dim_IntList"]["outputs"] == {"float32(5,)": 1}
    assert answer(tair("summary", "models.py:triple", "--json"))[0] == 0


def test_backward_and_symbols(tair, monkeypatch):
    if torch_compat.symbols_of_fake_inputs():
        symbols_are_shown(tair)
    monkeypatch.setattr(torch_compat, "_MODE_OF_ITS_OWN", True)  # as before torch 2.11
    code, text, *_ = tair("summary", "models.py:make", "--dynamic")
    assert code == 2
    assert "GE1047" in text
    assert "gives no symbols to sizes of fake tensors" in text


def symbols_are_shown(tair):
    _, found = answer(tair("summary", "models.py:make", "--backward", "--dynamic", "--json"))
    assert found["graphs"] == 2
    assert any("s" in k for r in found["rows"] for k in r["outputs"] if re.search(r"\(s\d+", k))


@pytest.mark.parametrize("kind", ["txt", "pbtxt", "py", "html"])
def test_dump(tair, tmp_path, kind):
    code, found = answer(tair("dump", "models.py:make", "-t", kind, "-o", "out", "--json"))
    assert code == 0
    assert len(found["written"]) == 2
    assert all((tmp_path / p).stat().st_size for p in found["written"])


def test_view(tair, tmp_path):
    _, dumped = answer(tair("dump", "models.py:make", "-t", "txt", "--json"))
    path = dumped["written"][1]
    code, found = answer(tair("view", path, "-o", "page.html", "--json"))
    assert code == 0
    assert found["nodes"] == [len(txt.from_txt((tmp_path / path).read_text()).nodes)]
    assert "<canvas" in (tmp_path / "page.html").read_text()
    assert tair("view", "models.py:make")[0] == 0
    assert (tmp_path / "make.html").exists()


def test_compare(tair, tmp_path):
    code, found = answer(tair("compare", "models.py:make", "--json"))
    assert code == 0
    assert found["compared"] >= 3
    assert found["totals"]
    from ge_converters.registry import REGISTRY

    try:
        code, text = tair("compare", "models.py:wrong", "-o", "out")
    finally:
        REGISTRY.unregister(torch.ops.aten.sigmoid.default)
    assert code == 1
    assert text.startswith("the results of the model differ")  # the verdict first
    assert "first out of tolerance: Tanh (Tanh) output 0" in text
    assert "FX node: sigmoid = aten.sigmoid.default" in text
    assert "models.py:10 in forward" in text
    assert len(list((tmp_path / "out").glob("Tanh.0.*.npy"))) == 2


def test_compare_of_two_dumps(tair, tmp_path, compiled, config, inputs):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        config.debug.data_dump.type, config.debug.data_dump.path = "npy", str(tmp_path / name)
        torch._dynamo.reset()
        compiled(config)(*inputs)
    code, found = answer(tair("compare", "a", "b", "--json"))
    assert code == 0
    assert found["unmatched"] == 0


def test_ops(tair):
    code, found = answer(tair("ops", "aten.add.*", "--json"))
    assert code == 0
    assert {r["name"] for r in found["rows"]} >= {"aten.add.Tensor"}
    assert "elementwise" in found["rows"][0]["converter"]
    code, found = answer(tair("ops", "MatMulV2", "--ge", "--json"))
    assert "transpose_x1: BOOL = False" in next(r for r in found["rows"] if r["name"] == "MatMulV2")["attributes"]
    assert tair("ops", "nothing.of.the.kind")[0] == 1


def test_doctor(tair):
    code, found = answer(tair("doctor", "--json"))
    assert code == 0, found["mismatches"]
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]  # wheels may leave out the build
    states = {e["name"]: e for e in found["engines"]}
    assert states["cpu"]["available"]
    assert not states["cann"]["available"]
    assert "ASCEND" in states["cann"]["reason"] or "libascendcl" in states["cann"]["reason"]
    assert "embedded engine" in tair("doctor")[1]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["summary", "no.py:make"], "GE1043", "no.py does not exist"),
        (["summary", "models.py"], "GE1043", "not of the form FILE.py:factory"),
        (["summary", "models.py:nil"], "GE1043", "no function 'nil'; it has Net, make"),
        (["summary", "models.py:raises"], "GE1043", "the factory raised ValueError: no such checkpoint"),
        (["summary", "models.py:nothing"], "GE1043", "returned (3,), not a model"),
        (["summary", "models.py:bare", "-i", "floaty(2)"], "GE1043", "this is no input"),
        (["summary", "models.py:make", "--html", "models.py/page.html"], "GE1041", "tair summary --html: cannot write"),
        (["dump", "models.py:make", "-t", "svg"], "GE1040", "known are txt, pbtxt, py, html"),
        (["view", "no.air"], "GE1046", "cannot read no.air"),
        (["view", "models.py"], "GE1046", "is a program"),
        (["compare", "models.py:make", "--engine", "gpu"], "GE1044", "no engine 'gpu'"),
        (["compare", "a", "b"], "GE1045", "is not a folder"),
    ],
)
def test_errors(tair, args, code, message):
    result = tair(*args, "--json")
    assert result[0] == 2
    error = json.loads(result[1])["error"]
    assert error["code"] == code
    assert message in error["what"]
    result = tair(*args)
    assert result[0] == 2
    assert f"[{code}]" in result[1]


def test_breaks_of_the_graph_are_answers(tair, tmp_path):
    (tmp_path / "stops.py").write_text(
        "import torch\n\ndef model(x):\n    y = x.sin()\n    print(end='')\n"
        "    if y.sum() > 0:\n        return y.cos()\n"
        "    return y.exp()\n\ndef make():\n    return model, torch.ones(3)\n"
    )
    code, found = answer(tair("summary", "stops.py:make", "--real", "--json"))
    assert code == 0
    assert found["graphs"] == len(found["breaks"]) + 1 == 3
    assert [b["source"].rpartition("/")[2] for b in found["breaks"]] == ["stops.py:5 in model", "stops.py:6 in model"]
    assert all(b["reason"] and b["hints"] and b["code"] for b in found["breaks"])
    text = tair("summary", "stops.py:make", "--real")[1]
    assert "3 graphs: torch.compile stops at" in text
    assert (
        "stops.py:6 in model: if y.sum() > 0:\n    a branch on values: the graphs have the side that was taken" in text
    )
    assert tair("summary", "models.py:make", "--json")[1].count('"breaks": []') == 1


AGAIN = """
import torch

class Layer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, x):
        torch._dynamo.graph_break()
        return x * self.number

def make():
    return torch.nn.Sequential(Layer(2), Layer(3), Layer(4)), torch.ones(3)
"""


@pytest.mark.parametrize("command", [("summary",), ("check", "--soc", "ascend910b")])
def test_recompilations_are_answers(tair, tmp_path, command):
    """One layer after another compiles the rest of the same function; a second command starts anew."""
    (tmp_path / "again.py").write_text(AGAIN)
    for _ in range(2):
        _, found = answer(tair(*command, "again.py:make", "--json"))
        assert found["graphs"] == 3
        (again,) = found["recompilations"]
        assert (again["times"], again["guard"].partition(" ")[2]) == (2, "== 2")
        assert re.search(r"again\.py:\d+ in forward$", again["source"])
        lines = (tmp_path / "again.py").read_text().splitlines()
        assert again["code"] == lines[int(again["source"].split(":")[1].split()[0]) - 1].strip()
        assert again["hints"][0]
    text = tair(*command, "again.py:make")[1]
    assert "torch.compile compiles again at" in text
    assert re.search(r"in forward: .*\n    2 times more: this no longer held: ", text)


def test_a_recompilation_has_its_line_and_the_hint_of_torch(tair, tmp_path):
    (tmp_path / "again.py").write_text(AGAIN)
    (again,) = answer(tair("summary", "again.py:make", "--json"))[1]["recompilations"]
    assert again["source"].endswith("again.py:11 in forward")
    assert again["code"] == "return x * self.number"
    assert "make this integer dynamic" in again["hints"][0]


@pytest.mark.parametrize("command", ["summary", "compare", "check", "dump", "view"])
def test_a_model_without_inputs_is_told_to_give_some(tair, command):
    result = tair(command, "models.py:bare")
    assert result[0] == 2
    assert "missing 1 required positional argument" in result[1]
    assert "Next: give its inputs: -i 'float32(4, 8)' once for each, or a factory" in result[1]
    assert "--real" not in result[1]


def test_a_factory_that_raises_shows_its_lines(tair, tmp_path):
    (tmp_path / "raising.py").write_text(
        "def load():\n    raise ValueError('no such checkpoint')\n\ndef make():\n    return load()\n"
    )
    for name in ("summary", "compare"):
        code, text = tair(name, "raising.py:make")
        assert code == 2
        assert re.search(r"at \S*raising\.py:5 in make, return load\(\)\n +\S*raising\.py:2 in load, raise", text)


def test_a_folder_that_is_missing_is_made(tair, tmp_path):
    assert tair("view", "models.py:make", "-o", "new/page.html")[0] == 0
    assert tair("summary", "models.py:make", "--html", "other/page.html")[0] == 0
    assert (tmp_path / "new/page.html").is_file()
    assert (tmp_path / "other/page.html").is_file()


def test_a_dump_for_other_viewers_is_named(tair, tmp_path):
    tair("dump", "models.py:make", "-t", "pbtxt", "-o", "out")
    path = next((tmp_path / "out").glob("*.pbtxt"))
    code, text = tair("view", path)
    assert code == 2
    assert "is a dump for TensorBoard and Netron" in text
    assert "--type txt" in text


def test_help(tair):
    assert tair("--help")[0] == 0
    for name in ("summary", "dump", "view", "compare", "ops", "doctor"):
        assert name in tair("--help")[1]
        code, text = tair(name, "--help")
        assert code == 0
        assert "--json" in text
        assert tair(name, "-h") == (0, text)
    for name in ("summary", "dump", "view", "compare", "check", "plan", "profile", "minify"):
        text = tair(name, "-h")[1]
        for option in ("-i", "--config", "--dynamic", "--backward", "--real"):
            assert f"{option} " in text or f"{option}," in text, (name, option)
    assert tair("--version") == (0, f"tair {importlib.metadata.version('tair-debug')}\n")
    assert "--install-completion" in tair("-h")[1]
    assert tair("summary")[0] == 2  # an argument is missing
    assert tair("fly")[0] == 2


def test_inputs_that_do_not_fit(tair, tmp_path, caplog):
    """What the operator said, the user's line, and what was given; no log of torch around it."""
    (tmp_path / "models.py").write_text("""
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)

def make():
    return Net(), torch.ones(2, 5)
""")
    for real in ((), ("--real",)):
        code, text, *_ = tair("summary", "models.py:make", *real)
        assert code == 2
        assert "GE1047" in text
        assert "2, 5" in text.splitlines()[0].replace("2x5", "2, 5")
        assert "models.py:10 in forward, return self.inner(x)" in text
        assert "the model was given float32(2, 5)" in text
    assert "Traceback" not in caplog.text


def test_an_operator_that_nobody_registered(tair, tmp_path):
    """As in the file that minify wrote of a model with an operator of one's own."""
    (tmp_path / "small.py").write_text(
        "import torch\n\ndef make():\n    return lambda x: torch.ops.tair_nobody.odd.default(x), torch.ones(2)\n"
    )
    code, text = tair("replay", "small.py")
    assert code == 2
    assert "import what registers this operator" in text


@pytest.mark.skipif(os.name != "posix", reason="file rights")
def test_what_is_written_is_readable_by_its_owner_only(tair, tmp_path):
    tair("dump", "models.py:make", "-o", "out")
    assert all(p.stat().st_mode & 0o77 == 0 for p in (tmp_path / "out").iterdir())


def test_a_model_that_decides_by_values(tair, tmp_path):
    (tmp_path / "models.py").write_text(
        "import torch\n\ndef make():\n    return lambda x: x.sin() if x.sum() > 0 else x.cos(), torch.ones(3)\n"
    )
    code, found = answer(tair("summary", "models.py:make", "--json"))
    assert code == 2
    assert found["error"]["code"] == "GE1047"
    assert "--real" in found["error"]["next"]
    code, found = answer(tair("summary", "models.py:make", "--real", "--json"))
    assert code == 0
    assert "aten.sin.default" in {r["target"] for r in found["rows"]}


def test_constants_in_a_dump_have_their_values(tair, tmp_path):
    (tmp_path / "models.py").write_text(
        "import torch\n\ndef make():\n    return lambda x: x * torch.tensor([1.5, 2.5, 3.5]), torch.ones(3)\n"
    )
    _, found = answer(tair("dump", "models.py:make", "--json"))
    assert "[1.5, 2.5, 3.5]" in (tmp_path / found["written"][0]).read_text()


@pytest.mark.parametrize("words", ["view", "dump", "dump -t model-explorer"])
def test_a_graph_is_converted_once(tair, monkeypatch, words):
    """Also where it is written before and after the GE passes."""
    walks = []
    run = GraphLowering.run
    monkeypatch.setattr(GraphLowering, "run", lambda walk: (walks.append(walk.graph.name), run(walk))[1])
    name, *more = words.split()
    assert tair(name, "models.py:make", *more)[0] == 0
    assert walks == ["graph_1"]


ALONE = """
import gc, sys
sys.argv = ["tair", "view", "models.py:make", "-o", "page.html"]
from tair_debug import cli
before = gc.get_threshold()
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
assert "torch" in sys.modules
assert "torch._inductor.debug" not in sys.modules
assert gc.get_threshold()[0] > 10 * before[0]
assert not sys.modules["torch"]._dynamo.config.run_gc_after_compile
assert gc.get_freeze_count() > 100_000  # what the end of the process would look through several times
"""


@pytest.mark.slow
@pytest.mark.skipif(
    torch.torch_version.TorchVersion(torch.__version__) < "2.13", reason="others load Inductor to trace"
)
def test_a_command_loads_no_inductor_and_looks_for_garbage_seldom(tmp_path):
    """Each takes about as long as the model's trace."""
    (tmp_path / "models.py").write_text(MODELS)
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_replay_calls_what_registers_converters_first(tair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\nfrom ge_graph import ops\nfrom ge_converters import register_fx_node_ge_converter\n\n"
        "def make():\n"
        "    @register_fx_node_ge_converter(torch.ops.aten.asinh.default)\n"
        "    def wrong(self, *, meta_outputs=None):\n"
        "        return ops.Tanh(self)\n"
        "    return torch.asinh, torch.full((4,), 2.0)\n"
    )
    (tmp_path / "small.py").write_text(
        "import torch\n\ndef make():\n    return torch.asinh, (torch.full((4,), 2.0),)\n"
    )
    try:
        assert tair("replay", "small.py", "-q") == (0, "all within tolerance\n")
        code, output = tair("replay", "small.py", "--after", "own.py:make")
        assert code == 1
        assert "Tanh (Tanh)" in output
        code, output = tair("replay", "small.py", "--after", "own.py:absent")
        assert (code, "GE1043" in output) == (2, True)
    finally:
        REGISTRY.unregister(torch.ops.aten.asinh.default)
