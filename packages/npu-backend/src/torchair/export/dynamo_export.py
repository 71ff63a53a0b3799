"""Offline graphs: ``dynamo_export``, and the capture that ``CompiledModel.save_graph`` of ``tair_export`` calls.

A model is traced with ``torch.export``: the whole graph, its parameters by name, and the structure of inputs and
results. From there on it goes through the same stages as in ``torch.compile``, without an engine.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_graph.attrs import Attr, Kind
from ge_graph.errors import ConfigError, GeError
from tair_export.export import CapturedModel, write_export, write_graph
from tair_export.load import CompiledModel
from tair_export.ranks import current
from torchair.compiler.backend import TraceError, _config
from torchair.compiler.gears import refuse_gears
from torchair.compiler.pipeline import Job, Pipeline, device_of, new_model
from torchair.config.log import logger
from torchair.export.offline import captured, with_writes
from torchair.oplib.collectives import groups_of_all_ranks

if TYPE_CHECKING:
    from torchair.config.compiler_config import CompilerConfig

# Options that ask for another way to run than a graph, so that there is nothing to export.
_NOT_WITH: Final = (
    ("experimental_config.frozen_parameter", "an exported graph has no addresses to hold"),
    ("debug.run_eagerly", "what runs eagerly is not exported"),
    ("debug.data_dump.type", "the dump runs operator by operator, without a graph"),
    ("mode", "only mode max-autotune makes a graph"),
)


_PATH: Final = "export_file"
_NAME: Final = "export"


def dynamo_export(
    *args: Any,
    model: torch.nn.Module | torch.export.ExportedProgram | None = None,
    export_path: str | PathLike[str] = _PATH,
    export_name: str = _NAME,
    dynamic: bool = False,
    config: CompilerConfig | None = None,
    **kwargs: Any,
) -> None:
    """Trace a model and write an offline graph, for ATC or for ``tair_export.CompiledModel.load_graph``.

    Args:
        args: Sample inputs; their values decide which branches are taken, so use typical ones. If ``model`` is not
            given, the first is the model.
        model: The module, or what ``torch.export.export`` made of one, which has its own inputs and sizes.
        export_path: Folder, made if missing. A relative path is what the graph names its weight files by, so ATC and
            the offline run start in the folder from which it counts; an absolute path has to be the same there.
        export_name: Name of the graph file, ``<export_name>.air``; with several processes
            ``<export_name><rank>.air``, and the other files of a rank in ``rank_<rank>``.
        dynamic: Whether sizes may change; sizes 0 and 1 of the samples stay fixed.
        config: Options; ``config.export.experimental`` has those for exporting. None means all defaults.
        kwargs: Sample inputs by keyword.

    Buffers and inputs that the model writes become RefData. Parameters are constants: in the graph up to 2 GB - 200 MB
    in all, above that one file each, named after the parameter.

    Errors: ConfigError GE1008 for options that exclude exporting, GE1011 without a model, GE1064 for inputs with gears;
    TraceError GE1032 if the
    model is not one graph; LoweringError as for ``torch.compile``; ArchiveError GE5030 for what has no form in a file.
    """
    if model is None and args and isinstance(args[0], (torch.nn.Module, torch.export.ExportedProgram)):
        model, args = args[0], args[1:]
    checked = _config(config)
    traced = capture(model, args, kwargs, dynamic=dynamic, config=checked)
    atc_config = bool(checked.export.experimental.auto_atc_config_generated)
    if atc_config:
        traced.groups = groups_of_all_ranks(traced.groups)
    # an argument left at its default gives way to the option that older scripts set
    if export_path == _PATH:
        export_path = checked.export.export_path_dir.value or _PATH
    if export_name == _NAME:
        export_name = checked.export.export_name.value or _NAME
    path = write_export(traced, export_path, export_name, atc_config=atc_config)
    logger.info("exported %s: %d GE nodes", path, len(traced.graph.nodes))


def use_internal_format_weight(model: torch.nn.Module) -> None:
    """Convert weights to the layout that the device's cube unit prefers, in place.

    On tensors of a device this is a cast by the device's PyTorch plug-in to FRACTAL_NZ. Tensors on the CPU have no such
    layout: they stay as they are, and a Python warning says so.

    Args:
        model: The module.

    Errors: ConfigError GE1011 if it is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            "GE1011", f"model must be a torch.nn.Module, got {type(model).__name__}", next="give the module itself"
        )
    tensors = list(model.parameters())
    on_device = [p for p in tensors if p.device.type == "npu"]
    if on_device:
        plugin: Any = importlib.import_module("torch_npu")
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                if parameter.device.type == "npu" and parameter.dim() >= 2:
                    parameter.data = plugin.npu_format_cast(parameter.data, _FRACTAL_NZ)
    if len(on_device) < len(tensors):
        off = len(tensors) - len(on_device)
        text = (
            f"use_internal_format_weight: {off} of {len(tensors)} parameters are not on a device and keep their layout"
        )
        logger.info("%s", text)
        warnings.warn(f"torchair: {text}", UserWarning, stacklevel=2)


