"""What each field of a node is to those who write, show and compare graphs: one row a field.

A new field of ``Node`` needs a row, and a test then asks every writer, reader and printer whether it does what the row
says: a field that the bytes leave out cannot be forgotten in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ge_graph.ir import Node


@dataclass(frozen=True, slots=True)
class NodeField:
    """One field.

    Attributes:
        name: As in ``Node``.
        shown: The forms in which somebody who reads sees a change of it: ``text`` (SSA), ``txt``, ``pbtxt``, ``py``.
        written: Whether it is in the bytes, and comes back from them and from the ``py`` form.
        value: What is compared: equal for equal fields of two graphs. None for attributes and graphs in nodes, which
            are compared part by part, and for what is no content.
    """

    name: str
    shown: frozenset[str] = frozenset()
    written: bool = True
    value: Callable[[Node], Any] | None = None


def _ports(node: Node) -> list[Any]:
    return [[t.name for t in e] if isinstance(e, tuple) else None if e is None else e.name for e in node.inputs]


def _outputs(node: Node) -> list[Any]:
    return [(t.index, t.dtype.name, t.known_shape, t.format.name) for t in node.outputs]


_ALL: Final = frozenset({"text", "txt", "pbtxt", "py"})

NODE_FIELDS: Final = (
    NodeField("graph", written=False),  # where it is, not what it is
    NodeField("name", _ALL, value=lambda n: n.name),
    NodeField("op", _ALL, value=lambda n: n.op),
    NodeField("inputs", _ALL, value=_ports),
    NodeField("attrs", _ALL),
    NodeField("outputs", _ALL, value=_outputs),
    NodeField("output_counts", frozenset({"txt", "py"}), value=lambda n: n.output_counts),
    NodeField("control", _ALL, value=lambda n: [c.name for c in n.control]),
    NodeField("provenance", _ALL, value=lambda n: n.provenance and n.provenance.texts()),
    NodeField("subgraphs", _ALL),
)
"""The fields, in the order of ``Node``."""
