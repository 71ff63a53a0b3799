"""What a node, a graph, an attribute or a subgraph slot may be called, and the repair of what others called theirs.

GE itself looks at a name only where it becomes part of something else: a file (weights outside the graph, dumps), a
symbol of a kernel, a line of a log, an option such as ``--input_shape``. A name that is good everywhere

* of a node or a graph has 1 to 1,024 bytes of UTF-8, all of them printable on one line, and no part ``.`` or ``..``
  between slashes;
* of an attribute, a slot or an operator type is an ASCII identifier of at most 256 characters, in which ``.``, ``:``,
  ``/`` and ``-`` may stand after the first one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ge_graph import escape
from ge_graph.ir import Graph, Node

NAME_BYTES: Final = 1024
SYMBOL_LENGTH: Final = 256

_SYMBOL: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_.:/-]{{0,{SYMBOL_LENGTH - 1}}}")
_PLAIN: Final = re.compile(r"[\w.+-]{1,256}", re.ASCII)
_SHOWN: Final = 120


def problem(name: str) -> str:
    """Why a node or a graph cannot have this name, empty if it can."""
    if _PLAIN.fullmatch(name) and name not in (".", ".."):  # nearly all names
        return ""
    if not name:
        return "is empty"
    if escape.line(name, len(name)) != name:
        return "has characters that do not print on one line"
    if len(name.encode()) > NAME_BYTES:
        return f"has {len(name.encode())} bytes; at most {NAME_BYTES} fit"
    if any(part in (".", "..") for part in re.split(r"[/\\]", name)):
        return "has a part that is '.' or '..', which leads elsewhere as a file name"
    return ""


def symbol_problem(name: str) -> str:
    """Why an attribute, a slot or an operator type cannot have this name, empty if it can."""
    if _SYMBOL.fullmatch(name):
        return ""
    return f"is not an identifier of at most {SYMBOL_LENGTH} ASCII characters"


def shown(name: str) -> str:
    """A name in a message: one line, not long."""
    return escape.line(name, _SHOWN)


def broken(graph: Graph) -> Iterator[tuple[Node | None, str]]:
    """Rule GE3039 over one graph, not its subgraphs: the node, or None for the graph, and what is wrong."""
    if graph.name and (why := problem(graph.name)):  # no name at all is given one when it is written
        yield None, f"the graph's name '{shown(graph.name)}' {why}"
    seen: set[str] = set()
    for name in graph.attrs:
        if why := symbol_problem(name):
            yield None, f"the graph's attribute '{shown(name)}' {why}"
    for node in graph.nodes:
        if node.name and (why := problem(node.name)):  # an empty one is the business of GE3029
            yield node, f"the name '{shown(node.name)}' {why}"
        for kind, named in (("attribute", node.attrs), ("subgraph slot", node.subgraphs)):
            for name in named:
                if name not in seen and (why := symbol_problem(name)):
                    yield node, f"{kind} '{shown(name)}' {why}"
                seen.add(name)


def repair(graph: Graph) -> list[str]:
    """Give good names to what has none, in a graph and its subgraphs; attributes and slots without one are renamed too.

    Returns:
        One line per change, empty if all names were good.
    """
    changes: list[str] = []
    waiting = [graph]
    for part in waiting:
        if part.name and problem(part.name):
            changes.append(f"graph '{shown(part.name)}' is now '{_good(part.name)}'")
            part.name = _good(part.name)
        part.attrs = _symbols(part.attrs, "graph", changes)
        for node in part.nodes:
            if problem(node.name):
                old, wanted = node.name, _good(node.name)
                part.rename(node, wanted if wanted not in part else part.unique_name(wanted))
                changes.append(f"{shown(node.op)} '{shown(old)}' is now '{node.name}'")
            node.attrs = _symbols(node.attrs, node.name, changes)
            node.subgraphs = _symbols(node.subgraphs, node.name, changes)
            waiting += node.subgraphs.values()
    return changes


def _good(name: str) -> str:
    return escape.file_name(name)


def _symbols(entries: dict, owner: str, changes: list[str]) -> dict:  # type: ignore[type-arg]
    if not any(symbol_problem(name) for name in entries):
        return entries
    result = {}
    for name, value in entries.items():
        if symbol_problem(name):
            good = re.sub(r"[^A-Za-z0-9_]", "_", escape.file_name(name))
            changes.append(f"'{shown(name)}' of {owner} is now '_{good}'")
            name = f"_{good}"
        result[name] = value
    return result
