"""Every name that programs use is there or says what stands for it, and the page of names is up to date."""

from pathlib import Path

import pytest

from ge_graph.errors import GeError
from torchair.compatibility import THEIRS, find, markdown, names, state

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
ALL = [n.path for n in names()]


@pytest.mark.parametrize("path", ALL)
def test_name(path):
    if state(path).startswith("absent"):
        with pytest.raises(GeError, match="GE1066"):
            find(path)
    elif path.startswith(THEIRS):
        assert "stays there" in state(path)
    else:
        assert find(path) is not None


def test_nearly_all_are_there():
    absent = [p for p in ALL if state(p).startswith("absent")]
    assert absent == ["torchair._exception", "torchair._torchair"]


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == markdown()
    assert PAGE.with_suffix(".zh.md").read_text(encoding="utf-8") == markdown("zh")
