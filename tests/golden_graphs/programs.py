"""Small programs, each about one thing that a GE graph shows: an operator, a fusion, a mutation, a size, a branch.

A program is a function of its inputs. ``sizes`` gives the inputs of a second call where sizes are symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Fn = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """A function and how to call it.

    Attributes:
        fn: The function.
        inputs: Makes its inputs; called with a batch size.
        dynamic: Compile with symbolic sizes, and call it again with another batch size.
        trained: Floating point inputs want gradients.
    """

    fn: Fn
    inputs: Callable[[int], tuple[Any, ...]]
    dynamic: bool = False
    trained: bool = False


PROGRAMS: dict[str, Program] = {}


def program(*inputs: Any, dynamic: bool = False, trained: bool = False) -> Callable[[Fn], Fn]:
    """Enter a function under its name; an input is a shape (``B`` is the batch size), a tensor, or a number."""

    def make(batch: int) -> tuple[Any, ...]:
        torch.manual_seed(0)
        return tuple(
            torch.randn([batch if d == B else d for d in i]) if isinstance(i, tuple) else made(i, batch) for i in inputs
        )

    def enter(fn: Fn) -> Fn:
        PROGRAMS[fn.__name__] = Program(fn, make, dynamic, trained)
        return fn

    return enter


def made(given: Any, batch: int) -> Any:
    given = given(batch) if callable(given) else given
    return given.clone() if isinstance(given, torch.Tensor) else given


B = -1
INTS = torch.tensor([[3, -4, 5], [7, 0, -2]])
INDEX = torch.tensor([2, 0, 1])
MASK = torch.tensor([[True, False, True], [False, True, True]])


# -- element by element


@program((2, 3), (3,))
def arithmetic(x, y):
    return (x + 2 * y - 1) / (y.abs() + 0.5)


@program((2, 3), (2, 3))
def half_types(x, y):
    return x.half() + 0.1, x.bfloat16() * y.bfloat16()


@program(INTS, 3)
def integers(x, n):
    return x // n, x % n, x / n, x << 1


@program((2, 3), INTS)
def mixed_types(x, i):
    return x * i, i + 1.5, (x > i) & (i != 0)


@program((2, 3), MASK)
def chosen(x, mask):
    return torch.where(mask, x, 0.0), x.masked_fill(mask, float("-inf")), x.clamp(-1, 1)


@program((2, 3))
def activations(x):
    return F.relu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), torch.sigmoid(x), F.leaky_relu(x, 0.2)


@program((2, 3))
def complex_numbers(x):
    z = torch.complex(x, x.flip(0))
    return torch.view_as_real(z * z.conj()), z.abs()


# -- memory


@program((2, 3, 4))
def moves(x):
    return x.permute(2, 0, 1).reshape(4, 6), x.transpose(0, 1).contiguous(), x.unsqueeze(1).expand(2, 5, 3, 4)


@program((4, 6))
def slices(x):
    return x[1:, ::2], x[-1], x[..., None, 2:4], x.chunk(3, dim=1)


@program((2, 3), (2, 3))
def joined(x, y):
    return torch.cat([x, y], 1), torch.stack([x, y]), torch.cat([x, x.new_zeros(0, 3)])


@program((4, 3), INDEX)
def gathered(x, i):
    return x[i], x.index_select(1, i), x.gather(0, i[None].expand(2, 3)), torch.take_along_dim(x, i[None], 0)


@program((4, 3), INDEX, (3, 3))
def scattered(x, i, y):
    return x.index_put((i,), y), x.index_add(0, i, y), x.scatter(1, i[:, None], 0.0), x.scatter_add(0, i[None], y)


@program((3, 4), (3, 4))
def written_in_place(x, y):
    x.add_(y)
    x[1] = 0
    return x.sum()


@program((2, 8, 4), (2, 1, 4), torch.tensor([3]))
def cache_update(cache, row, at):
    cache.index_copy_(1, at, row)
    return cache[:, :5].mean(1)


@program((3, 4))
def views_of_an_input(x):
    return x.view(4, 3), x[0], x.t()


@program((2, 3))
def one_result_twice(x):
    y = x * 2
    return y, y, y.view(-1)


# -- reductions and order


@program((2, 3, 4))
def sums(x):
    return x.sum(), x.mean((0, 2)), x.sum(-1, keepdim=True), x.prod(1)


@program((2, 3, 4))
def extremes(x):
    return x.amax(1), x.max(2), x.argmin(), x.any(0)


@program((2, 3, 4))
def spread(x):
    return x.var(1), x.std((0, 2), correction=0), torch.var_mean(x, -1), x.norm(dim=1), x.logsumexp(1)


@program((2, 5))
def in_order(x):
    return x.sort(1, descending=True), x.topk(2), x.cumsum(1), x.median(1), x.kthvalue(2)


@program((2, 5))
def probabilities(x):
    return x.softmax(1), x.log_softmax(0), F.softmax(x.half(), -1, dtype=torch.float32)


# -- products


@program((2, 3), (3, 4), (2, 5, 3), (2, 3, 4))
def products(a, b, c, d):
    return a @ b, torch.bmm(c, d), c @ b, a @ c[0].t()


@program((2, 3), (4, 3), (4,))
def linear(x, w, b):
    return F.linear(x, w, b), F.linear(x, w)


@program((2, 3, 4), (2, 4, 5), (5,))
def einsums(x, y, z):
    return torch.einsum("bij,bjk->bik", x, y), torch.einsum("bij,bjk,k->i", x, y, z)


@program((1, 3, 8, 8), (4, 3, 3, 3), (4,))
def convolution(x, w, b):
    return F.conv2d(x, w, b, stride=2, padding=1), F.conv_transpose2d(x, w.transpose(0, 1), None, stride=2)


@program((1, 4, 8), (4, 1, 3))
def depthwise(x, w):
    return F.conv1d(x, w, None, padding="same", groups=4)


# -- images


@program((1, 2, 8, 8))
def pools(x):
    return F.max_pool2d(x, 2), F.avg_pool2d(x, 3, stride=2, padding=1), F.adaptive_avg_pool2d(x, 1)


@program((1, 2, 4, 4))
def resized(x):
    return F.interpolate(x, scale_factor=2), F.interpolate(x, size=(3, 5), mode="bilinear", align_corners=False)


@program((1, 2, 4, 4))
def padded(x):
    return F.pad(x, (1, 2)), F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(x, (0, -1), value=2.0)


@program((1, 3, 8, 8), (4, 3, 3, 3), (4,), (4,), (4,), torch.rand(4) + 1)
def conv_and_norm(x, w, scale, shift, mean, variance):
    return F.relu(F.batch_norm(F.conv2d(x, w), mean, variance, scale, shift))


# -- layers of a transformer


@program((2, 3, 8), (8,), (8,))
def layer_norm(x, w, b):
    return F.layer_norm(x, (8,), w, b), F.layer_norm(x.bfloat16(), (8,))


@program((2, 3, 8), (2, 3, 8), (8,))
def rms_norm_after_add(x, residual, w):
    total = x + residual
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * w, total


@program((2, 4, 6, 8), (8,), (8,))
def group_norm(x, _w, _b):
    return F.group_norm(x, 2)


@program((2, 6, 8), (16, 8), (8, 8))
def gated(x, up, down):
    gate, value = F.linear(x, up).chunk(2, -1)
    return F.linear(F.silu(gate) * value, down)


@program((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@program((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
def grouped_causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@program((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), torch.ones(2, 1, 5, 5, dtype=torch.bool).tril())
def masked_attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@program((2, 4, 5, 8), (5, 8), (5, 8))
def rotary(x, cos, sin):
    rotated = torch.cat((-x[..., 4:], x[..., :4]), -1)
    return x * cos + rotated * sin


@program((6, 4), (2, 3))
def embedded(table, _x):
    return F.embedding(INDEX, table), F.one_hot(INDEX, 4)


@program((2, 5, 6), torch.tensor([[1, 0, 3, 2, 5], [4, -100, 1, 0, 2]]))
def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@program((4, 8), (8, 4))
def routed(x, w):
    weight, expert = torch.topk(F.softmax(x @ w, -1), 2)
    return weight / weight.sum(-1, keepdim=True), expert


# -- numbers from nowhere


@program((2, 3))
def made_tensors(x):
    return torch.arange(2, 9, 3), x.new_full((2, 2), 7), torch.eye(3), torch.ones(3, 3).tril(), torch.tensor([1.5, 2])


@program((2, 3))
def constants(x):
    return x + torch.tensor([1.0, 2.0, 3.0]), x * torch.tensor(2)


@program((4, 8))
def dropped(x):
    return F.dropout(x, 0.0), F.dropout(x, 0.4, training=False)


# -- symbolic sizes


@program((B, 3), dynamic=True)
def flattened(x):
    return x.view(-1), x.reshape(x.shape[0] * 3, 1), x.sum() / x.shape[0]


@program((B, 3), dynamic=True)
def made_by_size(x):
    return torch.arange(x.shape[0]), x.new_zeros(x.shape[0], 2), torch.ones(x.shape[0], x.shape[0]).tril()


@program((B, 3), (B, 3), dynamic=True)
def joined_by_size(x, y):
    return torch.cat([x, y]), x[: x.shape[0] // 2], x.repeat(2, 1)


@program((B, 6, 8), (16, 8), (8, 8), dynamic=True)
def gated_by_size(x, up, down):
    gate, value = F.linear(x, up).chunk(2, -1)
    return F.linear(F.silu(gate) * value, down)


@program((B, 4, 5, 8), (B, 4, 5, 8), (B, 4, 5, 8), dynamic=True)
def attention_by_size(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program((B, 3), torch.tensor(2), dynamic=True)
def taken_at(x, i):
    return x[i], x.index_select(0, i[None])


# -- control flow


@program((2, 3), (2, 3))
def branches(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a * b, (x, y))


@program((3,), torch.tensor(4))
def rounds(x, n):
    step = lambda i, y: (i - 1, y * 2)  # noqa: E731 -- higher-order operators take functions
    return torch.while_loop(lambda i, y: i > 0, step, (n, x))


@program((4, 3), (3,))
def scanned(x, start):
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (carry + row, (carry * row).sum()), start, x)


# -- training


@program((2, 3), (4, 3), (4,), trained=True)
def trained_linear(x, w, b):
    return F.relu(F.linear(x, w, b)).square().mean()


@program((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), trained=True)
def trained_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@program((2, 3, 8), (8,), (8,), trained=True)
def trained_layer_norm(x, w, b):
    return F.layer_norm(x, (8,), w, b)


@program((1, 3, 6, 6), (4, 3, 3, 3), (4,), (4,), trained=True)
def trained_convolution(x, w, scale, shift):
    return F.max_pool2d(F.relu(F.batch_norm(F.conv2d(x, w), None, None, scale, shift, training=True)), 2)


@program((6, 4), trained=True)
def trained_embedding(table):
    return F.embedding(torch.tensor([[1, 5], [0, 1]]), table).sum(1)


@program((B, 3), (4, 3), trained=True, dynamic=True)
def trained_by_size(x, w):
    return F.cross_entropy(F.linear(x, w), torch.zeros(x.shape[0], dtype=torch.long))


@program((4, 3), (4, 3), trained=True)
def trained_losses(x, y):
    return F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.binary_cross_entropy_with_logits(x, y.sigmoid())


@program((3, 5, 4), (4, 4), (4, 4), trained=True)
def trained_gate(x, up, gate):
    return (F.silu(x @ gate) * (x @ up)).sum(1)


@program((2, 3), INTS, MASK)
def what_changes_nothing(x, i, mask):
    true = torch.ones((), dtype=torch.bool)
    return F.relu(x * 1.0) / 1, (i + 0) * 2, F.relu(x.abs() - 0.0), x.neg() + 0.0, ~(~mask & true)


@program((4, 6), trained=True)
def trained_slices(x):
    return x[1:3].sum() + (x[:, -2:] * 3).sum() + x[-1].exp().sum() + x[::2].square().sum()
