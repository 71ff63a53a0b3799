"""Kinds of programs that a compiler gets wrong without a word; each equals eager in values, gradients and mutations."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import torchair


def run(fn, args, backend, dynamic, grad):
    torch._dynamo.reset()
    given = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    called = fn if backend is None else torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    torch.manual_seed(0)
    results = pytree.tree_leaves(called(*given))
    if grad:
        sum(r.float().square().sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad).backward()
    tensors = [a for a in given if isinstance(a, torch.Tensor)]
    return [*results, *tensors, *([a.grad for a in tensors] if grad else [])]


def assert_eager(fn, *args, dynamic=None, grad=False, **tolerance):
    """``fn`` compiled gives what it gives in eager: results, arguments afterwards, gradients."""
    want = run(fn, args, None, dynamic, grad)
    got = run(fn, args, torchair.get_npu_backend(), dynamic, grad)
    for g, w in zip(got, want, strict=True):
        assert type(g) is type(w)
        if isinstance(g, torch.Tensor):
            torch.testing.assert_close(g, w, equal_nan=True, **tolerance)
        else:
            assert g == w


def left_padded(rows=5, batch=2):
    seen = torch.ones(batch, 1, rows, rows, dtype=torch.bool).tril()
    seen[0, :, :, :2] = False  # the first two queries of the first sequence see nothing
    return seen


def masked(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def biased(q, k, v, seen):
    bias = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def grouped(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k[:, ::2], v[:, ::2], attn_mask=seen, enable_gqa=True)


def causal(q, k, v, seen):
    return F.scaled_dot_product_attention(q, k[:, ::2], v[:, ::2], is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("attention", [masked, biased, grouped, causal])
def test_attention_whose_rows_see_nothing(attention, dynamic):
    q, k, v = (torch.randn(2, 4, 5, 8).requires_grad_() for _ in range(3))
    assert_eager(attention, q, k, v, left_padded(), dynamic=dynamic, grad=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("attention", [masked, biased, grouped, causal])
def test_attention_in_bfloat16_is_as_exact_as_eager(attention, dynamic):
    q, k, v = (torch.randn(2, 4, 5, 8).bfloat16().requires_grad_() for _ in range(3))
    exact = [t.detach().float().requires_grad_() for t in (q, k, v)]
    truth = run(attention, [*exact, left_padded()], None, dynamic, True)
    want = run(attention, [q, k, v, left_padded()], None, dynamic, True)
    got = run(attention, [q, k, v, left_padded()], torchair.get_npu_backend(), dynamic, True)
    for g, w, t in zip(got, want, truth, strict=True):
        if g is not None:
            allowed = 2 * (w.float() - t.float()).abs().max() + 1e-3
            assert (g.float() - t.float()).abs().max() <= allowed


# -- views of what was written ----------------------------------------------------------------------------------------

VIEWS = {
    "row": lambda c: c[1],
    "columns": lambda c: c[:, 1:4],
    "turned": lambda c: c.t(),
    "stepped": lambda c: c[::2, ::3],
    "diagonal": lambda c: c.diagonal(),
    "stretched": lambda c: c[1:2].expand(3, 6),
    "strided": lambda c: c.as_strided((2, 2), (3, 2), 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("written", ["row", "columns", "turned", "stepped", "diagonal"])
def test_returned_views_of_written_storage(written, dynamic):
    """Views that the caller made: what comes back lies where the caller's view does."""
    backend = torchair.get_npu_backend()
    for read in VIEWS:
        found = []
        for compiled in (False, True):
            torch._dynamo.reset()

            def fn(w, r):
                w.mul_(2)
                return r

            base = torch.arange(24.0).reshape(4, 6)
            w, r = VIEWS[written](base), VIEWS[read](base)
            called = torch.compile(fn, backend=backend, dynamic=dynamic) if compiled else fn
            out = called(w, r)
            place = (out.storage_offset(), out.stride())
            before = out.clone()
            base.add_(100)
            found.append((place, before, out))
        (place, before, out), (place_, before_, out_) = found
        assert place == place_, read
        assert torch.equal(before, before_), read
        assert torch.equal(out, out_), read


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("cached", [False, True])
def test_every_call_returns_the_memory_that_it_wrote(view, dynamic, cached, tmp_path):
    """From the second call on nothing stands around a graph that needs nothing: here something has to."""

    def fn(cache, x):
        part = VIEWS[view](cache)
        VIEWS["row"](cache).add_(x)
        return part, part.clone()

    config = torchair.CompilerConfig()
    config.cache_dir = str(tmp_path) if cached else ""
    for _ in range(1 + cached):
        torch._dynamo.reset()
        called = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)
        for call in range(3):
            cache = torch.arange(24.0).reshape(4, 6) + call
            want = fn(cache.clone(), torch.ones(6))
            part, copied = called(cache, torch.ones(6))
            assert torch.equal(copied, want[1])
            cache.add_(100)
            assert torch.equal(part, want[1] + 100)
            assert part.stride() == want[0].stride()


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("split.Tensor", (2,)),
        ("split_with_sizes.default", ([1, 3],)),
        ("unbind.int", ()),
        ("unsafe_split.Tensor", (2,)),
    ],
)
def test_parts_lie_in_the_memory_of_their_whole(op, args):
    import operator

    from torchair.passes.memory import MemoryFacts

    packet, overload = op.split(".")
    graph = torch.fx.Graph()
    whole = graph.placeholder("x")
    parts = graph.call_function(getattr(getattr(torch.ops.aten, packet), overload), (whole, *args))
    one = graph.call_function(operator.getitem, (parts, 0))
    graph.output((one,))
    assert MemoryFacts(graph).given(one) is not op.startswith("unsafe")


