"""The checks of pre-commit and CI: one row each, all run, all failures shown."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
MAX_BYTES = 200_000
MAX_LINES = 900
LARGE_ALLOWED = {
    "kernel_evidence.tsv",
    "kernels.tsv",
    "ops.jsonl",
    "ops.pyi",
    "uv.lock",
}  # facts one line each, and what is generated

# name, command, command that repairs ("" if none)
COMMANDS = (
    ("format", f"{BIN}/ruff format --check .", f"{BIN}/ruff format ."),
    ("lint", f"{BIN}/ruff check .", f"{BIN}/ruff check --fix ."),
    ("types", f"{sys.executable} -m tools.types_check", ""),
    ("imports", f"{BIN}/lint-imports --no-cache", ""),
    ("versions", f"{sys.executable} -m tools.matrix --check", f"{sys.executable} -m tools.matrix --pages"),
    (
        "patterns",
        f"{sys.executable} -m labs.rank_patterns --check",
        f"{sys.executable} -m labs.rank_patterns --pages",
    ),
    ("operators", f"{sys.executable} -m tools.operator_tests --check", ""),
    ("generated", f"{sys.executable} tools/regen.py --check", f"{sys.executable} tools/regen.py"),
)


def file_sizes() -> list[str]:
    """Files that hide too much: over 200 kB, or a module of over 900 lines."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    bad = []
    for name in filter(None, listed):
        path = ROOT / name
        if not path.is_file() or path.name in LARGE_ALLOWED:
            continue
        if path.stat().st_size > MAX_BYTES:
            bad.append(f"{name}: {path.stat().st_size} bytes, limit {MAX_BYTES}")
        elif path.suffix in (".py", ".cpp", ".h"):
            lines = path.read_bytes().count(b"\n")
            if lines > MAX_LINES:
                bad.append(f"{name}: {lines} lines, limit {MAX_LINES}")
    return bad


# Rows of data that read as a table; everywhere else the formatter decides.
TABLES = {"packages/npu-backend/src/torchair/config/options.py"}


def formatter_decides(root: Path = ROOT) -> list[str]:
    """Comments that keep the formatter away, outside the files of ``TABLES``."""
    listed = subprocess.run(
        ["git", "grep", "-nE", "#.*fmt: (skip|off)", "--", "*.py"], cwd=root, capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if line.partition(":")[0] not in TABLES]


# A class of the same name as another one, and why that is one word.
SAME_NAME = {
    "Tensor": "users write ge.Tensor; the name of the graph's own for annotations",
    "DataType": "users write ge.DataType; the graph's own with more spellings",
}


def one_word_one_class(root: Path = ROOT) -> list[str]:
    """Public classes whose name another module has given to something else."""
    places: dict[str, list[str]] = {}
    for path in sorted([*root.glob("packages/**/src/**/*.py"), *root.glob("testing/src/**/*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(root).as_posix()}:{node.lineno}")
    return [
        f"{name}: {', '.join(where)}; one word means one thing"
        for name, where in places.items()
        if len(where) > 1 and name not in SAME_NAME
    ]


# Where text or trees become code, and why that is safe; nothing else under packages/*/src may do it.
COMPILES = {
    "packages/ge-graph/src/ge_graph/program.py": "trees of integers and our own names, each construct checked",
    "packages/ge-runtime-native/src/ge_runtime/cpu/inductor.py": "torch's comparisons of sizes, named by position",
}
_COMPILERS = {"exec", "eval", "compile", "__import__"}
_MODULES = {"runpy", "code", "codeop"}


def compiled_text(root: Path = ROOT) -> list[str]:
    """Uses of exec, eval, compile and of modules that run text, outside the files of ``COMPILES``."""
    bad = []
    for path in sorted(root.glob("packages/*/src/**/*.py")):
        name = path.relative_to(root).as_posix()
        if name in COMPILES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            word = ""
            if isinstance(node, ast.Name) and node.id in _COMPILERS:
                word = node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "builtins":
                word = node.attr if node.attr in _COMPILERS else ""
            elif isinstance(node, ast.Import):
                word = next((a.name for a in node.names if a.name in _MODULES), "")
            elif isinstance(node, ast.ImportFrom):
                taken = {a.name for a in node.names} & _COMPILERS if node.module == "builtins" else set()
                word = node.module if node.module in _MODULES else ", ".join(taken)
            if word:
                bad.append(f"{name}:{getattr(node, 'lineno', 0)}: {word}; build a ge_graph.program.Program instead")
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired")
    parser.add_argument("--only", help="name of one check")
    options = parser.parse_args()
    failed = []
    for name, check, repair in COMMANDS:
        if options.only and name != options.only:
            continue
        start = time.perf_counter()
        if options.fix and repair:
            subprocess.run(repair.split(), cwd=ROOT, capture_output=True)
        done = subprocess.run(check.split(), cwd=ROOT, capture_output=True, text=True)
        print(
            f"{name:<10} {'ok' if done.returncode == 0 else 'FAILED':<7} {time.perf_counter() - start:5.1f} s",
            flush=True,
        )
        if done.returncode:
            failed.append(name)
            print((done.stdout + done.stderr)[-6000:])
    for name, listed in (
        ("sizes", file_sizes),
        ("compiled", compiled_text),
        ("formatter", formatter_decides),
        ("words", one_word_one_class),
    ):
        if options.only and options.only != name:
            continue
        bad = listed()
        print(f"{name:<10} {'FAILED' if bad else 'ok'}")
        if bad:
            failed.append(name)
            print("\n".join(bad))
    if failed:
        sys.exit(f"checks: {', '.join(failed)} failed; `make lint` repairs what can be repaired")


if __name__ == "__main__":
    main()
