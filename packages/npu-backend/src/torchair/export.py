"""Offline graphs: ``dynamo_export``, and the capture that ``CompiledModel.save_graph`` of ``tair_export`` calls.

A model is traced with ``torch.export``: the whole graph, its parameters by name, and the structure of inputs and
results. From there on it goes through the same stages as in ``torch.compile``, without an engine.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.aliasing import Constant, InputAlias, InputBinding, Mutation, Nothing, Result, ScalarResult
from ge_converters.dtypes import to_ge
from ge_graph import builder
from ge_graph.attrs import Attr, Kind
from ge_graph.errors import ConfigError, GeError
from tair_export import signature
from tair_export.export import Captured, write_export
from tair_export.ranks import current
from tair_export.signature import LEAF, Input, Output, Signature, Tree
from tair_export.weights import Weight
from torchair.backend import TraceError, _config
from torchair.log import logger
from torchair.pipeline import Pipeline, device_of, new_model

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from ge_graph import Graph
    from torchair.config import CompilerConfig

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
    model: torch.nn.Module | None = None,
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
        model: The module.
        export_path: Folder, made if missing. A relative path is what the graph names its weight files by, so ATC and
            the offline run start in the folder from which it counts; an absolute path has to be the same there.
        export_name: Name of the graph file, ``<export_name>.air``; with several processes
            ``<export_name><rank>.air``, and the other files of a rank in ``rank_<rank>``.
        dynamic: Whether sizes may change; sizes 0 and 1 of the samples stay fixed.
        config: Options; ``config.export.experimental`` has those for exporting. None means all defaults.
        kwargs: Sample inputs by keyword.

    Buffers and inputs that the model writes become RefData. Parameters are constants: in the graph up to 2 GB - 200 MB
    in all, above that one file each, named after the parameter.

    Errors: ConfigError GE1008 for options that exclude exporting, GE1011 without a model; TraceError GE1032 if the
    model is not one graph; LoweringError as for ``torch.compile``; ArchiveError GE5030 for what has no form in a file.
    """
    if model is None and args and isinstance(args[0], torch.nn.Module):
        model, args = args[0], args[1:]
    checked = _config(config)
    captured = capture(model, args, kwargs, dynamic=dynamic, config=checked)
    atc_config = bool(checked.export.experimental.auto_atc_config_generated)
    # an argument left at its default gives way to the option that older scripts set
    if export_path == _PATH:
        export_path = checked.export.export_path_dir.value or _PATH
    if export_name == _NAME:
        export_name = checked.export.export_name.value or _NAME
    path = write_export(captured, export_path, export_name, atc_config=atc_config)
    logger.info("exported %s: %d GE nodes", path, len(captured.graph.nodes))


