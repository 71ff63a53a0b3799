"""Import paths of existing scripts: modules without a file, whose names are those of other modules.

They stand in ``sys.modules`` from the import of their package on, and whatever they name loads when it is first asked
for. Paths that add something of their own, or that a type checker should see, are files.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_CONVERTERS: Final = (
    "ge_converters.base.dtypes: dtype_promote; ge_converters.registry: declare_supported; "
    "torchair.converter_forms.registering: register_fx_node_ge_converter"
)
_SUPPORT: Final = "BF16 BOOL C64 C128 F16 F32 F64 I8 I16 I32 I64 U8 Support TensorLike _TypedTensor=TensorLike"
_EFFECT: Final = "ge_converter.experimental"  # its one module is a file, since importing that does something

# Path below the package to the modules and names that stand for it; "*" for all names of a module.
_MODULES: Final = {
    "torchair": {
        "_contrib": "", "_contrib.custom_torch_ops": "",
        "_ge_concrete_graph.fx2ge_converter": _CONVERTERS,
        "_ge_concrete_graph.ge_converter": "", f"_ge_concrete_graph.{_EFFECT}": "",
        "_ge_concrete_graph.supported_declaration": f"ge_converters.base.support: {_SUPPORT}",
        "_utils": "torchair.older_functions: get_npu_default_decompositions",
        "_utils.adjust_implicit_decomposition": "",
        "configs.npugraphex_config": "torchair.config: CompilerConfig GraphExConfig; "
        "torchair.older_functions: _process_kwargs_options=process_options",
        "core": "", "core._backend": "torchair.older_functions: initialize_graph_engine",
        "core._concrete_graph": "torchair.older_functions: ValuePack _is_symlist=is_symlist",
        "core.utils": "torchair.log: EVENT_LEVEL logger",
        "experimental": "",
        "experimental.inference": "torchair.export: use_internal_format_weight; "
        "torchair.inference: cache_compile readable_cache set_dim_gears",
        "ge_concrete_graph": "", "ge_concrete_graph.fx2ge_converter": _CONVERTERS,
        "ge_concrete_graph.ge_apis": "torchair._ge_concrete_graph.ge_apis: *",
        "ge_concrete_graph.ge_converter": "", f"ge_concrete_graph.{_EFFECT}": "",
        "ge_concrete_graph.ge_graph": "ge_converters.base.torch_compat: mark_static; torchair.ge._ge_graph: *",
        "patterns": "", "patterns.pattern_pass_manager": "torchair.fx_passes.patterns: register_replacement",
        "scope._scope": "torchair.scope: data_dump limit_core_num npu_stream_switch npu_wait_tensor op_never_timeout "
        "super_kernel",
    },
    "npugraph_ex": {
        "configs": "",
        "configs.compiler_config": "torchair.config: CompilerConfig=GraphExConfig GraphExConfig; "
        "torchair.older_functions: _process_kwargs_options=process_flat_options",
        "configs.npugraphex_config": "torchair.config: GraphExConfig; "
        "torchair.older_functions: _process_kwargs_options=process_flat_options",
        "core": "", "core._concrete_graph": "torchair.older_functions: ValuePack _is_symlist=is_symlist",
        "core.utils": "torchair.log: EVENT_LEVEL logger",
        "patterns": "", "patterns.pattern_pass_manager": "torchair.fx_passes.patterns: register_replacement",
    },
}  # fmt: skip


class _Names(ModuleType):
    """A module that has the names of others."""

    def __init__(self, path: str, homes: str, folders: list[str] | None) -> None:
        super().__init__(path, "Import path of existing scripts; see ``torchair.import_paths``.")
        self.__spec__ = ModuleSpec(path, None, is_package=folders is not None)
        if folders is not None:
            self.__path__ = folders
        self._homes: dict[str, tuple[str, str]] = {}
        for home, _, names in (part.partition(": ") for part in filter(None, homes.split("; "))):
            for name, _, original in (entry.partition("=") for entry in names.split(" ")):
                self._homes[name] = (home, original or name)

    def __getattr__(self, name: str) -> Any:
        homes = self._homes
        if name.startswith("__") or (name not in homes and "*" not in homes):
            from torchair.names import door, missing

            if vars(self).get("__path__"):
                return door(self.__name__)(name)
            raise missing(self.__name__, name, homes)
        home, original = homes.get(name) or (homes["*"][0], name)
        value = getattr(importlib.import_module(home), original)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        every = dir(importlib.import_module(self._homes["*"][0])) if "*" in self._homes else []
        return sorted({*super().__dir__(), *(self._homes.keys() - {"*"}), *every})


def register(package: str) -> None:
    """Let ``import <package>.<path>`` find the paths of a package."""
    paths = _MODULES[package]
    for path, homes in paths.items():
        full = f"{package}.{path}"
        inner = any(other.startswith(f"{path}.") for other in paths)
        folders = [os.path.join(os.path.dirname(__file__), "import_effects")] if path.endswith(_EFFECT) else []
        made = sys.modules[full] = _Names(full, homes, folders if inner or folders else None)
        parent, _, leaf = full.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], leaf, made)
