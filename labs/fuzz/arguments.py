"""Calls of converters with arguments of other kinds than their declared forms have.

A call is a declared form of a converter with one or two arguments changed into another kind that the operator's schema
lets through: another element type, a 0-d or empty tensor, a number for a tensor, None, a symbolic number, a negative or
too large dimension, an empty list. Eager is the judge. What eager refuses does not count, nor what torch cannot trace;
every other call ends in nodes whose results equal eager's, or in a refusal with a reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import multiprocessing
import re
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, Final

import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils import _pytree as pytree

from ge_converters import lower
from ge_converters.base import torch_compat
from ge_converters.base.errors import LoweringError
from ge_converters.base.support import Support, TensorLike
from ge_converters.decompose.table import decomposition_table
from ge_converters.registry import REGISTRY, Entry
from ge_converters.report import smoke

_TYPES: Final = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_REFUSED: Final = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, OverflowError, AssertionError)
# Called by torch's own code only, with operands and numbers that fit; eager's kernels look at nothing and read beyond
# (gradients of pads, of bags and of batch norms end the process), or believe scales that contradict the sizes given.
# Their numbers change into symbols only.
_INTERNAL: Final = re.compile(r"_backward|batch_norm|\._(?!to_copy|softmax|log_softmax)|_forward|upsample")
_REDUCTIONS: Final = (0, 1, 2)  # none, mean, sum; kernels take any other number for one of them, each its own
_LARGEST: Final = 1 << 22  # elements of a result
_MEMORY: Final = 6 << 30


def _magnitudes(call: OperatorCall, value: torch.Tensor) -> torch.Tensor:
    return value.abs() if value.is_floating_point() or value.is_complex() else value


def _taken_over(call: OperatorCall, value: torch.Tensor) -> torch.Tensor:
    return value.flatten()[: math.prod(call.args[0].shape)]


def _unless_by_frequency(call: OperatorCall, value: torch.Tensor) -> torch.Tensor:
    return value[:0] if _number_of(call.args[6]) else value


def _number_of(value: Any) -> Any:
    return value.value if isinstance(value, Symbol) else value


# What of eager's results is defined, by operator; the rest is compared by type and sizes only.
DEFINED: Final[dict[str, Callable[[OperatorCall, torch.Tensor], torch.Tensor]]] = {
    "aten._linalg_eigh.default": _magnitudes,  # eigenvectors have any sign
    "aten._linalg_svd.default": _magnitudes,  # so have singular vectors
    "aten.resize.default": _taken_over,  # after the elements that were there lies anything
    # with scale_grad_by_freq eager divides by the count of another row
    "aten._embedding_bag_dense_backward.default": _unless_by_frequency,
}


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number that the graph gets as an input."""

    value: Any

    def __repr__(self) -> str:
        return f"Symbol({self.value})"


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator, its arguments with stand-ins for tensors, and whether sizes are symbols."""

    entry: Entry
    support: Support
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic: bool = False

    def __str__(self) -> str:
        shown = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"{self.entry.name}({', '.join(shown)})" + (" with symbolic sizes" if self.dynamic else "")


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What came of a call: ``equal``, ``refused``, ``not run`` (by eager or by torch's tracing), or ``wrong``.

    ``kind`` is what calls have in common that are wrong for one cause.
    """

    status: str
    detail: str = ""
    kind: str = ""


@cache
def forms() -> tuple[tuple[Entry, Support], ...]:
    """Every declared form of every converter of an ATen or prims overload."""
    every = (
        e for e in REGISTRY.entries() if isinstance(e.target, torch._ops.OpOverload) and not e.target._schema.is_mutable
    )
    return tuple((e, s) for e in every for s in e.supports)


