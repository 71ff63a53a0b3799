import os
import re

import pytest

from tair_testing import warm

HAN = re.compile(r"[\u4e00-\u9fff]")
MODEL = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU()).eval(), (torch.ones(2, 4),)
"""


@pytest.mark.parametrize(
    "words", [[], ["summary"], ["compare"], ["check"], ["plan"], ["minify"], ["ops"]], ids=" ".join
)
def test_the_help_of_a_command_is_chinese(words, tmp_path):
    """Every paragraph and every option; names and forms stay. Lines are no wider than the terminal."""
    from rich.cells import cell_len

    done = warm.run(
        "-m", "tair_debug.cli", *words, "-h", cwd=tmp_path, env={**os.environ, "TAIR_LANG": "zh", "COLUMNS": "80"}
    )
    english = [line for line in done.stdout.splitlines() if re.search(r"[a-z]{4,} [a-z]{3,} [a-z]{3,}", line)]
    assert english == []
    assert done.stdout.startswith("用法：")
    assert "选项：" in done.stdout
    assert max(cell_len(line) for line in done.stdout.splitlines()) <= 80


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
