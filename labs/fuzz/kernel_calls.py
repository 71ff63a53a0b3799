"""Calls of the embedded engine's kernels that work: what converters' declared forms run, and the
conformance suite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import torch

from ge_graph import Graph, building, schema
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Int
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_runtime.conformance import elementwise_cases, index_cases, shape_cases
from ge_runtime.cpu import registry
from ge_runtime.cpu.engine import CpuExecutable
from ge_runtime.cpu.values import GE_OF

_LARGEST: Final = 1 << 14  # elements of an operand
_EACH: Final = 8  # calls of one operator

Operand = Any  # a tensor, None, or a tuple of tensors


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One node.

    Attributes:
        op: GE operator type.
        operands: One entry a port.
        attrs: As in the node.
        types: Of the results.
        counts: Number of results by dynamic output port.
        fixed: Positions of operands that are constants of the graph.
        together: Whether operands of one type lie in one another's memory.
    """

    op: str
    operands: tuple[Operand, ...]
    attrs: dict[str, Attr]
    types: tuple[DataType, ...]
    counts: dict[str, int]
    fixed: frozenset[int] = frozenset()
    together: bool = False

    def __str__(self) -> str:
        shown = [_shown(o) + ("c" if i in self.fixed else "") for i, o in enumerate(self.operands)]
        shown += [f"{name}={attr.value!r}" for name, attr in self.attrs.items() if not name.startswith("_")]
        return f"{self.op}({', '.join(shown)})" + (" in one memory" if self.together else "")

    def graph(self) -> tuple[Graph, list[torch.Tensor]]:
        """A graph of this one node, and what to feed it."""
        graph, fed = Graph("call"), list[torch.Tensor]()
        kernel = registry.find(self.op)
        updated = kernel.updates if kernel is not None else ()

        def place(value: Operand, index: int, port: str) -> Any:
            if value is None or isinstance(value, tuple):
                return value if value is None else tuple(place(v, index, port) for v in value)
            if index in self.fixed:
                return ge.Const(value.numpy())
            fed.append(value)
            made = [(GE_OF[value.dtype], tuple(value.shape))]
            if port in updated:
                return graph.add("RefData", [None], {"index": Int(len(fed) - 1)}, made).outputs[0]
            return ge.Data(index=len(fed) - 1, dtype=made[0][0], shape=made[0][1])

        with building(graph):
            ports = [p.name for p in schema.require(self.op).inputs]
            inputs = [place(v, i, port) for i, (v, port) in enumerate(zip(self.operands, ports))]
        node = graph.add(self.op, inputs, dict(self.attrs), [(t, None) for t in self.types])
        node.output_counts.update(self.counts)
        graph.outputs = list(node.outputs)
        return graph, fed


def _shown(value: Operand) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if value is None:
        return "None"
    text = f"{GE_OF[value.dtype].short}{list(value.shape)}"
    if not value.is_contiguous():
        text += f"/{list(value.stride())}"
    if 0 < value.numel() <= 6 or (value.numel() <= 40 and not value.is_floating_point()):
        text += f"={value.tolist()}"
    return text


def calls(forms: bool = True) -> dict[str, list[KernelCall]]:
    """Calls by operator: of the forms that converters declare, if asked for, and of the conformance suite."""
    found: dict[str, dict[str, KernelCall]] = {}
    if forms:
        from ge_converters.report import smoke  # loads every converter

        with _told(lambda node, ins: _keep(found, node, ins)):
            engine = smoke.find_engine("cpu")
            for form in smoke.cases():
                smoke.run(form, engine)
    for module in (elementwise_cases, index_cases, shape_cases):
        for case in module.cases():
            graph, fed = case.graph(feed_numbers=True)
            node = graph.outputs[0].node
            if all(e.node.op == "Data" for e in node.operands()):
                _keep(found, node, [torch.from_numpy(fed[e.node.attr("index")]) for e in node.operands()])
    return {op: list(kept.values()) for op, kept in sorted(found.items())}


@contextlib.contextmanager
def _told(keep: Callable[[Node, Sequence[Any]], None]) -> Iterator[None]:
    plain = CpuExecutable.run_traced

    def run_traced(self: CpuExecutable, inputs: Sequence[Any], on_node: Callable[..., None]) -> list[torch.Tensor]:
        def both(node: Node, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            keep(node, ins)
            on_node(node, ins, outs)

        return plain(self, inputs, both)

    with mock.patch.object(CpuExecutable, "run_traced", run_traced):
        yield


def _keep(found: dict[str, dict[str, KernelCall]], node: Node, ins: Sequence[Any]) -> None:
    kept = found.setdefault(node.op, {})
    if len(kept) >= _EACH or node.subgraphs or any(v.numel() > _LARGEST for v in ins):
        return
    left = iter(ins)

    def taken(entry: Any) -> Operand:
        if isinstance(entry, Tensor):
            return next(left).detach().clone()
        return None if entry is None else tuple(taken(e) for e in entry)

    call = KernelCall(
        node.op,
        tuple(taken(e) for e in node.inputs),
        dict(node.attrs),
        tuple(t.dtype for t in node.outputs),
        dict(node.output_counts),
    )
    form = [GE_OF[v.dtype].short + str(v.dim()) for v in ins]
    kept.setdefault(f"{form} {[(n, a.value) for n, a in call.attrs.items() if not n.startswith('_')]}", call)
