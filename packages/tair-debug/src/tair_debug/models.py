"""From a name on the command line to a model with its inputs.

Three forms, of which only the third runs no code of the user's:

- ``FILE.py:factory`` names a function without required arguments that returns a model, or a model with its inputs:
  ``model``, ``(model, args)``, ``(model, args, kwargs)``, or an object with ``model`` and ``inputs``.
- ``package.module:Factory`` is the same by import, from the working directory too; a class of modules will do.
- ``hf:config.json``, or its folder, is the transformers model that the configuration describes, without weights.

With fake tensors nothing is allocated and nothing is computed: the factory runs, but its tensors have no data.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.base.torch_compat import convertible, fake_copy, fake_mode, undrawn
from ge_converters.base.torch_worlds import uncompiled
from ge_graph import escape
from ge_graph.errors import ConfigError
from tair_debug.targets import FORMS, HUB, by_import

_INPUT: Final = re.compile(r"\s*([a-z_0-9]+)\(([\d,\s]*)\)\s*")
_FRAMES: Final = 8


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


def load(
    target: str, inputs: Sequence[str] = (), *, fake: bool = True, config: str | None = None, size: int | None = None
) -> Subject:
    """Make the model that a command line names.

    Args:
        target: One of ``FORMS``.
        inputs: ``float32(4, 8)`` and the like, in place of the inputs that the factory gives.
        fake: Run the factory with tensors that have no data.
        config: ``FILE.py:factory`` of a function that returns the CompilerConfig to compile with.
        size: Of a batch: what a factory with an argument is called with; else the leading size of the inputs that have
            the first one's.

    Errors: ConfigError GE1043 if the file, the function or what it returns does not do.
    """
    factory = function_of(target)
    mode = fake_mode(beside_real=True) if fake else None
    with contextlib.ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode)
            stack.enter_context(convertible(mode))
            stack.enter_context(undrawn())
        takes_size = size is not None and _takes_argument(factory)
        call = functools.partial(factory, size) if takes_size else factory
        made = _made(target, call, "; try it with real tensors (--real)" if fake else "")
        subject = _subject(target, made)
        if inputs:
            subject.args, subject.kwargs = tuple(parse_input(text, fake=fake) for text in inputs), {}
        if size is not None and not takes_size:
            _resize(target, subject, size)
        if fake:
            _leave_meta(subject)
    subject.config = None if config is None else config_of(config)
    return subject


def given(
    model: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    fake: bool = True,
    config: Any = None,
) -> Subject:
    """A model that exists, as a subject; with ``fake`` a copy without data, so that nothing is computed.

    Args:
        model: A module or a function, or what ``torch.compile`` made of it.
        args, kwargs: Its inputs.
        fake: Whether the copy is wanted. A function is not copied: real tensors that it holds count as fake ones.
        config: The CompilerConfig to compile with; None takes that of a compiled module's backend.
    """
    model, backend = uncompiled(model)
    if config is None:
        config = getattr(backend, "keywords", {}).get("compiler_config")
    name = escape.line(getattr(model, "__name__", type(model).__name__), 200)
    subject = Subject(model, tuple(args), dict(kwargs or {}), name, config)
    if fake:
        mode = fake_mode(beside_real=True)
        with mode:
            if isinstance(model, torch.nn.Module):
                subject.model = fake_copy(mode, model)
            subject.args, subject.kwargs = fake_copy(mode, (subject.args, subject.kwargs))
    return subject


def config_of(target: str) -> Any:
    """The CompilerConfig that a function of a command line makes.

    Errors: ConfigError GE1043 if it makes something else.
    """
    made = _made(target, function_of(target))
    if not callable(getattr(made, "explain", None)):
        raise ConfigError(
            "GE1043",
            f"{escape.line(target, 500)}: the factory returned a {type(made).__name__}, no CompilerConfig",
            next="give FILE.py:factory, a function that returns a torchair.CompilerConfig",
        )
    return made


def _takes_argument(factory: Callable[..., Any]) -> bool:
    try:
        kinds = [p.kind for p in inspect.signature(factory).parameters.values()]
    except (TypeError, ValueError):  # a function without a signature
        return False
    return bool(kinds) and kinds[0] in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _resize(target: str, subject: Subject, size: int) -> None:
    """Give the inputs another leading size: those that have the first one's."""
    leaves = torch.utils._pytree.tree_leaves((subject.args, subject.kwargs))
    batch = next((v.shape[0] for v in leaves if isinstance(v, torch.Tensor) and v.dim()), None)
    if batch is None:
        raise _bad(target, "no input has a leading size that could be another one; let the factory take the size")

    def resized(value: torch.Tensor) -> torch.Tensor:
        same = value.dim() and value.shape[0] == batch
        return value.new_zeros((size, *value.shape[1:])) if same else value

    move = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, resized)
    subject.args, subject.kwargs = move((subject.args, subject.kwargs))


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


def _made(target: str, factory: Callable[[], Any], advice: str = "") -> Any:
    try:
        return factory()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        more = "" if raised_by_hand(error) else advice
        raise _bad(target, f"the factory raised {_said(error)}{more}", _trace(error)) from error


