"""The commands as functions, for notebooks and scripts: the same answers, nothing computed, nothing changed."""

import io
import json
import sys
import types

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import torchair
from ge_graph.errors import ConfigError
from tair_debug.cli import app

FILE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x, y):
        return torch.topk(self.norm(x) + y, 2)[0]

def make():
    torch.manual_seed(0)
    return Model(), (torch.ones(4, 8), torch.ones(4, 8))
"""


@pytest.fixture
def same(tmp_path):
    """``same(command, ...)``: the JSON of a command on the model of ``FILE``, and its model and inputs."""
    (tmp_path / "file_of_ask.py").write_text(FILE)

    def run(*args):
        torch._dynamo.reset()
        result = CliRunner().invoke(app, [args[0], "file_of_ask.py:make", *args[1:], "--json"])
        torch._dynamo.reset()
        return json.loads(result.output)

    return run


@pytest.fixture
def made(tmp_path, same, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    import importlib

    return importlib.import_module("file_of_ask").make()


def without_places(answer):
    return {**answer, "rows": [{**row, "sources": len(row["sources"])} for row in answer["rows"]]}


@pytest.mark.parametrize("more", [{}, {"dynamic": True}, {"backward": True}])
def test_summary(same, made, more):
    model, inputs = made
    result = torchair.summary(model, *inputs, **more)
    wanted = same("summary", *(f"--{name}" for name in more))
    assert result.ok
    assert without_places(result.as_dict()) == without_places(wanted)
    assert model.norm.weight.grad is None


def test_check(same, made):
    model, inputs = made
    result = torchair.check(model, *inputs, soc=["ascend910b", "ascend950"])
    assert [r.soc for r in result.reports] == ["ascend910b", "ascend950"]
    assert result.as_dict()["chips"][0]["counts"] == same("check", "--soc", "ascend910b")["chips"][0]["counts"]
    assert torchair.check(model, *inputs, soc="ascend910b").as_dict()["chips"] == result.as_dict()["chips"][:1]
    assert result.records()[0]["soc"] == "ascend910b"


def test_compare(same, made):
    model, inputs = made
    result = torchair.compare(model, *inputs)
    assert result.ok
    assert {r.op for r in result.rows} == {r["op"] for r in result.records()}
    assert result.as_dict()["compared"] == same("compare")["compared"]


def test_view(made, tmp_path):
    model, inputs = made
    page = torchair.view(model, *inputs)
    (path,) = page.save(tmp_path / "deep" / "page.html")
    assert "<canvas" in path.read_text()
    html = page._repr_html_()
    assert html.startswith('<iframe sandbox="allow-scripts allow-downloads" srcdoc="')
    assert html.count("<") == 2  # of the frame: the page itself is its attribute


def test_nothing_is_computed():
    """160 GB, were a copy made or a result computed."""
    with torch.device("meta"):
        model = torch.nn.Linear(200_000, 200_000)
    assert torchair.summary(model, torch.empty(1, 200_000, device="meta")).ok


@pytest.mark.parametrize("name", ["summary", "check", "compare"])
def test_what_a_notebook_shows(made, name, monkeypatch):
    model, inputs = made
    result = getattr(torchair, name)(model, *inputs)
    assert repr(result) == str(result)
    assert "\x1b" not in str(result)
    assert result._repr_html_().lstrip().startswith(("<pre", "<iframe"))
    pandas = types.ModuleType("pandas")  # which need not be installed
    pandas.DataFrame = types.SimpleNamespace(from_records=lambda rows: ("frame", rows))
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert result.to_pandas() == ("frame", result.records())
    assert len({tuple(row) for row in result.records()}) == 1  # all rows have the same keys


def test_a_notebook_shows_an_answer_once(made, monkeypatch):
    """In a kernel rich shows by itself what is printed to a console; and an object names no options of a command."""
    shown = []
    display = types.ModuleType("IPython.display")
    display.display = shown.append
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    model, inputs = made
    results = [getattr(torchair, name)(model, *inputs) for name in ("summary", "check", "compare", "view", "plan")]
    for result in results:
        assert str(result)
        assert result._repr_html_()
        assert " --" not in f" {result}"
    assert shown == []


def test_a_name_is_no_markup():
    def evil(x):
        return torch.sin(x)

    evil.__name__ = "<script>alert(1)</script>[red]\x1b[31m"
    result = torchair.summary(evil, torch.randn(2))
    assert "<script>alert" not in result._repr_html_()
    assert "\x1b" not in str(result)
    assert "[red]" in str(result)  # as it stands, no style


def test_a_model_that_cannot_be_traced():
    from ge_graph.errors import ConfigError

    with pytest.raises(ConfigError, match="GE1047") as caught:
        torchair.summary(torch.nn.Linear(3, 3))
    assert "give its inputs" in str(caught.value)


def test_progress_is_for_terminals_only(monkeypatch):
    from tair_debug import terminal

    out = io.StringIO()
    monkeypatch.setattr(terminal, "console", lambda *, errors=False: Console(file=out))
    monkeypatch.setattr(terminal, "_SILENCE", 0.0)
    with terminal.working("tair check"):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize("model", [torch.nn.Linear(4, 2), torch.nn.Bilinear(4, 4, 2)])
def test_inputs_in_one_tuple_are_told(model):
    inputs = (torch.ones(1, 4), torch.ones(1, 4))[: 1 + isinstance(model, torch.nn.Bilinear)]
    with pytest.raises(ConfigError, match=r"GE1047[^\n]*\n.*one by one"):
        torchair.summary(model, inputs)
