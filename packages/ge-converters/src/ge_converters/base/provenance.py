"""Where a GE node comes from, told by its FX node; texts are made when somebody reads them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from typing import Any, Final

import torch

from ge_graph import Provenance
from ge_graph.builder import ONLY_INT
from ge_graph.ir import OwnCall

_FRAME: Final = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)(?:\n\s+(?P<code>[^\n]*))?'
)
_LIBRARIES: Final = [os.path.dirname(torch.__file__) + os.sep, contextlib.__file__]
_SELF: Final = re.compile(r"^L\['(?:self|fn)'\]\.?|^L\['args'\]\[0\]\.|^L__self___?")  # args: of a decorated forward
_OPERATORS: Final = (torch._ops.OpOverload, torch._ops.OperatorBase)
_ITEM: Final = re.compile(r"_modules\['([^']+)'\]|\['([^']+)'\]|\[(\d+)\]")


class Texts:
    """Texts that many nodes of one graph have in common; each is made once.

    Attributes:
        values: FX node to its value, ``add_1: torch.float32[2]cpu``, which stands in the node and in all that read it.
        types: Type, sizes and device of a tensor to ``torch.float32[2]cpu``.
        targets: ``id`` of an operator to it, so that it lives as long, and its name; torch hashes operators in Python.
    """

    __slots__ = ("values", "types", "targets")

    def __init__(self) -> None:
        self.values: dict[torch.fx.Node, str] = {}
        self.types: dict[Any, str] = {}
        self.targets: dict[int, tuple[Any, str]] = {}

    def value(self, node: torch.fx.Node) -> str:
        """``add_1: torch.float32[2]cpu``, or the name alone where nothing is known of the value."""
        text = self.values.get(node)
        if text is None:
            kind = self._type(node.meta.get("val"))
            text = self.values[node] = f"{node.name}: {kind}" if kind else str(node.name)
        return text

    def target(self, node: torch.fx.Node) -> str:
        """``fx_target(node)``."""
        target = node.target
        known = self.targets.get(id(target))
        if known is None or node.op != "call_function":
            text = fx_target(node)
            if node.op == "call_function":
                self.targets[id(target)] = (target, text)
            return text
        return known[1]

    def _type(self, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return _type(value)
        key: Any = (value.dtype, value.shape, value.device)
        try:
            text = self.types.get(key)
        except TypeError:  # symbols have no hash, their expressions do
            sizes = tuple([d if type(d) is int else d.node.expr for d in key[1]])
            key = (key[0], sizes, key[2])
            text = self.types.get(key)
        if text is None:
            text = self.types[key] = _type(value)
        return text


class FxProvenance(Provenance):
    """A ``Provenance`` that reads its FX node on demand.

    Args:
        node: The FX node.
        texts: Texts that the nodes of its graph have in common.
    """

    __slots__ = ("_node", "_texts", "own_call")
    _node: torch.fx.Node
    _texts: Texts
    own_call: OwnCall | None

    def __init__(self, node: torch.fx.Node, texts: Texts | None = None) -> None:
        _set_node(self, node)
        _set_texts(self, Texts() if texts is None else texts)
        _set_call(self, None)

    def stands_for(self, call: OwnCall) -> None:
        """Note the call of a user's operator that a node stands for."""
        _set_call(self, call)

    @property
    def fx_name(self) -> str:
        """Name of the FX node."""
        return str(self._node.name)

    @property
    def fx_target(self) -> str:
        """``aten.add.Tensor``."""
        return self._texts.target(self._node)

    @property
    def fx_text(self) -> str:
        """The FX node as one line of typed code."""
        return fx_code(self._node, self._texts)

    @property
    def module(self) -> str:
        """Path of the nn.Module."""
        return module_path(self._node)

    @property
    def source(self) -> str:
        """``file.py:41 in forward``."""
        return user_frame(self._node)[0]

    @property
    def code(self) -> str:
        """The text of that line."""
        return user_frame(self._node)[1]

    def texts(self) -> tuple[str, str, str, str, str, str]:
        node, shared = self._node, self._texts
        source, code = last_user_frame(node.meta.get("stack_trace") or "")
        target = shared.target(node)
        return str(node.name), target, fx_code(node, shared, target), module_path(node), source, code

    def __reduce__(self) -> Any:
        return Provenance, self.texts()


