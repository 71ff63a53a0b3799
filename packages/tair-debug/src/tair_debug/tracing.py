"""From a Python file to ATen graphs: what the commands work on.

``FILE.py:factory`` names a function without required arguments that returns a model, or a model with its inputs:
``model``, ``(model, args)``, ``(model, args, kwargs)``, or an object with ``model`` and ``inputs``. With fake tensors
nothing is allocated and nothing is computed: the factory runs, but its tensors have no data.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import (
    boxed,
    breaks_of_graphs,
    convertible,
    fake_mode,
    real_values,
    run_aot,
    symbols_of_fake_inputs,
)
from ge_graph import Graph, escape
from ge_graph.errors import ConfigError, GeError, on_purpose

if TYPE_CHECKING:
    from ge_graph.kernels import Oracle

COMPILER: Final = "tair_debug.compiler"
_INPUT: Final = re.compile(r"\s*([a-z_0-9]+)\(([\d,\s]*)\)\s*")
_NO_INPUT: Final = "missing"  # Python's word for arguments that nobody gave
_FRAMES: Final = 8
_JUMP: Final = "generic_jump"  # all that dynamo says of an ``if`` on a tensor
_RESUMED: Final = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")  # what dynamo calls the rest of a function
Compiled = Callable[[torch.fx.GraphModule, str], Callable[..., Any]]


@dataclass
class Subject:
    """A model and how to call it.

    Attributes:
        model: The module or function.
        args: Positional inputs.
        kwargs: Inputs by keyword.
        name: What rows and files call it.
        config: The CompilerConfig whose FX passes the graphs get; None means all defaults.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = "model"
    config: Any = None


@dataclass(frozen=True, slots=True)
class Captured:
    """One ATen graph of a model."""

    gm: torch.fx.GraphModule
    phase: str


def load(target: str, inputs: Sequence[str] = (), *, fake: bool = True) -> Subject:
    """Make the model that a command line names.

    Args:
        target: ``FILE.py:factory``.
        inputs: ``float32(4, 8)`` and the like, in place of the inputs that the factory gives.
        fake: Run the factory with tensors that have no data.

    Errors: ConfigError GE1043 if the file, the function or what it returns does not do.
    """
    factory = function_of(target)
    mode = fake_mode(beside_real=True) if fake else None
    with contextlib.ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(convertible(mode))
        made = _made(target, factory, "; try it with real tensors (--real)" if fake else "")
        subject = _subject(target, made)
        if inputs:
            subject.args = tuple(parse_input(text) for text in inputs)
        if fake:
            _leave_meta(subject)
    return subject


def _leave_meta(subject: Subject) -> None:
    """Tensors that the factory made on the meta device go to where the others are: fake ones have no data either."""

    def placed(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value, device="cpu") if value.is_meta else value

    if isinstance(subject.model, torch.nn.Module):
        model = subject.model
        if any(t.is_meta for t in (*model.parameters(), *model.buffers())):
            model._apply(placed)
    move = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, placed)
    subject.args, subject.kwargs = move((subject.args, subject.kwargs))


def made_by(target: str) -> Any:
    """What the function that a command line names returns.

    Errors: ConfigError GE1043 if there is no such function or it raises.
    """
    return _made(target, function_of(target))


def _made(target: str, factory: Callable[[], Any], advice: str = "") -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise _bad(target, f"the factory raised {_said(error)}{advice}", _trace(error)) from error


def _said(error: BaseException) -> str:
    return escape.line(f"{type(error).__name__}: {error}", 500)


