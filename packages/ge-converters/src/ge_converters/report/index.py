"""``ops/index.tsv``: which module is imported for which op, so that a graph loads the converters that it needs.

``python -m ge_converters.report.index`` writes it; with ``--check`` it fails if the file is out of date.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from ge_converters.base.provenance import target_name
from ge_converters.registry import REGISTRY
from ge_converters.registry.registry import BUILT_IN, INDEX, PARTLY, index_version, modules_in, size_of
from ge_graph.files import generate


def registered() -> dict[str, set[str]]:
    """Module below ``ge_converters.ops`` to the names of what its import registers. To be asked in a new process.

    A name whose converter takes some calls only ends in ``?``.

    Errors: LoweringError GE2004 for an op that two of them register.
    """
    found: dict[str, set[str]] = {module: set() for module in modules_in(BUILT_IN)}
    register = REGISTRY.register

    def noted(target: Any, **more: Any) -> Any:
        mark = "" if more.get("takes") is None else PARTLY
        names = {
            (one if isinstance(one, str) else target_name(one)).removeprefix("torch.ops.") + mark
            for one in (target if isinstance(target, Mapping) else (target,))
        }
        found.setdefault(_being_imported(), set()).update(names)
        return register(target, **more)

    with mock.patch.object(REGISTRY, "register", noted):
        REGISTRY.load()
    prefix = f"{BUILT_IN}."
    return {module.removeprefix(prefix): ops for module, ops in found.items() if module.startswith(prefix)}


def _being_imported() -> str:
    """The module whose code runs, whatever functions it has called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def text(folder: str) -> str:
    """The file: the version of torch, then a line for each module: its name, its size in bytes, its ops."""
    rows = [
        f"{module}\t{size_of(folder, module)}\t{' '.join(sorted(ops))}" for module, ops in sorted(registered().items())
    ]
    return "\n".join((index_version(), *rows)) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or with ``--check`` say whether it is up to date."""
    spec = importlib.util.find_spec(BUILT_IN)
    folder = (spec.submodule_search_locations or [""])[0] if spec is not None else ""
    return generate("ge_converters.report.index", Path(folder, INDEX), lambda file: {file: text(folder)}, argv)


if __name__ == "__main__":
    raise SystemExit(main())
