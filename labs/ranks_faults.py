"""Random models over many ranks, sound ones and such with one fault each: does ``tair ranks`` find it, and where?

    python -m labs.ranks_faults --count 200 --seed 0     # make ranks-faults

Each model is a row of blocks as people write them by hand: a linear layer cut by columns and one by rows, a gathered
projection, sequence parallelism, a cache of earlier tokens. A fault changes one line of one block, on all ranks or on
one. The line that a report has to name is marked ``# fault:`` here.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn

WIDTH = 8
MESHES: tuple[dict[str, int], ...] = ({"tp": 2}, {"tp": 4}, {"dp": 2, "tp": 2}, {"tp": 2, "ep": 2})


@dataclass(frozen=True)
class Plan:
    """What is generated.

    Attributes:
        mesh: The mesh.
        blocks: Names of the blocks, from the first.
        fault: Name of the fault, empty for none.
        at: Number of the block that has it.
        rank: Rank that has it, if not all do.
    """

    mesh: dict[str, int]
    blocks: tuple[str, ...]
    fault: str = ""
    at: int = 0
    rank: int = 0


# Fault: the blocks that may have it, whether it needs two dimensions of the mesh, and the collective to be named.
FAULTS: dict[str, tuple[tuple[str, ...], bool, str]] = {
    "missing": (("mlp",), False, "all_reduce"),
    "doubled": (("mlp",), False, "all_reduce"),
    "group": (("mlp",), True, "all_reduce"),
    "rows": (("mlp",), False, "all_reduce"),
    "columns": (("gathered",), False, "all_gather"),
    "dimension": (("gathered",), False, "all_gather"),
    "scatter": (("sequence",), False, "reduce_scatter all_gather"),  # that do not fit to each other
    "left_out": (("mlp",), False, "all_reduce"),
    "extra": (("mlp",), False, "all_gather"),
    "swapped": (("pair",), False, "all_reduce"),
    "size": (("mlp",), False, "all_reduce"),
    "specialised": (("mlp",), False, "all_reduce"),
    "stale": (("cache",), False, ""),
}
BLOCKS = ("mlp", "gathered", "sequence", "pair", "cache")


# --- the whole model -------------------------------------------------------------------------------------------------


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 16, bias=False), nn.Linear(16, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Gathered(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.out(x))


class Sequence(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.mix(x))


class Pair(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(x * 2) * x.abs().amax()


class Cache(nn.Module):  # type: ignore[misc]
    """The mean of all tokens seen so far, from a buffer that each call writes one slot of."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: torch.Tensor
        self.register_buffer("kept", torch.zeros(4, 1, WIDTH))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.kept[at] = x.mean((0, 1)).reshape(1, 1, WIDTH)
        return self.kept.mean((0, 1)) + x


KINDS: dict[str, type[nn.Module]] = {
    "mlp": Mlp,
    "gathered": Gathered,
    "sequence": Sequence,
    "pair": Pair,
    "cache": Cache,
}


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self, blocks: tuple[str, ...]) -> None:
        super().__init__()
        self.names, self.blocks = blocks, nn.ModuleList(KINDS[name]() for name in blocks)

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for name, block in zip(self.names, self.blocks):
            x = block(x, at) if name == "cache" else block(x)
        return x


# --- what a rank has of it -------------------------------------------------------------------------------------------


class Cut(nn.Module):  # type: ignore[misc]
    """A block of one rank, with a fault or without."""

    def __init__(self, mesh: Any, fault: str, rank: int) -> None:
        super().__init__()
        self.group = mesh["tp"].get_group()
        self.size, self.own = self.group.size(), self.group.rank()
        others = [name for name in mesh.mesh_dim_names if name != "tp"]
        self.other = mesh[others[0]].get_group() if others else None
        self.fault, self.here = fault, dist.get_rank() == rank


