"""GE graphs: bytes to a program of the embedded engine, runs on the caller's memory."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ge_emulator import fractal, groups, manners, profile
from ge_emulator.account import Account
from ge_emulator.memory import contiguous, raw_bytes
from ge_emulator.refusal import INTERNAL, INVALID, MODEL_FAILED, CannRefusal, reply
from ge_graph import escape, serde
from ge_graph.attrs import Attr, Kind
from ge_graph.cost import Shapes, bind
from ge_graph.dtypes import DataType, Format
from ge_graph.errors import ArchiveError, GeError
from ge_graph.ir import Graph, Literal, Node, Shape
from ge_graph.serde_write import literal_bytes
from ge_runtime.cpu.engine import CpuExecutable
from ge_runtime.cpu.planner import check_kernels, schedule
from ge_runtime.cpu.values import torch_dtype
from ge_runtime.device_graphs import handed_over


class CompiledGraph:
    """A compiled graph and what its summary says."""

    def __init__(self, graph: Graph, options: dict[str, str]) -> None:
        self.graph = graph
        _name_unknown_sizes(graph)
        order = schedule(graph)
        check_kernels("emulator", order)
        self.program = CpuExecutable(graph, order)
        self.inputs = graph.inputs
        self.shapes = [t.known_shape for t in graph.outputs]
        known = [*(n.outputs[0].known_shape for n in self.inputs), *self.shapes]
        self.fixed = bool(options.get("ge.dynamicDims")) or all(map(_is_fixed, known))
        self.same_memory = manners.reused_inputs(options, len(self.inputs), len(graph.outputs))

    def summary(self) -> bytes:
        """``1;0:3,4;9:|0,1``: static, type and sizes of each output, pairs of an input and an output."""
        parts = ["1" if self.fixed else "0"]
        for edge, shape in zip(self.graph.outputs, self.shapes):
            dims = () if shape is None else tuple(d if isinstance(d, int) else -1 for d in shape)
            parts.append(f"{int(edge.dtype)}:{','.join(map(str, dims))}")
        return (";".join(parts) + "".join(f"|{i},{o}" for i, o in self.same_memory)).encode()


def _is_fixed(shape: Shape | None) -> bool:
    return shape is not None and all(isinstance(d, int) and d >= 0 for d in shape)


def _name_unknown_sizes(graph: Graph) -> None:
    """An unknown size is -1 on the wire; the engine wants a name for it, or takes it for a number."""
    for position, node in enumerate(graph.nodes):
        for edge in node.outputs:
            shape = edge.known_shape
            if shape is not None and any(isinstance(d, int) and d < 0 for d in shape):
                edge.record_shape(
                    tuple(f"n{position}_{i}" if isinstance(d, int) and d < 0 else d for i, d in enumerate(shape))
                )
        for inner in node.subgraphs.values():
            _name_unknown_sizes(inner)


def read(data: bytes, words: list[int]) -> bytes:
    """Check that bytes are a model and list its nodes: name and type, each ended by a zero byte."""
    try:
        graph = serde.from_bytes(data)
    except ArchiveError as error:
        raise CannRefusal(INVALID, f"E18888: the bytes are no ge.proto.ModelDef that can be read: {error}") from error
    return reply(0, b"".join(f"{n.name}\0{n.op}\0".encode() for n in graph.nodes))


def check_options(data: bytes, words: list[int]) -> int:
    """0 if GE takes the options of that level."""
    asked = json.loads(data)
    manners.check_options(asked["options"], asked["level"])
    return 0


_lock = threading.Lock()
_compiled: dict[int, CompiledGraph] = {}
_held: dict[int, list[torch.Tensor]] = {}  # results between a run and the store that follows, by token
_next = 0


def compile_graph(data: bytes, words: list[int]) -> bytes:
    """Handle and summary of a graph; words: address and number of its bytes, its id."""
    global _next
    options = json.loads(data)
    received = raw_bytes(words[0], words[1])
    try:
        graph = serde.from_bytes(received)
        _keep(received, graph.name)
        _locate(graph, handed_over(graph.name))
        manners.check_graph(graph, options)
        manners.rewrite(graph)
        for node in graph.nodes:
            if node.op == "FileConstant":
                _read_constant(node)
        made = CompiledGraph(graph, options)
    except GeError as error:
        raise CannRefusal(INTERNAL, f"EZ9999: graph {words[2]}: {error}") from error
    with _lock:
        handle = _next
        _next += 1
        _compiled[handle] = made
    return reply(handle, made.summary())


def _locate(graph: Graph, known: Graph | None) -> None:
    """Give nodes their places in the user's source, which the bytes do not carry, from the graph that was sent."""
    sent = {} if known is None else {n.name: n for n in known.nodes}
    for node in graph.nodes:
        origin = sent.get(node.name)
        if origin is None:
            continue
        node.provenance = origin.provenance
        for name, inner in node.subgraphs.items():
            _locate(inner, origin.subgraphs.get(name))


