"""Branches, loops and nested regions as ``backend="aot_eager"`` runs them, forward and backward, three runs each.

``TAIR_WHOLE=1`` (``make torch-suites``) compiles each with fixed and with symbolic sizes; without it in one of the
ways, by turns.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch.utils.checkpoint import checkpoint

import torchair
from ge_graph import python_reader, python_source, serde, txt
from ge_graph.testing import graph_differences

BACKEND = torchair.get_npu_backend()
WHOLE = os.environ.get("TAIR_WHOLE") == "1"


@dataclass(frozen=True)
class Program:
    name: str
    fn: Any
    args: tuple[Any, ...]
    grad: bool = False
    ops: tuple[str, ...] = ()


def ramp(*sizes: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    count = torch.Size(sizes).numel()
    return (torch.sin(torch.arange(1, count + 1) * 1.7) * 2).reshape(sizes).to(dtype).requires_grad_(grad)


X, W = ramp(3, 4, grad=True), ramp(4, 4, grad=True)
D, V = X.detach(), W.detach() / 3


@torch.compiler.nested_compile_region
def region(x, w):
    return (x @ w).sin()


def zero():
    return torch.tensor(0)


def count_up(fn, *values, until=5):
    return while_loop(lambda i, *a: i < until, lambda i, *a: (i + 1, *fn(i, *a)), (zero(), *values))


PROGRAMS = [
    Program(
        "cond",
        lambda x, w: torch.cond(x.sum() > 0, lambda a: (a @ w).sin(), lambda a: (a @ w).cos() + 1, (x,)),
        (X, W),
        True,
        ("If",),
    ),
    Program(
        "cond, other branch",
        lambda x, w: torch.cond(x.sum() > 99, lambda a: a @ w, lambda a: a.cos() + 1, (x,)),
        (X, W),
        True,
    ),
    Program(
        "cond of several results",
        lambda x: torch.cond(
            x.sum() > 0, lambda a: {"a": a + 1, "b": (a * 2).sum()}, lambda a: {"a": a - 1, "b": a.max()}, (x,)
        ),
        (D,),
    ),
    Program("cond on a size", lambda x: torch.cond(x.shape[0] > 2, lambda a: a + 1, lambda a: a - 1, (x,)), (D,)),
    Program(
        "cond nested",
        lambda x: torch.cond(
            x.sum() > 0,
            lambda a: torch.cond(a.max() > 1, lambda b: b * 2, lambda b: b * 3, (a,)),
            lambda a: torch.cond(a.min() < -1, lambda b: b - 2, lambda b: b - 3, (a,)),
            (x,),
        ),
        (D,),
    ),
    Program("cond without operands", lambda x: torch.cond(x.sum() > 0, lambda: x + 1, lambda: x.sin()), (D,)),
    Program(
        "cond of integers",
        lambda x: torch.cond(x.sum() > 0, lambda a: a.sum(1, dtype=torch.int64), lambda a: a.argmax(1), (x,)),
        (D.to(torch.int32),),
    ),
    Program(
        "cond with sizes inside",
        lambda x: torch.cond(x.sum() > 0, lambda a: a * a.shape[0], lambda a: a * a.shape[1], (x,)),
        (D,),
    ),
    Program(
        "cond of two sizes", lambda x: torch.cond(x.sum() > 0, lambda a: a[:2].clone(), lambda a: a + 0, (x,)), (D,)
    ),
    Program("cond of bool", lambda x, m: torch.cond(m.any(), lambda a: a > 0, lambda a: a < 0, (x,)), (D, D > 1)),
    Program(
        "cond of bfloat16",
        lambda x: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,)),
        (D.to(torch.bfloat16),),
    ),
    Program("cond of a transpose", lambda x: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,)), (D.t(),)),
    Program("while", lambda x: count_up(lambda i, a: (a.sin(),), x), (D,), False, ("While",)),
    Program(
        "while with a number", lambda x: while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a.sin()), (0, x)), (D,)
    ),
    Program("while of no round", lambda x: count_up(lambda i, a: (a.sin(),), x, until=0), (D,)),
    Program(
        "while with a closure",
        lambda x, w: while_loop(lambda i, a: (i < 4) & (w.sum() < 1e9), lambda i, a: (i + 1, a @ w), (zero(), x)),
        (D, V),
    ),
    Program(
        "while nested",
        lambda x: count_up(
            lambda i, a: (while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b * 2), (zero(), a))[1] + 1,), x, until=3
        ),
        (D,),
    ),
    Program(
        "while that swaps", lambda x, y: count_up(lambda i, a, b: (b.clone(), a.clone()), x, y, until=3), (D, D + 1)
    ),
    Program(
        "while with a branch",
        lambda x: count_up(lambda i, a: (torch.cond(a.sum() > 0, lambda q: q - 1, lambda q: q + 2, (a,)),), x),
        (D,),
    ),
    Program("while differentiated", lambda x, w: count_up(lambda i, a: ((a @ w).sin(),), x, until=3), (X, W), True),
    Program("scan", lambda x, w: scan(lambda c, y: (c @ w + y, c * y), torch.zeros(4), x), (X, W), True, ("While",)),
    Program("scan from the end", lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(4), x, reverse=True), (D,)),
    Program("scan of columns", lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(3), x, dim=1), (X,), True),
    Program("scan to bool", lambda x: scan(lambda c, y: (c + y, c > y), torch.zeros(4), x), (D,)),
    Program(
        "scan of bfloat16",
        lambda x: scan(lambda c, y: (c + y, (c * y, c - y)), torch.zeros(4, dtype=torch.bfloat16), x),
        (D.to(torch.bfloat16),),
    ),
    Program(
        "scan of a tree",
        lambda x, y: scan(
            lambda c, z: ({"u": c["u"] + z[0], "v": c["v"] * z[1]}, c["u"] + c["v"]),
            {"u": torch.zeros(4), "v": torch.ones(4)},
            (x, y),
        ),
        (D, D + 1),
    ),
    Program("scan of numbers", lambda x: scan(lambda c, y: (c + y, c + 0), zero(), x), (torch.arange(5),)),
    Program("scan of one row", lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(4), x), (D[:1],)),
    Program("scan whose rows nobody reads", lambda x: scan(lambda c, y: (c + y, c * y), torch.zeros(4), x)[0], (D,)),
    Program(
        "scan nested",
        lambda x: scan(
            lambda c, y: (scan(lambda e, z: (e + z, e * z), c, y.reshape(2, 2).sum(1))[0], y * c), torch.tensor(0.0), x
        ),
        (D,),
    ),
    Program("map", lambda x, w: map(lambda y, w: y @ w, x, w), (X, W), True, ("While",)),
    Program("map nested", lambda x, w: map(lambda y, w: map(lambda z: z * w, y), x, w), (D, V)),
    Program("map of several results", lambda x: map(lambda y: (y.sum(), y.argmax(), y > 0), x), (D,)),
    Program(
        "map of branches",
        lambda x: map(lambda y: torch.cond(y.sum() > 0, lambda a: a * 2, lambda a: a - 1, (y,)), x),
        (D,),
    ),
    Program("associative_scan", lambda x: associative_scan(lambda a, b: a * b + a, x, 0, combine_mode="generic"), (D,)),
    Program(
        "associative_scan differentiated",
        lambda x: associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic"),
        (X,),
        True,
    ),
    Program("region", lambda x, w: region(region(x, w), w), (X, W), True, ("PartitionedCall",)),
    Program(
        "checkpoint", lambda x, w: checkpoint(lambda x, w: (x @ w).sin().cos(), x, w, use_reentrant=False), (X, W), True
    ),
]


def outcome(program: Program, backend: Any, dynamic: bool) -> list[list[Any]]:
    """Results and gradients of three runs."""
    torch._dynamo.reset()
    args = [a.detach().clone(memory_format=torch.preserve_format).requires_grad_(a.requires_grad) for a in program.args]
    compiled = torch.compile(program.fn, backend=backend, dynamic=dynamic, fullgraph=True)
    runs = []
    for _ in range(3):
        for a in args:
            a.grad = None
        found = torch.utils._pytree.tree_leaves(compiled(*args))
        if program.grad:
            sum((r * ramp(*r.shape)).sum() for r in found if isinstance(r, torch.Tensor) and r.requires_grad).backward()
            found += [a.grad for a in args]
        runs.append(found)
    return runs


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The GE graphs that the engine gets."""
    from ge_runtime.cpu.engine import CpuEngine

    graphs: list[Any] = []
    original = CpuEngine.compile

    def compile(engine: Any, graph: Any, options: Any) -> Any:
        graphs.append(graph)
        return original(engine, graph, options)

    monkeypatch.setattr(CpuEngine, "compile", compile)
    return graphs


