"""Writes the exported pairs of the operator functions from ``native/aclnn.tsv``, and the makers of the operations of
``native/atb.tsv``: run when the libraries are built.

Each function has a C signature of its own, so each needs an entry point; all of them only collect their arguments.
``python trampolines.py aclnn.tsv result.cpp`` needs nothing but Python.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Kind of an argument: C type, and the type that `AclnnCall::add` takes.
_TYPES: Final = {
    "t": ("const aclTensor*", ""),
    "tl": ("const aclTensorList*", ""),
    "s": ("const aclScalar*", ""),
    "sl": ("const aclScalarList*", ""),
    "ia": ("const aclIntArray*", ""),
    "ba": ("const aclBoolArray*", ""),
    "fa": ("const aclFloatArray*", ""),
    "i64": ("int64_t", "int64_t"),
    "i32": ("int32_t", "int64_t"),
    "i8": ("int8_t", "int64_t"),
    "u64": ("uint64_t", "uint64_t"),
    "dt": ("int32_t", "int64_t"),
    "b": ("bool", "bool"),
    "d": ("double", "double"),
    "f": ("float", "double"),
    "str": ("const char*", ""),
}
TABLES: Final = ("aclnn", "atb")
_FIELDS: Final = {"i32": "i", "u16": "h", "f": "f", "b": "b"}  # as `emu::AtbField` has them
MOST: Final = "GetMaxWorkspaceSize"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def last_word(call: str) -> tuple[str, str]:
    """What a row computes, and its last word: ``sizes``, ``most`` or nothing."""
    form, space, word = call.rpartition(" ")
    return (form, word) if space and word in ("sizes", "most") else (call, "")


def _check(name: str, what: str = "a function name") -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not {what}")


def _arguments(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Of each argument: kind, parameter in C, value as ``AclnnCall::add`` takes it, whether it is written."""
    for i, entry in enumerate(text.split()):
        kind = entry.rpartition(":")[2]
        c_type, cast = _TYPES[kind]
        value = f"static_cast<{cast}>(a{i})" if cast else f"a{i}"
        yield kind, f"{c_type} a{i}", value, str(entry.startswith(">")).lower()


def function(name: str, arguments: str, call: str) -> str:
    """The pair of one row."""
    _check(name)
    parameters, added = [], []
    for kind, parameter, value, written in _arguments(arguments):
        parameters.append(parameter)
        flag = f", {written}" if kind in ("t", "tl") else ""
        added.append(f"  call.add({value}{flag});")
    listed = ", ".join([*parameters, "uint64_t* workspace", "aclOpExecutor** executor"])
    body = "\n".join(added)
    word = last_word(call)[1]
    sizes_back = str(word == "sizes").lower()
    most = f"EMU_API int {name}{MOST}({listed}) {{\n  return emu::aclnn_most(workspace, executor);\n}}\n"
    return (most if word == "most" else "") + (
        f"EMU_API int {name}GetWorkspaceSize({listed}) {{\n"
        f'  emu::AclnnCall call("{name}", {sizes_back});\n{body}\n  return call.plan(workspace, executor);\n}}\n'
        f"EMU_API int {name}(void*, uint64_t, aclOpExecutor* executor, aclrtStream stream) {{\n"
        f'  return emu::aclnn_run("{name}", executor, stream);\n}}\n'
    )


def operation(name: str, fields: str) -> str:
    """The maker of one kind of operation from its parameters."""
    _check(name, "a name of an operation")
    listed = []
    for entry in fields.split():
        kind, _, offset = entry.rpartition(":")[2].partition("@")
        listed.append(f"{{'{_FIELDS[kind]}', {int(offset)}}}")
    parameters = f"infer::{name}Param"
    return (
        f"namespace atb {{\nnamespace infer {{\nstruct {name}Param;\n}}\ntemplate <>\n"
        f"int CreateOperation(const {parameters}& parameters, Operation** made) {{\n"
        f'  return emu::atb_make("atb{name}", &parameters, {{{", ".join(listed)}}}, made);\n}}\n}}\n'
    )


def atb_function(name: str, arguments: str) -> str:
    """The pair of a function of ATB: what it plans is kept by the operation, which callers keep."""
    _check(name)
    parameters, added = [], []
    for kind, parameter, value, written in _arguments(arguments):
        parameters.append(parameter)
        added.append(f"  call.add(held.of({value}), {written});" if kind == "t" else f"  call.add({value});")
    listed = ", ".join([*parameters, "uint64_t* workspace", "atb::Operation** made", "atb::Context*"])
    body = "\n".join(added)
    return (
        f'EMU_API int {name}GetWorkspaceSize({listed}) {{\n  emu::AclnnCall call("{name}", false);\n'
        f"  emu::AtbHeld held;\n{body}\n  return emu::atb_plan(call, held, workspace, made);\n}}\n"
        f"EMU_API int {name}(void*, uint64_t, atb::Operation* operation, atb::Context* context) {{\n"
        f'  return emu::atb_run("{name}", operation, context);\n}}\n'
    )


def generate(table: Path) -> str:
    """The source of a table's functions."""
    rows = [line.split("\t") for line in table.read_text().splitlines() if line and not line.startswith("#")]
    if table.stem == "atb":
        made = (operation(row[0], row[1]) if "@" in row[1] else atb_function(row[0], row[1]) for row in rows)
        return '#include "atb.h"\n\n' + "\n".join(made)
    return '#include "opapi.h"\n\n' + "\n".join(function(row[0], row[1], row[2]) for row in rows)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(generate(Path(sys.argv[1])))
