"""Kernel facts of an installed CANN: its JSON files, read once and kept as one file of facts.

AI Core kernels stand in ``opp/built-in/op_impl/ai_core/tbe/config/<chip>/aic-<chip>-ops-info*.json``, those of custom
packages in ``opp/vendors/*/…``, AI CPU kernels in ``opp/built-in/op_impl/aicpu/**/config/*.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ge_graph.dtypes import BY_LAYOUT, BY_SHORT, BY_TORCH_NAME, DataType
from ge_graph.errors import GraphError
from ge_graph.files import whole
from ge_graph.kernels import form
from ge_graph.kernels.form import AI_CORE, AI_CPU, ANY, ChipKernel, KernelFacts

VARIABLE: Final = "ASCEND_HOME_PATH"
_AI_CORE: Final = ("op_impl/ai_core/tbe/config/*/aic-*-ops-info*.json",)
_AI_CPU: Final = ("op_impl/aicpu/**/config/*.json", "op_impl/cpu/config/*.json")
_PORT: Final = re.compile(r"(input|output)(\d+)")
_KINDS: Final = ("required", "optional", "dynamic")
_NAMES: Final = {
    **{d.name.lower().removeprefix("dt_"): d for d in DataType},
    **{d.name.lower(): d for d in DataType},
    **{name: d for name, d in BY_TORCH_NAME.items()},
    "float": DataType.DT_FLOAT,
    "bfloat16": DataType.DT_BF16,
    "bf16": BY_SHORT["bf16"],
}


def find(path: str | os.PathLike[str]) -> Path | None:
    """The ``opp`` folder of an installation, ``None`` if there is none below ``path``."""
    root = Path(path)
    return next((p for p in (root / "opp", root) if (p / "built-in").is_dir()), None)


def load(path: str | os.PathLike[str], cache: Path | None = None) -> KernelFacts:
    """The facts of an installation, or of a file that ``KernelFacts.text`` gave.

    Args:
        path: Folder of CANN (ASCEND_HOME_PATH), its ``opp`` folder, or a file of facts.
        cache: Folder for what was read; by default below the user's cache folder. A cache that cannot be written costs
            time only.

    Raises:
        GraphError: GE3067 if nothing is there, if a file is damaged, or if a file of facts has another version.
    """
    given = Path(path)
    if given.is_file():
        return form.read(_bytes(given), str(given))
    opp = find(given)
    if opp is None:
        raise form.damaged(str(given), "it is not a file of facts and has no opp/built-in folder")
    files = [(f, True) for f in _below(opp, _AI_CORE)] + [(f, False) for f in _below(opp, _AI_CPU)]
    if not files:
        raise form.damaged(str(opp), "it has no lists of operators for AI Core or AI CPU")
    folder = cache_folder() if cache is None else cache
    kept = folder / f"kernels-{_key(opp, [f for f, _ in files])}.tsv"
    try:
        return form.read(kept.read_bytes(), str(kept))
    except (OSError, GraphError):
        pass
    lines: dict[str, list[str]] = {}
    for file, ai_core in files:
        for kernel in _kernels(file, opp, ai_core):
            lines.setdefault(kernel.op, []).append(form.to_line(kernel))
    chips = {f.parent.name for f, ai_core in files if ai_core and f.is_relative_to(opp / "built-in")}
    facts = KernelFacts(lines, f"{version(opp)} in {form_text(str(given))}", chips)
    _keep(kept, facts.text())
    return facts


def form_text(text: str) -> str:
    """A path as part of a tab-separated line."""
    return re.sub(r"\s", " ", text)


def version(opp: Path) -> str:
    """Name and version of an installation as it calls itself."""
    for file in (opp / "version.info", opp.parent / "version.cfg", opp.parent / "opp" / "version.info"):
        try:
            match = re.search(r"(?im)^\s*version\s*=\s*\[?([\w.\-]+)", file.read_text("utf-8", "replace"))
        except OSError:
            continue
        if match:
            return f"CANN {match[1]}"
    return "CANN of unknown version"


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/torchair``, by default below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchair"


def _below(opp: Path, patterns: tuple[str, ...]) -> list[Path]:
    roots = [opp / "built-in", *sorted((opp / "vendors").glob("*"))]
    return sorted({f for root in roots for pattern in patterns for f in root.glob(pattern) if f.is_file()})


def _key(opp: Path, files: list[Path]) -> str:
    seen = [f"{form.VERSION} {opp.resolve()}"]
    for file in files:
        state = file.stat()
        seen.append(f"{file} {state.st_size} {state.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _keep(path: Path, text: str) -> None:
    """Write a file; a cache may fail."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path, 0o600) as file:
            file.write(text.encode("utf-8", "replace"))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise form.damaged(str(path), error.strerror or str(error)) from error


