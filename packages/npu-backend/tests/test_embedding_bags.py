"""``embedding_bag`` in every form that eager has: results, and gradients of the table and of the samples' weights."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torchair
from ge_graph.errors import LoweringError


def whole(high, *size, seed=0):
    return torch.randint(high, size, generator=torch.Generator().manual_seed(seed))


def numbers(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


# Name -> indices and, if they have one dimension, where bags begin; of n indices into a table of v rows.
LAYOUTS = {
    "two dimensions": lambda n, v: (whole(v, n // 3, 3), None),
    "bags of one": lambda n, v: (whole(v, n, 1), None),
    "offsets": lambda n, v: (whole(v, n), torch.tensor([0, 2, n // 2])),
    "empty in the middle": lambda n, v: (whole(v, n), torch.tensor([0, 2, 2, 2, n // 2])),
    "empty at both ends": lambda n, v: (whole(v, n), torch.tensor([0, 0, 3, n - 1, n])),
    "one bag": lambda n, v: (whole(v, n), torch.tensor([0])),
    "all empty": lambda n, v: (whole(v, 0), torch.tensor([0, 0, 0])),
    "one index": lambda n, v: (torch.full((n,), 2), torch.arange(0, n, 2)),
}
SIZES = ((12, 6), (18, 9))  # indices and rows of the table


@dataclass(frozen=True)
class Form:
    """One way to call it."""

    layout: str
    mode: str
    padding_idx: int | None = None
    end: bool = False
    weighted: bool = False
    index: torch.dtype = torch.int64
    trained: bool = True
    scaled: bool = False

    def inputs(self, dtype, turn) -> dict[str, Any]:
        count, rows = SIZES[turn]
        indices, offsets = LAYOUTS[self.layout](count, rows)
        if offsets is not None and self.end:
            offsets = torch.cat([offsets, torch.tensor([indices.numel()])])
        given = {
            "weight": numbers(rows, 4).to(dtype),
            "input": indices.to(self.index),
            "offsets": None if offsets is None else offsets.to(self.index),
        }
        if self.weighted:
            given["per_sample_weights"] = numbers(*indices.shape, seed=3).to(dtype)
        for name in ("weight", "per_sample_weights") if self.trained else ():
            if name in given:
                given[name].requires_grad_()
        return given

    def __call__(self, given):
        return F.embedding_bag(
            **given,
            mode=self.mode,
            padding_idx=self.padding_idx,
            include_last_offset=self.end,
            scale_grad_by_freq=self.scaled,
        )

    @property
    def flat(self) -> bool:
        return self.layout not in ("two dimensions", "bags of one")


def forms() -> list[Form]:
    made = []
    for layout, mode, padding, end, weighted in itertools.product(
        LAYOUTS, ("sum", "mean", "max"), (None, 2, -1), (False, True), (False, True)
    ):
        form = Form(layout, mode, padding, end, weighted)
        if (end and not form.flat) or (weighted and mode != "sum"):
            continue  # eager has no such form
        if padding == -1 and layout not in ("offsets", "two dimensions"):
            continue  # counted from the end, as anywhere else
        made.append(form)
    return made


EVERY = forms()
MORE = [
    *(Form("empty in the middle", m, p, index=torch.int32) for m in ("sum", "mean", "max") for p in (None, 2)),
    *(Form("empty at both ends", "sum", p, e, True, trained=False) for p in (None, 2) for e in (False, True)),
    *(Form("two dimensions", m, 2, trained=False) for m in ("sum", "mean", "max")),
    Form("offsets", "sum", 2, True, True, torch.int32),
]


def results(call, some, dtype, turn):
    """Of each form its result and its gradients."""
    given = [form.inputs(dtype, turn) for form in some]
    made = call(given)
    leaves = [{n: t for n, t in i.items() if isinstance(t, torch.Tensor) and t.requires_grad} for i in given]
    weights = [torch.linspace(0.5, 1.5, one.numel()).view(one.shape).to(dtype) for one in made]
    trained = [(one * w).sum() for one, w, of in zip(made, weights, leaves, strict=True) if of]
    grads = iter(torch.autograd.grad(trained, [t for of in leaves for t in of.values()]) if trained else ())
    return [
        {"result": one.detach(), **{f"gradient of {n}": next(grads) for n in of}}
        for one, of in zip(made, leaves, strict=True)
    ]


def differences(some, dtype, dynamic):
    def every(given):  # one graph for all
        return [form(inputs) for form, inputs in zip(some, given)]

    torch._dynamo.reset()
    run = torch.compile(every, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for turn in (0, 1) if dynamic else (0,):
        got, want = results(run, some, dtype, turn), results(every, some, dtype, turn)
        for form, g, w in zip(some, got, want, strict=True):
            assert g.keys() == w.keys()
            for name, value in w.items():
                try:
                    torch.testing.assert_close(g[name], value, rtol=tolerance, atol=tolerance)
                except AssertionError as error:
                    yield f"{form} turn {turn}, {name}: {' '.join(str(error).split())[:200]}"


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_form_is_that_of_eager(layout, dynamic):
    assert not list(differences([f for f in EVERY if f.layout == layout], torch.float32, dynamic))


@pytest.mark.parametrize("dynamic", [False, True])
def test_other_indices_and_without_gradients(dynamic):
    assert not list(differences(MORE, torch.float32, dynamic))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types(dtype):
    some = [f for f in EVERY if f.layout in ("empty in the middle", "two dimensions") and f.padding_idx != -1]
    assert not list(differences(some, dtype, False))


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_scaled_by_how_often_an_index_occurs(dynamic):
    """By the documented rule, for eager's kernel of torch 2.13 divides by the count of another index."""
    some = [f for f in EVERY if f.mode != "max"]
    scaled = [replace(f, scaled=True) for f in some]

    def every(given):
        return [form(inputs) for form, inputs in zip(scaled, given)]

    torch._dynamo.reset()
    run = torch.compile(every, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)
    for turn in (0, 1) if dynamic else (0,):
        found = results(run, scaled, torch.float32, turn)
        plain = results(lambda given: [f(i) for f, i in zip(some, given)], some, torch.float32, turn)
        for form, got, want in zip(some, found, plain, strict=True):
            counts = torch.bincount(form.inputs(torch.float32, turn)["input"].flatten(), minlength=SIZES[turn][1])
            want["gradient of weight"] = want["gradient of weight"] / counts.clamp(min=1).unsqueeze(1)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=lambda m, form=form: f"{form}: {m}")


