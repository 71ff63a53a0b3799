"""Python's cycle collector, and work that makes many objects of which all stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Everything that is made here stays; letting the cycle collector look at it again and again costs a quarter of the
    time of a large graph, and more the larger it is."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
