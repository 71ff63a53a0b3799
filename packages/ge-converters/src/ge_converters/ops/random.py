"""Random numbers. Every run draws anew from the engine's generator, in graph order.

Seeds are not baked into the graph: an operator with seed 0 and seed2 0 (or seed -1 and offset 0 where GE defines that
pair) asks the engine for fresh numbers, so two runs of one graph differ as two eager calls do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from ge_converters.base.dtypes import cast, dtype_promote, part_type
from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.base.support import BF16, F16, F32, F64, I64, Support
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.compute_types import carrier
from ge_converters.emit.shapes import ints, shape_operand
from ge_converters.registry import declare_supported, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec
from ge_graph import ops as ge

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


def _forms(*rows: tuple[Any, ...], **keywords: Any) -> list[Support]:
    return [Support(*row, **keywords).shape_only() for row in rows]


_SIZED = [
    *_forms(([2, 3],), ([],), ([0, 2],)),
    *(Support([2, 3], dtype=d).shape_only() for d in (torch.float16, torch.bfloat16, torch.float64)),
]
_LIKE = _forms(*((f(2, 3),) for f in (F32, F16, BF16, F64)))
_LIKE_TYPED = [*_LIKE, *_forms((F32(2),), dtype=torch.float16)]


@register_fx_node_ge_converter(
    {aten.rand.default: _SIZED, aten.rand_like.default: _LIKE_TYPED},
    source="native_functions.yaml: rand; GE RandomUniform",
    fixed={"draw": _uniform},
)
@register_fx_node_ge_converter(
    {aten.randn.default: _SIZED, aten.randn_like.default: _LIKE_TYPED},
    source="native_functions.yaml: randn; GE RandomStandardNormal",
    fixed={"draw": _normal},
)
def drawn(
    self: Tensor | None = None,
    size: Any = None,
    *,
    dtype: Any = None,
    draw: Callable[[Any, DataType], Tensor],
    meta_outputs: TensorSpec,
) -> Tensor:
    """Uniform samples in [0, 1) or standard normal ones, in the given sizes or the shape of self.

    Emits:  RandomUniform, RandomStandardNormal.
    """
    return draw(_sizes(size) if self is None else _sizes_like(self, meta_outputs), meta_outputs.dtype)


@register_fx_node_ge_converter(
    {
        aten.randint.default: [
            *_forms((5, [2, 3])),
            *_forms((9, [4]), dtype=torch.int32),
            *_forms((3, []), dtype=torch.float32),
        ],
        aten.randint.low: [*_forms((-3, 5, [2, 3])), *_forms((2, 9, [4]), dtype=torch.int32)],
        aten.randint_like.default: _forms(*((f(2, 3), 5) for f in (F32, I64))),
        aten.randint_like.low_dtype: _forms(*((f(2, 3), -2, 5) for f in (F32, I64))),
    },
    source="native_functions.yaml: randint, randint_like; GE RandomUniformInt",
)
def randint(
    high: Any,
    *,
    low: Any = 0,
    size: Any = None,
    self: Tensor | None = None,
    dtype: Any = None,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Whole numbers from low up to, not including, high, in the given sizes or the shape of self."""
    sizes = _sizes(size) if self is None else _sizes_like(self, meta_outputs)
    bounds = dtype_promote(low, high, target_dtype=_D.DT_INT64)
    return cast(ge.RandomUniformInt(sizes, *bounds), meta_outputs.dtype)


