"""The ``tair`` command.

Exit codes: 0 if all is well, 1 if the answer is no (calls without converter, numbers that differ, a mismatch), 2 for
wrong usage or a failure, 130 after Ctrl-C, 141 if nobody reads the output any more. With ``--json`` the answer, or the
error, is one JSON object on standard output.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from ge_graph import escape, messages
from ge_graph.command_line import told
from ge_graph.errors import ConfigError, GeError, on_purpose
from tair_debug import endings
from tair_debug.options import Asked, Atol, Config, Json, Rtol, Source, Target, expanded
from tair_debug.targets import FORMS, is_model
from tair_debug.terminal import Answer, Detail, answer, console, put, say, sentence, working

_ABOUT: Final = "See what becomes of a PyTorch model on its way to a GE graph, and where its numbers go wrong."
app = typer.Typer(
    name="tair",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=_ABOUT,
    epilog="Exit codes: 0 all well, 1 the answer is no, 2 wrong usage or failure, 130 stopped by Ctrl-C, "
    "141 nobody reads the output any more.",
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"tair {importlib.metadata.version('tair-debug')}")
        raise typer.Exit


@app.callback(help=_ABOUT)
def _everywhere(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


TRACEBACK: Final = "TAIR_TRACEBACK"
_UNSET: Final = "unset it to follow LANG"
COMMANDS: Final = "tair.commands"  # entry points of other packages
# A command loads thousands of modules and traces a model, which leaves little garbage: by Python's own thresholds a
# fifth of its time goes into looking for some. What it leaves between two looks is about ten megabytes.
_COLLECT: Final = (1_000_000, 50, 100)
_COMPILED: Final = "TORCH_DYNAMO_RUN_GC_AFTER_COMPILE"  # torch looks once more after each graph
F = TypeVar("F", bound=Callable[..., int])


def command(short: str) -> Callable[[F], F]:
    """Register a function that returns its exit code; errors made on purpose become a message and code 2.

    Args:
        short: What the list of commands says of it, so short that a narrow terminal shows it whole.
    """

    def register(fn: F) -> F:
        with_options = expanded(fn)

        @functools.wraps(with_options)
        def run(*args: Any, **kwargs: Any) -> None:
            try:
                places = [v for v in kwargs.values() if isinstance(v, Path)]
                with working(f"tair {fn.__name__}"), endings.no_empty_folders(places):
                    code = with_options(*args, **kwargs)
                sys.stdout.flush()
            except typer.BadParameter as error:  # wrong usage, which typer shows
                error.message = told(error.message)
                raise
            except BrokenPipeError:
                endings.no_more_output()
                code = endings.NO_READER
            except KeyboardInterrupt:
                put(
                    [sentence("stopped; files that were written are whole", f"tair {fn.__name__}: ")],
                    console(errors=True),
                )
                code = endings.STOPPED
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

        app.command(fn.__name__, short_help=short)(run)
        return fn

    return register


def show(result: Answer, detail: Detail, as_json: bool) -> int:
    """Print an answer; its exit code."""
    if as_json:
        answer(result.as_dict())
    else:
        put(result.parts(detail), console())
    return 0 if result.ok else 1


def _unexpected(name: str, error: Exception) -> GeError:
    """The form of an error that nobody foresaw."""
    said = escape.line(str(error), 500)
    return ConfigError(
        "GE1048",
        f"tair {name} failed in a way that it does not know: {type(error).__name__}: {said}",
        next=f"set {TRACEBACK}=1 for the traceback, and report it",
    )


@command("Which operators of a model have a converter.")
def summary(
    target: Target,
    asked: Asked,
    detail: Detail,
    csv: Annotated[bool, typer.Option("--csv", help="Write summary_<time>.csv into the working directory.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report as one page.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the report: a .csv or .html file.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Which operators of a model have a converter, with reasons and source lines; nothing is computed.

    Exit code 1 if some call cannot be converted.
    """
    from tair_debug import artefacts, ask, fx_summary, summary_forms

    pages = [(path, option) for path, option in ((html, "--html"), (output, "--output")) if path is not None]
    if output is not None and output.suffix not in (".csv", ".html"):
        raise typer.BadParameter(f"{output} ends neither in .csv nor in .html", param_hint="--output")
    result = ask.summary_of(asked.subject(target), backward=asked.backward, dynamic=asked.dynamic, fake=not asked.real)
    if csv:
        result.written.append(fx_summary.write_csv(result.rows, option="tair summary --csv"))
    for path, option in pages:
        artefacts.folder(path.parent, f"tair summary {option}")
        table = option == "--output" and path.suffix == ".csv"
        text = (
            fx_summary.MARK + fx_summary.to_csv(result.rows)
            if table
            else summary_forms.to_html(result.rows, result.name)
        )
        artefacts.write_text(path, text, f"tair summary {option}")
        result.written.append(path)
    code = show(result, detail, as_json)
    if not as_json:
        for path in result.written:
            say(f"written: {path}")
    return code


