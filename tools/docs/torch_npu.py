"""``docs/torch_npu_operators.md``: every operator that torch_npu names, and how a compiled program gets it.

The names are lines of ``torch_npu_operators.tsv``, with what torch itself makes of some of them before a converter is
asked; the rest comes from the registry. ``--check`` fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ge_converters.decompose.formulas import other_names
from ge_converters.ops.npu import refused
from ge_converters.registry import REGISTRY

HERE: Final = Path(__file__).resolve().parent
DOCS: Final = HERE.parent.parent / "docs"
NAMES: Final = HERE / "torch_npu_operators.tsv"
PAGES: Final = {"en": "torch_npu_operators.md", "zh": "torch_npu_operators.zh.md"}
SERVED: Final = ("converter", "formula", "functional", "composite", "pass")
WORDS: Final = {
    "en": {
        "title": "Operators of torch_npu",
        "generated": "Written by `python -m tools.docs.torch_npu`; do not edit.",
        "lead": (
            "torch_npu 2.13 names {all} operators, {overloads} with their overloads. {served} of the operators are served "
            "in compiled programs; the others are refused (GE2001) with the reason that stands here."
        ),
        "head": "| Operator | How | Through, or why not |",
        "converter": "converter",
        "formula": "formula in ATen",
        "functional": "made functional",
        "composite": "composite: torch takes it apart",
        "pass": "a pass of this package reads it",
        "refused": "refused",
    },
    "zh": {
        "title": "torch_npu 的算子",
        "generated": "由 `python -m tools.docs.torch_npu` 生成，请勿手改。",
        "lead": (
            "torch_npu 2.13 共有 {all} 个算子名，连同重载为 {overloads} 个。其中 {served} 个算子在编译的程序中可用；"
            "其余会被拒绝（GE2001），原因如下（与报错文字相同）。"
        ),
        "head": "| 算子 | 方式 | 经由，或原因 |",
        "converter": "转换器",
        "formula": "用 ATen 表达的公式",
        "functional": "先改写为函数式",
        "composite": "复合算子：由 torch 拆开",
        "pass": "由本项目的 pass 读取",
        "refused": "拒绝",
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of torch_npu.

    Attributes:
        name: As torch_npu writes it, without namespace: ``npu_max.dim``.
        state: One of ``SERVED``, ``refused``, or empty if nobody has an answer.
        note: What serves it, or why it is refused.
    """

    name: str
    state: str
    note: str = ""

    @property
    def operator(self) -> str:
        """The name without its overload."""
        return self.name.partition(".")[0]


def rows() -> list[Row]:
    """Every operator, sorted by name."""
    served = {name for name, _ in REGISTRY.awaited()} | {str(e.target) for e in REGISTRY.entries()}
    made = []
    for line in NAMES.read_text(encoding="utf-8").splitlines():
        name, _, before = line.partition("\t")
        kind, _, through = before.partition(" ")
        if name in refused.REFUSED:
            made.append(Row(name, "refused", refused.REFUSED[name]))
        elif kind:
            made.append(Row(name, kind, f"`{through}`" if through else ""))
        elif name in other_names.FORMULAS:
            made.append(Row(name, "formula"))
        else:
            made.append(Row(name, "converter" if refused.full_name(name) in served else ""))
    return made


def served(table: list[Row]) -> int:
    """How many operators have an overload that is served."""
    return len({row.operator for row in table if row.state in SERVED})


def page(language: str, table: list[Row]) -> str:
    """The page."""
    words = WORDS[language]
    names = len({row.operator for row in table})
    lead = words["lead"].format(all=names, overloads=len(table), served=served(table))
    counted = Counter(row.state for row in table)
    kinds = "\n".join(f"* {words[state]}: {counted[state]}" for state in (*SERVED, "refused") if counted[state])
    body = "\n".join(f"| `{row.name}` | {words[row.state]} | {row.note} |" for row in table)
    parts = [f"# {words['title']}", words["generated"], lead, kinds, f"{words['head']}\n|---|---|---|\n{body}"]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    check = parser.parse_args().check
    table = rows()
    missing = [row.name for row in table if not row.state]
    if missing:
        sys.exit(f"neither served nor refused: {', '.join(missing)}")
    stale = False
    for language, name in PAGES.items():
        target, text = DOCS / name, page(language, table)
        if not check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            print(f"{target.name} is out of date; run `make regen`", file=sys.stderr)
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