def use_internal_format_weight(model: torch.nn.Module) -> None:
    """Convert weights to the layout that the device's cube unit prefers, in place.

    On tensors of a device this is a cast by the device's PyTorch plug-in to FRACTAL_NZ. Tensors on the CPU have no such
    layout: they stay as they are, and the log says so.

    Args:
        model: The module.

    Errors: ConfigError GE1011 if it is no module.
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
        logger.warning(
            "use_internal_format_weight: %d of %d parameters are not on a device and keep their layout",
            len(tensors) - len(on_device), len(tensors),
        )  # fmt: skip


_FRACTAL_NZ: Final = 29


# --- capture ---------------------------------------------------------------------------------------------------------


def capture(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, dynamic: bool = False, config: Any = None
) -> Captured:
    """Trace a model to a graph whose parameters are named; the entry point ``tair_export.capture``.

    Errors: see ``dynamo_export``.
    """
    checked = _config(config)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            "GE1011", f"model must be a torch.nn.Module, got {type(model).__name__}",
            next="dynamo_export(x, y, model=net); save_graph(net, (x, y))",
        )  # fmt: skip
    _check(checked)
    program = _trace(model, tuple(args), dict(kwargs), dynamic)
    gm = program.graph_module
    pipeline = Pipeline(checked, "forward", new_model(gm))
    device = device_of(gm)
    stacks = _module_stacks(gm) if checked.export.experimental.enable_record_nn_module_stack.value else {}
    lowered = pipeline.to_graph(
        gm, [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"], _with_writes(program)
    )
    lowered.graph.name = "graph_1"  # not a running number: the same model gives the same bytes
    for node in lowered.graph.nodes:
        stack = stacks.get(node.provenance.fx_name) if node.provenance is not None else None
        if stack:
            node.attrs["nn_module_stack"] = Attr(Kind.STRING, stack)
    return _captured(model, program, lowered, device, tuple(args), dict(kwargs))


def _check(config: CompilerConfig) -> None:
    from torchair.config import find

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
    from ge_converters.decomps import decomposition_table

    shapes = _dynamic_shapes(model, args, kwargs) if dynamic else None
    # Dynamo keeps a copy of every parameter while it exports; the plain tracer keeps none. But only dynamo turns
    # in-place collectives into operators of the graph.
    strict = not current().alone
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=strict)
            return program.run_decompositions(decomposition_table())
    except GeError:
        raise
    except Exception as error:  # the model's own code runs while it is traced, so this may be anything
        raise TraceError("GE1032", f"{type(error).__name__}: {error}", next=_NEXT) from error


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


def _dynamic_shapes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Every dimension and every int as torch finds fit: symbolic where the model allows it."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    found = {name: _dynamic(value) for name, value in bound.items()}
    variable = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is p.VAR_KEYWORD]
    for name in variable:  # torch knows keywords that no parameter names by their own name
        found.update(found.pop(name, {}))
    return found


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
    if type(value) in pytree.SUPPORTED_NODES:  # a class: one entry a part, in the order of its own flattening
        return [_dynamic(v) for v in pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0]]
    return None


def _module_stacks(gm: torch.fx.GraphModule) -> dict[str, str]:
    """FX name to the modules that its line stands in, outermost first, as text."""
    found = {}
    for node in gm.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        parts = [f"{path}: {getattr(kind, '__name__', kind)}" for path, kind in stack.values() if path]
        if parts:
            found[node.name] = "; ".join(parts)
    return found


# --- inputs that are written, results that are inputs ------------------------------------------------------------


def _with_writes(program: Any) -> Any:
    """What to do with the bindings before the passes: the first FX outputs are new values of buffers and inputs."""
    kinds = torch.export.graph_signature.OutputKind
    signature = program.graph_signature
    places = {spec.arg.name: i for i, spec in enumerate(signature.input_specs)}
    places |= {spec.target: i for i, spec in enumerate(signature.input_specs) if spec.target is not None}
    user = {i for i, spec in enumerate(signature.input_specs) if _is_user(spec)}

    def prepare(lowered: Lowered) -> Lowered:
        pool = _Outputs(lowered)
        outputs = []
        for spec, binding in zip(signature.output_specs, lowered.outputs, strict=True):
            if spec.kind is kinds.USER_OUTPUT and isinstance(binding, InputAlias) and binding.fx_index not in user:
                value = program_value(program, binding.fx_index)
                binding = Result(pool.of_input(binding.fx_index), pool.spec_of(binding.fx_index, value))
            if spec.kind is kinds.USER_OUTPUT:
                outputs.append(binding)
                pool.used.update({binding.ge_index} if isinstance(binding, (Result, ScalarResult)) else ())
        mutations = []
        for spec, binding in zip(signature.output_specs, lowered.outputs, strict=True):
            if spec.kind is kinds.USER_OUTPUT or spec.target is None:
                continue
            target = places[spec.target]
            if isinstance(binding, InputAlias) and binding.fx_index == target:
                continue
            mutations.append(Mutation(target, pool.own(binding)))
            pool.feed(target, program_value(program, target))
        return replace(lowered, inputs=tuple(pool.inputs), outputs=tuple(outputs), mutations=tuple(mutations))

    return prepare


def program_value(program: Any, index: int) -> Any:
    """Fake value of a placeholder."""
    return [n.meta.get("val") for n in program.graph_module.graph.nodes if n.op == "placeholder"][index]


class _Outputs:
    """Outputs and inputs of a lowered graph, added to where the program returns or writes what the graph does not."""

    def __init__(self, lowered: Lowered) -> None:
        self.graph: Graph = lowered.graph
        self.inputs: list[InputBinding] = list(lowered.inputs)
        self.used: set[int] = set()

    def feed(self, index: int, value: torch.Tensor) -> Any:
        """The tensor of an FX input, made a Data node if nothing has read it so far."""
        for node, binding in zip(self.graph.inputs, self.inputs, strict=True):
            if binding.fx_index == index:
                return node.outputs[0]
        spec = self.spec_of(index, value)
        tensor = builder.data(self.graph, index=len(self.inputs), dtype=spec.dtype, shape=spec.size)
        self.inputs.append(InputBinding(index, "tensor", spec))
        return tensor

    def spec_of(self, index: int, value: torch.Tensor) -> Any:
        """Type and sizes of an FX input."""
        from ge_graph import TensorSpec

        return TensorSpec(to_ge(value.dtype), tuple(_size(d) for d in value.shape))

    def of_input(self, index: int) -> int:
        """A new output that is an FX input."""
        node = next(n for n, b in zip(self.graph.inputs, self.inputs, strict=True) if b.fx_index == index)
        self.graph.outputs.append(node.outputs[0])
        return len(self.graph.outputs) - 1

    def own(self, binding: Any) -> int:
        """An output that nobody else takes, with the value of a binding."""
        if isinstance(binding, InputAlias):
            return self.of_input(binding.fx_index)
        if binding.ge_index in self.used:
            self.graph.outputs.append(self.graph.outputs[binding.ge_index])
            return len(self.graph.outputs) - 1
        self.used.add(binding.ge_index)
        return int(binding.ge_index)


def _size(value: Any) -> int | str:
    return str(value.node.expr) if isinstance(value, torch.SymInt) else int(value)


def _is_user(spec: Any) -> bool:
    return spec.kind is torch.export.graph_signature.InputKind.USER_INPUT


# --- weights and contract --------------------------------------------------------------------------------------------


def _captured(
    model: torch.nn.Module, program: Any, lowered: Lowered, device: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Captured:
    specs = program.graph_signature.input_specs
    leaves = [i for i, spec in enumerate(specs) if _is_user(spec)]
    leaf_of = {fx: at for at, fx in enumerate(leaves)}
    nodes = {node.attr("index"): node for node in lowered.graph.inputs}
    first: dict[Any, str] = {}  # a tensor that several parameters share is called like the first of them
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        first.setdefault(_identity(tensor) or name, name)
    users, states, weights = [], {}, {}
    for at, binding in enumerate(lowered.inputs):
        node = nodes.get(at)
        if node is None:
            continue
        if binding.fx_index in leaf_of:
            users.append((leaf_of[binding.fx_index], node))
            continue
        target = str(specs[binding.fx_index].target)
        tensor = _tensor_of(program, target)
        weight = _weight(first.get(_identity(tensor), target), tensor)
        if node.op == "RefData":
            states[node.name] = weight
        else:
            weights[node.name] = weight
    users.sort(key=lambda pair: pair[0])
    order = [node for _, node in users] + [n for n in nodes.values() if n.name in states]
    order += [n for n in nodes.values() if n.name in weights]
    for position, node in enumerate(order):
        node.attrs["index"] = Attr(Kind.INT, position)
    feeds: list[int | str] = [leaf for leaf, _ in users]
    feeds += [states[n.name].name for n in order if n.name in states]
    contract = _contract(model, program, lowered, tuple(feeds), args, kwargs)
    named = {w.name: w for w in states.values()}
    return Captured(
        lowered.graph, contract, weights, named, device, _groups(lowered.graph), {"torch": str(torch.__version__)}
    )


def _tensor_of(program: Any, target: str) -> torch.Tensor:
    found = program.state_dict.get(target)
    return found if found is not None else program.constants[target]


def _weight(name: str, tensor: torch.Tensor) -> Weight:
    tensor = tensor.detach()

    def data() -> Any:
        found = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        return found.reshape(-1).view(torch.uint8).numpy() if found.numel() else _NO_BYTES.numpy()

    return Weight(name, to_ge(tensor.dtype), tuple(tensor.shape), data, _identity(tensor))


def _identity(tensor: torch.Tensor) -> Any:
    if not tensor.numel():
        return None
    return (str(tensor.device), tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


_NO_BYTES: Final = torch.empty(0, dtype=torch.uint8)


def _contract(
    model: torch.nn.Module,
    program: Any,
    lowered: Lowered,
    feeds: tuple[int | str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Signature:
    specs = program.graph_signature.input_specs
    leaf_of = {fx: at for at, fx in enumerate(i for i, spec in enumerate(specs) if _is_user(spec))}
    inputs = [_input(spec, program_value(program, i)) for i, spec in enumerate(specs) if _is_user(spec)]
    in_spec = program.call_spec.in_spec
    positional, named = (tree_of(child) for child in children_of(in_spec))
    parameters = [p for p in inspect.signature(model.forward).parameters.values() if p.kind in _POSITIONAL]
    outputs = []
    for binding in lowered.outputs:
        if isinstance(binding, Result):
            outputs.append(Output("tensor", binding.ge_index, binding.spec.dtype, binding.spec.size, binding.order))
        elif isinstance(binding, ScalarResult):
            outputs.append(Output("number", binding.ge_index, value=binding.pytype.__name__))
        elif isinstance(binding, InputAlias):
            outputs.append(Output("input", leaf_of[binding.fx_index]))
        else:
            outputs.append(Output("constant", value=None if isinstance(binding, Nothing) else _constant(binding)))
    return Signature(
        positional, named, tuple(p.name for p in parameters[: len(args)]), tree_of(program.call_spec.out_spec),
        tuple(inputs), tuple(outputs), feeds, _symbols(model, program, inputs, args, kwargs),
    )  # fmt: skip


_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _constant(binding: Any) -> Any:
    assert isinstance(binding, Constant)
    signature.plain(binding.value, "a result")
    return binding.value


def _input(spec: Any, value: Any) -> Input:
    name = spec.arg.name
    if isinstance(value, torch.Tensor):
        return Input(name, "tensor", to_ge(value.dtype), tuple(_size(d) for d in value.shape))
    if isinstance(value, torch.SymInt):
        return Input(name, "number", value=str(value.node.expr))
    value = getattr(spec.arg, "value", value)
    if value is None or type(value) in (bool, int, float, str):
        return Input(name, "constant", value=value)
    return Input(name, "opaque", value=repr(value)[:200])


def _symbols(
    model: torch.nn.Module, program: Any, inputs: Sequence[Input], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, tuple[int | None, int | None]]:
    """Limits of the symbols that are sizes of inputs.

    torch takes sizes 0 and 1 as special when it traces, so its limits begin at 2. Where the model gives results of the
    same form for size 1, tried on tensors without data, 1 is within the limits.
    """
    wanted = {d for i in inputs if i.kind == "tensor" for d in i.shape if isinstance(d, str)}
    found: dict[str, tuple[int | None, int | None]] = {}
    for symbol, limits in program.range_constraints.items():
        if str(symbol) in wanted:
            low, high = (_limit(v) for v in (limits.lower, limits.upper))
            if low == 2 and _serves_one(model, program, {symbol}, args, kwargs):
                low = 1
            found[str(symbol)] = (low, high)
    return found


def _limit(value: Any) -> int | None:
    number = float(value)
    return None if math.isinf(number) or abs(number) >= 1 << 62 else int(number)


def _serves_one(
    model: torch.nn.Module, program: Any, symbols: set[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether results have the sizes that the program says when sizes ``symbols`` are 1."""
    from torch.utils import _pytree as pytree

    from ge_converters.torch_compat import fake_mode

    metas = [n.meta.get("val") for n in program.graph_module.graph.nodes if n.op == "placeholder"]
    shapes = iter([v for v, s in zip(metas, program.graph_signature.input_specs, strict=True) if _is_user(s)])
    values = _values(metas, symbols)
    given, spec = pytree.tree_flatten((args, kwargs))
    user_outputs = [
        n.meta.get("val") if isinstance(n, torch.fx.Node) else n
        for n, s in zip(_returned(program), program.graph_signature.output_specs, strict=True)
        if s.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT
    ]  # fmt: skip
    try:
        with fake_mode() as mode, torch.no_grad():
            mode.allow_non_fake_inputs = True  # tensors that are plain attributes
            small = [_small(mode, v, next(shapes), values) for v in given]
            tensors = {n: mode.from_tensor(t.detach()) for n, t in (*model.named_parameters(), *model.named_buffers())}
            inner_args, inner_kwargs = pytree.tree_unflatten(small, spec)
            results = torch.func.functional_call(model, tensors, inner_args, inner_kwargs)
    except Exception:  # noqa: BLE001  whatever the model does not like about size 1 means no
        return False
    leaves = pytree.tree_leaves(results)
    return len(leaves) == len(user_outputs) and all(
        not isinstance(v, torch.Tensor) or (isinstance(r, torch.Tensor) and _sizes(v, values) == list(r.shape))
        for v, r in zip(user_outputs, leaves, strict=True)
    )


