"""What people read on terminals of any width, and how lines of a program are named."""

import io
import os

import pytest
from rich.console import Console

from tair_debug.refused import RefusedCall, amount, listed
from tair_debug.terminal import place, put, table

HEAD = ("verdict", "operator", "number", "types", "your line", "why")
ROWS = [
    [
        "AI CPU (slow), launched",
        "Cumprod",
        "6",
        "x f64, axis i64, y f64",
        "net/model.py:92 in forward: x = x.double()",
        "一",
    ],
    [
        "no kernel",
        "BatchMatMulV2",
        "1234",
        "",
        "model.py:3 in forward: y = torch.linalg.lu_factor(x)",
        "none is listed",
    ],
]


def printed(width):
    out = Console(file=io.StringIO(), width=width, highlight=False)
    put([table(HEAD, ROWS)], out)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 92, 100, 120, 159, 160, 300])
def test_no_word_of_a_table_is_broken_or_cut(width):
    text = printed(width)
    for row in ROWS:
        for word in " ".join(row).split():
            assert word in text
    if "│" in text:
        assert all(len(line) <= width for line in text.splitlines())
        assert text.count("┓") == text.count("┘") == 1


def test_a_narrow_terminal_gets_a_line_for_each_cell():
    assert "your line: model.py:3 in forward: y = torch.linalg.lu_factor(x)\n" in printed(60)
    assert "│" not in printed(60)
    assert "types: \n" not in printed(60)


def test_lines_are_named_from_the_working_folder_or_as_they_are_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside = f"{tmp_path}/.venv/lib/python3.11/site-packages/net/model.py:7 in forward"
    assert place(f"{tmp_path}/net/model.py:12 in forward: x = y") == "net/model.py:12 in forward: x = y"
    assert place(inside) == place("/usr/lib/dist-packages/net/model.py:7 in forward") == "net/model.py:7 in forward"
    assert place("/else/model.py:1") == "/else/model.py:1"
    assert place(f"{tmp_path}2/model.py:1") == f"{tmp_path}2/model.py:1"
    assert place("") == ""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert place("/else/model.py:1") == "/else/model.py:1"
    monkeypatch.chdir(os.sep)
    assert place("/else/model.py:1") == "/else/model.py:1"


def test_equal_refused_calls_are_one_line():
    same = [RefusedCall(f"eig_{i}", "aten.eig.default", "no", "m.py:3 in forward", "eig(x)") for i in range(3)]
    other = RefusedCall("eig_9", "aten.eig.default", "no", "m.py:4 in forward", "eig(y)")
    lines = listed([*same[:2], other, same[2]])
    assert lines == [
        "3 x aten.eig.default (m.py:3 in forward: eig(x)): no",
        "eig_9 = aten.eig.default (m.py:4 in forward: eig(y)): no",
    ]
    assert (amount(same), amount([other])) == ("3 calls cannot be converted", "1 call cannot be converted")
