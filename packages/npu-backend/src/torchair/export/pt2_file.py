"""Reading files of ``torch.export.save`` without running anything that is in them.

``torch.export.load`` unpickles weights, constants and sample inputs, evaluates the text of sizes, imports classes by
the names in tree specs and turns names of values into code. So a file is looked at first, and torch gets a copy that
holds nothing but what was found harmless: tensors as plain bytes, operators by their names, sizes as arithmetic. What
is only said for people or for checks of torch's own (module stacks, code of guards) is left out of the copy.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch

from ge_graph.errors import ArchiveError, GeError
from torchair.artifact.plain import operator_of

_LIMIT: Final = 1 << 36
_JSON_LIMIT: Final = 1 << 28
_MODEL: Final = "models/model.json"
_INPUTS: Final = "data/sample_inputs/model.pt"
_CONFIGS: Final = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_TENSOR: Final = re.compile(r"data/(weights|constants)/(weight|tensor)_\d+", re.ASCII)
_OTHER: Final = frozenset(("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id"))
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PATH: Final = re.compile(r"[\w.]*", re.ASCII)
_SAID: Final = re.compile(r"[\w.+: -]*", re.ASCII)
_FREE: Final = frozenset(("as_string", "as_strings", "stack_trace"))
"""Texts that torch hands on as values: arguments of operators, and the user's lines."""
_TREES: Final = frozenset(("builtins.tuple", "builtins.list", "builtins.dict"))
_HIGHER: Final = frozenset(f"torch.ops.higher_order.{n}" for n in ("cond", "while_loop", "invoke_subgraph"))
_NUMBERS: Final = frozenset(
    (
        "_operator.add",
        "_operator.sub",
        "_operator.mul",
        "_operator.floordiv",
        "_operator.truediv",
        "_operator.mod",
        "_operator.pow",
        "_operator.neg",
        "_operator.eq",
        "_operator.ne",
        "_operator.lt",
        "_operator.le",
        "_operator.gt",
        "_operator.ge",
        "_operator.and_",
        "_operator.or_",
        "_operator.getitem",
        "math.ceil",
        "math.floor",
        "math.trunc",
        "torch.sym_float",
        "torch.sym_int",
        "torch.sym_ite",
        "torch.sym_max",
        "torch.sym_min",
        "torch.sym_not",
        "torch._sym_sqrt",
    )
)
_SIZES: Final = frozenset(
    (
        "Add",
        "And",
        "CeilDiv",
        "CeilToInt",
        "CleanDiv",
        "Equality",
        "FloatTrueDiv",
        "FloorDiv",
        "FloorToInt",
        "GreaterThan",
        "Identity",
        "IntTrueDiv",
        "Integer",
        "LessThan",
        "Max",
        "Min",
        "Mod",
        "ModularIndexing",
        "Mul",
        "Not",
        "Or",
        "Pow",
        "PowByNatural",
        "PythonMod",
        "Rational",
        "StrictGreaterThan",
        "StrictLessThan",
        "Symbol",
        "ToFloat",
        "TruncToInt",
        "Unequality",
        "Where",
    )
)
_ARITHMETIC: Final = (
    ast.Expression,
    ast.Constant,
    ast.Load,
    ast.BinOp,
    ast.UnaryOp,
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.FloorDiv,
    ast.Mod,
    ast.USub,
    ast.Compare,
    ast.Eq,
    ast.NotEq,
    ast.Lt,
    ast.LtE,
    ast.Gt,
    ast.GtE,
    ast.keyword,
)
_ASSUMED: Final = frozenset(("positive", "integer", "nonnegative"))


def read_program(path: str | PathLike[str]) -> Any:
    """The ``torch.export.ExportedProgram`` in a ``.pt2`` file.

    Args:
        path: A file that ``torch.export.save`` wrote, with torch 2.9 or newer.

    Errors: ArchiveError GE5020 if there is no such file, GE5021 if it is none of that kind or damaged, GE5060 if
        reading it would run something from it: pickled weights or objects, compiled code, functions that are no
        operators.
    """
    file = Path(path)
    if not file.is_file():
        raise ArchiveError("GE5020", "there is no such file", where=str(file), next="give a file of torch.export.save")
    try:
        with zipfile.ZipFile(file) as packed:
            harmless = _harmless(packed, str(file))
        return torch.export.load(harmless)
    except GeError:
        raise
    except Exception as error:
        raise _damaged(f"{type(error).__name__}: {str(error)[:200]}", str(file)) from error


