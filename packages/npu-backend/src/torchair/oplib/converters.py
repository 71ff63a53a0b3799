"""Converters of our own ops that are not scopes or stream marks (those are part of lowering itself)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ge_converters.base.errors import Refusal
from ge_converters.ops.npu.mapping import register_rows
from ge_converters.ops.npu.rows import ROWS
from ge_converters.registry import register_fx_node_ge_converter
from ge_graph import DataType, Tensor, current_graph
from ge_graph import ops as ge
from torchair.oplib import torch_ops


@functools.cache
def register() -> None:
    """Register them, once."""
    names = ("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2")
    attention = {name: ROWS[name] for name in names}
    register_rows("torchair", attention, __name__, "spec of torchair.ops.npu_fused_infer_attention_score")
    register_fx_node_ge_converter(torch.ops.air.after.default, source="spec of npu_wait_tensor")(_after)
    register_fx_node_ge_converter(torch.ops.air.print.default, source="spec of npu_print")(_print)


def _after(self: Tensor, dependency: Tensor, *, meta_outputs: Any) -> Tensor:
    """``self``, available once the producer of ``dependency`` has run.

    Shapes: any. Dtypes: any. Emits: Identity with a control edge.
    """
    made: Tensor = ge.Identity(self, dependencies=(dependency,))
    return made


def _print(
    tensors: list[Tensor], text: str, summarize_size: int, tensor_detail: bool, *, meta_outputs: Any = None
) -> None:
    """One line of text when the graph runs, after the lines printed before it.

    Shapes: any. Dtypes: all but complex; bfloat16 is widened first. Emits: StringFormat and PrintV2 with a control
    edge from the last PrintV2.
    """
    for position, each in enumerate(tensors):
        if each.dtype in (DataType.DT_COMPLEX64, DataType.DT_COMPLEX128):
            raise Refusal(f"tensor {position} is complex; print its real and imaginary part instead")
    mark = next(m for m in _marks() if m not in text)
    shown: list[Tensor] = []
    parts = text.split(torch_ops.PLACEHOLDER)
    template = parts[0]
    for each, rest in zip(tensors, parts[1:], strict=True):
        shown.append(ge.Cast(each, dst_type=DataType.DT_FLOAT) if each.dtype is DataType.DT_BF16 else each)
        template += (_detail(each, shown, mark) if tensor_detail else mark) + rest
    graph = current_graph()
    before = next((n for n in reversed(graph.nodes) if n.op == "PrintV2"), None)
    line = ge.StringFormat(shown, template=template, placeholder=mark, summarize=summarize_size)
    node = ge.PrintV2(line, output_stream="stdout")
    if before is not None:
        node.control.append(before)
        graph.output_control = [n for n in graph.output_control if n is not before]
    graph.output_control.append(node)


def _detail(each: Tensor, shown: list[Tensor], mark: str) -> str:
    """Shape and dtype around the values; sizes are read when the graph runs, for they may be symbolic."""
    if each.rank:
        shape = ge.Shape(each, dtype=DataType.DT_INT64)
        shown += [ge.Gather(shape, i) for i in range(each.rank)]
    sizes = ", ".join([mark] * each.rank)
    return f"tensor({mark}, shape=[{sizes}], dtype=torch.{each.dtype.torch_name})"


def _marks() -> Iterator[str]:
    yield from ("{}", "%s")
    yield from (f"{{{i}}}" for i in itertools.count())
