"""Communication tasks that can dead-lock, against a machine that tries every order in which streams can run."""

from __future__ import annotations

import itertools
import random
import warnings

import pytest
import torch

import torchair
from torchair.compiler.observers import warn_of_clashes
from torchair.passes.core_clashes import clashes, communicates, report

TOTAL = 40
STREAMS = ("", "left", "right")
collectives = torch.ops._c10d_functional


@pytest.fixture(scope="module", autouse=True)
def fused():
    """An operator that computes and communicates, known by its argument ``hcom`` as those of torch_npu are."""
    library = torch.library.Library("npu_of_this_test", "DEF")
    library.define("mm_all_reduce(Tensor x, str hcom) -> Tensor")
    library.impl("mm_all_reduce", lambda x, hcom: x.clone(), "CompositeExplicitAutograd")
    yield torch.ops.npu_of_this_test.mm_all_reduce.default
    library._destroy()


def program(seed):
    """Steps of a random program: (kind, stream, cores, number of what it waits for)."""
    draw = random.Random(seed)
    steps, marks, open_ = [], [], []
    for number in range(draw.randint(5, 9)):
        stream, cores = draw.choice(STREAMS), draw.choice((8, 16, 20, 24, 32))
        kind = draw.choice(("compute", "fused", "fused", "collective", "record", "wait", "wait_tensor"))
        target = None
        if kind == "wait":
            if not marks:
                continue
            target = draw.choice(marks)
        elif kind == "wait_tensor":
            if not open_:
                continue
            target = open_.pop(draw.randrange(len(open_)))
        elif kind == "record":
            marks.append(number)
        elif kind == "collective":
            open_.append(number)
        steps.append((number, kind, stream, cores, target))
    return steps


def written(steps):
    """The program as an FX graph with scopes."""
    graph, made = torch.fx.Graph(), {}
    x = graph.placeholder("x")
    for number, kind, stream, cores, target in steps:
        keys, values = ["_op_vectorcore_num"], [str(cores)]
        if stream:
            keys, values = [*keys, "_user_stream_label"], [*values, stream]
        graph.call_function(torch.ops.air.scope_enter.default, (keys, values))
        if kind == "compute":
            graph.call_function(torch.ops.aten.relu.default, (x,))
        elif kind == "fused":
            made[number] = graph.call_function(torch.ops.npu_of_this_test.mm_all_reduce.default, (x, "world"))
        elif kind == "collective":
            made[number] = graph.call_function(collectives.all_reduce.default, (x, "sum", f"g{number % 2}"))
        elif kind == "record":
            made[number] = graph.call_function(torch.ops.air.record.default)
        elif kind == "wait":
            graph.call_function(torch.ops.air.wait.default, ([made[target]],))
        else:
            graph.call_function(collectives.wait_tensor.default, (made[target],))
        graph.call_function(torch.ops.air.scope_exit.default)
    graph.output((x,))
    return graph, made


def queues(steps):
    """The same as a machine has it: of each stream what it does, and what each step waits for."""
    made, on_stream = {}, {}
    for number, kind, stream, cores, target in steps:
        waits = [] if target is None else [("done", target)]
        task = (number, cores) if kind == "fused" else None
        made.setdefault(stream, []).append((("done" if kind != "collective" else "launched", number), waits, task))
        if kind == "collective":
            on_stream = made.setdefault(f"group {number % 2}", [])
            on_stream.append((("done", number), [("launched", number)], (number, cores)))
    return list(made.values())


def tried(steps):
    """Pairs of tasks that are ready at one time in some order, and want more cores than there are."""
    every, found, seen = queues(steps), set(), set()
    waiting = [(0,) * len(every)]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        done = {step[0] for queue, at in zip(every, state) for step in queue[:at]}
        ready = [
            k for k, (queue, at) in enumerate(zip(every, state)) if at < len(queue) and done.issuperset(queue[at][1])
        ]
        tasks = [queue[at][2] for k in ready for queue, at in [(every[k], state[k])] if queue[at][2]]
        found |= {frozenset((a[0], b[0])) for a, b in itertools.combinations(tasks, 2) if a[1] + b[1] > TOTAL}
        waiting += [(*state[:k], state[k] + 1, *state[k + 1 :]) for k in ready]
    return found


