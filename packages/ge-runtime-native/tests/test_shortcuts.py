"""Short cuts of the engine: what each does not ask for is listed, and a short cut that is dropped is named.

A plan hook that never asks for an attribute loses its short cut as soon as a graph writes that attribute: the numbers
stay, the speed goes. `shortcuts.tsv` lists every such attribute and port with its reason, strictly.
"""

import functools
import inspect
import logging
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from ge_graph import DataType, Graph, building, schema
from ge_graph import ops as ge
from ge_runtime.cpu import registry
from ge_runtime.cpu.planner import Planner, schedule

TABLE = Path(__file__).with_name("shortcuts.tsv")
HOOKED = {op: kernel for op, kernel in registry.registered().items() if kernel.plan is not None}


def texts(fn, seen=None):
    """All texts that a function may ask for: its own, those of the tables it reads and of the functions it calls."""
    seen = set() if seen is None else seen
    fn = inspect.unwrap(fn)
    if isinstance(fn, functools.partial):
        return texts(fn.func, seen) | _of(fn.args) | _of(fn.keywords)
    if not isinstance(fn, types.FunctionType) or fn in seen or not fn.__module__.startswith("ge_runtime"):
        return set()
    seen.add(fn)
    found = _of(fn.__code__.co_consts)
    reached = [fn.__globals__[n] for n in fn.__code__.co_names if n in fn.__globals__]
    reached += [cell.cell_contents for cell in fn.__closure__ or ()]
    for value in reached:
        found |= texts(value, seen) if callable(value) else _of(value)
    return found


def _of(value):
    if isinstance(value, str):
        return {value}
    if isinstance(value, types.CodeType):
        return _of(value.co_consts)
    if isinstance(value, dict):
        return set().union(*map(_of, (*value, *value.values())))
    if isinstance(value, (tuple, list, set, frozenset)):
        return set().union(*map(_of, value))
    return set()


def never_asked():
    """(operator, optional port or attribute) that its plan hook cannot ask for."""
    for op, kernel in HOOKED.items():
        found, asked = schema.get(op), texts(kernel.plan)
        names = [p.name for p in found.inputs if p.kind != "required"] + [a.name for a in found.attrs]
        # Types are asked for with the output's own.
        yield from ((op, n) for n in names if n not in asked and n not in kernel.ignores and n != "dst_type")


def table():
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {(op, name): reason for op, name, reason in lines}


def test_what_a_short_cut_does_not_ask_for_has_a_reason():
    listed = table()
    assert set(never_asked()) == set(listed)
    assert [key for key, reason in listed.items() if len(reason) < 10] == []


def attention(lengths=False, **attrs):
    graph = Graph("g")
    with building(graph):
        if lengths:
            attrs |= {p: ge.Const(np.asarray([8])) for p in ("actual_seq_qlen", "actual_seq_kvlen")}
        q, k, v = (
            ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(1, 2, 8, 16), node_name=n) for i, n in enumerate("qkv")
        )
        y = ge.FlashAttentionScore(q, k, v, head_num=2, input_layout="BNSD", scale_value=0.25, **attrs)[3]
    graph.outputs = [y]
    return graph


def dropped(graph):
    planner = Planner(graph, schedule(graph), trace=False, constants={})
    planner.walk()
    return [(d.node.op, d.unasked) for d in planner.dropped]


def test_a_short_cut_that_serves_everything_is_taken():
    assert dropped(attention()) == []
    assert dropped(attention(pse_type=0, inner_precise=1, sparse_mode=0)) == []


def test_a_dropped_short_cut_is_named_with_what_it_did_not_ask_for(caplog):
    caplog.set_level(logging.DEBUG, "ge_runtime.cpu.planner")
    assert dropped(attention(lengths=True)) == [("FlashAttentionScore", ("actual_seq_qlen", "actual_seq_kvlen"))]
    assert "FlashAttentionScore 'FlashAttentionScore' runs its general kernel" in caplog.text
    assert "actual_seq_kvlen" in caplog.text


def test_what_is_dropped_in_a_branch_is_named_too():
    graph = Graph("g")
    with building(graph):
        flag = ge.Data(index=0, dtype=DataType.DT_BOOL, shape=())
        inputs = tuple(ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(1, 2, 8, 16)) for i in (1, 2, 3))
    node = graph.add("If", [flag, inputs], {}, [(DataType.DT_FLOAT, (1, 2, 8, 16))])
    node.subgraphs = {"then_branch": attention(), "else_branch": attention(lengths=True)}
    graph.outputs = list(node.outputs)
    assert dropped(graph) == [("FlashAttentionScore", ("actual_seq_qlen", "actual_seq_kvlen"))]


@pytest.mark.parametrize("lost", ["pse_type", "scale_value"])
def test_an_attribute_that_a_hook_forgets_is_found(lost, monkeypatch):
    """The lint sees it: with the name gone from the hook's own code, the table no longer fits."""
    kernel = HOOKED["FlashAttentionScore"]
    code = kernel.plan.__code__
    consts = tuple("" if c == lost else c for c in code.co_consts)
    forgetful = types.FunctionType(code.replace(co_consts=consts), kernel.plan.__globals__)
    monkeypatch.setattr(kernel.plan, "__code__", forgetful.__code__)
    assert ("FlashAttentionScore", lost) in set(never_asked())


def _attended(q, k, v):
    return ge.FlashAttentionScore(q, k, v, head_num=2, input_layout="BNSD", scale_value=0.25)[3]


@pytest.mark.parametrize(
    ("build", "most"),
    [
        (_attended, 6),  # two of them ask whether results of NaN are to be made anew
        (lambda q, k, v: ge.RotaryPositionEmbedding(q, k, v, mode=0), 2),
        (lambda q, k, v: ge.RotaryMul(q, k, v), 2),
        (lambda q, k, v: ge.Unsqueeze(q, axes=[4, 0]), 0),
    ],
)
def test_operators_of_a_decode_step_enter_few_python_functions(build, most):
    """In a step of one token they cost as much as the numbers."""
    graph = Graph("g")
    with building(graph):
        operands = [ge.Data(index=i, dtype=DataType.DT_FLOAT, shape=(1, 2, 8, 16)) for i in range(3)]
        graph.outputs = [build(*operands)]
    program = Planner(graph, schedule(graph), trace=False, constants={}).walk().program()
    given, entered = [torch.ones(1, 2, 8, 16) for _ in range(3)], []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        program.function(given)
    finally:
        sys.setprofile(None)
    assert len(entered) - 1 <= most, entered  # the program itself is one
