"""The checks of the tree find what they look for, and the tree passes them."""

from pathlib import Path

from tools.checks import compiled_text, one_word_one_class


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


def test_a_name_of_a_class_stands_once(tmp_path):
    assert one_word_one_class() == []
    for package in ("a", "b"):
        folder = tmp_path / "packages" / package / "src"
        folder.mkdir(parents=True)
        (folder / "m.py").write_text("class Plan:\n    pass\n\n\nclass _Own:\n    pass\n")
    (found,) = one_word_one_class(tmp_path)
    assert found.startswith("Plan: packages/a/src/m.py:1, packages/b/src/m.py:1")
