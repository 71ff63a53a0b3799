"""One node during planning: operands by port name, as tensors, constants or host numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_graph.ir import Node, Tensor
from ge_runtime.cpu.host import HOST_DTYPES, MAX_LIST
from ge_runtime.cpu.registry import Kernel, Ref, is_builtin, parameters
from ge_runtime.cpu.values import whole

_MAX_CONST = 4096
_TYPES = ("dtype", "dst_type", "out_type", "DstT", "Tout", "T")


def input_ports(node: Node, kernel: Kernel | None) -> tuple[str, ...]:
    """Names of the input ports: the schema's, or the kernel's own parameter names for operators without one."""
    op_schema = schema.get(node.op)
    if op_schema is not None:
        return tuple(p.name for p in op_schema.inputs)
    names = parameters(kernel.run)[0] if kernel is not None else []
    return tuple(names) + tuple(f"input{i}" for i in range(len(names), len(node.inputs)))


def said(node: Node, ports: Sequence[str]) -> Iterator[str]:
    """Ports that are fed and attributes of the schema whose value is not the default."""
    yield from (port for port, entry in zip(ports, node.inputs) if entry is not None and entry != ())
    op_schema = schema.get(node.op)
    for name, attr in node.attrs.items():
        spec = None if op_schema is None else op_schema.attr(name)
        if spec is not None and (spec.default is None or spec.default.value != attr.value):
            yield name


def own_results(node: Node, kernel: Kernel) -> frozenset[int]:
    """Results of an updating kernel of ours that are memory of their own: the updated ones bear their ports' names."""
    op_schema = schema.get(node.op)
    names = [p.name for p in op_schema.outputs] if op_schema is not None and is_builtin(node.op) else []
    if len(names) != len(node.outputs) or not set(kernel.updates) <= set(names):
        return frozenset()
    return frozenset(i for i, name in enumerate(names) if name not in kernel.updates)


class PlanContext:
    """One node as a plan hook or host rule sees it. Ports are named as in the schema."""

    __slots__ = ("planner", "node", "ports", "_operands", "asked")

    def __init__(self, planner: Any, node: Node, kernel: Kernel | None) -> None:
        self.planner = planner
        self.node = node
        self.ports = input_ports(node, kernel)
        self._operands = dict(zip(self.ports, node.inputs))
        self.asked: set[str] = set()

    def fed(self, port: str) -> bool:
        """Whether the port has an operand."""
        self.asked.add(port)
        return self._operands.get(port) is not None

    def edge(self, port: str) -> Tensor | None:
        """The single edge of a port."""
        self.asked.add(port)
        entry = self._operands.get(port)
        return entry if isinstance(entry, Tensor) else None

    def tensor(self, port: str) -> Any:
        """The operand as a Ref to a tensor; a list for a dynamic port; None if not fed."""
        self.asked.add(port)
        entry = self._operands.get(port)
        if entry is None:
            return None
        if isinstance(entry, tuple):
            return [self.planner.tensor(e) for e in entry]
        return self.planner.tensor(entry)

    def const(self, port: str) -> Any:
        """The operand as Python numbers if it is a small constant."""
        edge = self.edge(port)
        return None if edge is None else self._const(edge)

    def _const(self, edge: Tensor) -> Any:
        value = self.planner.values[edge]
        if value.host is not None:
            parts = value.host if isinstance(value.host, list) else [value.host]
            return None if any(isinstance(p, Ref) for p in parts) else value.host
        if value.const is None or value.const.numel() > _MAX_CONST:
            return None
        return value.const.tolist()

    def _host(self, edge: Tensor) -> Any:
        value = self.planner.values[edge]
        if value.host is not None:
            return value.host
        if edge.dtype not in HOST_DTYPES:
            return None
        if value.const is not None:
            small = value.const.dim() <= 1 and value.const.numel() <= MAX_LIST
            return value.const.tolist() if small else None
        if edge.node.op == "Data" and edge.known_shape == ():
            value.host = self.planner.number(bool if edge.dtype is DataType.DT_BOOL else whole, Ref(value.var))
        return value.host

    def host(self, port: str) -> Any:
        """The operand as an int, bool, Ref or list of these; None if it is only known as a tensor."""
        edge = self.edge(port)
        return None if edge is None else self._host(edge)

    def hosts(self, port: str) -> list[Any] | None:
        """All operands of a dynamic port as host values, None if one is only a tensor."""
        self.asked.add(port)
        entry = self._operands.get(port)
        if not isinstance(entry, tuple):
            return None
        values = [self._host(e) for e in entry]
        return None if any(f is None for f in values) else values

    def dims(self, port: str) -> list[Any] | None:
        """The operand's sizes as numbers and Refs; None if its rank is not known."""
        edge = self.edge(port)
        return None if edge is None else self.planner.dims(edge)

    def number(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """Compute a Python number in the program: ``fn`` of numbers and Refs."""
        ref: Ref = self.planner.number(fn, *args)
        return ref

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        self.asked.add(name)
        return self.node.attr(name, default)

    def dtype(self, port: str) -> DataType | None:
        """Element type of the operand."""
        edge = self.edge(port)
        return None if edge is None else edge.dtype

    def out_dtype(self, index: int = 0) -> DataType:
        """Element type of an output."""
        self.asked.update(_TYPES)  # the verifier holds an output to what these attributes say
        return self.node.outputs[index].dtype

    def shape(self, port: str) -> tuple[int | str, ...] | None:
        """Recorded shape of the operand."""
        edge = self.edge(port)
        return None if edge is None else edge.known_shape

    def unasked(self, ignores: Collection[str]) -> list[str]:
        """What the node says and nobody asked for: fed ports and attributes that differ from their defaults."""
        return [name for name in said(self.node, self.ports) if name not in self.asked and name not in ignores]

    def is_read(self, index: int) -> bool:
        """Whether a node or the graph's result reads an output."""
        used: bool = self.planner._uses[self.node.outputs[index]] > 0
        return used
