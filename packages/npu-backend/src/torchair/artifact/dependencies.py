"""All that a compiled graph depends on, as one table.

Every place that keeps a graph makes its key from these rows: the compile cache before and behind AOTAutograd,
``cache_compile``, and the artefacts of ``get_compiler``. A row says in text what one thing is now, or None where the
graph at hand does not depend on it; content, never names alone. A new dependency is a new row.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import aot_settings, registered_decompositions
from tair_export.ranks import Rank
from torchair.artifact.content import Content, Unknowable, began, content_of, digest, is_known, source_digest
from torchair.artifact.fx_text import graph_text, inputs_text
from torchair.config.compiler_config import find

if TYPE_CHECKING:
    from torchair.config.compiler_config import CompilerConfig


@dataclass(frozen=True, slots=True)
class Method:
    """A Python function that is traced, for ``cache_compile``.

    Attributes:
        bound: Its ``self``, as a tuple of one or none.
        parallel: Further words of whoever compiles, part of the key.
    """

    function: Callable[..., Any]
    bound: tuple[Any, ...]
    dynamic: bool
    parallel: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphToKeep:
    """A graph to compile, as far as is known where its key is made.

    Attributes:
        graph: The FX graph that the stages begin with.
        inputs: The example inputs of dynamo's graph, if that is what the key is for.
        decompositions: The user's, if tracing to ATen comes after the key.
        method: What dynamo traces, if tracing comes after the key.
        gears: Sizes that are known beforehand, as text.
    """

    config: CompilerConfig
    graph: torch.fx.GraphModule | None = None
    inputs: Sequence[Any] | None = None
    decompositions: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    method: Method | None = None
    gears: str | None = None
    rank: Rank | None = None

    @property
    def traced_later(self) -> bool:
        """Whether tracing to ATen, by what the process and the user say, is still to come."""
        return self.inputs is not None or self.method is not None


@dataclass(frozen=True, slots=True)
class Dependency:
    """One dependency.

    Attributes:
        of: Its state for a subject, as text; None if the subject does not depend on it. Raises Unknowable.
    """

    name: str
    of: Callable[[GraphToKeep], str | None]


def key(subject: GraphToKeep) -> dict[str, str]:
    """What a graph depends on.

    Raises:
        Unknowable: Part of that has no knowable content, so that nothing may be kept; the text says what.
    """
    made = {}
    for row in ROWS:
        try:
            text = row.of(subject)
        except Unknowable as error:
            raise Unknowable(f"{row.name}: {error}") from None
        if text is not None:
            made[row.name] = text
    return made


# --- versions and our own code ---------------------------------------------------------------------------------------


@functools.cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # not there, or an environment without metadata, such as a frozen application
        return "unknown"


@functools.cache
def _own_files() -> tuple[str, float]:
    """A digest of sizes and times of our own source files, and the newest time: an editable installation changes
    without a new version."""
    import ge_converters
    import ge_graph
    import torchair

    rows, newest = [], 0.0
    for package in (ge_graph, ge_converters, torchair):
        root = Path(str(package.__file__)).parent
        # tables too: what is published of a chip decides which forms a graph takes
        for path in sorted(p for kind in ("*.py", "*.jsonl", "*.tsv") for p in root.rglob(kind)):
            entry = path.stat()
            rows.append(f"{path.relative_to(root)} {entry.st_size} {entry.st_mtime_ns}")
            newest = max(newest, entry.st_mtime)
    return digest(rows), newest


def _own_code(subject: GraphToKeep) -> str:
    made, newest = _own_files()
    if newest > began():
        raise Unknowable("a source file of this project was written after this process began")
    return made


# --- what others registered ------------------------------------------------------------------------------------------


def _converters(subject: GraphToKeep) -> str:
    from ge_converters.registry import REGISTRY
    from torchair.oplib import converters

    converters.register()
    made = []
    for name, fn in REGISTRY.foreign():
        made.append(f"{name} {_content_of(fn, f'the converter of {name}')}")
    return digest(made)


def _operator_schemas(subject: GraphToKeep) -> str:
    from ge_graph import schema

    return digest(f"{name} {row!r}" for name, row in sorted(schema.registered().items()))


def _rules(subject: GraphToKeep) -> str:
    from torchair.passes.patterns import RULES

    return digest(f"{r.text} {_content_of(r.functions, f'the rule {r.name}')}" for r in RULES.registered)


def _torch_decompositions(subject: GraphToKeep) -> str | None:
    if not subject.traced_later:
        return None
    others = {str(op): fn for op, fn in registered_decompositions() if not is_known(fn.__module__ or "")}
    return digest(f"{op} {_content_of(fn, f'the decomposition of {op}')}" for op, fn in sorted(others.items()))


def _content_of(value: Any, what: str) -> str:
    try:
        return content_of(value)
    except Unknowable as error:
        raise Unknowable(f"{what} depends on {error}") from None


# --- options ---------------------------------------------------------------------------------------------------------


def changed_options(config: CompilerConfig) -> list[tuple[str, Any]]:
    """Paths and values of the options that change a graph and are not at their defaults."""
    rows = [path for path, row in config._rows if row.affects == "graph"]
    return [(path, find(config, path).value) for path in rows if not find(config, path).is_default]


def _options(subject: GraphToKeep) -> str:
    return "; ".join(f"{path} = {_option(path, value)}" for path, value in changed_options(subject.config))


def _option(path: str, value: Any) -> str:
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__name__)
        return f"{name} {_content_of(value, f'config.{path}')}"
    if isinstance(value, str) and os.path.isfile(value):
        return f"{value} {source_digest(value)}"
    return repr(value)


def _kernels(subject: GraphToKeep) -> str | None:
    if subject.config.check_soc.value is None:
        return None
    from ge_graph import kernels

    return digest([kernels.facts().text()])


# --- the program -----------------------------------------------------------------------------------------------------


def _graph(subject: GraphToKeep) -> str | None:
    return None if subject.graph is None else digest(graph_text(subject.graph))


def _inputs(subject: GraphToKeep) -> str | None:
    return None if subject.inputs is None else digest(inputs_text(subject.inputs))


def _decompositions(subject: GraphToKeep) -> str | None:
    if not subject.traced_later:
        return None
    rows = sorted(f"{op} {_content_of(fn, f'the decomposition of {op}')}" for op, fn in subject.decompositions.items())
    return digest(rows)


def _state(subject: GraphToKeep) -> str | None:
    """What of the process decides how a program is traced."""
    if not subject.traced_later:
        return None
    state = (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_device(),
        [f"{d} {torch.get_autocast_dtype(d)}" for d in ("cpu", "npu", "cuda") if _autocast(d)],
        [
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ],  # of every device, by which attention is traced
    )
    return " ".join(map(str, state))


def _autocast(device: str) -> bool:
    try:
        return bool(torch.is_autocast_enabled(device))
    except RuntimeError:
        return False


def _rank(subject: GraphToKeep) -> str | None:
    return None if subject.rank is None else f"{subject.rank.index} of {subject.rank.count}"


def traced_content(method: Method) -> Content:
    """What a function is before it is traced: its code with helpers, and its module's structure.

    Raises:
        Unknowable: It is too large to say, or a source file cannot stand for its code.
    """
    return Content(strict=False).add(method.function).add(method.bound)


def _method(subject: GraphToKeep) -> str | None:
    return None if subject.method is None else traced_content(subject.method).digest()


ROWS: Final = (
    Dependency("python", lambda s: f"{platform.python_version()} {sys.implementation.cache_tag}"),
    Dependency("torch", lambda s: str(torch.__version__)),
    Dependency("torch_npu", lambda s: _version("torch-npu")),
    Dependency("numpy", lambda s: _version("numpy")),
    Dependency("sympy", lambda s: _version("sympy")),
    Dependency("torchair", lambda s: _version("torchair")),
    Dependency("ge-graph", lambda s: _version("ge-graph")),
    Dependency("ge-converters", lambda s: _version("ge-converters")),
    Dependency("ge-runtime-native", lambda s: _version("ge-runtime-native")),
    Dependency("tair-export", lambda s: _version("tair-export")),
    Dependency("code", _own_code),
    Dependency("converters", _converters),
    Dependency("operator schemas", _operator_schemas),
    Dependency("rules", _rules),
    Dependency("torch decompositions", _torch_decompositions),
    Dependency("options", _options),
    Dependency("kernels", _kernels),
    Dependency("AOTAutograd", lambda s: aot_settings() if s.traced_later else None),
    Dependency("state", _state),
    Dependency("graph", _graph),
    Dependency("inputs", _inputs),
    Dependency("decompositions", _decompositions),
    Dependency("gears", lambda s: s.gears),
    Dependency("rank", _rank),
    Dependency("source", _method),
    Dependency("dynamic", lambda s: None if s.method is None else str(s.method.dynamic)),
    Dependency("parallel", lambda s: None if s.method is None else ", ".join(s.method.parallel)),
)
