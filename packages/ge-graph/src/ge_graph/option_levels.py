"""Which level of GE takes which option: the process (``GEInitialize``), a session, a graph (``AddGraph``), its loading.

GE takes an option at a level that its lists do not name, says a warning and may ignore it; and it takes global options
once a process only, so that those of a second configuration are lost. ``split`` therefore sends every option to the
narrowest level that its lists name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from ge_graph.files import package_data

Level = Literal["global", "session", "graph", "load", "engine"]

LEVELS: Final[tuple[Level, ...]] = ("global", "session", "graph", "load", "engine")

# Where the narrowest level that GE lists is not the one that works.
_HOME: Final[Mapping[str, Level]] = {
    "ge.aicoreNum": "session",  # "n|m" is taken apart at the global and the session level only
    "ge.tuningPath": "global",  # read together with ge.jobType, which is global
    "ge.quant_dumpable": "global",  # in no list: a warning, but read from the process's options
}


@dataclass(frozen=True, slots=True)
class OptionFacts:
    """What GE knows of an option.

    Attributes:
        values: Values it takes, in short; empty if not known.
        default: Value when it is not given; empty if not known or none.
        levels: Levels whose lists name it: ``global``, ``session``, ``graph``, ``load``, ``build`` (offline). Empty:
            no list, GE reads it all the same.
        home: The level to send it to.
    """

    key: str
    values: str
    default: str
    levels: tuple[str, ...]
    home: Level


@lru_cache(maxsize=1)
def table() -> dict[str, OptionFacts]:
    """Every option of GE by its key."""
    options = {}
    for line in package_data("options.tsv").decode().splitlines()[1:]:
        key, values, default, levels, *_ = (*line.split("\t"), "", "", "")
        named = tuple(filter(None, levels.split(",")))
        narrowest: Level = next((level for level in ("graph", "session", "global", "load") if level in named), "graph")
        options[key] = OptionFacts(key, values, default, named, _HOME.get(key, narrowest))
    return options


def home(key: str) -> Level:
    """The level to send an option to; ``engine`` for keys that GE does not know, which an engine reads itself."""
    facts = table().get(key)
    return "engine" if facts is None else facts.home


def split(options: Mapping[str, str]) -> dict[Level, dict[str, str]]:
    """Options sorted by the level to send them to; every level has an entry, empty ones too.

    Example:
        >>> split({"ge.oo.level": "O1", "ge.jobType": "2"})["graph"]
        {'ge.oo.level': 'O1'}
    """
    by_level: dict[Level, dict[str, str]] = {level: {} for level in LEVELS}
    for key, value in options.items():
        by_level[home(key)][key] = value
    return by_level
