"""Patterns of distributed models on real processes with gloo, compiled, against the unsharded model in eager mode.

On two processes; on four and eight with ``TAIR_WHOLE=1``.
"""

import copy
import os

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
from ge_graph.errors import EngineError
from tair_testing.compiling import compiled
from tair_testing.ranks import WORLD as FEWEST
from tair_testing.ranks import Cases, close

case, large = Cases(), Cases()  # those of two ranks and more, and of four and more
CASES = Cases()
WHOLE = bool(os.environ.get("TAIR_WHOLE"))
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def count():
    """Ranks that carry out a case."""
    return dist.get_world_size()


def mesh(name="tp"):
    return init_device_mesh("cpu", (count(),), mesh_dim_names=(name,))


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


def sequence_pair():
    """Norms on parts of the sequence, linears on parts of the width."""
    whole, cut = pair()
    parallelize_module(
        cut,
        mesh(),
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Replicate()),
        },
    )
    return whole, cut


@case()
def sequence_parallel():
    """Forward and backward."""
    whole, cut = sequence_pair()
    net = compiled(cut)
    x = rows(2, 8, 8)
    close(net(x.chunk(count(), 1)[dist.get_rank()]), whole(x), **NEAR)
    whole.zero_grad(), cut.zero_grad()
    for each, given in ((whole, x), (net, x.chunk(count(), 1)[dist.get_rank()])):
        each(given).square().sum().backward()
    want = gradients(whole)
    for name, grad in gradients(cut).items():
        close(grad, want[name], rtol=1e-4, atol=1e-4)


@case()
def sequence_parallel_with_symbolic_sizes():
    """A gap of torch's, whatever the backend: AOTAutograd loses the size of a DTensor that is cut along it."""
    for backend in ("aot_eager", torchair.get_npu_backend()):
        torch._dynamo.reset()
        net = torch.compile(sequence_pair()[1], backend=backend, dynamic=True)
        with pytest.raises(Exception, match="is ?not tracked with proxy"):
            net(rows(2, 2, 8))


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
    experts = [Expert() for _ in range(count())]
    mine, rank, group = experts[dist.get_rank()], dist.get_rank(), dist.group.WORLD

    def f(x, to):
        order = torch.argsort(to, stable=True)
        sent = (to[:, None] == torch.arange(count())).sum(0)
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
        few = torch.tensor([0, 1, 1, 0, count() - 1, 1])
        for to in (few, torch.full((6,), rank), torch.zeros(6, dtype=torch.int64)):
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
    own = [t.chunk(count(), 2)[rank].clone().requires_grad_() for t in whole]
    got = compiled(f)(*own)
    close(got, want.chunk(count(), 2)[rank], **NEAR)
    whole = [t.requires_grad_() for t in whole]
    nn.functional.scaled_dot_product_attention(*whole, is_causal=True).square().sum().backward()
    got.square().sum().backward()
    for mine, all_of_it in zip(own, whole):
        close(mine.grad, all_of_it.grad.chunk(count(), 2)[rank], rtol=1e-4, atol=1e-4)


@case()
def context_parallel_of_torch():
    """torch's own, for flex_attention: mask and buffers are cut, an operator of torch gathers keys and values.

    Results only: torch has no backward of flex_attention for CPU tensors.
    """
    experimental = pytest.importorskip("torch.distributed.tensor.experimental._attention")
    if not hasattr(experimental, "_ContextParallel"):
        pytest.skip("this torch has context parallelism for scaled_dot_product_attention only")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Attention(nn.Module):
        def forward(self, q, k, v, block_mask):
            return flex_attention(q, k, v, block_mask=block_mask)

    length, grid = 128 * count(), mesh("cp")
    whole = [rows(1, 2, length, 8) * (i + 1) for i in range(3)]
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, length, length, device="cpu")
    kind = experimental._ContextParallel.AttentionType.FLEX
    net = parallelize_module(Attention(), grid, experimental._ContextParallel(seq_dim=2, attention_type=kind))
    given = [[*(t.clone() for t in whole), mask], [2, 2, 2, 2]]
    *own, cut = experimental._context_parallel_shard(grid, *given, load_balancer=None)
    want = nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
    close(compiled(net)(*own, cut), want.chunk(count(), 2)[dist.get_rank()], rtol=1e-4, atol=1e-4)


