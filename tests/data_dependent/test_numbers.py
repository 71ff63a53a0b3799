"""Numbers that stand in tensors, as index, width, size and operand; each program equals eager."""

import math

import torch
import torch.nn.functional as F

from tests.data_dependent.programs import ONE, SOME, Programs, leaf, num, ramp

PROGRAMS = program = Programs()


@program((leaf(5, 3), num(2)), (leaf(5, 3), num(-1)), grad=True)
def index_row(x, i):
    return x[i] * 2


@program((leaf(5, 3), num(2)), (leaf(5, 3), num(1)), grad=True)
def index_col(x, i):
    return x[:, i]


@program((leaf(5, 3), num(2), num(4)), (leaf(5, 3), num(0), num(3)), grad=True)
def slice_tensors(x, i, j):
    return x[i:j].sum(0)


@program((leaf(5, 3), num(2)), (leaf(5, 3), num(0)), grad=True)
def slice_from(x, i):
    return x[i:] * 2


@program((leaf(5, 3), num(2)), (leaf(5, 3), num(1)), grad=True)
def slice_to_neg(x, i):
    return x[:-i] * 2


@program((leaf(6, 3), num(2)), (leaf(6, 3), num(3)), grad=True)
def slice_step(x, i):
    return x[::i] * 2


@program((ramp(5, 3), num(2)), (ramp(5, 3), num(1)))
def setitem_row(x, i):
    x = x.clone()
    x[i] = 7.0
    return x


@program((ramp(5, 3), num(2)), (ramp(5, 3), num(1)))
def setitem_slice(x, i):
    x = x.clone()
    x[i : i + 2] = 7.0
    return x


@program((ramp(5, 3), num(2)), (ramp(5, 3), num(1)))
def setitem_input(x, i):
    x[i] += 1
    return x.sum()


@program((ramp(5, 3), num(2)), (ramp(5, 3), num(1)))
def setitem_slice_input(x, i):
    x[:i] = 0
    return x.sum()


@program((ramp(5, 3), num(2)), (ramp(5, 3), num(1)))
def setitem_slice_value(x, i):
    x = x.clone()
    x[:i] = x[:i] * 3
    return x


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(0), num(3)), grad=True)
def pad_constant(x, i, j):
    return F.pad(x, (i, j))


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(0), num(3)), grad=True)
def pad_constant_value(x, i, j):
    return F.pad(x, (i, j), value=1.5)


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(1), num(3)), grad=True)
def pad_reflect(x, i, j):
    return F.pad(x, (i, j), mode="reflect")


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(1), num(3)), grad=True)
def pad_replicate(x, i, j):
    return F.pad(x, (i, j), mode="replicate")


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(8), num(0)), grad=True)
def pad_circular(x, i, j):
    return F.pad(x, (i, j), mode="circular")


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(3), num(-2)), grad=True)
def pad_circular_two_axes(x, i, j):
    return F.pad(x, (i.item(), 1, 1, j), mode="circular")


@program((leaf(2, 3, 8), num(2), num(1)), (leaf(2, 3, 8), num(1), num(3)), grad=True)
def pad_negative(x, i, j):
    return F.pad(x, (-i, j))


@program((ramp(4, 6), num(2)), (ramp(4, 6), num(3)))
def narrow_tensor(x, i):
    return torch.narrow(x, 1, i, 2)


@program((ramp(4, 6), num(2)), (ramp(4, 6), num(3)))
def narrow_item(x, i):
    return x.narrow(1, i.item(), 2)


@program((ramp(4, 6), num(2)), (ramp(4, 6), num(3)))
def narrow_len(x, i):
    return x.narrow(1, 1, i.item())


@program((ramp(4, 6), num(2)), (ramp(4, 6), num(3)))
def select_item(x, i):
    return x.select(1, i.item())


@program((num(3),), (num(5),))
def zeros_item(n):
    return torch.zeros(n.item(), 4)


@program((num(3),), (num(5),))
def arange_item(n):
    return torch.arange(n.item()) * 2


@program((num(3),), (num(5),))
def arange_tensor(n):
    return torch.arange(n)


@program((num(3),), (num(5),))
def full_item(n):
    return torch.full((n.item(), 2), 7)


@program((num(3), num(2.5)), (num(5), num(1.5)))
def full_value(n, v):
    return torch.full((n.item(), 2), v.item())


@program((num(3),), (num(5),))
def eye_item(n):
    return torch.eye(n.item())


