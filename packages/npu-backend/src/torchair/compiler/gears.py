"""Gears: one compiled graph for several known sizes of its inputs.

``set_dim_gears`` marks dimensions of an input. The graph is traced with these sizes symbolic and all other sizes of
inputs fixed; a device's graph engine gets the list of sizes and makes a static graph for each, the embedded engine runs
the one graph. A call with another size is an error, in the first run and in every later one.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from ge_converters.base.torch_compat import current_translation, mark_sizes, source_text
from ge_converters.base.torch_frames import frame_code, graph_argument, guard_owning_module, owning_module
from ge_graph.errors import ConfigError, EngineError
from torchair.config.log import logger

if TYPE_CHECKING:
    from ge_converters.lowering import Lowered
    from torchair.config.compiler_config import CompilerConfig

LIMIT: Final = 100
_MARK: Final = "_torchair_dim_gears"
_known: Final[weakref.WeakKeyDictionary[Any, dict[tuple[Any, str], dict[int, tuple[int, ...]]]]] = (
    weakref.WeakKeyDictionary()
)
"""The module that a function belongs to, or else its code, to the gears of its inputs by code and where they come from:
later calls bring tensors that nobody has marked. Other modules of the class have gears of their own, or none."""


def set_dim_gears(t: torch.Tensor, dim_gears: Mapping[int, Sequence[int]]) -> None:
    """Mark dimensions of an input as having one of a few known sizes; call it before the first run.

    Args:
        t: The input, any dtype.
        dim_gears: Dimension to its sizes, each at least 1; a size of 1 is never symbolic in torch and gets a graph of
            its own. With several dimensions
            ``config.inference_config.dynamic_gears_merge_policy`` says how the lists combine: ``zip`` takes the i-th
            entries together, over all inputs, ``product`` every combination; at most 100 in all.

    Errors: ConfigError GE1062 for other types or values, for a tensor marked otherwise before, or for a tensor in a
        device's own format. Running: EngineError GE4030 for sizes outside the gears.
    """
    gears = _checked(t, dim_gears)
    before = getattr(t, _MARK, None)
    if before is not None and before != gears:
        raise _refuse(f"the tensor has gears already: {_shown(before)}, now {_shown(gears)}")
    setattr(t, _MARK, gears)
    mark_sizes(t, sorted(gears), [d for d in range(t.dim()) if d not in gears])


def _checked(t: Any, dim_gears: Any) -> dict[int, tuple[int, ...]]:
    if not isinstance(t, torch.Tensor):
        raise _refuse(f"t must be a tensor, got {type(t).__name__}")
    if not isinstance(dim_gears, Mapping) or not dim_gears:
        raise _refuse(f"dim_gears must map dimensions to lists of sizes, got {dim_gears!r}")
    checked = {}
    for dim, sizes in dim_gears.items():
        if type(dim) is not int or not 0 <= dim < t.dim():
            raise _refuse(f"dimension {dim!r} of a tensor with {t.dim()} dimensions")
        if not isinstance(sizes, (list, tuple)) or not sizes or any(type(s) is not int for s in sizes):
            raise _refuse(f"sizes of dimension {dim} must be a list of ints, got {sizes!r}")
        if min(sizes) < 1:
            raise _refuse(f"sizes of dimension {dim} must be at least 1, got {sizes!r}")
        if len(set(sizes)) < len(sizes):
            raise _refuse(f"sizes of dimension {dim} occur twice: {sizes!r}")
        if len(sizes) > LIMIT:
            raise _refuse(f"{len(sizes)} sizes of dimension {dim}, at most {LIMIT} are possible")
        checked[dim] = tuple(sizes)
    return checked


def _refuse(what: str) -> ConfigError:
    return ConfigError("GE1062", f"set_dim_gears: {what}", next="set_dim_gears(x, {0: [2, 4, 8]}) before the first run")


def _shown(gears: Mapping[int, Sequence[int]]) -> str:
    return ", ".join(f"dimension {d}: {', '.join(map(str, s))}" for d, s in sorted(gears.items()))


@dataclass(slots=True)
class Gears:
    """The gears of one graph.

    Attributes:
        places: One entry per marked dimension: position among dynamo's inputs, dimension, and name for messages.
        combinations: The allowed sizes, one entry per place.
        exprs: Symbolic expression of each place, None where the model has fixed the size.
    """

    places: list[tuple[int, int, str]]
    combinations: list[tuple[int, ...]]
    exprs: list[Any] = field(default_factory=list)
    _allowed: frozenset[tuple[int, ...]] = frozenset()

    def __post_init__(self) -> None:
        self._allowed = frozenset(self.combinations)

    def check(self, flat: Sequence[Any]) -> None:
        """Refuse inputs outside the gears.

        Args:
            flat: The inputs of dynamo's graph.

        Errors: EngineError GE4030.
        """
        got = tuple(flat[at].shape[dim] for at, dim, _ in self.places)
        if got not in self._allowed:
            raise self._outside(got)

    def _outside(self, got: Sequence[int]) -> EngineError:
        shown = ", ".join(f"dimension {dim} of {name} is {size}" for (_, dim, name), size in zip(self.places, got))
        gears = "; ".join(", ".join(map(str, c)) for c in self.combinations[:20])
        more = f"; {len(self.combinations) - 20} more" if len(self.combinations) > 20 else ""
        return EngineError(
            "GE4030",
            f"{shown}; the gears are: {gears}{more}",
            next="pad the input to the next gear, or add the size to set_dim_gears",
        )

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with the check before it."""

        def checked(*flat: Any) -> Any:
            self.check(flat)
            return call(*flat)

        return checked

    def text(self) -> str:
        """All of it, for a cache key."""
        return f"{[(str(e), p[:2]) for e, p in zip(self.exprs, self.places)]} {self.combinations}"

    def options(self, lowered: Lowered, values: Sequence[Any]) -> dict[str, str]:
        """The options by which a graph engine makes a static graph for each gear.

        Args:
            lowered: The graph.
            values: Fake values of the ATen graph's inputs.
        """
        symbols = [e for e in self.exprs if e is not None]
        columns = [i for i, e in enumerate(self.exprs) if e is not None]
        shapes, moving = [], []
        for node, binding in zip(lowered.graph.inputs, lowered.inputs, strict=True):
            if binding.kind != "tensor":
                shapes.append(f"{node.name}:")
                continue
            dims = [d.node.expr if isinstance(d, torch.SymInt) else d for d in values[binding.fx_index].shape]
            dynamic = [not isinstance(d, int) and bool(d.free_symbols) for d in dims]
            moving += [d for d, m in zip(dims, dynamic) if m]
            shapes.append(f"{node.name}:{','.join('-1' if m else str(d) for d, m in zip(dims, dynamic))}")
        rows = [
            ",".join(str(int(d.subs(dict(zip(symbols, (c[i] for i in columns)))))) for d in moving)
            for c in self.combinations
            if all(c[i] > 1 for i in columns)  # a symbol is never 1: that size has a graph of its own
        ]
        if not moving or len(set(rows)) < 2:  # GE has no use for one gear
            return {}
        return {
            "ge.inputShape": ";".join(shapes),
            "ge.dynamicDims": ";".join(dict.fromkeys(rows)),
            "ge.dynamicNodeType": "1",
        }


