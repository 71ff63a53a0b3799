"""The support csv: cells of the documentation's sample rows, status from the registry, and the files."""

import csv
import operator
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import torchair
from ge_converters.base.errors import Refusal
from ge_converters.registry import Registry
from ge_graph.errors import ConfigError
from tair_debug import fx_summary
from tair_debug.fx_summary import COLUMNS, summarize
from tair_debug.models import Subject
from tair_debug.tracing import capture

aten = torch.ops.aten


class Sizes:
    """Fake tensors, one of whose sizes is the symbol s0."""

    def __init__(self):
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        with self.mode:
            self.s0 = torch.empty(7)
            self.s0 = self.mode.from_tensor(torch.empty(1, 7, 4096)).shape[1]

    def tensor(self, dtype, *sizes):
        with self.mode:
            return torch.empty([self.s0 if s == "s0" else s for s in sizes], dtype=dtype)


def symbol(sizes):
    return str(sizes.s0)


class Builder:
    """An FX graph by hand."""

    def __init__(self):
        self.graph = torch.fx.Graph()

    def input(self, value):
        node = self.graph.placeholder(f"x_{len(self.graph.nodes)}")
        node.meta["val"] = value
        return node

    def call(self, target, args, value, kwargs=None):
        node = self.graph.call_function(target, args, kwargs or {})
        node.meta["val"] = value
        return node

    def rows(self, registry=None):
        self.graph.output(())
        found = summarize(torch.fx.GraphModule({}, self.graph), registry=registry)
        return {r.target: r.cells() for r in found}


def test_cells_of_the_documented_samples():
    sizes, build = Sizes(), Builder()
    s0 = symbol(sizes)
    f16, f32 = torch.float16, torch.float32
    wide = sizes.tensor(f16, 1, "s0", 4096)
    wider = sizes.tensor(f16, 1, "s0", 16384)
    weight = sizes.tensor(f16, 4096)
    a, b, w = build.input(wide), build.input(wider), build.input(weight)
    strided = build.input(sizes.tensor(f16, 12, 1, 512, 64)), build.input(sizes.tensor(f16, 12, 1024, 64))
    views = ([12, 1, 512, 64], [64, 196608, 768, 1]), ([12, 2, 768, 64], [65536, 16384, 64, 1])
    for count, x, view, out in zip((24, 12), strided, views, ((12, 1, 512, 64), (12, 2, 768, 64))):
        for _ in range(count):
            build.call(aten.as_strided.default, (x, *view), sizes.tensor(f16, *out))
    statistics = sizes.tensor(f32, 1, "s0", 1)
    for _ in range(62):
        norm = build.call(aten.native_layer_norm.default, (a, [4096], w, w, 1e-05), (wide, statistics, statistics))
        build.call(operator.getitem, (norm, 0), wide)
    for count, args, out in ((60, (a, a), wide), (30, (b, 1), wider), (30, (b, 1.0), wider)):
        for _ in range(count):
            build.call(aten.add.Tensor, args, out)
    rows = build.rows()
    three = f"(float16(1, {s0}, 4096), float32(1, {s0}, 1), float32(1, {s0}, 1))"
    assert rows["aten.as_strided.default"][3:] == [
        "36",
        "24次：(float16(12, 1, 512, 64), [12, 1, 512, 64], [64, 196608, 768, 1])\n"
        "12次：(float16(12, 1024, 64), [12, 2, 768, 64], [65536, 16384, 64, 1])",
        "24次：float16(12, 1, 512, 64)\n12次：float16(12, 2, 768, 64)",
    ]
    assert rows["aten.native_layer_norm.default"][3:] == [
        "62",
        f"62次：(float16(1, {s0}, 4096), [4096], float16(4096,), float16(4096,), 1e-05)",
        f"62次：{three}",
    ]
    assert rows["aten.add.Tensor"] == [
        "aten.add.Tensor",
        "aten",
        "已支持",
        "120",
        f"60次：(float16(1, {s0}, 4096), float16(1, {s0}, 4096))\n30次：(float16(1, {s0}, 16384), 1)\n"
        f"30次：(float16(1, {s0}, 16384), 1.0)",
        f"60次：float16(1, {s0}, 4096)\n60次：float16(1, {s0}, 16384)",
    ]
    assert rows["<built-in function getitem>"] == [
        "<built-in function getitem>",
        "builtin",
        "已支持",
        "62",
        f"62次：({three}, 0)",
        f"62次：float16(1, {s0}, 4096)",
    ]


def registry_of(**converters):
    made = Registry()
    for name, fn in converters.items():
        made.register(getattr(aten, name).default, source="test")(fn)
    return made


