"""Many ranks with real numbers in one process: each rank's graph, their collectives, the whole model beside them."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.distributed.device_mesh import init_device_mesh

from ge_converters.base.torch_worlds import compiled_many_times, compiles_itself, name_in_source
from ge_graph.errors import ConfigError, GeError, on_purpose
from tair_debug import models, tracing
from torchair.compiler.backend import compiles_for, get_npu_backend
from torchair.compiler.pipeline import engine_here
from torchair.ranks import alike, diagnosis, plans, programs
from torchair.ranks.engine import RanksEngine, adopt_mesh
from torchair.ranks.exchange import Exchanged
from torchair.ranks.plans import Planned
from torchair.ranks.problems import NUMBERS, Fault, RanksError, bad, listed
from torchair.ranks.programs import Build, RankedModel, Weights
from torchair.ranks.relations import Mesh, Relation, relation_of_some
from torchair.ranks.world import Member, World, here

TOLERANCE: Final = 1e-5
Loss = Callable[[Any], Any]
Trained = tuple[Any, Any]
"""A parameter, None for one that ``torch.distributed`` keeps in parts, and its gradient, None if there is none."""


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
    loss: Loss | None = None,
    dynamic: bool = False,
    compiler_config: Any = None,
    tolerance: float = TOLERANCE,
) -> RanksReport:
    """Carry out a model on many ranks in this process and compare it with the whole one in eager mode.

    Each rank compiles its own graph under ``torch.distributed`` as it is; ranks that do the same operator by operator
    share what one of them compiled, without ``backward`` and ``dynamic``. The graphs are compared before the first one
    runs; then they run in lock-step, with real numbers.

    A model that compiles itself (by ``torch.compile`` or ``Module.compile`` in the function that cuts it) is called as
    it is: hooks and schedules run between its graphs, as with ``fully_shard`` and pipelines, and their collectives
    take place in the same world. If parameters have gradients after the calls, the model carries out its own backward.

    Args:
        model: With ``shard``: the whole model. Without: a function of a ``DeviceMesh`` that returns the model of the
            rank that calls it, or (model, args) or (model, args, kwargs), and the whole model for None.
        inputs: A tuple of the model's inputs; a list of tuples for several calls, whose state lives on.
        kwargs: Inputs by keyword.
        mesh: Name of each dimension of the mesh to its length, outermost first.
        shard: ``shard(model, mesh)`` cuts a copy of the model for the rank that calls it, as ``parallelize_module``
            does. It may return another model, or (model, args) with the rank's own inputs.
        backward: Also compare gradients, those of the sum of all floating-point results.
        loss: From what the model returns to a scalar: compare the gradients of the sum over all calls. Where ranks
            average gradients, as with data in parallel, it has to be a mean.
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
    if loss is None and backward:
        loss = sum_of_results
    return run(build, sizes, loss=loss, dynamic=dynamic, config=compiler_config, tolerance=tolerance)


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
    build: Build, sizes: dict[str, int], *, loss: Loss | None, dynamic: bool, config: Any, tolerance: float
) -> RanksReport:
    """See ``check_ranks``."""
    report = RanksReport(sizes)
    mesh = Mesh(sizes)
    try:
        whole = Reference(build, loss)
    except Exception as error:
        raise _untraceable(error, "the whole model") from error
    ready = functools.partial(prepared, build=build, sizes=sizes)
    weights, engine = Weights(), RanksEngine()
    world = World(mesh.count, functools.partial(_compare_graphs, report))
    backend = get_npu_backend(compiler_config=config)
    compiler = functools.partial(torch.compile, backend=backend, fullgraph=True, dynamic=dynamic)
    found = None if loss or dynamic or mesh.count == 1 else alike.recorded(mesh.count, ready)
    shared = None if found is None else alike.Programs(found, compiler)
    report.traced = mesh.count if found is None else len({keys[0][0] for keys in found.keys if keys})
    work = functools.partial(_rank, build, sizes, weights, engine, loss, compiler, shared)
    try:
        with torch.set_grad_enabled(loss is not None), compiled_many_times(mesh.count):
            results = world.run(work)
    except RanksError as error:
        report.faults = list(error.faults)
        results = None
    except Exception as error:
        # a wrong shape may be what a wrong collective has made
        report.faults = diagnosis.find(build, ready, sizes, tolerance, gradients=loss is not None)
        if not report.faults:
            raise _untraceable(error, "the model of a rank", cut=True) from error
        results = None
    report.programs = [list(m.programs) for m in world.members]
    report.log, report.graphs, report.distinct = world.log, engine.graphs, engine.distinct
    report.held, report.kept = weights.held, weights.kept
    if results is not None:
        _compare(report, whole, results, mesh, tolerance)
        wrong = [c for c in report.compared if not c.relation.good]
        if wrong:
            found_by_module = diagnosis.find(build, ready, sizes, tolerance, gradients=loss is not None)
            report.faults = found_by_module or [_unexplained(wrong[0])]
    return report


