"""Import paths that programs know from the torchair inside torch_npu: rows of ``data/doors.tsv``, found by one finder.

A module of the table has no source. It is made when it is imported, from the names that its rows hand on; type checkers
and editors read the stub beside, which ``torchair.compat.stubs`` writes from the same rows.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

TABLE: Final = Path(__file__).with_name("data") / "doors.tsv"
ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TOPS: Final = ("torchair", "npugraph_ex")
ALL: Final = "*"
"""Name of a row that hands on every public name of its home."""
CALL: Final = "()"
"""Name of a row whose home is called when the module is imported."""


class Door(NamedTuple):
    """A name of a module and where it comes from.

    Attributes:
        name: As programs write it, or ``ALL`` or ``CALL``.
        home: Module of the object.
        attribute: Its name there.
    """

    name: str
    home: str
    attribute: str


@functools.lru_cache(maxsize=1)
def table() -> dict[str, tuple[Door, ...]]:
    """The rows of each module, by import path; also of each package on the way that has no source."""
    found: dict[str, list[Door]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        module, name, home = line.split("\t")
        package = module
        while package and package not in found and (package == module or not has_source(package)):
            found[package] = []
            package = package.rpartition(".")[0]
        if name != "-":
            where, _, attribute = home.partition(":")
            found[module].append(Door(name, where, attribute or name))
    return {module: tuple(rows) for module, rows in found.items()}


def has_source(package: str) -> bool:
    """Whether a package of the table is a file that asks for its rows itself, as ``torchair`` does."""
    return os.path.isfile(os.path.join(ROOT, *package.split("."), "__init__.py"))


def children(module: str) -> list[str]:
    """Names of the modules of the table inside a package, sorted."""
    return sorted(m.rpartition(".")[2] for m in table() if m.rpartition(".")[0] == module)


def names(package: str, own: Iterable[str]) -> list[str]:
    """``dir`` of a package: its own names, what its rows hand on, and its modules in the table; sorted."""
    rows = table()[package]
    known = {*own, *(row.name for row in rows if row.name.isidentifier()), *children(package)}
    for row in rows:
        if row.name == ALL:
            known |= {n for n in dir(importlib.import_module(row.home)) if not n.startswith("_")}
    return sorted(known)


def public(package: str, modules: Iterable[str]) -> list[str]:
    """``__all__`` of a package, with further modules of it that are no rows."""
    return [n for n in names(package, modules) if not n.startswith("_")]


def load(package: str, name: str, modules: Sequence[str]) -> Any:
    """What a package has under a name, loaded at its first use.

    Args:
        package: Import path.
        name: A row, or a module of the table, or one of ``modules``.
        modules: Further modules of the package.

    Raises:
        AttributeError: GE1066, with what to use instead.
    """
    rows = {row.name: row for row in table()[package]}
    if name in rows:
        return _value(rows[name])
    if name in modules or f"{package}.{name}" in table():
        return importlib.import_module(f"{package}.{name}")
    if ALL in rows and not name.startswith("__"):
        return getattr(importlib.import_module(rows[ALL].home), name)
    from torchair.names import missing  # with the errors of ge_graph

    raise missing(package, name, public(package, modules))


def _value(row: Door) -> Any:
    return getattr(importlib.import_module(row.home), row.attribute)


class _Finder:
    """Finds the modules of the table inside this torchair, and makes them. It stands first on ``sys.meta_path``: to
    Python a folder that holds stubs alone is a namespace package."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The spec of a module of the table; None for all others, and inside a torchair of another place."""
        package, _, last = name.rpartition(".")
        if not package.startswith(_TOPS) or name not in table() or has_source(name):
            return None
        if path and list(path)[0] != os.path.join(ROOT, *package.split(".")):
            return None
        return ModuleSpec(name, self, is_package=bool(children(name)))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python makes any module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give a new module its names."""
        name, own = module.__name__, vars(module)
        module.__doc__ = "Import path of existing programs; torchair/data/doors.tsv says where each name comes from."

        def find(wanted: str) -> Any:
            return public(name, ()) if wanted == "__all__" else load(name, wanted, ())

        own.update((row.name, _value(row)) for row in table()[name] if row.name.isidentifier())
        own.update(__getattr__=find, __dir__=lambda: names(name, (n for n in own if not n.startswith("__"))))
        for row in table()[name]:
            if row.name == CALL:
                _value(row)()


def install() -> None:
    """Put the finder in its place; one a process, however often the package is loaded anew."""
    sys.meta_path[:] = [_Finder(), *(f for f in sys.meta_path if type(f).__module__ != __name__)]
