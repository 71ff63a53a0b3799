"""Operators in the form that a chip has a kernel for: each row of `chip_forms.tsv` against eager and the facts.

A row: the program, the chip, the operators without a chip and with it, the worst verdict on those with it, and why this
form (or why there is no other). Operators are all of the program's graph, in order.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import torchair
from ge_graph import kernels
from tair_debug import check
from tair_debug.observer import Silent, observing

_WORST = ("none", "aicpu", "unknown", "open", "aicore", "device")


def _rows():
    lines = Path(__file__).with_name("chip_forms.tsv").read_text().splitlines()[1:]
    return {tuple(line.split("\t")[:2]): line.split("\t")[2:] for line in lines}


ROWS = _rows()


def longs(*shape):
    return torch.randint(-9, 9, shape)


def half(*shape):
    return torch.randn(shape).bfloat16()


def _written_diagonal(x, line):
    return x.diagonal_scatter(line)


def _largest(x, index, source):
    return x.scatter_reduce(0, index, source, "amax")


def _smallest(x, index, source):
    return x.scatter_reduce(0, index, source, "amin")


# name: function, inputs
PROGRAMS = {
    "bag of long indices": (lambda w, i: F.embedding_bag(i, w), lambda: (torch.randn(10, 4), longs(3, 2).abs())),
    "places in a volume": (lambda x: F.max_pool3d(x, 2, return_indices=True), lambda: (torch.randn(1, 2, 4, 4, 4),)),
    "average of a bfloat16 plane": (lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (half(1, 2, 6, 6),)),
    "average of a float32 plane": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda: (torch.randn(1, 2, 6, 7),),
    ),
    "average without padding of a clipped window": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        lambda: (torch.randn(1, 2, 6, 6),),
    ),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), lambda: (torch.randn(1, 2, 7, 8),)),
    "product of int32": (lambda a, b: a @ b, lambda: (longs(3, 4).int(), longs(4, 4).int())),
    "diagonal of bfloat16": (lambda x: x.diagonal() + 1, lambda: (half(3, 4),)),
    "diagonal written in bfloat16": (_written_diagonal, lambda: (half(3, 3), half(3))),
    "largest of bfloat16": (_largest, lambda: (half(5), torch.tensor([0, 1, 1]), half(3))),
    "smallest of bfloat16": (_smallest, lambda: (half(5), torch.tensor([0, 1, 1]), half(3))),
    "running smallest of bfloat16": (lambda x: x.cummin(0), lambda: (half(4, 3),)),
    "strides of float64": (lambda x: torch.as_strided(x, (2, 2), (1, 2)) + 0.0, lambda: (torch.randn(6).double(),)),
    "places in float64": (lambda x, i: x[i], lambda: (torch.randn(6).double(), torch.tensor([1, 2]))),
    "identity of float64": (lambda: torch.eye(3, 4, dtype=torch.float64), lambda: ()),
    "quantile of float64": (torch.special.ndtri, lambda: (torch.rand(5).double(),)),
    "order of uint8": (lambda x: x.sort(), lambda: (torch.randint(0, 200, (9,), dtype=torch.uint8),)),
    "order of int64": (lambda x: x.sort(stable=True), lambda: (longs(9),)),
    "order of places": (lambda x: x.argsort(stable=True).argsort(stable=True), lambda: (torch.randn(9),)),
    "first of int64": (lambda x: x.topk(2)[0], lambda: (torch.randperm(9),)),
    "first of small numbers": (lambda x: x.clamp(-5, 5).topk(2)[0], lambda: (longs(9),)),
    "running sum of a mask": (lambda x: (x > 0).cumsum(0), lambda: (torch.randn(9),)),
    "running sum of int64": (lambda x: x.cumsum(0), lambda: (longs(9),)),
    "third power of int64": (lambda x: x**3, lambda: (longs(9),)),
    "any power of int64": (torch.pow, lambda: (longs(9), longs(9).abs())),
    "quotient of int64": (lambda x: torch.div(x, -4, rounding_mode="trunc"), lambda: (longs(9),)),
    "quotient of small numbers": (lambda x: torch.div(x.clamp(-5, 5), -4, rounding_mode="trunc"), lambda: (longs(9),)),
    "filled int64": (lambda x, m: x.masked_fill(m, 7), lambda: (longs(9), torch.rand(9) > 0.5)),
    "padded int64": (lambda x: F.pad(x, (1, 2)), lambda: (longs(3, 9),)),
    "padded int64 with 5": (lambda x: F.pad(x, (1, 2), value=5), lambda: (longs(3, 9),)),
    "padded mask as int64": (lambda x: F.pad((x > 0).long(), (1, 2), value=5), lambda: (torch.randn(3, 9),)),
    "sign of int64": (torch.sign, lambda: (longs(9),)),
    "choice of bool": (torch.where, lambda: (torch.rand(9) > 0.5, torch.rand(3, 9) > 0.5, torch.rand(9) > 0.5)),
    "gradient of a gate in float64": (
        lambda g, x: torch.ops.aten.glu_backward(g, x, 0),
        lambda: (torch.randn(2, 3).double(), torch.randn(4, 3).double()),
    ),
    "gradient of a bfloat16 loss": (
        lambda g, x, t, w: torch.ops.aten.nll_loss_backward(g, x, t, None, 2, -100, w),
        lambda: (half(), half(5, 4), torch.randint(0, 4, (5,)), half()),
    ),
    "gradient of a filter of volumes in float16": (
        lambda g, x, w: torch.ops.aten.convolution_backward(
            g, x, w, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1, [False, True, False]
        )[1],
        lambda: (torch.ones(1, 3, 2, 2, 2).half(), torch.ones(1, 2, 3, 3, 3).half(), torch.ones(3, 2, 2, 2, 2).half()),
    ),
    "gradient of an average of a plane": (
        lambda g, x: torch.ops.aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, True, None),
        lambda: (torch.randn(1, 2, 3, 3), torch.randn(1, 2, 6, 6)),
    ),
    "rows by one index": (lambda x, i: x[:, i], lambda: (torch.randn(3, 5), torch.tensor([[0, -1], [4, 2]]))),
    "rows by one index of open size": (lambda x, i: x[:, i], lambda: (torch.randn(3, 5), torch.tensor([0, -1, 4]))),
    "places by indices of two shapes": (
        lambda x, i, j: x[:, i, j],
        lambda: (torch.randn(2, 3, 5), torch.tensor([[0], [2]]), torch.tensor([1, -1])),
    ),
    "places by indices apart": (
        lambda x, i, j: x[i, :, j],
        lambda: (torch.randn(2, 3, 5), torch.tensor([0, 1]), torch.tensor([3, -1])),
    ),
    "linear of bfloat16": (F.linear, lambda: (half(3, 64), half(5, 64), half(5))),
    "largest of a float16 plane": (
        lambda x: F.max_pool2d(x, 3, 2, return_indices=True),
        lambda: (torch.randn(1, 2, 9, 9).half(),),
    ),
    "largest of a bfloat16 plane": (lambda x: F.max_pool2d(x, 3, 2, return_indices=True), lambda: (half(1, 2, 9, 9),)),
    "sums of parts": (lambda x: torch.cat([x.split([2, 3])[1], x])[1::2].sum(1), lambda: (torch.randn(5, 4),)),
    "counts": (lambda x: x.histc(4, -1, 1), lambda: (torch.randn(3, 50),)),
    "counts in the range of the data": (lambda x: x.histc(4), lambda: (torch.randn(3, 50),)),
    "dropout": (lambda x: F.dropout(x, 0.25), lambda: (torch.ones(4000),)),
}
# Nothing is compared with eager but the share of what is kept and how it is scaled.
RANDOM = ("dropout",)
OPEN = ("rows by one index of open size",)


class Graphs(Silent):
    """The graphs that an engine gets."""

    def __init__(self):
        self.found = []

    def ge_graph(self, stage, label, graph):
        if label == "optimized":
            self.found.append(graph)


def compiled(fn, inputs, soc, dynamic=False):
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    if soc is not None:
        config.check_soc = soc
    seen = Graphs()
    with observing(seen):
        made = torch.compile(
            fn, backend=torchair.get_npu_backend(compiler_config=config), fullgraph=True, dynamic=dynamic
        )(*inputs)
    return made, seen.found


def operators(graphs):
    return " ".join(n.op for g in graphs for n in g.nodes if n.op not in ("Data", "Const", "NetOutput"))


def test_every_program_has_a_row_and_every_row_a_program():
    assert {name for name, _ in ROWS} == set(PROGRAMS)
    assert all(len(row) == 4 and len(row[3]) > 20 for row in ROWS.values())


@pytest.mark.parametrize(("name", "soc"), ROWS)
def test_the_chip_gets_its_form_and_eagers_values(name, soc, monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    plain, chosen, state, _ = ROWS[name, soc]
    torch.manual_seed(3)
    fn, make = PROGRAMS[name]
    inputs = make()
    _, without = compiled(fn, inputs, None, name in OPEN)
    got, graphs = compiled(fn, inputs, soc, name in OPEN)
    report = check.examine(graphs, kernels.oracle(soc))
    worst = min((r.verdict.state for r in report.rows), key=_WORST.index, default="device")
    assert [operators(without), operators(graphs), worst] == [plain, chosen, state]
    if name in RANDOM:
        assert set(got.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
        assert abs(got.count_nonzero() / got.numel() - 0.75) < 0.05
    else:
        torch.testing.assert_close(got, fn(*inputs))
