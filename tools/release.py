"""Build, test and release single packages. PKG is a folder under packages/, or the name of a distribution.

python -m tools.release wheels               wheels and source archives of all packages into dist/
python -m tools.release install              install the wheels into the Python chosen by `make configure`
python -m tools.release uninstall            remove them from there
python -m tools.release test [PKG ...]       tests of PKG (default: of all) from its wheel in a fresh environment with
                                             only what it declares; --quick: tests of about a second, parts of tables
python -m tools.release release PKG ...      check version and changelog, build, test, tag; --dry: all but the tag, for
                                             all packages if none is named; with --quick by their quick tests
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import tomllib

from tools import configure
from tools.workspace import ROOT, Package, packages, with_siblings

DIST = ROOT / "dist"
BUILD = ROOT / "build"
WHEELS = BUILD / "wheels"  # what tests install; never what is released
UV = str(Path(sys.executable).parent / "uv")
OFFLINE = ("--no-index", "--find-links", str(ROOT / "wheelhouse"))
RUNNER = ("pytest-xdist",)  # beside what a package declares: to run its tests on several processors
QUICK = ("-m", "not slow", "--rows-of", "48", "--few", "1")


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run; end with its exit code if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env)
    if done.returncode:
        sys.exit(done.returncode)


def released() -> dict[str, Package]:
    """What users get, by the name that commands take."""
    return {p.label: p for p in packages().values() if p.is_released}


def named(name: str) -> Package:
    """By folder or distribution; ends with the names there are."""
    known = released()
    for package in known.values():
        if name in (package.label, package.name):
            return package
    sys.exit(f"release: no package '{name}'; there are {', '.join(known)}")


def build(package: Package, target: Path, *what: str) -> None:
    """A source archive and a wheel made from it; ``what``: ``--wheel`` for the wheel alone, from the tree."""
    run(UV, "build", "-q", "--no-sources", *OFFLINE, *what, "-o", str(target), str(package.folder))


def wheels_for_tests(wanted: Iterable[Package]) -> None:
    """Wheels of packages and of all that they and their tests take from this tree, into an empty folder."""
    known = packages()
    shutil.rmtree(WHEELS, ignore_errors=True)
    needed = {s.name: s for p in wanted for s in with_siblings(p.name, known, tests=True)}
    for package in needed.values():
        build(package, WHEELS, "--wheel")


def environment(package: Package, folder: Path) -> str:
    """A fresh environment with the package's wheel, its extras and its test group; its Python."""
    run(UV, "venv", "-q", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    extras = ",".join(package.extras)
    target = package.name + (f"[{extras}]" if extras else "")
    # --refresh-package: a wheel that was built again has the version of the one before.
    again = [a for p in packages() for a in ("--refresh-package", p)]
    run(
        UV,
        "pip",
        "install",
        "-q",
        "--python",
        python,
        *again,
        *OFFLINE,
        "--find-links",
        str(WHEELS),
        target,
        *package.tests,
        *RUNNER,
    )
    share_bytecode(folder)
    return python


def share_bytecode(folder: Path) -> None:
    """Link what Python has compiled of torch and the like in this environment into another: half a minute of its tests.

    The files of both come from uv's cache by hard links; where not, Python sees other times and compiles as usual.
    """
    here, there = (Path(next((f / "lib").glob("python3.*"))) / "site-packages" for f in (Path(sys.prefix), folder))
    for compiled in here.glob("*/**/__pycache__/*.pyc"):
        target = there / compiled.relative_to(here)
        if target.parent.parent.is_dir() and not target.exists():
            target.parent.mkdir(exist_ok=True)
            os.link(compiled, target)


def isolated_test(package: Package, *arguments: str) -> int:
    """Its tests in a fresh environment, copied away from the tree: imports are served by installed wheels only.

    Returns pytest's exit code.
    """
    place = BUILD / "packages" / package.label
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    python = environment(package, place / "venv")
    shutil.copytree(ROOT / package.folder / "tests", place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    write_settings(place / "pytest.ini")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")}
    env["PATH"] = os.pathsep.join([str(place / "venv" / "bin"), env.get("PATH", "")])
    command = [python, "-m", "pytest", "-c", "pytest.ini", "-p", "no:cacheprovider", *arguments, "tests"]
    return subprocess.run(command, cwd=place, env=env).returncode


def write_settings(path: Path) -> None:
    """The settings of pytest in this tree, without the tree's folders."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    parser = configparser.RawConfigParser()
    parser["pytest"] = {
        k: "\n".join(v) if isinstance(v, list) else str(v)
        for k, v in settings.items()
        if k not in ("testpaths", "pythonpath")
    }
    with path.open("w", encoding="utf-8") as out:
        parser.write(out)


def test(wanted: list[Package], arguments: list[str]) -> None:
    """Test all; then name what failed."""
    wheels_for_tests(wanted)
    failed = []
    for package in wanted:
        start = time.monotonic()
        code = isolated_test(package, *arguments)
        print(f"package-test {package.label:<18} {'FAILED' if code else 'ok':<7} {time.monotonic() - start:5.0f} s")
        if code:
            failed.append(package.label)
    if failed:
        sys.exit(f"package-test: failed: {', '.join(failed)}")


def problems(package: Package, root: Path = ROOT) -> list[str]:
    """What stands against a release: version, changelog, tag, changes that are in no commit."""
    found = []
    changelog = (root / package.folder / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.search(r"^## (\S+)", changelog, re.M)
    if first is None or first[1] != package.version:
        found.append(f"{package.folder}/CHANGELOG.md begins with {first and first[1]}, not with {package.version}")
    for written in (root / package.folder).glob("src/*/__init__.py"):
        version = re.search(r'^__version__ = "(.+)"', written.read_text(encoding="utf-8"), re.M)
        if version and version[1] != package.version:
            found.append(f"{written.relative_to(root)} says {version[1]}, pyproject.toml {package.version}")
    git = ["git", "-C", str(root)]
    tag = tag_of(package)
    if subprocess.run([*git, "rev-parse", "-q", "--verify", f"refs/tags/{tag}"], capture_output=True).returncode == 0:
        found.append(f"tag {tag} exists; raise the version in {package.folder}/pyproject.toml")
    if subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True).stdout.strip():
        found.append("the working tree has changes; commit them first")
    return found


def tag_of(package: Package) -> str:
    """``ge-graph-v0.1.0``."""
    return f"{package.name}-v{package.version}"


def release(wanted: list[Package], arguments: list[str], *, dry: bool = False) -> None:
    """Check, test from the wheels, build what is published into dist/, tag each unless it is a trial."""
    against = [line for package in wanted for line in problems(package)]
    if against:
        sys.exit("\n".join(f"release: {line}" for line in dict.fromkeys(against)))
    test(wanted, arguments)
    for package in wanted:
        for old in DIST.glob(f"{package.name.replace('-', '_')}-*"):
            old.unlink()
        build(package, DIST)
        made = sorted(path.name for path in DIST.glob(f"{package.name.replace('-', '_')}-*"))
        if not dry:
            run("git", "tag", "-a", tag_of(package), "-m", f"{package.name} {package.version}")
        print(f"release: {tag_of(package)} built and tested{', not tagged' if dry else ', tagged'}: {', '.join(made)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("wheels", "install", "uninstall", "test", "release"))
    parser.add_argument("package", nargs="*")
    parser.add_argument("--quick", action="store_true", help="test: no slow ones, and parts of long tables")
    parser.add_argument("--dry", action="store_true", help="release: no tag; all packages if none is named")
    parser.add_argument("--workers", default="2", help="test: processes of pytest")
    options = parser.parse_intermixed_args()
    target = configure.read().get("TARGET_PYTHON_PATH", sys.executable)
    arguments = ["-n", options.workers, "--dist", "worksteal", *(QUICK if options.quick else ())]
    if options.command == "wheels":
        for package in released().values():
            build(package, DIST)
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
        run(target, "-m", "pip", "uninstall", "-y", *(p.name for p in released().values()))
    elif options.command == "test":
        test([named(p) for p in options.package] or list(released().values()), arguments)
    elif not options.package and not options.dry:
        sys.exit(f"release: name packages, of {', '.join(released())}")
    else:
        release([named(p) for p in options.package] or list(released().values()), arguments, dry=options.dry)


if __name__ == "__main__":
    main()
