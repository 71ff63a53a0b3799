"""Import path of existing scripts; the code is in ``ge_graph``."""

from ge_graph import DataType, Format, Tensor, TensorSpec

__all__ = ["DataType", "Format", "Tensor", "TensorSpec"]
