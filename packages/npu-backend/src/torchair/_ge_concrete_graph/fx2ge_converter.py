"""Import path of existing scripts; the code is in ``ge_converters``."""

from ge_converters.base.dtypes import dtype_promote
from ge_converters.registry import declare_supported
from torchair.names import door
from torchair.oplib.converter_forms.registering import register_fx_node_ge_converter

__all__ = ["declare_supported", "dtype_promote", "register_fx_node_ge_converter"]

__getattr__ = door(__name__)