# -- random numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 2**40), (-(2**63), 2**63 - 1), (0, 3 * 2**30), (-7, 2**62)])
def test_whole_numbers_reach_over_their_range_evenly(low, high):
    drawn = torch.compile(lambda: torch.randint(low, high, (40_000,)), backend=torchair.get_npu_backend())()
    assert int(drawn.min()) >= low
    assert int(drawn.max()) < high
    counts = torch.histc((drawn.double() - low) / (high - low), bins=8, min=0, max=1)
    assert float((counts - 5000).abs().max()) < 450  # six standard deviations


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand((3, 4), generator=None),
        lambda: torch.randn((3, 4), generator=None),
        lambda: torch.randint(0, 9, (3, 4), generator=None),
        lambda: torch.randint(9, (3, 4), generator=None),
        lambda: torch.randperm(12, generator=None),
    ],
)
def test_no_generator_is_no_generator(draw):
    drawn, wanted = torch.compile(draw, backend=torchair.get_npu_backend())(), draw()
    assert (drawn.shape, drawn.dtype) == (wanted.shape, wanted.dtype)


# -- activation checkpointing -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_checkpointed_attention(dynamic):
    def block(x, w):
        return F.scaled_dot_product_attention(x, x, x).relu() @ w

    def fn(x, w):
        once = checkpoint(block, x, w, use_reentrant=False)
        return checkpoint(block, once, w, use_reentrant=False)

    x, w = torch.randn(2, 2, 3, 4, requires_grad=True), (torch.randn(4, 4) / 4).requires_grad_()
    assert_eager(fn, x, w, dynamic=dynamic, grad=True)


def test_checkpointed_dropout_drops_the_same_elements_backward():
    def fn(x, w):
        return checkpoint(lambda x: F.dropout(x @ w, 0.5, True), x, use_reentrant=False)

    x, w = torch.randn(64, 4, requires_grad=True), torch.eye(4, requires_grad=True)
    y = torch.compile(fn, backend=torchair.get_npu_backend())(x, w)
    y.sum().backward()
    assert torch.equal(y != 0, x.grad != 0)
    assert 0 < int((y == 0).sum()) < y.numel()


def _positive(x):
    torch._assert_async((x > 0).all(), "all must be 100%s positive")
    return x * 2


# -- assertions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "good", "bad", "text"),
    [
        (lambda x: F.one_hot(x, 5), torch.tensor([1, 2]), torch.tensor([1, 7]), "Class values must be smaller"),
        (_positive, torch.ones(3), torch.tensor([1.0, -1.0]), "all must be 100%s positive"),
    ],
)
def test_an_assertion_fires_with_its_text_and_line(fn, good, bad, text):
    assert_eager(fn, good)
    compiled = torch.compile(fn, backend=torchair.get_npu_backend(), dynamic=True)
    with pytest.raises(RuntimeError, match=text) as caught:
        compiled(bad)
    assert "test_programs.py" in str(caught.value)


def test_a_deferred_check_of_a_number_fires():
    def fn(x):
        n = x.item()
        torch._check(n < 5)
        return torch.ones(3) * n

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True)
        assert torch.equal(compiled(torch.tensor(3)), torch.full((3,), 3.0))
        with pytest.raises(RuntimeError, match="n < 5|u0 < 5"):
            compiled(torch.tensor(7))


