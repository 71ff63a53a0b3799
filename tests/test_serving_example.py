"""The decode loop of ``examples/serving`` in captured mode: one capture, a second start, a fault with its line.

On NPU tensors where there are some (``make npu-tensors``), else on CPU tensors.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

import pytest
import torch

import torchair

SERVE = Path(__file__).resolve().parent.parent / "examples" / "serving" / "serve.py"
DEVICE = "npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu"
STEPS = 64


@pytest.fixture(scope="module")
def serve():
    spec = importlib.util.spec_from_file_location("serving_example", SERVE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def captures(caplog):
    """How many graphs of ``decode`` and ``prefill`` were captured so far."""
    caplog.set_level(logging.INFO, torchair.logger.name)
    torchair.logger.addHandler(caplog.handler)
    yield lambda: sum("captured by" in record.getMessage() for record in caplog.records)
    torchair.logger.removeHandler(caplog.handler)


def started(serve, folder, kind="Decoder"):
    """A server in a process that knows nothing yet."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = (getattr(serve, kind) if isinstance(kind, str) else kind)().eval().to(DEVICE)
    return model, serve.Server(model, str(folder), captured=True)


def traced(server):
    return server.prefill.cached_call.traces + server.decode.cached_call.traces


def test_a_loop_of_64_steps_is_one_capture_and_a_second_start_traces_nothing(serve, captures, tmp_path):
    answers = []
    for start in range(2):
        model, server = started(serve, tmp_path)
        before = captures()
        requests = [serve.Request([3 + n, 5, 7], 23, 30 * n) for n in range(3)]
        server.serve(requests)
        assert len(server.batches) >= STEPS
        assert set(server.batches) == {2}
        assert captures() - before == 2, "one of prefill, one of decode"
        assert traced(server) == 2 - 2 * start
        answers.append([r.tokens for r in requests])
        if start == 0:
            assert answers[0] == [serve.eager(model, r) for r in requests]
    assert answers[1] == answers[0]


def test_a_fault_names_the_users_line(serve, tmp_path):
    class Wrong(serve.Decoder):
        def logits(self, x):
            return super().logits(x)[:, :9] @ self.embed.weight.t()  # here

    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# here" in text)
    server = started(serve, tmp_path, Wrong)[1]
    with pytest.raises(Exception, match=f"test_serving_example.py.*{line}"):
        server.serve([serve.Request([3, 5, 7], 2)])


def test_a_fault_of_a_step_names_the_users_line(serve, tmp_path):
    """In the first start, which has traced the program, and in the second, which has it from a file."""
    for start in range(2):
        _, server = started(serve, tmp_path)
        request = serve.Request([3, 5, 7], 4)
        server.admit(request)
        server.step()
        if DEVICE == "npu":
            pytest.skip("a device tells of such a fault when it has ended, and has no line")
        request.tokens[-1] = serve.VOCABULARY + 5  # no row of the table of words
        with pytest.raises(Exception, match=r"GE4005(.|\n)*embedding.*index out of range(.|\n)*serve.py:\d+ in decode"):
            server.step()
        assert traced(server) == 2 - 2 * start


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU needs no host beside it")
def test_what_the_device_cannot_capture_names_the_users_line(serve, tmp_path):
    class Hides(serve.Decoder):
        def logits(self, x):
            x = x.clone()
            x[x > 1e9] = 0  # not on a device
            return super().logits(x)

    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# not on a device" in text)
    server = started(serve, tmp_path, Hides)[1]
    with pytest.raises(Exception, match=rf"GE1058(.|\n)*test_serving_example.py:{line}"):
        server.serve([serve.Request([3, 5, 7], 2)])
