"""Options of captured graphs."""

from torchair.config import GraphExConfig
from torchair.config import GraphExConfig as CompilerConfig

__all__ = ["CompilerConfig", "GraphExConfig"]


def _process_kwargs_options(config: GraphExConfig, kwargs: dict) -> GraphExConfig:
    from npugraph_ex.configs.npugraphex_config import _process_kwargs_options as process

    return process(config, kwargs)
