"""``tair-run``: look into an archive, or run it on arrays from a shell."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

from ge_graph.errors import GeError
from ge_graph.escape import block, line
from ge_graph.files import read_plain
from ge_graph.ir import Graph
from tair_export import measure
from tair_export.archive import Archive, Authenticate, Verify, open_archive
from tair_export.foreign import contract_of, read_air
from tair_export.load import CompiledModel, read_graph
from tair_export.manifest import SUFFIX
from tair_export.ranks import Rank, current
from tair_export.signature import Record, Signature, describe, describe_output
from tair_export.signing import KEY_BYTES, signed_by
from tair_export.tensors import read_npy

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_ArchiveArg = Annotated[
    Path, typer.Argument(metavar="ARCHIVE", help="Folder or graph file of save_graph or dynamo_export.")
]
_Inputs = Annotated[
    list[str] | None,
    typer.Option("--inputs", "-i", help="FILE.npy in order, or NAME=FILE.npy, or NAME=NUMBER; repeat for each input."),
]
_Rest = Annotated[list[str] | None, typer.Argument(hidden=True)]


@app.command()
def command(
    archive: _ArchiveArg,
    rest: _Rest = None,
    inputs: _Inputs = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results, output_<n>.npy.")
    ] = None,
    info: Annotated[
        bool, typer.Option("--info", help="Print signature, operators, sizes and versions; run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verify: Annotated[
        str, typer.Option(help="full, auto, fast or sizes: how much to compare with the checksums.")
    ] = "full",
    device: Annotated[str | None, typer.Option(help="Device type to run on.")] = None,
    rank: Annotated[int | None, typer.Option(help="Which rank's files, where several processes saved.")] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option(help="Public Ed25519 key, PEM: only archives that it has signed; repeat for several keys."),
    ] = None,
    signed_for: Annotated[
        str | None, typer.Option(help="The text that the archive must have been signed for, with --key.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Run on random inputs, in the place of files.")] = False,
    size: Annotated[
        list[str] | None, typer.Option(help="With --random: NAME=NUMBER of a size that may change; repeat it.")
    ] = None,
    below: Annotated[
        int | None, typer.Option(min=1, help="With --random: whole numbers are less than this, by default 2.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="With --random: equal seeds give equal inputs, by default 0.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Measure so many runs, and print times, no results.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that a process of several waits for another.")] = 300,
    warm_up: Annotated[
        int | None, typer.Option(min=0, help="With --iterations: runs before them that do not count, by default 3.")
    ] = None,
) -> None:
    """Run a saved graph on arrays, measure it, or describe it.

    tair-run saved --info
    tair-run saved --inputs x.npy --inputs y.npy --output results
    tair-run saved --random --size s0=128 --iterations 100 --json
    torchrun --nproc-per-node 8 --no-python tair-run saved -i 'x{rank}.npy' -o results

    Where several processes saved a graph with collectives, each of as many processes runs the graph of its rank: {rank}
    in an input is its number, and its results are in rank_<r>.
    """
    needs: list[tuple[str, bool, dict[str, Any]]] = [
        ("--random", random, {"--size": size, "--below": below, "--seed": seed}),
        ("--iterations", iterations is not None, {"--warm-up": warm_up}),
    ]
    which = current() if rank is None else Rank(rank, max(rank + 1, 2))
    mode = cast(Verify, verify)
    try:
        for option, there, others in needs:
            if not there and (idle := [name for name, value in others.items() if value is not None]):
                raise ValueError(f"{', '.join(idle)} without {option} does nothing")
        if iterations is not None and output is not None:
            raise ValueError("--output with --iterations: a measurement writes no results")
        authenticate = _authenticate(key or (), signed_for)
        if info and authenticate is None and is_bare(archive):
            _show(bare(archive), as_json)
            return
        if info:
            _show(summary(open_archive(archive, which, verify=mode, authenticate=authenticate)), as_json)
            return
        model = CompiledModel.load_graph(archive, verify=mode, device=device, rank=which, authenticate=authenticate)
        given = [*(inputs or ()), *(rest or ())]
        if model.groups:
            given = [text.replace("{rank}", str(which.index)) for text in given]
        if random:
            values = _random(model.signature, given, size or (), 2 if below is None else below, seed or 0)
        else:
            values = read_inputs(model.signature, given)
        with model.opened_groups(timeout):
            if iterations is not None:
                _show_times(model, values, 3 if warm_up is None else warm_up, iterations, as_json)
                return
            result = call(model, values)
        _report(result, output if output is None or not model.groups else output / which.folder, as_json)
    except (GeError, OSError, ValueError) as error:
        typer.echo(block(f"tair-run: {error}"), err=True)
        raise typer.Exit(1) from error


def _authenticate(keys: Sequence[Path], text: str | None) -> Authenticate | None:
    """What the keys of the command line ask for.

    Raises:
        ValueError: A text without a key.
    """
    if not keys:
        if text is not None:
            raise ValueError("--signed-for tells what a signature must be for: give --key as well")
        return None
    return signed_by(*(read_plain(path, KEY_BYTES) for path in keys), text=text)


def main() -> None:
    app()


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
        raise ValueError(f"{len(loose)} inputs given for {len(left)}: {wanted}")
    texts.update(zip(left, loose))
    for entry in entries:
        if entry.name in texts:
            text = texts[entry.name]
            values[entry.name] = int(text) if entry.kind == "number" else read_npy(text)
    return [values[i.name] for i in entries]


def _random(contract: Signature, given: list[str], size: Sequence[str], below: int, seed: int) -> list[Any]:
    if given:
        raise ValueError(f"--random makes all inputs; {len(given)} are given beside it")
    sizes = {}
    for text in size:
        name, equals, number = text.partition("=")
        if not equals or not number.isdecimal():
            raise ValueError(f"--size {text}: write NAME=NUMBER")
        sizes[name] = int(number)
    return measure.random_inputs(contract, sizes, below, seed)


def _show_times(model: CompiledModel, values: list[Any], warm_up: int, iterations: int, as_json: bool) -> None:
    run = prepared(model, values)
    found = measure.described(measure.times(run, warm_up=warm_up, iterations=iterations), warm_up)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        typer.echo(line(f"{name:<16} {value:.3f}" if isinstance(value, float) else f"{name:<16} {value}"))


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
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        typer.echo(line("  ".join(f"{k}={v}" if k != "name" else f"{v}:" for k, v in row.items())))


# --- describing ------------------------------------------------------------------------------------------------------


def summary(archive: Archive) -> dict[str, Any]:
    """What ``--info`` shows, as JSON values."""
    graph, contract = read_graph(archive)
    manifest = archive.manifest
    sizes = archive.sizes()
    compared = f"SHA-256 of {len(sizes)} files and of the manifest, all equal" if archive.compared else "not compared"
    return {
        **_described(archive.path, graph, contract),
        "kind": str(manifest.get("kind")),
        "format": manifest["version"],
        "writer": manifest.get("writer"),
        "device": manifest.get("device"),
        "checksum": compared,
        "states": sorted(map(str, manifest.get("states", {}))),
        "graph_bytes": sizes[manifest["graph"]],
        "weight_files": len(manifest.get("weights", [])),
        "total_bytes": sum(sizes.values()),
        "sha256": {f["name"]: f["sha256"] for f in manifest["files"]},
    }


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
        "checksum": "none: a graph file without a manifest cannot show whether it, or its weights, were changed",
        "states": [],
        "graph_bytes": size,
        "weight_files": 0,
        "total_bytes": size,
        "sha256": {},
    }


def _show(info: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(info, indent=1))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    writer = info["writer"] if isinstance(info["writer"], dict) else {}
    rows = {
        "archive": info["archive"],
        "checksum": info["checksum"],
        "format": f"{info['format']}, written by {', '.join(f'{k} {v}' for k, v in sorted(writer.items()))}",
        "inputs": "\n".join(info["inputs"]) or "none",
        "outputs": "\n".join(info["outputs"]) or "none",
        "states": "\n".join(info["states"]),
        "operators": "\n".join(f"{n:>6} {op}" for op, n in info["ops"].items()),
        "size": f"{info['total_bytes']:,} bytes; graph {info['graph_bytes']:,}, {info['weight_files']} weight files",
    }
    for name, text in rows.items():
        if text:
            table.add_row(name, escape(block(text)))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


if __name__ == "__main__":
    main()
