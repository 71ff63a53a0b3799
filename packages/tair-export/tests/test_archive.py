"""What lies on disk: names, checksums, atomic saves, damage."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ge_graph.errors import ArchiveError, GeError, GraphError
from tair_export import CompiledModel, archive, export, upgrade
from tair_export import manifest as manifests
from tair_export.export import write_export, write_graph
from tair_export.ranks import Rank

ONE = Rank(0, 1)
X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)


def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_inline_tree(tmp_path, make):
    write_graph(make().captured, tmp_path)
    assert set(files(tmp_path)) == {"compiled_graph.air", "compiled_graph.manifest.json"}


def test_tree_with_files(tmp_path, make, small_files):
    write_graph(make().captured, tmp_path)
    assert set(files(tmp_path)) == {
        "compiled_graph.air",
        "compiled_graph.manifest.json",
        "weights/layer.b",
        "weights/layer.w",
    }


def test_export_tree_of_ranks(tmp_path, make):
    for index in range(2):
        write_export(
            make(seed=index).captured, tmp_path, "mp_rank", atc_config=True, rank=Rank(index, 2), inline_bytes=0
        )
    assert set(files(tmp_path)) == {
        "mp_rank0.air",
        "mp_rank0.manifest.json",
        "mp_rank1.air",
        "mp_rank1.manifest.json",
        "model_relation_config.json",
        "numa_config.json",
        *(f"rank_{r}/{name}" for r in range(2) for name in ("dynamo.pbtxt", "layer.w", "layer.b")),
    }
    relation = json.loads((tmp_path / "model_relation_config.json").read_text())
    assert relation["deploy_config"][1] == {"submodel_name": "mp_rank1.air", "deploy_device_id_list": "0:0:1"}
    assert [
        i["item_id"]
        for i in json.loads((tmp_path / "numa_config.json").read_text())["cluster"][0]["cluster_nodes"][0]["item_list"]
    ] == [0, 1]
    for index in range(2):
        model = CompiledModel.load_graph(tmp_path, rank=Rank(index, 2))
        np.testing.assert_allclose(model(X)["y"], make(seed=index).expected(X), rtol=1e-5)


def test_file_constants_are_named_by_the_path_given(tmp_path, make, monkeypatch):
    from ge_graph import serde

    monkeypatch.chdir(tmp_path)
    write_export(make().captured, "exp", "net", rank=ONE, inline_bytes=0)
    graph = serde.from_bytes((tmp_path / "exp/net.air").read_bytes())
    assert {n.attr("file_path") for n in graph.nodes if n.op == "FileConstant"} == {"exp/layer.w", "exp/layer.b"}
    assert {n.name for n in graph.nodes if n.op == "FileConstant"} == {"layer.w", "layer.b"}
    assert [n.name for n in graph.inputs] == ["x"]
    assert 'op: "FileConstant"' in (tmp_path / "exp/dynamo.pbtxt").read_text()


def test_saving_again_gives_the_same_bytes(tmp_path, make, small_files):
    for folder in ("a", "b", "a"):
        write_graph(make(state=True).captured, tmp_path / folder)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert not list(tmp_path.glob("a/.staging*"))


def test_a_loaded_archive_is_written_again_byte_for_byte(tmp_path, make, small_files):
    from ge_graph import serde
    from tair_export.archive import open_archive, render, seal
    from tair_export.signature import from_json, to_json

    write_graph(make(state=True).captured, tmp_path)
    found = open_archive(tmp_path, ONE)
    data = bytes(found.data("compiled_graph.air"))
    assert serde.to_bytes(serde.from_bytes(data)) == data
    manifest = found.manifest
    body = {k: v for k, v in manifest.items() if k != "digest"}
    body["signature"] = to_json(from_json(body["signature"]))
    assert render(seal(body)) == found.path.read_bytes()


def test_other_files_stay_and_stale_weights_go(tmp_path, make, small_files):
    write_graph(make().captured, tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    changed = make(size=6)
    changed.captured.weights["p_w"] = changed.captured.weights["p_w"].__class__(
        "other", changed.captured.weights["p_w"].dtype, changed.w.shape, lambda: changed.w.reshape(-1).view(np.uint8)
    )
    write_graph(changed.captured, tmp_path)
    assert {"weights/other", "weights/layer.b", "mine.txt"} <= set(files(tmp_path))
    assert "weights/layer.w" not in files(tmp_path)


def test_shared_weights_are_one_file(tmp_path, make, small_files):
    made = make()
    first = made.captured.weights["p_w"]
    made.captured.weights = {
        "p_w": first.__class__(first.name, first.dtype, first.shape, first.data, "same"),
        "p_b": made.captured.weights["p_b"],
    }
    graph = made.captured.graph
    from ge_graph import building
    from ge_graph import ops as ge

    with building(graph):
        twin = ge.Data(index=3, dtype=first.dtype, shape=first.shape, node_name="p_tied")
        graph.outputs = [ge.Add(graph.outputs[0], ge.MatMulV2(graph.inputs[0].outputs[0], twin))]
    made.captured.weights["p_tied"] = first.__class__("tied", first.dtype, first.shape, first.data, "same")
    write_graph(made.captured, tmp_path)
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["layer.b", "layer.w"]
    np.testing.assert_allclose(CompiledModel.load_graph(tmp_path)(X)["y"], made.expected(X) + X @ made.w, rtol=1e-4)


@pytest.mark.parametrize(
    "names",
    [
        ["a.b", "a/b", "a_b", "A_B"],
        ["..", ".", "/etc/passwd", "../x"],
        ["dynamo.pbtxt", "n.air", "numa_config.json"],
        ["x" * 500, "x" * 501],
        ["é", "名"],
    ],
)
def test_file_names_are_safe_and_distinct(tmp_path, names):
    found = manifests.file_names(names, "weights")
    assert len({f.lower() for f in found.values()}) == len(names)
    for file in found.values():
        assert manifests.check_name(file, tmp_path) == file
        assert not manifests._RESERVED.fullmatch(file.removeprefix("weights/"))


def resealed(root, change):
    path = next(root.glob("*.manifest.json"))
    body = json.loads(path.read_text())
    change(body)
    body.pop("digest")
    body["digest"] = manifests.digest(body)
    path.write_bytes(archive.render(body))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "weights/../../secret", "a\\b", "", "weights//x", "C:x"])
def test_names_cannot_leave_the_archive(tmp_path, make, small_files, name):
    write_graph(make().captured, tmp_path / "a")
    (tmp_path / "secret").write_bytes(b"x" * 32)

    def change(body):
        body["files"][-1]["name"] = name
        body["weights"][-1]["file"] = name

    resealed(tmp_path / "a", change)
    with pytest.raises(ArchiveError, match="GE5024"):
        CompiledModel.load_graph(tmp_path / "a")


def test_links_cannot_leave_the_archive_unless_allowed(tmp_path, make, small_files):
    made = make()
    write_graph(made.captured, tmp_path / "a")
    (tmp_path / "a/weights/layer.w").rename(tmp_path / "elsewhere")
    (tmp_path / "a/weights/layer.w").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArchiveError, match="GE5024"):
        CompiledModel.load_graph(tmp_path / "a")
    model = CompiledModel.load_graph(tmp_path / "a", allow_outside=True)
    np.testing.assert_allclose(model(X)["y"], made.expected(X), rtol=1e-5)


def test_newer_formats_say_who_wrote_them(tmp_path, make):
    write_graph(make().captured, tmp_path)

    def change(body):
        body["version"] = upgrade.VERSION + 1
        body["writer"]["tair-export"] = "9.9"

    resealed(tmp_path, change)
    with pytest.raises(ArchiveError, match=r"GE5022.*written by tair-export 9\.9") as error:
        CompiledModel.load_graph(tmp_path)
    assert "install the tair-export that wrote it" in str(error.value)


def test_older_formats_are_upgraded_step_by_step(tmp_path, make, monkeypatch):
    """The chain itself: a version 1 archive read by a version 3 that renamed a key twice."""
    made = make()
    write_graph(made.captured, tmp_path)
    monkeypatch.setattr(upgrade, "VERSION", 3)
    monkeypatch.setitem(upgrade.STEPS, 1, lambda m: {**m, "middle": m["kind"]})
    monkeypatch.setitem(upgrade.STEPS, 2, lambda m: {**m, "kind": m["middle"] + "!"})
    found = archive.open_archive(tmp_path, ONE)
    assert (found.manifest["version"], found.manifest["kind"]) == (3, "graph!")
    np.testing.assert_allclose(CompiledModel.load_graph(tmp_path)(X)["y"], made.expected(X), rtol=1e-5)
    monkeypatch.delitem(upgrade.STEPS, 2)
    with pytest.raises(ArchiveError, match="GE5022"):
        archive.open_archive(tmp_path, ONE)


def test_fast_mode_sees_the_ends_and_full_mode_every_byte(tmp_path, make, small_files):
    write_graph(make(size=4096).captured, tmp_path)
    path = tmp_path / "weights/layer.w"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for mode in ("fast", "sizes", False):
        CompiledModel.load_graph(tmp_path, verify=mode)
    for mode in ("full", "auto"):
        with pytest.raises(ArchiveError, match=r"GE5023.*layer\.w"):
            CompiledModel.load_graph(tmp_path, verify=mode)
    data[len(data) // 2] ^= 1
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match="GE5023"):
        CompiledModel.load_graph(tmp_path, verify="fast")
    with pytest.raises(ArchiveError, match="GE5027"):
        CompiledModel.load_graph(tmp_path, verify="none")
    path.write_bytes(data[:-1])
    for mode in ("fast", "sizes", False):
        with pytest.raises(ArchiveError, match="GE502"):
            CompiledModel.load_graph(tmp_path, verify=mode)


def anonymous_kb():
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Anonymous")).split()[1])


def test_weights_are_mapped_not_read(tmp_path, make, small_files):
    write_graph(make(size=1 << 19).captured, tmp_path)  # 16 MB
    CompiledModel.load_graph(tmp_path, verify="fast")  # the engine and what it imports
    before = anonymous_kb()
    model = CompiledModel.load_graph(tmp_path, verify="fast")
    after = anonymous_kb()
    assert after - before < 8 << 10
    assert str(tmp_path / "weights/layer.w") in Path("/proc/self/maps").read_text(errors="surrogateescape")
    assert model.graph.node("layer.w").op == "Const"


@pytest.mark.parametrize("copy", [False, True])
def test_weights_beside_the_graph_take_no_room_in_its_message(tmp_path, make, small_files, monkeypatch, copy):
    made = make()
    write_graph(made.captured, tmp_path)
    monkeypatch.setattr("ge_graph.rules.limits.MAX_MODEL_BYTES", made.w.nbytes - 1)
    model = CompiledModel.load_graph(tmp_path, copy=copy)
    x = np.ones((3, made.w.shape[0]), "f4")
    np.testing.assert_allclose(model(x)["y"], made.expected(x), rtol=1e-5)


# --- a process killed at any moment ----------------------------------------------------------------------------------

WRITER = """
import sys, os, numpy as np
sys.path.insert(0, {tests!r})
from conftest import linear
import tair_export.weights as weights
from tair_export.export import write_graph
weights.GRAPH_INLINE_BYTES = 0
print("ready", flush=True)
seed = int(sys.argv[1])
while True:
    write_graph(linear(size=256, seed=seed % 2).captured, {root!r})
    seed += 1
