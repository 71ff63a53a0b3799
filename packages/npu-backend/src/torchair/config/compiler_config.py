"""``CompilerConfig``: the tree of options, built from the rows of ``options.py``.

``config.mode = x`` and ``config.mode.value = x`` both set an option and both check it. Reading gives the value object;
``.value`` is the plain value.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ge_graph.errors import ConfigError
from torchair.config.options import CONFLICTS, GRAPH_EX, INT64_MAX, OPTIONS, Effective, Kind, Option, words

if TYPE_CHECKING:
    from torchair.config.explain import Explanation

__all__ = [
    "INT64_MAX",
    "CallableValue",
    "CompilerConfig",
    "DictOptionValue",
    "GraphExConfig",
    "IntListValue",
    "IntRangeValue",
    "MustExistedPathValue",
    "NpuBaseConfig",
    "OptionValue",
    "TextValue",
]


def _same(a: Any, b: Any) -> bool:
    """Equality that tells True from 1 and 0 from False."""
    return type(a) is type(b) and bool(a == b)


class OptionValue:
    """A value with a default and a list of allowed values.

    Args:
        default: First value; not checked, so that ``None`` can mean "unset".
        choices: Allowed values; None allows everything.
        same: Other names of values: setting one sets the value that it means.

    Errors: ConfigError GE1002 for a value outside ``choices``.
    """

    kind: Kind = "choice"

    def __init__(
        self, default: Any, choices: Iterable[Any] | None = None, same: Mapping[str, str] | None = None
    ) -> None:
        self.path = "option"
        self.same: Mapping[str, str] = same or {}
        self.default = default
        self.choices: tuple[Any, ...] | None = None if choices is None else tuple(choices)
        self._value = default

    @property
    def value(self) -> Any:
        """The plain value; assigning checks it."""
        return self._value

    @value.setter
    def value(self, new: Any) -> None:
        if isinstance(new, OptionValue):
            new = new.value
        self._value = new if _same(new, self.default) else self.check(new)

    @property
    def is_default(self) -> bool:
        """Whether the option still has its default."""
        return _same(self.value, self.default)

    @property
    def allowed(self) -> str:
        """What may be assigned, in words."""
        return words(self)

    def check(self, new: Any) -> Any:
        """The value to store, or ConfigError; 0 and 1 are taken for a switch's False and True."""
        if type(new) is str:
            new = self.same.get(new, new)
        if type(new) is int and self.choices is not None and True in self.choices and new not in self._numbers():
            new = {0: False, 1: True}.get(new, new)
        if self.choices is not None and not any(_same(new, c) for c in self.choices):
            self.refuse("GE1002", new, near=[*(c for c in self.choices if isinstance(c, str)), *self.same])
        return new

    def _numbers(self) -> list[int]:
        return [c for c in self.choices or () if type(c) is int]

    def refuse(self, code: str, got: Any, why: str = "", near: Iterable[str] = ()) -> NoReturn:
        """Raise ConfigError with path, value got and values allowed."""
        text = repr(got)
        if len(text) > 200:
            text = text[:197] + "..."
        close = difflib.get_close_matches(got, list(near), 1, 0.5) if isinstance(got, str) else []
        raise ConfigError(
            code,
            f"{self.path}: got {text} ({type(got).__name__}), allowed: {self.allowed}" + (f"; {why}" if why else ""),
            next=f"did you mean {close[0]!r}?"
            if close
            else "set one of the allowed values; docs/options.md lists them",
        )

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, OptionValue) else other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.value)


class OppositeValue(OptionValue):
    """An older switch that turns off what a newer one turns on.

    Args:
        other: The newer one.

    Errors: ConfigError GE1002 for anything but True and False.
    """

    def __init__(self, other: OptionValue) -> None:
        super().__init__(not other.default, (True, False))
        self._other = other

    @property
    def value(self) -> bool:
        """The opposite of the newer switch."""
        return not self._other.value

    @value.setter
    def value(self, new: Any) -> None:
        self._other.value = not self.check(new.value if isinstance(new, OptionValue) else new)


