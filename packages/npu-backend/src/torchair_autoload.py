"""Makes the names that torch_npu takes mean this package: two modules, and dynamo's backends of two names.

torch calls ``load`` when it loads its backend extensions (entry point group ``torch.backends``), before any user code;
``import torchair`` calls ``watch``, for processes in which torch loads no extensions.

torch_npu carries a bundled torchair and puts stand-ins for it into ``sys.modules``, while it loads or when dynamo does,
and its backends into dynamo's table. Whoever has installed this package means this one, so after each of these imports
the names are taken back. This is a module beside the package, not inside: as long as the stand-in is there,
``torchair.anything`` cannot be imported. Without torch_npu it does nothing, and it never raises: an exception here
would break ``import torch``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torchair", "__init__.py")
replaced = False
"""Whether a stand-in was taken away; ``get_npu_backend`` says so once in the log."""
_BACKENDS = ("npu", "npugraph_ex")
_BUNDLED = "torch_npu.dynamo."
_PACKAGES = ("npugraph_ex", "torchair")
"""What the functions of ``torch.npu.npugraph_ex`` import in ``_BUNDLED`` when they are called, the second before
torch_npu 2.10; both mean this package too."""
_ADDED_TO = "torch_npu.npu.npugraph_ex"
"""What ``torch.npu.npugraph_ex`` is; torch_npu loads it at its first use."""
_MOMENTS = ("torch_npu", "torch._dynamo", _ADDED_TO)
_NEWER = (
    ("", "compile_fx"),
    ("", "register_replacement"),
    ("", "ops"),
    ("ops", "record"),
    ("scope", "deterministic"),
    ("scope", "npu_stream_switch"),
)
"""Names under ``_ADDED_TO`` that other releases of torch_npu have: the module inside, the name."""


def load() -> None:
    """Let torch_npu load first, then make ``import torchair`` find this package."""
    from importlib import metadata

    for point in metadata.entry_points(group="torch.backends"):
        if point.name == "torch_npu" and "torch_npu" not in sys.modules:
            try:
                point.load()()
            except Exception:  # noqa: BLE001 - torch loads it too, in its turn, and reports what is wrong
                return
    if "torch_npu" in sys.modules:
        take_away_stand_in("torchair")
        watch()


def watch() -> None:
    """Take the names back whenever torch_npu or dynamo has loaded from now on; at once if they have."""
    if not _is_here("torch_npu"):
        return
    spec = PathFinder.find_spec("torchair")
    if spec is not None and spec.origin != HOME:  # the bundled one was put on the path on purpose
        return
    _watcher.first()
    settle()


def settle() -> None:
    """Take back the names that torch_npu has taken so far."""
    if "torch_npu" not in sys.modules:
        return
    _watcher.first()  # torch_npu waits for dynamo too: who stands in front is called last
    with contextlib.suppress(Exception):  # the user's own import, or use of a backend, reports what is wrong
        take_away_stand_in("torchair")
        importlib.import_module("torchair")
        add_newer_names(sys.modules.get(_ADDED_TO))
        if "torch._dynamo" not in sys.modules:
            return
        take_away_stand_in("npugraph_ex")
        importlib.import_module("npugraph_ex")
        from ge_converters.base.torch_compat import register_backend_again

        backend = importlib.import_module("torchair.compiler.backend")
        for name in _BACKENDS:
            register_backend_again(name, getattr(backend, name))


def add_newer_names(theirs: Any) -> None:
    """Put ``_NEWER`` into a module as this package has them. What the module has stays its own, but for a function that
    asks for more arguments than this package's."""
    for inner, name in _NEWER:
        place = getattr(theirs, inner, None) if inner else theirs
        if place is None:
            continue
        ours = getattr(importlib.import_module(f"npugraph_ex.{inner}".rstrip(".")), name)
        found = vars(place).get(name)
        if found is None or _required(found) > _required(ours):
            setattr(place, name, ours)


def _required(function: Any) -> int:
    code = getattr(function, "__code__", None)
    return 0 if code is None else code.co_argcount - len(function.__defaults__ or ())


def take_away_stand_in(name: str) -> None:
    """Remove another package of this name and its submodules from ``sys.modules``.

    Extension modules stay: their classes are registered once a process, and the engine ``torch_npu`` uses them.
    """
    global replaced
    stand_in = sys.modules.get(name)
    if stand_in is None or _file(stand_in) == os.path.join(os.path.dirname(os.path.dirname(HOME)), name, "__init__.py"):
        return
    for module in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
        if not str(_file(sys.modules[module])).endswith(".so"):
            del sys.modules[module]
    replaced = True


def _is_here(name: str) -> bool:
    return name in sys.modules or PathFinder.find_spec(name) is not None


def _file(module: Any) -> Any:
    """Where a module comes from; the stand-in may load things on attribute access, so only its plain dict is asked."""
    return object.__getattribute__(module, "__dict__").get("__file__")


class _Watcher:
    """A finder on ``sys.meta_path`` that runs ``settle`` after ``_MOMENTS`` have loaded, and finds bundled modules."""

    def __init__(self) -> None:
        self._asking: set[str] = set()

    def first(self) -> None:
        """Stand before all other finders."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec that the other finders have, its loader followed by ``settle``; inside ``_BUNDLED`` our own."""
        if name.startswith(_BUNDLED) and name.split(".")[2] in _PACKAGES:
            return ModuleSpec(name, _Ours())
        if name not in _MOMENTS or name in self._asking:
            return None
        self._asking.add(name)  # torch_npu's finder asks all others, this one among them
        try:
            for finder in [f for f in sys.meta_path if f is not self]:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = _Followed(spec.loader)
                    return spec
        finally:
            self._asking.discard(name)
        return None


class _Followed(Loader):
    """A loader as it was, but for ``settle`` after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """As the loader does, then ``settle``."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        settle()


class _Ours(Loader):
    """Gives a module of this package another name; the module stays as it is."""

    def create_module(self, spec: Any) -> Any:
        own = spec.name.removeprefix(_BUNDLED)
        take_away_stand_in(own.partition(".")[0])
        module = importlib.import_module(own)
        self._own = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self._own  # which the import has replaced


_watcher = _Watcher()
