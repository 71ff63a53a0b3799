"""Which call a cache entry belongs to: the names of its folders, and what it depends on."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ge_graph.escape import file_name
from tair_export.ranks import Rank
from torchair.artifact.cache import _digest, _option_text, environment
from torchair.config.compiler_config import CompilerConfig, find


class Place:
    """Which call this is, for the names of folders and for what an entry depends on."""

    def __init__(
        self,
        function: Callable[..., Any],
        bound: tuple[Any, ...],
        config: CompilerConfig,
        dynamic: bool,
        decompositions: Mapping[Any, Callable[..., Any]],
        rank: Rank,
        parallel: tuple[str, ...],
    ) -> None:
        self.function, self.bound, self.config, self.dynamic = function, bound, config, dynamic
        self.decompositions, self.rank = decompositions, rank
        self._parallel = parallel

    @property
    def label(self) -> str:
        """``Model.prompt(x, y)``."""
        code = self.function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        shown = names[1:] if self.bound else names
        kind = type(self.bound[0]).__name__ if self.bound else self.function.__module__
        return f"{kind}.{self.function.__name__}({', '.join(shown)})"

    @property
    def rank_folder(self) -> str:
        """``world<W>global_rank<R>``, nothing for one process."""
        return "" if self.rank.alone else f"world{self.rank.count}global_rank{self.rank.index}"

    @property
    def function_folder(self) -> str:
        """Name of the method, safe for a file system."""
        return file_name(self.function.__name__)

    def model_info(self, ge_cache: bool) -> str:
        """``<class>_dynamic_<32 hex digits>``: whatever the caller chose."""
        kind = type(self.bound[0]) if self.bound else None
        name = kind.__name__ if kind is not None else self.function.__module__.rpartition(".")[2]
        captured = self.config.mode.value == "reduce-overhead"
        words = ["dynamic" if self.dynamic else "static"]
        words += ["ge_cache"] if ge_cache else []
        words += ["aclgraphcache"] if captured else []
        chosen = [self._identity(), *words, *self._parallel, *self._decompositions()]
        chosen += [
            f"{p}={_option_text(find(self.config, p).value)}"
            for p, row in self.config._rows
            if row.affects == "graph" and not find(self.config, p).is_default
        ]
        return "_".join([file_name(name), *words, _digest(chosen)])

    def _identity(self) -> str:
        kind = type(self.bound[0]) if self.bound else None
        return "" if kind is None else f"{kind.__module__}.{kind.__qualname__}"

    def _decompositions(self) -> list[str]:
        return sorted(f"{op}: {_option_text(fn)}" for op, fn in self.decompositions.items())

    def key(self) -> dict[str, str]:
        """Everything that the entry depends on and that is known before the first call."""
        return {
            **environment(self.config),
            "class": self._identity(),
            "function": self.function.__qualname__,
            "source": self._sources(),
            "decompositions": _digest(self._decompositions()),
            "parallel": ", ".join(self._parallel),
            "dynamic": str(self.dynamic),
        }

    def _sources(self) -> str:
        """Digest of the files in which the classes of the model are written; torch's are known by its version."""
        modules = {self.function.__module__}
        if self.bound and isinstance(self.bound[0], torch.nn.Module):
            modules |= {type(m).__module__ for m in self.bound[0].modules()}
        modules |= {k.__module__ for b in self.bound for k in type(b).__mro__}
        rows = []
        for name in sorted(modules):
            if name.partition(".")[0] not in ("torch", "builtins"):
                rows.append(f"{name} {_file_digest(getattr(sys.modules.get(name), '__file__', None) or '')}")
        return _digest(rows)


@functools.cache
def _file_digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
    except OSError:  # an interactive session, a frozen application
        return "no file"
