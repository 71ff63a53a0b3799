"""What a graph, a caller or a signal can do to the engine: its own errors only, no code from text, no growth."""

from __future__ import annotations

import ast
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ge_graph import DataType, EngineError, Graph, GraphError, Provenance, building
from ge_graph import ops as ge
from ge_graph.attrs import Int
from ge_graph.ir import Tensor, current_graph
from ge_runtime.cpu import Call, CpuEngine, registry

F, I64 = DataType.DT_FLOAT, DataType.DT_INT64
HOSTILE = (
    "n\n    pass\nimport os; os.mkdir('pwned')\ndef program(i0, *a):\n    #",
    '\'"""',
    "'''",
    "end\\",
    "a\rimport os",
    "a\x0cb",
    "a\u2028b",
    "a\x00b",
    "</script>",
    "=cmd",
    "../x",
    "x" * 10_000,
    "a\u202eb",
    "a\ud800b",
    "del",
)


def _graph(build: Callable[[], Any], name: str = "g") -> Graph:
    graph = Graph(name)
    with building(graph):
        found = build()
    graph.outputs = [found] if isinstance(found, Tensor) else list(found)
    return graph


def _compiled(build: Callable[[], Any]) -> Any:
    return CpuEngine().compile(_graph(build), {})


def _data(index: int, *shape: int | str, dtype: DataType = F) -> Tensor:
    return ge.Data(index=index, dtype=dtype, shape=shape)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_never_code(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ge_runtime.cpu.engine import CpuExecutable
    from ge_runtime.cpu.planner import schedule

    monkeypatch.chdir(tmp_path)
    graph = _graph(lambda: ge.Relu(ge.Add(_data(0, 2), 1.0)), text)
    for node in graph.nodes:
        node.name = text  # not a graph that the verifier lets pass; the engine does not rely on that
        node.provenance = Provenance(fx_name=text, fx_target=text, source=text, module=text, code=text)
    executable = CpuExecutable(graph, schedule(graph))
    for _ in range(3):
        assert executable.run([torch.tensor([-2.0, 2.0])])[0].tolist() == [0.0, 3.0]
    assert list(tmp_path.iterdir()) == []
    assert [type(s) for s in ast.parse(executable.source).body] == [ast.FunctionDef]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_of_attributes_and_kernels_are_never_code(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run(x: torch.Tensor, mode: str) -> torch.Tensor:
        seen.append(mode)
        return x + 1

    run.__name__ = text.replace("\ud800", "") or "run"
    hook = lambda ctx: Call(run, (ctx.tensor("x"), text))  # noqa: E731
    monkeypatch.setitem(registry._user, "Relu", registry.Kernel("Relu", run, plan=hook))
    executable = _compiled(lambda: ge.Relu(_data(0, 2)))
    for _ in range(2):
        assert executable.run([torch.zeros(2)])[0].tolist() == [1.0, 1.0]
    assert set(seen) == {text}
    assert executable.source.count("\n") == 7


_BIG: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "Fill": (lambda: ge.Fill([2**62], 1.0), []),
    "Fill by fed sizes": (lambda: ge.Fill(ge.Pack([_data(0, dtype=I64)], N=1), 1.0), [torch.tensor(2**62)]),
    "product of sizes": (lambda: ge.Fill([2**31, 2**31, 4], 1.0), []),
    "BroadcastTo": (lambda: ge.Relu(ge.BroadcastTo(_data(0, 1), [2**62])), [torch.ones(1)]),
    "Range": (lambda: ge.Range(0, _data(0, dtype=I64), 1), [torch.tensor(2**62)]),
    "Tile": (lambda: ge.Tile(_data(0, 2), [2**61]), [torch.ones(2)]),
    "Pad": (lambda: ge.Pad(_data(0, 2), [[0, 2**62]]), [torch.ones(2)]),
}


def test_a_constant_beyond_what_a_model_may_hold_is_refused() -> None:
    with pytest.raises(GraphError, match="GE3066"):
        _compiled(lambda: ge.Const(np.broadcast_to(np.float32(1), (2**45,))))


@pytest.mark.parametrize("case", _BIG)
def test_results_beyond_memory_are_refused(case: str) -> None:
    build, fed = _BIG[case]
    for _ in range(2):
        with pytest.raises(EngineError, match=r"GE4014") as caught:
            _compiled(build).run(fed)
        assert "node" in caught.value.where


_WRONG = [
    "text",
    None,
    1j,
    2**70,
    1.5,
    float("nan"),
    np.array([object()]),
    np.array(["a"]),
    np.array(2**63, np.uint64),
    torch.ones(1),
    torch.eye(2).to_sparse(),
    torch.empty((), dtype=torch.int64, device="meta"),
    [1],
    {},
    object(),
]


@pytest.mark.parametrize("value", _WRONG, ids=[f"{type(v).__name__}{i}" for i, v in enumerate(_WRONG)])
def test_inputs_of_wrong_kinds(value: Any) -> None:
    executable = _compiled(lambda: ge.Add(_data(0, dtype=I64), 1))
    for _ in range(3):
        with pytest.raises(EngineError, match="GE4004"):
            executable.run([value])
        assert executable.run([torch.tensor(2)])[0].item() == 3


@pytest.mark.parametrize(
    "inputs", [5, None, "a", {0: 1}, {1, 2}, iter([1]), [], [1, 2]], ids=lambda v: type(v).__name__
)
def test_lists_of_inputs_of_wrong_kinds(inputs: Any) -> None:
    with pytest.raises(EngineError, match="GE4004"):
        _compiled(lambda: ge.Add(_data(0, dtype=I64), 1)).run(inputs)


def test_numbers_are_taken_if_the_type_holds_them() -> None:
    assert _compiled(lambda: ge.Add(_data(0, dtype=I64), 1)).run([np.int64(4)])[0].item() == 5
    assert _compiled(lambda: ge.Add(_data(0), 1.0)).run([2**60 + 1])[0].item() == 2.0**60


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("weights", [[-1.0, 1, 1], [float("nan"), 1, 1], [float("inf"), 1, 1], [0.0, 0, 0]])
def test_impossible_weights(weights: list[float], replacement: bool) -> None:
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.tensor([weights]), 2, replacement)  # eager refuses them too
    executable = _compiled(
        lambda: ge.MultinomialWithReplacement(
            _data(0, 1, 3), _data(1, 1, dtype=I64), _data(2, 1, dtype=I64), numsamples=2, replacement=replacement
        )
    )
    for _ in range(2):
        with pytest.raises(EngineError, match="GE4009") as caught:
            executable.run([torch.tensor([weights]), torch.tensor([3]), torch.tensor([0])])
        assert "MultinomialWithReplacement" in caught.value.where


