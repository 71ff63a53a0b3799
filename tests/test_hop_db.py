"""torch's own database of higher-order operators: what ``backend="aot_eager"`` runs, and with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.hop_db import hop_db

import torchair

# Entry -> why aot_eager itself does not run it on a CPU, so that there is nothing to compare with.
NOT_ON_A_CPU: dict[str, str] = {
    "local_map_hop simple": "dynamo does not trace torch.fx.symbolic_trace",
    "register_hook simple": "dynamo has no rule for the operator",
    "inline_asm_elementwise simple": "runs on CUDA only",
}

# Entry -> what we refuse, and why.
REFUSED: dict[str, str] = {
    "auto_functionalize simple": "a custom operator without converter; config.fallback = 'split' runs it",
}


def name_of(info: Any) -> str:
    return f"{info.name} {info.variant_test_name}"


def outcome(info: Any, backend: Any) -> list[Any]:
    torch._dynamo.reset()
    torch.manual_seed(7)
    found: list[Any] = []
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        compiled = torch.compile(info.op, backend=backend, fullgraph=True)
        for _ in range(3):
            inputs = (sample.input, *sample.args)
            given = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, inputs)
            found += torch.utils._pytree.tree_leaves(compiled(*given, **sample.kwargs))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("info", hop_db, ids=name_of)
def test_as_aot_eager(info):
    name = name_of(info)
    if name in NOT_ON_A_CPU:
        with pytest.raises(Exception):
            outcome(info, "aot_eager")
        return
    expected = outcome(info, "aot_eager")
    if name in REFUSED:
        with pytest.raises(Exception, match="GE2001"):
            outcome(info, torchair.get_npu_backend())
        return
    got = outcome(info, torchair.get_npu_backend())
    assert len(got) == len(expected)
    for a, b in zip(expected, got, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)
        else:
            assert a == b
