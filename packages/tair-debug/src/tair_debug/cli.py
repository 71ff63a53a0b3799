"""The ``tair`` command.

Exit codes: 0 if all is well, 1 if the answer is no (calls without converter, numbers that differ, a mismatch), 2 for
wrong usage or a failure. With ``--json`` the answer, or the error, is one JSON object on standard output.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from ge_graph import escape
from ge_graph.errors import ConfigError, GeError, on_purpose

if TYPE_CHECKING:
    from rich.console import Console

    from ge_graph import Graph
    from ge_graph.kernels import Oracle
    from tair_debug.compare import Comparison, ComparisonRow
    from tair_debug.digits import Digits
    from tair_debug.tracing import Subject

app = typer.Typer(
    name="tair", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="See what becomes of a PyTorch model on its way to a GE graph, and where its numbers go wrong.",
    epilog="Exit codes: 0 all well, 1 the answer is no, 2 wrong usage or failure.",
)  # fmt: skip


Target = Annotated[
    str, typer.Argument(metavar="FILE.py:FACTORY", help="A function that returns a model, or (model, inputs).")
]
Inputs = Annotated[list[str] | None, typer.Option("--input", "-i", help="An input such as 'float32(4, 8)'; repeat it.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Backward = Annotated[bool, typer.Option("--backward", help="The backward pass too, of the sum of all results.")]
Dynamic = Annotated[bool, typer.Option("--dynamic", help="Trace with symbolic sizes.")]
Real = Annotated[bool, typer.Option("--real", help="Make real tensors, for factories that look at values.")]
Rtol = Annotated[float | None, typer.Option(help="Relative tolerance; by default that of the element type.")]
Atol = Annotated[float | None, typer.Option(help="Absolute tolerance; by default that of the element type.")]
TRACEBACK: Final = "TAIR_TRACEBACK"
COMMANDS: Final = "tair.commands"  # entry points of other packages
F = TypeVar("F", bound=Callable[..., int])


def console(*, errors: bool = False) -> Console:
    """Where people read."""
    from rich.console import Console

    made = Console(stderr=errors, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = 160  # a file or a pipe has no width of its own
    return made


def say(text: str, lead: str = "", style: str = "") -> None:
    """A text for people, after a few words of ours in a colour; nothing in the text steers the terminal."""
    from rich.text import Text

    console().print(Text.assemble((escape.block(lead), style), escape.block(text)), soft_wrap=True)


def answer(data: dict[str, Any]) -> None:
    """Where programs read."""
    sys.stdout.write(json.dumps(data, indent=1) + "\n")


def command(fn: F) -> F:
    """Register a function that returns its exit code; errors made on purpose become a message and code 2."""

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            code = fn(*args, **kwargs)
        except Exception as error:
            ge_error = on_purpose(error)
            if ge_error is None:
                if os.environ.get(TRACEBACK):
                    raise
                ge_error = _unexpected(fn.__name__, error)
            if kwargs.get("as_json"):
                answer({"error": {part: getattr(ge_error, part) for part in ("code", "what", "where", "next")}})
            else:
                text = escape.block(str(ge_error))
                console(errors=True).print(text, markup=False, style="red", soft_wrap=True)
            code = 2
        raise typer.Exit(code)

    app.command(fn.__name__)(run)
    return fn


def _unexpected(name: str, error: Exception) -> GeError:
    """The form of an error that nobody foresaw."""
    said = escape.line(str(error), 500)
    return ConfigError(
        "GE1048", f"tair {name} failed in a way that it does not know: {type(error).__name__}: {said}",
        next=f"set {TRACEBACK}=1 for the traceback, and report it",
    )  # fmt: skip


@command
def summary(
    target: Target,
    inputs: Inputs = None,
    csv: Annotated[bool, typer.Option("--csv", help="Write summary_<time>.csv into the working directory.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report as one page.")] = None,
    backward: Backward = False,
    dynamic: Dynamic = False,
    real: Real = False,
    as_json: Json = False,
) -> int:
    """Which operators of a model have a converter, with reasons and source lines; nothing is computed.

    Exit code 1 if some call cannot be converted.
    """
    from tair_debug import artefacts, fx_summary, summary_forms, tracing

    subject = tracing.load(target, inputs or (), fake=not real)
    with tracing.breaks() as breaks:
        graphs = tracing.capture(subject, backward=backward, dynamic=dynamic, fake=not real)
    rows = fx_summary.summarize(*(g.gm for g in graphs))
    written = [fx_summary.write_csv(rows, option="tair summary --csv")] if csv else []
    if html is not None:
        artefacts.folder(html.parent, "tair summary --html")
        artefacts.write_text(html, summary_forms.to_html(rows, subject.name), "tair summary --html")
        written.append(html)
    good = all(r.good == r.calls for r in rows)
    if as_json:
        answer({"ok": good, "graphs": len(graphs), "breaks": [b.as_dict() for b in breaks],
                "rows": [summary_forms.as_dict(r) for r in rows], "written": [str(p) for p in written]})  # fmt: skip
    else:
        out = console()
        out.print(summary_forms.to_table(rows, subject.name))
        if breaks:
            say(f"{len(graphs)} graphs: torch.compile stops at", style="yellow")
        for place in breaks:
            where = escape.line(f"{place.source or 'a place without source line'}: {place.code}")
            say(f"  {where}\n    {escape.line(place.reason)}")
            for hint in place.hints:
                say(f"    instead: {escape.line(hint)}")
        for path in written:
            say(f"written: {path}")
    return 0 if good else 1


@command
def dump(
    target: Target,
    inputs: Inputs = None,
    kind: Annotated[str, typer.Option("--type", "-t", help="txt, pbtxt, py or html.")] = "py",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")] = Path(),
    backward: Backward = False,
    dynamic: Dynamic = False,
    real: Real = False,
    as_json: Json = False,
) -> int:
    """Write the GE graphs of a model, as converted and after the GE passes; nothing is computed."""
    from tair_debug import artefacts, tracing
    from tair_debug.graph_dump import GraphDump
    from tair_debug.observer import Stage

    writer = GraphDump(kind, artefacts.folder(output, "tair dump --output"))
    subject = tracing.load(target, inputs or (), fake=not real)
    for number, captured in enumerate(tracing.capture(subject, backward=backward, dynamic=dynamic, fake=not real), 1):
        stage = Stage(number - 1, captured.phase, number)  # type: ignore[arg-type]
        original, optimized = tracing.to_ge(captured.gm, f"graph_{number}")
        writer.ge_graph(stage, "original", original)
        writer.ge_graph(stage, "optimized", optimized)
    if as_json:
        answer({"ok": True, "written": [str(p) for p in writer.written]})
    else:
        for path in writer.written:
            say(str(path))
    return 0


@command
def view(
    source: Annotated[str, typer.Argument(metavar="GRAPH", help="A graph (.air, .pb, .txt) or FILE.py:FACTORY.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; by default <graph>.html.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Json = False,
) -> int:
    """Make an interactive page of a GE graph: zoom, search, click a node for attributes, types and source."""
    from tair_debug import artefacts, tracing
    from tair_debug.graph_file import read_graph
    from tair_debug.graph_page import to_html

    if ".py:" in source:
        subject = tracing.load(source)
        graphs = [tracing.to_ge(g.gm, f"graph_{i}")[1] for i, g in enumerate(tracing.capture(subject), 1)]
        base = Path(f"{escape.file_name(subject.name)}.html")
    else:
        graphs, base = [read_graph(Path(source))], Path(f"{escape.file_name(Path(source).stem)}.html")
    first = output or base
    paths = [first if i == 0 else first.with_name(f"{first.stem}_{i + 1}.html") for i in range(len(graphs))]
    artefacts.folder(first.parent, "tair view --output")
    for graph, path in zip(graphs, paths):
        artefacts.write_text(path, to_html(graph), "tair view --output")
        if show:
            typer.launch(os.fspath(path.absolute()))
    if as_json:
        answer({"ok": True, "written": [str(p) for p in paths], "nodes": [len(g.nodes) for g in graphs]})
    else:
        for path in paths:
            say(str(path))
    return 0


@command
def compare(
    first: Annotated[str, typer.Argument(metavar="FILE.py:FACTORY|EXPECTED", help="A model, or a recorded dump.")],
    second: Annotated[str | None, typer.Argument(metavar="[GOT]", help="A second recorded dump.")] = None,
    inputs: Inputs = None,
    rtol: Rtol = None,
    atol: Atol = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the first wrong pair and a report.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine that runs the GE graphs.")] = "cpu",
    graph: Annotated[Path | None, typer.Option(help="txt graph dump that belongs to a device's recorded dump.")] = None,
    backward: Backward = False,
    dynamic: Dynamic = False,
    isolate: Annotated[
        bool,
        typer.Option(
            help="Give each operator eager's inputs, so that a row shows its own fault; else what it inherited too."
        ),
    ] = True,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FACTORY", help="A function that returns the CompilerConfig to compile with."),
    ] = None,
    numerics: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="Which operator costs the digits where this chip rounds: ascend910b …"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find the first operator whose numbers leave tolerance, with its FX node and source line.

    One model: eager against its GE graphs, operator by operator, both measured by float64. Two folders: recorded dumps.
    With --numerics: the GE graphs with the rounding of a chip against those without, and what each operator costs.
    Exit code 1 if something is out of tolerance.
    """
    from tair_debug import artefacts, tracing
    from tair_debug import compare as work
    from tair_debug.dumps import compare_dumps
    from tair_debug.measure import Tolerance

    tolerance = Tolerance(rtol, atol)
    if output is not None:
        artefacts.folder(output, work.OPTION)
    if numerics is not None and second is not None:
        raise typer.BadParameter("takes a model, no recorded dumps", param_hint="--numerics")
    if second is None:
        subject = tracing.load(first, inputs or (), fake=False)
        subject.config = None if config is None else _config(config)
        if numerics is not None:
            return _weigh(subject, numerics, work.engine(engine), rtol, backward, dynamic, as_json)
        result = _compare_model(subject, tolerance, engine, backward, dynamic, isolate, output)
    else:
        result = compare_dumps(first, second, tolerance=tolerance, graph=graph, output=output)
    report = None if output is None else work.write_report(output, result)
    if as_json:
        answer({**result.as_dict(), "report": report and str(report)})
    else:
        show_comparison(result, report)
    return 0 if result.ok else 1


