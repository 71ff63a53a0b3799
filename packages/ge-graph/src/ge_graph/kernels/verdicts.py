"""What a chip does with an operator and its element types, by GE's own rules.

AI Core looks at every fed port by itself: a port passes if some combination lists its type, and float16 and bfloat16
pass where only float32 is listed, with casts that GE inserts; no other type becomes another one. AI CPU wants exactly
the types listed. An operator without facts is unknown, never supported.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from ge_graph import schema
from ge_graph.dtypes import BY_SHORT, DataType
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.kernels import conditions
from ge_graph.kernels.data import OlderLimit
from ge_graph.kernels.evidence import SAME_CORE, Evidence
from ge_graph.kernels.form import AI_CORE, AI_CPU, ChipKernel, KernelFacts
from ge_graph.kernels.grades import STRENGTHS, grade

State = Literal["aicore", "aicpu", "device", "none", "open", "unknown"]
Types: TypeAlias = "Mapping[str, Sequence[DataType]]"

_HALF: Final = frozenset((DataType.DT_FLOAT16, DataType.DT_BF16))
MAX_RANK: Final = 8

# Casts worth proposing: (from, to), cost, what has to hold.
_CASTS: Final = {
    (BY_SHORT[a], BY_SHORT[b]): (cost, hint)
    for a, b, cost, hint in (
        ("f64", "f32", 2, "24 digits of 53 are kept"),
        ("f32", "f16", 4, "fewer digits, up to 65504"),
        ("f32", "bf16", 5, "fewer digits"),
        ("bf16", "f16", 3, "up to 65504"),
        ("f16", "bf16", 5, "fewer digits"),
        ("f16", "f32", 1, ""),
        ("bf16", "f32", 1, ""),
        ("i64", "i32", 2, "if the values fit"),
        ("u64", "i64", 3, "if the values fit"),
        ("u32", "i64", 2, ""),
        ("u16", "i32", 1, ""),
        ("u8", "i32", 2, ""),
        ("i8", "i32", 2, ""),
        ("i16", "i32", 1, ""),
        ("i32", "i64", 2, ""),
        ("u8", "f16", 3, ""),
        ("i8", "f16", 3, ""),
        ("i32", "f32", 4, "exact below 2^24"),
        ("b8", "i8", 2, ""),
        ("b8", "u8", 2, ""),
        ("b8", "i32", 3, ""),
        ("c128", "c64", 2, "24 digits of 53 are kept"),
    )
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one operator.

    Attributes:
        state: ``aicore``; ``aicpu``, the slow unit; ``device`` (no kernel needed: views, copies, collectives);
            ``none``, no kernel takes it; ``open``, AI Core runs the operator, whether in these types is not known;
            ``unknown``.
        reason: Why, in words.
        casts: Whether GE puts casts around the kernel.
        advice: What would run on AI Core instead, empty if nothing is known.
        slow: With ``unknown``: AI CPU takes it in any case.
        strength: How sure it is, one of ``grades.STRENGTHS``; empty with ``unknown`` if nobody says anything.
        sources: Who says so, if it is no list of kernels.
    """

    state: State
    reason: str
    casts: bool = False
    advice: str = ""
    slow: bool = False
    strength: str = "listed"
    sources: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether a list, a measurement or a launch says so, and not only a page, or nobody."""
        return self.state not in ("open", "unknown") and STRENGTHS.index(self.strength) <= _LAUNCHED


_LAUNCHED: Final = STRENGTHS.index("launched")


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
        evidence: What the public says of them; None where the facts are those of an installation, which is complete.
    """

    def __init__(
        self, facts: KernelFacts, soc: str, limits: Sequence[OlderLimit] = (), evidence: Evidence | None = None
    ) -> None:
        self.facts = facts
        self.soc = soc
        self.evidence = evidence
        self._limits: dict[str, list[OlderLimit]] = {}
        chips = SAME_CORE.get(soc, frozenset()) | {soc}
        for limit in limits:
            if limit.soc in chips:
                self._limits.setdefault(limit.op, []).append(limit)

    def verdict(self, op: str, types: Types) -> Verdict:
        """The verdict on an operator.

        Args:
            types: Port name to the element types of its tensors; ports that are not fed are left out. Output ports may
                be left out too.
        """
        listed = self._listed(op, types)
        if listed.state != "unknown" or self.evidence is None:
            return listed
        if (replaced := conditions.REPLACED.get((self.soc, op))) is not None:
            other, source = replaced
            verdict = self._listed(other, types)
            strength = "documented" if verdict.strength else ""
            return replace(
                verdict, reason=f"GE makes it {other}: {verdict.reason}", strength=strength, sources=(source,)
            )
        found = grade(self.evidence.of(op), self.soc, types)
        if found is None:
            return listed
        if found.unit == AI_CPU:
            return Verdict("aicpu", found.reason, False, self._instead(op, types), False, found.strength, found.sources)
        if found.unit == AI_CORE:
            state: State = "open" if found.strength == "types open" else "aicore"
            reason = f"{found.reason}, with casts that GE inserts" if found.casts else found.reason
            return Verdict(state, reason, found.casts, "", listed.slow, found.strength, found.sources)
        return Verdict(
            "unknown", f"{listed.reason}; {found.reason}", False, "", listed.slow, found.strength, found.sources
        )

    def _listed(self, op: str, types: Types) -> Verdict:
        """By lists of kernels alone."""
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
                    return _unknown(
                        f"AI CPU takes it; whether {self.soc} has an AI Core kernel is not known", slow=True
                    )
                return Verdict("aicpu", verdict.reason, advice=self._advice(usual, types))
            if verdict is not None:
                return verdict
        if usual and whole:
            more = "" if any(k.unit == AI_CPU for k in usual) else "; AI CPU has none that is listed"
            return Verdict("none", _refusal(usual, types) + more, advice=self._advice(usual, types))
        if kernels and not usual:
            return _unknown("only a contributed kernel is known, which no installation holds")
        return _unknown(f"nothing is known of this operator on {self.soc}")

    def has(self, op: str, types: Types) -> Literal["yes", "no", "unknown"]:
        """Whether some unit of the chip takes the operator."""
        verdict = self.verdict(op, types)
        if verdict.state in ("open", "unknown"):
            return "yes" if verdict.slow else "unknown"
        return "no" if verdict.state == "none" else "yes"

    def of(self, node: Node) -> Verdict:
        """The verdict on a node: by its element types, its rank, and what else decides about its kernel."""
        return self._by_node(self.verdict(node.op, types_of(node)), node)

    def _by_node(self, verdict: Verdict, node: Node) -> Verdict:
        ranks = [len(t.known_shape) for t in (*node.operands(), *node.outputs) if t.known_shape is not None]
        if verdict.state in ("aicore", "aicpu", "open") and max(ranks, default=0) > MAX_RANK:
            return Verdict(
                "unknown",
                f"it has {max(ranks)} dimensions, most kernels take {MAX_RANK}",
                advice=f"reshape to at most {MAX_RANK} dimensions",
                strength="",
            )
        if verdict.strength == "listed" or verdict.state not in ("aicore", "open"):
            return verdict
        why = conditions.ON_AI_CPU[node.op](node) if node.op in conditions.ON_AI_CPU else ""
        if why:
            return Verdict("aicpu", f"runs on AI CPU: {why}", strength=verdict.strength, sources=verdict.sources)
        if (row := conditions.NOT_NAMED.get((self.soc, node.op))) is not None:
            port, types, why, source = row
            if any(d in types for d in types_of(node).get(port, ())):
                advice = f"cast {port} to DT_FLOAT"
                return Verdict(
                    "open",
                    f"runs on AI Core, {port} in this type is not named: {why}",
                    advice=advice,
                    strength="types open",
                    sources=(source,),
                )
        other = conditions.WITH_CONSTANTS.get(node.op)
        if other is None or verdict.reason.endswith("constant"):
            return verdict
        told = [e for e in node.inputs[1:] if isinstance(e, Tensor)]  # axes, sizes, places
        constant = bool(told) and all(e.node.op in _CONSTANTS for e in told)
        how = (
            f"its sizes or axes are constants, so GE makes it {other}"
            if constant
            else f"with constants GE would make it {other}"
        )
        return replace(verdict, reason=f"{verdict.reason}; {how}")

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
                    node.op,
                    path + node.name,
                    shown,
                    origin.source if origin else "",
                    origin.code if origin else "",
                    self._by_node(verdict, node),
                )
            for slot, inner in node.subgraphs.items():
                if id(inner) not in above:
                    yield from self._check(inner, f"{path}{node.name}/{slot}/", known, above | {id(graph)})

    def _limited(self, op: str, types: Types) -> Verdict | None:
        for limit in self._limits.get(op, ()):
            if limit.soc == self.soc and all(_holds(port, wanted, types) for port, wanted in limit.when):
                if limit.unit == AI_CPU:
                    return Verdict(
                        "aicpu", "runs on AI CPU, by the lists of an older installation", advice=limit.instead
                    )
                return Verdict("none", "no kernel, by the lists of an older installation", advice=limit.instead)
        return None

    def _instead(self, op: str, types: Types) -> str:
        """What runs on AI Core in place of an operator, by the limits of the chips of this core."""
        fit = (x for x in self._limits.get(op, ()) if all(_holds(port, wanted, types) for port, wanted in x.when))
        return next((limit.instead for limit in fit), "")

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


