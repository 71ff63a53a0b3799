"""Which converter an op has: entries, the two layers they fill, and what is derived from schemas.

Knows facts about torch and GE (``base``) and no converter: those register themselves from above.
"""

from ge_converters.base.provenance import target_name
from ge_converters.registry.entry import Converter, Entry, Target
from ge_converters.registry.registry import (
    ABSENT,
    REGISTRY,
    F,
    LeftOut,
    Registry,
    declare_supported,
    define,
    define_formula,
    define_refusal,
    register_fx_node_ge_converter,
)
from ge_converters.registry.takes import Takes

__all__ = [
    "ABSENT",
    "REGISTRY",
    "Converter",
    "Entry",
    "F",
    "LeftOut",
    "Registry",
    "Takes",
    "Target",
    "declare_supported",
    "define",
    "define_formula",
    "define_refusal",
    "register_fx_node_ge_converter",
    "target_name",
]
