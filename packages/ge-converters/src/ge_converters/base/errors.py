"""Errors of this package: ``Refusal`` for converters to raise, ``LoweringError`` for users to read.

Codes 2xxx; each has an entry in ``docs/errors/2xxx.md``.
"""

from __future__ import annotations

from ge_graph.errors import GraphError, LoweringError

__all__ = ["Declined", "GraphError", "LoweringError", "Refusal"]


class Refusal(Exception):
    """Raised by a converter for a call form that it cannot serve.

    The lowering collects the refusals of the whole graph and reports them together, each with its node, dtypes, shapes
    and the user's line, so the text needs to say only: which argument, which value, what would be accepted, and whether
    a cast or a decomposition helps.

    Args:
        reason: ``"accumulate=True needs int32 indices, got int64; cast the indices"``.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Declined(Exception):
    """Raised by a formula for a call that it does not compute; the op stays whole, and its refusal says this.

    Args:
        name: Of the argument.
        value: What was given.
        expected: What the formula computes: ``"0 or 1"``.
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        kind = getattr(value, "dtype", None)
        shown = repr(value) if kind is None else f"a tensor of {str(kind).removeprefix('torch.')}"
        super().__init__(f"argument '{name}' is {shown}; expected {expected}")
