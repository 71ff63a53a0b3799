"""Import path of existing scripts; the code is in ``torchair.config.log``."""

from torchair.config.log import EVENT_LEVEL, logger
from torchair.names import door

__all__ = ["EVENT_LEVEL", "logger"]

__getattr__ = door(__name__)
