"""Rules of GE about a graph's bytes: the writer keeps each, and bytes that break one are noticed.

A row of ``BROKEN`` carries its rule as ``tests/native/ge_rules.tsv`` words it. ``breaks`` makes bytes that GE would
refuse, or silently take for another graph; ``violations`` finds what breaks the rule, and must find it there and
nowhere in what the writer writes. ``reads`` is the code of our reader's refusal, or ``read``: the reader makes
descriptions and names anew from edges, so that it takes what others leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ge_graph import ArchiveError, DataType, Graph, building, serde, wire
from ge_graph import attrs as attr_kinds
from ge_graph import ops as ge

_F32 = DataType.DT_FLOAT
_WITHOUT_VAL_TYPE = ("_input_name_key", "_output_name_key")
_MEMBER = {1: "s", 2: "i", 3: "f", 4: "b", 10: "dt"}  # of a list, by val_type


def rich() -> Graph:
    """Optional, dynamic and unfed inputs, lists, a branch, an effect without a reader, and one result given twice."""
    graph = Graph("root")
    with building(graph):
        x = ge.Data(index=0, dtype=_F32, shape=(4, 4), node_name="x")
        ge.Data(index=1, dtype=_F32, shape=(4, 4), node_name="unused")
        y = ge.MatMulV2(x, ge.Const(np.eye(4, dtype=np.float32)))
        joined = ge.ConcatD([y, x], concat_dim=1)
        printed = ge.Print([joined])
    node = graph.add("If", [x, (y,)], {"_names": attr_kinds.ListStr(["a", "b"])}, [(_F32, (4, 4))])
    for slot in ("then_branch", "else_branch"):
        inner = Graph(slot)
        with building(inner):
            inner.outputs = [ge.Relu(ge.Data(index=0, dtype=_F32, shape=(4, 4)))]
        node.subgraphs[slot] = inner
    graph.outputs = [node.outputs[0], joined, joined]
    graph.output_control = [printed]
    return graph


def _parsed(data: bytes) -> Any:
    return wire.parse("ModelDef", data)


def _ops(data: bytes) -> Iterator[tuple[Any, Any]]:
    """(graph, operator) of all graphs."""
    for graph in _parsed(data).graph:
        for op in graph.op:
            yield graph, op


def _fed(op: Any) -> list[str]:
    """Data inputs, empty ones included."""
    return [text for text in op.input if not text.endswith(":-1")]


def _found(graph: Any, name: str) -> Any:
    return next(op for op in graph.op if op.name == name or op.type == name)


# -- what breaks a rule ----------------------------------------------------------------------------------------------


def _not_a_model(data: bytes) -> list[str]:
    try:
        _parsed(data)
    except ValueError as error:
        return [str(error)]
    return []


def _graph_names(data: bytes) -> list[str]:
    return [name for name, n in Counter(g.name for g in _parsed(data).graph).items() if n > 1]


def _named_graphs(data: bytes) -> list[str]:
    there = {g.name for g in _parsed(data).graph}
    return [name for _, op in _ops(data) for name in op.subgraph_name if name not in there]


def _descriptions(data: bytes) -> list[str]:
    return [op.name for _, op in _ops(data) if op.type != "NetOutput" and len(_fed(op)) > len(op.input_desc)]


def _outputs_once(data: bytes) -> list[str]:
    return [f"{g.name}: {t}" for g in _parsed(data).graph for t, n in Counter(g.output).items() if n > 1]


def _values(data: bytes) -> list[str]:
    return [f"{op.name}.{k}" for _, op in _ops(data) for k, a in op.attr.items() if a.WhichOneof("value") is None]


def _lists(data: bytes) -> list[str]:
    wrong = []
    for _, op in _ops(data):
        for key, attr in op.attr.items():
            if attr.WhichOneof("value") != "list" or key in _WITHOUT_VAL_TYPE:
                continue
            filled = {field.name for field, _ in attr.list.ListFields()} - {"val_type"}
            if not filled <= {_MEMBER.get(attr.list.val_type)}:
                wrong.append(f"{op.name}.{key}")
    return wrong


def _port_names(data: bytes) -> list[str]:
    sides = ("input", "output")
    return [
        op.name
        for _, op in _ops(data)
        for side in sides
        if len(op.attr[f"_{side}_name_key"].list.s) != len(op.attr[f"_{side}_name_value"].list.i)
    ]


def _unfed(data: bytes) -> list[str]:
    return [
        f"{op.name}.{desc.name}"
        for _, op in _ops(data)
        for text, desc in zip(_fed(op), op.input_desc)
        if not text and (desc.dtype or desc.layout)
    ]


def _typed_inputs(data: bytes) -> list[str]:
    data_ops = [op for _, op in _ops(data) if op.type == "Data"]
    return [op.name for op in data_ops if not (op.output_desc[0].dtype or op.output_desc[0].layout)]


def _writers_types(data: bytes) -> list[str]:
    wrong = []
    for graph, op in _ops(data):
        for text, desc in zip(_fed(op), op.input_desc):
            name, _, index = text.rpartition(":")
            if text and _found(graph, name).output_desc[int(index)].dtype != desc.dtype:
                wrong.append(f"{op.name}.{desc.name}")
    return wrong


def _sinks(data: bytes) -> list[str]:
    root = _parsed(data).graph[0]
    return [op.name for op in root.op if op.type == "NetOutput"][1:]


def _described_results(data: bytes) -> list[str]:
    sinks = [op for _, op in _ops(data) if op.type == "NetOutput"]
    return [op.name for op in sinks if len(_fed(op)) != len(op.input_desc)]


def _needed(data: bytes) -> list[str]:
    root = _parsed(data).graph[0]
    ops = {op.name: op for op in root.op}
    waiting, seen = ["NetOutput"], set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [text.rpartition(":")[0] for text in ops[name].input if text]
    return [name for name, op in ops.items() if name not in seen and op.type != "Data"]


def _inner_sinks(data: bytes) -> list[str]:
    inner = _parsed(data).graph[1:]
    sinks = {g.name: [op for op in g.op if op.type == "NetOutput"] for g in inner}
    return [name for name, found in sinks.items() if len(found) != 1 or not found[0].input]


# -- how to break it -------------------------------------------------------------------------------------------------


def changed(mutate: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    """Bytes of the model after ``mutate``, without the checksum that would give it away."""

    def breaks(data: bytes) -> bytes:
        model = _parsed(data)
        del model.attr["_crc32"]
        mutate(model)
        return wire.to_bytes(model)

    return breaks


def _matmul(model: Any) -> Any:
    return _found(model.graph[0], "MatMulV2")


def _same_name(model: Any) -> None:
    model.graph[2].name = model.graph[1].name
    _found(model.graph[0], "If").subgraph_name[1] = model.graph[1].name


def _lost_graph(model: Any) -> None:
    _found(model.graph[0], "If").subgraph_name[0] = "gone"


def _lost_description(model: Any) -> None:
    del _matmul(model).input_desc[-1]


def _repeated_output(model: Any) -> None:
    model.graph[0].output.append(model.graph[0].output[0])


def _no_value(model: Any) -> None:
    _matmul(model).attr["transpose_x1"].ClearField("b")


def _other_member(model: Any) -> None:
    _found(model.graph[0], "If").attr["_names"].list.val_type = 2


def _fewer_positions(model: Any) -> None:
    del _matmul(model).attr["_input_name_value"].list.i[-1]


def _typed_unfed(model: Any) -> None:
    _matmul(model).input_desc[2].dtype = 1


def _bare_input(model: Any) -> None:
    desc = _found(model.graph[0], "x").output_desc[0]
    desc.dtype, desc.layout = 0, ""


def _other_type(model: Any) -> None:
    _matmul(model).input_desc[0].dtype = 3


def _second_sink(model: Any) -> None:
    added = model.graph[0].op.add()
    added.CopyFrom(_found(model.graph[0], "NetOutput"))
    added.name = "NetOutput_1"


def _undescribed_result(model: Any) -> None:
    del _found(model.graph[0], "NetOutput").input_desc[-1]


def _untied(model: Any) -> None:
    sink = _found(model.graph[0], "NetOutput")
    sink.input.remove("Print:-1")


def _no_inner_sink(model: Any) -> None:
    inner = model.graph[1]
    del inner.op[[op.type for op in inner.op].index("NetOutput")]


# rule, breaks, who keeps it, GE's answer, violations, what our reader does
BROKEN = [
    ("the bytes are a ModelDef", lambda data: data[:-3], "writer", "E18888", _not_a_model, "GE5001"),
    (
        "graphs of a model are found by name, the last of a name counts",
        changed(_same_name),
        "writer",
        "silent",
        _graph_names,
        "GE5004",
    ),
    ("a named subgraph is in the model", changed(_lost_graph), "writer", "E18888", _named_graphs, "GE5012"),
    (
        "a node has a description for each input, empty ones too",
        changed(_lost_description),
        "writer",
        "E19999",
        _descriptions,
        "read",
    ),
    ("graph outputs are kept once each", changed(_repeated_output), "writer", "silent", _outputs_once, "read"),
    ("an attribute without a value is dropped", changed(_no_value), "writer", "silent", _values, "read"),
    (
        "of a list only the member that val_type names is read",
        changed(_other_member),
        "writer",
        "silent",
        _lists,
        "GE5008",
    ),
    (
        "port names and their positions come in equal numbers",
        changed(_fewer_positions),
        "writer",
        "silent",
        _port_names,
        "read",
    ),
    (
        "an optional input that is not fed has neither type nor layout",
        changed(_typed_unfed),
        "writer",
        "silent",
        _unfed,
        "read",
    ),
    ("a Data has a type or a layout", changed(_bare_input), "writer", "FAILED", _typed_inputs, "read"),
    (
        "an input's recorded type is overwritten by its writer's",
        changed(_other_type),
        "writer",
        "silent",
        _writers_types,
        "read",
    ),
    ("a root graph has at most one NetOutput", changed(_second_sink), "writer", "silent", _sinks, "GE5004"),
    (
        "NetOutput has a description for each input",
        changed(_undescribed_result),
        "writer",
        "E19999",
        _described_results,
        "read",
    ),
    (
        "nodes that nothing needs are removed, unless tied to NetOutput",
        changed(_untied),
        "writer",
        "silent",
        _needed,
        "read",
    ),
    ("an inner graph has one NetOutput with inputs", changed(_no_inner_sink), "writer", "E19999", _inner_sinks, "read"),
]
NAMES = [row[0] for row in BROKEN]


@pytest.mark.parametrize(("breaks", "violations"), [(row[1], row[4]) for row in BROKEN], ids=NAMES)
def test_the_writer_keeps_the_rule_and_a_break_is_noticed(
    breaks: Callable[[bytes], bytes], violations: Callable[[bytes], list[str]]
) -> None:
    data = serde.to_bytes(rich())
    assert violations(data) == []
    assert len(violations(breaks(data))) == 1


@pytest.mark.parametrize(("breaks", "reads"), [(row[1], row[5]) for row in BROKEN], ids=NAMES)
def test_what_the_reader_makes_of_the_break(breaks: Callable[[bytes], bytes], reads: str) -> None:
    data = breaks(serde.to_bytes(rich()))
    if reads == "read":
        assert serde.from_bytes(data).name == "root"
        return
    with pytest.raises(ArchiveError) as caught:
        serde.from_bytes(data)
    assert caught.value.code == reads
