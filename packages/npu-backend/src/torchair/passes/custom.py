"""The user's passes: called as documented, checked afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ge_graph.errors import GeError
from torchair.passes.arguments import canonical
from torchair.passes.base import output_values, place_of, same_sizes, value_of
from torchair.passes.scopes import scope_problem

if TYPE_CHECKING:
    from torchair.config.compiler_config import NpuBaseConfig

Snapshot = dict[torch.fx.Node, tuple[Any, Any, Any]]


class PassError(GeError, RuntimeError):
    """A custom pass raised or left a graph that cannot be right (GE1021 to GE1025)."""


def name_of_pass(fn: Any) -> str:
    return getattr(fn, "__qualname__", None) or str(type(fn).__qualname__)


def run_custom(
    option: str, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], config: NpuBaseConfig
) -> tuple[str, bool]:
    """Run the pass that an option names, refresh the module and check it.

    Returns:
        Name of the pass, and whether the graph has changed.

    Errors: PassError GE1021 if the pass raises, GE1022 if the graph is broken, GE1023 if its outputs are others,
        GE1024 for scopes that stay open and waits that cannot end.
    """
    fn = getattr(config, option).value
    name = name_of_pass(fn)
    label = f"config.{option} '{name}'"
    before: Snapshot = {n: (n.target, n.args, n.kwargs) for n in gm.graph.nodes}
    outputs = [_signature(v) for v in output_values(gm.graph)]
    try:
        fn(gm, example_inputs, getattr(config, "graph_ex", None) or config)
    except Exception as error:
        raise PassError(
            "GE1021",
            f"{label} raised {type(error).__name__}: {error}",
            where=place_of(fn),
            next="repair the pass, or let it leave graphs alone that it cannot handle",
        ) from error
    order = list(gm.graph.nodes)
    if order == list(before) and all(before[n] == (n.target, n.args, n.kwargs) for n in order):
        return name, False
    _check(label, fn, gm, before, outputs)
    for node in gm.graph.nodes:
        if node.op == "call_function" and before.get(node) != (node.target, node.args, node.kwargs):
            node.args, node.kwargs = canonical(node.target, node.args, node.kwargs)  # as the passes after it expect
    gm.recompile()
    return name, True


def _check(label: str, fn: Any, gm: torch.fx.GraphModule, before: Snapshot, outputs: list[Any]) -> None:
    def broken(code: str, why: str, cause: BaseException | None = None) -> PassError:
        made = PassError(
            code,
            f"{label} left a broken graph: {why}",
            where=place_of(fn),
            next="the graph after a pass must compute what it computed before",
        )
        made.__cause__ = cause
        return made

    nodes = list(gm.graph.nodes)
    if not nodes or nodes[-1].op != "output":
        raise broken("GE1022", "it has no output node at its end")
    problem = scope_problem(gm.graph)
    if problem:
        raise broken("GE1024", problem)
    try:
        gm.graph.lint()
    except Exception as error:
        raise broken("GE1022", str(error), error) from error
    new = output_values(gm.graph)
    if len(new) != len(outputs):
        raise broken("GE1023", f"it returns {len(new)} values, {len(outputs)} before the pass")
    refresh(gm, before, broken)
    for position, (value, old) in enumerate(zip(new, outputs)):
        got = _signature(value)
        if not _alike(got, old):
            raise broken("GE1023", f"output {position} is {_text(got)}, {_text(old)} before the pass")


def refresh(gm: torch.fx.GraphModule, before: Snapshot, broken: Any) -> None:
    """Give new and edited nodes, and what depends on them, the fake value they compute."""
    mode = next((v.fake_mode for n in before if hasattr(v := n.meta.get("val"), "fake_mode")), None)
    changed: set[torch.fx.Node] = set()
    for node in gm.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta and mode is not None:
            held = getattr(gm, str(node.target))
            node.meta["val"] = mode.from_tensor(held) if isinstance(held, torch.Tensor) else held
        if node.op != "call_function":
            continue
        if before.get(node) == (node.target, node.args, node.kwargs) and not changed.intersection(node.all_input_nodes):
            continue
        old = _signature(node) if "val" in node.meta else None
        try:
            args = torch.fx.map_arg(node.args, value_of)
            kwargs = torch.fx.map_arg(node.kwargs, value_of)
            with mode if mode is not None else nullcontext():
                node.meta["val"] = node.target(*args, **kwargs)
        except Exception as error:
            if node in before or "val" not in node.meta:
                shown = node.format_node() or node.name
                raise broken("GE1022", f"{shown} cannot be computed: {error}", error) from error
        if old is None or not _alike(_signature(node), old):
            changed.add(node)


def _signature(node: Any) -> Any:
    val = value_of(node)
    if isinstance(val, torch.Tensor):
        return (val.dtype, tuple(val.shape))
    return None if val is None else type(val)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return a[0] == b[0] and same_sizes(a[1], b[1])
    return bool(a == b)


def _text(signature: Any) -> str:
    if isinstance(signature, tuple):
        return f"{str(signature[0]).removeprefix('torch.')}{list(signature[1])}"
    return "None" if signature is None else getattr(signature, "__name__", str(signature))
