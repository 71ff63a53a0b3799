"""Reading ``.npy`` files of others."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from ge_graph.files import plain


def read_npy(
    path: str | os.PathLike[str], *, header_only: bool = False
) -> tuple[tuple[int, ...], np.ndarray[Any, Any]]:
    """Shape and array, row-major and in the byte order of the host; with ``header_only`` the array is empty.

    Nothing is allocated before the file's length agrees with its header.

    Raises:
        ValueError: With the reason, for everything that is not a plain array of numbers that torch has.
    """
    form = np.lib.format
    try:
        with plain(path) as file:
            version = form.read_magic(file)
            reader = {(1, 0): form.read_array_header_1_0, (2, 0): form.read_array_header_2_0}.get(version)
            if reader is None:
                raise ValueError(f"its version is {version}")
            shape, by_column, dtype = reader(file)
            if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
                raise ValueError(f"it holds {dtype}{list(shape)}, a type that torch lacks")
            if any(isinstance(d, bool) or d < 0 for d in shape):
                raise ValueError(f"it holds {dtype}{list(shape)}")
            wanted, there = math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size - file.tell()
            if wanted != there:
                raise ValueError(f"{dtype}{list(shape)} takes {wanted} bytes, it has {there}")
            if header_only:
                return shape, np.empty(0)
            data = np.fromfile(file, dtype, math.prod(shape))
            if data.size != math.prod(shape):
                raise ValueError("cut off while it was read")
            array = data.reshape(shape, order="F" if by_column else "C")
            return shape, np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False)).reshape(shape)
    except Exception as error:  # the header, a Python literal, of a damaged file makes numpy's parser fail in many ways
        raise ValueError(str(error) or type(error).__name__) from error
