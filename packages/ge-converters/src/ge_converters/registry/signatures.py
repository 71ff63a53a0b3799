"""What a converter may be registered for, and the parameters that it must have."""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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


def check_target(target: Any) -> None:
    if isinstance(target, torch._ops.OpOverload):
        return
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise LoweringError(
            "GE2003",
            f"torch.ops.higher_order.{target.name()} runs functions, which no converter can be given",
            next="register converters for the ops inside, or define an operator with torch.library",
        )
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__name__", "")
    if getattr(torch, name or "-", None) is target and not name.startswith("sym_") and callable(target):
        raise LoweringError(
            "GE2003",
            f"torch.{name} never occurs in a graph: tracing turns it into operators",
            next=f"register an overload of torch.ops.aten.{name}" if hasattr(torch.ops.aten, name) else "",
        )
    if module.startswith("torch.nn"):
        raise LoweringError(
            "GE2003",
            f"{module}.{name} never occurs in a graph: tracing turns it into operators",
            next="register an overload of torch.ops.aten",
        )
    if "meta_outputs" in getattr(getattr(target, "__code__", None), "co_varnames", ()):
        raise LoweringError(
            "GE2003",
            f"the decorator was given the converter {name} instead of an operator",
            where=where_is(target),
            next="write @register_fx_node_ge_converter(torch.ops.aten.sin.default) above it",
        )
    if isinstance(target, torch._ops.OpOverloadPacket):
        candidates = [getattr(target, o) for o in target.overloads()]
        candidates = [
            o for o in candidates if "Tensor" in str(o._schema) and not any(a.is_out for a in o._schema.arguments)
        ]
        overloads = ", ".join(f"torch.ops.{o}" for o in candidates)
        raise LoweringError(
            "GE2003",
            f"torch.ops.{target} is the name of its overloads, a converter serves one overload",
            next=f"register one of {overloads}",
        )
    if not callable(target) or isinstance(target, type):
        raise LoweringError(
            "GE2003",
            f"cannot register a converter for {target!r}",
            next="give an overload such as torch.ops.aten.sin.default or a Python function such as math.floor",
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """How a function serves ops whose arguments are not its parameters one for one.

    Attributes:
        fixed: Values of parameters that are no arguments of the ops.
        names: Parameters by the schema's names of arguments, where the two differ.
        beside: Parameters that one of the ops has an argument for; another leaves them at their defaults.
    """

    fixed: Mapping[str, Any]
    names: Mapping[str, str]
    beside: frozenset[str]

    @staticmethod
    def of(targets: Iterable[Target | str], fixed: Mapping[str, Any], names: Mapping[str, str]) -> Fit:
        """The fit of one function to these ops.

        Errors: LoweringError GE2002 if none of them has an argument that ``names`` renames.
        """
        schemas = [t._schema for t in targets if isinstance(t, torch._ops.OpOverload)]
        arguments = {a.name for s in schemas for a in s.arguments}
        unknown = sorted(names.keys() - arguments)
        if unknown and schemas:
            raise LoweringError(
                "GE2002",
                f"names renames '{unknown[0]}', and no op has such an argument",
                next=f"the arguments are {', '.join(sorted(arguments))}",
            )
        return Fit(dict(fixed), dict(names), frozenset(names.get(a, python_name(a)) for a in arguments))

    def beside_those_of(self, below: Fit | None) -> Fit:
        """The same beside the ops of another decorator of the function."""
        return self if below is None else replace(self, beside=self.beside | below.beside)


def fitted(target: Target, fn: Converter, where: str, fit: Fit | None) -> tuple[Converter, bool]:
    """The converter of an op, its parameters compared with the schema.

    Args:
        target: The op.
        fn: A function that converts it.
        where: ``file:line`` of the function.
        fit: What the function has instead of arguments of the op; None if it has exactly those.

    Returns:
        A function that is called with the arguments of the op, ``fn`` itself if it can be; whether it takes
        ``meta_outputs``.

    Errors: LoweringError GE2002, naming every difference, with the function's file and line.
    """
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        raise LoweringError("GE2003", f"a converter must be a Python function, got {fn!r}") from None
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    converter = fn
    if isinstance(target, torch._ops.OpOverload):
        problems: list[str] = []
        if fit is not None:
            signature, problems = _fitted_signature(target, parameters, fit)
            converter = _by_name(target, fn, parameters, signature, fit)
            parameters = signature.parameters
        problems = problems or _differences(target, parameters)
        if problems:
            raise LoweringError(
                "GE2002",
                f"the converter of {target_name(target)} does not match its schema: {'; '.join(problems)}",
                where=where,
                next=f"write it as {expected_signature(target, getattr(fn, '__name__', 'converter'))}",
            )
    elif fit is not None and (fit.fixed or fit.names):
        raise LoweringError(
            "GE2003",
            f"{target_name(target)} has no schema: fixed and names are for overloads",
            where=where,
            next="write a function of its own for it",
        )
    return converter, takes_any or "meta_outputs" in parameters


def renamed(target: Target, fn: Converter) -> Fit | None:
    """How a converter serves an op of which another version of torch has given arguments other names; None if it fits.

    A name is another one for the argument in its place if nothing else differs: as many positional arguments, each
    that both know in the same place, and no list where the converter has one value or the other way round.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    mine = {name: p for name, p in inspect.signature(fn).parameters.items() if p.kind in kinds}
    theirs = [a for a in target._schema.arguments if not a.kwarg_only]
    pairs = [(a, m) for a, m in zip(theirs, mine) if python_name(a.name) != m]
    known = {python_name(a.name) for a in theirs}
    if len(mine) != len(theirs) or any(
        m in known or python_name(a.name) in mine or _takes_lists(mine[m]) not in (None, _is_list(a)) for a, m in pairs
    ):
        return None
    return Fit({}, {a.name: m for a, m in pairs}, frozenset()) if pairs else None


def _takes_lists(parameter: inspect.Parameter) -> bool | None:
    """Whether its annotation is a list's; None if there is none, or one of anything."""
    said = str(parameter.annotation)
    return None if parameter.annotation is inspect.Parameter.empty or said == "Any" else "Sequence[" in said


def _is_list(argument: Any) -> bool:
    kind = argument.type
    if isinstance(kind, torch.OptionalType):
        kind = kind.getElementType()
    return isinstance(kind, torch.ListType)


def _fitted_signature(
    target: torch._ops.OpOverload, parameters: Mapping[str, inspect.Parameter], fit: Fit
) -> tuple[inspect.Signature, list[str]]:
    """What of a function's parameters the arguments of an op go to, under the names and in the places of the schema."""
    kind = inspect.Parameter
    places = {fit.names.get(a.name, python_name(a.name)): a for a in target._schema.arguments}
    problems = [f"'{n}' is fixed and an argument of the op" for n in fit.fixed if n in places]
    problems += [f"'{n}' is fixed and no parameter of the converter" for n in fit.fixed if n not in parameters]
    renamed = {fit.names[a.name]: a.name for a in target._schema.arguments if a.name in fit.names}
    problems += [
        f"'{n}', for '{a}', is no parameter of the converter" for n, a in renamed.items() if n not in parameters
    ]
    found = [
        kind(python_name(a.name), kind.KEYWORD_ONLY if a.kwarg_only else kind.POSITIONAL_OR_KEYWORD)
        for name, a in places.items()
        if name in parameters
    ]
    for name, p in parameters.items():
        spare = name in fit.fixed or (name in fit.beside and p.default is not kind.empty)
        if p.kind is kind.VAR_POSITIONAL:
            problems.append(f"'*{name}' has no names to call it by")
        elif name not in places and not spare:
            found.append(p.replace(kind=p.kind if p.kind is kind.VAR_KEYWORD else kind.KEYWORD_ONLY))
    found.sort(key=lambda p: p.kind)
    return inspect.Signature(found), problems


def _by_name(
    target: torch._ops.OpOverload,
    fn: Converter,
    parameters: Mapping[str, inspect.Parameter],
    signature: inspect.Signature,
    fit: Fit,
) -> Converter:
    """``fn``, called by the names of its parameters unless the arguments of the op stand where they do."""
    arguments = target._schema.arguments
    positional = [fit.names.get(a.name, python_name(a.name)) for a in arguments if not a.kwarg_only]
    keywords = {python_name(a.name): fit.names[a.name] for a in arguments if a.kwarg_only and a.name in fit.names}
    in_place = [n for n, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if in_place[: len(positional)] == positional and not fit.fixed and not keywords:
        return fn
    fixed = fit.fixed

    @functools.wraps(fn)
    def convert(*args: Any, **given: Any) -> Any:
        named = {keywords.get(name, name): value for name, value in given.items()}
        return fn(**dict(zip(positional, args)), **named, **fixed)

    convert.__signature__ = signature  # type: ignore[attr-defined]
    return convert


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
