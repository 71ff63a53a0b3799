"""What a chip does with an operator and its element types, by GE's own rules.

AI Core looks at every fed port by itself: a port passes if some combination lists its type, and float16 and bfloat16
pass where only float32 is listed, with casts that GE inserts; no other type becomes another one. AI CPU wants exactly
the types listed. An operator without facts is unknown, never supported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from ge_graph import schema
from ge_graph.dtypes import BY_SHORT, DataType
from ge_graph.ir import Graph, Node
from ge_graph.kernels.data import Limit
from ge_graph.kernels.form import AI_CORE, AI_CPU, ChipKernel, KernelFacts

State = Literal["aicore", "aicpu", "device", "none", "unknown"]
Types: TypeAlias = "Mapping[str, Sequence[DataType]]"

_HALF: Final = frozenset((DataType.DT_FLOAT16, DataType.DT_BF16))
MAX_RANK: Final = 8

# Casts worth proposing: (from, to), cost, what has to hold.
_CASTS: Final = {
    (BY_SHORT[a], BY_SHORT[b]): (cost, hint)
    for a, b, cost, hint in (
        ("f64", "f32", 2, "24 digits of 53 are kept"), ("f32", "f16", 4, "fewer digits, up to 65504"),
        ("f32", "bf16", 5, "fewer digits"), ("bf16", "f16", 3, "up to 65504"), ("f16", "bf16", 5, "fewer digits"),
        ("f16", "f32", 1, ""), ("bf16", "f32", 1, ""),
        ("i64", "i32", 2, "if the values fit"), ("u64", "i64", 3, "if the values fit"), ("u32", "i64", 2, ""),
        ("u16", "i32", 1, ""), ("u8", "i32", 2, ""), ("i8", "i32", 2, ""), ("i16", "i32", 1, ""), ("i32", "i64", 2, ""),
        ("u8", "f16", 3, ""), ("i8", "f16", 3, ""), ("i32", "f32", 4, "exact below 2^24"), ("b8", "i8", 2, ""),
        ("b8", "u8", 2, ""), ("b8", "i32", 3, ""), ("c128", "c64", 2, "24 digits of 53 are kept"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one operator.

    Attributes:
        state: ``aicore``; ``aicpu``, the slow unit; ``device`` (no kernel needed: views, copies, collectives);
            ``none``, no kernel takes it; ``unknown``.
        reason: Why, in words.
        casts: Whether GE puts casts around the kernel.
        advice: What would run on AI Core instead, empty if nothing is known.
        slow: With ``unknown``: AI CPU takes it in any case.
    """

    state: State
    reason: str
    casts: bool = False
    advice: str = ""
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one node.

    Attributes:
        node: Name, with the path through inner graphs.
        types: Element types fed and given, ``x f32, y f32``.
        source: The user's line, empty if not known.
        code: Its text.
    """

    op: str
    node: str
    types: str
    source: str
    code: str
    verdict: Verdict


class Oracle:
    """Verdicts for one chip.

    Args:
        soc: The chip, as the facts name it.
        limits: What is known of operators that the facts leave out for this chip.
    """

    def __init__(self, facts: KernelFacts, soc: str, limits: Sequence[Limit] = ()) -> None:
        self.facts = facts
        self.soc = soc
        self._limits: dict[str, list[Limit]] = {}
        for limit in limits:
            if limit.soc == soc:
                self._limits.setdefault(limit.op, []).append(limit)

    def verdict(self, op: str, types: Types) -> Verdict:
        """The verdict on an operator.

        Args:
            types: Port name to the element types of its tensors; ports that are not fed are left out. Output ports may
                be left out too.
        """
        kernels = self.facts.kernels(op, self.soc)
        usual = [k for k in kernels if not k.experimental]
        if not any(k.unit == AI_CORE for k in usual):
            limited = self._limited(op, types)
            if limited is not None:
                return limited
        whole = self.soc in self.facts.complete or any(k.unit == AI_CORE for k in usual)
        for kernel in usual:
            verdict = _takes(kernel, types)
            if verdict is not None and verdict.state == "aicpu":
                if not whole:
                    return Verdict(
                        "unknown", f"AI CPU takes it; whether {self.soc} has an AI Core kernel is not known", slow=True
                    )
                return Verdict("aicpu", verdict.reason, advice=self._advice(usual, types))
            if verdict is not None:
                return verdict
        if usual and whole:
            more = "" if any(k.unit == AI_CPU for k in usual) else "; AI CPU has none that is listed"
            return Verdict("none", _refusal(usual, types) + more, advice=self._advice(usual, types))
        if kernels and not usual:
            return Verdict("unknown", "only a contributed kernel is known, which no installation holds")
        return Verdict("unknown", f"nothing is known of this operator on {self.soc}")

    def has(self, op: str, types: Types) -> Literal["yes", "no", "unknown"]:
        """Whether some unit of the chip takes the operator."""
        verdict = self.verdict(op, types)
        if verdict.state == "unknown":
            return "yes" if verdict.slow else "unknown"
        return "no" if verdict.state == "none" else "yes"

    def check(self, graph: Graph) -> Iterator[Finding]:
        """The verdict on every operator of a graph and of the graphs in its nodes; inputs and constants left out."""
        yield from self._check(graph, "", {}, set())

    def _check(
        self, graph: Graph, path: str, known: dict[tuple[str, str], Verdict], above: set[int]
    ) -> Iterator[Finding]:
        for node in graph.nodes:
            if node.op not in _NO_WORK:
                types = types_of(node)
                shown = ", ".join(f"{p} {'+'.join(dict.fromkeys(d.short for d in ds))}" for p, ds in types.items())
                verdict = known.get((node.op, shown))
                if verdict is None:
                    verdict = known[node.op, shown] = self.verdict(node.op, types)
                origin = node.provenance
                yield Finding(
                    node.op, path + node.name, shown, origin.source if origin else "", origin.code if origin else "",
                    _with_rank(verdict, node),
                )  # fmt: skip
            for slot, inner in node.subgraphs.items():
                if id(inner) not in above:
                    yield from self._check(inner, f"{path}{node.name}/{slot}/", known, above | {id(graph)})

    def _limited(self, op: str, types: Types) -> Verdict | None:
        for limit in self._limits.get(op, ()):
            if all(_holds(port, wanted, types) for port, wanted in limit.when):
                where = "runs on AI CPU" if limit.unit == AI_CPU else "no kernel"
                state: State = "aicpu" if limit.unit == AI_CPU else "none"
                return Verdict(state, f"{where}, by the lists of an older installation", advice=limit.instead)
        return None

    def _advice(self, kernels: Sequence[ChipKernel], types: Types) -> str:
        best: tuple[int, str] | None = None
        for kernel in kernels:
            if kernel.unit != AI_CORE:
                continue
            for combo in kernel.combos:
                way = _way(kernel, combo, types)
                if way is not None and (best is None or way[0] < best[0]):
                    best = way
        return "" if best is None else best[1]


_NO_WORK: Final = frozenset(("Data", "RefData", "Const", "Constant", "ConstPlaceHolder", "FileConstant", "NetOutput"))


def types_of(node: Node) -> dict[str, tuple[DataType, ...]]:
    """Port name to element types, inputs then outputs, unfed ports left out; unknown operators' ports are numbered."""
    row = schema.get(node.op)
    ins = [p.name for p in row.inputs] if row and len(row.inputs) == len(node.inputs) else []
    types: dict[str, tuple[DataType, ...]] = {}
    for at, entry in enumerate(node.inputs):
        if entry is not None:
            parts = entry if isinstance(entry, tuple) else (entry,)
            if parts:
                types[ins[at] if ins else f"input{at}"] = tuple(t.dtype for t in parts)
    if row is not None and any(node.output_counts.get(p.name) is None for p in row.outputs if p.kind == "dynamic"):
        row = None
    at = 0
    for k, port in enumerate(row.outputs if row else ()):
        count = node.output_counts[port.name] if port.kind == "dynamic" else 1
        given = tuple(t.dtype for t in node.outputs[at : at + count])
        if given:
            types.setdefault(port.name, given)
        at += count
        del k
    return types


