"""`tair check --capture`: what captured graphs need, size by size, against a chip's published limits.

That the numbers are those of captured graphs is shown on emulated NPUs (``device_tests/test_captured_needs.py``).
"""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from ge_graph.errors import ConfigError
from tair_debug import captures, models
from tair_debug.cli import app

pytest.importorskip("torchair")

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(256, 1024)

    def forward(self, x):
        return torch.relu(self.up(x)) + 1

def make():
    return Model(), torch.zeros(4, 256)

def of_size(count):
    return Model(), torch.zeros(count, 256)

class Broken(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        y[x > 0] = 1.0
        return y

def broken():
    return Broken(), torch.zeros(4)

@torch.library.custom_op("test_captures::odd", mutates_args=())
def odd_of(x: torch.Tensor) -> torch.Tensor:
    return x.clone()

@odd_of.register_fake
def _(x):
    return torch.empty_like(x)

class Odd(torch.nn.Module):
    def forward(self, x):
        return odd_of(x)

def odd():
    return Odd(), torch.zeros(4)
"""


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "my_model.py"
    made.write_text(MODEL)
    return made


def ask(*args):
    result = CliRunner().invoke(app, ["check", "--capture", *map(str, args), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("factory", ["make", "of_size"])
def test_each_size_and_the_sum(path, factory):
    code, said = ask(f"{path}:{factory}", "--sizes", "1,2,2048", "--soc", "Ascend910B3")
    assert code == 0
    assert [row["size"] for row in said["sizes"]] == [1, 2, 2048]
    assert all((row["graphs"], row["streams"], row["events"]) == (1, 1, 0) for row in said["sizes"])
    assert [row["tasks"] for row in said["sizes"]] == [3, 3, 3]  # addmm, relu, add
    # a small one has a segment of 2 MiB; 8 MiB come from segments of 20 MiB, which hold two of them
    assert [row["pool_bytes"] for row in said["sizes"]] == [2 << 20, 2 << 20, 20 << 20]
    assert said["sum"]["pool_bytes"] == 24 << 20
    assert said["limits"] == {"graphs": None, "streams": 1984, "events": 65535}
    assert "aclrtCreateStream" in said["sources"]["streams"]
    assert "no public figure" in said["sources"]["graphs"]


def test_more_graphs_than_the_chip_has_streams(path):
    sizes = ",".join(map(str, range(1, 4)))
    found = captures.captures_of(lambda n: models.load(f"{path}:of_size", size=n), [1, 2, 3], "ascend310p")
    assert found.ok
    found.limits["streams"] = 2
    assert not found.ok
    assert found.exceeded == ["streams"]
    assert "3 streams, the chip has 2" in str(found)
    assert captures.sizes_of(sizes) == [1, 2, 3]


def test_an_operator_that_nobody_measured_is_named_with_its_line(path):
    code, said = ask(f"{path}:odd")
    assert code == 0
    (row,) = said["sizes"]
    assert row["tasks"] == 1
    assert list(row["unmeasured"]) == ["test_captures.odd.default"]
    assert "my_model.py" in row["unmeasured"]["test_captures.odd.default"][0]


def test_what_a_device_cannot_capture_is_said(path):
    code, said = ask(f"{path}:broken")
    assert code == 2
    assert said["error"]["code"] == "GE1058"
    assert "my_model.py" in said["error"]["what"]


@pytest.mark.parametrize("text", ["", "0", "1,,2", "many", "1;2"])
def test_sizes_that_are_none(text):
    with pytest.raises(ConfigError, match="GE1043"):
        captures.sizes_of(text)


def test_inputs_without_a_leading_size(tmp_path):
    made = tmp_path / "scalars.py"
    made.write_text("import torch\ndef make():\n    return torch.nn.ReLU(), torch.zeros(())\n")
    with pytest.raises(ConfigError, match="leading size"):
        models.load(f"{made}:make", size=4)


def test_all_inputs_of_the_batch_get_the_size(tmp_path):
    made = tmp_path / "two.py"
    made.write_text(
        "import torch\ndef make():\n    return torch.nn.ReLU(), (torch.zeros(2, 3), torch.zeros(5), torch.zeros(2))\n"
    )
    subject = models.load(f"{made}:make", size=7)
    assert [tuple(t.shape) for t in subject.args] == [(7, 3), (5,), (7,)]
    assert isinstance(subject.args[0], torch.Tensor)


def test_symbolic_sizes_count_as_the_sizes_of_the_trace(path):
    plain, symbolic = (ask(f"{path}:make", "--sizes", "2,2048", *more)[1]["sizes"] for more in ([], ["--dynamic"]))
    assert [row["pool_bytes"] for row in plain] == [row["pool_bytes"] for row in symbolic]
    assert [row["tasks"] for row in plain] == [row["tasks"] for row in symbolic]
