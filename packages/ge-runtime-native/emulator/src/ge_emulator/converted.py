"""An operator of torch_npu as the graph that its converter makes of it: functions whose GE operator has no kernel.

torch_npu's function calls the very operator function that is computed here, so its Meta function says the results.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ge_emulator.refusal import OP_NOT_FOUND, CannRefusal
from ge_runtime.cpu.engine import CpuEngine

_KEPT: Final = 512  # graphs; beyond it the oldest goes
_lock = threading.Lock()
_graphs: Final[OrderedDict[Any, Any]] = OrderedDict()


def run(name: str, operands: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Results of ``torch.ops.npu.<name>`` on CPU tensors, by its converter and the embedded engine.

    Errors: what converting refuses; CannRefusal if torch_npu has no such operator.
    """
    leaves, spec = pytree.tree_flatten((tuple(operands), dict(keywords)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    key = name, str(spec), tuple(_described(leaf) for leaf in leaves)
    with _lock:
        made = _graphs.get(key)
        if made is None:
            made = _graphs[key] = _converted(name, leaves, spec)
            if len(_graphs) > _KEPT:
                _graphs.popitem(last=False)
        else:
            _graphs.move_to_end(key)
    from ge_converters.report.smoke import execute

    lowered, single = made
    results = execute(lowered, CpuEngine(), tensors)
    return results[0] if single else results


def _described(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.stride()
    return type(leaf), repr(leaf)


def _converted(name: str, leaves: Sequence[Any], spec: Any) -> tuple[Any, bool]:
    from ge_converters.decompose.table import decomposition_table
    from ge_converters.lowering import lower

    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.npu, packet, None), overload or "default", None)
    if op is None:
        raise CannRefusal(OP_NOT_FOUND, f"[GE4003] this torch_npu has no operator '{name}'")
    single = True

    def call(*tensors: torch.Tensor) -> tuple[Any, ...]:
        nonlocal single
        rest = iter(tensors)
        args, keywords = pytree.tree_unflatten([next(rest) if isinstance(v, torch.Tensor) else v for v in leaves], spec)
        results = op(*args, **keywords)
        single = isinstance(results, torch.Tensor)
        return (results,) if single else tuple(results)

    with torch.no_grad():
        traced = make_fx(call, decomposition_table=decomposition_table(), tracing_mode="fake")(
            *[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        )
    return lower(traced), single
