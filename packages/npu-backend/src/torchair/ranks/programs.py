"""What the ranks carry out: a model, cut by the user's own function, and the calls of it."""

from __future__ import annotations

import copy
import hashlib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ge_converters.base.torch_worlds import local_part
from torchair.ranks.problems import bad

Step = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class RankedModel:
    """A model and how it is called.

    Attributes:
        model: The module or function.
        steps: Positional and keyword inputs of each call, in order; state of the model lives on between them.
    """

    model: Callable[..., Any]
    steps: list[Step] = field(default_factory=list)


Build = Callable[[Any], RankedModel]
"""From a mesh, or None for the whole model, to the program of the rank that asks."""


def steps_of(args: Any, kwargs: Mapping[str, Any] | None = None) -> list[Step]:
    """Calls from inputs: a tuple is one call, a list of tuples is one call after the other."""
    if isinstance(args, list) and args and all(isinstance(a, tuple) for a in args):
        return [(tuple(a), dict(kwargs or {})) for a in args]
    return [(tuple(args) if isinstance(args, (tuple, list)) else (args,), dict(kwargs or {}))]


def program_of(made: Any, steps: Sequence[Step] = ()) -> RankedModel:
    """A program from what a factory or a sharding function returns: model, (model, args), (model, args, kwargs)."""
    if isinstance(made, RankedModel):
        return made
    if callable(made):
        return RankedModel(made, list(steps))
    if isinstance(made, (tuple, list)) and made and len(made) <= 3 and callable(made[0]):
        args: Any = made[1] if len(made) > 1 else ()
        kwargs = made[2] if len(made) > 2 else None
        if isinstance(args, Mapping):
            args, kwargs = (), args
        return RankedModel(made[0], steps_of(args, kwargs))
    raise bad(
        f"the function that makes a rank's model returned a {type(made).__name__}",
        "return the model, (model, args) or (model, args, kwargs); args may be a list of tuples, one for each call",
    )


def cut(model: Callable[..., Any], steps: Sequence[Step], shard: Callable[..., Any]) -> Build:
    """Programs whose ranks cut one model; what they do not cut they share.

    Args:
        model: The whole model.
        steps: Its calls.
        shard: ``shard(model, mesh)``: changes the model in place, or returns another, or (model, args) with the inputs
            of this rank.
    """

    def build(mesh: Any) -> RankedModel:
        own = _with_shared_parameters(model) if mesh is not None else copy.deepcopy(model)
        mine = copy.deepcopy(list(steps))  # calls may write their inputs
        if mesh is None:
            return RankedModel(own, mine)
        made = shard(own, mesh)
        return RankedModel(own, mine) if made is None else program_of(made, mine)

    return build


def made_by(factory: Callable[..., Any]) -> Build:
    """Programs that a function of the mesh makes; None asks for the whole model."""

    def build(mesh: Any) -> RankedModel:
        try:
            return program_of(factory(mesh))
        except (AttributeError, TypeError) as error:
            if mesh is not None:
                raise
            raise bad(
                f"the factory raised {type(error).__name__} for mesh=None: {error}",
                "return the whole model where mesh is None: it is what the ranks are compared with",
            ) from error

    return build


def takes_mesh(factory: Callable[..., Any]) -> bool:
    """Whether a factory makes the model of a rank: it has a parameter without default, or one called ``mesh``."""
    parameters = inspect.signature(factory).parameters.values()
    return any(p.name == "mesh" or (p.default is p.empty and p.kind in (0, 1)) for p in parameters)


def _with_shared_parameters(model: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with parameters of its own on the memory of the original's; buffers, which calls write, are copied."""
    if not isinstance(model, torch.nn.Module):
        return model
    memo: dict[int, Any] = {
        id(p): torch.nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()
    }
    made: Callable[..., Any] = copy.deepcopy(model, memo)
    return made


class Weights:
    """Memory of the ranks' parameters: equal ones are one.

    Attributes:
        held: Bytes that all ranks hold, each for itself.
        kept: Bytes that are there.
    """

    def __init__(self) -> None:
        self.held = self.kept = 0
        self._known: dict[tuple[Any, ...], torch.Tensor] = {}

    def share(self, model: Any) -> None:
        """Put the parameters of a rank on memory that another rank holds the same values in."""
        if not isinstance(model, torch.nn.Module):
            return
        for parameter in model.parameters():
            local = local_part(parameter)
            if local.is_meta:
                continue
            size = local.numel() * local.element_size()
            self.held += size
            flat = local.detach().contiguous()
            data = flat.reshape(-1).view(torch.uint8).numpy()
            key = (local.dtype, tuple(local.shape), local.is_contiguous(), hashlib.sha256(data).digest())
            known = self._known.get(key)
            if known is None:
                self._known[key] = local.detach()
                self.kept += size
            elif known.data_ptr() != local.data_ptr() and local.is_contiguous():
                local.data = known


@dataclass
class State:
    """What the attributes of a model hold.

    Attributes:
        text: Numbers and texts, each with its path.
        tensors: All tensors.
    """

    text: str
    tensors: list[torch.Tensor]


def plain_state(model: Any) -> State:
    """What a model holds now, as far as attributes, lists, tuples, sets and dicts lead."""
    lines: list[str] = []
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("", model)]
    while todo:
        path, value = todo.pop()
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            lines.append(f"{path}={value!r}")
            continue
        if id(value) in seen or isinstance(value, (type, types.ModuleType, torch.distributed.ProcessGroup)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, Mapping):
            todo += [(f"{path}.{k}", v) for k, v in value.items()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo += [(f"{path}.{i}", v) for i, v in enumerate(value)]
        elif isinstance(value, types.MethodType):
            todo.append((f"{path}.self", value.__self__))
        elif isinstance(getattr(value, "__dict__", None), dict):
            cells = getattr(value, "__closure__", None) or ()
            todo += [(f"{path}.{k}", v) for k, v in vars(value).items()]
            todo += [(f"{path}.{i}", c.cell_contents) for i, c in enumerate(cells) if _filled(c)]
    return State("\n".join(lines), found)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    return [v for v in pytree.tree_leaves(tree) if isinstance(v, torch.Tensor)]
