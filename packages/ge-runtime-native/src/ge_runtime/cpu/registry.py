"""Which function computes which GE operator: one table, two layers, user over built-in.

A kernel follows the operator's definition. It is called with one positional argument per schema input port (a tensor,
``None`` for a port that is not fed, a list for a dynamic port) and with the attributes as keywords, and returns one
tensor or a tuple (a dynamic output port counts as that many entries).

    from ge_runtime.cpu import kernel

    @kernel("MyScale")
    def my_scale(x, *, factor=1.0):
        return x * factor
"""

from __future__ import annotations

import dis
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from ge_runtime import errors
from ge_runtime.cpu import ignored

BUILT_IN = "ge_runtime.cpu.kernels"


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program under construction: a variable, or one entry of a variable that holds several.

    Attributes:
        name: The variable.
        index: The entry; None for the variable itself.
    """

    name: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a plan hook returns: call ``fn`` with these arguments.

    Arguments may be Refs, further Calls, Python constants, dtypes, and tuples or lists of all these; they are put
    into the program as they are, so nothing is looked up or converted while it runs.

    Attributes:
        views: Overrides ``Kernel.views`` for this call; None keeps it.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    views: bool | None = None


# Given a ``plan_context.PlanContext``; a Ref: the result is that value, no call is needed.
PlanHook: TypeAlias = "Callable[[Any], Call | Ref | None]"


@dataclass(frozen=True, slots=True)
class Kernel:
    """How the engine computes one operator type.

    Attributes:
        op: GE operator type.
        run: The function; sees tensors (and Python numbers on ``host`` ports).
        host: Ports handed over as Python numbers and lists, never as tensors: sizes, axes, permutations.
        views: True if a result may share memory with an operand. The planner then copies where a graph output would
            alias something, and never overwrites such memory. A kernel that may return an operand or a view of one
            and does not say so breaks the engine's promise; the first run of every graph checks it.
        updates: Ports whose tensors the kernel writes in place (Assign and friends).
        acts: True if the node runs although nobody reads its results: other processes wait for it.
        inplace: Name of the Tensor method that computes the same into its first operand (``add_``), or "".
        plan: Optional hook that turns a node into a direct call when enough is known; None falls back to ``run``.
        ignores: Ports and attributes without influence on the values. What ``run`` does not take or never reads must be
            left out or have its schema default, else the node is refused.
        source: Where the definition is taken from.
    """

    op: str
    run: Callable[..., Any]
    host: tuple[str, ...] = ()
    views: bool = False
    updates: tuple[str, ...] = ()
    inplace: str = ""
    plan: PlanHook | None = None
    ignores: tuple[str, ...] = ()
    source: str = ""
    acts: bool = False


_builtin: dict[str, Kernel] = {}
_user: dict[str, Kernel] = {}
_plans: dict[str, PlanHook] = {}
_homes: dict[str, list[str]] | None = None  # modules by operator type, from the index
_ready: set[str] = set()  # operator types whose modules are imported


def _same_place(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether two functions are one that was defined again, as by a notebook cell."""
    name = getattr(new, "__qualname__", "<")
    place = getattr(old, "__module__", ""), getattr(old, "__qualname__", "")
    return "<" not in name and place == (new.__module__, name)


def _enter(layer: dict[str, Kernel], entry: Kernel, override: bool) -> None:
    if entry.op in layer and not override and not _same_place(layer[entry.op].run, entry.run):
        raise errors.registered_twice(entry.op, layer[entry.op].source or repr(layer[entry.op].run))
    if layer is _builtin:
        entry = replace(entry, ignores=(*entry.ignores, *ignored.names(entry.op)))
    layer[entry.op] = entry


