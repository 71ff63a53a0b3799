"""What dynamo does around a graph, as data: where each input of the graph comes from, and how results are put together.

Dynamo writes bytecode for that. Bytecode in a file would be code, so here it is paths such as ``self._modules['fc']``
and the structure of the results, both found by watching one call; a call that does more than that (writes attributes,
appends to lists, makes objects of unknown classes) is found out and not recorded.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from ge_converters.base import torch_frames
from ge_converters.base.torch_compat import current_translation
from torchair.artifact.content import Content, is_known
from torchair.artifact.plain import Unstorable, plain, unplain

Path = list[Any]
"""Steps from a name: ``["local", "x"]``, then ``["attr", name]``, ``["item", key]``, ``["key", position]`` …"""

_DEPTH: Final = 32


# --- where inputs come from ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of dynamo's graph.

    Attributes:
        value: The value in the call that is traced.
    """

    path: Path
    value: Any


def order_of(inner: Sequence[Any], flat: Sequence[Any]) -> list[int] | None:
    """Which of dynamo's inputs is which of the ATen graph's; None if there are others among these."""
    if len(inner) == len(flat) and all(a is b for a, b in zip(inner, flat)):
        return list(range(len(flat)))
    place = {id(v): i for i, v in reversed(list(enumerate(flat)))}
    found = all(isinstance(v, torch.Tensor) and id(v) in place for v in inner)
    return [place[id(v)] for v in inner] if found else None


def inputs_of(gm: torch.fx.GraphModule, function: Callable[..., Any]) -> list[GraphInput]:
    """The inputs of a graph that dynamo is handing to its backend just now.

    Raises:
        Unstorable: One comes from where no path leads, or the call does more than compute results.
    """
    tx = current_translation()
    code = getattr(function, "__code__", None)
    traced = torch_frames.frame_code(tx)
    if traced is not code:
        raise Unstorable(f"the frame that is traced is '{traced.co_name}', not the function itself (a decorator?)")
    more = torch_frames.does_more(tx)
    if more:
        raise Unstorable(more)
    modules = torch_frames.imported_modules(tx)
    inputs = []
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        argument = torch_frames.graph_argument(node)
        if argument is None or getattr(argument, "pass_arg_as_tensor", False):
            raise Unstorable(f"input {node.name}, which dynamo makes itself")
        path = torch_frames.path_of(argument.source, modules)
        if isinstance(path, str):
            raise Unstorable(path)
        inputs.append(GraphInput(path, argument.example))
    return inputs


