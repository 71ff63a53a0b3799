"""FX passes: rewrites of the ATen graph before it is lowered. The order below is the order in which they run."""

from __future__ import annotations

from typing import Final

from torchair.fx_passes.base import FxPass
from torchair.fx_passes.custom import PassError, run_custom
from torchair.fx_passes.markers import DropForwardMarkers
from torchair.fx_passes.noops import RemoveNoops
from torchair.fx_passes.waits import ThreadWaits

BEFORE_USER: Final[tuple[FxPass, ...]] = (DropForwardMarkers(),)
BUILT_IN: Final[tuple[FxPass, ...]] = (RemoveNoops(),)
AFTER_USER: Final[tuple[FxPass, ...]] = (ThreadWaits(),)

__all__ = ["AFTER_USER", "BEFORE_USER", "BUILT_IN", "FxPass", "PassError", "run_custom"]
