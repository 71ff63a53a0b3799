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
from ge_converters.decompose import formulas, memory_order
from ge_converters.decompose.formulas import chunked_loss, regions
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
        device_kernels: Leave composite ops whole for which the device has kernels: its own eager operators run them.

    Source: ``torch._decomp``, its core ATen list after autograd.
    """
    used = REGISTRY if registry is None else registry
    used.load()
    key = (id(used), used.revision)
    known = _cache.get(key)
    if known is None:
        _cache.clear()
        known = _cache[key] = _built(used)
    # Registered when they are first called, or with an import of torchvision or torch_npu, maybe after the table.
    formulas = {**chunked_loss.decompositions(), **regions.decompositions()}
    late = {op: f for op, f in formulas.items() if used.find(op) is None}
    rules = {} if device_kernels else decomposition_rules()
    composite = {op: f for op, f in rules.items() if _not_users(used, op)}
    return {**known, **late, **composite, **(custom or {})}


def export_table(*, registry: Registry | None = None) -> dict[Any, Decomposition]:
    """The table for ``ExportedProgram.run_decompositions``, which keeps every composite op that its table lacks.

    Source: ``torch.export.default_decompositions``.
    """
    used = REGISTRY if registry is None else registry
    table = decomposition_table(registry=used)
    for op, function in torch.export.default_decompositions().items():
        if _is_composite(op) and str(op) not in NEVER and used.find(op) is None:
            table.setdefault(op, function)
    return table


def _is_composite(op: Any) -> bool:
    """Whether the dispatcher itself replaces the op by others."""
    return isinstance(op, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd"
    )


def _built(registry: Registry) -> dict[Any, Decomposition]:
    # Not core_aten_decompositions(): it walks all ops of all libraries, and fails once a library of the user is gone.
    from torch._decomp import _core_aten_decompositions_post_autograd

    table: dict[Any, Decomposition] = {}
    for op, function in {**_beyond_core(), **_core_aten_decompositions_post_autograd()}.items():
        name = str(op)
        if name in NEVER or not isinstance(op, torch._ops.OpOverload):
            continue
        if registry.find(op) is None:
            table[op] = function
    table.update({op: f for op, f in _own().items() if registry.find(op) is None})
    for op, function in formulas.beside_converters().items():
        if _not_users(registry, op):
            table[op] = function
    for op, function in memory_order.ordered(table).items():
        if _not_users(registry, op):
            table[op] = function
    return table


def _not_users(registry: Registry, op: Any) -> bool:
    """Whether no converter of the user takes the op, which would take all its arguments."""
    entry = registry.find(op)
    return entry is None or entry.layer == "built-in"


def _beyond_core() -> dict[Any, Decomposition]:
    """What torch can decompose beyond its core list: functional ops that the dispatcher itself leaves whole."""
    from torch._decomp import decomposition_table as known

    return {
        op: function
        for op, function in known.items()
        if isinstance(op, torch._ops.OpOverload) and not op._schema.is_mutable and not _is_composite(op)
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
