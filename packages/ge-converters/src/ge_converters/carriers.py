"""Which element type an operator computes in when its schema does not know the wanted one.

Eager knows element types that a GE operator may not list (bool in ``Transpose``, bfloat16 in ``Erf``). Where a wider
type holds every value, the call goes through that type and the result is the very one eager gives; where no such type
exists the form is refused with the schema's own list.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import torch

from ge_converters.dtypes import cast, dtype_promote, to_torch
from ge_converters.errors import Refusal
from ge_graph import DataType, Tensor, schema
from ge_graph import ops as ge

_D = DataType
HALF_TYPES: Final = frozenset({_D.DT_FLOAT16, _D.DT_BF16})

# Types that hold every value of the key, narrowest first.
_WIDER: Final[dict[DataType, tuple[DataType, ...]]] = {
    _D.DT_BOOL: (_D.DT_INT8, _D.DT_UINT8, _D.DT_INT32, _D.DT_INT64, _D.DT_FLOAT16, _D.DT_FLOAT),
    _D.DT_INT8: (_D.DT_INT16, _D.DT_INT32, _D.DT_INT64, _D.DT_FLOAT16, _D.DT_FLOAT),
    _D.DT_UINT8: (_D.DT_INT16, _D.DT_INT32, _D.DT_INT64, _D.DT_FLOAT16, _D.DT_FLOAT),
    _D.DT_INT16: (_D.DT_INT32, _D.DT_INT64, _D.DT_FLOAT),
    _D.DT_INT32: (_D.DT_INT64, _D.DT_DOUBLE),
    _D.DT_FLOAT16: (_D.DT_FLOAT, _D.DT_DOUBLE),
    _D.DT_BF16: (_D.DT_FLOAT, _D.DT_DOUBLE),
    _D.DT_FLOAT: (_D.DT_DOUBLE,),
    _D.DT_COMPLEX64: (_D.DT_COMPLEX128,),
}
# Types of the same size that carry the bits of the key, for operators that only move elements.
_SAME_BITS: Final[dict[DataType, tuple[DataType, ...]]] = {
    _D.DT_DOUBLE: (_D.DT_INT64,),
    _D.DT_COMPLEX64: (_D.DT_INT64,),
    _D.DT_FLOAT: (_D.DT_INT32,),
}


@lru_cache(maxsize=1024)
def carrier(op: str, dtype: DataType, port: int | str = 0, moves: bool = False) -> DataType:
    """The type in which ``op`` has to be called for operands of ``dtype``.

    Args:
        op: GE operator type.
        dtype: Element type wanted.
        port: Input port whose domain counts, by position or name.
        moves: True if the operator only moves elements, so that equal bits are enough.

    Raises:
        Refusal: If neither the type itself nor an exact carrier is in the domain.
    """
    found = schema.require(op)
    ports = found.inputs if isinstance(port, int) else [p for p in found.inputs if p.name == port]
    domain = ports[port if isinstance(port, int) else 0].domain
    for candidate in (dtype, *(_SAME_BITS.get(dtype, ()) if moves else ()), *_WIDER.get(dtype, ())):
        if candidate in domain:
            return candidate
    raise Refusal(
        f"GE operator {op} does not take {dtype.name} and no type that it takes holds every value of it; "
        f"it takes {', '.join(sorted(d.name for d in domain))}; cast the input to one of them"
    )


def carry(x: Tensor, dtype: DataType) -> Tensor:
    """``x`` in a carrier type; ``carry`` back with the first type undoes it."""
    if x.dtype == dtype:
        return x
    if dtype in _SAME_BITS.get(x.dtype, ()) or x.dtype in _SAME_BITS.get(dtype, ()):
        moved: Tensor = ge.Bitcast(x, type=dtype)
        moved.record_shape(x.known_shape)
        return moved
    return cast(x, dtype)


def carried(
    op: str, *xs: Tensor, port: int | str = 0, moves: bool = False
) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
    """Operands of one type in the carrier type of ``op``, and the function that brings the result back.

    Raises:
        Refusal: If the operator has no exact carrier for the type.
    """
    dtype = xs[0].dtype
    inner = carrier(op, dtype, port, moves)
    if inner == dtype:
        return list(xs), _unchanged
    return [carry(x, inner) for x in xs], lambda y: carry(y, dtype)


def _unchanged(y: Tensor) -> Tensor:
    return y


def shaped(result: Tensor, like: Tensor) -> Tensor:
    """Note that an intermediate result has the shape of another tensor, so that its rank is known further on."""
    result.record_shape(like.known_shape)
    return result


def move(op: str, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Call an operator that only moves elements of its first input, in a type that it takes."""
    (inner,), back = carried(op, x, moves=True)
    return back(getattr(ge, op)(inner, *args, **kwargs))


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
_KEEPS_NUMBERS: Final = frozenset({"Add", "Sub", "Mul", "RealDiv"})


def compute_type(dtype: DataType, *operands: Any) -> DataType:
    """The type for arithmetic that keeps Python numbers in float32 beside a half tensor."""
    if dtype in HALF_TYPES and not all(isinstance(v, Tensor) or is_exact(v, dtype) for v in operands):
        return _D.DT_FLOAT
    return dtype


def arithmetic(op: str, a: Any, b: Any, dtype: DataType) -> Tensor:
    """``op`` on two operands, numbers or tensors, with a result of ``dtype`` as eager computes it."""
    wanted = compute_type(dtype, a, b) if op in _KEEPS_NUMBERS else dtype
    inner = carrier(op, wanted)
    x, y = dtype_promote(as_number(a, dtype), as_number(b, dtype), target_dtype=inner)
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
    from ge_converters.dtypes import to_ge

    return to_ge(result)


def common_type(a: Any, b: Any) -> DataType:
    """The type in which eager compares two operands: torch's promotion of tensors, 0-d tensors and numbers."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype:
        return a.dtype
    kinds = tuple((v.dtype, v.rank > 0) if isinstance(v, Tensor) else (type(v), False) for v in (a, b))
    return _common(kinds)
