"""Regions, branches and loops that write what they are given."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ge_converters.base.operators import aten
from ge_converters.base.torch_compat import schema_of_region
from ge_converters.lowering.higher_order import read_call, written_views
from torchair.passes.base import FxPass, value_of

FxNode: TypeAlias = torch.fx.Node


class ReturnWrites(FxPass):
    """``auto_functionalized_v2(invoke_subgraph, f, ..)`` -> ``invoke_subgraph(g, ..)``, g returning what f writes.

    GE's graphs in nodes hand on values only, so a new value has to be a result; outside it is put into the tensor that
    the written argument is a view of. First, because all that comes later knows a region by its own operator.
    """

    def run(self, gm: torch.fx.GraphModule) -> int:
        """Regions inside regions too; what does not fit is left, and refused by the walk."""
        edits = sum(self.run(part) for part in gm.children() if isinstance(part, torch.fx.GraphModule))
        for node in list(gm.graph.nodes):
            if str(node.target) == "auto_functionalized_v2" and isinstance(
                node.args[0], torch._ops.HigherOrderOperator
            ):
                edits += _rewritten(gm, node)
        if edits:
            gm.recompile()
        return edits


@dataclass(slots=True)
class _Form:
    """How one higher-order operator is called.

    Attributes:
        functions: Names of the arguments that are functions, and whether they return new values.
        before: Names of the operands as its functions take them.
        after: The same for the functions that return new values.
        split: Where ``after`` is cut into the operator's lists of operands; none for operands as arguments.
    """

    functions: dict[str, bool]
    before: list[str]
    after: list[str]
    split: int = 0

    def call(self, graph: torch.fx.Graph, op: Any, kwargs: dict[str, Any]) -> FxNode:
        operands = [kwargs[name] for name in self.after]
        functions = [kwargs[name] for name in self.functions]
        if op.name() == "invoke_subgraph":
            return graph.call_function(op, (*functions, f"{kwargs['identifier']}_returning", *operands))
        if op.name() == "cond":
            return graph.call_function(op, (kwargs["pred"], *functions, tuple(operands)))
        return graph.call_function(op, (*functions, tuple(operands[: self.split]), tuple(operands[self.split :])))


def _form(op: Any, names: list[str], written: list[str]) -> _Form | None:
    if op.name() == "invoke_subgraph":
        operands = [n for n in names if n not in ("subgraph", "identifier")]
        return _Form({"subgraph": True}, operands, operands)
    if op.name() == "cond":
        operands = [n for n in names if n not in ("pred", "true_fn", "false_fn")]
        return _Form({"true_fn": True, "false_fn": True}, operands, operands)
    if op.name() == "while_loop" and not any(n.startswith("carried") for n in written):
        operands = [n for n in names if n not in ("cond_fn", "body_fn")]
        carried = [n for n in operands if n.startswith("carried")] + written
        after = carried + [n for n in operands if n not in carried]
        return _Form({"cond_fn": False, "body_fn": True}, operands, after, len(carried))
    return None


def _rewritten(gm: torch.fx.GraphModule, node: FxNode) -> bool:
    graph, op = gm.graph, node.args[0]
    schema = schema_of_region(getattr(gm, str(node.kwargs["_op_schema"].target)))
    bases, kwargs, views = written_views(node.kwargs, schema)
    form = _form(op, [a.name for a in schema.arguments], list(views))
    if form is None or any(not isinstance(v, tuple) for v in views.values()):
        return False
    returned = list(value_of(node)[: -len(bases)])
    with graph.inserting_before(node):
        for name, view in views.items():
            kwargs[name] = _read(graph, bases[view[0]], view)
        for name, returns in form.functions.items():
            kwargs[name] = _returning(gm, kwargs[name], form, list(views), returns)
        call = form.call(graph, op, kwargs)
        new_values = [value_of(kwargs[name]) for name in views]
        call.meta = {**node.meta, "val": (*returned, *new_values)}
        for k, view in enumerate(views.values()):
            new = graph.call_function(operator.getitem, (call, len(returned) + k))
            new.meta["val"] = new_values[k]
            bases[view[0]] = _write(graph, bases[view[0]], view, new)
    for user in list(node.users):
        k = user.args[1]
        if k < len(returned):
            user.update_arg(0, call)
        else:
            user.replace_all_uses_with(bases[k - len(returned)])
            graph.erase_node(user)
    graph.erase_node(node)
    for left in [n for n in graph.nodes if n.op == "get_attr" and not n.users]:
        graph.erase_node(left)
    return True


def _read(graph: torch.fx.Graph, base: FxNode, view: Any) -> FxNode:
    _, kind, numbers = view
    if kind == "alias":
        return base
    args, op = read_call(kind, numbers)
    node = graph.call_function(op, (base, *args))
    with torch.no_grad():
        node.meta["val"] = op(*torch.fx.node.map_arg(node.args, value_of))
    return node


def _write(graph: torch.fx.Graph, base: FxNode, view: Any, new: FxNode) -> FxNode:
    _, kind, numbers = view
    if kind == "alias":
        return new
    op = aten.slice_scatter.default if kind == "slice" else aten.as_strided_scatter.default
    node = graph.call_function(op, (base, new, *read_call(kind, numbers)[0]))
    node.meta["val"] = value_of(base)
    return node


def _returning(gm: torch.fx.GraphModule, node: FxNode, form: _Form, written: list[str], returns: bool) -> FxNode:
    """A function like that of a node, with operands as ``form`` says, that returns the new values too."""
    name = f"{node.target}_returning"
    if not hasattr(gm, name):
        gm.add_submodule(name, _function(getattr(gm, str(node.target)), form, written, returns))
    return gm.graph.get_attr(name)


def _function(given: torch.fx.GraphModule, form: _Form, written: list[str], returns: bool) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    old = dict(zip(form.before, (n for n in given.graph.nodes if n.op == "placeholder"), strict=True))
    known = {old[name]: graph.node_copy(old[name]) for name in form.after}
    now = dict(known)  # each node of the function, and of what is written the newest value
    for node in given.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            results = torch.fx.node.map_arg(node.args[0], now.__getitem__)
            results = tuple(results) if isinstance(results, (tuple, list)) else (results,)
            # a condition writes nothing, and is one value to torch, no tuple of one
            graph.output((*results, *(now[old[name]] for name in written)) if returns else results[0])
        elif node.target is aten.copy_.default and node.args[0] in known:
            now[node.args[0]] = now[node] = _as(graph, node, now)
        else:
            now[node] = graph.node_copy(node, now.__getitem__)
    return torch.fx.GraphModule(given, graph)


def _as(graph: torch.fx.Graph, node: FxNode, now: dict[FxNode, FxNode]) -> FxNode:
    """What ``copy_`` leaves in its target: the source, in type and size of the target."""
    target, source = node.args[:2]
    assert isinstance(target, torch.fx.Node)
    assert isinstance(source, torch.fx.Node)
    have, want = value_of(source), value_of(target)
    if (have.dtype, have.shape) == (want.dtype, want.shape):
        return now[source]
    made = graph.call_function(aten.copy.default, (now[target], now[source]))
    made.meta["val"] = want
    return made
