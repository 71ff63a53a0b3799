"""Faults that are put into small models of each kind end as few operators, and are still the same fault."""

import random

import pytest
import torch

from ge_converters.base.errors import Refusal
from ge_converters.registry import REGISTRY
from tair_debug import compare as work
from tair_debug import minify
from tair_debug.models import Subject
from tests.test_compare_models import FAULTS, HEALTHY, TYPES, UNSUITED

_CALM = [n for n in HEALTHY if n not in UNSUITED]
_SOURCES = ("Data", "RefData", "Const", "Constant", "NetOutput")


class Wrong:
    """The embedded engine, with one kind of operator whose floating results are others."""

    def __init__(self, op, change):
        self.op, self.change, self.engine = op, change, work.engine()

    def compile(self, graph, options):
        return _Run(self, self.engine.compile(graph, options))


class _Run:
    def __init__(self, wrong, inner):
        self.wrong, self.inner = wrong, inner

    def run_traced(self, inputs, on_node):
        def changed(node, ins, outs):
            if node.op == self.wrong.op and outs[0] is not None and outs[0].is_floating_point():
                outs[0].data = self.wrong.change(outs[0]).contiguous()
            on_node(node, ins, outs)

        return self.inner.run_traced(inputs, changed)

    def run(self, inputs):
        return self.run_traced(inputs, lambda node, ins, outs: None)


def subject(seed):
    torch._dynamo.reset()
    torch.manual_seed(seed)
    make, inputs = HEALTHY[_CALM[seed * 7 % len(_CALM)]]
    kind = list(TYPES.values())[seed % 3]
    return Subject(make().to(kind).eval(), (inputs().to(kind),))


def shrunk(seed):
    """The outcome of a fault, None where the model has none of its kind."""
    draw, kind = random.Random(seed), ("wrong", "refused", "error")[seed % 3]
    model = subject(seed // 3)
    (program, *_) = minify._graphs(model, False, False)
    torch._dynamo.reset()
    if kind == "wrong":
        ops = ge_operators(program)
        if not ops:
            return None
        return minify.minify(model, engine=Wrong(draw.choice(ops), draw.choice(FAULTS[:2])))
    target = draw.choice(sorted({n.target for n in program.calls}, key=str))

    def stop(*args, **kwargs):
        raise Refusal("not here") if kind == "refused" else ZeroDivisionError("a fault")

    entry = REGISTRY.find(target)
    if entry is None:
        return None
    before = entry.fn
    object.__setattr__(entry, "fn", stop)
    try:
        return minify.minify(model)
    finally:
        object.__setattr__(entry, "fn", before)


def ge_operators(program):
    seen = set()
    pair = work.SideBySide(program.gm, "look", work.engine(), work.Tolerance(), lambda row, *_: seen.add(row.op))
    pair(*program.args)
    return sorted(seen - {*_SOURCES, ""})


def check(seeds):
    large, none = [], []
    for seed in seeds:
        result = shrunk(seed)
        if result is None or result.ok:
            none.append(seed)
        elif len(result.program.calls) > 5:
            large.append((seed, result.name, str(result.fault), len(result.program.calls)))
    return large, none


def test_some_faults():
    large, none = check(range(9))
    assert not large
    assert len(none) <= 3


@pytest.mark.night
@pytest.mark.slow
def test_a_hundred_and_twenty_faults():
    """At most 5 of 100 keep more than five operators."""
    large, none = check(range(150))
    assert 150 - len(none) >= 120
    assert len(large) <= 6, large
