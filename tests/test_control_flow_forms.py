"""Graphs with graphs in their nodes through every form: texts, archives, exports, dumps, pages, reports, comparison."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from typer.testing import CliRunner

import torchair
from ge_graph import DataType, Graph, building, python_reader, python_source, serde, txt, verify
from ge_graph import ops as ge
from ge_graph.errors import ArchiveError, GraphError
from ge_graph.testing import assert_graphs_equal
from ge_runtime.cpu.engine import CpuEngine
from tair_debug import compare, graph_page
from tair_debug.cli import app
from tair_debug.models import Subject
from tair_export import load_air


class Branches(torch.nn.Module):
    """A branch in a branch, with a weight that only one of them reads; ``plain`` says what it means."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))

    def forward(self, x):
        def high(a):
            return torch.cond(a.max() > 1, lambda b: b @ self.weight, lambda b: b * 3, (a,))

        return torch.cond(x.sum() > 0, high, lambda a: a.cos() - 1, (x,))

    def plain(self, x):
        if x.sum() <= 0:
            return x.cos() - 1
        return x @ self.weight if x.max() > 1 else x * 3


class Rounds(torch.nn.Module):
    """A loop with a branch in it."""

    def forward(self, x):
        def body(i, a):
            return i + 1, torch.cond(a.sum() > 0, lambda b: b - 1, lambda b: b + 2, (a,))

        return while_loop(lambda i, a: i < 4, body, (x.new_zeros((), dtype=torch.int64), x))

    def plain(self, x):
        for _ in range(4):
            x = x - 1 if x.sum() > 0 else x + 2
        return torch.tensor(4), x


class Rows(torch.nn.Module):
    """Scans over rows, with a branch for each row."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(4, 4)

    def forward(self, x):
        state, rows = scan(lambda c, y: (torch.tanh(self.gate(c) + y), c * y), x.new_zeros(4), x)
        return state, map(lambda y: torch.cond(y.sum() > 0, lambda a: a * 2, lambda a: a - 1, (y,)), rows)

    def plain(self, x):
        state, rows = x.new_zeros(4), []
        for y in x:
            rows.append(state * y)
            state = torch.tanh(self.gate(state) + y)
        return state, torch.stack([r * 2 if r.sum() > 0 else r - 1 for r in rows])


class Totals(torch.nn.Module):
    """An associative scan: torch unrolls it by halves of the length, whose parities fix the length."""

    def forward(self, x):
        return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic", reverse=True)

    def plain(self, x):
        return x.flip(0).cumprod(0).flip(0)


@torch.compiler.nested_compile_region
def region(a, w):
    return (a @ w).sin()


class Regions(torch.nn.Module):
    """One region that is called twice."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))

    def forward(self, x):
        return region(region(x, self.weight), self.weight)

    def plain(self, x):
        return ((x @ self.weight).sin() @ self.weight).sin()


MODELS = {m.__name__: m for m in (Branches, Rounds, Rows, Regions)}
INNER = {"Branches": {"If"}, "Rounds": {"While", "If"}, "Rows": {"While", "If"}, "Regions": {"PartitionedCall"}}


def below(graph: Graph) -> list[Any]:
    """All nodes, also of inner graphs."""
    return [
        n
        for g in (graph, *(s for n in graph.nodes for s in n.subgraphs.values()))
        for n in (g.nodes if g is graph else below(g))
    ]


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(3)
    return MODELS[request.param]().eval()


def signs():
    """Inputs that take both branches."""
    x = torch.linspace(-1, 2, 20).view(5, 4)
    return [x, -x, x / 9]


def assert_plain(run, model, rows=(5,)):
    for count in rows:
        for x in signs():
            with torch.no_grad():
                torch.testing.assert_close(leaves(run(x[:count])), leaves(model.plain(x[:count])))


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_archive(model, dynamic, tmp_path):
    torchair.CompiledModel.save_graph(model, (signs()[0],), dynamic=dynamic, save_path=tmp_path)
    assert_plain(torchair.CompiledModel.load_graph(tmp_path), model, (5, 3) if dynamic else (5,))


