"""``torch.distributed`` with backend hccl between processes of this host. Run under ``tair emulate``."""

from __future__ import annotations

from typing import Any

import pytest

RANK = r"""
import os, torch, torch_npu, torch.distributed as dist
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
full = lambda v, *s: torch.full(s, float(v)).npu()
x = torch.arange(4.).npu() + rank
dist.all_reduce(x)
assert torch.equal(x.cpu(), torch.arange(4.) * n + sum(range(n)))
b = full(rank, 3).bfloat16(); dist.all_reduce(b, op=dist.ReduceOp.MAX); assert b.cpu().tolist() == [n - 1.] * 3
parts = [torch.zeros(2).npu() for _ in range(n)]
dist.all_gather(parts, full(rank, 2))
assert [p.cpu()[0].item() for p in parts] == list(range(n))
r = torch.zeros(2).npu()
dist.reduce_scatter_tensor(r, torch.arange(2. * n).npu())
assert torch.equal(r.cpu(), torch.arange(2. * n)[2 * rank:2 * rank + 2] * n)
c = full(rank, 2); dist.broadcast(c, 1); assert c.cpu().tolist() == [1., 1.]
a = torch.zeros(n).npu()
dist.all_to_all_single(a, torch.arange(float(n)).npu() + 10 * rank)
assert torch.equal(a.cpu(), torch.arange(float(n)) * 10 + rank)
if rank == 0: dist.send(full(7, 1), 1)
if rank == 1: t = torch.zeros(1).npu(); dist.recv(t, 0); assert t.item() == 7
pair = dist.new_group([0, 1])
if rank < 2: z = full(1, 1); dist.all_reduce(z, group=pair); assert z.item() == 2
dist.barrier(); torch.npu.synchronize()
print("collectives right", flush=True)
if rank == 1: os._exit(0)
try:
    dist.all_reduce(x); torch.npu.synchronize(); print("no error", flush=True)
except RuntimeError as e: print("noticed" if "rank went away" in str(e) or "EI0006" in str(e) else e, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_ranks_and_the_loss_of_one(run_ranks: Any):
    """All kinds right, then a rank goes away. That groups end well is part of test_graph_collectives."""
    _, logs = run_ranks(2, "-c", RANK, seconds=280, env_of=lambda rank: {"HCCL_EXEC_TIMEOUT": "60"})
    assert all("collectives right" in text for text in logs), logs
    assert "noticed" in logs[0], logs[0]
