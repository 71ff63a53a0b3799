"""Published example scripts for a device run as they are, and leave what they promise. Run under ``tair emulate``.

``scripts/user_streams.py`` and both ``scripts/debug_*.py`` are whole scripts, verbatim; the others complete published
fragments with a model and inputs.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ge_graph import serde

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "scripts"
AFTER = """
import runpy, sys
ran = runpy.run_path(sys.argv[1], run_name="__main__")
import torch, torchair
assert "torch_npu" not in torchair.__file__, torchair.__file__
{check}
"""


def run(folder: Path, *command: str) -> str:
    """Run a program on the emulator in a folder of its own; its standard output."""
    variables = {**os.environ, "TAIR_EMULATOR_GRAPHS": str(folder / "received"), "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def run_and_compare(folder: Path, script: Path, check: str) -> str:
    """Run a script as the main program; then ``check`` sees its names in ``ran``."""
    (folder / "after.py").write_text(AFTER.format(check=check))
    return run(folder, "ge_emulator", "after.py", str(script))


def received(folder: Path) -> list:
    return [serde.from_bytes(p.read_bytes()) for p in sorted((folder / "received").iterdir())]


def differences(told: str) -> list[float]:
    return [float(v) for v in re.findall(r"largest difference (\S+)", told)]


def test_custom_operator(tmp_path: Path):
    shutil.copy(SCRIPTS / "custom_reg_op.h", tmp_path)
    run(tmp_path, "ge_graph.codegen", "custom_reg_op.h", "-o", "auto_generated_ge_raw_custom_ops.py")
    told = run(tmp_path, "tair_debug.cli", "emulate", str(SCRIPTS / "custom_op.py"))
    assert differences(told) == [0.0]
    (graph,) = received(tmp_path)
    assert [n.op for n in graph.nodes if n.op not in ("Data", "Const")] == ["Add", "Mul"]
    assert [p.name[:7] for p in sorted(tmp_path.glob("dynamo_*.txt"))] == ["dynamo_"] * 2


def test_graph_dump_and_summary(tmp_path: Path):
    told = run(tmp_path, "ge_emulator", str(SCRIPTS / "graph_dump.py"))
    found = differences(told)
    assert len(found) == 5
    assert max(found) < 1e-6
    assert "torch_npu" not in told[told.index("torchair of") :].splitlines()[0]
    for kind in ("txt", "pbtxt", "py"):
        names = sorted(p.name for p in tmp_path.glob(f"dynamo_*_graph_*.{kind}"))
        assert [n.split("_graph_")[0] for n in names] == ["dynamo_optimized", "dynamo_original"]
    assert 'op: "AxpyV2"' in next(tmp_path.glob("dynamo_optimized*.pbtxt")).read_text()
    run(tmp_path, "ge_emulator", str(next(tmp_path.glob("dynamo_optimized*.py"))))  # the Python form runs
    (summary,) = tmp_path.glob("summary_*.csv")
    rows = {r["目标函数"]: r for r in csv.DictReader(summary.read_text(encoding="utf-8-sig").splitlines())}
    assert rows["aten.addmm.default"]["支持状态"] == "已支持"
    assert rows["aten.add.Tensor"]["输入统计"] == "1次：(float32(2, 3), float32(2, 3), alpha=2)"
    assert len(received(tmp_path)) == 4  # the summary compiles nothing


def test_tensor_dump(tmp_path: Path):
    run(tmp_path, "ge_emulator", str(SCRIPTS / "data_dump.py"))
    graph = tmp_path / "test" / "worldsize1_global_rank0" / "graph_1"
    assert sorted(p.name for p in graph.iterdir()) == ["0", "1"]
    y = np.arange(6, dtype=np.float32).reshape(2, 3)
    for step in (0, 1):
        values = {}
        for path in (graph / str(step)).iterdir():
            name = re.fullmatch(r"(\w+)-aten\.\w+\.Tensor\.(INPUT|OUTPUT)\.(\d)\.\d{20}\.npy", path.name)
            assert name, path.name
            values[name.groups()] = np.load(path)
        assert {k[0] for k in values} == {"add_1", "sub"}
        np.testing.assert_array_equal(values["add_1", "INPUT", "1"], y)
        np.testing.assert_array_equal(values["add_1", "OUTPUT", "0"], step + 1 + y)
        np.testing.assert_array_equal(values["sub", "OUTPUT", "0"], (step + 1 + y) * 2 - 1)


STREAMS = """for _ in range(2):
    x = torch.randn(3, 3)
    for got, want in zip(ran["opt_model"](x.npu()), ran["Model"]()(x)):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-6)"""


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_streams_by_a_custom_pass(tmp_path: Path, mode: str):
    (tmp_path / "graph_dump").mkdir()  # the option wants a folder that exists
    text = (SCRIPTS / "user_streams.py").read_text()
    if mode == "reduce-overhead":
        offered = '# config.mode = "reduce-overhead" '
        assert text.count(offered) == 1
        text = text.replace(offered, offered[2:])
    script = tmp_path / "user_streams.py"
    script.write_text(text)
    told = run_and_compare(tmp_path, script, STREAMS)
    assert (tmp_path / "prof").is_dir()
    for marker in ("scope_enter", "scope_exit", "record", "wait"):
        assert re.search(rf"target=torch\.ops\.\w+\.{marker}\.default", told)  # of torchair: torch_npu owns `air`
    if mode == "reduce-overhead":
        assert not (tmp_path / "received").exists()
        return
    assert len(list((tmp_path / "graph_dump").glob("dynamo_*.pbtxt"))) == 2
    (graph,) = received(tmp_path)
    label = {n.op: n.attr("_user_stream_label") if "_user_stream_label" in n.attrs else None for n in graph.nodes}
    on_stream = {op for op, stream in label.items() if stream == "stream_1"}
    assert {"Abs"} < on_stream
    assert any(op.startswith(("MatMul", "BatchMatMul")) for op in on_stream)
    assert not {"Add", "Sub"} & on_stream
    (sub,) = (n for n in graph.nodes if n.op == "Sub")
    (record,) = sub.control  # waits for the record, which follows Abs
    assert [n.op for n in record.control] == ["Abs"]
    assert record.attr("_user_stream_label") == "stream_1"
    assert all("_provenance" not in n.attrs for n in graph.nodes)


TWICE = """ran["model"](torch.ones(20, 20, device="npu:0"))
x = torch.randn(20, 20)
torch.testing.assert_close(ran["model"](x.npu()).cpu(), 2 * x, rtol=0, atol=0)"""


def test_debug_record(tmp_path: Path):
    gradient = """x, out, target = (ran[k].detach().cpu() for k in ("x", "out", "target"))
