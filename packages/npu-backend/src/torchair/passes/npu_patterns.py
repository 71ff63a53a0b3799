"""Fusion rules for operators of torch_npu; registered when a graph is compiled and the operators are there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from torchair.config.log import logger


@dataclass(frozen=True, slots=True)
class NpuRule:
    """One rule.

    Attributes:
        needs: Operators of ``torch.ops.npu`` without which it does not exist.
        examples: Makes example inputs, under a fake mode.
        extra_check: Condition on a match.
    """

    needs: tuple[str, ...]
    search: Callable[..., Any]
    replace: Callable[..., Any]
    examples: Callable[[], list[torch.Tensor]]
    extra_check: Callable[[Any], bool] = lambda match: True


def _half(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.float16)


def _residual(with_scales: bool = False) -> list[torch.Tensor]:
    return [_half(2, 2, 16), _half(2, 2, 16), _half(16), *([_half(16)] if with_scales else [])]


def _quant(x1: Any, x2: Any, gamma: Any, smooth_scales: Any) -> Any:
    y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    quantized, scale = torch.ops.npu.npu_dynamic_quant(y, smooth_scales=smooth_scales)
    return quantized, scale, x_out


def _quant_fused(x1: Any, x2: Any, gamma: Any, smooth_scales: Any) -> Any:
    r = torch.ops.npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma, smooth_scale1=smooth_scales)
    return r[0], r[3], r[2]


def _quant_flat(x1: Any, x2: Any, gamma: Any) -> Any:
    y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    quantized, scale = torch.ops.npu.npu_dynamic_quant(y.flatten(0, 1))
    return quantized, scale.view(-1, 1), x_out


def _quant_flat_fused(x1: Any, x2: Any, gamma: Any) -> Any:
    r = torch.ops.npu.npu_add_rms_norm_dynamic_quant(x1, x2, gamma, output_mask=[True, True])
    return r[0].flatten(0, 1), r[3].view(-1, 1), r[2]


def _cast_view(x1: Any, x2: Any, gamma: Any) -> Any:
    y, _, x_out = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma)
    flat = y.view(-1, y.shape[-1])
    return flat, flat.to(torch.float32), x_out


def _cast_view_fused(x1: Any, x2: Any, gamma: Any) -> Any:
    wide, y, _, x_out = torch.ops.npu.npu_add_rms_norm_cast(x1, x2, gamma)
    last = x1.shape[-1]
    return y.view(-1, last), wide.view(-1, last), x_out


NPU_RULES: Final = (
    NpuRule(
        ("npu_add_rms_norm", "npu_dynamic_quant", "npu_add_rms_norm_dynamic_quant"),
        _quant,
        _quant_fused,
        lambda: _residual(with_scales=True),
    ),
    NpuRule(
        ("npu_add_rms_norm", "npu_dynamic_quant", "npu_add_rms_norm_dynamic_quant"),
        _quant_flat,
        _quant_flat_fused,
        _residual,
    ),
    NpuRule(("npu_add_rms_norm", "npu_add_rms_norm_cast"), _cast_view, _cast_view_fused, _residual),
)
_done: set[int] = set()


def register(rules: Any, trace: Callable[..., torch.fx.GraphModule]) -> None:
    """Register each rule once, as soon as its operators exist."""
    npu = torch.ops.npu
    if not hasattr(torch, "npu"):  # torch_npu brings it; without, torch.ops.npu is an empty namespace
        return
    from ge_converters.base.torch_compat import fake_mode

    for position, rule in enumerate(NPU_RULES):
        if position in _done or not all(hasattr(npu, name) for name in rule.needs):
            continue
        _done.add(position)
        try:
            with fake_mode():
                rules.add(
                    rule.search.__name__,
                    rule.extra_check,
                    search_fn=rule.search,
                    replace_fn=rule.replace,
                    example_inputs=rule.examples(),
                    trace_fn=trace,
                    skip_duplicates=True,
                )
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            # an older torch_npu with another schema: the rule does not apply, nothing is wrong
            logger.warning_once("fusion rule %s is not available: %s", rule.search.__name__, error)
