"""What docs/compatibility.md calls working: each name has a test that uses it as a client does.

``compatibility.tsv`` has a row each: a name, or all names below one (``torchair.ge.attr.*``), and the test. A row
counts only where the test, with what it reaches in its file, has the last part of the name in its code.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from torchair.compat.compatibility import names, state

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "compatibility.tsv"
ROWS = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]]
WORKS = [n.path for n in names() if state(n.path) == "works"]


def words(node: ast.AST) -> set[str]:
    """The names that a piece of code uses, those in its texts among them."""
    found: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.alias(name=name):
                found.update(name.split("."))
            case ast.ImportFrom(module=str(name)):
                found.update(name.split("."))
            case ast.Constant(value=str(text)):
                found.update(re.findall(r"\w+", text))
    return found


@cache
def used_by(file: str, test: str) -> frozenset[str]:
    """The names that a test uses itself or through what stands beside it; empty if there is no such test to run."""
    beside: dict[str, list[ast.stmt]] = defaultdict(list)
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                beside[name].append(node)
            case ast.Assign(targets=targets):
                for target in targets:
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name):
                            beside[part.id].append(node)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    kept = [alias] if isinstance(node, ast.ImportFrom) else node.names
                    one = ast.ImportFrom(node.module, kept) if isinstance(node, ast.ImportFrom) else ast.Import(kept)
                    beside[(alias.asname or alias.name).split(".")[0]].append(one)
    tests = [n for n in beside.get(test, ()) if isinstance(n, ast.FunctionDef)]
    if tests and not test.startswith("test_") and not any("case(" in ast.unparse(d) for d in tests[0].decorator_list):
        return frozenset()  # neither a test nor a case of one that runs on several ranks
    if not tests or any("skip" in ast.unparse(d) or "xfail" in ast.unparse(d) for d in tests[0].decorator_list):
        return frozenset()
    seen, left, found = {test}, [test], set()
    while left:
        for node in beside[left.pop()]:
            new = words(node)
            found |= new
            left += [name for name in new if name in beside and name not in seen]
            seen |= new
    return frozenset(found)


def proof_of(path: str) -> str:
    """The test that the table names for a name: of the rows that fit it the longest says most."""
    return max((row for row in ROWS if fnmatchcase(path, row[0])), key=lambda row: len(row[0]), default=["", ""])[1]


def test_rows_are_of_names():
    """No row is left over, none stands twice."""
    assert [name for name, _ in ROWS if not any(fnmatchcase(path, name) for path in WORKS)] == []
    assert len({name for name, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize("path", WORKS)
def test_a_test_uses_the_name(path):
    proof = proof_of(path)
    file, _, test = proof.partition("::")
    assert not file.endswith(("test_compatibility.py", "test_imports.py"))  # these import names, and use nothing
    assert path.rpartition(".")[2] in used_by(file, test), proof
