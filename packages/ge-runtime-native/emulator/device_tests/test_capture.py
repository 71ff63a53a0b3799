"""Mode reduce-overhead on NPU tensors: captures by ``torch.npu.NPUGraph``, and the options that act on them.

Run under ``tair emulate``.
"""

from __future__ import annotations

import logging
import re

import pytest
import torch
import torch_npu
from torch.nn import functional as F

import torchair


class Log(logging.Handler):
    """Lines of the log; what a capture says of itself counts captures."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @property
    def captures(self) -> int:
        return sum("captured by torch.npu.NPUGraph" in line for line in self.lines)


@pytest.fixture
def log():
    torch._dynamo.reset()
    handler, level = Log(), torchair.logger.level
    torchair.logger.setLevel(logging.INFO)
    torchair.logger.addHandler(handler)
    yield handler
    torchair.logger.removeHandler(handler)
    torchair.logger.setLevel(level)


@pytest.fixture
def made_graphs(monkeypatch):
    """Keywords of every capture that torch_npu is asked for."""
    seen = []
    real = torch.npu.graph

    class Seen(real):
        def __init__(self, graph, pool=None, stream=None, capture_error_mode="global", **more):
            seen.append({"graph": graph, "pool": pool, "capture_error_mode": capture_error_mode})
            super().__init__(graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode, **more)

    monkeypatch.setattr(torch.npu, "graph", Seen)
    return seen


def compiled(fn, *, dynamic=False, **options):
    """A function compiled for captures; options by their names in ``config.aclgraph_config``."""
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    for name, value in options.items():
        setattr(config.aclgraph_config, name, value)
    return torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=dynamic, fullgraph=True)


def equal(got, want):
    torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-6)


def fn(x, y):
    return torch.relu(x) * 2 + y.sum(0)


def test_replays_see_changed_inputs(log):
    call = compiled(fn)
    for _ in range(4):
        x, y = torch.randn(3, 4), torch.randn(5, 4)
        equal(call(x.npu(), y.npu()), fn(x, y))
    assert log.captures == 1


def test_each_size_is_captured_once(log):
    call = compiled(fn, dynamic=True)
    for rows in (3, 5, 3, 7, 5):
        x, y = torch.randn(rows, 4), torch.randn(rows + 10, 4)
        equal(call(x.npu(), y.npu()), fn(x, y))
    assert log.captures == 3


ON_HOST = {
    "a number that scales": (lambda x, k: torch.softmax(x / k, -1) * (k + 1), [2.5, 4.5, 1.5]),
    "a number of either type": (lambda x, k: (x * k + k, (x * 10).int() * k), [2, 3, 2.5, 4.5]),
    "a number beside halves": (lambda x, k: (x.half() * k).float(), [0.5, 0.25, 1.5]),
    "a scalar": (lambda x, k: (x * (k + 1), x - k.double()), [torch.tensor(0.5), torch.tensor(2.0)]),
    "positions": (lambda x, k: (x[:, k], x[:, k.flip(0)]), [torch.tensor([0, 1]), torch.tensor([2, 3])]),
    "positions that are moved": (
        lambda x, k: x[:, k.flip(0).to(x.device)],
        [torch.tensor([0, 1]), torch.tensor([2, 3])],
    ),
    "constants": (lambda x, k: x[:, torch.tensor([2, 0])] * k, [0.5, 0.25]),
    "results": (lambda x, k: (x * 2, k + 1, k.cumsum(0)), [torch.tensor([0.5, 1]), torch.tensor([2.0, 3])]),
    "results and operands": (
        lambda x, k: (x * k.sum(), k[1:], k.sum()),
        [torch.tensor([0.5, 1]), torch.tensor([2.0, 3])],
    ),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_what_the_host_computes_is_computed_for_each_run(name, log):
    """It is no part of the capture: operators of the device read a copy, results are new ones."""
    fn, values = ON_HOST[name]
    call = compiled(fn, dynamic=True)
    for value in [*values, *values]:
        x = torch.rand(3, 4) + 0.5
        got, want = call(x.npu(), value), fn(x, value)
        for one, other in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
            assert one.dtype == other.dtype
            torch.testing.assert_close(one.cpu(), other, rtol=2e-3, atol=1e-4)
    assert log.captures == len({type(v) for v in values})


def test_results_of_the_host_are_the_callers(log):
    call = compiled(lambda x, k: (x * k, k + 1))
    kept = [call(torch.ones(2).npu(), torch.tensor(float(i)))[1] for i in range(3)]
    kept[0].fill_(9)
    assert [float(k) for k in kept] == [9, 2, 3]


def test_random_numbers_of_the_host_are_drawn_for_each_run():
    call = compiled(lambda x: x + torch.rand(2).to(x.device))
    torch.manual_seed(3)
    got = [call(torch.zeros(2).npu()).cpu() for _ in range(3)]
    torch.manual_seed(3)
    torch.testing.assert_close(got, [torch.rand(2) for _ in range(3)])


def test_a_tensor_of_the_host_that_is_written_is_refused():
    call = compiled(lambda x, k: (x * 2, k.add_(1)))
    with pytest.raises(Exception, match="GE1058(.|\\n)*it writes a tensor of the host"):
        call(torch.ones(2).npu(), torch.ones(2))


def test_what_the_host_computes_is_kept_in_a_cache(tmp_path):
    def step(x, k):
        return x * (k + 1), k * 2

    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    for _ in range(2):  # the second finds the first one's
        cached = torchair.inference.cache_compile(step, config=config, cache_dir=str(tmp_path))
        for k in (torch.tensor(0.5), torch.tensor(3.0)):
            x = torch.rand(3)
            torch.testing.assert_close([v.cpu() for v in cached(x.npu(), k)], list(step(x, k)))
    assert len(list(tmp_path.rglob("*.graph"))) <= 1


def test_a_parameter_that_moves_is_captured_anew(log):
    model = torch.nn.Linear(4, 3).npu()
    call = compiled(model)
    x = torch.randn(2, 4).npu()
    with torch.no_grad():
        for _ in range(2):
            equal(call(x), model(x).cpu())
        assert log.captures == 1
        old = model.weight.data
        model.weight.data = torch.randn(3, 4).npu()
        assert model.weight.data_ptr() != old.data_ptr()
        equal(call(x), model(x).cpu())
        assert log.captures == 2
        model.weight.copy_(old * 2)  # in place: the capture reads the new values
        equal(call(x), model(x).cpu())
        assert log.captures == 2


def test_a_written_input_is_written_where_it_lies(log):
    def step(cache, x):
        cache.add_(x)
        return cache * 2

    call = compiled(step)
    cache, x = torch.zeros(3).npu(), torch.ones(3)
    for turn in range(1, 4):
        equal(call(cache, x.npu()), torch.full((3,), 2.0 * turn))
        equal(cache, torch.full((3,), float(turn)))
    assert log.captures == 1
    other = torch.full((3,), 10.0).npu()  # lies elsewhere
    equal(call(other, x.npu()), torch.full((3,), 22.0))
    equal(other, torch.full((3,), 11.0))
    equal(cache, torch.full((3,), 3.0))
    assert log.captures == 2


@pytest.mark.parametrize("clone", [True, False])
def test_clone_output(log, clone):
    call = compiled(fn, clone_output=clone)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    first = call(x.npu(), y.npu())
    kept = first.cpu()
    second = call((x + 1).npu(), y.npu())
    equal(second, fn(x + 1, y))
    assert torch.equal(first.cpu(), kept)
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize("clone", [True, False])
def test_results_that_are_held_keep_their_numbers(log, clone):
    """Over many runs, through views, and as the next run's input; what is dropped costs no copy."""
    call = compiled(lambda x: (x + 1, x * 2), clone_output=clone)
    held = []
    for turn in range(5):
        whole, doubled = call(torch.full((3,), float(turn)).npu())
        held.append((turn, whole, doubled[1:]))
        del whole, doubled
    for turn, whole, doubled in held:
        equal(whole, torch.full((3,), turn + 1.0))
        equal(doubled, torch.full((2,), turn * 2.0))
    step = compiled(lambda x: x + 1, clone_output=clone)
    x = torch.zeros(2).npu()
    trace = [x := step(x) for _ in range(4)]
    assert [t.cpu().tolist() for t in trace] == [[n, n] for n in (1.0, 2.0, 3.0, 4.0)]
    dropped = compiled(lambda x: x - 1, clone_output=clone)
    places = {dropped(torch.full((3,), float(n)).npu()).data_ptr() for n in range(3)}
    assert clone or len(places) == 1
    assert log.captures == 3


