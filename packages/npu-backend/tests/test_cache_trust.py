"""Who may write into a cache folder gets nothing but a miss: not code, not another's graph, not a run that ends."""

import dataclasses
import fcntl
import json
import os
import random
import time
import warnings

import pytest
import torch

import torchair
from ge_graph.errors import ArchiveError, GeError
from tair_export.manifest import render, seal
from torchair.artifact import stored_graph
from torchair.artifact.traced_call import PathRoots, read_path
from torchair.compiler.artifacts import CompiledFxArtifacts, CompiledFxGraph
from torchair.inference import cache_compile

ACTED = []


class Trap:
    """Does something whenever Python looks at it in any way but through its own dict."""

    def __init__(self):
        vars(self)["held"] = torch.ones(3, 4)

    def __getattr__(self, name):
        ACTED.append(name)
        return torch.ones(3, 4)

    def __getitem__(self, key):
        ACTED.append(key)
        return torch.ones(3, 4)

    @property
    def shown(self):
        ACTED.append("property")
        return torch.ones(3, 4)


@dataclasses.dataclass
class Harmless:
    y: object


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.trap = Trap()

    @property
    def lazy(self):
        ACTED.append("lazy")
        return torch.ones(3, 4)

    def forward(self, x):
        return Harmless(self.fc(x).relu())


def resealed(path, change):
    body = json.loads(path.read_text())
    for name in ("digest", "format", "version"):
        body.pop(name)
    change(body)
    path.write_bytes(render(seal(body)))


def fresh(model, folder):
    torch._dynamo.reset()
    return cache_compile(model.forward, cache_dir=str(folder))


def first_path(path):
    def change(body):
        paths = body["more"]["call"]["paths"]
        paths[next(i for i, p in enumerate(paths) if p == [["local", "x"]])] = path

    return change


def result(tree):
    return lambda body: body["more"]["call"].__setitem__("result", tree)