def _untraceable(error: Exception, name: str, *, cut: bool = False) -> GeError:
    found = tracing.untraceable(models.Subject(lambda: None, name=name), error, fake=False)
    if not cut or on_purpose(error) is not None:
        return found
    return ConfigError(
        found.code,
        found.what,
        where=found.where,
        next="the whole model runs: look at what the cut gives this rank, and whether the mesh divides its sizes",
    )


def _compare_graphs(report: RanksReport, gate: list[Member]) -> None:
    """Refuse graphs that do not fit together, before any of them runs."""
    faults = plans.check({m.rank: m.planned for m in gate})
    if faults:
        raise RanksError.of(faults)


class Reference:
    """The whole model in eager mode.

    Attributes:
        results: For each call, its tensors.
        parameters: By name, those that have a gradient.
    """

    def __init__(self, build: Build, loss: Loss | None) -> None:
        self.program = build(None)
        with torch.set_grad_enabled(loss is not None):
            self.results, held = carry_out(self.program.model, self.program, loss)
        self.parameters = {name: (value, grad) for name, (value, grad) in held.items() if grad is not None}


def sum_of_results(result: Any) -> Any:
    """The loss where there is none: all floating-point results added up; None if there is nothing to derive."""
    total = [t.sum() for t in programs.tensors(result) if t.requires_grad and t.is_floating_point()]
    return functools.reduce(torch.add, total) if total else None


def carry_out(
    call: Callable[..., Any], program: RankedModel, loss: Loss | None, member: Member | None = None
) -> tuple[list[list[torch.Tensor]], dict[str, Trained]]:
    """All calls of a program; its parameters with the gradients of the sum of their losses."""
    made = [call(*args, **kwargs) for args, kwargs in program.steps]
    module = program.model if isinstance(program.model, torch.nn.Module) else torch.nn.Module()
    if loss is not None and all(p.grad is None for p in module.parameters()):
        total = [value for value in map(loss, made) if value is not None]
        if total:
            functools.reduce(torch.add, total).backward()
    if member is not None:
        member.quiet = True
    results = [[_plain(t) for t in programs.tensors(each)] for each in made]
    trained: dict[str, Trained] = {}
    # after the backward: until then modules of FSDP2 show whole parameters, of which only the memory goes
    for name, p in module.named_parameters() if loss is not None else ():
        value = None if hasattr(p, "full_tensor") else p.detach()
        trained[name_in_source(name)] = (value, None if p.grad is None else _plain(p.grad))
    return results, trained


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
    loss: Loss | None,
    compiler: Callable[..., Callable[..., Any]],
    shared: alike.Programs | None,
    rank: int,
) -> Any:
    """What one rank does."""
    member = here()
    assert member is not None
    engine_here.set(engine)
    compiles_for.set(uuid.uuid4().hex)
    program = prepared(member, build=build, sizes=sizes)
    if loss is None:
        weights.share(program.model)
    model = program.model
    if compiles_itself(model):
        member.alone = True
        return carry_out(model, program, loss, member)

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    if shared is not None:
        return carry_out(shared.of(rank, call), program, loss, member)
    # dynamo keeps what it compiles with the code object: each rank has its own
    call.__code__ = call.__code__.replace(co_name=f"rank_{rank}")
    return carry_out(compiler(call), program, loss, member)


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
        having = [r for r, g in enumerate(got) if g]  # of a pipeline those of one stage have results
        step = f"step {number} " if len(whole.results) > 1 else ""
        for i, want in enumerate(wanted):
            name = f"{step}result {i}"
            short = tuple(r for r in having if i >= len(got[r]))
            if short or not having:
                report.compared.append(Compared(name, Relation("differs", "missing", short)))
            else:
                made = {r: got[r][i] for r in having}
                report.compared.append(Compared(name, relation_of_some(made, want, mesh, tolerance)))
    for name, (value, want) in whole.parameters.items():
        held = {rank: r[1][name] for rank, r in enumerate(results) if name in r[1]}
        plain = {rank: own for rank, (own, _) in held.items() if own is not None}
        # one that a rank has counted anew, so that it is another parameter of the whole model, has no name in common
        if not held or plain and not relation_of_some(plain, value, mesh, tolerance).good:
            continue
        made = {rank: grad for rank, (_, grad) in held.items() if grad is not None}
        short = tuple(rank for rank in held if rank not in made)
        found = Relation("differs", "missing", short) if short else relation_of_some(made, want, mesh, tolerance)
        report.compared.append(Compared(f"gradient of {name}", found))


def _unexplained(compared: Compared) -> Fault:
    """The fault where eager ranks do what the whole model does, or where no module shows the difference first."""
    r = compared.relation
    of_ranks = f"{compared.name}{f' of {listed(r.ranks)}' if r.ranks else ''}"
    said = {
        "partial": f"{of_ranks}: its values are summands: a reduction over {r.detail} is missing",
        "scaled": f"{of_ranks}: its values are {r.detail}: a reduction too many",
    }
    if r.detail == "missing":
        said["differs"] = f"{of_ranks} is missing"
    return Fault(
        NUMBERS,
        said.get(r.kind)
        or f"{of_ranks} differs from the whole model's by {r.worst:.1e} "
        "of its largest element, and no module shows it first",
        r.ranks,
        kind="differs",
    )