class RowLinear(Cut):
    def __init__(self, weight: torch.Tensor, mesh: Any, fault: str, rank: int) -> None:
        super().__init__(mesh, fault, rank)
        own = (self.own + 1) % self.size if fault == "rows" else self.own
        self.weight = nn.Parameter(weight.chunk(self.size, 1)[own].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.t()
        if self.fault == "missing":
            return y  # fault: missing
        if self.fault == "left_out" and self.here:
            return y
        if self.fault == "group":
            return fc.all_reduce(y, "sum", self.other)  # fault: group
        if self.fault == "extra" and self.here:
            y = y + fc.all_gather_tensor(y, 0, self.group).sum() * 0  # fault: extra
        if self.fault == "size" and self.here:
            y = y[:, 1:]
        if self.fault == "specialised" and self.here and y.shape[0] == 4:
            y = y * 1
        y = fc.all_reduce(y, "sum", self.group)  # fault: rows, left_out, size, specialised
        if self.fault == "doubled":
            y = fc.all_reduce(y, "sum", self.group)  # fault: doubled
        if self.fault == "size" and self.here:
            y = torch.cat((y[:, :1], y), 1)
        return y


class ColumnLinear(Cut):
    def __init__(self, weight: torch.Tensor, mesh: Any, fault: str, rank: int, gathers: bool) -> None:
        super().__init__(mesh, fault, rank)
        own = (self.own + 1) % self.size if fault == "columns" else self.own
        self.gathers = gathers
        self.weight = nn.Parameter(weight.chunk(self.size, 0)[own].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight.t()
        if not self.gathers:
            return y
        if self.fault == "dimension":
            y = fc.all_gather_tensor(y, 1, self.group)  # fault: dimension
            return y.reshape(x.shape)
        return fc.all_gather_tensor(y, 2, self.group)  # fault: columns


class SequenceLinear(Cut):
    """Each rank's summands of all tokens become the sum for its own tokens, which the next layer needs."""

    def __init__(self, weight: torch.Tensor, mesh: Any, fault: str, rank: int) -> None:
        super().__init__(mesh, fault, rank)
        self.weight = nn.Parameter(weight.chunk(self.size, 1)[self.own].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.chunk(self.size, 2)[self.own] @ self.weight.t()
        if self.fault == "scatter":
            return fc.reduce_scatter_tensor(y, "sum", 0, self.group)  # fault: scatter
        return fc.reduce_scatter_tensor(y, "sum", 1, self.group)


class SequenceBlock(nn.Module):  # type: ignore[misc]
    def __init__(self, whole: Sequence, mesh: Any, fault: str, rank: int) -> None:
        super().__init__()
        self.mix, self.norm = SequenceLinear(whole.mix.weight, mesh, fault, rank), whole.norm
        self.group = mesh["tp"].get_group()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + fc.all_gather_tensor(self.norm(self.mix(x)), 1, self.group)  # fault: scatter


class PairBlock(Cut):
    """A mean and a maximum over ranks that have the same, so that both change nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "swapped" and self.here:
            top = fc.all_reduce(x.abs().amax(), "max", self.group)  # fault: swapped
            mean = fc.all_reduce(torch.tanh(x * 2) / self.size, "sum", self.group)
        else:
            mean = fc.all_reduce(torch.tanh(x * 2) / self.size, "sum", self.group)  # fault: swapped
            top = fc.all_reduce(x.abs().amax(), "max", self.group)
        return x + mean * top


class CacheBlock(Cut):
    def __init__(self, mesh: Any, fault: str, rank: int) -> None:
        super().__init__(mesh, fault, rank)
        self.kept: torch.Tensor
        self.register_buffer("kept", torch.zeros(4, 1, WIDTH))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        slot = at.clamp(max=1) if self.fault == "stale" and self.here else at
        self.kept[slot] = x.mean((0, 1)).reshape(1, 1, WIDTH)
        return self.kept.mean((0, 1)) + x  # fault: stale


def shard(plan: Plan) -> Any:
    """The function that cuts a model by a plan."""

    def cut(model: Net, mesh: Any) -> None:
        for number, (name, block) in enumerate(zip(plan.blocks, list(model.blocks))):
            fault = plan.fault if number == plan.at else ""
            own: Any = block
            if name == "mlp":
                own.up = ColumnLinear(own.up.weight, mesh, "", plan.rank, False)
                own.down = RowLinear(own.down.weight, mesh, fault, plan.rank)
            elif name == "gathered":
                own.out = ColumnLinear(own.out.weight, mesh, fault, plan.rank, True)
            elif name == "sequence":
                model.blocks[number] = SequenceBlock(own, mesh, fault, plan.rank)
            elif name == "pair":
                model.blocks[number] = PairBlock(mesh, fault, plan.rank)
            else:
                model.blocks[number] = CacheBlock(mesh, fault, plan.rank)

    return cut


def plan_of(seed: int, healthy: bool = False) -> Plan:
    """The plan of a seed."""
    rng = random.Random(seed)
    fault = "" if healthy else list(FAULTS)[seed % len(FAULTS)]
    homes, wide, _ = FAULTS[fault] if fault else (BLOCKS, False, "")
    mesh = rng.choice([m for m in MESHES if len(m) > 1 or not wide])
    blocks = [rng.choice(BLOCKS) for _ in range(rng.randint(1, 4))]
    at = rng.randrange(len(blocks))
    blocks[at] = rng.choice(homes)
    ranks = 1
    for size in mesh.values():
        ranks *= size
    return Plan(mesh, tuple(blocks), fault, at, rng.randrange(ranks))


@dataclass(frozen=True)
class Outcome:
    """What became of a plan.

    Attributes:
        found: Whether there is a fault by the report.
        right: Whether collective and line are those of the fault.
        told: What the report says first.
    """

    plan: Plan
    found: bool
    right: bool
    told: str


def outcome(plan: Plan, seed: int) -> Outcome:
    """Carry out a plan and look at the report."""
    from torchair.ranks import check_ranks

    torch.manual_seed(seed)
    model = Net(plan.blocks).eval()
    calls = 3 if "cache" in plan.blocks else 1
    inputs = [(torch.randn(4, 4, WIDTH), torch.tensor([i])) for i in range(calls)]
    report = check_ranks(model, inputs, mesh=plan.mesh, shard=shard(plan), dynamic=plan.fault == "specialised")
    if report.ok:
        return Outcome(plan, False, False, "")
    first = report.faults[0]
    collective = FAULTS[plan.fault][2] if plan.fault else "?"
    named = first.collective.partition("(")[0] in (collective.split() or [""])
    return Outcome(
        plan, True, named and _line(first.source) in _marked(plan.fault), f"{first.code} {first.what} at {first.source}"
    )


def _line(source: str) -> int:
    file, _, rest = source.rpartition(":")
    number = rest.partition(" ")[0]
    return int(number) if Path(file).name == Path(__file__).name and number.isdecimal() else -1


def _marked(fault: str) -> set[int]:
    """Lines of this file that are marked as those of a fault."""
    lines = enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1)
    marks = ((n, text.partition("# fault: ")[2].split(", ")) for n, text in lines if "  # fault: " in text)
    return {n for n, names in marks if fault in names}


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if less is found than is promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--healthy", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    start = time.monotonic()
    found, right, totals = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(given.seed, given.seed + given.count):
        result = outcome(plan_of(seed), seed)
        totals[result.plan.fault] += 1
        found[result.plan.fault] += result.found
        right[result.plan.fault] += result.right
        if not result.right:
            print(f"seed {seed}: {result.plan}\n    {result.told or 'NOT FOUND'}", flush=True)
    alarms = 0
    for seed in range(given.seed, given.seed + given.healthy):
        result = outcome(plan_of(seed, healthy=True), seed)
        alarms += result.found
        if result.found:
            print(f"ALARM, seed {seed}: {result.plan}\n    {result.told}", flush=True)
    for fault, total in sorted(totals.items()):
        print(f"{fault:<12} {total:4} faults, {found[fault]:4} found, {right[fault]:4} with collective and line")
    print(
        f"{sum(totals.values())} faults, {sum(found.values())} found, {sum(right.values())} with collective, line; "
        f"{given.healthy} sound models, {alarms} alarms; {time.monotonic() - start:.0f} s"
    )
    good = sum(found.values()) >= 0.98 * given.count and sum(right.values()) >= 0.9 * given.count and not alarms
    return 0 if good else 1


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
