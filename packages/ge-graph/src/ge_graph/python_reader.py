"""Reading a ``py`` dump back as data: the file is parsed, never executed.

What ``python_source`` writes is a small part of Python: imports, calls of a few functions with literals and names of
earlier results, and ``with new_graph(...)`` blocks. The syntax tree is walked and each call is made by us; anything
else is refused with its line. So nothing that stands in a file runs.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any, Final

from ge_graph import builder, escape, ops, python_source, schema
from ge_graph.dtypes import DataType
from ge_graph.errors import ArchiveError, GeError
from ge_graph.ir import Graph, Node, Tensor, building, current_graph

SOURCE_CHARS: Final = 1 << 30
PARTS: Final = 1 << 16
_DEPTH: Final = 64
_FLOATS: Final = frozenset(("nan", "inf", "-inf"))
_NEXT: Final = "give a py dump as it was written; other programs are not read"


def run_py(source: str, *, file: str = "graph.py") -> Graph:
    """Build the graph of a program that ``to_py`` or ``write_py`` wrote. Nothing of the file is executed.

    Args:
        source: The program.
        file: Where it stands; the weights are looked for beside it.

    Raises:
        ArchiveError: GE5014 with the line for what no such program contains, GE5015 for missing weights.
        GraphError: If a call breaks an operator's signature.
    """
    if len(source) > SOURCE_CHARS:
        raise _refuse(f"a text of {len(source)} characters, at most {SOURCE_CHARS} are read", file, 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes in a foreign text
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", 0) or 0
        raise _refuse(f"no Python: {type(error).__name__} {error}", file, line) from None
    graph = Graph()
    reader = _Reader(file, graph)
    with building(graph):
        reader.block(tree.body, 0)
    return graph


def _refuse(what: str, file: str, line: int) -> ArchiveError:
    where = f"{escape.line(file)}, line {line}" if line else escape.line(file)
    return ArchiveError("GE5014", escape.line(what, 500), where=where, next=_NEXT)


class _Reader:
    """Walks over statements and makes the calls that they stand for."""

    def __init__(self, file: str, graph: Graph) -> None:
        self._file = file
        self._known: dict[str, Any] = {"__file__": file}
        self._graph = graph
        self._calls: dict[str, Callable[..., Any]] = {
            "describe": python_source.describe,
            "node": self._node,
            "raw": python_source.raw,
            "restore": python_source.restore,
            "stored": self._stored,
            "float": self._float,
        }

    def block(self, statements: list[ast.stmt], depth: int) -> None:
        if depth > _DEPTH:
            raise _refuse(f"graphs lie more than {_DEPTH} levels deep", self._file, statements[0].lineno)
        for statement in statements:
            try:
                self._statement(statement, depth)
            except GeError:
                raise
            except (
                TypeError,
                ValueError,
                KeyError,
                AttributeError,
                IndexError,
                OverflowError,
                RecursionError,
            ) as error:
                what = f"{type(error).__name__}: {error}"
                raise _refuse(what, self._file, statement.lineno) from None

    def _statement(self, statement: ast.stmt, depth: int) -> None:
        if isinstance(statement, ast.ImportFrom):  # names are ours whatever it says
            return
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self._bind(statement.targets[0], self._assigned(statement.value))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._call(statement.value)
        elif isinstance(statement, ast.With) and len(statement.items) == 1:
            self._inner(statement, depth)
        else:
            raise self._unknown(statement)

    def _assigned(self, value: ast.expr) -> Any:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "start":
            return self._graph
        return self._value(value)

    def _inner(self, statement: ast.With, depth: int) -> None:
        head, variable = statement.items[0].context_expr, statement.items[0].optional_vars
        if not (
            isinstance(head, ast.Call)
            and isinstance(head.func, ast.Name)
            and head.func.id == "new_graph"
            and len(head.args) == 1
            and not head.keywords
            and isinstance(variable, ast.Name)
        ):
            raise self._unknown(statement)
        name = self._value(head.args[0])
        if not isinstance(name, str):
            raise self._unknown(head)
        graph = self._known[variable.id] = Graph(name)
        with building(graph):
            self.block(statement.body, depth + 1)

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._known[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
                raise _refuse(f"{len(target.elts)} names for another number of results", self._file, target.lineno)
            for part, item in zip(target.elts, value):
                self._bind(part, item)
        else:
            raise self._unknown(target)

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            if node.value is Ellipsis or isinstance(node.value, complex):
                raise self._unknown(node)
            return node.value
        if isinstance(node, ast.Name):
            if node.id not in self._known:
                raise _refuse(f"'{node.id}' is not known here", self._file, node.lineno)
            return self._known[node.id]
        if isinstance(node, ast.List):
            return [self._value(e) for e in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self._value(e) for e in node.elts)
        if isinstance(node, ast.Dict):
            return {self._value(self._key(k, node)): self._value(v) for k, v in zip(node.keys, node.values)}
        if (
            isinstance(node, ast.UnaryOp)
            and isinstance(node.op, ast.USub)
            and isinstance(node.operand, ast.Constant)
            and type(node.operand.value) in (int, float)
        ):
            return -node.operand.value  # type: ignore[operator]
        if isinstance(node, ast.Call):
            return self._call(node)
        raise self._unknown(node)

    def _key(self, node: ast.expr | None, owner: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Constant):
            raise self._unknown(owner)
        return node

    def _call(self, node: ast.Call) -> Any:
        function = self._function(node.func)
        args = [self._value(a) for a in node.args]
        if any(k.arg is None for k in node.keywords):
            raise self._unknown(node)
        keywords = {str(k.arg): self._value(k.value) for k in node.keywords}
        for name, value in keywords.items():
            if name.startswith("size_of_") or name in ("N", "num_split", "num"):
                self._check_count(value, node)
        return function(*args, **keywords)

    def _check_count(self, value: Any, node: ast.expr) -> None:
        if type(value) is int and value > PARTS:
            raise _refuse(f"{value} parts of a dynamic output, at most {PARTS}", self._file, node.lineno)

    def _function(self, node: ast.expr) -> Callable[..., Any]:
        if isinstance(node, ast.Name) and node.id in self._calls:
            return self._calls[node.id]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ge":
            if node.attr == "NetOutput":
                return self._net_output
            if node.attr == "Const":
                return ops.Const  # type: ignore[no-any-return,attr-defined,unused-ignore]
            if node.attr == "Data":
                return self._data
            if schema.get(node.attr) is not None:
                function: Callable[..., Any] = getattr(ops, node.attr)
                return function
        raise self._unknown(node)

    def _unknown(self, node: ast.AST) -> ArchiveError:
        line = getattr(node, "lineno", 0)
        return _refuse(f"{type(node).__name__} stands where no such program has one", self._file, line)

    # --- functions whose arguments need a look first -----------------------------------------------------------------

    def _float(self, text: str) -> float:
        if text not in _FLOATS:
            raise ValueError(f"float({text!r})")
        return float(text)

    def _stored(self, _: Any, *args: Any) -> Any:
        return python_source.stored(self._file, *args)

    def _data(self, *, index: int, dtype: int, shape: list[int], placement: str = "NPU", node_name: str) -> Tensor:
        if type(index) is not int or len(shape) > 64 or not all(type(d) is int for d in shape):
            raise ValueError("index or shape of a graph input")
        return builder.data(
            current_graph(), index=index, dtype=DataType(dtype), shape=tuple(shape), placement=placement, name=node_name
        )

    def _node(self, op: str, inputs: list[Any], **options: Any) -> Any:
        flat = [t for e in inputs for t in (e if isinstance(e, list) else (e,))]
        counts = options.get("counts") or {}
        inner = options.get("subgraphs") or {}
        if (
            not isinstance(op, str)
            or not isinstance(options.get("node_name"), str)
            or not all(t is None or isinstance(t, Tensor) for t in flat)
            or not all(isinstance(k, str) and type(v) is int and 0 <= v <= PARTS for k, v in counts.items())
            or not all(isinstance(k, str) and isinstance(v, Graph) for k, v in inner.items())
        ):
            raise ValueError("arguments of node()")
        return python_source.node(op, inputs, **options)

    def _net_output(self, inputs: list[Any], dependencies: list[Any] | tuple[()] = ()) -> Graph:
        if not all(isinstance(t, Tensor) for t in inputs) or not all(
            isinstance(d, (Tensor, Node)) for d in dependencies
        ):
            raise ValueError("arguments of NetOutput()")
        return python_source.net_output(inputs, dependencies)
