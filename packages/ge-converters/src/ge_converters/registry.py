"""Which function converts which op: one object, two layers, support as data.

Built-in converters fill the lower layer; whatever else is registered goes into the upper one and wins. An op nobody
can convert is absent, never a stub. Built-in families load on first use, so importing this package costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import logging
import pkgutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import torch

from ge_converters.errors import LoweringError, Refusal
from ge_converters.support import Support

logger = logging.getLogger(__name__)

Target: TypeAlias = "torch._ops.OpOverload | Callable[..., Any]"
Converter: TypeAlias = "Callable[..., Any]"
F = TypeVar("F", bound=Converter)

# Parameters that a converter may have beside those of its op.
_EXTRA_PARAMETERS: Final = frozenset({"meta_outputs", "out"})
FAMILY_ENTRY_POINTS: Final = "ge_converters.families"


def target_name(target: Any) -> str:
    """``aten.add.Tensor`` for an overload, ``operator.add`` or ``math.floor`` for a function."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", None) or str(target)
    return f"{module.lstrip('_')}.{name}" if module else name


@dataclass(slots=True, eq=False)
class Entry:
    """One registered converter.

    Attributes:
        target: What it converts: an ``OpOverload`` or a Python function found in FX graphs.
        fn: The converter.
        source: Where its behaviour is taken from.
        where: ``file.py:41`` of the converter.
        layer: ``"built-in"``, ``"user"`` or ``"automatic"``.
        supports: Declared call forms.
        wants_meta: Whether the converter takes ``meta_outputs``.
    """

    target: Target
    fn: Converter
    source: str
    where: str
    layer: str
    wants_meta: bool
    supports: tuple[Support, ...] = ()
    plan: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name of the target."""
        return target_name(self.target)

    @property
    def refuses(self) -> str:
        """Why every form of the op is refused: set for converters that never return, as their annotation says."""
        if getattr(self.fn, "__annotations__", {}).get("return") not in (NoReturn, "NoReturn"):
            return ""
        names = [n for n, p in inspect.signature(self.fn).parameters.items() if p.default is inspect.Parameter.empty]
        try:
            self.fn(**dict.fromkeys(names))
        except Refusal as refusal:
            return refusal.reason
        return "always refused"


@dataclass(frozen=True, slots=True)
class Found:
    """The node can be converted."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Refused:
    """A converter exists and says no to this call form."""

    reason: str


@dataclass(frozen=True, slots=True)
class Absent:
    """Nobody converts this op; ``near`` names ops that are converted and look alike."""

    near: tuple[str, ...] = ()


Answer: TypeAlias = "Found | Refused | Absent"


