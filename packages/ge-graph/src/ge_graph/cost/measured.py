"""Measured times: tables of msprof and torch_npu's profiler, by operator, sizes, types; and what they calibrate."""

from __future__ import annotations

import csv
import io
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ge_graph import escape
from ge_graph.errors import GraphError
from ge_graph.files import read_plain
from ge_graph.ir import Node, Tensor

Key: TypeAlias = "tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]"

_MOST: Final = 1 << 30
_IDLE: Final = 0.05  # of a run in which the launch is nearly all
# Column of op_summary, and of kernel_details of torch_npu.
_NAMES: Final = {
    "op": ("OP Type", "Type"),
    "time": ("Task Duration(us)", "Duration(us)"),
    "shapes": ("Input Shapes",),
    "types": ("Input Data Types",),
    "results": ("Output Shapes",),
    "result_types": ("Output Data Types",),
}
# What GE calls an operator once it has chosen the kernel.
_SAME: Final = {
    "MatMulV3": "MatMulV2",
    "BatchMatMulV3": "BatchMatMulV2",
    "StridedSliceD": "StridedSliceV2",
    "SliceD": "Slice",
    "ConcatV2D": "ConcatV2",
    "ConcatD": "ConcatV2",
    "SplitVD": "SplitV",
    "ReduceSumD": "ReduceSum",
    "ReduceMeanD": "ReduceMean",
    "TransposeD": "Transpose",
    "TileD": "Tile",
    "Index": "IndexByTensor",
}
TABLE_TYPES: Final = {
    "FLOAT": "f32",
    "FLOAT16": "f16",
    "BF16": "bf16",
    "BFLOAT16": "bf16",
    "INT64": "i64",
    "INT32": "i32",
    "INT16": "i16",
    "INT8": "i8",
    "UINT8": "u8",
    "UINT64": "u64",
    "UINT32": "u32",
    "UINT16": "u16",
    "BOOL": "b8",
    "DOUBLE": "f64",
    "COMPLEX64": "c64",
    "FLOAT8_E4M3FN": "f8e4",
    "FLOAT8_E5M2": "f8e5",
    "HIFLOAT8": "hif8",
    "INT4": "i4",
}


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A line of a table.

    Attributes:
        op: Operator type as the graph calls it.
        shapes: Sizes of the operands, unfed ports as ``()``.
        types: Short type names, parallel to the shapes.
        results: Sizes of the results.
        result_types: Their types.
        seconds: How long it ran.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    results: tuple[tuple[int, ...], ...]
    result_types: tuple[str, ...]
    seconds: float


