"""``cache_compile``: torch.compile whose second process traces nothing.

The first call of the first process runs under ``torch.compile`` and is watched: where the graph's inputs come from,
what the result is made of, which code and which globals were read. Graph and record become one archive. A later process
reads it, checks it against the program, and calls the engine directly, without dynamo, without guards. What an entry
depends on is the table of ``torchair.artifact.dependencies`` and what tracing read; an entry that does not fit is made
anew with the reason in the log. That a call's Python values are those of the recorded call is the caller's contract;
tensors and numbers that the graph reads, and what was decided about their sizes, are checked.
"""

from __future__ import annotations

import datetime
import functools
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.base.torch_compat import (
    aot_metadata,
    around_the_graph,
    boxed,
    current_translation,
    traced_code,
)
from ge_graph.errors import ArchiveError, ConfigError
from ge_graph.escape import line
from tair_export.guards import symbols
from tair_export.guards import text as guard_text
from tair_export.manifest import read_manifest
from tair_export.ranks import Rank, current
from torchair.artifact import stored_graph, traced_call
from torchair.artifact.cache import CacheEntry, known_key
from torchair.artifact.fx_text import known_value
from torchair.artifact.input_rules import InputRule
from torchair.artifact.plain import Unstorable
from torchair.artifact.size_conditions import SizeWatch, shape_env_of
from torchair.artifact.stored_graph import Contract, Stored
from torchair.artifact.traced_call import GraphInput, PathRoots, ResultRecorder
from torchair.compiler.backend import _config, _decompositions, compile_graph
from torchair.compiler.gears import Gears
from torchair.compiler.pipeline import Job, Pipeline
from torchair.config.compiler_config import CompilerConfig
from torchair.config.log import logger
from torchair.inference import reads
from torchair.inference.loaded_call import LoadedCall
from torchair.inference.place import CallPlace

FILE: Final = "compiled_module"
DEFAULT_FOLDER: Final = ".torchair_cache"
_VERSION: Final = "1.0.0"


@dataclass(frozen=True)
class ModelCacheMeta:
    """What the log says of a cache entry.

    Attributes:
        name: The method with its parameters, ``Model.prompt(x, y)``.
        date: When the entry was made.
        version: Version of the form.
        fx: Always None; here for readers of older logs.
    """

    name: str
    date: str
    version: str = _VERSION
    fx: str | None = None


