"""Import path of existing scripts; the code is in ``torchair.ge``."""

from __future__ import annotations

from typing import Any

from torchair.ge import _ge_graph


def __getattr__(name: str) -> Any:
    if name == "mark_static":
        from ge_converters.base.torch_compat import mark_static

        return mark_static
    return getattr(_ge_graph, name)


def __dir__() -> list[str]:
    return sorted({*_ge_graph.__all__, "mark_static"})
