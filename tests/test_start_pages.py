"""The seven first pages of the documentation, one for each kind of user, do what they say.

Shell lines run in ``test_shell_lines``; ``test_pages`` says that the Chinese page has the same code and results.
"""

import re
from pathlib import Path

import pytest

from tair_testing import warm
from tests.test_shell_lines import LINES, lines_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "start"
PAGES = sorted(p for p in FOLDER.glob("*.md") if not p.name.endswith(".zh.md"))


def blocks(page, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def test_there_is_a_page_for_each_kind_of_user():
    assert len(PAGES) == 7
    navigation = (FOLDER.parents[1] / "mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"start/(\w+\.md)", navigation)) == [p.name for p in PAGES]


def test_every_block_of_both_languages_runs():
    """Blocks are Python, which runs below, or lines of a shell, which run one by one in ``test_shell_lines``."""
    counts = {"python": 0, "sh": 0}
    for page in PAGES:
        english, chinese = (
            re.findall(r"^```(\w*)\n(.*?)^```", p.read_text(encoding="utf-8"), re.S | re.M)
            for p in (page, page.with_suffix(".zh.md"))
        )
        assert english == chinese, page.name
        for kind, block in english:
            counts[kind] += 1
            if kind == "sh":
                assert block.splitlines() == lines_of(page)
                assert {*block.splitlines()} <= {*LINES}
    assert counts == {"python": 10, "sh": 5}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_code_of_a_page_prints_what_the_page_says(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page, "python")), encoding="utf-8")
    said = re.findall(r"^It prints `(.+?)`", page.read_text(encoding="utf-8"), re.M)
    assert said
    assert warm.run(script, cwd=tmp_path).stdout.splitlines() == said


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda p: p.name)
def test_a_page_is_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 60
