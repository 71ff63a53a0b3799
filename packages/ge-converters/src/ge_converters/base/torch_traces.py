"""What torch tells of the graphs that it traces, and how tools trace without a compilation; private names as in
``torch_compat``."""
# ruff: noqa: TID251

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@contextlib.contextmanager
def breaks_of_graphs() -> Iterator[list[tuple[str, Any]]]:
    """Reason, in dynamo's words, and the user's innermost frame, for each place where dynamo stopped inside."""
    from torch._dynamo.utils import graph_break_reasons

    before, found = [id(r) for r in graph_break_reasons], list[tuple[str, Any]]()
    yield found
    for reason in graph_break_reasons:
        if id(reason) not in before:
            found.append((reason.reason, reason.user_stack[-1] if reason.user_stack else None))


@dataclass(frozen=True, slots=True)
class Compilation:
    """A compilation of a function by dynamo.

    Attributes:
        key: dynamo's number for it, ``2/1``: function, and which of its graphs.
        why: For another graph of a function, ``2/0: guard  # code``: the guard of an earlier one that did not hold.
        source: File, first line and name of the function.
    """

    key: str
    why: str
    source: tuple[str, int, str]


@contextlib.contextmanager
def compilations() -> Iterator[list[Compilation]]:
    """What dynamo compiles inside; there when it ends."""
    from torch._dynamo.utils import get_compilation_metrics

    before, found = {id(m) for m in get_compilation_metrics()}, list[Compilation]()
    kept = get_compilation_metrics()  # so that no id is given twice
    yield found
    for made in get_compilation_metrics():
        if id(made) not in before:
            source = (str(made.co_filename), int(made.co_firstlineno or 0), str(made.co_name))
            found.append(Compilation(str(made.compile_id), str(getattr(made, "recompile_reason", "") or ""), source))
    del kept


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Inside, graphs that end early are not noted for ``breaks_of_graphs``: for an attempt that may fail."""
    from torch._dynamo.utils import graph_break_reasons

    before = len(graph_break_reasons)
    try:
        yield
    finally:
        del graph_break_reasons[before:]


@contextlib.contextmanager
def as_compiled() -> Iterator[None]:
    """Inside, ``torch.compiler.is_compiling()`` is true, and operators fail on tensors without data in silence."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        with failing_in_silence():
            yield
    finally:
        torch.compiler._is_compiling_flag = before


@contextlib.contextmanager
def failing_in_silence() -> Iterator[None]:
    """Inside, an operator that fails on tensors without data raises, and torch logs no traceback of it."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def failed_operator(error: BaseException) -> tuple[BaseException, Any] | None:
    """What an operator raised while dynamo traced it, and the innermost frame that is not torch's, or its last one.

    None for another error.
    """
    from torch._dynamo.exc import TorchRuntimeError

    if not isinstance(error, TorchRuntimeError):
        return None
    inner: BaseException = error
    while type(inner).__module__.startswith("torch._dynamo") and (inner.__cause__ or inner.__context__):
        inner = inner.__cause__ or inner.__context__  # type: ignore[assignment]
    frames = [*reversed(error.real_stack or ())]
    own = os.path.dirname(torch.__file__) + os.sep
    return inner, next((f for f in frames if not f.filename.startswith(own)), frames[0] if frames else None)


def more_like(value: torch.Tensor) -> Callable[[], torch.Tensor] | None:
    """Makes more tensors without data that look like one, without asking torch's operator for them.

    None for a tensor that no fake mode made, whose value is known, whose sizes are symbols, or which shows another one
    in a way that its sizes and strides do not tell.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if (
        type(value) is not FakeTensor
        or value.layout is not torch.strided
        or any(type(n) is not int for n in (*value.shape, *value.stride()))
        or (value.constant, value.real_tensor) != (None, None)
        or value.requires_grad
        or value.is_conj()
        or value.is_neg()
    ):
        return None
    mode, device = value.fake_mode, value.device
    with torch.utils._python_dispatch._disable_current_modes():
        bare = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return lambda: FakeTensor(mode, bare, device)


def count_names(graph: torch.fx.Graph, like: torch.fx.Graph, more: Mapping[str, int]) -> None:
    """Let a graph number its next names as another one would, those of some bases by so much higher."""
    for base, number in like._graph_namespace._base_count.items():
        graph._graph_namespace._base_count[base] = number + more.get(base, 0)


def view_copies() -> dict[Any, Any]:
    """Each ATen op that copies what a view would show, and the op of that view, of dense tensors."""
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten" or not packet.endswith("_copy"):
            continue
        view = getattr(getattr(torch.ops.aten, packet.removesuffix("_copy"), None), overload or "default", None)
        made = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if view is None or made is None or not any(r.alias_info for r in view._schema.returns):
            continue
        if str(view._schema.arguments[0].type) == "Tensor" and not any(r.alias_info for r in made._schema.returns):
            found[made] = view
    return found


class _FirstOfEach(dict[Any, Any]):
    """What is there stays."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.setdefault(key, value)


def keep_first_symbols() -> None:
    """In a trace that goes on, a symbol stays the size of the input that it was first seen in.

    torch's tracer remembers for each symbol the last number equal to it, which may be ``sym_max(s, 1)``. It then looks
    for the operand of that maximum under the same symbol if it has not seen it, and so without end. Sizes of DTensors
    are such operands.
    """
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    tracer = getattr(mode, "tracer", None)
    known = getattr(tracer, "sympy_expr_tracker", None)
    if type(known) is dict:
        tracer.sympy_expr_tracker = _FirstOfEach(known)  # type: ignore[union-attr]
