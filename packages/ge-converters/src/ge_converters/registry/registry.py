"""Which function converts which op: one object, two layers, support as data.

Built-in converters fill the lower layer; whatever else is registered goes into the upper one and wins. An op nobody
can convert is absent, never a stub. A built-in family is imported when a graph has one of its ops, by the index of ops
that is made from the families; importing this package costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

import torch

from ge_converters.base.errors import LoweringError, Refusal
from ge_converters.base.operators import AbsentOperator
from ge_converters.base.provenance import target_name
from ge_converters.base.support import Support
from ge_converters.base.torch_compat import is_composite, plain_eager
from ge_converters.registry.entry import Converter, Entry, Target, where_is
from ge_converters.registry.signatures import Fit, check_target, fitted, loaded_op, renamed
from ge_converters.registry.takes import Condition
from ge_graph import schema

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Converter)
# What a decorator registers a function for: one op, or several with the call forms of each.
Served: TypeAlias = "Target | str | Mapping[Any, Sequence[Support]]"

BUILT_IN: Final = "ge_converters.ops"  # found by name, as the packages of others are: this module is below it
INDEX: Final = "index.tsv"  # in its folder, written by ge_converters.report.index
PARTLY: Final = "?"  # behind the name of an op in the index: its converter takes some calls only
FAMILY_ENTRY_POINTS: Final = "ge_converters.families"
_OURS: Final = "ge_converters."
ABSENT: Final = "torch has no operator of that name"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A built-in converter that does not fit the torch at hand.

    Attributes:
        name: ``aten.cholesky.default``.
        reason: What does not fit.
        where: ``file:line`` of the converter.
    """

    name: str
    reason: str
    where: str

    @property
    def absent(self) -> bool:
        """Whether torch lacks the operator, so that no graph can have it."""
        return self.reason == ABSENT


