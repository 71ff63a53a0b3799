"""Linear attention by the gated delta rule: a state S (Dv, Dk) a head that each token decays, corrects and reads.

``S = S * exp(g)``, ``S = S + beta (v - S k) k^T``, ``o = S q * scale``. Value head h reads key head ``h // (Nv / Nk)``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ge_runtime.cpu.registry import kernel
from ge_runtime.cpu.values import listed
from ge_runtime.errors import refused


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.float().repeat_interleave(heads // x.shape[1], 1)


def _step(s: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """The state (N, Dv, Dk) after one token."""
    error = (v - (s @ k.unsqueeze(-1)).squeeze(-1)) * beta.unsqueeze(-1)
    return s + error.unsqueeze(-1) * k.unsqueeze(-2)


def _lengths(op: str, value: Any, tokens: int) -> list[int]:
    lengths = listed(value)
    if any(n < 0 for n in lengths) or sum(lengths) > tokens:
        raise refused(op, f"actual_seq_lengths is {lengths} for {tokens} tokens", "give the length of each sequence")
    return lengths


@kernel(
    "ChunkGatedDeltaRule",
    host=("actual_seq_lengths",),
    source="ops-transformer: chunk_gated_delta_rule, documentation; chunks change rounding only",
)
def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    actual_seq_lengths: Any,
    g: Tensor | None = None,
    *,
    scale_value: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(out (T, Nv, Dv), final_state (B, Nv, Dv, Dk)) of packed sequences."""
    heads = value.shape[1]
    q, k, v = _heads(query, heads) * scale_value, _heads(key, heads), value.float()
    b, decay = beta.float(), None if g is None else g.float().exp()
    out, state, t = torch.zeros(value.shape), initial_state.float().clone(), 0
    for i, length in enumerate(_lengths("ChunkGatedDeltaRule", actual_seq_lengths, value.shape[0])):
        s = state[i]
        for _ in range(length):
            s = s if decay is None else s * decay[t].reshape(-1, 1, 1)
            s = _step(s, k[t], v[t], b[t])
            out[t] = (s @ q[t].unsqueeze(-1)).squeeze(-1)
            t += 1
        state[i] = s
    return out.to(value.dtype), state.to(initial_state.dtype)


@kernel(
    "RecurrentGatedDeltaRule",
    host=("actual_seq_lengths", "ssm_state_indices", "num_accepted_tokens"),
    updates=("state",),
    source="ops-transformer: recurrent_gated_delta_rule, documentation",
)
def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    state: Tensor,
    actual_seq_lengths: Any,
    ssm_state_indices: Any,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    num_accepted_tokens: Any = None,
    *,
    scale_value: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(out (T, Nv, Dv), state (slots, Nv, Dv, Dk)): each token's state goes to its slot.

    A sequence begins with the slot of its first token, or of its last accepted one.
    """
    op, heads = "RecurrentGatedDeltaRule", value.shape[1]
    q, k, v, b = _heads(query, heads) * scale_value, _heads(key, heads), value.float(), beta.float()
    slots = listed(ssm_state_indices)
    if len(slots) < value.shape[0] or any(not 0 <= slot < state.shape[0] for slot in slots[: value.shape[0]]):
        raise refused(op, f"ssm_state_indices is {slots} for {value.shape[0]} tokens and {state.shape[0]} slots")
    accepted = None if num_accepted_tokens is None else listed(num_accepted_tokens)
    out, t = torch.zeros(value.shape), 0
    for i, length in enumerate(_lengths(op, actual_seq_lengths, value.shape[0])):
        if not length:
            continue
        s = state[slots[t if accepted is None else t + accepted[i] - 1]].float()
        for _ in range(length):
            s = s if g is None else s * g[t].float().exp().reshape(-1, 1, 1)
            s = s if gk is None else s * gk[t].float().exp().unsqueeze(-2)
            s = _step(s, k[t], v[t], b[t])
            state[slots[t]] = s.to(state.dtype)
            out[t] = (s @ q[t].unsqueeze(-1)).squeeze(-1)
            t += 1
    return out.to(value.dtype), state
