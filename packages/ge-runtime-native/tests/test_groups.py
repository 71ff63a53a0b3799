"""Process groups of one process: made for a graph's names, found inside the block, gone after it."""

import pytest
import torch
import torch.distributed as dist

from ge_graph import DataType, Graph, building
from ge_graph import ops as ge
from ge_graph.errors import EngineError
from ge_runtime.cpu.engine import CpuEngine
from ge_runtime.cpu.groups import group_of, opened_groups, others_say


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
