"""What README and docs show is true: snippets run and print what the page says, commands and options are there.

The pages about adding an operator, collectives and passes change what the whole process compiles; their tests run them
in processes of their own (tests/test_docs.py).
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer.main

import tair_debug.cli
import tair_export.run
import torchair
from ge_converters.registry import REGISTRY
from torchair.config.options import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    p
    for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/**/*.md"))
    if p.name != "CHANGELOG.md"
)
ELSEWHERE = {
    "docs/adding_an_op.md": "tests/test_docs.py",
    "docs/collectives.md": "tests/test_docs.py",
    "docs/writing_a_pass.md": "tests/test_docs.py",
    **{f"docs/start/{p.name}": "tests/test_start_pages.py" for p in (ROOT / "docs" / "start").glob("*.md")},
    "docs/device.md": "tools/demo.py",  # needs NPU tensors: `make demo-npu` runs the same lines on the emulator
}


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


def claims(page):
    """What the page says that its code prints."""
    return re.findall(r"^(?:It prints|输出) `([^`]+)`", page.read_text(encoding="utf-8"), re.M)


def twin(page):
    """The English page of a Chinese one."""
    return page.with_name(page.name.replace(".zh.md", ".md"))


TRANSLATED = [p for p in PAGES if p.name.endswith(".zh.md")]
SHOWN = [p for p in PAGES if blocks(p) and name_of(p) not in ELSEWHERE and p not in TRANSLATED]


def user_converters():
    return {e.target for e in REGISTRY.entries() if e.layer == "user"}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the pages take for granted: a model, its inputs, an archive of it; the converters they show go again."""
    known = user_converters()
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()

    class Two(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    torchair.CompiledModel.save_graph(Two(), (x, y), save_path="saved")
    yield {
        "config": torchair.CompilerConfig(),
        "model": net,
        "net": net,
        "x": x,
        "y": y,
        "array": np.ones((2, 4), np.float32),
        "torch": torch,
    }
    for target in user_converters() - known:
        REGISTRY.unregister(target)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_snippets(page, names, capsys):
    for number, block in enumerate(blocks(page), 1):
        with torch.no_grad():
            exec(compile(block, f"{name_of(page)}:block {number}", "exec"), names)
    printed = capsys.readouterr().out
    for claim in claims(page):
        assert claim in printed


@pytest.mark.parametrize("page", TRANSLATED, ids=name_of)
def test_a_translation_shows_and_claims_the_same(page):
    """Comments aside; the English page's code is what is run."""

    def code(path):
        return [[re.sub(r"\s*#.*$", "", line) for line in block.splitlines()] for block in blocks(path)]

    assert code(page) == code(twin(page))
    assert claims(page) == claims(twin(page))


def test_snippets_that_run_elsewhere_do():
    for page, test in ELSEWHERE.items():
        assert (ROOT / page).exists()
        assert (ROOT / test).exists()


@pytest.mark.parametrize("page", [p for p in PAGES if "make " in p.read_text(encoding="utf-8")], ids=name_of)
def test_make_targets(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`make ([a-z-]+)[^`]*`|^make ([a-z-]+)", text, re.M)
    assert {a or b for a, b in named} <= targets | {"generate"}


def commands():
    """Command line to its options, from the programs themselves."""
    found = {}
    tair_debug.cli._add_commands()  # those of packages that are installed beside it
    for name, command in typer.main.get_command(tair_debug.cli.app).commands.items():
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")}
        # a command of another package parses its arguments itself
        passed_on = command.context_settings.get("ignore_unknown_options")
        found[f"tair {name}"] = None if passed_on else options | {"--help"}
    found["tair-run"] = {o for action in tair_export.run._parser()._actions for o in action.option_strings}
    return found


@pytest.mark.parametrize(
    "page", [p for p in PAGES if re.search(r"\btair[ -]", p.read_text(encoding="utf-8"))], ids=name_of
)
def test_commands_and_their_options(page):
    known = commands()
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"`(tair(?:-run)? [^`\n]+)`", text) + re.findall(r"^(tair(?:-run)? .+)$", text, re.M)
    for line in lines:
        # after two blanks or a # stands what it does
        words = re.split(r"\s{3,}|\s#", line)[0].split()
        command = words[0] if words[0] == "tair-run" else " ".join(words[:2])
        assert command in known, line
        used = {w.partition("=")[0] for w in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", w)}
        assert known[command] is None or used <= known[command], line


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_and_options(page):
    text = page.read_text(encoding="utf-8")
    for module in set(re.findall(r"python -m ((?:ge_|tair_|torchair|tools)[\w.]*)", text)):
        assert importlib.util.find_spec(module.rstrip(".")), module
    paths = {o.path for o in OPTIONS} | {old for o in OPTIONS for old in (*o.also, *o.opposite)}
    groups = {p.rpartition(".")[0] for p in paths}
    paths |= {"debug.graph_dumb.type"}  # the wrong name that an error is explained with
    for option in set(re.findall(r"`config\.((?:[a-z_]+_config|debug|export)[\w.]*)", text)):
        assert option.strip(".") in paths | groups or option.startswith("aclgraph_config"), option


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_number_of_operators_is_that_of_the_schemas(page):
    numbers = re.findall(r"(\d[\d,]*) (?:operators|个 GE 算子)", (ROOT / page).read_text(encoding="utf-8"))
    ours = "from ge_graph import schema; print(len(schema.names()))"  # elsewhere: users add theirs, and so do tests
    count = subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, check=True).stdout
    assert [int(n.replace(",", "")) for n in numbers] == [int(count)]
