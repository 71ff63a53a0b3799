"""Which parts of two versions of a graph have to be equal, for one to be a rewrite of the other.

A node that stands in both versions and reads equal values gives equal values, so nothing is evaluated there. Where it
reads another value than before, the old and the new one are claimed to be equal. The claim is put to the test on the
smallest parts of both versions that begin at values known to be equal; if it fails there, on larger ones, since a rule
may use what lies further up, and last on the graph's results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# How often a part may grow before a claim is given up: each time by one node, or by one node at every edge.
_STEPS: Final = 48
_ROUNDS: Final = 6


@dataclass(slots=True, eq=False)
class Step:
    """One node of one version.

    Attributes:
        key: What identifies it in both versions.
        target: Its operator.
        operands: The values it reads, flat.
        rest: What else it says: constants, attributes, the form of its arguments.
        values: Its results.
        edge: Whether a part may begin at its results; not for constants, nor for numbers that sizes are made of.
        opaque: Whether no part goes through it: inputs, and what writes memory.
        acts: Whether it must stand in both versions.
        place: Its position.
        about: What the side that made it needs to evaluate it.
    """

    key: Any
    target: Any
    operands: tuple[Any, ...]
    rest: Any
    values: tuple[Any, ...]
    edge: bool = True
    opaque: bool = False
    acts: bool = False
    place: int = 0
    about: Any = None


@dataclass(slots=True, eq=False)
class Version:
    """A graph at one moment.

    Attributes:
        steps: In order.
        outputs: The values that it returns, in order.
        about: What the side that made it needs besides.
    """

    steps: list[Step]
    outputs: list[Any]
    about: Any = None
    maker: dict[Any, Step] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, step in enumerate(self.steps):
            step.place = place
            for value in step.values:
                self.maker[value] = step


@dataclass(slots=True, eq=False)
class RewritePart:
    """The steps that make one value from others.

    Attributes:
        leaves: The values it begins with.
    """

    version: Version
    steps: list[Step]
    leaves: set[Any]
    value: Any


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the evaluation of two parts has shown.

    Attributes:
        equal: None if they could not be evaluated.
        why: A counter-example, or why there is no verdict.
        old, new: The parts.
    """

    equal: bool | None
    why: str = ""
    old: RewritePart | None = None
    new: RewritePart | None = None


def numbered(old: RewritePart, new: RewritePart, order: Callable[[Any], Any] = lambda value: 0) -> dict[Any, int]:
    """A number for each value that one of two parts begins with, the same in both; those of the first come first.

    Args:
        order: Tells values of one step apart.
    """
    numbers: dict[Any, int] = {}
    for part in (old, new):
        for leaf in sorted(part.leaves, key=lambda v, p=part: (p.version.maker[v].place, order(v))):  # type: ignore[misc]
            numbers.setdefault(leaf, len(numbers))
    return numbers


Evaluate = Callable[[RewritePart, RewritePart], Evaluation]


class RewriteComparison:
    """Two versions of a graph, compared.

    Args:
        alike: Whether two steps of one key say the same besides what they read.
        evaluate: Puts two parts to the test.

    Attributes:
        different: Why the second version is no rewrite of the first; None if it is one.
        open: Claims that could not be evaluated.
        tested: How many claims were evaluated.
    """

    def __init__(self, old: Version, new: Version, alike: Callable[[Step, Step], bool], evaluate: Evaluate) -> None:
        self._old, self._new, self._evaluate = old, new, evaluate
        self._same: set[Any] = set()
        self._known: dict[tuple[Any, Any], Evaluation] = {}
        self.open: list[Evaluation] = []
        self.tested = 0
        self.different: Evaluation | None = None
        done, first = self._walk(alike)
        for value, other in zip(old.outputs, new.outputs):
            if not self._equal(value, other):
                self.different = first or self._known[value, other]
                return
        lost = [s for s in old.steps if s.acts and s.key not in done]
        if lost:
            self.different = first or Evaluation(False, f"{lost[0].target} does something else, or nothing any more")

    def _walk(self, alike: Callable[[Step, Step], bool]) -> tuple[set[Any], Evaluation | None]:
        before = {step.key: step for step in self._old.steps}
        done: set[Any] = set()
        first: Evaluation | None = None
        for step in self._new.steps:
            was = before.get(step.key)
            if was is None:
                continue
            kept = alike(was, step) and all([self._equal(a, b) for a, b in zip(was.operands, step.operands)])
            if not kept and not step.opaque and not was.opaque and len(was.values) == len(step.values):
                kept = bool(step.values) and all([self._claimed(a, b) for a, b in zip(was.values, step.values)])
            if kept:
                done.add(step.key)
                self._same.update(a for a, b in zip(was.values, step.values) if a is b)
            else:
                first = first or next((v for v in self._known.values() if v.equal is False), None)
        return done, first

    def _equal(self, a: Any, b: Any) -> bool:
        return (a is b and a in self._same) or self._claimed(a, b)

    def _claimed(self, a: Any, b: Any) -> bool:
        verdict = self._known.get((a, b))
        if verdict is None:
            verdict = self._known[a, b] = self._test(a, b)
            if verdict.equal is None:
                self.open.append(verdict)
        return verdict.equal is not False

    def _test(self, a: Any, b: Any) -> Evaluation:
        """The verdict of the smallest parts that show equality, or of the largest."""
        entered: set[Any] = set()
        for _ in range(_STEPS):
            old, new = self._part(self._old, a, entered), self._part(self._new, b, entered)
            single = [v for v in old.leaves ^ new.leaves if self._enterable(v)]
            if not single:
                break
            entered.add(max(single, key=lambda v: self._new.maker[v].place))
        first: Evaluation | None = None
        for turn in range(_ROUNDS):
            old, new = self._part(self._old, a, entered), self._part(self._new, b, entered)
            self.tested += 1
            verdict = self._evaluate(old, new)
            if verdict.equal:
                return verdict
            if first is None or (first.equal is None and verdict.equal is False):
                first = verdict
            more = {v for v in old.leaves | new.leaves if self._enterable(v)}
            if not more:
                # only the verdict on whole parts counts against a rule: a smaller one may lack what the rule relies on
                return (
                    verdict
                    if verdict.equal is False or first.equal is None
                    else Evaluation(None, verdict.why, old, new)
                )
            entered |= more if turn < _ROUNDS - 2 else set(self._old.maker)
        assert first is not None
        return first

    def _enterable(self, value: Any) -> bool:
        makers = (self._old.maker.get(value), self._new.maker.get(value))
        return all(step is not None and not step.opaque for step in makers)

    def _part(self, version: Version, value: Any, entered: set[Any]) -> RewritePart:
        steps: dict[int, Step] = {}
        leaves: set[Any] = set()
        waiting, seen = [value], set()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            step = version.maker[each]
            known = (
                each in self._same and step.edge and each not in entered and (each is not value or not step.operands)
            )
            if step.opaque or known:
                leaves.add(each)
                continue
            steps[step.place] = step
            waiting += step.operands
        return RewritePart(version, [steps[place] for place in sorted(steps)], leaves, value)


def described(steps: Sequence[Step], most: int = 8) -> str:
    """The operators of some steps, for messages."""
    names = [str(step.target) for step in steps]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "") or "nothing"
