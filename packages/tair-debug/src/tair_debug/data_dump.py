"""Inputs and outputs of every operator as npy files: ``config.debug.data_dump``.

The ATen graph runs eagerly, operator by operator. Below ``worldsize<W>_global_rank<R>/graph_<k>/<step>/`` each selected
node leaves ``<node>-<op>.<INPUT or OUTPUT>.<i>.<20 digits>.npy``. The index counts arguments in their order, keyword
arguments last, tensors in a list one by one; numbers and lists of numbers are stored too. An argument that is None, a
text or a dtype has its index and no file. Types that numpy lacks are stored as the next one that holds all their
values: bfloat16 and float8 as float32, complex32 as complex64.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ge_graph import escape
from ge_graph.errors import ConfigError
from tair_debug import artefacts
from tair_debug.fx_summary import target_text

OPTION: Final = "config.debug.data_dump.path"
Filter = Callable[[torch.fx.Node], "torch.fx.Node | None"]


def as_numpy(value: Any) -> np.ndarray[Any, Any] | None:
    """A value as it is stored; None for what numpy has no form for."""
    if isinstance(value, torch.Tensor):
        return _tensor(value.detach())
    if isinstance(value, (bool, int, float, complex)):
        return np.asarray(value)
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, (bool, int, float)) for v in value):
        return np.asarray(value)
    return None


def _tensor(value: torch.Tensor) -> np.ndarray[Any, Any]:
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.device.type != "cpu":
        value = value.cpu()
    value = value.resolve_conj().resolve_neg()
    try:
        array: np.ndarray[Any, Any] = value.numpy()
    except TypeError:
        array = value.to(torch.complex64 if value.dtype.is_complex else torch.float32).numpy()
    return array


def write_npy(path: str, array: np.ndarray[Any, Any], option: str = OPTION) -> None:
    """Write one array, whole or not at all.

    Errors: ConfigError GE1041 naming option and path.
    """
    artefacts.write(path, lambda file: _fill(file, array), option)


def _fill(file: Any, array: np.ndarray[Any, Any]) -> None:
    # not numpy's write_array, which says of a full disk only how many items are missing
    form, whole = np.lib.format, np.asarray(array, order="C")
    about = {"descr": form.dtype_to_descr(whole.dtype), "fortran_order": False, "shape": whole.shape}
    form.write_array_header_1_0(file, about)
    file.write(whole.reshape(-1).view(np.uint8))


def leaves(values: Any) -> Iterator[Any]:
    """Arguments or results one by one: sequences that hold tensors are opened, lists of numbers stay whole."""
    for value in values:
        if isinstance(value, (list, tuple)) and any(isinstance(v, (torch.Tensor, list, tuple)) for v in value):
            yield from leaves(value)
        else:
            yield value


def selected(gm: torch.fx.GraphModule, keep: Filter | None) -> frozenset[torch.fx.Node]:
    """The operators to dump.

    Errors: ConfigError GE1042 if the filter raises or returns something else than a node or None.
    """
    nodes = [n for n in gm.graph.nodes if n.op == "call_function"]
    if keep is None:
        return frozenset(nodes)
    chosen = []
    for node in nodes:
        try:
            answer = keep(node)
        except Exception as error:
            raise ConfigError(
                "GE1042",
                f"config.debug.data_dump.filter raised on node %{node.name} ({target_text(node.target)}): "
                f"{type(error).__name__}: {error}",
                next="repair the filter; it gets one torch.fx.Node",
            ) from error
        if answer is not None and not isinstance(answer, torch.fx.Node):
            raise ConfigError(
                "GE1042",
                f"config.debug.data_dump.filter returned {answer!r} for node %{node.name}",
                next="return the node to keep it, None to drop it",
            )
        if answer is not None:
            chosen.append(node)
    return frozenset(chosen)


class DataDump:
    """Runs an ATen graph operator by operator and saves what goes in and out.

    Args:
        graph_id: Number of the graph in this process.
        keep: Returns a node to keep it, None to drop it.

    Errors: ConfigError GE1042 for the filter; GE1041 if a file cannot be written.
    """

    def __init__(
        self, gm: torch.fx.GraphModule, graph_id: int, path: str | os.PathLike[str] = "./", keep: Filter | None = None
    ) -> None:
        self.gm = gm
        self.graph_id = graph_id
        self.path = Path(path)
        self.nodes = selected(gm, keep)
        self.step = 0

    def __call__(self, *args: Any) -> Any:
        place = self.path / artefacts.rank_folder() / f"graph_{self.graph_id}" / str(self.step)
        self.step += 1
        return _Dumper(self.gm, self.nodes, artefacts.folder(place, OPTION)).run(*args)


class _Dumper(torch.fx.Interpreter):  # type: ignore[misc]
    def __init__(self, gm: torch.fx.GraphModule, nodes: frozenset[torch.fx.Node], place: Path) -> None:
        super().__init__(gm)
        self.extra_traceback = False
        self._nodes = nodes
        self._place = os.fspath(place)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node; arguments are saved before, since the operator may write to them."""
        if n not in self._nodes:
            return super().run_node(n)
        time = artefacts.stamp()
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        self._save(n, "INPUT", (*args, *kwargs.values()), time)
        result = self.call_function(n.target, args, kwargs)
        self._save(n, "OUTPUT", result if isinstance(result, (list, tuple)) else (result,), time)
        return result

    def _save(self, node: torch.fx.Node, what: str, values: Any, time: str) -> None:
        op = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else _plain_name(node.target)
        stem = f"{self._place}/{escape.file_name(f'{node.name}-{op}', 160)}"
        for index, value in enumerate(leaves(values)):
            array = as_numpy(value)
            if array is not None:
                write_npy(f"{stem}.{what}.{index}.{time}.npy", array)


def _plain_name(target: Any) -> str:
    """``builtin.getitem``."""
    name = getattr(target, "__name__", None) or str(target)
    return "builtin." + "".join(c if c.isalnum() or c == "_" else "_" for c in name)
