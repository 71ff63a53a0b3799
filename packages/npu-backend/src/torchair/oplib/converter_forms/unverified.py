"""Operators of an installed package that no schema describes here: taken from the call, and marked so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ge_graph import DataType, GraphError, Tensor, TensorSpec, schema
from ge_graph.attrs import Attr
from ge_graph.ops import custom_op as known_op
from torchair.config.log import logger
from torchair.oplib.converter_forms.registering import OUTPUTS

SOURCE: Final = "unverified: as a converter called it"
_TYPES: Final = ",".join(d.short for d in DataType if d is not DataType.DT_UNDEFINED)
_rows: Final[dict[str, dict[str, Any]]] = {}


def custom_op(
    op_type: str,
    *args: Any,
    inputs: Mapping[str, Any] | None = None,
    outputs: Sequence[str | tuple[str, int]] | None = None,
    attrs: Mapping[str, Attr] | None = None,
    node_name: str | None = None,
) -> Any:
    """A node of any operator; see ``ge_graph.ops.custom_op``.

    An operator without schema takes inputs and attributes as they are given, by keyword, and its results have the
    types and sizes of ``meta_outputs`` of the converter that calls. Nothing about it is verified, which the log says
    once, and its schema says ``unverified`` as its source.

    Errors: GraphError GE3013 for such an operator without ``outputs``, or if their number is not that of
    ``meta_outputs``; else as for any ``ge`` call.
    """
    known = schema.get(op_type)
    if known is not None and op_type not in _rows:
        return known_op(op_type, *args, inputs=inputs, outputs=outputs, attrs=attrs, node_name=node_name)
    if args or inputs is None or not outputs:
        raise GraphError(
            "GE3019",
            f"'{op_type}' has no schema here, so its call has to name everything",
            next="custom_op(op, inputs={'x': x}, attrs={'n': ge.attr.Int(1)}, outputs=['y']), or register_schema",
        )
    specs = list(_specs(OUTPUTS.get()))
    count = sum(1 if isinstance(o, str) else o[1] for o in outputs)
    if len(specs) != count:
        raise GraphError(
            "GE3013",
            f"'{op_type}' has no schema here, and the op being converted has {len(specs)} results where this "
            f"has {count}, so their types are not known",
            next="describe the operator: ge_op(..., ir=IrDef(...))",
        )
    _describe(op_type, inputs, outputs, attrs or {})
    order = [p.name for p in schema.require(op_type).inputs]
    made = known_op(
        op_type,
        inputs={n: inputs[n] for n in order if n in inputs},
        outputs=list(outputs),
        attrs=attrs or {},
        node_name=node_name,
    )
    for tensor, spec in zip(tensors_in(made), specs):
        tensor.dtype = spec.dtype
        tensor.record_shape(spec.size)
    return made


def _specs(meta: Any) -> Any:
    if isinstance(meta, TensorSpec):
        yield meta
    elif isinstance(meta, (list, tuple)):
        for each in meta:
            yield from _specs(each)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of nested lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def _describe(op: str, inputs: Mapping[str, Any], outputs: Sequence[Any], attrs: Mapping[str, Attr]) -> None:
    """Let the schema have every port and attribute that a call has named so far."""
    before = _rows.get(op)
    row = {k: list(v) for k, v in before.items()} if before is not None else {"in": [], "out": [], "attr": []}
    names = {p.split(" ")[0].rstrip("?*"): i for i, p in enumerate(row["in"])}
    for name, value in inputs.items():
        mark = "*" if isinstance(value, (list, tuple)) else "?"
        if name not in names:
            row["in"].append(f"{name}{mark} {_TYPES}")
    known = {p.split(" ")[0].rstrip("*") for p in row["out"]}
    row["out"] += [
        f"{o} {_TYPES}" if isinstance(o, str) else f"{o[0]}* {_TYPES}"
        for o in outputs
        if (o if isinstance(o, str) else o[0]) not in known
    ]
    have = {a[0] for a in row["attr"]}
    row["attr"] += [[n, a.kind.value] for n, a in attrs.items() if n not in have and not n.startswith("_")]
    if row != before:
        if before is None:
            logger.warning_once(
                "operator '%s' has no schema here: its ports and attributes are taken from the call, its results are "
                "what meta_outputs says, and nothing about it is verified",
                op,
            )
        _rows[op] = row
        schema.register_schema({"op": op, **row, "source": SOURCE}, replace=True)
