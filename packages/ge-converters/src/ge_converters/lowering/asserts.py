"""Assertions of a program become GE's Assert, with torch's text: they stop the run as they stop eager."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ge_converters.base.dtypes import cast
from ge_converters.base.errors import LoweringError
from ge_converters.lowering import symbols
from ge_graph import DataType, Tensor
from ge_graph import ops as ge

logger = logging.getLogger(__name__)
_DEFAULT = "Expected Tensor with single nonzero value, but got zero"


def of_tensor(walk: Any, node: torch.fx.Node) -> Any:
    """aten._assert_async, _functional_assert_async: one element that must not be 0; the latter passes a token on."""
    condition = walk.context.argument(node.args[0])
    message = node.args[1] if len(node.args) > 1 else _DEFAULT
    _emit(walk, condition, str(message))
    return walk.context.argument(node.args[2]) if len(node.args) > 2 else None


def of_number(walk: Any, node: torch.fx.Node) -> Any:
    """aten._assert_scalar: what torch could not decide about a data-dependent number while it traced."""
    value = node.args[0]
    if not (isinstance(value, torch.fx.Node) and _may_fail(walk, value)):
        return None
    try:
        condition = walk.context.argument(value)
    except LoweringError as error:
        logger.warning("%s is not checked at run time: %s", node.args[1], error)
        return None
    if isinstance(condition, Tensor):
        _emit(walk, condition, str(node.args[1]))
    return None


def _may_fail(walk: Any, value: torch.fx.Node) -> bool:
    """Whether there is something to check: the size of a result is not negative."""
    meta = value.meta.get("val")
    if not symbols.is_symbolic(meta):
        return not bool(meta)
    expr = symbols.expression(meta)
    at_least_zero = getattr(expr, "rel_op", "") == ">=" and expr.rhs == 0 and expr.lhs.is_Symbol
    return not (at_least_zero and expr.lhs not in walk.items)


def _emit(walk: Any, condition: Tensor, message: str) -> None:
    placeholder = "%s"
    while placeholder in message:
        placeholder += "%"
    first = len(walk.graph.nodes)
    text = ge.StringFormat([], template=message, placeholder=placeholder)
    ge.Assert(cast(condition, DataType.DT_BOOL), [text])
    walk.effects.in_turn(walk.graph.nodes[first:][-1:])