def _harmless(packed: zipfile.ZipFile, where: str) -> io.BytesIO:
    """A copy of the archive with what torch reads without running it."""
    entries = packed.infolist()
    if sum(e.file_size for e in entries) > _LIMIT:
        raise _damaged("it is larger than a program can be", where)
    names: dict[str, str] = {}
    for entry in entries:
        top, _, inner = entry.filename.partition("/")
        if inner in names or not inner or not _PATH.fullmatch(top):
            raise _damaged(f"an entry {entry.filename[:80]!r}", where)
        names[inner] = entry.filename
    if _MODEL not in names:
        raise _damaged("it holds no program called 'model'", where)
    for name in names:
        if name not in (_MODEL, _INPUTS, *_CONFIGS, *_OTHER) and not _TENSOR.fullmatch(name):
            raise _refused(f"it holds '{name[:80]}', which is neither a program nor a tensor", where)
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as out:
        for name, full in names.items():
            content = packed.read(full)
            if name == _MODEL:
                content = json.dumps(_program(_parsed(content, where), where)).encode()
            elif name == _INPUTS:
                content = _inputs(content, where)
            elif name in _CONFIGS:
                _tensors(_parsed(content, where), where)
            out.writestr(zipfile.ZipInfo(f"model/{name}"), content)
    kept.seek(0)
    return kept


def _parsed(content: bytes, where: str) -> Any:
    if len(content) > _JSON_LIMIT:
        raise _damaged("its program is larger than one can be", where)
    return json.loads(content)


def _inputs(content: bytes, where: str) -> bytes:
    """Sample inputs: tensors and plain containers, read without classes and written anew."""
    try:
        value = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise _refused("its sample inputs are pickled objects", where) from error
    again = io.BytesIO()
    torch.save(value, again)
    return again.getvalue()


def _tensors(config: Any, where: str) -> None:
    for name, row in config["config"].items():
        if row.get("use_pickle") is not False:
            raise _refused(f"'{str(name)[:80]}' is pickled", where)
        if not re.fullmatch(r"(weight|tensor)_\d+", row["path_name"]):
            raise _refused(f"'{str(name)[:80]}' is no tensor", where)


def _program(body: Any, where: str) -> Any:
    """The program without what only people and torch's checks read; refused if it names anything but operators."""
    body["guards_code"] = []
    for node in _nodes(body):
        trace = node.get("metadata", {}).get("stack_trace")
        node["metadata"] = {"stack_trace": trace} if isinstance(trace, str) else {}
        _target(node.get("target"), where)
    _texts(body, "", where)
    return body


def _nodes(body: Any) -> Iterator[dict[str, Any]]:
    if isinstance(body, dict):
        if "target" in body and "inputs" in body:
            yield body
        for value in body.values():
            yield from _nodes(value)
    elif isinstance(body, list):
        for value in body:
            yield from _nodes(value)


def _target(target: Any, where: str) -> None:
    if target in _NUMBERS or target in _HIGHER:
        return
    try:
        if not str(target).startswith("torch.ops."):
            raise ValueError(f"{str(target)[:80]!r} is no operator")
        operator_of(str(target).removeprefix("torch.ops."))
    except ValueError as error:
        raise _refused(str(error), where) from None


def _texts(value: Any, key: str, where: str) -> None:
    """Every text in a program is a name, a size, a tree, or a value."""
    if isinstance(value, dict):
        for name, part in value.items():
            if not _PATH.fullmatch(name):
                raise _refused(f"the name {name[:80]!r}", where)
            _texts(part, name, where)
    elif isinstance(value, list):
        for part in value:
            _texts(part, key, where)
    elif key == "as_operator":
        _target(value, where)
    elif isinstance(value, str) and key not in _FREE:
        if key == "expr_str":
            good = _size(value)
        elif key in ("in_spec", "out_spec"):
            good = _tree(json.loads(value)[1])
        elif key in ("name", "as_name", "forward_arg_names"):
            good = not value or _WORD.fullmatch(value) is not None
        else:
            good = (_PATH if key.endswith(("name", "fqn", "target")) else _SAID).fullmatch(value) is not None
        if not good:
            raise _refused(f"the text {value[:80]!r} as {key}", where)


def _size(text: str) -> bool:
    """Whether a text is arithmetic of symbols."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Call):
            known = isinstance(node.func, ast.Name) and node.func.id in _SIZES
            if not known or not all(k.arg in _ASSUMED for k in node.keywords):
                return False
        elif isinstance(node, ast.Name):
            if node.id not in _SIZES and not re.fullmatch(r"z?[a-z]{1,3}\d+|true|false", node.id):
                return False
        elif not isinstance(node, _ARITHMETIC) or _no_word(node):
            return False
    return True


def _no_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and not _WORD.fullmatch(node.value)


def _tree(spec: Any) -> bool:
    """Whether a tree spec is made of tuples, lists and dicts, and names no class to import."""
    kind, parts = spec["type"], spec["children_spec"]
    if kind is not None and kind not in _TREES:
        return False
    context = None if spec["context"] is None else json.loads(spec["context"])
    plain = context is None or (isinstance(context, list) and all(type(k) in (str, int) for k in context))
    return plain and all(map(_tree, parts))


def _refused(what: str, where: str) -> ArchiveError:
    """GE5060: reading a file would run something from it."""
    return ArchiveError(
        "GE5060",
        f"reading this file would run something from it, or it is not known that it would not: {what}",
        where=where,
        next="if you trust it, load it yourself and pass the program: "
        "torchair.dynamo_export(model=torch.export.load(path))",
    )


def _damaged(why: str, where: str) -> ArchiveError:
    return ArchiveError("GE5021", f"no file of torch.export.save: {why}", where=where, next="write the file again")
