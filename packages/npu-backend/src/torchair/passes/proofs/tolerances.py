"""Which rules are equal in real numbers only, by how much floating point may differ for them, and why.

A rule without a row keeps every bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch

from torchair.passes.proofs import samples


@dataclass(frozen=True, slots=True)
class RuleTolerance:
    """By how much of the largest number of a result a rule may change it.

    Attributes:
        by_type: Element type to a share.
        reason: Why the rule is not exact.
        kinds: Kinds of values on which it is tested; on others it is another function.
    """

    by_type: Mapping[torch.dtype, float] = field(default_factory=dict, hash=False)
    reason: str = ""
    kinds: tuple[str, ...] = samples.KINDS

    def of(self, value: Any, *, wide: bool) -> float:
        """The share for a result; ``wide`` if it was computed in float64 throughout."""
        if isinstance(value, (tuple, list)):
            return max((self.of(v, wide=wide) for v in value), default=0.0)
        return self.by_type.get(value.dtype, 0.0) if isinstance(value, torch.Tensor) else 0.0


EXACT: Final = RuleTolerance()
# Two roundings, at most, of a sum of so many terms as tests and models have; eps is 2^-24, 2^-11, 2^-8.
_SUMS: Final = MappingProxyType(
    {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.complex64: 1e-5}
)
_USERS: Final = RuleTolerance(
    _SUMS, "a user's operator rounds where it likes, as silu(x) beside x * sigmoid(x); float64 shows what it computes"
)
RULES: Final[Mapping[str, RuleTolerance]] = {
    "fuse_operators": RuleTolerance(
        _SUMS, "a fused operator adds in another order; in 16 bits it rounds once where its parts round each"
    ),
    "FuseQuantisedProducts": RuleTolerance(
        _SUMS,
        "a sum of whole numbers is exact and scaled once, where the one of dequantised values rounds each term; a "
        "scale that is infinite, NaN or near the ends of the type quantises nothing",
        ("ordinary", "repeated"),
    ),
    "FusePatterns": _USERS,
    "config.post_grad_custom": _USERS,
}
"""By the name of the pass, or what it begins with."""


OTHER_VALUES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "FlashAttentionScore": (
        samples.NO_INFINITIES,
        "a row whose scores are all -inf is one that sees nothing to the operator, 0, and NaN to a softmax; where a "
        "mask can make such rows the rule adds nodes that keep the NaN, so only infinities in query and key are left",
    ),
    "MoeGatingTopKSoftmaxV2": (
        ("ordinary", "repeated"),
        "renormalised, it chooses by logits: among experts whose shares are all NaN, or all 0 to float32, it names "
        "others; the shares are the same",
    ),
}
"""Operators that are another function of some operands than what fusion puts them in the place of: on which kinds of
values they are tested, and what differs on the others."""


def kinds_for(operators: Set[str]) -> tuple[str, ...]:
    """The kinds of values on which a rewrite that brings these operators is tested."""
    tested: tuple[str, ...] = samples.KINDS
    for op in operators & OTHER_VALUES.keys():
        kept = OTHER_VALUES[op][0]
        tested = kept if tested is samples.KINDS else tuple(k for k in tested if k in kept)
    return tested


_MOVED: Final = "it moves what the graph writes from its results into its inputs, so the two are not one function"
OTHER_MEMORY: Final[Mapping[str, str]] = {"write_inputs_in_place": _MOVED, "replace_data_with_ref_data": _MOVED}
"""Passes whose graphs are others by intent, and why."""


def of(name: str) -> RuleTolerance:
    """What a pass or rule may change."""
    return next((found for start, found in RULES.items() if name.startswith(start)), EXACT)
