"""cache_compile: what a second process gets, and what it must not trust."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from collections import OrderedDict, namedtuple
from pathlib import Path

import pytest
import torch

import torchair
from ge_graph.errors import ArchiveError, ConfigError
from tair_testing import warm
from torchair.inference import cache_compile, readable_cache

Pair = namedtuple("Pair", "left right")
SCALE = torch.tensor(2.0)


@dataclasses.dataclass
class Lengths:
    tensor: torch.Tensor
    extra: int


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    rest: object = None


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
        self.caches = [torch.zeros(3, 4)]
        self.register_buffer("steps", torch.zeros(4))

    def forward(self, x, lengths, kv, mask=None, *more, flag=True, **named):
        for layer in self.layers:
            x = layer(x)
        kv[0][0].add_(1)
        self.caches[0].add_(1)
        self.steps.add_(1)
        y = x * SCALE + lengths.tensor.sum() + lengths.extra
        if flag:
            y = y + more[0] + named["z"]
        rest = {
            "sizes": (x.shape[0], x.shape[0] * 2, 7, None, "a", y.dtype),
            "view": y.t(),
            "given": kv[0][0],
            "pair": Pair(y + 1, [x]),
            "ordered": OrderedDict(a=y),
        }
        return Output(y, (rest, kv))


def same(got, want):
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want):
            same(a, b)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        same(list(got.values()), list(want.values()))
    elif dataclasses.is_dataclass(want):
        same(vars(got), vars(want))
    else:
        assert got == want


def call(model, batch, extra=4):
    kv = [(torch.zeros(2, 2), torch.zeros(2, 2))]
    torch.manual_seed(batch)
    return kv, model(torch.randn(batch, 4), Lengths(torch.ones(3), extra), kv, None, torch.ones(4), z=torch.ones(4))


def two_models():
    torch.manual_seed(0)
    a, b = Decoder().eval(), Decoder().eval()
    b.load_state_dict(a.state_dict())
    return a, b


def fresh(model, folder, **more):
    """As in another process: nothing is left of what dynamo knew."""
    torch._dynamo.reset()
    return cache_compile(model.forward, cache_dir=str(folder), **more)


def entry_of(folder):
    (found,) = Path(folder).rglob("compiled_module.manifest.json")
    return found


@pytest.mark.slow
def test_everything_a_call_can_be(tmp_path):
    model, reference = two_models()
    for expected_traces in (1, 0):
        compiled = fresh(model, tmp_path)
        for batch, extra in ((5, 4), (3, 7), (9, 1)):
            kv, got = call(compiled, batch, extra)
            with torch.no_grad():
                kv_want, want = call(reference, batch, extra)
            same(got, want)
            same(kv, kv_want)
            same([model.caches[0], model.steps], [reference.caches[0], reference.steps])
            assert got.rest[1] is kv
            assert got.rest[0]["given"] is kv[0][0]
            assert got.rest[0]["view"].data_ptr() == got.logits.data_ptr()
            assert type(got.rest[0]["sizes"][0]) is int
        assert compiled.cached_call.traces == expected_traces


def test_weights_are_the_callers_and_not_stored(tmp_path):
    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(256, 256)

        def forward(self, x):
            return self.fc(x)

    model = Wide().eval()
    x = torch.randn(2, 256)
    fresh(model, tmp_path)(x)
    assert sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()) < 64 << 10
    other = Wide().eval()
    compiled = fresh(other, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), other(x))
        other.fc.weight.mul_(2)
        torch.testing.assert_close(compiled(x), other(x))
        other.fc.weight = torch.nn.Parameter(torch.ones(256, 256))
        torch.testing.assert_close(compiled(x), other(x))
    assert compiled.cached_call.traces == 0
    assert not compiled(x).requires_grad


def test_random_numbers_are_drawn_anew(tmp_path):
    class Noisy(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    model = Noisy()
    x = torch.zeros(64)
    first = fresh(model, tmp_path)
    torch.manual_seed(1)
    want = [first(x), first(x)]
    second = fresh(model, tmp_path)
    torch.manual_seed(1)
    got = [second(x), second(x)]
    assert second.cached_call.traces == 0
    assert not torch.equal(got[0], got[1])
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    monkeypatch.setattr(torchair.logger, "warning", lambda text, *args: seen.append(text % args))
    monkeypatch.setattr(torchair.logger, "warning_once", lambda text, *args: seen.append(text % args if args else text))
    monkeypatch.setattr(torchair.logger, "tell", lambda text, *args: seen.append(text % args if args else text))
    return seen


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


def truncated(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def resealed(change):
    """A manifest whose digest fits, so that the content itself is what has to be refused."""
    from tair_export.manifest import render, seal

    def edit(path):
        body = json.loads(path.read_text())
        for key in ("digest", "format", "version"):
            body.pop(key)
        change(body)
        path.write_bytes(render(seal(body)))

    return edit


def set_key(name, value):
    return resealed(lambda body: body["key"].__setitem__(name, value))


BAD = {
    "manifest truncated": (truncated, "GE5021"),
    "manifest changed": (flipped, "GE5021"),
    "manifest empty": (lambda p: p.write_bytes(b""), "GE5021"),
    "graph truncated": (lambda p: truncated(p.with_name("compiled_module.air")), "GE5023"),
    "graph changed": (lambda p: flipped(p.with_name("compiled_module.air")), "GE5023"),
    "graph gone": (lambda p: p.with_name("compiled_module.air").unlink(), "GE5023"),
    "other torch": (set_key("torch", "1.0"), "torch was 1.0"),
    "other source": (set_key("source", "x"), "source was x"),
    "other converters": (set_key("converters", "x"), "converters was x"),
    "other kind": (resealed(lambda b: b.__setitem__("kind", "export")), "GE5050"),
    "other rank": (resealed(lambda b: b.__setitem__("rank", [1, 2])), "rank"),
    "path through a dunder": (
        resealed(lambda b: b["more"]["call"]["paths"].__setitem__(0, [["local", "self"], ["attr", "__class__"]])),
        "path leads through",
    ),
    "class that is not there": (
        resealed(lambda b: b["more"]["call"].__setitem__("result", {"record": [["os", "system"], []]})),
        "is none that the function names",
    ),
    "output that is not there": (
        resealed(lambda b: b["more"]["call"].__setitem__("result", {"out": 99})),
        "output 99 of",
    ),
    "operator that is not a view": (
        resealed(
            lambda b: b["binding"].__setitem__(
                "views", [{"node": 9, "target": "aten.add_.Tensor", "args": [], "kwargs": {}}]
            )
        ),
        "GE5021",
    ),
    "binding that is none": (resealed(lambda b: b.__setitem__("binding", 3)), "GE5021"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_entries_are_rejected_with_the_reason_and_rebuilt(what, tmp_path, warnings):
    spoil, reason = BAD[what]
    model, x = Small().eval(), torch.randn(3, 4)
    fresh(model, tmp_path)(x)
    spoil(entry_of(tmp_path))
    compiled = fresh(model, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled.cached_call.traces == 1
    assert any(reason in text for text in warnings)
    again = fresh(model, tmp_path)
    again(x)
    assert again.cached_call.traces == 0


def test_models_of_one_class_have_an_entry_each(tmp_path):
    """Other sizes, one more layer, another plain attribute; all in one folder, none gets another's graph."""

    class Stack(torch.nn.Module):
        def __init__(self, layers=1, size=4, scale=1.0):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, size) for _ in range(layers))
            self.scale = scale

        def forward(self, x):
            return sum(layer(x) for layer in self.layers) * self.scale

    x = torch.randn(3, 4)
    models = [Stack(), Stack(layers=2), Stack(size=6), Stack(scale=2.0)]
    for traces in (1, 0):
        for model in models:
            compiled = fresh(model.eval(), tmp_path)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), model(x))
            assert compiled.cached_call.traces == traces


