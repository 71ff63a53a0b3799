"""An ATen graph as a straight-line Python program that people can read: ``output_code.py`` of the debug record.

One statement an operator, with the user's line as a comment; a value is deleted after its last reader, so memory is
freed as early as in eager. What runs is built from trees (``ge_graph.program``); the text says the same and is for
people, who can run it too as long as no value lacks a text.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import torch

from ge_converters.base.provenance import user_frame
from ge_graph import escape
from ge_graph import program as build
from ge_graph.errors import EngineError, GeError, GraphError

FxNode: TypeAlias = torch.fx.Node
_RESERVED: Final = frozenset({*dir(builtins), *keyword.kwlist, "torch", "operator", "args", "call"})


LINE: Final = "user_line"
"""Key of ``Node.meta``: the user's line as text, for graphs that come from a file and have no traces."""


class HasGraph(Protocol):
    """A graph, and by their names the tensors that it reads."""

    graph: torch.fx.Graph


def line_of(node: FxNode) -> str:
    """The user's line that a node stems from, ``model.py:41 in forward``; empty if none is known."""
    return str(node.meta.get(LINE) or user_frame(node)[0] or "")


class _Writer:
    def __init__(self, gm: HasGraph) -> None:
        self.gm = gm
        self.names = build.Names()
        for known in (slice, dict):
            self.names.bind(known, known.__name__)
        self.names.reserve(_RESERVED)
        self.held: list[str] = []
        self.lines: list[tuple[ast.stmt, str]] = []
        self.made_of: dict[int, tuple[str, str]] = {}  # a statement's line to its operator and the user's line
        self.variable: dict[FxNode, str] = {}

    def build(self) -> build.Program:
        nodes = list(self.gm.graph.nodes)
        dead = last_reads(nodes)
        for number, node in enumerate(nodes):
            self.variable[node] = self.names.show(f"t{number}", _word(node.name))
        inputs = [n for n in nodes if n.op == "placeholder"]
        args = build.name("args")
        if inputs:
            self._add(build.assign([self.variable[n] for n in inputs], args))
        self._add(build.do(build.call(build.attribute(args, "clear"), ())))
        self._delete([n for n in inputs if not n.users])
        where = ""
        for node in nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                self._add(build.give(self.tree(node.args[0])))
                break
            location = line_of(node)
            self.made_of[len(self.lines) + 1] = (str(node.target), location)
            self._statement(node, location if location != where else "")
            where = location or where
            self._delete(dead.get(node, []))
        return build.Program("call", ["args"], self.lines, self.names)

    def _add(self, statement: ast.stmt, comment: str = "") -> None:
        self.lines.append((statement, comment))

    def _delete(self, nodes: list[FxNode]) -> None:
        if nodes:
            self._add(build.drop([self.variable[n] for n in nodes]))

    def _statement(self, node: FxNode, comment: str) -> None:
        value = self._value(node)
        self._add(build.assign(self.variable[node], value) if node.users else build.do(value), comment)

    def _value(self, node: FxNode) -> ast.expr:
        if node.op == "get_attr":
            return self._hold(attribute(self.gm, str(node.target)), str(node.target).replace(".", "_"))
        if node.op != "call_function":
            raise TypeError(f"{node.op} nodes do not occur in ATen graphs")
        if node.target is operator.getitem:
            return build.item(self.tree(node.args[0]), self.tree(node.args[1]))
        args = [self.tree(a) for a in node.args]
        if any(not _plain_keyword(k) for k in node.kwargs):
            named = _Named(node.target, tuple(node.kwargs))
            function = self._hold(named, named.__name__, f"{node.target} with keywords {', '.join(named.keywords)}")
            return build.call(function, [*args, *map(self.tree, node.kwargs.values())])
        return build.call(self._function(node.target), args, {k: self.tree(v) for k, v in node.kwargs.items()})

    def _function(self, target: Any) -> ast.expr:
        if isinstance(target, torch._ops.OpOverload):
            parts = (*target._schema.name.split("::"), target._overloadname)
            if all(map(_word, parts)):
                return build.name(self.names.bind(target, f"torch.ops.{'.'.join(parts)}"))
        return self._hold(target, str(getattr(target, "__name__", "function")), str(target))

    def _hold(self, value: Any, wanted: str, shown: str = "") -> ast.expr:
        """A value that has no text: the prelude says what it is."""
        known = len(self.names.objects)
        name = self.names.bind(value, _word(wanted) or "value", "k")
        if len(self.names.objects) > known:
            kind = shown or type(value).__name__
            if isinstance(value, torch.Tensor):
                kind = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            self.held.append(f"# {self.names.shown[name]}: {escape.line(kind)}")
        return build.name(name)

    def tree(self, value: Any) -> ast.expr:
        if isinstance(value, torch.fx.Node):
            return build.name(self.variable[value])
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._hold(value, "named_tuple")
        if isinstance(value, (list, tuple)):
            return build.sequence([self.tree(v) for v in value], as_list=isinstance(value, list))
        if isinstance(value, dict):
            keys = [self.tree(k) for k in value]
            pairs = [build.sequence(pair, as_list=False) for pair in zip(keys, map(self.tree, value.values()))]
            return build.call(build.name(self.names.bind(dict, "dict")), [build.sequence(pairs, as_list=True)])
        if value is None or type(value) in (bool, int):
            return build.constant(value)
        if isinstance(value, slice):
            parts = [self.tree(v) for v in (value.start, value.stop, value.step)]
            return build.call(build.name(self.names.bind(slice, "slice")), parts)
        text = _text(value)
        return build.name(self.names.bind(value, text, "k")) if text else self._hold(value, "constant")


