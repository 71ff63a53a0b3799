"""A function through the backend, and its results against eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compiled(fn: Callable[..., Any], config: Any = None, *, fullgraph: bool = True, **more: Any) -> Callable[..., Any]:
    """The function or module through our backend, with dynamo as if nothing had been compiled before.

    Args:
        fn: Function or module.
        config: A ``CompilerConfig``; the defaults if None.
        fullgraph: Refuse what would break the graph.
        **more: Further arguments of ``torch.compile``.
    """
    import torchair

    torch._dynamo.reset()
    backend = torchair.get_npu_backend(compiler_config=config)
    made: Callable[..., Any] = torch.compile(fn, backend=backend, fullgraph=fullgraph, **more)
    return made


def same(got: Any, want: Any) -> None:
    """Values (within rounding of float32), type, size, stride and need of gradients are those of eager."""
    if isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
        assert got.stride() == want.stride()
        assert got.requires_grad == want.requires_grad
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
    else:
        assert type(got) is type(want)
        assert got == want