def test_status_comes_from_every_call():
    def sin(self, *, meta_outputs):
        from ge_graph import ops as ge

        if self.rank == 1:
            raise Refusal("argument 'self' has one dimension")
        return ge.Sin(self)

    def build(*shapes):
        made = Builder()
        for shape in shapes:
            value = torch.empty(shape, device="meta")
            made.call(aten.sin.default, (made.input(value),), value)
        return made

    registry = registry_of(sin=sin)
    assert build((2, 2)).rows(registry)["aten.sin.default"][2] == "已支持"
    assert build((2, 2), (2,)).rows(registry)["aten.sin.default"][2] == "部分支持"
    assert build((2,)).rows(registry)["aten.sin.default"][2] == "未实现"
    assert build((2, 2)).rows(Registry())["aten.sin.default"][2] == "未实现"
    made = build((2, 2), (2,))
    made.graph.output(())
    (row,) = summarize(torch.fx.GraphModule({}, made.graph), registry=registry)
    assert row.reasons == {"argument 'self' has one dimension": 1}


def test_keyword_arguments_and_texts():
    assert fx_summary.value_text([1, 1.0, None, True, "mean"]) == "[1, 1.0, None, True, 'mean']"
    assert fx_summary.value_text((torch.empty(3),)) == "(float32(3,),)"
    assert fx_summary.value_text(torch.empty(())) == "float32()"
    build = Builder()
    x = build.input(torch.empty(2, device="meta"))
    node = build.call(aten.add.Tensor, (x, x), torch.empty(2, device="meta"), {"alpha": 2})
    assert fx_summary.inputs_text(node) == "(float32(2,), float32(2,), alpha=2)"
    assert "0x" not in fx_summary.target_text(lambda x: x)


def read(path):
    return list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines(keepends=True)))


@pytest.mark.parametrize("skip", [True, False])
def test_file_and_numbers(tmp_path, compiled, config, model, inputs, skip):
    config.debug.fx_summary.type = "csv"
    config.debug.fx_summary.skip_compile = skip
    with torch.no_grad():
        got, want = compiled(config)(*inputs), model(*inputs)
    assert all(map(torch.equal, got, want))
    (path,) = tmp_path.glob("summary_*.csv")
    rows = read(path)
    assert rows[0] == list(COLUMNS)
    assert [int(r[3]) for r in rows[1:]] == sorted((int(r[3]) for r in rows[1:]), reverse=True)
    assert all(r[2] == "已支持" for r in rows[1:])


def test_that_nothing_is_compiled_is_said_once(compiled, config, model, inputs, monkeypatch):
    monkeypatch.setattr(torchair.logger, "_said", set())
    config.debug.fx_summary.type = "csv"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            compiled(config)(*inputs)
    (text,) = [str(w.message) for w in said if "skip_compile" in str(w.message)]
    assert text.startswith("torchair: debug.fx_summary.skip_compile: the model runs eagerly, nothing is compiled")


def test_a_model_without_converters_runs_to_the_end(tmp_path, compiled, config):
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.ops.tair_tests.odd(x * 2)

    config.debug.fx_summary.type = "csv"
    x = torch.eye(3)
    assert torch.equal(compiled(config, Odd())(x), torch.eye(3) * 2 + 1)
    (path,) = tmp_path.glob("summary_*.csv")
    assert {r[0]: r[2] for r in read(path)}["tair_tests.odd.default"] == "未实现"
    config.debug.fx_summary.skip_compile = False
    torch._dynamo.reset()
    with pytest.raises(Exception, match="GE2001"):
        compiled(config, Odd())(x)
    assert len(list(tmp_path.glob("summary_*.csv"))) == 2  # the report is there all the same


def test_unwritable_folder(monkeypatch, compiled, config, inputs):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    config.debug.fx_summary.type = "csv"
    monkeypatch.setattr(fx_summary.artefacts.os, "replace", full)
    with pytest.raises(Exception, match=r"GE1041.*config\.debug\.fx_summary: cannot write .*summary_\d{20}\.csv") as e:
        compiled(config)(*inputs)
    assert isinstance(e.value.inner_exception, ConfigError)


@pytest.fixture
def unknown():
    """An operator that nobody converts."""
    with torch.library._scoped_library("tair_tests", "FRAGMENT") as library:
        library.define("summed_twice(Tensor x) -> Tensor")
        library.impl("summed_twice", lambda x: x + x, "CompositeExplicitAutograd")
        yield torch.ops.tair_tests.summed_twice


def rows_of(fn, *args, dynamic=False):
    captured = capture(Subject(fn, args), dynamic=dynamic)
    return {r.target: r for r in summarize(*(c.gm for c in captured))}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_in_nodes_are_asked_too(unknown, dynamic):
    def good(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a - torch.tensor([1.0, 2.0]), (x,))

    def bad(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: unknown(a), (x,))

    x = torch.ones(3, 2)
    assert all(r.good == r.calls for r in rows_of(good, x, dynamic=dynamic).values())
    row = rows_of(bad, x, dynamic=dynamic)["cond"]
    assert (row.calls, row.good) == (1, 0)
    assert any("converter" in reason for reason in row.reasons)


def test_constants_of_a_graph_that_is_traced_in_a_fake_mode():
    """As ``config.debug.fx_summary`` calls it, inside the caller's modes."""
    captured = capture(Subject(lambda x: x + torch.tensor([1.0, 2.0]), (torch.ones(2),)))
    with FakeTensorMode():
        assert all(r.good == r.calls for r in summarize(*(c.gm for c in captured)))
