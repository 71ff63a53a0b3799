"""Random programs do what ``aot_eager`` does; those that once did not are kept under ``tests/corpus/programs``.

``make fuzz`` runs them for as long as one likes.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from labs.fuzz import compare
from labs.fuzz.compare import REFUSED, Difference, _difference, check, handed_over, recorded, run, shrink
from labs.fuzz.many import Judged, chunks, judge
from labs.fuzz.operators import OPERATORS
from labs.fuzz.program import Given, Program, RunResult, Step, draw, read, reference
from labs.fuzz.record import NotRecorded, Recorded, record

CORPUS = sorted((Path(__file__).parent / "corpus" / "programs").glob("*.json"))


@pytest.mark.parametrize("path", CORPUS, ids=lambda p: p.stem)
def test_corpus(path):
    assert check(read(path.read_text())) is None


@pytest.mark.night(rows=3)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000_000, 1_000_012))
def test_random_programs(seed):
    program = draw(seed, steps=12)
    finding = check(program)
    assert finding is None or finding.expected, program.text()


PAIR = Program((Given((3, 4), "float32", (0, 1)),), (Step("transpose", (0,), (0, 1)), Step("neg", (1,))), (2, 1))
BEYOND = Program((Given((3, 2), "float32", (0, 1), gaps=True),), (Step("memory", (0,)), Step("neg", (1,))), (2,))
GAPS = replace(BEYOND, dynamic=True)
WRITTEN = Program(
    (Given((3, 4), "float32", (1, 0), grad=True), Given((3, 4), "float32", (0, 1))),
    (Step("add", (0, 1)), Step("neg_", (1,)), Step("softmax", (2,), (1,))),
    (4, 3),
)
DOUBLE = (Given((3, 4), "float64", (0, 1)),)
STILL_REFUSED = {
    "does not take DT_DOUBLE and no type that it takes holds every value of it": Program(
        DOUBLE, (Step("bucketize", (0,)),), (1,)
    ),
    "takes float32, float16 and bfloat16, got DT_DOUBLE": Program(DOUBLE, (Step("attention", (0,), (False,)),), (1,)),
    "stable sort of DT_DOUBLE": Program(DOUBLE, (Step("stable order", (0,), (0,)),), (1,)),
    "the elements addressed lie in its storage but not in its value": BEYOND,
    "where elements lie is known of a tensor that fills a block of memory only": GAPS,
}


@pytest.mark.parametrize("row", REFUSED)
def test_what_is_expected_to_be_refused_still_is(row):
    assert check(STILL_REFUSED[row]).expected == row


def test_a_refusal_is_named_by_what_nobody_expects(monkeypatch):
    given = Given((2, 3, 4), "float64", (0, 1, 2))
    program = Program((given,), (Step("stable order", (0,), (0,)), Step("attention", (0,), (False,))), (1, 2))
    assert check(program).expected
    monkeypatch.setattr(compare, "REFUSED", {r: why for r, why in REFUSED.items() if not r.startswith("takes")})
    finding = check(program)
    assert not finding.expected
    assert "FlashAttentionScore" in finding.kind


def test_without_dynamo_a_program_is_judged_the_same(monkeypatch):
    """Written inputs, gradients, and what only dynamo can trace; the refusal is found, and a fault put in is."""
    assert check(WRITTEN, way=handed_over) is None
    assert check(BEYOND, way=handed_over).expected in REFUSED
    branch = Program((Given((3,), "float32", (0,)),), (Step("cond", (0, 0), (1,)),), (1,))
    assert check(branch, way=handed_over) is None
    backend = compare.ours(WRITTEN)
    faulty = lambda gm, inputs: (call := backend(gm, inputs)) and (lambda *args: [r + 1 for r in call(*args)])  # noqa: E731
    monkeypatch.setattr(compare, "ours", lambda program: faulty)
    assert check(WRITTEN, way=handed_over).kind == "values of results"


def test_a_recording_is_judged_the_same(monkeypatch):
    """Results, written inputs and gradients of other values than those that were recorded; a fault in each is found."""
    assert check(WRITTEN, way=recorded) is None
    call = recorded(WRITTEN, compare.ours(WRITTEN))
    again = compare.run(WRITTEN, call, turn=1)
    assert _difference(WRITTEN, reference(WRITTEN, 1), again, 1, memory=False) is None
    assert len(again.grads) == 1
    for number, kind in enumerate(("results", "results", "grads")):
        faulty = Recorded(call.recording, lambda xs, n=number: [r + (i == n) for i, r in enumerate(call.call(xs))])
        monkeypatch.setattr(compare, "recorded", lambda program, backend, faulty=faulty: faulty)
        assert check(WRITTEN, way=compare.recorded).kind == f"values of {kind}"
    unwritten = Recorded(call.recording, lambda xs: call.call([x.clone() for x in xs]))
    monkeypatch.setattr(compare, "recorded", lambda program, backend: unwritten)
    assert check(WRITTEN, way=compare.recorded).kind == "values of inputs"


def test_a_recording_is_the_graph_of_aot_autograd():
    """Other graphs would be judged than those that users compile."""
    from functorch.compile import aot_function, make_boxed_func

    from ge_converters.decompose.table import decomposition_table

    program = Program(
        (Given((3, 4), "float32", (0, 1)),),
        (
            Step("softmax", (0,), (1,)),
            Step("transpose", (1,), (0, 1)),
            Step("F.gelu", (2,)),
            Step("sum", (3,), ([0], True)),
        ),
        (4,),
    )
    seen = []

    def keep(gm, inputs):
        seen.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return make_boxed_func(gm.forward)

    aot_function(program.module(), keep, decompositions=decomposition_table())(*program.arguments())
    assert [n.target for n in record(program).graph.nodes if n.op == "call_function"] == seen


def test_of_programs_compiled_together_only_the_wrong_ones_are_judged_alone(monkeypatch):
    """What is refused does not hide the others; a wrong value is its own program's; what is not recorded is named."""
    branch = Program((Given((3,), "float32", (0,)),), (Step("cond", (0, 0), (1,)),), (1,))
    refused = STILL_REFUSED["stable sort of DT_DOUBLE"]
    captured = replace(WRITTEN, mode="reduce-overhead")
    assert compare.doubtful([PAIR, WRITTEN, branch, refused, captured]) == ([refused], [branch])
    wrong = lambda program, turn: replace_results(reference(program, turn), program == PAIR)  # noqa: E731
    monkeypatch.setattr(compare, "reference", wrong)
    assert compare.doubtful([WRITTEN, PAIR]) == ([PAIR], [])


