"""Random numbers. Every run draws anew from the engine's generator, in graph order.

Seeds are not baked into the graph: an operator with seed 0 and seed2 0 (or seed -1 and offset 0 where GE defines that
pair) asks the engine for fresh numbers, so two runs of one graph differ as two eager calls do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ge_converters.base.dtypes import cast, dtype_promote, part_type
from ge_converters.base.errors import Refusal
from ge_converters.base.support import BF16, F16, F32, F64, I64, Support
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.compute_types import carrier
from ge_converters.emit.shapes import ints, shape_operand
from ge_converters.registry import declare_supported, define, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

aten = torch.ops.aten
_D = DataType


def _sizes(sizes: Any) -> Any:
    return shape_operand(sizes) if len(sizes) else ints([])


def _sizes_like(x: Tensor, meta: TensorSpec) -> Any:
    static = [s for s in meta.size if isinstance(s, int)]
    return ints(static) if len(static) == meta.rank else ge.Shape(x, dtype=_D.DT_INT64)


def _uniform(sizes: Any, dtype: DataType) -> Tensor:
    """Samples in [0, 1); bfloat16 keeps the 8 bits that it can hold, so that none is rounded up to 1."""
    if dtype.is_complex:
        part = part_type(dtype)
        return ge.Complex(_uniform(sizes, part), _uniform(sizes, part), Tout=dtype)
    if dtype == _D.DT_BF16:
        drawn = ge.RandomUniform(sizes, dtype=_D.DT_FLOAT)
        grid = ge.Floor(arithmetic("Mul", drawn, 256.0, _D.DT_FLOAT))
        return cast(arithmetic("Mul", grid, 1.0 / 256.0, _D.DT_FLOAT), dtype)
    return ge.RandomUniform(sizes, dtype=dtype)


def _normal(sizes: Any, dtype: DataType) -> Tensor:
    """Standard normal samples; of complex ones each part has half the variance."""
    if dtype.is_complex:
        part = part_type(dtype)
        parts = [arithmetic("Mul", _normal(sizes, part), math.sqrt(0.5), part) for _ in range(2)]
        return ge.Complex(*parts, Tout=dtype)
    inner = _D.DT_FLOAT if dtype == _D.DT_BF16 else dtype
    return cast(ge.RandomStandardNormal(sizes, dtype=inner), dtype)


_SIZED = [Support([2, 3]).shape_only(), Support([]).shape_only(), Support([0, 2]).shape_only()]
_TYPED = [Support([2, 3], dtype=d).shape_only() for d in (torch.float16, torch.bfloat16, torch.float64)]
_LIKE = [Support(f(2, 3)).shape_only() for f in (F32, F16, BF16, F64)]


@declare_supported([*_SIZED, *_TYPED])
@register_fx_node_ge_converter(aten.rand.default, source="aten rand; GE RandomUniform")
def rand(size: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Uniform samples in [0, 1).

    Emits:  RandomUniform.
    """
    return _uniform(_sizes(size), meta_outputs.dtype)


