"""Ops of libraries that need not be loaded, each one GE operator with other names: the converter is a row.

    "npu_rms_norm": Renamed("RmsNorm", "x=input gamma epsilon")

The op's own schema says in which order its arguments come and what their defaults are, so a newer library with one more
argument keeps working. An argument that the row does not name may only have its default: it is refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from ge_converters.base.dtypes import cast, to_ge
from ge_converters.base.errors import Refusal
from ge_converters.emit.shapes import shape_operand
from ge_converters.registry import F, register_fx_node_ge_converter
from ge_graph import GraphError, Tensor, TensorSpec, schema
from ge_graph import ops as ge
from ge_graph.attrs import Kind

_NUMBERS: Final = {Kind.FLOAT: float, Kind.INT: int, Kind.BOOL: bool, Kind.STRING: str}


@dataclass(frozen=True, slots=True)
class Renamed:
    """How a torch op is called in GE.

    Attributes:
        op: The GE operator.
        names: ``port=argument`` or ``attribute=argument`` for each, the name alone where both are equal.
        results: GE outputs in the order of the torch op's results; empty if they are the first ones as they stand. A
            ``-`` is a result that carries nothing in the calls that are taken, such as the state of unused random
            numbers: zeros.
        asked: For a GE output, the argument without which the torch op gives nothing of meaning in its place: zeros.
        idle: Arguments that say how to compute and not what.
        fixed: Attributes of the same value in every call.
        dtype: Attribute that takes the element type of the first result.
        copies: Ports that the operator overwrites; the torch op does not, so it gets copies.
        codes: For an argument, what GE says for each of its values; another value is refused.
        limits: Looks at the call's arguments by name and refuses numbers that GE refuses.
    """

    op: str
    names: str
    results: str = ""
    asked: Mapping[str, str] = field(default_factory=dict)
    idle: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = ""
    copies: str = ""
    codes: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    limits: Callable[[Mapping[str, Any]], None] | None = None


@lru_cache(maxsize=512)
def _arguments(name: str) -> tuple[Any, ...]:
    namespace, operator, overload = name.split(".")
    return tuple(getattr(getattr(getattr(torch.ops, namespace), operator), overload)._schema.arguments)


def given(name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What a call passes, by the names of the op's schema."""
    positional = [a.name for a in _arguments(name) if not a.kwarg_only]
    return {**dict(zip(positional, args)), **keywords}


def refuse_others(name: str, values: Mapping[str, Any], known: set[str], op: str) -> None:
    """Refuse an argument that nobody reads and that is not left at its default."""
    for a in _arguments(name):
        value = values.get(a.name)
        default = a.default_value if a.has_default_value() else None
        if a.name in known or value is None or (not isinstance(value, Tensor) and value == default):
            continue
        shown = "a tensor" if isinstance(value, Tensor) else repr(value)
        raise Refusal(f"argument '{a.name}' is {shown}; GE operator {op} is served without it, leave it at {default!r}")


def emit(op: str, operands: Mapping[str, Any], count: int = 1) -> list[Any]:
    """Call a GE operator; None leaves an operand out, lists of sizes and numbers get the kind that the port has.

    Args:
        op: GE operator type.
        operands: Its inputs and attributes by name.
        count: Length of its dynamic output, if it has one.

    Raises:
        Refusal: What the operator does not take: an element type, or a symbolic number for an attribute.
    """
    op_schema = schema.require(op)
    kinds = {a.name: a.kind for a in op_schema.attrs}
    ports = {p.name: p.kind for p in op_schema.inputs}
    now = schema.other_names(op)  # rows may use the names of any release
    call: dict[str, Any] = {}
    for given_name, value in operands.items():
        name = now.get(given_name, given_name)
        if value is None:
            if ports.get(name) == "dynamic":
                call[name] = []
        elif name in ports:
            call[name] = _operand(value, ports[name])
        else:
            call[name] = _attribute(op, name, value, kinds[name])
    call.update({f"size_of_{p.name}": count for p in op_schema.outputs if p.kind == "dynamic"})
    try:
        made = getattr(ge, op)(**call)
    except GraphError as e:
        raise Refusal(f"GE operator {op} does not take this: {e.what} [{e.code}]") from e
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _operand(value: Any, kind: str) -> Any:
    if kind == "dynamic":
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        return shape_operand(value)
    return value