def _compare_model(
    subject: Subject,
    tolerance: Any,
    engine: str,
    backward: bool,
    dynamic: bool,
    isolate: bool,
    output: Path | None,
) -> Comparison:
    import torch

    from tair_debug import compare as work
    from tair_debug import tracing

    result = work.compare_model(
        subject, engine=work.engine(engine), tolerance=tolerance, backward=backward, dynamic=dynamic, isolate=isolate,
        output=output,
    )  # fmt: skip
    backend = tracing.of_compiler("backend")
    if backend is not None and result.settled:
        result.notes.append(f"the compiled model as a whole, which may rightly differ ({'; '.join(result.settled)})")
    elif backend is not None:
        torch.compiler.reset()
        compiled = torch.compile(subject.model, backend=backend(compiler_config=subject.config), dynamic=dynamic)
        result.totals += work.compare_whole(subject, compiled, tolerance)
    return result


def _weigh(
    subject: Subject, chip: str, engine: Any, rtol: float | None, backward: bool, dynamic: bool, as_json: bool
) -> int:
    from tair_debug import digits

    options = {} if subject.config is None else subject.config.ge_options()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = digits.weigh_model(
            subject, engine=engine, chip=chip, options=options, backward=backward, dynamic=dynamic, rtol=rtol
        )
    own = [text for w in said if (text := str(w.message)).startswith("torchair: ")]
    notes = list(dict.fromkeys(text.removeprefix("torchair: ") for text in own))
    if as_json:
        answer({**found.as_dict(), "notes": notes})
    else:
        show_digits(found, notes)
    return 0 if found.ok else 1


