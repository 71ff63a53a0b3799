"""Texts made from tensors, and printing them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ge_graph.dtypes import DataType
from ge_runtime.cpu.registry import Call, kernel, plan
from ge_runtime.cpu.text import decode, encode, summarize
from ge_runtime.errors import refused

_STREAMS = ("stdout", "stderr")


@kernel("StringFormat", source="REG_OP(StringFormat): template with one placeholder a tensor")
def string_format(
    x: list[torch.Tensor], *, template: str = "%s", placeholder: str = "%s", summarize: int = 3
) -> torch.Tensor:
    """The template with each placeholder replaced by the text of the tensor in its turn."""
    return _fill([False] * len(x), x, template, placeholder, summarize)


@plan("StringFormat")
def _plan_string_format(ctx: Any) -> Call:
    texts = [t.dtype is DataType.DT_STRING for t in ctx.node.operands()]
    attrs = (ctx.attr("template", "%s"), ctx.attr("placeholder", "%s"), ctx.attr("summarize", 3))
    return Call(_fill, (texts, ctx.tensor("x"), *attrs))


def _fill(texts: list[bool], values: list[torch.Tensor], template: str, placeholder: str, ends: int) -> torch.Tensor:
    parts = template.split(placeholder)
    if len(parts) != len(values) + 1:
        raise refused("StringFormat", f"{len(parts) - 1} placeholders in the template, {len(values)} tensors")
    shown = [decode(v) if is_text else summarize(v, ends) for is_text, v in zip(texts, values)]
    return encode("".join(p + s for p, s in zip(parts, [*shown, ""])))


@kernel("PrintV2", source="REG_OP(PrintV2): a scalar text to stdout or stderr")
def print_v2(x: torch.Tensor, *, output_stream: str = "stderr") -> None:
    """Write one line."""
    if output_stream not in _STREAMS:
        raise refused("PrintV2", f"output_stream is {output_stream!r}, known are {', '.join(_STREAMS)}")
    stream = getattr(sys, output_stream)
    stream.write(decode(x) + "\n")
    stream.flush()