@cache
def _by_entry() -> tuple[tuple[Entry, tuple[Support, ...]], ...]:
    found: dict[str, tuple[Entry, tuple[Support, ...]]] = {}
    for entry, support in forms():
        found[entry.name] = (entry, (*found.get(entry.name, (entry, ()))[1], support))
    return tuple(found.values())


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw(seed: int) -> OperatorCall:
    """The call of that number; consecutive numbers go through all converters."""
    rng = Random(seed)
    entry, supports = _by_entry()[seed % len(_by_entry())]
    support = rng.choice(supports)
    call = OperatorCall(entry, support, tuple(support.args), dict(support.kwargs), rng.random() < 0.2)
    for _ in range(rng.choice((1, 1, 2))):
        call = _changed(rng, call)
    return call


def _changed(rng: Random, call: OperatorCall) -> OperatorCall:
    arguments = call.entry.target._schema.arguments  # type: ignore[union-attr]
    argument = rng.choice(arguments)
    position = next((i for i, a in enumerate(a for a in arguments if not a.kwarg_only) if a.name == argument.name), -1)
    in_place = 0 <= position < len(call.args)
    missing = argument.default_value if argument.has_default_value() else None
    value = call.args[position] if in_place else call.kwargs.get(argument.name, missing)
    kind = str(argument.real_type)
    if isinstance(value, TensorLike) and rng.random() < 0.3:
        return _retyped(rng, call, value.dtype)
    made = rng.choice(_REDUCTIONS) if argument.name == "reduction" else _value(rng, kind, value, call)
    if _INTERNAL.search(call.entry.name) and not isinstance(value, TensorLike):
        made = Symbol(value) if type(value) in (int, float) else value
    if in_place:
        return replace(call, args=(*call.args[:position], made, *call.args[position + 1 :]))
    return replace(call, kwargs={**call.kwargs, argument.name: made})


def _retyped(rng: Random, call: OperatorCall, dtype: torch.dtype) -> OperatorCall:
    """All tensors of one type in another one."""
    wanted = _other_type(rng, call, dtype)

    def change(value: Any) -> Any:
        return replace(value, dtype=wanted) if isinstance(value, TensorLike) and value.dtype == dtype else value

    return replace(call, **pytree.tree_map(change, {"args": call.args, "kwargs": call.kwargs}))


def _other_type(rng: Random, call: OperatorCall, dtype: torch.dtype) -> torch.dtype:
    """Any type; a floating one for floating operands of torch's own calls, as gradients and their operands have."""
    kept = _INTERNAL.search(call.entry.name) and dtype.is_floating_point
    return rng.choice([t for t in _TYPES if t.is_floating_point] if kept else _TYPES)


def _rank(call: OperatorCall) -> int:
    return max((len(t.shape) for t in _stand_ins(call)), default=1)


def _stand_ins(call: OperatorCall) -> list[TensorLike]:
    return [t for t in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(t, TensorLike)]


def _value(rng: Random, kind: str, value: Any, call: OperatorCall) -> Any:
    """Another value for an argument of that type of a schema."""
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if optional and (rng.random() < 0.3 and value is not None):
        return None
    if kind == "Tensor":
        return _tensor(rng, value, call)
    if kind.startswith("List["):
        return _list(rng, kind.removeprefix("List[").removesuffix("]"), value, call)
    return _plain(rng, kind, value, call)


