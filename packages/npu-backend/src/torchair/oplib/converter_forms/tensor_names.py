"""Attributes that older converter files read from tensors: ``desc``, ``tensor``, ``controller``, ``symsize``."""

from __future__ import annotations

from typing import Any

from ge_graph import Tensor
from torchair.oplib.converter_forms.op_builder import Controller, Desc


def _desc(self: Tensor) -> Desc:
    desc = Desc()
    desc.dtype, desc.layout = self.dtype.wire, self.format.name.removeprefix("FORMAT_")
    return desc


def _symsize(self: Tensor) -> Any:
    return self.known_shape


def install() -> None:
    """Give the class of tensors these attributes; it does not have them by itself."""
    for name, value in (
        ("desc", property(_desc)),
        ("tensor", property(lambda self: self)),
        ("symsize", property(_symsize)),
        ("controller", property(lambda self: Controller(self.node))),
        ("ge_dtype", property(lambda self: self.dtype)),
    ):
        if not hasattr(Tensor, name):
            setattr(Tensor, name, value)
