"""A small decode server: continuous batching, a paged key-value cache, gears, a compile cache, a second stream.

    python serve.py [--experts] [--captured] [--cache-dir FOLDER]

Requests come while others run; every step decodes all that are running in one batch, padded to the next gear. The two
methods of the model, ``prefill`` and ``decode``, are compiled by ``torchair.inference.cache_compile``: the second start
of this program traces nothing. At the end each answer is compared with eager PyTorch, which runs the whole sequence
again for every token and knows neither pages nor batches. ``--experts`` takes a mixture of experts with int8 weights
and int8 activations (W8A8) in place of the dense feed-forward part. ``--captured`` captures the programs and
replays them (mode npugraph_ex): a batch size is captured once, whatever lengths, slots and tables its steps have.
``--device npu`` runs all of it on an NPU; ``tair emulate serve.py --device npu`` on an emulated one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchair

VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS = 96, 64, 4, 2, 2
HEAD = WIDTH // HEADS
BLOCK, BLOCKS, BLOCKS_EACH = 4, 48, 8
BATCH_GEARS, PROMPT_GEARS = [2, 4, 8], [4, 8, 16]
PADDING = 0  # block 0 takes what padded rows write


class Int8Linear(nn.Module):
    """W8A8: weights rounded to int8 once, activations for each token; products of integers, exact in float32."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs) / inputs**0.5
        scale = weight.abs().amax(1) / 127
        self.register_buffer("weight", torch.round(weight / scale[:, None]).to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 127
        rounded = torch.round(x / step).to(torch.int8)
        return rounded.float() @ self.weight.float().t() * step * self.scale


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class Experts(nn.Module):
    """Two of four experts for each token, beside one that all tokens share and that runs on a stream of its own."""

    def __init__(self, count: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(WIDTH, count)
        self.up = nn.ModuleList(Int8Linear(WIDTH, WIDTH) for _ in range(count + 1))
        self.down = nn.ModuleList(Int8Linear(WIDTH, WIDTH) for _ in range(count + 1))

    def forward(self, x: Tensor) -> Tensor:
        with torchair.scope.npu_stream_switch("shared"):
            shared = self.down[-1](F.silu(self.up[-1](x)))
        weight, index = torch.topk(self.gate(x).softmax(-1), self.chosen)
        routed = torch.zeros_like(x)
        for number, (up, down) in enumerate(zip(self.up[:-1], self.down[:-1])):
            share = torch.where(index == number, weight, 0.0).sum(-1, keepdim=True)
            routed = routed + share * down(F.silu(up(x)))
        return torchair.scope.npu_wait_tensor(routed, shared) + shared


class Layer(nn.Module):
    def __init__(self, experts: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.q = nn.Linear(WIDTH, HEADS * HEAD)
        self.k, self.v = nn.Linear(WIDTH, KV_HEADS * HEAD), nn.Linear(WIDTH, KV_HEADS * HEAD)
        self.out = nn.Linear(HEADS * HEAD, WIDTH)
        self.forward_part = Experts() if experts else Dense()

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, [tokens, heads, size of a head], query and key rotated by their positions."""
        x = self.norms[0](x)
        q, k, v = (m(x).unflatten(-1, (-1, HEAD)) for m in (self.q, self.k, self.v))
        return rotate(q, positions), rotate(k, positions), v

    def rest(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended.flatten(-2))
        return x + self.forward_part(self.norms[1](x))


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    half = HEAD // 2
    angle = positions[:, None].float() * torch.exp(torch.arange(half, device=x.device) * (-6.0 / half))
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of [batch, tokens, heads, size]; ``mask`` is [batch, tokens, keys]."""
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 2).transpose(1, 2) for t in (k, v))
    return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask[:, None]).transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, experts: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(experts) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    def logits(self, x: Tensor) -> Tensor:
        return self.norm(x) @ self.embed.weight.t()

    def whole(self, ids: Tensor) -> Tensor:
        """Logits behind each token of one sequence, without a cache: the reference."""
        positions = torch.arange(len(ids), device=ids.device)
        mask = (positions[:, None] >= positions[None])[None]
        x = self.embed(ids)
        for layer in self.layers:
            q, k, v = layer.project(x, positions)
            x = layer.rest(x, attend(q[None], k[None], v[None], mask)[0])
        return self.logits(x)

    def prefill(self, ids: Tensor, last: Tensor, slots: Tensor, caches: list[Tensor]) -> Tensor:
        """The token behind a prompt; its keys and values go to ``slots`` of the caches.

        Args:
            ids: [tokens], padded.
            last: [1], position of the last token that counts.
            slots: [tokens], where each token's key and value go.
            caches: One for keys and one for values a layer, [slots, heads, size of a head]; written.
        """
        positions = torch.arange(ids.shape[0], device=ids.device)
        mask = (positions[:, None] >= positions[None])[None]
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x, positions)
            caches[2 * number].index_copy_(0, slots, k)
            caches[2 * number + 1].index_copy_(0, slots, v)
            x = layer.rest(x, attend(q[None], k[None], v[None], mask)[0])
        return self.logits(x.index_select(0, last)).argmax(-1)

    def decode(self, ids: Tensor, lengths: Tensor, slots: Tensor, table: Tensor, caches: list[Tensor]) -> Tensor:
        """The next token of each running request.

        Args:
            ids: [batch], the last token of each.
            lengths: [batch], tokens of each with the new one.
            slots: [batch], where the new key and value go.
            table: [batch, blocks], the blocks of each.
            caches: As for ``prefill``.
        """
        rows = (table[:, :, None] * BLOCK + torch.arange(BLOCK, device=table.device)).flatten(1)
        mask = (torch.arange(rows.shape[1], device=rows.device)[None] < lengths[:, None])[:, None]
        x = self.embed(ids)
        for number, layer in enumerate(self.layers):
            q, k, v = layer.project(x, lengths - 1)
            keys, values = caches[2 * number], caches[2 * number + 1]
            keys.index_copy_(0, slots, k)
            values.index_copy_(0, slots, v)
            x = layer.rest(x, attend(q[:, None], keys[rows], values[rows], mask)[:, 0])
        return self.logits(x).argmax(-1)


