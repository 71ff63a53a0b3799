"""Ranks that do the same share one trace, each on its own parameters and groups; whoever does otherwise has its own."""

import logging

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torchair.ranks import check_ranks
from torchair.ranks.programs import plain_state


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A layer that ``tp`` cuts, and eight experts of which each rank of ``ep`` has some."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(8))
        self.first, self.group = 0, None

    def forward(self, x):
        x = x + self.down(torch.relu(self.up(x)))
        weights = x.softmax(-1)
        y = sum(expert(x) * weights[:, self.first + i, None] for i, expert in enumerate(self.experts))
        return x + (y if self.group is None else fc.all_reduce(y, "sum", self.group))


def cut(model, mesh):
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    model.group = mesh["ep"].get_group()
    model.first = 8 // model.group.size() * model.group.rank()
    model.experts = model.experts[model.first : model.first + 8 // model.group.size()]


def test_ranks_that_do_the_same_are_traced_once():
    """Those that have the same experts: their parts of the other layers differ in values only."""
    found = check_ranks(Net(), (rows(4, 8),), mesh={"tp": 4, "ep": 2}, shard=cut)
    assert found.ok, found.faults
    assert found.worst < 1e-5
    assert (found.traced, found.graphs, found.distinct) == (2, 8, 2)
    assert {r.members for r in found.log} == {(0, 2, 4, 6), (1, 3, 5, 7), (0, 1), (2, 3), (4, 5), (6, 7)}
    for rank, (graph,) in enumerate(found.programs):
        assert all(rank in each.members for each in graph), "the groups of the rank itself"


class Own(nn.Module):
    """Multiplies by what ``own`` makes of the rank, and adds up."""

    def __init__(self, own=None, group=None):
        super().__init__()
        self.own, self.group = own, group

    def forward(self, x):
        return x * 3 if self.group is None else fc.all_reduce(x * self.own(self), "sum", self.group)


def traced(own, ranks=3):
    """Ranks traced of a model that ``own`` tells apart; the numbers are right."""
    found = check_ranks(Own(), (rows(3),), mesh={"tp": ranks}, shard=lambda model, mesh: Own(own, mesh.get_group()))
    assert found.ok, found.faults
    return found.traced


def test_what_a_rank_knows_of_itself_tells_it_apart():
    """Its number as torch says it, as an attribute, as a tensor that is no buffer."""
    assert traced(lambda model: 1) == 1
    assert traced(lambda model: dist.get_rank()) == 3
    assert traced(lambda model: dist.get_rank(model.group)) == 3
    assert traced(lambda model: torch.tensor([0.0, 1.0, 2.0])[dist.get_rank()]) == 3
    assert traced(lambda model: torch.tensor([float(dist.get_rank())])) == 3


def test_what_is_on_one_rank_only_tells_it_apart():
    """Of three ranks one does another sum of the same value."""
    assert traced(lambda model: 1.0 if dist.get_rank() < 2 else 1) == 2
    assert traced(lambda model: torch.ones(3).cos().acos() if dist.get_rank() == 1 else torch.ones(3)) == 2


def test_collectives_of_other_lines_tell_ranks_apart():
    """Ranks whose collectives meet by chance are compared line by line, so each keeps its own lines."""

    class Lines(Own):
        def forward(self, x):
            if self.group is None:
                return x * 3
            if self.own(self):
                return fc.all_reduce(x, "sum", self.group)
            return fc.all_reduce(x, "sum", self.group)

    def shard(model, mesh):
        return Lines(lambda model: dist.get_rank() == 0, mesh.get_group())

    assert check_ranks(Own(), (rows(3),), mesh={"tp": 3}, shard=shard).traced == 2


def test_results_that_are_dtensors_belong_to_their_rank():
    def shard(model, mesh):
        x = rows(4, 8)
        return model, (DTensor.from_local(x.chunk(2)[mesh.get_local_rank()], mesh, [Shard(0)]),)

    found = check_ranks(nn.Sigmoid(), (rows(4, 8),), mesh={"dp": 2}, shard=shard)
    assert found.ok
    assert found.traced == 2


class Steps(nn.Module):
    """Counts its calls; what it counts shows from the third on."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.register_buffer("kept", torch.zeros(8))

    def forward(self, x):
        self.calls += 1
        self.kept += x.sum(0)
        return self.kept * (self.calls if self.calls > 2 else 1)


def test_calls_in_a_row():
    """What a model counts and keeps lives on, on each rank for itself."""
    found = check_ranks(Steps(), [(rows(2, 8) * n,) for n in range(4)], mesh={"tp": 2}, shard=lambda model, mesh: None)
    assert found.ok, found.faults
    assert (found.traced, found.graphs) == (1, 8)
    same = check_ranks(nn.Tanh(), [(rows(2, 8) * n,) for n in range(4)], mesh={"tp": 2}, shard=lambda model, mesh: None)
    assert same.ok
    assert (same.traced, same.graphs) == (1, 2), "four calls of one program"


def test_gradients_and_symbolic_sizes_are_traced_on_every_rank():
    for more in ({"backward": True}, {"dynamic": True}):
        found = check_ranks(nn.Linear(8, 8), (rows(2, 8),), mesh={"tp": 2}, shard=lambda model, mesh: None, **more)
        assert found.ok
        assert found.traced == 2


def test_ranks_that_fail_in_eager_mode_are_traced_one_by_one(caplog):
    """Their graphs say what is wrong."""

    def shard(model, mesh):
        def own(model):
            y = torch.ones(2 + dist.get_rank())
            return fc.all_reduce(y, "sum", model.group)[:1]

        return Own(own, mesh.get_group())

    with caplog.at_level(logging.INFO, "torchair"):
        found = check_ranks(Own(), (rows(3),), mesh={"tp": 2}, shard=shard)
    assert [f.code for f in found.faults] == ["GE4071"]
    assert found.traced == 2


def test_state_of_a_model():
    """Numbers and texts of what attributes lead to, circles included; tensors apart."""
    model = nn.Module()
    model.steps, model.names, model.me = 3, {"a": ["x", 2.5]}, [model]
    model.weight = nn.Parameter(torch.ones(2))
    before = plain_state(model)
    assert ".steps=3" in before.text
    assert any(t is model.weight for t in before.tensors)
    model.names["a"][1] = 2.75
    assert plain_state(model).text != before.text
