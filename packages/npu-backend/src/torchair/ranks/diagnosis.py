"""Where the numbers of ranks leave the whole model's, and which collective is to blame.

A second run, eager and module by module: modules of one name in the whole and in the cut model have results that
belong together. The first one whose parts are no parts of the whole is at fault, or what it communicates is.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import torch

from ge_converters.base.torch_worlds import is_partial, local_part, name_in_source, user_frame
from ge_graph import escape
from torchair.ranks import programs
from torchair.ranks.exchange import OpenCollective, RankCall
from torchair.ranks.problems import NUMBERS, Fault, RanksError, listed
from torchair.ranks.programs import Build, RankedModel
from torchair.ranks.relations import Mesh, Relation, close, relation
from torchair.ranks.world import Member, World, here

Key = tuple[int, str, int]  # call of the model, module, how often it ran before in that call


@dataclass
class _Seen:
    """What modules of one program gave, in the order in which they ended."""

    values: dict[Key, torch.Tensor] = field(default_factory=dict)
    partial: set[Key] = field(default_factory=set)
    places: dict[Key, str] = field(default_factory=dict)
    returned: dict[Any, str] = field(default_factory=dict)
    counts: dict[tuple[int, str], int] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class _Met:
    """A collective that the cut model went through: its calls by rank, and copies of what each brought."""

    calls: Mapping[int, RankCall]
    inputs: Mapping[int, Sequence[torch.Tensor]]
    step: int

    @property
    def call(self) -> RankCall:
        """Of the least rank."""
        return self.calls[min(self.calls)]


def find(
    build: Build,
    prepared: Callable[[Member], RankedModel],
    sizes: Mapping[str, int],
    tolerance: float,
    *,
    gradients: bool,
) -> list[Fault]:
    """The fault that explains why the ranks' numbers differ; empty if eager ranks agree with the whole model.

    Args:
        build: Makes the whole model and those of the ranks.
        prepared: Makes the program of the rank of this thread.
        sizes: The mesh.
        tolerance: See ``relations.relation``.
        gradients: Whether autograd takes part, as models that carry out their own backward need it.
    """
    whole = _Seen()
    with torch.set_grad_enabled(gradients):
        _watched(build(None), whole, None)
    world = World(Mesh(sizes).count)
    seen = [_Seen() for _ in world.members]
    met: list[_Met] = []

    def keep(meeting: OpenCollective) -> None:
        if not any(world.members[r].quiet for r in meeting.calls):
            copies = {r: [x.detach().clone() for x in c.inputs] for r, c in meeting.calls.items()}
            met.append(_Met(dict(meeting.calls), copies, seen[meeting.members[0]].step))

    def work(rank: int) -> None:
        member = here()
        assert member is not None
        _watched(prepared(member), seen[rank], member)

    world.on_call = keep
    failed: list[Fault] = []
    try:
        with torch.set_grad_enabled(gradients), torch.compiler.set_stance("force_eager"):
            world.run(work)
    except RanksError as error:
        failed = list(error.faults)
    except Exception as error:  # noqa: BLE001  (what a wrong shape raises; the modules before it are seen)
        failed = _raised(error, met)
    return _judged(whole, seen, met, Mesh(sizes), tolerance) or failed


def _raised(error: Exception, met: Sequence[_Met]) -> list[Fault]:
    """The fault of ranks that cannot go on because sizes do not fit after a collective."""
    if not met or not isinstance(error, (RuntimeError, ValueError, IndexError)):
        return []
    call = met[-1].call
    before = f" and {met[-2].call.line()}" if len(met) > 1 else ""
    said = (str(error).strip().splitlines() or [""])[0]
    what = f"after {call.line()}{before} the model raises {type(error).__name__}: {escape.line(said, 300)}"
    place = call.place
    return [Fault(NUMBERS, what, (call.rank,), call.title(), listed(call.group), place.source, place.module, "raises")]


def _watched(program: RankedModel, seen: _Seen, member: Member | None) -> None:
    """Run a program and keep the results of its modules."""
    handles: list[Any] = []
    codes: set[Any] = set()
    if isinstance(program.model, torch.nn.Module):
        for name, module in program.model.named_modules():
            if type(module).__module__.partition(".")[0] not in ("torch", "torchair"):
                codes.add(getattr(type(module).forward, "__code__", None))
            name = name_in_source(name)
            handles.append(module.register_forward_pre_hook(partial(_before, name, seen, member)))
            handles.append(module.register_forward_hook(partial(_after, name, seen, member)))

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "return" and frame.f_code in codes:
            seen.returned[frame.f_code] = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"

    before = sys.getprofile()
    sys.setprofile(profile)  # of this thread: the line at which a module of the user's returns
    try:
        for step, (args, kwargs) in enumerate(program.steps):
            seen.step = step
            program.model(*args, **kwargs)
    finally:
        sys.setprofile(before)
        for handle in handles:
            handle.remove()


def _before(name: str, seen: _Seen, member: Member | None, module: Any, inputs: Any) -> None:
    if member is not None:
        member.modules.append(name)


def _after(name: str, seen: _Seen, member: Member | None, module: Any, inputs: Any, output: Any) -> None:
    if member is not None:
        member.modules.pop()
    number = seen.counts.get((seen.step, name), 0)
    seen.counts[seen.step, name] = number + 1
    found = programs.tensors(output)
    if not found:
        return
    key = (seen.step, name, number)
    value = found[0].detach()
    if hasattr(value, "wait"):
        quiet = member is not None and member.quiet
        value = value.wait()
        if member is not None:
            member.quiet = quiet
    if is_partial(value):
        seen.partial.add(key)
    seen.values[key] = local_part(value).clone()
    code = getattr(type(module).forward, "__code__", None)
    seen.places[key] = seen.returned.get(code) or user_frame()[0]


# --- judging ---------------------------------------------------------------------------------------------------------


def _judged(whole: _Seen, seen: Sequence[_Seen], met: Sequence[_Met], mesh: Mesh, tolerance: float) -> list[Fault]:
    found: dict[Key, Relation] = {}
    for key, want in whole.values.items():
        if any(key not in s.values for s in seen) or any(key in s.partial for s in seen):
            continue
        found[key] = relation([s.values[key] for s in seen], want, mesh, tolerance * 10)
    bad = [key for key, r in found.items() if not r.good and not _inside_good(key, found)]
    if not bad:
        return []
    # summands and the like say more than a mere difference, which may be what a module rightly keeps to itself
    first = next((k for k in bad if found[k].kind != "differs"), bad[0])
    if found[bad[0]].kind == "differs" and not _inside(bad[0], first):
        first = next((k for k in bad if _inside(bad[0], k) and found[k].kind != "differs"), _outermost_new(bad, found))
    return [_fault(first, found[first], seen, met, whole.values[first], mesh, tolerance * 10)]


def _outermost_new(bad: Sequence[Key], found: Mapping[Key, Relation]) -> Key:
    """Of the first module that differs and those around it, the one that the most is known of: the first that some
    ranks have right, else the first."""
    around = [k for k in bad if k == bad[0] or _inside(bad[0], k)]
    size = len(found[bad[0]].ranks)
    return next((k for k in around if len(found[k].ranks) < size), bad[0])


def _inside(key: Key, other: Key) -> bool:
    """Whether one module is part of another."""
    return key[0] == other[0] and (other[1] == "" or key[1].startswith(f"{other[1]}."))


def _inside_good(key: Key, found: Mapping[Key, Relation]) -> bool:
    """Whether a module around gives the right value, so that what it has inside is its own affair."""
    parts = key[1].split(".")
    around = [".".join(parts[:n]) for n in range(len(parts))]
    return any(r.good for (step, name, _), r in found.items() if step == key[0] and name in around)


def _fault(
    key: Key, r: Relation, seen: Sequence[_Seen], met: Sequence[_Met], want: torch.Tensor, mesh: Mesh, tolerance: float
) -> Fault:
    step, name, _ = key
    mine = [m for m in met if m.step == step and _within(m.call.place.module, name)]
    kind, what, guilty = _explained(r, mine, want, mesh, tolerance)
    if guilty is not None:
        call = guilty.call
        return Fault(
            NUMBERS,
            f"{_module(name)}: {what}",
            r.ranks,
            call.title(),
            listed(call.group),
            call.place.source,
            name,
            kind,
        )
    source = seen[r.ranks[0] if r.ranks else 0].places[key]
    collective = "all_reduce" if kind == "missing" else ""
    return Fault(NUMBERS, f"{_module(name)}: {what}", r.ranks, collective, r.detail, source, name, kind)


def _within(inner: str, outer: str) -> bool:
    return outer == "" or inner == outer or inner.startswith(f"{outer}.")


def _module(name: str) -> str:
    return f"module '{name}'" if name else "the model"


def _explained(
    r: Relation, mine: Sequence[_Met], want: torch.Tensor, mesh: Mesh, tolerance: float
) -> tuple[str, str, _Met | None]:
    """Kind of the fault, what is said of it, and the collective at fault if there is one."""
    sites = _sites(mine, mesh)
    for site in reversed(sites):
        better = _better(site, want, mesh, tolerance)
        if better is not None:
            return (*better, site[0])
    last = mine[-1] if mine else None
    if r.kind == "partial":
        return "missing", f"its values are summands: a reduction over {r.detail} is missing", None
    if r.kind == "scaled":
        return "doubled", f"its values are {r.detail}: a reduction too many", last
    if r.kind == "order":
        return "shards", f"it has the right parts ({r.detail}) in the wrong order", last
    gap = f"its value on {listed(r.ranks)} differs from the whole model's by {r.worst:.1e} of the largest element"
    return "differs", gap, last


def _sites(mine: Sequence[_Met], mesh: Mesh) -> list[list[_Met]]:
    """Collectives of one line, over all groups; those that not all ranks take part in are left out."""
    found: dict[tuple[Any, ...], list[_Met]] = {}
    counts: dict[tuple[Any, ...], int] = {}
    for met in mine:
        base = (met.call.kind, met.call.place.source, met.call.members)
        counts[base] = counts.get(base, 0) + 1
        found.setdefault((*base[:2], counts[base]), []).append(met)
    return [site for site in found.values() if sum(len(m.calls) for m in site) == mesh.count]


def _better(site: Sequence[_Met], want: torch.Tensor, mesh: Mesh, tolerance: float) -> tuple[str, str] | None:
    """What a collective would have to do to give the right value, if something near does."""
    call = site[0].call
    xs = {r: x for met in site for r, x in met.inputs.items()}
    if not all(xs.values()):
        return None

    def good(values: Mapping[int, torch.Tensor]) -> bool:
        return relation([values[r] for r in range(mesh.count)], want, mesh, tolerance).good

    actual = {frozenset(met.call.members) for met in site}
    for chosen, dim, made in _near(call.kind, xs, want.dim(), mesh):
        if not good(made):
            continue
        if not chosen:
            return "doubled", f"{call.title()} is one too many: without it the values are right"
        if {frozenset(g) for g in mesh.groups(chosen)} != actual:
            return "group", f"over {' x '.join(map(repr, chosen))} {call.title()} would give the right values"
        if call.kind in ("all_gather", "reduce_scatter"):
            return "dimension", f"along dim {dim} {call.title()} would give the right values"
    return _reordered(site, want, tolerance)


def _near(
    kind: str, xs: Mapping[int, Sequence[torch.Tensor]], rank: int, mesh: Mesh
) -> Iterator[tuple[Sequence[str], int, dict[int, torch.Tensor]]]:
    """Dimensions of the mesh, dimension of the tensor, and what the collective would give with these."""
    names = [name for name, size in mesh.sizes.items() if size > 1]
    for chosen in (c for n in range(len(names) + 1) for c in itertools.combinations(names, n)):
        groups = mesh.groups(chosen) if chosen else [[r] for r in range(mesh.count)]
        if kind == "all_reduce":
            made = {r: reduce(torch.add, [xs[m][0] for m in g]) for g in groups for r in g if _alike(xs, g)}
            if len(made) == mesh.count:
                yield chosen, 0, made
        elif kind == "all_gather" and chosen:
            for d in range(min(rank, xs[0][0].dim())):
                joined = [(g, _joined([xs[m][0] for m in g], d)) for g in groups]
                if all(x is not None for _, x in joined):
                    yield chosen, d, {r: x for g, x in joined for r in g if x is not None}
        elif kind == "reduce_scatter" and chosen:
            yield from _scatters(chosen, groups, xs, rank)


def _scatters(
    chosen: Sequence[str], groups: Sequence[Sequence[int]], xs: Mapping[int, Sequence[torch.Tensor]], rank: int
) -> Iterator[tuple[Sequence[str], int, dict[int, torch.Tensor]]]:
    """The operand was cut along some dimension before: put it together along each, and cut it along each."""
    for along, d in itertools.product(range(rank), repeat=2):
        made: dict[int, torch.Tensor] = {}
        for g in groups:
            wholes = [_joined(xs[m], along) for m in g]
            if any(w is None or w.dim() <= d or w.shape[d] % len(g) for w in wholes):
                break
            total = reduce(torch.add, [w for w in wholes if w is not None])
            made |= dict(zip(g, total.chunk(len(g), d)))
        else:
            yield chosen, d, made


def _alike(xs: Mapping[int, Sequence[torch.Tensor]], group: Sequence[int]) -> bool:
    return len({xs[r][0].shape for r in group}) == 1


def _joined(parts: Sequence[torch.Tensor], d: int) -> torch.Tensor | None:
    shapes = {(*p.shape[:d], *p.shape[d + 1 :]) for p in parts}
    return torch.cat([*parts], d) if len(shapes) == 1 and parts[0].dim() > d else None


def _reordered(site: Sequence[_Met], want: torch.Tensor, tolerance: float) -> tuple[str, str] | None:
    """Another order of the parts that an all_gather puts together."""
    call = site[0].call
    if call.kind != "all_gather":
        return None
    parts = [site[0].inputs[r][0] for r in call.members]
    for d in range(min(want.dim(), parts[0].dim())):
        if want.dim() != parts[0].dim() or want.shape[d] % len(parts):
            continue
        blocks = want.chunk(len(parts), d)
        order = [next((i for i, b in enumerate(blocks) if close(p, b, tolerance)), -1) for p in parts]
        if sorted(order) == [*range(len(parts))]:
            said = ", ".join(f"rank {r} has part {i}" for r, i in zip(call.members, order))
            return "shards", f"the parts along dim {d} are on the wrong ranks: {said}"
    return None