@program((num(3),), (num(5),))
def linspace_item(n):
    return torch.linspace(0, 1, n.item())


@program((num(3), ramp(4)), (num(5), ramp(4)))
def expand_item(n, x):
    return x.expand(n.item(), 4) + 1


@program((num(3), ramp(4)), (num(5), ramp(4)))
def repeat_item(n, x):
    return x.repeat(n.item(), 2)


@program((num([1, 2, 3]), ramp(3, 2)), (num([2, 0, 1]), ramp(3, 2)))
def repeat_interleave(n, x):
    return x.repeat_interleave(n, dim=0)


@program((num([1, 2, 3]), leaf(3, 2)), (num([2, 0, 1]), leaf(3, 2)), grad=True)
def repeat_interleave_grad(n, x):
    return x.repeat_interleave(n, dim=0) * 2


@program((num(3),), (num(5),))
def tri_item(n):
    return torch.ones(n.item(), n.item()).tril()


@program((num([3, 4]),), (num([5, 2]),))
def tolist_size(n):
    a, b = n.tolist()
    return torch.ones(a, b)


@program((num([3, 4]), leaf(7, 2)), (num([5, 2]), leaf(7, 2)), grad=True)
def tolist_split(n, x):
    a, b = x.split(n.tolist())
    return a.sum(0) - b.sum(0)


@program((num([3, 4]), leaf(7, 2)), (num([5, 2]), leaf(7, 2)), grad=True)
def tolist_split_with_sizes(n, x):
    a, b = torch.split_with_sizes(x, n.tolist())
    return a * 2, b * 3


@program((num(3.5),), (num(5.25),))
def item_float(v):
    return torch.ones(3) * v.item() + v.item() ** 2


@program((num(True), ramp(3)), (num(False), ramp(3)))
def item_bool(b, x):
    return x * b.item()


@program((num(3), ramp(3)), (num(5), ramp(3)))
def item_returned(n, x):
    return n.item() + 1, x * n.item()


@program((num(3.5), ramp(3)), (num(5.5), ramp(3)))
def item_float_returned(n, x):
    return n.item() * 2, x / n.item()


@program((num(3), ramp(3)), (num(5), ramp(3)))
def item_arith(n, x):
    i = n.item()
    return x + (i * i - i // 2 + i % 3)


@program((num(3), ramp(3)), (num(5), ramp(3)))
def item_truediv(n, x):
    i = n.item()
    return x + i / 7


@program((num(3), ramp(3)), (num(5), ramp(3)))
def item_minmax(n, x):
    i = n.item()
    return x + torch.sym_max(i, 4) + torch.sym_min(i, 4)


@program((num(3.7), ramp(3)), (num(5.2), ramp(3)))
def item_int_of_float(n, x):
    return x + int(n.item())


@program((num(3), ramp(3)), (num(5), ramp(3)))
def item_pow(n, x):
    return x ** n.item(), x + 2 ** n.item()


@program((num(3), ramp(3)), (num(5), ramp(3)))
def item_float_of_int(n, x):
    return x * float(n.item())


@program((ramp(5), num(2)), (ramp(5), num(3)))
def check_range(x, n):
    i = n.item()
    torch._check(i >= 0)
    torch._check(i < 5)
    return x[:i], x[i]


@program((ramp(5), num(2)), (ramp(5), num(3)))
def check_is_size(x, n):
    i = n.item()
    torch._check_is_size(i)
    return torch.zeros(i) + 1


@program((ramp(6), num(2)), (ramp(6), num(3)))
def check_view(x, n):
    i = n.item()
    torch._check_is_size(i)
    torch._check(6 % i == 0)
    return x.view(i, -1)


@program((ramp(6), num(2)), (ramp(6), num(3)))
def check_eq(x, n):
    i = n.item()
    y = torch.arange(i * 3)
    torch._check(y.shape[0] == i * 3)
    return y.view(i, 3)


@program((ramp(5), num(2)), (ramp(5), num(-3)))
def branch_item(x, n):
    if n.item() > 0:
        return x * 2
    return x * 3


@program((ramp(5), num(2)), (ramp(5), num(-3)))
def branch_tensor(x, n):
    if n > 0:
        return x * 2
    return x * 3


@program((ramp(5), num(3)), (ramp(5), num(2)))
def loop_range(x, n):
    for i in range(n):
        x = x + i
    return x


@program((ramp(6), num(2)), (ramp(6), num(3)))
def roll_item(x, n):
    return x.roll(n.item(), 0)


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(-1)))
def tril_item(x, n):
    return x.tril(n.item())


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(1)))
def diagonal_item(x, n):
    return x.diagonal(n.item())


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(1)))
def topk_item(x, n):
    return x.topk(n.item())


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(1)))
def kthvalue_item(x, n):
    return x.kthvalue(n.item())


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(3)))
def chunk_reshape(x, n):
    return x.reshape(n.item(), -1)


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(1)))
def clamp_item(x, n):
    return x.clamp(n.item(), n.item() + 4)


