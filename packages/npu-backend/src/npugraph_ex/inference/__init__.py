"""For serving: a compile cache that needs no tracing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchair import inference as _inference
from torchair.config.compiler_config import captured_config, captured_from
from torchair.inference import readable_cache
from torchair.names import door

__all__ = ["cache_compile", "readable_cache"]

__getattr__ = door(__name__)


def cache_compile(
    func: Callable[..., Any],
    *,
    config: Any = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """``torchair.inference.cache_compile`` for captured graphs.

    Args:
        func: See there, as for the arguments that are not listed here.
        config: A ``npugraph_ex.CompilerConfig``.
        options: Flat options, in place of ``config`` or over it.
        dynamic: See there.
        cache_dir: See there.
        global_rank: See there.
        tp_rank: See there.
        pp_rank: See there.
        **kwargs: ``custom_decompositions``.

    Errors: as there; ConfigError GE1001 for an unknown option.
    """
    made = captured_config(options) if config is None else captured_from(config, options)
    return _inference.cache_compile(
        func,
        config=made,
        dynamic=dynamic,
        cache_dir=cache_dir,
        global_rank=global_rank,
        tp_rank=tp_rank,
        pp_rank=pp_rank,
        **kwargs,
    )