def _tensor(rng: Random, value: Any, call: OperatorCall) -> Any:
    if not isinstance(value, TensorLike):
        others = _stand_ins(call)
        return (
            replace(rng.choice(others), low=None, high=None, value=None) if others else TensorLike(torch.float32, (2,))
        )
    plain = replace(value, value=None, strides=None)
    sizes = plain.shape
    choice = rng.randrange(9)
    # contents that are given mean something: offsets, sorted boundaries, positive definite matrices
    internal = _INTERNAL.search(call.entry.name)
    if (choice == 1 and internal) or (choice in (2, 3, 4, 6, 7) and (value.value is not None or internal)):
        choice = 8
    if choice == 0:
        return rng.choice((True, False, 2, -3, 0, 1.5, -0.25, math.inf, math.nan, 1 + 2j))
    if choice in (1, 2):
        return replace(plain, shape=(), dtype=rng.choice((value.dtype, *_TYPES)))
    if choice == 3 and sizes:
        at = rng.randrange(len(sizes))
        return replace(plain, shape=(*sizes[:at], 0, *sizes[at + 1 :]))
    if choice == 4 and sizes:
        at = rng.randrange(len(sizes))
        return replace(plain, shape=(*sizes[:at], 1, *sizes[at + 1 :]))
    if choice == 5 and len(sizes) > 1 and "scaled_dot" not in call.entry.name:  # eager misreads such strides there
        strides = [math.prod(sizes[:i]) for i in range(len(sizes))]  # the first dimension innermost
        return replace(value, strides=tuple(strides)) if 0 not in sizes else plain
    if choice == 6:
        return replace(plain, shape=(1, *sizes) if rng.random() < 0.5 else sizes[1:])
    if choice == 7 and sizes:
        at = rng.randrange(len(sizes))
        return replace(plain, shape=(*sizes[:at], sizes[at] + 1, *sizes[at + 1 :]))
    return replace(value, strides=None, dtype=_other_type(rng, call, value.dtype))


def _list(rng: Random, kind: str, value: Any, call: OperatorCall) -> Any:
    before = list(value) if isinstance(value, (list, tuple)) else []
    choice = rng.randrange(5)
    if choice == 0:
        return []
    if choice == 1 and before:
        return before[: rng.randrange(1, len(before) + 1)]
    if choice == 2 and before:
        return [*before, rng.choice(before)]
    if before and kind != "int":
        at = rng.randrange(len(before))
        return [*before[:at], _value(rng, kind, before[at], call), *before[at + 1 :]]
    if kind != "int":
        return before
    if choice == 3 and before:
        at = rng.randrange(len(before))
        number = before[at]
        return [*before[:at], Symbol(number) if isinstance(number, int) else number, *before[at + 1 :]]
    rank = _rank(call)
    return [_int(rng, None, rank) for _ in range(len(before) or rng.randrange(1, 3))]


def _int(rng: Random, value: Any, rank: int) -> Any:
    if type(value) is int and rng.random() < 0.3:
        return Symbol(value)
    return rng.choice((0, 1, 2, -1, -2, -rank, rank - 1, rank, -rank - 1, 3, 7, 1000))


def _plain(rng: Random, kind: str, value: Any, call: OperatorCall) -> Any:
    if kind == "bool":
        return not value
    if kind in ("int", "SymInt"):
        return _int(rng, value, _rank(call))
    if kind == "number":
        number = rng.choice(
            (True, False, 0, 1, 2, -1, -3, 40, 1 << 40, 0.0, 0.5, -1.5, 1e10, math.inf, math.nan, 1 - 1j)
        )
        return Symbol(number) if type(number) in (int, float) and rng.random() < 0.25 else number
    if kind == "float":
        if type(value) is float and rng.random() < 0.2:
            return Symbol(value)
        return rng.choice((0.0, 1.0, 0.5, -1.0, 2, 1e-12, 1e10, math.inf, -math.inf, math.nan))
    if kind == "ScalarType":
        return rng.choice(_TYPES)
    if kind == "MemoryFormat":
        return rng.choice((torch.contiguous_format, torch.preserve_format, torch.channels_last))
    if kind == "str":
        words = ("mean", "sum", "prod", "amax", "amin", "floor", "trunc", "none", "tanh", "ij", "nothing of this name")
        return rng.choice(words)
    if kind == "Generator":
        return torch.Generator()
    return value


# -- checking ---------------------------------------------------------------------------------------------------------