def show_digits(found: Digits, notes: Sequence[str] = ()) -> None:
    """The verdict, the operator that costs most, then the next ones."""
    from tair_debug.digits import digits_of

    for name, moved in found.moved.items():
        text = f" the results move by {moved:.1e}; {digits_of(moved):.1f} digits are left"
        say(escape.line(text), f"{name} on {found.chip}:", "green" if moved <= found.tolerance else "red")
    if found.first is None:
        say(f"no rounding of {found.chip} changes a result ({found.rounded} operators round)")
    for place, cost in enumerate(found.costs[:5]):
        if not cost.moved:
            break
        lead = "costs most:" if not place else "next:"
        say(escape.line(f" {cost.node} ({cost.op}), {cost.graph}: {cost.moved:.1e} by itself, {cost.rounds}"), lead,
            "red" if not place and not found.ok else "")  # fmt: skip
        if cost.source:
            say(escape.line(f"  {cost.source}: {cost.code}"))
    if found.untried:
        say(f"{found.untried} of {found.rounded} operators that round were looked at in groups only")
    for text in notes:
        say(escape.line(f"note: {text}"))


def show_comparison(result: Comparison, report: Path | None) -> None:
    """The verdict, what needs attention, then the numbers."""
    row, bad = result.first, [r for r in result.totals if r.wrong]
    if result.ok:
        say("", "all within tolerance", "green")
    elif row is None:
        say(" though every operator agrees:", "the results of the model differ,", "red")
    elif bad:
        say("", "the results of the model differ", "red")
    elif result.totals:
        say(" but one operator does not do what eager does", "the results of the model are within tolerance,", "yellow")
    for r in bad:
        say(escape.line(f"  {r.graph}, {r.node}: {_numbers(r)}"))
    if row is not None:
        place = f" {row.node} ({row.op}) output {row.output}, {row.graph}"
        say(escape.line(place), "first out of tolerance:", "red")
        say(f"  {_numbers(row)}")
        if row.inside:
            say(escape.line(f"  inside:  {row.inside}"))
        say(escape.line(f"  FX node: {row.fx} = {row.target}"))
        if row.source:
            say(f"  source:  {escape.line(row.source)}\n           {escape.line(row.code)}")
        for path in result.saved:
            say(f"  saved:   {path}")
        say(f"  {sum(r.wrong for r in result.rows)} values are out of tolerance in all")
    worst = max((r.measure.max_rel for r in result.rows if not r.random), default=0.0)
    results = f"{len(result.totals)} results and " if result.totals else ""
    say(f"{results}{len(result.rows)} values compared, largest relative error {worst:.1e}")
    if result.unmatched:
        reasons = "; ".join(f"{count}: {why}" for why, count in result.why.most_common())
        say(escape.line(f"{result.unmatched} values without partner ({reasons})"))
    random = result.random
    if random is not None:
        say(
            f"note: {random.fx} draws random numbers, which an engine need not share with eager; what depends on it "
            "differs rightly (use eval mode, or dropout 0)"
        )
    for text in result.notes:
        say(escape.line(f"not compared: {text}"))
    if report is not None:
        say(f"report: {report}")


