"""Random chains of views and casts equal eager to the bit, and none of their moves follows one of its kind."""

from __future__ import annotations

import random

import pytest
import torch

import torchair

_MOVES = ("Transpose", "Reshape", "Cast", "Unsqueeze")
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.uint8)
_SHAPES = ((24,), (2, 12), (1, 4, 6), (2, 3, 4), (2, 3, 1, 4))


def chain(seed):
    """A function of one tensor of 24 elements: moves, now and then an addition, and results from everywhere."""
    draw = random.Random(seed)
    x = torch.empty(2, 3, 4, device="meta")
    steps = []
    for _ in range(draw.randint(3, 12)):
        kinds = ["permute", "permute", "unsqueeze", "squeeze", "reshape", "reshape", "to", "to", "add", "keep"]
        kind = draw.choice(kinds)
        given = {
            "permute": draw.sample(range(x.dim()), x.dim()),
            "unsqueeze": [draw.randint(0, x.dim())],
            "reshape": [draw.choice(_SHAPES)],
            "to": [draw.choice(_TYPES)],
            "add": [1],
        }.get(kind, [])
        if kind != "keep":
            x = getattr(x, kind)(*given)
        steps.append((kind, tuple(given)))

    def fn(x):
        kept = []
        for kind, given in steps:
            if kind == "keep":
                kept.append(x)
            else:
                x = getattr(x, kind)(*given)
        return [x * 1, *(k * 1 for k in kept)]

    return fn


@pytest.mark.night(rows=4)
@pytest.mark.parametrize("seed", range(40))
def test_chain(seed, recording):
    config = torchair.CompilerConfig()
    config.experimental_config.enable_view_optimize = config.experimental_config.remove_noop_ops = seed % 2 == 0
    fn = chain(seed)
    x = torch.arange(24).reshape(2, 3, 4).to(_TYPES[seed % len(_TYPES)])
    with recording() as seen:
        got = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)(x)
    for g, w in zip(got, fn(x), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        assert torch.equal(g, w)
    graph = seen.last_graph()
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else None
        if node.op in _MOVES and node.op != "Cast" and isinstance(source, type(node.outputs[0])):
            assert source.node.op != node.op, [n.op for n in graph.nodes]
