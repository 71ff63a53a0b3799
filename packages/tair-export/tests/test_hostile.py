"""Whatever a file says, it is only data; whatever the system refuses, the error is ours and nothing is lost."""

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from ge_graph import DataType, Graph, building, printer, python_source, serde, txt, wire
from ge_graph import ops as ge
from ge_graph.errors import ArchiveError, GeError
from ge_graph.pbtxt import to_pbtxt
from ge_graph.python_reader import run_py
from ge_graph.verify import VerifyError, verify
from tair_export import CompiledModel, archive, load_air, mapping, read_air
from tair_export.export import CapturedModel, write_export, write_graph
from tair_export.ranks import Rank
from tair_export.signature import Input, Output, Signature

ONE = Rank(0, 1)
X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)
EVIL = "n\n    pass\nimport os; open('owned', 'w')\ndef program(i0, *a):\n    #"


def hostile(name=EVIL):
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(3, 4), node_name="x")
        graph.outputs = [ge.Relu(x, node_name=name)]
    return graph


def test_a_hostile_name_is_only_data_everywhere(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.WARNING, "tair_export")
    graph = hostile()
    with pytest.raises(VerifyError, match="GE3039"):
        verify(graph)
    (tmp_path / "evil.air").write_bytes(serde.to_bytes(graph))
    (tmp_path / "evil.txt").write_text(txt.to_txt(graph))
    for name in ("evil.air", "evil.txt"):
        model = load_air(name)
        for _ in range(3):
            np.testing.assert_array_equal(model(X), np.maximum(X, 0))
    assert "repaired" in caplog.text
    assert "\nimport os" not in caplog.text
    source = python_source.to_py(graph)
    assert serde.to_bytes(run_py(source)) == serde.to_bytes(graph)
    printer.to_text(graph), to_pbtxt(graph)
    again = read_air("evil.air")
    shape = (Input("x", "tensor", DataType.DT_FLOAT, (3, 4)),), (Output("tensor", 0, DataType.DT_FLOAT, (3, 4)),)
    contract = Signature({"tuple": ["*"]}, {"dict": []}, ("x",), "*", *shape, (0,))
    write_graph(CapturedModel(again, contract, {}), "again")
    np.testing.assert_array_equal(CompiledModel.load_graph("again")(X), np.maximum(X, 0))
    assert not (tmp_path / "owned").exists()


def test_weights_with_hostile_names_are_saved_under_good_ones(tmp_path, make, small_files):
    made = make()
    made.captured.weights["p_w"] = replace(made.captured.weights["p_w"], name=EVIL)
    made.captured.weights["p_b"] = replace(made.captured.weights["p_b"], name="x")  # the name of the input
    write_graph(made.captured, tmp_path)
    model = CompiledModel.load_graph(tmp_path)
    np.testing.assert_allclose(model(X)["y"], made.expected(X), rtol=1e-5)


# --- saving ----------------------------------------------------------------------------------------------------------


def nothing_left(root):
    left = [p for p in root.rglob("*") if "staging" in p.name]
    assert not left
    return True


@pytest.mark.parametrize("code", ["EMFILE", "ENOSPC", "EACCES", "ENAMETOOLONG"])
@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_refusals_of_the_system_end_the_export(tmp_path, make, small_files, monkeypatch, call, code):
    """A weight file that could not be opened made the export wait for ever."""
    write_graph(make(seed=1).captured, tmp_path)
    before = CompiledModel.load_graph(tmp_path)(X)["y"]
    real, count = getattr(os, call), [0]

    def fail(*args, **kwargs):
        count[0] += 1
        if count[0] > 3:
            raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(archive.os, call, fail)
        worker_error = []

        def work():
            try:
                write_graph(make(seed=2).captured, tmp_path)
            except Exception as error:  # noqa: BLE001
                worker_error.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "the export hangs"
    if worker_error:
        assert isinstance(worker_error[0], ArchiveError)
        assert "GE5033" in str(worker_error[0])
        assert code in str(worker_error[0])
        assert worker_error[0].next
    write_graph(make(seed=1).captured, tmp_path)
    np.testing.assert_array_equal(CompiledModel.load_graph(tmp_path)(X)["y"], before)
    assert nothing_left(tmp_path)


