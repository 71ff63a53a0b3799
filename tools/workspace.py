"""The packages of this tree and what they need of each other, read from their pyproject.toml files and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Package:
    """A distribution of this tree.

    Attributes:
        name: The distribution's.
        folder: Where it lies, relative to the root.
        version: As in its pyproject.toml.
        needs: Its requirements, without those of its extras.
        extras: Name of an extra to its requirements.
        tests: Requirements of its tests, beyond its own.
    """

    name: str
    folder: Path
    version: str
    needs: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        """What commands call it: its folder under ``packages/``, else its own name."""
        return self.folder.name if self.folder.parent.name == "packages" else self.name

    @property
    def is_released(self) -> bool:
        """Whether users get it; the tests' own package stays here."""
        return self.folder.parts[0] == "packages"


def extras_by_name(requirements: Iterable[str]) -> dict[str, set[str]]:
    """Distribution to the extras that requirements ask of it."""
    found: dict[str, set[str]] = {}
    for requirement in requirements:
        parts = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
        if parts is None:
            raise ValueError(f"no requirement: {requirement!r}")
        asked = found.setdefault(parts[1], set())
        asked.update(e.strip() for e in (parts[2] or "").split(",") if e.strip())
    return found


def packages(root: Path = ROOT) -> dict[str, Package]:
    """All of them by distribution name, in the order of the workspace's members."""
    workspace = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Package] = {}
    for pattern in workspace["tool"]["uv"]["workspace"]["members"]:
        for folder in sorted(p for p in root.glob(pattern) if (p / "pyproject.toml").is_file()):
            data = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
            project = data["project"]
            found[project["name"]] = Package(
                project["name"],
                folder.relative_to(root),
                project["version"],
                tuple(project.get("dependencies", ())),
                {k: tuple(v) for k, v in project.get("optional-dependencies", {}).items()},
                tuple(data.get("dependency-groups", {}).get("test", ())),
            )
    return found


def with_siblings(name: str, known: dict[str, Package], *, tests: bool = False) -> list[Package]:
    """The package with all its extras and those of the tree that it needs, directly or not; ``tests``: or its tests."""
    seen: dict[str, set[str]] = {name: set()}
    own = known[name]
    queue = [*own.needs, *(r for e in own.extras.values() for r in e), *(own.tests if tests else ())]
    while queue:
        for current, extras in extras_by_name([queue.pop()]).items():
            if current not in known:
                continue
            queue += () if current in seen else known[current].needs
            for extra in extras - seen.setdefault(current, set()):
                seen[current].add(extra)
                queue += known[current].extras.get(extra, ())
    return [known[n] for n in seen]


def affected_by(changed: Iterable[str], known: dict[str, Package]) -> list[Package]:
    """The packages whose own tests can turn out otherwise if those named change; in the order of the tree."""
    names_of = set(changed)
    return [p for p in known.values() if names_of & {s.name for s in with_siblings(p.name, known, tests=True)}]
