"""Names beside the torch_npu wheel: both modules and both of dynamo's backends are this package's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHECK = """
from torch._dynamo.backends.registry import lookup_backend
import npugraph_ex
x = torch.ones(2).npu()
print(*(lookup_backend(n).__module__ for n in ("npu", "npugraph_ex")))
print(*("torch_npu" in m.__file__ for m in (torchair, npugraph_ex, torch.npu.npugraph_ex)))
print(torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"force_eager": True})(x).tolist())
try:
    torch.compile(lambda x: x + 2, backend="npu", options={"no_such": 1})(x)
except Exception as error:
    print("GE1001" in str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("autoload", "imports"),
    [
        ("1", "import torch, torch_npu, torchair"),
        ("0", "import torch, torch_npu, torchair_autoload; torchair_autoload.load(); import torchair"),
    ],
)
def test_names(autoload: str, imports: str):
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = subprocess.run(
        [sys.executable, "-c", imports + CHECK], env=env, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        "torchair.compiler.backend torchair.compiler.backend",
        "False False True",
        "[2.0, 2.0]",
        "True",
    ]
