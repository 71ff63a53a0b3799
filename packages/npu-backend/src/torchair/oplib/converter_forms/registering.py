"""Registering converters that were written for the torchair inside torch_npu.

Their parameters go by position: they name them as they like, and leave out what they do not read. Such a converter
registers with a warning. What can never be called, one that needs something no call gives, is refused as ever.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.registry import register_fx_node_ge_converter as register_strictly
from ge_converters.registry.entry import where_is
from ge_converters.registry.signatures import python_name
from ge_graph import Tensor
from torchair.config.log import logger

OUTPUTS: Final[contextvars.ContextVar[Any]] = contextvars.ContextVar("meta_outputs", default=None)
"""``meta_outputs`` of the converter that is running, for operators whose result types nothing else says."""


def register_fx_node_ge_converter(
    aten_op: Any = None,
    *,
    source: str = "",
    fixed: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    takes: Callable[..., bool] | None = None,
    **more: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that makes a function the converter of an op.

    Args:
        aten_op: ``torch.ops.aten.add.Tensor``, a Python function such as ``math.floor``, or the name of an overload; or
            several of them with the call forms of each, ``{op: [Support(...)]}``.
        source: Where the behaviour is taken from.
        fixed: Values of parameters that are no arguments of these ops.
        names: Parameters by the schema's names of arguments, where the two differ.
        takes: Which calls are converted, a function of the call's arguments; torch's decomposition serves the others.
        **more: ``target``, another name of ``aten_op``.

    The function gets GE tensors for tensors, plain values for the rest, and ``meta_outputs``. It should have the
    parameters of the op's schema; other names, parameters left out and keyword-only parameters register with a warning,
    but for several ops and beside ``fixed`` and ``names``, which say what differs.

    Errors: LoweringError GE2002 for a converter that no call fits, GE2003 for what is not an op.

    Example:
        >>> import torch, torchair
        >>> from torchair import ge
        >>> @torchair.register_fx_node_ge_converter(torch.ops.aten.sinc.default)  # doctest: +SKIP
        ... def sinc(self, *, meta_outputs):
        ...     return ge.Sinc(self)
    """
    target = more.pop("target", aten_op)
    if more or target is None:
        raise LoweringError(
            "GE2003",
            f"register_fx_node_ge_converter got {', '.join(map(repr, more)) or 'no operator'}",
            next="write @register_fx_node_ge_converter(torch.ops.aten.sin.default)",
        )

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        said = isinstance(target, Mapping) or fixed or names
        adapted, differences = (fn, []) if said else _adapted(target, fn)
        register_strictly(target, source=source, fixed=fixed, names=names, takes=takes)(adapted)
        if differences:
            logger.warning("the converter of %s at %s: %s", target, where_is(fn), "; ".join(differences))
        return fn

    register_strictly(target, fixed=fixed, names=names)  # refuses what is not an op where the decorator stands
    return decorate


def _adapted(target: Any, fn: Callable[..., Any]) -> tuple[Callable[..., Any], list[str]]:
    """The converter with exactly the parameters of the op, and how the given one differs."""
    if not isinstance(target, torch._ops.OpOverload) or not inspect.isfunction(inspect.unwrap(fn)):
        return fn, []
    arguments = target._schema.arguments
    positional = [python_name(a.name) for a in arguments if not a.kwarg_only]
    keywords = [python_name(a.name) for a in arguments if a.kwarg_only]
    plan = _Plan(fn, positional, keywords)
    if plan.impossible:
        return fn, []  # the strict check says what is wrong

    defaults = {python_name(a.name): a.default_value for a in arguments if a.has_default_value()}

    @functools.wraps(fn)
    def converter(*args: Any, meta_outputs: Any = None, **given: Any) -> Any:
        values = {**dict(zip(positional, args)), **given}
        for name in plan.left_out:
            _check_default(target, name, values.get(name), defaults.get(name))
        token = OUTPUTS.set(meta_outputs)
        try:
            return fn(*(values[n] for n in plan.by_position if n in values), **plan.named(values, meta_outputs))
        finally:
            OUTPUTS.reset(token)

    kinds = inspect.Parameter
    shape = [kinds(n, kinds.POSITIONAL_OR_KEYWORD) for n in positional]
    shape += [kinds(n, kinds.KEYWORD_ONLY) for n in keywords]
    shape.append(kinds("meta_outputs", kinds.KEYWORD_ONLY, default=None))
    converter.__signature__ = inspect.Signature(shape)  # type: ignore[attr-defined]
    return converter, plan.differences


