"""Numbers that change in every step, such as a position or a length, and what a captured program does with them.

A captured program runs with the sizes of its capture. A number that decides no size need not be one of them: a task
that takes it in a list on the host is updated before each replay, all others read it from device memory, where the host
writes it. Which inputs are of that kind is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from ge_converters.base.torch_compat import surely
from torchair.passes.base import FxPass, value_of

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig

aten = torch.ops.aten
FxNode: TypeAlias = torch.fx.Node


@dataclass(frozen=True, slots=True)
class HostLists:
    """An operator of torch_npu whose task an update can replace.

    Attributes:
        lists: Its arguments that are lists of ints on the host.
        workspace: The operator that gives memory enough for all lengths; it takes the same arguments.
    """

    lists: frozenset[str]
    workspace: str


TASKS: Final = {
    "npu_fused_infer_attention_score": HostLists(
        frozenset(("actual_seq_lengths", "actual_seq_lengths_kv", "actual_shared_prefix_len")),
        "_npu_fused_infer_attention_score_get_max_workspace",
    ),
    "npu_fused_infer_attention_score_v2": HostLists(
        frozenset(("actual_seq_qlen", "actual_seq_kvlen")), "_npu_fused_infer_attention_score_v2_get_max_workspace"
    ),
}
"""By the operator's name; each has an overload ``out`` with the arguments ``workspace`` and ``out``."""


def host_lists(node: FxNode) -> frozenset[str]:
    """The arguments of a node that an update of its task can replace."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "npu" or target._overloadname != "default":
        return frozenset()
    row = TASKS.get(target._schema.name.split("::")[1])
    return frozenset() if row is None else row.lists


def is_number(node: Any) -> bool:
    """Whether a node gives a number that is not known when compiling."""
    return isinstance(value_of(node), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _symbols(value: Any) -> frozenset[Any]:
    """The symbols in sizes and strides of a tensor, or in a number; who begins elsewhere in memory reads a number."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return frozenset().union(*map(_symbols, (*value.shape, *strides)))
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return frozenset(value.node.expr.free_symbols)
    if isinstance(value, (list, tuple)):
        return frozenset().union(*map(_symbols, value))
    return frozenset()


def _sizes(graph: torch.fx.Graph) -> frozenset[Any]:
    """The symbols that decide the size or layout of some tensor of the graph."""
    values = (value_of(n) for n in graph.nodes if not is_number(n))
    return frozenset().union(*map(_symbols, values))


def numbers_without_sizes(graph: torch.fx.Graph) -> list[FxNode]:
    """Inputs that are numbers and decide no size."""
    sizes = _sizes(graph)
    inputs = (n for n in graph.nodes if n.op == "placeholder" and is_number(n))
    return [n for n in inputs if _symbols(value_of(n)) and not _symbols(value_of(n)) & sizes]


def _numbers(graph: torch.fx.Graph) -> list[FxNode]:
    return [n for n in numbers_without_sizes(graph) if isinstance(value_of(n), torch.SymInt)]


def _readers(number: FxNode) -> Iterator[tuple[FxNode, FxNode]]:
    """Who reads a number, or a number made of it, with the number that is read; further numbers are not listed."""
    todo, seen = [number], {number}
    while todo:
        node = todo.pop()
        for user in node.users:
            if user.op == "call_function" and is_number(user):
                if user not in seen:
                    seen.add(user)
                    todo.append(user)
            else:
                yield user, node


def _held_on_device(user: FxNode, home: str) -> bool:
    """Whether a node puts a number where the captured program runs; an operator of a device keeps one of the host."""
    return user.target is aten.scalar_tensor.default and value_of(user).device.type == home


def home_of(graph: torch.fx.Graph) -> str:
    """The device type of the graph; a device wins over the host."""
    devices = {v.device.type for n in graph.nodes if isinstance(v := value_of(n), torch.Tensor)}
    return min(devices, key=lambda device: (device == "cpu", device), default="cpu")


def _updated(user: FxNode, number: FxNode) -> bool:
    """Whether a node reads the number in lists that an update of its task replaces, and nowhere else."""
    lists = host_lists(user)
    elsewhere: list[FxNode] = []
    rest = {k: v for k, v in user.kwargs.items() if k not in lists}
    torch.fx.map_arg((user.args, rest), elsewhere.append)
    return bool(lists) and number not in elsewhere


def step_inputs(graph: torch.fx.Graph) -> frozenset[FxNode]:
    """Inputs whose value a replay takes as it comes: numbers that only reach updated tasks and device memory.

    Another value of any other number needs another capture.
    """
    home = home_of(graph)
    return frozenset(
        n
        for n in _numbers(graph)
        if all(_held_on_device(user, home) or _updated(user, read) for user, read in _readers(n))
    )


# -- what the host computes


