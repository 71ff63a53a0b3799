"""From a program of ``torch.export`` to what ``tair_export`` writes: weights by name, and the contract with the caller.

The program returns new values of the buffers and inputs that the model writes before its own results. Here they become
writes inside the graph, and its placeholders become user inputs, states and weights.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.dtypes import to_ge
from ge_converters.lowering.aliasing import Constant, InputAlias, InputBinding, Mutation, Nothing, Result, ScalarResult
from ge_graph import TensorSpec, builder
from ge_graph.attrs import Attr, Kind
from tair_export import signature
from tair_export.export import CapturedModel
from tair_export.signature import LEAF, Input, Output, Signature, Tree
from tair_export.weights import Weight
from torchair.export import guards
from torchair.oplib.collectives import groups_of

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from ge_graph import Graph


def with_writes(program: Any) -> Any:
    """A function for the bindings before the GE passes: the first FX outputs are new values of buffers and inputs."""
    kinds = torch.export.graph_signature.OutputKind
    signature = program.graph_signature
    places = {spec.arg.name: i for i, spec in enumerate(signature.input_specs)}
    places |= {spec.target: i for i, spec in enumerate(signature.input_specs) if spec.target is not None}
    user = {i for i, spec in enumerate(signature.input_specs) if _is_user(spec)}

    def prepare(lowered: Lowered) -> Lowered:
        pool = _Outputs(lowered)
        outputs = []
        for spec, binding in zip(signature.output_specs, lowered.outputs, strict=True):
            if spec.kind is kinds.USER_OUTPUT and isinstance(binding, InputAlias) and binding.fx_index not in user:
                value = program_value(program, binding.fx_index)
                binding = Result(pool.of_input(binding.fx_index), pool.spec_of(binding.fx_index, value))
            if spec.kind is kinds.USER_OUTPUT:
                outputs.append(binding)
                pool.used.update({binding.ge_index} if isinstance(binding, (Result, ScalarResult)) else ())
        mutations = []
        for spec, binding in zip(signature.output_specs, lowered.outputs, strict=True):
            if spec.kind is kinds.USER_OUTPUT or spec.target is None:
                continue
            target = places[spec.target]
            if isinstance(binding, InputAlias) and binding.fx_index == target:
                continue
            mutations.append(Mutation(target, pool.own(binding)))
            pool.feed(target, program_value(program, target))
        return replace(lowered, inputs=tuple(pool.inputs), outputs=tuple(outputs), mutations=tuple(mutations))

    return prepare


def program_value(program: Any, index: int) -> Any:
    """Fake value of a placeholder."""
    return [n.meta.get("val") for n in program.graph_module.graph.nodes if n.op == "placeholder"][index]


class _Outputs:
    """Outputs and inputs of a lowered graph, added to where the program returns or writes what the graph does not."""

    def __init__(self, lowered: Lowered) -> None:
        self.graph: Graph = lowered.graph
        self.inputs: list[InputBinding] = list(lowered.inputs)
        self.used: set[int] = set()

    def feed(self, index: int, value: torch.Tensor) -> Any:
        """The tensor of an FX input, made a Data node if nothing has read it so far."""
        for node, binding in zip(self.graph.inputs, self.inputs, strict=True):
            if binding.fx_index == index:
                return node.outputs[0]
        spec = self.spec_of(index, value)
        tensor = builder.data(self.graph, index=len(self.inputs), dtype=spec.dtype, shape=spec.size)
        self.inputs.append(InputBinding(index, "tensor", spec))
        return tensor

    def spec_of(self, index: int, value: torch.Tensor) -> Any:
        """Type and sizes of an FX input."""
        return TensorSpec(to_ge(value.dtype), tuple(_size(d) for d in value.shape))

    def of_input(self, index: int) -> int:
        """A new output that is an FX input."""
        node = next(n for n, b in zip(self.graph.inputs, self.inputs, strict=True) if b.fx_index == index)
        self.graph.outputs.append(node.outputs[0])
        return len(self.graph.outputs) - 1

    def own(self, binding: Any) -> int:
        """An output that nobody else takes, with the value of a binding."""
        if isinstance(binding, InputAlias):
            return self.of_input(binding.fx_index)
        if binding.ge_index in self.used:
            self.graph.outputs.append(self.graph.outputs[binding.ge_index])
            return len(self.graph.outputs) - 1
        self.used.add(binding.ge_index)
        return int(binding.ge_index)


def _size(value: Any) -> int | str:
    if isinstance(value, torch.SymInt) and not value.node.expr.is_number:
        return str(value.node.expr)
    return int(value)


def _is_user(spec: Any) -> bool:
    return spec.kind is torch.export.graph_signature.InputKind.USER_INPUT


# --- weights and contract --------------------------------------------------------------------------------------------


def captured(
    model: torch.nn.Module, program: Any, lowered: Lowered, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CapturedModel:
    """The graph with its weights, states and contract.

    Args:
        model: The module, for the names of tensors and parameters.
        program: What ``torch.export`` made of it.
        lowered: The finished graph and its bindings.
        device: Device type of the model.

    Errors: ArchiveError GE5030 for a result that has no form in an archive.
    """
    specs = program.graph_signature.input_specs
    leaves = [i for i, spec in enumerate(specs) if _is_user(spec)]
    leaf_of = {fx: at for at, fx in enumerate(leaves)}
    nodes = {node.attr("index"): node for node in lowered.graph.inputs}
    first: dict[Any, str] = {}  # a tensor that several parameters share is called like the first of them
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        first.setdefault(_identity(tensor) or name, name)
    users, states, weights = [], {}, {}
    for at, binding in enumerate(lowered.inputs):
        node = nodes.get(at)
        if node is None:
            continue
        if binding.fx_index in leaf_of:
            users.append((leaf_of[binding.fx_index], node))
            continue
        target = str(specs[binding.fx_index].target)
        tensor = _tensor_of(program, target)
        weight = _weight(first.get(_identity(tensor), target), tensor)
        if node.op == "RefData":
            states[node.name] = weight
        else:
            weights[node.name] = weight
    users.sort(key=lambda pair: pair[0])
    order = [node for _, node in users] + [n for n in nodes.values() if n.name in states]
    order += [n for n in nodes.values() if n.name in weights]
    for position, node in enumerate(order):
        node.attrs["index"] = Attr(Kind.INT, position)
    feeds: list[int | str] = [leaf for leaf, _ in users]
    feeds += [states[n.name].name for n in order if n.name in states]
    contract = _contract(model, program, lowered, tuple(feeds), args, kwargs)
    named = {w.name: w for w in states.values()}
    return CapturedModel(
        lowered.graph, contract, weights, named, device, groups_of(lowered.graph), {"torch": str(torch.__version__)}
    )


def _tensor_of(program: Any, target: str) -> torch.Tensor:
    tensor = program.state_dict.get(target)
    return tensor if tensor is not None else program.constants[target]


def _weight(name: str, tensor: torch.Tensor) -> Weight:
    tensor = tensor.detach()

    def data() -> Any:
        dense = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        return dense.reshape(-1).view(torch.uint8).numpy() if dense.numel() else _NO_BYTES.numpy()

    return Weight(name, to_ge(tensor.dtype), tuple(tensor.shape), data, _identity(tensor))


def _identity(tensor: torch.Tensor) -> Any:
    if not tensor.numel():
        return None
    return (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


_NO_BYTES: Final = torch.empty(0, dtype=torch.uint8)


def _contract(
    model: torch.nn.Module,
    program: Any,
    lowered: Lowered,
    feeds: tuple[int | str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Signature:
    specs = program.graph_signature.input_specs
    leaf_of = {fx: at for at, fx in enumerate(i for i, spec in enumerate(specs) if _is_user(spec))}
    inputs = [_input(spec, program_value(program, i)) for i, spec in enumerate(specs) if _is_user(spec)]
    in_spec = program.call_spec.in_spec
    positional, named = (tree_of(child) for child in children_of(in_spec))
    parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind in _POSITIONAL]
    outputs = []
    for binding in lowered.outputs:
        if isinstance(binding, Result):
            outputs.append(Output("tensor", binding.ge_index, binding.spec.dtype, binding.spec.size, binding.order))
        elif isinstance(binding, ScalarResult):
            outputs.append(Output("number", binding.ge_index, value=binding.pytype.__name__))
        elif isinstance(binding, InputAlias):
            outputs.append(Output("input", leaf_of[binding.fx_index]))
        else:
            outputs.append(Output("constant", value=None if isinstance(binding, Nothing) else _constant(binding)))
    sizes, conditions = guards.of_program(program, inputs, lambda at: program_value(program, at))
    limits = _symbols(model, program, inputs, args, kwargs, conditions)
    plain = tuple(guards.but_for_one(g.expr, limits, g.own) for g in conditions)
    return Signature(
        positional,
        named,
        tuple(p.name for p in parameters[: len(args)]),
        tree_of(program.call_spec.out_spec),
        tuple(inputs),
        tuple(outputs),
        feeds,
        limits,
        sizes,
        plain,
    )


_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _constant(binding: Any) -> Any:
    assert isinstance(binding, Constant)
    signature.plain(binding.value, "a result")
    return binding.value


def _input(spec: Any, value: Any) -> Input:
    name = spec.arg.name
    if isinstance(value, torch.Tensor):
        return Input(name, "tensor", to_ge(value.dtype), tuple(_size(d) for d in value.shape))
    if isinstance(value, torch.SymInt):
        return Input(name, "number", value=str(value.node.expr))
    value = getattr(spec.arg, "value", value)
    if value is None or type(value) in (bool, int, float, str):
        return Input(name, "constant", value=value)
    return Input(name, "opaque", value=repr(value)[:200])


def _symbols(
    model: torch.nn.Module,
    program: Any,
    inputs: Sequence[Input],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    conditions: Sequence[guards.Condition],
) -> dict[str, tuple[int | None, int | None]]:
    """Limits of the symbols that are sizes of inputs.

    torch takes sizes 0 and 1 as special when it traces, so its limits begin at 2. Where the model runs the same
    operators for size 1 and gives results of the same form, tried on tensors without data, 1 is within the limits.
    """
    sizes = {d for i in inputs if i.kind == "tensor" for d in i.shape if isinstance(d, str)}
    wanted = sizes | {i.value for i in inputs if i.kind == "number" and isinstance(i.value, str)}
    ranges: dict[str, tuple[int | None, int | None]] = {}
    for symbol, limits in program.range_constraints.items():
        if str(symbol) in wanted:
            low, high = (_limit(v) for v in (limits.lower, limits.upper))
            asked = low == 2 and str(symbol) in sizes and guards.may_be_one(conditions, str(symbol))
            if asked and _serves_one(model, program, {symbol}, args, kwargs):
                low = 1
            ranges[str(symbol)] = (low, high)
    return ranges


def _limit(value: Any) -> int | None:
    number = float(value)
    return None if math.isinf(number) or abs(number) >= 1 << 62 else int(number)


def _serves_one(
    model: torch.nn.Module, program: Any, symbols: set[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether with ``symbols`` of 1 the same operators run, to results of the sizes that the program says."""
    from torch.utils import _pytree as pytree

    metas = [n.meta.get("val") for n in program.graph_module.graph.nodes if n.op == "placeholder"]
    shapes = [v for v, s in zip(metas, program.graph_signature.input_specs, strict=True) if _is_user(s)]
    values = _values(metas, symbols)
    user_outputs = [
        n.meta.get("val") if isinstance(n, torch.fx.Node) else n
        for n, s in zip(_returned(program), program.graph_signature.output_specs, strict=True)
        if s.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT
    ]
    try:
        results, small = _trial(model, shapes, values, args, kwargs)
        _, usual = _trial(model, shapes, _values(metas, set()), args, kwargs)
    except Exception:  # noqa: BLE001  whatever the model does not like about size 1 means no
        return False
    leaves = pytree.tree_leaves(results)
    return (
        guards.same_operators(small, usual)
        and len(leaves) == len(user_outputs)
        and all(
            not isinstance(v, torch.Tensor) or (isinstance(r, torch.Tensor) and _sizes(v, values) == list(r.shape))
            for v, r in zip(user_outputs, leaves, strict=True)
        )
    )


