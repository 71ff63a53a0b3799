"""Small decoders in the shapes of Qwen3, Qwen3-MoE and DeepSeek-V3, written as published recipes write them for NPUs.

Weights are W8A8, caches are paged; each part has a plain form for the CPU that knows no pages, batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_npu
from torch import Tensor, nn

VOCABULARY, WIDTH, LAYERS, BLOCK, PAGES = 64, 64, 2, 128, 8
HEADS, GROUPS, SIZE = 4, 2, 128
EXPERTS, CHOSEN, INNER = 16, 4, 32
LATENT, ROPE, NOPE, QUERY = 512, 64, 128, 96  # of DeepSeek-V3, but for the last
NZ = 29


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 weights (..., inputs, outputs) and a float32 scale for each output."""
    scale = weight.abs().amax(-2) / 127
    return (weight / scale.unsqueeze(-2)).round().to(torch.int8), scale


def rounded_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """What W8A8 says: activations rounded once for each token."""
    step = x.float().abs().amax(-1, keepdim=True) / 127
    return (((x.float() / step).round() @ weight.float()) * step * scale).half()


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), 1e-6).half()


def npu_norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch_npu.npu_rms_norm(x, weight, 1e-6)[0]


def gain(size: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(size).half() + 0.5, requires_grad=False)