def refuse_gears(values: Any) -> None:
    """Refuse marked inputs where a file is written that has one set of sizes.

    Args:
        values: Arguments of a model, in any structure.

    Errors: ConfigError GE1064.
    """
    from torch.utils import _pytree as pytree

    for value in pytree.tree_leaves(values):
        gears = getattr(value, _MARK, None) if isinstance(value, torch.Tensor) else None
        if gears:
            raise ConfigError(
                "GE1064",
                f"gears together with exporting: an input has {_shown(gears)}, and an offline graph gets "
                "its sizes when ATC compiles it",
                next="export with dynamic=True, inputs without gears, and list the sizes in ATC's --dynamic_dims",
            )


def gears_of(gm: torch.fx.GraphModule, config: CompilerConfig) -> Gears | None:
    """The gears of a graph that dynamo is handing to its backend just now, None if no input has any.

    All other sizes of inputs are fixed to what they are, under a guard.

    Errors: ConfigError GE1063 if the lists cannot be combined, GE1064 where gears are not possible; EngineError GE4030
        if the inputs are outside the gears.
    """
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    marked = _marked(inputs)
    if not marked:
        return None
    _check_config(config)
    places, lists, exprs = [], [], []
    for position, dims in marked.items():
        value = inputs[position].meta["example_value"]
        for dim, sizes in sorted(dims.items()):
            size = value.shape[dim]
            places.append((position, dim, _source_name(inputs[position])))
            lists.append(sizes)
            exprs.append(size.node.expr if isinstance(size, torch.SymInt) else None)
    policy = config.inference_config.dynamic_gears_merge_policy.value
    made = Gears(places, _combined(policy, places, lists, exprs), exprs)
    made.check([_Sizes(n) for n in inputs])
    _fix_others(inputs, {str(e) for e in exprs if e is not None})
    logger.info("gears: %s", made.text())
    return made