def test_a_full_disk_is_our_error(tmp_path, make, small_files):
    code = f"""
import resource, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from conftest import linear
from tair_export.export import write_graph
from ge_graph.errors import ArchiveError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # it would be cut short
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    write_graph(linear().captured, {str(tmp_path)!r})
except ArchiveError as error:
    assert "GE5033" in str(error) and "EFBIG" in str(error), error
    print("ours")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "ours", done.stderr
    assert not any(tmp_path.iterdir())


def test_threads_save_into_one_folder(tmp_path, make, small_files):
    failed = []

    def work(seed):
        try:
            for _ in range(5):
                write_graph(make(seed=seed).captured, tmp_path)
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert not failed
    result = CompiledModel.load_graph(tmp_path)(X)["y"]
    assert any(np.allclose(result, make(seed=seed).expected(X), rtol=1e-5) for seed in range(4))
    assert nothing_left(tmp_path)


def manifest_of(root, **changes):
    path = root / f"compiled_graph{archive.SUFFIX}"
    found = json.loads(path.read_text())
    for key in ("digest", "format", "version"):
        found.pop(key)
    path.write_bytes(archive.render(archive.seal({**found, **changes})))
    return found


def test_an_old_manifest_cannot_make_saving_delete(tmp_path, make, small_files):
    root, outside = tmp_path / "saved", tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    write_graph(make().captured, root)
    (root / "link").symlink_to(outside)
    (root / "notes.txt").write_text("mine too")
    extra = [
        {"bytes": 4, "edges": "", "name": "link/mine", "sha256": ""},
        {"bytes": 8, "edges": "", "name": "notes.txt", "sha256": ""},
    ]
    found = manifest_of(root)
    manifest_of(root, files=[*found["files"], *extra])
    write_graph(make(seed=3).captured, root)
    assert (outside / "mine").read_text() == "mine"
    assert (root / "notes.txt").read_text() == "mine too"


def test_nothing_is_written_behind_a_link(tmp_path, make, small_files):
    root, outside = tmp_path / "saved", tmp_path / "outside"
    outside.mkdir(), root.mkdir()
    (root / "weights").symlink_to(outside)
    with pytest.raises(ArchiveError, match="GE5034"):
        write_graph(make().captured, root)
    assert not any(outside.iterdir())
    assert nothing_left(root)


@pytest.mark.parametrize("path", [b"caf\xe9", "a\0b", 3, None, "x" * 300], ids=["bytes", "nul", "int", "none", "long"])
def test_odd_paths(tmp_path, make, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    try:
        write_export(make().captured, path, "net", rank=ONE, inline_bytes=0)
    except GeError:
        with pytest.raises(GeError):
            CompiledModel.load_graph(path, rank=ONE)
        return
    np.testing.assert_allclose(CompiledModel.load_graph(path, rank=ONE)(X)["y"], make().expected(X), rtol=1e-5)


def test_a_working_directory_that_is_gone(tmp_path, make, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(GeError, match="GE5033"):
        write_graph(make().captured, "saved")
    with pytest.raises(GeError, match="GE5020"):
        CompiledModel.load_graph("saved", rank=ONE)


# --- loading ---------------------------------------------------------------------------------------------------------


def test_files_are_mapped_without_handles(tmp_path):
    names = [f"w{i}" for i in range(300)]
    layout = archive.graph_layout(ONE)
    with archive.Writer(tmp_path, layout) as writer:
        for name in names:
            writer.add(name, [name.encode()])
        writer.add(layout.graph, [b"graph"])
        writer.commit({})
    before = len(os.listdir("/proc/self/fd"))
    found = archive.open_archive(tmp_path, ONE)
    assert len(os.listdir("/proc/self/fd")) - before < 5
    assert [bytes(found.data(n)).decode() for n in names] == names
    kept = memoryview(found.data("w7"))
    del found
    assert bytes(kept) == b"w7"


def test_a_copy_survives_truncation(tmp_path, make, small_files):
    made = make()
    write_graph(made.captured, tmp_path)
    model = CompiledModel.load_graph(tmp_path, copy=True)
    for path in (tmp_path / "weights").iterdir():
        os.truncate(path, 0)
    np.testing.assert_allclose(model(X)["y"], made.expected(X), rtol=1e-5)


def test_whole_files_are_compared_by_default(tmp_path, make, small_files, monkeypatch):
    monkeypatch.setattr(archive, "FULL_BYTES", 0)  # what "auto" took as too large
    made = make(size=4000)
    write_graph(made.captured, tmp_path)
    path = tmp_path / "weights/layer.w"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    CompiledModel.load_graph(tmp_path, verify="fast")
    CompiledModel.load_graph(tmp_path, verify=False)
    with pytest.raises(ArchiveError, match="GE5023"):
        CompiledModel.load_graph(tmp_path)


def hollow(root, size):
    """Make a weight a file of holes that every checksum fits, if one has the days to compute them."""
    found = manifest_of(root)
    entry = next(f for f in found["files"] if f["name"] == "weights/layer.w")
    os.truncate(root / entry["name"], 0)
    os.truncate(root / entry["name"], size)
    edges = archive._Edges()
    edges.add(bytes(archive.EDGE_BYTES))
    entry.update(bytes=size, edges=edges.hexdigest(size))
    for weight in found["weights"]:
        if weight["file"] == entry["name"]:
            weight["shape"] = [size // 32, 8]
    manifest_of(root, files=found["files"], weights=found["weights"])


@pytest.fixture
def never_hashed(monkeypatch):
    real = mapping._read

    def refuse(self, names):
        raise AssertionError(f"hashed: {names}")

    def read(handle, size):
        assert size < 1 << 20, "read"
        return real(handle, size)

    monkeypatch.setattr(archive.Archive, "_digests", refuse)
    monkeypatch.setattr(mapping, "_read", read)


@pytest.mark.parametrize(
    "how", [{}, {"copy": True}, {"verify": "auto", "copy": True}, {"authenticate": lambda *_: True}]
)
def test_a_file_of_holes_is_refused_before_it_is_read(tmp_path, make, small_files, never_hashed, how):
    write_graph(make().captured, tmp_path)
    hollow(tmp_path, 1 << 40)
    with pytest.raises(ArchiveError, match=r"GE5025.*layer\.w.*on the disk"):
        CompiledModel.load_graph(tmp_path, **how)


def test_holes_where_no_byte_is_read(tmp_path, make, small_files):
    """What takes no time is not refused for that; the graph then says that the weight is not the one it knows."""
    write_graph(make().captured, tmp_path)
    hollow(tmp_path, 1 << 40)
    with pytest.raises(ArchiveError, match="GE5026"):
        CompiledModel.load_graph(tmp_path, verify="sizes")


def test_an_empty_part_of_a_real_file_is_fine(tmp_path, make, small_files, monkeypatch):
    monkeypatch.setattr(mapping, "_MAY_HAVE_HOLES", 1 << 16)
    made = make(size=1 << 14)
    write_graph(made.captured, tmp_path)
    CompiledModel.load_graph(tmp_path, copy=True)


@pytest.mark.parametrize("how", [{}, {"verify": "sizes"}, {"copy": True}])
def test_a_weight_of_another_size_than_it_takes_is_refused_before_it_is_read(
    tmp_path, make, small_files, never_hashed, how
):
    write_graph(make().captured, tmp_path)
    found = manifest_of(tmp_path)
    found["weights"][0]["shape"] = [9]
    manifest_of(tmp_path, weights=found["weights"])
    with pytest.raises(ArchiveError, match="GE5026.*takes 36 bytes"):
        CompiledModel.load_graph(tmp_path, **how)


def test_a_graph_larger_than_graphs_are_is_refused_before_it_is_read(tmp_path, make, never_hashed):
    write_graph(make().captured, tmp_path)
    found = manifest_of(tmp_path)
    found["files"][0].update(bytes=1 << 31)
    os.truncate(tmp_path / "compiled_graph.air", 1 << 31)
    manifest_of(tmp_path, files=found["files"])
    with pytest.raises(ArchiveError, match="GE5025.*compiled_graph"):
        CompiledModel.load_graph(tmp_path, verify=False)


def test_comparing_stops_when_interrupted(tmp_path):
    """64 GiB, of which a thread compares 32 MiB at a time; Ctrl-C ends it within seconds, not minutes."""
    code = f"""
