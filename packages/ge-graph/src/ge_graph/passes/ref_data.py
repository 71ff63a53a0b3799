"""Graph inputs that the graph writes, instead of copies that the caller writes back."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ge_graph.attrs import Attr, Kind
from ge_graph.errors import GraphError
from ge_graph.ir import Graph, Node, Tensor
from ge_graph.passes.base import Pass
from ge_graph.passes.effects import Effects
from ge_graph.ports import PLACEHOLDERS

logger = logging.getLogger(__name__)


class WriteInputsInPlace(Pass):
    """Turn results that the caller would copy into inputs into Assign nodes, and take them off the outputs.

    Args:
        pairs: Index of the graph input and position among the graph's outputs, one pair a written input. Outputs given
            here are removed; the others keep their order.

    Every reader of the old value runs before the Assign: control edges say so. An output that is the old value itself
    is copied first.
    """

    name = "write_inputs_in_place"
    reason = "the device updates a KV cache where it lies instead of copying it out and back"
    place = "before replace_data_with_ref_data, after conversion; runs once, the pairs name outputs of the graph given"

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._pairs = sorted(pairs)
        self._done = False

    def rewrite(self, graph: Graph) -> list[str]:
        if not self._pairs or self._done:
            return []
        targets = _targets(graph, self._pairs)
        dropped = {output for _, output in self._pairs}
        assigned = [(targets[index], graph.outputs[output]) for index, output in self._pairs]
        graph.outputs = [t for i, t in enumerate(graph.outputs) if i not in dropped]
        effects = Effects(graph)
        # what an in-place operator has written already only has to stay when it is not an output any more
        written = [value.node for target, value in assigned if effects.variable(value) is target]
        graph.output_control += [n for n in dict.fromkeys(written) if n.op not in PLACEHOLDERS]
        assigned = [(target, value) for target, value in assigned if effects.variable(value) is not target]
        _keep_old_values(graph, effects, assigned)
        readers = _readers(graph, effects, {target for target, _ in assigned})
        for target, value in assigned:
            _assign(graph, target, value, readers[target])
        self._done = True
        return [f"{len(self._pairs)} inputs written in place"]


def _targets(graph: Graph, pairs: Sequence[tuple[int, int]]) -> dict[int, Tensor]:
    inputs = {n.attr("index"): n.outputs[0] for n in graph.inputs}
    for index, output in pairs:
        if index not in inputs or not 0 <= output < len(graph.outputs):
            raise GraphError(
                "GE3052",
                f"no pair of input {index} and output {output} in graph '{graph.name}' with "
                f"{len(inputs)} inputs and {len(graph.outputs)} outputs",
                next="name an input by its index attribute and an output by its position",
            )
        if inputs[index].dtype is not graph.outputs[output].dtype:
            raise GraphError(
                "GE3052",
                f"input {index} is {inputs[index]}, output {output} is {graph.outputs[output]}",
                next="cast the result to the type of the input first",
            )
    if len({i for i, _ in pairs}) != len(pairs):
        raise GraphError("GE3052", f"an input is written twice: {list(pairs)}")
    return {index: inputs[index] for index, _ in pairs}


def _keep_old_values(graph: Graph, effects: Effects, assigned: list[tuple[Tensor, Tensor]]) -> None:
    """Copy what may be the memory of an input that is going to be written: outputs, and values for other inputs."""
    targets = {target for target, _ in assigned}
    graph.outputs = [_copy(graph, t) if effects.root(t) in targets else t for t in graph.outputs]
    for position, (target, value) in enumerate(assigned):
        if effects.root(value) in targets:
            assigned[position] = (target, _copy(graph, value))


def _readers(graph: Graph, effects: Effects, targets: set[Tensor]) -> dict[Tensor, list[Node]]:
    """Nodes that may read the memory of each input, in order."""
    readers: dict[Tensor, list[Node]] = {target: [] for target in targets}
    for node in graph.nodes:
        for root in {effects.root(t) for t in node.operands()} & targets:
            readers[root].append(node)
    return readers


def _assign(graph: Graph, target: Tensor, value: Tensor, readers: list[Node]) -> None:
    """Append ``Assign(target, value)`` after all that reads the old value."""
    attrs = {"validate_shape": Attr(Kind.BOOL, True), "use_locking": Attr(Kind.BOOL, False)}
    node = graph.add("Assign", [target, value], attrs, [(target.dtype, target.known_shape)])
    node.provenance = value.node.provenance
    node.control = [n for n in readers if value.node is not n]
    graph.output_control.append(node)


def _copy(graph: Graph, tensor: Tensor) -> Tensor:
    node = graph.add("TensorMove", [tensor], {}, [(tensor.dtype, tensor.known_shape)])
    node.provenance = tensor.node.provenance
    node.outputs[0].format = tensor.format
    return node.outputs[0]


class ReplaceDataWithRefData(Pass):
    """Make each Data that an in-place operator writes a RefData, so that GE lets the write reach the caller."""

    name = "replace_data_with_ref_data"
    reason = "GE treats Data as read-only; only RefData is written through"
    place = "after everything that adds or removes in-place operators"

    def rewrite(self, graph: Graph) -> list[str]:
        written = [n for n in Effects(graph).written_inputs() if n.op == "Data"]
        for node in sorted(written, key=_index):
            node.op = "RefData"
            logger.debug("Replace %s:RefData with %s:Data in graph %s", node.name, node.name, graph.name)
        return [f"{len(written)} Data replaced with RefData"] if written else []


def _index(node: Node) -> int:
    return int(node.attr("index", 0))
