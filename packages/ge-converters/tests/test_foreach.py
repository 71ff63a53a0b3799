"""List ops of optimisers: every decomposition equals the list op, and an optimiser step becomes one GE graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.decompose.formulas.foreach import decompositions
from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering import lower
from ge_converters.report import smoke

TABLE = decompositions()


def _lists(count: int = 2) -> list[torch.Tensor]:
    return [torch.rand(2, 3) * 0.8 + 0.1, torch.rand(4) * 0.8 + 0.1][:count]


def _argument(op: Any, argument: Any) -> Any:
    kind, name = str(argument.type), argument.name
    if name == "mat2":
        return [torch.rand(3, 2), torch.rand(3, 2)]
    if kind == "List[Tensor]":
        return [torch.rand(2, 3), torch.rand(3, 3)] if "_foreach_mm" in str(op) else _lists()
    if kind.startswith("List["):
        return [2, 0.5]
    if kind == "Tensor":
        return torch.tensor([2.0, 0.5]) if name == "scalars" else torch.tensor(1.5)
    return 2 if kind in ("number", "Scalar") else argument.default_value


@pytest.mark.parametrize("op", TABLE, ids=str)
def test_equals_the_list_op(op: Any) -> None:
    torch.manual_seed(0)
    args = [_argument(op, a) for a in op._schema.arguments if not a.kwarg_only]
    torch.testing.assert_close(TABLE[op](*args), op(*args))


def test_table_of_the_backend_has_them() -> None:
    assert set(TABLE) <= set(decomposition_table())


def test_every_list_op_is_there() -> None:
    names = {n.removeprefix("aten::") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::_foreach_")}
    functional = {n for n in names if not n.partition(".")[0].endswith("_") and "out" not in n}
    known = {str(op).removeprefix("aten.").removesuffix(".default") for op in TABLE}
    assert functional - known == set()


def test_optimiser_step() -> None:
    parameters, gradients, moments = _lists(), _lists(), _lists()

    def step(p0: Any, p1: Any, g0: Any, g1: Any, m0: Any, m1: Any) -> Any:
        p, g, m = [p0, p1], [g0, g1], [m0, m1]
        new = torch._foreach_lerp(m, g, 0.1)
        scaled = torch._foreach_div(new, torch._foreach_add(torch._foreach_sqrt(torch._foreach_mul(g, g)), 1e-8))
        return tuple(torch._foreach_add(p, scaled, alpha=-0.01))

    args = (*parameters, *gradients, *moments)
    lowered = lower(make_fx(step, decomposition_table(), tracing_mode="fake")(*args))
    got = smoke.execute(lowered, smoke.find_engine("cpu"), args)
    torch.testing.assert_close(tuple(got), step(*args))
