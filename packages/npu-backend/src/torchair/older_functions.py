"""Functions that existing scripts call under older import paths (``torchair.import_paths``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ge_graph.errors import ConfigError
from torchair.config import CompilerConfig, GraphExConfig, flat_options, with_options
from torchair.log import logger


def get_npu_default_decompositions() -> dict[Any, Callable[..., Any]]:
    """The functions that replace ATen ops while a graph is traced for this backend, by op."""
    from ge_converters.decompose.table import decomposition_table

    return dict(decomposition_table({}))


def initialize_graph_engine(global_compile_options: Mapping[str, str] | None = None) -> None:
    """Engines start with their first graph, so there is nothing to do; options belong into a ``CompilerConfig``.

    Errors: ConfigError GE1011 for options that are no mapping of texts.
    """
    options = {} if global_compile_options is None else global_compile_options
    if not isinstance(options, Mapping) or not all(isinstance(t, str) for pair in options.items() for t in pair):
        raise ConfigError(
            "GE1011", f"global_compile_options must map texts to texts, got {global_compile_options!r}",
            next="leave it out, and set the options of torchair.CompilerConfig",
        )  # fmt: skip
    if options:
        logger.warning_once(
            "initialize_graph_engine: %s have no effect here; set the options of torchair.CompilerConfig",
            ", ".join(sorted(options)),
        )


def process_options(config: CompilerConfig, kwargs: Mapping[str, Any]) -> CompilerConfig:
    """A configuration with the settings of ``kwargs["options"]``."""
    return with_options(config, kwargs.get("options") or {})


def process_flat_options(config: GraphExConfig, kwargs: Mapping[str, Any]) -> GraphExConfig:
    """Set the flat options of ``kwargs["options"]`` in a configuration, which is returned.

    Errors: ConfigError GE1001 for an unknown name, others for a wrong value.
    """
    return flat_options(config, kwargs.get("options"))


@dataclass
class ValuePack:
    """A value of the ATen graph beside what it became.

    Attributes:
        meta: The fake tensor or number.
        npu: The tensor of the GE graph, None if there is none.
    """

    meta: Any
    npu: Any = None


def is_symlist(arg: Any) -> bool:
    """Whether an argument is a list that holds a symbolic number."""
    return isinstance(arg, (list, tuple)) and any(isinstance(v, torch.SymInt) for v in arg)
