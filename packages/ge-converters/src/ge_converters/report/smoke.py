"""Run every declared call form on an engine and compare it with eager: ``python -m ge_converters.smoke [prefix]``.

The same cases parametrise the tests; a declaration that was never run proves nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from ge_converters.base import torch_compat
from ge_converters.base.errors import LoweringError
from ge_converters.base.support import Support
from ge_converters.conversion import finish
from ge_converters.lowering import Lowered, aliasing, lower
from ge_converters.registry import REGISTRY, Entry, Registry
from ge_graph.errors import GeError
from ge_graph.verify import verify

ENGINE_ENTRY_POINTS: Final = "ge_runtime.engines"


@dataclass(frozen=True, slots=True)
class DeclaredForm:
    """One declared form of one converter.

    Attributes:
        entry: The converter.
        support: The form.
        index: Its position among the converter's declarations.
    """

    entry: Entry
    support: Support
    index: int

    @property
    def name(self) -> str:
        """``aten.add.Tensor[2]``."""
        return f"{self.entry.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class FormOutcome:
    """What came of a case.

    ``status`` is ``ok``, ``refused`` (by converter, verifier or engine), ``wrong``, ``error``, or ``untraced``: torch
    itself cannot trace the op with symbolic sizes, so no such graph ever reaches a converter.
    """

    name: str
    form: str
    status: str
    detail: str
    ms: float


def cases(prefix: str = "", registry: Registry | None = None) -> Iterator[DeclaredForm]:
    """All declared cases whose op name starts with ``prefix`` (``aten.add`` or ``torch.ops.aten.add``), sorted."""
    for entry in (registry or REGISTRY).entries():
        if entry.name.startswith(prefix.removeprefix("torch.ops.")):
            for index, support in enumerate(entry.supports):
                yield DeclaredForm(entry, support, index)


def load_module(name: str) -> None:
    """Import a module that registers converters: a module name, or the path of a Python file.

    Errors: LoweringError GE2014 if it cannot be imported.
    """
    path = Path(name)
    try:
        if path.suffix != ".py":
            importlib.import_module(name)
            return
        sys.path.insert(0, str(path.resolve().parent))  # where its own imports look, as when Python runs the file
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except Exception as e:
        raise LoweringError(
            "GE2014",
            f"{name} cannot be imported: {type(e).__name__}: {e}",
            next="give a module name, or the path of a .py file, that registers and declares converters",
        ) from e


def find_engine(name: str) -> Any:
    """The engine of that name, from the installed packages.

    Errors: LoweringError GE2013 if no installed package offers it or it cannot serve here.
    """
    points = {p.name: p for p in importlib.metadata.entry_points(group=ENGINE_ENTRY_POINTS)}
    if name not in points:
        raise LoweringError(
            "GE2013",
            f"no engine '{name}' is installed; there are: {', '.join(sorted(points)) or 'none'}",
            next="pip install 'ge-runtime-native[cpu]'",
        )
    engine = points[name].load()()
    capability = engine.probe()
    if not capability.available:
        raise LoweringError("GE2013", f"engine '{name}' cannot serve here: {capability.reason}")
    return engine


def trace(
    case: DeclaredForm, args: Sequence[Any], kwargs: dict[str, Any], *, dynamic: bool = False
) -> torch.fx.GraphModule:
    """The one-node FX graph of a case; tensors are its inputs, everything else is baked in.

    It is put together by hand: the op must reach its converter whole, and this is ten times faster than make_fx.

    Args:
        case: What to trace.
        args: Real arguments.
        kwargs: Real keyword arguments.
        dynamic: Symbolic sizes instead of fixed ones.
    """
    graph = torch.fx.Graph()
    mode = torch_compat.fake_mode(dynamic=dynamic, only=case.entry.target)

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"arg{len(graph.nodes)}")
        if dynamic:
            node.meta["val"] = mode.from_tensor(value, source=torch_compat.input_source(node.name))
        else:
            with mode:
                node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return node

    placed: Any = pytree.tree_map(place, (tuple(args), kwargs))
    fakes = torch.fx.node.map_arg(placed, lambda n: n.meta["val"])
    target: Any = case.entry.target
    with torch_compat.under(mode), torch.no_grad():
        value = target(*fakes[0], **fakes[1])
    call = graph.call_function(target, *placed)
    call.meta["val"] = value
    graph.output(chosen(parts_of(graph, call, value), case.support))
    return torch.fx.GraphModule({}, graph)


def parts_of(graph: torch.fx.Graph, node: torch.fx.Node, value: Any) -> Any:
    """The node, or one getitem for each of its results."""
    if not isinstance(value, (list, tuple)):
        return node
    parts = []
    for i, v in enumerate(value):
        part = graph.call_function(operator.getitem, (node, i))
        part.meta["val"] = v
        parts.append(parts_of(graph, part, v))
    return tuple(parts)


def chosen(result: Any, support: Support) -> Any:
    """The outputs that a form asks for."""
    return result if support.outputs is None else tuple(result[i] for i in support.outputs)


def execute(lowered: Lowered, engine: Any, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Verify, finish, compile and run a lowered graph; its outputs as the FX graph returns them."""
    verify(lowered.graph)  # what converters made, before a pass can repair it
    executable = engine.compile(finish(lowered).graph, {})
    results = executable.run([tensors[b.fx_index] for b in lowered.inputs])
    for mutation in lowered.mutations:
        tensors[mutation.fx_index].copy_(results[mutation.ge_index])

    def value(binding: aliasing.OutputBinding) -> Any:
        if isinstance(binding, aliasing.Result):
            return results[binding.ge_index]
        if isinstance(binding, aliasing.ScalarResult):
            return binding.pytype(results[binding.ge_index].item())
        if isinstance(binding, aliasing.InputAlias):
            return tensors[binding.fx_index]
        return binding.value if isinstance(binding, aliasing.Constant) else None

    return [value(b) for b in lowered.outputs]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch logs a traceback for every meta function that raises; the outcome has the message."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def run(case: DeclaredForm, engine: Any, registry: Registry | None = None, *, dynamic: bool = False) -> FormOutcome:
    """Run one case and compare with eager."""
    start = time.perf_counter()

    def outcome(status: str, detail: str = "") -> FormOutcome:
        return FormOutcome(case.name, repr(case.support), status, detail, (time.perf_counter() - start) * 1e3)

    try:
        args, kwargs = case.support.make()
        same_args, same_kwargs = case.support.make()
        expected = pytree.tree_leaves(chosen(case.entry.target(*args, **kwargs), case.support))
        with _quiet():
            try:
                gm = trace(case, same_args, same_kwargs, dynamic=dynamic)
            except Exception as e:
                if dynamic:
                    return outcome("untraced", f"{type(e).__name__}: {e}")
                raise
        lowered = lower(gm, registry=registry)
        tensors = [v for v in pytree.tree_leaves((same_args, same_kwargs)) if isinstance(v, torch.Tensor)]
        got = execute(lowered, engine, tensors)
    except GeError as e:
        declared = dynamic and case.support.fixed and e.code == "GE2001"
        return outcome("ok" if declared else "refused", str(e))
    except Exception as e:  # noqa: BLE001  (whatever a form does wrong is the report)
        return outcome("error", f"{type(e).__name__}: {e}")
    if dynamic and case.support.fixed:
        return outcome("wrong", "declared for fixed sizes only, but served with symbolic ones")
    problem = difference(got, expected, case.support)
    return outcome("wrong" if problem else "ok", problem)


