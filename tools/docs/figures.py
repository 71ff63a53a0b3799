"""Figures of the documentation as SVG: the pipeline, a graph before and after a pass, coverage. Light and dark."""

from __future__ import annotations

import collections
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from ge_graph import escape, schema

_STYLE: Final = """<style>
text { font: 16px system-ui, sans-serif; fill: #1c1e21; } .dim { fill: #6a7280; font-size: 14px; }
rect { fill: #e0e7ff; stroke: #818cf8; } rect.ours { fill: #c7d2fe; } rect.engine { fill: #dcfce7; stroke: #4ade80; }
rect.changed { fill: #fef3c7; stroke: #f59e0b; } path { stroke: #6a7280; fill: none; stroke-width: 1.4; }
@media (prefers-color-scheme: dark) { text { fill: #e6e8ea; } .dim { fill: #9aa3af; } rect { fill: #2b3152; stroke: #6366f1; }
rect.ours { fill: #3730a3; } rect.engine { fill: #14532d; stroke: #22c55e; } rect.changed { fill: #78350f; stroke: #f59e0b; } }
</style><defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" style="fill:#6a7280;stroke:none"/></marker></defs>"""


def _svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
    return f"{head}<title>{escape.markup(title)}</title>{_STYLE}{''.join(parts)}</svg>\n"


def _box(x: int, y: int, w: int, text: str, kind: str = "", note: str = "") -> str:
    middle = y + (23 if not note else 17)
    rest = (
        f'<text class="dim" x="{x + w / 2}" y="{y + 33}" text-anchor="middle">{escape.markup(note)}</text>'
        if note
        else ""
    )
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="40" rx="8"/>'
        f'<text x="{x + w / 2}" y="{middle}" text-anchor="middle">{escape.markup(text)}</text>{rest}'
    )


def _arrow(x0: float, y0: float, x1: float, y1: float) -> str:
    if y0 == y1:
        return f'<path marker-end="url(#a)" d="M{x0} {y0}H{x1}"/>'
    if x0 == x1:
        return f'<path marker-end="url(#a)" d="M{x0} {y0}V{y1}"/>'
    bend_x, bend_y = (x0 + x1) / 2, (y0 + y1) / 2
    across = abs(x1 - x0) > abs(y1 - y0)
    curve = f"C{bend_x} {y0} {bend_x} {y1} {x1} {y1}" if across else f"C{x0} {bend_y} {x1} {bend_y} {x1} {y1}"
    return f'<path marker-end="url(#a)" d="M{x0} {y0}{curve}"/>'


def pipeline() -> str:
    """From a model to results, with what observes on the way."""
    steps = [
        ("your model", "", ""),
        ("FX graph", "", "dynamo"),
        ("ATen graph", "", "AOTAutograd"),
        ("FX passes", "ours", ""),
        ("converters", "ours", ""),
        ("GE graph", "ours", "GE passes"),
        ("verifier", "ours", f"{len(schema.builtin_names()):,} schemas"),
    ]
    parts, width, gap = [], 124, 20
    for i, (text, kind, note) in enumerate(steps):
        x = 10 + i * (width + gap)
        parts.append(_box(x, 80, width, text, kind, note))
        if i:
            parts.append(_arrow(x - gap, 100, x, 100))
    x = 10 + len(steps) * (width + gap) + 20
    ends = [("embedded CPU engine", "here"), ("Ascend NPU", "torch_npu, CANN"), (".air archive", "tair-export")]
    for i, (text, note) in enumerate(ends):
        parts += [_box(x, 20 + i * 60, 190, text, "engine", note), _arrow(x - 40, 100, x, 40 + i * 60)]
    parts.append('<path d="M154 150v12H998v-12" stroke-dasharray="4 4"/>')
    parts.append(
        '<text class="dim" x="576" y="184" text-anchor="middle">tair-debug sees every stage and changes none</text>'
    )
    return _svg(x + 200, 200, parts, "From a model to results")


def _fx(graph: torch.fx.Graph, left: int, changed: set[str]) -> list[str]:
    """An FX graph as a column; edges that skip a row go round it."""
    rows = {node: i for i, node in enumerate(graph.nodes)}
    parts = []
    for node, i in rows.items():
        name = node.op if node.op in ("placeholder", "output") else str(node.target).removesuffix(".default")
        text = f"{node.name}" if node.op == "placeholder" else name
        kind = "changed" if name in changed else ""
        parts.append(_box(left, 40 + i * 70, 200, text, kind))
        for k, before in enumerate(node.all_input_nodes):
            x = left + 100 + 24 * (k if len(node.all_input_nodes) > 1 else 0)
            parts.append(_arrow(x, 80 + rows[before] * 70, x, 40 + i * 70))
    return parts


