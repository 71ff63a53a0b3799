"""Products of groups of rows, for captured graphs on an NPU."""

from __future__ import annotations

import operator
from typing import Any, Final

import torch

from torchair.config.compiler_config import NpuBaseConfig
from torchair.passes.base import FxPass, value_of

_FALLBACK: Final = "transformers::grouped_mm_fallback"
_BUILT_IN: Final = "aten::_grouped_mm"
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
_ONE_RESULT, _ROWS = 3, 0


class UseGroupedMatmul(FxPass):
    """``grouped_mm_fallback(x, weight, ends)`` of transformers and ``_grouped_mm`` of torch -> ``npu_grouped_matmul``.

    The one reads the ends of its groups on the host, and of the other an NPU has no kernel: neither can be captured.
    A GE graph gets its GroupedMatmul from the converter; here the operator of torch_npu stands for it.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        return config.mode.value == "reduce-overhead" and hasattr(torch, "npu")

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph, edits = gm.graph, 0
        for node in list(graph.nodes):
            if not (found := _operands(node)):
                continue
            x, weight, ends = found
            with graph.inserting_before(node):
                groups = graph.call_function(torch.ops.aten._to_copy.default, (ends,), {"dtype": torch.int64})
                groups.meta["val"] = value_of(ends).to(torch.int64)
                named = {"group_list": groups, "split_item": _ONE_RESULT, "group_type": _ROWS}
                products = graph.call_function(torch.ops.npu.npu_grouped_matmul.default, ([x], [weight]), named)
                products.meta["val"] = [value_of(node)]
                result = graph.call_function(operator.getitem, (products, 0))
            result.meta = dict(node.meta)
            node.replace_all_uses_with(result)
            graph.erase_node(node)
            edits += 1
        return edits


def _operands(node: torch.fx.Node) -> tuple[Any, Any, Any] | None:
    """Rows, a weight for each group and the ends of the groups, if they lie on an NPU."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.name not in (_FALLBACK, _BUILT_IN):
        return None
    names = [a.name for a in target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    x, weight, ends, *others = (given.get(n) for n in names)
    values = [value_of(v) for v in (x, weight, ends)]
    if any(not isinstance(v, torch.Tensor) or v.device.type != "npu" for v in values):
        return None
    of_rows = values[0].dim() == 2 and values[1].dim() == 3
    if not of_rows or values[0].dtype not in _FLOATS or values[0].dtype != values[1].dtype:
        return None
    made = value_of(node)
    return (x, weight, ends) if all(o is None or o == made.dtype for o in others) else None