def _trial(
    model: torch.nn.Module, shapes: Sequence[Any], values: dict[Any, int], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[Any]]:
    """Results of the model on tensors without data, and the operators that it ran."""
    from torch.utils import _pytree as pytree

    from ge_converters.base.torch_compat import fake_mode

    given, spec = pytree.tree_flatten((args, kwargs))
    wanted = iter(shapes)
    with fake_mode() as mode, torch.no_grad(), guards.OperatorRecorder() as recorder:
        mode.allow_non_fake_inputs = True  # tensors that are plain attributes
        small = [_small(mode, v, next(wanted), values) for v in given]
        tensors = {n: mode.from_tensor(t.detach()) for n, t in (*model.named_parameters(), *model.named_buffers())}
        inner_args, inner_kwargs = pytree.tree_unflatten(small, spec)
        recorder.ran.clear()
        return torch.func.functional_call(model, tensors, inner_args, inner_kwargs), recorder.ran


def _returned(program: Any) -> Sequence[Any]:
    output = next(n for n in reversed(program.graph_module.graph.nodes) if n.op == "output")
    returned: Sequence[Any] = output.args[0]
    return returned


def _small(mode: Any, value: Any, meta: Any, values: dict[Any, int]) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor):
        with mode:
            return torch.empty(_sizes(meta, values), dtype=value.dtype, device=value.device)
    return value