class Rounded(nn.Module):
    """A linear layer in W8A8."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight, scale = rounded(torch.randn(inputs, outputs) / math.sqrt(inputs))
        self.weight, self.scale = (nn.Parameter(t, requires_grad=False) for t in (weight, scale))

    def forward(self, x: Tensor) -> Tensor:
        whole, step = torch_npu.npu_dynamic_quant(x)
        return torch_npu.npu_quant_matmul(
            whole, self.weight, self.scale, pertoken_scale=step, output_dtype=torch.float16
        )

    def plain(self, x: Tensor) -> Tensor:
        return rounded_product(x, self.weight, self.scale)


def gated(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return (F.silu(gate.float()) * up.float()).half()


class Dense(nn.Module):
    def __init__(self, inner: int = 2 * WIDTH) -> None:
        super().__init__()
        self.up, self.down = Rounded(WIDTH, 2 * inner), Rounded(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch_npu.npu_swiglu(self.up(x)))

    prefill = forward

    def plain(self, x: Tensor) -> Tensor:
        return self.down.plain(gated(self.up.plain(x)))


class Experts(nn.Module):
    """A mixture of experts; with a group of ranks each has an equal share of the experts and tokens of its own.

    Args:
        grouped: DeepSeek-V3's choice: sigmoid, a bias, experts in groups, and a shared expert beside the chosen ones.
            Otherwise Qwen3's: softmax, weights that sum to one.
    """

    def __init__(self, grouped: bool) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(WIDTH, EXPERTS) / math.sqrt(WIDTH), requires_grad=False)
        self.bias = nn.Parameter(torch.rand(EXPERTS) / 10, requires_grad=False) if grouped else None
        self.shared = Dense(INNER) if grouped else None
        for name, inputs, outputs in (("up", WIDTH, 2 * INNER), ("down", INNER, WIDTH)):
            weight, scale = rounded(torch.randn(EXPERTS, inputs, outputs) / math.sqrt(inputs))
            setattr(self, name, nn.Parameter(weight, requires_grad=False))
            setattr(self, f"{name}_scale", nn.Parameter(scale, requires_grad=False))
        self.rank, self.ranks, self.group = 0, 1, ""

    def share(self, rank: int, ranks: int, group: str) -> None:
        """Keep only this rank's experts."""
        self.rank, self.ranks, self.group = rank, ranks, group
        for name in ("up", "down", "up_scale", "down_scale"):
            setattr(
                self, name, nn.Parameter(getattr(self, name).data.chunk(ranks)[rank].contiguous(), requires_grad=False)
            )

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (tokens, CHOSEN) in float32, numbers of experts (tokens, CHOSEN) in int32."""
        scores = x.float() @ self.gate
        if self.bias is not None:
            weights, which, _ = torch_npu.npu_moe_gating_top_k(
                scores,
                k=CHOSEN,
                bias=self.bias,
                k_group=2,
                group_count=4,
                group_select_mode=1,
                renorm=0,
                norm_type=1,
                routed_scaling_factor=2.5,
                eps=1e-20,
            )
            return weights, which
        weights, which, _ = torch_npu.npu_moe_gating_top_k_softmax(scores, None, CHOSEN)
        return weights / weights.sum(-1, keepdim=True), which

    def products(self, rows: Tensor, step: Tensor, counts: Tensor) -> Tensor:
        common: dict[str, Any] = {
            "group_list": counts,
            "group_list_type": 1,
            "group_type": 0,
            "split_item": 3,
            "output_dtype": torch.float16,
        }
        (inner,) = torch_npu.npu_grouped_matmul(
            [rows], [self.up], scale=[self.up_scale], per_token_scale=[step], **common
        )
        rows, step = torch_npu.npu_dynamic_quant(torch_npu.npu_swiglu(inner))
        (out,) = torch_npu.npu_grouped_matmul(
            [rows], [self.down], scale=[self.down_scale], per_token_scale=[step], **common
        )
        return out

    def local(self, x: Tensor, weights: Tensor, which: Tensor) -> Tensor:
        """What this rank's experts add for tokens of all ranks."""
        first, after = (self.rank + i for i in (0, 1))
        many = EXPERTS // self.ranks
        rows, place, counts, step = torch_npu.npu_moe_init_routing_v2(
            x,
            which,
            active_num=which.numel(),
            expert_num=EXPERTS,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            active_expert_range=[first * many, after * many],
            quant_mode=1,
            row_idx_type=0,
        )
        mine = (which >= first * many) & (which < after * many)
        return torch_npu.npu_moe_token_unpermute(
            self.products(rows, step, counts), place.abs(), probs=(weights * mine).half()
        )

    def prefill(self, x: Tensor) -> Tensor:
        """Tokens of all ranks are gathered, results are summed and given back."""
        weights, which = self.chosen(x)
        if self.ranks == 1:
            out = self.local(x, weights, which)
        else:
            gathered = []
            for mine in (x, weights, which):
                gathered.append(mine.new_empty(self.ranks * mine.shape[0], *mine.shape[1:]))
                dist.all_gather_into_tensor(gathered[-1], mine.contiguous())
            out = torch.empty_like(x)
            dist.reduce_scatter_tensor(out, self.local(*gathered))
        return out if self.shared is None else out + self.shared(x)

    def forward(self, x: Tensor) -> Tensor:
        """Rows go to the ranks that have their experts, and come back."""
        weights, which = self.chosen(x)
        if self.ranks == 1:
            out = self.local(x, weights, which)
        else:
            ep: dict[str, Any] = {
                "group_ep": self.group,
                "ep_world_size": self.ranks,
                "ep_rank_id": self.rank,
                "moe_expert_num": EXPERTS,
                "expert_shard_type": 0,
                "shared_expert_rank_num": 0,
                "global_bs": 0,
            }
            rows, step, assist, counts, sent, *_ = torch_npu.npu_moe_distribute_dispatch_v2(
                x=x, expert_ids=which, quant_mode=2, expert_token_nums_type=1, **ep
            )
            out = torch_npu.npu_moe_distribute_combine_v2(
                expand_x=self.products(rows, step, counts),
                expert_ids=which,
                assist_info_for_combine=assist,
                ep_send_counts=sent,
                expert_scales=weights,
                **ep,
            )
        return out if self.shared is None else out + self.shared(x)

    def plain(self, x: Tensor) -> Tensor:
        scores = x.float() @ self.gate
        if self.bias is None:
            weights, which = scores.softmax(-1).topk(CHOSEN)
            weights = weights / weights.sum(-1, keepdim=True)
        else:
            scores = scores.sigmoid()
            groups = (scores + self.bias).unflatten(-1, (4, -1))
            kept = groups.topk(2).values.sum(-1).topk(2).indices
            seen = torch.zeros(groups.shape[:2]).scatter(1, kept, 1.0).bool().unsqueeze(-1).expand(groups.shape)
            which = groups.masked_fill(~seen, -torch.inf).flatten(1).topk(CHOSEN).indices
            weights = scores.gather(1, which)
            weights = weights / weights.sum(-1, keepdim=True) * 2.5
        out = torch.zeros(x.shape)
        for token, each in enumerate(x):
            for weight, expert in zip(weights[token], which[token].tolist()):
                inner = gated(rounded_product(each, self.up[expert], self.up_scale[expert]))
                out[token] += weight * rounded_product(inner, self.down[expert], self.down_scale[expert])
        return out.half() if self.shared is None else out.half() + self.shared.plain(x)