import sys
from pathlib import Path
from tair_export import archive, mapping
from tair_export.ranks import Rank
mapping._MAY_HAVE_HOLES = 1 << 62
layout = archive.graph_layout(Rank(0, 1))
root = Path({str(tmp_path)!r})
with archive.Writer(root, layout) as writer:
    writer.add(layout.graph, [b"graph"])
    writer.add("w", [b""])
    writer.commit({{}})
import json, os
path = root / layout.manifest
found = json.loads(path.read_text())
size = 64 << 30
os.truncate(root / "w", size)
edges = archive._Edges()
edges.add(bytes(archive.EDGE_BYTES))
next(f for f in found["files"] if f["name"] == "w").update(bytes=size, edges=edges.hexdigest(size))
body = {{k: v for k, v in found.items() if k not in ("digest", "format", "version")}}
path.write_bytes(archive.render(archive.seal(body)))
real = archive.Archive._digests
def beginning(self, names):
    print("hashing", flush=True)
    return real(self, names)
archive.Archive._digests = beginning
archive.open_archive(root, Rank(0, 1), verify="full")
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert child.stdout.readline() == "hashing\n", child.stderr.read()
        time.sleep(0.2)  # or it is interrupted before; both must end it
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=20)
    finally:
        child.kill()
    assert "KeyboardInterrupt" in said


