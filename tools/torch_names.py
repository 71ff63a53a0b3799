"""Private names of torch that the packages use, looked up in the source text of a torch that need not be imported.

python -m tools.torch_names                              in the torch of this environment
python -m tools.torch_names torch-2.15.0-cp311-*.whl …   in wheels, or in folders that hold an unpacked torch

A name that is missing is an error unless a row of tools/torch_names.tsv says in which versions it is missing and what
stands in. Rows for attributes of objects that torch hands out are looked up too; a row that does not hold is an error.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "torch_names.tsv"
# The only files that may use private names of torch, but for the stable ones below.
COMPAT = (
    "packages/ge-converters/src/ge_converters/base/device_composites.py",
    "packages/ge-converters/src/ge_converters/base/torch_compat.py",
    "packages/ge-converters/src/ge_converters/base/torch_frames.py",
    "packages/ge-converters/src/ge_converters/base/torch_kept.py",
    "packages/ge-converters/src/ge_converters/base/torch_traces.py",
    "packages/ge-converters/src/ge_converters/base/torch_worlds.py",
    "packages/ge-runtime-native/src/ge_runtime/cpu/torch_compat.py",
)
# Documented although they begin with an underscore, or the only names that torch gives to what everybody uses.
STABLE = re.compile(
    r"torch\._ops\.(OpOverload|OpOverloadPacket|OperatorBase|HigherOrderOperator)(\.\w+)*|torch\._check|torch\._dynamo|"
    r"torch\.utils\._pytree(\.\w+)*|torch\.utils\._python_dispatch\.TorchDispatchMode|torch\._C(\.Value)?"
)


@dataclass(frozen=True)
class Row:
    """A name that some version lacks, or an attribute that no import shows.

    Attributes:
        name: ``torch._dynamo.output_graph.OutputGraph.import_sources``.
        since: The first version that has it, ``2.9``; empty for all.
        before: The first version that lacks it again; empty for none.
        stands_in: What is used without it.
    """

    name: str
    since: str
    before: str
    stands_in: str

    def expected(self, version: str) -> bool:
        """Whether a version has the name."""
        return (not self.since or _key(version) >= _key(self.since)) and (
            not self.before or _key(version) < _key(self.before)
        )


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in version.split("+")[0].split(".")[:2])


def rows() -> dict[str, Row]:
    """The table by name."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
    return {row.name: row for row in (Row(*line.split("\t")) for line in lines)}


# -- what the packages use --------------------------------------------------------------------------------------------


def _private(name: str) -> bool:
    parts = name.split(".")[1:]
    return parts[:2] == ["fx", "experimental"] or any(p.startswith("_") and not p.endswith("__") for p in parts)


def _uses_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Full names of torch that a module imports or reaches through attributes, each with its line."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.split(".")[0] == "torch":
                    known[each.asname or "torch"] = each.name if each.asname else "torch"
                    yield each.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for each in node.names:
                known[each.asname or each.name] = f"{node.module}.{each.name}"
                yield f"{node.module}.{each.name}", node.lineno
    inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}  # parts of longer names
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in known:
            yield ".".join([known[inner.id], *reversed(parts)]), node.lineno  # type: ignore[attr-defined]


