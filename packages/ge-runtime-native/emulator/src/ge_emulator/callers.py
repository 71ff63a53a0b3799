"""What an error of an operator says: what failed, and the user's line above the call.

Kernels run later than they are called, on a stream's thread, where nobody knows that line any more.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from typing import Any, Final

from ge_emulator.refusal import KERNEL_FAILED, CannRefusal
from ge_graph.errors import EngineError, GeError
from ge_runtime.cpu.values import describe

# Packages that stand between the user's line and an operator; code that torch generates has no name.
_BETWEEN: Final = frozenset(
    {
        "",
        "torch",
        "torch_npu",
        "torchair",
        "ge_emulator",
        "ge_runtime",
        "ge_graph",
        "ge_converters",
        "tair_debug",
        "tair_export",
    }
)


def line() -> str:
    """``file.py:41 in forward, y = x[i]`` of the innermost frame that is the user's; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if told := frame.f_globals.get("__tair_lines__", {}).get(frame.f_lineno):
            return str(told)  # a program that was made of the user's graph
        if name.partition(".")[0] not in _BETWEEN:
            code = frame.f_code
            text = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
            shown = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
            return f"{shown}, {text}" if text else shown
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def failed_operator(op: str, operands: Iterable[Any], error: Exception | str) -> CannRefusal:
    """An operator that failed while it ran, as an error of the engine; the library adds the line of the call.

    Args:
        op: The function or operator type that was called.
        operands: What it was called on.
        error: What was raised, or what is wrong with the result.
    """
    if isinstance(error, GeError):
        made = EngineError(error.code, error.what if op in error.what else f"{op}: {error.what}", next=error.next)
    else:
        told = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        what = f"{op} failed on ({', '.join(map(describe, operands))}): {told}"
        made = EngineError("GE4005", what, next="compare the arguments with the operator's documentation")
    return CannRefusal(KERNEL_FAILED, str(made))
