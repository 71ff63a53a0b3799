import pytest

from ge_graph import GraphError, messages

SETTINGS = ("TAIR_LANG", "LC_ALL", "LC_MESSAGES", "LANG")


@pytest.fixture
def speak(monkeypatch):
    """Sets the environment's language; what is not named is unset."""

    def set_to(**values):
        for name in SETTINGS:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_to


@pytest.mark.parametrize(
    ("values", "language"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"TAIR_LANG": "zh", "LC_ALL": "en_US.UTF-8"}, "zh"),
        ({"TAIR_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "zhuang"}, "en"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
    ],
)
def test_the_language_is_that_of_the_environment(speak, values, language):
    speak(**values)
    assert messages.language() == language


def test_an_error_speaks_the_language_and_keeps_its_fields(speak):
    """The message changes; the fields, which programs and --json read, do not."""
    what, step = "graph 'g' has a node 'a b' already (Add)", "choose another node_name or leave it out"
    speak(TAIR_LANG="zh")
    chinese = GraphError("GE3005", what, where="m.py:3", next=step)
    assert str(chinese) == "[GE3005] 图 'g' 已有节点 'a b'（Add）\n  位于 m.py:3\n下一步：换一个 node_name，或不要给"
    speak()
    english = GraphError("GE3005", what, where="m.py:3", next=step)
    assert str(english) == f"[GE3005] {what}\n  at m.py:3\nNext: {step}"
    assert (chinese.what, chinese.where, chinese.next) == (english.what, english.where, english.next)


def test_a_text_without_a_row_stands_behind_what_its_code_means():
    assert messages.said("GE3005", "of nobody", "zh", head=True) == "一个图中的两个节点会有相同的名字：of nobody"
    assert messages.said("GE3005", "of nobody", "zh") == "of nobody"
    assert messages.said("GE9999", "of nobody", "zh", head=True) == "of nobody"


def test_values_are_never_read_as_text_of_ours():
    """A value with braces, with our words or with a backslash comes through as it is."""
    for value in ("{name2}", "x' already", r"\1 \g<0>", "a\nb"):
        said = messages.said("GE3005", f"graph 'g' has a node '{value}' already", "zh")
        assert said == f"图 'g' 已有节点 '{value}'" or value == "x' already"
        assert value in said


def test_a_value_that_is_a_text_of_ours_is_translated():
    assert messages.said("GE5023", "'w': has 3 bytes, not 4", "zh") == "'w'：有 3 字节，不是 4"


def test_a_long_text_takes_linear_time():
    """A pattern of many values on a text that almost fits: counted by what is searched, not timed."""
    text = "input '" + "' of x' of " * 20_000
    assert messages.said("GE3013", text, "zh") == text


def test_a_cell_holds_any_text():
    text = "a\\n\tb\nc\\"
    assert messages._cell(messages.line(text)) == text