# The attributes do not change once they are set; setting them past the check of that is half of making one.
_set_node: Final = FxProvenance.__dict__["_node"].__set__
_set_texts: Final = FxProvenance.__dict__["_texts"].__set__
_set_call: Final = FxProvenance.__dict__["own_call"].__set__


def target_name(target: Any) -> str:
    """``aten.add.Tensor`` for an overload, ``operator.add`` or ``math.floor`` for a function."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", None) or str(target)
    return f"{module.lstrip('_')}.{name}" if module else name


def fx_target(node: torch.fx.Node) -> str:
    """The target of a node as text."""
    return target_name(node.target) if node.op == "call_function" else f"{node.op} {node.target}"


def fx_code(node: torch.fx.Node, texts: Texts | None = None, target: str = "") -> str:
    """``add_1: torch.float32[s0, s0]cpu = torch.ops.aten.add.Tensor(add: torch.float32[s0, s0]cpu, 1)``.

    Args:
        node: The FX node.
        texts: What is known of the texts of its graph; new ones are added.
        target: ``fx_target(node)``, where it is known.
    """
    known = Texts() if texts is None else texts
    result = known.values.get(node) or known.value(node)
    if node.op != "call_function":
        return f"{result} = {node.op}({node.target})"
    arguments = [_code(a, known) for a in node.args]
    if node.kwargs:
        arguments += [f"{name}={_code(a, known)}" for name, a in node.kwargs.items()]
    prefix = "torch.ops." if isinstance(node.target, _OPERATORS) else ""
    return f"{result} = {prefix}{target or known.target(node)}({', '.join(arguments)})"


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]{value.device}"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f'"Sym({value.node.expr})"'
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_type(v) or 'None' for v in value)})"
    return ""


def _code(value: Any, known: Texts) -> str:
    if isinstance(value, torch.fx.Node):
        return known.values.get(value) or known.value(value)
    if isinstance(value, (list, tuple)):
        if set(map(type, value)) == ONLY_INT:  # sizes and axes, most lists of a graph
            return f"[{str(tuple(value))[1:-1].rstrip(',')}]" if isinstance(value, list) else str(tuple(value))
        inner = ", ".join([_code(v, known) for v in value])
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return repr(value) if isinstance(value, (str, bool, int, float)) else str(value)


def not_the_user(folder: str) -> None:
    """Frames of files in a folder are never the user's line: a library's functions for models are called by it."""
    if folder + os.sep not in _LIBRARIES:
        _LIBRARIES.append(folder + os.sep)
        last_user_frame.cache_clear()


def user_frame(node: torch.fx.Node) -> tuple[str, str]:
    """Place and text of the user's line that a node stems from; empty if the trace has none."""
    return last_user_frame(node.meta.get("stack_trace") or "")


@functools.lru_cache(maxsize=4096)
def last_user_frame(trace: str) -> tuple[str, str]:
    """The innermost frame of a formatted trace that is the user's: ``("model.py:41 in forward", "x = x + 1")``."""
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return "", ""
    chosen = next((f for f in reversed(frames) if not f["file"].startswith(tuple(_LIBRARIES))), frames[-1])
    return f"{chosen['file']}:{chosen['line']} in {chosen['function']}", chosen["code"] or ""


def module_path(node: torch.fx.Node) -> str:
    """``model.layers.0.self_attn``: the innermost module that was running when the node was traced.

    For a node of a backward pass, the module whose forward it belongs to.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    entry = next(reversed(stack.values()))
    return readable_path(entry[0] if isinstance(entry, tuple) else str(entry))


@functools.lru_cache(maxsize=4096)
def readable_path(raw: str) -> str:
    """Path of a module as users know it, out of dynamo's text: ``L['self'].layers[0]`` is ``layers.0``."""
    path = _ITEM.sub(lambda m: "." + next(g for g in m.groups() if g), _SELF.sub("", raw))
    return re.sub(r"\.+", ".", path).strip(".")
