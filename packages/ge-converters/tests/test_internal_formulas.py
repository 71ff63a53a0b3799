"""Operators that torch's own code calls: each formula equals the operator."""

from __future__ import annotations

import pytest
import torch

from ge_converters.decompose.formulas import internal

aten = torch.ops.aten
WIDTH, HEADS = 8, 2


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def r(*sizes, dtype=torch.float32):
    return torch.randn(sizes, dtype=dtype)


def attention_weights():
    return r(3 * WIDTH, WIDTH), r(3 * WIDTH), r(WIDTH, WIDTH), r(WIDTH)


def padded(*lengths):
    return torch.tensor([[i >= n for i in range(5)] for n in lengths])


CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)
DRAWN = torch.rand(2, HEADS, 5, 5, generator=torch.Generator().manual_seed(0)) > 0.6
MASKS = [(None, None), (CAUSAL, 0), (padded(5, 3), 1), (DRAWN, 2)]


def same(name, *args, **kwargs):
    packet, overload = name.split(".")
    want = getattr(getattr(aten, packet), overload)(*args, **kwargs)
    got = internal.FORMULAS[name](*args, **kwargs)
    compared(got, want)


def compared(got, want):
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            compared(g, w)
    elif got is not None:
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize(("mask", "kind"), MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("use_gelu", [False, True])
def test_encoder_layer(mask, kind, norm_first, use_gelu):
    norms = [r(WIDTH) for _ in range(4)]
    inner = [r(12, WIDTH), r(12), r(WIDTH, 12), r(WIDTH)]
    args = (r(2, 5, WIDTH), WIDTH, HEADS, *attention_weights(), use_gelu, norm_first, 1e-5, *norms, *inner, mask, kind)
    same("_transformer_encoder_layer_fwd.default", *args)


@pytest.mark.parametrize(("mask", "kind"), MASKS)
@pytest.mark.parametrize("average", [False, True])
def test_attention_with_its_weights(mask, kind, average):
    x = r(2, 5, WIDTH)
    same("_native_multi_head_attention.default", x, x, x, WIDTH, HEADS, *attention_weights(), mask, True, average, kind)


@pytest.mark.parametrize(("mask", "kind"), MASKS[1:])
def test_masked_softmax(mask, kind):
    same("_masked_softmax.default", r(2, HEADS, 5, 5), mask, 3, kind)


def test_masked_softmax_of_a_row_that_is_all_masked():
    mask = torch.tensor([[True, True], [True, False]])
    same("_masked_softmax.default", r(2, 2), mask, 1, 2)
    output = torch.softmax(r(2, 2), 1)
    same("_masked_softmax_backward.default", r(2, 2), output, mask, 1)


def test_projection_split():
    same("_transform_bias_rescale_qkv.default", r(2, 5, 3 * WIDTH), r(3 * WIDTH), HEADS)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weight_norm_gradient(dim, dtype):
    v = r(3, 4, 5, dtype=dtype)
    dim = dim % 3
    g = r(*[n if d == dim else 1 for d, n in enumerate(v.shape)], dtype=dtype)
    _, norms = aten._weight_norm_interface(v, g, dim)
    same("_weight_norm_interface_backward.default", r(3, 4, 5, dtype=dtype), v, g, norms, dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_int8_weights(dtype):
    weight = torch.randint(-127, 128, (6, 32), dtype=torch.int8)
    same("_weight_int8pack_mm.default", r(4, 32, dtype=dtype), weight, (torch.rand(6) / 64).to(dtype))


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_solve(upper):
    a = r(2, 3, 3)
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(3), upper=upper)
    same("_cholesky_solve_helper.default", r(2, 3, 2), factor, upper)


def test_linear_combination():
    same("_compute_linear_combination.default", r(3, 2, 2), r(5, 3))


# -- optimizers -------------------------------------------------------------------------------------------------------

SCALING = [
    {},
    {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)},
    {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(1.0)},
]


