"""Inputs of a graph and the output of each operator as ``.pt`` files: option ``dump_tensor_data`` of captured graphs.

Below ``<data_dump_dir>/worldsize<W>_global_rank<R>/`` each node leaves ``<node>_device_<index>_<run>.pt``, which
``torch.load`` reads. Operators with several outputs appear through the getitem nodes that read them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import torch

from ge_graph import escape
from tair_debug import artefacts

OPTION: Final = "data_dump_dir"


class TensorDump:
    """Runs an ATen graph operator by operator and saves what comes out of each.

    Errors: ConfigError GE1041 if a file cannot be written.
    """

    def __init__(self, gm: torch.fx.GraphModule, path: str | os.PathLike[str]) -> None:
        self.gm = gm
        self.path = Path(path)
        self.run = 0

    def __call__(self, *args: Any) -> Any:
        place = artefacts.folder(self.path / artefacts.rank_folder(), OPTION)
        dumper = _Dumper(self.gm, place, self.run)
        self.run += 1
        return dumper.run(*args)


class _Dumper(torch.fx.Interpreter):  # type: ignore[misc]
    def __init__(self, gm: torch.fx.GraphModule, place: Path, run: int) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self._place, self._run = place, run

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node and save its tensor."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and n.op in ("placeholder", "call_function"):
            name = f"{escape.file_name(n.name)}_device_{result.device.index or 0}_{self._run}.pt"
            tensor = result.detach().clone()  # only what the node made, not the memory around a view
            artefacts.write(os.fspath(self._place / name), lambda file: torch.save(tensor, file), OPTION)
        return result
