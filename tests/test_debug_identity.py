"""Looking changes nothing: with and without each observer the results have the same bits; the eager modes are eager."""

import io
import logging

import pytest
import torch

import torchair
from tair_debug.observer import Silent, observing
from torchair.config.log import LineFormatter, logger


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.out = torch.nn.Linear(4 * 36, 5)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.norm(self.conv(x)))
        return torch.log_softmax(self.out(y.flatten(1)), 1)


def train(change=lambda config: None):
    """One training step and one inference: results, gradients, statistics."""
    torch.manual_seed(1)
    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    change(config)
    net, x = Net(), torch.randn(2, 3, 8, 8, requires_grad=True)
    run = torch.compile(net, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    out = run(x)
    out.square().sum().backward()
    with torch.no_grad():
        net.eval()
        again = run(x)
    return [out, again, x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


def set_(**values):
    def change(config):
        for path, value in values.items():
            *groups, leaf = path.split("__")
            group = config
            for name in groups:
                group = getattr(group, name)
            setattr(group, leaf, value)

    return change


FEATURES = {
    "summary": set_(debug__fx_summary__type="csv", debug__fx_summary__skip_compile=False),
    **{f"graph_dump {t}": set_(debug__graph_dump__type=t) for t in ("txt", "pbtxt", "py", "html")},
    "dump_config": set_(dump_config__enable_dump=True),
    "dump_config stats": set_(dump_config__enable_dump=True, dump_config__dump_data="stats"),
    "dump_config one step": set_(dump_config__enable_dump=True, dump_config__dump_step="0"),
}
EAGER = {
    "data_dump": set_(debug__data_dump__type="npy"),
    "run_eagerly": set_(debug__run_eagerly=True),
    "summary": set_(debug__fx_summary__type="csv"),
}


def same_bits(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_observers_change_nothing(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    plain = train()
    assert list(tmp_path.iterdir()) == []
    assert same_bits(train(FEATURES[name]), plain)
    assert list(tmp_path.iterdir())


@pytest.mark.slow
def test_debug_record_changes_nothing(tmp_path, monkeypatch):
    plain = train()
    monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
    monkeypatch.setattr("torchair.compiler.observers._start_debug_log", lambda path: None)
    with torch._dynamo.config.patch(debug_dir_root=str(tmp_path)):
        assert same_bits(train(), plain)
    assert list(tmp_path.rglob("*_aot_backward_optimized_ge_graph.txt"))


@pytest.mark.slow
def test_log_and_reports_change_nothing(capsys):
    plain = train()
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(LineFormatter())
    logger.setLevel(logging.DEBUG)
    try:
        with torchair.record_compilation() as reports, observing(Silent()):
            assert same_bits(train(), plain)
    finally:
        logger.setLevel(logging.ERROR)
    assert [r.phase for r in reports] == ["forward", "backward", "forward"]
    assert "graph():" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", EAGER)
def test_eager_modes_are_eager(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    net, x = Net(), torch.randn(2, 3, 8, 8, requires_grad=True)
    out = net(x)
    out.square().sum().backward()
    with torch.no_grad():
        net.eval()
        again = net(x)
    eager = [out, again, x.grad, *(p.grad for p in net.parameters()), *net.buffers()]
    for got, want in zip(train(EAGER[name]), eager, strict=True):
        torch.testing.assert_close(got, want)


def test_printing_changes_nothing(capsys):
    def plain(x):
        y = x.exp()
        return y.sum(), y

    def printing(x):
        torchair.ops.npu_print("x", x)
        y = x.exp()
        torchair.ops.npu_print("y", y, summarize_size=-1)
        z = y.sum()
        torchair.ops.npu_print("sum", z, tensor_detail=True)
        return z, y

    x = torch.tensor([0.0, 1.0])
    results = [torch.compile(f, backend="npu", fullgraph=True)(x) for f in (plain, printing)]
    assert same_bits(*results)
    compiled = capsys.readouterr().out
    printing(x)
    assert compiled == capsys.readouterr().out
    assert [line.split()[0] for line in compiled.splitlines()] == ["x", "y", "sum"]


def test_reports():
    def fn(x):
        return (x @ x).relu() + 1

    with torchair.record_compilation() as reports:
        torch.compile(fn, backend="npu", dynamic=False)(torch.ones(3, 3))
    (report,) = reports
    assert (report.phase, report.fx_nodes, report.ge_ops) == ("forward", 3, 3)
    assert {"lower", "GE passes", "verify", "engine"} <= set(report.stages)
    assert 0 < report.conversion_s < report.total_s
    assert report.conversion_s == pytest.approx(
        sum(v for k, v in report.stages.items() if k not in ("prepare", "engine", "load converters"))
    )
    torch.compile(fn, backend="npu", dynamic=False)(torch.ones(4, 4))
    assert len(reports) == 1  # the block is over