def lists(count, low=0.0):
    return [[torch.rand(3, 2) + low, torch.rand(4) + low] for _ in range(count)]


def counts():
    return [torch.tensor(3.0), torch.tensor(3.0)]


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("options", [(0.0, False, False), (0.1, True, False), (0.0, True, True), (0.1, False, True)])
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)])
@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
def test_adam(name, lr, options, scaling):
    decay, amsgrad, maximize = options
    largest = lists(1)[0] if amsgrad else []
    same(
        f"{name}.{'tensor_lr' if isinstance(lr, torch.Tensor) else 'default'}",
        *lists(4),
        largest,
        counts(),
        lr=lr,
        beta1=0.9,
        beta2=0.99,
        weight_decay=decay,
        eps=1e-8,
        amsgrad=amsgrad,
        maximize=maximize,
        **scaling,
    )


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("options", [(0.0, 0.0, False), (0.9, 0.0, True), (0.9, 0.3, False)])
def test_sgd(options, first, scaling):
    momentum, dampening, nesterov = options
    buffers = lists(1)[0] if momentum else []
    same(
        "_fused_sgd.default",
        *lists(2),
        buffers,
        weight_decay=0.1,
        momentum=momentum,
        lr=0.1,
        dampening=dampening,
        nesterov=nesterov,
        maximize=first,
        is_first_step=first,
        **scaling,
    )


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)])
def test_adagrad(lr, maximize, scaling):
    same(
        f"_fused_adagrad.{'tensor_lr' if isinstance(lr, torch.Tensor) else 'default'}",
        *lists(3),
        counts(),
        lr=lr,
        lr_decay=0.1,
        weight_decay=0.1,
        eps=1e-8,
        maximize=maximize,
        **scaling,
    )


@pytest.mark.parametrize("bad", [None, torch.inf, torch.nan])
@pytest.mark.parametrize("before", [0.0, 1.0])
def test_gradients_are_checked_and_unscaled(bad, before):
    grads = [r(3), r(2, 2)]
    if bad is not None:
        grads[1][0, 1] = bad
    same("_amp_foreach_non_finite_check_and_unscale.default", grads, torch.tensor([before]), torch.tensor([0.25]))


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 1, 2])
@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_scale_grows_and_shrinks(scale, tracker, found):
    count = torch.tensor([tracker], dtype=torch.int32)
    same("_amp_update_scale.default", torch.tensor([scale]), count, torch.tensor([found]), 2.0, 0.5, 3)


# -- other names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("_add_relu.Tensor", (r(2, 3), r(3))),
        ("_add_relu.Scalar", (r(2, 3), -0.5, 2)),
        ("_aminmax.default", (r(2, 3),)),
        ("_aminmax.dim", (r(2, 3), 1, True)),
        ("_stack.default", ([r(2), r(2)], 1)),
        ("_logcumsumexp.default", (r(2, 3), 1)),
        ("_is_all_true.default", (torch.tensor([True, False]),)),
        ("_is_any_true.default", (torch.tensor([True, False]),)),
        ("_index_put_impl.default", (r(4), [torch.tensor([1, 1])], r(2), True)),
        ("_lazy_clone.default", (r(2, 3),)),
        ("_conj_copy.default", (r(2, dtype=torch.complex64),)),
        ("_neg_view_copy.default", (r(2),)),
        ("_reshape_copy.default", (r(2, 3), [3, 2])),
        (
            "_convolution.default",
            (r(1, 2, 5), r(3, 2, 3), r(3), [1], [1], [1], False, [0], 1, False, False, True, True),
        ),
        ("_grid_sampler_2d_cpu_fallback.default", (r(1, 2, 3, 3), r(1, 2, 2, 2), 0, 1, False)),
        ("_grid_sampler_2d_cpu_fallback_backward.default", (r(1, 2, 2, 2), r(1, 2, 3, 3), r(1, 2, 2, 2), 0, 1, False)),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_another_name(name, args):
    same(name, *args)
