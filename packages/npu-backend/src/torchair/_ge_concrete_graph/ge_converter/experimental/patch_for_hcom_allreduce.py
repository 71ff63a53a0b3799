"""Import path of existing scripts: importing it does what ``torchair.patch_for_hcom()`` does."""

from torchair.oplib.collectives import patch_for_hcom

patch_for_hcom()
