"""What the log says at DEBUG of every converted node: target, inputs and output, on the FX side and on the GE side."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import torch

from ge_converters.base.provenance import fx_target, user_frame
from ge_graph import Graph, Tensor

logger = logging.getLogger(__name__)
_LINE: Final = "-" * 60


def converted(node: torch.fx.Node, env: Mapping[torch.fx.Node, Any], graph: Graph, first: int) -> None:
    """Log one conversion.

    Args:
        node: The FX node.
        env: FX nodes to what they became.
        graph: The graph under construction.
        first: Position of the first GE node that was added for it.
    """
    place = user_frame(node)[0]
    lines = [f"converted {node.name}{f' from {place}' if place else ''}", _LINE, f"target: {fx_target(node)}"]
    given = [*enumerate(node.args), *node.kwargs.items()]
    lines += [f"input {position}: {_pair(value, env)}" for position, value in given]
    lines.append(f"output: {_pair(node, env)}")
    made = graph.nodes[first:]
    lines.append(f"operators: {', '.join(f'{n.name} ({n.op})' for n in made) or 'none'}")
    logger.debug("%s", "\n".join(lines))
    for name, attribute in graph.scope_attrs.items():
        for each in made:
            if each.attrs.get(name) is attribute:
                logger.debug("Set attribute %s: %s on op: %s", name, attribute.value, each.op)


def _pair(value: Any, env: Mapping[torch.fx.Node, Any]) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_pair(v, env) for v in value)}]"
    if not isinstance(value, torch.fx.Node):
        return str(value)
    return f"({_meta(value.meta.get('val'))}, {_made(env.get(value))})"


def _meta(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_meta, value))}]"
    return str(value)


def _made(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_made, value))}]"
    if not isinstance(value, Tensor):
        return str(value)
    shape = value.known_shape
    sizes = "?" if shape is None else ", ".join(map(str, shape))
    return f"Tensor({value.name}, dtype={value.dtype.name}, size=[{sizes}])"
