"""npy files of every operator: names, tree, steps, filter, what is stored, and what goes wrong."""

import re
import tracemalloc

import numpy as np
import pytest
import torch

from ge_graph.errors import ConfigError
from tair_debug import artefacts, data_dump


def files(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*.npy"))


@pytest.fixture
def dumping(config, tmp_path):
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = str(tmp_path)
    return config


def base(root):
    (graph,) = (root / "worldsize1_global_rank0").iterdir()
    assert re.fullmatch(r"graph_\d+", graph.name)
    return graph


def test_names_steps_and_values(tmp_path, compiled, dumping, model, inputs):
    dumping.debug.data_dump.filter = lambda n: n if n.name in ("add_1", "sub") else None
    run = compiled(dumping)
    with torch.no_grad():
        for _ in range(2):
            assert all(map(torch.equal, run(*inputs), model(*inputs)))
    found = {}
    for step in ("0", "1"):
        for path in (base(tmp_path) / step).iterdir():
            match = re.fullmatch(r"(.+)\.(\d{20})\.npy", path.name)
            found.setdefault(match[1], []).append((step, match[2], np.load(path)))
    assert sorted(found) == [
        "add_1-aten.add.Tensor.INPUT.0",
        "add_1-aten.add.Tensor.INPUT.1",
        "add_1-aten.add.Tensor.OUTPUT.0",
        "sub-aten.sub.Tensor.INPUT.0",
        "sub-aten.sub.Tensor.INPUT.1",
        "sub-aten.sub.Tensor.OUTPUT.0",
    ]
    assert all([step for step, _, _ in runs] == ["0", "1"] for runs in found.values())
    value = {name: runs[0][2] for name, runs in found.items()}
    assert value["add_1-aten.add.Tensor.INPUT.1"] == 1
    assert np.array_equal(value["sub-aten.sub.Tensor.INPUT.0"], value["add_1-aten.add.Tensor.OUTPUT.0"])
    assert np.array_equal(value["sub-aten.sub.Tensor.INPUT.1"], inputs[0].numpy())
    stamps = {runs[0][1] for name, runs in found.items() if name.startswith("sub")}
    assert len(stamps) == 1  # one execution, one time


def test_everything_without_a_filter(tmp_path, compiled, dumping, inputs):
    compiled(dumping)(*inputs)
    names = {p.name.split("-")[0] for p in base(tmp_path).rglob("*.npy")}
    assert {"native_layer_norm", "add", "add_1", "sub", "topk", "getitem"} <= names
    (path,) = base(tmp_path).rglob("topk-aten.topk.default.OUTPUT.1.*.npy")
    assert np.load(path).dtype == np.int64


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (torch.tensor([1.5, 2.5], dtype=torch.bfloat16), np.float32),
        (torch.tensor([1.5], dtype=torch.float8_e4m3fn), np.float32),
        (torch.tensor([1.5], dtype=torch.float16), np.float16),
        (torch.tensor([True]), np.bool_),
        (torch.tensor([1 + 2j]), np.complex64),
        (torch.tensor([1 + 2j]).conj(), np.complex64),
        (torch.tensor(3), np.int64),
        (torch.empty(0, 3), np.float32),
        (torch.arange(6).reshape(2, 3).t(), np.int64),
        (True, np.bool_),
        (2, np.int64),
        (0.5, np.float64),
        ([1, 2], np.int64),
    ],
)
def test_what_is_stored(tmp_path, value, dtype):
    array = data_dump.as_numpy(value)
    data_dump.write_npy(str(tmp_path / "x.npy"), array)
    back = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert back.dtype == dtype
    expected = torch.as_tensor(value).resolve_conj()
    assert np.array_equal(back.astype(np.complex128), expected.to(torch.complex128).numpy())
    assert back.shape == tuple(expected.shape)


@pytest.mark.parametrize("value", [None, "mean", torch.float32, torch.device("cpu"), []])
def test_what_is_not_stored(value):
    assert data_dump.as_numpy(value) is None


