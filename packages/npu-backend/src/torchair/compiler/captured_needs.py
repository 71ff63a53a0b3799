"""Counts what the graphs of one model need when they are captured, for tools that ask before a device is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ge_converters.base.torch_compat import real_values
from torchair.passes.core_clashes import clashes

if TYPE_CHECKING:
    from torchair.config.compiler_config import CompilerConfig


class CapturedNeeds:
    """Adds up graphs.

    Args:
        config: Options of the model; None means all defaults.
        vector_cores: Of the chip; None if nobody says how many it has.
        pools: Memory pools that graphs of other sizes have, which these share where the options say so; new ones are
            put there.
        dynamic: Whether one FX graph serves all sizes.

    Attributes:
        config: The same options in the mode that captures.
    """

    def __init__(
        self,
        config: CompilerConfig | None,
        vector_cores: float | None,
        pools: dict[Any, Any] | None = None,
        *,
        dynamic: bool = False,
    ) -> None:
        from torchair.config.compiler_config import CompilerConfig, with_options

        base = CompilerConfig() if config is None else config
        self.config = base if base.mode.value == "reduce-overhead" else with_options(base, {"mode": "npugraph_ex"})
        self._pools = {} if pools is None else pools
        self._dynamic = dynamic
        self._cores = None if vector_cores is None else int(vector_cores)
        self._needs: dict[str, Any] = dict.fromkeys(("graphs", "streams", "events", "tasks", "pool_bytes"), 0)
        self._needs |= {"unmeasured": {}, "clashes": (), "possible": ()}

    def add(self, gm: torch.fx.GraphModule) -> None:
        """Count a graph after its passes, and by how much it lets its memory pool grow.

        Errors: EngineError GE1058 for what a device cannot capture.
        """
        from torchair.runtime.capture_budget import count
        from torchair.runtime.device_pool import Pool
        from torchair.runtime.host_work import refuse_host_work
        from torchair.runtime.reduce_overhead import plan_capture

        needs = self._needs
        refuse_host_work(gm, "npu")
        if self._cores is not None:
            found = clashes(gm.graph, self._cores)
            needs["clashes"] += tuple(str(each) for each in found if each.certain)
            needs["possible"] += tuple(str(each) for each in found if not each.certain)
        with real_values():
            plan_capture(gm, "cpu", self.config.aclgraph_config, title="", static=frozenset())
        options = self.config.aclgraph_config
        pool = Pool()
        if options.use_graph_pool.value is not None:
            pool = self._pools.setdefault("use_graph_pool", pool)
        elif self._dynamic and options.reuse_graph_pool_in_same_fx.value:
            pool = self._pools.setdefault(needs["graphs"], pool)
        before = pool.bytes
        made = count(gm.graph, pool)
        needs["graphs"] += 1
        needs["streams"] += made.streams
        needs["events"] += made.events
        needs["tasks"] += made.tasks
        needs["pool_bytes"] += made.pool - before
        needs["unmeasured"] |= made.unmeasured

    def needs(self) -> dict[str, Any]:
        """The sums, by the names of ``tair_debug.captures.Need``."""
        return dict(self._needs)
