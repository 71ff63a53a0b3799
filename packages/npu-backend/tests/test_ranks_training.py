"""Training steps on many ranks in one process: hooks and schedules of torch run between the graphs.

Gradients are those of the unsharded model in eager mode, whose batch is that of all ranks.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard

import torchair
from ge_graph.errors import GeError
from torchair.ranks import check_ranks, command, report

MANY = pytest.param(32, marks=[pytest.mark.night, pytest.mark.slow])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, count=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(count)})

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


def rows(count):
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(1))


def mean_square(y):
    return y.square().mean()


def compiled(model):
    return torch.compile(model, backend=torchair.get_npu_backend())


def with_own_rows(model, mesh):
    return model, (rows(2 * mesh.size()).chunk(mesh.size())[mesh.get_local_rank()],)


def fully_sharded(model, mesh):
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh["dp"])
    return with_own_rows(compiled(fully_shard(model, mesh=mesh["dp"])), mesh)


@pytest.mark.parametrize("ranks", [2, MANY])
def test_fully_sharded(ranks):
    """FSDP2: two graphs for each of two blocks; each block is gathered for forward and backward, and reduced once.

    A rank holds its rows of each of a block's four parameters, padded to the most that any rank has.
    """
    found = check_ranks(Net(), (rows(2 * ranks),), mesh={"dp": ranks}, shard=fully_sharded, loss=mean_square)
    assert found.ok, found.faults
    assert found.worst < 1e-5
    parameters = {f"gradient of {name}" for name, _ in Net().named_parameters()}
    assert {c.name: c.relation.kind for c in found.compared} == {
        "result 0": "shards",
        **dict.fromkeys(parameters, "same"),
    }
    assert found.graphs == 4 * ranks
    assert [r.kind for r in found.log].count("all_gather") == 4
    assert [r.kind for r in found.log].count("reduce_scatter(avg)") == 2
    own = 4 * sum(-(-p.shape[0] // ranks) * p[0].numel() for p in Block().parameters())
    ((_, listed),) = report.lanes(found)
    assert {(r["collective"], r["group"], r["sent"], r["received"]) for r in listed} == {
        ("all_gather", "dp", own, ranks * own),
        ("reduce_scatter(avg)", "dp", ranks * own, own),
    }
    assert sum(r["times"] for r in listed) == 6


class Stage(nn.Module):
    """One block of a pipeline, and what carries out two microbatches for each rank."""

    def __init__(self, mesh):
        super().__init__()
        self.rank, self.count = mesh.get_local_rank(), mesh.size()
        net = compiled(Net(self.count).layers[str(self.rank)])
        self.layers = nn.ModuleDict({str(self.rank): net})
        stage = pipelining.PipelineStage(net, self.rank, self.count, torch.device("cpu"))
        self.schedule = pipelining.Schedule1F1B(stage, 2 * self.count, loss_fn=lambda y, target: mean_square(y))

    def forward(self, x):
        if self.rank == 0:
            return self.schedule.step(x)
        return self.schedule.step(target=x) if self.rank == self.count - 1 else self.schedule.step()


@pytest.mark.parametrize("ranks", [3, MANY])
def test_pipeline(ranks):
    """1F1B: a stage has the gradients of its own block, the last one the results; each microbatch travels both ways."""

    def make(mesh):
        return (Net(ranks) if mesh is None else Stage(mesh["pp"])), (rows(2 * ranks),)

    found = check_ranks(make, mesh={"pp": ranks}, loss=mean_square)
    assert found.ok, found.faults
    assert found.worst < 1e-5
    assert len(found.compared) == 1 + 4 * ranks
    assert found.graphs == 2 * ranks
    microbatch = 8 * 4
    for rank, listed in enumerate(report.as_dict(found)["between_graphs"]):
        moved = [
            (r["collective"], r["members"], r["times"]) for r in listed if microbatch in (r["sent"], r["received"])
        ]
        before = [("recv", [rank - 1, rank], 2 * ranks), ("send", [rank, rank - 1], 2 * ranks)] if rank else []
        after = [("send", [rank, rank + 1], 2 * ranks), ("recv", [rank + 1, rank], 2 * ranks)]
        assert sorted(moved) == sorted(before + (after if rank < ranks - 1 else []))


def test_gradients_that_nobody_reduces():
    """Data in parallel without a reduction: results are right, so only the gradients tell."""

    def shard(model, mesh):
        return with_own_rows(compiled(model), mesh)

    found = check_ranks(Net(1), (rows(4),), mesh={"dp": 2}, shard=shard, loss=mean_square)
    (fault,) = found.faults
    assert fault.code == "GE4073"
    assert fault.what == (
        "gradient of layers.0.up.weight of ranks 0, 1: its values are summands: "
        "a reduction over 'dp' (a mean) is missing"
    )


def test_what_a_rank_knows_of_itself_stays_its_own():
    """A number that torch holds for a constant without a guard: no rank runs what was compiled for another."""

    class Own(nn.Module):
        def forward(self, x):
            return fc.all_reduce(x * (torch.distributed.get_rank() + 1), "sum", torch.distributed.group.WORLD)

    def make(mesh):
        return (compiled(Own()) if mesh is not None else (lambda x: x * 6)), (rows(2),)

    found = check_ranks(make, mesh={"tp": 3})
    assert found.ok, found.faults
    assert (found.graphs, found.traced) == (3, 3)


def test_a_backend_of_all_ranks_is_refused():
    """Torch takes the graphs of a backend for every module that fits."""
    backend = torchair.get_npu_backend()

    def shard(model, mesh):
        return with_own_rows(torch.compile(model, backend=backend), mesh)

    with pytest.raises(GeError, match="rank 1 was given a graph that rank 0 compiled") as error:
        check_ranks(Net(1), (rows(4),), mesh={"dp": 2}, shard=shard)
    assert error.value.code == "GE1080"


def test_parameters_that_ranks_count_anew():
    """A rank's first expert is another one of the whole model's: under one name they have nothing in common."""

    class Sum(nn.Module):
        def __init__(self, layers, group=None):
            super().__init__()
            self.layers, self.group = nn.ModuleList(layers), group

        def forward(self, x):
            y = sum(layer(x) for layer in self.layers)
            return y if self.group is None else fc.all_reduce(y, "sum", self.group)

    def shard(model, mesh):
        first = 2 * mesh.get_local_rank()
        return Sum(model.layers[first : first + 2], mesh.get_group())

    torch.manual_seed(0)
    found = check_ranks(
        Sum([nn.Linear(8, 8) for _ in range(4)]), (rows(2),), mesh={"ep": 2}, shard=shard, backward=True
    )
    assert found.ok, found.faults
    assert [c.name for c in found.compared] == ["result 0"]


MODEL = """
from test_ranks_training import Net, compiled, fully_shard, mean_square, rows, with_own_rows

def whole(model, mesh):
    # one group of parameters, which are whole from the forward to the end of the backward
    return with_own_rows(compiled(fully_shard(model, mesh=mesh["dp"])), mesh)

def make():
    return Net(1), (rows(4),)
"""


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    (tmp_path / "model.py").write_text(MODEL)
    line = [f"{tmp_path}/model.py:make", "--mesh", "dp=2", "--shard", "whole", "--loss", "mean_square"]
    assert command.main([*line, "--report", "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "2 ranks agree with the whole model" in said
    assert "reduce_scatter(avg)" in said
    assert "reduce_scatter(avg)" in (tmp_path / "page.html").read_text()
