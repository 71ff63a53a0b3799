"""Import path of existing scripts."""

from torchair.names import door

__getattr__ = door(__name__)
