"""Import path of existing scripts: which implicit decompositions are left alone is decided in ``ge_converters``."""