class Attention(nn.Module):
    """Qwen3's: grouped heads, each normalised."""

    rope = SIZE

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (Rounded(WIDTH, n * SIZE) for n in (HEADS, GROUPS, GROUPS))
        self.o = Rounded(HEADS * SIZE, WIDTH)
        self.q_norm, self.k_norm = gain(SIZE), gain(SIZE)

    @staticmethod
    def caches() -> tuple[Tensor, Tensor]:
        first, second = (torch.zeros(PAGES, BLOCK, GROUPS * SIZE, dtype=torch.float16).npu() for _ in range(2))
        return first, second

    def heads(self, x: Tensor, norm: Callable[..., Tensor], linear: str) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (getattr(each, linear)(x).view(x.shape[0], -1, SIZE) for each in (self.q, self.k, self.v))
        return norm(q, self.q_norm), norm(k, self.k_norm), v

    def placed(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], step: dict
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values (tokens, heads, SIZE); the last two are in the cache."""
        q, k, v = self.heads(x, npu_norm, "forward")
        q, k = torch_npu.npu_apply_rotary_pos_emb(q.unsqueeze(1), k.unsqueeze(1), cos, sin)
        for pages, new in zip(cache, (k.squeeze(1), v)):
            torch_npu.npu_scatter_nd_update_(pages, step["places"], new.flatten(1))
        return q.squeeze(1), k.squeeze(1), v

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], step: dict) -> Tensor:
        q, _, _ = self.placed(x, cos, sin, cache, step)
        out, _ = torch_npu.npu_fused_infer_attention_score(
            q.flatten(1).unsqueeze(1),
            *cache,
            num_heads=HEADS,
            num_key_value_heads=GROUPS,
            input_layout="BSH",
            scale=1 / math.sqrt(SIZE),
            block_table=step["table"],
            block_size=BLOCK,
            actual_seq_lengths_kv=step["lengths"],
        )
        return self.o(out.flatten(1))

    def prefill(self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], step: dict) -> Tensor:
        """Packed prompts, operator by operator."""
        q, k, v = self.placed(x, cos, sin, cache, step)
        out = torch.empty_like(q)
        mask = torch.full((BLOCK, BLOCK), -torch.inf, dtype=torch.float16, device=x.device).triu(1)
        torch_npu._npu_flash_attention(
            query=q,
            key=k,
            value=v,
            mask=mask,
            seq_len=torch.tensor(step["prompts"], dtype=torch.int32),
            scale_value=1 / math.sqrt(SIZE),
            num_heads=HEADS,
            num_kv_heads=GROUPS,
            out=out,
        )
        return self.o(out.flatten(1))

    def plain(self, x: Tensor, cos: Tensor, sin: Tensor, *_: object) -> Tensor:
        q, k, v = self.heads(x, plain_norm, "plain")
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        q, k, v = (t.float().transpose(0, 1).repeat_interleave(HEADS // t.shape[1], 0) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o.plain(out.transpose(0, 1).flatten(1).half())


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of (tokens, heads, size) by halves."""
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos.float().squeeze(1) + torch.cat((-b, a), -1) * sin.float().squeeze(1)).half()


