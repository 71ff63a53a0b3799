"""What a converter may be registered for, and the parameters that it must have."""

from __future__ import annotations

import inspect
import keyword
from typing import Any, Final

import torch

from ge_converters.base.errors import LoweringError
from ge_converters.base.provenance import target_name
from ge_converters.registry.entry import Converter, Target, where_is

# Parameters that a converter may have beside those of its op.
_EXTRA_PARAMETERS: Final = frozenset({"meta_outputs", "out"})
# Arguments that say where and how torch keeps a result. A converter may leave them out: a value of a graph has no
# place, and a layout other than dense is refused before the converter is called.
_PLACEMENT: Final = frozenset({"layout", "device", "pin_memory", "memory_format"})


def loaded_op(name: str, *, strict: bool = True) -> torch._ops.OpOverload | None:
    """The overload of that name, None if the library that defines it is not loaded.

    Args:
        name: ``aten.add.Tensor``, with or without ``torch.ops.`` before it.
        strict: Whether a name of aten has to be there. Others may come later: torch's compiler adds to prims when it
            is imported.

    Errors: LoweringError GE2003 for a text that names no overload, or, if strict, no operator of aten.
    """
    parts = name.removeprefix("torch.ops.").split(".")
    if len(parts) != 3 or not all(p.isidentifier() for p in parts):
        raise LoweringError(
            "GE2003",
            f"'{name}' is not a name of an overload",
            next="write namespace.operator.overload: aten.add.Tensor",
        )
    namespace, operator, overload = parts
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    op = getattr(packet, overload, None)
    if op is None and namespace == "aten" and strict:
        near = ", ".join(f"{namespace}.{operator}.{o}" for o in packet.overloads()) if packet is not None else ""
        raise LoweringError("GE2003", f"torch has no operator {name}", next=f"it has {near}" if near else "")
    return op if isinstance(op, torch._ops.OpOverload) else None


def is_composite(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def check_target(target: Any) -> None:
    if isinstance(target, torch._ops.OpOverload):
        return
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise LoweringError(
            "GE2003", f"torch.ops.higher_order.{target.name()} runs functions, which no converter can be given",
            next="register converters for the ops inside, or define an operator with torch.library",
        )  # fmt: skip
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__name__", "")
    if getattr(torch, name or "-", None) is target and not name.startswith("sym_") and callable(target):
        raise LoweringError(
            "GE2003", f"torch.{name} never occurs in a graph: tracing turns it into operators",
            next=f"register an overload of torch.ops.aten.{name}" if hasattr(torch.ops.aten, name) else "",
        )  # fmt: skip
    if module.startswith("torch.nn"):
        raise LoweringError(
            "GE2003", f"{module}.{name} never occurs in a graph: tracing turns it into operators",
            next="register an overload of torch.ops.aten",
        )  # fmt: skip
    if "meta_outputs" in getattr(getattr(target, "__code__", None), "co_varnames", ()):
        raise LoweringError(
            "GE2003", f"the decorator was given the converter {name} instead of an operator", where=where_is(target),
            next="write @register_fx_node_ge_converter(torch.ops.aten.sin.default) above it",
        )  # fmt: skip
    if isinstance(target, torch._ops.OpOverloadPacket):
        candidates = [getattr(target, o) for o in target.overloads()]
        candidates = [
            o for o in candidates if "Tensor" in str(o._schema) and not any(a.is_out for a in o._schema.arguments)
        ]
        overloads = ", ".join(f"torch.ops.{o}" for o in candidates)
        raise LoweringError(
            "GE2003", f"torch.ops.{target} is the name of its overloads, a converter serves one overload",
            next=f"register one of {overloads}",
        )  # fmt: skip
    if not callable(target) or isinstance(target, type):
        raise LoweringError(
            "GE2003", f"cannot register a converter for {target!r}",
            next="give an overload such as torch.ops.aten.sin.default or a Python function such as math.floor",
        )  # fmt: skip


def check_signature(target: Target, fn: Converter, where: str) -> bool:
    """Compare a converter's parameters with the schema of its op.

    Returns:
        Whether it takes ``meta_outputs``.

    Errors: LoweringError GE2002, naming every difference, with the converter's file and line.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        raise LoweringError("GE2003", f"a converter must be a Python function, got {fn!r}") from None
    kinds = {name: p.kind for name, p in parameters.items()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
    if isinstance(target, torch._ops.OpOverload):
        problems = _differences(target, parameters)
        if problems:
            raise LoweringError(
                "GE2002",
                f"the converter of {target_name(target)} does not match its schema: {'; '.join(problems)}",
                where=where,
                next=f"write it as {expected_signature(target, getattr(fn, '__name__', 'converter'))}",
            )
    return takes_any or "meta_outputs" in kinds


def _differences(target: torch._ops.OpOverload, parameters: Any) -> list[str]:
    kind = inspect.Parameter
    kinds = [p.kind for p in parameters.values()]
    any_keyword, any_position = kind.VAR_KEYWORD in kinds, kind.VAR_POSITIONAL in kinds
    arguments = target._schema.arguments
    names = {python_name(a.name) for a in arguments}
    problems = []
    for a in arguments:
        p = parameters.get(python_name(a.name))
        if p is None:
            left_out = any_position and not a.kwarg_only or a.kwarg_only and a.name in _PLACEMENT
            if not (any_keyword or left_out):
                problems.append(f"parameter '{a.name}' is missing")
        elif a.kwarg_only and p.kind is not kind.KEYWORD_ONLY:
            problems.append(f"parameter '{a.name}' must be keyword-only (after *)")
        elif not a.kwarg_only and p.kind is kind.KEYWORD_ONLY and not any_position:
            problems.append(f"parameter '{a.name}' must be positional (before *)")
    for name, p in parameters.items():
        if p.kind in (kind.VAR_KEYWORD, kind.VAR_POSITIONAL) or name in names:
            continue
        if name not in _EXTRA_PARAMETERS:
            problems.append(f"parameter '{name}' is not in the schema")
        elif name == "out" and p.default is kind.empty:
            problems.append("parameter 'out' needs a default")
    positional = [python_name(a.name) for a in arguments if not a.kwarg_only]
    own = [n for n, p in parameters.items() if n in positional and p.kind is not kind.KEYWORD_ONLY]
    if not problems and own != [n for n in positional if n in own]:
        problems.append(f"parameters stand in the order {', '.join(own)}, the schema has {', '.join(positional)}")
    return problems


def keyword_arguments(target: torch._ops.OpOverload, fn: Converter) -> list[Any]:
    """The keyword-only arguments of the schema that a converter of ``target`` is called with."""
    parameters = inspect.signature(fn).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments = [a for a in target._schema.arguments if a.kwarg_only]
    return [a for a in arguments if takes_any or python_name(a.name) in parameters]


def python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def expected_signature(target: torch._ops.OpOverload, name: str = "converter") -> str:
    """``def add(self, other, *, alpha=1, meta_outputs)``: what a converter of this op has to look like."""
    parts, star = [], False
    for a in target._schema.arguments:
        if a.kwarg_only and not star:
            parts.append("*")
            star = True
        default = f"={a.default_value!r}" if a.has_default_value() else ""
        parts.append(python_name(a.name) + default)
    if not star:
        parts.append("*")
    return f"def {name}({', '.join(parts)}, meta_outputs)"
