"""One rank of the tensor-parallel model of ``docs/collectives.md`` on NPU tensors; run by ``test_graph_collectives``.

The collectives are operators of the GE graph, whose group is an HCCL communicator.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torchair


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 8))


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    mesh = init_device_mesh("npu", (world,))
    split = parallelize_module(net().npu(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = torch.compile(split, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for turn in range(2):
            got = compiled((x + turn).npu())
            torch.testing.assert_close(got.cpu(), net()(x + turn), rtol=1e-5, atol=1e-5)
    print("equals the whole model", flush=True)

    functional = torch.ops._c10d_functional
    name = dist.group.WORLD.group_name

    def moves(x: torch.Tensor) -> list[torch.Tensor]:
        wait = functional.wait_tensor
        gathered = wait(functional.all_gather_into_tensor(x, world, name))
        scattered = wait(functional.reduce_scatter_tensor(gathered, "sum", world, name))
        even = [x.shape[0] // world] * world
        exchanged = wait(functional.all_to_all_single(x, even, even, name))
        largest = wait(functional.all_reduce(x, "max", name))
        return [gathered, scattered, exchanged, largest]

    mine = torch.arange(4.0 * world).reshape(2 * world, 2) + 100 * rank
    everybody = [torch.arange(4.0 * world).reshape(2 * world, 2) + 100 * r for r in range(world)]
    got = torch.compile(moves, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=False)(mine.npu())
    want = [
        torch.cat(everybody),
        mine * world,
        torch.cat([e[2 * rank : 2 * rank + 2] for e in everybody]),
        everybody[-1],
    ]
    for g, w in zip(got, want, strict=True):
        assert torch.equal(g.cpu(), w), (g.cpu(), w)
    print("collectives of the graph right", flush=True)
    if os.environ.get("LOSE_A_RANK"):
        if rank == 1:
            os._exit(0)
        try:
            with torch.no_grad():
                compiled(x.npu()).cpu()
            print("no error", flush=True)
        except RuntimeError as error:
            print(f"error after a rank was lost: {error}", flush=True)
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
