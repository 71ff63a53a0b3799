"""The cache on disk of ``torch.compile``: what comes after tracing is done once for all processes.

Switched on by ``config.cache_dir`` or the environment variable ``TORCHAIR_CACHE_DIR``. The key holds everything that
the finished GE graph depends on: the text of the ATen graph after its passes with types, sizes, limits of symbols and
constants, the options that change a graph, who registered which converter, and versions. An entry is an archive with
checksums; one that does not read or does not fit is rebuilt, with the reason in the log. The cache never changes a
result and never stops a run.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_graph.errors import ArchiveError, GeError
from tair_export.ranks import Rank, current
from torchair.artifact import stored_graph
from torchair.artifact.stored_graph import Stored, Unstorable
from torchair.config.log import logger

if TYPE_CHECKING:
    from torchair.config.compiler_config import CompilerConfig

_PACKAGES: Final = ("torch", "torchair", "ge-graph", "ge-converters", "ge-runtime-native", "tair-export")


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # an environment without metadata, such as a frozen application
            versions[name] = "unknown"
    return versions


def environment(config: CompilerConfig) -> dict[str, str]:
    """What every compiled graph depends on: versions, our own code, converters, fusion rules, graph options."""
    from ge_converters.registry import REGISTRY
    from torchair.config.compiler_config import find
    from torchair.oplib import converters
    from torchair.passes.patterns import RULES

    converters.register()
    options = {
        path: _option_text(find(config, path).value)
        for path, row in config._rows
        if row.affects == "graph" and not find(config, path).is_default
    }
    return {
        **_versions(),
        "code": _code_digest(),
        "converters": REGISTRY.fingerprint(),
        "rules": _digest(sorted(map(str, RULES.seen))),
        **{f"option {path}": text for path, text in options.items()},
    }


def _option_text(value: Any) -> str:
    if not callable(value):
        return repr(value)
    code = getattr(value, "__code__", None) or getattr(getattr(value, "__call__", None), "__code__", None)  # noqa: B004
    content = "" if code is None else _digest([code.co_code.hex(), repr(code.co_names), _constants(code)])
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)} {content}"


def _constants(code: Any) -> str:
    """Constants of a function without the addresses of the functions inside it."""
    return " ".join(
        f"{c.co_name} {c.co_code.hex()} {_constants(c)}" if hasattr(c, "co_code") else repr(c) for c in code.co_consts
    )


@functools.cache
def _code_digest() -> str:
    """Sizes and times of our own source files: an editable installation changes without a new version."""
    import ge_converters
    import ge_graph
    import torchair

    rows = []
    for package in (ge_graph, ge_converters, torchair):
        root = Path(str(package.__file__)).parent
        for path in sorted((*root.rglob("*.py"), *root.rglob("*.jsonl"))):
            entry = path.stat()
            rows.append(f"{path.relative_to(root)} {entry.st_size} {entry.st_mtime_ns}")
    return _digest(rows)


def _digest(rows: Any) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row.encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()[:32]


# --- the graph as text -----------------------------------------------------------------------------------------------


def graph_text(gm: torch.fx.GraphModule) -> Iterator[str]:
    """One line per node: what it calls on what, and all that is known of its results."""
    for node in gm.graph.nodes:
        yield f"{node.name} {node.op} {_target(node.target)} {_argument(node.args)} {_argument(node.kwargs)}"
        yield f"  {_value(_known(node))}"
        if node.op == "get_attr":
            yield from _attribute(gm, str(node.target))
    yield from _limits(gm)


def _known(node: torch.fx.Node) -> Any:
    """The fake value of a node, of an ATen graph or of dynamo's."""
    return node.meta["val"] if "val" in node.meta else node.meta.get("example_value")


def _target(target: Any) -> str:
    return str(target) if isinstance(target, (str, torch._ops.OpOverload)) else f"{target!r}".split(" at 0x")[0]


def _argument(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return f"%{value.name}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_argument, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {_argument(v)}' for k, v in value.items())}}}"
    return repr(value)


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return f"{value.dtype} {tuple(value.shape)} {value.device} {value.layout}"
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.storage_offset()} {value.device}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    return f"{type(value).__name__} {value}"


def _attribute(gm: torch.fx.GraphModule, target: str) -> Iterator[str]:
    value: Any = gm
    for part in target.split("."):
        value = getattr(value, part)
    if isinstance(value, torch.fx.GraphModule):
        yield from (f"  {target}: {line}" for line in graph_text(value))
    elif isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if value.numel() else value.new_empty(0)
        yield f"  {target}: {_value(value)} {hashlib.sha256(data.numpy().tobytes()).hexdigest()}"
    else:
        yield f"  {target}: {value!r}"


