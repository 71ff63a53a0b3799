"""torch's own tools show what torchair does: TORCH_LOGS and the structured trace that tlparse reads."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, torchair
config = torchair.CompilerConfig()
config.mode = MODE
config.check_soc = SOC
model = torch.nn.Linear(4, 4).eval()
call = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
with torch.no_grad():
    torch.testing.assert_close(call(torch.ones(2, 4)), model(torch.ones(2, 4)))
"""


def run(tmp_path, mode="max-autotune", soc=None, **env):
    (tmp_path / "program.py").write_text(PROGRAM.replace("MODE", repr(mode)).replace("SOC", repr(soc)))
    given = {**os.environ, **env}
    given.pop("TNG_LOG_LEVEL", None)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.night(rows=3)
@pytest.mark.parametrize(
    ("value", "shown"), [("torchair", {"INFO"}), ("+torchair", {"INFO", "DEBUG"}), ("-torchair", set())]
)
def test_torch_logs(tmp_path, value, shown):
    text = run(tmp_path, TORCH_LOGS=value)
    assert {level for level in ("INFO", "DEBUG") if f"[{level}] TORCHAIR(" in text} == shown


def artefacts(tmp_path, **more):
    """Name of an artefact of the trace to its text."""
    run(tmp_path, TORCH_TRACE=str(tmp_path / "trace"), **more)
    (file,) = (tmp_path / "trace").iterdir()
    found, name = {}, None
    for line in file.read_text().splitlines():
        if line.startswith("\t"):
            if name is not None:
                found[name] = found.get(name, "") + line[1:] + "\n"
        else:
            name = json.loads(line[line.index("{") :]).get("artifact", {}).get("name")
    return {name: text for name, text in found.items() if name.startswith("torchair")}


def test_the_trace_has_graph_report_and_verdict(tmp_path):
    found = artefacts(tmp_path, soc="ascend910b")
    assert found.keys() == {"torchair_graph_1", "torchair_graph_1_report", "torchair_graph_1_ascend910b"}
    assert "MatMulV2" in found["torchair_graph_1"]
    report = json.loads(found["torchair_graph_1_report"])
    assert report["ge_ops"] >= 1
    assert {"lower", "engine"} <= report["stages"].keys()
    assert json.loads(found["torchair_graph_1_ascend910b"])["soc"] == "ascend910b"


def test_the_trace_has_a_captured_program(tmp_path):
    found = artefacts(tmp_path, mode="reduce-overhead")
    assert found.keys() == {"torchair_graph_1_program", "torchair_graph_1_report"}
    assert "addmm" in found["torchair_graph_1_program"]
