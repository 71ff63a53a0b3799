"""Attributes with a leading underscore that GE reads: their kinds, their values, and those it keeps for itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ge_graph.attrs import Attr, Kind
from ge_graph.ir import Node
from ge_graph.rules.base import Scope
from ge_graph.schema import OpSchema

# A value of another kind is as good as none: GE takes its default without a word.
KINDS: Final = {
    "_user_stream_label": Kind.STRING,
    "_enable_inner_parallel": Kind.BOOL,
    "_user_stream_priority": Kind.STRING,
    "_stream_label": Kind.STRING,
    "_parallel_group": Kind.STRING,
    "_op_aicore_num": Kind.STRING,
    "_op_vectorcore_num": Kind.STRING,
    "_super_kernel_scope": Kind.STRING,
    "_super_kernel_options": Kind.STRING,
    "_op_exec_never_timeout": Kind.BOOL,
    "_keep_dtype": Kind.INT,
    "_is_blocking_op": Kind.BOOL,
    "_recompute": Kind.BOOL,
    "_out_shape_locked": Kind.BOOL,
    "_preset_output_shapes": Kind.LIST_LIST_INT,
    "_inference_rule": Kind.STRING,
    "_parent_node_index": Kind.INT,
    "_force_unknown_shape": Kind.BOOL,
}
_OWN_OF_NODE: Final = {"_inference_rule_binary": "GE makes it from _inference_rule and takes it away before compiling"}
_OWN_OF_GRAPH: Final = {
    "_graph_has_been_added": "with it GE refuses the graph as one that it has (E19999)",
    "_session_graph_id": "GE numbers graphs itself (silent)",
    "_graph_unknown_flag": "GE finds out itself (silent)",
    "_dynamic_shape_partitioned": "with it GE does not split dynamic graphs (silent)",
}
_CORES: Final = re.compile("0|[1-9][0-9]*")
_STRICT: Final = ("bypass", "abort")


def node_attributes(node: Node, op: OpSchema) -> Iterator[str]:
    for name, attr in node.attrs.items():
        if name[0:1] != "_" or not isinstance(attr, Attr):
            continue
        kind = KINDS.get(name)
        if kind is not None and attr.kind is not kind:
            yield f"attribute '{name}' is {attr.kind.value}; GE reads it as {kind.value} and ignores it so (silent)"
        elif name in _OWN_OF_NODE:
            yield f"has attribute '{name}': {_OWN_OF_NODE[name]}"
        elif name in ("_op_aicore_num", "_op_vectorcore_num"):
            if not _CORES.fullmatch(_text(attr)):
                yield f"attribute '{name}' is {attr.value!r}; GE wants a decimal number of cores (E10001)"
        elif name == "_super_kernel_options":
            yield from super_kernel_problems(_text(attr))


def super_kernel_problems(text: str) -> list[str]:
    """What GE does not take in the options of a super kernel."""
    problems = []
    for pair in text.split(":"):
        key, _, value = pair.partition("=")
        if key.strip() == "strict-scope-check" and value.strip() not in _STRICT:
            problems.append(f"super kernel option strict-scope-check is {value!r}; GE takes bypass and abort (E19999)")
    return problems


def _text(attr: Attr) -> str:
    value = attr.value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def graph_attributes(scope: Scope) -> Iterator[tuple[Node | None, str]]:
    for name in scope.graph.attrs:
        if name in _OWN_OF_GRAPH:
            yield None, f"the graph has attribute '{name}': {_OWN_OF_GRAPH[name]}"
