"""``tair export``: an offline graph of a file that ``torch.export.save`` wrote."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ge_graph.command_line import CommandParser
from ge_graph.errors import on_purpose
from ge_graph.escape import block


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 2 after an error, whose text is on standard error."""
    parser = CommandParser("tair export", description="Make an offline graph of a file that torch.export.save wrote.")
    parser.add_argument("file", metavar="MODEL.pt2", help="what torch.export.save wrote; nothing in it is run")
    parser.add_argument("-o", "--output", default="export_file", help="folder, made if missing (%(default)s)")
    parser.add_argument("-n", "--name", default="export", help="name of the graph file (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        from torchair.export.dynamo_export import dynamo_export
        from torchair.export.pt2_file import read_program

        dynamo_export(model=read_program(given.file), export_path=given.output, export_name=given.name)
    except Exception as error:
        if (known := on_purpose(error)) is None:
            raise
        sys.stderr.write(block(str(known)) + "\n")
        return 2
    return 0
