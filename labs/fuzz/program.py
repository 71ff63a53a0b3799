"""A random program as data, and how it is drawn, run and written.

A program is inputs, steps and the results that are returned. It runs as a ``torch.fx`` graph module, so that dynamo
traces it as it traces a model; nothing of it is ever executed as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final

import torch

from labs.fuzz.operators import OPERATORS

_DTYPES: Final = ("float32",) * 12 + (
    *("int64", "int32", "bool", "float16", "bfloat16") * 2,
    "float64",
    "int16",
    "int8",
    "uint8",
)
_WITH_GRADIENT: Final = {"float32": 0.4, "float16": 0.2, "bfloat16": 0.2, "float64": 0.4}
_LARGEST: Final = 4096
_ALIASES: Final[dict[str, Any]] = {
    "itself": lambda x: x,
    "first": lambda x: x[:1],
    "rest": lambda x: x[1:],
    "turned": lambda x: x.transpose(0, -1),
    "flat": lambda x: x.reshape(-1),
}


@dataclass(frozen=True, slots=True)
class Given:
    """An input.

    Attributes:
        sizes: Its sizes.
        dtype: Its type.
        order: The order of its dimensions in memory.
        gaps: Whether it is every second column of its storage only.
        grad: Whether its gradient is taken.
        stretched: Whether its first dimension has stride 0.
        base: The position of the earlier input that it is a view of, or -1.
        alias: Which view of that.
    """

    sizes: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    gaps: bool = False
    grad: bool = False
    stretched: bool = False
    base: int = -1
    alias: str = ""

    def make(self, rng: Random, scale: float = 1.0, factor: int = 1) -> torch.Tensor:
        """Its values: small, so that no type overflows soon.

        Args:
            rng: Gives the values.
            scale: By which floating values are multiplied.
            factor: By which sizes other than one are multiplied.
        """
        given = [n if n == 1 else n * factor for n in self.sizes]
        count = given[0] if given else 1
        if self.stretched:
            given[0] = 1
        sizes = [given[d] for d in self.order]
        if self.gaps and sizes:
            sizes[-1] *= 2
        low, high = (0, 13) if self.dtype == "uint8" else (-12, 13)
        numbers = [rng.randrange(low, high) for _ in range(math.prod(sizes))]
        dense = torch.tensor(numbers, dtype=torch.int64).view(sizes)
        dtype = getattr(torch, self.dtype)
        value = (dense / 4 * scale).to(dtype) if dtype.is_floating_point else dense.to(dtype)
        value = value[..., ::2] if self.gaps and sizes else value
        value = value.permute(sorted(range(len(self.order)), key=self.order.__getitem__))
        return value.expand(count, *value.shape[1:]) if self.stretched else value


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of the table, positions of its operands among inputs and earlier steps, and its numbers."""

    name: str
    operands: tuple[int, ...]
    numbers: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Inputs, steps, positions that are returned, and how it is compiled."""

    inputs: tuple[Given, ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]
    dynamic: bool = False
    mode: str = "max-autotune"
    seed: int = 0
    note: str = field(default="", compare=False)

    def module(self) -> torch.fx.GraphModule:
        """The program as a module without state."""
        graph = torch.fx.Graph()
        values = [graph.placeholder(f"x{i}") for i in range(len(self.inputs))]
        for step in self.steps:
            run, operands = OPERATORS[step.name].run, tuple(values[i] for i in step.operands)
            values.append(graph.call_function(run, (*operands, *step.numbers)))
        graph.output(tuple(values[i] for i in self.returned))
        return torch.fx.GraphModule({}, graph)

    def run(self, inputs: Sequence[torch.Tensor], seen: Callable[[torch.Tensor], None] | None = None) -> list[Any]:
        """Eager's results.

        Args:
            inputs: Its inputs, which it may write.
            seen: Is shown the value of each step, and what it wrote.
        """
        values = list(inputs)
        for step in self.steps:
            values.append(OPERATORS[step.name].run(*(values[i] for i in step.operands), *step.numbers))
            if seen is not None:
                seen(values[-1])
                if OPERATORS[step.name].writes:
                    seen(values[step.operands[0]])
        return [values[i] for i in self.returned]

    def arguments(self, scale: float = 1.0, turn: int = 0) -> list[torch.Tensor]:
        """Inputs of a run, the same in every run.

        Args:
            scale: By which floating values are multiplied.
            turn: Which values; an odd turn of a program with dynamic sizes has twice the sizes.
        """
        rng = Random(self.seed + turn * 1_000_003)
        factor = 2 if turn % 2 and self.dynamic else 1
        found: list[torch.Tensor] = []
        for given in self.inputs:
            if given.base < 0:
                found.append(given.make(rng, scale, factor).requires_grad_(given.grad))
            else:
                found.append(_ALIASES[given.alias](found[given.base]))
        return found

    def without(self, position: int) -> Program:
        """Without one step; who reads it reads its first operand."""
        at, count = len(self.inputs) + position, len(self.inputs)
        into = self.steps[position].operands[0]

        def moved(i: int) -> int:
            i = into if i == at else i
            return i - 1 if i > at else i

        steps = [s for n, s in enumerate(self.steps) if n != position]
        steps = [replace(s, operands=tuple(map(moved, s.operands))) for s in steps]
        assert all(i < count + len(steps) for s in steps for i in s.operands)
        return replace(self, steps=tuple(steps), returned=tuple(map(moved, self.returned)))

    def text(self) -> str:
        """As JSON."""
        found = {k: v for k, v in asdict(self).items()}
        return json.dumps(found, indent=1)


def read(text: str) -> Program:
    """What ``Program.text`` wrote."""
    found = json.loads(text)
    inputs = tuple(Given(**{**g, "sizes": tuple(g["sizes"]), "order": tuple(g["order"])}) for g in found["inputs"])
    steps = tuple(Step(s["name"], tuple(s["operands"]), tuple(s["numbers"])) for s in found["steps"])
    rest = {k: found[k] for k in ("dynamic", "mode", "seed", "note")}
    return Program(inputs, steps, tuple(found["returned"]), **rest)


def _given(rng: Random) -> Given:
    rank = rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5])
    sizes = tuple(rng.choice([1, 2, 3, 4, 4, 5, 6]) for _ in range(rank))
    if rank and rng.random() < 0.03:
        at = rng.randrange(rank)
        sizes = (*sizes[:at], 0, *sizes[at + 1 :])
    order = tuple(range(rank)) if rng.random() < 0.6 else tuple(rng.sample(range(rank), rank))
    dtype = rng.choice(_DTYPES)
    grad = rng.random() < _WITH_GRADIENT.get(dtype, 0.0)
    return Given(sizes, dtype, order, rng.random() < 0.15, grad, rank > 0 and rng.random() < 0.05)


def _view(rng: Random, inputs: list[Given]) -> Given | None:
    """Another input that shares memory with one of them."""
    at = rng.randrange(len(inputs))
    of = inputs[at]
    if of.grad or not of.sizes or of.base >= 0:
        return None
    return replace(of, base=at, alias=rng.choice(sorted(_ALIASES)))


@dataclass(slots=True)
class RunResult:
    """What a run gives: results, inputs afterwards, gradients."""

    results: list[torch.Tensor]
    inputs: list[torch.Tensor]
    grads: list[torch.Tensor | None]


def with_gradients(call: Callable[..., Any], args: list[torch.Tensor]) -> RunResult:
    """One call, and its backward where inputs have gradients."""
    leaves = [a for a in args if a.requires_grad]
    results = list(call(*args))
    return RunResult([r.detach() for r in results], [a.detach() for a in args], gradients(results, leaves))


def gradients(results: list[torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradient of each leaf; none at all if no result has one."""
    tracked = [r for r in results if r.requires_grad]
    if not tracked or not leaves:
        return []
    weights = [torch.ones_like(r) * 0.5 for r in tracked]
    return list(torch.autograd.grad(tracked, leaves, weights, allow_unused=True))


