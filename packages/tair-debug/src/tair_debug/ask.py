"""The commands as functions: of a model that exists, for notebooks and scripts, and of one that a command line names.

Each returns an object that prints as the command does, shows as HTML in a notebook, and has ``ok``, ``as_dict()`` and
``to_pandas()``. Except by ``compare``, nothing is computed: the model is traced as a copy without data.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ge_graph.errors import on_purpose
from tair_debug import cut, fx_summary, models, tracing
from tair_debug.measure import Tolerance
from tair_debug.refused import RefusedCall

if TYPE_CHECKING:
    from ge_graph import Graph
    from ge_graph.cost import MemoryAnalysis
    from ge_graph.kernels import Oracle
    from tair_debug.beside import Beside
    from tair_debug.check import Checks
    from tair_debug.compare import Comparison
    from tair_debug.digits import Digits
    from tair_debug.graph_page import Page
    from tair_debug.models import Subject
    from tair_debug.plan_request import Plans
    from tair_debug.summary_forms import Summary


def summary(
    model: Callable[..., Any],
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Summary:
    """Which operators of a model have a converter, with reasons and source lines, and where its graph breaks.

    Args:
        model: A module or function.
        *inputs: Its positional inputs.
        kwargs: Its inputs by keyword.
        config: The CompilerConfig to compile with.
        backward: The backward pass too, of the sum of all results.
        dynamic: Trace with symbolic sizes.

    Errors: ConfigError GE1047 if the model cannot be traced.
    """
    return summary_of(models.given(model, inputs, kwargs, config=config), backward=backward, dynamic=dynamic)


def check(
    model: Callable[..., Any],
    *inputs: Any,
    soc: str | Sequence[str] = (),
    cann: str | os.PathLike[str] | None = None,
    strict: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Checks:
    """Which operators of a model have a kernel on a chip, and on which unit.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``summary`` has them.
        soc: A chip such as ``ascend910b``, or several; by default all known, with a line each.
        cann: Folder of CANN or a file of facts; by default ``ASCEND_HOME_PATH``, else built-in facts.
        strict: Whether what is not proven counts as bad.

    Errors: ConfigError GE1047 if the model cannot be traced; the errors of ``ge_graph.kernels.oracle``.
    """
    subject = models.given(model, inputs, kwargs, config=config)
    chips = (soc,) if isinstance(soc, str) else tuple(soc)
    return check_of(subject, soc=chips, cann=cann, strict=strict, backward=backward, dynamic=dynamic)


def compare(
    model: Callable[..., Any],
    *inputs: Any,
    rtol: float | None = None,
    atol: float | None = None,
    engine: str = "cpu",
    isolate: bool = True,
    output: str | os.PathLike[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Comparison:
    """Find the first operator whose numbers leave tolerance, with its FX node and source line; runs the model.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``summary`` has them.
        rtol, atol: Relative and absolute tolerance; by default those of the element type.
        engine: Engine that runs the GE graphs.
        isolate: Give each operator eager's inputs, so that a row shows its own fault.
        output: Folder for the first wrong pair.

    Errors: ConfigError GE1047 if the model cannot be traced, GE1044 if there is no such engine.
    """
    subject = models.given(model, inputs, kwargs, fake=False, config=config)
    tolerance = Tolerance(rtol, atol)
    return compare_of(subject, tolerance, engine, backward=backward, dynamic=dynamic, isolate=isolate, output=output)


def digits(
    model: Callable[..., Any],
    *inputs: Any,
    numerics: str,
    rtol: float | None = None,
    engine: str = "cpu",
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Digits:
    """Which operators cost the digits where a chip rounds; runs the model.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``summary`` has them; options of precision in ``config``
            say what rounds.
        numerics: The chip, as ``config.numerics`` takes it: ``ascend910b``.
        rtol: How far results may move; by default what their types lose over a deep network.
        engine: Engine that runs the GE graphs.

    Errors: ConfigError GE1047 if the model cannot be traced, GE1044 if there is no such engine or it does not round.
    """
    subject = models.given(model, inputs, kwargs, fake=False, config=config)
    return digits_of(subject, numerics, engine=engine, rtol=rtol, backward=backward, dynamic=dynamic)


def plan(
    model: Callable[..., Any],
    *inputs: Any,
    soc: str = "ascend910b",
    sizes: Mapping[str, int | Sequence[int]] = {},
    by: str = "operator",
    calibrate: str | os.PathLike[str] | None = None,
    compare: Sequence[str] = (),
    aicore_num: str = "",
    memory_limit: str = "",
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Plans:
    """Will it fit on a chip, how fast at best, where is it slow; nothing is computed.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``summary`` has them; the model may be what
            ``torch.compile`` made, of a module with the options of its backend.
        soc: A chip such as ``Ascend910B3``, or a family.
        sizes: Symbolic size to its value, or to several (gears); by default those of the inputs.
        by: What tables add up: ``operator``, ``module``, ``line`` or ``node``.
        calibrate: A table of measured times, such as ``op_summary.csv``.
        compare: Plans beside this one, each with one thing changed: ``soc=ascend950``, ``s0=8192``.
        aicore_num: Limit of cube and vector cores, ``12|24``.
        memory_limit: ``ok`` is false if more is needed: ``64GiB``.

    Errors: ConfigError GE1047 if the model cannot be traced, GE1049 for a value that is not understood; GraphError
    GE3073 for a chip without figures.
    """
    from tair_debug import plan_request as request
    from tair_debug.options import Asked

    values = {name: (size,) if isinstance(size, int) else tuple(size) for name, size in sizes.items()}
    first = request.Request(
        models.given(model, inputs, kwargs, config=config),
        Asked(backward=backward, dynamic=dynamic),
        soc,
        values,
        by,
        None if calibrate is None else Path(calibrate),
        aicore_num,
    )
    limit = request.size_of(memory_limit) if memory_limit else None
    return request.Plans(request.made([first, *(first.changed(text) for text in compare)]), by, limit)


def cost_analysis(
    model: Callable[..., Any],
    *inputs: Any,
    sizes: Mapping[str, int] = {},
    soc: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> dict[str, float]:
    """Operations and bytes of a model, or of what ``torch.compile`` made of it, under the names that JAX gives them.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``plan`` has them.
        sizes: Symbolic size to its value; by default those of the inputs.
        soc: A chip, to have ``optimal_seconds`` too: a bound by published peaks, in the forms of that chip.

    Returns:
        ``flops``, ``bytes accessed``, ``unknown operators``, summed over the graphs.

    Errors: ConfigError GE1047 if the model cannot be traced; GraphError GE3073 for a chip without figures.
    """
    from tair_debug import plan_request as request

    subject = models.given(model, inputs, kwargs, config=config)
    return request.cost_analysis(*request.graphs_of(subject, sizes, soc, backward=backward, dynamic=dynamic), soc)


def memory_analysis(
    model: Callable[..., Any],
    *inputs: Any,
    sizes: Mapping[str, int] = {},
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> MemoryAnalysis:
    """Memory of a model, or of what ``torch.compile`` made of it, under the names that JAX gives it.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``plan`` has them.
        sizes: Symbolic size to its value; by default those of the inputs.

    Returns:
        Bytes of the graph that needs most.

    Errors: ConfigError GE1047 if the model cannot be traced.
    """
    from tair_debug import plan_request as request

    subject = models.given(model, inputs, kwargs, config=config)
    return request.memory_analysis(*request.graphs_of(subject, sizes, None, backward=backward, dynamic=dynamic))


def view(
    model: Callable[..., Any],
    *inputs: Any,
    soc: str | None = None,
    errors: Comparison | None = None,
    kwargs: Mapping[str, Any] | None = None,
    config: Any = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Page:
    """Interactive pages of the GE graphs of a model: shown in a notebook, written by ``.save(path)``.

    Args:
        model, *inputs, kwargs, config, backward, dynamic: As ``summary`` has them.
        soc: A chip such as ``Ascend910B3``, to colour nodes by unit, time and bytes, in the forms of that chip.
        errors: What ``compare`` found for the same model, to colour nodes by their error.

    Calls that cannot be converted are marked: a node with the name of the ATen operator stands for each.

    Errors: ConfigError GE1047 if the model cannot be traced; GraphError GE3073 for a chip without figures.
    """
    page = view_of(models.given(model, inputs, kwargs, config=config), soc=soc, backward=backward, dynamic=dynamic)
    if errors is not None:
        page.colour(errors.errors())
    return page


# --- of a subject ----------------------------------------------------------------------------------------------------


def summary_of(subject: Subject, *, backward: bool = False, dynamic: bool = False, fake: bool = True) -> Summary:
    """As ``summary``."""
    from tair_debug.summary_forms import Summary

    with tracing.stops() as stops:
        graphs = tracing.capture(subject, backward=backward, dynamic=dynamic, fake=fake)
    return Summary(subject.name, fx_summary.summarize(*(g.gm for g in graphs)), len(graphs), stops)


def check_of(
    subject: Subject | Graph,
    *,
    soc: Sequence[str] = (),
    cann: str | os.PathLike[str] | None = None,
    strict: bool = False,
    backward: bool = False,
    dynamic: bool = False,
    fake: bool = True,
) -> Checks:
    """As ``check``; a graph is checked as it is."""
    from ge_graph import kernels
    from tair_debug import check as work

    place = None if cann is None else Path(cann)
    facts = kernels.facts(place)
    oracles = [kernels.oracle(name, place) for name in soc or facts.socs()]
    refused: list[RefusedCall] = []
    with tracing.stops() as stops:
        graphs_for, count = _graphs_of(subject, refused, backward, dynamic, fake)
    reports = []
    for oracle in oracles:
        formed = graphs_for(oracle)
        reports.append(work.examine(formed.graphs, oracle, formed.choices))
    return work.Checks(facts.origin, reports, bool(soc), strict, refused, graphs=count, stops=stops)


def _graphs_of(
    subject: Subject | Graph, refused: list[RefusedCall], backward: bool, dynamic: bool, fake: bool
) -> tuple[Callable[[Oracle | None], tracing.Formed], int]:
    """Chip to the finished GE graphs of a model without its refused calls, or to a graph, which no chip changes.

    And how many graphs they are.
    """
    if not isinstance(subject, models.Subject):
        whole = tracing.Formed([subject])
        return lambda oracle: whole, 1
    captured = tracing.capture(subject, backward=backward, dynamic=dynamic, fake=fake)
    parts = [cut.cut(g.gm, keep=True) for g in captured]
    refused += [call for part in parts for call in part.refused]
    return tracing.for_chips([part.gm for part in parts]), len(parts)


def compare_of(
    subject: Subject,
    tolerance: Tolerance = Tolerance(),
    engine: str = "cpu",
    *,
    backward: bool = False,
    dynamic: bool = False,
    isolate: bool = True,
    output: str | os.PathLike[str] | None = None,
) -> Comparison:
    """As ``compare``."""
    import torch

    from tair_debug import compare as work

    layered = None if backward or dynamic else work.layers_of(subject)
    result = work.compare_model(
        subject,
        engine=work.engine(engine),
        tolerance=tolerance,
        backward=backward,
        dynamic=dynamic,
        isolate=isolate,
        output=output,
        layered=layered,
    )
    backend = tracing.of_compiler("backend")
    whole = "the compiled model as a whole"
    if backend is not None and result.settled:
        result.notes.append(f"{whole}, which may rightly differ ({'; '.join(result.settled)})")
    elif backend is not None:
        if layered is not None and subject.config is None and not result.refused:
            rows = work.compare_layered(subject, layered, backend().compiler(), tolerance)
            if rows is not None:
                result.totals += rows
                return result
        torch.compiler.reset()
        compiled = torch.compile(subject.model, backend=backend(compiler_config=subject.config), dynamic=dynamic)
        try:
            result.totals += work.compare_whole(subject, compiled, tolerance)
        except Exception as error:
            if not result.refused or on_purpose(error) is None:  # by config.fallback refused calls run eagerly
                raise
            result.notes.append(f"{whole}: the refused calls stop it; config.fallback says what else becomes of them")
    return result


def digits_of(
    subject: Subject,
    chip: str,
    *,
    engine: str = "cpu",
    rtol: float | None = None,
    backward: bool = False,
    dynamic: bool = False,
) -> Digits:
    """As ``digits``."""
    from tair_debug.compare import engine as engine_named
    from tair_debug.digits import weigh_model

    options = {} if subject.config is None else subject.config.ge_options()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = weigh_model(
            subject,
            engine=engine_named(engine),
            chip=chip,
            options=options,
            backward=backward,
            dynamic=dynamic,
            rtol=rtol,
        )
    own = [text for w in said if (text := str(w.message)).startswith("torchair: ")]
    found.notes = list(dict.fromkeys(text.removeprefix("torchair: ") for text in own))
    return found


def view_of(
    source: Subject | Path,
    *,
    soc: str | None = None,
    backward: bool = False,
    dynamic: bool = False,
    fake: bool = True,
) -> Page:
    """As ``view``; a file with a graph is shown as it is."""
    from tair_debug.graph_page import Page

    if soc is not None:
        from tair_debug import plan
        from tair_debug import plan_request as request
        from tair_debug.options import Asked

        asked = Asked(backward=backward, dynamic=dynamic, real=not fake)
        subject = os.fspath(source) if isinstance(source, Path) else source
        (made,) = request.made([request.Request(subject, asked, soc)])
        figures = {node: told for each in made.graphs for node, told in plan.node_data(each).items()}
        return Page([each.graph for each in made.graphs], figures, refused=made.rejoin())
    if isinstance(source, Path):
        from tair_debug.graph_file import read_graph

        return Page([read_graph(source)])
    graphs = tracing.capture(source, backward=backward, dynamic=dynamic, fake=fake)
    shown, refused = cut.shown([g.gm for g in graphs], tracing.converted)
    return Page(shown, refused=refused)


def beside_of(first: Page, second: Page, names: tuple[str, str]) -> Beside:
    """The graphs of two pages beside each other, by their order."""
    from tair_debug.beside import beside

    refused = {**first.refused, **second.refused}
    return beside(names, first.graphs, second.graphs, {**first.figures, **second.figures}, refused)


def passes_of(subject: Subject, *, backward: bool = False, dynamic: bool = False, fake: bool = True) -> Beside:
    """The GE graphs of a model as converted, beside the same after the GE passes."""
    from tair_debug.beside import beside
    from tair_debug.graph_page import with_refused

    graphs = tracing.capture(subject, backward=backward, dynamic=dynamic, fake=fake)
    gms = [g.gm for g in graphs]
    (before, first), (after, last) = (cut.shown(gms, stage) for stage in (tracing.as_converted, tracing.converted))
    figures = with_refused({}, {**first, **last})
    return beside(("as converted", "after the GE passes"), before, after, figures, last)
