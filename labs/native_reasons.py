"""Why an operator of torch is more than one GE operator: reasons that a machine checks.

`tests/native/reasons.tsv` has a row a reason: its key, its kind, facts, the GE operators that it accounts for (`*`:
all), and a sentence for people. `tests/native/compositions.tsv` names the keys. A reason that no longer holds is an
error, and so is an operator that no reason of its row accounts for. The kinds, and what is asked:

    none      no GE operator is called like the entry or one of its ATen operators, nor like a word of the facts
    port      schema: the facts `OP.name` name no port and no attribute of an operator that there is
    type      schema: the facts `OP.port:DT_X`: the port does not take, or give, that type
    kernel    facts of chips: for `OP@chip` no kernel is known
    numbers   the embedded engine: `OP {inputs} {attributes} function` differs from torch's function of the same inputs
    inferred  `OP {inputs} {attributes} port DT_X`: the port's type, as GE infers it, is another
    refused   the embedded engine: `OP {inputs} {attributes}` is refused, as GE's definition has no such form
    parts     torch hands over several ATen operators, none of them the entry itself; each is one GE operator
    results   several results, each one GE operator
    updates   schema: the operators in the facts write into an input, so that it is copied first and its operands fitted
    asserts   what torch asserts of sizes stands in the graph as Assert
"""

from __future__ import annotations

import collections
import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ge_graph import GeError, Graph, building, kernels, ops, schema
from ge_graph.dtypes import BY_TORCH_NAME, DataType
from ge_graph.ir import Tensor
from ge_runtime.cpu import CpuEngine

TABLE = Path(__file__).resolve().parent.parent / "tests" / "native" / "reasons.tsv"


@dataclass(frozen=True)
class NativeReason:
    """A row of the table of reasons; see above."""

    kind: str
    facts: str
    covers: frozenset[str]
    text: str


@dataclass(frozen=True)
class NativeRow:
    """What the table of compositions says of an entry.

    Attributes:
        results: How many tensors eager returns.
        atens: ATen operators that reached the converters, in order.
        emitted: GE operators, in order.
        reasons: Keys of why it is more than one.
    """

    results: int
    atens: tuple[str, ...]
    emitted: tuple[str, ...]
    reasons: tuple[str, ...]


def read() -> dict[str, NativeReason]:
    """Key -> reason."""
    lines = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {key: NativeReason(kind, facts, frozenset(covers.split()), text) for key, kind, facts, covers, text in lines}


def packed(names: Sequence[str]) -> str:
    """Names with how often each comes: ``Mul*3 Add``."""
    counts = collections.Counter(names)
    return " ".join(f"{name}*{n}" if n > 1 else name for name, n in counts.items())


def unpacked(text: str) -> tuple[str, ...]:
    """The names that ``packed`` wrote."""
    pairs = (word.partition("*") for word in text.split())
    return tuple(name for name, _, n in pairs for _ in range(int(n or 1)))


def folded(name: str) -> str:
    """A name without case, underscores and version, as ATen's and GE's can be compared."""
    return re.sub(r"v\d+$", "", name.lower().replace("_", ""))


@functools.cache
def _schema_names() -> dict[str, str]:
    return {folded(op): op for op in schema.names()}


def words(name: str) -> set[str]:
    """Folded names under which GE might have an entry or an ATen operator."""
    bare = name.removeprefix("torch.ops.").removeprefix("aten.").split(".")
    return {folded(w) for w in (bare[0], bare[-1], "".join(bare))} - {"default", "tensor", "out"}


# -- kinds -----------------------------------------------------------------------------------------------------------


def _none(name: str, row: NativeRow, facts: str) -> list[str]:
    asked = words(name) | {folded(w) for w in facts.split()}
    if len(row.atens) == 1:
        asked |= words(row.atens[0])
    found = sorted(_schema_names()[w] for w in asked if w in _schema_names())
    return [f"GE has {op}" for op in found if op not in row.emitted]


def _port(name: str, row: NativeRow, facts: str) -> list[str]:
    wrong = []
    for fact in facts.split():
        op, _, port = fact.partition(".")
        found = schema.get(op)
        if found is None:
            wrong.append(f"GE has no {op}")
        elif any(x is not None for x in (found.input(port), found.output(port), found.attr(port))):
            wrong.append(f"{op} has {port}")
    return wrong


def _type(name: str, row: NativeRow, facts: str) -> list[str]:
    wrong = []
    for fact in facts.split():
        port, _, dtype = fact.partition(":")
        op, _, port = port.partition(".")
        found = schema.get(op)
        ports = [] if found is None else [p for p in (found.input(port), found.output(port)) if p is not None]
        if not ports:
            wrong.append(f"{op} has no {port}")
        elif any(DataType[dtype] in p.dtypes for p in ports):
            wrong.append(f"{op}.{port} takes {dtype}")
    return wrong


def _kernel(name: str, row: NativeRow, facts: str) -> list[str]:
    wrong = []
    for fact in facts.split():
        op, _, chip = fact.partition("@")
        if schema.get(op) is None:
            wrong.append(f"GE has no {op}")
        elif kernels.has(op, {}, chip) == "yes":
            wrong.append(f"{chip} has a kernel for {op}")
    return wrong


def _operand(value: Any) -> torch.Tensor:
    """Numbers as a tensor: float32, int64 or bool; texts are numbers such as nan."""
    if isinstance(value, dict):
        return torch.tensor(value["value"], dtype=getattr(torch, value["dtype"]))
    return torch.tensor([float(v) for v in value]) if value and isinstance(value[0], str) else torch.tensor(value)