class IntRangeValue(OptionValue):
    """An int in ``low..high`` without ``holes``.

    Errors: ConfigError GE1003 for another type, GE1004 outside the range.
    """

    kind = "int"

    def __init__(self, default: int | None, low: int, high: int, holes: tuple[int, ...] = ()) -> None:
        super().__init__(default)
        self.low, self.high, self.holes = low, high, holes

    def check(self, new: Any) -> int:
        """The int, or ConfigError."""
        if isinstance(new, bool) or not isinstance(new, int):
            self.refuse("GE1003", new)
        if not self.low <= new <= self.high or new in self.holes:
            self.refuse("GE1004", new)
        return new


# Kinds of values that are told by their type alone.
_FITS: dict[str, Callable[[Any], bool]] = {
    "int_list": lambda new: isinstance(new, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in new),
    "callable": callable,
    "dict": lambda new: isinstance(new, dict),
    "tuple": lambda new: isinstance(new, tuple),
    "text": lambda new: isinstance(new, str),
    "path": lambda new: isinstance(new, (str, os.PathLike)) and isinstance(os.fspath(new), str),
}


class _TypedValue(OptionValue):
    def check(self, new: Any) -> Any:
        """The value, or ConfigError GE1003."""
        if not _FITS[self.kind](new):
            self.refuse("GE1003", new)
        return new


class IntListValue(_TypedValue):
    """A list of ints, bools excluded. Errors: ConfigError GE1003."""

    kind = "int_list"


class CallableValue(_TypedValue):
    """A callable. Errors: ConfigError GE1003."""

    kind = "callable"


class DictOptionValue(_TypedValue):
    """A dict. Errors: ConfigError GE1003."""

    kind = "dict"


class TupleValue(_TypedValue):
    """A tuple, such as a memory pool handle. Errors: ConfigError GE1003."""

    kind = "tuple"


class TextValue(_TypedValue):
    """Text, of a form if one is given.

    Errors: ConfigError GE1003 for another type, GE1006 for another form.
    """

    kind = "text"

    def __init__(self, default: str | None, form: str = "", example: str = "") -> None:
        super().__init__(default)
        self.form, self.example = form, example

    def check(self, new: Any) -> str:
        """The text, or ConfigError."""
        text: str = super().check(new)
        if self.form and not re.fullmatch(self.form, text):
            self.refuse("GE1006", text)
        return text


class MustExistedPathValue(OptionValue):
    """A path that exists: a folder with read and write rights, or a readable file.

    Args:
        default: First value, not checked.
        kind: ``directory``, ``file`` or ``""`` for either.
        content: Check of a file's content, called with the path; it raises ValueError with the reason.

    Errors: ConfigError GE1003 for another type, GE1005 for a missing path (a missing directory is
    made; for one that cannot be) or missing rights, GE1007 for a file whose
    content is refused.
    """

    def __init__(
        self,
        default: str | None,
        kind: Literal["directory", "file", ""] = "",
        content: Callable[[Path], None] | None = None,
    ) -> None:
        super().__init__(default)
        self.kind, self.content = kind or "path", content

    def check(self, new: Any) -> str:
        """The path as text, or ConfigError."""
        if not _FITS["path"](new):
            self.refuse("GE1003", new)
        path = Path(new)
        try:
            if self.kind == "directory":
                path.mkdir(parents=True, exist_ok=True)
            exists = path.is_file() if self.kind == "file" else path.exists()
        except (OSError, ValueError) as error:  # a file of that name, a NUL byte, a name that is too long
            self.refuse("GE1005", new, why=f"it cannot be made: {error}" if self.kind == "directory" else str(error))
        if not exists:
            self.refuse("GE1005", new, why="it does not exist")
        if not os.access(path, os.R_OK | (os.W_OK if self.kind == "directory" else 0)):
            self.refuse("GE1005", new, why="the rights are missing")
        if self.content is not None:
            try:
                self.content(path)
            except ValueError as error:
                self.refuse("GE1007", new, why=str(error))
        return str(os.fspath(new))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError("the file holds no JSON object")
    return data


def read_fusion_switch(path: Path) -> dict[str, dict[str, str]]:
    """The groups of a fusion switch file: ``GraphFusion`` and ``UBFusion``, pass name to ``on`` or ``off``.

    Raises:
        ValueError: The file has another form.
    """
    switch = _read_object(path).get("Switch")
    if not isinstance(switch, dict):
        raise ValueError("the key 'Switch' with an object is missing")
    for group, passes in switch.items():
        if group not in ("GraphFusion", "UBFusion"):
            raise ValueError(f"Switch has the group {group!r}; known are GraphFusion and UBFusion")
        if not isinstance(passes, dict):
            raise ValueError(f"Switch.{group} is not an object")
        for name, state in passes.items():
            if state not in ("on", "off"):
                raise ValueError(f"Switch.{group}.{name} is {state!r}; known are 'on' and 'off'")
    return switch


