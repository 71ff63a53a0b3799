"""The facts that the package carries: kernels of the published libraries, and limits of older installations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ge_graph.dtypes import BY_SHORT, DataType
from ge_graph.errors import GraphError
from ge_graph.files import package_data
from ge_graph.kernels import form
from ge_graph.kernels.form import KernelFacts


@dataclass(frozen=True, slots=True)
class OlderLimit:
    """What an older installation says of an operator that the published libraries leave out.

    Attributes:
        when: Port and element types that have to meet, ``*`` for any port; empty: always.
        unit: ``none`` or ``aicpu``.
        instead: What runs on AI Core.
    """

    soc: str
    op: str
    when: tuple[tuple[str, frozenset[DataType]], ...]
    unit: str
    instead: str


@lru_cache(maxsize=1)
def published() -> KernelFacts:
    """Kernels of the published libraries: complete for ascend950, the open ones for others."""
    return form.read(package_data("kernels.tsv"), "ge_graph/data/kernels.tsv")


@lru_cache(maxsize=1)
def limits() -> tuple[OlderLimit, ...]:
    entries = []
    for line in package_data("kernel_limits.tsv").decode().splitlines()[1:]:
        soc, op, when, unit, instead = line.split("\t")
        parts = tuple(
            (part.split(":")[0], frozenset(BY_SHORT[t] for t in part.split(":")[1].split(","))) for part in when.split()
        )
        entries.append(OlderLimit(soc, op, parts, unit, instead))
    return tuple(entries)


# Names that people use for a family of chips.
_ALIASES: Final = {"a2": "ascend910b", "atlas_a2": "ascend910b", "a3": "ascend910_93", "atlas_a3": "ascend910_93"}
# What a model's own name adds to that of its family: ascend910b2, ascend910_9392, ascend310p3.
_MODEL: Final = re.compile(r"\d{1,2}(c|_\w+)?|pr[oem]+[ab]?|[a-z]\d?")


def chip(name: str, known: list[str]) -> str:
    """The family of a chip, as facts name it.

    Args:
        name: ``ascend910b``, or the name of a model such as ``Ascend910B2``.
        known: Families that the facts know.

    Raises:
        GraphError: GE3068 for a name that belongs to none; the message lists all.
    """
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    plain = _ALIASES.get(plain, plain)
    if plain in known:
        return plain
    families = [k for k in known if plain.startswith(k) and _MODEL.fullmatch(plain[len(k) :])]
    if families:
        return max(families, key=len)
    raise GraphError(
        "GE3068", f"no kernels are known of the chip {name!r}", next=f"known chips: {', '.join(known) or 'none'}"
    )
