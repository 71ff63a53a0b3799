"""Known mismatches are found, and each comes with a cure."""

import importlib

import pytest
import torch

from ge_converters.base import torch_kept
from ge_converters.registry import ABSENT, REGISTRY, LeftOut
from ge_graph.errors import ConfigError
from tair_debug import doctor
from tair_debug.doctor import EngineState, mismatches

GOOD = {"torch": "2.13.0+cpu", "torch_npu": None, "CANN": None, "torchair": "0.1.0"}
CPU = [EngineState("cpu", True, "embedded", ("cpu",))]


def texts(found, states=CPU):
    problems = list(mismatches({**GOOD, **found}, states))
    assert all(p.cure for p in problems)
    return [p.what for p in problems]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    homes = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_CUSTOM_PATH")
    for name in ("TAIR_ENGINE", "TAIR_CPU_PROGRAM", "CXX", "TNG_LOG_LEVEL", *homes):
        monkeypatch.delenv(name, raising=False)


def test_all_well():
    assert texts({}) == []


def test_torch_npu_for_another_torch():
    assert "torch_npu 2.6.0 is built for torch 2.6, installed is torch 2.13.0+cpu" in texts({"torch_npu": "2.6.0"})
    assert not any("built for" in t for t in texts({"torch_npu": "2.13.0.post1", "CANN": "8.5"}))


def test_torch_npu_without_cann():
    assert "torch_npu is installed, CANN is not found" in texts({"torch_npu": "2.13.0"})


def test_old_torch():
    assert any("2.1.0 is older than 2.7" in t for t in texts({"torch": "2.1.0"}))


def test_torch_that_nobody_tried():
    assert any("torch 2.99.0 is newer" in t for t in texts({"torch": "2.99.0"}))


def test_operators_of_another_form(monkeypatch):
    other = LeftOut("aten.sin.default", "parameter 'x' is missing", "ops.py:1")
    rows = [other, LeftOut("aten.gone.default", ABSENT, "ops.py:2")]
    monkeypatch.setattr(REGISTRY, "left_out", lambda: rows)
    found = texts({})
    assert len(found) == 1
    assert "aten.sin.default: parameter 'x' is missing" in found[0]
    assert [row["name"] for row in doctor.examine()["left_out"]] == ["aten.sin.default", "aten.gone.default"]


def test_no_torchair():
    assert any("torchair is not installed" in t for t in texts({"torchair": None}))


def test_forced_engines(monkeypatch):
    monkeypatch.setenv("TAIR_ENGINE", "gpu")
    assert any("names no installed engine" in t for t in texts({}))
    monkeypatch.setenv("TAIR_ENGINE", "cann")
    cann = EngineState("cann", False, "no library")
    assert any("cannot run: no library" in t for t in texts({}, [*CPU, cann]))
    monkeypatch.setenv("TAIR_ENGINE", "cpu")
    assert texts({}) == []


def test_programs_of_the_embedded_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "tvm")
    assert any("TAIR_CPU_PROGRAM=tvm names no program" in t for t in texts({}))
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "inductor")
    assert texts({}) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert any("there is no C++ compiler" in t for t in texts({}))


def test_no_engine_at_all():
    assert "no engine can run here" in texts({}, [EngineState("cann", False, "no library")])


def test_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "gone"))
    monkeypatch.setenv("TNG_LOG_LEVEL", "debug")
    found = texts({})
    assert any("which does not exist" in t for t in found)
    assert any("TNG_LOG_LEVEL=debug" in t for t in found)


def test_siblings_of_another_version():
    assert any("asks for ge-graph >=0.1,<0.2, installed is 9.0" in t for t in texts({"ge-graph": "9.0"}))
    assert not any("asks for" in t for t in texts({"ge-graph": "0.1.7"}))


@pytest.mark.parametrize(
    ("file", "text"), [("version.cfg", "version=8.5.0\n"), ("compiler/version.info", "Version=8.5.0\n")]
)
def test_version_of_cann(monkeypatch, tmp_path, file, text):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert doctor.cann_version() == "8.5.0"


def test_an_engine_that_cannot_be_loaded(monkeypatch):
    class Broken:
        name = "broken"

        def load(self):
            raise ImportError("no module named x")

    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda group: [Broken()])
    (state,) = doctor.engines()
    assert not state.available
    assert state.reason == "cannot be loaded: ImportError: no module named x"


@pytest.mark.parametrize("path", [path for paths in torch_kept.FEATURES.values() for path in paths])
def test_a_feature_that_torch_lacks_is_named(path, monkeypatch):
    """The name is taken away from a torch that has all of them."""
    if doctor.examine()["torch_lacks"]:
        pytest.skip("this torch lacks some")
    holder, _, name = path.rpartition(".")
    monkeypatch.delattr(importlib.import_module(holder), name)
    ((feature, why),) = doctor.examine()["torch_lacks"].items()
    assert path in torch_kept.FEATURES[feature]
    assert why == f"torch {torch.__version__} has no {path}"
    if feature == "aot_compile":
        with pytest.raises(ConfigError, match=f"GE1067.*aot_compile.*{name}"):
            torch_kept.output_code()
