"""Patterns of distributed models on real processes, compiled, against the unsharded model in eager mode on the CPU.

Each rank carries out the same case, with gloo on the host or with hccl on devices. A case passes if its numbers are
those of the unsharded model, or if it is refused in the words that ``REFUSED`` has for it. ``torchrun -m
tair_testing.rank_patterns gloo CASE ...`` is a rank too.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import torchair
from ge_graph import Graph
from tair_debug.observer import GraphId, Silent, observing
from tair_testing.compiling import compiled
from tair_testing.ranks import SECONDS, Cases, backend, close, device, join

_STEP = {"rtol": 1e-4, "atol": 1e-4}
_NEAR = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2}}
_ROUGH = {torch.float32: _STEP, torch.bfloat16: {"rtol": 1e-1, "atol": 1e-1}}  # of gradients

FEWEST: dict[str, int] = {}
"""Cases that need more than two ranks, and how many."""

MOST: dict[str, int] = {}
"""Cases that run on few ranks, and on how many."""

REFUSED: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        (("gloo", "sequence_parallel_equal_sizes"), ("hccl", "sequence_parallel_equal_sizes")),
        "is ?not tracked with proxy",
    ),
    ("gloo", "context_parallel_sdpa"): "_scaled_dot_product_flash_attention_for_cpu.*sharding",
    ("hccl", "context_parallel_sdpa"): "_scaled_dot_product_flash_attention_for_cpu.*sharding",
}
"""Backend and case to the words in which torch or torch_npu refuses it; a gap of ours where ``aot_eager`` takes it."""


class _Patterns(Cases):
    """Cases that tell what was compiled for them."""

    def __call__(
        self, *args: Any, name: str | None = None, fewest: int = 2, most: int = 8
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            called = name or fn.__name__
            self[called] = functools.partial(_outcome, called, functools.partial(fn, *args))
            if fewest > 2:
                FEWEST[called] = fewest
            if most < 8:
                MOST[called] = most
            return fn

        return register


case = CASES = _Patterns()


@dataclass
class _Seen(Silent):
    graphs: int = 0
    collectives: int = 0

    def ge_graph(self, stage: GraphId, label: str, graph: Graph) -> None:
        if label == "optimized":
            self.graphs += 1
            self.collectives += sum(node.op.startswith("Hcom") for node in graph.nodes)


def _outcome(name: str, fn: Callable[[], Any]) -> dict[str, Any]:
    """Graphs and collectives in them on this rank, and the words of a refusal that is due."""
    seen, words = _Seen(), REFUSED.get((backend(), name))
    said = ""
    try:
        with observing(seen):
            fn()
    except Exception as error:
        found = re.search(words, str(error), re.DOTALL) if words else None
        if found is None:
            raise
        said = " ".join(found[0].split())
    else:
        assert words is None, f"{name} passes with {backend()}, against its row in REFUSED"
    return {"said": said, "graphs": seen.graphs, "collectives": seen.collectives}


# --- what the cases share --------------------------------------------------------------------------------------------


def count() -> int:
    """Ranks that carry out a case."""
    return int(dist.get_world_size())


def mesh(*names: str) -> DeviceMesh:
    """All ranks; of two names the first has two."""
    shape = (count(),) if len(names) == 1 else (2, count() // 2)
    return init_device_mesh(device(), shape, mesh_dim_names=names)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Equal on all ranks, on the host."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def here(tree: Any) -> Any:
    """A tensor or module where this rank computes."""
    return tree.to(device())


def own(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The part of this rank."""
    return x.chunk(count(), dim)[dist.get_rank()].contiguous()


def pair(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The whole model on the host, and one of equal weights where this rank computes."""
    torch.manual_seed(5)
    whole = make().to(dtype)
    return whole, here(copy.deepcopy(whole))


def alike(*runs: Callable[[], Any]) -> list[Any]:
    """What each gives; if none gives anything, the error of the last. One that fails alone is no refusal of torch's."""
    results, errors = [], []
    for run in runs:
        try:
            results.append(run())
        except Exception as error:  # noqa: BLE001  (which one is compared, or raised again)
            errors.append(error)
    assert len(errors) in (0, len(runs)), errors
    if errors:
        raise errors[-1]
    return results


def beside_eager(model: nn.Module, net: Callable[..., Any], x: torch.Tensor, dynamic: bool) -> Any:
    """What a compiled model gives. If it raises, the error is that of ``aot_eager``, which is torch's own."""
    try:
        return net(x)
    except Exception as error:
        torch._dynamo.reset()
        torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=dynamic)(x)
        said = re.search(r"\w+Error: [^\n]*", str(error))
        raise AssertionError(f"{said[0] if said else error}; aot_eager takes it") from error


