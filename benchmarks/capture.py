"""AOT graphs of the models, as the backend receives them."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition  # noqa: F401 -- imported early, so that no measurement pays

from ge_converters.decompose.table import decomposition_table
from ge_converters.decompose.whole import KeepWhole
from tools import models
from torchair.module_numbers import module_numbers_fixed


def aot_graph(case: models.ModelCase, *, dynamic: bool = False) -> torch.fx.GraphModule:
    """The inference graph of a model after dynamo and AOTAutograd with our decompositions."""
    found: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, _: Any) -> Any:
        found.append(gm)
        return gm.forward

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        with module_numbers_fixed(gm), KeepWhole():
            return aot_module_simplified(gm, inputs, fw_compiler=keep, decompositions=decomposition_table({}))

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(case.model, backend=backend, fullgraph=True, dynamic=dynamic)(*case.inputs)
    (graph,) = found
    return graph


def fx_nodes(gm: torch.fx.GraphModule) -> int:
    """Nodes that compute something: calls, placeholders and outputs aside."""
    return sum(n.op == "call_function" for n in gm.graph.nodes)
