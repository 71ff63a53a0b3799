"""How many GE operators the bundled torchair makes of the samples that `labs.native` counts: measured, not guessed.

    python -m ge_emulator --torch-npu WHEEL --bundled-torchair -- python -m labs.native_peer           write the table
    python -m ge_emulator --torch-npu WHEEL --bundled-torchair -- python -m labs.native_peer renorm glu    some rows

The bundled torchair is the one in the torch_npu wheel, which the CANN emulator lets load. Its graph is taken as it
is handed to GE and counted by the rule of `labs.native_samples.live`: inputs, constants and what nobody reads are
left out.
An entry that the bundled torchair refuses, or of which it hands no graph over, is listed with no count and the reason.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import re
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

_GRAPHS = "TAIR_EMULATOR_GRAPHS"
PEERS = Path(__file__).resolve().parent.parent / "tests" / "native" / "bundled.tsv"
_SECONDS = 90


def _graphs(folder: Path) -> list[str]:
    """Live operators of all graphs that were handed over since the folder was emptied."""
    from ge_graph import serde
    from labs import native_samples

    found: list[str] = []
    for path in sorted(folder.iterdir()):
        found += native_samples.live(serde.from_bytes(path.read_bytes()))
        path.unlink()
    return found


def count(index: int, names: tuple[str, ...]) -> tuple[str, str, str]:
    """(entry, operators or a dash, GE operators or why there is no count)."""
    import torch
    from torch.utils import _pytree as pytree

    from labs import native_samples, opinfo

    op = native_samples.entries(names)[index]
    name = opinfo.full_name(op)
    try:
        with opinfo.time_limit(_SECONDS):
            taken = native_samples.first_sample(op)
            if taken is None:
                return name, "-", "eager takes no sample"
            args, kwargs = pytree.tree_map(lambda t: t.npu() if isinstance(t, torch.Tensor) else t, taken)
            return name, *_compiled(op, args, kwargs)
    except BaseException as error:  # noqa: BLE001 -- listed as what it is
        return name, "-", _why(error)


def _why(error: BaseException) -> str:
    """The cause in one line, without addresses and places."""
    from labs import opinfo

    inner = getattr(error, "inner_exception", error)
    return re.sub(r"0x[0-9a-f]+|/\S+/", "", opinfo.summarise(inner)).replace("\t", " ")


def _compiled(op: Any, args: Any, kwargs: Any) -> tuple[str, str]:
    import torch

    import torchair

    assert "torch_npu" in str(torchair.__file__), "run under --bundled-torchair"
    folder = Path(os.environ[_GRAPHS])
    folder.mkdir(parents=True, exist_ok=True)
    _graphs(folder)
    torch._dynamo.reset()
    backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
    failed = ""
    try:
        with torch.no_grad():
            torch.compile(lambda *a, **k: op.op(*a, **k), backend=backend, fullgraph=True, dynamic=False)(
                *args, **kwargs
            )
    except Exception as error:  # noqa: BLE001 -- a graph that was handed over counts, whether it runs or not
        failed = _why(error)
    if not any(folder.iterdir()):
        return "-", failed or "no graph is handed over"
    made = _graphs(folder)
    return str(len(made)), " ".join(made)


def rows() -> list[tuple[str, str, str]]:
    """(entry, operators or a dash, which or why not) of the table."""
    lines = [line.split("\t") for line in PEERS.read_text().splitlines() if not line.startswith("#")]
    return [(name, number, what) for name, number, what in lines]


def read() -> dict[str, tuple[str, ...]]:
    """Entry -> GE operators of those that the bundled torchair converts."""
    return {name: tuple(what.split()) for name, number, what in rows() if number != "-"}


def _work(names: tuple[str, ...], asked: Any) -> None:
    """In a process of its own, as a crash of the wheel takes the process along."""
    os.environ[_GRAPHS] = tempfile.mkdtemp(prefix="peer_graphs_")
    import torch_npu  # noqa: F401

    from labs import opinfo

    opinfo._prepare()
    while (index := asked.recv()) is not None:
        asked.send(count(index, names))


def _serve(names: tuple[str, ...], waiting: queue.SimpleQueue[tuple[int, str]], found: list[tuple[str, ...]]) -> None:
    """Ask processes, one after the other, for the entries that wait."""
    context, child = multiprocessing.get_context("spawn"), None
    while True:
        try:
            index, name = waiting.get_nowait()
        except queue.Empty:
            break
        if child is None:
            ours, theirs = context.Pipe()
            child = context.Process(target=_work, args=(names, theirs), daemon=True)
            child.start()
            theirs.close()
        try:
            ours.send(index)
            found.append(ours.recv() if ours.poll(2 * _SECONDS) else (name, "-", "no answer"))
            stuck = found[-1][2] == "no answer"
        except (EOFError, OSError):
            found.append((name, "-", "the process ends"))
            stuck = True
        if stuck:
            child.kill()
            child = None
        print(*found[-1], sep="\t", flush=True)
    if child is not None:
        ours.send(None)
        child.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="OpInfo names; all if none is given")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    from labs import native_samples, opinfo

    names = tuple(options.names)
    found: list[tuple[str, ...]] = []
    waiting: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
    for index, op in enumerate(native_samples.entries(names)):
        waiting.put((index, opinfo.full_name(op)))
    threads = [threading.Thread(target=_serve, args=(names, waiting, found)) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [] if not names else [row for row in rows() if row[0] not in {name for name, _, _ in found}]
    head = "# OpInfo\toperators of the bundled torchair\twhich, or why there is no count; see labs/native_peer.py"
    partial = PEERS.with_suffix(".part")
    partial.write_text("\n".join([head, *("\t".join(row) for row in sorted([*kept, *found]))]) + "\n")
    os.replace(partial, PEERS)


if __name__ == "__main__":
    main()
