"""The archive on disk; the only module that knows its layout.

An archive is a graph file, the files beside it, and a manifest ``<name>.manifest.json`` that lists them all with sizes
and SHA-256. The manifest is also the commit point. New files are first written in full to a folder of their own,
``.staging-<name>-<digest>``, the digest being that of the new manifest; then the manifest is renamed into place, which
is atomic; only then do the files move to where they belong. A reader looks for every file in the staging folder of the
manifest it has read, then in its place. So a process killed at any moment leaves the old archive or the new one, and
the next save finishes what was left.

A reader holds the manifest's file open, opens all others, and then looks whether the name still stands for that very
file. If so, no commit ended meanwhile, and what was opened belongs together: from then on it may be replaced. Bytes
are not compared for that, since saving a model twice gives the same bytes, and another may have been there between. An
attempt is in vain only if a commit ended during it. After a few the reader takes part in the writers' lock, with which
no commit can end, so that attempt is the last.

Files that do not belong to an archive, such as those of other ranks, are left alone. Weight files that several ranks
list are named after their content, so whoever commits puts the same bytes in the same place; one goes with the last
manifest that lists it.

Layout, by kind (``<r>`` is the rank where there are several processes, else nothing):

* export: ``<name><r>.air``, ``<name><r>.manifest.json``, ``[rank_<r>/]dynamo.pbtxt``, ``[rank_<r>/]<parameter>``
* graph: ``[rank_<r>/]compiled_graph<r>.air``, its manifest, ``weights/<parameter>``; of several ranks
  ``weights/<SHA-256>``
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

from ge_graph import escape
from ge_graph.errors import ArchiveError, GeError
from ge_graph.files import create, flush_folder, locked, opened, replace
from tair_export import errors
from tair_export.manifest import (
    SUFFIX,
    Layout,
    check_name,
    content,
    graph_layout,
    opened_manifest,
    parse,
    read_manifest,
    render,
    seal,
)
from tair_export.mapping import map_file
from tair_export.ranks import Rank

EDGE_BYTES: Final = 4096
FULL_BYTES: Final = 256 << 20
_BLOCK: Final = 32 << 20
_ATTEMPTS: Final = 3  # to read without the writers' lock
_UNLOCKED: Final = 100  # where there are no locks, or somebody keeps one
_LOCK_SECONDS: Final = 1.0  # that one attempt waits for the writers' lock
_LOCKS_SECONDS: Final = 10.0  # that all of them together do
_SPARE_HANDLES: Final = 8
_UNFLUSHED: Final = 64  # files whose handle waits for the disk

Verify: TypeAlias = "bool | Literal['auto', 'fast', 'full', 'sizes']"
Piece: TypeAlias = "bytes | memoryview"
# Called with the bytes of a manifest and its path; raises, or returns False, if they come from nobody known.
Authenticate: TypeAlias = "Callable[[bytes, Path], object]"


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What the manifest says of a file.

    Attributes:
        name: Place below the root.
        sha256: Of the content.
        edges: SHA-256 of the first and last 4 KiB, for a fast look.
    """

    name: str
    bytes: int
    sha256: str
    edges: str