def _trace(error: BaseException) -> str:
    """The lines that led to an exception, outermost first, without ours and without the middle of a long way."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    shown = [escape.line(f"{f.filename}:{f.lineno} in {f.name}, {f.line}", 300) for f in frames]
    if len(shown) > _FRAMES:
        shown[_FRAMES // 2 : -_FRAMES // 2] = [f"... {len(shown) - _FRAMES} more"]
    return "\n     ".join(shown)


def _bad(target: str, what: str, where: str = "") -> ConfigError:
    give = "give FILE.py:factory, a function that returns a model or (model, inputs)"
    return ConfigError(
        "GE1043", f"{escape.line(target, 500)}: {what}", where=where, next="repair the factory" if where else give
    )


def function_of(target: str) -> Callable[..., Any]:
    """The function that a command line names, ``FILE.py:function``.

    Errors: ConfigError GE1043 if there is none.
    """
    file, _, name = target.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier() or path.suffix != ".py":
        raise _bad(target, "not of the form FILE.py:factory")
    try:
        missing = not path.is_file()
    except (OSError, ValueError):  # no name of a file at all
        missing = True
    if missing:
        raise _bad(target, f"{escape.line(os.fspath(path), 500)} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise _bad(target, f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _bad(target, f"{path} raised {_said(error)}", _trace(error)) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise _bad(target, f"{path} has no function {name!r}; it has {', '.join(functions) or 'none'}")
    return factory  # type: ignore[no-any-return]


def _subject(target: str, made: Any) -> Subject:
    name = target.rpartition(":")[2]
    if hasattr(made, "model") and hasattr(made, "inputs"):
        made = (made.model, made.inputs)
    if not isinstance(made, (tuple, list)):
        made = (made,)
    if not made or len(made) > 3 or not callable(made[0]):
        raise _bad(
            target, f"the factory returned {escape.line(reprlib.repr(made), 200)}, not a model or (model, args, kwargs)"
        )
    model: Callable[..., Any] = made[0]
    args: Any = made[1] if len(made) > 1 else ()
    kwargs: Any = made[2] if len(made) > 2 else {}
    if isinstance(args, Mapping):
        args, kwargs = (), args
    args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
    return Subject(model.eval() if isinstance(model, torch.nn.Module) else model, args, dict(kwargs), name)


def parse_input(text: str) -> torch.Tensor:
    """A tensor from ``float32(4, 8)``: normal numbers, or zeros for integers and bools.

    Errors: ConfigError GE1043 for another form.
    """
    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match[1], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise _bad(text, "an input is written dtype(sizes), such as float32(4, 8)")
    try:
        sizes = [int(d) for d in match[2].split(",") if d.strip()]
        return torch.randn(sizes).to(dtype) if dtype.is_floating_point else torch.zeros(sizes, dtype=dtype)
    except (RuntimeError, ValueError, TypeError) as error:  # no such type of numbers here, or too many of them
        raise _bad(text, f"this input cannot be made: {_said(error)}") from error


def run_with(subject: Subject, compiled: Compiled, *, backward: bool = False, dynamic: bool = False) -> Any:
    """Trace a model to ATen and run it, each graph through what ``compiled`` makes of it.

    The graphs have been through the FX passes that a compilation runs, if torchair is installed.

    Args:
        subject: The model.
        compiled: Gets a graph and its phase, returns what to call with the graph's inputs.
        backward: Also run the backward pass of the sum of all floating point results.
        dynamic: Trace with symbolic sizes.

    Returns:
        What the model returns.
    """
    from ge_converters.decompose.table import decomposition_table
    from ge_converters.decompose.whole import KeepWhole

    prepare = of_compiler("prepare")

    def compiler(phase: str) -> Any:
        def compile_one(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            if prepare is not None:
                with real_values():  # constants of the graph are real, whatever mode the model was made in
                    prepare(gm, example_inputs, phase, subject.config)
            call = compiled(gm, phase)
            return boxed(lambda args: call(*args))

        return compile_one

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return run_aot(
            gm, example_inputs, forward=compiler("forward"), backward=compiler("backward"),
            inference=compiler("forward"), decompositions=decomposition_table({}),
            keep_inference_input_mutations=False, more={}, tracing=KeepWhole(),
        )  # fmt: skip

    with torch.enable_grad() if backward else torch.no_grad():
        result = torch.compile(subject.model, backend=backend, dynamic=dynamic)(*subject.args, **subject.kwargs)
        if backward:
            total = [t.sum() for t in _tensors(result) if t.requires_grad and t.is_floating_point()]
            if total:
                torch.stack([t.double() for t in total]).sum().backward()
    return result


def of_compiler(name: str) -> Callable[..., Any] | None:
    """``backend`` or ``prepare`` of the installed compiler (entry points ``tair_debug.compiler``), None without one."""
    points = importlib.metadata.entry_points(group=COMPILER, name=name)
    return next((point.load() for point in points), None)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    return [v for v in leaves if isinstance(v, torch.Tensor)]


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a graph ends and another begins.

    Attributes:
        reason: Why, in dynamo's words.
        hints: What to write instead, in dynamo's words.
        source: The user's line, such as ``model.py:12 in forward``.
        code: Text of that line.
    """

    reason: str
    hints: tuple[str, ...] = ()
    source: str = ""
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"reason": self.reason, "hints": list(self.hints), "source": self.source, "code": self.code}


