"""A loaded graph with collectives makes its process groups with hccl. Run under ``tair emulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

RANK = r"""
import os, sys
import torch, torch.distributed as dist, torch.distributed._functional_collectives as fc
import torchair
from tair_export import CompiledModel
rank, folder = int(os.environ["RANK"]), sys.argv[1]

class Sum(torch.nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.weight = group, torch.nn.Parameter(torch.arange(8.).reshape(4, 2) + rank)
    def forward(self, x):
        return fc.all_reduce(x * self.weight, "sum", self.group)

x = torch.arange(8.).reshape(4, 2)
dist.init_process_group("gloo")
torchair.CompiledModel.save_graph(Sum(dist.group.WORLD).eval(), (x,), save_path=folder)
dist.barrier()
dist.destroy_process_group()
want = sum(x * (torch.arange(8.).reshape(4, 2) + r) for r in range(2))

model = CompiledModel.load_graph(folder, device="npu")
assert model._engine.name == "torch_npu", model._engine
try:
    model(x)
    raise AssertionError("there is no group")
except Exception as error:
    assert "GE4011" in str(error), error
assert torch.npu.current_device() == rank
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
for turn in range(2):
    with model.opened_groups(60):
        assert dist.get_backend() == "hccl"
        for given in (x, x.npu()):
            torch.testing.assert_close(model(given).cpu(), want)
    assert not dist.is_initialized()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
print("sums right", flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_groups_of_a_loaded_graph(tmp_path: Path, run_ranks: Any) -> None:
    """Each process takes the device of its number; groups can be made again; without them the graph is refused."""
    folder = tmp_path / "saved"
    _, logs = run_ranks(2, "-c", RANK, str(folder), seconds=280, env_of=lambda rank: {"LOCAL_RANK": str(rank)})
    assert all("sums right" in text for text in logs), "\n".join(text[-3000:] for text in logs)
