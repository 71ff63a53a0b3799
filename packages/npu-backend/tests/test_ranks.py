"""Many ranks in one process: their numbers beside the whole model's in eager mode, and what is said of faults."""

import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ge_graph import DataType, Graph, builder, building
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from ge_graph.errors import ConfigError
from torchair import scope
from torchair.ranks import RanksError, check_ranks, command, plans, report
from torchair.ranks.exchange import Place
from torchair.ranks.plans import Planned
from torchair.ranks.programs import Weights
from torchair.ranks.relations import Mesh, relation
from torchair.ranks.world import World


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8))


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tensor_parallel(model, mesh):
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})


# --- sound programs --------------------------------------------------------------------------------------------------


def test_tensor_parallel_ranks_agree_with_the_whole_model():
    """Four ranks of torch's own plan: one graph for all, an all_reduce with its bytes, equal weights once."""
    found = check_ranks(net(), (rows(4, 8),), mesh={"tp": 4}, shard=tensor_parallel)
    assert found.ok
    assert found.worst < 1e-5
    assert [c.relation.kind for c in found.compared] == ["same"]
    assert (found.graphs, found.distinct) == (4, 1)
    (record,) = found.log
    assert (record.kind, record.members, record.sent) == ("all_reduce(sum)", (0, 1, 2, 3), (4 * 8 * 4,) * 4)
    assert found.kept < found.held, "the bias that every rank holds"


def test_gradients():
    """Forward and backward graphs on every rank, against autograd of the whole model."""
    found = check_ranks(net(), (rows(4, 8),), mesh={"tp": 2}, shard=tensor_parallel, backward=True)
    assert found.ok
    names = {c.name for c in found.compared if c.name.startswith("gradient")}
    assert names == {f"gradient of {n}" for n, _ in net().named_parameters()}
    assert found.graphs == 4


def test_inputs_of_each_rank():
    """Two dimensions of a mesh: rows of the batch over one, columns of the weights over the other."""

    def shard(model, mesh):
        tensor_parallel(model, mesh)
        x = rows(6, 8).chunk(mesh["dp"].size())[mesh.get_local_rank("dp")]
        return model, (x,)

    found = check_ranks(net(), (rows(6, 8),), mesh={"dp": 2, "tp": 2}, shard=shard)
    assert found.ok
    assert found.compared[0].relation.kind == "shards"
    assert found.compared[0].relation.detail == "dim 0 over 'dp'"
    assert {r.members for r in found.log} == {(0, 1), (2, 3)}
    assert found.distinct == 1, "groups of one place in the mesh are called alike"


def test_a_factory_that_takes_the_mesh():
    """Without a function that cuts: the factory makes each rank's model, and the whole one for None."""

    def make(mesh):
        model = net()
        if mesh is not None:
            tensor_parallel(model, mesh)
        return model, (rows(4, 8),)

    assert check_ranks(make, mesh={"tp": 2}).ok


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        self.seen += x.sum(0)
        return self.seen * 2


def test_state_lives_on_between_calls():
    """Buffers are each rank's own, and each call goes on where the last one ended."""
    calls = [(rows(n, 8),) for n in (2, 2, 2)]
    found = check_ranks(Counter(), calls, mesh={"tp": 2}, shard=lambda model, mesh: None)
    assert found.ok
    assert [c.name for c in found.compared] == ["step 0 result 0", "step 1 result 0", "step 2 result 0"]


class Sharded(nn.Module):
    def forward(self, x):
        return x * 2 + 1


def test_results_that_are_dtensors():
    def shard(model, mesh):
        x = rows(4, 8)
        return model, (DTensor.from_local(x.chunk(2)[mesh.get_local_rank()], mesh, [Shard(0)]),)

    found = check_ranks(Sharded(), (rows(4, 8),), mesh={"dp": 2}, shard=shard)
    assert found.ok
    assert found.compared[0].relation.kind == "same"


def test_a_rank_dependent_constant():
    """What a rank knows of itself is no one else's: every rank is traced for itself."""

    class Own(nn.Module):
        def __init__(self, group=None):
            super().__init__()
            self.group = group

        def forward(self, x):
            if self.group is None:
                return x * 6
            return fc.all_reduce(x * dist.get_rank(), "sum", self.group)

    found = check_ranks(Own(), (rows(3),), mesh={"tp": 4}, shard=lambda model, mesh: Own(mesh.get_group()))
    assert found.ok
    assert found.distinct == 4


