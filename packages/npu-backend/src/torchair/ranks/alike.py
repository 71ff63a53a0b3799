"""Which ranks do the same, so that one trace serves them: what each does in eager mode, operator by operator.

A rank is carried out once in eager mode, and everything that a trace could hold of it goes into a digest: each operator
with its numbers and the tensors it takes, by where they come from; sizes and types; parameters by name; groups by their
dimension of the mesh, collectives with their line. Ranks of one digest run one compiled program, each on its own
parameters and in its own groups. What cannot be told apart this way makes a rank one of its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from ge_converters.base.torch_worlds import compiles_itself, group_in, guards_can_be_left_out, local_part, user_frame
from torchair.config.log import logger
from torchair.ranks.exchange import RankCall
from torchair.ranks.programs import RankedModel, plain_state
from torchair.ranks.world import Member, World, here

Key = tuple[str, int]
_PLAIN: Final = (bool, int, float, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass(frozen=True)
class Alike:
    """What the ranks of a world do.

    Attributes:
        keys: By rank, a key for each call of the model: calls of one key are one program.
    """

    keys: Sequence[Sequence[Key]]


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Digests of what one rank does.

    Args:
        member: The rank.
        program: What it carries out.
    """

    def __init__(self, member: Member, program: RankedModel) -> None:
        super().__init__()
        self._member, self._silent, self._inside = member, False, False
        self._numbers = WeakIdKeyDictionary()
        self._count = 0
        self._hash = hashlib.sha256()
        self._all = hashlib.sha256()
        self._model = program.model

    def call(self, args: Any, kwargs: Any) -> tuple[str, Any]:
        """Carry out one call.

        Returns:
            Its digest, and the state of the model before: numbers and texts of its attributes.
        """
        self._numbers, self._count, self._hash = WeakIdKeyDictionary(), 0, hashlib.sha256()
        state = plain_state(self._model)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        self._start(state.tensors, leaves, structure)
        own = {id(t) for t in (*state.tensors, *leaves)}
        with self:
            made = self._model(*args, **kwargs)
        leaves, structure = pytree.tree_flatten(made)
        self._note("results", *leaves, str(structure))
        for leaf in leaves:
            if hasattr(leaf, "wait"):
                leaf.wait()  # torch warns of collectives that nobody waits for
        held = [*leaves, *plain_state(self._model).tensors]
        if any(isinstance(v, DTensor) and id(v) not in own for v in held):
            self._note(self._alone())  # it would get the mesh of the rank that was traced
        self._all.update(self._hash.digest())
        return self._hash.hexdigest(), state.text

    def _start(self, held: Sequence[torch.Tensor], leaves: Sequence[Any], structure: Any) -> None:
        """Note what there is before a call: modules, tensors of the model, inputs."""
        if isinstance(self._model, torch.nn.Module):
            for name, module in self._model.named_modules():
                self._note("module", name, f"{type(module).__module__}.{type(module).__qualname__}", module.training)
            for named in (self._model.named_parameters, self._model.named_buffers):
                for name, value in named(remove_duplicate=False):
                    self._note(name, *self._tensor(value))
        for value in held:
            self._note("held", *self._tensor(value))
        for leaf in leaves:
            self._note("input", *(self._tensor(leaf) if isinstance(leaf, torch.Tensor) else (leaf,)))
        self._note(str(structure))

    def _tensor(self, value: torch.Tensor) -> Any:
        return self._form(value), self._number(value), self._number(local_part(value))

    def digest(self) -> str:
        """Of all calls up to now."""
        return self._all.hexdigest()

    def entered(self, call: RankCall) -> None:
        """Note a collective that the rank enters."""
        peers = call.key[3:] if call.kind in ("send", "recv") else ()
        self._note(call.kind, self._group(call.key[0]), len(call.group), *peers, call.more)
        self._note([self._form(x) for x in (*call.inputs, *call.outputs)], *user_frame())
        if not self._inside:  # of an operator, which has said what it was given
            self._note(call.inputs, call.outputs)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Inside, operators are none of the model's: those of a collective, which may write on other ranks."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._silent or any(k.__module__.startswith("torch._subclasses") for k in kinds):
            return func(*args, **kwargs)  # fake tensors are DTensor's own reckoning
        if any(k not in (torch.Tensor, torch.nn.Parameter) for k in kinds):
            return NotImplemented  # DTensor and the like say first what they do on this rank
        self._note(str(func), args, kwargs)
        if func.namespace in ("_c10d_functional", "c10d", "symm_mem"):
            self._note(*user_frame())
        self._inside = True
        try:
            made = func(*args, **kwargs)
        finally:
            self._inside = False
        for leaf in pytree.tree_leaves(made):
            self._note(self._form(leaf) if isinstance(leaf, torch.Tensor) else leaf)
            if isinstance(leaf, torch.Tensor):
                self._note(self._number(leaf))
        return made

    # -- words for the digest -----------------------------------------------------------------------------------------

    def _note(self, *values: Any) -> None:
        self._hash.update(repr([self._word(v) for v in values]).encode())

    def _word(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return ("tensor", self._known(value))
        if isinstance(value, str):
            return self._group(value)
        if isinstance(value, _PLAIN):
            return (type(value).__name__, str(value))
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *map(self._word, value)]
        if isinstance(value, dict):
            return [(self._word(k), self._word(v)) for k, v in value.items()]
        if (group := group_in(value)) is not None:
            return ("group", self._group(group.group_name), group.size())
        return self._alone()

    def _group(self, name: Any) -> str:
        return self._member.roles.get(str(name), str(name))

    def _alone(self) -> str:
        """A word of no other rank."""
        return f"only rank {self._member.rank}"

    def _form(self, value: torch.Tensor) -> Any:
        words: list[Any] = [type(value).__name__, str(value.dtype), tuple(value.shape), str(value.layout)]
        if value.layout == torch.strided:
            words += [value.stride(), value.requires_grad]
        if isinstance(value, DTensor):
            mesh = value.device_mesh
            words += [str(value.placements), str(mesh.mesh_dim_names), tuple(mesh.shape), self._form(local_part(value))]
        return str(words)

    def _fresh(self, value: torch.Tensor) -> int:
        """A number for a tensor, another one than it had."""
        self._count += 1
        self._numbers[value] = self._count
        return self._count

    def _number(self, value: torch.Tensor) -> int:
        known: int | None = self._numbers.get(value)
        return self._fresh(value) if known is None else known

    def _known(self, value: torch.Tensor) -> Any:
        """Where a tensor comes from; what it holds, if it comes from nowhere."""
        known = self._numbers.get(value)
        if known is not None:
            return known
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_meta or value.layout != torch.strided:
            return self._alone()
        number = self._fresh(value)
        with self.silence():
            data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return number, self._form(value), hashlib.sha256(data).hexdigest()


