"""What the packages need of each other is read from their pyproject.toml files; commands and CI go by that."""

from tools.affected import affected, owner
from tools.workspace import extras_by_name, packages, with_siblings

KNOWN = packages()


def test_all_packages_are_found_with_what_they_need():
    assert {p.label for p in KNOWN.values() if p.is_released} == {
        "ge-graph",
        "ge-converters",
        "ge-runtime-native",
        "tair-debug",
        "tair-export",
        "npu-backend",
        "ge-emulator",
    }
    assert set(extras_by_name(KNOWN["ge-graph"].needs)) == {"numpy", "protobuf"}
    assert {p.name for p in with_siblings("tair-export", KNOWN)} == {"tair-export", "ge-runtime-native", "ge-graph"}


def test_requirements_of_every_form_give_their_name():
    found = extras_by_name(["a", "b>=1,<2", "c[x, y]==1", "d ; sys_platform == 'linux'", "e~=1.0", "f!=2", "b[z]"])
    assert found == {"a": set(), "b": {"z"}, "c": {"x", "y"}, "d": set(), "e": set(), "f": set()}


def test_a_change_reaches_what_installs_it():
    everything = affected(None, KNOWN)
    assert affected(["packages/ge-graph/src/ge_graph/ir.py"], KNOWN) == everything
    assert set(affected(["packages/ge-converters/README.md"], KNOWN)) == set(everything) - {
        "ge-graph",
        "ge-runtime-native",
        "tair-export",
    }
    assert affected(["packages/ge-runtime-native/emulator/native/run.cpp"], KNOWN) == ["npu-backend", "ge-emulator"]
    assert affected(["testing/src/tair_testing/warm.py"], KNOWN) == everything
    assert affected(["tools/release.py"], KNOWN) == everything
    assert affected(["docs/device.md"], KNOWN) == []


def test_the_deepest_folder_owns_a_file():
    assert owner("packages/ge-runtime-native/emulator/README.md", KNOWN) == "ge-emulator"
    assert owner("packages/ge-runtime-native/README.md", KNOWN) == "ge-runtime-native"
    assert owner("docs/device.md", KNOWN) is None
