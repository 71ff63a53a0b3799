"""Import path of existing scripts."""

from torchair.core._concrete_graph import ValuePack, _is_symlist

__all__ = ["ValuePack", "_is_symlist"]
