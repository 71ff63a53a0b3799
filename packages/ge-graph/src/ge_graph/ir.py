"""The graph in memory: ``Graph``, ``Node``, ``Tensor``. Nothing here knows bytes, text or torch.

A graph is a list of nodes in a topological order. A ``Tensor`` is an edge: an output of one node, read by others.
Inputs of a node stand in schema order, one entry per port: a ``Tensor``, ``None`` for an optional port that is not fed,
or a tuple for a dynamic port. Converters see ``dtype`` and ``rank`` only; shapes recorded on an edge are for the
verifier, dumps and engines, and one graph serves every size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ge_graph import schema
from ge_graph.attrs import Attr
from ge_graph.dtypes import DataType, Format
from ge_graph.errors import GraphError

if TYPE_CHECKING:
    import numpy as np

Dim: TypeAlias = "int | str"  # a number, or the text of a symbolic expression such as "s0" or "2*s0 + 1"
Shape: TypeAlias = "tuple[Dim, ...]"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor without its data: the type of ``meta_outputs``.

    Attributes:
        dtype: Element type.
        size: One entry per dimension, an int or the text of a symbolic expression.
        stride: Element strides if known; the engine works on values, so this matters only at the graph's rim.
    """

    dtype: DataType
    size: Shape
    stride: Shape | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.size)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a GE node comes from; carried through passes, dumps, errors and comparison.

    Attributes:
        fx_name: Name of the FX node, ``add_1``.
        fx_target: ``aten.add.Tensor``.
        fx_text: The FX node as one line of code, made on demand by whoever dumps; empty if nobody asked.
        module: Path of the nn.Module, ``model.layers.0.self_attn``.
        source: ``file.py:41 in forward``, the user's line.
        code: The text of that line.
    """

    fx_name: str = ""
    fx_target: str = ""
    fx_text: str = ""
    module: str = ""
    source: str = ""
    code: str = ""

    @property
    def own_call(self) -> OwnCall | None:
        """The call of a user's operator that the node stands for, alone; never read from a file."""
        return None

    def texts(self) -> tuple[str, str, str, str, str, str]:
        """All of it, in the order of the attributes; asked for at once by whoever writes every node."""
        return self.fx_name, self.fx_target, self.fx_text, self.module, self.source, self.code


class Given(NamedTuple):
    """Stands in an ``OwnCall`` for what a node reads.

    Attributes:
        position: Among ``Node.operands()``.
    """

    position: int


@dataclass(frozen=True, slots=True, eq=False)
class OwnCall:
    """A call of a user's operator, for an engine without a kernel of its own.

    Attributes:
        node_op: The operator type that stands for it.
        function: What was called; of the framework that the graph was made from.
        args: Its arguments, ``Given`` in the place of tensors.
        keywords: Those by name.
        written: Positions of operands that the function writes.
        told: Operator types of which an engine has said that such a call computes them; one set for all graphs of
            a backend, so that each is said once.
    """

    node_op: str
    function: Any
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    written: tuple[int, ...] = ()
    told: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """Raw constant data that numpy cannot type (bfloat16, float8, 4-bit) or that must not be copied.

    ``data`` is a flat uint8 array in little-endian C order; ``dtype`` and ``shape`` say how to read it.
    """

    dtype: DataType
    shape: tuple[int, ...]
    data: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class WeightLiteral(Literal):
    """A constant that stands in a file of its own, beside the graph: it takes no room in the graph's message."""


@dataclass(frozen=True, slots=True, eq=False)
class FileLiteral(WeightLiteral):
    """A constant whose ``data`` is mapped from a file that stays as it is while the graph lives.

    An engine in front of a device may name the file instead of handing the bytes over.

    Attributes:
        path: Absolute path.
        offset: First byte in the file.
    """

    path: str
    offset: int = 0


