"""What tracing read beside what is known before it: source files of functions that no name leads to, and plain values
of other modules. An entry keeps digests of them, and a later process compares them with what it has loaded itself.

The names in an entry are looked up among the modules that this process has loaded, in their dicts; what is found is
compared and nothing else.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ge_converters.base.torch_compat import guarded_sources
from ge_converters.base.torch_frames import imported_modules
from torchair.artifact.content import Content, Unknowable, is_known, is_known_file, source_digest
from torchair.artifact.plain import Unstorable

_MOST: Final = 10_000
_PLAIN: Final = (bool, int, float, str, bytes, type(None), types.FunctionType)


def of_trace(tx: Any, traced: Iterable[types.CodeType], content: Content) -> dict[str, Any]:
    """What a trace read, as JSON.

    Args:
        tx: Dynamo's translator.
        traced: The code objects that it went through.
        content: What is known without them.

    Raises:
        Unstorable: The source of some code cannot be known.
    """
    files: dict[str, str] = {}
    for code in traced:
        path = code.co_filename
        if code in content.codes or path in content.files or path in files or is_known_file(path):
            continue
        if path not in _loaded_files():
            raise Unstorable(f"'{code.co_name}' in {path} was traced, which no name in the function leads to")
        try:
            files[path] = source_digest(path)
        except Unknowable as error:
            raise Unstorable(str(error)) from None
    return {"files": files, "values": _values(tx)}


def _values(tx: Any) -> list[list[str]]:
    """Module, name and digest of the plain globals that dynamo guards."""
    modules, own = imported_modules(tx), str(tx.f_globals.get("__name__"))
    found = {}
    for source in guarded_sources(tx):
        module, name = modules.get(getattr(getattr(source, "base", None), "global_name", "")), None
        if module is not None:
            name = getattr(source, "member", None)
        elif getattr(source, "global_name", None) not in modules:
            module, name = own, getattr(source, "global_name", None)
        if module is None or not isinstance(name, str) or is_known(module):
            continue
        digest = _digest(module, name)
        if digest is not None:
            found[module, name] = digest
    return [[module, name, digest] for (module, name), digest in sorted(found.items())]


def _digest(module: Any, name: Any) -> str | None:
    """The digest of a plain value or function that a loaded module holds, None if it is neither or not there."""
    loaded = sys.modules.get(module)
    if not isinstance(loaded, types.ModuleType):
        return None
    value = vars(loaded).get(name, types)
    if not _is_plain(value, 8):
        return None
    try:
        return Content(strict=False).add(value).digest()
    except Unknowable as error:
        raise Unstorable(f"{module}.{name}: {error}") from None


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, (list, tuple)):
        return depth > 0 and all(_is_plain(v, depth - 1) for v in value)
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(v, depth - 1) for pair in value.items() for v in pair)
    return type(value) in _PLAIN


def _loaded_files() -> set[str]:
    modules = [m for m in list(sys.modules.values()) if isinstance(m, types.ModuleType)]
    return {path for m in modules if isinstance(path := vars(m).get("__file__"), str)}


def changed(record: Mapping[str, Any]) -> str:
    """What of a record is no longer as it was, in words; empty if all is.

    Raises:
        ValueError, TypeError, KeyError: It is no record.
    """
    files, values = dict(record["files"]), list(record["values"])
    if len(files) + len(values) > _MOST:
        raise ValueError("too many values")
    loaded = _loaded_files() if files else set()
    for path, digest in files.items():
        try:
            if path not in loaded or source_digest(path) != digest:
                return f"another source file {path}"
        except Unknowable as error:
            return str(error)
    for module, name, digest in values:
        if type(module) is not str or type(name) is not str:
            raise ValueError("name of a value")
        if _digest(module, name) != digest:
            return f"another value of {module}.{name}"
    return ""