def _values(metas: Sequence[Any], symbols: set[Any]) -> dict[Any, int]:
    """Values of the symbols of inputs: 1 for ``symbols``, the samples' own for the others."""
    sizes = [d for m in metas for d in (m.shape if isinstance(m, torch.Tensor) else (m,))]
    return {
        d.node.expr: 1 if d.node.expr in symbols else int(d.node.hint)
        for d in sizes
        if isinstance(d, torch.SymInt) and d.node.expr.is_Symbol
    }


def _sizes(meta: torch.Tensor, values: dict[Any, int]) -> list[int]:
    sizes = []
    for d in meta.shape:
        if isinstance(d, torch.SymInt):
            d = d.node.expr.subs(values)
        sizes.append(int(d))
    return sizes


# --- structures ------------------------------------------------------------------------------------------------------


def children_of(spec: Any) -> list[Any]:
    """Parts of a tree spec."""
    children = getattr(spec, "children", None)  # torch 2.9 and older have children_specs only
    return list(children() if callable(children) else spec.children_specs)


def tree_of(spec: Any) -> Tree:
    """A tree spec of torch as plain JSON; classes become records with the names of their fields."""
    if spec.type is None:
        return LEAF
    parts = [tree_of(child) for child in children_of(spec)]
    if spec.type in (tuple, list):
        return {spec.type.__name__: parts}
    context = spec.context
    # torch marks every named tuple with the factory; its class is the context
    kind = spec.type if isinstance(spec.type, type) else context
    name = getattr(kind, "__name__", str(kind))
    if issubclass(spec.type if isinstance(spec.type, type) else tuple, dict) and not hasattr(
        spec.type, "__dataclass_fields__"
    ):
        keys = context[1] if name == "defaultdict" else context
        if all(type(k) in (str, int) for k in keys):
            return {"dict": [[key, part] for key, part in zip(keys, parts, strict=True)]}
    named = zip(_fields(kind, context, len(parts)), parts, strict=True)
    return {"record": {"type": name, "fields": [[field, part] for field, part in named]}}


def _fields(kind: Any, context: Any, count: int) -> list[str]:
    if hasattr(kind, "_fields"):
        return [str(f) for f in kind._fields]
    for names in (context, *(context if isinstance(context, (list, tuple)) else ())):
        if isinstance(names, (list, tuple)) and len(names) == count and all(isinstance(n, str) for n in names):
            return list(names)
    if is_dataclass(kind) and len(fields(kind)) == count:
        return [f.name for f in fields(kind)]
    return [str(i) for i in range(count)]
