"""Process groups of several ranks in the threads of one process: torch's own, for its tests; private names of torch.

What differs between versions of torch is a row of ``tools/torch_names.tsv``.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def threaded_worlds() -> Iterator[None]:
    """Inside, ``torch.distributed`` is another in each thread: default group, names of groups, what is initialised."""
    from torch.distributed import distributed_c10d
    from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

    isolated = getattr(torch._C._distributed_c10d, "_set_thread_isolation_mode", None)
    before = distributed_c10d._world
    distributed_c10d._world = ThreadLocalWorld()
    if isolated is not None:
        isolated(True)
    try:
        # the engine of autograd must stay in the thread, whose world it needs
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        distributed_c10d._world = before
        if isolated is not None:
            isolated(False)


@contextlib.contextmanager
def compiled_many_times(times: int) -> Iterator[None]:
    """Inside, one code object may be compiled so many times as often as elsewhere; beyond that is an error.

    Elsewhere dynamo goes on in eager mode, and a warning is all that is seen of it.
    """
    from torch._dynamo import config  # noqa: TID251  (a module of private names)

    limits = {n: getattr(config, n) * times for n in ("recompile_limit", "accumulated_recompile_limit")}
    with config.patch(fail_on_recompile_limit_hit=True, **limits):
        yield


def compiles_itself(model: Any) -> bool:
    """Whether a model, or a part of it, was given to ``torch.compile`` or its own ``compile`` before."""
    parts = model.modules() if isinstance(model, torch.nn.Module) else [model]
    return any(uncompiled(m)[0] is not m or getattr(m, "_compiled_call_impl", None) is not None for m in parts)


def name_in_source(name: str) -> str:
    """The path of a module or parameter as it was before ``torch.compile`` wrapped a part of it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def user_frame() -> tuple[str, str]:
    """``file.py:12 in f`` and the text of the line: the innermost frame that is not torch's or of these packages."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_globals.get("__name__") == "threading":
            break  # a hook of the backward, above which nobody is
        if f"{os.sep}torch{os.sep}" not in name and f"{os.sep}torchair{os.sep}" not in name and name[:1] != "<":
            place = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
            return place, linecache.getline(name, frame.f_lineno).strip()
        frame = frame.f_back
    return "", ""


def idle_store() -> Any:
    """A store for ranks that never look anything up."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def name_of_group(group: Any) -> str:
    """Torch's name of a process group of this thread's world."""
    from torch.distributed import distributed_c10d

    return str(distributed_c10d._world.pg_names[group])


def local_part(value: Any) -> Any:
    """What a rank holds of a DTensor; other values as they are."""
    return getattr(value, "_local_tensor", value)


def is_partial(value: Any) -> bool:
    """Whether a DTensor holds summands, of which nobody expects the whole value."""
    return any(p.is_partial() for p in getattr(value, "placements", ()))


def group_in(value: Any) -> Any:
    """The process group that an operator was given, as it is or boxed; None if the value is none."""
    import torch.distributed as dist

    if isinstance(value, dist.ProcessGroup):
        return value
    unbox = getattr(dist.ProcessGroup, "unbox", None)
    if unbox is None or not isinstance(value, torch.ScriptObject):
        return None
    try:
        return unbox(value)
    except RuntimeError:  # of another class
        return None


def guards_can_be_left_out() -> bool:
    """Whether ``torch.compile`` takes ``guard_filter_fn`` among its options, as it does since torch 2.8."""
    return "guard_filter_fn" in (torch.compile.__doc__ or "")


def uncompiled(fn: Any) -> tuple[Any, Any]:
    """What ``torch.compile`` was given: the model and the backend.

    The backend is None of a compiled function, which does not show it, and of what nobody compiled.
    """
    backend = getattr(getattr(fn, "dynamo_ctx", None), "callback", None)
    while backend is not None:
        # older versions of torch call a wrapped backend as they call a wrapped function
        names = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")
        inner = next((getattr(backend, name) for name in names if getattr(backend, name, None) is not None), None)
        if inner is None:
            break
        backend = inner
    seen: set[int] = set()
    while id(fn) not in seen:  # what is compiled twice has two wrappers
        seen.add(id(fn))
        if isinstance(fn, torch.nn.Module):  # not by the mark of functions, which may be that of its forward
            fn = getattr(fn, "_orig_mod", fn)
        else:
            fn = getattr(fn, "__dict__", {}).get("_torchdynamo_orig_callable") or fn
    return fn, backend
