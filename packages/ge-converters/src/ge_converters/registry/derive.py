"""Converters derived from two schemas: a custom torch op and the GE op of the same name in CamelCase.

``mine::my_inplace(Tensor(a!) x, Tensor y, *, int n=1) -> Tensor`` becomes ``MyInplace`` if that op has inputs ``x, y``
in this order, an attribute ``n`` of kind Int, and outputs ``x`` (the overwritten input) and one more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from ge_converters.base.dtypes import to_ge
from ge_converters.base.errors import Refusal
from ge_converters.registry.entry import Entry
from ge_graph import GraphError, Tensor, TensorSpec, schema
from ge_graph import ops as ge
from ge_graph.attrs import Kind
from ge_graph.calling import counts_itself

_TORCH_OWN: Final = frozenset(
    ("aten", "prims", "prim", "quantized", "_quantized", "inductor", "higher_order", "rng_prims")
)
_DERIVED: Final = "the converter is derived from GE op"
_OWN_CONVERTER: Final = "register a converter of your own (docs/adding_an_op.md)"
_PORT_KINDS: Final = {"Tensor": "required", "Optional[Tensor]": "optional", "List[Tensor]": "dynamic"}
_ATTR_KINDS: Final = {
    "int": (Kind.INT, Kind.TYPE),
    "float": (Kind.FLOAT,),
    "bool": (Kind.BOOL,),
    "str": (Kind.STRING,),
    "List[int]": (Kind.LIST_INT,),
    "List[float]": (Kind.LIST_FLOAT,),
    "List[bool]": (Kind.LIST_BOOL,),
    "List[str]": (Kind.LIST_STRING,),
}


def camel_case(name: str) -> str:
    """``my_inplace`` -> ``MyInplace``."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def derive(target: torch._ops.OpOverload) -> Entry | str:
    """A converter for a custom op, or the reason why there is none (empty for torch's own ops)."""
    if target.namespace in _TORCH_OWN:
        return ""
    name = target._schema.name.split("::")[1]
    ge_op = schema.get(camel_case(name))
    if ge_op is None:
        return f"no GE op {camel_case(name)} to derive one from"
    problem = _mismatch(target._schema, ge_op)
    if problem:
        return f"GE op {ge_op.name} exists, but {problem}"
    return Entry(
        target,
        _converter(target._schema, ge_op),
        f"derived from GE {ge_op.name}",
        f"GE op {ge_op.name}",
        "automatic",
        wants_meta=True,
    )


def _split(torch_schema: Any) -> tuple[list[Any], list[Any]]:
    tensors = [a for a in torch_schema.arguments if str(a.type) in _PORT_KINDS]
    return tensors, [a for a in torch_schema.arguments if str(a.type) not in _PORT_KINDS]


def _mismatch(torch_schema: Any, ge_schema: schema.OpSchema) -> str:
    tensors, values = _split(torch_schema)
    inputs = ge_schema.inputs
    if len(tensors) != len(inputs):
        return f"it has {len(inputs)} inputs and the torch op {len(tensors)} tensors"
    for a, port in zip(tensors, inputs):
        if a.name != port.name:
            return f"tensor '{a.name}' stands where it has input '{port.name}'"
        if _PORT_KINDS[str(a.type)] != port.kind and not (port.kind == "optional" and str(a.type) == "Tensor"):
            return f"'{a.name}' is {a.type} and its input is {port.kind}"
    attributes = {a.name: a for a in ge_schema.attrs}
    unnamed = [a.name for a in ge_schema.attrs if a.required and a.name not in {v.name for v in values}]
    if unnamed and not (counts_itself(ge_schema) and unnamed == ["N"]):
        return f"its required attribute '{unnamed[0]}' is not a parameter of the torch op"
    for a in values:
        kind = str(a.type).removeprefix("Optional[").removesuffix("]") if "Optional" in str(a.type) else str(a.type)
        if kind in ("number", "Scalar"):
            return f"parameter '{a.name}' is a Scalar, which has no attribute kind"
        if a.name not in attributes:
            return f"it has no attribute '{a.name}'"
        if kind not in _ATTR_KINDS or attributes[a.name].kind not in _ATTR_KINDS[kind]:
            return f"parameter '{a.name}' is {a.type} and its attribute is {attributes[a.name].kind.value}"
    return _output_mismatch(torch_schema, ge_schema, tensors)


def _written(torch_schema: Any) -> list[str]:
    return [a.name for a in torch_schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _output_mismatch(torch_schema: Any, ge_schema: schema.OpSchema, tensors: list[Any]) -> str:
    written = _written(torch_schema)
    outputs = [p.name for p in ge_schema.outputs]
    missing = [n for n in written if n not in outputs]
    if missing:
        return f"the written input '{missing[0]}' has no output of the same name"
    if outputs[: len(written)] != written:
        return (
            f"its outputs are {', '.join(outputs)}; the written inputs ({', '.join(written)}) must come first, in order"
        )
    rest = len(outputs) - len(written)
    if rest != len(torch_schema.returns):
        return f"it has {rest} results and the torch op {len(torch_schema.returns)}"
    return ""


def _converter(torch_schema: Any, ge_schema: schema.OpSchema) -> Callable[..., Any]:
    tensors, values = _split(torch_schema)
    names = {a.name for a in tensors}
    value_names = [a.name for a in values]
    positional = [a.name for a in torch_schema.arguments if not a.kwarg_only]
    skipped = len(_written(torch_schema))
    dynamic = [p.name for p in ge_schema.outputs[skipped:] if p.kind == "dynamic"]
    emit = getattr(ge, ge_schema.name)

    def convert(*args: Any, meta_outputs: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(positional, args)), **kwargs}
        for name in value_names:
            value = given[name]
            if isinstance(value, torch.dtype):
                given[name] = to_ge(value)
            if isinstance(value, Tensor) or (isinstance(value, list) and any(isinstance(v, Tensor) for v in value)):
                raise Refusal(f"'{name}' is symbolic and becomes an attribute; mark it static or pass a number")
        call = {_parameter(ge_schema, k, k in names): v for k, v in given.items()}
        for name in dynamic:
            call[f"size_of_{name}"] = len(meta_outputs)
        try:
            made = emit(**call)
        except GraphError as e:
            raise Refusal(f"{_DERIVED} {ge_schema.name}, but {e.what} [{e.code}]; {_OWN_CONVERTER}") from e
        listed = list(made) if isinstance(made, tuple) else [made] if isinstance(made, Tensor) else made
        results = listed[skipped:] if isinstance(listed, list) else []
        _check_types(ge_schema, results, meta_outputs)
        return results[0] if len(results) == 1 else results

    return convert


def _check_types(ge_schema: schema.OpSchema, results: list[Any], meta_outputs: Any) -> None:
    specs = meta_outputs if isinstance(meta_outputs, list) else [meta_outputs]
    for result, spec in zip(results, specs):
        if isinstance(result, Tensor) and isinstance(spec, TensorSpec) and result.dtype is not spec.dtype:
            raise Refusal(
                f"{_DERIVED} {ge_schema.name}, but that gives {result.dtype.name} and the Meta function of the torch "
                f"op {spec.dtype.name}; correct the Meta function, or {_OWN_CONVERTER}"
            )


def _parameter(ge_schema: schema.OpSchema, name: str, is_tensor: bool) -> str:
    clash = not is_tensor and any(p.name == name for p in ge_schema.inputs)
    return f"attr_{name}" if clash else name