@case()
def context_parallel_of_torch_for_scaled_dot_product_attention():
    """A gap of torch's, whatever runs it: CPU tensors have no sharding of the attention that it takes there."""
    from torch.distributed.tensor.experimental import context_parallel

    def f(q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    for run in (f, compiled(f)):
        buffers = [rows(2, 2, 4 * count(), 8) for _ in range(3)]
        with (
            pytest.raises(Exception, match="_scaled_dot_product_flash_attention_for_cpu.*sharding"),
            context_parallel(mesh("cp"), buffers=buffers, buffer_seq_dims=[2, 2, 2]),
        ):
            run(*buffers)


@case()
def pipeline_parallel():
    """Stages of torch's pipelining, each compiled; 1F1B over four microbatches, with gradients."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(5)
    parts = [Mlp() for _ in range(count())]
    whole = nn.Sequential(*(Mlp() for _ in range(count())))
    for mine, theirs in zip(whole, parts):
        mine.load_state_dict(theirs.state_dict())
    rank = dist.get_rank()
    torch._dynamo.reset()
    net = torch.compile(parts[rank], backend=torchair.get_npu_backend())
    stage = PipelineStage(net, rank, count(), torch.device("cpu"))
    batches = 2 * count()
    schedule = Schedule1F1B(stage, batches, loss_fn=lambda y, t: (y - t).square().sum())
    x, target, losses = rows(2 * batches, 8), rows(2 * batches, 8) * 2, []
    if rank == 0:
        schedule.step(x)
    elif rank < count() - 1:
        schedule.step()
    else:
        got = schedule.step(target=target, losses=losses)
        close(got, whole(x), **NEAR)
    (whole(x) - target).square().sum().div(batches).backward()
    want = dict(whole[rank].named_parameters())
    for name, p in parts[rank].named_parameters():
        close(p.grad, want[name].grad, rtol=1e-4, atol=1e-4)


@case()
def pipeline_interleaved():
    """Two stages on each rank, not next to each other."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    torch.manual_seed(5)
    whole = nn.Sequential(*(Mlp() for _ in range(2 * count())))
    mine = {n: copy.deepcopy(whole[n]) for n in (dist.get_rank(), dist.get_rank() + count())}
    torch._dynamo.reset()
    nets = {n: torch.compile(part, backend=torchair.get_npu_backend()) for n, part in mine.items()}
    stages = [PipelineStage(net, n, 2 * count(), torch.device("cpu")) for n, net in nets.items()]
    batches = 2 * count()
    schedule = ScheduleInterleaved1F1B(stages, batches, loss_fn=lambda y, t: (y - t).square().sum())
    x, target = rows(2 * batches, 8), rows(2 * batches, 8) * 2
    last = dist.get_rank() == count() - 1
    got = schedule.step(*[x] if dist.get_rank() == 0 else [], **{"target": target, "losses": []} if last else {})
    if last:
        close(got, whole(x), **NEAR)
    (whole(x) - target).square().sum().div(batches).backward()
    for n, part in mine.items():
        for p, want in zip(part.parameters(), whole[n].parameters()):
            close(p.grad, want.grad, rtol=1e-4, atol=1e-4)


@case(False, name="data_parallel")
@case(True, name="data_parallel_with_compiled_autograd")
def data_parallel(whole_backward):
    """``DistributedDataParallel``: gradients are the mean over the ranks."""
    whole, cut = pair()
    torch._dynamo.reset()
    net = torch.compile(nn.parallel.DistributedDataParallel(cut), backend=torchair.get_npu_backend())
    inputs = [rows(3, 8) + r for r in range(count())]
    with torch._dynamo.config.patch(compiled_autograd=whole_backward):
        net(inputs[dist.get_rank()]).square().sum().backward()
    sum(whole(x).square().sum() for x in inputs).div(count()).backward()
    for mine, theirs in zip(cut.parameters(), whole.parameters()):
        close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


class Decoder(nn.Module):
    """One layer with a cache of keys and values; heads of the rank only."""

    def __init__(self, heads=8):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.register_buffer("keys", torch.zeros(2, heads, 6, 4))
        self.register_buffer("values", torch.zeros(2, heads, 6, 4))

    def forward(self, x, at):
        q, k, v = (m(x).unflatten(-1, (-1, 4)).transpose(1, 2) for m in (self.q, self.k, self.v))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(6) <= at[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


@case(torch.float32, 1e-5, name="decode_loop")
@case(torch.bfloat16, 5e-2, name="decode_loop_bfloat16")
def decode_loop(dtype, tolerance):
    """Three tokens at once, then one at a time; each rank has the cache of its heads."""
    torch.manual_seed(5)
    whole, cut = Decoder().to(dtype), Decoder(8 // count()).to(dtype)
    cut.load_state_dict({n: v for n, v in whole.state_dict().items() if n not in ("keys", "values")}, strict=False)
    plan = {name: ColwiseParallel() for name in ("q", "k", "v")} | {"o": RowwiseParallel()}
    parallelize_module(cut, mesh(), plan)
    net, at = compiled(cut), 0
    with torch.no_grad():
        for length in (3, 1, 1, 1):
            x, places = rows(2, length, 32).to(dtype), torch.arange(at, at + length)
            close(net(x, places), whole(x, places), rtol=tolerance, atol=tolerance)
            at += length


@case()
def splits_of_other_sizes():
    """Rank r sends r + s elements to rank s, so one pair has none."""
    rank = dist.get_rank()
    sends = [rank + s for s in range(count())]

    def f(x):
        return fc.all_to_all_single(x, sends, sends, dist.group.WORLD) * 2

    given = [[torch.full((r + s,), 10.0 * r + s) for s in range(count())] for r in range(count())]
    close(compiled(f)(torch.cat(given[rank])), torch.cat([given[s][rank] for s in range(count())]) * 2)


@case()
def fully_sharded():
    """FSDP2: parameters are gathered in hooks around compiled code; training steps equal the whole model's."""
    from torch.distributed.fsdp import fully_shard

    whole, cut = pair()
    fully_shard(cut, mesh=mesh("dp"))
    torch._dynamo.reset()
    net = torch.compile(cut, backend=torchair.get_npu_backend())
    inputs = [rows(3, 8) + r for r in range(count())]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (whole, cut)]
    for _ in range(2):
        net(inputs[dist.get_rank()]).square().sum().backward()
        sum(whole(x).square().sum() for x in inputs).div(count()).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    for (_, mine), (_, theirs) in zip(cut.named_parameters(), whole.named_parameters()):
        close(mine.full_tensor(), theirs, rtol=1e-4, atol=1e-4)


@large()
def tensor_parallel_and_fully_sharded():
    """A mesh of two dimensions: linears are cut over one, what is left of each parameter over the other."""
    from torch.distributed.fsdp import fully_shard

    grid = init_device_mesh("cpu", (2, count() // 2), mesh_dim_names=("dp", "tp"))
    whole, cut = pair()
    parallelize_module(cut, grid["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(cut, mesh=grid["dp"])
    torch._dynamo.reset()
    net = torch.compile(cut, backend=torchair.get_npu_backend())
    inputs = [rows(3, 8) + r for r in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (whole, cut)]
    for _ in range(2):
        net(inputs[grid["dp"].get_local_rank()]).square().sum().backward()
        sum(whole(x).square().sum() for x in inputs).div(2).backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    for (_, mine), (_, theirs) in zip(cut.named_parameters(), whole.named_parameters()):
        close(mine.full_tensor(), theirs, rtol=1e-4, atol=1e-4)


class Mixture(nn.Module):
    """An MLP, then eight experts of which a token takes two; ``group`` shares the experts out."""

    def __init__(self):
        super().__init__()
        self.mlp, self.router = Mlp(), nn.Linear(8, 8)
        self.experts = nn.ModuleList(Expert() for _ in range(8))
        self.first, self.group = 0, None

    def forward(self, x):
        x = x + self.mlp(x)
        weights, chosen = self.router(x).softmax(-1).topk(2)
        total = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            total = total + expert(x) * (weights * (chosen == self.first + i)).sum(-1, keepdim=True)
        return x + (total if self.group is None else fc.all_reduce(total, "sum", self.group))


@large(torch.float32, 1e-5, name="tensor_and_expert_parallel")
@large(torch.bfloat16, 5e-2, name="tensor_and_expert_parallel_bfloat16")
def tensor_and_expert_parallel(dtype, tolerance):
    grid = init_device_mesh("cpu", (2, count() // 2), mesh_dim_names=("tp", "ep"))
    whole, cut = pair(Mixture)
    whole, cut = whole.to(dtype), cut.to(dtype)
    parallelize_module(cut.mlp, grid["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    cut.group = grid["ep"].get_group()
    each = 8 // cut.group.size()
    cut.first = each * cut.group.rank()
    cut.experts = cut.experts[cut.first : cut.first + each]
    x = rows(5, 8).to(dtype)
    with torch.no_grad():
        close(compiled(cut)(x), whole(x), rtol=tolerance, atol=tolerance)


@case()
def a_rank_that_never_comes():
    """The others get an error within the group's time, no matter what they wait in."""
    from datetime import timedelta

    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))

    def f(x):
        return fc.all_reduce(x, "sum", group) * 2

    if dist.get_rank() == 0:
        with pytest.raises(EngineError, match=r"(?is)GE4005.*HcomAllReduce.*(timed out|timeout)") as caught:
            compiled(f)(torch.ones(3))
        assert "this is rank 0; rank 1 did not come" in str(caught.value)
        assert f"{__file__}:" in str(caught.value)


@case()
def ranks_in_other_collectives():
    """Each says where the other stands."""
    from datetime import timedelta

    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))

    def gathers(x):
        return fc.all_gather_tensor(x, 0, group) * 2

    def adds(x):
        return fc.all_reduce(x, "sum", group) * 2

    if (rank := dist.get_rank()) < 2:
        with pytest.raises(EngineError, match="GE4005") as caught:
            compiled(gathers if rank else adds)(torch.ones(100 if rank else 3))
        there = f"{(gathers, adds)[rank].__code__.co_filename}:{(gathers, adds)[rank].__code__.co_firstlineno + 1}"
        other = f"rank {1 - rank} failed in {'HcomAllReduce' if rank else 'HcomAllGather'} at {there}"
        assert other in str(caught.value), caught.value


# --- processes -------------------------------------------------------------------------------------------------------

CASES.update(case | large)
RUNS = [(n, name) for n in (FEWEST, 4, 8)[: 3 if WHOLE else 1] for name in (CASES if n > FEWEST else case)]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "name"), RUNS, indirect=["ranks"], scope="module", ids=lambda v: str(v))
def test_ranks(name, ranks):
    ranks.check(name)