@pytest.mark.parametrize("clone", [True, False])
def test_clone_input(log, clone):
    """Without it the first run's tensors are the buffers: later values are copied into them."""
    call = compiled(fn, clone_input=clone)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    first = x.npu()
    call(first, y.npu())
    equal(call((x + 1).npu(), y.npu()), fn(x + 1, y))
    assert torch.equal(first.cpu(), x) is clone
    assert log.captures == 1


def test_at_the_limit_the_least_used_capture_goes(log):
    call = compiled(fn, dynamic=True, capture_limit=2)
    held = []
    for rows in (3, 3, 5, 7, 3, 5):
        x, y = torch.randn(rows, 4), torch.randn(2, 4)
        held.append((call(x.npu(), y.npu()), fn(x, y)))
    for got, want in held:
        equal(got, want)
    assert log.captures == 4
    assert sum("capture_limit = 2" in line for line in log.lines) == 1


def test_force_eager_and_force_recapture(log):
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    for option, want in (("force_eager", 0), ("force_recapture", 3)):
        torch._dynamo.reset()
        call = compiled(fn, **{option: True})
        for _ in range(3):
            equal(call(x.npu(), y.npu()), fn(x, y))
        assert log.captures == want


def test_a_pool_of_the_users(log, made_graphs):
    pool = torch.npu.graph_pool_handle()
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    for call in (compiled(fn, use_graph_pool=pool), compiled(lambda a, b: fn(a, b) - 1, use_graph_pool=pool)):
        call(x.npu(), y.npu())
    assert [m["pool"] for m in made_graphs] == [pool, pool]
    assert [tuple(m["graph"].pool()) for m in made_graphs] == [tuple(pool)] * 2


