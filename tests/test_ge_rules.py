"""Each rule of GE has a rule of ours and a test that breaks it, or a reason why no graph breaks it."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

from ge_graph import rules
from ge_graph import verify as verifier

ROOT = Path(__file__).resolve().parent.parent
ROWS = [
    line.split("\t")
    for line in (ROOT / "tests" / "native" / "ge_rules.tsv").read_text().splitlines()
    if not line.startswith("#")
]
RULES_OF_GE = 82
EXCUSES = ("none: ", "no graph: ")
# Rules of verify and of options by code; GE3020 and GE3026 are said where nodes and graphs are walked.
CODES = {code for code, _ in (*rules.NODE_RULES, *rules.GRAPH_RULES)} | set(
    re.findall(r'"(GE30\d\d)"', Path(verifier.__file__).read_text())
)


@functools.cache
def functions(path):
    tree = ast.parse((ROOT / path).read_text())
    return {n.name: ast.unparse(n) for n in tree.body if isinstance(n, ast.FunctionDef)}


@functools.cache
def module(path):
    spec = importlib.util.spec_from_file_location(f"rules_of_ge_{Path(path).stem}", ROOT / path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def case(path, name):
    """(code that the case expects of us, GE's answer that its text must hold) of a parametrised test."""
    found = module(path)
    if hasattr(found, "BROKEN"):
        (row,) = [row for row in found.BROKEN if row[0] == name]
        return row[2], row[3]
    (row,) = [row for row in found.MUTATIONS if row[0].__name__ == name]
    return row[1], None


def test_every_rule_is_listed_once():
    assert [row for row in ROWS if len(row) != 4 or not all(cell.strip() for cell in row)] == []
    assert len({row[0] for row in ROWS}) == len(ROWS) == RULES_OF_GE


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_rule(row):
    _, answer, ours, test = row
    if test == "-":
        assert ours.startswith(EXCUSES)
        return
    found = re.fullmatch(r"([\w./-]+\.py)(?:\[(.+)\]|::(test_\w+|\*))", test)
    assert found, test
    path, parameter, name = found.groups()
    if parameter is not None:
        code, said = case(path, parameter)
        assert code == ours
        assert said in (None, answer)
    elif name == "*":
        assert ours.startswith(EXCUSES)
        assert functions(path)
    else:
        assert name in functions(path)
    assert ours in CODES | {"writer", "GE3070"} or ours.startswith(EXCUSES)


def test_options_are_refused_with_the_answer_of_ge():
    """The rows of options: each answer of GE is expected by a case of the test that the row names."""
    for _, answer, ours, test in ROWS:
        if ours == "GE3070":
            path, name = test.split("::")
            assert name in functions(path)
            assert answer in (ROOT / path).read_text(), answer
