"""Build, test and release single packages.

release.py wheels            wheels and sdists of all packages into dist/
release.py install           install the wheels into the Python chosen by `make configure`
release.py uninstall         remove them from there
release.py test PKG          tests of PKG from its wheel in a fresh environment with only its own dependencies
release.py release PKG       check version and changelog, build, test, tag
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

sys.path.insert(0, str(Path(__file__).resolve().parent))

import configure

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
UV = str(Path(sys.executable).parent / "uv")
OFFLINE = ["--no-index", "--find-links", str(ROOT / "wheelhouse"), "--find-links", str(DIST)]


def run(*command: str, cwd: Path = ROOT) -> None:
    """Run; end with its exit code if it fails."""
    done = subprocess.run(command, cwd=cwd)
    if done.returncode:
        sys.exit(done.returncode)


def project(folder: str) -> dict[str, Any]:
    """The pyproject.toml of a package folder."""
    path = ROOT / "packages" / folder / "pyproject.toml"
    if not path.exists():
        names = ", ".join(sorted(p.parent.name for p in ROOT.glob("packages/*/pyproject.toml")))
        sys.exit(f"release: no package '{folder}'; there are {names}")
    found: dict[str, Any] = tomllib.loads(path.read_text())
    return found


def folders() -> list[str]:
    return sorted(p.parent.name for p in ROOT.glob("packages/*/pyproject.toml"))


def build(folder: str) -> None:
    run(
        UV,
        "build",
        "-q",
        "--no-sources",
        "--no-index",
        "--find-links",
        "wheelhouse",
        "-o",
        str(DIST),
        f"packages/{folder}",
    )


def with_siblings(folder: str, *, tests: bool) -> list[str]:
    """The package and those of the workspace that it, or its tests, need."""
    by_dist = {project(f)["project"]["name"]: f for f in folders()}
    seen: list[str] = []
    queue = [folder]
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.append(current)
        data = project(current)
        wanted = list(data["project"]["dependencies"])
        if tests and current == folder:
            wanted += data.get("dependency-groups", {}).get("test", [])
        names = [re.split(r"[<>=\[!~; ]", w)[0] for w in wanted]
        queue += [by_dist[n] for n in names if n in by_dist]
    return seen


def isolated_test(folder: str) -> None:
    """Fresh environment, the wheel, its declared dependencies and its test group; nothing else."""
    for needed in with_siblings(folder, tests=True):
        build(needed)
    data = project(folder)
    venv = ROOT / "build" / f"venv-{folder}"
    shutil.rmtree(venv, ignore_errors=True)
    run(UV, "venv", "-q", "--python", sys.executable, str(venv))
    python = str(venv / "bin" / "python")
    extras = ",".join(data["project"].get("optional-dependencies", {}))
    target = data["project"]["name"] + (f"[{extras}]" if extras else "")
    group = data.get("dependency-groups", {}).get("test", [])
    run(UV, "pip", "install", "-q", "--python", python, "--reinstall", *OFFLINE, target, *group)
    # A copy of the tests outside the tree: an import can then only be served by the installed wheel.
    tests = ROOT / "build" / f"tests-{folder}"
    shutil.rmtree(tests, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / folder / "tests", tests / "tests")
    run(python, "-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider", "tests", cwd=tests)


def release(folder: str) -> None:
    data = project(folder)["project"]
    name, version = data["name"], data["version"]
    changelog = (ROOT / "packages" / folder / "CHANGELOG.md").read_text()
    if f"## {version}" not in changelog:
        sys.exit(f"release: packages/{folder}/CHANGELOG.md has no section '## {version}'")
    tag = f"{name}-v{version}"
    if (
        subprocess.run(
            ["git", "rev-parse", "-q", "--verify", f"refs/tags/{tag}"], cwd=ROOT, capture_output=True
        ).returncode
        == 0
    ):
        sys.exit(f"release: tag {tag} exists; raise the version in packages/{folder}/pyproject.toml")
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout.strip():
        sys.exit("release: the working tree has changes; commit them first")
    isolated_test(folder)
    run("git", "tag", "-a", tag, "-m", f"{name} {version}")
    print(f"release: {tag} built, tested and tagged; artefacts in dist/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("wheels", "install", "uninstall", "test", "release"))
    parser.add_argument("package", nargs="?", default="")
    options = parser.parse_args()
    target = configure.read().get("TARGET_PYTHON_PATH", sys.executable)
    names = [project(f)["project"]["name"] for f in folders()]
    if options.command in ("test", "release") and not options.package:
        sys.exit(f"release: name a package, one of {', '.join(folders())}")
    if options.command == "wheels":
        for folder in folders():
            build(folder)
        print(f"wheels: {len(list(DIST.glob('*.whl')))} in dist/")
    elif options.command == "install":
        run(
            target,
            "-m",
            "pip",
            "install",
            "--find-links",
            str(DIST),
            "--find-links",
            str(ROOT / "wheelhouse"),
            "torchair",
        )
    elif options.command == "uninstall":
        run(target, "-m", "pip", "uninstall", "-y", *names)
    elif options.command == "test":
        isolated_test(options.package)
    else:
        release(options.package)


if __name__ == "__main__":
    main()