def test_dynamic_sizes():
    found = check_ranks(net(), [(rows(n, 8),) for n in (3, 5)], mesh={"tp": 2}, shard=tensor_parallel, dynamic=True)
    assert found.ok
    assert found.graphs == 2


# --- faults ----------------------------------------------------------------------------------------------------------


class Rows(nn.Module):
    """A linear layer of which each rank has some columns of the weight; ``then`` is what it does to the sum."""

    def __init__(self, weight, mesh, then):
        super().__init__()
        self.group, self.then = mesh["tp"].get_group(), then
        self.weight = nn.Parameter(weight.chunk(self.group.size(), 1)[self.group.rank()].clone())

    def forward(self, x):
        part = x.chunk(self.group.size(), -1)[self.group.rank()]
        return self.then(part @ self.weight.t(), self.group)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return torch.tanh(self.lin(x))


def with_rows(then):
    def shard(model, mesh):
        model.lin = Rows(model.lin.weight, mesh, then)

    return shard


def summed(y, group):
    return fc.all_reduce(y, "sum", group)


def twice(y, group):
    y = fc.all_reduce(y, "sum", group)
    return fc.all_reduce(y, "sum", group)


def never(y, group):
    return y


def elsewhere(y, group):
    if dist.get_rank() == 1:
        y = y + fc.all_gather_tensor(y, 0, group).sum() * 0
    return fc.all_reduce(y, "sum", group)


def other_sizes(y, group):
    return fc.all_reduce(y[1:] if dist.get_rank() == 2 else y, "sum", group)


@pytest.mark.parametrize(
    ("then", "code", "kind", "collective"),
    [
        (never, "GE4073", "missing", "all_reduce"),
        (twice, "GE4073", "doubled", "all_reduce(sum)"),
        (elsewhere, "GE4070", "order", "all_gather"),
        (other_sizes, "GE4071", "sizes", "all_reduce(sum)"),
    ],
)
def test_faults(then, code, kind, collective):
    """Each is found, with the collective and the line; the sound layer is not blamed."""
    found = check_ranks(Linear(), (rows(4, 8),), mesh={"tp": 4}, shard=with_rows(then))
    fault = found.faults[0]
    assert (fault.code, fault.kind, fault.collective) == (code, kind, collective)
    assert fault.source.partition(":")[0] == __file__
    assert fault.module == "lin"
    with pytest.raises(RanksError, match=code):
        found.raise_faults()
    assert check_ranks(Linear(), (rows(4, 8),), mesh={"tp": 4}, shard=with_rows(summed)).ok


def test_order_is_refused_before_anything_runs():
    """Not one collective of the model took place."""
    found = check_ranks(Linear(), (rows(4, 8),), mesh={"tp": 2}, shard=with_rows(elsewhere))
    assert not found.ok
    assert found.log == []
    assert [len(graph) for (graph,) in found.programs] == [1, 2]


def test_a_graph_break_is_an_error_with_its_reason():
    def broken(y, group):
        torch._dynamo.graph_break()
        return fc.all_reduce(y, "sum", group)

    with pytest.raises(ConfigError, match="GE1047"):
        check_ranks(Linear(), (rows(4, 8),), mesh={"tp": 2}, shard=with_rows(broken))


@pytest.mark.parametrize("mesh", [{}, {"tp": 0}, {"not a name": 2}, {"tp": 4096}, {"tp": 2.0}])
def test_meshes_that_do_not_do(mesh):
    with pytest.raises(ConfigError, match="GE1080"):
        check_ranks(net(), (rows(4, 8),), mesh=mesh, shard=tensor_parallel)


def test_factories_that_do_not_do():
    with pytest.raises(ConfigError, match="GE1080.*returned a int"):
        check_ranks(lambda mesh: 3, mesh={"tp": 2})
    with pytest.raises(ConfigError, match="GE1080.*mesh=None"):
        check_ranks(lambda mesh: mesh.size(), mesh={"tp": 2})


