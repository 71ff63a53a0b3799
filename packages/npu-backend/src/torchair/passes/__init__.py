"""FX passes: rewrites of the ATen graph before it is lowered; ``sequence`` has their order."""

from torchair.passes.base import FxPass
from torchair.passes.custom import PassError
from torchair.passes.sequence import AFTER_USER, BEFORE_USER, BUILT_IN, CAPTURED, FxProgress, run_all, run_captured

__all__ = [
    "AFTER_USER",
    "BEFORE_USER",
    "BUILT_IN",
    "CAPTURED",
    "FxPass",
    "FxProgress",
    "PassError",
    "run_all",
    "run_captured",
]
