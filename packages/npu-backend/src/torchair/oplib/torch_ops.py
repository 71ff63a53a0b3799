"""The ops we add to torch: ``torch.ops.air.{scope_enter, scope_exit, record, wait, wait_tensor, after, print}`` and
those of tagged events; those that custom passes insert are there as ``torch.ops.npugraph_ex.*`` too.

They steer how a graph is laid out and compute nothing, so run eagerly they do nothing (``print`` prints, tagged events
are those of the device). torch finds ops by schema only, there is no hook for "first use", hence ``import torchair``
defines them: about a millisecond, and the one thing that import does.

torch_npu defines ops of the same names when the torchair that it carries is loaded, and the second definition of a name
is an error. What it has defined before is left alone. Where it is installed but has not been that far, our ops get a
namespace of their own, ``torchair``, and the names under ``torch.ops.air`` only refer to them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import torch

_SCHEMAS: Final = {
    "scope_enter": "(str[] keys, str[] values, bool need_excute=False) -> ()",
    "scope_exit": "() -> ()",
    "stream_in": "(str stream_tag, int stream_priority=0) -> ()",
    "stream_out": "() -> ()",
    "record": "() -> Tensor",
    "wait": "(Tensor[] tensors) -> ()",
    "wait_tensor": "(Tensor self, Tensor dependency) -> ()",
    "after": "(Tensor(a) self, Tensor dependency) -> Tensor(a)",
    "tagged_event_record": "(str tag) -> ()",
    "tagged_event_wait": "(str tag) -> ()",
    "record_tagged_stream": "(Tensor self, str tag) -> ()",
    "record_tagged_stream_": "(Tensor(a!) self, str tag) -> ()",
    "print": "(Tensor[] tensors, str text, int summarize_size, bool tensor_detail) -> ()",
}
PLACEHOLDER: Final = "\x00"
"""Stands in the text of ``air.print`` where the next tensor goes."""


def refuse(what: str, next: str) -> NoReturn:
    """Raise ConfigError GE1030.

    Dynamo cannot trace the making of our errors. Told to break the graph here, it runs the function eagerly, which
    raises; under ``fullgraph=True`` it shows the text given here with the user's lines that led to it.
    """
    from ge_converters.base.torch_compat import call_untraced, graph_break

    if torch.compiler.is_compiling():
        graph_break(f"[GE1030] {what}. Next: {next}")
    call_untraced(_raise, what, next)
    raise AssertionError


def _raise(what: str, next: str) -> NoReturn:
    from ge_graph.errors import ConfigError

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


_events: Final[dict[str, Any]] = {}


def _event(tag: str) -> Any:
    """The device's event of a tag, made on first use; None where there is no device."""
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        return None
    if tag not in _events:
        _events[tag] = npu.Event()
    return _events[tag]


def _event_record(tag: str) -> None:
    event = _event(tag)
    if event is not None:
        event.record()


def _event_wait(tag: str) -> None:
    event = _event(tag)
    if event is not None:
        event.wait()


def _record_stream(self: torch.Tensor, tag: str) -> None:
    if self.device.type == "npu":
        self.record_stream(torch.npu.current_stream())


def _record_stream_in_place(self: torch.Tensor, tag: str) -> None:
    torch.ops.air.record_tagged_stream(self, tag)  # which writes nothing, so that graphs need no copy


def _stream_in(stream_tag: str, stream_priority: int = 0) -> None:
    keys = ["_user_stream_label", "_user_stream_priority"]
    torch.ops.air.scope_enter(keys, [stream_tag, str(stream_priority)])


def _stream_out() -> None:
    torch.ops.air.scope_exit()


_KERNELS: Final = {
    "stream_in": _stream_in,
    "stream_out": _stream_out,
    "record": _record,
    "print": _print,
    "after": _after,
    "tagged_event_record": _event_record,
    "tagged_event_wait": _event_wait,
    "record_tagged_stream": _record_stream,
    "record_tagged_stream_": _record_stream_in_place,
}
_FAKES: Final = {
    "record": _record,
    "print": _nothing,
    "tagged_event_record": _nothing,
    "tagged_event_wait": _nothing,
    "record_tagged_stream": _nothing,
}
_PURE: Final = frozenset({"after"})
_SPELLED_OTHERWISE: Final = frozenset({"record_tagged_stream_", "stream_in", "stream_out"})  # traced as what they call

NAMESPACES: Final = ("air", "npugraph_ex", "torchair")
"""Where our ops, and those of torch_npu with the same names, are found."""
_OWN: Final = "torchair"
_NAMES: Final = {
    "air": tuple(_SCHEMAS),
    "npugraph_ex": (
        "scope_enter",
        "scope_exit",
        "record",
        "wait",
        "tagged_event_record",
        "tagged_event_wait",
        "record_tagged_stream",
        "record_tagged_stream_",
    ),
}

_libraries: Final[dict[str, Any]] = {}


def name_of(target: Any) -> str:
    """The name of one of these ops in any of the namespaces, ``scope_enter``; empty for another op."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in NAMESPACES:
        return ""
    name = target._schema.name.split("::")[1]
    return name if name in _SCHEMAS else ""


def _define(space: str, names: Iterable[str]) -> None:
    packet = getattr(torch.ops, space)
    for name in names:
        if hasattr(packet, name):  # defined by torch_npu, or by a torchair that was imported under another name
            continue
        if space not in _libraries:
            _libraries[space] = torch.library.Library(space, "FRAGMENT")
        library = _libraries[space]
        library.define(name + _SCHEMAS[name])
        keys = "CompositeImplicitAutograd" if name in _SPELLED_OTHERWISE else "CompositeExplicitAutograd"
        library.impl(name, _KERNELS.get(name, _nothing), keys)
        # without the mark, dead-code elimination would drop nodes that nobody reads
        if name not in _PURE:
            torch.fx.node.has_side_effect(getattr(packet, name).default)
        if name in _FAKES:
            torch.library.register_fake(f"{space}::{name}", _FAKES[name], lib=library)


def _refer(space: str, names: Iterable[str]) -> None:
    """Names in a namespace that is another's; torch keeps the ops that it has looked up in the same place."""
    packet = getattr(torch.ops, space)
    for name in names:
        if not hasattr(packet, name):
            setattr(packet, name, getattr(getattr(torch.ops, _OWN), name))


def _set_up() -> None:
    shared = importlib.util.find_spec("torch_npu") is not None
    if shared:
        _define(_OWN, _SCHEMAS)
    for space, names in _NAMES.items():
        (_refer if shared else _define)(space, names)


_WITHOUT_RESULT: Final = ("npu_prefetch",)


def prepare_ops_of_torch_npu() -> None:
    """Tell torch what dynamo has to know of torch_npu's ops before it traces; they are there once it is imported.

    Ops that return nothing do something, so no graph loses them; its kernels for composite ATen ops are not traced.
    """
    if "torch_npu" in sys.modules:  # without it there are no such kernels, and importing stays cheap
        from ge_converters.base.device_composites import register
        from torchair.oplib import npu_fakes

        register()
        npu_fakes.register()
    for name in _WITHOUT_RESULT:
        packet = getattr(torch.ops.npu, name, None)
        if packet is not None:
            torch.fx.node.has_side_effect(packet.default)


_set_up()
prepare_ops_of_torch_npu()
