"""Which element type an operator computes in when its schema does not know the wanted one.

Eager knows element types that a GE operator may not list (bool in ``Transpose``, bfloat16 in ``Erf``). Where a wider
type holds every value, the call goes through that type and the result is the very one eager gives; where no such type
exists the form is refused with the schema's own list.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import Refusal
from ge_graph import DataType, Tensor, schema
from ge_graph import ops as ge

_D = DataType

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

_FLOATS: Final = frozenset({DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_BF16})


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
    op_schema = schema.require(op)
    ports = op_schema.inputs if isinstance(port, int) else [p for p in op_schema.inputs if p.name == port]
    return _carrier(op, ports[port if isinstance(port, int) else 0].domain, dtype, moves)


@lru_cache(maxsize=1024)
def _carrier(op: str, domain: frozenset[DataType], dtype: DataType, moves: bool) -> DataType:
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
    if inner is dtype:
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
    if carrier(op, x.dtype, 0, True) is x.dtype:
        made: Tensor = getattr(ge, op)(x, *args, **kwargs)
        return made
    (inner,), back = carried(op, x, moves=True)
    return back(getattr(ge, op)(inner, *args, **kwargs))


def need_floats(op: str, *tensors: Tensor | None) -> None:
    """Refuse element types that the GE operator computes in no type that holds them."""
    for t in tensors:
        if t is not None and t.dtype not in _FLOATS:
            raise Refusal(f"GE operator {op} takes float32, float16 and bfloat16, got {t.dtype.name}; cast the input")