def test_memory_of_a_recording_is_not_compared():
    """What is written through elements that share memory differs between eager and aot_eager; a recording agrees with
    the latter, and has no aliases to compare."""
    given = Given((2, 3), "float32", (0, 1))
    program = Program((given,), (Step("expand", (0,), (3,)), Step("masked_fill_", (1, 0), (1.5,))), (2,))
    assert compare._first_difference(program, 1, handed_over)[0].kind == "values of results"
    assert check(program, way=recorded) is None


def test_a_written_input_with_gaps_is_not_recorded():
    """Its new value has none, so what is a copy in eager and AOTAutograd would be a view; these take the whole way."""
    program = Program(
        (Given((3, 3, 6), "int64", (0, 1, 2), gaps=True),),
        (Step("index_fill_", (0,), (0, [2], 1)), Step("contiguous", (1,)), Step("index_fill_", (2,), (2, [0], 2))),
        (3,),
    )
    with pytest.raises(NotRecorded):
        record(program)
    assert check(program, way=handed_over) is None


def replace_results(result, spoil):
    return RunResult([r + spoil for r in result.results], result.inputs, result.grads)


@pytest.mark.parametrize(
    "program",
    [
        replace(PAIR, dynamic=True),
        Program((Given((3,), "float32", (0,)),), (Step("cond", (0, 0), (1,)),), (1,)),
        Program((Given((3,), "float32", (0,)), Given((3,), "float32", (0,), base=0, alias="flat")), (), (0,)),
    ],
    ids=["sizes", "data", "shared"],
)
def test_what_needs_all_of_aot_autograd_is_not_recorded(program):
    with pytest.raises(NotRecorded):
        record(program)


def test_many_programs_are_judged_and_the_first_of_each_kind_named(monkeypatch):
    total = Judged()
    for judged in chunks(iter([range(60, 64), range(64, 66)]), 100.0, 1, True, 6):
        total.add(judged)
    assert (total.programs + total.left, total.found) == (6, {})
    assert total.steps > 6
    monkeypatch.setattr("labs.fuzz.many.doubtful", lambda programs: (list(programs), []))
    monkeypatch.setattr("labs.fuzz.many.check", lambda *program, **way: Difference("wrong", ""))
    for judged in chunks(iter([range(3), range(3, 6)]), 100.0, 1, True, 6):
        total.add(judged)
    assert total.found == {"wrong": 6}
    assert total.seeds == {"wrong": [0, 1, 2, 3, 4]}