def _returned(program: Any) -> Sequence[Any]:
    output = next(n for n in reversed(program.graph_module.graph.nodes) if n.op == "output")
    found: Sequence[Any] = output.args[0]
    return found


def _small(mode: Any, value: Any, meta: Any, values: dict[Any, int]) -> Any:
    if isinstance(value, torch.Tensor) and isinstance(meta, torch.Tensor):
        with mode:
            return torch.empty(_sizes(meta, values), dtype=value.dtype, device=value.device)
    return value


def _values(metas: Sequence[Any], symbols: set[Any]) -> dict[Any, int]:
    """Values of the symbols of inputs: 1 for ``symbols``, the samples' own for the others."""
    sizes = [d for m in metas for d in (m.shape if isinstance(m, torch.Tensor) else (m,))]
    return {
        d.node.expr: 1 if d.node.expr in symbols else int(d.node.hint)
        for d in sizes
        if isinstance(d, torch.SymInt) and d.node.expr.is_Symbol
    }


def _sizes(meta: torch.Tensor, values: dict[Any, int]) -> list[int]:
    found = []
    for d in meta.shape:
        if isinstance(d, torch.SymInt):
            d = d.node.expr.subs(values)
        found.append(int(d))
    return found


def _groups(graph: Graph) -> dict[str, list[int]]:
    """Communication groups in the graph; torch does not tell their members by name, so every rank is listed."""
    names = {str(n.attr("group")) for n in graph.nodes if n.op.startswith("Hcom") and n.attr("group") is not None}
    return {name: list(range(current().count)) for name in sorted(names)}


