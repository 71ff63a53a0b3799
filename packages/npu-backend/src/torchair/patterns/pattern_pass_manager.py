"""Import path of existing scripts."""

from torchair.names import door
from torchair.passes.patterns import register_replacement

__all__ = ["register_replacement"]

__getattr__ = door(__name__)
