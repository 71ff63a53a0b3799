"""Sizes of tensors as numbers: symbolic texts at given values, and the shapes that no converter recorded."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from ge_graph import schema
from ge_graph.cost import attention
from ge_graph.errors import GraphError
from ge_graph.ir import Dim, Graph, Literal, Node, Tensor

Numbers: TypeAlias = "tuple[int, ...]"

_LONGEST: Final = 2000  # characters of one size
_CONSTS: Final = ("Const", "Constant", "ConstPlaceHolder", "FileConstant")
_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
# Names of functions in the texts that torch writes for sizes.
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "Max": max,
    "Min": min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "CeilDiv": lambda a, b: -(-a // b),
    "CeilToInt": math.ceil,
    "FloorToInt": math.floor,
    "ceiling": math.ceil,
    "floor": math.floor,
    "IntTrueDiv": operator.truediv,
    "Identity": lambda x: x,
    "ToFloat": float,
    "TruncToInt": int,
    "PowByNatural": lambda a, b: a**b if abs(b) < 64 else _too_large(),
}


def _too_large() -> Any:
    raise ValueError("an exponent of 64 or more")


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise ValueError("the text is too long")
    return ast.parse(text, mode="eval").body


def _evaluated(tree: ast.expr, sizes: Mapping[str, int]) -> Any:
    if isinstance(tree, ast.Constant) and type(tree.value) in (int, float):
        return tree.value
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_evaluated(tree.operand, sizes)
    if isinstance(tree, ast.BinOp):
        left, right = _evaluated(tree.left, sizes), _evaluated(tree.right, sizes)
        if isinstance(tree.op, ast.Pow):
            return _FUNCTIONS["PowByNatural"](left, right)
        return _BINARY[type(tree.op)](left, right)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        return _FUNCTIONS[tree.func.id](*(_evaluated(a, sizes) for a in tree.args))
    raise ValueError(f"a {type(tree).__name__}")


def number(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """A size as a number, ``None`` if it is unknown (-1), has a symbol without value, or has a form that is not known.

    Nothing in the text runs: it is read as an expression of integers, names and a few functions.
    """
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    if dim in sizes:
        return sizes[dim]
    try:
        value = _evaluated(_parsed(dim), sizes)
    except (ValueError, SyntaxError, KeyError, TypeError, ArithmeticError, RecursionError, MemoryError):
        return None
    return int(value) if value >= 0 else None


def symbols(graph: Graph) -> list[str]:
    """The names in the sizes of the graph's inputs, in the order in which they first stand there."""
    found: dict[str, None] = {}
    for node in graph.inputs:
        for tensor in node.outputs:
            for dim in tensor.known_shape or ():
                if isinstance(dim, str):
                    found.update(dict.fromkeys(_names(dim)))
    return list(found)


def _names(text: str) -> list[str]:
    try:
        tree = _parsed(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called]


def bind(graph: Graph, inputs: Sequence[Sequence[int] | None]) -> dict[str, int]:
    """Values of the symbols from the sizes of the inputs.

    Args:
        graph: The graph.
        inputs: Sizes of each input; None for one that says nothing.

    Raises:
        GraphError: GE3072 if numbers or ranks do not fit, or one symbol would be two numbers.
    """
    nodes = graph.inputs
    if len(inputs) != len(nodes):
        raise _misfit(f"the graph takes {len(nodes)} inputs, got sizes of {len(inputs)}")
    found: dict[str, int] = {}
    for at, (node, given) in enumerate(zip(nodes, inputs)):
        declared = node.outputs[0].known_shape if node.outputs else None
        if given is None or declared is None:
            continue
        if len(declared) != len(given):
            raise _misfit(f"input {at} has {len(declared)} dimensions, got {len(given)}")
        for dim, size in zip(declared, given):
            if isinstance(dim, str) and dim.isidentifier():
                if found.setdefault(dim, size) != size:
                    raise _misfit(f"input {at}: {dim} is {size} here and {found[dim]} before")
            elif isinstance(dim, int) and dim >= 0 and dim != size:
                raise _misfit(f"input {at}: a size is {dim}, got {size}")
    return found


def _misfit(what: str) -> GraphError:
    return GraphError("GE3072", what, next="give the sizes of the graph's inputs in order")


