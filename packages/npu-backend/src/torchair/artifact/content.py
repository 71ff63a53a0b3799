"""What a program holds, as a digest: functions, objects and classes by their content, not by their names.

A function is its code with constants, names and nested code, its defaults, its closure, and, by the names that its code
uses, its globals: helper functions likewise, down to what is known. Known are Python, torch, numpy, sympy and this
project, by their versions; other installed packages are the source files that are met. Comments and line numbers are no
content. What has none that could be known, such as an object of C without one text for one value, is refused.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ge_converters.base.torch_compat import is_composite, real_values
from ge_graph.files import read_plain

KNOWN: Final = ("torch", "numpy", "sympy", "ge_graph", "ge_converters", "torchair", "torch_npu")
"""Packages that are known by a version or, ours, by the state of their source files."""

_LIMIT: Final = 100_000
_DEPTH: Final = 200
_SOURCE_BYTES: Final = 16 << 20
_PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)))
_TEXTS: Final = (torch.dtype, torch.layout, torch.device, torch.memory_format)
_BOUND_TO_CLASS: Final = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
_CLASS_ENTRIES: Final = frozenset(
    (
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations__",
        "__abstractmethods__",
        "_abc_impl",
        "__parameters__",
        "__orig_bases__",
        "__slotnames__",
    )
)
# What every module has beside its own attributes, nothing as long as it is empty.
_MODULE_ENTRIES: Final = frozenset(vars(torch.nn.Module())) - {"training"}
_FUNCTIONS: Final = (types.FunctionType, staticmethod, classmethod)
_ADDRESS: Final = "_torchdynamo_wrapper_id"  # where dynamo's wrapper of a function lies in this process
# Names by which code reaches variables of the environment, and modules by a text.
_ENVIRONMENT: Final = frozenset(("environ", "environb", "getenv", "getenvb"))
_MODULES: Final = frozenset(("modules", "import_module", "__import__"))
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Unknowable(Exception):
    """Something has no content that could be told from other content; the text says what and why."""


@functools.cache
def _roots() -> tuple[str, ...]:
    """Folders of what is known, but Python's own."""
    specs = (importlib.util.find_spec(name) for name in KNOWN)
    return tuple(os.path.dirname(s.origin) + os.sep for s in specs if s is not None and s.origin)


_PYTHON: Final = os.path.dirname(os.__file__) + os.sep


def is_known_file(path: str) -> bool:
    """Whether a source file belongs to what is known by its version."""
    if path.startswith((*_roots(), "<frozen ")):
        return True
    return path.startswith(_PYTHON) and not is_installed_file(path)


def is_installed_file(path: str) -> bool:
    """Whether a source file belongs to a package that was installed."""
    return any(part in path for part in _INSTALLED)


def is_known(module: str) -> bool:
    """Whether a module belongs to what is known by its version."""
    top = module.partition(".")[0]
    if top in KNOWN:
        return True
    if top not in sys.stdlib_module_names:
        return False
    path = getattr(sys.modules.get(module), "__file__", None)  # a user's own module may be called like one of Python's
    return not path or is_known_file(path)


@functools.lru_cache(maxsize=4096)
def _source_digest(path: str, size: int, mtime: int) -> str:
    return hashlib.sha256(read_plain(path, _SOURCE_BYTES)).hexdigest()[:32]


def source_digest(path: str) -> str:
    """The digest of a source file.

    Raises:
        Unknowable: It cannot be read, or was written after this process began, which may have loaded another.
    """
    try:
        status = os.stat(path)
        digest = _source_digest(path, status.st_size, status.st_mtime_ns)
    except (OSError, ValueError) as error:
        raise Unknowable(f"the source file {path} cannot be read ({error})") from None
    if status.st_mtime > began():
        raise Unknowable(f"the source file {path} was written after this process began")
    return digest