class LatentAttention(nn.Module):
    """DeepSeek-V3's: keys and values are one latent, which the cache keeps in blocks of sixteen columns (PA_NZ)."""

    rope = ROPE

    def __init__(self) -> None:
        super().__init__()
        self.q_a, self.q_b = Rounded(WIDTH, QUERY), Rounded(QUERY, HEADS * (NOPE + ROPE))
        self.kv_a, self.o = Rounded(WIDTH, LATENT + ROPE), Rounded(HEADS * NOPE, WIDTH)
        self.q_norm, self.kv_norm = gain(QUERY), gain(LATENT)
        self.to_keys = nn.Parameter((torch.randn(HEADS, NOPE, LATENT) / math.sqrt(LATENT)).half(), requires_grad=False)
        self.to_values = nn.Parameter(
            (torch.randn(HEADS, LATENT, NOPE) / math.sqrt(LATENT)).half(), requires_grad=False
        )

    @staticmethod
    def caches() -> tuple[Tensor, Tensor]:
        rope, latent = (torch.zeros(PAGES, BLOCK, 1, n, dtype=torch.float16).npu() for n in (ROPE, LATENT))
        return rope, latent

    scale = 1 / math.sqrt(NOPE + ROPE)

    def placed(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], step: dict, keep: bool
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Queries (tokens, HEADS, NOPE) and (tokens, HEADS, ROPE), and what the operator of the cache gives."""
        q = self.q_b(npu_norm(self.q_a(x), self.q_norm)).view(-1, HEADS, 1, NOPE + ROPE)
        nope, rope = q.split([NOPE, ROPE], -1)
        rope = torch_npu.npu_interleave_rope(rope, cos, sin)
        written = torch_npu.npu_kv_rmsnorm_rope_cache(
            self.kv_a(x).view(-1, 1, 1, LATENT + ROPE),
            self.kv_norm,
            cos,
            sin,
            step["slots"],
            *cache,
            epsilon=1e-6,
            cache_mode="PA_NZ",
            is_output_kv=keep,
        )
        return nope.squeeze(2), rope.squeeze(2), written

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], step: dict) -> Tensor:
        nope, rope, (keys, latents, *_) = self.placed(x, cos, sin, cache, step, keep=False)
        query = torch.bmm(nope.transpose(0, 1), self.to_keys).transpose(0, 1)
        keys, latents = (t.view(PAGES, 1, -1, BLOCK, 16) for t in (keys, latents))
        out, _ = torch_npu.npu_fused_infer_attention_score(
            query.unsqueeze(1),
            latents,
            latents,
            query_rope=rope.unsqueeze(1),
            key_rope=keys,
            num_heads=HEADS,
            num_key_value_heads=1,
            input_layout="BSND_NBSD",
            scale=self.scale,
            block_table=step["table"],
            block_size=BLOCK,
            actual_seq_lengths_kv=step["lengths"],
        )
        out = torch.bmm(out.view(HEADS, -1, LATENT), self.to_values)
        return self.o(out.transpose(0, 1).flatten(1))

    def prefill(self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor], step: dict) -> Tensor:
        """Packed prompts, operator by operator, with keys and values of each head."""
        nope, rope, (_, _, key_rope, latent) = self.placed(x, cos, sin, cache, step, keep=True)
        latent = latent.view(-1, LATENT)
        keys, values = latent @ self.to_keys.transpose(1, 2), latent @ self.to_values
        ends = torch.tensor(step["prompts"]).cumsum(0).tolist()
        out, _ = torch_npu.npu_fused_infer_attention_score(
            nope.contiguous(),
            keys.transpose(0, 1).contiguous(),
            values.transpose(0, 1).contiguous(),
            query_rope=rope.contiguous(),
            key_rope=key_rope.view(-1, 1, ROPE).expand(-1, HEADS, -1).contiguous(),
            num_heads=HEADS,
            num_key_value_heads=HEADS,
            input_layout="TND",
            scale=self.scale,
            atten_mask=torch.ones(2048, 2048, dtype=torch.bool, device=x.device).triu(1),
            sparse_mode=3,
            actual_seq_lengths=ends,
            actual_seq_lengths_kv=ends,
        )
        return self.o(out.flatten(1))

    def plain(self, x: Tensor, cos: Tensor, sin: Tensor, *_: object) -> Tensor:
        q = self.q_b.plain(plain_norm(self.q_a.plain(x), self.q_norm)).view(-1, HEADS, NOPE + ROPE)
        latent, k_rope = self.kv_a.plain(x).split([LATENT, ROPE], -1)
        latent = plain_norm(latent, self.kv_norm).float()

        def in_pairs(t: Tensor) -> Tensor:
            return turned(torch.cat((t[..., ::2], t[..., 1::2]), -1), cos, sin)

        rope, k_rope = in_pairs(q[..., NOPE:]), in_pairs(k_rope.unsqueeze(1)).expand(-1, HEADS, -1)
        query = torch.cat((q[..., :NOPE], rope), -1).float().transpose(0, 1)
        keys = torch.cat((latent @ self.to_keys.float().transpose(1, 2), k_rope.float().transpose(0, 1)), -1)
        out = F.scaled_dot_product_attention(
            query, keys, latent @ self.to_values.float(), is_causal=True, scale=self.scale
        )
        return self.o.plain(out.transpose(0, 1).flatten(1).half())


PARTS: dict[str, tuple[type[nn.Module], Callable[[], nn.Module]]] = {
    "qwen3": (Attention, Dense),
    "qwen3_moe": (Attention, lambda: Experts(grouped=False)),
    "deepseek_v3": (LatentAttention, lambda: Experts(grouped=True)),
}


class Decoder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        attention, rest = PARTS[kind]
        self.embed, self.head = (
            nn.Parameter(torch.randn(VOCABULARY, WIDTH).half(), requires_grad=False) for _ in range(2)
        )
        self.attention = nn.ModuleList(attention() for _ in range(LAYERS))
        self.rest = nn.ModuleList(rest() for _ in range(LAYERS))
        self.norms = nn.ParameterList(gain(WIDTH) for _ in range(2 * LAYERS + 1))

    def share(self, rank: int, ranks: int, group: str) -> None:
        for part in self.rest:
            part.share(rank, ranks, group)

    def in_nz(self) -> None:
        """The layout in which recipes keep int8 weights."""
        for parameter in self.parameters():
            if parameter.dtype == torch.int8:
                parameter.data = torch_npu.npu_format_cast(parameter.data, NZ)

    def run(self, way: str, tokens: Tensor, positions: Tensor, caches: list, step: dict) -> Tensor:
        """Logits (tokens, VOCABULARY); ``way`` names the method of the parts: forward, prefill, plain."""
        norm = plain_norm if way == "plain" else npu_norm
        size = self.attention[0].rope
        angles = positions[:, None] * 1e4 ** (-torch.arange(0, size, 2, device=positions.device) / size)
        cos, sin = (t.repeat(1, 2)[:, None, None].half() for t in (angles.cos(), angles.sin()))
        x = F.embedding(tokens, self.embed)
        for i, (attention, rest) in enumerate(zip(self.attention, self.rest)):
            x = x + getattr(attention, way)(norm(x, self.norms[2 * i]), cos, sin, caches[i], step)
            x = x + getattr(rest, way)(norm(x, self.norms[2 * i + 1]))
        return norm(x, self.norms[-1]) @ self.head.t()

    def decode(self, tokens: Tensor, positions: Tensor, caches: list, step: dict) -> Tensor:
        return self.run("forward", tokens, positions, caches, step).argmax(-1)


def places(slots: list[int]) -> dict[str, Tensor]:
    """Where new rows go: (page, row) of each, and number of the row."""
    return {
        "places": torch.tensor([[slot // BLOCK, slot % BLOCK] for slot in slots]).npu(),
        "slots": torch.tensor(slots).npu(),
    }


@torch.inference_mode()
def served(model: Decoder, decode: Callable[..., Tensor], prompts: list[list[int]], steps: int) -> list[list[int]]:
    """Eager prefill of the packed prompts, then ``decode`` for the batch; sequence b lives in page b + 1."""
    caches = [attention.caches() for attention in model.attention]
    lengths = [len(prompt) for prompt in prompts]
    packed = torch.tensor([token for prompt in prompts for token in prompt]).npu()
    positions = torch.tensor([i for length in lengths for i in range(length)]).npu()
    step = places([BLOCK * (b + 1) + i for b, length in enumerate(lengths) for i in range(length)])
    logits = model.run("prefill", packed, positions, caches, {**step, "prompts": lengths})
    tokens = logits[torch.tensor(lengths).cumsum(0).npu() - 1].argmax(-1)
    answers = [[int(token)] for token in tokens.cpu()]
    table = torch.tensor([[b + 1] for b in range(len(prompts))], dtype=torch.int32).npu()
    for _ in range(steps):
        step = places([BLOCK * (b + 1) + length for b, length in enumerate(lengths)])
        positions = torch.tensor(lengths).npu()
        lengths = [length + 1 for length in lengths]
        tokens = decode(tokens, positions, caches, {**step, "table": table, "lengths": lengths})
        for answer, token in zip(answers, tokens.cpu()):
            answer.append(int(token))
    return answers


@torch.inference_mode()
def shortfall(model: Decoder, prompts: list[list[int]], answers: list[list[int]]) -> list[float]:
    """By how much the logit of each token that was served falls behind the best, by the plain model on the CPU.

    It runs each whole sequence at once. Logits have a spread of about 8.
    """
    behind = []
    for prompt, answer in zip(prompts, answers, strict=True):
        sequence = [*prompt, *answer]
        logits = model.run("plain", torch.tensor(sequence), torch.arange(len(sequence)), [None] * LAYERS, {}).float()
        rows = logits[len(prompt) - 1 : -1]
        behind.append(rows.amax(-1) - rows.gather(1, torch.tensor(answer)[:, None]).squeeze(1))
    return torch.cat(behind).tolist()
