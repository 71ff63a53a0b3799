"""``python -m ge_graph.codegen HEADER_OR_DIR... -o out.py``: Python wrappers from ``REG_OP`` headers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ge_graph.codegen.emit import write_module
from ge_graph.codegen.reg_op import read_headers
from ge_graph.errors import GraphError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if the files were written, 1 if a header could not be read."""
    parser = argparse.ArgumentParser(
        prog="python -m ge_graph.codegen",
        description="Turn REG_OP headers into a Python module of wrappers, its .pyi and a .jsonl of schema rows.",
    )
    parser.add_argument("headers", nargs="+", type=Path, help="header files, or directories that are searched for *.h")
    parser.add_argument("-o", "--output", required=True, type=Path, help="Python file to write, for instance my_ops.py")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="let the headers win over built-in definitions with other ports or attributes",
    )
    options = parser.parse_args(argv)
    try:
        parsed = read_headers(options.headers)
        written = write_module(parsed.operators, options.output, replace=options.replace)
    except GraphError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command line tool
        return 1
    for note in parsed.notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201
    noun = "operator" if len(parsed.operators) == 1 else "operators"
    print(f"{len(parsed.operators)} {noun}: {', '.join(str(p) for p in written)}")  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
