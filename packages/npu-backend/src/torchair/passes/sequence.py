"""The FX passes in the order in which they run, the user's own among them. This order stands here alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from ge_converters.base.progress import Progress
from torchair.passes.base import FxPass, place_of
from torchair.passes.cats import RemoveCats
from torchair.passes.custom import name_of_pass, run_custom
from torchair.passes.grouped_products import UseGroupedMatmul
from torchair.passes.markers import DropForwardMarkers, PairTaggedEvents, ScopeSuperKernels, ThreadWaits
from torchair.passes.noops import RemoveNoops
from torchair.passes.patterns import FusePatterns
from torchair.passes.quantised_products import FuseQuantisedProducts
from torchair.passes.reinplace import ReinplaceInputs, ReinplaceOps
from torchair.passes.rms_norm import FuseRmsNorm
from torchair.passes.scopes import check_scopes
from torchair.passes.step_numbers import NumbersOnDevice
from torchair.passes.symbolic_inputs import DeriveSymbols
from torchair.passes.view_chains import MergeViews
from torchair.passes.written_regions import ReturnWrites

if TYPE_CHECKING:
    import torch

    from torchair.config.compiler_config import CompilerConfig

BEFORE_USER: Final[tuple[FxPass, ...]] = (DropForwardMarkers(), ReturnWrites())
BUILT_IN: Final[tuple[FxPass, ...]] = (
    DeriveSymbols(),
    RemoveNoops(),
    FusePatterns(),
    FuseRmsNorm(),
    FuseQuantisedProducts(),
    MergeViews(),
    UseGroupedMatmul(),
)
AFTER_USER: Final[tuple[FxPass, ...]] = (ThreadWaits(), PairTaggedEvents(), ScopeSuperKernels())
# Their results write memory; they only run in mode reduce-overhead.
CAPTURED: Final[tuple[FxPass, ...]] = (NumbersOnDevice(), RemoveCats(), ReinplaceInputs(), ReinplaceOps())


class FxProgress(Progress):
    """Who follows the FX passes; this one does nothing."""

    def fx_graph(self, label: str, gm: torch.fx.GraphModule, *, changed: bool = True) -> None:
        """The graph after a pass, and whether the pass changed it."""

    def fx_rewrite(self, name: str, gm: torch.fx.GraphModule, where: str = "") -> AbstractContextManager[None]:
        """Surrounds each pass; ``where`` is the place of a pass of the user's."""
        return contextlib.nullcontext()


def run_all(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    config: CompilerConfig,
    phase: str,
    progress: FxProgress = FxProgress(),
    *,
    in_place: bool = True,
) -> None:
    """Run every pass that the configuration asks for; edits ``gm``.

    Args:
        phase: ``forward`` or ``backward``.
        in_place: Whether ``run_captured`` follows.

    Errors: PassError for the user's passes, and for scopes that do not nest.
    """

    def built_in(passes: Sequence[FxPass]) -> None:
        _run(passes, gm, config, phase, progress)

    def custom(option: str) -> None:
        fn = getattr(config, option).value
        if fn is None:
            return
        label = f"config.{option} '{name_of_pass(fn)}'"
        with progress.timed(option) as note, progress.fx_rewrite(label, gm, place_of(fn)):
            name, changed = run_custom(option, gm, example_inputs, config)
            note(f"'{name}' {'edited' if changed else 'left'} the graph, {len(gm.graph.nodes)} nodes")
        progress.fx_graph(name, gm)

    built_in(BEFORE_USER)
    custom("post_grad_custom_pre_pass")
    built_in(BUILT_IN)
    custom("post_grad_custom_post_pass")
    built_in(AFTER_USER)
    check_scopes(gm.graph)
    if in_place:
        run_captured(gm, config, phase, progress)


def run_captured(
    gm: torch.fx.GraphModule, config: CompilerConfig, phase: str, progress: FxProgress = FxProgress()
) -> None:
    """The passes whose results write memory; after them the order of the nodes says more than their data."""
    _run(CAPTURED, gm, config, phase, progress)


def _run(
    passes: Sequence[FxPass], gm: torch.fx.GraphModule, config: CompilerConfig, phase: str, progress: FxProgress
) -> None:
    for each in passes:
        if not each.enabled(config, phase):
            continue
        with progress.timed(each.name) as note, progress.fx_rewrite(each.name, gm):
            edits = each.run(gm)
            note(f"{edits} edits, {len(gm.graph.nodes)} nodes")
        progress.fx_graph(each.name, gm, changed=bool(edits))
