"""Graph files as the vendor's TorchAir writes them, built with protobuf alone, field by field.

Port names ride in ``_input_name_key`` as a list without value type, descriptors carry wire numbers, attributes header
numbers, an optional input that nothing feeds is an empty text, and attributes that have their default are left out.
"""

import numpy as np
import pytest

from ge_graph import wire
from ge_graph.errors import ArchiveError, GeError
from tair_export import load_air, read_air

WIRE = {"f4": 1, "i4": 7, "i8": 8, "?": 11}
HEADER = {"f4": 0, "i4": 3, "i8": 9, "?": 12}


def describe(desc, name, dtype, shape):
    desc.name, desc.dtype, desc.layout, desc.device_type = name, WIRE[dtype], "ND", "NPU"
    desc.shape.dim.extend(shape)


def ports(op, prefix, names):
    op.attr[f"{prefix}_key"].list.s.extend(n.encode() for n in names)
    op.attr[f"{prefix}_key"].list.val_type = 0
    op.attr[f"{prefix}_value"].list.i.extend(range(len(names)))
    op.attr[f"{prefix}_value"].list.val_type = 2


def add(graph, name, kind, inputs=(), outputs=(), **attrs):
    """``inputs``: (port, edge, dtype, shape), an empty edge for none; ``outputs``: (port, dtype, shape)."""
    op = graph.op.add(name=name, type=kind)
    for port, edge, dtype, shape in inputs:
        op.input.append(edge)
        desc = op.input_desc.add()
        if edge:
            describe(desc, port, dtype, shape)
        else:
            desc.name, desc.dtype = port, 0
            desc.attr["_is_unfed_optional"].i = 1
    for port, dtype, shape in outputs:
        describe(op.output_desc.add(), port, dtype, shape)
    ports(op, "_input_name", [i[0] for i in inputs])
    ports(op, "_output_name", [o[0] for o in outputs])
    for key, value in attrs.items():
        member = {bool: "b", int: "i", float: "f", bytes: "s"}[type(value)]
        setattr(op.attr[key], member, value)
    op.attr["nn_module_stack"].s = b"{'L__self___layer': (\"L['self'].layer[0]\", <class 'Linear'>)}"
    return op


W = np.arange(12, dtype="f4").reshape(4, 3) / 10
B = np.array([1, -1, 0.5], "f4")


def model(path="export/p1", cycle=False):
    """``softmax(x @ W + B)``; W in a file, B inline."""
    message = wire.message_class("ModelDef")(name="graph_1", version=1)
    graph = message.graph.add(name="graph_1")
    data = add(graph, "arg0_1", "Data", (), [("y", "f4", (-1, 4))], index=0)
    describe(data.input_desc.add(), "x", "f4", (-1, 4))
    file = add(graph, "p1", "FileConstant", (), [("y", "f4", (4, 3))], file_path=path.encode())
    file.attr["shape"].list.i.extend((4, 3))
    file.attr["shape"].list.val_type = 2
    file.attr["dtype"].dt = HEADER["f4"]
    const = add(graph, "Const_1", "Const", (), [("y", "f4", (3,))])
    describe(const.attr["value"].t.desc, "", "f4", (3,))
    const.attr["value"].t.data = B.tobytes()
    add(
        graph,
        "MatMulV2",
        "MatMulV2",
        [
            ("x1", "arg0_1:0", "f4", (-1, 4)),
            ("x2", "p1:0", "f4", (4, 3)),
            ("bias", "Const_1:0", "f4", (3,)),
            ("offset_w", "", "f4", ()),
        ],
        [("y", "f4", (-1, 3))],
        transpose_x1=False,
        transpose_x2=False,
    )
    axes = add(graph, "SoftmaxV2", "SoftmaxV2", [("x", "MatMulV2:0", "f4", (-1, 3))], [("y", "f4", (-1, 3))])
    axes.attr["axes"].list.i.append(-1)
    axes.attr["axes"].list.val_type = 2
    if cycle:
        graph.op[-2].input.append("SoftmaxV2:-1")
    add(graph, "NetOutput", "NetOutput", [("input0", "SoftmaxV2:0", "f4", (-1, 3))])
    return message


