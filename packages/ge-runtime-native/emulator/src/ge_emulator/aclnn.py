"""Operator functions (``aclnn*``): what each computes is a row of ``native/aclnn.tsv``.

A row names the function, its arguments in C order (``>`` before what it writes) and one of three forms:

* ``ge:Op(x, y, attr=value)``: a GE operator of the embedded engine; operands in port order, attributes by name;
* ``aten:name.overload(self, dim, keepdim=keepDim)``: the ATen operator that the function is modelled on, where GE has
  several operators for it or none with the function's rules of type promotion. Without brackets: all arguments that are
  not written, in order. ``name or None`` leaves out what is 0 or empty, ``name.dtype`` is a tensor's type;
* ``py:name``: a function of ``ge_emulator.aclnn_forms``.

An operation of ATB is a row of ``native/atb.tsv``: the fields of its parameters and a function of
``ge_emulator.atb_forms``, which takes lists ``inputs`` and ``outputs``.

A last word ``sizes`` says that the sizes of the results depend on data and go back to the caller.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from ge_emulator import aclnn_forms, atb_forms, build, callers
from ge_emulator.memory import strided
from ge_emulator.refusal import INTERNAL, INVALID, OP_NOT_FOUND, CannRefusal, reply
from ge_emulator.single_op import Prepared
from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_graph.errors import GeError
from ge_runtime.cpu.values import torch_dtype

_KEPT: Final = 4096
_NOT_PASSED: Final = ("cubeMathType", "innerPrecise", "buffer")  # how a core computes, and what follows from the rest


class Argument(NamedTuple):
    """An argument of a function: name, kind (see ``trampolines``), whether the function writes it."""

    name: str
    kind: str
    written: bool


class AclnnRow(NamedTuple):
    """A row of the table.

    Attributes:
        form: ``ge``, ``aten``, ``py`` or ``atb``.
        target: What it names.
        operands: Values in order; a name or a literal.
        keywords: Values by name.
    """

    function: str
    arguments: tuple[Argument, ...]
    form: str
    target: str
    operands: tuple[ast.expr, ...] | None
    keywords: dict[str, ast.expr]
    sizes: bool


def _row(line: str) -> AclnnRow:
    function, arguments, call = line.split("\t")
    call, _, last = call.partition(" sizes")
    parsed = tuple(
        Argument(*entry.lstrip(">").split(":"), entry.startswith(">"))  # type: ignore[arg-type, call-arg]
        for entry in arguments.split()
    )
    form, _, text = call.partition(":")
    target, bracket, _ = text.partition("(")
    operands: tuple[ast.expr, ...] | None = None
    keywords: dict[str, ast.expr] = {}
    if bracket:
        tree = ast.parse(f"f{text[len(target) :]}", mode="eval").body  # read as a tree, never executed
        if not isinstance(tree, ast.Call):
            raise ValueError(line)
        operands = tuple(tree.args)
        keywords = {k.arg: k.value for k in tree.keywords if k.arg}
    return AclnnRow(function, parsed, form, target, operands, keywords, " sizes" in line.split("\t")[2])


def _operation(line: str) -> AclnnRow:
    name, fields, form = line.split("\t")
    if "@" not in fields:
        return _row(line.replace(f"\t{form}", f"\tatb:{form}"))
    entries = [entry.partition("@")[0].partition(":") for entry in fields.split()]
    arguments: tuple[Argument, ...] = (Argument("inputs", "tl", False), Argument("outputs", "tl", True))
    arguments += tuple(Argument(field, kind, False) for field, _, kind in entries)
    return AclnnRow(f"atb{name}", arguments, "atb", form, None, {}, False)


@lru_cache(maxsize=1)
def table() -> dict[str, AclnnRow]:
    """All rows, by function; an operation of ATB as ``atb`` and its name."""
    rows = []
    for file, read in (("aclnn.tsv", _row), ("atb.tsv", _operation)):
        lines = (build.sources() / file).read_text().splitlines()
        rows += [read(line) for line in lines if line and not line.startswith("#")]
    return {row.function: row for row in rows}


class _Call:
    """A function with all arguments but the contents of tensors."""

    def __init__(self, data: bytes) -> None:
        asked = json.loads(data)
        row = table().get(asked["function"])
        if row is None:
            raise CannRefusal(OP_NOT_FOUND, f"[GE4003] {asked['function']} is not in the emulator's table")
        self.row = row
        self.values = asked["args"]
        self.run: Callable[[dict[str, Any], list[Any]], Any]
        if row.form == "py":
            name, _, variant = row.target.partition(".")
            form = getattr(aclnn_forms, name)
            self.run = form(variant) if variant else form
        elif row.form == "atb":
            self.run = getattr(atb_forms, row.target)
        elif row.form == "aten":
            self.run = self._aten()
        else:
            self.run = self._ge()

    def _aten(self) -> Callable[[dict[str, Any], list[Any]], Any]:
        name, _, overload = self.row.target.partition(".")
        op = getattr(getattr(torch.ops.aten, name), overload or "default")
        row = self.row
        if row.operands is None:
            # the first argument of an in-place function is read as well as written
            first = row.arguments[0]
            read = [a.name for a in row.arguments if a.name not in _NOT_PASSED and (not a.written or a is first)]
            return lambda arguments, _: op(*[arguments[n] for n in read])
        operands, keywords = row.operands, row.keywords
        return lambda arguments, _: op(
            *[_value(o, arguments) for o in operands], **{k: _value(v, arguments) for k, v in keywords.items()}
        )

    def _ge(self) -> Callable[[dict[str, Any], list[Any]], Any]:
        """A graph of one operator. Results have the types of what is written, so the schema decides what is allowed."""
        row = self.row
        op_schema = schema.require(row.target)
        kinds = {a.name: v for a, v in zip(row.arguments, self.values)}
        names = [operand.id for operand in row.operands or () if isinstance(operand, ast.Name)]
        passed = {n.id for v in row.keywords.values() for n in ast.walk(v) if isinstance(n, ast.Name)}.union(names)
        for argument, value in zip(row.arguments, self.values):
            if value and not argument.written and argument.name not in (*passed, *_NOT_PASSED):
                raise CannRefusal(INVALID, f"EZ9999: {row.function}: the emulator computes without {argument.name}")
        fed = [name for name in names if kinds[name] is not None]
        given = [kinds[name] or ("t", -1, 0) for name in names]
        inputs = [{"dtype": dtype, "rank": rank} for _, dtype, rank in given]
        written = [v for a, v in zip(row.arguments, self.values) if a.written and v is not None]
        in_type = inputs[0]["dtype"] if inputs else 0
        others = [in_type if in_type in port.domain else int(port.dtypes[0]) for port in op_schema.outputs]
        outputs = [{"dtype": written[i][1] if i < len(written) else other, "rank": 0} for i, other in enumerate(others)]
        attrs = {}
        for name, node in row.keywords.items():
            spec = op_schema.attr(name)
            if spec is None:
                raise CannRefusal(INTERNAL, f"{row.function}: {row.target} has no attribute '{name}'")
            attrs[name] = [spec.kind.value, _value(node, kinds)]
        program = Prepared({"op": row.target, "inputs": inputs, "outputs": outputs, "attrs": attrs}).program
        return lambda arguments, _: program.run([arguments[n] for n in fed])


def _value(node: ast.expr, arguments: dict[str, Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        return _value(node.values[0], arguments) or None
    if isinstance(node, ast.Attribute) and node.attr == "dtype":
        return _value(node.value, arguments).dtype
    return arguments[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


@lru_cache(maxsize=_KEPT)
def _call_of(data: bytes) -> _Call:
    try:
        return _Call(data)
    except GeError as error:
        raise CannRefusal(INTERNAL, f"EZ9999: {error}") from error


def prepare(data: bytes, words: list[int]) -> bytes:
    """The line of the call; refuses what is not in the table."""
    _call_of(data)
    return reply(0, callers.line().encode())


def run(data: bytes, words: list[int]) -> int | bytes:
    """Compute, then write: what is written may be what is read."""
    call = _call_of(data)
    at = iter(words)
    arguments: dict[str, Any] = {}
    outputs: list[Any] = []
    for argument, value in zip(call.row.arguments, call.values, strict=True):
        arguments[argument.name] = made = _argument(argument.kind, value, at)
        if argument.written:
            outputs += made if argument.kind == "tl" else [made]
    try:
        results = call.run(arguments, outputs)
    except CannRefusal:
        raise
    except Exception as error:
        raise callers.failed_operator(call.row.function, _operands(call.row, arguments), error) from error
    if isinstance(results, torch.Tensor):
        results = [results]
    sizes = []
    for i, (output, result) in enumerate(zip(outputs, results or ())):
        if output is None or result is None:
            if output is not None and call.row.sizes:
                sizes.append(",".join(map(str, output.shape)))
            continue
        if call.row.sizes:
            flat = output.reshape(-1) if output.is_contiguous() else output.flatten()
            flat[: result.numel()].copy_(result.reshape(-1))
            sizes.append(",".join(map(str, result.shape)))
            continue
        if result.shape != output.shape:
            if result.numel() != output.numel():
                what = f"gives {list(result.shape)}, output {i} is {list(output.shape)}"
                raise callers.failed_operator(call.row.function, _operands(call.row, arguments), what)
            result = result.reshape(output.shape)
        output.copy_(result)
    return reply(0, ";".join(sizes).encode()) if call.row.sizes else 0


def _operands(row: AclnnRow, arguments: dict[str, Any]) -> list[Any]:
    """What a call reads, for a message."""
    read = [arguments[a.name] for a in row.arguments if not a.written]
    return [tensor for value in read for tensor in (value if isinstance(value, list) else [value])]


def _argument(kind: str, value: Any, words: Iterator[int]) -> Any:
    if value is None:
        return [] if kind == "tl" else None
    if kind == "t":
        return _tensor(value, words)
    if kind == "tl":
        return [None if v is None else _tensor(v, words) for v in value[1]]
    if kind == "s":
        return complex(*value[2]) if isinstance(value[2], list) else value[2]
    if kind == "sl":
        return value[1]
    if kind == "dt":
        return None if value < 0 or value == 28 else torch_dtype(DataType(value))
    return value


def _tensor(value: Sequence[Any], words: Iterator[int]) -> torch.Tensor:
    address, offset = next(words), next(words)
    dims = [next(words) for _ in range(value[2])]
    strides = [next(words) for _ in range(value[2])]
    try:
        dtype = torch_dtype(DataType(value[1]))
    except (ValueError, GeError) as error:
        raise CannRefusal(INVALID, f"element type {value[1]}: {error}") from error
    return strided(address, dtype, dims, strides, offset)