def _attribute(op: str, name: str, value: Any, kind: Kind) -> Any:
    if isinstance(value, Tensor) or (isinstance(value, list) and any(isinstance(v, Tensor) for v in value)):
        raise Refusal(f"'{name}' is symbolic and an attribute of GE operator {op}; mark it static or pass a number")
    if isinstance(value, torch.dtype):
        return to_ge(value)
    return _NUMBERS[kind](value) if kind in _NUMBERS else value


def as_declared(results: list[Any], meta_outputs: Any) -> Any:
    """Results in the element types that the torch op promises."""
    if not isinstance(meta_outputs, list):
        return cast(results[0], meta_outputs.dtype)
    padded = [*results, *[None] * (len(meta_outputs) - len(results))]
    return [_as_spec(result, spec) for result, spec in zip(padded, meta_outputs)]


def _as_spec(result: Any, spec: Any) -> Any:
    if not isinstance(spec, TensorSpec):
        return None
    if any(isinstance(size, int) and size == 0 for size in spec.size) and all(isinstance(s, int) for s in spec.size):
        return ge.Const(np.zeros(tuple(spec.size), np.float32), dtype=spec.dtype)  # a result that is not asked for
    return cast(result, spec.dtype) if isinstance(result, Tensor) else result


def _zeros(spec: Any) -> Any:
    if not isinstance(spec, TensorSpec) or not all(isinstance(s, int) for s in spec.size):
        return None
    return ge.Const(np.zeros(tuple(spec.size), np.int64), dtype=spec.dtype)


def _coded(row: Renamed, name: str, value: Any) -> Any:
    codes = row.codes.get(name)
    if codes is None:
        return value
    if value not in codes:
        raise Refusal(f"argument '{name}' is {value!r}; GE operator {row.op} knows {', '.join(map(repr, codes))}")
    return codes[value]


def _copy(value: Any) -> Any:
    return [ge.Clone(v) for v in value] if isinstance(value, list) else ge.Clone(value)


def renamed(name: str, row: Renamed) -> Callable[..., Any]:
    """The converter of the op ``name`` (``npu.npu_rms_norm.default``) that a row stands for."""
    pairs = [(p.partition("=")[0], p.partition("=")[2] or p) for p in row.names.split()]
    known = {torch_name for _, torch_name in pairs} | set(row.idle.split())
    wanted = row.results.split()

    def convert(*args: Any, meta_outputs: Any, **keywords: Any) -> Any:
        values = given(name, args, keywords)
        refuse_others(name, values, known, row.op)
        if row.limits is not None:
            row.limits(values)
        specs = meta_outputs if isinstance(meta_outputs, list) else [meta_outputs]
        defaults = {a.name: a.default_value for a in _arguments(name) if a.name in row.codes and a.has_default_value()}
        values = {**defaults, **values}
        operands = {ge_name: _coded(row, torch_name, values.get(torch_name)) for ge_name, torch_name in pairs}
        operands.update({port: _copy(operands[port]) for port in row.copies.split()})
        if row.dtype:
            operands[row.dtype] = specs[0].dtype
        results = emit(row.op, {**operands, **row.fixed}, len(specs))
        if wanted:
            order = {p.name: r for p, r in zip(schema.require(row.op).outputs, results)}
            unasked = {output for output, argument in row.asked.items() if not values.get(argument)}
            results = [order[w] if w in order.keys() - unasked else _zeros(s) for w, s in zip(wanted, specs)]
        return as_declared(results, meta_outputs)

    convert.__doc__ = f"{name} as GE's {row.op}."
    return convert


def npu_op(name: str, op: str) -> Callable[[F], F]:
    """Decorator that makes a function the converter of torch_npu's op of that name.

    Args:
        name: ``npu_rotary_mul.default``.
        op: GE operators that it emits.
    """
    return register_fx_node_ge_converter(f"npu.{name}", source=f"torch_npu, documentation of {name}; GE {op}")


def register_rows(namespace: str, table: Mapping[str, Renamed], module: str, source: str) -> None:
    """Register the converter of every row; ``module`` is where the table stands."""
    for operator, row in table.items():
        name = f"{namespace}.{operator}" + ("" if "." in operator else ".default")
        convert = renamed(name, row)
        convert.__module__ = module
        register_fx_node_ge_converter(name, source=source)(convert)
