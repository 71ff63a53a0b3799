"""The code of the guides runs, and every link of the documents leads somewhere."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tair_testing import warm
from tools.docs import chinese, figures, site

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.mark.slow
def test_adding_an_op_works_as_written(tmp_path):
    """The blocks of the page, one after another, then the declared forms of the converters that they register."""
    script = tmp_path / "page.py"
    check = """
import torchair
f = torch.compile(lambda x, y: torch.add(x, y, alpha=3) + y, backend=torchair.get_npu_backend(), fullgraph=True)
x, y = torch.randn(2, 3), torch.randn(3)
torch.testing.assert_close(f(x, y), torch.add(x, y, alpha=3) + y)
from ge_converters.smoke import main
raise SystemExit(main(["aten.add.Tensor", "aten.lerp", "aten.fmax", "aten.fmin"]))
"""
    script.write_text("\n\n".join(python_blocks(ROOT / "docs" / "adding_an_op.md")) + check)
    warm.run(script, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("text", python_blocks(ROOT / "docs" / "writing_a_pass.md"))
def test_the_guide_to_passes_runs(text, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(text)
    printed = warm.run(script, cwd=tmp_path).stdout.strip()
    if "print(" in text:
        assert printed
        assert f"It prints `{printed}`" in (ROOT / "docs" / "writing_a_pass.md").read_text()


@pytest.mark.slow
def test_collectives_work_as_written(tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(python_blocks(ROOT / "docs" / "collectives.md")))
    done = warm.run(script, cwd=tmp_path)
    assert done.stdout.count("agrees with the whole model") == 2  # two processes may write into each other's lines
    assert "4 ranks agree with the whole model" in done.stdout
    assert "4 ranks have the whole model's gradients" in done.stdout


@pytest.mark.night
@pytest.mark.slow
def test_two_nodes_work_as_written(tmp_path):
    """The line of the page in two terminals, at a port that is free."""
    text = (ROOT / "docs" / "collectives.md").read_text()
    (tmp_path / "train.py").write_text(re.search(r'^```python title="train.py"\n(.*?)^```', text, re.S | re.M)[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = re.search(r"^torchrun (.*train\.py)$", text, re.M)[1].replace(":29500", f":{port}").split()
    line = [sys.executable, "-m", "torch.distributed.run", *words]
    nodes = [subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        said = "".join(node.communicate(timeout=300)[0] for node in nodes)
    finally:
        for node in nodes:
            node.terminate()
    assert [node.returncode for node in nodes] == [0, 0], said
    for rank in range(4):
        losses = [float(v) for v in re.findall(rf"rank {rank} of 4, step \d: loss (\S+)", said)]
        assert len(losses) == 3


@pytest.mark.slow
def test_many_ranks_work_as_written(tmp_path):
    """The commands of the tutorial, on its model; those of 64 ranks on 8 without TAIR_WHOLE=1."""
    page = ROOT / "docs" / "tutorial" / "many_ranks.md"
    (tmp_path / "model.py").write_text(python_blocks(page)[0])
    commands = re.findall(r"^tair (ranks .+)$", page.read_text(), re.M)
    assert len(commands) == 3
    sound, faulty, large = (f"-m tair_debug.cli {c}".split() for c in commands)
    assert "4 ranks agree with the whole model" in warm.run(*sound, cwd=tmp_path).stdout
    found = warm.run(*faulty, cwd=tmp_path, check=False)
    assert found.returncode == 1
    told = re.search(r"^\[GE4073\].*\n  at .*:\d+ in forward", page.read_text(), re.M)[0]
    assert told.replace("/home/me", str(tmp_path)) in found.stdout
    whole = bool(os.environ.get("TAIR_WHOLE"))
    large = large if whole else [part.replace("tp=8,ep=8", "tp=4,ep=2") for part in large]
    assert f"{64 if whole else 8} ranks agree with the whole model" in warm.run(*large, cwd=tmp_path).stdout
    assert (tmp_path / "ranks.html").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{target} is missing"


def pages_of_the_site():
    """Every page that the navigation names, those that the build makes aside."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return {p for p in re.findall(r"[\w/]+\.md", nav) if not p.startswith("api/")}


