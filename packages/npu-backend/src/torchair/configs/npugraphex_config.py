"""Import path of existing scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchair.config.compiler_config import CompilerConfig, GraphExConfig, with_options
from torchair.names import door

__all__ = ["CompilerConfig", "GraphExConfig"]

__getattr__ = door(__name__)


def _process_kwargs_options(config: CompilerConfig, kwargs: Mapping[str, Any]) -> CompilerConfig:
    """A configuration with the settings of ``kwargs["options"]``."""
    return with_options(config, kwargs.get("options") or {})