@pytest.mark.slow
def test_export(model, tmp_path):
    torchair.dynamo_export(signs()[0], model=model, export_path=tmp_path, dynamic=True)
    assert_plain(torchair.CompiledModel.load_graph(tmp_path), model, (5, 2))
    assert_plain(load_air(tmp_path / "export.air"), model, (5, 2))
    graph = serde.from_bytes((tmp_path / "export.air").read_bytes())
    # torch.export writes regions out where they are called
    assert {n.op for n in below(graph)} >= INNER[type(model).__name__] - {"PartitionedCall"}
    shown = (tmp_path / "dynamo.pbtxt").read_text()
    assert all(f'op: "{n.op}"' in shown for n in below(graph))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_associative_scan_and_the_length_it_is_made_for(dynamic, tmp_path):
    model = Totals()
    torchair.CompiledModel.save_graph(model, (signs()[0],), dynamic=dynamic, save_path=tmp_path)
    loaded = torchair.CompiledModel.load_graph(tmp_path)
    assert_plain(loaded, model)
    for rows in (3, 4, 6, 7, 9):
        with pytest.raises(ArchiveError, match="GE5040"):
            loaded(torch.ones(rows, 4))
    assert compare.compare_model(
        Subject(model, (signs()[0].requires_grad_(),)), engine=compare.engine(), backward=True
    ).ok


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "pbtxt", "py", "html"])
def test_graph_dump(model, kind, tmp_path):
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type, config.debug.graph_dump.path = kind, str(tmp_path)
    compiled = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True)
    assert_plain(compiled, model)
    found = sorted(tmp_path.iterdir())
    assert found
    for path in found:
        text = path.read_text()
        assert all(op in text for op in INNER[type(model).__name__])
        if kind in ("txt", "py"):
            graph = txt.from_txt(text) if kind == "txt" else python_reader.run_py(text)
            assert {n.op for n in below(graph)} >= INNER[type(model).__name__]


@pytest.mark.slow
def test_dumped_values(model, tmp_path):
    """What is dumped of the run as a GE graph names inner operators too; the eager dump has the node as a whole."""
    for folder in ("ge", "fx"):
        (tmp_path / folder).mkdir()
    config = torchair.CompilerConfig()
    config.dump_config.enable_dump, config.dump_config.dump_path = True, str(tmp_path / "ge")
    assert_plain(torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config)), model)
    names = {p.name for p in (tmp_path / "ge").rglob("*") if p.is_file()}
    assert any(n.startswith(tuple(INNER[type(model).__name__])) for n in names), names
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.debug.data_dump.type, config.debug.data_dump.path = "npy", str(tmp_path / "fx")
    assert_plain(torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config)), model)
    assert [np.load(p, allow_pickle=False) for p in (tmp_path / "fx").rglob("*.npy")]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_comparison(model, dynamic):
    x = signs()[0].requires_grad_()
    if dynamic and isinstance(model, Regions):  # torch itself does not trace a second call with a weight and symbols
        with pytest.raises(Exception, match="KeyError"):  # an internal error of dynamo
            torch.compile(model, backend="eager", dynamic=True)(x)
        return
    subject = Subject(model, (x,))
    backward = not isinstance(model, Rounds)  # torch differentiates a loop only if it keeps all rounds
    found = compare.compare_model(subject, engine=compare.engine(), dynamic=dynamic, backward=backward)
    assert found.ok, found.first
    assert {r.op for r in found.rows} & INNER[type(model).__name__]


