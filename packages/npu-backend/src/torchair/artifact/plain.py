"""Plain values as JSON that keeps their types, and the torch operators that stored data may name.

What is stored is data. A name in it is looked up in a fixed table or among torch's operators; nothing is executed,
imported or evaluated, so that a file of others can be wrong but not harmful.
"""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from ge_converters.base.torch_compat import has_kernel


class Unstorable(Exception):
    """A compiled graph has a part that no file can hold; the text says which."""


_FIXED_TYPES: Final = (torch.dtype, torch.layout, torch.memory_format)


def plain(value: Any) -> Any:
    """A plain value as JSON that keeps its type; tensors have none.

    Raises:
        Unstorable: The value has no form.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, _FIXED_TYPES):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if type(value) in (list, tuple):
        return {type(value).__name__: [plain(v) for v in value]}
    raise Unstorable(f"a value of type {type(value).__name__}")


def unplain(encoded: Any) -> Any:
    """The value that ``plain`` made JSON of.

    Raises:
        ValueError, TypeError, KeyError: It is none.
    """
    if not isinstance(encoded, dict):
        if encoded is None or type(encoded) in (bool, int, str):
            return encoded
        raise ValueError(f"{str(encoded)[:40]} is not a value")
    ((kind, content),) = encoded.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(*map(float.fromhex, content))
    if kind == "torch":
        value = getattr(torch, content) if content.isidentifier() and not content.startswith("_") else None
        if not isinstance(value, _FIXED_TYPES):
            raise ValueError(f"torch has no type {content[:40]!r}")
        return value
    if kind == "device":
        return torch.device(content)
    return {"list": list, "tuple": tuple}[kind](unplain(v) for v in content)


def position(value: Any, count: int) -> int:
    """A position below ``count``, from a file.

    Raises:
        ValueError: It is none.
    """
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"{str(value)[:40]} is not a position below {count}")
    return value


# --- operators -------------------------------------------------------------------------------------------------------

_NAME: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
_OWN: Final = frozenset(("aten", "prims", "npu", "_c10d_functional"))
_FILES: Final = ("file", "path", "save", "load", "print")
"""Parts of the names of operators and arguments that are about files or output."""
_NUMBERS: Final = (
    "Tensor",
    "int",
    "float",
    "bool",
    "number",
    "complex",
    "Device",
    "ScalarType",
    "Layout",
    "MemoryFormat",
    "SymInt",
    "Scalar",
)


def operator_name(op: Any) -> str:
    """The name of an operator that stored data may hold, ``aten.add.Tensor``.

    Raises:
        Unstorable: It is none, or one that a file may not name.
    """
    if not isinstance(op, torch._ops.OpOverload):
        raise Unstorable(f"a call of {getattr(op, '__name__', op)}, which is no operator of torch")
    if why := _refused(op):
        raise Unstorable(f"operator {op}, {why}")
    return str(op)


def operator_of(name: Any) -> torch._ops.OpOverload:
    """The operator of a name from a file.

    Raises:
        ValueError: There is none, or a file may not name it.
    """
    if type(name) is not str or not _NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:80]!r} is not the name of an operator")
    namespace, packet, overload = name.split(".")
    if not has_kernel(f"{namespace}::{packet}" + ("" if overload == "default" else f".{overload}")):
        raise ValueError(f"torch has no operator {name[:80]}")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(op, torch._ops.OpOverload) or str(op) != name:
        raise ValueError(f"torch has no operator {name[:80]}")
    if why := _refused(op):
        raise ValueError(f"operator {name[:80]}, {why}")
    return op


def _refused(op: torch._ops.OpOverload) -> str:
    """Why a file may not name an operator, which then runs with arguments from the file; empty if it may."""
    schema = op._schema
    if any(word in schema.name.partition("::")[2] for word in _FILES):
        return "which is about files or output"
    for argument in schema.arguments:
        if "str" in str(argument.type) and any(word in argument.name for word in _FILES):
            return f"whose argument '{argument.name}' is about files"
        kind = re.sub(r"Optional|List|[\[\]?]|\d", "", str(argument.type))
        if op.namespace not in _OWN and kind not in _NUMBERS:
            return f"whose argument '{argument.name}' is neither a tensor nor a number"
    return ""