ATTACKS = {
    "__getattr__ of an object": first_path([["local", "self"], ["attr", "trap"], ["attr", "payload"]]),
    "__getitem__ of an object": first_path([["local", "self"], ["attr", "trap"], ["item", "payload"]]),
    "a property of an object": first_path([["local", "self"], ["attr", "trap"], ["attr", "shown"]]),
    "a property of a module": first_path([["local", "self"], ["attr", "lazy"]]),
    "a library by ctypes": first_path([["global", "os"], ["attr", "sys"], ["attr", "modules"], ["item", "ctypes"]]),
    "a module that is not the program's": first_path([["module", "ctypes"], ["attr", "cdll"], ["item", "libm.so.6"]]),
    "operators by name": first_path([["global", "torch"], ["attr", "ops"], ["attr", "aten"], ["attr", "relu"]]),
    "what is no tensor": first_path([["local", "self"], ["attr", "fc"]]),
    "a dataclass of another module": result({"record": [["dataclasses", "Field"], [["y", {"out": 0}]]]}),
    "a class that is no record": result({"record": [[__name__, "Trap"], []]}),
    "other fields": result({"record": [[__name__, "Harmless"], [["z", {"out": 0}]]]}),
    "a module as a result": result({"given": [["global", "os"]]}),
}


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    """A model, and the bytes of its entry's manifest."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("trust")
    model = Small().eval()
    fresh(model, folder)(torch.ones(3, 4))
    (manifest,) = folder.rglob("*.manifest.json")
    return model, folder, manifest, manifest.read_bytes()


@pytest.fixture
def said(monkeypatch):
    seen = []
    for name in ("tell", "warning", "warning_once"):
        monkeypatch.setattr(torchair.logger, name, lambda text, *args: seen.append(text % args if args else text))
    return seen


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_in_a_tampered_entry_acts(attack, entry, said):
    model, folder, manifest, content = entry
    ACTED.clear()
    manifest.write_bytes(content)
    resealed(manifest, ATTACKS[attack])
    x = torch.randn(3, 4)
    with torch.no_grad():
        got, want = fresh(model, folder)(x), model(x)
    assert type(got) is Harmless
    torch.testing.assert_close(got.y, want.y)
    assert not ACTED
    assert any("compiled anew" in text or "discarded" in text for text in said)


def test_what_a_path_may_lead_through():
    """Dicts, lists, tuples, and what modules and other objects hold; each is found without asking its class."""
    model = Small()
    names = PathRoots(Small.forward, (model,))

    class Odd(dict):
        def __getitem__(self, key):
            ACTED.append(key)

        def __missing__(self, key):
            ACTED.append(key)

    ACTED.clear()
    local = {"self": model, "x": Odd(a=[(torch.ones(2),)])}
    held = names.input(read_path([["local", "self"], ["attr", "trap"], ["attr", "held"]]), local)
    assert held is vars(model.trap)["held"]
    assert names.input([["local", "self"], ["attr", "fc"], ["attr", "weight"]], local) is model.fc.weight
    found = names.input([["local", "x"], ["item", "a"], ["item", 0], ["item", 0]], local)
    assert found.shape == (2,)
    with pytest.raises(KeyError):
        names.value([["local", "x"], ["item", "b"]], local)
    assert not ACTED


def spoiled(change):
    def spoil(path):
        body = json.loads(path.read_text())
        change(body)
        for name in ("digest", "format", "version"):
            body.pop(name)
        path.write_bytes(render(seal(body)))

    return spoil


HARM = {
    "a condition that divides by zero": spoiled(lambda b: b["contract"]["conditions"].append(["==", ["//", 4, 0], 1])),
    "a condition on nobody's size": spoiled(lambda b: b["contract"]["conditions"].append(["==", "s99", 1])),
    "an order of others": spoiled(lambda b: b["contract"].__setitem__("order", [99])),
    "no device": spoiled(lambda b: b["contract"].__setitem__("device", "toaster")),
    "another body": spoiled(lambda b: b.__setitem__("body", "pickle")),
    "not JSON": lambda path: path.write_bytes(b"\x80\x04"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe without an end": lambda path: (path.unlink(), os.mkfifo(path)),
}


def through_torch_compile(model, folder):
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.cache_dir = str(folder)
    return torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)


@pytest.mark.parametrize("harm", HARM)
def test_a_harmed_entry_is_a_miss(harm, tmp_path, said):
    x = torch.randn(3)
    torch.testing.assert_close(through_torch_compile(torch.exp, tmp_path)(x), x.exp())
    (manifest,) = tmp_path.rglob("*.manifest.json")
    HARM[harm](manifest)
    with torchair.record_compilation() as reports:
        torch.testing.assert_close(through_torch_compile(torch.exp, tmp_path)(x), x.exp())
    assert reports[-1].stages.get("lower", 0) > 0
    assert harm == "a condition on nobody's size" or harm.startswith("a condition that") or said


# --- who owns it -----------------------------------------------------------------------------------------------------


def test_new_folders_and_files_are_for_this_user_alone(tmp_path):
    old = os.umask(0)
    try:
        through_torch_compile(torch.exp, tmp_path / "a" / "b")(torch.ones(3))
    finally:
        os.umask(old)
    made = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    assert {p.stat().st_mode & 0o777 for p in made if p.is_dir()} == {0o700}
    assert {p.stat().st_mode & 0o777 for p in made if p.is_file()} == {0o600}


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)


def to_everybody(path):
    path.chmod(path.stat().st_mode | 0o002)


def to_a_group(path):
    path.chmod(path.stat().st_mode | 0o020)


def to_another(path):
    os.chown(path, 12345, -1)


GIFTS = {
    to_everybody: "everybody may write it",
    to_a_group: "its group may write it",
    to_another: "it belongs to user 12345",
}


@pytest.mark.parametrize("door", [through_torch_compile, fresh])
@pytest.mark.parametrize("gift", GIFTS)
def test_what_others_may_write_is_not_used(gift, door, tmp_path, said):
    if gift is to_another and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    model, x = Plain().eval(), torch.randn(3, 4)
    with torch.no_grad():
        want = model(x)
        door(model, tmp_path / "c")(x)
        (manifest,) = tmp_path.rglob("*.manifest.json")
        for path in (tmp_path / "c", manifest.parent, manifest, next(tmp_path.rglob("*.air"))):
            status = path.stat()
            gift(path)
            said.clear()
            with torchair.record_compilation() as reports:
                torch.testing.assert_close(door(model, tmp_path / "c")(x), want)
            assert reports[-1].stages.get("lower", 0) > 0, path
            assert any(GIFTS[gift] in text and str(path) in text for text in said), path
            path.chmod(status.st_mode)
            os.chown(path, status.st_uid, status.st_gid)
        with torchair.record_compilation() as reports:
            torch.testing.assert_close(door(model, tmp_path / "c")(x), want)
        assert not reports[-1].stages.get("lower", 0)


def test_a_strangers_link_is_not_followed(tmp_path, said):
    if os.geteuid() != 0:
        pytest.skip("only root can give a link away")
    x = torch.randn(3)
    through_torch_compile(torch.exp, tmp_path / "own")(x)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "own")
    with torchair.record_compilation() as reports:
        through_torch_compile(torch.exp, link)(x)
    assert not reports[-1].stages.get("lower", 0)  # one's own link is as good as the folder
    os.chown(link, 12345, -1, follow_symlinks=False)
    said.clear()
    with torchair.record_compilation() as reports:
        torch.testing.assert_close(through_torch_compile(torch.exp, link)(x), x.exp())
    assert reports[-1].stages.get("lower", 0) > 0
    assert any("it is a link of user 12345" in text for text in said)


@pytest.mark.parametrize(("writer", "reader"), [(0, 0o077), (0o077, 0)])
def test_processes_of_different_umask_share_a_folder(writer, reader, tmp_path):
    x, before = torch.randn(3), os.umask(writer)
    try:
        through_torch_compile(torch.exp, tmp_path / "c")(x)
        os.umask(reader)
        with torchair.record_compilation() as reports:
            torch.testing.assert_close(through_torch_compile(torch.exp, tmp_path / "c")(x), x.exp())
    finally:
        os.umask(before)
    assert not reports[-1].stages.get("lower", 0)


# --- locks -----------------------------------------------------------------------------------------------------------


def test_a_lock_of_another_is_waited_for_a_second_at_most(tmp_path, said, monkeypatch):
    assert stored_graph.LOCK_SECONDS == 1.0
    monkeypatch.setattr(stored_graph, "LOCK_SECONDS", 0.1)
    x = torch.randn(3)
    through_torch_compile(torch.exp, tmp_path)(x)
    (manifest,) = tmp_path.rglob("*.manifest.json")
    manifest.unlink()
    handle = os.open(manifest.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        began = time.monotonic()
        torch.testing.assert_close(through_torch_compile(torch.exp, tmp_path)(x), x.exp())
        assert time.monotonic() - began < 60  # it would wait for ever
    finally:
        os.close(handle)
    assert any("cannot be written" in text for text in said)
    assert not manifest.exists()


def test_one_warning_of_python_says_why_nothing_is_kept(tmp_path, monkeypatch):
    import threading

    monkeypatch.setattr(torchair.logger, "_said", set())
    lock = threading.Lock()
    config = torchair.CompilerConfig()
    config.cache_dir = str(tmp_path)
    backend = torchair.get_npu_backend(
        compiler_config=config, custom_decompositions={torch.ops.aten.erf.default: lambda x: x if lock else x + 1}
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            torch.testing.assert_close(torch.compile(torch.exp, backend=backend)(torch.zeros(3)), torch.ones(3))
    mine = [str(w.message) for w in caught if "compile cache" in str(w.message)]
    assert len(mine) == 1
    assert "the decomposition of aten.erf.default depends on _thread.lock" in mine[0]
    assert not list(tmp_path.rglob("traced/**/*.manifest.json"))


# --- artefacts -------------------------------------------------------------------------------------------------------


def mutant(rng, content):
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.choice((0, 255, 127))
        elif kind == 2:
            del data[at : at + rng.randrange(1, 40)]
        else:
            data[at:at] = data[: rng.randrange(40)]
        if not data:
            break
    return bytes(data)


def compiled_by_hand(fn, *args):
    """The graph that ``get_compiler`` makes of a function, for somebody's own backend."""
    kept = []

    def backend(gm, inputs):
        from torch._dynamo.backends.common import aot_autograd

        def compiler(gm, inputs):
            kept.append(torchair.get_compiler()(gm, inputs))
            return kept[-1]

        return aot_autograd(fw_compiler=compiler)(gm, inputs)

    with torch.no_grad():
        torch.compile(fn, backend=backend)(*args)
    return kept[0]


