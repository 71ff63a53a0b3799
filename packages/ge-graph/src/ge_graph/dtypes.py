"""Element types and layouts: one row each, every mapping derived from the row.

Two numberings exist and differ for 24 of the 41 types: attributes of kind Int and Type carry the header number
(``int(DataType.DT_BOOL) == 12``), ``TensorDescriptor.dtype`` carries the wire number (``DataType.DT_BOOL.wire == 11``).
"""

from __future__ import annotations

import enum
from typing import Any, Final

import numpy as np

from ge_graph.errors import GraphError


class DataType(enum.IntEnum):
    """GE element type; the integer is the header number, as attributes carry it.

    A row has header number, wire number, bits an element (0: no fixed size), torch name, numpy name, short name, and
    kind: f floating, i signed, u unsigned, b bool, c complex, q quantised, - other.
    """

    DT_FLOAT = 0, 1, 32, "float32", "float32", "f32", "f"
    DT_FLOAT16 = 1, 2, 16, "float16", "float16", "f16", "f"
    DT_INT8 = 2, 3, 8, "int8", "int8", "i8", "i"
    DT_INT32 = 3, 7, 32, "int32", "int32", "i32", "i"
    DT_UINT8 = 4, 4, 8, "uint8", "uint8", "u8", "u"
    DT_INT16 = 6, 5, 16, "int16", "int16", "i16", "i"
    DT_UINT16 = 7, 6, 16, "uint16", "uint16", "u16", "u"
    DT_UINT32 = 8, 9, 32, "uint32", "uint32", "u32", "u"
    DT_INT64 = 9, 8, 64, "int64", "int64", "i64", "i"
    DT_UINT64 = 10, 10, 64, "uint64", "uint64", "u64", "u"
    DT_DOUBLE = 11, 12, 64, "float64", "float64", "f64", "f"
    DT_BOOL = 12, 11, 8, "bool", "bool", "b8", "b"
    DT_STRING = 13, 13, 0, None, None, "str", "-"
    DT_DUAL_SUB_INT8 = 14, 14, 8, None, None, "dsi8", "-"
    DT_DUAL_SUB_UINT8 = 15, 15, 8, None, None, "dsu8", "-"
    DT_COMPLEX64 = 16, 16, 64, "complex64", "complex64", "c64", "c"
    DT_COMPLEX128 = 17, 17, 128, "complex128", "complex128", "c128", "c"
    DT_QINT8 = 18, 18, 8, "qint8", None, "qi8", "q"
    DT_QINT16 = 19, 19, 16, None, None, "qi16", "q"
    DT_QINT32 = 20, 20, 32, "qint32", None, "qi32", "q"
    DT_QUINT8 = 21, 21, 8, "quint8", None, "qu8", "q"
    DT_QUINT16 = 22, 22, 16, None, None, "qu16", "q"
    DT_RESOURCE = 23, 23, 64, None, None, "res", "-"
    DT_STRING_REF = 24, 24, 0, None, None, "sref", "-"
    DT_DUAL = 25, 25, 40, None, None, "dual", "-"
    DT_VARIANT = 26, 26, 64, None, None, "var", "-"
    DT_BF16 = 27, 27, 16, "bfloat16", None, "bf16", "f"
    DT_UNDEFINED = 28, 0, 0, None, None, "undef", "-"
    DT_INT4 = 29, 28, 4, "quint4x2", None, "i4", "i"
    DT_UINT1 = 30, 29, 1, None, None, "u1", "u"
    DT_INT2 = 31, 30, 2, None, None, "i2", "i"
    DT_UINT2 = 32, 31, 2, None, None, "u2", "u"
    DT_COMPLEX32 = 33, 32, 32, "complex32", None, "c32", "c"
    DT_HIFLOAT8 = 34, 33, 8, None, None, "hif8", "f"
    DT_FLOAT8_E5M2 = 35, 34, 8, "float8_e5m2", None, "f8e5", "f"
    DT_FLOAT8_E4M3FN = 36, 35, 8, "float8_e4m3fn", None, "f8e4", "f"
    DT_FLOAT8_E8M0 = 37, 36, 8, "float8_e8m0fnu", None, "f8e8", "f"
    DT_FLOAT6_E3M2 = 38, 37, 6, None, None, "f6e3", "f"
    DT_FLOAT6_E2M3 = 39, 38, 6, None, None, "f6e2", "f"
    DT_FLOAT4_E2M1 = 40, 39, 4, None, None, "f4e2", "f"
    DT_FLOAT4_E1M2 = 41, 40, 4, None, None, "f4e1", "f"

    # Plain attributes, because these are read for every edge.
    wire: int
    bits: int
    torch_name: str | None
    numpy_name: str | None
    short: str
    is_float: bool
    is_integer: bool
    is_complex: bool

    def __new__(
        cls,
        header: int,
        wire: int = 0,
        bits: int = 0,
        torch: str | None = None,
        numpy: str | None = None,
        short: str = "",
        kind: str = "-",
    ) -> DataType:
        made = int.__new__(cls, header)
        made._value_ = header
        made.wire, made.bits, made.torch_name, made.numpy_name, made.short = wire, bits, torch, numpy, short
        made.is_float, made.is_integer, made.is_complex = kind == "f", kind in "iu", kind == "c"
        return made

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The numpy partner; bfloat16 and the types below one byte have none.

        Raises:
            GraphError: GE3001 if numpy has no such type.
        """
        if self.numpy_name is None:
            raise GraphError("GE3001", f"{self.name} has no numpy type", next="cast to float32 first")
        return np.dtype(self.numpy_name)


BY_WIRE: Final = {d.wire: d for d in DataType}
BY_TORCH_NAME: Final = {d.torch_name: d for d in DataType if d.torch_name}
BY_NUMPY_NAME: Final = {d.numpy_name: d for d in DataType if d.numpy_name}
BY_SHORT: Final = {d.short: d for d in DataType}
_OF_NUMPY: Final[dict[np.dtype[np.generic], DataType]] = {}


def from_numpy(dtype: np.dtype[np.generic]) -> DataType:
    """The GE type of a numpy type.

    Raises:
        GraphError: GE3001 if GE has no such type.
    """
    ge_dtype = _OF_NUMPY.get(dtype)
    if ge_dtype is not None:
        return ge_dtype
    try:
        ge_dtype = _OF_NUMPY[dtype] = BY_NUMPY_NAME[dtype.name]  # numpy puts the name together in Python
        return ge_dtype
    except KeyError:
        raise GraphError(
            "GE3001", f"numpy type {dtype.name} has no GE type; GE knows {', '.join(sorted(BY_NUMPY_NAME))}"
        ) from None


class Format(enum.IntEnum):
    """Memory layout of a tensor; the layout text on the wire is the name without ``FORMAT_``."""

    FORMAT_UNDEFINED = -1
    FORMAT_NCHW = 0
    FORMAT_NHWC = 1
    FORMAT_ND = 2
    FORMAT_NC1HWC0 = 3
    FORMAT_FRACTAL_Z = 4
    FORMAT_NC1C0HWPAD = 5
    FORMAT_NHWC1C0 = 6
    FORMAT_FSR_NCHW = 7
    FORMAT_FRACTAL_DECONV = 8
    FORMAT_C1HWNC0 = 9
    FORMAT_FRACTAL_DECONV_TRANSPOSE = 10
    FORMAT_FRACTAL_DECONV_SP_STRIDE_TRANS = 11
    FORMAT_NC1HWC0_C04 = 12
    FORMAT_FRACTAL_Z_C04 = 13
    FORMAT_CHWN = 14
    FORMAT_FRACTAL_DECONV_SP_STRIDE8_TRANS = 15
    FORMAT_HWCN = 16
    FORMAT_NC1KHKWHWC0 = 17
    FORMAT_BN_WEIGHT = 18
    FORMAT_FILTER_HWCK = 19
    FORMAT_HASHTABLE_LOOKUP_LOOKUPS = 20
    FORMAT_HASHTABLE_LOOKUP_KEYS = 21
    FORMAT_HASHTABLE_LOOKUP_VALUE = 22
    FORMAT_HASHTABLE_LOOKUP_OUTPUT = 23
    FORMAT_HASHTABLE_LOOKUP_HITS = 24
    FORMAT_C1HWNCoC0 = 25
    FORMAT_MD = 26
    FORMAT_NDHWC = 27
    FORMAT_FRACTAL_ZZ = 28
    FORMAT_FRACTAL_NZ = 29
    FORMAT_NCDHW = 30
    FORMAT_DHWCN = 31
    FORMAT_NDC1HWC0 = 32
    FORMAT_FRACTAL_Z_3D = 33
    FORMAT_CN = 34
    FORMAT_NC = 35
    FORMAT_DHWNC = 36
    FORMAT_FRACTAL_Z_3D_TRANSPOSE = 37
    FORMAT_FRACTAL_ZN_LSTM = 38
    FORMAT_FRACTAL_Z_G = 39
    FORMAT_RESERVED = 40
    FORMAT_ALL = 41
    FORMAT_NULL = 42
    FORMAT_ND_RNN_BIAS = 43
    FORMAT_FRACTAL_ZN_RNN = 44
    FORMAT_NYUV = 45
    FORMAT_NYUV_A = 46
    FORMAT_NCL = 47
    FORMAT_FRACTAL_Z_WINO = 48
    FORMAT_C1HWC0 = 49
    FORMAT_FRACTAL_NZ_C0_16 = 50
    FORMAT_FRACTAL_NZ_C0_2 = 52
    FORMAT_FRACTAL_NZ_C0_4 = 53
    FORMAT_FRACTAL_NZ_C0_8 = 54

    @property
    def layout(self) -> str:
        """Text in ``TensorDescriptor.layout``."""
        return self.name.removeprefix("FORMAT_")


BY_LAYOUT: Final = {f.layout: f for f in Format}


def as_dtype(value: Any) -> DataType:
    """An element type given by a user: a ``DataType`` or its header number.

    Raises:
        GraphError: GE3001 for anything else, a torch type included.
    """
    if type(value) is DataType:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return DataType(value)
        except ValueError:
            pass
    raise GraphError(
        "GE3001", f"{value!r} is not a GE element type", next=spelling(value) or "write ge.DataType.DT_FLOAT"
    )


def spelling(value: Any) -> str:
    """How to write a torch type as a GE one, as advice; empty if the value is none."""
    dtype = BY_TORCH_NAME.get(str(value).removeprefix("torch."))
    return f"write ge.DataType.{dtype.name}" if dtype is not None else ""
