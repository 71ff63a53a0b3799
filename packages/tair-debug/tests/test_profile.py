"""`tair profile`: what ran, in which order, on which stream; and its files, read by those who read a device's."""

from __future__ import annotations

import csv
import io
import json

import pytest
import torch
from typer.testing import CliRunner

from ge_graph.cost import measured
from ge_graph.cost.profile import Task, chrome_trace, kernel_details
from ge_graph.errors import ConfigError
from tair_debug import models, profile
from tair_debug.cli import app

MODEL = """
import torch
import torchair

class Model(torch.nn.Module):
    def forward(self, x):
        mm = torch.mm(x, x)
        with torchair.scope.npu_stream_switch("stream_1"):
            y = torch.abs(mm)
        return y + 1, x - mm

def make():
    return Model(), torch.ones(4, 4)
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(MODEL)
    return f"{path}:make"


def test_name_stream_and_order_of_each_operator(target, tmp_path):
    pytest.importorskip("torchair")
    out = tmp_path / "prof"
    result = CliRunner().invoke(app, ["profile", target, "-o", str(out), "--runs", "2", "--json"])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader(io.StringIO((out / "kernel_details.csv").read_text())))
    first = [row for row in rows if row["Step Id"] == "0"]
    assert len(rows) == 2 * len(first)
    types = [row["Type"] for row in first]
    assert types.index("MatMulV2") < types.index("Abs") < types.index("Add")
    streams = {row["Type"]: row["Stream ID"] for row in first}
    assert streams["Abs"] != streams["MatMulV2"] == streams["Sub"]
    matmul = next(row for row in first if row["Type"] == "MatMulV2")
    assert (matmul["Input Shapes"], matmul["Input Data Types"]) == ("4,4;4,4", "FLOAT;FLOAT")
    starts = [float(row["Start Time(us)"]) for row in rows]
    assert starts == sorted(starts)
    trace = json.loads((out / "trace_view.json").read_text())["traceEvents"]
    events = [e for e in trace if e["ph"] == "X"]
    assert [e["name"] for e in events] == [row["Name"] for row in rows]
    assert {e["args"]["Type"]: str(e["tid"]) for e in events} == streams
    assert {e["args"]["name"] for e in trace if e["name"] == "thread_name"} >= {"Stream 0", "Stream 1 (stream_1)"}
    assert any("my_model.py" in e["args"]["source"] for e in events)
    said = json.loads(result.stdout)
    assert {row["op"] for row in said["operators"]} == set(types)


def test_the_table_calibrates_a_plan(target, tmp_path):
    out = tmp_path / "prof"
    CliRunner().invoke(app, ["profile", target, "-o", str(out)])
    table = measured.read(out / "kernel_details.csv")
    row = next(r for r in table.rows if r.op == "MatMulV2")
    assert (row.shapes, row.types) == (((4, 4), (4, 4)), ("f32", "f32"))
    assert row.seconds > 0


def test_training_runs_both_halves():
    model = torch.nn.Linear(3, 2)
    found = profile.profile_of(models.Subject(model, (torch.ones(4, 3),)), backward=True, warmup=0)
    assert sum(t.op == "MatMulV2" for t in found.tasks) >= 2
    assert model.weight.grad is not None
    assert "us a run" in str(found)


def test_an_engine_that_is_not_there():
    with pytest.raises(ConfigError, match="GE1044"):
        profile.profile_of(models.Subject(torch.nn.ReLU(), (torch.ones(2),)), engine="nobody")


def test_names_steer_no_spreadsheet():
    task = Task("=cmd()", "Add", 0, 1.0, 2.0, inputs=(((2, 3), "f32"), ((), "i64")))
    text = kernel_details([task])
    assert "'=cmd()" in text
    assert '"2,3;","FLOAT;INT64"'.replace('"FLOAT;INT64"', "FLOAT;INT64") in text
    assert chrome_trace([task], "x")["traceEvents"][-1]["name"] == "=cmd()"