@dataclass
class Request:
    """Attributes: ``prompt``, number of tokens ``wanted``, the step at which it comes, and what it has so far."""

    prompt: list[int]
    wanted: int
    comes: int = 0
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.tokens)

    def slot(self, position: int) -> int:
        return self.blocks[position // BLOCK] * BLOCK + position % BLOCK


class Server:
    """Runs requests in batches that change at every step."""

    def __init__(self, model: Decoder, cache_dir: str, captured: bool = False) -> None:
        self.device = model.embed.weight.device
        self.caches = [torch.zeros(BLOCKS * BLOCK, KV_HEADS, HEAD, device=self.device) for _ in range(2 * LAYERS)]
        self.free = list(range(1, BLOCKS))
        config = torchair.CompilerConfig()
        if captured:
            config.mode = "npugraph_ex"
            for cache in self.caches:  # their sizes never change: one program serves every batch
                torch._dynamo.mark_static(cache)
        self.prefill = torchair.inference.cache_compile(model.prefill, config=config, cache_dir=cache_dir)
        self.decode = torchair.inference.cache_compile(model.decode, config=config, cache_dir=cache_dir)
        self.captured = captured  # each size has a program of its own then, and needs no gears
        self.running: list[Request] = []
        self._geared: set[Callable[..., Tensor]] = set()
        self.batches: list[int] = []

    def _call(self, method: Callable[..., Tensor], gears: list[int], *inputs: Tensor, fixed: int = -1) -> Tensor:
        if method not in self._geared and not self.captured:  # before the first run, the sizes are told
            self._geared.add(method)
            for number, tensor in enumerate(inputs):
                if number != fixed:
                    torchair.inference.set_dim_gears(tensor, {0: gears})
        return method(*(tensor.to(self.device) for tensor in inputs), self.caches)

    def _room(self, request: Request) -> None:
        while len(request.blocks) * BLOCK < request.length + 1:
            request.blocks.append(self.free.pop())

    def admit(self, request: Request) -> None:
        """Run the prompt of a request; it decodes from the next step on."""
        self._room(request)
        count = len(request.prompt)
        size = next(g for g in PROMPT_GEARS if g >= count)
        ids = torch.tensor(request.prompt + [0] * (size - count))
        slots = torch.tensor([request.slot(i) for i in range(count)] + [PADDING] * (size - count))
        last = torch.tensor([count - 1])
        request.tokens.append(int(self._call(self.prefill, PROMPT_GEARS, ids, last, slots, fixed=1)))
        self.running.append(request)

    def step(self) -> None:
        """One token for every running request."""
        for request in self.running:
            self._room(request)
        size = next(g for g in BATCH_GEARS if g >= len(self.running))
        self.batches.append(size)
        idle = size - len(self.running)
        ids = torch.tensor([r.tokens[-1] for r in self.running] + [0] * idle)
        lengths = torch.tensor([r.length for r in self.running] + [1] * idle)
        slots = torch.tensor([r.slot(r.length - 1) for r in self.running] + [PADDING] * idle)
        table = torch.tensor(
            [r.blocks + [PADDING] * (BLOCKS_EACH - len(r.blocks)) for r in self.running]
            + [[PADDING] * BLOCKS_EACH] * idle
        )
        found = self._call(self.decode, BATCH_GEARS, ids, lengths, slots, table)
        for request, token in zip(self.running, found.tolist()):
            request.tokens.append(token)
        for request in [r for r in self.running if len(r.tokens) >= r.wanted]:
            self.running.remove(request)
            self.free += request.blocks

    def serve(self, requests: list[Request]) -> None:
        """Run all requests to their end; each is admitted at the step at which it comes."""
        waiting = sorted(requests, key=lambda r: r.comes)
        for now in itertools.count():
            while waiting and waiting[0].comes <= now and len(self.running) < BATCH_GEARS[-1]:
                self.admit(waiting.pop(0))
            if self.running:
                self.step()
            elif not waiting:
                return


def eager(model: Decoder, request: Request) -> list[int]:
    """The same answer, token by token, without cache, pages and batches."""
    ids = list(request.prompt)
    with torch.no_grad():
        for _ in range(request.wanted):
            ids.append(int(model.whole(torch.tensor(ids).to(model.embed.weight.device))[-1].argmax()))
    return ids[len(request.prompt) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--captured", action="store_true")
    parser.add_argument("--cache-dir", default=".torchair_cache")
    parser.add_argument("--device", choices=["cpu", "npu"], default="cpu")
    args = parser.parse_args()
    if args.device == "npu":
        import torch_npu  # noqa: F401

    torch.manual_seed(0)
    model = Decoder(args.experts).eval().to(args.device)
    shapes = [(3, 6, 0), (7, 9, 0), (12, 4, 1), (2, 11, 2), (5, 5, 2), (9, 8, 3), (4, 12, 5), (16, 3, 20)]
    requests = [Request(torch.randint(1, VOCABULARY, (n,)).tolist(), wanted, comes) for n, wanted, comes in shapes]
    server = Server(model, args.cache_dir, args.captured)
    server.serve(requests)
    traced = server.prefill.cached_call.traces + server.decode.cached_call.traces
    print(f"{len(requests)} requests, {len(server.batches)} steps in batches of {sorted(set(server.batches))}")
    print(f"functions traced: {traced}")
    wrong = [i for i, r in enumerate(requests) if r.tokens != eager(model, r)]
    print(f"requests {wrong} differ from eager" if wrong else "every answer equals eager")


if __name__ == "__main__":
    main()
