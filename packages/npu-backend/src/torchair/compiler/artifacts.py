"""A compiled ATen graph as data: for programs that keep compiled graphs themselves."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ge_graph.errors import ArchiveError, ConfigError, GeError
from tair_export.ranks import Rank
from torchair.artifact import bundle, stored_graph
from torchair.artifact.content import Unknowable
from torchair.artifact.dependencies import GraphToKeep, changed_options, key
from torchair.artifact.input_rules import CallRules, InputRule
from torchair.artifact.plain import Unstorable
from torchair.artifact.size_conditions import SizeWatch, shape_env_of
from torchair.artifact.stored_graph import Stored
from torchair.config.compiler_config import find
from torchair.config.log import logger

_ALONE: Final = Rank(0, 1)
_FORM: Final = "a compiled graph as data, 1"


@dataclass
class CompiledFxArtifacts:
    """What ``CompiledFxGraph.dump_artifacts`` gives; empty, for a program that kept the text and gives it back.

    Attributes:
        content: The archive of the graph, packed; it holds no weights, those are inputs.
        options: Path and value of the options that it was compiled with and that are no defaults.
    """

    content: bytes = b""
    options: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def py_code(self) -> str:
        """All of it as text, which programs keep in files of their own. The name is older: this is data, not code."""
        packed = base64.b64encode(self.content).decode()
        return json.dumps({"form": _FORM, "options": self.options, "content": packed})

    @py_code.setter
    def py_code(self, text: str) -> None:
        try:
            told = json.loads(text)
            if told["form"] != _FORM:
                raise ValueError(f"form {told['form']!r}")
            self.content = base64.b64decode(told["content"], validate=True)
            self.options = [(str(path), value) for path, value in told["options"]]
        except (ValueError, TypeError, KeyError) as error:
            raise bundle.damaged(f"the text is none that get_code gave: {str(error)[:200]}") from None


class Traced:
    """What a graph was traced for: its inputs, and what was decided about their sizes.

    Args:
        gm: The ATen graph; its compilation may decide more.
    """

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._fakes = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
        self._watch = SizeWatch(shape_env_of(gm), whole=True)

    def inputs(self) -> list[Any]:
        """The rule of each input, as JSON.

        Raises:
            Unstorable: A size has no form as data.
        """
        return [InputRule.of(value) for value in self._fakes]

    def conditions(self) -> list[Any]:
        """What was decided about sizes.

        Raises:
            Unstorable: A condition has no form as data.
        """
        return self._watch.conditions()


class CompiledFxGraph:
    """A compiled ATen graph: call it with one list of arguments, which it empties, or with the arguments.

    Args:
        stored: The graph, None if the options make none that a file can hold.
        device: Device type of its tensors.
        traced: What it was traced for; None if that is in ``stored``.
        rules: What a call has to be, where no guards of dynamo stand before it.
    """

    _boxed_call = True

    def __init__(
        self,
        call: Callable[[list[Any]], Any],
        stored: Stored | None,
        device: str,
        config: Any,
        traced: Traced | None = None,
        rules: CallRules | None = None,
    ) -> None:
        self._call, self._stored, self._device, self._config = call, stored, device, config
        self._traced, self._rules = traced, rules

    def __call__(self, *args: Any) -> Any:
        """Run.

        Errors: ArchiveError GE5040 if the graph was loaded and the call is none that it was traced for.
        """
        given = args[0] if len(args) == 1 and type(args[0]) is list else list(args)
        if self._rules is not None and (why := self._rules.misfit(given)):
            raise ArchiveError("GE5040", f"loaded artifacts: {why}", next="compile the graph for these arguments")
        return self._call(given)

    def dump_artifacts(self) -> CompiledFxArtifacts:
        """The graph as data, for ``load_artifacts`` in this or another process.

        Errors: ConfigError GE1061 if the graph has no such form.
        """
        try:
            if self._stored is None:
                raise Unstorable("the options make no graph that a file can hold")
            self._stored.contract.device = self._device
            if self._traced is not None:
                self._stored.contract.conditions = self._traced.conditions()
                self._stored.more = {**self._stored.more, "inputs": self._traced.inputs()}
            with tempfile.TemporaryDirectory() as folder:
                stored_graph.write(self._stored, Path(folder), bundle.NAME, key(GraphToKeep(self._config)), _ALONE)
                packed = bundle.pack(Path(folder))
        except (Unstorable, Unknowable) as error:
            raise ConfigError("GE1061", f"dump_artifacts: {error}", next="keep the function itself") from None
        return CompiledFxArtifacts(packed, changed_options(self._config))

    def get_code(self) -> str:
        """The graph as text, for ``py_code`` of an empty ``CompiledFxArtifacts``; empty if it has no such form."""
        try:
            return self.dump_artifacts().py_code
        except (ConfigError, TypeError) as error:  # TypeError: an option that is no JSON
            logger.info("This graph is not kept: %s", error)
            return ""

    @staticmethod
    def load_artifacts(artifacts: CompiledFxArtifacts, config: Any = None) -> CompiledFxGraph:
        """Load what ``dump_artifacts`` gave.

        Args:
            config: The options that the graph was compiled with; None means those that the artifacts name.

        Errors: ConfigError GE1011 for another type, GE1061 if it cannot be known whether the data is stale;
        ArchiveError GE502x if the data is damaged, GE5050 if versions, converters or options are others now; else as
        for a graph that is compiled.
        """
        return CompiledFxGraph.loaded(artifacts, config)

    @staticmethod
    def loaded(artifacts: CompiledFxArtifacts, config: Any = None, *, guarded: bool = False) -> CompiledFxGraph:
        """As ``load_artifacts``; ``guarded`` where guards of dynamo stand before the graph, which then has no rules."""
        from torchair.compiler.pipeline import Job, Pipeline
        from torchair.config.compiler_config import CompilerConfig

        if not isinstance(artifacts, CompiledFxArtifacts) or not isinstance(artifacts.content, bytes):
            raise ConfigError(
                "GE1011",
                f"load_artifacts takes what dump_artifacts gave, got {type(artifacts).__name__}",
                next="keep the object that dump_artifacts returned",
            )
        options = _with(CompilerConfig(), artifacts.options) if config is None else config
        try:
            wanted = key(GraphToKeep(options))
        except Unknowable as error:
            raise ConfigError("GE1061", f"load_artifacts: {error}", next="compile the graph again") from None
        try:
            with tempfile.TemporaryDirectory() as folder:
                manifest = bundle.unpack(artifacts.content, Path(folder))
                stored = stored_graph.read(manifest, wanted, _ALONE)
            device = stored.contract.device
            rules = None if guarded else CallRules(stored.more["inputs"], stored.contract.found())
            call = Pipeline(Job(options)).load_stored(stored, device)
        except GeError:
            raise
        except Exception as error:
            raise bundle.damaged(f"{type(error).__name__}: {str(error)[:200]}") from error
        return CompiledFxGraph(call, stored, device, options, rules=rules)


def _with(config: Any, options: list[tuple[str, Any]]) -> Any:
    """The options with these values; another process wrote them, so they are checked as a user's are."""
    for path, value in options:
        find(config, path).value = value
    return config
