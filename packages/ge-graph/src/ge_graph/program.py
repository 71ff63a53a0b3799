"""Functions made at run time: the one place that compiles, and it compiles no text.

A function is a list of syntax trees built from integers, names of our own making (letters and a number) and a short
list of constructs; everything else — operators, constants, texts, weights — is an object that a name stands for. What
a graph or a file says can therefore never become code. ``Program.source`` is for people: readable names and comments,
escaped, and never compiled.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ge_graph import escape
from ge_graph.errors import GraphError

_NAME: Final = re.compile(r"(?=.{1,40}\Z)[a-z](?:[a-z]|_(?=[a-z]))*[0-9]*", re.ASCII)
_MEMBER: Final = re.compile(r"(?=.{1,60}\Z)[A-Za-z](?:[A-Za-z0-9]|_(?!_))*", re.ASCII)
_WORD: Final = re.compile(r"\b[a-z_]+[0-9]+\b")
_WIDEST: Final = 2**64
_serial = itertools.count()

# Construct to the fields that hold further constructs; a statement or expression of any other type is refused.
_PARTS: Final[dict[type[ast.AST], tuple[str, ...]]] = {
    ast.Assign: ("value", "targets"),
    ast.Expr: ("value",),
    ast.Return: ("value",),
    ast.Delete: ("targets",),
    ast.If: ("test", "body", "orelse"),
    ast.BoolOp: ("values",),
    ast.Try: ("body", "handlers", "orelse", "finalbody"),
    ast.ExceptHandler: ("type", "body"),
    ast.Call: ("func", "args", "keywords"),
    ast.keyword: ("value",),
    ast.Name: (),
    ast.Constant: (),
    ast.Attribute: ("value",),
    ast.Subscript: ("value", "slice"),
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.Slice: ("lower", "upper", "step"),
}


def identifier(text: str) -> str:
    """``text`` if it may be a variable of a program: small letters, single underscores, then digits.

    Errors:
        GraphError GE3053 if it may not.
    """
    if not _NAME.fullmatch(text) or keyword.iskeyword(text):
        raise _refused(f"the name {escape.line(text, 60)!r}")
    return text


def member(text: str) -> str:
    """``text`` if it may be the name of a method, an attribute or a keyword argument: no leading or double underscore.

    Errors:
        GraphError GE3053 if it may not.
    """
    if not _MEMBER.fullmatch(text or "") or keyword.iskeyword(text):
        raise _refused(f"the name {escape.line(str(text), 60)!r}")
    return text


def _refused(what: str) -> GraphError:
    return GraphError(
        "GE3053", f"{what} may not become part of a program", next="bind the value to a name instead of writing it"
    )


def name(text: str) -> ast.expr:
    """A variable that is read."""
    return ast.Name(text, ast.Load())


def constant(value: int | None) -> ast.expr:
    """An integer of at most 64 bits, a bool or None."""
    return ast.Constant(value)


def call(function: ast.expr, args: Sequence[ast.expr], keywords: Mapping[str, ast.expr] | None = None) -> ast.expr:
    """``function(*args, **keywords)``."""
    named = [ast.keyword(k, v) for k, v in keywords.items()] if keywords else []
    return ast.Call(function, list(args), named)


def attribute(value: ast.expr, text: str) -> ast.expr:
    """``value.text``."""
    return ast.Attribute(value, text, ast.Load())


def item(value: ast.expr, index: ast.expr) -> ast.expr:
    """``value[index]``."""
    return ast.Subscript(value, index, ast.Load())


def sequence(parts: Sequence[ast.expr], *, as_list: bool) -> ast.expr:
    """A list or a tuple."""
    return ast.List(list(parts), ast.Load()) if as_list else ast.Tuple(list(parts), ast.Load())


def assign(targets: str | Sequence[str], value: ast.expr) -> ast.stmt:
    """``target = value``, or several variables from a tuple."""
    if isinstance(targets, str):
        return ast.Assign([ast.Name(targets, ast.Store())], value)
    return ast.Assign([ast.Tuple([ast.Name(t, ast.Store()) for t in targets], ast.Store())], value)


def do(value: ast.expr) -> ast.stmt:
    """An expression for its effect."""
    return ast.Expr(value)


def give(value: ast.expr) -> ast.stmt:
    """``return value``."""
    return ast.Return(value)


def drop(names: Sequence[str]) -> ast.stmt:
    """``del a, b``."""
    return ast.Delete([ast.Name(n, ast.Del()) for n in names])


def otherwise(first: ast.stmt, error: str, second: ast.stmt) -> ast.stmt:
    """``try: first``, ``except error: second``."""
    return ast.Try([first], [ast.ExceptHandler(name(error), None, [second])], [], [])


def guard(questions: Sequence[ast.expr], then: ast.stmt) -> ast.stmt:
    """``if a or b: then``."""
    test = questions[0] if len(questions) == 1 else ast.BoolOp(ast.Or(), list(questions))
    return ast.If(test, [then], [])


def _admit(tree: Any, line: int, known: set[str]) -> None:
    """Check a tree and give it its line; ``known`` are the names that stand for something, and grows.

    Errors:
        GraphError GE3053 for anything but the listed constructs, our names and integers.
    """
    kind = type(tree)
    parts = _PARTS.get(kind)
    if parts is None:
        raise _refused(f"a {kind.__name__}")
    if kind is ast.Name:
        if type(tree.ctx) is ast.Store:
            known.add(identifier(tree.id))
        elif tree.id not in known:
            raise _refused(f"the unknown name {escape.line(str(tree.id), 60)!r}")
    elif kind is ast.Constant:
        plain = tree.value is None or type(tree.value) in (bool, int)
        if not plain or (tree.value is not None and not -_WIDEST < tree.value < _WIDEST):
            raise _refused(f"a constant of type {type(tree.value).__name__}")
    elif kind is ast.Attribute:
        member(tree.attr)
    elif kind is ast.keyword:
        member(tree.arg)
    elif kind is ast.ExceptHandler and tree.name is not None:
        raise _refused("a named exception")
    tree.lineno = tree.end_lineno = line
    tree.col_offset = tree.end_col_offset = 0
    for part in parts:
        child = getattr(tree, part)
        if isinstance(child, list):
            for entry in child:
                _admit(entry, line, known)
        elif child is not None:
            _admit(child, line, known)


@dataclass(slots=True)
class Names:
    """What the names of a program stand for.

    Attributes:
        objects: Name to object; the program's globals.
        shown: Name to how ``source`` writes it; harmless text of one line.
    """

    objects: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    _of: dict[int, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def fresh(self, prefix: str) -> str:
        """A variable that is not used yet: the prefix, letters of ours, and a number."""
        count = self._counts[prefix] = self._counts.get(prefix, 0) + 1
        return f"{prefix}{count}"

    def bind(self, value: Any, shown: str, prefix: str = "f") -> str:
        """The name of an object, the same whenever it is bound again.

        Args:
            value: Any object; kept alive by the program.
            shown: How people read it, "" for the name itself. A word is made unique, a literal stands as it is.
            prefix: What the name begins with.
        """
        variable = self._of.get(id(value))
        if variable is None:
            variable = self._of[id(value)] = self.fresh(prefix)
            self.objects[variable] = value
            if shown:
                self.shown[variable] = self._unique(escape.line(shown, 200))
        return variable

    def reserve(self, words: Iterable[str]) -> None:
        """Words that ``source`` must not give to anything else."""
        self._taken.update(words)

    def show(self, name: str, shown: str) -> str:
        """Let people read a variable by another word, made unique; gives the variable."""
        if shown.isidentifier():
            self.shown[name] = self._unique(shown)
        return name

    def _unique(self, shown: str) -> str:
        if not shown.isidentifier():
            return shown
        clashes = re.fullmatch(r"[a-z][0-9]+", shown) is not None or keyword.iskeyword(shown)
        base, text, count = shown, f"{shown}_" if clashes else shown, 1
        while text in self._taken:
            count += 1
            text = f"{base}_{count}"
        self._taken.add(text)
        return text


class Program:
    """A compiled function of straight-line statements.

    Args:
        kind: What it is, a name of ours; stands in tracebacks.
        statements: With a comment each, printed above it in ``source``; a comment may be any text.
        names: What the other names stand for. A builtin that is not among them is refused like any unknown name.

    Attributes:
        file: What tracebacks call it.

    Errors:
        GraphError GE3053 if a statement holds anything but the listed constructs, our names and integers.
    """

    def __init__(
        self, kind: str, parameters: Sequence[str], statements: Sequence[tuple[ast.stmt, str]], names: Names
    ) -> None:
        self._kind = identifier(kind)
        self._parameters = [identifier(p) for p in parameters]
        self.statements = statements
        self._names = names
        self.file = f"<{kind} {next(_serial)}>"
        self.function = self._compiled()

    def _compiled(self) -> Callable[..., Any]:
        known = {*self._parameters, *map(identifier, self._names.objects)}
        for line, (statement, _) in enumerate(self.statements, 1):
            _admit(statement, line, known)
        plain = [ast.arg(p, lineno=1, col_offset=0) for p in self._parameters]
        body = [statement for statement, _ in self.statements]
        arguments = ast.arguments([], plain, None, [], [], None, [])
        made = ast.FunctionDef(self._kind, arguments, body, [], lineno=1, col_offset=0)
        made.type_params = []  # type: ignore[attr-defined]
        scope = dict(self._names.objects)
        exec(compile(ast.Module([made], []), self.file, "exec", dont_inherit=True), scope)
        function: Callable[..., Any] = scope.pop(self._kind)
        return function

    @property
    def source(self) -> str:
        """The function for people."""
        return written(self._kind, self._parameters, self.statements, self._names)


def written(kind: str, parameters: Sequence[str], statements: Sequence[tuple[ast.stmt, str]], names: Names) -> str:
    """A function as text for people; nobody compiles it here."""
    lines = [f"def {kind}({', '.join(parameters)}):"]
    for statement, comment in statements:
        if comment:
            lines.append(f"    # {escape.line(comment)}")
        text = _WORD.sub(lambda m: names.shown.get(m[0], m[0]), ast.unparse(statement))
        lines += [f"    {row}" for row in text.split("\n")]
    return "\n".join(lines) + "\n"
