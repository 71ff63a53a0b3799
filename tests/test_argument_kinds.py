"""Converters called with arguments of other kinds: results equal eager's, or a refusal with its reason.

A part of the calls that ``make fuzz-arguments`` makes.
"""

import pytest
import torch

from ge_converters import F32, Support
from ge_converters.registry import REGISTRY
from ge_converters.report import smoke
from labs.fuzz import arguments
from labs.fuzz.arguments import OperatorCall, Symbol, check, draw, run

CALLS = range(1_000_000, 1_000_600)


@pytest.mark.slow
def test_calls_equal_eager_or_are_refused():
    outcomes = dict(run(CALLS))
    assert not {str(draw(seed)): o.detail for seed, o in outcomes.items() if o.status == "wrong"}
    statuses = [o.status for o in outcomes.values()]
    assert statuses.count("equal") > len(CALLS) / 3
    assert all(o.detail for o in outcomes.values() if o.status == "refused")


def test_every_converter_has_its_turn():
    every = {entry.name for entry, _ in arguments.forms()}
    assert len(every) > 400
    assert {draw(seed).entry.name for seed in range(len(every))} == every


def test_every_kind_is_drawn():
    calls = [draw(seed) for seed in range(3000)]
    values = [v for c in calls for v in (*c.args, *c.kwargs.values())]
    tensors = [t for c in calls for t in arguments._stand_ins(c)]
    assert {t.dtype for t in tensors} >= set(arguments._TYPES)
    assert any(t.shape == () for t in tensors)
    assert any(0 in t.shape for t in tensors)
    assert any(t.strides for t in tensors)
    assert {type(v) for v in values} >= {Symbol, bool, int, float, complex, list, type(None), torch.dtype}
    assert [] in values
    assert any(type(v) is int and v < 0 for v in values)
    assert any(c.dynamic for c in calls)


def call(op, *args, **kwargs):
    return OperatorCall(REGISTRY.find(op), Support(*args, **kwargs), args, kwargs)


@pytest.fixture(scope="module")
def engine():
    return smoke.find_engine("cpu")


def broken(fn):
    """The outcome of relu with another converter."""
    relu = torch.ops.aten.relu.default
    REGISTRY.register(relu)(fn)
    try:
        return check(call(relu, F32(2, 3)), smoke.find_engine("cpu"))
    finally:
        REGISTRY.unregister(relu)


def test_a_wrong_converter_is_seen():
    from ge_graph import ops as ge

    def fails(self, *, meta_outputs):
        raise IndexError("oops")

    assert "IndexError" in broken(fails).kind
    assert broken(lambda self, meta_outputs: ge.Neg(self)).kind == "aten.relu.default: values"
    assert "GE2007" in broken(lambda self, meta_outputs: ge.Cast(self, dst_type=9)).detail


def test_what_eager_refuses_does_not_count(engine):
    cat = torch.ops.aten.cat.default
    assert check(call(cat, [F32(2), F32(2, 3)], 0), engine).status == "not run"
    assert check(call(cat, [F32(2), F32(3)], -2), engine).status == "not run"
    assert check(call(cat, [F32(2), F32(3)], -1), engine).status == "equal"


def test_a_crash_is_told_apart_by_who_crashed(monkeypatch):
    def crash(call, engine, say):
        say("eager" if call.entry.name < "aten.b" else "ours")
        import os

        os._exit(1)

    monkeypatch.setattr(arguments, "check", crash)
    eager = next(s for s in range(1000) if draw(s).entry.name < "aten.b")
    ours = next(s for s in range(1000) if draw(s).entry.name > "aten.b")
    assert [(s, o.status) for s, o in run([eager, ours])] == [(eager, "not run"), (ours, "wrong")]
