"""Where a chip rounds: which operators of a graph see and give which number formats, by the options of GE.

``docs/device.md`` ("Numbers as the chip makes them") says what is shown and what only a device shows. Sources: CANN's
pages of ``--precision_mode_v2``, ``--op_precision_mode``, ``--allow_hf32``, ``--modify_mixlist``,
``--customize_dtypes``, ``INF_NAN_MODE_ENABLE``, and ``Cast``, ``SetHF32`` of Ascend C.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ge_graph import escape, schema
from ge_graph.dtypes import BY_SHORT, BY_TORCH_NAME, DataType
from ge_graph.files import read_plain
from ge_graph.ir import Graph, Node
from ge_runtime import errors
from ge_runtime.cpu.formats import FORMATS, Rounded, hf32, in_range
from ge_runtime.cpu.own_calls import kernel_of
from ge_runtime.cpu.plan_context import input_ports
from ge_runtime.cpu.values import torch_dtype

CHIPS: Final = ("ascend910b", "ascend910_93", "ascend950")
SATURATION: Final = ":saturation"
ACCEPTED: Final = (*CHIPS[:2], *(f"{chip}{SATURATION}" for chip in CHIPS[:2]), CHIPS[2])
"""Values of the option. Only these chips are said to have the mode of saturation, and ascend950 is not among them."""

MATRIX: Final = frozenset(
    (
        "MatMul",
        "MatMulV2",
        "MatMulV3",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "FusedMatMul",
        "GEMM",
        "GroupedMatmul",
        "TransposeBatchMatMul",
    )
)
CONVOLUTION: Final = frozenset(
    f"{name}{d}"
    for name in (
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2DBackpropInput",
        "Conv2DTranspose",
        "Conv3D",
        "Conv3DBackpropFilter",
        "Conv3DBackpropInput",
        "Conv3DTranspose",
        "DepthwiseConv2D",
    )
    for d in ("", "D")
)
_FACTORS: Final = frozenset(("x1", "x2", "a", "b", "x", "weight", "filter", "out_backprop"))
"""Ports whose elements the cube multiplies; what is added, bias and the like, meets float32 in the accumulator."""
_HALVES: Final = (DataType.DT_FLOAT16, DataType.DT_BF16)
_FILE: Final = 1 << 20  # bytes
_NAMES: Final = {
    **BY_TORCH_NAME,
    **BY_SHORT,
    "float": DataType.DT_FLOAT,
    "hifloat8": DataType.DT_HIFLOAT8,
    **{d.name.lower().removeprefix("dt_"): d for d in DataType},
}


class _Mode(NamedTuple):
    """What a precision mode does.

    Attributes:
        kind: The format; None leaves everything as it is.
        which: ``all`` operators, the ``cube``'s, or those on the white ``list``.
        results: Whether results are rounded too.
        chips: Where it exists.
    """

    kind: DataType | None = None
    which: str = ""
    results: bool = True
    chips: tuple[str, ...] = CHIPS


_MODES: Final = {
    "origin": _Mode(),
    "fp16": _Mode(DataType.DT_FLOAT16, "all"),
    "cube_fp16in_fp32out": _Mode(DataType.DT_FLOAT16, "cube", results=False),
    "mixed_float16": _Mode(DataType.DT_FLOAT16, "list"),
    "mixed_bfloat16": _Mode(DataType.DT_BF16, "list"),
    "mixed_hif8": _Mode(DataType.DT_HIFLOAT8, "list", results=False, chips=("ascend950",)),
    "cube_hif8": _Mode(DataType.DT_HIFLOAT8, "cube", results=False, chips=("ascend950",)),
}
_OLDER: Final = {
    "force_fp16": _MODES["fp16"],
    "must_keep_origin_dtype": _MODES["origin"],
    "allow_fp32_to_bf16": _MODES["origin"],
    "force_fp32": _MODES["cube_fp16in_fp32out"],
    "cube_fp16in_fp32out": _MODES["cube_fp16in_fp32out"],
    "allow_mix_precision": _MODES["mixed_float16"],
    "allow_mix_precision_fp16": _MODES["mixed_float16"],
    "allow_mix_precision_bf16": _MODES["mixed_bfloat16"],
    "allow_fp32_to_fp16": _Mode(DataType.DT_FLOAT16, "cube"),
}
_FP32, _HF32 = "enable_float_32_execution", "enable_hi_float_32_execution"


@dataclass(slots=True)
class Rounding:
    """What one operator rounds.

    Attributes:
        path: ``NODE``, or ``NODE/SLOT/…/NODE`` for one in the graph of another.
        node: The operator.
        why: For people: ``operands as HF32``.
        operands: Port to what its floating numbers become before the operator sees them.
        results: For each result the type whose numbers it has; None leaves them.
        wide: Compute in float32 and round once to the type of the result.
        saturates: Whether results have neither infinity nor NaN.
        instead: A kernel in place of the engine's.
    """

    path: str
    node: Node
    why: list[str] = field(default_factory=list)
    operands: dict[str, Rounded] = field(default_factory=dict)
    results: list[DataType | None] = field(default_factory=list)
    wide: bool = False
    saturates: bool = False
    instead: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        self.results = [None for _ in self.node.outputs]

    @property
    def text(self) -> str:
        """What is rounded, for people."""
        return ", ".join(self.why)

    def around(self, kernel: Callable[..., Any], ports: Sequence[str]) -> Callable[..., Any]:
        """The kernel with rounded operands and results; called as the kernel is."""
        return _named(partial(_call, self.instead or kernel, tuple(ports), self), f"{self.node.op}_rounded")


def _named(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    call.__name__ = name
    return call


def _call(kernel: Callable[..., Any], ports: tuple[str, ...], rule: Rounding, /, *args: Any, **kwargs: Any) -> Any:
    given = [_operand(rule, port, a) for port, a in zip(ports, args, strict=False)] + list(args[len(ports) :])
    named = {name: _operand(rule, name, a) for name, a in kwargs.items()}
    made = kernel(*given, **named)
    several = isinstance(made, (tuple, list))
    results = [_result(rule, i, r) for i, r in enumerate(made if several else (made,))]
    return results if several else results[0]


def _operand(rule: Rounding, port: str, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_operand(rule, port, v) for v in value]
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return value
    rounded = rule.operands.get(port)
    wide = value.float() if rounded is not None or rule.wide else value
    return (wide if rounded is None else rounded(wide)).to(torch.float32 if rule.wide else value.dtype)


def _result(rule: Rounding, index: int, value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.dtype.is_floating_point or value.dtype is torch.float64:
        return value
    kind = rule.results[index] if index < len(rule.results) else None
    if kind is not None:
        value = FORMATS[kind](value.float()).to(value.dtype)
    if rule.wide and index < len(rule.node.outputs):
        value = value.to(torch_dtype(rule.node.outputs[index].dtype))
    if not rule.saturates:
        return value
    return in_range(value, value.dtype if kind is None else torch_dtype(kind))


@dataclass(slots=True)
class ChipNumbers:
    """What a chip rounds in one graph.

    Attributes:
        rules: By ``id`` of the node.
        left: What the options ask for and nobody does here, a sentence each.
    """

    rules: dict[int, Rounding] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def numbers_of(graph: Graph, options: Mapping[str, str], only: frozenset[str] | None = None) -> ChipNumbers:
    """Where the chip of ``engine.numerics`` rounds.

    Args:
        graph: A verified graph; graphs in its nodes count.
        options: Those of GE and of the engine.
        only: Paths of the operators to look at; None means all.

    Errors: EngineError GE4007 for an option or a file that is no good.
    """
    made = ChipNumbers()
    if not options.get("engine.numerics"):
        return made
    asked = _read(options, made.left)
    kept = 0
    _say_absent(graph, asked, made.left)
    for path, node in _walk(graph, ""):
        kernel = kernel_of(node)
        if kernel is None or kernel.updates or node.subgraphs or (only is not None and path not in only):
            continue
        rule = Rounding(path, node)
        if not kernel.views:
            kept += _decide(asked, rule, input_ports(node, kernel))
        _cast(rule)
        if asked.saturation and not kernel.views and any(e.dtype.is_float for e in node.outputs):
            rule.saturates = True
            rule.why.append("results saturate")
        if rule.why:
            made.rules[id(node)] = rule
    if kept:
        made.left.append(f"{kept} operators of 16-bit types keep their type under the precision mode")
    return made


def _say_absent(graph: Graph, asked: _Asked, left: list[str]) -> None:
    """Names in files that no operator of the graph has."""
    nodes = [node for _, node in _walk(graph, "")]
    known = {n.name for n in nodes} | {f"OpType::{n.op}" for n in nodes}
    for option, names in (("customize_dtypes", asked.types), ("op_precision_mode", asked.by_node)):
        for name in names:
            if name not in known:
                left.append(
                    f"no operator of graph '{escape.line(graph.name, 60)}' is {escape.line(name, 100)}, which "
                    f"{option} names"
                )


def _walk(graph: Graph, before: str) -> Iterator[tuple[str, Node]]:
    for node in graph.nodes:
        yield before + node.name, node
        for slot, inner in node.subgraphs.items():
            yield from _walk(inner, f"{before}{node.name}/{slot}/")


class _Asked(NamedTuple):
    """The options, read."""

    saturation: bool
    mode: _Mode
    hf32: tuple[bool, bool]  # convolutions, matrix products
    hf32_set: bool
    by_type: Mapping[str, str]
    by_node: Mapping[str, str]
    white: frozenset[str]
    types: Mapping[str, tuple[tuple[DataType, ...], tuple[DataType, ...]]]


def _read(options: Mapping[str, str], left: list[str]) -> _Asked:
    value = options["engine.numerics"]
    if value not in ACCEPTED:
        raise errors.bad_option("engine.numerics", value, ", ".join(ACCEPTED))
    chip = value.removesuffix(SATURATION)
    mode = _MODES["origin"]
    for key, known in (("ge.exec.precision_mode", _OLDER), ("ge.exec.precision_mode_v2", _MODES)):
        if name := options.get(key, ""):
            here = sorted(n for n, m in known.items() if chip in m.chips)
            if name not in here:
                raise errors.bad_option(key, name, f"on {chip}: {', '.join(here)}")
            mode = known[name]
    allowed = options.get("ge.exec.allow_hf32", "")
    if allowed and (len(allowed) != 2 or set(allowed) - set("01")):
        raise errors.bad_option("ge.exec.allow_hf32", allowed, "'00', '01', '10', '11'")
    digits = allowed or "10"
    by_type, by_node = _precisions(options.get("ge.exec.op_precision_mode", ""), left)
    white = _white_list(options.get("ge.exec.modify_mixlist", ""))
    if mode.which == "list":
        left.append(
            "the lists of mixed precision stand in an installed CANN: here operators of the cube are on the "
            "white list, and those that modify_mixlist adds; all others are on the black list"
        )
    elif options.get("ge.exec.modify_mixlist"):
        left.append("modify_mixlist needs a mixed precision mode")
    types = _types(options.get("ge.customizeDtypes", ""))
    return _Asked(
        value != chip, mode, (digits[0] == "1", digits[1] == "1"), bool(allowed), by_type, by_node, white, types
    )


def _text(key: str, path: str, what: str) -> str:
    try:
        return read_plain(path, _FILE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise errors.bad_option(key, path, f"{what}; {escape.line(str(error), 200)}") from error


def _precisions(path: str, left: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Precision by type of operator and by node."""
    key, what = "ge.exec.op_precision_mode", "an ini file of lines 'OpType = mode', below [ByOpType] or [ByNodeName]"
    if not path:
        return {}, {}
    parser = ConfigParser(default_section="", delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = lambda optionstr: optionstr  # type: ignore[method-assign] # names keep their case
    text = _text(key, path, what)
    try:
        parser.read_string(text if text.lstrip().startswith("[") else f"[ByOpType]\n{text}")
    except IniError as error:
        raise errors.bad_option(key, path, f"{what}; {escape.line(str(error), 200)}") from error
    if unknown := set(parser.sections()) - {"ByOpType", "ByNodeName"}:
        raise errors.bad_option(key, path, f"{what}; it has [{escape.line(min(unknown), 100)}]")
    by_type, by_node = (dict(parser[section]) if section in parser else {} for section in ("ByOpType", "ByNodeName"))
    for name, asked in {**by_type, **by_node}.items():
        if asked not in (_FP32, _HF32):
            left.append(f"op_precision_mode {name} = {asked}: only a device shows it")
    for name in by_type.keys() - MATRIX - CONVOLUTION:
        if by_type[name] in (_FP32, _HF32):
            left.append(f"op_precision_mode {name} = {by_type[name]}: HF32 concerns products and convolutions only")
    return by_type, by_node


def _white_list(path: str) -> frozenset[str]:
    """Types of operators that mixed precision takes."""
    key, what = "ge.exec.modify_mixlist", "a JSON file such as {'white-list': {'to-add': ['Softmax']}, 'black-list': …}"
    if not path:
        return MATRIX | CONVOLUTION
    try:
        data = json.loads(_text(key, path, what))
        lists = {name: data.get(name, {}) for name in ("white-list", "black-list")}
        moved = {(name, verb): lists[name].get(verb, []) for name in lists for verb in ("to-add", "to-remove")}
        known = set(data) <= set(lists) and all(set(v) <= {"to-add", "to-remove"} for v in lists.values())
        good = known and all(isinstance(ops, list) and all(isinstance(o, str) for o in ops) for ops in moved.values())
    except (ValueError, AttributeError, TypeError, RecursionError):
        good = False
    if not good:
        raise errors.bad_option(key, path, what)
    white = (MATRIX | CONVOLUTION) - set(moved["white-list", "to-remove"]) - set(moved["black-list", "to-add"])
    return white | set(moved["white-list", "to-add"])


def _types(path: str) -> dict[str, tuple[tuple[DataType, ...], tuple[DataType, ...]]]:
    """Element types of inputs and outputs by name of a node, or by ``OpType::TYPE``."""
    key = "ge.customizeDtypes"
    what = "a file of lines 'NAME::InputDtype:float16,float16,OutputDtype:float16' or 'OpType::TYPE:InputDtype:…'"
    found: dict[str, tuple[tuple[DataType, ...], tuple[DataType, ...]]] = {}
    for number, line in enumerate(_text(key, path, what).splitlines() if path else (), 1):
        if not (line := line.strip()):
            continue
        head, _, tail = line.partition("InputDtype:")
        ins, _, outs = tail.partition("OutputDtype:")
        name = head.rstrip(":").strip()
        try:
            kinds = [tuple(_NAMES[t.strip().lower()] for t in text.split(",") if t.strip()) for text in (ins, outs)]
        except KeyError as error:
            raise errors.bad_option(
                key, path, f"{what}; line {number} has type {escape.line(str(error), 60)}"
            ) from None
        if not name or not any(kinds):
            raise errors.bad_option(key, path, f"{what}; line {number} is {escape.line(line, 100)!r}")
        found[name] = (kinds[0], kinds[1])
    return found


def _decide(asked: _Asked, rule: Rounding, ports: Sequence[str]) -> bool:
    """Fill a rule by the options; whether a 16-bit operator keeps its type though the mode asks for another."""
    node = rule.node
    own = asked.types.get(node.name) or asked.types.get(f"OpType::{node.op}")
    if own is not None:
        _custom(rule, ports, own)
        return False
    factors = {t.dtype for p, e in zip(ports, node.inputs) if p in _FACTORS for t in _edges(e)}
    cube = (node.op in MATRIX or node.op in CONVOLUTION) and len(factors) == 1 and next(iter(factors)).is_float
    rule.wide = cube and factors <= set(_HALVES)
    if rule.wide:
        rule.why.append("float32 in the accumulator, rounded once")
    mode = asked.mode
    kind = mode.kind
    listed = node.op in asked.white and (cube or node.op not in MATRIX | CONVOLUTION)
    chosen = {"all": True, "cube": cube, "list": listed}.get(mode.which, False)
    floats = [t.dtype for t in (*node.operands(), *node.outputs) if t.dtype.is_float]
    if kind is not None and chosen and node.op != "Cast" and floats and _takes(node, kind):
        if mode.results and any(d in _HALVES and d is not kind for d in floats):
            return True
        said = partial(_cast_to, kind=kind, saturates=asked.saturation)
        rule.operands = {p: said for p in ports if kind is not DataType.DT_HIFLOAT8 or p in _FACTORS}
        lowered = kind if mode.results else None
        rule.results = [lowered if e.dtype is DataType.DT_FLOAT else None for e in node.outputs]
        rule.wide = rule.wide or kind is DataType.DT_HIFLOAT8
        both = " and results" if mode.results else ""
        rule.why.append(f"operands{both} as {kind.name.removeprefix('DT_').lower()}")
        return False
    if cube and DataType.DT_FLOAT in factors and _uses_hf32(asked, node):
        rule.operands = {p: partial(hf32, away=node.op in MATRIX) for p in ports if p in _FACTORS}
        rule.why.append("operands as HF32")
    return False


def _edges(entry: Any) -> tuple[Any, ...]:
    """The tensors of a port."""
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def _cast_to(x: Tensor, *, kind: DataType, saturates: bool) -> Tensor:
    rounded = FORMATS[kind](x)
    return in_range(rounded, torch_dtype(kind)) if saturates else rounded


def _takes(node: Node, kind: DataType) -> bool:
    """Whether the operator is defined for a type in the place of its float32; nobody lists HiFloat8."""
    known = schema.get(node.op)
    if known is None or kind is DataType.DT_HIFLOAT8:
        return known is not None
    ports = [p for p in (*known.inputs, *known.outputs) if DataType.DT_FLOAT in p.domain or kind in p.domain]
    return bool(ports) and any(kind in p.domain for p in ports)


def _uses_hf32(asked: _Asked, node: Node) -> bool:
    """By node, then ``allow_hf32``, then by type, then the operator's own attribute and GE's default."""
    if (said := asked.by_node.get(node.name)) in (_FP32, _HF32):
        return said == _HF32
    default = asked.hf32[0 if node.op in CONVOLUTION else 1]
    if asked.hf32_set:
        return default
    if (said := asked.by_type.get(node.op)) in (_FP32, _HF32):
        return said == _HF32
    own = node.attr("enable_hf32", None)
    return default if own is None else bool(own)


def _custom(rule: Rounding, ports: Sequence[str], kinds: tuple[Sequence[DataType], Sequence[DataType]]) -> None:
    node, (ins, outs) = rule.node, kinds
    fed = [next(iter(e), None) if isinstance(e, tuple) else e for e in node.inputs]
    wrong = [*zip(fed, ins), *zip(node.outputs, outs)]
    if (
        len(ins) > len(ports)
        or len(outs) > len(node.outputs)
        or any(edge is not None and edge.dtype.is_float is not (d in FORMATS) for edge, d in wrong)
    ):
        fits = f"types for {', '.join(ports)} and {len(node.outputs)} outputs, floating ones where the graph has these"
        raise errors.bad_option("ge.customizeDtypes", node.name, f"for {node.op} {fits}")
    rule.operands = {p: FORMATS[d] for p, d in zip(ports, ins) if d in FORMATS}
    for index, kind in enumerate(outs):
        if kind in FORMATS and node.outputs[index].dtype is DataType.DT_FLOAT:
            rule.results[index] = kind
    rule.wide = True
    rule.why.append("types of customize_dtypes")


def _cast(rule: Rounding) -> None:
    """Casts of floats to integers end at the limits of the type."""
    node = rule.node
    source = next(iter(node.operands()), None)
    if node.op != "Cast" or source is None or not source.dtype.is_float:
        return
    target = node.outputs[0].dtype
    if source.dtype in (DataType.DT_FLOAT, *_HALVES) and target in (
        DataType.DT_INT16,
        DataType.DT_INT32,
        DataType.DT_INT64,
    ):
        rule.instead = partial(_to_integer, dtype=torch_dtype(target))
        rule.why.append("too large becomes the limit")


def _to_integer(x: Tensor, dst_type: int = 0, *, dtype: torch.dtype) -> Tensor:
    """Towards zero; NaN is 0, and what is too large the limit of the type."""
    info = torch.iinfo(dtype)
    wide = torch.nan_to_num(x.double(), nan=0.0, posinf=2.0**64, neginf=-(2.0**64))
    inside = (wide >= float(info.min)) & (wide < float(info.max) + (info.bits < 64))
    whole = torch.where(inside, wide, torch.zeros_like(wide)).to(dtype)
    limit = torch.where(wide > 0, torch.full_like(whole, info.max), torch.full_like(whole, info.min))
    return torch.where(inside, whole, limit)
