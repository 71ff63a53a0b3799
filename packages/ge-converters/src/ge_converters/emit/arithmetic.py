"""Arithmetic as eager does it: which element type numbers and tensors meet in, and how numbers are rounded."""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Any, Final

import torch

from ge_converters.base.dtypes import cast, dtype_promote, to_ge, to_torch
from ge_converters.base.errors import Refusal
from ge_converters.emit.compute_types import carried, carrier
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_D = DataType
HALF_TYPES: Final = frozenset({_D.DT_FLOAT16, _D.DT_BF16})


def as_number(value: Any, dtype: DataType) -> Any:
    """A Python number as eager converts it to an element type: floats lose their fraction in integer types, negative
    numbers wrap in unsigned ones, and what is not zero is true. Anything else is returned as it is.
    """
    if not isinstance(value, (bool, int, float)):
        return value
    if dtype == _D.DT_BOOL:
        return bool(value)
    if not dtype.is_integer:
        return value
    whole = int(value)
    return whole % 2**dtype.bits if whole < 0 and dtype.short.startswith("u") else whole


def wrapped(value: Any, dtype: DataType) -> Any:
    """A Python number as an operand of eager's arithmetic and comparisons: one of 64 bits, cut to the element type."""
    value = as_number(value, dtype)
    if isinstance(value, bool) or not isinstance(value, int) or not dtype.is_integer or not -(2**63) <= value < 2**64:
        return value  # eager refuses a number that 64 bits do not hold, and so does the constant
    cut = value % 2**dtype.bits
    return cut - 2**dtype.bits if cut >= 2 ** (dtype.bits - 1) and not dtype.short.startswith("u") else cut


def as_content(value: Any, dtype: DataType) -> Any:
    """``as_number`` for a number that fills memory or bounds it.

    Raises:
        Refusal: For a float that the type does not hold, where eager raises and a constant would be infinite.
    """
    value = as_number(value, dtype)
    if isinstance(value, float) and dtype.is_float and math.isfinite(value):
        largest = torch.finfo(to_torch(dtype)).max
        if abs(value) > largest:
            raise Refusal(
                f"{value!r} does not fit {dtype.name}, whose largest number is {largest!r}; eager refuses it too"
            )
    return value


def is_exact(value: Any, dtype: DataType) -> bool:
    """Whether a Python number survives the way into a half type unchanged; always true for the other types."""
    if dtype not in HALF_TYPES or isinstance(value, (Tensor, bool)):
        return True
    single = float(value)
    if single != single or single in (float("inf"), float("-inf")):
        return True
    if dtype == _D.DT_BF16:
        try:
            return struct.unpack("<I", struct.pack("<f", single))[0] & 0xFFFF == 0 and _single(single) == single
        except OverflowError:
            return False
    try:
        return bool(struct.unpack("<e", struct.pack("<e", single))[0] == single)
    except OverflowError:
        return False


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


# Beside a half tensor eager keeps a Python number in float32 for these, and rounds it to the half type for all others.
_KEEPS_NUMBERS: Final = frozenset({"Mul", "RealDiv"})
_BOUNDS: Final = frozenset({"Maximum", "Minimum"})  # of clamp: eager refuses one that the type does not hold


def compute_type(dtype: DataType, *operands: Any) -> DataType:
    """The type for arithmetic that keeps Python numbers in float32 beside a half tensor."""
    if dtype in HALF_TYPES and not all(isinstance(v, Tensor) or is_exact(v, dtype) for v in operands):
        return _D.DT_FLOAT
    return dtype


def arithmetic(op: str, a: Any, b: Any, dtype: DataType) -> Tensor:
    """``op`` on two operands, numbers or tensors, with a result of ``dtype`` as eager computes it."""
    wanted = compute_type(dtype, a, b) if op in _KEEPS_NUMBERS else dtype
    inner = carrier(op, wanted)
    number = as_number if op in _BOUNDS else wrapped
    x, y = dtype_promote(number(a, dtype), number(b, dtype), target_dtype=inner)
    return cast(getattr(ge, op)(x, y), dtype)


@lru_cache(maxsize=4096)
def _common(kinds: tuple[tuple[Any, bool], ...]) -> DataType:
    values: list[Any] = []
    for kind, dimensioned in kinds:
        if isinstance(kind, type):
            values.append(kind(1))
        else:
            values.append(torch.empty((1,) if dimensioned else (), dtype=to_torch(kind), device="meta"))
    result = torch.result_type(*values)
    return to_ge(result)


def common_type(a: Any, b: Any) -> DataType:
    """The type in which eager compares two operands: torch's promotion of tensors, 0-d tensors and numbers."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype:
        return a.dtype
    kinds = tuple((v.dtype, v.rank > 0) if isinstance(v, Tensor) else (type(v), False) for v in (a, b))
    return _common(kinds)


def select(condition: Tensor, a: Any, b: Any, dtype: DataType) -> Tensor:
    """``a`` where the condition holds, else ``b``; all three broadcast."""
    a, b = dtype_promote(as_number(a, dtype), as_number(b, dtype), target_dtype=dtype)
    (a, b), back = carried("SelectV2", a, b, port="then", moves=True)
    return back(ge.SelectV2(cast(condition, _D.DT_BOOL), a, b))