@pytest.mark.parametrize("shared", [True, False])
def test_captures_of_one_graph_share_a_pool(log, made_graphs, shared):
    call = compiled(fn, dynamic=True, reuse_graph_pool_in_same_fx=shared)
    for rows in (3, 5):
        call(torch.randn(rows, 4).npu(), torch.randn(2, 4).npu())
    assert len({tuple(m["graph"].pool()) for m in made_graphs}) == (1 if shared else 2)


@pytest.mark.parametrize("mode", ["thread_local", "relaxed"])
def test_capture_error_mode_reaches_torch_npu(log, made_graphs, mode):
    compiled(fn, capture_error_mode=mode)(torch.randn(3, 4).npu(), torch.randn(5, 4).npu())
    assert [m["capture_error_mode"] for m in made_graphs] == [mode]


def test_a_frozen_parameter_that_moves_is_captured_anew(log):
    model = torch.nn.Linear(4, 3).npu()
    call = compiled(model, frozen_parameter=True)
    x = torch.randn(2, 4).npu()
    with torch.no_grad():
        equal(call(x), model(x).cpu())
        model.weight.mul_(2)
        equal(call(x), model(x).cpu())
        assert log.captures == 1
        model.weight.data = torch.randn(3, 4).npu()
        equal(call(x), model(x).cpu())
    assert log.captures == 2
    assert not any("without effect" in line for line in log.lines)


@pytest.mark.parametrize("anew", [False, True])
def test_static_kernels_have_their_operators_described(log, monkeypatch, tmp_path, anew):
    """torch_npu is told a folder before the program runs, once for each capture; nothing of the caller's is written."""
    told, began = [], torch_npu._C._aclop_start_dump

    def begin(path):
        told.append(path)
        return began(path)

    monkeypatch.setattr(torch_npu._C, "_aclop_start_dump", begin)
    monkeypatch.setattr(torch_npu._C, "_aclop_stop_dump", lambda: told.append("end"))
    call = compiled(
        lambda cache, x: cache.add_(x) * torch.rand_like(x),
        dynamic=True,
        static_kernel_compile=True,
        disable_static_kernel_compile_cache=anew,
        _aclnn_static_shape_kernel_build_dir=str(tmp_path),
    )
    for rows in (3, 3, 5):
        cache, x = torch.ones(rows, 4).npu(), torch.ones(rows, 4).npu()
        call(cache, x)
        equal(cache, torch.full((rows, 4), 2.0))
    folders = [path for path in told if path != "end"]
    assert told == [word for path in folders for word in (path, "end")]
    assert len(folders) == len(set(folders)) == log.captures
    assert all(path.startswith(f"{tmp_path}/static_kernel_compile_outputs/ts") for path in folders)
    assert sum("static_kernel_compile: operators are described" in line for line in log.lines) == 1


