"""Higher-order ops: custom ops that write arguments or have effects; ops with bodies are in ``control_flow``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ge_converters.base.errors import Refusal
from ge_converters.base.operators import aten
from ge_converters.lowering import memory_ops, own_calls
from ge_converters.lowering.calls import Caller, parameters_of
from ge_converters.lowering.context import Unproduced
from ge_converters.lowering.effects import OpenScopes
from ge_graph import Tensor, TensorSpec
from ge_graph import ops as ge


def lower(caller: Caller, effects: OpenScopes, node: torch.fx.Node) -> Any:
    """What a higher-order node becomes.

    Raises:
        Refusal: For ops that run a function in a way that GE has no form for.
    """
    name = node.target.name() if callable(getattr(node.target, "name", None)) else str(node.target)
    if name.startswith("auto_functionalized") and not isinstance(node.args[0], torch._ops.OpOverload):
        raise Refusal(
            f"{node.args[0]} has a function that writes what it is given; GE's graphs in nodes hand on values only, "
            "return the new value instead"
        )
    if name == "auto_functionalized":
        return _functionalized(caller, node, _bases_v1(node))
    if name == "auto_functionalized_v2":
        return _functionalized(caller, node, written_views(node.kwargs, node.args[0]._schema))
    if name == "with_effects" and node.args[1] is aten._linalg_check_errors.default:
        return tuple(None for _ in node.meta["val"])  # as _drop of the walk: the operator itself stops the graph
    if name == "with_effects" and isinstance(node.args[1], torch._ops.OpOverload):
        return _effectful(caller, effects, node, node.args[1])
    raise Refusal(
        f"{name} runs a function in a way that GE has no operator for; write it with tensor operators, or keep it "
        "outside the compiled function"
    )


def _effectful(caller: Caller, effects: OpenScopes, node: torch.fx.Node, op: torch._ops.OpOverload) -> tuple[Any, ...]:
    """An op that must run, in the order of its kind: tokens become control edges."""
    values = node.meta["val"][1:]
    returns = len(op._schema.returns)
    own = None if not returns else values[0] if returns == 1 else values[:returns]
    first = len(caller.graph.nodes)
    result = caller.convert(node, caller.entry(op, node), node.args[2:], node.kwargs, own)
    effects.in_turn(caller.graph.nodes[first:])
    return (None, *([result] if returns == 1 else result if returns else [None]))


def is_token(node: torch.fx.Node) -> bool:
    """Whether a placeholder only orders ops with effects; AOTAutograd passes nothing for it."""
    users = [u for u in node.users if u.op == "call_function"]
    return bool(users) and all(str(u.target) == "with_effects" and u.args[0] is node for u in users)


def _mutable_names(schema: Any) -> list[str]:
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _bases_v1(node: torch.fx.Node) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Bases in the order they are returned, the op's arguments, and per mutable argument how it views its base."""
    kwargs = dict(node.kwargs)
    names = _mutable_names(node.args[0]._schema)
    bases = [kwargs[n] for n in names]
    views: dict[str, Any] = {n: (i, "alias", {}) if kwargs[n] is not None else None for i, n in enumerate(names)}
    return bases, kwargs, views


def written_views(given: Any, schema: Any) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """What the keywords of ``auto_functionalized_v2`` say of an operator of this schema.

    Returns:
        The tensors that are written, in the order in which their new values are returned; the arguments that are not
        written; and of each written argument None, or its base's position, the kind of view ("alias", "slice",
        "as_strided") and the numbers of it. A list for an argument that is a list.
    """
    kwargs = dict(given)
    bases = list(kwargs.pop("_all_bases", ()))
    views: dict[str, Any] = {}
    for name in _mutable_names(schema):
        own = {k[len(name) + 2 :]: kwargs.pop(k) for k in list(kwargs) if k.startswith(f"_{name}_")}
        if "length" in own:
            views[name] = [
                _view({k[2:]: v for k, v in own.items() if re.match(rf"{i}_", k)}) for i in range(own["length"])
            ]
        else:
            views[name] = _view(own)
    return bases, kwargs, views


def _view(own: dict[str, Any]) -> Any:
    index = own.get("base_index")
    if index is None:
        return None
    if "slice_dim" in own:
        return index, "slice", own
    if "size" in own:
        return index, "as_strided", own
    return index, "alias", own


def _functionalized(caller: Caller, node: torch.fx.Node, parts: Any) -> Any:
    """Copy what will be written, run the op on the copies, return its results and the copies' new values.

    Errors: Refusal if the converter of the op hides the new values, or written arguments share elements.
    """
    bases, kwargs, views = parts
    op: Any = node.args[0]
    entry = caller.entry(op, node)
    current = [None if b is None else caller.context.argument(b) for b in bases]
    values = node.meta["val"]
    returns = len(op._schema.returns)
    _check_apart(op, views, bases)
    written: list[tuple[Any, Tensor]] = []
    for name, view in views.items():
        if isinstance(view, list):
            copies = [_copy(caller, node, v, current, bases) for v in view]
            kwargs[name] = copies
            written += [(v, c) for v, c in zip(view, copies) if c is not None]
        else:
            kwargs[name] = copy = _copy(caller, node, view, current, bases)
            if copy is not None:
                written.append((view, copy))
    first = len(caller.graph.nodes)
    own = None if not returns else values[0] if returns == 1 else values[:returns]
    result, extra = _run(caller, node, entry, kwargs, own, len(written))
    if own_calls.is_own(op):
        own_calls.note(caller.graph, first, op, (), kwargs, caller.context.argument)
    read = {user.args[1] - (len(values) - len(bases)) for user in node.users}
    for k, (view, copy) in enumerate(written):
        if view[0] not in read:  # nobody asks for the base's new value
            continue
        new = extra[k] if extra else _new_value(caller, copy, first, entry.name)
        caller.checked(node, entry, new, TensorSpec(copy.dtype, copy.known_shape or ()))
        current[view[0]] = _write_view(caller, node, view, current[view[0]], new, bases[view[0]])
    results = list(result) if isinstance(result, (list, tuple)) else [result] if returns else []
    # torch gives a None in front of the bases when the op returns nothing
    results += [None] * (len(values) - len(bases) - len(results))
    return (*results, *[Unproduced("an input that is None") if c is None else c for c in current])


