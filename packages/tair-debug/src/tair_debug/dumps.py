"""Two recorded dumps against each other: trees of ``debug.data_dump``, of ``dump_config``, or npy from a device.

Files are matched by graph, iteration, operator and output. Operators have the same name on both sides, or come from the
same FX node: a tree of ``dump_config`` knows where its operators come from through its ``provenance.json``; for a tree
recorded on a device, a ``txt`` graph dump says it.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ge_graph import escape, npy
from ge_graph.errors import ConfigError
from ge_graph.files import read_plain
from tair_debug.compare import Comparison, ComparisonRow, save_pair
from tair_debug.ge_dump import PROVENANCE, clean
from tair_debug.measure import DEFAULTS, Measure, Tolerance, measure

_FX: Final = re.compile(r"(?P<node>.+?)-(?P<op>.+)\.(?P<what>INPUT|OUTPUT)\.(?P<index>\d+)\.(?P<time>\d{20})\.npy")
_GE: Final = re.compile(
    r"(?P<op>[^.]+)\.(?P<node>[^.]+)\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d+)\.(?P<what>input|output)\."
    r"(?P<index>\d+)\.npy"
)
_MOST_PROVENANCE: Final = 256 << 20
_ORIGIN: Final = ("fx", "target", "source", "code", "inside")
Origins = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class DumpedOutput:
    """One output in a recorded tree.

    Attributes:
        graph: Which graph of the process, from 0, in the order of their numbers.
        step: Iteration as its folder says.
        op: Its type or target.
        time: When it was written.
        fx: FX node it comes from, empty if nobody knows.
        target: Target of that node.
        source: The user's line.
        code: Text of that line.
        inside: For an operator in a graph of a node: ``NODE/SLOT``.
    """

    path: Path
    graph: int
    step: str
    node: str
    op: str
    index: int
    time: str
    fx: str
    target: str = ""
    source: str = ""
    code: str = ""
    inside: str = ""


def read_tree(root: str | os.PathLike[str], graph: str | os.PathLike[str] | None = None) -> list[DumpedOutput]:
    """The outputs in a recorded tree, in the order they were written.

    Args:
        graph: ``txt`` graph dump that says where the operators of a device's tree come from.

    Errors: ConfigError GE1045 if there is nothing to compare in the folder.
    """
    base = Path(root)
    files = sorted(base.rglob("*.npy")) if base.is_dir() else []
    origins = _origins_of(graph) if graph is not None else {}
    beside: dict[Path, Origins] = {}
    numbers: dict[str, int] = {}
    outputs = []
    for path in files:
        match = _FX.fullmatch(path.name) or _GE.fullmatch(path.name)
        if match is None or match["what"].lower() != "output":
            continue
        home = path.parent.parent
        number = numbers.setdefault(os.fspath(home), len(numbers))
        if not origins and home not in beside:
            beside[home] = _beside(home)
        outputs.append(_entry(path, match, number, origins or beside[home]))
    if not outputs:
        shown = escape.line(os.fspath(base))
        raise ConfigError(
            "GE1045",
            f"{shown}: no recorded outputs (<node>-<op>.OUTPUT.<i>.<time>.npy or "
            "<type>.<node>.<task>.<stream>.<time>.output.<i>.npy)"
            if base.is_dir()
            else f"{shown} is not a folder",
            next="give a folder written by debug.data_dump or dump_config, or converted from a device's dump",
        )
    return sorted(outputs, key=lambda e: (e.time, e.index))


def _entry(path: Path, match: re.Match[str], number: int, origins: Origins) -> DumpedOutput:
    node, op = match["node"], match["op"]
    origin = origins.get(node, {}) if "task" in match.groupdict() else {"fx": node, "target": op}
    about = (origin.get(key, "") for key in _ORIGIN)
    return DumpedOutput(path, number, path.parent.name, node, op, int(match["index"]), match["time"], *about)


def _beside(home: Path) -> Origins:
    """What ``provenance.json`` says; only texts are taken, whatever else stands there."""
    path = home / PROVENANCE
    if not path.exists():
        return {}
    try:
        data = json.loads(read_plain(path, _MOST_PROVENANCE))
        if not isinstance(data, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, "not readable", error) from error
    rows = {name: row for name, row in data.items() if isinstance(row, dict)}
    return {name: {key: str(row.get(key, "")) for key in _ORIGIN} for name, row in rows.items()}


def _unreadable(path: Path, what: str, error: BaseException) -> ConfigError:
    said = escape.line(str(error) or type(error).__name__, 500)
    return ConfigError("GE1045", f"{escape.line(os.fspath(path))}: {what}: {said}", next="record the dump again")


def _origins_of(graph: str | os.PathLike[str]) -> Origins:
    from tair_debug.graph_file import read_graph

    return {
        clean(n.name): {"fx": p.fx_name, "target": p.fx_target, "source": p.source, "code": p.code}
        for n in read_graph(Path(graph)).nodes
        if (p := n.provenance) is not None
    }


def compare_dumps(
    expected: str | os.PathLike[str],
    got: str | os.PathLike[str],
    *,
    tolerance: Tolerance = Tolerance(),
    graph: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    on_row: Callable[[ComparisonRow], None] = lambda row: None,
) -> Comparison:
    """Compare two recorded trees, one pair of arrays in memory at a time.

    Args:
        expected: The tree that counts as right; its order is the order of the rows.
        tolerance: When a value counts as wrong.
        graph: ``txt`` graph dump for a tree recorded on a device.
        output: Existing folder for the first wrong pair.
        on_row: Called with each comparison as it is made.

    Errors: ConfigError GE1045 for a folder without recorded outputs, or a file that is no npy.
    """
    result = Comparison()
    others = read_tree(got, graph)
    partners = _Index(others)
    entries = read_tree(expected, graph)
    for entry in entries:
        partner = partners.find(entry)
        if partner is None:
            result.unmatched += 1
            result.why["the other side has no value of that name"] += 1
            continue
        a, b = _load(partner.path), _load(entry.path)
        row = _row(entry, partner, _measure(a, b, tolerance))
        if row.wrong and result.first is None and output is not None:
            result.saved = save_pair(output, row, a, b)
        result.rows.append(row)
        on_row(row)
    known = {e.inside for e in entries} & {e.inside for e in others}
    for inside in dict.fromkeys(e.inside for e in (*entries, *others) if e.inside not in known):
        result.notes.append(f"{inside}: recorded on one side only, a dump of ATen graphs has branches and loops whole")
    return result


class _Index:
    """Finds the output of the other tree that is the same value."""

    def __init__(self, entries: list[DumpedOutput]) -> None:
        self._by_name: dict[Any, deque[DumpedOutput]] = {}
        self._by_fx: dict[Any, list[DumpedOutput]] = {}
        for e in entries:
            self._by_name.setdefault((e.graph, e.step, e.node, e.index), deque()).append(e)
            if e.fx and not e.inside:
                self._by_fx.setdefault((e.graph, e.step, e.fx, e.index), []).append(e)

    def find(self, entry: DumpedOutput) -> DumpedOutput | None:
        """Its partner; what a loop ran several times is found as often, in the order of the rounds."""
        exact = self._by_name.get((entry.graph, entry.step, entry.node, entry.index))
        if exact and exact[0].op == entry.op:
            return exact.popleft()
        if entry.inside:
            return None
        if not entry.fx:
            return None
        shape = _shape(entry.path)
        # an FX node becomes several operators; its value is the last of them that has its shape
        alike = [
            e for e in self._by_fx.get((entry.graph, entry.step, entry.fx, entry.index), ()) if _shape(e.path) == shape
        ]
        return alike[-1] if alike else None


def _read(path: Path, *, header_only: bool = False) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
    """Shape and array. Errors: ConfigError GE1045 for everything that is not a plain array of numbers."""
    try:
        return npy.read_npy(path, header_only=header_only)
    except ValueError as error:
        raise _unreadable(path, "no readable npy file", error) from error


def _shape(path: Path) -> tuple[int, ...]:
    return _read(path, header_only=True)[0]


def _load(path: Path) -> torch.Tensor:
    return torch.from_numpy(_read(path)[1])


def _measure(got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Measure:
    """Floats of different width are compared in the wider type, within the tolerance of the narrower."""
    if got.dtype is expected.dtype or not (got.is_floating_point() and expected.is_floating_point()):
        return measure(got, expected, tolerance)
    wide = torch.promote_types(got.dtype, expected.dtype)
    rtol, atol = max((tolerance.of(t.dtype) for t in (got, expected) if t.dtype in DEFAULTS), default=(0.0, 0.0))
    return measure(got.to(wide), expected.to(wide), Tolerance(rtol, atol))


def _row(entry: DumpedOutput, partner: DumpedOutput, measured: Measure) -> ComparisonRow:
    known = partner if partner.source else entry
    return ComparisonRow(
        f"graph {entry.graph + 1} step {entry.step}",
        partner.node,
        partner.op,
        partner.index,
        entry.fx or partner.fx,
        entry.target or partner.target,
        known.source,
        known.code,
        measured,
        inside=entry.inside,
    )
