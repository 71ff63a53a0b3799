"""Tests on other versions of torch and Python, each in an environment of its own, from the wheels that users get.

python -m tools.matrix                          every row of tools/matrix.tsv that this machine can make
python -m tools.matrix 3.11/2.7 3.11/2.15       some of them
python -m tools.matrix --ends                   the oldest and the newest torch, a few minutes' worth of tests
python -m tools.matrix --archives               what some cells save, loaded by each other (tools/archives.py)
python -m tools.matrix --keep 3.11/2.9.1        the environment stays in build/matrix/, and serves the next run

A row is Python and torch, perhaps with a torch_npu, whose wheel then runs on the emulator. What was run is written back into the row, and docs/versions.md is made from the rows. Tests
that fail with some torch have a row with the reason in tools/matrix_gaps.tsv, which is strict: where they pass, the row
is an error. Any other failure makes the cell red; `--check` fails if its column `note` is empty.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools import metadata, torch_names
from tools.environments import BUILD, TESTING, CannotInstall, Environment, Outcome, build_wheels, interpreter

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "tools" / "matrix.tsv"
LOGS = ROOT / "artefacts" / "matrix"
PAGES = {"en": ROOT / "docs" / "versions.md", "zh": ROOT / "docs" / "versions.zh.md"}
GAPS = ROOT / "tools" / "matrix_gaps.tsv"
SAVED = BUILD / "archives"
ARCHIVES = ("3.11/2.7.1", "3.11/2.10.0", "3.11/2.13.0", "3.11/2.15.0")  # of each kind of dynamo one
COLUMNS = ("python", "torch", "torch_npu", "result", "passed", "failed", "date", "note")
# Which converters fit, and one file of each kind: compiling, training, options, passes, scopes, captured graphs, caches,
# debug files, `tair`, export; of Inductor's program, which takes its time, two tests.
ENDS = (
    "tests/test_readme.py",
    "tests/test_tiny.py",
    "packages/ge-converters/tests/test_registry.py",
    "packages/npu-backend/tests/test_backend.py",
    "packages/npu-backend/tests/test_cache.py",
    "packages/npu-backend/tests/test_imports.py::test_dynamo_loads_after_this_package",
    "packages/npu-backend/tests/test_gears.py",
    "packages/npu-backend/tests/test_fx_passes.py",
    "packages/npu-backend/tests/test_patterns.py",
    "packages/npu-backend/tests/test_scopes.py",
    "packages/npu-backend/tests/test_reduce_overhead.py",
    "packages/npu-backend/tests/test_inductor_program.py::test_numbers_of_open_sizes_alone_reach_elements",
    "packages/npu-backend/tests/test_inductor_program.py::test_dropout_scales_in_both_directions",
    "packages/tair-debug/tests/test_graph_dump.py",
    "packages/tair-debug/tests/test_doctor.py",
    "packages/tair-debug/tests/test_cli.py",
    "packages/tair-export/tests/test_load.py",
    "packages/tair-export/tests/test_archive.py",
)
# Compile, train, export, refuse; which converters fit; caches, Inductor's program, dumps, the doctor, `tair`.
SHORT = tuple(
    test
    for test in ENDS
    if Path(test.split("::")[0]).stem
    in (
        "test_readme",
        "test_tiny",
        "test_imports",
        "test_registry",
        "test_cache",
        "test_gears",
        "test_inductor_program",
        "test_graph_dump",
        "test_doctor",
        "test_cli",
    )
)
SUITE = (
    *(test for test in ENDS if "test_inductor_program" not in test),
    "packages/npu-backend/tests/test_inductor_program.py",
    "packages/ge-graph/tests/test_serde.py",
    "packages/ge-graph/tests/test_verify.py",
    "packages/ge-graph/tests/test_text_forms.py",
    "packages/ge-converters/tests/test_lowering.py",
    "packages/ge-converters/tests/test_symbols.py",
    "packages/ge-converters/tests/test_declared_forms.py",
)
# Whole published programs, as they are: custom passes with streams in both modes, and debug records in both.
_SCRIPTS = "packages/ge-runtime-native/emulator/device_tests/test_scripts.py"
NPU = tuple(
    f"{_SCRIPTS}::test_{name}" for name in ("streams_by_a_custom_pass", "debug_record", "debug_record_of_captures")
)
SAID = {ENDS: "suite of `make versions-test`", SHORT: "short suite"}
TEXTS = {
    "en": (
        "# Versions",
        "Written by `python -m tools.matrix`; do not edit.",
        "The packages ask for torch {torch} and Python {pythons}; 3.14 was not tried. Each row was run from wheels, installed by their "
        "metadata, in an environment of its own: compiling, training, dynamic sizes, passes, scopes, captured graphs, "
        "caches, debug files, export; in rows that name no suite also graph files, lowering, symbols and the declared call forms "
        "of every converter, in those of the short suite no passes, scopes, captured graphs and archives. Rows with a torch_npu run published example "
        "programs for NPUs on the CANN emulator, with its wheel as it is. torch is the one of the package index; builds "
        "for CUDA run on the CPU here. A torch that is newer than these warns once and goes on: a built-in "
        "converter that does not fit it costs its own operator, which `tair doctor` names.",
        ("Python", "torch", "torch_npu", "Result", "Tests passed", "Failed", "Date", "Note"),
        {"ok": "works", "failed": "see note", "": "not run"},
    ),
    "zh": (
        "# 版本",
        "由 `python -m tools.matrix` 生成，请勿手改。",
        "各包要求 torch {torch} 和 Python {pythons}；3.14 没有试过。每一行都在独立环境中按元数据安装 wheel 后实测：编译、训练、动态形状、"
        "pass、scope、捕获图、缓存、调试文件、导出；没有注明测试集的行还包括图文件、lowering、符号以及每个转换器声明的调用形式，注明 short suite 的行不含 pass、scope、捕获图和归档。带 torch_npu 的行用其原样 wheel 在 CANN 模拟器上运行公开的 NPU "
        "示例程序。torch 取自软件包索引；CUDA 版本在此以 CPU "
        "运行。比这些更新的 torch 只警告一次并继续：不适配的内置转换器只影响它自己的算子，`tair doctor` 会列出。",
        ("Python", "torch", "torch_npu", "结果", "通过的测试", "失败", "日期", "说明"),
        {"ok": "可用", "failed": "见说明", "": "未运行"},
    ),
}


@dataclass(frozen=True)
class Gap:
    """Tests that fail with some releases of torch, and why.

    Attributes:
        tests: What their names begin with, ``test_fx_passes::test_rms_norm``.
        since: The first torch they fail with; empty for the oldest.
        before: The first torch they pass with again; empty for none.
        reason: For the page.
    """

    tests: str
    since: str
    before: str
    reason: str

    def holds_for(self, torch: str) -> bool:
        """Whether these tests are to fail with this torch."""
        return torch_names.Row("", self.since, self.before, "").expected(torch)


def gaps() -> list[Gap]:
    """The table of expected failures."""
    return [Gap(*line.split("\t")) for line in GAPS.read_text(encoding="utf-8").splitlines()[1:]]


def judge(done: Outcome, expected: Sequence[Gap]) -> tuple[list[str], list[str]]:
    """Compare what failed with what was expected to.

    Args:
        done: What tests said.
        expected: Rows that hold for this torch. One of which no test ran says nothing.

    Returns:
        What is wrong, and what is known with its reason.
    """
    wrong = [name for name in done.failed if not any(name.startswith(gap.tests) for gap in expected)]
    known: dict[str, int] = {}
    for gap in expected:
        count = sum(test.startswith(gap.tests) for test in done.failed)
        if count:
            known[gap.reason] = known.get(gap.reason, 0) + count
        elif any(test.startswith(gap.tests) for test in done.passed):
            wrong.append(f"{gap.tests} passes, against its row in {GAPS.name}")
    return wrong, [f"{count} tests: {reason}" for reason, count in known.items()]


def rows() -> list[dict[str, str]]:
    """The table; one dict a row."""
    lines = ROWS.read_text(encoding="utf-8").splitlines()
    return [dict(zip(COLUMNS, line.split("\t"), strict=True)) for line in lines[1:]]


def name_of(row: dict[str, str]) -> str:
    """What commands call a row."""
    return "/".join(filter(None, (row["python"], row["torch"], row["torch_npu"])))


def write(table: list[dict[str, str]]) -> None:
    """The table and the pages made from it."""
    lines = ["\t".join(COLUMNS), *("\t".join(row[c] for c in COLUMNS) for row in table)]
    ROWS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for language, page in PAGES.items():
        page.write_text(text(table, language), encoding="utf-8")


def text(table: list[dict[str, str]], language: str) -> str:
    """The page made from the rows."""
    title, warning, lead, heads, words = TEXTS[language]
    torch, pythons = metadata.claimed()
    lead = lead.format(torch=f"`{torch}`", pythons=", ".join(pythons))
    lines = [title, "", warning, "", lead, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in table:
        shown = {**row, "result": words[row["result"]]}
        lines.append(f"| {' | '.join(shown.values())} |")
    return "\n".join(lines) + "\n"


def problems(table: list[dict[str, str]]) -> list[str]:
    """What is wrong with the table and its pages."""
    bad = [
        f"{p.name} is out of date" for lang, p in PAGES.items() if not p.exists() or p.read_text() != text(table, lang)
    ]
    for row in table:
        if row["result"] != "ok" and not row["note"]:
            bad.append(f"{name_of(row)} is not green and has no reason")
    missing = sorted(set(metadata.claimed()[1]) - {row["python"] for row in table})
    return bad + [f"Python {version} is claimed and has no row" for version in missing]


def run(row: dict[str, str], wheels: list[Path], tests: tuple[str, ...], *, again: bool, keep: bool) -> list[str]:
    """Make the environment, run the tests, note the result in the row.

    Args:
        row: Of the table.
        wheels: Our packages.
        tests: Files, or tests in them.
        again: Take an environment that is there.
        keep: Leave it there.

    Returns:
        What is wrong; nothing in a green row.
    """
    place = Environment(row["python"], row["torch"])
    row.update(date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(), passed="", failed="", note="")
    try:
        place.make(wheels, TESTING, again=again)
        vanished = torch_names.problems(torch_names.Source(place.site))
        log = LOGS / f"{name_of(row).replace('/', '-')}.log"
        if row["torch_npu"]:
            wheel = place.fetch(f"torch_npu=={row['torch_npu']}")
            done = place.pytest(tests, log, under=("-m", "ge_emulator", "--torch-npu", str(wheel), "--"))
        else:
            done = place.pytest(tests, log, "-m", "not slow")
    except CannotInstall as error:
        row.update(result="failed", note=f"cannot be installed: {error}")
        return [row["note"]]
    finally:
        if not keep:
            place.remove()
    wrong, known = judge(done, [gap for gap in gaps() if gap.holds_for(row["torch"])])
    wrong += vanished
    if done.code not in (0, 1):  # 1: tests failed
        wrong.append(f"pytest ended with {done.code}: {done.printed[-300:].strip()}")
    row.update(passed=str(len(done.passed)), failed=str(len(done.failed)), result="failed" if wrong else "ok")
    row["note"] = (
        "; ".join([*([SAID[tests]] if tests in SAID else []), *wrong[:6], *known]).replace("\n", " ").replace("|", "/")
    )
    return wrong


def exchange(wheels: list[Path], keep: bool) -> list[str]:
    """Have cells load what others saved.

    Returns:
        What went wrong.
    """
    places = [Environment(python, torch) for python, torch in (name.split("/") for name in ARCHIVES)]
    shutil.rmtree(SAVED, ignore_errors=True)
    wrong = []
    try:
        for place in places:
            place.make(wheels, again=True)
            code, said = place.run(str(ROOT / "tools" / "archives.py"), "write", str(SAVED / place.folder.name))
            print(said, end="", flush=True)
            wrong += [f"{place.folder.name} does not write: {said[-300:]}"] if code else []
        for place in places:
            others = [str(SAVED / other.folder.name) for other in places if other is not place]
            code, said = place.run(str(ROOT / "tools" / "archives.py"), "read", *others)
            print(said, end="", flush=True)
            wrong += [f"{place.folder.name} does not read what others wrote"] if code else []
    except CannotInstall as error:
        wrong.append(f"cannot be installed: {error}")
    finally:
        for place in places:
            None if keep else place.remove()
    return wrong


def ends(table: list[dict[str, str]]) -> list[str]:
    """The rows of the oldest and the newest torch for the Python that runs this."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = [r for r in table if r["python"] == here and not r["torch_npu"]]
    found.sort(key=lambda r: [int(n) for n in r["torch"].split(".")])
    return [name_of(r) for r in (found[0], found[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "rows",
        nargs="*",
        help="PYTHON/TORCH or PYTHON/TORCH/TORCH_NPU; all that have an interpreter here if none is given",
    )
    parser.add_argument(
        "--ends", action="store_true", help="the oldest and the newest torch, fewer tests, no note kept"
    )
    parser.add_argument("--short", action="store_true", help="fewer tests for rows without torch_npu")
    parser.add_argument("--archives", action="store_true", help="what cells save, loaded by each other; no note kept")
    parser.add_argument("--keep", action="store_true", help="keep the environments in build/matrix/")
    parser.add_argument("--check", action="store_true", help="fail if docs/versions.md is out of date; run nothing")
    parser.add_argument("--pages", action="store_true", help="write docs/versions.md from the table; run nothing")
    options = parser.parse_args()
    table = rows()
    if options.pages:
        write(table)
        return
    if options.check:
        bad = problems(table)
        sys.exit("\n".join(bad) if bad else 0)
    if options.archives:
        wrong = exchange(build_wheels(BUILD / "wheels"), options.keep)
        sys.exit("\n".join(wrong) if wrong else 0)
    names = {name_of(row): row for row in table}
    unknown = sorted(set(options.rows) - set(names))
    if unknown:
        sys.exit(f"matrix: no row {', '.join(unknown)} in tools/matrix.tsv; there are {', '.join(names)}")
    chosen = ends(table) if options.ends else options.rows or list(names)
    absent = [name for name in chosen if not interpreter(names[name]["python"])]
    for name in absent:
        print(f"{name}: no such Python on this machine, not run", flush=True)
    chosen = [name for name in chosen if name not in absent]
    wheels = build_wheels(BUILD / "wheels")

    def environment_of(at: int) -> list[str]:
        return chosen[at].split("/")[:2] if 0 <= at < len(chosen) else []

    def one(name: str) -> str:
        row, at = dict(names[name]), chosen.index(name)
        wrong = run(
            row,
            wheels,
            NPU if row["torch_npu"] else ENDS if options.ends else SHORT if options.short else SUITE,
            again=options.keep or environment_of(at - 1) == environment_of(at),
            keep=options.keep or environment_of(at + 1) == environment_of(at),
        )
        print(
            f"{name}: {row['result']}, {row['passed']} passed, {row['failed']} failed", *wrong, sep="\n  ", flush=True
        )
        if not options.ends:
            write([row if name_of(other) == name else other for other in rows()])
        return name if wrong else ""

    with ThreadPoolExecutor(2 if options.ends else 1) as pool:
        failed = [*filter(None, pool.map(one, chosen))]
    failed += absent if options.rows or options.ends else []
    if failed:
        sys.exit(f"matrix: {', '.join(failed)}")


if __name__ == "__main__":
    main()
