"""Errors of this package: ``Refusal`` for converters to raise, ``LoweringError`` for users to read.

Codes 2xxx; each has an entry in ``docs/errors/2xxx.md``.
"""

from __future__ import annotations

from ge_graph.errors import GraphError, LoweringError

__all__ = ["GraphError", "LoweringError", "Refusal"]


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