def _check_apart(op: Any, views: Mapping[str, Any], bases: Sequence[Any]) -> None:
    """Refuse a call that writes an element through two arguments: each of them would have a value of its own."""
    named = [(n, v) for n, view in views.items() for v in (view if isinstance(view, list) else [view]) if v is not None]
    for at, (name, (base, *how)) in enumerate(named):
        for other, (same, *seen) in named[:at]:
            if same == base and memory_ops.overlap(*(_traced(bases[base].meta["val"], *v) for v in (how, seen))):
                raise Refusal(
                    f"{op} writes through {other} and {name}, which have elements in common; "
                    "pass a clone for one of them"
                )


def _traced(base: torch.Tensor, kind: str, own: dict[str, Any]) -> torch.Tensor:
    """A view of a base, without data."""
    return base if kind == "alias" else _read_meta(kind, base, read_call(kind, own)[0])


def _run(caller: Caller, node: torch.fx.Node, entry: Any, kwargs: dict[str, Any], own: Any, written: int) -> Any:
    """The op's results and, if the converter returns them after the results, the new values of what it wrote."""
    parameters = parameters_of(entry)
    positional, keywords = parameters.bind((), kwargs, caller.context.argument)  # type: ignore[union-attr]
    if entry.wants_meta:
        keywords["meta_outputs"] = caller.context.meta_outputs(own)
    result = caller.call(node, entry, positional, keywords)
    listed = [] if result is None else list(result) if isinstance(result, (list, tuple)) else [result]
    count = 0 if own is None else len(own) if isinstance(own, (list, tuple)) else 1
    extra: list[Any] = []
    if written and len(listed) == count + written:
        listed, extra = listed[:count], listed[count:]
    if own is None:
        return None, extra
    meta = caller.context.meta_outputs(own)
    return caller.checked_many(node, entry, listed, meta), extra


def _copy(caller: Caller, node: torch.fx.Node, view: Any, current: list[Any], bases: list[Any]) -> Tensor | None:
    """The written argument as a tensor of its own, because the op overwrites the memory that it is given."""
    if view is None:
        return None
    index, kind, own = view
    source = current[index]
    if kind != "alias":
        args, overload = read_call(kind, own)
        meta = _read_meta(kind, bases[index].meta["val"], args)
        if kind == "slice":
            source = _through(caller, node, overload, (source, *args), meta)
        else:
            source = memory_ops.read(caller, node, bases[index], source, args, meta)
    copy: Tensor = ge.Clone(source)
    copy.record_shape(source.known_shape)
    return copy


def read_call(kind: str, own: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """The numbers of a view and the operator that makes it, by what ``written_views`` says."""
    if kind == "slice":
        return (own["slice_dim"], own["slice_start"], own["slice_end"]), aten.slice.Tensor
    return (own["size"], own["stride"], own["storage_offset"]), aten.as_strided.default


def _read_meta(kind: str, meta: torch.Tensor, args: Any) -> torch.Tensor:
    plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    with torch.no_grad():
        return aten.slice.Tensor(meta, *plain) if kind == "slice" else aten.as_strided.default(meta, *plain)


def _write_view(
    caller: Caller, node: torch.fx.Node, view: Any, held: Tensor, new: Tensor, base: torch.fx.Node
) -> Tensor:
    _, kind, own = view
    if kind == "alias":
        return new
    args, _ = read_call(kind, own)
    if kind == "slice":
        return _through(caller, node, aten.slice_scatter.default, (held, new, *args), base.meta["val"])
    return memory_ops.write(caller, node, base, held, new, args)


def _through(caller: Caller, node: torch.fx.Node, overload: Any, args: Any, meta: torch.Tensor) -> Tensor:
    result: Tensor = caller.convert(node, caller.entry(overload, node), args, {}, meta)
    return result


def _new_value(caller: Caller, copy: Tensor, first: int, name: str) -> Tensor:
    """The output that the op names like the input it overwrites."""
    from ge_graph import schema

    for made in reversed(caller.graph.nodes[first:]):
        known = schema.get(made.op)
        if known is None:
            continue
        for port, operand in zip(known.inputs, made.inputs):
            parts = operand if isinstance(operand, tuple) else (operand,)
            if copy not in parts:
                continue
            start = 0
            for output in known.outputs:
                count = made.output_counts.get(output.name, 1)
                if output.name == port.name:
                    return made.outputs[start + (parts.index(copy) if count > 1 else 0)]
                start += count
    raise Refusal(
        f"{name} writes an argument, but its converter neither emits a GE op with an output of the written input's "
        "name nor returns the new value after the results"
    )