class _Wild(Exception):
    """A value is so large that results cannot be compared."""


def reference(program: Program, turn: int) -> RunResult | None:
    """What eager gives in that turn; None if it refuses it, or if a value leaves the range in which results compare.

    Its backward refuses values that were written after it had kept them.
    """

    def seen(value: torch.Tensor) -> None:
        if not _tame(value):
            raise _Wild

    try:
        return with_gradients(lambda *args: program.run(args, seen), program.arguments(turn=turn))
    except (_Wild, RuntimeError, IndexError, ValueError):
        return None


def _tame(value: torch.Tensor) -> bool:
    """Whether values are finite and small, so that a rounding difference stays one."""
    return not value.is_floating_point() or bool((value.abs() < 1e4).all())


def _kind(value: torch.Tensor) -> str:
    return "f" if value.is_floating_point() else "b" if value.dtype == torch.bool else "i"


def draw(seed: int, steps: int | None = None, without: Collection[str] = (), shared: bool = True) -> Program:
    """A program that eager runs.

    Args:
        seed: Names the program.
        steps: Number of operators, drawn as well if None.
        without: Operators that are not drawn.
        shared: Whether an input may be a view of another.
    """
    rng = Random(seed)
    inputs = [_given(rng) for _ in range(rng.randrange(1, 4))]
    for _ in range(rng.randrange(2)):  # operands of one shape broadcast more often
        inputs.append(replace(rng.choice(inputs), grad=False))
    if shared and rng.random() < 0.1 and (view := _view(rng, inputs)) is not None:
        inputs.append(view)
    program = Program(
        tuple(inputs), (), (), rng.random() < 0.4, rng.choice(["max-autotune"] * 4 + ["reduce-overhead"]), seed
    )
    values: list[torch.Tensor] = [a.clone() if a.requires_grad else a for a in program.arguments()]
    found: list[Step] = []
    wanted, tries = steps or rng.randrange(5, 40), 0
    names = sorted(OPERATORS.keys() - without)
    while len(found) < wanted and tries < 20 * wanted:
        tries += 1
        step = _step(rng, rng.choice(names), values, len(inputs), program)
        if step is None:
            continue
        found.append(step[0])
        values.append(step[1])
    last = range(len(values))[-1]
    more = rng.sample(range(len(inputs), len(values)), min(rng.randrange(3), len(found)))
    returned = tuple(dict.fromkeys([last, *more]))
    program = replace(program, steps=tuple(found), returned=returned)
    if reference(program, 0) is not None:
        return program
    return replace(program, inputs=tuple(replace(g, grad=False) for g in program.inputs))


def _step(
    rng: Random, name: str, values: list[torch.Tensor], inputs: int, program: Program
) -> tuple[Step, torch.Tensor] | None:
    operator = OPERATORS[name]
    # the newest values are read most, so that programs are deep
    at = [max(rng.randrange(len(values)), rng.randrange(len(values))) for _ in range(operator.operands)]
    operands = [values[i] for i in at]
    if _kind(operands[0]) not in operator.kinds or (not operands[0].numel() and rng.random() < 0.5):
        return None
    if operator.writes and at[0] < inputs and program.inputs[at[0]].grad:
        return None
    try:
        numbers = operator.draw(rng, *operands)
        kept = operands[0].detach().clone() if operator.writes else None
        value = operator.run(*operands, *numbers)
        fits = isinstance(value, torch.Tensor) and value.numel() <= _LARGEST and value.dim() <= 6
        tame = fits and _tame(value)  # eager refuses to read a part of a split that was written
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None
    if not fits:
        return None
    if not tame:
        if kept is not None:
            operands[0].detach().copy_(kept)
        return None
    return Step(name, tuple(at), tuple(numbers)), value
