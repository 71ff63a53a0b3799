"""A host that only runs saved graphs: wheels of three packages in a fresh environment, first without torch, then with.

Everything is installed from the wheelhouse; nothing here reaches a network.
"""

import json

import numpy as np
import pytest
import torch

import torchair

pytestmark = pytest.mark.slow


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x, y):
        return {"sum": self.l2(torch.relu(self.l1(x))) + y, "double": [x * 2]}


@pytest.fixture(scope="module")
def saved(host):
    """A saved graph, its inputs and eager's results, outside the tree."""
    folder = host.folder
    torch.manual_seed(0)
    model, x, y = Net().eval(), torch.randn(3, 4), torch.randn(3, 2)
    torchair.CompiledModel.save_graph(model, (x, y), dynamic=True, save_path=folder / "saved")
    np.save(folder / "x.npy", x.numpy())
    np.save(folder / "y.npy", y.numpy())
    with torch.no_grad():
        np.save(folder / "sum.npy", model(x, y)["sum"].numpy())
    return folder


BARE = """
import importlib.util as u, json, sys
import tair_export, tair_export.load, tair_export.run, tair_export.foreign
assert not {"torch", "google"} & set(sys.modules)
for name in ("torch", "ge_converters", "torchair", "tair_debug"):
    assert u.find_spec(name) is None, name
from ge_graph.errors import EngineError
try:
    tair_export.CompiledModel.load_graph(sys.argv[1])
except EngineError as error:
    print(error)
else:
    raise SystemExit("ran without an engine")
"""


def test_without_torch(host, saved):
    folder, python, run = host.folder, host.python, host.run
    told = run(python, "-c", BARE, saved / "saved", cwd=folder)
    assert "GE4002" in told
    assert "torch" in told
    info = json.loads(run(folder / "venv/bin/tair-run", "--info", saved / "saved", "--json", cwd=folder))
    assert info["inputs"][0].startswith("x: f32[s")
    assert info["ops"]["MatMulV2"] == 2


RUN = """
import importlib.util as u, sys, numpy as np, torch, tair_export
for name in ("ge_converters", "torchair", "tair_debug"):
    assert u.find_spec(name) is None, name
x, y = np.load("x.npy"), np.load("y.npy")
model = tair_export.CompiledModel.load_graph("saved")
np.testing.assert_allclose(model(x, y)["sum"], np.load("sum.npy"), rtol=1e-5, atol=1e-6)
out = model(torch.from_numpy(x).repeat(2, 1), torch.from_numpy(y).repeat(2, 1))
assert out["sum"].shape == (6, 2) and out["double"][0].shape == (6, 4)
"""


def test_with_the_cpu_extra(host, saved):
    """Runs after the other one: installing torch is the difference."""
    folder, python, run = host.folder, host.python, host.run
    host.install("tair-export[cpu]")
    run(python, "-W", "ignore", "-c", RUN, cwd=folder)
    run(
        folder / "venv/bin/tair-run",
        saved / "saved",
        "--inputs",
        "x.npy",
        "--inputs",
        "y.npy",
        "--output",
        "out",
        cwd=folder,
    )
    got = [np.load(p) for p in sorted((folder / "out").iterdir())]
    assert any(a.shape == (3, 2) and np.allclose(a, np.load(folder / "sum.npy"), atol=1e-6) for a in got)
