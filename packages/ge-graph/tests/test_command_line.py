"""Help of commands in the reader's language, in lines that a terminal shows whole."""

import argparse
import unicodedata

import pytest

from ge_graph.command_line import CommandParser


def cells(text):
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def made():
    parser = CommandParser("tair x", description="Run a program on an emulated NPU.")
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument("--name", help="name of the graph file (%(default)s)", default="export")
    parser.add_argument("--own", help="a text that no table has " + "and that goes on and on " * 4)
    return parser


@pytest.fixture
def help_in(monkeypatch):
    def text(language):
        monkeypatch.setenv("TAIR_LANG", language)
        monkeypatch.setenv("COLUMNS", "60")
        return made().format_help()

    return text


def test_english_is_what_argparse_makes(help_in):
    plain = argparse.ArgumentParser("tair x", description="Run a program on an emulated NPU.", add_help=False)
    plain.add_argument("-h", "--help", action="help", help="show this help and end")
    plain.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    plain.add_argument("--name", help="name of the graph file (%(default)s)", default="export")
    plain.add_argument("--own", help="a text that no table has " + "and that goes on and on " * 4)
    assert help_in("en") == plain.format_help()


def test_chinese_has_chinese_words_and_values_in_their_places(help_in):
    text = help_in("zh")
    assert text.startswith("用法：tair x")
    for said in ("在仿真的 NPU 上运行程序。", "以符号尺寸编译", "图文件的名字（export）", "显示帮助并退出", "选项:"):
        assert said in text


def test_lines_are_as_wide_as_the_terminal_and_lose_nothing(help_in):
    text = help_in("zh")
    assert max(map(cells, text.splitlines())) <= 60
    assert " ".join(text.split()).count("and that goes on and on") == 4


def test_what_is_asked_for_is_read(monkeypatch):
    monkeypatch.setenv("TAIR_LANG", "zh")
    assert vars(made().parse_args(["--dynamic", "--own", "x"])) == {"dynamic": True, "name": "export", "own": "x"}
