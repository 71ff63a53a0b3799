"""A package of converters, installed as a wheel: found through its entry point, by a process that never names it."""

import os
import subprocess
import sys
import textwrap
import zipfile

import pytest

OPERATORS = """
import torch

LIBRARY = torch.library.Library("acme_kernels", "DEF")
LIBRARY.define("shifted(Tensor x, float by=1.0) -> Tensor")
LIBRARY.impl("shifted", lambda x, by=1.0: x + by, "CompositeExplicitAutograd")
"""
CONVERTERS = """
import torch

import acme_operators
from torchair.ge_concrete_graph import ge_apis as ge
from torchair.ge_concrete_graph.fx2ge_converter import register_fx_node_ge_converter


@register_fx_node_ge_converter(torch.ops.acme_kernels.shifted.default)
def convert_shifted(x, by=1.0, meta_outputs=None):
    return ge.Adds(x, value=by)
"""
PROGRAM = """
import torch
import acme_operators
import torchair

x = torch.randn(3, 4)
with torchair.record_compilation() as reports:
    got = torch.compile(lambda x: torch.ops.acme_kernels.shifted(x, 2.5) * 2, backend="npu", fullgraph=True)(x)
torch.testing.assert_close(got, (x + 2.5) * 2)
(report,) = reports
print("fine", report.ge_ops)
"""


def wheel(folder, converters=CONVERTERS):
    """A wheel as any build tool makes it."""
    name = "acme_converters-1.0"
    path = folder / f"{name}-py3-none-any.whl"
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: acme-converters\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[ge_converters.families]\nacme = acme_converters\n",
    }
    files = {"acme_operators.py": OPERATORS, "acme_converters.py": converters}
    files |= {f"{name}.dist-info/{k}": v for k, v in info.items()}
    files[f"{name}.dist-info/RECORD"] = "".join(f"{n},,\n" for n in [*files, f"{name}.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as out:
        for inside, text in files.items():
            out.writestr(inside, text)
    return path


def installed(folder, made):
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "-q"]
    done = subprocess.run([*command, "--target", target, made], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(target):
    path = os.pathsep.join([str(target), *(p for p in sys.path if p)])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


@pytest.mark.slow
def test_its_operator_converts_without_being_named(tmp_path):
    done = run(installed(tmp_path, wheel(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fine")


@pytest.mark.slow
def test_without_the_entry_point_the_operator_has_no_converter(tmp_path):
    target = installed(tmp_path, wheel(tmp_path))
    next(target.glob("*.dist-info/entry_points.txt")).unlink()
    done = run(target)
    assert done.returncode != 0
    assert "acme_kernels.shifted" in done.stderr
