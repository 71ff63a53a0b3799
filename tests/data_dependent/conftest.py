"""Programs whose numbers and sizes stand in tensors, three ways: graph breaks allowed, one graph, one dynamic graph.

``TAIR_WHOLE=1`` (``make torch-suites``) runs each program in each way; without it every fourth pair.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch.utils import _pytree as pytree

import torchair

CAPTURED: Final = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
WAYS: Final = {
    "breaks": ({}, {"fullgraph": False}),
    "one graph": (CAPTURED, {"fullgraph": True}),
    "dynamic": (CAPTURED, {"fullgraph": True, "dynamic": True}),
}
WHOLE: Final = os.environ.get("TAIR_WHOLE") == "1"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Pairs of a program, from the table ``PROGRAMS`` of the module, and a way."""
    if "program" in metafunc.fixturenames:
        pairs = [(name, way) for name in metafunc.module.PROGRAMS for way in WAYS]
        metafunc.parametrize(("program", "way"), pairs if WHOLE else pairs[::4])


def copied(value: Any) -> Any:
    """A tensor with its whole storage copied, so that a view stays a view of something larger."""
    if not isinstance(value, torch.Tensor):
        return value
    place = (value.storage_offset(), value.shape, value.stride())
    storage = value.detach().untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype).set_(storage, *place).requires_grad_(value.requires_grad)


def outcome(fn: Callable[..., Any], argument_sets: Any, grad: bool) -> list[Any]:
    """Results, arguments afterwards and gradients of one call for each set of arguments."""
    found: list[Any] = []
    for arguments in argument_sets:
        given = [copied(a) for a in arguments]
        torch.manual_seed(0)
        results = pytree.tree_leaves(fn(*given))
        tensors = [a for a in given if isinstance(a, torch.Tensor)]
        if grad:
            wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
            sum(r.float().square().sum() for r in wanted).backward()
        found += [*results, *tensors, *([t.grad for t in tensors] if grad else [])]
    return found


def assert_same(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert type(g) is type(w)
        if isinstance(g, torch.Tensor):
            torch.testing.assert_close(g, w, equal_nan=True)
            steps = [(n, s, t) for n, s, t in zip(g.shape, g.stride(), w.stride()) if n > 1]
            assert not g.numel() or all(s == t for _, s, t in steps), (g.stride(), w.stride())
        else:
            assert g == w


@pytest.fixture
def assert_as_eager() -> Callable[[Any, str], None]:
    """Judge a program ``(function, argument sets, gradients)`` in one way against eager.

    What ``backend="aot_eager"`` does not run may be refused, but it must not be wrong.
    """

    def judge(program: Any, way: str) -> None:
        fn, argument_sets, grad = program
        want = outcome(fn, argument_sets, grad)
        patch, how = WAYS[way]

        def compiled(backend: Any) -> list[Any]:
            torch._dynamo.reset()
            with torch._dynamo.config.patch(**patch):
                return outcome(torch.compile(fn, backend=backend, **how), argument_sets, grad)

        try:
            got = compiled(torchair.get_npu_backend())
        except Exception:  # noqa: BLE001 - of any type; what matters is what torch does
            with pytest.raises(Exception):  # whatever torch says about it
                compiled("aot_eager")
            return
        assert_same(got, want)

    return judge
