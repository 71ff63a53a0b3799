"""Ops that address the memory of their operand: as_strided, its scatter, resize, the factors of det.

A graph edge is a value without strides; which value a position in memory held is known from the strides of the traced
operand. The operand is brought into the order of its memory before the converter, which takes memory as row-major,
sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from ge_converters.base.errors import Refusal
from ge_converters.emit.compute_types import move
from ge_converters.emit.shapes import permuted
from ge_converters.lowering.calls import Caller
from ge_converters.lowering.symbols import is_symbolic
from ge_graph import DataType
from ge_graph import ops as ge

_LARGEST: Final = 1 << 22  # elements of a constant index


def lower_read(caller: Caller, node: torch.fx.Node) -> Any:
    """aten.as_strided: the operand, or what it is a view of, in memory order; else a gather by a constant index.

    Raises:
        Refusal: If elements are read that no value of the graph has.
    """
    source, size, stride, offset = _arguments(node)
    entry = caller.entry(node.target, node)
    value = node.meta["val"]
    reads = _positions(size, stride, _absolute(source, offset))
    for holder in _holders(source):
        held = holder.meta["val"]
        order = memory_order(held)
        start = held.storage_offset()
        if order is None or type(start) is not int or not _covers(held, reads):
            continue
        x = permuted(caller.context.argument(holder), order)
        return caller.convert(node, entry, (x, size, stride, _relative(offset, source, start)), {}, value)
    index = _index(source, reads)
    if index is None:
        raise Refusal(_why(source, reads))
    flat = ge.Reshape(caller.context.argument(source), ge.Const(np.array([-1], dtype=np.int64)))
    flat.record_shape((source.meta["val"].numel(),))
    read = move("GatherV2", flat, ge.Const(index), ge.Const(0, dtype=DataType.DT_INT64))
    read.record_shape(index.shape)
    return read


def lower_write(caller: Caller, node: torch.fx.Node) -> Any:
    """aten.as_strided_scatter: written in memory order, then put back into the order of the operand's dims.

    Raises:
        Refusal: If the operand's elements are not all of a block of memory, or the write leaves that block.
    """
    source, new = node.args[0], node.args[1]
    _, size, stride, offset = _arguments(node, 1)
    held = source.meta["val"]
    order, start = memory_order(held), held.storage_offset()
    writes = _positions(size, stride, _absolute(source, offset))
    if order is None or type(start) is not int or not _covers(held, writes):
        raise Refusal(_why(source, writes))
    entry = caller.entry(node.target, node)
    x = permuted(caller.context.argument(source), order)
    arguments = (x, new, size, stride, _relative(offset, source, start))
    written = caller.convert(node, entry, arguments, {}, held.permute(order))
    back = [order.index(d) for d in range(len(order))]
    result = permuted(written, back)
    result.record_shape(None if written.known_shape is None else tuple(written.known_shape[d] for d in back))
    return result


def lower_resize(caller: Caller, node: torch.fx.Node) -> Any:
    """aten.resize, the functional form of resize_: the first elements in memory.

    Raises:
        Refusal: If the operand's elements do not fill a block of memory.
    """
    source: Any = node.args[0]
    order = memory_order(source.meta["val"])
    if order is None:
        raise Refusal(_why(source))
    x = permuted(caller.context.argument(source), order)
    return caller.convert(node, caller.entry(node.target, node), (x, *node.args[1:]), node.kwargs, node.meta["val"])


def lower_determinant(caller: Caller, node: torch.fx.Node) -> Any:
    """aten._linalg_det and _linalg_slogdet: eager factors the transpose of a real matrix that lies row by row, and the
    gradient, which reads the factors, counts on it.
    """
    held = node.args[0].meta["val"]
    x, rank = caller.context.argument(node.args[0]), held.dim()
    if memory_order(held) == list(range(rank)) and not held.is_complex():
        x = permuted(x, [*range(rank - 2), rank - 1, rank - 2])
    return caller.convert(node, caller.entry(node.target, node), (x,), {}, node.meta["val"])


def _arguments(node: torch.fx.Node, skip: int = 0) -> tuple[torch.fx.Node, Any, Any, Any]:
    names = [a.name for a in node.target._schema.arguments]
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return given["self"], _known(given["size"]), _known(given["stride"]), _known(given.get("storage_offset"))


def _known(value: Any) -> Any:
    """Symbolic numbers of which FX knows the number, as that number."""
    if isinstance(value, (list, tuple)):
        return [_known(v) for v in value]
    if isinstance(value, torch.fx.Node):
        traced = value.meta.get("val")
        return traced if isinstance(traced, int) else value
    return value


def _whole(value: Any) -> Any:
    """A size or stride for comparison: an int, or the expression of its symbols."""
    return value.node.expr if is_symbolic(value) else value


def memory_order(value: torch.Tensor) -> list[int] | None:
    """The order of the dims in which the elements of a tensor lie side by side; None if they do not fill a block."""
    sizes, strides = [_whole(s) for s in value.shape], [_whole(s) for s in value.stride()]
    if any(type(s) is int and s == 0 for s in sizes):
        return list(range(len(sizes)))
    left = [d for d in range(len(sizes)) if sizes[d] != 1]
    inner: list[int] = []
    expected: Any = 1
    while left:
        candidates = [d for d in reversed(left) if strides[d] == expected]
        if not candidates:
            return None
        inner.append(candidates[0])
        left.remove(candidates[0])
        expected = expected * sizes[candidates[0]]
    return [d for d in range(len(sizes)) if sizes[d] == 1] + inner[::-1]


def _absolute(source: torch.fx.Node, offset: Any) -> Any:
    return source.meta["val"].storage_offset() if offset is None else offset


def _relative(offset: Any, source: torch.fx.Node, start: int) -> Any:
    """An offset in the storage as one from the first element of a holder."""
    where = _absolute(source, offset)
    if start == 0:
        return where
    if type(where) is int:
        return where - start
    raise Refusal("storage_offset is symbolic and the operand does not begin where its storage does; slice instead")


def _positions(size: Any, stride: Any, offset: Any) -> np.ndarray[Any, Any] | None:
    """Position in the storage of each element; None if one of the numbers is symbolic."""
    numbers = [*size, *stride, offset]
    if not all(type(n) is int for n in numbers) or int(np.prod(size)) > _LARGEST:
        return None
    places = np.asarray(offset, dtype=np.int64)
    for count, step in zip(size, stride):
        places = places[..., None] + np.arange(count, dtype=np.int64) * step
    return places


def _covers(held: torch.Tensor, reads: np.ndarray[Any, Any] | None) -> bool:
    """Whether all positions are in a block of memory; symbolic ones are checked by the engine when it reads."""
    if reads is None or reads.size == 0 or type(held.numel()) is not int:
        return True
    start = held.storage_offset()
    return bool(reads.min() >= start and reads.max() < start + held.numel())


def _holders(source: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node and, as far as it is a view, those that it is a view of."""
    storage = source.meta["val"].untyped_storage()._cdata
    node: Any = source
    while isinstance(node, torch.fx.Node):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata != storage:
            return
        yield node
        node = node.args[0] if node.op == "call_function" and node.args else None


