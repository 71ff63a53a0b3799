"""What ``tair ops`` finds: converters by their coverage, GE operators by their schema."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tair_debug.terminal import table

if TYPE_CHECKING:
    from rich.table import Table


def matches(name: str, pattern: str) -> bool:
    """Whether a name contains the pattern, or fits it if it has wildcards; upper and lower case are the same."""
    low, wanted = name.lower(), pattern.lower()
    return fnmatch.fnmatchcase(low, wanted) if any(c in wanted for c in "*?[") else wanted in low


def converters(pattern: str, state: str | None = None, core: bool = False) -> list[dict[str, Any]]:
    """Coverage rows: how each op is served, for which element types, by whom, or why not."""
    from ge_converters.registry import REGISTRY
    from ge_converters.report import coverage

    sources = {e.name: e.where for e in REGISTRY.entries()}
    return [
        {**asdict(row), "dtypes": list(row.dtypes), "converter": sources.get(row.name, "")}
        for row in coverage.rows()
        if matches(row.name, pattern) and (not core or row.core) and (state is None or row.state == state)
    ]


def ge_operators(pattern: str) -> list[dict[str, Any]]:
    from ge_graph import schema

    rows = []
    for name in schema.names():
        if matches(name, pattern):
            row = schema.get(name)
            assert row is not None
            rows.append(
                {
                    "name": name,
                    "inputs": [_port(p) for p in row.inputs],
                    "outputs": [_port(p) for p in row.outputs],
                    "attributes": [_attribute(a) for a in row.attrs],
                }
            )
    return rows


def _port(port: Any) -> str:
    mark = {"optional": "?", "dynamic": "*"}.get(port.kind, "")
    return f"{port.name}{mark}: {' '.join(d.short for d in port.dtypes)}"


def _attribute(attr: Any) -> str:
    return f"{attr.name}: {attr.kind.name}" + ("" if attr.default is None else f" = {attr.default.value!r}")


def to_table(rows: Sequence[dict[str, Any]]) -> Table:
    keys = [k for k in rows[0] if k not in ("core", "converter")]
    return table(keys, [[_cell(row[k]) for k in keys] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value)) if any(":" in str(v) for v in value) else " ".join(map(str, value))
    return str(value)