def cache_compile(
    func: Callable[..., Any],
    *,
    config: CompilerConfig | None = None,
    backend: Any = None,
    dynamic: bool = True,
    cache_dir: str | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    ge_cache: bool = False,
    fullgraph: bool = True,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a method and keep the result on disk, so that later processes start without tracing.

    Args:
        func: Method of a module, ``model.decode``; a module means its ``forward``. It must be one graph and write no
            attributes; writing tensors in place is fine.
        config: Options.
        backend: What ``get_npu_backend`` returned, in place of ``config``.
        dynamic: As for torch.compile.
        cache_dir: Folder, relative to the working directory; ``.torchair_cache`` by default, made if missing.
        global_rank: Rank of this process; None asks torch.distributed.
        tp_rank: Rank in the tensor-parallel group, part of the entry's name.
        pp_rank: Rank in the pipeline-parallel group, part of the entry's name.
        ge_cache: Also keep what a device's graph engine made of the graph. The embedded engine makes nothing to keep.
        fullgraph: Must stay True: a cached call is one graph.
        **kwargs: ``custom_decompositions``, as for ``get_npu_backend``.

    Returns:
        A function to call like ``func``. Its results never require grad.

    Errors: ConfigError GE1060 for arguments that contradict each other or are of another type; GE1061 for
        ``enable_ref_data``, with which nothing can be cached. Calling: see ``torch.compile`` and ``get_npu_backend``.

    Example:
        >>> import torch, torchair
        >>> model = torch.nn.Linear(4, 2)
        >>> decode = torchair.inference.cache_compile(model.forward, cache_dir="cache")  # doctest: +SKIP
    """
    decompositions = _decompositions(kwargs.pop("custom_decompositions", None) or {})
    if kwargs:
        raise _refuse(f"cache_compile has no parameter {', '.join(map(repr, sorted(kwargs)))}")
    options, more = _options(config, backend)
    decompositions = {**more, **decompositions}
    if options.experimental_config.enable_ref_data.value:
        raise ConfigError(
            "GE1061",
            "config.experimental_config.enable_ref_data = True with cache_compile: the graph would hold the "
            "addresses of this process",
            next="leave enable_ref_data at False",
        )
    bound, function = _function(func)
    rank = _rank(global_rank)
    for name, value in (("tp_rank", tp_rank), ("pp_rank", pp_rank)):
        if value is not None and (type(value) is not int or value < 0):
            raise _refuse(f"cache_compile: {name} must be an int of at least 0, got {value!r}")
    if fullgraph is not True:
        logger.tell("cache_compile: fullgraph=%r is taken as True: a cached call is one graph", fullgraph)
    if ge_cache:
        logger.tell("cache_compile: ge_cache=True only has an effect on a device's graph engine")
    parallel = (f"tp {tp_rank}", f"pp {pp_rank}")
    place = CallPlace(function, bound, options, dynamic, decompositions, rank, parallel)
    top = Path(cache_dir or DEFAULT_FOLDER)
    made = CachedCall(place, top, top / place.model_info(ge_cache) / place.rank_folder / place.function_folder)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return made(*args, **keywords)

    call.cached_call = made  # type: ignore[attr-defined]
    return call


def _refuse(what: str) -> ConfigError:
    return ConfigError("GE1060", what, next="see the docstring of torchair.inference.cache_compile")


def _options(config: Any, backend: Any) -> tuple[CompilerConfig, Mapping[Any, Any]]:
    if backend is None:
        return _config(config), {}
    keywords = getattr(backend, "keywords", None)
    if not isinstance(keywords, Mapping) or "compiler_config" not in keywords:
        raise _refuse(f"cache_compile: backend must come from torchair.get_npu_backend, got {type(backend).__name__}")
    other = keywords["compiler_config"]
    if config is not None and other is not config:
        raise _refuse("cache_compile: config and backend are both given and have different options")
    return _config(other), keywords.get("custom_decompositions") or {}


def _function(func: Any) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    if isinstance(func, torch.nn.Module):
        func = func.forward
    bound = (func.__self__,) if hasattr(func, "__self__") else ()
    function = getattr(func, "__func__", func)
    if not callable(func) or not hasattr(function, "__code__"):
        raise _refuse(f"cache_compile: func must be a method of a module, got {type(func).__name__}")
    return bound, function


def _rank(given: int | None) -> Rank:
    rank = current()
    if given is None:
        return rank
    if type(given) is not int or not 0 <= given < max(rank.count, given + 1 if rank.alone else 0):
        raise _refuse(f"cache_compile: global_rank must be in [0, {rank.count - 1}], got {given!r}")
    return Rank(given, max(rank.count, given + 1))


class CachedCall:
    """A call that is looked up on disk when it first happens."""

    def __init__(self, place: CallPlace, top: Path, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.entry: CacheEntry | None = None
        self.names = PathRoots(place.function, place.bound)
        self._top = top
        self._lock = threading.RLock()
        self._run: Callable[..., Any] | None = None
        self.traces = 0

    def content_parts(self) -> tuple[Any, ...]:
        """What of it counts in the key of a program that holds it: not what it has loaded, nor the globals that dynamo
        fills."""
        return (self.place.function, self.place.model_info(False))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            run = self._run
            if run is None:
                with self._lock:
                    if self._run is None:
                        return self._first(args, kwargs)
                    run = self._run
            return run(*args, **kwargs)

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = known_key(self.place.subject)
        if key is not None:
            self.entry = CacheEntry(self._top, self.folder, key, self.place.label, self.place.rank, FILE)
        loaded = None if self.entry is None else self.entry.load(self._loaded)
        if loaded is None:
            return self._trace(args, kwargs)
        self._run = loaded
        return loaded(*args, **kwargs)

    # -- reading

    def _loaded(self, stored: Stored) -> LoadedCall:
        made = LoadedCall(self.place, self.folder, stored, self.names, self.retrace)
        logger.info("Cache %s loaded from %s", _meta(stored.more), self.folder / FILE)
        return made

    # -- tracing and writing

    def _compiled(self, trace: _Trace) -> Callable[..., Any]:
        target = self.place.function.__get__(*self.place.bound) if self.place.bound else self.place.function
        made: Callable[..., Any] = torch.compile(
            target, backend=trace.backend, fullgraph=True, dynamic=self.place.dynamic
        )
        return made

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trace = _Trace(self, record=self.entry is not None)
        compiled = self._compiled(trace)
        local = self.names.locals_of(args, kwargs)
        result = compiled(*args, **kwargs)
        self._run = compiled
        return trace.finish(result, local, self.names)

    def retrace(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        """The call is not the recorded one: the entry goes, torch.compile takes over."""
        self.discard(why)
        self._run = self._compiled(_Trace(self, record=False))
        return self._run(*args, **kwargs)

    def discard(self, why: str) -> None:
        """Drop the entry that there is."""
        if self.entry is not None and self.entry.manifest.exists():
            logger.warning("%s: the cache entry is discarded: %s", self.place.label, why)
            self.entry.discard()


class _Trace:
    """One tracing of the call, watched."""

    def __init__(self, call: CachedCall, record: bool = True) -> None:
        self._call, self._place = call, call.place
        self._recording = record
        self._done = not record
        self._why = ""
        self._inputs: list[GraphInput] = []
        self._flat: list[Any] = []
        self._inner: list[Any] = []
        self._outs: list[Any] = []
        self._stored: Stored | None = None
        self._device = "cpu"
        self._count = 0
        self._gears: Gears | None = None
        self._told: set[str] = set()
        self._fakes: list[Any] = []
        self._reads: dict[str, Any] = {}
        self._watch = SizeWatch(None)

    def backend(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if self._done:
            self._call.traces += 1
            self._call.discard("the function was traced again, for other inputs; wrap one function a case")
        else:  # dynamo may start over while it traces, and comes here once more with another graph
            self._call.traces = 1
            self._recording, self._why = True, ""
        compiler = None
        if self._recording:
            try:
                self._inputs = traced_call.inputs_of(gm, self._place.function)
                self._fakes = [known_value(n) for n in gm.graph.nodes if n.op == "placeholder"]
                self._reads = reads.of_trace(current_translation(), traced_code(), self._place.content)
                self._watch = SizeWatch(shape_env_of(gm), whole=True)
                compiler = self._compiler_with
            except Unstorable as error:
                self._give_up(error)
        place = self._place
        compiled = compile_graph(
            gm, example_inputs, place.config, decompositions=place.decompositions, inference=compiler, told=self._told
        )

        def run(*flat: Any) -> Any:
            if not self._recording:
                return compiled(*flat)
            self._flat = list(flat)
            outs = compiled(*flat)
            try:
                self._outs = [traced_call.mark(v) for v in outs]
            except Unstorable as error:
                self._give_up(error)
                return outs
            return tuple(self._outs)

        return run

    def _give_up(self, why: Exception | str) -> None:
        self._recording, self._why = False, str(why)

    def _compiler_with(self, gears: Gears | None) -> Callable[..., Any]:
        self._gears = gears
        return self._compiler

    def _compiler(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        from torchair.compiler.pipeline import device_of

        metadata = aot_metadata()
        self._count = len(metadata.output_info)
        self._device = device_of(gm)
        if why := around_the_graph(metadata):
            self._give_up(why)
        call = Pipeline(Job(self._place.config, gears=self._gears, told=self._told)).compile(gm, example_inputs, self)

        def run(args: list[Any]) -> Any:
            if self._recording:
                self._inner = list(args)
            return call(args)

        return boxed(run)

    def graph_ready(self, stored: Stored, save: Callable[[], object] | None, fleeting: bool = False) -> None:
        """The pipeline has made the graph."""
        self._stored = stored
        if save is not None:
            save()

    def finish(self, result: Any, local: Mapping[str, Any], names: PathRoots) -> Any:
        """Write the entry; returns what the caller gets."""
        if not self._recording and self._done and not self._why:
            return result
        if self._recording and self._stored is None:
            self._give_up("the ATen graph runs as it stands, for options that ask for it")
        recording, self._recording, self._done = self._recording, False, True
        try:
            if not recording:
                raise Unstorable(self._why or "the call was not traced")
            return self._write(result, local, names)
        except Unstorable as error:
            logger.tell("%s: not cached: %s", self._place.label, error)
            return traced_call.unmarked(result)
        finally:
            self._inputs, self._flat, self._inner, self._outs, self._stored = [], [], [], [], None
            self._fakes, self._watch = [], SizeWatch(None)

    def _write(self, result: Any, local: Mapping[str, Any], names: PathRoots) -> Any:
        stored, entry = self._stored, self._call.entry
        assert stored is not None
        assert entry is not None
        inputs = [GraphInput(i.path, v) for i, v in zip(self._inputs, self._flat, strict=True)]
        for each in inputs:
            self._check_path(each, local, names)
        symbolic = {
            i.value: f"input {_path_text(i.path)}"
            for i, fake in zip(inputs, self._fakes)
            if isinstance(fake, (torch.SymInt, torch.SymFloat))
        }
        tree = ResultRecorder(self._outs, inputs, local, names, symbolic).tree(result)
        meta = ModelCacheMeta(self._place.label, str(datetime.datetime.now()))
        rules = [InputRule.of(value) for value in self._fakes]
        stored.contract = Contract(self._conditions(rules), self._device, self._order(), len(inputs), self._count)
        stored.more |= {
            "call": {
                "paths": [i.path for i in inputs],
                "inputs": rules,
                "result": tree,
                "reads": self._reads,
                "gears": None if self._gears is None else [self._gears.places, self._gears.combinations],
            },
            "date": meta.date,
            "name": meta.name,
        }
        # the file has to hold it: what cannot be read back must not be written
        json.dumps(stored.more, allow_nan=False)
        plainly = [traced_call.unmarked(v) for v in self._outs]
        rebuilt = result
        if any(p is not m for p, m in zip(plainly, self._outs)):
            rebuilt = traced_call.builder(tree, len(plainly), names)(plainly, lambda path: names.value(path, local))
        if entry.save(stored, readable(stored), say=logger.tell):
            logger.info("Cache %s saved to %s", meta, entry.root / FILE)
        return rebuilt

    @staticmethod
    def _check_path(given: GraphInput, local: Mapping[str, Any], names: PathRoots) -> None:
        """A later process has to find an input where this one has found it."""
        try:
            found = names.input(given.path, local)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise Unstorable(f"input {_path_text(given.path)}: {error}") from None
        if found is not given.value and not (type(found) is type(given.value) in (int, float) and found == given.value):
            raise Unstorable(f"input {_path_text(given.path)}, which is made anew in each call")

    def _conditions(self, rules: Sequence[Any]) -> list[Any]:
        """What was decided about sizes; each symbol in it has to be a size or a stride of an input."""
        known = {d for _, size, stride in rules for d in (*size, *stride) if isinstance(d, str)}
        conditions = self._watch.conditions()
        for each in conditions:
            if not symbols(each) <= known:
                raise Unstorable(f"a condition on a size that no input has, {guard_text(each)}")
        return conditions

    def _order(self) -> list[int]:
        """Which of dynamo's inputs is which of the ATen graph's."""
        order = traced_call.order_of(self._inner, self._flat)
        if order is None:
            raise Unstorable("inputs that share memory")
        return order


def _meta(more: Mapping[str, Any]) -> ModelCacheMeta:
    return ModelCacheMeta(line(str(more.get("name"))), line(str(more.get("date"))))


def readable(stored: Stored) -> str:
    """An entry as text for people: where the inputs come from, the graph, what the result is."""
    more = stored.more
    record = more["call"]
    parts = [f"# {line(str(more['name']))}, made {line(str(more['date']))}", "", "# inputs"]
    parts += [f"{i:4} {_path_text(path)}" for i, path in enumerate(record["paths"])]
    parts += ["", "# graph", stored.body.text()]
    parts += ["", "# result", line(json.dumps(record["result"]))]
    return "\n".join(parts) + "\n"


def _path_text(path: Any) -> str:
    (kind, name), *steps = traced_call.read_path(path)
    forms = {"attr": ".{}", "item": "[{!r}]", "key": "[key {}]"}
    shown = "".join(forms.get(k, f".{k}({{}})").format(v) for k, v in steps)
    return line(f"{'' if kind == 'local' else kind + ' '}{name}{shown}", 500)


def readable_cache(cache_bin: Any, print_output: bool = True, file: Any = None) -> str:
    """Show a cache entry as text.

    Args:
        cache_bin: The file ``compiled_module`` of the entry, or its folder.
        print_output: Print it.
        file: Also write it to this file.

    Returns:
        The text.

    Errors: ArchiveError GE502x if there is no entry or it is damaged.
    """
    path = Path(cache_bin)
    manifest = (path if path.is_dir() else path.parent) / f"{FILE}.manifest.json"
    body = read_manifest(manifest)
    stored = stored_graph.read(manifest, body.get("key") or {}, Rank(*_checked_rank(body, manifest)))
    if not isinstance(stored.more.get("call"), dict):
        raise ArchiveError(
            "GE5021", "this is not an entry of cache_compile", where=str(manifest), next="give another file"
        )
    text = readable(stored)
    if print_output:
        sys.stdout.write(text)
    if file is not None:
        Path(file).write_text(text, encoding="utf-8", errors="backslashreplace")
    return text


def _checked_rank(body: Mapping[str, Any], where: Path) -> tuple[int, int]:
    rank = body.get("rank")
    if not (isinstance(rank, list) and len(rank) == 2 and all(type(r) is int for r in rank)):
        raise ArchiveError("GE5021", "rank is not a pair of ints", where=str(where), next="delete the entry")
    return rank[0], rank[1]