def recorded(size: int, prepared: Callable[[Member], RankedModel]) -> Alike | None:
    """Carry out all ranks in eager mode; None if they cannot be, which is for their graphs to tell.

    Args:
        size: Number of ranks.
        prepared: Makes the program of the rank of this thread.
    """
    if not guards_can_be_left_out():
        return None

    def work(rank: int) -> list[Key]:
        member = here()
        assert member is not None
        program = prepared(member)
        if compiles_itself(program.model):
            raise ValueError("a model that compiles itself")
        recorder = Recorder(member, program)
        member.recorder = recorder
        seen = [recorder.call(args, kwargs) for args, kwargs in program.steps]
        # a call that does what an earlier one did, from an equal state, is the same program
        first = [seen.index(each) for each in seen]
        return [(f"{recorder.digest()} {first}", number) for number in first]

    try:
        with torch.no_grad():
            return Alike(World(size).run(work))
    except Exception as error:  # noqa: BLE001  (the graphs are compared next, and say it better)
        logger.info("every rank is traced: the ranks raise %s: %s", type(error).__name__, error)
        return None


class Programs:
    """One compiled program for all calls that do the same.

    Args:
        alike: What the ranks do.
        compiler: Compiles a function.
    """

    def __init__(self, alike: Alike, compiler: Callable[..., Callable[..., Any]]) -> None:
        self._alike, self._compiler = alike, compiler
        self._codes: dict[Key, types.CodeType] = {}

    def of(self, rank: int, call: Any) -> Callable[..., Any]:
        """What a rank calls in the place of ``call``."""
        left = iter(self._alike.keys[rank])

        def step(*args: Any, **kwargs: Any) -> Any:
            key = next(left)
            # dynamo keeps what it compiles with the code object; the closure, and with it the model, is each rank's own
            code = self._codes.setdefault(key, call.__code__.replace(co_name=f"rank_{rank}_call_{key[1]}"))
            own = types.FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)
            return self._compiler(own, options={"guard_filter_fn": no_guards})(*args, **kwargs)

        return functools.wraps(call)(step)


def no_guards(entries: Sequence[Any]) -> list[bool]:
    """What else guards a program has been compared before."""
    return [False] * len(entries)
