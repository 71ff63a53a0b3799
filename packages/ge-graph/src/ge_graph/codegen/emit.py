"""A Python module of wrappers, its stub and its schema rows, from operators read out of headers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ge_graph import schema
from ge_graph.calling import parameter_names
from ge_graph.codegen.files import write_atomically
from ge_graph.codegen.reg_op import Operator
from ge_graph.codegen.signature import literal, parameters, result
from ge_graph.errors import GraphError
from ge_graph.schema import OpSchema

_HEAD: Final = '''\
"""Wrappers of {count} GE operators, made from {files} by `python -m ge_graph.codegen`; do not edit.

Importing the module makes the operators known to `ge_graph`.
"""

# ruff: noqa
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ge_graph.calling import plan_of as _plan_of
from ge_graph.dtypes import DataType
from ge_graph.ir import Graph, Literal, Node, Tensor
from ge_graph.schema import register_schema as _register_schema

TensorLike: TypeAlias = "Tensor | int | float | bool | complex | Sequence[Any] | np.ndarray[Any, Any] | Literal"

'''


def write_module(operators: Sequence[Operator], output: Path, *, replace: bool = False) -> tuple[Path, Path, Path]:
    """Write ``output``, its ``.pyi`` and its ``.jsonl``; each file appears whole or not at all.

    Args:
        operators: What ``read_headers`` found.
        output: Python file.
        replace: Let these definitions win over known ones with other ports or attributes.

    Raises:
        GraphError: GE3042 if a file cannot be written, GE3012 if a definition contradicts a known one.
    """
    if output.suffix != ".py" or not output.stem.isidentifier():
        raise GraphError("GE3042", f"cannot write {output}: the name must be a Python module name ending in .py")
    if not replace:
        _refuse_conflicts(operators)
    stub, rows = output.with_suffix(".pyi"), output.with_suffix(".jsonl")
    write_atomically(rows, "".join(row_text(op.row) + "\n" for op in operators))
    write_atomically(stub, _stub(operators))
    write_atomically(output, module_text(operators, replace=replace))
    return output, stub, rows


def _refuse_conflicts(operators: Sequence[Operator]) -> None:
    wrong = []
    for op in operators:
        difference = schema.conflict(op.row)
        if difference:
            wrong.append(f"{op.file}:{op.line}: {op.row['op']}: {difference}")
    if wrong:
        listing = "\n".join(f"  {w}" for w in wrong)
        raise GraphError(
            "GE3012", f"{len(wrong)} operators are known with other ports or attributes:\n{listing}",
            next="rename them, or pass --replace if the headers describe the device",
        )  # fmt: skip


def row_text(row: schema.Row) -> str:
    """A row as one line of JSON."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def module_text(operators: Sequence[Operator], *, replace: bool = False) -> str:
    """The Python module."""
    files = ", ".join(dict.fromkeys(op.file.name.replace("\\", "/").replace('"', "'") for op in operators))
    parts = [_HEAD.format(count=len(operators), files=files)]
    parts.append(
        f"__all__ = [{', '.join(repr(op.row['op']) for op in operators)}]\n\n_ROWS: list[dict[str, Any]] = [\n"
    )
    parts += [f"    {op.row!r},\n" for op in operators]
    parts.append(f"]\nfor _row in _ROWS:\n    _register_schema(_row, replace={replace})\n")
    parts += [_function(op) for op in operators]
    return "".join(parts)


def _function(operator: Operator) -> str:
    op = schema.parse(operator.row)
    ports, attributes = parameter_names(op)
    keywords = [*attributes, *(f"size_of_{p.name}" for p in op.outputs if p.kind == "dynamic"), *op.subgraphs]
    passed = "".join(f"{k!r}: {k}, " for k in keywords)
    args = "".join(f"{name}, " for name in ports)
    call = f"_plan_of({op.name!r}).call(({args}), {{{passed}'dependencies': dependencies, 'node_name': node_name}})"
    head = f"\n\ndef {op.name}({', '.join(parameters(op))}) -> {result(op)}:\n"
    return f"{head}{_docstring(op, operator.doc)}    found: {result(op)} = {call}\n    return found\n"


def _docstring(op: OpSchema, doc: str) -> str:
    """What the header's comment says, then ports, attributes and types as they were read."""
    lines = [*(doc or f"GE operator {op.name}.").split("\n"), ""]
    known = {"optional": ", optional", "dynamic": ", a list"}
    if op.inputs or op.attrs:
        lines.append("Args:")
    for p in op.inputs:
        lines.append(f"    {p.name}: Tensor{known.get(p.kind, '')}. Dtypes: {', '.join(d.name for d in p.dtypes)}.")
    for a in op.attrs:
        default = "required" if a.required else f"default {literal(a.default)}" if a.default else "absent unless given"
        lines.append(f"    {a.name}: {a.kind.value}, {default}.")
    if op.outputs:
        lines += ["", "Returns:"]
    for p in op.outputs:
        lines.append(f"    {p.name}{known.get(p.kind, '')}. Dtypes: {', '.join(d.name for d in p.dtypes)}.")
    lines += ["", "Raises:", "    GraphError: if the call breaks the signature above."]
    body = "\n".join(f"    {line}".rstrip() for line in lines).strip()
    safe = body.replace("\\", "\\\\").replace('"""', "'''")
    return f'    """{safe}\n    """\n'


def _stub(operators: Sequence[Operator]) -> str:
    lines = [
        "# Generated by `python -m ge_graph.codegen`; do not edit.\n"
        "from collections.abc import Sequence\nfrom typing import Any, TypeAlias\n\nimport numpy as np\n\n"
        "from ge_graph.dtypes import DataType\nfrom ge_graph.ir import Graph, Literal, Node, Tensor\n\n"
        "TensorLike: TypeAlias = (\n    Tensor | int | float | bool | complex | Sequence[Any] | np.ndarray[Any, Any] | Literal\n)\n\n"
    ]
    for operator in operators:
        op = schema.parse(operator.row)
        lines.append(f"def {op.name}({', '.join(parameters(op))}) -> {result(op)}: ...\n")
    return "".join(lines)
