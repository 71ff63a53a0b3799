"""Tensors from nothing: constants, ranges, grids; and copies of shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten, prims
from ge_converters.base.support import BF16, BOOL, F16, F32, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic, as_content, as_number
from ge_converters.emit.compute_types import carrier, move
from ge_converters.emit.shapes import filled, permuted
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_D = DataType


# -- one value -------------------------------------------------------------------------------------------------------


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.float64)
_LIKES = [F32(2, 3), F16(2), BF16(2), I64(2, 3), I32(), BOOL(2, 3), F32(0, 3)]
_SIZED = [Support([2, 3]), Support([]), Support([0, 3]), *(Support([2], dtype=d) for d in _DTYPES)]
_LIKE = [Support(x) for x in _LIKES] + [Support(F32(2, 3), dtype=d) for d in _DTYPES]
_NEW = [Support(x, [2, 3]) for x in (F32(2), BOOL(2), I64(2))] + [Support(F32(2), [], dtype=torch.int64)]


def _unset(forms: list[Support]) -> list[Support]:
    return [Support(*s.args, **s.kwargs).shape_only() for s in forms]


@register_fx_node_ge_converter(
    {
        aten.full.default: [
            *(Support([2, 3], v) for v in (1, 2.5, True)),
            Support([], 3.0),
            Support([0, 2], 1),
            *(Support([2], 1, dtype=d) for d in _DTYPES),
        ],
        aten.new_full.default: [
            Support(F32(2), [2, 3], 1.5),
            Support(F32(2), [2], 1, dtype=torch.int64),
            Support(BOOL(2), [], True),
        ],
    },
    source="native_functions.yaml: full; GE Fill",
)
@register_fx_node_ge_converter(
    {aten.ones.default: _SIZED, aten.new_ones.default: _NEW},
    source="native_functions.yaml: ones; GE Fill",
    fixed={"fill_value": 1},
)
@register_fx_node_ge_converter(
    {
        aten.zeros.default: _SIZED,
        aten.new_zeros.default: _NEW,
        aten.empty.memory_format: _unset(_SIZED),
        aten.empty_strided.default: _unset([Support([2, 3], [3, 1]), Support([2, 3], [1, 2], dtype=torch.int64)]),
        aten.new_empty.default: _unset(_NEW),
        aten.new_empty_strided.default: _unset([Support(F32(2), [2, 3], [3, 1])]),
    },
    source="native_functions.yaml: zeros, empty; GE Fill",
    fixed={"fill_value": 0},
)
def full(
    size: Any, fill_value: Any, *, self: Any = None, stride: Any = None, dtype: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """A tensor full of one number; what eager leaves undefined is zero here, and strides matter at the rim of a graph
    only.

    Dtypes: ``dtype``, else that of self or of the number.
    Emits:  Fill; a constant for an empty size.
    """
    return filled(size, fill_value, meta_outputs.dtype)


@register_fx_node_ge_converter(
    {
        aten.full_like.default: [
            *(Support(x, v) for x in _LIKES for v in (1, 2.5)),
            Support(F32(2, 3), 1, dtype=torch.int64),
            Support(I64(2), True, dtype=torch.bool),
        ],
        aten.fill.Scalar: [Support(x, v) for x in _LIKES for v in (1, 2.5)],
        aten.fill.Tensor: [*(Support(x, F32()) for x in _LIKES), Support(I64(2), I64())],
    },
    source="native_functions.yaml: full_like, fill; GE Fill",
    names={"value": "fill_value"},
)
def full_like(self: Tensor, fill_value: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """A tensor of the shape of self, full of one number or 0-d tensor.

    Dtypes: ``dtype``, else that of self.
    Emits:  Fill; a constant for an empty size.
    """
    if all(isinstance(s, int) for s in meta_outputs.size):
        return filled(meta_outputs.size, fill_value, meta_outputs.dtype)
    scalar = dtype_promote(as_content(fill_value, meta_outputs.dtype), target_dtype=meta_outputs.dtype)
    return ge.Fill(ge.Shape(self, dtype=_D.DT_INT64), scalar)


@register_fx_node_ge_converter(
    {aten.zeros_like.default: _LIKE, aten.empty_like.default: _unset(_LIKE)},
    source="native_functions.yaml: zeros_like, empty_like; GE Fill, ZerosLike",
    fixed={"value": 0, "op": "ZerosLike"},
)
@register_fx_node_ge_converter(
    {aten.ones_like.default: _LIKE},
    source="native_functions.yaml: ones_like; GE Fill, OnesLike",
    fixed={"value": 1, "op": "OnesLike"},
)
def alike(self: Tensor, *, dtype: Any = None, value: int, op: str, meta_outputs: TensorSpec) -> Tensor:
    """Zeros or ones of the shape of self; what eager leaves undefined is zero here.

    Emits:  Fill; ZerosLike or OnesLike when sizes are symbolic; a constant for an empty size.
    """
    static = all(isinstance(s, int) for s in meta_outputs.size)
    if static or self.dtype != meta_outputs.dtype or not _takes(op, self.dtype):
        return full_like(self, value, meta_outputs=meta_outputs)
    return getattr(ge, op)(self)  # type: ignore[no-any-return]


def _takes(op: str, dtype: DataType) -> bool:
    try:
        return carrier(op, dtype) == dtype
    except Refusal:
        return False


@declare_supported(
    [Support(3), Support(2.5), Support(True), Support(float("nan")), *(Support(1, dtype=d) for d in _DTYPES)]
)
@register_fx_node_ge_converter(aten.scalar_tensor.default, source="aten scalar_tensor; GE Const")
def scalar_tensor(s: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """A 0-d tensor."""
    return dtype_promote(as_number(s, meta_outputs.dtype), target_dtype=meta_outputs.dtype)  # type: ignore[no-any-return]


# -- ranges ----------------------------------------------------------------------------------------------------------


_RANGES = [
    (0, 5, 1),
    (1, 10, 3),
    (10, 0, -2),
    (3, 3, 1),
    (0, 1, 0.1),
    (0.0, 0.9, 0.3),
    (-1.5, 2, 0.25),
    (1.0, -1.0, -0.3),
]


@register_fx_node_ge_converter(
    {
        aten.arange.start_step: [
            *(Support(*r) for r in _RANGES),
            *(Support(0, 5, 2, dtype=d) for d in _DTYPES if d != torch.bool),
            *(Support(0, 1, 0.1, dtype=d) for d in (torch.float16, torch.bfloat16, torch.float64)),
            Support(0.5, 5.5, 1.0, dtype=torch.int64),
        ],
        aten.arange.start: [Support(1, 4), Support(0.5, 3)],
        aten.arange.default: [Support(4), Support(2.5), Support(4, dtype=torch.float16), Support(0)],
    },
    source="native_functions.yaml: arange; GE Range",
)
def arange(end: Any, *, start: Any = 0, step: Any = 1, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """start, start + step, ... before end.

    ``Range`` counts in its own type; float limits are moved to the middle of the last step to keep eager's count.

    Dtypes: ``dtype``, else int64 or the default float.
    Emits:  Range, and Cast for types that Range does not count in.
    """
    kind = meta_outputs.dtype
    inner: DataType
    if not any(isinstance(v, float) for v in (start, end, step)):
        inner = kind if kind in (_D.DT_INT32, _D.DT_INT64) else _D.DT_INT64
    else:
        if any(isinstance(v, Tensor) for v in (start, end, step)):
            raise Refusal(
                "arange with a symbolic bound and a float bound has no exact GE form; use integer bounds and cast"
            )
        count = meta_outputs.size[0]
        inner = _D.DT_DOUBLE if kind == _D.DT_DOUBLE or kind.is_integer else _D.DT_FLOAT
        if not isinstance(count, int):
            raise Refusal("arange with float bounds needs a length that is known when the graph is built")
        if count == 0:
            return filled([0], 0, kind)
        if kind.is_integer:  # eager truncates start and step first
            start, step, inner = int(start), int(step), _D.DT_INT64
            end = start + count * step
        else:
            end = start + (count - 0.5) * step
    bounds = dtype_promote(start, end, step, target_dtype=inner)
    return cast(ge.Range(*bounds), kind)


@declare_supported(
    [
        Support(n, start=s, step=t, dtype=d, device=torch.device("cpu"), requires_grad=False)
        for n, s, t in ((5, 0, 1), (4, 3, -2), (0, 1, 1))
        for d in (torch.int64, torch.int32)
    ]
)
@register_fx_node_ge_converter(prims.iota.default, source="torch._prims: iota; GE Range")
def iota(length: Any, *, start: Any, step: Any, dtype: Any, requires_grad: bool, meta_outputs: TensorSpec) -> Tensor:
    """start + step * i for i below length."""
    if any(isinstance(v, Tensor) for v in (length, start, step)):
        if isinstance(start, int) and start == 0 and isinstance(step, int) and step == 1:
            end: Any = length
        else:
            end = arithmetic("Add", start, arithmetic("Mul", length, step, _D.DT_INT64), _D.DT_INT64)
    else:
        end = start + length * step
    return arange(end, start=start, step=step, meta_outputs=meta_outputs)


# -- grids -----------------------------------------------------------------------------------------------------------


@register_fx_node_ge_converter(
    {
        aten.eye.default: [Support(3), Support(0), *(Support(2, dtype=d) for d in _DTYPES)],
        aten.eye.m: [Support(3, 2), Support(2, 0), Support(2, 4, dtype=torch.float16)],
    },
    source="native_functions.yaml: eye; GE Eye",
)
def eye(n: Any, m: Any = None, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Ones on the diagonal of a rectangle, of a square without m."""
    kind = meta_outputs.dtype
    columns = n if m is None else m
    if isinstance(n, int) and isinstance(columns, int) and n and columns:
        inner = _D.DT_INT8 if kind == _D.DT_BOOL else kind
        return cast(ge.Eye(num_rows=n, num_columns=columns, dtype=int(inner)), kind)
    down, across = (ge.Range(*dtype_promote(0, count, 1, target_dtype=_D.DT_INT64)) for count in (n, columns))
    return cast(ge.Equal(ge.Unsqueeze(down, axes=[1]), across), kind)


