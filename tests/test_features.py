"""Every documented feature that is not plainly there: it works by now, is refused with a reason, or is a choice.

``features.tsv`` has a row each. The proof of a row is a test (a file with ``::`` alone means all of it) or, for a
choice, the first cell of its row in docs/rationale.md.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import torch

import torchair
from torchair.config.options import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
ROWS = [line.split("\t") for line in (ROOT / "tests" / "features.tsv").read_text(encoding="utf-8").splitlines()[1:]]


@cache
def names_in(file):
    """Names of the tests in a file, without those that can never run."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not any("xfail" in ast.unparse(d) for d in node.decorator_list)
    }


@cache
def choices():
    return set(re.findall(r"^\| (.+?) \| ", (ROOT / "docs" / "rationale.md").read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize(("feature", "state", "proof"), ROWS, ids=[r[0][:60] for r in ROWS])
def test_row(feature, state, proof):
    word, _, code = state.partition(" ")
    if state == "choice":
        assert proof in choices()
        return
    assert state in ("works", "says why not", "refused") or (word == "refused" and re.fullmatch(r"GE\d{4}", code))
    file, _, name = proof.partition("::")
    assert name in names_in(file) or (not name and names_in(file))
    if code.startswith("GE"):
        entries = (ROOT / "docs" / "errors" / f"{code[2]}xxx.md").read_text(encoding="utf-8")
        assert f"## {code}" in entries


def compiled(fn):
    return torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True)


def test_printing_a_complex_tensor_is_refused():
    def fn(x):
        torchair.ops.npu_print(x)
        return x + 1

    with pytest.raises(Exception, match=r"(?s)GE2001.*print its real and imaginary part instead"):
        compiled(fn)(torch.ones(2, dtype=torch.complex64))


def test_scatter_of_complex128_is_refused():
    def fn(x, y):
        return torch.as_strided_scatter(x, y, (2,), (1,))

    with pytest.raises(Exception, match=r"(?s)GE2001.*test_features.py:\d+.*DT_COMPLEX128"):
        compiled(fn)(torch.ones(4, dtype=torch.complex128), torch.zeros(2, dtype=torch.complex128))


def test_exporting_while_compiling_is_refused():
    config = torchair.CompilerConfig()
    config.export.export_mode = True
    with pytest.raises(Exception, match=r"(?s)GE1008.*dynamo_export"):
        torch.compile(lambda x: x + 1, backend=torchair.get_npu_backend(compiler_config=config))(torch.ones(2))


def test_an_engine_without_its_libraries_names_them(monkeypatch):
    monkeypatch.setenv("TAIR_ENGINE", "cann")
    with pytest.raises(Exception, match=r"(?s)GE4002.*lib\w+\.so"):
        compiled(lambda x: x + 1)(torch.ones(2))


def test_device_options_say_so():
    """What only a device honours is shown so wherever it is not ignored anyway; no such option is called acting."""
    says = {e.option: e.why for e in torchair.CompilerConfig().explain(everything=True)}
    device = [row.path for row in OPTIONS if row.effective == "device"]
    assert {says[path] for path in device} == {"acts on a device only"}
    named = ("dump_config.quant_dumpable", "ge_config.aicore_num", "aoe_config.aoe_mode", "ge_config.oo_level")
    assert set(named) <= set(device)