PROGRAM = """
import sys, torch, torchair, users_functions
LIMIT = 1
def helper(x):
    return x * 2
class Model(torch.nn.Module):
    def forward(self, x):
        return helper(x).clamp(max=LIMIT) + users_functions.other(x)
model, x = Model(), torch.tensor([[0.25, 0.5, 2.0]])
call = torchair.inference.cache_compile(model.forward, cache_dir=sys.argv[1])
torch.testing.assert_close(call(x), model(x))
print(call.cached_call.traces)
"""
OTHER = "def other(x):\n    return inner(x)\ndef inner(x):\n    return x - 1\n"
EDITS = {
    "forward": ("helper(x).clamp", "helper(x).abs().clamp"),
    "a helper": ("x * 2", "x * 3"),
    "a number": ("LIMIT = 1", "LIMIT = 2"),
    "a helper in another module": ("x - 1", "x - 2"),
    "a closure": ("class Model", "helper = (lambda k: lambda x: x * k)(5)\nclass Model"),
    "another closure": ("class Model", "helper = (lambda k: lambda x: x * k)(6)\nclass Model"),
}


@pytest.mark.night(rows=7)
@pytest.mark.slow
@pytest.mark.parametrize("what", EDITS)
def test_a_program_without_a_file_that_changes_is_a_miss(what, tmp_path):
    """As in a notebook: the text of the program is nowhere but in memory. Each program checks its own numbers."""

    def traces(program, other):
        (tmp_path / "users_functions.py").write_text(other)
        # a process of its own: in one that was forked the text of the program has another place
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "c")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    old, new = EDITS[what]
    assert traces(PROGRAM, OTHER) == ["1"]
    assert traces("# a comment" + PROGRAM, OTHER) == ["0"]
    assert (old in PROGRAM) != (old in OTHER)
    assert traces(PROGRAM.replace(old, new), OTHER.replace(old, new)) == ["1"]


