"""The cache on disk of ``torch.compile``: what comes after tracing is done once for all processes.

Switched on by ``config.cache_dir`` or the environment variable ``TORCHAIR_CACHE_DIR``. The key is made from the table
of ``dependencies``. An entry is an archive with checksums. The cache never changes a result and never stops a run: a
folder or an entry that others may write is not used, one that does not read or does not fit is made anew, and whatever
goes wrong meanwhile is a warning.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import torch

from ge_converters.base.torch_kept import put_into_bundle
from ge_graph.files import others_may_write
from tair_export.manifest import SUFFIX, read_manifest
from tair_export.ranks import Rank, current
from torchair.artifact import bundle, dependencies, stored_graph
from torchair.artifact.content import Unknowable, digest
from torchair.artifact.dependencies import GraphToKeep
from torchair.artifact.plain import Unstorable
from torchair.artifact.stored_graph import Stored
from torchair.config.log import logger

if TYPE_CHECKING:
    from torchair.config.compiler_config import CompilerConfig

T = TypeVar("T")
KINDS: Final = ("traced", "graphs")
"""Folders in a cache folder: entries before AOTAutograd, and behind it."""


class CacheEntry:
    """The place of one compiled graph on disk.

    Args:
        top: The folder that the user named.
        root: The folder of this entry below it.
        key: What the graph depends on.
        label: Which graph, for the log.
        name: Base name of the files.
    """

    def __init__(
        self, top: Path, root: Path, key: Mapping[str, str], label: str, rank: Rank, name: str = bundle.NAME
    ) -> None:
        self.root, self.key, self.label, self.rank = root, key, label, rank
        self._top, self.name = top, name

    @property
    def manifest(self) -> Path:
        """The file that makes the entry one."""
        return self.root / (self.name + SUFFIX)

    def load(self, use: Callable[[Stored], T | None]) -> T | None:
        """What ``use`` makes of the entry; None if there is none or it is of no use, and the log says why.

        Args:
            use: Takes the graph; whatever it raises is a fault of the entry.
        """

        def look() -> T | None:
            if not self.manifest.exists() or not self._is_ours():
                return None
            made = use(stored_graph.read(self.manifest, self.key, self.rank))
            if made is not None:
                self._offer()
            return made

        return self.attempt(look)

    def attempt(self, step: Callable[[], T | None]) -> T | None:
        """What a step of using the entry gives; None if it fails, and then the log says why."""
        try:
            return step()
        except Exception as error:  # noqa: BLE001  a cache never stops a run, whatever somebody wrote into it
            say = logger.warning_once if getattr(error, "code", "") == stored_graph.STALE else logger.tell
            say("%s: %s; it is compiled anew", self.label, _said(error))
            return None

    def save(self, stored: Stored, text: str = "", say: Callable[..., None] = logger.info) -> bool:
        """Write the entry; whether that was done. A failure is told once.

        Args:
            text: A description for people, as a file beside it.
            say: Told why the graph has no form in a file.
        """
        try:
            if self._is_ours():
                stored_graph.write(stored, self.root, self.name, self.key, self.rank, text)
                self._offer()
                return True
        except Unstorable as error:
            say("%s: not cached: %s", self.label, error)
        except Exception as error:  # noqa: BLE001  a cache never stops a run
            cannot_write(self.root, error)
        return False

    def _offer(self) -> None:
        """Let ``torch.compiler.save_cache_artifacts`` carry the entry, if it is one of ``torch.compile``."""
        if self.name == bundle.NAME:
            put_into_bundle(bundle.KIND, self.root.relative_to(self._top).as_posix(), bundle.pack(self.root))

    def discard(self) -> None:
        """Remove the entry; a failure is told once."""
        try:
            self.manifest.unlink(missing_ok=True)
        except OSError as error:
            cannot_write(self.root, error)

    def _is_ours(self) -> bool:
        """Whether nobody else can have put there what is there: folders down to the entry, and its files."""
        inside = self.root.relative_to(self._top).parts
        folders = [self._top, *(self._top.joinpath(*inside[: n + 1]) for n in range(len(inside)))]
        files = [self.manifest, self.root / f"{self.name}.air", self.root / self.name]
        for path in (*folders, *files):
            if not os.path.lexists(path):
                continue
            why = others_may_write(path)
            if not why and path in files and not stat.S_ISREG(os.stat(path).st_mode):
                why = "it is no plain file"
            if why:
                cannot_keep(f"{why} ({path})")
                return False
        return True


def _said(error: Exception) -> str:
    """An error in a line of the log; those that are not ours with their kind."""
    text = str(error) or type(error).__name__
    return text if hasattr(error, "code") else f"the cache entry cannot be used: {type(error).__name__}: {text[:200]}"


def cannot_write(root: Path, error: Exception) -> None:
    """Say once that a cache folder cannot be written."""
    reason = getattr(error, "strerror", None) or error
    logger.tell("the compile cache cannot be written, runs go on without it: %s (%s)", reason, root)


def known_key(subject: GraphToKeep) -> dict[str, str] | None:
    """What a graph depends on; None if that cannot be known, so that nothing may be kept, which is told once."""
    try:
        return dependencies.key(subject)
    except Exception as error:  # noqa: BLE001  a cache never stops a run
        what = error if isinstance(error, Unknowable) else f"{type(error).__name__}: {error}"
        cannot_keep(f"nobody could tell when it is stale: {what}")
        return None


def cannot_keep(why: str) -> None:
    """Say once why nothing is kept."""
    logger.tell("the compile cache is not used: %s", why)


def entry_of(subject: GraphToKeep, kind: str, label: str) -> CacheEntry | None:
    """The place of a graph in the cache folder; None if its key cannot be known, which is told once.

    Args:
        kind: Folder in the cache folder.
    """
    key = known_key(subject)
    if key is None:
        return None
    return _entry(Path(os.path.expanduser(subject.config.cache_dir.value)), kind, key, label, subject.rank or current())


def _entry(top: Path, kind: str, key: Mapping[str, str], label: str, rank: Rank) -> CacheEntry:
    name = digest(f"{k}: {v}" for k, v in sorted(key.items()))
    return CacheEntry(top, top / kind / name[:2] / name, key, label, rank)


def entry_for(config: CompilerConfig, gm: torch.fx.GraphModule, label: str, gears: str = "") -> CacheEntry | None:
    """The cache entry of an ATen graph after its passes, None if caching is off.

    Args:
        gm: The graph as it will be lowered.
        gears: Sizes that are known beforehand, as text.
    """
    if not config.cache_dir.value:
        return None
    return entry_of(GraphToKeep(config, graph=gm, gears=gears, rank=current()), "graphs", label)


def take_from_bundle(place: str, content: bytes) -> None:
    """Put an entry of ``torch.compiler.load_cache_artifacts`` into the cache folder; one that is none is told.

    Args:
        place: Where it was in the folder that it comes from; its place here follows from what it depends on.
        content: The packed archive.
    """
    kind = place.partition("/")[0]
    top = os.environ.get("TORCHAIR_CACHE_DIR", "")
    if not top:
        logger.tell("load_cache_artifacts: entries of torchair are left out, for TORCHAIR_CACHE_DIR names no folder")
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            manifest = bundle.unpack(content, Path(folder))
            depends = read_manifest(manifest).get("key")
            if kind not in KINDS or not isinstance(depends, dict):
                raise bundle.damaged(f"an entry of kind {kind[:40]!r}")
            rank = current()
            stored = stored_graph.read(manifest, depends, rank)
            _entry(Path(os.path.expanduser(top)), kind, depends, "load_cache_artifacts", rank).save(stored)
    except Exception as error:  # noqa: BLE001  a cache never stops a run, whatever a bundle holds
        logger.tell("load_cache_artifacts: an entry of torchair is left out: %s", _said(error))
