"""Finding engines, and what is said when none fits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ge_runtime
from ge_graph import EngineError, Graph, building
from ge_graph import ops as ge
from ge_runtime import cann, discovery
from ge_runtime.api import Engine


def test_imports_bring_no_torch() -> None:
    code = "import sys, ge_runtime, ge_runtime.cann, ge_runtime.conformance.contract; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_cpu_is_chosen_for_cpu() -> None:
    engine = ge_runtime.choose("cpu")
    assert engine.name == "cpu"
    assert isinstance(engine, Engine)


def test_rejections_are_explained() -> None:
    with pytest.raises(EngineError, match="GE4002") as caught:
        ge_runtime.choose("npu")
    text = str(caught.value)
    assert "cpu: serves tensors on cpu, not on npu" in text
    assert "cann: " in text
    assert "libge_runner.so" in text
    assert "torch_npu: torch_npu is not installed" in text


def test_environment_forces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(discovery.VARIABLE, "cpu")
    assert ge_runtime.choose("npu").name == "cpu"
    monkeypatch.setenv(discovery.VARIABLE, "warp")
    with pytest.raises(EngineError, match="GE4001.*warp.*cpu, torch_npu, cann"):
        ge_runtime.choose("cpu")
    assert ge_runtime.choose("cpu", forced="cpu").name == "cpu"
    assert ge_runtime.choose("cpu", forced="auto").name == "cpu"


def test_forced_and_unavailable() -> None:
    with pytest.raises(EngineError, match="GE4002") as caught:
        ge_runtime.choose("cpu", forced="cann")
    assert "cann: forced, but" in str(caught.value)
    assert "ASCEND_HOME_PATH" in str(caught.value)


def test_cann_refuses_with_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.delenv("ASCEND_OPP_PATH", raising=False)
    graph = Graph("g")
    with building(graph):
        graph.outputs = [ge.Const([1.0])]
    with pytest.raises(EngineError, match="GE4010") as caught:
        cann.CannEngine().compile(graph, {})
    text = str(caught.value)
    assert f"{tmp_path / 'compiler'} does not exist" in text
    assert "ASCEND_OPP_PATH is not set" in text


def test_engine_that_cannot_be_imported_is_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("No module named 'torch'")

    entry = SimpleNamespace(name="cpu", load=broken, value="ge_runtime.cpu:CpuEngine")
    monkeypatch.setattr(discovery, "installed", lambda: {"cpu": entry})
    with pytest.raises(EngineError, match="GE4002") as caught:
        ge_runtime.choose("cpu")
    lines = str(caught.value).splitlines()
    assert lines[1] == "  cpu: cannot be imported: No module named 'torch'"  # the reason, not an error inside another
    assert len(lines) == 3
    assert "pip install 'ge-runtime-native[cpu]'" in lines[2]


def test_object_that_is_no_engine_is_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="odd", load=lambda: dict, value="odd:thing")
    monkeypatch.setattr(discovery, "installed", lambda: {"odd": entry})
    with pytest.raises(EngineError, match="does not implement"):
        ge_runtime.choose("cpu")


def test_engines_are_read_once_for_a_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    original = discovery.entry_points
    monkeypatch.setattr(discovery, "entry_points", lambda group: reads.append(group) or original(group=group))
    discovery._installed.cache_clear()
    first = discovery.installed()
    assert discovery.installed() == first
    assert len(reads) == 1
    info = tmp_path / "odd-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ge_runtime.engines]\nodd = odd:thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert discovery.installed().keys() == {*first, "odd"}
