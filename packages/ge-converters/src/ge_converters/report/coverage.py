"""What is converted, how, and proven for which element types: support as data, and ``docs/coverage.md`` from it.

python -m ge_converters.report.coverage                     write docs/coverage.md
python -m ge_converters.report.coverage --check             fail if the file is not up to date
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.base.support import short_name
from ge_converters.base.torch_compat import is_composite, operator_names
from ge_converters.decompose.table import decomposition_table
from ge_converters.lowering.graph_lowering import handled_by_walk
from ge_converters.registry import REGISTRY, Entry, Registry

# Overloads that are neither converted nor decomposed, with what stands in the way.
REASONS: Final[dict[str, str]] = {}

_STATES: Final = {
    "row": "a converter that is one line of `ops/rows.py` or of a table beside it",
    "function": "a converter with something to decide",
    "walk": "done by the lowering itself",
    "decomposed": "torch's decomposition turns it into ops of this table before conversion",
    "composite": "torch's dispatcher turns it into other ops while tracing",
    "functional": "AOTAutograd rewrites it as its functional form, which is served",
    "refused": "GE cannot express it; the reason stands beside it and in the error",
    "absent": "not served; the reason stands beside it",
}


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """Support of one op.

    Attributes:
        name: ``aten.add.Tensor``.
        state: A key of the legend: row, function, walk, decomposed, composite, refused, absent.
        core: Whether it belongs to the core ATen set.
        dtypes: Short names of the element types among the declared forms.
        forms: Number of declared forms.
        where: Module that converts it.
        reason: Why it is refused or absent.
    """

    name: str
    state: str
    core: bool
    dtypes: tuple[str, ...] = ()
    forms: int = 0
    where: str = ""
    reason: str = ""


def core_overloads() -> list[torch._ops.OpOverload]:
    """The overloads that torch tags as core ATen, sorted by name."""
    overloads = []
    for full in operator_names():
        namespace, _, rest = full.partition("::")
        if namespace != "aten":
            continue
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is not None and torch.Tag.core in op.tags:
            overloads.append(op)
    return sorted(overloads, key=str)


def row_of(target: Any, registry: Registry | None = None, decompositions: Any = None) -> CoverageRow:
    """The support of one op.

    Args:
        target: An ``OpOverload`` or a Python function of FX graphs.
        registry: Converters; the common registry if None.
        decompositions: A table from ``decomposition_table``; made if None.
    """
    used = REGISTRY if registry is None else registry
    core = isinstance(target, torch._ops.OpOverload) and torch.Tag.core in target.tags
    entry = used.find(target)
    if entry is not None:
        return _converted(entry, core)
    name = str(target)
    functional = functional_form(target)
    if functional is not None and row_of(functional, used, decompositions).state != "absent":
        return CoverageRow(name, "functional", core, where=str(functional))
    if handled_by_walk(target):
        return CoverageRow(name, "walk", core, where="lowering")
    table = decomposition_table(registry=used) if decompositions is None else decompositions
    if target in table:
        return CoverageRow(name, "decomposed", core)
    if is_composite(target):
        return CoverageRow(name, "composite", core)
    return CoverageRow(
        name, "absent", core, reason=REASONS.get(name, used.why_not_derived(target) or "no converter yet")
    )


def functional_form(target: Any) -> torch._ops.OpOverload | None:
    """The overload without writes that AOTAutograd puts in place of an out= or in-place overload."""
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    packet, overload = target._schema.name.removeprefix("aten::"), target._overloadname
    if packet == "_native_batch_norm_legit" and overload == "default":
        return torch.ops.aten._native_batch_norm_legit_functional.default
    if packet.endswith("_") and not packet.startswith("_foreach"):
        packet = packet[:-1]
    overload = "default" if overload in ("out", "default") else overload.removesuffix("_out")
    op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return op if op is not None and not op._schema.is_mutable else None


def _converted(entry: Entry, core: bool) -> CoverageRow:
    refused = entry.refuses
    if refused:
        return CoverageRow(entry.name, "refused", core, reason=refused)
    dtypes = {t.dtype for s in entry.supports for t in s.stand_ins()}
    return CoverageRow(
        entry.name,
        _how(entry.fn),
        core,
        tuple(sorted(short_name(d) for d in dtypes)),
        len(entry.supports),
        _module(entry.fn),
    )


def _module(fn: Any) -> str:
    return (getattr(fn, "__module__", "") or "").removeprefix("ge_converters.ops.")


def _how(fn: Any) -> str:
    return "row" if _module(fn).rpartition(".")[2] == "rows" else "function"


def rows(registry: Registry | None = None) -> list[CoverageRow]:
    """Core ATen first, then everything else that has a converter; sorted by name."""
    used = REGISTRY if registry is None else registry
    table = decomposition_table(registry=used)
    core = core_overloads()
    known = set(core)
    others = [e.target for e in used.entries() if e.target not in known and e.layer == "built-in"]
    coverage = [row_of(t, used, table) for t in [*core, *others]]
    coverage += [CoverageRow(name, _how(fn), False, where=_module(fn)) for name, fn in used.awaited()]
    return sorted(coverage, key=lambda r: (not r.core, r.name))


# Families of programs that consist of more than operators of the tables, and what works of each.
_FAMILIES: Final = (
    "`flex_attention`: causal, window, document, prefix and padding masks, and functions that add to a score, are "
    "operands of one FlashAttentionScore; other functions stand between two products, as do float64, a bias "
    "beside float16 or bfloat16, a bias that is trained, and values narrower than keys. Grouped heads, open "
    "sizes, logarithms, maxima, autocast and gradients work; torch itself refuses gradients of CPU tensors",
    "quantised programs: `quantized_decomposed` (by tensor, channel, token and group, with numbers or tensors as "
    "parameters) has eager's bits, and fake quantisation with fixed, learned and observed parameters has its "
    "gradients. Quantising to int8 around zero is AscendQuantV2, the rest is composed of arithmetic. A float32 "
    "product of two dequantised int8 operands is one int8 product (QuantBatchMatmulV3) times its scales. A float16 "
    "or bfloat16 product with a dequantised int8 weight is one WeightQuantBatchMatmulV2: a scale for all, for each "
    "column, or for each group of a multiple of 32 values, with zero points and a bias or without",
    "torchao 0.18 (`make torchao-test`): models with weights of int8, int4 and int2, with activations of int8 beside "
    "them, and trained with fake quantisation equal eager. What `convert_pt2e` leaves does so too, of quantisers for "
    "x86 and XNNPACK; ranges of channels get their sizes in a first step, which runs eagerly",
    "tensors of quantised types (`torch.qint8`): refused, GE has no type with a scale; use `convert_pt2e`",
    "nested tensors of layout `torch.jagged`: padding and back, pointwise operators, products, normalisation of "
    "columns, sum, mean, minimum and maximum of rows; gradients where eager has them, which it has not of sum and "
    "mean",
    "regions (`nested_compile_region`), branches and loops that write their operands return the new values",
)
_RANDOM: Final = (
    "random programs of static sizes (`make fuzz`): 14,303 of the seeds from 70000000 to 70503000 were judged, of 23 "
    'operators each on average, in six runs of `make fuzz FUZZ="--fast --jobs 1 --seconds 400 --seed 70000000"`, the '
    "first of 500 seconds, with 100000 added to the seed each time. One in 500 takes the whole way through "
    "AOTAutograd. One differed from eager, in strides of `index_copy`, and is repaired; 135 are refused, all "
    "for float64 or for memory around a value; five were recorded wrongly and equal eager on the whole way. A later "
    "run judged 49,142 from seed 90000001: three differed, sums of 256 bools (repaired), the gradient of a convolution "
    "of no channels, and NaN where eager's gradient has numbers beside NaN"
)


def markdown(coverage: Iterable[CoverageRow]) -> str:
    """The rows as a document."""
    listed = list(coverage)
    core = [r for r in listed if r.core]
    served = [r for r in core if r.state not in ("absent", "refused")]
    counts = Counter(r.state for r in core)
    lines = [
        "# Coverage",
        "",
        "Generated by `python -m ge_converters.report.coverage`; do not edit.",
        "",
        f"Core ATen of torch {torch.__version__.split('+')[0]}: {len(served)} of {len(core)} overloads are served "
        f"({', '.join(f'{n} {s}' for s, n in sorted(counts.items()))}). "
        f"{len(listed) - len(core)} more overloads have a converter.",
        "",
        "Types are those of the declared call forms, each of which is a test against eager "
        "(`python -m ge_converters.smoke`). Collectives declare none: they are compared with eager in two processes, "
        "by the tests of `torchair`. Operators of libraries that need not be installed (`npu`, `transformers`) are "
        "known by name; the tests of `ge_converters` define them and compare with their documented formulas.",
        "",
        *(f"* {state}: {text}." for state, text in _STATES.items()),
        "",
        "## Families",
        "",
        *(f"* {text}." for text in _FAMILIES),
        "",
        "## Random programs",
        "",
        f"* {_RANDOM}.",
    ]
    for title, part in (("Core ATen", core), ("Beyond core", [r for r in listed if not r.core])):
        lines += ["", f"## {title}", "", "| op | how | types | forms | where |", "|---|---|---|---|---|"]
        lines += [
            f"| {r.name} | {r.state} | {' '.join(r.dtypes)} | {r.forms or ''} | {r.reason or r.where} |" for r in part
        ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ge_converters.report.coverage", description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("docs/coverage.md"))
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(argv)
    text = markdown(rows())
    if options.check:
        same = options.output.exists() and options.output.read_text(encoding="utf-8") == text
        if not same:
            sys.stderr.write(f"{options.output} is not up to date; run python -m ge_converters.report.coverage\n")
        return 0 if same else 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