def a_pass() -> str:
    """The guide's pass ``x * x -> square(x)`` on the ATen graph that torch traces."""
    from torch.fx.experimental.proxy_tensor import make_fx

    before = make_fx(lambda x: x * x + 1)(torch.ones(3))
    after = make_fx(lambda x: torch.ops.aten.pow.Tensor_Scalar(x, 2) + 1)(torch.ones(3))
    old, new = ({str(n.target) for n in g.graph.nodes} for g in (before, after))
    heads = [
        f'<text class="dim" x="{x}" y="24" text-anchor="middle">{t}</text>'
        for x, t in ((110, "before"), (390, "after swap_square"))
    ]
    parts = [*heads, *_fx(before.graph, 10, old - new), *_fx(after.graph, 290, new - old), _arrow(225, 170, 275, 170)]
    return _svg(510, 330, parts, "A graph before and after a pass")


def coverage(root: Path) -> str:
    """How many ATen operators convert in which way, counted from the generated page."""
    counts = collections.Counter(_ways(root / "docs" / "coverage.md"))
    most = max(counts.values())
    parts = []
    rows = sorted(counts.items(), key=operator.itemgetter(1), reverse=True)
    for i, (way, n) in enumerate(rows):
        y = 14 + i * 34
        parts += [
            f'<text x="180" y="{y + 16}" text-anchor="end">{escape.markup(way)}</text>',
            f'<rect x="190" y="{y}" width="{max(3, 420 * n // most)}" height="22" rx="4"/>',
            f'<text class="dim" x="{198 + max(3, 420 * n // most)}" y="{y + 16}">{n}</text>',
        ]
    return _svg(680, 20 + len(rows) * 34, parts, "Operators by the way they convert")


_COLOURS: Final = ("#4f46e5", "#0891b2", "#16a34a", "#ca8a04", "#dc2626", "#9333ea", "#db2777", "#64748b")


def trend(series: Sequence[Sequence[float]]) -> str:
    """Lines over runs, numbered at their end as the list below the figure is; dashed where the target is."""
    width, height, top = 600, 260, max(1.2, *(v for line in series for v in line))
    runs = max(2, *map(len, series))

    def at(run: int, value: float) -> tuple[float, float]:
        return 50 + run * width / (runs - 1), 20 + height * (1 - max(value, 0.0) / top)

    y = at(0, 1.0)[1]
    parts = [
        f'<path d="M50 {y:.1f}H{50 + width}" stroke-dasharray="5 4"/>',
        f'<text class="dim" x="44" y="{y + 5:.1f}" text-anchor="end">1</text>',
        f'<path d="M50 20V{20 + height}H{50 + width}"/>',
        f'<text class="dim" x="44" y="28" text-anchor="end">{top:.1f}</text>',
    ]
    taken: list[float] = []
    for number, line in enumerate(series, 1):
        colour = _COLOURS[(number - 1) % len(_COLOURS)]
        points = [at(run + runs - len(line), value) for run, value in enumerate(line)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end = points[-1][1] + 5
        column = sum(abs(end - other) < 14 for other in taken)
        taken.append(end)
        parts.append(
            f'<text x="{58 + width + 26 * column}" y="{end:.1f}" style="fill:{colour};font-size:13px">{number}</text>'
        )
    most = max(sum(abs(a - b) < 14 for b in taken) for a in taken)
    return _svg(80 + width + 26 * most, height + 40, parts, "Figures over runs, as parts of their targets")


def _ways(page: Path) -> list[Any]:
    """The cell that says how, of every row of the page."""
    rows = (line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines())
    return [row[1] for row in rows if len(row) == 5 and "." in row[0]]


_CHINESE: Final = {
    "your model": "你的模型",
    "FX graph": "FX 图",
    "ATen graph": "ATen 图",
    "converters": "转换器",
    "GE graph": "GE 图",
    "verifier": "校验器",
    "embedded CPU engine": "内嵌 CPU 引擎",
    "here": "本机",
    "Ascend NPU": "昇腾 NPU",
    ".air archive": ".air 归档",
    "tair-debug sees every stage and changes none": "tair-debug 查看每个阶段，不改变任何内容",
    "before": "之前",
    "after swap_square": "swap_square 之后",
    "From a model to results": "从模型到结果",
    "A graph before and after a pass": "pass 之前和之后的图",
    "Operators by the way they convert": "算子，按转换方式",
    "row": "行",
    "function": "函数",
    "walk": "遍历",
    "decomposed": "分解",
    "composite": "组合",
    "absent": "没有",
    "functional": "函数化",
    "refused": "拒绝",
    "torch_npu, CANN": "torch_npu、CANN",
}


def chinese(figure: str) -> str:
    """A figure with our words in Chinese; names of operators stay."""
    figure = re.sub(r">([\d,]+) schemas<", r">\1 个算子定义<", figure)
    return re.sub(r">([^<>]+)<", lambda found: f">{_CHINESE.get(found[1], found[1])}<", figure)


def made(root: Path) -> dict[str, str]:
    """Name to figure, those with Chinese words as ``<name>.zh``."""
    english = {"pipeline": pipeline(), "a_pass": a_pass(), "coverage": coverage(root)}
    return {**english, **{f"{name}.zh": chinese(text) for name, text in english.items()}}


def write(folder: Path) -> None:
    """All figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made(Path(__file__).resolve().parent.parent.parent).items():
        (folder / f"{name}.svg").write_text(text, encoding="utf-8")
