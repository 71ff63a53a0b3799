"""Single operators: a graph of one node, made once for each form of call and run on the caller's memory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from ge_emulator import callers, fractal
from ge_emulator.memory import contiguous
from ge_emulator.refusal import INTERNAL, INVALID, OP_NOT_FOUND, CannRefusal, reply
from ge_graph import schema
from ge_graph.attrs import Attr, Kind, make
from ge_graph.dtypes import DataType
from ge_graph.errors import GeError
from ge_graph.ir import Graph, Literal, Operand, Tensor
from ge_graph.schema import OpSchema, PortSchema
from ge_runtime.cpu.engine import CpuExecutable
from ge_runtime.cpu.planner import check_kernels, schedule
from ge_runtime.cpu.values import torch_dtype

UNDEFINED: Final = (-1, 28)
_KEPT: Final = 4096  # forms of calls; beyond it the oldest goes


class Prepared:
    """One form of call: operator, attributes, types and ranks.

    Attributes:
        op: Operator type.
        program: What runs.
        fed: Positions, among the inputs of the call, of the tensors that the program takes.
        in_dtypes: Element types of all inputs of the call; ``None`` where nothing is fed.
        out_dtypes: Element types of its outputs.
        tiled_in, tiled_out: Sizes of what lies in tiles, for each input and output; ``None`` for the others.
        taken: Positions, among the outputs of the call, that are described at all.
    """

    def __init__(self, call: dict[str, Any]) -> None:
        self.op: str = call["op"]
        self.sizes_back: bool = call.get("sizes_back", False)
        op_schema = schema.get(self.op)
        if op_schema is None:
            raise CannRefusal(OP_NOT_FOUND, f"[GE4003] no operator '{self.op}' is registered")
        graph = Graph(self.op)
        self.fed: list[int] = []
        self.in_dtypes = [_dtype(i) for i in call["inputs"]]
        self.out_dtypes = [_dtype(o) for o in call["outputs"]]
        self.tiled_in, self.tiled_out = (
            [e.get("logical") if len(e.get("logical", ())) == e["rank"] - 2 else None for e in call[side]]
            for side in ("inputs", "outputs")
        )
        edges = [self._edge(graph, i, entry) for i, entry in enumerate(call["inputs"])]
        inputs = _by_port(op_schema, call["inputs"], edges)
        counts = _output_counts(op_schema, len(call["outputs"]))
        outputs = [(DataType(o["dtype"]), None) for o in call["outputs"] if o["dtype"] not in UNDEFINED]
        self.taken = [i for i, o in enumerate(call["outputs"]) if o["dtype"] not in UNDEFINED]
        node = graph.add(self.op, inputs, _attributes(op_schema, call["attrs"]), outputs)
        node.output_counts = counts
        graph.outputs = list(node.outputs)
        order = schedule(graph)
        check_kernels("emulator", order)
        self.program = CpuExecutable(graph, order)

    def _edge(self, graph: Graph, position: int, entry: dict[str, Any]) -> Tensor | None:
        if entry["dtype"] in UNDEFINED:
            return None
        dtype = DataType(entry["dtype"])
        if "value" in entry:
            dims, data = tuple(entry["dims"]), np.frombuffer(bytes.fromhex(entry["value"]), dtype=np.uint8)
            value = Attr(Kind.TENSOR, Literal(dtype, dims, data))
            return graph.add("Const", (), {"value": value}, [(dtype, dims)]).outputs[0]
        shape = tuple(
            f"n{position}_{axis}"
            for axis in range(entry["rank"] if self.tiled_in[position] is None else entry["rank"] - 2)
        )
        index = len(self.fed)
        self.fed.append(position)
        return graph.add("Data", (), {"index": Attr(Kind.INT, index)}, [(dtype, shape)]).outputs[0]


def _dtype(entry: dict[str, Any]) -> torch.dtype | None:
    return None if entry["dtype"] in UNDEFINED else torch_dtype(DataType(entry["dtype"]))


def _by_port(op_schema: OpSchema, entries: Sequence[dict[str, Any]], edges: Sequence[Tensor | None]) -> list[Operand]:
    """Inputs in schema order. Members of a dynamic port are named ``x0``, ``x1`` …, or are all that is left."""
    inputs: list[Operand] = []
    at = 0
    told = bool(entries) and all("port" in entry for entry in entries)
    for position, port in enumerate(op_schema.inputs):
        if told:
            named = tuple(e for e, entry in zip(edges, entries) if entry["port"] == port.name and e is not None)
            at += len(named)
            inputs.append(named if port.kind == "dynamic" else named[0] if named else None)
            continue
        if port.kind == "dynamic":
            count = _members(port, entries[at:], len(op_schema.inputs) - position - 1)
            described = edges[at : at + count]
            if None in described:
                what = f"a member of the dynamic input '{port.name}' is not described"
                raise CannRefusal(INVALID, f"{op_schema.name}: {what}")
            inputs.append(tuple(m for m in described if m is not None))
            at += count
        elif at < len(edges):
            inputs.append(edges[at])
            at += 1
        else:
            inputs.append(None)
    if at < len(edges):
        raise CannRefusal(INVALID, f"{op_schema.name} takes {at} inputs, got {len(edges)}")
    for port, entry in zip(op_schema.inputs, inputs):
        if port.kind == "required" and entry is None:
            raise CannRefusal(INVALID, f"EZ3002: {op_schema.name}: required input '{port.name}' is not fed")
        for edge in entry if isinstance(entry, tuple) else (entry,):
            if edge is not None and edge.dtype not in port.domain:
                allowed = ", ".join(d.short for d in port.dtypes)
                what = f"input '{port.name}' is {edge.dtype.short}; it takes {allowed}"
                raise CannRefusal(INVALID, f"EZ3002: {op_schema.name}: {what}")
    return inputs


def _members(port: PortSchema, rest: Sequence[dict[str, Any]], after: int) -> int:
    named = 0
    for entry in rest:
        if entry.get("name") != f"{port.name}{named}":
            break
        named += 1
    return named if named else max(len(rest) - after, 0)


def _output_counts(op_schema: OpSchema, given: int) -> dict[str, int]:
    dynamic = [p for p in op_schema.outputs if p.kind == "dynamic"]
    if not dynamic:
        return {}
    if len(dynamic) > 1:
        raise CannRefusal(INTERNAL, f"{op_schema.name} has two dynamic outputs; how many belong to each is not known")
    return {dynamic[0].name: given - len(op_schema.outputs) + 1}


def _attributes(op_schema: OpSchema, given: dict[str, list[Any]]) -> dict[str, Attr]:
    """Attributes of the schema. As GE does: unknown names are ignored, a value of another kind leaves the default."""
    attrs: dict[str, Attr] = {}
    for spec in op_schema.attrs:
        kind, value = given.get(spec.name, ("", 0))
        if kind == spec.kind.value or (kind, spec.kind) in (("Int", Kind.TYPE), ("Type", Kind.INT)):
            attrs[spec.name] = make(spec.kind, DataType(value) if spec.kind is Kind.TYPE else value, spec.name)
        elif spec.default is not None:
            attrs[spec.name] = spec.default
        elif spec.required:
            what = f"required attribute '{spec.name}' is missing or not {spec.kind.value}"
            raise CannRefusal(INVALID, f"{op_schema.name}: {what}")
    return attrs


@lru_cache(maxsize=_KEPT)
def _form(data: bytes) -> Prepared:
    """The form of a call with this description; made on first sight."""
    call = json.loads(data)
    try:
        return Prepared(call)
    except GeError as error:
        raise CannRefusal(INTERNAL, f"EZ3003: {call['op']}: {error}") from error


def prepare(data: bytes, words: list[int]) -> bytes:
    """The line of the call; refuses what cannot run."""
    _form(data)
    return reply(0, callers.line().encode())


def run(data: bytes, words: list[int]) -> int | bytes:
    """Run a call on its tensors; words: counts, then address, bytes, rank and sizes of each."""
    call = _form(data)
    inputs, outputs = words[0], words[1]
    at = 2
    tensors = []
    for dtypes, count in ((call.in_dtypes, inputs), (call.out_dtypes, outputs)):
        for i in range(count):
            address, _, rank = words[at : at + 3]
            dims = words[at + 3 : at + 3 + rank]
            at += 3 + rank
            tensors.append((address, dtypes[i], dims))
    fed = []
    for i in call.fed:
        address, dtype, dims = tensors[i]
        assert dtype is not None
        given, logical = contiguous(address, dtype, dims), call.tiled_in[i]
        fed.append(given if logical is None else fractal.to_matrix(given, logical))
    try:
        results = call.program.run(fed)
    except Exception as error:
        raise callers.failed_operator(call.op, fed, error) from error
    sizes = []
    for result, position in zip(results, call.taken, strict=True):
        address, dtype, dims = tensors[inputs + position]
        assert dtype is not None
        if call.sizes_back:
            contiguous(address, dtype, list(result.shape)).copy_(result)
            sizes.append(",".join(map(str, result.shape)))
            continue
        if call.tiled_out[position] is not None:
            result = fractal.to_tiles(result, dims)
        if result.numel() != math.prod(dims):
            raise callers.failed_operator(call.op, fed, f"gives {list(result.shape)}, output {position} is {dims}")
        contiguous(address, dtype, dims).copy_(result.reshape(dims))
    return reply(0, ";".join(sizes).encode()) if call.sizes_back else 0
