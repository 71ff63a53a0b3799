"""What converters are written with: one function per GE operator, and the types they deal in.

``from torchair import ge`` gives ``ge.MatMulV2(x1, x2)``, ``ge.Const``, ``ge.Cast``, ``ge.Clone``, ``ge.custom_op``,
``ge.attr``, ``ge.Tensor``, ``ge.TensorSpec``, ``ge.DataType`` and ``ge.Format``.
"""

from __future__ import annotations

from typing import Any, Final

from torchair import doors

_MODULES: Final = ("_ge_graph", "attr", "data_type")  # torchair/data/doors.tsv has the rest

__all__ = ["Clone", "Const", "Data", "DataType", "Format", "Tensor", "TensorSpec", "attr", "custom_op"]


def __getattr__(name: str) -> Any:
    value = globals()[name] = doors.load(__name__, name, _MODULES)
    return value


def __dir__() -> list[str]:
    return doors.names(__name__, {*globals(), *_MODULES})