def raised_by_hand(error: BaseException) -> traceback.FrameSummary | None:
    """The line ``raise`` or ``assert`` that an exception comes from, if it is none of torch's."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    own = last is not None and not last.filename.startswith(os.path.dirname(torch.__file__) + os.sep)
    return last if own and last is not None and re.search(r"\b(raise|assert)\b", last.line or "") else None


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
    give = f"give {FORMS}; a factory is a function that returns a model or (model, inputs)"
    return ConfigError(
        "GE1043", f"{escape.line(target, 500)}: {what}", where=where, next="repair the factory" if where else give
    )


# --- functions by name -----------------------------------------------------------------------------------------------


def function_of(target: str) -> Callable[..., Any]:
    """The function that a command line names.

    Errors: ConfigError GE1043 if there is none.
    """
    if target.startswith(HUB):
        return functools.partial(_transformers_model, target)
    file, _, name = target.rpartition(":")
    path = Path(file)
    if file and name.isidentifier() and path.suffix == ".py":
        module, called = _module_in(target, path), str(path)
    elif by_import(target):
        module, called = _module_named(target, file), file
    else:
        raise _bad(target, f"not of the form {FORMS}")
    factory = getattr(module, name, None)
    if not callable(factory):
        functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise _bad(target, f"{called} has no function {name!r}; it has {', '.join(functions) or 'none'}")
    return factory  # type: ignore[no-any-return]


def _module_in(target: str, path: Path) -> Any:
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
    return module


def _module_named(target: str, name: str) -> Any:
    if os.getcwd() not in sys.path:  # as ``python -m`` has it; an installed command does not
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _bad(target, f"{name} raised {_said(error)}", _trace(error)) from error
        raise _bad(target, f"there is no module {escape.line(error.name, 200)}") from error
    except (Exception, SystemExit) as error:
        raise _bad(target, f"{name} raised {_said(error)}", _trace(error)) from error


def _subject(target: str, made: Any) -> Subject:
    name = Path(target.removeprefix(HUB)).stem if target.startswith(HUB) else target.rpartition(":")[2]
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


# --- transformers ----------------------------------------------------------------------------------------------------


def _transformers_model(target: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model of a configuration, of the class that it names if transformers has it, and inputs for it.

    No code of the configuration is run, and nothing is fetched: a class is taken by its name only if it is a model of
    transformers for this kind of configuration.
    """
    path = Path(target.removeprefix(HUB))
    try:
        path = path / "config.json" if path.is_dir() else path
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
            raise ValueError("no model_type in it")
    except (OSError, ValueError) as error:
        raise _bad(target, f"no configuration of a model can be read: {_said(error)}") from error
    try:
        import transformers
    except ImportError as error:
        raise _bad(target, "this form needs the package transformers") from error
    more = {k: v for k, v in data.items() if k not in ("model_type", "auto_map")}
    config = transformers.AutoConfig.for_model(data["model_type"], **more)
    names = [n for n in data.get("architectures") or () if isinstance(n, str) and n.isidentifier()]
    known: list[Any] = [getattr(transformers, name, None) for name in names]
    fitting = (c for c in known if isinstance(c, type) and getattr(c, "config_class", None) is type(config))
    chosen: Any = next(fitting, None)
    model = transformers.AutoModel.from_config(config) if chosen is None else chosen._from_config(config)
    return model, (), _inputs_for(model, config)


def _inputs_for(model: Any, config: Any) -> dict[str, Any]:
    """What transformers itself tries a model with, or one image."""
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", 224)
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {"pixel_values": torch.zeros(1, getattr(config, "num_channels", 3), *sides)}
    return dict(model.dummy_inputs) if model.main_input_name == "input_ids" else {}


def parse_input(text: str, *, fake: bool = False) -> torch.Tensor:
    """A tensor from ``float32(4, 8)``: normal numbers, or zeros for integers and bools.

    Args:
        text: What was written.
        fake: Whether tensors have no data just now; one with data must fit into the machine's memory.

    Errors: ConfigError GE1043 for another form, or for more than the memory holds.
    """
    match = _INPUT.fullmatch(text)
    dtype = getattr(torch, match[1], None) if match else None
    named = escape.line(text, 500)
    if match is None or not isinstance(dtype, torch.dtype):
        raise ConfigError(
            "GE1043", f"-i {named}: this is no input", next="write dtype(sizes), such as -i 'float32(4, 8)'"
        )
    try:
        sizes = [int(d) for d in match[2].split(",") if d.strip()]
        if not fake:
            _must_fit(named, math.prod(sizes) * dtype.itemsize)
        return torch.randn(sizes).to(dtype) if dtype.is_floating_point else torch.zeros(sizes, dtype=dtype)
    except ConfigError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:  # no such type of numbers here, or too many of them
        said = escape.line((str(error).splitlines() or [""])[0], 200)
        raise ConfigError(
            "GE1043", f"-i {named}: this input cannot be made: {said}", next="give another type or other sizes"
        ) from error


def _must_fit(named: str, needed: int) -> None:
    there = memory_of_machine()
    if there is not None and needed > there:
        raise ConfigError(
            "GE1043",
            f"-i {named}: it takes {needed // 2**30} GiB, this machine has {there // 2**30} GiB",
            next="give smaller sizes; summary, check, plan, dump and view without --real take any size",
        )


def memory_of_machine() -> int | None:
    """Bytes, None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
