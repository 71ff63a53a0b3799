"""Every text of an error or a command has its Chinese, beside the same English as the source has."""

import re

import pytest

from ge_graph import messages
from tools import messages as sources

_COMMAND = re.compile(r"pip install|--|options=|[\w.]+\(")  # to be typed as it stands
_PLURALS = {("GE3040", "{problems} place{value} cannot be read:\n{listing}"): {"value"}}  # Chinese has none


@pytest.fixture(scope="module")
def found():
    return sources.texts()


def test_every_text_and_every_code_has_its_chinese(found):
    """Read from the source of the packages: a changed text lacks its row, and its old row is left over."""
    wanted = {*found, *((code, "") for code in sources.codes())}
    have = set(messages.rows("zh"))
    assert sorted(wanted - have) == [], "python -m tools.messages lists the rows to be added"
    assert sorted(have - wanted) == []


def test_a_translation_has_the_values_of_its_english_and_is_none():
    for (code, english), chinese in messages.rows("zh").items():
        if english:
            left_out = set(messages.FIELD.findall(english)) - set(messages.FIELD.findall(chinese))
            assert left_out <= _PLURALS.get((code, english), set()), (code, english)
            assert set(messages.FIELD.findall(chinese)) <= set(messages.FIELD.findall(english)), (code, english)
        if re.search(r"[A-Za-z]{3,} [A-Za-z]{3,}", english) and not _COMMAND.match(english):
            assert re.search(r"[\u4e00-\u9fff]", chinese), (code, english)


def test_the_table_finds_texts_of_the_source(found):
    """The reading of the sources sees plain texts, texts of helpers, next steps by code, and the help of commands."""
    assert ("GE3019", "GE has no operator '{name}'") in found
    assert ("GE5023", "has {st_size} bytes, not {size}") in found
    assert ("GE4024", "pass weights as inputs, or save the model with tair_export, which puts them into files") in found
    assert ("tair", "Only the verdict.") in found
    assert len(found) > 800


def test_the_chinese_of_a_text_changes_with_the_text(tmp_path, monkeypatch):
    """What the test above rests on: another word in the source is another row."""
    module = tmp_path / "packages" / "p" / "src" / "p" / "m.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    module.write_text('raise GraphError("GE3005", f"graph {g.name!r} has a node {n!r} already", next="choose another")')
    assert set(sources.texts([module])) == {
        ("GE3005", "graph {name} has a node {n} already"),
        ("GE3005", "choose another"),
    }


def test_every_reason_of_a_refusal_is_chinese():
    """Also those that tables of the converters put together of parts, and those in a list of refused calls."""
    prose = re.compile(r"[a-z]{3,} [a-z]{2,} [a-z]{2,} [a-z]{2,}")
    for reason in sorted(sources.reasons()):
        chinese = messages.said("GE2001", reason, "zh")
        assert not prose.search(chinese), (reason, chinese)
    row = f"  aten.geqrf.default  %a and 3 more  f32[2]  net.py:4 forward  refused: {reason}"
    text = "\n".join(["4 of 9 nodes cannot be lowered.", row, "  … and 2 more"])
    first, second, third = messages.said("GE2001", text, "zh", head=True).splitlines()
    assert first == "9 个节点中有 4 个不能转换。"
    assert second == f"  aten.geqrf.default  %a and 3 more  f32[2]  net.py:4 forward  不能转换：{chinese}"
    assert third == "  … 另有 2 个"
