"""``tair emulate --profile``: name, stream and order of all that an emulated device ran.

Run under ``tair emulate``.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_npu  # noqa: F401
from torch.profiler import ProfilerActivity, profile

import torchair

SCRIPTS = Path(__file__).parent / "scripts"

CAPTURED = """
import torch, torch_npu, torchair
config = torchair.CompilerConfig()
config.mode = "npugraph_ex"
call = torch.compile(lambda x: torch.relu(x @ x) + 1, backend=torchair.get_npu_backend(compiler_config=config))
x = torch.ones(4, 4).npu()
for _ in range(3):
    call(x)
torch.npu.synchronize()
"""


def profiled(folder, *command):
    env = {**os.environ, "TAIR_EMULATOR_PROFILE": str(folder)}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, cwd=folder.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = list(csv.DictReader((folder / "kernel_details.csv").open()))
    trace = json.loads((folder / "trace_view.json").read_text())["traceEvents"]
    assert [row["Name"] for row in rows] == [e["name"] for e in trace if e["ph"] == "X"]
    assert [row["Stream ID"] for row in rows] == [str(e["tid"]) for e in trace if e["ph"] == "X"]
    return rows, trace


def test_the_script_with_user_streams(tmp_path):
    """mm and abs run on their own stream, sub after abs, as the scopes, the record and the wait of the script say."""
    rows, trace = profiled(tmp_path / "prof", str(SCRIPTS / "user_streams.py"))
    order = [row["Type"] for row in rows]
    assert order.index("MatMulV2") < order.index("Abs") < order.index("Sub")
    stream = {row["Type"]: row["Stream ID"] for row in rows if row["Type"] in ("MatMulV2", "Abs", "Add", "Sub")}
    assert stream["MatMulV2"] == stream["Abs"] != stream["Sub"]
    assert stream["Add"] == stream["Sub"]
    titles = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert "stream_1" in titles[int(stream["Abs"])]


def test_tasks_of_captured_graphs(tmp_path):
    """Three replays, each task in each of them."""
    script = tmp_path / "captured.py"
    script.write_text(CAPTURED)
    rows, _ = profiled(tmp_path / "prof", str(script))
    matmul, relu, add = (
        [i for i, row in enumerate(rows) if row["Type"] == kind] for kind in ("Matmul", "InplaceRelu", "InplaceAdds")
    )
    assert len(matmul) == len(relu) == len(add) == 3
    for a, b, c in zip(matmul, relu, add, strict=True):
        assert a < b < c
        assert len({rows[i]["Stream ID"] for i in (a, b, c)}) == 1


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("mode", "name"), [("max-autotune", "GE graph "), ("npugraph_ex", "replay of ")])
def test_torch_profiler_has_a_record_of_each_run(mode, name, dynamic):
    """On the thread that launches; a graph by GE's name of it, a capture by what it was captured of."""
    config = torchair.CompilerConfig()
    config.mode = mode
    torch._dynamo.reset()
    call = torch.compile(
        lambda x: torch.relu(x @ x) + 1, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic
    )
    x = torch.ones(4, 4).npu()
    call(x)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(2):
            call(x)
    names = [event.name for event in seen.events() if event.name.startswith(("GE graph ", "replay of "))]
    assert len(names) == 2
    assert len(set(names)) == 1
    assert names[0].startswith(name)
    assert names[0] != name
