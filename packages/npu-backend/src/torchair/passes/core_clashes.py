"""Communication tasks that may keep each other waiting for cores for ever.

A communication task occupies its vector cores until the other ranks have come as far. Two of them on two streams that
can be ready together dead-lock when the chip has fewer vector cores than both want: each rank may begin with another
one. The rule is the published one of the check of captured graphs; here it is applied to the program, before a device.

Tasks of one stream follow each other. A collective of torch.distributed runs on a stream of its group: it begins after
what was launched before, and the stream goes on until it waits for the result. Operators that compute and communicate
run where they stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.provenance import user_frame
from torchair.oplib.torch_ops import name_of
from torchair.passes.scopes import effect

FxNode: TypeAlias = torch.fx.Node
STREAM: Final = "_user_stream_label"
VECTOR_CORES: Final = "_op_vectorcore_num"
_COLLECTIVES: Final = ("_c10d_functional", "_c10d_functional_autograd")
_WAITS: Final = ("wait_tensor",)
_GROUPS: Final = ("hcom", "group_ep", "group_tp")


@dataclass(frozen=True, slots=True)
class CommunicationTask:
    """A communication task.

    Attributes:
        name: Its operator.
        node: Name of the FX node.
        stream: Where it runs.
        cores: Vector cores that it may take at most; None if nothing limits them.
        where: The user's line.
    """

    name: str
    node: str
    stream: str
    cores: int | None
    where: str

    def __str__(self) -> str:
        cores = "no limit of" if self.cores is None else str(self.cores)
        place = f" at {self.where}" if self.where else ""
        return f"[stream {self.stream or 'default'}] {self.name} ({cores} AIVEC){place}"


@dataclass(frozen=True, slots=True)
class Clash:
    """Two tasks that can be ready together.

    Attributes:
        first, second: The tasks.
        total: Vector cores of the chip.
        certain: Whether both have a limit; a task without one may take every core, but whether it does, which depends
            on how the collective is expanded, no program says.
    """

    first: CommunicationTask
    second: CommunicationTask
    total: int
    certain: bool

    def __str__(self) -> str:
        wanted = sum(self.total if t.cores is None else t.cores for t in (self.first, self.second))
        mark = "CONFLICT" if self.certain else "POSSIBLE"
        return f"{mark}: {self.first} <-> {self.second} sum={wanted} > {self.total}"


def communicates(target: Any) -> bool:
    """Whether an operator waits for other ranks while it occupies cores."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target.namespace in _COLLECTIVES:
        return target._schema.name.split("::")[1] not in _WAITS
    return target.namespace.startswith("npu") and any(a.name in _GROUPS for a in target._schema.arguments)


def clashes(graph: torch.fx.Graph, vector_cores: int) -> list[Clash]:
    """The pairs of communication tasks that together want more vector cores than there are.

    Args:
        graph: After the passes, with its scopes, records and waits.
        vector_cores: Of the chip.
    """
    tasks = list(_Order().read(graph))
    found = []
    for k, (second, _, before) in enumerate(tasks):
        for first, bit, _ in tasks[:k]:
            if first.stream == second.stream or bit & before:
                continue
            wanted = sum(vector_cores if t.cores is None else min(t.cores, vector_cores) for t in (first, second))
            if wanted > vector_cores:
                certain = first.cores is not None and second.cores is not None
                found.append(Clash(first, second, vector_cores, certain))
    return found


def report(found: Sequence[Clash]) -> str:
    """The lines that a screen shows."""
    return "\n".join([f"[RESULT] {len(found)} conflicting pairs", *(f"  {clash}" for clash in found)])


class _Order:
    """What has run before each task begins: one set of bits a task."""

    def __init__(self) -> None:
        self._done: dict[FxNode, int] = {}  # before the node's result is there, itself included
        self._last: dict[str, int] = {}  # stream to what has run when its next task begins
        self._number = 0

    def read(self, graph: torch.fx.Graph) -> Iterator[tuple[CommunicationTask, int, int]]:
        """The communication tasks in the order of their launch, each with its bit and the bits of what ends before."""
        scopes: list[dict[str, str]] = []
        for node in graph.nodes:
            kind = effect(node)
            if kind == "scope_enter":
                scopes.append({**(scopes[-1] if scopes else {}), **dict(zip(*node.args[:2], strict=True))})
            elif kind == "scope_exit":
                scopes.pop()
            elif node.op == "call_function":
                launched = self._launch(node, scopes[-1] if scopes else {})
                if launched is not None:
                    yield launched

    def _launch(self, node: FxNode, scope: dict[str, str]) -> tuple[CommunicationTask, int, int] | None:
        here = scope.get(STREAM, "")
        known = self._last.get(here, 0)
        for source in node.all_input_nodes:
            if not _unfinished(source) or _waits(node):
                known |= self._done.get(source, 0)
        if not communicates(node.target):
            self._last[here] = self._done[node] = known
            return None
        stream = here if not _of_group(node) else f"of group {_group(node)}"
        known |= self._last.get(stream, 0)
        bit = 1 << self._number
        self._number += 1
        self._last[stream] = self._done[node] = known | bit
        limit = int(scope.get(VECTOR_CORES) or 0)
        return (
            CommunicationTask(str(node.target), node.name, stream, limit or None, user_frame(node)[0] or ""),
            bit,
            known,
        )


def _of_group(node: FxNode) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in _COLLECTIVES


def _unfinished(node: FxNode) -> bool:
    """Whether a value is there only after a wait for it."""
    return _of_group(node) and communicates(node.target)


def _waits(node: FxNode) -> bool:
    return (_of_group(node) and not communicates(node.target)) or name_of(node.target) in (
        "wait",
        "wait_tensor",
        "after",
    )


def _group(node: FxNode) -> str:
    schema = node.target._schema
    values = {**dict(zip((a.name for a in schema.arguments), node.args)), **node.kwargs}
    return str(next((v for k, v in values.items() if k in ("group_name", "tag")), ""))
