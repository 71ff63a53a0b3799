"""The disk cache of torch.compile: the same results, fewer stages, and nothing that must not be reused."""

import json

import pytest
import torch

import torchair
from ge_converters.registry import REGISTRY
from torchair.artifact import cache
from torchair.compiler.pipeline import Pipeline


class Net(torch.nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x, kv):
        kv.add_(1)
        y = self.fc(x) * self.factor + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return y, y.t(), x.shape[0] * 2, kv


@pytest.fixture
def lowered(monkeypatch):
    """Names of the graphs that were really lowered."""
    seen = []
    original = Pipeline._to_ge

    def lower(self, gm, **more):
        seen.append(self.id.graph_id)
        return original(self, gm, **more)

    monkeypatch.setattr(Pipeline, "_to_ge", lower)
    return seen


def start(folder, model, *, dynamic=True, change=None):
    """A compiled model as a new process would have it."""
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.cache_dir = str(folder)
    if change is not None:
        change(config)
    return torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic)


def check(run, model, batch):
    x, a, b = torch.randn(batch, 4), torch.zeros(2), torch.zeros(2)
    with torch.no_grad():
        got, want = run(x, a), model(x, b)
    torch.testing.assert_close(got, want)
    assert got[3] is a
    assert got[1].data_ptr() == got[0].data_ptr()


@pytest.mark.slow
def test_a_second_start_lowers_nothing(tmp_path, lowered):
    model = Net().eval()
    check(start(tmp_path, model), model, 3)
    assert len(lowered) == 1
    run = start(tmp_path, model)
    for batch in (3, 5, 8):
        check(run, model, batch)
    assert len(lowered) == 1


@pytest.mark.slow
def test_training(tmp_path, lowered):
    model = Net()
    x = torch.randn(3, 4)
    grads = []
    for _ in range(2):
        model.zero_grad()
        y, *_ = start(tmp_path, model)(x, torch.zeros(2))
        y.square().sum().backward()
        grads.append(model.fc.weight.grad.clone())
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)
    assert len(lowered) == 2  # forward and backward, once each
    model.zero_grad()
    model(x, torch.zeros(2))[0].square().sum().backward()
    torch.testing.assert_close(grads[1], model.fc.weight.grad)


def other_factor(model):
    model.factor = 3.0


def other_type(model):
    model.double()


CHANGES = {"other number": other_factor, "other type": other_type}


@pytest.mark.parametrize("what", CHANGES)
def test_another_program_is_another_entry(what, tmp_path, lowered):
    model = Net().eval()
    check(start(tmp_path, model, dynamic=False), model, 3)
    CHANGES[what](model)
    run = start(tmp_path, model, dynamic=False)
    x = torch.randn(3, 4, dtype=model.fc.weight.dtype)
    with torch.no_grad():
        torch.testing.assert_close(run(x, torch.zeros(2)), model(x, torch.zeros(2)))
    assert len(lowered) == 2


@pytest.mark.slow
def test_constants_count(tmp_path, lowered):
    for last in (4.0, 5.0):
        table = torch.tensor([1.0, last])

        def f(x, table=table):
            return x + torch.tensor(table.tolist())

        run = start(tmp_path, f)
        torch.testing.assert_close(run(torch.zeros(2)), table)
    assert len(lowered) == 2


OPTIONS = {
    "an option that changes graphs": lambda c: setattr(c.experimental_config, "topology_sorting_strategy", "BFS"),
    "a pass of the user's": lambda c: setattr(c, "post_grad_custom_pre_pass", lambda gm, inputs, config: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", OPTIONS)
def test_options_count(what, tmp_path, lowered):
    model = Net().eval()
    check(start(tmp_path, model), model, 3)
    check(start(tmp_path, model, change=OPTIONS[what]), model, 3)
    assert len(lowered) == 2
    check(start(tmp_path, model, change=lambda c: setattr(c.debug, "deadlock_check", False)), model, 3)
    assert len(lowered) == 2


@pytest.mark.slow
def test_converters_count(tmp_path, lowered, monkeypatch):
    model = Net().eval()
    check(start(tmp_path, model), model, 3)
    monkeypatch.setattr(REGISTRY, "foreign", lambda: [("another", (None, None))])
    check(start(tmp_path, model), model, 3)
    assert len(lowered) == 2


@pytest.mark.slow
def test_damaged_entries_are_made_anew(tmp_path, lowered):
    model = Net().eval()
    check(start(tmp_path, model), model, 3)
    (air,) = tmp_path.rglob("*.air")
    air.write_bytes(air.read_bytes()[:-7])
    check(start(tmp_path, model), model, 3)
    assert len(lowered) == 2
    check(start(tmp_path, model), model, 3)
    assert len(lowered) == 2
    (manifest,) = tmp_path.rglob("*.manifest.json")
    assert json.loads(manifest.read_text())["kind"] == "compiled"


def test_a_folder_that_cannot_be_made(tmp_path, lowered, monkeypatch):
    said = []
    monkeypatch.setattr(cache.logger, "tell", lambda text, *args: said.append(text % args))
    (tmp_path / "file").write_text("")
    model = Net().eval()
    check(start(tmp_path / "file", model), model, 3)
    assert len(lowered) == 1
    assert len([s for s in said if "cannot be written" in s]) == 1


@pytest.mark.slow
def test_sizes_that_lowering_fixes_are_fixed_again(tmp_path, lowered):
    """The length of a transform is a constant in GE; another length must not meet the cached graph."""

    def f(x):
        return torch.fft.fft(x).abs()

    for length in (8, 8, 12):
        run = start(tmp_path, f)
        for n in (length, 10):
            x = torch.randn(3, n)
            torch.testing.assert_close(run(x), f(x), rtol=1e-4, atol=1e-4)


def test_the_environment_switches_it_on(tmp_path, lowered, monkeypatch):
    monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path))
    x = torch.randn(3)
    for _ in range(2):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(lambda x: x + 1, backend="npu")(x), x + 1)
    assert len(lowered) == 1


@pytest.mark.slow
def test_observers_are_shown_every_stage(tmp_path, recording):
    model = Net().eval()
    check(start(tmp_path, model), model, 3)
    with recording() as seen:
        check(start(tmp_path, model), model, 3)
    assert [label for _, label, _ in seen.ge][:1] == ["original"]
