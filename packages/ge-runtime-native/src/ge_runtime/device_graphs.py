"""What every engine for a device does with a graph: the rules of its inputs, limits of the chip, data in files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np

from ge_graph.attrs import Str
from ge_graph.dtypes import BY_NUMPY_NAME, DataType
from ge_graph.ir import FileLiteral, Graph, Node
from ge_graph.serde import ExternalData
from ge_runtime import errors

MAX_MODEL_BYTES: Final = 2147483647
"""GE reads no more from memory."""
ALWAYS: Final = {"ge.jit_compile": "2"}
"""GE takes unknown sizes only with this: operators are picked by whether sizes are known."""

_CORES: Final = {"_op_aicore_num": "cube", "_op_vectorcore_num": "vector"}
_EXTERNAL_BYTES: Final = 1 << 20


_handed: Final[list[Graph]] = []  # GE compiles on threads of its own, so this is no matter of the caller's thread


@contextlib.contextmanager
def handing_over(graph: Graph | None) -> Iterator[None]:
    """While this lasts, the graph is given to GE; ``handed_over`` finds it."""
    if graph is None:
        yield
        return
    _handed.append(graph)
    try:
        yield
    finally:
        _handed.remove(graph)


def handed_over(name: str) -> Graph | None:
    """The graph of that name that is given to GE now: what its bytes do not say of its nodes, such as their lines."""
    return next((graph for graph in reversed(_handed) if graph.name == name), None)


class DataRule:
    """What a Data node accepts.

    Attributes:
        index: Position.
        name: Of the node.
        dtype: Element type.
        shape: Declared sizes, None if even the rank is unknown.
    """

    def __init__(self, index: int, node: Node) -> None:
        edge = node.outputs[0]
        self.index, self.name, self.dtype, self.shape = index, node.name, edge.dtype, edge.known_shape

    def check(self, dtype: DataType | None, shape: tuple[int, ...]) -> None:
        """Compare with the declaration.

        Errors: EngineError GE4004 if type, rank or a known size is another.
        """
        declared = self.shape
        fits = declared is None or (
            len(declared) == len(shape)
            and not any(isinstance(d, int) and d >= 0 and d != s for d, s in zip(declared, shape))
        )
        if dtype is not self.dtype or not fits:
            got = f"{'of no GE type' if dtype is None else dtype.short}{list(shape)}"
            wanted = f"{self.dtype.short}[{'...' if declared is None else ', '.join(map(str, declared))}]"
            raise errors.bad_input(f"input {self.index} ({self.name}) is {got}, the graph declares {wanted}")

    def check_array(self, value: np.ndarray[Any, Any]) -> None:
        """Compare an array with the declaration; bfloat16 comes as an extension type of that name.

        Errors: EngineError GE4004.
        """
        name = value.dtype.newbyteorder("=").name
        self.check(DataType.DT_BF16 if name == "bfloat16" else BY_NUMPY_NAME.get(name), tuple(value.shape))


class WholeGraph:
    """A graph that GE runs as a whole, so that nothing can be shown of its inside."""

    source = ""
    engine = ""

    def run_traced(
        self, inputs: Sequence[Any], on_node: Callable[[Node, Sequence[Any], Sequence[Any]], None]
    ) -> list[Any]:
        """Refuse.

        Errors: EngineError GE4025, always.
        """
        raise errors.not_traceable(self.engine)


_READ: Final = tuple(map(attrgetter, ("dtype", "shape", "is_cpu")))


class SameInputs:
    """Whether inputs are tensors on the device that look as those of an earlier run did, at little cost for each.

    Only addresses may differ then, so that nothing has to be checked or described anew.
    """

    def __init__(self, inputs: Sequence[Any]) -> None:
        self._seen = [list(map(read, inputs)) for read in _READ]

    def match(self, inputs: Sequence[Any]) -> bool:
        """Whether all are dense tensors of the same types, sizes and place."""
        try:
            return all(list(map(read, inputs)) == seen for read, seen in zip(_READ, self._seen)) and all(
                value.is_contiguous() for value in inputs
            )
        except AttributeError:  # one is not a tensor
            return False


def check_cores(graph: Graph, options: Mapping[str, str], cube: int, vector: int, chip: str) -> None:
    """Compare core numbers that scopes and options ask for with what the chip has; -1 is not known.

    GE refuses a graph for this when it compiles, naming neither the line nor the limit.

    Errors: EngineError GE4023 naming every place.
    """
    limits = {"cube": cube, "vector": vector}
    wrong = []
    for key, given in zip(limits, options.get("ge.aicoreNum", "").split("|")):
        if given.isdigit() and 0 <= limits[key] < int(given):
            wrong.append(f"ge.aicoreNum asks for {given} {key} cores, the chip has {limits[key]}")
    for node in graph.nodes:
        for attribute, key in _CORES.items():
            given = str(node.attr(attribute)) if attribute in node.attrs else ""
            if given.isdigit() and 0 <= limits[key] < int(given):
                wrong.append(f"{given} {key} cores, the chip has {limits[key]}: {errors.origin(node)}")
    if wrong:
        raise errors.too_many_cores(chip, wrong)


def collectives(graph: Graph) -> list[Node]:
    """Nodes that name a process group, those of branches and loop bodies too."""
    nodes = [n for n in graph.nodes if n.op.startswith("Hcom") and "group" in n.attrs]
    return nodes + [n for node in graph.nodes for inner in node.subgraphs.values() for n in collectives(inner)]


@contextlib.contextmanager
def renamed_groups(nodes: Sequence[Node], names: Mapping[str, str]) -> Iterator[None]:
    """While this lasts collectives name HCCL's communicators, as GE wants it, instead of torch's process groups."""
    kept = [(node, node.attrs["group"]) for node in nodes]
    try:
        for node, _ in kept:
            node.attrs["group"] = Str(names[str(node.attr("group"))])
        yield
    finally:
        for node, attr in kept:
            node.attrs["group"] = attr


def external_data(node: Node, dtype: DataType, shape: tuple[int, ...], data: np.ndarray[Any, Any]) -> Any:
    """Where a constant lies in a file, by its absolute path: GE reads it from there instead of from the message.

    Only what was mapped from a file, and is large enough to matter.
    """
    value = node.attr("value")
    if not isinstance(value, FileLiteral) or data.nbytes < _EXTERNAL_BYTES:
        return None
    return ExternalData(value.path, value.offset, data.nbytes)


def frozen_flags(text: str, count: int) -> list[bool]:
    """Which inputs keep their address, from ``frozenInput``; empty if none does.

    Errors: EngineError GE4007 if it is not one 0 or 1 an input.
    """
    flags = text.split(",") if text else []
    if flags and (len(flags) != count or not set(flags) <= {"0", "1"}):
        raise errors.bad_option("frozenInput", text, f"{count} times 0 or 1, joined by commas")
    return [f == "1" for f in flags] if "1" in flags else []


def reuse_pairs(text: str) -> dict[int, int]:
    """Result to the input that it updates, from ``ge.exec.outputReuseInputMemIndexes`` (``input,output|...``).

    Errors: EngineError GE4007 if it is malformed, which GE would skip in silence.
    """
    pairs = {}
    for pair in filter(None, text.split("|")):
        numbers = pair.split(",")
        if len(numbers) != 2 or not all(n.isdigit() for n in numbers):
            raise errors.bad_option("ge.exec.outputReuseInputMemIndexes", text, "pairs input,output joined by |")
        pairs[int(numbers[1])] = int(numbers[0])
    return pairs


def late_options(in_force: Mapping[str, str], options: Mapping[str, str]) -> list[str]:
    """Options of the process or the session that come too late to count, each with what counts instead."""
    return sorted(
        f"{key}={value} (in force: {in_force.get(key, 'the default of GE')})"
        for key, value in options.items()
        if in_force.get(key) != value
    )
