"""Batch normalisation in its many spellings, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, U8, Support
from ge_converters.emit.compute_types import need_floats
from ge_converters.emit.windows import LAYOUTS
from ge_converters.registry import Takes, declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

_F32: Final = DataType.DT_FLOAT
_BN_INFER_TYPES: Final = frozenset({DataType.DT_FLOAT, DataType.DT_FLOAT16})


def _empty() -> Tensor:
    """What torch saves when nothing is saved: a tensor without elements."""
    return ge.Const(np.zeros((0,), np.float32))


def _channel_values(x: Tensor, value: float) -> Tensor:
    """One value per channel; the number of channels is read in the graph."""
    channels = ge.GatherV2(ge.Shape(x, dtype=int(DataType.DT_INT64)), [1], ge.Const(0, dtype=DataType.DT_INT64))
    result: Tensor = ge.Fill(channels, ge.Const(value, dtype=_F32))
    return result


def _marked(x: Tensor, *others: Tensor) -> None:
    layout = LAYOUTS.get(x.rank - 2)
    if layout is not None:
        for tensor in (x, *others):
            tensor.format = layout


def _affine(weight: Tensor | None, bias: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Factor and offset; the one that is absent is neutral and has the type of the other, as BatchNormV3 wants."""
    gamma = weight if weight is not None else ge.OnesLike(like if bias is None else bias)
    beta = bias if bias is not None else ge.ZerosLike(like if weight is None else weight)
    return gamma, beta