class Tensor:
    """An edge of the graph: output ``index`` of ``node``.

    Attributes:
        dtype: Element type.
        index: Which output of its node it is.
        node: The producer.
        format: Memory layout, ND unless a converter says otherwise.
    """

    __slots__ = ("node", "index", "dtype", "_shape", "format")

    def __init__(
        self, node: Node, index: int, dtype: DataType, shape: Shape | None = None, format: Format = Format.FORMAT_ND
    ) -> None:
        self.node = node
        self.index = index
        self.dtype = dtype
        self._shape = shape
        self.format = format

    @property
    def rank(self) -> int:
        """Number of dimensions.

        Raises:
            GraphError: GE3003 if the rank of an intermediate result is not known.
        """
        if self._shape is None:
            raise GraphError(
                "GE3003",
                f"rank of {self} is not known: only inputs and finished results carry one",
                next="take the rank from meta_outputs or from the converter's own inputs",
            )
        return len(self._shape)

    @property
    def known_shape(self) -> Shape | None:
        """The recorded shape for verifier, dumps and engines, ``None`` if unknown. Converters must not read it."""
        return self._shape

    def record_shape(self, shape: Shape | None) -> None:
        """Set the recorded shape."""
        self._shape = shape

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "size", "numel"):
            raise GraphError(
                "GE3003",
                f"a GE tensor has no {name}: a converter serves every shape",
                next="use dtype and rank, or emit ge.Shape and compute with it inside the graph",
            )
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")

    def __bool__(self) -> bool:
        raise GraphError(
            "GE3003",
            f"{self} has no truth value: its elements are known when the graph runs",
            next="write `x is not None` for an optional argument; choose by value with ge.SelectV2",
        )

    @property
    def name(self) -> str:
        """``node:index``, the name of the edge on the wire."""
        return f"{self.node.name}:{self.index}"

    def __repr__(self) -> str:
        dims = "?" if self._shape is None else ", ".join(map(str, self._shape))
        return f"%{self.node.name}:{self.index} {self.dtype.short}[{dims}]"


Operand: TypeAlias = "Tensor | None | tuple[Tensor, ...]"


class Node:
    """One operator of the graph.

    Attributes:
        graph: The graph it belongs to.
        name: Unique in the graph.
        op: Operator type, ``MatMulV2``.
        inputs: One entry per schema port: Tensor, None (optional, not fed) or a tuple (dynamic port).
        attrs: Name to typed value; schema defaults are filled in.
        outputs: All outputs, dynamic ports flattened.
        output_counts: Port name to number of tensors, dynamic output ports only.
        control: Nodes that must run before this one.
        provenance: Where it comes from.
        subgraphs: Slot name to graph, for If, While, Case and the like.
    """

    __slots__ = (
        "graph",
        "name",
        "op",
        "inputs",
        "attrs",
        "outputs",
        "output_counts",
        "control",
        "provenance",
        "subgraphs",
    )

    def __init__(self, graph: Graph, name: str, op: str, inputs: Sequence[Operand], attrs: dict[str, Attr]) -> None:
        self.graph = graph
        self.name = name
        self.op = op
        self.inputs: list[Operand] = list(inputs)
        self.attrs = attrs
        self.outputs: list[Tensor] = []
        self.output_counts: dict[str, int] = {}
        self.control: list[Node] = []
        self.provenance: Provenance | None = None
        self.subgraphs: dict[str, Graph] = {}

    def operands(self) -> list[Tensor]:
        """All tensors read, dynamic ports flattened, unfed ports left out."""
        flat: list[Tensor] = []
        for entry in self.inputs:
            if entry.__class__ is Tensor:
                flat.append(entry)
            elif entry is not None:
                flat.extend(entry)
        return flat

    def replace_operands(self, mapping: Mapping[Tensor, Tensor]) -> None:
        """Read ``mapping[t]`` wherever ``t`` was read."""
        inputs = self.inputs
        for i, entry in enumerate(inputs):
            if entry in mapping:  # a tuple, or nothing, never is
                inputs[i] = mapping[entry]  # type: ignore[index]
            elif entry.__class__ is tuple and not mapping.keys().isdisjoint(entry):
                inputs[i] = tuple([mapping.get(t, t) for t in entry])

    def attr(self, name: str, default: Any = None) -> Any:
        """The plain value of an attribute, ``default`` if it is not set."""
        return self.attrs[name].value if name in self.attrs else default

    def __repr__(self) -> str:
        return f"<{self.op} {self.name}>"