def _with_rank(verdict: Verdict, node: Node) -> Verdict:
    ranks = [len(t.known_shape) for t in (*node.operands(), *node.outputs) if t.known_shape is not None]
    if verdict.state in ("aicore", "aicpu") and max(ranks, default=0) > MAX_RANK:
        return Verdict(
            "unknown", f"{max(ranks)} dimensions; most kernels take {MAX_RANK}",
            advice=f"reshape to at most {MAX_RANK} dimensions",
        )  # fmt: skip
    return verdict


def _holds(port: str, wanted: frozenset[DataType], types: Types) -> bool:
    given = itertools.chain.from_iterable(types.values()) if port == "*" else types.get(port, ())
    return any(d in wanted for d in given)


def _placed(kernel: ChipKernel, types: Types) -> dict[str, int] | None:
    """Port of the graph to port of the kernel: by name, else by position; ``None`` if neither fits."""
    real = [i for i, kind in enumerate(kernel.kinds) if kind != "virtual"]
    names = {kernel.ports[i]: i for i in real}
    if all(p in names for p in types):
        return {p: names[p] for p in types}
    required = [i for i in real if i < kernel.inputs]
    if len(types) in (len(required), len(real)):
        return dict(zip(types, real))
    return None


def _takes(kernel: ChipKernel, types: Types) -> Verdict | None:
    """The verdict if the kernel takes the types, ``None`` if it does not."""
    if kernel.unit not in (AI_CORE, AI_CPU):
        if kernel.sets and not all(d in kernel.sets[0] for ds in types.values() for d in ds):
            return None
        words = {"ge_local": "GE does it without a kernel", "rts": "a copy or an event", "hccl": "a collective"}
        return Verdict("device", words[kernel.unit])
    if not kernel.combos and not kernel.sets:
        return Verdict("unknown", f"a kernel exists ({_unit(kernel)}), its element types are chosen by a function")
    places = _placed(kernel, types)
    if places is None:
        return Verdict("unknown", f"a kernel exists ({_unit(kernel)}), its ports have other names: "
                       f"{', '.join(kernel.ports)}")  # fmt: skip
    if kernel.unit == AI_CPU:
        fits = all(d in kernel.types(places[p]) for p, ds in types.items() for d in ds)
        return Verdict("aicpu", "runs on AI CPU") if fits else None
    for port, given in types.items():
        listed = kernel.types(places[port])
        if not all(d in listed or (d in _HALF and DataType.DT_FLOAT in listed) for d in given):
            return None
    exact = any(all(d == combo[places[p]] for p, ds in types.items() for d in ds) for combo in kernel.combos)
    maybe = "; it may still refuse shapes or attributes" if kernel.checks else ""
    if exact:
        return Verdict("aicore", f"runs on AI Core{maybe}")
    return Verdict("aicore", f"runs on AI Core, with casts that GE inserts{maybe}", casts=True)


