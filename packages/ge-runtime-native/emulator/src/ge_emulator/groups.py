"""Process groups of the kernels of collectives in GE graphs: the communicators of the emulator's libhccl, by name.

The kernels call ``torch.distributed`` with such a group. A failure is kept until the run of the graph ends
(``failure``): torch's functions would hide it behind one of their own, because they do not know the group.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import torch

from ge_emulator import hccl
from ge_emulator.hccl import Communicators
from ge_runtime.cpu.groups import finders

(_ALL_REDUCE, _BROADCAST, _REDUCE, _ALL_GATHER, _REDUCE_SCATTER, _, _ALL_TO_ALL, _BARRIER, _SEND, _RECEIVE) = range(10)
_TYPES: Final = {
    torch.int8: 0,
    torch.int16: 1,
    torch.int32: 2,
    torch.float16: 3,
    torch.float32: 4,
    torch.int64: 5,
    torch.uint8: 7,
    torch.float64: 10,
    torch.bfloat16: 11,
}
_OPERATIONS: Final = ("SUM", "PRODUCT", "MAX", "MIN")
_kept: Final = threading.local()


def failure() -> str:
    """What a collective of this thread said since the last time; empty if none failed."""
    text: str = getattr(_kept, "text", "")
    _kept.text = ""
    return text


class _Done:
    def wait(self, *_: Any) -> bool:
        return True


class HostGroup:
    """What ``torch.distributed`` asks of a process group, for tensors on the host.

    Args:
        name: Of the communicator, as HcclGetCommName gives it.
    """

    def __init__(self, reach: Communicators, name: str, rank: int, size: int) -> None:
        self._reach, self.name, self._rank, self._size = reach, name, rank, size

    def rank(self) -> int:
        """This process in the group."""
        return self._rank

    def size(self) -> int:
        """Number of processes."""
        return self._size

    def _exchange(self, kind: int, sent: torch.Tensor | bytes, into: torch.Tensor | None, **more: int) -> _Done:
        data = sent if isinstance(sent, bytes) else _bytes(sent)
        room = 0 if into is None else into.numel() * into.element_size()
        header = (kind, more.get("peer", 0), more.get("dtype", 4), more.get("op", 0))
        code, got = self._reach.exchange(self.name, header, data, room)
        if code:
            _kept.text = getattr(_kept, "text", "") or got.decode(errors="replace")
            raise RuntimeError(_kept.text)  # which ends the run at this node
        if into is not None and room:
            flat = torch.frombuffer(bytearray(got), dtype=torch.uint8, count=room).view(into.dtype)
            into.copy_(flat.view(into.shape))
        return _Done()

    def allreduce(self, tensors: Sequence[torch.Tensor], options: Any) -> _Done:
        """In place."""
        (x,) = tensors
        return self._exchange(_ALL_REDUCE, x, x, dtype=_TYPES[x.dtype], op=_operation(options))

    def broadcast(self, tensors: Sequence[torch.Tensor], options: Any) -> _Done:
        """In place, from the root."""
        (x,) = tensors
        sent: torch.Tensor | bytes = x if options.rootRank == self._rank else b""
        return self._exchange(_BROADCAST, sent, x, peer=options.rootRank, dtype=_TYPES.get(x.dtype, 7))

    def reduce(self, tensors: Sequence[torch.Tensor], options: Any) -> _Done:
        """In place, on the root."""
        (x,) = tensors
        into = x if options.rootRank == self._rank else None
        return self._exchange(_REDUCE, x, into, peer=options.rootRank, dtype=_TYPES[x.dtype], op=_operation(options))

    def _allgather_base(self, into: torch.Tensor, x: torch.Tensor, options: Any = None) -> _Done:
        return self._exchange(_ALL_GATHER, x, into, dtype=_TYPES.get(x.dtype, 7))

    def allgather(
        self, into: Sequence[Sequence[torch.Tensor]], xs: Sequence[torch.Tensor], options: Any = None
    ) -> _Done:
        """One tensor of each rank."""
        (parts,), (x,) = into, xs
        whole = x.new_empty((self._size, *x.shape))
        done = self._allgather_base(whole, x)
        for part, got in zip(parts, whole):
            part.copy_(got)
        return done

    def _reduce_scatter_base(self, into: torch.Tensor, x: torch.Tensor, options: Any) -> _Done:
        return self._exchange(_REDUCE_SCATTER, x, into, dtype=_TYPES[x.dtype], op=_operation(options))

    def alltoall_base(
        self, into: torch.Tensor, x: torch.Tensor, received: list[int], sent: list[int], options: Any = None
    ) -> _Done:
        """As many rows as told to and from each rank."""
        row = x.element_size() * (x[:1].numel() if x.shape[0] else 0)
        sizes = sent or [x.shape[0] // self._size] * self._size
        head = b"".join((row * n).to_bytes(8, "little") for n in sizes)
        return self._exchange(_ALL_TO_ALL, head + _bytes(x), into)

    # newer names of torch.distributed for the same
    all_gather_single, reduce_scatter_single, all_to_all_single = _allgather_base, _reduce_scatter_base, alltoall_base

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int = 0) -> _Done:
        """To a rank of the group."""
        return self._exchange(_SEND, tensors[0], None, peer=to)

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> _Done:
        """From a rank of the group."""
        return self._exchange(_RECEIVE, b"", tensors[0], peer=source)


def _bytes(x: torch.Tensor) -> bytes:
    return bytes(x.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _operation(options: Any) -> int:
    name = str(options.reduceOp.op if hasattr(options.reduceOp, "op") else options.reduceOp).rpartition(".")[2]
    return _OPERATIONS.index(name)


def find(name: str) -> HostGroup | None:
    """The communicator of that name that is open in the program."""
    reach = _elsewhere or _here()
    place = None if reach is None else reach.place(name)
    return None if reach is None or place is None else HostGroup(reach, name, *place)


_elsewhere: Communicators | None = None


def reach_by(other: Communicators) -> None:
    """From now on communicators are those of another process."""
    global _elsewhere
    _elsewhere = other


def _here() -> Communicators | None:
    try:
        return hccl.Here()
    except OSError:
        return None


finders.append(find)
