"""Names that are not there: an error that says where to go instead."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from ge_graph.errors import GeError

INSTEAD: Final = {
    "torchair.npu_fx_compiler._NpuGraphConverter": "nothing needs repair here: converters get lists with symbolic "
    "numbers as they are",
    "torchair._torchair": "the extension module of torch_npu; `tair doctor` shows which engines are there",
    "torchair.core._torchair": "the extension module of torch_npu; `tair doctor` shows which engines are there",
    "torchair._exception": "our errors are ge_graph.errors.GeError and its subclasses",
}
"""Names of the torchair that torch_npu carries which have no counterpart, and what to use."""


class MissingName(GeError, AttributeError):
    """A module has no such name (GE1066); an AttributeError, so that ``hasattr`` works."""


def missing(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have.

    Args:
        known: The names that it has.
    """
    if name.startswith("__"):
        return AttributeError(name)  # Python itself asks for these
    advice = INSTEAD.get(f"{module}.{name}")
    near = difflib.get_close_matches(name, list(known), 3, 0.6)
    if advice is None and near:
        advice = f"did you mean {' or '.join(f'{module}.{n}' for n in near)}?"
    return MissingName(
        "GE1066",
        f"module {module!r} has no attribute {name!r}",
        next=advice or "docs/compatibility.md lists the names that are there, and what stands for the others",
    )


def door(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: its submodules load when they are first named, other names are GE1066.

    Args:
        module: Its import path. Programs reach ``torchair.core.utils.logger`` after ``import torchair`` alone.
    """

    def find(name: str) -> Any:
        loaded = vars(sys.modules[module])
        if name.startswith("__") or "__path__" not in loaded or not importlib.util.find_spec(f"{module}.{name}"):
            raise missing(module, name, [n for n in loaded if not n.startswith("_")])
        return importlib.import_module(f"{module}.{name}")

    return find