@command("Write the GE graphs of a model, as converted and optimized.")
def dump(
    target: Target,
    asked: Asked,
    kind: Annotated[str, typer.Option("--type", "-t", help="txt, pbtxt, py, html or model-explorer.")] = "py",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")] = Path(),
    as_json: Json = False,
) -> int:
    """Write the GE graphs of a model, as converted and after the GE passes; nothing is computed.

    Calls that cannot be converted are left out: their results are inputs, what they read are outputs. Exit code 1 if
    there are some. A file of model-explorer has the graphs after the GE passes; compare and check write node data for
    it.
    """
    from tair_debug.graph_dump import dump_of

    subject = asked.subject(target)
    result = dump_of(subject, kind, output, backward=asked.backward, dynamic=asked.dynamic, fake=not asked.real)
    return show(result, Detail(), as_json)


@command("Make an interactive page of a GE graph.")
def view(
    source: Source,
    asked: Asked,
    second: Annotated[
        str | None, typer.Argument(metavar="[SECOND]", help="A second model or graph, to see what differs.")
    ] = None,
    passes: Annotated[
        bool, typer.Option("--passes", help="The model's graphs as converted, beside the same after the GE passes.")
    ] = False,
    errors: Annotated[
        Path | None,
        typer.Option(help="Colour nodes by error: what compare MODEL wrote with --node-data, --json or --output."),
    ] = None,
    soc: Annotated[
        str | None, typer.Option("--soc", help="Colour nodes by unit, time and bytes on a chip such as Ascend910B3.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page; by default <graph>.html.")] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    as_json: Json = False,
) -> int:
    """Make an interactive page of a GE graph: zoom, search, click a node for attributes, types and source.

    Calls that cannot be converted are marked, with the reason. Exit code 1 if there are some.
    With SECOND, or --passes, two graphs beside each other: what is equal is matched, what differs is marked.
    """
    from tair_debug import ask
    from tair_debug.explorer import read_errors

    if not any(is_model(each) for each in (source, second or "")):
        asked.none_for(source)
    if passes and (second is not None or not is_model(source) or soc is not None or errors is not None):
        raise typer.BadParameter("takes one model, without --soc and --errors", param_hint="--passes")
    how = {"backward": asked.backward, "dynamic": asked.dynamic, "fake": not asked.real}
    sides: list[Any] = [asked.subject(s) if is_model(s) else Path(s) for s in (source, second) if s is not None]
    names = [getattr(side, "stem", None) or side.name for side in sides]
    name = "_".join(names)
    page: Any
    if passes:
        page, name = ask.passes_of(sides[0], **how), f"{name}_passes"
    else:
        pages = [ask.view_of(side, soc=soc, **how) for side in sides]
        if errors is not None:
            found = read_errors(errors)
            for each in pages:
                each.colour(found)
        page = pages[0] if second is None else ask.beside_of(pages[0], pages[1], (names[0], names[1]))
    for path in page.save(output or Path(f"{escape.file_name(name)}.html"), "tair view --output"):
        if show_it:
            typer.launch(os.fspath(path.absolute()))
    return show(page, Detail(), as_json)