class Writer:
    """Writes one archive; use as a context manager and end with ``commit``.

    Hashing and flushing run in threads beside the writing, so that the disk is what it waits for.

    Args:
        root: Folder; made if missing.
        private: Whether the files are for this user alone; else as the process's umask says.
        wait: Seconds to wait for another writer, who holds the lock; None waits until it is done.
    """

    def __init__(self, root: Path, layout: Layout, *, private: bool = False, wait: float | None = None) -> None:
        self.root = root
        self.layout = layout
        self._mode = 0o600 if private else 0o666
        self._wait = wait
        self._stage = root / f".staging-{layout.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        self._alive = contextlib.ExitStack()
        self._hashing = ThreadPoolExecutor(2, "hash")
        self._flushing = ThreadPoolExecutor(1, "flush")
        self._files: dict[str, Callable[[], FileRecord]] = {}
        self._pending: list[tuple[Future[None], int]] = []
        self._hashed: list[Future[str]] = []
        self._begun: list[str] = []

    def __enter__(self) -> Writer:
        with reported("the folder cannot be written to", self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            with locked(self.root, wait=self._wait):  # so that nobody takes the new folder for an abandoned one
                self._stage.mkdir()
                self._alive.enter_context(locked(self._stage))
        return self

    def __exit__(self, *exc: object) -> None:
        self._hashing.shutdown(cancel_futures=True)
        self._flushing.shutdown(cancel_futures=True)
        for flushed, handle in self._pending:
            if flushed.cancelled():
                os.close(handle)
        self._alive.close()
        self._discard(self._stage)

    def _discard(self, staged: Path) -> None:
        """Remove a staging folder: what was begun by its names, since listing a folder takes handles that there may not
        be, then the rest."""
        for name in self._begun:
            with contextlib.suppress(OSError):
                (staged / name).unlink()
        folders = {folder for name in self._begun for folder in Path(name).parents}
        for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
            with contextlib.suppress(OSError):
                (staged / folder).rmdir()
        _remove(staged)

    def _check_handles(self) -> None:
        """Fail while nothing is in place yet if the handles run out that putting files into place takes."""
        with contextlib.ExitStack() as spare:
            for _ in range(_SPARE_HANDLES):
                spare.enter_context(opened(os.devnull))

    def add(self, name: str, pieces: Iterable[Piece]) -> None:
        """Write one file from pieces of memory, none of which is copied if it is large.

        Raises:
            ArchiveError: GE5033 if the system refuses.
        """
        path = self._stage / check_name(name, self.root)
        with reported(f"'{escape.line(name, 200)}' cannot be written", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._begun.append(name)
            handle = create(path, self._mode)
            self._fill(name, handle, pieces)

    def _fill(self, name: str, handle: int, pieces: Iterable[Piece]) -> None:
        edges, size = _Edges(), 0
        blocks: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        try:
            digest = self._hashing.submit(_hash, blocks)
            for block in _blocks(pieces):
                blocks.put(block)
                _write(handle, block)
                edges.add(block)
                size += len(block)
        except BaseException:
            os.close(handle)
            raise
        finally:
            blocks.put(None)  # whatever happened: the hashing thread waits for it
        self._pending.append((self._flushing.submit(_flush, handle), handle))
        # a block is held until it is hashed, so at most one file may lag behind
        for earlier in self._hashed[-1:]:
            earlier.result()
        for flushed, _ in self._pending[-_UNFLUSHED - 1 : -_UNFLUSHED]:
            flushed.result()
        self._hashed.append(digest)
        self._files[name] = lambda: FileRecord(name, size, digest.result(), edges.hexdigest(size))

    def commit(self, body: Mapping[str, Any]) -> Path:
        """Make the archive the one that readers find.

        Args:
            body: Manifest without ``format``, ``version``, ``graph``, ``files`` and ``digest``.

        Returns:
            The manifest.
        """
        with reported("the archive cannot be completed", self.root):
            return self._commit(body)

    def _commit(self, body: Mapping[str, Any]) -> Path:
        files = [self._files[name]() for name in sorted(self._files)]
        for flushed, _ in self._pending:
            flushed.result()
        listed = [{"bytes": f.bytes, "edges": f.edges, "name": f.name, "sha256": f.sha256} for f in files]
        manifest = seal({**body, "graph": self.layout.graph, "files": listed})
        text = render(manifest)
        target = self.root / self.layout.manifest
        with locked(self.root, wait=self._wait):
            self._alive.close()  # nobody else looks for abandoned folders now; Windows renames none that is in use
            for name in (*(f.name for f in files), self.layout.manifest):
                _check_inside(self.root, name)
            old = _finish(self.root, self.layout)
            staged = _staging(self.root, self.layout, manifest["digest"])
            shutil.rmtree(staged, ignore_errors=True)
            replace(self._stage, staged)
            try:
                for folder in {staged, *(p.parent for p in staged.rglob("*"))}:
                    flush_folder(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                _write_synced(self._stage, text, self._mode)
                self._check_handles()
                replace(self._stage, target)
            except BaseException:
                self._discard(staged)
                raise
            flush_folder(target.parent)
            _settle(self.root, staged, {f.name for f in files})
            _drop_stale(self.root, old, {f.name for f in files}, target)
            _drop_abandoned(self.root, self.layout)
        return target


@contextlib.contextmanager
def reported(what: str, where: Path) -> Iterator[None]:
    """The system's refusals as our error."""
    try:
        yield
    except OSError as error:
        raise errors.io(error, what, where) from error
    except ValueError as error:  # a NUL in a path, a lone surrogate
        if isinstance(error, GeError):
            raise
        raise errors.io(OSError(errno.EINVAL, str(error)), what, where) from error


def _check_inside(root: Path, name: str) -> None:
    """No folder on the way to a file is a link that leads out."""
    parent = (root / name).parent
    if not parent.resolve().is_relative_to(root.resolve()):
        raise errors.linked_out(name, root)


def _hash(blocks: queue.SimpleQueue[Piece | None]) -> str:
    digest = hashlib.sha256()
    while (block := blocks.get()) is not None:
        digest.update(block)
    return digest.hexdigest()


def _blocks(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Small pieces joined, large ones cut: what write and hash like best."""
    small: list[Piece] = []
    size = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        if len(view) < 1 << 20:
            small.append(view)
            size += len(view)
            if size >= 1 << 20:
                yield b"".join(small)
                small, size = [], 0
            continue
        if small:
            yield b"".join(small)
            small, size = [], 0
        for at in range(0, len(view), _BLOCK):
            yield view[at : at + _BLOCK]
    if small:
        yield b"".join(small)


class _Edges:
    """The first and last bytes of what goes by."""

    def __init__(self) -> None:
        self.head = b""
        self.tail = b""

    def add(self, block: Piece) -> None:
        if len(self.head) < EDGE_BYTES:
            self.head += bytes(block[: EDGE_BYTES - len(self.head)])
        self.tail = (self.tail + bytes(block[-EDGE_BYTES:]))[-EDGE_BYTES:]

    def hexdigest(self, size: int) -> str:
        return hashlib.sha256(self.head + self.tail + str(size).encode()).hexdigest()


def _write(handle: int, block: Piece) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(handle, view) :]


def _flush(handle: int) -> None:
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    handle = create(path, mode, existing="empty")
    try:
        _write(handle, data)
    finally:
        _flush(handle)


def _staging(root: Path, layout: Layout, digest: str) -> Path:
    return root / f".staging-{layout.name}-{digest[:16]}"


def _finish(root: Path, layout: Layout) -> dict[str, Mapping[str, Any]]:
    """Complete a commit that was cut short; the files of the archive that is there now, by name."""
    path = root / layout.manifest
    if not path.exists():
        return {}
    try:
        manifest = read_manifest(path)
    except ArchiveError:
        return {}  # damaged or of another version: it is replaced as a whole
    listed = {f["name"]: f for f in manifest["files"]}
    _settle(root, _staging(root, layout, manifest["digest"]), set(listed))
    return listed


def _settle(root: Path, staged: Path, names: set[str]) -> None:
    """Move the files of a commit to where they belong; anything else in the folder goes."""
    if not staged.is_dir() or staged.is_symlink():
        return
    for path in sorted(p for p in staged.rglob("*") if p.is_file() and not p.is_symlink()):
        name = path.relative_to(staged).as_posix()
        if name not in names:
            continue
        _check_inside(root, name)
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        replace(path, target)
    for folder in {root, *(p for p in root.iterdir() if p.is_dir() and p != staged and not p.is_symlink())}:
        flush_folder(folder)
    shutil.rmtree(staged)


def _drop_stale(root: Path, old: Mapping[str, Mapping[str, Any]], new: set[str], manifest: Path) -> None:
    """Remove what the last archive had and this one lacks, where the file is the one that was written then.

    A manifest may come from others and list what is none of its business. So nothing behind a link goes, no file whose
    content is another one than the manifest says, and none that another rank lists.
    """
    base = root.resolve()
    stale = {name: entry for name, entry in old.items() if name not in new}
    for name in _listed_elsewhere(root, manifest, set(stale)):
        del stale[name]
    for name, entry in stale.items():
        path = root / name
        if path.is_symlink():
            continue
        with contextlib.suppress(OSError):
            if path.parent.resolve().is_relative_to(base) and _is_written(path, entry):
                path.unlink()


def _listed_elsewhere(root: Path, manifest: Path, names: set[str]) -> set[str]:
    """Which files other archives of a root list; all, if one of their manifests cannot be read."""
    found: set[str] = set()
    for path in (p for form in (f"*{SUFFIX}", f"rank_*/*{SUFFIX}") for p in root.glob(form)) if names else ():
        if path == manifest or path.name.startswith("."):
            continue
        try:
            found |= names & {f["name"] for f in read_manifest(path)["files"]}
        except ArchiveError:
            return names
    return found


def _is_written(path: Path, entry: Mapping[str, Any]) -> bool:
    with opened(path, follow=False) as handle, open(handle, "rb", closefd=False) as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry["bytes"]:
            return False
        edges, size = _Edges(), status.st_size
        edges.head = file.read(EDGE_BYTES)
        file.seek(max(size - EDGE_BYTES, 0))
        edges.tail = file.read(EDGE_BYTES)
        return bool(edges.hexdigest(size) == entry["edges"])


def _drop_abandoned(root: Path, layout: Layout) -> None:
    """Remove what killed processes left: they wrote, but never committed. A live writer holds a lock on its folder."""
    form = re.compile(rf"\.staging-{re.escape(layout.name)}(?:\.[0-9]+-[0-9a-f]{{8}}\.tmp|-[0-9a-f]{{16}})")
    for path in list(root.iterdir()):
        if not form.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            with locked(path, wait=0, follow=False):
                pass  # nobody is writing there, and nobody begins to while we hold the folder's own lock
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


# --- reading ---------------------------------------------------------------------------------------------------------


class Archive:
    """An archive opened for reading: the manifest and its files, mapped.

    Attributes:
        root: Folder that the names are relative to.
        manifest: Content of the manifest, in the current format.
        compared: Whether every byte has been compared with its checksum.
    """

    def __init__(
        self, path: Path, root: Path, manifest: dict[str, Any], maps: dict[str, memoryview], copied: bool = False
    ) -> None:
        self.path = path
        self.root = root
        self.manifest = manifest
        self.compared = False
        self._maps = maps
        self._copied = copied

    def mapped_file(self, name: str) -> str | None:
        """The absolute path under which another reader finds the bytes of ``data``; None if they were copied, which
        they are where a signature was checked, or if the archive is just being replaced."""
        place = self.root.resolve() / name
        replaced = any(self.root.glob(f".staging-{self.path.name.removesuffix(SUFFIX)}-*"))
        return str(place) if not self._copied and not replaced and place.is_file() else None

    def data(self, name: str) -> memoryview:
        """The content of a file, mapped read-only: pages are shared between processes and read when touched."""
        return self._maps[name]

    def sizes(self) -> dict[str, int]:
        return {f["name"]: f["bytes"] for f in self.manifest["files"]}

    def verify(self, mode: Verify) -> None:
        """Compare the files with the manifest.

        Args:
            mode: True or ``full`` hashes every byte; ``fast`` hashes the graph, and the first and last 4 KiB of the
                others; ``auto`` is full up to 256 MiB in all, else fast; False or ``sizes`` compares sizes alone, which
                opening did.

        Raises:
            ArchiveError: GE5023 naming the file.
        """
        if mode is False or mode == "sizes":
            return
        if mode is not True and mode not in ("auto", "fast", "full"):
            raise ArchiveError("GE5027", f"verify must be True, False, 'auto', 'fast', 'full' or 'sizes', got {mode!r}")
        files = self.manifest["files"]
        full = mode in (True, "full") or (mode == "auto" and sum(f["bytes"] for f in files) <= FULL_BYTES)
        whole = [f for f in files if full or f["name"] == self.manifest["graph"]]
        for entry in files:
            edges, data = _Edges(), self._maps[entry["name"]]
            edges.add(data)
            if edges.hexdigest(len(data)) != entry["edges"]:
                raise errors.checksum(entry["name"], "the content is not what was written", self.path)
        with contextlib.closing(self._digests([f["name"] for f in whole])) as digests:
            for entry, digest in zip(whole, digests):
                if digest != entry["sha256"]:
                    raise errors.checksum(entry["name"], f"SHA-256 is {digest}, not {entry['sha256'][:64]}", self.path)
        self.compared = full

    def _digests(self, names: list[str]) -> Generator[str, None, None]:
        stop = threading.Event()

        def digest(name: str) -> str:
            made, data = hashlib.sha256(), self._maps[name]
            for at in range(0, len(data), _BLOCK):
                if stop.is_set():
                    break
                made.update(data[at : at + _BLOCK])
            return made.hexdigest()

        if sum(len(self._maps[name]) for name in names) < 4 << 20:
            yield from map(digest, names)
            return
        with ThreadPoolExecutor(2) as pool:
            try:
                yield from pool.map(digest, names)
            finally:  # interrupted, or one does not fit: the others need not be known
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)


def open_archive(
    path: Path | str,
    rank: Rank,
    *,
    verify: Verify = True,
    allow_outside: bool = False,
    copy: bool = False,
    authenticate: Authenticate | None = None,
) -> Archive:
    """Open an archive.

    Args:
        path: Its folder, its graph file or its manifest.
        rank: Picks the files of this process where there are several.
        verify: See ``Archive.verify``.
        allow_outside: Follow symbolic links that leave the folder.
        copy: Read the files into memory instead of mapping them; so it is on Windows, and with ``authenticate``.
        authenticate: Called with the bytes of the manifest and its path before anything in it is used; raises or
            returns False if they come from nobody known. See ``tair_export.signing``. Every file is read once, into
            memory, so that what is compared is what is used, whoever may write to the files.

    Raises:
        ArchiveError: 502x with the file, GE5042 for an argument of a wrong kind, GE5044 where ``authenticate`` returns
            False, whatever it raises.
    """
    if not isinstance(rank, Rank):
        raise errors.bad_argument("rank", rank, "a tair_export.ranks.Rank, or None")
    if authenticate is not None and verify is not True and verify != "full":
        raise errors.bad_argument("verify", verify, "True: a signature vouches for files only if all are compared")
    with _readable(path):
        manifest_path, root = find(Path(path), rank)
    copy = copy or authenticate is not None
    end = time.monotonic() + _LOCKS_SECONDS
    for attempt in range(_UNLOCKED):
        wait = min(_LOCK_SECONDS, max(end - time.monotonic(), 0.0)) if attempt >= _ATTEMPTS else None
        with _without_commits(root, wait) as alone, opened_manifest(manifest_path) as file:
            try:
                manifest = _authentic(content(file, manifest_path), manifest_path, authenticate)
                with _readable(path):
                    whole = verify is True or verify == "full"
                    maps = _map_all(manifest_path, root, manifest, allow_outside, copy, whole)
            except Exception:
                if alone or _stands_for(manifest_path, file):
                    raise
                continue
            if not alone and not _stands_for(manifest_path, file):
                continue
        found = Archive(manifest_path, root, manifest, maps, copy)
        found.verify(verify)
        return found
    raise errors.missing("the archive keeps changing while it is read", path, "wait until the writer is done")


def _authentic(data: bytes, path: Path, authenticate: Authenticate | None) -> dict[str, Any]:
    if authenticate is not None:
        answer = authenticate(data, path)
        if answer is not None and not answer:
            raise errors.untrusted(f"authenticate returned {answer!r}", path)
    return parse(data, path)


@contextlib.contextmanager
def _without_commits(root: Path, wait: float | None) -> Iterator[bool]:
    """Keep writers from committing; whether they are kept.

    Args:
        wait: Seconds to wait for their lock; None does not ask for it.
    """
    with contextlib.ExitStack() as stack:
        alone = False
        if wait is not None:
            with contextlib.suppress(OSError):  # somebody keeps it, no locks here, or no right to make one
                stack.enter_context(locked(root, shared=True, wait=wait))
                alone = True
        yield alone


def _stands_for(path: Path, file: IO[bytes]) -> bool:
    """Whether a name still stands for an open file. While it is open, nothing else can be taken for it."""
    try:
        with opened(path) as handle:
            return _identity(handle) == _identity(file.fileno())
    except OSError:
        return False


def _identity(handle: int) -> tuple[int, ...]:
    """What tells files apart; size and time since another host may take a number away under an open file."""
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def _readable(path: Path | str) -> Iterator[None]:
    """What the system has against a path, as our error: no such name, a working directory that is gone."""
    try:
        yield
    except GeError:
        raise
    except (OSError, TypeError, ValueError) as error:
        why = f"no path: {error}" if isinstance(error, ValueError) else f"cannot be read: {errors.system_says(error)}"
        raise errors.missing(why, str(path), "give the path of an archive") from error


def _map_all(
    path: Path, root: Path, manifest: Mapping[str, Any], allow_outside: bool, copy: bool, whole: bool
) -> dict[str, memoryview]:
    name = path.name.removesuffix(SUFFIX)
    staged = root / f".staging-{name}-{manifest['digest'][:16]}"
    folders = [staged, root] if staged.is_dir() else [root]
    base = root.resolve()
    return {
        entry["name"]: _map_first([f / entry["name"] for f in folders], entry, base, allow_outside, copy, whole, path)
        for entry in manifest["files"]
    }


def _map_first(
    candidates: list[Path], entry: Mapping[str, Any], base: Path, allow: bool, copy: bool, whole: bool, where: Path
) -> memoryview:
    for candidate in candidates:
        try:
            with opened(candidate) as handle:
                if not allow and not candidate.resolve().is_relative_to(base):
                    raise errors.unsafe_name(entry["name"], f"is a link to {candidate.resolve()}", where)
                return map_file(handle, entry["name"], entry["bytes"], where, copy=copy, whole=whole)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise errors.checksum(entry["name"], f"cannot be opened: {error.strerror}", where) from error
    raise errors.checksum(entry["name"], "is missing", where)


def find(path: Path, rank: Rank) -> tuple[Path, Path]:
    """The manifest that a path means, and the root of its archive.

    Raises:
        ArchiveError: GE5020 if there is none, or if it is not clear which.
    """
    if path.is_file():
        base = path.name.removesuffix(SUFFIX) if path.name.endswith(SUFFIX) else path.stem
        manifest = path.with_name(base + SUFFIX)
        if not manifest.is_file():
            raise errors.missing(
                f"no manifest '{manifest.name}' beside it", path, "load graph files of others with tair_export.load_air"
            )
        return manifest, _root_of(manifest)
    if not path.is_dir():
        raise errors.missing("there is no such file or folder", path, "give the path that the graph was saved to")
    layout = graph_layout(rank)
    for wanted in (path / layout.manifest, path / f"compiled_graph{SUFFIX}"):
        if wanted.is_file():
            return wanted, path
    manifests = sorted(p for p in path.glob(f"*{SUFFIX}") if not p.name.startswith("."))
    if not rank.alone and len(manifests) > 1:
        manifests = [p for p in manifests if _index(read_manifest(p)) == rank.index] or manifests
    if len(manifests) == 1:
        return manifests[0], path
    if manifests:
        raise errors.missing(
            f"{len(manifests)} archives: {', '.join(p.name for p in manifests[:5])}", path, "name one of them"
        )
    if inner := sorted(path.glob(f"rank_*/*{SUFFIX}")):
        raise errors.missing(
            f"archives of {len(inner)} ranks, and this process is rank {rank.index} of {rank.count}",
            path,
            "start as many processes as saved it (RANK and WORLD_SIZE, or torch.distributed), or name one of the files",
        )
    if airs := sorted(p.name for p in path.glob("*.air")):
        raise errors.missing(
            f"no manifest; graph files: {', '.join(airs[:5])}",
            path,
            "load graph files of others with tair_export.load_air",
        )
    raise errors.missing("no archive in this folder", path, "give the path that the graph was saved to")


def _index(manifest: Mapping[str, Any]) -> Any:
    rank = manifest.get("rank")
    return rank[0] if isinstance(rank, list) and rank else None


def _root_of(manifest: Path) -> Path:
    """The folder above ``rank_<r>`` for graphs saved by several processes, else the manifest's own."""
    folder = manifest.parent
    name = re.fullmatch(r"compiled_graph([0-9]+)" + re.escape(SUFFIX), manifest.name)
    return folder.parent if name and folder.name == f"rank_{name[1]}" else folder
