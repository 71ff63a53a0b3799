"""torch_npu's operators, called eagerly on NPU tensors, give what the formulas of their documentation give.

What the emulator serves stands in ``eager.txt``, one operator a line; the list is strict both ways.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from torch.utils import _pytree as pytree

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "packages" / "ge-converters" / "tests"))
FILES = (
    "formulas",
    "attention_formulas",
    "expert_formulas",
    "serving_cases",
    "training_formulas",
    "step_formulas",
    "written_formulas",
)
MODULES = [importlib.import_module(f"npu_{name}") for name in FILES]
CASES = [case for module in MODULES for case in module.CASES]
SERVED = set((HERE / "eager.txt").read_text().splitlines())
HALVES = MODULES[0].HALVES


def _name(case: Any) -> str:
    return f"{case.op} {case.tag}".strip()


def _same(got: Any, want: Any, dtype: torch.dtype, tolerance: float) -> None:
    loose: dict[str, float] = {}
    if dtype in HALVES:
        rough = dtype == torch.bfloat16
        rtol, atol = (2e-2, 8e-3) if rough else (2e-3, 1e-3)
        loose = {"rtol": tolerance or rtol, "atol": tolerance or atol}
    if want.dtype == torch.float8_e8m0fnu and got.dtype == torch.uint8:  # what older chips' scales are handed out as
        want = want.view(torch.uint8)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if got.dtype.is_floating_point and got.itemsize == 1:
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    else:
        torch.testing.assert_close(got, want, **loose)


def _eager(case: Any) -> str:
    """Empty, or why the call on NPU tensors does not give what the formula gives."""
    dtype = case.dtypes[0]
    MODULES[0].RANDOM.manual_seed(3)
    args, keywords = case.make(dtype)
    want = case.formula(*args, **keywords)
    MODULES[0].RANDOM.manual_seed(3)
    # torch_npu leaves out the gradients of tables that ask for none
    asks = case.op.endswith("_backward")

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.npu().requires_grad_(asks and value.is_floating_point())

    args, keywords = pytree.tree_map(moved, case.make(dtype))
    operator, _, overload = case.op.partition(".")
    try:
        got = getattr(getattr(torch.ops.npu, operator), overload or "default")(*args, **keywords)
        if not isinstance(want, (tuple, list)):
            got, want = [got], [want]
            picked: Any = (0,)
        else:
            picked = range(len(want)) if case.outputs is None else case.outputs
        for i in picked:
            _same(got[i].cpu(), want[i], dtype, case.tolerance)
        torch.npu.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever it is, the emulator does not serve the operator
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_eager_as_the_formula(case: Any) -> None:
    with torch.no_grad():
        why = _eager(case)
    if _name(case) in SERVED:
        assert not why, why
    else:
        assert why, f"{_name(case)} is served: add it to eager.txt"
        pytest.xfail(why[:200])
