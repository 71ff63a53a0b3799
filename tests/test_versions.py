"""What is said of versions of torch and Python comes from one place, and holds for the torch that is here."""

import ctypes
import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from ge_converters.base import torch_versions
from tools import environments, matrix, metadata, standins, torch_names, workspace

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(torch.__file__).resolve().parent.parent


def test_every_package_claims_the_same_versions():
    torch_bounds, pythons = metadata.claimed()
    for package in workspace.packages().values():
        text = (ROOT / package.folder / "pyproject.toml").read_text()
        assert metadata.written(text, torch_bounds, pythons) == text
        assert f'requires-python = ">={pythons[0]}"' in text
        for version in pythons:
            assert f'"Programming Language :: Python :: {version}"' in text
    assert any("torch" in r for r in importlib.metadata.requires("torchair"))


def test_another_claim_would_be_seen():
    text = 'requires-python = ">=3.9"\nclassifiers = ["Programming Language :: Python :: 3.9", "A"]\nx = ["torch>=1"]\n'
    assert metadata.written(text, ">=2.7,<2.16", ["3.10"]) == (
        'requires-python = ">=3.10"\nclassifiers = [\n    "Programming Language :: Python :: 3.10",\n    "A",\n]\n'
        'x = ["torch>=2.7,<2.16"]\n'
    )


def test_the_bounds_are_read_from_the_metadata():
    oldest, beyond = torch_versions.bounds()
    assert metadata.claimed()[0] == f">={oldest},<{beyond}"
    assert torch_versions.untested(torch.__version__) == ""
    assert "older than" in torch_versions.untested("2.0.1")
    assert "newer than" in torch_versions.untested(f"{beyond}.0.dev20300101+cpu")


def test_the_table_of_versions_has_its_pages_and_reasons():
    assert matrix.problems(matrix.rows()) == []


def test_a_row_without_a_reason_is_seen():
    table = [{**row, "note": "", "result": "failed"} for row in matrix.rows()[:1]]
    assert any("has no reason" in line for line in matrix.problems(table))


def test_the_oldest_and_the_newest_torch_are_tested():
    rows = [{"python": "3.11", "torch": v, "torch_npu": ""} for v in ("2.10.0", "2.9.1", "2.15.0")]
    rows.append({"python": "3.11", "torch": "2.8.0", "torch_npu": "2.8.0.post5"})
    assert matrix.ends(rows) == ["3.11/2.9.1", "3.11/2.15.0"]


def test_a_torch_that_cannot_be_fetched_is_one_line(monkeypatch, tmp_path):
    """Whether pip refuses or never ends, the row is red with the reason, and the environment is gone."""
    monkeypatch.setattr(environments, "BUILD", tmp_path)
    real, row = subprocess.run, dict.fromkeys(matrix.COLUMNS, "") | {"python": "3.11", "torch": "2.7.1"}

    def answers(command, **options):
        if "venv" in command:
            return None
        if "download" in command:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return real(command, **options)

    monkeypatch.setattr(environments.subprocess, "run", answers)
    (wrong,) = matrix.run(row, [], (), again=False, keep=False)
    assert "cannot be installed: pip download torch==2.7.1 did not end within" in wrong
    assert (row["result"], row["note"]) == ("failed", wrong)
    assert not list(tmp_path.glob("3.11-*"))


def test_every_expected_failure_has_its_reason_and_its_tests():
    files = {Path(test.split("::")[0]).stem for test in (*matrix.SUITE, *matrix.ENDS, *matrix.NPU)}
    for gap in matrix.gaps():
        assert gap.reason
        assert gap.tests.split("::")[0] in files


def test_failures_are_judged_by_the_table():
    gap = matrix.Gap("test_a::test_one", "", "2.9", "torch has no such thing")
    assert gap.holds_for("2.8.0")
    assert not gap.holds_for("2.10.0")

    def judged(passed: tuple[str, ...], failed: tuple[str, ...], gaps: list[matrix.Gap]) -> tuple[list[str], list[str]]:
        return matrix.judge(environments.Outcome(1, passed, failed, ""), gaps)

    one = ("test_a::test_one[x]", "test_a::test_one[y]")
    assert judged((), one, [gap]) == ([], ["2 tests: torch has no such thing"])
    assert judged((), one, []) == (list(one), [])
    wrong, known = judged(one, (), [gap])
    assert (len(wrong), known) == (1, [])
    assert "passes, against its row" in wrong[0]
    assert judged(("test_a::test_two", "test_b::test_one"), (), [gap]) == ([], [])


