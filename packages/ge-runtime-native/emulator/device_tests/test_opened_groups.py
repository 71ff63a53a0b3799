"""A loaded graph with collectives makes its process groups with hccl. Run under ``tair emulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SAVE = r"""
import os, sys
import torch, torch.distributed as dist, torch.distributed._functional_collectives as fc
import torchair

class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(8.).reshape(4, 2) + dist.get_rank())
    def forward(self, x):
        return fc.all_reduce(x * self.weight, "sum", dist.group.WORLD)

dist.init_process_group("gloo")
torchair.CompiledModel.save_graph(Sum().eval(), (torch.ones(4, 2),), save_path=sys.argv[1])
dist.barrier()
os._exit(0)
"""
LOAD = r"""
import os, sys
import torch, torch.distributed as dist
from tair_export import CompiledModel
x = torch.arange(8.).reshape(4, 2)
want = x * (2 * x + 1)
model = CompiledModel.load_graph(sys.argv[1], device="npu")
assert model._engine.name == "torch_npu", model._engine
try:
    model(x)
    raise AssertionError("there is no group")
except Exception as error:
    assert "GE4011" in str(error), error
assert torch.npu.current_device() == int(os.environ["RANK"])
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
    codes, logs = run_ranks(2, "-c", SAVE, str(folder), seconds=140)
    assert codes == [0, 0], logs
    _, logs = run_ranks(2, "-c", LOAD, str(folder), seconds=140, env_of=lambda rank: {"LOCAL_RANK": str(rank)})
    assert all("sums right" in text for text in logs), "\n".join(text[-3000:] for text in logs)
