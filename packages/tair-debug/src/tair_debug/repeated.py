"""A model of many equal layers is traced with three of them, and its graph made whole.

That is done only where the layers cannot be told apart: their modules have the same classes, attributes, and shapes of
parameters, and a run on tensors without data shows that each goes through the same byte code and calls torch with the
same arguments, its own parameters and its predecessor's results in their places. A run with three layers has to be the
same too, before, inside and behind them. Whatever else is there, ``Unlike`` says why, and the model is traced as it is.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from ge_converters.base.provenance import module_path, readable_path
from ge_converters.base.torch_compat import real_values
from ge_converters.base.torch_traces import as_compiled, count_names, more_like

KEPT: Final = 3  # the first one, one behind another, and one that shows that the second is no exception
WEIGHTS: Final = "weights"
_LEAST: Final = 6  # layers, below which two runs and a trace of three take as long as the trace of all
_NUMBERED: Final = re.compile(r"(.*?)(?:_(\d+))?")
_CONSTANT: Final = re.compile(r"(_tensor_constant)(\d+)")
# what dynamo does not follow either: torch's own code, and caches, which go another way in their first call
_UNSEEN: Final = (os.path.dirname(torch.__file__) + os.sep, functools.__file__, __file__)
_PLAIN: Final = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_KEPT_APART: Final = ("_parameters", "_buffers", "_modules")


class Unlike(Exception):
    """Why a model is traced as it is; caught by who asked."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Equal layers that a model calls one after the other.

    Attributes:
        path: Name of their list in the model, ``model.layers``.
        held: The list.
        layers: What is in it, also while the model is shortened.
    """

    path: str
    held: torch.nn.ModuleList
    layers: tuple[torch.nn.Module, ...]

    def place(self, name: str) -> tuple[int, str] | None:
        """Number of the layer that a name lies in, and the rest of the name; None outside of them."""
        if not name.startswith(self.path + "."):
            return None
        number, _, rest = name[len(self.path) + 1 :].partition(".")
        return (int(number), rest) if number.isdecimal() else None

    @contextlib.contextmanager
    def shortened(self) -> Iterator[None]:
        """Inside, the model has the first layers only."""
        whole = dict(self.held._modules)
        for name in list(whole)[KEPT:]:
            del self.held._modules[name]
        try:
            yield
        finally:
            self.held._modules.clear()
            self.held._modules.update(whole)


# --- modules ---------------------------------------------------------------------------------------------------------


def stack_of(model: Any) -> Stack:
    """The longest list of equal layers in a model.

    Raises:
        Unlike: If there is none that is long enough.
    """
    if not isinstance(model, torch.nn.Module):
        raise Unlike("not a module")
    found = [
        Stack(name, module, tuple(module))
        for name, module in model.named_modules()
        if type(module) is torch.nn.ModuleList and len(module) >= _LEAST
    ]
    if not found:
        raise Unlike("no list of layers")
    stack = max(found, key=lambda s: len(s.layers))
    held = [id(t) for layer in stack.layers for t in (*layer.parameters(), *layer.buffers())]
    if len(set(map(id, stack.layers))) < len(stack.layers) or len(set(held)) < len(held):
        raise Unlike("layers share modules or parameters")
    first = [*stack.layers[0].named_modules()]
    for number, layer in enumerate(stack.layers):
        other = [*layer.named_modules()]
        if len(other) != len(first):
            raise Unlike(f"layer {number} has other modules")
        for (name, module), (other_name, there) in zip(first, other):
            if name != other_name or type(module) is not type(there):
                raise Unlike(f"layer {number} has other modules")
            _same_module(module, there, number)
    return stack


def _same_module(one: torch.nn.Module, other: torch.nn.Module, number: int) -> None:
    for held in ("_parameters", "_buffers"):
        forms = [{name: _tensor(t) for name, t in getattr(module, held).items()} for module in (one, other)]
        if forms[0] != forms[1]:
            raise Unlike(f"layer {number} has other parameters")
    states = [{k: v for k, v in vars(module).items() if k not in _KEPT_APART} for module in (one, other)]
    if states[0].keys() != states[1].keys():
        raise Unlike(f"layer {number} has other attributes")
    for name, value in states[0].items():
        there = states[1][name]
        counted = type(value) is int and type(there) is int and (value, there) == (0, number)
        if not counted and not _same(value, there):
            raise Unlike(f"{name} of layer {number} is another one")


def _tensor(value: torch.Tensor | None) -> Any:
    if value is None:
        return None
    return type(value), value.dtype, value.shape, value.stride(), value.device, value.requires_grad


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(v, other[k]) for k, v in one.items())
    if isinstance(one, torch.nn.Module):
        return not vars(one).keys() ^ vars(other).keys() and not [*one.parameters(), *other.parameters()]
    return isinstance(one, (*_PLAIN, set, frozenset)) and bool(one == other)


# --- runs ------------------------------------------------------------------------------------------------------------


class _Run(TorchFunctionMode):  # type: ignore[misc]  # torch gives it no type
    """What a model does, in parts: before its first layer, then from the start of each layer to the next one's.

    Tensors go by where they come from, counted from the layer that uses them.
    """

    def __init__(self, model: torch.nn.Module, stack: Stack, inputs: Sequence[torch.Tensor]) -> None:
        self.parts: list[list[Any]] = [[]]
        self._kept: list[torch.Tensor] = []  # so that no two have one id
        self._kept_before = 0  # of them, those of earlier parts
        self._makers: dict[int, Callable[[], Any]] = {}  # of results of the second layer, by the step that made them
        self._places: dict[int, tuple[Any, ...]] = {}
        for number, value in enumerate(inputs):
            self._places[id(value)] = ("input", number)
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            place = stack.place(name)
            self._places[id(value)] = ("own", *place) if place else ("outside", name)

    def enter(self, *_: Any) -> None:
        """A layer starts."""
        self.parts.append([])
        self._kept_before = len(self._kept)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sys.settrace(None)  # what torch does inside is as many calls again, and the same for the same arguments
        try:
            given = (self._form(args), self._form(kwargs or {}))
            make = self._maker(func, given)
            made = func(*args, **(kwargs or {})) if make is None else make()
            if len(self.parts) == KEPT:
                self._remember(made)
            self.parts[-1].append((func, given, self._form(made)))
        finally:
            sys.settrace(self.trace)
        return made

    def _maker(self, func: Any, given: Any) -> Callable[[], Any] | None:
        """What makes the results of a call in a later layer that the second one made of the same arguments.

        Arguments are the same if all calls before were, so their results look the same, and torch need not be asked.
        """
        if len(self.parts) <= KEPT:
            return None
        second, step = self.parts[KEPT - 1], len(self.parts[-1])
        same = step < len(second) and second[step][:2] == (func, given)
        return self._makers.get(step) if same else None

    def _remember(self, made: Any) -> None:
        several = type(made) in (list, tuple)
        values = [*made] if several else [made]
        if not all(isinstance(v, torch.Tensor) and id(v) not in self._places for v in values):
            return  # a call that changes what is there, or says something of it
        makers = [make for v in values if (make := more_like(v)) is not None]
        if len(makers) == len(values):
            kind = type(made)
            again: Callable[[], Any] = (lambda: kind(make() for make in makers)) if several else makers[0]
            self._makers[len(self.parts[-1])] = again

    def _form(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return type(value), [self._form(v) for v in value]
        if isinstance(value, dict):
            return [(k, self._form(v)) for k, v in value.items()]
        if isinstance(value, slice):
            return "slice", self._form([value.start, value.stop, value.step])
        if isinstance(value, (*_PLAIN, type)):
            return type(value), value
        raise Unlike(f"torch is given a {type(value).__name__}")

    def _tensor(self, value: torch.Tensor) -> Any:
        part = len(self.parts) - 1
        place = self._places.get(id(value))
        if place is None:
            self._kept.append(value)
            number = len(self._kept) - self._kept_before
            place = self._places[id(value)] = ("made", part, number, value.dtype, value.shape)
        if place[0] == "own":
            return ("own", place[1] - part, *place[2:])
        return place if place[0] != "made" or place[1] == 0 else ("made", place[1] - part, *place[2:])

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        """For ``sys.settrace``: the byte code of the model, not that of torch and of Python's own modules."""
        if frame.f_code.co_filename.startswith(_UNSEEN):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.parts[-1].append((id(frame.f_code), frame.f_lasti))
        return self._step