class Registry:
    """Converters by target, user entries over built-in ones.

    Args:
        families: Names of modules that register the built-in converters.
        index: Families that are imported when one of their ops is looked up, with the names of these ops. All others
            are imported with the first lookup.
    """

    def __init__(
        self,
        families: Callable[[], Iterable[str]] = lambda: (),
        index: Callable[[], Mapping[str, Sequence[str]]] = dict,
    ) -> None:
        self._families = families
        self._index = index
        self._family_of: dict[str, str] | None = None  # by the index, once all other families are there
        self._imported: set[str] = set()
        self._loaded = False
        self._loading = False
        self._lock = threading.RLock()
        self._built_in: dict[Any, Entry] = {}
        self._user: dict[Any, Entry] = {}
        self._automatic: dict[Any, Entry] = {}
        self._by_function: dict[Converter, list[Entry]] = {}
        self._declared: dict[Converter, tuple[Support, ...]] = {}
        self._fits: dict[Converter, Fit] = {}  # the last one of each function
        self._awaited: dict[str, list[tuple[Converter, str, Fit | None, tuple[Support, ...], Condition | None]]] = {}
        self._promised_partly: set[str] = set()  # by the index: ops whose converter takes some calls only
        self._left_out: dict[str, LeftOut] = {}
        self._arrived: dict[str, torch._ops.OpOverload] = {}
        self._foreign: set[str] = set()  # rows of the fingerprint that our own modules did not register
        self.formulas: dict[str, Callable[..., Any]] = {}  # of decomposed ops, by name; ``Declined`` says why not
        self.revision = 0

    # -- registration ---------------------------------------------------------------------------------------------

    def register(
        self,
        target: Served,
        *,
        source: str = "",
        where: str = "",
        fixed: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
        takes: Condition | None = None,
    ) -> Callable[[F], F]:
        """Decorator that makes a function the converter of ``target``.

        Args:
            target: ``torch.ops.aten.add.Tensor``, or a Python function such as ``operator.add`` or ``math.floor``; the
                name of an overload if the library that defines it need not be loaded, checked when a graph has the op.
                Several of them with the call forms of each, if one function serves them all.
            source: Where the behaviour is taken from; required for built-in converters.
            where: ``file:line`` to report; taken from the function if empty.
            fixed: Values of parameters of the function that are no arguments of these ops.
            names: Parameters of the function by the schema's names of the arguments, where the two differ.
            takes: Which calls of the op are converted, see ``registry.takes``; the others are decomposed.

        Errors: LoweringError GE2002 (signature), GE2003 (target), GE2004 (a built-in registered twice), GE2005 (forms).
        """
        rows = target.items() if isinstance(target, Mapping) else [(target, ())]
        found = [(self._found(one), _checked_forms(forms)) for one, forms in rows]
        plain = not (isinstance(target, Mapping) or fixed or names)
        fit: Fit | None = None
        unfit: LoweringError | None = None
        try:
            fit = None if plain else Fit.of([one for one, _ in found], fixed or {}, names or {})
        except LoweringError as e:
            if not self._tolerant(sys._getframe(1).f_globals.get("__name__", "")):
                raise
            unfit = e

        def decorate(fn: F) -> F:
            if unfit is not None:
                for one, _ in found:
                    self.leave_out(one, unfit.what, where or where_is(fn))
                return fn
            applied_by = sys._getframe(1)
            here = fit if fit is None else fit.beside_those_of(self._fits.get(inspect.unwrap(fn)))
            if here is not None:
                self._fits[inspect.unwrap(fn)] = here
            for one, forms in found:
                if isinstance(one, AbsentOperator):
                    self.leave_out(one, ABSENT, where or where_is(fn))
                elif isinstance(one, str):
                    self._awaited.setdefault(one, []).append((fn, source, here, forms, takes))
                    self._note_origin(_row(one, where_is(fn)), fn, applied_by)
                    self.revision += not self._loading
                else:
                    self._add(one, fn, source, where or where_is(fn), here, forms, applied_by, takes)
            return fn

        return decorate

    def _found(self, target: Target | str) -> Target | str:
        """The target, or its name as long as the library that defines it is not loaded."""
        if isinstance(target, AbsentOperator):
            return target
        if not isinstance(target, str):
            check_target(target)
            return target
        # What a family names of another library is looked at when a graph has it: another version of that library
        # spoils one op only. Names of torch's own are those that an older torch may lack.
        torchs = target.startswith("aten.")
        ready = not self._loading or torchs
        op = loaded_op(target, strict=not self._loading) if ready else None
        return op or (AbsentOperator(target) if torchs else target)

    def _tolerant(self, module: str) -> bool:
        """Whether what does not fit the torch at hand is left out: while our own families load, not for others."""
        return self._loading and module.startswith(_OURS)

    def leave_out(self, target: Target | str, reason: str, where: str) -> None:
        """Note that a built-in converter does not fit the torch at hand; only its operator is missed.

        Args:
            target: The op, or the name of one that torch lacks.
            reason: What does not fit.
            where: ``file:line`` of the converter.
        """
        name = str(target) if isinstance(target, str) else target_name(target)
        self._left_out[name] = LeftOut(name, reason, where)
        self.revision += reason != ABSENT  # no table can hold an operator that is not there

    def _add(
        self,
        target: Target,
        fn: Converter,
        source: str,
        where: str,
        fit: Fit | None,
        forms: tuple[Support, ...],
        applied_by: FrameType,
        takes: Condition | None,
    ) -> None:
        module = getattr(fn, "__module__", "") or ""
        ours = module.startswith(_OURS)
        built_in = self._loading or ours
        written = inspect.unwrap(fn)
        try:
            converter, wants_meta = fitted(target, fn, where, renamed(target, fn) if ours and fit is None else fit)
        except LoweringError as e:
            if not ours or e.code != "GE2002":
                raise
            self.leave_out(target, e.what, where)
            return
        entry = Entry(
            target,
            converter,
            source,
            where,
            "built-in" if built_in else "user",
            wants_meta,
            (*forms, *self._declared.get(written, ())),
            forms,
            given=fn,
            takes=takes,
        )
        if entry.layer == "user" and is_composite(target):
            logger.warning(
                "%s is composite: torch traces the ops it consists of, so torch.compile never asks the converter "
                "at %s; register one for those ops (config.debug.fx_summary lists them)",
                entry.name,
                entry.where,
            )
        layer = self._built_in if built_in else self._user
        known = layer.get(target)
        if known is not None and built_in and (known.where != entry.where or inspect.unwrap(known.fn) is written):
            raise LoweringError(
                "GE2004",
                f"{entry.name} has two built-in converters",
                where=f"{entry.where} and {known.where}",
                next="delete one of them",
            )
        layer[target] = entry
        self._note_origin(_row(entry.name, entry.where), fn, applied_by)
        self._by_function.setdefault(written, []).append(entry)
        self.revision += not self._loading  # what the index promises is known before it is there

    def _note_origin(self, row: str, fn: Converter, applied_by: FrameType) -> None:
        """Whether other code registers this; both the function and who registers it have to be ours to be known."""
        modules = (applied_by.f_globals.get("__name__", ""), getattr(inspect.unwrap(fn), "__module__", "") or "")
        if not all(m.startswith(_OURS) for m in modules):
            self._foreign.add(row)

    def declare(self, supports: Sequence[Support]) -> Callable[[F], F]:
        """Decorator that declares the call forms a converter serves; above or below the registration."""
        declared = _checked_forms(supports)

        def decorate(fn: F) -> F:
            written = inspect.unwrap(fn)  # what is registered may be a function around the one that was written
            known = (*self._declared.get(written, ()), *declared)
            self._declared[written] = known
            for entry in self._by_function.get(written, ()):
                entry.supports = (*entry.forms, *known)
            return fn

        return decorate

    def unregister(self, target: Target) -> None:
        """Drop the user's converter of ``target``; a built-in one takes over again."""
        gone = self._user.pop(target, None)
        if gone is not None:
            name = target_name(target)
            if name in self._awaited:  # a library that is made anew does not bring it back
                self._awaited[name] = [row for row in self._awaited[name] if row[0] is not gone.given]
            self.revision += 1

    # -- lookup ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Import all built-in families: what lists converters needs them, a lookup only the family of its op."""
        if self._loaded:
            return
        with self._lock:
            if not self._loading:
                self._import(self._families())
                self._loaded = True

    def _import(self, families: Iterable[str]) -> None:
        with self._lock:  # another thread waits until all is there; this one may come back while a family loads
            if self._loading:
                return
            self._loading = True
            try:
                missing = (name for name in families if name not in self._imported)
                for name in missing:
                    with plain_eager():  # a table of decompositions asks while torch traces; a family makes tensors
                        _load_family(name)
                    self._imported.add(name)
            finally:
                self._loading = False

    def _import_for(self, target: Any) -> None:
        """Import the family that the index names for a target."""
        with self._lock:
            if self._loading:
                return
            family = self._families_by_op().get(target_name(target))
            if family is not None and family not in self._imported:
                self._import((family,))

    def _families_by_op(self) -> Mapping[str, str]:
        """The family of each op by the index; families that it lacks are imported first."""
        if self._family_of is None:
            index = self._index()
            found = {op.removesuffix(PARTLY): family for family, ops in index.items() for op in ops}
            self._promised_partly = {
                op.removesuffix(PARTLY) for ops in index.values() for op in ops if op.endswith(PARTLY)
            }
            self._import(name for name in self._families() if name not in index)
            taken = [found[e.name] for e in self._built_in.values() if e.name in found]
            self._import(taken)  # at once, for an op that one of the others registers too
            self._family_of = found
        return self._family_of

    def layer(self, target: Any) -> str:
        """The layer of the converter that ``find`` would return, without importing it; empty if there is none."""
        if not self._loaded and target not in self._user:
            name = target_name(target)
            with self._lock:
                promised = not self._loading and name in self._families_by_op()
            if promised and name not in self._awaited:
                return "built-in"
        entry = self.find(target)
        return "" if entry is None else entry.layer

    def partly(self) -> set[str]:
        """Names of ops whose converter takes some calls only, as far as that is known without importing it."""
        with self._lock:
            if not self._loaded and not self._loading:
                self._families_by_op()
            loaded = {**self._built_in, **self._user}.values()
            known = {e.name: e.takes is not None for e in loaded}
            return {n for n in self._promised_partly if known.get(n, True)} | {n for n, some in known.items() if some}

    def find(self, target: Any) -> Entry | None:
        """The converter of a target: the user's, else the built-in one, else one derived from two schemas."""
        if not self._loaded:
            self._import_for(target)
        entry = self._user.get(target) or self._built_in.get(target)
        if entry is not None or not isinstance(target, torch._ops.OpOverload):
            return entry
        name = str(target) if self._awaited else ""
        awaited = self._awaited.get(name)
        # a library may be made anew, and its operators with it
        if awaited and self._arrived.get(name) is not target:
            for fn, source, fit, forms, takes in awaited:
                self._add(target, fn, source, where_is(fn), fit, forms, sys._getframe(), takes)
            self._arrived[name] = target
            return self._user.get(target) or self._built_in.get(target)
        derived = self._derive(target)
        return derived if isinstance(derived, Entry) else None

    def left_out(self) -> list[LeftOut]:
        """Built-in converters that do not fit the torch at hand, sorted by name."""
        self.load()
        return sorted(self._left_out.values(), key=lambda row: row.name)

    def why_not_derived(self, target: Any) -> str:
        """Why no converter could be derived for a custom op; empty if that was never in question."""
        if not isinstance(target, torch._ops.OpOverload):
            return ""
        left_out = self._left_out.get(target_name(target))
        if left_out is not None:
            return f"the built-in converter does not fit torch {torch.__version__}: {left_out.reason}"
        derived = self._derive(target)
        return derived if isinstance(derived, str) else ""

    def _derive(self, target: torch._ops.OpOverload) -> Entry | str:
        key = (target, schema.release())  # releases may define the operator differently
        known = self._automatic.get(key)
        if known is not None:
            return known
        from ge_converters.registry.derive import derive  # it loads GE's operators, which few graphs need derived

        derived = derive(target)
        if isinstance(derived, Entry):  # a reason may go away: schemas can be added at any time
            self._automatic[key] = derived
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
        waiting = {name: rows for name, rows in self._awaited.items() if name not in self._arrived}
        yield from sorted(((name, rows[-1][0]) for name, rows in waiting.items()), key=lambda row: row[0])

    def foreign(self) -> list[tuple[str, tuple[Any, ...]]]:
        """Names and converters that others registered, the winning one of each name, sorted, for compile caches.

        Our own converters are known by our source files, and need not be loaded for it: most of what reading costs.

        Returns:
            With each name the function as it was registered, and how it fits the operators.
        """
        self._import(name for name in self._families() if not name.startswith(_OURS))
        names = {row.partition(" ")[0] for row in self._foreign}
        found: dict[str, tuple[str, Converter]] = {}
        for name in names & self._awaited.keys():  # the same row before and after the operator turns up
            rows = sorted(self._awaited[name], key=lambda row: not row[0].__module__.startswith(_OURS))
            found.update((name, (where_is(fn), fn)) for fn, *_ in rows[-1:])
        for entry in {**self._built_in, **self._user}.values():
            if entry.name in names:
                found.setdefault(entry.name, (entry.where, entry.given))
        others = [(n, fn) for n, (where, fn) in sorted(found.items()) if _row(n, where) in self._foreign]
        return [(n, (fn, self._fits.get(inspect.unwrap(fn)))) for n, fn in others]


