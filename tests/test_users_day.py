"""What is promised of the tools that a user meets in a day: each number names the test or the measurement that has it.

``users_day.tsv`` has a row each: a test that can run, or the row of ``benchmarks/results.md`` with its target, and
with a reason if the last measurement missed it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from benchmarks import tools as measured

ROOT = Path(__file__).resolve().parent.parent
ROWS = [line.split("\t") for line in (ROOT / "tests" / "users_day.tsv").read_text(encoding="utf-8").splitlines()[1:]]
MEASURED = "benchmarks: "
LIBRARIES = ("tree-sitter-cpp", "filelock", "nox", "hypothesis")


@cache
def named_in(file: str) -> frozenset[str]:
    """Tests of a file that can fail: not those that are skipped or expected to fail whatever comes."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and not any(ast.unparse(d).startswith(("pytest.mark.xfail", "pytest.mark.skip(")) for d in node.decorator_list)
    )


@cache
def results() -> dict[str, tuple[str, str]]:
    """What was measured to its target and whether it was met."""
    lines = (ROOT / "benchmarks" / "results.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[1]: (row[6], row[7]) for row in cells if len(row) == 8}


@pytest.mark.parametrize(("item", "says", "proof"), ROWS, ids=[f"{r[0]}: {r[1][:60]}" for r in ROWS])
def test_what_is_claimed_has_its_proof(item, says, proof):
    if proof.startswith(MEASURED):
        what, target, *why_not = proof.removeprefix(MEASURED).split(" | ")
        assert results()[what] == (target, "NO" if why_not else "yes")
        return
    file, _, name = proof.partition("::")
    assert name in named_in(file)


def test_every_item_has_a_row():
    assert {r[0] for r in ROWS} == {*map(str, range(1, 13)), "done", "hostile"}


def test_targets_of_the_commands_are_those_that_are_measured():
    for command, limit in measured._COMMANDS.items():
        what = f"tair {command.split()[0]} of a 24-layer Llama, whole process, processor time"
        assert any(proof.startswith(f"{MEASURED}{what} | <= {limit} s") for _, _, proof in ROWS)


def test_libraries_that_are_not_taken_have_their_reason():
    page = (ROOT / "docs" / "rationale.md").read_text(encoding="utf-8")
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    for name in LIBRARIES:
        assert [r for r in rows if len(r) == 3 and name in f"{r[0]} {r[1]}" and len(r[2].split()) > 3], name