@dataclass
class Measurements:
    """Times by operator, sizes and types; the median where one was measured several times."""

    origin: str
    rows: list[MeasuredRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        found: dict[Key, list[float]] = {}
        for row in self.rows:
            found.setdefault(_key(row.op, row.shapes, row.types), []).append(row.seconds)
        self._times = {key: statistics.median(times) for key, times in found.items()}

    def seconds(self, node: Node, shape_of: Callable[[Tensor], tuple[int, ...] | None]) -> float | None:
        """The time of a node, None if nobody measured it at these sizes and types.

        Args:
            node: The node.
            shape_of: Sizes of a tensor.
        """
        shapes, types = [], []
        for operand in node.operands():
            shape = shape_of(operand)
            if shape is None:
                return None
            shapes.append(shape)
            types.append(operand.dtype.short)
        return self._times.get(_key(node.op, tuple(shapes), tuple(types)))


def _key(op: str, shapes: Sequence[tuple[int, ...]], types: Sequence[str]) -> Key:
    """Operands of rank 0 stand for ports without an operand, too: neither says anything about time."""
    kept = [(s, t) for s, t in zip(shapes, types) if s]
    return _SAME.get(op, op), tuple(s for s, _ in kept), tuple(t for _, t in kept)


def read(path: str | os.PathLike[str]) -> Measurements:
    """The times of a table: ``op_summary_*.csv`` of msprof, ``kernel_details.csv`` of torch_npu's profiler.

    Raises:
        GraphError: GE3074 if the file cannot be read, has not the columns of such a table, or no row of an operator.
    """
    name = escape.line(os.fspath(path), 200)
    try:
        text = read_plain(path, _MOST).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise _bad(name, getattr(error, "strerror", None) or str(error)) from error
    rows = list(_rows(text, name))
    if not rows:
        raise _bad(name, "it has no row with an operator and a time")
    return Measurements(name, rows)


def _rows(text: str, name: str) -> Iterator[MeasuredRow]:
    try:
        table = csv.DictReader(io.StringIO(text), strict=True)
        columns = {
            part: next((c for c in names if c in (table.fieldnames or ())), "") for part, names in _NAMES.items()
        }
        absent = [" or ".join(_NAMES[part]) for part in ("op", "time", "shapes", "types") if not columns[part]]
        if absent:
            raise _bad(name, f"it has no column {', '.join(absent)}")
        for line, row in enumerate(table, 2):
            op, time = (row.get(columns["op"]) or "").strip(), (row.get(columns["time"]) or "").strip()
            if op in ("", "N/A") or time in ("", "N/A"):
                continue
            try:
                seconds = float(time) * 1e-6
                shapes, results = (_shapes(row.get(columns[p]) or "") for p in ("shapes", "results"))
            except ValueError as error:
                raise _bad(name, f"line {line}: {error}") from error
            types, given = (_types(row.get(columns[p]) or "") for p in ("types", "result_types"))
            if 0 <= seconds < 1e6:
                yield MeasuredRow(_SAME.get(op, op), shapes, types, results, given, seconds)
    except csv.Error as error:
        raise _bad(name, str(error)) from error


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """``"4096,1024;1024"`` to tuples; nothing between two semicolons is a scalar or a port without operand."""
    plain = text.strip().strip('"').strip()
    if plain in ("", "N/A"):
        return ()
    return tuple(tuple(int(d) for d in part.split(",") if d.strip()) for part in plain.split(";"))


def _types(text: str) -> tuple[str, ...]:
    plain = text.strip().strip('"')
    if plain in ("", "N/A"):
        return ()
    names = (part.strip().removeprefix("DT_") for part in plain.split(";"))
    return tuple(TABLE_TYPES.get(n, n.lower()) for n in names)


def _bad(name: str, what: str) -> GraphError:
    return GraphError(
        "GE3074",
        f"measured times {name}: {escape.line(what, 300)}",
        next="give op_summary_*.csv of msprof, or kernel_details.csv of torch_npu's profiler",
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement beside what the figures say of it.

    Attributes:
        unit: ``cube``, ``vector`` or ``move``.
        compute: Seconds at the peak of the unit.
        memory: Seconds at the rate of the memory.
        seconds: Measured.
    """

    unit: str
    compute: float
    memory: float
    seconds: float


def calibrate(samples: Sequence[Sample]) -> Mapping[str, float]:
    """Shares of the peaks and costs of a launch that fit measurements, by the names of ``chip_figures.tsv``.

    The launch is the middle of the runs that do next to nothing; a share is the middle of what the long runs reach, and
    at most 1. What no run tells is left out.
    """
    found: dict[str, float] = {}
    for kind, units in (("cube", ("cube",)), ("vector", ("vector", "move"))):
        idle = [s.seconds for s in samples if s.unit in units and max(s.compute, s.memory) < _IDLE * s.seconds]
        if idle:
            found[f"launch_{kind}"] = statistics.median(idle)
    cube = [s for s in samples if s.unit == "cube" and s.compute > s.memory]
    moved = [s for s in samples if s.unit in ("vector", "move") and s.memory > s.compute]
    busy = [s for s in samples if s.unit == "vector" and s.compute > s.memory]
    for name, chosen, part in (("cube_share", cube, "compute"), ("memory_share", moved, "memory")):
        launch = found.get("launch_cube" if name == "cube_share" else "launch_vector", 0.0)
        reached = [getattr(s, part) / (s.seconds - launch) for s in chosen if s.seconds > 3 * launch]
        if reached:
            found[name] = min(1.0, statistics.median(reached))
    launch = found.get("launch_vector", 0.0)
    several = [(s.seconds - launch) / s.compute for s in busy if s.seconds > 3 * launch]
    if several:
        found["vector_instructions"] = max(1.0, statistics.median(several))
    return found
