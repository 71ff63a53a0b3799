"""One rank of large models, to ask what a chip makes of them: `tair plan examples/plan/large_models.py:llama_70b`.

The tensors have no data, so that 70 or 671 billion parameters fit on a laptop. `LAYERS` in the environment takes fewer
layers.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _layers(number: int) -> int:
    return int(os.environ.get("LAYERS", number))


def _group(ranks: int) -> None:
    """Ranks that nobody runs: the graph has its collectives, and they need no network to be traced."""
    if dist.is_initialized() and dist.get_world_size() != ranks:
        dist.destroy_process_group()
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())


class Summed(torch.nn.Module):
    """A layer whose weight is split along its inputs: the ranks add their results."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(self.inner(x), "sum", dist.group.WORLD)


class Logits(torch.nn.Module):
    """A causal language model from token numbers to the logits of the last token."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def llama_70b(ranks: int = 8, length: int = 4096, batch: int = 1) -> tuple[torch.nn.Module, torch.Tensor]:
    """Llama 3 70B in bfloat16, heads and intermediate features split over the ranks: the prompt of one request."""
    _group(ranks)
    config = transformers.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672 // ranks,
        num_hidden_layers=_layers(80),
        num_attention_heads=64 // ranks,
        num_key_value_heads=8 // ranks,
        head_dim=128,
        vocab_size=128256,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers:
        layer.self_attn.o_proj = Summed(layer.self_attn.o_proj)
        layer.mlp.down_proj = Summed(layer.mlp.down_proj)
    return Logits(model), torch.zeros(batch, length, dtype=torch.int64)


class Experts(torch.nn.Module):
    """Routed experts of one rank: each token goes to its experts, wherever they are; here those of this rank."""

    def __init__(self, hidden: int, inner: int, experts: int, here: int, chosen: int, shared: int) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(hidden, experts, bias=False)
        self.up = torch.nn.Parameter(torch.empty(here, hidden, 2 * inner))
        self.down = torch.nn.Parameter(torch.empty(here, inner, hidden))
        self.shared = Gated(hidden, shared)
        self.chosen, self.here = chosen, here

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, expert = torch.sigmoid(self.gate(tokens).float()).topk(self.chosen, dim=-1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        # As many tokens come to this rank's experts as leave it, if the load is even: rows in groups of one size.
        rows = tokens.repeat_interleave(self.chosen, dim=0).reshape(self.here, -1, tokens.shape[-1])
        gate, up = torch.bmm(rows, self.up).chunk(2, dim=-1)
        out = torch.bmm(torch.nn.functional.silu(gate) * up, self.down).reshape(tokens.shape[0], self.chosen, -1)
        mixed = (out * weight.unsqueeze(-1)).sum(1) + 0 * expert.sum().to(x.dtype)
        return (mixed + self.shared(tokens)).reshape(x.shape)


class Gated(torch.nn.Module):
    """A feed-forward layer with a gate."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(hidden, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(torch.nn.functional.silu(gate) * up)


class LatentAttention(torch.nn.Module):
    """Attention whose keys and values come from one short vector a token (multi-head latent attention)."""

    def __init__(
        self, hidden: int, heads: int, query_rank: int, rank: int, plain: int, turned: int, value: int
    ) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.q_down, self.q_norm = linear(hidden, query_rank, bias=False), torch.nn.RMSNorm(query_rank)
        self.q_up = linear(query_rank, heads * (plain + turned), bias=False)
        self.kv_down, self.kv_norm = linear(hidden, rank + turned, bias=False), torch.nn.RMSNorm(rank)
        self.kv_up = linear(rank, heads * (plain + value), bias=False)
        self.out = linear(heads * value, hidden, bias=False)
        self.sizes = (heads, rank, plain, turned, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads, rank, plain, turned, value = self.sizes
        batch, length, _ = x.shape
        q = self.q_up(self.q_norm(self.q_down(x))).view(batch, length, heads, plain + turned).transpose(1, 2)
        latent, key_turned = self.kv_down(x).split([rank, turned], dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).view(batch, length, heads, plain + value).transpose(1, 2)
        k, v = kv.split([plain, value], dim=-1)
        k = torch.cat([k, key_turned.unsqueeze(1).expand(batch, heads, length, turned)], dim=-1)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(batch, length, heads * value))


