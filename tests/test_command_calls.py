"""What the commands cost on a model of 24 equal layers, as counts of Python calls, which no busy machine changes.

`benchmarks/tools.py` has the same commands in seconds of the processor, whole processes, beside importing the model.
"""

import cProfile
import tempfile
from pathlib import Path

import pytest
import torch

from tair_debug import ask
from tair_debug import models as models_of
from tair_debug.graph_dump import dump_of
from tools import models

# Measured with torch 2.13: 2.79, 2.92, 3.07, 3.30, 17.7 million; most of it is torch's trace of one layer.
_MILLIONS = {"summary": 3.1, "view": 3.2, "check": 3.4, "dump": 3.7, "compare": 19.5}


def made(layers):
    case = models.llama("tiny", layers=layers)
    return case.model, *case.inputs


def answered(command, layers):
    if command == "check":
        return ask.check(*made(layers), soc="ascend910b")
    if command == "dump":
        with tempfile.TemporaryDirectory() as folder:
            model, *inputs = made(layers)
            return dump_of(models_of.given(model, inputs), "py", Path(folder))
    answer = getattr(ask, command)(*made(layers))
    return answer._repr_html_() if command == "view" else answer


def calls(command, layers):
    torch._dynamo.reset()
    profile = cProfile.Profile(builtins=False)
    profile.runcall(answered, command, layers)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["view", *(pytest.param(c, marks=pytest.mark.night) for c in ("summary", "check", "dump", "compare"))]
)
def test_python_calls_of_a_command_on_24_layers_are_few(command):
    answered(command, 2)  # what is loaded and kept once a process
    assert calls(command, 24) <= _MILLIONS[command] * 1e6
