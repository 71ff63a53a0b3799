"""Sizes that data decides: what is done with the rows that a mask leaves; each program equals eager."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.data_dependent.programs import NONE, ONE, SOME, Programs, leaf, num, ramp

PROGRAMS = program = Programs()


def masked(name, fn, shape=(5, 4), grad=True, masks=(SOME, ONE)):
    PROGRAMS[name] = (lambda x, m: fn(x[m]), [(leaf(*shape) if grad else ramp(*shape), m) for m in masks], grad)


@program((SOME,), (ONE,), (NONE,))
def nonzero(m):
    return torch.nonzero(m)


@program((SOME,), (ONE,), (NONE,))
def nonzero_tuple(m):
    return m.nonzero(as_tuple=True)[0] * 2


@program((ramp(3, 4),), (ramp(3, 4) - 3,))
def where_one(x):
    return torch.where(x > 2)


@program((leaf(5, 3), SOME), (leaf(5, 3), ONE), (leaf(5, 3), NONE), grad=True)
def mask_rows(x, m):
    return x[m] * 2


@program((leaf(3, 5), SOME), (leaf(3, 5), ONE), grad=True)
def mask_cols(x, m):
    return x[:, m] * 2


@program((leaf(3, 4),), (ramp(3, 4).sub(3).requires_grad_(),), grad=True)
def mask_full(x):
    return x[x > 2].exp().sum()


@program((leaf(3, 4),), (ramp(3, 4).sub(3).requires_grad_(),), grad=True)
def masked_select(x):
    return torch.masked_select(x, x > 2) * 3


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_assign(x, m):
    x = x.clone()
    x[m] = 0.0
    return x


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_assign_rows(x, m):
    x = x.clone()
    x[m] = x[m] * 2
    return x


@program((leaf(5, 3), SOME, leaf(5, 3)), (leaf(5, 3), ONE, leaf(5, 3)), grad=True)
def mask_assign_grad(x, m, y):
    x = x.clone()
    x[m] = y[m] * 2
    return x


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_assign_input(x, m):
    x[m] += 1
    return x


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_matmul(x, m):
    return x[m] @ x.t(), x[m].t() @ x[m]


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_cat(x, m):
    return torch.cat([x[m], x]), torch.cat([x[m], x[~m]])


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_stack(x, m):
    return torch.stack([x[m], x[m] * 2])


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_reduce(x, m):
    y = x[m]
    return y.sum(), y.mean(0), y.amax(1), y.std(1), y.softmax(0), y.cumsum(0)


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_view(x, m):
    y = x[m]
    return y.view(-1), y.reshape(1, -1, 3), y.flatten(), y.t(), y.unsqueeze(1).expand(-1, 2, -1)


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_len(x, m):
    y = x[m]
    return y / y.shape[0], torch.arange(y.shape[0]), y.numel()


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_sort(x, m):
    y = x[m]
    return y.sort(0, descending=True), y.topk(2, dim=1), y.argmax(1)


@program((ramp(5, 3), SOME), (ramp(5, 3), ONE))
def mask_linear(x, m):
    return F.linear(x[m], x), F.layer_norm(x[m], (3,))


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_conv(x, m):
    return F.conv1d(x[m].unsqueeze(1), torch.ones(2, 1, 3), padding=1)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_embedding(x, m):
    return F.embedding(torch.nonzero(m).squeeze(1), x)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_index_add(x, m):
    i = m.nonzero().squeeze(1)
    return x.index_add(0, i, x[m]), x.index_copy(0, i, x[m] * 2), x.index_fill(0, i, 1.0)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_scatter(x, m):
    return x.masked_scatter(m[:, None].expand(5, 4), x * 2)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_sdpa(x, m):
    q = x[m][None, None]
    return F.scaled_dot_product_attention(q, x[None, None], x[None, None])


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_two(x, m):
    y = x[m]
    z = y[y[:, 0] > 3]
    return z, z.shape[0]


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_chunks(x, m):
    y = x[m]
    return torch.cat([y, y]).view(2, -1, 4)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_broadcast(x, m):
    y = x[m]
    return y[:, None] - y[None], torch.cdist(y, x)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_einsum(x, m):
    y = x[m]
    return torch.einsum("ij,kj->ik", y, x), torch.einsum("ij,ij->i", y, y)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_one_hot(x, m):
    return F.one_hot(m.nonzero().squeeze(1), 5)


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def mask_cross_entropy(x, m):
    return F.cross_entropy(x[m], torch.zeros(5, dtype=torch.long)[m])


@program((num([3, 1, 3, 2, 1]),), (num([1, 1, 1, 1, 1]),))
def unique(x):
    return torch.unique(x)


@program((num([3, 1, 3, 2, 1]),), (num([1, 1, 1, 1, 1]),))
def unique_inverse(x):
    return torch.unique(x, return_inverse=True, return_counts=True)


@program((num([3, 1, 3, 2, 1]),), (num([1, 1, 1, 1, 1]),))
def unique_consecutive(x):
    return torch.unique_consecutive(x, return_inverse=True, return_counts=True)


@program((num([[3, 1], [3, 1], [2, 1]]),), (num([[1, 1], [1, 1], [1, 1]]),))
def unique_dim(x):
    return torch.unique(x, dim=0)


@program((num([3, 1, 3, 2, 1]),), (num([1, 1, 0, 1, 1]),))
def bincount(x):
    return torch.bincount(x)


@program((num([3, 1, 3, 2, 1]),), (num([1, 1, 0, 1, 1]),))
def bincount_min(x):
    return torch.bincount(x, minlength=8)


@program((num([3, 1, 3, 2, 1]),), (num([1, 1, 0, 1, 1]),))
def one_hot_auto(x):
    return F.one_hot(x)


@program((ramp(3, 4),), (ramp(3, 4) - 3,))
def argwhere(x):
    return torch.argwhere(x > 2)


@program((ramp(3, 4),), (ramp(3, 4) - 3,))
def count_nonzero(x):
    return torch.ones(torch.count_nonzero(x > 3).item())


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def check_same(x, m):
    y = x[m]
    z = m.nonzero().squeeze(1)
    torch._check(y.shape[0] == z.shape[0])
    return y + z[:, None]


@program((ramp(5, 4), SOME), (ramp(5, 4), ONE))
def check_tensor(x, m):
    torch._check(m.any().item())
    return x[m]


@program((ramp(5, 4), SOME), (ramp(5, 4), NONE))
def branch_numel(x, m):
    y = x[m]
    if y.numel() == 0:
        return x
    return y * 2


masked("softmax_mm", lambda y: (y @ y.T).softmax(-1) @ y)
masked("bmm", lambda y: torch.bmm(y[None].expand(2, -1, -1), y.T[None].expand(2, -1, -1)))
masked("layernorm", lambda y: F.layer_norm(y, (4,)))
masked("batchnorm_eval", lambda y: F.batch_norm(y, torch.zeros(4), torch.ones(4)))
masked("norm", lambda y: y.norm(dim=0) + y.norm(p=1, dim=1).sum())
masked("var", lambda y: (y.var(1), y.var(0, unbiased=False)))
masked("logsumexp", lambda y: y.logsumexp(0))
masked("prod", lambda y: y.prod(1))
masked("cumsum", lambda y: (y.cumsum(0), y.cumprod(1), y.flip(0)))
masked("minmax", lambda y: (y.max(1).values, y.min(0).values, y.argmin(1)))
masked("sort", lambda y: y.sort(0).values)
masked("split", lambda y: y.split(2, 1)[1])
masked("chunk", lambda y: y.chunk(2, 1)[0])
masked("unbind", lambda y: y.unbind(1)[2])
masked("permute", lambda y: y[:, None].permute(2, 0, 1).contiguous())
masked("gelu", lambda y: F.gelu(F.silu(y)) + F.softplus(y))
masked("pad", lambda y: F.pad(y, (1, 1, 0, 2)))
masked("padto", lambda y: F.pad(y, (0, 0, 0, 8 - y.shape[0])))
masked("repeat", lambda y: (y.repeat(2, 1), y.tile(1, 2), y.repeat_interleave(2, 0)))
masked("expand", lambda y: y[:, :1].expand(-1, 6) * 2)
masked("gather", lambda y: y.gather(1, torch.zeros(y.shape[0], 2, dtype=torch.long)))
masked("scatter", lambda y: torch.zeros(6, 4).index_add(0, torch.arange(y.shape[0]), y))
masked("where", lambda y: torch.where(y > 3, y, -y))
masked("clamp", lambda y: y.clamp(1, 5).sqrt())
masked("mse", lambda y: F.mse_loss(y, torch.zeros_like(y)))
masked("smoothl1", lambda y: F.smooth_l1_loss(y, torch.zeros_like(y), reduction="sum") / max(1, y.numel()))
masked("bce", lambda y: F.binary_cross_entropy_with_logits(y, torch.ones_like(y)))
masked("ce", lambda y: F.cross_entropy(y, torch.ones(y.shape[0], dtype=torch.long)))
masked("new", lambda y: y.new_zeros(y.shape) + torch.ones_like(y) + torch.full_like(y, 2) + y)
masked("arange", lambda y: y + torch.arange(y.shape[0])[:, None])
masked(
    "meshgrid",
    lambda y: torch.stack(torch.meshgrid(torch.arange(y.shape[0]), torch.arange(3), indexing="ij")),
    grad=False,
)
masked("tril", lambda y: (y @ y.T).tril())
masked("diag", lambda y: (y @ y.T).diagonal())
masked("eye", lambda y: y @ torch.eye(4) + torch.eye(y.shape[0], 4))
masked("outer", lambda y: torch.outer(y[:, 0], y[:, 1]))
masked("kron", lambda y: torch.kron(y, torch.ones(1, 2)))
masked("conv2d", lambda y: F.conv2d(y.view(-1, 1, 2, 2), torch.ones(3, 1, 2, 2)))
masked("convT", lambda y: F.conv_transpose2d(y.view(-1, 1, 2, 2), torch.ones(1, 3, 2, 2)))
masked("maxpool", lambda y: F.max_pool2d(y.view(-1, 1, 2, 2), 2))
masked("avgpool", lambda y: F.avg_pool2d(y.view(-1, 1, 2, 2), 2))
masked("adaptive", lambda y: F.adaptive_avg_pool2d(y.view(-1, 1, 2, 2), 1))
masked("interp", lambda y: F.interpolate(y.view(-1, 1, 2, 2), scale_factor=2))
masked("interp_bil", lambda y: F.interpolate(y.view(-1, 1, 2, 2), size=(4, 4), mode="bilinear"))
masked("groupnorm", lambda y: F.group_norm(y.view(-1, 4, 1), 2))
masked("instnorm", lambda y: F.instance_norm(y.view(-1, 1, 4)))
masked("rms", lambda y: F.rms_norm(y, (4,)))
masked("embbag", lambda y: F.embedding_bag(torch.zeros(y.shape[0], 2, dtype=torch.long), y))
masked(
    "embbag_sum",
    lambda y: F.embedding_bag(torch.tensor([0, 1, 1, 0, 0]) % y.shape[0], y, torch.tensor([0, 2]), mode="sum"),
)
masked("embbag_max", lambda y: F.embedding_bag(torch.zeros(y.shape[0], 2, dtype=torch.long), y, mode="max"))
masked("embedding", lambda y: F.embedding(torch.tensor([[0, 1], [1, 1]]) % y.shape[0], y))
masked(
    "embedding_freq",
    lambda y: F.embedding(torch.tensor([[0, 1], [1, 1]]) % y.shape[0], y, padding_idx=0, scale_grad_by_freq=True),
)
masked("dropout0", lambda y: F.dropout(y, 0.0))
masked("lerp", lambda y: torch.lerp(y, y * 2, 0.3))
masked("addmm", lambda y: torch.addmm(torch.ones(4), y, torch.ones(4, 4)))
masked("baddbmm", lambda y: torch.baddbmm(torch.zeros(1, 1, 1), y[None], y.T[None]))
masked("einsum", lambda y: torch.einsum("ij,kj,k->i", y, y, y[:, 0]))
masked("sdpa", lambda y: F.scaled_dot_product_attention(y[None, None], y[None, None], y[None, None], is_causal=True))
masked(
    "sdpa_mask",
    lambda y: F.scaled_dot_product_attention(
        y[None, None], y[None, None], y[None, None], attn_mask=torch.ones(y.shape[0], y.shape[0]).tril().bool()
    ),
)
masked("reshape4", lambda y: y.reshape(-1, 2, 2).transpose(0, 1).reshape(2, -1))
masked("view_numel", lambda y: y.view(y.numel()) * 2)
masked("stack", lambda y: torch.stack([y, y * 2], 1).flatten(0, 1))
masked("cat_self", lambda y: torch.cat([y, y[:1], torch.ones(2, 4)]))
masked("hstack", lambda y: torch.hstack([y, y]))
masked("slice", lambda y: (y[1:], y[:-1], y[::2], y[-1:]))
masked("roll", lambda y: y.roll(1, 0))
masked("setitem", lambda y: y.clone().index_fill(0, torch.tensor([0]), 1.0))
masked("fill_slice", lambda y: F.relu(y).masked_fill(y > 3, 0))
masked("any_all", lambda y: ((y > 3).any(), (y > 3).all(1), (y > 3).sum(0)), grad=False)
masked("isin", lambda y: torch.isin(y, torch.tensor([0.5, 1.5])), grad=False)
masked("bucket", lambda y: torch.bucketize(y, torch.tensor([1.0, 3.0])), grad=False)
masked("searchs", lambda y: torch.searchsorted(torch.tensor([1.0, 3.0]), y), grad=False)
masked("topk_rows", lambda y: y.topk(min(1, y.shape[0]), 0).values, grad=False)
masked("dtype", lambda y: (y.half(), y.long(), y.double(), y.bool()), grad=False)
masked("histc", lambda y: torch.histc(y, 4, 0, 10), grad=False)
masked("unique", lambda y: torch.unique(y.long() // 3), grad=False)
masked("twice", lambda y: y[y[:, 0] > 3][:, 1:])
masked("nonzero2", lambda y: (y > 3).nonzero(), grad=False)
masked("fft", lambda y: torch.fft.rfft(y).abs())
masked("cdist", lambda y: torch.cdist(y, torch.ones(2, 4)))
masked("cos", lambda y: F.cosine_similarity(y, torch.ones(1, 4)))
masked("normalize", lambda y: F.normalize(y))
masked("glu", lambda y: F.glu(y, 1))
masked("onehot", lambda y: F.one_hot(torch.arange(y.shape[0]), 6), grad=False)
masked("rand", lambda y: torch.rand_like(y).shape[0] + torch.zeros(2), grad=False)
masked("len_div", lambda y: y.sum() / y.shape[0])
masked("sizes", lambda y: (y.shape[0], y.numel(), y.shape[0] * 2 + 1), grad=False)
masked("empty_sum", lambda y: (y.sum(0), y.sum()), masks=(SOME, NONE))
masked("empty_mm", lambda y: y @ torch.ones(4, 3), masks=(SOME, NONE))
masked("empty_cat", lambda y: torch.cat([y, torch.ones(1, 4)]), masks=(SOME, NONE))
masked("empty_ln", lambda y: F.layer_norm(y, (4,)), masks=(SOME, NONE))
masked("linear_mod", lambda y: F.linear(F.relu(F.linear(y, torch.ones(8, 4))), torch.ones(2, 8)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.gate = nn.Linear(4, 3)
        self.e = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        w, i = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for k, e in enumerate(self.e):
            row, pos = torch.where(i == k)
            out = out.index_add(0, row, e(x[row]) * w[row, pos, None])
        return out


PROGRAMS["moe"] = (MoE(), [(leaf(6, 4),), (ramp(8, 4).neg().requires_grad_(),)], True)


class Ragged(nn.Module):
    def forward(self, x, n):
        parts = []
        start = 0
        for k in n.tolist():
            parts.append(x[start : start + k].mean(0))
            start = start + k
        return torch.stack(parts)


PROGRAMS["ragged_loop"] = (Ragged(), [(leaf(6, 4), num([1, 3, 2])), (leaf(6, 4), num([2, 2, 2]))], True)


def test_equals_eager(program, way, assert_as_eager):
    assert_as_eager(PROGRAMS[program], way)
