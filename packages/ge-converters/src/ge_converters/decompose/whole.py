"""Functions that torch takes apart before anybody is asked: while tracing they go to the overload that has a converter.

Python decompositions of these run in place of autograd's kernels, so that a table of decompositions is never looked
into. The calls below skip autograd, and gradients are the ATen operators that eager has for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ge_converters.base.errors import LoweringError
from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import below_autograd, from_data, native_pad, resized_sizes
from ge_converters.base.torch_traces import keep_first_symbols
from ge_converters.decompose import flex_attention, tensor_index
from ge_converters.decompose.formulas.general import multilabel_margin_loss
from ge_converters.decompose.formulas.lapack_info import WITH_INFO
from ge_converters.decompose.memory_order import channels_last_format

# (mode, spatial axes, anti-aliased): the overload with sizes, and whether it takes align_corners.
_INTERPOLATIONS: Final[dict[tuple[str, int, bool], tuple[Any, bool]]] = {
    ("nearest", 1, False): (aten.upsample_nearest1d.default, False),
    ("nearest", 2, False): (aten.upsample_nearest2d.default, False),
    ("nearest", 3, False): (aten.upsample_nearest3d.default, False),
    ("nearest-exact", 1, False): (aten._upsample_nearest_exact1d.default, False),
    ("nearest-exact", 2, False): (aten._upsample_nearest_exact2d.default, False),
    ("nearest-exact", 3, False): (aten._upsample_nearest_exact3d.default, False),
    ("linear", 1, False): (aten.upsample_linear1d.default, True),
    ("bilinear", 2, False): (aten.upsample_bilinear2d.default, True),
    ("bilinear", 2, True): (aten._upsample_bilinear2d_aa.default, True),
    ("bicubic", 2, False): (aten.upsample_bicubic2d.default, True),
    ("bicubic", 2, True): (aten._upsample_bicubic2d_aa.default, True),
    ("trilinear", 3, False): (aten.upsample_trilinear3d.default, True),
}


def _each(value: Any, count: int) -> list[Any] | None:
    """A number for every axis; None if that is not what was given."""
    if isinstance(value, Sequence):
        return list(value) if len(value) == count else None
    return [value] * count


def _interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """The overload with sizes, or NotImplemented for what torch should say itself."""
    if not isinstance(input, torch.Tensor) or not input.is_floating_point():
        return NotImplemented
    spatial = input.dim() - 2
    op, aligns = _INTERPOLATIONS.get((mode, spatial, bool(antialias)), (None, False))
    if op is None or (size is None) == (scale_factor is None) or (align_corners is not None and not aligns):
        return NotImplemented
    sizes = None if size is None else _each(size, spatial)
    factors = None if scale_factor is None else _each(scale_factor, spatial)
    if sizes is factors is None or (factors is not None and not all(isinstance(f, (int, float)) for f in factors)):
        return NotImplemented
    wanted = resized_sizes(input.shape, sizes, factors)
    for extent in wanted:
        torch._check(extent > 0)  # eager's own demand, which torch cannot decide for a size that stands in a tensor
    if factors is None or recompute_scale_factor:
        factors = [None] * spatial
    rest = (*([bool(align_corners)] if aligns else []), *factors)
    if input.requires_grad and torch.is_grad_enabled():
        if input.dtype is torch.float64 or not all(isinstance(s, int) for s in (*input.shape, *wanted)):
            # torch's own formula, whose gradient serves float64 and symbolic sizes but loses the order of memory
            order = None if mode == "bicubic" else channels_last_format(input)
            if order is None:
                return NotImplemented
            kept = _GradientInOrder.apply(input, order)
            return F.interpolate(kept, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
        return _Resized.apply(input, op, wanted, rest)
    with below_autograd():
        return op(input, wanted, *rest)


class _GradientInOrder(torch.autograd.Function):  # type: ignore[misc]
    """The input itself; its gradient comes in an order of memory."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, order: torch.memory_format) -> Any:
        ctx.order = order
        return input.view_as(input)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.contiguous(memory_format=ctx.order), None


class _Resized(torch.autograd.Function):  # type: ignore[misc]
    """An interpolation as one op, and its gradient as one."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, op: Any, sizes: Any, rest: tuple[Any, ...]) -> Any:
        ctx.form = (op, input.shape, sizes, rest)
        with below_autograd():
            return op(input, sizes, *rest)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        op, shape, sizes, rest = ctx.form
        gradient = getattr(aten, f"{op._schema.name.removeprefix('aten::')}_backward").default
        with below_autograd():
            return gradient(grad, sizes, list(shape), *rest), None, None, None


class _Shrunk(torch.autograd.Function):  # type: ignore[misc]
    """A shrinking activation as one op, and its gradient as one."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, op: Any, gradient: Any, bound: float) -> Any:
        ctx.save_for_backward(input)
        ctx.form = (gradient, bound)
        with below_autograd():
            return op(input, bound)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (input,), (gradient, bound) = ctx.saved_tensors, ctx.form
        with below_autograd():
            return gradient(grad, input, bound), None, None, None


def _shrunk(op: Any, gradient: Any) -> Callable[..., Any]:
    def run(input: Any, lambd: float = 0.5) -> Any:
        if not isinstance(input, torch.Tensor) or not input.is_floating_point():
            return NotImplemented
        if input.requires_grad and torch.is_grad_enabled():
            if not all(isinstance(s, int) for s in input.shape):
                return NotImplemented  # torch knows no symbolic shape of the gradient
            return _Shrunk.apply(input, op, gradient, lambd)
        with below_autograd():
            return op(input, lambd)

    return run


