"""The functions that torch_npu has under ``torch.npu.npugraph_ex`` reach this package, compiled and not."""

import sys

import pytest
import torch
import torch_npu  # noqa: F401 - the device

import torchair  # noqa: F401 - takes the names that torch_npu has given to others

SCOPE = torch.npu.npugraph_ex.scope


def limited(x, y):
    with SCOPE.limit_core_num(4, 5):
        z = x @ y
    return z + 1


@pytest.mark.parametrize("backend", ["npugraph_ex", "npu"])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_limits_of_cores_in_compiled_functions(backend, fullgraph):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    got = torch.compile(limited, backend=backend, fullgraph=fullgraph)(x.npu(), y.npu())
    torch.testing.assert_close(got.cpu(), x @ y + 1)


def test_cached_functions_are_kept(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cached = torch.npu.npugraph_ex.inference.cache_compile(self.step, cache_dir=str(tmp_path))

        def step(self, x):
            return x * 2 + 1

        def forward(self, x):
            return self.cached(x)

    x = torch.randn(3)
    torch.testing.assert_close(Model()(x.npu()).cpu(), x * 2 + 1)
    assert any(tmp_path.rglob("*"))


def test_what_they_import_is_this_package():
    from torch_npu.dynamo import npugraph_ex as imported

    import npugraph_ex

    assert imported is npugraph_ex is sys.modules["torch_npu.dynamo.npugraph_ex"]
    assert npugraph_ex.__spec__.name == npugraph_ex.__name__ == "npugraph_ex"