class PathRoots:
    """What paths begin with, for one call of a function.

    A path may come from a file of somebody else, so nothing on it can act. It leads through dicts, lists and tuples,
    and through what modules and other objects hold in their own dicts and slots; no attribute is asked for by Python's
    rules, which call properties, ``__getattr__`` and whatever else a class has, and nothing is imported.

    Args:
        function: The plain function that dynamo traces.
        bound: Its ``self``, as a tuple of one or none.
    """

    def __init__(self, function: Callable[..., Any], bound: tuple[Any, ...]) -> None:
        self._signature = inspect.signature(function)
        self._function, self._bound = function, bound
        self._globals: dict[str, Any] = getattr(function, "__globals__", {})
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None) or ()
        self._cells = dict(zip(code.co_freevars if code is not None else (), cells))

    def locals_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The local variables that a call begins with.

        Raises:
            TypeError: The arguments are not those of the function, as for any call.
        """
        bound = self._signature.bind(*self._bound, *args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    @functools.cached_property
    def modules(self) -> dict[str, types.ModuleType]:
        """The modules in which this program is written: of its function and classes, and those that they import."""
        classes = [k for b in self._bound for k in type(b).__mro__]
        for each in self._bound:
            classes += [type(m) for m in each.modules()] if isinstance(each, torch.nn.Module) else []
        names = {self._function.__module__, *(k.__module__ for k in classes)}
        own = {m for name in names if (m := sys.modules.get(name)) is not None and not is_known(name)}
        spaces = [self._globals, *map(vars, own)]
        used = {v for s in spaces for v in list(s.values()) if isinstance(v, types.ModuleType)}
        return {m.__name__: m for m in own | used if sys.modules.get(m.__name__) is m and not is_known(m.__name__)}

    @functools.cached_property
    def records(self) -> dict[tuple[str, str], type]:
        """The dataclasses and named tuples that this program's function can mean, by module and name."""
        spaces = [self._globals, *map(vars, self.modules.values())]
        found = [v for s in spaces for v in list(s.values())]
        found += [c.cell_contents for c in self._cells.values() if _is_set(c)]
        found += [*Content(strict=False).add(self._function).add(tuple(map(type, self._bound))).classes]
        return {(v.__module__, v.__qualname__): v for v in found if isinstance(v, type) and _is_record(v)}

    def value(self, path: Path, local: Mapping[str, Any]) -> Any:
        """Where a path leads.

        Raises:
            LookupError, AttributeError, TypeError, ValueError: It leads nowhere.
        """
        (kind, name), *steps = path
        if kind == "local":
            value = local[name]
        elif kind == "cell":
            # an argument that inner functions read is a cell, too
            value = self._cells[name].cell_contents if name in self._cells else local[name]
        elif kind == "global":
            value = self._globals[name]
        else:
            value = self.modules[name]
        if steps and isinstance(value, types.ModuleType):
            (kind, name), *steps = steps
            if kind != "attr" or self.modules.get(value.__name__) is not value:
                raise TypeError(f"module {value.__name__} is not of this program")
            value = vars(value)[name]
        for kind, key in steps:
            value = _STEPS[kind](value, key)
        return value

    def input(self, path: Path, local: Mapping[str, Any]) -> Any:
        """The tensor or number to which a path leads.

        Raises:
            LookupError, AttributeError, TypeError, ValueError: It leads to none.
        """
        value = self.value(path, local)
        if not isinstance(value, (torch.Tensor, int, float)):
            raise TypeError(f"it is a {type(value).__name__}, neither a tensor nor a number")
        return value


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_record(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


_CLOSED: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def _attribute(value: Any, name: str) -> Any:
    """What an object holds under a name."""
    if isinstance(value, _CLOSED):
        raise TypeError(f"no path leads through a {type(value).__name__}")
    held = object.__getattribute__(value, "__dict__") if type(value).__dictoffset__ else {}
    if name in held:
        return held[name]
    if isinstance(value, torch.nn.Module):
        for place in ("_parameters", "_buffers", "_modules"):
            if name in held.get(place, ()):
                return held[place][name]
    if isinstance(value, tuple) and name in getattr(type(value), "_fields", ()):
        return tuple.__getitem__(value, _field_names(type(value)).index(name))
    for cls in type(value).__mro__:
        slot = vars(cls).get(name)
        if isinstance(slot, types.MemberDescriptorType):
            return slot.__get__(value)
    raise AttributeError(f"the {type(value).__name__} holds no '{name[:80]}'")


def _item(value: Any, key: Any) -> Any:
    """An item of a dict, list or tuple, whatever a class of them does beside that."""
    if isinstance(value, dict):
        found = dict.get(value, key, _STEPS)
        if found is _STEPS:
            raise KeyError(key)
        return found
    if isinstance(value, list):
        return list.__getitem__(value, key)
    if isinstance(value, tuple):
        return tuple.__getitem__(value, key)
    raise TypeError(f"no path leads through a {type(value).__name__}")


def _at_position(value: Any, position: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} has no keys")
    return dict.get(value, list(dict.keys(value))[position])


def _number(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(torch.Tensor, name)

    def number(value: Any, dim: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a {type(value).__name__} has no {name}")
        return function(value) if dim is None else function(value, dim)

    return number


_STEPS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "attr": _attribute,
    "item": _item,
    "key": _at_position,
    "size": _number("size"),
    "stride": _number("stride"),
    "storage_offset": _number("storage_offset"),
}
_KEYS: Final[dict[str, tuple[type, ...]]] = {
    "attr": (str,),
    "item": (str, int, bool),
    "key": (int,),
    "size": (int,),
    "stride": (int,),
    "storage_offset": (type(None),),
}


def read_path(path: Any) -> Path:
    """A path from a file, checked.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(path, list) or not 1 <= len(path) <= _DEPTH:
        raise ValueError(f"path {str(path)[:80]}")
    for position, step in enumerate(path):
        kinds = _STEPS if position else ("local", "cell", "global", "module")
        if not isinstance(step, list) or len(step) != 2 or type(step[0]) is not str or step[0] not in kinds:
            raise ValueError(f"path step {str(step)[:80]}")
        if type(step[1]) not in (_KEYS[step[0]] if position else (str,)):
            raise ValueError(f"path step {str(step)[:80]}")
        if step[0] == "attr" and not (step[1].isidentifier() and step[1][:2] != "__"):
            raise ValueError(f"path leads through {str(step[1])[:40]!r}")
    return path


# --- results ---------------------------------------------------------------------------------------------------------


class MarkedInt(int):
    """An int that is known again: a number that the graph computed."""


class MarkedFloat(float):
    """A float that is known again."""


def mark(value: Any) -> Any:
    """A result of the graph as something that is known again by identity.

    Raises:
        Unstorable: A bool, of which there are only two.
    """
    if type(value) is int:
        return MarkedInt(value)
    if type(value) is float:
        return MarkedFloat(value)
    if value is None or isinstance(value, torch.Tensor):
        return value
    raise Unstorable(f"the graph computes a {type(value).__name__}")


class ResultRecorder:
    """Finds out how the result of a call is made of what the graph returned and of what the caller gave.

    Args:
        outputs: What the graph returned, marked.
        inputs: Paths and values of the graph's inputs.
        local: The local variables that the call began with.
        names: Knows the classes that a result may be made of.
        numbers: Values of inputs that are numbers and may differ from call to call, with their names.
    """

    def __init__(
        self,
        outputs: Sequence[Any],
        inputs: Sequence[GraphInput],
        local: Mapping[str, Any],
        names: PathRoots,
        numbers: Mapping[Any, str] = {},
    ) -> None:
        self._names, self._numbers = names, numbers
        self._outputs = {id(v): i for i, v in enumerate(outputs) if v is not None}
        self._given: dict[int, Path] = {}
        for name, value in local.items():
            self._remember([["local", name]], value, 4)
        for each in inputs:
            if isinstance(each.value, torch.Tensor):
                self._given.setdefault(id(each.value), each.path)

    def _remember(self, path: Path, value: Any, depth: int) -> None:
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
            return
        if id(value) in self._given:
            return
        self._given[id(value)] = path
        if not depth:
            return
        if isinstance(value, (list, tuple)):
            for i, part in enumerate(value):
                self._remember([*path, ["item", i]], part, depth - 1)
        elif isinstance(value, dict):
            for key, part in value.items():
                if type(key) in (str, int):
                    self._remember([*path, ["item", key]], part, depth - 1)
        elif dataclasses.is_dataclass(value) and hasattr(value, "__dict__"):
            for each in dataclasses.fields(value):
                self._remember([*path, ["attr", each.name]], vars(value).get(each.name), depth - 1)

    def tree(self, value: Any) -> dict[str, Any]:
        """The recipe of a result.

        Raises:
            Unstorable: Part of it comes from nowhere that is known.
        """
        if id(value) in self._outputs:
            return {"out": self._outputs[id(value)]}
        if id(value) in self._given:
            return {"given": self._given[id(value)]}
        if isinstance(value, torch.Tensor):
            raise Unstorable("a result is a tensor that neither the graph nor the caller made")
        kind = type(value)
        if kind in (list, tuple):
            return {kind.__name__: [self.tree(v) for v in value]}
        if kind in (dict, OrderedDict) and all(type(k) in (str, int) for k in value):
            return {kind.__name__: [[k, self.tree(v)] for k, v in value.items()]}
        if dataclasses.is_dataclass(value) or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return {"record": [self._class_name(kind), [[n, self.tree(v)] for n, v in _fields(value)]]}
        if isinstance(value, torch.Size):
            return {"size": [self.tree(v) for v in value]}
        if kind in (int, float) and value in self._numbers:  # dynamo hands numbers on beside the graph
            raise Unstorable(f"a result is {value}, as is {self._numbers[value]}, which may be another in each call")
        return {"value": plain(value)}

    def _class_name(self, kind: type) -> list[str]:
        name = (kind.__module__, kind.__qualname__)
        if self._names.records.get(name) is not kind:
            raise Unstorable(f"a result of class {kind.__qualname__}, which the function does not name")
        return [*name]


def _field_names(cls: Any) -> list[str]:
    """What the constructor of a record takes."""
    if issubclass(cls, tuple):
        return [*cls._fields]
    return [f.name for f in dataclasses.fields(cls) if f.init]


def _fields(value: Any) -> list[tuple[str, Any]]:
    kind = type(value)
    if isinstance(value, tuple):
        return list(zip(_field_names(kind), value))
    if not all(f.init for f in dataclasses.fields(value)):
        raise Unstorable(f"a result of class {kind.__qualname__}, whose fields are not all set by its constructor")
    return [(name, _attribute(value, name)) for name in _field_names(kind)]


Build = Callable[[Sequence[Any], Callable[[Path], Any]], Any]


def builder(tree: Any, outputs: int, names: PathRoots, depth: int = _DEPTH) -> Build:
    """A function of the graph's outputs and a resolver of paths that makes the result.

    Args:
        tree: What ``ResultRecorder.tree`` found, from a file.
        outputs: Number of the graph's outputs.
        names: Knows the classes that a result may be made of; no other is.
        depth: How deep it may be.

    Raises:
        ValueError, TypeError, KeyError: It is no such tree.
    """
    if not isinstance(tree, dict) or len(tree) != 1 or not depth:
        raise ValueError(f"result {str(tree)[:80]}")
    ((kind, content),) = tree.items()
    if kind == "out":
        if type(content) is not int or not 0 <= content < outputs:
            raise ValueError(f"output {str(content)[:40]} of {outputs}")
        return lambda outs, find: outs[content]
    if kind == "given":
        path = read_path(content)
        return lambda outs, find: find(path)
    if kind == "value":
        value = unplain(content)
        return lambda outs, find: value
    return _container(kind, content, outputs, names, depth - 1)


def _container(kind: str, content: Any, outputs: int, names: PathRoots, depth: int) -> Build:
    if kind in ("list", "tuple", "size"):
        parts = [builder(c, outputs, names, depth) for c in content]
        made: Any = {"list": list, "tuple": tuple, "size": torch.Size}[kind]
        return lambda outs, find: made([p(outs, find) for p in parts])
    if kind in ("dict", "OrderedDict"):
        pairs = [(unplain(k), builder(c, outputs, names, depth)) for k, c in content]
        make: Any = {"dict": dict, "OrderedDict": OrderedDict}[kind]
        return lambda outs, find: make([(k, p(outs, find)) for k, p in pairs])
    if kind != "record":
        raise ValueError(f"result of kind {kind[:40]}")
    (module, qualname), fields = content
    cls = names.records.get((module, qualname))
    if cls is None:
        raise ValueError(f"class {str(qualname)[:80]} of module {str(module)[:80]} is none that the function names")
    named = {n: builder(c, outputs, names, depth) for n, c in fields}
    if list(named) != _field_names(cls):
        raise ValueError(f"fields of {str(qualname)[:80]}")
    record = cls
    return lambda outs, find: record(**{n: p(outs, find) for n, p in named.items()})


def unmarked(value: Any) -> Any:
    """A result without marks, for the caller of the recorded call; lists and dicts are changed in place."""
    if isinstance(value, MarkedInt):
        return int(value)
    if isinstance(value, MarkedFloat):
        return float(value)
    if type(value) is tuple:
        return tuple(map(unmarked, value)) if any(map(_has_marks, value)) else value
    if type(value) is list:
        value[:] = map(unmarked, value)
    elif type(value) is dict:
        value.update((k, unmarked(v)) for k, v in value.items())
    return value


def _has_marks(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_has_marks, value))
    return isinstance(value, (MarkedInt, MarkedFloat)) or (type(value) is dict and any(map(_has_marks, value.values())))