def test_super_kernels_are_asked_for(log, monkeypatch):
    """Each captured graph once, with the options that were given; what torch_npu refuses is our error."""
    asked, real = [], torch.npu.NPUGraph.super_kernel_optimize

    def optimize(self, options=None, debug=None):
        asked.append((options, debug))
        return real(self, options, debug)

    monkeypatch.setattr(torch.npu.NPUGraph, "super_kernel_optimize", optimize)
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    more = {"super_kernel_optimize_options": {"split_mode": 1}, "super_kernel_debug_options": {"debug_sync_all": 1}}
    call = compiled(fn, super_kernel_optimize=True, **more)
    for _ in range(2):
        equal(call(x.npu(), y.npu()), fn(x, y))
    assert asked == [({"split_mode": 1}, {"debug_sync_all": 1})]
    with pytest.raises(Exception, match=r"GE1056.*nosuch"):
        compiled(lambda a: a - 1, super_kernel_optimize=True, super_kernel_optimize_options={"nosuch": 1})(x.npu())


@pytest.mark.parametrize("name", ["super_kernel_optimize", "static_kernel_compile"])
def test_an_older_torch_npu_is_said_to_lack_them(log, monkeypatch, name):
    monkeypatch.delattr(torch_npu._C, "_aclop_start_dump")
    monkeypatch.setattr(torch.npu.NPUGraph, "super_kernel_optimize", None)
    with pytest.raises(Exception, match=f"GE1056.*{name}: .* has no "):
        compiled(fn, **{name: True})(torch.randn(3, 4).npu(), torch.randn(5, 4).npu())


def test_what_cannot_be_captured_is_an_error_and_the_next_graph_works(log):
    def waits(x):
        return torch.nonzero(x)  # its size must be known on the host

    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        with pytest.raises(Exception, match=r"GE1058(.|\n)*test_capture.py:\d+.*aten.nonzero.default"):
            compiled(waits)(torch.tensor([0.0, 1.0]).npu()).cpu()
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
    torch.npu.synchronize()
    x, y = torch.randn(3, 4), torch.randn(5, 4)
    equal(compiled(fn)(x.npu(), y.npu()), fn(x, y))


def test_what_needs_the_host_is_not_looked_for(log):
    """By an option; torch_npu then says what fails, and the next graph works."""

    def masked(x, mask):
        return torch.masked_select(x, mask).sum()

    x, mask = torch.randn(3).npu(), torch.tensor([True, False, True]).npu()
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    try:
        for skipped, code in ((False, "GE1058"), (True, "GE1058. this needs")):
            with pytest.raises(Exception, match=code) as caught:
                compiled(masked, unsafe_skip_npugraph_capture_validation=skipped)(x, mask)
            assert "masked_select" in str(caught.value)
    finally:
        torch._dynamo.config.capture_dynamic_output_shape_ops = False
    torch.npu.synchronize()
    given = torch.randn(3, 4), torch.randn(5, 4)
    equal(compiled(fn)(*(t.npu() for t in given)), fn(*given))


def test_the_backend_by_name(log):
    """torch_npu registers its own backend under this name; ours is given as a function."""
    from torchair.compiler.backend import npugraph_ex

    x, y = torch.randn(3, 4), torch.randn(5, 4)
    call = torch.compile(fn, backend=npugraph_ex, dynamic=False, options={"clone_output": True})
    for _ in range(2):
        equal(call(x.npu(), y.npu()), fn(x, y))
    assert log.captures == 1


# -- numbers that change in every step


def _by_tensor(cache, x, pos):
    cache.narrow(1, pos, 2).copy_(x)
    seen = torch.where((torch.arange(cache.shape[1], device=x.device) <= pos)[:, None], cache, 0.0)
    return seen.sum(1) + pos, cache.select(1, pos + 1) * 2, torch.tensor(pos, device=x.device)


