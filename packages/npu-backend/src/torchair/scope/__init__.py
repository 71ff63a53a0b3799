"""``with torchair.scope.…:`` marks the operators inside; no graph break, any nesting, the inner value wins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from ge_graph.rules.attributes import super_kernel_problems
from torchair.names import door
from torchair.oplib.torch_ops import got, refuse

__all__ = ["data_dump", "limit_core_num", "npu_stream_switch", "npu_wait_tensor", "op_never_timeout", "super_kernel"]

__getattr__ = door(__name__)


def _refuse(what: str) -> NoReturn:
    refuse(what, "see the docstring of the scope for what it takes")


@contextmanager
def _marked(keys: list[str], values: list[str]) -> Iterator[None]:
    # no try/finally: an exception leaves the traced function altogether, and dynamo traces plain statements best
    torch.ops.air.scope_enter(keys, values)
    yield
    torch.ops.air.scope_exit()


class _Marks:
    """The same as a class: dynamo before torch 2.7 does not trace functions of contextlib."""

    def __init__(self, keys: list[str], values: list[str]) -> None:
        self._keys, self._values = keys, values

    def __enter__(self) -> None:
        torch.ops.air.scope_enter(self._keys, self._values)

    def __exit__(self, *error: object) -> None:
        torch.ops.air.scope_exit()


if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
    _marked = _Marks  # type: ignore[assignment]


def npu_stream_switch(stream_tag: str | int, stream_priority: int = 0, enable_inner_parallel: bool = True):  # type: ignore[no-untyped-def]
    """Operators inside go to the stream named ``stream_tag``; equal tags are one stream.

    Args:
        stream_tag: Name of the stream, not empty; a number is taken as its text.
        stream_priority: An int that goes to the device as it is; 0 is the default. The embedded engine has one queue.
        enable_inner_parallel: Whether the engine may spread these operators over more streams.

    Errors: ConfigError GE1030 for other types or values.
    """
    if type(stream_tag) is int:
        stream_tag = str(stream_tag)
    if not isinstance(stream_tag, str) or not stream_tag:
        _refuse(f"npu_stream_switch: stream_tag must be a text that is not empty, got {got(stream_tag)}")
    if type(stream_priority) is not int:
        _refuse(f"npu_stream_switch: stream_priority must be an int, got {got(stream_priority)}")
    if not isinstance(enable_inner_parallel, bool):
        _refuse(f"npu_stream_switch: enable_inner_parallel must be a bool, got {got(enable_inner_parallel)}")
    keys, values = ["_user_stream_label", "_enable_inner_parallel"], [stream_tag, str(enable_inner_parallel)]
    if stream_priority:
        keys, values = [*keys, "_user_stream_priority"], [*values, str(stream_priority)]
    return _marked(keys, values)


def limit_core_num(op_aicore_num: int | str, op_vectorcore_num: int | str):  # type: ignore[no-untyped-def]
    """Operators inside use at most so many AI cores and vector cores.

    GE refuses a graph whose limit is above the number of the chip that compiles it (E10001); the limit is checked
    there, because only then is the chip known.

    Args:
        op_aicore_num: At least 0, also as text; 0 where only vector cores are limited.
        op_vectorcore_num: At least 0, also as text; 0 only where the chip has no vector cores.

    Errors: ConfigError GE1030 for other types or values, or if both are 0.
    """
    numbers = [_cores("op_aicore_num", op_aicore_num), _cores("op_vectorcore_num", op_vectorcore_num)]
    if numbers == ["0", "0"]:
        _refuse("limit_core_num: both limits are 0, no core would be left")
    return _marked(["_op_aicore_num", "_op_vectorcore_num"], numbers)


def _cores(name: str, number: Any) -> str:
    text = str(number) if type(number) is int else number
    if not isinstance(text, str) or not text.isdecimal() or not text.isascii():
        _refuse(f"limit_core_num: {name} must be an int of at least 0, got {got(number)}")
    return str(int(text))


def super_kernel(scope: str | None, options: str | None = ""):  # type: ignore[no-untyped-def]
    """Operators inside may be fused into one super kernel on a device; equal names are one range.

    Args:
        scope: Name of the range; None keeps the operators out of any super kernel.
        options: Text for the device's compiler, ``key=value`` pairs joined by ``:``; ``strict-scope-check`` is
            ``bypass`` or ``abort``. None is no option.

    Errors: ConfigError GE1030 for other types.
    """
    if scope is not None and not isinstance(scope, str):
        _refuse(f"super_kernel: scope must be a text or None, got {got(scope)}")
    options = "" if options is None else options
    if not isinstance(options, str):
        _refuse(f"super_kernel: options must be a text, got {got(options)}")
    for problem in super_kernel_problems(options):
        _refuse(f"super_kernel: {problem}")
    return _marked(["_super_kernel_scope", "_super_kernel_options"], ["" if scope is None else scope, options])


def op_never_timeout(enable: bool = True):  # type: ignore[no-untyped-def]
    """Operators inside are exempt from the device's time limit, or with False not exempt.

    Errors: ConfigError GE1030 if ``enable`` is not a bool.
    """
    if not isinstance(enable, bool):
        _refuse(f"op_never_timeout: enable must be a bool, got {got(enable)}")
    return _marked(["_op_exec_never_timeout"], [str(enable)])


def data_dump():  # type: ignore[no-untyped-def]
    """Operators inside are dumped by the device's data dump, beside those of ``dump_config.dump_layer``."""
    return _marked(["_data_dump"], ["True"])


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """Operators that read ``self`` from here on wait for the producer of ``dependency``.

    Args:
        self: Any input of the later operator.
        dependency: Any output of the earlier one.

    Returns:
        ``self``; using it or the old name makes no difference.
    """
    torch.ops.air.wait_tensor(self, dependency)
    return self
