"""Import path of existing scripts and of graph dumps in Python form."""

from torchair.names import door

__getattr__ = door(__name__)
