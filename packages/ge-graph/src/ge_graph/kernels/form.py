"""Kernel facts in memory and as text: one line per kernel, so that a lookup parses only the lines of its operator.

The first line names form, version, origin and the chips that are complete. A kernel's line has tab-separated fields:
operator; chips; unit; number of inputs; ports (``?`` optional, ``*`` dynamic, ``~`` virtual: the kernel's own, absent
from graphs); element types; layouts; flags; source. Element types are rows of combinations for AI Core
(``f16,f16;f32,f32``, one name where all ports agree), sets a port for other units (``f16,f32|i32``), empty where the
library does not say. Layouts are ``ND`` or rows like the types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ge_graph.dtypes import BY_SHORT, DataType
from ge_graph.errors import GraphError

VERSION: Final = 1
_MAGIC: Final = "ge-kernel-facts"
ANY: Final = "*"
AI_CORE: Final = "aicore"
AI_CPU: Final = "aicpu"
# in the order in which GE asks them: what needs no kernel first, the slow unit last
UNITS: Final = ("ge_local", "rts", "hccl", AI_CORE, AI_CPU)


@dataclass(frozen=True, slots=True)
class ChipKernel:
    """One kernel of an operator.

    Attributes:
        socs: Chips, as GE writes them; ``*`` for any.
        unit: ``aicore``, ``aicpu``, ``ge_local`` (no work on the device), ``rts`` (copies, streams), ``hccl``.
        inputs: Number of input ports; the others are outputs.
        kinds: ``required``, ``optional``, ``dynamic`` or ``virtual``, parallel to ports.
        combos: AI Core: supported combinations of element types, parallel to ports. Empty: not said.
        sets: Other units: element types of each port by itself, parallel to ports; of ``hccl`` one set for all.
        formats: Layout names, one row per combination; empty: ND or not said.
        checks: The kernel may still refuse shapes and attributes.
        experimental: Contributed, not part of an installation.
    """

    op: str
    socs: tuple[str, ...]
    unit: str
    inputs: int = 0
    ports: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    combos: tuple[tuple[DataType, ...], ...] = ()
    sets: tuple[frozenset[DataType], ...] = ()
    formats: tuple[tuple[str, ...], ...] = ()
    checks: bool = False
    experimental: bool = False
    source: str = ""

    def types(self, port: int) -> frozenset[DataType]:
        """The element types that a port takes in some combination; empty if the library does not say."""
        if self.combos:
            return frozenset(row[port] for row in self.combos)
        return self.sets[port] if port < len(self.sets) else frozenset()


_MARKS: Final = {"required": "", "optional": "?", "dynamic": "*", "virtual": "~"}
_KINDS: Final = {mark: kind for kind, mark in _MARKS.items() if mark}


def to_line(kernel: ChipKernel) -> str:
    ports = " ".join(name + _MARKS[kind] for name, kind in zip(kernel.ports, kernel.kinds))
    if kernel.sets:
        types = "|".join(",".join(sorted(d.short for d in dtypes)) for dtypes in kernel.sets)
    else:
        types = ";".join(_row([d.short for d in row]) for row in kernel.combos)
    formats = ";".join(_row(list(row)) for row in kernel.formats)
    flags = "c" * kernel.checks + "e" * kernel.experimental + "s" * bool(kernel.sets)
    fields = (kernel.op, ",".join(kernel.socs), kernel.unit, str(kernel.inputs), ports, types, formats, flags)
    return "\t".join((*fields, kernel.source))


def _row(texts: list[str]) -> str:
    return texts[0] if len(set(texts)) == 1 else ",".join(texts)


def from_line(line: str) -> ChipKernel:
    """The kernel of a line; the chips and operators of one file repeat, so rows are parsed once."""
    op, socs, unit, inputs, ports, types, formats, flags, source = line.split("\t")
    named = [(p.rstrip("?*~"), _KINDS.get(p[-1], "required")) for p in ports.split(" ") if p]
    if unit not in UNITS:
        raise ValueError(f"no unit {unit!r}")
    sets: tuple[frozenset[DataType], ...] = ()
    combos: tuple[tuple[DataType, ...], ...] = ()
    if "s" in flags:
        sets = tuple(_set(text) for text in types.split("|"))
    elif types:
        combos = tuple(_combo(text, len(named)) for text in types.split(";"))
    rows = tuple(tuple(text.split(",")) if "," in text else (text,) * len(named) for text in formats.split(";") if text)
    return ChipKernel(
        op,
        tuple(socs.split(",")),
        unit,
        int(inputs),
        tuple(n for n, _ in named),
        tuple(k for _, k in named),
        combos,
        sets,
        rows,
        "c" in flags,
        "e" in flags,
        source,
    )


@lru_cache(maxsize=4096)
def _set(text: str) -> frozenset[DataType]:
    return frozenset(BY_SHORT[t] for t in text.split(",") if t)


@lru_cache(maxsize=4096)
def _combo(text: str, ports: int) -> tuple[DataType, ...]:
    dtypes = tuple(BY_SHORT[t] for t in text.split(","))
    if len(dtypes) == 1:
        dtypes *= ports
    if len(dtypes) != ports:
        raise ValueError(f"{len(dtypes)} types for {ports} ports")
    return dtypes


class KernelFacts:
    """Kernels of all operators.

    Args:
        lines: Operator to the lines of its kernels.
        origin: Where the facts come from, for reports.
        complete: Chips whose AI Core kernels are all listed; of the others an operator may have one that is not.
    """

    def __init__(self, lines: Mapping[str, list[str]], origin: str, complete: Iterable[str] = ()) -> None:
        self.complete = frozenset(complete)
        self._lines = lines
        self._parsed: dict[str, tuple[ChipKernel, ...]] = {}
        self.origin = origin

    def __len__(self) -> int:
        return len(self._lines)

    def kernels(self, op: str, soc: str) -> list[ChipKernel]:
        """The kernels of an operator on a chip, in the order in which GE asks the units."""
        kernels = self._parsed.get(op)
        if kernels is None:
            kernels = tuple(_checked(line, self.origin) for line in self._lines.get(op, ()))
            self._parsed[op] = kernels
        fit = [k for k in kernels if soc in k.socs or ANY in k.socs]
        return sorted(fit, key=lambda k: (k.experimental, UNITS.index(k.unit)))

    def socs(self) -> list[str]:
        """The chips that some kernel names, sorted."""
        named = {s for lines in self._lines.values() for line in lines for s in line.split("\t", 2)[1].split(",")}
        return sorted(named - {ANY})

    def merged(self, other: KernelFacts, units: tuple[str, ...]) -> KernelFacts:
        """These facts, and of ``other`` the kernels of ``units`` for operators that have none here."""
        lines = dict(self._lines)
        for op, theirs in other._lines.items():
            kept = [line for line in theirs if line.split("\t", 3)[2] in units]
            if kept and op not in lines:
                lines[op] = kept
        return KernelFacts(lines, self.origin, self.complete)

    def text(self) -> str:
        """The facts as a file."""
        rows = [line for op in sorted(self._lines) for line in self._lines[op]]
        head = (_MAGIC, str(VERSION), self.origin, ",".join(sorted(self.complete)))
        return "\n".join(("\t".join(head), *rows)) + "\n"


def _checked(line: str, origin: str) -> ChipKernel:
    try:
        return from_line(line)
    except (ValueError, KeyError, IndexError) as error:
        raise damaged(origin, f"{type(error).__name__} {error} in {line[:80]!r}") from error


def damaged(name: str, what: str) -> GraphError:
    """The error for a file of facts that cannot be read."""
    return GraphError(
        "GE3067",
        f"kernel facts '{name}' cannot be read: {what}",
        next="write the file anew with `tair check --cann FOLDER --write-facts FILE`, or repair the installation",
    )


def read(data: bytes, name: str) -> KernelFacts:
    """Facts from a file.

    Raises:
        GraphError: GE3067 if the file is none of facts, or of another version.
    """
    lines = data.decode("utf-8", "replace").split("\n")
    head = lines[0].split("\t")
    if head[0] != _MAGIC or len(head) < 2:
        raise damaged(name, f"it does not start with '{_MAGIC}'")
    if head[1] != str(VERSION):
        raise damaged(name, f"it has version {head[1]!r}, this release reads version {VERSION}")
    if len(head) != 4:
        raise damaged(name, "its first line is not whole")
    return KernelFacts(by_op(lines[1:]), head[2], filter(None, head[3].split(",")))


def by_op(lines: Iterable[str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for line in lines:
        if line:
            grouped.setdefault(line.split("\t", 1)[0], []).append(line)
    return grouped