class Registry:
    """Converters by target, user entries over built-in ones.

    Args:
        families: Names of modules that register the built-in converters, imported on first use.
    """

    def __init__(self, families: Callable[[], Iterable[str]] = lambda: ()) -> None:
        self._families = families
        self._loaded = False
        self._loading = False
        self._lock = threading.RLock()
        self._built_in: dict[Any, Entry] = {}
        self._user: dict[Any, Entry] = {}
        self._automatic: dict[Any, Entry] = {}
        self._by_function: dict[Converter, list[Entry]] = {}
        self._declared: dict[Converter, tuple[Support, ...]] = {}
        self._awaited: dict[str, list[tuple[Converter, str]]] = {}
        self.revision = 0

    # -- registration ---------------------------------------------------------------------------------------------

    def register(self, target: Target | str, *, source: str = "", where: str = "") -> Callable[[F], F]:
        """Decorator that makes a function the converter of ``target``.

        Args:
            target: ``torch.ops.aten.add.Tensor``, or a Python function such as ``operator.add`` or ``math.floor``; the
                name of an overload if the library that defines it need not be loaded, checked when a graph has the op.
            source: Where the behaviour is taken from; required for built-in converters.
            where: ``file:line`` to report; taken from the function if empty.

        Errors: LoweringError GE2002 (signature), GE2003 (target), GE2004 (a built-in registered twice).
        """
        if isinstance(target, str):
            # What a family names is looked at when a graph has it: another version of that library spoils one op only.
            found = None if self._loading else _loaded_op(target)
            return self._await(target, source) if found is None else self.register(found, source=source, where=where)
        _check_target(target)

        def decorate(fn: F) -> F:
            entry = self._entry(target, fn, source, where or where_is(fn))
            if entry.layer == "user" and _is_composite(target):
                logger.warning(
                    "%s is composite: torch traces the ops it consists of, so torch.compile never asks the converter "
                    "at %s; register one for those ops (config.debug.fx_summary lists them)", entry.name, entry.where,
                )  # fmt: skip
            layer = self._built_in if entry.layer == "built-in" else self._user
            known = layer.get(target)
            if known is not None and entry.layer == "built-in" and known.where != entry.where:
                raise LoweringError(
                    "GE2004", f"{entry.name} has two built-in converters", where=f"{entry.where} and {known.where}",
                    next="delete one of them",
                )  # fmt: skip
            layer[target] = entry
            self._by_function.setdefault(fn, []).append(entry)
            self.revision += 1
            return fn

        return decorate

    def _await(self, name: str, source: str) -> Callable[[F], F]:
        def decorate(fn: F) -> F:
            self._awaited.setdefault(name, []).append((fn, source))
            self.revision += 1
            return fn

        return decorate

    def _entry(self, target: Target, fn: Converter, source: str, where: str) -> Entry:
        wants_meta = check_signature(target, fn, where)
        built_in = self._loading or (getattr(fn, "__module__", "") or "").startswith("ge_converters.")
        return Entry(
            target, fn, source, where, "built-in" if built_in else "user", wants_meta, self._declared.get(fn, ())
        )

    def declare(self, supports: Sequence[Support]) -> Callable[[F], F]:
        """Decorator that declares the call forms a converter serves; above or below the registration."""
        if not isinstance(supports, (list, tuple)):
            raise LoweringError(
                "GE2005", f"declare_supported takes a list of Support(...) entries, got {type(supports).__name__}",
                next="write declare_supported([Support(F32(2, 2), 2.0), ...])",
            )  # fmt: skip
        for position, support in enumerate(supports):
            if not isinstance(support, Support):
                raise LoweringError(
                    "GE2005",
                    f"declare_supported takes Support(...) entries, entry {position} is {type(support).__name__}",
                    next="write declare_supported([Support(F32(2, 2), 2.0), ...])",
                )

        def decorate(fn: F) -> F:
            known = (*self._declared.get(fn, ()), *supports)
            self._declared[fn] = known
            for entry in self._by_function.get(fn, ()):
                entry.supports = known
            return fn

        return decorate

    def unregister(self, target: Target) -> None:
        """Drop the user's converter of ``target``; a built-in one takes over again."""
        if self._user.pop(target, None) is not None:
            self.revision += 1

    # -- lookup ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Import the built-in families; done by every lookup, so there is seldom a need to call it."""
        if self._loaded:
            return
        with self._lock:  # another thread waits until all is there; this one may come back while a family loads
            if self._loaded or self._loading:
                return
            self._loading = True
            try:
                for name in self._families():
                    _load_family(name)
                self._loaded = True
            finally:
                self._loading = False

    def find(self, target: Any) -> Entry | None:
        """The converter of a target: the user's, else the built-in one, else one derived from two schemas."""
        if not self._loaded:
            self.load()
        found = self._user.get(target) or self._built_in.get(target)
        if found is not None or not isinstance(target, torch._ops.OpOverload):
            return found
        awaited = self._awaited.get(str(target)) if self._awaited else None
        if awaited is not None:
            for fn, source in awaited:
                self.register(target, source=source)(fn)
            del self._awaited[str(target)]
            return self._user.get(target) or self._built_in[target]
        derived = self._derive(target)
        return derived if isinstance(derived, Entry) else None

    def why_not_derived(self, target: Any) -> str:
        """Why no converter could be derived for a custom op; empty if that was never in question."""
        if not isinstance(target, torch._ops.OpOverload):
            return ""
        derived = self._derive(target)
        return derived if isinstance(derived, str) else ""

    def _derive(self, target: torch._ops.OpOverload) -> Entry | str:
        known = self._automatic.get(target)
        if known is not None:
            return known
        from ge_converters import autogen

        derived = autogen.derive(target)
        if isinstance(derived, Entry):  # a reason may go away: schemas can be added at any time
            self._automatic[target] = derived
        return derived

    def near(self, target: Any, limit: int = 3) -> tuple[str, ...]:
        """Names of convertible ops that look like ``target``: its other overloads first, then similar names."""
        import difflib

        self.load()
        by_op: dict[str, list[str]] = {}
        for e in self.entries():
            by_op.setdefault(_op_name(e.name), []).append(e.name)
        wanted = _op_name(target_name(target))
        alike = difflib.get_close_matches(wanted, [n for n in by_op if n != wanted], n=limit, cutoff=0.75)
        return tuple([*by_op.get(wanted, ()), *(n for op in alike for n in by_op[op])][:limit])

    def entries(self) -> Iterator[Entry]:
        """All registered converters, the winning one of each target, sorted by name."""
        self.load()
        merged = {**self._built_in, **self._user}
        yield from sorted(merged.values(), key=lambda e: e.name)

    def awaited(self) -> Iterator[tuple[str, Converter]]:
        """Names that are registered as text and have not turned up yet, with the converter that wins; sorted."""
        self.load()
        yield from sorted(((name, rows[-1][0]) for name, rows in self._awaited.items()), key=lambda row: row[0])

    def fingerprint(self) -> str:
        """A digest of what is registered by whom, for compile caches."""
        import hashlib

        rows = [f"{e.name} {e.layer} {e.where}" for e in self.entries()]
        rows += [f"{name} {where_is(fn)}" for name, fn in self.awaited()]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]

    def explain(self, node: torch.fx.Node) -> Answer:
        """Whether a node can be converted and, if not, why.

        The answer is not a guess: the converter runs on a scratch graph with this node's own metas.
        """
        from ge_converters.lowering import explain

        return explain(node, self)


