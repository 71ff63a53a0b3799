"""A compiled graph that is kept: its body, the contract under which it stands for a program, and both as a file.

The body is a GE graph or a program of torch's operators, and how the ATen graph's inputs and results meet it; another
kind of body is another row of ``_BODIES``. The contract says when the body may be used: a key, and conditions on sizes.

What is stored is data, see ``plain``. The archive around it, with its checksums and its atomic commit, is that of
``tair_export``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from ge_graph.errors import ArchiveError, GeError
from ge_graph.files import make_private
from tair_export.archive import Writer, open_archive
from tair_export.guards import MAX_GUARDS, Expr, check
from tair_export.manifest import Layout
from tair_export.ranks import Rank
from torchair.artifact.ge_body import GeBody
from torchair.artifact.plain import position
from torchair.artifact.program_body import ProgramBody

KIND: Final = "compiled"
LOCK_SECONDS: Final = 1.0
STALE: Final = "GE5050"
FORM: Final = 4
Body: TypeAlias = "GeBody | ProgramBody"
_BODIES: Final[dict[str, type[Body]]] = {"ge": GeBody, "program": ProgramBody}
"""What a kept graph may be, by its name in the manifest."""


@dataclass(slots=True)
class Contract:
    """When a kept graph stands for a program, and how it is called then.

    Attributes:
        conditions: What must be true of symbolic sizes, in the form of ``tair_export.guards``; a function that finds
            out while the graph is still being compiled.
        device: Device type of its tensors.
        order: Which of dynamo's inputs is which of the ATen graph's; None if it is not called with dynamo's.
        inputs: Number of dynamo's inputs.
        outputs: Number of results that dynamo expects.
    """

    conditions: list[Expr] | Callable[[], list[Expr]] = field(default_factory=list)
    device: str = "cpu"
    order: list[int] | None = None
    inputs: int = 0
    outputs: int = 0

    def found(self) -> list[Expr]:
        """The conditions.

        Raises:
            Unstorable: They have no such form.
        """
        return self.conditions() if callable(self.conditions) else self.conditions


@dataclass(slots=True)
class Stored:
    """A compiled graph that can be kept.

    Attributes:
        body: What runs.
        contract: When it may be used.
        more: JSON that whoever stores it adds.
    """

    body: Body
    contract: Contract = field(default_factory=Contract)
    more: dict[str, Any] = field(default_factory=dict)


def write(stored: Stored, root: Path, name: str, key: Mapping[str, str], rank: Rank, text: str = "") -> Path:
    """Write the archive of a compiled graph.

    Args:
        root: Folder; made if missing, for this user alone.
        name: Base name of the files.
        key: What the graph depends on; a reader that has another key refuses it.
        text: A description for people, a file of its own called like ``name`` if it is not empty.

    Returns:
        The manifest.

    Raises:
        Unstorable: A part has no form in a file.
        OSError, ArchiveError: The file system refuses, or another process holds the folder's lock.
    """
    contract = stored.contract
    kind = next(name for name, form in _BODIES.items() if isinstance(stored.body, form))
    chunks, binding = stored.body.to_data()
    body = {
        "body": kind,
        "binding": binding,
        "form": FORM,
        "key": dict(key),
        "kind": KIND,
        "more": stored.more,
        "rank": [rank.index, rank.count],
        "contract": {
            "conditions": contract.found(),
            "device": contract.device,
            "order": contract.order,
            "inputs": contract.inputs,
            "outputs": contract.outputs,
        },
    }
    make_private(root)
    with Writer(root, Layout(name, "", "", ""), private=True, wait=LOCK_SECONDS) as writer:
        writer.add(f"{name}.air", chunks)
        if text:
            writer.add(name, [text.encode("utf-8", "backslashreplace")])
        return writer.commit(body)


def read(manifest: Path, key: Mapping[str, str], rank: Rank) -> Stored:
    """Read what ``write`` wrote.

    Args:
        key: What the graph must depend on.

    Raises:
        GeError: It is damaged, of another kind or version (GE502x), stale (GE5050), or its graph cannot be right.
    """
    archive = open_archive(manifest, rank, verify="full")
    body = archive.manifest
    if body.get("kind") != KIND or body.get("form") != FORM:
        raise stale(
            manifest, f"it holds {body.get('kind')!r} in form {body.get('form')!r}, not {KIND!r} in form {FORM}"
        )
    if body.get("rank") != [rank.index, rank.count]:
        raise stale(manifest, f"it is of rank {body.get('rank')}, this process is {[rank.index, rank.count]}")
    differs(manifest, body.get("key"), key)
    try:
        stored = Stored(_BODIES[body["body"]].from_data(archive.data(body["graph"]), body["binding"]))
        stored.contract = _read_contract(body["contract"], stored.body.placeholders)
        if not isinstance(body["more"], dict):
            raise TypeError("more is not an object")
        stored.more = body["more"]
    except GeError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a file of others makes happen, it is the file
        raise damaged(manifest, f"it cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
    return stored


def damaged(where: Path, why: str) -> ArchiveError:
    """GE5021: a cache entry is none."""
    return ArchiveError("GE5021", why, where=str(where), next="delete the entry; it is made anew")


def _read_contract(body: Mapping[str, Any], placeholders: int) -> Contract:
    order, inputs, outputs = body["order"], position(body["inputs"], 1 << 24), position(body["outputs"], 1 << 24)
    conditions = list(body["conditions"])
    if len(conditions) > MAX_GUARDS:
        raise ValueError(f"{len(conditions)} conditions")
    for each in conditions:
        check(each)
    if not isinstance(body["device"], str):
        raise ValueError("device")
    if order is not None:
        order = [position(i, inputs) for i in order]
        if len(order) != placeholders:
            raise ValueError(f"{len(order)} inputs for {placeholders}")
    return Contract(conditions, torch.device(body["device"]).type, order, inputs, outputs)


def differs(manifest: Path, actual: Any, wanted: Mapping[str, str]) -> None:
    """Refuse an entry that depends on something else.

    Raises:
        ArchiveError: GE5050 naming what is different.
    """
    if not isinstance(actual, dict):
        raise stale(manifest, "it does not say what it depends on")
    for name in sorted({*actual, *wanted}):
        if actual.get(name) != wanted.get(name):
            old, new = (str(d.get(name, "unset"))[:80] for d in (actual, wanted))
            raise stale(manifest, f"{str(name)[:80]} was {old} and is {new}")


def stale(where: Path, why: str) -> ArchiveError:
    """GE5050: a cache entry does not belong to this program."""
    return ArchiveError(STALE, f"cache entry is stale: {why}", where=str(where), next="nothing to do, it is rebuilt")
