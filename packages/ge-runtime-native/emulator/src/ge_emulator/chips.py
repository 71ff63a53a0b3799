"""Cores of the chip that is emulated: the rows of ``native/chips.h``."""

from __future__ import annotations

import os
import re

from ge_emulator.build import sources


def cores() -> tuple[int, int] | None:
    """Cube and vector cores of the chip that TAIR_EMULATOR_CHIP names, None if they are not known."""
    chip = os.environ.get("TAIR_EMULATOR_CHIP") or "Ascend910B1"
    rows = re.findall(r'\{"(\w+)", (\d+), (\d+)\}', (sources() / "chips.h").read_text())
    return {name: (int(cube), int(vector)) for name, cube, vector in rows}.get(chip)