def expected(x):
    y = np.exp(x @ W + B)
    return y / y.sum(1, keepdims=True)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "export").mkdir()
    W.tofile(tmp_path / "export/p1")
    return tmp_path / "export"


@pytest.mark.parametrize("rows", [1, 3])
def test_air_runs(folder, rows):
    (folder / "export.air").write_bytes(model().SerializeToString())
    x = np.random.default_rng(0).standard_normal((rows, 4)).astype("f4")
    loaded = load_air(folder / "export.air")
    np.testing.assert_allclose(loaded(x), expected(x), rtol=1e-5)
    np.testing.assert_allclose(loaded(arg0_1=x), expected(x), rtol=1e-5)
    assert repr(loaded).startswith("<CompiledModel export.air (arg0_1: f32[")


@pytest.mark.parametrize("bare", [False, True])
def test_text_runs(folder, bare):
    message = model()
    text = wire.to_text(message.graph[0] if bare else message)
    (folder / "dynamo.pbtxt").write_text(text)
    x = np.ones((2, 4), "f4")
    np.testing.assert_allclose(load_air(folder / "dynamo.pbtxt")(x), expected(x), rtol=1e-5)


def test_binary_graph_without_model_runs(folder):
    (folder / "g.pb").write_bytes(model().graph[0].SerializeToString())
    x = np.ones((2, 4), "f4")
    np.testing.assert_allclose(load_air(folder / "g.pb")(x), expected(x), rtol=1e-5)


def test_weights_lie_beside_the_file_or_are_refused(folder, tmp_path):
    (tmp_path / "secret").write_bytes(W.tobytes())
    for path in (str(tmp_path / "secret"), "../secret", "export/../../secret"):
        (folder / "export.air").write_bytes(model(path).SerializeToString())
        with pytest.raises(ArchiveError, match="GE5024|GE5041"):
            load_air(folder / "export.air")
    (folder / "export.air").write_bytes(model(str(tmp_path / "secret")).SerializeToString())
    assert load_air(folder / "export.air", allow_outside=True)(np.ones((1, 4), "f4")).shape == (1, 3)
    (folder / "export.air").write_bytes(model("export/none").SerializeToString())
    with pytest.raises(ArchiveError, match="GE5041"):
        load_air(folder / "export.air")


def test_short_weight_files_are_refused(folder):
    (folder / "export.air").write_bytes(model().SerializeToString())
    (folder / "p1").write_bytes(b"short")
    with pytest.raises(ArchiveError, match="GE5026"):
        load_air(folder / "export.air")


def test_cycles_are_refused(folder):
    (folder / "export.air").write_bytes(model(cycle=True).SerializeToString())
    with pytest.raises(ArchiveError, match="GE5016"):
        load_air(folder / "export.air")


def test_unknown_operators_are_named(folder):
    message = model()
    message.graph[0].op[-2].type = "VendorOp"
    (folder / "export.air").write_bytes(message.SerializeToString())
    assert any(n.op == "VendorOp" for n in read_air(folder / "export.air").nodes)
    with pytest.raises(GeError, match="VendorOp"):
        load_air(folder / "export.air")


@pytest.mark.parametrize("data", [b"", b"\x00\x01\x02", b"hello", b"node { name: 1", "ü".encode("latin-1") * 9])
def test_other_files_are_refused(tmp_path, data):
    (tmp_path / "x.air").write_bytes(data)
    with pytest.raises(ArchiveError):
        load_air(tmp_path / "x.air")
    with pytest.raises(ArchiveError, match="GE5020"):
        load_air(tmp_path / "none.air")
