"""How many GE operators each operator of torch becomes, against the one that GE offers.

    python -m tools.native              every OpInfo: its operators, what GE has instead, why it is not used
    python -m tools.native renorm glu   some of them
    python -m tools.native --update     write the counts in the table of reasons anew

Counted is what a float32 forward of the first sample leaves for an engine after all passes: inputs, constants and
operators that nobody reads do not count. Where more than one is left, `tests/native/compositions.tsv` says why: an
entry without a reason, one with more operators than its row admits, and a row that is no longer needed are errors.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch
from torch._functorch.aot_autograd import aot_module_simplified

from ge_converters.decompose.table import decomposition_table
from ge_converters.decompose.whole import KeepWhole
from ge_graph import Graph
from tools import opinfo
from torchair.config import CompilerConfig
from torchair.pipeline import Pipeline

TABLE = Path(__file__).resolve().parent.parent / "tests" / "native" / "compositions.tsv"
_FREE = frozenset(["Data", "RefData", "Const", "Constant", "NetOutput"])
_SECONDS = 60


@dataclass(frozen=True)
class Count:
    """What one OpInfo became.

    Attributes:
        name: The entry.
        atens: ATen operators that reached the converters.
        emitted: GE operators, in order.
        error: Why there is no count; empty if there is one.
    """

    name: str
    atens: tuple[str, ...] = ()
    emitted: tuple[str, ...] = ()
    error: str = ""


def live(graph: Graph) -> list[str]:
    """Operator types of the nodes that an engine runs: those that lead to a result or have an effect."""
    wanted = [t.node for t in graph.outputs]
    wanted += [n for n in graph.nodes if not n.outputs]
    seen = set()
    while wanted:
        node = wanted.pop()
        if node in seen:
            continue
        seen.add(node)
        wanted += [t.node for t in node.operands()]
        wanted += list(getattr(node, "control", ()))
    return [n.op for n in graph.nodes if n in seen and n.op not in _FREE]


class _Enough(Exception):
    """Raised instead of running what was compiled."""


def graphs_of(call: Any, args: Any, kwargs: Any) -> tuple[list[str], list[str]]:
    """ATen operators and GE operators of one call."""
    atens: list[str] = []
    emitted: list[str] = []

    def run(*_: Any) -> Any:
        raise _Enough

    def lower(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        atens.extend(str(n.target) for n in gm.graph.nodes if n.op == "call_function")
        emitted.extend(live(Pipeline(CompilerConfig(), "forward", 0).to_graph(gm, inputs, lambda x: x).graph))
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
            torch.manual_seed(5)
            for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
                args, kwargs = opinfo.clone(((sample.input, *sample.args), sample.kwargs))
                try:
                    op.op(*opinfo.clone(args), **opinfo.clone(kwargs))
                except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError):
                    continue
                atens, emitted = graphs_of(lambda *a, **k: op.op(*a, **k), args, kwargs)
                return Count(name, tuple(atens), tuple(emitted))
    except Exception as error:  # noqa: BLE001 -- listed as what it is
        return Count(name, error=opinfo.summarise(error))
    return Count(name, error="eager takes no sample")


@functools.cache
def entries(names: tuple[str, ...] = ()) -> list[Any]:
    return [op for op, _ in opinfo.all_checks(names, ("f32",))]


def counts(names: tuple[str, ...] = (), jobs: int = 1) -> list[Count]:
    """Of these entries, or of all."""
    if jobs <= 1:
        opinfo._prepare()
        return [count(op) for op in entries(names)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=opinfo._prepare, maxtasksperchild=200) as pool:
        call = functools.partial(_count_by_index, names=names)
        return sorted(pool.imap_unordered(call, range(len(entries(names)))), key=lambda c: c.name)


def _count_by_index(index: int, names: tuple[str, ...]) -> Count:
    return count(entries(names)[index])
