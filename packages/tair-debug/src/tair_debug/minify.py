"""The smallest program that still has a fault: a wrong number, a refused call, an error.

The ATen graph of a model that has the fault is cut down to few operators, the values around them become inputs, the
inputs random numbers of few elements. A change stays if the fault does: the same operator differs, the same call is
refused, the error has the same code. What is left is written as a file without anything of the user's: no names, no
source, and values only where the fault needs them and they are asked for. ``tair replay`` runs it.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import propagate_fakes, real_values
from ge_converters.base.torch_traces import failing_in_silence
from ge_converters.registry import REGISTRY
from ge_graph import escape
from ge_graph.command_line import told
from ge_graph.errors import ConfigError, on_purpose
from tair_debug import artefacts
from tair_debug import compare as work
from tair_debug.data_dump import as_numpy, write_npy
from tair_debug.fx_summary import problems, target_text
from tair_debug.measure import Tolerance
from tair_debug.models import Subject
from tair_debug.stepwise import Stepwise, Wanted
from tair_debug.terminal import Answer, Detail, reason, sentence
from tair_debug.tracing import run_with, traceable

if TYPE_CHECKING:
    from tair_debug.terminal import Part

OPTION: Final = "tair minify --output"
_REFUSED: Final = " cannot be converted: "
_LEVELS: Final = 8  # of producers, before the whole graph is tried
_SMALL: Final = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class CaseFault:
    """What is wrong with a program.

    Attributes:
        kind: ``wrong``, ``refused`` or ``error``.
        what: The operator that differs or is refused, or the error's code.
        said: For people.
        node: Name of the node that shows it, empty if none does.
    """

    kind: str
    what: str
    said: str = ""
    node: str = ""

    def same(self, other: CaseFault | None) -> bool:
        """Whether another program has this fault."""
        return other is not None and (self.kind, self.what) == (other.kind, other.what)


@dataclass
class FedGraph:
    """An ATen graph with the values of its inputs."""

    gm: torch.fx.GraphModule
    args: list[Any]

    @property
    def calls(self) -> list[torch.fx.Node]:
        """Operators, in their order."""
        return [n for n in self.gm.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]


@dataclass(repr=False)
class Minified(Answer):
    """What was found and what is left of it.

    Attributes:
        name: The model.
        fault: What is wrong; None if nothing is.
        program: The smallest program that has the fault.
        before: Number of operators of the graph that it was found in.
        valued: Inputs whose own values the fault needs.
        written: The file, and those with values.
    """

    name: str
    fault: CaseFault | None
    program: FedGraph | None = None
    before: int = 0
    valued: list[int] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there is no fault."""
        return self.fault is None

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        if self.fault is None or self.program is None:
            yield sentence(" has no fault: nothing to shrink", escape.line(self.name), "green")
            return
        left = told(f"{self.before} operators to {len(self.program.calls)}")
        yield sentence(f" {escape.line(_words(self.fault))}; {left}", f"{escape.line(self.name)}:", "red")
        if detail.quiet:
            return
        if self.valued and len(self.written) < 2:
            yield sentence("the fault needs the values of some inputs, which the file leaves out; --values keeps them")
        for path in self.written:
            yield sentence(f"written: {path}")
        if self.written:
            yield sentence(f"run it: tair replay {self.written[0]}")
        own = ", ".join(
            sorted({target_text(n.target) for n in self.program.calls if REGISTRY.layer(n.target) == "user"})
        )
        if own:
            yield sentence(
                f"the converters of {own} are yours, and no file holds them: tair replay --after FILE.py:FUNCTION "
                "calls what registers them first, such as the factory of the model"
            )

    def as_dict(self) -> dict[str, Any]:
        fault = self.fault and {"kind": self.fault.kind, "what": self.fault.what, "said": self.fault.said}
        return {
            "ok": self.ok,
            "fault": fault,
            "before": self.before,
            "operators": [] if self.program is None else [target_text(n.target) for n in self.program.calls],
            "needs_values": list(self.valued),
            "written": [str(p) for p in self.written],
        }

    def records(self) -> list[dict[str, Any]]:
        calls = [] if self.program is None else self.program.calls
        return [{"operator": target_text(n.target)} for n in calls]


