"""An FX graph and its inputs as text that says everything about them that a compiled graph depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from torchair.artifact.content import Unknowable, content_of, is_known, tensor_digest
from torchair.artifact.size_conditions import shape_env_of


def graph_text(gm: torch.fx.GraphModule) -> Iterator[str]:
    """One line per node: what it calls on what, and all that is known of its results.

    Raises:
        Unknowable: The graph holds an object that has no text of its own.
    """
    for line in _lines(gm):
        if " at 0x" in line:
            raise Unknowable(f"an object without a name in the graph: {line[:120]}")
        yield line


def _lines(gm: torch.fx.GraphModule) -> Iterator[str]:
    for node in gm.graph.nodes:
        yield f"{node.name} {node.op} {_target(node.target)} {_argument(node.args)} {_argument(node.kwargs)}"
        yield f"  {_value(known_value(node))}"
        if node.op == "get_attr":
            yield from _attribute(gm, str(node.target))
    yield from _limits(gm)


def known_value(node: torch.fx.Node) -> Any:
    """The fake value of a node, of an ATen graph or of dynamo's."""
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target) if target.namespace in ("aten", "prims") else f"{target} {target._schema}"
    if isinstance(target, (torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        return str(target)
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__qualname__", None)
    if name is not None and is_known(module or "builtins") and "<" not in name:
        return f"{module}.{name}"
    return content_of(target)


def _argument(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_argument, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_argument(v)}' for k, v in value.items())}}}"
    return repr(value)


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return f"{value.dtype} {tuple(value.shape)} {value.device} {value.layout}"
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.storage_offset()} {value.device}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return f"{type(value).__name__} {value}"


def _attribute(gm: torch.fx.GraphModule, target: str) -> Iterator[str]:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    if isinstance(value, torch.fx.GraphModule):
        yield from (f"  {target}: {line}" for line in _lines(value))
    elif isinstance(value, torch.Tensor):
        yield f"  {target}: {_value(value)} {tensor_digest(value)}"
    else:
        yield f"  {target}: {value!r}"


def _limits(gm: torch.fx.GraphModule) -> Iterator[str]:
    """What the shape environment knows: it decides how symbolic sizes are lowered."""
    environment = shape_env_of(gm)
    if environment is not None:
        yield from sorted(f"{symbol} in {limits}" for symbol, limits in environment.var_to_range.items())
        yield from (str(guard.expr) for guard in environment.guards)


def inputs_text(example_inputs: Sequence[Any]) -> list[str]:
    """Types, and which inputs share memory.

    Raises:
        Unknowable: An input is of another layout.
    """
    seen: dict[int, int] = {}
    lines = []
    for value in example_inputs:
        if not isinstance(value, torch.Tensor):
            lines.append(f"{type(value).__name__}")
            continue
        if value.layout is not torch.strided:
            raise Unknowable(f"an input of layout {value.layout}")
        storage = seen.setdefault(value.untyped_storage()._cdata, len(seen))
        kind = f"{type(value).__name__} {_value(value)}"
        lines.append(f"{kind} {value.requires_grad} {value.is_conj()} {value.is_neg()} {storage}")
    return lines