@functools.cache
def began() -> float:
    """When this process began, in seconds since 1970."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        lines = Path("/proc/stat").read_text().splitlines()
        booted = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return booted + ticks / os.sysconf("SC_CLK_TCK") + 1  # the time of boot has whole seconds
    except (OSError, ValueError, IndexError, StopIteration, AttributeError):
        return float("inf")


def digest(lines: Iterable[str]) -> str:
    """Of lines of text, 32 hexadecimal digits."""
    made = hashlib.sha256()
    for line in lines:
        made.update(line.encode("utf-8", "backslashreplace") + b"\n")
    return made.hexdigest()[:32]


def content_of(value: Any) -> str:
    """The digest of a value.

    Raises:
        Unknowable: Part of it has no knowable content.
    """
    return Content().add(value).digest()


class Content:
    """A digest that grows with the values that are added.

    Args:
        strict: Whether values without knowable content are refused, and tensors are their elements. Else such values
            are their types, and tensors are types and dimensions: for programs whose trace says what it read.

    Attributes:
        codes: The code that was met, with all code inside it.
        files: Source files that stand for the code in them.
        classes: The classes that were met.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.codes: set[types.CodeType] = set()
        self.files: set[str] = set()
        self.classes: dict[type, None] = {}
        self._strict = strict
        self._hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}
        self._parts: set[tuple[int, tuple[str, ...]]] = set()
        self._depth = 0

    def digest(self) -> str:
        """Of all that was added, 32 hexadecimal digits."""
        return self._hash.hexdigest()[:32]

    def add(self, value: Any) -> Content:
        """Add a value.

        Raises:
            Unknowable: Part of it has no knowable content.
        """
        try:
            self._value(value)
        except Unknowable:
            raise
        except RecursionError:
            raise Unknowable(f"{_named(value)} is nested too deeply") from None
        except Exception as error:
            raise Unknowable(f"{_named(value)} cannot be looked at, {type(error).__name__}: {error}") from error
        return self

    # -- dispatch

    def _token(self, text: str) -> None:
        self._hash.update(text.encode("utf-8", "backslashreplace") + b"\0")

    def _again(self, value: Any) -> bool:
        """Whether an object has been met; then its number stands for it."""
        known = self._seen.get(id(value))
        if known is not None:
            self._token(f"again {known[0]}")
            return True
        if len(self._seen) > _LIMIT:
            raise Unknowable(f"more than {_LIMIT} objects")
        self._seen[id(value)] = (len(self._seen), value)
        return False

    def _value(self, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._token(f"{kind.__name__} {value!r}")
        elif kind is tuple:
            self._items("tuple", value)
        elif kind is frozenset or kind is set:
            self._unordered(kind.__name__, value)
        elif kind is types.CodeType:
            self._code(value)
        elif isinstance(value, types.ModuleType):
            self._module(value, None)
        elif not self._again(value):
            self._depth += 1
            if self._depth > _DEPTH:
                raise Unknowable(f"{_named(value)} is nested too deeply")
            self._object(value, kind)
            self._depth -= 1

    def _object(self, value: Any, kind: type) -> None:
        if value is os.environ:
            self._token("the environment")  # what is read of it, those say who read it
        elif kind is list:
            self._items("list", value)
        elif kind is dict:
            self._mapping("dict", value.items())
        elif kind is types.FunctionType:
            self._function(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, torch.nn.Module):
            self._instance(value, kind)
        else:
            for kinds, describe in _FORMS:
                if isinstance(value, kinds):
                    describe(self, value)
                    return
            self._other(value, kind)

    # -- containers

    def _items(self, name: str, values: Iterable[Any]) -> None:
        self._token(f"{name} (")
        for each in values:
            self._value(each)
        self._token(")")

    def _unordered(self, name: str, values: Iterable[Any]) -> None:
        values = list(values)
        if all(type(v) in _PLAIN for v in values):
            self._token(f"{name} {sorted(map(repr, values))}")
            return
        self._token(f"{name} {sorted(Content(strict=self._strict).add(v).digest() for v in values)}")

    def _mapping(self, name: str, items: Iterable[tuple[Any, Any]]) -> None:
        self._token(f"{name} {{")
        for key, each in items:
            self._value(key)
            self._value(each)
        self._token("}")

    # -- code

    def _code(self, code: types.CodeType) -> None:
        self.codes.add(code)
        self._token(
            f"code {code.co_name} {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} "
            f"{code.co_flags} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars} "
            f"{code.co_code.hex()} {getattr(code, 'co_exceptiontable', b'').hex()}"
        )
        self._items("constants", code.co_consts)

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        known = is_known_file(code.co_filename)
        # what a decorator of Python or torch has made of a user's function has the user's name
        if (
            known
            and is_known(function.__module__ or "")
            and _at(function.__module__, function.__qualname__) is function
        ):
            self._token(f"known {function.__module__}.{function.__qualname__}")
            return
        installed = not known and is_installed_file(code.co_filename)
        self._token(f"function {function.__name__}")
        if installed:
            self._token(f"{function.__qualname__} in {self._file(code.co_filename)}")
        else:
            self._code(code)
        self._value(function.__defaults__)
        self._mapping("keyword defaults", (function.__kwdefaults__ or {}).items())
        self._items("closure", (_cell(c) for c in function.__closure__ or ()))
        self._mapping("attributes", sorted((k, v) for k, v in vars(function).items() if k != _ADDRESS))
        if not known and not installed:
            self._globals(code, function.__globals__)

    def _globals(self, code: types.CodeType, space: Mapping[str, Any]) -> None:
        """What the names in a function's code, and its texts that may be names, mean outside of it."""
        texts = {text for each in _nested(code) for text in _texts(each.co_consts)}
        used = {name for each in _nested(code) for name in each.co_names}
        names = tuple(sorted(used | {text for text in texts if text.isidentifier()}))
        meant = texts | {value for value in map(space.get, used) if type(value) is str}
        if used & _ENVIRONMENT or any(_asks(space.get(name)) for name in used):
            self._environment(meant)
        if used & _MODULES:
            for name in sorted(text for text in meant if text in sys.modules):
                self._imported(name, names)
        for name in names:
            if name not in space:
                continue
            self._token(name)
            value = space[name]
            if isinstance(value, types.ModuleType):
                self._module(value, names)
            else:
                self._value(value)
        for name in sorted({n for each in _nested(code) for n in _imports(each, str(space.get("__package__") or ""))}):
            self._token(f"import {name}")
            self._imported(name, names)

    def _environment(self, texts: set[str]) -> None:
        """The variables whose names a function holds, set or not; all of them if it holds no text that may be one."""
        found = sorted(text for text in texts if text.isidentifier())
        self._mapping("environment", ((name, os.environ.get(name)) for name in found or sorted(os.environ)))

    def _imported(self, name: str, names: tuple[str, ...]) -> None:
        if is_known(name):
            return
        loaded = sys.modules.get(name)
        if loaded is not None:
            self._module(loaded, names)
            return
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, AttributeError, ValueError):
            spec = None
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            self._token(self._file(spec.origin))

    def _module(self, module: types.ModuleType, names: tuple[str, ...] | None) -> None:
        """A module, or as much of it as the names may mean."""
        name = module.__name__
        self._token(f"module {name}")
        path = vars(module).get("__file__") or ""
        if is_known(name):
            self._patched(vars(module), names or ())
            return
        if names is None or is_installed_file(path):
            self._token(self._file(path) if path.endswith(".py") else self._version(name))
            return
        if (id(module), names) in self._parts:
            return
        self._parts.add((id(module), names))
        space = vars(module)
        for each in (*names, "__getattr__"):
            if each in space:
                self._token(each)
                value = space[each]
                self._module(value, names) if isinstance(value, types.ModuleType) else self._value(value)

    def _patched(self, space: Mapping[str, Any], names: Iterable[str]) -> None:
        """What others put into a module or class that is known, among these names; plain values whoever put them."""
        for name in names:
            value = space.get(name)
            value = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
            if isinstance(value, types.ModuleType):
                if (id(value), tuple(names)) not in self._parts:
                    self._parts.add((id(value), tuple(names)))
                    self._module(value, tuple(names))
            elif (
                type(value) in _PLAIN
                and value is not None
                or isinstance(value, (types.FunctionType, type))
                and not is_known(value.__module__ or "")
            ):
                self._token(name)
                self._value(value)

    def _file(self, path: str) -> str:
        self.files.add(path)
        return source_digest(path)

    def _version(self, module: str) -> str:
        if is_known(module):
            return "known"
        top = module.partition(".")[0]
        try:
            return importlib.metadata.version(top)
        except importlib.metadata.PackageNotFoundError:
            found = getattr(sys.modules.get(top), "__version__", None)
        if isinstance(found, str):
            return found
        return self._unknown(f"{module}, a module without a source file or a version")

    def _unknown(self, what: str) -> str:
        if self._strict:
            raise Unknowable(what)
        return f"unknown {what.partition(' ')[0]}"

    # -- classes and objects

    def _class(self, cls: type) -> None:
        if is_known(cls.__module__) and _at(cls.__module__, cls.__qualname__) is cls:
            self._token(f"class {cls.__module__}.{cls.__qualname__}")
            for each in cls.__mro__:
                own = vars(each)
                self._patched(own, [k for k, v in own.items() if isinstance(v, _FUNCTIONS) and _foreign(v)])
            return
        self.classes[cls] = None
        self._token(f"class {cls.__qualname__}")
        path = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
        if is_installed_file(path) and _at(cls.__module__, cls.__qualname__) is cls:
            self._token(self._file(path) if path.endswith(".py") else self._version(cls.__module__))
        elif _is_python(cls):
            own = ((k, v) for k, v in vars(cls).items() if k not in _CLASS_ENTRIES)
            self._mapping("entries", sorted(own, key=lambda item: item[0]))
        else:
            self._token(self._version(cls.__module__))
        self._items("bases", cls.__bases__)
        self._value(type(cls))

    def _instance(self, value: Any, kind: type) -> None:
        """An object of a class that is written in Python: its class and what it holds."""
        self._token("object")
        self._value(kind)
        held = _state(value)
        module = isinstance(value, torch.nn.Module)
        self._token("{")
        for name in sorted(held):
            each = held[name]
            if module and name in _MODULE_ENTRIES:
                if name in ("_parameters", "_buffers"):
                    self._named_tensors(name, each)
                    continue
                if not each or name == "_non_persistent_buffers_set":
                    continue
            self._token(name)
            self._value(each)
        self._token("}")

    def _named_tensors(self, name: str, tensors: Mapping[str, Any]) -> None:
        """Parameters or buffers, whose elements are inputs of whatever is compiled."""
        for key, each in tensors.items():
            self._token(f"{name} {key}")
            if isinstance(each, torch.Tensor) and not self._again(each):
                self._token(f"{type(each).__name__} {each.dtype} {tuple(each.shape)} {each.device.type}")

    def _tensor(self, value: torch.Tensor) -> None:
        kind = f"{type(value).__name__} {value.dtype} {value.layout} {value.device.type}"
        if not self._strict:
            self._token(f"{kind} {value.dim()}")
            return
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
            raise Unknowable(f"a tensor of class {type(value).__name__} and layout {value.layout}")
        self._token(f"{kind} {tuple(value.shape)} {value.stride()} {tensor_digest(value)}")

    def _other(self, value: Any, kind: type) -> None:
        parts = vars(kind).get("content_parts")
        if parts is not None and is_known(kind.__module__):  # an object of ours says what of it counts
            self._items(kind.__qualname__, parts(value))
            return
        owner = next((k for k in kind.__mro__ if not _is_python(k)), object)
        if owner is object:
            self._instance(value, kind)
            return
        if kind is owner and is_known(kind.__module__):
            text = repr(value)
            if not text.startswith("<") and " at 0x" not in text:
                self._token(f"{kind.__module__}.{kind.__qualname__} {text}")
                return
        self._token(self._unknown(f"{kind.__module__}.{kind.__qualname__}, an object whose content cannot be known"))


