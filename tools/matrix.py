"""Tests on other versions of torch and Python, each in an environment of its own, from the wheels that users get.

python tools/matrix.py                          every row of tools/matrix.tsv that this machine can make
python tools/matrix.py 3.11/2.6 3.11/lowest     some of them
python tools/matrix.py --keep 3.11/2.9          the environment stays in build/matrix/ to look into

A row is Python and torch; torch `lowest` is the lowest version of every dependency that the packages declare. What was
run is written back into the row, and docs/versions.md is made from the rows.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib

sys.path.insert(0, str(Path(__file__).resolve().parent))

import configure

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tools" / "matrix.tsv"
PAGES = {"en": ROOT / "docs" / "versions.md", "zh": ROOT / "docs" / "versions.zh.md"}
BUILD = ROOT / "build" / "matrix"
COLUMNS = ("python", "torch", "result", "passed", "failed", "date", "note")
# One file of each kind: compile and train, graph and bytes, converters, options, passes, scopes, debug, export.
SUITE = (
    "tests/test_tiny.py", "packages/ge-graph/tests/test_serde.py", "packages/ge-graph/tests/test_verify.py",
    "packages/ge-graph/tests/test_text_forms.py", "packages/ge-converters/tests/test_lowering.py",
    "packages/ge-converters/tests/test_registry.py", "packages/ge-converters/tests/test_symbols.py",
    "packages/npu-backend/tests/test_backend.py", "packages/npu-backend/tests/test_fx_passes.py",
    "packages/npu-backend/tests/test_patterns.py", "packages/npu-backend/tests/test_scopes.py",
    "packages/npu-backend/tests/test_reduce_overhead.py", "packages/tair-debug/tests/test_cli.py",
    "packages/tair-debug/tests/test_graph_dump.py", "packages/tair-export/tests/test_load.py",
    "packages/tair-export/tests/test_archive.py",
)  # fmt: skip
TEXTS = {
    "en": (
        "# Versions", "Written by `python tools/matrix.py`; do not edit.",
        "Each row was run from wheels in an environment of its own: compiling, training, dynamic sizes, passes, scopes, "
        "captured graphs, debug files, export. `lowest` takes the lowest version of every declared dependency. "
        "A row that says *not run* is not claimed.",
        ("Python", "torch", "Result", "Tests passed", "Failed", "Date", "Note"),
        {"ok": "works", "failed": "does not work", "": "not run"},
    ),
    "zh": (
        "# 版本", "由 `python tools/matrix.py` 生成，请勿手改。",
        "每一行都在独立环境中用 wheel 安装后实测：编译、训练、动态形状、pass、scope、捕获图、调试文件、导出。"
        "`lowest` 表示所有已声明依赖都取最低版本。标为“未运行”的组合不作承诺。",
        ("Python", "torch", "结果", "通过的测试", "失败", "日期", "说明"),
        {"ok": "可用", "failed": "不可用", "": "未运行"},
    ),
}  # fmt: skip


def rows() -> list[dict[str, str]]:
    """The table; one dict a row."""
    lines = ROWS.read_text(encoding="utf-8").splitlines()
    return [dict(zip(COLUMNS, line.split("\t"))) for line in lines[1:]]


def write(table: list[dict[str, str]]) -> None:
    lines = ["\t".join(COLUMNS), *("\t".join(row[c] for c in COLUMNS) for row in table)]
    ROWS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for language, page in PAGES.items():
        page.write_text(text(table, language), encoding="utf-8")


def text(table: list[dict[str, str]], language: str) -> str:
    """The page made from the rows."""
    title, warning, lead, heads, words = TEXTS[language]
    lines = [title, "", warning, "", lead, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in table:
        lines.append(f"| {' | '.join([row['python'], row['torch'], words[row['result']], *list(row.values())[3:]])} |")
    return "\n".join(lines) + "\n"


def declared() -> list[str]:
    """What the packages need from outside, as they declare it."""
    found = set()
    for path in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found |= {*project["dependencies"], *(r for e in project.get("optional-dependencies", {}).values() for r in e)}
    ours = {tomllib.loads(p.read_text())["project"]["name"] for p in ROOT.glob("packages/*/pyproject.toml")}
    return sorted(r for r in found if re.split(r"[<>=\[!~; ]", r)[0] not in ours)


def lowest() -> list[str]:
    """The lower bound of each as the version to take."""
    bounds: dict[str, str] = {}
    for requirement in declared():
        found = re.fullmatch(r"([\w-]+)>=([\d.]+).*", requirement)
        if found:
            bounds[found[1]] = max(found[2], bounds.get(found[1], "0"), key=lambda v: [*map(int, v.split("."))])
    # pip reads ==1.24 as 1.24.0; a bound of torch means its release of that number.
    return [f"{name}=={version}" for name, version in sorted(bounds.items())]


def interpreter(version: str) -> str:
    """Path of a Python of this version on this machine; empty if there is none."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(map(str, versions.glob(f"{version}.*/bin/python")))]
    return next((python for python in candidates if python and configure.version_of(python) == version), "")


