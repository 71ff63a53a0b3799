"""Measures how many tasks a captured graph has for each ATen operator, with torch_npu on the emulator.

    tair emulate labs/captured_tasks.py TASKS.tsv REFUSED.tsv [--own]

Every call that torch's own samples make, and the sample calls of torch_npu's operators, is captured alone. What is
written is a row for each operator whose samples agree: the number of tasks, and the most pieces of memory beside its
results. Operators that launch nothing because torch_npu computes them on the host have no row. The second file has a
row for each operator that runs, and that cannot be captured in a sample: why, how many such samples there are, and how
many could be captured. ``--own``: of torch_npu's operators only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch_npu  # noqa: F401
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

_SAMPLES = 3
_SAMPLE_CALLS = Path(__file__).resolve().parent.parent / "packages/ge-converters/tests"
_TYPES = (torch.float32, torch.int64, torch.bool)
_AGREE = 0.75  # of the samples
_FREE = (
    "_unsafe_view",
    "as_strided_",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "squeeze_",
    "t_",
    "transpose_",
    "unsafe_split",
    "unsqueeze_",
)


class CaptureEach(TorchDispatchMode):  # type: ignore[misc]  # torch is not checked
    """Captures every call alone before it runs.

    Attributes:
        found: Operator to pairs of number of tasks and pieces of memory beside results, and how often they came.
        refused: Operator to why it could not be captured, and how often.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Counter[tuple[int, int]]] = {}
        self.refused: dict[str, Counter[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_device = any(isinstance(t, torch.Tensor) and t.device.type == "npu" for t in tree_leaves((args, kwargs)))
        why = ""
        if on_device and func.namespace in ("aten", "npu", "prims") and not func.is_view:
            try:
                self.found.setdefault(str(func), Counter())[_measured(func, args, kwargs)] += 1
            except RuntimeError as error:
                why = _why(error)
        made = func(*args, **kwargs)
        if why:
            torch.npu.synchronize()  # it counts if it runs without a capture
            self.refused.setdefault(str(func), Counter())[why] += 1
        return made


def _measured(func: Any, args: Any, kwargs: Any) -> tuple[int, int]:
    copied = tree_map_only(torch.Tensor, lambda t: t.clone() if t.device.type == "npu" else t, (args, kwargs))
    given = {t.untyped_storage().data_ptr() for t in tree_leaves(copied) if isinstance(t, torch.Tensor)}
    graph = torch.npu.NPUGraph()
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        before = torch.npu.memory_stats()["allocation.all.allocated"]
        made = func(*copied[0], **copied[1])
        pieces = torch.npu.memory_stats()["allocation.all.allocated"] - before
    own = {t.untyped_storage().data_ptr() for t in tree_leaves(made) if isinstance(t, torch.Tensor) and t.numel()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        super(torch.npu.NPUGraph, graph).debug_dump(str(path))  # without torch_npu's own second file
        tasks = json.loads(path.read_text())
    return len(tasks), pieces - len(own - given)


def _why(error: BaseException | None) -> str:
    """Why there is no capture: the runtime does not wait, torch_npu has an operator of the older kind; else nothing."""
    while error is not None:
        if "107030" in str(error):
            return "waits"
        if old := re.search(r"Cannot run aclop operators .* Current working aclop is (\w+)", str(error)):
            return f"aclop {old[1]}"
        error = error.__cause__ or error.__context__
    return ""


def _own_samples(mode: CaptureEach) -> None:
    """The sample calls of torch_npu's operators that the converters are tested with."""
    sys.path.insert(0, str(_SAMPLE_CALLS))
    for path in sorted(_SAMPLE_CALLS.glob("npu_*.py")):
        for case in getattr(importlib.import_module(path.stem), "CASES", ()):
            for dtype in case.dtypes:
                with contextlib.suppress(Exception), torch.no_grad():
                    args, kwargs = tree_map_only(torch.Tensor, lambda t: t.npu(), case.make(dtype))
                    with mode:
                        getattr(torch.ops.npu, case.op)(*args, **kwargs)
                with contextlib.suppress(RuntimeError):
                    torch.npu.synchronize()


def main() -> None:
    """Measure and write."""
    warnings.simplefilter("ignore")
    mode = CaptureEach()
    _own_samples(mode)
    for info in () if "--own" in sys.argv else op_db:
        _write(mode)
        for dtype in _TYPES:
            if dtype not in info.dtypes:
                continue
            try:
                samples = list(zip(range(_SAMPLES), info.sample_inputs("cpu", dtype, requires_grad=False)))
            except Exception:  # noqa: BLE001 - a sample that torch cannot make
                continue
            for _, sample in samples:
                for call in filter(None, (info.op, info.inplace_variant)):
                    with contextlib.suppress(Exception), torch.no_grad():
                        given = tree_map_only(
                            torch.Tensor, lambda t: t.npu(), (sample.input, sample.args, sample.kwargs)
                        )
                        with mode:
                            call(given[0], *given[1], **given[2])
                    with contextlib.suppress(RuntimeError):  # a stream tells an error once
                        torch.npu.synchronize()
    _write(mode)


def _write(mode: CaptureEach) -> None:
    rows = [f"{name}\t{tasks}\t{more}\n" for name, tasks, more in sorted(_agreed(mode))]
    Path(sys.argv[1]).write_text("operator\ttasks\tpieces\n" + "".join(rows))
    refused = [
        f"{name}\t{', '.join(why)}\t{why.total()}\t{mode.found[name].total()}\n" for name, why in mode.refused.items()
    ]
    Path(sys.argv[2]).write_text("operator\twhy\trefused\tcaptured\n" + "".join(sorted(refused)))


def _agreed(mode: CaptureEach) -> Iterator[tuple[str, int, int]]:
    for name, seen in mode.found.items():
        counts: Counter[int] = Counter()
        for (tasks, _), times in seen.items():
            counts[tasks] += times
        busy = {tasks: times for tasks, times in counts.items() if tasks}  # samples without elements launch nothing
        if not busy and name.split(".")[1] in _FREE:
            yield name, 0, 0
        elif busy and max(busy.values()) >= _AGREE * sum(busy.values()):
            yield name, max(busy, key=lambda tasks: busy[tasks]), max(more for _, more in seen)


main()
