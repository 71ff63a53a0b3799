"""Tensors from nothing: constants, ranges, grids; and copies of shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ge_converters.base.dtypes import cast, dtype_promote
from ge_converters.base.errors import Refusal
from ge_converters.base.support import BF16, BOOL, F16, F32, I32, I64, Support
from ge_converters.emit.arithmetic import arithmetic, as_number
from ge_converters.emit.compute_types import carrier, move
from ge_converters.emit.shapes import filled, permuted
from ge_converters.registry import declare_supported, define, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten
prims = torch.ops.prims
_D = DataType


# -- one value -------------------------------------------------------------------------------------------------------


def filled_like(x: Tensor, value: Any, meta: TensorSpec) -> Tensor:
    """A tensor of the shape of ``x`` with one value."""
    if all(isinstance(s, int) for s in meta.size):
        return filled(meta.size, value, meta.dtype)
    scalar = dtype_promote(as_number(value, meta.dtype), target_dtype=meta.dtype)
    return ge.Fill(ge.Shape(x, dtype=_D.DT_INT64), scalar)


_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool, torch.float64)
_SIZED = [([2, 3],), ([],), ([0, 3],)]
_LIKES = [F32(2, 3), F16(2), BF16(2), I64(2, 3), I32(), BOOL(2, 3), F32(0, 3)]


@declare_supported(
    [Support([2, 3], v) for v in (1, 2.5, True)]
    + [Support([], 3.0), Support([0, 2], 1)]
    + [Support([2], 1, dtype=d) for d in _DTYPES]
)
@register_fx_node_ge_converter(aten.full.default, source="aten full; GE Fill")
def full(size: Any, fill_value: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """A tensor full of one number.

    Dtypes: ``dtype``, else that of the number.
    Emits:  Fill; a constant for an empty size.
    """
    return filled(size, fill_value, meta_outputs.dtype)


@declare_supported(
    [Support(x, v) for x in _LIKES for v in (1, 2.5)]
    + [Support(F32(2, 3), 1, dtype=torch.int64), Support(I64(2), True, dtype=torch.bool)]
)
@register_fx_node_ge_converter(aten.full_like.default, source="aten full_like; GE Fill")
def full_like(self: Tensor, fill_value: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """A tensor of the shape of self, full of one number."""
    return filled_like(self, fill_value, meta_outputs)


@declare_supported([Support(x, v) for x in _LIKES for v in (1, 2.5)])
@register_fx_node_ge_converter(aten.fill.Scalar, source="aten fill.Scalar; GE Fill")
def fill(self: Tensor, value: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """A tensor of the shape and type of self, full of one number."""
    return filled_like(self, value, meta_outputs)


@declare_supported([Support(x, F32()) for x in _LIKES] + [Support(I64(2), I64())])
@register_fx_node_ge_converter(aten.fill.Tensor, source="aten fill.Tensor; GE Fill")
def fill_tensor(self: Tensor, value: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """A tensor of the shape and type of self, full of a 0-d tensor."""
    return filled_like(self, value, meta_outputs)


def _sized(value: int) -> Callable[..., Tensor]:
    def convert(size: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
        return filled(size, value, meta_outputs.dtype)

    return convert


def _alike(value: int) -> Callable[..., Tensor]:
    ready = {0: "ZerosLike", 1: "OnesLike"}[value]

    def convert(self: Tensor, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
        static = all(isinstance(s, int) for s in meta_outputs.size)
        if static or self.dtype != meta_outputs.dtype or not _takes(ready, self.dtype):
            return filled_like(self, value, meta_outputs)
        return getattr(ge, ready)(self)  # type: ignore[no-any-return]

    return convert


def _takes(op: str, dtype: DataType) -> bool:
    try:
        return carrier(op, dtype) == dtype
    except Refusal:
        return False


def _new(value: int) -> Callable[..., Tensor]:
    def convert(self: Tensor, size: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
        return filled(size, value, meta_outputs.dtype)

    return convert


def _install_constants() -> None:
    sized = [Support(*s) for s in _SIZED] + [Support([2], dtype=d) for d in _DTYPES]
    like = [Support(x) for x in _LIKES] + [Support(F32(2, 3), dtype=d) for d in _DTYPES]
    new = [Support(x, [2, 3]) for x in (F32(2), BOOL(2), I64(2))] + [Support(F32(2), [], dtype=torch.int64)]
    doc = "Dtypes: any.\nEmits:  Fill; ZerosLike or OnesLike when sizes are symbolic; a constant for an empty size."
    define(aten.zeros.default, "Fill", _sized(0), sized, doc)
    define(aten.ones.default, "Fill", _sized(1), sized, doc)
    define(aten.zeros_like.default, "Fill, ZerosLike", _alike(0), like, doc)
    define(aten.ones_like.default, "Fill, OnesLike", _alike(1), like, doc)
    define(aten.new_zeros.default, "Fill", _new(0), new, doc)
    define(aten.new_ones.default, "Fill", _new(1), new, doc)
    unset = "Contents are undefined in eager; here they are zero.\n" + doc
    define(aten.empty_like.default, "Fill", _alike(0), [Support(*s.args, **s.kwargs).shape_only() for s in like], unset)
    define(aten.new_empty.default, "Fill", _new(0), [Support(*s.args, **s.kwargs).shape_only() for s in new], unset)


_install_constants()


@declare_supported([Support(*s).shape_only() for s in _SIZED] + [Support([2], dtype=d).shape_only() for d in _DTYPES])
@register_fx_node_ge_converter(aten.empty.memory_format, source="aten empty.memory_format; GE Fill")
def empty(size: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Contents are undefined in eager; here they are zero."""
    return filled(size, 0, meta_outputs.dtype)


