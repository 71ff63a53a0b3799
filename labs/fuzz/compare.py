"""Whether our backend does with a program what eager and ``aot_eager`` do; and the smallest one that it gets wrong."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import torch
from torch._dynamo.backends.registry import lookup_backend
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import torchair
from ge_graph.errors import LoweringError
from labs.fuzz.program import Program, RunResult, reference, with_gradients
from labs.fuzz.record import NotRecorded, Recorded, Recording, joined, record
from torchair.compiler import pipeline


@dataclass(frozen=True, slots=True)
class Difference:
    """What is different.

    Attributes:
        kind: What shrinking keeps.
        text: More, for people.
        expected: The row of ``REFUSED`` that expects it.
        got: What our backend gave, if it gave anything.
    """

    kind: str
    text: str
    expected: str = ""
    got: RunResult | None = field(default=None, compare=False, repr=False)


TURNS: Final = 3  # sets of inputs of one program: the drawn one, twice the sizes if they are dynamic, other values

# Part of a refusal's reason: why programs that ``aot_eager`` runs may be refused so. A row without a program in
# ``tests/test_random_programs.py`` that is still refused for it is an error.
REFUSED: Final[dict[str, str]] = {
    "the elements addressed lie in its storage but not in its value": "as_strided of a view reaches past it; a "
    "GE tensor is its value, what lies around it in memory is not there",
    "where elements lie is known of a tensor that fills a block of memory only": "as_strided of a value with symbolic "
    "sizes whose strides leave gaps; places in memory are computed from numbers",
    "does not take DT_DOUBLE and no type that it takes holds every value of it": "float64 for an operator of GE "
    "that computes in float32; the table of tests/opinfo has the operators",
    "takes float32, float16 and bfloat16, got DT_DOUBLE": "attention of float64, likewise",
    "stable sort of DT_DOUBLE": "order of float64, likewise",
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    if before >= logging.CRITICAL:  # to set it again costs more than a small program
        yield
        return
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def compiled(program: Program, backend: Any) -> Any:
    """The program as ``torch.compile`` gives it, with nothing left of programs before; eager if ``backend`` is None."""
    module: Any = program.module()
    if backend is None:
        return module
    torch._dynamo.reset()
    return torch.compile(module, backend=backend, dynamic=program.dynamic, fullgraph=True)


def handed_over(program: Program, backend: Any) -> Any:
    """The program as dynamo would hand it to the backend, without dynamo: it costs less than half.

    Only for static sizes. Dynamo inlines and guards; all else is as in ``compiled``: AOTAutograd traces the program,
    with sizes that data decide, and gives its results, aliases, written inputs and gradients.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [mode.from_tensor(a, static_shapes=True) for a in program.arguments()]
    backend = lookup_backend(backend) if isinstance(backend, str) else backend
    with _quiet(), tracing(TracingContext(mode)):
        return backend(program.module(), fakes)


def recorded(program: Program, backend: Any) -> Any:
    """The program as AOTAutograd would hand it to our compiler, without AOTAutograd: it costs a tenth.

    Errors: NotRecorded if AOTAutograd is needed.
    """
    recording = record(program)
    job = pipeline.Job(backend.keywords["compiler_config"], model_id=0)
    with _quiet():
        return Recorded(recording, pipeline.Pipeline(job).compile(recording.module(), recording.inputs))


def faithful(program: Program, turns: int = 2) -> bool:
    """Whether a recording, run eagerly, does what its program does: else it is no graph to judge a compiler by.

    It holds the views and copies that eager made of the memory order at hand, which functional values may not have.
    """
    recording = record(program)
    module = recording.module()
    call = Recorded(recording, lambda args: list(module(*args)))
    for turn in range(turns):
        want = reference(program, turn)
        if want is not None and _difference(program, want, run(program, call, turn=turn), turn, memory=False):
            return False
    return True


def doubtful(programs: Sequence[Program], turns: int = 2) -> tuple[list[Program], list[Program]]:
    """Those of these programs that have to be judged alone, and those that cannot be recorded; the others are right.

    All of one mode are recorded and compiled as one graph, which costs less than a graph for each. Where it cannot be
    compiled or run, all of them are judged alone.
    """
    alone: list[Program] = []
    unrecorded: list[Program] = []
    for mode in sorted({p.mode for p in programs}):
        alone += _doubtful([p for p in programs if p.mode == mode], turns, unrecorded)
    return alone, unrecorded


