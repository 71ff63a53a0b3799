"""The generated program: lines with what they read and write, early freeing, execution, and blame for failures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ge_graph.errors import EngineError
from ge_graph.ir import Node
from ge_runtime import errors
from ge_runtime.cpu.values import describe

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the program.

    Attributes:
        code: Python text.
        reads: Names it reads, constants and numbers included.
        writes: Tensor variables it defines.
        node: The node it belongs to; None for the return line.
    """

    code: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    node: Node | None


def _freed_after(lines: Sequence[Line]) -> list[list[str]]:
    """For each line, the variables that nothing reads later."""
    owned = {name for line in lines for name in line.writes}
    freed: list[list[str]] = [[] for _ in lines]
    seen: set[str] = set()
    for index in range(len(lines) - 1, -1, -1):
        for name in (*lines[index].writes, *lines[index].reads):
            if name in owned and name not in seen:
                seen.add(name)
                freed[index].append(name)
    return freed


class Program:
    """A straight-line function made from lines.

    Attributes:
        source: Its text, for dumps.
        globals: What its names mean.
    """

    def __init__(
        self, name: str, inputs: int, lines: Sequence[Line], names: dict[str, Any], *, traced: bool = False
    ) -> None:
        self.globals = names
        self._lines = lines
        self._file = f"<ge program {name} {next(_serial)}>"
        self._node_at: dict[int, Line] = {}
        self.source = self._write(inputs, traced)
        self.function = self._compile()

    def _write(self, inputs: int, traced: bool) -> str:
        parameters = [f"i{k}" for k in range(inputs)] + (["on_node"] if traced else [])
        text = [f"def program({', '.join(parameters)}):"]
        last: Node | None = None
        for line, dead in zip(self._lines, _freed_after(self._lines)):
            if line.node is not None and line.node is not last:
                last = line.node
                text.append(f"    # {line.node.name}{_origin_comment(line.node)}")
            text.append(f"    {line.code}")
            self._node_at[len(text)] = line
            if dead and not line.code.startswith("return"):
                text.append(f"    del {', '.join(dead)}")
        return "\n".join(text) + "\n"

    def _compile(self) -> Callable[..., list[torch.Tensor]]:
        scope = self.globals
        exec(compile(self.source, self._file, "exec"), scope)
        function: Callable[..., list[torch.Tensor]] = scope.pop("program")
        return function

    def run(self, *args: Any) -> list[torch.Tensor]:
        """Run outside autograd, autocast and torch-function modes.

        Errors:
            EngineError GE4005 naming the node, its operands and the user's line.
        """
        try:
            with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
                if torch.is_autocast_enabled("cpu"):
                    with torch.autocast("cpu", enabled=False):
                        return self.function(*args)
                return self.function(*args)
        except Exception as error:
            raise self._blame(error) from error

    def _blame(self, error: Exception) -> Exception:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != self._file:
            frame = frame.tb_next
        line = self._node_at.get(frame.tb_lineno) if frame is not None else None
        if frame is None or line is None or line.node is None:
            return error
        if isinstance(error, EngineError):
            return errors.located(error, line.node)
        known = {**self.globals, **frame.tb_frame.f_locals}
        operands = ", ".join(describe(known[name]) for name in line.reads if name in known)
        return errors.kernel_failed(line.node, operands, error)


def _origin_comment(node: Node) -> str:
    p = node.provenance
    if p is None:
        return ""
    parts = " ".join(part for part in (p.fx_name and f"%{p.fx_name}", p.module, p.source) if part)
    return f"  {parts}".replace("\n", " ").replace("\r", " ") if parts else ""