"""


@pytest.mark.slow
def test_killed_writers_leave_the_old_archive_or_the_new(tmp_path, make, small_files):
    root = tmp_path / "a"
    write_graph(make(size=256, seed=0).captured, root)
    x = np.ones((1, 256), "f4")
    allowed = [make(size=256, seed=s).expected(x) for s in range(2)]
    rng = random.Random(0)
    seen = set()
    code = WRITER.format(tests=os.path.dirname(__file__), root=str(root))
    for number in range(40):
        if number >= 8 and seen == {0, 1}:
            break
        process = subprocess.Popen([sys.executable, "-c", code, str(number)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(rng.random() * 0.02 * (number + 1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        result = CompiledModel.load_graph(root, verify="full")(x)["y"]
        matches = [i for i, a in enumerate(allowed) if np.allclose(result, a, rtol=1e-4, atol=1e-4)]
        assert len(matches) == 1
        seen.add(matches[0])
    write_graph(make(size=256, seed=1).captured, root)
    assert not list(root.glob(".*"))
    assert seen == {0, 1}


def test_a_save_cut_short_at_any_system_call_is_old_or_new(tmp_path, make, small_files, monkeypatch):
    """Stop at the n-th rename, write or removal, for every n: after each the archive is whole."""
    root = tmp_path / "a"
    x = np.ones((1, 4), "f4")
    allowed = [make(seed=s).expected(x) for s in range(2)]

    class Stop(BaseException):
        pass

    outcomes = []
    for at in range(1, 200):
        write_graph(make(seed=0).captured, root)
        count = [0]

        def counted(real, count=count, at=at):
            def call(*args, **kwargs):
                count[0] += 1
                if count[0] >= at:
                    raise Stop
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "write"):
                patch.setattr(archive.os, name, counted(getattr(os, name)))
            patch.setattr(archive.shutil, "rmtree", counted(shutil.rmtree))
            try:
                write_graph(make(seed=1).captured, root)
                done = True
            except Stop:
                done = False
        result = CompiledModel.load_graph(root, verify="full")(x)["y"]
        outcomes.append(next(i for i, a in enumerate(allowed) if np.allclose(result, a, rtol=1e-4)))
        if done:
            break
    assert done
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {0, 1}


# --- damage ----------------------------------------------------------------------------------------------------------


def mutated(data, rng):
    data = bytearray(data)
    kind = rng.random()
    if kind < 0.6 and data:
        for _ in range(rng.choice((1, 1, 1, 4))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind < 0.8:
        del data[rng.randrange(len(data) + 1) :]
    elif kind < 0.9:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.randbytes(rng.randrange(1, 64))
    else:
        at = rng.randrange(len(data) + 1)
        data[at : at + 10] = b"\xff" * 10  # numbers as large as they get
    return bytes(data)


@pytest.mark.slow
def test_10000_damaged_files_are_refused(memory_path, make, small_files):
    """Any change of any file is an ArchiveError, in fast mode as in full mode: these files are all ends."""
    write_graph(make(state=True).captured, memory_path)
    original = files(memory_path)
    rng = random.Random(1)
    names = sorted(original)
    for number in range(10_000):
        name = names[number % len(names)]
        damaged = mutated(original[name], rng)
        if damaged == original[name]:
            continue
        (memory_path / name).write_bytes(damaged)
        with pytest.raises(ArchiveError):
            archive.open_archive(memory_path, ONE, verify="full" if number % 2 else "fast")
        (memory_path / name).write_bytes(original[name])
    archive.open_archive(memory_path, ONE)


@pytest.mark.slow
def test_2000_damages_with_correct_checksums_give_an_error_or_a_model(memory_path, make):
    """Whoever makes checksums fit can say anything; still no crash, no hang, no other exception."""
    import zlib

    from ge_graph.serde_write import checksum_entry
    from tair_export.load import read_graph

    write_graph(make(state=True).captured, memory_path)
    path = memory_path / "compiled_graph.air"
    manifest_path = memory_path / "compiled_graph.manifest.json"
    air, manifest = path.read_bytes(), json.loads(manifest_path.read_text())
    body, tail = air[: -len(checksum_entry(0))], len(checksum_entry(0))
    assert air[-tail:] == checksum_entry(zlib.crc32(body))
    rng = random.Random(2)
    signal.alarm(120)
    read = 0
    try:
        for number in range(2000):
            changed = json.loads(json.dumps(manifest))
            if number % 3:
                damaged = mutated(body, rng)
                damaged += checksum_entry(zlib.crc32(damaged))
            else:
                damaged = air
                scramble(changed, rng)
            edges = archive._Edges()
            edges.add(damaged)
            for entry in changed["files"] if isinstance(changed.get("files"), list) else []:
                if isinstance(entry, dict) and entry.get("name") == "compiled_graph.air":
                    import hashlib

                    entry.update(
                        bytes=len(damaged),
                        sha256=hashlib.sha256(damaged).hexdigest(),
                        edges=edges.hexdigest(len(damaged)),
                    )
            path.write_bytes(damaged)
            changed.pop("digest", None)
            changed["digest"] = manifests.digest(changed)
            manifest_path.write_bytes(archive.render(changed))
            try:
                read_graph(archive.open_archive(memory_path, ONE))
                read += 1
            except GeError:
                pass
    finally:
        signal.alarm(0)
    assert 0 < read < 1700


def scramble(value, rng):
    """Replace one value somewhere in a JSON object by another of some kind."""
    while True:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if isinstance(value[key], (dict, list)) and value[key] and rng.random() < 0.8:
            value = value[key]
            continue
        value[key] = rng.choice([None, -1, 1 << 70, "", "../x", "DT_BF16", [], {}, [[]], True, 1.5, 0])
        return


def test_wrong_types_are_refused(tmp_path, make, small_files):
    write_graph(make().captured, tmp_path)

    def change(body):
        body["weights"][1]["dtype"] = "DT_INT32"

    resealed(tmp_path, change)
    with pytest.raises(ArchiveError, match="GE5026"):
        CompiledModel.load_graph(tmp_path)

    def shape(body):
        body["weights"][1]["dtype"] = "DT_FLOAT"
        body["weights"][1]["shape"] = [8, 4]

    resealed(tmp_path, shape)
    with pytest.raises(ArchiveError, match="GE5026"):
        CompiledModel.load_graph(tmp_path)

    def signature(body):
        body["weights"][1]["shape"] = [4, 8]
        body["signature"]["inputs"][0]["dtype"] = "DT_DOUBLE"

    resealed(tmp_path, signature)
    with pytest.raises(ArchiveError, match="GE5021"):
        CompiledModel.load_graph(tmp_path)


def test_cycles_are_refused(tmp_path, make, monkeypatch):
    made = make()
    relu = next(n for n in made.captured.graph.nodes if n.op == "Relu")
    relu.control.append(next(n for n in made.captured.graph.nodes if n.op == "Add"))
    with monkeypatch.context() as patched:
        patched.setattr(export, "verify", lambda graph: None)  # a writer that looks at nothing: all checksums fit
        write_graph(made.captured, tmp_path)
    with pytest.raises(ArchiveError, match="GE5016"):
        CompiledModel.load_graph(tmp_path)


def test_a_graph_that_breaks_a_rule_is_not_written(tmp_path, make):
    made = make()
    relu = next(n for n in made.captured.graph.nodes if n.op == "Relu")
    relu.control.append(next(n for n in made.captured.graph.nodes if n.op == "Add"))
    with pytest.raises(GraphError, match="GE3031.*waits for"):
        write_graph(made.captured, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("size", [1 << 60, -1, True, "12"])
def test_impossible_sizes_are_refused(tmp_path, make, size):
    write_graph(make().captured, tmp_path)
    resealed(tmp_path, lambda body: body["files"][0].update(bytes=size))
    with pytest.raises(ArchiveError, match="GE5025"):
        CompiledModel.load_graph(tmp_path)


def test_a_huge_manifest_is_not_read(tmp_path, make):
    write_graph(make().captured, tmp_path)
    with open(tmp_path / "compiled_graph.manifest.json", "r+b") as handle:
        handle.truncate(manifests.MANIFEST_BYTES + 1)
    with pytest.raises(ArchiveError, match="GE5025"):
        CompiledModel.load_graph(tmp_path)


def test_deep_nesting_is_refused(tmp_path, make):
    write_graph(make().captured, tmp_path)
    (tmp_path / "compiled_graph.manifest.json").write_text("[" * 100_000)
    with pytest.raises(ArchiveError, match="GE5021"):
        CompiledModel.load_graph(tmp_path)


def test_missing_archives_say_what_is_there(tmp_path, make):
    with pytest.raises(ArchiveError, match="no such file or folder"):
        CompiledModel.load_graph(tmp_path / "nothing")
    with pytest.raises(ArchiveError, match="no archive in this folder"):
        CompiledModel.load_graph(tmp_path)
    (tmp_path / "x.air").write_bytes(b"")
    with pytest.raises(ArchiveError, match="load_air"):
        CompiledModel.load_graph(tmp_path)
    write_graph(make().captured, tmp_path, Rank(0, 2))
    with pytest.raises(ArchiveError, match="rank 0 of 1"):
        CompiledModel.load_graph(tmp_path, rank=ONE)
    assert (tmp_path / "rank_0/compiled_graph0.air").exists()
    for path in (tmp_path, tmp_path / "rank_0/compiled_graph0.air"):
        assert CompiledModel.load_graph(path, rank=Rank(0, 2))(X)["y"].shape == (3, 8)


def test_no_pickle_in_the_package():
    import tair_export

    root = os.path.dirname(tair_export.__file__)
    for name in os.listdir(root):
        if name.endswith(".py"):
            text = Path(root, name).read_text()
            assert "import pickle" not in text
            assert "eval(" not in text
            assert "allow_pickle=True" not in text


# --- many ranks ------------------------------------------------------------------------------------------------------


def save_ranks(root, make, count, same=1):
    """Archives of ``count`` ranks, of which ``same`` after one another have equal weights."""
    for index in range(count):
        write_graph(make(seed=index // same).captured, root, Rank(index, count))


@pytest.fixture
def no_inline(monkeypatch):
    monkeypatch.setattr(export.weight_files, "RANKS_INLINE_BYTES", 0)


def test_equal_weights_of_eight_ranks_are_one_file(tmp_path, make, no_inline):
    """What lies on the disk is each different weight once, and a graph and a manifest for each rank."""
    save_ranks(tmp_path / "own", make, 8)
    save_ranks(tmp_path / "same", make, 8, same=8)
    save_ranks(tmp_path / "half", make, 8, same=4)
    stored = {p.name: p for p in (tmp_path / "half" / "weights").iterdir()}
    assert len(stored) == 4
    assert all(hashlib.sha256(p.read_bytes()).hexdigest() == name for name, p in stored.items())
    one = 4 * (4 * 8 + 8)  # bytes of the weights of one rank
    for folder, count in (("own", 8), ("same", 1), ("half", 2)):
        assert sum(p.stat().st_size for p in (tmp_path / folder / "weights").iterdir()) == count * one
    for index in range(8):
        model = CompiledModel.load_graph(tmp_path / "half", rank=Rank(index, 8))
        np.testing.assert_allclose(model(X)["y"], make(seed=index // 4).expected(X), rtol=1e-5)


def test_a_folder_of_ranks_may_be_moved(tmp_path, make, no_inline):
    save_ranks(tmp_path / "a", make, 2, same=2)
    (tmp_path / "a").rename(tmp_path / "b")
    for index in range(2):
        np.testing.assert_allclose(
            CompiledModel.load_graph(tmp_path / "b", rank=Rank(index, 2))(X)["y"], make().expected(X), rtol=1e-5
        )


@pytest.mark.parametrize("verify", [True, "fast", "auto"])
def test_a_shared_weight_that_was_changed_or_is_missing_is_refused_on_every_rank(tmp_path, make, no_inline, verify):
    save_ranks(tmp_path, make, 2, same=2)
    weight = max((tmp_path / "weights").iterdir(), key=lambda p: p.stat().st_size)
    whole = weight.read_bytes()
    for damage in (bytes([whole[0] ^ 1]) + whole[1:], whole[:-4], None):
        weight.unlink() if damage is None else weight.write_bytes(damage)
        for index in range(2):
            with pytest.raises(ArchiveError, match=rf"GE5023.*{weight.name}"):
                CompiledModel.load_graph(tmp_path, rank=Rank(index, 2), verify=verify)


def test_a_shared_weight_goes_with_the_last_rank_that_lists_it(tmp_path, make, no_inline):
    """A rank that is saved anew leaves what the others need."""
    save_ranks(tmp_path, make, 2, same=2)
    first = {p.name for p in (tmp_path / "weights").iterdir()}
    write_graph(make(seed=5).captured, tmp_path, Rank(0, 2))
    both = {p.name for p in (tmp_path / "weights").iterdir()}
    assert first < both
    np.testing.assert_allclose(
        CompiledModel.load_graph(tmp_path, rank=Rank(1, 2))(X)["y"], make().expected(X), rtol=1e-5
    )
    manifest = tmp_path / "rank_0" / "compiled_graph0.manifest.json"
    kept = manifest.read_bytes()
    manifest.write_bytes(b"{")  # nobody knows what it lists
    write_graph(make(seed=5).captured, tmp_path, Rank(1, 2))
    assert {p.name for p in (tmp_path / "weights").iterdir()} == both
    manifest.write_bytes(kept)
    write_graph(make().captured, tmp_path, Rank(1, 2))
    write_graph(make(seed=5).captured, tmp_path, Rank(1, 2))
    assert {p.name for p in (tmp_path / "weights").iterdir()} == both - first
    for index in range(2):
        np.testing.assert_allclose(
            CompiledModel.load_graph(tmp_path, rank=Rank(index, 2))(X)["y"], make(seed=5).expected(X), rtol=1e-5
        )


def test_small_weights_of_ranks_are_part_of_their_graphs(tmp_path, make):
    save_ranks(tmp_path, make, 2)
    assert not (tmp_path / "weights").exists()


def test_states_of_ranks_are_shared_too(tmp_path, make, no_inline):
    """They begin alike, and each process has its own."""
    for index in range(2):
        write_graph(make(state=True).captured, tmp_path, Rank(index, 2))
    assert len([*(tmp_path / "weights").iterdir()]) == 3
    models = [CompiledModel.load_graph(tmp_path, rank=Rank(index, 2)) for index in range(2)]
    models[0](X)
    np.testing.assert_allclose(models[1](X)["y"], make(state=True).expected(X, 1), rtol=1e-5)


def test_equal_weights_of_one_rank_are_one_file(tmp_path, make, no_inline):
    captured = make().captured
    copy = captured.weights["p_b"]
    captured.weights = {
        **captured.weights,
        "p_b": replace(copy, data=lambda: np.zeros(32, np.uint8)),
        "p_w": replace(captured.weights["p_w"], data=lambda: np.zeros(128, np.uint8)),
    }
    write_graph(captured, tmp_path, Rank(0, 2))
    CompiledModel.load_graph(tmp_path, rank=Rank(0, 2))
    assert len([*(tmp_path / "weights").iterdir()]) == 2, "of other sizes"
