"""Published figures of chips: cores, clocks, rates and sizes, each with who says so. What nobody says is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from ge_graph.dtypes import DataType
from ge_graph.errors import GraphError
from ge_graph.files import package_data
from ge_graph.kernels import data

_ALIKE: Final = {"f8e5": "f8e4", "u8": "i8"}


@dataclass(frozen=True)
class Figures:
    """What is published of a chip.

    Attributes:
        chip: The model, such as ``ascend910b2``.
        family: The family that kernel facts know, ``ascend910b``.
        values: Figure to its value; rates in bytes a second unless the source says a cycle and core, sizes in bytes,
            times in seconds.
        sources: Figure to who says so.
    """

    chip: str
    family: str
    values: Mapping[str, float]
    sources: Mapping[str, str]

    def get(self, figure: str) -> float | None:
        """A figure, None if nobody says it."""
        return self.values.get(figure)

    def cube_peak(self, dtype: DataType, cores: int | None = None) -> float | None:
        """Operations a second of the cube units in a type; a multiplication and an addition are two.

        Args:
            dtype: Type of the matrices.
            cores: How many cores may work; None for all.
        """
        total = self.get("cube_cores")
        if not total:
            return None
        share = 1.0 if not cores else min(cores, total) / total
        short = _ALIKE.get(dtype.short, dtype.short)
        peak = self.get(f"cube_peak {short}")
        products, clock = self.get(f"cube_products {short}"), self.get("clock")
        if peak is None and products is not None and clock is not None:
            peak = 2 * products * clock * total
        return None if peak is None else peak * share

    def vector_peak(self, dtype: DataType, cores: int | None = None) -> float | None:
        """Elements a second that the vector units take in, one instruction each."""
        total, width, clock = self.get("vector_cores"), self.get("vector_bytes"), self.get("clock")
        if not total or width is None or clock is None or not dtype.bits:
            return None
        return (min(cores, total) if cores else total) * width * clock / max(dtype.bits / 8, 1)

    def l2_rate(self, cube: int | None = None, vector: int | None = None) -> float | None:
        """Bytes a second between the second-level cache and the cores of the more numerous kind.

        Args:
            cube: How many cube cores may work; None for all.
            vector: The same of vector cores.
        """
        rate, clock = self.get("l2_read"), self.get("clock")
        all_cube, all_vector = self.get("cube_cores") or 0, self.get("vector_cores") or 0
        cores = max(min(cube or all_cube, all_cube), min(vector or all_vector, all_vector))
        return None if rate is None or clock is None or not cores else rate * clock * cores

    def links(self) -> float | None:
        """Bytes a second that one chip sends over all of its links at once; None if nobody says it."""
        rates = [self.get(name) for name in ("link_rate", "sibling_rate", "network_rate")]
        return None if rates[0] is None else sum(rate for rate in rates if rate is not None)

    def link_to(self, ranks: int) -> float | None:
        """Bytes a second that a chip sends to the others of a group.

        Args:
            ranks: How many there are; 0 if nobody knows, and then as few as have the fast links.
        """
        near = self.get("link_ranks")
        return self.get("network_rate") if near is not None and ranks > near else self.get("link_rate")

    def with_values(self, values: Mapping[str, float], source: str) -> Figures:
        """The same with other figures in place of, or beside, the published ones."""
        return replace(
            self, values={**self.values, **values}, sources={**self.sources, **dict.fromkeys(values, source)}
        )


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, tuple[str, str]]]:
    rows: dict[str, dict[str, tuple[str, str]]] = {}
    for line in package_data("chip_figures.tsv").decode().splitlines()[1:]:
        chip, figure, value, source = line.split("\t")
        rows.setdefault(chip, {})[figure] = (value, source)
    return rows


def models() -> list[str]:
    """The chips of which figures are known."""
    return [chip for chip, row in _table().items() if "family" in row]


def figures(soc: str) -> Figures:
    """The figures of a chip.

    Args:
        soc: A model such as ``Ascend910B3``, or a family: then the model that stands for it.

    Raises:
        GraphError: GE3073 for a chip without figures; the message lists those that have some.
    """
    rows = _table()
    plain = soc.strip().lower().replace("-", "_").replace(" ", "_")
    families = {row["family"][0] for row in rows.values() if "family" in row}
    if plain not in rows:
        try:
            plain = data.chip(soc, sorted(families))
        except GraphError:
            raise _unknown(soc) from None
        if plain != soc.strip().lower() and "model" in rows.get(plain, {}):
            known = [m for m in models() if rows[m]["family"][0] == plain and soc.strip().lower().startswith(m)]
            if not known and soc.strip().lower() not in ("a2", "a3", "atlas_a2", "atlas_a3"):
                raise _unknown(soc)
            plain = known[0] if known else plain
    if "model" in rows[plain]:
        plain = rows[plain]["model"][0]
    if "family" not in rows[plain]:
        raise _unknown(soc)
    family = rows[plain]["family"][0]
    found = {**rows.get(family, {}), **rows[plain]}
    numbers = {k: float(v) for k, (v, _) in found.items() if k not in ("family", "model")}
    return Figures(plain, family, numbers, {k: source for k, (_, source) in found.items() if k in numbers})


def _unknown(soc: str) -> GraphError:
    return GraphError(
        "GE3073", f"no figures are known of the chip {soc!r}", next=f"known: {', '.join(models())}, and their families"
    )
