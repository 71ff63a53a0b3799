"""What needs the host while a device captures, found in the ATen graph before anything is captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.device_composites import computed_by_host
from ge_converters.base.provenance import user_frame
from ge_graph.errors import EngineError
from torchair.passes.base import value_of
from torchair.passes.step_numbers import changing_values, home_of, on_host

aten = torch.ops.aten
FxNode: TypeAlias = torch.fx.Node
_MASKS: Final = (torch.bool, torch.uint8)
_INSTEAD: Final = {
    "index_put": "write torch.where(mask, value, y)",
    "index": "write torch.where(mask, y, 0), which keeps the size",
    "masked_select": "write torch.where(mask, y, 0), which keeps the size",
    "nonzero": "keep the mask and write torch.where(mask, a, b)",
    "_local_scalar_dense": "leave the number in a tensor, or pass it as an argument",
}
_WAITS: Final = "torch_npu waits for the device in it"
_OLD: Final = "torch_npu launches it as an operator of the older kind, which it captures nowhere"
_ONCE: Final = "call it once, before the compiled function, and pass the result"
_WAITING: Final = ("cond", "while_loop")
"""Control flow whose condition the host reads."""
OF_TORCH_NPU: Final = {
    "_npu_format_cast": (_OLD, _ONCE),
    "npu_bmmV2": (_OLD, "write torch.matmul"),
    "npu_conv2d": (_OLD, "write torch.nn.functional.conv2d"),
    "npu_convert_weight_to_int4pack": (_WAITS, _ONCE),
    "npu_convolution": (_OLD, "write torch.nn.functional.conv2d or conv3d"),
    "npu_convolution_transpose": (_OLD, "write torch.nn.functional.conv_transpose2d or conv_transpose3d"),
    "npu_format_cast": (_OLD, _ONCE),
    "npu_layer_norm_eval": (_OLD, "write torch.nn.functional.layer_norm"),
    "npu_mla_prolog": (_OLD, "write torch_npu.npu_mla_prolog_v3"),
    "npu_scaled_masked_softmax": (_OLD, "write torch.softmax((x * scale).masked_fill(mask, -10000.0), -1)"),
    "npu_sign_bits_unpack": (_OLD, _ONCE),
    "npu_silu": (_OLD, "write torch.nn.functional.silu"),
    "npu_silu_backward": (_OLD, "write torch.nn.functional.silu in the forward pass"),
    "npu_softmax_cross_entropy_with_logits": (_OLD, "write torch.nn.functional.cross_entropy"),
    "npu_softmax_cross_entropy_with_logits_backward": (_OLD, "write torch.nn.functional.cross_entropy"),
    "npu_transpose": (_OLD, "write x.permute(dims).contiguous()"),
}
"""Operators of which no sample call could be captured, why, and what to write instead.

Source: torch_npu 2.13 on the emulated device, ``labs/captured_tasks.py``.
"""


_COPIES: Final = "torch_npu computes it on the host"
OF_ATEN: Final = {
    "_batch_norm_with_update_functional": (_COPIES, "write torch.nn.functional.batch_norm"),
    "_conj_physical": (_COPIES, "write torch.complex(x.real, -x.imag)"),
    "logcumsumexp": (_COPIES, "write (x - top).exp().cumsum(dim).log() + top"),
}
"""Operators of torch that call others, so that nothing says it but their run.