def on_host(graph: torch.fx.Graph) -> frozenset[FxNode]:
    """What the host alone computes of a graph that a device captures: inputs and constants that lie there, numbers, and
    what is made of them without a look at their values.

    None of it is part of a capture; the host computes it before each run.
    """
    found: set[FxNode] = set()
    if home_of(graph) == "cpu":
        return frozenset()
    for node in graph.nodes:
        given = node.op in ("placeholder", "get_attr")
        if (given or _computes(node, found)) and (_lies_on_host(value_of(node)) or is_number(node)):
            found.add(node)
    return frozenset(found)


def _computes(node: FxNode, found: set[FxNode]) -> bool:
    if node.op != "call_function":
        return False
    tags = getattr(node.target, "tags", ())
    looks = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
    op = node.target if isinstance(node.target, torch._ops.OpOverload) else None
    plain = (
        is_number(node) or op is not None and not op._schema.is_mutable and op.namespace != "air"
    )  # marks of streams
    return plain and not looks and found.issuperset(node.all_input_nodes)


def _lies_on_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def changing_values(graph: torch.fx.Graph) -> set[FxNode]:
    """Values that need not be the same in every run."""
    changing: set[FxNode] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(n in changing for n in node.all_input_nodes):
            changing.add(node)
    return changing


# -- numbers in device memory

