"""The functions that torch_npu has under ``torch.npu.npugraph_ex`` reach this package, compiled and not."""

import copy
import importlib
import sys
import types

import pytest
import torch
import torch_npu  # noqa: F401 - the device
import torchair_autoload
from torch._functorch.aot_autograd import aot_module_simplified

import torchair

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


def test_what_older_ones_import_is_this_package():
    """The functions of ``torch.npu.npugraph_ex`` of torch_npu 2.9 import these."""
    from torch_npu.dynamo import torchair as imported
    from torch_npu.dynamo.torchair import ops, scope
    from torch_npu.dynamo.torchair.experimental import inference

    assert imported is torchair
    assert (ops, scope) == (torchair.ops, torchair.scope)
    assert inference is torchair.experimental.inference
    assert importlib.import_module("torch_npu.dynamo.torchair.core.utils") is torchair.core.utils
    assert [m.__spec__.name for m in (ops, scope, inference)] == [m.__name__ for m in (ops, scope, inference)]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch_npu.dynamo.torchair.no_such_module")


@pytest.mark.parametrize("options", [(), ({"clone_input": False},), (None, None, {"clone_input": False})])
def test_a_compiler_without_a_graph(options):
    def backend(gm, example_inputs):
        return aot_module_simplified(gm, example_inputs, fw_compiler=torch.npu.npugraph_ex.compile_fx(*options))

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(lambda x: x + x, backend=backend)(x.npu()).cpu(), x + x)


def test_options_of_a_compiler_are_checked():
    with pytest.raises(Exception, match="GE1001"):
        torch.npu.npugraph_ex.compile_fx({"no_such": 1})


def marked(x, y):
    ops, scope = torch.npu.npugraph_ex.ops, torch.npu.npugraph_ex.scope
    event = ops.npu_create_tagged_event(tag="66")
    total = x + y
    ops.npu_tagged_event_record(event)
    with scope.npu_stream_switch("1"):
        ops.npu_tagged_event_wait(event)
        product = x @ y
        ops.npu_record_tagged_stream(input=product, tagged_stream="1")
        done = ops.record()
    changed = torch.ones_like(x)
    changed.add_(product.abs())
    ops.wait([done])
    return total, product, changed, x - product


@pytest.mark.parametrize("backend", ["npugraph_ex", "npu"])
def test_streams_and_events_in_compiled_functions(backend):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    got = torch.compile(marked, backend=backend, fullgraph=True)(x.npu(), y.npu())
    want = x + y, x @ y, 1 + (x @ y).abs(), x - x @ y
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_names_of_torch_npu_stay_its_own():
    """Only what is absent is put there, and a function that asks for more arguments than this package's."""

    def own(options=None):
        return "own"

    newer = types.ModuleType("newer")
    newer.compile_fx = newer.register_replacement = own
    newer.ops, newer.scope = types.ModuleType("ops"), types.ModuleType("scope")
    newer.ops.record = newer.scope.npu_stream_switch = newer.scope.deterministic = own
    before = {
        name: copy.copy(vars(module)) for name, module in (("", newer), ("ops", newer.ops), ("scope", newer.scope))
    }
    torchair_autoload.add_newer_names(newer)
    assert before == {"": vars(newer), "ops": vars(newer.ops), "scope": vars(newer.scope)}
    torchair_autoload.add_newer_names(None)  # torch_npu before there was npugraph_ex
    theirs = importlib.import_module("torch_npu.npu.npugraph_ex")
    assert theirs.scope.limit_core_num.__module__ == "torch_npu.npu.npugraph_ex.scope"
    assert theirs.register_replacement.__module__ == "torch_npu.npu.npugraph_ex"


def test_what_an_older_one_lacks():
    older = types.ModuleType("older")
    older.ops, older.scope = types.ModuleType("ops"), types.ModuleType("scope")
    torchair_autoload.add_newer_names(older)
    assert older.register_replacement is torchair.register_replacement
    assert older.ops.record is torchair.ops.record
    assert older.scope.deterministic.__module__ == "npugraph_ex.scope"
