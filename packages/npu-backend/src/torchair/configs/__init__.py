"""Import path of existing scripts; the code is in ``torchair.config``."""
