"""Compiled graphs that torch writes to files itself: ``torch.compile(...).aot_compile`` and what it saves.

torch pickles what dynamo and AOTAutograd have made, and with it each compiled graph. Of ours the pickle holds bytes:
the archive of ``CompiledFxGraph.dump_artifacts`` and the options as JSON. Reading them is as safe as reading any
archive; the pickle around them is torch's, and as safe as a pickle.

torch keeps its guards in that file and looks at them before each call, so an archive in it has no conditions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ge_converters.base.torch_kept import output_code
from ge_graph.errors import ArchiveError, ConfigError
from torchair.artifact.plain import Unstorable, plain, unplain
from torchair.artifact.stored_graph import Contract
from torchair.compiler.artifacts import CompiledFxArtifacts, CompiledFxGraph
from torchair.compiler.gears import Gears
from torchair.compiler.pipeline import Job, KeptGraph, Phase, Pipeline, device_of
from torchair.config.compiler_config import CompilerConfig, find


class KeptCode(output_code()):  # type: ignore[misc]  # the class is torch's own affair
    """A compiled graph as torch's caches know them."""

    def __init__(self, graph: CompiledFxGraph, config: CompilerConfig) -> None:
        self._graph, self._config = graph, config
        self._boxed_call = True  # of the object, since torch copies no attributes of the class

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self._graph(inputs)

    def __copy__(self) -> KeptCode:
        return self  # torch prepares a copy for its file; there is nothing to prepare

    def __deepcopy__(self, memo: Any) -> KeptCode:
        return self

    def prepare_for_serialization(self) -> None:
        """Nothing: the archive is written when it is asked for."""

    def post_compile(self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any) -> None:
        """Nothing: what was read is ready."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing: there are no Triton kernels."""

    def __reduce__(self) -> tuple[Any, ...]:
        return unpacked, (self._graph.dump_artifacts().content, _options(self._config))


def unpacked(content: bytes, options: str) -> KeptCode:
    """What ``KeptCode`` was before it went into a file.

    Args:
        content: The packed archive.
        options: What ``_options`` gave.

    Errors: ArchiveError GE502x if one of them is damaged, GE5050 if versions, converters or options are others now.
    """
    try:
        config = CompilerConfig()
        for path, value in json.loads(options).items():
            find(config, path).value = unplain(value)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArchiveError(
            "GE5021", f"the options of a compiled graph are damaged: {str(error)[:200]}", next="compile it again"
        ) from None
    return KeptCode(CompiledFxGraph.loaded(CompiledFxArtifacts(content), config, guarded=True), config)


def _options(config: CompilerConfig) -> str:
    """The options that are not at their defaults, as JSON.

    Errors: ConfigError GE1061 if one has no form in a file.
    """
    found = {}
    for path, option in config.values():
        try:
            if not option.is_default:
                found[path] = plain(option.value)
        except Unstorable as error:
            raise ConfigError(
                "GE1061", f"config.{path} has no form in a file: {error}", next="leave it at its default"
            ) from None
    return json.dumps(found)


def compiler_for_files(
    config: CompilerConfig, phase: Phase, model_id: int, *, training: bool, told: set[str]
) -> Callable[[Gears | None], Callable[..., Any]]:
    """A maker of compilers whose graphs torch can write to a file.

    Errors: when compiling, ConfigError GE1061 if a graph or an option has no form in a file.
    """

    def of(gears: Gears | None) -> Callable[..., Any]:
        # here torch does not say which inputs a graph has, so it has no gears: marked sizes may be any
        return compile_for_file

    def compile_for_file(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> KeptCode:
        device = device_of(gm)
        kept = KeptGraph()
        call = Pipeline(Job(config, phase, model_id, training, told=told)).compile(gm, example_inputs, kept)
        stored = kept.stored
        if stored is not None:
            stored.contract = Contract(device=device)
        return KeptCode(CompiledFxGraph(call, stored, device, config), config)

    return of
