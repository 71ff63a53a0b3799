"""All that a compiled graph depends on: each row of the table, changed, is another key, and nothing else is."""

import dataclasses
import platform
import textwrap

import pytest
import torch

import torchair
from ge_converters.registry import REGISTRY
from ge_graph import schema
from tair_export.ranks import Rank
from tair_testing import warm
from torchair.artifact import dependencies
from torchair.artifact.content import Unknowable
from torchair.artifact.dependencies import ROWS, GraphToKeep, Method, key
from torchair.passes import patterns


class Net(torch.nn.Module):
    def __init__(self, layers=1):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def graph(function):
    return torch.fx.symbolic_trace(function)


def subject(**changes):
    model = Net()
    known = GraphToKeep(
        torchair.CompilerConfig(),
        graph(lambda x: torch.relu(x)),
        [torch.ones(2)],
        {torch.ops.aten.relu.default: torch.clamp_min},
        Method(Net.forward, (model,), True, ("tp None",)),
        "",
        Rank(0, 1),
    )
    return dataclasses.replace(known, **changes)


def changed_method(**changes):
    return subject(method=dataclasses.replace(subject().method, **changes))


def version_of(name):
    def change(patch):
        original = dependencies._version
        patch.setattr(dependencies, "_version", lambda n: "9.9" if n == name else original(n))

    return change


def a_converter(patch):
    def mine(x, *, meta_outputs):
        return x

    patch.setattr(REGISTRY, "_awaited", dict(REGISTRY._awaited))
    patch.setattr(REGISTRY, "_foreign", set(REGISTRY._foreign))
    REGISTRY.register("of_a_test.mine.default")(mine)


def a_schema(patch):
    patch.setattr(schema, "_user_rows", {"OfATest": {"op": "OfATest"}})


def a_rule(patch):
    rule = patterns.Registered("mine", "key", "graph", (lambda x: x, lambda x: x + 1))
    patch.setattr(patterns.RULES, "registered", [rule])


def a_decomposition_of_torch(patch):
    known = dependencies.registered_decompositions()
    added = (torch.ops.aten.relu.default, lambda x: x.clamp(0))
    patch.setattr(dependencies, "registered_decompositions", lambda: [*known, added])


def an_option(patch):
    config = torchair.CompilerConfig()
    config.experimental_config.remove_noop_ops = False
    return subject(config=config)


def a_chip(patch):
    config = torchair.CompilerConfig()
    config.check_soc = "ascend910b"
    return subject(config=config)


CHANGES = {
    "python": lambda patch: patch.setattr(platform, "python_version", lambda: "9.9"),
    "torch": lambda patch: patch.setattr(torch, "__version__", "9.9"),
    "torch_npu": version_of("torch-npu"),
    **{
        name: version_of(name)
        for name in (
            "numpy",
            "sympy",
            "torchair",
            "ge-graph",
            "ge-converters",
            "ge-runtime-native",
            "tair-export",
        )
    },
    "code": lambda patch: patch.setattr(dependencies, "_own_files", lambda: ("other", 0.0)),
    "converters": a_converter,
    "operator schemas": a_schema,
    "rules": a_rule,
    "torch decompositions": a_decomposition_of_torch,
    "options": an_option,
    "kernels": a_chip,
    "AOTAutograd": lambda patch: patch.setattr(dependencies, "aot_settings", lambda: "others"),
    "state": lambda patch: patch.setattr(torch, "is_inference_mode_enabled", lambda: True),
    "graph": lambda patch: subject(graph=graph(lambda x: torch.sigmoid(x))),
    "inputs": lambda patch: subject(inputs=[torch.ones(3)]),
    "decompositions": lambda patch: subject(decompositions={}),
    "gears": lambda patch: subject(gears="2, 4"),
    "rank": lambda patch: subject(rank=Rank(0, 2)),
    "source": lambda patch: changed_method(bound=(Net(2),)),
    "dynamic": lambda patch: changed_method(dynamic=False),
    "parallel": lambda patch: changed_method(parallel=("tp 1",)),
}
TOGETHER = {"kernels": {"options"}}


def test_every_row_has_its_change():
    assert set(CHANGES) == {row.name for row in ROWS}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_row_is_another_key(name, monkeypatch):
    before = key(subject())
    after = key(CHANGES[name](monkeypatch) or subject())
    different = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    assert different - TOGETHER.get(name, set()) == {name}


def test_which_attention_is_allowed_is_state():
    """By it torch traces F.scaled_dot_product_attention to one operator or to another."""
    before = key(subject())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        after = key(subject())
    assert {n for n in before if before[n] != after[n]} == {"state"}


def test_what_makes_no_difference_is_the_same_key():
    """Another object of the same content, elements of parameters, the order of a dict, an option that only looks."""
    aten = torch.ops.aten
    two = {aten.relu.default: torch.clamp_min, aten.abs.default: torch.neg}
    config = torchair.CompilerConfig()
    config.debug.deadlock_check = False
    other = subject(decompositions=dict(reversed(two.items())), config=config)
    assert key(other) == key(subject(decompositions=two))