def check(call: OperatorCall, engine: Any, say: Callable[[str], object] = lambda _: None) -> CallOutcome:
    """Run a call in eager and through its converter.

    Args:
        call: The call.
        engine: What runs the graph.
        say: Told ``eager`` before eager runs it and ``ours`` after that.
    """
    try:
        say("eager")
        want = _eager(call)
        say("ours")
    except _REFUSED:
        return CallOutcome("not run", "eager refuses it")
    leaves = [v for v in pytree.tree_leaves(want) if isinstance(v, torch.Tensor)]
    if not leaves or sum(v.numel() for v in leaves) > _LARGEST:
        return CallOutcome("not run", "no tensors, or too large")
    try:
        with smoke._quiet():
            module, inputs, value = trace(call)
    except Exception as error:  # noqa: BLE001 - whatever torch's own tracing raises, no graph reaches a converter
        return CallOutcome("not run", f"torch does not trace it: {type(error).__name__}")
    metas = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    if [(m.dtype, m.dim()) for m in metas] != [(v.dtype, v.dim()) for v in leaves]:
        return CallOutcome("not run", "torch traces another type or rank than eager gives")
    if any(type(d) is int and d != n for m, v in zip(metas, leaves) for d, n in zip(m.shape, v.shape)):
        return CallOutcome("not run", "torch traces another size than eager gives")
    try:
        lowered = lower(module)
    except LoweringError as error:
        if error.code == "GE2001":
            return CallOutcome("refused", str(error))
        return _wrong(call, str(error.what), error)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return _wrong(call, f"{type(error).__name__}: {error}", error)
    try:
        got = smoke.execute(lowered, engine, inputs)
    except Exception as error:  # noqa: BLE001 - likewise
        return _wrong(call, f"{type(error).__name__}: {getattr(error, 'what', error)}", error)
    outcome = _compared(call, want, got)
    if outcome.status == "wrong" and call.dynamic and _torch_traces_otherwise(call, want, module, inputs):
        return CallOutcome("not run", "what torch traces with symbolic sizes gives other numbers than eager")
    return outcome


def _torch_traces_otherwise(call: OperatorCall, want: Any, module: torch.fx.GraphModule, inputs: list[Any]) -> bool:
    """Whether torch puts a formula of its own before ours with symbolic sizes, which is another in eager too."""
    fixed, given, _ = trace(dataclasses.replace(call, dynamic=False))
    statuses = []
    for gm, values in ((module, inputs), (fixed, given)):
        made = [v for v in pytree.tree_leaves(torch.fx.Interpreter(gm).run(*values)) if isinstance(v, torch.Tensor)]
        statuses.append(_compared(call, want, made).status)
    return statuses == ["wrong", "equal"]


def _wrong(call: OperatorCall, text: str, error: BaseException) -> CallOutcome:
    first = re.sub(r"%\w+", "%node", text.splitlines()[0] if text else "")
    kind = "".join("#" if c.isdigit() else c for c in first)[:110]
    return CallOutcome("wrong", str(error), f"{call.entry.name}: {kind}")


def _eager(call: OperatorCall) -> Any:
    args, kwargs = _made(call)
    torch.manual_seed(0)
    target: Any = call.entry.target
    with torch.no_grad():
        return smoke.chosen(target(*args, **kwargs), call.support)


