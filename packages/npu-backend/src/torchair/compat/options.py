"""Options as programs for the torchair inside torch_npu hand them over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ge_graph.errors import ConfigError
from torchair.config.compiler_config import CompilerConfig, GraphExConfig, flat_options, with_options
from torchair.config.log import logger


def initialize_graph_engine(global_compile_options: Mapping[str, str] | None = None) -> None:
    """Engines start with their first graph, so there is nothing to do; options belong into a ``CompilerConfig``.

    Errors: ConfigError GE1011 for options that are no mapping of texts.
    """
    options = {} if global_compile_options is None else global_compile_options
    if not isinstance(options, Mapping) or not all(isinstance(t, str) for pair in options.items() for t in pair):
        raise ConfigError(
            "GE1011",
            f"global_compile_options must map texts to texts, got {global_compile_options!r}",
            next="leave it out, and set the options of torchair.CompilerConfig",
        )
    if options:
        logger.warning_once(
            "initialize_graph_engine: %s have no effect here; set the options of torchair.CompilerConfig",
            ", ".join(sorted(options)),
        )


def options_of_compile(config: CompilerConfig, kwargs: Mapping[str, Any]) -> CompilerConfig:
    """A configuration with the settings of ``kwargs["options"]``, the keywords of ``torch.compile``.

    Errors: ConfigError GE1001 for an unknown name, others for a wrong value.
    """
    return with_options(config, kwargs.get("options") or {})


def captured_options(config: GraphExConfig, kwargs: Mapping[str, Any]) -> GraphExConfig:
    """Set the flat options of ``kwargs["options"]`` in a configuration of captured graphs, which is returned.

    Errors: ConfigError GE1001 for an unknown name, others for a wrong value.
    """
    return flat_options(config, kwargs.get("options"))
