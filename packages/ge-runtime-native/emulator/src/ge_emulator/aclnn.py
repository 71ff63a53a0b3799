"""Operator functions (``aclnn*``): what each computes is a row of ``native/aclnn.tsv``.

A row names the function, its arguments in C order (``>`` before what it writes) and one of these forms:

* ``ge:Op(x, y, attr=value)``: a GE operator of the embedded engine; operands in port order, attributes by name.
  Without brackets, and for what ``...`` stands for, ports and attributes have the arguments' names (``aclnn_binding``);
  ``port=None`` feeds none, or leaves out what nobody wants; ``port=flag`` for a result that a call wants if the flag
  of that name is set: else what it gives as a place for it may be of another type and size;
* ``aten:name.overload(self, dim, keepdim=keepDim)``: the ATen operator that the function is modelled on, where GE has
  several operators for it or none with the function's rules of type promotion. Without brackets: all arguments that are
  not written, in order. ``name or None`` leaves out what is 0 or empty, ``name.dtype`` is a tensor's type,
  ``name.int64`` the tensor with that type, ``name.grouped`` the number that GroupedMatmul has for the type of a list,
  ``name.count`` how many members a list has;
* ``npu:name.overload(self, dim=dim)``: torch_npu's operator as its converter makes it (``converted``), where no single
  GE operator of the embedded engine has the function's meaning;
* ``py:name``: a function of ``ge_emulator.aclnn_forms``, ``aclnn_layers`` or ``aclnn_training``.

An operation of ATB is a row of ``native/atb.tsv``: the fields of its parameters and a function of
``ge_emulator.atb_forms``, which takes lists ``inputs`` and ``outputs``.

A last word ``sizes`` says that the sizes of the results depend on data and go back to the caller; ``most``, that the
library has a second planning function, which says how much workspace calls of these operands need at most.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from ge_emulator import (
    aclnn_forms,
    aclnn_layers,
    aclnn_training,
    atb_forms,
    build,
    callers,
    converted,
    fractal,
    trampolines,
)
from ge_emulator.aclnn_binding import TENSORS, Argument, Binding, array_type, attribute, bind, fed_type, says_nothing
from ge_emulator.memory import contiguous, strided
from ge_emulator.refusal import INTERNAL, INVALID, OP_NOT_FOUND, CannRefusal, reply
from ge_emulator.single_op import Prepared
from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_graph.errors import GeError
from ge_graph.schema import OpSchema, PortSchema
from ge_runtime.cpu.kernels.int4 import pack, unpack
from ge_runtime.cpu.values import torch_dtype

_KEPT: Final = 4096


class AclnnRow(NamedTuple):
    """A row of the table.

    Attributes:
        form: ``ge``, ``aten``, ``npu``, ``py`` or ``atb``.
        target: What it names.
        operands: Values in order; a name or a literal.
        keywords: Values by name.
        word: ``sizes``, ``most`` or nothing.
    """

    function: str
    arguments: tuple[Argument, ...]
    form: str
    target: str
    operands: tuple[ast.expr, ...] | None
    keywords: dict[str, ast.expr]
    word: str


def _row(line: str) -> AclnnRow:
    function, arguments, call = line.split("\t")
    call, word = trampolines.last_word(call)
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
    return AclnnRow(function, parsed, form, target, operands, keywords, word)


def _operation(line: str) -> AclnnRow:
    name, fields, form = line.split("\t")
    if "@" not in fields:
        return _row(line.replace(f"\t{form}", f"\tatb:{form}"))
    entries = [entry.partition("@")[0].partition(":") for entry in fields.split()]
    arguments: tuple[Argument, ...] = (Argument("inputs", "tl", False), Argument("outputs", "tl", True))
    arguments += tuple(Argument(field, kind, False) for field, _, kind in entries)
    return AclnnRow(f"atb{name}", arguments, "atb", form, None, {}, "")


@lru_cache(maxsize=1)
def table() -> dict[str, AclnnRow]:
    """All rows, by function; an operation of ATB as ``atb`` and its name."""
    rows = []
    for file, read in (("aclnn.tsv", _row), ("atb.tsv", _operation)):
        lines = (build.sources() / file).read_text().splitlines()
        rows += [read(line) for line in lines if line and not line.startswith("#")]
    return {row.function: row for row in rows}


def python_form(name: str) -> Callable[..., Any]:
    """The function of that name."""
    places = (aclnn_forms, aclnn_layers, aclnn_training)
    return next(getattr(place, name) for place in places if hasattr(place, name))  # type: ignore[no-any-return]


def served() -> set[str]:
    """All names of the table, those of second planning functions among them."""
    return {*table(), *(f"{row.function}{trampolines.MOST}" for row in table().values() if row.word == "most")}


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
            form = python_form(name)
            self.run = form(variant) if variant else form
        elif row.form == "atb":
            self.run = getattr(atb_forms, row.target)
        elif row.form == "aten":
            self.run = self._aten()
        elif row.form == "npu":
            self.run = self._npu()
        else:
            self.run = self._ge()

    def _aten(self) -> Callable[[dict[str, Any], list[Any]], Any]:
        name, _, overload = self.row.target.partition(".")
        op = getattr(getattr(torch.ops.aten, name), overload or "default")
        row = self.row
        if row.operands is None:
            # the first argument of an in-place function is read as well as written
            first = row.arguments[0]
            read = [a.name for a in row.arguments if not says_nothing(a.name) and (not a.written or a is first)]
            return lambda arguments, _: op(*[arguments[n] for n in read])
        operands, keywords = row.operands, row.keywords
        return lambda arguments, _: op(
            *[_value(o, arguments) for o in operands], **{k: _value(v, arguments) for k, v in keywords.items()}
        )

    def _npu(self) -> Callable[[dict[str, Any], list[Any]], Any]:
        row = self.row
        passed = {
            n.id
            for v in (*(row.operands or ()), *row.keywords.values())
            for n in ast.walk(v)
            if isinstance(n, ast.Name)
        }
        for argument, value in zip(row.arguments, self.values):
            if value and not argument.written and argument.name not in passed and not says_nothing(argument.name):
                raise CannRefusal(INVALID, f"EZ9999: {row.function}: the emulator computes without {argument.name}")
        return lambda arguments, _: converted.run(
            row.target,
            [_value(o, arguments) for o in row.operands or ()],
            {k: _value(v, arguments) for k, v in row.keywords.items()},
        )

    def _ge(self) -> Callable[[dict[str, Any], list[Any]], Any]:
        """A graph of one operator. Results have the types of what is written, so the schema decides what is allowed."""
        row = self.row
        op_schema = schema.require(row.target)
        operands = (ast.Constant(...),) if row.operands is None else row.operands
        bound = bind(op_schema, row.arguments, operands, row.keywords)
        given = {a.name: v for a, v in zip(row.arguments, self.values)}
        kinds = {a.name: a.kind for a in row.arguments}
        # a tensor without elements means none; how many it has is known when it runs
        unread = [n for n in bound.unused if kinds[n] in TENSORS]
        for name in bound.unused:
            if given[name] and name not in unread:
                raise CannRefusal(INVALID, f"EZ9999: {row.function}: the emulator computes without {name}")
        inputs: list[dict[str, Any]] = []
        feeds: list[Feed] = []
        for port, argument in zip(op_schema.inputs, bound.inputs):
            if argument is None or given[argument] is None or given[argument] == []:
                continue
            for index, dtype, rank in _members(port, kinds[argument], given[argument]):
                feeds.append(Feed(argument, index, dtype))
                inputs.append({"dtype": int(dtype), "rank": rank, "port": port.name})
        in_type = next((i["dtype"] for i in inputs), 0)
        outputs: list[dict[str, Any]] = []
        places: dict[str, list[int]] = {}
        unwanted = _unwanted(op_schema, bound, given)
        for result, argument in zip(op_schema.outputs, bound.outputs):
            told = None if argument is None or argument in unwanted else given[argument]
            of_input = in_type in result.domain and argument not in unwanted
            other = in_type if of_input else int(result.dtypes[0])
            if argument is not None and kinds[argument] == "tl":
                types = [t[1] for t in told[1]] if told else []
            else:
                types = [] if result.kind == "dynamic" and told is None else [told[1] if told else other]
            types = [int(fed_type(result, DataType(t))) for t in types]
            if argument is not None:
                places[argument] = list(range(len(outputs), len(outputs) + len(types)))
            outputs += [{"dtype": dtype, "rank": 0} for dtype in types]
        # numbers and lists of numbers come with a word before them that says so
        plain = {n: v[-1] if kinds[n] in ("s", "sl") and v is not None else v for n, v in given.items()}
        attrs = {}
        for name, node in bound.attrs.items():
            spec = op_schema.attr(name)
            value = _value(node, plain)
            if spec is not None and value is not None:
                attrs[name] = [spec.kind.value, attribute(spec.kind, value)]
        call = {"op": row.target, "inputs": inputs, "outputs": outputs, "attrs": attrs}
        program = Prepared(call).program
        written = [a for a in row.arguments if a.written]
        order = [
            (i, a.name not in unwanted)
            for a in written
            for i in places.get(a.name, [None] * (len(given[a.name][1]) if a.kind == "tl" and given[a.name] else 1))
        ]

        def run(arguments: dict[str, Any], written_to: list[Any]) -> list[Any]:
            for name in unread:
                value = arguments[name]
                if any(t is not None and t.numel() for t in (value if isinstance(value, list) else [value])):
                    raise CannRefusal(INVALID, f"EZ9999: {row.function}: the emulator computes without {name}")
            results = program.run([feed.of(arguments) for feed in feeds])
            return [None if i is None else _as_written(results[i], o, w) for (i, w), o in zip(order, written_to)]

        return run


def _unwanted(op: OpSchema, bound: Binding, given: dict[str, Any]) -> set[str | None]:
    """What is written that this call does not want; its place may have another type and size."""
    flags = [(bound.wanted.get(port.name), argument) for port, argument in zip(op.outputs, bound.outputs)]
    return {argument for flag, argument in flags if flag is not None and not given[flag]}


def _as_written(result: torch.Tensor, output: torch.Tensor | None, wanted: bool = True) -> torch.Tensor | None:
    """A result under the type of what is written, where that names the same bits otherwise."""
    if output is None or output.numel() == 0 and result.numel() or not wanted and output.shape != result.shape:
        return None  # a place without elements means that nobody wants the result
    if result.dtype is output.dtype:
        return result
    if output.dtype is torch.int32 and result.dtype is torch.int8:
        return pack(result) if result.numel() == 8 * output.numel() else result
    unsigned = result.dtype in (torch.uint64, torch.uint32) and result.itemsize == output.itemsize
    eighths = result.itemsize == output.itemsize == 1 and output.dtype is torch.uint8
    return result.view(output.dtype) if unsigned or eighths else result


class Feed(NamedTuple):
    """What a port takes: an argument, its member if it is a list, and the type under which the port takes it."""

    argument: str
    member: int
    dtype: DataType

    def of(self, arguments: dict[str, Any]) -> torch.Tensor:
        """The tensor."""
        value = arguments[self.argument]
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            value = value[self.member]
        wanted = torch_dtype(self.dtype)
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value, dtype=wanted)
        if self.dtype is DataType.DT_INT4 and value.dtype is torch.int32:
            return unpack(value)
        return value if value.dtype is wanted else value.view(wanted)


def _members(port: PortSchema, kind: str, value: Any) -> list[tuple[int, DataType, int]]:
    """Place, type and rank of each tensor that an argument gives to a port."""
    if kind == "t":
        return [(0, fed_type(port, DataType(value[1])), value[2])]
    if kind == "tl":
        return [(i, fed_type(port, DataType(v[1])), v[2]) for i, v in enumerate(value[1]) if v is not None]
    if kind == "s":
        given = DataType(value[1])
        return [(0, given if given in port.domain else port.dtypes[0], 0)]
    return [(0, array_type(port, kind), 1 if kind in ("ia", "fa", "ba", "sl") else 0)]


def _value(node: ast.expr, arguments: dict[str, Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        return _value(node.values[0], arguments) or None
    if isinstance(node, ast.Attribute):
        value = _value(node.value, arguments)
        if node.attr == "int64":
            return value.to(torch.int64)
        if node.attr == "count":
            return len(value[1])
        if node.attr == "grouped":
            return {DataType.DT_BF16: 1, DataType.DT_INT8: 2, DataType.DT_INT32: 3}.get(value[1][0][1], 0)
        return value[1] if isinstance(value, list) else value.dtype
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
        if argument.written and argument.kind == "t" and value is not None and len(value) > 3:
            raise CannRefusal(
                INVALID, f"EZ9999: {call.row.function}: {argument.name} is written in tiles of FRACTAL_NZ"
            )
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
            if output is not None and call.row.word == "sizes":
                sizes.append(",".join(map(str, output.shape)))
            continue
        if call.row.word == "sizes":
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
    return reply(0, ";".join(sizes).encode()) if call.row.word == "sizes" else 0


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
    tiles = [next(words) for _ in range(next(words))] if len(value) > 3 else []
    try:
        dtype = torch_dtype(DataType(value[1]))
    except (ValueError, GeError) as error:
        raise CannRefusal(INVALID, f"element type {value[1]}: {error}") from error
    if not tiles:
        return strided(address, dtype, dims, strides, offset)
    turned = len(dims) > 1 and strides[-1] > strides[-2]
    lies = [*dims[:-2], dims[-1], dims[-2]] if turned else dims
    matrix = fractal.to_matrix(contiguous(address, dtype, tiles), lies)
    return matrix.mT if turned else matrix
