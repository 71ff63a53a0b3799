"""Import path of existing scripts."""

from __future__ import annotations

from collections.abc import Mapping

from ge_graph.errors import ConfigError
from torchair.config.log import logger
from torchair.names import door

__all__ = ["initialize_graph_engine"]

__getattr__ = door(__name__)


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