@declare_supported([*_SIZED, *_TYPED])
@register_fx_node_ge_converter(aten.randn.default, source="aten randn; GE RandomStandardNormal")
def randn(size: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Standard normal samples.

    Emits:  RandomStandardNormal.
    """
    return _normal(_sizes(size), meta_outputs.dtype)


@declare_supported([*_LIKE, Support(F32(2), dtype=torch.float16).shape_only()])
@register_fx_node_ge_converter(aten.rand_like.default, source="aten rand_like; GE RandomUniform")
def rand_like(self: Tensor, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Uniform samples in the shape of self."""
    return _uniform(_sizes_like(self, meta_outputs), meta_outputs.dtype)


@declare_supported([*_LIKE, Support(F32(2), dtype=torch.float16).shape_only()])
@register_fx_node_ge_converter(aten.randn_like.default, source="aten randn_like; GE RandomStandardNormal")
def randn_like(self: Tensor, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Standard normal samples in the shape of self."""
    return _normal(_sizes_like(self, meta_outputs), meta_outputs.dtype)


def _integers(low: Any, high: Any, sizes: Any, dtype: DataType) -> Tensor:
    bounds = dtype_promote(low, high, target_dtype=_D.DT_INT64)
    return cast(ge.RandomUniformInt(sizes, *bounds), dtype)


@declare_supported(
    [
        Support(5, [2, 3]).shape_only(),
        Support(9, [4], dtype=torch.int32).shape_only(),
        Support(3, [], dtype=torch.float32).shape_only(),
    ]
)
@register_fx_node_ge_converter(aten.randint.default, source="aten randint; GE RandomUniformInt")
def randint(high: Any, size: Any, *, dtype: Any = torch.int64, meta_outputs: TensorSpec) -> Tensor:
    """Whole numbers from 0 up to, not including, high."""
    return _integers(0, high, _sizes(size), meta_outputs.dtype)


@declare_supported([Support(-3, 5, [2, 3]).shape_only(), Support(2, 9, [4], dtype=torch.int32).shape_only()])
@register_fx_node_ge_converter(aten.randint.low, source="aten randint.low; GE RandomUniformInt")
def randint_low(low: Any, high: Any, size: Any, *, dtype: Any = torch.int64, meta_outputs: TensorSpec) -> Tensor:
    """Whole numbers from low up to, not including, high."""
    return _integers(low, high, _sizes(size), meta_outputs.dtype)


@declare_supported(
    [Support(5).shape_only(), Support(4, dtype=torch.int32).shape_only(), Support(0).shape_only(), Support(1)]
)
@register_fx_node_ge_converter(aten.randperm.default, source="aten randperm; GE StatelessRandperm")
def randperm(n: Any, *, dtype: Any = torch.int64, meta_outputs: TensorSpec) -> Tensor:
    """0 to n - 1 in random order.

    Emits:  StatelessRandperm with seed -1, offset 0: a fresh order each run.
    """
    count, seed, offset = dtype_promote(n, -1, 0, target_dtype=_D.DT_INT64)
    return ge.StatelessRandperm(count, seed, offset, dtype=meta_outputs.dtype)


# -- coins and dropout -----------------------------------------------------------------------------------------------


def bernoulli_of(sizes: Any, probability: Tensor, dtype: DataType) -> Tensor:
    """1 with the given probability, else 0; a fresh draw each run."""
    seed, offset = dtype_promote(-1, 0, target_dtype=_D.DT_INT64)
    return ge.StatelessBernoulli(sizes, probability, seed, offset, dtype=dtype)


def _generator_is_default(generator: Any) -> None:
    if generator is not None:
        raise Refusal("generator: a graph draws from the engine's generator; call without one")


@declare_supported(
    [Support(f(2, 3), p).shape_only() for f in (F32, F16, BF16, I64) for p in (0.5,)]
    + [Support(F32(2, 3), 0.0), Support(F32(2, 3), 1.0)]
)
@register_fx_node_ge_converter(aten.bernoulli.p, source="aten bernoulli.p; GE StatelessBernoulli")
def bernoulli_p(self: Tensor, p: Any = 0.5, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """1 with probability p, else 0, in the shape and type of self.

    Emits:  StatelessBernoulli with seed -1, offset 0.
    """
    _generator_is_default(generator)
    return bernoulli_of(_sizes_like(self, meta_outputs), dtype_promote(p, target_dtype=_D.DT_FLOAT), meta_outputs.dtype)


@declare_supported(
    [Support(f(2, 3, low=0, high=1)).shape_only() for f in (F32, F16, BF16)] + [Support(F32(value=[0.0, 1.0]))]
)
@register_fx_node_ge_converter(aten.bernoulli.default, source="aten bernoulli; GE StatelessBernoulli")
def bernoulli(self: Tensor, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """1 with the probability that self holds, else 0."""
    _generator_is_default(generator)
    probability = cast(self, carrier("StatelessBernoulli", self.dtype, "prob"))
    return bernoulli_of(_sizes_like(self, meta_outputs), probability, meta_outputs.dtype)


@declare_supported([Support(F32(2, 3), F32(2, 3, low=0, high=1)).shape_only(), Support(I64(2), F32(value=[0.0, 1.0]))])
@register_fx_node_ge_converter(aten.bernoulli.Tensor, source="aten bernoulli.Tensor; GE StatelessBernoulli")
def bernoulli_tensor(self: Tensor, p: Tensor, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """1 with the probability that p holds, else 0, in the shape and type of self."""
    _generator_is_default(generator)
    probability = cast(p, carrier("StatelessBernoulli", p.dtype, "prob"))
    return bernoulli_of(_sizes_like(self, meta_outputs), probability, meta_outputs.dtype)


@declare_supported(
    [Support(f(2, 3), 0.0, True) for f in (F32, F16, BF16, F64)]
    + [
        Support(F32(2, 3), 0.5, False),
        Support(F32(2, 3), 0.5, True).shape_only(),
        Support(F16(2, 3), 0.5, None).shape_only(),
        Support(F32(2, 3), 1.0, True),
    ]
)
@register_fx_node_ge_converter(aten.native_dropout.default, source="aten native_dropout; GE StatelessBernoulli, Mul")
def native_dropout(input: Tensor, p: Any, train: bool | None, *, meta_outputs: Any) -> tuple[Tensor, Tensor]:
    """Elements kept with probability 1 - p and scaled by 1 / (1 - p), and the mask of those kept.

    Emits:  StatelessBernoulli, Cast, Mul, Mul. The mask is bool with one entry per element, as in eager; GE's packed
        masks cannot be that result.
    """
    sizes = _sizes_like(input, meta_outputs[0])
    if train is not None and not train:
        return input, ge.Fill(sizes, ge.Const(True, dtype=_D.DT_BOOL))
    if p == 1:
        return arithmetic("Mul", input, 0.0, input.dtype), ge.Fill(sizes, ge.Const(False, dtype=_D.DT_BOOL))
    kept = bernoulli_of(sizes, dtype_promote(1.0 - p, target_dtype=_D.DT_FLOAT), _D.DT_BOOL)
    masked = ge.Mul(input, cast(kept, input.dtype))
    return arithmetic("Mul", masked, 1.0 / (1.0 - p), input.dtype), kept


# -- other distributions ---------------------------------------------------------------------------------------------


@declare_supported([*_LIKE, Support(F32(2, 3), -1.0, 3.0).shape_only(), Support(F16(2), 2.0, 2.5).shape_only()])
@register_fx_node_ge_converter(aten.uniform.default, source="aten uniform; GE RandomUniform")
def uniform(
    self: Tensor, from_: Any = 0.0, to: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Uniform samples between two numbers, in the shape and type of self."""
    _generator_is_default(generator)
    dtype = meta_outputs.dtype
    drawn = _uniform(_sizes_like(self, meta_outputs), dtype)
    if (from_, to) == (0.0, 1.0):
        return drawn
    return arithmetic("Add", arithmetic("Mul", drawn, to - from_, dtype), from_, dtype)


@declare_supported([*_LIKE, Support(F32(2, 3), -1.0, 3.0).shape_only()])
@register_fx_node_ge_converter(aten.normal_functional.default, source="aten normal_functional; GE RandomStandardNormal")
def normal_functional(
    self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Normal samples of a mean and a standard deviation, in the shape and type of self."""
    _generator_is_default(generator)
    dtype = meta_outputs.dtype
    drawn = _normal(_sizes_like(self, meta_outputs), dtype)
    if (mean, std) == (0.0, 1.0):
        return drawn
    return arithmetic("Add", arithmetic("Mul", drawn, std, dtype), mean, dtype)


@declare_supported(
    [Support(F32(4, low=0.1, high=1), 2).shape_only(), Support(F32(3, 4, low=0.1, high=1), 2).shape_only()]
)
@register_fx_node_ge_converter(aten.multinomial.default, source="aten multinomial; GE MultinomialWithReplacement")
def multinomial(
    self: Tensor, num_samples: Any, replacement: bool = False, *, generator: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Indices drawn with probabilities proportional to self."""
    _generator_is_default(generator)
    if isinstance(num_samples, Tensor):
        raise Refusal("num_samples is symbolic, GE MultinomialWithReplacement takes a number; make it static")
    seed, offset = dtype_promote(-1, 0, target_dtype=_D.DT_INT64)
    weights = cast(self, carrier("MultinomialWithReplacement", self.dtype))
    return ge.MultinomialWithReplacement(weights, seed, offset, numsamples=num_samples, replacement=replacement)


def _drawn_like(name: str) -> Callable[..., Tensor]:
    """Distributions that are a function of uniform or normal samples."""

    def exponential(self: Tensor, lambd: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
        _generator_is_default(generator)
        u = _float_uniform(self, meta_outputs)
        waited = ge.Neg(ge.Log1p(ge.Neg(u)))
        return cast(arithmetic("RealDiv", waited, lambd, u.dtype), meta_outputs.dtype)

    def geometric(self: Tensor, p: Any, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
        _generator_is_default(generator)
        u = _float_uniform(self, meta_outputs)
        failures = arithmetic("RealDiv", ge.Log1p(ge.Neg(u)), math.log1p(-p) if p < 1 else -math.inf, u.dtype)
        return cast(ge.Maximum(ge.Ceil(failures), ge.Const(1.0, dtype=u.dtype)), meta_outputs.dtype)

    def cauchy(
        self: Tensor, median: Any = 0.0, sigma: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec
    ) -> Tensor:
        _generator_is_default(generator)
        u = _float_uniform(self, meta_outputs)
        turned = ge.Tan(arithmetic("Mul", arithmetic("Sub", u, 0.5, u.dtype), math.pi, u.dtype))
        return cast(arithmetic("Add", arithmetic("Mul", turned, sigma, u.dtype), median, u.dtype), meta_outputs.dtype)

    def log_normal(
        self: Tensor, mean: Any = 1.0, std: Any = 2.0, *, generator: Any = None, meta_outputs: TensorSpec
    ) -> Tensor:
        _generator_is_default(generator)
        inner = _D.DT_DOUBLE if meta_outputs.dtype == _D.DT_DOUBLE else _D.DT_FLOAT
        drawn = _normal(_sizes_like(self, meta_outputs), inner)
        return cast(ge.Exp(arithmetic("Add", arithmetic("Mul", drawn, std, inner), mean, inner)), meta_outputs.dtype)

    made: dict[str, Callable[..., Tensor]] = {
        "exponential": exponential,
        "geometric": geometric,
        "cauchy": cauchy,
        "log_normal": log_normal,
    }
    return made[name]


def _float_uniform(self: Tensor, meta: TensorSpec) -> Tensor:
    inner = _D.DT_DOUBLE if meta.dtype == _D.DT_DOUBLE else _D.DT_FLOAT
    return ge.RandomUniform(_sizes_like(self, meta), dtype=inner)


for _name in ("exponential", "cauchy", "log_normal"):
    define(getattr(aten, _name).default, "RandomUniform", _drawn_like(_name), _LIKE, "Dtypes: floats.")
define(
    aten.geometric.default,
    "RandomUniform",
    _drawn_like("geometric"),
    [Support(f(2, 3), 0.3).shape_only() for f in (F32, F16, I64)],
)


def _randint_like(self: Tensor, high: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    return _integers(0, high, _sizes_like(self, meta_outputs), meta_outputs.dtype)


def _randint_like_low(self: Tensor, low: Any, high: Any, *, dtype: Any = None, meta_outputs: TensorSpec) -> Tensor:
    return _integers(low, high, _sizes_like(self, meta_outputs), meta_outputs.dtype)


define(
    aten.randint_like.default, "RandomUniformInt", _randint_like, [Support(f(2, 3), 5).shape_only() for f in (F32, I64)]
)
define(
    aten.randint_like.low_dtype,
    "RandomUniformInt",
    _randint_like_low,
    [Support(f(2, 3), -2, 5).shape_only() for f in (F32, I64)],
)


def _normal_of(mean: Any, std: Any, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Normal samples; mean, std or both are tensors that broadcast."""
    _generator_is_default(generator)
    dtype = meta_outputs.dtype
    if all(isinstance(s, int) for s in meta_outputs.size):
        sizes: Any = ints(meta_outputs.size)  # type: ignore[arg-type]
    else:
        sizes = ge.Shape(arithmetic("Add", mean, std, dtype), dtype=_D.DT_INT64)
    return arithmetic("Add", arithmetic("Mul", _normal(sizes, dtype), std, dtype), mean, dtype)


define(aten.normal.Tensor_Tensor, "RandomStandardNormal", _normal_of, [Support(F32(2, 3), F32(3, low=0)).shape_only()])


def _normal_mean(mean: Tensor, std: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    return _normal_of(mean, std, generator=generator, meta_outputs=meta_outputs)


def _normal_std(mean: Any, std: Tensor, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    return _normal_of(mean, std, generator=generator, meta_outputs=meta_outputs)


define(
    aten.normal.Tensor_float,
    "RandomStandardNormal",
    _normal_mean,
    [Support(F32(2, 3), 2.0).shape_only(), Support(F32(2)).shape_only()],
)
define(aten.normal.float_Tensor, "RandomStandardNormal", _normal_std, [Support(1.5, F32(2, 3, low=0)).shape_only()])


@declare_supported([Support(0.5, 2.0, [2, 3]).shape_only(), Support(0.0, 1.0, [2], dtype=torch.float16).shape_only()])
@register_fx_node_ge_converter(aten.normal.float_float, source="aten normal.float_float; GE RandomStandardNormal")
def normal_numbers(
    mean: Any, std: Any, size: Any, *, generator: Any = None, dtype: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Normal samples of the given sizes."""
    _generator_is_default(generator)
    kind = meta_outputs.dtype
    return arithmetic("Add", arithmetic("Mul", _normal(_sizes(size), kind), std, kind), mean, kind)
