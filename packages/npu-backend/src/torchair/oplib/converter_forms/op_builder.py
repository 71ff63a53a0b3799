"""Nodes the way older converter files make them: ``op = get_default_ge_graph().op.add()``, then field by field.

The fields are those of GE's ``OpDef``. They are collected, and the node is made when the file makes its first output,
``Tensor(op, 0)``: by the operator's schema where it is known, by ``torchair.ge.custom_op`` where it is not.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, Final

from ge_graph import DataType, GraphError, Tensor, current_graph, schema
from ge_graph import attrs as ge_attrs
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import BY_WIRE
from torchair.oplib.converter_forms.unverified import custom_op, tensors_in


class WireType(int):
    """An element type in the numbering of GE's files, which is not that of attributes."""


def wire_type(dtype: DataType) -> WireType:
    """The number of a type in GE's files."""
    return WireType(dtype.wire)


class Desc:
    """Description of an input or output; only its name is read, types and sizes come from the tensors."""

    def __init__(self) -> None:
        self.name = ""
        self.dtype = 0
        self.layout = ""
        self.device_type = ""
        self.attr: dict[str, Any] = _Attributes()

    def CopyFrom(self, other: Desc) -> None:
        self.name, self.dtype, self.layout = other.name, other.dtype, other.layout


class _Repeated(list[Any]):
    """A repeated field: a list whose entries ``add`` makes."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self._kind = kind

    def add(self) -> Any:
        made = self._kind()
        self.append(made)
        return made


class _List:
    """A list-valued attribute; the field that is filled says of what."""

    def __init__(self) -> None:
        self.s: list[Any] = []
        self.i: list[int] = []
        self.f: list[float] = []
        self.b: list[bool] = []
        self.dt: list[int] = []
        self.val_type = 0


class _Rows:
    """A list of lists of numbers."""

    def __init__(self) -> None:
        self.list_list_i = _Repeated(lambda: _Row("list_i"))
        self.list_list_f = _Repeated(lambda: _Row("list_f"))


class _Row:
    def __init__(self, name: str) -> None:
        setattr(self, name, [])


_SCALARS: Final = {"s": Kind.STRING, "i": Kind.INT, "f": Kind.FLOAT, "b": Kind.BOOL, "dt": Kind.TYPE}
_LISTS: Final = {
    "s": Kind.LIST_STRING,
    "i": Kind.LIST_INT,
    "f": Kind.LIST_FLOAT,
    "b": Kind.LIST_BOOL,
    "dt": Kind.LIST_TYPE,
}
_OF_VAL_TYPE: Final = {1: "s", 2: "i", 3: "f", 4: "b", 5: "dt", 9: "dt"}


class AttrDef:
    """An attribute; the field that is set says its kind."""

    def __init__(self) -> None:
        self.__dict__["list"] = _List()
        self.__dict__["list_list_int"] = _Rows()
        self.__dict__["list_list_float"] = _Rows()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SCALARS:
            raise GraphError(
                "GE3013",
                f"an attribute has no field {name!r}",
                next="set s, i, f, b or dt, or fill list, list_list_int",
            )
        self.__dict__[name] = value

    def value(self) -> Attr:
        """The attribute as ``ge_graph`` has it."""
        for name, kind in _SCALARS.items():
            if name in self.__dict__:
                return ge_attrs.make(kind, _item(kind, self.__dict__[name]))
        rows = self.__dict__["list_list_int"].list_list_i
        if rows:
            return ge_attrs.make(Kind.LIST_LIST_INT, [r.list_i for r in rows])
        rows = self.__dict__["list_list_float"].list_list_f
        if rows:
            return ge_attrs.make(Kind.LIST_LIST_FLOAT, [r.list_f for r in rows])
        entries = self.__dict__["list"]
        for name, kind in _LISTS.items():
            if getattr(entries, name):
                return ge_attrs.make(
                    kind, [_item(Kind.TYPE if name == "dt" else kind, v) for v in getattr(entries, name)]
                )
        return ge_attrs.make(_LISTS[_OF_VAL_TYPE.get(int(entries.val_type), "i")], [])


def _item(kind: Kind, value: Any) -> Any:
    if kind is Kind.TYPE and not isinstance(value, DataType):
        return BY_WIRE.get(int(value), value)
    return value.decode() if isinstance(value, bytes) else value


class _Attributes(dict[str, AttrDef]):
    def __missing__(self, name: str) -> AttrDef:
        made = self[name] = AttrDef()
        return made


class OpDef:
    """An operator under construction."""

    def __init__(self) -> None:
        self.type = ""
        self.name = ""
        self.input: list[Any] = []
        self.input_desc = _Repeated(Desc)
        self.output_desc = _Repeated(Desc)
        self.attr = _Attributes()
        self._outputs: list[Tensor] | None = None

    def output(self, index: int) -> Tensor:
        """An output of the node, which is made if it is not.

        Errors: GraphError as for any ``ge`` call.
        """
        if self._outputs is None:
            self._outputs = self._build()
        if not 0 <= index < len(self._outputs):
            raise GraphError("GE3013", f"{self.type} has {len(self._outputs)} outputs, asked for {index}")
        return self._outputs[index]

    def _build(self) -> list[Tensor]:
        tensors = [e for e in self.input if not isinstance(e, Controller)]
        if len(tensors) != len(self.input_desc):
            raise GraphError(
                "GE3013",
                f"{self.type}: {len(tensors)} inputs and {len(self.input_desc)} descriptions",
                next="add one input_desc for each input",
            )
        named = [(d.name, None if t in ("", None) else t) for d, t in zip(self.input_desc, tensors)]
        outputs = _outputs(self.type, [d.name for d in self.output_desc])
        made = custom_op(
            self.type,
            inputs=_inputs(self.type, named),
            outputs=outputs,
            attrs={n: a.value() for n, a in self.attr.items()},
            node_name=self.name or None,
        )
        flat = list(tensors_in(made))
        control = [e.node for e in self.input if isinstance(e, Controller)]
        if flat:
            flat[0].node.control += [n for n in control if n not in flat[0].node.control]
        return flat


class Controller:
    """What a tensor's ``controller`` is: its producer, as something to wait for."""

    def __init__(self, node: Any) -> None:
        self.node = node