def _doubtful(programs: list[Program], turns: int, unrecorded: list[Program]) -> list[Program]:
    fakes = FakeTensorMode(shape_env=ShapeEnv())
    alone: list[Program] = []
    parts: list[tuple[Program, Recording, list[RunResult | None]]] = []
    for program in programs:
        wanted = [reference(program, turn) for turn in range(turns)]
        if not any(wanted):
            continue
        try:
            parts.append((program, record(program, fakes), wanted))
        except NotRecorded:
            unrecorded.append(program)
        except Exception:  # noqa: BLE001 - what it is will be found alone
            alone.append(program)
    if not parts:
        return alone
    try:
        wrong = _wrong(parts, turns)
    except LoweringError as error:
        named = (re.match(r"p(\d+)_", name) for name in error.refused)
        wrong = {int(match[1]) for match in named if match}
        others = [part for at, part in enumerate(parts) if at not in wrong]
        refused = [parts[at][0] for at in sorted(wrong)]
        try:  # once more without what is refused
            parts, wrong = others, (_wrong(others, turns) if refused and others else set(range(len(others))))
        except Exception:  # noqa: BLE001 - as below
            wrong = set(range(len(others)))
        return [*alone, *refused, *(parts[at][0] for at in sorted(wrong))]
    except Exception:  # noqa: BLE001 - whichever of them it is will be found alone
        wrong = set(range(len(parts)))
    return [*alone, *(parts[at][0] for at in sorted(wrong))]


def _wrong(parts: Sequence[tuple[Program, Recording, list[RunResult | None]]], turns: int) -> set[int]:
    """Positions of what differs from eager.

    Errors: what compiling and running the graph of all of them raises.
    """
    job = pipeline.Job(ours(parts[0][0]).keywords["compiler_config"], model_id=0)
    whole = joined([recording for _, recording, _ in parts])
    wrong: set[int] = set()
    with _quiet():
        call = pipeline.Pipeline(job).compile(whole.module(), whole.inputs)
        for turn in range(turns):
            given = [[a.detach() for a in program.arguments(turn=turn)] for program, *_ in parts]
            results = iter(call([a for args in given for a in args]))
            for at, ((program, recording, wanted), args) in enumerate(zip(parts, given, strict=True)):
                mine = [next(results) for _ in range(recording.outputs)]
                got, want = recording.outcome(mine, args), wanted[turn]
                if want is not None and _difference(program, want, got, turn, memory=False) is not None:
                    wrong.add(at)
    return wrong


Way: TypeAlias = Callable[[Program, Any], Any]


def run(program: Program, call: Any, scale: float = 1.0, turn: int = 0) -> RunResult:
    """One call of what a way of compiling gave, with gradients where inputs have them."""
    args = program.arguments(scale, turn)
    with _quiet(), torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        return call.run(args) if isinstance(call, Recorded) else with_gradients(call, args)


def ours(program: Program) -> Any:
    """Our backend in the program's mode."""
    config = torchair.CompilerConfig()
    config.mode = program.mode
    return torchair.get_npu_backend(compiler_config=config)


def check(program: Program, turns: int = TURNS, way: Way | None = None) -> Difference | None:
    """None if our backend does what eager does, or differs from it only where ``aot_eager`` does too.

    Eager is asked first, for it costs a hundredth of a compilation; ``aot_eager`` only about a difference.

    Args:
        program: What is compiled once.
        turns: How many sets of inputs are tried on what was compiled.
        way: Compiles for both backends, ``compiled`` if left out; what ``aot_eager`` does not run by ``handed_over``
            goes through dynamo instead.
    """
    way = way or compiled
    finding, turn = _first_difference(program, turns, way)
    if finding is None:
        return None
    memory = way is not recorded  # a recording leaves strides and aliases out
    if way is recorded:  # aot_eager compiles no such graph
        way = handed_over
    try:
        control = way(program, "aot_eager")
        for before in range(turn):
            if reference(program, before) is not None:
                run(program, control, turn=before)
        want = run(program, control, turn=turn)
    except Exception:  # noqa: BLE001 - whatever it is, there is nothing to compare with
        return None if way is compiled else check(program, turns)
    return finding if finding.got is None else _difference(program, want, finding.got, turn, memory=memory)