@program((ramp(6, 6), num(2.0)), (ramp(6, 6), num(1.0)))
def add_alpha_item(x, n):
    return x.add(x, alpha=n.item()), torch.addmm(x, x, x, alpha=n.item())


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(1)))
def select_scatter_item(x, n):
    return x.select_scatter(torch.ones(6), 0, n.item())


@program((ramp(6, 6), num(2)), (ramp(6, 6), num(1)))
def slice_scatter_item(x, n):
    return x.slice_scatter(torch.ones(2, 6), 0, n.item(), n.item() + 2)


@program((ramp(6, 6), num([0, 2, 5])), (ramp(6, 6), num([1, 1, 3])))
def index_list_items(x, n):
    a, b, c = n.tolist()
    return x[a:c, b]


@program((ramp(6, 4), num([2, 3, 1])), (ramp(6, 4), num([1, 1, 4])))
def ragged_sum(x, n):
    return torch.stack([c.sum(0) for c in x.split(n.tolist())])


@program((ramp(2, 6, 4), num([2, 3])), (ramp(2, 6, 4), num([6, 1])))
def per_row_lengths(x, n):
    return torch.cat([x[i, :size] for i, size in enumerate(n.tolist())])


@program((ramp(2, 6, 4), num([2, 3])), (ramp(2, 6, 4), num([6, 1])))
def pad_sequence(x, n):
    return torch.nn.utils.rnn.pad_sequence([x[i, :size] for i, size in enumerate(n.tolist())], batch_first=True)


@program((num([2, 3]),), (num([6, 1]),))
def length_mask(n):
    return torch.arange(n.max().item())[None] < n[:, None]


@program((ramp(1, 1, 4, 4), num(8)), (ramp(1, 1, 4, 4), num(6)))
def interpolate_item(x, n):
    return F.interpolate(x, size=(n.item(), n.item()), mode="nearest")


@program((ramp(1, 1, 4, 4), num(8)), (ramp(1, 1, 4, 4), num(6)))
def interpolate_bilinear_item(x, n):
    return F.interpolate(x, size=(n.item(), n.item()), mode="bilinear")


@program((ramp(4, 4), num(2)), (ramp(4, 4), num(3)))
def adaptive_pool_item(x, n):
    return F.adaptive_avg_pool1d(x[None], n.item())


@program((num(3),), (num(5),))
def empty_fill(n):
    return torch.empty(n.item()).fill_(2)


@program((num(3),), (num(5),))
def new_zeros(n):
    return n.new_zeros(n.item(), 2)


@program((ramp(4, 4), num(2)), (ramp(4, 4), num(3)))
def cond_item(x, n):
    return torch.cond(n > 2, lambda x: x * 2, lambda x: x * 3, (x,))


@program((ramp(4, 4), num(2)), (ramp(4, 4), num(3)))
def int_index_list(x, n):
    return x[[0, n.item()]]


@program((ramp(4, 4), num(2), num(1)), (ramp(4, 4), num(3), num(0)))
def two_index(x, i, j):
    return x[i, j]


@program((ramp(4, 4, 4), num(2)), (ramp(4, 4, 4), num(3)))
def mixed_index(x, i):
    return x[i, 1:, None], x[..., i], x[torch.tensor([0, 1]), i], x[i, num([1, 2])]


@program((ramp(4, 4), num([2])), (ramp(4, 4), num([3])))
def one_elem_index(x, i):
    return x[i.item()], x[:i]


@program((ramp(4, 4), num(2, dtype=torch.int32)), (ramp(4, 4), num(3, dtype=torch.int32)))
def int32_index(x, i):
    return x[i], x[:i], x[i.item()]


@program((ramp(4, 4), num(2, dtype=torch.uint8)), (ramp(4, 4), num(3, dtype=torch.uint8)))
def uint8_item(x, i):
    return x[i.item()]


@program((ramp(4, 4), num(True)), (ramp(4, 4), num(False)))
def bool0_index(x, i):
    return x[i]


