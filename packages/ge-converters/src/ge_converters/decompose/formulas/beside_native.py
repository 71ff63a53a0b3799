"""Calls that the GE operator behind a converter does not take: torch's own formula serves them.

A row says which calls the operator takes: element types, operands of one shape, sizes that are numbers because GE has
an attribute for them. Everything else is decomposed as if there were no converter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from ge_converters.base.torch_compat import known_decompositions, surely_equal
from ge_converters.decompose.formulas import general, windows

_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
_CROSS: Final = (*_FLOATS, torch.float64, *(getattr(torch, f"int{n}") for n in (8, 16, 32, 64)), torch.uint8)


def _float(self: Tensor, *_: Any, **__: Any) -> bool:
    return self.dtype in _FLOATS


def alike(*tensors: Tensor | None) -> bool:
    """Whether all tensors have one element type and, for every size of the graph, one shape; None is left out."""
    first, *others = [t for t in tensors if t is not None]
    return all(
        t.dtype == first.dtype and t.dim() == first.dim() and all(map(surely_equal, t.shape, first.shape))
        for t in others
    )


def _pair(self: Tensor, target: Tensor, *_: Any, **__: Any) -> bool:
    return _float(self) and alike(self, target)


def _weighted_pair(self: Tensor, target: Tensor, weight: Tensor | None = None, *_: Any, **__: Any) -> bool:
    return _float(self) and alike(self, target, weight)


def _logits(
    self: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, *_: Any, **__: Any
) -> bool:
    others = [t for t in (weight, pos_weight) if t is not None]
    return _float(self) and alike(self, target) and all(t.dtype == self.dtype for t in others)


def _loss_gradient(grad_output: Tensor, self: Tensor, target: Tensor, *_: Any, **__: Any) -> bool:
    return _float(self) and grad_output.dtype == self.dtype and alike(self, target)


def _numbers(sizes: Any) -> bool:
    return all(isinstance(s, int) for s in sizes)


def _fixed(self: Tensor, output_size: Any, *_: Any, **__: Any) -> bool:
    return _float(self) and _numbers(output_size)


def _floats_or_double(self: Tensor, output_size: Any, *_: Any, **__: Any) -> bool:
    return self.dtype in (*_FLOATS, torch.float64) and _numbers(output_size)


def _cross(self: Tensor, other: Tensor, *, dim: int = -1) -> bool:
    return self.dtype in _CROSS and alike(self, other)


def _norm(
    self: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> bool:
    return _float(self) and dtype in (None, self.dtype)


def _real(self: Tensor, *_: Any, **__: Any) -> bool:
    return not self.dtype.is_complex and self.dtype != torch.bool


def _not_double(self: Tensor, *_: Any, **__: Any) -> bool:
    return self.dtype is not torch.float64


def _batch_norm_in_use(input: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, *numbers: float) -> Any:
    return torch.ops.aten._native_batch_norm_legit_functional(input, weight, bias, mean, var, False, *numbers)[:3]


Takes = Callable[..., bool]

# GE's norms and their gradients take no float64; the statistics of the formulas are those of reductions, which do.
_NORMS: Final = (
    "native_layer_norm.default", "native_layer_norm_backward.default",
    "native_group_norm.default", "native_group_norm_backward.default",
    "_fused_rms_norm.default", "_fused_rms_norm_backward.default",
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.no_stats", "_batch_norm_with_update_functional.default", "_batch_norm_no_update.default",
    "native_batch_norm_backward.default", "batch_norm_backward.default",
)  # fmt: skip

# op: which calls GE takes, and the formula for all others; None is torch's.
ROWS: Final[dict[str, tuple[Takes, Callable[..., Any] | None]]] = {
    "softshrink.default": (_float, None),
    "hardshrink.default": (_float, None),
    "log_sigmoid_forward.default": (_float, None),
    "softplus.default": (_float, None),
    "glu.default": (_float, None),
    "_prelu_kernel.default": (lambda self, weight: _float(self) and weight.dtype == self.dtype, None),
    "nan_to_num.default": (_float, None),
    "logaddexp.default": (lambda self, other: _float(self) and self.dtype == other.dtype, None),
    "logaddexp2.default": (lambda self, other: _float(self) and self.dtype == other.dtype, None),
    "renorm.default": (_float, None),
    "mse_loss.default": (_pair, None),
    "smooth_l1_loss.default": (_pair, None),
    "huber_loss.default": (_pair, None),
    "soft_margin_loss.default": (_pair, None),
    "binary_cross_entropy.default": (_weighted_pair, None),
    "binary_cross_entropy_with_logits.default": (_logits, None),
    "multilabel_margin_loss_forward.default": (
        # torch infers a size of one for the loss of a single row, which eager gives without sizes
        lambda self, target, reduction: _float(self) and self.dim() > 1,
        general.multilabel_margin_loss,
    ),
    "mse_loss_backward.default": (_loss_gradient, None),
    "smooth_l1_loss_backward.default": (_loss_gradient, None),
    "huber_loss_backward.default": (_loss_gradient, None),
    "soft_margin_loss_backward.default": (_loss_gradient, None),
    "linalg_cross.default": (_cross, general.cross),
    "im2col.default": (_real, None),
    "col2im.default": (_float, None),
    "linalg_vector_norm.default": (_norm, None),
    "norm.ScalarOpt_dim": (_float, None),
    "norm.Scalar": (_float, None),
    "celu.default": (_float, None),
    "trace.default": (_float, None),
    "heaviside.default": (_pair, None),
    "logit.default": (_float, None),
    "diag_embed.default": (lambda self, offset=0, dim1=-2, dim2=-1: offset == 0 and not self.is_complex(), None),
    "upsample_nearest1d.default": (_floats_or_double, None),
    "upsample_nearest3d.default": (_floats_or_double, None),
    "_upsample_nearest_exact1d.default": (_fixed, None),
    "_upsample_nearest_exact3d.default": (_fixed, None),
    "upsample_linear1d.default": (_float, None),
    "upsample_trilinear3d.default": (_fixed, None),
    "upsample_bicubic2d.default": (_fixed, None),
    "_upsample_bilinear2d_aa.default": (_fixed, windows.FORMULAS["_upsample_bilinear2d_aa.default"]),
    "_upsample_bicubic2d_aa.default": (_fixed, windows.FORMULAS["_upsample_bicubic2d_aa.default"]),
    "adaptive_max_pool3d.default": (_fixed, windows.adaptive_max_pool3d),
    **dict.fromkeys(_NORMS, (_not_double, None)),
    "hardswish.default": (_float, None),
    "_native_batch_norm_legit_no_training.default": (_not_double, _batch_norm_in_use),  # torch's formula writes
}


def _beside(op: Any, takes: Takes, formula: Callable[..., Any] | None) -> Callable[..., Any]:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if takes(*args, **kwargs):
            return NotImplemented
        return (formula or known_decompositions()[op])(*args, **kwargs)

    return decompose


def _rows() -> dict[str, Callable[..., Any]]:
    made = {}
    for name, (takes, formula) in ROWS.items():
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is not None:  # this torch has it
            made[name] = _beside(op, takes, formula)
    return made


BESIDE_CONVERTERS: Final[dict[str, Callable[..., Any]]] = _rows()
