"""dump_config on the embedded engine: tree, names, modes, steps, layers, statistics; the numbers stay."""

import csv
import json
import re

import numpy as np
import pytest
import torch

from ge_graph.errors import ConfigError
from tair_debug import data_dump
from tair_debug.ge_dump import clean, statistics, wanted_step

NAME = r"(?P<op>\w+)\.(?P<name>\w+)\.\d+\.0\.\d{20}\.(?P<what>input|output)\.(?P<index>\d+)\.npy"


@pytest.fixture
def dumping(tmp_path, config):
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)
    return config


def runs(root):
    """Iteration to its files."""
    (model,) = (root / "worldsize1_global_rank0").glob("*/*/*/*")
    place = model.relative_to(root).as_posix()
    assert re.fullmatch(r"worldsize1_global_rank0/\d{14}/0/graph_\d+/\d+", place)
    return {p.name: sorted(p.iterdir()) for p in model.iterdir() if p.is_dir()}


def test_tree_names_and_numbers(tmp_path, compiled, dumping, model, inputs):
    run = compiled(dumping)
    with torch.no_grad():
        want = model(*inputs)
        for _ in range(2):
            assert all(map(torch.equal, run(*inputs), want))
    found = runs(tmp_path)
    assert sorted(found) == ["0", "1"]
    parts = [re.fullmatch(NAME, p.name) for p in found["0"]]
    assert {(m["op"], m["what"]) for m in parts} >= {("Sub", "input"), ("Sub", "output"), ("TopKV2", "output")}
    (path,) = (p for p in found["1"] if p.name.startswith("Sub.Sub.") and ".output.0." in p.name)
    assert np.array_equal(np.load(path), want[1])
    origins = json.loads((found["0"][0].parent.parent / "provenance.json").read_text())
    assert origins["Sub"]["target"] == "aten.sub.Tensor"
    assert origins["Sub"]["code"] == "d = c - x"


@pytest.mark.parametrize("mode", ["input", "output"])
def test_mode_and_layer(tmp_path, compiled, dumping, inputs, mode):
    dumping.dump_config.dump_mode = mode
    dumping.dump_config.dump_layer = "Sub Nothing"
    compiled(dumping)(*inputs)
    found = [re.fullmatch(NAME, p.name) for p in runs(tmp_path)["0"]]
    # Sub reads an input of the graph, which is dumped too: as what it gives, it reads nothing itself.
    read = {("Data", "output")} if mode == "output" else set()
    assert {(m["op"], m["what"]) for m in found} == {("Sub", mode), *read}


def test_steps(tmp_path, compiled, dumping, model, inputs):
    dumping.dump_config.dump_step = "0|2-3"
    run = compiled(dumping)
    with torch.no_grad():
        for _ in range(5):
            assert all(map(torch.equal, run(*inputs), model(*inputs)))
    assert sorted(runs(tmp_path)) == ["0", "2", "3"]


@pytest.mark.parametrize(
    ("text", "steps"), [(None, range(8)), ("0", [0]), ("3-5", [3, 4, 5]), ("0|3-4|7", [0, 3, 4, 7])]
)
def test_step_texts(text, steps):
    assert [s for s in range(8) if wanted_step(text)(s)] == list(steps)


def test_statistics(tmp_path, compiled, dumping, inputs):
    dumping.dump_config.dump_data = "stats"
    dumping.dump_config.dump_layer = "Sub"
    compiled(dumping)(*inputs)
    (path,) = (p for p in runs(tmp_path)["0"] if p.name.startswith("Sub."))
    rows = list(csv.DictReader(path.open()))
    assert [(r["Input/Output"], r["Index"], r["Shape"]) for r in rows] == [
        ("input", "0", "4x8"),
        ("input", "1", "4x8"),
        ("output", "0", "4x8"),
    ]
    assert float(rows[1]["Max Value"]) == float(inputs[0].max())


def test_statistics_of_odd_values():
    text = statistics([("output", 0, np.array([1.0, np.nan, -np.inf, np.inf])), ("output", 1, np.empty(0))])
    first, second = list(csv.reader(text.splitlines()))[1:]
    assert first[6:] == ["1.0", "1.0", "1.0", "1", "1", "1"]
    assert second[6:] == ["", "", "", "0", "0", "0"]


def test_marked_operators(tmp_path, compiled, dumping):
    from torchair import scope

    def marked(x):
        y = x + 1
        with scope.data_dump():
            z = y * 2
        return z - 3

    compiled(dumping, marked)(torch.randn(2))
    assert {p.name.split(".")[0] for p in runs(tmp_path)["0"]} == {"Mul"}


def test_names_of_folders():
    assert clean("a.b/c\\d e") == "a_b_c_d_e"


def test_disk_full(monkeypatch, compiled, dumping, inputs):
    def full(file, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_dump, "_fill", full)
    with pytest.raises(Exception, match=r"config\.dump_config\.dump_path: cannot write .*No space left"):
        compiled(dumping)(*inputs)


def test_bad_values(config):
    with pytest.raises(ConfigError, match="dump_step"):
        config.dump_config.dump_step = "1,2"
    with pytest.raises(ConfigError, match="dump_mode"):
        config.dump_config.dump_mode = "some"
