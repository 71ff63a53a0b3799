"""Which tests wait for the night."""

import os
import subprocess
import sys

import pytest

TESTS = """
import pytest

@pytest.mark.night
def test_more():
    pass

@pytest.mark.night(rows=3)
@pytest.mark.parametrize("row", range(7))
def test_table(row):
    pass

@pytest.mark.parametrize("row", [1, pytest.param(2, marks=pytest.mark.night)])
def test_marked_row(row):
    pass

def test_plain():
    pass
"""
MARKED = ["test_marked_row[1]", "test_marked_row[2]"]
DAY = ["test_table[0]", "test_table[3]", "test_table[6]", "test_marked_row[1]", "test_plain"]


@pytest.mark.parametrize(
    ("named", "night", "want"),
    [
        ("", "", DAY),
        ("", "1", ["test_more", *(f"test_table[{n}]" for n in range(7)), *MARKED, "test_plain"]),
        ("::test_more", "", ["test_more"]),
    ],
)
def test_what_is_marked_runs_at_night_or_by_name(named, night, want, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "--rootdir", ".", f"test_it.py{named}"],
        cwd=tmp_path,
        env={**os.environ, "TAIR_NIGHT": night},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line] == want
