"""Patterns of distributed models on real processes with gloo, compiled, against the unsharded model in eager mode."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import torchair
from tair_testing.compiling import compiled
from tair_testing.ranks import WORLD, Cases, close, processes

case = CASES = Cases()
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def mesh(name="tp"):
    return init_device_mesh("cpu", (WORLD,), mesh_dim_names=(name,))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(self.norm(x))))


def pair(make=Mlp):
    """The whole model and one of equal weights to be cut."""
    torch.manual_seed(5)
    whole, cut = make(), make()
    cut.load_state_dict(whole.state_dict())
    return whole, cut


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def gradients(net):
    grads = {n: p.grad for n, p in net.named_parameters()}
    return {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in grads.items()}


@case(False, name="sequence_parallel")
@case(True, name="sequence_parallel_dynamic")
def sequence_parallel(dynamic):
    """Norms on parts of the sequence, linears on parts of the width; forward and backward."""
    whole, cut = pair()
    parallelize_module(cut, mesh(), {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    })  # fmt: skip
    net = compiled(cut, dynamic=dynamic)
    for length in (4, 6) if dynamic else (4,):
        x = rows(2, length, 8)
        close(net(x), whole(x), **NEAR)
    whole.zero_grad(), cut.zero_grad()
    for each in (whole, net):
        each(x).square().sum().backward()
    want = gradients(whole)
    for name, grad in gradients(cut).items():
        close(grad, want[name], rtol=1e-4, atol=1e-4)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.lin(x))


@case()
def expert_parallel():
    """Tokens travel to the rank of their expert and back, as many as the router says; none to some ranks."""
    torch.manual_seed(5)
    experts = [Expert() for _ in range(WORLD)]
    mine, rank, group = experts[dist.get_rank()], dist.get_rank(), dist.group.WORLD

    def f(x, to):
        order = torch.argsort(to, stable=True)
        sent = torch.bincount(to, minlength=WORLD)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        out, back = sent.tolist(), received.tolist()
        came = fc.all_to_all_single(x[order], back, out, group)
        made = fc.all_to_all_single(mine(came), out, back, group)
        return torch.zeros_like(x).index_copy(0, order, made)

    x = rows(6, 8) + rank
    with (
        torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True),
        torch.no_grad(),
    ):
        for to in (torch.tensor([0, 1, 1, 0, 1, 1]), torch.full((6,), rank), torch.zeros(6, dtype=torch.int64)):
            want = torch.stack([experts[e](row) for e, row in zip(to.tolist(), x)])
            close(compiled(f)(x, to), want, **NEAR)


@case()
def context_parallel():
    """Each rank has a part of the sequence; keys and values are gathered, the mask is that of the rank."""
    rank, group = dist.get_rank(), dist.group.WORLD

    def f(q, k, v):
        keys, values = (fc.all_gather_tensor_autograd(t, 2, group) for t in (k, v))
        at = torch.arange(q.shape[2]) + rank * q.shape[2]
        mask = at[:, None] >= torch.arange(keys.shape[2])
        return nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    whole = [rows(2, 2, 8, 4) * (i + 1) for i in range(3)]
    want = nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
    own = [t.chunk(WORLD, 2)[rank].clone().requires_grad_() for t in whole]
    got = compiled(f)(*own)
    close(got, want.chunk(WORLD, 2)[rank], **NEAR)
    whole = [t.requires_grad_() for t in whole]
    nn.functional.scaled_dot_product_attention(*whole, is_causal=True).square().sum().backward()
    got.square().sum().backward()
    for mine, all_of_it in zip(own, whole):
        close(mine.grad, all_of_it.grad.chunk(WORLD, 2)[rank], **NEAR)


@case()
def pipeline_parallel():
    """Stages of torch's pipelining, each compiled; 1F1B over four microbatches, with gradients."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(5)
    parts = [Mlp() for _ in range(WORLD)]
    whole = nn.Sequential(*(Mlp() for _ in range(WORLD)))
    for mine, theirs in zip(whole, parts):
        mine.load_state_dict(theirs.state_dict())
    rank = dist.get_rank()
    torch._dynamo.reset()
    net = torch.compile(parts[rank], backend=torchair.get_npu_backend())
    stage = PipelineStage(net, rank, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda y, t: (y - t).square().sum())
    x, target, losses = rows(8, 8), rows(8, 8) * 2, []
    if rank == 0:
        schedule.step(x)
    else:
        got = schedule.step(target=target, losses=losses)
        close(got, whole(x), **NEAR)
    (whole(x) - target).square().sum().div(4).backward()
    want = dict(whole[rank].named_parameters())
    for name, p in parts[rank].named_parameters():
        close(p.grad, want[name].grad, rtol=1e-4, atol=1e-4)


@case()
def fully_sharded():
    """FSDP2: parameters are gathered in hooks around compiled code; training steps equal the whole model's."""
    from torch.distributed.fsdp import fully_shard

    whole, cut = pair()
    fully_shard(cut, mesh=mesh("dp"))
    torch._dynamo.reset()
    net = torch.compile(cut, backend=torchair.get_npu_backend())
    inputs = [rows(3, 8) + r for r in range(WORLD)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (whole, cut)]
    for _ in range(2):
        net(inputs[dist.get_rank()]).square().sum().backward()
        sum(whole(x).square().sum() for x in inputs).div(WORLD).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    for (_, mine), (_, theirs) in zip(cut.named_parameters(), whole.named_parameters()):
        close(mine.full_tensor(), theirs, rtol=1e-4, atol=1e-4)


@case()
def a_rank_that_never_comes():
    """The others get an error within the group's time, no matter what they wait in."""
    from datetime import timedelta

    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))

    def f(x):
        return fc.all_reduce(x, "sum", group) * 2

    if dist.get_rank() == 0:
        with pytest.raises(
            Exception, match=r"(?is)HcomAllReduce.*(timed out|timeout)|(timed out|timeout).*HcomAllReduce"
        ):
            compiled(f)(torch.ones(3))


# --- two processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks():
    with processes(__file__) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks(name, ranks):
    errors = ranks.run(name)
    assert not any(errors), "\n".join(f"rank {r}:\n{e}" for r, e in enumerate(errors))