@contextlib.contextmanager
def breaks() -> Iterator[list[Break]]:
    """The breaks of the graphs that are captured inside; there when it ends."""
    found: list[Break] = []
    with breaks_of_graphs() as reasons:
        yield found
    for said, frame in reasons:
        lines = [line.strip() for line in said.strip().splitlines()]
        if said.startswith(_JUMP):
            lines = ["a branch on values: the graphs have the side that was taken, not the other"]
            lines.append("Hint: torch.where for two values, torch.cond for two branches")
        hints = tuple(line.removeprefix("Hint:").strip() for line in lines if line.startswith("Hint:"))
        name = _RESUMED.sub(r"\1", frame.name) if frame is not None else ""
        source = f"{frame.filename}:{frame.lineno} in {name}" if frame is not None else ""
        found.append(Break(lines[0] if lines else "", hints, source, (frame.line or "") if frame is not None else ""))


def capture(subject: Subject, *, backward: bool = False, dynamic: bool = False, fake: bool = True) -> list[Captured]:
    """The ATen graphs of a model, in the order they are needed; nothing is computed if ``fake``.

    Errors: ConfigError GE1047 if the model cannot be traced.
    """
    if dynamic and fake and not symbols_of_fake_inputs():
        raise ConfigError(
            "GE1047", f"{subject.name}: torch {torch.__version__} gives no symbols to sizes of fake tensors, 2.11 does",
            next="trace with real tensors (--real)",
        )  # fmt: skip
    graphs: list[Captured] = []

    def keep(gm: torch.fx.GraphModule, phase: str) -> Callable[..., Any]:
        graphs.append(Captured(gm, phase))
        return gm.forward  # type: ignore[no-any-return]

    with _mode_of(subject) if fake else contextlib.nullcontext():
        try:
            run_with(subject, keep, backward=backward, dynamic=dynamic)
        except GeError:
            raise
        except Exception as error:
            raise untraceable(subject, error, fake=fake) from error
    return graphs


def untraceable(subject: Subject, error: Exception, *, fake: bool) -> GeError:
    """The error for a model that raises when it is traced or run; errors made on purpose stay as they are."""
    ours = on_purpose(error)
    if ours is not None:
        return ours
    advice = "try it with real tensors (--real): fake ones have no values to decide by" if fake else "run it eagerly"
    if not subject.args and not subject.kwargs and isinstance(error, TypeError) and _NO_INPUT in str(error):
        advice = "give its inputs: -i 'float32(4, 8)' once for each, or a factory that returns (model, inputs)"
    said = (str(error).strip().splitlines() or [""])[0]
    return ConfigError(
        "GE1047", f"{subject.name}: tracing the model raised {type(error).__name__}: {escape.line(said, 500)}",
        next=advice,
    )  # fmt: skip


def _mode_of(subject: Subject) -> Any:
    """The fake mode that the model was made in."""
    parameters = [*subject.model.parameters()] if isinstance(subject.model, torch.nn.Module) else []
    for value in (*parameters, *_tensors(subject.args), *_tensors(subject.kwargs)):
        mode = getattr(value, "fake_mode", None)
        if mode is not None:
            return mode
    return fake_mode(beside_real=True)


def to_ge(gm: torch.fx.GraphModule, name: str, oracle: Oracle | None = None) -> tuple[Graph, Graph]:
    """The GE graph of an ATen graph as converted, and after the GE passes and verification.

    Args:
        gm: The ATen graph.
        name: Name of the GE graph.
        oracle: The chip whose forms of operators are taken; None leaves them as they are everywhere.

    Errors: LoweringError for what cannot be lowered, GraphError for what GE would refuse.
    """
    from ge_converters.conversion import convert_graph
    from ge_converters.lowering import lower
    from ge_graph import passes

    chosen = passes.DEFAULT if oracle is None else passes.for_chip(oracle)
    with real_values():
        made = convert_graph(gm, name=name, prepare=lambda lowered: (lowered, chosen)).graph
        return lower(gm, name=name).graph, made
