"""The manifest of an archive: what its files are called, and what it says of each of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from ge_graph import escape
from ge_graph.dtypes import DataType
from ge_graph.errors import ArchiveError
from ge_graph.files import plain
from ge_graph.serde_write import literal_bytes
from tair_export import errors, upgrade
from tair_export.ranks import Rank
from tair_export.signature import read_dtype, read_shape

FORMAT: Final = "tair-archive"
SUFFIX: Final = ".manifest.json"
MANIFEST_BYTES: Final = 64 << 20
MANIFEST_VALUES: Final = 2_000_000  # 400,000 files; each value takes about a hundred bytes of memory
GRAPH_BYTES: Final = (1 << 31) - 1  # what protobuf reads


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of one archive lie below its root.

    Attributes:
        name: Base name of graph file and manifest, rank included.
        graphs: Folder of those two, empty for the root.
        others: Folder of the readable graph.
        weights: Folder of the weight files.
        shared: Whether weight files are named after their content, so that the ranks' equal ones are one.
    """

    name: str
    graphs: str
    others: str
    weights: str
    shared: bool = False

    @property
    def graph(self) -> str:
        return under(self.graphs, f"{self.name}.air")

    @property
    def manifest(self) -> str:
        return under(self.graphs, self.name + SUFFIX)


def export_layout(name: str, rank: Rank) -> Layout:
    """The tree of ``dynamo_export``."""
    return Layout(f"{name}{rank.suffix}", "", rank.folder, rank.folder)


def graph_layout(rank: Rank) -> Layout:
    """The tree of ``save_graph``."""
    return Layout(f"compiled_graph{rank.suffix}", rank.folder, rank.folder, "weights", not rank.alone)


def under(folder: str, name: str) -> str:
    """The name of a file in a folder of the archive."""
    return f"{folder}/{name}" if folder else name


# --- names -----------------------------------------------------------------------------------------------------------

_RESERVED: Final = re.compile(r".*(\.air|\.manifest\.json|\.pbtxt)|(model_relation|numa)_config\.json", re.IGNORECASE)
# What Windows takes for a device, with any ending, or cuts off.
_DEVICES: Final = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?|.*\.", re.IGNORECASE)


def file_names(names: Iterable[str], folder: str) -> dict[str, str]:
    """A file for each parameter, named after it; characters that file systems dislike become ``_``."""
    files: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        base = re.sub(r"[^A-Za-z0-9._-]", "_", name)
        if base.startswith(".") or _RESERVED.fullmatch(base) or _DEVICES.fullmatch(base):
            base = f"_{base}_"
        if len(base) > 180:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
            base = f"{base[:160]}-{digest[:12]}"
        wanted, count = base or "_", 0
        while wanted.lower() in taken:
            count += 1
            wanted = f"{base}-{count}"
        taken.add(wanted.lower())
        files[name] = under(folder, wanted)
    return files


def check_name(name: Any, where: Path) -> str:
    """A relative name without any way out.

    Raises:
        ArchiveError: GE5024.
    """
    if not isinstance(name, str) or not name or len(name) > 1024:
        raise errors.unsafe_name(str(name)[:80], "is not a file name", where)
    parts = name.split("/")
    if escape.line(name) != name:
        raise errors.unsafe_name(name, "has characters that do not print", where)
    if name.startswith("/") or "\\" in name or re.match(r"[A-Za-z]:", name):
        raise errors.unsafe_name(name, "is not relative to the archive", where)
    if any(p in ("", ".", "..") for p in parts):
        raise errors.unsafe_name(name, "leads out of the archive", where)
    return name


# --- the manifest ----------------------------------------------------------------------------------------------------


def render(manifest: Mapping[str, Any]) -> bytes:
    """The one text of a manifest."""
    return (json.dumps(manifest, sort_keys=True, allow_nan=False) + "\n").encode()


def digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(render({k: v for k, v in manifest.items() if k != "digest"})).hexdigest()


