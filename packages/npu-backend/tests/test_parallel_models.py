"""Models over several processes: tensor parallel, data parallel, saved and exported; against the whole model."""

import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn

import torchair
from tair_testing.compiling import compiled
from tair_testing.ranks import WORLD, Cases, close, shared_folder

case = CASES = Cases()


# --- tensor parallelism ----------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and MLP, each ending in a linear whose input is split."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads, self.head = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (m(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.up(x)))


def parallel(block):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    plan |= {name: RowwiseParallel() for name in ("o", "down")}
    return parallelize_module(block, init_device_mesh("cpu", (WORLD,)), plan)


def block_pair(dtype=torch.float32):
    torch.manual_seed(5)
    whole, split = Block().to(dtype), Block().to(dtype)
    split.load_state_dict(whole.state_dict())
    return whole, parallel(split)


@case(False, name="tensor_parallel_block")
@case(True, name="tensor_parallel_block_dynamic")
@case(False, torch.bfloat16, 5e-2, name="tensor_parallel_block_bfloat16")
def tensor_parallel_block(dynamic, dtype=torch.float32, tolerance=1e-5):
    """Compiled on two ranks, against the whole model in eager mode on one."""
    whole, split = block_pair(dtype)
    net = compiled(split, dynamic=dynamic)
    torch.manual_seed(6)
    for batch, length in ((2, 5), (3, 7)) if dynamic else ((2, 5),):
        x = torch.randn(batch, length, 16, dtype=dtype)
        with torch.no_grad():
            close(net(x), whole(x), rtol=tolerance, atol=tolerance)


@case()
def tensor_parallel_training():
    from torch.distributed.tensor import DTensor

    whole, split = block_pair()
    torch.manual_seed(6)
    x = torch.randn(2, 5, 16)
    for net in (whole, compiled(split)):
        net(x).square().sum().backward()
    want = {name: p.grad for name, p in whole.named_parameters()}
    for name, p in split.named_parameters():
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        close(grad, want[name], rtol=1e-4, atol=1e-4)


@case()
def tensor_parallel_llama():
    """Two ranks, compiled, against the whole model in eager mode; other types and dynamic sizes are the block's."""
    transformers = pytest.importorskip("transformers")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        max_position_embeddings=64,
    )
    torch.manual_seed(5)
    whole = transformers.LlamaForCausalLM(config).eval()
    split = transformers.LlamaForCausalLM(config).eval()
    split.load_state_dict(whole.state_dict())
    plan = {f"self_attn.{n}_proj": ColwiseParallel() for n in "qkv"} | {"self_attn.o_proj": RowwiseParallel()}
    plan |= {"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for layer in split.model.layers:
        parallelize_module(layer, init_device_mesh("cpu", (WORLD,)), plan)
    net = compiled(split, dynamic=False)
    ids = torch.arange(10).reshape(2, 5)
    with torch.no_grad():
        close(net(ids, use_cache=False).logits, whole(ids, use_cache=False).logits, rtol=1e-4, atol=1e-4)


@case()
def data_parallel():
    """DistributedDataParallel reduces its gradients in hooks, outside the graphs."""
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    wrapped.module.load_state_dict(plain.state_dict())
    torch._dynamo.reset()
    net = torch.compile(wrapped, backend=torchair.get_npu_backend())
    inputs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(r)) for r in range(WORLD)]
    net(inputs[dist.get_rank()]).square().sum().backward()
    sum(plain(x).square().sum() for x in inputs).div(WORLD).backward()
    close([p.grad for p in wrapped.parameters()], [p.grad for p in plain.parameters()], rtol=1e-5, atol=1e-5)


# --- files -----------------------------------------------------------------------------------------------------------


class Split(nn.Module):
    """Two linear layers of which each rank has half; ``alone`` is a group of this rank only."""

    def __init__(self, up, down, alone):
        super().__init__()
        rank = dist.get_rank()
        self.up = nn.Parameter(up.chunk(WORLD, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(WORLD, 1)[rank].clone())
        self.alone = alone

    def forward(self, x):
        y = torch.relu(x @ self.up.t()) @ self.down.t()
        dist.all_reduce(y)
        return fc.wait_tensor(fc.all_reduce(y, "sum", self.alone))


@case()
def saved_graphs():
    """Saved and exported on each rank, loaded again, against the whole model; groups with the ranks that they have."""
    torch.manual_seed(3)
    up, down, x = torch.randn(8, 4), torch.randn(4, 8), torch.randn(3, 4)
    groups = [dist.new_group([r]) for r in range(WORLD)]
    model = Split(up, down, groups[dist.get_rank()])
    config = torchair.CompilerConfig()
    config.export.experimental.auto_atc_config_generated = True
    for dynamic in (False, True):
        folder = shared_folder() / f"files-{dynamic}"
        torchair.CompiledModel.save_graph(model, (x,), dynamic=dynamic, save_path=folder / "saved")
        torchair.dynamo_export(
            x, model=model, dynamic=dynamic, export_path=folder / "exported", export_name="net", config=config
        )
        dist.barrier()
        for path in ("saved", "exported"):
            loaded = torchair.CompiledModel.load_graph(folder / path)
            for rows in (3, 5) if dynamic else (3,):
                y = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
                close(loaded(y), torch.relu(y @ up.t()) @ down.t(), rtol=1e-5, atol=1e-5)
        relation = json.loads((folder / "exported/model_relation_config.json").read_text())
        found = {row["group_name"]: json.loads(row["group_rank_list"]) for row in relation["comm_group"]}
        names = [g.group_name for g in groups if isinstance(g, dist.ProcessGroup)]
        assert found.pop(*names) == [dist.get_rank()]
        assert found.pop(dist.group.WORLD.group_name) == [0, 1]
        assert list(found.values()) == [[1 - dist.get_rank()]], "the group of the other rank"
        dist.barrier()


# --- two processes ---------------------------------------------------------------------------------------------------


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name, ranks):
    ranks.check(name)
