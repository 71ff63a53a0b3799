"""Rows of ops that are one GE operator: what a row that does not fit its op or operator is told."""

import pytest
import torch

from ge_converters.ops.one_operator import one_operator
from ge_converters.registry import REGISTRY
from ge_graph import GraphError

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("SoftplusV2 self beta", "not a form"),
        ("SoftplusV2(self; beta threshold gamma=2.0)", r"SoftplusV2 has no attribute \['gamma'\]"),
        ("NoSuchOperator(self; beta threshold)", "NoSuchOperator"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_when_it_is_read(form, says):
    with pytest.raises((ValueError, GraphError), match=says):
        one_operator(aten.softplus.default, form, [])


@pytest.mark.parametrize(
    ("form", "says"),
    [("SoftplusV2(self; beta)", "differ in threshold"), ("SoftplusV2(self input; beta threshold)", "differ in input")],
)
def test_a_row_that_does_not_fit_the_schema_of_this_torch_is_left_out_by_name(form, says, monkeypatch):
    monkeypatch.setattr(REGISTRY, "_left_out", {})
    one_operator(aten.softplus.default, form, [])
    (row,) = REGISTRY._left_out.values()
    assert row.name == "aten.softplus.default"
    assert says in row.reason
