"""Options of GE against the graph that they are sent with: pairs of indices, names, exclusions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ge_graph.errors import GraphError
from ge_graph.ir import Graph

_PAIRS: Final = "ge.exec.outputReuseInputMemIndexes"
_LISTS: Final = {"ge.exec.inputReuseMemIndexes": "inputs", "ge.exec.outputReuseMemIndexes": "outputs"}
_HINTS: Final = ("ge.inputHintShape", "ge.inputHintValue")
_NUMBER: Final = re.compile("[0-9]{1,10}")
_INT32_MAX: Final = 2**31 - 1
_MIN_GEARS: Final = 2


def check_options(graph: Graph, options: Mapping[str, str]) -> None:
    """Refuse options that do not fit the graph.

    Args:
        graph: The graph that they are sent with.
        options: GE keys and texts; keys that say nothing about the graph pass.

    Raises:
        GraphError: GE3070 listing all of them, each with the code that GE answers with.
    """
    refused = list(problems(graph, options))
    if refused:
        raise GraphError(
            "GE3070",
            f"{len(refused)} options do not fit graph '{graph.name}': " + "; ".join(refused),
            next="correct the options, or leave them out",
        )


def problems(graph: Graph, options: Mapping[str, str]) -> Iterator[str]:
    """What is wrong, one text an option."""
    inputs, outputs = len(graph.inputs), len(graph.outputs)
    if "" in options:
        yield "an option has an empty key (E10059)"
    yield from (f"{_PAIRS}: {what} (E19999)" for what in _pairs(options.get(_PAIRS, ""), inputs, outputs))
    for key, side in _LISTS.items():
        limit = inputs if side == "inputs" else outputs
        yield from (f"{key}: {what} (E19999)" for what in _indices(options.get(key, ""), limit, side))
    for key in _HINTS:
        for part in filter(None, options.get(key, "").split(";")):
            at = part.partition(":")[0]
            if not _NUMBER.fullmatch(at) or int(at) >= inputs:
                yield f"{key}: index {at!r} of {inputs} inputs (E19999)"
    if options.get("ge.exec.graphIOMemAllocMode") == "ByGE" and any(n.op == "RefData" for n in graph.nodes):
        yield "ge.exec.graphIOMemAllocMode=ByGE: the graph writes its inputs, RefData (E13025)"
    if options.get("ge.enableSingleStream") == "true":
        if any("_user_stream_label" in n.attrs for n in graph.nodes) and not _dynamic(graph):
            yield "ge.enableSingleStream=true: the graph switches streams (E10055)"
        if options.get("ge.autoMultistreamParallelMode"):
            yield "ge.enableSingleStream=true and ge.autoMultistreamParallelMode (E10056)"
    yield from _gears(graph, options)


def _dynamic(graph: Graph) -> bool:
    shapes = (n.outputs[0].known_shape for n in graph.inputs if n.outputs)
    return any(s is None or any(not isinstance(d, int) or d < 0 for d in s) for s in shapes)


def _pairs(text: str, inputs: int, outputs: int) -> Iterator[str]:
    for pair in filter(None, text.split("|")):
        parts = pair.split(",")
        if len(parts) != 2 or not all(map(_NUMBER.fullmatch, parts)):
            yield f"{pair!r} is not a pair input,output and would be skipped"
        elif int(parts[0]) >= inputs or int(parts[1]) >= outputs:
            yield f"pair {pair!r} of {inputs} inputs and {outputs} outputs"


def _indices(text: str, limit: int, side: str) -> Iterator[str]:
    if not text:
        return
    parts = text.split(",")
    if not all(_NUMBER.fullmatch(p) and int(p) <= _INT32_MAX for p in parts):
        yield f"{text!r} is not a list of decimal numbers"
        return
    if len(set(map(int, parts))) != len(parts):
        yield f"{text!r} names an index twice"
    beyond = [p for p in parts if int(p) >= limit]
    if beyond:
        yield f"index {beyond[0]} of {limit} {side} would be ignored"


def _gears(graph: Graph, options: Mapping[str, str]) -> Iterator[str]:
    """``ge.inputShape`` names all inputs with -1 for what varies; ``ge.dynamicDims`` has a number for each -1."""
    gears = options.get("ge.dynamicDims", "")
    if not gears:
        return
    shapes = {}
    for part in filter(None, options.get("ge.inputShape", "").split(";")):
        name, _, dims = part.rpartition(":")
        shapes[name] = dims.split(",") if dims else []
    names = {n.name: n for n in graph.inputs}
    if set(shapes) != set(names):
        odd = sorted(set(shapes) ^ set(names))
        yield f"ge.inputShape: it must name the {len(names)} inputs, these differ: {', '.join(odd)} (E10001)"
    for name in shapes.keys() & names.keys():
        known = names[name].outputs[0].known_shape
        fixed = known is not None and len(known) == len(shapes[name])
        if (
            known is not None
            and not fixed
            or fixed
            and any(
                isinstance(d, int) and d >= 0 and text not in (str(d), "-1")
                for d, text in zip(known or (), shapes[name])
            )
        ):
            yield f"ge.inputShape: {name}:{','.join(shapes[name])}, the input is {list(known or ())} (E10001)"
    free = sum(dims.count("-1") for dims in shapes.values())
    rows = [row.split(",") for row in gears.split(";")]
    if len(rows) < _MIN_GEARS or any(len(row) != free or not all(map(_NUMBER.fullmatch, row)) for row in rows):
        yield f"ge.dynamicDims: {gears!r} must be rows of {free} numbers, one a -1 of ge.inputShape (E10001)"
