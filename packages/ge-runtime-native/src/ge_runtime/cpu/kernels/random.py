"""Random numbers: counter-based, so that the same seed and offset give the same numbers in every run and thread.

The stream is Philox4x32-10 with the key as seed and the 128-bit counter advanced once for four words, as the V2
operators with explicit key and counter define it. Operators whose device stream is not public use the same generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ge_graph.dtypes import DataType
from ge_runtime.cpu.kernels.numerics import keep_bits, wide
from ge_runtime.cpu.opaque import opaque
from ge_runtime.cpu.registry import kernel, rows
from ge_runtime.cpu.values import listed, one, torch_dtype
from ge_runtime.errors import refused

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_U64 = 2**64


def philox(key: int, counter: int, words: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The first words of the Philox4x32-10 stream of a 64-bit key from a 128-bit counter on."""
    blocks = -(-words // 4)
    low, high = counter % _U64, counter // _U64 % _U64
    position = np.arange(blocks, dtype=np.uint64) + np.uint64(low)
    carry = (position < np.uint64(low)).astype(np.uint64)
    top = np.uint64(high) + carry
    c = [position & _LOW, position >> _SHIFT, top & _LOW, top >> _SHIFT]
    k0, k1 = key % _U64 & 0xFFFFFFFF, key % _U64 >> 32
    for _ in range(10):
        a, b = c[0] * _M0, c[2] * _M1
        c = [(b >> _SHIFT) ^ c[1] ^ np.uint64(k0), b & _LOW, (a >> _SHIFT) ^ c[3] ^ np.uint64(k1), a & _LOW]
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack(c, axis=1).reshape(-1)[:words].astype(np.uint32)


def uniform(key: int, counter: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1): the mantissa bits of one word each (two words for double)."""
    if dtype is torch.float64:
        w = philox(key, counter, 2 * count).astype(np.uint64).reshape(-1, 2)
        return torch.from_numpy(((w[:, 0] & np.uint64(0xFFFFF)) * 2.0**32 + w[:, 1]) * 2.0**-52)
    bits = {torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}.get(dtype)
    if bits is None:
        raise refused("random", f"no uniform numbers of {dtype}")
    words = philox(key, counter, count) & np.uint32(2**bits - 1)
    return torch.from_numpy(words.astype(np.float32) * np.float32(2.0**-bits)).to(dtype)


def normal(key: int, counter: int, count: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers by Box and Muller from pairs of words."""
    words = philox(key, counter, count + count % 2).astype(np.float64).reshape(-1, 2)
    u1 = np.maximum((words[:, 0] + 0.5) * 2.0**-32, 1e-7)
    radius, angle = np.sqrt(-2.0 * np.log(u1)), 2.0 * math.pi * words[:, 1] * 2.0**-32
    both = np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1).reshape(-1)[:count]
    return torch.from_numpy(both).to(dtype)


def integers(key: int, counter: int, count: int, low: int, high: int) -> Tensor:
    """int64 numbers in [low, high), all equally likely: 64-bit words, those beyond the last whole span drawn again."""
    span = high - low
    if span <= 0:
        raise refused("random", f"from={low} is not less than to={high}, there is no number to draw")
    last = _U64 - _U64 % span - 1
    words = _words64(key, counter, count)
    while (again := words > np.uint64(last)).any():
        counter += count + 1
        words[again] = _words64(key, counter, int(again.sum()))
    drawn = words % np.uint64(span) + np.uint64(low % _U64)  # wraps around, as two's complement does
    return torch.from_numpy(drawn.view(np.int64))