def _numbers(row: ComparisonRow) -> str:
    m = row.measure
    return m.why or f"max abs {m.max_abs:.3e}, max rel {m.max_rel:.3e}, cosine {m.cosine:.9f}, {m.bad} elements"


@command
def ops(
    pattern: Annotated[str, typer.Argument(help="Part of a name, or a pattern such as 'aten.add.*'.")] = "*",
    state: Annotated[
        str | None, typer.Option(help="Only row, function, walk, decomposed, composite or absent.")
    ] = None,
    core: Annotated[bool, typer.Option("--core", help="Only the core ATen set.")] = False,
    ge: Annotated[bool, typer.Option("--ge", help="GE operators with their ports and attributes instead.")] = False,
    as_json: Json = False,
) -> int:
    """Ask what is converted and how, or what a GE operator looks like. Exit code 1 if nothing matches.

    Where no ATen operator matches, GE operators are shown.
    """
    from tair_debug import op_query

    rows = op_query.ge_operators(pattern) if ge else op_query.converters(pattern, state, core)
    if not rows and not ge and state is None and not core:
        rows = op_query.ge_operators(pattern)
    if as_json:
        answer({"ok": bool(rows), "rows": rows})
    elif rows:
        console().print(op_query.to_table(rows))
    else:
        say(f"nothing matches {pattern!r}")
    return 0 if rows else 1