@lru_cache(maxsize=2)
def uses(root: Path = ROOT) -> dict[str, list[str]]:
    """Private names of torch, each with the places that use it."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.glob("packages/*/src/**/*.py")):
        name = path.relative_to(root).as_posix()
        for used, line in _uses_in(ast.parse(path.read_text(encoding="utf-8"))):
            if _private(used) and not used.startswith("torch.ops."):
                found.setdefault(used, []).append(f"{name}:{line}")
    return found


def outside(found: dict[str, list[str]]) -> list[str]:
    """Uses outside the files that are for them."""
    bad = []
    for name, places in sorted(found.items()):
        if not STABLE.fullmatch(name):
            bad += [f"{place}: {name}" for place in places if place.rsplit(":", 1)[0] not in COMPAT]
    return bad


def read_elsewhere(root: Path = ROOT) -> list[str]:
    """Places outside the files for it that read an attribute of an object of torch which some version lacks."""
    told = {
        row.name.rsplit(".", 1)[1] for row in rows().values() if row.name.count(".") > 2 and (row.since or row.before)
    }
    found = []
    for path in sorted(root.glob("packages/*/src/**/*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if name not in COMPAT else ():
            if isinstance(node, ast.Attribute) and node.attr in told:
                found.append(f"{name}:{node.lineno}: {node.attr}")
    return found


# -- what a torch has -------------------------------------------------------------------------------------------------


class Source:
    """The source text of a torch.

    Args:
        place: A wheel, or a folder with ``torch`` in it.
    """

    def __init__(self, place: Path) -> None:
        self._read: Callable[[str], str | None]
        if place.suffix == ".whl":
            archive = zipfile.ZipFile(place)
            names = set(archive.namelist())
            self._read = lambda name: archive.read(name).decode("utf-8") if name in names else None
        else:
            self._read = lambda name: (place / name).read_text("utf-8") if (place / name).is_file() else None
        found = re.search(r"__version__ = '([^']+)'", self._read("torch/version.py") or "")
        self.version = found[1] if found else "0.0"
        self.module = lru_cache(maxsize=None)(self._module)

    def _module(self, name: str) -> str | None:
        path = name.replace(".", "/")
        stub = self._read(f"{path}/__init__.pyi") or self._read(f"{path}.pyi")
        return stub or self._read(f"{path}.py") or self._read(f"{path}/__init__.py")

    def has(self, name: str) -> bool:
        """Whether the text of a module has a name, or all the parts of it that follow the module's name."""
        parts = name.split(".")
        if parts[-2:] == ["config", "patch"]:  # modules of settings are made objects of a class
            return self.has(".".join(parts[:-1])) and self.has("torch.utils._config_module.ConfigModule.patch")
        for length in range(len(parts), 0, -1):
            text = self.module(".".join(parts[:length]))
            if text is None:
                continue
            rest = parts[length:]
            first = rest[:1] and re.compile(
                rf"^\s*(?:async )?(?:def|class) {rest[0]}\b|^\s*{rest[0]}\s*[:=]|\bimport\b[^\n]*\b{rest[0]}\b|"
                rf"^\s+{rest[0]},?\s*(?:#.*)?$|^\s*\"{rest[0]}\",?$|as {rest[0]}\b",
                re.M,
            )
            if rest and not (first and first.search(text)):
                return self._in_c(parts)
            return all(re.search(rf"\b{part}\b", text) for part in rest[1:])
        return self._in_c(parts)

    def _in_c(self, parts: list[str]) -> bool:
        """Functions of the C extension that torch's own namespace or a sub-module of ``torch._C`` shows."""
        places = ["torch._C", "torch._C._VariableFunctions", "torch._VF"] if len(parts) == 2 else ["torch._C"]
        if parts[:2] == ["torch", "_C"] and len(parts) > 2:
            places = [".".join(parts[:-1]), "torch._C"]
        if any(re.search(rf"\b{parts[-1]}\b", self.module(place) or "") for place in places):
            return True
        return re.search(rf"\b{re.escape('.'.join(parts))}\b", self._read("torch/nn/functional.py") or "") is not None


def problems(source: Source) -> list[str]:
    """Names that this torch lacks and no row explains, and rows that do not hold for it."""
    table, bad = rows(), []
    for name, places in sorted(uses().items()):
        row = table.get(name)
        if row is None and not source.has(name):
            bad.append(f"torch {source.version} has no {name}, used at {', '.join(places[:3])}")
    for row in table.values():
        if source.has(row.name) != row.expected(source.version):
            said = "has no" if row.expected(source.version) else "has"
            bad.append(f"torch {source.version} {said} {row.name}, against its row in {TABLE.name}")
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, help="wheels or folders with a torch")
    places = parser.parse_args().places
    if not places:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            sys.exit("torch_names: no torch in this environment")
        places = [Path(spec.origin).parent.parent]
    bad = [*outside(uses()), *read_elsewhere()]
    if bad:
        bad.append(f"private names of torch belong into {', '.join(COMPAT)}")
    for place in places:
        source = Source(place)
        found = problems(source)
        print(f"torch {source.version}: {len(found)} of {len(uses())} names and {len(rows())} rows do not hold")
        bad += found
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
