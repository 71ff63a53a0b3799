"""What converters are written with: one function per GE operator, and the types they deal in.

``from torchair import ge`` gives ``ge.MatMulV2(x1, x2)``, ``ge.Const``, ``ge.Cast``, ``ge.Clone``, ``ge.custom_op``,
``ge.attr``, ``ge.Tensor``, ``ge.TensorSpec``, ``ge.DataType`` and ``ge.Format``.
"""

from __future__ import annotations

import importlib
from typing import Any

from ge_graph import Format, GraphError, Tensor, TensorSpec, ops
from ge_graph.ops import Clone, Data
from torchair.ge import attr
from torchair.ge.data_type import DataType

__all__ = ["Clone", "Const", "Data", "DataType", "Format", "Tensor", "TensorSpec", "attr", "custom_op"]


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


def __getattr__(name: str) -> Any:
    if name == "custom_op":
        from torchair.oplib.converter_forms.unverified import custom_op

        globals()[name] = custom_op
        return custom_op
    if name in ("_ge_graph", "data_type"):
        return importlib.import_module(f"torchair.ge.{name}")
    return getattr(ops, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(ops)})
