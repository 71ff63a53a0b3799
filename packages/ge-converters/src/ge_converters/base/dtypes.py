"""torch and GE element types: one mapping derived from ``ge_graph.dtypes``, and explicit promotion.

GE never promotes: an ``Add`` of float32 and int64 does not compile. Converters say what they want with
``dtype_promote``, and the wanted type is that of ``meta_outputs``, which torch has promoted already.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.errors import LoweringError, Refusal
from ge_graph import DataType, Tensor
from ge_graph import ops as ge
from ge_graph.dtypes import BY_TORCH_NAME, as_dtype

AnyDType: TypeAlias = "torch.dtype | DataType"

_TO_GE: Final = {getattr(torch, name): ge for name, ge in BY_TORCH_NAME.items() if hasattr(torch, name)}
_TO_TORCH: Final = {ge: dtype for dtype, ge in _TO_GE.items()}


def to_ge(dtype: AnyDType) -> DataType:
    """The GE type of a torch type; a GE type, or its number, is taken as it is.

    Raises:
        LoweringError: GE2011 if GE has no such type.
        GraphError: GE3001 if the value is not a type at all.
    """
    if isinstance(dtype, DataType):
        return dtype
    ge_dtype = _TO_GE.get(dtype)
    if ge_dtype is not None:
        return ge_dtype
    if not isinstance(dtype, torch.dtype):
        return as_dtype(dtype)
    raise LoweringError(
        "GE2011",
        f"torch type {dtype} has no GE type",
        next="cast to one of " + ", ".join(sorted(str(d).removeprefix("torch.") for d in _TO_GE)),
    )


def to_torch(dtype: AnyDType) -> torch.dtype:
    """The torch type of a GE type; a torch type is returned as it is.

    Raises:
        LoweringError: GE2011 if torch has no such type.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    torch_dtype = _TO_TORCH.get(dtype)
    if torch_dtype is None:
        raise LoweringError("GE2011", f"GE type {dtype.name} has no torch type", next="cast to another type first")
    return torch_dtype


def part_type(dtype: DataType) -> DataType:
    """The type of the real and the imaginary part of a complex type."""
    return to_ge(to_torch(dtype).to_real())


def cast(x: Tensor, dtype: AnyDType) -> Tensor:
    """``x`` as ``dtype``; no node if it has that type already.

    Raises:
        Refusal: For a complex ``x`` and a real ``dtype``; bool says whether a number is not zero.
    """
    target = dtype if dtype.__class__ is DataType else to_ge(dtype)
    if x.dtype is target:
        return x
    if x.dtype.is_complex and target == DataType.DT_BOOL:
        result: Tensor = ge.LogicalNot(ge.Equal(x, 0))
    elif x.dtype.is_complex and not target.is_complex:
        raise Refusal(f"{x.dtype.name} as {target.name} would lose the imaginary part; take torch.real or torch.abs")
    else:
        result = ge.Cast(x, dst_type=target)
    if result.known_shape is None:
        result.record_shape(x.known_shape)
    return result


def dtype_promote(*values: Any, target_dtype: AnyDType) -> Any:
    """Bring every value to one element type.

    Shapes: kept; a number becomes a scalar constant, a list of numbers a 1-d constant.
    Dtypes: any -> ``target_dtype``.

    Args:
        values: GE tensors, numbers, bools or lists of numbers; at least one.
        target_dtype: A torch type or a ``DataType``.

    Returns:
        As many values as were given, all GE tensors; a single value comes back bare.

    Errors: LoweringError GE2011 if the type has no GE partner.

    Source: the converter contract, ``docs/adding_an_op.md``.
    """
    target = to_ge(target_dtype)
    done = [
        (v if v.dtype is target else cast(v, target)) if isinstance(v, Tensor) else ge.Const(v, dtype=target)
        for v in values
    ]
    return done[0] if len(done) == 1 else done