def check_dump_json(path: Path) -> None:
    """Check the rules of a dump description.

    Raises:
        ValueError: A rule is broken.
    """
    dump = _read_object(path).get("dump")
    if not isinstance(dump, dict):
        raise ValueError("the key 'dump' with an object is missing")
    watcher = dump.get("dump_scene") == "watcher"
    if "dump_path" not in dump and "dump_scene" not in dump or watcher and "dump_path" not in dump:
        raise ValueError("dump.dump_path is missing")
    overflow = dump.get("dump_debug") == "on"
    if overflow and (dump.get("dump_list") or dump.get("dump_op_switch") == "on"):
        raise ValueError("dump_debug=on excludes dump_list and dump_op_switch=on")
    if watcher and (overflow or "dump_op_switch" in dump):
        raise ValueError("dump_scene=watcher excludes dump_debug and dump_op_switch")
    if watcher and dump.get("dump_mode", "output") != "output":
        raise ValueError("dump_scene=watcher knows dump_mode=output only")


_CONTENT: dict[str, Callable[[Path], Any]] = {"fusion_switch": read_fusion_switch, "dump_json": check_dump_json}


def make_value(row: Option) -> OptionValue:
    """The value object of a row, with its path and, where the environment says so, its value."""
    made: OptionValue
    if row.kind == "choice":
        made = OptionValue(row.default, row.choices, row.same)
    elif row.kind == "int":
        made = IntRangeValue(row.default, row.low, row.high, row.holes)
    elif row.kind in ("text", "name"):
        made = TextValue(row.default, row.form, row.example)
    elif row.kind in ("directory", "file"):
        made = MustExistedPathValue(row.default, row.kind, _CONTENT.get(row.content))
    else:
        made = next(c for c in _TypedValue.__subclasses__() if c.kind == row.kind)(row.default)
    made.path = "config." + row.path
    return made