def test_a_position_needs_one_capture(log):
    call = compiled(_by_tensor, dynamic=True)
    cache = torch.zeros(2, 80, 4)
    on_device = cache.npu()
    for pos in range(5, 69):
        x = torch.randn(2, 2, 4)
        for got, want in zip(call(on_device, x.npu(), pos), _by_tensor(cache, x, pos), strict=True):
            equal(got, want)
        equal(on_device, cache)
    assert log.captures == 1


def _lengths(query, key, value, actual_seq_lengths_kv, scale, kept=None):
    """What the fused operator computes, of one head; the lengths become scalars of the launched kernels.

    Args:
        kept: Keeps the results in between alive: a task that is replaced has no memory of the capture for them.
    """

    def keep(made):
        if kept is not None:
            kept.append(made)
        return made

    places, parts = keep(torch.arange(key.shape[-2], device=query.device)), []
    for q, k, v, length in zip(query, key, value, actual_seq_lengths_kv, strict=True):
        scores = keep(keep(keep(q * k).sum(-1)) * scale)  # q is one token
        hidden = keep(keep(keep(places >= length).float()) * -1e30)
        share = keep(torch.softmax(keep(scores + hidden), -1))
        parts.append(keep(keep(share.unsqueeze(-1) * v).sum(-2, keepdim=True)))
    return keep(torch.stack(parts))


@pytest.fixture
def fused_attention():
    """Kernels on the device for the overloads that a captured task needs, made of other operators."""
    launched, kept = [], []

    def attend(query, key, value, *, actual_seq_lengths_kv=None, scale=1.0, **_):
        return _lengths(query, key, value, actual_seq_lengths_kv, scale, kept), query.new_empty(0)

    def attend_into(query, key, value, *, workspace=None, out, **more):
        assert workspace is not None
        if (shortest := min(more["actual_seq_lengths_kv"])) < 0:
            raise ValueError(f"a length of {shortest}")
        launched.append(more["actual_seq_lengths_kv"])
        out[0].copy_(attend(query, key, value, **more)[0])
        return tuple(out)

    library = torch.library.Library("npu", "IMPL")
    name = "npu_fused_infer_attention_score"
    library.impl(name, attend, "PrivateUse1", allow_override=True)
    library.impl(f"{name}.out", attend_into, "PrivateUse1", allow_override=True)
    library.impl(f"_{name}_get_max_workspace", lambda q, *_, **__: q.new_empty(1), "PrivateUse1", allow_override=True)
    yield launched
    library._destroy()


def _decode(q, key, value, lengths):
    more = [n + 1 for n in lengths]
    first, _ = torch.ops.npu.npu_fused_infer_attention_score(
        q, key, value, num_heads=1, scale=0.5, input_layout="BNSD", actual_seq_lengths_kv=lengths
    )
    second, _ = torch.ops.npu.npu_fused_infer_attention_score(
        first * 2, key, value, num_heads=1, scale=0.5, input_layout="BNSD", actual_seq_lengths_kv=more
    )
    return second + 1


