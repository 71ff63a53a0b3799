"""Forty wrong passes over GE graphs: each a right one that then makes one random mistake in what it changed."""

import functools
import random
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.lowering import lower
from ge_graph import passes, serde
from ge_graph.attrs import Attr, Kind
from ge_graph.ir import Tensor
from ge_graph.printer import to_text
from ge_runtime.cpu import CpuEngine
from torchair.compiler.pipeline import prepare_graph
from torchair.passes.custom import PassError
from torchair.passes.proofs import RewriteWatch

F = torch.nn.functional

# What the passes have something to do with: sizes, constants, identities, moves, layouts, twins, fused operators.
PROGRAMS = {
    "residual": (
        lambda x, r, w: (lambda y: (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-2) * w, y))(x + r),
        ((3, 4), (3, 4), (4,)),
    ),
    "layer_norm": (lambda x, r, w: F.layer_norm(x + r, [4], w, w, 1e-2) * 2, ((3, 4), (3, 4), (4,))),
    "attention": (
        lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) * 0.5, dim=-1) @ v,
        ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)),
    ),
    "swiglu": (lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], ((3, 8),)),
    "gelu": (
        lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0)))),
        ((3, 4),),
    ),
    "rotary": (
        lambda x, c, s: x * c + torch.cat([-x[..., 2:], x[..., :2]], dim=-1) * s,
        ((1, 2, 3, 4), (1, 1, 3, 4), (1, 1, 3, 4)),
    ),
    "moves": (
        lambda x, y: (
            x.permute(1, 0).contiguous().permute(1, 0).contiguous() + y,
            x.reshape(12).reshape(4, 3).sin(),
            x[:, 1:][:, :2].exp(),
            y.unsqueeze(1).squeeze(1).cos(),
        ),
        ((3, 4), (3, 4)),
    ),
    "spread": (
        lambda x, y: x.mean(0, keepdim=True).expand(3, 4) * y + x.sum(1, keepdim=True).expand(3, 4) * 2,
        ((3, 4), (3, 4)),
    ),
    "twins": (
        lambda x, y: (x.t().contiguous().exp(), x.t().contiguous() * y.t().contiguous(), (x + 0) * 1),
        ((3, 4), (3, 4)),
    ),
    "linear": (lambda x, w: F.relu(x.view(6, 4) @ w.t()).view(2, 3, 5).transpose(1, 2) + 1.5, ((2, 3, 4), (5, 4))),
    "batches": (
        lambda x, w: (
            x.reshape(4, 3, 4).bmm(w.reshape(4, 4, 2)).reshape(2, 2, 3, 2) * 2,
            x[0].squeeze(0) @ w[0] + x[1] @ w[1],
        ),
        ((2, 2, 3, 4), (2, 2, 4, 2)),
    ),
}


@functools.cache
def traced(name):
    fn, sizes = PROGRAMS[name]
    gm = make_fx(lambda *xs: made if isinstance(made := fn(*xs), tuple) else (made,), tracing_mode="fake")(
        *map(torch.randn, sizes)
    )
    prepare_graph(gm, [], "forward")
    lowered = lower(gm, name=name)
    return gm, lowered, serde.to_bytes(lowered.graph)


def results(graph, sizes):
    """What a graph gives; None if it cannot be run."""
    torch.manual_seed(0)
    inputs = [torch.randn(size) for size in sizes]
    try:
        return CpuEngine().compile(serde.from_bytes(serde.to_bytes(graph)), {"engine.program": "aten"}).run(inputs)
    except Exception:  # noqa: BLE001  a rule that makes no graph is found without help
        return None


def alike(a, b):
    """Equal but for the rounding that a fused operator is allowed."""
    return all(
        p.dtype == q.dtype and p.shape == q.shape and torch.allclose(p, q, rtol=1e-5, atol=1e-6) for p, q in zip(a, b)
    )


def form(graph):
    return {n: (n.op, list(n.inputs), dict(n.attrs)) for n in graph.nodes}


def _number(value, rng):
    if isinstance(value, bool):
        return not value
    return value + rng.choice([-1, 1]) if isinstance(value, int) else value * rng.choice([-1.0, 0.5, 1.01]) + 0.125


