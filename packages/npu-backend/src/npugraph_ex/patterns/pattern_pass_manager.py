"""Import path of existing scripts."""

from torchair.fx_passes.patterns import register_replacement
from torchair.names import door

__all__ = ["register_replacement"]

__getattr__ = door(__name__)
