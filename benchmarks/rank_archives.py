"""Archives of many ranks: what they take on the disk, and how soon a host has its rank."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import rows
from benchmarks.export import child
from benchmarks.rows import Measurement, at_most

GROUP = "rank archives"
MODULE = "benchmarks.rank_archives"
RANKS = 8


def child_save(folder: Path, width: int) -> dict[str, float]:
    """Archives of eight ranks, saved in one process, each half its own, half what all have."""
    import torch
    import torch.distributed._functional_collectives as fc
    from torch.distributed.device_mesh import init_device_mesh

    import torchair
    from torchair.ranks.world import World

    shared = torch.rand(width, width)

    class Part(torch.nn.Module):  # type: ignore[misc]  # torch is imported in here
        def __init__(self, rank: int, group: Any) -> None:
            super().__init__()
            self.group, made = group, torch.Generator().manual_seed(rank)
            self.up = torch.nn.Parameter(torch.rand(width, width // 4, generator=made))
            self.down = torch.nn.Parameter(torch.rand(width // 4, width, generator=made))
            self.shared = torch.nn.Parameter(shared)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(fc.all_reduce(torch.relu(x @ self.up) @ self.down, "sum", self.group)) @ self.shared

    def save(rank: int) -> None:
        group = init_device_mesh("cpu", (RANKS,)).get_group()
        torchair.CompiledModel.save_graph(Part(rank, group).eval(), (torch.ones(1, width),), save_path=folder / "saved")

    World(RANKS).run(save)
    (folder / "saved").rename(folder / "moved")
    stored = sum(p.stat().st_size for p in (folder / "moved").rglob("*") if p.is_file())
    return {"stored": stored, "weights": width * width * 4 * (RANKS / 2 + 1)}


def child_load(folder: Path, rank: int) -> dict[str, float]:
    """One rank of the eight until it could be called, with the engine that ``TAIR_ENGINE`` names.

    Processor time of this process: not what the import of torch takes, nor the emulator's kernels beside it.
    """
    if os.environ["TAIR_ENGINE"] == "cpu":
        import torch  # noqa: F401
    start = time.process_time()
    import tair_export
    from tair_export.ranks import Rank

    model = tair_export.CompiledModel.load_graph(folder / "moved", rank=Rank(rank, RANKS))
    assert model.groups
    return {"seconds": time.process_time() - start, "torch": float("torch" in sys.modules)}


def _without_torch(folder: Path) -> float | None:
    """Seconds for the last rank on the emulator, whose kernels are in another process; None without it."""
    try:
        from ge_emulator import build, launch
    except ImportError:
        return None
    made = launch.environment(build.build(), None)
    found = child("load", folder, RANKS - 1, MODULE, **made, TAIR_ENGINE="cann", TAIR_EMULATOR_PYTHON=sys.executable)
    assert not found["torch"]
    return found["seconds"]


def measure() -> Iterator[Measurement]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saved = child("save", folder, 512 if rows.small else 4096, MODULE)
        firsts = [child("load", folder, rank, MODULE, TAIR_ENGINE="cpu")["seconds"] for rank in range(RANKS)]
        without = _without_torch(folder)
    mb = 1 << 20
    loading = f"a rank of {RANKS}, {saved['weights'] / mb:.0f} MB in a folder that was moved: a new process"
    yield at_most(
        GROUP,
        f"{loading} loads and checks it, processor time after torch's import, slowest rank",
        max(firsts),
        1.0,
        unit="s",
    )
    if without is not None:
        yield at_most(
            GROUP,
            f"{loading} loads and checks it for engine cann, without torch, processor time",
            without,
            1.0,
            unit="s",
        )
    yield at_most(
        GROUP,
        f"archives of {RANKS} ranks: bytes on disk to different bytes of weights",
        saved["stored"] / mb,
        1.01,
        unit="MB",
        peer=saved["weights"] / mb,
        name="weights",
    )


if __name__ == "__main__":
    call = {"save": child_save, "load": child_load}[sys.argv[1]]
    print(json.dumps(call(Path(sys.argv[2]), int(sys.argv[3]))))
