"""Import path of existing scripts; the code is in ``torchair.config.compiler_config``."""

from __future__ import annotations

from typing import Any, Final

from torchair.config.compiler_config import (
    INT64_MAX,
    CallableValue,
    CompilerConfig,
    DictOptionValue,
    IntListValue,
    IntRangeValue,
    MustExistedPathValue,
    NpuBaseConfig,
    OptionValue,
)
from torchair.names import missing

__all__ = [
    "INT64_MAX",
    "CallableValue",
    "CompilerConfig",
    "DictOptionValue",
    "IntListValue",
    "IntRangeValue",
    "MustExistedPathValue",
    "NpuBaseConfig",
    "OptionValue",
]


def __getattr__(name: str) -> Any:
    if name in _GROUPS:  # the classes of the groups of options, which here are one class
        return NpuBaseConfig
    if name == "_process_kwargs_options":
        from torchair.configs import npugraphex_config

        return npugraphex_config._process_kwargs_options
    raise missing("torchair.configs.compiler_config", name, __all__)


_GROUPS: Final = (
    "_DataDumpConfig",
    "_DebugConfig",
    "_ExperimentalConfig",
    "_ExportConfig",
    "_FusionConfig",
    "_GEConfig",
    "_InferenceConfig",
)
