"""Wheels install as the pages say, packages move one at a time, and what is not ready is not released."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.release import UV, build, problems, released, share_bytecode, tag_of
from tools.workspace import ROOT, Package

WHEELHOUSE = ROOT / "wheelhouse"
RELEASED = released()
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(*command, cwd=None, code=0):
    """What a command says; AssertionError if its exit code is another."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which dist/ has the wheels of this tree and, instead of an index, all that they need."""
    folder = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "no-compiler")  # the wheel of ge-runtime-native is then pure, and made in a second
        for package in RELEASED.values():
            build(package, folder / "dist", "--wheel")
    for wheel in WHEELHOUSE.glob("*.whl"):
        (folder / "dist" / wheel.name).symlink_to(wheel)
    return folder


@pytest.fixture(scope="module")
def host(place):
    """An environment in which the line of README has run."""
    (line,) = re.findall(r"^pip install --find-links dist '.*emulator.*'", README, re.M)
    run(UV, "venv", "-q", "--python", sys.executable, place / "venv")
    python = place / "venv/bin/python"
    run(UV, *shlex.split(line), "--no-index", "--python", python, cwd=place)
    share_bytecode(place / "venv")
    return python


def version_in(python, name):
    return run(python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))").strip()


@pytest.mark.slow
def test_the_wheels_install_as_readme_says_and_bring_the_emulator(place, host):
    assert {version_in(host, p.name) for p in RELEASED.values()} == {p.version for p in RELEASED.values()}
    said = run(host.parent / "tair", "emulate", "--check", cwd=place, code=1)  # there is no torch_npu
    torch = version_in(host, "torch").split(".")
    assert re.search(r"^libraries +\S+tair/emulator/\w+ \(built", said, re.M)
    assert f"torch_npu=={torch[0]}.{torch[1]}.*" in said


@pytest.mark.slow
@pytest.mark.parametrize("label", RELEASED)
def test_a_repair_of_one_package_installs_beside_the_others(label, place, host, tmp_path, monkeypatch):
    """Its next patch release takes its place; what all of them ask for is still there."""
    package = RELEASED[label]
    copy = tmp_path / package.folder.name
    shutil.copytree(ROOT / package.folder, copy, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    later = re.sub(r"(\d+)$", lambda last: str(int(last[1]) + 1), package.version)
    text = (copy / "pyproject.toml").read_text(encoding="utf-8")
    (copy / "pyproject.toml").write_text(text.replace(f'version = "{package.version}"', f'version = "{later}"'))
    monkeypatch.setenv("CXX", "no-compiler")
    build(replace(package, folder=copy), tmp_path / "wheels", "--wheel")
    links = ["--no-index", "--find-links", place / "dist", "--find-links", tmp_path / "wheels"]
    run(UV, "pip", "install", "-q", "--python", host, *links, "--upgrade-package", package.name, package.name)
    assert version_in(host, package.name) == later
    run(UV, "pip", "check", "--python", host)
    others = [p for p in RELEASED.values() if p.label != label]
    run(UV, "pip", "install", "-q", "--python", host, *links, f"{package.name}=={package.version}")
    assert all(version_in(host, p.name) == p.version for p in others)


def test_packages_ask_for_each_other_by_ranges():
    names = {p.name for p in RELEASED.values()}
    for package in RELEASED.values():
        for line in (*package.needs, *(r for e in package.extras.values() for r in e)):
            name = re.split(r"[\[<>=~!; ]", line)[0]
            if name in names and package.name != name and "==" in line:
                pytest.fail(f"{package.name} pins {line}")


@pytest.fixture
def tree(tmp_path):
    """A repository with one package that can be released."""
    folder = tmp_path / "packages/p"
    (folder / "src/p").mkdir(parents=True)
    (folder / "src/p/__init__.py").write_text('__version__ = "0.2.0"\n')
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0\n\n- Two.\n\n## 0.1.0\n\nFirst version.\n")
    for line in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -q -m all"):
        run("git", *line.split(), cwd=tmp_path)
    return tmp_path, Package("p", Path("packages/p"), "0.2.0", (), {}, ())


def test_what_is_ready_is_released(tree):
    root, package = tree
    assert problems(package, root) == []


def test_all_that_stands_against_a_release_is_said_at_once(tree):
    root, package = tree
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "tag", "-a", "-m", "x", "p-v0.3.0", cwd=root)
    (root / "new").write_text("")
    found = problems(replace(package, version="0.3.0"), root)
    assert tag_of(replace(package, version="0.3.0")) == "p-v0.3.0"
    assert [re.search(r"begins with 0.2.0|says 0.2.0|p-v0.3.0 exists|has changes", line)[0] for line in found] == [
        "begins with 0.2.0",
        "says 0.2.0",
        "p-v0.3.0 exists",
        "has changes",
    ]


@pytest.mark.parametrize("label", RELEASED)
def test_versions_and_changelogs_of_this_tree_agree(label):
    package = RELEASED[label]
    assert [line for line in problems(package) if "tag " not in line and "working tree" not in line] == []
    changes = (ROOT / package.folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changes.split("\n## ")[-1].split("\n\n")[1].startswith("First version"), "a changelog starts with the first"