class NpuBaseConfig:
    """A group of options. Reading an attribute gives a value object or a group; assigning sets a value.

    Errors: ConfigError GE1001 for an unknown name, GE1009 when a whole group is assigned.
    """

    _place: str
    _rows: list[tuple[str, Option]]
    _items: dict[str, OptionValue | NpuBaseConfig]
    _aliases: dict[str, OptionValue | NpuBaseConfig]
    _fixed_attrs: list[str]

    def __init__(self, path: str = "config") -> None:
        fresh = {"_place": path, "_rows": [], "_items": {}, "_aliases": {}, "_fixed_attrs": []}
        for name, value in fresh.items():
            if name not in self.__dict__:
                object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        items = self.__dict__.get("_items", {})
        if name in items:
            return items[name]
        aliases = self.__dict__.get("_aliases", {})
        if name in aliases:
            return aliases[name]
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._unknown(name)

    def __setattr__(self, name: str, new: Any) -> None:
        if name == "_fixed_attrs":
            object.__setattr__(self, name, list(new))
            return
        item = self._items.get(name, self._aliases.get(name))
        if isinstance(item, OptionValue):
            item.value = new
        elif isinstance(item, NpuBaseConfig):
            names = ", ".join(item._items)
            raise ConfigError(
                "GE1009",
                f"{self._place}.{name} is a group of options, got {new!r}",
                next=f"set one of its options: {names}",
            )
        elif isinstance(new, OptionValue):  # a subclass adds an option of its own
            new.path = f"{self._place}.{name}"
            self._items[name] = new
        else:
            raise self._unknown(name)

    def __delattr__(self, name: str) -> None:
        raise ConfigError("GE1009", f"{self._place}.{name} cannot be deleted", next="assign its default instead")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._items]

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._aliases

    def __repr__(self) -> str:
        changed = (f"{_short(v)}={v!r}" for _, v in self.values() if not v.is_default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def _unknown(self, name: str) -> ConfigError:
        elsewhere = [path for path in self._all_paths() if path.rsplit(".", 1)[-1] == name]
        close = difflib.get_close_matches(name, [*self._items, *self._aliases], 3, 0.6)
        if elsewhere:
            hint = f"did you mean {' or '.join('config.' + p for p in elsewhere)}?"
        elif close:
            hint = f"did you mean {' or '.join(f'{self._place}.{c}' for c in close)}?"
        else:
            hint = f"{self._place} has: {', '.join(self._items)}"
        return _UnknownOption("GE1001", f"{self._place} has no option {name!r}", next=hint)

    def _all_paths(self) -> Iterable[str]:
        return (row.path for row in OPTIONS)

    def values(self) -> Iterator[tuple[str, OptionValue]]:
        """Every option below this group as (path, value object), in the order of ``docs/options.md``."""
        for item in self._items.values():
            if isinstance(item, NpuBaseConfig):
                yield from item.values()
            else:
                yield _short(item), item

    def as_dict(self) -> dict[str, Any]:
        """Option path to plain value. Names in ``_fixed_attrs`` (callables, handles) are left out."""
        return {path: item.value for path, item in self._plain()}

    def _plain(self) -> Iterator[tuple[str, OptionValue]]:
        for name, entry in self._items.items():
            if name in self._fixed_attrs:
                continue
            if isinstance(entry, NpuBaseConfig):
                yield from entry._plain()
            else:
                yield _short(entry), entry


def _short(value: OptionValue) -> str:
    return value.path.removeprefix("config.")


class _UnknownOption(ConfigError, AttributeError):
    """An AttributeError too, so that ``hasattr`` and ``getattr(config, name, default)`` work."""


def _populate(root: NpuBaseConfig, rows: Iterable[Option], prefix: str = "") -> None:
    for row in rows:
        *groups, leaf = (prefix + row.path).split(".")
        group = root
        for name in groups:
            if name not in group._items:
                group._items[name] = NpuBaseConfig(f"{group._place}.{name}")
            child = group._items[name]
            assert isinstance(child, NpuBaseConfig)
            group = child
        value = make_value(row)
        value.path = "config." + prefix + row.path
        root._rows.append((prefix + row.path, row))
        group._items[leaf] = value
        if row.fixed:
            group._fixed_attrs.append(leaf)
        if row.env and row.env in os.environ:
            said = os.environ[row.env]
            value.value = {"1": True, "0": False}.get(said, said) if row.choices == (True, False) else said
    for row in rows:
        value = find(root, prefix + row.path)
        if not isinstance(root, GraphExConfig):  # older places are places in the tree
            for old in row.also:
                _alias(root, old, value)
            for old in row.opposite:
                _alias(root, old, OppositeValue(value))


def _alias(root: NpuBaseConfig, path: str, value: OptionValue) -> None:
    """An older place of an option; groups that only hold older places are not listed."""
    *groups, leaf = path.split(".")
    if isinstance(value, OppositeValue):
        value.path = f"config.{path}"
    for name in groups:
        known = root._items.get(name) or root._aliases.get(name)
        if known is None:
            known = root._aliases[name] = NpuBaseConfig(f"{root._place}.{name}")
        assert isinstance(known, NpuBaseConfig)
        root = known
    root._aliases[leaf] = value


def _walk(root: NpuBaseConfig, groups: Iterable[str]) -> NpuBaseConfig:
    for name in groups:
        root = getattr(root, name)
    return root


def find(root: NpuBaseConfig, path: str) -> OptionValue:
    """The value object at a path such as ``debug.graph_dump.type``."""
    *groups, leaf = path.split(".")
    value = getattr(_walk(root, groups), leaf)
    if not isinstance(value, OptionValue):
        raise ConfigError("GE1009", f"config.{path} is a group of options", next="name one of its options")
    return value


class CompilerConfig(NpuBaseConfig):
    """The options of ``torch.compile(backend=torchair.get_npu_backend(compiler_config=config))``.

    Example:
        >>> config = CompilerConfig()
        >>> config.experimental_config.topology_sorting_strategy = "StableRDFS"
        >>> config.mode.value
        'max-autotune'

    Errors: ConfigError GE1001 to GE1009, see ``docs/errors/1xxx.md``; ``docs/options.md`` lists the options.
    """

    graph_ex: GraphExConfig | None = None
    """The flat options of the backend npugraph_ex if they made this configuration; its custom passes get them."""

    def __init__(self) -> None:
        super().__init__()
        _populate(self, OPTIONS)
        _populate(self, [row for row in GRAPH_EX if row.path not in ("mode", *_PASSES)], "aclgraph_config.")

    def ge_options(self, level: str | None = None) -> dict[str, str]:
        """GE keys and texts for the engine: every option set away from its default, and those always sent.

        Args:
            level: A level of ``ge_graph.option_levels``, such as ``global``; None gives all.
        """
        dumping = bool(find(self, "dump_config.enable_dump"))
        chosen: dict[str, str] = {}
        for row in OPTIONS:
            if not row.ge_key or level not in (None, row.ge_level):
                continue
            value = find(self, row.path)
            if row.path.startswith("dump_config.") and row.kind != "file":
                # the device's dump is one unit: without the switch its other keys say nothing
                send = dumping and value.value is not None
            else:
                send = row.ge_always or not value.is_default
            if send:
                chosen[row.ge_key] = row.ge_values[value.value] if row.ge_values else str(value.value)
        return chosen

    def check(self) -> None:
        """Refuse settings that exclude each other, and options that are not built yet.

        Raises:
            ConfigError: GE1008 naming every contradiction, GE1010 naming every option that is not built.
        """
        clashes = [
            f"{_shown(self, *c.one)} and {_shown(self, *c.other)}: {c.why}"
            for c in CONFLICTS
            if _holds(self, *c.one) and _holds(self, *c.other)
        ]
        if clashes:
            raise ConfigError("GE1008", "options exclude each other: " + "; ".join(clashes), next="drop one of them")
        later = [f"config.{text}" for text in self._changed("later")]
        if later:
            raise ConfigError(
                "GE1010", "not built in this version: " + ", ".join(later), next="leave the option at its default"
            )

    def check_graph(self, *, streams: bool, dynamic: bool) -> None:
        """Refuse options that exclude a property of the graph.

        Args:
            streams: Whether the graph switches streams.
            dynamic: Whether any size of an input is symbolic.

        Raises:
            ConfigError: GE1008 naming option and property.
        """
        single = bool(self.ge_config.enable_single_stream)
        clashes = []
        if single and streams and not dynamic:
            clashes.append("config.ge_config.enable_single_stream = True and a stream switch in a static graph")
        if single and os.environ.get("HCCL_OP_EXPANSION_MODE") == "AIV":
            clashes.append("config.ge_config.enable_single_stream = True and HCCL_OP_EXPANSION_MODE=AIV")
        if self.debug.deadlock_check and dynamic:
            clashes.append("config.debug.deadlock_check = True and a graph with symbolic sizes")
        if clashes:
            raise ConfigError("GE1008", "excluded: " + "; ".join(clashes), next="drop one of them")

    def explain(self, *, everything: bool = False) -> Explanation:
        """What the options do here: a table of option, value and effect, printed by ``print`` and at a prompt.

        Args:
            everything: Also options that have their default.

        Example:
            >>> config = CompilerConfig()
            >>> config.aclgraph_config.clone_output = True
            >>> config.explain()
            option                        value  effect here
            aclgraph_config.clone_output  True   ignored: mode max-autotune captures nothing
        """
        from torchair.config import explain

        return explain.explain(self, explain.use_of(self), on_device=explain.has_device(), everything=everything)

    def only_on_a_device(self) -> list[str]:
        """Options set away from their default that only a device honours."""
        rounding = [] if self.numerics.value is not None else self._changed("numerics")
        return self._changed("device") + rounding

    def _changed(self, effective: Effective) -> list[str]:
        rows = ((path, find(self, path)) for path, row in self._rows if row.effective == effective)
        return [f"{path} = {value.value!r}" for path, value in rows if not value.is_default]


_PASSES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass")


def _holds(config: NpuBaseConfig, path: str, wanted: Any) -> bool:
    value = find(config, path)
    return not value.is_default if wanted is ... else _same(value.value, wanted)


def _shown(config: NpuBaseConfig, path: str, wanted: Any) -> str:
    return f"config.{path} = {find(config, path).value!r}"


class GraphExConfig(NpuBaseConfig):
    """The flat options of captured graphs; the ``config`` that custom passes of that backend get."""

    def __init__(self) -> None:
        super().__init__()
        _populate(self, GRAPH_EX)

    def _all_paths(self) -> Iterable[str]:
        return (row.path for row in GRAPH_EX)


def with_options(config: CompilerConfig, options: Any) -> CompilerConfig:
    """A copy of a configuration with the settings of ``torch.compile(options={...})``.

    Args:
        config: The configuration; left as it is.
        options: Option paths such as ``experimental_config.frozen_parameter``, or last names where only one option has
            it, and their values; in mode reduce-overhead also the flat names of captured graphs.

    Errors: ConfigError GE1011 if it is not a dict; GE1001 for an unknown name, others for a wrong value.
    """
    if not isinstance(options, Mapping) or not all(isinstance(n, str) for n in options):
        raise ConfigError(
            "GE1011",
            f"options must be a dict of option names and values, got {type(options).__name__}",
            next="options={'experimental_config.frozen_parameter': True}; docs/options.md lists the names",
        )
    made = CompilerConfig()
    for path, old in config.values():
        if not old.is_default:
            find(made, path).value = old.value
    object.__setattr__(made, "graph_ex", config.graph_ex)
    flat = {name for name, _ in made.aclgraph_config.values()} | set(made.aclgraph_config._items)
    if "mode" in options:
        made.mode = options["mode"]
    captured = made.mode.value == "reduce-overhead"
    for name, new in options.items():
        paths = [name] if "." in name else [p for p, _ in made._rows if p.rpartition(".")[2] == name]
        if captured and name in flat:
            paths = [f"aclgraph_config.{name}"]
        outside = [p for p in paths if not p.startswith("aclgraph_config.")]
        paths = outside if len(outside) == 1 else paths
        if len(paths) > 1:
            raise ConfigError(
                "GE1001", f"options: {name!r} may be {' or '.join(paths)}", next="write the whole path of the option"
            )
        *groups, leaf = paths[0].split(".") if paths else [name]
        setattr(_walk(made, groups), leaf, new)  # an unknown name is refused here
    return made


def flat_options(flat: GraphExConfig, options: Any) -> GraphExConfig:
    """Set flat options by name; returns ``flat``.

    Errors: ConfigError GE1011 if they are no dict; GE1001 for an unknown name, others for a wrong value.
    """
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(
            "GE1011",
            f"options must be a dict of option names and values, got {type(options).__name__}",
            next="options={'capture_limit': 8}; docs/options.md lists the names",
        )
    for name, value in (options or {}).items():
        setattr(flat, name, value)
    return flat


def captured_config(options: Mapping[str, Any] | None) -> CompilerConfig:
    """The configuration of the backend npugraph_ex.

    Args:
        options: Flat option names and values.

    Errors: ConfigError GE1011 if it is not a dict; GE1001 for an unknown name, others for a wrong value.
    """
    return _captured(flat_options(GraphExConfig(), options))


def captured_from(given: Any, options: Mapping[str, Any] | None) -> CompilerConfig:
    """The configuration of the backend npugraph_ex from its own configuration object, which is left as it is.

    Args:
        given: A ``GraphExConfig``, or a ``CompilerConfig``; None means all defaults.
        options: Flat options over it.

    Errors: ConfigError GE1011 for another type, else as ``captured_config``.
    """
    if isinstance(given, CompilerConfig):
        return with_options(given, {**(options or {}), "mode": "reduce-overhead"})
    if given is not None and not isinstance(given, GraphExConfig):
        raise ConfigError(
            "GE1011",
            f"compiler_config must be a npugraph_ex.CompilerConfig, got {type(given).__name__}",
            next="config = npugraph_ex.CompilerConfig(); set options; get_npu_backend(compiler_config=config)",
        )
    made = GraphExConfig()
    for name, value in given.values() if given is not None else ():
        if not value.is_default:
            setattr(made, name, value.value)
    return _captured(flat_options(made, options))


def _captured(flat: GraphExConfig) -> CompilerConfig:
    config = CompilerConfig()
    config.mode = "reduce-overhead"
    for name, value in flat.values():
        if name in _PASSES:
            setattr(config, name, value.value)
        elif name != "mode" and not value.is_default:
            setattr(config.aclgraph_config, name, value.value)
    object.__setattr__(config, "graph_ex", flat)
    return config