_INTEGER: Final = frozenset((torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64))
# A tensor of no dimensions means the same as a number to these, if the element type can hold what the number was.
_WITH_NUMBER: Final = {
    **{getattr(aten, n).Tensor: getattr(aten, n).Tensor for n in ("add", "sub", "mul")},
    **{getattr(aten, n).Scalar: getattr(aten, n).Tensor for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{getattr(aten, n).Tensor: getattr(aten, n).Tensor for n in ("eq", "ne", "lt", "le", "gt", "ge")},
}


class _Writer:
    """Puts nodes before one that they take the place of; keeps one tensor a number and device."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.graph = graph
        self._held: dict[tuple[FxNode, torch.dtype, torch.device], FxNode] = {}

    def call(self, target: Any, *args: Any, **kwargs: Any) -> FxNode:
        node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.map_arg((args, kwargs), value_of)
        node.meta["val"] = target(*values[0], **values[1])
        return node

    def number(self, number: FxNode, dtype: torch.dtype, device: torch.device) -> FxNode:
        """A tensor of no dimensions that holds a number."""
        key = (number, dtype, device)
        if key not in self._held:
            with self.graph.inserting_after(_last_input(self.graph, number)):
                self._held[key] = self.call(aten.scalar_tensor.default, number, dtype=dtype, device=device)
        return self._held[key]

    def index(self, number: FxNode, count: int, device: torch.device) -> FxNode:
        """``number, number + 1, …``, so many of them."""
        one = self.call(aten.view.default, self.number(number, torch.int64, device), [1])
        if count == 1:
            return one
        return self.call(aten.add.Tensor, self.call(aten.arange.default, count, device=device), one)


def _last_input(graph: torch.fx.Graph, number: FxNode) -> FxNode:
    """Where a node that reads ``number`` can stand first."""
    if number.op != "placeholder":
        return number
    return [n for n in graph.nodes if n.op == "placeholder"][-1]


def _argument(node: FxNode, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _not_negative(number: Any) -> bool:
    return surely(value_of(number) >= 0)


def _with_number(node: FxNode, write: _Writer) -> FxNode | None:
    """``add(x, n)`` and the like."""
    x, number = node.args[:2]
    held = value_of(x)
    if not isinstance(held, torch.Tensor) or len(node.args) > 2 or node.kwargs or not is_number(number):
        return None
    result = value_of(node).dtype
    if (
        held.dtype in _INTEGER
        and result in (held.dtype, torch.bool)
        or held.dtype in (torch.float32, torch.float64)
        and result == held.dtype
    ):
        dtype = held.dtype
    else:
        return None
    return write.call(_WITH_NUMBER[node.target], x, write.number(number, dtype, held.device))


def _full(node: FxNode, write: _Writer) -> FxNode | None:
    """``full([1], n)``."""
    size, number = node.args[:2]
    made = value_of(node)
    if not is_number(number) or not all(type(n) is int for n in size) or made.dtype not in _INTEGER:
        return None
    one = write.number(number, made.dtype, made.device)
    if not size:
        return one
    return write.call(
        aten.clone.default, write.call(aten.expand.default, one, list(size)), memory_format=torch.contiguous_format
    )


def _scalar_tensor(node: FxNode, write: _Writer) -> FxNode | None:
    """One tensor a number, at the beginning."""
    made, number = value_of(node), node.args[0]
    mine = write.number(number, made.dtype, made.device) if is_number(number) and made.dtype in _INTEGER else node
    return None if mine is node else mine


def _moved(node: FxNode, write: _Writer) -> FxNode | None:
    """``scalar_tensor(n, device=cpu).to(device)``: the host's number goes there without a copy in between."""
    source, made = node.args[0], value_of(node)
    if not isinstance(source, torch.fx.Node) or source.target is not aten.scalar_tensor.default:
        return None
    if value_of(source).dtype not in _INTEGER or made.dtype not in _INTEGER or not is_number(source.args[0]):
        return None
    return write.number(source.args[0], made.dtype, made.device)


def _arange(node: FxNode, write: _Writer) -> FxNode | None:
    """``arange(n, n + 3)``."""
    made, number = value_of(node), node.args[0]
    count = made.shape[0]
    if type(count) is not int or made.dtype is not torch.int64 or _argument(node, 2, "step", 1) != 1:
        return None
    if not is_number(number) or not surely(value_of(number) + count == value_of(node.args[1])):
        return None
    return write.index(number, count, made.device)


def _select(node: FxNode, write: _Writer) -> FxNode | None:
    """``select(x, dim, n)``."""
    x, dim, number = node.args
    if not is_number(number) or not _not_negative(number) or _handed_out(node):
        return None
    taken = write.call(aten.index_select.default, x, dim, write.index(number, 1, value_of(x).device))
    return write.call(aten.squeeze.dim, taken, dim)


def _slice(node: FxNode, write: _Writer) -> FxNode | None:
    """``slice(x, dim, n, n + 3)``."""
    found = _span(node, 1, value_of(node))
    if found is None or _handed_out(node):
        return None
    dim, number, count = found
    return write.call(aten.index_select.default, node.args[0], dim, write.index(number, count, value_of(node).device))


def _slice_scatter(node: FxNode, write: _Writer) -> FxNode | None:
    """``slice_scatter(x, new, dim, n, n + 3)``."""
    x, new = node.args[:2]
    found = _span(node, 2, value_of(new))
    if found is None:
        return None
    dim, number, count = found
    return write.call(aten.index_copy.default, x, dim, write.index(number, count, value_of(x).device), new)


def _select_scatter(node: FxNode, write: _Writer) -> FxNode | None:
    """``select_scatter(x, new, dim, n)``."""
    x, new, dim, number = node.args
    if not is_number(number) or not _not_negative(number):
        return None
    row = write.call(aten.unsqueeze.default, new, dim % value_of(x).dim())
    return write.call(aten.index_copy.default, x, dim, write.index(number, 1, value_of(x).device), row)


def _span(node: FxNode, first: int, part: torch.Tensor) -> tuple[int, FxNode, int] | None:
    """Dimension, begin and length of a slice that begins at a number and is not cut off at the end."""
    dim, begin, step = (
        _argument(node, first + i, n, d) for i, n, d in ((0, "dim", 0), (1, "start", 0), (3, "step", 1))
    )
    end = _argument(node, first + 2, "end", None)
    count = part.shape[dim]
    if not is_number(begin) or step != 1 or type(count) is not int or end is None or not _not_negative(begin):
        return None
    return (dim, begin, count) if surely(value_of(begin) + count == value_of(end)) else None


def _handed_out(node: FxNode) -> bool:
    """Whether the caller or a writer gets a view: then a copy in its place would not be the same."""
    return any(u.op == "output" or getattr(getattr(u.target, "_schema", None), "is_mutable", False) for u in node.users)


_FORMS: Final[dict[Any, Callable[[FxNode, _Writer], FxNode | None]]] = {
    **dict.fromkeys(_WITH_NUMBER, _with_number),
    aten.full.default: _full,
    aten.scalar_tensor.default: _scalar_tensor,
    aten._to_copy.default: _moved,
    torch.ops.prims.device_put.default: _moved,
    aten.arange.start_step: _arange,
    aten.arange.start: _arange,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
}


class NumbersOnDevice(FxPass):
    """``add(x, n)`` -> ``add(x, scalar_tensor(n))``; positions in ``select``, ``slice`` and writes alike.

    Only numbers that decide no size, such as a position in a cache, and with the same bits as result.

    A number inside an operator is part of a captured task and needs a capture a value; in memory it needs one capture.
    """

    def enabled(self, config: NpuBaseConfig, phase: str) -> bool:
        """Only what is captured."""
        return phase == "forward" and config.mode.value == "reduce-overhead"

    def run(self, gm: torch.fx.GraphModule) -> int:
        graph = gm.graph
        numbers = _numbers(graph)
        found = list(dict.fromkeys(user for n in numbers for user, _ in _readers(n)))
        found += [u for n in found if n.target is aten.scalar_tensor.default for u in n.users]
        write = _Writer(graph)
        edits = sum(_replace(node, write) for node in _in_order(graph, found)) if found else 0
        for node in [n for n in graph.nodes if n.target is aten.scalar_tensor.default and not n.users]:
            graph.erase_node(node)
        return edits


def _in_order(graph: torch.fx.Graph, chosen: Iterable[FxNode]) -> list[FxNode]:
    wanted = set(chosen)
    return [n for n in graph.nodes if n in wanted]


def _replace(node: FxNode, write: _Writer) -> bool:
    form = _FORMS.get(node.target)
    if form is None:
        return False
    with write.graph.inserting_before(node):
        made = form(node, write)
    if made is None:
        return False
    for key in ("stack_trace", "nn_module_stack", "original_aten"):
        if key in node.meta and key not in made.meta:
            made.meta[key] = node.meta[key]
    node.replace_all_uses_with(made)
    write.graph.erase_node(node)
    return True
