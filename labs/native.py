"""How many GE operators each operator of torch becomes, and why it is not one.

    python -m labs.native              every OpInfo: its operators, what GE has instead, why it is not used
    python -m labs.native renorm glu   some of them
    python -m labs.native --update     write the operators in the table of reasons anew; reasons are chosen by hand

Counted is what a float32 forward of the first sample leaves for an engine after all passes: inputs, constants and
operators that nobody reads do not count. Where more than one is left, `tests/native/compositions.tsv` lists them with
the reasons, whose kinds and checks are those of `labs.native_reasons`.

Against the bundled one: `tests/native/bundled.tsv`, which `labs.native_peer` measured, has its operators for the same
samples. The entries compared are those of which it hands GE a graph, 354. Of some nothing is left for GE (a
view of an input, an empty result, a constant): they count 0 there, and ours, which keeps a view in the graph, count
what they are; one by one they are not compared. In all others ours has no more operators, or a reason that says what
the bundled torchair's operator computes differently or where it has none. All entries together ours has at most 800.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import multiprocessing
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch.utils import _pytree as pytree

from ge_converters.decompose.table import decomposition_table
from ge_converters.decompose.whole import KeepWhole
from ge_graph import schema
from ge_runtime.cpu import registry
from labs import native_peer, native_reasons, opinfo
from labs.native_reasons import NativeReason, NativeRow, folded, hard, packed, read, unpacked
from labs.native_samples import entries, first_sample, live

TABLE = Path(__file__).resolve().parent.parent / "tests" / "native" / "compositions.tsv"
_SECONDS = 60


@dataclass(frozen=True)
class Count:
    """What one OpInfo became.

    Attributes:
        name: The entry.
        atens: ATen operators that reached the converters, without their namespace.
        emitted: GE operators, in order.
        results: How many tensors eager returns.
        error: Why there is no count; empty if there is one.
    """

    name: str
    atens: tuple[str, ...] = ()
    emitted: tuple[str, ...] = ()
    results: int = 1
    error: str = ""


class _Enough(Exception):
    """Raised instead of running what was compiled."""


def graphs_of(call: Any, args: Any, kwargs: Any) -> tuple[list[str], list[str]]:
    """ATen operators and GE operators of one call."""
    from torchair.compiler.pipeline import Job, Pipeline
    from torchair.config.compiler_config import CompilerConfig  # here, as labs.native_peer has another torchair

    atens: list[str] = []
    emitted: list[str] = []

    def run(*_: Any) -> Any:
        raise _Enough

    def lower(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        atens.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        emitted.extend(live(Pipeline(Job(CompilerConfig(), model_id=0)).to_graph(gm, inputs, lambda x: x).graph))
        return run

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        with KeepWhole():
            return aot_module_simplified(gm, inputs, fw_compiler=lower, decompositions=decomposition_table({}))

    torch._dynamo.reset()
    with torch.no_grad(), contextlib.suppress(_Enough):
        torch.compile(call, backend=backend, fullgraph=True, dynamic=False)(*args, **kwargs)
    return atens, emitted


def count(op: Any) -> Count:
    """Of the first float32 sample that eager takes."""
    name = opinfo.full_name(op)
    try:
        with opinfo.time_limit(_SECONDS):
            sample = first_sample(op)
            if sample is not None:
                args, kwargs = sample
                eager = pytree.tree_leaves(op.op(*opinfo.clone(args), **opinfo.clone(kwargs)))
                atens, emitted = graphs_of(lambda *a, **k: op.op(*a, **k), args, kwargs)
                results = sum(isinstance(t, torch.Tensor) for t in eager)
                own = tuple(a.removeprefix("aten.") for a in atens if a.startswith("aten."))
                return Count(name, own, tuple(emitted), results)
    except Exception as error:  # noqa: BLE001 -- listed as what it is
        return Count(name, error=opinfo.summarise(error))
    return Count(name, error="eager takes no sample")


def counts(names: tuple[str, ...] = (), jobs: int = 1) -> list[Count]:
    """Of these entries, or of all, by name."""
    if jobs <= 1:
        opinfo._prepare()
        return [count(op) for op in entries(names)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=opinfo._prepare) as pool:
        call = functools.partial(_count_by_index, names=names)
        return sorted(pool.imap_unordered(call, range(len(entries(names)))), key=lambda c: c.name)


def _count_by_index(index: int, names: tuple[str, ...]) -> Count:
    return count(entries(names)[index])


# -- the table -------------------------------------------------------------------------------------------------------


def read_table() -> dict[str, NativeRow]:
    """Entry -> row."""
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {
        name: NativeRow(int(results), unpacked(atens), unpacked(emitted), tuple(reasons.split()))
        for name, results, atens, emitted, reasons in lines
    }


def write_table(table: dict[str, NativeRow]) -> None:
    """Replace the table."""
    lines = ["# OpInfo\tresults\tATen operators\tGE operators\treasons; see labs/native.py"]
    for name, row in sorted(table.items()):
        cells = (name, str(row.results), packed(row.atens), packed(row.emitted), " ".join(row.reasons))
        lines.append("\t".join(cells))
    partial = TABLE.with_suffix(".part")
    partial.write_text("\n".join(lines) + "\n")
    os.replace(partial, TABLE)


def problems(found: list[Count], table: dict[str, NativeRow]) -> list[str]:
    """Where these counts are not what the table says."""
    said = []
    for each in found:
        row = table.get(each.name)
        if each.error:
            continue  # labs.opinfo is the judge of what is refused
        if row is None and len(each.emitted) > 1:
            said.append(f"{each.name}: {len(each.emitted)} operators and no row: {' '.join(each.emitted)}")
        elif row is not None and packed(sorted(each.emitted)) != packed(sorted(row.emitted)):
            now = packed(each.emitted)
            said.append(f"{each.name}: {now}, its row says {packed(row.emitted)}; run with --update")
        elif row is not None and packed(sorted(each.atens)) != packed(sorted(row.atens)):
            said.append(
                f"{each.name}: made of {packed(each.atens)}, its row says {packed(row.atens)}; run with --update"
            )
    return said


def updated(found: list[Count], table: dict[str, NativeRow]) -> dict[str, NativeRow]:
    """The table with these counts; reasons are kept, what has none is left without, which is an error."""
    made = {n: r for n, r in table.items() if n not in {c.name for c in found if not c.error}}
    for each in found:
        old = table.get(each.name)
        if len(each.emitted) > 1:
            made[each.name] = NativeRow(each.results, each.atens, each.emitted, () if old is None else old.reasons)
    return made


# -- against the bundled torchair --------------------------------------------------------------------------------------

MOST = 800  # operators, of all entries that the bundled torchair converts


def ours(name: str, table: dict[str, NativeRow]) -> int:
    """Operators of an entry, by the table: what has no row is one at most."""
    return len(table[name].emitted) if name in table else 1


def against(
    table: dict[str, NativeRow], peers: dict[str, tuple[str, ...]], reasons: dict[str, NativeReason]
) -> list[str]:
    """Entries with more operators than the bundled one's and no reason that says why its operators would not do."""
    said = []
    for name, theirs in peers.items():
        if theirs and ours(name, table) > len(theirs) and not hard(table[name], reasons):
            row = table[name]
            said.append(f"{name}: {packed(row.emitted)}; the bundled one has {packed(theirs)}; {' '.join(row.reasons)}")
    total = sum(ours(name, table) for name in peers)
    if total > MOST:
        said.append(f"{total} operators in all, at most {MOST} are wanted")
    return said


