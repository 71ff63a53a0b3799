"""Composite operators for which torch_npu has kernels: NPU tensors give the ATen graphs that CPU tensors give.

Graphs are compared, not results: what a graph computes is tested on CPU tensors.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch_npu  # noqa: F401
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch.nn import functional as F

import torchair
from ge_converters.base.device_composites import decomposed
from ge_converters.decompose.table import decomposition_table
from ge_converters.decompose.whole import KeepWhole

X, Y = torch.rand(4, 6), torch.rand(4, 6)
HEADS = torch.randn(2, 3, 5, 8)
SQUARE = torch.randn(4, 4)
POSITIVE = SQUARE @ SQUARE.t() + 4 * torch.eye(4)


def attention(**more):
    return lambda q, *mask: F.scaled_dot_product_attention(q, q, q, *mask, **more)


# name: function and its arguments; by the names of torch_npu's registrations
PROGRAMS = {
    "attention": (attention(), HEADS),
    "attention causal": (attention(is_causal=True), HEADS),
    "attention half": (attention(scale=0.5), HEADS.half()),
    "attention float mask": (attention(), HEADS, torch.randn(5, 5)),
    "attention bool mask": (attention(), HEADS, torch.ones(5, 5).tril().bool()),
    "attention three dimensions": (attention(), HEADS[0]),
    "attention dropout": (attention(dropout_p=0.5), HEADS),
    "attention grouped": (lambda q: F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], enable_gqa=True), HEADS),
    "attention expanded": (lambda q: F.scaled_dot_product_attention(q, q[:, :1].expand(q.shape), q), HEADS),
    "attention transposed": (lambda q: F.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3), HEADS),
    "__ior__": (lambda x: x.clone().__ior__(1), torch.tensor([1, 2])),
    "_weight_norm": (lambda m, x: m(x), nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), X),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), torch.randn(1, 2, 5, 5)),
    "argsort": (lambda x: torch.argsort(x, 1), X),
    "argsort.stable": (lambda x: torch.argsort(x, dim=1, stable=True), X),
    "affine_grid": (lambda t: F.affine_grid(t, (1, 1, 3, 3), align_corners=False), torch.randn(1, 2, 3)),
    "cdist": (lambda x, y: torch.cdist(x, y), X, Y),
    "contiguous": (lambda x: x.t().contiguous() + 1, X),
    "conv_tbc": (lambda x, w, b: torch.conv_tbc(x, w, b, 1), torch.rand(5, 2, 3), torch.rand(3, 3, 4), torch.rand(4)),
    "fft_fftshift": (lambda x: torch.fft.ifftshift(torch.fft.fftshift(x)), X),
    "fill_diagonal_": (lambda x: x.clone().fill_diagonal_(2.0), SQUARE),
    "gather": (lambda x, i: x.gather(1, i), X, torch.tensor([[1, 0], [2, 2], [3, 3], [0, 5]])),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, X, Y),
    "dropout": (lambda x: F.dropout(x, 0.5), X),
    "fft_rfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), X),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 1.0), X),
    "gru": (lambda m, x: m(x)[0], nn.GRU(6, 5), torch.randn(3, 4, 6)),
    "gru_cell": (lambda m, x: m(x), nn.GRUCell(6, 5), X),
    "inverse": (lambda x: torch.inverse(x), POSITIVE),
    "isclose": (lambda x, y: torch.isclose(x, y), X, Y),
    "isfinite": (lambda x: torch.isfinite(x), X),
    "kl_div": (lambda x, y: F.kl_div(x.log(), y, reduction="batchmean"), X, Y),
    "l1_loss": (lambda x, y: F.l1_loss(x, y), X, Y),
    "linalg_cholesky": (lambda x: torch.linalg.cholesky(x), POSITIVE),
    "log_sigmoid": (lambda x: F.logsigmoid(x), X),
    "lstm": (lambda m, x: m(x)[0], nn.LSTM(6, 5), torch.randn(3, 4, 6)),
    "lstm_cell": (lambda m, x: m(x), nn.LSTMCell(6, 5), X),
    "lstm_cell without bias": (lambda m, x, h: m(x, (h, h)), nn.LSTMCell(6, 5, bias=False), X, Y[:, :5]),
    "gru_cell without bias": (lambda m, x, h: m(x, h), nn.GRUCell(6, 5, bias=False), X, Y[:, :5]),
    "matmul": (lambda x, y: x @ y.transpose(-1, -2), HEADS, HEADS[0]),
    "mish": (lambda x: F.mish(x), X),
    "multilabel_margin_loss": (F.multilabel_margin_loss, X, torch.tensor([[1, -1, 0, 0, 0, 0]] * 4)),
    "one_hot": (lambda i: F.one_hot(i, 5), torch.tensor([1, 3, 0])),
    "pdist": (lambda x: F.pdist(x), X),
    "repeat_interleave.self_int": (lambda x: x.repeat_interleave(3, 1), X),
    "repeat_interleave.self_Tensor": (
        lambda x, n: x.repeat_interleave(n, 0, output_size=6),
        X,
        torch.tensor([1, 2, 1, 2]),
    ),
    "silu": (lambda x: F.silu(x), X),
    "slogdet": (lambda x: torch.slogdet(x), POSITIVE),
    "softmax": (lambda x: torch.softmax(x, 1, dtype=torch.float32), X.half()),
    "stft": (
        lambda x: torch.view_as_real(torch.stft(x, 8, window=torch.ones(8, device=x.device), return_complex=True)),
        torch.randn(32),
    ),
    "where": (lambda x: torch.where(x > 0), X),
    "nn.MultiheadAttention": (
        lambda m, x, k: m(x, x, x, attn_mask=k)[0],
        nn.MultiheadAttention(8, 2),
        torch.randn(5, 2, 8),
        torch.randn(5, 5),
    ),
    "nn.TransformerEncoderLayer": (
        lambda m, x, k: m(x, src_mask=k),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        torch.randn(5, 2, 8),
        torch.randn(5, 5),
    ),
}

# What differs, and why. Strict: what is the same must leave the table.
WAYS = ("forward", "backward", "inference", "dynamic")
KNOWN: dict[tuple[str, str], str] = {
    ("lstm", way): "torch has one operator for it, of oneDNN, for CPU tensors alone; it is decomposed here"
    for way in ("forward", "inference", "dynamic")
} | {
    (name, "backward"): f"torch_npu has its own gradient of {op}, which is no composite, in place of torch's"
    for name, op in {
        "gather": "gather",
        "multilabel_margin_loss": "gather",
        "stft": "_fft_r2c",
        "renorm": "renorm",
        "fft_rfft": "_fft_r2c and _fft_c2r",
        "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    }.items()
}


class Seen(Exception):
    """What a test wants to know is known; nothing runs."""


def graphs(function, arguments, device, way):
    """The operators of the graphs that AOTAutograd traces, with the shapes of their results; no copies and aliases."""
    aten, found = torch.ops.aten, []

    def note(gm, _):
        for node in gm.graph.nodes:
            if node.op == "call_function" and node.target not in (aten.detach.default, aten.clone.default):
                value = node.meta.get("val")
                size = tuple(map(str, value.shape)) if isinstance(value, torch.Tensor) else ()
                found.append((str(node.target), size))
        return gm.forward

    def backend(gm, inputs):
        table = decomposition_table()
        try:
            with KeepWhole(), decomposed(table):
                aot_autograd(fw_compiler=note, bw_compiler=note, decompositions=table)(gm, inputs)
        except TensorifyScalarRestartAnalysis:  # dynamo traces once more, with the number as a constant
            raise
        except Exception as error:  # noqa: BLE001 - what cannot be traced is an outcome; dynamo would go on eagerly
            found[:] = [type(error).__name__]

        def stop(*_):
            raise Seen

        return stop

    torch._dynamo.reset()
    given = [copy.deepcopy(a).to(device) for a in arguments]
    for value in given:
        if way == "backward" and isinstance(value, torch.Tensor) and value.is_floating_point():
            value.requires_grad_()
    compiled = torch.compile(function, backend=backend, dynamic=way == "dynamic")
    with (
        torch.inference_mode(way == "inference"),
        torch.set_grad_enabled(way == "backward"),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        torch._dynamo.config.patch(allow_rnn=True, capture_dynamic_output_shape_ops=True),
        pytest.raises(Seen),
    ):
        compiled(*given)
    return found


@pytest.fixture(scope="module", autouse=True)
def prepared():
    torchair.get_npu_backend()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_npu_tensors_give_the_graphs_of_cpu_tensors(name, way):
    function, *arguments = PROGRAMS[name]
    want = graphs(function, arguments, "cpu", way)
    assert isinstance(want[0], tuple)
    got = graphs(function, arguments, "npu", way)
    if (name, way) in KNOWN:
        assert got != want, "the same: take it out of the table"
    else:
        assert got == want


class Product(nn.Module):
    def forward(self, x):
        return torch.matmul(x, x.mT)


def test_composites_are_saved_on_the_host(tmp_path):
    """torch.export puts our rule for ``matmul`` in the place of torch's own, so the rule must not ask for that."""
    torchair.CompiledModel.save_graph(Product(), (X,), save_path=str(tmp_path / "saved"))
    loaded = torchair.CompiledModel.load_graph(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(loaded(X), X @ X.mT)
