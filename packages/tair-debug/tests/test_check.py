"""``tair check``: verdicts per chip, the user's line, exit codes, and what is refused."""

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from ge_graph import txt
from tair_debug.cli import app

MODELS = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return torch.sort(y)[0] + 1

def single():
    return Net(), torch.randn(3, 4)

def double():
    return Net(), torch.randn(3, 4).double()
"""


@pytest.fixture
def tair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    (tmp_path / "models.py").write_text(MODELS)
    before = [*sys.path]

    def run(*args):
        torch._dynamo.reset()
        result = CliRunner().invoke(app, ["check", *map(str, args)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    yield run
    sys.path[:] = before
    sys.modules.pop("models", None)


def test_all_well(tair):
    code, text = tair("models.py:single", "--soc", "ascend950")
    assert code == 0
    assert "ascend950: 3 operators: 3 on AI Core" in text


def test_no_kernel_is_exit_code_1_with_line_and_way_out(tair):
    code, text = tair("models.py:double", "--soc", "ascend950", "--json")
    assert code == 1
    (chip,) = json.loads(text)["chips"]
    relu = next(r for r in chip["rows"] if r["op"] == "Relu")
    assert relu["state"] == "none"
    assert "models.py:6 in forward" in relu["source"][0]
    assert "torch.relu(x)" in relu["source"][0]
    assert "cast x to DT_FLOAT" in relu["advice"]
    assert [r["state"] for r in chip["rows"]] == sorted(
        (r["state"] for r in chip["rows"]), key=["none", "aicpu", "unknown", "open", "aicore", "device"].index
    )


def test_without_a_chip_there_is_a_line_for_each(tair):
    code, text = tair("models.py:single")
    assert code == 0
    for chip in ("ascend310p", "ascend910b", "ascend910_93", "ascend950"):
        assert f"\n{chip}: " in text


def test_the_table_names_the_slow_unit(tair):
    code, text = tair("models.py:double", "--soc", "ascend950", "--soc", "a2")
    assert code == 1
    assert "AI CPU" in text
    assert "no kernel" in text


def test_a_verdict_says_how_strong_the_evidence_is_and_who_gives_it(tair):
    code, text = tair("models.py:single", "--soc", "a3", "--json")
    (chip,) = json.loads(text)["chips"]
    relu = next(r for r in chip["rows"] if r["op"] == "Relu")
    assert (code, relu["state"], relu["strength"], relu["proven"]) == (0, "aicore", "same core", True)
    assert relu["evidence"][0].endswith("kernel_details.csv")
    assert chip["proven"] is (chip["strengths"].keys() <= {"listed", "measured", "same core", "launched"})
    code, text = tair("models.py:single", "--soc", "a3", "--all", "-v")
    assert code == 0
    assert "measured" in text
    assert "says who" in text


def test_strict_wants_more_than_documentation(tair, tmp_path):
    from ge_graph import DataType, Graph

    graph = Graph("foreign")
    x = graph.add("Data", (None,), {}, [(DataType.DT_FLOAT, (2,))])
    y = graph.add("TheirOwnOperator", (x.outputs[0],), {}, [(DataType.DT_FLOAT, (2,))])
    graph.outputs = [y.outputs[0]]
    (tmp_path / "graph.txt").write_text(txt.to_txt(graph))
    assert tair("graph.txt", "--soc", "a2")[0] == 0
    code, text = tair("graph.txt", "--soc", "a2", "--strict")
    assert code == 1
    assert "TheirOwn" in text
    assert tair("models.py:single", "--soc", "ascend950", "--strict")[0] == 0


def test_where_an_installation_and_the_evidence_disagree(tair, tmp_path):
    folder = tmp_path / "cann/opp/built-in/op_impl/ai_core/tbe/config/ascend910b"
    folder.mkdir(parents=True)
    ports = {
        f"{side}0": {"name": name, "paramType": "required", "dtype": "float16", "format": "ND"}
        for side, name in (("input", "x"), ("output", "y"))
    }
    (folder / "aic-ascend910b-ops-info.json").write_text(json.dumps({"Relu": ports}))
    code, text = tair("--contradictions", "--soc", "a2", "--cann", str(tmp_path / "cann"), "--json")
    found = json.loads(text)["contradictions"]
    assert code == 1
    assert any(row[:3] == ["Relu", "ascend910b", "page"] and row[3].startswith("x in ") for row in found)
    assert any(row[0] == "MatMulV2" and row[4] == "no kernel" for row in found)
    assert tair("--contradictions", "--soc", "a2")[0] == 2


def test_unknown_chip_gets_the_list(tair):
    code, text = tair("models.py:single", "--soc", "gpu", "--json")
    error = json.loads(text)["error"]
    assert (code, error["code"]) == (2, "GE3068")
    assert "ascend910b" in error["next"]


def test_a_graph_of_another_tool(tair, tmp_path):
    from ge_graph import DataType, Graph

    graph = Graph("foreign")
    x = graph.add("Data", (None,), {}, [(DataType.DT_FLOAT, (2,))])
    y = graph.add("TheirOwnOperator", (x.outputs[0],), {}, [(DataType.DT_FLOAT, (2,))], name="their\x1b[31mnode")
    z = graph.add("Relu", (y.outputs[0],), {}, [(DataType.DT_FLOAT, (2,))])
    graph.outputs = [z.outputs[0]]
    (tmp_path / "graph.txt").write_text(txt.to_txt(graph))
    code, text = tair("graph.txt", "--soc", "ascend950", "--all")
    assert code == 0
    assert "TheirOwnOperator" in text.replace("\n", "")
    assert "\x1b[31mnode" not in text


def test_an_installation_and_its_facts_elsewhere(tair, tmp_path):
    lists = tmp_path / "cann/opp/built-in/op_impl/ai_core/tbe/config/ascend910b"
    lists.mkdir(parents=True)
    port = {"paramType": "required", "dtype": "float", "format": "ND"}
    (lists / "aic-ascend910b-ops-info.json").write_text(
        json.dumps({"Relu": {"input0": {"name": "x", **port}, "output0": {"name": "y", **port}}})
    )
    code, text = tair("models.py:single", "--soc", "ascend910b", "--cann", "cann", "--write-facts", "f.tsv", "--json")
    states = {r["op"]: r["state"] for r in json.loads(text)["chips"][0]["rows"]}
    assert (code, states["Relu"], states["Sort"]) == (0, "aicore", "unknown")
    assert json.loads(tair("models.py:single", "--soc", "ascend910b", "--cann", "f.tsv", "--json")[1])["ok"]
    (tmp_path / "f.tsv").write_text((tmp_path / "f.tsv").read_text().replace("facts\t1\t", "facts\t7\t"))
    code, text = tair("models.py:single", "--soc", "ascend910b", "--cann", "f.tsv")
    assert code == 2
    assert "f.tsv" in text
    assert "version '7'" in text