def _main_diagonal(self: Any, offset: Any = 0, *_: Any, **__: Any) -> bool:
    """Only the main diagonal, and no complex numbers."""
    return offset == 0 and not self.is_complex()


@declare_supported(
    [Support(x) for x in (F32(3), F16(2, 3), BF16(2, 3), I64(3), BOOL(2), F32(0))]
    + [Support(F32(2, 3), 0, 0, 1), Support(F32(2, 3), 0, -1, 0), Support(F32(4, 2, 3), 0, 1, 2)]
)
@register_fx_node_ge_converter(aten.diag_embed.default, source="aten diag_embed; GE MatrixDiag", takes=_main_diagonal)
def diag_embed(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1, *, meta_outputs: TensorSpec) -> Tensor:
    """Matrices with the last axis on their diagonal and zeros elsewhere.

    Shapes: self [.., n] -> [.., n, n], the two axes at dim1 and dim2. Another diagonal than the main one is decomposed.
    Emits:  MatrixDiag; Transpose if the axes are not the last ones.
    """
    made = move("MatrixDiag", self)
    rank = self.rank + 1
    made.record_shape((*self.known_shape, self.known_shape[-1]) if self.known_shape else None)
    rows, columns = sorted((dim1 % rank, dim2 % rank))  # a diagonal matrix is its own transpose
    order = [i for i in range(rank - 2)]
    order.insert(rows, rank - 2)
    order.insert(columns, rank - 1)
    return permuted(made, order)