@command("Find the first operator whose numbers leave tolerance.")
def compare(
    first: Annotated[str, typer.Argument(metavar="MODEL|EXPECTED", help=f"{FORMS}; or a recorded dump.")],
    asked: Asked,
    detail: Detail,
    second: Annotated[str | None, typer.Argument(metavar="[GOT]", help="A second recorded dump.")] = None,
    rtol: Rtol = None,
    atol: Atol = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the first wrong pair and a report.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine that runs the GE graphs.")] = "cpu",
    graph: Annotated[Path | None, typer.Option(help="txt graph dump that belongs to a device's recorded dump.")] = None,
    isolate: Annotated[
        bool,
        typer.Option(
            help="Give each operator eager's inputs, so that a row shows its own fault; else what it inherited too."
        ),
    ] = True,
    numerics: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="Which operator costs the digits where this chip rounds: ascend910b …"),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--node-data", help="Write the error of each node, for the graphs of dump -t model-explorer."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Find the first operator whose numbers leave tolerance, with its FX node and source line.

    One model: eager against its GE graphs, operator by operator, both measured by float64. Two folders: recorded dumps.
    With --numerics: the GE graphs with the rounding of a chip against those without, and what each operator costs.
    Exit code 1 if something is out of tolerance, or was left out because its call cannot be converted.
    """
    from tair_debug import artefacts, ask
    from tair_debug import compare as work
    from tair_debug.dumps import compare_dumps
    from tair_debug.measure import Tolerance

    tolerance = Tolerance(rtol, atol)
    if output is not None:
        artefacts.folder(output, work.OPTION)
    if figures is not None and (second is not None or numerics is not None):
        raise typer.BadParameter("takes the comparison of a model with eager", param_hint="--node-data")
    if numerics is not None and second is not None:
        raise typer.BadParameter("takes a model, no recorded dumps", param_hint="--numerics")
    if second is None:
        subject = asked.subject(first, real=True)
        if numerics is not None:
            found = ask.digits_of(
                subject, numerics, engine=engine, rtol=rtol, backward=asked.backward, dynamic=asked.dynamic
            )
            return show(found, detail, as_json)
        result = ask.compare_of(
            subject, tolerance, engine, backward=asked.backward, dynamic=asked.dynamic, isolate=isolate, output=output
        )
    else:
        asked.none_for(f"{first} beside {second}")
        result = compare_dumps(first, second, tolerance=tolerance, graph=graph, output=output)
    if figures is not None:
        artefacts.folder(figures.parent, "tair compare --node-data")
        artefacts.write_text(figures, result.node_data(), "tair compare --node-data")
    result.report = None if output is None else work.write_report(output, result)
    if as_json:
        answer({**result.as_dict(), "report": result.report and str(result.report)})
        return 0 if result.ok else 1
    return show(result, detail, as_json)


@command("Shrink a model with a fault to a few operators.")
def minify(
    target: Target,
    asked: Asked,
    detail: Detail,
    rtol: Rtol = None,
    atol: Atol = None,
    engine: Annotated[str, typer.Option(help="Engine that runs the GE graphs.")] = "cpu",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")] = Path(),
    values: Annotated[
        bool, typer.Option("--values", help="Keep the values that the fault needs, as npy files.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Shrink a model that has a fault - a wrong number, a refused call, an error - to the few operators that show it.

    Writes one Python file of calls of torch's operators: nothing of your code, names or weights is in it. Exit code 1
    if there was a fault.
    """
    from tair_debug import minify as work
    from tair_debug.measure import Tolerance

    result = work.minify(
        asked.subject(target, real=True),
        engine=engine,
        tolerance=Tolerance(rtol, atol),
        backward=asked.backward,
        dynamic=asked.dynamic,
    )
    work.write(result, output, values=values)
    return show(result, detail, as_json)