def test_a_report_of_pytest_is_read(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_good(): pass\n@pytest.mark.parametrize('x', ['a - b', 'c'])\n"
        "def test_bad(x): assert x == 'c'\n@pytest.mark.skip\ndef test_not_run(): pass\n"
    )
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "--import-mode=importlib", f"--junitxml={report}", str(tmp_path)]
    assert subprocess.run(command, capture_output=True).returncode == 1
    passed, failed = environments.read_report(report)
    assert set(passed) == {"test_it::test_good", "test_it::test_bad[c]"}
    assert set(failed) == {"test_it::test_bad[a - b]", "test_broken"}


def test_private_names_of_torch_are_in_their_files_and_in_this_torch():
    assert torch_names.outside(torch_names.uses()) == []
    assert torch_names.read_elsewhere() == []
    assert torch_names.problems(torch_names.Source(HERE)) == []


def test_a_name_that_vanished_is_seen(tmp_path):
    wheel = tmp_path / "torch-9.9.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch/version.py", "__version__ = '9.9.0'\n")
        archive.writestr("torch/_dynamo/source.py", "class LocalSource:\n    local_name: str\n")
    source = torch_names.Source(wheel)
    assert source.has("torch._dynamo.source.LocalSource.local_name")
    assert not source.has("torch._dynamo.source.GlobalSource")
    assert any("torch 9.9.0 has no torch._guards.TracingContext" in line for line in torch_names.problems(source))


def test_a_private_name_elsewhere_is_seen(tmp_path):
    module = tmp_path / "packages" / "p" / "src" / "m.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import torch\nfrom torch._guards import TracingContext as T\nx = T.get\ny = torch.ops.aten._foo\n"
    )
    found = torch_names.uses(tmp_path)
    assert set(found) == {"torch._guards.TracingContext", "torch._guards.TracingContext.get"}
    assert torch_names.outside(found)[0].startswith("packages/p/src/m.py:2: torch._guards.TracingContext")


def test_a_cpu_build_needs_no_stand_ins():
    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    assert standins.make(HERE) == []


def test_a_library_of_cuda_is_stood_in_for(tmp_path):
    """A library that asks for a version of symbols of another one loads without it, and hears of no device."""
    folder = tmp_path / "torch" / "lib"
    folder.mkdir(parents=True)

    def build(name: str, code: str, *options: str) -> Path:
        (tmp_path / "code.c").write_text(code)
        command = ["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(tmp_path / "code.c"), *options]
        subprocess.run(command, check=True)
        return folder / name

    (tmp_path / "map").write_text("libcudart.so.12 { global: cudaGetDeviceCount; };")
    real = build(
        "libcudart.so.12",
        "int cudaGetDeviceCount(void) { return 0; }",
        "-Wl,-soname,libcudart.so.12",
        f"-Wl,--version-script={tmp_path / 'map'}",
    )
    code = "int cudaGetDeviceCount(void); int count(void) { return cudaGetDeviceCount(); }"
    user = build("libuser.so", code, f"-L{folder}", "-l:libcudart.so.12", "-Wl,-rpath,$ORIGIN")
    real.unlink()
    with pytest.raises(OSError, match=r"libcudart\.so\.12"):
        ctypes.CDLL(str(user))
    assert standins.make(tmp_path) == ["libcudart.so.12"]
    assert ctypes.CDLL(str(user)).count() == standins.NO_DEVICE


def test_settings_of_cuda_leave_their_names_to_other_devices(tmp_path):
    library = tmp_path / "torch" / "lib" / "libc10_cuda.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"pinned_reserve_s\0_segment_size_mb\0rest")
    standins.free_settings(tmp_path)
    assert library.read_bytes() == b"pinned_reserve_s\0_segment_size_mB\0rest"


def test_an_attribute_that_some_torch_lacks_is_seen_elsewhere(tmp_path):
    module = tmp_path / "packages" / "p" / "src" / "m.py"
    module.parent.mkdir(parents=True)
    module.write_text("def f(tx):\n    return tx.output.import_sources\n")
    assert torch_names.read_elsewhere(tmp_path) == ["packages/p/src/m.py:2: import_sources"]


def test_packages_of_cuda_are_not_asked_of_pip(tmp_path):
    metadata_file = tmp_path / "torch-2.15.0.dist-info" / "METADATA"
    metadata_file.parent.mkdir()
    needed, foreign = (
        ["Name: torch", "Requires-Dist: sympy>=1"],
        ["Requires-Dist: nvidia-nccl", "Requires-Dist: triton"],
    )
    lines = [*needed, *foreign]
    metadata_file.write_text("\n".join(lines) + "\n")
    standins.forget_cuda(tmp_path)
    assert metadata_file.read_text().splitlines() == needed
