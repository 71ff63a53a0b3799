"""Files of Model Explorer: by the field names of its ``graph_builder`` and ``node_data_builder``, release 0.1.34."""

import json

import pytest
from typer.testing import CliRunner

from ge_graph import Graph, building
from ge_graph import ops as ge
from tair_debug import explorer
from tair_debug.cli import app

NODE = {"id", "label", "namespace", "attrs", "incomingEdges", "inputsMetadata", "outputsMetadata"}
EDGE = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.down = torch.nn.Linear(8, 4)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

def make():
    return Net().eval(), (torch.ones(2, 4),)
"""


@pytest.fixture
def tair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_the_backward_pass_stands_in_the_modules_of_its_forward(tair, tmp_path):
    """Of the nodes that compute, all but sums between modules have the namespace of a module."""
    said = tair("dump", "net.py:make", "-t", "model-explorer", "--backward", "-o", "out", "--json").stdout
    (path,) = json.loads(said)["written"]
    _, backward = json.loads((tmp_path / path).read_text())["graphs"]
    spaces = [n["namespace"] for n in backward["nodes"] if n["label"] not in ("Data", "Const", "NetOutput")]
    assert {"0/up", "0/down", "1/up", "1/down"} <= set(spaces)
    assert sum(not space for space in spaces) <= 2


def test_a_model_is_dumped_with_its_modules_and_figures_of_the_same_nodes(tair, tmp_path):
    """Every node that compare and check have figures of is a node of the dump, in the graph of that name."""
    found = json.loads(tair("dump", "net.py:make", "-t", "model-explorer", "-o", "out", "--json").stdout)
    (path,) = found["written"]
    collection = json.loads((tmp_path / path).read_text())
    (graph,) = collection["graphs"]
    assert (collection["label"], graph["id"]) == ("make", "graph_1")
    nodes = {n["id"]: n for n in graph["nodes"]}
    assert all(set(n) == NODE for n in nodes.values())
    assert all(set(e) == EDGE and e["sourceNodeId"] in nodes for n in nodes.values() for e in n["incomingEdges"])
    assert sorted(n["namespace"] for n in nodes.values() if n["label"] == "Relu") == ["0", "1"]  # as on a page

    assert tair("compare", "net.py:make", "--node-data", "error.json").exit_code == 0
    data = json.loads((tmp_path / "error.json").read_text())["graph_1"]
    assert set(data["results"]) <= set(nodes)
    relu = next(n for n in nodes if nodes[n]["label"] == "Relu")
    assert data["results"][relu]["value"] < 1e-5

    assert tair("check", "net.py:make", "--soc", "ascend910b", "--node-data", "chip.json").exit_code == 0
    data = json.loads((tmp_path / "chip.json").read_text())["graph_1"]
    assert data["results"][relu]["value"] == "AI Core"
    assert set(data["results"]) <= set(nodes)


def test_figures_that_have_no_form_are_refused(tair):
    for words in (["check", "net.py:make", "--node-data", "x"], ["compare", "a", "b", "--node-data", "x"]):
        assert tair(*words).exit_code == 2


def test_edges_name_the_outputs_that_they_read_and_order_only_edges_are_marked():
    graph = Graph("g")
    with building(graph):
        x = ge.Data(index=0, dtype=0, shape=(4,), node_name="x")
        top = ge.TopKV2(x, 2)
        last = ge.Relu(top[0], node_name="last")
        ge.Cast(top[1], dst_type=0, node_name="other")
        graph.outputs = [last]
    last.node.control.append(x.node)
    nodes = {n["id"]: n for n in json.loads(explorer.to_explorer("m", [graph]))["graphs"][0]["nodes"]}
    source = top[0].node.name
    assert nodes["last"]["incomingEdges"] == [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": "0"},
        {"sourceNodeId": "x", "sourceNodeOutputId": "control", "targetNodeInputId": "control"},
    ]
    assert nodes["other"]["incomingEdges"][0]["sourceNodeOutputId"] == "1"
    assert nodes["last"]["outputsMetadata"][0]["attrs"][0]["key"] == "tensor_shape"


def test_values_that_json_does_not_have_are_left_out():
    data = json.loads(explorer.node_data({"g": {"a": float("nan"), "b": 1.0, "c": float("inf")}}, "error"))
    assert data["g"]["results"] == {"b": {"value": 1.0}}
    assert [stop["stop"] for stop in data["g"]["gradient"]] == [0, 1]
    assert "gradient" not in json.loads(explorer.node_data({"g": {"a": "AI Core"}}, "chip"))["g"]
