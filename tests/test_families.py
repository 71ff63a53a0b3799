"""What docs/coverage.md says of families of programs: each statement names the test that shows it.

``families.tsv`` has a row each: part of the page, and a test with the cases that it must have.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = [line.split("\t") for line in (ROOT / "tests" / "families.tsv").read_text(encoding="utf-8").splitlines()[1:]]


@cache
def families() -> str:
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    return page.split("\n## Families\n")[1].split("\n## ")[0]


@cache
def named_in(file: str) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the tests in a file that can run, and the texts in it, names of cases among them."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not any("xfail" in ast.unparse(d) or "skip" in ast.unparse(d) for d in node.decorator_list)
    }
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return frozenset(names), frozenset(texts)


@pytest.mark.parametrize(("says", "proof"), ROWS, ids=[r[0][:60] for r in ROWS])
def test_a_test_shows_it(says, proof):
    assert says in families()
    file, _, rest = proof.partition("::")
    name, _, cases = rest.removesuffix("]").partition("[")
    names, texts = named_in(file)
    assert name in names
    assert set(filter(None, cases.split(","))) <= texts


def test_every_statement_has_a_row():
    """A statement ends with a full stop or a semicolon; what stands before a colon is a title."""
    page = re.sub(r"\(`torch\.\w+`\)", lambda m: m[0].replace(".", " "), families())
    says = [re.sub(r"\(`torch\.\w+`\)", lambda m: m[0].replace(".", " "), row[0]) for row in ROWS]
    untitled = re.sub(r"\n\* [^:;\n]*: ", "\n* ", page)
    for statement in re.split(r"[.;]\s|\n\* ", untitled):
        words = statement.strip(" *\n.")
        if len(words.split()) > 3:
            assert any(s in words or words in s for s in says), words