def _load_family(name: str) -> None:
    try:
        importlib.import_module(name)
    except LoweringError:
        raise
    except Exception as e:
        raise LoweringError(
            "GE2010", f"the converter module {name} cannot be imported: {type(e).__name__}: {e}",
            next="repair or uninstall the package that provides it",
        ) from e  # fmt: skip


def _op_name(name: str) -> str:
    """``add`` of ``aten.add.Tensor`` and of ``operator.add``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


# -- checks ---------------------------------------------------------------------------------------------------------


def where_is(fn: Converter) -> str:
    """``file.py:41`` of a function; its name if it has no file."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(fn)


def raised_at(fn: Converter, where: str, error: BaseException) -> str:
    """``file.py:44`` of the converter's own line that led to an exception; where the converter starts if unknown."""
    file = getattr(getattr(inspect.unwrap(fn), "__code__", None), "co_filename", None)
    found, frame = where, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            found = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


def _loaded_op(name: str) -> torch._ops.OpOverload | None:
    """The overload of that name, None if the library that defines it is not loaded.

    Errors: LoweringError GE2003 for a text that names no overload, or none that torch's own library has.
    """
    parts = name.removeprefix("torch.ops.").split(".")
    if len(parts) != 3 or not all(p.isidentifier() for p in parts):
        raise LoweringError(
            "GE2003", f"'{name}' is no name of an overload", next="write namespace.operator.overload: aten.add.Tensor"
        )
    namespace, operator, overload = parts
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    found = getattr(packet, overload, None)
    if found is None and namespace in ("aten", "prims"):
        near = ", ".join(f"{namespace}.{operator}.{o}" for o in packet.overloads()) if packet is not None else ""
        raise LoweringError("GE2003", f"torch has no operator {name}", next=f"it has {near}" if near else "")
    return found if isinstance(found, torch._ops.OpOverload) else None