def _limits(gm: torch.fx.GraphModule) -> Iterator[str]:
    """What the shape environment knows: it decides how symbolic sizes are lowered."""
    environment = shape_env_of(gm)
    if environment is not None:
        yield from sorted(f"{symbol} in {limits}" for symbol, limits in environment.var_to_range.items())
        yield from (str(guard.expr) for guard in environment.guards)


def shape_env_of(gm: torch.fx.GraphModule) -> Any:
    """The shape environment of a graph with symbolic sizes, None for a static one."""
    for number in numbers_of(gm).values():
        return number.node.shape_env
    return None


def numbers_of(gm: torch.fx.GraphModule) -> dict[str, Any]:
    """The symbolic numbers among a graph's inputs and their sizes, by their text."""
    by_text: dict[str, Any] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = _known(node)
        numbers = (*value.shape, *_strides(value)) if isinstance(value, torch.Tensor) else (value,)
        for number in numbers:
            if isinstance(number, torch.SymInt):
                by_text.setdefault(str(number.node.expr), number)
    return by_text


def symbols_of(gm: torch.fx.GraphModule) -> dict[str, Any]:
    """The symbols in a graph's inputs and their sizes, by name."""
    expressions = (n.node.expr for n in numbers_of(gm).values())
    return {s.name: s for expr in expressions for s in expr.free_symbols}


def _strides(value: torch.Tensor) -> tuple[Any, ...]:
    return value.stride() if value.layout is torch.strided else ()


class Watch:
    """Notices which symbolic sizes a lowering fixes, so that a cached graph is used under the same guards.

    Args:
        gm: The graph, before it is lowered.
    """

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self._numbers = {text: n for text, n in numbers_of(gm).items() if not n.node.expr.is_number}
        self._environment = shape_env_of(gm)
        self._guards = self._count()

    def _count(self) -> int:
        return 0 if self._environment is None else len(self._environment.guards)

    def fixed(self) -> dict[str, int]:
        """Text and value of the sizes that were fixed since.

        Raises:
            Unstorable: Something else was decided about a size, which another process cannot repeat.
        """
        fixed = {text: int(n.node.expr) for text, n in self._numbers.items() if n.node.expr.is_number}
        if self._count() - self._guards > len(fixed):
            raise Unstorable("a condition on symbolic sizes that lowering added")
        return fixed


def refix(gm: torch.fx.GraphModule, fixed: Mapping[str, int]) -> bool:
    """Add the guards that the lowering of a cached graph added; False if the sizes are others now."""
    numbers = numbers_of(gm)
    if any(text not in numbers or numbers[text].node.hint != value for text, value in fixed.items()):
        return False
    return all(int(numbers[text]) == value for text, value in fixed.items())


# --- entries ---------------------------------------------------------------------------------------------------------


class CacheEntry:
    """The place of one compiled graph in the cache.

    Args:
        key: What the graph depends on.
    """

    def __init__(self, root: Path, key: Mapping[str, str], label: str, rank: Rank) -> None:
        self.root, self.key, self.label, self.rank = root, key, label, rank

    def load(self) -> Stored | None:
        """The entry, None if there is none or it is of no use; the log says why."""
        manifest = self.root / "graph.manifest.json"
        if not manifest.exists():
            return None
        try:
            return stored_graph.read(manifest, self.key, self.rank)
        except (GeError, OSError) as error:
            logger.warning_once("%s: %s; it is compiled anew", self.label, error)
            return None

    def save(self, stored: Stored) -> None:
        """Write the entry; a failure is logged once."""
        try:
            stored_graph.write(stored, self.root, "graph", self.key, self.rank)
        except Unstorable as error:
            logger.info("%s: not cached: %s", self.label, error)
        except (OSError, ArchiveError) as error:
            cannot_write(self.root, error)


def cannot_write(root: Path, error: Exception) -> None:
    """Say once that a cache folder cannot be written."""
    reason = getattr(error, "strerror", None) or error
    logger.tell("the compile cache cannot be written, runs go on without it: %s (%s)", reason, root)


def entry_for(config: CompilerConfig, gm: torch.fx.GraphModule, label: str, gears: str = "") -> CacheEntry | None:
    """The cache entry of an ATen graph after its passes, None if caching is off.

    Args:
        gm: The graph as it will be lowered.
        gears: Sizes that are known beforehand, as text.
    """
    folder = config.cache_dir.value
    if not folder:
        return None
    rank = current()
    key = {
        **environment(config),
        "graph": _digest(graph_text(gm)),
        "gears": gears,
        "rank": f"{rank.index} of {rank.count}",
    }
    name = _digest(f"{k}: {v}" for k, v in sorted(key.items()))
    return CacheEntry(Path(folder).expanduser() / "graphs" / name[:2] / name, key, label, rank)
