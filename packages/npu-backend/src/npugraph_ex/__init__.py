"""The backend of captured graphs under the import name that existing programs use; the code is in ``torchair``.

``torch.compile(model, backend="npugraph_ex", options={...})`` needs no import of this package.
"""

from __future__ import annotations

from typing import Any, Final

from torchair import doors

_MODULES: Final = ("inference", "npu_fx_compiler", "scope")  # torchair/data/doors.tsv has the rest

__all__ = doors.public(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    value = globals()[name] = doors.load(__name__, name, _MODULES)
    return value


def __dir__() -> list[str]:
    return doors.names(__name__, {*globals(), *__all__})
