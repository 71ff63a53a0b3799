"""DLPack capsules by hand: the exchange of memory between libraries, without any of them."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from ge_graph.dtypes import DataType
from ge_runtime import errors

CPU: Final = 1
EXTENSION: Final = 12  # kDLExtDev, what torch calls devices such as an NPU

_CODES: Final = {"i": 0, "u": 1, "f": 2, "bfloat": 4, "c": 5, "b": 6}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)

_exported: Final[dict[int, Any]] = {}  # what an exported capsule keeps alive, until its consumer lets go


def _release(address: int) -> None:
    _exported.pop(address, None)


_release_c: Final = _DELETER(_release)


def _unused(capsule: int) -> None:
    """A capsule that nobody consumed."""
    if _valid(capsule, b"dltensor"):
        _release(_pointer(ctypes.cast(capsule, ctypes.py_object), b"dltensor") or 0)


_unused_c: Final = _DELETER(_unused)


def _type(dtype: DataType) -> _Type:
    if dtype is DataType.DT_BF16:
        return _Type(_CODES["bfloat"], 16, 1)
    if dtype.numpy_name is None:
        raise errors.refused("DLPack", f"{dtype.name} has no DLPack type")
    return _Type(_CODES[dtype.numpy.kind], dtype.bits, 1)


_BY_TYPE: Final = {(_type(d).code, d.bits): d for d in DataType if d is DataType.DT_BF16 or d.numpy_name is not None}


def export(owner: Any, address: int, dtype: DataType, shape: tuple[int, ...], device: int) -> Any:
    """A capsule that shows ``owner``'s memory and keeps it alive."""
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    made = _Managed()
    made.tensor = _Tensor(address, _Device(EXTENSION, device), len(shape), _type(dtype), sizes, None, 0)
    made.context, made.deleter = None, _release_c
    at = ctypes.addressof(made)
    _exported[at] = (made, sizes, owner)
    return _new(at, b"dltensor", ctypes.cast(_unused_c, ctypes.c_void_p))


def import_device(value: Any) -> tuple[int, DataType, tuple[int, ...], Any]:
    """Address, type and sizes of what another library holds on the device, and what keeps it alive.

    Errors: EngineError GE4004 if it is not dense or of a type that GE lacks.
    """
    capsule = value.__dlpack__()
    at = _pointer(capsule, b"dltensor")
    tensor = _Managed.from_address(at or 0).tensor
    dtype = _BY_TYPE.get((tensor.dtype.code, tensor.dtype.bits))
    if dtype is None or tensor.dtype.lanes != 1:
        raise errors.bad_input(f"a DLPack tensor of type code {tensor.dtype.code} with {tensor.dtype.bits} bits")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides and 0 not in shape:
        step = 1
        for i in reversed(range(tensor.ndim)):
            if shape[i] != 1 and tensor.strides[i] != step:
                raise errors.bad_input("a DLPack tensor on the device that is not dense; make it contiguous first")
            step *= shape[i]
    return (tensor.data or 0) + tensor.byte_offset, dtype, shape, capsule