Source: as of ``OF_TORCH_NPU``.
"""
_ON_HOST: Final = ("amin", "mean", "prod")
"""Reductions of ``scatter_reduce`` that torch_npu computes on the host. Source: as of ``OF_TORCH_NPU``."""


def refuse_host_work(gm: torch.fx.GraphModule, device: str) -> None:
    """Refuse a graph of which a device cannot capture every operator.

    Args:
        gm: ATen graph after its passes.
        device: Device type that captures.

    Errors: EngineError GE1058 with each operator, its line and what to write instead.
    """
    found = [f"{user_frame(node)[0] or 'no line known'}: {node.target}: {why}" for node, why in host_work(gm, device)]
    if found:
        raise EngineError(
            "GE1058",
            "these need the host while the graph is captured:\n  " + "\n  ".join(found),
            next="change these lines, or set config.fallback = 'split' to capture what is before and after them, or "
            "options={'force_eager': True}, or use mode max-autotune",
        )


def host_work(gm: torch.fx.GraphModule, device: str) -> Iterator[tuple[FxNode, str]]:
    """The nodes that need the host while a device captures, each with the reason and what to write instead."""
    changing, own = changing_values(gm.graph), on_host(gm.graph)
    home = home_of(gm.graph)
    for node in gm.graph.nodes:
        if node in own:  # computed before a run
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in _WAITING:
            yield node, "the host waits for its condition; write torch.where, or a fixed number of rounds"
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.split("::")[1].rstrip("_")
        instead = _INSTEAD.get(name, "")
        if node.target.namespace == "npu" and name in OF_TORCH_NPU:
            yield node, "; ".join(OF_TORCH_NPU[name])
        elif device != "cpu" and node.target.namespace == "aten" and name in OF_ATEN:
            yield node, "; ".join(OF_ATEN[name])
        elif device != "cpu" and name == "scatter_reduce" and node.args[4] in _ON_HOST:
            yield node, f"{_COPIES} with {node.args[4]!r}; use 'sum' or 'amax'"
        elif _by_mask(node, name) or torch.Tag.dynamic_output_shape in node.target.tags and name != "index":
            yield node, "how much it does depends on data; " + (instead or "use operators whose sizes are known")
        elif torch.Tag.data_dependent_output in node.target.tags:
            yield node, "the host waits for a value of the device; " + (instead or "leave the value in a tensor")
        elif home != "cpu" and _writes_host(node):
            yield node, f"it writes a tensor of the host; keep it on device '{device}'"
        elif (host := _from_host(node, device, changing - own)) is not None and host not in own:
            yield (
                node,
                f"'{host.name}' lies on the host; make it on device '{device}', or move it there before the call",
            )
        elif _to_host(node, device):
            yield node, "its result goes to the host; return the tensor and move it after the call"
        elif any(_on(v, device) for _, v in _tensors(node)) and computed_by_host(node.target):
            yield node, f"device '{device}' has no kernel of it and the host computes it; write it with other operators"


def _writes_host(node: FxNode) -> bool:
    """Whether a tensor of the host is written; in a graph of a device a replay would not do it again."""
    schema = node.target._schema
    written = [
        a for a, row in zip(node.args, schema.arguments) if row.alias_info is not None and row.alias_info.is_write
    ]
    nodes: list[FxNode] = []
    torch.fx.map_arg(tuple(written), nodes.append)
    return any(_on(value_of(n), "cpu") for n in nodes)


def _by_mask(node: FxNode, name: str) -> bool:
    if name not in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        return False
    indices = node.args[1]
    assert isinstance(indices, (tuple, list))
    return any(isinstance(v := value_of(i), torch.Tensor) and v.dtype in _MASKS for i in indices)


def _tensors(node: FxNode) -> list[tuple[FxNode, torch.Tensor]]:
    return [(n, v) for n in node.all_input_nodes if isinstance(v := value_of(n), torch.Tensor)]


def _on(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _from_host(node: FxNode, device: str, changing: set[FxNode]) -> FxNode | None:
    """A tensor of the host that an operator of the device reads; a constant without dimensions is a number to it."""
    made = value_of(node)
    if not any(_on(v, device) for v in (made if isinstance(made, (tuple, list)) else (made,))):
        return None
    for source, value in _tensors(node):
        if _on(value, "cpu") and (value.dim() or source in changing):
            return source
    return None


def _to_host(node: FxNode, device: str) -> bool:
    return _on(value_of(node), "cpu") and any(_on(v, device) for _, v in _tensors(node))
