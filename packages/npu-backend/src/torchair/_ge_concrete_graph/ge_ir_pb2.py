"""Import path of existing scripts: the classes that older converter files name."""

from __future__ import annotations

from torchair.oplib.converter_forms.op_builder import AttrDef, Desc, OpDef, OpList

__all__ = ["AttrDef", "GraphDef", "OpDef", "TensorDef", "TensorDescriptor"]

TensorDescriptor = Desc


class GraphDef:
    """A graph as a place to add operators to: ``graph.op.add()``."""

    def __init__(self) -> None:
        self.op = OpList()


class TensorDef:
    """A constant's data and description, as older files name it in annotations."""

    def __init__(self) -> None:
        self.desc = Desc()
        self.data = b""