@declare_supported([Support([2, 3], [3, 1]).shape_only(), Support([2, 3], [1, 2], dtype=torch.int64).shape_only()])
@register_fx_node_ge_converter(aten.empty_strided.default, source="aten empty_strided; GE Fill")
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Zeros; strides matter at the rim of a graph only."""
    return filled(size, 0, meta_outputs.dtype)


@declare_supported([Support(F32(2), [2, 3], [3, 1]).shape_only()])
@register_fx_node_ge_converter(aten.new_empty_strided.default, source="aten new_empty_strided; GE Fill")
def new_empty_strided(self: Tensor, size: Any, stride: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Zeros of the given sizes."""
    return filled(size, 0, meta_outputs.dtype)


@declare_supported(
    [Support(F32(2), [2, 3], 1.5), Support(F32(2), [2], 1, dtype=torch.int64), Support(BOOL(2), [], True)]
)
@register_fx_node_ge_converter(aten.new_full.default, source="aten new_full; GE Fill")
def new_full(self: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """A tensor full of one number, in the type of self unless ``dtype`` says otherwise."""
    return filled(size, fill_value, meta_outputs.dtype)


@declare_supported(
    [Support(3), Support(2.5), Support(True), Support(float("nan")), *(Support(1, dtype=d) for d in _DTYPES)]
)
@register_fx_node_ge_converter(aten.scalar_tensor.default, source="aten scalar_tensor; GE Const")
def scalar_tensor(s: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """A 0-d tensor."""
    return dtype_promote(as_number(s, meta_outputs.dtype), target_dtype=meta_outputs.dtype)  # type: ignore[no-any-return]


# -- ranges ----------------------------------------------------------------------------------------------------------


def _range(start: Any, end: Any, step: Any, meta: TensorSpec) -> Tensor:
    """``Range`` counts in its own type; float limits are moved to the middle of the last step to keep eager's count."""
    dtype = meta.dtype
    inner: DataType
    symbolic = any(isinstance(v, Tensor) for v in (start, end, step))
    whole = not any(isinstance(v, float) for v in (start, end, step))
    if whole:
        inner = dtype if dtype in (_D.DT_INT32, _D.DT_INT64) else _D.DT_INT64
    else:
        if symbolic:
            raise Refusal(
                "arange with a symbolic bound and a float bound has no exact GE form; use integer bounds and cast"
            )
        count = meta.size[0]
        inner = _D.DT_DOUBLE if dtype == _D.DT_DOUBLE or dtype.is_integer else _D.DT_FLOAT
        if not isinstance(count, int):
            raise Refusal("arange with float bounds needs a length that is known when the graph is built")
        if count == 0:
            return filled([0], 0, dtype)
        if dtype.is_integer:  # eager truncates start and step first
            start, step, inner = int(start), int(step), _D.DT_INT64
            end = start + count * step
        else:
            end = start + (count - 0.5) * step
    bounds = dtype_promote(start, end, step, target_dtype=inner)
    return cast(ge.Range(*bounds), dtype)


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


@declare_supported(
    [Support(*r) for r in _RANGES]
    + [Support(0, 5, 2, dtype=d) for d in _DTYPES if d != torch.bool]
    + [Support(0, 1, 0.1, dtype=d) for d in (torch.float16, torch.bfloat16, torch.float64)]
    + [Support(0.5, 5.5, 1.0, dtype=torch.int64)]
)
@register_fx_node_ge_converter(aten.arange.start_step, source="aten arange.start_step; GE Range")
def arange(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """start, start + step, ... before end.

    Dtypes: ``dtype``, else int64 or the default float.
    Emits:  Range, and Cast for types that Range does not count in.
    """
    return _range(start, end, step, meta_outputs)


@declare_supported([Support(1, 4), Support(0.5, 3)])
@register_fx_node_ge_converter(aten.arange.start, source="aten arange.start; GE Range")
def arange_start(start: Any, end: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """start, start + 1, ... before end."""
    return _range(start, end, 1, meta_outputs)


@declare_supported([Support(4), Support(2.5), Support(4, dtype=torch.float16), Support(0)])
@register_fx_node_ge_converter(aten.arange.default, source="aten arange; GE Range")
def arange_end(end: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """0, 1, ... before end."""
    return _range(0, end, 1, meta_outputs)


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
    return _range(start, end, step, meta_outputs)


# -- grids -----------------------------------------------------------------------------------------------------------


def _identity(rows: Any, columns: Any, dtype: DataType) -> Tensor:
    if isinstance(rows, int) and isinstance(columns, int) and rows and columns:
        inner = _D.DT_INT8 if dtype == _D.DT_BOOL else dtype
        return cast(ge.Eye(num_rows=rows, num_columns=columns, dtype=int(inner)), dtype)
    down, across = (ge.Range(*dtype_promote(0, n, 1, target_dtype=_D.DT_INT64)) for n in (rows, columns))
    return cast(ge.Equal(ge.Unsqueeze(down, axes=[1]), across), dtype)


@declare_supported([Support(3), Support(0), *(Support(2, dtype=d) for d in _DTYPES)])
@register_fx_node_ge_converter(aten.eye.default, source="aten eye; GE Eye")
def eye(n: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Ones on the diagonal of a square."""
    return _identity(n, n, meta_outputs.dtype)


@declare_supported([Support(3, 2), Support(2, 0), Support(2, 4, dtype=torch.float16)])
@register_fx_node_ge_converter(aten.eye.m, source="aten eye.m; GE Eye")
def eye_m(n: Any, m: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Ones on the diagonal of a rectangle."""
    return _identity(n, m, meta_outputs.dtype)


@declare_supported(
    [Support(x) for x in (F32(3), F16(2, 3), BF16(2, 3), I64(3), BOOL(2), F32(0))]
    + [Support(F32(2, 3), 0, 0, 1), Support(F32(2, 3), 0, -1, 0), Support(F32(4, 2, 3), 0, 1, 2)]
)
@register_fx_node_ge_converter(aten.diag_embed.default, source="aten diag_embed; GE MatrixDiag")
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


def _triangle_indices(upper: bool) -> Callable[..., Tensor]:
    def convert(row: Any, col: Any, offset: Any = 0, *, dtype: Any = torch.int64, meta_outputs: TensorSpec) -> Tensor:
        if any(isinstance(v, Tensor) for v in (row, col, offset)):
            raise Refusal("symbolic sizes of a triangle: compare two ranges and use nonzero")
        places = np.triu_indices(row, offset, col) if upper else np.tril_indices(row, offset, col)
        return ge.Const(np.stack(places).astype(np.int64), dtype=meta_outputs.dtype)

    return convert


_TRIANGLES = [Support(3, 4), Support(3, 4, 1), Support(4, 3, -1), Support(2, 2, dtype=torch.int32)]
define(aten.tril_indices.default, "Const", _triangle_indices(False), _TRIANGLES, "Emits:  a constant.")
define(aten.triu_indices.default, "Const", _triangle_indices(True), _TRIANGLES, "Emits:  a constant.")
