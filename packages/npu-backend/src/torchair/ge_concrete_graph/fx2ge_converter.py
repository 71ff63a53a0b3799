"""Import path of existing scripts."""

from torchair._ge_concrete_graph.fx2ge_converter import declare_supported, dtype_promote, register_fx_node_ge_converter
from torchair.names import door

__all__ = ["declare_supported", "dtype_promote", "register_fx_node_ge_converter"]

__getattr__ = door(__name__)