def _inference(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """BNInfer takes images; every other rank and bfloat16 go to BatchNormV3 with the running statistics."""
    need_floats("BatchNormV3", x, weight, bias)
    mean, var = cast(mean, _F32), cast(var, _F32)
    gamma, beta = _affine(weight, bias, mean)
    if x.rank == 4 and x.dtype in _BN_INFER_TYPES:
        y: Tensor = ge.BNInfer(x, cast(gamma, _F32), cast(beta, _F32), mean, var, epsilon=float(eps))
    else:
        y = ge.BatchNormV3(x, gamma, beta, mean, var, epsilon=float(eps), momentum=0.0, is_training=False)[0]
    _marked(x, y)
    return y


def _training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(y, save_mean, save_rstd, new running mean, new running variance), statistics in float32."""
    need_floats("BatchNormV3", x, weight, bias)
    running_mean = cast(mean, _F32) if mean is not None else _channel_values(x, 0.0)
    running_var = cast(var, _F32) if var is not None else _channel_values(x, 1.0)
    gamma, beta = _affine(weight, bias, running_mean)
    y, new_mean, new_var, save_mean, save_rstd = ge.BatchNormV3(
        x, gamma, beta, running_mean, running_var, epsilon=float(eps), momentum=float(momentum), is_training=True
    )
    _marked(x, y)
    return y, save_mean, save_rstd, new_mean, new_var


def _as(specs: Sequence[TensorSpec], *results: Tensor) -> tuple[Tensor, ...]:
    return tuple(cast(r, s.dtype) for r, s in zip(results, specs))


# Beside halves torch describes the saved statistics as halves but returns float32; forms that read them are float32.
def _case(x: Any, weight: Any, *rest: Any, halves: tuple[int, ...] | None = None) -> Support:
    made = Support(x, weight, weight, F32(3), F32(3, low=0.5), *rest)
    return made if halves is None or x.dtype is torch.float32 else made.only(*halves)


_INFERENCE_CASES = [
    *(_case(m(2, 3, 4, 5), F32(3), 0.1, 1e-5, halves=(0,)) for m in (F32, F16, BF16)),
    Support(BF16(2, 3, 4, 5), BF16(3), BF16(3), BF16(3), BF16(3, low=0.5), 0.1, 1e-5),
    Support(F32(2, 3, 4, 5), None, None, F32(3), F32(3, low=0.5), 0.1, 1e-3),
    Support(F32(4, 3), F32(3), F32(3), F32(3), F32(3, low=0.5), 0.1, 1e-5),
    Support(F32(2, 3, 7), F32(3), F32(3), F32(3), F32(3, low=0.5), 0.1, 1e-5),
    Support(F32(2, 3, 2, 4, 5), F32(3), F32(3), F32(3), F32(3, low=0.5), 0.1, 1e-5),
]


@declare_supported(_INFERENCE_CASES)
@register_fx_node_ge_converter(
    aten._native_batch_norm_legit_no_training.default,
    source="native_functions.yaml: _native_batch_norm_legit_no_training; GE BNInfer, BatchNormV3",
    takes=Takes("BNInfer"),
)
def _native_batch_norm_legit_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, ...]:
    """Shapes: input [n, c, ..] -> the same; the other results are empty.
    Dtypes: float32, float16, bfloat16; statistics in float32.
    Emits:  BNInfer for [n, c, h, w] in float32 and float16, BatchNormV3 for the rest.
    """
    y = _inference(input, weight, bias, running_mean, running_var, eps)
    empty = _empty()
    return _as(meta_outputs, y, empty, empty)


_TRAINING_CASES = [
    *(
        _case(x, F32(3), True, 0.1, 1e-5, halves=(0, 3, 4))
        for x in (F32(2, 3, 4, 5), F16(2, 3, 4, 5), BF16(2, 3, 4, 5), F32(4, 3), F32(2, 3, 7), F32(2, 3, 2, 4, 5))
    ),
    Support(F32(2, 3, 4, 5), None, None, F32(3), F32(3, low=0.5), True, 0.3, 1e-3),
    Support(BF16(2, 3, 4), BF16(3), None, BF16(3), BF16(3, low=0.5), True, 0.3, 1e-3).only(0),
    Support(F32(2, 3, 4, 5), F32(3), F32(3), F32(3), F32(3, low=0.5), False, 0.1, 1e-5),
]


@declare_supported(_TRAINING_CASES)
@register_fx_node_ge_converter(
    aten._native_batch_norm_legit_functional.default,
    source="native_functions.yaml: _native_batch_norm_legit_functional; GE BatchNormV3",
    takes=Takes("BatchNormV3"),
)
def _native_batch_norm_legit_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, ...]:
    """Shapes: input [n, c, ..] -> the same; all statistics [c].
    Dtypes: float32, float16, bfloat16; statistics in float32.
    Emits:  BatchNormV3; without training as _native_batch_norm_legit_no_training.
    """
    if not training:
        y = _inference(input, weight, bias, running_mean, running_var, eps)
        return _as(meta_outputs, y, _empty(), _empty(), running_mean, running_var)
    return _as(meta_outputs, *_training(input, weight, bias, running_mean, running_var, momentum, eps))


@declare_supported(
    [
        Support(F32(2, 3, 4, 5), F32(3), F32(3), True, 0.1, 1e-5),
        Support(F32(2, 3, 4), None, None, True, 0.1, 1e-5),
        Support(BF16(2, 3, 4, 5), F32(3), F32(3), True, 0.1, 1e-5).only(0),
    ]
)
@register_fx_node_ge_converter(
    aten._native_batch_norm_legit.no_stats,
    source="native_functions.yaml: _native_batch_norm_legit.no_stats; GE BatchNormV3",
    takes=Takes("BatchNormV3"),
)
def _native_batch_norm_legit_no_stats(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, ...]:
    """Shapes: input [n, c, ..] -> the same, batch statistics [c].
    Dtypes: float32, float16, bfloat16; statistics in float32.
    Emits:  BatchNormV3 with neutral running statistics.
    """
    return _as(meta_outputs, *_training(input, weight, bias, None, None, momentum, eps)[:3])


@declare_supported([Support(F32(2, 3, 4, 5), F32(3), F32(3), F32(3), F32(3, low=0.5), 0.1, 1e-5)])
@register_fx_node_ge_converter(
    aten._batch_norm_with_update_functional.default,
    source="native_functions.yaml: _batch_norm_with_update_functional; GE BatchNormV3",
    takes=Takes("BatchNormV3"),
)
def _batch_norm_with_update_functional(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, ...]:
    """Shapes: input [n, c, ..] -> the same; all statistics [c]; the reserved result is empty.
    Dtypes: float32, float16, bfloat16; statistics in float32.
    Emits:  BatchNormV3.
    """
    made = _training(input, weight, bias, running_mean, running_var, momentum, eps)
    reserve = ge.Const(np.zeros((0,), np.uint8))
    return _as(meta_outputs, *made[:3], reserve, *made[3:])


@declare_supported([Support(F32(2, 3, 4, 5), F32(3), F32(3), F32(3), F32(3, low=0.5), 0.1, 1e-5)])
@register_fx_node_ge_converter(
    aten._batch_norm_no_update.default,
    source="native_functions.yaml: _batch_norm_no_update; GE BNInfer",
    takes=Takes("BNInfer"),
)
def _batch_norm_no_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    *,
    meta_outputs: list[TensorSpec],
) -> tuple[Tensor, ...]:
    """Shapes: input [n, c, ..] -> the same; the other results are empty.
    Dtypes: float32, float16, bfloat16; statistics in float32.
    Emits:  BNInfer or BatchNormV3; without running statistics the batch's own.
    """
    reserve = ge.Const(np.zeros((0,), np.uint8))
    if running_mean is None or running_var is None:
        made = _training(input, weight, bias, None, None, momentum, eps)
        return _as(meta_outputs, *made[:3], reserve)
    y = _inference(input, weight, bias, running_mean, running_var, eps)
    return _as(meta_outputs, y, _empty(), _empty(), reserve)


def _grad_case(x: Any, grad: Any, w: Any, train: bool, mask: list[bool]) -> Support:
    return Support(grad, x, w, F32(3), F32(3, low=0.5), F32(3), F32(3, low=0.5), train, 1e-5, mask)


_ALL = [True, True, True]


@register_fx_node_ge_converter(
    {
        aten.native_batch_norm_backward.default: [
            *(_grad_case(m(2, 3, 4, 5), m(2, 3, 4, 5), F32(3), t, _ALL) for m in (F32, BF16) for t in (True, False)),
            _grad_case(F32(4, 3), F32(4, 3), F32(3), True, _ALL),
            _grad_case(F32(2, 3, 7), F32(2, 3, 7), None, True, [True, False, False]),
            _grad_case(F32(2, 3, 2, 4, 5), F32(2, 3, 2, 4, 5), F32(3), True, _ALL),
            _grad_case(F32(2, 3, 4, 5), F32(2, 3, 4, 5), F32(3), True, [False, True, True]).only(1, 2),
            Support(F32(2, 3, 4, 5), F32(2, 3, 4, 5), F32(3), None, None, F32(3), F32(3, low=0.5), True, 1e-5, _ALL),
        ],
        aten.batch_norm_backward.default: [
            Support(F32(2, 3, 7), F32(2, 3, 7), F32(3), None, None, F32(3), F32(3, low=0.5), True, 1e-5, _ALL, U8(0)),
            Support(
                F32(2, 3, 4, 5),
                F32(2, 3, 4, 5),
                F32(3),
                F32(3),
                F32(3, low=0.5),
                F32(0),
                F32(0),
                False,
                1e-5,
                _ALL,
                U8(0),
            ),
        ],
    },
    source="native_functions.yaml: native_batch_norm_backward, batch_norm_backward; GE BatchNormGradV3",
    takes=Takes("BatchNormGradV3"),
    names={"save_var": "save_invstd", "update": "train"},
)
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor | None = None,
    *,
    meta_outputs: Any,
) -> list[Tensor | None]:
    """Shapes: gradients of input, weight and bias, each of the shape of what it belongs to.
    Dtypes: float32, float16, bfloat16; summed in float32.
    Emits:  BatchNormGradV3; statistics that a mode does not read are fed with those it reads.
    """
    need_floats("BatchNormGradV3", grad_out, input, weight)
    used = (save_mean, save_invstd) if train else (running_mean, running_var)
    mean, scale = [cast(t, _F32) for t in used if t is not None]
    gamma = weight if weight is not None else ge.OnesLike(mean)
    results = ge.BatchNormGradV3(
        grad_out, input, gamma, mean, scale, mean, scale, is_training=train, epsilon=float(eps)
    )
    _marked(input, grad_out, results[0])
    return [
        cast(r, s.dtype) if wanted and s is not None else None
        for r, wanted, s in zip(results, output_mask, meta_outputs)
    ]