@pytest.mark.slow
def test_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(
        [
            "import torch",
            "class Net(torch.nn.Module):",
            "    def forward(self, x):",
            "        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a - 1, (x,))",
            "def make():",
            "    return Net(), torch.ones(3, 2)",
        ]
    )
    (tmp_path / "branch_model.py").write_text(source)

    def tair(*args):
        torch._dynamo.reset()
        done = CliRunner().invoke(app, [*args, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    assert tair("summary", "branch_model.py:make", "--html", "summary.html")["ok"]
    assert tair("compare", "branch_model.py:make")["ok"]
    tair("dump", "branch_model.py:make")
    tair("view", "branch_model.py:make", "-o", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "then_branch" in page
    assert "Sin" in page
    assert "branch_model.py" in (tmp_path / "summary.html").read_text()


# -- Case, which torch has no operator for ----------------------------------------------------------------------------

F, I32 = DataType.DT_FLOAT, DataType.DT_INT32


def switch(formulas, *, nested=False, type_of_index=I32, shape_of_index=()) -> Graph:
    """A graph that computes one of several formulas of x and y, by a number."""
    graph = Graph("switch")
    with building(graph):
        number = ge.Data(index=0, dtype=type_of_index, shape=shape_of_index)
        x, y = (ge.Data(index=k, dtype=F, shape=("n", 2)) for k in (1, 2))
        branches = [branch(f"branch_{k}", formula, number if nested else None) for k, formula in enumerate(formulas)]
        given = [x, y, number] if nested else [x, y]
        made = ge.Case(number, given, branches=branches, size_of_output=1)
        (out,) = made if isinstance(made, (list, tuple)) else (made,)
        out.record_shape(("n", 2))
        graph.outputs = [ge.Neg(out)]
    return graph


def branch(name, formula, number=None) -> Graph:
    graph = Graph(name)
    with building(graph):
        data = [ge.Data(index=k, dtype=F, shape=("n", 2)) for k in (0, 1)]
        if number is None:
            graph.outputs = [formula(*data)]
        else:  # the same choice again inside
            again = ge.Data(index=2, dtype=number.dtype, shape=number.known_shape)
            inner = [
                branch(f"{name}_{k}", lambda a, b, k=k: ge.Muls(formula(a, b), value=float(k + 1))) for k in (0, 1)
            ]
            made = ge.Case(again, data, branches=inner, size_of_output=1)
            graph.outputs = [made[0] if isinstance(made, (list, tuple)) else made]
    return graph


FORMULAS = {
    "Add": (lambda a, b: ge.Add(a, b), lambda a, b: a + b),
    "Sub": (lambda a, b: ge.Sub(a, b), lambda a, b: a - b),
    "Mul": (lambda a, b: ge.Mul(a, b), lambda a, b: a * b),
    "first": (lambda a, b: ge.Identity(a), lambda a, b: a),
    "Maximum": (lambda a, b: ge.Maximum(a, b), torch.maximum),
}
FORMS = {
    "as built": lambda g: g,
    "bytes": lambda g: serde.from_bytes(serde.to_bytes(g)),
    "txt": lambda g: txt.from_txt(txt.to_txt(g)),
    "python": lambda g: python_reader.run_py(python_source.to_py(g)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("nested", [False, True])
def test_case_in_every_form(form, count, nested):
    chosen = list(FORMULAS)[:count]
    graph = switch([FORMULAS[n][0] for n in chosen], nested=nested)
    verify.verify(graph)
    back = FORMS[form](graph)
    assert_graphs_equal(back, graph)
    run = CpuEngine().compile(back, {})
    for rows in (1, 3):
        x, y = torch.randn(rows, 2), torch.randn(rows, 2)
        for number in (*range(count), count, count + 7, -1, -(2**31), 2**31 - 1):
            at = number if 0 <= number < count else count - 1  # GE: what is outside means the last branch
            want = FORMULAS[chosen[at]][1](x, y)
            if nested:
                want = want * (1 if number == 0 else 2)
            (got,) = run.run([torch.tensor(number, dtype=torch.int32), x, y])
            torch.testing.assert_close(got, -want)


def test_case_in_an_archive_and_on_a_page(tmp_path):
    graph = switch([f for f, _ in FORMULAS.values()], nested=True)
    path = tmp_path / "switch.air"
    path.write_bytes(serde.to_bytes(graph))
    run = load_air(path)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    for number in range(-1, 7):
        at = number if 0 <= number < len(FORMULAS) else len(FORMULAS) - 1
        want = list(FORMULAS.values())[at][1](x, y) * (1 if number == 0 else 2)
        torch.testing.assert_close(leaves(run(torch.tensor(number, dtype=torch.int32), x, y)), [-want])
    page = graph_page.to_html(graph)
    assert all(op in page for op in ("Case", "Maximum", "Muls"))


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (lambda: switch([FORMULAS["Add"][0]], shape_of_index=(3,)), "one element"),
        (lambda: switch([FORMULAS["Add"][0], lambda a, b: ge.Equal(a, b)]), "DT_BOOL"),
    ],
)
def test_case_that_does_not_fit_is_refused(graph, says):
    with pytest.raises(GraphError, match=says):
        verify.verify(graph())


def test_case_whose_number_is_of_another_type_is_refused():
    with pytest.raises(GraphError, match="branch_index"):
        verify.verify(switch([FORMULAS["Add"][0]], type_of_index=DataType.DT_INT64))