# --- worlds ----------------------------------------------------------------------------------------------------------


def test_collectives_of_torch_distributed():
    """Each of them, eager, against what its documentation says."""

    def work(rank):
        x = torch.arange(4.0) + rank
        total = x.clone()
        dist.all_reduce(total)
        parts = [torch.empty(4) for _ in range(3)]
        dist.all_gather(parts, x)
        told = torch.full((2,), float(rank))
        dist.broadcast(told, 1)
        got = torch.empty(2)
        dist.scatter(got, [torch.full((2,), float(i)) for i in range(3)] if rank == 2 else None, src=2)
        moved = torch.empty(3)
        dist.all_to_all_single(moved, torch.arange(3.0) + 10 * rank)
        piece = torch.empty(1)
        dist.reduce_scatter_tensor(piece, torch.arange(3.0) + rank)
        top = x.clone()
        dist.reduce(top, 0, op=dist.ReduceOp.MAX)
        return total, torch.stack(parts), told, got, moved, piece, top

    found = World(3).run(work)
    for rank, (total, parts, told, got, moved, piece, top) in enumerate(found):
        assert total.tolist() == [3.0, 6.0, 9.0, 12.0]
        assert parts.tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
        assert told.tolist() == [1, 1]
        assert got.tolist() == [rank, rank]
        assert moved.tolist() == [rank, 10 + rank, 20 + rank]
        assert piece.tolist() == [3 * rank + 3]
        assert rank or top.tolist() == [2, 3, 4, 5]


def test_messages_between_two_ranks():
    """A ring of asynchronous messages, and blocking ones in order."""

    def work(rank):
        y = torch.empty(2)
        waits = [dist.isend(torch.full((2,), float(rank)), (rank + 1) % 3), dist.irecv(y, (rank - 1) % 3)]
        for each in waits:
            each.wait()
        if rank == 0:
            dist.send(y, 1, tag=7)
        if rank == 1:
            dist.recv(y, 0, tag=7)
        return y

    assert [y.tolist() for y in World(3).run(work)] == [[2, 2], [2, 2], [1, 1]]


def test_nothing_is_left_of_a_world():
    before = dist.is_initialized()
    World(2).run(lambda rank: dist.get_rank())
    assert dist.is_initialized() == before


def test_worlds_do_not_nest():
    with pytest.raises(ConfigError, match="GE1080.*already"):
        World(2).run(lambda rank: World(2).run(lambda inner: inner))
    assert World(2).run(lambda rank: dist.get_world_size()) == [2, 2]


def test_ranks_that_wait_for_ever():
    def work(rank):
        if rank:
            dist.all_reduce(torch.ones(2))

    with pytest.raises(RanksError, match=r"GE4072.*ranks 1, 2 entered all_reduce\(sum\) at .*rank 0 did not") as caught:
        World(3).run(work)
    assert caught.value.faults[0].source.startswith(__file__)


def test_messages_that_wait_for_each_other():
    def work(rank):
        y = torch.ones(2)
        dist.recv(y, 1 - rank)
        dist.send(y, 1 - rank)

    with pytest.raises(RanksError, match="GE4072"):
        World(2).run(work)


def test_sizes_that_differ():
    with pytest.raises(RanksError, match=r"GE4071.*float32\[2\].*float32\[3\]"):
        World(2).run(lambda rank: dist.all_reduce(torch.ones(2 + rank)))


def test_what_a_rank_raises_ends_all():
    def work(rank):
        if rank == 1:
            raise ZeroDivisionError("here")
        dist.barrier()

    with pytest.raises(ZeroDivisionError, match="here"):
        World(3).run(work)


# --- plans -----------------------------------------------------------------------------------------------------------


def planned(kind="all_reduce", members=(0, 1), sizes=(4,), peer=-1, line=1, group="g", **more):
    place = Place(0, 0, f"model.py:{line} in forward")
    op = {"send": "HcomSend", "recv": "HcomReceive"}.get(kind, "HcomAllReduce")
    return Planned(
        op,
        kind,
        1,
        "sum" if kind == "all_reduce" else "",
        group,
        members,
        "f32",
        sizes,
        peer,
        0,
        place,
        more.get("open", False),
        "",
        (),
        (),
    )


