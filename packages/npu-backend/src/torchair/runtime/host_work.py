"""What needs the host while a device captures, found in the ATen graph before anything is captured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.provenance import user_frame
from ge_graph.errors import EngineError
from torchair.passes.base import value_of

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node
_MASKS: Final = (torch.bool, torch.uint8)
_INSTEAD: Final = {
    "index_put": "write torch.where(mask, value, y)",
    "index": "write torch.where(mask, y, 0), which keeps the size",
    "masked_select": "write torch.where(mask, y, 0), which keeps the size",
    "nonzero": "keep the mask and write torch.where(mask, a, b)",
    "_local_scalar_dense": "leave the number in a tensor, or pass it as an argument",
}


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


def host_work(gm: torch.fx.GraphModule, device: str) -> Iterator[tuple[Node, str]]:
    """The nodes that need the host while a device captures, each with the reason and what to write instead."""
    changing = _changing(gm.graph)
    for node in gm.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name.split("::")[1].rstrip("_")
        instead = _INSTEAD.get(name, "")
        if _by_mask(node, name) or torch.Tag.dynamic_output_shape in node.target.tags and name != "index":
            yield node, "how much it does depends on data; " + (instead or "use operators whose sizes are known")
        elif torch.Tag.data_dependent_output in node.target.tags:
            yield node, "the host waits for a value of the device; " + (instead or "leave the value in a tensor")
        elif (host := _from_host(node, device, changing)) is not None:
            yield (
                node,
                f"'{host.name}' lies on the host; make it on device '{device}', or move it there before the call",
            )
        elif _to_host(node, device):
            yield node, "its result goes to the host; return the tensor and move it after the call"


def _by_mask(node: Node, name: str) -> bool:
    if name not in ("index", "index_put", "_unsafe_index", "_unsafe_index_put"):
        return False
    indices = node.args[1]
    assert isinstance(indices, (tuple, list))
    return any(isinstance(v := value_of(i), torch.Tensor) and v.dtype in _MASKS for i in indices)


def _changing(graph: torch.fx.Graph) -> set[Node]:
    """Values that need not be the same in every run."""
    changing: set[Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(n in changing for n in node.all_input_nodes):
            changing.add(node)
    return changing


def _tensors(node: Node) -> list[tuple[Node, torch.Tensor]]:
    return [(n, v) for n in node.all_input_nodes if isinstance(v := value_of(n), torch.Tensor)]


def _on(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _from_host(node: Node, device: str, changing: set[Node]) -> Node | None:
    """A tensor of the host that an operator of the device reads; a constant without dimensions is a number to it."""
    made = value_of(node)
    if not any(_on(v, device) for v in (made if isinstance(made, (tuple, list)) else (made,))):
        return None
    for source, value in _tensors(node):
        if _on(value, "cpu") and (value.dim() or source in changing):
            return source
    return None


def _to_host(node: Node, device: str) -> bool:
    return _on(value_of(node), "cpu") and any(_on(v, device) for _, v in _tensors(node))
