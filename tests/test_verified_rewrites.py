"""No false alarm of ``config.debug.verify_rewrites``: programs and models whose numbers are right compile under it."""

import math
import os
import re
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from labs.fuzz.compare import check
from labs.fuzz.program import draw, read
from tools import models
from torchair.passes.proofs import RewriteWatch, tolerances

CORPUS = sorted((Path(__file__).parent / "corpus" / "programs").glob("*.json"))
WHOLE = os.environ.get("TAIR_WHOLE") == "1"  # as `make rewrites` sets it: every model in each way


@pytest.fixture(autouse=True)
def verifying(monkeypatch):
    monkeypatch.setenv("TAIR_VERIFY_REWRITES", "1")
    torch._dynamo.reset()


def evaluated(reports):
    """How many rewrites were evaluated, and the lines of those that could not be."""
    assert all(report.rewrites for report in reports)
    counts = [int(re.match(r"\d+", report.rewrites[0])[0]) for report in reports]
    return sum(counts), [line for report in reports for line in report.rewrites[1:]]


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_corpus(path):
    with torchair.record_compilation() as reports:
        assert check(read(path.read_text())) is None
    assert evaluated(reports)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2_000_000, 2_000_012 if WHOLE else 2_000_002))
def test_random_programs(seed):
    with torchair.record_compilation() as reports:
        finding = check(draw(seed, steps=12))
    assert finding is None or finding.expected, finding
    assert evaluated(reports)[1] == []


MODELS = [(name, way) for name in models.ZOO for way in ("static", "dynamic", "training")]
# No pass has anything to do in these.
UNCHANGED = {("resnet50", "static")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), MODELS if WHOLE else [("vit", "static")])
def test_models(name, way):
    case = models.ZOO[name]("tiny")
    for index, dims in case.free.items() if way == "dynamic" else ():
        for dim in dims:
            torch._dynamo.mark_dynamic(case.inputs[index], dim)
    model = case.model.train(way == "training")
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=way == "dynamic")
    with torchair.record_compilation() as reports, torch.set_grad_enabled(way == "training"):
        result = compiled(*case.inputs)
        if way == "training":
            result[0].sum().backward()
    count, left_open = evaluated(reports)
    assert (count == 0) == ((name, way) in UNCHANGED)
    assert left_open == []


def _heads(x):
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


def attention(q, k, v):
    scores = _heads(q) @ _heads(k).transpose(2, 3) * 0.25
    return (scores.softmax(-1) @ _heads(v)).transpose(1, 2).flatten(2)


def renormalised_routing(x):
    share, expert = torch.topk(x.softmax(-1), 3, dim=-1)
    return share / share.sum(-1, keepdim=True), expert


share_of_one = torch.tensor([[0.0, -200, -150, math.inf]])
infinite = torch.full((4, 9, 16), math.inf)
# A program that becomes the operator, and operands of which it is another function than the program written out.
OTHER = {
    "FlashAttentionScore": (attention, (infinite, -torch.ones(4, 2, 16), torch.ones(4, 2, 16)), "is 0.0, nan before"),
    "MoeGatingTopKSoftmaxV2": (renormalised_routing, (share_of_one,), r"is \d, \d before"),
}


def test_what_differs_of_some_operands_by_definition_has_a_case():
    assert OTHER.keys() == tolerances.OTHER_VALUES.keys()
    assert all(reason for _, reason in tolerances.OTHER_VALUES.values())


@pytest.mark.parametrize("op", OTHER)
def test_what_differs_of_some_operands_by_definition(op, monkeypatch):
    """The row is needed: the operator still differs from eager, and on all kinds of values the rule is caught."""
    program, operands, told = OTHER[op]
    with torch.no_grad():
        got = torch.compile(program, backend=torchair.get_npu_backend(), dynamic=False)(*operands)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(got, program(*operands), equal_nan=True)
    monkeypatch.setattr(tolerances, "OTHER_VALUES", {})
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=f"GE1025.*{op}.*{told}"), torch.no_grad():
        torch.compile(program, backend=torchair.get_npu_backend(), dynamic=False)(*operands)


# -- what cannot be evaluated -----------------------------------------------------------------------------------------

library = torch.library.Library("without_kernel", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: torch.empty_like(x), "Meta")
twice = torch.ops.without_kernel.twice.default


def reads_another(fn, size):
    """What is left open if the operand of a graph's first node is made anew, by the same operator."""
    gm = make_fx(fn, tracing_mode="fake")(torch.empty(size).expand(2, *size))
    watch, node = RewriteWatch(), next(n for n in gm.graph.nodes if n.op == "call_function")
    with watch.fx_pass("again", gm), gm.graph.inserting_after(node):
        other = gm.graph.call_function(node.target, node.args)
        node.replace_all_uses_with(other)
    return watch.open


def writes_input(ref_data):
    def step(cache, x):
        cache.add_(x)
        return cache * 2

    config = torchair.CompilerConfig()
    config.experimental_config.enable_ref_data = ref_data
    with torchair.record_compilation() as reports:
        torch.compile(step, backend=torchair.get_npu_backend(compiler_config=config))(torch.zeros(3), torch.ones(3))
    return evaluated(reports)[1]


# Why a rewrite stays without evidence; each row's case shows that it still does.
NOT_EVALUATED = {
    "an operator without kernel for CPU tensors, such as those of torch_npu": (
        lambda: reads_another(lambda x: twice(x).sin(), (3,)),
        [r"\('again', .*NotImplementedError.*without_kernel::twice"],
    ),
    "more than sixteen million elements, so that large models compile in bearable time": (
        lambda: reads_another(lambda x: x.exp().sin(), (1 << 24,)),
        [r"\('again', '\d+ elements are too many"],
    ),
    "write_inputs_in_place and replace_data_with_ref_data: the graph writes other memory by intent": (
        lambda: writes_input(True),
        ["write_inputs_in_place, 1 not evaluated: it m", "replace_data_with_ref_data, 1 not evaluated: it m"],
    ),
}


@pytest.mark.parametrize("row", NOT_EVALUATED)
def test_what_cannot_be_evaluated_is_named(row):
    case, expected = NOT_EVALUATED[row]
    found = case()
    assert len(found) == len(expected), found
    for line, pattern in zip(found, expected):
        assert re.match(pattern, str(line)), found


def test_a_graph_that_writes_its_inputs_is_evaluated_without_ref_data():
    assert writes_input(False) == []
