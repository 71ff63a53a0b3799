"""The disk cache before AOTAutograd: what a hit leaves out, what must not hit, and that guards come back."""

import logging

import pytest
import torch

import torchair
from ge_converters.base import torch_compat


class Net(torch.nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.factor = factor

    def forward(self, x, kv):
        kv.add_(1)
        self.seen.add_(1)
        y = self.fc(x) * self.factor
        return y, y.t(), x.shape[0] * 2, kv, x[1:], self.fc.weight, None


@pytest.fixture
def traced(monkeypatch):
    """Graphs that went through AOTAutograd."""
    seen = []
    original = torch_compat.run_aot

    def run(gm, *args, **kwargs):
        seen.append(gm)
        return original(gm, *args, **kwargs)

    monkeypatch.setattr(torch_compat, "run_aot", run)
    return seen


@pytest.fixture
def start(tmp_path):
    """Compiles a model as a new process would."""

    def new(model, *, dynamic=None, change=None, **more):
        torch._dynamo.reset()
        config = torchair.CompilerConfig()
        config.cache_dir = str(tmp_path)
        if change is not None:
            change(config)
        made = torchair.get_npu_backend(compiler_config=config, **more)
        return torch.compile(model, backend=made, dynamic=dynamic)

    return new


def entries(tmp_path, folder="traced"):
    return sorted((tmp_path / folder).rglob("*.manifest.json")) if (tmp_path / folder).exists() else []


def check(run, model, batch):
    x, a, b = torch.randn(batch, 4), torch.zeros(2), torch.zeros(2)
    with torch.no_grad():
        model.seen.zero_()
        got = run(x, a)
        assert model.seen == 1
        want = model(x, b)
    torch.testing.assert_close(got[:3], want[:3])
    torch.testing.assert_close(a, b)
    assert got[3] is a
    assert got[5] is model.fc.weight
    assert got[6] is None
    assert got[1].data_ptr() == got[0].data_ptr()
    assert got[4].data_ptr() == x[1:].data_ptr()
    assert not got[0].requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_second_start_runs_no_aot(dynamic, start, traced, tmp_path):
    model = Net().eval()
    check(start(model, dynamic=dynamic), model, 3)
    assert len(traced) == 1
    assert len(entries(tmp_path)) == 1
    assert not entries(tmp_path, "graphs")
    run = start(model, dynamic=dynamic)
    for batch in (3, 5) if dynamic else (3,):
        check(run, model, batch)
    assert len(traced) == 1


@pytest.mark.slow
def test_a_graph_of_parts_and_inputs_twice(start, traced):
    def f(x, y, z):
        y.mul_(2)
        torch._dynamo.graph_break()
        return x + y + z, x

    for _ in range(2):
        run = start(f)
        x, y = torch.randn(3), torch.ones(3)
        got, same = run(x, y, x)
        torch.testing.assert_close(got, x + 2 + x)
        assert same is x
    assert len(traced) == 2  # two graphs, in the first start only


def sqrt_guard(x):
    return x.reshape(-1, 4).sum(0) if x.shape[0] % 4 == 0 else x * 2


def fixed_length(x):
    return torch.fft.fft(x).abs()


def of_two(x, y):
    return torch.cat([x, y]) if x.shape[0] > y.shape[0] else x + y[: x.shape[0]]


def broadcast(x, y):
    return x * y + 1


PROGRAMS = {
    "divisible": (sqrt_guard, [((8,),), ((12,),), ((9,),)]),
    "a length that lowering fixes": (fixed_length, [((3, 8),), ((3, 12),), ((5, 8),)]),
    "one size above another": (of_two, [((5,), (3,)), ((3,), (5,)), ((7,), (2,))]),
    "broadcast or equal": (broadcast, [((5,), (5,)), ((3,), (3,)), ((5,), (1,))]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_found_out_about_sizes_stays_a_guard(name, start, traced):
    """The first start meets the first sizes only; the second meets the others first."""
    f, cases = PROGRAMS[name]
    for order in (cases[:1], cases, cases[::-1]):
        run = start(f, dynamic=True)
        for sizes in order:
            given = [torch.randn(s) for s in sizes]
            torch.testing.assert_close(run(*given), f(*given), rtol=1e-4, atol=1e-4)


def aliased(x, y):
    x.add_(1)
    return y * 2


def test_inputs_that_share_memory_have_no_entry_of_those_that_do_not(start, traced):
    base, other = torch.arange(6.0), torch.arange(6.0)
    f = start(aliased, dynamic=False)
    torch.testing.assert_close(f(torch.zeros(4), torch.ones(4)), torch.full((4,), 2.0))
    f = start(aliased, dynamic=False)
    torch.testing.assert_close(f(base[:4], base[2:]), aliased(other[:4], other[2:]))
    torch.testing.assert_close(base, other)


def test_training_goes_through_aot(start, traced, tmp_path):
    model = Net()
    for _ in range(2):
        model.zero_grad()
        start(model)(torch.randn(3, 4), torch.zeros(2))[0].sum().backward()
    assert len(traced) == 2
    assert not entries(tmp_path)
    assert len(entries(tmp_path, "graphs")) == 2


def other_factor(model):
    model.factor = 3.0
    return {}


def other_type(model):
    model.double()
    return {}


def other_decomposition(model):
    return {"custom_decompositions": {torch.ops.aten.addmm.default: lambda b, x, y: b + x @ y}}


def another_default(model):
    return {"change": lambda c: setattr(c.experimental_config, "topology_sorting_strategy", "BFS")}


@pytest.mark.parametrize("change", [other_factor, other_type, other_decomposition, another_default])
def test_another_program_is_another_entry(change, start, traced):
    model = Net().eval()
    check(start(model), model, 3)
    more = change(model)
    x = torch.randn(3, 4, dtype=model.fc.weight.dtype)
    with torch.no_grad():
        torch.testing.assert_close(start(model, **more)(x, torch.zeros(2))[0], model(x, torch.zeros(2))[0])
    assert len(traced) > 1  # dynamo may start over with a float that it has seen change


NEEDS = {
    "summary": lambda c: setattr(c.debug.fx_summary, "type", "csv"),
    "eager": lambda c: setattr(c.debug, "run_eagerly", True),
    "pass": lambda c: setattr(c, "post_grad_custom_pre_pass", lambda gm, inputs, config: None),
}


@pytest.mark.parametrize("what", NEEDS)
def test_options_that_look_at_stages_see_them(what, start, traced, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with torch.no_grad():
            start(Net().eval(), change=NEEDS[what])(torch.randn(3, 4), torch.zeros(2))
    assert len(traced) == 2
    assert not entries(tmp_path)


def damage(air, manifest):
    air.write_bytes(air.read_bytes()[:-7])


def other_order(air, manifest):
    manifest.write_text(manifest.read_text().replace('"order":', '"ordre":'))


def emptied(air, manifest):
    manifest.write_text("")


@pytest.mark.parametrize("harm", [damage, other_order, emptied])
def test_damaged_entries_are_made_anew(harm, start, traced, tmp_path):
    model = Net().eval()
    check(start(model), model, 3)
    (manifest,) = entries(tmp_path)
    (air,) = (tmp_path / "traced").rglob("*.air")
    harm(air, manifest)
    check(start(model), model, 3)
    assert len(traced) == 2
    check(start(model), model, 3)
    assert len(traced) == 2


def test_autocast_counts(start, traced):
    layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    for enabled in (False, True, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got = start(layer)(x)
            assert got.dtype is (torch.bfloat16 if enabled else torch.float32)
    assert len(traced) == 2


@torch.compiler.allow_in_graph
def opaque(x):
    return x * 3


def test_functions_whose_code_may_change_have_no_entry(start, traced, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="torchair"):
        for _ in range(2):
            torch.testing.assert_close(start(lambda x: opaque(x) + 1)(torch.ones(2)), torch.full((2,), 4.0))
    assert len(traced) == 2
    assert not entries(tmp_path)


def test_random_numbers_are_drawn_anew(start, traced):
    def f(x):
        return torch.rand_like(x) + x

    for _ in range(2):
        run = start(f)
        assert not torch.equal(run(torch.zeros(8)), run(torch.zeros(8)))
    assert len(traced) == 1