def seal(body: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with format, version and digest."""
    manifest = {**body, "format": FORMAT, "version": upgrade.VERSION}
    return {**manifest, "digest": digest(manifest)}


def read_manifest(path: Path) -> dict[str, Any]:
    """Read, check and upgrade a manifest; ``digest`` is that of the file.

    Raises:
        ArchiveError: GE5020, GE5021, GE5022 for another format version, GE5024 for names, GE5025 for sizes, GE5026 for
            a weight whose file has another size than it takes.
    """
    with opened_manifest(path) as file:
        data = content(file, path)
    return parse(data, path)


@contextlib.contextmanager
def opened_manifest(path: Path) -> Iterator[IO[bytes]]:
    """The file of a manifest, open.

    Raises:
        ArchiveError: GE5020 if it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(plain(path))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        yield file


def content(file: IO[bytes], path: Path) -> bytes:
    """The bytes of an open manifest.

    Raises:
        ArchiveError: GE5020 if it cannot be read, GE5025 if it is too large.
    """
    try:
        size = os.fstat(file.fileno()).st_size
        if size > MANIFEST_BYTES:
            raise errors.too_large(f"a manifest of {size} bytes, at most {MANIFEST_BYTES} are read", path)
        return file.read(MANIFEST_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ArchiveError:
    what = f"the manifest cannot be read: {errors.system_says(error)}"
    return errors.missing(what, path, "give the path of an archive")


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """A manifest from its bytes, checked and upgraded.

    Raises:
        ArchiveError: As ``read_manifest``.
    """
    if sum(data.count(mark) for mark in b",:[{") > MANIFEST_VALUES:
        raise errors.too_large(f"a manifest of more than {MANIFEST_VALUES} values", path)
    try:
        manifest = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise errors.bad_manifest(f"no JSON: {str(error)[:200]}", path) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or type(manifest.get("version")) is not int:
        raise errors.bad_manifest("not a manifest of an archive", path)
    if not 1 <= manifest["version"] <= upgrade.VERSION:
        raise errors.version(manifest["version"], upgrade.writer_of(manifest), upgrade.VERSION, path)
    try:
        intact = data == render(manifest) and manifest.get("digest") == digest(manifest)
    except (ValueError, RecursionError) as error:
        raise errors.bad_manifest(f"no manifest: {error}", path) from None
    if not intact:
        raise errors.bad_manifest("the content does not fit its digest", path)
    manifest = upgrade.to_current(manifest, path)
    _check_files(manifest, path)
    return manifest


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _check_files(manifest: Mapping[str, Any], path: Path) -> None:
    files = manifest.get("files")
    if not isinstance(files, list):
        raise errors.bad_manifest("files is not a list", path)
    names = set()
    for entry in files:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("sha256", "edges")):
            raise errors.bad_manifest(f"file {str(entry)[:80]}", path)
        name = check_name(entry.get("name"), path)
        if type(entry.get("bytes")) is not int or not 0 <= entry["bytes"] < 1 << 50:
            raise errors.too_large(f"'{name}' has {str(entry.get('bytes'))[:40]} bytes", path)
        if name in names:
            raise errors.bad_manifest(f"'{name}' is listed twice", path)
        names.add(name)
    graph = check_name(manifest.get("graph"), path)
    if graph not in names:
        raise errors.bad_manifest(f"the graph '{graph}' is not among the files", path)
    sizes = {f["name"]: f["bytes"] for f in files}
    if sizes[graph] > GRAPH_BYTES:
        raise errors.too_large(f"graph '{graph}' has {sizes[graph]} bytes, at most {GRAPH_BYTES}", path)
    for _ in weights(manifest, path):
        pass  # a weight of a wrong size is found before its file is read


class Listed(NamedTuple):
    """A weight as the manifest lists it."""

    name: str
    dtype: DataType
    shape: tuple[int, ...]
    file: str


def weights(manifest: Mapping[str, Any], path: Path) -> Iterator[Listed]:
    """The weights that a manifest lists, each of the size of its file.

    Raises:
        ArchiveError: GE5021 for an entry that is none, GE5026 for a file of another size.
    """
    sizes = {f["name"]: f["bytes"] for f in manifest["files"]}
    listed = manifest.get("weights", [])
    if not isinstance(listed, list):
        raise errors.bad_manifest("weights is not a list", path)
    for entry in listed:
        try:
            name, file = entry["name"], entry["file"]
            dtype, shape = read_dtype(entry["dtype"]), read_shape(entry["shape"], symbols=False)
            size = sizes[file]
        except (KeyError, TypeError, ValueError) as error:
            raise errors.bad_manifest(f"weight {str(entry)[:80]}: {error}", path) from None
        if not isinstance(name, str) or any(not isinstance(d, int) or d < 0 for d in shape):
            raise errors.bad_manifest(f"weight {str(entry)[:80]}", path)
        fixed = tuple(d for d in shape if isinstance(d, int))
        expected = literal_bytes(dtype, fixed)
        if expected != size:
            raise errors.weight(name, f"{dtype.name}{list(fixed)} takes {expected} bytes, '{file}' has {size}", path)
        yield Listed(name, dtype, fixed, file)


def groups(manifest: Mapping[str, Any], path: Path) -> dict[str, tuple[int, ...]]:
    """The communication groups that a graph names, with the ranks of each, in order; empty if it names none.

    Raises:
        ArchiveError: GE5021 if they are none, or rank or count of the archive do not fit to them.
    """
    listed, rank = manifest.get("groups", {}), manifest.get("rank")
    if not listed and isinstance(listed, dict):
        return {}
    pair = rank if isinstance(rank, list) and len(rank) == 2 and all(type(n) is int for n in rank) else [0, 0]
    index, count = pair
    if not 0 <= index < count or not isinstance(listed, dict):
        raise errors.bad_manifest(f"groups {str(listed)[:80]} of rank {str(rank)[:40]}", path)
    found = {}
    for name, ranks in listed.items():
        numbers = isinstance(ranks, list) and len(ranks) <= count and all(type(n) is int for n in ranks)
        if not numbers or len({*ranks}) < len(ranks) or not all(0 <= n < count for n in ranks):
            raise errors.bad_manifest(f"group {str(name)[:80]!r} has the ranks {str(ranks)[:80]}", path)
        if index not in ranks:
            raise errors.bad_manifest(f"rank {index} is not in the group {str(name)[:80]!r} of its graph", path)
        found[name] = tuple(ranks)
    return found
