"""Ops that address the memory of their operand: as_strided, its scatter, resize, the factors of det.

A graph edge is a value without strides; which value a position in memory held is known from the strides of the traced
operand. The operand is brought into the order of its memory before the converter, which takes memory as row-major,
sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from ge_converters.base.errors import Refusal
from ge_converters.emit.compute_types import move
from ge_converters.emit.shapes import permuted
from ge_converters.lowering.calls import Caller
from ge_converters.lowering.symbols import is_symbolic
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

_LARGEST: Final = 1 << 22  # elements of a constant index


def lower_read(caller: Caller, node: torch.fx.Node) -> Any:
    """aten.as_strided: the operand, or what it is a view of, in memory order; else a gather by a constant index.

    Raises:
        Refusal: If elements are read that no value of the graph has.
    """
    source, *numbers = _arguments(node)
    return read(caller, node, source, caller.context.argument(source), numbers, node.meta["val"])


def read(
    caller: Caller, node: torch.fx.Node, source: torch.fx.Node, held: Tensor, numbers: Sequence[Any], value: Any
) -> Tensor:
    """What lies at places of a tensor's memory, by ``as_strided``.

    Args:
        caller: Converts.
        node: For which it is read.
        source: The tensor; its traced value says where elements lie.
        held: Its value, which may be newer than the node's.
        numbers: Sizes, strides and offset of what is read.
        value: What is read, as traced.

    Raises:
        Refusal: If elements are read that no value of the graph has.
    """
    size, stride, offset = map(_known, numbers)
    entry = caller.entry(torch.ops.aten.as_strided.default, node)
    reads = _positions(size, stride, _absolute(source, offset))
    is_new = held is not caller.context.argument(source)
    for holder in _holders(source):
        traced = holder.meta["val"]
        order = memory_order(traced)
        start = traced.storage_offset()
        if order is None or not _covers(traced, reads):
            continue
        if is_new and holder is not source:
            break
        x = permuted(held if holder is source else caller.context.argument(holder), order)
        result: Tensor = caller.convert(node, entry, (x, size, stride, _relative(offset, source, start)), {}, value)
        return result
    index = _index(source, reads)
    if index is None:
        raise Refusal(_why(source, reads))
    gathered = move("GatherV2", _flat(held, source), ge.Const(index), ge.Const(0, dtype=DataType.DT_INT64))
    gathered.record_shape(index.shape)
    return gathered


def _flat(held: Tensor, source: torch.fx.Node) -> Tensor:
    flat: Tensor = ge.Reshape(held, ge.Const(np.array([-1], dtype=np.int64)))
    flat.record_shape((source.meta["val"].numel(),))
    return flat


def lower_write(caller: Caller, node: torch.fx.Node) -> Any:
    """aten.as_strided_scatter: written in memory order, then put back into the order of the operand's dims.

    Raises:
        Refusal: If elements are written that the operand does not have.
    """
    source, new = node.args[0], node.args[1]
    _, *numbers = _arguments(node, 1)
    return write(caller, node, source, caller.context.argument(source), new, numbers)


def write(
    caller: Caller, node: torch.fx.Node, source: torch.fx.Node, held: Tensor, new: Any, numbers: Sequence[Any]
) -> Tensor:
    """The value of a tensor after what lies at places of its memory was overwritten.

    Args:
        caller: Converts.
        node: For which it is written.
        source: The tensor; its traced value says where elements lie.
        held: Its value, which may be newer than the node's.
        new: What is written.
        numbers: Sizes, strides and offset of what is written.

    Raises:
        Refusal: If elements are written that the tensor does not have.
    """
    size, stride, offset = map(_known, numbers)
    traced = source.meta["val"]
    order, start = memory_order(traced), traced.storage_offset()
    writes = _positions(size, stride, _absolute(source, offset))
    if order is None or not _covers(traced, writes):
        return _written_by_index(caller, node, source, held, new, writes)
    entry = caller.entry(torch.ops.aten.as_strided_scatter.default, node)
    arguments = (permuted(held, order), new, size, stride, _relative(offset, source, start))
    written = caller.convert(node, entry, arguments, {}, traced.permute(order))
    back = [order.index(d) for d in range(len(order))]
    result: Tensor = permuted(written, back)
    result.record_shape(None if written.known_shape is None else tuple(written.known_shape[d] for d in back))
    return result


def _written_by_index(
    caller: Caller,
    node: torch.fx.Node,
    source: torch.fx.Node,
    held: Tensor,
    new: Any,
    writes: np.ndarray[Any, Any] | None,
) -> Tensor:
    """Elements that lie with gaps between them are written at the places that they have in the value."""
    index = _index(source, writes)
    if index is None:
        raise Refusal(_why(source, writes))
    traced, value = source.meta["val"], caller.context.argument(new) if isinstance(new, torch.fx.Node) else new
    entry = caller.entry(torch.ops.aten.index_put.default, node)
    row = ge.Reshape(value, ge.Const(np.array([-1], dtype=np.int64)))
    places = [ge.Const(index.reshape(-1))]
    meta = torch.empty(traced.numel(), dtype=traced.dtype, device="meta")
    written = caller.convert(node, entry, (_flat(held, source), places, row), {}, meta)
    result: Tensor = ge.Reshape(written, ge.Const(np.array(traced.shape, dtype=np.int64)))
    result.record_shape(tuple(traced.shape))
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
    return given["self"], given["size"], given["stride"], given.get("storage_offset")


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


def _relative(offset: Any, source: torch.fx.Node, start: Any) -> Any:
    """An offset in the storage as one from the first element of a holder; symbolic if one of both is."""
    where = _absolute(source, offset)
    if type(start) is int and start == 0:
        return where
    return (where.meta["val"] if isinstance(where, torch.fx.Node) else where) - start


def _positions(size: Any, stride: Any, offset: Any) -> np.ndarray[Any, Any] | None:
    """Position in the storage of each element; None if one of the numbers is symbolic."""
    numbers = [*size, *stride, offset]
    if not all(type(n) is int for n in numbers) or int(np.prod(size)) > _LARGEST:
        return None
    places = np.asarray(offset, dtype=np.int64)
    for count, step in zip(size, stride):
        places = places[..., None] + np.arange(count, dtype=np.int64) * step
    return places


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one memory have an element in common, for the sizes of the present call.

    Of views with very many elements the outer dims are taken as short ones.
    """
    numbers = [[_present(n) for n in (*v.shape, *v.stride(), v.storage_offset())] for v in (a, b)]
    if any(n is None for each in numbers for n in each):
        return False
    first, second = (_places(each) for each in numbers)
    if not first.size or not second.size or first.max() < second.min() or second.max() < first.min():
        return False
    return bool(np.isin(first, second).any())


def _places(numbers: list[Any]) -> np.ndarray[Any, Any]:
    dims = len(numbers) // 2
    size, stride = numbers[:dims], numbers[dims : 2 * dims]
    for outer in sorted(range(dims), key=lambda d: stride[d], reverse=True):
        if int(np.prod(size)) > _LARGEST:
            size[outer] = min(size[outer], 2)
    places = _positions(size, stride, numbers[-1])
    return np.empty(0) if places is None else places


def _present(number: Any) -> int | None:
    """A size as it is in the present call; None if that is not known."""
    if not is_symbolic(number):
        return int(number)
    return int(number.node.hint) if number.node.has_hint() else None


def _covers(held: torch.Tensor, reads: np.ndarray[Any, Any] | None) -> bool:
    """Whether all positions are in a block of memory; symbolic ones are checked by the engine when it reads."""
    start = held.storage_offset()
    if reads is None or reads.size == 0 or type(held.numel()) is not int or type(start) is not int:
        return True
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
