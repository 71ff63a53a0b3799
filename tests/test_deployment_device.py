"""A deployment host with a device and without torch: wheels of three packages, engine ``cann``, the CANN emulator.

The emulator's kernels are torch's; they run in a process of their own, so the program has no torch to import.
"""

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

import torchair

launch = pytest.importorskip("ge_emulator.launch", reason="the emulator is not installed")

pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    """More weights (77 MB) than a graph file holds, so that they lie in files of their own; results in a dict."""

    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(300_000, 64), torch.nn.Linear(64, 4)

    def forward(self, tokens, y):
        return {"sum": self.out(torch.relu(self.table(tokens))) + y, "double": [y * 2]}


class Counter(torch.nn.Module):
    """Writes a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.add_(x.sum(0))
        return self.seen * 2


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 8).bfloat16()

    def forward(self, x):
        return torch.softmax(self.layer(x.bfloat16()), -1)


class Scale(torch.nn.Module):
    def forward(self, x, w):
        return x * w


CASES = {
    "net": (Net, [(3,), (3, 4)], [(7,), (7, 4)]),
    "counter": (Counter, [(5, 3)], [(2, 3)]),
    "half": (Half, [(3, 16)], [(6, 16)]),
    "scale": (Scale, [(3, 4), (3, 4)], [(3, 4), (3, 4)]),
}


@pytest.fixture(scope="module")
def saved(host):
    """The host, with saved graphs, their inputs and eager's results in its folder."""
    folder = host.folder
    torch.manual_seed(0)
    for name, (make, *sizes) in CASES.items():
        model = make().eval()
        calls = [[torch.randn(s) if len(s) > 1 else torch.randint(0, 300_000, s) for s in shapes] for shapes in sizes]
        torchair.CompiledModel.save_graph(model, tuple(calls[0]), dynamic=name != "scale", save_path=folder / name)
        for step, inputs in enumerate(calls):
            with torch.no_grad():
                wanted = model(*inputs)
            wanted = wanted["sum"] if isinstance(wanted, dict) else wanted
            np.savez(
                folder / f"{name}_{step}.npz",
                wanted=wanted.float().numpy(),
                **{f"input{i}": v.numpy() for i, v in enumerate(inputs)},
            )
    return host


PREPARED = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torch_npu", "torchair", "ge_converters", "tair_debug"):
            raise ModuleNotFoundError(f"{name} is not for this host", name=name)

import importlib.util
for name in ("torch", "torch_npu", "torchair", "ge_converters", "tair_debug"):
    assert importlib.util.find_spec(name) is None, name
sys.meta_path.insert(0, NoTorch())

import numpy as np
from tair_export import CompiledModel
from ge_runtime.cann import DeviceArray, session

def calls(name):
    for step in (0, 1):
        saved = np.load(f"{name}_{step}.npz")
        yield [saved[k] for k in sorted(saved) if k != "wanted"], saved["wanted"]

def on_device(array):
    from ge_graph.dtypes import DataType
    session.open_session({})
    now = session.current()
    return DeviceArray.from_bytes(now, array.view(np.uint8).reshape(-1), DataType.DT_FLOAT, array.shape, now.stream)
"""


def program(host, code, **env):
    """Run a program of the torch-free environment on the emulator."""
    from ge_emulator import build

    variables = launch.environment(build.build(), None)
    kept = {k: variables[k] for k in ("LD_LIBRARY_PATH", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH")}
    kept["PYTHONPATH"] = str(Path(launch.__file__).resolve().parents[1])
    kept |= {"TAIR_EMULATOR_PYTHON": sys.executable, "TAIR_EMULATOR_GRAPHS": str(host.folder / "received"), **env}
    return host.run(host.python, "-c", PREPARED + textwrap.dedent(code), cwd=host.folder, env=kept)


EQUAL = """
model = CompiledModel.load_graph("{name}", device="npu")
assert type(model.executable).__module__.startswith("ge_runtime.cann")
for inputs, wanted in calls("{name}"):
    given = [i.copy() for i in inputs]
    got = model(*given)
    got = got["sum"] if isinstance(got, dict) else got
    assert isinstance(got, np.ndarray) and got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol={rtol}, atol={rtol})
    assert all((a == b).all() for a, b in zip(given, inputs))
assert not [n for n in sys.modules if n.split(".")[0] == "torch"]
"""


@pytest.mark.night(rows=3)
@pytest.mark.parametrize(("name", "rtol"), [("net", 1e-5), ("counter", 1e-6), ("half", 1e-2)])
def test_saved_graphs_equal_eager(saved, name, rtol):
    """Two sizes through one graph; the second call of the counter sees what the first has written."""
    program(saved, EQUAL.format(name=name, rtol=rtol))


def test_weights_reach_ge_by_their_absolute_path(saved):
    from ge_graph import serde

    for path in [*(saved.folder / "received").glob("*")]:
        path.unlink()
    program(saved, EQUAL.format(name="net", rtol=1e-5))
    (path,) = (saved.folder / "received").iterdir()
    assert path.stat().st_size < 64 << 10  # the weights have 77 MB
    files = [n.attr("location") for n in serde.from_bytes(path.read_bytes()).nodes if n.op == "FileConstant"]
    assert files
    assert all(Path(f).is_absolute() and Path(f).is_file() for f in files), files


def test_results_in_the_memory_of_an_input(saved):
    program(
        saved,
        """
        model = CompiledModel.load_graph("scale", device="npu", options={"ge.exec.outputReuseInputMemIndexes": "0,0"})
        for inputs, wanted in calls("scale"):
            x, w = map(on_device, inputs)
            got = model(x, w)
            assert got.address == x.address
            np.testing.assert_array_equal(x.numpy(), wanted)
        """,
    )


def test_frozen_inputs(saved):
    program(
        saved,
        """
        model = CompiledModel.load_graph("scale", device="npu", options={"frozenInput": "0,1"})
        inputs = [c[0] for c in calls("scale")]
        w = on_device(inputs[0][1])
        for x in (inputs[0][0], inputs[1][0]):
            np.testing.assert_array_equal(model(on_device(x), w).numpy(), x * inputs[0][1])
        other = on_device(inputs[1][1])  # the frozen input has moved
        assert other.address != w.address
        np.testing.assert_array_equal(model(on_device(x), other).numpy(), x * inputs[1][1])
        """,
    )


def test_a_kernel_process_that_dies_is_an_error(saved):
    """The emulator says so instead of waiting."""
    program(
        saved,
        """
        from ge_graph.errors import EngineError
        try:
            CompiledModel.load_graph("scale", device="npu")
        except EngineError as error:
            assert error.code == "GE4020" and "kernels" in str(error), error
        else:
            raise AssertionError("no error")
        """,
        TAIR_EMULATOR_PYTHON="/bin/false",
    )
