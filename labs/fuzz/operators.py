"""The operators that random programs are made of.

An operator is a function of tensors and of plain numbers, and a function that draws those numbers for given operands.
It need not always draw well: a step that eager refuses is not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch._higher_order_ops import scan, while_loop

Draw = Callable[..., list[Any]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row.

    Attributes:
        run: Takes the operands, then what ``draw`` gave.
        operands: Number of tensors.
        draw: Takes a source of chance and the operands, gives plain numbers.
        writes: Whether the first operand is written.
        kinds: Which first operands it is for: ``f`` floating, ``i`` integers, ``b`` bool.
    """

    run: Callable[..., Any]
    operands: int = 1
    draw: Draw = lambda rng, *xs: []
    writes: bool = False
    kinds: str = "fib"


def _dim(rng: Random, x: torch.Tensor, *_: Any) -> list[Any]:
    return [rng.randrange(-x.dim(), x.dim())]


def _dim_keep(rng: Random, x: torch.Tensor) -> list[Any]:
    return [*_dim(rng, x), rng.random() < 0.5]


def _dims(rng: Random, x: torch.Tensor) -> list[Any]:
    return [sorted(rng.sample(range(x.dim()), rng.randrange(1, x.dim() + 1))), rng.random() < 0.5]


def _two_dims(rng: Random, x: torch.Tensor) -> list[Any]:
    return rng.sample(range(x.dim()), 2)


def _at(rng: Random, x: torch.Tensor, *_: Any) -> list[Any]:
    (dim,) = _dim(rng, x)
    return [dim, rng.randrange(-x.size(dim), x.size(dim))]


def _number(rng: Random, *_: Any) -> list[Any]:
    return [rng.choice([0, 1, 2, -1, 3, 0.5, 1.5, -2.25, 1e-3])]


def _bounds(rng: Random, x: torch.Tensor, *_: Any) -> list[Any]:
    (dim,) = _dim(rng, x)
    start = rng.randrange(x.size(dim))
    return [dim, start, rng.randrange(start, x.size(dim) + 2), rng.choice([1, 1, 1, 2, 3])]


def _cut(x: torch.Tensor, dim: int, start: int, end: int, step: int) -> torch.Tensor:
    return x[tuple([slice(None)] * (dim % x.dim()) + [slice(start, end, step)])]


def _permutation(rng: Random, x: torch.Tensor) -> list[Any]:
    return [rng.sample(range(x.dim()), x.dim())]


def _shape(rng: Random, x: torch.Tensor) -> list[Any]:
    sizes = list(x.shape)
    at = rng.randrange(len(sizes))
    if rng.random() < 0.5 and len(sizes) > 1:
        at = rng.randrange(len(sizes) - 1)
        sizes[at : at + 2] = [-1]
    else:
        parts = [n for n in (2, 3, 4) if sizes[at] % n == 0]
        sizes[at : at + 1] = [rng.choice(parts), -1]
    return [sizes]


def _places(rng: Random, x: torch.Tensor, *_: Any) -> list[Any]:
    (dim,) = _dim(rng, x)
    return [dim, [rng.randrange(x.size(dim)) for _ in range(rng.randrange(1, 5))]]


def _index(x: torch.Tensor, values: list[int]) -> torch.Tensor:
    return torch.tensor(values, device=x.device)


def _dtype(rng: Random, *_: Any) -> list[Any]:
    names = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "int16", "int8", "uint8", "bool"]
    return [rng.choice(names)]


def _filled(x: torch.Tensor) -> torch.Tensor:
    """Without what no tolerance compares: infinite values and NaN."""
    return x.nan_to_num(0.0, 3.0, -3.0).clamp(-10, 10) if x.is_floating_point() else x.clamp(-9, 9)


def _weights(*sizes: int, like: torch.Tensor) -> torch.Tensor:
    count = 1
    for n in sizes:
        count *= n
    return ((torch.arange(count, device=like.device) % 7 - 3) / 4).view(sizes).to(like.dtype)


def _image(x: torch.Tensor) -> torch.Tensor:
    """Any tensor as a batch of images."""
    while x.dim() < 4:
        x = x.unsqueeze(0)
    return x.flatten(0, x.dim() - 4) if x.dim() > 4 else x