def test_lengths_of_attention_replace_the_captured_tasks(log, fused_attention):
    """64 steps, one capture; a step whose lengths are the last one's replaces nothing."""
    call = compiled(_decode, dynamic=True)
    key, value = torch.randn(2, 1, 80, 8), torch.randn(2, 1, 80, 8)
    on_device = key.npu(), value.npu()
    for step in range(64):
        q, lengths = torch.randn(2, 1, 1, 8), [step + 4, 2 * (step // 2) + 5]
        got = call(q.npu(), *on_device, lengths)
        first = _lengths(q, key, value, lengths, 0.5)
        want = _lengths(first * 2, key, value, [n + 1 for n in lengths], 0.5) + 1
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5, msg=lambda m: f"step {step}: {m}")
    assert log.captures == 1
    assert len(fused_attention) == 2 * 64
    call(torch.randn(2, 1, 1, 8).npu(), *on_device, lengths)
    assert len(fused_attention) == 2 * 64


def test_a_task_that_cannot_be_replaced_names_the_line_and_the_next_step_replaces_it(log, fused_attention):
    """A list that the operator refuses; the lists of the last good step then come as new ones."""
    call = compiled(_decode, dynamic=True)
    key, value = torch.randn(2, 1, 80, 8), torch.randn(2, 1, 80, 8)
    on_device, q = (key.npu(), value.npu()), torch.randn(2, 1, 1, 8)

    def right(lengths):
        first = _lengths(q, key, value, lengths, 0.5)
        want = _lengths(first * 2, key, value, [n + 1 for n in lengths], 0.5) + 1
        torch.testing.assert_close(call(q.npu(), *on_device, lengths).cpu(), want, rtol=1e-5, atol=1e-5)

    right([4, 5])
    right([6, 7])
    for _ in range(2):
        with pytest.raises(Exception, match="GE4005") as caught:
            call(q.npu(), *on_device, [6, -2])
        text = str(caught.value)
        assert "npu_fused_infer_attention_score.default: its captured task cannot be replaced for" in text
        assert "actual_seq_lengths_kv = [6, -2]: ValueError: a length of -2" in text
        assert f"{__file__}:{_decode.__code__.co_firstlineno + 2} in _decode" in text
    right([6, 7])
    right([8, 9])
    assert log.captures == 1


class Decoder(torch.nn.Module):
    """A step of the kind that serving programs have: a cache written in place, lengths that change."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(8, 8)
        self.register_buffer("key", torch.zeros(2, 1, 80, 8))

    def forward(self, q, value, place, lengths):
        """One token a sequence, its key at ``place``."""
        self.key.index_copy_(2, place, self.proj(q))
        return _decode(q, self.key, value, lengths)


@pytest.mark.parametrize("door", ["torchair", "torch.npu", "torch.compile"])
def test_a_second_start_has_the_program_from_disk(log, fused_attention, door, tmp_path):
    """64 steps in each start: one capture, the tasks replaced, the same bits; nothing is traced to ATen again."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    results = []
    for start in range(2):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, log.lines = Decoder().npu(), []
        if door == "torchair":
            call = torchair.inference.cache_compile(model.forward, config=config, cache_dir=str(tmp_path))
        elif door == "torch.npu":
            call = torch.npu.npugraph_ex.inference.cache_compile(model.forward, cache_dir=str(tmp_path))
        else:
            config.cache_dir = str(tmp_path)
            call = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
        value, got = torch.randn(2, 1, 80, 8).npu(), []
        with torch.no_grad():
            for step in range(64):
                q, place = torch.randn(2, 1, 1, 8).npu(), torch.tensor([step]).npu()
                got.append(call(q, value, place, [step + 4, step + 5]).cpu())
        results.append([*got, model.key.cpu()])
        assert log.captures == 1
        assert sum("program of" in line for line in log.lines) == 1 - start
    assert len(fused_attention) == 2 * 2 * 64
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_the_rows_of_replaced_tasks_are_those_of_the_wheel():
    from torchair.passes.step_numbers import TASKS

    for name, row in TASKS.items():
        packet = getattr(torch.ops.npu, name)
        known = {a.name: str(a.type) for a in packet.default._schema.arguments}
        into = {a.name: str(a.type) for a in packet.out._schema.arguments}
        room = {a.name: str(a.type) for a in getattr(torch.ops.npu, row.workspace).default._schema.arguments}
        assert {k: into[k] for k in known} == known == room
        assert set(into) - set(known) == {"workspace", "out"}
        assert {k for k, v in known.items() if "List[int]" in v or "SymInt" in v} == row.lists


def test_the_pairs_of_writing_operators_are_those_of_the_wheel():
    from torchair.passes.reinplace import PAIRS, in_place_form, writing_form

    for name, writer in PAIRS.items():
        target, wanted = getattr(torch.ops.npu, name).default, getattr(torch.ops.npu, writer).default
        several = writing_form(target)
        assert (in_place_form(target) if several is None else several.target) is wanted


# -- composite operators, which the device's own kernels run


def _attend(x, *mask, **more):
    q = x.view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, *mask, **more)


def _tokens(rows, kind=torch.float32):
    return torch.randn(rows - 1, rows, 32).to(kind)


def _lower(*sizes):
    return torch.ones(sizes).tril().bool()


