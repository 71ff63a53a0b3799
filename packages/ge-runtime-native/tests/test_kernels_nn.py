"""Products, convolutions, pooling and normalisation against references written from the operators' definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from ge_graph import Graph, building, ops
from ge_graph.dtypes import DataType, Format
from ge_graph.errors import EngineError
from ge_runtime.cpu import CpuEngine, torch_compat
from ge_runtime.cpu.kernels import norm

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCE = {F32: (1e-5, 1e-5), F16: (2e-3, 2e-3), BF16: (1.6e-2, 1.6e-2)}


def rand(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=g).to(dtype)


def f64(t: torch.Tensor) -> np.ndarray:
    return t.double().numpy()


def close(got: torch.Tensor, want: np.ndarray | torch.Tensor, tol: float | None = None) -> None:
    """Compare in float64 at the tolerance of the result's type, scaled to the largest magnitude."""
    want = f64(want) if isinstance(want, torch.Tensor) else np.asarray(want)
    assert tuple(got.shape) == tuple(want.shape)
    rtol, atol = TOLERANCE.get(got.dtype, (0, 0)) if tol is None else (tol, tol)
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(f64(got), want, rtol=rtol, atol=atol * scale)


# ---------------------------------------------------------------- products


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize(("t1", "t2"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("op", ["MatMul", "MatMulV2"])
def test_matmul(run, op, dtype, t1, t2):
    a, b, bias = rand(5, 7, dtype=dtype), rand(7, 3, dtype=dtype), rand(3, dtype=dtype)
    want = f64(a) @ f64(b) + f64(bias)
    got = run(op, a.t() if t1 else a, b.t() if t2 else b, bias, transpose_x1=t1, transpose_x2=t2)
    assert got.dtype == dtype
    close(got, want)


def test_matmul_half_with_float_bias(run):
    a, b, bias = rand(5, 7, dtype=F16), rand(7, 3, dtype=F16), rand(3)
    close(run("MatMulV2", a, b, bias), f64(a) @ f64(b) + f64(bias))


def test_matmul_int8_is_exact(run):
    a = torch.randint(-128, 128, (4, 70), dtype=torch.int8)
    b = torch.randint(-128, 128, (70, 5), dtype=torch.int8)
    bias = torch.arange(5, dtype=torch.int32)
    got = run("MatMulV2", a, b, bias)
    assert got.dtype == torch.int32
    close(got, f64(a) @ f64(b) + f64(bias))


def test_matmul_empty_inner_axis_gives_bias(run):
    close(run("MatMul", rand(2, 0), rand(0, 3), rand(3)), np.broadcast_to(f64(rand(3)), (2, 3)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("op", ["BatchMatMul", "BatchMatMulV2"])
def test_batch_matmul(run, op, dtype):
    a, b = rand(2, 3, 5, 4, dtype=dtype), rand(2, 3, 6, 4, dtype=dtype)
    close(run(op, a, b, adj_x2=True), f64(a) @ np.swapaxes(f64(b), -1, -2))
    close(run(op, a.mT.contiguous(), b[:1, :1], adj_x1=True, adj_x2=True), f64(a) @ np.swapaxes(f64(b[:1, :1]), -1, -2))


def test_gemm(run):
    a, b, c = rand(3, 4), rand(4, 5), rand(3, 5)
    want = 2.0 * f64(a) @ f64(b) - 0.5 * f64(c)
    close(run("GEMM", a.t(), b, c, torch.tensor(2.0), torch.tensor(-0.5), transpose_a=True), want)


@pytest.mark.parametrize("kind", ["", "add", "mul", "relu", "gelu_erf", "gelu_tanh"])
def test_fused_matmul(run, kind):
    a, b, x3 = rand(3, 4), rand(4, 5), rand(3, 5, seed=9)
    t = f64(a) @ f64(b)
    erf = np.vectorize(math.erf)
    want = {
        "": t,
        "add": t + f64(x3),
        "mul": t * f64(x3),
        "relu": np.maximum(t, 0),
        "gelu_erf": 0.5 * t * (1 + erf(t / math.sqrt(2))),
        "gelu_tanh": 0.5 * t * (1 + np.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))),
    }[kind]
    close(run("FusedMatMul", a, b, None, x3 if kind in ("add", "mul") else None, fused_op_type=kind), want)


def test_transpose_batch_matmul(run):
    a, b = rand(6, 2, 4), rand(2, 4, 5)  # a is stored (M, B, K)
    want = np.einsum("mbk,bkn->mbn", f64(a), f64(b))
    perms = {"perm_x1": [1, 0, 2], "perm_x2": [0, 1, 2], "perm_y": [1, 0, 2]}
    close(run("TransposeBatchMatMul", a, b, **perms), want)


def test_einsum_and_dot(run):
    a, b = rand(3, 4), rand(4, 5)
    close(run("Einsum", [a, b], equation="ij,jk->ki", N=2), (f64(a) @ f64(b)).T)
    v, w = rand(9), rand(9, seed=3)
    close(run("Dot", v, w), np.dot(f64(v), f64(w)))


def test_grouped_matmul_rows(run):
    x, w = rand(8, 4, dtype=F16), rand(3, 4, 5, dtype=F16)
    ends = torch.tensor([2, 2, 7])
    got = run("GroupedMatmul", [x], [w], [], [], [], [], [], ends, group_type=0, split_item=3, size_of_y=1)
    want = np.zeros((8, 5))
    want[:2] = f64(x[:2]) @ f64(w[0])
    want[2:7] = f64(x[2:7]) @ f64(w[2])
    close(got[0] if isinstance(got, list) else got, want)


def test_grouped_matmul_lists_of_pairs(run):
    x, w = [rand(2, 4, dtype=F16), rand(3, 5, dtype=F16)], [rand(4, 6, dtype=F16), rand(5, 2, dtype=F16)]
    for got, a, b in zip(run("GroupedMatmul", x, w, [], [], [], [], [], size_of_y=2), x, w):
        close(got, f64(a) @ f64(b))


# ---------------------------------------------------------------- convolutions


def conv_reference(x, w, bias, stride, pads, dilation, groups):
    """Cross-correlation of channels-first arrays by its sum."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *[(pads[2 * i], pads[2 * i + 1]) for i in range(rank)]])
    out = [(x.shape[2 + i] - dilation[i] * (w.shape[2 + i] - 1) - 1) // stride[i] + 1 for i in range(rank)]
    y = np.zeros((x.shape[0], w.shape[0], *out))
    cin, cout = w.shape[1], w.shape[0] // groups
    for o in range(w.shape[0]):
        block = x[:, (o // cout) * cin : (o // cout + 1) * cin]
        for k in np.ndindex(*w.shape[2:]):
            cut = tuple(
                slice(k[i] * dilation[i], k[i] * dilation[i] + (out[i] - 1) * stride[i] + 1, stride[i])
                for i in range(rank)
            )
            y[:, o] += np.einsum("nc...,c->n...", block[(slice(None), slice(None), *cut)], w[(o, slice(None), *k)])
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


CONV_FORMS = [
    ([1, 1], [0, 0, 0, 0], [1, 1], 1),
    ([2, 1], [1, 1, 2, 2], [1, 1], 1),
    ([2, 2], [0, 1, 2, 1], [1, 2], 2),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("stride", "pads", "dilation", "groups"), CONV_FORMS)
def test_conv2d(run, layout, stride, pads, dilation, groups):
    x, w, b = rand(2, 4, 8, 9), rand(6, 4 // groups, 3, 2), rand(6)
    want = conv_reference(f64(x), f64(w), f64(b), stride, pads, dilation, groups)
    if layout == "NHWC":
        x, w, want = x.permute(0, 2, 3, 1), w.permute(2, 3, 1, 0), want.transpose(0, 2, 3, 1)
        strides, dilations = [1, *stride, 1], [1, *dilation, 1]
    else:
        strides, dilations = [1, 1, *stride], [1, 1, *dilation]
    got = run("Conv2D", x, w, b, strides=strides, pads=pads, dilations=dilations, groups=groups, data_format=layout)
    close(got, want)


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_conv2d_half(run, dtype):
    x, w = rand(1, 3, 5, 5, dtype=dtype), rand(2, 3, 3, 3, dtype=dtype)
    want = conv_reference(f64(x), f64(w), None, [1, 1], [1, 1, 1, 1], [1, 1], 1)
    close(run("Conv2D", x, w, strides=[1, 1, 1, 1], pads=[1, 1, 1, 1], data_format="NCHW"), want)


def test_conv2d_int8_is_exact(run):
    x = torch.randint(-128, 128, (1, 3, 5, 5), dtype=torch.int8)
    w = torch.randint(-128, 128, (2, 3, 3, 3), dtype=torch.int8)
    got = run("Conv2D", x, w, strides=[1, 1, 1, 1], pads=[1, 0, 1, 1], data_format="NCHW")
    assert got.dtype == torch.int32
    close(got, conv_reference(f64(x), f64(w), None, [1, 1], [1, 0, 1, 1], [1, 1], 1))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_conv2d_pads_once_beside_a_bias_of_another_type(run, dtype):
    x, w, b = rand(1, 2, 5, 6, dtype=dtype), rand(3, 2, 3, 3, dtype=dtype), rand(3)
    got = run("Conv2D", x, w, b, strides=[1, 1, 1, 1], pads=[1, 0, 2, 1], data_format="NCHW")
    close(got, conv_reference(f64(x), f64(w), f64(b), [1, 1], [1, 0, 2, 1], [1, 1], 1))


def test_conv3d(run):
    x, w = rand(1, 2, 5, 6, 7, dtype=F16), rand(3, 2, 2, 3, 2, dtype=F16)
    pads, stride, dilation = [1, 0, 1, 1, 0, 2], [1, 2, 1], [1, 1, 2]
    want = conv_reference(f64(x), f64(w), None, stride, pads, dilation, 1)
    got = run("Conv3D", x, w, strides=[1, 1, *stride], pads=pads, dilations=[1, 1, *dilation], data_format="NCDHW")
    close(got, want)


def gradients(x, w, grad, stride, pads, dilation, groups):
    """Gradients of a convolution for input and filter: the adjoint of ``conv_reference``, term by term."""
    dx, dw = np.zeros_like(x), np.zeros_like(w)
    padded = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[1]), (pads[2], pads[3])])
    back = np.zeros_like(padded)
    cin, cout = w.shape[1], w.shape[0] // groups
    for o, kh, kw in itertools.product(range(w.shape[0]), range(w.shape[2]), range(w.shape[3])):
        chans = slice((o // cout) * cin, (o // cout + 1) * cin)
        for i, j in itertools.product(range(grad.shape[2]), range(grad.shape[3])):
            r, c = i * stride[0] + kh * dilation[0], j * stride[1] + kw * dilation[1]
            dw[o, :, kh, kw] += (padded[:, chans, r, c] * grad[:, o, i, j][:, None]).sum(0)
            back[:, chans, r, c] += grad[:, o, i, j][:, None] * w[o, :, kh, kw]
    dx = back[:, :, pads[0] : pads[0] + x.shape[2], pads[2] : pads[2] + x.shape[3]]
    return dx, dw


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("stride", "pads", "dilation", "groups"), CONV_FORMS)
def test_conv2d_gradients(run, layout, stride, pads, dilation, groups):
    x, w = rand(2, 4, 6, 7), rand(4, 4 // groups, 3, 2)
    grad = torch.from_numpy(conv_reference(f64(x), f64(w), None, stride, pads, dilation, groups)).float()
    dx, dw = gradients(f64(x), f64(w), f64(grad), stride, pads, dilation, groups)
    strides, dilations = [1, 1, *stride], [1, 1, *dilation]
    if layout == "NHWC":
        x, w, grad = x.permute(0, 2, 3, 1), w.permute(2, 3, 1, 0), grad.permute(0, 2, 3, 1)
        dx, dw = dx.transpose(0, 2, 3, 1), dw.transpose(2, 3, 1, 0)
        strides, dilations = [1, *stride, 1], [1, *dilation, 1]
    form = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "data_format": layout}
    size = torch.tensor(x.shape, dtype=torch.int32)
    close(run("Conv2DBackpropInput", size, w, grad, **form), dx, tol=1e-4)
    close(run("Conv2DBackpropInput", list(x.shape), w, grad, **form), dx, tol=1e-4)
    close(run("Conv2DBackpropFilter", x, torch.tensor(w.shape, dtype=torch.int32), grad, **form), dw, tol=1e-4)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [F32, F16, BF16, torch.float64])
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(1, 1, 1), (3, 2, 2), (1, 3, 4)])
def test_conv2d_input_gradient_is_bit_equal_to_eagers(run, dtype, order, kernel, stride, groups):
    x = rand(2, 4, 9, 9, dtype=dtype).contiguous(memory_format=order)
    w = rand(8, 4 // groups, kernel, kernel, dtype=dtype)
    y = torch.convolution(x, w, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], groups)
    grad = rand(*y.shape, dtype=dtype, seed=3).contiguous(memory_format=order)
    want, _, _ = torch.ops.aten.convolution_backward(
        grad, x, w, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], groups, [True, False, False]
    )
    form = {"strides": [1, 1, stride, stride], "pads": [0] * 4, "groups": groups, "data_format": "NCHW"}
    got = run("Conv2DBackpropInput", list(x.shape), w, grad, **form)
    assert torch.equal(got, want)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("kernel", [1, 3])
def test_conv2d_gradients_copy_no_operand(kernel):
    """ATen needs type and size of the operand that a gradient does not depend on, and copies one that is not dense."""
    from ge_runtime.cpu.kernels.conv import conv_backprop_filter, conv_backprop_input

    x, w = rand(2, 8, 16, 16), rand(8, 8, kernel, kernel)
    form = {"strides": [1] * 4, "pads": [kernel // 2] * 4, "data_format": "NCHW"}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        conv_backprop_input(list(x.shape), w, x, **form)
        conv_backprop_filter(x, list(w.shape), x, **form)
    names = [e.name for e in seen.events()]
    assert "aten::convolution_backward" in names
    assert "aten::copy_" not in names


def test_conv2d_transpose_sizes_and_bias(run):
    x, w, b = rand(1, 3, 4, 4, dtype=F16), rand(3, 2, 3, 3, dtype=F16), rand(2, dtype=F16)
    stride, pads = [2, 2], [1, 1, 1, 1]
    like = np.zeros((1, 2, 8, 8))
    dx, _ = gradients(like, f64(w), f64(x), stride, pads, [1, 1], 1)
    want = dx + f64(b).reshape(1, 2, 1, 1)
    form = {"strides": [1, 1, 2, 2], "pads": pads, "data_format": "NCHW"}
    close(run("Conv2DTranspose", [1, 2, 8, 8], x, w, b, **form), want)
    close(run("Conv2DTranspose", [0, 0, 0, 0], x, w, b, output_padding=[0, 0, 1, 1], **form), want)


def test_conv2d_transpose_refuses_a_size_that_does_not_follow(run):
    with pytest.raises(EngineError, match="does not follow"):
        run(
            "Conv2DTranspose",
            [1, 2, 12, 12],
            rand(1, 3, 4, 4, dtype=F16),
            rand(3, 2, 3, 3, dtype=F16),
            strides=[1, 1, 2, 2],
            pads=[1, 1, 1, 1],
            data_format="NCHW",
        )


@pytest.mark.parametrize(("layout", "axis"), [("NHWC", -1), ("NCHW", 1)])
def test_bias_add_and_grad(run, layout, axis):
    x = rand(2, 3, 4, 3)
    b = rand(3)
    shape = [1, 1, 1, 1]
    shape[axis] = 3
    close(run("BiasAdd", x, b, data_format=layout), f64(x) + f64(b).reshape(shape))
    others = tuple(i for i in range(4) if i != axis % 4)
    close(run("BiasAddGrad", x, data_format=layout), f64(x).sum(others))


# ---------------------------------------------------------------- pooling


def windows(size, k, s, begin, out, dilation=1):
    """For every output index the input indices of its window that exist, and the whole window's span."""
    for o in range(out):
        start = o * s - begin
        yield [i for i in range(start, start + dilation * (k - 1) + 1, dilation) if 0 <= i < size], start


def pool_reference(x, k, s, pads, out, fn):
    y = np.zeros((*x.shape[:2], *out))
    rows = list(windows(x.shape[2], k[0], s[0], pads[0], out[0]))
    columns = list(windows(x.shape[3], k[1], s[1], pads[2], out[1]))
    for (i, (r, rs)), (j, (c, cs)) in itertools.product(enumerate(rows), enumerate(columns)):
        y[:, :, i, j] = fn(x[:, :, r][:, :, :, c].reshape(*x.shape[:2], -1), (rs, cs))
    return y


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("pads", "ceil", "out"),
    [([0, 0, 0, 0], False, [3, 4]), ([1, 0, 0, 1], False, [4, 4]), ([0, 1, 0, 1], True, [4, 4])],
)
def test_max_pool_v3(run, layout, pads, ceil, out):
    x = rand(2, 3, 7, 8)
    want = pool_reference(f64(x), [2, 2], [2, 2], pads, out, lambda v, _: v.max(-1))
    ksize = [1, 1, 2, 2] if layout == "NCHW" else [1, 2, 2, 1]
    x = x if layout == "NCHW" else x.permute(0, 2, 3, 1)
    got = run("MaxPoolV3", x, ksize=ksize, strides=ksize, pads=pads, data_format=layout, ceil_mode=ceil)
    close(got, want if layout == "NCHW" else want.transpose(0, 2, 3, 1))


def test_max_pool_same_padding(run):
    x = rand(1, 7, 5, 2)
    want = pool_reference(f64(x).transpose(0, 3, 1, 2), [3, 3], [2, 2], [1, 1, 1, 1], [4, 3], lambda v, _: v.max(-1))
    close(run("MaxPool", x, ksize=[1, 3, 3, 1], strides=[1, 2, 2, 1], padding="SAME"), want.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("ceil", [False, True])
def test_max_pool_with_argmax_and_grad(run, ceil):
    x = rand(2, 2, 6, 7)
    form = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "pads": [1, 1, 1, 1], "ceil_mode": ceil}
    y, index = run("MaxPoolWithArgmaxV1", x, **form)
    assert index.dtype == torch.int32
    flat = x.flatten(2)
    assert torch.equal(flat.gather(2, index.long().flatten(2)).reshape(y.shape), y)
    out = [4, 4] if ceil else [3, 4]
    close(y, pool_reference(f64(x), [3, 3], [2, 2], [1, 1, 1, 1], out, lambda v, _: v.max(-1)))
    grad = rand(*y.shape, seed=5)
    want = np.zeros((2, 2, 42))
    for n, c, p in itertools.product(range(2), range(2), range(grad[0, 0].numel())):
        want[n, c, index[n, c].flatten()[p]] += float(grad[n, c].flatten()[p])
    close(run("MaxPoolGradWithArgmaxV1", x, grad, index, **form), want.reshape(2, 2, 6, 7))


def test_max_pool3d_argmax_is_a_position_of_the_unpadded_volume(run):
    x = rand(1, 2, 4, 5, 6)
    form = {"ksize": [3, 3, 3], "strides": [2, 2, 2], "pads": [1, 1, 1], "ceil_mode": True, "dtype": 9}
    y, index = run("MaxPool3DWithArgmaxV2", x, **form)
    assert index.dtype == torch.int64
    assert torch.equal(x.flatten(2).gather(2, index.flatten(2)).reshape(y.shape), y)


def avg_reference(x, k, s, pads, out, exclusive, divisor, extent):
    def mean(v, start):
        if divisor:
            return v.sum(-1) / divisor
        if exclusive:
            return v.sum(-1) / max(v.shape[-1], 1)
        span = [min(start[i] + k[i], extent[i] + pads[2 * i + 1]) - start[i] for i in range(2)]
        return v.sum(-1) / (span[0] * span[1])

    return pool_reference(x, k, s, pads, out, mean)


AVG_FORMS = [
    ([0, 0, 0, 0], False, [3, 4], True, 0),
    ([1, 1, 1, 1], False, [4, 5], False, 0),
    ([1, 1, 1, 1], False, [4, 5], True, 0),
    ([1, 0, 0, 1], False, [3, 4], False, 0),
    ([0, 1, 0, 1], True, [4, 5], True, 0),
    ([0, 0, 0, 0], False, [3, 4], True, 7),
    ([0, 1, 0, 0], True, [4, 4], False, 0),
]


@pytest.mark.parametrize(("pads", "ceil", "out", "exclusive", "divisor"), AVG_FORMS)
@pytest.mark.parametrize("dtype", [F32, F16])
def test_avg_pool_v2(run, dtype, pads, ceil, out, exclusive, divisor):
    x = rand(2, 3, 7, 8, dtype=dtype)
    k = [3, 2]
    want = avg_reference(f64(x), k, [2, 2], pads, out, exclusive, divisor, (7, 8))
    form = {
        "ksize": [1, 1, *k],
        "strides": [1, 1, 2, 2],
        "pads": pads,
        "ceil_mode": ceil,
        "exclusive": exclusive,
        "divisor_override": divisor,
    }
    close(run("AvgPoolV2", x, **form), want)


@pytest.mark.parametrize(("pads", "ceil", "out", "exclusive", "divisor"), AVG_FORMS[:5])
def test_avg_pool_v2_grad_is_the_adjoint(run, pads, ceil, out, exclusive, divisor):
    x, g = rand(2, 3, 7, 8), rand(2, 3, *out, seed=2)
    k = [3, 2]
    form = {"ksize": [1, 1, *k], "strides": [1, 1, 2, 2], "pads": pads, "ceil_mode": ceil, "exclusive": exclusive}
    dx = run("AvgPoolV2Grad", torch.tensor([2, 3, 7, 8], dtype=torch.int32), g, **form)
    forward = avg_reference(f64(x), k, [2, 2], pads, out, exclusive, divisor, (7, 8))
    assert math.isclose(float((f64(dx) * f64(x)).sum()), float((forward * f64(g)).sum()), rel_tol=1e-4, abs_tol=1e-4)


def test_avg_pool3d(run):
    x = rand(1, 2, 4, 4, 4)
    got = run("AvgPool3D", x, ksize=[2, 2, 2], strides=[2, 2, 2], pads=[0] * 6, data_format="NCDHW")
    close(got, f64(x).reshape(1, 2, 2, 2, 2, 2, 2, 2).mean((3, 5, 7)))


@pytest.mark.parametrize("size", [[3, 3], [7, 2]])
def test_adaptive_avg_pool(run, size):
    x = rand(2, 2, 7, 5)
    want = np.zeros((2, 2, *size))
    parts = [[(i * n // o, -(-(i + 1) * n // o)) for i in range(o)] for n, o in zip((7, 5), size)]
    for (i, (a, b)), (j, (c, d)) in itertools.product(enumerate(parts[0]), enumerate(parts[1])):
        want[:, :, i, j] = f64(x)[:, :, a:b, c:d].mean((2, 3))
    close(run("AdaptiveAvgPool2d", x, output_size=size), want)
    g = rand(2, 2, *size, seed=4)
    dx = run("AdaptiveAvgPool2dGrad", g, orig_input_shape=[2, 2, 7, 5])
    assert math.isclose(float((f64(dx) * f64(x)).sum()), float((want * f64(g)).sum()), rel_tol=1e-4)


# ---------------------------------------------------------------- normalisation


def norm_reference(x, axes, eps):
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    rstd = 1 / np.sqrt(var + eps)
    return (x - mean) * rstd, mean, var, rstd


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("shape", [[6], [4, 6]])
def test_layer_norm_v4(run, dtype, shape):
    x, g, b = rand(3, 4, 6, dtype=dtype), rand(*shape, dtype=dtype), rand(*shape, dtype=dtype, seed=1)
    axes = tuple(range(3 - len(shape), 3))
    xhat, mean, _, rstd = norm_reference(f64(x), axes, 1e-3)
    y, m, r = run("LayerNormV4", x, shape, g, b, epsilon=1e-3)
    assert y.dtype == dtype
    close(y, xhat * f64(g) + f64(b))
    close(m, mean, tol=1e-5 if m.dtype == F32 else 1e-2)
    close(r, rstd, tol=1e-5 if r.dtype == F32 else 1e-2)


def test_layer_norm_v4_without_weights(run):
    x = rand(3, 6)
    y, _, _ = run("LayerNormV4", x, [6], epsilon=1e-5)
    close(y, norm_reference(f64(x), (1,), 1e-5)[0])


def test_layer_norm_v1_gives_the_variance(run):
    x, g, b = rand(3, 4, 6), rand(4, 6), rand(4, 6, seed=1)
    xhat, mean, var, _ = norm_reference(f64(x), (1, 2), 1e-7)
    y, m, v = run("LayerNorm", x, g, b, begin_norm_axis=1, begin_params_axis=1)
    for got, want in ((y, xhat * f64(g) + f64(b)), (m, mean), (v, var)):
        close(got, want)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_layer_norm_grad(run, dtype):
    x, dy, g = rand(5, 3, 8, dtype=dtype), rand(5, 3, 8, dtype=dtype, seed=1), rand(8, dtype=dtype)
    xhat, mean, _, rstd = norm_reference(f64(x), (2,), 1e-5)
    gg = f64(dy) * f64(g)
    dx = rstd * (gg - gg.mean(-1, keepdims=True) - xhat * (gg * xhat).mean(-1, keepdims=True))
    m, r = (torch.from_numpy(v).float() for v in (mean, rstd))
    got = run("LayerNormGradV3", dy, x, r, m, g)
    for value, want in zip(got, (dx, (f64(dy) * xhat).sum((0, 1)), f64(dy).sum((0, 1)))):
        close(value, want, tol=None if dtype == F32 else 4e-3)
    px, res = run("LayerNormXBackpropV3", dy, x, r, m, g)
    close(px, dx)
    close(res, xhat, tol=1e-5)
    pg, pb = run("LayerNormBetaGammaBackpropV2", dy, res, shape_gamma=[8])
    close(pg, (f64(dy) * xhat).sum((0, 1)), tol=None if dtype == F32 else 4e-3)
    close(pb, f64(dy).sum((0, 1)), tol=None if dtype == F32 else 4e-3)


@pytest.mark.parametrize("dtype", [F32, F16])
def test_group_norm_family(run, dtype):
    x, g, b = rand(2, 6, 3, 4, dtype=dtype), rand(6, dtype=dtype), rand(6, dtype=dtype, seed=1)
    xhat, mean, var, rstd = norm_reference(f64(x).reshape(2, 3, -1), (2,), 1e-3)
    affine = xhat.reshape(x.shape) * f64(g).reshape(1, 6, 1, 1) + f64(b).reshape(1, 6, 1, 1)
    stat = {"mean": mean[..., 0], "rstd": rstd[..., 0], "var": var[..., 0]}
    for op, third, y_want in (
        ("GroupNormV2", "rstd", affine),
        ("GroupNorm", "var", affine),
        ("GroupNormSilu", "rstd", affine / (1 + np.exp(-affine))),
    ):
        y, m, s = run(op, x, g, b, num_groups=3, eps=1e-3)
        close(y, y_want)
        close(m, stat["mean"])
        close(s, stat[third])
    dy = rand(2, 6, 3, 4, dtype=dtype, seed=7)
    gg = (f64(dy) * f64(g).reshape(1, 6, 1, 1)).reshape(2, 3, -1)
    dx = rstd * (gg - gg.mean(-1, keepdims=True) - xhat * (gg * xhat).mean(-1, keepdims=True))
    m, r = (torch.from_numpy(stat[n]).to(dtype) for n in ("mean", "rstd"))
    got = run("GroupNormGrad", dy, m, r, x, g, num_groups=3)
    tol = None if dtype == F32 else 1e-2
    close(got[0], dx.reshape(x.shape), tol=tol)
    close(got[1], (f64(dy) * xhat.reshape(x.shape)).sum((0, 2, 3)), tol=tol)
    close(got[2], f64(dy).sum((0, 2, 3)), tol=tol)


def test_batch_norm_v3_training(run):
    x, w, b = rand(4, 3, 5, 5), rand(3), rand(3, seed=1)
    rm, rv = rand(3, seed=2), rand(3, seed=3).abs()
    before = rm.clone()
    xhat, mean, var, rstd = norm_reference(f64(x), (0, 2, 3), 1e-5)
    y, nm, nv, sm, sr = run("BatchNormV3", x, w, b, rm, rv, momentum=0.2)
    assert torch.equal(rm, before), "an ordinary input is not written to"
    n = 100
    close(y, xhat * f64(w).reshape(1, 3, 1, 1) + f64(b).reshape(1, 3, 1, 1))
    close(nm, 0.8 * f64(rm) + 0.2 * mean.ravel())
    close(nv, 0.8 * f64(rv) + 0.2 * var.ravel() * n / (n - 1))
    close(sm, mean.ravel())
    close(sr, rstd.ravel())
    dy = rand(4, 3, 5, 5, seed=9)
    db, dw = f64(dy).sum((0, 2, 3)), (f64(dy) * xhat).sum((0, 2, 3))
    v = lambda a: a.reshape(1, 3, 1, 1)  # noqa: E731
    dx = v(f64(w)) * rstd * (f64(dy) - v(db) / n - xhat * v(dw) / n)
    for got, want in zip(run("BatchNormGradV3", dy, x, w, rm, rv, sm, sr), (dx, dw, db)):
        close(got, want)


def test_batch_norm_v3_evaluation_and_one_element(run):
    x, w, b = rand(4, 3, 5, 5), rand(3), rand(3, seed=1)
    rm, rv = rand(3, seed=2), rand(3, seed=3).abs()
    y, nm, nv, *_ = run("BatchNormV3", x, w, b, rm, rv, is_training=False)
    v = lambda a: f64(a).reshape(1, 3, 1, 1)  # noqa: E731
    close(y, (f64(x) - v(rm)) / np.sqrt(v(rv) + 1e-5) * v(w) + v(b))
    assert torch.equal(nm, rm)
    assert torch.equal(nv, rv)
    close(run("BNInfer", x, w, b, rm, rv, epsilon=1e-5), f64(y))
    one = rand(1, 3, 1, 1)
    y, nm, nv, *_ = run("BatchNormV3", one, w, b, rm, rv)
    close(y, v(b))
    close(nm, 0.9 * f64(rm) + 0.1 * f64(one).ravel())
    close(nv, 0.9 * f64(rv))


def test_descriptor_names_the_channel_axis():
    x, w, b, m = rand(2, 4, 5, 3), rand(3), rand(3, seed=1), rand(3, seed=2)
    v = rand(3, seed=3).abs()
    graph = Graph("case")
    with building(graph):
        data = ops.Data(index=0, dtype=DataType.DT_FLOAT, shape=(2, 4, 5, 3))
        data.format = Format.FORMAT_NHWC
        rest = [ops.Data(index=i, dtype=DataType.DT_FLOAT, shape=(3,)) for i in range(1, 5)]
        graph.outputs = [ops.BNInfer(data, *rest, epsilon=1e-3), ops.BNTrainingReduce(data)[0]]
    y, total = CpuEngine().compile(graph, {}).run([x, w, b, m, v])
    close(y, (f64(x) - f64(m)) / np.sqrt(f64(v) + 1e-3) * f64(w) + f64(b))
    close(total, f64(x).sum((0, 1, 2)))


def test_batch_norm_halves(run):
    x, dy, w, b = rand(4, 3, 5, 5), rand(4, 3, 5, 5, seed=8), rand(3), rand(3, seed=1)
    xhat, mean, var, rstd = norm_reference(f64(x), (0, 2, 3), 1e-3)
    s, q = run("BNTrainingReduce", x)
    close(s, f64(x).sum((0, 2, 3)))
    close(q, (f64(x) ** 2).sum((0, 2, 3)))
    rm, rv = rand(3, seed=2), rand(3, seed=3).abs()
    y, nm, nv, bm, bv = run("BNTrainingUpdate", x, s, q, w, b, rm, rv, factor=0.1, epsilon=1e-3)
    v = lambda a: a.reshape(1, 3, 1, 1)  # noqa: E731
    close(y, xhat * v(f64(w)) + v(f64(b)), tol=1e-4)
    close(nm, 0.9 * f64(rm) + 0.1 * mean.ravel())
    close(nv, 0.9 * f64(rv) + 0.1 * var.ravel() * 100 / 99)
    close(bv, var.ravel())
    dw, db = run("BNTrainingUpdateGrad", dy, x, bm, bv, epsilon=1e-3)
    close(dw, (f64(dy) * xhat).sum((0, 2, 3)), tol=1e-4)
    close(db, f64(dy).sum((0, 2, 3)))
    dx = v(f64(w)) * rstd * (f64(dy) - v(f64(db)) / 100 - xhat * v(f64(dw)) / 100)
    close(run("BNTrainingReduceGrad", dy, x, dw, db, w, bm, bv, epsilon=1e-3), dx, tol=1e-4)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_rms_norm_family(run, dtype):
    x, x2, g = rand(3, 4, 8, dtype=dtype), rand(3, 4, 8, dtype=dtype, seed=1), rand(8, dtype=dtype)
    rstd = 1 / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + 1e-6)
    y, r = run("RmsNorm", x, g)
    assert (y.dtype, r.dtype) == (dtype, F32)
    close(y, f64(x) * rstd * f64(g))
    close(r, rstd, tol=1e-5)
    s = x + x2
    y, r, total = run("AddRmsNorm", x, x2, g)
    assert torch.equal(total, s)
    close(y, f64(s) / np.sqrt((f64(s) ** 2).mean(-1, keepdims=True) + 1e-6) * f64(g))
    dy = rand(3, 4, 8, dtype=dtype, seed=5)
    dx, dg = run("RmsNormGrad", dy, x, torch.from_numpy(rstd).float(), g)
    assert dg.dtype == F32
    xhat, gg = f64(x) * rstd, f64(dy) * f64(g)
    close(dx, rstd * (gg - xhat * (gg * xhat).mean(-1, keepdims=True)))
    close(dg, (f64(dy) * xhat).sum((0, 1)), tol=1e-4)


@pytest.mark.parametrize(
    ("p", "fn"),
    [
        (2.0, lambda a: np.sqrt((a**2).sum(1))),
        (1.0, lambda a: np.abs(a).sum(1)),
        (3.0, lambda a: (np.abs(a) ** 3).sum(1) ** (1 / 3)),
        (0.0, lambda a: (a != 0).sum(1).astype(float)),
        (2147483647.0, lambda a: np.abs(a).max(1)),
        (-2147483648.0, lambda a: np.abs(a).min(1)),
    ],
)
def test_lp_norm_v2(run, p, fn):
    x = rand(4, 6, 2)
    close(run("LpNormV2", x, p=p, axes=[1], epsilon=0.0), fn(f64(x)))


@pytest.mark.parametrize("axes", [[-1], [0], [0, 2]])
def test_softmax_family(run, axes):
    x, dy = rand(3, 4, 5), rand(3, 4, 5, seed=1)
    a = tuple(axes)
    e = np.exp(f64(x) - f64(x).max(a, keepdims=True))
    p = e / e.sum(a, keepdims=True)
    close(run("SoftmaxV2", x, axes=axes), p)
    close(run("LogSoftmaxV2", x, axes=axes), np.log(p))
    y, logy = torch.from_numpy(p).float(), torch.from_numpy(np.log(p)).float()
    close(run("SoftmaxGrad", y, dy, axes=axes), (f64(dy) - (f64(dy) * p).sum(a, keepdims=True)) * p)
    close(run("LogSoftmaxGrad", dy, logy, axis=axes), f64(dy) - p * f64(dy).sum(a, keepdims=True))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_softmax_half_rounds_once(run, dtype):
    x = rand(3, 50, dtype=dtype) * 4
    e = np.exp(f64(x) - f64(x).max(-1, keepdims=True))
    got = run("SoftmaxV2", x)
    assert got.dtype == dtype
    close(got, e / e.sum(-1, keepdims=True), tol=6e-4 if dtype == F16 else 4e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rms_norm_without_the_operator_of_newer_torch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.9 there is none: the parts give what torch.nn.functional.rms_norm gives, and rstd."""
    x, gamma = torch.randn(2, 3, 8).to(dtype), torch.randn(3, 8).to(dtype)
    wanted = torch.nn.functional.rms_norm(x, [3, 8], gamma, 1e-5)
    monkeypatch.setattr(torch_compat, "fused_rms_norm", None)
    y, rstd = norm.rms_norm(x, gamma, 1e-5)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(rstd, torch.rsqrt(x.float().square().mean((1, 2), keepdim=True) + 1e-5))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("which", range(5))
def test_vectors_of_batch_norm_gradients_may_be_strided(run, training, which):
    """ATen reads them as if one element followed the other."""
    x, dy = rand(4, 3), rand(4, 3, seed=9)
    vectors = [rand(3), rand(3, seed=2), rand(3, seed=3).abs(), rand(3, seed=4), rand(3, seed=5).abs()]
    vectors[which] = vectors[which][:1].expand(3)
    plain = [v.clone() for v in vectors]
    for got, want in zip(*(run("BatchNormGradV3", dy, x, *v, is_training=training) for v in (vectors, plain))):
        assert torch.equal(got, want)