def _index(source: torch.fx.Node, reads: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any] | None:
    """Row-major position in the operand of each element that is read, None if one is not there."""
    held = source.meta["val"]
    places = _positions(list(held.shape), list(held.stride()), held.storage_offset())
    if reads is None or places is None:
        return None
    if reads.size == 0:
        return reads
    known, where = np.unique(places.reshape(-1), return_index=True)
    if known.size == 0:
        return None
    slots = np.minimum(np.searchsorted(known, reads), known.size - 1)
    return where[slots].astype(np.int64) if bool((known[slots] == reads).all()) else None


def _why(source: torch.fx.Node, reads: np.ndarray[Any, Any] | None = None) -> str:
    """Why elements cannot be addressed by their place in memory, and what to do.

    Args:
        source: The tensor.
        reads: Positions in the storage; None if they are symbolic, or are not the trouble.
    """
    held = source.meta["val"]
    said = (
        f"argument 'self' has sizes {tuple(held.shape)}, strides {held.stride()} and offset {held.storage_offset()}; "
    )
    places = _positions(list(held.shape), list(held.stride()), held.storage_offset())
    if places is None or reads is None:
        return (
            f"{said}its strides leave gaps or overlap, and where elements lie is known of a tensor that fills a block "
            "of memory only. Call contiguous() first, or index instead"
        )
    missing = np.setdiff1d(reads, places)
    if not missing.size:
        return f"{said}its elements do not fill a block of memory. Call contiguous() first, or index instead"
    name = f"input {source.name}" if source.op == "placeholder" else source.name
    return (
        f"{said}the elements addressed lie in its storage but not in its value: {missing.size} of them, the first at "
        f"position {missing[0]}. What is around {name} in memory is not handed over. Pass the whole tensor that it is "
        "a view of and take the view inside, call contiguous() first, or index instead"
    )


MEMORY_OPS: Final[dict[Any, Callable[[Caller, torch.fx.Node], Any]]] = {
    torch.ops.aten.as_strided.default: lower_read,
    torch.ops.aten.as_strided_copy.default: lower_read,
    torch.ops.aten.as_strided_scatter.default: lower_write,
    torch.ops.aten.resize.default: lower_resize,
    torch.ops.aten._linalg_det.default: lower_determinant,
    torch.ops.aten._linalg_slogdet.default: lower_determinant,
}