assert torch.isfinite(ran["loss"].cpu()) and torch.equal(out, 2 * x)
"""
    run_and_compare(tmp_path, SCRIPTS / "debug_max_autotune.py", gradient + TWICE)
    (folder,) = (tmp_path / "torch_compile_debug").glob("run_*-pid_*")
    assert (folder / "torchdynamo" / "debug.log").stat().st_size > 0
    assert (folder / "torchair" / "debug.log").stat().st_size > 0
    assert sorted(p.name for p in (folder / "torchair").iterdir()) == ["debug.log", "model__0", "model__1"]
    for model, phases in (("model__0", ["backward", "forward"]), ("model__1", ["forward"])):
        place = folder / "torchair" / model
        assert sorted(p.name for p in place.iterdir()) == sorted([*phases, "dynamo_out_graph.txt"])
        for phase in phases:
            names = sorted(p.name for p in (place / phase).iterdir())
            assert names[0] == f"000_aot_{phase}_graph.txt"
            assert [n[:3] for n in names] == [f"{i:03d}" for i in range(len(names))]
            assert any(n.endswith(f"_aot_{phase}_original_ge_graph.pbtxt") for n in names)
            assert names[-1].endswith(f"_aot_{phase}_optimized_ge_graph.pbtxt")


def test_debug_record_of_captures(tmp_path: Path):
    run_and_compare(tmp_path, SCRIPTS / "debug_reduce_overhead.py", TWICE)
    (place,) = (tmp_path / "torch_compile_debug").glob("run_*-pid_*/torchair/model__0")
    names = sorted(p.name for p in (place / "forward").iterdir())
    assert names[0] == "000_aot_forward_graph.txt"
    assert "output_code.py" in names
    assert (place / "dynamo_out_graph.txt").is_file()
    captured = [p for p in place.glob("graph_1_id_*.json") if not p.name.endswith(".aligned.json")]
    assert len(captured) == 1
    assert re.fullmatch(r"graph_1_id_\d+_rank_0_pid_\d+_ts_\d{20}\.json", captured[0].name)
    assert [task["name"] for task in json.loads(captured[0].read_text())] == ["aclnnMuls"]
