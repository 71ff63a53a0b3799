"""torch's own database of optimizers: compiled steps with a scheduler leave parameters and state as eager's steps do.

``TAIR_WHOLE=1`` (``make torch-suites``) runs every row of every optimizer; without it one row of each, in one of
the forms that it has, by turns.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db

import torchair

STEPS = 5
FORMS = ("loop", "foreach", "fused")
WHOLE = os.environ.get("TAIR_WHOLE") == "1"

# Optimizer -> why aot_eager itself does not run its step as one graph, so that there is nothing to compare with.
NOT_COMPILED: dict[str, str] = {
    "LBFGS": "its step evaluates a closure in a loop of data-dependent length",
    "SparseAdam": "takes sparse gradients only, which dynamo does not trace",
}


def rows() -> list[Any]:
    found = []
    for turn, info in enumerate(optim_db):
        name = info.optim_cls.__name__
        inputs = [i for i in info.optim_inputs_func("cpu") if "params" not in i.kwargs]
        chosen = inputs if WHOLE else inputs[-1:]
        for each in chosen if name not in NOT_COMPILED else ():
            known = {"loop", *info.supported_impls} if "foreach" in info.supported_impls else set()
            forms = [f for f in FORMS if f in known] or [""]
            for form in forms if WHOLE else [forms[turn % len(forms)]]:
                extra = {"foreach": form == "foreach"} if form in ("loop", "foreach") else {form: True} if form else {}
                tensor_lr = isinstance(each.kwargs.get("lr"), torch.Tensor) and not each.kwargs.get("capturable")
                if form == "foreach" and tensor_lr:
                    continue  # eager refuses a tensor as lr there
                found.append(pytest.param(info, each.kwargs | extra, id=f"{name}-{each.desc}-{form}"))
    return found


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2, bias=False))


def halving(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


SCHEDULERS: dict[str, Any] = {
    "MultiplicativeLR": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "ConstantLR": lambda o: torch.optim.lr_scheduler.ConstantLR(o, total_iters=3),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, cycle_momentum=False),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, total_iters=2), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)], [2]
    ),
}


def steps(
    info: Any, options: dict[str, Any], backend: Any, schedule: Any = halving
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch._dynamo.reset()
    net, options = model(), {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    params = [p for p in net.parameters() if info.optim_cls.__name__ != "Muon" or p.dim() == 2]
    optimizer = info.optim_cls(params, **options)
    scheduler = schedule(optimizer)
    step = optimizer.step if backend is None else torch.compile(optimizer.step, backend=backend)
    torch.manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        step()
        scheduler.step()
    state = [v for p in params for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    return [p.detach() for p in net.parameters()], state


@pytest.mark.night(rows=7)
@pytest.mark.slow
@pytest.mark.parametrize(("info", "options"), rows())
def test_steps_equal_eager(info, options):
    params, state = steps(info, options, None)
    with torchair.record_compilation() as reports:
        got_params, got_state = steps(info, options, torchair.get_npu_backend())
    # torch does not trace into a fused step: it runs eagerly, and what is around it is compiled
    assert reports or options.get("fused"), "nothing was compiled"
    torch.testing.assert_close(got_params, params)
    torch.testing.assert_close(got_state, state)


@pytest.mark.night(rows=7)
@pytest.mark.slow
@pytest.mark.parametrize("of_tensor", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_schedulers(schedule, of_tensor):
    (info,) = [i for i in optim_db if i.optim_cls is torch.optim.AdamW]
    options = {"lr": torch.tensor(0.05) if of_tensor else 0.05, "foreach": not of_tensor}
    params, state = steps(info, options, None, SCHEDULERS[schedule])
    got_params, got_state = steps(info, options, torchair.get_npu_backend(), SCHEDULERS[schedule])
    torch.testing.assert_close(got_params, params)
    torch.testing.assert_close(got_state, state)


def test_table_names_only_what_exists():
    assert set(NOT_COMPILED) <= {info.optim_cls.__name__ for info in optim_db}