def chosen():
    """Thirty programs that can dead-lock, and thirty that cannot though tasks of two streams want too many cores."""
    bad, good = [], []
    for seed in range(10_000):
        steps = program(seed)
        tasks = [(s[2], s[3]) for s in steps if s[1] in ("fused", "collective")]
        close = any(a[1] + b[1] > TOTAL for a, b in itertools.combinations(tasks, 2))
        group = bad if tried(steps) else good
        if (group is bad or close) and len(group) < 30:
            group.append(seed)
        if len(bad) == len(good) == 30:
            break
    return bad, good


BAD, GOOD = chosen()


@pytest.mark.parametrize("seed", [*BAD, *GOOD])
def test_every_order_of_the_streams(seed):
    """Sixty of sixty: the verdict, and every pair of it."""
    steps = program(seed)
    graph, made = written(steps)
    names = {node.name: number for number, node in made.items()}
    found = clashes(graph, TOTAL)
    assert {frozenset((names[c.first.node], names[c.second.node])) for c in found} == tried(steps)
    assert bool(found) is (seed in BAD)
    assert all(c.certain for c in found)


def two(first_scope, second_scope):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for keys, values in (first_scope, second_scope):
        graph.call_function(torch.ops.air.scope_enter.default, (keys, values))
        graph.call_function(torch.ops.npu_of_this_test.mm_all_reduce.default, (x, "world"))
        graph.call_function(torch.ops.air.scope_exit.default)
    graph.output((x,))
    return graph


def test_what_has_no_limit_is_no_more_than_possible():
    limited = (["_op_vectorcore_num"], ["24"])
    (found,) = clashes(two(limited, (["_user_stream_label"], ["side"])), TOTAL)
    assert not found.certain
    assert str(found).startswith("POSSIBLE: [stream default] npu_of_this_test.mm_all_reduce.default (24 AIVEC)")
    both = (["_op_vectorcore_num", "_user_stream_label"], ["24", "side"])
    (found,) = clashes(two(limited, both), TOTAL)
    assert found.certain
    assert report([found]).splitlines() == ["[RESULT] 1 conflicting pairs", f"  {found}"]
    assert "(24 AIVEC) <-> [stream side]" in str(found)
    assert str(found).endswith("sum=48 > 40")
    assert not clashes(two(limited, both), 48)


def test_what_communicates(fused):
    assert communicates(fused)
    assert communicates(collectives.all_reduce.default)
    assert not communicates(collectives.wait_tensor.default)
    assert not communicates(torch.ops.aten.relu.default)


def warned(call):
    """What ``deadlock_check`` says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught if "deadlock_check for ascend910b2" in str(w.message)]


@pytest.mark.parametrize(("cores", "wanted"), [(32, 1), (24, 0)])
def test_the_option_warns_with_lines(fused, cores, wanted):
    def fn(x, y):
        with torchair.scope.limit_core_num(12, cores):
            with torchair.scope.npu_stream_switch("left"):
                a = fused(x, "one")
            with torchair.scope.npu_stream_switch("right"):
                b = fused(y, "two")
        return a + b

    torch._dynamo.reset()
    config = torchair.CompilerConfig()
    config.mode = "npugraph_ex"
    config.aclgraph_config.deadlock_check = True
    call = torch.compile(fn, backend=torchair.get_npu_backend(compiler_config=config), dynamic=False)
    x, y = torch.ones(3), torch.full((3,), 2.0)
    said = warned(lambda: torch.testing.assert_close(call(x, y), x + y))
    assert len(said) == wanted
    if wanted:
        assert "[RESULT] 1 conflicting pairs" in said[0]
        assert "(32 AIVEC)" in said[0]
        assert "sum=64 > 48" in said[0]
        assert said[0].count("test_core_clashes.py") == 2


@pytest.mark.parametrize(("mode", "option"), [("max-autotune", "debug"), ("npugraph_ex", "aclgraph_config")])
def test_the_option_of_each_mode(mode, option):
    sides = [(["_op_vectorcore_num", "_user_stream_label"], ["32", name]) for name in ("left", "right")]
    gm = torch.fx.GraphModule(torch.nn.Module(), two(*sides))
    config = torchair.CompilerConfig()
    config.mode = mode
    assert not warned(lambda: warn_of_clashes(config, gm, f"off, {mode}"))
    getattr(config, option).deadlock_check = True
    assert len(warned(lambda: warn_of_clashes(config, gm, f"on, {mode}"))) == 1
