"""What of CANN is here, where it was looked for, and what does not work without each missing piece."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ge_runtime.cann import library

LIBRARIES: Final = {
    "libascendcl.so": "device, memory and streams",
    "libgraph.so": "graph objects",
    "libge_runner.so": "graph sessions",
}


def missing() -> list[str]:
    """Everything that keeps the engine from running here, one sentence each; empty if nothing does.

    Libraries are looked up by plain name on the loader's path, as everything that uses CANN does. Those that load stay
    loaded. Only where all are there is the native runner built, if need be, and asked which functions they have.
    """
    libraries = missing_libraries()
    if libraries:
        return libraries
    lacking = library.lacking()
    if lacking:
        return [lacking]
    return [*_functions(), *_devices()]


def missing_libraries() -> list[str]:
    """Libraries of CANN that cannot be loaded, with where they were looked for; empty if all can."""
    problems = [text for name in LIBRARIES if (text := _library(name)) is not None]
    return [*problems, *_where(), *_environment()] if problems else []


def _library(name: str) -> str | None:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        text = str(error)
        absent = text.startswith(name) and "No such file" in text
        there = [str(p) for p in _installed(name)]
        hint = f", but lies in {', '.join(there)}: source CANN's set_env.sh" if absent and there else ""
        if absent:
            return f"{name} ({LIBRARIES[name]}) is not on the loader's path{hint}"
        return f"{name} ({LIBRARIES[name]}) cannot be loaded: {text}"
    return None


def _installed(name: str) -> Iterator[Path]:
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        home = os.environ.get(variable)
        if home and (path := Path(home, "lib64", name)).exists():
            yield path


def _where() -> list[str]:
    folders = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    if not folders:
        return ["looked in the system's library folders, LD_LIBRARY_PATH is empty"]
    listed, absent = ", ".join(folders), ", ".join(p for p in folders if not Path(p).is_dir())
    return [
        f"looked in LD_LIBRARY_PATH ({listed}) and the system's library folders",
        *([f"of LD_LIBRARY_PATH there is no {absent}"] if absent else []),
    ]


def _environment() -> list[str]:
    """Complaints about the CANN variables: a home that is set must be whole."""
    home = os.environ.get("ASCEND_HOME_PATH")
    if not home:
        return ["ASCEND_HOME_PATH is not set, source CANN's set_env.sh"]
    needed = [Path(home), Path(home) / "runtime", Path(home) / "compiler"]
    problems = [f"{p} does not exist, although ASCEND_HOME_PATH points there" for p in needed if not p.exists()]
    if "ASCEND_OPP_PATH" not in os.environ:
        problems.append("ASCEND_OPP_PATH is not set, source CANN's set_env.sh")
    return problems


def findings() -> list[tuple[str, str, str, bool, bool, str]]:
    """Library, symbol ('' for the library itself), purpose, required, found, where: everything that is looked for.

    Errors: EngineError GE4010 if there is no native runner.
    """
    seen: list[tuple[str, str, str, bool, bool, str]] = []

    def report(_: Any, name: bytes, symbol: bytes | None, why: bytes, required: int, found: int, where: bytes) -> None:
        seen.append(
            (
                name.decode(),
                (symbol or b"").decode(),
                why.decode(),
                bool(required),
                bool(found),
                where.decode(errors="replace"),
            )
        )

    library.native().gec_open(library.REPORT(report), None)
    return seen


def _functions() -> list[str]:
    """Functions that this CANN lacks, by what they are for."""
    rows = findings()
    lost: dict[tuple[str, str], list[str]] = {}
    for name, symbol, purpose, required, found, _ in rows:
        if required and not found:
            lost.setdefault((name, purpose), []).append(symbol)
    texts = [f"{name} has no {', '.join(symbols)} ({purpose})" for (name, purpose), symbols in lost.items()]
    newer = {symbol: found for _, symbol, _, _, found, _ in rows}
    if not newer.get("GeSessionExecuteGraphWithStreamAsync") and not any(
        found for symbol, found in newer.items() if "RunGraphWithStreamAsync" in symbol
    ):
        texts.append(
            "libge_runner.so has neither GeSessionExecuteGraphWithStreamAsync nor RunGraphWithStreamAsync "
            "(running graphs)"
        )
    if texts:
        where = {w for name, _, _, _, found, w in rows if found and w and name == "libge_runner.so"}
        texts.append(f"this CANN ({', '.join(sorted(where)) or 'place unknown'}) is too old, or another product")
    return texts


def _devices() -> list[str]:
    count = ctypes.c_uint32()
    if library.native().gec_device_count(ctypes.byref(count)) != library.OK:
        return [f"devices cannot be counted: {library.last_error()}"]
    return [] if count.value else ["CANN is here, but there is no device"]
