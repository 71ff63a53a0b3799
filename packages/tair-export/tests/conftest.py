"""A small captured model, built by hand: this package is tested without anything that traces."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ge_graph import DataType, Graph, building
from ge_graph import ops as ge
from ge_graph.attrs import Attr, Kind
from tair_export.export import CapturedModel
from tair_export.signature import Input, Output, Signature
from tair_export.weights import Weight

FLOAT = DataType.DT_FLOAT


def as_weight(name, array, identity=None):
    return Weight(name, FLOAT, array.shape, lambda: np.ascontiguousarray(array).reshape(-1).view(np.uint8), identity)


def linear(size=4, seed=0, rows="s0", state=False):
    """``y = relu(x @ w) + b``, with a counter that grows by one a call if ``state``."""
    rng = np.random.default_rng(seed)
    w, b = rng.standard_normal((size, 8)).astype("f4"), rng.standard_normal(8).astype("f4")
    graph = Graph("graph_1")
    with building(graph):
        x = ge.Data(index=0, dtype=FLOAT, shape=(rows, size), node_name="x")
        pw = ge.Data(index=1 + state, dtype=FLOAT, shape=w.shape, node_name="p_w")
        pb = ge.Data(index=2 + state, dtype=FLOAT, shape=b.shape, node_name="p_b")
        y = ge.Add(ge.Relu(ge.MatMulV2(x, pw)), pb)
        if state:
            count = ge.Data(index=1, dtype=FLOAT, shape=(1,), node_name="b_n")
            count.node.op = "RefData"
            grown = ge.Add(count, np.ones(1, "f4"))
            graph.output_control.append(ge.Assign(count, grown).node)
            y = ge.Add(y, grown)
    graph.outputs = [y]
    for node in graph.nodes:
        for tensor in node.outputs:
            if tensor.known_shape is None:
                tensor.record_shape(None)
    contract = Signature(
        {"tuple": ["*"]},
        {"dict": []},
        ("x",),
        {"dict": [["y", "*"]]},
        (Input("x", "tensor", FLOAT, (rows, size)),),
        (Output("tensor", 0, FLOAT, (rows, 8)),),
        (0, "n") if state else (0,),
        {rows: (1, None)} if isinstance(rows, str) else {},
    )
    weights = {"p_w": as_weight("layer.w", w), "p_b": as_weight("layer.b", b)}
    states = {"n": as_weight("n", np.zeros(1, "f4"))} if state else {}
    captured = CapturedModel(graph, contract, weights, states)

    def expected(x, calls=0):
        return np.maximum(x @ w, 0) + b + calls

    return SimpleNamespace(captured=captured, expected=expected, w=w, b=b, attr=Attr, kind=Kind)


@pytest.fixture
def make():
    return linear


@pytest.fixture
def weight():
    return as_weight


@pytest.fixture
def small_files(monkeypatch):
    """Every weight in a file of its own."""
    monkeypatch.setattr("tair_export.weights.GRAPH_INLINE_BYTES", 0)


@pytest.fixture
def key():
    """An Ed25519 key in PEM form: private, public."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    made = ed25519.Ed25519PrivateKey.generate()
    private = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def memory_path(tmp_path):
    """A folder in memory where there is one: a disk takes milliseconds for each file cut to nothing."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)