def _kernels(file: Path, opp: Path, ai_core: bool) -> Iterator[ChipKernel]:
    name = str(file)
    try:
        rows = json.loads(_bytes(file))
    except (ValueError, RecursionError) as error:
        raise form.damaged(name, f"no JSON: {error}") from error
    if not isinstance(rows, dict):
        raise form.damaged(name, "it holds no object of operators")
    source = form_text(str(file.relative_to(opp)))
    for op, row in rows.items():
        if not isinstance(row, dict) or not re.fullmatch(r"\w+", op):
            raise form.damaged(name, f"operator {op[:40]!r} is not an object, or its name is none")
        try:
            yield _ai_core(op, row, file.parent.name, source) if ai_core else _ai_cpu(op, row, source)
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise form.damaged(name, f"operator '{op}': {type(error).__name__} {error}") from error


def _ports(row: Mapping[str, Any]) -> tuple[int, list[Mapping[str, Any]]]:
    """Number of inputs, and the descriptions of all ports in order."""
    ports: dict[str, list[tuple[int, Mapping[str, Any]]]] = {"input": [], "output": []}
    for key, value in row.items():
        match = _PORT.fullmatch(key)
        if match:
            ports[match[1]].append((int(match[2]), value))
    inputs, outputs = ([v for _, v in sorted(ports[side], key=lambda e: e[0])] for side in ("input", "output"))
    return len(inputs), inputs + outputs


def _names(ports: list[Mapping[str, Any]]) -> tuple[str, ...]:
    names = tuple(str(p["name"]).strip() for p in ports)
    if not all(re.fullmatch(r"\w+", n) for n in names):
        raise ValueError(f"port names {names}")
    return names


def _kinds(ports: list[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(
        k if (k := str(p.get("paramType", "required")).strip().lower()) in _KINDS else "required" for p in ports
    )


def _list(text: Any) -> list[str]:
    return [t.strip() for t in str(text or "").split(",") if t.strip()]


def _flag(row: Mapping[str, Any], name: str) -> bool:
    entry = row.get(name)
    return isinstance(entry, dict) and str(entry.get("flag", "")).strip().lower() == "true"


def _ai_core(op: str, row: Mapping[str, Any], soc: str, source: str) -> ChipKernel:
    inputs, ports = _ports(row)
    names, kinds = _names(ports), _kinds(ports)
    types = [] if _flag(row, "dynamicFormat") else [_list(p.get("dtype")) for p in ports]
    rows = list(zip(*types)) if types and all(types) and len({len(t) for t in types}) == 1 else []
    combos = tuple(
        dict.fromkeys(tuple(_NAMES[t.lower()] for t in r) for r in rows if all(t.lower() in _NAMES for t in r))
    )
    layouts = [[f.upper() for f in _list(p.get("format"))] for p in ports]
    formats: tuple[tuple[str, ...], ...] = ()
    if layouts and all(layouts) and len({len(f) for f in layouts}) == 1:
        formats = tuple(dict.fromkeys(r for r in zip(*layouts) if all(f in BY_LAYOUT for f in r)))
        formats = () if all(f == "ND" for r in formats for f in r) else formats
    return ChipKernel(
        op,
        (soc,),
        AI_CORE,
        inputs,
        names,
        kinds,
        combos,
        (),
        formats,
        _flag(row, "needCheckSupport") or not combos,
        False,
        source,
    )


def _ai_cpu(op: str, row: Mapping[str, Any], source: str) -> ChipKernel:
    inputs, ports = _ports(row)
    sets = tuple(frozenset(_NAMES[t.lower()] for t in _list(p.get("type")) if t.lower() in _NAMES) for p in ports)
    used = sets if any(sets) else ()
    return ChipKernel(op, (ANY,), AI_CPU, inputs, _names(ports), _kinds(ports), (), used, (), False, False, source)