def _edits(graph, node, rng):
    """Mistakes that can be made in a node, as (what it is, a function that makes it)."""
    before = graph.nodes[: graph.nodes.index(node)]
    for name, attr in node.attrs.items():
        if name.startswith("_") or name in ("index", "N"):
            continue
        if attr.kind in (Kind.INT, Kind.FLOAT, Kind.BOOL):
            yield "number", lambda n=name, a=attr: node.attrs.update({n: Attr(a.kind, _number(a.value, rng))})
        if isinstance(attr.value, np.ndarray) and attr.value.size:
            other = attr.value.copy()
            other.reshape(-1)[rng.randrange(other.size)] += 1
            yield "constant", lambda n=name, a=attr, o=other: node.attrs.update({n: Attr(a.kind, o)})
    places = [i for i, e in enumerate(node.inputs) if isinstance(e, Tensor)]
    for i in places:
        like = [
            t
            for n in before
            for t in n.outputs
            if t is not (now := node.inputs[i]) and (t.dtype, t.known_shape) == (now.dtype, now.known_shape)
        ]
        if like:
            yield "another operand", lambda i=i, like=like: node.inputs.__setitem__(i, rng.choice(like))
    if len(places) > 1 and node.inputs[places[0]] is not node.inputs[places[1]]:
        i, j = places[:2]
        first, second = node.inputs[i], node.inputs[j]
        if first.dtype == second.dtype:
            yield "swapped", lambda: (node.inputs.__setitem__(i, second), node.inputs.__setitem__(j, first))
    if len(node.outputs) == 1 and places:
        into, out = node.inputs[places[0]], node.outputs[0]
        if (into.dtype, into.known_shape) == (out.dtype, out.known_shape):
            yield "gone", lambda: graph.replace_all_uses({out: into})


@functools.cache
def at_work(name):
    """Places of the passes that change a program's graph."""
    results = passes.run(serde.from_bytes(traced(name)[2]))
    return [place for place, result in enumerate(results) if result.changed]


def mutate(name, rng):
    """One pass that makes one mistake: (pass, what it is, whether it was caught, the graph), or None."""
    gm, lowered, data = traced(name)
    graph = serde.from_bytes(data)
    chosen, outcome = rng.choice(at_work(name)), None
    watch = RewriteWatch()
    watch.graph_lowered(gm, replace(lowered, graph=graph))

    @contextmanager
    def around(step, graph):
        nonlocal outcome
        if step != passes.DEFAULT[chosen].name:
            yield
            return
        before = form(graph)
        around_it = watch.ge_pass(step, graph)
        around_it.__enter__()
        yield
        now = form(graph)
        nodes = [n for n in graph.nodes if now[n] != before.get(n) and n.op not in ("Data", "RefData")]
        edits = [edit for node in nodes for edit in _edits(graph, node, rng)]
        right = results(graph, PROGRAMS[name][1]) if edits else None
        if right is None:
            return
        what, edit = rng.choice(edits)
        edit()
        wrong = results(graph, PROGRAMS[name][1])
        if wrong is None or alike(right, wrong):
            return
        try:
            around_it.__exit__(None, None, None)
        except PassError as error:
            outcome = (step, what, error.code == "GE1025", to_text(graph))
        else:
            outcome = (step, what, False, to_text(graph) + "\n".join(watch.described()))

    passes.run(graph, passes.DEFAULT[: chosen + 1], around=around)
    return outcome


@pytest.mark.night
@pytest.mark.slow
def test_random_mistakes_are_caught():
    rng, found = random.Random(0), set()
    for _ in range(2000):
        name = rng.choice(list(PROGRAMS))
        result = mutate(name, rng)
        if result is not None:
            found.add((name, *result))
        if len(found) == 40:
            break
    assert len(found) == 40
    missed = [f for f in found if not f[3]]
    assert len(missed) <= 2, "\n".join(f"{m[0]} {m[1]} {m[2]}\n{m[4]}" for m in missed)
    assert len({f[1] for f in found}) >= 4, {f[1] for f in found}
    assert {f[2] for f in found} >= {"number", "another operand", "gone"}, {f[2] for f in found}