def _is_composite(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), "CompositeImplicitAutograd"
    )


def _check_target(target: Any) -> None:
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
        found = [getattr(target, o) for o in target.overloads()]
        found = [o for o in found if "Tensor" in str(o._schema) and not any(a.is_out for a in o._schema.arguments)]
        overloads = ", ".join(f"torch.ops.{o}" for o in found)
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
    names = {_python_name(a.name) for a in arguments}
    problems = []
    for a in arguments:
        p = parameters.get(_python_name(a.name))
        if p is None:
            if not (any_keyword or (any_position and not a.kwarg_only)):
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
    positional = [_python_name(a.name) for a in arguments if not a.kwarg_only]
    own = [n for n, p in parameters.items() if n in positional and p.kind is not kind.KEYWORD_ONLY]
    if not problems and own != [n for n in positional if n in own]:
        problems.append(f"parameters stand in the order {', '.join(own)}, the schema has {', '.join(positional)}")
    return problems


def _python_name(name: str) -> str:
    import keyword

    return f"{name}_" if keyword.iskeyword(name) else name


def expected_signature(target: torch._ops.OpOverload, name: str = "converter") -> str:
    """``def add(self, other, *, alpha=1, meta_outputs)``: what a converter of this op has to look like."""
    parts, star = [], False
    for a in target._schema.arguments:
        if a.kwarg_only and not star:
            parts.append("*")
            star = True
        default = f"={a.default_value!r}" if a.has_default_value() else ""
        parts.append(_python_name(a.name) + default)
    if not star:
        parts.append("*")
    return f"def {name}({', '.join(parts)}, meta_outputs)"


# -- the registry everybody uses --------------------------------------------------------------------------------------


def _family_modules() -> Iterator[str]:
    from ge_converters import families

    yield "ge_converters.tables"
    for module in sorted(m.name for m in pkgutil.iter_modules(families.__path__)):
        yield f"{families.__name__}.{module}"
    for point in importlib.metadata.entry_points(group=FAMILY_ENTRY_POINTS):
        yield point.value


REGISTRY: Final = Registry(_family_modules)


def register_fx_node_ge_converter(target: Target | str, *, source: str = "") -> Callable[[F], F]:
    """Make a function the converter of an op.

    The converter takes the parameters of the op's schema by name, the keyword-only ones behind ``*``, and
    ``meta_outputs``: a ``TensorSpec``, or a list of them for an op with several results. It emits ``ge.*`` ops and
    returns GE tensors. A later registration overrides an earlier one.

    Args:
        target: ``torch.ops.aten.add.Tensor``, or a Python function such as ``operator.add`` or ``math.floor``.
        source: Where the behaviour is taken from.

    Errors: LoweringError GE2002 if the signature differs from the schema, GE2003 if the target is no overload.

    Example:
        >>> import torch
        >>> from ge_graph import ops as ge
        >>> @register_fx_node_ge_converter(torch.ops.mine.twice.default)  # doctest: +SKIP
        ... def twice(x, *, meta_outputs):
        ...     return ge.Add(x, x)
    """
    return REGISTRY.register(target, source=source)


def declare_supported(supports: Sequence[Support]) -> Callable[[F], F]:
    """Declare the call forms that a converter serves; every one becomes a test.

    Stacks with ``register_fx_node_ge_converter`` in either order.

    Args:
        supports: ``Support(F32(2, 2), 2.0, alpha=2)`` and the like.

    Errors: LoweringError GE2005 if an entry is not a ``Support``.
    """
    return REGISTRY.declare(supports)