def _first_difference(program: Program, turns: int, way: Way) -> tuple[Difference | None, int]:
    """The first difference from eager, and in which turn it shows."""
    call: Any = None
    for turn in range(turns):
        want = reference(program, turn)
        if want is None:
            continue
        try:
            call = way(program, ours(program)) if call is None else call
            got = run(program, call, turn=turn)
        except NotRecorded:
            raise
        except Exception as error:  # noqa: BLE001 - any error is a finding
            return _failure(error), turn
        finding = _difference(program, want, got, turn, memory=not isinstance(call, Recorded))
        if finding is not None:
            return replace(finding, got=got), turn
    return None, 0


def _failure(error: BaseException) -> Difference:
    inner = error
    while (below := getattr(inner, "inner_exception", None) or inner.__cause__) is not None:
        inner = below
    reasons = list(getattr(inner, "refused", {}).values())
    rows = [next((row for row in REFUSED if row in reason), "") for reason in reasons]
    expected = rows[0] if rows and all(rows) else ""
    told = reasons if expected else [reason for reason, row in zip(reasons, rows, strict=True) if not row]
    text = "; ".join(told) or str(getattr(inner, "what", inner))
    return Difference(f"{type(inner).__name__}: {_first(text)}", str(inner)[:2000], expected)


def _first(text: str) -> str:
    line = next((t for t in text.splitlines() if t.strip()), "")
    return "".join("#" if c.isdigit() else c for c in line)[:100]


def _difference(
    program: Program, want: RunResult, got: RunResult, turn: int = 0, *, memory: bool = True
) -> Difference | None:
    """The first difference; ``memory`` says whether strides and what shares memory are compared, too."""
    for name in ("results", "inputs", "grads"):
        wanted, given = getattr(want, name), getattr(got, name)
        if len(wanted) != len(given):
            return Difference(f"number of {name}", f"{len(wanted)} against {len(given)}")
        for i, (w, g) in enumerate(zip(wanted, given, strict=True)):
            kind = _of_pair(w, g, strides=memory and name != "grads")
            if kind == "values" and _unstable(program, turn, name, i, w, g):
                return None
            if kind:
                return Difference(f"{kind} of {name}", f"{name}[{i}]: {_shown(w)}\n  against {_shown(g)}")
    if memory and _shared(want) != _shared(got):
        return Difference("shared memory", f"{_shared(want)} against {_shared(got)}")
    return None


def _shown(value: torch.Tensor | None) -> str:
    if value is None:
        return "None"
    return f"{value.dtype} {tuple(value.shape)} strides {value.stride()} {str(value.flatten()[:12].tolist())}"


def _of_pair(want: torch.Tensor | None, got: torch.Tensor | None, strides: bool) -> str:
    if want is None or got is None:
        return "" if want is got else "presence"
    if want.dtype != got.dtype:
        return "type"
    if want.shape != got.shape:
        return "sizes"
    if not _close(want, got):
        return "values"
    if strides and want.numel() and any(n > 1 and a != b for n, a, b in zip(want.shape, want.stride(), got.stride())):
        return "strides"
    return ""


def _tolerance(dtype: torch.dtype) -> float:
    return {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-7}.get(dtype, 2e-5)


def _close(want: torch.Tensor, got: torch.Tensor) -> bool:
    if not want.is_floating_point():
        return bool(torch.equal(want, got))
    size = want.double().abs().nan_to_num(0, 0, 0).max().item() if want.numel() else 0.0
    tolerance = _tolerance(want.dtype)
    limit = tolerance * max(size, 1)
    return bool(torch.allclose(want.double(), got.double(), rtol=tolerance, atol=limit, equal_nan=True))


