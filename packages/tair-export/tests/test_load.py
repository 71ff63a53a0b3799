"""Calling what was loaded: structure, sizes, arrays, states."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from ge_graph import DataType
from ge_graph.errors import ArchiveError, EngineError, GraphError
from tair_export import CompiledModel, Record
from tair_export.export import capture, save_graph, write_graph
from tair_export.signature import Input, Output, Signature, from_json, to_json

X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)


@pytest.fixture
def saved(tmp_path, make):
    made = make(state=True)
    write_graph(made.captured, tmp_path)
    return made, CompiledModel.load_graph(tmp_path)


def test_arrays_in_arrays_out(saved):
    made, model = saved
    result = model(X)["y"]
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, made.expected(X, 1), rtol=1e-5)


def test_tensors_in_tensors_out_and_by_name(saved):
    made, model = saved
    result = model(x=torch.from_numpy(X))["y"]
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result, made.expected(X, 1), rtol=1e-5)


def test_states_live_with_the_object_not_with_the_file(tmp_path, make):
    made = make(state=True)
    write_graph(made.captured, tmp_path)
    model, other = CompiledModel.load_graph(tmp_path), CompiledModel.load_graph(tmp_path)
    for calls in (1, 2, 3):
        np.testing.assert_allclose(model(X)["y"], made.expected(X, calls), rtol=1e-5)
    assert model.states["n"].item() == 3
    np.testing.assert_allclose(other(X)["y"], made.expected(X, 1), rtol=1e-5)
    np.testing.assert_allclose(CompiledModel.load_graph(tmp_path)(X)["y"], made.expected(X, 1), rtol=1e-5)


def test_a_loaded_archive_runs_through_inductor(saved, monkeypatch):
    made, model = saved
    monkeypatch.setenv("TAIR_CPU_PROGRAM", "inductor")
    for calls in (1, 2, 3):  # the first run is the kernels'; "n" counts in the graph
        x = np.concatenate([X] * calls)
        np.testing.assert_allclose(model(x)["y"], made.expected(x, calls), rtol=1e-5)
    assert model.states["n"].item() == 3


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "0 positional"),
        ((X, X), {}, "2 positional"),
        ((X,), {"x": X}, "keywords"),
        ((), {"z": X}, "keywords"),
        ((X[0],), {}, r"shape \[4\]"),
        ((X[:, :3],), {}, "dimension 1 of input 'x' is 3"),
        (([1.0],), {}, "is list"),
        ((X[:0],), {}, "dimension 0 of input 'x' is 0"),
    ],
)
def test_wrong_calls_say_what_is_expected(saved, args, kwargs, message):
    with pytest.raises(ArchiveError, match=f"GE5040.*{message}") as error:
        saved[1](*args, **kwargs)
    assert "x: f32[s0, 4]" in str(error.value) or "s0 in 1.." in str(error.value)


def test_wrong_element_types_are_the_engines_to_refuse(saved):
    with pytest.raises(EngineError, match="GE4004"):
        saved[1](X.astype("f8"))


def test_no_write_into_read_only_arrays(tmp_path, make):
    made = make()
    graph = made.captured.graph
    from ge_graph import building
    from ge_graph import ops as ge

    with building(graph):
        x = graph.node("x").outputs[0]
        written = ge.Assign(x, ge.Muls(x, value=2.0)).node
        written.control.extend(n for n in graph.nodes if n.op == "MatMulV2")  # what reads x comes first
        graph.output_control.append(written)
    graph.node("x").op = "RefData"
    write_graph(made.captured, tmp_path)
    model = CompiledModel.load_graph(tmp_path)
    mine = X.copy()
    model(mine)
    np.testing.assert_array_equal(mine, X * 2)
    frozen = X.copy()
    frozen.flags.writeable = False
    with pytest.raises(ArchiveError, match="read-only"):
        model(frozen)
    np.testing.assert_array_equal(frozen, X)


def signature(args, kwargs, inputs, names=()):
    leaves = tuple(Input(n, "tensor", DataType.DT_FLOAT, (2,)) for n in inputs)
    return Signature(args, kwargs, names, "*", leaves, (Output("tensor", 0, DataType.DT_FLOAT, (2,)),), ())


def test_structures_flatten_as_they_were_recorded():
    tree = {"tuple": [{"list": ["*", {"dict": [["k", "*"], [3, "*"]]}]}]}
    record = {"dict": [["out", {"record": {"type": "Pair", "fields": [["a", "*"], ["b", "*"]]}}]]}
    contract = signature(tree, record, "vwxyz", ("batch",))
    from collections import namedtuple

    pair = namedtuple("Pair", "a b")(4, 5)
    for value in (pair, {"a": 4, "b": 5}, (4, 5), Record("Pair", ("a", "b"), (4, 5))):
        assert contract.flatten(([1, {3: 3, "k": 2}],), {"out": value}) == [1, 2, 3, 4, 5]
    assert contract.flatten((), {"batch": [1, {3: 3, "k": 2}], "out": pair}) == [1, 2, 3, 4, 5]
    with pytest.raises(ArchiveError, match=r"args\[0\]\[1\] is a dict with keys \['k'\]"):
        contract.flatten(([1, {"k": 2}],), {"out": pair})


def test_signatures_survive_json():
    import json

    contract = Signature(
        {"tuple": ["*", "*", "*"]},
        {"dict": []},
        ("x", "n", "flag"),
        {"tuple": ["*"] * 4},
        (
            Input("x", "tensor", DataType.DT_BF16, ("s0", 4, "2*s0")),
            Input("n", "number", value="s1"),
            Input("flag", "constant", value=float("inf")),
        ),
        (
            Output("tensor", 0, DataType.DT_BOOL, (1,), (0,)),
            Output("number", 1, value="int"),
            Output("input", 0),
            Output("constant", value=None),
        ),
        (0, 1, "cache"),
        {"s0": (1, None), "s1": (None, 7)},
    )
    again = from_json(json.loads(json.dumps(to_json(contract))))
    assert again == contract


def test_records_behave_like_model_outputs():
    r = Record("Output", ("logits", "loss"), (1, None))
    assert (r.logits, r["loss"], r[0], r[:1], len(r)) == (1, None, 1, (1,), 2)
    logits, loss = r
    assert (logits, loss, dict(r.items())) == (1, None, {"logits": 1, "loss": None})
    assert repr(r) == "Output(logits=1, loss=None)"
    with pytest.raises(AttributeError, match="it has logits, loss"):
        _ = r.hidden


def test_import_brings_no_torch():
    code = (
        "import sys, tair_export, tair_export.load, tair_export.run, tair_export.foreign\n"
        "bad = {'torch', 'ge_converters', 'torchair', 'google'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_saving_needs_somebody_who_traces(monkeypatch):
    monkeypatch.setattr("tair_export.export.entry_points", lambda group: [])
    with pytest.raises(ArchiveError, match="GE5031"):
        capture(None, (), {})
    with pytest.raises(ArchiveError, match="GE5030"):
        save_graph(None, torch.ones(1))


def test_constants_that_json_cannot_hold(tmp_path, make):
    made = make()
    made.captured.signature = replace(made.captured.signature, outputs=(Output("constant", value=object()),))
    with pytest.raises(ArchiveError, match="GE5030"):
        write_graph(made.captured, tmp_path)
    assert not list(tmp_path.iterdir())


def test_costs_have_the_names_of_jax(saved):
    _, model = saved
    (symbol,) = {d for n in model.graph.inputs for d in n.outputs[0].known_shape if isinstance(d, str)}
    with pytest.raises(GraphError, match="GE3072"):
        model.cost_analysis()
    ten, twenty = (model.cost_analysis({symbol: rows}, soc="Ascend910B2") for rows in (10, 20))
    assert set(ten) == {"flops", "bytes accessed", "unknown operators", "optimal_seconds"}
    assert twenty["flops"] == 2 * ten["flops"] > 0
    assert ten["unknown operators"] == 0
    assert ten["optimal_seconds"] > 0
    memory = model.memory_analysis({symbol: 1000})
    assert memory.argument_size_in_bytes >= 1000 * 4 * 4
    parts = memory.argument_size_in_bytes + memory.constant_size_in_bytes + memory.temp_size_in_bytes
    assert memory.peak_memory_in_bytes == parts + memory.output_size_in_bytes - memory.alias_size_in_bytes