# -- numbers where tensors are expected -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.copy_(3.0) + 1,
        lambda x: torch.vmap(lambda a: torch.ops.aten.add.Tensor(a, 2.0))(x),
        lambda x: x * (1 + 2j),
        lambda x: torch.maximum(x, torch.tensor(0.5)),
        lambda x: torch.ones(2) if x[0].item() == float("inf") else torch.zeros(2),
    ],
)
def test_numbers_for_tensors(fn):
    with torch._dynamo.config.patch(capture_scalar_outputs=False):
        want, got = fn(torch.arange(4.0)), torch.compile(fn, backend=torchair.get_npu_backend())(torch.arange(4.0))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + 0.1,
        lambda x: 0.1 - x,
        lambda x: x * 0.1,
        lambda x: x / 0.3,
        lambda x: 0.3 / x,
        lambda x: torch.add(x, 1.001, alpha=0.3),
    ],
)
def test_half_and_number_round_where_eager_does(fn, dtype):
    x = torch.randn(64).to(dtype)
    assert torch.equal(torch.compile(fn, backend=torchair.get_npu_backend())(x), fn(x))


def test_gradients_of_complex_functions_are_conjugated():
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    assert_eager(lambda x: (x.tanh() * x.sigmoid()).real, x, grad=True)


# -- what eager rejects -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (lambda x, i: x.scatter(0, i, 1.0), (torch.zeros(4, 3), torch.tensor([[-1, 0, 1]]))),
        (lambda x, i: x.scatter_add(0, i, x), (torch.zeros(4, 3), torch.tensor([[9, 0, 1]]))),
        (lambda x, i: x.scatter_reduce(0, i, x, "amax"), (torch.zeros(4, 3), torch.tensor([[-1, 0, 1]]))),
        (lambda x, i: x.index_reduce(0, i, x[:1], "mean"), (torch.zeros(4, 3), torch.tensor([-1]))),
        (lambda x, i: x.index_copy(0, i, x[:1]), (torch.zeros(4, 3), torch.tensor([-1]))),
        (lambda x, i: x.index_add(0, i, x[:1]), (torch.zeros(4, 3), torch.tensor([-1]))),
        (lambda x: 1 - x, (torch.tensor([True, False]),)),
        (lambda x: x**-1, (torch.tensor([2, 3]),)),
        (lambda x: torch.multinomial(x, 2), (torch.zeros(4),)),
    ],
)
def test_calls_that_eager_rejects(fn, args):
    with pytest.raises((RuntimeError, IndexError)):
        fn(*args)
    with pytest.raises(Exception, match=r"GE\d{4}"):
        torch.compile(fn, backend=torchair.get_npu_backend())(*args)


# -- prims ------------------------------------------------------------------------------------------------------------


def test_every_prim_has_a_converter_or_a_decomposition():
    from ge_converters.decompose.table import decomposition_table
    from ge_converters.registry import REGISTRY

    # Tokens and numbers are not tensors, resize and copy_to write, views with strides are refused as ATen's are.
    without = {
        "_make_token",
        "_sink_tokens",
        "as_strided",
        "copy_to",
        "item",
        "maximum_value",
        "minimum_value",
        "resize",
    }
    without |= {"xor_sum"}  # GE has no such reduction
    table = decomposition_table()
    packets = {n: getattr(torch.ops.prims, n, None) for n in dir(torch._prims)}
    ops = {n: p.default for n, p in packets.items() if isinstance(p, torch._ops.OpOverloadPacket)}
    missing = {n for n, op in ops.items() if op not in table and REGISTRY.find(op) is None}
    assert missing <= without
    assert "prims.fma.default" in {name for name, _ in REGISTRY.awaited()} or REGISTRY.find(torch.ops.prims.fma.default)