@pytest.mark.parametrize("change", [b'"device": "cpu"', b'"kind": "graph"', b'"bytes": '])
def test_the_manifest_covers_itself(tmp_path, make, change):
    write_graph(make().captured, tmp_path)
    path = tmp_path / f"compiled_graph{archive.SUFFIX}"
    path.write_bytes(path.read_bytes().replace(change, change[:-2] + b"x" + change[-1:], 1))
    with pytest.raises(ArchiveError, match="GE5021"):
        CompiledModel.load_graph(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b'{"format": ' + b"[" * 100_000,
        b'{"a": [' + b"[]," * 3_000_000 + b"[]]}",
        b'{"a": 1e999}',
        b'{"a": NaN}',
        b'{"format": "tair-archive", "version": ' + b"9" * 5000 + b"}",
        b"\xff",
        b"null",
        b'"\\ud800"',
    ],
    ids=range(8),
)
def test_odd_manifests(tmp_path, text):
    (tmp_path / f"compiled_graph{archive.SUFFIX}").write_bytes(text)
    with pytest.raises(ArchiveError, match="GE5021|GE5022|GE5025"):
        CompiledModel.load_graph(tmp_path)


@pytest.mark.parametrize(
    "keywords", [{"rank": 3}, {"rank": (0, 1)}, {"options": "x"}, {"options": {"a": 1}}, {"options": [1]}]
)
def test_arguments_of_wrong_kinds(tmp_path, make, keywords):
    write_graph(make().captured, tmp_path)
    with pytest.raises(ArchiveError, match="GE5042"):
        CompiledModel.load_graph(tmp_path, **keywords)


