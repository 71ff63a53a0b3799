"""Import paths without sources: rows of a table, found by one finder, seen by type checkers."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import torchair
from torchair import doors
from torchair.compat import stubs

MODULES = sorted(m for m in doors.table() if not doors.has_source(m))
ROWS = [(m, r) for m, rows in doors.table().items() for r in rows if r.name.isidentifier()]


@pytest.mark.parametrize("module", MODULES)
def test_each_module_is_imported(module):
    found = importlib.import_module(module)
    assert importlib.util.find_spec(module).submodule_search_locations == ([] if doors.children(module) else None)
    assert set(found.__all__) == {n for n in dir(found) if not n.startswith("_")}
    assert not Path(doors.ROOT, *module.split(".")).with_suffix(".py").exists()


def test_each_name_is_the_object_of_its_home():
    for module, row in ROWS:
        found = getattr(importlib.import_module(module), row.name)
        assert found is getattr(importlib.import_module(row.home), row.attribute), (module, row)


def test_all_names_of_a_home():
    apis = importlib.import_module("torchair.ge_concrete_graph.ge_apis")
    space: dict[str, object] = {}
    exec("from torchair.ge_concrete_graph.ge_apis import *", space)
    assert space["MatMulV2"] is apis.MatMulV2 is torchair.ge.MatMulV2
    assert "NetOutput" in dir(apis)
    assert apis.__name__ == "torchair.ge_concrete_graph.ge_apis"


@pytest.mark.parametrize("module", ["torchair.core", "torchair.core.utils", "npugraph_ex.configs.compiler_config"])
def test_another_name_is_told(module):
    with pytest.raises(AttributeError, match=f"GE1066.*{module}"):
        importlib.import_module(module).no_such_name
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{module}.no_such_name")


def test_objects_are_pickled_by_their_home():
    from torchair._ge_concrete_graph.supported_declaration import Support

    assert pickle.loads(pickle.dumps(Support)) is Support


def test_a_torchair_of_another_place_finds_its_own(tmp_path):
    other = tmp_path / "torchair" / "core"
    other.mkdir(parents=True)
    (other.parent / "__init__.py").write_text("")
    (other / "__init__.py").write_text("theirs = True\n")
    code = """
import sys, torchair
for name in [n for n in sys.modules if n.split(".")[0] == "torchair"]:
    del sys.modules[name]
sys.path.insert(0, sys.argv[1])
import torchair.core
print(torchair.core.theirs)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["True"], done.stderr


def test_no_stub_without_a_row():
    files = stubs.files(Path())
    there = {p for top in ("torchair", "npugraph_ex") for p in Path(doors.ROOT, top).rglob("*.pyi")}
    assert there == set(files)
    assert all(path.read_text(encoding="utf-8") == text for path, text in files.items())


PROGRAM = """\
import torchair
from torchair import ge
from torchair.configs.compiler_config import CompilerConfig
from torchair.ge_concrete_graph import ge_apis

config = CompilerConfig()
reveal_type(config)
reveal_type(torchair.get_npu_backend)
reveal_type(ge.MatMulV2)
reveal_type(ge_apis.Add)
torchair.no_such_name
"""


def test_a_type_checker_sees_the_names(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--follow-imports", "silent", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, cwd=tmp_path)
    shown = [line.partition("program.py:")[2] for line in done.stdout.splitlines() if "program.py:" in line]
    told = {int(line.partition(":")[0]): line for line in shown}
    assert "torchair.config.compiler_config.CompilerConfig" in told[7], done.stdout
    assert "compiler_config" in told[8]
    assert all("ge_graph.ir.Tensor" in told[line] for line in (9, 10))
    assert "no_such_name" in told[11]


def test_the_first_module_shows_what_is_public():
    """To somebody who types ``torchair.`` and asks for completion."""
    import torchair

    named = [n for n in dir(torchair) if not n.startswith("_")]
    assert named == sorted(torchair.__all__)
    assert {"summary", "check", "compare", "view", "plan", "CompilerConfig", "get_npu_backend"} <= {*named}
    assert not {"Any", "Final", "annotations", "importlib", "doors", "carry_in_bundles"} & {*named}
