"""pyACL's names that programs beside torch_npu use, on the emulator's library; CANN's own package wins where it is."""

from __future__ import annotations

import ctypes

from . import rt as rt


def get_soc_name() -> str | None:
    """The chip's name."""
    name = rt.function("aclrtGetSocName", ctypes.c_char_p)()
    return None if name is None else name.decode()