def test_every_page_is_in_the_navigation():
    ours = {p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md") if ".zh." not in p.name}
    assert pages_of_the_site() == ours | {"CONTRIBUTING.md", "SECURITY.md"}


def test_every_page_is_there_in_chinese():
    places = {p: ROOT / p if p in site.COPIED else ROOT / "docs" / p for p in pages_of_the_site()}
    assert [p for p, path in places.items() if not path.with_suffix(".zh.md").exists()] == []
    assert {m for modules in site.API.values() for m in modules} == set(site.ABOUT)


def test_figures_have_chinese_words():
    """Every text of a figure that is a phrase of ours, and no figure is the same in both languages."""
    made = figures.made(ROOT)
    for name in ("pipeline", "a_pass", "coverage"):
        words = re.findall(r"<text[^>]*>([^<]+)</text>", made[f"{name}.zh"])
        assert made[f"{name}.zh"] != made[name]
        assert [w for w in words if re.search(r"[a-z]+ [a-z]+ [a-z]+", w)] == []


def test_the_search_of_a_language_finds_its_pages_only(tmp_path):
    """One index for each language; a page of the language reads it by its own base, and words of Chinese stay whole."""
    docs = [{"location": p, "title": "t", "text": "x"} for p in ("a.html", "a.html#b", "zh/a.html", "zh/d/c.html")]
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.json").write_text(json.dumps({"config": {"lang": ["en"]}, "docs": docs}))
    for place in ("a.html", "zh/a.html", "zh/d/c.html"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        base = "/".join([".."] * place.count("/")) or "."
        (tmp_path / place).write_text(f'<script id="__config">{{"base": "{base}", "search": "s.js"}}</script>')
    site.one_search_per_language(tmp_path)
    read = {n: json.loads((tmp_path / n / "search_index.json").read_text())["docs"] for n in ("search", "zh/search")}
    assert [d["location"] for d in read["search"]] == ["a.html", "a.html#b"]
    assert [d["location"] for d in read["zh/search"]] == ["a.html", "d/c.html"]
    script = (tmp_path / "zh/search/search_index.js").read_text()
    assert json.loads(script.removeprefix("var __index = "))["docs"] == read["zh/search"]
    bases = {
        p: re.search(r'"base": "([^"]*)"', (tmp_path / p).read_text())[1]
        for p in ("a.html", "zh/a.html", "zh/d/c.html")
    }
    assert bases == {"a.html": ".", "zh/a.html": ".", "zh/d/c.html": ".."}


def test_chinese_twins_are_up_to_date():
    for name in chinese.PAGES:
        english = (ROOT / "docs" / name).read_text(encoding="utf-8")
        twin = (ROOT / "docs" / name).with_suffix(".zh.md").read_text(encoding="utf-8")
        assert chinese.page(name, english) == twin
        assert len(twin.splitlines()) <= len(english.splitlines())
        assert twin.count("\n| ") == english.count("\n| ")


def test_a_text_without_translation_is_an_error():
    page = "# Options\n\n| Option | Allowed |\n|---|---|\n| `x` | a new word |\n| `y` | 'a', None |\n"
    with pytest.raises(ValueError, match="a new word"):
        chinese.page("options.md", page)
    assert "| `y` | 'a', None |" in chinese.page("options.md", page.replace("a new word", "a dict or None"))


@pytest.mark.parametrize("code_range", ["1xxx", "2xxx", "3xxx", "4xxx", "5xxx"])
def test_every_error_code_has_an_entry(code_range):
    """A code that the sources raise is explained, and no entry explains a code that nothing raises."""
    folders = ("packages/*/src", "packages/*/emulator/src")
    sources = "\n".join(p.read_text() for f in folders for p in ROOT.glob(f"{f}/**/*.py"))
    raised = set(re.findall(rf"\bGE{code_range[0]}\d{{3}}\b", sources))
    explained = set(re.findall(r"^## (GE\d{4})", (ROOT / "docs" / "errors" / f"{code_range}.md").read_text(), re.M))
    assert raised == explained
