"""``tair ranks``: a model on many ranks of one process, from the command line."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ge_graph import escape, messages
from ge_graph.command_line import CommandParser, told
from ge_graph.errors import GeError
from tair_debug import artefacts, models
from tair_debug.terminal import answer, console, put, say
from torchair.ranks import programs, report
from torchair.ranks.problems import bad, listed
from torchair.ranks.run import TOLERANCE, RanksReport, check_ranks, checked_mesh


def main(args: Sequence[str] | None = None) -> int:
    """The command. Exit code 0 if all is well, 1 if there are faults, 2 for wrong usage or a failure."""
    parser = _parser()
    try:
        given = parser.parse_args(args)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        found = _checked(given)
        written = _page(given, found)
    except GeError as error:
        if given.as_json:
            answer({"error": {part: getattr(error, part) for part in ("code", "what", "where", "next")}})
        else:
            console(errors=True).print(escape.block(str(error)), markup=False, style="red", soft_wrap=True)
        return 2
    if given.as_json:
        answer({**report.as_dict(found), "written": written})
    else:
        _show(given, found, written)
    return 0 if found.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "tair ranks",
        description="Carry out a model on many ranks in this process, with real numbers: each rank's graph, their "
        "collectives in lock-step, the results beside those of the whole model in eager mode.",
        epilog="Exit codes: 0 all well, 1 a fault was found, 2 wrong usage or failure.",
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="FILE.py:FACTORY, a function that returns the whole model and its inputs; "
        "or one of a DeviceMesh that returns those of the calling rank, and the whole model for None",
    )
    add("--mesh", required=True, metavar="tp=8,ep=8", help="dimensions of the mesh, outermost first")
    add(
        "--shard",
        metavar="FUNCTION",
        default="shard",
        help="shard(model, mesh) cuts the model for the rank that "
        "calls it; a name in the same file, or FILE.py:FUNCTION (default: shard)",
    )
    add("--backward", action="store_true", help="compare gradients too, those of the sum of all results")
    add(
        "--loss",
        metavar="FUNCTION",
        help="compare the gradients of loss(results), a scalar; a name in the same file, or FILE.py:FUNCTION",
    )
    add("--dynamic", action="store_true", help="compile with symbolic sizes")
    add("--tolerance", type=float, default=TOLERANCE, help="what is rounding, relative to the largest element")
    add("--report", action="store_true", help="list each collective with bytes, group and what computes meanwhile")
    add("--html", type=Path, metavar="PAGE", help="write a page with a lane for each rank")
    add("--json", dest="as_json", action="store_true", help="print one JSON object")
    return parser


def mesh_of(text: str) -> dict[str, int]:
    """Dimensions from ``tp=8,ep=8``.

    Errors: ConfigError GE1080.
    """
    parts = [part.partition("=") for part in text.split(",")]
    if any(not size.strip().isdecimal() for _, _, size in parts) or len({n.strip() for n, _, _ in parts}) < len(parts):
        raise bad(f"--mesh is {escape.line(text, 200)!r}", "write each dimension once, such as --mesh tp=8,ep=8")
    return checked_mesh({name.strip(): int(size) for name, _, size in parts})


def _checked(given: argparse.Namespace) -> RanksReport:
    mesh = mesh_of(given.mesh)
    if given.html is not None:
        artefacts.folder(given.html.parent, "tair ranks --html")
    more: dict[str, Any] = {
        "mesh": mesh,
        "backward": given.backward,
        "dynamic": given.dynamic,
        "tolerance": given.tolerance,
    }
    factory = models.function_of(given.model)
    file = given.model.rpartition(":")[0]

    def named(name: str) -> Any:
        return models.function_of(name if ":" in name else f"{file}:{name}")

    more["loss"] = named(given.loss) if given.loss else None
    if programs.takes_mesh(factory):
        return check_ranks(factory, **more)
    shard = _shard(given, named)
    try:
        made = programs.program_of(factory())
    except GeError:
        raise
    except Exception as error:
        said = escape.line(f"{type(error).__name__}: {error}", 500)
        raise bad(f"the factory raised {said}", "repair the factory") from error
    inputs = [args for args, _ in made.steps]
    kwargs = made.steps[0][1] if made.steps else None
    return check_ranks(made.model, inputs or (), kwargs, shard=shard, **more)


def _shard(given: argparse.Namespace, named: Callable[[str], Any]) -> Any:
    try:
        return named(given.shard)
    except GeError as error:
        if error.where:  # the file itself raised
            raise
        model, shard = escape.line(given.model, 200), escape.line(given.shard, 200)
        raise bad(
            f"{model} takes no mesh, and there is no function {shard} to cut its model",
            "give --shard FUNCTION or --shard FILE.py:FUNCTION, which cuts the model for a rank; or write a factory "
            "that takes the mesh and returns the model of the rank that calls it",
        ) from error


def _page(given: argparse.Namespace, found: RanksReport) -> list[str]:
    if given.html is None:
        return []
    title = f"{given.model.rpartition(':')[2]}, {given.mesh}"
    artefacts.write_text(given.html, report.to_html(found, title), "tair ranks --html")
    return [str(given.html)]


def _show(given: argparse.Namespace, found: RanksReport, written: Sequence[str]) -> None:
    for fault in found.faults:
        where = f"\n  at {escape.line(fault.source)}" if fault.source else ""
        what = escape.line(messages.said(fault.code, fault.what))
        say(f" {what}{where}", f"[{fault.code}]", "red")
    if found.ok:
        say(
            f"; largest difference {found.worst:.1e} of the largest element",
            f"{found.ranks} ranks agree with the whole model",
            "green",
        )
    kept, held = f"{found.kept / 2**20:.1f}", f"{found.held / 2**20:.1f}"
    saved = told(f"{kept} MB of parameters in memory for {held} MB of all ranks")
    graphs = told(f"{found.graphs} graphs, {found.distinct} that differ, {found.traced} traced")
    say(f"{graphs}; {len(found.log)} collectives; {saved}")
    if given.report:
        for ranks, rows in report.lanes(found):
            if rows:
                put([report.to_table(ranks, rows)], console())
            else:
                say(f"{listed(ranks)}: no collectives")
    for path in written:
        say(f"written: {path}")
