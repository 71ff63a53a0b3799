"""Operators by their names: those that torch has, those that it lacks, and those of another form."""

from __future__ import annotations

import pytest
import torch

from ge_converters.base import operators
from ge_converters.base.operators import AbsentOperator, Namespace


def test_what_torch_has_is_the_overload_itself():
    assert Namespace("aten").add.Tensor is torch.ops.aten.add.Tensor


@pytest.mark.parametrize("name", ["no_such_operator.default", "add.no_such_overload"])
def test_what_torch_lacks_is_its_name(name):
    operator, overload = name.split(".")
    found = getattr(getattr(Namespace("aten"), operator), overload)
    assert isinstance(found, AbsentOperator)
    assert found == f"aten.{name}"


def test_an_operator_of_another_form_is_absent(monkeypatch):
    monkeypatch.setitem(operators._RESULTS, "aten.var_mean.correction", 1)
    monkeypatch.setitem(operators._RESULTS, "aten.std_mean.correction", 2)
    aten = Namespace("aten")
    assert isinstance(aten.var_mean.correction, AbsentOperator)
    assert aten.std_mean.correction is torch.ops.aten.std_mean.correction
