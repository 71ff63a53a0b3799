"""Captured programs on disk: what a second start gets, and what it must not trust."""

import json
import os

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from ge_graph.errors import GeError
from torchair.artifact.plain import Unstorable, operator_of
from torchair.artifact.program_body import ProgramBody
from torchair.config.compiler_config import captured_config
from torchair.inference import cache_compile, readable_cache
from torchair.runtime.reduce_overhead import plan_capture

aten = torch.ops.aten


class Step(torch.nn.Module):
    """A decode step: a cache written at a position, a constant, a result that is a view, a list of the caller."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(8, 4))

    def forward(self, x, at, more):
        y = self.fc(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.cache.select(0, at).copy_(y.sum(0))
        more[0].add_(1)
        return y.t(), self.cache.softmax(1), more[0] + x.shape[0]


class Wide(torch.nn.Module):
    """Results of several forms, halves, integers, masks, no dimensions."""

    def forward(self, x):
        half = x.to(torch.float16)
        values, places = x.topk(2, dim=-1)
        return {
            "half": half @ half.t(),
            "pair": (values, places),
            "mask": x > 0,
            "sum": x.sum(),
            "none": None,
            "rounded": torch.div(x, 0.5, rounding_mode="floor"),
            "wide": x.expand(2, *x.shape),
            "big": x * 1e30 * 1e30,
        }


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.nn.functional.gelu(self.fc(x))


CASES = {
    "step": (Step, lambda n: (torch.randn(n, 4), n + 2, [torch.zeros(())])),
    "wide": (Wide, lambda n: (torch.randn(n, 4),)),
    "half": (lambda: Half().half(), lambda n: (torch.randn(n, 4, dtype=torch.float16),)),
}


def config(folder=None, **options):
    made = captured_config(options)
    if folder is not None:
        made.cache_dir = str(folder)
    return made


def through_cache_compile(model, folder, dynamic):
    return cache_compile(model.forward, config=config(), cache_dir=str(folder), dynamic=dynamic)


def through_torch_compile(model, folder, dynamic):
    backend = torchair.get_npu_backend(compiler_config=config(folder))
    return torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)


DOORS = {"cache_compile": through_cache_compile, "torch.compile": through_torch_compile}


def flat(value):
    return torch.utils._pytree.tree_flatten(value)


def equal(got, want):
    (a, first), (b, second) = flat(got), flat(want)
    assert first == second
    for x, y in zip(a, b):
        if isinstance(y, torch.Tensor):
            assert x.dtype == y.dtype
            assert x.stride() == y.stride()
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        else:
            assert x == y


@pytest.fixture
def warnings(monkeypatch):
    seen = []
    for name in ("warning", "warning_once", "tell"):
        monkeypatch.setattr(torchair.logger, name, lambda text, *args: seen.append(text % args if args else text))
    return seen


@pytest.mark.night(rows=3)
@pytest.mark.parametrize("dynamic", [True, False], ids=("dynamic", "static"))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("door", DOORS)
def test_a_second_start_compiles_nothing_and_gives_the_same_bits(door, case, dynamic, tmp_path, warnings):
    make, arguments = CASES[case]
    sizes = (3, 5, 3) if dynamic else (3, 3)
    results = []
    for start in range(3):  # the first is eager
        torch.manual_seed(0)
        model = make().eval()
        torch._dynamo.reset()
        call = model if not start else DOORS[door](model, tmp_path, dynamic)
        with torch.no_grad(), torchair.record_compilation() as reports:
            made = [(args, call(*args)) for args in map(arguments, sizes)]
        results.append((made, dict(model.named_buffers())))
        assert not warnings
        if start == 2:
            assert all("reduce-overhead" not in r.stages for r in reports), "a program was planned again"
            assert len(reports) == 1
    for got in results[1:]:
        equal(got, results[0])


def test_what_cannot_be_kept_is_said_in_a_python_warning(tmp_path, monkeypatch):
    """Where the log prints errors only, which is its default."""
    monkeypatch.setattr(torchair.logger, "_said", set())

    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    call = cache_compile(branch, config=config(), cache_dir=str(tmp_path / "a"))
    with pytest.warns(UserWarning, match="not cached: a graph inside the graph"):
        assert call(torch.ones(2)).tolist() == [2, 2]
    backend = torchair.get_npu_backend(compiler_config=config(tmp_path / "b"))
    with pytest.warns(UserWarning, match="not cached"):
        assert torch.compile(branch, backend=backend)(torch.ones(2)).tolist() == [2, 2]
    layer = torch.nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="keeps no graphs with gradients"):
        torch.compile(layer, backend=backend)(torch.ones(2)).sum().backward()


def test_a_number_that_goes_through_is_not_kept_as_it_was(tmp_path, warnings):
    def step(x, n):
        return x + n, n

    for _ in range(2):
        torch._dynamo.reset()
        call = cache_compile(step, cache_dir=str(tmp_path))
        assert [call(torch.ones(2), n)[1] for n in (7, 8)] == [7, 8]
    assert any("a result is 7, as is input n" in text for text in warnings)


def test_an_entry_can_be_read_by_people(tmp_path):
    model = Step().eval()
    with torch.no_grad():
        through_cache_compile(model, tmp_path, True)(*CASES["step"][1](3))
    (entry,) = tmp_path.rglob("compiled_module")
    text = readable_cache(entry, print_output=False)
    assert "torch.ops.aten.select" in text or "index_copy" in text
    assert f"test_program_body.py:{Step.forward.__code__.co_firstlineno + 1} in forward" in text


# --- files of others -------------------------------------------------------------------------------------------------


def body_of(fn, *args):
    gm = make_fx(fn)(*args)
    return ProgramBody.of(plan_capture(gm, "cpu", config().aclgraph_config, title="t", static=frozenset()))


def written(body):
    pieces, binding = body.to_data()
    return b"".join(pieces), json.loads(json.dumps(binding))


def changed(content, binding, edit):
    graphs, rest = json.loads(content[: binding["size"]]), content[binding["size"] :]
    edit(graphs)
    text = json.dumps(graphs).encode()
    return text + rest, {**binding, "size": len(text)}


def kept():
    constant = torch.tensor([1.0, 2.0])
    return written(body_of(lambda x: (x + constant, x.t()), torch.ones(2, 2)))


def test_a_program_is_the_same_after_a_file():
    content, binding = kept()
    plan = ProgramBody.from_data(memoryview(content), binding).plan
    assert plan.program([torch.zeros(2, 2)])[0].tolist() == [[1, 2], [1, 2]]
    assert written(ProgramBody.from_data(memoryview(content), binding)) == (content, binding)


def calls(graphs):
    return next(step for step in graphs["program"] if step[0] == "call")


HOSTILE = {
    "a file": lambda g: calls(g).__setitem__(2, "aten.from_file.default"),
    "output": lambda g: calls(g).__setitem__(2, "aten._print.default"),
    "no operator": lambda g: calls(g).__setitem__(2, "aten.__class__.default"),
    "a namespace of modules": lambda g: calls(g).__setitem__(2, "os.path.join"),
    "loading": lambda g: calls(g).__setitem__(2, "torch.ops.load_library"),
    "text": lambda g: calls(g).__setitem__(2, "aten.add.Tensor\nimport os"),
    "a function": lambda g: (calls(g).__setitem__(2, "os.system"), calls(g).__setitem__(0, "number")),
    "eval": lambda g: (calls(g).__setitem__(2, "builtins.eval"), calls(g).__setitem__(0, "number")),
    "a task that is none": lambda g: calls(g).__setitem__(0, "task"),
    "a later step": lambda g: calls(g)[3].__setitem__(0, {"step": 99}),
    "itself": lambda g: calls(g)[3].__setitem__(0, {"step": g["program"].index(calls(g))}),
    "a keyword": lambda g: calls(g)[4].__setitem__("x y", 1),
    "a dunder": lambda g: calls(g)[4].__setitem__("__class__", 1),
    "another kind": lambda g: calls(g).__setitem__(0, "eval"),
    "no end": lambda g: g["program"].pop(),
    "results within": lambda g: g["program"].insert(1, g["program"][-1]),
    "another input": lambda g: g["program"].insert(0, ["input", "z"]),
    "a constant that is not there": lambda g: g["constants"].clear(),
    "a larger constant": lambda g: g["constants"][0].__setitem__(1, [1 << 40]),
    "a smaller constant": lambda g: g["constants"][0].__setitem__(1, [1]),
    "a type that is none": lambda g: g["constants"][0].__setitem__(0, {"torch": "load"}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_program_is_refused(what):
    content, binding = changed(*kept(), HOSTILE[what])
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError, IndexError, GeError)):
        ProgramBody.from_data(memoryview(content), binding).plan.program([torch.zeros(2, 2)])


BINDINGS = {
    "kinds": ["other"],
    "symbolic": [7],
    "results": [5, 0],
    "numbers": [3],
    "memory": [["x", "cpu"]],
    "size": 1 << 30,
    "returned": [],
    "views": [{"node": 9, "target": "aten.add_.Tensor", "args": [], "kwargs": {}}],
}


@pytest.mark.parametrize("what", BINDINGS)
def test_a_plan_that_does_not_fit_is_refused(what):
    content, binding = kept()
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        ProgramBody.from_data(memoryview(content), {**binding, what: BINDINGS[what]})


def test_operators_of_others_take_tensors_and_numbers_only():
    with torch.library._scoped_library("kept_test", "DEF") as lib:
        lib.define("plain(Tensor x, int[] n, float? a=None) -> Tensor")
        lib.define("named(Tensor x, str command) -> Tensor")
        for name in ("plain", "named"):
            lib.impl(name, lambda x, *more: x, "CPU")
        assert operator_of("kept_test.plain.default") is torch.ops.kept_test.plain.default
        with pytest.raises(ValueError, match="argument 'command' is neither a tensor nor a number"):
            operator_of("kept_test.named.default")


def test_what_has_no_name_has_no_form():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    y = graph.call_function(os.path.exists, (x,))
    graph.output((y,))
    gm = torch.fx.GraphModule({}, graph)
    planned = plan_capture(gm, "cpu", config().aclgraph_config, title="t", static=frozenset())
    with pytest.raises(Unstorable, match="a call of exists, which is no operator of torch"):
        ProgramBody.of(planned).to_data()
