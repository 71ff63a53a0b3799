"""``ge.Const`` as converters call it."""

from __future__ import annotations

from typing import Any

from ge_graph import GraphError, Tensor, ops


def Const(*args: Any, **kwargs: Any) -> Tensor:
    """A constant; see ``ge_graph.ops.Const``. The value may be called ``v`` too.

    Errors: GraphError GE3013 without a value.
    """
    if "v" in kwargs:
        kwargs["value"] = kwargs.pop("v")
    if not args and "value" not in kwargs:
        raise GraphError("GE3013", "Const got no value", next="write ge.Const(1.0)")
    if len(args) > 2:
        kwargs |= dict(zip(("node_name", "readable"), args[2:]))
    return ops.Const(*args[:2], **kwargs)
