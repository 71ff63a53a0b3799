"""Options of captured graphs from the keywords of torch.compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchair.config.compiler_config import GraphExConfig, flat_options
from torchair.names import door

__all__ = ["GraphExConfig"]

__getattr__ = door(__name__)


def _process_kwargs_options(config: GraphExConfig, kwargs: Mapping[str, Any]) -> GraphExConfig:
    """Set the flat options of ``kwargs["options"]`` in a configuration, which is returned.

    Errors: ConfigError GE1001 for an unknown name, others for a wrong value.
    """
    return flat_options(config, kwargs.get("options"))