# --- structures ------------------------------------------------------------------------------------------------------


def children_of(spec: Any) -> list[Any]:
    """Parts of a tree spec."""
    found = spec.children
    return list(found() if callable(found) else spec.children_specs)


def tree_of(spec: Any) -> Tree:
    """A tree spec of torch as plain JSON; classes become records with the names of their fields."""
    if spec.type is None:
        return LEAF
    parts = [tree_of(child) for child in children_of(spec)]
    if spec.type in (tuple, list):
        return {spec.type.__name__: parts}
    context = spec.context
    # torch marks every named tuple with the factory; its class is the context
    kind = spec.type if isinstance(spec.type, type) else context
    name = getattr(kind, "__name__", str(kind))
    if issubclass(spec.type if isinstance(spec.type, type) else tuple, dict) and not hasattr(
        spec.type, "__dataclass_fields__"
    ):
        keys = context[1] if name == "defaultdict" else context
        if all(type(k) in (str, int) for k in keys):
            return {"dict": [[key, part] for key, part in zip(keys, parts, strict=True)]}
    named = zip(_fields(kind, context, len(parts)), parts, strict=True)
    return {"record": {"type": name, "fields": [[field, part] for field, part in named]}}


def _fields(kind: Any, context: Any, count: int) -> list[str]:
    if hasattr(kind, "_fields"):
        return [str(f) for f in kind._fields]
    for names in (context, *(context if isinstance(context, (list, tuple)) else ())):
        if isinstance(names, (list, tuple)) and len(names) == count and all(isinstance(n, str) for n in names):
            return list(names)
    if is_dataclass(kind) and len(fields(kind)) == count:
        return [f.name for f in fields(kind)]
    return [str(i) for i in range(count)]