def _run(stack: Stack, model: torch.nn.Module, args: Any, kwargs: Any) -> list[list[Any]]:
    inputs = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    run = _Run(model, stack, inputs)
    hooks = [layer.register_forward_pre_hook(run.enter) for layer in stack.layers]
    before = sys.gettrace()
    try:
        with run:
            sys.settrace(run.trace)
            try:
                model(*args, **kwargs)
            finally:
                sys.settrace(before)
    finally:
        for hook in hooks:
            hook.remove()
    return run.parts


def prove(stack: Stack, model: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Run a model on tensors without data, to see whether its layers do the same.

    Raises:
        Unlike: If they do not, or if the model keeps something of a run.
    """
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    if not all(isinstance(v, (torch.Tensor, *_PLAIN)) for v in leaves):
        raise Unlike("inputs that a run may change")
    before = {module: _state(module) for module in model.modules()}
    said = io.StringIO()
    try:
        with as_compiled(), contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trace warns once more
            with stack.shortened():
                _run(stack, model, args, kwargs)  # what is done in a first run only
                few = _run(stack, model, args, kwargs)
            whole = _run(stack, model, args, kwargs)
    except Unlike:
        raise
    except Exception as error:  # the trace of the whole model says it in the user's terms
        raise Unlike(f"a run raised {type(error).__name__}") from error
    finally:
        kept = [module for module, state in before.items() if not _same_state(_state(module), state)]
        for module in kept:
            _restore(module, before[module])
    if kept or said.getvalue():
        raise Unlike("a run leaves something behind")
    if len(whole) != len(stack.layers) + 1 or len(few) != KEPT + 1:
        raise Unlike("layers are not called once each")
    if few[:-1] != whole[:KEPT] or any(part != whole[KEPT - 1] for part in whole[KEPT:-1]) or few[-1] != whole[-1]:
        raise Unlike("layers do not do the same")


_HELD: Final = (*_KEPT_APART, "_forward_hooks", "_forward_pre_hooks")


def _state(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    values = vars(module)
    return dict(values), {name: dict(values[name]) for name in _HELD if name in values}


def _same_state(one: Any, other: Any) -> bool:
    return all(
        a.keys() == b.keys() and all(v is b[k] for k, v in a.items())
        for a, b in ((one[0], other[0]), *((one[1].get(n, {}), other[1].get(n, {})) for n in _HELD))
    )


def _restore(module: torch.nn.Module, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    values = vars(module)
    values.clear()
    values.update(state[0])
    for name, held in state[1].items():
        values[name].clear()
        values[name].update(held)


# --- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """The graph of a model with all its layers.

    Attributes:
        gm: The graph.
            ``meta[WEIGHTS]`` names its placeholders that are parameters and buffers.
        like: For each of its inputs, the number of the one in the shortened model's graph that is like it.
        names: The model's name of each input that is a parameter or buffer.
    """

    gm: torch.fx.GraphModule
    like: list[int]
    names: list[str | None]


def names_of(model: Any) -> dict[int, str]:
    """``id`` of each parameter and buffer of a model to its name."""
    if not isinstance(model, torch.nn.Module):
        return {}
    return {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}


def whole_graph(gm: torch.fx.GraphModule, stack: Stack, names: Sequence[str | None]) -> Whole:
    """The graph of a model out of that of its first layers.

    Args:
        gm: ATen graph of the model while it is shortened.
        stack: The layers.
        names: The model's name of each input that is a parameter or buffer.

    Raises:
        Unlike: If the graph does not show the layers one by one.
    """
    return _Unrolled(gm, stack, names).made()


class _Unrolled:
    def __init__(self, gm: torch.fx.GraphModule, stack: Stack, names: Sequence[str | None]) -> None:
        self._gm, self._stack, self._count = gm, stack, len(stack.layers)
        self._inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        if len(self._inputs) != len(names) or any(n.name != f"arg{i}_1" for i, n in enumerate(self._inputs)):
            raise Unlike("inputs that torch has changed")
        self._names = list(names)
        self._parameters = [self._own_inputs(number) for number in range(KEPT)]
        self._before, self._layers, self._behind = self._parts()
        self._where = {n: (number, i) for number, layer in enumerate(self._layers) for i, n in enumerate(layer)}
        self._steps: dict[str, int] = {}
        self._check()
        self._graph = torch.fx.Graph(owning_module=gm)
        self._new: dict[Any, torch.fx.Node] = {}  # of a node, or of (layer, position)
        self._modules = [dict(layer.named_modules()) for layer in stack.layers]

    def _own_inputs(self, number: int) -> dict[str, torch.fx.Node]:
        places = [(node, self._stack.place(name)) for node, name in zip(self._inputs, self._names) if name is not None]
        return {place[1]: node for node, place in places if place is not None and place[0] == number}

    def _parts(self) -> tuple[list[Any], list[list[Any]], list[Any]]:
        """Nodes before the layers, of each, and behind them."""
        body = [n for n in self._gm.graph.nodes if n.op not in ("placeholder", "output")]
        parts: list[list[torch.fx.Node]] = [[] for _ in range(KEPT + 2)]
        now, waiting = 0, list[torch.fx.Node]()
        for node in body:
            if node.op == "get_attr":  # made where the next node wants it
                waiting.append(node)
                continue
            place = self._stack.place(module_path(node) + ".")
            at = place[0] + 1 if place is not None else now if now in (0, KEPT + 1) else KEPT + 1
            if at not in (now, now + 1):
                raise Unlike("work between the layers")
            now = at
            parts[at] += [*waiting, node]
            waiting = []
        if waiting or not all(parts[1:-1]):
            raise Unlike("a layer without operators")
        return parts[0], parts[1:-1], parts[-1]

    def _check(self) -> None:
        """The second and the third layer are the same to their surroundings, and number names by equal steps."""
        first, second, third = self._layers
        if not len(first) == len(second) == len(third) or [n.target for n in second if n.op != "get_attr"] != [
            n.target for n in third if n.op != "get_attr"
        ]:
            raise Unlike("layers have other operators in the graph")
        blocks = [[self._inputs.index(n) for n in p.values()] for p in self._parameters]
        start = blocks[2][0] if blocks[2] else 0
        if list(self._parameters[1]) != list(self._parameters[2]) or blocks[2] != list(
            range(start, start + len(blocks[2]))
        ):
            raise Unlike("parameters are not in order")
        common = {_storage(n) for n in (*self._before, *self._shared_inputs())} | {None}
        memory = [{s: i for i, n in enumerate(layer) if (s := _storage(n)) not in common} for layer in self._layers]
        if memory[0].keys() & memory[2].keys():
            raise Unlike("layers make views of what is far before them")
        # for the second and the third layer, position to that of its predecessor's result whose memory it shows
        self._views = {
            number: {
                i: memory[number - 1][s]
                for i, n in enumerate(self._layers[number])
                if (s := _storage(n)) in memory[number - 1]
            }
            for number in (1, 2)
        }
        for one, other in zip(second, third):
            self._check_pair(one, other)
        for node in self._behind:
            if any(self._where.get(n, (KEPT - 1, 0))[0] != KEPT - 1 for n in node.all_input_nodes):
                raise Unlike("what follows the layers reads others than the last one")

    def _shared_inputs(self) -> list[torch.fx.Node]:
        own = {n for parameters in self._parameters for n in parameters.values()}
        return [n for n in self._inputs if n not in own]

    def _check_pair(self, one: torch.fx.Node, other: torch.fx.Node) -> None:
        if one.op == "get_attr":
            constants = [getattr(self._gm, str(n.target), None) for n in (one, other)]
            if other.op != "get_attr" or not all(isinstance(c, torch.Tensor) for c in constants):
                raise Unlike("a layer holds a graph")
        elif self._seen(one, 1) != self._seen(other, 2) or _values(one) != _values(other):
            raise Unlike("layers read other values")
        (base, number), (other_base, later) = _numbered(one.name), _numbered(other.name)
        if base != other_base or self._steps.setdefault(base, later - number) != later - number:
            raise Unlike("names that do not count evenly")

    def _seen(self, node: torch.fx.Node, layer: int) -> Any:
        """The arguments of a node, from where its layer stands."""
        own = {n: rest for rest, n in self._parameters[layer].items()}

        def place(n: torch.fx.Node) -> Any:
            if n in own:
                return "own", own[n]
            number, position = self._where.get(n, (None, n.name))
            if number is None or number in (layer, layer - 1):
                return number if number is None else number - layer, position
            raise Unlike("a layer reads others than the last one")

        return str(torch.fx.map_arg((node.args, node.kwargs), lambda n: _Name(place(n))))

    # --- making

    def made(self) -> Whole:
        like, names = self._make_inputs()
        for node in self._before:
            self._copy(node, node.name, lambda n: self._new[n])
        for number in range(self._count):
            source = number if number < KEPT else 2 - number % 2  # neighbours never have the same fake values
            for position, node in enumerate(self._layers[source]):
                base, counter = _numbered(node.name)
                name = _name(base, counter + (number - source) * self._steps[base] if number >= KEPT else counter)
                new = self._copy(node, name, self._from(number, source))
                self._new[number, position] = new
                if number < KEPT:
                    self._new[node] = new
                else:
                    self._fit_meta(new, node, source, number, position)
        more = self._count - KEPT
        last = self._from(self._count - 1, KEPT - 1)
        for node in self._behind:
            base, counter = _numbered(node.name)
            self._new[node] = self._copy(node, _name(base, counter + more * self._steps.get(base, 0)), last)
        count_names(self._graph, self._gm.graph, {base: more * step for base, step in self._steps.items()})
        end = next(n for n in reversed(self._gm.graph.nodes) if n.op == "output")
        made = self._graph.output(self._results(end, last))
        made.meta = dict(end.meta)
        whole = torch.fx.GraphModule(self._gm, self._graph)
        whole.meta = dict(self._gm.meta)
        whole.meta[WEIGHTS] = {f"arg{i}_1" for i, name in enumerate(names) if name is not None}
        return Whole(whole, like, names)

    def _make_inputs(self) -> tuple[list[int], list[str | None]]:
        like: list[int] = []
        names: list[str | None] = []

        def take(node: torch.fx.Node, name: str | None, key: Any) -> None:
            like.append(self._inputs.index(node))
            names.append(name)
            new = self._graph.create_node("placeholder", f"arg{len(like) - 1}_1", name=f"arg{len(like) - 1}_1")
            new.meta = dict(node.meta)
            self._new[key] = new

        third = list(self._parameters[2].values())
        for node, name in zip(self._inputs, self._names):
            take(node, name, node)
            if third and node is third[-1]:
                for number in range(KEPT, self._count):
                    for rest, source in self._parameters[2 - number % 2].items():
                        take(source, f"{self._stack.path}.{number}.{rest}", (number, rest))
        return like, names

    def _from(self, number: int, source: int) -> Callable[[torch.fx.Node], torch.fx.Node]:
        """What a node of layer ``source`` reads, in the place of layer ``number``."""
        own = {n: rest for rest, n in self._parameters[source].items()} if number >= KEPT else {}

        def moved(node: torch.fx.Node) -> torch.fx.Node:
            if node in own:
                return self._new[number, own[node]]
            at = self._where.get(node)
            return self._new[node] if at is None or number < KEPT else self._new[number - source + at[0], at[1]]

        return moved

    def _copy(self, node: torch.fx.Node, name: str, read: Callable[[torch.fx.Node], torch.fx.Node]) -> torch.fx.Node:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), read)
        target: Any = node.target
        if node.op == "get_attr" and name != node.name:
            target = name
            with real_values():
                setattr(self._gm, name, getattr(self._gm, str(node.target)).clone())
        new = self._graph.create_node(node.op, target, args, kwargs, name, node.type)
        new.meta = dict(node.meta)
        self._new.setdefault(node, new)
        return new

    def _fit_meta(self, new: torch.fx.Node, node: torch.fx.Node, source: int, number: int, position: int) -> None:
        """What is said of a node, for one in another layer."""
        if "nn_module_stack" in node.meta:
            new.meta["nn_module_stack"] = self._module_stack(node, source, number)
        shown = self._views[source].get(position)
        if shown is not None:
            value, held = node.meta["val"], self._new[number - 1, shown].meta["val"]
            new.meta["val"] = held.as_strided(value.shape, value.stride(), value.storage_offset())

    def _module_stack(self, node: torch.fx.Node, source: int, number: int) -> dict[str, Any]:
        made = {}
        for key, (path, kind) in node.meta["nn_module_stack"].items():
            place = self._stack.place(readable_path(path) + ".")
            if place is not None:
                module = self._modules[number].get(place[1].rstrip("."))
                if module is not None:  # behind the number of a module stands which of its calls it is
                    key = re.sub(r"^\d+", str(id(module)), key)
                path = _renumbered(path, self._stack.path.rpartition(".")[2], source, number)
            made[key] = (path, kind)
        return made

    def _results(self, end: torch.fx.Node, last: Callable[[torch.fx.Node], torch.fx.Node]) -> Any:
        """What the graph returns: a run of results of each layer goes on, others are the last layer's."""
        results = end.args[0]
        if not isinstance(results, (tuple, list)):
            return torch.fx.map_arg(results, last)
        made: list[Any] = []
        at = 0
        while at < len(results):
            width = self._run_of_layers(results, at)
            if width == 0:
                node = results[at]
                if isinstance(node, torch.fx.Node) and self._where.get(node, (KEPT - 1, 0))[0] != KEPT - 1:
                    raise Unlike("results of some layers")
                made.append(torch.fx.map_arg(node, last))
                at += 1
                continue
            group = [self._where[results[at + i]][1] for i in range(width)]
            made += [self._new[number, position] for number in range(self._count) for position in group]
            at += KEPT * width
        return type(results)(made)

    def _run_of_layers(self, results: Sequence[Any], at: int) -> int:
        """How many results of each layer stand here, layer after layer; 0 if that is not so."""
        places = [self._where.get(n, (None, 0)) if isinstance(n, torch.fx.Node) else (None, 0) for n in results[at:]]
        width = 0
        while width < len(places) and places[width][0] == 0:
            width += 1
        want = [(number, place[1]) for number in range(KEPT) for place in places[:width]]
        return width if width and places[: KEPT * width] == want else 0


class _Name:
    """A value that shows as its place."""

    def __init__(self, place: Any) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<{self._place}>"


def _numbered(name: str) -> tuple[str, int]:
    match = _CONSTANT.fullmatch(name) or _NUMBERED.fullmatch(name)
    assert match is not None  # the second matches everything
    return match[1], int(match[2] or 0)


def _name(base: str, number: int) -> str:
    if base == "_tensor_constant":
        return f"{base}{number}"
    return f"{base}_{number}" if number else base


def _values(node: torch.fx.Node) -> Any:
    leaves = torch.utils._pytree.tree_leaves(node.meta.get("val"))
    return [(*_tensor(v), v.storage_offset()) if isinstance(v, torch.Tensor) else (type(v), v) for v in leaves]


def _storage(node: torch.fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _renumbered(path: str, name: str, old: int, new: int) -> str:
    """A path as dynamo writes it, with another number behind the name of the list of layers."""
    return re.sub(
        rf"(\b{re.escape(name)}(?:'\])?(?:\.|\[|\._modules\[|_modules\[)'?)({old})\b", rf"\g<1>{new}", path, count=1
    )
