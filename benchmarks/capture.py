"""AOT graphs of the models, as the backend receives them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._functorch.partitioners import default_partition  # noqa: F401 -- imported early, so that no measurement pays

from ge_converters.base.torch_compat import boxed
from ge_converters.decompose.table import decomposition_table
from ge_converters.decompose.whole import KeepWhole
from tools import models
from torchair.compiler.module_numbers import module_numbers_fixed


class _Captured(Exception):
    """The graph is there; running it would tell nothing."""


def _stop(_: Any) -> None:
    raise _Captured


def _graphs(
    case: models.ModelCase, dynamic: bool, run: Callable[[Any], Any], *, runs: bool
) -> list[torch.fx.GraphModule]:
    found: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, _: Any) -> Any:
        found.append(gm)
        return make_boxed_func(gm.forward) if runs else boxed(_stop)

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        with module_numbers_fixed(gm), KeepWhole():
            return aot_module_simplified(gm, inputs, fw_compiler=keep, decompositions=decomposition_table({}))

    torch._dynamo.reset()
    with contextlib.suppress(_Captured):
        run(torch.compile(case.model, backend=backend, fullgraph=True, dynamic=dynamic))
    return found


def aot_graph(case: models.ModelCase, *, dynamic: bool = False) -> torch.fx.GraphModule:
    """The inference graph of a model after dynamo and AOTAutograd with our decompositions."""
    with torch.no_grad():
        (graph,) = _graphs(case, dynamic, lambda call: call(*case.inputs), runs=False)
    return graph


def training_graphs(case: models.ModelCase) -> list[torch.fx.GraphModule]:
    """The forward and the backward graph of a model in training."""
    case.model.train()
    forward, backward = _graphs(case, False, lambda call: call(*case.inputs)[0].square().mean().backward(), runs=True)
    return [forward, backward]


def repeated(gm: torch.fx.GraphModule, times: int) -> torch.fx.GraphModule:
    """The calls of a graph so often, on the same inputs: as many layers, without tracing them."""
    graph, inputs, results = torch.fx.Graph(), {}, []
    for node in gm.graph.find_nodes(op="placeholder"):
        inputs[node] = graph.node_copy(node)
    for _ in range(times):
        copies = dict(inputs)
        for node in gm.graph.nodes:
            if node.op == "output":
                results += torch.fx.map_arg(node.args[0], copies.__getitem__)
            elif node.op != "placeholder":
                copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(results))
    return torch.fx.GraphModule(gm, graph)


def fx_nodes(gm: torch.fx.GraphModule) -> int:
    """Nodes that compute something: calls, placeholders and outputs aside."""
    return sum(n.op == "call_function" for n in gm.graph.nodes)
