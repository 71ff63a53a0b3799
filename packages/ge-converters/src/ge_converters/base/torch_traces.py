"""What torch tells of the graphs that it traces, and how tools trace without a compilation; private names as in
``torch_compat``."""
# ruff: noqa: TID251

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
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
    """Inside, ``torch.compiler.is_compiling()`` is true, and kernels fail on tensors without data in silence."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, silent = torch.compiler._is_compiling_flag, log.disabled
    torch.compiler._is_compiling_flag, log.disabled = True, True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag, log.disabled = before, silent


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