@command("Run a file of tair minify: is the fault still there?")
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What tair minify wrote.")],
    detail: Detail,
    engine: Annotated[str, typer.Option(help="Engine that runs the GE graphs.")] = "cpu",
    after: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="Call this factory first, which registers converters."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Run the program of a file that tair minify wrote, eager beside its GE graph.

    Exit code 1 if the fault is there.
    """
    from tair_debug import ask

    if after is not None:
        Asked().subject(after)
    return show(ask.compare_of(Asked().subject(f"{file}:make", real=True), engine=engine), detail, as_json)


@command("Ask what is converted and how, or what a GE operator is.")
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
        put([op_query.to_table(rows)], console())
    else:
        say(f"nothing matches {pattern!r}")
    return 0 if rows else 1


@command("Which operators of a model have a kernel on a chip.")
def check(
    asked: Asked,
    detail: Detail,
    source: Source = "",
    soc: Annotated[
        list[str] | None, typer.Option("--soc", help="A chip such as ascend910b; repeat it. By default all known.")
    ] = None,
    cann: Annotated[
        Path | None,
        typer.Option(
            help="Folder of CANN, or a file of --write-facts. By default ASCEND_HOME_PATH, else built-in facts."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 also for what is not proven: documented only, open, unknown.")
    ] = False,
    capture: Annotated[
        bool, typer.Option("--capture", help="What captured graphs need of the chip instead, for each of --sizes.")
    ] = False,
    sizes: Annotated[str, typer.Option(help="With --capture: sizes of a batch, '1,2,4,8'.")] = "1",
    against: Annotated[
        bool, typer.Option("--contradictions", help="Only list where --cann and the public evidence disagree.")
    ] = False,
    write_facts: Annotated[Path | None, typer.Option(help="Write the facts for machines without CANN.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report as a JSON file.")] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--node-data", help="Write the verdict of each node, for the graphs of dump -t model-explorer."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Which operators of a model have a kernel on a chip, and on which unit: AI Core, AI CPU or none.

    Exit code 1 if some operator has none or cannot be converted; with --strict also if one is not proven. Verdicts say
    how strong the evidence is. A model is converted for each chip, as config.check_soc does: operators take the form
    that the chip runs on AI Core. A graph is checked as it is.
    """
    from ge_graph import kernels
    from tair_debug import artefacts, ask
    from tair_debug.graph_file import read_graph

    if figures is not None and (against or len(soc or ()) != 1):
        raise typer.BadParameter("needs one chip, --soc CHIP", param_hint="--node-data")
    if against:
        return _contradictions(soc or kernels.facts(cann).socs(), cann or os.environ.get("ASCEND_HOME_PATH"), as_json)
    if not source:
        raise typer.BadParameter(f"missing; {FORMS}, or a graph", param_hint="MODEL|GRAPH")
    if capture:
        return _captures(source, asked, detail, soc or ["ascend910b"], sizes, output, as_json)
    if is_model(source):
        subject: Any = asked.subject(source)
    else:
        asked.none_for(source)
        subject = read_graph(Path(source))
    result = ask.check_of(
        subject,
        soc=soc or (),
        cann=cann,
        strict=strict,
        backward=asked.backward,
        dynamic=asked.dynamic,
        fake=not asked.real,
    )
    if write_facts is not None:
        artefacts.write_text(write_facts, kernels.facts(cann).text(), "tair check --write-facts")
        result.written = str(write_facts)
    if figures is not None:
        artefacts.folder(figures.parent, "tair check --node-data")
        artefacts.write_text(figures, result.reports[0].node_data(), "tair check --node-data")
    if output is not None:
        artefacts.folder(output.parent, "tair check --output")
        artefacts.write_text(output, json.dumps(result.as_dict(), indent=1) + "\n", "tair check --output")
    return show(result, detail, as_json)


def _captures(
    source: str, asked: Asked, detail: Detail, socs: Sequence[str], sizes: str, output: Path | None, as_json: bool
) -> int:
    """Exit code 1 if something is more than the chip has, or can dead-lock."""
    from tair_debug import artefacts
    from tair_debug.captures import captures_of, sizes_of

    if not is_model(source):
        raise typer.BadParameter(f"takes a model, {FORMS}", param_hint="--capture")
    if len(socs) != 1:
        raise typer.BadParameter("with --capture takes one chip", param_hint="--soc")
    result = captures_of(
        lambda size: asked.subject(source, size=size),
        sizes_of(sizes),
        socs[0],
        fake=not asked.real,
        dynamic=asked.dynamic,
    )
    if output is not None:
        artefacts.folder(output.parent, "tair check --output")
        artefacts.write_text(output, json.dumps(result.as_dict(), indent=1) + "\n", "tair check --output")
    return show(result, detail, as_json)


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


