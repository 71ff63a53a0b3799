"""A plugin of pytest that takes the mocks of ``torch.npu`` and ``torch_npu`` out of a client's tests.

A mock still records its calls, but each call reaches what the mock stands for, whatever result the test gave it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest import mock

_entered = mock._patch.__enter__  # type: ignore[attr-defined]


def _enter(self: Any) -> Any:
    made = _entered(self)
    target, original = self.target, self.temp_original
    name = target.__name__ if isinstance(target, ModuleType) else ""
    if name.startswith(("torch_npu", "torch.npu")) and isinstance(made, mock.NonCallableMock) and callable(original):
        made.side_effect = original
    return made


def pytest_configure() -> None:
    mock._patch.__enter__ = _enter  # type: ignore[attr-defined, method-assign]


def pytest_unconfigure() -> None:
    mock._patch.__enter__ = _entered  # type: ignore[attr-defined, method-assign]
