"""How a command line names a model."""

from __future__ import annotations

from typing import Final

HUB: Final = "hf:"
FORMS: Final = "FILE.py:factory, package.module:factory or hf:config.json"


def is_model(target: str) -> bool:
    """Whether a text names a model rather than a file with a graph or a dump."""
    return target.startswith(HUB) or ".py:" in target or by_import(target)


def by_import(target: str) -> bool:
    """Whether a text has the form ``package.module:factory``."""
    module, _, name = target.rpartition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))