@command("Will it fit, how fast at best, where is it slow.")
def plan(
    source: Annotated[
        str, typer.Argument(metavar="MODEL|GRAPH", help=f"{FORMS}; a graph (.air, .pb, .txt), or an archive.")
    ],
    asked: Asked,
    soc: Annotated[str, typer.Option("--soc", help="A chip such as Ascend910B3, or a family.")] = "ascend910b",
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", help="Value of a symbolic size, 's0=1024'; several values, 's0=1,8,32', are gears."),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="operator, module, line or node.")] = "operator",
    calibrate: Annotated[
        Path | None, typer.Option(help="op_summary.csv of msprof, or kernel_details.csv: measured times come first.")
    ] = None,
    compare_with: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="WHAT=VALUE",
            help="Beside it the plan with soc, model, config, aicore_num, reuse, calibrate or a size changed.",
        ),
    ] = None,
    aicore_num: Annotated[str, typer.Option(help="Limit of cube and vector cores, '12|24'.")] = "",
    memory_limit: Annotated[str, typer.Option(help="Exit code 1 if more is needed: '64GiB'.")] = "",
    page: Annotated[
        Path | None, typer.Option(help="Write the graph as a page, coloured by time, bytes or unit.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Will it fit, how fast at best, where is it slow: memory, time, operations and bytes on a chip, without one.

    Times are bounds by published peaks, estimates, or measurements (--calibrate), and each says which it is. Exit code
    1 if --memory-limit is exceeded, by the estimate, or if a call cannot be converted, which is in no figure.
    """
    from tair_debug import plan_request as request

    if not is_model(source):
        asked.none_for(source)
    first = request.Request(source, asked, soc, request.sizes_of(sizes or ()), by, calibrate, aicore_num)
    limit = request.size_of(memory_limit) if memory_limit else None
    plans = request.made([first, *(first.changed(text) for text in compare_with or ())])
    found = request.Plans(plans, by, limit, [] if page is None else request.write_pages(plans[0], page))
    return show(found, Detail(), as_json)


@command("How long each operator takes, as a profiler's table and trace.")
def profile(
    target: Target,
    asked: Asked,
    detail: Detail,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for table and trace.")] = None,
    engine: Annotated[str, typer.Option(help="Engine that runs the GE graphs.")] = "cpu",
    warmup: Annotated[int, typer.Option(min=0, help="Runs before the measured ones.")] = 1,
    runs: Annotated[int, typer.Option(min=1, help="Measured runs.")] = 1,
    as_json: Json = False,
) -> int:
    """How long each operator of the GE graphs takes on an engine.

    With --output kernel_details.csv and trace_view.json, for Chrome's tracing and Perfetto: GE name, type, stream and
    order of each operator. What runs on the CANN emulator is profiled by `tair emulate --profile FOLDER`.
    """
    from tair_debug import profile as work

    result = work.profile_of(
        asked.subject(target, real=True),
        engine=engine,
        warmup=warmup,
        runs=runs,
        backward=asked.backward,
        dynamic=asked.dynamic,
    )
    if output is not None:
        work.write(result, output)
    return show(result, detail, as_json)


@command("Versions, engines, and known mismatches with their cure.")
def doctor(
    config: Config = None,
    as_json: Json = False,
) -> int:
    """Versions, engines and why others are not usable, and known mismatches with their cure.

    With --config also what its options do here.

    Exit code 1 if there is a mismatch.
    """
    from tair_debug.doctor import examine
    from tair_debug.models import config_of

    report = examine()
    effects = None if config is None else config_of(config).explain(everything=True)
    if effects is not None:
        report["options"] = [{"option": e.option, "value": e.value, "acts": e.acts, "effect": e.why} for e in effects]
    if as_json:
        answer(report)
        return 0 if report["ok"] else 1
    out = console()
    for name, version in report["versions"].items():
        say(f"{name:<18} {version or told('not installed')}")
    for state in report["engines"]:
        mark = ("yes", "green") if state["available"] else ("no", "yellow")
        out.print(f"{told('engine')} {state['name']:<11} ", end="", markup=False)
        say(f" {told(state['reason'])}", *mark)
    for name, why in report["torch_lacks"].items():
        say(f"GE1067 {name} cannot be used: {why}")
    absent = [row["name"] for row in report["left_out"]]
    if absent:
        say(f"operators without their built-in converters on this torch: {', '.join(absent)}")
    for problem in report["mismatches"]:
        say(f" {told(problem['what'])}", "\nmismatch:", "red")
        say(f"     {told(problem['cure'])}", "cure:", "green")
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


def main() -> None:
    _add_commands()
    gc.set_threshold(*_COLLECT)
    os.environ.setdefault(_COMPILED, "0")
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    wanted = os.environ.get(messages.VARIABLE)
    if wanted and not wanted.startswith(messages.LANGUAGES):
        languages = ", ".join(messages.LANGUAGES)
        error = ConfigError("GE1002", f"{messages.VARIABLE}: got {wanted!r}, allowed: {languages}", next=_UNSET)
        console(errors=True).print(escape.block(str(error)), markup=False, style="red", soft_wrap=True)
        raise SystemExit(2)
    try:
        if messages.language() == "en":
            app(prog_name="tair")
        else:
            from tair_debug.help_texts import carry_out, translated

            carry_out(translated(typer.main.get_command(app)), "tair")
    finally:
        gc.freeze()  # a process that ends would look through all of it several times: a fifth of a command's time


if __name__ == "__main__":
    main()