def _conv(x: torch.Tensor, kernel: int, padding: int, last: bool) -> torch.Tensor:
    x = _image(x)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    return F.conv2d(x, _weights(3, x.size(1), kernel, kernel, like=x), padding=padding)


def _write_part(x: torch.Tensor, y: torch.Tensor, dim: int, start: int, end: int, step: int) -> torch.Tensor:
    part = _cut(x, dim, start, end, step)
    part.copy_(y.sum().to(x.dtype).expand_as(part) if y.numel() else part)
    return x


def _write_row(x: torch.Tensor, dim: int, at: int, number: float) -> torch.Tensor:
    x.select(dim, at).mul_(int(number)).add_(1)
    return x


def _put(x: torch.Tensor, dim: int, places: list[int], number: float) -> torch.Tensor:
    return x.index_fill_(dim, _index(x, places), int(number))


def _write_masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[y.expand_as(x) > 0] = 2
    return x


def _write_turned(x: torch.Tensor, a: int, b: int) -> torch.Tensor:
    turned = x.transpose(a, b)
    turned[1:].mul_(2)
    return turned


def _of_masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, y)


def _attention(x: torch.Tensor, causal: bool) -> torch.Tensor:
    x = _image(x)
    return F.scaled_dot_product_attention(x, x.flip(-2), x * 0.5, is_causal=causal)


def _rows(rng: Random, x: torch.Tensor, *_: Any) -> list[Any]:
    return [*_places(rng, x), *_number(rng)]


# -- control flow: in eager as Python has it, for torch's own eager form of it compiles -------------------------------


def _cond(x: torch.Tensor, y: torch.Tensor, number: float) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y.to(x.dtype))
    pred = x.sum() > int(number)
    if not torch.compiler.is_compiling():
        return x * 2 - y if pred else x + y.flip(0)
    return torch.cond(pred, lambda x, y: x * 2 - y, lambda x, y: x + y.flip(0), (x, y))


