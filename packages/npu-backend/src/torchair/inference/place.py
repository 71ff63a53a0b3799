"""Which call a cache entry belongs to: the names of its folders, and what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch

from ge_graph.escape import file_name
from tair_export.ranks import Rank
from torchair.artifact.content import Content, Unknowable, content_of, digest
from torchair.artifact.dependencies import GraphToKeep, Method, changed_options, traced_content
from torchair.config.compiler_config import CompilerConfig


class CallPlace:
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
        """``<class>_dynamic_<32 hex digits>``: whatever the caller chose, and the module's structure, so that two
        models of one class have a folder each."""
        kind = type(self.bound[0]) if self.bound else None
        name = kind.__name__ if kind is not None else self.function.__module__.rpartition(".")[2]
        captured = self.config.mode.value == "reduce-overhead"
        words = ["dynamic" if self.dynamic else "static"]
        words += ["ge_cache"] if ge_cache else []
        words += ["aclgraphcache"] if captured else []
        chosen = [*words, *self._parallel, *_structure(self.bound)]
        chosen += sorted(f"{op}: {_short(fn)}" for op, fn in self.decompositions.items())
        chosen += [f"{path}={_short(value)}" for path, value in changed_options(self.config)]
        return "_".join([file_name(name), *words, digest(chosen)])

    @cached_property
    def content(self) -> Content:
        """What is known of the call before it is traced."""
        return traced_content(self._method)

    @property
    def _method(self) -> Method:
        return Method(self.function, self.bound, self.dynamic, self._parallel)

    @property
    def subject(self) -> GraphToKeep:
        """What an entry depends on."""
        return GraphToKeep(self.config, decompositions=self.decompositions, method=self._method, rank=self.rank)


def _short(value: Any) -> str:
    try:
        return content_of(value)
    except Unknowable:  # then there is no entry, and no need of a name for it
        return type(value).__name__


_PLAIN = (bool, int, float, str, type(None), torch.dtype)


def _structure(bound: tuple[Any, ...]) -> Iterator[str]:
    """A module by its parts, as far as programs see them from outside."""
    for each in bound:
        yield f"{type(each).__module__}.{type(each).__qualname__}"
        for name, part in each.named_modules() if isinstance(each, torch.nn.Module) else ():
            yield f"{name} {type(part).__module__}.{type(part).__qualname__}"
            for kind in (part._parameters, part._buffers):
                yield from (f"{n} {t.dtype} {tuple(t.shape)}" for n, t in kind.items() if t is not None)
            held = vars(part)
            yield from sorted(f"{n} = {v!r}" for n, v in held.items() if type(v) in _PLAIN)