@command
def check(
    source: Annotated[
        str, typer.Argument(metavar="MODEL|GRAPH", help="FILE.py:FACTORY, or a graph (.air, .pb, .txt).")
    ] = "",
    inputs: Inputs = None,
    soc: Annotated[
        list[str] | None, typer.Option("--soc", help="A chip such as ascend910b; repeat it. By default all known.")
    ] = None,
    cann: Annotated[
        Path | None,
        typer.Option(
            help="Folder of CANN, or a file of --write-facts. By default ASCEND_HOME_PATH, else built-in facts."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also list what runs on AI Core.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 also for what is not proven: documented only, open, unknown.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Who says so, in a column.")] = False,
    against: Annotated[
        bool, typer.Option("--contradictions", help="Only list where --cann and the public evidence disagree.")
    ] = False,
    write_facts: Annotated[Path | None, typer.Option(help="Write the facts for machines without CANN.")] = None,
    backward: Backward = False,
    dynamic: Dynamic = False,
    real: Real = False,
    as_json: Json = False,
) -> int:
    """Which operators of a model have a kernel on a chip, and on which unit: AI Core, AI CPU or none.

    Exit code 1 if some operator has none; with --strict also if one is not proven. Verdicts say how strong the evidence
    is. A model is converted for each chip, as config.check_soc does: operators take the form that the chip runs on AI
    Core. A graph is checked as it is.
    """
    from ge_graph import kernels
    from ge_graph.escape import line
    from tair_debug import artefacts
    from tair_debug import check as work

    facts = kernels.facts(cann)
    if against:
        return _contradictions(soc or facts.socs(), cann or os.environ.get("ASCEND_HOME_PATH"), as_json)
    if not source:
        raise typer.BadParameter("missing; FILE.py:FACTORY or a graph", param_hint="MODEL|GRAPH")
    oracles = [kernels.oracle(name, cann) for name in soc or facts.socs()]
    graphs_for = _graphs_of(source, inputs or (), backward, dynamic, real)
    reports = [work.examine(graphs_for(oracle), oracle) for oracle in oracles]
    if write_facts is not None:
        artefacts.write_text(write_facts, facts.text(), "tair check --write-facts")
    good = all(r.proven if strict else r.ok for r in reports)
    if as_json:
        answer({"ok": good, "chips": [r.as_dict() for r in reports], "written": write_facts and str(write_facts)})
        return 0 if good else 1
    out = console()
    out.print(f"facts: {facts.origin}", markup=False, soft_wrap=True)
    for report in reports:
        out.print(report.headline(), markup=False, style="green" if report.ok else "red", soft_wrap=True)
        table = work.to_table(report, every=every, weak=strict, sources=verbose) if soc else None
        if table is not None:
            out.print(table)
        if soc and not every and report.unknown():
            out.print(line(f"unknown: {', '.join(report.unknown())}"), markup=False, soft_wrap=True)
    if not soc:
        out.print("--soc CHIP lists the operators", markup=False)
    return 0 if good else 1


def _contradictions(chips: Sequence[str], cann: Path | str | None, as_json: bool) -> int:
    """Exit code 1 if there are some."""
    from ge_graph import kernels

    if cann is None:
        raise typer.BadParameter("give an installation by --cann or ASCEND_HOME_PATH", param_hint="--contradictions")
    found = [row for chip in chips for row in kernels.contradictions(chip, cann)]
    if as_json:
        answer({"ok": not found, "contradictions": [row.split("\t") for row in found]})
    else:
        say("\n".join(found) or "the installation and the public evidence agree")
    return 1 if found else 0


def _graphs_of(
    source: str, inputs: Sequence[str], backward: bool, dynamic: bool, real: bool
) -> Callable[[Oracle], list[Graph]]:
    """Chip to the finished GE graphs of a model, or to the graph of a file, which no chip changes."""
    from ge_graph.passes import FitChip
    from tair_debug import tracing
    from tair_debug.graph_file import read_graph

    if ".py:" not in source:
        graph = read_graph(Path(source))
        return lambda oracle: [graph]
    subject = tracing.load(source, inputs, fake=not real)
    captured = tracing.capture(subject, backward=backward, dynamic=dynamic, fake=not real)
    plain = [tracing.to_ge(g.gm, f"graph_{i}")[1] for i, g in enumerate(captured, 1)]

    def graphs(oracle: Oracle) -> list[Graph]:
        step = FitChip(oracle)
        return [
            tracing.to_ge(g.gm, f"graph_{i}", oracle)[1] if step.concerns(made) else made
            for i, (g, made) in enumerate(zip(captured, plain), 1)
        ]

    return graphs


@command
def doctor(
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FACTORY", help="A function that returns a CompilerConfig: what its options do here."
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Versions, engines and why others are not usable, and known mismatches with their cure.

    Exit code 1 if there is a mismatch.
    """
    from tair_debug.doctor import examine

    report = examine()
    effects = None if config is None else _config(config).explain(everything=True)
    if effects is not None:
        report["options"] = [{"option": e.option, "value": e.value, "acts": e.acts, "effect": e.why} for e in effects]
    if as_json:
        answer(report)
        return 0 if report["ok"] else 1
    out = console()
    for name, version in report["versions"].items():
        say(f"{name:<18} {version or 'not installed'}")
    for state in report["engines"]:
        mark = ("yes", "green") if state["available"] else ("no ", "yellow")
        out.print(f"engine {state['name']:<11} ", end="", markup=False)
        say(f" {state['reason']}", *mark)
    absent = [row["name"] for row in report["left_out"]]
    if absent:
        say(f"operators without their built-in converters on this torch: {', '.join(absent)}")
    for problem in report["mismatches"]:
        say(f" {problem['what']}", "\nmismatch:", "red")
        say(f"     {problem['cure']}", "cure:", "green")
    if report["ok"]:
        say("", "\neverything fits together", "green")
    if effects is not None:
        say(f"\n{effects}")
    return 0 if report["ok"] else 1


def _add_commands() -> None:
    """Commands of other packages (entry points ``tair.commands``): each takes its arguments as they stand."""
    for point in sorted(importlib.metadata.entry_points(group=COMMANDS), key=lambda e: e.name):
        free = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
        text = f"From {point.dist.name if point.dist else 'another package'}; `tair {point.name} --help` says more."
        app.command(point.name, context_settings=free, add_help_option=False, help=text)(_passed_on(point))


def _passed_on(point: importlib.metadata.EntryPoint) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        raise typer.Exit(point.load()(context.args))

    run.__annotations__["context"] = typer.Context  # read by typer, which sees text only under postponed evaluation
    return run


def _config(target: str) -> Any:
    """The CompilerConfig that a factory makes."""
    from tair_debug import tracing

    made = tracing.made_by(target)
    if not callable(getattr(made, "explain", None)):
        raise ConfigError(
            "GE1043", f"{escape.line(target, 500)}: the factory returned a {type(made).__name__}, no CompilerConfig",
            next="give FILE.py:factory, a function that returns a torchair.CompilerConfig",
        )  # fmt: skip
    return made


def main() -> None:
    _add_commands()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    app(prog_name="tair")


if __name__ == "__main__":
    main()
