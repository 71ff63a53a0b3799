"""Every name that programs use is there or says what stands for it, and the page of names is up to date."""

import json
import subprocess
import sys

import pytest

from ge_graph.errors import GeError
from torchair.compat.compatibility import THEIRS, find, names, state

ALL = [n.path for n in names()]


@pytest.mark.parametrize("path", ALL)
def test_name(path):
    if state(path).startswith("absent"):
        with pytest.raises(GeError, match="GE1066"):
            find(path)
    elif path.startswith(THEIRS):
        assert "stays there" in state(path) or state(path).startswith("this package's")
    else:
        assert find(path) is not None


WALK = """
import json, sys, npugraph_ex, torch, torchair
lost = {}
for path in json.load(sys.stdin):
    root, *parts = path.split(".")
    found = {"npugraph_ex": npugraph_ex, "torch": torch, "torchair": torchair}[root]
    try:
        for part in parts:
            found = getattr(found, part)
    except AttributeError as error:
        lost[path] = str(error)
bare = []
for name, module in list(sys.modules.items()):
    if name.split(".")[0] in ("npugraph_ex", "torchair") and getattr(module, "__getattr__", None):
        try:
            module._no_such_name
        except AttributeError as error:
            bare += [] if "[GE" in str(error) else [name]
print(json.dumps([lost, bare]))
"""


@pytest.mark.slow
def test_names_are_reached_from_the_package_without_another_import():
    """``torchair.core.utils.logger`` after ``import torchair``; in a process where nothing else was imported."""
    paths = [p for p in ALL if not p.startswith(THEIRS)]
    done = subprocess.run([sys.executable, "-c", WALK], input=json.dumps(paths), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lost, bare = json.loads(done.stdout.splitlines()[-1])
    assert sorted(lost) == ["torchair._exception", "torchair._torchair"]
    assert all("GE1066" in text for text in lost.values())
    assert not bare


@pytest.mark.parametrize(
    "module", ["torchair.core", "torchair.inference", "torchair.scope", "torchair.ge.attr", "npugraph_ex.scope"]
)
def test_a_name_that_is_absent_says_where_to_go(module):
    with pytest.raises(AttributeError, match="GE1066"):
        find(f"{module}.no_such_name")
    assert not hasattr(find(module), "no_such_name")


def test_nearly_all_are_there():
    absent = [p for p in ALL if state(p).startswith("absent")]
    assert absent == ["torchair._exception", "torchair._torchair"]
