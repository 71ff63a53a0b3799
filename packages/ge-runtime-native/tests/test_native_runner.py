"""The native runner: its own tests on a fake CANN, with sanitizers, for both processors, and what it asks of CANN."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ge_graph import EngineError
from ge_graph.dtypes import DataType
from ge_runtime.cann import building, library

TESTS = Path(__file__).resolve().parent / "native"
pytestmark = pytest.mark.skipif(library.compiler() is None, reason="no C++ compiler here")
_CMAKE = pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake here")


def _configured(folder: Path, source: Path, *options: str) -> None:
    subprocess.run(["cmake", "-S", str(source), "-B", str(folder), *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(folder), "-j", "2"], check=True, capture_output=True)


@pytest.mark.night(rows=2)
@pytest.mark.slow
@_CMAKE
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_runner_on_the_fake(tmp_path: Path, sanitizers: str) -> None:
    """Without optimisation, which takes half the time; what is optimised is tested with the engines of devices."""
    _configured(tmp_path, TESTS, f"-DGEC_SANITIZE={sanitizers}", "-DCMAKE_BUILD_TYPE=Debug")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "lib64")}
    done = subprocess.run([str(tmp_path / "runner_test")], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.slow
@_CMAKE
@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-g++") is None, reason="no cross compiler here")
def test_runner_builds_for_arm(tmp_path: Path) -> None:
    toolchain = library.SOURCES / "aarch64-linux-gnu.cmake"
    _configured(tmp_path, library.SOURCES, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_BUILD_TYPE=Debug")
    header = (tmp_path / library.NAME).read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183  # EM_AARCH64


def _said(machine: str, *needs: str) -> str:
    return f"  Machine:      {machine}\n" + "".join(f"  0x0010:   Name: {n}  Flags: none  Version: 5\n" for n in needs)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (_said("Advanced Micro Devices X86-64", "GLIBC_2.2.5", "GLIBC_2.14"), "manylinux_2_17_x86_64"),
        (_said("Advanced Micro Devices X86-64", "GLIBC_2.34", "GLIBCXX_3.4.29"), "manylinux_2_34_x86_64"),
        (_said("AArch64", "GLIBC_2.17", "GLIBCXX_3.4.21", "CXXABI_1.3.9"), "manylinux_2_24_aarch64"),
        (_said("AArch64", "GLIBC_2.17", "GLIBCXX_3.4.30"), "manylinux_2_35_aarch64"),
        (_said("AArch64", "GLIBC_2.17", "CXXABI_1.3.13"), "manylinux_2_34_aarch64"),
        (_said("AArch64", "GLIBC_2.38", "GLIBCXX_3.4.32"), "manylinux_2_39_aarch64"),
        (_said("AArch64", "GLIBC_2.41", "GLIBCXX_3.4.30"), "manylinux_2_41_aarch64"),
        (_said("AArch64", "GLIBCXX_3.4.99"), None),
        (_said("RISC-V", "GLIBC_2.34"), None),
        ("", None),
    ],
)
def test_a_wheel_is_tagged_by_what_its_library_asks_for(said: str, expected: str | None) -> None:
    """The bounds are those of PEP 600's policies."""
    assert building.tag_of(said) == expected


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library made the way that first use makes it."""
    target = tmp_path_factory.mktemp("runner") / library.NAME
    library.build(target, library.compiler() or "")
    assert [p.name for p in target.parent.iterdir()] == [library.NAME]
    return target


@pytest.mark.slow
def test_nothing_of_cann_is_linked(built: Path) -> None:
    needed = subprocess.run(["readelf", "-d", str(built)], capture_output=True, text=True, check=True).stdout
    linked = [line.split("[")[1].rstrip("]\n") for line in needed.splitlines() if "(NEEDED)" in line]
    system = ("libstdc++", "libgcc", "libc.", "libm.", "libdl", "ld-")
    assert [name for name in linked if not name.startswith(system)] == []


@pytest.mark.slow
def test_the_tag_is_one_that_this_system_installs(built: Path) -> None:
    from packaging.tags import sys_tags

    assert building.tag(built) in {t.platform for t in sys_tags()}


@pytest.mark.slow
def test_every_declared_function_exists(built: Path) -> None:
    loaded = ctypes.CDLL(str(built))
    for name in (*library._SIGNATURES, "gec_error", "gec_version", "gec_graph_free", "gec_result_free"):
        assert getattr(loaded, name) is not None
    assert loaded.gec_version() == library.VERSION


def test_value_has_the_size_of_the_header() -> None:
    assert ctypes.sizeof(library.Value) == 8 + 8 + 4 * 4 + 25 * 8 + 8


def test_element_sizes_are_those_of_the_type_table() -> None:
    text = (library.SOURCES / "graph.cc").read_text()
    rows = text.split("constexpr uint8_t kBits[] = {")[1].split("}")[0]
    bits = [int(n) for n in rows.split(",")]
    assert {d.name: bits[d] for d in DataType} == {d.name: d.bits for d in DataType}
    assert all(b == 0 for n, b in enumerate(bits) if n not in set(DataType))


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'no such standard' >&2\nexit 1\n")
    fake.chmod(0o755)
    (tmp_path / "out").mkdir()
    with pytest.raises(EngineError, match="GE4010") as caught:
        library.build(tmp_path / "out" / library.NAME, str(fake))
    assert "no such standard" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_library_that_others_can_write_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shutil.copytree(library.SOURCES, tmp_path / "native", ignore=shutil.ignore_patterns(library.NAME))
    monkeypatch.setattr(library, "SOURCES", tmp_path / "native")  # as in a wheel that brings no library
    target = library.cached()
    target.parent.mkdir(parents=True)
    target.write_bytes(b"")
    target.parent.chmod(0o777)
    with pytest.raises(EngineError, match="can be written by others"):
        library._find()


def test_the_cache_depends_on_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = library.cached()
    shutil.copytree(library.SOURCES, tmp_path / "native")
    (tmp_path / "native" / "pool.cc").write_text("// another\n")
    monkeypatch.setattr(library, "SOURCES", tmp_path / "native")
    assert library.cached() != before