@pytest.mark.parametrize(
    "value", [np.array(["a"] * 4), np.array([object()] * 4), np.zeros(4, "M8[s]"), np.zeros(4, "V8")]
)
def test_arrays_of_wrong_kinds(tmp_path, make, value):
    write_graph(make().captured, tmp_path)
    with pytest.raises(GeError):
        CompiledModel.load_graph(tmp_path)(np.broadcast_to(value, (3, 4)))


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/null", "."])
def test_pipes_and_devices_are_not_read(tmp_path, path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    signal.alarm(30)
    try:
        with pytest.raises(ArchiveError, match="GE5020"):
            load_air(path)
    finally:
        signal.alarm(0)


def test_offline_models_are_refused_by_name(tmp_path):
    (tmp_path / "m.om").write_bytes(b"IMOD" + bytes(252))
    with pytest.raises(ArchiveError, match="GE5043.*ATC"):
        load_air(tmp_path / "m.om")


@pytest.mark.parametrize("shape", [(1 << 31, 1 << 31), (1 << 62,), (2,) * 65])
def test_impossible_shapes_are_noticed_when_loading(tmp_path, shape):
    graph = hostile("r")
    graph.outputs[0].record_shape(shape)
    (tmp_path / "g.air").write_bytes(serde.to_bytes(graph))
    with pytest.raises(ArchiveError, match="GE5007"):
        load_air(tmp_path / "g.air")


def test_constants_that_ge_keeps_in_files(tmp_path):
    """The form in which GE saves what is too large for one message."""
    graph = hostile("r")
    with building(graph):
        graph.outputs = [ge.Add(graph.outputs[0], ge.Const(X + 1, node_name="c", readable=False))]
    message = wire.parse("ModelDef", serde.to_bytes(graph))
    const = next(op for op in message.graph[0].op if op.name == "c")
    const.attr["value"].t.data = b""
    const.attr["location"].s = b"air_weight/g/Const_g_c_file"
    const.attr["length"].i = X.nbytes
    message.ClearField("attr")
    (tmp_path / "air_weight/g").mkdir(parents=True)
    (X + 1).tofile(tmp_path / "air_weight/g/Const_g_c_file")
    (tmp_path / "m.air").write_bytes(message.SerializeToString())
    np.testing.assert_array_equal(load_air(tmp_path / "m.air")(X), np.maximum(X, 0) + X + 1)
    const.attr["location"].s = b"../../etc/passwd"
    (tmp_path / "m.air").write_bytes(message.SerializeToString())
    with pytest.raises(ArchiveError, match="GE5024|GE5041"):
        load_air(tmp_path / "m.air")


# --- who wrote it ----------------------------------------------------------------------------------------------------


def test_a_callable_decides_who_is_trusted(tmp_path, make):
    write_graph(make().captured, tmp_path)
    seen = []
    CompiledModel.load_graph(tmp_path, authenticate=lambda data, path: seen.append((data, path.name)))
    assert seen == [((tmp_path / f"compiled_graph{archive.SUFFIX}").read_bytes(), f"compiled_graph{archive.SUFFIX}")]

    def refuse(data, path):
        raise PermissionError("not ours")

    with pytest.raises(PermissionError, match="not ours"):
        CompiledModel.load_graph(tmp_path, authenticate=refuse)
    with pytest.raises(ArchiveError, match="GE5042"):
        CompiledModel.load_graph(tmp_path, authenticate=refuse, verify="fast")


def test_detached_signatures(tmp_path, make):
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as form

    from tair_export.signing import sign, signed_by

    keys = []
    for _ in range(2):
        key = ed25519.Ed25519PrivateKey.generate()
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        keys.append((private, public))
    made = make()
    write_graph(made.captured, tmp_path)
    with pytest.raises(ArchiveError, match="GE5044"):
        CompiledModel.load_graph(tmp_path, authenticate=signed_by(keys[0][1]))
    sign(tmp_path, keys[0][0], rank=ONE)
    for trusted in ([keys[0][1]], [keys[1][1], keys[0][1]]):
        model = CompiledModel.load_graph(tmp_path, authenticate=signed_by(*trusted))
        np.testing.assert_allclose(model(X)["y"], made.expected(X), rtol=1e-5)
    with pytest.raises(ArchiveError, match="GE5044"):
        CompiledModel.load_graph(tmp_path, authenticate=signed_by(keys[1][1]))
    manifest_of(tmp_path, device="npu")
    with pytest.raises(ArchiveError, match="GE5044"):
        CompiledModel.load_graph(tmp_path, authenticate=signed_by(keys[0][1]))
    with pytest.raises(ArchiveError, match="GE5044"):
        sign(tmp_path, b"no key", rank=ONE)


# --- guards ----------------------------------------------------------------------------------------------------------


def test_guards_are_data_and_named(tmp_path, make):
    made = make()
    contract = replace(made.captured.signature, guards=(["==", ["%", "s0", 2], 1], ["<", ["*", "s0", 4], 100]))
    made.captured.signature = contract
    write_graph(made.captured, tmp_path)
    model = CompiledModel.load_graph(tmp_path)
    for rows in (1, 3, 5):
        x = np.ones((rows, 4), "f4")
        np.testing.assert_allclose(model(x)["y"], made.expected(x), rtol=1e-5)
    with pytest.raises(ArchiveError, match=r"GE5040.*\(s0 % 2\) == 1.*dimension 0 of input 'x'\) = 2"):
        model(np.ones((2, 4), "f4"))
    with pytest.raises(ArchiveError, match=r"\(s0 \* 4\) < 100"):
        model(np.ones((25, 4), "f4"))


@pytest.mark.parametrize(
    "guard", [["exec", "s0"], "", ["**", "s0"], [], 1.5, ["+"], ["==", 1, 2, 3], {"a": 1}, True, None]
)
def test_other_guards_are_refused(tmp_path, make, guard):
    write_graph(make().captured, tmp_path)
    signature = manifest_of(tmp_path)["signature"]
    manifest_of(tmp_path, signature={**signature, "guards": [guard]})
    with pytest.raises(ArchiveError, match="GE5021"):
        CompiledModel.load_graph(tmp_path)


def test_guards_cost_microseconds():
    from tair_export import guards

    assert guards.holds(guards.function(["==", ["**", 3, ["min", 2, "a"]], 9]), {"a": 5})
    assert not guards.holds(guards.function(["==", ["%", 1, "a"], 0]), {"a": 0})
    assert not guards.holds(guards.function([">", ["**", "a", "a"], 0]), {"a": 1 << 60})
    assert guards.solve(["+", ["*", 2, "a"], 1], "a", 9) == 4
    assert guards.solve(["+", ["*", 2, "a"], 1], "a", 8) is None


def test_limit_of_open_files(tmp_path, make, small_files):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
    try:
        with pytest.raises(ArchiveError, match="GE5033.*EMFILE"):
            write_graph(make().captured, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert nothing_left(tmp_path)
