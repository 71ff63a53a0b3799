"""The ops we add to torch: ``torch.ops.air.{scope_enter, scope_exit, record, wait, wait_tensor, after, print}``,
and the first four again as ``torch.ops.npugraph_ex.*`` for passes of that backend.

They steer how a graph is laid out and compute nothing, so run eagerly they do nothing (``print`` prints). torch finds
ops by schema only, there is no hook for "first use", hence ``import torchair`` defines them: about a millisecond, and
the one thing that import does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NoReturn

import torch

from ge_graph.errors import ConfigError

_SCHEMAS: Final = {
    "scope_enter": "(str[] keys, str[] values) -> ()",
    "scope_exit": "() -> ()",
    "record": "() -> Tensor",
    "wait": "(Tensor[] tensors) -> ()",
    "wait_tensor": "(Tensor self, Tensor dependency) -> ()",
    "after": "(Tensor(a) self, Tensor dependency) -> Tensor(a)",
    "print": "(Tensor[] tensors, str text, int summarize_size, bool tensor_detail) -> ()",
}
PLACEHOLDER: Final = "\x00"
"""Stands in the text of ``air.print`` where the next tensor goes."""


def refuse(what: str, next: str) -> NoReturn:
    """Raise ConfigError GE1030.

    Dynamo cannot trace the making of our errors. Told to break the graph here, it runs the function eagerly, which
    raises; under ``fullgraph=True`` it shows the text given here with the user's lines that led to it.
    """
    if torch.compiler.is_compiling():
        from ge_converters.base.torch_compat import graph_break

        graph_break(f"[GE1030] {what}. Next: {next}")
    raise ConfigError("GE1030", what, next=next)


def got(value: Any) -> str:
    """A wrong argument as text; tensors have none while they are traced."""
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)


def _nothing(*args: Any) -> None:
    return None


def _record() -> torch.Tensor:
    return torch.empty(0)


def render(tensor: torch.Tensor, summarize_size: int, tensor_detail: bool) -> str:
    """A tensor as ``npu_print`` shows it: ``[0 1 2 ... 7 8 9]``, or with shape and dtype.

    Args:
        tensor: Any real dtype.
        summarize_size: Elements at each end of a dimension; -1 shows all.
        tensor_detail: Add shape and dtype.
    """
    from ge_runtime.cpu.text import summarize

    text = summarize(tensor, summarize_size)
    return f"tensor({text}, shape={list(tensor.shape)}, dtype={tensor.dtype})" if tensor_detail else text


def compose(tensors: list[torch.Tensor], text: str, summarize_size: int, tensor_detail: bool) -> str:
    """The line that ``air.print`` writes."""
    parts = text.split(PLACEHOLDER)
    shown = [render(t, summarize_size, tensor_detail) for t in tensors]
    return "".join(p + s for p, s in zip(parts, [*shown, ""]))


def _print(tensors: list[torch.Tensor], text: str, summarize_size: int, tensor_detail: bool) -> None:
    import sys

    sys.stdout.write(compose(tensors, text, summarize_size, tensor_detail) + "\n")


def _after(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    return self.view_as(self)


_KERNELS: Final = {"record": _record, "print": _print, "after": _after}
_FAKES: Final = {"record": _record, "print": _nothing}
_PURE: Final = frozenset({"after"})

_NPUGRAPH_EX: Final = ("scope_enter", "scope_exit", "record", "wait")

_libraries: Final = {space: torch.library.Library(space, "FRAGMENT") for space in ("air", "npugraph_ex")}


def _define(space: str, names: Iterable[str]) -> None:
    library, packet = _libraries[space], getattr(torch.ops, space)
    for name in names:
        if hasattr(packet, name):  # defined by torch_npu, or by a torchair that was imported under another name
            continue
        library.define(name + _SCHEMAS[name])
        library.impl(name, _KERNELS.get(name, _nothing), "CompositeExplicitAutograd")
        # without the mark, dead-code elimination would drop nodes that nobody reads
        if name not in _PURE:
            torch.fx.node.has_side_effect(getattr(packet, name).default)
        if name in _FAKES:
            torch.library.register_fake(f"{space}::{name}", _FAKES[name], lib=library)


_define("air", _SCHEMAS)
_define("npugraph_ex", _NPUGRAPH_EX)
