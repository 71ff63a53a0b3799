"""Which operators of a model have a converter: rows, and the csv of ``config.debug.fx_summary``.

One row per call target, one group per distinct signature. The status is not read from a list: every call is lowered on
a scratch graph, and the whole graph once, so a row says ``已支持`` exactly if nothing stands in the way of its calls.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from ge_converters.base.provenance import user_frame
from ge_converters.base.torch_compat import real_values
from ge_converters.lowering.explain import Absent, Convertible, explain
from ge_converters.registry import REGISTRY, Registry
from ge_graph import escape
from tair_debug import artefacts

COLUMNS: Final = ("目标函数", "函数类型", "支持状态", "调用次数", "输入统计", "输出统计")
SUPPORTED, PARTIAL, MISSING = "已支持", "部分支持", "未实现"
MARK: Final = "\ufeff"  # by which spreadsheets know UTF-8
OPTION: Final = "config.debug.fx_summary"


@dataclass
class TargetRow:
    """One call target of a model.

    Attributes:
        target: ``aten.add.Tensor``, or the repr of a Python function.
        kind: Namespace of the op, or ``builtin``.
        good: How many of them can be converted.
        inputs: Signature to number of calls.
        outputs: Results to number of calls.
        reasons: Why calls cannot be converted, to their number.
        sources: The user's lines, to their number of calls.
    """

    target: str
    kind: str
    calls: int = 0
    good: int = 0
    inputs: Counter[str] = field(default_factory=Counter)
    outputs: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    sources: Counter[str] = field(default_factory=Counter)

    @property
    def status(self) -> str:
        """``已支持``, ``部分支持`` or ``未实现``."""
        return SUPPORTED if self.good == self.calls else PARTIAL if self.good else MISSING

    def cells(self) -> list[str]:
        return [self.target, self.kind, self.status, str(self.calls), _groups(self.inputs), _groups(self.outputs)]


def _groups(counts: Counter[str]) -> str:
    return "\n".join(f"{count}次：{text}" for text, count in counts.most_common())


def summarize(*graphs: torch.fx.GraphModule, registry: Registry | None = None) -> list[TargetRow]:
    """The rows of one or more ATen graphs, most called first.

    Args:
        graphs: Graphs whose nodes carry ``meta["val"]``.
        registry: Converters to ask; the common registry if None.
    """
    rows: dict[str, TargetRow] = {}
    with real_values():  # constants of a graph are real, whatever mode the caller traces in
        for gm in graphs:
            judge = _Judge(gm, REGISTRY if registry is None else registry)
            for node in gm.graph.nodes:
                if node.op == "call_function":
                    target = target_text(node.target)
                    _count(rows.setdefault(target, TargetRow(target, kind_of(node.target))), node, judge)
    return sorted(rows.values(), key=lambda r: (-r.calls, r.target))


def _count(row: TargetRow, node: torch.fx.Node, judge: _Judge) -> None:
    signature = inputs_text(node)
    reason = judge.reason(node, signature)
    row.calls += 1
    row.inputs[signature] += 1
    row.outputs[value_text(node.meta.get("val"))] += 1
    if reason is None:
        row.good += 1
    else:
        row.reasons[reason] += 1
    place, code = user_frame(node)
    if place:
        row.sources[f"{place}: {code}" if code else place] += 1


class _Judge:
    """Why a call cannot be converted, None if it can."""

    def __init__(self, gm: torch.fx.GraphModule, registry: Registry) -> None:
        self._registry = registry
        self._asked: dict[Any, str | None] = {}
        self._found = problems(gm, registry)

    def reason(self, node: torch.fx.Node, signature: str) -> str | None:
        if node in self._found:
            return self._found[node]
        key = (node.target, signature)
        if key not in self._asked:
            self._asked[key] = self._explain(node)
        return self._asked[key]

    def _explain(self, node: torch.fx.Node) -> str | None:
        answer = explain(node, self._registry)
        if isinstance(answer, Convertible):
            return None
        if isinstance(answer, Absent):
            near = f"; near: {', '.join(answer.near)}" if answer.near else ""
            return f"no converter, no decomposition{near}"
        return answer.reason


def problems(gm: torch.fx.GraphModule, registry: Registry = REGISTRY) -> dict[torch.fx.Node, str]:
    """What lowering the whole graph runs into: a call may be fine by itself and have a result nobody can make."""
    from ge_converters.base.errors import LoweringError
    from ge_converters.lowering.graph_lowering import GraphLowering
    from ge_graph import building

    walk = GraphLowering(gm, "scratch", registry)
    try:
        with building(walk.graph):
            walk.run()
    except LoweringError:
        pass  # the calls are judged one by one below; only what the walk collected is of use here
    return {p.holder or p.node: p.reason.removeprefix("refused: ") for p in walk.problems}


# --- texts -----------------------------------------------------------------------------------------------------------


def kind_of(target: Any) -> str:
    """Namespace of an op; ``builtin`` for Python functions, ``higher_order`` for ops that take graphs."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target.namespace)
    return "higher_order" if isinstance(target, torch._ops.HigherOrderOperator) else "builtin"


def target_text(target: Any) -> str:
    """``aten.add.Tensor``, ``<built-in function getitem>``; never an address in memory."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return str(target)
    text = repr(target)
    return text if text.startswith("<built-in") else f"<function {getattr(target, '__name__', text)}>"


def inputs_text(node: torch.fx.Node) -> str:
    """The arguments of a call as a tuple, keyword arguments after the others as ``name=value``."""
    parts = [value_text(a) for a in node.args]
    parts += [f"{name}={value_text(a)}" for name, a in node.kwargs.items()]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def value_text(value: Any) -> str:
    """``float16(1, s0, 4096)`` for a tensor, the Python text for anything else."""
    if isinstance(value, torch.fx.Node):
        return value_text(value.meta["val"]) if "val" in value.meta else value.name
    if isinstance(value, torch.Tensor):
        sizes = [str(s) for s in value.shape]
        return f"{str(value.dtype).removeprefix('torch.')}({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    if isinstance(value, tuple):
        inner = ", ".join(map(value_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    return str(value)


# --- csv -------------------------------------------------------------------------------------------------------------


def to_csv(rows: Iterable[TargetRow]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    writer.writerows([escape.cell(text) for text in row.cells()] for row in rows)
    return out.getvalue()


def write_csv(rows: Iterable[TargetRow], path: str | os.PathLike[str] = "./", option: str = OPTION) -> Path:
    """Write ``summary_<20 digits>.csv`` into a folder, with the mark by which spreadsheets know UTF-8.

    Errors: ConfigError GE1041 naming option and path.
    """
    text = MARK + to_csv(rows)
    target = Path(path) / f"summary_{artefacts.stamp()}.csv"
    while os.path.lexists(target):  # another process took this microsecond
        target = Path(path) / f"summary_{artefacts.stamp()}.csv"
    artefacts.write_text(target, text, option)
    return target