COMPOSITES = {
    "attention": (_attend, lambda n: (_tokens(n),)),
    "attention, half": (_attend, lambda n: (_tokens(n, torch.float16),)),
    "attention, causal": (lambda x: _attend(x, is_causal=True), lambda n: (_tokens(n, torch.bfloat16),)),
    "attention, bool": (_attend, lambda n: (_tokens(n), _lower(n - 1, 1, n, n))),
    "attention, numbers": (_attend, lambda n: (_tokens(n), torch.randn(n - 1, 1, n, n))),
    "attention, a plane": (_attend, lambda n: (_tokens(n), _lower(n, n))),
    "attention, planes": (lambda x: F.scaled_dot_product_attention(x, x, x), lambda n: (_tokens(n),)),
    "weight norm": (lambda x: torch._weight_norm(x, x[:, :1].abs() + 1, 0), lambda n: (torch.randn(n, 8),)),
    "fill_diagonal_": (lambda x: (x + 0).fill_diagonal_(1.0), lambda n: (torch.randn(n, 8),)),
    "lstm_cell": (lambda x, w: torch.lstm_cell(x, (x, x), w, w)[0], lambda n: (torch.randn(n, 8), torch.randn(32, 8))),
    "gru_cell": (lambda x, w: torch.gru_cell(x, x, w, w), lambda n: (torch.randn(n, 8), torch.randn(24, 8))),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composite_operators_keep_sizes_symbolic(log, name):
    """Three sizes: one program, three captures; numbers of the CPU."""
    program, inputs = COMPOSITES[name]
    traced = []
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.post_grad_custom_pre_pass = lambda gm, *_: traced.append(gm)
    call = torch.compile(program, backend=torchair.get_npu_backend(compiler_config=config), dynamic=True)
    for rows in (5, 6, 7):
        given = inputs(rows)
        want = program(*given)
        tolerance = 1e-5 if want.dtype is torch.float32 else 1e-2
        got = call(*(each.npu() for each in given)).cpu()
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert len(traced) == 1
    assert log.captures == 3


def test_attention_of_symbolic_sizes_is_the_devices_own(log):
    """The same operators that torch_npu's kernel takes for sizes that are fixed."""
    programs = {name: p for name, (p, _) in COMPOSITES.items() if name.startswith("attention")}
    for name, program in programs.items():
        found = []
        config = torchair.CompilerConfig()
        config.mode = "npugraph_ex"
        config.post_grad_custom_pre_pass = lambda gm, *_: found.append(
            [str(n.target) for n in gm.graph.nodes if "attention" in str(n.target) or "softmax" in str(n.target)]
        )
        for dynamic in (False, True):
            torch._dynamo.reset()
            backend = torchair.get_npu_backend(compiler_config=config)
            torch.compile(program, backend=backend, dynamic=dynamic)(*(t.npu() for t in COMPOSITES[name][1](6)))
        fixed, symbolic = found
        assert ("npu_fusion_attention" in str(fixed)) == ("npu_fusion_attention" in str(symbolic)), (name, found)


# -- operators of torch_npu that no capture takes

X = torch.randn(2, 3, 8, 8).half()
NOT_CAPTURED = {
    "npu_bmmV2": lambda x: torch_npu.npu_bmmV2(x[0], x[1], []),
    "npu_conv2d": lambda x: torch_npu.npu_conv2d(x, x[:, :, :2, :2], None, (1, 1), (0, 0), (1, 1), 1),
    "npu_convert_weight_to_int4pack": lambda x: torch_npu.npu_convert_weight_to_int4pack(
        torch.ones(8, 16, dtype=torch.int32, device=x.device)
    ),
    "npu_format_cast": lambda x: torch_npu.npu_format_cast(x[0, 0], 29),
    "npu_scaled_masked_softmax": lambda x: torch_npu.npu_scaled_masked_softmax(x, x > 0, 1.0, False),
    "npu_silu": lambda x: torch_npu.npu_silu(x),
    "npu_transpose": lambda x: torch_npu.npu_transpose(x, [0, 2, 1, 3]),
}


@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_an_operator_that_no_capture_takes_is_refused_with_the_line(log, name):
    """Refused before the capture; without the validation torch_npu itself refuses, so the table is right."""
    from torchair.runtime.host_work import OF_TORCH_NPU

    call, x = NOT_CAPTURED[name], X.npu()
    with pytest.raises(Exception, match="GE1058") as caught:
        compiled(call)(x)
    text = str(caught.value)
    assert f"{name}.default: {'; '.join(OF_TORCH_NPU[name])}" in text
    assert re.search(re.escape(__file__) + r":\d+ in ", text)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=rf"GE1058. this needs[^\n]*\n.*{name}"):
        compiled(call, unsafe_skip_npugraph_capture_validation=True)(x)
    torch.npu.synchronize()