def minify(
    subject: Subject,
    *,
    engine: Any = "cpu",
    tolerance: Tolerance = Tolerance(),
    backward: bool = False,
    dynamic: bool = False,
) -> Minified:
    """Shrink the first graph of a model that has a fault.

    Args:
        subject: The model with real inputs.
        engine: Engine that runs the GE graphs, or its name.
        tolerance: When a value counts as wrong.
        backward: The backward pass too.
        dynamic: Trace with symbolic sizes; the program that is left has fixed ones.

    Errors: ConfigError GE1047 if the model cannot be traced, GE1044 if there is no such engine.
    """
    runner = work.engine(engine) if isinstance(engine, str) else engine

    def fault_of(program: FedGraph) -> CaseFault | None:
        return _fault_of(program, runner, tolerance)

    for program in _graphs(subject, backward, dynamic):
        fault = fault_of(program)
        if fault is not None:
            with failing_in_silence():  # what does not fit when it is smaller is not tried further
                small = _shrunk(program, fault, fault_of)
                small, valued = _without_values(small, fault, fault_of)
                small = _narrowed(small, fault, fault_of)
            return Minified(subject.name, fault, small, len(program.calls), valued)
    return Minified(subject.name, None)


def _graphs(subject: Subject, backward: bool, dynamic: bool) -> list[FedGraph]:
    found: list[FedGraph] = []

    def keep(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with real_values():
                found.append(FedGraph(gm, [a.clone() if isinstance(a, torch.Tensor) else a for a in args]))
                return torch.fx.Interpreter(gm).run(*args)

        return run

    with traceable(subject):
        run_with(subject, keep, backward=backward, dynamic=dynamic)
    return found


# --- is it still there? ----------------------------------------------------------------------------------------------


def _fault_of(program: FedGraph, engine: Any, tolerance: Tolerance) -> CaseFault | None:
    """The fault of a program; of several the first."""
    refused = next(iter(problems(program.gm).items()), None)
    if refused is not None:
        node, reason = refused
        target = target_text(node.target)
        return CaseFault("refused", target, f"{target}{_REFUSED}{reason}", node.name)
    rows: list[work.ComparisonRow] = []
    try:
        pair = work.SideBySide(
            program.gm, "program", engine, tolerance, lambda row, got, expected: rows.append(row), total=rows.append
        )
        pair(*program.args)
    except Exception as error:  # noqa: BLE001 - an error of any kind is what is looked for
        ours = on_purpose(error)
        code = type(error).__name__ if ours is None else ours.code
        return CaseFault("error", code, escape.line(f"{code}: {ours.what if ours is not None else error}", 300))
    row = next((r for r in rows if r.wrong), None)
    if row is None:
        return None
    said = f"{row.target or 'a result'} differs from eager ({row.numbers()})"
    return CaseFault("wrong", row.target, said, row.fx)


def _words(fault: CaseFault) -> str:
    """A fault in the reader's language."""
    target, refused, why = fault.said.partition(_REFUSED)
    return told(f"{target}{_REFUSED}{reason(why)}") if refused else told(fault.said)


# --- fewer operators -------------------------------------------------------------------------------------------------


def _shrunk(program: FedGraph, fault: CaseFault, fault_of: Callable[[FedGraph], CaseFault | None]) -> FedGraph:
    """The fewest operators that have the fault; the values before them are inputs."""
    nodes = [n for n in program.gm.graph.nodes if n.op == "call_function"]
    chosen = _around(program, fault, fault_of) or nodes
    size = max(1, len(chosen) // 2)
    while True:
        kept = chosen
        for start in range(0, len(chosen), size):
            some = [n for n in kept if n not in set(chosen[start : start + size])]
            if some and fault.same(_fault_or_none(program, some, fault_of)):
                kept = some
        if size == 1 and len(kept) == len(chosen):
            return _part(program, chosen) or program
        chosen, size = kept, max(1, min(size // 2, len(kept) // 2))


def _around(
    program: FedGraph, fault: CaseFault, fault_of: Callable[[FedGraph], CaseFault | None]
) -> list[torch.fx.Node] | None:
    """The node that shows the fault with so many of its producers that the fault is there."""
    order = [n for n in program.gm.graph.nodes if n.op == "call_function"]
    chosen = {n for n in order if n.name == fault.node}
    for _ in range(_LEVELS if chosen else 0):
        some = [n for n in order if n in chosen]
        if fault.same(_fault_or_none(program, some, fault_of)):
            return some
        near = {a for n in chosen for a in n.all_input_nodes} | {u for n in chosen for u in n.users}
        chosen |= {n for n in near if n.op == "call_function"}
    return None


def _fault_or_none(
    program: FedGraph, nodes: Sequence[torch.fx.Node], fault_of: Callable[[FedGraph], CaseFault | None]
) -> CaseFault | None:
    part = _part(program, nodes)
    return None if part is None else fault_of(part)


def _part(program: FedGraph, nodes: Sequence[torch.fx.Node]) -> FedGraph | None:
    """Some nodes of a program as one of its own; None if that is no program."""
    chosen = dict.fromkeys(nodes)
    graph = torch.fx.Graph()
    given = list(dict.fromkeys(a for n in chosen for a in n.all_input_nodes if a not in chosen and not _is_graph(a)))
    new = {node: graph.placeholder(f"v{i}") for i, node in enumerate(given)}
    for node in chosen:
        for inner in node.all_input_nodes:
            if inner not in new and inner not in chosen:
                new[inner] = graph.node_copy(inner)
        new[node] = graph.node_copy(node, lambda n: new[n])
    results = [new[n] for n in chosen if not n.users or any(u not in chosen for u in n.users)]
    plain = [n for n in results if not isinstance(n.meta.get("val"), (tuple, list))]
    if not plain:
        return None
    graph.output(tuple(plain))
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    values = _values(program, given)
    return _with_metas(torch.fx.GraphModule(program.gm, graph), values)


def _is_graph(node: torch.fx.Node) -> bool:
    """Whether a node is the function of a branch or loop, which stays what it is."""
    return node.op == "get_attr" and "val" not in node.meta


def _values(program: FedGraph, wanted: Sequence[torch.fx.Node]) -> list[Any]:
    counts = Wanted()
    counts.values.update(wanted)
    run = Stepwise(program.gm, program.args, counts)
    state = torch.get_rng_state()
    with real_values(), torch.no_grad():
        order = {n: i for i, n in enumerate(program.gm.graph.nodes)}
        found = {n: run.take(n) for n in sorted(wanted, key=lambda n: order[n])}
    torch.set_rng_state(state)
    return [found[n].clone() if isinstance(found[n], torch.Tensor) else found[n] for n in wanted]


def _with_metas(gm: torch.fx.GraphModule, args: Sequence[Any]) -> FedGraph | None:
    """The program with the types of these inputs; None if they do not fit it."""
    try:
        with real_values():
            propagate_fakes(gm, args)
    except Exception:  # noqa: BLE001 - torch says in many ways that sizes do not fit
        return None
    return FedGraph(gm, list(args))


# --- other values, fewer elements ------------------------------------------------------------------------------------


def _without_values(
    program: FedGraph, fault: CaseFault, fault_of: Callable[[FedGraph], CaseFault | None]
) -> tuple[FedGraph, list[int]]:
    """The program with random numbers for inputs, and the positions of those whose own values the fault needs."""
    args = [_alike(a, i) for i, a in enumerate(program.args)]
    if fault.same(fault_of(FedGraph(program.gm, args))):
        return FedGraph(program.gm, args), []
    needed = []
    kept = list(program.args)
    for i, value in enumerate(args):
        tried = [*kept[:i], value, *kept[i + 1 :]]
        if isinstance(value, torch.Tensor) and not fault.same(fault_of(FedGraph(program.gm, tried))):
            needed.append(i)
        else:
            kept = tried
    return FedGraph(program.gm, kept), needed


def _alike(value: Any, seed: int) -> Any:
    """Random numbers in the place of a tensor: of its type, sizes and memory, whole ones of its range."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return made.copy_(_drawn(value.shape, value.dtype, _range(value), seed))


def _range(value: torch.Tensor) -> tuple[int, int]:
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or not value.numel():
        return 0, 1
    return int(value.min()), int(value.max()) + 1


def _drawn(shape: Sequence[int], dtype: torch.dtype, limits: tuple[int, int], seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=made) < 0.5
    if dtype.is_complex:
        return torch.randn(tuple(shape), generator=made, dtype=dtype)
    if dtype.is_floating_point:
        return torch.randn(tuple(shape), generator=made).to(dtype)
    return torch.randint(*limits, tuple(shape), generator=made).to(dtype)


def _narrowed(program: FedGraph, fault: CaseFault, fault_of: Callable[[FedGraph], CaseFault | None]) -> FedGraph:
    """The program with smaller sizes: one number at a time, wherever it stands in sizes and arguments."""
    tensors = [a for a in program.args if isinstance(a, torch.Tensor)]
    for size in sorted({d for a in tensors for d in a.shape if d > 1}, reverse=True):
        for less in (*(n for n in _SMALL if n < size), *((size // 2,) if size // 2 > _SMALL[-1] else ())):
            tried = _resized(program, size, less)
            if tried is not None and fault.same(fault_of(tried)):
                program = tried
                break
    return program


def _resized(program: FedGraph, size: int, less: int) -> FedGraph | None:
    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}

    def other(value: Any) -> Any:
        return less if type(value) is int and value == size else value

    for node in program.gm.graph.nodes:
        new[node] = graph.node_copy(node, lambda n: new[n])
        if node.op == "call_function":
            new[node].args = torch.fx.node.map_aggregate(new[node].args, other)
            new[node].kwargs = torch.fx.node.map_aggregate(new[node].kwargs, other)
    args = [_cut(a, size, less) if isinstance(a, torch.Tensor) else a for a in program.args]
    return _with_metas(torch.fx.GraphModule(program.gm, graph), args)


def _cut(value: torch.Tensor, size: int, less: int) -> torch.Tensor:
    part = value[tuple(slice(less) if d == size else slice(None) for d in value.shape)]
    return part.clone() if value.is_contiguous() else part


# --- the file --------------------------------------------------------------------------------------------------------


def write(result: Minified, folder: str | os.PathLike[str], *, values: bool = False) -> None:
    """Write ``minified_<20 digits>.py``; with ``values`` also an npy file for each input whose values are needed.

    Errors: ConfigError GE1041 naming the path, GE1059 for a program with branches or loops, which has no such form.
    """
    if result.program is None or result.fault is None:
        return
    place = artefacts.folder(folder, OPTION)
    stem = f"minified_{artefacts.stamp()}"
    files: dict[int, str] = {}
    for i in result.valued if values else ():
        array = as_numpy(result.program.args[i])
        if array is not None:
            files[i] = f"{stem}.{i}.npy"
            write_npy(os.fspath(place / files[i]), array, OPTION)
    artefacts.write_text(place / f"{stem}.py", text_of(result, files), OPTION)
    result.written = [place / f"{stem}.py", *(place / name for name in files.values())]


def text_of(result: Minified, files: Mapping[int, str] = {}) -> str:
    """The file: a function of operators of torch by their full names, and ``make``, which gives it with its inputs."""
    program, fault = result.program, result.fault
    if program is None or fault is None:
        return ""
    names = {n: f"v{i}" for i, n in enumerate(n for n in program.gm.graph.nodes if n.op != "output")}
    given = ", ".join(names[n] for n in program.gm.graph.nodes if n.op == "placeholder")
    body = [f"def program({given}):", *(f"    {line}" for line in _lines(program.gm.graph, names))]
    inputs = [f"        {_input(value, i, files.get(i))}," for i, value in enumerate(program.args)]
    made = "\n".join(inputs)
    helpers = "".join(text for name, text in _HELPERS.items() if f"{name}(" in made)
    make = ["def make():", f"{helpers}    return program, (", *inputs, "    )"]
    used = "\n".join((*body, *make))
    imports = "".join(text for name, text in _IMPORTS.items() if f"{name}." in used)
    said = escape.line(fault.said.replace("\\", "/").replace('"', "'"), 300)
    head = f'"""{said}.\n\nWritten by tair minify; `tair replay FILE` runs it.\n"""\n\n{imports}import torch\n'
    return "\n".join((head, "", *body, "", "", *make)) + "\n"


_IMPORTS: Final = {
    "operator": "import operator\n",
    "Path(__file__)": "from pathlib import Path\n\n",
    "np": "import numpy as np\n",
}
_HELPERS: Final = {
    "drawn": (
        "    def drawn(seed, *sizes):\n"
        "        return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))\n\n"
    ),
    "whole": (
        "    def whole(seed, low, high, *sizes):\n"
        "        return torch.randint(low, high, sizes, generator=torch.Generator().manual_seed(seed))\n\n"
    ),
}


def _lines(graph: torch.fx.Graph, names: Mapping[torch.fx.Node, str]) -> Iterator[str]:
    for node in graph.nodes:
        if node.op == "call_function":
            args = [_code(a, names) for a in node.args]
            args += [f"{_name(k)}={_code(v, names)}" for k, v in node.kwargs.items()]
            yield f"{names[node]} = {_called(node.target)}({', '.join(args)})"
        elif node.op == "output":
            yield f"return {_code(node.args[0], names)}"
        elif node.op != "placeholder":
            raise _no_form(str(node.op))


def _no_form(what: str) -> ConfigError:
    return ConfigError(
        "GE1059",
        f"the smallest program holds {escape.line(what, 200)}, which a file of plain calls cannot say",
        next="use the report on the screen or --json; give a smaller part of the model to tair minify",
    )


def _called(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        space, _, name = target._schema.name.partition("::")
        parts = [*space.split("."), name, target._overloadname]
        return f"torch.ops.{'.'.join(map(_name, parts))}"
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return f"operator.{_name(name)}"
    raise _no_form(target_text(target))


def _name(text: str) -> str:
    if not text.isidentifier():
        raise _no_form(text)
    return text


def _code(value: Any, names: Mapping[torch.fx.Node, str]) -> str:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_code(v, names) for v in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if value is None or isinstance(value, (bool, int, complex, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return ".".join(map(_name, str(value).split(".")))
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    raise _no_form(type(value).__name__)


def _input(value: Any, position: int, file: str | None) -> str:
    if not isinstance(value, torch.Tensor):
        return _code(value, {})
    kind = _code(value.dtype, {})
    if file is not None:
        made = f"torch.from_numpy(np.load(Path(__file__).parent / {file!r})).to({kind})"
    elif value.dtype == torch.bool:
        made = f"whole({', '.join(map(str, (position, 0, 2, *value.shape)))}).to({kind})"
    elif value.is_floating_point() or value.is_complex():
        made = f"drawn({', '.join(map(str, (position, *value.shape)))}).to({kind})"
    else:
        made = f"whole({', '.join(map(str, (position, *_range(value), *value.shape)))}).to({kind})"
    if value.is_contiguous():
        return made
    sizes, strides = tuple(value.shape), tuple(value.stride())
    return f"torch.empty_strided({sizes}, {strides}, dtype={kind}).copy_({made})"
