"""Attention over packed tokens and pages, and exchange between ranks, against loops written from the definitions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ge_graph import EngineError, schema

F16 = torch.float16
OP = "FusedInferAttentionScore"


def infer(run, query: Tensor, key: Tensor, value: Tensor, **given: object) -> list[Tensor]:
    """The operator with its ports and attributes by name."""
    ports = [p.name for p in schema.require(OP).inputs]
    operands = {"query": query, "key": [key], "value": [value], **{n: given.pop(n) for n in ports if n in given}}
    found: list[Tensor] = run(OP, *(operands.get(n) for n in ports), **given)
    return found


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def loop(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, sink: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(out, log of the sums) of float (Sq, N, D) and (Skv, Nkv, D), query by query."""
    out, lse = torch.zeros(*q.shape[:2], v.shape[2]), torch.zeros(*q.shape[:2], 1)
    for i in range(q.shape[0]):
        last = k.shape[0] - q.shape[0] + i + 1 if causal else k.shape[0]
        for n in range(q.shape[1]):
            h = n // (q.shape[1] // k.shape[1])
            score = k[:last, h] @ q[i, n] * scale
            lse[i, n] = torch.logsumexp(score, 0)
            joined = score if sink is None else torch.cat((score, sink[n : n + 1]))
            out[i, n] = torch.softmax(joined, 0)[:last] @ v[:last, h]
    return out, lse


LENGTHS, KV = [2, 1, 3], [7, 4, 9]
PAGE, HEADS, GROUPS, D = 4, 4, 2, 16


def pages(seed: int, width: int = D) -> tuple[Tensor, list[Tensor], Tensor]:
    """(cache (pages, N, page, D), each sequence's (Skv, N, D), block_table)."""
    cache = rand(10, GROUPS, PAGE, width, seed=seed).to(F16)
    table = torch.tensor([[7, 2, 0], [5, 0, 0], [1, 9, 4]], dtype=torch.int32)
    each = [torch.cat([cache[p].transpose(0, 1) for p in row])[:n].float() for row, n in zip(table.tolist(), KV)]
    return cache, each, table


def stored(cache: Tensor, form: str) -> Tensor:
    if form == "rows":
        return cache.transpose(1, 2).flatten(2)
    if form == "NZ":
        return cache.unflatten(3, (-1, 16)).transpose(2, 3).contiguous()
    return cache