def ways(turn: int) -> tuple[bool, ...]:
    """Whether sizes are symbolic."""
    return (False, True) if WHOLE else (turn % 2 == 1,)


@pytest.mark.night(rows=5)
@pytest.mark.slow
@pytest.mark.parametrize(("program", "ways"), [pytest.param(p, ways(i), id=p.name) for i, p in enumerate(PROGRAMS)])
def test_as_aot_eager(program, ways, handed_over):
    """The same values and memory order; and every form of the graph reads back as the graph."""
    expected = outcome(program, "aot_eager", False)
    for dynamic in ways:
        handed_over.clear()
        got = outcome(program, BACKEND, dynamic)
        assert handed_over
        for want, have in zip(expected, got, strict=True):
            for a, b in zip(want, have, strict=True):
                assert type(a) is type(b)
                torch.testing.assert_close(b, a)
                if isinstance(a, torch.Tensor):
                    assert a.stride() == b.stride()
    assert {n.op for g in handed_over for n in g.nodes} >= set(program.ops)
    for graph in handed_over:
        for back in (
            serde.from_bytes(serde.to_bytes(graph)),
            txt.from_txt(txt.to_txt(graph)),
            python_reader.run_py(python_source.to_py(graph)),
        ):
            assert not graph_differences(back, graph)


def test_a_branch_that_writes_is_refused():
    def writes(x):
        return torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a - 1, (x,))

    torch._dynamo.reset()
    with pytest.raises(Exception, match="mutat"):
        torch.compile(writes, backend=BACKEND, fullgraph=True)(D.clone())