def loaded(graph):
    return CompiledFxGraph.load_artifacts(graph.dump_artifacts())


def test_damaged_artefacts_end_in_our_errors_only():
    graph = compiled_by_hand(lambda x: (x.t(), x.exp().sum(0)), torch.ones(3, 4))
    content = graph.dump_artifacts().content
    refused, first = 0, int(os.environ.get("TAIR_FUZZ_SEED", "1"))
    for seed in range(first, first + int(os.environ.get("TAIR_FUZZ_ARTEFACTS", "150"))):
        try:
            CompiledFxGraph.load_artifacts(CompiledFxArtifacts(mutant(random.Random(seed), content)))
        except GeError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"mutant {seed}") from error
    assert refused


def test_artefacts_hold_for_what_they_were_traced_for():
    """No guards of dynamo stand before a loaded graph: it looks at its arguments itself."""

    def f(x, y):
        return x * 2 + y if x.shape[0] > 4 and y.shape[1] % 2 == 0 else x + y

    x, y = torch.randn(6, 8), torch.randn(6, 8)
    for t in (x, y):
        torch._dynamo.mark_dynamic(t, 0)
        torch._dynamo.mark_dynamic(t, 1)
    graph = loaded(compiled_by_hand(f, x, y))
    again = loaded(graph)  # what was loaded can be kept again
    for call in (graph, again):
        for rows, columns in ((6, 8), (5, 2), (9, 4)):
            a, b = torch.randn(rows, columns), torch.randn(rows, columns)
            torch.testing.assert_close(call(rows, columns, a, b)[0], f(a, b))
        for rows, columns, what in ((4, 8, "s.* > 4"), (6, 7, "s.*% 2"), (6, 1, "size 1")):
            a, b = torch.randn(rows, columns), torch.randn(rows, columns)
            with pytest.raises(ArchiveError, match=f"GE5040.*({what})"):
                call(rows, columns, a, b)
    one = torch.randn(6, 8)
    for wrong in (
        (7, 8, one, one),
        (6, 8, one, one[:5]),
        (6, 8, one.double(), one),
        (6, 8, one),
        (6, 8, one, 3),
        (6, 8, one[0], one),
    ):
        with pytest.raises(ArchiveError, match="GE5040"):
            graph(*wrong)


def test_artefacts_of_fixed_sizes_hold_for_these():
    graph = loaded(compiled_by_hand(lambda x: x * x.shape[0], torch.ones(3, 4)))
    assert torch.equal(graph(torch.ones(3, 4))[0], torch.full((3, 4), 3.0))
    with pytest.raises(ArchiveError, match="GE5040.*size 5.*3 was traced"):
        graph(torch.ones(5, 4))