# -- what GE offers --------------------------------------------------------------------------------------------------


@functools.cache
def _offers() -> dict[str, str]:
    """Folded name -> GE operator that a schema and a kernel have."""
    return {folded(op): op for op in registry.registered() if schema.get(op) is not None}


def candidates(name: str, emitted: tuple[str, ...]) -> list[str]:
    """GE operators that are called like the entry and are not among those emitted."""
    last = name.removeprefix("torch.ops.aten.").removesuffix(".default").split(".")
    words = {folded(w) for w in (*last, "".join(last))}
    found = [op for word in sorted(words) if (op := _offers().get(word)) is not None]
    return [op for op in found if op not in emitted]


def report(found: list[Count], table: dict[str, NativeRow]) -> None:
    """Print the entries with more than one operator, most first, and the sums."""
    print("operators\tOpInfo\tATen operators\tGE operators\tof that name in GE\treason")
    for each in sorted(found, key=lambda c: (-len(c.emitted), c.name)):
        if len(each.emitted) < 2 and not each.error:
            continue
        row = table.get(each.name)
        names = collections.Counter(each.emitted)
        emitted = " ".join(f"{n} {op}" if n > 1 else op for op, n in names.items())
        atens = " ".join(dict.fromkeys(each.atens))
        reason = each.error or (" ".join(row.reasons) if row else "")
        offer = " ".join(candidates(each.name, each.emitted))
        print(f"{len(each.emitted)}\t{each.name}\t{atens}\t{emitted}\t{offer}\t{reason}")
    done = [c for c in found if not c.error]
    total = sum(len(c.emitted) for c in done)
    several = sum(len(c.emitted) > 1 for c in done)
    print(f"{len(done)} entries, {total} operators; {several} entries with more than one")
    peers = native_peer.read()
    theirs = sum(map(len, peers.values()))
    mine = sum(ours(name, table) for name in peers)
    print(f"{len(peers)} entries that the bundled torchair converts: {mine} operators at most, its own {theirs}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="OpInfo names; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--update", action="store_true", help="write the operators in the table anew")
    options = parser.parse_args()
    found = counts(tuple(options.names), options.jobs)
    table = read_table()
    if options.update:
        table = updated(found, table)
        write_table(table)
    report(found, table)
    reasons = read()
    wrong = problems(found, table)
    wrong += [line for name, row in table.items() for line in native_reasons.problems(name, row, reasons)]
    wrong += against(table, native_peer.read(), reasons)
    for line in wrong:
        print(f"NOT EXPECTED {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
