"""Attention, norms and products: ops that eager does not run here, what a converter folds, and what it refuses.

Ops that eager cannot run on this machine come in as hand-made FX graphs and are compared with the definition.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.base.errors import LoweringError
from ge_converters.lowering import Lowered, lower
from ge_converters.report import smoke
from ge_graph import passes

aten = torch.ops.aten


@pytest.fixture(scope="module")
def engine() -> Any:
    return smoke.find_engine("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


# -- graphs by hand


def _graph(target: Any, args: Sequence[Any], outputs: Sequence[Any], wanted: Sequence[int], **kwargs: Any) -> Any:
    """An FX graph of one call whose results are described by ``outputs``; ``wanted`` of them are returned."""
    graph = torch.fx.Graph()
    fake = torch._subclasses.FakeTensorMode()
    nodes = []
    for i, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            node = graph.placeholder(f"x{i}")
            node.meta["val"] = fake.from_tensor(a)
            nodes.append(node)
        else:
            nodes.append(a)
    call = graph.call_function(target, tuple(nodes), kwargs)
    call.meta["val"] = tuple(fake.from_tensor(o) if isinstance(o, torch.Tensor) else o for o in outputs)
    picked = []
    for i in wanted:
        item = graph.call_function(operator.getitem, (call, i))
        item.meta["val"] = call.meta["val"][i]
        picked.append(item)
    graph.output(tuple(picked))
    return torch.fx.GraphModule({}, graph)


def _by_hand(
    engine: Any, target: Any, args: Sequence[Any], outputs: Sequence[Any], wanted: Sequence[int], **kw: Any
) -> Any:
    lowered = lower(_graph(target, args, outputs, wanted, **kw))
    return smoke.execute(lowered, engine, [a for a in args if isinstance(a, torch.Tensor)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [True, False])
def test_fused_rms_norm(engine: Any, dtype: torch.dtype, weighted: bool) -> None:
    x, w = torch.randn(2, 3, 8, dtype=dtype), torch.rand(8).to(dtype) if weighted else None
    eps = None if weighted else 1e-3
    y, rstd = _by_hand(engine, aten._fused_rms_norm.default, (x, [8], w, eps), (x, torch.ones(2, 3, 1)), (0, 1))
    used = torch.finfo(torch.float32).eps if eps is None else eps
    wanted = (x.float().square().mean(-1, keepdim=True) + used).rsqrt()
    torch.testing.assert_close(rstd, wanted)
    torch.testing.assert_close(y, (x.float() * wanted * (1 if w is None else w.float())).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_rms_norm_backward(engine: Any, dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 3, 8, dtype=dtype), torch.rand(8).to(dtype)
    grad = torch.randn(2, 3, 8, dtype=dtype)
    x32, w32 = x.float().requires_grad_(), w.float().requires_grad_()
    torch.nn.functional.rms_norm(x32, [8], w32, 1e-5).backward(grad.float())
    rstd = (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    args = (grad, x, [8], rstd, w, [True, True])
    dx, dw = _by_hand(engine, aten._fused_rms_norm_backward.default, args, (x, w), (0, 1))
    wanted = [t.grad.to(dtype) for t in (x32, w32) if t.grad is not None]
    torch.testing.assert_close([dx, dw], wanted)


def test_batch_norm_backward(engine: Any) -> None:
    grad, x, w = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5), torch.rand(3)
    mean, rstd = x.mean((0, 2, 3)), (x.var((0, 2, 3), unbiased=False) + 1e-5).rsqrt()
    args = (grad, x, w, None, None, mean, rstd, True, 1e-5, [True] * 3, torch.zeros(0, dtype=torch.uint8))
    got = _by_hand(engine, aten.batch_norm_backward.default, args, (x, w, w), (0, 1, 2))
    wanted = aten.native_batch_norm_backward(grad, x, w, None, None, mean, rstd, True, 1e-5, [True] * 3)
    torch.testing.assert_close(tuple(got), wanted)


@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention_of_a_device_of_its_own(engine: Any, mask: str | None) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
    bias = {None: None, "bool": torch.rand(2, 1, 5, 7) + torch.eye(5, 7) > 0.3, "float": torch.randn(2, 4, 5, 7)}[mask]
    target = aten._scaled_dot_product_fused_attention_overrideable.default
    lse, rest = torch.zeros(2, 4, 5), (None, None, 0, 0, None, None, None)
    got = _by_hand(engine, target, (q, k, v, bias), (q, lse, *rest), (0, 1))
    scores = q @ k.mT / 8**0.5
    if bias is not None:
        scores = scores.masked_fill(~bias, -torch.inf) if mask == "bool" else scores + bias
    torch.testing.assert_close(got[0], scores.softmax(-1) @ v)
    torch.testing.assert_close(got[1], scores.logsumexp(-1))


def test_grouped_products_of_transformers(engine: Any) -> None:
    pytest.importorskip("transformers.integrations.moe")
    x, w, ends = torch.randn(9, 4), torch.randn(3, 4, 5), torch.tensor([2, 2, 9], dtype=torch.int32)
    op = torch.ops.transformers.grouped_mm_fallback

    def call(a: Any, b: Any, e: Any) -> Any:
        return (op(a, b, e),)

    torch.testing.assert_close(_run(engine, call, x, w, ends)[0], op(x, w, ends))
    grad = torch.randn(9, 5)
    back = torch.ops.transformers.grouped_mm_fallback_backward
    torch.testing.assert_close(tuple(_run(engine, lambda *a: back(*a), x, w, ends, grad)), back(x, w, ends, grad))


# -- what a converter folds


def _lowered(fn: Callable[..., Any], *args: torch.Tensor) -> Lowered:
    return lower(make_fx(fn, tracing_mode="fake")(*args))


def _run(engine: Any, fn: Callable[..., Any], *args: torch.Tensor) -> list[Any]:
    return smoke.execute(_lowered(fn, *args), engine, args)


def _ops(lowered: Lowered) -> Counter[str]:
    passes.run(lowered.graph)
    return Counter(n.op for n in lowered.graph.nodes if n.op not in ("Data", "Const"))


def test_transposes_become_flags(engine: Any) -> None:
    x, w, b = torch.randn(4, 8), torch.randn(3, 8), torch.randn(3)

    def layer(x: Any, w: Any, b: Any) -> Any:
        return aten.addmm(b, x, w.t()), aten.mm(w, x.permute(1, 0)), aten.mm(x.t(), x)

    assert _ops(_lowered(layer, x, w, b)) == {"MatMulV2": 3}
    torch.testing.assert_close(tuple(_run(engine, layer, x, w, b)), layer(x, w, b))


def test_transposes_of_batches_become_flags(engine: Any) -> None:
    q, k = torch.randn(2, 4, 8), torch.randn(2, 5, 8)

    def scores(q: Any, k: Any) -> Any:
        return (aten.bmm(q, k.transpose(1, 2)),)

    assert _ops(_lowered(scores, q, k)) == {"BatchMatMulV2": 1}
    torch.testing.assert_close(_run(engine, scores, q, k)[0], scores(q, k)[0])


def test_other_permutations_stay(engine: Any) -> None:
    x, y = torch.randn(4, 2, 8), torch.randn(2, 8, 3)

    def f(x: Any, y: Any) -> Any:
        return (aten.bmm(x.permute(1, 0, 2), y),)

    assert _ops(_lowered(f, x, y)) == {"Transpose": 1, "BatchMatMulV2": 1}
    torch.testing.assert_close(_run(engine, f, x, y)[0], f(x, y)[0])


def _attend(q: Any, k: Any, v: Any, **kwargs: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **kwargs)


def test_boolean_mask_reaches_the_operator_as_one(engine: Any) -> None:
    q = torch.randn(2, 4, 5, 8)
    seen = torch.rand(2, 1, 5, 5) > 0.3

    def two_layers(q: Any, seen: Any) -> Any:
        return (_attend(_attend(q, q, q, attn_mask=seen), q, q, attn_mask=seen),)

    assert _ops(_lowered(two_layers, q, seen)) == {"FlashAttentionScore": 2, "LogicalNot": 1}
    torch.testing.assert_close(_run(engine, two_layers, q, seen)[0], two_layers(q, seen)[0])


def test_rows_that_see_nothing(engine: Any) -> None:
    q, seen = torch.randn(2, 4, 5, 8), torch.rand(2, 1, 5, 5) > 0.3
    seen[0, 0, 2] = False

    def f(q: Any, seen: Any) -> Any:
        return (_attend(q, q, q, attn_mask=seen),)

    torch.testing.assert_close(_run(engine, f, q, seen)[0], f(q, seen)[0])


def test_mask_of_single_rows_is_stretched(engine: Any) -> None:
    q, seen = torch.randn(2, 4, 5, 8), torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None, None]

    def f(q: Any, seen: Any) -> Any:
        return (_attend(q, q, q, attn_mask=seen),)

    assert _ops(_lowered(f, q, seen)) == {"BroadcastTo": 1, "LogicalNot": 1, "FlashAttentionScore": 1}
    torch.testing.assert_close(_run(engine, f, q, seen)[0], f(q, seen)[0])


def test_causal_layers_share_a_template(engine: Any) -> None:
    q = torch.randn(2, 4, 5, 8)

    def two_layers(q: Any) -> Any:
        return (_attend(_attend(q, q, q, is_causal=True), q, q, is_causal=True),)

    lowered = _lowered(two_layers, q)
    assert _ops(lowered) == {"FlashAttentionScore": 2}
    assert sum(n.op == "Const" for n in lowered.graph.nodes) == 1
    torch.testing.assert_close(_run(engine, two_layers, q)[0], two_layers(q)[0])


def test_grouped_query_attention(engine: Any) -> None:
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)

    def f(q: Any, k: Any, v: Any) -> Any:
        return (_attend(q, k, v, enable_gqa=True, scale=0.3),)

    torch.testing.assert_close(_run(engine, f, q, k, v)[0], f(q, k, v)[0])


def test_norm_statistics_nobody_reads_cost_nothing(engine: Any) -> None:
    x, w = torch.randn(2, 3, 8), torch.rand(8)

    def f(x: Any, w: Any) -> Any:
        return (aten.native_layer_norm(x, [8], w, w, 1e-5)[0],)

    assert _ops(_lowered(f, x.bfloat16(), w.bfloat16())) == {"LayerNormV4": 1}
    image, c = torch.randn(2, 3, 4, 4), torch.rand(3)

    def g(x: Any, c: Any) -> Any:
        return (aten._native_batch_norm_legit_no_training(x, c, c, c, c, 0.1, 1e-5)[0],)

    assert _ops(_lowered(g, image, c)) == {"BNInfer": 1}
    torch.testing.assert_close(_run(engine, g, image, c)[0], g(image, c)[0])


def _conv(x: Any) -> Any:
    return aten.convolution(x, x, None, [1], [0], [1], False, [0], 1)


def test_bags_of_strided_indices(engine: Any) -> None:
    table, indices, offsets = torch.randn(6, 4), torch.arange(10).reshape(5, 2)[:, 0] % 6, torch.tensor([0, 2])

    def f(table: Any, indices: Any, offsets: Any) -> Any:
        return (torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum"),)

    torch.testing.assert_close(_run(engine, f, table, indices, offsets)[0], f(table, indices, offsets)[0])


# -- refusals: which argument, which value, what would do


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda x: aten.convolution(x.double(), x.double(), None, [1], [0], [1], False, [0], 1),
            "Conv2D does not take DT_DOUBLE",
        ),
        (lambda x: aten.native_layer_norm(x.double(), [4], None, None, 1e-5)[0], "LayerNormV4 takes float32"),
        (lambda x: aten.upsample_bilinear2d(x.unsqueeze(0).double(), [3, 3], False), "cast to float32"),
    ],
)
def test_refusals_name_argument_and_way_out(call: Any, says: str) -> None:
    with pytest.raises(LoweringError, match=says) as caught:
        _lowered(lambda x: (call(x),), torch.randn(3, 4, 4))
    assert caught.value.code == "GE2001"


def test_dropout_in_attention_is_refused(engine: Any) -> None:
    q, lse = torch.randn(1, 2, 3, 4), torch.zeros(1, 2, 3)
    target = aten._scaled_dot_product_flash_attention_for_cpu.default
    with pytest.raises(LoweringError, match=r"dropout_p=0\.5.*use dropout_p=0"):
        _by_hand(engine, target, (q, q, q, 0.5), (q, lse), (0,))