def _unit(kernel: ChipKernel) -> str:
    return "AI CPU" if kernel.unit == AI_CPU else "AI Core"


def _refusal(kernels: Iterable[ChipKernel], types: Types) -> str:
    parts = []
    for kernel in kernels:
        places = _placed(kernel, types)
        if kernel.unit not in (AI_CORE, AI_CPU) or places is None:
            continue
        for port, given in types.items():
            listed = kernel.types(places[port])
            wrong = [d for d in given if d not in listed and not (
                kernel.unit == AI_CORE and d in _HALF and DataType.DT_FLOAT in listed)]  # fmt: skip
            if wrong:
                known = ", ".join(sorted(d.name for d in listed)) or "nothing"
                parts.append(f"{_unit(kernel)} takes '{port}' in {known}, not in {wrong[0].name}")
                break
    return "no kernel: " + ("; ".join(dict.fromkeys(parts)) or "its kernels take other types")


def _way(kernel: ChipKernel, combo: tuple[DataType, ...], types: Types) -> tuple[int, str] | None:
    """The cost and the words of the casts that lead to a combination."""
    places = _placed(kernel, types)
    if places is None:
        return None
    cost = 0
    words = []
    for port, given in types.items():
        target = combo[places[port]]
        for d in dict.fromkeys(given):
            if d == target:
                continue
            step = _CASTS.get((d, target))
            if places[port] >= kernel.inputs:  # a result is cast back afterwards
                step = _CASTS.get((d, target)) or _CASTS.get((target, d))
            if step is None:
                return None
            cost += step[0]
            if places[port] < kernel.inputs:
                words.append(f"{port} to {target.name}" + (f" ({step[1]})" if step[1] else ""))
            else:
                words.append(f"take {port} as {target.name}")
    return (cost, "cast " + ", ".join(words) if words else "") if words else None
