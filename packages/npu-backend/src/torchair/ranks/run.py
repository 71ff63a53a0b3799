"""Many ranks with real numbers in one process: each rank's graph, their collectives, the whole model beside them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.distributed.device_mesh import init_device_mesh

from ge_graph.errors import GeError
from tair_debug import models, tracing
from torchair.compiler.backend import get_npu_backend
from torchair.compiler.pipeline import engine_here
from torchair.ranks import alike, diagnosis, plans, programs
from torchair.ranks.engine import RanksEngine, adopt_mesh
from torchair.ranks.exchange import Exchanged
from torchair.ranks.plans import Planned
from torchair.ranks.problems import NUMBERS, Fault, RanksError, bad, listed
from torchair.ranks.programs import Build, RankedModel, Weights
from torchair.ranks.relations import Mesh, Relation, relation
from torchair.ranks.world import Member, World, here

TOLERANCE: Final = 1e-5


@dataclass(frozen=True)
class Compared:
    """A result of the ranks beside the whole model's.

    Attributes:
        name: Such as ``result 0``, ``step 1 result 0`` or ``gradient of model.weight``.
        relation: How they stand to each other.
    """

    name: str
    relation: Relation


@dataclass
class RanksReport:
    """What became of the ranks.

    Attributes:
        mesh: Name of each dimension of the mesh to its length.
        faults: What is wrong, the first one first; empty if all is well.
        compared: Results and gradients beside the whole model's.
        programs: By rank, the collectives of each of its graphs.
        log: Collectives that took place, with bytes.
        graphs: Graphs of all ranks.
        distinct: Those that differ.
        traced: Ranks that were traced; the others do what one of these does.
        held: Bytes of parameters that the ranks hold, each for itself.
        kept: Bytes that are there, because equal ones are one.
    """

    mesh: dict[str, int]
    faults: list[Fault] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    programs: list[list[Sequence[Planned]]] = field(default_factory=list)
    log: list[Exchanged] = field(default_factory=list)
    graphs: int = 0
    distinct: int = 0
    traced: int = 0
    held: int = 0
    kept: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return Mesh(self.mesh).count

    @property
    def worst(self) -> float:
        """Largest difference from the whole model, relative to the largest element of the value."""
        return max((c.relation.worst for c in self.compared), default=0.0)

    def raise_faults(self) -> None:
        """Errors: RanksError (GE4070 to GE4073) if something is wrong."""
        if self.faults:
            raise RanksError.of(self.faults)


def check_ranks(
    model: Callable[..., Any],
    inputs: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mesh: Mapping[str, int],
    shard: Callable[..., Any] | None = None,
    backward: bool = False,
    dynamic: bool = False,
    compiler_config: Any = None,
    tolerance: float = TOLERANCE,
) -> RanksReport:
    """Carry out a model on many ranks in this process and compare it with the whole one in eager mode.

    Each rank compiles its own graph under ``torch.distributed`` as it is; ranks that do the same operator by operator
    share what one of them compiled, without ``backward`` and ``dynamic``. The graphs are compared before the first one
    runs; then they run in lock-step, with real numbers.

    Args:
        model: With ``shard``: the whole model. Without: a function of a ``DeviceMesh`` that returns the model of the
            rank that calls it, or (model, args) or (model, args, kwargs), and the whole model for None.
        inputs: A tuple of the model's inputs; a list of tuples for several calls, whose state lives on.
        kwargs: Inputs by keyword.
        mesh: Name of each dimension of the mesh to its length, outermost first.
        shard: ``shard(model, mesh)`` cuts a copy of the model for the rank that calls it, as ``parallelize_module``
            does. It may return another model, or (model, args) with the rank's own inputs.
        backward: Also compare gradients, those of the sum of all floating-point results.
        dynamic: Compile with symbolic sizes.
        compiler_config: A ``CompilerConfig``.
        tolerance: Largest difference that is rounding, relative to the largest element of a value.

    Returns:
        The report; its ``faults`` are empty if all is well.

    Errors: ConfigError GE1080 for a mesh, model or function that does not do; GE1047 if a rank cannot be traced into
    one graph.
    """
    sizes = checked_mesh(mesh)
    if shard is None:
        build = programs.made_by(model)
    else:
        build = programs.cut(model, programs.steps_of(inputs, kwargs), shard)
    return run(build, sizes, backward=backward, dynamic=dynamic, config=compiler_config, tolerance=tolerance)


def checked_mesh(mesh: Mapping[str, int]) -> dict[str, int]:
    """The mesh with plain numbers.

    Errors: ConfigError GE1080.
    """
    sizes = {str(name): size for name, size in mesh.items()}
    if not sizes or not all(type(s) is int and s > 0 and n.isidentifier() for n, s in sizes.items()):
        raise bad(f"the mesh is {dict(mesh)!r:.200}", "name each dimension and its length, such as tp=8 or dp=2,tp=4")
    if Mesh(sizes).count > 1024:
        raise bad(f"the mesh has {Mesh(sizes).count} ranks", "take at most 1024: a smaller mesh shows the same")
    return sizes


def run(
    build: Build, sizes: dict[str, int], *, backward: bool, dynamic: bool, config: Any, tolerance: float
) -> RanksReport:
    """See ``check_ranks``."""
    report = RanksReport(sizes)
    mesh = Mesh(sizes)
    try:
        whole = Reference(build, backward)
    except Exception as error:
        raise _untraceable(error, "the whole model") from error
    ready = functools.partial(prepared, build=build, sizes=sizes)
    weights, engine = Weights(), RanksEngine()
    world = World(mesh.count, functools.partial(_compare_graphs, report))
    backend = get_npu_backend(compiler_config=config)
    compiler = functools.partial(torch.compile, backend=backend, fullgraph=True, dynamic=dynamic)
    found = None if backward or dynamic or mesh.count == 1 else alike.recorded(mesh.count, ready)
    shared = None if found is None else alike.Programs(found, compiler)
    report.traced = mesh.count if found is None else len({keys[0][0] for keys in found.keys if keys})
    work = functools.partial(_rank, build, sizes, weights, engine, backward, compiler, shared)
    try:
        with torch.set_grad_enabled(backward):
            results = world.run(work)
    except RanksError as error:
        report.faults = list(error.faults)
        results = None
    except Exception as error:
        # a wrong shape may be what a wrong collective has made
        report.faults = diagnosis.find(build, ready, sizes, tolerance)
        if not report.faults:
            raise _untraceable(error, "the model of a rank") from error
        results = None
    report.programs = [list(m.programs) for m in world.members]
    report.log, report.graphs, report.distinct = world.log, engine.graphs, engine.distinct
    report.held, report.kept = weights.held, weights.kept
    if results is not None:
        _compare(report, whole, results, mesh, tolerance)
        wrong = [c for c in report.compared if not c.relation.good]
        if wrong:
            report.faults = diagnosis.find(build, ready, sizes, tolerance) or [_unexplained(wrong[0])]
    return report


def _untraceable(error: Exception, name: str) -> GeError:
    return tracing.untraceable(models.Subject(lambda: None, name=name), error, fake=False)


def _compare_graphs(report: RanksReport, gate: list[Member]) -> None:
    """Refuse graphs that do not fit together, before any of them runs."""
    faults = plans.check({m.rank: m.planned for m in gate})
    if faults:
        raise RanksError.of(faults)


class Reference:
    """The whole model in eager mode.

    Attributes:
        results: For each call, its tensors.
        gradients: By name of the parameter.
    """

    def __init__(self, build: Build, backward: bool) -> None:
        self.program = build(None)
        with torch.set_grad_enabled(backward):
            self.results, self.gradients = carry_out(self.program.model, self.program, backward)


def carry_out(
    call: Callable[..., Any], program: RankedModel, backward: bool, member: Member | None = None
) -> tuple[list[list[torch.Tensor]], dict[str, torch.Tensor]]:
    """All calls of a program, and the gradients of the sum of their results."""
    made = [programs.tensors(call(*args, **kwargs)) for args, kwargs in program.steps]
    if backward:
        total = [t.sum() for results in made for t in results if t.requires_grad and t.is_floating_point()]
        if total:
            functools.reduce(torch.add, total).backward()
    if member is not None:
        member.quiet = True
    results = [[_plain(t) for t in each] for each in made]
    gradients = {}
    if backward and isinstance(program.model, torch.nn.Module):
        gradients = {n: _plain(p.grad) for n, p in program.model.named_parameters() if p.grad is not None}
    return results, gradients


def _plain(value: Any) -> torch.Tensor:
    """A tensor without its graph; a DTensor as the whole value, which every rank computes."""
    value = value.detach()
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    value = value.wait() if hasattr(value, "wait") else value
    return value.clone()


def _rank(
    build: Build,
    sizes: Mapping[str, int],
    weights: Weights,
    engine: RanksEngine,
    backward: bool,
    compiler: Callable[..., Callable[..., Any]],
    shared: alike.Programs | None,
    rank: int,
) -> Any:
    """What one rank does."""
    member = here()
    assert member is not None
    engine_here.set(engine)
    program = prepared(member, build=build, sizes=sizes)
    if not backward:
        weights.share(program.model)
    model = program.model

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    if shared is not None:
        return carry_out(shared.of(rank, call), program, backward, member)
    # dynamo keeps what it compiles with the code object: each rank has its own
    call.__code__ = call.__code__.replace(co_name=f"rank_{rank}")
    return carry_out(compiler(call), program, backward, member)


def prepared(member: Member, *, build: Build, sizes: Mapping[str, int]) -> RankedModel:
    """The program of a rank, made in silence: what it communicates meanwhile is no part of the model."""
    member.quiet = True
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    adopt_mesh(member, mesh)
    program = build(mesh)
    member.quiet = False
    return program


def _compare(report: RanksReport, whole: Reference, results: Sequence[Any], mesh: Mesh, tolerance: float) -> None:
    for number, wanted in enumerate(whole.results):
        got = [r[0][number] if number < len(r[0]) else [] for r in results]
        step = f"step {number} " if len(whole.results) > 1 else ""
        for i, want in enumerate(wanted):
            values = [g[i] for g in got if i < len(g)]
            name = f"{step}result {i}"
            if len(values) < len(results):
                short = tuple(r for r, g in enumerate(got) if i >= len(g))
                report.compared.append(Compared(name, Relation("differs", "missing", short)))
            else:
                report.compared.append(Compared(name, relation(values, want, mesh, tolerance)))
    for name, want in whole.gradients.items():
        values = [r[1][name] for r in results if name in r[1]]
        if len(values) == len(results):
            report.compared.append(Compared(f"gradient of {name}", relation(values, want, mesh, tolerance)))


def _unexplained(compared: Compared) -> Fault:
    """The fault where eager ranks do what the whole model does, or where no module shows the difference first."""
    r = compared.relation
    return Fault(
        NUMBERS,
        f"{compared.name} of {listed(r.ranks)} differs from the whole model's by {r.worst:.1e} "
        "of its largest element, and no module shows it first",
        r.ranks,
        kind="differs",
    )