def _graph(op: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> tuple[Graph, list[torch.Tensor]]:
    """A graph of one operator, and what it is fed."""
    feeds: list[torch.Tensor] = []
    graph = Graph("reason")

    def place(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], dict):  # a port of several tensors
            return [place(v) for v in value]
        feeds.append(_operand(value))
        dtype = BY_TORCH_NAME[str(feeds[-1].dtype).removeprefix("torch.")]
        return ops.Data(index=len(feeds) - 1, dtype=dtype, shape=tuple(feeds[-1].shape))

    with building(graph):
        made = getattr(ops, op)(**{port: place(value) for port, value in inputs.items()}, **attrs)
        graph.outputs = [made] if isinstance(made, Tensor) else list(made)
    return graph, feeds


def run(op: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> list[torch.Tensor]:
    """What the embedded engine gives for one operator."""
    graph, feeds = _graph(op, inputs, attrs)
    found: list[torch.Tensor] = CpuEngine().compile(graph, {}).run(feeds)
    return found


def _case(facts: str) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    decoder = json.JSONDecoder()
    op, _, rest = facts.partition(" ")
    inputs, end = decoder.raw_decode(rest)
    attrs, end_ = decoder.raw_decode(rest[end:].lstrip())
    return op, inputs, attrs, rest[end:].lstrip()[end_:].strip()


_BY_KEYWORD = ("axes", "axis", "indices")  # ports that torch's functions have as arguments of other names


def _numbers(name: str, row: NativeRow, facts: str) -> list[str]:
    op, inputs, attrs, call = _case(facts)
    function, _, keywords = call.partition(" ")
    eager: Any = functools.reduce(getattr, function.split("."), torch)
    given = json.loads(keywords or "{}")
    named = {key: _operand(v) if isinstance(v, dict) else v for key, v in given.items()}
    operands = [_operand(v) for port, v in inputs.items() if port not in (*named, *_BY_KEYWORD)]
    want = eager(*operands, **named)
    want = want if isinstance(want, torch.Tensor) else want[0]
    got = run(op, inputs, attrs)[0]
    same = got.shape == want.shape and torch.allclose(got.to(want.dtype), want, equal_nan=True)
    return [f"{op} equals torch.{function}"] if same else []


def _refused(name: str, row: NativeRow, facts: str) -> list[str]:
    op, inputs, attrs, _ = _case(facts)
    try:
        run(op, inputs, attrs)
    except GeError:
        return []
    return [f"{op} takes {inputs}"]


def _inferred(name: str, row: NativeRow, facts: str) -> list[str]:
    op, inputs, attrs, rest = _case(facts)
    port, dtype = rest.split()
    graph, _ = _graph(op, inputs, attrs)
    position = [p.name for p in schema.require(op).outputs].index(port)
    return [f"{op}.{port} is {dtype}"] if graph.outputs[position].dtype is DataType[dtype] else []


def _parts(name: str, row: NativeRow, facts: str) -> list[str]:
    own = words(name) & {w for aten in row.atens for w in words(aten)}
    if len(row.atens) < 2:
        return [f"one ATen operator, {' '.join(row.atens)}"]
    return [f"its own ATen operator is among them: {w}" for w in own if len(set(row.atens)) == 1]


def _results(name: str, row: NativeRow, facts: str) -> list[str]:
    return [] if row.results > 1 else ["one result"]


def _updates(name: str, row: NativeRow, facts: str) -> list[str]:
    wrong = []
    for op in facts.split():
        found = schema.get(op)
        if found is None or not {p.name for p in found.inputs} & {p.name for p in found.outputs}:
            wrong.append(f"{op} writes into no input")
    return wrong if set(facts.split()) & set(row.emitted) else [*wrong, f"none of {facts} is emitted"]


def _asserts(name: str, row: NativeRow, facts: str) -> list[str]:
    return [] if "Assert" in row.emitted else ["no Assert"]


KINDS: dict[str, Callable[[str, NativeRow, str], list[str]]] = {
    "none": _none,
    "port": _port,
    "type": _type,
    "kernel": _kernel,
    "numbers": _numbers,
    "refused": _refused,
    "inferred": _inferred,
    "parts": _parts,
    "results": _results,
    "updates": _updates,
    "asserts": _asserts,
}
# Kinds that excuse more operators than the bundled torchair has: it lacks the same, gives other numbers,
# or writes into the caller's tensor.
HARD = ("numbers", "refused", "inferred", "type", "port", "kernel", "updates")


def problems(name: str, row: NativeRow, table: dict[str, NativeReason]) -> list[str]:
    """Why the reasons of a row do not hold, or do not account for its operators."""
    missing = [key for key in row.reasons if key not in table]
    if missing or not row.reasons:
        return [f"{name}: no reason {' '.join(missing)}".rstrip()]
    found = [table[key] for key in row.reasons]
    said = [
        f"{name}: {key}: {wrong}"
        for key, reason in zip(row.reasons, found)
        for wrong in KINDS[reason.kind](name, row, reason.facts)
    ]
    covers = frozenset[str]().union(*(r.covers for r in found))
    left = [] if "*" in covers else [op for op in row.emitted if op not in covers]
    kinds = {r.kind for r in found}
    allowed = max(1, len(row.atens) if "parts" in kinds else 1, row.results if "results" in kinds else 1)
    if len(left) > allowed:
        said.append(f"{name}: {len(left)} operators, {allowed} accounted for: {' '.join(left)}")
    return said


def hard(row: NativeRow, table: dict[str, NativeReason]) -> Sequence[str]:
    """The reasons of a row that excuse more operators than the bundled torchair has."""
    return [key for key in row.reasons if key in table and table[key].kind in HARD]
