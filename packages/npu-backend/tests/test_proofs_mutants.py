"""Two hundred wrong rules: each a right one with one random mistake in it. Nearly all are caught, right ones never."""

import functools
import random

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchair.passes.arguments import spelled
from torchair.passes.custom import PassError
from torchair.passes.proofs import RewriteWatch

aten = torch.ops.aten
F = torch.nn.functional
f32, half = torch.float32, torch.bfloat16

# Programs as a rule would write them; the mistake goes into a copy of their nodes.
PROGRAMS = {
    "norm": (lambda x, w: x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-2) * w, ((3, 4), (4,))),
    "layer_norm": (lambda x, w: F.layer_norm(x, [4], w, w + 1, 1e-2), ((3, 4), (4,))),
    "gelu": (lambda x, y: F.gelu(x, approximate="tanh") * torch.add(x, y, alpha=3), ((3, 4), (3, 4))),
    "attention": (
        lambda q, k: torch.softmax(q @ k.transpose(-1, -2) * 0.5, dim=-1) @ k,
        ((2, 3, 4), (2, 5, 4)),
    ),
    "rotary": (lambda x, c: x * c + torch.cat([-x[..., 2:], x[..., :2]], dim=-1) * c.sin(), ((3, 4), (3, 4))),
    "swiglu": (lambda x, y: F.silu(x[:, :2]) * x[:, 2:] * 3 + y.sum(1, keepdim=True), ((3, 4), (3, 4))),
    "reductions": (
        lambda x, y: (x.amax(1, keepdim=True), x.sum(0), torch.cumsum(y, 1), torch.argmax(x, dim=1)),
        ((3, 4), (3, 4)),
    ),
    "shapes": (
        lambda x, y: (x.permute(1, 0).reshape(2, 6), torch.flip(y, [1]), y.roll(1, 0), F.pad(x, (1, 2), value=3.0)),
        ((3, 4), (3, 4)),
    ),
    "rounding": (
        lambda x, y: ((x * 100).round().to(torch.int32).float() / 7, torch.clamp(y, -0.5, 0.5), x.to(half).float() + y),
        ((3, 4), (3, 4)),
    ),
    "choices": (
        lambda x, y: (torch.where(x > y, x, y * 2), F.leaky_relu(x, 0.3), torch.div(x, y, rounding_mode="floor")),
        ((3, 4), (3, 4)),
    ),
}


@functools.cache
def traced(name):
    fn, sizes = PROGRAMS[name]
    return make_fx(fn, tracing_mode="fake")(*map(torch.randn, sizes))


def _wrong_number(number, rng):
    if isinstance(number, bool):
        return not number
    return (
        number + rng.choice([-1, 1, 2]) if isinstance(number, int) else number * rng.choice([-1.0, 0.5, 1.01]) + 0.125
    )


def _edits(node, rng):
    """All mistakes that can be made in a node, as (what it is, its new arguments)."""
    named = spelled(node.target, node.args, node.kwargs)
    for name, value in named.items():
        argument = next((a for a in node.target._schema.arguments if a.name == name), None)
        if argument is None or isinstance(value, torch.fx.Node):
            continue
        if argument.has_default_value():
            yield "dropped", {k: v for k, v in named.items() if k != name}
        if isinstance(value, (bool, int, float)):
            yield ("axis" if name == "dim" else "number"), {**named, name: _wrong_number(value, rng)}
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value) and name != "size":
            yield "axes", {**named, name: [v + rng.choice([-1, 1]) for v in value]}
        if isinstance(value, torch.dtype):
            yield "cast", {**named, name: rng.choice([t for t in (torch.float16, half, f32) if t is not value])}
    if len([v for v in named.values() if isinstance(v, torch.fx.Node)]) == 2:
        names = [k for k, v in named.items() if isinstance(v, torch.fx.Node)]
        if named[names[0]] is not named[names[1]]:
            yield "swapped", {**named, names[0]: named[names[1]], names[1]: named[names[0]]}


def values(gm, seed):
    torch.manual_seed(seed)
    inputs = [torch.randn(n.meta["val"].shape) for n in gm.graph.nodes if n.op == "placeholder"]
    return gm(*inputs)


def alike(a, b):
    a, b = (v if isinstance(v, (tuple, list)) else (v,) for v in (a, b))
    return len(a) == len(b) and all(p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(a, b))


def mutate(gm, rng):
    """Make one mistake; what it is, or None if no other numbers come of it (or none at all, but an error)."""
    before = values(gm, 0)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
    node = rng.choice(nodes)
    edits = list(_edits(node, rng))
    alone = node.args and not any(node.args[0] in user.all_input_nodes for user in node.users)
    if alone and node.target in (aten._to_copy.default, aten.neg.default):
        edits.append(("gone", None))
    if not edits:
        return None
    what, arguments = rng.choice(edits)
    as_it_was = (node.args, node.kwargs, list(node.users))
    try:
        return _judged(gm, node, what, arguments, before)
    finally:
        node.args, node.kwargs, users = as_it_was
        for user in users if arguments is None else ():
            user.replace_input_with(node.args[0], node)
        gm.recompile()


def _judged(gm, node, what, arguments, before):
    with RewriteWatch().fx_pass("right", gm):
        pass  # nothing was changed: no alarm
    watch = RewriteWatch().fx_pass("FusePatterns", gm)  # which may round otherwise
    watch.__enter__()
    if arguments is None:
        node.replace_all_uses_with(node.args[0])
    else:
        node.args, node.kwargs = (), arguments
    gm.recompile()
    try:
        if alike(values(gm, 0), before):
            return None
    except Exception:  # noqa: BLE001  a rule that cannot run is found without help
        return None
    try:
        watch.__exit__(None, None, None)
    except PassError as error:
        return what, error.code == "GE1025", str(error)
    return what, False, f"{node.format_node()} -> {arguments}"


@pytest.mark.night
@pytest.mark.slow
def test_random_mistakes_are_caught():
    rng, found = random.Random(0), []
    graphs = {name: 0 for name in PROGRAMS}
    while len(found) < 200:
        name = rng.choice(list(graphs))
        result = mutate(traced(name), rng)
        if result is not None:
            found.append((name, *result))
    missed = [f for f in found if not f[2]]
    assert len(missed) <= 2, "\n".join(map(str, missed))
    kinds = {what for _, what, _, _ in found}
    assert kinds >= {"dropped", "axis", "number", "cast", "gone"}, kinds
    assert {f[0] for f in found} == set(PROGRAMS)
