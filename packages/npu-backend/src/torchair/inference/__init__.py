"""For serving: a compile cache that needs no tracing, and sizes that are known beforehand."""

from torchair.compiler.gears import set_dim_gears
from torchair.inference.compile_cache import cache_compile, readable_cache
from torchair.names import door

__all__ = ["cache_compile", "readable_cache", "set_dim_gears"]

__getattr__ = door(__name__)
