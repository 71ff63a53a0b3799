"""The embedded engine for a rank of a world: graphs wait for each other, equal ones are planned once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from ge_graph import Graph, Literal, serde
from ge_graph.attrs import Attr
from ge_runtime.api import Capability, Executable
from ge_runtime.cpu.engine import CpuEngine
from ge_runtime.cpu.groups import finders
from torchair.ranks import plans
from torchair.ranks.exchange import Place
from torchair.ranks.plans import Planned
from torchair.ranks.problems import bad
from torchair.ranks.world import Member, here


class RanksEngine:
    """The embedded engine; every run first waits until the graphs of all ranks have been compared."""

    name = "cpu"

    def __init__(self) -> None:
        self._inner = CpuEngine()
        self._known: dict[tuple[Any, ...], Executable] = {}
        self.graphs = 0

    @property
    def distinct(self) -> int:
        """Number of graphs that differ."""
        return len(self._known)

    def probe(self) -> Capability:
        """Always available."""
        return self._inner.probe()

    def place(self, value: Literal) -> Any:
        """A constant as a tensor."""
        return self._inner.place(value)

    def compile(self, graph: Graph, options: Mapping[str, str]) -> RanksExecutable:
        """As the embedded engine; a graph that another rank has is taken from it."""
        member = here()
        assert member is not None, "no thread of a world"
        name, graph.name = graph.name, "graph"
        try:
            with _group_roles(graph, member):
                key = (serde.to_bytes(graph, provenance=False), *sorted(options.items()))
                if key not in self._known:
                    self._known[key] = self._inner.compile(graph, options)
        finally:
            graph.name = name
        made = RanksExecutable(self, graph, self._known[key])
        made.planned(member)
        return made


@contextlib.contextmanager
def _group_roles(graph: Graph, member: Member) -> Iterator[None]:
    """Call groups by their dimension of the mesh, which is the same on every rank; the engine asks ``group_here``."""
    # an executable keeps what it was planned from, so the names stay
    for node in graph.nodes:
        for attr in plans.GROUPS:
            role = member.roles.get(str(node.attr(attr))) if node.attr(attr) else None
            if role is not None:
                node.attrs[attr] = Attr(node.attrs[attr].kind, role)
        for inner in node.subgraphs.values():
            with _group_roles(inner, member):
                pass
    yield


def group_here(name: str) -> Any:
    """The process group that has a role for the rank of this thread; None if it is none."""
    member = here()
    return None if member is None else member.role_groups.get(name)


finders.append(group_here)


class RanksExecutable:
    """A graph of one rank, or of several that do the same."""

    def __init__(self, engine: RanksEngine, graph: Graph, inner: Executable) -> None:
        self._engine, self._graph, self._inner = engine, graph, inner
        self._planned: dict[int, Sequence[Planned]] = {}

    def planned(self, member: Member) -> Sequence[Planned]:
        """The collectives of a rank; a rank that asks for the first time has one more graph.

        Errors: ConfigError GE1080 if a rank that compiles for itself is given what another one compiled.
        """
        known = self._planned.get(member.rank)
        if known is None:
            if member.alone and self._planned:
                raise bad(
                    f"rank {member.rank} was given a graph that rank {next(iter(self._planned))} compiled",
                    "call torch.compile and get_npu_backend inside the function that makes a rank's model",
                )
            known = plans.collectives(self._graph, member.ranks_of, len(member.programs))
            self._planned[member.rank] = known
            member.programs.append(known)
            self._engine.graphs += 1
        return known

    @property
    def source(self) -> str:
        """The program as text."""
        return self._inner.source

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run when all ranks may."""
        with self._turn():
            return self._inner.run(inputs)

    def run_traced(self, inputs: Sequence[Any], on_node: Callable[..., None]) -> list[Any]:
        """As ``run``, and tell each node."""
        with self._turn():
            return self._inner.run_traced(inputs, on_node)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        member = here()
        assert member is not None, "no thread of a world"
        member.planned = planned = self.planned(member)
        if planned:
            member.world.pause(member, "gate")
        before, member.place = member.place, _Places(planned)
        try:
            yield
        finally:
            member.place = before
            member.planned = ()


class _Places:
    """From one collective after another to its place in the graph."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._left = [each for each in planned for _ in range(each.times)]
        self._last: Place | None = None

    def __call__(self, kind: str) -> Place | None:
        at = next((i for i, each in enumerate(self._left) if each.kind == kind), None)
        if at is not None:
            self._last = self._left[at].place
            del self._left[: at + 1]
        return self._last


def adopt_mesh(member: Member, mesh: Any) -> None:
    """Remember which group of a rank is which dimension of the mesh."""
    for name in mesh.mesh_dim_names:
        group = mesh.get_group(name)
        role = f"mesh_{name}"
        if group.group_name not in member.roles:
            member.roles[group.group_name] = role
            member.role_groups[role] = group
    world = dist.group.WORLD
    if world is not None and world.group_name not in member.roles:
        member.roles[world.group_name] = "mesh_world"
        member.role_groups["mesh_world"] = world
