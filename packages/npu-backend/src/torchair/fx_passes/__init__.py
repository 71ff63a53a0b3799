"""FX passes: rewrites of the ATen graph before it is lowered. The order below is the order in which they run."""

from __future__ import annotations

from typing import Final

from torchair.fx_passes.base import FxPass
from torchair.fx_passes.cats import RemoveCats
from torchair.fx_passes.custom import PassError, run_custom
from torchair.fx_passes.events import PairTaggedEvents
from torchair.fx_passes.markers import DropForwardMarkers
from torchair.fx_passes.noops import RemoveNoops
from torchair.fx_passes.patterns import FusePatterns
from torchair.fx_passes.reinplace import ReinplaceInputs, ReinplaceOps
from torchair.fx_passes.rms_norm import FuseRmsNorm
from torchair.fx_passes.scopes import check_scopes
from torchair.fx_passes.symbols import DeriveSymbols
from torchair.fx_passes.view_chains import MergeViews
from torchair.fx_passes.waits import ThreadWaits

BEFORE_USER: Final[tuple[FxPass, ...]] = (DropForwardMarkers(),)
BUILT_IN: Final[tuple[FxPass, ...]] = (DeriveSymbols(), RemoveNoops(), FusePatterns(), FuseRmsNorm(), MergeViews())
AFTER_USER: Final[tuple[FxPass, ...]] = (ThreadWaits(), PairTaggedEvents())
# Their results write memory; they only run in mode reduce-overhead.
CAPTURED: Final[tuple[FxPass, ...]] = (RemoveCats(), ReinplaceInputs(), ReinplaceOps())

__all__ = ["AFTER_USER", "BEFORE_USER", "BUILT_IN", "CAPTURED", "FxPass", "PassError", "check_scopes", "run_custom"]