@declare_supported([*_forms((5,)), *_forms((4,), dtype=torch.int32), *_forms((0,)), Support(1)])
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
    [*_forms(*((f(2, 3), 0.5) for f in (F32, F16, BF16, I64))), Support(F32(2, 3), 0.0), Support(F32(2, 3), 1.0)]
)
@register_fx_node_ge_converter(aten.bernoulli.p, source="aten bernoulli.p; GE StatelessBernoulli")
def bernoulli_p(self: Tensor, p: Any = 0.5, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """1 with probability p, else 0, in the shape and type of self.

    Emits:  StatelessBernoulli with seed -1, offset 0.
    """
    _generator_is_default(generator)
    return bernoulli_of(_sizes_like(self, meta_outputs), dtype_promote(p, target_dtype=_D.DT_FLOAT), meta_outputs.dtype)


@register_fx_node_ge_converter(
    {
        aten.bernoulli.default: [
            *_forms(*((f(2, 3, low=0, high=1),) for f in (F32, F16, BF16))),
            Support(F32(value=[0.0, 1.0])),
        ],
        aten.bernoulli.Tensor: [*_forms((F32(2, 3), F32(2, 3, low=0, high=1))), Support(I64(2), F32(value=[0.0, 1.0]))],
    },
    source="native_functions.yaml: bernoulli; GE StatelessBernoulli",
)
def bernoulli(self: Tensor, p: Tensor | None = None, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """1 with the probability that p, else self, holds, else 0, in the shape and type of self."""
    _generator_is_default(generator)
    chances = self if p is None else p
    probability = cast(chances, carrier("StatelessBernoulli", chances.dtype, "prob"))
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


@declare_supported([*_LIKE, *_forms((F32(2, 3), -1.0, 3.0), (F16(2), 2.0, 2.5))])
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


@declare_supported([*_LIKE, *_forms((F32(2, 3), -1.0, 3.0))])
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


@declare_supported(_forms((F32(4, low=0.1, high=1), 2), (F32(3, 4, low=0.1, high=1), 2)))
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


@declare_supported(_LIKE)
@register_fx_node_ge_converter(aten.exponential.default, source="native_functions.yaml: exponential; GE RandomUniform")
def exponential(self: Tensor, lambd: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Exponential samples of a rate, in the shape and type of self."""
    _generator_is_default(generator)
    u = _float_uniform(self, meta_outputs)
    waited = ge.Neg(ge.Log1p(ge.Neg(u)))
    return cast(arithmetic("RealDiv", waited, lambd, u.dtype), meta_outputs.dtype)


@declare_supported(_forms(*((f(2, 3), 0.3) for f in (F32, F16, I64))))
@register_fx_node_ge_converter(aten.geometric.default, source="native_functions.yaml: geometric; GE RandomUniform")
def geometric(self: Tensor, p: Any, *, generator: Any = None, meta_outputs: TensorSpec) -> Tensor:
    """Trials up to the first success of probability p, in the shape and type of self."""
    _generator_is_default(generator)
    u = _float_uniform(self, meta_outputs)
    failures = arithmetic("RealDiv", ge.Log1p(ge.Neg(u)), math.log1p(-p) if p < 1 else -math.inf, u.dtype)
    return cast(ge.Maximum(ge.Ceil(failures), ge.Const(1.0, dtype=u.dtype)), meta_outputs.dtype)


@declare_supported(_LIKE)
@register_fx_node_ge_converter(aten.cauchy.default, source="native_functions.yaml: cauchy; GE RandomUniform")
def cauchy(
    self: Tensor, median: Any = 0.0, sigma: Any = 1.0, *, generator: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Cauchy samples of a median and a width, in the shape and type of self."""
    _generator_is_default(generator)
    u = _float_uniform(self, meta_outputs)
    turned = ge.Tan(arithmetic("Mul", arithmetic("Sub", u, 0.5, u.dtype), math.pi, u.dtype))
    return cast(arithmetic("Add", arithmetic("Mul", turned, sigma, u.dtype), median, u.dtype), meta_outputs.dtype)


@declare_supported(_LIKE)
@register_fx_node_ge_converter(
    aten.log_normal.default, source="native_functions.yaml: log_normal; GE RandomStandardNormal"
)
def log_normal(
    self: Tensor, mean: Any = 1.0, std: Any = 2.0, *, generator: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Samples whose logarithm is normal, in the shape and type of self."""
    _generator_is_default(generator)
    inner = _D.DT_DOUBLE if meta_outputs.dtype == _D.DT_DOUBLE else _D.DT_FLOAT
    samples = _normal(_sizes_like(self, meta_outputs), inner)
    return cast(ge.Exp(arithmetic("Add", arithmetic("Mul", samples, std, inner), mean, inner)), meta_outputs.dtype)


# A converter sees float32 in the place of what the operator does not take.
_RATES: Final = (F32(3, 4, low=0.1, high=3), F64(3, low=0.1, high=3), F16(3, low=0.1, high=3), F32(0))


@declare_supported(_forms(*((rate,) for rate in (*_RATES, BF16(3, low=0.1, high=3)))))
@register_fx_node_ge_converter(aten.poisson.default, source="native_functions.yaml: poisson; GE RandomPoisson")
def poisson(self: Tensor, generator: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Poisson samples of each rate.

    Emits:  RandomPoisson, one sample a rate.
    """
    _generator_is_default(generator)
    kind = carrier("RandomPoisson", self.dtype, "rate")
    return cast(ge.RandomPoisson(ints([]), cast(self, kind), dtype=kind), meta_outputs.dtype)


@declare_supported(_forms(*((rate,) for rate in _RATES if rate.dtype != torch.float16)))  # eager has no kernel for it
@register_fx_node_ge_converter(
    aten._standard_gamma.default, source="native_functions.yaml: _standard_gamma; GE RandomGamma"
)
def _standard_gamma(self: Tensor, generator: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """Gamma samples of scale 1 of each concentration.

    Emits:  RandomGamma, one sample a concentration.
    """
    _generator_is_default(generator)
    kind = carrier("RandomGamma", self.dtype, "alpha")
    return cast(ge.RandomGamma(ints([]), cast(self, kind)), meta_outputs.dtype)


@declare_supported([Support(f(3, 4, low=0.3, high=3), f(3, 4, low=0.1, high=3)) for f in (F32, F64)])
@register_fx_node_ge_converter(
    aten._standard_gamma_grad.default, source="native_functions.yaml: _standard_gamma_grad; GE RandomGammaGrad"
)
def _standard_gamma_grad(self: Tensor, output: Tensor, *, meta_outputs: TensorSpec) -> Tensor:
    """The derivative of a gamma sample by its concentration.

    Emits:  RandomGammaGrad.
    """
    kind = carrier("RandomGammaGrad", self.dtype, "alpha")
    return cast(ge.RandomGammaGrad(cast(self, kind), cast(output, kind)), meta_outputs.dtype)


@declare_supported(
    _forms(
        (F32(3, 4, low=1, high=9), F32(3, 4, low=0, high=1)),
        (F64(3, low=1, high=9), F64(3, low=0, high=1)),
        (F32(3, 1, low=1, high=9), F32(4, low=0, high=1)),
    )
)
@register_fx_node_ge_converter(
    aten.binomial.default, source="native_functions.yaml: binomial; GE StatelessRandomBinomial"
)
def binomial(count: Tensor, prob: Tensor, generator: Any = None, *, meta_outputs: TensorSpec) -> Tensor:
    """How many of count trials of probability prob succeed.

    Emits:  StatelessRandomBinomial, its seed drawn by RandomUniformInt.
    """
    _generator_is_default(generator)
    kind = carrier("StatelessRandomBinomial", meta_outputs.dtype, "counts")
    low, high = dtype_promote(0, 2**62, target_dtype=_D.DT_INT64)
    seed = ge.RandomUniformInt(ints([2]), low, high)
    if all(isinstance(s, int) for s in meta_outputs.size):
        sizes = ints(meta_outputs.size)  # type: ignore[arg-type]
    else:
        sizes = ge.Shape(arithmetic("Add", count, prob, meta_outputs.dtype), dtype=_D.DT_INT64)
    drawn = ge.StatelessRandomBinomial(sizes, seed, cast(count, kind), cast(prob, kind), dtype=kind)
    return cast(drawn, meta_outputs.dtype)


def _float_uniform(self: Tensor, meta: TensorSpec) -> Tensor:
    inner = _D.DT_DOUBLE if meta.dtype == _D.DT_DOUBLE else _D.DT_FLOAT
    return ge.RandomUniform(_sizes_like(self, meta), dtype=inner)


@register_fx_node_ge_converter(
    {
        aten.normal.Tensor_Tensor: _forms((F32(2, 3), F32(3, low=0))),
        aten.normal.Tensor_float: _forms((F32(2, 3), 2.0), (F32(2),)),
        aten.normal.float_Tensor: _forms((1.5, F32(2, 3, low=0))),
        aten.normal.float_float: [*_forms((0.5, 2.0, [2, 3])), *_forms((0.0, 1.0, [2]), dtype=torch.float16)],
    },
    source="native_functions.yaml: normal; GE RandomStandardNormal",
)
def normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None, meta_outputs: TensorSpec
) -> Tensor:
    """Normal samples of the given sizes, or of those that mean and std broadcast to."""
    _generator_is_default(generator)
    kind = meta_outputs.dtype
    if size is not None:
        sizes = _sizes(size)
    elif all(isinstance(s, int) for s in meta_outputs.size):
        sizes = ints(meta_outputs.size)  # type: ignore[arg-type]
    else:
        sizes = ge.Shape(arithmetic("Add", mean, std, kind), dtype=_D.DT_INT64)
    return arithmetic("Add", arithmetic("Mul", _normal(sizes, kind), std, kind), mean, kind)
