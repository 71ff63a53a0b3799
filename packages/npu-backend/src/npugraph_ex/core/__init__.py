"""Import path of existing scripts."""
