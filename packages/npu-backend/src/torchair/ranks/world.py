"""Many ranks as threads of one process: one runs at a time, and they change places at collectives.

The ranks see ``torch.distributed`` as it is: each thread has a world, groups and meshes of its own (torch's
``ThreadLocalWorld``), whose backend exchanges tensors inside the process. Because one rank runs at a time, what cannot
go on is seen at once: nobody is left to run, and what everybody waits for is known.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from ge_converters.base.torch_compat import process_group
from ge_converters.base.torch_worlds import idle_store, name_of_group, threaded_worlds, user_frame
from ge_graph.errors import on_purpose
from torchair.ranks import exchange
from torchair.ranks.exchange import Place, RankCall
from torchair.ranks.problems import RanksError, bad

BACKEND: Final = "tair_ranks"
_current: Final[contextvars.ContextVar[Member | None]] = contextvars.ContextVar("rank", default=None)


_running: Final = threading.Lock()  # torch has one place for its world, which ranks replace


class Aborted(BaseException):
    """Ends a rank whose world has failed elsewhere."""


@dataclass(eq=False)
class Member:
    """One rank of a world: its thread, and why it stands still."""

    world: World
    rank: int
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    state: str = "ready"  # ready, waits, gate, done
    waits_for: RankCall | None = None
    result: Any = None
    place: Callable[[str], Place | None] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    programs: list[Sequence[Any]] = field(default_factory=list)
    planned: Sequence[Any] = ()
    roles: dict[str, str] = field(default_factory=dict)
    role_groups: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False
    alone: bool = False  # takes no graph that another rank compiled
    modules: list[str] = field(default_factory=list)
    recorder: Any = None

    def ranks_of(self, name: str) -> Sequence[int]:
        """Ranks of the world in the group of that name, in its order."""
        group = self.role_groups.get(name) or process_group(name)
        return getattr(group, "ranks", None) or range(len(self.world.members))


def here() -> Member | None:
    """The rank that this thread carries out, None outside of any."""
    return _current.get()


class World:
    """``size`` ranks.

    Args:
        size: Number of ranks.
        on_gate: Called when all ranks that can go on stand before a compiled graph; gets them, may refuse.
    """

    def __init__(self, size: int, on_gate: Callable[[list[Member]], None] | None = None) -> None:
        self.members = [Member(self, rank) for rank in range(size)]
        self.log: list[exchange.Exchanged] = []
        self.on_call: Callable[[exchange.OpenCollective], None] | None = None
        self._on_gate = on_gate
        self._open: dict[tuple[Any, ...], exchange.OpenCollective] = {}
        self._error: BaseException | None = None
        self._ended = threading.Semaphore(0)

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Carry out ``work(rank)`` on every rank; the results by rank.

        Errors: what the first rank raised; RanksError if ranks wait for each other for ever; ConfigError GE1080 if
        another world runs in this process.
        """
        if not _running.acquire(blocking=False):
            raise bad("ranks are running in this process already", "carry out one after the other")
        try:
            return self._run(work)
        finally:
            _running.release()

    def _run(self, work: Callable[[int], Any]) -> list[Any]:
        grad = torch.is_grad_enabled()
        threads = [
            threading.Thread(
                # torch's settings are variables of a context, and hold for the ranks too
                target=contextvars.copy_context().run,
                args=(self._thread, member, work, grad),
                name=f"rank {member.rank}",
                daemon=True,
            )
            for member in self.members
        ]
        with threaded_worlds():
            for thread in threads:
                thread.start()
            self.members[0].turn.release()
            for _ in threads:
                self._ended.acquire()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        left = [m for m in self._open.values() if not m.complete]
        if left:
            raise RanksError.of([exchange.unfinished(m) for m in left])
        return [member.result for member in self.members]

    def _thread(self, member: Member, work: Callable[[int], Any], grad: bool) -> None:
        member.turn.acquire()
        _current.set(member)
        try:
            if self._error is None:
                torch.set_grad_enabled(grad)
                with self._process_groups(member):
                    member.result = work(member.rank)
        except Aborted:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever it is goes to the caller)
            self._fail(error)
        finally:
            member.state = "done"
            self._ended.release()
            self._next(member)

    @contextlib.contextmanager
    def _process_groups(self, member: Member) -> Iterator[None]:
        dist.init_process_group(
            BACKEND, rank=member.rank, world_size=len(self.members), store=idle_store(), timeout=timedelta(days=1)
        )
        try:
            yield
        finally:
            dist.destroy_process_group()

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            ours = on_purpose(error)
            self._error = ours if isinstance(ours, RanksError) else error
        for member in self.members:
            if member.state in ("waits", "gate"):
                member.state = "ready"

    # -- one at a time ------------------------------------------------------------------------------------------------

    def _next(self, me: Member) -> None:
        """Let another rank run; nobody is left if all are done."""
        ahead = [*self.members[me.rank + 1 :], *self.members[: me.rank + 1]]
        for member in ahead:
            if member.state == "ready":
                member.turn.release()
                return
        if all(m.state == "done" for m in self.members):
            return
        self._stuck()
        self._next(me)

    def _stuck(self) -> None:
        """Nobody is ready: open the gate, or say who waits for what."""
        gate = [m for m in self.members if m.state == "gate"]
        try:
            if gate:
                if self._on_gate is not None:
                    self._on_gate(gate)
                for member in gate:
                    member.state = "ready"
                return
            held = {m.rank: m.waits_for for m in self.members if m.state == "waits" and m.waits_for is not None}
            done = [m.rank for m in self.members if m.state == "done"]
            raise RanksError.of(exchange.deadlock(held, done, list(self._open.values())))
        except Exception as error:  # noqa: BLE001  (goes to the caller of run)
            self._fail(error)

    def pause(self, member: Member, state: str) -> None:
        """Stand still until somebody makes the rank ready again."""
        member.state = state
        self._next(member)
        member.turn.acquire()
        if self._error is not None:
            raise Aborted

    # -- meeting ------------------------------------------------------------------------------------------------------

    def enter(self, member: Member, call: RankCall) -> exchange.OpenCollective:
        """Take part in a collective; complete when all ranks of the group do."""
        if self._error is not None:
            raise Aborted
        meeting = self._open.get(call.key)
        if meeting is None:
            meeting = self._open[call.key] = exchange.OpenCollective(call.key, call.members)
        if (fault := meeting.add(call)) is not None:
            raise RanksError.of([fault])
        if meeting.full:
            del self._open[call.key]
            if self.on_call is not None:
                self.on_call(meeting)
            try:
                record = meeting.carry_out()
                if not member.quiet:
                    self.log.append(record)
            except exchange.RanksDiffer as error:
                raise RanksError.of([error.fault()]) from None
            for each in meeting.calls.values():
                other = self.members[each.rank]
                if other.state == "waits" and other.waits_for is each:
                    other.state = "ready"
        return meeting

    def finish(self, member: Member, call: RankCall, meeting: exchange.OpenCollective) -> None:
        """Wait until a collective is complete."""
        while not meeting.complete:
            member.waits_for = call
            self.pause(member, "waits")
        member.waits_for = None