class _Named:
    """A function whose last arguments are keywords that no program may spell, those with a leading underscore."""

    def __init__(self, target: Callable[..., Any], keywords: tuple[str, ...]) -> None:
        self.target = target
        self.keywords = keywords
        self.__name__ = str(getattr(target, "__name__", "function"))

    def __call__(self, *args: Any) -> Any:
        first = len(args) - len(self.keywords)
        return self.target(*args[:first], **dict(zip(self.keywords, args[first:], strict=True)))


def _plain_keyword(name: str) -> bool:
    try:
        build.member(name)
    except GraphError:
        return False
    return True


def _text(value: Any) -> str:
    """How people and Python write a value that the program holds behind a name; empty if there is no such text."""
    if value is Ellipsis:
        return "..."
    if type(value) is str and len(value) < 200:
        return escape.literal(value)
    if type(value) is float:
        return repr(value) if value == value and abs(value) != float("inf") else f"float({str(value)!r})"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({escape.literal(str(value))})"
    return ""


def _word(name: str) -> str:
    """The name if Python and every reader take it for a word, else nothing."""
    return name if name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and len(name) < 80 else ""


def attribute(gm: HasGraph, target: str) -> Any:
    """What a ``get_attr`` node of a graph reads."""
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    return value


def last_reads(nodes: Sequence[FxNode]) -> dict[FxNode, list[FxNode]]:
    """For each node the values that nobody reads after it; a value that nobody reads at all has no name."""
    dead: dict[FxNode, list[FxNode]] = {}
    seen: set[FxNode] = set()
    for node in reversed(nodes):
        for value in node.all_input_nodes:
            if value not in seen:
                seen.add(value)
                dead.setdefault(node, []).append(value)
    return dead


def write_program(gm: HasGraph, title: str) -> tuple[Callable[[list[Any]], Any], str]:
    """The program of a graph.

    Args:
        gm: ATen graph; its nodes may write memory.
        title: First line of the text, a comment.

    Returns:
        A function of one list of arguments, which it empties, and its text for people.
    """
    writer = _Writer(gm)
    made = writer.build()
    prelude = "\n".join([f"# {escape.line(title)}", "import operator", "", "import torch", "", *writer.held])
    return _Located(made.function, made.file, writer.made_of), f"{prelude}\n\n{made.source}"


class _Located:
    """A program whose faults name the operator and the user's line.

    Args:
        file: What tracebacks call the program.
        made_of: A statement's line to its operator and the user's line.
    """

    def __init__(self, function: Callable[[list[Any]], Any], file: str, made_of: Mapping[int, tuple[str, str]]) -> None:
        self._function, self._file, self._made_of = function, file, made_of
        # a name that no program can have: who looks at the frames above a launch finds the user's lines here
        function.__globals__["__tair_lines__"] = {number: place for number, (_, place) in made_of.items()}

    def __call__(self, args: list[Any]) -> Any:
        """Run; empties ``args``.

        Errors: EngineError GE4005 if an operator fails; those of ours that know a place as they are.
        """
        try:
            return self._function(args)
        except GeError:
            raise
        except Exception as error:
            frame = error.__traceback__
            while frame is not None and frame.tb_frame.f_code.co_filename != self._file:
                frame = frame.tb_next
            op, place = self._made_of.get(0 if frame is None else frame.tb_lineno, ("", ""))
            if not op:
                raise
            kind = type(error).__name__
            raise EngineError(
                "GE4005",
                f"{op} failed: {kind}: {error}",
                where=place,
                next="compare the arguments with the operator's documentation",
            ) from error