_softshrink = _shrunk(aten.softshrink.default, aten.softshrink_backward.default)
_hardshrink = _shrunk(aten.hardshrink.default, aten.hardshrink_backward.default)


def _multilabel_margin_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """One op without gradients, a formula with them and for a single row, whose sizes torch infers wrongly."""
    known = {"none": 0, "mean": 1, "sum": 2}.get(reduction)
    if known is None or size_average is not None or reduce is not None or not isinstance(input, torch.Tensor):
        return NotImplemented
    if not input.is_floating_point():
        return NotImplemented
    if input.dim() < 2 or (input.requires_grad and torch.is_grad_enabled()):
        return multilabel_margin_loss(input, target, known)[0]
    with below_autograd():
        return aten.multilabel_margin_loss_forward.default(input, target, known)[0]


def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """A circular pad by numbers that stand in tensors: torch's own asks how large they are before anybody knows."""
    if mode != "circular" or len(pad) % 2 or all(type(p) is int for p in pad):
        return NotImplemented
    widths = [p.item() if isinstance(p, torch.Tensor) else p for p in pad]
    if not any(map(from_data, widths)):
        return NotImplemented
    axes = len(pad) // 2
    if axes > 3 or input.dim() - axes not in (1, 2):
        raise NotImplementedError("Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now")
    for k, (before, after) in enumerate(zip(widths[::2], widths[1::2])):
        axis = input.dim() - 1 - k
        size = input.shape[axis]
        # negative widths cut off first, and what is left is what goes round
        left, right = torch.sym_max(-before, 0), torch.sym_max(-after, 0)
        kept = size - left - right
        for width in (before, after):
            torch._check(width <= kept, lambda: "Padding value causes wrapping around more than once.")
        torch._check(kept > 0, lambda: "Negative padding value is resulting in an empty dimension")
        input = input.index_select(
            axis, torch.arange(-torch.sym_max(before, 0), kept + torch.sym_max(after, 0)) % kept + left
        )
    return input


_KEPT: Final[dict[Any, Callable[..., Any]]] = {
    F.interpolate: _interpolate,
    F.upsample: lambda input, size=None, scale_factor=None, mode="nearest", align_corners=None: _interpolate(
        input, size, scale_factor, mode, align_corners
    ),
    F.upsample_nearest: _interpolate,
    F.upsample_bilinear: lambda input, size=None, scale_factor=None: _interpolate(
        input, size, scale_factor, "bilinear", True
    ),
    F.multilabel_margin_loss: _multilabel_margin_loss,
    F.softshrink: _softshrink,
    F.hardshrink: _hardshrink,
    torch.hardshrink: _hardshrink,
    **dict.fromkeys((F.pad, native_pad), _pad),
    torch.Tensor.__getitem__: tensor_index.read,
    torch.Tensor.__setitem__: tensor_index.write,
    **WITH_INFO,
}

# Higher-order operators by name: torch makes some of them when they are first asked for.
_KEPT_BY_NAME: Final[dict[str, Callable[..., Any]]] = {
    "flex_attention": flex_attention.forward,
    "flex_attention_backward": flex_attention.backward,
}


_LOOKUPS: Final = {F.embedding: "nn.Embedding", F.embedding_bag: "nn.EmbeddingBag"}


def _dense_gradient(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Stop at a table whose gradient torch would make a sparse tensor: in the forward, with what to write."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    if given.get("sparse") and given["weight"].requires_grad and torch.is_grad_enabled():
        rows, *_ = given["weight"].shape
        raise LoweringError(
            "GE2015",
            f"{func.__name__}(..., sparse=True) of a table of {rows} rows gives a sparse gradient, and GE "
            "knows dense tensors only",
            next=f"write {_LOOKUPS[func]}(..., sparse=False) and an optimizer for dense gradients, or freeze the "
            'table; config.fallback = "split" makes the sparse gradient eagerly',
        )


_GATHERS: Final = (torch.gather, torch.Tensor.gather)


def _dense_gather(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Stop at a gather whose gradient torch would make a sparse tensor."""
    source = args[0] if args else kwargs["input"]
    if kwargs.get("sparse_grad") and source.requires_grad and torch.is_grad_enabled():
        raise LoweringError(
            "GE2015",
            f"gather(..., sparse_grad=True) of a tensor of sizes {tuple(source.shape)} gives a sparse "
            "gradient, and GE knows dense tensors only",
            next='write gather(..., sparse_grad=False); config.fallback = "split" makes the sparse gradient eagerly',
        )


class KeepWhole(TorchFunctionMode):  # type: ignore[misc]
    """A mode for tracing in which these functions call the overload that has a converter.

    Args:
        sparse_gradients: Whether somebody takes sparse gradients.

    Errors: LoweringError GE2015 for a sparse gradient that nobody takes.
    """

    def __init__(self, *, sparse_gradients: bool = False) -> None:
        super().__init__()
        self._sparse_gradients = sparse_gradients

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keep_first_symbols()
        if func in (F.embedding, F.embedding_bag) and not self._sparse_gradients:
            _dense_gradient(func, args, kwargs or {})
        if func in _GATHERS and not self._sparse_gradients:
            _dense_gather(args, kwargs or {})
        if isinstance(func, torch._ops.HigherOrderOperator):
            kept = _KEPT_BY_NAME.get(func.name())
        else:
            kept = _KEPT.get(func) if callable(func) and func.__hash__ is not None else None
        if kept is not None:
            made = kept(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        return func(*args, **(kwargs or {}))
