"""One rank of a server whose experts are spread over the ranks; run by ``test_serving_loop`` under torchrun.

python serving_ranks.py KIND STEPS MODE ...

Each rank serves prompts of its own, eagerly and by a graph of each mode, and says what it served.
"""

from __future__ import annotations

import json
import sys

import torch
import torch._functorch.config
import torch.distributed as dist
import torch_npu
from recipe_models import Decoder, served, shortfall

import torchair

PROMPTS = ([[3, 4, 5, 6], [7, 8], [9, 10, 11]], [[21, 22], [33, 34, 35], [41, 42, 43, 44]])


def main(kind: str, steps: int, modes: list[str]) -> None:
    dist.init_process_group("hccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.npu.set_device(rank)
    torch_npu.npu.config.allow_internal_format = True
    group = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    torch.manual_seed(0)
    plain, model = Decoder(kind).eval(), Decoder(kind).eval()
    model.load_state_dict(plain.state_dict())
    model.share(rank, ranks, group)
    model = model.npu()
    model.in_nz()
    prompts = PROMPTS[rank]
    eager = served(model, model.decode, prompts, steps)
    told = {"rank": rank, "tokens": eager, "behind": max(shortfall(plain, prompts, eager)), "graphs": {}}
    for mode in modes:
        config = torchair.CompilerConfig()
        config.mode = mode
        config.experimental_config.frozen_parameter = mode == "max-autotune"
        torch._dynamo.reset()
        backend = torchair.get_npu_backend(compiler_config=config)
        decode = torch.compile(model.decode, backend=backend, dynamic=True, fullgraph=True)
        told["graphs"][mode] = served(model, decode, prompts, steps)
    sys.stdout.write(f"SERVED {json.dumps(told)}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    with torch._functorch.config.patch(error_on_custom_op_aliasing=False):  # as in test_serving_loop
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
