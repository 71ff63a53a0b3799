"""``custom_op`` and ``Clone``: nodes of any registered operator, and copies that materialise."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ge_graph import escape
from ge_graph.attrs import Attr
from ge_graph.calling import parameter_names, plan_of
from ge_graph.errors import GraphError
from ge_graph.ir import Tensor, current_graph


def Clone(x: Tensor, *, dependencies: Sequence[Tensor] = (), node_name: str | None = None) -> Tensor:
    """A copy of ``x``, made after ``dependencies`` have run: a ``TensorMove`` node."""
    y: Tensor = plan_of("TensorMove").call((x,), {"dependencies": dependencies, "node_name": node_name})
    return y


def custom_op(
    op_type: str,
    *args: Any,
    inputs: Mapping[str, Any] | None = None,
    outputs: Sequence[str | tuple[str, int]] | None = None,
    attrs: Mapping[str, Attr] | None = None,
    node_name: str | None = None,
) -> Any:
    """A node of any registered operator, in one of two forms.

    Form 1, ``custom_op("Foo", x, y, 3)``: inputs, then attributes, all in schema order. It cannot express dynamic
    outputs. Form 2, keywords: ``inputs`` in schema order (``None`` for an optional input that is not fed), ``outputs``
    as names or ``(name, count)`` for dynamic ones, ``attrs`` typed through ``ge_graph.attrs``. If both are given,
    form 1 wins, and a warning says so.

    Returns:
        One Tensor, or a list with one entry per output; a dynamic output is a list.

    Raises:
        GraphError: GE3019 for an unknown operator, otherwise as for any ``ge`` call.
    """
    current_graph()
    plan = plan_of(op_type)
    schema = plan.schema
    ports, attributes = parameter_names(schema)
    if args:
        unused = [n for n, v in (("inputs", inputs), ("outputs", outputs), ("attrs", attrs)) if v is not None]
        if unused:
            warnings.warn(
                f"torchair: custom_op('{escape.line(op_type)}') is given arguments by position: "
                f"{', '.join(unused)} are not used",
                stacklevel=2,
            )
        operands, values = args[: plan.arity], args[plan.arity :]
        if len(values) > len(attributes):
            raise GraphError(
                "GE3013",
                f"{op_type} takes {plan.arity} inputs and {len(attributes)} attributes, got {len(args)} arguments",
            )
        dynamic = [p.name for p in schema.outputs if p.kind == "dynamic"]
        if dynamic:
            raise GraphError(
                "GE3013",
                f"{op_type} has dynamic outputs ({', '.join(dynamic)}); give them by keyword",
                next="use inputs=, outputs=, attrs=",
            )
        keywords: dict[str, Any] = {name: v.value if isinstance(v, Attr) else v for name, v in zip(attributes, values)}
        return _listed(plan.call(operands, {**keywords, "node_name": node_name}))
    return _listed(_keyword_form(op_type, inputs or {}, outputs, attrs or {}, node_name))


def _keyword_form(
    op_type: str,
    inputs: Mapping[str, Any],
    outputs: Sequence[str | tuple[str, int]] | None,
    attrs: Mapping[str, Attr],
    node_name: str | None,
) -> Any:
    plan = plan_of(op_type)
    _check_forms(op_type, inputs, outputs, attrs)
    by_name = {p.name: parameter for parameter, i in plan.ports.items() for p in (plan.schema.inputs[i],)}
    by_attr = {a.name: parameter for parameter, a in plan.attributes.items()}
    unknown = [n for n in inputs if n not in by_name]
    if unknown:
        raise GraphError("GE3013", f"{op_type} has no input {', '.join(unknown)}; it has {', '.join(by_name)}")
    order = [n for n in by_name if n in inputs]
    if list(inputs) != order:
        raise GraphError(
            "GE3013", f"inputs of {op_type} must stand in the order {', '.join(order)}, got {', '.join(inputs)}"
        )
    untyped = [n for n, a in attrs.items() if not isinstance(a, Attr)]
    if untyped:
        raise GraphError(
            "GE3013",
            f"attribute {', '.join(untyped)} of {op_type} needs a type",
            next="use ge.attr.Int(...) and the like",
        )
    extra = {n: a for n, a in attrs.items() if n not in by_attr}
    foreign = [n for n in extra if not n.startswith("_")]
    if foreign:
        raise GraphError(
            "GE3013", f"{op_type} has no attribute {', '.join(foreign)}; it has {', '.join(by_attr) or 'none'}"
        )
    for name, attr in attrs.items():
        wanted = plan.attributes[by_attr[name]].kind if name in by_attr else attr.kind
        if wanted is not attr.kind:
            raise GraphError("GE3002", f"attribute '{name}' of {op_type} must be {wanted.value}, got {attr.kind.value}")
    names = [o if isinstance(o, str) else o[0] for o in outputs] if outputs is not None else None
    declared = [p.name for p in plan.schema.outputs]
    if names is not None and names != declared:
        raise GraphError("GE3013", f"outputs of {op_type} are {', '.join(declared) or 'none'}, got {', '.join(names)}")
    sizes = {f"size_of_{o[0]}": o[1] for o in outputs or () if not isinstance(o, str)}
    keywords = {by_name[n]: v for n, v in inputs.items()}
    keywords |= {by_attr[n]: a.value for n, a in attrs.items() if n in by_attr}
    result = plan.call((), {**keywords, **sizes, "node_name": node_name})
    if extra:
        _node_of(result).attrs.update(extra)
    return result


def _check_forms(op_type: str, inputs: Any, outputs: Any, attrs: Any) -> None:
    for name, given in (("inputs", inputs), ("attrs", attrs)):
        if not isinstance(given, Mapping):
            raise GraphError(
                "GE3013", f"{name} of {op_type} must be a dict from name to value, got {type(given).__name__}"
            )
    if outputs is not None and (isinstance(outputs, str) or not isinstance(outputs, Sequence)):
        raise GraphError("GE3013", f"outputs of {op_type} must be a list of names, got {outputs!r}")


def _node_of(result: Any) -> Any:
    while isinstance(result, (list, tuple)):
        result = result[0]
    return result.node if isinstance(result, Tensor) else result


def _listed(result: Any) -> Any:
    return list(result) if isinstance(result, tuple) else result
