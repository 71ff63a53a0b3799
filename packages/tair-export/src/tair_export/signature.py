"""What a saved graph takes and returns, as plain JSON: structure, names, element types, sizes.

A structure is ``"*"`` for a leaf, else an object with one key: ``tuple``, ``list``, ``dict`` (pairs of key and part) or
``record`` (a class with named fields: a named tuple, a dataclass, a ModelOutput). Classes are never imported by name: a
record comes back as ``Record``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ge_graph.dtypes import DataType
from tair_export import errors, guards

Tree: TypeAlias = "str | dict[str, Any]"
Dim: TypeAlias = "int | str"
LEAF: Final = "*"
_MAX_DEPTH: Final = 64
_PLAIN: Final = (bool, int, float, str, type(None))
NUMBERS: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool}


class Record(tuple):  # type: ignore[type-arg]
    """Named results, standing in for the model's own class: ``r.logits``, ``r["logits"]``, ``r[0]``, ``a, b = r``.

    Attributes:
        _type: Name of the class that the model returned.
    """

    _type: str
    _fields: tuple[str, ...]

    def __new__(cls, type_name: str, fields: Sequence[str], values: Sequence[Any]) -> Record:
        """A record of as many values as fields."""
        self = super().__new__(cls, values)
        self._type, self._fields = type_name, tuple(fields)
        return self

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", ())
        if name in fields:
            return self[fields.index(name)]
        raise AttributeError(f"{self.__dict__.get('_type', 'Record')} has no {name!r}; it has {', '.join(fields)}")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._fields:
                raise KeyError(key)
            return super().__getitem__(self._fields.index(key))
        return super().__getitem__(key)

    def keys(self) -> tuple[str, ...]:
        """Names of the values."""
        return self._fields

    def items(self) -> Iterator[tuple[str, Any]]:
        """Name and value, in order."""
        return zip(self._fields, self)

    def __repr__(self) -> str:
        return f"{self._type}({', '.join(f'{k}={v!r}' for k, v in self.items())})"


@dataclass(frozen=True, slots=True)
class Input:
    """A leaf of the arguments.

    Attributes:
        name: Name for messages and for the command line.
        kind: ``tensor``, ``number`` (a size or count that may change), ``constant`` (must be this value again) or
            ``opaque`` (a constant that JSON cannot hold; any value is taken).
        dtype: Element type of a tensor.
        shape: One int or symbol a dimension of a tensor.
        value: The constant, the symbol of a number, or the text of an opaque value.
    """

    name: str
    kind: str
    dtype: DataType | None = None
    shape: tuple[Dim, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class Output:
    """A leaf of the results.

    Attributes:
        kind: ``tensor``, ``number``, ``input`` (argument ``index`` itself), ``constant``.
        index: Output of the graph, or leaf of the arguments.
        dtype: Element type of a tensor.
        order: Dimensions from outermost to innermost in memory where the model's result is not row-major.
        value: The constant, or the Python type of a number.
    """

    kind: str
    index: int = -1
    dtype: DataType | None = None
    shape: tuple[Dim, ...] = ()
    order: tuple[int, ...] | None = None
    value: Any = None


@dataclass(frozen=True, slots=True)
class Signature:
    """The whole contract between caller and graph.

    Attributes:
        args: Structure of the positional arguments, a tuple.
        kwargs: Structure of the keyword arguments, a dict.
        names: Parameter names of the positional arguments; they may be given by keyword too.
        inputs: Leaves of ``args``, then of ``kwargs``.
        feeds: What each Data node reads: the number of a leaf, or the name of a state.
        symbols: Symbol to smallest and largest value, None for no limit.
        sizes: Text of a size that is not a plain symbol, ``2*s0``, to the expression (see ``guards``).
        guards: Conditions under which the graph was traced.
    """

    args: Tree
    kwargs: Tree
    names: tuple[str, ...]
    result: Tree
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    feeds: tuple[int | str, ...]
    symbols: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    sizes: Mapping[str, guards.Expr] = field(default_factory=dict)
    guards: tuple[guards.Expr, ...] = ()
    _plan: list[Any] = field(default_factory=list, repr=False, compare=False)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call.

        Raises:
            ArchiveError: GE5040 if the arguments have another structure.
        """
        positional, named = self._bind(args, kwargs)
        leaves: list[Any] = []
        _flatten(self.args, positional, "args", leaves)
        _flatten(self.kwargs, named, "kwargs", leaves)
        return leaves

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Sort arguments into those saved as positional and those saved by keyword."""
        count = len(_parts(self.args))
        keywords = [key for key, _ in _pairs(self.kwargs)]
        given = dict(kwargs)
        positional = list(args[:count])
        for name in self.names[len(positional) : count]:
            if name not in given:
                break
            positional.append(given.pop(name))
        for name, value in zip([k for k in keywords if k not in given], args[count:]):
            given[name] = value
        if len(positional) != count or set(given) != set(keywords) or len(args) + len(kwargs) != count + len(keywords):
            got = f"{len(args)} positional arguments and keywords {sorted(kwargs) or 'none'}"
            raise errors.bad_call(f"the call has {got}", self.text())
        return tuple(positional), given

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        return _unflatten(self.result, iter(leaves))

    def check_sizes(self, shapes: Sequence[tuple[int, ...] | None], numbers: Mapping[int, int] = {}) -> None:
        """Compare the sizes of tensor leaves with each other, with the limits of their symbols and with the guards.

        Args:
            shapes: One entry per leaf, None for what is not a tensor.
            numbers: Leaf to the value of an int.

        Raises:
            ArchiveError: GE5040 naming the input and the dimension, or the guard.
        """
        bound: dict[str, tuple[int, str]] = {}
        open_sizes: list[tuple[Input, int, int, str]] = []
        for at, (entry, shape) in enumerate(zip(self.inputs, shapes)):
            if entry.kind == "number" and at in numbers and isinstance(entry.value, str):
                self._check_size(entry, f"input '{entry.name}'", numbers[at], entry.value, bound)
            if entry.kind != "tensor" or shape is None:
                continue
            if len(shape) != len(entry.shape):
                raise errors.bad_call(f"input '{entry.name}' has shape {list(shape)}", describe(entry))
            for axis, (size, wanted) in enumerate(zip(shape, entry.shape)):
                if isinstance(wanted, str) and wanted in self.sizes:
                    open_sizes.append((entry, axis, size, wanted))
                else:
                    self._check_size(entry, f"dimension {axis} of input '{entry.name}'", size, wanted, bound)
        if self.sizes or self.guards:
            self._check_guards(bound, open_sizes)

    def _check_size(self, entry: Input, place: str, size: int, wanted: Dim, bound: dict[str, tuple[int, str]]) -> None:
        if isinstance(wanted, int):
            if size != wanted:
                raise errors.bad_call(f"{place} is {size}", describe(entry))
            return
        low, high = self.symbols.get(wanted, (None, None))
        if (low is not None and size < low) or (high is not None and size > high):
            limits = f"{wanted} in {low if low is not None else 0}..{high if high is not None else ''}"
            raise errors.bad_call(f"{place} is {size}", limits)
        first, where = bound.setdefault(wanted, (size, place)) if wanted in self.symbols else (size, place)
        if first != size:
            raise errors.bad_call(f"{place} is {size}, {where} is {first}", f"both are {wanted}")

    def _check_guards(self, bound: dict[str, tuple[int, str]], sizes: Sequence[tuple[Input, int, int, str]]) -> None:
        if not self._plan:
            self._plan.append([(expr, guards.symbols(expr), guards.function(expr)) for expr in self.guards])
        values = {name: value for name, (value, _) in bound.items()}
        for entry, axis, size, wanted in sizes:
            expr = self.sizes[wanted]
            missing = guards.symbols(expr) - values.keys()
            place = f"dimension {axis} of input '{entry.name}'"
            if len(missing) == 1 and guards.symbols(expr) == missing:  # told by this size alone
                (name,) = missing
                value = guards.solve(expr, name, size)
                if value is None:
                    raise errors.bad_call(f"{place} is {size}", f"a size of the form {wanted}")
                self._check_size(entry, place, value, name, bound)
                values[name] = value
            elif not missing and (expected := guards.function(expr)(values)) != size:
                raise errors.bad_call(f"{place} is {size}", f"{wanted} = {expected}")
        for expr, names, test in self._plan[0]:
            if names <= values.keys() and not guards.holds(test, values):
                places = {name: f"{name} ({where})" for name, (_, where) in bound.items()}
                given = ", ".join(f"{places.get(n, n)} = {values[n]}" for n in sorted(names))
                raise errors.bad_call(
                    f"the graph was traced under {guards.text(expr)}; here {given}", guards.text(expr)
                )

    def text(self) -> str:
        """One line: ``(x: f32[3, 4], *, y: int) -> f32[3, 2]``."""
        count = _leaves(self.args)
        parts = [describe(i) for i in self.inputs[:count]]
        if len(self.inputs) > count:
            parts += ["*", *(describe(i) for i in self.inputs[count:])]
        return f"({', '.join(parts)}) -> {', '.join(describe_output(o) for o in self.outputs) or 'nothing'}"


def describe(entry: Input) -> str:
    """``x: f32[3, s0]``."""
    if entry.kind == "tensor" and entry.dtype is not None:
        return f"{entry.name}: {entry.dtype.short}[{', '.join(map(str, entry.shape))}]"
    return f"{entry.name}: int" if entry.kind == "number" else f"{entry.name}={entry.value!r}"


def describe_output(entry: Output) -> str:
    """``f32[3, 2]``, ``int``, ``argument 0``, ``None``."""
    if entry.kind == "tensor" and entry.dtype is not None:
        return f"{entry.dtype.short}[{', '.join(map(str, entry.shape))}]"
    if entry.kind == "number":
        return str(entry.value)
    return f"argument {entry.index}" if entry.kind == "input" else repr(entry.value)


# --- structures ------------------------------------------------------------------------------------------------------


def _parts(tree: Tree) -> list[Tree]:
    if isinstance(tree, str):
        return []
    ((kind, body),) = tree.items()
    if kind in ("tuple", "list"):
        return list(body)
    return [part for _, part in (body if kind == "dict" else body["fields"])]


def _pairs(tree: Tree) -> list[tuple[Any, Tree]]:
    assert isinstance(tree, dict)
    return [(key, part) for key, part in tree["dict"]]


def _leaves(tree: Tree) -> int:
    return 1 if isinstance(tree, str) else sum(_leaves(p) for p in _parts(tree))


def _flatten(tree: Tree, value: Any, place: str, into: list[Any]) -> None:
    if isinstance(tree, str):
        into.append(value)
        return
    ((kind, body),) = tree.items()
    if kind in ("tuple", "list"):
        if not isinstance(value, (tuple, list)) or len(value) != len(body):
            raise errors.bad_call(f"{place} is {_kind(value)}", f"a {kind} of {len(body)}")
        for at, (part, item) in enumerate(zip(body, value)):
            _flatten(part, item, f"{place}[{at}]", into)
    elif kind == "dict":
        if not isinstance(value, Mapping) or set(value) != {k for k, _ in body}:
            raise errors.bad_call(f"{place} is {_kind(value)}", f"a dict with keys {[k for k, _ in body]}")
        for key, part in body:
            _flatten(part, value[key], f"{place}[{key!r}]", into)
    else:
        for name, part in body["fields"]:
            _flatten(part, _field(value, name, place, body), f"{place}.{name}", into)


def _field(value: Any, name: str, place: str, body: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if hasattr(value, name) and not name.startswith("__"):
        return getattr(value, name)
    names = [n for n, _ in body["fields"]]
    if isinstance(value, (tuple, list)) and len(value) == len(names):
        return value[names.index(name)]
    raise errors.bad_call(f"{place} is {_kind(value)}", f"a {body['type']}, or a dict with keys {names}")


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with keys {list(value)}"
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, (tuple, list)) else type(value).__name__


def _unflatten(tree: Tree, leaves: Iterator[Any]) -> Any:
    if isinstance(tree, str):
        return next(leaves)
    ((kind, body),) = tree.items()
    if kind in ("tuple", "list"):
        parts = [_unflatten(p, leaves) for p in body]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "dict":
        return {key: _unflatten(part, leaves) for key, part in body}
    return Record(body["type"], [n for n, _ in body["fields"]], [_unflatten(p, leaves) for _, p in body["fields"]])


# --- JSON ------------------------------------------------------------------------------------------------------------


def to_json(signature: Signature) -> dict[str, Any]:
    return {
        "args": signature.args,
        "feeds": list(signature.feeds),
        "guards": list(signature.guards),
        "inputs": [_input_json(i) for i in signature.inputs],
        "kwargs": signature.kwargs,
        "names": list(signature.names),
        "outputs": [_output_json(o) for o in signature.outputs],
        "result": signature.result,
        "sizes": dict(sorted(signature.sizes.items())),
        "symbols": {name: list(limits) for name, limits in sorted(signature.symbols.items())},
    }


def _input_json(entry: Input) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": entry.kind, "name": entry.name}
    if entry.dtype is not None:
        fields |= {"dtype": entry.dtype.name, "shape": list(entry.shape)}
    return fields if entry.kind == "tensor" else fields | {"value": plain(entry.value, f"argument '{entry.name}'")}


def _output_json(entry: Output) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": entry.kind}
    if entry.kind in ("tensor", "number", "input"):
        fields["index"] = entry.index
    if entry.dtype is not None:
        order = None if entry.order is None else list(entry.order)
        fields |= {"dtype": entry.dtype.name, "order": order, "shape": list(entry.shape)}
    return fields | {"value": plain(entry.value, "a result")} if entry.kind in ("constant", "number") else fields


def plain(value: Any, what: str) -> Any:
    """A value that JSON holds exactly; infinite floats and NaN as their names.

    Raises:
        ArchiveError: GE5030 for any other value.
    """
    if type(value) not in _PLAIN:
        raise errors.unwritable(
            f"{what} is a constant of type {type(value).__name__}, which an archive cannot hold",
            "return tensors, numbers, texts or None",
        )
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("float") not in ("nan", "inf", "-inf"):
            raise ValueError(f"value {value!r}")
        return float(value["float"])
    if type(value) not in _PLAIN:
        raise ValueError(f"value {value!r}")
    return value


def from_json(content: Any) -> Signature:
    """The signature from JSON values, every part checked.

    Raises:
        ValueError: Saying what is wrong.
    """
    if not isinstance(content, dict):
        raise ValueError("the signature is not an object")
    inputs = tuple(_read_input(i) for i in _list(content, "inputs"))
    outputs = tuple(_read_output(o, len(inputs)) for o in _list(content, "outputs"))
    args, kwargs, result = (check_tree(content.get(k)) for k in ("args", "kwargs", "result"))
    if not isinstance(args, dict) or "tuple" not in args or not isinstance(kwargs, dict) or "dict" not in kwargs:
        raise ValueError("args is not a tuple or kwargs no dict")
    if _leaves(args) + _leaves(kwargs) != len(inputs) or _leaves(result) != len(outputs):
        raise ValueError("structures and leaves do not add up")
    feeds = _list(content, "feeds")
    for feed in feeds:
        if not isinstance(feed, str) and not (type(feed) is int and 0 <= feed < len(inputs)):
            raise ValueError(f"feed {feed!r}")
    names = tuple(_text(n) for n in _list(content, "names"))
    return Signature(
        args,
        kwargs,
        names,
        result,
        inputs,
        outputs,
        tuple(feeds),
        _symbols(content.get("symbols")),
        _sizes(content.get("sizes", {})),
        _guards(content.get("guards", [])),
    )


def _sizes(sizes: Any) -> dict[str, guards.Expr]:
    if not isinstance(sizes, dict):
        raise ValueError("sizes is not an object")
    for expr in sizes.values():
        guards.check(expr)
    return sizes


def _guards(conditions: Any) -> tuple[guards.Expr, ...]:
    if not isinstance(conditions, list) or len(conditions) > guards.MAX_GUARDS:
        raise ValueError("guards is not a list, or too long")
    for expr in conditions:
        guards.check(expr)
    return tuple(conditions)


def _symbols(symbols: Any) -> dict[str, tuple[int | None, int | None]]:
    if not isinstance(symbols, dict):
        raise ValueError("symbols is not an object")
    result = {}
    for name, limits in symbols.items():
        if not isinstance(limits, list) or len(limits) != 2 or not all(v is None or type(v) is int for v in limits):
            raise ValueError(f"limits of {name!r}")
        result[name] = (limits[0], limits[1])
    return result


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def read_shape(value: Any, *, symbols: bool = True) -> tuple[Dim, ...]:
    """A list of sizes.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, list) or len(value) > 64:
        raise ValueError(f"shape {value!r}")
    for d in value:
        if not (type(d) is int and -1 <= d < 1 << 62) and not (symbols and isinstance(d, str)):
            raise ValueError(f"size {d!r}")
    return tuple(value)