@pytest.mark.parametrize("layout", ["offsets", "two dimensions"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_sparse_gradients_are_refused_in_the_forward(layout, dynamic):
    given = Form(layout, "sum").inputs(torch.float32, 0)
    run = torch.compile(
        lambda given: F.embedding_bag(**given, sparse=True), backend=torchair.get_npu_backend(), dynamic=dynamic
    )
    torch._dynamo.reset()
    with pytest.raises(Exception, match="GE2015") as caught:
        run(given)
    inner = caught.value
    while inner.__cause__ is not None or getattr(inner, "inner_exception", None) is not None:
        inner = getattr(inner, "inner_exception", None) or inner.__cause__
    assert isinstance(inner, LoweringError)
    assert "sparse=False" in str(inner)


def test_a_frozen_table_may_ask_for_sparse_gradients():
    given = Form("offsets", "mean", trained=False).inputs(torch.float32, 0)

    def fn(given):
        return F.embedding_bag(**given, mode="mean", sparse=True)

    torch._dynamo.reset()
    run = torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True)
    torch.testing.assert_close(run(given), fn(given))


def test_rows_longer_than_a_norm_are_scaled_in_the_table():
    """Eager writes the table, and so does the compiled function."""

    def fn(indices, table, offsets):
        return F.embedding_bag(indices, table, offsets, max_norm=1.0, mode="sum")

    torch._dynamo.reset()
    run, found = torch.compile(fn, backend=torchair.get_npu_backend()), []
    for call in (run, fn):
        given = Form("empty in the middle", "sum", trained=False).inputs(torch.float32, 0)
        table = given["weight"]
        found.append((call(given["input"], table, given["offsets"]), table))
    torch.testing.assert_close(found[0], found[1])
