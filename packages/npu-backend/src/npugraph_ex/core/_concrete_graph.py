"""Import path of existing scripts."""

from torchair.core._concrete_graph import ValuePack, _is_symlist
from torchair.names import door

__all__ = ["ValuePack", "_is_symlist"]

__getattr__ = door(__name__)