_FRACTAL_NZ: Final = 29


# --- capture ---------------------------------------------------------------------------------------------------------


def capture(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, dynamic: bool = False, config: Any = None
) -> CapturedModel:
    """Trace a model to a graph whose parameters are named; the entry point ``tair_export.capture``.

    Errors: see ``dynamo_export``.
    """
    checked = _config(config)
    exported = model if isinstance(model, torch.export.ExportedProgram) else None
    if not isinstance(model, (torch.nn.Module, torch.export.ExportedProgram)):
        raise ConfigError(
            "GE1011",
            f"model must be a torch.nn.Module or an ExportedProgram, got {type(model).__name__}",
            next="dynamo_export(x, y, model=net); save_graph(net, (x, y))",
        )
    if exported is not None and (args or kwargs or dynamic):
        raise ConfigError(
            "GE1011",
            "an ExportedProgram has its own inputs and sizes; got inputs or dynamic=True beside it",
            next="give the program alone; dynamic_shapes= of torch.export.export decides what may change",
        )
    _check(checked)
    if exported is None:
        refuse_gears((args, dict(kwargs)))
        program = _trace(model, tuple(args), dict(kwargs), dynamic)
    else:
        model, program, args, kwargs = _exported(exported)
    gm = program.graph_module
    pipeline = Pipeline(Job(checked, model_id=new_model(gm)))
    device = device_of(gm)
    stacks = _module_stacks(gm) if checked.export.experimental.enable_record_nn_module_stack.value else {}
    lowered = pipeline.to_graph(
        gm, [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"], with_writes(program)
    )
    lowered.graph.name = "graph_1"  # not a running number: the same model gives the same bytes
    for node in lowered.graph.nodes:
        stack = stacks.get(node.provenance.fx_name) if node.provenance is not None else None
        if stack:
            node.attrs["nn_module_stack"] = Attr(Kind.STRING, stack)
    return captured(model, program, lowered, device, tuple(args), dict(kwargs))


def _check(config: CompilerConfig) -> None:
    from torchair.config.compiler_config import find

    config.check()
    clashes = [
        f"config.{path} = {find(config, path).value!r}: {why}"
        for path, why in _NOT_WITH
        if not find(config, path).is_default
    ]
    if clashes:
        raise ConfigError("GE1008", "excluded when exporting: " + "; ".join(clashes), next="leave the default")


def _trace(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: bool) -> Any:
    """The ATen program; parameters, buffers and user inputs are its placeholders."""
    from ge_converters.decompose.table import export_table

    # Dynamo keeps a copy of every parameter while it exports; the plain tracer keeps none. But only dynamo turns
    # in-place collectives into operators of the graph.
    strict = not current().alone
    try:
        with torch.no_grad(), _quiet(), _named_keywords(model, kwargs):
            shapes = _dynamic_shapes(model, args, kwargs) if dynamic else None
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=strict)
            return program.run_decompositions(export_table())
    except GeError:
        raise
    except Exception as error:  # the model's own code runs while it is traced, so this may be anything
        raise TraceError("GE1032", f"{type(error).__name__}: {error}", next=_NEXT) from error


