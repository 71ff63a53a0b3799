import copy
import importlib.metadata
import os
import re

import pytest
import typer

from tair_debug import cli, help_texts
from tair_testing import warm

HAN = re.compile(r"[\u4e00-\u9fff]")
MODEL = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()).eval(), (torch.ones(2, 4),)
"""


OWN = ["summary", "dump", "view", "compare", "minify", "replay", "ops", "check", "plan", "profile", "doctor"]
OTHERS = sorted(e.name for e in importlib.metadata.entry_points(group=cli.COMMANDS))


def test_all_commands_are_asked_for_their_help():
    assert sorted(OWN) == sorted({c.name for c in cli.app.registered_commands} - {*OTHERS})


@pytest.mark.parametrize("words", ["", *OWN, *OTHERS])
def test_the_help_of_a_command_is_chinese(words, tmp_path):
    """Every paragraph and every option; names and forms stay. Lines are no wider than the terminal."""
    from rich.cells import cell_len

    env = {**os.environ, "TAIR_LANG": "zh", "COLUMNS": "80"}
    done = warm.run("-m", "tair_debug.cli", *words.split(), "-h", cwd=tmp_path, env=env)
    usage = re.compile(r"^(用法：| +)tair emulate ")
    lines = [line for line in done.stdout.splitlines() if not usage.match(line)]
    assert [line for line in lines if re.search(r"[a-z]{4,} [a-z]{3,} [a-z]{3,}", line)] == []
    assert done.stdout.startswith("用法：")
    assert re.search("选项[：:]", done.stdout)
    assert max(cell_len(line) for line in lines) <= 80


@pytest.mark.parametrize("words", ["summary", "compare", "check", "plan --soc ascend910b2"])
def test_verdicts_are_chinese(words, tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    name, *rest = words.split()
    done = warm.run(
        "-m", "tair_debug.cli", name, "net.py:make", *rest, cwd=tmp_path, env={**os.environ, "TAIR_LANG": "zh"}
    )
    assert HAN.search(done.stdout.splitlines()[0]), done.stdout


def test_an_error_and_wrong_usage_are_chinese(tmp_path):
    env = {**os.environ, "TAIR_LANG": "zh"}
    done = warm.run("-m", "tair_debug.cli", "summary", "net.py:make", cwd=tmp_path, env=env, check=False)
    assert "不存在" in done.stderr
    assert "下一步：" in done.stderr
    done = warm.run("-m", "tair_debug.cli", "check", "g.txt", "--dynamic", cwd=tmp_path, env=env, check=False)
    assert "用于模型，而 g.txt 是文件" in done.stderr


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("nosuch", "没有命令 nosuch"),
        ("summary", "缺少 MODEL"),
        ("summary --nosuch", "没有选项 --nosuch"),
        ("summary a.py:b c", "多余的参数：c"),
        ("summary a.py:b --csv=3", "选项 --csv 不接受值"),
        ("plan a.py:b --soc", "选项 --soc 需要一个值"),
        ("profile a.py:b --runs 0", "不能小于 1"),
        ("profile a.py:b --runs x", "的值无效"),
    ],
)
def test_wrong_usage_is_chinese_without_an_english_word(words, fault, monkeypatch, capsys):
    monkeypatch.setenv("TAIR_LANG", "zh")
    command = help_texts.translated(typer.main.get_command(copy.deepcopy(cli.app)))
    monkeypatch.setattr("sys.argv", ["tair", *words.split()])
    with pytest.raises(SystemExit) as end:
        help_texts.carry_out(command, "tair")
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "错误：" in said
    assert fault in said
    assert not re.search(r"[a-z]{4,} [a-z]{3,} [a-z]{3,}", said.split("错误：")[1])


def test_a_language_that_is_not_known_is_refused(tmp_path):
    done = warm.run("-m", "tair_debug.cli", "-h", cwd=tmp_path, env={**os.environ, "TAIR_LANG": "fr"}, check=False)
    assert done.returncode == 2
    assert "[GE1002] TAIR_LANG: got 'fr', allowed: en, zh" in done.stderr


def test_programs_read_english(tmp_path):
    """--json is for programs: its texts do not change with the language."""
    (tmp_path / "net.py").write_text(MODEL)
    args = ("-m", "tair_debug.cli", "summary", "net.py:make", "--json")
    outputs = {warm.run(*args, cwd=tmp_path, env={**os.environ, "TAIR_LANG": lang}).stdout for lang in ("en", "zh")}
    assert len(outputs) == 1
