"""The way of a graph from ``torch.compile`` to its program: through few wings of the package, and downwards."""

import os
import sys
from pathlib import Path

import pytest
import tomllib
import torch

import torchair

HERE = os.path.dirname(torchair.__file__) + os.sep
# Who tells those above of itself, through a protocol of its own: (where, whom).
TOLD = {("passes/sequence.py", "compiler/pipeline.py")}


def floors():
    """Wing to its floor, from the import contract."""
    contracts = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [c["layers"] for c in contracts["contracts"] if c.get("containers") == ["torchair"]]
    return {name.strip(): -floor for floor, line in enumerate(layers) for name in line.split("|")}


def walked(call):
    """The calls between files of the package while ``call`` runs; what a module does when it is loaded is left out."""
    steps = set()

    def on(frame, event, _):
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(HERE) or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(HERE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name != "<module>":
            steps.add(tuple(c.co_filename[len(HERE) :].replace(os.sep, "/") for c in (caller.f_code, frame.f_code)))

    sys.setprofile(on)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {(a, b) for a, b in steps if a != b}


def wing(file):
    return file.split("/")[0].removesuffix(".py")


def attention(x, weight, mask):
    x = torch.nn.functional.rms_norm(x, x.shape[-1:]) @ weight
    x.add_(1)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x, mask).transpose(1, 2), x[:, 0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compilation_enters_at_most_eight_wings_and_goes_upwards_once(training, dynamic):
    torch._dynamo.reset()
    inputs = (torch.ones(2, 3, 4), torch.ones(4, 4, requires_grad=training), torch.zeros(3, 3))
    run = torch.compile(attention, backend=torchair.get_npu_backend(), dynamic=dynamic)

    def first_call():
        results = run(*inputs)
        if training:
            sum(r.sum() for r in results).backward()

    steps = walked(first_call)
    wings, floor = {wing(file) for step in steps for file in step}, floors()
    assert {"compiler", "passes", "runtime", "config"} <= wings, "the walk has seen nothing"
    assert len(wings) <= 8, wings
    assert {(a, b) for a, b in steps if floor[wing(a)] < floor[wing(b)]} == TOLD
