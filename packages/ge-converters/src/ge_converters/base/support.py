"""Declared call forms: ``Support(F32(2, 2), 2.0, alpha=2)`` is a call of the op with stand-ins for tensors.

Declarations are data. ``ge_converters.smoke`` and the tests turn each into a real call, so a declared form is a proven
form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ge_converters.base.errors import LoweringError


@dataclass(frozen=True, slots=True)
class TensorLike:
    """A stand-in for a tensor argument.

    Attributes:
        dtype: torch element type.
        shape: Sizes.
        low: Smallest value drawn, None for the default of the type.
        high: Upper end of the values drawn; floats exclude it, integers too.
        value: Fixed contents (nested lists) instead of random ones.
        strides: Strides if the tensor shall not be contiguous.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    value: Any = None
    strides: tuple[int, ...] | None = None

    def make(self, generator: torch.Generator) -> torch.Tensor:
        """A tensor of this kind; the same generator state gives the same values."""
        if self.value is not None:
            made = torch.tensor(self.value, dtype=self.dtype).reshape(self.shape)
        else:
            made = self._random(generator)
        if self.strides is None:
            return made
        laid_out = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        laid_out.copy_(made)
        return laid_out

    def _random(self, generator: torch.Generator) -> torch.Tensor:
        if self.dtype is torch.bool:
            return torch.randint(0, 2, self.shape, generator=generator).to(torch.bool)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            real = torch.float64 if self.dtype in (torch.float64, torch.complex128) else torch.float32
            low = -2.0 if self.low is None else float(self.low)
            high = 2.0 if self.high is None else float(self.high)
            parts = 2 if self.dtype.is_complex else 1
            drawn = torch.rand((*self.shape, parts), generator=generator, dtype=real) * (high - low) + low
            return (torch.view_as_complex(drawn) if parts == 2 else drawn.squeeze(-1)).to(self.dtype)
        low = (0 if self.dtype is torch.uint8 else -5) if self.low is None else math.ceil(self.low)
        high = 6 if self.high is None else math.ceil(self.high)
        return torch.randint(low, max(high, low + 1), self.shape, generator=generator).to(self.dtype)

    def __repr__(self) -> str:
        name = short_name(self.dtype)
        shown = [str(d) for d in self.shape]
        for key in ("low", "high", "value", "strides"):
            if getattr(self, key) is not None:
                shown.append(f"{key}={getattr(self, key)}")
        return f"{name}({', '.join(shown)})"


def _factory(dtype: torch.dtype, short: str) -> Callable[..., TensorLike]:
    def make(
        *shape: int,
        low: float | None = None,
        high: float | None = None,
        value: Any = None,
        strides: tuple[int, ...] | None = None,
    ) -> TensorLike:
        wrong = [d for d in shape if not isinstance(d, int) or isinstance(d, bool) or d < 0]
        if wrong:
            raise LoweringError(
                "GE2005", f"{short} takes sizes, got {wrong[0]!r}", next=f"write {short}(2, 2); {short}() is a scalar"
            )
        dims = torch.tensor(value).shape if value is not None and not shape else shape
        return TensorLike(dtype, tuple(dims), low, high, value, strides)

    make.__name__ = make.__qualname__ = short
    make.__doc__ = f"A {dtype} tensor of these sizes; ``low``/``high`` bound its values, ``value`` fixes them."
    return make


_SHORT = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.complex128: "C128",
}

F32 = _factory(torch.float32, "F32")
F16 = _factory(torch.float16, "F16")
BF16 = _factory(torch.bfloat16, "BF16")
F64 = _factory(torch.float64, "F64")
I8 = _factory(torch.int8, "I8")
I16 = _factory(torch.int16, "I16")
I32 = _factory(torch.int32, "I32")
I64 = _factory(torch.int64, "I64")
U8 = _factory(torch.uint8, "U8")
BOOL = _factory(torch.bool, "BOOL")
C64 = _factory(torch.complex64, "C64")
C128 = _factory(torch.complex128, "C128")


def short_name(dtype: torch.dtype) -> str:
    """``F32`` for torch.float32."""
    return _SHORT.get(dtype, str(dtype))


class Support:
    """One call form of an op: the arguments of a call with stand-ins for tensors.

    Args:
        args: Positional arguments; ``TensorLike`` stand-ins, numbers, lists, dtypes.
        kwargs: Keyword arguments of the op.

    Attributes:
        rtol: Relative tolerance when compared with eager, None for torch's default of the result type.
        atol: Absolute tolerance likewise.
        check: ``"values"``, or ``"shape"`` where values are random or undefined.
        fixed: Whether the form is served with fixed sizes only; with symbolic sizes it must be refused then.
        outputs: Which outputs are asked for, None for all; GE cannot produce every output of every op.

    Example:
        >>> Support(F32(2, 2), 2.0, alpha=2)
        Support(F32(2, 2), 2.0, alpha=2)
    """

    __slots__ = ("args", "kwargs", "rtol", "atol", "check", "fixed", "outputs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.rtol: float | None = None
        self.atol: float | None = None
        self.check = "values"
        self.fixed = False
        self.outputs: tuple[int, ...] | None = None

    def within(self, rtol: float, atol: float) -> Support:
        """The same form with its own tolerances."""
        self.rtol, self.atol = rtol, atol
        return self

    def shape_only(self) -> Support:
        """The same form, compared by dtype and shape only: random or uninitialised values."""
        self.check = "shape"
        return self

    def fixed_sizes(self) -> Support:
        """The same form, served with fixed sizes only."""
        self.fixed = True
        return self

    def only(self, *outputs: int) -> Support:
        """The same form, asking for these outputs alone."""
        self.outputs = outputs
        return self

    def stand_ins(self) -> Iterator[TensorLike]:
        """All tensor stand-ins, those in lists included."""
        stack: list[Any] = [*reversed([*self.args, *self.kwargs.values()])]
        while stack:
            value = stack.pop()
            if isinstance(value, TensorLike):
                yield value
            elif isinstance(value, (list, tuple)):
                stack.extend(reversed(value))

    def make(self, seed: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Real arguments for the call; the same seed gives the same values."""
        generator = torch.Generator().manual_seed(seed)

        def build(value: Any) -> Any:
            if isinstance(value, TensorLike):
                return value.make(generator)
            if isinstance(value, (list, tuple)):
                return type(value)(build(v) for v in value)
            return value

        return [build(a) for a in self.args], {k: build(v) for k, v in self.kwargs.items()}

    def __repr__(self) -> str:
        shown = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"Support({', '.join(shown)})"