def run(row: dict[str, str], keep: bool) -> None:
    """Make the environment, run the tests, note the result in the row."""
    folder = BUILD / f"{row['python']}-{row['torch']}"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter(row["python"]), "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    exact = lowest() if row["torch"] == "lowest" else [f"torch=={row['torch']}.*"]
    others = [r for r in declared() if not r.startswith("torch>") or row["torch"] == "lowest"]
    # the packages come without their bounds: a row may try a version that they do not claim
    wheels = sorted(str(p) for p in (ROOT / "dist").glob("*.whl"))
    steps = [
        [*others, *exact, "pytest", "hypothesis", "expecttest"],
        ["--no-deps", "--ignore-requires-python", *wheels],
    ]
    log = folder / "install.log"
    with log.open("w") as out:
        for step in steps:
            done = subprocess.run([python, "-m", "pip", "install", "-qq", *step], stdout=out, stderr=subprocess.STDOUT)
            if done.returncode:
                break
    row["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    row["passed"] = row["failed"] = ""
    if done.returncode:
        reason = [line for line in log.read_text().splitlines() if "ERROR" in line]
        row["result"], row["note"] = "failed", f"cannot be installed: {(reason or ['see pip'])[0][:150]}"
        return
    copied = folder / "tests"
    for name in SUITE:
        source = ROOT / name
        target = copied / name
        target.parent.mkdir(parents=True, exist_ok=True)
        for file in (source, *source.parent.glob("conftest.py")):
            shutil.copy(file, target.parent)
    for data in ROOT.glob("packages/*/tests/data"):
        shutil.copytree(data, copied / data.relative_to(ROOT), dirs_exist_ok=True)
    shutil.copy(ROOT / "conftest.py", copied)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "--import-mode=importlib",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
    ]
    ran = subprocess.run(
        [*command, *SUITE], cwd=copied, capture_output=True, text=True,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    (folder / "tests.log").write_text(ran.stdout + ran.stderr)
    counts = {word: n for n, word in re.findall(r"(\d+) (passed|failed|error)", ran.stdout)}
    row["passed"], bad = counts.get("passed", "0"), int(counts.get("failed", 0)) + int(counts.get("error", 0))
    row["failed"] = str(bad)
    row["result"] = "ok" if ran.returncode == 0 else "failed"
    print(ran.stdout[-3000:] if ran.returncode else "", end="")
    if not keep:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="PYTHON/TORCH; all that have an interpreter here if none is given")
    parser.add_argument("--keep", action="store_true", help="keep the environments in build/matrix/")
    parser.add_argument("--no-build", action="store_true", help="take the wheels that are in dist/")
    parser.add_argument("--check", action="store_true", help="fail if docs/versions.md is out of date; run nothing")
    options = parser.parse_args()
    table = rows()
    if options.check:
        stale = [p.name for lang, p in PAGES.items() if not p.exists() or p.read_text() != text(table, lang)]
        sys.exit(f"out of date: {', '.join(stale)}" if stale else 0)
    names = {f"{row['python']}/{row['torch']}": row for row in table}
    unknown = sorted(set(options.rows) - set(names))
    if unknown:
        sys.exit(f"matrix: no row {', '.join(unknown)} in tools/matrix.tsv; there are {', '.join(names)}")
    if not options.no_build:
        subprocess.run([sys.executable, "tools/release.py", "wheels"], cwd=ROOT, check=True)
    failed = []
    for name in options.rows or names:
        row = names[name]
        if not interpreter(row["python"]):
            print(f"{name}: no python{row['python']} on this machine, not run", flush=True)
            failed += [name] if options.rows else []
            continue
        run(row, options.keep)
        print(f"{name}: {row['result']}, {row['passed']} passed, {row['failed']} failed {row['note']}", flush=True)
        failed += [name] if row["result"] != "ok" else []
        write(table)
    if failed:
        sys.exit(f"matrix: {', '.join(failed)}")


if __name__ == "__main__":
    main()