def kernel(
    *ops: str,
    host: tuple[str, ...] = (),
    views: bool = False,
    updates: tuple[str, ...] = (),
    inplace: str = "",
    ignores: tuple[str, ...] = (),
    source: str = "",
    acts: bool = False,
    override: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function for these operator types; it serves built-in and user kernels alike.

    Args:
        ops: GE operator types that the function computes.
        override: Replace a kernel of the same layer. A user kernel always wins over a built-in one.
        others: See ``Kernel``.

    Errors:
        EngineError GE4008 if the layer has a kernel for the type already, unless it is the function of the same
        module and name (a notebook cell that runs again); GE4012 if no operator type is given.
    """

    wrong = [op for op in ops or (None,) if not isinstance(op, str)]
    if wrong:
        raise errors.no_operator_type(wrong[0])

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        layer = _builtin if (getattr(fn, "__module__", "") or "").startswith(BUILT_IN) else _user
        for op in ops:
            _enter(layer, Kernel(op, fn, host, views, updates, inplace, None, ignores, source, acts), override)
        return fn

    return register


def rows(table: Mapping[str, Callable[..., Any]], **flags: Any) -> None:
    """Register built-in kernels by rows: operator types, with a space between them, to function; same flags for all."""
    for ops, fn in table.items():
        for op in ops.split():
            _enter(_builtin, Kernel(op, fn, **flags), override=False)


def plan(*ops: str) -> Callable[[PlanHook], PlanHook]:
    """Attach the decorated plan hook to these operator types (before or after their kernels are registered)."""

    def register(hook: PlanHook) -> PlanHook:
        for op in ops:
            _plans[op] = hook
        return hook

    return register


def index_file() -> Path:
    """The index of the built-in kernels: a line for each module: its name, its size in bytes, its operator types."""
    package = importlib.import_module(BUILT_IN)
    return Path(package.__path__[0], "index.tsv")


def size_of(module: str) -> str:
    """The size in bytes of a module of kernels as text: one that was edited since the index was made is not in it."""
    try:
        return str(index_file().with_name(f"{module}.py").stat().st_size)
    except OSError:
        return ""


def modules() -> list[str]:
    """Names of the modules of built-in kernels."""
    package = importlib.import_module(BUILT_IN)
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__))


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(f"{BUILT_IN}.{module}")


def _import_for(op: str) -> None:
    """Import what the index names for an operator type, and before the first time what it does not name at all."""
    global _homes
    if _homes is None:
        lines = (line.split("\t") for line in index_file().read_text(encoding="utf-8").splitlines())
        rows = {row[0]: row[2].split() for row in lines if len(row) == 3 and row[1] == size_of(row[0])}
        _import(m for m in modules() if m not in rows)
        homes: dict[str, list[str]] = {}
        for module, ops in rows.items():
            for each in ops:
                homes.setdefault(each, []).append(module)
        _homes = homes
    _import(_homes.get(op, ()))
    _ready.add(op)


def find(op: str) -> Kernel | None:
    """The kernel for an operator type, the user's first; None if there is none."""
    if op in _user:
        return _user[op]
    if op not in _ready:
        _import_for(op)
    entry = _builtin.get(op)
    if entry is not None and entry.plan is None and op in _plans:
        entry = _builtin[op] = replace(entry, plan=_plans[op])
    return entry


def is_builtin(op: str) -> bool:
    """Whether the kernel in use is ours."""
    return op not in _user


def registered() -> dict[str, Kernel]:
    """All kernels, built-in families loaded."""
    _import(modules())
    return {op: k for op in sorted({*_builtin, *_user}) if (k := find(op)) is not None}


def unregister(op: str) -> None:
    """Drop the user's kernel for an operator type; built-in kernels stay."""
    _user.pop(op, None)


@lru_cache(maxsize=4096)
def parameters(fn: Callable[..., Any]) -> tuple[list[str], set[str] | None]:
    """Positional parameter names and keyword names of a kernel; None for keywords if it takes any.

    ATen functions have no signature: they take their inputs only.
    """
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return [], set()
    positional: list[str] = []
    keywords: set[str] = set()
    for p in signature.parameters.values():
        if p.kind is p.VAR_KEYWORD:
            return positional, None
        if p.kind is p.KEYWORD_ONLY:
            keywords.add(p.name)
        elif p.kind is not p.VAR_POSITIONAL:
            positional.append(p.name)
    return positional, keywords


@lru_cache(maxsize=4096)
def unread(fn: Callable[..., Any]) -> frozenset[str]:
    """Parameters of a kernel that its code never reads; empty for functions without Python code."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if not inspect.iscode(code):
        return frozenset()
    loaded: set[str] = set()
    stack = [code]
    while stack:
        current = stack.pop()
        stack += [c for c in current.co_consts if inspect.iscode(c)]
        for step in dis.get_instructions(current):
            elsewhere = step.opname.startswith(("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_CONST"))
            if step.opname.startswith("LOAD_") and not elsewhere:
                loaded.update([step.argval] if isinstance(step.argval, str) else step.argval or ())
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return frozenset(named) - loaded


def never_read(entry: Kernel, ports: Sequence[str]) -> set[str]:
    """Ports and attributes of an operator that its kernel takes and never reads; ports go by position."""
    never, (positional, _) = unread(entry.run), parameters(entry.run)
    by_place = dict(zip(positional, ports))
    return {by_place.get(name, name.removeprefix("attr_").removesuffix("_")) for name in never}