def test_indices_count_what_has_no_file(tmp_path, compiled, dumping):
    class Joined(torch.nn.Module):
        def forward(self, x):
            return torch.cat([x, x + 1], 0).clone(memory_format=torch.contiguous_format).clamp(min=None, max=1.0)

    compiled(dumping, Joined())(torch.randn(2, 2))
    names = [re.sub(r"\.\d{20}\.npy", "", p.name) for p in base(tmp_path).rglob("*.npy")]
    cat = sorted(n for n in names if n.startswith("cat-"))
    assert cat == [f"cat-aten.cat.default.{x}" for x in ("INPUT.0", "INPUT.1", "OUTPUT.0")]
    clamp = sorted(n for n in names if n.startswith("clamp"))
    assert [n.rsplit(".", 2)[-2:] for n in clamp] == [["INPUT", "0"], ["INPUT", "2"], ["OUTPUT", "0"]]


def test_symbolic_sizes(tmp_path, compiled, dumping):
    class Flat(torch.nn.Module):
        def forward(self, x):
            return x.reshape(x.shape[0] * 3)

    run = compiled(dumping, Flat(), dynamic=True)
    run(torch.randn(2, 3))
    run(torch.randn(5, 3))
    found = {p.parent.name: np.load(p).tolist() for p in base(tmp_path).rglob("view-*.INPUT.1.*.npy")}
    assert found == {"0": [6], "1": [15]}


def test_inputs_are_saved_before_they_are_written(tmp_path, compiled, dumping):
    def add(x):
        return x.add_(1)

    dumping.experimental_config.keep_inference_input_mutation = True
    x = torch.zeros(2)
    with torch.no_grad():
        compiled(dumping, add)(x)
    (path,) = base(tmp_path).rglob("copy_-*.INPUT.0.*.npy")
    assert np.load(path).tolist() == [0, 0]
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (lambda n: n.nmae, r"filter raised on node %.*aten.*AttributeError.*nmae"),
        (lambda n: n.name == "add", r"filter returned (True|False) for node %"),
    ],
)
def test_bad_filters(compiled, dumping, inputs, keep, message):
    dumping.debug.data_dump.filter = keep
    with pytest.raises(Exception, match=message) as error:
        compiled(dumping)(*inputs)
    assert isinstance(error.value.inner_exception, ConfigError)
    assert error.value.inner_exception.code == "GE1042"


def test_disk_full_in_the_middle(tmp_path, monkeypatch, compiled, dumping, inputs):
    real, left = data_dump._fill, [5]

    def fill(file, array):
        if not left[0]:
            file.write(b"\x93NUMPY half")
            raise OSError(28, "No space left on device")
        left[0] -= 1
        real(file, array)

    monkeypatch.setattr(data_dump, "_fill", fill)
    with pytest.raises(ConfigError, match=r"GE1041.*config\.debug\.data_dump\.path: cannot write .*No space left"):
        compiled(dumping)(*inputs)
    found = list(base(tmp_path).rglob("*"))
    whole = [p for p in found if p.is_file()]
    assert len(whole) == 5
    for path in whole:
        np.load(path)


def test_folder_taken_away(tmp_path, compiled, config, inputs):
    place = tmp_path / "place"
    place.mkdir()
    config.debug.data_dump.type = "npy"
    config.debug.data_dump.path = str(place)
    place.rmdir()
    place.write_text("in the way")
    with pytest.raises(ConfigError, match=r"GE1041.*config\.debug\.data_dump\.path"):
        compiled(config)(*inputs)


def test_a_model_that_raises_half_way_leaves_whole_files(tmp_path, compiled, dumping):
    class Picky(torch.nn.Module):
        def forward(self, x, i):
            return (x * 2)[i] + 1

    run = compiled(dumping, Picky())
    with pytest.raises(IndexError):
        run(torch.randn(3), torch.tensor([7]))
    names = [p.name.split(".")[0] for p in base(tmp_path).rglob("*.npy")]
    assert names.count("mul-aten") == 3
    assert names.count("index-aten") == 2  # its inputs, no output
    for path in base(tmp_path).rglob("*.npy"):
        np.load(path)


def test_dumping_copies_no_array(tmp_path):
    array = torch.randn(64, 16384).numpy()
    data_dump.write_npy(f"{tmp_path}/first.npy", array)
    tracemalloc.start()
    try:
        data_dump.write_npy(f"{tmp_path}/n-aten.add.Tensor.INPUT.0.{artefacts.stamp()}.npy", array)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < array.nbytes / 10