class Shapes:
    """Numbers for the sizes of every tensor of a graph.

    Args:
        graph: The graph; nothing in it changes.
        sizes: Symbol to its value.

    Attributes:
        unknown: Tensors whose size nobody says: neither recorded, nor told by a rule, in the order of the graph.
        ranks: Group of a collective to the number of its ranks, where some node says it.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, int] | None = None) -> None:
        self.sizes = sizes or {}
        self._known: dict[Tensor, Numbers] = {}
        self.unknown: list[Tensor] = []
        self.ranks: dict[str, int] = {}
        for node in graph.nodes:
            self.add(node)

    def of(self, tensor: Tensor) -> Numbers | None:
        """The sizes of a tensor, None if they are unknown."""
        return self._known.get(tensor)

    def elements(self, tensor: Tensor) -> int | None:
        """How many elements a tensor has."""
        shape = self._known.get(tensor)
        return None if shape is None else math.prod(shape)

    def bytes(self, tensor: Tensor) -> int | None:
        """How many bytes a dense tensor takes, without what an allocator adds."""
        count = self.elements(tensor)
        return None if count is None else -(-count * tensor.dtype.bits // 8)

    def add(self, node: Node) -> None:
        """Know the sizes of one more node, whose operands are known already."""
        ranks = node.attr("rank_size")
        if isinstance(ranks, int) and ranks > 0:
            self.ranks.setdefault(str(node.attr("group", "") or ""), ranks)
        missing = []
        for tensor in node.outputs:
            shape = tensor.known_shape
            dims = [number(d, self.sizes) for d in shape] if shape is not None else [None]
            if all(d is not None for d in dims):
                self._known[tensor] = tuple(d for d in dims if d is not None)
            else:
                missing.append(tensor)
        if not missing:
            return
        found = self._rule(node)
        for tensor in missing:
            told = found[tensor.index] if tensor.index < len(found) else None
            if told is not None:
                self._known[tensor] = told
            else:
                self.unknown.append(tensor)

    def _rule(self, node: Node) -> Sequence[Numbers | None]:
        rule = _RULES.get(node.op)
        if rule is not None:
            return rule(self, node)
        if node.op in _ELEMENTWISE:
            shapes = [self._known.get(t) for t in node.operands()]
            return [_broadcast(shapes)] * len(node.outputs)
        return ()

    def values(self, operand: Any) -> list[int] | None:
        """The integers that a tensor of sizes holds, if the graph says them: a constant, or packed sizes of tensors."""
        if not isinstance(operand, Tensor):
            return None
        node = operand.node
        if node.op in _CONSTS:
            return _integers(node.attr("value"))
        if node.op == "Shape" and isinstance(node.inputs[0], Tensor):
            shape = self._known.get(node.inputs[0])
            return None if shape is None else list(shape)
        if node.op in ("Pack", "ConcatV2", "ConcatD", "Concat"):
            parts = [self.values(t) for t in node.operands() if not (node.op != "Pack" and t is node.operands()[-1])]
            return None if any(p is None for p in parts) else [n for p in parts if p is not None for n in p]
        if node.op in ("Reshape", "Unsqueeze", "Squeeze", "Cast", "Identity"):
            return self.values(node.inputs[0])
        return None


def _integers(value: Any) -> list[int] | None:
    if isinstance(value, Literal) or value is None:
        return None
    array = np.asarray(value)
    return [int(v) for v in array.reshape(-1)] if array.size <= 64 and array.dtype.kind in "iu" else None


def _broadcast(shapes: Iterable[Numbers | None]) -> Numbers | None:
    known = list(shapes)
    if not known or any(s is None for s in known):
        return None
    rank = max(len(s) for s in known if s is not None)
    padded = [(1,) * (rank - len(s)) + s for s in known if s is not None]
    return tuple(0 if 0 in dims else max(dims) for dims in zip(*padded))


def _like(index: int) -> Callable[[Shapes, Node], list[Numbers | None]]:
    def rule(shapes: Shapes, node: Node) -> list[Numbers | None]:
        operand = node.inputs[index] if index < len(node.inputs) else None
        shape = shapes.of(operand) if isinstance(operand, Tensor) else None
        return [shape] * len(node.outputs)

    return rule


def _by_value(index: int) -> Callable[[Shapes, Node], list[Numbers | None]]:
    """The second operand, or another, lists the sizes; -1 stands for what is left over."""

    def rule(shapes: Shapes, node: Node) -> list[Numbers | None]:
        wanted = shapes.values(node.inputs[index]) if index < len(node.inputs) else None
        source = shapes.elements(node.inputs[0]) if index and isinstance(node.inputs[0], Tensor) else None
        if wanted is None:
            return [None]
        if -1 in wanted:
            rest = math.prod(d for d in wanted if d != -1)
            if source is None or not rest:
                return [None]
            wanted = [source // rest if d == -1 else d for d in wanted]
        return [tuple(wanted)]

    return rule


def _listed(index: int) -> Callable[[Shapes, Node], list[Numbers | None]]:
    """An operand lists the sizes of the result, all of them positive."""

    def rule(shapes: Shapes, node: Node) -> list[Numbers | None]:
        wanted = shapes.values(node.inputs[index]) if index < len(node.inputs) else None
        return [None if wanted is None or min(wanted, default=0) < 0 else tuple(wanted)]

    return rule


def _broadcast_to(shapes: Shapes, node: Node) -> list[Numbers | None]:
    """The second operand lists the sizes; -1 stands for the size that is there."""
    source = shapes.of(node.inputs[0]) if isinstance(node.inputs[0], Tensor) else None
    wanted = shapes.values(node.inputs[1]) if len(node.inputs) > 1 else None
    if wanted is None or source is None or len(source) > len(wanted):
        return [None]
    there = (1,) * (len(wanted) - len(source)) + source
    return [tuple(have if want == -1 else want for want, have in zip(wanted, there))]


def _shape_of(shapes: Shapes, node: Node) -> list[Numbers | None]:
    operand = node.inputs[0]
    known = shapes.of(operand) if isinstance(operand, Tensor) else None
    rank = operand.known_shape if isinstance(operand, Tensor) else None
    return [(len(known),) if known is not None else (len(rank),) if rank is not None else None]


def _unsqueeze(shapes: Shapes, node: Node) -> list[Numbers | None]:
    shape = shapes.of(node.inputs[0]) if isinstance(node.inputs[0], Tensor) else None
    axes = node.attr("axes") or ()
    if shape is None:
        return [None]
    rank = len(shape) + len(axes)
    places = {a % rank for a in axes}
    rest = iter(shape)
    return [tuple(1 if i in places else next(rest) for i in range(rank))]


def _gather(shapes: Shapes, node: Node) -> list[Numbers | None]:
    x, indices = (shapes.of(t) if isinstance(t, Tensor) else None for t in node.inputs[:2])
    axis = shapes.values(node.inputs[2]) if len(node.inputs) > 2 else [0]
    if x is None or indices is None or not axis:
        return [None]
    at, batch = axis[0] % max(len(x), 1), int(node.attr("batch_dims", 0) or 0)
    return [x[:at] + indices[batch:] + x[at + 1 :]]


def _attention(shapes: Shapes, node: Node) -> list[Numbers | None]:
    """FlashAttentionScore: maximum and sum of each row stand eight times, the third result is empty."""
    query, key, value = (shapes.of(t) if isinstance(t, Tensor) else None for t in node.inputs[:3])
    told = None
    if query is not None and key is not None and value is not None:
        told = attention.read(str(node.attr("input_layout", "")), int(node.attr("head_num", 0)), query, key, value)
    if told is None:
        return [None, None, (0,), None]
    rows = (told.tokens, told.heads, 8) if told.packed else (told.batch, told.heads, told.queries, 8)
    return [rows, rows, (0,), query]


def _cached_attention(shapes: Shapes, node: Node) -> list[Numbers | None]:
    """FusedInferAttentionScore: without ``softmax_lse_flag`` the second result is one number that says nothing."""
    return [None, None if node.attr("softmax_lse_flag") else (1,)]


def _attention_grad(shapes: Shapes, node: Node) -> list[Numbers | None]:
    given = [shapes.of(t) if isinstance(t, Tensor) else None for t in node.inputs[:3]]
    shift = node.inputs[4] if len(node.inputs) > 4 else None
    return [*given, shapes.of(shift) if isinstance(shift, Tensor) else (0,)]


def _pooled(shapes: Shapes, node: Node) -> list[Numbers | None]:
    """A pool that also says where its results come from: both are of one size."""
    known = [shapes.of(t) for t in node.outputs]
    whole = next((s for s in known if s is not None), None)
    return [whole] * len(node.outputs)


def _multiplied(shapes: Shapes, node: Node) -> list[Numbers | None]:
    """A matrix product: dimensions in front of the matrices are broadcast."""
    a, b = (shapes.of(t) if isinstance(t, Tensor) else None for t in node.inputs[:2])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return [None]
    turned = [bool(node.attr(f"transpose_x{i}") or node.attr(f"adj_x{i}")) for i in (1, 2)]
    front = _broadcast([a[:-2], b[:-2]])
    return [None if front is None else (*front, a[-1 if turned[0] else -2], b[-2 if turned[1] else -1])]


def _convolved(shapes: Shapes, node: Node) -> list[Numbers | None]:
    """Conv2D and Conv3D: windows over padded spatial sizes; strides and dilations have one entry a dimension."""
    x, kernel = (shapes.of(t) if isinstance(t, Tensor) else None for t in node.inputs[:2])
    layout = str(node.attr("data_format", "") or "")
    if x is None or kernel is None or not layout.startswith("NC") or not len(x) == len(kernel) == len(layout):
        return [None]
    pads, spatial = list(node.attr("pads") or ()), len(x) - 2
    strides, dilations = (list(node.attr(name) or [1] * len(x))[2:] for name in ("strides", "dilations"))
    if len(pads) != 2 * spatial or not len(strides) == len(dilations) == spatial:
        return [None]
    sizes = [
        (x[2 + i] + pads[2 * i] + pads[2 * i + 1] - dilations[i] * (kernel[2 + i] - 1) - 1) // strides[i] + 1
        for i in range(spatial)
    ]
    return [(x[0], kernel[0], *sizes)]


_ELEMENTWISE: Final = frozenset(
    [
        "Abs",
        "Add",
        "AddV2",
        "Axpy",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "Ceil",
        "ClipByValue",
        "Cos",
        "Div",
        "DivNoNan",
        "Equal",
        "Erf",
        "Erfc",
        "Exp",
        "Expm1",
        "Floor",
        "FloorDiv",
        "FloorMod",
        "Gelu",
        "GeluV2",
        "Greater",
        "GreaterEqual",
        "HardSwish",
        "Identity",
        "IsFinite",
        "IsInf",
        "IsNan",
        "Less",
        "LessEqual",
        "Log",
        "Log1p",
        "LogicalAnd",
        "LogicalNot",
        "LogicalOr",
        "LogicalXor",
        "Maximum",
        "Minimum",
        "Mod",
        "Mul",
        "Muls",
        "Neg",
        "Not",
        "NotEqual",
        "OnesLike",
        "Pow",
        "RealDiv",
        "Reciprocal",
        "Relu",
        "RightShift",
        "LeftShift",
        "Round",
        "Rsqrt",
        "Select",
        "SelectV2",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Sqrt",
        "Square",
        "SquaredDifference",
        "Sub",
        "Swish",
        "Tan",
        "Tanh",
        "TensorMove",
        "Threshold",
        "ZerosLike",
        "Adds",
        "Assign",
    ]
)
_RULES: Final[Mapping[str, Callable[[Shapes, Node], Sequence[Numbers | None]]]] = {
    "Shape": _shape_of,
    "BroadcastTo": _broadcast_to,
    "Reshape": _by_value(1),
    "Fill": _by_value(0),
    "Unsqueeze": _unsqueeze,
    "GatherV2": _gather,
    "Gather": _gather,
    "FlashAttentionScore": _attention,
    "FlashAttentionScoreGrad": _attention_grad,
    "FusedInferAttentionScore": _cached_attention,
    "Rank": lambda shapes, node: [()],
    "Size": lambda shapes, node: [()],
    **{op: _multiplied for op in ("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")},
    **{op: _listed(0) for op in ("Conv2DBackpropInput", "Conv3DBackpropInput", "Conv2DTranspose", "Conv3DTranspose")},
    **{op: _listed(1) for op in ("Conv2DBackpropFilter", "Conv3DBackpropFilter")},
    "Conv2D": _convolved,
    "Conv3D": _convolved,
    "Conv3DV2": _convolved,
    "MaxPoolWithArgmaxV1": _pooled,
    "MaxPool3DWithArgmaxV2": _pooled,
    **{op: _like(0) for op in ("LayerNormV4", "SoftmaxV2", "RmsNorm", "Cumsum", "Sort", "IndexPutV2", "TopK")},
}


def port(node: Node, name: str) -> Any:
    """What feeds a port: a tensor, None, or a tuple for a dynamic port."""
    op_schema = schema.get(node.op)
    if op_schema is None:
        return None
    for at, each in enumerate(op_schema.inputs):
        if each.name == name:
            return node.inputs[at] if at < len(node.inputs) else None
    return None
