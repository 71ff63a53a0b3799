"""What captured graphs of some sizes need of a chip: graphs, streams, events, tasks and memory, before a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ge_graph.command_line import told
from ge_graph.cost import chips
from ge_graph.errors import ConfigError
from ge_graph.escape import line
from tair_debug import tracing
from tair_debug.terminal import Answer, Detail, sentence, table

if TYPE_CHECKING:
    from tair_debug.models import Subject
    from tair_debug.terminal import Part

COUNTS: Final = ("graphs", "streams", "events", "tasks", "pool_bytes")
_LIMITED: Final = ("graphs", "streams", "events")
_UNKNOWN: Final = {
    "graphs": "no public figure; each graph has at least one stream",
    "tasks": "no public figure; a runtime may open further streams for a graph of very many tasks",
}


@dataclass(frozen=True)
class Need:
    """What the captured graphs of one size need.

    Attributes:
        size: The size.
        graphs: Captured graphs.
        streams: Streams that are captured.
        events: Events in them.
        tasks: Tasks in them.
        pool_bytes: What their memory pools have of the device; of a pool that earlier sizes have too, what it grows by.
        unmeasured: Operators whose number of tasks nobody measured, with the user's lines; counted as one task each.
        clashes: Pairs of communication tasks that can dead-lock, as text; ``possible`` those of which it is not known.
    """

    size: int
    graphs: int
    streams: int
    events: int
    tasks: int
    pool_bytes: int
    unmeasured: dict[str, list[str]] = field(default_factory=dict)
    clashes: tuple[str, ...] = ()
    possible: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "size": self.size,
            **{name: getattr(self, name) for name in COUNTS},
            "unmeasured": self.unmeasured,
            "clashes": list(self.clashes),
            "possible_clashes": list(self.possible),
        }


@dataclass(repr=False)
class Captures(Answer):
    """What captured graphs need, size by size, against the limits of a chip.

    Attributes:
        soc: The chip.
        needs: One for each size.
        limits: Name to the chip's limit; None if nobody publishes it.
        sources: Name to who says so, or why it is unknown.
    """

    soc: str
    needs: list[Need]
    limits: dict[str, int | None]
    sources: dict[str, str]

    @property
    def total(self) -> dict[str, int]:
        """The sums over all sizes."""
        return {name: sum(getattr(need, name) for need in self.needs) for name in COUNTS}

    @property
    def exceeded(self) -> list[str]:
        """What the chip has not enough of, as far as limits are known."""
        return [name for name, limit in self.limits.items() if limit is not None and self.total[name] > limit]

    @property
    def ok(self) -> bool:
        """Whether no known limit is exceeded and nothing is sure to dead-lock."""
        return not self.exceeded and not any(need.clashes for need in self.needs)

    def parts(self, detail: Detail = Detail()) -> Iterator[Part]:
        total = self.total
        for name, limit in self.limits.items():
            if limit is not None:
                style = "red" if name in self.exceeded else "green"
                yield sentence("", f"{self.soc}: {total[name]} {told(name)}, the chip has {limit}", style)
        if detail.quiet:
            return
        rows = [[str(need.size), *(f"{getattr(need, name):,}" for name in COUNTS)] for need in self.needs]
        rows.append(["sum", *(f"{total[name]:,}" for name in COUNTS)])
        limits = [self.limits.get(name) for name in COUNTS]
        rows.append(["limit", *("unknown" if limit is None else f"{limit:,}" for limit in limits)])
        yield table(["size", *(name.replace("_", " ") for name in COUNTS)], rows)
        for text in dict.fromkeys(text for need in self.needs for text in need.clashes):
            yield sentence("", line(text), "red")
        for text in dict.fromkeys(text for need in self.needs for text in need.possible):
            yield sentence("", line(text), "yellow")
        unmeasured: dict[str, list[str]] = {}
        for need in self.needs:
            unmeasured |= need.unmeasured
        for name, places in unmeasured.items():
            where = f" ({'; '.join(places[:3])})" if places else ""
            yield sentence(line(f" {name}{where}"), "nobody measured its tasks, counted as one:")
        if detail.sources:
            for name, source in self.sources.items():
                yield sentence(line(told(source)), f"{told(name)}: ")

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "soc": self.soc,
            "sizes": [need.as_dict() for need in self.needs],
            "sum": self.total,
            "limits": self.limits,
            "sources": self.sources,
            "exceeded": self.exceeded,
        }

    def records(self) -> list[dict[str, Any]]:
        return [need.as_dict() for need in self.needs]


def captures_of(
    subject: Callable[[int], Subject], sizes: Sequence[int], soc: str, *, fake: bool = True, dynamic: bool = False
) -> Captures:
    """What the captured graphs of a model need.

    Args:
        subject: Size to the model with inputs of it.
        sizes: The sizes.
        soc: A chip, as ``ge_graph.cost.chips.figures`` takes it.
        fake: Whether tensors have no data.
        dynamic: Trace with symbolic sizes and numbers, so that numbers of each step are no constants.

    Errors: ConfigError GE1043 without the compiler, GE1047 if the model cannot be traced; GraphError GE3073 for a chip
        without figures; EngineError GE1058 for what a device cannot capture.
    """
    make = tracing.of_compiler("captured")
    if make is None:
        raise ConfigError(
            "GE1043", "nobody here captures graphs: the package torchair is not installed", next="pip install torchair"
        )
    figures = chips.figures(soc)
    cores = figures.get("vector_cores")
    needs = []
    pools: dict[Any, Any] = {}
    for size in sizes:
        asked = subject(size)
        counter = make(asked.config, cores, pools, dynamic=dynamic)
        asked.config = counter.config
        for each in tracing.capture(asked, fake=fake, dynamic=dynamic, device_kernels=True):
            counter.add(each.gm)
        needs.append(Need(size, **counter.needs()))
    limits: dict[str, int | None] = {}
    sources: dict[str, str] = {}
    for name in _LIMITED:
        value = figures.get(name)
        limits[name] = None if value is None else int(value)
        sources[name] = figures.sources.get(name) or _UNKNOWN.get(name, "no public figure for this chip")
    sources["tasks"] = _UNKNOWN["tasks"]
    return Captures(figures.chip, needs, limits, sources)


def sizes_of(text: str) -> list[int]:
    """The sizes of ``1,2,4,8``, each once.

    Errors: ConfigError GE1043 for another form.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 0 < len(part) < 10 and int(part) for part in parts):
        raise ConfigError(
            "GE1043", f"--sizes {line(text, 200)} is not understood", next="give numbers: --sizes 1,2,4,8"
        )
    return list(dict.fromkeys(map(int, parts)))
