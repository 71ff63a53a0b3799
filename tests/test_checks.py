"""The checks of the tree find what they look for, and the tree passes them."""

from pathlib import Path

from tools.checks import compiled_text


def test_nothing_else_in_the_packages_compiles_text(tmp_path: Path) -> None:
    assert compiled_text() == []
    texts = [
        "exec('1')",
        "import builtins\nbuiltins.eval('1')",
        "compile('1', '', 'eval')",
        "f = exec",
        "import runpy",
        "from code import interact",
        "from builtins import eval as e",
    ]
    for number, text in enumerate(texts):
        (tmp_path / "packages/p/src").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"packages/p/src/m{number}.py").write_text(text)
    assert len(compiled_text(tmp_path)) == 7