def _read_constant(node: Node) -> None:
    """Map the file of a FileConstant: ``length`` bytes from ``offset`` on."""
    path, edge = str(node.attr("location", "") or node.attr("file_path", "")), node.outputs[0]
    offset, shape = int(node.attr("offset", 0)), tuple(int(d) for d in node.attr("shape", ()))
    needed = literal_bytes(edge.dtype, shape)
    length = int(node.attr("length", 0)) or needed
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise CannRefusal(INVALID, f"E13001: FileConstant {node.name}: {path}: {error.strerror}") from error
    if needed is None or length != needed or offset + length > size:
        what = f"{edge.dtype.name}{list(shape)} takes {needed} bytes, asked for are {length} from {offset} on"
        raise CannRefusal(INVALID, f"EZ9999: FileConstant {node.name}: {what}, {path} has {size}")
    data = np.memmap(path, np.uint8, "r", offset, (length,)) if length else np.empty(0, np.uint8)
    node.op = "Const"
    node.attrs = {"value": Attr(Kind.TENSOR, Literal(edge.dtype, shape, data))}


def _keep(received: bytes, name: str) -> None:
    """Write the bytes of a graph, as they came, into the folder that TAIR_EMULATOR_GRAPHS names."""
    folder = os.environ.get("TAIR_EMULATOR_GRAPHS")
    if folder:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{os.getpid()}_{_next:04d}_{escape.file_name(name)}.pb").write_bytes(received)


def drop(data: bytes, words: list[int]) -> int:
    """Forget a graph."""
    with _lock:
        _compiled.pop(words[0], None)
        _held.pop(words[0], None)
    return 0


def _tensors(words: list[int], at: int, count: int) -> tuple[list[tuple[int, int, int, list[int]]], int]:
    tensors = []
    for _ in range(count):
        address, size, dtype, rank = words[at : at + 4]
        tensors.append((address, size, dtype, words[at + 4 : at + 4 + rank]))
        at += 4 + rank
    return tensors, at


def run(data: bytes, words: list[int]) -> int | bytes:
    """Run a graph: handle, whether results are kept for a store, counts, then address, bytes, type, sizes of each."""
    handle, keep, inputs, outputs = words[:4]
    compiled = _compiled.get(handle)
    if compiled is None:
        raise CannRefusal(INVALID, f"graph {handle} was removed")
    given, at = _tensors(words, 4, inputs)
    taken, _ = _tensors(words, at, outputs)
    if len(given) != len(compiled.inputs):
        raise CannRefusal(INVALID, f"E13025: the graph takes {len(compiled.inputs)} inputs, got {len(given)}")
    fed = [_input(i, node, entry) for i, (node, entry) in enumerate(zip(compiled.inputs, given))]
    try:
        results = _computed(compiled, fed)
    except Exception as error:
        lost, where = groups.failure(), getattr(error, "where", "")
        what = f"{lost}: {where}" if lost and where else lost or error
        raise CannRefusal(MODEL_FAILED, f"graph '{compiled.graph.name}': {what}") from error
    lost = groups.failure()
    if lost:
        raise CannRefusal(MODEL_FAILED, f"graph '{compiled.graph.name}': {lost}")
    if keep:
        _held[handle] = results
        return reply(0, ";".join(",".join(map(str, r.shape)) for r in results).encode())
    _write(results, taken)
    return 0


def _computed(compiled: CompiledGraph, fed: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results; with TAIR_EMULATOR_MEMORY the peak of the graph's blocks is added to the file that it names."""
    place = os.environ.get("TAIR_EMULATOR_MEMORY")
    if not place and profile.wanted():
        return profile.run(compiled.program, fed)
    if not place:
        return compiled.program.run(fed)
    shapes = Shapes(compiled.graph, bind(compiled.graph, [tuple(t.shape) for t in fed]))
    account = Account(shapes.bytes)
    results = account.run(compiled.program, fed)
    with open(place, "a", encoding="utf-8") as file:
        file.write(json.dumps({"graph": compiled.graph.name, "peak": account.peak}) + "\n")
    return results


def _input(index: int, node: Any, entry: tuple[int, int, int, list[int]]) -> torch.Tensor:
    address, _, dtype, dims = entry
    edge = node.outputs[0]
    if DataType(dtype) is not edge.dtype:
        what = f"input {index} ({node.name}) is {DataType(dtype).name}, the graph says {edge.dtype.name}"
        raise CannRefusal(INVALID, f"E13025: {what}")
    if edge.known_shape == () and dims == [1]:
        dims = []  # a symbolic size comes as one element though it is declared a scalar
    given, declared = contiguous(address, torch_dtype(edge.dtype), dims), edge.known_shape
    if edge.format is not Format.FORMAT_FRACTAL_NZ or declared is None or len(dims) != len(declared) + 2:
        return given
    return fractal.to_matrix(given, [int(d) for d in declared])


def _write(results: Sequence[torch.Tensor], taken: Sequence[tuple[int, int, int, list[int]]]) -> None:
    """Put results into the caller's buffers. All were computed before: a buffer may be an input's memory."""
    for index, (result, (address, size, _, _)) in enumerate(zip(results, taken, strict=True)):
        needed = result.numel() * result.element_size()
        if needed > size:
            raise CannRefusal(MODEL_FAILED, f"output {index} needs {needed} bytes, its buffer has {size}")
        contiguous(address, result.dtype, list(result.shape)).copy_(result)


def store(data: bytes, words: list[int]) -> int:
    """Put the results of the last kept run into the buffers that the caller has allocated since."""
    results = _held.pop(words[0])
    taken, _ = _tensors(words, 2, words[1])
    _write(results, taken)
    return 0