def test_a_graph_that_is_traced_already_does_not_depend_on_how():
    names = key(GraphToKeep(torchair.CompilerConfig(), graph=graph(lambda x: torch.relu(x)))).keys()
    assert "graph" in names
    assert not names & {"state", "decompositions", "torch decompositions", "AOTAutograd", "inputs", "source"}


def test_what_cannot_be_known_names_the_row_and_the_culprit():
    import threading

    lock = threading.Lock()
    with pytest.raises(
        Unknowable, match=r"decompositions: the decomposition of aten.relu.default depends on _thread.lock"
    ):
        key(subject(decompositions={torch.ops.aten.relu.default: lambda x: x if lock else x}))


# --- in processes ----------------------------------------------------------------------------------------------------

PROGRAM = """
import functools, threading, torch, torchair, users_helpers
from ge_graph import ops as ge
from torchair.npu_fx_compiler import get_compiler
aten = torch.ops.aten

@torchair.register_fx_node_ge_converter(aten.sin.default)
def mine(self, *, meta_outputs):
    return ge.Mul(self, ge.Const(2.0))

def search(x):
    return torch.tanh(torch.exp(x))
def replace(x):
    return torch.tanh(torch.exp(x)) + 1
torchair.register_replacement(search, replace, [torch.ones(2)])

def made(k):
    return lambda x: x * k
def with_default(x, k=3.0):
    return x * k
def with_argument(k, x):
    return x * k
DECOMPOSITIONS = {aten.erf.default: made(2.0), aten.erfc.default: with_default,
                  aten.cos.default: functools.partial(with_argument, 5.0)}

def f(x):
    return torch.sin(x), torch.tanh(torch.exp(x)), torch.erf(x), torch.erfc(x), torch.cos(x)

x = torch.tensor([0.5, 1.0])
backend = torchair.get_npu_backend(custom_decompositions=DECOMPOSITIONS)
with torchair.record_compilation() as reports, torch.no_grad():
    got = torch.compile(f, backend=backend)(x)
print([[round(float(v), 4) for v in t] for t in got])
print(sum(r.stages.get("lower", 0) > 0 for r in reports))
"""
HELPERS = "def unused(x):\n    return x\n"
MISSES = {
    "a converter's body": ("ge.Const(2.0)", "ge.Const(7.0)"),
    "a replacement": ("torch.tanh(torch.exp(x)) + 1", "torch.tanh(torch.exp(x)) + 7"),
    "a closure": ("made(2.0)", "made(7.0)"),
    "a default": ("k=3.0", "k=7.0"),
    "an argument of a partial": ("with_argument, 5.0", "with_argument, 7.0"),
}
HITS = {
    "a comment in another file": (HELPERS, HELPERS + "# a comment\n"),
    "the order of a dict": (
        "{aten.erf.default: made(2.0), aten.erfc.default: with_default,",
        "{aten.erfc.default: with_default, aten.erf.default: made(2.0),",
    ),
}


@pytest.mark.slow
@pytest.mark.unverified  # replacements that compute something else show whether they were taken
def test_edits_in_place_are_misses_and_what_is_no_edit_is_a_hit(tmp_path):
    """One process an edit, all with one folder: numbers are those of a process without a cache."""
    script, helpers = tmp_path / "program.py", tmp_path / "users_helpers.py"

    def run(program, beside=HELPERS, cached=True):
        script.write_text(textwrap.dedent(program))
        helpers.write_text(beside)
        variables = {**dict(__import__("os").environ), "TORCHAIR_CACHE_DIR": str(tmp_path / "c") if cached else ""}
        *numbers, lowered = warm.run(script, env=variables).stdout.splitlines()
        return numbers, int(lowered)

    first, lowered = run(PROGRAM)
    assert lowered == 1
    for old, new in HITS.values():
        edited = PROGRAM.replace(old, new), HELPERS.replace(old, new)
        assert edited != (PROGRAM, HELPERS)
        assert run(*edited) == (first, 0)
    for what, (old, new) in MISSES.items():
        assert PROGRAM.count(old) == 1, what
        edited = PROGRAM.replace(old, new)
        numbers, lowered = run(edited)
        assert lowered == 1, what
        assert numbers != first, what
        assert (numbers, 1) == run(edited, cached=False), what


def test_tables_of_chips_are_files_of_our_own(monkeypatch):
    seen = []
    monkeypatch.setattr(dependencies, "digest", lambda rows: seen.extend(rows) or "")
    dependencies._own_files.__wrapped__()
    assert {row.split()[0] for row in seen} >= {"data/chip_figures.tsv", "data/kernel_evidence.tsv", "data/ops.jsonl"}
