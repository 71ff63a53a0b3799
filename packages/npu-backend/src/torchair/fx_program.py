"""An ATen graph as a straight-line Python program that people can read: ``output_code.py`` of the debug record.

One line an operator, with the user's line as a comment; a value is deleted behind its last reader, so memory is freed
as early as in eager. The text is what runs.
"""

from __future__ import annotations

import builtins
import keyword
import operator
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import torch

from ge_converters.base.provenance import user_frame

Node: TypeAlias = torch.fx.Node
_MODULES: Final = {"torch": torch, "operator": operator}


class _Writer:
    """Writes one program; what has no text travels in ``names``."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.gm = gm
        self.names: dict[str, Any] = dict(_MODULES)
        self.prelude: dict[str, str] = {}
        self.body: list[str] = []
        self._functions: dict[Any, str] = {}
        self._held: dict[int, str] = {}
        self._taken = {n.name for n in gm.graph.nodes} | set(dir(builtins)) | set(_MODULES) | {"args", "call"}

    def write(self) -> str:
        """The whole text."""
        nodes = list(self.gm.graph.nodes)
        dead = _last_reads(nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        if inputs:
            self.body.append(f"{', '.join(n.name for n in inputs)}{',' if len(inputs) == 1 else ''} = args")
        self.body.append("args.clear()")
        self._delete([n for n in inputs if not n.users])
        where = ""
        for node in nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                self.body.append(f"return {self.text(node.args[0])}")
                break
            found = user_frame(node)[0] or ""
            if found and found != where:
                self.body.append("# " + found.replace("\n", " ").replace("\r", " "))
            where = found or where
            self.body.append(self._line(node))
            self._delete(dead.get(node, []))
        lines = [*self.prelude.values(), "", "", "def call(args):", *(f"    {line}" for line in self.body)]
        return "import operator\n\nimport torch\n\n" + "\n".join(lines) + "\n"

    def _delete(self, nodes: list[Node]) -> None:
        if nodes:
            self.body.append(f"del {', '.join(n.name for n in nodes)}")

    def _line(self, node: Node) -> str:
        left = f"{node.name} = " if node.users else ""
        if node.op == "get_attr":
            return f"{left}{self._hold(_attribute(self.gm, str(node.target)), str(node.target).replace('.', '_'))}"
        if node.op != "call_function":
            raise TypeError(f"{node.op} nodes do not occur in ATen graphs")
        if node.target is operator.getitem:
            return f"{left}{self.text(node.args[0])}[{self.text(node.args[1])}]"
        args = [self.text(a) for a in node.args] + [f"{k}={self.text(v)}" for k, v in node.kwargs.items()]
        return f"{left}{self._function(node.target)}({', '.join(args)})"

    def _function(self, target: Any) -> str:
        known = self._functions.get(target)
        if known is not None:
            return known
        if isinstance(target, torch._ops.OpOverload):
            space, packet = target._schema.name.split("::")
            parts = (space, packet, target._overloadname)
            name = self._fresh("_".join(parts[1:]) if space == "aten" else "_".join(parts))
            if all(_plain(p) for p in parts):
                self.prelude[name] = f"{name} = torch.ops.{'.'.join(parts)}"
            else:
                self.names[name] = target
        else:
            name = self._fresh(str(getattr(target, "__name__", "function")))
            self.names[name] = target
            self.prelude[name] = f"# {name}: {str(target)!r}"
        self._functions[target] = name
        return name

    def _fresh(self, wanted: str) -> str:
        base = wanted if _plain(wanted) else "value"
        name, count = base, 1
        while name in self._taken:
            name, count = f"{base}_{count}", count + 1
        self._taken.add(name)
        return name

    def _hold(self, value: Any, wanted: str) -> str:
        """The name under which a value without text is known."""
        name = self._held.get(id(value))
        if name is None:
            name = self._held[id(value)] = self._fresh(wanted)
            self.names[name] = value
            shown = f"{type(value).__name__}"
            if isinstance(value, torch.Tensor):
                shown = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            self.prelude[name] = f"# {name}: {shown}"
        return name

    def text(self, value: Any) -> str:
        """A value as source text."""
        if isinstance(value, torch.fx.Node):
            return str(value.name)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._hold(value, "named_tuple")
        if isinstance(value, (list, tuple)):
            inner = ", ".join(map(self.text, value))
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        if isinstance(value, dict) and all(isinstance(k, str) for k in value):
            return "{" + ", ".join(f"{k!r}: {self.text(v)}" for k, v in value.items()) + "}"
        if value is None or value is Ellipsis or type(value) in (bool, int, str):
            return repr(value)
        if type(value) is float:
            return repr(value) if value == value and abs(value) != float("inf") else f"float({str(value)!r})"
        if isinstance(value, slice):
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        return self._hold(value, "constant")


def _plain(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _attribute(gm: torch.fx.GraphModule, target: str) -> Any:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _last_reads(nodes: list[Node]) -> dict[Node, list[Node]]:
    """For each node the values that nobody reads behind it; a value that nobody reads at all has no name."""
    dead: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in reversed(nodes):
        for value in node.all_input_nodes:
            if value not in seen:
                seen.add(value)
                dead.setdefault(node, []).append(value)
    return dead


def write_program(gm: torch.fx.GraphModule, title: str) -> tuple[Callable[[list[Any]], Any], str]:
    """The program of a graph.

    Args:
        gm: ATen graph; its nodes may write memory.
        title: First line, a comment.

    Returns:
        A function of one list of arguments, which it empties, and its text.
    """
    writer = _Writer(gm)
    source = f"# {title}\n{writer.write()}"
    names = dict(writer.names)
    exec(compile(source, f"<torchair {title}>", "exec"), names)  # the text above, from a graph, nothing foreign
    call: Callable[[list[Any]], Any] = names["call"]
    return call, source
