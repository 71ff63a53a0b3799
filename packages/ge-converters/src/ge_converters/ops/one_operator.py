"""Aten ops that are one GE operator with attributes: a row each.

Element types that GE's operator does not list are decomposed first, if there is a formula; half types that it lacks go
through float32, in which eager computes too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from ge_converters.base.dtypes import cast
from ge_converters.base.operators import AbsentOperator, aten
from ge_converters.base.support import BF16, F16, F32, F64, I64, Support
from ge_converters.emit.compute_types import carrier
from ge_converters.registry import ABSENT, REGISTRY, Takes, define
from ge_converters.registry.takes import Condition, gradient_of_pair, one_type, pair, real, weighted_pair
from ge_graph import Tensor, TensorSpec, schema
from ge_graph import ops as ge

_REDUCTIONS: Final = ("none", "mean", "sum")
_FORM: Final = re.compile(r"(?P<op>\w+)\((?P<ports>[\w ]*)(?:; (?P<attrs>[\w=. ]+))?\)(?: without (?P<unread>[\w ]+))?")
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "Int": int,
    "Float": float,
    "Bool": bool,
    "String": lambda v: v if isinstance(v, str) else _REDUCTIONS[v],
}


def one_operator(
    target: Any, form: str, supports: list[Support], note: str = "", also: Condition | None = None
) -> None:
    """Register the converter of an op that is one call of a GE operator.

    Args:
        target: aten overload, or an AbsentOperator.
        form: ``Op(port port; attr attr=number) without argument``: the arguments of the aten op that go to the ports of
            GE's, in its order; attributes that have the name of an argument, ``attr=argument`` where the names differ
            and ``attr=2.0`` for a constant; arguments that do not matter, with the reason in ``note``.
        supports: Declared call forms.
        note: What the docstring says beside the form.
        also: What has to hold of a call beside that GE lists its element type.

    Raises:
        ValueError: The form does not parse, or names an attribute that GE's lacks.

    A form that leaves out an argument of the op, or an op that torch lacks, is left out of the registry.
    """
    parsed = _FORM.fullmatch(form)
    if parsed is None:
        raise ValueError(f"{target}: not a form: {form}")
    op, ports = parsed["op"], parsed["ports"].split()
    kinds = {a.name: a.kind for a in schema.require(op).attrs}
    written = [a.partition("=") for a in (parsed["attrs"] or "").split()]
    attrs = {name: value or name for name, _, value in written}
    if not kinds.keys() >= attrs.keys():
        raise ValueError(f"{target}: {op} has no attribute {sorted(attrs.keys() - kinds.keys())}")
    if isinstance(target, AbsentOperator):
        REGISTRY.leave_out(target, ABSENT, f"{__file__}: {form}")
        return
    arguments = [a.name for a in target._schema.arguments]
    constants = {name: float(value) for name, value in attrs.items() if value not in arguments}
    taken = [(name, value, _READ[kinds[name].value]) for name, value in attrs.items() if name not in constants]
    named = {*ports, *(argument for _, argument, _ in taken), *(parsed["unread"] or "").split()}
    if named != set(arguments):
        reason = f"{form} and the schema differ in {', '.join(sorted(named ^ set(arguments)))}"
        REGISTRY.leave_out(target, reason, f"{__file__}: {form}")
        return
    positional = [a.name for a in target._schema.arguments if not a.kwarg_only]

    def convert(*args: Any, meta_outputs: TensorSpec, **keywords: Any) -> Tensor:
        given = {**dict(zip(positional, args)), **keywords}
        dtype = meta_outputs.dtype
        inner = carrier(op, dtype)
        fed = [None if given[p] is None else cast(given[p], inner) for p in ports]
        values = {name: read(given[argument]) for name, argument, read in taken}
        return cast(getattr(ge, op)(*fed, **values, **constants), dtype)

    define(target, op, convert, supports, f"Emits:  {form}.{' ' if note else ''}{note}", Takes(op, also))


# -- activations -----------------------------------------------------------------------------------------------------

_FLOATS = [F32(2, 3), F16(2, 3), BF16(2, 3), F32(), F32(0, 2), F32(2, 3, strides=(1, 2))]


def _each(*rest: tuple[Any, ...]) -> list[Support]:
    """Every float type, alone and with the numbers of each of ``rest``."""
    return [Support(x, *numbers) for x in _FLOATS for numbers in ((), *rest)]


def _doubles(*rest: tuple[Any, ...]) -> list[Support]:
    """The same with float64."""
    kinds = (F32(2, 3), F16(2, 3), BF16(2, 3), F64(2, 3), F32(), F32(0, 2))
    return [Support(x, *numbers) for x in kinds for numbers in ((), *rest)]


def _two(*rest: Any, low: float = -2.0, high: float = 2.0, doubles: bool = False, **kwargs: Any) -> list[Support]:
    """Gradient and saved tensor of one shape in every float type."""
    kinds = (F32, F16, BF16, F64) if doubles else (F32, F16, BF16)
    made = [Support(m(2, 3), m(2, 3, low=low, high=high), *rest, **kwargs) for m in kinds]
    scalar = Support(F32(), F32(low=low, high=high), *rest, **kwargs)
    return [*made, scalar, Support(F32(0, 3), F32(0, 3), *rest, **kwargs)]


one_operator(aten.softshrink.default, "Softshrink(self; lambd)", _each((0.2,)))
one_operator(aten.hardshrink.default, "HardShrink(self; lambd)", _each((0.2,)))
one_operator(aten.softplus.default, "SoftplusV2(self; beta threshold)", _each((2.0, 1.0), (0.5,)))
one_operator(aten.celu.default, "CeluV2(self; alpha)", _each((0.5,), (2.0,)))
one_operator(aten.elu.default, "Elu(self; alpha scale input_scale)", _doubles((0.5,), (1.5, 2.0, 0.5)))
one_operator(aten.leaky_relu.default, "LeakyRelu(self; negative_slope)", _doubles((0.2,), (-0.5,)))
one_operator(aten.hardswish.default, "HardSwish(self)", [Support(x) for x in _FLOATS])
one_operator(
    aten.hardsigmoid.default,
    "HardSigmoid(self; alpha=0.16666666666666666 beta=0.5)",
    [Support(x) for x in _FLOATS if not x.strides],
)
one_operator(
    aten.trace.default,
    "Trace(self)",
    [Support(f(3, 4)) for f in (F32, F16, BF16, F64, I64)] + [Support(F32(0, 0))],
)
one_operator(
    aten.glu.default,
    "GLU(self; dim)",
    [Support(f(2, 6)) for f in (F32, F16, BF16, F64)] + [Support(F32(4, 3), 0), Support(F32(2, 4, 3), 1)],
    "dim is halved; halves are computed in float32 and rounded once.",
)
one_operator(
    aten._prelu_kernel.default,
    "PRelu(self weight)",
    [Support(f(2, 3, 4), f(1, 3, 1)) for f in (F32, F16, BF16)]
    + [Support(F32(2, 3), F32(1, 1)), Support(F32(3), F32(1)), Support(F32(0, 3), F32(1, 3))],
    "weight has the rank of self and one entry, or one for each channel (axis 1).",
    one_type,
)
one_operator(
    aten.heaviside.default,
    "Heaviside(self values)",
    [Support(f(value=[[1.0, 0.0], [-2.0, 0.0]]), f(2, 2)) for f in (F32, F16, BF16)] + [Support(F32(0, 2), F32(0, 2))],
    "Shapes are equal; operands that broadcast are decomposed.",
    pair,
)
one_operator(
    aten.renorm.default,
    "Renorm(self; p dim maxnorm)",
    [Support(f(4, 5), p, d, 1.0) for f in (F32, F16, BF16, F64) for p, d in ((2, 0), (1, 1), (3.5, -1))]
    + [Support(F32(2, 3, 4), 2, 1, 0.5), Support(F32(2, 3), math.inf, 0, 0.5)],
)

_SUMS = [Support(f(2, 3), f(3)) for f in (F32, F16, BF16)] + [
    Support(F32(), F32(2)),
    Support(F32(0, 2), F32(2)),
    Support(F32(value=[100.0, -math.inf, -math.inf]), F32(value=[99.0, 1.0, -math.inf])),
]
one_operator(aten.logaddexp.default, "LogAddExp(self other)", _SUMS, also=one_type)
one_operator(aten.logaddexp2.default, "LogAddExp(self other; base=2.0)", _SUMS, also=one_type)

# -- their gradients -------------------------------------------------------------------------------------------------

one_operator(
    aten.gelu_backward.default, "GeluGradV2(grad_output self; approximate)", [*_two(), *_two(approximate="tanh")]
)
one_operator(aten.silu_backward.default, "SiluGrad(grad_output self)", _two())
one_operator(
    aten.sigmoid_backward.default, "SigmoidGrad(output grad_output)", _two(low=0.1, high=0.9, doubles=True), also=real
)
one_operator(
    aten.tanh_backward.default, "TanhGrad(output grad_output)", _two(low=-0.9, high=0.9, doubles=True), also=real
)
one_operator(aten.mish_backward.default, "MishGrad(grad_output self)", _two())
one_operator(aten.softshrink_backward.default, "SoftShrinkGrad(grad_output self; lambd)", _two(0.3))
one_operator(aten.hardshrink_backward.default, "HardShrinkGrad(grad_out self; lambd)", _two(0.3))
one_operator(
    aten.softplus_backward.default, "SoftplusV2Grad(grad_output self; beta threshold)", [*_two(1, 20), *_two(2.0, 1.0)]
)
one_operator(
    aten.hardtanh_backward.default,
    "HardtanhGrad(self grad_output; min_val max_val)",
    [*_two(-1, 1), *_two(0, 6, high=8.0)],
)
one_operator(
    aten.leaky_relu_backward.default,
    "LeakyReluGrad(grad_output self; negative_slope) without self_is_result",
    [*_two(0.1, False, doubles=True), *_two(0.5, True, low=0.1)],
    "Input and result have the same sign for a slope >= 0, which torch demands of a result.",
)
one_operator(
    aten.elu_backward.default,
    "EluGradV2(grad_output self_or_result; alpha scale input_scale is_result)",
    [
        *(Support(m(2, 3), 1.0, 1.0, 1.0, False, m(2, 3)) for m in (F32, F16, BF16)),
        Support(F32(2, 3), 1.7, 1.2, 0.5, False, F32(2, 3)),
        Support(F32(2, 3), 1.7, 1.2, 0.5, True, F32(2, 3, low=-0.9)),
    ],
)
one_operator(
    aten.glu_backward.default,
    "GLUGrad(grad_output self; dim)",
    [*(Support(m(2, 3), m(2, 6), -1) for m in (F32, F16, BF16, F64)), Support(F32(2, 3), F32(4, 3), 0)],
    "grad_output has half the size of self along dim.",
)

_PLACES = [[-1.5, 0.0, 0.5], [2.0, -0.25, 3.0]]
_BUFFER = [[math.exp(-abs(x)) for x in row] for row in _PLACES]
one_operator(
    aten.log_sigmoid_backward.default,
    "LogSigmoidGrad(grad_output self) without buffer",
    [
        *(Support(m(2, 3), m(value=_PLACES), m(value=_BUFFER)) for m in (F32, F16, BF16)),
        Support(F32(0, 3), F32(0, 3), F32(0, 3)),
    ],
    "buffer holds exp(-abs(self)), which follows from self.",
)

# -- losses of a prediction and a target of one shape -----------------------------------------------------------------

# Eager adds half losses up in half precision.
_CASES: Final = ((F32, 0), (F32, 1), (F32, 2), (F16, 0), (BF16, 0))
_BETAS: Final = (1.0, 0.5)


def _pairs(*rest: Any) -> list[Support]:
    return [Support(m(2, 3, low=-1.0), m(2, 3, low=0, high=1.0), r, *rest) for m, r in _CASES]


def _gradients(*rest: Any) -> list[Support]:
    made = [Support(m(2, 3), m(2, 3), m(2, 3), 0, *rest) for m in (F32, F16, BF16)]
    return made + [Support(F32(), F32(2, 3), F32(2, 3), r, *rest) for r in (1, 2)]


def _probabilities(m: Any) -> tuple[Any, Any]:
    return m(2, 3, low=0.1, high=0.9), m(2, 3, low=0, high=1)


one_operator(aten.mse_loss.default, "MseLoss(self target; reduction)", _pairs(), also=pair)
one_operator(
    aten.mse_loss_backward.default,
    "MseLossGrad(self target grad_output; reduction)",
    _gradients(),
    also=gradient_of_pair,
)
one_operator(aten.soft_margin_loss.default, "SoftMarginLoss(self target; reduction)", _pairs(), also=pair)
one_operator(
    aten.soft_margin_loss_backward.default,
    "SoftMarginLossGrad(self target grad_output; reduction)",
    _gradients(),
    also=gradient_of_pair,
)
one_operator(
    aten.smooth_l1_loss.default,
    "SmoothL1LossV2(self target; reduction sigma=beta)",
    [s for rest in ((), (0.5,), (0.0,)) for s in _pairs(*rest)],
    also=pair,
)
one_operator(
    aten.smooth_l1_loss_backward.default,
    "SmoothL1LossGradV2(self target grad_output; reduction sigma=beta)",
    [s for b in _BETAS for s in _gradients(b)],
    also=gradient_of_pair,
)
one_operator(
    aten.binary_cross_entropy.default,
    "BinaryCrossEntropy(self target weight; reduction)",
    [Support(*_probabilities(m), None, r) for m, r in _CASES]
    + [Support(*_probabilities(F32), F32(2, 3, low=0), r) for r in (0, 1)]
    + [Support(F32(value=[0.0, 1.0, 1.0]), F32(value=[1.0, 1.0, 0.0]), None, 0)],
    also=weighted_pair,
)
