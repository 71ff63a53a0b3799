"""What the packages' metadata says of Python and torch, from one place: ``[tool.tair.versions]`` of pyproject.toml.

python -m tools.metadata            write it into every package's pyproject.toml
python -m tools.metadata --check    fail if one differs
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import tomllib

from tools import workspace

ROOT = Path(__file__).resolve().parent.parent
_PYTHON = "Programming Language :: Python ::"


def claimed(root: Path = ROOT) -> tuple[str, list[str]]:
    """The bounds of torch and the versions of Python."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["tair"]["versions"]
    return table["torch"], table["python"]


def written(text: str, torch: str, pythons: list[str]) -> str:
    """A package's pyproject.toml with these versions in it."""
    text = re.sub(r'^requires-python = ".*"$', f'requires-python = ">={pythons[0]}"', text, flags=re.M)
    text = re.sub(r'"torch[<>=][^"]*"', f'"torch{torch}"', text)

    def classifiers(found: re.Match[str]) -> str:
        others = [c for c in re.findall(r'"([^"]*)"', found[1]) if not c.startswith(_PYTHON)]
        listed = [*(f"{_PYTHON} {p}" for p in pythons), *others]
        return "classifiers = [\n" + "".join(f'    "{c}",\n' for c in listed) + "]"

    return re.sub(r"^classifiers = \[(.*?)\]", classifiers, text, flags=re.M | re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date; write nothing")
    check = parser.parse_args().check
    stale = []
    for path in [ROOT / p.folder / "pyproject.toml" for p in workspace.packages().values()]:
        text = path.read_text(encoding="utf-8")
        wanted = written(text, *claimed())
        if wanted == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(wanted, encoding="utf-8")
    if check and stale:
        sys.exit(f"other versions than pyproject.toml claims: {', '.join(stale)}")


if __name__ == "__main__":
    main()