def _exported(given: Any) -> tuple[torch.nn.Module, Any, tuple[Any, ...], dict[str, Any]]:
    """Of a program of the user's: a module, the ATen program, and the inputs that it was made with."""
    from ge_converters.decompose.table import export_table

    if given.example_inputs is None:
        raise ConfigError(
            "GE1011", "the ExportedProgram has no example inputs", next="export the module with example inputs"
        )
    args, kwargs = given.example_inputs
    try:
        with torch.no_grad(), _quiet():
            return given.module(), given.run_decompositions(export_table()), tuple(args), dict(kwargs)
    except GeError:
        raise
    except Exception as error:  # decompositions run, and torch's own checks
        raise TraceError("GE1032", f"{type(error).__name__}: {error}", next="export the module again") from error


def compile_exported(program: torch.export.ExportedProgram, *, config: CompilerConfig | None = None) -> CompiledModel:
    """Compile what ``torch.export.export`` made, without dynamo.

    Args:
        program: With its dynamic shapes; weights and buffers are copied, and buffers that it writes keep their values
            from call to call.
        config: Options; None means all defaults.

    Returns:
        A function to call like the program's module, with as many sizes as the program allows.

    Errors: ConfigError GE1011 for another type, GE1008 for options that exclude it; else as for ``dynamo_export``, and
        EngineError if no engine can run the graph. Calling: ArchiveError GE5040 for sizes that the program excludes.

    Example:
        >>> import torch, torchair
        >>> program = torch.export.export(torch.nn.Linear(4, 2), (torch.randn(3, 4),))
        >>> torchair.compile_exported(program)(torch.randn(3, 4)).shape
        torch.Size([3, 2])
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise ConfigError(
            "GE1011",
            f"compile_exported takes a torch.export.ExportedProgram, got {type(program).__name__}",
            next="program = torch.export.export(model, inputs)",
        )
    checked = _config(config)
    with tempfile.TemporaryDirectory() as folder:
        write_graph(capture(program, (), {}, config=checked), folder)
        return CompiledModel.load_graph(folder, options=checked.ge_options(), copy=True)


_NEXT: Final = (
    "the whole model has to be one graph: `torch._dynamo.explain(model)(*inputs)` lists the breaks; control flow that "
    "depends on values is not possible"
)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextlib.contextmanager
def _named_keywords(model: torch.nn.Module, kwargs: dict[str, Any]) -> Iterator[None]:
    """Let ``forward(**more)`` name its keywords inside the block: torch finds no sizes of keywords without a name."""
    forward, kept = model.forward, model.__dict__.get("forward")
    form = inspect.signature(forward)
    named = [p for p in form.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(named) == len(form.parameters):
        yield
        return

    def call(*given: Any, **more: Any) -> Any:
        return forward(*given, **more)

    known = {p.name for p in named}
    named += [inspect.Parameter(k, inspect.Parameter.KEYWORD_ONLY) for k in kwargs if k not in known]
    call.__signature__ = form.replace(parameters=named)  # type: ignore[attr-defined]
    model.__dict__["forward"] = call
    try:
        yield
    finally:
        model.__dict__.pop("forward")
        if kept is not None:
            model.__dict__["forward"] = kept


def _dynamic_shapes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Every dimension and every int as torch finds fit: symbolic where the model allows it."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {name: _dynamic(value) for name, value in bound.items()}


def _dynamic(value: Any) -> Any:
    from torch.utils import _pytree as pytree

    if isinstance(value, torch.Tensor):
        return dict.fromkeys(range(value.dim()), torch.export.Dim.AUTO)
    if type(value) is int:
        return torch.export.Dim.AUTO
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_dynamic(v) for v in value)
    if isinstance(value, dict) and type(value) is dict:
        return {k: _dynamic(v) for k, v in value.items()}
    if type(value) in pytree.SUPPORTED_NODES:  # a class: one entry per part, in the order of its own flattening
        return [_dynamic(v) for v in pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]]
    return None


def _module_stacks(gm: torch.fx.GraphModule) -> dict[str, str]:
    """FX name to the modules that its line stands in, outermost first, as text."""
    stacks = {}
    for node in gm.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        parts = [f"{path}: {getattr(kind, '__name__', kind)}" for path, kind in stack.values() if path]
        if parts:
            stacks[node.name] = "; ".join(parts)
    return stacks
