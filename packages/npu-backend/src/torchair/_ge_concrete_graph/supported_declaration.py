"""Import path of existing scripts; the code is in ``ge_converters``."""

from ge_converters.base.support import (
    BF16,
    BOOL,
    C64,
    C128,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Support,
    TensorLike,
)
from torchair.names import door

_TypedTensor = TensorLike

__all__ = ["BF16", "BOOL", "C64", "C128", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "U8", "Support", "TensorLike"]

__getattr__ = door(__name__)
