"""A plan of views as JSON and back; see ``torchair.runtime.views``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchair.artifact.plain import Unstorable, operator_of, plain, unplain
from torchair.runtime.views import View, ViewPlan


def views_to_data(plan: ViewPlan) -> dict[str, Any]:
    """What a file holds of a plan.

    Raises:
        Unstorable: A part has no form.
    """
    nodes: dict[torch.fx.Node, int] = {}

    def value(given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            return {"node": nodes.setdefault(given, len(nodes))}
        return {"value": plain(given)}

    def argument(given: Any) -> Any:
        if isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):
            return {"tuple" if isinstance(given, tuple) else "list": [argument(v) for v in given]}
        return value(given)

    returned = [value(v) for v in plan.returned]
    views = [
        {
            "node": value(v.node)["node"],
            "target": _target_name(v.target),
            "args": [argument(a) for a in v.args],
            "kwargs": {k: argument(a) for k, a in v.kwargs.items()},
        }
        for v in plan.views
    ]
    return {"returned": returned, "views": views, "wanted": [value(v) for v in plan.wanted]}


def _target_name(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target)
    raise Unstorable(f"a view by {target}")


def views_from_data(body: Mapping[str, Any]) -> ViewPlan:
    """The plan from a file.

    Raises:
        Exception: It is none.
    """
    graph = torch.fx.Graph()
    nodes: dict[int, torch.fx.Node] = {}

    def value(given: Mapping[str, Any], new: bool = False) -> Any:
        ((kind, content),) = given.items()
        if kind == "value":
            return unplain(content)
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](value(v) for v in content)
        if kind != "node" or type(content) is not int or (content not in nodes and not new):
            raise ValueError(f"{str(given)[:80]} is not a value made before")
        if content not in nodes:
            nodes[content] = graph.placeholder(f"value_{len(nodes)}")
        return nodes[content]

    returned = [value(v, new=True) for v in body["returned"]]
    views = []
    for row in body["views"]:
        args = tuple(value(a) for a in row["args"])
        kwargs = {_keyword(k): value(a) for k, a in row["kwargs"].items()}
        views.append(View(value({"node": row["node"]}, new=True), _view_op(row["target"]), args, kwargs))
    return ViewPlan(returned, views, [value(v) for v in body["wanted"]])


def _keyword(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name[:40]!r} is not a parameter")
    return name


def _view_op(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    op = operator_of(name)
    if op.namespace != "aten" or op._schema.is_mutable or all(r.alias_info is None for r in op._schema.returns):
        raise ValueError(f"{name[:80]} is not a view")
    view: Callable[..., Any] = op
    return view
