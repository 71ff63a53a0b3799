"""``flex_attention``: attention whose scores and mask are functions of the user's, called on all places at once.

If the function of the scores only adds something that does not depend on them, or hides them, both functions together
are a mask, and attention is one operator. Any other function is called between the two products.

Source: ``torch.nn.attention.flex_attention``; what eager computes, in the types in which it computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import flex_attention_results, surely_equal, trace_aside

FxNode: TypeAlias = torch.fx.Node
_LN2: Final = math.log(2)


class _IndexedByTensors(TorchFunctionMode):  # type: ignore[misc]
    """``table[q, k]`` with tensors of one number each gathers, where it would read the numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            self_, index = args
            items = list(index) if isinstance(index, (tuple, list)) else [index]
            if items and all(isinstance(i, (Tensor, int)) and not isinstance(i, bool) for i in items):
                places = [i if isinstance(i, Tensor) else torch.tensor(i, device=self_.device) for i in items]
                return aten.index.Tensor(self_, places)
        return func(*args, **(kwargs or {}))


# -- what a function does ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """What the graph of a function of places says.

    Attributes:
        used: Of batch, head, query and key, which places it reads.
        adds: Whether its result is the score plus something that does not depend on the score, or -inf.
        biased: Whether it adds anything at all.
        conditions: What must hold for a score to be seen, as far as that stands in the graph.
    """

    used: tuple[bool, ...]
    adds: bool = True
    biased: bool = False
    conditions: list[FxNode] = field(default_factory=list)
    places: tuple[FxNode, ...] = ()

    def causal(self) -> bool | None:
        """Whether the conditions are that no query sees a later key; None if there are no conditions."""
        kinds = {self._causal(c) for c in self.conditions if not _is_true(c)}
        return None if not kinds else kinds == {True}

    def _causal(self, node: FxNode) -> bool:
        _, _, query, key = self.places
        if node.target is aten.ge.Tensor:
            return bool(node.args == (query, key))
        return bool(node.target is aten.le.Tensor and node.args == (key, query))


def _filled(node: Any) -> Any:
    """The number that all elements of a node are, None if that is not plain to see."""
    if not isinstance(node, torch.fx.Node):
        return node
    name = str(node.target)
    if name in ("aten.scalar_tensor.default", "aten.lift_fresh_copy.default", "aten.detach.default"):
        return _filled(node.args[0])
    if name in ("aten.full.default", "aten.full_like.default", "aten.new_full.default"):
        return node.args[-1]
    if name in ("aten.new_ones.default", "aten.ones.default", "aten.ones_like.default"):
        return 1
    return None


def _is_true(node: FxNode) -> bool:
    return _filled(node) in (1, True)


def _conjuncts(node: FxNode) -> list[FxNode]:
    if node.target in (aten.bitwise_and.Tensor, aten.logical_and.default, aten.__and__.Tensor):
        return [c for a in node.args for c in (_conjuncts(a) if isinstance(a, torch.fx.Node) else [])]
    return [node]


def _result(graph: torch.fx.Graph) -> Any:
    (output,) = (n for n in graph.nodes if n.op == "output")
    value = output.args[0]
    return value[0] if isinstance(value, (tuple, list)) else value


def _read_mask(mask: Callable[..., Any], query: Tensor, buffers: Sequence[Any]) -> _Read:
    places = [query.new_zeros((), dtype=torch.int32) for _ in range(4)]
    graph = trace_aside(mask, [*places, *buffers], _IndexedByTensors())
    inputs = [n for n in graph.nodes if n.op == "placeholder"][:4]
    result = _result(graph)
    conditions = _conjuncts(result) if isinstance(result, torch.fx.Node) else []
    return _Read(tuple(bool(n.users) for n in inputs), conditions=conditions, places=tuple(inputs))


def _read_score(function: Callable[..., Any], query: Tensor, exact: torch.dtype, buffers: Sequence[Any]) -> _Read:
    score = query.new_zeros((), dtype=exact)
    places = [query.new_zeros((), dtype=torch.int32) for _ in range(4)]
    graph = trace_aside(function, [score, *places, *buffers], _IndexedByTensors())
    first, *inputs = [n for n in graph.nodes if n.op == "placeholder"][:5]
    read = _Read(tuple(bool(n.users) for n in inputs), places=tuple(inputs))
    dependent = {first}
    for node in graph.nodes:
        if dependent.intersection(node.all_input_nodes):
            dependent.add(node)
    read.adds = isinstance(_result(graph), torch.fx.Node) and _sees(_result(graph), first, dependent, read)
    return read


def _sees(node: FxNode, score: FxNode, dependent: set[FxNode], read: _Read) -> bool:
    """Whether a node is the score, plus what does not depend on it, or -inf; notes the conditions."""
    if node is score:
        return True
    args = node.args

    def free(x: Any) -> bool:
        return x not in dependent if isinstance(x, torch.fx.Node) else True

    def on(x: Any) -> bool:
        return isinstance(x, torch.fx.Node) and _sees(x, score, dependent, read)

    if node.target in (aten.add.Tensor, aten.sub.Tensor) and not node.kwargs:
        read.biased = True
        a, b = args[:2]
        return (free(b) and on(a)) or (node.target is aten.add.Tensor and free(a) and on(b))
    if node.target is aten.where.self and free(args[0]):
        condition, a, b = args
        if _filled(b) == -math.inf and isinstance(condition, torch.fx.Node):
            read.conditions += _conjuncts(condition)
            return on(a)
        read.conditions.append(node)  # hidden where it holds, or one of two biases: nothing that has a name
        read.biased |= -math.inf not in (_filled(a), _filled(b))
        return (_filled(a) == -math.inf and on(b)) or (on(a) and on(b))
    if node.target is aten.masked_fill.Scalar and args[2] == -math.inf and free(args[1]):
        read.conditions.append(node)
        return on(args[0])
    return False


# -- functions on all places -------------------------------------------------------------------------------------------


def _everywhere(function: Callable[..., Any], scores: bool, more: int, own: int = 0, results: Any = 0) -> Any:
    """A function of single places, called on all of them.

    Args:
        function: Takes a score if ``scores``, the four places and ``more`` further values.
        scores: Whether it takes a score of each place first.
        own: How many of the further values, the first, every place has one of.
        results: The axis of each result that runs over places, None if a result belongs to no place.
    """
    first = (0,) if scores else ()
    rest = (0,) * own + (None,) * (more - own)
    for place in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=(*first, *place, *rest), out_dims=results)
    return function


# -- the operator ------------------------------------------------------------------------------------------------------


class _Call:
    """One call, its operands of one batch size.

    Args:
        block_mask: The numbers and tensors of the mask's blocks, which only say once more what its last element, the
            function of the mask, says.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        score: Any,
        block_mask: Any,
        scale: float,
        score_buffers: Any,
        mask_buffers: Any,
    ) -> None:
        if key.shape[0] != query.shape[0]:
            key, value = (x.expand(query.shape[0], -1, -1, -1) for x in (key, value))
        self.query, self.key, self.value = query, key, value
        self.score, self.mask, self.scale = score, block_mask[-1], float(scale)
        self.score_buffers, self.mask_buffers = tuple(score_buffers), tuple(mask_buffers)
        self.exact = torch.float64 if query.dtype == torch.float64 else torch.float32

    @cached_property
    def _mask_read(self) -> _Read:
        return _read_mask(self.mask, self.query, self.mask_buffers)

    def needs_gradient(self) -> bool:
        given = (self.query, self.key, self.value, *self.score_buffers)
        return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in given)

    def _places(self, read: _Read | None = None) -> list[Tensor]:
        """Every place of the four axes; of batch or heads that nobody asks for, one place stands for all."""
        used = (True, True) if read is None else (read.used[0] or read.used[1], read.used[1])
        sizes = [n if need else 1 for n, need in zip(self.query.shape[:2], used)]
        device = self.query.device
        return [torch.arange(n, device=device) for n in (*sizes, self.query.shape[2], self.key.shape[2])]

    def _seen(self) -> Tensor | None:
        """Bool [batch or 1, heads or 1, queries, keys]: what the mask lets see; None if that is everything."""
        if self._mask_read.causal() is None:
            return None
        with _IndexedByTensors():
            call = _everywhere(self.mask, False, len(self.mask_buffers))
            seen: Tensor = call(*self._places(self._mask_read), *self.mask_buffers)
        return seen

    def _bias(self, read: _Read) -> Tensor:
        """What a function that adds makes of a score of 0; sizes as ``_seen``."""
        zero = torch.zeros((), dtype=self.exact, device=self.query.device)

        def of_zero(*args: Any) -> Any:
            return self.score(zero, *args)

        with _IndexedByTensors():
            call = _everywhere(of_zero, False, len(self.score_buffers))
            bias: Tensor = call(*self._places(read), *self.score_buffers)
        return bias

    def heads(self) -> tuple[Tensor, Tensor]:
        """Key and value with a head for every head of the query."""
        shared = self.query.shape[1] // self.key.shape[1]
        if shared == 1:
            return self.key, self.value
        return self.key.repeat_interleave(shared, dim=1), self.value.repeat_interleave(shared, dim=1)

    def scores(self, key: Tensor) -> tuple[Tensor, Tensor]:
        """The products, and what the two functions make of them; [batch, heads, queries, keys] both."""
        products = (self.query.to(self.exact) @ key.to(self.exact).transpose(-2, -1)) * self.scale
        with _IndexedByTensors():
            call = _everywhere(self.score, True, len(self.score_buffers))
            changed = call(products, *self._places(), *self.score_buffers)
        seen = self._seen()
        if seen is not None:
            changed = changed.masked_fill(~seen, -math.inf)
        return products, changed.to(self.exact)

    def change(self, joint: Any, products: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the products and of what the function of the scores reads, from that of its results."""
        count = len(self.score_buffers)
        with _IndexedByTensors():
            call = _everywhere(lambda *a: tuple(joint(*a)), True, 1 + count, 1, (0, *[None] * (4 + count)))
            first, _, _, _, _, *rest = call(products, *self._places(), grad, *self.score_buffers)
        return (first, *rest)

    def composed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Result, log of the sum of exponentials, and maximum of each row."""
        key, value = self.heads()
        _, scores = self.scores(key)
        top = scores.amax(-1)
        shift = torch.where(top == -math.inf, 0.0, top).detach()
        share = (scores - shift.unsqueeze(-1)).exp()
        total = share.sum(-1)
        sees = total != 0  # a row that sees no key gives zeros
        total = torch.where(sees, total, 1.0)
        weights = share / total.unsqueeze(-1)
        lse = torch.where(sees, total.log() + shift, -math.inf)
        return weights.to(self.query.dtype) @ value.to(self.query.dtype), lse, top

    def one_operator(self) -> tuple[Tensor, Tensor] | None:
        """Result and log of the sum of exponentials by the fused operator; None if it cannot say what is asked for."""
        types = {x.dtype for x in (self.query, self.key, self.value)}
        if len(types) > 1 or self.query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
            return None
        score = _read_score(self.score, self.query, self.exact, self.score_buffers)
        learned = any(isinstance(b, Tensor) and b.requires_grad for b in self.score_buffers)
        if not score.adds or not surely_equal(self.query.shape[3], self.value.shape[3]):
            return None
        if score.biased and (self.query.dtype != self.exact or (learned and torch.is_grad_enabled())):
            return None  # the operator takes a bias in the type of the query, and has no gradient of it
        causal = {score.causal(), self._mask_read.causal()} - {None}
        if not score.biased and causal <= {True}:
            return self._fused(None, bool(causal))
        seen, bias = self._seen(), None
        if score.biased or score.causal() is not None:
            bias = self._bias(score)
        if bias is not None and not score.biased:
            seen, bias = (bias == 0 if seen is None else seen & (bias == 0)), None
        if seen is None:
            assert bias is not None
            given, nothing = bias, (bias == -math.inf).all(-1)
        else:
            given = torch.where(seen, 0.0 if bias is None else bias, -math.inf)
            nothing = ~seen.any(-1) if bias is None else (given == -math.inf).all(-1)
        out, lse = self._fused(given.to(self.query.dtype), False)
        return out, torch.where(nothing, -math.inf, lse)

    def _fused(self, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
        """The overload that ``scaled_dot_product_attention`` comes to on the tensors' device."""
        key, value = self.heads() if self.needs_gradient() else (self.key, self.value)
        if self.query.device.type == "cpu":
            op = aten._scaled_dot_product_flash_attention_for_cpu.default
            out, lse = op(self.query, key, value, 0.0, causal, attn_mask=mask, scale=self.scale)
        else:
            op = aten._scaled_dot_product_fused_attention_overrideable.default
            out, lse = op(self.query, key, value, mask, 0.0, causal, False, scale=self.scale)[:2]
        return out, lse


def _in_order_of(out: Tensor, like: Tensor) -> Tensor:
    """``out`` with its axes in memory as those of ``like`` are, the last one innermost."""
    order = sorted(range(4), key=lambda i: (like.stride(i), i), reverse=True)
    order = [i for i in order if i != 3] + [3]
    return out.permute(order).contiguous().permute([order.index(i) for i in range(4)])


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: float,
    kernel_options: Any,
    score_mod_other_buffers: Any = (),
    mask_mod_other_buffers: Any = (),
) -> tuple[Tensor, ...]:
    """What the higher-order operator gives: result, logarithms of the sums, and maxima of the rows, both by base 2.

    Of ``kernel_options`` only the results that are asked for matter; the others choose among equal kernels.

    Shapes: query [b, h, q, e], key [b or 1, g, k, e], value [b or 1, g, k, v], g a divisor of h -> [b, h, q, v] and
        twice [b, h, q].
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        lower = torch.get_autocast_dtype(kind)
        query, key, value = (x if x.dtype == torch.float64 else x.to(lower) for x in (query, key, value))
    with torch.autocast(kind, enabled=False):
        call = _Call(query, key, value, score_mod, block_mask, scale, score_mod_other_buffers, mask_mod_other_buffers)
        fused = call.one_operator()
        asked = kernel_options.get("OUTPUT_MAX", True)
        asked |= kernel_options.get("OUTPUT_LOGSUMEXP", True) and call.needs_gradient()  # the operator has none of it
        if fused is None:
            out, lse, top = call.composed()
        elif asked:
            (out, _), (_, lse, top) = fused, call.composed()
        else:
            (out, lse), top = fused, fused[1]
    found = _in_order_of(out, query), lse.contiguous() / _LN2, (top / _LN2).detach().contiguous()
    return found[: flex_attention_results(torch.ops.higher_order.flex_attention)]


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    grad_out: Tensor | None,
    grad_logsumexp: Tensor | None,
    fw_graph: Any,
    joint_graph: Any,
    block_mask: Any,
    scale: float,
    kernel_options: Any,
    score_mod_other_buffers: Any = (),
    mask_mod_other_buffers: Any = (),
) -> Any:
    """The gradients, for programs that call the operator of the gradient themselves; NotImplemented without its graph.

    Shapes: those of query, key and value, and of the tensors that the function of the scores reads.
    """
    if joint_graph is None:
        return NotImplemented
    call = _Call(query, key, value, fw_graph, block_mask, scale, score_mod_other_buffers, mask_mod_other_buffers)
    all_keys, all_values = call.heads()
    products, scores = call.scores(all_keys)
    natural = (logsumexp * _LN2).unsqueeze(-1)
    share = torch.where(natural == -math.inf, 0.0, (scores - natural).exp())
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    grad_value = share.to(query.dtype).transpose(-2, -1) @ grad_out
    exact = call.exact
    inner = grad_out.to(exact) @ all_values.to(exact).transpose(-2, -1)
    inner = inner - (out.to(exact) * grad_out.to(exact)).sum(-1, keepdim=True)
    if grad_logsumexp is not None:
        inner = inner + (grad_logsumexp / _LN2).unsqueeze(-1)
    first, *rest = call.change(joint_graph, products, share * inner)
    change = torch.where(scores == -math.inf, 0.0, first * call.scale).to(query.dtype)
    grad_query, grad_key = change @ all_keys, change.transpose(-2, -1) @ query
    found = [_in_order_of(grad_query, query)]
    for grad, given in ((grad_key, key), (grad_value, value)):
        narrow = grad.unflatten(1, (given.shape[1], -1)).sum(2)
        if given.shape[0] != query.shape[0]:
            narrow = narrow.sum(0, keepdim=True)
        found.append(_in_order_of(narrow, given))
    return (*found, tuple(rest))


def _zeros_and_scatter(shape: Sequence[Any], indices: Sequence[Tensor], vals: Tensor) -> Tensor:
    """The gradient of a table that a function of the scores reads; equal places add up."""
    return vals.new_zeros(shape).index_put(tuple(indices), vals, accumulate=True)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Formulas for the operators that stand in the graph of the gradient, as far as torch has registered them."""
    made = getattr(torch.ops.flex_lib, "zeros_and_scatter", None)
    return {} if made is None else {made.default: _zeros_and_scatter}