class Server(torch.nn.Module):
    """Two phases, each with a cache, as decoders have them."""

    def __init__(self, folder):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))
        self.prefill_cached = cache_compile(self.prefill, cache_dir=str(folder))
        self.decode_cached = cache_compile(self.decode, cache_dir=str(folder))

    def prefill(self, x):
        return x * self.scale

    def decode(self, x):
        return x + self.scale


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_what_a_model_has_called_before_is_no_part_of_an_entry(first, tmp_path, warnings):
    x = torch.randn(3)
    made = Server(tmp_path)
    for phase in (first, {"prefill": "decode", "decode": "prefill"}[first]):
        assert torch.equal(getattr(made, f"{phase}_cached")(x), getattr(made, phase)(x))
    torch.compile(lambda x: x * 5, backend="npu")(x)  # dynamo puts what it compiles into this module
    for phase in ("decode", "prefill"):
        again = Server(tmp_path)
        call = getattr(again, f"{phase}_cached")
        assert torch.equal(call(x), getattr(again, phase)(x))
        assert call.cached_call.traces == 0, phase


def test_what_was_decided_about_sizes_is_checked(tmp_path, warnings):
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] > 4 else x - 1

    model = Branches()
    fresh(model, tmp_path)(torch.ones(6, 4))
    for rows, traces in ((7, 0), (3, 1)):
        compiled = fresh(model, tmp_path)
        torch.testing.assert_close(compiled(torch.ones(rows, 4)), model(torch.ones(rows, 4)))
        assert compiled.cached_call.traces == traces
    assert any("the sizes break the condition" in text for text in warnings)


@pytest.mark.slow
def test_inputs_that_do_not_fit_are_traced(tmp_path, warnings):
    model = Small().eval()
    fresh(model, tmp_path)(torch.randn(3, 4))
    model.double()
    model.float()
    compiled = fresh(model, tmp_path)
    compiled(torch.randn(5, 4))
    assert compiled.cached_call.traces == 0
    with torch.no_grad():
        x = torch.randn(2, 3, 4)
        torch.testing.assert_close(compiled(x), model(x))
    assert any("input x is torch.float32 of 3 dimensions" in text for text in warnings)
    assert not list(tmp_path.rglob("*.manifest.json"))


def test_tracing_again_discards_the_entry(tmp_path, warnings):
    model = Small().eval()
    compiled = fresh(model, tmp_path)
    compiled(torch.randn(3, 4))
    assert entry_of(tmp_path)
    compiled(torch.randn(2, 3, 4))
    assert any("traced again" in text for text in warnings)
    assert not list(tmp_path.rglob("*.manifest.json"))


def test_dynamo_starting_over_is_no_second_trace(tmp_path, warnings):
    """A Python float of a module is first taken as an input, and no longer when the trace starts over."""

    class Embedded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)

        def forward(self, ids):
            return self.table(ids)

    model, ids = Embedded().eval(), torch.tensor([1, 2, 3])
    for traces in (1, 0):
        compiled = fresh(model, tmp_path)
        for n in (3, 5):
            ids = torch.arange(n)
            with torch.no_grad():
                torch.testing.assert_close(compiled(ids), model(ids))
        assert compiled.cached_call.traces == traces
    assert not warnings


class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0
        self.seen = []

    def forward(self, x):
        self.count += 1
        return x + 1


class Appends(Writes):
    def forward(self, x):
        self.seen.append(x)
        return x + 1


class Unknown(Writes):
    def forward(self, x):
        return {frozenset([1]): x + 1}


@pytest.mark.parametrize(("kind", "reason"), [(Writes, "writes to"), (Appends, "writes to"), (Unknown, "dict")])
def test_calls_with_effects_run_and_are_not_cached(kind, reason, tmp_path, warnings):
    model, reference = kind(), kind()
    compiled = fresh(model, tmp_path)
    for n in range(3):
        x = torch.full((2,), float(n))
        got, want = compiled(x), reference(x)
        same([*got.values()] if isinstance(got, dict) else got, [*want.values()] if isinstance(want, dict) else want)
    assert (model.count, len(model.seen)) == (reference.count, len(reference.seen))
    assert any("not cached" in text and reason in text for text in warnings), warnings
    assert not list(tmp_path.rglob("*.manifest.json"))


