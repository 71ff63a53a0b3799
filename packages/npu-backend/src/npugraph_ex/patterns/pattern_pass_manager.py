"""Import path of existing scripts."""

from torchair.fx_passes.patterns import register_replacement

__all__ = ["register_replacement"]
