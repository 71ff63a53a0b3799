"""Two versions of a GE graph, evaluated by the embedded engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from ge_graph import attrs as kinds
from ge_graph import schema
from ge_graph.attrs import Attr
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Literal, Node, Shape, Tensor
from ge_graph.passes.effects import Effects
from ge_graph.ports import PLACEHOLDERS
from ge_graph.rules.subgraphs import LOOPS
from torchair.passes.proofs import samples
from torchair.passes.proofs.claims import Evaluation, RewriteComparison, RewritePart, Step, Version, described, numbered
from torchair.passes.proofs.sizes import Sizes
from torchair.passes.proofs.tolerances import RuleTolerance, kinds_for

_ELEMENTS: Final = 1 << 24
_TEXT_BYTES: Final = 1 << 16  # constants of more are not compared by content
_CONSTANTS: Final = ("Const", "Constant")
_NARROW: Final = (DataType.DT_FLOAT, DataType.DT_FLOAT16, DataType.DT_BF16)
# What they give is not decided by what they read.
_DRAWN: Final = (
    "Random",
    "StatelessRandom",
    "DropOutGenMask",
    "StatelessDropOutGenMask",
    "Multinomial",
    "TruncatedNormal",
)

Texts = Callable[[Sizes], Mapping[str, int]]
"""The sizes of a graph by their texts, for one choice of the symbols."""


def version(graph: Graph) -> Version:
    """The graph as it is now; later edits do not change it."""
    effects = Effects(graph)
    steps: list[Step] = []
    for node in graph.nodes:
        acts = node.op not in PLACEHOLDERS and (
            effects.acts(node) or not effects.written.isdisjoint(node.operands()) and bool(effects.refs(node.op))
        )
        form = tuple(len(e) if isinstance(e, tuple) else -1 if e is None else -2 for e in node.inputs)
        known = [(t.dtype, t.known_shape, t.format) for t in node.outputs]
        about = (list(node.inputs), dict(node.attrs), known, dict(node.output_counts), dict(node.subgraphs))
        steps.append(
            Step(
                node,
                node.op,
                tuple(node.operands()),
                (form, about[1]),
                tuple(node.outputs),
                edge=_edge(node),
                opaque=node.op in PLACEHOLDERS or acts or _draws(node.op),
                acts=acts,
                about=about,
            )
        )
    return Version(steps, list(graph.outputs), graph)


def _draws(op: str) -> bool:
    return op.startswith(_DRAWN) or "Bernoulli" in op


def _edge(node: Node) -> bool:
    """Whether parts may begin at a node: not at constants, nor at integers of which sizes are made."""
    if node.op in _CONSTANTS:
        return False
    return not all(t.dtype.is_integer and t.known_shape is not None and len(t.known_shape) < 2 for t in node.outputs)


def _alike(a: Step, b: Step) -> bool:
    if a.target != b.target or a.rest[0] != b.rest[0]:
        return False
    said, now = ({k: v for k, v in s.rest[1].items() if not k.startswith("_")} for s in (a, b))
    return said.keys() == now.keys() and all(_same(said[k], now[k]) for k in said)


def _same(a: Attr, b: Attr) -> bool:
    if a is b or a.value is b.value:
        return True
    if isinstance(a.value, (np.ndarray, Literal)) or isinstance(b.value, (np.ndarray, Literal)):
        return False
    return bool(a == b)


def compare(
    old: Version,
    new: Version,
    tolerance: RuleTolerance,
    known: set[Any],
    found: list[Sizes],
    texts: Texts,
    numbers: Callable[[Node, Sizes], Any],
) -> RewriteComparison:
    """Put what has changed to the test.

    Args:
        known: Parts that were found equal before; grows.
        found: Choices of the symbols.
        numbers: The number that a graph input stands for under a choice; None for tensors.
    """

    def number(leaf: Tensor) -> Any:
        node = leaf.node
        return [numbers(node, sizes) for sizes in found] if node.op in PLACEHOLDERS else None

    def evaluate(a: RewritePart, b: RewritePart) -> Evaluation:
        leaves = numbered(a, b, lambda value: value.index)
        key = (_shape(a, leaves, number), _shape(b, leaves, number), tolerance, repr(found))
        if None not in key and key in known:
            return Evaluation(True)
        verdict = _evaluate(a, b, found, tolerance, texts, numbers)
        if verdict.equal and None not in key:
            known.add(key)
        return verdict

    return RewriteComparison(old, new, _alike, evaluate)


def _shape(part: RewritePart, leaves: Mapping[Tensor, int], value_of: Callable[[Tensor], Any]) -> Any:
    """All that a verdict on a part depends on; None if that has no text: large constants, graphs in nodes."""
    number: dict[Tensor, Any] = dict(leaves)
    lines: list[Any] = []
    for leaf in sorted(part.leaves, key=number.__getitem__):
        lines.append((number[leaf], leaf.dtype, leaf.known_shape, leaf.format, repr(value_of(leaf))))
    for place, step in enumerate(part.steps):
        for value in step.values:
            number[value] = (place, value.index)
        _, attrs, outputs, _, inner = step.about
        said = tuple((k, _text(v.value)) for k, v in sorted(attrs.items()) if not k.startswith("_"))
        if inner or any(text is None for _, text in said):
            return None
        lines.append((step.target, said, tuple(number[v] for v in step.operands), step.rest[0], repr(outputs)))
    return tuple(lines), number[part.value]


def _text(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return None if value.nbytes > _TEXT_BYTES else (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Literal):
        return None if value.data.nbytes > _TEXT_BYTES else (value.dtype, value.shape, value.data.tobytes())
    return repr(value)


def _evaluate(
    a: RewritePart,
    b: RewritePart,
    found: list[Sizes],
    tolerance: RuleTolerance,
    texts: Texts,
    numbers: Callable[[Node, Sizes], Any],
) -> Evaluation:
    from ge_runtime.cpu.values import TORCH_OF

    if any(step.target in LOOPS for part in (a, b) for step in part.steps):
        return Evaluation(None, "for drawn values a loop need not end", a, b)
    reason, seen = "", 0
    in_double = _narrow(a) and _widens(a) and _widens(b)
    tested = kinds_for({s.target for s in b.steps} - {s.target for s in a.steps})
    for sizes in found:
        known = texts(sizes)
        try:
            leaves = _leaves(a, b, known, sizes, numbers)
            inner = [v for v, _, _ in leaves]
            runs = {wide: [_compiled(p, inner, known, wide) for p in (a, b)] for wide in {False, in_double}}
        except Exception as error:  # noqa: BLE001  (what cannot stand alone is tested as part of something larger)
            reason = reason or f"{type(error).__name__}: {error}"
            continue
        for kind, wide in [*((k, False) for k in tested), *[("ordinary", True)] * in_double]:
            inputs = [
                torch.tensor(number, dtype=TORCH_OF[_wider(value.dtype, wide)])
                if number is not None
                else samples.fill(torch.empty(shape, dtype=TORCH_OF[_wider(value.dtype, wide)]), kind, place)
                for place, (value, shape, number) in enumerate(leaves)
            ]
            try:
                torch.manual_seed(0)
                want = runs[wide][0](inputs)
            except Exception as error:  # noqa: BLE001
                reason = reason or f"{type(error).__name__}: {error}"
                continue
            try:
                torch.manual_seed(0)
                got = runs[wide][1](inputs)
            except Exception as error:  # noqa: BLE001
                return Evaluation(False, _told(a, b, f"it raises {type(error).__name__}: {error}", kind, sizes), a, b)
            seen += 1
            text = samples.difference(want, got, tolerance.of(want, wide=wide), kind)
            if text:
                kind = f"{kind} float64" if wide else kind
                return Evaluation(False, _told(a, b, text, kind, sizes), a, b)
    return Evaluation(True, "", a, b) if seen else Evaluation(None, reason, a, b)


# -- in float64 -------------------------------------------------------------------------------------------------------


def _wider(dtype: DataType, wide: bool) -> DataType:
    return DataType.DT_DOUBLE if wide and dtype in _NARROW else dtype


def _narrow(part: RewritePart) -> bool:
    return any(dtype in _NARROW for step in part.steps for dtype, _, _ in step.about[2])


def _widens(part: RewritePart) -> bool:
    """Whether every operator of a part takes and gives float64 wherever it has a shorter type."""
    return all(_takes_double(step) for step in part.steps)


def _takes_double(step: Step) -> bool:
    if step.target in _CONSTANTS:
        return True
    row = schema.get(step.target)
    inputs, _, outputs, _, inner = step.about
    if row is None or inner or len(row.inputs) != len(inputs) or any(p.kind == "dynamic" for p in row.outputs):
        return False
    fed = [e[0] if isinstance(e, tuple) and e else e for e in inputs]
    ports = [p for p, t in zip(row.inputs, fed) if isinstance(t, Tensor) and t.dtype in _NARROW]
    ports += [p for p, (dtype, _, _) in zip(row.outputs, outputs) if dtype in _NARROW]
    return all(DataType.DT_DOUBLE in p.domain for p in ports)


def _widened(op: str, attr: Attr) -> Attr:
    """An attribute with float64 in the place of the shorter types: types, and the numbers of constants."""
    value = attr.value
    if isinstance(value, DataType):
        return Attr(attr.kind, _wider(value, True))
    if op in _CONSTANTS and isinstance(value, Literal) and value.dtype in _NARROW:
        return Attr(attr.kind, _as_double(value))
    if op in _CONSTANTS and isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float16):
        return Attr(attr.kind, value.astype(np.float64))
    return attr


def _as_double(value: Literal) -> np.ndarray[Any, Any]:
    from ge_runtime.cpu.values import TORCH_OF

    if not value.data.size:
        return np.empty(value.shape)
    held = torch.frombuffer(bytearray(value.data.tobytes()), dtype=TORCH_OF[value.dtype])
    made: np.ndarray[Any, Any] = held.double().reshape(value.shape).numpy()
    return made


def _leaves(
    a: RewritePart, b: RewritePart, known: Mapping[str, int], sizes: Sizes, numbers: Callable[[Node, Sizes], Any]
) -> list[tuple[Tensor, tuple[int, ...], Any]]:
    """What both parts begin with: value, shape, and the number if it is one."""
    chosen = sorted(a.leaves | b.leaves, key=lambda v: (v.node.name, v.index))
    made = []
    for value in chosen:
        maker = a.version.maker.get(value) or b.version.maker[value]
        shape = _sized(maker.about[2][value.index][1], known)
        if shape is None:
            raise ValueError(f"sizes {value.known_shape} are not known")
        made.append((value, shape, numbers(value.node, sizes) if value.node.op in PLACEHOLDERS else None))
    if sum(int(np.prod(shape)) for _, shape, _ in made) > _ELEMENTS:
        raise ValueError("too many elements to evaluate")
    return made


def _sized(shape: Shape | None, known: Mapping[str, int]) -> tuple[int, ...] | None:
    if shape is None:
        return None
    numbers = [n if isinstance(n, int) else known.get(n) for n in shape]
    return None if None in numbers else tuple(n for n in numbers if n is not None)


def _compiled(part: RewritePart, leaves: list[Tensor], known: Mapping[str, int], wide: bool) -> Callable[[Any], Any]:
    from ge_runtime.cpu import CpuEngine

    graph = Graph("claim")
    made: dict[Tensor, Tensor] = {}
    for place, leaf in enumerate(leaves):
        maker = part.version.maker.get(leaf)
        dtype, shape, layout = maker.about[2][leaf.index] if maker else (leaf.dtype, leaf.known_shape, leaf.format)
        attrs = {"index": kinds.Int(place), "_placement": kinds.Str("NPU")}
        node = graph.add("Data", (None,), attrs, [(_wider(dtype, wide), _sized(shape, known))])
        node.outputs[0].format = layout
        made[leaf] = node.outputs[0]
    for step in part.steps:
        inputs, attrs, outputs, counts, inner = step.about
        entries = [
            tuple(made[t] for t in e) if isinstance(e, tuple) else made[e] if e is not None else None for e in inputs
        ]
        kept = {k: _widened(step.target, v) if wide else v for k, v in attrs.items() if not k.startswith("_")}
        node = graph.add(step.target, entries, kept, [(_wider(d, wide), _sized(s, known)) for d, s, _ in outputs])
        for old, new, (_, _, layout) in zip(step.values, node.outputs, outputs):
            new.format, made[old] = layout, new
        node.output_counts, node.subgraphs = dict(counts), dict(inner)
    graph.outputs = [made[part.value]]
    executable = CpuEngine().compile(graph, {"engine.program": "aten"})
    return lambda inputs: executable.run([i.clone() for i in inputs])[0]


def _told(a: RewritePart, b: RewritePart, text: str, kind: str, sizes: Sizes) -> str:
    where = f", {sizes}" if sizes.values else ""
    leaves = ", ".join(map(repr, sorted(a.leaves | b.leaves, key=lambda v: (v.node.name, v.index)))) or "nothing"
    return f"{described(b.steps)} in the place of {described(a.steps)}: {text}, for {kind} values of {leaves}{where}"
