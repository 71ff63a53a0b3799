"""Two versions of an FX graph, evaluated in eager mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch

from torchair.passes.arguments import canonical
from torchair.passes.base import output_values, value_of
from torchair.passes.core_clashes import communicates
from torchair.passes.memory import writes
from torchair.passes.proofs import samples
from torchair.passes.proofs.claims import Evaluation, RewriteComparison, RewritePart, Step, Version, described, numbered
from torchair.passes.proofs.sizes import Sizes, choices
from torchair.passes.proofs.tolerances import RuleTolerance

FxNode: TypeAlias = torch.fx.Node
# More elements than these are not evaluated, so that a large model can be compiled with the option.
_ELEMENTS: Final = 1 << 24
# More calls of inner graphs than these end an evaluation: for drawn values a loop need not end.
_CALLS: Final = 1000
_NARROW: Final = (torch.float32, torch.float16, torch.bfloat16)


class _Hole:
    """Stands for a value in the arguments of a step."""

    def __repr__(self) -> str:
        return "%"


_HOLE: Final = _Hole()


def version(gm: torch.fx.GraphModule) -> Version:
    """The graph as it is now; later edits do not change it."""
    steps: list[Step] = []
    for node in gm.graph.nodes:
        if node.op == "output":
            continue
        args, kwargs = canonical(node.target, node.args, node.kwargs)
        operands: list[FxNode] = []
        torch.fx.map_arg((args, kwargs), operands.append)
        rest = torch.fx.map_arg((args, kwargs), lambda n: _HOLE)
        acts = bool(writes(node))
        steps.append(
            Step(
                node,
                node.target,
                tuple(operands),
                rest,
                (node,),
                edge=isinstance(value_of(node), torch.Tensor),
                opaque=node.op != "call_function" or acts or communicates(node.target),  # other ranks do not evaluate
                acts=acts,
                about=(args, kwargs, value_of(node)),
            )
        )
    outputs = [v for v in output_values(gm.graph) if isinstance(v, torch.fx.Node)]
    return Version(steps, outputs, gm)


def compare(old: Version, new: Version, tolerance: RuleTolerance, known: set[Any]) -> RewriteComparison | Evaluation:
    """Put what has changed to the test; graphs whose writes have changed are evaluated as a whole.

    Args:
        known: Parts that were found equal before; grows.
    """
    gm = new.about
    found = choices(gm)
    if [(s.key, s.target) for s in old.steps if s.acts] != [(s.key, s.target) for s in new.steps if s.acts]:
        return _whole(old, new, found)

    def evaluate(a: RewritePart, b: RewritePart) -> Evaluation:
        leaves = numbered(a, b)
        key = (_shape(a, leaves), _shape(b, leaves), tolerance, repr(found))
        if None not in key and key in known:
            return Evaluation(True)
        verdict = _evaluate(a, b, found, tolerance)
        if verdict.equal and None not in key:
            known.add(key)
        return verdict

    return RewriteComparison(old, new, lambda a, b: a.target is b.target and a.rest == b.rest, evaluate)


def _shape(part: RewritePart, leaves: Mapping[Any, int]) -> Any:
    """All that a verdict on a part depends on; the same for the same part at another place of a model.

    None for parts that read what the graph holds: it may be another tensor by the next pass.
    """
    number = dict(leaves)
    lines: list[Any] = []
    for leaf in sorted(part.leaves, key=number.__getitem__):
        if leaf.op == "get_attr":
            return None
        lines.append((number[leaf], _described(part.version.maker[leaf].about[2])))
    for place, step in enumerate(part.steps, len(leaves)):
        number[step.key] = place
        lines.append((str(step.target), repr(step.rest), tuple(number[v] for v in step.operands)))
    return tuple(lines), number[part.value]


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device}"
    return f"{type(value).__name__} {value}"


def _evaluate(a: RewritePart, b: RewritePart, found: list[Sizes], tolerance: RuleTolerance) -> Evaluation:
    elements = sum(_elements(s.about[2]) for part in (a, b) for s in part.steps)
    if elements > _ELEMENTS:
        return Evaluation(None, f"{elements} elements are too many to evaluate", a, b)
    reason, seen = "", 0
    for sizes in found:
        for kind, wide in [*((k, False) for k in tolerance.kinds), ("ordinary", True)]:
            try:
                with _ending(a.version.about, _CALLS):
                    want = _run(a, sizes, kind, wide)
            except Exception as error:  # noqa: BLE001  (an input that the old part refuses says nothing)
                reason = reason or f"{type(error).__name__}: {error}"
                continue
            try:
                with _ending(b.version.about, 2 * _CALLS):
                    got = _run(b, sizes, kind, wide)
            except Exception as error:  # noqa: BLE001
                if wide:
                    continue
                why = f"{type(error).__name__}: {error}"
                return Evaluation(False, _told(a, b, f"it raises {why}", kind, sizes), a, b)
            seen += 1
            if wide and samples.types(want) != samples.types(got):
                continue  # an operator whose result has one type always, as the narrow values have shown
            text = samples.difference(want, got, tolerance.of(want, wide=wide), kind)
            if text:
                return Evaluation(False, _told(a, b, text, f"{kind}{' float64' if wide else ''}", sizes), a, b)
    return Evaluation(True, "", a, b) if seen else Evaluation(None, reason, a, b)


def _told(a: RewritePart, b: RewritePart, text: str, kind: str, sizes: Sizes) -> str:
    inputs = ", ".join(
        f"{v.name}: {_described(b.version.maker[v].about[2])}"
        for v in sorted(a.leaves | b.leaves, key=lambda v: v.name)
        if v in b.version.maker
    )
    where = f", {sizes}" if sizes.values else ""
    return (
        f"{described(b.steps)} in the place of {described(a.steps)}: {text}, for {kind} values of {inputs or 'nothing'}"
        f"{where}"
    )


@contextlib.contextmanager
def _ending(gm: torch.fx.GraphModule, calls: int) -> Iterator[None]:
    """What runs inside ends: the inner graphs may be called so often, together; then RecursionError."""
    left = calls

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RecursionError(f"inner graphs were called more than {calls} times")

    inner = [m for m in gm.modules() if isinstance(m, torch.fx.GraphModule) and m is not gm]
    hooks = [module.register_forward_pre_hook(count) for module in inner]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _run(part: RewritePart, sizes: Sizes, kind: str, wide: bool) -> Any:
    values: dict[FxNode, Any] = {}
    for leaf in part.leaves:
        step = part.version.maker[leaf]
        values[leaf] = _leaf(part.version.about, leaf, step.about[2], sizes, kind, wide)
    torch.manual_seed(0)
    with torch.no_grad():
        for step in part.steps:
            values[step.key] = _call(step, values, sizes, wide)
    return values[part.value]


def _call(step: Step, values: Mapping[FxNode, Any], sizes: Sizes, wide: bool) -> Any:
    args, kwargs, _ = step.about

    def real(argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return values[argument]
        if wide and argument in _NARROW:
            return torch.float64
        return sizes.of(argument)

    args, kwargs = torch.fx.node.map_aggregate((args, dict(kwargs)), real)
    return step.target(*args, **kwargs)


def _leaf(gm: torch.fx.GraphModule, node: FxNode, value: Any, sizes: Sizes, kind: str, wide: bool) -> Any:
    if node.op == "get_attr":
        held = gm
        for name in str(node.target).split("."):
            held = getattr(held, name)
        return held.double() if wide and isinstance(held, torch.Tensor) and held.dtype in _NARROW else held
    if isinstance(value, (tuple, list)):
        return type(value)(_leaf_of(v, f"{node.name}.{i}", sizes, kind, wide) for i, v in enumerate(value))
    return _leaf_of(value, node.name, sizes, kind, wide)


def _leaf_of(value: Any, name: str, sizes: Sizes, kind: str, wide: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return sizes.of(value)
    dtype = torch.float64 if wide and value.dtype in _NARROW else value.dtype
    device = "cpu" if value.device.type == "meta" else value.device
    shape, stride = ([sizes.of(n) for n in numbers] for numbers in (value.shape, value.stride()))
    host = torch.empty_strided(shape, stride, dtype=dtype)
    return samples.fill(host, kind, sum(map(ord, name))).to(device)


def _elements(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_elements, value))
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
        return 0
    return int(value.numel())


# -- graphs that write memory -----------------------------------------------------------------------------------------


def _whole(old: Version, new: Version, found: list[Sizes]) -> Evaluation:
    """Results, and what the inputs hold afterwards, of two graphs whose writes are not the same."""
    elements = sum(_elements(s.about[2]) for s in old.steps)
    if elements > _ELEMENTS:
        return Evaluation(None, f"{elements} elements are too many to evaluate")
    reason, seen = "", 0
    for sizes in found:
        for kind in samples.KINDS:
            try:
                with _ending(old.about, _CALLS):
                    want = list(_run_whole(old, sizes, kind))
            except Exception as error:  # noqa: BLE001
                reason = reason or f"{type(error).__name__}: {error}"
                continue
            try:
                with _ending(new.about, 2 * _CALLS):
                    got = list(_run_whole(new, sizes, kind))
            except Exception as error:  # noqa: BLE001
                return Evaluation(False, f"the graph raises {type(error).__name__}: {error}, for {kind} values {sizes}")
            seen += 1
            for (what, a), (_, b) in zip(want, got):
                text = samples.difference(a, b, 0.0)
                if text:
                    return Evaluation(False, f"{what} is another: {text}, for {kind} values {sizes}")
    return Evaluation(True) if seen else Evaluation(None, reason)


def _run_whole(graph: Version, sizes: Sizes, kind: str) -> Iterator[tuple[str, Any]]:
    values: dict[FxNode, Any] = {}
    torch.manual_seed(0)
    with torch.no_grad():
        for step in graph.steps:
            if step.key.op == "call_function":
                values[step.key] = _call(step, values, sizes, False)
            else:
                value = _leaf(graph.about, step.key, step.about[2], sizes, kind, False)
                values[step.key] = (
                    value.clone() if step.key.op == "get_attr" and isinstance(value, torch.Tensor) else value
                )
    for place, value in enumerate(graph.outputs):
        yield f"output {place}", values[value]
    for step in graph.steps:
        if step.key.op == "placeholder" and isinstance(values[step.key], torch.Tensor):
            yield f"input {step.key.name} afterwards", values[step.key]
