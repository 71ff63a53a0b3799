"""torch's own database of modules: compiled ones give eager's results, gradients and buffers, training or not.

``TAIR_WHOLE=1`` (``make torch-suites``) runs every input of every module, with fixed sizes and with symbolic ones;
without it a few modules, one input of each, with fixed sizes.
"""

from __future__ import annotations

import copy
import os
import re
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import torchair
from labs import suites

WHOLE = os.environ.get("TAIR_WHOLE") == "1"
PART = 7  # one in so many modules without TAIR_WHOLE

# Module -> part of what eager itself says when it is called so often, so that there is nothing to compare with.
NOT_RUN: dict[str, str] = {
    "nn.FractionalMaxPool2d": "Expect _random_samples to have the same dtype as input",
    "nn.FractionalMaxPool3d": "Expect _random_samples to have the same dtype as input",
}

_NO_GRAPH = "torch hands no backend a graph"

# Module, with -train or -eval if it is one of them only -> what each difference from eager says. A row whose module has
# none is an error in the whole run.
GAPS: dict[str, str] = {f"{g.entry}-{g.form}".removesuffix("-"): g.says for g in suites.module_gaps()}


@pytest.fixture(autouse=True)
def _recurrent_ones_too():
    """Left to itself, dynamo hands no backend a recurrent module."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def rows() -> list[Any]:
    """Module, training or not, and whether sizes are symbolic."""
    chosen = module_db if WHOLE else module_db[::PART]
    return [
        pytest.param(info, training, dynamic, id=f"{info.name}-{'train' if training else 'eval'}{'-sym' * dynamic}")
        for info in chosen
        for training in ((True, False) if info.train_and_eval_differ else (True,))
        for dynamic in ((False, True) if WHOLE else (False,))
    ]


def inputs_of(info: Any, training: bool) -> list[Any]:
    torch.manual_seed(0)
    found = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    return found if WHOLE else found[-1:]


def made(info: Any, each: Any, training: bool) -> torch.nn.Module:
    torch.manual_seed(1)
    given = each.constructor_input
    module = info.module_cls(*given.args, **given.kwargs).train(training)
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        module(*each.forward_input.args, **each.forward_input.kwargs)  # gets its parameters by its first input
    return module


def outcome(module: torch.nn.Module, backend: Any, given: Any, dynamic: bool = False) -> dict[str, Any]:
    """Results, gradients and buffers of two calls of a copy; in eager if ``backend`` is None."""
    module = copy.deepcopy(module)
    call = module if backend is None else torch.compile(module, backend=backend, dynamic=dynamic)
    found: dict[str, Any] = {}
    for turn in range(2):
        torch.manual_seed(2)
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), (given.args, given.kwargs)
        )
        results = call(*args, **kwargs)
        leaves = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor)]
        tracked = [r for r in leaves if r.requires_grad]
        sources = {f"input {i}": t for i, t in enumerate(pytree.tree_leaves((args, kwargs)))}
        sources |= dict(module.named_parameters())
        sources = {n: t for n, t in sources.items() if isinstance(t, torch.Tensor) and t.requires_grad}
        if tracked and sources:
            loss = sum((r * torch.linspace(0.5, 1.5, r.numel()).view(r.shape)).sum() for r in tracked)
            grads = torch.autograd.grad(loss, list(sources.values()), allow_unused=True)
            found |= {f"{turn} gradient of {n}": g for n, g in zip(sources, grads)}
        found |= {f"{turn} result {i}": r.detach() for i, r in enumerate(leaves)}
        found |= {f"{turn} buffer {n}": b.clone() for n, b in module.named_buffers()}
    return found


def traced(module: torch.nn.Module, given: Any) -> bool:
    """Whether torch hands any backend a graph."""
    graphs: list[Any] = []

    def keep(gm: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(copy.deepcopy(module), backend=keep)(*given.args, **given.kwargs)
    return bool(graphs)


@pytest.mark.slow
@pytest.mark.parametrize(("info", "training", "dynamic"), rows())
def test_as_eager(info, training, dynamic):
    differ: list[str] = []
    for number, each in enumerate(inputs_of(info, training)):
        if info.name in NOT_RUN:
            with pytest.raises(Exception, match=NOT_RUN[info.name]):  # of any type
                outcome(made(info, each, training), None, each.forward_input)
            continue
        module = made(info, each, training)
        want = outcome(module, None, each.forward_input)
        torch._dynamo.reset()
        try:
            with torchair.record_compilation() as reports:
                got = outcome(module, torchair.get_npu_backend(), each.forward_input, dynamic)
        except Exception as error:  # noqa: BLE001 - judged by its text
            differ.append(f"input {number} ({each.desc}): {' '.join(str(error).split())[:600]}")
            continue
        if not reports:
            why = "nothing was compiled" if traced(module, each.forward_input) else _NO_GRAPH
            differ.append(f"input {number} ({each.desc}): {why}")
        differ += [f"input {number} ({each.desc}): {d}" for d in differences(want, got)]
    gap = GAPS.get(f"{info.name}-{'train' if training else 'eval'}", GAPS.get(info.name))
    if gap is not None and WHOLE:
        assert differ, f"equals eager now: take it out of GAPS ({gap})"
    assert all(gap and re.search(gap, d) for d in differ), "\n".join(differ)


def differences(want: dict[str, Any], got: dict[str, Any]) -> list[str]:
    assert want.keys() == got.keys()
    found = []
    for name, value in want.items():
        try:
            torch.testing.assert_close(got[name], value, equal_nan=True, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            found.append(f"{name}: {' '.join(str(error).split())[:300]}")
    return found


def test_tables_name_only_what_exists():
    names = {info.name for info in module_db}
    gaps = {name.removesuffix("-train").removesuffix("-eval") for name in GAPS}
    assert set(NOT_RUN) | gaps <= names