_HEAP: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_POINTER: Final = 8


def _is_python(cls: type) -> bool:
    """Whether all that objects of a class have beside those of its base is in a dict and slots, and none of it in C."""
    if not cls.__flags__ & _HEAP or cls.__base__ is None:
        return False
    held = vars(cls)
    seen = sum(isinstance(v, types.MemberDescriptorType) for v in held.values()) + sum(
        name in held for name in ("__dict__", "__weakref__")
    )
    return cls.__basicsize__ - cls.__base__.__basicsize__ <= _POINTER * seen


def tensor_digest(value: torch.Tensor) -> str:
    """The digest of a tensor's elements."""
    with real_values():  # a key may be made while torch traces
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if value.numel() else value.new_empty(0)
        return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def _asks(value: Any) -> bool:
    """Whether an object gives variables of the environment."""
    owner = value.__self__ if isinstance(value, types.MethodType) else value
    return owner is os.environ or value is os.getenv


def _foreign(value: Any) -> bool:
    function = getattr(value, "__func__", value)
    return not is_known(getattr(function, "__module__", None) or "")


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    """The texts among a code's constants."""
    for each in constants:
        if type(each) is str:
            yield each
        elif type(each) in (tuple, frozenset):
            yield from _texts(each)


def _named(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return str(name) if isinstance(name, str) else f"an object of {type(value).__qualname__}"


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet set
        return NotImplemented


def _at(module: str | None, qualname: str) -> Any:
    """What a module has under a name; nothing but dicts is looked at."""
    value: Any = sys.modules.get(module or "")
    for part in qualname.split("."):
        space = vars(value) if isinstance(value, (types.ModuleType, type)) else {}
        value = space.get(part)
        value = getattr(value, "__func__", value) if isinstance(value, (staticmethod, classmethod)) else value
    return value


def _state(value: Any) -> dict[str, Any]:
    """What an object of a Python class holds, in its dict and its slots."""
    held = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        for name, entry in vars(cls).items() if "__slots__" in vars(cls) else ():
            if isinstance(entry, types.MemberDescriptorType):
                try:
                    held.setdefault(name, entry.__get__(value))
                except AttributeError:  # not set
                    continue
    return held


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _nested(each)


@functools.lru_cache(maxsize=1024)
def _imports(code: types.CodeType, package: str) -> tuple[str, ...]:
    """Names of the modules that a function's code imports."""
    if dis.opmap["IMPORT_NAME"] not in code.co_code[::2]:
        return ()
    found: list[str] = []
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, parts = before[-2:]
            base = ".".join(package.split(".")[: len(package.split(".")) - level + 1]) if level else ""
            name = ".".join(filter(None, (base, step.argval)))
            found += [name, *(f"{name}.{part}" for part in parts or () if f"{name}.{part}" in sys.modules)]
        if step.opname != "EXTENDED_ARG":
            before.append(step.argval)
    return tuple(found)


# -- kinds of objects


def _text(c: Content, value: Any) -> None:
    c._token(f"{type(value).__name__} {value}")


def _operator(c: Content, value: Any) -> None:
    schema = ""
    if isinstance(value, torch._ops.OpOverload):
        schema = str(value._schema)
        if value.namespace not in ("aten", "prims", "prim") and is_composite(value):
            c._unknown(f"{value}, an operator made of others by code that may change")
    c._token(f"operator {value} {schema}")


def _partial(c: Content, value: Any) -> None:
    c._token("partial")
    c._value(value.func)
    c._items("arguments", value.args)
    c._mapping("keywords", value.keywords.items())


def _method(c: Content, value: types.MethodType) -> None:
    c._token("method")
    c._value(value.__func__)
    c._value(value.__self__)


def _builtin(c: Content, value: types.BuiltinFunctionType) -> None:
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        module = value.__module__ or getattr(owner, "__name__", "")
        c._token(f"builtin {module}.{value.__qualname__} {c._version(module)}")
    else:
        c._token(f"builtin {value.__name__} of")
        c._value(owner)


def _descriptor(c: Content, value: Any) -> None:
    c._token(f"descriptor {value.__name__} of")
    c._value(value.__objclass__)


_INNER: Final = ("__func__", "__wrapped__", "func", "fget", "fset", "fdel")


def _around(c: Content, value: Any) -> None:
    """What Python's own decorators made: staticmethod, property, functools.cache and the like."""
    c._token(type(value).__name__)
    c._items("", (getattr(value, n, None) for n in _INNER))


def _enum(c: Content, value: enum.Enum) -> None:
    c._value(type(value))
    c._token(value.name or str(value.value))


def _of_base(base: type, items: Callable[[Any], Iterable[Any]]) -> Callable[[Content, Any], None]:
    """An object of a class that is made from a container or a number."""

    def describe(c: Content, value: Any) -> None:
        c._token(f"{base.__name__} as")
        c._value(type(value))
        c._items("", items(value))
        c._mapping("attributes", sorted(getattr(value, "__dict__", {}).items()))
        if isinstance(value, collections.defaultdict):
            c._value(value.default_factory)

    return describe


def _array(c: Content, value: Any) -> None:
    c._token(f"array {value.dtype} {value.shape}")
    if c._strict:
        c._token(hashlib.sha256(value.tobytes()).hexdigest())


def _pairs(value: Any) -> Iterator[Any]:
    for key in dict.keys(value):
        yield key
        yield dict.get(value, key)


_FORMS: Final[list[tuple[Any, Callable[[Content, Any], None]]]] = [
    (_TEXTS, _text),
    ((torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator), _operator),
    (functools.partial, _partial),
    (types.MethodType, _method),
    (types.BuiltinFunctionType, _builtin),
    (types.MethodWrapperType, lambda c, v: _builtin(c, v)),
    (_BOUND_TO_CLASS, _descriptor),
    ((staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper), _around),
    (enum.Enum, _enum),
    (logging.Logger, lambda c, v: c._token(f"logger {v.name}")),
    (re.Pattern, lambda c, v: c._items("pattern", (v.pattern, v.flags))),
    (weakref.ref, lambda c, v: c._value(v())),
    (types.MappingProxyType, lambda c, v: c._mapping("proxy", v.items())),
    (dict, _of_base(dict, _pairs)),
    (list, _of_base(list, list.__iter__)),
    (tuple, _of_base(tuple, tuple.__iter__)),
    (torch.SymInt, _text),
    (np.ndarray, _array),
    ((np.dtype, np.generic), lambda c, v: c._token(f"{type(v).__name__} {v!r}")),
    (torch.library.CustomOpDef, lambda c, v: _operator(c, v._opoverload)),
    ((bool, int, float, str, bytes), lambda c, v: _of_base(type(v).__mro__[-2], lambda x: [repr(x)])(c, v)),
]