def difference(got: Sequence[Any], expected: Sequence[Any], support: Support) -> str:
    """What differs between two results, empty if nothing does."""
    if len(got) != len(expected):
        return f"{len(got)} outputs, eager has {len(expected)}"
    for i, (g, e) in enumerate(zip(got, expected)):
        if not isinstance(e, torch.Tensor):
            if g != e:
                return f"output {i}: {g!r}, eager has {e!r}"
            continue
        if g is None:
            return f"output {i} is missing"
        if g.dtype != e.dtype or g.shape != e.shape:
            return f"output {i}: {g.dtype} {list(g.shape)}, eager has {e.dtype} {list(e.shape)}"
        if support.check == "values":
            try:
                torch.testing.assert_close(g, e, rtol=support.rtol, atol=support.atol, equal_nan=True)
            except AssertionError as error:
                return f"output {i}: " + " ".join(str(error).split())
    return ""


def table(outcomes: Sequence[FormOutcome]) -> str:
    """The outcomes as plain text, failures with their details."""
    names = max((len(o.name) for o in outcomes), default=0)
    lines = []
    for o in outcomes:
        lines.append(f"{o.status:8}{o.name:{names}}  {o.form}".rstrip())
        if o.status != "ok":
            lines += [f"        {line}" for line in o.detail.splitlines()]
    counts = {s: sum(o.status == s for o in outcomes) for s in ("ok", "refused", "wrong", "error", "untraced")}
    lines.append(f"{len(outcomes)} cases: " + ", ".join(f"{n} {s}" for s, n in counts.items() if n or s == "ok"))
    return "\n".join(lines)


def _progress(done: int, total: int, name: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{total} {name[:60]:60}")
        if done == total:
            sys.stderr.write("\r" + " " * 80 + "\r")


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = sys.stdout.write) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ge_converters.smoke", description=__doc__.split("\n")[0])
    parser.add_argument("prefix", nargs="*", help="only ops whose name starts so: aten.add.Tensor")
    parser.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="module or .py file with converters of your own, imported first; may be repeated",
    )
    parser.add_argument("--engine", default="cpu", help="cpu (default) or cann")
    parser.add_argument("--dynamic", action="store_true", help="trace with symbolic sizes")
    parser.add_argument("--json", action="store_true", help="one JSON object a case instead of the table")
    options = parser.parse_args(argv)
    try:
        for module in options.modules:
            load_module(module)
        engine = find_engine(options.engine)
        selected = list({c.name: c for prefix in options.prefix or [""] for c in cases(prefix)}.values())
        idle = [p for p in options.prefix if next(cases(p), None) is None]
    except LoweringError as e:
        write(f"{e}\n")
        return 2
    if idle or not selected:
        write(f"no declared case of an op whose name starts with {', '.join(map(repr, idle)) or 'anything'}\n")
        return 2
    outcomes = []
    for i, case in enumerate(selected):
        _progress(i, len(selected), case.name)
        outcomes.append(run(case, engine, dynamic=options.dynamic))
    _progress(len(selected), len(selected), "")
    if options.json:
        write("".join(json.dumps(asdict(o)) + "\n" for o in outcomes))
    else:
        write(table(outcomes) + "\n")
    return 0 if all(o.status in ("ok", "untraced") for o in outcomes) else 1