@pytest.mark.parametrize("op", ["RealDiv", "Div"])
def test_division_of_integers_whose_operand_dies(op: str) -> None:
    def build() -> Tensor:
        divisor = _data(1, 4, dtype=I64)
        both = ge.Add(_data(0, 4, dtype=I64), divisor)
        both.record_shape((4,))
        found = getattr(ge, op)(both, divisor)
        found.record_shape((4,))
        return found

    executable, y = _compiled(build), torch.tensor([2, -2, 3, -3])
    mode = "trunc" if op == "RealDiv" else "floor"
    for k in range(3):
        x = torch.tensor([7, -7, 8, 9]) + k
        assert torch.equal(executable.run([x, y])[0], torch.div(x + y, y, rounding_mode=mode))


def test_sizes_that_only_look_equal_are_not_overwritten() -> None:
    def build() -> Tensor:
        first = ge.Tanh(_data(0, "s0"))
        first.record_shape(("s0",))
        found = ge.Add(first, _data(1, "s1"))
        found.record_shape(("s0",))  # wrong as soon as s0 is 1 and s1 is not
        return found

    executable = _compiled(build)
    for x, y in ((torch.ones(3), torch.ones(3)), (torch.ones(1), torch.ones(3)), (torch.ones(3), torch.ones(1))):
        for _ in range(2):
            torch.testing.assert_close(executable.run([x, y])[0], torch.tanh(x) + y)


def test_parts_of_a_state_keep_their_values() -> None:
    def build() -> list[Tensor]:
        state = current_graph().add("RefData", [None], {"index": Int(0)}, [(F, (4, 2))]).outputs[0]
        h, c = ge.SplitD(state, split_dim=0, num_split=2)
        grown = ge.Add(_data(1, 4, 2), state)
        new = ge.Assign(state, grown)
        new.node.control.append(h.node)  # the state is read before it is written
        return [ge.Identity(h), ge.Identity(c), *ge.SplitD(new, split_dim=0, num_split=2)]

    executable = _compiled(build)
    state = torch.arange(8.0).reshape(4, 2)
    want = state.clone()
    for k in range(3):
        h, c = want.clone().chunk(2)
        want = want + k
        got = executable.run([state, torch.full((4, 2), float(k))])
        for a, b in zip(got, [h, c, *want.chunk(2)], strict=True):
            assert torch.equal(a, b)
        assert torch.equal(state, want)


