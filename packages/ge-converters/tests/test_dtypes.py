"""Element types and explicit promotion."""

import pytest
import torch

from ge_converters import LoweringError, dtype_promote
from ge_converters.base.dtypes import cast, to_ge, to_torch
from ge_graph import DataType, Graph, Tensor, building
from ge_graph import ops as ge


@pytest.fixture
def x():
    with building(Graph()):
        yield ge.Data(index=0, dtype=DataType.DT_INT32, shape=(2, "s0"))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]
)
def test_both_ways(dtype):
    assert to_torch(to_ge(dtype)) is dtype


def test_a_type_of_the_right_side_is_returned():
    assert to_ge(DataType.DT_FLOAT) is DataType.DT_FLOAT
    assert to_torch(torch.int8) is torch.int8


def test_a_type_without_partner_is_named():
    with pytest.raises(LoweringError, match="DT_RESOURCE has no torch type"):
        to_torch(DataType.DT_RESOURCE)
    with pytest.raises(LoweringError, match="has no GE type") as error:
        to_ge(torch.bits16)
    assert error.value.code == "GE2011"


def test_promotion_casts_tensors_and_makes_constants(x):
    a, b, c = dtype_promote(x, 2, [1, 2.5], target_dtype=torch.float32)
    assert [t.dtype for t in (a, b, c)] == [DataType.DT_FLOAT] * 3
    assert [t.node.op for t in (a, b, c)] == ["Cast", "Const", "Const"]
    assert a.rank == 2


def test_one_value_comes_back_bare_and_its_own_type_adds_nothing(x):
    assert dtype_promote(x, target_dtype=torch.int32) is x
    assert isinstance(dtype_promote(3, target_dtype=DataType.DT_INT8), Tensor)
    assert cast(x, torch.int32) is x
