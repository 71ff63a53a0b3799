"""Import path of existing scripts: collectives have converters without it."""

from torchair.names import door

__getattr__ = door(__name__)
