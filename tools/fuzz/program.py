"""A random program as data, and how it is drawn, run and written.

A program is inputs, steps and the results that are returned. It runs as a ``torch.fx`` graph module, so that dynamo
traces it as it traces a model; nothing of it is ever executed as text.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final

import torch

from tools.fuzz.operators import OPERATORS

_DTYPES: Final = ("float32",) * 6 + ("int64", "int32", "bool", "float16", "bfloat16")
_LARGEST: Final = 4096


@dataclass(frozen=True, slots=True)
class Given:
    """An input: sizes, type, the order of its dimensions in memory, whether every second column only, a gradient."""

    sizes: tuple[int, ...]
    dtype: str
    order: tuple[int, ...]
    gaps: bool = False
    grad: bool = False

    def make(self, rng: Random, scale: float = 1.0) -> torch.Tensor:
        """Its values: small, so that no type overflows soon."""
        sizes = [self.sizes[d] for d in self.order]
        if self.gaps and sizes:
            sizes[-1] *= 2
        dense = torch.tensor([rng.randrange(-12, 13) for _ in range(int(torch.Size(sizes).numel()))]).view(sizes)
        dtype = getattr(torch, self.dtype)
        value = (dense / 4 * scale).to(dtype) if dtype.is_floating_point else dense.to(dtype)
        value = value[..., ::2] if self.gaps and sizes else value
        return value.permute(sorted(range(len(self.order)), key=self.order.__getitem__))


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

    def arguments(self, scale: float = 1.0) -> list[torch.Tensor]:
        """Inputs of a run, the same in every run."""
        rng = Random(self.seed)
        return [g.make(rng, scale).requires_grad_(g.grad) for g in self.inputs]

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
    inputs = tuple(
        Given(tuple(g["sizes"]), g["dtype"], tuple(g["order"]), g["gaps"], g["grad"]) for g in found["inputs"]
    )
    steps = tuple(Step(s["name"], tuple(s["operands"]), tuple(s["numbers"])) for s in found["steps"])
    rest = {k: found[k] for k in ("dynamic", "mode", "seed", "note")}
    return Program(inputs, steps, tuple(found["returned"]), **rest)


def _given(rng: Random) -> Given:
    rank = rng.choice([1, 2, 2, 3, 3, 4, 4])
    sizes = tuple(rng.choice([1, 2, 3, 4, 4, 5, 6]) for _ in range(rank))
    order = tuple(range(rank)) if rng.random() < 0.6 else tuple(rng.sample(range(rank), rank))
    dtype = rng.choice(_DTYPES)
    return Given(sizes, dtype, order, rng.random() < 0.15, dtype == "float32" and rng.random() < 0.4)


def _kind(value: torch.Tensor) -> str:
    return "f" if value.is_floating_point() else "b" if value.dtype == torch.bool else "i"


def draw(seed: int, steps: int | None = None) -> Program:
    """A program that eager runs.

    Args:
        seed: Names the program.
        steps: Number of operators, drawn as well if None.
    """
    rng = Random(seed)
    inputs = [_given(rng) for _ in range(rng.randrange(1, 4))]
    for _ in range(rng.randrange(2)):  # operands of one shape broadcast more often
        inputs.append(replace(rng.choice(inputs), grad=False))
    program = Program(
        tuple(inputs), (), (), rng.random() < 0.4, rng.choice(["max-autotune"] * 4 + ["reduce-overhead"]), seed
    )
    values: list[torch.Tensor] = [a.clone() if a.requires_grad else a for a in program.arguments()]
    found: list[Step] = []
    wanted, tries = steps or rng.randrange(5, 40), 0
    names = sorted(OPERATORS)
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
    if _differentiable(program):
        return program
    return replace(program, inputs=tuple(replace(g, grad=False) for g in program.inputs))


def _differentiable(program: Program) -> bool:
    """Whether eager's backward runs too: it refuses values that were written after it had kept them."""
    args = program.arguments()
    leaves = [a for a in args if a.requires_grad]
    try:
        tracked = [r for r in program.module()(*args) if r.requires_grad]
        if tracked and leaves:
            torch.autograd.grad(tracked, leaves, [torch.ones_like(r) for r in tracked], allow_unused=True)
    except RuntimeError:
        return False
    return True


def _step(
    rng: Random, name: str, values: list[torch.Tensor], inputs: int, program: Program
) -> tuple[Step, torch.Tensor] | None:
    operator = OPERATORS[name]
    # the newest values are read most, so that programs are deep
    at = [max(rng.randrange(len(values)), rng.randrange(len(values))) for _ in range(operator.operands)]
    operands = [values[i] for i in at]
    if _kind(operands[0]) not in operator.kinds or not operands[0].numel():
        return None
    if operator.writes and at[0] < inputs and program.inputs[at[0]].grad:
        return None
    try:
        numbers = operator.draw(rng, *operands)
        kept = [v.clone() for v in operands]
        value = operator.run(*operands, *numbers)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return None
    if not isinstance(value, torch.Tensor) or value.numel() > _LARGEST or value.dim() > 6:
        return None
    if value.is_floating_point() and not bool(value.isfinite().all() and (value.abs() < 1e4).all()):
        if operator.writes:
            operands[0].detach().copy_(kept[0].detach())
        return None
    return Step(name, tuple(at), tuple(numbers)), value