def _words64(key: int, counter: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    w = philox(key, counter, 2 * count).astype(np.uint64).reshape(-1, 2)
    return w[:, 0] | (w[:, 1] << _SHIFT)


def _key_counter(key: Tensor, counter: Tensor) -> tuple[int, int]:
    k = one(key.reshape(-1).view(torch.int64).tolist()[:1]) % _U64
    low, high = (v % _U64 for v in counter.reshape(-1).view(torch.int64).tolist())
    return k, low + high * _U64


def _seeded(seed: Tensor, offset: Tensor) -> tuple[int, int]:
    """Key and counter of the operators with int64 seed and offset; seed -1 with offset 0 asks for a fresh seed."""
    s, o = int(seed.reshape(-1)[0]), int(offset.reshape(-1)[-1])
    if s == -1 and o == 0:
        s = int(torch.randint(0, 2**62, ()))
    return s % _U64, (o % _U64) * _U64


def _attribute_seed(seed: int, seed2: int) -> int:
    """The key of operators whose seeds are attributes; both 0 asks for a fresh one, drawn from torch's generator."""
    if seed == 0 and seed2 == 0:
        return int(torch.randint(0, 2**62, ()))
    return (seed + seed2 * 0x9E3779B97F4A7C15) % _U64


Draw: TypeAlias = "Callable[[int, int, int, torch.dtype], Tensor]"


def _of_shape(shape: Any, *_: Any, dtype: int = DataType.DT_FLOAT, **__: Any) -> tuple[list[int], torch.dtype]:
    """Size and type of what is drawn."""
    return listed(shape), torch_dtype(dtype)


def _of_bounds(shape: Any, low: Tensor, *_: Any, **__: Any) -> tuple[list[int], torch.dtype]:
    return listed(shape), low.dtype


def _keyed(draw: Draw) -> Callable[..., Tensor]:
    """Numbers of a shape from an explicit key and counter."""

    @opaque(_of_shape)
    def run(shape: Any, key: Tensor, counter: Tensor, alg: Tensor, *, dtype: int = DataType.DT_FLOAT) -> Tensor:
        sizes = listed(shape)
        return draw(*_key_counter(key, counter), math.prod(sizes), torch_dtype(dtype)).reshape(sizes)

    return run


def _by_seeds(draw: Draw) -> Callable[..., Tensor]:
    """Numbers of a shape from seeds that are attributes."""

    @opaque(_of_shape)
    def run(shape: Any, *, dtype: int, seed: int = 0, seed2: int = 0) -> Tensor:
        sizes = listed(shape)
        return draw(_attribute_seed(seed, seed2), 0, math.prod(sizes), torch_dtype(dtype)).reshape(sizes)

    return run


rows(
    {
        "StatelessRandomUniformV2": _keyed(uniform),
        "StatelessRandomNormalV2": _keyed(normal),
        "RandomUniform": _by_seeds(uniform),
        "RandomStandardNormal": _by_seeds(normal),
    },
    host=("shape",),
)


@kernel("StatelessRandomUniformIntV2", host=("shape",))
@opaque(lambda shape, key, counter, alg, low, high: (listed(shape), low.dtype))
def stateless_random_uniform_int_v2(
    shape: Any, key: Tensor, counter: Tensor, alg: Tensor, minval: Tensor, maxval: Tensor
) -> Tensor:
    """Integers in [minval, maxval) from an explicit key and counter: a word (two for int64) modulo the span."""
    sizes = listed(shape)
    low, high = int(minval.reshape(())), int(maxval.reshape(()))
    if high <= low:
        raise refused("StatelessRandomUniformIntV2", f"minval {low} is not less than maxval {high}")
    start, count = _key_counter(key, counter), math.prod(sizes)
    words = _words64(*start, count) if minval.dtype is torch.int64 else philox(*start, count).astype(np.uint64)
    drawn = words % np.uint64(high - low) + np.uint64(low % _U64)
    return torch.from_numpy(drawn.view(np.int64)).to(minval.dtype).reshape(sizes)


@kernel("StatelessBernoulli", host=("shape",))
@opaque(_of_shape)
def stateless_bernoulli(
    shape: Any, prob: Tensor, seed: Tensor, offset: Tensor, *, dtype: int = DataType.DT_FLOAT
) -> Tensor:
    """1 with probability prob, else 0; prob 0 gives 0, prob 1 gives 1."""
    sizes = listed(shape)
    drawn = uniform(*_seeded(seed, offset), math.prod(sizes), torch.float32).reshape(sizes)
    return (drawn < prob.to(torch.float32)).to(torch_dtype(dtype))


@kernel("StatelessRandperm", host=("n",), ignores=("layout",))
@opaque(lambda n, *_, dtype=DataType.DT_INT64: ([one(n)], torch_dtype(dtype)))
def stateless_randperm(n: Any, seed: Tensor, offset: Tensor, *, dtype: int = DataType.DT_INT64) -> Tensor:
    """A permutation of 0 … n-1: the order of one random key a place."""
    count = one(n)
    key, counter = _seeded(seed, offset)
    words = philox(key, counter, 2 * count).astype(np.uint64).reshape(-1, 2)
    order = np.argsort((words[:, 0] << _SHIFT) | words[:, 1], kind="stable")
    return torch.from_numpy(order.astype(np.int64)).to(torch_dtype(dtype))


@kernel("RandomUniformInt", host=("shape",))
@opaque(_of_bounds)
def random_uniform_int(shape: Any, min: Tensor, max: Tensor, *, seed: int = 0, seed2: int = 0) -> Tensor:
    """Integers in [min, max); seeds are attributes."""
    sizes = listed(shape)
    low, high = int(min.reshape(())), int(max.reshape(()))
    return integers(_attribute_seed(seed, seed2), 0, math.prod(sizes), low, high).to(min.dtype).reshape(sizes)


@kernel("MultinomialWithReplacement", source="row weights need not sum to 1; without replacement by exponential races")
@opaque(lambda x, *_, numsamples, **__: ([*x.shape[:-1], numsamples], torch.int64))
def multinomial_with_replacement(
    x: Tensor, seed: Tensor, offset: Tensor, *, numsamples: int, replacement: bool = False
) -> Tensor:
    """numsamples category numbers a row, with probability proportional to x."""
    rows = x.reshape(-1, x.shape[-1]).double()
    if not bool(torch.isfinite(rows).all()) or bool((rows < 0).any()):
        raise refused("Multinomial", "a weight is negative, infinite or not a number")
    if bool((rows.sum(-1) == 0).any()):
        raise refused("Multinomial", "a row has no weight that is not 0")
    key, counter = _seeded(seed, offset)
    if replacement:
        drawn = uniform(key, counter, rows.shape[0] * numsamples, torch.float64).reshape(-1, numsamples)
        edges = torch.cumsum(rows, -1)
        picked = torch.searchsorted(edges, drawn * edges[:, -1:], right=True).clamp(max=x.shape[-1] - 1)
    else:
        if numsamples > x.shape[-1]:
            raise refused("Multinomial", f"{numsamples} of {x.shape[-1]} categories without replacement")
        race = -torch.log1p(-uniform(key, counter, rows.numel(), torch.float64)).reshape(rows.shape) / rows
        picked = torch.argsort(race, -1)[:, :numsamples]
    return picked.reshape([*x.shape[:-1], numsamples])


# Draws of given distributions, for each element of a tensor of parameters


def _generator(key: int) -> torch.Generator:
    return torch.Generator().manual_seed(key % 2**63)


def _non_negative(op: str, name: str, x: Tensor) -> Tensor:
    if bool((~(x >= 0)).any()):
        raise refused(op, f"{name} has an element that is negative or not a number")
    return x.double()


@kernel("RandomPoisson", host=("shape",))
@opaque(lambda shape, rate, *, dtype=DataType.DT_INT64, **_: ([*listed(shape), *rate.shape], torch_dtype(dtype)))
def random_poisson(
    shape: Any, rate: Tensor, *, dtype: int = DataType.DT_INT64, seed: int = 0, seed2: int = 0
) -> Tensor:
    """``shape`` Poisson numbers of each rate, of shape + rate's shape."""
    rates = _non_negative("RandomPoisson", "rate", rate).expand([*listed(shape), *rate.shape])
    return torch.poisson(rates, _generator(_attribute_seed(seed, seed2))).to(torch_dtype(dtype))


@kernel("RandomGamma", host=("shape",))
@opaque(lambda shape, alpha, **_: ([*listed(shape), *alpha.shape], alpha.dtype))
def random_gamma(shape: Any, alpha: Tensor, *, seed: int = 0, seed2: int = 0) -> Tensor:
    """``shape`` gamma numbers of scale 1 of each concentration, of shape + alpha's shape."""
    concentration = _non_negative("RandomGamma", "alpha", alpha).expand([*listed(shape), *alpha.shape])
    drawn = torch.ops.aten._standard_gamma(concentration, _generator(_attribute_seed(seed, seed2)))
    return drawn.to(alpha.dtype)


rows({"RandomGammaGrad": lambda alpha, sample: torch.ops.aten._standard_gamma_grad(alpha, sample)})


@kernel("StatelessRandomBinomial", host=("shape",))
@opaque(_of_shape)
def stateless_random_binomial(
    shape: Any, seed: Tensor, counts: Tensor, probs: Tensor, *, dtype: int = DataType.DT_INT32
) -> Tensor:
    """How many of counts trials succeed, each with probability probs; both are broadcast to the shape."""
    sizes = listed(shape)
    trials = _non_negative("StatelessRandomBinomial", "counts", counts).expand(sizes)
    chances = _non_negative("StatelessRandomBinomial", "probs", probs).expand(sizes)
    if bool((chances > 1).any()):
        raise refused("StatelessRandomBinomial", "probs has an element above 1")
    first, second = (int(s) for s in seed.reshape(-1).tolist())
    drawn = torch.binomial(trials, chances, _generator((first + second * 0x9E3779B97F4A7C15) % _U64))
    return drawn.to(torch_dtype(dtype))


# Dropout: a mask of bits, least significant first, in whole blocks of 128 bits


@kernel("StatelessDropOutGenMask", "DropOutGenMask", host=("shape",))
@opaque(lambda shape, *_, **__: ([-(-math.prod(listed(shape)) // 128) * 16], torch.uint8))
def drop_out_gen_mask(
    shape: Any,
    prob: Tensor,
    seed: Tensor | int = 0,
    seed1: Tensor | None = None,
    offset: Tensor | None = None,
    *,
    seed2: int = 0,
) -> Tensor:
    """Bits that are 1 with probability prob (what is kept), packed into bytes; padding bits are 0."""
    count = math.prod(listed(shape))
    if isinstance(seed, Tensor):
        key, counter = _seeded(seed, torch.zeros(1, dtype=torch.int64) if offset is None else offset)
    else:
        key, counter = _attribute_seed(seed, seed2), 0
    bits = uniform(key, counter, count, torch.float32) < prob.reshape(()).to(torch.float32)
    padded = np.zeros(-(-count // 128) * 128, dtype=bool)
    padded[:count] = bits.numpy()
    return torch.from_numpy(np.packbits(padded, bitorder="little"))


def _kept(x: Tensor, kept: Tensor, keep_prob: Tensor) -> Tensor:
    """x / keep_prob where it is kept, else 0; the reciprocal is taken first."""
    return torch.where(kept, x * (1.0 / keep_prob.reshape(()).to(x.dtype)), torch.zeros((), dtype=x.dtype))


@kernel("DropOutDoMask")
def drop_out_do_mask(x: Tensor, mask: Tensor, keep_prob: Tensor) -> Tensor:
    """x scaled where the mask's bit is set, else 0."""
    return _kept(wide(x), keep_bits(mask, x.shape), keep_prob).to(x.dtype)


# a byte an element
rows({"DropOutDoMaskV3": lambda x, mask, keep_prob: _kept(x, mask.reshape(x.shape) != 0, keep_prob)})