def through(module: Any) -> Any:
    """Compiled, with breaks where hooks are."""
    return compiled(module, fullgraph=False)


def gradients(net: nn.Module) -> dict[str, Any]:
    """Whole gradients by parameter."""
    found = {name: p.grad for name, p in net.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in found.items()}


def same_gradients(cut: nn.Module, whole: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Each within rounding of the largest element of the whole model's."""
    want = gradients(whole)
    for name, got in gradients(cut).items():
        scale = want[name].abs().max().clamp(min=1)
        close(got.cpu() / scale, want[name] / scale, **_ROUGH[dtype])


class Mlp(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.up(self.norm(x))))


class AttentionAndMlp(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """Attention and MLP, each ending in a linear whose input is split."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.mlp_norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (m(x).unflatten(-1, (-1, 4)).transpose(1, 2) for m in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.silu(self.up(self.mlp_norm(x))))


MLP_PLAN = {"up": ColwiseParallel, "down": RowwiseParallel}


def cut_mlp(module: nn.Module, grid: DeviceMesh) -> None:
    """Linears over the width."""
    parallelize_module(module, grid, {name: kind() for name, kind in MLP_PLAN.items()})


FLOAT, HALF = torch.float32, torch.bfloat16


# --- tensor and sequence parallel ------------------------------------------------------------------------------------


@case(FLOAT, False, True)
@case(FLOAT, True, False, name="tensor_parallel_dynamic")
@case(FLOAT, True, True, name="tensor_parallel_training_dynamic")
@case(HALF, False, True, name="tensor_parallel_bfloat16")
def tensor_parallel(dtype: torch.dtype, dynamic: bool, gradient: bool) -> None:
    """Results and gradients; of dynamic sizes two."""
    whole, cut = pair(AttentionAndMlp, dtype)
    plan = dict.fromkeys(("q", "k", "v"), ColwiseParallel) | {"o": RowwiseParallel} | MLP_PLAN
    parallelize_module(cut, mesh("tp"), {name: kind() for name, kind in plan.items()})
    net = compiled(cut, dynamic=dynamic)
    with torch.set_grad_enabled(gradient):
        for batch, length in ((2, 5), (3, 7)) if dynamic else ((2, 5),):
            x = rows(batch, length, 32, dtype=dtype)
            whole.zero_grad()
            cut.zero_grad()
            want = whole(x)
            got = beside_eager(cut, net, here(x), dynamic)
            close(got, want, **_NEAR[dtype])
            if gradient:
                want.square().mean().backward()
                got.square().mean().backward()
                same_gradients(cut, whole, dtype)


@case(FLOAT, False, 8)
@case(FLOAT, True, 16, name="sequence_parallel_dynamic")
@case(FLOAT, True, 0, name="sequence_parallel_equal_sizes")
@case(HALF, False, 8, name="sequence_parallel_bfloat16")
def sequence_parallel(dtype: torch.dtype, dynamic: bool, length: int) -> None:
    """Norms on parts of the sequence, linears on parts of the width; results and gradients.

    A rank's part of length 0 is as long as the batch, which symbolic sizes then share.
    """
    whole, cut = pair(Mlp, dtype)
    layouts = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(cut, mesh("tp"), layouts)
    x = rows(3, length or 3 * count(), 8, dtype=dtype)
    want = whole(x)
    got = beside_eager(cut, compiled(cut, dynamic=dynamic), here(own(x, 1)), dynamic)
    close(got, want, **_NEAR[dtype])
    want.square().mean().backward()
    got.square().mean().backward()
    same_gradients(cut, whole, dtype)


class Decoder(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """One layer with a cache of keys and values; heads of the rank only."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, heads: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.register_buffer("keys", torch.zeros(2, heads, 6, 4))
        self.register_buffer("values", torch.zeros(2, heads, 6, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = (m(x).unflatten(-1, (-1, 4)).transpose(1, 2) for m in (self.q, self.k, self.v))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        mask = torch.arange(6, device=at.device) <= at[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


@case(FLOAT, False)
@case(FLOAT, True, name="decode_loop_dynamic")
@case(HALF, False, name="decode_loop_bfloat16")
def decode_loop(dtype: torch.dtype, dynamic: bool) -> None:
    """Three tokens at once, then one at a time; each rank has the cache of its heads."""
    torch.manual_seed(5)
    whole, cut = Decoder().to(dtype), Decoder(8 // count()).to(dtype)
    cut.load_state_dict({n: v for n, v in whole.state_dict().items() if n not in ("keys", "values")}, strict=False)
    plan = dict.fromkeys(("q", "k", "v"), ColwiseParallel) | {"o": RowwiseParallel}
    parallelize_module(here(cut), mesh("tp"), {name: kind() for name, kind in plan.items()})
    net, at = compiled(cut, dynamic=dynamic), 0
    with torch.no_grad():
        for length in (3, 2, 1) if dynamic else (3, 1, 1, 1):
            x, places = rows(2, length, 32, dtype=dtype), torch.arange(at, at + length)
            close(net(here(x), here(places)), whole(x, places), **_NEAR[dtype])
            at += length


# --- experts ---------------------------------------------------------------------------------------------------------


class Expert(nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.lin(x))


class Mixture(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """An MLP, then eight experts of which a token takes two; ``group`` shares the experts out."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.router = Mlp(), nn.Linear(8, 8)
        self.experts = nn.ModuleList(Expert() for _ in range(8))
        self.first, self.group = 0, None

    def share(self, group: Any) -> None:
        """Keep the experts of this rank of the group."""
        each = 8 // group.size()
        self.first, self.group = each * group.rank(), group
        self.experts = self.experts[self.first : self.first + each]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mlp(x)
        weights, chosen = self.router(x).softmax(-1).topk(2)
        total = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            total = total + expert(x) * (weights * (chosen == self.first + i)).sum(-1, keepdim=True)
        return x + (total if self.group is None else fc.all_reduce(total, "sum", self.group))


def _mixture(whole: Mixture, cut: Mixture, dtype: torch.dtype, dynamic: bool) -> None:
    net = compiled(cut, dynamic=dynamic)
    with torch.no_grad():
        for tokens in (5, 3) if dynamic else (5,):
            x = rows(tokens, 8, dtype=dtype)
            close(net(here(x)), whole(x), **_NEAR[dtype])


@case(FLOAT, False)
@case(FLOAT, True, name="expert_sums_dynamic")
@case(HALF, False, name="expert_sums_bfloat16")
def expert_sums(dtype: torch.dtype, dynamic: bool) -> None:
    """Every rank sees every token; what its experts give is added up."""
    whole, cut = pair(Mixture, dtype)
    cut.share(mesh("ep").get_group())
    _mixture(whole, cut, dtype, dynamic)


@case(FLOAT, False, fewest=4)
@case(FLOAT, True, name="tensor_and_expert_parallel_dynamic", fewest=4)
@case(HALF, False, name="tensor_and_expert_parallel_bfloat16", fewest=4)
def tensor_and_expert_parallel(dtype: torch.dtype, dynamic: bool) -> None:
    """A mesh of two dimensions."""
    whole, cut = pair(Mixture, dtype)
    grid = mesh("tp", "ep")
    cut_mlp(cut.mlp, grid["tp"])
    cut.share(grid["ep"].get_group())
    _mixture(whole, cut, dtype, dynamic)


def _routed(mine: nn.Module, gradient: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Tokens travel to the rank of their expert and back, as many as the router says."""
    ranks, group = count(), dist.group.WORLD
    exchange = fc.all_to_all_single_autograd if gradient else fc.all_to_all_single

    def f(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        order = torch.argsort(to, stable=True)
        sent = (to[:, None] == torch.arange(ranks, device=to.device)).sum(0)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        out, back = sent.tolist(), received.tolist()
        came = exchange(x[order], back, out, group)
        made = exchange(mine(came), out, back, group)
        return torch.zeros_like(x).index_copy(0, order, made)

    return f


def _experts(dtype: torch.dtype) -> list[nn.Module]:
    torch.manual_seed(5)
    return [Expert().to(dtype) for _ in range(count())]


def _routes() -> list[list[torch.Tensor]]:
    """By turn and rank: some tokens to each; all to oneself; all to rank 0, none to the others."""
    few = torch.tensor([0, 1, 1, 0, count() - 1, 1])
    return [[t] * count() for t in (few, torch.zeros_like(few))] + [[torch.full((6,), r) for r in range(count())]]


@case(FLOAT)
@case(HALF, name="expert_parallel_bfloat16")
def expert_parallel(dtype: torch.dtype) -> None:
    """Splits are values, so one graph serves all; ranks without any token among them."""
    experts, rank = _experts(dtype), dist.get_rank()
    x = rows(6, 8, dtype=dtype) + rank
    net = compiled(_routed(here(copy.deepcopy(experts[rank])), False))
    with _of_data(), torch.no_grad():
        for turn in _routes():
            to = turn[rank]
            want = torch.stack([experts[e](row) for e, row in zip(to.tolist(), x, strict=True)])
            close(net(here(x), here(to)), want, **_NEAR[dtype])


@case()
def expert_parallel_training() -> None:
    """Gradients of inputs and of the rank's expert, to which all ranks' tokens contribute."""
    experts, rank = _experts(FLOAT), dist.get_rank()
    mine = here(copy.deepcopy(experts[rank]))
    net = compiled(_routed(mine, True))
    with _of_data():
        for turn in _routes():
            xs = [(rows(6, 8) + r).requires_grad_() for r in range(count())]
            x = here(xs[rank].detach().clone()).requires_grad_()
            for each in (mine, *experts):
                each.zero_grad()
            for tokens, to in zip(xs, turn, strict=True):
                want = torch.stack([experts[e](row) for e, row in zip(to.tolist(), tokens, strict=True)])
                want.square().sum().backward()
            net(x, here(turn[rank])).square().sum().backward()
            close(x.grad, xs[rank].grad, **_STEP)
            used = experts[rank].lin.weight.grad is not None
            if used:
                same_gradients(mine, experts[rank])
            else:
                assert all(g is None or not g.cpu().any() for g in gradients(mine).values())


class TravellingExperts(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """This rank's part of the experts of a layer of transformers; tokens travel to them and back."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.each = experts.gate_up_proj.shape[0] // count()
        own_experts = slice(self.each * dist.get_rank(), self.each * (dist.get_rank() + 1))
        self.gate_up_proj = nn.Parameter(experts.gate_up_proj.detach()[own_experts].clone())
        self.down_proj = nn.Parameter(experts.down_proj.detach()[own_experts].clone())
        self.act = experts.act_fn

    def forward(self, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        experts, group = chosen.flatten(), dist.group.WORLD
        order = torch.argsort(experts, stable=True)
        token = order // chosen.shape[1]
        sent = (experts[:, None] // self.each == torch.arange(count(), device=tokens.device)).sum(0)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        out, back = sent.tolist(), received.tolist()
        came = fc.all_to_all_single_autograd(tokens[token], back, out, group)
        expert = fc.all_to_all_single(experts[order] % self.each, back, out, group)
        gate, up = (self.gate_up_proj[expert] @ came[:, :, None]).squeeze(2).chunk(2, -1)
        made = (self.down_proj[expert] @ (self.act(gate) * up)[:, :, None]).squeeze(2)
        home = fc.all_to_all_single_autograd(made, out, back, group)
        share = weights.flatten()[order][:, None]
        return torch.zeros_like(tokens).index_add(0, token, (home * share).to(tokens.dtype))


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": 8}
    return MixtralSparseMoeBlock(MixtralConfig(**sizes, experts_implementation="eager"))


def _deepseek() -> nn.Module:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    sizes = {"hidden_size": 16, "moe_intermediate_size": 8, "n_routed_experts": 16, "num_experts_per_tok": 4}
    groups = {"n_group": 4, "topk_group": 2, "n_shared_experts": 1}
    return DeepseekV3MoE(DeepseekV3Config(**sizes, **groups, experts_implementation="eager"))


@case(_mixtral, FLOAT, name="expert_parallel_mixtral", most=4)
@case(_mixtral, HALF, name="expert_parallel_mixtral_bfloat16", most=4)
@case(_deepseek, FLOAT, name="expert_parallel_deepseek", most=4)
@case(_deepseek, HALF, name="expert_parallel_deepseek_bfloat16", most=4)
def expert_parallel_of(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    """Results and gradients; first no token chooses an expert of the last rank, then all tokens like those best."""
    torch.manual_seed(5)
    whole: Any = make()
    for value in whole.parameters():
        nn.init.normal_(value, std=0.2)
    with torch.no_grad():
        whole.gate.weight[-whole.gate.num_experts // count() :] -= 0.4  # against tokens of positive numbers
    whole = whole.to(dtype)
    cut = copy.deepcopy(whole)
    cut.experts = TravellingExperts(whole.experts)
    net = compiled(here(cut))
    for sign in (1, -1):
        xs = [(sign * rows(2, 5, 16, dtype=dtype).abs() + sign * r / 8).requires_grad_() for r in range(count())]
        x = here(xs[dist.get_rank()].detach().clone()).requires_grad_()
        cut.zero_grad()
        whole.zero_grad()
        chosen = torch.cat([whole.gate(each.flatten(0, 1))[2] for each in xs])
        assert sign < 0 or int(chosen.max()) < whole.gate.num_experts - whole.gate.num_experts // count()
        want = [whole(each) for each in xs]
        for each in want:
            each.float().square().sum().backward()
        with _of_data():
            got = net(x)
            got.float().square().sum().backward()
        close(got, want[dist.get_rank()], **_NEAR[dtype])
        close(x.grad, xs[dist.get_rank()].grad, **_ROUGH[dtype])
        for name, value in cut.named_parameters():
            total, full = value.grad, whole.get_parameter(name).grad
            if name.startswith("experts."):
                full = own(full)
            else:  # each rank has seen its own tokens
                dist.all_reduce(total)
            scale = full.abs().max().clamp(min=1)
            close(total.cpu() / scale, full / scale, **_ROUGH[dtype])


def _of_data() -> Any:
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


@case(FLOAT, False)
@case(FLOAT, True, name="uneven_splits_dynamic")
@case(HALF, False, name="uneven_splits_bfloat16")
def uneven_splits(dtype: torch.dtype, dynamic: bool) -> None:
    """Rank r sends r + s rows to rank s, so one pair has none."""
    rank = dist.get_rank()
    sends = [rank + s for s in range(count())]

    def f(x: torch.Tensor) -> torch.Tensor:
        return fc.all_to_all_single(x, sends, sends, dist.group.WORLD) * 2

    net = compiled(f, dynamic=dynamic)
    for width in (3, 5) if dynamic else (3,):
        given = [
            [torch.full((r + s, width), 10.0 * r + s, dtype=dtype) for s in range(count())] for r in range(count())
        ]
        want = torch.cat([given[s][rank] for s in range(count())]) * 2
        close(net(here(torch.cat(given[rank]))), want)


# --- context parallel ------------------------------------------------------------------------------------------------


@case(FLOAT, False)
@case(FLOAT, True, name="context_parallel_dynamic")
@case(HALF, False, name="context_parallel_bfloat16")
def context_parallel(dtype: torch.dtype, dynamic: bool) -> None:
    """Each rank has a part of the sequence; keys and values are gathered, the mask is that of the rank."""
    rank, group = dist.get_rank(), dist.group.WORLD

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = (fc.all_gather_tensor_autograd(t, 2, group) for t in (k, v))
        at = torch.arange(q.shape[2], device=q.device) + rank * q.shape[2]
        mask = at[:, None] >= torch.arange(keys.shape[2], device=q.device)
        return nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    net = compiled(f, dynamic=dynamic)
    for length in (8, 16) if dynamic else (8,):
        whole = [(rows(2, 2, length, 4, dtype=dtype) * (i + 1)).requires_grad_() for i in range(3)]
        want = nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
        mine = [here(own(t.detach(), 2)).requires_grad_() for t in whole]
        got = net(*mine)
        close(got, own(want, 2), **_NEAR[dtype])
        want.square().mean().backward()
        got.square().sum().div(want.numel()).backward()
        for part, full in zip(mine, whole, strict=True):
            close(part.grad, own(full.grad, 2), **_ROUGH[dtype])


@case()
def context_parallel_flex() -> None:
    """torch's own, for flex_attention: mask and buffers are cut, an operator of torch gathers keys and values.

    Results only: torch has no backward of flex_attention for CPU tensors.
    """
    experimental = importlib.import_module("torch.distributed.tensor.experimental._attention")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Attention(nn.Module):  # type: ignore[misc]  # torch is not typed here
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any) -> Any:
            return flex_attention(q, k, v, block_mask=block_mask)

    length, grid, rank = 128 * count(), mesh("cp"), dist.get_rank()
    whole = [rows(1, 2, length, 8) * (i + 1) for i in range(3)]
    kind = experimental._ContextParallel.AttentionType.FLEX
    net = parallelize_module(Attention(), grid, experimental._ContextParallel(seq_dim=2, attention_type=kind))
    if device() == "cpu":
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, length, length, device="cpu")
        given: list[Sequence[Any]] = [[*(t.clone() for t in whole), mask], [2, 2, 2, 2]]
        *mine, cut = experimental._context_parallel_shard(grid, *given, load_balancer=None)
    else:  # torch cuts a mask through Inductor, which knows no such devices
        mine = [here(own(t, 2)) for t in whole]
        cut = create_block_mask(lambda b, h, q, k: q + 128 * rank >= k, 1, 1, 128, length, device=device())
    want = nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
    close(compiled(net)(*mine, cut), own(want, 2), **_STEP)


@case()
def context_parallel_sdpa() -> None:
    """torch's own, for scaled_dot_product_attention."""
    from torch.distributed.tensor.experimental import context_parallel

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    whole = [rows(2, 2, 4 * count(), 8) * (i + 1) for i in range(3)]
    want = f(*whole)

    def run(attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        buffers = [here(t.clone()) for t in whole]
        with context_parallel(mesh("cp"), buffers=buffers, buffer_seq_dims=[2, 2, 2]):
            return attention(*buffers)

    for got in alike(lambda: run(f), lambda: run(compiled(f))):
        assert got.numel() * count() == want.numel()


# --- pipelines -------------------------------------------------------------------------------------------------------


def _pipeline(kind: str, stages: int, dtype: torch.dtype) -> None:
    """``stages`` on each rank, not next to each other; two microbatches for each rank, with gradients."""
    from torch.distributed import pipelining

    torch.manual_seed(5)
    rank, total, batches = dist.get_rank(), stages * count(), 2 * count()
    whole = nn.Sequential(*(Mlp() for _ in range(total))).to(dtype)
    mine = {n: here(copy.deepcopy(whole[n])) for n in range(rank, total, count())}
    torch._dynamo.reset()
    nets = {n: torch.compile(part, backend=torchair.get_npu_backend()) for n, part in mine.items()}
    made = [pipelining.PipelineStage(net, n, total, torch.device(device())) for n, net in nets.items()]
    schedule = getattr(pipelining, kind)(
        made if stages > 1 else made[0], batches, loss_fn=lambda y, t: (y - t).square().mean()
    )
    x, target = rows(2 * batches, 8, dtype=dtype), rows(2 * batches, 8, dtype=dtype) * 2
    last = rank == count() - 1
    more = {"target": here(target), "losses": []} if last else {}
    got = schedule.step(*[here(x)] if rank == 0 else [], **more)
    want = whole(x)
    if last:
        close(got, want, **_NEAR[dtype])
    (want - target).square().mean().backward()
    for n, part in mine.items():
        same_gradients(part, whole[n], dtype)


@case(FLOAT)
@case(HALF, name="pipeline_bfloat16")
def pipeline(dtype: torch.dtype) -> None:
    """A stage on each rank, each compiled."""
    _pipeline("Schedule1F1B", 1, dtype)


@case(FLOAT)
@case(HALF, name="pipeline_interleaved_bfloat16")
def pipeline_interleaved(dtype: torch.dtype) -> None:
    """Two stages on each rank."""
    _pipeline("ScheduleInterleaved1F1B", 2, dtype)


# --- data parallel ---------------------------------------------------------------------------------------------------


def _train(
    whole: nn.Module, cut: nn.Module, inputs: Sequence[Sequence[torch.Tensor]], place: int, tolerance: dict[str, float]
) -> None:
    """Steps of SGD, each with the mean of the losses of ``inputs``, of which this rank has that of its place."""
    net = through(cut)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (whole, cut)]
    for xs in inputs:
        net(here(xs[place])).square().mean().backward()
        torch.stack([whole(x).square().mean() for x in xs]).mean().backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
    for mine, theirs in zip(cut.parameters(), whole.parameters(), strict=True):
        close(mine.full_tensor() if isinstance(mine, DTensor) else mine, theirs, **tolerance)


class Uneven(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """No size that ranks could share out evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 9), nn.Linear(9, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


@case(Mlp, FLOAT, False)
@case(Mlp, FLOAT, True, name="fully_sharded_dynamic")
@case(Mlp, HALF, False, name="fully_sharded_bfloat16")
@case(Uneven, FLOAT, False, name="fully_sharded_uneven")
def fully_sharded(make: Callable[[], nn.Module], dtype: torch.dtype, dynamic: bool) -> None:
    """FSDP2: parameters are gathered in hooks around compiled code; training steps equal the whole model's."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    whole, cut = pair(make)
    half = {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=FLOAT)} if dtype is HALF else {}
    fully_shard(cut, mesh=mesh("dp"), **half)
    sizes = (3, 5) if dynamic else (3, 3)
    inputs = [[rows(n, 8) + r for r in range(count())] for n in sizes]
    _train(whole, cut, inputs, dist.get_rank(), _STEP if dtype is FLOAT else _NEAR[HALF])


@case(fewest=4)
def tensor_parallel_and_fully_sharded() -> None:
    """A mesh of two dimensions: linears are cut over one, what is left of each parameter over the other."""
    from torch.distributed.fsdp import fully_shard

    grid = mesh("dp", "tp")
    whole, cut = pair(Mlp)
    cut_mlp(cut, grid["tp"])
    fully_shard(cut, mesh=grid["dp"])
    inputs = [[rows(3, 8) + r for r in range(2)]] * 2
    _train(whole, cut, inputs, grid["dp"].get_local_rank(), _STEP)


@case(False, FLOAT)
@case(False, HALF, name="data_parallel_bfloat16")
@case(True, FLOAT, name="data_parallel_compiled_autograd")
def data_parallel(compiled_autograd: bool, dtype: torch.dtype) -> None:
    """``DistributedDataParallel``: gradients are the mean over the ranks."""
    whole, cut = pair(Mlp, dtype)
    inputs = [rows(3, 8, dtype=dtype) + r for r in range(count())]
    net = through(nn.parallel.DistributedDataParallel(cut))
    with torch._dynamo.config.patch(compiled_autograd=compiled_autograd):
        net(here(inputs[dist.get_rank()])).square().mean().backward()
    torch.stack([whole(x).square().mean() for x in inputs]).mean().backward()
    same_gradients(cut, whole, dtype)


def on_two_nodes(meets: str, names: Sequence[str], each: int = 2) -> None:
    """Carry out cases on two nodes that torchrun starts on this host; they meet at the loopback address.

    Args:
        meets: ``gloo`` or ``hccl``.
        names: Cases.
        each: Ranks of a node.

    Raises:
        AssertionError: If a rank does not end well, with what its node said.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(each)]
    line += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1"]
    line += ["-m", __name__, meets, *names]
    env = {**os.environ, "TAIR_EMULATOR_DEVICES": str(each)}
    nodes = [
        subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        texts = [node.communicate(timeout=2 * SECONDS) for node in nodes]
    finally:
        for node in nodes:
            node.terminate()  # it ends its ranks
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(err[-3000:] for _, err in texts)
    for number, (out, _) in enumerate(sorted(texts)):
        ranks = range(number * each, (number + 1) * each)
        want = {f"rank {r} of {2 * each}, node {number}: {name}" for r in ranks for name in names}
        assert set(out.split("\n")) - {""} == want, out


def main(meets: str, *names: str) -> None:
    """Carry out cases as one of the processes that torchrun starts."""
    join(meets, int(os.environ["LOCAL_RANK"]))
    for name in names:
        CASES[name]()
        sys.stdout.write(f"rank {dist.get_rank()} of {count()}, node {os.environ['GROUP_RANK']}: {name}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
