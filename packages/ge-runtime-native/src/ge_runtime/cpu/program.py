"""The program of a graph: statements with what they read and write, early freeing, execution, blame for failures."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ge_graph import escape
from ge_graph import program as build
from ge_graph.errors import EngineError
from ge_graph.ir import Node
from ge_runtime import errors
from ge_runtime.cpu.groups import others_say
from ge_runtime.cpu.torch_compat import below_autograd, no_torch_function
from ge_runtime.cpu.values import describe

_NO_MEMORY = ("Storage size calculation overflowed", "numel: integer multiplication overflow")


@dataclass(frozen=True, slots=True)
class Line:
    """One statement of the program.

    Attributes:
        statement: Built by ``ge_graph.program``.
        reads: Names it reads, constants and numbers included.
        writes: Tensor variables it defines.
        node: The node it belongs to; None for the return line.
    """

    statement: ast.stmt
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    node: Node | None


def _freed_after(lines: Sequence[Line], given: Iterable[str] = ()) -> list[list[str]]:
    """For each line, the variables that nothing reads later, among those written and ``given``."""
    owned = {*given, *(name for line in lines for name in line.writes)}
    freed: list[list[str]] = [[] for _ in lines]
    seen: set[str] = set()
    for index in range(len(lines) - 1, -1, -1):
        for name in (*lines[index].writes, *lines[index].reads):
            if name in owned and name not in seen:
                seen.add(name)
                freed[index].append(name)
    return freed


class EngineProgram:
    """A straight-line function made from lines.

    Args:
        graph: Name of the graph, for errors; kept as an attribute.
        inputs: How many tensors it takes.
        lines: What it does.
        names: What its names mean.
        traced: Whether it takes a callback after the inputs.
        boxed: Whether it takes the inputs as one list, which it empties, and frees each after its last use.
        inner: Programs of the graphs in nodes, with a name for people.
        recorded: Whether ``torch.profiler`` sees each node, as ``MatMulV2/addmm_1``.
    """

    def __init__(
        self,
        graph: str,
        inputs: int,
        lines: Sequence[Line],
        names: build.Names,
        *,
        traced: bool = False,
        boxed: bool = False,
        inner: Sequence[tuple[str, EngineProgram]] = (),
        recorded: bool = False,
    ) -> None:
        self._inner, self.graph, self._names = inner, graph, names
        given = [f"i{k}" for k in range(inputs)]
        self._parameters = ["given"] if boxed else given + (["report"] if traced else [])
        whole: list[tuple[ast.stmt, Line]] = []
        if boxed:  # variables out of the list, which is then empty: they alone keep the inputs alive
            taken = [build.assign(given, build.name("given"))] if given else []
            taken.append(build.do(build.call(build.attribute(build.name("given"), "clear"), ())))
            whole = [(statement, Line(statement, (), (), None)) for statement in taken]
        self._records = _Records(lines) if recorded else None
        last: Node | None = None
        for line, dead in zip(lines, _freed_after(lines, given if boxed else ())):
            if self._records is not None and (line.node is not last or isinstance(line.statement, ast.Return)):
                last = line.node
                whole.append((self._records.statement(line, names), line))
            whole.append((line.statement, line))
            if dead and not isinstance(line.statement, ast.Return):
                whole.append((build.drop(dead), line))
        self._line_at = [line for _, line in whole]
        self._compiled = build.Program("program", self._parameters, [(made, "") for made, _ in whole], names)
        self.function = self._compiled.function

    @cached_property
    def source(self) -> str:
        """The program for people, with the origin of each node above its statements."""
        last: Node | None = None
        commented: list[tuple[ast.stmt, str]] = []
        for (statement, _), line in zip(self._compiled.statements, self._line_at, strict=True):
            begins = line.node is not None and line.node is not last
            last = line.node or last
            commented.append((statement, _comment(line.node) if begins and line.node is not None else ""))
        own = build.written("program", self._parameters, commented, self._names)
        return "\n".join([own, *(f"# {escape.line(name)}\n{program.source}" for name, program in self._inner)])

    def run(self, *args: Any) -> list[torch.Tensor]:
        """Run outside autograd, autocast and torch-function modes.

        Errors:
            EngineError GE4005 naming the node, its operands and the user's line.
        """
        try:
            with below_autograd(), no_torch_function():
                if torch.is_autocast_enabled("cpu"):
                    with torch.autocast("cpu", enabled=False):
                        return self.function(*args)  # type: ignore[no-any-return]
                return self.function(*args)  # type: ignore[no-any-return]
        except Exception as error:
            self._close()
            raise self._blame(error) from error

    def run_inside(self, *args: Any) -> list[torch.Tensor]:
        """Run as a part of another program, which has put torch into the right modes.

        Errors: as ``run``.
        """
        try:
            return self.function(*args)  # type: ignore[no-any-return]
        except Exception as error:
            self._close()
            raise self._blame(error) from error

    def _close(self) -> None:
        if self._records is not None:
            self._records.end()

    def _blame(self, error: Exception) -> EngineError:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != self._compiled.file:
            frame = frame.tb_next
        line = None if frame is None else self._line_at[frame.tb_lineno - 1]
        if frame is None or line is None or line.node is None:
            return error if isinstance(error, EngineError) else errors.run_failed(self.graph, error)
        if isinstance(error, EngineError):
            return errors.located(error, line.node)
        known = {**self._names.objects, **frame.tb_frame.f_locals}
        operands = ", ".join(describe(known[name]) for name in line.reads if name in known)
        if isinstance(error, MemoryError) or str(error).startswith(_NO_MEMORY) or "DefaultCPUAllocator" in str(error):
            return errors.too_large(line.node, f"no memory for the result of ({operands}): {error}")
        group = line.node.attr("group") or line.node.attr("group_ep")
        others = ""
        if group and isinstance(error, RuntimeError):
            others = others_say(str(group), f"{line.node.op} at {errors.origin(line.node)}")
        return errors.kernel_failed(line.node, operands, error, others)


class _Records:
    """What ``torch.profiler`` sees of a program: a record from the first statement of a node to that of the next."""

    def __init__(self, lines: Sequence[Line]) -> None:
        nodes = dict.fromkeys(line.node for line in lines if line.node is not None)
        self._place = {node: k for k, node in enumerate(nodes)}
        self._names = [f"{node.op}/{node.name}" for node in nodes]
        self._thread = threading.local()  # runs of one program may overlap in threads

    def statement(self, line: Line, names: build.Names) -> ast.stmt:
        """The call in front of a line that begins another node, or none."""
        if line.node is None or isinstance(line.statement, ast.Return):
            return build.do(build.call(build.name(names.bind(self.end, "end")), ()))
        function = build.name(names.bind(self.begin, "begin"))
        return build.do(build.call(function, [build.constant(self._place[line.node])]))

    def begin(self, place: int) -> None:
        """The node of that place begins."""
        self.end()
        self._thread.open = made = torch.profiler.record_function(self._names[place])
        made.__enter__()

    def end(self) -> None:
        """No node runs."""
        made = getattr(self._thread, "open", None)
        if made is not None:
            self._thread.open = None
            made.__exit__(None, None, None)


def _comment(node: Node) -> str:
    p = node.provenance
    parts = [p.fx_name and f"%{p.fx_name}", p.module, p.source] if p is not None else []
    return "  ".join([node.name, " ".join(part for part in parts if part)]).rstrip()
