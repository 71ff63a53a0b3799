"""Collectives: what ``torch.distributed`` becomes in a graph, ``_c10d_functional``, as GE's ``Hcom`` operators.

The attribute ``group`` is torch's name of the process group. Functional collectives start an operation and
``wait_tensor`` ends it; in GE the operator is both, and data and control edges say who waits. Their order in the graph
is the order of the program (``ge_converters.lowering.effects``), the same on every rank.

A group of one process proves nothing about these converters, so they declare no forms; the tests of ``torchair`` run
each of them in two processes against eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ge_converters.base import torch_compat
from ge_converters.base.errors import Refusal
from ge_converters.emit.arithmetic import arithmetic
from ge_converters.emit.compute_types import carried, carrier, carry
from ge_converters.emit.shapes import shape_operand
from ge_converters.registry import F, define_refusal, register_fx_node_ge_converter
from ge_graph import DataType, Tensor, TensorSpec, schema
from ge_graph import ops as ge

functional = torch.ops._c10d_functional
_D = DataType

# torch's name of a reduction: HCCL's name, and the operator that does the same to two tensors.
_REDUCTIONS: Final = {
    "sum": ("sum", "Add"),
    "avg": ("sum", "Add"),
    "product": ("prod", "Mul"),
    "min": ("min", "Minimum"),
    "max": ("max", "Maximum"),
}
# HCCL's limits that GE's lists of types do not show.
_NO_PROD: Final = frozenset({_D.DT_INT16, _D.DT_BF16})
_FLOATS: Final = frozenset({_D.DT_FLOAT, _D.DT_FLOAT16, _D.DT_BF16, _D.DT_DOUBLE})


def _converter(op: str, *ops: str, **names: str) -> Callable[[F], F]:
    """Register the converter of those of the ops that this torch has: some builds know none, older ones fewer."""
    found = [getattr(functional, name).default for name in ops if hasattr(functional, name)]
    arguments = {a.name for target in found for a in target._schema.arguments}
    return register_fx_node_ge_converter(
        dict.fromkeys(found, ()),
        source=f"torch _c10d_functional; GE {op}",
        names={name: parameter for name, parameter in names.items() if name in arguments},
    )


def _name(group: Any) -> str:
    """Torch names a group in the graph; some versions put the group object there."""
    return group if isinstance(group, str) else str(group.group_name)


def _size(group: Any) -> int:
    process_group = torch_compat.process_group(group)
    if process_group is None:
        raise Refusal(
            f"the number of processes in group '{_name(group)}' is needed here and the group does not exist; call "
            "torch.distributed.init_process_group() before compiling"
        )
    return int(process_group.size())


def _reduction(reduce_op: str, dtype: DataType) -> tuple[str, str]:
    name = reduce_op.lower()
    if name not in _REDUCTIONS:
        raise Refusal(f"argument 'reduce_op' is '{reduce_op}'; HCCL reduces by {', '.join(_REDUCTIONS)}")
    if name == "avg" and dtype not in _FLOATS:
        raise Refusal(f"argument 'reduce_op' is 'avg' on {dtype.name}; an average needs floats, cast the input")
    return _REDUCTIONS[name]


def _takes(op: str, reduction: str, dtype: DataType) -> bool:
    return dtype in schema.require(op).inputs[0].domain and not (reduction == "prod" and dtype in _NO_PROD)


def _combined(x: Tensor, count: int, op: str) -> Tensor:
    """The blocks along dim 0 put together elementwise, in the order of the ranks."""
    parts = ge.Split(0, x, num_split=count, size_of_y=count) if count > 1 else [x]
    result = parts[0]
    for part in parts[1:]:
        result = arithmetic(op, result, part, x.dtype)
    return result


def _divided(x: Tensor, reduce_op: str, count: Callable[[], int]) -> Tensor:
    return arithmetic("RealDiv", x, float(count()), x.dtype) if reduce_op.lower() == "avg" else x


def _reshaped(x: Tensor, sizes: list[int]) -> Tensor:
    result: Tensor = ge.Reshape(x, ge.Const(sizes, dtype=_D.DT_INT64))
    result.record_shape(tuple(sizes))
    return result


# --- converters ------------------------------------------------------------------------------------------------------


@_converter("none, the operator is done when its result is there", "wait_tensor")
def wait_tensor(tensor: Tensor) -> Tensor:
    """The result of a collective. Emits: nothing, whoever reads a tensor waits for it."""
    return tensor


@_converter("HcomAllReduce", "all_reduce", "all_reduce_coalesced", inputs="input")
def all_reduce(input: Any, reduce_op: str, group_name: Any) -> Any:
    """Reduction of a tensor, or of each of a list, over the ranks of the group, the same on each.

    Dtypes: as HcomAllReduce; others (float64, uint8) by HcomAllGather, reduced on each rank in the order of ranks.
    Errors: Refusal for bitwise reductions, and for the average of integers.
    Emits:  HcomAllReduce; "avg": and RealDiv by the number of ranks.
    """
    if not isinstance(input, Tensor):
        return [all_reduce(x, reduce_op, group_name) for x in input]
    reduction, op = _reduction(reduce_op, input.dtype)
    if _takes("HcomAllReduce", reduction, input.dtype):
        y = ge.HcomAllReduce(input, reduction=reduction, group=_name(group_name), fusion=0)
    else:  # what HCCL cannot reduce it can still bring here
        count = _size(group_name)
        y = _combined(all_gather_into_tensor(input, count, group_name), count, op)
        y = y if input.rank else _reshaped(y, [])
    return _divided(y, reduce_op, lambda: _size(group_name))


@_converter("HcomAllGather", "all_gather_into_tensor", "all_gather_into_tensor_coalesced", inputs="input")
def all_gather_into_tensor(input: Any, group_size: int, group_name: Any) -> Any:
    """The tensors of all ranks, one after the other along dim 0; of each of a list.

    Shapes: [n, ...] -> [n * group_size, ...]; a scalar -> [group_size].
    Dtypes: all; bool and complex64 travel as integers.
    Emits:  HcomAllGather.
    """
    if not isinstance(input, Tensor):
        return [all_gather_into_tensor(x, group_size, group_name) for x in input]
    (moved,), back = carried("HcomAllGather", input if input.rank else _reshaped(input, [1]), moves=True)
    return back(ge.HcomAllGather(moved, rank_size=group_size, group=_name(group_name)))


@_converter("HcomReduceScatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", inputs="input")
def reduce_scatter_tensor(input: Any, reduce_op: str, group_size: int, group_name: Any) -> Any:
    """This rank's block along dim 0 of the reduction over all ranks; of each of a list.

    Shapes: [n * group_size, ...] -> [n, ...]
    Dtypes: as HcomReduceScatter; others by HcomAllToAll, reduced on each rank.
    Errors: Refusal as ``all_reduce``.
    Emits:  HcomReduceScatter; "avg": and RealDiv by the number of ranks.
    """
    if not isinstance(input, Tensor):
        return [reduce_scatter_tensor(x, reduce_op, group_size, group_name) for x in input]
    reduction, op = _reduction(reduce_op, input.dtype)
    if _takes("HcomReduceScatter", reduction, input.dtype):
        y = ge.HcomReduceScatter(input, reduction=reduction, group=_name(group_name), rank_size=group_size)
    else:
        (moved,), back = carried("HcomAllToAll", input, moves=True)
        y = _combined(back(ge.HcomAllToAll(moved, group=_name(group_name))), group_size, op)
    return _divided(y, reduce_op, lambda: group_size)


@_converter("HcomBroadcast", "broadcast")
def broadcast(input: Tensor, src: int, group_name: Any) -> Tensor:
    """The tensor of rank ``src`` of the group.

    Dtypes: all; bool and complex64 travel as integers.
    Emits:  HcomBroadcast.
    """
    (moved,), back = carried("HcomBroadcast", input, moves=True)
    return back(ge.HcomBroadcast([moved], root_rank=src, group=_name(group_name), size_of_y=1)[0])


@_converter("HcomAllToAll, HcomAllToAllV", "all_to_all_single")
def all_to_all_single(
    input: Tensor,
    output_split_sizes: Sequence[int | Tensor],
    input_split_sizes: Sequence[int | Tensor],
    group_name: Any,
    *,
    meta_outputs: TensorSpec,
) -> Tensor:
    """Rows of ``input`` to each rank, and rows from each rank in the order of ranks.

    Shapes: [sum(input_split_sizes), ...] -> [sum(output_split_sizes), ...]
    Dtypes: all; bool and complex64 travel as integers.
    Emits:  HcomAllToAll if all splits are one number, else HcomAllToAllV, whose counts are elements instead of rows.
    """
    sizes = [*output_split_sizes, *input_split_sizes]
    if all(type(s) is int for s in sizes) and len(set(sizes)) == 1:
        (moved,), back = carried("HcomAllToAll", input, moves=True)
        return back(ge.HcomAllToAll(moved, group=_name(group_name)))
    (moved,), back = carried("HcomAllToAllV", input, moves=True)
    row = _row_length(input, meta_outputs)
    sent, received = (_counts(s, row) for s in (input_split_sizes, output_split_sizes))
    return back(ge.HcomAllToAllV(moved, *sent, *received, group=_name(group_name)))


def _row_length(x: Tensor, result: TensorSpec) -> int | Tensor:
    """Elements in a row; the result has the rows of the input."""
    length = 1
    for size in result.size[1:]:
        if not isinstance(size, int) or size < 0:
            break
        length *= size
    else:
        return length
    trailing = ge.Slice(ge.Shape(x, dtype=_D.DT_INT64), [1], [-1])
    trailing.record_shape((len(result.size) - 1,))
    product: Tensor = ge.ReduceProd(trailing, [0], keep_dims=False)
    product.record_shape(())
    return product


def _counts(splits: Sequence[int | Tensor], row: int | Tensor) -> tuple[Any, Any]:
    """Counts and displacements in elements."""
    rows = shape_operand(splits)
    if isinstance(rows, list) and isinstance(row, int):
        counts = [r * row for r in rows]
        return counts, [sum(counts[:i]) for i in range(len(counts))]
    tensor = ge.Mul(rows if isinstance(rows, Tensor) else ge.Const(rows, dtype=_D.DT_INT64), row)
    tensor.record_shape((len(splits),))
    displacements = ge.Cumsum(tensor, 0, exclusive=True)
    displacements.record_shape((len(splits),))
    return tensor, displacements


# --- between two ranks -----------------------------------------------------------------------------------------------


def _peer(rank: int, group: Any) -> int:
    """Torch gives ranks of the world here, HCCL counts in the group."""
    process_group = torch_compat.process_group(group)
    if process_group is None:
        raise Refusal(f"group '{_name(group)}' does not exist; call torch.distributed.init_process_group() first")
    return int(torch.distributed.get_group_rank(process_group, rank))


@_converter("HcomSend", "isend")
def isend(tensor: Tensor, dst: int, tag: int, group_name: Any) -> Tensor:
    """Hand a tensor to rank ``dst``; the result is empty, as torch has it.

    Dtypes: all; bool and complex64 travel as integers.
    Emits:  HcomSend.
    """
    (moved,), _ = carried("HcomSend", tensor, moves=True)
    ge.HcomSend(moved, group=_name(group_name), sr_tag=tag, dest_rank=_peer(dst, group_name))
    empty: Tensor = ge.Const([], dtype=tensor.dtype)
    return empty


@_converter("HcomReceive", "irecv")
def irecv(tensor: Tensor, src: int, tag: int, group_name: Any, *, meta_outputs: TensorSpec) -> Tensor:
    """What rank ``src`` sent, of the form of ``tensor``.

    Dtypes: as ``isend``.
    Errors: Refusal for symbolic sizes, which HcomReceive has no port for.
    Emits:  HcomReceive.
    """
    sizes = [s for s in meta_outputs.size if isinstance(s, int) and s >= 0]
    if len(sizes) != len(meta_outputs.size):
        raise Refusal(
            f"argument 'tensor' has size {list(meta_outputs.size)}; HcomReceive takes fixed sizes, compile with "
            "dynamic=False"
        )
    dtype = carrier("HcomSend", tensor.dtype, moves=True)
    group = _name(group_name)
    y = ge.HcomReceive(group=group, sr_tag=tag, src_rank=_peer(src, group_name), shape=sizes, dtype=dtype)
    y.record_shape(tuple(sizes))
    return carry(y, tensor.dtype)


# --- refused ---------------------------------------------------------------------------------------------------------

_IN_PLACE: Final = (
    "all_reduce_",
    "all_reduce_coalesced_",
    "all_gather_into_tensor_out",
    "reduce_scatter_tensor_out",
    "broadcast_",
)


for _each in _IN_PLACE:
    if hasattr(functional, _each):
        define_refusal(
            getattr(functional, _each).default,
            f"{_each} writes its argument, and AOTAutograd cannot make it functional; call torch.distributed's own "
            "function or the functional form, which torch.compile captures",
            module=__name__,
            source="torch _c10d_functional; GE none, torch has no functional form",
            title=_each,
        )