_CONSTANTS: Final = ("Const", "Constant", "ConstPlaceHolder", "FileConstant")
_NO_WORK: Final = frozenset((*_CONSTANTS, "Data", "RefData", "NetOutput"))


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


def _unknown(reason: str, *, slow: bool = False) -> Verdict:
    return Verdict("unknown", reason, slow=slow, strength="")


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
        return _unknown(f"a kernel exists ({_unit(kernel)}), its element types are chosen by a function")
    places = _placed(kernel, types)
    if places is None:
        return _unknown(f"a kernel exists ({_unit(kernel)}), its ports have other names: {', '.join(kernel.ports)}")
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
            wrong = [
                d
                for d in given
                if d not in listed and not (kernel.unit == AI_CORE and d in _HALF and DataType.DT_FLOAT in listed)
            ]
            if wrong:
                known = ", ".join(sorted(d.name for d in listed)) or "nothing"
                parts.append(f"{_unit(kernel)} takes '{port}' in {known}, not in {wrong[0].name}")
                break
    return f"no kernel: {'; '.join(dict.fromkeys(parts)) or 'its kernels take other types'}"


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
                hint = step[1]
                words.append(f"cast {port} to {target.name} ({hint})" if hint else f"cast {port} to {target.name}")
            else:
                words.append(f"take {port} as {target.name}")
    return (cost, "; ".join(words)) if words else None