def _checked_forms(supports: Any) -> tuple[Support, ...]:
    advice = "write declare_supported([Support(F32(2, 2), 2.0), ...])"
    if not isinstance(supports, (list, tuple)):
        what = f"call forms are a list of Support(...) entries, got {type(supports).__name__}"
        raise LoweringError("GE2005", what, next=advice)
    for position, support in enumerate(supports):
        if not isinstance(support, Support):
            what = f"call forms are Support(...) entries, entry {position} is {type(support).__name__}"
            raise LoweringError("GE2005", what, next=advice)
    return tuple(supports)


def _row(name: str, where: str) -> str:
    return f"{name} {where}"


def _load_family(name: str) -> None:
    try:
        importlib.import_module(name)
    except LoweringError:
        raise
    except Exception as e:
        raise LoweringError(
            "GE2010",
            f"the converter module {name} cannot be imported: {type(e).__name__}: {e}",
            next="repair or uninstall the package that provides it",
        ) from e


def _op_name(name: str) -> str:
    """``add`` of ``aten.add.Tensor`` and of ``operator.add``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name


# -- the registry everybody uses --------------------------------------------------------------------------------------


def modules_in(package: str) -> Iterator[str]:
    """Names of all modules of a package and of the packages in it; nothing but the packages above is imported."""
    spec = importlib.util.find_spec(package)
    for module in pkgutil.iter_modules(spec.submodule_search_locations if spec is not None else None):
        name = f"{package}.{module.name}"
        if module.ispkg:
            yield from modules_in(name)
        else:
            yield name


def _family_modules() -> Iterator[str]:
    yield from modules_in(BUILT_IN)
    for point in importlib.metadata.entry_points(group=FAMILY_ENTRY_POINTS):
        yield point.value


def _index() -> Mapping[str, Sequence[str]]:
    """Module to the ops that it converts; empty if the index was made with another version of torch.

    A module that was edited since, which its size tells, is left out: it loads with the first lookup.
    """
    spec = importlib.util.find_spec(BUILT_IN)
    folder = next(iter(spec.submodule_search_locations or ()), None) if spec is not None else None
    if folder is None:
        return {}
    version, *lines = Path(folder, INDEX).read_text(encoding="utf-8").splitlines()
    if version != index_version():
        return {}
    rows = (line.split("\t") for line in lines)
    fresh = (row for row in rows if len(row) == 3 and row[1] == size_of(folder, row[0]))
    return {f"{BUILT_IN}.{module}": ops.split() for module, _, ops in fresh}


def size_of(folder: str, module: str) -> str:
    """The size in bytes of the source file of a module below a folder, as text; empty if there is none."""
    try:
        return str(Path(folder, *module.split(".")).with_suffix(".py").stat().st_size)
    except OSError:
        return ""


def index_version() -> str:
    """The first line of the index: a converter that does not fit an op of another torch must not be promised."""
    return f"torch {'.'.join(torch.__version__.split('.')[:2])}"


REGISTRY: Final = Registry(_family_modules, _index)


def register_fx_node_ge_converter(
    target: Served,
    *,
    source: str = "",
    fixed: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    takes: Condition | None = None,
) -> Callable[[F], F]:
    """Make a function the converter of an op, or of several.

    The converter takes the parameters of the op's schema by name, the keyword-only ones after ``*``, and
    ``meta_outputs``: a ``TensorSpec``, or a list of them for an op with several results. It emits ``ge.*`` ops and
    returns GE tensors. A later registration overrides an earlier one.

    A function that serves several ops has a parameter for each argument that one of them has, with a default where
    another lacks it; those of a decorator count for the ones above it.

    Args:
        target: ``torch.ops.aten.add.Tensor``, or a Python function such as ``operator.add`` or ``math.floor``; or
            ``{op: call forms}``, the forms being those of ``declare_supported`` for this op alone.
        source: Where the behaviour is taken from.
        fixed: Values of parameters that are no arguments of these ops: ``{"rounding_mode": "floor"}``.
        names: Parameters by the schema's names of arguments, where the two differ: ``{"min_val": "min"}``.
        takes: Which calls are converted: a function of the call's arguments, such as ``Takes("GLU")``, which asks the
            schema of a GE operator for its element types. For all other calls torch's decomposition is used.

    Errors: LoweringError GE2002 if the signature differs from the schema, GE2003 if the target is not an overload,
    GE2005 if a form is not a ``Support``.

    Example:
        >>> import torch
        >>> from ge_graph import ops as ge
        >>> @register_fx_node_ge_converter(torch.ops.mine.twice.default)  # doctest: +SKIP
        ... def twice(x, *, meta_outputs):
        ...     return ge.Add(x, x)
    """
    return REGISTRY.register(target, source=source, fixed=fixed, names=names, takes=takes)


def declare_supported(supports: Sequence[Support]) -> Callable[[F], F]:
    """Declare the call forms that a converter serves; every one becomes a test.

    Stacks with ``register_fx_node_ge_converter`` in either order.

    Args:
        supports: ``Support(F32(2, 2), 2.0, alpha=2)`` and the like.

    Errors: LoweringError GE2005 if an entry is not a ``Support``.
    """
    return REGISTRY.declare(supports)


def define(
    target: Any,
    op: str,
    fn: Callable[..., Any],
    supports: list[Support],
    doc: str = "",
    takes: Condition | None = None,
) -> None:
    """Register a converter that a pattern made: name and docstring come from the aten schema.

    Args:
        target: aten overload.
        op: GE operators that it emits, for the source note.
        fn: The converter, with the parameters of the schema.
        supports: Declared call forms.
        doc: What the docstring says after the schema.
        takes: As of ``register_fx_node_ge_converter``.
    """
    if isinstance(target, AbsentOperator):
        REGISTRY.leave_out(target, ABSENT, where_is(fn))
        return
    name = str(target).removeprefix("aten.").removesuffix(".default").replace(".", "_").lower()
    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"{target._schema}\n\n{doc}"
    declare_supported(supports)(fn)
    register_fx_node_ge_converter(target, source=f"native_functions.yaml: {target}; GE {op}", takes=takes)(fn)


def define_formula(name: str, formula: Callable[..., Any]) -> None:
    """Note what an op is decomposed into, so that a call that is not decomposed can be asked why.

    Args:
        name: ``npu.npu_swiglu_quant.default``; the op may be unknown yet.
        formula: Takes the op's arguments; raises ``Declined`` for those that it does not compute.
    """
    REGISTRY.formulas[name] = formula


def define_refusal(target: Target | str, reason: str, *, module: str, source: str, title: str = "") -> None:
    """Register a converter that refuses every form of an op; ``Entry.refuses`` gives the reason.

    Args:
        target: As of ``register_fx_node_ge_converter``.
        reason: What is missing, and where to go instead.
        module: Where the row stands, for the pages that list converters by module.
        source: As of ``register_fx_node_ge_converter``.
        title: First line of the docstring; the name of the target if empty.
    """

    def convert(*args: Any, **kwargs: Any) -> NoReturn:
        raise Refusal(reason)

    convert.__annotations__["return"] = NoReturn
    convert.__module__ = module
    convert.__doc__ = f"{title or target_name(target)}\n\nRefused with its reason."
    register_fx_node_ge_converter(target, source=source)(convert)
