"""``make fuzz-kernels``: kernels of the embedded engine with hostile operands and attributes, in other processes.

A call that works (``kernel_calls``), or one drawn from an operator's schema, is changed: integers far outside of any
range, NaN and infinities, empty, 0-d, strided and overlapping tensors, attributes that make no sense. It may give a
result, or one of our errors. Another exception is a finding, and so is a signal: tensors lie between forbidden pages
(``guard.c``), so that reading or writing one element beyond them ends the process.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import logging
import math
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from ge_graph import schema
from ge_graph.attrs import Attr, Kind
from ge_graph.dtypes import DataType
from ge_graph.errors import GeError
from ge_runtime.cpu import CpuEngine, registry
from ge_runtime.cpu.values import TORCH_OF
from labs.fuzz.kernel_calls import KernelCall, Operand, calls

_MEMORY: Final = 3 << 30
_BATCH: Final = 1500  # calls of one process
_FEW: Final = 250  # calls between two looks at the clock
_GUARD: Final = "TAIR_FUZZ_GUARD"  # the library that lies in front of the C library's
_INTS: Final = (-1, -2, 0, 1, 2, 3, 7, 100, 1 << 20, (1 << 31) - 1, -(1 << 31), 1 << 33, (1 << 63) - 1, -(1 << 63))
_FLOATS: Final = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-40, 3e38, -1e30, 2.5, 1 << 40)
# Others see what they do, or they wait for other processes.
_OUTSIDE: Final = re.compile(r"Hcom|AllReduce|AllGather|ReduceScatter|MoeDistribute|Print")


_TYPES: Final = frozenset(
    (
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
)


class FuzzOutcome(NamedTuple):
    """What came of a call: ``result``, ``refused``, ``foreign`` (another exception), ``signal`` or ``no end``."""

    status: str
    detail: str = ""


# -- drawing ----------------------------------------------------------------------------------------------------------


@cache
def operators() -> tuple[str, ...]:
    """Operators with a kernel of ours that may be called alone."""
    return tuple(op for op, k in registry.registered().items() if not _OUTSIDE.search(op) and registry.is_builtin(op))


Known: TypeAlias = "Mapping[str, Sequence[KernelCall]]"


def draw(seed: int, known: Known) -> KernelCall:
    """The call of that number, made of those that are known; consecutive numbers go through all operators."""
    rng = Random(seed)
    op = operators()[seed % len(operators())]
    given = known.get(op)
    call = rng.choice(given) if given and rng.random() < 0.9 else _from_schema(rng, op)
    for _ in range(rng.choice((1, 1, 2, 3))):
        call = _changed(rng, call)
    fixed = (i for i, o in enumerate(call.operands) if isinstance(o, torch.Tensor) and _counts(o))
    return replace(call, fixed=frozenset(i for i in fixed if rng.random() < 0.2), together=rng.random() < 0.05)


def _from_schema(rng: Random, op: str) -> KernelCall:
    """A call whose types fit the schema, and whose sizes may."""
    found = schema.require(op)
    sizes = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((1, 2, 2, 3, 4, 4, 5))))
    chosen: dict[str, DataType] = {}

    def tensor(port: Any) -> torch.Tensor:
        kind = chosen.get(port.typevar) or _kind(rng, port)
        if port.typevar:
            chosen[port.typevar] = kind
        shape = sizes if rng.random() < 0.7 else sizes[: rng.randrange(len(sizes) + 1)]
        return _filled(rng, shape, TORCH_OF[kind])

    operands: list[Operand] = []
    for port in found.inputs:
        if port.kind == "dynamic":
            operands.append(tuple(tensor(port) for _ in range(rng.choice((1, 2, 3)))))
        else:
            operands.append(tensor(port) if port.kind == "required" or rng.random() < 0.5 else None)
    attrs = {a.name: a.default or Attr(a.kind, _plausible(rng, a.kind, len(sizes))) for a in found.attrs}
    types, counts = [], {}
    for port in found.outputs:
        kind = chosen.get(port.typevar) or _kind(rng, port)
        many = rng.choice((1, 2, 3)) if port.kind == "dynamic" else 1
        types += [kind] * many
        if port.kind == "dynamic":
            counts[port.name] = many
    return KernelCall(op, tuple(operands), attrs, tuple(types), counts)


def _kind(rng: Random, port: Any) -> DataType:
    known = [d for d in port.dtypes if d in TORCH_OF and TORCH_OF[d] in _TYPES]
    chosen: DataType = rng.choice(known or [DataType.DT_FLOAT])
    return chosen


def _filled(rng: Random, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=generator).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 4, tuple(shape), generator=generator).to(dtype)


def _plausible(rng: Random, kind: Kind, rank: int) -> Any:
    one: dict[Kind, Callable[[], Any]] = {
        Kind.INT: lambda: rng.choice((0, 1, 2)),
        Kind.FLOAT: lambda: rng.choice((0.0, 0.5, 1.0)),
        Kind.BOOL: lambda: rng.random() < 0.5,
        Kind.STRING: lambda: rng.choice(("", "NCHW", "SAME", "sum")),
        Kind.TYPE: lambda: DataType.DT_FLOAT,
    }
    if kind in one:
        return one[kind]()
    name = kind.value.removeprefix("List")
    inner = next((k for k in one if k.value == name), None)
    return tuple(one[inner]() for _ in range(rng.choice((1, 2, rank)))) if inner is not None else ()


def _changed(rng: Random, call: KernelCall) -> KernelCall:
    """One operand or attribute made hostile."""
    names = [n for n in call.attrs if not n.startswith("_")]
    if names and rng.random() < 0.45:
        name = rng.choice(names)
        attr = call.attrs[name]
        return replace(call, attrs={**call.attrs, name: Attr(attr.kind, _value(rng, attr.kind, attr.value, call))})
    places = [i for i, o in enumerate(call.operands) if o is not None]
    if not places:
        return call
    # integers steer: they are changed more often
    steering = [i for i in places if isinstance(call.operands[i], torch.Tensor) and _counts(call.operands[i])]
    at = rng.choice(steering) if steering and rng.random() < 0.6 else rng.choice(places)
    return replace(call, operands=(*call.operands[:at], _operand(rng, call, at), *call.operands[at + 1 :]))


def _counts(value: torch.Tensor) -> bool:
    return value.dtype in (torch.int32, torch.int64)


def _operand(rng: Random, call: KernelCall, at: int) -> Operand:
    value = call.operands[at]
    if isinstance(value, tuple):
        if not value or rng.random() < 0.2:
            return value[:-1]
        place = rng.randrange(len(value))
        return (*value[:place], _tensor(rng, value[place]), *value[place + 1 :])
    ports = schema.require(call.op).inputs
    if rng.random() < 0.05 and at < len(ports) and ports[at].kind == "optional":
        return None
    return _tensor(rng, value)


def _tensor(rng: Random, value: torch.Tensor) -> torch.Tensor:
    choice = rng.random()
    if choice < 0.6 and value.numel():
        return _poisoned(rng, value)
    shape = list(value.shape)
    axis = rng.randrange(len(shape)) if shape else 0
    if choice < 0.68 and shape:
        return value.new_zeros([*shape[:axis], 0, *shape[axis + 1 :]])
    if choice < 0.73:
        return _filled(rng, (), value.dtype)
    if choice < 0.78 and shape and value.numel():
        return value.narrow(axis, 0, 1).expand(shape)  # elements that are one piece of memory
    if choice < 0.83 and len(shape) > 1:
        return value.transpose(axis, axis - 1).contiguous().transpose(axis, axis - 1)
    if choice < 0.9:
        return _filled(rng, shape[1:] if rng.random() < 0.5 else [1, *shape], value.dtype)
    return _filled(rng, [*shape[:axis], rng.choice((1, 2, 5, 9)), *shape[axis + 1 :]], value.dtype)


def _poisoned(rng: Random, value: torch.Tensor) -> torch.Tensor:
    """Some elements, or all of them, are hostile ones."""
    flat = value.detach().clone().reshape(-1)
    at = slice(None) if rng.random() < 0.3 else rng.randrange(flat.numel())
    if value.dtype is torch.bool:
        flat[at] = rng.random() < 0.5
    elif value.is_floating_point() or value.is_complex():
        flat[at] = torch.tensor(rng.choice(_FLOATS), dtype=torch.float64).to(value.dtype)  # infinite where too large
    else:
        info = torch.iinfo(value.dtype)
        near = rng.choice((*value.shape, flat.numel())) + rng.choice((-1, 0, 1))
        flat[at] = min(max(rng.choice((*_INTS, near, near)), info.min), info.max)
    return flat.reshape(value.shape)


def _value(rng: Random, kind: Kind, value: Any, call: KernelCall) -> Any:
    if kind is Kind.INT:
        return rng.choice(_INTS)
    if kind is Kind.FLOAT:
        return float(rng.choice(_FLOATS))
    if kind is Kind.BOOL:
        return not value
    if kind is Kind.STRING:
        return rng.choice(_words(call.op))
    inner = {Kind.LIST_INT: Kind.INT, Kind.LIST_FLOAT: Kind.FLOAT, Kind.LIST_BOOL: Kind.BOOL}.get(kind)
    if inner is None:
        return value
    items = list(value)
    choice = rng.random()
    if choice < 0.15:
        return tuple(items[:-1])
    if choice < 0.25:
        return (*items, rng.choice(items) if items else _value(rng, inner, True, call))
    if choice < 0.3:
        return ()
    if items:
        items[rng.randrange(len(items))] = _value(rng, inner, True, call)
    return tuple(items)


@cache
def _words(op: str) -> tuple[str, ...]:
    """What the strings of an operator may be: those in its kernel's code, and some that no operator knows."""
    found = {"", "nothing of this name", "SAME", "VALID", "NCHW", "NHWC", "mean", "sum", "none"}
    kernel = registry.find(op)
    code = getattr(kernel.run, "__code__", None) if kernel is not None else None
    found.update(c for c in getattr(code, "co_consts", ()) if isinstance(c, str) and 0 < len(c) < 20)
    return tuple(sorted(found))


