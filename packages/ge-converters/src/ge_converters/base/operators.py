"""torch's operators by their names, also those that the torch at hand lacks.

Another version of torch adds, drops and renames operators. ``aten.cholesky.default`` is the overload where torch has
it, and its name as an ``AbsentOperator`` where it has not: a converter for it is then left out, and nothing else.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import torch

from ge_converters.base.errors import LoweringError

__all__ = ["AbsentOperator", "Namespace", "aten", "prims"]

# Results of operators of which some release has one of the same name and another form: that one counts as absent.
_RESULTS: Final = {"aten._fused_rms_norm.default": 2}  # torch 2.8: one


class AbsentOperator(str):
    """The name of an overload that this torch lacks; equal to no node's target."""

    __slots__ = ()

    @property
    def namespace(self) -> str:
        return self.partition(".")[0]

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise LoweringError(
            "GE2003",
            f"torch {torch.__version__} has no operator {self}",
            next="docs/versions.md says which versions of torch have what",
        )


class _Packet:
    """The overloads of one operator."""

    def __init__(self, name: str, packet: Any) -> None:
        self._name, self._packet = name, packet

    def __getattr__(self, overload: str) -> Any:
        name = f"{self._name}.{overload}"
        found = getattr(self._packet, overload, None)
        if found is None and overload.startswith("__"):
            raise AttributeError(overload)
        if found is None or (name in _RESULTS and len(found._schema.returns) != _RESULTS[name]):
            found = AbsentOperator(name)
        setattr(self, overload, found)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = AbsentOperator(self._name) if self._packet is None else self._packet
        return call(*args, **kwargs)


class Namespace:
    """``torch.ops.<name>`` in which every operator can be named.

    An operator that turns up later, with the library that defines it, is found then.

    Args:
        name: ``aten``, ``prims``.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, operator: str) -> Any:
        packet = getattr(getattr(torch.ops, self._name), operator, None)
        if packet is None and operator.startswith("__"):  # Python's own questions, such as those of copy
            raise AttributeError(operator)
        found = _Packet(f"{self._name}.{operator}", packet)
        if packet is not None:
            setattr(self, operator, found)
        return found


aten: Final[Any] = Namespace("aten")
prims: Final[Any] = Namespace("prims")
