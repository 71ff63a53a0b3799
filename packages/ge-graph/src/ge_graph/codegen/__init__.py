"""Generators: ``ops.pyi`` from the schemas, Python wrappers from ``REG_OP`` headers."""
