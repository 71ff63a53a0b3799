"""Every line of a shell block in README and docs runs, or stands below with the reason why a test cannot run it."""

import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from typer.testing import CliRunner

import tair_debug.cli
import tair_export.run
import torchair
from tair_export.signing import sign

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("make", "pip", "python", "source", "tair", "tair-run")
REASONS = {
    "network": "downloads what is to be installed",
    "device": "asks for a device, or for the torch_npu wheel on the emulator",
    "whole": "runs everything there is; continuous integration or the named test does",
}
# line -> reason, and a file that runs the same: it has the text after the bar
NOT_HERE = {
    "make setup": ("whole", "Makefile|test: setup"),
    "make demo": ("whole", "tools/demo.py|def main"),
    "make test": ("whole", ".ci/run|for part in test:"),
    "source /usr/local/Ascend/ascend-toolkit/set_env.sh": ("device", "docs/device.md|With an NPU, CANN and torch_npu"),
    "make wheels": ("whole", "tests/test_release.py|build(package, folder"),
    "pip install --find-links dist torchair": ("network", "tests/test_release.py|--find-links dist"),
    "pip install --find-links dist 'torchair[emulator]'": ("network", "tests/test_release.py|--find-links dist"),
    "pip install --find-links dist tair-export": ("network", "tests/conftest.py|tair-export"),
    "pip install --find-links dist 'tair-export[cpu]'": ("network", "tools/release.py|--find-links"),
    "pip install ge-emulator 'torch_npu==2.13.*'": ("network", "Makefile|pip download -q --no-deps torch_npu"),
    "tair plan examples/plan/large_models.py:llama_70b --soc Ascend910B2": (
        "whole",
        "tests/test_plan_models.py|LARGE_CASES",
    ),
    "tair ranks model.py:make --mesh tp=2,ep=2": ("whole", "tests/test_docs.py|many_ranks"),
    "tair ranks model.py:make --mesh tp=2,ep=2 --shard forgets": ("whole", "tests/test_docs.py|many_ranks"),
    "tair ranks model.py:make --mesh tp=8,ep=8 --report --html ranks.html": ("whole", "tests/test_docs.py|many_ranks"),
    "tair emulate --check": ("device", "packages/ge-runtime-native/emulator/src/ge_emulator/launch.py|def check"),
    "tair emulate train.py --epochs 1": (
        "device",
        'packages/ge-runtime-native/emulator/tests/test_launch.py|"emulate", str(script), "--epochs", "1"',
    ),
    "tair emulate --profile prof my_script.py": (
        "device",
        "packages/ge-runtime-native/emulator/device_tests/test_profile.py|tair emulate --profile",
    ),
    "tair emulate -- pytest tests/": ("device", "Makefile|ge_emulator -- pytest"),
    "tair emulate --torch-npu torch_npu-2.13.0-*.whl script.py": (
        "device",
        "packages/ge-runtime-native/emulator/tests/test_launch.py|--torch-npu",
    ),
    "tair emulate --bundled-torchair script.py": ("device", "Makefile|ge_emulator --bundled-torchair"),
}
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)

    def forward(self, x):
        return torch.sigmoid(self.first(x)).sum(1)

def make():
    return Net(), torch.randn(3, 4)

make_model = make

def config():
    import torchair
    return torchair.CompilerConfig()
"""
ATC = "/usr/local/Ascend/ascend-toolkit/latest"


def lines_of(page):
    """Commands of the page's untagged and shell blocks, without what stands after them."""
    found = []
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        if kind not in ("", "sh", "bash", "shell", "console"):
            continue
        for line in block.splitlines():
            line = re.split(r"\s{3,}|\s+#", line.removeprefix("$ "))[0].strip()
            if line.split(" ")[0] in PROGRAMS:
                found.append(line)
    return found


PAGES = [
    p
    for p in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/**/*.md"))
    if p.name != "CHANGELOG.md"
]
LINES = sorted({line for page in PAGES for line in lines_of(page)})


def sign_as_the_page_says(folder):
    """``key.pem``, and signatures by it: one of ``saved``, one of ``released`` for a text."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    sign(folder / "saved", private)
    sign(folder / "released", private, text="resnet, release 7")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that the lines name."""
    folder = tmp_path_factory.mktemp("shell")
    for name in ("model.py", "my_model.py"):
        (folder / name).write_text(MODEL)
    shutil.copy(ROOT / "packages/ge-runtime-native/emulator/device_tests/scripts/custom_reg_op.h", folder)
    shutil.copy(ROOT / "tests/plan/training_profile.csv", folder / "op_summary.csv")

    class Two(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch._dynamo.reset()
        x = torch.randn(2, 4)
        for name in ("saved", "net_saved", "released"):
            torchair.CompiledModel.save_graph(Two(), (x, x), save_path=name)
        sign_as_the_page_says(folder)
        shutil.copy(next((folder / "saved").rglob("*.air")), folder / "graph.air")
        for name in ("x.npy", "y.npy"):
            np.save(folder / name, x.numpy())
        runner = CliRunner()
        assert runner.invoke(tair_debug.cli.app, ["dump", "model.py:make", "--type", "txt"]).exit_code == 0
        shutil.copy(next(folder.rglob("dynamo_*.txt")), folder / "graph.txt")
        linear = torch.nn.Linear(4, 2)
        for name in ("eager", "graph"):  # two recorded dumps
            (folder / name).mkdir()
            config = torchair.CompilerConfig()
            config.debug.data_dump.type, config.debug.data_dump.path = "npy", str(folder / name)
            torch._dynamo.reset()
            torch.compile(linear, backend=torchair.get_npu_backend(compiler_config=config))(x)
    return folder


def run(words):
    """Run a command in this process; exit code and what it said."""
    if words[0] == "tair-run":
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return tair_export.run.main(words[1:]), said.getvalue()
    if words[0] == "tair":
        tair_debug.cli._add_commands()
        done = CliRunner().invoke(tair_debug.cli.app, words[1:])
        return done.exit_code, f"{done.output}\n{done.exception or ''}"
    if words[0] == "make":
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    assert words[:2] == ["python", "-m"], words
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words[2:])
        try:
            runpy.run_module(words[2], run_name="__main__", alter_sys=False)
        except SystemExit as end:
            return int(end.code or 0), ""
    return 0, ""


def test_lines_are_found():
    assert len(LINES) > 25


@pytest.mark.parametrize("line", [x for x in LINES if x not in NOT_HERE])
def test_line(line, place, monkeypatch):
    monkeypatch.chdir(place)
    if ATC in line:  # an installation of CANN, of which its lists of kernels are read
        lists = place / "cann/opp/built-in/op_impl/ai_core/tbe/config/ascend910b"
        lists.mkdir(parents=True)
        port = {"name": "x", "paramType": "required", "dtype": "float", "format": "ND"}
        add = {"input0": port, "input1": {**port, "name": "y"}, "output0": {**port, "name": "z"}}
        (lists / "aic-ascend910b-ops-info.json").write_text(json.dumps({"Add": add}))
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        line = line.replace(ATC, str(place / "cann"))
    torch._dynamo.reset()
    code, said = run(shlex.split(line))
    allowed = (0, 1) if line.startswith(("tair doctor", "tair check")) else (0,)  # 1: something needs attention
    assert code in allowed, said


@pytest.mark.parametrize("line", NOT_HERE)
def test_what_is_not_run_has_its_reason(line):
    reason, where = NOT_HERE[line]
    file, _, text = where.partition("|")
    assert line in LINES, "no page says this any more"
    assert reason in REASONS
    assert text in (ROOT / file).read_text(encoding="utf-8")