def _whole_steps(start: int, end: int, steps: int) -> list[int]:
    """Eager's integer linspace: steps from both ends in double, fractions cut off."""
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    return [
        int(start + step * i) if i < steps // 2 or steps == 1 else int(end - step * (steps - i - 1))
        for i in range(steps)
    ]


@declare_supported(
    [Support(-3, 8, 7, dtype=d) for d in (torch.int64, torch.int32)]
    + [
        Support(0, 1, 5),
        Support(-2.0, 3.0, 7),
        Support(1, 1, 1),
        Support(0, 10, 4, dtype=torch.float64),
        Support(0, 1, 3, dtype=torch.float16),
    ]
)
@register_fx_node_ge_converter(aten.linspace.default, source="aten linspace; GE LinSpace")
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Evenly spaced values from start to end, both included.

    Emits:  LinSpace; a constant for integers, whose rounding GE does not define.
    """
    dtype = meta_outputs.dtype
    if not dtype.is_float:
        if any(isinstance(v, Tensor) for v in (start, end, steps)):
            raise Refusal(
                f"linspace of {dtype.name} with symbolic bounds: GE LinSpace defines no rounding; cast a float one"
            )
        return ge.Const(np.asarray(_whole_steps(int(start), int(end), steps)), dtype=dtype)
    if meta_outputs.size[0] == 0:
        return filled([0], 0, dtype)
    first, last = dtype_promote(start, end, target_dtype=carrier("LinSpace", dtype))
    return cast(ge.LinSpace(first, last, dtype_promote(steps, target_dtype=_D.DT_INT64)), dtype)


_TRIANGLES = [Support(3, 4), Support(3, 4, 1), Support(4, 3, -1), Support(2, 2, dtype=torch.int32)]


@register_fx_node_ge_converter(
    {aten.tril_indices.default: _TRIANGLES}, source="aten tril_indices; GE Const", fixed={"places": np.tril_indices}
)
@register_fx_node_ge_converter(
    {aten.triu_indices.default: _TRIANGLES}, source="aten triu_indices; GE Const", fixed={"places": np.triu_indices}
)
def triangle_indices(
    row: Any, col: Any, offset: Any = 0, *, dtype: Any = None, places: Callable[..., Any], meta_outputs: TensorSpec
) -> Tensor:
    """Rows and columns of a triangle's elements.

    Emits:  a constant.
    """
    if any(isinstance(v, Tensor) for v in (row, col, offset)):
        raise Refusal("symbolic sizes of a triangle: compare two ranges and use nonzero")
    return ge.Const(np.stack(places(row, offset, col)).astype(np.int64), dtype=meta_outputs.dtype)