def encoder(**options):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "dynamic"), [({}, False), ({"norm_first": True, "activation": "gelu"}, False), ({}, True)]
)
def test_the_fast_path_of_an_encoder(options, dynamic):
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[0, 3:] = True
    model = encoder(**options)
    with torch.no_grad():
        assert_eager(lambda x, m: model(x, src_key_padding_mask=m), torch.randn(2, 5, 16), hidden, dynamic=dynamic)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "dynamic"),
    [("nearest", False), ("nearest", True), ("bilinear", False), ("bilinear", True), ("bicubic", False)],
)
def test_the_gradient_of_a_resized_image_keeps_eager_s_order(mode, dynamic):
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    found = []
    for backend in (None, torchair.get_npu_backend()):
        torch._dynamo.reset()
        x = image.clone().requires_grad_()
        resize = lambda x: F.interpolate(x, scale_factor=2, mode=mode)  # noqa: E731
        y = (resize if backend is None else torch.compile(resize, backend=backend, dynamic=dynamic))(x)
        found.append((y, *torch.autograd.grad(y, x, torch.ones_like(y))))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_of_an_empty_batch(dynamic, batch):
    assert_eager(lambda x: F.unfold(x, 2, 1, 1, 1), torch.randn(batch, 3, 5, 6), dynamic=dynamic)
    assert_eager(lambda x: F.fold(x, (4, 5), 2), torch.randn(batch, 12, 12), dynamic=dynamic)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [torch.linalg.cholesky_ex, torch.linalg.inv_ex])
def test_info_of_matrices_that_break_down(function, dynamic):
    matrices = torch.stack([torch.eye(2), torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [2.0, 4.0]])])
    assert_eager(lambda a: function(a).info, matrices, dynamic=dynamic)


def test_order_of_memory_of_logsigmoid():
    assert_eager(lambda x: F.logsigmoid(x).as_strided((48,), (1,)), torch.randn(3, 1, 4, 4).permute(3, 2, 1, 0))


def beyond_the_type(x, small, byte):
    wrapped = x + 2**31, x - 2**31, x * 2**40, 2**31 - x, x // 2**31, x % (2**31 + 3), small + 300, byte - 300
    return *wrapped, x < 2**31, x == 2**32 + 1, x == 2**31, byte > -1, byte == 257, small < 300


@pytest.mark.parametrize("dynamic", [False, True])
def test_whole_numbers_beyond_the_type_wrap(dynamic):
    x = torch.tensor([1, 2, 3, -(2**31)], dtype=torch.int32)
    assert_eager(
        beyond_the_type,
        x,
        torch.tensor([1, -3], dtype=torch.int8),
        torch.tensor([1, 200], dtype=torch.uint8),
        dynamic=dynamic,
    )


def test_numbers_that_eager_refuses_are_refused():
    """What fills memory has to fit it, in eager and in a graph."""
    x = torch.arange(4, dtype=torch.int32)
    for fn in (lambda x: x.masked_fill(x > 1, 2**31), lambda x: x.clamp(max=2**31), lambda x: x.add(x, alpha=2**31)):
        with pytest.raises(RuntimeError, match="without overflow"):
            fn(x)
        with pytest.raises(Exception, match=r"GE3015|overflow"):
            run(fn, (x,), torchair.get_npu_backend(), False, False)


def through_bits(x):
    bits = x.view(torch.int16)
    y = x.clone()
    y.view(torch.int16).add_(1)
    others = [x.view(t) for t in (torch.float16, torch.int32, torch.uint8)]
    return (bits & 0x7FFF).view(torch.bfloat16), bits + 1, y, *(o + 0 for o in others[1:]), others[0] * 1


BEYOND = {
    "fill": lambda x: x.clone().fill_(1e39),
    "full_like": lambda x: torch.full_like(x, -1e39),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1e39),
    "clamp": lambda x: x.clamp(max=1e39),
    "pad": lambda x: F.pad(x, (1, 1), value=1e39),
    "scatter": lambda x: x.scatter(0, torch.tensor([0]), 1e39),
}