class _Work(dist.Work):  # type: ignore[misc]
    """What torch waits for."""

    def __init__(self, group: Group | None = None, call: RankCall | None = None, meeting: Any = None) -> None:
        super().__init__()
        self._group, self._call, self._meeting = group, call, meeting

    def wait(self, *_: Any) -> bool:
        if self._group is not None and self._call is not None:
            self._group.member.world.finish(self._group.member, self._call, self._meeting)
        return True

    def is_completed(self) -> bool:
        return self._meeting is None or self._meeting.complete

    def get_future(self) -> Any:
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self._call.outputs if self._call else [])
        return future


class Group(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of one rank's world."""

    def __init__(self, rank: int, ranks: Sequence[int], name: str) -> None:
        super().__init__(rank, len(ranks))
        member = here()
        assert member is not None, "no thread of a world"
        self.member, self.ranks, self._rank, self._key = member, tuple(ranks), rank, name

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:
        return BACKEND

    @property
    def pg_name(self) -> str:
        return name_of_group(self)

    group_name = pg_name

    def _meet(self, kind: str, inputs: Sequence[Any], outputs: Sequence[Any], **more: Any) -> _Work:
        member = self.member
        key = (self._key, self.ranks, member.counts.get(self._key, 0))
        member.counts[self._key] = key[2] + 1
        return self._send_off(kind, key, self.ranks, inputs, outputs, more)

    def _send_off(self, kind: str, key: Any, ranks: Any, inputs: Any, outputs: Any, more: Any) -> _Work:
        member = self.member
        place = member.place(kind) if member.place is not None else None
        if place is None:
            place = Place(-1, -1, *user_frame(), member.modules[-1] if member.modules else "")
        call = RankCall(self.member.rank, kind, key, ranks, list(inputs), list(outputs), more, place, self.ranks)
        if member.recorder is None:
            return _Work(self, call, member.world.enter(member, call))
        member.recorder.entered(call)
        with member.recorder.silence():
            return _Work(self, call, member.world.enter(member, call))

    def allreduce(self, tensors: Any, options: Any = None) -> _Work:
        return self._meet("all_reduce", tensors, tensors, op=_op(options))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, options: Any) -> _Work:
        return self._meet("reduce", tensors, tensors, op=_op(options), root=options.rootRank)

    def barrier(self, opts: Any = None) -> _Work:
        return self._meet("barrier", [], [])

    def broadcast(self, tensors: Any, options: Any) -> _Work:
        return self._meet("broadcast", tensors, tensors, root=options.rootRank)

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> _Work:
        return self._meet("all_gather", inputs, outputs[0])

    def _allgather_base(self, output: Any, input: Any, options: Any = None) -> _Work:
        return self._meet(
            "all_gather", [input], list(output.chunk(self.size())) if output.numel() else [output] * self.size()
        )

    all_gather_single = _allgather_base

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> _Work:
        return [self._allgather_base(o, i) for o, i in zip(outputs, inputs)][-1]

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, options: Any) -> _Work:
        return self._meet("gather", inputs, outputs[0] if outputs else [], root=options.rootRank)

    def scatter(self, outputs: Any, inputs: Any, options: Any) -> _Work:
        return self._meet("scatter", inputs[0] if inputs else [], outputs, root=options.rootRank)

    def reduce_scatter(self, outputs: Any, inputs: Any, options: Any = None) -> _Work:
        return self._meet("reduce_scatter", inputs[0], outputs, op=_op(options))

    def _reduce_scatter_base(self, output: Any, input: Any, options: Any = None) -> _Work:
        return self._meet(
            "reduce_scatter",
            list(input.chunk(self.size())) if input.numel() else [input] * self.size(),
            [output],
            op=_op(options),
        )

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, options: Any = None) -> _Work:
        return [self._reduce_scatter_base(o, i, options) for o, i in zip(outputs, inputs)][-1]

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall_base(self, output: Any, input: Any, received: Any, sent: Any, options: Any = None) -> _Work:
        size = self.size()
        outs = output.split(list(received)) if received else output.chunk(size) if output.numel() else [output] * size
        ins = input.split(list(sent)) if sent else input.chunk(size) if input.numel() else [input] * size
        return self._meet("all_to_all", list(ins), list(outs))

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, inputs: Any, options: Any = None) -> _Work:
        return self._meet("all_to_all", inputs, outputs)

    def send(self, tensors: Any, to: int, tag: int = 0) -> _Work:
        return self._pair("send", tensors, self.rank(), to, tag)

    def recv(self, tensors: Any, source: int, tag: int = 0) -> _Work:
        return self._pair("recv", tensors, source, self.rank(), tag)

    def _pair(self, kind: str, tensors: Any, source: int, to: int, tag: int) -> _Work:
        member = self.member
        way = f"{self._key} {kind} {source} {to} {tag}"
        number = member.counts.get(way, 0)
        member.counts[way] = number + 1
        ranks = (self.ranks[source], self.ranks[to])
        inputs, outputs = (tensors, []) if kind == "send" else ([], tensors)
        return self._send_off(kind, (self._key, self.ranks, "p2p", source, to, tag, number), ranks, inputs, outputs, {})


def _op(options: Any) -> str:
    op = options.reduceOp
    return str(getattr(op, "op", op)).rpartition(".")[2].lower()


def _create(options: Any, _backend_options: Any) -> Group:
    return Group(options.group_rank, options.global_ranks_in_group or range(options.group_size), str(options.group_id))


if dist.is_available():
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