class Layer(torch.nn.Module):
    """One decoder layer of DeepSeek-V3."""

    def __init__(self, number: int, ranks: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(7168), torch.nn.RMSNorm(7168)
        self.attention = LatentAttention(7168, 128, 1536, 512, 128, 64, 128)
        self.mlp = Gated(7168, 18432) if number < 3 else Experts(7168, 2048, 256, 256 // ranks, 8, 2048)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class DeepSeek(torch.nn.Module):
    """DeepSeek-V3 as one of the ranks sees it: experts split, attention on every rank."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(129280, 7168)
        self.layers = torch.nn.ModuleList([Layer(i, ranks) for i in range(_layers(61))])
        self.norm, self.head = torch.nn.RMSNorm(7168), torch.nn.Linear(7168, 129280, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, -1:])


def deepseek_v3(ranks: int = 32, length: int = 1024) -> tuple[torch.nn.Module, torch.Tensor]:
    """DeepSeek-V3 (671 billion parameters) in bfloat16, one of 32 ranks that share the experts out."""
    return DeepSeek(ranks).to(torch.bfloat16), torch.zeros(1, length, dtype=torch.int64)


class Residual(torch.nn.Module):
    """Two convolutions with the time step added between them."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.GroupNorm(32, inputs), torch.nn.GroupNorm(32, outputs)
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = torch.nn.Linear(time, outputs)
        self.skip = torch.nn.Conv2d(inputs, outputs, 1) if inputs != outputs else torch.nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        silu = torch.nn.functional.silu
        h = self.conv1(silu(self.norm1(x))) + self.time(silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(silu(self.norm2(h)))


class Attend(torch.nn.Module):
    """Attention of a layer to itself or to the prompt."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.q, self.out = torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width)
        self.k, self.v = (torch.nn.Linear(context, width, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        def heads(t: torch.Tensor) -> torch.Tensor:
            return t.view(t.shape[0], t.shape[1], -1, 64).transpose(1, 2)

        out = torch.nn.functional.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(context)), heads(self.v(context))
        )
        return self.out(out.transpose(1, 2).reshape(x.shape))


class Block(torch.nn.Module):
    """A transformer block of the UNet."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width) for _ in range(3)])
        self.own, self.cross = Attend(width, width), Attend(width, context)
        self.up, self.down = torch.nn.Linear(width, 8 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        x = x + self.own(h, h)
        x = x + self.cross(self.norms[1](x), context)
        h, gate = self.up(self.norms[2](x)).chunk(2, dim=-1)
        return x + self.down(h * torch.nn.functional.gelu(gate))


class Spatial(torch.nn.Module):
    """Transformer blocks over the pixels of a feature map."""

    def __init__(self, width: int, depth: int, context: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(32, width)
        self.into, self.out = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.blocks = torch.nn.ModuleList([Block(width, context) for _ in range(depth)])

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        h = self.into(self.norm(x).flatten(2).transpose(1, 2))
        for block in self.blocks:
            h = block(h, context)
        return x + self.out(h).transpose(1, 2).reshape(x.shape)


class UNet(torch.nn.Module):
    """A UNet with the sizes of Stable Diffusion XL's: 320, 640 and 1280 channels, transformers of depth 0, 2 and 10."""

    def __init__(self) -> None:
        super().__init__()
        widths, depths, context, time = (320, 640, 1280), (0, 2, min(10, _layers(10))), 2048, 1280
        self.time = torch.nn.Sequential(torch.nn.Linear(320, time), torch.nn.SiLU(), torch.nn.Linear(time, time))
        self.first = torch.nn.Conv2d(4, 320, 3, padding=1)
        kept, width = [320], 320
        self.downs, self.ups = torch.nn.ModuleList(), torch.nn.ModuleList()
        for level, (channels, depth) in enumerate(zip(widths, depths)):
            for _ in range(2):
                self.downs.append(self._step(width, channels, depth, time, context))
                width = channels
                kept.append(width)
            if level < 2:
                self.downs.append(torch.nn.Conv2d(width, width, 3, stride=2, padding=1))
                kept.append(width)
        self.middle = torch.nn.ModuleList(
            [Residual(width, width, time), Spatial(width, depths[-1], context), Residual(width, width, time)]
        )
        for level, (channels, depth) in reversed(list(enumerate(zip(widths, depths)))):
            for _ in range(3):
                self.ups.append(self._step(width + kept.pop(), channels, depth, time, context))
                width = channels
            if level:
                self.ups.append(torch.nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.last = torch.nn.GroupNorm(32, 320), torch.nn.Conv2d(320, 4, 3, padding=1)

    @staticmethod
    def _step(inputs: int, outputs: int, depth: int, time: int, context: int) -> torch.nn.ModuleList:
        parts: list[Any] = [Residual(inputs, outputs, time)]
        return torch.nn.ModuleList(parts + ([Spatial(outputs, depth, context)] if depth else []))

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        time = self.time(time)

        def through(step: torch.nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
            x = step[0](x, time)
            return step[1](x, context) if len(step) > 1 else x

        x = self.first(x)
        kept = [x]
        for step in self.downs:
            x = through(step, x) if isinstance(step, torch.nn.ModuleList) else step(x)
            kept.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time), context), time)
        for step in self.ups:
            if isinstance(step, torch.nn.ModuleList):
                x = through(step, torch.cat([x, kept.pop()], dim=1))
            else:
                x = step(torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(torch.nn.functional.silu(self.norm(x)))


def sdxl() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A UNet as large as Stable Diffusion XL's in float16, one step for an image of 1024 x 1024 with guidance."""
    inputs = (torch.zeros(2, 4, 128, 128), torch.zeros(2, 320), torch.zeros(2, 77, 2048))
    return UNet().to(torch.float16), tuple(t.to(torch.float16) for t in inputs)