def test_a_folder_that_cannot_be_written(tmp_path, warnings):
    (tmp_path / "file").write_text("")
    model, x = Small().eval(), torch.randn(3, 4)
    compiled = fresh(model, tmp_path / "file")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(compiled(x), model(x))
    assert len([w for w in warnings if "cannot be written" in w]) == 1


def test_a_full_disk(tmp_path, warnings, monkeypatch):
    import errno

    from tair_export import archive

    def full(handle, block):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archive, "_write", full)
    model, x = Small().eval(), torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(fresh(model, tmp_path)(x), model(x))
    assert any("No space left" in text for text in warnings)


@pytest.mark.slow
def test_names_of_the_folders(tmp_path, monkeypatch):
    model, x = Small().eval(), torch.randn(3, 4)
    fresh(model, tmp_path)(x)
    relative = entry_of(tmp_path).relative_to(tmp_path)
    assert len(relative.parts) == 3
    word, function, _ = relative.parts
    assert word.startswith("Small_dynamic_")
    assert len(word.rsplit("_", 1)[1]) == 32
    assert function == "forward"
    assert entry_of(tmp_path).with_name("compiled_module").is_file()
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        compiled = fresh(model, tmp_path)
        compiled(x)
        assert compiled.cached_call.traces == 1, "ranks must not mix"
    folders = {p.parent.parent.name for p in tmp_path.rglob("*.manifest.json")}
    assert {"world2global_rank0", "world2global_rank1"} <= folders
    other = fresh(model, tmp_path, tp_rank=0)
    other(x)
    assert other.cached_call.traces == 1


@pytest.mark.slow
def test_options_and_dynamic_have_entries_of_their_own(tmp_path):
    model, x = Small().eval(), torch.randn(3, 4)
    config = torchair.CompilerConfig()
    config.experimental_config.remove_noop_ops = False
    for more in ({}, {"dynamic": False}, {"config": config}):
        compiled = fresh(model, tmp_path, **more)
        compiled(x)
        assert compiled.cached_call.traces == 1
    backend = torchair.get_npu_backend(compiler_config=config)
    compiled = fresh(model, tmp_path, backend=backend)
    compiled(x)
    assert compiled.cached_call.traces == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"config": torchair.CompilerConfig(), "backend": torchair.get_npu_backend()}, "GE1060"),
        ({"backend": "npu"}, "GE1060"),
        ({"tp_rank": -1}, "GE1060"),
        ({"unknown": 1}, "GE1060"),
        ({"config": 3}, "GE1011"),
        ({"custom_decompositions": 3}, "GE1011"),
    ],
)
def test_wrong_arguments(arguments, code, tmp_path):
    with pytest.raises(ConfigError, match=code):
        cache_compile(Small().forward, cache_dir=str(tmp_path), **arguments)


def test_ref_data_is_refused(tmp_path):
    config = torchair.CompilerConfig()
    config.experimental_config.enable_ref_data = True
    with pytest.raises(ConfigError, match="GE1061"):
        cache_compile(Small().forward, cache_dir=str(tmp_path), config=config)


def test_readable_cache(tmp_path, capsys):
    model = Small().eval()
    fresh(model, tmp_path)(torch.randn(3, 4))
    place = entry_of(tmp_path).with_name("compiled_module")
    text = readable_cache(place, file=tmp_path / "shown.txt")
    assert "Small.forward(x)" in text
    assert "self._modules['fc']._parameters['weight']" in text
    assert "Relu" in text
    assert capsys.readouterr().out == text == (tmp_path / "shown.txt").read_text()
    assert readable_cache(place, print_output=False) == text
    assert capsys.readouterr().out == ""
    with pytest.raises(ArchiveError, match="GE5020"):
        readable_cache(tmp_path / "nothing")


@pytest.mark.slow
def test_two_processes_start_at_once_and_a_third_traces_nothing(tmp_path):
    script = tmp_path / "serve.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch, torchair
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    torch.manual_seed(0)
                    self.fc = torch.nn.Linear(4, 4)
                def decode(self, x, cache):
                    cache.add_(x)
                    return self.fc(cache)
            net = Net().eval()
            decode = torchair.inference.cache_compile(net.decode, cache_dir=sys.argv[1])
            cache, want = torch.zeros(3, 4), torch.zeros(3, 4)
            for n in range(3):
                got = decode(torch.full((3, 4), float(n)), cache)
                with torch.no_grad():
                    expected = net.decode(torch.full((3, 4), float(n)), want)
                torch.testing.assert_close(got, expected)
            print(decode.cached_call.traces, "torch._dynamo.symbolic_convert" in sys.modules)
            """
        )
    )
    for program in [warm.Fork(script, tmp_path / "cache") for _ in range(2)]:
        done = program.end()
        assert done.returncode == 0, done.stderr
    assert warm.run(script, tmp_path / "cache").stdout.split()[0] == "0"