def _made(call: OperatorCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Real arguments."""
    generator = torch.Generator().manual_seed(3)

    def build(value: Any) -> Any:
        if isinstance(value, TensorLike):
            return value.make(generator)
        return value.value if isinstance(value, Symbol) else value

    return pytree.tree_map(build, (call.args, call.kwargs))  # type: ignore[no-any-return]


def trace(call: OperatorCall) -> tuple[torch.fx.GraphModule, list[torch.Tensor], Any]:
    """The graph of the call as tracing leaves it, with its inputs and the meta value of its results."""
    graph, inputs = torch.fx.Graph(), list[torch.Tensor]()
    mode = torch_compat.fake_mode(dynamic=call.dynamic)
    args, kwargs = _made(call)

    def place(value: Any, stand_in: Any) -> Any:
        if isinstance(stand_in, Symbol):
            inputs.append(torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None))
            return _placed(graph, lambda name: _symbol(mode.shape_env, value, name))
        if not isinstance(value, torch.Tensor):
            return value
        inputs.append(value)
        if call.dynamic:
            return _placed(graph, lambda name: mode.from_tensor(value, source=ConstantSource(name)))
        with mode:
            return _placed(graph, lambda _: torch.empty_strided(value.shape, value.stride(), dtype=value.dtype))

    leaves, form = pytree.tree_flatten((args, kwargs))
    stand_ins = pytree.tree_leaves((call.args, call.kwargs))
    placed = pytree.tree_unflatten([place(v, s) for v, s in zip(leaves, stand_ins, strict=True)], form)
    fakes = torch.fx.node.map_arg(placed, lambda n: n.meta["val"])
    target: Any = call.entry.target
    formula = _formulas().get(target)
    with torch_compat.under(mode), torch.no_grad():
        value = target(*fakes[0], **fakes[1])
        decomposed = formula is not None and formula(*fakes[0], **fakes[1]) is not NotImplemented
    if decomposed:
        return _decomposed(call, placed), inputs, smoke.chosen(value, call.support)
    node = graph.call_function(target, *placed)
    node.meta["val"] = value
    graph.output(smoke.chosen(smoke.parts_of(graph, node, value), call.support))
    return torch.fx.GraphModule({}, graph), inputs, smoke.chosen(value, call.support)


@cache
def _formulas() -> dict[Any, Any]:
    return decomposition_table()


def _decomposed(call: OperatorCall, placed: Any) -> torch.fx.GraphModule:
    """The graph of a call that never reaches its converter as it stands: a formula of the table is asked first."""
    leaves, form = pytree.tree_flatten(placed)
    nodes = [v for v in leaves if isinstance(v, torch.fx.Node)]

    def run(*given: Any) -> Any:
        left = iter(given)
        filled = [next(left) if isinstance(v, torch.fx.Node) else v for v in leaves]
        args, kwargs = pytree.tree_unflatten(filled, form)
        return smoke.chosen(call.entry.target(*args, **kwargs), call.support)

    with torch.no_grad():
        return make_fx(run, _formulas(), tracing_mode="symbolic" if call.dynamic else "fake")(
            *[n.meta["val"] for n in nodes]
        )


def _placed(graph: torch.fx.Graph, meta: Callable[[str], Any]) -> torch.fx.Node:
    node = graph.placeholder(f"arg{len(graph.nodes)}")
    node.meta["val"] = meta(node.name)
    return node


def _symbol(environment: Any, value: int | float, name: str) -> Any:
    source = ConstantSource(name)
    symbol = environment.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    make = environment.create_symfloatnode if isinstance(value, float) else environment.create_symintnode
    return make(symbol, hint=value, source=source)


_LOOSE: Final = {torch.float16: 8e-3, torch.bfloat16: 6e-2, torch.float64: 1e-7, torch.complex128: 1e-7}


def _compared(call: OperatorCall, want: Any, got: Sequence[Any]) -> CallOutcome:
    expected = pytree.tree_leaves(want)
    if len(got) != len(expected):
        return CallOutcome("wrong", f"{len(got)} outputs, eager has {len(expected)}", f"{call.entry.name}: outputs")
    for i, (g, e) in enumerate(zip(got, expected)):
        problem = _differs(g, e, call)
        if problem:
            return CallOutcome("wrong", f"output {i}: {problem}", f"{call.entry.name}: {problem.split(':')[0]}")
    return CallOutcome("equal")


def _differs(got: Any, want: Any, call: OperatorCall) -> str:
    if not isinstance(want, torch.Tensor):
        return "" if got == want or got is want else f"number: {got!r}, eager has {want!r}"
    if not isinstance(got, torch.Tensor):
        return f"nothing: eager has {want.dtype} {list(want.shape)}"
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"type or sizes: {got.dtype} {list(got.shape)}, eager has {want.dtype} {list(want.shape)}"
    if call.entry.name in DEFINED:
        got, want = (DEFINED[call.entry.name](call, t) for t in (got, want))
    if call.support.check != "values" or _close(got, want, call):
        return ""
    wide = torch.complex128 if want.is_complex() or got.is_complex() else torch.float64
    apart = (got.to(wide) - want.to(wide)).abs().nan_to_num(math.inf).flatten()
    at = int(apart.argmax())
    return f"values: {got.flatten()[at].item()} at {at}, eager has {want.flatten()[at].item()}"


def _close(got: torch.Tensor, want: torch.Tensor, call: OperatorCall) -> bool:
    if not (want.is_floating_point() or want.is_complex()):
        return bool(torch.equal(got, want))
    halves = [t.dtype for t in _stand_ins(call) if t.dtype in (torch.float16, torch.bfloat16)]
    tolerance = max([_LOOSE.get(d, 5e-5) for d in (want.dtype, *halves)] + [call.support.rtol or 0.0])
    wide = torch.complex128 if want.is_complex() else torch.float64
    if halves:  # which step of a sum leaves the range of a half type is not defined
        got = torch.where(want.isfinite() | got.isfinite(), got, want)
    finite = want.abs().double().nan_to_num(0, 0, 0)
    size = max(float(finite.max()) if want.numel() else 0.0, 1.0, call.support.atol or 0.0)
    return bool(torch.allclose(got.to(wide), want.to(wide), rtol=tolerance, atol=tolerance * size, equal_nan=True))


# -- many ------------------------------------------------------------------------------------------------------------


def run(seeds: Iterable[int], seconds: float = 60.0) -> Iterator[tuple[int, CallOutcome]]:
    """Outcomes of calls, made in another process: eager itself crashes or hangs on some of them.

    Args:
        seeds: Numbers of the calls.
        seconds: How long one may take.
    """
    left = list(reversed(list(seeds)))
    while left:
        yield from _in_a_process(left, seconds)


def _in_a_process(left: list[int], seconds: float) -> Iterator[tuple[int, CallOutcome]]:
    """Outcomes of the last of ``left``, which are taken off it, until one brings the process down."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(list(reversed(left)), send), daemon=True)
    process.start()
    send.close()
    where = "ours"
    try:
        while left:
            if not receive.poll(seconds):
                yield _lost(left.pop(), where, f"no end after {seconds:.0f} seconds")
                return
            told = receive.recv()
            if isinstance(told, str):
                where = told
            else:
                left.pop()
                yield told
    except EOFError:
        yield _lost(left.pop(), where, "the process ended")
    finally:
        process.kill()
        process.join()


def _lost(seed: int, where: str, what: str) -> tuple[int, CallOutcome]:
    if where == "eager":
        return seed, CallOutcome("not run", f"in eager {what}")
    return seed, CallOutcome("wrong", what, f"{draw(seed).entry.name}: {what}")


def _serve(seeds: list[int], connection: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    engine = smoke.find_engine("cpu")
    for seed in seeds:
        connection.send((seed, check(draw(seed), engine, connection.send)))


def main(argv: list[str] | None = None) -> int:
    """``make fuzz-arguments``: returns 1 if a call was wrong."""
    parser = argparse.ArgumentParser(prog="make fuzz-arguments", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="the first call; each next one has the next number (0)")
    parser.add_argument("--calls", type=int, default=50_000, help="how many (50000)")
    given = parser.parse_args(argv)
    forms()  # once, before processes part
    counts, found = Counter[str](), dict[str, list[tuple[int, str]]]()
    for seed, outcome in run(range(given.seed, given.seed + given.calls)):
        counts[outcome.status] += 1
        if outcome.status == "wrong":
            found.setdefault(outcome.kind, []).append((seed, outcome.detail))
    for kind, rows in sorted(found.items()):
        seed, detail = rows[0]
        print(f"{len(rows):4} {kind}\n     {seed}: {draw(seed)}\n     {' | '.join(detail.splitlines())[:400]}")
    print(f"{sum(counts.values())} calls: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
