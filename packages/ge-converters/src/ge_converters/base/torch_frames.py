"""What dynamo knows of the frame whose graph it is handing to a backend, as data; private names of torch like those of
``torch_compat``.

What differs between versions of torch is a row of ``tools/torch_names.tsv``.
"""
# ruff: noqa: TID251

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ge_converters.base.torch_compat import current_translation, source_text


def frame_code(translation: Any) -> Any:
    """The code object of the frame."""
    return translation.f_code


def imported_modules(translation: Any) -> dict[str, str]:
    """Names of globals that dynamo made for modules, each with the module's name."""
    made = getattr(translation.output, "import_sources", None)
    if made is not None:
        return dict(made)
    # before torch 2.9 dynamo kept no list: the modules stand among the frame's globals under names like these
    found = translation.f_globals.items()
    return {name: value.__name__ for name, value in found if name.startswith("__import_")}


def graph_argument(node: Any) -> Any:
    """What dynamo knows of an input of its graph: ``source``, ``example``, ``pass_arg_as_tensor``; None if nothing."""
    return node.meta.get("grapharg")


def does_more(translation: Any) -> str:
    """What a call does beside computing results, in words; empty for nothing.

    Attributes that have the values again that they had, such as a flag set and reset, do not count.
    """
    effects = translation.output.side_effects
    if getattr(effects, "tensor_hooks", None):
        return "hooks on tensors"
    for each in effects.id_to_variable.values():
        new = "New" in type(each.mutation_type).__name__
        if effects.is_modified(each) and not new and not _leaves_as_was(each, effects.store_attr_mutations.get(each)):
            source = getattr(each, "source", None)
            return f"the call writes to {source_text(source) if source is not None else type(each).__name__}"
    return ""


def _leaves_as_was(each: Any, written: Mapping[str, Any] | None) -> bool:
    holder = getattr(each, "value", None) if written else None
    if not written or holder is None:
        return False
    for name, new in written.items():
        old = getattr(holder, name, written)
        if not (getattr(new, "is_python_constant", bool)() and type(old) is type(new.as_python_constant())):
            return False
        if not (old is None or (isinstance(old, (bool, int, float, str)) and old == new.as_python_constant())):
            return False
    return True


def belongs_to_the_model(source: Any) -> bool:
    """Whether a number is reached through a module or a global or captured variable, ``math.pi`` among them."""
    from torch._dynamo import source as s

    kind = source.guard_source() if callable(source.guard_source) else source.guard_source
    if kind.is_unspecialized_nn_module() or kind.is_specialized_nn_module():
        return True
    root = source
    while isinstance(root, s.ChainedSource):
        root = root.base
    return isinstance(root, s.GlobalSource) or (isinstance(root, s.LocalSource) and bool(root.is_derefed_cell_contents))


def path_of(source: Any, modules: Mapping[str, str]) -> list[Any] | str:
    """The steps that lead to a value, ``["local", "x"]`` first, then ``["attr", name]``, ``["item", key]`` and so on.

    Args:
        source: Where dynamo found the value.
        modules: Globals that are modules, of ``imported_modules``.

    Returns:
        The path, or in words what no path leads to.
    """
    from torch._dynamo import source as s

    def of_class(*names: str) -> bool:
        return isinstance(source, tuple(getattr(s, name) for name in names if hasattr(s, name)))

    kind = type(source)
    if kind is s.LocalSource:
        return [["cell" if source.is_derefed_cell_contents else "local", source.local_name]]
    if kind is s.GlobalSource:
        name = source.global_name
        return [["module", modules[name]]] if name in modules else [["global", name]]
    unknown = f"input {source_text(source)}"
    if kind is s.ConstantSource or not isinstance(source, s.ChainedSource):
        return unknown
    base = path_of(source.base, modules)
    if isinstance(base, str) or of_class("NNModuleSource", "SkipGuardSource"):
        return base
    step: list[Any] | None = None
    if isinstance(source, s.TensorPropertySource):
        step = [source.prop.method_name(), source.idx]
    elif kind in (s.AttrSource, s.ParamBufferSource, s.UnspecializedParamBufferSource) or of_class("GenericAttrSource"):
        step = ["attr", source.member]
    elif isinstance(source, s.GetItemSource):
        if not source.index_is_slice and kind is not s.TupleIteratorGetItemSource:
            step = ["item", source.index]
    elif of_class("DictGetItemSource", "DictSubclassGetItemSource"):
        index = source.index
        step = ["key", index.index] if isinstance(index, s.ConstDictKeySource) else ["item", index]
    if step is None:
        return unknown
    if step[0] == "item" and type(step[1]) not in (str, int, bool):
        return f"{unknown}: its key is a {type(step[1]).__name__}"
    return [*base, step]


def _owner() -> tuple[str, torch.nn.Module] | None:
    """Name and value of the first module among the arguments and captured variables of the present frame."""
    tx = current_translation()
    scope = {} if tx is None else tx.f_locals
    return next(((name, v) for name, v in scope.items() if isinstance(v, torch.nn.Module)), None)


def owning_module() -> torch.nn.Module | None:
    """The module whose method dynamo is tracing, or that the traced function is given or captures; None if none is."""
    found = _owner()
    return None if found is None else found[1]


def guard_owning_module() -> None:
    """Keep what dynamo is compiling from other modules than ``owning_module``."""
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import LocalSource

    found, tx = _owner(), current_translation()
    if found is not None:
        captured = found[0] in tx.f_code.co_freevars or found[0] in tx.f_code.co_cellvars
        source = LocalSource(found[0], is_derefed_cell_contents=captured)
        install_guard(source.make_guard(GuardBuilder.ID_MATCH))