@program((ramp(4, 4), num(3)), (ramp(4, 4), num(2)))
def nested_item(x, n):
    i = n.item()
    y = x[:i]
    return y[: y.shape[0] - 1], y[-1]


@program((ramp(1, 2, 10), num(3)), (ramp(1, 2, 10), num(4)))
def conv_padding_math(x, n):
    length = x.shape[-1]
    k = n
    frames = (length - k + 2) / 2 + 1
    frames = torch.ceil(frames).to(torch.int64) - 1
    ideal = frames * 2 + k - 2
    return F.pad(x, (0, ideal - length + 2))


@program((num(7), num(3)), (num(8), num(2)))
def arith_all(a, b):
    i, j = a.item(), b.item()
    return i + j, i - j, i * j, i // j, i % j, -i, abs(j - i), i / j, i**2, min(i, 9), max(i, 4)


@program((num(7), ramp(3)), (num(-8), ramp(3)))
def arith_neg(a, x):
    i = a.item()
    return x * (i // 3), x * (i % 3), x + abs(i), x - i


@program((num(7), ramp(3)), (num(8), ramp(3)))
def arith_bool(a, x):
    i = a.item()
    return x * (i > 7), x + (i == 8)


@program((num(7.5), ramp(3)), (num(8.25), ramp(3)))
def arith_float(a, x):
    v = a.item()
    return x * v, x + math.floor(v), x + math.ceil(v), x * math.sqrt(v), x + round(v), x + int(v), x // v


@program((num([1.5, 2.5]), ramp(3)), (num([3.5, -2.5]), ramp(3)))
def tolist_float(a, x):
    u, v = a.tolist()
    return x * u + v


@program((num([[1, 2], [3, 4]]), ramp(3)), (num([[0, 2], [1, 4]]), ramp(3)))
def tolist_nested(a, x):
    (b, c), (d, e) = a.tolist()
    return x * b + c * d - e


@program((num([True, False]), ramp(3)), (num([False, True]), ramp(3)))
def tolist_bool(a, x):
    b, c = a.tolist()
    return x * b, x + c


@program((num(2**40), ramp(3).long()), (num(-(2**41)), ramp(3).long()))
def item_big(n, x):
    return x + n.item()


@program((num(2.5, dtype=torch.float16), ramp(3)), (num(1.25, dtype=torch.float16), ramp(3)))
def item_half(n, x):
    return x + n.item()


@program((num(2.5, dtype=torch.bfloat16), ramp(3)), (num(1.25, dtype=torch.bfloat16), ramp(3)))
def item_bf16(n, x):
    return x * n.item()


@program((num(2.5, dtype=torch.float64), ramp(3).double()), (num(1.1, dtype=torch.float64), ramp(3).double()))
def item_double(n, x):
    return x * n.item()


def masked(name, f, shape=(5, 4), grad=True, masks=(SOME, ONE)):
    PROGRAMS["m_" + name] = (lambda x, m: f(x[m]), [(leaf(*shape) if grad else ramp(*shape), m) for m in masks], grad)


@program((ramp(6, 4), num([0, 2, 6])), (ramp(6, 4), num([0, 5, 6])))
def cu_seqlens(x, cu):
    return torch.cat([x[a:b].softmax(0) for a, b in zip(cu[:-1].tolist(), cu[1:].tolist())])


@program((ramp(6, 4), num(2)), (ramp(6, 4), num(3)))
def kv_cache_write(x, pos):
    i = pos.item()
    c = torch.zeros(8, 4)
    c[i : i + 2] = x[:2]
    return c[: i + 2]


@program((ramp(8, 4), ramp(1, 4), num(2)), (ramp(8, 4), ramp(1, 4), num(5)))
def kv_cache_mutate(c, x, pos):
    c[pos] = x[0]
    return c[: pos + 1].sum(0)


@program((ramp(3, 8), num([8, 5, 2])), (ramp(3, 8), num([1, 2, 3])))
def max_len(x, n):
    m = n.max().item()
    return x[:, :m]


@program((ramp(3, 4), num(2)), (ramp(3, 4), num(5)))
def pad_to_multiple(x, n):
    k = n.item()
    return F.pad(x, (0, (k - 4 % k) % k))


@program((ramp(6), num(2)), (ramp(6), num(9)))
def index_out_of_range(x, n):
    return x[torch.minimum(n, torch.tensor(5))]


def test_equals_eager(program, way, assert_as_eager):
    assert_as_eager(PROGRAMS[program], way)
