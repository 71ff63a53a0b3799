"""How a verb says no: with the number that CANN would give."""

from __future__ import annotations

from typing import Final

INVALID: Final = 100000
INTERNAL: Final = 500000
OP_NOT_FOUND: Final = 100024
KERNEL_FAILED: Final = 507015
MODEL_FAILED: Final = 507011


class CannRefusal(Exception):
    """A request that CANN would refuse.

    Attributes:
        code: The error number that the library's function gives.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def reply(number: int, text: bytes = b"") -> bytes:
    """A number and bytes for the library."""
    return number.to_bytes(8, "little", signed=True) + text
