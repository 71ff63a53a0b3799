"""The libraries have what the binaries of a torch_npu wheel ask for, and lay data out as these binaries do."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from ge_emulator import build, launch
from ge_graph.errors import EngineError

# Names that belong to CANN, linked or looked up: C interfaces by prefix, C++ by namespace, bounded strings by suffix.
CANN = re.compile(
    r"(acl[a-z]*[A-Z]|Hccl[A-Z]|Hcom[A-Z]|rt[A-Z]|Msprof|Ge[A-Z]|_ZNK?2ge|_ZT[VI]N2ge|_ZNK?4gert)\w+|\w+_s"
)


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """Dynamic symbols of an x86_64 ELF file: those it defines, those it needs."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return set(), set()
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    defined: set[str] = set()
    needed: set[str] = set()
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM
            continue
        names = sections[section[6]]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index = struct.unpack_from("<IBBH", data, at)
            start = names[4] + name
            text = data[start : data.index(b"\0", start)].decode()
            if index == 0:
                if info >> 4 != 2:  # weak ones may stay empty
                    needed.add(text)
            else:
                defined.add(text)
    return defined, needed


@pytest.fixture(scope="module")
def home() -> Path:
    return build.build()


@pytest.fixture(scope="module")
def offered(home: Path) -> set[str]:
    return set().union(*(symbols(p)[0] for p in (home / "lib64").glob("lib*.so")))


def wheel_binaries() -> list[Path]:
    try:
        site = launch.find_torch_npu()
    except EngineError as error:
        if error.code != "GE4062":
            raise
        pytest.skip("torch_npu is not here; TAIR_TORCH_NPU names its wheel")
    folder = site if site is not None else Path(launch._installed_torch_npu()).parent
    return sorted((folder / "torch_npu").rglob("*.so"))


def test_every_symbol_that_the_wheel_links_is_there(offered: set[str]):
    binaries = wheel_binaries()
    assert len(binaries) >= 5
    own = set().union(*(symbols(b)[0] for b in binaries))
    missing = {
        f"{binary.name}: {name}"
        for binary in binaries
        for name in symbols(binary)[1]
        if CANN.fullmatch(name) and name not in offered and name not in own
    }
    assert not missing


def test_the_reader_sees_a_symbol_that_is_missing(offered: set[str]):
    needed = set().union(*(symbols(b)[1] for b in wheel_binaries()))
    linked = {n for n in needed if CANN.fullmatch(n)}
    assert len(linked) > 100
    assert "aclrtMalloc" in linked
    assert "aclrtNoSuchFunction" not in offered


def test_every_library_that_the_wheel_needs_is_there(home: Path):
    text = b"".join(b.read_bytes() for b in wheel_binaries() if "torchair" in str(b) or b.name == "libtorch_npu.so")
    for name in (
        "ascendcl",
        "acl_op_compiler",
        "ge_runner",
        "graph",
        "hccl",
        "acl_tdt_channel",
        "fmk_parser",
        "ascend_protobuf",
    ):
        assert f"lib{name}.so".encode() in text
        assert (home / "lib64" / f"lib{name}.so").is_file()


def test_layouts(tmp_path: Path):
    lines = ['#include "ge.h"']
    for line in (build.sources() / "abi_layout.tsv").read_text().splitlines():
        if line.startswith("#"):
            continue
        name, size, members = line.split("\t")
        lines.append(f'static_assert(sizeof({name}) == {size}, "{name}");')
        lines += [
            f'static_assert(offsetof({name}, {m}) == {at}, "{name}::{m}");'
            for m, at in (entry.split("@") for entry in members.split())
        ]
    # Order of virtual functions: what a caller's object has at these places of its table.
    lines.append("""
#include <cstring>
struct Probe : ge::Allocator {
  ~Probe() override {}
  ge::MemBlock* Malloc(size_t) override { return nullptr; }
  void Free(ge::MemBlock*) override {}
  ge::MemBlock* MallocAdvise(size_t, void*) override { return nullptr; }
};
template <typename F> ptrdiff_t slot(F function) {
  ptrdiff_t value;
  std::memcpy(&value, &function, sizeof value);
  return (value - 1) / 8;  // a pointer to a virtual member is its place in the table, plus one
}
int main() {
  ge::Allocator* allocator = new Probe;
  allocator->Free(nullptr);
  return slot(&ge::Allocator::Malloc) == 2 && slot(&ge::Allocator::Free) == 3 &&
         slot(&ge::Allocator::MallocAdvise) == 4 ? 0 : 1;
}""")
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join(lines))
    program = tmp_path / "layout"
    done = subprocess.run(
        [build.compiler(), "-std=c++17", f"-I{build.sources()}", str(source), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert subprocess.run([program], check=False, env=dict(os.environ)).returncode == 0
