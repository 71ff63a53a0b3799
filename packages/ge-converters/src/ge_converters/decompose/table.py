"""Which aten ops are decomposed before they reach a converter, and why.

The rule: an op that a converter takes is never decomposed, so that a LayerNorm stays one node; every other op that
torch knows how to decompose is. The exceptions are rows below, and formulas for arguments that a converter cannot take,
which leave all other calls of their op whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from ge_converters.base.device_composites import decomposition_rules
from ge_converters.base.torch_compat import core_decompositions, is_composite, known_decompositions
from ge_converters.decompose import device_kernels as beside_kernels
from ge_converters.decompose import flex_attention, formulas, memory_order
from ge_converters.decompose.formulas import beside_native, chunked_loss, other_names, quantized, regions
from ge_converters.decompose.formulas import prims as prims_formulas
from ge_converters.registry import REGISTRY, Registry

Decomposition = Callable[..., Any]

# Never decomposed although there is no converter: what comes out could not be lowered either, and the refusal should
# name the op that the user wrote.
NEVER: Final[dict[str, str]] = {
    "aten.sym_size.int": "sizes are expressions of the graph's symbols",
    "aten.sym_stride.int": "sizes are expressions of the graph's symbols",
    "aten.sym_numel.default": "sizes are expressions of the graph's symbols",
    "aten.sym_storage_offset.default": "sizes are expressions of the graph's symbols",
    "aten.sym_is_contiguous.default": "answered from meta values while tracing",
}

_DRAWN: Final = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like")

_cache: dict[tuple[int, int], dict[Any, Decomposition]] = {}


def decomposition_table(
    custom: Mapping[Any, Decomposition] | None = None,
    *,
    registry: Registry | None = None,
    device_kernels: bool = False,
) -> dict[Any, Decomposition]:
    """The table for AOTAutograd.

    Args:
        custom: The user's decompositions; they win over everything, converters included.
        registry: Converters whose ops stay whole; the common registry if None.
        device_kernels: Leave composite ops whole for which the device has kernels that a capture takes: its own eager
            operators run them.

    Source: ``torch._decomp``, its core ATen list after autograd.
    """
    used = REGISTRY if registry is None else registry
    key = (id(used), used.revision)
    known = _cache.get(key)
    if known is None:
        _cache.clear()
        known = _cache[key] = _built(used)
    # Registered when they are first called, or as dynamo, torchvision or torch_npu are imported, maybe after the table.
    late_modules = (chunked_loss, regions, quantized, flex_attention, other_names)
    formulas = {op: f for module in late_modules for op, f in module.decompositions().items()}
    late = {op: f for op, f in formulas.items() if not used.layer(op)}
    late |= {op: f for op, f in quantized.beside_converters().items() if used.layer(op) in ("", "built-in")}
    rules = beside_kernels.rules() if device_kernels else decomposition_rules()
    composite = {op: f for op, f in rules.items() if used.layer(op) in ("", "built-in")}
    table = {**known, **late, **composite}
    for op in beside_kernels.WHOLE if device_kernels else ():
        table.pop(op, None)
    return {**table, **(custom or {})}


def export_table(*, registry: Registry | None = None) -> dict[Any, Decomposition]:
    """The table for ``ExportedProgram.run_decompositions``, which keeps every composite op that its table lacks.

    Source: ``torch.export.default_decompositions``.
    """
    used = REGISTRY if registry is None else registry
    table = decomposition_table(registry=used)
    for op, function in torch.export.default_decompositions().items():
        if is_composite(op) and str(op) not in NEVER and not used.layer(op):
            table.setdefault(op, function)
    return table


def _built(registry: Registry) -> dict[Any, Decomposition]:
    table: dict[Any, Decomposition] = {}
    for op, function in {**_beyond_core(), **core_decompositions()}.items():
        name = str(op)
        if name in NEVER or not isinstance(op, torch._ops.OpOverload):
            continue
        if not registry.layer(op):
            table[op] = function
    table.update({op: f for op, f in _own().items() if not registry.layer(op)})
    for op, function in formulas.beside_converters().items():
        if registry.layer(op) in ("", "built-in"):  # a converter of the user takes all arguments
            table[op] = function
    table.update(beside_native.decompositions(registry))
    for op, function in memory_order.ordered(table).items():
        if registry.layer(op) in ("", "built-in"):
            table[op] = function
    return table


def _beyond_core() -> dict[Any, Decomposition]:
    """What torch can decompose beyond its core list: functional ops that the dispatcher itself leaves whole."""
    return {
        op: function
        for op, function in known_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and not op._schema.is_mutable and not is_composite(op)
    }


def _own() -> dict[Any, Decomposition]:
    """Decompositions that torch does not register, or only in terms of prims that have no GE form."""
    prims = torch.ops.prims
    return {
        **_without_generator(),
        **formulas.decompositions(),
        **prims_formulas.decompositions(),
        prims.convert_element_type.default: lambda a, dtype: torch.ops.aten._to_copy.default(a, dtype=dtype),
        prims.device_put.default: lambda a, device, non_blocking=False: torch.ops.aten._to_copy.default(
            a, device=device, non_blocking=non_blocking
        ),
    }


def _without_generator() -> dict[Any, Decomposition]:
    """Overloads with a generator, called without one, are the overloads without; a generator stays and is refused."""
    table: dict[Any, Decomposition] = {}
    for packet in (getattr(torch.ops.aten, name) for name in _DRAWN):
        for name in packet.overloads():
            plain = name.replace("low_generator", "low").replace("_generator", "").replace("generator", "default")
            if plain != name and "out" not in name and plain in packet.overloads():
                table[getattr(packet, name)] = _plainly(getattr(packet, plain))
    return table


def _plainly(op: Any) -> Decomposition:
    return lambda *args, generator=None, **more: op(*args, **more) if generator is None else NotImplemented