class _Sizes:
    """Sizes of an input in the call that is traced."""

    def __init__(self, node: torch.fx.Node) -> None:
        value = node.meta.get("example_value")
        shape = value.shape if isinstance(value, torch.Tensor) else ()
        self.shape = [s.node.hint if isinstance(s, torch.SymInt) else s for s in shape]


def _marked(inputs: Sequence[torch.fx.Node]) -> dict[int, dict[int, tuple[int, ...]]]:
    """Position of an input to its gears, from the tensors themselves or from earlier traces of the same function."""
    tx = current_translation()
    if tx is None:  # a graph that does not come from dynamo
        return {}
    marked = {}
    code = frame_code(tx)
    owner = owning_module()
    remembered = _known.get(owner or code, {})
    for position, node in enumerate(inputs):
        argument = graph_argument(node)
        example = getattr(argument, "example", None)
        if not isinstance(example, torch.Tensor):
            continue
        name = _source_name(node)
        gears = getattr(example, _MARK, None) or remembered.get((code, name))
        if gears and max(gears) < example.dim():
            marked[position] = gears
            _known.setdefault(owner or code, {})[code, name] = gears
    if any(known == code for gears in _known.values() for known, _ in gears):
        guard_owning_module()  # without gears too: a graph that takes every size is not for the module that has them
    return marked


def _source_name(node: torch.fx.Node) -> str:
    return source_text(graph_argument(node).source).replace("L['", "").replace("']", "")


def _check_config(config: CompilerConfig) -> None:
    why = ""
    if config.mode.value != "max-autotune":
        why = f"config.mode = {config.mode.value!r}: captured graphs have one size each anyway"
    elif config.experimental_config.enable_ref_data.value:
        why = "config.experimental_config.enable_ref_data = True"
    if why:
        raise ConfigError("GE1064", f"gears together with {why}", next="drop one of them")


def _combined(
    policy: str, places: Sequence[Any], lists: Sequence[Sequence[int]], exprs: Sequence[Any]
) -> list[tuple[int, ...]]:
    if policy == "zip":
        if len({len(sizes) for sizes in lists}) > 1:
            shown = "; ".join(f"{name} dimension {dim}: {len(s)}" for (_, dim, name), s in zip(places, lists))
            raise ConfigError(
                "GE1063",
                f"policy 'zip' takes lists of one length, got {shown}",
                next="give lists of one length, or set config.inference_config.dynamic_gears_merge_policy = 'product'",
            )
        combinations = list(zip(*lists))
    else:
        count = 1
        for sizes in lists:
            count *= len(sizes)
        # dimensions that are one symbol move together, so far fewer combinations than the product may be left
        combinations = list(itertools.product(*lists)) if count <= 1 << 16 else []
        if not combinations:
            raise _too_many(count)
    combinations = [c for c in dict.fromkeys(combinations) if _one_value_each(exprs, c)]
    if not combinations:
        raise ConfigError(
            "GE1063",
            "no combination of the gears is possible: dimensions that the model takes as equal have no size in common",
            next="give equal dimensions equal lists",
        )
    if len(combinations) > LIMIT:
        raise _too_many(len(combinations))
    return combinations


def _too_many(count: int) -> ConfigError:
    return ConfigError("GE1063", f"{count} combinations of gears, at most {LIMIT} are possible", next="use fewer sizes")


def _one_value_each(exprs: Sequence[Any], sizes: Sequence[int]) -> bool:
    values: dict[Any, int] = {}
    return all(values.setdefault(e, s) == s for e, s in zip(exprs, sizes) if e is not None)


def _fix_others(inputs: Sequence[torch.fx.Node], kept: set[str]) -> None:
    """Fix every size of an input that is not made of the gears' sizes; dynamo turns this into guards."""
    for node in inputs:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            for size in value.shape:
                if isinstance(size, torch.SymInt) and not {str(s) for s in size.node.expr.free_symbols} <= kept:
                    int(size)


_KEYS: Final = ("ge.inputShape", "ge.dynamicDims", "ge.dynamicNodeType")


def gear_options(more: Mapping[str, Any]) -> dict[str, str]:
    """The engine options of the gears of a stored graph."""
    gears = more.get("gears") or {}
    return {key: str(gears[key]) for key in _KEYS if key in gears}
