"""Which operators a chip has kernels for, and on which of its units: asked before there is a device.

oracle = kernels.oracle("ascend910b")                      # published libraries
oracle = kernels.oracle("ascend910b", "/usr/local/Ascend/latest")   # the user's own installation
oracle.has("Sort", {"x": [DataType.DT_INT64]})             # "yes", "no" or "unknown"
for finding in oracle.check(graph): ...
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ge_graph.dtypes import DataType
from ge_graph.kernels import data, evidence, installation
from ge_graph.kernels.form import AI_CORE, ChipKernel, KernelFacts
from ge_graph.kernels.grades import STRENGTHS
from ge_graph.kernels.verdicts import Finding, Oracle, Verdict

__all__ = [
    "STRENGTHS",
    "KernelFacts",
    "Finding",
    "ChipKernel",
    "Oracle",
    "Verdict",
    "contradictions",
    "facts",
    "has",
    "oracle",
    "socs",
]

_WITHOUT_KERNEL = ("ge_local", "rts", "hccl")


def facts(cann: str | os.PathLike[str] | None = None, *, cache: Path | None = None) -> KernelFacts:
    """Kernel facts.

    Args:
        cann: Folder of an installation or a file of facts. None: the folder that ASCEND_HOME_PATH names if it is an
            installation, else what the package carries.
        cache: Folder for what was read of an installation; None: the user's cache folder.

    Raises:
        GraphError: GE3067 if ``cann`` is neither, or a file there is damaged or of another version.
    """
    if cann is None:
        home = os.environ.get(installation.VARIABLE)
        if not home or installation.find(home) is None:
            return data.published()
        cann = home
    return installation.load(cann, cache).merged(data.published(), _WITHOUT_KERNEL)


def oracle(soc: str, cann: str | os.PathLike[str] | None = None) -> Oracle:
    """Verdicts for a chip.

    Args:
        soc: ``ascend910b``, or the name of a model such as ``Ascend910B2``.
        cann: As in ``facts``.

    Raises:
        GraphError: GE3067 as in ``facts``, GE3068 for a chip without facts.
    """
    kernel_facts = facts(cann)
    published = kernel_facts is data.published()
    if published:
        return _published(data.chip(soc, kernel_facts.socs()))
    return Oracle(kernel_facts, data.chip(soc, kernel_facts.socs()))


def socs(cann: str | os.PathLike[str] | None = None) -> list[str]:
    """The chips that facts know."""
    return facts(cann).socs()


@lru_cache(maxsize=8)
def _published(soc: str) -> Oracle:
    return Oracle(data.published(), data.chip(soc, data.published().socs()), data.limits(), evidence.published())


def has(op: str, dtypes: Mapping[str, DataType | Sequence[DataType]], soc: str) -> Literal["yes", "no", "unknown"]:
    """Whether a chip has a kernel, by the facts that the package carries: equal on every machine, so that a converter
    may choose by it.

    Args:
        op: Operator type.
        dtypes: Port name to element type, or to those of a dynamic port.
        soc: The chip.

    Raises:
        GraphError: GE3068 for a chip without facts.
    """
    types = {p: (d,) if isinstance(d, DataType) else tuple(d) for p, d in dtypes.items()}
    return _published(soc).has(op, types)


def contradictions(soc: str, cann: str | os.PathLike[str]) -> list[str]:
    """Where public statements and an installation disagree, a tab-separated line each: for whoever collects evidence.

    Lines: operator, chip, kind of statement, what it says, what the installation says, source.

    Raises:
        GraphError: GE3067, GE3068 as in ``oracle``.
    """
    kernel_facts = facts(cann)
    chip = data.chip(soc, kernel_facts.socs())
    found = []
    for op in evidence.published().ops():
        kernels = kernel_facts.kernels(op, chip)
        core = [k for k in kernels if k.unit == AI_CORE]
        for said in evidence.on(evidence.published().of(op), chip):
            where = (op, chip, said.kind)
            if said.unit == "aicpu":
                if core and said.kind == "launched":
                    found.append("\t".join((*where, "AI CPU only", "AI Core has a kernel", said.sources[0])))
                continue
            if said.kind in ("measured", "launched", "kernel", "page") and not core:
                has_other = "AI CPU only" if kernels else "no kernel"
                found.append("\t".join((*where, "AI Core", has_other, said.sources[0])))
                continue
            for port in said.ports if core else ():
                named = {name: k.types(at) for k in core for at, name in enumerate(k.ports)}
                extra = (said.types(port) or frozenset()) - named.get(port, said.types(port) or frozenset())
                if extra and any(k.combos for k in core):
                    types = " ".join(sorted(d.short for d in extra))
                    found.append("\t".join((*where, f"{port} in {types}", "AI Core does not list it", said.sources[0])))
    return found
