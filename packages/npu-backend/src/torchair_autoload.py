"""Called by torch when it loads its backend extensions (entry point group ``torch.backends``), before any user code.

torch_npu carries a bundled torchair and puts a stand-in for it into ``sys.modules``, while it loads or when dynamo
does, unless the name is taken. Whoever has installed this package means this one, so the stand-in is taken away and
this package takes the name. This is a module beside the package, not inside: as long as the stand-in is there,
``torchair.anything`` cannot be imported. Without torch_npu it does nothing, and it never raises: an exception here
would break ``import torch``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from typing import Any

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torchair", "__init__.py")
replaced = False
"""Whether a stand-in was taken away; ``get_npu_backend`` says so once in the log."""


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
        take_away_stand_in()
        with contextlib.suppress(Exception):  # the user's own `import torchair` reports what is wrong
            spec = importlib.util.find_spec("torchair")
            if spec is not None and spec.origin == HOME:
                importlib.import_module("torchair")


def take_away_stand_in() -> None:
    """Remove another ``torchair`` and its submodules from ``sys.modules``.

    Extension modules stay: their classes are registered once a process, and the engine ``torch_npu`` uses them.
    """
    global replaced
    found = sys.modules.get("torchair")
    if found is None or _file(found) == HOME:
        return
    for name in [n for n in sys.modules if n == "torchair" or n.startswith("torchair.")]:
        if not str(_file(sys.modules[name])).endswith(".so"):
            del sys.modules[name]
    replaced = True


def _file(module: Any) -> Any:
    """Where a module comes from; the stand-in may load things on attribute access, so only its plain dict is asked."""
    return object.__getattribute__(module, "__dict__").get("__file__")
