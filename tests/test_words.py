"""The list of words in CONTRIBUTING.md: each is defined where it says, and nothing else has its name."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict

import pytest

from tools.checks import ROOT, SAME_NAME


def table(page: str, heading: str) -> list[list[str]]:
    """Cells of the rows below a heading."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


def listed(*patterns: str) -> list[str]:
    return subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def names() -> dict[str, list[str]]:
    """Public classes and aliases with a capital letter, and the modules that define them."""
    found = defaultdict(list)
    for name in listed("packages/**/src/**.py"):
        for node in ast.parse((ROOT / name).read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            defined = [node.name] if isinstance(node, ast.ClassDef) else [getattr(t, "id", "") for t in targets]
            for word in defined:
                if re.fullmatch(r"[A-Z][a-z]\w*", word):
                    found[word].append(name)
    return found


WORDS = table("CONTRIBUTING.md", "Words")


def test_both_pages_have_the_same_words() -> None:
    chinese = {row[1]: row[3] for row in table("CONTRIBUTING.zh.md", "用语")}
    assert chinese == {word: where for word, _, where, _ in WORDS}
    assert len(chinese) == len(WORDS) >= 30


def test_each_is_defined_where_it_says_and_nowhere_else() -> None:
    known = names()
    for word, _, where, _ in WORDS:
        path, _, name = where.strip("`").partition(":")
        assert (ROOT / path).exists(), word
        if name:
            assert known[name] == [path], word
    assert not {name for _, _, where, _ in WORDS for name in [where.partition(":")[2]]} & set(SAME_NAME)


@pytest.mark.parametrize("word", [w.strip() for row in WORDS for w in row[3].split(",") if w.strip()])
def test_what_no_page_and_no_source_says(word: str) -> None:
    """In the place of a word of the list."""
    pattern = rf"(^|[^A-Za-z]){re.escape(word)}s?([^A-Za-z]|$)"
    found = subprocess.run(
        ["git", "grep", "-nIiE", pattern, "--", "*.md", "packages/*/src/*.py", "labs/*.py", "tools/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert [line for line in found if not line.startswith("CONTRIBUTING.md:")] == []
