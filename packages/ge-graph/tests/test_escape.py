"""Hostile text in every place where text of others may stand."""

import ast
import csv
import html
import html.parser
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_graph import escape

HOSTILE = [
    "'",
    '"',
    "'''",
    '"""',
    "ends with \\",
    "a\rb",
    "a\nimport os",
    "a\x0cb",
    "a\x0bb",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "nul\x00",
    "</script><script>alert(1)</script>",
    "<b onclick='x'>",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "",
    "C:\\x",
    "nul",
    "CON.txt",
    "a" * 10_000,
    "\u202eabc",
    "\u2066abc",
    "\ud800",
    "\x1b[31mred\x1b]8;;http://x\x07",
    "{}{{}}%s%d",
    "${x}",
    "]]>",
    "日本語 名",
]

texts = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters()))


@given(texts)
def test_literal_evaluates_to_its_text_and_stays_on_one_line(text: str) -> None:
    shown = escape.literal(text)
    assert ast.literal_eval(shown) == text
    assert shown.isascii()
    assert len(shown.splitlines()) == 1


@given(texts)
def test_a_line_ends_no_comment(text: str) -> None:
    shown = escape.line(text)
    assert len(shown.splitlines()) <= 1
    tree = ast.parse(f"x = 1  # {shown}\n")
    assert len(tree.body) == 1
    assert "\x1b" not in shown
    shown.encode()


def test_a_long_line_says_how_much_is_left_out() -> None:
    assert escape.line("a" * 12, 10) == "aaaaaaaaaa… (2 more characters)"


@given(texts)
def test_markup_is_one_text(text: str) -> None:
    found: list[str] = []

    class Reader(html.parser.HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            assert tag == "p"

        def handle_data(self, data: str) -> None:
            found.append(data)

    reader = Reader()
    reader.feed(f"<p>{escape.markup(text)}</p>")
    reader.close()
    assert "".join(found) == escape.block(text)


@given(texts)
def test_script_reads_back_and_closes_no_element(text: str) -> None:
    shown = escape.script({"name": text})
    assert "<" not in shown
    assert json.loads(shown) == {"name": text}


@given(texts)
def test_no_cell_is_a_formula(text: str) -> None:
    out = io.StringIO()
    csv.writer(out).writerow([escape.cell(text)])
    (cell,) = next(csv.reader(io.StringIO(out.getvalue()), strict=True)) if text else [""]
    assert not cell.startswith(("=", "@", "\t", "\r"))
    if cell.startswith(("+", "-")):
        float(cell)


@pytest.mark.parametrize("number", ["-1", "+2.5", "-1e-3", "-.5", "7"])
def test_numbers_stay_numbers(number: str) -> None:
    assert escape.cell(number) == number


@given(texts)
def test_a_file_name_stays_in_its_folder(text: str) -> None:
    name = escape.file_name(text)
    assert Path("folder", name).resolve().parent == Path("folder").resolve()
    assert name.isascii()
    assert 0 < len(name) <= 120
    assert not name.startswith(".")


@given(texts, texts)
def test_two_texts_never_share_a_file(a: str, b: str) -> None:
    assert (escape.file_name(a) == escape.file_name(b)) == (a == b)


def test_ordinary_names_are_kept() -> None:
    for name in ("conv1.weight", "graph_1", "a+b-c"):
        assert escape.file_name(name) == name
