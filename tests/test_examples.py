"""The examples run as their headers say, and what they show as generated is what the generator makes."""

from pathlib import Path

import pytest

from tair_testing import warm

ROOT = Path(__file__).resolve().parent.parent
CUSTOM = ROOT / "examples" / "example_custom_op_register"


def run(*command, cwd):
    return warm.run(*command, cwd=cwd).stdout


@pytest.mark.slow
@pytest.mark.parametrize("script", ["example_custom_op_register_in_one_file.py", "example_use_import_new_custom_op.py"])
def test_custom_op_examples(script):
    assert "equals eager" in run(script, cwd=CUSTOM)


@pytest.mark.slow
def test_the_first_example():
    assert run("example.py", cwd=ROOT / "examples") == "equals eager\n"


def test_generated_wrappers_are_up_to_date(tmp_path):
    name = "auto_generated_ge_raw_custom_ops"
    (tmp_path / "custom_reg_op.h").write_bytes((CUSTOM / "custom_reg_op.h").read_bytes())
    run("-m", "ge_graph.codegen", "custom_reg_op.h", "-o", f"{name}.py", cwd=tmp_path)
    for suffix in (".py", ".pyi", ".jsonl"):
        assert (tmp_path / (name + suffix)).read_text() == (CUSTOM / (name + suffix)).read_text()


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize(("more", "starts"), [([], (2, 0)), (["--experts"], (2,)), (["--captured"], (2, 0))])
def test_serving(more, starts, tmp_path):
    """Tokens equal eager's, and the second start traces nothing."""
    serve = ROOT / "examples" / "serving"
    for traced in starts:
        out = run("serve.py", "--cache-dir", str(tmp_path), *more, cwd=serve)
        assert "every answer equals eager" in out
        assert f"functions traced: {traced}" in out
