"""Options of captured graphs."""

from typing import Any

from torchair.config.compiler_config import GraphExConfig
from torchair.config.compiler_config import GraphExConfig as CompilerConfig
from torchair.names import door

__all__ = ["CompilerConfig", "GraphExConfig"]

__getattr__ = door(__name__)


def _process_kwargs_options(config: GraphExConfig, kwargs: dict[str, Any]) -> GraphExConfig:
    from npugraph_ex.configs.npugraphex_config import _process_kwargs_options as process

    return process(config, kwargs)
