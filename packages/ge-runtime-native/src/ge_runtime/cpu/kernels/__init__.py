"""Kernels by family; each module is imported when a graph first needs one of its operators."""