def read_dtype(value: Any) -> DataType:
    """An element type by name.

    Raises:
        ValueError: If there is no such type.
    """
    try:
        return DataType[_text(value)]
    except KeyError:
        raise ValueError(f"element type {value!r}") from None


def _read_input(content: Any) -> Input:
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind == "tensor":
        return Input(
            _text(content.get("name")), kind, read_dtype(content.get("dtype")), read_shape(content.get("shape"))
        )
    if kind in ("number", "constant", "opaque"):
        return Input(_text(content.get("name")), kind, value=_value(content.get("value")))
    raise ValueError(f"input {content!r}")


def _read_output(content: Any, inputs: int) -> Output:
    kind = content.get("kind") if isinstance(content, dict) else None
    index = content.get("index", -1) if isinstance(content, dict) else -1
    if type(index) is not int or index < -1 or (kind == "input" and not 0 <= index < inputs):
        raise ValueError(f"output {content!r}")
    if kind == "constant":
        return Output(kind, value=_value(content.get("value")))
    if kind == "input":
        return Output(kind, index)
    if kind == "number" and content.get("value") in NUMBERS and index >= 0:
        return Output(kind, index, value=content["value"])
    if kind == "tensor" and index >= 0:
        order = content.get("order")
        shape = read_shape(content.get("shape"))
        if order is not None and (not isinstance(order, list) or sorted(map(int, order)) != list(range(len(shape)))):
            raise ValueError(f"order {order!r}")
        return Output(kind, index, read_dtype(content.get("dtype")), shape, None if order is None else tuple(order))
    raise ValueError(f"output {content!r}")


def check_tree(tree: Any, depth: int = 0) -> Tree:
    """The structure itself if it is one.

    Raises:
        ValueError: If it is none, or nested too deep.
    """
    if tree == LEAF:
        return LEAF
    if depth > _MAX_DEPTH or not isinstance(tree, dict) or len(tree) != 1:
        raise ValueError(f"structure {str(tree)[:80]}")
    ((kind, body),) = tree.items()
    if kind == "record":
        if not isinstance(body, dict) or not isinstance(body.get("type"), str):
            raise ValueError("record without type")
        body, keys = body.get("fields"), str
    elif kind in ("tuple", "list", "dict"):
        keys = None if kind != "dict" else (str, int)  # type: ignore[assignment]
    else:
        raise ValueError(f"structure {kind!r}")
    if not isinstance(body, list):
        raise ValueError(f"{kind} without parts")
    for part in body:
        if keys is not None and not (isinstance(part, list) and len(part) == 2 and isinstance(part[0], keys)):
            raise ValueError(f"{kind} with part {str(part)[:80]}")
        check_tree(part if keys is None else part[1], depth + 1)
    return tree
