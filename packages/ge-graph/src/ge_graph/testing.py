"""For tests, ours and other people's: compare graphs, and make random valid ones (needs ``hypothesis``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ge_graph import attrs as attr_kinds
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Node, Provenance, Tensor, building
from ge_graph.node_fields import NODE_FIELDS
from ge_graph.serde_write import tensor_data, text_bytes

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy


def assert_graphs_equal(actual: Graph, expected: Graph) -> None:
    """Compare everything that a graph is: nodes in order, names, ports, edges, attributes, types, shapes, origins.

    Constants are equal if type, shape and bytes are; texts if their UTF-8 is. What belongs to building (scope
    attributes, naming counters) is not compared.

    Raises:
        AssertionError: Listing all differences.
    """
    differences = graph_differences(actual, expected)
    if differences:
        raise AssertionError(
            f"{len(differences)} differences (actual, expected):\n" + "\n".join(f"  {d}" for d in differences)
        )


def graph_differences(actual: Graph, expected: Graph) -> list[str]:
    """All differences between two graphs, one text each; empty if they are equal."""
    differences: list[str] = []
    _graph(actual, expected, f"graph '{expected.name}'", differences)
    return differences


def _differ(differences: list[str], place: str, a: Any, b: Any) -> None:
    if a != b:
        differences.append(f"{place}: {a!r}, {b!r}")


def _graph(a: Graph, b: Graph, place: str, differences: list[str]) -> None:
    _differ(differences, f"{place}, name", a.name, b.name)
    _differ(differences, f"{place}, nodes", [n.name for n in a.nodes], [n.name for n in b.nodes])
    _differ(differences, f"{place}, outputs", [t.name for t in a.outputs], [t.name for t in b.outputs])
    _differ(
        differences, f"{place}, output control", [n.name for n in a.output_control], [n.name for n in b.output_control]
    )
    _attrs(a.attrs, b.attrs, place, differences)
    for node in b.nodes:
        if node.name in a:
            _node(a.node(node.name), node, f"{place}, {node.op} '{node.name}'", differences)


def _node(a: Node, b: Node, place: str, differences: list[str]) -> None:
    for field in NODE_FIELDS:
        if field.value is not None:
            _differ(differences, f"{place}, {field.name}", field.value(a), field.value(b))
    _attrs(a.attrs, b.attrs, place, differences)
    _differ(differences, f"{place}, subgraphs", list(a.subgraphs), list(b.subgraphs))
    for slot in a.subgraphs.keys() & b.subgraphs.keys():
        _graph(a.subgraphs[slot], b.subgraphs[slot], f"{place}.{slot}", differences)


def _attrs(a: dict[str, Attr], b: dict[str, Attr], place: str, differences: list[str]) -> None:
    for name in sorted(a.keys() | b.keys()):
        mine, theirs = a.get(name), b.get(name)
        if mine is None or theirs is None or mine.kind is not theirs.kind or not _equal_values(mine, theirs):
            differences.append(f"{place}, attribute '{name}': {mine!r}, {theirs!r}")


def _equal_values(a: Attr, b: Attr) -> bool:
    if a.kind is Kind.TENSOR and a.value is not None and b.value is not None:
        mine, theirs = tensor_data(a.value, "actual"), tensor_data(b.value, "expected")
        return mine[:2] == theirs[:2] and bool(np.array_equal(mine[2], theirs[2]))
    if a.kind is Kind.STRING:
        return text_bytes(a.value) == text_bytes(b.value)
    # repr tells NaN from numbers and 0.0 from -0.0
    return repr(a.value) == repr(b.value)


# --- random graphs ---------------------------------------------------------------------------------------------------


def graphs(*, max_nodes: int = 12) -> SearchStrategy[Graph]:
    """Valid graphs of cheap operators over float32 and int64 tensors, with symbolic sizes, dynamic ports, optional
    inputs, constants of many types, control edges, scope attributes, origins and graph attributes.

    Args:
        max_nodes: Operators beyond inputs and constants.
    """
    from hypothesis import strategies as st

    @st.composite
    def build(draw: DrawFn) -> Graph:
        return _Maker(draw, st).graph(draw(st.integers(0, max_nodes)))

    return build()


def attributes() -> SearchStrategy[Attr]:
    """Attributes of every kind."""
    from hypothesis import strategies as st

    ints = st.integers(-(1 << 63), (1 << 63) - 1)
    floats = st.floats(width=64)
    texts = st.text(st.characters(codec="utf-8"), max_size=8)
    types = st.sampled_from(DataType)

    def rows(items: Any) -> Any:
        return st.lists(items, max_size=4).map(tuple)

    values = {
        Kind.INT: ints,
        Kind.FLOAT: floats,
        Kind.BOOL: st.booleans(),
        Kind.STRING: texts,
        Kind.TYPE: types,
        Kind.TENSOR: arrays(),
        Kind.LIST_INT: rows(ints),
        Kind.LIST_FLOAT: rows(floats),
        Kind.LIST_BOOL: rows(st.booleans()),
        Kind.LIST_STRING: rows(texts),
        Kind.LIST_TYPE: rows(types),
        Kind.LIST_LIST_INT: rows(rows(ints)),
        Kind.LIST_LIST_FLOAT: rows(rows(floats)),
    }
    return st.one_of(*(v.map(lambda x, k=k: Attr(k, x)) for k, v in values.items()))


def arrays() -> SearchStrategy[Any]:
    """Small arrays of every numpy type that GE knows, and Literals of those it lacks."""
    from hypothesis import strategies as st

    from ge_graph.ir import Literal

    @st.composite
    def build(draw: DrawFn) -> Any:
        dtype = draw(st.sampled_from([d for d in DataType if d.bits]))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        size = (int(np.prod(shape, dtype=np.int64)) * dtype.bits + 7) // 8
        data: np.ndarray[Any, Any] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
        if dtype is DataType.DT_BOOL:
            data = data & 1
        if dtype.numpy_name is None:
            return Literal(dtype, shape, data)
        return data.view(dtype.numpy).reshape(shape) if data.size else np.empty(shape, dtype.numpy)

    return build()


class _Maker:
    """Appends random nodes; every draw goes through ``self._draw``, so that hypothesis can shrink."""

    def __init__(self, draw: Any, st: Any) -> None:
        self._draw = draw
        self._st = st

    def graph(self, count: int) -> Graph:
        graph = Graph(self._draw(self._st.sampled_from(["graph_1", "g", "graph"])))
        if self._draw(self._st.booleans()):
            graph.attrs["_made_by"] = attr_kinds.Str("a test")
        with building(graph):
            self._inputs()
            for position in range(count):
                self._context(graph, position)
                self._append(graph)
        tensors = [t for n in graph.nodes for t in n.outputs]
        graph.outputs = self._draw(self._st.lists(self._st.sampled_from(tensors), min_size=1, max_size=3))
        graph.output_control = self._draw(self._st.lists(self._st.sampled_from(graph.nodes), max_size=1))
        graph.provenance, graph.scope_attrs = None, {}
        return graph

    def _inputs(self) -> None:
        from ge_graph import ops as ge

        for index in range(self._draw(self._st.integers(1, 3))):
            shape = self._draw(self._st.sampled_from([(2, 2), ("s0", 2), ("2*s0 + 1", 2)]))
            ge.Data(index=index, dtype=DataType.DT_FLOAT, shape=shape, node_name=f"arg{index}_1")
        ge.Const(self._draw(self._st.sampled_from([1.5, -0.0, 0.1])), dtype=DataType.DT_FLOAT)

    def _context(self, graph: Graph, position: int) -> None:
        source = self._draw(self._st.sampled_from(["", "model.py:3 in forward", "/a b/ü.py:41 in f"]))
        origin = Provenance(f"fx_{position}", "aten.x.default", f"fx_{position}: t = x(y)", "m.0", source, "x = y  # ü")
        graph.provenance = origin if source else None
        graph.scope_attrs = {"_user_stream_label": attr_kinds.Str("s1")} if self._draw(self._st.booleans()) else {}

    def _pick(self, graph: Graph, dtype: DataType = DataType.DT_FLOAT) -> Tensor:
        candidates = [t for n in graph.nodes for t in n.outputs if t.dtype is dtype]
        picked: Tensor = self._draw(self._st.sampled_from(candidates))
        return picked

    def _append(self, graph: Graph) -> None:
        from ge_graph import ops as ge

        x, y = self._pick(graph), self._pick(graph)
        forms: dict[str, Any] = {
            "Add": lambda: ge.Add(x, y),
            "Relu": lambda: ge.Relu(x),
            "Identity": lambda: ge.Identity(x),
            "Cast": lambda: ge.Cast(x, dst_type=DataType.DT_FLOAT),
            "MatMulV2": lambda: ge.MatMulV2(x, y, transpose_x2=self._draw(self._st.booleans())),
            "Transpose": lambda: ge.Transpose(x, [1, 0]),
            "Reshape": lambda: ge.Reshape(x, [-1, 2]),
            "ConcatD": lambda: ge.ConcatD([x, y], concat_dim=0, dependencies=[y]),
            "SplitD": lambda: ge.SplitD(x, split_dim=1, num_split=2),
            "Shape": lambda: ge.Gather(ge.Shape(x, dtype=9), self._draw(self._st.integers(0, 1))),
            "Print": lambda: ge.Print([x]),
            "Const": lambda: ge.Const(self._draw(self._st.integers(0, 2)), dtype=DataType.DT_INT64),
            "Muls": lambda: ge.Muls(x, value=self._draw(self._st.floats(-2, 2))),
        }
        forms[self._draw(self._st.sampled_from(sorted(forms)))]()
