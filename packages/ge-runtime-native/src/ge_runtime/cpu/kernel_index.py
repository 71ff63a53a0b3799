"""``kernels/index.tsv``: which module is imported for which operator type, so that a graph loads what it needs.

``python -m ge_runtime.cpu.kernel_index`` writes it; with ``--check`` it fails if the file is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from ge_graph.files import generate
from ge_runtime.cpu import registry


def registered() -> dict[str, set[str]]:
    """Module of ``kernels`` to the operator types that its import brings a kernel or a plan for.

    To be asked in a new process.

    Errors: EngineError GE4008 for an operator type that two of them register.
    """
    found: dict[str, set[str]] = {f"{registry.BUILT_IN}.{module}": set() for module in registry.modules()}
    enter, plan = registry._enter, registry.plan

    def entered(layer: dict[str, registry.Kernel], entry: registry.Kernel, override: bool) -> None:
        found.setdefault(_being_imported(), set()).add(entry.op)
        enter(layer, entry, override)

    def planned(*ops: str) -> Callable[[registry.PlanHook], registry.PlanHook]:
        found.setdefault(_being_imported(), set()).update(ops)
        return plan(*ops)

    with mock.patch.multiple(registry, _enter=entered, plan=planned):
        registry.registered()
    prefix = f"{registry.BUILT_IN}."
    return {module.removeprefix(prefix): ops for module, ops in found.items() if module.startswith(prefix)}


def _being_imported() -> str:
    """The module whose code runs, whatever functions it has called."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def text() -> str:
    """The file: a line for each module: its name, its size in bytes, its operator types."""
    rows = sorted(registered().items())
    return "".join(f"{module}\t{registry.size_of(module)}\t{' '.join(sorted(ops))}\n" for module, ops in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file, or with ``--check`` say whether it is up to date."""
    return generate("ge_runtime.cpu.kernel_index", registry.index_file(), lambda file: {file: text()}, argv)


if __name__ == "__main__":
    raise SystemExit(main())