def _step_of_loop(n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return n + 1, _filled(x + x.flip(0))


def _while(x: torch.Tensor, number: float) -> torch.Tensor:
    n, x, limit = torch.tensor(0, device=x.device), x.detach().clone(), abs(int(number)) + 1
    if torch.compiler.is_compiling():
        return while_loop(lambda n, x: n < limit, _step_of_loop, (n, x))[1]
    while n < limit:
        n, x = _step_of_loop(n, x)
    return x


def _scan(x: torch.Tensor) -> torch.Tensor:
    def combine(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = _filled(carry - row)
        return after, after * 2

    if torch.compiler.is_compiling():
        return scan(combine, x[0].clone(), x)[1]
    carry, rows = x[0].clone(), []
    for row in x:
        carry, out = combine(carry, row)
        rows.append(out)
    return torch.stack(rows)


def _map(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = y.to(x.dtype).amax()

    def one(row: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return row * 2 + total

    if torch.compiler.is_compiling():
        return torch._higher_order_ops.map(one, x, total)
    return torch.stack([one(row, total) for row in x])


# -- sizes and places that stand in tensors ---------------------------------------------------------------------------


def _masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    return x[y > 0].sum().to(x.dtype) + x


def _rows_found(x: torch.Tensor) -> torch.Tensor:
    places = x.flatten(1).sum(1).nonzero().squeeze(1) if x.dim() > 1 else x.nonzero().squeeze(1)
    return x[places].sum(0)


def _at_tensor(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[y.to(torch.int64).sum() % x.size(0)]


def _pairs(x: torch.Tensor, dim: int, at: list[int]) -> torch.Tensor:
    return x[_index(x, at) % x.size(0), _index(x, at).flip(0).unsqueeze(1) % x.size(1)]


def _put_pairs(x: torch.Tensor, dim: int, at: list[int], add: bool) -> torch.Tensor:
    rows = _index(x, at if add else at[:1]) % x.size(0)
    return x.index_put((rows,), x[rows] + 1, accumulate=add)


def _steps(rng: Random, x: torch.Tensor, *_: Any) -> list[Any]:
    return [*_places(rng, x), rng.random() < 0.5]


_UNARY_F: Final = (
    "sigmoid",
    "tanh",
    "sin",
    "cos",
    "erf",
    "exp2",
    "expm1",
    "square",
    "atan",
    "sinh",
    "asinh",
    "log1p",
    "floor",
    "ceil",
    "trunc",
    "frac",
    "round",
    "rsqrt",
    "sqrt",
    "digamma",
    "reciprocal",
    "exp",
    "lgamma",
    "erfc",
)
_UNARY: Final = (
    "neg",
    "abs",
    "sign",
    "relu",
    "isnan",
    "isfinite",
    "logical_not",
    "sgn",
    "positive",
    "square",
)
_ACTIVATIONS: Final = (
    "gelu",
    "silu",
    "mish",
    "softplus",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "softsign",
    "logsigmoid",
    "relu6",
    "tanhshrink",
    "softshrink",
    "hardshrink",
)
_BINARY: Final = (
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "fmax",
    "fmin",
)
_BINARY_F: Final = (
    "atan2",
    "hypot",
    "copysign",
    "logaddexp",
    "logaddexp2",
    "xlogy",
    "ldexp",
    "heaviside",
)
_WRITING: Final = (
    "add_",
    "sub_",
    "mul_",
    "copy_",
    "eq_",
    "logical_and_",
    "lt_",
)
_WRITING_ONE: Final = (
    "zero_",
    "neg_",
    "abs_",
    "relu_",
    "square_",
    "sign_",
)


def _half(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x / (y.abs() + 1)


def _grouped(x: torch.Tensor) -> torch.Tensor:
    x = _image(x)
    return F.group_norm(x, 1, _weights(x.size(1), like=x), None)


def _batch(x: torch.Tensor, training: bool) -> torch.Tensor:
    x = _image(x)
    mean, var = x.new_zeros(x.size(1)), x.new_ones(x.size(1))
    y = F.batch_norm(x, mean, var, training=training, momentum=0.3)
    return y + mean.view(1, -1, 1, 1) if training else y


def _unshuffled(x: torch.Tensor) -> torch.Tensor:
    if not x.numel():
        raise ValueError("eager gives an empty image back as it is, torch's own decomposition in its new sizes")
    return F.pixel_unshuffle(_image(x), 2)


def _ranges(rng: Random, x: torch.Tensor) -> list[Any]:
    return [[rng.randrange(-1, 3) for _ in range(2 * rng.randrange(1, min(x.dim(), 3) + 1))], *_number(rng)]


OPERATORS: Final[dict[str, Operator]] = {
    **{n: Operator(lambda x, n=n: _filled(getattr(torch, n)(x)), kinds="f") for n in _UNARY_F},
    **{n: Operator(getattr(torch, n)) for n in _UNARY},
    **{f"F.{n}": Operator(getattr(F, n), kinds="f") for n in _ACTIVATIONS},
    **{n: Operator(getattr(torch, n), 2) for n in _BINARY},
    **{n: Operator(lambda x, y, n=n: _filled(getattr(torch, n)(x, y)), 2, kinds="f") for n in _BINARY_F},
    **{n: Operator(lambda x, y, n=n: getattr(x, n)(y), 2, writes=True) for n in _WRITING},
    **{n: Operator(lambda x, n=n: getattr(x, n)(), writes=True) for n in _WRITING_ONE},
    "div": Operator(_half, 2),
    "floor_divide": Operator(lambda x, y: torch.floor_divide(x, y.abs() + 1), 2, kinds="i"),
    "remainder": Operator(lambda x, y: torch.remainder(x, y.abs() + 1), 2, kinds="i"),
    "bitwise_and": Operator(torch.bitwise_and, 2, kinds="ib"),
    "bitwise_xor": Operator(torch.bitwise_xor, 2, kinds="ib"),
    "where": Operator(_of_masked, 2),
    "lerp": Operator(lambda x, y: torch.lerp(x, y, 0.25), 2, kinds="f"),
    "addcmul": Operator(lambda x, y: torch.addcmul(x, y, x, value=2), 2),
    "add number": Operator(lambda x, n: x + n, 1, _number),
    "mul number": Operator(lambda x, n: x * n, 1, _number),
    "rsub number": Operator(lambda x, n: n - x, 1, _number),
    "clamp": Operator(lambda x, n: x.clamp(min=-abs(n), max=2), 1, _number, kinds="fi"),
    "pow": Operator(lambda x: _filled(x**2), kinds="fi"),
    "gt number": Operator(lambda x, n: x > n, 1, _number),
    "to": Operator(lambda x, name: _filled(x).to(getattr(torch, name)), 1, _dtype),
    "as other": Operator(lambda x, y: x.type_as(y), 2, kinds="fi"),
    # views
    "transpose": Operator(torch.transpose, 1, _two_dims),
    "permute": Operator(torch.permute, 1, _permutation),
    "movedim": Operator(torch.movedim, 1, _two_dims),
    "unsqueeze": Operator(torch.unsqueeze, 1, _dim),
    "squeeze": Operator(torch.squeeze, 1, _dim),
    "select": Operator(torch.select, 1, _at),
    "slice": Operator(_cut, 1, _bounds),
    "expand": Operator(lambda x, n: x.unsqueeze(0).expand(n, *x.shape), 1, lambda rng, x: [rng.randrange(1, 4)]),
    "expand_as": Operator(lambda x, y: x.expand_as(y), 2),
    "reshape": Operator(torch.reshape, 1, _shape),
    "view": Operator(lambda x, sizes: x.view(sizes), 1, _shape),
    "flatten": Operator(torch.flatten),
    "diagonal": Operator(torch.diagonal, 1, lambda r, x: [r.randrange(-1, 2), *_two_dims(r, x)]),
    "unfold": Operator(lambda x, d, n, s: x.unfold(d, n, s), 1, lambda r, x: [*_dim(r, x), 2, r.randrange(1, 3)]),
    "chunk": Operator(lambda x, d: x.chunk(2, d)[-1], 1, _dim),
    "split": Operator(lambda x, d: x.split(2, d)[0], 1, _dim),
    "unbind": Operator(lambda x, d: x.unbind(d)[0], 1, _dim),
    "memory": Operator(lambda x: x.as_strided((x.numel(),), (1,))),
    # copies
    "contiguous": Operator(lambda x: x.contiguous()),
    "clone": Operator(torch.clone),
    "channels_last": Operator(lambda x: _image(x).contiguous(memory_format=torch.channels_last)),
    "flip": Operator(lambda x, d: x.flip(d), 1, _dim),
    "roll": Operator(lambda x, d, n: x.roll(n, d), 1, _at),
    "rot90": Operator(lambda x, a, b: x.rot90(1, [a, b]), 1, _two_dims),
    "repeat": Operator(lambda x, n: x.repeat(n, *[1] * x.dim()), 1, lambda r, x: [r.randrange(1, 3)]),
    "repeat_interleave": Operator(lambda x, d: x.repeat_interleave(2, d), 1, _dim),
    "tril": Operator(lambda x, k: x.tril(k), 1, lambda r, x: [r.randrange(-2, 3)]),
    "triu": Operator(lambda x, k: x.triu(k), 1, lambda r, x: [r.randrange(-2, 3)]),
    "pad": Operator(lambda x, pads, n: F.pad(x, pads, value=n), 1, _ranges),
    "cat": Operator(lambda x, y, d: torch.cat([x, y, x], d), 2, _dim),
    "stack": Operator(lambda x, y, d: torch.stack([x, y], d), 2, _dim),
    "zeros_like": Operator(lambda x: torch.zeros_like(x) + x),
    "detach": Operator(lambda x: x.detach()),
    # indexing
    "index_select": Operator(lambda x, d, at: x.index_select(d, _index(x, at)), 1, _places),
    "index": Operator(lambda x, d, at: x.movedim(d, 0)[_index(x, at)], 1, _places),
    "index_add": Operator(lambda x, d, at: x.index_add(d, _index(x, at), x.index_select(d, _index(x, at))), 1, _places),
    "index_copy": Operator(lambda x, d, at: x.index_copy(d, _index(x, at[:1]), x.narrow(d, 0, 1)), 1, _places),
    "index_fill": Operator(lambda x, d, at, n: x.index_fill(d, _index(x, at), int(n)), 1, _rows),
    "gather": Operator(
        lambda x, d, at: x.gather(d, _index(x, at).view([-1] + [1] * (x.dim() - 1)).movedim(0, d)), 1, _places
    ),
    "scatter": Operator(lambda x, d, at: x.scatter(d, _index(x, at[:1]).view([1] * x.dim()), 2), 1, _places),
    "masked_fill": Operator(lambda x, y, n: x.masked_fill(y > 0, int(n)), 2, _number),
    "index pairs": Operator(_pairs, 1, _places),
    "index_put": Operator(_put_pairs, 1, _steps, kinds="fi"),
    "take": Operator(lambda x, d, at: x.take(_index(x, at)), 1, _places),
    "scatter_add": Operator(lambda x, d, at: x.scatter_add(d, torch.zeros_like(x, dtype=torch.int64), x), 1, _places),
    "diagonal_scatter": Operator(lambda x: x.diagonal_scatter(torch.zeros_like(x.diagonal()))),
    "bucketize": Operator(lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.1, 2.0], device=x.device)), kinds="f"),
    "select_scatter": Operator(lambda x, d, at: x.select_scatter(x.select(d, 0), d, at), 1, _at),
    # writing
    "write part": Operator(_write_part, 2, _bounds, writes=True, kinds="fi"),
    "write row": Operator(_write_row, 1, lambda r, x: [*_at(r, x), *_number(r)], writes=True, kinds="fi"),
    "index_fill_": Operator(_put, 1, _rows, writes=True),
    "masked_fill_": Operator(lambda x, y, n: x.masked_fill_(y > 0, int(n)), 2, _number, writes=True),
    "write masked": Operator(_write_masked, 2, writes=True, kinds="fi"),
    "write turned": Operator(_write_turned, 1, _two_dims, writes=True, kinds="fi"),
    "index_add_": Operator(
        lambda x, d, at: x.index_add_(d, _index(x, at), x.index_select(d, _index(x, at)).clone()),
        1,
        _places,
        writes=True,
        kinds="fi",
    ),
    "cumsum_": Operator(lambda x, d: _filled(x.cumsum_(d)), 1, _dim, writes=True, kinds="f"),
    "clamp_": Operator(lambda x, n: x.clamp_(min=-abs(n), max=2), 1, _number, writes=True, kinds="fi"),
    "lerp_": Operator(lambda x, y: x.lerp_(y, 0.25), 2, writes=True, kinds="f"),
    "addcmul_": Operator(lambda x, y: x.addcmul_(y, y, value=2), 2, writes=True, kinds="fi"),
    "fill_diagonal_": Operator(lambda x: x.fill_diagonal_(2), writes=True),
    # reductions
    "sum": Operator(lambda x, d, k: x.sum(d, keepdim=k), 1, _dims),
    "sum all": Operator(torch.sum),
    "prod": Operator(lambda x, d, k: _filled(x.prod(d, keepdim=k)), 1, _dim_keep, kinds="fi"),
    "nansum": Operator(lambda x, d, k: x.nansum(d, keepdim=k), 1, _dims, kinds="f"),
    "std": Operator(lambda x, d, k: (x * 1.0).std(d, correction=1, keepdim=k).nan_to_num(0), 1, _dims, kinds="f"),
    "amax all": Operator(lambda x: x.amax()),
    "aminmax": Operator(lambda x, d, k: x.aminmax(dim=d, keepdim=k)[0], 1, _dim_keep),
    "any all": Operator(torch.any),
    "argmax all": Operator(torch.argmax, kinds="fi"),
    # which of several equal elements gets the gradient is not defined
    "kthvalue": Operator(lambda x, d, k: x.detach().kthvalue(1, d, k)[0], 1, _dim_keep, kinds="fi"),
    "mode": Operator(lambda x, d, k: x.detach().mode(d, k)[0], 1, _dim_keep, kinds="fi"),
    "cummin": Operator(lambda x, d: x.cummin(d)[0], 1, _dim),
    "logcumsumexp": Operator(torch.logcumsumexp, 1, _dim, kinds="f"),
    "diff": Operator(lambda x, d: x.diff(dim=d), 1, _dim, kinds="fi"),
    "trace": Operator(torch.trace),
    # control flow
    "cond": Operator(_cond, 2, _number, kinds="f"),
    "while": Operator(_while, 1, _number, kinds="f"),
    "scan": Operator(_scan, kinds="f"),
    "map": Operator(_map, 2, kinds="f"),
    # sizes and places that stand in tensors
    "masked": Operator(_masked, 2, kinds="fi"),
    "rows found": Operator(_rows_found, kinds="fi"),
    "at tensor": Operator(_at_tensor, 2),
    "split sizes": Operator(lambda x, d: torch.tensor_split(x, 2, d)[-1], 1, _dim),
    "mean": Operator(lambda x, d, k: x.mean(d, keepdim=k), 1, _dims, kinds="f"),
    "amax": Operator(lambda x, d, k: x.amax(d, keepdim=k), 1, _dims),
    "amin": Operator(lambda x, d, k: x.amin(d, keepdim=k), 1, _dims),
    "any": Operator(lambda x, d, k: x.any(d, keepdim=k), 1, _dim_keep),
    "all": Operator(lambda x, d, k: x.all(d, keepdim=k), 1, _dim_keep),
    "max": Operator(lambda x, d, k: x.max(d, keepdim=k)[0], 1, _dim_keep),
    "argmax": Operator(lambda x, d, k: x.argmax(d, keepdim=k), 1, _dim_keep, kinds="fi"),
    "argmin": Operator(lambda x, d, k: x.argmin(d, keepdim=k), 1, _dim_keep, kinds="fi"),
    "var": Operator(lambda x, d, k: x.var(d, correction=0, keepdim=k), 1, _dims, kinds="f"),
    "logsumexp": Operator(lambda x, d, k: x.logsumexp(d, keepdim=k), 1, _dims, kinds="f"),
    "norm": Operator(lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k), 1, _dims, kinds="f"),
    "count_nonzero": Operator(lambda x, d: x.count_nonzero(d), 1, _dim),
    "cumsum": Operator(torch.cumsum, 1, _dim),
    "cummax": Operator(lambda x, d: x.cummax(d)[0], 1, _dim),
    "cumprod": Operator(lambda x, d: _filled(x.cumprod(d)), 1, _dim),
    "sort": Operator(lambda x, d: x.sort(d)[0], 1, _dim),
    "stable order": Operator(lambda x, d: x.sort(dim=d, stable=True)[1], 1, _dim),
    "topk": Operator(lambda x, d: x.detach().topk(1, d)[0], 1, _dim, kinds="fi"),
    # of a value whose elements share memory eager's median is what happened to lie there
    "median": Operator(lambda x, d: x.contiguous().median(d)[0], 1, _dim, kinds="fi"),
    "softmax": Operator(lambda x, d: x.softmax(d), 1, _dim, kinds="f"),
    "log_softmax": Operator(lambda x, d: x.log_softmax(d), 1, _dim, kinds="f"),
    "normalize": Operator(lambda x, d: F.normalize(x, dim=d, eps=0.1), 1, _dim, kinds="f"),
    # products and layers
    "matmul": Operator(lambda x: x @ x.mT, kinds="f"),
    "matmul of two": Operator(torch.matmul, 2, kinds="f"),
    "linear": Operator(lambda x: F.linear(x, _weights(3, x.size(-1), like=x)), kinds="f"),
    "outer": Operator(lambda x, y: torch.outer(x.flatten()[:5], y.flatten()[:4]), 2, kinds="fi"),
    "conv2d": Operator(_conv, 1, lambda r, x: [r.choice([1, 2, 3]), r.randrange(2), r.random() < 0.5], kinds="f"),
    "max_pool2d": Operator(lambda x: F.max_pool2d(_image(x), 2), kinds="f"),
    "avg_pool2d": Operator(lambda x: F.avg_pool2d(_image(x), 2), kinds="f"),
    "interpolate": Operator(lambda x: F.interpolate(_image(x), scale_factor=2), kinds="f"),
    "layer_norm": Operator(lambda x: F.layer_norm(x, x.shape[-1:], eps=0.1), kinds="f"),
    "group_norm": Operator(_grouped, kinds="f"),
    "batch_norm": Operator(_batch, 1, lambda r, x: [r.random() < 0.5], kinds="f"),
    "attention": Operator(_attention, 1, lambda r, x: [r.random() < 0.5], kinds="f"),
    "glu": Operator(F.glu, 1, _dim, kinds="f"),
    "embedding": Operator(
        lambda x: F.embedding(x.abs().clamp(max=4).long(), _weights(5, 3, like=x.float())), kinds="i"
    ),
    "mse": Operator(lambda x, y: F.mse_loss(*torch.broadcast_tensors(x, y)), 2, kinds="f"),
    "pixel_shuffle": Operator(_unshuffled, kinds="f"),
}