class Graph:
    """A GE graph.

    Attributes:
        name: Name on the wire.
        nodes: In a topological order.
        outputs: What the graph returns, in order; serialised as the ``NetOutput`` node.
        attrs: Graph attributes.
        output_control: Nodes that must have run when the graph returns though no output needs them.
        scope_attrs: Attributes that every node added from now on carries (stream label, core limits).
        provenance: Origin that every node added from now on carries.
        release: The CANN release whose operator definitions hold for it: the one that held where it was begun.
        memo: What those who build the graph remember of it, such as its constants by value. It lives and dies with the
            graph; a table outside whose values hold nodes would keep every graph alive.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.release = schema.release()
        self.scope_attrs: dict[str, Attr] = {}
        self.provenance: Provenance | None = None
        self.nodes: list[Node] = []
        self.outputs: list[Tensor] = []
        self.attrs: dict[str, Attr] = {}
        self.output_control: list[Node] = []
        self.memo: dict[str, dict[Any, Any]] = {}
        self._names: dict[str, Node] = {}
        self._counters: dict[str, int] = {}

    @property
    def inputs(self) -> list[Node]:
        """The Data and RefData nodes, ordered by their ``index`` attribute."""
        inputs = [n for n in self.nodes if n.op in ("Data", "RefData")]
        return sorted(inputs, key=lambda n: n.attr("index", 0))

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        return self._names[name]

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def unique_name(self, op: str) -> str:
        """``MatMulV2``, then ``MatMulV2_1``, ``MatMulV2_2`` …"""
        while True:
            count = self._counters.get(op, 0)
            self._counters[op] = count + 1
            name = op if count == 0 else f"{op}_{count}"
            if name not in self._names:
                return name

    def add(
        self,
        op: str,
        inputs: Sequence[Operand] = (),
        attrs: dict[str, Attr] | None = None,
        outputs: Iterable[tuple[DataType, Shape | None]] = (),
        *,
        name: str | None = None,
    ) -> Node:
        """Append a node without asking the schema; ``ge_graph.ops`` is the checked way.

        Raises:
            GraphError: GE3005 if the name is taken.
        """
        if name is None:
            count = self._counters.get(op, 0)
            name = f"{op}_{count}" if count else op
            if name in self._names:
                name = self.unique_name(op)
            else:
                self._counters[op] = count + 1
        elif name in self._names:
            raise GraphError(
                "GE3005",
                f"graph '{self.name}' has a node '{name}' already ({self._names[name].op})",
                next="choose another node_name or leave it out",
            )
        node = Node(self, name, op, inputs, {} if attrs is None else attrs)
        for index, (dtype, shape) in enumerate(outputs):
            node.outputs.append(Tensor(node, index, dtype, shape))
        node.provenance = self.provenance
        if self.scope_attrs:
            node.attrs.update(self.scope_attrs)
        self.nodes.append(node)
        self._names[name] = node
        return node

    def rename(self, node: Node, name: str) -> None:
        """Give a node of this graph another name; edges follow, for they know nodes, not names.

        Raises:
            GraphError: GE3005 if the name is taken.
        """
        if name in self._names:
            raise GraphError("GE3005", f"graph '{self.name}' has a node '{name}' already", next="choose another name")
        del self._names[node.name]
        node.name = name
        self._names[name] = node

    def remove(self, nodes: Iterable[Node]) -> None:
        """Drop nodes. The caller has made sure that nothing reads them."""
        gone = set(nodes)
        if not gone:
            return
        self.nodes = [n for n in self.nodes if n not in gone]
        for node in gone:
            if self._names.get(node.name) is node:
                del self._names[node.name]

    def replace_all_uses(self, mapping: Mapping[Tensor, Tensor]) -> None:
        """Read ``mapping[t]`` wherever ``t`` was read, graph outputs included; chains in the mapping are followed."""

        def final(t: Tensor) -> Tensor:
            while t in mapping:
                t = mapping[t]
            return t

        resolved = {t: final(t) for t in mapping}
        for node in self.nodes:  # as replace_operands, whose call would cost more than what it does here
            for entry in node.inputs:
                if entry in resolved or entry.__class__ is tuple:
                    node.replace_operands(resolved)
                    break
        self.outputs = [resolved.get(t, t) for t in self.outputs]

    def replace_nodes(self, mapping: Mapping[Tensor, Tensor]) -> None:
        """``replace_all_uses``, and drop the nodes whose results ``mapping`` replaces."""
        self.replace_all_uses(mapping)
        self.remove({t.node for t in mapping})

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes, {len(self.outputs)} outputs>"


_current: ContextVar[Graph | None] = ContextVar("ge_graph_current", default=None)


def current_graph() -> Graph:
    """The graph that ``ge.*`` calls append to.

    Raises:
        GraphError: GE3006 outside ``with building(graph)``.
    """
    graph = _current.get()
    if graph is None:
        raise GraphError(
            "GE3006", "no graph is being built here", next="wrap the call in `with ge_graph.building(graph):`"
        )
    return graph


@contextmanager
def building(graph: Graph) -> Iterator[Graph]:
    """Make ``graph`` the target of ``ge.*`` calls, which follow the definitions of its release."""
    token = _current.set(graph)
    try:
        with schema.at_release(graph.release):
            yield graph
    finally:
        _current.reset(token)