@pytest.mark.parametrize("way", BEYOND)
def test_floats_beyond_the_type_are_refused_as_in_eager(way):
    """A mask of float32's least number would else be an infinity, and softmax of it NaN."""
    x = torch.ones(4, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="without overflow"):
        BEYOND[way](x)
    with pytest.raises(Exception, match="does not fit DT_BF16"):
        run(BEYOND[way], (x,), torchair.get_npu_backend(), False, False)
    assert_eager(lambda x: x.masked_fill(x > 0, -float("inf")) + x.clamp(max=3e38) + 1e39, x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_bits_of_bfloat16(dynamic):
    x = torch.tensor([[1.5, -2.0, 0.0, -0.0], [float("inf"), -float("inf"), 1e-40, 3e38]], dtype=torch.bfloat16)
    assert_eager(through_bits, x, dynamic=dynamic)


def of_degrees(x, n):
    special = torch.special
    return (
        special.chebyshev_polynomial_t(x, n),
        special.hermite_polynomial_h(x, n),
        special.laguerre_polynomial_l(x, n),
        special.shifted_chebyshev_polynomial_w(x, 5),
        special.legendre_polynomial_p(0.5, n),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_polynomials_whose_degrees_are_values(dynamic):
    assert_eager(of_degrees, torch.linspace(-1.2, 1.2, 12), torch.arange(-1, 11), dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
def test_medians_of_nothing(dtype):
    assert_eager(lambda x: (torch.median(x), torch.nanmedian(x)), torch.empty(0, dtype=dtype))


def unpooled(x, places):
    return F.max_unpool2d(x, places, 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_unpooling(dynamic):
    x, places = F.max_pool2d(torch.randn(2, 3, 4, 6), 2, return_indices=True)
    for order in (torch.contiguous_format, torch.channels_last):
        given = (x.contiguous(memory_format=order), places.contiguous(memory_format=order))
        assert_eager(unpooled, *given, dynamic=dynamic)
        assert run(unpooled, given, torchair.get_npu_backend(), dynamic, False)[0].stride() == unpooled(*given).stride()


@pytest.mark.parametrize("outside", [-1, 16])
def test_unpooling_outside_of_the_plane(outside):
    given = torch.ones(1, 1, 2, 2), torch.tensor([[[[0, 3], [5, outside]]]])
    with pytest.raises(RuntimeError, match="invalid max index"):
        unpooled(*given)
    with pytest.raises(Exception, match="GE4"):
        run(unpooled, given, torchair.get_npu_backend(), False, False)


def test_means_of_integers_that_eager_has_not():
    whole = torch.arange(24).reshape(1, 2, 3, 4)
    assert_eager(lambda x: F.avg_pool2d(x, 2), whole)
    for fn in (lambda x: F.avg_pool2d(x, 2), lambda x: F.avg_pool3d(x[None], 2)):
        with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
            fn(whole.int())
        with pytest.raises(Exception, match=r"eager takes int64 and floats"):
            run(fn, (whole.int(),), torchair.get_npu_backend(), False, False)


@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_larger_than_the_data(dynamic):
    def pooled(x):
        return F.avg_pool1d(x, 7, 3, 3, ceil_mode=True), F.avg_pool1d(x, 7, 3, 3, True, False)

    assert_eager(pooled, torch.randn(2, 3, 4), dynamic=dynamic)


TIES = torch.tensor([[3.0, 1.0, 3.0, 1.0, 1.0], [2.0, 2.0, 2.0, 0.0, 5.0]])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [lambda x: x.median(1).values, lambda x: x.kthvalue(2, 1).values, lambda x: x.median()])
def test_a_gradient_reaches_what_is_equal_to_the_median(fn, dynamic):
    """One of equal elements, which of them eager leaves undefined; the median of all shares it among them."""
    want, got = TIES.clone().requires_grad_(), TIES.clone().requires_grad_()
    torch._dynamo.reset()
    made, eager = torch.compile(fn, backend=torchair.get_npu_backend(), fullgraph=True, dynamic=dynamic)(got), fn(want)
    assert torch.equal(made, eager)
    made.sum().backward()
    eager.sum().backward()
    assert torch.equal(got.grad.sum(1), want.grad.sum(1))
    chosen = eager.unsqueeze(-1) if eager.dim() else eager
    assert torch.equal(got.grad * (chosen == TIES), got.grad)


def lazily(x):
    y = x.conj()
    return y.roll(1, 0), y.gather(0, torch.tensor([[0, 1], [1, 0]])), y.cumprod(0), y * 1j, (y * y).imag


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_conjugates_that_were_not_computed_yet(lazy, dynamic):
    z = torch.randn(2, 2, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    assert_eager(lazily, z.conj() if lazy else z, dynamic=dynamic)


@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.jacrev, torch.func.hessian])
def test_derivatives_of_products_with_vectors(transform):
    m = torch.randn(3, 3, generator=torch.Generator().manual_seed(5))
    scalar = transform is torch.func.hessian
    assert_eager(transform(lambda v: m.mv(v.sin()) @ v if scalar else m.mv(v.sin()) * v), m[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_hardswish(dtype):
    x = torch.linspace(-4, 4, 17, dtype=dtype)
    assert_eager(F.hardswish, x.requires_grad_(), grad=True)


def counted(flags, numbers):
    numbers += flags
    numbers *= flags
    flags ^= flags.roll(1)
    flags |= numbers > 2
    return numbers, flags


@pytest.mark.parametrize("dynamic", [False, True])
def test_arithmetic_of_bools_in_place(dynamic):
    assert_eager(counted, torch.tensor([True, False, True]), torch.tensor([1, 2, 3]), dynamic=dynamic)