def _check_default(target: Any, name: str, value: Any, default: Any) -> None:
    if value is None or (not isinstance(value, (Tensor, list)) and value == default) or value == []:
        return
    if isinstance(value, list) and not any(isinstance(v, Tensor) for v in value) and value == default:
        return
    shown = "a tensor" if isinstance(value, Tensor) else repr(value)
    raise Refusal(f"argument '{name}' of {target} is {shown}; its converter has no parameter for it")


class _Plan:
    """How a call of the op becomes a call of the function.

    Attributes:
        by_position: Arguments of the op that go to the function's first parameters.
        left_out: Arguments of the op that the function has no parameter for.
        impossible: Whether no call fits.
    """

    def __init__(self, fn: Callable[..., Any], positional: Sequence[str], keywords: Sequence[str]) -> None:
        kind = inspect.Parameter
        parameters = {n: p for n, p in inspect.signature(fn).parameters.items() if n not in ("meta_outputs", "out")}
        every = inspect.signature(fn).parameters
        self.wants_meta = "meta_outputs" in every or any(p.kind is kind.VAR_KEYWORD for p in every.values())
        self._any_keyword = any(p.kind is kind.VAR_KEYWORD for p in every.values())
        any_position = any(p.kind is kind.VAR_POSITIONAL for p in every.values())
        own = [n for n, p in parameters.items() if p.kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)]
        only = [n for n, p in parameters.items() if p.kind is kind.KEYWORD_ONLY]
        self.differences: list[str] = []
        names = {*positional, *keywords}
        by_name = all(n in names for n in own)
        self.by_position: list[str] = []
        self._by_name: dict[str, str] = {}
        free = [n for n in own if n not in keywords]
        named = by_name and not any_position and len(free) < len(positional)
        if named and free == [n for n in positional if n in free]:
            self._by_name = {n: n for n in free}  # some are left out: the names say which
        else:
            self.by_position = list(positional[: len(positional) if any_position else len(free)])
            renamed = [f"'{a}' is called '{b}'" for a, b in zip(self.by_position, free) if a != b]
            self.differences += [f"parameters by position: {', '.join(renamed)}"] if renamed else []
        for name in (*(n for n in own if n in keywords), *(n for n in only if n in names)):
            self._by_name[name] = name
        taken = {*self.by_position, *self._by_name}
        rest = [n for n in (*positional, *keywords) if n not in taken]
        self.left_out = [] if self._any_keyword else rest
        self._rest = rest if self._any_keyword else []
        if self.left_out:
            self.differences.append(
                f"no parameter for {', '.join(map(repr, self.left_out))}, served at the default only"
            )
        moved = [n for n in (*(n for n in own if n in keywords), *(n for n in only if n in positional))]
        if moved:
            self.differences.append(f"{', '.join(map(repr, moved))} by name")
        extra = [n for n in (*free[len(positional) :], *only) if n not in names]
        self.impossible = any(parameters[n].default is kind.empty for n in extra)
        out = every.get("out")
        self.impossible |= out is not None and out.default is kind.empty and out.kind is not kind.VAR_KEYWORD
        if extra:
            self.differences.append(f"further parameters {', '.join(map(repr, extra))}, always at their default")

    def named(self, values: Mapping[str, Any], meta_outputs: Any) -> dict[str, Any]:
        """Keywords of the call."""
        keywords = {parameter: values[n] for n, parameter in self._by_name.items() if n in values}
        keywords |= {n: values[n] for n in self._rest if n in values}
        if self.wants_meta:
            keywords["meta_outputs"] = meta_outputs
        return keywords
