"""Import path of existing scripts; the code is in ``torchair.config``."""

from torchair.config import (
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