_INDEXED: Final = re.compile(r"(.*?)([0-9]+)")


def _inputs(op: str, named: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Ports by name; ``x0``, ``x1`` … are the parts of a dynamic port ``x``."""
    known = schema.get(op)
    dynamic = {p.name for p in known.inputs if p.kind == "dynamic"} if known is not None else set()
    exact = {p.name for p in known.inputs} if known is not None else {n for n, _ in named}
    inputs: dict[str, Any] = {}
    for name, tensor in named:
        match = _INDEXED.fullmatch(name)
        if name not in exact and match and match[1] in dynamic:
            inputs.setdefault(match[1], []).append(tensor)
        else:
            inputs[name] = tensor
    if known is None:
        return inputs
    return {p.name: inputs.get(p.name, [] if p.kind == "dynamic" else None) for p in known.inputs} | {
        n: v for n, v in inputs.items() if n not in exact
    }


def _outputs(op: str, names: Sequence[str]) -> list[str | tuple[str, int]]:
    known = schema.get(op)
    dynamic = {p.name for p in known.outputs if p.kind == "dynamic"} if known is not None else set()
    outputs: list[str | tuple[str, int]] = []
    for base, group in itertools.groupby(names, lambda n: m[1] if (m := _INDEXED.fullmatch(n)) else n):
        parts = list(group)
        outputs += [(base, len(parts))] if base in dynamic else parts
    return outputs


class OpList:
    """``graph.op``: where operators are added."""

    def add(self) -> OpDef:
        current_graph()
        return OpDef()
