"""Import path of existing scripts; the code is in ``torchair.config.compiler_config``."""

from torchair.names import door

__getattr__ = door(__name__)