def test_operators_that_no_capture_takes_are_operators_of_the_wheel():
    from torchair.runtime.host_work import OF_TORCH_NPU

    assert all(hasattr(torch.ops.npu, name) for name in OF_TORCH_NPU)


def test_around_an_operator_that_no_capture_takes_both_halves_are_captured(log):
    """``fallback = "split"``: the silu of torch_npu runs eagerly."""
    config = torchair.CompilerConfig()
    config.mode, config.fallback = "npugraph_ex", "split"
    backend = torchair.get_npu_backend(compiler_config=config)
    call = torch.compile(lambda x: torch_npu.npu_silu(x * 2) + 1, backend=backend, dynamic=False)
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(call(x.npu()).cpu(), F.silu(x * 2) + 1, rtol=1e-4, atol=1e-4)
    assert log.captures == 2


# -- what needs the host, cut out of the graph


def _masked(cache, x, mask):
    y = torch.relu(x) * 2
    y[mask] = 7.0
    cache.add_(y)
    return y + 1, (y * 2).sum()


def test_both_halves_around_the_host_are_captured(log):
    """``fallback = "split"``: an index of bool runs eagerly, what is before and after is replayed."""
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.fallback = "split"
    call = torch.compile(_masked, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    cache, on_device = torch.zeros(3, 4), torch.zeros(3, 4).npu()
    for _ in range(4):
        x, mask = torch.randn(3, 4), torch.rand(3, 4) > 0.5
        got = call(on_device, x.npu(), mask.npu())
        for a, b in zip(got, _masked(cache, x, mask), strict=True):
            equal(a, b)
        equal(on_device, cache)
    said = [line for line in log.lines if "captured graphs in the place of one" in line]
    assert said
    assert all("test_capture.py" in line for line in said)
    assert log.captures == 2


def test_a_replay_waits_for_the_update_that_follows_it():
    """As vLLM does it: the graph is launched first, then its tasks get this step's lengths on another stream."""
    torch.manual_seed(0)
    heads, size, block = 2, 16, 128
    q = torch.randn(2, heads, size, dtype=torch.float16).npu()
    k, v = (torch.randn(4, block, heads * size, dtype=torch.float16).npu() for _ in range(2))
    fixed = {
        "query": q,
        "key": k,
        "value": v,
        "block_table": torch.tensor([[1], [2]], dtype=torch.int32).npu(),
        "atten_mask": torch.triu(torch.ones(2048, 2048), 1).to(torch.int8).npu(),
        "input_layout": "TND",
        "block_size": block,
        "actual_seq_lengths": [1, 2],
        "num_key_value_heads": heads,
        "num_heads": heads,
        "scale": size**-0.5,
        "sparse_mode": 3,
    }
    attention = torch_npu.npu_fused_infer_attention_score
    # the place of a result that nobody wants has a type of its own
    outs = [torch.empty(2, heads, size, dtype=torch.float16).npu(), torch.empty(1, dtype=torch.float16).npu()]
    graph, other = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph):
        stream, event = torch.npu.current_stream(), torch.npu.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        attention.out(**fixed, actual_seq_lengths_kv=[block, block], out=outs)
        task = torch.npu.graph_task_group_end(stream)
        result = outs[0] * 2
    for lengths in ([5, 4], [6, 5], [1, 90]):
        torch.npu.synchronize()
        graph.replay()
        with torch.npu.stream(other):
            torch.npu.graph_task_update_begin(other, task)
            attention.out(**fixed, actual_seq_lengths_kv=lengths, out=outs)
            torch.npu.graph_task_update_end(other)
            event.record(other)
        for row, length in enumerate(lengths):  # the formula of attention, over the row's own block
            keys, values = (t[row + 1, :length].cpu().float().view(length, heads, size) for t in (k, v))
            scores = torch.einsum("hd,lhd->hl", q[row].cpu().float(), keys) * size**-0.5
            want = torch.einsum("hl,lhd->hd", scores.softmax(-1), values) * 2
            torch.testing.assert_close(result[row].cpu().float(), want, atol=4e-3, rtol=4e-3)