def test_threads_compile_and_run_at_once() -> None:
    graph = _graph(lambda: ge.Relu(ge.Add(_data(0, "s0"), 1.0)))
    shared, wrong = CpuEngine().compile(graph, {}), []

    def work(number: int) -> None:
        for k in range(60):
            x = torch.full((number + 1,), float(k))
            own = CpuEngine().compile(graph, {"engine.shuffle_seed": str(k)})
            if not all(torch.equal(e.run([x])[0], x + 1) for e in (shared, own, own)):
                wrong.append((number, k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _in_child(executable: Any, pipe: Any) -> None:
    first = executable.run([torch.ones(3)])[0].tolist() if executable is not None else []
    second = _compiled(lambda: ge.Add(_data(0, 3), 2.0)).run([torch.ones(3)])[0].tolist()
    try:
        _compiled(lambda: ge.Add(_data(0, 3), 2.0)).run([torch.ones(4)])
    except EngineError as error:
        pipe.send((first, second, error))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_after_compiling(method: str) -> None:
    executable = _compiled(lambda: ge.Add(_data(0, 3), 1.0))
    executable.run([torch.ones(3)])
    if method == "spawn":
        code = "from ge_runtime.cpu import CpuEngine; print('ok')"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "ok\n"
        return
    context = multiprocessing.get_context(method)
    mine, theirs = context.Pipe()
    child = context.Process(target=_in_child, args=(executable, theirs))
    child.start()
    assert mine.poll(60)
    first, second, error = mine.recv()
    child.join()
    assert (first, second) == ([2.0] * 3, [3.0] * 3)
    assert (error.code, child.exitcode) == ("GE4004", 0)
    assert executable.run([torch.ones(3)])[0].tolist() == [2.0] * 3


_SIZES: dict[str, tuple[list[torch.Tensor], str]] = {
    "a fixed size beside a named one": ([torch.ones(3, 5), torch.ones(3)], r"f32\[3, 5\].*declares \[s0, 4\]"),
    "two sizes of one name": ([torch.ones(3, 4), torch.ones(2)], "size 0 of input 1 is 2.*input 0 is 3.* s0"),
}


@pytest.mark.parametrize("case", _SIZES)
def test_inputs_have_the_sizes_that_the_graph_names(case: str) -> None:
    executable = _compiled(lambda: [ge.Relu(_data(0, "s0", 4)), ge.Relu(_data(1, "s0"))])
    fed, message = _SIZES[case]
    for _ in range(3):
        assert [tuple(r.shape) for r in executable.run([torch.ones(2, 4), torch.ones(2)])] == [(2, 4), (2,)]
        with pytest.raises(EngineError, match=message):
            executable.run(fed)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", "compile"])
def test_an_interrupt_and_then_again(what: str) -> None:
    def build() -> Tensor:
        x = _data(0, 4)
        for _ in range(300):
            x = ge.Add(ge.Tanh(x), 1.0)
        return x

    graph, fed = _graph(build), [torch.ones(4)]
    executable = CpuEngine().compile(graph, {})
    want = executable.run(fed)[0]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it

    def interrupted(delay: float) -> None:
        """Go on until the signal comes; where it falls into a finalizer, Python itself drops it: once more then."""
        for _ in range(10):
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            until = time.monotonic() + 5
            timer.start()
            while time.monotonic() < until:
                executable.run(fed) if what == "run" else CpuEngine().compile(graph, {})

    for delay in (0.001, 0.004, 0.01, 0.03):
        with pytest.raises(KeyboardInterrupt):
            interrupted(delay)
        assert torch.equal(executable.run(fed)[0], want)
        assert torch.equal(CpuEngine().compile(graph, {}).run(fed)[0], want)
        assert not torch.is_autocast_enabled("cpu")
        x = torch.ones(2, requires_grad=True)
        assert (x * 2).requires_grad  # the guards of the run are off again
    signal.signal(signal.SIGINT, before)


def _bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of the process from /proc")
def test_runs_and_compilations_do_not_grow() -> None:
    def build() -> Tensor:
        x = _data(0, "s0")
        for _ in range(20):
            x = ge.Mul(ge.Tanh(x), 2.0)
        return ge.Reshape(x, ge.Pack([ge.Gather(ge.Shape(x, dtype=I64), 0), ge.Const(1)], N=2))

    executable = _compiled(build)

    def work(runs: int, compilations: int) -> int:
        for k in range(runs):
            executable.run([torch.ones(1 + k % 50)])
        for _ in range(compilations):
            _compiled(build).run([torch.ones(3)])
        gc.collect()
        return _bytes()

    before = work(20_000, 500)  # the first time a process that ran many tests still finds its places
    assert work(20_000, 500) - before < 8 * 2**20


@pytest.mark.slow
def test_an_executable_goes_with_its_last_user() -> None:
    executable = _compiled(lambda: ge.Add(ge.Tanh(_data(0, 3)), ge.Const(np.ones(3, np.float32))))
    executable.run([torch.ones(3)])
    gone = [weakref.ref(executable), weakref.ref(executable._program)]
    del executable
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