def _unstable(program: Program, turn: int, name: str, i: int, want: torch.Tensor, got: torch.Tensor) -> bool:
    """Whether eager itself moves as far when its inputs move by a rounding error, or in another precision."""
    module = program.module()
    far = (want.double() - got.double()).abs().nan_to_num(1e30).max()
    for scale in (1 + 3e-7, 1 - 3e-7, 1 + 1e-3 * _halves(program)):
        moved = getattr(run(program, module, scale, turn), name)[i]
        plain = getattr(run(program, module, turn=turn), name)[i]
        if (moved.double() - plain.double()).abs().nan_to_num(0).max() * 4 >= far:
            return True
    found = _without_noise(program, turn, name)
    return found is not None and _of_pair(found[i], got, strides=False) == ""


_NOISE: Final = 1e-7  # what is left of numbers near one when all of their digits cancel


def _without_noise(program: Program, turn: int, name: str) -> list[torch.Tensor] | None:
    """Eager's results where values that are only what rounding left of a zero are that zero, at which poles lie; None
    if there are no such values."""
    flushed: list[bool] = []

    def flush(value: torch.Tensor) -> None:
        if value.is_floating_point():  # by ``data``: backward keeps the value and is to see the zero
            noise = (value.data.abs() < _NOISE) & (value.data != 0)
            flushed.append(bool(noise.any()))
            value.data.masked_fill_(noise, 0.0)

    def call(*args: torch.Tensor) -> list[torch.Tensor]:
        return program.run(args, flush)

    with _quiet():
        found: list[torch.Tensor] = getattr(with_gradients(call, program.arguments(turn=turn)), name)
    return found if any(flushed) else None


def _halves(program: Program) -> float:
    used = {g.dtype for g in program.inputs} | {n for s in program.steps for n in s.numbers if isinstance(n, str)}
    return 4.0 if "bfloat16" in used else 1.0 if "float16" in used else 0.0


def _shared(outcome: RunResult) -> list[int]:
    """Which results and inputs lie in one memory."""
    every = [t for t in (*outcome.results, *outcome.inputs)]
    memory = [t.untyped_storage().data_ptr() if t.numel() else -1 - n for n, t in enumerate(every)]
    return [memory.index(m) for m in memory]


def shrink(
    program: Program, kind: str, seconds: float, still: Callable[[Program], Difference | None] = check
) -> Program:
    """The smallest program found that fails in the same way."""
    end = time.monotonic() + seconds

    def fails(candidate: Program) -> bool:
        if time.monotonic() > end:
            return False
        try:
            run(candidate, candidate.module())
            found = still(candidate)
        except Exception:  # noqa: BLE001 - eager refuses what is left of the program
            return False
        return found is not None and found.kind == kind

    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in _smaller(program):
            if fails(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for position in program.returned:
        if len(program.returned) > 1:
            yield replace(program, returned=(position,))
    if len(program.returned) == 1 and program.steps:  # cut the end off
        count = len(program.inputs)
        for keep in (len(program.steps) // 2, len(program.steps) - 1):
            if keep and keep < len(program.steps):
                yield replace(program, steps=program.steps[:keep], returned=(count + keep - 1,))
    yield from (used for used in [_unused(program)] if used != program)
    for position in reversed(range(len(program.steps))):
        yield program.without(position)
    if program.dynamic:
        yield replace(program, dynamic=False)
    if program.mode != "max-autotune":
        yield replace(program, mode="max-autotune")
    for i, given in enumerate(program.inputs):
        for plainer in (
            replace(given, grad=False),
            replace(given, gaps=False),
            replace(given, stretched=False),
            replace(given, base=-1, alias=""),
            replace(given, order=tuple(sorted(given.order))),
        ):
            if plainer != given:
                yield replace(program, inputs=(*program.inputs[:i], plainer, *program.inputs[i + 1 :]))


def _unused(program: Program) -> Program:
    """Without steps that nothing reads and that write nothing."""
    from labs.fuzz.operators import OPERATORS

    position = len(program.steps) - 1
    while position >= 0:
        at = len(program.inputs) + position
        read = any(at in s.operands for s in program.steps) or at in program.returned
        if not read and not OPERATORS[program.steps[position].name].writes:
            program = program.without(position)
        position -= 1
    return program