# -- calling ----------------------------------------------------------------------------------------------------------


def call_once(call: KernelCall) -> FuzzOutcome:
    """Run a call here, twice: the first run of a graph is another program than the later ones."""
    try:
        graph, fed = call.graph()
    except GeError as error:
        return FuzzOutcome("refused", str(error.code))
    if call.together:
        fed = _overlapping(fed)
    try:
        executable = CpuEngine().compile(graph, {})
        executable.run(fed)
        executable.run(fed)
    except GeError as error:
        return FuzzOutcome("refused", str(error.code))
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return FuzzOutcome("foreign", f"{type(error).__name__}: {error}")
    return FuzzOutcome("result")


def _overlapping(fed: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs of one type as parts of one piece of memory, the largest one's, from its start on."""
    largest: dict[torch.dtype, torch.Tensor] = {}
    for value in fed:
        if value.dtype not in largest or largest[value.dtype].numel() < value.numel():
            largest[value.dtype] = value.contiguous()
    return [largest[v.dtype].reshape(-1)[: v.numel()].reshape(v.shape) for v in fed]


def run(seeds: Sequence[int], known: Known, seconds: float = 60.0) -> Iterator[tuple[int, FuzzOutcome]]:
    """Outcomes of calls, made in other processes. What a signal ends is called again alone.

    Args:
        seeds: Numbers of the calls.
        known: Calls that work.
        seconds: How long one may take.
    """
    operators()  # once, before processes part
    left = list(seeds)
    while left:
        batch, left = left[:_BATCH], left[_BATCH:]
        while batch:
            done = yield from _batch(batch, known, seconds)
            batch = batch[done:]


def _for(first: int, known: Known, seconds: float, whole: float) -> Iterator[tuple[int, FuzzOutcome]]:
    """Outcomes of calls until so much time has passed; at least of one batch."""
    end = time.monotonic() + whole
    while True:
        yield from run(range(first, first + _FEW), known, seconds)
        first += _FEW
        if time.monotonic() >= end:
            return


def _batch(seeds: Sequence[int], known: Known, seconds: float) -> Generator[tuple[int, FuzzOutcome], None, int]:
    """Outcomes of calls up to the first that ends the process; returns how many there are."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(seeds, known, send), daemon=True)
    process.start()
    send.close()
    done = 0
    try:
        while done < len(seeds):
            if not receive.poll(seconds):
                yield seeds[done], FuzzOutcome("no end", f"after {seconds:.0f} seconds")
                return done + 1
            outcome = receive.recv()
            yield seeds[done], outcome
            done += 1
    except EOFError:
        process.join()
        if (process.exitcode or 0) > 0:
            raise RuntimeError(f"call {seeds[done]} cannot be drawn") from None
        alone = len(seeds) == 1 or _dies(seeds[done], known, seconds)
        where = "alone" if alone else f"only after the {done} calls before it, from {seeds[0]} on"
        yield seeds[done], FuzzOutcome("signal", f"exit code {process.exitcode}, {where}")
        return done + 1
    finally:
        process.kill()
        process.join()
    return done


def _dies(seed: int, known: Known, seconds: float) -> bool:
    return any(outcome.status == "signal" for _, outcome in _batch([seed], known, seconds))


def _serve(seeds: Sequence[int], known: Known, connection: Any) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    gc.freeze()  # what the parent made is not looked through again
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    guard = getattr(ctypes.CDLL(None), "guard", None) if os.environ.get(_GUARD) else None
    for seed in seeds:
        if guard is not None:
            guard(1, seed % 3 == 0)
        call = draw(seed, known)
        torch.manual_seed(0)
        connection.send(call_once(call))


def _guarded(arguments: Sequence[str]) -> int:
    """This program with ``guard.c`` in front of the C library's allocator."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "guard.so"
        environment = {**os.environ, _GUARD: "none"}
        if compiler is not None:
            source = Path(__file__).with_name("guard.c")
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
            environment.update({_GUARD: str(library), "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"})
        else:
            print("no C compiler: memory is not guarded")
        environment["GLIBC_TUNABLES"] = "glibc.malloc.perturb=165"
        return subprocess.run([sys.executable, "-m", "labs.fuzz.kernels", *arguments], env=environment).returncode


def main(argv: list[str] | None = None) -> int:
    """``make fuzz-kernels``: returns 1 if a call ended in a signal, in an exception that is not ours, or not at all."""
    parser = argparse.ArgumentParser(prog="make fuzz-kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="the first call; each next one has the next number (0)")
    parser.add_argument("--calls", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long one may take (30)")
    parser.add_argument("--for", dest="whole", type=float, metavar="SECONDS", help="as many calls as this time allows")
    parser.add_argument("--show", action="store_true", help="show the call of the seed, and run it in this process")
    arguments = sys.argv[1:] if argv is None else argv
    given = parser.parse_args(arguments)
    if _GUARD not in os.environ:
        return _guarded(arguments)
    known = calls()
    if given.show:
        print(draw(given.seed, known))
        print(call_once(draw(given.seed, known)))
        return 0
    counts, found = Counter[str](), dict[str, list[tuple[int, str]]]()
    calls_made = (
        _for(given.seed, known, given.seconds, given.whole)
        if given.whole is not None
        else run(range(given.seed, given.seed + given.calls), known, given.seconds)
    )
    for seed, outcome in calls_made:
        counts[outcome.status] += 1
        if sum(counts.values()) % 1000 == 0:
            print(f"... {sum(counts.values())} calls", flush=True)
        if outcome.status in ("signal", "foreign", "no end"):
            kind = f"{outcome.status} {operators()[seed % len(operators())]}"
            if kind not in found:
                print(f"{kind}: {seed}: {outcome.detail}\n    {draw(seed, known)}", flush=True)
            found.setdefault(kind, []).append((seed, outcome.detail))
    print(f"{sum(counts.values())} calls: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items())))
    for kind, rows in sorted(found.items()):
        print(f"{len(rows):5} {kind} {[seed for seed, _ in rows[:8]]}")
    return 1 if counts["signal"] or counts["foreign"] or counts["no end"] else 0


if __name__ == "__main__":
    sys.exit(main())