@pytest.mark.parametrize("form", ["rows", "heads", "NZ"])
@pytest.mark.parametrize("layout", ["TND", "TND_NTD", "NTD_TND"])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_queries_read_pages(run, form, layout, causal):
    q = rand(6, HEADS, D).to(F16)
    (kc, ks, table), (vc, vs, _) = pages(1), pages(2)
    extra = {"atten_mask": torch.ones(2048, 2048, dtype=torch.bool).triu(1), "sparse_mode": 3} if causal else {}
    got, lse = infer(
        run,
        q if layout[0] == "T" else q.transpose(0, 1).contiguous(),
        stored(kc, form),
        stored(vc, form),
        actual_seq_lengths=torch.tensor([2, 3, 6]),
        actual_seq_lengths_kv=torch.tensor(KV),
        block_table=table,
        num_heads=HEADS,
        num_key_value_heads=GROUPS,
        scale=0.25,
        input_layout=layout,
        block_size=PAGE,
        softmax_lse_flag=True,
        **extra,
    )
    made = [loop(p.float(), k, v, 0.25, causal) for p, k, v in zip(q.split(LENGTHS), ks, vs)]
    want = torch.cat([m[0] for m in made])
    want = want.transpose(0, 1) if layout.endswith("NTD") else want
    torch.testing.assert_close(got.float(), want, rtol=4e-3, atol=4e-3)
    torch.testing.assert_close(lse, torch.cat([m[1] for m in made]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND", "BSND_NBSD"])
def test_dense_queries_with_rope_read_pages(run, layout):
    q, q_rope = rand(3, 2, HEADS, D).to(F16), rand(3, 2, HEADS, 8, seed=5).to(F16)
    (kc, ks, table), (vc, vs, _), (rc, rs, _) = pages(1), pages(2), pages(3, 8)
    read, _, write = layout.partition("_")

    def given(x: Tensor) -> Tensor:
        return {"BSH": x.flatten(2), "BSND": x, "BNSD": x.transpose(1, 2)}[read].contiguous()

    got, _ = infer(
        run,
        given(q),
        stored(kc, "rows"),
        stored(vc, "rows"),
        actual_seq_lengths_kv=torch.tensor(KV),
        block_table=table,
        query_rope=given(q_rope),
        key_rope=stored(rc, "rows"),
        num_heads=HEADS,
        num_key_value_heads=GROUPS,
        scale=0.25,
        input_layout=layout,
    )
    want = torch.stack(
        [
            loop(torch.cat((q[b], q_rope[b]), -1).float(), torch.cat((ks[b], rs[b]), -1), vs[b], 0.25)[0]
            for b in range(3)
        ]
    )
    shown = {"BSH": want.flatten(2), "BSND": want, "BNSD": want.transpose(1, 2), "NBSD": want.permute(2, 0, 1, 3)}
    torch.testing.assert_close(got.float(), shown[write or read], rtol=4e-3, atol=4e-3)


def test_a_sink_joins_the_sum(run):
    q, k, v = rand(5, HEADS, D).to(F16), rand(7, GROUPS, D, seed=1).to(F16), rand(7, GROUPS, D, seed=2).to(F16)
    sink = rand(HEADS, seed=3).to(torch.bfloat16)
    got, _ = infer(
        run,
        q,
        k,
        v,
        actual_seq_lengths=torch.tensor([2, 5]),
        actual_seq_lengths_kv=torch.tensor([3, 7]),
        learnable_sink=sink,
        num_heads=HEADS,
        num_key_value_heads=GROUPS,
        scale=0.25,
        input_layout="TND",
    )
    parts = [
        loop(q[a:b].float(), k[c:d].float(), v[c:d].float(), 0.25, sink=sink.float())[0]
        for a, b, c, d in ((0, 2, 0, 3), (2, 5, 3, 7))
    ]
    torch.testing.assert_close(got.float(), torch.cat(parts), rtol=4e-3, atol=4e-3)


SCALES = {
    0: (GROUPS, D),
    1: (3, 12),
    2: (GROUPS,),
    3: (3, GROUPS, 12),
    4: (10, PAGE),
    5: (10, GROUPS, PAGE),
}


@pytest.mark.parametrize("mode", SCALES)
def test_an_int8_cache_is_widened(run, mode):
    q = rand(3, 1, HEADS * D).to(F16)
    caches = [torch.randint(-99, 99, (10, GROUPS, PAGE, D), dtype=torch.int8) for _ in range(2)]
    table = torch.tensor([[7, 2, 0], [5, 3, 6], [1, 9, 4]], dtype=torch.int32)
    scale, offset = rand(*SCALES[mode]).abs() / 40, rand(*SCALES[mode], seed=4)
    if mode in (0, 2):
        scale, offset = scale.to(F16), offset.to(F16)
    got, _ = infer(
        run,
        q,
        stored(caches[0], "rows"),
        stored(caches[1], "rows"),
        actual_seq_lengths_kv=torch.tensor(KV),
        block_table=table,
        key_antiquant_scale=scale,
        key_antiquant_offset=offset,
        value_antiquant_scale=scale,
        value_antiquant_offset=offset,
        key_antiquant_mode=mode,
        value_antiquant_mode=mode,
        num_heads=HEADS,
        num_key_value_heads=GROUPS,
        scale=0.25,
    )
    for b, n in enumerate(KV):
        sides = []
        for cache in caches:
            x = torch.zeros(n, GROUPS, D)
            for t in range(n):
                for h in range(GROUPS):
                    page = int(table[b, t // PAGE])
                    at = {0: (h,), 1: (b, t), 2: (h,), 3: (b, h, t), 4: (page, t % PAGE), 5: (page, h, t % PAGE)}[mode]
                    x[t, h] = (cache[page, h, t % PAGE].float() + offset[at].float()) * scale[at].float()
            sides.append(x.to(F16).float())
        want = loop(q[b].reshape(1, HEADS, D).float(), *sides, 0.25)[0]
        torch.testing.assert_close(got[b].float().reshape(1, HEADS, D), want, rtol=6e-3, atol=6e-3)


WRONG = {
    "heads": ({"num_key_value_heads": 4}, "a paged cache"),
    "page size": ({"block_size": 8}, "a paged cache"),
    "page": ({"block_table": torch.full((3, 3), 10, dtype=torch.int32)}, "names page 10 of 10"),
    "too long": ({"actual_seq_lengths_kv": torch.tensor([13, 1, 1])}, "holds 13"),
    "falling": ({"actual_seq_lengths": torch.tensor([3, 2, 6])}, "running sums"),
    "no lengths": ({"actual_seq_lengths": None}, "actual_seq_lengths"),
    "template": ({"sparse_mode": 3}, "atten_mask is not fed"),
    "full mask": ({"atten_mask": torch.ones(6, 12, dtype=torch.bool)}, "a full mask"),
    "position term": ({"pse_shift": torch.ones(1, 4, 6, 12).to(F16)}, "pse_shift"),
    "one rope": ({"query_rope": torch.ones(6, 4, 8).to(F16)}, "feed both"),
    "prefix": ({"actual_shared_prefix_len": torch.tensor([1])}, "actual_shared_prefix_len"),
}


@pytest.mark.parametrize("form", WRONG)
def test_what_is_not_defined_is_refused(run, form):
    changed, reason = WRONG[form]
    (kc, _, table), (vc, _, _) = pages(1), pages(2)
    given = {
        "actual_seq_lengths": torch.tensor([2, 3, 6]),
        "actual_seq_lengths_kv": torch.tensor(KV),
        "block_table": table,
        "num_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "input_layout": "TND",
        "block_size": PAGE,
        **changed,
    }
    ports = ("actual_seq_lengths", "actual_seq_lengths_kv")
    given = {k: v for k, v in given.items() if v is not None or k not in ports}
    with pytest.raises(EngineError, match=reason) as caught:
        infer(run, rand(6, HEADS, D).to(F16), kc, vc, **given)
    assert caught.value.code == "GE4009"


# -- between ranks ----------------------------------------------------------------------------------------------------


def _rank(rank: int, folder: str) -> None:
    import torch.distributed as dist

    from ge_runtime.cpu.kernels import fused_collectives as fused

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    world = "hccl_world_group"
    xs = [rand(3, 6, seed=r) for r in range(2)]
    ids = [torch.tensor([[0, 3], [1, 2], [2, 0]]), torch.tensor([[3, 1], [0, 1], [2, 3]])]
    weights = [rand(3, 2, seed=9 + r).abs() for r in range(2)]
    ep = {"group_ep": world, "ep_world_size": 2, "ep_rank_id": rank, "moe_expert_num": 4}
    back = {k: v for k, v in ep.items() if k != "ep_rank_id"}
    rows, _, index, nums, sums, _, _ = fused.moe_distribute_dispatch(xs[rank], ids[rank].int(), **ep)
    want, counts = [], []
    for e in (2 * rank, 2 * rank + 1):
        found = [(r, t) for r in range(2) for t in range(3) if e in ids[r][t].tolist()]
        counts.append(len(found))
        want += [xs[r][t] for r, t in found]
    assert nums.tolist() == counts
    assert torch.equal(rows[: len(want)], torch.stack(want))
    made, at = rows.clone(), 0
    for e, n in zip((2 * rank, 2 * rank + 1), counts):
        made[at : at + n] *= e + 1
        at += n
    y = fused.moe_distribute_combine(made, ids[rank].int(), index, sums, weights[rank], **back)
    factor = (weights[rank] * (ids[rank] + 1)).sum(1, keepdim=True)
    torch.testing.assert_close(y, xs[rank] * factor)

    a, b = [rand(4, 3, seed=r) for r in range(2)], rand(3, 5)
    total = a[0] @ b + a[1] @ b
    torch.testing.assert_close(fused.matmul_all_reduce(a[rank], b, group=world), total)
    gathered, parts = fused.all_gather_matmul(a[rank], b, group=world)
    torch.testing.assert_close(parts, torch.cat(a))
    torch.testing.assert_close(gathered, torch.cat(a) @ b)
    torch.testing.assert_close(fused.matmul_reduce_scatter(a[rank], b, group=world), total.chunk(2)[rank])
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_exchange_tokens_and_products(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
