"""Under TAIR_LANG=zh no line of an answer is English: neither evidence, reasons and advice, nor broken rules."""

import logging
import re
import shlex

import pytest
import torch
from typer.testing import CliRunner

import tair_debug.cli
import torchair
from ge_graph import DataType, Graph, building, ops, verify
from ge_graph import messages as table
from tools import messages as sources

MODEL = """
import torch

@torch.library.custom_op("chinese::tanh", mutates_args=())
def tanh(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.tanh(x / limit)

@tanh.register_fake
def _(x, limit):
    return torch.empty_like(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(self.norm(x)).cumsum(-1) + torch.rand_like(x)
        v, p = torch.sort(y)
        return v, p.double(), torch.linalg.inv(y @ y.mT), torch.cdist(y, y)

class Refused(torch.nn.Module):
    def forward(self, x):
        y = torch.ops.chinese.tanh(x, 2.0)
        return torch.linalg.eigvals(y @ y.mT).real

class Branches(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        return x.exp()

class Plain(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.sinh(x), -1)

def net(): return Net().eval(), torch.randn(4, 8)
def refused(): return Refused(), torch.randn(4, 8)
def branches(): return Branches(), torch.ones(4, 8)
def plain(size=4): return Plain(), torch.randn(size, 8)
def raises():
    raise ValueError("8 15")
"""
COMMANDS = (
    "summary m.py:net --all",
    "summary m.py:refused -v",
    "check m.py:net --soc ascend910b --all -v",
    "check m.py:net --soc ascend310p --all -v",
    "check m.py:net --soc ascend950 --all",
    "check m.py:refused --soc ascend910b",
    "check m.py:branches --real",
    "check --capture m.py:plain --sizes 1,2",
    "compare m.py:net --all",
    "compare m.py:plain --numerics ascend910b --all",
    "compare m.py:refused",
    "plan m.py:net --soc Ascend910B2",
    "profile m.py:plain -o prof",
    "minify m.py:plain",
    "minify m.py:refused",
    "view m.py:plain m.py:net -o view.html",
    "ops 'aten.clamp.*'",
    "ops --ge Tanh",
    "doctor",
    "summary m.py:raises",
    "summary m.py:missing",
)
NAMES = {  # what has no Chinese: names of ports, units, packages, and words of code
    *("in", "forward", "return", "raise", "built", "function", "getitem", "or", "us", "source", "empty", "inputs"),
    *("gamma", "beta", "mean", "rstd", "cube", "vector", "dropout", "kernel", "pass", "core", "ai", "eager", "eval"),
    *("ge", "graph", "converters", "runtime", "native", "tair", "replay", "debug", "export", "torch", "hf"),
    *("factory", "package", "module", "model", "net", "refused", "branches", "plain", "raises", "tanh"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "m.py").write_text(MODEL)
    return folder


def english(text):
    """Lines with more than one word of English that is neither a name nor part of a path, of code or of a number."""
    lines = []
    for line in text.splitlines():
        plain = re.sub(r"\S*[\d_./@=(\[\"'`]\S*", " ", re.sub(r"[│┃]", "  ", line))
        words = [w for w in re.findall(r"(?<![A-Za-z])[a-z]{2,}(?![A-Za-z])", plain) if w not in NAMES]
        if len(words) > 1:
            lines.append(line.strip())
    return lines


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv("TAIR_LANG", "zh")
    torchair.logger.setLevel(logging.ERROR)  # records, which stay English, are no answers


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_of_a_command_is_english(command, place, chinese, monkeypatch):
    monkeypatch.chdir(place)
    torch.compiler.reset()
    done = CliRunner().invoke(tair_debug.cli.app, shlex.split(command))
    assert done.exit_code in (0, 1, 2), done.exception
    assert re.search("[\u4e00-\u9fff]", done.output)
    assert english(done.output) == []


def test_the_reading_sees_english():
    """What the test above rests on."""
    assert english("依据：published operator libraries")
    assert english("│ x │ a run in these types │")
    assert not english("  /tmp/m.py:3 in forward: return x.exp()\n│ AI Core, 实测 │ Mul │ x1 f32, x2 f32 │")


def test_every_sentence_about_kernels_and_rules_has_its_chinese_when_it_is_put_together():
    """With values in their fields, and as a clause or a value of another sentence."""
    said = list(sources.put_together())
    assert len(said) > 150
    for code, text, _ in said:
        filled = table.FIELD.sub("Abc", text)
        wrapped = {"GE3010": f"  [GE3022] Abc 'n': {filled} (from m.py:3)", table.ANY: f"a collective; {filled}"}
        for form in {filled, wrapped.get(code, filled)}:
            chinese = table.said("tair" if code == table.ANY else code, form, "zh")
            assert not re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,} [a-z]{2,}", chinese), (form, chinese)


def test_broken_rules_are_told_in_chinese(chinese):
    graph = Graph("g")
    with building(graph):
        y = ops.Relu(ops.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2,)))
    y.node.op = "Reluu"
    graph.outputs = [y]
    with pytest.raises(verify.VerifyError) as caught:
        verify.verify(graph)
    assert "GE has no operator 'Reluu'" in caught.value.what
    assert "GE 没有算子 'Reluu'；您是否想写" in str(caught.value)


def test_reasons_on_the_page_of_a_summary_are_in_both_languages(place, monkeypatch):
    monkeypatch.chdir(place)
    torch.compiler.reset()
    CliRunner().invoke(tair_debug.cli.app, ["summary", "m.py:refused", "--html", "s.html"])
    page = (place / "s.html").read_text()
    found = re.search(r'data-en="1x (no converter[^"]*)" data-zh="1x ([^"]*)"', page)
    assert "GE op Tanh exists, but it has no attribute" in found[1]
    assert "存在 GE 算子 Tanh，但它没有属性" in found[2]
