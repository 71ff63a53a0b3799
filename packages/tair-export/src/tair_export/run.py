"""``tair-run``: look into an archive, or run it on arrays from a shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ge_graph.command_line import CommandParser, told
from ge_graph.errors import GeError
from ge_graph.escape import block, line
from ge_graph.files import read_plain
from ge_graph.ir import Graph
from tair_export import measure
from tair_export.archive import Archive, Authenticate, open_archive
from tair_export.foreign import contract_of, read_air
from tair_export.load import CompiledModel, read_graph
from tair_export.manifest import SUFFIX
from tair_export.ranks import Rank, current
from tair_export.signature import Record, Signature, describe, describe_output
from tair_export.signing import KEY_BYTES, signed_by
from tair_export.tensors import read_npy

_USAGE: Final = """tair-run ARCHIVE --info
       tair-run ARCHIVE -i x.npy -i y.npy -o results
       tair-run ARCHIVE --random --size s0=128 --iterations 100 --json
       torchrun --nproc-per-node 8 --no-python tair-run ARCHIVE -i 'x{rank}.npy' -o results"""
_COUNTED: Final = (("random", "size", "below", "seed"), ("iterations", "warm_up"))  # options that need the first one


def _parser() -> CommandParser:
    parser = CommandParser(
        "tair-run",
        usage=_USAGE,
        description="Run a saved graph on arrays, measure it, or describe it.",
        epilog="Where several processes saved a graph with collectives, each of as many processes runs the graph of "
        "its rank: {rank} in an input is its number, and its results are in rank_<r>. Exit codes: 0 all well, 1 "
        "failure, 2 wrong usage.",
    )
    add = parser.add_argument
    add("archive", metavar="ARCHIVE", type=Path, help="folder or graph file of save_graph or dynamo_export")
    add("rest", metavar="INPUT", nargs="*", help="as --inputs")
    add(
        "--inputs",
        "-i",
        action="append",
        default=[],
        metavar="INPUT",
        help="FILE.npy in order, or NAME=FILE.npy, or NAME=NUMBER; repeat for each input",
    )
    add("--output", "-o", type=Path, metavar="FOLDER", help="folder for the results, output_<n>.npy")
    add("--info", action="store_true", help="print signature, operators, sizes and versions; run nothing")
    add("--json", action="store_true", dest="as_json", help="print JSON")
    add("--verify", default="full", metavar="MODE", help="full, auto, fast or sizes: how much is compared")
    add("--device", metavar="TYPE", help="device type to run on")
    add("--rank", type=int, metavar="NUMBER", help="which rank's files, where several processes saved")
    add(
        "--key",
        type=Path,
        action="append",
        default=[],
        metavar="PEM",
        help="public Ed25519 key: only archives that it has signed; repeat for several keys",
    )
    add("--signed-for", metavar="TEXT", help="what the archive must have been signed for, with --key")
    add("--random", action="store_true", help="run on random inputs, in the place of files")
    add(
        "--size",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="with --random: value of a size that may change; repeat it",
    )
    add("--below", type=_from(1), metavar="NUMBER", help="with --random: whole numbers are less than this (default: 2)")
    add("--seed", type=_from(0), metavar="NUMBER", help="with --random: equal seeds give equal inputs (default: 0)")
    add("--iterations", type=_from(1), metavar="NUMBER", help="measure so many runs, and print times, no results")
    add(
        "--warm-up",
        type=_from(0),
        metavar="NUMBER",
        help="with --iterations: runs before them that do not count (default: 3)",
    )
    add(
        "--timeout",
        type=float,
        default=300,
        metavar="SECONDS",
        help="how long a process of several waits for another (default: 300)",
    )
    return parser


def _from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ValueError(text)
        return value

    return number


def main(args: Sequence[str] | None = None) -> int:
    """The command. Exit code 0 if all is well, 1 for a failure, 2 for wrong usage."""
    try:
        given = _parser().parse_intermixed_args(args)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    try:
        _carry_out(given)
    except (GeError, OSError, ValueError) as error:
        sys.stderr.write(block(f"tair-run: {error}") + "\n")
        return 1
    return 0


def _carry_out(given: argparse.Namespace) -> None:
    for needed, *others in _COUNTED:
        idle = ", ".join(f"--{name.replace('_', '-')}" for name in others if getattr(given, name) not in (None, []))
        if idle and not getattr(given, needed):
            raise ValueError(told(f"{idle} without --{needed} does nothing"))
    if given.iterations is not None and given.output is not None:
        raise ValueError(told("--output with --iterations: a measurement writes no results"))
    which = current() if given.rank is None else Rank(given.rank, max(given.rank + 1, 2))
    authenticate = _authenticate(given.key, given.signed_for)
    if given.info and authenticate is None and is_bare(given.archive):
        _show(bare(given.archive), given.as_json)
        return
    if given.info:
        archive = open_archive(given.archive, which, verify=given.verify, authenticate=authenticate)
        _show(summary(archive), given.as_json)
        return
    model = CompiledModel.load_graph(
        given.archive, verify=given.verify, device=given.device, rank=which, authenticate=authenticate
    )
    inputs = [*given.inputs, *given.rest]
    if model.groups:
        inputs = [text.replace("{rank}", str(which.index)) for text in inputs]
    if given.random:
        values = _random(model.signature, inputs, given.size, given.below or 2, given.seed or 0)
    else:
        values = read_inputs(model.signature, inputs)
    with model.opened_groups(given.timeout):
        if given.iterations is not None:
            warm_up = 3 if given.warm_up is None else given.warm_up
            _show_times(model, values, warm_up, given.iterations, given.as_json)
            return
        result = call(model, values)
    output = given.output
    _report(result, output if output is None or not model.groups else output / which.folder, given.as_json)


def _authenticate(keys: Sequence[Path], text: str | None) -> Authenticate | None:
    """What the keys of the command line ask for.

    Raises:
        ValueError: A text without a key.
    """
    if not keys:
        if text is not None:
            raise ValueError(told("--signed-for tells what a signature must be for: give --key as well"))
        return None
    return signed_by(*(read_plain(path, KEY_BYTES) for path in keys), text=text)


# --- running ---------------------------------------------------------------------------------------------------------


def read_inputs(contract: Signature, given: list[str]) -> list[Any]:
    """A value for each leaf of the arguments: files and numbers in order or by name, constants by themselves.

    Raises:
        ValueError: If there are too few, too many, or a name is not known.
    """
    entries = contract.inputs
    values = {i.name: i.value for i in entries if i.kind in ("constant", "opaque")}
    open_names = [i.name for i in entries if i.kind in ("tensor", "number")]
    texts: dict[str, str] = {}
    loose = []
    for text in given:
        name, equals, rest = text.partition("=")
        if equals and name in open_names:
            texts[name] = rest
        else:
            loose.append(text)
    left = [n for n in open_names if n not in texts]
    if len(loose) != len(left):
        wanted = ", ".join(describe(i) for i in entries if i.name in left) or "none"
        raise ValueError(told(f"{len(loose)} inputs given for {len(left)}: {wanted}"))
    texts.update(zip(left, loose))
    for entry in entries:
        if entry.name in texts:
            text = texts[entry.name]
            values[entry.name] = int(text) if entry.kind == "number" else read_npy(text)
    return [values[i.name] for i in entries]


def _random(contract: Signature, given: list[str], size: Sequence[str], below: int, seed: int) -> list[Any]:
    if given:
        raise ValueError(told(f"--random makes all inputs; {len(given)} are given beside it"))
    sizes = {}
    for text in size:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise ValueError(told(f"--size {text}: write NAME=NUMBER"))
        sizes[name] = int(number)
    return measure.random_inputs(contract, sizes, below, seed)


def _show_times(model: CompiledModel, values: list[Any], warm_up: int, iterations: int, as_json: bool) -> None:
    run = prepared(model, values)
    found = measure.described(measure.times(run, warm_up=warm_up, iterations=iterations), warm_up)
    if as_json:
        _print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        _print(line(f"{name:<16} {value:.3f}" if isinstance(value, float) else f"{name:<16} {value}"))


def call(model: CompiledModel, leaves: list[Any]) -> Any:
    """Call a model with the leaves of its arguments."""
    return prepared(model, leaves)()


def prepared(model: CompiledModel, leaves: list[Any]) -> Callable[[], Any]:
    """A call of a model with the leaves of its arguments, to make as often as one likes."""
    from dataclasses import replace

    contract = model.signature
    plain = replace(
        contract, args={"tuple": ["*"] * len(leaves)}, kwargs={"dict": []}, names=tuple(i.name for i in contract.inputs)
    )
    flat = CompiledModel(model.graph, plain, model.executable, model.states, model.name)
    return lambda: flat(*leaves)


def _named(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, Record):
        return [pair for k, v in value.items() for pair in _named(v, f"{name}.{k}" if name else k)]
    if isinstance(value, dict):
        return [pair for k, v in value.items() for pair in _named(v, f"{name}.{k}" if name else str(k))]
    if isinstance(value, (tuple, list)):
        return [pair for i, v in enumerate(value) for pair in _named(v, f"{name}.{i}" if name else str(i))]
    return [(name or "0", value)]


def _report(result: Any, folder: Path | None, as_json: bool) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for name, value in _named(result, ""):
        row: dict[str, Any] = {"name": name}
        if hasattr(value, "shape"):
            array = np.asarray(value)
            row |= {"dtype": str(array.dtype), "shape": list(array.shape)}
            if folder is not None:
                path = folder / f"output_{len(rows)}.npy"
                np.save(path, array)
                row["file"] = str(path)
            else:
                row["values"] = array.reshape(-1)[:8].tolist()
        else:
            row["value"] = value
        rows.append(row)
    if as_json:
        _print(json.dumps(rows, indent=1))
        return
    for row in rows:
        _print(line("  ".join(f"{k}={v}" if k != "name" else f"{v}:" for k, v in row.items())))


# --- describing ------------------------------------------------------------------------------------------------------


def summary(archive: Archive) -> dict[str, Any]:
    """What ``--info`` shows, as JSON values."""
    graph, contract = read_graph(archive)
    manifest = archive.manifest
    sizes = archive.sizes()
    return {
        **_described(archive.path, graph, contract),
        "kind": str(manifest.get("kind")),
        "format": manifest["version"],
        "writer": manifest.get("writer"),
        "device": manifest.get("device"),
        "checksum": checksum(archive),
        "states": sorted(map(str, manifest.get("states", {}))),
        "graph_bytes": sizes[manifest["graph"]],
        "weight_files": len(manifest.get("weights", [])),
        "total_bytes": sum(sizes.values()),
        "sha256": {f["name"]: f["sha256"] for f in manifest["files"]},
    }


def checksum(archive: Archive | None) -> str:
    """What an archive, or a graph file alone, shows of its integrity."""
    if archive is None:
        return "none: a graph file without a manifest cannot show whether it, or its weights, were changed"
    files = len(archive.sizes())
    return f"SHA-256 of {files} files and of the manifest, all equal" if archive.compared else "not compared"


def _described(path: Path, graph: Graph, contract: Signature) -> dict[str, Any]:
    ops = Counter(n.op for n in graph.nodes if n.op not in ("Data", "RefData", "Const"))
    return {
        "archive": str(path),
        "signature": contract.text(),
        "inputs": [describe(i) for i in contract.inputs],
        "outputs": [describe_output(o) for o in contract.outputs],
        "ops": dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        "nodes": len(graph.nodes),
        "constants": sum(n.op == "Const" for n in graph.nodes),
    }


def is_bare(path: Path) -> bool:
    """Whether this is a graph file without a manifest."""
    return path.is_file() and path.suffix != ".json" and not path.with_name(path.stem + SUFFIX).is_file()


def bare(path: Path) -> dict[str, Any]:
    """What ``--info`` shows of a graph file alone, which has no SHA-256 that anything could be compared with."""
    graph = read_air(path)
    size = path.stat().st_size
    return {
        **_described(path, graph, contract_of(graph, path)),
        "kind": "graph file alone",
        "format": "ge.proto",
        "writer": None,
        "device": None,
        "checksum": checksum(None),
        "states": [],
        "graph_bytes": size,
        "weight_files": 0,
        "total_bytes": size,
        "sha256": {},
    }


def _show(info: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print(json.dumps(info, indent=1))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    writer = info["writer"] if isinstance(info["writer"], dict) else {}
    none = told("none")
    by = ", ".join(f"{k} {v}" for k, v in sorted(writer.items()))
    total, graph = f"{info['total_bytes']:,}", f"{info['graph_bytes']:,}"
    rows = {
        told("archive"): info["archive"],
        told("checksum"): told(info["checksum"]),
        told("format"): told(f"{info['format']}, written by {by}"),
        told("inputs"): "\n".join(info["inputs"]) or none,
        told("outputs"): "\n".join(info["outputs"]) or none,
        told("states"): "\n".join(info["states"]),
        told("operators"): "\n".join(f"{n:>6} {op}" for op, n in info["ops"].items()),
        told("size"): told(f"{total} bytes; graph {graph}, {info['weight_files']} weight files"),
    }
    for name, text in rows.items():
        if text:
            table.add_row(name, escape(block(text)))
    Console(soft_wrap=not sys.stdout.isatty(), force_jupyter=False).print(table)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