def test_a_refusal_that_nobody_expects_is_a_finding(monkeypatch):
    monkeypatch.setattr(compare, "REFUSED", {})
    finding = check(BEYOND)
    assert not finding.expected
    assert finding.kind.startswith("LoweringError: refused: argument 'self'")


@pytest.mark.slow
def test_a_seed_names_a_program_and_text_keeps_it():
    for seed in range(20):
        program = draw(seed)
        assert draw(seed) == program
        assert read(program.text()) == program
        run(program, program.module())


@pytest.mark.slow
def test_programs_use_every_operator():
    used = {s.name for seed in range(400) for s in draw(seed).steps}
    assert not set(OPERATORS) - used


@pytest.mark.parametrize("what", ["values", "type", "sizes", "strides"])
def test_a_difference_is_seen(what):
    """The comparison is not blind: each kind of difference is reported."""
    want, got = run(PAIR, PAIR.module()), run(PAIR, PAIR.module())
    changed = {
        "values": lambda t: t + 1,
        "type": lambda t: t.double(),
        "sizes": lambda t: t[:2],
        "strides": lambda t: t.contiguous(),
    }[what]
    first = want.results[0].clone()
    got.results[0], want.results[0] = changed(first), first
    assert _difference(PAIR, want, got).kind == f"{what} of results"


def test_shared_memory_is_seen():
    want, got = run(PAIR, PAIR.module()), run(PAIR, PAIR.module())
    got = RunResult([got.results[0], got.results[1].clone()], got.inputs, got.grads)
    got.results[1] = want.results[1].clone().t().contiguous().t()
    assert _difference(PAIR, want, got).kind == "shared memory"


@pytest.mark.parametrize(("dynamic", "seen"), [(False, (3, 4)), (True, (6, 8))])
def test_a_difference_of_a_later_call_is_seen(monkeypatch, dynamic, seen):
    """A compilation is tried with other values, and with twice the sizes if they are dynamic."""
    program = replace(PAIR, dynamic=dynamic)
    shapes = []

    def compiled(program, backend):
        def call(x):
            shapes.append(tuple(x.shape))
            first = len(shapes) == 1
            return [r if first or backend == "aot_eager" or backend is None else r + 1 for r in program.module()(x)]

        return program.module() if backend is None else call

    monkeypatch.setattr(compare, "compiled", compiled)
    assert check(program).kind == "values of results"
    assert shapes[1] == seen


def test_a_difference_of_aot_eager_is_not_ours(monkeypatch):
    def compiled(program, backend):
        module = program.module()
        return module if backend is None else lambda x: [r + 1 for r in module(x)]

    monkeypatch.setattr(compare, "compiled", compiled)
    assert compare._first_difference(PAIR, 1, compiled)[0].kind == "values of results"
    assert check(PAIR) is None


@pytest.mark.slow
def test_every_kind_of_input_is_drawn():
    inputs = [g for seed in range(400) for g in draw(seed).inputs]
    assert {g.alias for g in inputs} == {"", "itself", "first", "rest", "turned", "flat"}
    assert any(g.sizes == () for g in inputs)
    assert any(0 in g.sizes for g in inputs)
    assert any(g.stretched for g in inputs)
    assert any(g.gaps for g in inputs)
    assert {g.dtype for g in inputs if g.grad} == {"float32", "float16", "bfloat16", "float64"}


def test_shrinking_keeps_what_fails():
    program = next(p for p in map(draw, range(1000)) if any(s.name == "cumsum" for s in p.steps) and len(p.steps) > 12)

    def still(candidate):
        return Difference("sums", "") if any(s.name == "cumsum" for s in candidate.steps) else None

    small = shrink(program, "sums", 20, still)
    assert any(s.name == "cumsum" for s in small.steps)
    assert len(small.steps) < 4


def test_a_recording_that_is_another_program_is_not_what_is_judged():
    """Eager flattened a clone in the order of its memory by a copy, a functional value by a view."""
    program = read((CORPUS[0].parent / "order_of_a_clone.json").read_text())
    assert not compare.faithful(program)
    assert judge(program, fast=True) is None
    assert compare.faithful(PAIR)
