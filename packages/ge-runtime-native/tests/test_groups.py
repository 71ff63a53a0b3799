"""Process groups of one process: made for a graph's names, found inside the block, gone after it."""

import pytest
import torch
import torch.distributed as dist

from ge_graph import DataType, Graph, building
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from ge_runtime.cpu import groups
from ge_runtime.cpu.engine import CpuEngine
from ge_runtime.cpu.groups import entered, group_of, opened_groups, others_say


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def summed():
    """A sum over the group ``mine``."""
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=DataType.DT_FLOAT, shape=(3,), node_name="x")
        graph.outputs = [ge.HcomAllReduce(x, reduction="sum", group="mine")]
    return CpuEngine().compile(graph, {})


def test_groups_of_one_process():
    run = summed()
    with pytest.raises(EngineError, match="GE4011"):
        run.run([torch.ones(3)])
    with CpuEngine().opened_groups({"mine": (0,)}, 10):
        assert group_of("mine").size() == 1
        assert run.run([torch.ones(3)])[0].tolist() == [1, 1, 1]
        with opened_groups({"mine": (0,)}, 10):  # what is there is taken
            assert run.run([torch.ones(3)])[0].tolist() == [1, 1, 1]
        assert dist.is_initialized()
        assert others_say("mine", "here") == "", "nobody else is in it"
    assert not dist.is_initialized()
    with pytest.raises(EngineError, match="GE4011"):
        run.run([torch.ones(3)])


def test_processes_that_cannot_be_found(monkeypatch):
    """What is missing is said, and nothing is left of the attempt."""
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(EngineError, match="GE4011.*WORLD_SIZE"), opened_groups({"mine": (0,)}, 10):
        pass
    assert not dist.is_initialized()


def test_nobody_says_anything_without_a_group():
    assert others_say("nowhere", "here") == ""


class Pair(dist.ProcessGroup):
    """Of two, seen by rank 0."""

    group_name = "pair"

    def size(self):
        return 2


def test_what_others_bring(monkeypatch):
    """To this collective of this group: not to another one, nor to a group of the name that is gone."""
    store, pair, number = dist.HashStore(), Pair(0, 2), 4
    monkeypatch.setattr(groups, "group_of", lambda name: pair)
    monkeypatch.setattr(groups.torch_compat, "default_store", lambda: store)
    monkeypatch.setattr(groups.torch_compat, "collectives_so_far", lambda group: number)
    monkeypatch.setattr(dist, "get_backend", lambda group: "gloo")
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert entered("pair", "3 float32") is pair, "rank 1 has not said anything yet"
    store.set("torchair_brings/pair/1", "1.4 5 float32")
    with pytest.raises(RuntimeError, match="rank 1 brings 5 float32, this rank 3 float32"):
        entered("pair", "3 float32")
    assert store.get("torchair_brings/pair/0") == b"1.4 3 float32", "so that rank 1 sees it too"
    assert entered("pair", "5 float32") is pair
    number = 5
    assert entered("pair", "3 float32") is pair
    number, pair = 4, Pair(0, 2)
    assert entered("pair", "3 float32") is pair
