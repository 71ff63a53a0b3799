"""Converters of the names of torch_npu."""
