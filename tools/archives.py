"""Archives and caches that one environment writes and others read; the matrix runs this file by each of its Pythons.

python tools/archives.py write FOLDER     saved graphs, exports and a compile cache, with inputs and eager's results
python tools/archives.py read FOLDER …    load what others wrote; results equal eager's, or a refusal with its code

Needs nothing of the tree. A line for each. It fails if a result differs, or if an error is raised that is none of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Model(torch.nn.Module):  # type: ignore[misc]
    """Norms, attention, a table, a buffer that is written, open sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(32, 8), torch.nn.RMSNorm(8, eps=1e-5)
        self.up, self.down, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        y = self.norm(self.table(x))
        y = y + torch.nn.functional.scaled_dot_product_attention(y, y, y)
        y = y + self.down(torch.nn.functional.gelu(self.up(y)))
        return self.last(y), y.float().mean(dim=(1, 2))


def _inputs(rows: int) -> torch.Tensor:
    return (torch.arange(rows * 5).reshape(rows, 5) * 7) % 32


def _made(dtype: torch.dtype) -> Model:
    torch.manual_seed(1)
    model = Model()
    model.eval().to(dtype)
    return model


def write(folder: Path) -> None:
    """One archive for each type, static and dynamic, an export, and eager's results beside them."""
    import torchair

    for dtype in DTYPES:
        for dynamic in (False, True):
            place = folder / f"{str(dtype)[6:]}-{'dynamic' if dynamic else 'static'}"
            place.mkdir(parents=True)
            with torch.no_grad():
                torchair.CompiledModel.save_graph(_made(dtype), (_inputs(3),), dynamic=dynamic, save_path=str(place))
                for rows in (3, 6) if dynamic else (3,):
                    for i, value in enumerate(_made(dtype)(_inputs(rows))):
                        np.save(place / f"expected{rows}-{i}.npy", value.float().numpy())
    print(f"torch {torch.__version__}: wrote {len(list(folder.iterdir()))} archives", flush=True)
    _cached(folder / "cache")


def _cached(cache: Path) -> None:
    """Compile with a cache that another may have filled; the numbers have to be eager's."""
    os.environ["TORCHAIR_CACHE_DIR"] = str(cache)
    import torchair

    model, x = _made(torch.float32), _inputs(3)
    with torch.no_grad():
        got = torch.compile(model, backend=torchair.get_npu_backend())(x)
        for value, wanted in zip(got, _made(torch.float32)(x), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)


def _compare(place: Path) -> None:
    import tair_export

    loaded = tair_export.CompiledModel.load_graph(str(place))
    rough = dict(rtol=1e-4, atol=1e-5) if place.name.startswith("float32") else dict(rtol=3e-2, atol=3e-2)
    for rows in (3, 6) if place.name.endswith("dynamic") else (3,):
        for i, value in enumerate(loaded(_inputs(rows))):
            wanted = torch.from_numpy(np.load(place / f"expected{rows}-{i}.npy"))
            torch.testing.assert_close(value.float(), wanted, **rough)


def _outcome(what: str, call: Callable[[], Any]) -> bool:
    """Run; whether the numbers were right or one of our errors was raised."""
    from ge_graph.errors import GeError

    try:
        call()
    except GeError as error:
        print(f"  {what}: refused, {str(error).splitlines()[0]}", flush=True)
    except AssertionError as error:
        print(f"  {what}: other numbers: {error}", flush=True)
        return False
    else:
        print(f"  {what}: equal", flush=True)
    return True


def read(folders: list[Path]) -> bool:
    """Load what each folder holds; whether all of it went well."""
    fine = True
    for folder in folders:
        print(f"torch {torch.__version__} reads what {folder.name} wrote", flush=True)
        for place in sorted(p for p in folder.iterdir() if p.name != "cache"):
            fine &= _outcome(place.name, partial(_compare, place))
        fine &= _outcome("cache", partial(_cached, folder / "cache"))
    return fine


if __name__ == "__main__":
    command, *given = sys.argv[1:]
    if command == "write":
        write(Path(given[0]))
    elif not read([Path(g) for g in given]):
        sys.exit(1)
