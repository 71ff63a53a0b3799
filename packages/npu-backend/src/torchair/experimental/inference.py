"""Import path of existing scripts."""

from torchair.export.dynamo_export import use_internal_format_weight
from torchair.inference import cache_compile, readable_cache, set_dim_gears
from torchair.names import door

__all__ = ["cache_compile", "readable_cache", "set_dim_gears", "use_internal_format_weight"]

__getattr__ = door(__name__)