def test_programs_that_fit_together():
    world = planned(members=(0, 1, 2, 3), group="w")
    programs = {r: [planned(members=(r // 2 * 2, r // 2 * 2 + 1), group=f"tp{r // 2}"), world] for r in range(4)}
    assert plans.check(programs) == []
    ring = {
        0: [planned("send", peer=1), planned("recv", peer=1)],
        1: [planned("recv", peer=0), planned("send", peer=0)],
    }
    assert plans.check(ring) == []


def test_messages_that_need_a_buffer():
    programs = {r: [planned("send", peer=1 - r), planned("recv", peer=1 - r)] for r in range(2)}
    assert [f.code for f in plans.check(programs)] == ["GE4070"]


def test_the_rank_that_does_otherwise_is_named():
    """Three of four enter one thing first: the fourth is at fault, at its own line."""
    members = (0, 1, 2, 3)
    usual = [planned(members=members, line=1), planned("all_gather", members, line=2)]
    (extra,) = plans.check({**dict.fromkeys((0, 1, 3), usual), 2: [planned("all_gather", members, line=9), *usual]})
    assert (extra.code, extra.source) == ("GE4070", "model.py:9 in forward")
    assert extra.what.startswith("rank 2 enters all_gather")
    (left_out,) = plans.check({**dict.fromkeys((0, 1, 3), usual), 2: usual[1:]})
    assert left_out.source == "model.py:1 in forward"
    assert left_out.what.startswith("rank 2 leaves out all_reduce(sum)")


def test_collectives_that_meet_by_chance():
    """A rank leaves out the first of two that look alike, or whose sizes differ: that one is named, not the second."""
    usual = [planned(line=1), planned(line=2), planned("all_gather", line=3)]
    (fault,) = plans.check({0: usual, 1: usual[1:]})
    assert (fault.code, fault.source) == ("GE4070", "model.py:1 in forward")
    usual[1] = planned(line=2, sizes=(8,))
    (fault,) = plans.check({0: usual, 1: usual[1:]})
    assert (fault.code, fault.source) == ("GE4070", "model.py:1 in forward")
    (fault,) = plans.check({0: usual[:2], 1: [planned(line=2)]})
    assert (fault.code, fault.source) == ("GE4070", "model.py:1 in forward")


def test_ranks_with_no_collective_left():
    (fault,) = plans.check({0: [planned()], 1: []})
    assert (fault.code, fault.ranks) == ("GE4072", (0, 1))


def test_a_size_that_one_rank_compiled_as_a_number():
    (fault,) = plans.check({0: [planned(sizes=("s0", 8))], 1: [planned(sizes=(4, 8))]})
    assert (fault.code, fault.kind) == ("GE4071", "sizes")
    assert "as a number" in fault.what


def test_what_nobody_can_know_is_no_fault():
    """Collectives in branches, and ranks that do something else meanwhile."""
    assert plans.check({0: [planned(open=True)], 1: []}) == []
    assert plans.check({0: [planned(members=(0, 1, 2))], 1: [planned(members=(0, 1, 2))]}) == []


def test_what_computes_meanwhile():
    """Operators of another stream that a collective neither feeds nor needs."""
    with building(Graph("g")) as graph:
        x, y = (builder.data(graph, index=i, dtype=DataType.DT_FLOAT, shape=(4,)) for i in range(2))
        before = ge.Neg(x)
        total = ge.HcomAllReduce(before, reduction="sum", group="tp")
        aside = ge.Exp(y)
        aside.node.attrs["_user_stream_label"] = Attr(Kind.STRING, "second")
        beside = ge.Abs(y)
        graph.outputs += [ge.Add(total, aside), beside]
    (found,) = plans.collectives(graph, lambda name: (0, 1))
    assert found.meanwhile == ("Exp",)
    assert found.independent == ("Exp", "Abs")
    assert (found.title(), found.members, found.dtype) == ("all_reduce(sum)", (0, 1), "f32")


# --- relations -------------------------------------------------------------------------------------------------------

GRID = Mesh({"dp": 2, "tp": 2})


def test_relations():
    whole = rows(4, 6)
    cut = [part for half in whole.chunk(2, 1) for part in half.chunk(2, 0)]
    assert relation([whole] * 4, whole, GRID, 1e-6).kind == "same"
    assert relation(cut, whole, GRID, 1e-6).detail == "dim 1 over 'dp', dim 0 over 'tp'"
    assert relation([whole * 0.25, whole * 0.75] * 2, whole, GRID, 1e-6).kind == "partial"
    assert relation([whole * 0.25, whole * 0.75] * 2, whole, GRID, 1e-6).detail == "'tp'"
    assert relation([whole * 2] * 4, whole, GRID, 1e-6).kind == "scaled"
    halves = whole.chunk(2)
    assert relation([halves[1], halves[0]] * 2, whole, GRID, 1e-6).kind == "order"
    wrong = relation([halves[0], halves[1], halves[0], halves[1] + 1], whole, GRID, 1e-6)
    assert (wrong.kind, wrong.ranks) == ("differs", (3,))
    one = relation([whole, whole, whole + 1, whole], whole, GRID, 1e-6)
    assert (one.kind, one.ranks, one.good) == ("differs", (2,), False)


def test_relations_of_uncommon_values():
    """Uneven parts, no elements, no dimensions, numbers that are not finite."""
    whole = rows(5, 2)
    assert relation([*whole.chunk(2)], whole, Mesh({"tp": 2}), 1e-6).kind == "shards"
    assert relation([torch.zeros(0, 3)] * 2, torch.zeros(0, 3), Mesh({"tp": 2}), 1e-6).kind == "same"
    assert relation([torch.tensor(2)] * 2, torch.tensor(2), Mesh({"tp": 2}), 1e-6).kind == "same"
    infinite = torch.tensor([float("inf"), float("nan"), 1.0])
    assert relation([infinite] * 2, infinite, Mesh({"tp": 2}), 1e-6).kind == "same"
    assert not relation([infinite, torch.ones(3)], infinite, Mesh({"tp": 2}), 1e-6).good


def test_equal_weights_are_one():
    weights = Weights()
    models = [nn.Linear(4, 4, bias=False) for _ in range(3)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        weights.share(model)
    assert models[0].weight.data_ptr() == models[1].weight.data_ptr() != models[2].weight.data_ptr()
    assert (weights.held, weights.kept) == (3 * 64, 2 * 64)


# --- report and command ----------------------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)), (torch.ones(2, 8),)

def shard(model, mesh):
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

def forgets(model, mesh):
    shard(model, mesh)
    rank = mesh.get_local_rank()
    model[2].weight = nn.Parameter(model[2].weight + 1) if rank else model[2].weight
"""


def test_report():
    """One row for ranks that do the same; the JSON has each rank; the page takes no text for markup."""
    found = check_ranks(net(), (rows(4, 8),), mesh={"dp": 2, "tp": 2}, shard=tensor_parallel)
    ((ranks, listed),) = report.lanes(found)
    assert ranks == [0, 1, 2, 3]
    assert [(r["collective"], r["group"], r["sent"], r["received"]) for r in listed] == [
        ("all_reduce(sum)", "tp", 128, 128)
    ]
    data = json.loads(json.dumps(report.as_dict(found)))
    assert data["ok"]
    assert [p[0]["members"] for p in data["programs"]] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    page = report.to_html(found, "<script>alert(1)</script>")
    assert "<script>alert" not in page
    assert '"ranks":4' in page


class Counted(nn.Module):
    """Three collectives, of which two have something to do beside them."""

    def __init__(self, tp=None, dp=None):
        super().__init__()
        self.tp, self.dp = tp, dp
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 16))

    def forward(self, x):
        if self.tp is None:
            return x @ self.weight, x.half().exp(), x.half().relu()
        with scope.npu_stream_switch("second"):
            beside = x.half().exp()
        y = fc.all_reduce(x @ self.weight / 2, "sum", self.tp)
        part = fc.reduce_scatter_tensor(y, "sum", 0, self.tp) / 2
        gathered = fc.all_gather_tensor(x.half().relu().chunk(2)[self.dp.rank()], 0, self.dp)
        return part, beside, gathered


def test_report_against_a_hand_count():
    """Bytes by the sizes: x is 4 by 8, float32, so that x @ weight has 4 * 16 * 4 = 256, its half 128; of x as float16,
    4 * 8 * 2 = 64, a rank of two brings half. What the second stream does runs beside all three."""

    def shard(model, mesh):
        return Counted(mesh["tp"].get_group(), mesh["dp"].get_group())

    found = check_ranks(Counted(), (rows(4, 8),), mesh={"dp": 2, "tp": 2}, shard=shard)
    assert found.ok, found.faults
    data = report.as_dict(found)
    columns = ("graph", "position", "collective", "group", "members", "sent", "received", "stream")
    for rank, listed in enumerate(data["programs"]):
        tp, dp = [rank // 2 * 2, rank // 2 * 2 + 1], [rank % 2, rank % 2 + 2]
        assert [tuple(row[c] for c in columns) for row in listed] == [
            (0, 0, "all_reduce(sum)", "tp", tp, 256, 256, ""),
            (0, 1, "reduce_scatter(sum)", "tp", tp, 256, 128, ""),
            (0, 2, "all_gather", "dp", dp, 32, 64, ""),
        ]
        assert {tuple(row["meanwhile"]) for row in listed} == {("Cast", "Exp")}
        other = ["Cast", "Relu", "SplitV"]
        assert [row["independent"][2:] for row in listed] == [other, other, ["RealDiv"]]
        assert [row["code"].partition(" ")[0] for row in listed] == ["y", "part", "gathered"]
    ((ranks, listed),) = report.lanes(found)
    assert ranks == [0, 1, 2, 3]
    cells = [[*map(str, column.cells)] for column in report.to_table(ranks, listed).columns]
    assert cells[0] == ["0.0", "0.1", "0.2"]
    assert cells[3] == ["256 / 256", "256 / 128", "32 / 64"]
    assert cells[5] == ["Cast, Exp"] * 3
    meetings = report.page_data(found)["meetings"]
    assert sorted((m["x"], m["g"], m["m"], m["s"], m["r"], m["w"]) for m in meetings) == sorted(
        (x, group, ranks, [sent] * 2, [received] * 2, "Cast, Exp")
        for x, group, sent, received in ((0, "tp", 256, 256), (1, "tp", 256, 128), (2, "dp", 32, 64))
        for ranks in ([[0, 1], [2, 3]] if group == "tp" else [[0, 2], [1, 3]])
    )


def test_command(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    assert (
        command.main([f"{file}:make", "--mesh", "tp=2", "--report", "--html", str(tmp_path / "out" / "page.html")]) == 0
    )
    said = capsys.readouterr().out
    assert "2 ranks agree with the whole model" in said
    assert "all_reduce(sum)" in said
    assert (tmp_path / "out" / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert command.main([f"{file}:make", "--mesh", "tp=2", "--shard", "forgets", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["faults"][0]["code"] == "GE4073"


@pytest.mark.parametrize("mesh", ["tp", "tp=x", "tp=2,tp=2", "tp=0", ""])
def test_command_with_wrong_meshes(mesh, tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    assert command.main([f"{file}:make", "--mesh", mesh, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "GE1080"


def test_command_without_a_function_that_cuts(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(MODEL)
    assert command.main([f"{file}:make", "--mesh", "tp=2", "--shard", "absent"]) == 2
    said = capsys.readouterr().err
    assert "there is no function absent to cut its model" in said
    assert "give --shard FUNCTION" in said


def test_what_users_code_raises(tmp_path, capsys):
    """Factories, the whole model and the cutting function: an error of ours with their words, never a traceback."""
    file = tmp_path / "model.py"
    raising = "def broken():\n    raise KeyError('lost')\n\ndef torn(model, mesh):\n    raise KeyError('torn')\n"
    file.write_text(f"{MODEL}\n{raising}\ndef odd():\n    return make()[0], (torch.ones(2, 3),)\n")
    for arguments, code, words in (
        ([f"{file}:broken"], "GE1080", "lost"),
        ([f"{file}:odd"], "GE1047", "the whole model"),
        ([f"{file}:make", "--shard", "torn"], "GE1047", "torn"),
    ):
        assert command.main([*arguments, "--mesh", "tp=2", "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == code
        assert words in error["what"]
        assert ("whole model runs" in error["next"]) == (words == "torn")
